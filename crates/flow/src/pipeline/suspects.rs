//! Slots that may have been missed, and have to be gone through again.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Topology;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::probe::ServerFacts;

/// Slots in doubt, and the processes of the target, which show some of them.
#[derive(Debug, Default)]
pub(crate) struct Suspects(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    source: SlotSet,
    target: SlotSet,
    /// The process that was first met at each address of the target.
    runs: HashMap<Address, String>,
    /// By process of the target: how many keys it had evicted when it was first met, and when last.
    evicted: HashMap<String, (u64, u64)>,
}

impl Suspects {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// Notes that a slot of the source was found on the move.
    pub(crate) fn note_source(&self, slot: Slot) {
        self.known().source.insert(slot);
    }

    /// Notes slots of the source that have to be gone through again.
    pub(crate) fn note_source_slots(&self, slots: &SlotSet) {
        if !slots.is_empty() {
            let mut known = self.known();
            known.source = known.source.union(slots);
        }
    }

    /// Notes that a slot of the target was found on the move.
    pub(crate) fn note_target(&self, slot: Slot) {
        self.known().target.insert(slot);
    }

    /// Notes slots of the target that have to be gone through again.
    pub(crate) fn note_target_slots(&self, slots: &SlotSet) {
        if !slots.is_empty() {
            let mut known = self.known();
            known.target = known.target.union(slots);
        }
    }

    /// Notes the process that was met at an address of the target. If that is not the same process as the
    /// first one there, the slots of `topology` that are served there are in doubt: it may have lost what the
    /// old one had acknowledged.
    pub(super) fn met(&self, address: &Address, facts: ServerFacts, topology: &Topology) {
        let mut known = self.known();
        let evicted = facts.evicted_keys;
        known.evicted.entry(facts.run_id.clone()).or_insert((evicted, evicted)).1 = evicted;
        let before = known.runs.insert(address.clone(), facts.run_id.clone());
        if before.is_some_and(|before| before != facts.run_id) {
            for shard in topology.shards.iter().filter(|shard| shard.primary == *address) {
                known.target = known.target.union(&shard.slots);
            }
        }
    }

    /// The processes behind the primaries of the target, as far as they have been met.
    pub(crate) fn runs(&self, topology: &Topology) -> HashMap<String, String> {
        let known = self.known();
        let primaries = topology.shards.iter().map(|shard| &shard.primary);
        primaries
            .filter_map(|address| Some((address.to_string(), known.runs.get(address)?.clone())))
            .collect()
    }

    /// Keys that the target has evicted since it was first met.
    pub(crate) fn evicted(&self) -> u64 {
        self.known().evicted.values().map(|(first, last)| last.saturating_sub(*first)).sum()
    }

    /// All slots in doubt so far.
    pub(crate) fn all(&self) -> SlotSet {
        let known = self.known();
        known.source.union(&known.target)
    }

    /// All slots in doubt so far; they are forgotten here.
    pub(crate) fn take(&self) -> SlotSet {
        let mut known = self.known();
        std::mem::take(&mut known.source).union(&std::mem::take(&mut known.target))
    }

    /// Slots of the source and of the target that are in doubt, for the journal.
    pub(crate) fn by_side(&self) -> (SlotSet, SlotSet) {
        let known = self.known();
        (known.source.clone(), known.target.clone())
    }

    /// Takes over what an earlier run had found, in place of all slots in doubt.
    pub(crate) fn take_over(&self, source: SlotSet, target: SlotSet) {
        let mut known = self.known();
        (known.source, known.target) = (source, target);
    }
}
