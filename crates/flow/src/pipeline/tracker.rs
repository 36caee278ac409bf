//! How far an iteration may be called done.
//!
//! Pages of keys are handed to several lanes and come back out of order. A cursor is safe to keep once every
//! key of its page, and of all pages before it, has been dealt with: copied and acknowledged, skipped, gone,
//! or reported.

use std::collections::VecDeque;
use std::pin::pin;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::scan::Position;

/// Which keys of a batch came from which page.
pub(super) type Origins = Vec<(u64, usize)>;

#[derive(Debug)]
struct Pending {
    left: usize,
    next: Option<Position>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The page number of the front of `pages`.
    first: u64,
    pages: VecDeque<Pending>,
    safe: Option<Position>,
}

/// The pages of one unit that are under way.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    inner: Mutex<Inner>,
    /// Notified when every page has been dealt with.
    settled: Notify,
}

impl Tracker {
    /// Notes a page of `keys` keys after which the iteration stands at `next`; returns its number.
    pub(crate) fn opened(&self, keys: usize, next: Option<Position>) -> u64 {
        let mut inner = self.inner.lock();
        inner.pages.push_back(Pending { left: keys, next });
        let page = inner.first + inner.pages.len() as u64 - 1;
        inner.settle();
        if inner.pages.is_empty() {
            self.settled.notify_waiters();
        }
        page
    }

    /// The iteration starts again: what was safe is safe no more.
    pub(crate) fn restarted(&self) {
        let mut inner = self.inner.lock();
        inner.safe = None;
        // Keys of older pages are still under way; their pages must not set the safe position any more.
        for page in &mut inner.pages {
            page.next = None;
        }
    }

    /// Notes keys that have been dealt with.
    pub(super) fn done(&self, origins: &Origins) {
        let mut inner = self.inner.lock();
        let first = inner.first;
        for (page, keys) in origins {
            let page = page.checked_sub(first).and_then(|i| usize::try_from(i).ok());
            if let Some(pending) = page.and_then(|i| inner.pages.get_mut(i)) {
                pending.left = pending.left.saturating_sub(*keys);
            }
        }
        inner.settle();
        if inner.pages.is_empty() {
            self.settled.notify_waiters();
        }
    }

    /// Waits until every key of every page has been dealt with.
    pub(super) async fn settled(&self) {
        loop {
            let mut settled = pin!(self.settled.notified());
            // Before the look, so that nothing is missed between the two.
            settled.as_mut().enable();
            if self.is_settled() {
                return;
            }
            settled.await;
        }
    }

    /// Whether every key of every page has been dealt with.
    pub(crate) fn is_settled(&self) -> bool {
        self.inner.lock().pages.is_empty()
    }

    /// Where a later run may go on: every key before it has been dealt with.
    pub(crate) fn safe(&self) -> Option<Position> {
        self.inner.lock().safe.clone()
    }
}

impl Inner {
    fn settle(&mut self) {
        while self.pages.front().is_some_and(|p| p.left == 0) {
            if let Some(page) = self.pages.pop_front() {
                self.first += 1;
                self.safe = page.next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn at(cursor: &'static str) -> Option<Position> {
        Some(Position { run_id: "r".to_owned(), cursor: Bytes::from_static(cursor.as_bytes()) })
    }

    #[test]
    fn a_cursor_is_safe_only_when_all_pages_before_it_are_done() {
        let tracker = Tracker::default();
        let a = tracker.opened(2, at("10"));
        let b = tracker.opened(1, at("20"));
        tracker.done(&vec![(b, 1)]);
        assert_eq!(tracker.safe(), None);
        tracker.done(&vec![(a, 1)]);
        assert_eq!(tracker.safe(), None);
        assert!(!tracker.is_settled());
        tracker.done(&vec![(a, 1)]);
        assert_eq!(tracker.safe(), at("20"));
        assert!(tracker.is_settled());
        let c = tracker.opened(0, at("30"));
        assert_eq!(c, 2);
        assert_eq!(tracker.safe(), at("30"));
    }

    #[test]
    fn a_restart_forgets_cursors_of_the_other_process() {
        let tracker = Tracker::default();
        let a = tracker.opened(1, at("10"));
        tracker.restarted();
        let b = tracker.opened(1, at("5"));
        tracker.done(&vec![(a, 1)]);
        assert_eq!(tracker.safe(), None);
        tracker.done(&vec![(b, 1)]);
        assert_eq!(tracker.safe(), at("5"));
    }
}
