//! The connection of a session to a server.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Io;
use whimbrel_wire::boundary::Boundary;

use super::context::SessionContext;
use crate::pipe::io::read;
use crate::upstream::identity::Identity;
use crate::upstream::shared::Handle;

/// A client that has sent so much which has not been passed on yet is not read from. A header and a line fit
/// in.
pub(super) const INBOX_BYTES_MAX: usize = 128 << 10;

/// The connection to the server, and what is on its way there and back.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) way: Way,
    pub(super) to: BytesMut,
    /// Requests in `to`, where they are counted: on a shared connection.
    pub(super) asked: usize,
    pub(super) from: BytesMut,
    pub(super) boundary: Boundary,
    /// It knows that nothing more will be sent.
    pub(super) shut: bool,
}

/// How the server is reached.
#[derive(Debug)]
pub(super) enum Way {
    /// By the client's own connection.
    Own(Io),
    /// By one that several clients share.
    Shared(Handle),
}

pub(super) type Connecting = Pin<Box<dyn Future<Output = Result<Io>> + Send>>;

pub(super) enum Link {
    Connecting(Connecting),
    Up(Box<Server>),
    /// It could not be reached; the client has been told.
    Lost,
}

impl Server {
    pub(super) fn new(way: Way) -> Server {
        let (to, from) = (BytesMut::new(), BytesMut::new());
        Server { way, to, asked: 0, from, boundary: Boundary::default(), shut: false }
    }

    /// Nothing has been sent that is not answered, but for what the caller knows of.
    pub(super) fn is_idle(&self) -> bool {
        self.to.is_empty() && self.from.is_empty() && self.boundary.is_between()
    }

    /// Reads what has arrived, 0 bytes at the end of it.
    pub(super) fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.way {
            Way::Own(io) => read(io, cx, &mut self.from),
            Way::Shared(handle) => handle.take(cx, &mut self.from).map(Ok),
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self.way, Way::Shared(_))
    }
}

/// To the source, for a client who has been there before.
pub(super) fn connect_again(shared: &Arc<SessionContext>, identity: &Identity) -> Connecting {
    let (shared, identity) = (shared.clone(), identity.clone());
    Box::pin(async move { shared.source.introduce(&identity).await })
}

/// To the source, for a client that will log in itself.
pub(super) fn connect(shared: &Arc<SessionContext>) -> Connecting {
    let shared = shared.clone();
    Box::pin(async move { shared.source.io().await })
}
