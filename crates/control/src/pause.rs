//! How long a pause a handover needs: what its plan says, and what its check goes by.
//!
//! Under the pause nothing is sent before the answer to what came before it, so a pause is made of round
//! trips, and of what the servers do in one go. Both are known in advance; what writers leave to transfer is
//! not.
//!
//! **The longest pause is a promise.** From the fence on, going ahead is the shortest way. So the time of the
//! fence and all that follows is planned with a margin, and by what it took before. If less than that is left
//! of the pause, the fence is not begun: the writers go on, and it is tried again.

use std::time::{Duration, Instant};

use whimbrel_core::migration::Verify;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::format_duration_ms;
use whimbrel_engine::error::Result;
use whimbrel_engine::handover::Handover;
use whimbrel_engine::remedy::Remedy;

/// Round trips from the pause to the end of the drain, with nothing to transfer: the pause itself, the feed,
/// the target's replicas.
const DRAIN_TRIPS: u32 = 3;

/// Those of transferring what is left: measuring it, some of it twice, reading it, and writing it.
const TRANSFER_TRIPS: u32 = 4;

/// Those of a comparison: other databases and counts, and at the same time elements of large keys and the
/// sample.
const COMPARE_TRIPS: u32 = 2;

/// What a handover takes besides, in milliseconds: the feed's last bytes, the replicas' answers.
const FIXED_MS: f64 = 2.0;

/// What counting one slot's keys on both sides takes, in milliseconds.
const COUNT_SLOT_MS: f64 = 0.004;

/// How long writes may be paused at once if the user did not say, in milliseconds, unless round trips need
/// more.
pub const USUAL_MS: u64 = 100;

/// And with those, at most. A user who needs more has to say so.
const UNASKED_MAX_MS: u64 = 1_000;

/// For how long it is measured again, how often at least, and how far apart, if a pause seems too short: the
/// machines may just have been busy, or have stood still for as long.
const REPEAT_FOR: Duration = Duration::from_secs(3);
const REPEATS_MIN: u32 = 10;
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// How much more than they take round trips are given.
const ALLOWANCE: f64 = 1.25;

/// What is left for stalls from the fence on, in milliseconds: a server that answers late, a process that
/// does not run at once.
const STALLS_MS: f64 = 8.0;

/// How much of a pause is left for a slow disk, in milliseconds. A disk that is slower just now may be faster
/// then.
const WRITES_MAX_MS: u64 = 20;

/// What a pause needs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PauseNeed {
    /// A round trip to the farther one of the two nodes.
    pub round_trip: Duration,
    /// All of it without writers, in milliseconds.
    pub least_ms: u64,
    /// What comes after the drain, in milliseconds, with what stalls on the way.
    pub after_drain_ms: u64,
    /// Of that, what is left from the fence on.
    pub sealing_ms: u64,
}

impl PauseNeed {
    /// Measures what a handover of these slots, with this many keys, would take. `whole` adds what the source
    /// does in one go: batches are cut such that it does not matter.
    ///
    /// # Errors
    /// As [`Handover::round_trip`].
    pub async fn measure(
        handover: &mut Handover,
        slots: &SlotSet,
        keys: u64,
        verify: Verify,
        whole: bool,
    ) -> Result<PauseNeed> {
        let round_trip = handover.round_trip().await?;
        let (in_one_go, counted) = if whole { (slots.len(), keys) } else { (0, 0) };
        let sealing = handover.sealing(in_one_go, counted, round_trip).as_secs_f64() * 1_000.0;
        let compares = verify != Verify::None;
        let comparing = if compares { slots.len() as f64 * COUNT_SLOT_MS } else { 0.0 };
        let trips = |n: u32| f64::from(n) * round_trip.as_secs_f64() * 1_000.0;
        let sealing = sealing * ALLOWANCE + STALLS_MS;
        let after_drain = sealing + comparing + trips(if compares { COMPARE_TRIPS } else { 0 });
        let least = FIXED_MS + trips(DRAIN_TRIPS) + after_drain;
        Ok(PauseNeed {
            round_trip,
            least_ms: least as u64,
            after_drain_ms: after_drain as u64,
            sealing_ms: sealing as u64,
        })
    }

    /// The same with the two times that a job writes down how far it is from the fence on, if that takes
    /// `write`. At most all that `longest_ms` leaves: a disk that is slow just now must not end a job.
    pub fn with_writes(self, write: Duration, longest_ms: u64) -> PauseNeed {
        let more_ms = u64::try_from(2 * write.as_millis()).unwrap_or(u64::MAX).min(WRITES_MAX_MS);
        self.with_sealing(more_ms.min(longest_ms.saturating_sub(self.least_ms)))
    }

    fn with_sealing(self, more_ms: u64) -> PauseNeed {
        PauseNeed {
            least_ms: self.least_ms + more_ms,
            after_drain_ms: self.after_drain_ms + more_ms,
            sealing_ms: self.sealing_ms + more_ms,
            ..self
        }
    }

