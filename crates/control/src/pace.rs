//! How fast jobs go, as it follows from how they stood in the last seconds.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::store::{Entry, Status};

/// How far back to look for how fast keys move.
const PACE_OVER: Duration = Duration::from_secs(15);

/// How fast something grows that is sampled every now and then.
#[derive(Debug, Default)]
pub struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    /// It is this many by now. Returns how many more it gets in a second, once that can be known.
    pub fn note(&mut self, count: u64, now: Instant) -> Option<f64> {
        // A value that begins anew counts from 0 again.
        if self.0.back().is_some_and(|(_, before)| *before > count) {
            self.0.clear();
        }
        self.0.push_back((now, count));
        while self.0.front().is_some_and(|(then, _)| now.duration_since(*then) > PACE_OVER) {
            self.0.pop_front();
        }
        let (first, last) = (self.0.front()?, self.0.back()?);
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        (seconds >= 1.0).then(|| (last.1 - first.1) as f64 / seconds)
    }

    /// Forgets what it was: what was not looked at for a while says nothing about now.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// How long a job takes that moves this many keys a second, in milliseconds; `None` if nothing is left or
/// next to nothing moves.
pub fn left_ms(status: &Status, keys_per_s: f64) -> Option<u64> {
    let left = status.keys.saturating_sub(status.keys_moved) as f64;
    (keys_per_s >= 1.0 && left > 0.0).then(|| (left / keys_per_s * 1_000.0).round() as u64)
}

/// How many keys jobs have moved lately, by name.
#[derive(Debug, Default)]
pub struct Paces(HashMap<String, Pace>);

impl Paces {
    /// A job has moved this many keys by now. Returns how many it moves in a second, once that can be known.
    pub fn note(&mut self, entry: &Entry, now: Instant) -> Option<f64> {
        if !entry.running || entry.status.ended {
            self.0.remove(&entry.status.id);
            return None;
        }
        self.0.entry(entry.status.id.clone()).or_default().note(entry.status.keys_moved, now)
    }

    /// Forgets all jobs but these.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_there(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_it_takes_follows_from_the_last_seconds() {
        let (mut paces, began) = (Paces::default(), Instant::now());
        let status = Status { id: "j".to_owned(), keys: 10_000, ..Status::default() };
        let mut job = Entry { status, running: true };
        let mut at = |seconds: u64, moved: u64| {
            job.status.keys_moved = moved;
            let pace = paces.note(&job, began + Duration::from_secs(seconds));
            (pace, pace.and_then(|pace| left_ms(&job.status, pace)))
        };
        assert_eq!(at(0, 0), (None, None));
        assert_eq!(at(2, 1_000), (Some(500.0), Some(18_000)));
        assert_eq!(at(20, 1_000), (None, None), "what was long ago does not count");
        assert_eq!(at(22, 1_000), (Some(0.0), None), "it stands still");
        assert_eq!(at(23, 10), (None, None), "it has begun anew");
    }
}
