//! What a session between two servers is, while keys move from one to the other.

use std::sync::Arc;

use tokio::time::Instant;

use super::due::Change;
use super::link::INBOX_BYTES_MAX;
use super::transaction::Transaction;
use crate::migrate::direction::Side;
use crate::migrate::state::MigrationState;
use crate::pipe::frame::one_line;
use crate::pipe::memory::MemoryPermit;

pub(super) struct Moving {
    pub(super) migration: Arc<MigrationState>,
    /// Which server the session talks to.
    pub(super) at: Side,
    /// At the target, which has all transactions.
    pub(super) transaction: Transaction,
    pub(super) inbox_bytes_max: usize,
    pub(super) memory: Vec<MemoryPermit>,
    /// When to check whether a key waits for the client to take in a reply.
    pub(super) stall: Option<Instant>,
    /// In another database, which can be once all keys have moved.
    pub(super) elsewhere: bool,
    /// It said something of itself that was not kept.
    pub(super) is_unknown: bool,
}

/// What to do with a request that has waited.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// Its keys are home.
    Send,
    /// It has been answered.
    Reply(Vec<u8>),
    /// It cannot be carried out.
    Refuse(Vec<u8>),
}

/// What to do with the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was taken, or changed.
    Moved,
    /// It has to wait for something that is under way.
    HeldUp,
    /// More of it has to arrive.
    Nothing,
}

/// How much of the first request is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) len: usize,
    pub(super) whole: bool,
}

impl Moving {
    pub(super) fn new(migration: Arc<MigrationState>) -> Moving {
        Moving {
            migration,
            at: Side::Target,
            transaction: Transaction::None,
            inbox_bytes_max: INBOX_BYTES_MAX,
            memory: Vec::new(),
            stall: None,
            elsewhere: false,
            is_unknown: false,
        }
    }

    /// Nothing of it is open that another connection would not have.
    pub(super) fn is_portable(&self) -> bool {
        self.transaction.is_none() && !(self.elsewhere || self.is_unknown)
    }

    /// The target has agreed to what a client says once all keys have moved.
    pub(super) fn agreed(&mut self, change: Change) {
        match change {
            Change::Select(is_first) => self.elsewhere = !is_first,
            Change::Reset => (self.elsewhere, self.is_unknown) = (false, false),
            // Known from the requests.
            _ => {}
        }
    }
}

pub(super) fn settled(pulled: Result<(), String>) -> Settled {
    match pulled {
        Ok(()) => Settled::Send,
        Err(why) => Settled::Refuse(format!("-TRYAGAIN whimbrel front: {}\r\n", one_line(&why)).into_bytes()),
    }
}
