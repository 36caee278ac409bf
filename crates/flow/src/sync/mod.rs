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
//! with: slots move, a feed ends, a primary fails over, a database is emptied, the cutover is asked for. Then
//! all rounds are finished, and while nothing is under way it is dealt with. So no two tasks ever write the
//! same key.
//!
//! **Doubt.** What may have been missed is in doubt by whole slots, as in a copy, and is
//! [reconciled](reconcile): all keys of the slots are compared, those that differ are transferred, and those
//! that only the target has are removed.
//!
//! **Bounds.** As a copy, and [`TouchedLimits`](whimbrel_engine::feed::TouchedLimits) for each primary of the
//! source.

mod asked;
mod attach;
mod compare;
mod conditions;
mod cutover;
mod external;
mod fences;
mod fronted;
mod heard;
mod hooks;
mod moments;
mod options;
mod order;
mod reconcile;
mod report;
mod source;
mod state;
mod status;
mod syncer;
mod unseen;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::probe::Info;
use whimbrel_engine::seal::WriterFenceKind;

pub use self::asked::{Ask, Beginning, NotTakenOver};
pub use self::attach::rehearse_feeds;
pub use self::fences::{FenceNote, discard, refuse_to_discard};
use self::fences::{put_up_again, take_down};
pub use self::heard::SILENT_AFTER_MS;
use self::heard::millis;
pub use self::hooks::{Hooks, Moment, Occasion, Ran};
pub use self::options::{Compare, CutoverOptions, SyncOptions, WayBack};
pub use self::order::{FrontOrder, FrontSide, FrontStand, Fronts, HoldOrder, OrderAnswer};
use self::reconcile::Walk;
pub use self::report::{CutoverReport, ExternalReport, FrontReport, HookReport, SyncReport};
use self::source::{PositionHandle, Source};
pub use self::state::{Back, SyncState};
pub use self::status::{
    ExternalShown, ExternalStage, SourceShown, SyncPhase, SyncShown, SyncStatus, TargetShown,
};
use self::syncer::Syncer;
use crate::copy;
use crate::journal::{Journal, JournalState};
use crate::pipeline::{Shared, remove_leftovers};
use crate::verify::Settle;

/// How often positions are written down.
const JOURNAL_PERIOD: Duration = Duration::from_millis(500);

/// How often both sides are asked how they are.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// How often the comparison of a cutover is rehearsed, at the beginning of an epoch, and how long that may
/// take.
const REHEARSAL_PERIOD: Duration = Duration::from_secs(60);
const REHEARSAL_TIME: Duration = Duration::from_secs(1);

/// Every this many polls the primaries of the target are met.
const POLLS_PER_MEETING: u32 = 5;

/// The target has taken over, and the caller that waits for that answer.
struct TakenOver {
    report: CutoverReport,
    answer: Option<oneshot::Sender<Result<CutoverReport, NotTakenOver>>>,
    /// When.
    at: Instant,
}

/// What comes after an epoch.
enum Next {
    Stop,
    Repair,
    Cutover(Box<Ask>),
}

