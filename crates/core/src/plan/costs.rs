//! What slots weigh when load is balanced.

use std::fmt;

use crate::slot::{Slot, SlotSet};

/// What each slot weighs when load is balanced: 1 for plain slots, or its keys, bytes or operations a second.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotCosts(Vec<u64>);

impl SlotCosts {
    /// Every slot costs 1: balances the number of slots.
    pub fn uniform() -> SlotCosts {
        SlotCosts::new(|_| 1)
    }

    /// Every slot costs what `cost_of` says.
    pub fn new(cost_of: impl FnMut(Slot) -> u64) -> SlotCosts {
        SlotCosts(Slot::all().map(cost_of).collect())
    }

    /// The cost of a slot.
    pub fn of(&self, slot: Slot) -> u64 {
        self.0[usize::from(slot.number())]
    }

    /// The cost of all slots in `slots`.
    pub fn total(&self, slots: &SlotSet) -> u128 {
        slots.iter().map(|slot| u128::from(self.of(slot))).sum()
    }

    /// As a number to calculate with. Sums stay exact below 2^53, which is 8 PiB if the costs are bytes.
    pub(super) fn load(&self, slots: &SlotSet) -> f64 {
        self.total(slots) as f64
    }

    /// Whether all of `slots` cost the same, and not nothing.
    pub(super) fn is_uniform(&self, slots: &SlotSet) -> bool {
        let mut costs = slots.iter().map(|slot| self.of(slot));
        let first = costs.next().unwrap_or(0);
        first > 0 && costs.all(|cost| cost == first)
    }
}

impl fmt::Debug for SlotCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u128 = self.0.iter().map(|&cost| u128::from(cost)).sum();
        write!(f, "SlotCosts(total {total})")
    }
}
