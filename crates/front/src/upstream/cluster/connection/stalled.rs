//! Clients that keep a slot from moving: it is sealed until their requests are done, and others wait for it.
//!
//! A client may take in none of its replies, so that nothing is read from the node whose reply is next; or
//! send the beginning of a long request and never its end; or have sent requests behind one that waits for
//! something to happen. Its connection is ended then. Whose node is slow is not ended: the client can do
//! nothing about that.
//!
//! Nothing is looked at before a client is the one that is waited for, and what is looked at then only as
//! long as a slot is sealed.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use whimbrel_fleet::Guard;

use super::due::{Due, Wait};
use super::news::{SealNotice, next};
use super::state::{Conn, PAUSE};
use crate::pipe::io::{Ended, OUT_BYTES_MAX, STALLED};
use crate::upstream::admission::Admission;

/// A client that does nothing at all is waited for no longer than this.
const IDLE: Duration = Duration::from_secs(2);

/// A client keeps a sealed slot from moving.
#[derive(Debug)]
pub(super) struct Stall {
    /// Since then, though perhaps not all the time.
    since: Instant,
    /// When it has last done something about it.
    moved_at: Instant,
}

impl Stall {
    fn new(now: Instant) -> Stall {
        Stall { since: now, moved_at: now }
    }

    /// Whether it has been waited for long enough: for one that does nothing, and for one that does little.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.moved_at + IDLE || now >= self.since + STALLED
    }
}

impl SealNotice {
    /// What is on its way to and from the client, as it has left that: it has moved where it is to.
    pub(super) fn see_client(&mut self, requests: usize, replies: usize) {
        let has_moved = match self.replies_left >= OUT_BYTES_MAX {
            true => replies < self.replies_left,
            false => requests > self.requests_left,
        };
        if let Some(stall) = &mut self.stall
            && has_moved
        {
            stall.moved_at = Instant::now();
        }
    }
}

impl<A: Admission> Conn<A> {
    /// Looks from now on whether slots are sealed of which something is under way; false where that was done
    /// already, or slots are not sealed here.
    pub(super) fn notice_seals(&mut self) -> bool {
        let Some(gate) = self.gate().filter(|_| self.seal_notice.is_none()) else { return false };
        let told = next(gate.seals());
        // What has happened before is looked at once.
        let again = Some(Box::pin(sleep(PAUSE)));
        self.seal_notice = Some(SealNotice { told, again, stall: None, requests_left: 0, replies_left: 0 });
        true
    }

    /// Whether it is the client that has to do something before anything else happens.
    pub(super) fn waits_for_client(&self) -> bool {
        let is_full = self.to_client.len() >= OUT_BYTES_MAX;
        (is_full || matches!(self.passing, Some(Some(_)))) && !self.due.is_empty()
    }

    /// Where the last of what is under way is whose slot is sealed.
    pub(super) fn last_sealed(&self) -> Option<usize> {
        self.due.iter().rposition(is_sealed)
    }

    /// Ends a connection whose client keeps a sealed slot from moving for too long; `last` is the last
    /// request of such a slot.
    pub(super) fn end_stall(&mut self, last: usize) -> Result<(), Ended> {
        let is_full = self.to_client.len() >= OUT_BYTES_MAX;
        let is_half_sent = matches!(self.passing, Some(Some(_))) && self.inbox.is_empty();
        let waits_for_rest = is_half_sent && self.due.back().is_some_and(is_sealed);
        // One that keeps its slot is let go of.
        let waits = |due: &Due| matches!(due.wait, Some(Wait::Unpinned(_)));
        let is_held_up = is_full || waits_for_rest || self.due.iter().take(last).any(waits);
        let Some(seal_notice) = &mut self.seal_notice else { return Ok(()) };
        let now = Instant::now();
        match &mut seal_notice.stall {
            None => seal_notice.stall = is_held_up.then(|| Stall::new(now)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(stall: Stall, requests_left: usize, replies_left: usize) -> SealNotice {
        let told = Box::pin(std::future::pending());
        SealNotice { told, again: None, stall: Some(stall), requests_left, replies_left }
    }

    /// When a client is given up that does something every so often, as far as its connection sees it.
    fn lasts(pause: Duration) -> Duration {
        let began = Instant::now();
        let mut stall = Stall::new(began);
        let mut now = began;
        while !stall.is_over(now) {
            now += PAUSE;
            if (now - stall.moved_at) >= pause {
                stall.moved_at = now;
            }
        }
        now - began
    }

    #[test]
    fn a_client_is_waited_for_as_long_as_it_does_something_and_not_for_ever() {
        assert_eq!(lasts(Duration::from_secs(60)), IDLE);
        assert_eq!(lasts(Duration::from_secs(1)), STALLED);
    }

    #[test]
    fn requests_of_a_client_that_takes_nothing_in_do_not_count() {
        let past = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        let moved = |mut notice: SealNotice, requests: usize, replies: usize| {
            notice.see_client(requests, replies);
            notice.stall.is_some_and(|stall| stall.moved_at > past)
        };
        let full = || notice(Stall::new(past), 0, OUT_BYTES_MAX);
        assert!(!moved(full(), 100, OUT_BYTES_MAX), "it only sends");
        assert!(moved(full(), 0, OUT_BYTES_MAX - 1), "it has taken something");
        let half_sent = || notice(Stall::new(past), 0, 0);
        assert!(!moved(half_sent(), 0, 0), "it sends nothing");
        assert!(moved(half_sent(), 1, 0), "it has sent something");
    }
}
