//! Large keys that are followed by their elements.

use std::collections::HashSet;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use whimbrel_core::slot::{Slot, SlotSet};

/// How many keys that moved in chunks are followed by their elements.
const FOLLOWED_MAX: usize = 64 << 10;

/// Keys of which the target may lack touched elements, but nothing else.
#[derive(Debug, Default)]
pub(crate) struct Followed(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Shards of the source whose feeds show which elements of a key are touched.
    shards: HashSet<String>,
    /// Keys that moved in chunks while their elements were followed, with their databases.
    keys: HashSet<(u32, Bytes)>,
}

impl Followed {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// From now on the feeds of these shards show which elements of a key are touched; those of others do
    /// not.
    pub(crate) fn begin(&self, shards: HashSet<String>) {
        self.known().shards = shards;
    }

    /// Whether the feed of a shard shows which elements of a key are touched.
    pub(super) fn is_seen(&self, shard_id: &str) -> bool {
        self.known().shards.contains(shard_id)
    }

    /// The target holds the key, except elements that are touched since. Keys beyond [`FOLLOWED_MAX`] are
    /// transferred whole when they are touched.
    pub(super) fn add(&self, db: u32, key: &Bytes) {
        let mut known = self.known();
        if known.keys.len() < FOLLOWED_MAX {
            known.keys.insert((db, key.clone()));
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.known().keys.is_empty()
    }

    /// Whether touched elements are all that the target may lack of a key.
    pub(crate) fn has(&self, db: u32, key: &Bytes) -> bool {
        self.known().keys.contains(&(db, key.clone()))
    }

    /// What the target holds of the keys of these slots may lack more than touched elements: they move whole
    /// again first.
    pub(crate) fn forget_slots(&self, slots: &SlotSet) {
        self.known().keys.retain(|(_, key)| !slots.contains(Slot::of_key(key)));
    }

    /// The target does not hold the key any more, or not what the source held.
    pub(super) fn forget(&self, db: u32, key: &[u8]) {
        let mut known = self.known();
        if !known.keys.is_empty() {
            known.keys.remove(&(db, Bytes::copy_from_slice(key)));
        }
    }
}
