//! The keys that were touched and not yet moved.
//!
//! **Invariant:** everything that was touched in a watched slot is either in here or was taken from here.
//! Memory stays below a bound by forgetting details, never by forgetting a touch: a key with too many touched
//! elements becomes touched as a whole, and a slot with too many touched keys becomes a touched slot.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::pin::pin;

use bytes::Bytes;
use indexmap::{Equivalent, IndexMap};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use whimbrel_core::slot::{Slot, SlotSet};

/// A key that was touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// The database it is in. `None` if the feed does not know it: then it may be in any of them.
    pub db: Option<u32>,
    /// Its name.
    pub key: Bytes,
    /// What of it was touched.
    pub what: What,
}

/// What of a key was touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Anything: it may have been made, replaced or deleted.
    Anything,
    /// Some of its elements, and nothing else.
    Elements(Elements),
    /// Its time to live, and nothing else.
    Expiry,
}

/// Elements that were touched: added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements {
    /// The type that the key had when they were touched.
    pub collection: Collection,
    /// Their names: fields of a hash, members of a set or sorted set.
    pub names: BTreeSet<Bytes>,
    /// True if the key's own time to live may have changed as well: by a command for it, or since the removal
    /// of its last element removed the key.
    pub expiry: bool,
}

/// A type whose elements are followed one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collection {
    /// A hash: its fields, their times to live included.
    Hash,
    /// A set.
    Set,
    /// A sorted set, geospatial ones included.
    SortedSet,
}

impl What {
    /// Adds another touch of the same key.
    fn merge(&mut self, other: What) {
        match (&mut *self, other) {
            (What::Anything, _) | (What::Expiry, What::Expiry) => {}
            (What::Elements(elements), What::Expiry) => elements.expiry = true,
            (What::Expiry, What::Elements(mut elements)) => {
                elements.expiry = true;
                *self = What::Elements(elements);
            }
            (What::Elements(ours), What::Elements(theirs)) if ours.collection == theirs.collection => {
                ours.names.extend(theirs.names);
                ours.expiry |= theirs.expiry;
            }
            // A key that was two types was deleted in between.
            (_, What::Anything | What::Elements(_)) => *self = What::Anything,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            What::Elements(elements) => elements.names.iter().map(|name| element_bytes(name)).sum(),
            What::Anything | What::Expiry => 0,
        }
    }
}

/// Bounds of a [`Touched`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TouchedLimits {
    /// Memory for names of keys and elements, in bytes, by estimate. Beyond it the slot that takes most
    /// becomes a touched slot.
    pub bytes_max: u64,
    /// Touched elements of one key. Beyond it the key is touched as a whole.
    pub elements_max: usize,
}

impl Default for TouchedLimits {
    fn default() -> Self {
        TouchedLimits { bytes_max: 256 << 20, elements_max: 4_096 }
    }
}

/// What a key costs besides its name: the entry, the allocation, its share of the table.
const KEY_OVERHEAD_BYTES: u64 = 128;

/// What an element costs besides its name.
const ELEMENT_OVERHEAD_BYTES: u64 = 64;

fn key_bytes(key: &[u8]) -> u64 {
    key.len() as u64 + KEY_OVERHEAD_BYTES
}

fn element_bytes(name: &[u8]) -> u64 {
    name.len() as u64 + ELEMENT_OVERHEAD_BYTES
}

/// The keys that were touched, each once, however often it was touched.
///
/// A [`Feed`](super::Feed) fills it while others take from it.
#[derive(Debug)]
pub struct Touched {
    set: Mutex<TouchedSet>,
    /// Notified when something was added.
    added: Notify,
}

impl Touched {
    /// An empty set that records touches of the slots in `watched`.
    pub fn new(watched: SlotSet, limits: TouchedLimits) -> Touched {
        Touched { set: Mutex::new(TouchedSet::new(watched, limits)), added: Notify::new() }
    }

    /// Takes up to `keys_max` touched keys out. They come slot by slot; the slot that has waited longest
    /// comes first.
    pub fn take(&self, keys_max: usize) -> Vec<Touch> {
        self.lock().take(keys_max)
    }

