//! Follows one primary of the source.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map, hash_map};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Shard;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::feed::{Feed, History, Touch, What};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;

use super::state::Position;
use super::status::SourceView;
use crate::large::elements::{self, ElementCommands};
use crate::modules::filled_by;
use crate::pipeline::{DbPair, Lanes, Shared, Tracker, average_bytes};
use crate::progress::CopyProgress;
use crate::retry::Backoff;
use crate::scan::{KeyScan, Unit};
use crate::verify::{BATCH_KEYS_MAX, Comparer};

/// Touched keys that one round takes.
const ROUND_KEYS_MAX: usize = 16 << 10;

/// How long a key is left alone that changed every time it was read, so that the others need not wait for it.
const LATER: Duration = Duration::from_secs(1);

/// Batches of keys of one primary that are compared at once.
const COMPARERS: usize = 2;

/// How long a round waits for more to come, so that a busy source is not followed key by key.
const GATHER: Duration = Duration::from_millis(2);

/// A source's position, readable while the source is at work elsewhere.
pub(super) struct PositionHandle {
    feed: Arc<Feed>,
    position: Arc<Mutex<Option<History>>>,
}

impl PositionHandle {
    /// Where a later feed can go on; `None` if it cannot.
    pub(super) fn read(&self) -> Option<Position> {
        let history = self.position.lock().clone()?;
        let seen = self.feed.history()?;
        Some(Position { address: self.feed.address().to_string(), history, seen })
    }
}

/// What came of a round, the better first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Round {
    /// Everything there was has been transferred.
    All,
    /// There was more than one round takes, or something changed while it was read.
    Part,
    /// Something happened that a round cannot deal with: the feed ended, a database was emptied, or the user
    /// stopped.
    Broken,
}

/// One primary of the source: its feed, and the lanes that transfer what it touches.
pub(super) struct Source {
    pub(super) shared: Arc<Shared>,
    pub(super) unit: Unit,
    pub(super) feed: Arc<Feed>,
    pub(super) view: Arc<SourceView>,
    all_dbs: bool,
    /// Something was written to a database that should be part of this sync and is not.
    pub(super) unmapped: bool,
    /// Touches so far of keys that the sync is about, repeated ones included.
    pub(super) admitted: u64,
    /// Keys that changed every time they were read, with their databases, and since when they are left alone.
    later: BTreeSet<(u32, Bytes)>,
    later_since: Instant,
    /// By database of the source.
    lanes: BTreeMap<u32, Lanes>,
    element_links: ElementLinks,
    /// By database, if there may be series.
    series_links: BTreeMap<u32, Link>,
    position: Arc<Mutex<Option<History>>>,
}

/// Connections that transfer changed elements, kept until one fails.
#[derive(Debug, Default)]
struct ElementLinks {
    /// By database.
    source: BTreeMap<u32, Link>,
    /// By node and database.
    target: HashMap<(Address, u32), Link>,
}

impl ElementLinks {
    /// The databases that hold keys: those of the server at `from`, and those of the target.
    async fn keyspaces(&mut self, shared: &Shared, from: &Address) -> Result<(BTreeSet<u32>, BTreeSet<u32>)> {
        let source = match self.source.entry(0) {
            btree_map::Entry::Occupied(link) => link.into_mut(),
            btree_map::Entry::Vacant(place) => place.insert(shared.source.open(from, 0).await?),
        };
        let ours = keyspace(source).await?;
        let mut theirs = BTreeSet::new();
        for shard in &shared.target.topology().shards {
            let target = match self.target.entry((shard.primary.clone(), 0)) {
                hash_map::Entry::Occupied(link) => link.into_mut(),
                hash_map::Entry::Vacant(place) => place.insert(shared.open_target(&shard.primary, 0).await?),
            };
            theirs.extend(keyspace(target).await?);
        }
        Ok((ours, theirs))
    }

    async fn of(
        &mut self,
        shared: &Shared,
        from: &Address,
        pair: &DbPair,
        slot: Slot,
    ) -> Result<(&mut Link, &mut Link)> {
        let topology = shared.target.topology();
        let Some(shard) = topology.shard_of(slot) else { return Err(shared.target.unowned(slot)) };
        let source = match self.source.entry(pair.source) {
            btree_map::Entry::Occupied(link) => link.into_mut(),
            btree_map::Entry::Vacant(place) => place.insert(shared.source.open(from, pair.source).await?),
        };
        let target = match self.target.entry((shard.primary.clone(), pair.target)) {
            hash_map::Entry::Occupied(link) => link.into_mut(),
            hash_map::Entry::Vacant(place) => {
                place.insert(shared.open_target(&shard.primary, pair.target).await?)
            }
        };
        Ok((source, target))
    }
}

