//! Serves one connection: moves what can be moved, until either side has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;
use whimbrel_wire::request::{RequestLimits, RequestScanner};

use super::news::FleetNews;
use super::parts::Parts;
use super::request::Multi;
use super::state::{Conn, WHOLE_BYTES_MAX};
use crate::pipe::io::{Ended, read, write};
use crate::upstream::admission::Admission;
use crate::upstream::cluster::nodes::{Cluster, Ids};
use crate::upstream::identity::Identity;

impl<A: Admission> Conn<A> {
    pub(in crate::upstream::cluster) fn new(
        cluster: Arc<Cluster<A>>,
        client: DuplexStream,
        gone: CancellationToken,
        ids: Option<Ids>,
        is_for_client: bool,
    ) -> Conn<A> {
        Conn {
            map: cluster.map(),
            fleet_news: FleetNews::of(&cluster),
            cluster,
            client,
            gone: Box::pin(gone.cancelled_owned()),
            ids,
            is_for_client,
            requests: RequestScanner::new(RequestLimits::default()),
            inbox: BytesMut::new(),
            inbox_bytes_max: WHOLE_BYTES_MAX,
            memory: Vec::new(),
            to_client: BytesMut::new(),
            nodes: Vec::new(),
            detour: None,
            main: None,
            due: VecDeque::new(),
            kept_bytes: 0,
            collected: BytesMut::new(),
            parts: Parts::default(),
            identity: Identity::default(),
            multi: Multi::No,
            watching: None,
            watch_lost: false,
            bound_slot: None,
            waiting: None,
            seal_notice: None,
            listening: None,
            alone: false,
            settling: false,
            refreshing: None,
            pause: None,
            asking: None,
            passing: None,
            client_closed: false,
        }
    }

    /// Serves until either side has ended.
    pub(in crate::upstream::cluster) async fn run(mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
        let _ = self.client.shutdown().await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // First of all: nothing may be sent for somebody who is gone.
        if self.gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            match self.step(cx) {
                Ok(true) => {}
                Ok(false) if self.is_over() => return Poll::Ready(()),
                Ok(false) => {
                    self.release_memory();
                    return Poll::Pending;
                }
                Err(Ended) => return Poll::Ready(()),
            }
        }
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = self.hear_fleet_news(cx)?;
        moved |= self.end_sealed_waits(cx)?;
        moved |= self.refreshed(cx);
        moved |= self.read_client(cx)?;
        moved |= self.take(cx)?;
        moved |= self.drive_nodes(cx)?;
        moved |= self.take_replies(cx)?;
        moved |= write(&mut self.client, cx, &mut self.to_client)?;
        Ok(moved)
    }

    /// The client will send no more, and has got all it is owed.
    fn is_over(&self) -> bool {
        let is_idle = self.due.is_empty() && self.to_client.is_empty();
        let is_ready = self.asking.is_none() && self.refreshing.is_none() && self.pause.is_none();
        self.client_closed && is_idle && is_ready
    }

    fn release_memory(&mut self) {
        let nodes = self.nodes.iter_mut().flatten().chain(&mut self.detour);
        let buffers = nodes.flat_map(|node| [&mut node.to, &mut node.from]);
        let own = [&mut self.inbox, &mut self.to_client, &mut self.collected];
        for buffer in buffers.chain(own).filter(|buffer| buffer.is_empty()) {
            *buffer = BytesMut::new();
        }
    }

    /// Takes over what has been learned of the cluster.
    fn refreshed(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(refreshing) = &mut self.refreshing else { return false };
        if refreshing.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.refreshing = None;
        self.map = self.cluster.map();
        true
    }

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.client_closed || self.inbox.len() >= self.inbox_bytes_max {
            return Ok(false);
        }
        match read(&mut self.client, cx, &mut self.inbox) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                self.client_closed = true;
                Ok(true)
            }
            Poll::Ready(read) => {
                read?;
                Ok(true)
            }
        }
    }
}
