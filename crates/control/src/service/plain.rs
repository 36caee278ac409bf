//! Jobs that need no state machine of ours: by the servers' own migration, and the classic way. Where the
//! servers' own fails, or does not move, whimbrel's own method can take its place:
//!
//! 1. why is written down, so that a resumed job does not begin with the servers' own again;
//! 2. what is under way is cancelled, until neither node works on it and the source has the slots;
//! 3. the journal becomes that of an external job, by the same name.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_core::migration::{Job, JobId, Rules};
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::native::{
    self, NativeKind, NativeMigration, NativeOptions, NativeOwner, NativePhase, NativeState, Peer,
};
use whimbrel_engine::nodes::key_counts;
use whimbrel_flow::legacy::{self, LegacyOptions, LegacyProgress, LegacyReport};

use super::settings::{HandoverPlan, Method, Settings, divide_into_batches};
use crate::clock::now_s;
use crate::job::{Record, View};
use crate::options::{TransferOptions, usual_stall_ms};
use crate::report::{Ending, JobReport};
use crate::store::{Journal, Status};
use crate::strangers::{self, Applicant};

/// How long the nodes may take to end a migration of their own, in milliseconds.
const END_MS: u64 = 30_000;

/// How often others are shown how the job stands, at most.
const PUBLISH_PERIOD: Duration = Duration::from_millis(200);

/// A job that is not an external one, as it is written down: only the goal, since the servers, or the next
/// try, take care of the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainRecord {
    /// The cluster, as `HOST:PORT`, without credentials.
    pub cluster: String,
    /// Addresses of the cluster's primaries when the job was made, for when the one above is gone.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// When the job was made, in seconds since the epoch.
    pub created_s: u64,
    /// The name that it has of itself.
    pub id: JobId,
    /// What its user calls it.
    #[serde(default)]
    pub name: Option<String>,
    /// How slots move.
    pub method: Method,
    /// The node that gives slots away.
    pub source: NodeId,
    /// The node that gets them.
    pub target: NodeId,
    /// The slots, as ranges.
    #[serde(with = "slots_as_text")]
    pub slots: SlotSet,
    /// How many keys they had when the job was made; 0 if they were not counted.
    #[serde(default)]
    pub keys: u64,
    /// How long it waits for others that are at work at its nodes, in milliseconds.
    #[serde(default = "usual_stall_ms")]
    pub stall_ms: u64,
    /// Whether it was begun: a resumed job looks for what it had started.
    pub begun: bool,
    /// What takes the place of the servers' own migration if that fails or does not move; `None` if nothing
    /// does.
    #[serde(default)]
    pub fallback: Option<Box<Fallback>>,
}

mod slots_as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use whimbrel_core::slot::SlotSet;

    pub fn serialize<S: Serializer>(slots: &SlotSet, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(slots)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SlotSet, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

impl PlainRecord {
    pub(super) fn status(&self, phase: NativePhase, moved: &SlotSet, message: &str, ended: bool) -> Status {
        Status {
            id: self.id.to_string(),
            name: self.name.clone(),
            cluster: self.cluster.clone(),
            nodes: self.nodes.clone(),
            source: self.source.to_string(),
            target: self.target.to_string(),
            slots: self.slots.to_string(),
            moved: moved.to_string(),
            keys: self.keys,
            // Neither the servers nor the classic way report it before a slot is there.
            keys_moved: if *moved == self.slots { self.keys } else { 0 },
            method: self.method.name().to_owned(),
            phase: phase.to_string(),
            message: message.to_owned(),
            created_s: self.created_s,
            updated_s: now_s(),
            ended,
            ..Status::default()
        }
    }
}

/// What takes the place of the servers' own migration: an external job, and what it is made by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// How long the servers' own may not move, in milliseconds.
    pub native_stall_ms: u64,
    /// Why it was left, once that is decided.
    pub fell_back: Option<String>,
    /// See [`Settings`].
    rules: Rules,
    max_pause_ms: Option<u64>,
    transfer: TransferOptions,
    batch_keys: Option<u64>,
}

