//! Copies keys from one deployment to another.
//!
//! ```text
//!  for each shard and database of the source, a few at a time:
//!
//!             keys                states               acknowledgements
//!  SCAN ──┬──────────▶ reader ───────────▶ writer ──┐
//!         ├──────────▶ reader ───────────▶ writer ──┼──▶ tracker ──▶ journal
//!         └──────────▶ reader ───────────▶ writer ──┘
//!           one lane for each hash of a key; every queue bounded; values bounded by the memory budget
//! ```
//!
//! **Invariant: one lane per key.** All reads and writes of a key go through the same lane in order, so a
//! read that is older can never be written over one that is newer, even though `SCAN` may give a key twice.
//!
//! **What a pass may have missed is gone through again.** Slots that changed their owner on the source while
//! it was scanned, and slots whose target primary was replaced or restarted after it had acknowledged writes,
//! are *in doubt*. After a pass they are copied once more, until a pass ends without doubt.

mod emptied;
mod lanes;
mod preflight;
mod read;
mod track;
mod write;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::select::Selection;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::{Deployment, Shard, Topology};
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, ServerError, Side};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::ServerFacts;
use xxhash_rust::xxh3::xxh3_128_with_seed;

pub(crate) use preflight::check_reading;
pub use preflight::{DbPair, Plan, PlannedDb, databases, plan};

pub(crate) use self::lanes::Lanes;
pub(crate) use self::preflight::check_way_back;
pub(crate) use self::track::Tracker;
use crate::budget::{BigTransfers, MemoryBudget, Rate, Rates};
use crate::journal::{Journal, JournalState, UnitMark};
use crate::progress::{CopyCounts, CopyProgress};
use crate::retry::{Backoff, RetryPolicy};
use crate::scan::{KeyScan, ScanOptions, Unit};
pub use crate::typed::Existing;

/// What to copy and how.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Which keys, by name and slot.
    pub selection: Selection,
    /// Which types, by the names that `TYPE` gives; all where empty.
    pub types: Vec<String>,
    /// Which databases of the source go to which of the target.
    pub dbs: Vec<DbPair>,
    /// What to do with keys that the target has already.
    pub existing: Existing,
    /// Stop after so many keys.
    pub limit: Option<u64>,
    /// Bytes of values in flight.
    pub memory_bytes: u64,
    /// From this size on a value moves in chunks.
    pub big_key_bytes: u64,
    /// Size of a chunk.
    pub chunk_bytes: usize,
    /// Keys read per second, at most.
    pub rate_keys: Option<u64>,
    /// Bytes of values read per second, at most.
    pub rate_bytes: Option<u64>,
    /// `COUNT` of `SCAN`.
    pub scan_count: u32,
    /// Lanes for each shard that is being copied.
    pub lanes: usize,
    /// Shards copied at once.
    pub shards_at_once: usize,
    /// Read from replicas where there are any.
    pub from_replicas: bool,
    /// How long to try again.
    pub retry: RetryPolicy,
    /// Short name of this job: part of the names of staging keys.
    pub job: String,
    /// Keys that are gone from the source are removed from the target, and keys that change each time they
    /// are read are left to the one that follows the changes, instead of being reported.
    pub mirror: bool,
}

/// A key that was not copied, and why.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct KeyFailure {
    /// Its database on the source.
    pub db: u32,
    /// Its name, with unprintable bytes escaped.
    pub key: String,
    /// Its slot.
    pub slot: u16,
    /// The reason.
    pub reason: String,
}

