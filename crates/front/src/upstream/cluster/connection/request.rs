//! The request that is first in the inbox, and the transaction that it may belong to.

use std::pin::Pin;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};
use whimbrel_fleet::Guard;

/// What is queued of a transaction before its node is known.
pub(super) const QUEUED_BYTES_MAX: usize = 1 << 20;

pub(super) const CROSS_SLOT: &[u8] = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n";

pub(super) const EXEC_ABORT: &[u8] = b"-EXECABORT Transaction discarded because of previous errors.\r\n";

/// A transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Multi {
    No,
    /// No command with keys has come yet, so its node is not known.
    Open {
        queued: Vec<Bytes>,
        bytes: usize,
        /// Something was refused: `EXEC` must fail.
        failed: bool,
    },
    At(u16),
}

/// Where a client listens for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listening {
    No,
    /// At this node, whose messages are distinguished from replies by their kind.
    At(u16),
    /// At this node, with the older protocol: replies are not counted any more, and everything goes there.
    Alone(u16),
}

impl Listening {
    /// The node that sends messages.
    pub(super) fn node(self) -> Option<u16> {
        match self {
            Listening::No => None,
            Listening::At(node) | Listening::Alone(node) => Some(node),
        }
    }
}

/// A node is asked, or has answered, which words of the first request are keys.
pub(super) enum Asking {
    Under(Pin<Box<dyn Future<Output = Result<Vec<Bytes>, String>> + Send>>),
    Answered(Result<Vec<Bytes>, String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Taken,
    /// Something has to come first.
    Waits,
}

/// The first request in the inbox.
pub(super) struct First {
    pub(super) len: usize,
    pub(super) whole: bool,
    pub(super) words: Vec<Bytes>,
    /// It may wait for something to happen, for as long as it takes.
    pub(super) blocks: bool,
    /// It may go over a connection that others use as well.
    pub(super) shares: bool,
    /// Its key is a channel, and channels are where the first backend has the slot, whichever has its data.
    pub(super) is_channel: bool,
}

/// A request waits until a member serves its slot.
pub(super) struct Waiting {
    pub(super) until: Instant,
    pub(super) pause: Pin<Box<Sleep>>,
}

/// Whether a request may be carried out here.
pub(super) enum Admitted {
    /// Yes; if there is a guard, it has to be kept until the reply has come.
    Open(Option<Guard>),
    /// No, and this is what the client gets.
    Answer(Vec<u8>),
    /// That is not known yet.
    Waits,
}
