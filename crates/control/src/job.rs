//! Runs one job of the external method: asks the state machine, writes down what it says, and has it carried
//! out.
//!
//! **Invariant:** the job is on disk before its next effect begins. Two states are left out, `draining` and
//! `comparing`: resuming from them is the same as resuming from `pausing`, which was written, and writers are
//! waiting.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use whimbrel_core::migration::{
    Action, BatchState, End, Event, Job, Outcome, Phase, Preparation, Reached, Reason, Summary, Why, step,
};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::handover::Members;

use crate::clock::now_s;
use crate::executor::{Executor, Known, Silence};
use crate::failpoint::{self, When};
use crate::options::TransferOptions;
use crate::progress::JobProgress;
use crate::report::{Ending, JobReport, Pauses};
use crate::store::{Journal, Status};
use crate::topology::Topology;

/// How often others are shown how the job stands, at most.
const PUBLISH_PERIOD: Duration = Duration::from_millis(500);

/// What is written down of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The cluster, as `HOST:PORT`, without credentials.
    pub cluster: String,
    /// When the job was made, in seconds since the epoch.
    pub created_s: u64,
    /// How keys move.
    pub transfer: TransferOptions,
    /// The nodes of the source's and the target's shard, as the job last saw them; empty before that.
    #[serde(default)]
    pub members: (Vec<NodeId>, Vec<NodeId>),
    /// Nodes on which `cluster-allow-replica-migration` is to be switched on again.
    #[serde(default)]
    pub sheltered: Vec<NodeId>,
    /// Addresses of the cluster's nodes when the job was made, for when the one above is gone.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// How many keys each of its batches had when the job was made; empty if a whimbrel made it that did not
    /// count.
    #[serde(default)]
    pub batch_keys: Vec<u64>,
    /// A node that does not answer, as the job last looked.
    #[serde(default)]
    pub silent: Option<Silence>,
    /// Why the servers' own migration, which began the job, was left.
    #[serde(default)]
    pub fell_back: Option<String>,
    /// What its user calls it.
    #[serde(default)]
    pub name: Option<String>,
    /// The job itself.
    pub job: Job,
}

impl Record {
    /// A new job, as of now.
    pub fn new(cluster: String, nodes: Vec<String>, transfer: TransferOptions, job: Job) -> Record {
        let (members, sheltered) = Default::default();
        Record {
            cluster,
            created_s: now_s(),
            transfer,
            members,
            sheltered,
            nodes,
            batch_keys: Vec::new(),
            silent: None,
            fell_back: None,
            name: None,
            job,
        }
    }

    /// How many keys the batches that were handed over had, and how many all had, when the job was made.
    fn keys(&self) -> (u64, u64) {
        let batches = || self.job.batches().iter().zip(&self.batch_keys);
        let handed_over = batches().filter(|(batch, _)| batch.state == BatchState::HandedOver);
        (handed_over.map(|(_, keys)| keys).sum(), batches().map(|(_, keys)| keys).sum())
    }
}

/// What a display reads of a running job.
#[derive(Debug, Default)]
pub struct View {
    shown: Mutex<Shown>,
    /// Counters that change while an effect is carried out.
    pub progress: Arc<JobProgress>,
    /// What is notified of handed over slots.
    topology: OnceLock<Arc<Topology>>,
}

#[derive(Debug, Default)]
struct Shown {
    summary: Option<Summary>,
    words: String,
}

impl View {
    /// How an external job stands; `None` before it began.
    pub fn summary(&self) -> Option<Summary> {
        self.lock().summary.clone()
    }

    /// How the job stands, in words.
    pub fn words(&self) -> String {
        match self.progress.waits_for() {
            waits if waits.is_empty() => self.lock().words.clone(),
            waits => format!("{}: waits: {waits}", self.lock().words),
        }
    }

    /// From now on `topology` is notified of slots as soon as they are handed over.
    pub(crate) fn set_topology(&self, topology: Arc<Topology>) {
        // It is set once, before the job begins.
        let _ = self.topology.set(topology);
    }

    /// Notifies the topology that slots have a new owner.
    pub(crate) fn hand_over(&self, slots: &SlotSet, owner: &NodeId) {
        if let Some(topology) = self.topology.get() {
            topology.hand_over(slots, owner);
        }
    }

    pub(crate) fn set_words(&self, words: &str) {
        words.trim().clone_into(&mut self.lock().words);
    }

    fn show(&self, summary: Summary) {
        let mut shown = self.lock();
        shown.words = summary.to_string();
        shown.summary = Some(summary);
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock()
    }
}

