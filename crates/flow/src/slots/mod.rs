//! Moves the keys of slots from one primary of a cluster to another, while clients write.
//!
//! ```text
//!  feed of the source ──▶ touched keys ──┐ catch-up
//!                                        ▼
//!  GETKEYSINSLOT ──▶ lane (slot mod lanes): read from the source ──▶ ASKING, write to the target
//! ```
//!
//! The target has the slots marked as importing, so it takes writes after `ASKING`, and shows them to no
//! other client. The feed is attached, and records the slots, before the first key is listed. So what a read
//! misses is touched, and what is touched is transferred again: a transfer moves the state of a key as it is
//! now, and may be repeated at will.
//!
//! **Invariant: one lane per slot.** A slot's keys are read and written by one lane, in order.
//!
//! **Bounds.** A lane holds two groups of at most 2 MiB, or one chunk of a large key with its copies. Keys
//! that moved in chunks are remembered by name, [`FOLLOWED_MAX`] of them.

mod compare;
mod lane;
mod options;
mod shared;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::feed::Touched;
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::{Capabilities, ServerFacts};
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::slot_keys::all_names;

pub use self::compare::{Comparison, count_keys, has_other_databases};
use self::lane::{Lane, Work};
pub use self::options::{SlotOptions, SlotProgress, TargetGate, TargetGateGuard};
pub use self::shared::FOLLOWED_MAX;
use self::shared::{Batch, Change, Changing, Node, Shared};
use crate::lane_counts::LaneCounts;
use crate::memory::BigTransfers;

/// Touched keys that one round of the catch-up takes.
const ROUND_KEYS_MAX: usize = 32 << 10;

/// Touched keys that one run of a lane takes.
const RUN_KEYS_MAX: usize = 1 << 10;

/// Keys that a full comparison remembers as touched since, before it gives up remembering.
const RECHECK_KEYS_MAX: usize = 100_000;

/// How many times a key may change while it is read before it counts as [`UnstableKey`].
const CHANGED_READS_MAX: u32 = 2;

/// A key that changes every time it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnstableKey {
    /// Its name, for people.
    pub key: String,
    /// Its type.
    pub kind: String,
    /// How long the shorter one of its last two reads took, in milliseconds: about as long as it takes under
    /// a pause.
    pub read_ms: u64,
}

/// What one round of the catch-up did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    /// Touched keys that were transferred.
    pub moved: u64,
    /// How long it took.
    pub took: Duration,
}

/// How much of a batch is compared before it is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The number of keys of each slot.
    Counts,
    /// That, and the values of a sample of keys.
    Sample,
    /// That, and every value.
    Full,
}

/// Two connections to each of both sides, source first.
type Pairs = ((Link, Link), (Link, Link));

/// How many lanes there are if a node takes fewer than were asked for.
#[derive(Debug, Clone, Copy)]
struct FewerLanes {
    asked: usize,
    lanes: usize,
}

/// Moves the slots of one source to one target, batch by batch.
pub struct SlotMover {
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    fewer: Option<FewerLanes>,
    /// With a full comparison: keys that were touched since they were compared. `None` before that
    /// comparison; a `None` inside if there were too many to remember.
    recheck: Option<Option<HashSet<Bytes>>>,
    /// What the next comparison reads through, opened before the pause.
    ready: Option<Pairs>,
}

impl SlotMover {
    /// Asks both nodes what they are and can do. No lane is open yet.
    ///
    /// # Errors
    /// Whatever a link or a server reports.
    pub async fn open(
        deployment: Arc<Deployment>,
        source: &Address,
        target: &Address,
        options: SlotOptions,
        progress: Arc<SlotProgress>,
        stop: CancellationToken,
    ) -> Result<SlotMover> {
        let (source, target) =
            tokio::join!(node(&deployment, Side::Source, source), node(&deployment, Side::Target, target),);
        let chunk_bytes = options.chunk_bytes as u64;
        let shared = Shared {
            deployment,
            source: source?,
            target: target?,
            big_transfers: BigTransfers::new(options.memory_bytes, chunk_bytes),
            options,
            progress,
            stop,
            is_draining: AtomicBool::new(false),
            remember_streams: AtomicBool::new(false),
            batch: Mutex::default(),
        };
        shared.options.rates.steer_lanes();
        Ok(SlotMover { shared: Arc::new(shared), lanes: Vec::new(), fewer: None, recheck: None, ready: None })
    }

