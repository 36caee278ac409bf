//! The connection of a session to a server.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use whimbrel_engine::error::Result;
use whimbrel_engine::link::Io;

use super::context::SessionContext;
use crate::pipe::io::read;
use crate::pipe::replies::Replies;
use crate::pipe::requests::Requests;
use crate::upstream::Connection;
use crate::upstream::cluster::ClusterConnection;
use crate::upstream::identity::Identity;
use crate::upstream::shared::Handle;

/// A client that has sent so much which has not been passed on yet is not read from. A header and a line fit
/// in.
pub(super) const INBOX_BYTES_MAX: usize = 128 << 10;

/// The connection to the server, and what is on its way there and back.
pub(super) struct Server {
    pub(super) way: Way,
    pub(super) to: Requests,
    /// Requests in `to`, where they are counted: on a shared connection.
    pub(super) asked: usize,
    pub(super) from: Replies,
    /// It knows that nothing more will be sent.
    pub(super) shut: bool,
}

/// How the server is reached.
pub(super) enum Way {
    /// By the client's own connection.
    Own(Io),
    /// By the client's own connections to the nodes of a cluster.
    Cluster(Box<dyn ClusterConnection>),
    /// By one that several clients share.
    Shared(Handle),
}

pub(super) type Connecting = Pin<Box<dyn Future<Output = Result<Connection>> + Send>>;

pub(super) enum Link {
    Connecting(Connecting),
    Up(Box<Server>),
    /// It could not be reached; the client has been told.
    Lost,
}

impl From<Connection> for Way {
    fn from(connection: Connection) -> Way {
        match connection {
            Connection::Server(io) => Way::Own(io),
            Connection::Cluster(cluster) => Way::Cluster(cluster),
        }
    }
}

impl Server {
    pub(super) fn new(way: Way) -> Server {
        let (to, from) = match &way {
            Way::Own(_) | Way::Shared(_) => (Requests::bytes(), Replies::bytes()),
            Way::Cluster(_) => (Requests::parsed(), Replies::parsed()),
        };
        Server { way, to, asked: 0, from, shut: false }
    }

    /// Nothing has been sent that is not answered, but for what the caller knows of.
    pub(super) fn is_idle(&self) -> bool {
        self.to.is_empty() && self.from.is_empty() && self.from.is_between()
    }

    /// Reads what has arrived, 0 bytes at the end of it.
    pub(super) fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.way {
            Way::Own(io) => read(io, cx, self.from.bytes_mut()),
            Way::Shared(handle) => handle.take(cx, self.from.bytes_mut()).map(Ok),
            Way::Cluster(cluster) => {
                let ended = cluster.poll(cx, &mut self.to, &mut self.from).is_err();
                match self.from.len() {
                    0 if !ended => Poll::Pending,
                    bytes => Poll::Ready(Ok(bytes)),
                }
            }
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
    Box::pin(async move { shared.source.connect().await })
}