/// Runs a job until it ends, is cancelled, or has to wait for another job. A job whose phase is not `queued`
/// is resumed.
///
/// `cancel` rolls the batch at hand back, if it is not fenced yet, and ends the job after it otherwise.
///
/// # Errors
/// `Own` if the journal cannot be written: the job stops where it is, and can be resumed.
pub async fn run(
    mut record: Record,
    journal: &Journal,
    deployment: Arc<Deployment>,
    view: &View,
    cancel: CancellationToken,
) -> Result<JobReport> {
    let started = Instant::now();
    let mut executor = Executor::new(
        deployment,
        record.transfer.clone(),
        record.job.rules().clone(),
        (record.job.id().to_string(), record.job.slots()),
        view.progress.clone(),
        cancel.clone(),
        known(&record),
    );
    let (keys_handed_over, keys_total) = record.keys();
    view.progress.keys_total.store(keys_total, Ordering::Relaxed);
    view.progress.keys_handed_over.store(keys_handed_over, Ordering::Relaxed);
    view.progress.rates.steer_pause();
    let latest = Mutex::new(Some(status_now(&record, view)));
    let outcome = tokio::select! {
        biased;
        outcome = drive(&mut record, journal, &mut executor, view, &latest, &cancel) => outcome,
        never = publish(journal, &latest, &view.progress) => match never {},
    };
    view.progress.waits(None);
    if record.job.has_ended() {
        executor.put_back().await;
    }
    journal.publish(&status_now(&record, view));
    outcome?;
    Ok(report(&record, started.elapsed(), view, executor.take_notices()))
}

/// Shows others every now and then how the job stands, also while one long effect is carried out.
async fn publish(
    journal: &Journal,
    latest: &Mutex<Option<Status>>,
    progress: &JobProgress,
) -> std::convert::Infallible {
    let mut published = None;
    loop {
        let latest = latest.lock().clone();
        let latest = latest.map(|status| as_of_now(status, progress));
        if latest.is_some() && latest != published {
            latest
                .iter()
                .for_each(|status| journal.publish(&Status { updated_s: now_s(), ..status.clone() }));
            published = latest;
        }
        tokio::time::sleep(PUBLISH_PERIOD).await;
    }
}

fn known(record: &Record) -> Known {
    let (source, target) = record.members.clone();
    let members = (!source.is_empty() && !target.is_empty()).then_some(Members { source, target });
    let (sheltered, silent) = (record.sheltered.clone(), record.silent.clone());
    Known { members, sheltered, begun: has_begun(&record.job), silent }
}

/// Whether anything was changed for the job: not before the check of its first batch is done.
fn has_begun(job: &Job) -> bool {
    let is_read_only = match job.phase() {
        Phase::Queued | Phase::Preparing { step: Preparation::Check } => true,
        Phase::Observing { reached, .. } | Phase::Suspended { reached, .. } => *reached == Reached::Nothing,
        _ => false,
    };
    !is_read_only || !job.slots_handed_over().is_empty()
}