/// Syncs until it is stopped or the target has taken over. The plan has been made, and agreed to, before.
///
/// With a journal that holds an earlier run, that run continues. Cutovers are asked for by `asks`. After one
/// that was to be able to come back, [`Back`] is what the sync in the other direction begins with.
///
/// # Errors
/// What could not be helped by trying again. The journal stays, and a later run can go on.
pub fn sync(
    source: Arc<Deployment>,
    target: Arc<Deployment>,
    options: SyncOptions,
    status: Arc<SyncStatus>,
    journal: Journal<SyncState>,
    mut asks: mpsc::Receiver<Ask>,
    stop: CancellationToken,
) -> LocalBoxFuture<'static, Result<(SyncReport, Option<Back>)>> {
    // Boxed, so that it is compiled here and not in each crate that awaits it.
    Box::pin(async move {
        for side in [&source, &target] {
            side.check_known(copy::SYNC_ASKS_MORE, copy::GIVE_INFO)?;
        }
        let started = Instant::now();
        let seen = (source.topology(), target.topology());
        let shared = Shared::new(source, target, options.copy.clone(), status.copy.clone(), stop.clone());
        let state = journal.state().clone();
        let resumed = !state.copy.is_fresh();
        let mut sync = Syncer {
            shared: Arc::new(shared),
            suspects: state.suspects.parse().unwrap_or_default(),
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
            pause_ends_ms: None,
        };
        sync.state.source = sync.shared.source.endpoint.address.to_string();
        if !resumed {
            sync.state.sweep = sync.options.sweep_first;
        }
        let mut listeners = JoinSet::new();
        let heard = [sync.status.source_heard.clone(), sync.status.target_heard.clone()];
        for (deployment, heard) in [&sync.shared.source, &sync.shared.target].into_iter().zip(&heard) {
            listeners.spawn(heard::listen(deployment.clone(), heard.clone()));
        }
        let mut leftovers = JoinSet::new();
        if resumed {
            leftovers.spawn(remove_leftovers(sync.shared.clone()));
        }
        let outcome = sync.run(resumed, &mut asks).await;
        listeners.shutdown().await;
        heard.iter().for_each(|heard| heard.clear());
        let taken_over = match outcome {
            Ok(taken_over) => taken_over,
            Err(e) => {
                sync.status.phase(SyncPhase::Stopped);
                sync.save()?;
                return Err(e);
            }
        };
        let snapshot_done = sync.state.snapshot_done;
        let cutover = match taken_over {
            Some(TakenOver { mut report, answer, at }) => {
                sync.leave_fence().await;
                sync.begin_way_back();
                sync.forget_lifted(&report);
                // From here on no later run undoes the cutover: clients may be sent away.
                let finished = sync.journal.finish();
                moments::send_clients(&sync.options, &mut report, at).await;
                if let Some(answer) = answer {
                    // The caller may have gone.
                    let _ = answer.send(Ok(report.clone()));
                }
                finished?;
                Some(report)
            }
            None => {
                sync.status.phase(SyncPhase::Stopped);
                sync.save()?;
                None
            }
        };
        leftovers.join_all().await;
        let evicted = copy::note_evicted(&sync.shared);
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
    })
}