    /// Opens as many lanes as there are to be, and returns their number. That changes only between two runs,
    /// since each waits for all lanes, and not while writers wait. If a node takes no more connections, half
    /// of those that it took suffice: there is more to connect for than lanes.
    ///
    /// # Errors
    /// Whatever a link or a server reports, if no lane is open.
    async fn open_lanes(&mut self) -> Result<usize> {
        let options = &self.shared.options;
        let asked = options.rates.lanes(LaneCounts::of(options.lanes)).read.max(1);
        let wanted = self.fewer.filter(|it| it.asked == asked).map_or(asked, |it| it.lanes);
        if self.lanes.is_empty() || !self.shared.is_draining() {
            while self.lanes.len() < wanted {
                if self.lanes.is_empty() {
                    self.lanes.push(Lane::open(&self.shared).await?);
                    continue;
                }
                match Lane::open_another(&self.shared).await {
                    Ok(lane) => self.lanes.push(lane),
                    Err(error) => {
                        let lanes = self.lanes.len().div_ceil(2);
                        tracing::warn!(%error, lanes, asked, "no more lanes can be opened");
                        self.fewer = Some(FewerLanes { asked, lanes });
                        self.lanes.truncate(lanes);
                        return Ok(lanes);
                    }
                }
            }
            self.lanes.truncate(wanted);
        }
        Ok(self.lanes.len())
    }

    /// Forgets what was remembered for the batch before. With `remember_streams` all streams move once more
    /// under the pause, since the feed does not see changes of their consumer groups.
    pub fn begin_batch(&mut self, remember_streams: bool) {
        self.shared.remember_streams.store(remember_streams, Ordering::Relaxed);
        *self.shared.batch() = Batch::default();
        self.recheck = None;
    }