async fn drive(
    record: &mut Record,
    journal: &Journal,
    executor: &mut Executor,
    view: &View,
    latest: &Mutex<Option<Status>>,
    cancel: &CancellationToken,
) -> Result<()> {
    if record.job.has_ended() {
        // It was killed before it could say so.
        return Ok(());
    }
    let mut effects = Vec::new();
    let fresh = *record.job.phase() == Phase::Queued;
    advance(&mut record.job, if fresh { Event::Start } else { Event::Resume }, &mut effects)?;
    // Why the journal could not be written, while the batch is at a point where it must not stop.
    let mut failure = None;
    loop {
        if cancel.is_cancelled() && !record.job.is_cancelling() && !record.job.has_ended() {
            // A job that is about to end anyway cannot be cancelled, and need not be.
            if let Err(reject) = step(&mut record.job, Event::Cancel, &mut effects) {
                tracing::debug!(%reject, "not cancelled");
            }
        }
        view.show(record.job.summary());
        let waited_for = matches!(record.job.phase(), Phase::Draining | Phase::Comparing);
        let mut is_full = false;
        if !waited_for {
            let began = Instant::now();
            (failure, is_full) = match keep(record, journal, view, cancel).await {
                Ok(kept) => (None, !kept),
                Err(e) if must_go_on(record.job.phase()) => (Some(e), false),
                Err(e) => return Err(e),
            };
            executor.note_write(began.elapsed());
        }
        if is_full && cancel.is_cancelled() && !record.job.is_cancelling() {
            continue;
        }
        let is_sealed = waited_for
            || matches!(
                record.job.phase(),
                Phase::Pausing | Phase::Fencing | Phase::TakingOver { .. } | Phase::Releasing
            );
        // Writers do not wait for a file that nothing depends on.
        *latest.lock() = (!is_sealed).then(|| status_now(record, view));
        let Some(effect) = effects.pop() else { return failure.map_or(Ok(()), Err) };
        if begins_more(&effect.action) && view.progress.rates.now().is_paused() {
            // A job that is cancelled meanwhile is rolled back by the outcome of the effect.
            let opens = cancel.run_until_cancelled(view.progress.rates.until_open());
            allowing_pauses(record, journal, view, opens).await;
        }
        executor.allow_pause(record.job.rules().max_pause_ms);
        let name = effect.action.name();
        let batch = record.job.batches().iter().position(|b| b.slots == effect.slots).unwrap_or(0);
        failpoint::reached(name, When::Before, batch).await;
        let began = Instant::now();
        let outcome = match is_full {
            // Nothing was sent.
            true => Outcome::Refused(Reason::new(Why::Transient, "the disk with the journal is full")),
            // No pause is on, and none begins before the outcome.
            false if begins_more(&effect.action) => {
                allowing_pauses(record, journal, view, executor.execute(&effect)).await
            }
            false => executor.execute(&effect).await,
        };
        if matches!(outcome, Outcome::Done(_)) {
            match effect.action {
                Action::TakeOver { .. } => view.hand_over(&effect.slots, record.job.target()),
                Action::GiveBack => view.hand_over(&effect.slots, record.job.source()),
                _ => {}
            }
        }
        tracing::debug!(job = %record.job.id(), effect = name, took_us = began.elapsed().as_micros() as u64,
            ?outcome, "effect");
        failpoint::reached(name, When::After, batch).await;
        if let Some(members) = executor.members() {
            record.members = (members.source.clone(), members.target.clone());
        }
        record.sheltered = executor.sheltered().to_vec();
        record.silent = executor.silent().cloned();
        if cancel.is_cancelled() && !record.job.is_cancelling() {
            // Before the outcome: an effect that broke off because of it is then understood.
            if let Err(reject) = step(&mut record.job, Event::Cancel, &mut effects) {
                tracing::debug!(%reject, "not cancelled");
            }
        }
        advance(&mut record.job, Event::Finished { effect, outcome }, &mut effects)?;
        let (keys_handed_over, _) = record.keys();
        if keys_handed_over != view.progress.keys_handed_over.load(Ordering::Relaxed) {
            view.progress.end_batch(keys_handed_over);
        }
    }
}

/// Does something, and meanwhile accepts new limits of the pause from the user. These are written down at
/// once: a process that goes on with the job has to keep to it.
async fn allowing_pauses<T>(
    record: &mut Record,
    journal: &Journal,
    view: &View,
    work: impl Future<Output = T>,
) -> T {
    tokio::pin!(work);
    loop {
        let now_ms = record.job.rules().max_pause_ms;
        let max_pause_ms = tokio::select! {
            biased;
            done = &mut work => return done,
            ms = view.progress.rates.until_pause_changes(now_ms) => ms,
        };
        record.job.allow_pause(max_pause_ms);
        if let Err(error) = journal.try_save(record, Some(&status_now(record, view))) {
            tracing::warn!(%error, "the longest pause could not be written down: it is with the next step");
        }
    }
}

/// Whether a job that is paused does not begin this: it would attach to the source, move keys, or lead to a
/// handover.
fn begins_more(action: &Action) -> bool {
    matches!(action, Action::MarkImporting | Action::Attach | Action::Snapshot | Action::CatchUp { .. })
}

/// Writes the job down. If the disk is full it waits for room, unless writers wait as well, or the job is
/// cancelled: `false`.
async fn keep(record: &Record, journal: &Journal, view: &View, cancel: &CancellationToken) -> Result<bool> {
    let write = || journal.try_save(record, Some(&status_now(record, view)));
    let disk = &view.progress.disk;
    let kept = match record.job.phase() {
        Phase::Fencing => disk.bear(write()).map(|kept| kept.is_some()),
        phase if must_go_on(phase) => write().map(|()| true),
        _ if cancel.is_cancelled() => disk.until_room(write).await.map(|()| true),
        _ => match cancel.run_until_cancelled(disk.until_room(write)).await {
            Some(kept) => kept.map(|()| true),
            None => Ok(false),
        },
    };
    kept.map_err(|e| journal.fail(&e))
}

/// Whether stopping here would leave slots without an owner, or writers paused: then the job goes on,
/// although it cannot be written down. If the process dies as well, what is on disk says `fencing`, or later,
/// and resuming from there begins with a look at what is true.
fn must_go_on(phase: &Phase) -> bool {
    match phase {
        Phase::TakingOver { .. } | Phase::Releasing | Phase::Confirming | Phase::GivingBack { .. } => true,
        Phase::Observing { reached, .. } => !matches!(reached, Reached::Nothing | Reached::Staging),
        _ => false,
    }
}

fn advance(job: &mut Job, event: Event, effects: &mut Vec<whimbrel_core::migration::Effect>) -> Result<()> {
    step(job, event, effects).map_err(|reject| Error::own("go on with a job", reject))
}

