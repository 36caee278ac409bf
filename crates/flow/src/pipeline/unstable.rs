//! Keys that changed each time they were read, and are left to be transferred again.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::scan::Unit;

/// By shard of the source: keys with their databases.
#[derive(Debug, Default)]
pub(crate) struct Unstable(Mutex<HashMap<String, Vec<(u32, Bytes)>>>);

impl Unstable {
    /// Leaves a key of a unit to be transferred again.
    pub(super) fn note(&self, unit: &Unit, key: Bytes) {
        let mut known = self.0.lock();
        known.entry(unit.shard_id.clone()).or_default().push((unit.db, key));
    }

    /// The keys of a shard that have to be transferred again, with their databases; they are forgotten here.
    pub(crate) fn take(&self, shard_id: &str) -> Vec<(u32, Bytes)> {
        self.0.lock().remove(shard_id).unwrap_or_default()
    }
}
