//! Which keys have arrived at the target: a filter, and where the source is a cluster, how far each of its
//! slots is.
//!
//! | slot | the source | a key of it |
//! |---|---|---|
//! | not begun | has all of its keys | none has arrived |
//! | moving | has some of them | the filter says |
//! | done | has none of them, for the rest of the turn | is home |
//!
//! A slot begins with the first of its keys that arrives, before the lock of that is let go, and never goes
//! back. Only keys of slots that move are in a filter. There is one for each group of [`GROUP_SLOTS`], from
//! when the first slot of the group begins until the last is done: the background moves group after group, so
//! besides the present one only those take memory that commands have reached into.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::RwLock;
use whimbrel_core::slot::Slot;

use crate::migrate::filter::Filter;

/// Slots that have a filter together.
pub(crate) const GROUP_SLOTS: u16 = 256;

const NOT_BEGUN: u8 = 0;
const MOVING: u8 = 1;
const DONE: u8 = 2;

/// Which keys have arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Keys that have been put in.
    keys: AtomicU64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The source is one server.
    OneServer(Filter),
    /// The source is a cluster.
    BySlot(Slots),
}

/// How far the slots of the source are.
#[derive(Debug)]
pub(crate) struct Slots {
    states: Box<[AtomicU8]>,
    /// `None` if no slot of the group has begun, or all are done.
    filters: Box<[RwLock<Option<Filter>>]>,
    /// What a new filter has room for.
    keys_each: u64,
}

/// How many slots are how far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SlotCounts {
    /// All keys of theirs are at the source.
    pub not_begun: u16,
    /// Keys of theirs have moved.
    pub moving: u16,
    /// The source has none of their keys any more.
    pub done: u16,
}

impl Arrived {
    /// Nothing has. This many keys are expected.
    pub(crate) fn new(keys: u64, is_cluster: bool) -> Arrived {
        let kind =
            if is_cluster { Kind::BySlot(Slots::new(keys)) } else { Kind::OneServer(Filter::new(keys)) };
        Arrived { keys: AtomicU64::new(0), kind }
    }

    /// How far the slots are, if the source is a cluster.
    pub(crate) fn slots(&self) -> Option<&Slots> {
        match &self.kind {
            Kind::OneServer(_) => None,
            Kind::BySlot(slots) => Some(slots),
        }
    }

    /// False if a key has certainly not arrived.
    pub(crate) fn may_have(&self, key: &[u8], hash: u64) -> bool {
        match &self.kind {
            Kind::OneServer(filter) => filter.contains(hash),
            Kind::BySlot(slots) => slots.may_have(Slot::of_key(key), hash),
        }
    }

    /// Whether a key is home since its slot is done.
    pub(crate) fn is_done(&self, key: &[u8]) -> bool {
        match &self.kind {
            Kind::OneServer(_) => false,
            Kind::BySlot(slots) => slots.is_done(Slot::of_key(key)),
        }
    }

    /// Puts a key in. It is found from here on.
    pub(crate) fn insert(&self, key: &[u8], hash: u64) {
        self.keys.fetch_add(1, Ordering::Relaxed);
        match &self.kind {
            Kind::OneServer(filter) => filter.insert(hash),
            Kind::BySlot(slots) => slots.insert(Slot::of_key(key), hash),
        }
    }

    /// How many keys have been put in, some more than once.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Keys in filters, and the memory of these, in bytes.
    pub(crate) fn filtered(&self) -> (u64, u64) {
        let of = |filter: &Filter| (filter.keys(), filter.memory_bytes());
        match &self.kind {
            Kind::OneServer(filter) => of(filter),
            Kind::BySlot(slots) => {
                let filters = slots.filters.iter().map(|filter| filter.read().as_ref().map_or((0, 0), of));
                filters.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            }
        }
    }
}

impl Slots {
    fn new(keys: u64) -> Slots {
        let groups = Slot::COUNT / GROUP_SLOTS;
        Slots {
            states: (0..Slot::COUNT).map(|_| AtomicU8::new(NOT_BEGUN)).collect(),
            filters: (0..groups).map(|_| RwLock::new(None)).collect(),
            keys_each: keys / u64::from(groups),
        }
    }

    fn state(&self, slot: Slot) -> u8 {
        // Acquire, as it is released when it changes: a reader that sees that a slot moves sees its filter,
        // and a reader that sees that it is done sees what the target had when that was found.
        self.states[usize::from(slot.number())].load(Ordering::Acquire)
    }

    fn filter(&self, slot: Slot) -> &RwLock<Option<Filter>> {
        &self.filters[usize::from(slot.number() / GROUP_SLOTS)]
    }

