//! Serves one connection: moves what can be moved.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;

use bytes::BytesMut;

use super::news::FleetNews;
use super::node::State;
use super::parts::Parts;
use super::request::{Listening, Multi};
use super::shared::Sharing;
use super::state::{Conn, Life};
use crate::pipe::io::Ended;
use crate::pipe::replies::Replies;
use crate::pipe::requests::Requests;
use crate::upstream::admission::Admission;
use crate::upstream::cluster::nodes::{Cluster, Ids};
use crate::upstream::cluster::polled::ClusterConnection;
use crate::upstream::identity::Identity;
use crate::upstream::shared::SharedConnections;

impl<A: Admission> ClusterConnection for Conn<A> {
    fn poll(&mut self, cx: &mut Context<'_>, to: &mut Requests, from: &mut Replies) -> Result<bool, Ended> {
        if self.life == Life::Ended {
            return Err(Ended);
        }
        if let Some(seal_notice) = &mut self.seal_notice {
            seal_notice.see_client(to.len(), from.len());
        }
        std::mem::swap(&mut self.inbox, to);
        std::mem::swap(&mut self.to_client, from);
        let moved = self.drive(cx);
        std::mem::swap(&mut self.inbox, to);
        std::mem::swap(&mut self.to_client, from);
        if moved.is_err() {
            self.life = Life::Ended;
            // What was not answered is lost with the connections on which it was sent.
            (self.nodes, self.detour, self.sharing) = (Vec::new(), None, None);
            // Its client may take in what is there as late as it likes: no slot is kept for that.
            self.due.clear();
            self.alone_wait = None;
        }
        moved
    }

    fn share(&mut self, connections: Arc<SharedConnections>) {
        self.sharing = Some(Sharing::new(connections));
    }

    fn is_let_go(&mut self, cx: &mut Context<'_>) -> bool {
        let shared = self.sharing.iter().flat_map(|sharing| &sharing.nodes).flatten();
        // A node that owes nothing has lost nothing.
        let shared = shared.filter(|node| node.due > 0);
        // Each of them, so that any wakes it.
        shared.fold(false, |is_any, node| match &node.state {
            State::Shared(handle) => handle.is_let_go(cx) || is_any,
            _ => is_any,
        })
    }

    fn close(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Closed;
        }
    }
}

impl<A: Admission> Conn<A> {
    pub(in crate::upstream::cluster) fn new(
        cluster: Arc<Cluster<A>>,
        ids: Option<Ids>,
        is_for_client: bool,
    ) -> Conn<A> {
        Conn {
            map: cluster.map(),
            fleet_news: FleetNews::of(&cluster),
            cluster,
            ids,
            is_for_client,
            inbox: Requests::parsed(),
            memory: Vec::new(),
            to_client: Replies::parsed(),
            nodes: Vec::new(),
            detour: None,
            sharing: None,
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
            listening: Listening::No,
            alone_wait: None,
            settling: false,
            refreshing: None,
            pause: None,
            heard: 0,
            check: None,
            is_silent: false,
            probing: None,
            asking: None,
            passing: None,
            life: Life::Open,
        }
    }

    /// Moves all that can be moved; true if anything was.
    fn drive(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        // Once more if seals are noticed from now on, so that they wake this.
        while self.step(cx)? || self.waits_for_client() && self.notice_seals() {
            moved = true;
        }
        if self.is_over() {
            return Err(Ended);
        }
        if let Some(seal_notice) = &mut self.seal_notice {
            (seal_notice.requests_left, seal_notice.replies_left) = (self.inbox.len(), self.to_client.len());
        }
        self.release_memory();
        Ok(moved)
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = self.hear_fleet_news(cx)?;
        moved |= self.observe_seals(cx)?;
        moved |= self.refreshed(cx);
        moved |= self.leave_the_dead(cx)?;
        moved |= self.take(cx)?;
        moved |= self.drive_nodes(cx)?;
        moved |= self.take_replies(cx)?;
        Ok(moved || self.hear_silence(cx))
    }

    /// The client will send no more, and has got all it is owed.
    fn is_over(&self) -> bool {
        let is_idle = self.due.is_empty() && self.to_client.is_empty();
        let is_ready = self.asking.is_none() && self.refreshing.is_none() && self.pause.is_none();
        let is_heard = match self.life {
            Life::Open => false,
            Life::Closed => self.inbox.first().is_none_or(|first| !first.whole),
            Life::Quit | Life::Ended => true,
        };
        is_heard && is_idle && is_ready
    }

    fn release_memory(&mut self) {
        let shared = self.sharing.iter_mut().flat_map(|sharing| sharing.nodes.iter_mut().flatten());
        let nodes = self.nodes.iter_mut().flatten().chain(&mut self.detour).chain(shared);
        let buffers = nodes.flat_map(|node| [&mut node.to, &mut node.from]);
        for buffer in buffers.chain([&mut self.collected]).filter(|buffer| buffer.is_empty()) {
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
        self.check_silent_node();
        true
    }
}
