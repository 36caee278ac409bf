//! What may be in flight at once.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Granularity of the memory budget.
const UNIT_BYTES: u64 = 1 << 10;

/// Bounds the bytes of values that have been read (or are being read) and not yet written. A reader waits
/// until the writers have freed enough: a slow target slows the reading and never grows memory. Clones share
/// it; it can be made larger or smaller while values are in flight.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    units: Arc<Semaphore>,
    size: Mutex<Size>,
    /// Notifies those that wait that the size is another one.
    resized: Notify,
}

/// How large the budget is, in units.
#[derive(Debug)]
struct Size {
    max: u32,
    /// What is in flight above it, since it was made smaller: it is not given back.
    excess: usize,
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct MemoryPermit {
    budget: Arc<Budget>,
    permit: Option<OwnedSemaphorePermit>,
}

impl MemoryPermit {
    /// Gives back what is above `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let units = usize::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(usize::MAX).max(1);
        if let Some(permit) = &mut self.permit {
            let surplus = permit.split(permit.num_permits().saturating_sub(units));
            self.budget.give_back(surplus);
        }
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.budget.give_back(self.permit.take());
    }
}

impl Budget {
    /// Of what is free, keeps as much as is in flight above the size: a waiter may have taken it.
    fn settle(&self) {
        let mut size = self.size.lock();
        size.excess -= self.units.forget_permits(size.excess);
    }

    fn give_back(&self, permit: Option<OwnedSemaphorePermit>) {
        let Some(mut permit) = permit else { return };
        let mut size = self.size.lock();
        let kept = size.excess.min(permit.num_permits());
        if let Some(kept) = permit.split(kept) {
            kept.forget();
        }
        size.excess -= kept;
    }
}

/// A size in units: tokio bounds a semaphore at usize::MAX >> 3, far above u32::MAX >> 4.
fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 4)
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let max = units_of(bytes);
        MemoryBudget(Arc::new(Budget {
            units: Arc::new(Semaphore::new(max as usize)),
            size: Mutex::new(Size { max, excess: 0 }),
            resized: Notify::new(),
        }))
    }

    /// Waits for `bytes` of room. More than the whole budget is granted when everything else has drained, so
    /// that a single large value can pass.
    pub async fn take(&self, bytes: u64) -> MemoryPermit {
        loop {
            self.0.settle();
            // Before the size is read: a change after that is not missed.
            let resized = self.0.resized.notified();
            let units = units_of(bytes).min(self.0.size.lock().max);
            tokio::select! {
                // The semaphore is never closed; a permit is missing only if that changes, and then nothing
                // is bounded less than before.
                permit = self.0.units.clone().acquire_many_owned(units) => {
                    return MemoryPermit { budget: self.0.clone(), permit: permit.ok() };
                }
                // What would be the whole budget may never be there any more.
                () = resized => {}
            }
        }
    }

    /// Makes it as large as that. If more is in flight, nothing is taken until enough has been given back.
    pub fn resize(&self, bytes: u64) {
        let max = units_of(bytes);
        let mut size = self.0.size.lock();
        if max > size.max {
            let more = (max - size.max) as usize;
            let paid = more.min(size.excess);
            size.excess -= paid;
            self.0.units.add_permits(more - paid);
        } else {
            let less = (size.max - max) as usize;
            size.excess += less - self.0.units.forget_permits(less);
        }
        size.max = max;
        drop(size);
        self.0.resized.notify_waiters();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    const MIB: u64 = 1 << 20;

    fn free(budget: &MemoryBudget) -> u64 {
        budget.0.units.available_permits() as u64 * UNIT_BYTES
    }

    #[tokio::test]
    async fn a_budget_is_made_smaller_and_larger_while_it_is_used() {
        let budget = MemoryBudget::new(64 * MIB);
        let mut held = vec![budget.take(20 * MIB).await, budget.take(30 * MIB).await];
        budget.resize(16 * MIB);
        assert_eq!(free(&budget), 0, "nothing is taken while more is in flight");
        held[1].shrink_to(10 * MIB);
        assert_eq!(free(&budget), 0, "30 MiB are in flight still");
        held.remove(0);
        assert_eq!(free(&budget), 6 * MIB);
        budget.resize(32 * MIB);
        assert_eq!(free(&budget), 22 * MIB);
        budget.resize(4 * MIB);
        budget.resize(64 * MIB);
        assert_eq!(free(&budget), 54 * MIB, "what was too much is no more");
        held.clear();
        assert_eq!(free(&budget), 64 * MIB);
    }

    /// A value as large as the budget was gets all of it as it is.
    #[tokio::test]
    async fn who_waits_for_the_whole_budget_gets_what_is_left_of_it() {
        let budget = MemoryBudget::new(64 * MIB);
        let held = budget.take(MIB).await;
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(64 * MIB).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        budget.resize(8 * MIB);
        drop(held);
        drop(waiting.await.expect("it passes"));
        assert_eq!(free(&budget), 8 * MIB);
    }
}
