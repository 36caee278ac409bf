//! Which keys are being read at the source, and which are being moved.
//!
//! A lock is held by any number of readers, or by one move. Readers only ever *try*: if a move wants the key,
//! they wait for the move like all others, so readers cannot keep a move away for ever. A move that is wanted
//! while readers hold the key begins when the last of them lets go. While a large key is only copied, readers
//! may come and go as before: nothing of the source's changes. They are [shut out](Locks::shut_out) before it
//! is removed there. Nothing waits while it holds a lock, so there is no deadlock.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// Parts of the table, each with a mutex of its own, so that cores seldom meet.
const PARTS: usize = 64;

/// Reads take hardly longer.
const POLL_PERIOD: Duration = Duration::from_millis(1);

/// What came of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// The key has come home: the target has it now, or no server.
    Arrived,
    /// It was home before.
    Earlier,
    /// It is where it was; the text says why.
    Refused(Arc<str>),
}

/// Where the background is notified of what came of the moves that it wants, each with its key.
pub type MovedSender = mpsc::UnboundedSender<(Bytes, Moved)>;

/// What waits for a move.
#[derive(Debug)]
enum Waiter {
    Command(oneshot::Sender<Moved>),
    /// The background waits for many at a time.
    Background(MovedSender),
}

impl Waiter {
    fn notify(self, key: &Bytes, moved: &Moved) {
        // A waiter that has lost patience is gone.
        let _ = match self {
            Waiter::Command(sender) => sender.send(moved.clone()).is_ok(),
            Waiter::Background(sender) => sender.send((key.clone(), moved.clone())).is_ok(),
        };
    }
}

/// The locks of all keys that are being read at the source or moved.
#[derive(Debug)]
pub struct Locks {
    parts: Box<[Mutex<HashMap<Bytes, Lock>>]>,
    hasher: RandomState,
    /// Reads at the source that are under way.
    reads: AtomicUsize,
    /// No new ones are let in.
    closed: AtomicBool,
    /// The queue for keys whose move may begin.
    ready: mpsc::UnboundedSender<Bytes>,
}

#[derive(Debug, Default)]
struct Lock {
    readers: usize,
    /// The waiters for the move, once one is wanted.
    wanted: Option<Vec<Waiter>>,
    stage: Stage,
}

/// How far a move is.
#[derive(Debug, Default)]
enum Stage {
    /// It has not begun.
    #[default]
    Free,
    /// The key is the mover's alone.
    Moving,
    /// It is copied, and readers may hold it.
    Copying,
    /// It has been copied. The last reader notifies the mover that it has gone.
    Emptying(oneshot::Sender<()>),
}

/// A reader's hold on a key, until it is dropped.
#[derive(Debug)]
pub struct Shared {
    visit: Visit,
    key: Bytes,
}

/// A read at the source that is under way, until it is dropped.
#[derive(Debug)]
pub struct Visit(Arc<Locks>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.reads.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Readers are not let in, until this is dropped.
#[derive(Debug)]
pub struct Closed<'a>(&'a Locks);

impl Closed<'_> {
    /// Waits until no read is under way.
    pub async fn emptied(&self) {
        while self.0.reads.load(Ordering::SeqCst) > 0 {
            sleep(POLL_PERIOD).await;
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::SeqCst);
    }
}

impl Locks {
    /// No key is locked. Keys whose move may begin are sent to `ready`; the mover of one calls
    /// [`Locks::finish`] afterwards.
    pub fn new(ready: mpsc::UnboundedSender<Bytes>) -> Arc<Locks> {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        let (reads, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Locks { parts, hasher: RandomState::new(), reads, closed, ready })
    }

