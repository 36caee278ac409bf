//! Whether a native migration still moves.

use std::time::{Duration, Instant};

use super::state::{NativePhase, NativeState};

/// How often the target is asked how many keys have come.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// The furthest that one try has come, and when it came there. Only what is further than ever before counts
/// as a move: under writers that outrun a server its numbers go up and down for ever.
#[derive(Debug)]
pub(super) struct Pace {
    attempt: u32,
    phase: NativePhase,
    keys: u64,
    remaining_bytes: u64,
    moved: Instant,
    counted: Option<Instant>,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace {
            attempt: 0,
            phase: NativePhase::Queued,
            keys: 0,
            remaining_bytes: u64::MAX,
            moved: now,
            counted: None,
        }
    }

    /// Takes in how it stands.
    pub(super) fn see(&mut self, state: &NativeState, now: Instant) {
        // A new try begins at the beginning. Tries are bounded.
        if state.attempt != self.attempt {
            *self = Pace { attempt: state.attempt, ..Pace::new(now) };
        }
        if state.phase > self.phase {
            (self.phase, self.remaining_bytes, self.moved) = (state.phase, u64::MAX, now);
        }
        if let Some(bytes) = state.remaining_bytes.filter(|&bytes| bytes < self.remaining_bytes) {
            (self.remaining_bytes, self.moved) = (bytes, now);
        }
    }

    /// Takes in how many keys have come.
    pub(super) fn count(&mut self, keys: u64, now: Instant) {
        if keys > self.keys {
            (self.keys, self.moved) = (keys, now);
        }
    }

    /// Whether it is time to count keys: while they are sent, that is all that moves.
    pub(super) fn wants_count(&mut self, state: &NativeState, now: Instant) -> bool {
        let is_due = self.counted.is_none_or(|at| now.duration_since(at) >= COUNT_EVERY);
        let wants = state.phase == NativePhase::Snapshotting && is_due;
        if wants {
            self.counted = Some(now);
        }
        wants
    }

    /// For how long it has not moved.
    pub(super) fn still(&self, now: Instant) -> Duration {
        now.duration_since(self.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(phase: NativePhase, attempt: u32, remaining_bytes: Option<u64>) -> NativeState {
        NativeState { phase, attempt, remaining_bytes, ..NativeState::default() }
    }

    #[test]
    fn only_what_is_further_than_ever_is_a_move() {
        let begin = Instant::now();
        let at = |s: u64| begin + Duration::from_secs(s);
        let mut pace = Pace::new(begin);
        let mut still = |state: NativeState, s: u64| {
            pace.see(&state, at(s));
            pace.still(at(s)).as_secs()
        };
        assert_eq!(still(state(NativePhase::Attaching, 1, None), 1), 0);
        assert_eq!(still(state(NativePhase::Snapshotting, 1, Some(500)), 2), 0);
        assert_eq!(still(state(NativePhase::Streaming, 1, Some(900)), 3), 0);
        assert_eq!(still(state(NativePhase::Streaming, 1, Some(950)), 4), 1);
        assert_eq!(still(state(NativePhase::Streaming, 1, Some(800)), 5), 0);
        assert_eq!(still(state(NativePhase::Streaming, 1, Some(850)), 6), 1);
        assert_eq!(still(state(NativePhase::Streaming, 1, Some(800)), 7), 2);
        assert_eq!(still(state(NativePhase::Draining, 1, Some(850)), 8), 0);
        assert_eq!(still(state(NativePhase::Streaming, 1, Some(900)), 9), 1, "it fell back");
        assert_eq!(still(state(NativePhase::Attaching, 2, None), 10), 0, "another try");
    }

    #[test]
    fn keys_that_come_are_a_move() {
        let begin = Instant::now();
        let at = |s: u64| begin + Duration::from_secs(s);
        let mut pace = Pace::new(begin);
        let snapshotting = state(NativePhase::Snapshotting, 1, None);
        pace.see(&snapshotting, at(1));
        assert!(pace.wants_count(&snapshotting, at(1)));
        assert!(!pace.wants_count(&snapshotting, at(1)), "it was counted just now");
        pace.count(10, at(5));
        pace.count(10, at(7));
        assert_eq!(pace.still(at(8)).as_secs(), 3);
        assert!(!pace.wants_count(&state(NativePhase::Streaming, 1, None), at(9)));
    }
}
