//! What may be in flight at once, and how fast.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Granularity of the memory budget.
const UNIT_BYTES: u64 = 1 << 10;

/// Bounds the bytes of values that have been read (or are being read) and not yet written. A reader waits
/// until the writers have freed enough: a slow target slows the reading and never grows memory.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct MemoryPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let units_max = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX >> 4).max(1);
        // tokio bounds a semaphore at usize::MAX >> 3, far above u32::MAX >> 4.
        MemoryBudget { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// Waits for `bytes` of room. More than the whole budget is granted when everything else has drained, so
    /// that a single large value can pass.
    pub async fn take(&self, bytes: u64) -> MemoryPermit {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.units_max);
        // The semaphore is never closed; a permit is missing only if that changes, and then nothing is
        // bounded less than before.
        MemoryPermit { _permit: self.units.clone().acquire_many_owned(units).await.ok() }
    }
}

/// Bounds how many values are moved in chunks at once: a chunk is in memory on its way, up to several times
/// over, and takes nothing from the [`MemoryBudget`].
#[derive(Debug, Clone)]
pub struct BigTransfers {
    places: Arc<Semaphore>,
}

/// One transfer's place, given back when dropped.
#[derive(Debug)]
pub struct BigTransferPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

/// How many chunks one transfer may hold: the one being read with the buffer it arrives in, its copy as
/// commands, and those commands on their way out, each with room to grow.
const CHUNKS_PER_TRANSFER: u64 = 8;

/// Most transfers at once; more only take turns on the servers.
const TRANSFERS_MAX: u64 = 1 << 10;

impl BigTransfers {
    /// As many as fit in `memory_bytes` with chunks of `chunk_bytes`, and one at least.
    pub fn new(memory_bytes: u64, chunk_bytes: u64) -> Self {
        let one = chunk_bytes.max(1).saturating_mul(CHUNKS_PER_TRANSFER);
        let places = (memory_bytes / one).clamp(1, TRANSFERS_MAX);
        BigTransfers { places: Arc::new(Semaphore::new(places as usize)) }
    }

    /// Waits for a place. A transfer must not wait for a second one while it holds its own.
    pub async fn start(&self) -> BigTransferPermit {
        // As in `MemoryBudget::take`, the semaphore is never closed.
        BigTransferPermit { _permit: self.places.clone().acquire_owned().await.ok() }
    }
}

/// A token bucket shared by all lanes: so many per second, with bursts of a tenth of a second.
#[derive(Debug)]
pub struct Rate {
    per_second: f64,
    /// When the amount taken so far is paid off.
    free_at: Mutex<Instant>,
}

/// How far a bucket may fill up while nobody takes from it.
const BURST: Duration = Duration::from_millis(100);

impl Rate {
    /// `per_second` units each second.
    pub fn new(per_second: u64) -> Self {
        Rate { per_second: per_second.max(1) as f64, free_at: Mutex::new(Instant::now()) }
    }

    /// Waits until `amount` may pass. An amount above the rate passes at once and makes the next ones wait
    /// longer.
    pub async fn take(&self, amount: u64) {
        let wait_until = {
            let mut free_at = self.free_at.lock().await;
            let now = Instant::now();
            let start = (*free_at).max(now.checked_sub(BURST).unwrap_or(now));
            *free_at = start + Duration::from_secs_f64(amount as f64 / self.per_second);
            start
        };
        tokio::time::sleep_until(wait_until).await;
    }
}

/// Both rates; each is optional.
#[derive(Debug, Default)]
pub struct Rates {
    /// Keys per second.
    pub keys: Option<Rate>,
    /// Bytes of values per second.
    pub bytes: Option<Rate>,
}

impl Rates {
    /// Waits until so many keys may be read.
    pub async fn take_keys(&self, n: u64) {
        if let Some(rate) = &self.keys {
            rate.take(n).await;
        }
    }

    /// Waits until so many bytes may pass.
    pub async fn take_bytes(&self, n: u64) {
        if let Some(rate) = &self.bytes {
            rate.take(n).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_transfers_fit_the_budget_and_one_always_runs() {
        let places = |memory, chunk| BigTransfers::new(memory, chunk).places.available_permits();
        assert_eq!(places(64 << 20, 1 << 20), 8);
        assert_eq!(places(1, 1 << 20), 1);
        assert_eq!(places(0, 0), 1);
        assert_eq!(places(u64::MAX, 1), 1 << 10);
    }

    #[tokio::test]
    async fn a_place_is_given_back() {
        let transfers = BigTransfers::new(1, 1);
        let first = transfers.start().await;
        assert_eq!(transfers.places.available_permits(), 0);
        drop(first);
        drop(transfers.start().await);
        assert_eq!(transfers.places.available_permits(), 1);
    }
}