impl Source {
    pub(super) fn new(
        shared: &Arc<Shared>,
        shard: &Shard,
        feed: Feed,
        from: Option<History>,
        all_dbs: bool,
    ) -> Source {
        let feed = Arc::new(feed);
        let position = from.or_else(|| feed.history());
        let view = Arc::new(SourceView {
            feed: feed.clone(),
            behind_since: Mutex::new(None),
            server_offset: AtomicU64::new(0),
            round_us: AtomicU64::new(0),
        });
        Source {
            shared: shared.clone(),
            unit: unit_of(shard),
            feed,
            view,
            all_dbs,
            unmapped: false,
            admitted: 0,
            later: BTreeSet::new(),
            later_since: Instant::now(),
            lanes: BTreeMap::new(),
            element_links: ElementLinks::default(),
            series_links: BTreeMap::new(),
            position: Arc::new(Mutex::new(position)),
        }
    }

    /// The shard has changed its slots.
    pub(super) fn become_shard(&mut self, shard: &Shard) {
        let unit = unit_of(shard);
        if self.unit != unit {
            // Nothing is under way in them: this happens between rounds.
            self.lanes.clear();
            self.element_links = ElementLinks::default();
            self.unit = unit;
        }
    }

    /// Whether something happened that a round cannot deal with: the feed ended, or a database was emptied.
    pub(super) fn is_broken(&self) -> bool {
        self.feed.failure().is_some() || self.feed.touched().flushed()
    }

    /// Where a later run may go on.
    pub(super) fn position(&self) -> Option<Position> {
        self.position_handle().read()
    }

    /// A handle to read the position while the source is at work elsewhere.
    pub(super) fn position_handle(&self) -> PositionHandle {
        PositionHandle { feed: self.feed.clone(), position: self.position.clone() }
    }

    /// Transfers what is touched, again and again, until it is stopped or something has to be repaired.
    ///
    /// # Errors
    /// What could not be helped by trying again.
    pub(super) async fn follow(&mut self, enough: &CancellationToken) -> Result<()> {
        let touched = self.feed.touched();
        let feed = self.feed.clone();
        loop {
            tokio::select! {
                biased;
                () = enough.cancelled() => return Ok(()),
                _ = feed.failed() => return Ok(()),
                () = touched.changed() => sleep(GATHER).await,
                () = sleep_until(self.later_since + LATER), if !self.later.is_empty() => {}
            }
            if self.round(false).await? == Round::Broken {
                return Ok(());
            }
        }
    }

    /// Transfers what is touched now. If it is not `urgent`, keys that change all the time have to wait for
    /// their turn.
    ///
    /// # Errors
    /// What could not be helped by trying again.
    pub(super) async fn round(&mut self, urgent: bool) -> Result<Round> {
        let touched = self.feed.touched();
        self.view.is_behind(Instant::now());
        let touch = |(db, key)| Touch { db: Some(db), key, what: What::Anything };
        if urgent || self.later_since.elapsed() >= LATER {
            touched.put_back(std::mem::take(&mut self.later).into_iter().map(touch));
        }
        // Before the taking: whatever is up to here is either taken, or was taken before.
        let history = self.feed.history();
        // After that: the position never goes beyond what a round cannot deal with.
        if self.is_broken() {
            return Ok(Round::Broken);
        }
        let overflown = touched.take_slots();
        let touches = touched.take(ROUND_KEYS_MAX);
        let is_all = touches.len() < ROUND_KEYS_MAX;
        self.shared.suspects.note_source_slots(&overflown);
        let (began, is_empty) = (Instant::now(), touches.is_empty());
        self.admitted += touches.iter().filter(|touch| self.admits(touch)).count() as u64;
        let dbs = self.dbs_of_unknown(&touches).await;
        let touches = self.follow_elements(touches, &dbs).await;
        let mut sorted = self.sorted(touches, &dbs);
        while let Some((db, keys)) = sorted.pop_first() {
            let outcome = self.transfer(db, keys.clone()).await;
            if !matches!(outcome, Ok(true)) {
                // What goes on after this, a cutover that was given up for example, finds all of them
                // again.
                for (db, keys) in std::iter::once((db, keys)).chain(sorted) {
                    touched.put_back(keys.into_iter().map(|key| touch((db, key))));
                }
                return outcome.map(|_| Round::Broken);
            }
        }
        if !is_empty {
            let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.view.round_us.store(took_us, Ordering::Relaxed);
        }
        let again = self.shared.unstable.take(&self.unit.shard_id);
        let is_settled = again.is_empty() && self.later.is_empty();
        if urgent {
            touched.put_back(again.into_iter().map(touch));
        } else if !again.is_empty() {
            if self.later.is_empty() {
                self.later_since = Instant::now();
            }
            self.later.extend(again);
        }
        if is_all && is_settled {
            // Slots in doubt are written down together with the position, and after it was read.
            *self.position.lock() = history;
            self.view.is_level();
        }
        Ok(if is_all && is_settled { Round::All } else { Round::Part })
    }

