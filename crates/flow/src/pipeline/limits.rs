//! How many keys a job copies, how much memory its values take, and how fast it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::options::CopyOptions;
use crate::budget::Rates;
use crate::memory::{BigTransfers, MemoryBudget};
use crate::progress::CopyProgress;

/// The limits of one job.
pub(crate) struct Limits {
    /// Bytes of values in flight.
    pub(super) budget: MemoryBudget,
    /// Bounds how many values move in chunks at once: their chunks are not part of the budget.
    pub(super) big_transfers: BigTransfers,
    pub(crate) rates: Rates,
    /// Keys that may still be selected; `None` if all may.
    left: Option<AtomicI64>,
    progress: Arc<CopyProgress>,
    stop: CancellationToken,
}

impl Limits {
    pub(super) fn new(options: &CopyOptions, progress: Arc<CopyProgress>, stop: CancellationToken) -> Limits {
        let budget = MemoryBudget::new(options.memory_bytes);
        options.rates.steer_memory(&budget);
        options.rates.steer_lanes();
        Limits {
            budget,
            big_transfers: BigTransfers::new(options.memory_bytes, options.chunk_bytes as u64),
            rates: options.rates.clone(),
            left: options.limit.map(|keys| AtomicI64::new(i64::try_from(keys).unwrap_or(i64::MAX))),
            progress,
            stop,
        }
    }

    /// Waits for what a rate allows; false if the job was stopped meanwhile.
    pub(crate) async fn paced(&self, wait: impl Future<Output = ()>) -> bool {
        self.stop.run_until_cancelled(wait).await.is_some()
    }

    /// Counts keys as selected, as far as the limit allows; the others are dropped.
    pub(crate) fn select(&self, keys: &mut Vec<Bytes>) {
        keys.truncate(self.take(keys.len()));
        CopyProgress::add(&self.progress.selected, keys.len() as u64);
    }

    /// Takes up to `wanted` keys of what is left of the limit.
    fn take(&self, wanted: usize) -> usize {
        let Some(left) = &self.left else { return wanted };
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        let before = left.fetch_sub(wanted, Ordering::Relaxed);
        usize::try_from(before.clamp(0, wanted)).unwrap_or(0)
    }

    /// Whether no further key may be selected.
    pub(crate) fn are_reached(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) <= 0)
    }
}
