//! Moves the keys of slots from one primary of a cluster to another, while clients write.
//!
//! ```text
//!  feed of the source ──▶ touched keys ──┐ catch-up
//!                                        ▼
//!  GETKEYSINSLOT ──▶ lane (slot mod lanes): read from the source ──▶ ASKING, write to the target
//! ```
//!
//! The target has the slots marked as importing, so that it takes writes after `ASKING` and shows them to
//! nobody else. The feed is attached, and records the slots, before the first key is listed. So what a read
//! misses is touched, and what is touched is transferred again: a transfer moves the state of a key as it is
//! now, and may be repeated at will.
//!
//! **Invariant: one lane per slot.** A slot's keys are read and written by one lane, in order.
//!
//! **Bounds.** A lane holds two groups of at most 2 MiB, or one chunk of a large key with its copies. Keys
//! that moved in chunks are remembered by name, [`FOLLOWED_MAX`] of them.

mod compare;
mod lane;

use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::feed::{Collection, Touch, Touched, What};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::{Capabilities, ServerFacts};
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::slot_keys::all_names;
use whimbrel_wire::payload::Dialect;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::compare::{Comparison, count_keys, has_other_databases};
use self::lane::{Lane, Work};
use crate::budget::{BigTransfers, Rates};
use crate::keys::Fit;
use crate::large::KeyType;
use crate::large::elements::FieldTtls;

/// How many keys that moved in chunks are followed by their elements. Further ones are transferred whole
/// again.
pub const FOLLOWED_MAX: usize = 10_000;

/// How many keys are compared under the pause where samples are compared.
const SAMPLE_KEYS: usize = 64;

/// A sampled key's value is at most this large, and all of them together: the comparison happens under the
/// pause.
const SAMPLE_BYTES_MAX: u64 = 64 << 10;
const SAMPLES_BYTES_MAX: u64 = 256 << 10;

/// Touched keys that one round of the catch-up takes.
const ROUND_KEYS_MAX: usize = 32 << 10;

/// Touched keys that one run of a lane takes.
const RUN_KEYS_MAX: usize = 1 << 10;

/// Keys that a full comparison remembers as touched since, before it gives up remembering.
const RECHECK_KEYS_MAX: usize = 100_000;

/// How many times a key may change while it is read before it counts as [`UnstableKey`].
const CHANGED_READS_MAX: u32 = 2;

/// How slots are moved.
#[derive(Debug)]
pub struct SlotOptions {
    /// Lanes, each with a connection to either node.
    pub lanes: usize,
    /// From this size on a value moves in chunks.
    pub big_key_bytes: u64,
    /// Size of a chunk.
    pub chunk_bytes: usize,
    /// Bytes that chunks of large keys may take together.
    pub memory_bytes: u64,
    /// Keys and bytes per second.
    pub rates: Rates,
    /// Name of the job.
    pub job: String,
    /// A key that took longer than this when it last moved in chunks does not do so under a pause, in
    /// milliseconds.
    pub drain_ms_max: u64,
    /// Shared by all movers with the same target.
    pub quiet: TargetGate,
}

/// Lets one job have a target to itself while writers wait for it: the others move no keys there meanwhile.
#[derive(Debug, Clone, Default)]
pub struct TargetGate(Arc<RwLock<()>>);

/// The target is quiet for as long as this lives.
#[derive(Debug)]
pub struct TargetGateGuard {
    _lock: OwnedRwLockWriteGuard<()>,
}

impl TargetGate {
    /// Waits until what is on its way to the target has arrived, and keeps others from sending more. Chunks
    /// of large keys are not waited for: they are small.
    pub async fn begin(&self) -> TargetGateGuard {
        TargetGateGuard { _lock: self.0.clone().write_owned().await }
    }
}

/// What a display reads.
#[derive(Debug, Default)]
pub struct SlotProgress {
    /// Keys written to the target, repetitions included.
    pub keys: AtomicU64,
    /// Bytes of keys and values written to the target, repetitions included.
    pub bytes: AtomicU64,
    /// Touched keys that were transferred again.
    pub touched: AtomicU64,
}