    fn admits(&self, touch: &Touch) -> bool {
        let options = &self.shared.options;
        let is_followed = |db| options.dbs.iter().any(|pair| pair.source == db);
        touch.db.is_none_or(is_followed) && options.selection.admits(&touch.key)
    }

    /// Transfers what changed of keys that are followed by their elements. Returns what is left to be
    /// transferred whole: all others, and those for which that was not possible for whatever reason.
    ///
    /// **Invariant: one lane per key.** Nothing else transfers keys of this source meanwhile.
    async fn follow_elements(&mut self, touches: Vec<Touch>, dbs: &[u32]) -> Vec<Touch> {
        if self.shared.followed.is_empty() {
            return touches;
        }
        let touches = touches.into_iter().flat_map(|touch| self.by_database(touch, dbs));
        let (followed, mut left): (Vec<_>, Vec<_>) = touches.partition(|t| self.is_followed(t));
        let mut is_working = true;
        for touch in followed {
            let outcome = match is_working && !self.shared.stop.is_cancelled() {
                true => self.transfer_elements(&touch).await,
                // The lanes know how to wait for a server, and when to give up.
                false => Ok(false),
            };
            if let Err(error) = &outcome {
                tracing::debug!(%error, "elements could not be transferred: whole keys are");
                self.element_links = ElementLinks::default();
                is_working = false;
            }
            if !matches!(outcome, Ok(true)) {
                left.push(Touch { what: What::Anything, ..touch });
            }
        }
        left
    }

    /// The databases of the source that keys may be in if their touches name none; called after these were
    /// taken. A database that holds no key on either side has nothing to transfer or remove.
    async fn dbs_of_unknown(&mut self, touches: &[Touch]) -> Vec<u32> {
        let shared = self.shared.clone();
        let pairs = &shared.options.dbs;
        let all = || pairs.iter().map(|pair| pair.source).collect();
        if pairs.len() < 2 || touches.iter().all(|touch| touch.db.is_some()) {
            return all();
        }
        match self.element_links.keyspaces(&shared, self.feed.address()).await {
            Ok((ours, theirs)) => {
                let is_used = |pair: &&DbPair| ours.contains(&pair.source) || theirs.contains(&pair.target);
                pairs.iter().filter(is_used).map(|pair| pair.source).collect()
            }
            Err(error) => {
                tracing::debug!(%error, "it is not known which databases hold keys: all of them may");
                self.element_links = ElementLinks::default();
                all()
            }
        }
    }

    /// If the feed does not know the database of a touch, and the key is followed in one of them, it is a
    /// touch in each: what is transferred is the present state, so a superfluous touch changes nothing.
    fn by_database(&self, touch: Touch, dbs: &[u32]) -> Vec<Touch> {
        match touch.db {
            None if touch.what != What::Anything
                && dbs.iter().any(|db| self.shared.followed.has(*db, &touch.key)) =>
            {
                dbs.iter().map(|&db| Touch { db: Some(db), ..touch.clone() }).collect()
            }
            _ => vec![touch],
        }
    }

