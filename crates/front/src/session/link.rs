//! What is on its way between a session and a server.

use crate::pipe::replies::Replies;
use crate::pipe::requests::Requests;

/// A client that has sent so much which has not been passed on yet is not read from. A header and a line fit
/// in.
pub(super) const INBOX_BYTES_MAX: usize = 128 << 10;

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// By the client's own connection.
    Own,
    /// By the client's own connections to the nodes of a cluster.
    Cluster,
    /// By a connection that several clients share.
    Shared,
}

/// What is on its way to a server and back.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) kind: Kind,
    pub(super) to: Requests,
    /// Requests in `to`, if they are counted: on a shared connection.
    pub(super) asked: usize,
    pub(super) from: Replies,
    /// The server knows that nothing more will be sent.
    pub(super) is_shut: bool,
}

/// How a session stands to the server that it talks to.
#[derive(Debug)]
pub(super) enum Link {
    /// There is no connection yet.
    Connecting,
    Up(Box<Wire>),
    /// It has ended, or could not be reached; the client has been notified.
    Lost,
}

impl Wire {
    pub(super) fn new(kind: Kind) -> Wire {
        let (to, from) = match kind {
            Kind::Own | Kind::Shared => (Requests::bytes(), Replies::bytes()),
            Kind::Cluster => (Requests::parsed(), Replies::parsed()),
        };
        Wire { kind, to, asked: 0, from, is_shut: false }
    }

    /// All that was sent is answered, except what the caller knows about.
    pub(super) fn is_idle(&self) -> bool {
        self.to.is_empty() && self.from.is_empty() && self.from.is_between()
    }

    pub(super) fn release_memory(&mut self) {
        self.to.release();
        self.from.release();
    }
}
