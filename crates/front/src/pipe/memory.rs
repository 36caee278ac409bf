//! Room for what has to be held whole, bounded over all who hold something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest request whose keys are not all at its beginning.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 20;

/// A bound on bytes that many may hold together.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    held: AtomicU64,
    bytes_max: u64,
}

/// A part of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl MemoryBudget {
    pub(crate) fn new(bytes_max: u64) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget { held: AtomicU64::new(0), bytes_max })
    }

    /// `None` if all together hold too much already.
    pub(crate) fn take(self: &Arc<MemoryBudget>, bytes: u64) -> Option<MemoryPermit> {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed);
        let permit = MemoryPermit { budget: self.clone(), bytes };
        (held + bytes <= self.bytes_max).then_some(permit)
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