    /// Takes out the slots in which more was touched than could be remembered: every key in them counts as
    /// touched as a whole, keys that are gone included.
    pub fn take_slots(&self) -> SlotSet {
        let mut set = self.lock();
        set.whole_slots = 0;
        std::mem::take(&mut set.whole)
    }

    /// Gives back what was taken and could not be moved.
    pub fn put_back(&self, touches: impl IntoIterator<Item = Touch>) {
        let mut set = self.lock();
        let recorded = set.recorded;
        for touch in touches {
            set.add(touch.db, &touch.key, touch.what);
        }
        set.recorded = recorded;
        drop(set);
        self.added.notify_waiters();
    }

    /// Gives back slots that were taken and could not be moved.
    pub fn put_back_slots(&self, slots: &SlotSet) {
        let mut set = self.lock();
        let recorded = set.recorded;
        for slot in slots {
            set.slot(slot);
        }
        set.recorded = recorded;
        drop(set);
        self.added.notify_waiters();
    }

    /// True from the moment a whole database was emptied (`FLUSHALL`, `FLUSHDB`) or exchanged (`SWAPDB`)
    /// until [`Touched::take_flushed`]. Every key that was moved counts as touched then.
    pub fn flushed(&self) -> bool {
        self.lock().flushed
    }

    /// [`Touched::flushed`], and forgets it.
    pub fn take_flushed(&self) -> bool {
        std::mem::take(&mut self.lock().flushed)
    }

    /// True if functions were loaded or deleted since the last call. A tracking feed does not see them.
    pub fn take_functions_changed(&self) -> bool {
        std::mem::take(&mut self.lock().functions)
    }

    /// How many keys wait; keys in touched slots are not counted.
    pub fn len(&self) -> usize {
        self.lock().keys
    }

    /// True if nothing waits: no key, no slot, no flush.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// How many keys wait; `None` if it cannot be known, since whole slots or databases do.
    pub fn count(&self) -> Option<usize> {
        let set = self.lock();
        (set.whole_slots == 0 && !set.flushed).then_some(set.keys)
    }

    /// In how many slots more was touched than could be remembered: every key in them waits.
    pub fn whole_slots(&self) -> usize {
        let set = self.lock();
        if set.flushed { set.watched.len() } else { set.whole_slots }
    }

    /// Whether this key waits, or may be one of those that do.
    pub fn may_hold(&self, db: u32, key: &[u8]) -> bool {
        self.lock().may_hold(db, key)
    }

    /// Memory of the waiting names, by estimate.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// How many touches of watched keys were recorded since the start, repeated ones included: how fast
    /// writers are.
    pub fn recorded(&self) -> u64 {
        self.lock().recorded
    }

    /// Waits until something is there to be taken.
    pub async fn changed(&self) {
        loop {
            let mut added = pin!(self.added.notified());
            // Before the look, so that nothing is missed between the two.
            added.as_mut().enable();
            if !self.is_empty() {
                return;
            }
            added.await;
        }
    }

    /// Sets which slots are recorded from now on. What was touched in other slots is forgotten.
    pub(super) fn watch(&self, slots: SlotSet) {
        self.lock().watch(slots);
    }

    /// The slots that are recorded.
    pub(super) fn watched(&self) -> SlotSet {
        self.lock().watched.clone()
    }

    /// Records several touches under one lock.
    pub(super) fn record<T>(&self, record: impl FnOnce(&mut TouchedSet) -> T) -> T {
        let mut set = self.lock();
        let before = set.recorded;
        let result = record(&mut set);
        let added = set.recorded != before;
        drop(set);
        if added {
            self.added.notify_waiters();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, TouchedSet> {
        // Nothing in here panics half-way through a change.
        self.set.lock()
    }
}

/// A key in its database.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    db: Option<u32>,
    name: Bytes,
}

/// A key to look up. It hashes as [`Key`] does.
struct KeyRef<'a> {
    db: Option<u32>,
    name: &'a [u8],
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        KeyRef { db: self.db, name: &self.name }.hash(state);
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Two databases in one slot are rare enough to leave them out.
        state.write(self.name);
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.db == key.db && *self.name == key.name[..]
    }
}

/// The touched keys of one slot.
#[derive(Debug, Default)]
struct SlotKeys {
    keys: IndexMap<Key, What>,
    bytes: u64,
}