/// How a job stands that this process runs: the batch at hand counts by its keys.
fn status_now(record: &Record, view: &View) -> Status {
    as_of_now(status(record), &view.progress)
}

/// The same with what changes while an effect is carried out.
fn as_of_now(status: Status, progress: &JobProgress) -> Status {
    let message = Some(progress.waits_for()).filter(|what| !what.is_empty()).unwrap_or(status.message);
    // What a batch that was rolled back had staged is not there any more.
    let keys_moved = if status.ended { status.keys_moved } else { progress.keys().0 };
    Status { keys_moved, rates: progress.rates.now(), message, ..status }
}

/// How a job stands, for others.
pub fn status(record: &Record) -> Status {
    let job = &record.job;
    let summary = job.summary();
    let (keys_moved, keys) = record.keys();
    Status {
        id: job.id().to_string(),
        name: record.name.clone(),
        keys,
        keys_moved,
        cluster: record.cluster.clone(),
        nodes: record.nodes.clone(),
        source: job.source().to_string(),
        target: job.target().to_string(),
        slots: job.slots().to_string(),
        moved: job.slots_handed_over().to_string(),
        method: "external".to_owned(),
        fell_back: record.fell_back.clone(),
        phase: summary.phase.to_owned(),
        message: message(record),
        created_s: record.created_s,
        updated_s: now_s(),
        ended: job.has_ended(),
        ..Status::default()
    }
}

/// Why a job is not done. For a job that has ended, also what has moved: batches that were handed over stay
/// where they are.
fn message(record: &Record) -> String {
    let job = &record.job;
    let reason = reason(record).unwrap_or_default();
    if !matches!(job.phase(), Phase::Ended(End::Failed(_) | End::Cancelled)) {
        return reason;
    }
    let moved = job.slots_handed_over();
    let outcome = match moved.is_empty() {
        true => "no slot has moved".to_owned(),
        false => format!("slots {moved} have moved, the others have not"),
    };
    if reason.is_empty() { outcome } else { format!("{reason}; {outcome}") }
}

/// Why it failed, is suspended, or starts a batch again, with the node that does not answer.
fn reason(record: &Record) -> Option<String> {
    let reason = record.job.summary().reason?;
    let silent = record.silent.as_ref().filter(|_| reason.why == Why::Unreachable);
    let staged = match (record.job.phase(), silent) {
        (Phase::Ended(_), Some(_)) => {
            "; what was staged there is left: once it is back, `whimbrel repair` removes it"
        }
        _ => "",
    };
    Some(silent.map_or_else(|| reason.to_string(), |silence| format!("{reason}: {silence}{staged}")))
}

/// Gives up a job that is suspended because a node has not answered for as long as it may stand still. False
/// if that is not so, or if its slots may be between two owners: it has to go on then.
pub(crate) fn give_up(record: &mut Record) -> bool {
    let patience_s = record.transfer.stall_ms / 1_000;
    let is_over = |silence: &Silence| now_s().saturating_sub(silence.since_s) >= patience_s;
    record.silent.as_ref().is_some_and(is_over)
        && step(&mut record.job, Event::Abandon, &mut Vec::new()).is_ok()
}

fn report(record: &Record, took: Duration, view: &View, notices: Vec<String>) -> JobReport {
    let job = &record.job;
    let summary = job.summary();
    let ending = match job.phase() {
        Phase::Ended(End::Done) => Ending::Done,
        Phase::Ended(End::Cancelled) => Ending::Cancelled,
        Phase::Ended(End::Failed(_)) => Ending::Failed,
        _ => Ending::Suspended,
    };
    let handed_over = job.slots_handed_over();
    let left = job.batches().iter().filter(|batch| batch.state == BatchState::LeftAsIs);
    JobReport {
        id: job.id().to_string(),
        source: job.source().clone(),
        target: job.target().clone(),
        slots: job.slots(),
        verified: summary.verified && !handed_over.is_empty(),
        slots_handed_over: handed_over,
        slots_left_as_is: left.fold(SlotSet::new(), |all, batch| all.union(&batch.slots)),
        method: "external",
        fell_back: None,
        ending,
        reason: match ending {
            Ending::Failed | Ending::Suspended => reason(record),
            _ => None,
        },
        duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        keys: summary.work.keys,
        bytes: summary.work.bytes,
        touched: summary.work.touched,
        compared: summary.work.compared,
        pauses: Pauses {
            count: summary.work.pauses,
            total_ms: summary.work.paused_ms,
            longest_ms: summary.work.longest_pause_ms,
        },
        braked_ms: view.progress.braked_ms.load(std::sync::atomic::Ordering::Relaxed),
        notices,
    }
}
