//! How many keys a node holds in each slot.

use whimbrel_core::slot::{Slot, SlotSet};

use crate::error::Result;
use crate::link::Link;

/// Commands sent before their replies are read: enough to hide the round trip, few enough that neither the server nor
/// we hold more than some tens of KiB.
const PIPELINED: usize = 1_024;

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

/// Counts the keys that `link`'s node holds in each of `slots`, whether it owns the slot or not, with pipelined
/// `CLUSTER COUNTKEYSINSLOT`. Each count is of its own moment.
///
/// # Errors
/// As [`Link::call`].
pub async fn key_counts(link: &mut Link, slots: &SlotSet) -> Result<KeyCounts> {
    let mut counts = KeyCounts::default();
    let slots: Vec<Slot> = slots.iter().collect();
    for piece in slots.chunks(PIPELINED) {
        for slot in piece {
            let outbox = link.outbox();
            outbox.command(3);
            outbox.arg(b"CLUSTER");
            outbox.arg(b"COUNTKEYSINSLOT");
            outbox.arg_int(i64::from(slot.number()));
        }
        link.flush().await?;
        // All replies are read before any is judged, so that the link stays in step.
        let replies = link.replies(piece.len()).await?;
        for (slot, reply) in piece.iter().zip(replies) {
            let reply = link.check(reply, b"CLUSTER COUNTKEYSINSLOT")?;
            let keys = reply
                .as_int()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| link.unexpected("CLUSTER COUNTKEYSINSLOT", &reply))?;
            counts.set(*slot, keys);
        }
    }
    Ok(counts)
}