    fn is_followed(&self, touch: &Touch) -> bool {
        let Touch { db: Some(db), key, what: What::Elements(_) | What::Expiry } = touch else { return false };
        let topology = self.shared.source.topology();
        let slot = Slot::of_key(key);
        // One on the move is in doubt, and dealt with as a whole.
        let own = || !topology.cluster || topology.shard_of(slot).is_some_and(|s| s.id == self.unit.shard_id);
        self.shared.followed.has(*db, key) && own()
    }

    /// False if the whole key has to be transferred.
    async fn transfer_elements(&mut self, touch: &Touch) -> Result<bool> {
        let shared = self.shared.clone();
        let Some(pair) = shared.options.dbs.iter().find(|pair| touch.db == Some(pair.source)) else {
            return Ok(false);
        };
        let none = BTreeSet::new();
        let (collection, names, expiry) = match &touch.what {
            What::Anything => return Ok(false),
            What::Elements(elements) => (Some(elements.collection), &elements.names, elements.expiry),
            What::Expiry => (None, &none, true),
        };
        let ttls = ElementCommands::of(&shared.source.capabilities, &shared.target.capabilities);
        let change = elements::Change { key: &touch.key, collection, names, expiry };
        let links =
            self.element_links.of(&shared, self.feed.address(), pair, Slot::of_key(&touch.key)).await?;
        let followed = elements::transfer(links, &change, &ttls, false).await?;
        if followed.is_exact {
            CopyProgress::add(&shared.progress.read, 1);
            CopyProgress::add(&shared.progress.written, 1);
            CopyProgress::add(&shared.progress.bytes_read, followed.bytes);
            CopyProgress::add(&shared.progress.bytes_written, followed.bytes);
        }
        shared.limits.paced(shared.limits.rates.take_bytes(followed.bytes)).await;
        Ok(followed.is_exact)
    }

    /// Transfers keys of one database; false if the user stopped it before all were.
    ///
    /// # Errors
    /// What could not be helped by trying again.
    pub(super) async fn transfer(&mut self, db: u32, keys: Vec<Bytes>) -> Result<bool> {
        let Some(pair) = self.shared.options.dbs.iter().find(|pair| pair.source == db) else {
            if self.all_dbs && !keys.is_empty() {
                self.unmapped = true;
                self.shared.progress.notice(format!(
                    "database {db} of the source is written to, and is not part of this sync"
                ));
            }
            return Ok(true);
        };
        let keys = with_filled(&self.shared, &self.unit, &mut self.series_links, db, keys).await?;
        let (shared, unit) = (&self.shared, &self.unit);
        let lanes = self.lanes.entry(db).or_insert_with(|| {
            let unit = Unit { db, ..unit.clone() };
            Lanes::open(shared, &unit, pair.target, average_bytes(shared), Arc::new(Tracker::default()))
        });
        let outcome = lanes.transfer(keys).await;
        if !matches!(outcome, Ok(true)) {
            // They may hold what was not dealt with.
            self.lanes.remove(&db);
        }
        outcome
    }

