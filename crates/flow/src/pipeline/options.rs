//! What moves, and how.

use bytes::Bytes;
use serde::Serialize;
use whimbrel_core::select::Selection;

use crate::budget::Rates;
use crate::lane_counts::LaneCounts;
use crate::large::Existing;
use crate::retry::RetryPolicy;
use crate::scan::ScanOptions;

/// A database of the source and where its keys go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DbPair {
    /// Its number on the source.
    pub source: u32,
    /// Its number on the target.
    pub target: u32,
}

/// What to copy and how.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Which keys, by name and slot.
    pub selection: Selection,
    /// Which types, by the names that `TYPE` gives; all if empty.
    pub types: Vec<String>,
    /// Which databases of the source go to which of the target.
    pub dbs: Vec<DbPair>,
    /// What to do with keys that the target has already.
    pub existing: Existing,
    /// Stop after this many keys.
    pub limit: Option<u64>,
    /// Bytes of values in flight.
    pub memory_bytes: u64,
    /// From this size on a value moves in chunks.
    pub big_key_bytes: u64,
    /// Size of a chunk.
    pub chunk_bytes: usize,
    /// Keys and bytes of values read per second, at most.
    pub rates: Rates,
    /// `COUNT` of `SCAN`.
    pub scan_count: u32,
    /// Lanes for each shard that is being copied.
    pub lanes: LaneCounts,
    /// Shards copied at once.
    pub shards_at_once: usize,
    /// Read from replicas if there are any.
    pub from_replicas: bool,
    /// How long to try again.
    pub retry: RetryPolicy,
    /// Short name of this job: part of the names of staging keys.
    pub job: String,
    /// Keys that are gone from the source are removed from the target, and keys that change each time they
    /// are read are left to the sync that follows the changes, instead of being reported.
    pub mirror: bool,
}

impl CopyOptions {
    /// What to ask `SCAN` for, by the names that are selected.
    pub(crate) fn scan_options(&self) -> ScanOptions {
        ScanOptions {
            count: self.scan_count,
            pattern: self.selection.server_side_match().map(Bytes::copy_from_slice),
            type_name: None,
        }
    }

    /// Whether the server cannot filter by type, so that each key's has to be asked before it is selected.
    pub(crate) fn asks_types(&self) -> bool {
        self.types.len() > 1
    }
}
