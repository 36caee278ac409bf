//! Clients that keep a slot from moving: it is sealed until their requests are done, and others wait for it.
//!
//! A client may take in none of its replies, so that nothing is read from the node whose reply is next; or
//! send the beginning of a long request and never its end; or have sent requests behind a request that waits
//! for something to happen. Its connection is ended then. If only the node is slow, the connection is not
//! ended: the client can do nothing about that.
//!
//! Nothing is checked before a client is waited for, and then only as long as a slot is sealed.

use tokio::time::{Instant, sleep};
use whimbrel_fleet::Guard;

use super::due::{Due, Wait};
use super::news::{SealNotice, Stall, next};
use super::state::{Conn, PAUSE};
use crate::pipe::io::{Ended, OUT_BYTES_MAX};
use crate::upstream::admission::Admission;

impl<A: Admission> Conn<A> {
    /// Checks from now on whether slots are sealed that have requests under way; false if that was done
    /// already, or slots are not sealed here.
    pub(super) fn notice_seals(&mut self) -> bool {
        let Some(gate) = self.gate().filter(|_| self.seal_notice.is_none()) else { return false };
        let seals = next(gate.seals());
        // What has happened before is looked at once.
        let again = Some(Box::pin(sleep(PAUSE)));
        self.seal_notice =
            Some(SealNotice { seals, again, stall: None, answered: 0, requests_left: 0, replies_left: 0 });
        true
    }

    /// Whether it is the client that has to do something before anything else happens.
    pub(super) fn waits_for_client(&self) -> bool {
        let is_full = self.to_client.len() >= OUT_BYTES_MAX;
        (is_full || matches!(self.passing, Some(Some(_)))) && !self.due.is_empty()
    }

    /// The position of the last request under way whose slot is sealed.
    pub(super) fn last_sealed(&self) -> Option<usize> {
        self.due.iter().rposition(is_sealed)
    }

    /// Ends a connection whose client keeps a sealed slot from moving for too long; `last` is the last
    /// request of such a slot.
    pub(super) fn end_stall(&mut self, last: usize) -> Result<(), Ended> {
        let is_full = self.to_client.len() >= OUT_BYTES_MAX;
        let is_half_sent = matches!(self.passing, Some(Some(_))) && self.inbox.is_empty();
        let waits_for_rest = is_half_sent && self.due.back().is_some_and(is_sealed);
        // A request that keeps its slot is let go of.
        let waits = |due: &Due| matches!(due.wait, Some(Wait::Unpinned(_)));
        let is_held_up = is_full || waits_for_rest || self.due.iter().take(last).any(waits);
        let Some(seal_notice) = &mut self.seal_notice else { return Ok(()) };
        let (now, answered) = (Instant::now(), seal_notice.answered);
        match &mut seal_notice.stall {
            Some(stall) if answered < stall.until_answered => {}
            stall => *stall = None,
        }
        match &mut seal_notice.stall {
            None => {
                let until_answered = answered + last as u64 + 1;
                seal_notice.stall = is_held_up.then(|| Stall::new(now, until_answered));
            }
            Some(stall) if !is_held_up => stall.moved_at = now,
            Some(stall) if stall.is_over(now) => {
                tracing::warn!(
                    "a client that takes in or sends too little keeps a slot from moving: it is \
                    disconnected"
                );
                return Err(Ended);
            }
            Some(_) => {}
        }
        Ok(())
    }
}

fn is_sealed(due: &Due) -> bool {
    due.guard.as_ref().is_some_and(Guard::is_sealed)
}