/// What a [`Touched`] guards.
#[derive(Debug)]
pub(super) struct TouchedSet {
    limits: TouchedLimits,
    watched: SlotSet,
    /// For each slot, its touched keys, if it has any.
    slots: Vec<Option<Box<SlotKeys>>>,
    /// The slots that have touched keys, each once, those that wait longest first.
    ready: VecDeque<Slot>,
    /// Slots that are touched as a whole. None of them has touched keys besides.
    whole: SlotSet,
    /// How many those are.
    whole_slots: usize,
    flushed: bool,
    functions: bool,
    keys: usize,
    bytes: u64,
    recorded: u64,
}

impl TouchedSet {
    fn new(watched: SlotSet, limits: TouchedLimits) -> TouchedSet {
        TouchedSet {
            limits,
            watched,
            slots: std::iter::repeat_with(|| None).take(usize::from(Slot::COUNT)).collect(),
            ready: VecDeque::new(),
            whole: SlotSet::new(),
            whole_slots: 0,
            flushed: false,
            functions: false,
            keys: 0,
            bytes: 0,
            recorded: 0,
        }
    }

    /// Whether touches of this slot's keys are recorded.
    pub(super) fn is_watched(&self, slot: Slot) -> bool {
        self.watched.contains(slot)
    }

    /// A touch of a key as a whole.
    pub(super) fn whole(&mut self, db: Option<u32>, key: &[u8]) {
        self.add(db, key, What::Anything);
    }

    /// A touch of a key's time to live.
    pub(super) fn expiry(&mut self, db: Option<u32>, key: &[u8]) {
        self.add(db, key, What::Expiry);
    }

