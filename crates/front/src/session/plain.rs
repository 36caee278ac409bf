//! A session in front of the source alone, of a front that may move keys later: what has to be known of it
//! when that begins.

use super::due::Change;
use super::transaction::Transaction;

#[derive(Debug, Default)]
pub(super) struct Plain {
    transaction: Transaction,
    other_database: bool,
    /// It said something of itself that was not kept.
    is_unknown: bool,
}

impl Plain {
    /// Whether requests are taken. When keys are to move, only those that bring a client to rest: the end of
    /// what it has begun.
    pub(super) fn takes_requests(&self, is_called: bool) -> bool {
        !is_called || !self.transaction.is_none()
    }

    /// The server has agreed. Replies come in the order of requests, so this is what the session is there.
    pub(super) fn agreed(&mut self, change: Change) {
        match change {
            Change::Multi => self.transaction.begin(),
            Change::Watch => self.transaction.watch(),
            Change::TransactionEnds => self.transaction.end(),
            Change::Unwatch => self.transaction.unwatch(),
            Change::Select(is_first) if !self.transaction.is_open() => self.other_database = !is_first,
            Change::Reset => {
                self.transaction.reset();
                self.other_database = false;
            }
            Change::Select(_) | Change::Unkept => self.is_unknown = true,
        }
    }

    /// Whether what it says now is only queued.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.transaction.is_open()
    }

    /// It has begun something that a server would carry on with.
    pub(super) fn has_begun(&self) -> bool {
        !self.transaction.is_none()
    }

    /// Nothing of it is open that another connection would not have.
    pub(super) fn is_portable(&self) -> bool {
        self.transaction.is_none() && !(self.other_database || self.is_unknown)
    }
}