impl Fallback {
    /// As the settings have it; `None` if they have none.
    pub(super) fn of(settings: &Settings) -> Option<Box<Fallback>> {
        let native_stall_ms =
            settings.native_stall_ms.filter(|_| matches!(settings.method, Method::Native(_)))?;
        Some(Box::new(Fallback {
            native_stall_ms,
            fell_back: None,
            rules: settings.rules.clone(),
            max_pause_ms: settings.max_pause_ms,
            transfer: settings.transfer.clone(),
            batch_keys: settings.batch_keys,
        }))
    }

    fn settings(&self) -> Settings {
        Settings {
            method: Method::External,
            rules: self.rules.clone(),
            max_pause_ms: self.max_pause_ms,
            transfer: self.transfer.clone(),
            batch_keys: self.batch_keys,
            native_stall_ms: None,
            name: None,
        }
    }
}

/// What came of a job as it was begun.
pub(super) enum Ended {
    /// It has ended.
    Report(Box<JobReport>),
    /// It goes on as an external one, which is in the journal.
    FellBack(Box<Record>),
}

/// What came of it: the slots that moved, the keys with them, and whether it was cancelled before its end.
type Moved = (SlotSet, u64, bool);

/// What stopped it, after some slots may have moved.
struct Failure {
    moved: SlotSet,
    keys: u64,
    /// The slot that both nodes may serve.
    half_moved: Option<Slot>,
    error: Error,
}

/// Its result, or how it goes on.
enum Came {
    Moved(Moved),
    Failed(Failure),
    FellBack(Box<Record>),
    /// The servers may go on with it, for whatever reason: the outcome is unknown.
    Unsettled(Error),
}

/// Runs such a job.
pub(super) async fn run(
    plain: &PlainRecord,
    journal: &Journal,
    deployment: &Arc<Deployment>,
    view: &View,
    cancel: &CancellationToken,
) -> Ended {
    let started = Instant::now();
    let (id, source, target) = (plain.id.to_string(), plain.source.clone(), plain.target.clone());
    let mut report = JobReport::not_started(id, source, target, plain.slots.clone(), plain.method.name());
    journal.publish(&plain.status(NativePhase::Snapshotting, &SlotSet::new(), "", false));
    let outcome = async {
        let peers = peers(plain, deployment).await?;
        // Another job may have begun something there since this one was taken in.
        let applicant = Applicant {
            job: &plain.id,
            nodes: &peers,
            slots: &plain.slots,
            patience: Duration::from_millis(plain.stall_ms),
        };
        let waiting = strangers::claim(deployment, applicant, &view.progress, cancel);
        let states = watch::channel(NativeState::default()).1;
        let claim = tokio::select! {
            claim = waiting => claim?,
            never = publish(plain, journal, view, states) => match never {},
        };
        let Some(claim) = claim else { return Ok(Came::Moved((SlotSet::new(), 0, true))) };
        let work = async {
            match plain.method {
                Method::Native(kind) => {
                    run_native(plain, kind.kind(), &peers, journal, deployment, view, cancel).await
                }
                Method::Legacy | Method::External => run_legacy(plain, deployment, view, cancel).await,
            }
        };
        tokio::select! {
            came = work => came,
            never = claim.keep() => match never {},
        }
    }
    .await;
    let (phase, message) = match outcome {
        Ok(Came::FellBack(record)) => return Ended::FellBack(record),
        Ok(Came::Moved((moved, keys, cancelled))) => {
            view.hand_over(&moved, &plain.target);
            report.slots_handed_over = moved;
            report.keys = keys;
            report.ending = if cancelled { Ending::Cancelled } else { Ending::Done };
            (if cancelled { NativePhase::Cancelled } else { NativePhase::Done }, String::new())
        }
        Ok(Came::Failed(Failure { moved, keys, half_moved, error })) => {
            view.hand_over(&moved, &plain.target);
            report.slots_handed_over = moved;
            report.slots_left_as_is = half_moved.into_iter().collect();
            report.keys = keys;
            report.ending = Ending::Failed;
            report.reason = Some(error.to_string());
            (NativePhase::Failed, error.to_string())
        }
        Ok(Came::Unsettled(e)) => {
            report.ending = Ending::Suspended;
            report.reason = Some(e.to_string());
            (NativePhase::Snapshotting, e.to_string())
        }
        Err(e) => {
            report.ending = Ending::Failed;
            report.reason = Some(e.to_string());
            (NativePhase::Failed, e.to_string())
        }
    };
    report.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let is_over = report.ending != Ending::Suspended;
    let status = plain.status(phase, &report.slots_handed_over, &message, is_over);
    let keys_moved = status.keys_moved.max(report.keys);
    journal.publish(&Status { keys_moved, ..status });
    Ended::Report(Box::new(report))
}

