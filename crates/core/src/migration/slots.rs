//! How sets of slots are written in a journal: as people write them, `0-1023,5000`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::slot::SlotSet;

pub(super) fn serialize<S: Serializer>(slots: &SlotSet, serializer: S) -> Result<S::Ok, S::Error> {
    slots.to_string().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SlotSet, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        // What people type must name a slot; what we wrote ourselves need not.
        return Ok(SlotSet::new());
    }
    text.parse().map_err(serde::de::Error::custom)
}
