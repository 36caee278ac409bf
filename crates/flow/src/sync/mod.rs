//! Keeps one deployment equal to another for as long as it is wanted, until the other takes over.
//!
//! ```text
//!  feed of each primary ──▶ touched keys ──┐ rounds
//!                                          ▼
//!  SCAN ──▶ lanes of the shard: read from the source ──▶ write to the target, or remove there
//! ```
//!
//! Each primary of the source has a [feed](whimbrel_engine::feed) of touched keys. It is attached before the
//! first key is read, so that what the snapshot misses is touched, and what is touched is transferred again,
//! in its present state: a key that is gone is removed. Reads and writes go through the lanes of
//! [`copy`](crate::copy).
//!
//! **Rounds.** A round takes what is touched, transfers it, and ends when all of it has been acknowledged.
//! Then the position of the feed from before the round is safe: a later run can go on there.
//!
//! **Elements.** A large hash, set or sorted set that has moved in chunks is followed by its elements
//! afterwards: their present state is transferred, as that of whole keys is. It need not rest while it is
//! read: what changes meanwhile is touched.
//!
//! **Epochs.** All primaries are followed at the same time until something happens that a round cannot deal
//! with: slots move, a feed ends, a primary fails over, a database is emptied, somebody asks for the cutover.
//! Then all rounds are finished, and while nothing is under way it is dealt with. So nobody ever writes a key
//! that somebody else writes.
//!
//! **Doubt.** What may have been missed is in doubt by whole slots, as in a copy, and is
//! [reconciled](reconcile): all keys of the slots are compared, those that differ are transferred, and those
//! that only the target has are removed.
//!
//! **Bounds.** As a copy, and [`TouchedLimits`](whimbrel_engine::feed::TouchedLimits) for each primary of the
//! source.

mod compare;
mod consumers;
mod cutover;
mod external;
mod fences;
mod heard;
mod reconcile;
mod source;
mod status;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::{Deployment, Shard, Topology};
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::feed::{Feed, FeedKind, FeedOptions};
use whimbrel_engine::probe::Info;
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::seal::Fence;

pub use self::cutover::{Compare, CutoverOptions, CutoverReport};
pub use self::external::{ExternalReport, ExternalShown, ExternalStage};
pub use self::fences::FenceNote;
use self::source::{Position, PositionHandle, Round, Source};
pub use self::status::{SourceShown, SyncPhase, SyncShown, SyncStatus, TargetShown};
use crate::copy::{self, CopyOptions, KeyFailure};
use crate::journal::{Journal, JournalState};
use crate::pipeline::Shared;
use crate::progress::CopyCounts;
use crate::retry::Backoff;

/// How often positions are written down.
const JOURNAL_PERIOD: Duration = Duration::from_millis(500);

/// How often both sides are asked how they are.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// How often the comparison of a cutover is rehearsed, at the beginning of an epoch, and how long that may
/// take.
const REHEARSAL_PERIOD: Duration = Duration::from_secs(60);
const REHEARSAL_TIME: Duration = Duration::from_secs(1);

/// Every so many looks the primaries of the target are met.
const LOOKS_PER_MEETING: u32 = 5;

/// What to keep equal, and how.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// Which keys, and how they are transferred. [`CopyOptions::mirror`] must be set, and no types and no
    /// limit.
    pub copy: CopyOptions,
    /// How changes are learnt of.
    pub feed: FeedOptions,
    /// A tracking feed will not do.
    pub replication_only: bool,
    /// The target held keys before: those that the source does not have are removed after the snapshot.
    pub sweep_first: bool,
    /// Function libraries are copied, and once more at the cutover.
    pub functions: bool,
    /// End as soon as nothing is left to transfer.
    pub once: bool,
    /// All databases were meant: keys in one that was left out are worth a word.
    pub all_dbs: bool,
    /// Where a [`FenceNote`] is left after a cutover.
    pub fence_file: PathBuf,
}

/// How far a sync is: what its journal keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncState {
    /// Of the snapshot.
    copy: JournalState,
    /// Every key has been transferred once.
    snapshot_done: bool,
    /// The target still has to be searched for keys that the source does not have.
    sweep: bool,
    /// Where the feeds can go on.
    positions: Vec<Position>,
    /// Which shard of the source owned which slots when nothing was in doubt but what is below: shard id and
    /// slots.
    layout: BTreeMap<String, String>,
    /// Slots to go through again, as ranges.
    doubt: String,
    /// What was done to the source at the cutover.
    cut_over: Option<Fence>,
    /// What keeps writers away from the target: it was the source before, and this sync leads back to it.
    lift: Option<Fence>,
}