/// Shows others how it stands.
async fn publish(
    plain: &PlainRecord,
    journal: &Journal,
    view: &View,
    mut states: watch::Receiver<NativeState>,
) -> Infallible {
    let mut shown = None;
    loop {
        let state = states.borrow_and_update().clone();
        let waits_for = view.progress.waits_for();
        let message = if waits_for.is_empty() { state.message } else { waits_for };
        let is_new = state.attempt == 0 && state.raw.is_empty();
        let phase = if is_new { NativePhase::Queued } else { state.phase };
        let now = (phase, message, state.remaining_bytes.unwrap_or(0));
        if !phase.is_final() && shown.as_ref() != Some(&now) {
            let (phase, message, remaining_bytes) = &now;
            let status = plain.status(*phase, &SlotSet::new(), message, false);
            journal.publish(&Status { remaining_bytes: *remaining_bytes, ..status });
            shown = Some(now);
        }
        tokio::time::sleep(PUBLISH_PERIOD).await;
    }
}

async fn run_native(
    plain: &PlainRecord,
    kind: NativeKind,
    peers: &(Peer, Peer),
    journal: &Journal,
    deployment: &Deployment,
    view: &View,
    cancel: &CancellationToken,
) -> Result<Came> {
    let Some(fallback) = &plain.fallback else {
        return watched(plain, kind, peers, journal, deployment, view, cancel).await.map(Came::Moved);
    };
    let why = match &fallback.fell_back {
        Some(why) => why.clone(),
        None => match watched(plain, kind, peers, journal, deployment, view, cancel).await {
            Ok(moved) => return Ok(Came::Moved(moved)),
            // A migration of another job is no failure of ours, and is in the way of any method.
            Err(e) if NativeMigration::is_busy(&e) => return Err(e),
            Err(e) => e.to_string(),
        },
    };
    view.set_words(&format!("whimbrel's own method takes over: {why}"));
    let left = Box::new(Fallback { fell_back: Some(why.clone()), ..(**fallback).clone() });
    let plain = PlainRecord { fallback: Some(left), begun: true, ..plain.clone() };
    let kept = view.progress.disk.until_room(|| journal.try_save(&plain, None)).await;
    kept.map_err(|e| journal.fail(&e))?;
    journal.publish(&plain.status(NativePhase::Queued, &SlotSet::new(), &why, false));
    fall_back(&plain, kind, peers, why, journal, deployment, view, cancel).await
}

/// Ends what the servers have under way, and makes an external job of this one.
#[expect(clippy::too_many_arguments, reason = "the job, its nodes, and all that it is shown and kept in")]
async fn fall_back(
    plain: &PlainRecord,
    kind: NativeKind,
    (source, target): &(Peer, Peer),
    why: String,
    journal: &Journal,
    deployment: &Deployment,
    view: &View,
    cancel: &CancellationToken,
) -> Result<Came> {
    let failed = |e: Error| {
        let what = format!("{e}; the servers' own migration was to be left, because {why}");
        Error::unfit(e.side, source.address.to_string(), "go on by whimbrel's own method", what)
    };
    let owner = match native::end(deployment, kind, source, target, &plain.slots, END_MS).await {
        Ok(owner) => owner,
        Err(e) => return Ok(Came::Unsettled(failed(e))),
    };
    match owner {
        NativeOwner::Source if cancel.is_cancelled() => return Ok(Came::Moved((SlotSet::new(), 0, true))),
        NativeOwner::Source => {}
        // It came to its end in the last moment.
        NativeOwner::Target => return Ok(Came::Moved((plain.slots.clone(), 0, false))),
        NativeOwner::Unsettled => {
            let what = "the nodes still work on it, or do not agree on who owns the slots";
            let at = source.address.to_string();
            let error = Error::unfit(Side::Source, at, "end the servers' own migration", what);
            return Ok(Came::Unsettled(failed(error)));
        }
    }
    let record = external(plain, source, why.clone(), deployment).await.map_err(failed)?;
    let kept = view.progress.disk.until_room(|| journal.try_save(&record, None)).await;
    kept.map_err(|e| journal.fail(&e))?;
    journal.publish(&crate::job::status(&record));
    Ok(Came::FellBack(Box::new(record)))
}

