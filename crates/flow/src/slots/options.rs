//! How slots are moved, and how far that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};

use crate::budget::Rates;

/// How slots are moved.
#[derive(Debug)]
pub struct SlotOptions {
    /// Lanes, each with a connection to either node.
    pub lanes: usize,
    /// From this size on a value moves in chunks.
    pub big_key_bytes: u64,
    /// Size of a chunk.
    pub chunk_bytes: usize,
    /// Bytes that chunks of large keys may take together.
    pub memory_bytes: u64,
    /// Keys and bytes per second.
    pub rates: Rates,
    /// Name of the job.
    pub job: String,
    /// What connections to the target are called: [`Handover::observe`](whimbrel_engine::handover::Handover)
    /// closes those of earlier processes by it, which may still have writes on their way.
    pub client_name: Arc<str>,
    /// A key that took longer than this when it last moved in chunks does not do so under a pause, in
    /// milliseconds. Half of the longest pause, if the user changes that.
    pub drain_ms_max: u64,
    /// Shared by all movers with the same target.
    pub gate: TargetGate,
}

/// Lets one job have a target to itself while writers wait for it: the others move no keys there meanwhile.
#[derive(Debug, Clone, Default)]
pub struct TargetGate(Arc<RwLock<()>>);

/// The target is quiet for as long as this lives.
#[derive(Debug)]
pub struct TargetGateGuard {
    _lock: OwnedRwLockWriteGuard<()>,
}

impl TargetGate {
    /// Waits until what is on its way to the target has arrived, and keeps others from sending more. Chunks
    /// of large keys are not waited for: they are small.
    pub async fn begin(&self) -> TargetGateGuard {
        TargetGateGuard { _lock: self.0.clone().write_owned().await }
    }

    /// Waits while another job has the target to itself, which it cannot begin before the permit is dropped.
    pub(super) async fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().await
    }
}

/// What a display reads.
#[derive(Debug, Default)]
pub struct SlotProgress {
    /// Keys written to the target, repetitions included.
    pub keys: AtomicU64,
    /// Bytes of keys and values written to the target, repetitions included.
    pub bytes: AtomicU64,
    /// Touched keys that were transferred again.
    pub touched: AtomicU64,
}

impl SlotProgress {
    pub(super) fn add_written(&self, keys: u64, bytes: u64) {
        self.keys.fetch_add(keys, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_touched(&self, keys: u64, bytes: u64) {
        self.touched.fetch_add(keys, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