    /// The same where sealing took `took_ms` before: if that is more than was planned, as long is left for it
    /// the next time. At most twice as long as planned, and half of what `longest_ms` leaves: a stall of the
    /// machine must not end a job.
    pub fn having_taken(self, took_ms: u64, longest_ms: u64) -> PauseNeed {
        let spare_ms = longest_ms.saturating_sub(self.least_ms) / 2;
        let more_ms = took_ms.saturating_sub(self.sealing_ms).min(self.sealing_ms).min(spare_ms);
        self.with_sealing(more_ms)
    }

    /// [`PauseNeed::measure`], again for [`REPEAT_FOR`] if that would not fit into `longest_ms`.
    ///
    /// # Errors
    /// Likewise.
    pub async fn measure_for(
        handover: &mut Handover,
        slots: &SlotSet,
        keys: u64,
        verify: Verify,
        whole: bool,
        longest_ms: u64,
    ) -> Result<PauseNeed> {
        let deadline = Instant::now() + REPEAT_FOR;
        let mut need = PauseNeed::measure(handover, slots, keys, verify, whole).await?;
        let mut repeats = 0;
        while need.least_ms > longest_ms && (Instant::now() < deadline || repeats < REPEATS_MIN) {
            repeats += 1;
            tokio::time::sleep(REPEAT_AFTER).await;
            let again = PauseNeed::measure(handover, slots, keys, verify, whole).await?;
            if again.least_ms < need.least_ms {
                need = again;
            }
        }
        Ok(need)
    }

    /// With keys to transfer, except the time that these take by their number, in milliseconds.
    pub fn beside_writers_ms(&self) -> u64 {
        self.least_ms + (self.round_trip.as_secs_f64() * 1_000.0 * f64::from(TRANSFER_TRIPS)) as u64
    }

    /// With this many keys to transfer, and this many moved in a second; in milliseconds.
    pub fn with_keys_ms(&self, keys: u64, keys_per_s: f64) -> u64 {
        let fixed_ms = if keys > 0 { self.beside_writers_ms() } else { self.least_ms };
        fixed_ms + (keys as f64 / keys_per_s.max(1.0) * 1_000.0) as u64
    }

    /// The longest pause: what was asked for, or what is usual, or more if round trips are long.
    pub fn longest_ms(&self, asked_ms: Option<u64>) -> u64 {
        asked_ms.unwrap_or_else(|| self.wanted_ms().clamp(USUAL_MS, UNASKED_MAX_MS))
    }

    /// The longest pause with which a handover succeeds beside writers, in milliseconds: the rest may take
    /// half of what the fixed part leaves.
    fn wanted_ms(&self) -> u64 {
        let trips = self.round_trip.as_secs_f64() * 1_000.0 * f64::from(TRANSFER_TRIPS);
        ((self.least_ms as f64 + 2.0 * trips) * ALLOWANCE) as u64
    }

    /// Why a pause of `longest_ms` cannot be enough; `None` if it may be.
    pub fn too_long_for(&self, longest_ms: u64) -> Option<(String, Remedy)> {
        (self.least_ms > longest_ms).then(|| {
            let what = format!(
                "a handover takes a pause of about {} even without writers (a round trip takes {:.1} ms), \
                 and {} are allowed",
                format_duration_ms(self.least_ms),
                self.round_trip.as_secs_f64() * 1_000.0,
                format_duration_ms(longest_ms),
            );
            (what, Remedy::AllowPauseMs(self.wanted_ms()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(round_trip_ms: u64, least_ms: u64) -> PauseNeed {
        PauseNeed { round_trip: Duration::from_millis(round_trip_ms), least_ms, ..PauseNeed::default() }
    }

    #[test]
    fn the_usual_pause_is_longer_only_where_round_trips_are() {
        assert_eq!(need(0, 3).longest_ms(None), USUAL_MS);
        assert_eq!(need(20, 242).longest_ms(None), 502);
        assert_eq!(need(20, 242).longest_ms(Some(100)), 100);
        assert_eq!(need(400, 5_000).longest_ms(None), UNASKED_MAX_MS);
    }

    #[test]
    fn what_cannot_fit_is_refused_with_what_would() {
        assert_eq!(need(20, 242).too_long_for(242), None);
        let (what, remedy) = need(20, 242).too_long_for(100).expect("too short");
        assert!(what.contains("242 ms") && what.contains("100 ms"), "{what}");
        assert_eq!(remedy, Remedy::AllowPauseMs(502));
    }

    #[test]
    fn keys_that_are_left_cost_round_trips_as_well() {
        assert_eq!(need(20, 242).with_keys_ms(0, 30_000.0), 242);
        assert_eq!(need(20, 242).with_keys_ms(300, 30_000.0), 332);
        assert_eq!(need(20, 242).beside_writers_ms(), 322);
    }

    #[test]
    fn what_sealing_took_before_is_left_for_it_within_bounds() {
        let need = PauseNeed { after_drain_ms: 140, sealing_ms: 100, ..need(20, 242) };
        let after = |took_ms| {
            let PauseNeed { least_ms, after_drain_ms, sealing_ms, .. } = need.having_taken(took_ms, 402);
            (least_ms, after_drain_ms, sealing_ms)
        };
        assert_eq!(after(90), (242, 140, 100));
        assert_eq!(after(130), (272, 170, 130));
        assert_eq!(after(1_500), (322, 220, 180));
    }
}