impl SlotProgress {
    fn add_written(&self, keys: u64, bytes: u64) {
        self.keys.fetch_add(keys, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn add_touched(&self, keys: u64, bytes: u64) {
        self.touched.fetch_add(keys, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// One of the two nodes.
#[derive(Debug)]
struct Node {
    address: Address,
    capabilities: Capabilities,
    dialect: Dialect,
    /// The highest version of payloads that the target accepts; found out when the first slot is being
    /// imported.
    payloads: OnceLock<Option<u16>>,
}

/// A key that changes every time it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnstableKey {
    /// Its name, for people.
    pub key: String,
    /// Its type.
    pub kind: String,
    /// How long its last read took, in milliseconds: about as long as it takes under a pause.
    pub read_ms: u64,
}

/// A key to transfer again.
#[derive(Debug)]
struct Change {
    key: Bytes,
    /// `None` where it is the whole key. Which elements, and of what; there are none where only the expiry
    /// changed.
    elements: Option<(Option<Collection>, BTreeSet<Bytes>)>,
    expiry: bool,
}

impl Change {
    fn whole(key: Bytes) -> Change {
        Change { key, elements: None, expiry: false }
    }

    fn expiry(key: Bytes) -> Change {
        Change { key, elements: Some((None, BTreeSet::new())), expiry: true }
    }
}

/// What all lanes share.
struct Shared {
    deployment: Arc<Deployment>,
    source: Node,
    target: Node,
    options: SlotOptions,
    progress: Arc<SlotProgress>,
    big_transfers: BigTransfers,
    stop: CancellationToken,
    /// Keys move under a pause of our own: nobody else has to be waited for.
    is_draining: AtomicBool,
    /// The feed does not see changes of consumer groups: streams are remembered, and move once more under the
    /// pause.
    remember_streams: AtomicBool,
    /// What is remembered for the batch at hand.
    batch: Mutex<Batch>,
}

/// What is remembered for one batch.
#[derive(Default)]
struct Batch {
    /// Keys that moved in chunks and are followed by their elements since.
    followed: HashMap<Bytes, KeyType>,
    /// Keys that changed while they were read, with how often and how long the last read took.
    again: HashMap<Bytes, Changing>,
    /// How long keys took that moved in chunks, in milliseconds.
    took_ms: HashMap<Bytes, u64>,
    /// Streams, where the feed does not see all of their changes.
    streams: HashSet<Bytes>,
    /// Those with the smallest hashes: a sample that needs no random numbers and does not depend on the
    /// order.
    sample: BinaryHeap<(u64, Bytes, u64)>,
    /// Bytes of those.
    sample_bytes: u64,
}

struct Changing {
    kind: String,
    reads: u32,
    read_ms: u64,
}

impl Changing {
    /// A stream that may have changed unseen.
    fn stream() -> Changing {
        Changing { kind: "stream".to_owned(), reads: 0, read_ms: 0 }
    }
}

impl Shared {
    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock()
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.is_cancelled() {
            return Err(Error::own("move keys", "stopped"));
        }
        Ok(())
    }

    fn hash_field_ttls(&self) -> FieldTtls {
        FieldTtls::of(&self.source.capabilities, &self.target.capabilities)
    }

    /// What the target takes.
    fn fit(&self) -> Fit {
        let (source, target) = (&self.source, &self.target);
        let fit = Fit::of((source.dialect, target.dialect), &target.capabilities);
        // Known when the first slot is being imported.
        Fit { payload_version_max: target.payloads.get().copied().flatten(), ..fit }
    }

    /// The type of a key that is followed by its elements.
    fn followed(&self, key: &Bytes) -> Option<KeyType> {
        self.batch().followed.get(key).cloned()
    }

    /// Followed keys with the commands that count their elements. Hashes are left out where fields may
    /// expire: servers count those that have for a while longer; only that the key is there is asked then.
    fn counted(&self) -> Vec<(Bytes, &'static [u8])> {
        let mortal = self.source.capabilities.hash_field_ttl;
        let command = |kind: &KeyType| -> &'static [u8] {
            match kind {
                KeyType::Hash if !mortal => b"HLEN",
                KeyType::Set => b"SCARD",
                KeyType::Zset => b"ZCARD",
                _ => b"EXISTS",
            }
        };
        self.batch().followed.iter().map(|(key, kind)| (key.clone(), command(kind))).collect()
    }

    /// Whether writers wait for the rest.
    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// How long the key took when it last moved in chunks, in milliseconds.
    fn took_ms(&self, key: &Bytes) -> u64 {
        self.batch().took_ms.get(key).copied().unwrap_or(0)
    }

    /// Waits while another job has the target to itself, which it cannot begin before the permit is dropped.
    async fn turn(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.is_draining() {
            return None;
        }
        Some(self.options.quiet.0.read().await)
    }

    /// From now on the key is followed by its elements, where its type allows it.
    fn follow(&self, key: &Bytes, kind: Option<&KeyType>) {
        let mut batch = self.batch();
        match kind {
            Some(kind) if lane::followable(kind) && batch.followed.len() < FOLLOWED_MAX => {
                batch.followed.insert(key.clone(), kind.clone());
            }
            _ => {
                batch.followed.remove(key);
            }
        }
    }

    /// The key changed while it was read, and has to be read again.
    fn changed(&self, key: Bytes, kind: Option<KeyType>, read_ms: u64) {
        let kind = kind.map_or_else(|| "gone".to_owned(), |kind| format!("{kind:?}").to_lowercase());
        let mut batch = self.batch();
        let entry = batch.again.entry(key).or_insert(Changing { kind: String::new(), reads: 0, read_ms });
        entry.reads += 1;
        entry.read_ms = read_ms;
        entry.kind = kind;
    }

    /// Remembers a stream where that is wanted.
    fn stream(&self, key: &Bytes) {
        if self.remember_streams.load(Ordering::Relaxed) {
            self.batch().streams.insert(key.clone());
        }
    }

    /// The key has arrived.
    fn settled(&self, key: &Bytes) {
        self.batch().again.remove(key);
    }

    /// Offers a key that has been written to the sample.
    fn sampled(&self, key: &Bytes, bytes: u64) {
        if bytes > SAMPLE_BYTES_MAX {
            return;
        }
        let hash = xxh3_64_with_seed(key, 1);
        let mut batch = self.batch();
        let is_full =
            |batch: &Batch| batch.sample.len() >= SAMPLE_KEYS || batch.sample_bytes >= SAMPLES_BYTES_MAX;
        if batch.sample.iter().any(|(known, ..)| *known == hash) {
            return;
        }
        if is_full(&batch) && batch.sample.peek().is_some_and(|(largest, ..)| *largest <= hash) {
            return;
        }
        batch.sample.push((hash, key.clone(), bytes));
        batch.sample_bytes += bytes;
        while batch.sample.len() > SAMPLE_KEYS
            || batch.sample_bytes > SAMPLES_BYTES_MAX && batch.sample.len() > 1
        {
            let Some((_, _, bytes)) = batch.sample.pop() else { break };
            batch.sample_bytes -= bytes;
        }
    }

    /// Waits for what the rates allow, cut short when the job is stopped.
    async fn paced(&self, keys: u64, bytes: u64) {
        let wait = async {
            self.options.rates.take_keys(keys).await;
            self.options.rates.take_bytes(bytes).await;
        };
        self.stop.run_until_cancelled(wait).await;
    }
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

/// Moves the slots of one source to one target, batch by batch.
pub struct SlotMover {
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    /// With a full comparison: keys that were touched since they were compared. `None` before that
    /// comparison; a `None` inside where there were too many to remember.
    recheck: Option<Option<HashSet<Bytes>>>,
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
        Ok(SlotMover { shared: Arc::new(shared), lanes: Vec::new(), recheck: None })
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
    pub async fn snapshot(&mut self, slots: &[(Slot, u64)]) -> Result<()> {
        if let Some((slot, _)) = slots.first() {
            self.probe_payloads(*slot).await?;
        }
        let lanes = self.shared.options.lanes.max(1);
        let mut work: Vec<Vec<(Slot, u64)>> = vec![Vec::new(); lanes];
        for &(slot, count) in slots {
            work[usize::from(slot.number()) % lanes].push((slot, count));
        }
        self.run(work.into_iter().map(|slots| vec![Work::Slots(slots)]).collect()).await
    }

    async fn probe_payloads(&self, importing: Slot) -> Result<()> {
        let target = &self.shared.target;
        if target.payloads.get().is_none() {
            let mut link = self.shared.deployment.open_as(Side::Target, &target.address, 0).await?;
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
    pub async fn catch_up(&mut self, touched: &Touched) -> Result<Round> {
        let started = Instant::now();
        let whole_slots = touched.take_slots();
        if !whole_slots.is_empty() {
            let mut link = self.shared.deployment.open(&self.shared.source.address, 0).await?;
            let target = &self.shared.target.address;
            let mut at_target = self.shared.deployment.open_as(Side::Target, target, 0).await?;
            self.transfer_slots(&mut link, &mut at_target, &whole_slots).await?;
            if let Some(recheck) = &mut self.recheck {
                *recheck = None;
            }
        }
        let lanes = self.shared.options.lanes.max(1);
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
            staged.extend(all_names(target, slot, count).await?);
        }
        self.snapshot(&ours?).await?;
        self.transfer_changes(staged.into_iter().map(Change::whole).collect()).await
    }

    /// Each in the lane of its slot.
    async fn transfer_changes(&mut self, changes: Vec<Change>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let lanes = self.shared.options.lanes.max(1);
        let mut work: Vec<Vec<Change>> = Vec::new();
        work.resize_with(lanes, Vec::new);
        for change in changes {
            work[usize::from(Slot::of_key(&change.key).number()) % lanes].push(change);
        }
        self.run(work.into_iter().map(|changes| vec![Work::Touches(changes)]).collect()).await
    }

    /// A key that changed during each of several reads, where there is one: the one that takes longest. Under
    /// a pause it does not change, and arrives with the rest.
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

    /// With the source paused and the feed at the source's offset: transfers all that is left. False where
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
        let streams: Vec<Bytes> = std::mem::take(&mut self.shared.batch().streams).into_iter().collect();
        for key in streams {
            self.shared.batch().again.entry(key).or_insert(Changing::stream());
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
            let keys = all_names(&mut source, slot, count).await?;
            for part in keys.chunks(RUN_KEYS_MAX) {
                if compare::keys(&mut source, &mut target, part).await?.differences > 0 {
                    // Some of them are being written right now; all of them are compared again when nobody
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

    /// With the source paused and drained: compares the batch.
    ///
    /// # Errors
    /// Whatever a link or a server reports; with [`Level::Full`], too many keys that were touched since.
    pub async fn compare(&mut self, slots: &SlotSet, level: Level) -> Result<Comparison> {
        let (mut source, mut target) = self.links().await?;
        if has_other_databases(&mut source).await? {
            let what = "the source holds keys in another database than 0, which would be lost with the slots";
            return Err(Error::own("compare both sides", what).with_remedy(Remedy::UseNativeMethod));
        }
        let mut found = compare::counts(&mut source, &mut target, slots).await?;
        found.add(compare::cardinalities(&mut source, &mut target, &self.shared.counted()).await?);
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
        found.add(compare::keys(&mut source, &mut target, &keys).await?);
        Ok(found)
    }

    async fn links(&self) -> Result<(Link, Link)> {
        let Shared { deployment, source, target, .. } = &*self.shared;
        let (source, target) = tokio::join!(
            deployment.open(&source.address, 0),
            deployment.open_as(Side::Target, &target.address, 0),
        );
        Ok((source?, target?))
    }

    /// Lets each lane do its part. After an error all lanes are closed.
    async fn run(&mut self, work: Vec<Vec<Work>>) -> Result<()> {
        while self.lanes.len() < work.len() {
            let lane = Lane::open(&self.shared).await?;
            self.lanes.push(lane);
        }
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

impl From<Touch> for Change {
    fn from(touch: Touch) -> Change {
        match touch.what {
            What::Whole => Change::whole(touch.key),
            What::Elements(elements) => Change {
                key: touch.key,
                expiry: elements.expiry,
                elements: Some((Some(elements.collection), elements.names)),
            },
            What::Expiry => Change { key: touch.key, elements: Some((None, BTreeSet::new())), expiry: true },
        }
    }
}

async fn node(deployment: &Deployment, side: Side, address: &Address) -> Result<Node> {
    let mut link = deployment.open_as(side, address, 0).await?;
    let facts = ServerFacts::ask(&mut link).await?;
    let capabilities = Capabilities::probe(&mut link).await?;
    Ok(Node { address: address.clone(), capabilities, dialect: facts.dialect, payloads: OnceLock::new() })
}
