//! From a reader to the writers: which writes which key, and when a batch of keys is dealt with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

use super::shared::Shared;
use super::tracker::{Origins, Tracker};
use crate::keys::KeyState;
use crate::memory::MemoryPermit;
use crate::progress::CopyProgress;

/// Which of `places` is a key's own.
pub(super) fn place_of(key: &[u8], places: usize) -> usize {
    usize::try_from(xxh3_64(key) % places.max(1) as u64).unwrap_or(0)
}

/// States on their way to a writer.
#[derive(Debug)]
pub(super) struct StateBatch {
    pub states: Vec<KeyState>,
    /// Keys that do not travel as one state: the writing half moves them with commands of their types.
    pub in_chunks: Vec<Bytes>,
    /// What this is a part of.
    pub batch: Arc<Batch>,
    pub _permit: Option<Arc<MemoryPermit>>,
}

/// A batch of keys, whose states go to writers in several parts.
#[derive(Debug)]
pub(super) struct Batch {
    tracker: Arc<Tracker>,
    origins: Origins,
    /// Parts that have not been written yet, and the reading of it.
    left: AtomicUsize,
}

impl Batch {
    /// A part of it has been dealt with. The pages that it came from are once all of it is.
    pub fn part_is_done(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tracker.done(&self.origins);
        }
    }
}

/// The writers of one shard and database, as a reader sees them.
#[derive(Debug)]
pub(super) struct Writers {
    writers: Vec<mpsc::Sender<StateBatch>>,
    tracker: Arc<Tracker>,
}

impl Writers {
    pub fn new(writers: Vec<mpsc::Sender<StateBatch>>, tracker: Arc<Tracker>) -> Writers {
        Writers { writers, tracker }
    }

    /// A batch of keys from these pages begins to be read. What is read of it is [sent](Writers::send) in
    /// parts, and at its end the reading [is done](Batch::part_is_done) as well.
    pub fn begin(&self, origins: Origins) -> Arc<Batch> {
        Arc::new(Batch { tracker: self.tracker.clone(), origins, left: AtomicUsize::new(1) })
    }

    /// Sends states, and keys that move in chunks, to their writers; false if one is gone.
    pub async fn send(
        &self,
        shared: &Shared,
        batch: &Arc<Batch>,
        states: Vec<KeyState>,
        in_chunks: Vec<Bytes>,
        permit: Option<MemoryPermit>,
    ) -> bool {
        let permit = permit.map(Arc::new);
        let mut parts: Vec<(Vec<KeyState>, Vec<Bytes>)> = Vec::new();
        parts.resize_with(self.writers.len(), Default::default);
        match &mut parts[..] {
            [all] => *all = (states, in_chunks),
            parts => {
                let places = parts.len();
                for state in states {
                    parts[place_of(&state.key, places)].0.push(state);
                }
                for key in in_chunks {
                    parts[place_of(&key, places)].1.push(key);
                }
            }
        }
        for (writer, (states, in_chunks)) in self.writers.iter().zip(parts) {
            if states.is_empty() && in_chunks.is_empty() {
                continue;
            }
            batch.left.fetch_add(1, Ordering::AcqRel);
            CopyProgress::shift(&shared.progress.waiting_to_write, 1);
            let part = StateBatch { states, in_chunks, batch: batch.clone(), _permit: permit.clone() };
            if writer.send(part).await.is_err() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_dealt_with_once_all_parts_of_a_batch_are() {
        let tracker = Arc::new(Tracker::default());
        let page = tracker.opened(3, None);
        let writers = Writers::new(Vec::new(), tracker.clone());
        let batch = writers.begin(vec![(page, 3)]);
        batch.left.fetch_add(2, Ordering::AcqRel);
        batch.part_is_done();
        batch.part_is_done();
        assert!(!tracker.is_settled(), "one part is under way");
        batch.part_is_done();
        assert!(tracker.is_settled());
    }
}
