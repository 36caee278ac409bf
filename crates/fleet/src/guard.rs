//! A request that is under way, which keeps its partition from being given away.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use whimbrel_core::fleet::{MemberId, Partition};

use crate::cell::Cell;
use crate::shared::Shared;

/// This member serves the partition, and a request of it is under way for as long as this lives: the
/// partition is not given away before.
///
/// It says nothing about the lease, which goes on to run: see [`Guard::lease_left`].
#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
    partition: Partition,
    member: MemberId,
}

impl Guard {
    /// None if the partition is not this member's to serve now.
    pub(crate) fn enter(shared: &Arc<Shared>, partition: Partition, member: MemberId) -> Option<Guard> {
        let cell = shared.cell(partition)?;
        if !cell.enter(member) {
            return None;
        }
        shared.held.fetch_add(1, Ordering::Relaxed);
        let guard = Guard { shared: shared.clone(), partition, member };
        // Dropped if the lease has ended, which undoes the above.
        (!guard.lease_left().is_zero()).then_some(guard)
    }

    /// Which partition.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// Which backend has the data of the partition. It stays the same for as long as this lives and its lease
    /// runs.
    pub fn backend(&self) -> u32 {
        self.shared.cell(self.partition).map_or(0, Cell::backend)
    }

    /// Whether the partition waits until this guard, and all others of it, are gone. A request that may wait
    /// for something to happen has to be ended then.
    pub fn is_sealed(&self) -> bool {
        self.shared.cell(self.partition).is_some_and(Cell::is_sealed)
    }

    /// For how long the request may still be carried out. It grows as the lease is renewed. What is not done
    /// by then has to be cut off, or another member may be serving the partition at the same time.
    pub fn lease_left(&self) -> Duration {
        let left = self.shared.lease_left();
        // Looked at last: the lease of a later life is set after its number.
        let is_same = self.shared.member() == Some(self.member);
        if is_same { left } else { Duration::ZERO }
    }

    /// Waits until nothing is left of the lease, renewals included.
    pub async fn expired(&self) {
        loop {
            match self.lease_left() {
                Duration::ZERO => return,
                left => sleep(left).await,
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.held.fetch_sub(1, Ordering::Relaxed);
        if self.shared.cell(self.partition).is_some_and(Cell::leave) {
            self.shared.quiet.notify_one();
        }
    }
}