    /// Lets no new readers in, of whatever key, until what this returns is dropped.
    pub fn close(&self) -> Closed<'_> {
        self.closed.store(true, Ordering::SeqCst);
        Closed(self)
    }

    /// For a read at the source of no key in particular; `None` if readers are not let in.
    pub fn visit(self: &Arc<Locks>) -> Option<Visit> {
        // Counted before it is asked, as the closing task asks for the count afterwards: one of the two
        // notices the other.
        self.reads.fetch_add(1, Ordering::SeqCst);
        let visit = Visit(self.clone());
        (!self.closed.load(Ordering::SeqCst)).then_some(visit)
    }

    /// A reader's hold; `None` if a move wants the key, unless that only copies it, or readers are not let
    /// in.
    pub fn try_share(self: &Arc<Locks>, key: &Bytes) -> Option<Shared> {
        let visit = self.visit()?;
        let mut part = self.part(key);
        let lock = part.entry(key.clone()).or_default();
        if lock.wanted.is_some() && !matches!(lock.stage, Stage::Copying) {
            return None;
        }
        lock.readers += 1;
        Some(Shared { visit, key: key.clone() })
    }

    /// Wants a key moved, and returns where what came of it is reported. Many can want the same move.
    pub fn want(&self, key: &Bytes) -> oneshot::Receiver<Moved> {
        let (sender, receiver) = oneshot::channel();
        if self.is_begun_by(key, Waiter::Command(sender)) {
            self.begin(key);
        }
        receiver
    }

    /// Wants a key moved, for the background. True if nothing holds it and nothing wanted it before: then the
    /// caller is its mover.
    pub fn take(&self, key: &Bytes, sender: &MovedSender) -> bool {
        self.is_begun_by(key, Waiter::Background(sender.clone()))
    }

    /// Adds to the waiters for a key's move; true if its move begins with this.
    fn is_begun_by(&self, key: &Bytes, waiter: Waiter) -> bool {
        let mut part = self.part(key);
        let lock = part.entry(key.clone()).or_default();
        if let Some(waiters) = &mut lock.wanted {
            waiters.push(waiter);
            return false;
        }
        lock.wanted = Some(vec![waiter]);
        if lock.readers > 0 {
            return false;
        }
        lock.stage = Stage::Moving;
        true
    }

    /// Calls `with` for each key that a move is wanted of, or under way.
    pub fn for_each_wanted(&self, mut with: impl FnMut(&[u8])) {
        for part in &self.parts {
            let part = part.lock();
            part.iter().filter(|(_, lock)| lock.wanted.is_some()).for_each(|(key, _)| with(key));
        }
    }

    /// The mover of a key only copies it from here on: readers may hold it again.
    pub fn let_in(&self, key: &Bytes) {
        if let Some(lock) = self.part(key).get_mut(key) {
            lock.stage = Stage::Copying;
        }
    }

    /// Waits until no reader holds a key that is moved; none comes any more.
    pub async fn shut_out(&self, key: &Bytes) {
        let emptied = {
            let mut part = self.part(key);
            let Some(lock) = part.get_mut(key) else { return };
            if lock.readers == 0 {
                lock.stage = Stage::Moving;
                return;
            }
            let (sender, receiver) = oneshot::channel();
            lock.stage = Stage::Emptying(sender);
            receiver
        };
        // The sender is in the lock, which stays for as long as the move.
        let _ = emptied.await;
    }

    /// Ends the move of a key, which no reader holds: lets go of it, and notifies the waiters. What they will
    /// look at must have been changed before.
    pub fn finish(&self, key: &Bytes, moved: &Moved) {
        let lock = self.part(key).remove(key);
        for waiter in lock.and_then(|lock| lock.wanted).unwrap_or_default() {
            waiter.notify(key, moved);
        }
    }

    fn begin(&self, key: &Bytes) {
        // No worker moves keys any more when the front ends.
        let _ = self.ready.send(key.clone());
    }

    fn part(&self, key: &Bytes) -> MutexGuard<'_, HashMap<Bytes, Lock>> {
        let part = self.hasher.hash_one(key) as usize % PARTS;
        self.parts[part].lock()
    }
}

