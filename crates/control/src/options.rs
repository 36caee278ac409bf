//! How jobs move keys.

use serde::{Deserialize, Serialize};
use whimbrel_core::schedule::Window;
use whimbrel_flow::budget::{RateChange, Times};
use whimbrel_flow::lag::MaxLag;
use whimbrel_flow::load::MaxLoad;

/// How long a job stands still before it fails if the user does not say, in milliseconds.
pub const STALL_MS: u64 = 600_000;

pub(crate) fn usual_stall_ms() -> u64 {
    STALL_MS
}

/// How the external method moves keys. It survives a restart with its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferOptions {
    /// Lanes, each with a connection to source and target.
    pub lanes: usize,
    /// From this size on a value moves in chunks, in bytes.
    pub big_key_bytes: u64,
    /// Size of a chunk, in bytes.
    pub chunk_bytes: usize,
    /// Bytes that chunks of large keys may take together.
    pub memory_bytes: u64,
    /// Bytes that the names of touched keys may take.
    pub touched_bytes: u64,
    /// Keys per second, at most.
    pub rate_keys: Option<u64>,
    /// Bytes per second, at most.
    pub rate_bytes: Option<u64>,
    /// How long a node may take for an answer before keys are moved slower, in milliseconds.
    #[serde(default)]
    pub max_latency_ms: Option<u64>,
    /// How far replicas of the target may be behind before keys are moved slower.
    #[serde(default)]
    pub max_lag: Option<MaxLag>,
    /// How much of a core a node may use before keys are moved slower, in percent.
    #[serde(default)]
    pub max_load: Option<MaxLoad>,
    /// The times of the day at which keys move, and handovers begin; any if it is `None`.
    #[serde(default)]
    pub between: Option<Window>,
    /// How long a job may stand still: wait for others that are at work at its nodes, or for a node that does
    /// not answer; in milliseconds.
    #[serde(default = "usual_stall_ms")]
    pub stall_ms: u64,
}

impl TransferOptions {
    /// How fast keys move, and when.
    pub(crate) fn rates(&self) -> RateChange {
        RateChange {
            keys: self.rate_keys,
            bytes: self.rate_bytes,
            max_latency_ms: self.max_latency_ms,
            max_lag: self.max_lag,
            max_load: self.max_load,
            times: self.between.map(Times::Between),
            ..RateChange::default()
        }
    }
}

impl Default for TransferOptions {
    fn default() -> Self {
        TransferOptions {
            lanes: 4,
            big_key_bytes: 8 << 20,
            chunk_bytes: 1 << 20,
            memory_bytes: 64 << 20,
            touched_bytes: 256 << 20,
            rate_keys: None,
            rate_bytes: None,
            max_latency_ms: None,
            max_lag: None,
            max_load: None,
            between: None,
            stall_ms: STALL_MS,
        }
    }
}