impl SyncState {
    /// Of a sync that leads back to where another one came from, and begins where that one ended.
    pub fn leading_back(back: &Back) -> SyncState {
        SyncState {
            copy: JournalState { pass: 1, ..JournalState::default() },
            snapshot_done: true,
            positions: back.positions.clone(),
            lift: Some(back.fence.clone()),
            ..SyncState::default()
        }
    }
}

/// What a sync needs that leads back to the source of one that was cut over.
#[derive(Debug)]
pub struct Back {
    /// Where the target was at the cutover: what comes after that was written by others.
    positions: Vec<Position>,
    fence: Fence,
    /// They make the target keep a backlog from there on, until somebody else follows it.
    _feeds: Vec<Feed>,
}

/// Somebody wants the target to take over.
#[derive(Debug)]
pub struct Ask {
    /// How.
    pub options: CutoverOptions,
    /// Cancelled when nobody waits for the answer any more: then nothing is begun.
    pub withdrawn: CancellationToken,
    /// Where the outcome goes.
    pub answer: oneshot::Sender<Result<CutoverReport>>,
}

/// What a sync did.
#[derive(Debug, Clone, Serialize)]
pub struct SyncReport {
    /// All counters. Keys that were removed from the target count as `gone`.
    pub counts: CopyCounts,
    /// How long it ran.
    pub duration_ms: u64,
    /// True where it went on from a journal.
    pub resumed: bool,
    /// True where every key had been transferred at least once.
    pub snapshot_done: bool,
    /// How many slots were gone through again, repetitions included.
    pub reconciled_slots: u64,
    /// True where it ended by itself because nothing was left to transfer.
    pub caught_up: bool,
    /// The cutover, where there was one.
    pub cutover: Option<CutoverReport>,
    /// Keys that the target evicted meanwhile.
    pub evicted: u64,
    /// The first keys that are not on the target; their number is in the counters.
    pub failures: Vec<KeyFailure>,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// What comes after an epoch.
enum Next {
    Stop,
    Repair,
    Cutover(Box<Ask>),
}

struct Syncer {
    shared: Arc<Shared>,
    options: SyncOptions,
    status: Arc<SyncStatus>,
    journal: Journal<SyncState>,
    state: SyncState,
    sources: Vec<Source>,
    /// Slots to be reconciled.
    doubt: SlotSet,
    /// The topologies by which slots that moved are found.
    seen: (Arc<Topology>, Arc<Topology>),
    reconciled_slots: u64,
    back: Option<Back>,
    caught_up: bool,
    /// Something was written to a database that should be part of this sync and is not.
    unmapped: bool,
    /// When the comparison of a cutover was last rehearsed.
    rehearsed: Option<Instant>,
}

/// Syncs until it is stopped or the target has taken over. The plan has been made, and agreed to, before.
///
/// With a journal that holds an earlier run, that run is gone on with. Cutovers are asked for by `asks`.
/// After one that was to be able to come back, [`Back`] is what the sync in the other direction begins with.
///
/// # Errors
/// What could not be helped by trying again. The journal stays, and a later run can go on.
pub async fn sync(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: SyncOptions,
    status: Arc<SyncStatus>,
    journal: Journal<SyncState>,
    mut asks: mpsc::Receiver<Ask>,
    stop: CancellationToken,
) -> Result<(SyncReport, Option<Back>)> {
    let started = Instant::now();
    let seen = (source.topology(), target.topology());
    let shared = Shared::new(source, target, options.copy.clone(), status.copy.clone(), stop.clone());
    let state = journal.state().clone();
    let resumed = !state.copy.is_fresh();
    let mut sync = Syncer {
        shared: Arc::new(shared),
        doubt: state.doubt.parse().unwrap_or_default(),
        options,
        status,
        journal,
        state,
        sources: Vec::new(),
        seen,
        reconciled_slots: 0,
        back: None,
        caught_up: false,
        unmapped: false,
        rehearsed: None,
    };
    if !resumed {
        sync.state.sweep = sync.options.sweep_first;
    }
    let mut listeners = JoinSet::new();
    let heard = [sync.status.source_heard.clone(), sync.status.target_heard.clone()];
    for (deployment, heard) in [&sync.shared.source, &sync.shared.target].into_iter().zip(&heard) {
        listeners.spawn(heard::listen(deployment.clone(), heard.clone()));
    }
    let outcome = sync.run(resumed, &mut asks).await;
    listeners.shutdown().await;
    heard.iter().for_each(|heard| heard.clear());
    let cutover = match outcome {
        Ok(cutover) => cutover,
        Err(e) => {
            sync.status.phase(SyncPhase::Stopped);
            sync.save()?;
            return Err(e);
        }
    };
    let snapshot_done = sync.state.snapshot_done;
    let evicted = copy::note_evicted(&sync.shared);
    if cutover.is_some() {
        sync.status.phase(SyncPhase::CutOver);
        if let Some(fence) = sync.state.cut_over.take() {
            let source = sync.shared.source.endpoint.address.to_string();
            let note = FenceNote { source, fence };
            if let Err(e) = note.leave(&sync.options.fence_file, &sync.status.copy.disk).await {
                // The cutover is done all the same.
                sync.status.copy.notice(format!("{e}: the fence has to be taken down by hand"));
            }
        }
        sync.journal.finish()?;
    } else {
        sync.status.phase(SyncPhase::Stopped);
        sync.save()?;
    }
    let report = SyncReport {
        counts: sync.status.copy.snapshot(),
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        resumed,
        snapshot_done,
        reconciled_slots: sync.reconciled_slots,
        caught_up: sync.caught_up,
        cutover,
        evicted,
        failures: sync.shared.failures.listed(),
        notices: sync.status.copy.notices(),
    };
    Ok((report, sync.back))
}

/// How the changes of each primary of a source would be learnt of: feeds are attached, and dropped again.
///
/// # Errors
/// As [`Feed::attach`]; `Unfit` where only tracking can be had and that will not do.
pub async fn rehearse_feeds(
    source: &Deployment,
    options: FeedOptions,
    replication_only: bool,
) -> Result<Vec<(Address, FeedKind)>> {
    let mut kinds = Vec::new();
    for shard in &source.topology().shards {
        let feed = Feed::attach(source, &shard.primary, SlotSet::full(), options).await?;
        refuse_tracking(&feed, replication_only)?;
        kinds.push((shard.primary.clone(), feed.kind()));
    }
    Ok(kinds)
}

impl Syncer {
    async fn run(&mut self, resumed: bool, asks: &mut mpsc::Receiver<Ask>) -> Result<Option<CutoverReport>> {
        let wanted = |db| self.shared.options.dbs.iter().any(|pair| pair.source == db);
        let found = copy::databases(&self.shared.source).await?;
        let keys = found.into_iter().filter(|(db, _)| wanted(*db)).map(|(_, keys)| keys).sum();
        // The first groups are sized by it: without, every value would be measured before it is read.
        self.status.copy.keys_total.store(keys, Ordering::Relaxed);
        let runs = copy::target_runs(&self.shared).await?;
        copy::remember(&self.shared, &self.state.copy);
        let known = &self.state.copy.target_runs;
        if resumed && !known.is_empty() && *known != runs {
            self.notice("a server of the target is not the process it was: everything is gone through again");
            if self.state.snapshot_done {
                self.doubt = SlotSet::full();
            } else {
                self.distrust_everything();
            }
        }
        self.state.copy.target_runs = runs;
        if let Some(fence) = self.state.cut_over.take() {
            // It died while it cut over. The one that asked for that was not told that it succeeded.
            fence.lift(&self.shared.source).await?;
            self.notice("a cutover was interrupted: writers of the source are let in again");
        }
        if resumed {
            self.doubt_what_moved();
        }
        self.attach().await?;
        if !resumed {
            // Nothing has been missed that the snapshot would not find.
            self.doubt = SlotSet::new();
        } else if !self.state.snapshot_done && !self.doubt.is_empty() {
            self.notice("changes were missed while nobody followed: the snapshot starts again");
            self.distrust_everything();
            self.doubt = SlotSet::new();
        } else if !self.doubt.is_empty() {
            self.notice(
                "changes were missed while nobody followed: what may have changed is compared with the \
                    target",
            );
        }
        self.save()?;
        if self.options.functions {
            self.copy_functions().await?;
        }
        if !self.state.snapshot_done && !self.snapshot(asks).await? {
            return Ok(None);
        }
        if resumed {
            // Before the snapshot is complete they would make it start again.
            let failed = self.take_failures();
            self.doubt = self.doubt.union(&failed);
        }
        if self.state.sweep {
            self.status.phase(SyncPhase::Reconciling);
            if !self.sweep(&SlotSet::full()).await? {
                return Ok(None);
            }
            self.state.sweep = false;
        }
        self.repair().await?;
        loop {
            if self.options.once && self.catch_up().await? {
                self.caught_up = true;
                return Ok(None);
            }
            match self.epoch(asks).await? {
                Next::Stop => return Ok(None),
                Next::Repair => self.repair().await?,
                Next::Cutover(ask) => {
                    let Ask { options, withdrawn, answer } = *ask;
                    self.status.phase(SyncPhase::CuttingOver);
                    let outcome = self.cutover(&options, &withdrawn).await;
                    match &outcome {
                        Ok(report) => tracing::info!(
                            pause_ms = report.pause_ms,
                            drained = report.drained,
                            dry_run = report.dry_run,
                            "a cutover has ended"
                        ),
                        Err(error) => tracing::info!(%error, "a cutover was given up"),
                    }
                    let report = outcome.as_ref().ok().filter(|report| report.is_final()).cloned();
                    // The one that asked may have gone.
                    let _ = answer.send(outcome);
                    if report.is_some() {
                        return Ok(report);
                    }
                }
            }
        }
    }

