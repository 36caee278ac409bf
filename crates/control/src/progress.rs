//! What a display reads of a running job, besides the job itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use whimbrel_flow::budget::Rates;
use whimbrel_flow::journal::DiskFull;
use whimbrel_flow::slots::SlotProgress;

/// What a display reads of a running job, besides the job itself.
#[derive(Debug, Default)]
pub struct JobProgress {
    /// What the lanes have done.
    pub moved: Arc<SlotProgress>,
    /// Keys of all batches, as they were counted when the job was made; 0 if they were not counted.
    pub keys_total: AtomicU64,
    /// Those of the batches that were handed over.
    pub keys_handed_over: AtomicU64,
    /// Keys of the batch at hand, as they were counted when its snapshot began; 0 between batches.
    batch_keys: AtomicU64,
    /// What `moved` showed then.
    moved_before_batch: AtomicU64,
    /// Touched keys that wait.
    pub touched: AtomicU64,
    /// How many milliseconds writes were paused by brakes.
    pub braked_ms: AtomicU64,
    /// Whether the journal's disk has room.
    pub disk: DiskFull,
    /// How fast keys move; a request to the job changes it.
    pub rates: Rates,
    /// What it waits for, in words; empty if it goes on.
    waits_for: Mutex<String>,
}

impl JobProgress {
    /// How many keys of the job are at the target, of how many: those of batches that were handed over, and
    /// those of the batch at hand. What moves again, because it was written to meanwhile, counts once.
    pub fn keys(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of_batch = load(&self.moved.keys).saturating_sub(load(&self.moved_before_batch));
        let done = load(&self.keys_handed_over) + of_batch.min(load(&self.batch_keys));
        let total = load(&self.keys_total);
        (done.min(total), total)
    }

    /// From now on it waits for this, or for nothing any more.
    pub(crate) fn waits(&self, what: Option<&str>) {
        what.unwrap_or_default().clone_into(&mut self.waits_for.lock());
    }

    /// What it waits for that is not its own to do, in words; empty if it goes on.
    pub fn waits_for(&self) -> String {
        self.waits_for.lock().clone()
    }

    pub(crate) fn begin_batch(&self, keys: u64) {
        self.moved_before_batch.store(self.moved.keys.load(Ordering::Relaxed), Ordering::Relaxed);
        self.batch_keys.store(keys, Ordering::Relaxed);
    }

    /// Keys of batches that were handed over count from now on as a whole, and no other batch has begun.
    pub(crate) fn end_batch(&self, keys_handed_over: u64) {
        self.keys_handed_over.store(keys_handed_over, Ordering::Relaxed);
        self.batch_keys.store(0, Ordering::Relaxed);
    }
}
