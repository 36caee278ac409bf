//! The clock for what must not be taken to last although the machine was suspended: leases, write pauses, and
//! what was found out and relied upon.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine was started, the time it was suspended included: `CLOCK_BOOTTIME`. A clock
/// that stands still meanwhile would take a lease for valid long after it has ended. Means nothing on another
/// machine.
pub fn now_ms() -> u64 {
    // Linux has this clock since 2.6.39; it cannot fail there.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The beginning of a question to a server, for dating its answer.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    at: Instant,
    at_ms: u64,
}

impl Asked {
    /// Call it before the question is sent.
    pub fn now() -> Asked {
        Asked { at: Instant::now(), at_ms: now_ms() }
    }

    /// When the answer came that has just been read, by [`now_ms`]. It may have waited for a machine that was
    /// suspended, and be as old as that: so the time in which this machine did not run does not count.
    pub fn answered_ms(&self) -> u64 {
        self.at_ms.saturating_add(u64::try_from(self.at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_old_as_the_time_in_which_the_machine_did_not_run() {
        // As if this machine had been suspended since, for half as long as it is up. It may have started
        // a minute ago.
        let suspended_ms = now_ms() / 2;
        let asked = Asked { at: Instant::now(), at_ms: now_ms() - suspended_ms };
        let answered_ms = asked.answered_ms();
        let age_ms = now_ms().saturating_sub(answered_ms);
        // The test may be stopped for some seconds between two of these lines.
        let slack_ms = 10_000.min(suspended_ms / 2);
        assert!(
            age_ms + slack_ms >= suspended_ms,
            "{asked:?}: {age_ms} ms old, suspended for {suspended_ms} ms"
        );
        let asked = Asked::now();
        std::thread::sleep(Duration::from_millis(20));
        let answered_ms = asked.answered_ms();
        assert!((asked.at_ms + 19..=now_ms() + 1).contains(&answered_ms), "{asked:?} {answered_ms}");
    }
}