    /// Slots that left their shard while nobody followed: their last changes there were not seen.
    fn doubt_what_moved(&mut self) {
        let topology = self.shared.source.topology();
        for (id, slots) in &self.state.layout {
            let before: SlotSet = slots.parse().unwrap_or_default();
            let now = topology.shards.iter().find(|shard| shard.id == *id).map(|shard| &shard.slots);
            let left = now.map_or(before.clone(), |now| before.difference(now));
            self.doubt = self.doubt.union(&left);
        }
    }

    /// The slots of keys that failed in an earlier run. They are to be gone through again, and failures are
    /// counted anew.
    fn take_failures(&mut self) -> SlotSet {
        let copy = &mut self.state.copy;
        let listed = copy.failures.len() as u64;
        let slots = copy.failures.drain(..).filter_map(|failure| Slot::new(failure.slot));
        let slots = slots.fold(SlotSet::new(), |mut all, slot| {
            all.insert(slot);
            all
        });
        // Not all of them are listed where there are many.
        let slots = if copy.failed > listed { SlotSet::full() } else { slots };
        copy.failed = 0;
        copy::remember(&self.shared, &self.state.copy);
        slots
    }

    /// The snapshot has to be taken again, as if there had never been one; keys that are gone since are
    /// looked for.
    fn distrust_everything(&mut self) {
        let target_runs = std::mem::take(&mut self.state.copy.target_runs);
        self.state.copy = JournalState { target_runs, ..JournalState::default() };
        copy::remember(&self.shared, &self.state.copy);
        (self.state.snapshot_done, self.state.sweep) = (false, true);
    }