/// What a copy did.
#[derive(Debug, Clone, Serialize)]
pub struct CopyReport {
    /// All counters.
    pub counts: CopyCounts,
    /// How long it took.
    pub duration_ms: u64,
    /// How often the keyspace, or the part in doubt, was gone through.
    pub passes: u32,
    /// True where every selected key has been dealt with; false where it was stopped.
    pub complete: bool,
    /// True where it went on from a journal.
    pub resumed: bool,
    /// Keys that the target evicted while it was copied to. Where there are any, the copy is not whole.
    pub evicted: u64,
    /// Commands that emptied or exchanged a database of the source while it was copied, and how often they
    /// ran: whatever the database was, the servers do not say. Where there are any, the copy is neither what
    /// there was nor what there is.
    pub emptied: BTreeMap<String, u64>,
    /// The first keys that were not copied; their number is in the counters.
    pub failures: Vec<KeyFailure>,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// How many failed keys a report lists.
const FAILURES_MAX: usize = 1_000;

/// How often keys in doubt are gone through again before the copy gives up.
const PASSES_MAX: u32 = 100;

/// After a pass that left nothing in doubt but slots on the move, this long is waited, and longer with each
/// pass.
const OPEN_SLOTS_PAUSE: Duration = Duration::from_millis(500);

/// How many keys that moved in chunks are followed by their elements.
const FOLLOWED_MAX: usize = 64 << 10;

/// How often the journal is written.
const JOURNAL_PERIOD: Duration = Duration::from_millis(500);

/// What all parts of one copy share.
pub(crate) struct Shared {
    pub(crate) source: Arc<Deployment>,
    pub(crate) target: Arc<Deployment>,
    pub(crate) options: CopyOptions,
    pub(crate) progress: Arc<CopyProgress>,
    pub(crate) budget: MemoryBudget,
    /// Bounds how many values move in chunks at once: their chunks are not part of the budget.
    pub(crate) big_transfers: BigTransfers,
    pub(crate) rates: Rates,
    /// Cancelled when the user wants to stop: scanning ends, what is in the lanes is finished.
    pub(crate) stop: CancellationToken,
    left_of_limit: AtomicI64,
    failures: Mutex<Failures>,
    doubt: Mutex<Doubt>,
    /// By shard of the source: keys that changed every time they were read, with their databases.
    again: Mutex<HashMap<String, Vec<(u32, Bytes)>>>,
    by_elements: Mutex<ByElements>,
}

/// What is followed by its elements.
#[derive(Debug, Default)]
struct ByElements {
    /// Shards of the source whose feeds tell which elements of a key are touched.
    shards: HashSet<String>,
    /// Keys that moved in chunks while their elements were followed, with their databases.
    keys: HashSet<(u32, Bytes)>,
}

/// Keys that could not be copied.
#[derive(Debug, Default)]
struct Failures {
    /// The first of them, for people.
    listed: Vec<(u128, KeyFailure)>,
    /// All of them with their slots, where changes are followed: 32 bytes for each.
    failing: HashMap<u128, Slot>,
}

impl Failures {
    fn list(&self) -> Vec<KeyFailure> {
        self.listed.iter().map(|(_, failure)| failure.clone()).collect()
    }
}

/// Tells keys apart, in all likelihood.
fn name_of(db: u32, key: &[u8]) -> u128 {
    xxh3_128_with_seed(key, u64::from(db))
}

/// What has to be gone through again.
#[derive(Debug, Default)]
struct Doubt {
    source: SlotSet,
    target: SlotSet,
    /// The process that was first met at each address of the target.
    target_runs: HashMap<Address, String>,
    /// By process of the target: how many keys it had evicted when it was first met, and when last.
    evicted: HashMap<String, (u64, u64)>,
}

impl Shared {
    pub(crate) fn new(
        source: Arc<Deployment>,
        target: Arc<Deployment>,
        options: CopyOptions,
        progress: Arc<CopyProgress>,
        stop: CancellationToken,
    ) -> Shared {
        let limit = options.limit.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
        Shared {
            budget: MemoryBudget::new(options.memory_bytes),
            big_transfers: BigTransfers::new(options.memory_bytes, options.chunk_bytes as u64),
            rates: Rates { keys: options.rate_keys.map(Rate::new), bytes: options.rate_bytes.map(Rate::new) },
            left_of_limit: AtomicI64::new(limit),
            source,
            target,
            options,
            progress,
            stop,
            failures: Mutex::default(),
            doubt: Mutex::default(),
            again: Mutex::default(),
            by_elements: Mutex::default(),
        }
    }

    /// Notes a key that could not be copied. Where changes are followed it is tried as often as it changes,
    /// and counts once.
    pub(crate) fn failed(&self, db: u32, key: &[u8], reason: String) {
        // What the target holds of it is not what the next changed elements belong to.
        self.unfollow_elements(db, key);
        let slot = Slot::of_key(key);
        let mut failures = self.failures.lock();
        if self.options.mirror && failures.failing.insert(name_of(db, key), slot).is_some() {
            return;
        }
        CopyProgress::add(&self.progress.failed, 1);
        if failures.listed.len() < FAILURES_MAX {
            let failure = KeyFailure { db, key: shown(key), slot: slot.number(), reason };
            failures.listed.push((name_of(db, key), failure));
        }
    }

