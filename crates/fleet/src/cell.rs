//! One word for each partition: who owns it, whether it is sealed here, and how many requests of it are under
//! way. They are in one word so that no request begins between *it is sealed* and *nothing of it is under way
//! any more*.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use whimbrel_core::fleet::MemberId;

const SEALED: u64 = 1 << 31;
const COUNT: u64 = SEALED - 1;

/// A partition as the serving tasks see it.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    word: AtomicU64,
    /// Where the data is. It changes while no task may begin a request, and is set before any may again.
    backend: AtomicU32,
    /// The version of the row; none while both are being set.
    version: AtomicU64,
}

/// No row has it.
const BEING_SET: u64 = u64::MAX;

impl Cell {
    pub(crate) fn owner(&self) -> MemberId {
        owner_of(self.word.load(Ordering::SeqCst))
    }

    pub(crate) fn backend(&self) -> u32 {
        self.backend.load(Ordering::SeqCst)
    }

    /// Version and backend of one row.
    pub(crate) fn place(&self) -> Option<(u64, u32)> {
        let before = self.version.load(Ordering::SeqCst);
        let backend = self.backend();
        let after = self.version.load(Ordering::SeqCst);
        (before == after && before != BEING_SET).then_some((before, backend))
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.word.load(Ordering::SeqCst) & SEALED != 0
    }

    /// What the member knows now. Requests under way stay counted.
    pub(crate) fn set(&self, owner: MemberId, is_sealed: bool, (version, backend): (u64, u32)) {
        self.version.store(BEING_SET, Ordering::SeqCst);
        self.backend.store(backend, Ordering::SeqCst);
        self.version.store(version, Ordering::SeqCst);
        let seal = if is_sealed { SEALED } else { 0 };
        let known = u64::from(owner.0) << 32 | seal;
        let set = |word: u64| Some(known | word & COUNT);
        // It sets whatever it finds, so it cannot fail.
        let _ = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, set);
    }

    /// Counts one more request, if this member owns the partition and has not sealed it.
    pub(crate) fn enter(&self, member: MemberId) -> bool {
        let enter = |word: u64| {
            let may = owner_of(word) == member && word & SEALED == 0 && word & COUNT < COUNT;
            may.then_some(word + 1)
        };
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).is_ok()
    }

    /// Counts one less; true if it was the last one of a sealed partition.
    pub(crate) fn leave(&self) -> bool {
        let before = self.word.fetch_sub(1, Ordering::SeqCst);
        before & SEALED != 0 && before & COUNT == 1
    }

    /// Whether no request of the partition is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.word.load(Ordering::SeqCst) & COUNT == 0
    }
}

fn owner_of(word: u64) -> MemberId {
    MemberId(u32::try_from(word >> 32).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_enters_a_sealed_partition_and_its_last_request_says_so() {
        let (cell, us, other) = (Cell::default(), MemberId(7), MemberId(u32::MAX));
        assert!(!cell.enter(us), "nobody owns it");
        cell.set(us, false, (1, 0));
        assert!(cell.enter(us) && cell.enter(us) && !cell.enter(other));
        cell.set(us, true, (1, 0));
        assert!(!cell.enter(us) && !cell.is_quiet());
        assert!(!cell.leave() && cell.leave(), "the last one says so");
        assert!(cell.is_quiet());
        cell.set(other, false, (2, 3));
        assert_eq!((cell.owner(), cell.enter(us), cell.enter(other)), (other, false, true));
        assert_eq!((cell.backend(), cell.place()), (3, Some((2, 3))));
        assert!(!cell.leave(), "nobody waits for it");
    }
}
