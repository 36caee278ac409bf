//! How many keys a node holds in each slot.

use whimbrel_core::cluster::KeyCounts;
use whimbrel_core::slot::{Slot, SlotSet};

use crate::error::Result;
use crate::link::Link;
use crate::slot_keys;

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
