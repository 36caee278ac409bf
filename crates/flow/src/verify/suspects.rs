//! Keys that looked different, waiting to be looked at again.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};

/// How many keys may wait. If there are more, finding further ones has to wait.
const SUSPECTS_MAX: usize = 16 << 10;

/// A key that looked different, and how it looked.
#[derive(Debug)]
pub(super) struct Suspect {
    pub key: Bytes,
    /// A digest of what was read from the source.
    pub source_state: u64,
    /// A digest of what was read from the target.
    pub target_state: u64,
    /// How often it was looked at again.
    pub round: u32,
    /// For how many rounds in a row both sides have looked the same.
    pub unchanged: u32,
}

/// The waiting keys, by when they are due. Bounded: [`Suspects::add`] waits for room.
#[derive(Debug)]
pub(super) struct Suspects {
    inner: Mutex<Inner>,
    changed: Notify,
    room: Semaphore,
}

#[derive(Debug)]
struct Inner {
    waiting: BTreeMap<(Instant, u64), Suspect>,
    next_id: u64,
    /// How many tasks may still add keys.
    producers: usize,
}

impl Suspects {
    /// An empty queue that closes after `producers` calls of [`Suspects::producer_done`].
    pub fn new(producers: usize) -> Suspects {
        let inner = Inner { waiting: BTreeMap::new(), next_id: 0, producers };
        Suspects { inner: Mutex::new(inner), changed: Notify::new(), room: Semaphore::new(SUSPECTS_MAX) }
    }

    /// Adds a key, once there is room.
    pub async fn add(&self, suspect: Suspect, due: Instant) {
        // The semaphore is never closed.
        if let Ok(permit) = self.room.acquire().await {
            permit.forget();
        }
        self.again(suspect, due);
    }

    /// Puts back a key that was taken. It still has its room.
    pub fn again(&self, suspect: Suspect, due: Instant) {
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.waiting.insert((due, id), suspect);
        drop(inner);
        self.changed.notify_waiters();
    }

    /// A key that was taken is settled: makes room.
    pub fn settled(&self) {
        self.room.add_permits(1);
    }

    /// One producer will add nothing more.
    pub fn producer_done(&self) {
        self.lock().producers -= 1;
        self.changed.notify_waiters();
    }

    /// Takes up to `max` keys that are due, waiting for the first. `None` when all producers are done and
    /// nothing is left; what others have taken and put back is theirs to take.
    pub async fn take(&self, max: usize) -> Option<Vec<Suspect>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            let next = {
                let mut inner = self.lock();
                let now = Instant::now();
                let mut taken = Vec::new();
                while taken.len() < max {
                    match inner.waiting.first_entry() {
                        Some(entry) if entry.key().0 <= now => taken.push(entry.remove()),
                        _ => break,
                    }
                }
                if !taken.is_empty() {
                    return Some(taken);
                }
                if inner.waiting.is_empty() && inner.producers == 0 {
                    return None;
                }
                inner.waiting.first_key_value().map(|((due, _), _)| *due)
            };
            match next {
                Some(due) => tokio::select! { () = sleep_until(due) => {}, () = changed => {} },
                None => changed.await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn suspect(name: &'static str) -> Suspect {
        let key = Bytes::from_static(name.as_bytes());
        Suspect { key, source_state: 0, target_state: 0, round: 0, unchanged: 0 }
    }

    #[tokio::test]
    async fn keys_come_when_due_and_the_queue_ends() {
        let suspects = Suspects::new(1);
        let now = Instant::now();
        // Not so soon that both are due when a busy machine comes to look.
        let later = Duration::from_secs(4);
        suspects.add(suspect("late"), now + later).await;
        suspects.add(suspect("early"), now).await;
        let first = suspects.take(10).await.expect("one is due");
        assert_eq!(first.iter().map(|s| &s.key[..]).collect::<Vec<_>>(), [b"early"]);
        suspects.producer_done();
        let second = suspects.take(10).await.expect("one is left");
        assert_eq!(&second[0].key[..], b"late");
        assert!(Instant::now() >= now + later);
        assert!(suspects.take(10).await.is_none());
    }

    #[tokio::test]
    async fn a_full_queue_waits_for_room() {
        let suspects = Suspects::new(1);
        let now = Instant::now();
        for _ in 0..SUSPECTS_MAX {
            suspects.add(suspect("k"), now).await;
        }
        let add = suspects.add(suspect("one more"), now);
        tokio::pin!(add);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut add).await.is_err());
        suspects.settled();
        add.await;
    }
}