    /// Transfers every key once; false where the user stopped it before.
    async fn snapshot(&mut self, asks: &mut mpsc::Receiver<Ask>) -> Result<bool> {
        self.status.phase(SyncPhase::Snapshotting);
        self.seen = (self.shared.source.topology(), self.shared.target.topology());
        let layout = copy::layout(&self.seen.0);
        self.state.copy.pass = 1;
        self.state.copy.source_layout = layout;
        let mut copy = self.state.copy.clone();
        let complete = {
            let (shared, journal, state) = (&self.shared, &mut self.journal, &mut self.state);
            let mut keep = |copy: &JournalState| {
                state.copy.clone_from(copy);
                journal.checkpoint(state, &shared.progress.disk)
            };
            let pass = copy::run_pass(shared, &mut copy, &mut keep);
            tokio::pin!(pass);
            loop {
                tokio::select! {
                    complete = &mut pass => break complete?,
                    Some(ask) = asks.recv() => {
                        let what = "the snapshot is still being taken";
                        let refused = Error::options(Side::Own, "cut over", what)
                            .with_remedy("wait until the sync follows");
                        // The one that asked may have gone.
                        let _ = ask.answer.send(Err(refused));
                    }
                }
            }
        };
        if complete {
            self.state.copy = copy;
            self.state.snapshot_done = true;
        }
        Ok(complete)
    }