    /// Transfers every key of `slots`, given with how many each has. The feed must be recording them already.
    ///
    /// # Errors
    /// Whatever a link or a server reports; nothing is tried again here.
    pub fn snapshot<'a>(&'a mut self, slots: &'a [(Slot, u64)]) -> BoxFuture<'a, Result<()>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            if let Some((slot, _)) = slots.first() {
                self.probe_payloads(*slot).await?;
            }
            let lanes = self.open_lanes().await?;
            let mut work: Vec<Vec<(Slot, u64)>> = vec![Vec::new(); lanes];
            for &(slot, count) in slots {
                work[usize::from(slot.number()) % lanes].push((slot, count));
            }
            self.run(work.into_iter().map(|slots| vec![Work::Slots(slots)]).collect()).await
        })
    }

    async fn probe_payloads(&self, importing: Slot) -> Result<()> {
        let target = &self.shared.target;
        if target.payloads.get().is_none() {
            let mut link = self.shared.open_target().await?;
            let key = format!("whimbrel:probe:{{{}}}", tag_for_slot(importing));
            let mut capabilities = target.capabilities;
            capabilities.probe_payload_version(&mut link, key.as_bytes(), true).await?;
            // The second one has found the same.
            let _ = target.payloads.set(capabilities.payload_version_max);
        }
        Ok(())
    }

    /// Transfers what is touched now, up to a bound.
    ///
    /// # Errors
    /// As [`SlotMover::snapshot`]. What was taken from `touched` is lost then: the batch has to begin again.
    pub fn catch_up<'a>(&'a mut self, touched: &'a Touched) -> BoxFuture<'a, Result<Round>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let started = Instant::now();
            let whole_slots = touched.take_slots();
            if !whole_slots.is_empty() {
                let mut link = self.shared.deployment.open(&self.shared.source.address, 0).await?;
                let mut at_target = self.shared.open_target().await?;
                self.transfer_slots(&mut link, &mut at_target, &whole_slots).await?;
                if let Some(recheck) = &mut self.recheck {
                    *recheck = None;
                }
            }
            let lanes = self.open_lanes().await?;
            let mut work: Vec<Vec<Work>> = Vec::new();
            work.resize_with(lanes, Vec::new);
            let mut moved = 0;
            let again: Vec<Bytes> = self.shared.batch().again.keys().cloned().collect();
            let again = again.into_iter().map(Change::whole);
            let touches = touched.take(ROUND_KEYS_MAX);
            let mut parts: Vec<Vec<Change>> = Vec::new();
            parts.resize_with(lanes, Vec::new);
            for change in again.chain(touches.into_iter().map(Change::from)) {
                moved += 1;
                if let Some(Some(recheck)) = &mut self.recheck {
                    recheck.insert(change.key.clone());
                    if recheck.len() > RECHECK_KEYS_MAX {
                        self.recheck = Some(None);
                    }
                }
                let lane = usize::from(Slot::of_key(&change.key).number()) % lanes;
                parts[lane].push(change);
                if parts[lane].len() >= RUN_KEYS_MAX {
                    work[lane].push(Work::Touches(std::mem::take(&mut parts[lane])));
                }
            }
            for (lane, part) in parts.into_iter().enumerate() {
                if !part.is_empty() {
                    work[lane].push(Work::Touches(part));
                }
            }
            if moved > 0 {
                self.run(work).await?;
            }
            Ok(Round { moved: moved + whole_slots.len() as u64, took: started.elapsed() })
        })
    }

    /// The feed could not remember every key of these slots: they are transferred once more as a whole, and
    /// what is on the target only is removed.
    async fn transfer_slots(&mut self, source: &mut Link, target: &mut Link, slots: &SlotSet) -> Result<()> {
        let (ours, theirs) = tokio::join!(count_keys(source, slots), count_keys(target, slots));
        let mut staged = Vec::new();
        for (slot, count) in theirs? {
            if count == 0 {
                continue;
            }
            staged.extend(all_names(target, &[(slot, count)]).await?);
        }
        self.snapshot(&ours?).await?;
        self.transfer_changes(staged.into_iter().map(Change::whole).collect()).await
    }

    /// Each in the lane of its slot.
    async fn transfer_changes(&mut self, changes: Vec<Change>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let lanes = self.open_lanes().await?;
        let mut work: Vec<Vec<Change>> = Vec::new();
        work.resize_with(lanes, Vec::new);
        for change in changes {
            work[usize::from(Slot::of_key(&change.key).number()) % lanes].push(change);
        }
        self.run(work.into_iter().map(|changes| vec![Work::Touches(changes)]).collect()).await
    }

    /// A key that changed during each of several reads, if there is one: the one that takes longest. Under a
    /// pause it does not change, and arrives with the rest.
    pub fn unstable(&self) -> Option<UnstableKey> {
        let batch = self.shared.batch();
        let (key, changing) = batch
            .again
            .iter()
            .filter(|(_, changing)| changing.reads >= CHANGED_READS_MAX)
            .max_by_key(|(_, changing)| changing.read_ms)?;
        Some(UnstableKey {
            key: crate::keys::shown(key),
            kind: changing.kind.clone(),
            read_ms: changing.read_ms,
        })
    }

    /// Keys that wait for another read because they changed during the last.
    pub fn changing(&self) -> usize {
        self.shared.batch().again.len()
    }

    /// With the source paused and the feed at the source's offset: transfers all that is left. False if
    /// `deadline` came first.
    ///
    /// # Errors
    /// As [`SlotMover::catch_up`].
    pub async fn drain(&mut self, touched: &Touched, deadline: Instant) -> Result<bool> {
        let shared = self.shared.clone();
        shared.is_draining.store(true, Ordering::Relaxed);
        let drained = self.drain_all(touched, deadline).await;
        shared.is_draining.store(false, Ordering::Relaxed);
        drained
    }

    async fn drain_all(&mut self, touched: &Touched, deadline: Instant) -> Result<bool> {
        let unseen: Vec<Bytes> = std::mem::take(&mut self.shared.batch().unseen).into_iter().collect();
        for key in unseen {
            self.shared.batch().again.entry(key).or_insert(Changing::unseen());
        }
        // Followed keys have no expiry on the target before this: they could expire there while others still
        // move, and what came after would make a fragment of them.
        let followed: Vec<Bytes> = self.shared.batch().followed.keys().cloned().collect();
        self.transfer_changes(followed.into_iter().map(Change::expiry).collect()).await?;
        loop {
            // A round is never cut short, so nothing that was taken is lost; it may end after the deadline.
            let is_late = Instant::now() >= deadline;
            if is_late || touched.is_empty() && self.changing() == 0 {
                return Ok(!is_late);
            }
            self.catch_up(touched).await?;
        }
    }

    /// Before the pause, for a full comparison: compares every key of `slots`. What is touched from here on
    /// is remembered, to be compared under the pause.
    ///
    /// # Errors
    /// Whatever a link or a server reports.
    pub async fn compare_ahead(&mut self, slots: &SlotSet) -> Result<()> {
        self.recheck = Some(Some(HashSet::new()));
        let (mut source, mut target) = self.links().await?;
        let mut suspects = HashSet::new();
        for (slot, count) in count_keys(&mut source, slots).await? {
            if count == 0 {
                continue;
            }
            self.shared.check_stop()?;
            let keys = all_names(&mut source, &[(slot, count)]).await?;
            for part in keys.chunks(RUN_KEYS_MAX) {
                if compare::keys(&mut source, &mut target, part).await?.differences > 0 {
                    // Some of them are being written right now; all of them are compared again when no client
                    // writes.
                    suspects.extend(part.iter().cloned());
                }
            }
        }
        if let Some(Some(recheck)) = &mut self.recheck {
            recheck.extend(suspects);
            if recheck.len() > RECHECK_KEYS_MAX {
                self.recheck = Some(None);
            }
        }
        Ok(())
    }

    /// Before the pause: opens the connections of the comparison, so that writers do not wait for that.
    ///
    /// # Errors
    /// Whatever a link or a server reports.
    pub async fn prepare_compare(&mut self) -> Result<()> {
        self.ready = Some(self.pairs().await?);
        Ok(())
    }

    /// With the source paused and drained: compares the batch.
    ///
    /// # Errors
    /// Whatever a link or a server reports; with [`Level::Full`], too many keys that were touched since.
    pub async fn compare(&mut self, slots: &SlotSet, level: Level) -> Result<Comparison> {
        let ((mut source, mut target), (mut other_source, mut other_target)) = match self.ready.take() {
            Some(pairs) => pairs,
            None => self.pairs().await?,
        };
        let keys: Vec<Bytes> = match (level, &self.recheck) {
            (Level::Counts, _) => Vec::new(),
            (Level::Sample, _) => self.shared.batch().sample.iter().map(|(_, key, _)| key.clone()).collect(),
            (Level::Full, Some(Some(recheck))) => recheck.iter().cloned().collect(),
            (Level::Full, _) => {
                return Err(Error::own(
                    "compare every key",
                    "too many keys were touched since they were compared",
                )
                .with_remedy(Remedy::CompareSampleOrSmallerBatches));
            }
        };
        let counted = self.shared.counted();
        let of_slots = async {
            if has_other_databases(&mut source).await? {
                let what =
                    "the source holds keys in another database than 0, which would be lost with the slots";
                return Err(Error::own("compare both sides", what).with_remedy(Remedy::UseNativeMethod));
            }
            compare::counts(&mut source, &mut target, slots).await
        };
        let of_keys = async {
            let mut found = compare::cardinalities(&mut other_source, &mut other_target, &counted).await?;
            found.add(compare::keys(&mut other_source, &mut other_target, &keys).await?);
            Ok(found)
        };
        let (mut found, of_keys) = tokio::try_join!(of_slots, of_keys)?;
        found.add(of_keys);
        Ok(found)
    }

    async fn pairs(&self) -> Result<Pairs> {
        tokio::try_join!(self.links(), self.links())
    }

    async fn links(&self) -> Result<(Link, Link)> {
        let Shared { deployment, source, .. } = &*self.shared;
        let (source, target) = tokio::join!(deployment.open(&source.address, 0), self.shared.open_target());
        Ok((source?, target?))
    }

    /// Lets each lane do its part. After an error all lanes are closed.
    async fn run(&mut self, work: Vec<Vec<Work>>) -> Result<()> {
        let mut running = JoinSet::new();
        let lanes = std::mem::take(&mut self.lanes);
        for (index, (mut lane, work)) in lanes.into_iter().zip(work).enumerate() {
            running.spawn(async move {
                for work in work {
                    lane.run(work).await?;
                }
                Ok::<_, Error>((index, lane))
            });
        }
        let mut lanes = Vec::new();
        let mut failure = None;
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(Ok(lane)) => lanes.push(lane),
                Ok(Err(e)) => failure = failure.or(Some(e)),
                Err(e) => failure = failure.or(Some(Error::own("move keys", e))),
            }
        }
        if let Some(e) = failure {
            return Err(e);
        }
        // A slot stays with its lane.
        lanes.sort_by_key(|(index, _)| *index);
        self.lanes = lanes.into_iter().map(|(_, lane)| lane).collect();
        Ok(())
    }
}

async fn node(deployment: &Deployment, side: Side, address: &Address) -> Result<Node> {
    let mut link = deployment.open_as(side, address, 0).await?;
    let facts = ServerFacts::ask(&mut link).await?;
    let capabilities = Capabilities::probe(&mut link).await?;
    Ok(Node { address: address.clone(), capabilities, dialect: facts.dialect, payloads: OnceLock::new() })
}
