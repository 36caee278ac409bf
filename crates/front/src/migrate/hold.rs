//! The order by which clients are held, and until when.
//!
//! ```text
//!          begin                switch, in time
//!  free ──────────▶ held ────────────────────────▶ free, clients at the other side
//!    ▲               │
//!    └───────────────┘ release, or its time is over: clients where they are
//! ```
//!
//! **Invariant:** a hold is ended by one of the three, once. A switch names the number of the hold, and gets
//! what is to be switched to only from the hold of this number, within its time. So clients that have been
//! let go are never mistaken for clients that are held. No number comes twice, also not in another process.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::time::Instant;

use crate::migrate::phase::Stand;
use crate::migrate::state::MigrationState;

/// What is held, if anything.
#[derive(Debug)]
pub(crate) struct PauseState<T> {
    held: Option<PauseNow<T>>,
}

#[derive(Debug)]
struct PauseNow<T> {
    number: u64,
    until: Instant,
    to: T,
}

/// Where clients go when a hold is switched.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) migration: Arc<MigrationState>,
    pub(crate) stand: Stand,
    /// What is on disk now.
    pub(crate) before: Stand,
    /// Clients that were disconnected.
    pub(crate) ended: u64,
}

/// Why nothing is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// This hold is over, or never was.
    Over,
    /// Its time is over, and with this the hold is: clients have to be let go.
    Expired,
}

impl<T> Default for PauseState<T> {
    fn default() -> PauseState<T> {
        PauseState { held: None }
    }
}

impl<T> PauseState<T> {
    /// The number of the hold; `None` if there is none.
    pub(crate) fn number(&self) -> Option<u64> {
        self.held.as_ref().map(|held| held.number)
    }

    /// Clients are held from now on, and may be switched to that. No client was held before. Returns the
    /// number.
    pub(crate) fn begin(&mut self, until: Instant, to: T) -> u64 {
        // Random, and not 0.
        let number = RandomState::new().hash_one(0) | 1;
        self.held = Some(PauseNow { number, until, to });
        number
    }

    /// Ends the hold of this number, for what clients are to be switched to.
    ///
    /// # Errors
    /// [`Late`].
    pub(crate) fn switch(&mut self, number: u64, now: Instant) -> Result<T, Late> {
        match self.held.take_if(|held| held.number == number) {
            None => Err(Late::Over),
            Some(held) if now < held.until => Ok(held.to),
            Some(_) => Err(Late::Expired),
        }
    }

    /// Ends the hold of this number; true if that was not over yet.
    pub(crate) fn expire(&mut self, number: u64) -> bool {
        self.held.take_if(|held| held.number == number).is_some()
    }

    /// Ends whatever hold there is; true if there was one.
    pub(crate) fn release(&mut self) -> bool {
        self.held.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    #[test]
    fn a_hold_is_switched_once_and_in_time() {
        let (mut hold, now) = (PauseState::default(), Instant::now());
        assert_eq!(hold.number(), None);
        let number = hold.begin(now + LIMIT, "there");
        assert_eq!(hold.number(), Some(number));
        assert_eq!(hold.switch(number, now + LIMIT / 2), Ok("there"));
        assert_eq!(hold.number(), None);
        assert_eq!(hold.switch(number, now + LIMIT / 2), Err(Late::Over));
        assert!(!hold.release() && !hold.expire(number));
    }

    #[test]
    fn a_switch_after_its_time_is_refused_whether_or_not_anybody_has_noticed() {
        let (mut hold, now) = (PauseState::default(), Instant::now());
        let number = hold.begin(now + LIMIT, ());
        assert_eq!(hold.switch(number, now + LIMIT), Err(Late::Expired));
        assert_eq!(hold.switch(number, now), Err(Late::Over));
        let number = hold.begin(now + LIMIT, ());
        assert!(hold.expire(number));
        assert_eq!(hold.switch(number, now), Err(Late::Over));
    }

    #[test]
    fn what_is_said_of_an_earlier_hold_does_nothing_to_a_later_one() {
        let (mut hold, now) = (PauseState::default(), Instant::now());
        let first = hold.begin(now + LIMIT, 1);
        assert!(hold.release());
        let second = hold.begin(now + LIMIT, 2);
        assert_ne!(first, second);
        assert_eq!(hold.switch(first, now), Err(Late::Over));
        assert!(!hold.expire(first));
        assert_eq!(hold.switch(second, now), Ok(2));
    }
}
