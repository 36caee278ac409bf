//! A session in front of the source alone, of a front that may move keys later: what has to be known of it
//! when that begins.

use super::call::Call;
use super::due::Change;
use crate::migrate::stages::Ticket;

pub(super) struct Plain {
    pub(super) call: Call,
    multi: bool,
    watch: bool,
    other_database: bool,
    /// It said something of itself that was not kept.
    is_unknown: bool,
}

impl Plain {
    pub(super) fn new(ticket: Ticket) -> Plain {
        Plain {
            call: Call::new(ticket),
            multi: false,
            watch: false,
            other_database: false,
            is_unknown: false,
        }
    }

    /// Whether requests are taken. When keys are to move, only those by which a client comes to rest: the end
    /// of what it has begun.
    pub(super) fn takes_requests(&self) -> bool {
        !self.call.is_called() || self.multi || self.watch
    }

    /// The server has agreed. Replies come in the order of requests, so this is what the session is there.
    pub(super) fn agreed(&mut self, change: Change) {
        match change {
            Change::Multi => self.multi = true,
            Change::Watch => self.watch = true,
            Change::TransactionEnds => {
                // Without a transaction the watches stay.
                self.watch &= !self.multi;
                self.multi = false;
            }
            // What a transaction has queued is carried out when it ends, or not at all.
            Change::Unwatch => self.watch &= self.multi,
            Change::Select(is_first) if !self.multi => self.other_database = !is_first,
            Change::Reset => (self.multi, self.watch, self.other_database) = (false, false, false),
            Change::Select(_) | Change::Unkept => self.is_unknown = true,
        }
    }

    /// Whether what it says now is only queued.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.multi
    }

    /// Nothing of it is open that another connection would not have.
    pub(super) fn is_portable(&self) -> bool {
        !(self.multi || self.watch || self.other_database || self.is_unknown)
    }
}