impl Syncer {
    async fn run(&mut self, resumed: bool, asks: &mut mpsc::Receiver<Ask>) -> Result<Option<TakenOver>> {
        // First of all: writers of the source wait for it, however the target is.
        let by_front = self.state.cut_over.as_ref().is_some_and(|f| f.kind() == WriterFenceKind::Front);
        if !by_front {
            self.undo_interrupted().await?;
        }
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
                self.suspects = SlotSet::full();
            } else {
                self.distrust_everything();
            }
        }
        self.state.copy.target_runs = runs;
        if let Some(fence) = self.state.cut_over.take_if(|_| by_front) {
            // It died during its cutover: how far it came is unknown.
            self.state.lifted = self.state.lift.is_some();
            if let Some(report) = self.resume_switch(fence).await? {
                return Ok(Some(TakenOver { report, answer: None, at: Instant::now() }));
            }
            if self.state.lifted {
                self.close_target().await;
            }
        }
        if resumed {
            self.suspect_moved();
        }
        self.attach().await?;
        if !resumed {
            // Nothing has been missed that the snapshot would not find.
            self.suspects = SlotSet::new();
        } else if !self.state.snapshot_done && !self.suspects.is_empty() {
            self.notice("changes were missed while nobody followed: the snapshot starts again");
            self.distrust_everything();
            self.suspects = SlotSet::new();
        } else if !self.suspects.is_empty() {
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
            self.suspects = self.suspects.union(&failed);
        }
        while self.state.sweep {
            self.status.phase(SyncPhase::Reconciling);
            match self.sweep(&SlotSet::full()).await? {
                Walk::Complete => self.state.sweep = false,
                Walk::Stopped => return Ok(None),
                // Its successor is followed first.
                Walk::Displaced => self.repair().await?,
            }
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
                    if let Some(taken_over) = self.answer(*ask).await? {
                        return Ok(Some(taken_over));
                    }
                }
            }
        }
    }

    /// Takes down the fence of a cutover whose process was killed; its caller was not notified of success.
    /// The journal knows of the fence until it is down. If a node does not let that be done, it is tried
    /// again while the sync follows: the others do not wait for it.
    async fn undo_interrupted(&mut self) -> Result<()> {
        let fence = self.state.cut_over.clone();
        // How far it came is unknown.
        self.state.lifted |= fence.is_some() && self.state.lift.is_some();
        if self.state.lifted {
            // Before those of the source are let in: at no time are they let in on both sides.
            self.close_target().await;
        }
        let Some(fence) = fence else { return Ok(()) };
        match fence.lift(&self.shared.source).await {
            Ok(()) => {
                self.state.cut_over = None;
                self.notice("a cutover was interrupted: writers of the source are let in again");
            }
            // It does not follow for long.
            Err(error) if self.options.once => return Err(error),
            Err(error) => self.notice(&format!(
                "a cutover was interrupted, and a part of its fence stays at the source: {error}. It is \
                    tried again each second while the sync follows"
            )),
        }
        Ok(())
    }

    /// Cuts over, if that can be done, and answers. That a target has taken over is not reported yet.
    ///
    /// # Errors
    /// If it is unknown which side is authoritative: nothing may be transferred any more.
    async fn answer(&mut self, ask: Ask) -> Result<Option<TakenOver>> {
        let Ask { options, withdrawn, beginning, answer } = ask;
        self.status.phase(SyncPhase::of_cutover(options.dry_run));
        let outcome = self.cutover(&options, &withdrawn, &beginning).await;
        match &outcome {
            Ok(report) => tracing::info!(
                pause_ms = report.pause_ms,
                drained = report.drained,
                dry_run = report.dry_run,
                "a cutover has ended"
            ),
            Err(error) => tracing::info!(%error, "a cutover was given up"),
        }
        match outcome {
            Ok(report) if report.is_final() => {
                Ok(Some(TakenOver { report, answer: Some(answer), at: Instant::now() }))
            }
            // The answer is the reason why the sync ends, too.
            outcome if self.state.fronted.is_some() => {
                let refusal = outcome.err().map(|e| (e.problem(), e.remedy));
                let (why, remedy) = refusal.unwrap_or_default();
                let error = || Error::own("cut over", &why);
                let reply = Error { remedy: remedy.clone(), ..error() };
                let _ = answer.send(Err(NotTakenOver::new(reply, &beginning)));
                Err(Error { remedy, ..error() })
            }
            outcome => {
                if let Err(error) = &outcome
                    && !options.dry_run
                {
                    self.be_refused(error).await;
                }
                // The caller may have gone.
                let _ = answer.send(outcome.map_err(|error| NotTakenOver::new(error, &beginning)));
                Ok(None)
            }
        }
    }

    /// Forgets the notes of the fence that a cutover back has taken down: a later sync from there is not
    /// refused.
    fn forget_lifted(&self, report: &CutoverReport) {
        let folder = self.options.fence_file.parent().unwrap_or(Path::new(""));
        if report.lifted
            && let Err(e) = FenceNote::forget_all(folder, &self.shared.target)
        {
            self.notice(&format!("the fence that was taken down is still noted: {e}"));
        }
    }

    /// Writes down the sync that leads back before this one is forgotten: a process that is killed in between
    /// could not find the way back any more.
    fn begin_way_back(&mut self) {
        let (Some(place), Some(back)) = (&self.options.way_back, &mut self.back) else { return };
        let (WayBack { folder, name, description }, state) = (place, SyncState::leading_back(back));
        // An earlier one of this name has come to nothing. Clients wait: not for a disk that is full.
        let begun =
            discard(folder, name).and_then(|_| Journal::begin_at_once(folder, name, description, state));
        match begun {
            Ok(journal) => back.journal = Some(journal),
            // The cutover is done all the same.
            Err(e) => self.status.copy.notice(format!("the way back is not written down yet: {e}")),
        }
    }

    /// Writes down what undoes the fence, for the command that takes it down.
    async fn leave_fence(&mut self) {
        self.status.phase(SyncPhase::CutOver);
        // No primary is followed any more.
        self.sources.clear();
        let Some(fence) = self.state.cut_over.take() else { return };
        let source = self.shared.source.endpoint.address.to_string();
        let note = FenceNote { source, fence, interrupted: false };
        if let Err(e) = note.leave(&self.options.fence_file, &self.status.copy.disk).await {
            // The cutover is done all the same.
            self.status.copy.notice(format!("{e}: the fence has to be taken down by hand"));
        }
    }

    /// Slots that left their shard while it was not followed: their last changes there were not seen.
    fn suspect_moved(&mut self) {
        let topology = self.shared.source.topology();
        for (id, slots) in &self.state.layout {
            let before: SlotSet = slots.parse().unwrap_or_default();
            let now = topology.shards.iter().find(|shard| shard.id == *id).map(|shard| &shard.slots);
            let left = now.map_or(before.clone(), |now| before.difference(now));
            self.suspects = self.suspects.union(&left);
        }
    }

    /// The slots of keys that failed in an earlier run. They are to be gone through again, and failures are
    /// counted anew.
    fn take_failures(&mut self) -> SlotSet {
        let copy = &mut self.state.copy;
        let listed = copy.failures.len() as u64;
        let slots = copy.failures.drain(..).filter_map(|key| Slot::new(key.failure.slot));
        let slots = slots.fold(SlotSet::new(), |mut all, slot| {
            all.insert(slot);
            all
        });
        // Not all of them are listed if there are many.
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

    /// Transfers every key once; false if the user stopped it before.
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
                        // The caller may have gone.
                        let _ = ask.answer.send(Err(NotTakenOver::new(refused, &ask.beginning)));
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
        helpers.spawn(poll_health(
            self.shared.clone(),
            self.status.clone(),
            !self.suspects.is_empty(),
            enough.clone(),
        ));
        let stop = self.shared.stop.clone();
        let mut tick = interval(JOURNAL_PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut next, mut failure, mut asking) = (None, None, true);
        let taken_down =
            take_down(self.state.cut_over.clone(), self.pause_ends_ms, self.shared.source.clone());
        tokio::pin!(taken_down);
        let lifted = self.state.lift.clone().filter(|_| self.state.lifted);
        let put_up_again = put_up_again(lifted, self.shared.target.clone());
        tokio::pin!(put_up_again);
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
                () = &mut taken_down, if self.state.cut_over.is_some() => {
                    self.state.cut_over = None;
                    self.notice("what was left of a fence is taken down: writers are let in everywhere");
                    continue;
                }
                gaps = &mut put_up_again, if self.state.lifted => {
                    if gaps.is_empty() {
                        self.notice("writers are kept away from the target again");
                    }
                    self.target_is_closed(&gaps);
                    continue;
                }
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
            self.compare(Compare::Sample, &sample, Settle::none()).await?;
            Ok::<_, Error>(millis(began) + 1)
        };
        // No primary is followed meanwhile.
        match timeout(REHEARSAL_TIME, compare).await {
            Ok(Ok(took_ms)) => self.status.compared_within(took_ms),
            Ok(Err(error)) => tracing::debug!(%error, "the comparison could not be rehearsed"),
            Err(_) => tracing::debug!("the rehearsal of the comparison takes too long"),
        }
    }
}

/// Asks both sides every now and then how they are, and ends the epoch if something is in doubt: something
/// new, or something from before that had to wait.
async fn poll_health(shared: Arc<Shared>, status: Arc<SyncStatus>, waits: bool, enough: CancellationToken) {
    let mut polls = 0u32;
    loop {
        sleep(POLL_PERIOD).await;
        shared.refresh_source().await;
        shared.refresh_target().await;
        if polls.is_multiple_of(POLLS_PER_MEETING) {
            copy::poll_target(&shared).await;
        }
        polls = polls.wrapping_add(1);
        for view in status.views() {
            let asked = async {
                let mut link = shared.source.open(view.feed.address(), 0).await?;
                Info::ask(&mut link, "replication").await
            };
            if let Ok(info) = asked.await {
                if info.field("role") == Some("master") {
                    view.feed.compare_history(info.field("master_replid").unwrap_or_default());
                }
                view.server_offset.store(info.number("master_repl_offset").unwrap_or(0), Ordering::Relaxed);
            }
        }
        if waits || !shared.suspects.all().is_empty() {
            return enough.cancel();
        }
    }
}