    /// Notes that a key has arrived, or is gone, that may have been noted as failed before.
    pub(crate) fn arrived(&self, db: u32, key: &[u8]) {
        if !self.options.mirror || self.progress.failed.load(Ordering::Relaxed) == 0 {
            return;
        }
        let name = name_of(db, key);
        let mut failures = self.failures.lock();
        if failures.failing.remove(&name).is_some() {
            failures.listed.retain(|(listed, _)| *listed != name);
            self.progress.failed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Leaves a key of a unit to be transferred again.
    pub(crate) fn touch_again(&self, unit: &Unit, key: Bytes) {
        let mut again = self.again.lock();
        again.entry(unit.shard_id.clone()).or_default().push((unit.db, key));
    }

    /// The keys of a shard that have to be transferred again, with their databases; they are forgotten here.
    pub(crate) fn take_again(&self, shard_id: &str) -> Vec<(u32, Bytes)> {
        let mut again = self.again.lock();
        again.remove(shard_id).unwrap_or_default()
    }

    /// From now on the feeds of these shards tell which elements of a key are touched; those of others do
    /// not.
    pub(crate) fn elements_are_seen(&self, shards: HashSet<String>) {
        self.by_elements.lock().shards = shards;
    }

    /// Whether the feed of a shard tells which elements of a key are touched.
    pub(crate) fn sees_elements(&self, shard_id: &str) -> bool {
        self.by_elements.lock().shards.contains(shard_id)
    }

    /// The target holds the key, but for elements that are touched since. Of further ones than
    /// [`FOLLOWED_MAX`] all is transferred again when they are touched.
    pub(crate) fn follow_elements(&self, db: u32, key: &Bytes) {
        let mut followed = self.by_elements.lock();
        if followed.keys.len() < FOLLOWED_MAX {
            followed.keys.insert((db, key.clone()));
        }
    }

    /// Whether any key is followed by its elements.
    pub(crate) fn follows_any_elements(&self) -> bool {
        !self.by_elements.lock().keys.is_empty()
    }

    /// Whether touched elements are all that the target may lack of a key.
    pub(crate) fn follows_elements(&self, db: u32, key: &Bytes) -> bool {
        let followed = self.by_elements.lock();
        followed.keys.contains(&(db, key.clone()))
    }

    /// What the target holds of the keys of these slots may lack more than touched elements: they move whole
    /// again first.
    pub(crate) fn unfollow_slots(&self, slots: &SlotSet) {
        let mut followed = self.by_elements.lock();
        followed.keys.retain(|(_, key)| !slots.contains(Slot::of_key(key)));
    }

    /// The target does not hold the key any more, or not what the source held.
    pub(crate) fn unfollow_elements(&self, db: u32, key: &[u8]) {
        let mut followed = self.by_elements.lock();
        if !followed.keys.is_empty() {
            followed.keys.remove(&(db, Bytes::copy_from_slice(key)));
        }
    }

    /// The first keys that could not be copied.
    pub(crate) fn failures(&self) -> Vec<KeyFailure> {
        self.failures.lock().list()
    }

    /// A pause before the next try, cut short when the user stops.
    pub(crate) async fn pause(&self, backoff: &mut Backoff, error: Error) -> Result<()> {
        tokio::select! {
            paused = backoff.pause(error) => paused,
            () = self.stop.cancelled() => {
                Err(Error::own("try again", "stopped while waiting for a server to recover")
                    .with_remedy("go on with --resume"))
            }
        }
    }

    /// Waits for what a rate allows; false where the copy was stopped meanwhile.
    pub(crate) async fn paced(&self, wait: impl Future<Output = ()>) -> bool {
        self.stop.run_until_cancelled(wait).await.is_some()
    }

    /// Notes that a slot of the source was found on the move.
    pub(crate) fn doubt_source(&self, slot: Slot) {
        self.doubt.lock().source.insert(slot);
    }

    /// Notes slots of the source that have to be gone through again.
    pub(crate) fn doubt_source_slots(&self, slots: &SlotSet) {
        if !slots.is_empty() {
            let mut doubt = self.doubt.lock();
            doubt.source = doubt.source.union(slots);
        }
    }

    /// All slots in doubt so far.
    pub(crate) fn in_doubt(&self) -> SlotSet {
        let doubt = self.doubt.lock();
        doubt.source.union(&doubt.target)
    }

    /// Notes that a slot of the target was found on the move.
    pub(crate) fn doubt_target(&self, slot: Slot) {
        self.doubt.lock().target.insert(slot);
    }

    /// Asks the source for its topology; what moved is in doubt.
    pub(crate) async fn refresh_source(&self) {
        if let Some(moved) = refresh(&self.source).await {
            let mut doubt = self.doubt.lock();
            doubt.source = doubt.source.union(&moved);
        }
    }

    /// Asks the target for its topology; what moved is in doubt, since a failover may have lost acknowledged
    /// writes.
    pub(crate) async fn refresh_target(&self) {
        if let Some(moved) = refresh(&self.target).await {
            let mut doubt = self.doubt.lock();
            doubt.target = doubt.target.union(&moved);
        }
    }

    /// A connection to a node of the target. Another process than the one met there before is noted: it may
    /// have lost what the old one had acknowledged.
    pub(crate) async fn open_target(&self, address: &Address, db: u32) -> Result<Link> {
        let mut link = self.target.open(address, db).await?;
        let facts = ServerFacts::ask(&mut link).await?;
        if facts.replica && (self.target.is_cluster() || self.target.is_watched()) {
            // Demoted, and the others may not have told us yet: what it acknowledged may be lost.
            let demoted = ServerError::classify(b"READONLY this node is a replica now");
            return Err(link.server_error(demoted, b"connect"));
        }
        if facts.replica {
            return Err(Error::unfit(
                self.target.side(),
                address.to_string(),
                "connect",
                "this server is a replica and takes no writes",
            )
            .with_remedy("name its primary"));
        }
        let mut doubt = self.doubt.lock();
        let evicted = facts.evicted_keys;
        doubt.evicted.entry(facts.run_id.clone()).or_insert((evicted, evicted)).1 = evicted;
        match doubt.target_runs.get(address) {
            Some(old) if *old != facts.run_id => {
                let topology = self.target.topology();
                for shard in topology.shards.iter().filter(|s| s.primary == *address) {
                    doubt.target = doubt.target.union(&shard.slots);
                }
                doubt.target_runs.insert(address.clone(), facts.run_id);
            }
            Some(_) => {}
            None => {
                doubt.target_runs.insert(address.clone(), facts.run_id);
            }
        }
        Ok(link)
    }

    /// A connection to the target's owner of `slot`.
    pub(crate) async fn open_target_owner(&self, slot: Slot, db: u32) -> Result<Link> {
        let topology = self.target.topology();
        match topology.shard_of(slot) {
            Some(shard) => self.open_target(&shard.primary, db).await,
            None => Err(self.target.unowned(slot)),
        }
    }

    /// Takes over what an earlier run had found.
    pub(crate) fn remember(&self, state: &JournalState) {
        self.progress.failed.store(state.failed, Ordering::Relaxed);
        // Of those that are not listed no name is known, of the others only what a person needs to know.
        let listed = state.failures.iter().map(|failure| (0, failure.clone())).collect();
        *self.failures.lock() = Failures { listed, failing: HashMap::new() };
        let mut doubt = self.doubt.lock();
        doubt.source = state.doubt_source.clone().unwrap_or_default();
        doubt.target = state.doubt_target.clone().unwrap_or_default();
    }

    /// Writes down what a later run has to know. It comes after the positions of the same save have been
    /// taken: a key is noted as failed or in doubt before its page counts as dealt with, and must not be
    /// forgotten once it does.
    pub(crate) fn record(&self, state: &mut JournalState) {
        state.failed = self.progress.failed.load(Ordering::Relaxed);
        state.failures = self.failures();
        let doubt = self.doubt.lock();
        state.doubt_source = Some(doubt.source.clone()).filter(|s| !s.is_empty());
        state.doubt_target = Some(doubt.target.clone()).filter(|s| !s.is_empty());
    }

    /// Keys of these slots are copied once more: what failed may succeed now, or fails again.
    pub(crate) fn forget_failures(&self, slots: &SlotSet) {
        let mut failures = self.failures.lock();
        let Failures { listed, failing } = &mut *failures;
        let is_in = |failure: &KeyFailure| Slot::new(failure.slot).is_some_and(|slot| slots.contains(slot));
        // Not all of those that are known by name are listed, and of those from an earlier run no name is
        // known.
        let before = failing.len() + listed.iter().filter(|(name, _)| !failing.contains_key(name)).count();
        listed.retain(|(_, failure)| !is_in(failure));
        failing.retain(|_, slot| !slots.contains(*slot));
        let after = failing.len() + listed.iter().filter(|(name, _)| !failing.contains_key(name)).count();
        self.progress.failed.fetch_sub((before - after) as u64, Ordering::Relaxed);
    }

    /// Keys that the target has evicted since it was first met.
    pub(crate) fn evicted(&self) -> u64 {
        let doubt = self.doubt.lock();
        doubt.evicted.values().map(|(first, last)| last.saturating_sub(*first)).sum()
    }

    /// As [`Shared::evicted`]; where there are any, the user should know.
    pub(crate) fn note_evicted(&self) -> u64 {
        let evicted = self.evicted();
        if evicted > 0 {
            self.progress.notice(format!(
                "the target evicted {evicted} keys meanwhile to stay within its maxmemory: it does not hold \
                    everything"
            ));
        }
        evicted
    }

    /// What to ask `SCAN` for, by the names that are selected.
    pub(crate) fn scan_options(&self) -> ScanOptions {
        ScanOptions {
            count: self.options.scan_count,
            pattern: self.options.selection.server_side_match().map(Bytes::copy_from_slice),
            type_name: None,
        }
    }

    /// Whether the server cannot filter by type, so that each key's has to be asked before it is selected.
    pub(crate) fn types_asked(&self) -> bool {
        self.options.types.len() > 1
    }

    /// Counts keys as selected, as far as the limit allows; the others are dropped.
    pub(crate) fn select(&self, keys: &mut Vec<Bytes>) {
        keys.truncate(self.take_of_limit(keys.len()));
        CopyProgress::add(&self.progress.selected, keys.len() as u64);
    }

    /// Takes up to `wanted` keys of what is left of the limit.
    fn take_of_limit(&self, wanted: usize) -> usize {
        if self.options.limit.is_none() {
            return wanted;
        }
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        let before = self.left_of_limit.fetch_sub(wanted, Ordering::Relaxed);
        usize::try_from(before.clamp(0, wanted)).unwrap_or(0)
    }

    fn limit_reached(&self) -> bool {
        self.options.limit.is_some() && self.left_of_limit.load(Ordering::Relaxed) <= 0
    }
}

async fn refresh(deployment: &Deployment) -> Option<SlotSet> {
    let before = deployment.topology();
    match deployment.refresh().await {
        Ok(now) => Some(before.moved_slots(&now)).filter(|moved| !moved.is_empty()),
        Err(error) => {
            tracing::debug!(%error, "topology refresh failed");
            None
        }
    }
}

/// A key for people: printable UTF-8 as it is, everything else escaped, long names cut.
pub fn shown(key: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 200;
    let cut = key.len().min(SHOWN_BYTES_MAX);
    let mut text = format!("\"{}", key[..cut].escape_ascii());
    text.push_str(if cut < key.len() { "…\"" } else { "\"" });
    text
}

/// Copies. The plan has been made, and agreed to, before.
///
/// `stop` ends it early and cleanly: what is in the lanes is finished and the journal is written. With a
/// journal that holds an earlier run, that run is gone on with.
///
/// # Errors
/// What could not be helped by trying again. The journal stays, and a later run can go on.
pub async fn copy(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: CopyOptions,
    progress: Arc<CopyProgress>,
    mut journal: Option<Journal>,
    stop: CancellationToken,
) -> Result<CopyReport> {
    let started = Instant::now();
    let shared = Arc::new(Shared::new(source, target, options, progress, stop));
    let mut state = match &journal {
        Some(journal) => journal.state().clone(),
        None => JournalState::default(),
    };
    let resumed = !state.is_fresh();
    let runs = target_runs(&shared).await?;
    shared.remember(&state);
    if resumed && state.target_runs != runs {
        shared
            .progress
            .notice("a server of the target is not the process it was: the copy starts again".to_owned());
        state = JournalState::default();
        shared.remember(&state);
    }
    state.target_runs = runs;
    if resumed && !state.is_fresh() && state.source_layout != layout(&shared.source.topology()) {
        // A slot may have moved from a shard that was not scanned yet to one that was.
        shared.progress.notice("slots of the source have moved since: the copy starts again".to_owned());
        state = JournalState { target_runs: state.target_runs, ..JournalState::default() };
        shared.remember(&state);
    }
    let before = emptied::count(&shared).await?;
    let complete = passes(&shared, &mut state, &mut |state| match &mut journal {
        Some(journal) => journal.save(state),
        None => Ok(()),
    })
    .await?;
    // One that was stopped says that it is not whole, and does not wait for servers any more.
    let emptied = match complete {
        true => emptied::since(&before, &emptied::count(&shared).await?),
        false => BTreeMap::new(),
    };
    for (command, times) in &emptied {
        shared.progress.notice(format!(
            "{command} ran on the source meanwhile ({times} times): keys of before and after may be mixed, \
                or missing; copy again"
        ));
    }
    if complete && let Some(journal) = journal.take() {
        journal.finish()?;
    }
    let evicted = shared.note_evicted();
    let failures = shared.failures();
    Ok(CopyReport {
        counts: shared.progress.snapshot(),
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        passes: state.pass,
        complete,
        resumed,
        evicted,
        emptied,
        failures,
        notices: shared.progress.notices(),
    })
}

/// Writes down how far a copy is.
pub(crate) type Keep<'a> = dyn FnMut(&JournalState) -> Result<()> + Send + 'a;

/// Goes through the source, and again through what is in doubt afterwards, until nothing is; false where it
/// was stopped before.
pub(crate) async fn passes(
    shared: &Arc<Shared>,
    state: &mut JournalState,
    keep: &mut Keep<'_>,
) -> Result<bool> {
    // The pass that was under way is gone on with.
    state.pass = state.pass.saturating_sub(1);
    let mut complete = false;
    while state.pass < PASSES_MAX {
        state.pass += 1;
        let before = shared.source.topology();
        let before_target = shared.target.topology();
        state.source_layout = layout(&before);
        complete = run_pass(shared, state, keep).await?;
        if !complete {
            break;
        }
        let (again, open) = doubtful(shared, &before, &before_target).await?;
        if again.is_empty() {
            break;
        }
        complete = false;
        if shared.limit_reached() {
            let what = "slots changed hands or lost their server, and with a limit it is not known which \
                keys to copy again";
            return Err(Error::own("copy", what).with_remedy("copy again"));
        }
        if again == open {
            // Nothing but migrations that are under way: they need time, not passes.
            let pause = OPEN_SLOTS_PAUSE * state.pass.min(10);
            shared.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
        shared.progress.notice(format!(
            "{} slots changed hands or lost their server during pass {}: they are copied once more",
            again.len(),
            state.pass
        ));
        shared.forget_failures(&again);
        state.begin_pass(&again);
    }
    if !complete && state.pass >= PASSES_MAX {
        let what = format!("slots were on the move, or changed hands, during {PASSES_MAX} passes");
        return Err(Error::own("copy", what)
            .with_remedy("finish or undo the slot migrations of both clusters, then go on with --resume"));
    }
    Ok(complete)
}

/// Which shard owns which slots, for the journal.
pub(crate) fn layout(topology: &Topology) -> BTreeMap<String, String> {
    topology.shards.iter().map(|s| (s.id.clone(), s.slots.to_string())).collect()
}

/// The process behind each primary of the target, for the journal and for later comparison. After a failure
/// the topology is asked for again: a primary that is gone is not waited for when another has taken its
/// place.
pub(crate) async fn target_runs(shared: &Arc<Shared>) -> Result<HashMap<String, String>> {
    let mut backoff = Backoff::new(shared.options.retry);
    loop {
        match try_target_runs(shared).await {
            Ok(runs) => return Ok(runs),
            Err(e) => shared.pause(&mut backoff, e).await?,
        }
    }
}

async fn try_target_runs(shared: &Arc<Shared>) -> Result<HashMap<String, String>> {
    let before = shared.target.topology();
    let now = shared.target.refresh().await?;
    let moved = before.moved_slots(&now);
    if !moved.is_empty() {
        let mut doubt = shared.doubt.lock();
        doubt.target = doubt.target.union(&moved);
    }
    for shard in &now.shards {
        shared.open_target(&shard.primary, 0).await?;
    }
    let doubt = shared.doubt.lock();
    let primary = |s: &Shard| Some((s.primary.to_string(), doubt.target_runs.get(&s.primary)?.clone()));
    Ok(now.shards.iter().filter_map(primary).collect())
}

/// Looks whether the primaries of the target are the processes they were; those that are not are in doubt.
pub(crate) async fn look_at_target(shared: &Arc<Shared>) {
    if let Err(error) = try_target_runs(shared).await {
        tracing::debug!(%error, "a primary of the target does not answer");
    }
}

/// After a pass: the slots that have to be gone through again, and those of them that are on the move right
/// now. Asks both sides how they are.
pub(crate) async fn doubtful(
    shared: &Arc<Shared>,
    before: &Topology,
    before_target: &Topology,
) -> Result<(SlotSet, SlotSet)> {
    // Every primary of the target is met once more: one that was replaced or restarted after the last write
    // to it would not have been noticed.
    target_runs(shared).await?;
    let mut backoff = Backoff::new(shared.options.retry);
    let open = loop {
        match open_slots(shared).await {
            Ok(open) => break open,
            Err(e) => shared.pause(&mut backoff, e).await?,
        }
    };
    let mut doubt = shared.doubt.lock();
    let slots = std::mem::take(&mut doubt.source)
        .union(&std::mem::take(&mut doubt.target))
        .union(&before.moved_slots(&shared.source.topology()))
        .union(&before_target.moved_slots(&shared.target.topology()))
        .union(&open);
    Ok(match &shared.options.selection.slots {
        Some(wanted) => (slots.intersection(wanted), open.intersection(wanted)),
        None => (slots, open),
    })
}

/// Slots that are on the move on either side, by the latest topology of the source.
async fn open_slots(shared: &Arc<Shared>) -> Result<SlotSet> {
    shared.source.refresh().await?;
    Ok(shared.source.open_slots().await?.union(&shared.target.open_slots().await?))
}

/// Goes through everything once, or through the slots of the state; true where nothing was left out.
pub(crate) async fn run_pass(
    shared: &Arc<Shared>,
    state: &mut JournalState,
    keep: &mut Keep<'_>,
) -> Result<bool> {
    let mut backoff = Backoff::new(shared.options.retry);
    let open = loop {
        match shared.source.open_slots().await {
            Ok(open) => break open,
            Err(e) => shared.pause(&mut backoff, e).await?,
        }
        shared.refresh_source().await;
    };
    let mut waiting = Vec::new();
    for pair in &shared.options.dbs {
        for unit in Unit::of_all(&shared.source, pair.source, shared.options.from_replicas) {
            // A slot that is on the move has keys on two nodes: only where none is, its owner alone will do.
            let wanted = wanted_slots(shared, state).filter(|w| w.intersection(&open).is_empty());
            if wanted.is_some_and(|w| shared.source.is_cluster() && w.intersection(&unit.slots).is_empty()) {
                continue;
            }
            let name = format!("{}/{}:{}", unit.shard_id, pair.source, pair.target);
            if state.units.get(&name).is_some_and(|mark| *mark == UnitMark::Done) {
                continue;
            }
            waiting.push((name, unit, pair.target));
        }
    }
    waiting.reverse();
    let mut running: JoinSet<(String, Result<bool>)> = JoinSet::new();
    let mut trackers: HashMap<String, Arc<Tracker>> = HashMap::new();
    let mut complete = true;
    let mut failure = None;
    let mut tick = tokio::time::interval(JOURNAL_PERIOD);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        while failure.is_none() && running.len() < shared.options.shards_at_once.max(1) {
            let Some((name, unit, target_db)) = waiting.pop() else { break };
            let tracker = Arc::new(Tracker::default());
            trackers.insert(name.clone(), tracker.clone());
            let from = match state.units.get(&name) {
                Some(UnitMark::At(position)) => Some(position.clone().into()),
                _ => None,
            };
            let slots = state.slots.clone();
            let shared = shared.clone();
            running.spawn(async move {
                let result = run_unit(shared, unit, target_db, slots, from, tracker).await;
                (name, result)
            });
        }
        tokio::select! {
            joined = running.join_next() => match joined {
                None => break,
                Some(Err(e)) => failure = failure.or(Some(Error::own("copy a shard", e))),
                Some(Ok((name, result))) => {
                    let tracker = trackers.remove(&name);
                    match result {
                        Ok(true) => {
                            state.units.insert(name, UnitMark::Done);
                        }
                        Ok(false) => {
                            complete = false;
                            note(state, &name, tracker.as_deref());
                        }
                        // What the user stopped is no failure: its keys have not been dealt with, that is
                        // all.
                        Err(e) if failure.is_none() && shared.stop.is_cancelled() && e.side == Side::Own => {
                            complete = false;
                            note(state, &name, tracker.as_deref());
                        }
                        Err(e) => {
                            complete = false;
                            note(state, &name, tracker.as_deref());
                            // The other shards need not go on: nothing can be complete any more.
                            shared.stop.cancel();
                            failure = failure.or(Some(e));
                        }
                    }
                }
            },
            _ = tick.tick() => {}
        }
        for (name, tracker) in &trackers {
            note(state, name, Some(tracker));
        }
        shared.record(state);
        keep(state)?;
    }
    match failure {
        Some(e) => Err(e),
        None => Ok(complete && waiting.is_empty()),
    }
}

fn note(state: &mut JournalState, name: &str, tracker: Option<&Tracker>) {
    match tracker.and_then(Tracker::safe) {
        Some(position) => state.units.insert(name.to_owned(), UnitMark::At((&position).into())),
        None => state.units.remove(name),
    };
}

/// The slots that this pass is about, where it is not all.
fn wanted_slots<'a>(shared: &'a Shared, state: &'a JournalState) -> Option<&'a SlotSet> {
    state.slots.as_ref().or(shared.options.selection.slots.as_ref())
}

/// Copies the keys of one unit; true where all of them were dealt with.
async fn run_unit(
    shared: Arc<Shared>,
    unit: Unit,
    target_db: u32,
    slots: Option<SlotSet>,
    from: Option<crate::scan::Position>,
    tracker: Arc<Tracker>,
) -> Result<bool> {
    let mut lanes = Lanes::open(&shared, &unit, target_db, average_bytes(&shared), tracker.clone());
    let scanned = feed_lanes(&shared, &unit, slots, from, &tracker, &mut lanes).await;
    match (scanned, lanes.close().await.err()) {
        // Stopped by the user, or because another shard has failed: no error of this one, it is only not
        // complete.
        (_, Some(e)) | (Err(e), None) if shared.stop.is_cancelled() && e.side == Side::Own => {
            tracing::debug!(error = %e, "stopped");
            Ok(false)
        }
        (_, Some(e)) | (Err(e), None) => Err(e),
        (Ok(complete), None) => Ok(complete && tracker.is_settled()),
    }
}

/// By the source's own count, for sizing the first groups.
pub(crate) fn average_bytes(shared: &Shared) -> u64 {
    let keys = shared.progress.keys_total.load(Ordering::Relaxed).max(1);
    let shards = shared.source.topology().shards.len() as u64;
    // `dataset_bytes` is one node's share.
    shared.source.facts.dataset_bytes.saturating_mul(shards) / keys
}

/// Scans and hands the keys to their lanes; true where the scan came to its end.
async fn feed_lanes(
    shared: &Arc<Shared>,
    unit: &Unit,
    slots: Option<SlotSet>,
    from: Option<crate::scan::Position>,
    tracker: &Tracker,
    lanes: &mut Lanes,
) -> Result<bool> {
    let mut selection = shared.options.selection.clone();
    selection.slots = match (selection.slots, slots) {
        (Some(wanted), Some(slots)) => Some(wanted.intersection(&slots)),
        (wanted, slots) => wanted.or(slots),
    };
    let everything = selection.is_everything();
    let options = ScanOptions {
        count: shared.options.scan_count,
        pattern: selection.server_side_match().map(Bytes::copy_from_slice),
        type_name: match shared.options.types.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        },
    };
    let mut scan = KeyScan::new(shared.source.clone(), unit.clone(), options, shared.options.retry, from);
    let progress = &shared.progress;
    loop {
        if shared.limit_reached() {
            return lanes.flush().await.map(|()| true);
        }
        let page = tokio::select! {
            biased;
            () = shared.stop.cancelled() => {
                // Where that fails, the lanes tell why when they are closed.
                return lanes.flush().await.map(|()| false);
            }
            page = scan.next() => page?,
        };
        let Some(page) = page else { break };
        if page.restarted {
            tracker.restarted();
            progress.notice(format!("the source restarted: shard {} is scanned again", unit.shard_id));
        }
        CopyProgress::add(&progress.scanned, page.keys.len() as u64);
        let mut keys = page.keys;
        if !everything {
            keys.retain(|key| selection.admits(key));
        }
        if !shared.types_asked() {
            shared.select(&mut keys);
        }
        let number = tracker.opened(keys.len(), page.next);
        for key in keys {
            lanes.push(key, number).await?;
        }
    }
    lanes.flush().await.map(|()| true)
}
