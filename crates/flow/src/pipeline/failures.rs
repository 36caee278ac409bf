//! Keys that could not be copied.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, MutexGuard};
use whimbrel_core::slot::{Slot, SlotSet};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::journal::{FailedKey, KeyFailure};
use crate::keys::shown;
use crate::progress::CopyProgress;

/// How many failed keys a report lists.
const FAILURES_MAX: usize = 1_000;

/// Keys that could not be copied; their number is in the progress.
#[derive(Debug)]
pub(crate) struct Failures {
    progress: Arc<CopyProgress>,
    /// Changes are followed: a key is tried as often as it changes, and counts once.
    follows: bool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The first of them, for people.
    listed: Vec<(u128, KeyFailure)>,
    /// With their slots, 32 bytes for each: all of them if changes are followed, else those that are listed.
    /// A scan may return a key twice, and a resumed run reads pages again whose failures were written down
    /// already.
    failing: HashMap<u128, Slot>,
}

/// Distinguishes keys, in all likelihood.
fn name_of(db: u32, key: &[u8]) -> u128 {
    xxh3_128_with_seed(key, u64::from(db))
}

impl Failures {
    pub(super) fn new(progress: Arc<CopyProgress>, follows: bool) -> Failures {
        Failures { progress, follows, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Notes a key that could not be copied.
    pub(super) fn note(&self, db: u32, key: &[u8], reason: String) {
        let (name, slot) = (name_of(db, key), Slot::of_key(key));
        let failure = KeyFailure { db, key: shown(key), slot: slot.number(), reason };
        let mut known = self.known();
        if known.failing.contains_key(&name) {
            return;
        }
        CopyProgress::add(&self.progress.failed, 1);
        let is_listed = known.listed.len() < FAILURES_MAX;
        if is_listed {
            known.listed.push((name, failure));
        }
        if is_listed || self.follows {
            known.failing.insert(name, slot);
        }
    }

    /// Notes that a key has arrived, or is gone, that may have been noted before.
    pub(super) fn arrived(&self, db: u32, key: &[u8]) {
        if self.count() == 0 {
            return;
        }
        let name = name_of(db, key);
        let mut known = self.known();
        if known.failing.remove(&name).is_some() {
            known.listed.retain(|(listed, _)| *listed != name);
            self.progress.failed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Keys of these slots are copied once more: what failed may succeed now, or fails again.
    pub(crate) fn forget(&self, slots: &SlotSet) {
        let mut known = self.known();
        let before = known.failing.len();
        let is_in = |failure: &KeyFailure| Slot::new(failure.slot).is_some_and(|slot| slots.contains(slot));
        known.listed.retain(|(_, failure)| !is_in(failure));
        known.failing.retain(|_, slot| !slots.contains(*slot));
        let gone = before.saturating_sub(known.failing.len()) as u64;
        let less = |failed: u64| Some(failed.saturating_sub(gone));
        // It never fails: there is always a next value.
        let _ = self.progress.failed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.progress.failed.load(Ordering::Relaxed)
    }

    /// The first of them.
    pub(crate) fn listed(&self) -> Vec<KeyFailure> {
        self.known().listed.iter().map(|(_, failure)| failure.clone()).collect()
    }

    /// The first of them, for a later run.
    pub(crate) fn for_journal(&self) -> Vec<FailedKey> {
        let with_hash = |(name, failure): &(u128, KeyFailure)| FailedKey {
            failure: failure.clone(),
            hash: format!("{name:032x}"),
        };
        self.known().listed.iter().map(with_hash).collect()
    }

    /// Takes over what an earlier run has found, in place of all that is known.
    pub(crate) fn take_over(&self, count: u64, listed: &[FailedKey]) {
        self.progress.failed.store(count, Ordering::Relaxed);
        let mut known = Known::default();
        for FailedKey { failure, hash } in listed {
            // Without a hash the key differs from all others, and counts again if it is met again.
            let name = u128::from_str_radix(hash, 16)
                .unwrap_or_else(|_| name_of(failure.db, failure.key.as_bytes()));
            known.listed.push((name, failure.clone()));
            known.failing.extend(Slot::new(failure.slot).map(|slot| (name, slot)));
        }
        *self.known() = known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_copy() -> Failures {
        Failures::new(Arc::default(), false)
    }

    #[test]
    fn a_key_that_a_scan_returns_twice_fails_once() {
        let failures = of_copy();
        for (db, key) in [(0, "a"), (0, "b"), (1, "a"), (0, "a")] {
            failures.note(db, key.as_bytes(), "too large".to_owned());
        }
        assert_eq!((failures.count(), failures.listed().len()), (3, 3));
    }

    #[test]
    fn a_key_that_an_earlier_run_has_noted_fails_once() {
        let before = of_copy();
        before.note(0, b"a", "too large".to_owned());
        // Of such names only the beginning is shown.
        let long = |end: char| format!("{}{end}", "long".repeat(100));
        before.note(0, long('a').as_bytes(), "too large".to_owned());
        let again = of_copy();
        again.take_over(before.count(), &before.for_journal());
        again.note(0, b"a", "too large".to_owned());
        again.note(0, long('a').as_bytes(), "too large".to_owned());
        assert_eq!((again.count(), again.listed().len()), (2, 2));
        again.note(0, b"b", "too large".to_owned());
        again.note(0, long('b').as_bytes(), "too large".to_owned());
        assert_eq!((again.count(), again.listed().len()), (4, 4));
        again.arrived(0, b"a");
        assert_eq!((again.count(), again.listed().len()), (3, 3), "it changed no more");
    }

    #[test]
    fn a_key_of_an_earlier_run_is_followed_like_any_other() {
        let failures = Failures::new(Arc::default(), true);
        let before = of_copy();
        before.note(0, b"a", "too large".to_owned());
        failures.take_over(before.count(), &before.for_journal());
        failures.note(0, b"a", "too large".to_owned());
        assert_eq!((failures.count(), failures.listed().len()), (1, 1));
        failures.arrived(0, b"a");
        assert_eq!((failures.count(), failures.listed().len()), (0, 0));
        failures.note(0, b"a", "too large".to_owned());
        assert_eq!(failures.count(), 1, "it fails again");
        failures.forget(&[Slot::of_key(b"a")].into_iter().collect());
        assert_eq!(failures.count(), 0);
    }
}