    /// A touch of some of a key's elements.
    pub(super) fn elements<'a>(
        &mut self,
        db: Option<u32>,
        key: &[u8],
        collection: Collection,
        expiry: bool,
        names: impl Iterator<Item = &'a [u8]>,
    ) {
        let slot = Slot::of_key(key);
        if !self.watched.contains(slot) {
            return;
        }
        self.recorded += 1;
        if self.whole.contains(slot) {
            return;
        }
        let elements_max = self.limits.elements_max;
        let empty = || What::Elements(Elements { collection, names: BTreeSet::new(), expiry });
        let (what, added) = self.entry(slot, db, key, empty);
        if *what == What::Expiry {
            *what = What::Elements(Elements { collection, names: BTreeSet::new(), expiry: true });
        }
        let mut delta = added;
        match what {
            What::Elements(elements) if elements.collection == collection => {
                elements.expiry |= expiry;
                let mut bytes = 0;
                for name in names {
                    if !elements.names.contains(name) {
                        bytes += element_bytes(name) as i64;
                        elements.names.insert(Bytes::copy_from_slice(name));
                    }
                }
                delta += bytes;
                if elements.names.len() > elements_max {
                    delta -= what.bytes() as i64;
                    *what = What::Anything;
                }
            }
            What::Anything => {}
            _ => {
                delta -= what.bytes() as i64;
                *what = What::Anything;
            }
        }
        self.account(slot, delta);
    }

    /// A touch of everything in a slot.
    pub(super) fn slot(&mut self, slot: Slot) {
        if self.watched.contains(slot) {
            self.recorded += 1;
            self.collapse(slot);
        }
    }

    /// A touch of unknown keys: every watched slot is touched.
    pub(super) fn everything(&mut self) {
        for slot in &self.watched.clone() {
            self.slot(slot);
        }
    }

    /// A database was emptied or exchanged.
    pub(super) fn flush(&mut self) {
        self.recorded += 1;
        self.flushed = true;
    }

    /// Functions were loaded or deleted.
    pub(super) fn functions(&mut self) {
        self.functions = true;
    }

    fn may_hold(&self, db: u32, name: &[u8]) -> bool {
        let slot = Slot::of_key(name);
        let waits = |keys: &SlotKeys| {
            [Some(db), None].into_iter().any(|db| keys.keys.contains_key(&KeyRef { db, name }))
        };
        let keys = self.slots.get(usize::from(slot.number())).and_then(|keys| keys.as_deref());
        self.flushed || self.whole.contains(slot) || keys.is_some_and(waits)
    }

    fn is_empty(&self) -> bool {
        self.keys == 0 && self.whole_slots == 0 && !self.flushed
    }

    fn watch(&mut self, slots: SlotSet) {
        self.watched = slots;
        let (kept, dropped) = self.ready.drain(..).partition(|slot| self.watched.contains(*slot));
        self.ready = kept;
        let dropped: VecDeque<Slot> = dropped;
        for slot in dropped {
            self.drop_keys(slot);
        }
        self.whole = self.whole.intersection(&self.watched);
        self.whole_slots = self.whole.len();
    }

    fn add(&mut self, db: Option<u32>, key: &[u8], what: What) {
        let slot = Slot::of_key(key);
        if !self.watched.contains(slot) {
            return;
        }
        self.recorded += 1;
        if self.whole.contains(slot) {
            return;
        }
        let elements_max = self.limits.elements_max;
        let mut new = Some(what);
        // Taken by the entry if there is none yet.
        let (entry, added) = self.entry(slot, db, key, || new.take().unwrap_or(What::Anything));
        let mut delta = added;
        match new {
            None => delta += entry.bytes() as i64,
            Some(What::Anything) if *entry == What::Anything => {}
            Some(what) => {
                delta -= entry.bytes() as i64;
                entry.merge(what);
                if let What::Elements(elements) = entry
                    && elements.names.len() > elements_max
                {
                    *entry = What::Anything;
                }
                delta += entry.bytes() as i64;
            }
        }
        self.account(slot, delta);
    }

    /// The entry of a key in a slot that is not touched as a whole, made if there is none, and what making it
    /// added, in bytes, elements not counted.
    fn entry(
        &mut self,
        slot: Slot,
        db: Option<u32>,
        key: &[u8],
        make: impl FnOnce() -> What,
    ) -> (&mut What, i64) {
        let place = &mut self.slots[usize::from(slot.number())];
        if place.is_none() {
            self.ready.push_back(slot);
        }
        let keys = &mut place.get_or_insert_default().keys;
        match keys.get_index_of(&KeyRef { db, name: key }) {
            Some(index) => (&mut keys[index], 0),
            None => {
                self.keys += 1;
                let entry = keys.entry(Key { db, name: Bytes::copy_from_slice(key) }).or_insert_with(make);
                (entry, key_bytes(key) as i64)
            }
        }
    }

    /// Counts what a slot has grown or shrunk by, and keeps the bound.
    fn account(&mut self, slot: Slot, delta: i64) {
        if let Some(keys) = &mut self.slots[usize::from(slot.number())] {
            keys.bytes = keys.bytes.saturating_add_signed(delta);
        }
        self.bytes = self.bytes.saturating_add_signed(delta);
        while self.bytes > self.limits.bytes_max {
            let bytes_of =
                |slot: &Slot| self.slots[usize::from(slot.number())].as_ref().map_or(0, |keys| keys.bytes);
            match self.ready.iter().copied().max_by_key(bytes_of) {
                Some(largest) => self.collapse(largest),
                None => break,
            }
        }
    }

    /// Turns a slot with touched keys into a touched slot.
    fn collapse(&mut self, slot: Slot) {
        if self.whole.insert(slot) {
            self.whole_slots += 1;
        }
        if self.slots[usize::from(slot.number())].is_some() {
            self.ready.retain(|ready| *ready != slot);
            self.drop_keys(slot);
        }
    }

    /// Forgets a slot's keys. It must not be in `ready`.
    fn drop_keys(&mut self, slot: Slot) {
        if let Some(keys) = self.slots[usize::from(slot.number())].take() {
            self.keys -= keys.keys.len();
            self.bytes -= keys.bytes.min(self.bytes);
        }
    }

    fn take(&mut self, keys_max: usize) -> Vec<Touch> {
        let mut taken = Vec::with_capacity(keys_max.min(self.keys));
        while taken.len() < keys_max
            && let Some(slot) = self.ready.pop_front()
        {
            let place = &mut self.slots[usize::from(slot.number())];
            let Some(keys) = place else { continue };
            while taken.len() < keys_max
                && let Some((key, what)) = keys.keys.pop()
            {
                let bytes = key_bytes(&key.name) + what.bytes();
                keys.bytes -= bytes.min(keys.bytes);
                self.bytes -= bytes.min(self.bytes);
                self.keys -= 1;
                taken.push(Touch { db: key.db, key: key.name, what });
            }
            if keys.keys.is_empty() {
                *place = None;
            } else {
                self.ready.push_front(slot);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Touch { key: u8, what: u8, element: u8 },
        Take(usize),
        TakeSlots,
        PutBack,
        Slot(u8),
        Watch(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (any::<u8>(), 0u8..4, any::<u8>()).prop_map(|(key, what, element)| Step::Touch { key, what,
                element }),
            2 => (0usize..20).prop_map(Step::Take),
            1 => Just(Step::TakeSlots),
            1 => Just(Step::PutBack),
            1 => any::<u8>().prop_map(Step::Slot),
            1 => any::<bool>().prop_map(Step::Watch),
        ];
        vec(step, 0..400)
    }

    /// A name whose slot is one of sixteen.
    fn name(key: u8) -> Vec<u8> {
        format!("{{{}}}{key}", key % 16).into_bytes()
    }

    proptest! {
        /// What was touched and not taken is there, as a key or as a slot; and the memory adds up.
        #[test]
        fn no_touch_is_lost(steps in steps(), bytes_max in 300u64..20_000) {
            let limits = TouchedLimits { bytes_max, elements_max: 5 };
            let touched = Touched::new(SlotSet::full(), limits);
            let mut owed: HashSet<Vec<u8>> = HashSet::new();
            let mut last = Vec::new();
            for step in steps {
                match step {
                    Step::Touch { key, what, element } => {
                        let name = name(key);
                        touched.record(|set| match what {
                            0 => set.whole(Some(0), &name),
                            1 => set.expiry(Some(0), &name),
                            2 => set.elements(Some(0), &name, Collection::Set, false,
                                [&[element][..]].into_iter()),
                            _ => set.elements(Some(0), &name, Collection::Hash, true,
                                [&[element][..]].into_iter()),
                        });
                        if touched.watched().contains(Slot::of_key(&name)) {
                            owed.insert(name);
                        }
                    }
                    Step::Take(n) => {
                        last = touched.take(n);
                        prop_assert!(last.len() <= n);
                        for touch in &last {
                            prop_assert!(owed.remove(&touch.key[..]), "taken twice or never touched");
                        }
                    }
                    Step::TakeSlots => {
                        let slots = touched.take_slots();
                        owed.retain(|key| !slots.contains(Slot::of_key(key)));
                    }
                    Step::PutBack => {
                        let watched = touched.watched();
                        let kept = |touch: &&Touch| watched.contains(Slot::of_key(&touch.key));
                        owed.extend(last.iter().filter(kept).map(|touch| touch.key.to_vec()));
                        touched.put_back(std::mem::take(&mut last));
                    }
                    Step::Slot(key) => touched.record(|set| set.slot(Slot::of_key(&name(key)))),
                    Step::Watch(all) => {
                        let some = || (0..8).map(|key| Slot::of_key(&name(key))).collect();
                        touched.watch(if all { SlotSet::full() } else { some() });
                        let watched = touched.watched();
                        owed.retain(|key| watched.contains(Slot::of_key(key)));
                    }
                }
                prop_assert!(touched.bytes() <= bytes_max);
            }
            let counted = touched.whole_slots();
            let whole = touched.take_slots();
            prop_assert_eq!(counted, whole.len());
            let waiting = touched.len();
            let taken = touched.take(usize::MAX);
            prop_assert_eq!(waiting, taken.len());
            prop_assert_eq!((touched.bytes(), touched.len(), touched.is_empty()), (0, 0, true));
            for touch in &taken {
                prop_assert!(!whole.contains(Slot::of_key(&touch.key)));
                if let What::Elements(elements) = &touch.what {
                    prop_assert!(elements.names.len() <= limits.elements_max);
                }
            }
            let taken: HashSet<Vec<u8>> = taken.into_iter().map(|touch| touch.key.to_vec()).collect();
            for key in owed {
                prop_assert!(taken.contains(&key) || whole.contains(Slot::of_key(&key)));
            }
        }
    }
}
