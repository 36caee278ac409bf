//! Whether a request may be carried out here: what a connection to a cluster asks, and the fleet that this
//! front is a member of answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;
use tokio_util::sync::WaitForCancellationFutureOwned;
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Topology;
use whimbrel_engine::endpoint::Address;
use whimbrel_fleet::Guard;

/// Which front serves a slot.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// This front, for as long as the guard lives and its lease lasts.
    Ours(Guard),
    /// Another one, which clients reach there.
    At(Arc<str>),
    /// None right now.
    Nobody,
}

/// Knows which slots this front serves, and which fronts serve the others.
pub(crate) trait Admission: fmt::Debug + Send + Sync + 'static {
    /// Which front serves a slot. To be asked right before a request is sent, and the guard kept until it has
    /// been answered.
    fn verdict(&self, slot: Slot) -> Verdict;

    /// Whether this front owns the slot, as far as it knows.
    fn owns(&self, slot: Slot) -> bool;

    /// The number of the backend that has the data of a slot, as far as is known.
    fn backend_of(&self, slot: Slot) -> u32;

    /// The address at which clients reach this front.
    fn own(&self) -> &Address;

    /// Whether a member is reached there.
    fn knows(&self, address: &Address) -> bool;

    /// The fleet as a cluster whose primaries are the members.
    fn topology(&self) -> Topology;

    /// Whether clients must not see a key of this name: it is part of how data moves.
    fn is_hidden(&self, name: &[u8]) -> bool;

    /// Ends when the lease that runs now, or is about to, has ended.
    fn lapse(&self) -> WaitForCancellationFutureOwned;

    /// Changes when members have come or gone.
    fn news(&self) -> watch::Receiver<u64>;

    /// Changes when something may have to be let go.
    fn seals(&self) -> watch::Receiver<u64>;

    /// Requests that wait for something to happen.
    fn waits(&self) -> &Arc<Waits>;

    /// What waits on a connection is to be let go of. If there are too many, this one is let go of when it is
    /// asked for again.
    fn let_go(&self, address: Address, id: i64);
}

/// That of a front that is a member of no fleet. There is none.
#[derive(Debug)]
pub(crate) enum NoFleet {}

impl Admission for NoFleet {
    fn verdict(&self, _: Slot) -> Verdict {
        match *self {}
    }

    fn owns(&self, _: Slot) -> bool {
        match *self {}
    }

    fn backend_of(&self, _: Slot) -> u32 {
        match *self {}
    }

    fn own(&self) -> &Address {
        match *self {}
    }

    fn knows(&self, _: &Address) -> bool {
        match *self {}
    }

    fn topology(&self) -> Topology {
        match *self {}
    }

    fn is_hidden(&self, _: &[u8]) -> bool {
        match *self {}
    }

    fn lapse(&self) -> WaitForCancellationFutureOwned {
        match *self {}
    }

    fn news(&self) -> watch::Receiver<u64> {
        match *self {}
    }

    fn seals(&self) -> watch::Receiver<u64> {
        match *self {}
    }

    fn waits(&self) -> &Arc<Waits> {
        match *self {}
    }

    fn let_go(&self, _: Address, _: i64) {
        match *self {}
    }
}

/// How requests wait for something to happen: while data cannot move between backends they keep no slot.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// They keep their slots: set once, and never again otherwise.
    are_pinned: AtomicBool,
    /// Those that keep none.
    unpinned: AtomicUsize,
}

/// A request that waits for something to happen and keeps no slot.
#[derive(Debug)]
pub(crate) struct UnpinnedWait(Arc<Waits>);

impl Waits {
    /// Whether data may move between backends, so that requests that wait keep their slots.
    pub(crate) fn are_pinned(&self) -> bool {
        self.are_pinned.load(Ordering::SeqCst)
    }

    /// From now on requests that wait keep their slots. True the first time; earlier requests are to be ended
    /// then.
    pub(crate) fn pin(&self) -> bool {
        !self.are_pinned.swap(true, Ordering::SeqCst)
    }

    /// A request waits, and keeps no slot; `None` if it has to keep it.
    pub(crate) fn unpinned(self: &Arc<Self>) -> Option<UnpinnedWait> {
        // First counted, then checked: a task that sets the other value sees this, or is seen.
        self.unpinned.fetch_add(1, Ordering::SeqCst);
        let wait = UnpinnedWait(self.clone());
        (!self.are_pinned()).then_some(wait)
    }

    /// How many wait that keep no slot.
    pub(crate) fn count_unpinned(&self) -> usize {
        self.unpinned.load(Ordering::SeqCst)
    }
}

impl UnpinnedWait {
    /// Whether data may move between backends by now.
    pub(crate) fn has_to_end(&self) -> bool {
        self.0.are_pinned()
    }
}

impl Drop for UnpinnedWait {
    fn drop(&mut self) {
        self.0.unpinned.fetch_sub(1, Ordering::SeqCst);
    }
}
