//! A connection of a session to a server.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Io;

use super::link::{Kind, Wire};
use crate::pipe::io::{Ended, read, write};
use crate::upstream::Connection;
use crate::upstream::cluster::ClusterConnection;
use crate::upstream::shared::Handle;

/// How a server is reached.
pub(super) enum Way {
    /// By the client's own connection.
    Own(Io),
    /// By the client's own connections to the nodes of a cluster.
    Cluster(Box<dyn ClusterConnection>),
    /// By a connection that several clients share.
    Shared(Handle),
}

/// A connection that is being made.
pub(super) type Connecting = Pin<Box<dyn Future<Output = Result<Connection>> + Send>>;

impl From<Connection> for Way {
    fn from(connection: Connection) -> Way {
        match connection {
            Connection::Server(io) => Way::Own(io),
            Connection::Cluster(cluster) => Way::Cluster(cluster),
        }
    }
}

impl Way {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Way::Own(_) => Kind::Own,
            Way::Cluster(_) => Kind::Cluster,
            Way::Shared(_) => Kind::Shared,
        }
    }

    /// The address that the client's own connection comes from; `None` if it has none, or several.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Way::Own(io) => io.local_address(),
            Way::Cluster(_) | Way::Shared(_) => None,
        }
    }

    /// Sends what is to be sent on the client's own connection, and with `shuts` that nothing more will be;
    /// true if anything was. A cluster sends when it is read from.
    ///
    /// # Errors
    /// [`Ended`] if the connection has.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, wire: &mut Wire, shuts: bool) -> Sent {
        match self {
            Way::Shared(_) => Ok(false),
            Way::Own(io) => {
                let written = write(io, cx, wire.to.bytes_mut())?;
                if shuts && !wire.is_shut && wire.to.is_empty() {
                    wire.is_shut = Pin::new(io).poll_shutdown(cx).is_ready();
                }
                Ok(written)
            }
            Way::Cluster(cluster) => {
                if shuts && !wire.is_shut {
                    cluster.close();
                    wire.is_shut = true;
                }
                Ok(false)
            }
        }
    }

    /// Reads what has arrived, 0 bytes at the end of it.
    pub(super) fn read(&mut self, cx: &mut Context<'_>, wire: &mut Wire) -> Poll<io::Result<usize>> {
        match self {
            Way::Own(io) => read(io, cx, wire.from.bytes_mut()),
            Way::Shared(handle) => handle.take(cx, wire.from.bytes_mut()).map(Ok),
            Way::Cluster(cluster) => {
                let ended = cluster.poll(cx, &mut wire.to, &mut wire.from).is_err();
                match wire.from.len() {
                    0 if !ended => Poll::Pending,
                    bytes => Poll::Ready(Ok(bytes)),
                }
            }
        }
    }

    /// Whether it is open, as far as can be seen. Nothing is due on it.
    pub(super) fn is_alive(&mut self, cx: &mut Context<'_>) -> bool {
        let mut wire = Wire::new(self.kind());
        self.read(cx, &mut wire).is_pending()
    }
}

/// Whether anything was sent.
type Sent = std::result::Result<bool, Ended>;