    /// Gives every primary of the source a feed. What may have been missed is in doubt afterwards.
    async fn attach(&mut self) -> Result<()> {
        self.status.phase(SyncPhase::Attaching);
        let topology = self.shared.source.topology();
        let mut old = std::mem::take(&mut self.sources);
        // Those that are written down are older, and count only where there are no others.
        let mut known: Vec<Position> = old.iter().filter_map(Source::position).collect();
        known.extend(self.state.positions.iter().filter(|_| old.is_empty()).cloned());
        let alive = |source: &Source, shard: &Shard| {
            *source.feed.address() == shard.primary && source.feed.failure().is_none()
        };
        self.unmapped |= old.iter().any(|source| source.unmapped);
        let mut sources = Vec::new();
        for shard in &topology.shards {
            if let Some(index) = old.iter().position(|source| alive(source, shard)) {
                let mut source = old.swap_remove(index);
                source.become_shard(shard);
                sources.push(source);
                continue;
            }
            match self.attach_to(shard, &known).await {
                Ok(source) => sources.push(source),
                Err(e) => {
                    // A process that goes on after this finds them as they were, and repairs them again.
                    sources.append(&mut old);
                    self.sources = sources;
                    return Err(e);
                }
            }
        }
        let by_elements = sources.iter().filter(|source| source.feed.kind() != FeedKind::Tracking);
        self.shared.followed.begin(by_elements.map(|source| source.unit.shard_id.clone()).collect());
        self.sources = sources;
        self.status.sources(self.sources.iter().map(|source| source.view.clone()).collect());
        Ok(())
    }

    async fn attach_to(&mut self, shard: &Shard, known: &[Position]) -> Result<Source> {
        let shared = self.shared.clone();
        let mut backoff = Backoff::new(shared.options.retry);
        loop {
            match try_attach(&shared, shard, known, &self.options).await {
                Ok((feed, Some(position))) => {
                    tracing::info!(at = %shard.primary, offset = position.history.offset, "following goes \
                        on");
                    return Ok(Source::new(
                        &shared,
                        shard,
                        feed,
                        Some(position.history),
                        self.options.all_dbs,
                    ));
                }
                Ok((feed, None)) => {
                    self.doubt = self.doubt.union(&shard.slots);
                    return Ok(Source::new(&shared, shard, feed, None, self.options.all_dbs));
                }
                Err(e) => shared.pause(&mut backoff, e).await?,
            }
            // Another node may lead the shard by now: who asked looks at the topology again.
            shared.refresh_source().await;
            let topology = shared.source.topology();
            if !topology.shards.iter().any(|now| now.primary == shard.primary)
                && let Some(now) =
                    topology.shards.iter().max_by_key(|s| s.slots.intersection(&shard.slots).len())
            {
                return Box::pin(self.attach_to(&now.clone(), known)).await;
            }
        }
    }

    /// Puts in order what a round cannot deal with. Nothing is under way meanwhile.
    async fn repair(&mut self) -> Result<()> {
        let (again, open) = copy::doubtful(&self.shared, &self.seen.0, &self.seen.1).await?;
        self.seen = (self.shared.source.topology(), self.shared.target.topology());
        self.doubt = self.doubt.union(&again);
        for source in &self.sources {
            if source.feed.touched().take_flushed() {
                self.doubt = self.doubt.union(&source.unit.slots);
            }
        }
        self.attach().await?;
        if let Some(wanted) = &self.shared.options.selection.slots {
            self.doubt = self.doubt.intersection(wanted);
        }
        let ready = self.doubt.difference(&open);
        self.status.doubtful(self.doubt.len());
        self.save()?;
        if !ready.is_empty() {
            self.status.phase(SyncPhase::Reconciling);
            if !self.reconcile(&ready).await? {
                return Ok(());
            }
            self.reconciled_slots += ready.len() as u64;
            self.doubt = self.doubt.difference(&ready);
            self.status.doubtful(self.doubt.len());
            self.save()?;
        }
        Ok(())
    }