    fn begin(&self, slot: Slot) {
        if self.state(slot) != NOT_BEGUN {
            return;
        }
        // Under the lock, so that the group is not ended meanwhile.
        let mut filter = self.filter(slot).write();
        if self.state(slot) == NOT_BEGUN {
            filter.get_or_insert_with(|| Filter::new(self.keys_each));
            self.states[usize::from(slot.number())].store(MOVING, Ordering::Release);
        }
    }

    fn may_have(&self, slot: Slot, hash: u64) -> bool {
        match self.state(slot) {
            NOT_BEGUN => false,
            // If there is none any more, the slot has just been done.
            MOVING => self.filter(slot).read().as_ref().is_none_or(|filter| filter.contains(hash)),
            _ => true,
        }
    }

    fn insert(&self, slot: Slot, hash: u64) {
        self.begin(slot);
        if let Some(filter) = self.filter(slot).read().as_ref().filter(|_| !self.is_done(slot)) {
            filter.insert(hash);
        }
    }

    /// Whether the source has no key of a slot, and will have none in this turn.
    pub(crate) fn is_done(&self, slot: Slot) -> bool {
        self.state(slot) == DONE
    }

    /// The source has no key of this slot, and no move of one is under way that could have begun when it had.
    /// Nothing creates keys there, so it is done. The filter of its group ends with the last slot of it.
    pub(crate) fn finish(&self, slot: Slot) {
        let mut filter = self.filter(slot).write();
        self.states[usize::from(slot.number())].store(DONE, Ordering::Release);
        if group(slot.number() / GROUP_SLOTS).all(|slot| self.is_done(slot)) {
            *filter = None;
        }
    }

    /// How many are how far.
    pub(crate) fn counts(&self) -> SlotCounts {
        let mut counts = SlotCounts::default();
        for state in &self.states {
            match state.load(Ordering::Relaxed) {
                NOT_BEGUN => counts.not_begun += 1,
                MOVING => counts.moving += 1,
                _ => counts.done += 1,
            }
        }
        counts
    }
}

/// The slots of a group.
pub(crate) fn group(number: u16) -> impl Iterator<Item = Slot> {
    (number * GROUP_SLOTS..(number + 1) * GROUP_SLOTS).filter_map(Slot::new)
}

/// The numbers of all groups.
pub(crate) fn groups() -> impl Iterator<Item = u16> {
    0..Slot::COUNT / GROUP_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> (Arrived, Vec<Slot>) {
        (Arrived::new(1_000_000, true), group(3).collect())
    }

    #[test]
    fn keys_of_a_slot_have_not_arrived_before_it_begins_and_have_when_it_is_done() {
        let (arrived, _) = slots();
        let (key, other) = (b"{a}1".as_slice(), b"{a}2".as_slice());
        assert!(!arrived.may_have(key, 1) && !arrived.is_done(key));
        arrived.insert(key, 1);
        assert!(arrived.may_have(key, 1) && !arrived.may_have(other, 2) && !arrived.is_done(key));
        let slots = arrived.slots().expect("of a cluster");
        slots.finish(Slot::of_key(key));
        assert!(arrived.is_done(other) && arrived.may_have(other, 2));
        assert_eq!(slots.counts(), SlotCounts { not_begun: Slot::COUNT - 1, moving: 0, done: 1 });
        // It does not begin again.
        arrived.insert(key, 1);
        assert!(arrived.is_done(key));
    }

    #[test]
    fn a_group_takes_memory_from_its_first_slot_to_its_last() {
        let (arrived, group) = slots();
        let slots = arrived.slots().expect("of a cluster");
        assert_eq!(arrived.filtered(), (0, 0));
        slots.insert(group[0], 7);
        let (keys, bytes) = arrived.filtered();
        assert!(keys == 1 && bytes > 0 && bytes < Filter::new(1_000_000).memory_bytes() / 50, "{bytes}");
        for slot in &group[1..] {
            slots.finish(*slot);
            assert_eq!(arrived.filtered().0, 1);
        }
        slots.finish(group[0]);
        assert_eq!(arrived.filtered(), (0, 0));
        assert!(slots.may_have(group[0], 8), "whatever its hash");
    }

    #[test]
    fn one_server_has_one_filter() {
        let arrived = Arrived::new(10, false);
        assert!(!arrived.may_have(b"k", 5) && arrived.slots().is_none());
        arrived.insert(b"k", 5);
        assert!(arrived.may_have(b"k", 5) && !arrived.is_done(b"k") && arrived.keys() == 1);
    }
}
