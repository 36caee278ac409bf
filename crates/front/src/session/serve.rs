//! Serves a client: moves what can be moved, until one side hangs up.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use whimbrel_engine::error::Result;
use whimbrel_wire::request::{RequestLimits, RequestScanner};

use super::context::SessionContext;
use super::link::{Link, Server, Way, connect};
use super::moving::Moving;
use super::plain::Plain;
use super::sharing::Sharing;
use super::state::{FAREWELL, Session, Stage};
use crate::face;
use crate::migrate::direction::Side;
use crate::migrate::stages::Entrance;
use crate::pipe::io::{Ended, read, write};
use crate::upstream::identity::Identity;

/// Room for notes that an idle session keeps.
const DUE_KEPT_MAX: usize = 64;

impl<C: AsyncRead + AsyncWrite + Unpin> Session<C> {
    pub(crate) fn new(shared: Arc<SessionContext>, client: C) -> Session<C> {
        let (plain, moving) = match shared.stages.as_ref().map(|stages| stages.enter()) {
            None => (None, None),
            Some(Entrance::Forwarding(ticket)) => (Some(Box::new(Plain::new(ticket))), None),
            Some(Entrance::Moving(migration, ticket)) => {
                (None, Some(Box::new(Moving::new(migration, ticket))))
            }
        };
        let sharing = shared.connections.as_ref().filter(|_| plain.is_some());
        let sharing = sharing.map(|connections| Box::new(Sharing::new(connections.clone())));
        let identity = Identity::default();
        let connecting = match &moving {
            Some(moving) => moving.connect(Side::Target, &identity),
            None => connect(&shared),
        };
        let mut session = Session {
            shared,
            client,
            link: Link::Connecting(connecting),
            requests: RequestScanner::new(RequestLimits::default()),
            inbox: BytesMut::new(),
            to_client: BytesMut::new(),
            due: VecDeque::new(),
            identity,
            plain,
            moving,
            sharing,
            counted: true,
            asking: None,
            passing: None,
            stage: Stage::Open,
            client_closed: false,
            farewell: None,
        };
        if session.moving.is_none() && !session.shared.source.is_cluster() {
            // A name, and the words that may matter. A cluster wants to know them all.
            session.requests.keep(if session.shared.face.is_some() { face::WORDS } else { 2 });
        }
        session
    }

    /// Serves until one side hangs up.
    pub(crate) async fn run(mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
        // With TLS the end has to be told, or it looks like a cut.
        let _ = timeout(FAREWELL, self.client.shutdown()).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let call = match (&mut self.plain, &mut self.moving) {
            (Some(plain), _) => Some(&mut plain.call),
            (None, moving) => moving.as_mut().map(|moving| &mut moving.call),
        };
        if call.is_some_and(|call| call.is_evicted(cx)) {
            return Poll::Ready(());
        }
        loop {
            match self.step(cx) {
                Ok(true) => {}
                Ok(false) if self.is_over(cx) || self.is_stalled(cx) => return Poll::Ready(()),
                Ok(false) if self.is_at_rest() => self.go_over(),
                Ok(false) => {
                    self.release_memory();
                    return Poll::Pending;
                }
                Err(Ended) => return Poll::Ready(()),
            }
        }
    }

    /// Moves what can be moved; true where anything was.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = self.poll_connecting(cx);
        self.watch_parked(cx);
        moved |= self.read_client(cx)?;
        let taken = if self.moving.is_some() { self.take_while_moving(cx) } else { self.take_requests() };
        moved |= taken;
        if self.client_closed && !taken && self.wants_requests() && !self.is_held_up() {
            // There was room, so no whole request is left.
            moved |= self.leave();
        }
        moved |= self.write_server(cx)?;
        moved |= self.read_server(cx)?;
        moved |= self.take_replies()?;
        moved |= self.write_client(cx)?;
        Ok(moved)
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stage == Stage::Open {
            return false;
        }
        let settled = self.due.is_empty() && self.to_client.is_empty();
        settled || self.farewell.as_mut().is_none_or(|timer| timer.as_mut().poll(cx).is_ready())
    }

    /// An idle connection holds no buffers: there may be thousands. What has been taken out of one from its
    /// start does not count as its capacity, so each that is empty is given up.
    fn release_memory(&mut self) {
        if let Link::Up(server) = &mut self.link {
            server.to.release();
            server.from.release();
        }
        for buffer in [&mut self.inbox, &mut self.to_client].into_iter().filter(|buffer| buffer.is_empty()) {
            *buffer = BytesMut::new();
        }
        if self.due.is_empty() && self.due.capacity() > DUE_KEPT_MAX {
            self.due = VecDeque::new();
        }
    }

    fn poll_connecting(&mut self, cx: &mut Context<'_>) -> bool {
        let Link::Connecting(connecting) = &mut self.link else { return false };
        let Poll::Ready(connected) = connecting.as_mut().poll(cx) else { return false };
        match connected {
            Ok(connection) => self.link = Link::Up(Box::new(Server::new(connection.into()))),
            Err(error) => {
                tracing::warn!(%error, "the server cannot be reached for a client");
                self.shared.counts.unreachable.fetch_add(1, Ordering::Relaxed);
                self.link = Link::Lost;
                self.push_reply(format!("-ERR whimbrel front: {error}\r\n").into_bytes());
                self.leave();
            }
        }
        true
    }

    // ---- From the client to the server ----

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.client_closed || self.stage != Stage::Open || self.inbox.len() >= self.inbox_bytes_max() {
            return Ok(false);
        }
        match read(&mut self.client, cx, &mut self.inbox) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                // It may have closed one half only, and still want to know.
                self.client_closed = true;
                Ok(true)
            }
            Poll::Ready(read) => {
                read?;
                Ok(true)
            }
        }
    }

    fn write_server(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Link::Up(server) = &mut self.link else { return Ok(false) };
        let shuts = self.client_closed && self.stage == Stage::Leaving && !server.shut;
        // The server learns it as it would without us, answers what has come, and lets go of a client that
        // waits for something to happen: nothing may be popped for one who has left.
        match &mut server.way {
            Way::Shared(_) => self.send_shared(cx),
            Way::Own(io) => {
                let written = write(io, cx, server.to.bytes_mut())?;
                if shuts && server.to.is_empty() {
                    server.shut = Pin::new(io).poll_shutdown(cx).is_ready();
                }
                Ok(written)
            }
            // It sends when it is read from.
            Way::Cluster(cluster) => {
                if shuts {
                    cluster.close();
                    server.shut = true;
                }
                Ok(false)
            }
        }
    }

    // ---- From the server to the client ----
}