    /// Follows all primaries until something else is to be done.
    async fn epoch(&mut self, asks: &mut mpsc::Receiver<Ask>) -> Result<Next> {
        self.rehearse_compare().await;
        self.status.phase(SyncPhase::Following);
        let enough = CancellationToken::new();
        let mut followers = JoinSet::new();
        let positions: Vec<_> = self.sources.iter().map(Source::position_handle).collect();
        for mut source in std::mem::take(&mut self.sources) {
            let enough = enough.clone();
            followers.spawn(async move {
                let outcome = source.follow(&enough).await;
                (source, outcome)
            });
        }
        let mut helpers = JoinSet::new();
        helpers.spawn(look(self.shared.clone(), self.status.clone(), !self.doubt.is_empty(), enough.clone()));
        let stop = self.shared.stop.clone();
        let mut tick = interval(JOURNAL_PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut next, mut failure, mut asking) = (None, None, true);
        loop {
            tokio::select! {
                joined = followers.join_next() => match joined {
                    None => break,
                    Some(Ok((source, outcome))) => {
                        failure = failure.or(outcome.err());
                        self.sources.push(source);
                    }
                    Some(Err(e)) => failure = failure.or(Some(Error::own("follow a primary", e))),
                },
                () = stop.cancelled(), if next.is_none() => next = Some(Next::Stop),
                ask = asks.recv(), if next.is_none() && asking => match ask {
                    Some(ask) => next = Some(Next::Cutover(Box::new(ask))),
                    None => asking = false,
                },
                _ = tick.tick() => {
                    self.state.positions = positions.iter().filter_map(PositionHandle::read).collect();
                    self.write_down()?;
                    continue;
                }
            }
            enough.cancel();
        }
        helpers.shutdown().await;
        // As the topology has them, so that what is shown does not jump about.
        self.sources.sort_by_key(|a| a.feed.address().to_string());
        self.save()?;
        match failure {
            Some(_) if stop.is_cancelled() => Ok(Next::Stop),
            Some(e) => Err(e),
            None => Ok(next.unwrap_or(Next::Repair)),
        }
    }

    /// Finds out now and then what comparing takes in a cutover.
    async fn rehearse_compare(&mut self) {
        if self.rehearsed.is_some_and(|at| at.elapsed() < REHEARSAL_PERIOD) {
            return;
        }
        self.rehearsed = Some(Instant::now());
        let compare = async {
            let sample = self.sample(Compare::Sample).await?;
            let began = Instant::now();
            self.compare(Compare::Sample, &sample, crate::verify::Settle::none()).await?;
            Ok::<_, Error>(cutover::millis(began) + 1)
        };
        // Nobody is followed meanwhile.
        match timeout(REHEARSAL_TIME, compare).await {
            Ok(Ok(took_ms)) => self.status.compared_within(took_ms),
            Ok(Err(error)) => tracing::debug!(%error, "the comparison could not be rehearsed"),
            Err(_) => tracing::debug!("the rehearsal of the comparison takes too long"),
        }
    }

    /// One round of all primaries at the same time. What came of it is what came of the worst.
    async fn rounds(&mut self) -> Result<Round> {
        let round = |mut source: Source| async move {
            let outcome = source.round(true).await;
            (source, outcome)
        };
        Ok(self.of_all(round).await?.into_iter().max().unwrap_or(Round::All))
    }

    /// Has all primaries do something at the same time. The first failure is returned when all have ended.
    async fn of_all<T, F>(&mut self, work: impl Fn(Source) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = (Source, Result<T>)> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for source in std::mem::take(&mut self.sources) {
            running.spawn(work(source));
        }
        let (mut outcomes, mut failure) = (Vec::new(), None);
        while let Some(joined) = running.join_next().await {
            match joined {
                Ok((source, outcome)) => {
                    self.sources.push(source);
                    match outcome {
                        Ok(outcome) => outcomes.push(outcome),
                        Err(e) => failure = failure.or(Some(e)),
                    }
                }
                Err(e) => failure = failure.or(Some(Error::own("follow a primary", e))),
            }
        }
        failure.map_or(Ok(outcomes), Err)
    }

    /// Transfers what is touched; true where nothing is left, and nothing is in doubt.
    async fn catch_up(&mut self) -> Result<bool> {
        while self.rounds().await? == Round::Part {}
        Ok(self.is_calm() && !self.shared.stop.is_cancelled() && !self.sources.iter().any(Source::is_broken))
    }

