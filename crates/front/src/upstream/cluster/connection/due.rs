//! What is due to the client, in the order of its requests.

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_fleet::Guard;

use crate::command::rule::Trait;
use crate::upstream::admission::UnpinnedWait;

/// Where the reply comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// It is our own.
    Here,
    Node(u16),
    /// The same, by a connection that other clients use as well.
    Shared(u16),
    /// The connection for requests that were redirected.
    Detour,
}

pub(super) struct Due {
    pub(super) at: At,
    pub(super) what: What,
    /// To send it again; `None` if it was too long, or if that is never done.
    pub(super) request: Option<Bytes>,
    /// That of its keys.
    pub(super) slot: Option<Slot>,
    pub(super) tries: u32,
    /// Kept until the reply has come.
    pub(super) guard: Option<Guard>,
    /// It may wait for something to happen.
    pub(super) wait: Option<Wait>,
}

impl Due {
    pub(super) fn new(at: At, what: What) -> Due {
        Due { at, what, request: None, slot: None, tries: 0, guard: None, wait: None }
    }
}

/// What becomes of a reply.
pub(super) enum What {
    Reply,
    /// Our own.
    Own(Vec<u8>),
    /// No client gets it.
    Swallowed,
    /// This is given in its place.
    Replaced(Vec<u8>),
    /// The answer to what the client said of itself.
    Noted(Trait, Bytes),
    Reset,
    /// One of several that become one.
    Part,
    /// The reply of this node to `SCAN`.
    Scanned(u16),
    /// Shows that what the client has said about channels is through.
    Marker,
    /// That of `EXEC`, after those of what was held back until then.
    Transaction(Transaction),
    /// To `WATCH`, if what is watched may turn out to be elsewhere.
    Watched,
}

/// A transaction that is sent as one, so that it can be sent again as one.
pub(super) struct Transaction {
    /// Replies before that of `EXEC`.
    pub(super) count: usize,
    /// Those that have not come.
    pub(super) left: usize,
    /// Why something of it was refused that another node may carry out.
    pub(super) refused: Option<Bytes>,
}

impl What {
    /// Whether the reply is looked at as a whole.
    pub(super) fn is_collected(&self) -> bool {
        match self {
            What::Reply | What::Own(_) | What::Noted(..) | What::Reset | What::Watched => false,
            What::Transaction(held) => held.left > 0,
            _ => true,
        }
    }
}

/// How a request waits.
#[derive(Debug)]
pub(super) enum Wait {
    /// It keeps its slot. `true` once the server was asked to let it go.
    Pinned(bool),
    /// It keeps nothing; all are counted.
    Unpinned(UnpinnedWait),
}
