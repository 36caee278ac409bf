//! What was found out, and nothing that was concluded from it.

use serde::Serialize;
use whimbrel_engine::inventory::{Inventory, Rate};

use super::sample::Sample;
use super::ways::Way;
use crate::copy::DbPair;

/// All that was found out, and nothing that was concluded from it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Facts {
    /// The source.
    pub source: Inventory,
    /// The target, if one was named.
    pub target: Option<Inventory>,
    /// Which databases go to which.
    pub dbs: Vec<DbPair>,
    /// Some keys of the source.
    pub sample: Sample,
    /// How much clients write to the source, over all primaries.
    pub rate: Rate,
    /// How far away the target is, in microseconds; 0 without one.
    pub target_rtt_us: u64,
    /// Commands that clients of the source use and the target lacks; `None` if it does not report them.
    pub lacking: Option<Vec<String>>,
    /// Libraries of functions on the source.
    pub libraries: usize,
    /// Each way to copy, follow and cut over.
    pub ways: Vec<Way>,
    /// What a copy would do.
    pub plan: Planned,
}

/// The part of a copy's options that its duration depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// Lanes for each shard.
    pub lanes: usize,
    /// Shards at once.
    pub shards_at_once: usize,
    /// Keys each second at most.
    pub rate_keys: Option<u64>,
    /// Bytes each second at most.
    pub rate_bytes: Option<u64>,
    /// From how many bytes on a value moves in chunks.
    pub big_key_bytes: u64,
}
