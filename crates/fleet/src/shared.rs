//! What all parts of a member share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use whimbrel_core::fleet::{Member, MemberId, Partition};
use whimbrel_engine::clock;

use crate::cell::Cell;
use crate::protocol::{Backend, Directory};

/// How a member stands. It changes with each change of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its number, while it is a member.
    pub member: Option<MemberId>,
    /// The latest term that it knows.
    pub term: u64,
    /// How many partitions there are; 0 until it was a member.
    pub partitions: u32,
    /// The stamp of its table.
    pub stamp: u64,
    /// Whether it has a connection to the coordinator.
    pub is_connected: bool,
    /// It has left, or was asked to, and is no member any more.
    pub has_left: bool,
    /// Why there is no connection.
    pub trouble: Option<String>,
}

/// What all parts of a member share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Made at the first welcome. A fleet never changes the number of its partitions.
    cells: OnceLock<Box<[Cell]>>,
    member: AtomicU32,
    /// Set to 0 before `member` is another one, and set again only after.
    pub(crate) lease_until_ms: AtomicU64,
    /// Guards of all partitions.
    pub(crate) held: AtomicU64,
    /// The last guard of a sealed partition is gone.
    pub(crate) quiet: Notify,
    /// Counts how often a partition was sealed that has requests under way.
    pub(crate) seals: watch::Sender<u64>,
    directory: RwLock<Arc<Known>>,
    pub(crate) seen: watch::Sender<Seen>,
}

/// The addresses of members.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) members: HashMap<MemberId, Arc<str>>,
    backends: Vec<Backend>,
}

impl Shared {
    pub(crate) fn new() -> Shared {
        let seen = Seen {
            member: None,
            term: 0,
            partitions: 0,
            stamp: 0,
            is_connected: false,
            has_left: false,
            trouble: None,
        };
        Shared {
            cells: OnceLock::new(),
            member: AtomicU32::new(MemberId::NOBODY.0),
            lease_until_ms: AtomicU64::new(0),
            held: AtomicU64::new(0),
            quiet: Notify::new(),
            seals: watch::Sender::new(0),
            directory: RwLock::default(),
            seen: watch::Sender::new(seen),
        }
    }

    pub(crate) fn cell(&self, partition: Partition) -> Option<&Cell> {
        self.cells.get()?.get(partition as usize)
    }

    pub(crate) fn member(&self) -> Option<MemberId> {
        Some(MemberId(self.member.load(Ordering::SeqCst))).filter(|member| *member != MemberId::NOBODY)
    }

    pub(crate) fn owners(&self) -> Vec<Option<MemberId>> {
        let owner = |cell: &Cell| Some(cell.owner()).filter(|owner| *owner != MemberId::NOBODY);
        self.cells.get().into_iter().flatten().map(owner).collect()
    }

    pub(crate) fn partitions(&self) -> u32 {
        // No more than `PARTITIONS_MAX`.
        self.cells.get().map_or(0, |cells| cells.len() as u32)
    }

    pub(crate) fn owner(&self, partition: Partition) -> Option<MemberId> {
        self.cell(partition).map(Cell::owner).filter(|owner| *owner != MemberId::NOBODY)
    }

    pub(crate) fn lease_left(&self) -> Duration {
        let until_ms = self.lease_until_ms.load(Ordering::SeqCst);
        Duration::from_millis(until_ms.saturating_sub(clock::now_ms()))
    }

    pub(crate) fn addresses(&self) -> Vec<(MemberId, Arc<str>)> {
        let known = self.known();
        let mut all: Vec<_> = known.members.iter().map(|(id, address)| (*id, address.clone())).collect();
        all.sort();
        all
    }

    pub(crate) fn backends(&self) -> Vec<Backend> {
        self.known().backends.clone()
    }

    pub(crate) fn known(&self) -> Arc<Known> {
        self.directory.read().clone()
    }

    /// Takes in the addresses of members. A member that is listed without one keeps the known address: a
    /// coordinator that has just begun has not heard of all yet.
    pub(crate) fn take_directory(&self, directory: Directory) {
        let before = self.known();
        let members = directory.members.into_iter().map(|(member, address)| {
            let kept = before.members.get(&member).filter(|_| address.is_empty());
            (member, kept.cloned().unwrap_or_else(|| address.into()))
        });
        let known = Known { members: members.collect(), backends: directory.backends };
        *self.directory.write() = Arc::new(known);
        // The addresses of others are part of what is watched.
        self.seen.send_modify(|_| {});
    }

    /// Takes over what the machine says of these partitions. First what ends: what begins may not be seen
    /// before.
    ///
    /// False if the fleet has another number of partitions than it had.
    pub(crate) fn follow(&self, machine: &Member, partitions: impl IntoIterator<Item = Partition>) -> bool {
        if machine.id() != self.member() {
            self.lease_until_ms.store(0, Ordering::SeqCst);
            self.member.store(MemberId::NOBODY.0, Ordering::SeqCst);
        }
        let count = machine.table().partitions();
        if machine.id().is_some() {
            let cells = self.cells.get_or_init(|| (0..count).map(|_| Cell::default()).collect());
            if cells.len() != count as usize {
                return false;
            }
        }
        for partition in partitions {
            let row = machine.table().row(partition).copied().unwrap_or_default();
            let (owner, is_sealed) =
                (row.holders.owner().unwrap_or(MemberId::NOBODY), machine.is_sealed(partition));
            if let Some(cell) = self.cell(partition) {
                cell.set(owner, is_sealed, (row.version, row.backend));
                if is_sealed && !cell.is_quiet() {
                    self.seals.send_modify(|count| *count += 1);
                }
            }
        }
        self.member.store(machine.id().unwrap_or(MemberId::NOBODY).0, Ordering::SeqCst);
        self.lease_until_ms.store(machine.lease_until_ms(), Ordering::SeqCst);
        let partitions = if self.cells.get().is_some() { count } else { 0 };
        self.see(|seen| {
            (seen.member, seen.term) = (machine.id(), machine.term());
            (seen.partitions, seen.stamp) = (partitions, machine.table().stamp());
        });
        true
    }

    /// Changes what is watched, and reports it if that is different.
    pub(crate) fn see(&self, change: impl FnOnce(&mut Seen)) {
        self.seen.send_if_modified(|seen| {
            let before = seen.clone();
            change(seen);
            *seen != before
        });
    }
}
