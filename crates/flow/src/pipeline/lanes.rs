//! The lanes of one shard and database.
//!
//! **Invariant: one lane per key.** All reads and writes of a key go through the same lane in order. A lane
//! has a reader and a writer. If there are more of one than of the other, the hash of a key says which reader
//! and which writer are its own, and the queue between the two keeps the order.

use std::sync::Arc;

use super::reader::{KeyBatch, Reader};
use super::shared::Shared;
use super::tracker::{Origins, Tracker};
use super::writer::Writer;
use super::writers::{Writers, place_of};
use crate::lane_counts::LaneCounts;
use crate::progress::CopyProgress;
use crate::scan::Unit;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_engine::error::{Error, Result};

/// Keys collected for a lane before they are handed over.
const BATCH_KEYS: usize = 512;

/// Batches that may wait between two stages of a lane.
const QUEUE_BATCHES: usize = 2;

struct Lane {
    to_reader: mpsc::Sender<KeyBatch>,
    keys: Vec<Bytes>,
    origins: Origins,
}

impl Lane {
    /// False if the lane has ended because of an error.
    async fn flush(&mut self, progress: &CopyProgress) -> bool {
        if self.origins.is_empty() {
            return true;
        }
        let next = Vec::with_capacity(self.keys.len());
        let batch = KeyBatch {
            keys: std::mem::replace(&mut self.keys, next),
            origins: std::mem::take(&mut self.origins),
        };
        CopyProgress::shift(&progress.waiting_to_read, 1);
        self.to_reader.send(batch).await.is_ok()
    }
}

/// Lanes at work. Their tasks end when this is dropped.
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    unit: Unit,
    target_db: u32,
    average_bytes: u64,
    tracker: Arc<Tracker>,
    /// How many there are.
    counts: LaneCounts,
    lanes: Vec<Lane>,
    tasks: JoinSet<Result<()>>,
}

impl Lanes {
    pub(crate) fn open(
        shared: &Arc<Shared>,
        unit: &Unit,
        target_db: u32,
        average_bytes: u64,
        tracker: Arc<Tracker>,
    ) -> Lanes {
        let counts = wanted(shared);
        let (shared, unit) = (shared.clone(), unit.clone());
        let (lanes, tasks) = (Vec::new(), JoinSet::new());
        let mut all = Lanes { shared, unit, target_db, average_bytes, tracker, counts, lanes, tasks };
        all.begin();
        all
    }

    /// Begins as many lanes as there are to be.
    fn begin(&mut self) {
        let (shared, unit, tasks) = (&self.shared, &self.unit, &mut self.tasks);
        let writer = |_| {
            let (state_tx, state_rx) = mpsc::channel(QUEUE_BATCHES);
            tasks.spawn(Writer::new(shared.clone(), unit.clone(), self.target_db).run(state_rx));
            state_tx
        };
        let writers: Vec<_> = (0..self.counts.write.max(1)).map(writer).collect();
        let lane = |_| {
            let (key_tx, key_rx) = mpsc::channel(QUEUE_BATCHES);
            let reader = Reader::new(shared.clone(), unit.clone(), self.average_bytes);
            tasks.spawn(reader.run(key_rx, Writers::new(writers.clone(), self.tracker.clone())));
            Lane { to_reader: key_tx, keys: Vec::new(), origins: Vec::new() }
        };
        self.lanes = (0..self.counts.read.max(1)).map(lane).collect();
    }

    /// Has as many lanes as the user wants by now. The earlier ones finish what they have first, so no key is
    /// in two lanes at once.
    async fn adapt(&mut self) -> Result<()> {
        let wanted = wanted(&self.shared);
        if wanted == self.counts {
            return Ok(());
        }
        self.flush().await?;
        self.finish().await?;
        self.counts = wanted;
        self.begin();
        Ok(())
    }

    /// Puts a key of a page into the batch of its lane; which lane that is, if the batch is full and has to
    /// be [handed over](Lanes::hand_over) before the next key. Nothing waits here, since it is done for each
    /// key.
    #[must_use]
    pub(crate) fn put(&mut self, key: Bytes, page: u64) -> Option<usize> {
        let index = place_of(&key, self.lanes.len());
        let lane = &mut self.lanes[index];
        lane.keys.push(key);
        match lane.origins.last_mut() {
            Some((last, keys)) if *last == page => *keys += 1,
            _ => lane.origins.push((page, 1)),
        }
        (lane.keys.len() >= BATCH_KEYS).then_some(index)
    }

    /// Hands over the batch of a lane.
    ///
    /// # Errors
    /// `Own` if the lane has ended; [`Lanes::close`] has the reason.
    pub(crate) async fn hand_over(&mut self, lane: usize) -> Result<()> {
        if !self.lanes[lane].flush(&self.shared.progress).await {
            return Err(ended());
        }
        self.adapt().await
    }

    /// Hands over what waits to become a batch.
    ///
    /// # Errors
    /// As [`Lanes::hand_over`].
    pub(crate) async fn flush(&mut self) -> Result<()> {
        let mut alive = true;
        for lane in &mut self.lanes {
            alive &= lane.flush(&self.shared.progress).await;
        }
        if alive { Ok(()) } else { Err(ended()) }
    }

    /// Waits until the lanes have finished what they have, which they do once nothing can come any more.
    ///
    /// # Errors
    /// What made a lane end early.
    pub(crate) async fn close(mut self) -> Result<()> {
        self.finish().await
    }

    async fn finish(&mut self) -> Result<()> {
        self.lanes.clear();
        let mut failure = None;
        while let Some(joined) = self.tasks.join_next().await {
            match joined {
                Ok(Ok(())) => {}
                Ok(Err(e)) => failure = failure.or(Some(e)),
                Err(e) => failure = failure.or(Some(Error::own("copy keys", e))),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Transfers keys, each of them once, and waits until all are dealt with; false if the job was stopped
    /// before.
    ///
    /// # Errors
    /// What could not be helped by trying again. The lanes are of no use then.
    pub(crate) async fn transfer(&mut self, keys: Vec<Bytes>) -> Result<bool> {
        if let Err(error) = self.adapt().await {
            return self.failure(error).await;
        }
        let page = self.tracker.opened(keys.len(), None);
        for key in keys {
            if let Some(full) = self.put(key, page)
                && let Err(error) = self.hand_over(full).await
            {
                return self.failure(error).await;
            }
        }
        if let Err(error) = self.flush().await {
            return self.failure(error).await;
        }
        let (tracker, stop) = (self.tracker.clone(), self.shared.stop.clone());
        tokio::select! {
            biased;
            () = tracker.settled() => Ok(true),
            () = stop.cancelled() => Ok(false),
            failed = self.failure(ended()) => failed,
        }
    }

    /// Why a lane has ended; `error` if no lane says so itself.
    async fn failure(&mut self, error: Error) -> Result<bool> {
        loop {
            match self.tasks.join_next().await {
                // The other half of the lane that has failed.
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(e))) => return Err(e),
                Some(Err(e)) => return Err(Error::own("transfer keys", e)),
                None => return Err(error),
            }
        }
    }
}

/// How many lanes there are to be by now.
fn wanted(shared: &Shared) -> LaneCounts {
    shared.limits.rates.lanes(shared.options.lanes)
}

/// Never seen by a user: the lane's own error is what is reported.
fn ended() -> Error {
    Error::own("hand keys to a lane", "the lane has ended")
}