    /// Compares all keys of `slots` with the target, and transfers those that differ; false if the user
    /// stopped it before. Rounds rest meanwhile: what changes is touched, and transferred afterwards.
    ///
    /// # Errors
    /// What could not be helped by trying again.
    pub(super) async fn compare(&mut self, slots: &SlotSet) -> Result<bool> {
        let shared = self.shared.clone();
        for pair in &shared.options.dbs {
            let comparer = |_| {
                let (ours, theirs) = ((&shared.source, pair.source), (&shared.target, pair.target));
                Comparer::new(ours, theirs, shared.options.retry)
            };
            let mut comparers: Vec<Comparer> = (0..COMPARERS).map(comparer).collect();
            let unit = Unit { db: pair.source, ..self.unit.clone() };
            let mut scan = KeyScan::new(
                shared.source.clone(),
                unit,
                shared.options.scan_options(),
                shared.options.retry,
                None,
            );
            let mut keys = Vec::new();
            let mut is_over = false;
            while !is_over || !keys.is_empty() {
                match scan.next().await? {
                    Some(page) => keys.extend(page.keys.into_iter().filter(|key| {
                        slots.contains(Slot::of_key(key)) && shared.options.selection.admits(key)
                    })),
                    None => is_over = true,
                }
                if !is_over && keys.len() < BATCH_KEYS_MAX * COMPARERS {
                    continue;
                }
                let batch: Vec<Bytes> = keys.drain(..keys.len().min(BATCH_KEYS_MAX * COMPARERS)).collect();
                let number = batch.len() as u64;
                let compare = async {
                    shared.limits.rates.take_keys(number).await;
                    differing(&mut comparers, &batch).await
                };
                let Some(differing) = shared.stop.run_until_cancelled(compare).await else {
                    return Ok(false);
                };
                CopyProgress::add(&shared.progress.compared, number);
                if !self.transfer(pair.source, differing?).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The keys that the sync is about, by database.
    fn sorted(&self, touches: Vec<Touch>, dbs: &[u32]) -> BTreeMap<u32, Vec<Bytes>> {
        let topology = self.shared.source.topology();
        let own = |slot| topology.shard_of(slot).is_none_or(|shard| shard.id == self.unit.shard_id);
        let mut sorted: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
        for touch in touches {
            if !self.shared.options.selection.admits(&touch.key) {
                continue;
            }
            let slot = Slot::of_key(&touch.key);
            if topology.cluster && !own(slot) {
                // Its slot is on its way from or to this node: two lanes must not have it at the same time,
                // so it is transferred with the whole slot when that has settled.
                self.shared.suspects.note_source(slot);
                continue;
            }
            let mut add = |db: u32, key: Bytes| {
                let key = (db, key);
                // It gets its turn anyway.
                if !self.later.contains(&key) {
                    sorted.entry(db).or_default().push(key.1);
                }
            };
            match touch.db {
                Some(db) => add(db, touch.key),
                None => dbs.iter().for_each(|db| add(*db, touch.key.clone())),
            }
        }
        for keys in sorted.values_mut() {
            // A touch without a database and one with it are two.
            keys.sort_unstable();
            keys.dedup();
        }
        sorted
    }
}

/// The databases of a server that hold keys.
/// These keys, and those that are filled with what is written to them.
async fn with_filled(
    shared: &Shared,
    unit: &Unit,
    links: &mut BTreeMap<u32, Link>,
    db: u32,
    mut keys: Vec<Bytes>,
) -> Result<Vec<Bytes>> {
    if !shared.source.capabilities.series || keys.is_empty() {
        return Ok(keys);
    }
    let unit = Unit { db, ..unit.clone() };
    let mut backoff = Backoff::new(shared.options.retry);
    loop {
        let asked = async {
            let mut link = match links.remove(&db) {
                Some(link) => link,
                None => unit.open(&shared.source).await?,
            };
            let filled = filled_by(&mut link, &keys).await?;
            links.insert(db, link);
            Ok(filled)
        };
        match asked.await {
            Ok(filled) => {
                let known: BTreeSet<Bytes> = keys.iter().cloned().collect();
                let more: BTreeSet<Bytes> = filled
                    .into_iter()
                    .filter(|key| !known.contains(key) && shared.options.selection.admits(key))
                    .collect();
                keys.extend(more);
                return Ok(keys);
            }
            Err(e) => {
                shared.pause(&mut backoff, e).await?;
                // After a failover another node owns the shard.
                shared.refresh_source().await;
            }
        }
    }
}

async fn keyspace(link: &mut Link) -> Result<BTreeSet<u32>> {
    if Info::ask(link, "persistence").await?.field("loading") != Some("0") {
        // Until then it counts fewer databases than it has.
        return Err(Error::own("count the keys", "the server may still be loading its data set"));
    }
    Ok(Info::ask(link, "keyspace").await?.keyspace().into_keys().collect())
}

/// Those of `keys` that differ, found by all comparers at the same time.
async fn differing(comparers: &mut Vec<Comparer>, keys: &[Bytes]) -> Result<Vec<Bytes>> {
    let mut running = JoinSet::new();
    let each = keys.len().div_ceil(comparers.len().max(1)).max(1);
    for (keys, mut comparer) in keys.chunks(each).map(<[Bytes]>::to_vec).zip(std::mem::take(comparers)) {
        running.spawn(async move {
            let found = comparer.differing(keys).await;
            (comparer, found)
        });
    }
    let mut differing = Vec::new();
    while let Some(joined) = running.join_next().await {
        let (comparer, found) = joined.map_err(|e| Error::own("compare keys", e))?;
        comparers.push(comparer);
        differing.extend(found?);
    }
    Ok(differing)
}

fn unit_of(shard: &Shard) -> Unit {
    Unit { shard_id: shard.id.clone(), slots: shard.slots.clone(), db: 0, from_replica: false }
}