impl Shared {
    /// Whether a move waits for this reader.
    pub fn is_wanted(&self) -> bool {
        self.visit
            .0
            .part(&self.key)
            .get(&self.key)
            .is_some_and(|lock| lock.wanted.is_some() && !matches!(lock.stage, Stage::Copying))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let locks = &self.visit.0;
        let mut part = locks.part(&self.key);
        let Entry::Occupied(mut entry) = part.entry(self.key.clone()) else { return };
        let lock = entry.get_mut();
        lock.readers -= 1;
        if lock.readers > 0 {
            return;
        }
        match std::mem::take(&mut lock.stage) {
            Stage::Free if lock.wanted.is_none() => {
                entry.remove();
            }
            Stage::Free => {
                lock.stage = Stage::Moving;
                locks.begin(&self.key);
            }
            Stage::Emptying(sender) => {
                lock.stage = Stage::Moving;
                // A mover that has ended with the front does not listen.
                let _ = sender.send(());
            }
            other => lock.stage = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks() -> (Arc<Locks>, mpsc::UnboundedReceiver<Bytes>) {
        let (ready, begun) = mpsc::unbounded_channel();
        (Locks::new(ready), begun)
    }

    const K: Bytes = Bytes::from_static(b"k");

    #[test]
    fn a_move_waits_for_readers_and_keeps_new_ones_away() {
        let (locks, mut begun) = locks();
        let readers = [locks.try_share(&K).expect("free"), locks.try_share(&K).expect("shared")];
        assert!(!readers[0].is_wanted());
        let mut outcome = locks.want(&K);
        assert!(readers[0].is_wanted());
        assert!(locks.try_share(&K).is_none(), "a reader came before a move that waits");
        assert!(begun.try_recv().is_err(), "it began while the key was read");
        let [first, second] = readers;
        drop(first);
        assert!(begun.try_recv().is_err(), "it began while the key was read");
        drop(second);
        assert_eq!(begun.try_recv().expect("it begins"), K);
        assert!(locks.try_share(&K).is_none(), "the key was read while it moved");
        assert!(outcome.try_recv().is_err());
        locks.finish(&K, &Moved::Arrived);
        assert_eq!(outcome.try_recv().expect("reported"), Moved::Arrived);
        assert!(locks.try_share(&K).is_some());
    }

    #[test]
    fn a_key_is_moved_once_for_all_who_want_it() {
        let (locks, mut begun) = locks();
        let mut outcomes: Vec<_> = (0..3).map(|_| locks.want(&K)).collect();
        drop(outcomes.pop());
        assert_eq!(begun.try_recv().expect("it begins"), K);
        assert!(begun.try_recv().is_err(), "it began twice");
        let refused = Moved::Refused("no room".into());
        locks.finish(&K, &refused);
        assert!(outcomes.iter_mut().all(|outcome| outcome.try_recv() == Ok(refused.clone())));
        let _outcome = locks.want(&K);
        assert_eq!(begun.try_recv().expect("it can be wanted again"), K);
    }

    #[test]
    fn the_background_moves_what_it_takes_and_hears_of_all_that_it_wants() {
        let (locks, mut begun) = locks();
        let (sender, mut outcomes) = mpsc::unbounded_channel();
        assert!(locks.take(&K, &sender), "nobody held it");
        assert!(locks.try_share(&K).is_none() && !locks.take(&K, &sender), "it was taken twice");
        let mut client = locks.want(&K);
        assert!(begun.try_recv().is_err(), "it has a mover");
        locks.finish(&K, &Moved::Arrived);
        assert_eq!(client.try_recv().expect("reported"), Moved::Arrived);
        assert!((0..2).all(|_| outcomes.try_recv() == Ok((K, Moved::Arrived))), "not notified each time");
        let reader = locks.try_share(&K).expect("free");
        assert!(!locks.take(&K, &sender), "it was taken from a reader");
        drop(reader);
        assert_eq!(begun.try_recv().expect("it begins after the reader"), K);
        locks.finish(&K, &Moved::Earlier);
        assert_eq!(outcomes.try_recv(), Ok((K, Moved::Earlier)));
    }

    #[tokio::test]
    async fn readers_come_and_go_while_a_key_is_copied_and_are_out_before_it_is_removed() {
        let (locks, mut begun) = locks();
        let mut outcome = locks.want(&K);
        assert_eq!(begun.try_recv().expect("it begins"), K);
        locks.let_in(&K);
        drop(locks.try_share(&K).expect("it is only copied"));
        let readers = [locks.try_share(&K).expect("again"), locks.try_share(&K).expect("shared")];
        assert!(!readers[0].is_wanted(), "a reader was in nobody's way");
        let out = tokio::spawn({
            let locks = locks.clone();
            async move { locks.shut_out(&K).await }
        });
        while !readers[0].is_wanted() {
            tokio::task::yield_now().await;
        }
        assert!(locks.try_share(&K).is_none(), "a reader came when it was to be removed");
        let [first, second] = readers;
        drop(first);
        tokio::task::yield_now().await;
        assert!(!out.is_finished(), "it was removed while it was read");
        drop(second);
        out.await.expect("all are out");
        assert!(locks.try_share(&K).is_none());
        locks.shut_out(&K).await;
        assert!(begun.try_recv().is_err(), "it began twice");
        locks.finish(&K, &Moved::Arrived);
        assert_eq!(outcome.try_recv().expect("reported"), Moved::Arrived);
        assert!(locks.parts.iter().all(|part| part.lock().is_empty()));
    }

    #[tokio::test]
    async fn while_it_is_closed_nobody_reads() {
        let (locks, _begun) = locks();
        let reader = locks.try_share(&K).expect("free");
        let closed = locks.close();
        assert!(locks.try_share(&K).is_none() && locks.visit().is_none());
        assert!(tokio::time::timeout(POLL_PERIOD * 5, closed.emptied()).await.is_err(), "it is still read");
        drop(reader);
        closed.emptied().await;
        drop(closed);
        assert!(locks.try_share(&K).is_some() && locks.visit().is_some());
    }

    #[test]
    fn nothing_is_left_of_locks_that_are_free() {
        let (locks, mut begun) = locks();
        drop(locks.try_share(&K));
        let _outcome = locks.want(&K);
        assert!(locks.try_share(&K).is_none());
        locks.finish(&begun.try_recv().expect("it begins"), &Moved::Arrived);
        assert!(locks.parts.iter().all(|part| part.lock().is_empty()));
    }
}