/// The external job that takes the place of this one.
async fn external(
    plain: &PlainRecord,
    source: &Peer,
    why: String,
    deployment: &Deployment,
) -> Result<Record> {
    let Some(fallback) = &plain.fallback else {
        return Err(Error::own("go on by whimbrel's own method", "nobody asked for that"));
    };
    let settings = fallback.settings();
    let mut link = deployment.open(&source.address, 0).await?;
    let counts = key_counts(&mut link, &plain.slots).await?;
    let keys_of = |slot| u64::from(counts.of(slot));
    let (from, to) = (plain.source.clone(), plain.target.clone());
    let planned = Move { source: from.clone(), target: to.clone(), slots: plain.slots.clone() };
    let HandoverPlan { parts, max_pause_ms, .. } =
        divide_into_batches(deployment, &planned, &settings, keys_of).await?;
    let batch_keys = parts.iter().map(|part| part.iter().map(keys_of).sum()).collect();
    let rules = Rules { max_pause_ms, ..settings.rules };
    let job = Job::new(plain.id.clone(), from, to, parts, rules);
    let record = Record::new(plain.cluster.clone(), plain.nodes.clone(), settings.transfer, job);
    let (created_s, name) = (plain.created_s, plain.name.clone());
    Ok(Record { batch_keys, created_s, name, fell_back: Some(why), ..record })
}

/// Has the servers move the slots, and shows how that stands.
async fn watched(
    plain: &PlainRecord,
    kind: NativeKind,
    (source, target): &(Peer, Peer),
    journal: &Journal,
    deployment: &Deployment,
    view: &View,
    cancel: &CancellationToken,
) -> Result<Moved> {
    let (progress, mut states) = watch::channel(NativeState::default());
    let stall_ms = plain.fallback.as_ref().map(|fallback| fallback.native_stall_ms);
    let wait_turn_ms = plain.stall_ms;
    let options = NativeOptions { adopt: plain.begun, stall_ms, wait_turn_ms, ..NativeOptions::default() };
    let published = publish(plain, journal, view, progress.subscribe());
    let running = native::run(deployment, kind, source, target, &plain.slots, options, &progress, cancel);
    let showing = async {
        while states.changed().await.is_ok() {
            let state = states.borrow_and_update().clone();
            view.set_words(&format!("{} {}", state.phase, state.message));
        }
        std::future::pending::<()>().await
    };
    let report = tokio::select! {
        report = running => report?,
        never = published => match never {},
        () = showing => return Err(Error::own("watch a native migration", "it ended without an outcome")),
    };
    let done = report.phase == NativePhase::Done;
    Ok((if done { plain.slots.clone() } else { SlotSet::new() }, 0, !done))
}

async fn peers(plain: &PlainRecord, deployment: &Deployment) -> Result<(Peer, Peer)> {
    let view = crate::view_of(deployment).await?;
    let peer = |id: &NodeId| {
        let node = view.node(id).ok_or_else(|| {
            Error::own("run a job", format!("node {id} is not part of the cluster any more"))
        })?;
        Ok::<_, Error>(Peer { id: id.clone(), address: node.address.clone() })
    };
    Ok((peer(&plain.source)?, peer(&plain.target)?))
}

async fn run_legacy(
    plain: &PlainRecord,
    deployment: &Deployment,
    view: &View,
    cancel: &CancellationToken,
) -> Result<Came> {
    view.progress.keys_total.store(plain.keys, Ordering::Relaxed);
    let show = |p: LegacyProgress| {
        view.progress.keys_handed_over.store(p.keys, Ordering::Relaxed);
        view.set_words(&format!("legacy, {} of {} slots, {} keys", p.slots_done, p.slots_total, p.keys));
    };
    let options = LegacyOptions::default();
    let report =
        legacy::move_slots(deployment, &plain.source, &plain.target, &plain.slots, options, show, cancel)
            .await?;
    let LegacyReport { moved, keys, cancelled, failure, half_moved, .. } = report;
    Ok(match failure {
        Some(error) => Came::Failed(Failure { moved, keys, half_moved, error }),
        None => Came::Moved((moved, keys, cancelled)),
    })
}