    /// All that has to be gone through again: what was found before, and what has come to it since.
    fn all_doubt(&self) -> SlotSet {
        self.doubt.union(&self.shared.suspects.all())
    }

    fn is_calm(&self) -> bool {
        self.all_doubt().is_empty()
    }

    async fn copy_functions(&self) -> Result<()> {
        let Shared { source, target, .. } = &*self.shared;
        crate::functions::copy(source, target, copy::Existing::Replace).await.map(drop)
    }

    /// Writes down how far it is, where the disk has room.
    fn save(&mut self) -> Result<()> {
        self.take_positions();
        self.write_down()
    }

    /// As [`Syncer::save`], of what must be on disk before the next step.
    fn save_at_once(&mut self) -> Result<()> {
        self.take_positions();
        self.collect();
        self.journal.save(&self.state)
    }

    fn take_positions(&mut self) {
        if !self.sources.is_empty() {
            self.state.positions = self.sources.iter().filter_map(Source::position).collect();
        }
    }

    /// The positions have been read before: a slot is in doubt before the position goes beyond what made it
    /// so.
    fn write_down(&mut self) -> Result<()> {
        self.collect();
        self.journal.checkpoint(&self.state, &self.status.copy.disk)
    }

    fn collect(&mut self) {
        self.state.layout = copy::layout(&self.seen.0);
        copy::record(&self.shared, &mut self.state.copy);
        self.status.failures(&self.state.copy.failures);
        self.state.doubt = self.all_doubt().to_string();
    }

    fn notice(&self, text: &str) {
        self.status.copy.notice(text.to_owned());
    }
}

/// A feed, and the position from which it goes on, where there was one.
async fn try_attach(
    shared: &Arc<Shared>,
    shard: &Shard,
    known: &[Position],
    options: &SyncOptions,
) -> Result<(Feed, Option<Position>)> {
    // A slot that comes to this primary later has been watched from the beginning.
    let slots = SlotSet::full();
    let at = shard.primary.to_string();
    let wanted =
        |position: &&Position| options.feed.kind != Some(FeedKind::Tracking) && position.address == at;
    for position in known.iter().filter(wanted) {
        let attach = async |from| {
            Feed::attach_at(&shared.source, &shard.primary, slots.clone(), options.feed, from).await
        };
        if position.seen != position.history && attach(&position.seen).await?.is_none() {
            continue;
        }
        if let Some(feed) = attach(&position.history).await? {
            return Ok((feed, Some(position.clone())));
        }
    }
    let feed = Feed::attach(&shared.source, &shard.primary, slots, options.feed).await?;
    refuse_tracking(&feed, options.replication_only)?;
    if feed.kind() == FeedKind::Tracking {
        shared.progress.notice(format!(
            "{} is followed by tracking: changes of consumer groups and functions arrive with the cutover \
                only",
            shard.primary
        ));
    }
    Ok((feed, None))
}

fn refuse_tracking(feed: &Feed, replication_only: bool) -> Result<()> {
    if !replication_only || feed.kind() != FeedKind::Tracking {
        return Ok(());
    }
    let at = feed.address().to_string();
    Err(Error::unfit(
        Side::Source,
        at,
        "attach a feed of changes",
        "the server does not let us have a replication link",
    )
    .with_remedy(Remedy::AllowReplicationOrAnyFeed))
}

/// Asks both sides every now and then how they are, and ends the epoch where something is in doubt: something
/// new, or something from before that had to wait.
async fn look(shared: Arc<Shared>, status: Arc<SyncStatus>, waits: bool, enough: CancellationToken) {
    let mut looks = 0u32;
    loop {
        sleep(LOOK_PERIOD).await;
        shared.refresh_source().await;
        shared.refresh_target().await;
        if looks.is_multiple_of(LOOKS_PER_MEETING) {
            copy::look_at_target(&shared).await;
        }
        looks = looks.wrapping_add(1);
        for view in status.views() {
            let asked = async {
                let mut link = shared.source.open(view.feed.address(), 0).await?;
                Info::ask(&mut link, "replication").await
            };
            if let Ok(info) = asked.await {
                view.server_offset.store(info.number("master_repl_offset").unwrap_or(0), Ordering::Relaxed);
            }
        }
        if waits || !shared.suspects.all().is_empty() {
            return enough.cancel();
        }
    }
}
