//! How many keys a node holds in each slot.

use whimbrel_core::slot::{Slot, SlotSet};

use crate::error::Result;
use crate::link::Link;
use crate::slot_keys;

/// The keys that one node holds, for each slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyCounts(Box<[u32]>);

impl Default for KeyCounts {
    /// No keys anywhere.
    fn default() -> Self {
        KeyCounts(vec![0; usize::from(Slot::COUNT)].into_boxed_slice())
    }
}

impl KeyCounts {
    /// The keys in one slot; 0 for a slot that was not asked for.
    pub fn of(&self, slot: Slot) -> u32 {
        self.0[usize::from(slot.number())]
    }

    /// Notes the keys of one slot.
    pub fn set(&mut self, slot: Slot, keys: u32) {
        self.0[usize::from(slot.number())] = keys;
    }

    /// The keys in some slots together.
    pub fn sum(&self, slots: &SlotSet) -> u64 {
        slots.iter().map(|slot| u64::from(self.of(slot))).sum()
    }

    /// The slots that hold keys.
    pub fn occupied(&self) -> SlotSet {
        Slot::all().filter(|slot| self.of(*slot) > 0).collect()
    }
}

/// Counts the keys that `link`'s node holds in each of `slots`, whether it owns the slot or not. Each count
/// is of its own moment.
///
/// # Errors
/// As [`Link::call`].
pub async fn key_counts(link: &mut Link, slots: &SlotSet) -> Result<KeyCounts> {
    let slots: Vec<Slot> = slots.iter().collect();
    let mut counts = KeyCounts::default();
    for (slot, keys) in slots.iter().zip(slot_keys::counts(link, &slots).await?) {
        counts.set(*slot, u32::try_from(keys).unwrap_or(u32::MAX));
    }
    Ok(counts)
}
