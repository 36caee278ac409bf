//! Makes jobs of planned moves and runs them, each by its method, those with different sources at the same
//! time.

mod plain;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_core::migration::{Job, JobId, Phase, Rules};
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::{BatchLimits, Move, batches};
use whimbrel_core::slot::{Slot, SlotRange, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::handover::{FenceKind, Handover, HandoverOptions};
use whimbrel_engine::native::{NativeKind, NativePhase};
use whimbrel_engine::remedy::Remedy;
use whimbrel_flow::budget::{RateChange, Rates};

use crate::clock::now_s;
use crate::executor::{NOT_AT_ONCE, process_name};
use crate::job::{self, Record, View};
use crate::options::TransferOptions;
use crate::pause::{self, PauseNeed};
use crate::report::{Ending, JobReport};
use crate::steering::{Call, Refusal, Request, Socket, SocketFile, Standing, Steered, steer};
use crate::store::{Journal, Status, Store};

use self::plain::Ended;
pub use self::plain::Fallback;

/// How many jobs run at once: each has its own source, and its own connections and buffers.
pub const PARALLEL_MAX: usize = 8;

/// How long the servers' own migration may not move where nobody says, in milliseconds.
pub const NATIVE_STALL_MS: u64 = 30_000;

/// How long the process that runs a job may take to answer.
const ASKED_WITHIN: Duration = Duration::from_secs(20);

/// How many addresses are written down with a job.
const NODES_MAX: usize = 32;

/// By which means slots move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By whimbrel: feed, snapshot, catch-up, fence, takeover.
    External,
    /// By the servers' own atomic migration.
    Native(Native),
    /// By `SETSLOT` and `MIGRATE`.
    Legacy,
}

/// Which of the servers' own migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Native {
    /// `CLUSTER MIGRATESLOTS`.
    Valkey9,
    /// `CLUSTER MIGRATION IMPORT`.
    Redis84,
}

impl Native {
    fn kind(self) -> NativeKind {
        match self {
            Native::Valkey9 => NativeKind::Valkey9,
            Native::Redis84 => NativeKind::Redis84,
        }
    }
}

impl From<NativeKind> for Native {
    fn from(kind: NativeKind) -> Native {
        match kind {
            NativeKind::Valkey9 => Native::Valkey9,
            NativeKind::Redis84 => Native::Redis84,
        }
    }
}

impl Method {
    /// Its name in flags, reports and journals.
    pub fn name(self) -> &'static str {
        match self {
            Method::External => "external",
            Method::Native(_) => "native",
            Method::Legacy => "legacy",
        }
    }
}

/// How jobs are made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// By which means.
    pub method: Method,
    /// What external jobs may do, but for the longest pause.
    pub rules: Rules,
    /// How long they may pause writes at once, in milliseconds; what is usual, or what round trips need,
    /// where it is `None`.
    pub max_pause_ms: Option<u64>,
    /// How external jobs move keys.
    pub transfer: TransferOptions,
    /// How many keys their batches have at most; what suits the source where it is `None`.
    pub batch_keys: Option<u64>,
    /// How long the servers' own migration may not move before whimbrel's own method takes its place, in
    /// milliseconds. `None`: nothing takes its place.
    pub native_stall_ms: Option<u64>,
}

/// How the slots of one move are handed over.
#[derive(Debug)]
pub struct Cut {
    /// How writes are fenced off.
    pub fence: FenceKind,
    /// Batches, in their order: one where all slots go at once.
    pub parts: Vec<SlotSet>,
    /// What a pause needs.
    pub need: PauseNeed,
    /// How long writes may be paused at once, in milliseconds.
    pub max_pause_ms: u64,
}

/// How the slots of one move are cut, and what pause that needs.
///
/// # Errors
/// `Unfit` where all slots are to go at once and cannot, and where the longest pause is too short for any
/// handover. As [`Handover::open`].
pub async fn cut(
    deployment: &Deployment,
    planned: &Move,
    settings: &Settings,
    keys_of: impl Fn(Slot) -> u64,
) -> Result<Cut> {
    let options = HandoverOptions { process: process_name().to_owned(), begun: false, ..Default::default() };
    let (source, target) = (planned.source.clone(), planned.target.clone());
    let mut handover = Handover::open_with(deployment, source, target, options).await?;
    let fence = handover.fence_kind();
    let Rules { atomic, verify, .. } = settings.rules;
    let unfit = |handover: &Handover, what: String, remedy: Remedy| {
        let at = handover.source_address().to_string();
        Error::unfit(Side::Source, at, "plan the handover", what).with_remedy(remedy)
    };
    let keys_max = settings.batch_keys.unwrap_or(fence.batch_keys_max()).max(1);
    let limits = BatchLimits { keys_max, slots_max: handover.batch_slots_max() };
    let mut parts = batches(&planned.slots, &keys_of, limits);
    if atomic && !planned.slots.is_empty() {
        parts = vec![planned.slots.clone()];
    }
    if let [only] = &parts[..]
        && handover.should_split(only).await?
        && let Some(last) = only.iter().last()
    {
        if atomic {
            let remedy = "give the target a slot first, or move the slots in batches";
            return Err(unfit(&handover, NOT_AT_ONCE.to_owned(), Remedy::Words(remedy.into())));
        }
        let last = SlotSet::from_ranges(SlotRange::new(last, last));
        parts = vec![only.difference(&last), last];
    }
    let largest = parts.iter().max_by_key(|part| part.len()).cloned().unwrap_or_default();
    let keys = largest.iter().map(&keys_of).sum();
    let longest_ms = settings.max_pause_ms.unwrap_or(pause::USUAL_MS);
    let need = PauseNeed::measure_for(&mut handover, &largest, keys, verify, atomic, longest_ms).await?;
    let max_pause_ms = need.longest_ms(settings.max_pause_ms);
    if let Some((what, remedy)) = need.too_long_for(max_pause_ms) {
        return Err(unfit(&handover, what, remedy));
    }
    Ok(Cut { fence, parts, need, max_pause_ms })
}

/// A job that is not an external one, as it is written down: nothing but what is to be reached, since the
/// servers, or the next try, see to the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainRecord {
    /// The cluster, as `HOST:PORT`, without credentials.
    pub cluster: String,
    /// Addresses of the cluster's primaries when the job was made, for when the one above is gone.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// When the job was made, in seconds since the epoch.
    pub created_s: u64,
    /// Its name.
    pub id: JobId,
    /// By which means.
    pub method: Method,
    /// The node that gives slots away.
    pub source: NodeId,
    /// The node that gets them.
    pub target: NodeId,
    /// The slots, as ranges.
    #[serde(with = "slots_as_text")]
    pub slots: SlotSet,
    /// How many keys they had when the job was made; 0 where nobody counted.
    #[serde(default)]
    pub keys: u64,
    /// Whether it was begun: a resumed job looks for what it had started.
    pub begun: bool,
    /// What takes the place of the servers' own migration where that fails or does not move; `None` where
    /// nothing does.
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

/// What a job is, by its method.
#[derive(Debug, Clone)]
pub enum Task {
    /// An external one.
    External(Box<Record>),
    /// Any other.
    Plain(PlainRecord),
}

impl Task {
    /// The job's name.
    pub fn id(&self) -> &JobId {
        match self {
            Task::External(record) => record.job.id(),
            Task::Plain(plain) => &plain.id,
        }
    }

    /// The node that gives slots away.
    pub fn source(&self) -> &NodeId {
        match self {
            Task::External(record) => record.job.source(),
            Task::Plain(plain) => &plain.source,
        }
    }

    /// The node that gets them.
    pub fn target(&self) -> &NodeId {
        match self {
            Task::External(record) => record.job.target(),
            Task::Plain(plain) => &plain.target,
        }
    }

    /// All slots of the job.
    pub fn slots(&self) -> SlotSet {
        match self {
            Task::External(record) => record.job.slots(),
            Task::Plain(plain) => plain.slots.clone(),
        }
    }

    /// By which means.
    pub fn method(&self) -> &'static str {
        match self {
            Task::External(_) => "external",
            Task::Plain(plain) => plain.method.name(),
        }
    }

    /// Reads the job of a journal.
    ///
    /// # Errors
    /// `Own` where it cannot be understood.
    pub fn load(journal: &Journal) -> Result<Task> {
        match journal.load::<Record>() {
            Ok(record) => Ok(Task::External(Box::new(record))),
            Err(error) => match journal.load::<PlainRecord>() {
                Ok(plain) => Ok(Task::Plain(plain)),
                Err(_) => Err(error),
            },
        }
    }

    /// Whether nothing was ever done for it.
    fn is_fresh(&self) -> bool {
        match self {
            Task::External(record) => *record.job.phase() == Phase::Queued,
            Task::Plain(plain) => !plain.begun,
        }
    }

    fn save(&self, journal: &Journal) -> Result<()> {
        match self {
            Task::External(record) => journal.save(&**record, Some(&job::status(record))),
            Task::Plain(plain) => journal.save(plain, None),
        }
    }

    fn status(&self) -> Status {
        match self {
            Task::External(record) => job::status(record),
            Task::Plain(plain) => plain.status(NativePhase::Queued, &SlotSet::new(), "", false),
        }
    }
}

impl PlainRecord {
    fn status(&self, phase: NativePhase, moved: &SlotSet, message: &str, ended: bool) -> Status {
        Status {
            id: self.id.to_string(),
            cluster: self.cluster.clone(),
            nodes: self.nodes.clone(),
            source: self.source.to_string(),
            target: self.target.to_string(),
            slots: self.slots.to_string(),
            moved: moved.to_string(),
            keys: self.keys,
            // Neither the servers nor the classic way say so before a slot is there.
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

/// A job that is ready to run, with its journal. Others can ask it, also while it waits for its turn.
#[derive(Debug)]
pub struct Ready {
    /// What it is.
    pub task: Task,
    /// What a display reads while it runs.
    pub view: Arc<View>,
    // Dropped in this order: the socket is gone before somebody else can open the journal.
    asked: Asked,
    journal: Journal,
}

impl Ready {
    /// Takes up a job that is in the folder and that nobody runs.
    ///
    /// # Errors
    /// As [`Store::open`] and [`Task::load`]; `Own` where its socket cannot be made.
    pub fn open(store: &Store, id: &str) -> Result<Ready> {
        let journal = store.open(id)?;
        let task = Task::load(&journal)?;
        Ready::new(task, journal)
    }

    fn new(task: Task, journal: Journal) -> Result<Ready> {
        *journal.latest().lock() = task.status();
        let view: Arc<View> = Arc::default();
        if let Task::External(record) = &task {
            let TransferOptions { rate_keys, rate_bytes, .. } = record.transfer;
            view.progress.rates.change(RateChange { keys: rate_keys, bytes: rate_bytes });
        }
        let asked = Asked::begin(&journal)?;
        if matches!(task, Task::External(_)) {
            asked.allow_rates(&view);
        }
        Ok(Ready { task, view, asked, journal })
    }

    /// Has it roll back what it has begun, in its turn.
    pub fn cancel(&self) {
        self.asked.cancel.cancel();
    }
}

/// How others ask a job that moves slots.
#[derive(Debug)]
struct Asked {
    /// Cancelled when somebody wants the job cancelled.
    cancel: CancellationToken,
    closing: CancellationToken,
    file: Arc<SocketFile>,
    rates: Arc<OnceLock<Rates>>,
}

impl Asked {
    fn begin(journal: &Journal) -> Result<Asked> {
        let socket = Socket::bind(&journal.store().socket(journal.id()))?;
        let (cancel, closing, file) = (CancellationToken::new(), CancellationToken::new(), socket.file());
        let rates: Arc<OnceLock<Rates>> = Arc::default();
        let moving = Moving { latest: journal.latest(), rates: rates.clone(), cancel: cancel.clone() };
        tokio::spawn(socket.serve(Arc::new(moving), closing.clone()));
        Ok(Asked { cancel, closing, file, rates })
    }

    /// From now on how fast its keys move is ours to say.
    fn allow_rates(&self, view: &View) {
        // It is so from the beginning, or from one moment on.
        let _ = self.rates.set(view.progress.rates.clone());
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.file.remove();
        self.closing.cancel();
    }
}

/// What a job that moves slots answers.
struct Moving {
    latest: Arc<Mutex<Status>>,
    /// How fast its keys move; empty while the servers move them.
    rates: Arc<OnceLock<Rates>>,
    cancel: CancellationToken,
}

impl Steered for Moving {
    async fn standing(&self) -> Standing {
        let rates = self.rates.get().map(Rates::now).unwrap_or_default();
        let job = Status { rates, ..self.latest.lock().clone() };
        Standing { job, details: serde_json::Value::Null }
    }

    async fn carry_out(
        &self,
        request: Request,
        _withdrawn: CancellationToken,
    ) -> std::result::Result<serde_json::Value, Refusal> {
        match request {
            Request::Cancel => {
                self.cancel.cancel();
                Ok(serde_json::Value::Null)
            }
            other => {
                let steered = self.rates.get().and_then(|rates| steer(rates, other));
                steered.ok_or_else(|| {
                    Refusal::unsupported(match self.rates.get() {
                        Some(_) => "a move of slots can be paused, resumed, set and cancelled",
                        None => {
                            "the servers move these slots themselves: that can be cancelled, not slowed down"
                        }
                    })
                })
            }
        }
    }
}

/// Asks the process that runs a job for something; `what` says so. Returns what it answers. One that is
/// asked to cancel has not done so yet when this returns.
///
/// # Errors
/// `Own` where it cannot be asked; `Options` where it refuses.
pub async fn ask(store: &Store, id: &str, request: Request, what: &str) -> Result<serde_json::Value> {
    let socket = store.socket(id);
    let call = Call { socket: &socket, request, within: ASKED_WITHIN };
    let answer = call.make(&CancellationToken::new(), |_| {}).await?;
    let refused = |refusal: Refusal| Error::options(Side::Own, format!("{what} job {id}"), refusal.text);
    answer.outcome.map_err(refused)
}

/// Jobs for planned moves, written down and not begun. `keys_of` tells how many keys a node has in a slot.
///
/// # Errors
/// `Own` where a journal cannot be written.
pub async fn prepare(
    store: &Store,
    deployment: &Deployment,
    moves: &[Move],
    settings: &Settings,
    keys_of: impl Fn(&NodeId, Slot) -> u64,
) -> Result<Vec<Ready>> {
    let cluster = deployment.endpoint.address.to_string();
    let nodes: Vec<String> =
        deployment.topology().shards.iter().take(NODES_MAX).map(|shard| shard.primary.to_string()).collect();
    static MADE: AtomicU64 = AtomicU64::new(0);
    let mut jobs = Vec::with_capacity(moves.len());
    for planned in moves {
        // Names sort by their age. Two processes that start within a second differ by their own numbers.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("m{:x}-{:x}-{number}", now_s(), std::process::id());
        let id: JobId = name.parse().map_err(|e| Error::own("name a job", e))?;
        let task = match settings.method {
            Method::External => {
                let keys_of = |slot| keys_of(&planned.source, slot);
                let Cut { parts, max_pause_ms, .. } = cut(deployment, planned, settings, keys_of).await?;
                let (source, target) = (planned.source.clone(), planned.target.clone());
                let batch_keys = parts.iter().map(|part| part.iter().map(keys_of).sum()).collect();
                let job =
                    Job::new(id, source, target, parts, Rules { max_pause_ms, ..settings.rules.clone() });
                let record = Record::new(cluster.clone(), nodes.clone(), settings.transfer.clone(), job);
                Task::External(Box::new(Record { batch_keys, ..record }))
            }
            method => Task::Plain(PlainRecord {
                fallback: Fallback::of(settings),
                cluster: cluster.clone(),
                nodes: nodes.clone(),
                created_s: now_s(),
                id,
                method,
                source: planned.source.clone(),
                target: planned.target.clone(),
                slots: planned.slots.clone(),
                keys: planned.slots.iter().map(|slot| keys_of(&planned.source, slot)).sum(),
                begun: false,
            }),
        };
        let journal = store.create(task.id().as_str())?;
        task.save(&journal)?;
        journal.publish(&task.status());
        jobs.push(Ready::new(task, journal)?);
    }
    Ok(jobs)
}

/// Runs jobs: those of one source one after another, those of different sources at the same time. After one
/// that does not end well no other is begun; those that run are finished.
///
/// # Errors
/// `Own` where a journal cannot be written.
pub async fn run(
    deployment: &Arc<Deployment>,
    jobs: Vec<Ready>,
    cancel: &CancellationToken,
) -> Result<Vec<JobReport>> {
    let mut queues: BTreeMap<NodeId, Vec<Ready>> = BTreeMap::new();
    for ready in jobs {
        queues.entry(ready.task.source().clone()).or_default().push(ready);
    }
    let enough = CancellationToken::new();
    // The pause of a source would hold up the takeover of a job that has it for its target.
    let targets: BTreeSet<NodeId> =
        queues.values().flatten().map(|ready| ready.task.target().clone()).collect();
    let parallel_max = if queues.keys().any(|source| targets.contains(source)) { 1 } else { PARALLEL_MAX };
    let mut waiting: Vec<Vec<Ready>> = queues.into_values().collect();
    waiting.reverse();
    let mut running = JoinSet::new();
    let mut reports = Vec::new();
    let mut failure = None;
    loop {
        while running.len() < parallel_max
            && let Some(queue) = waiting.pop()
        {
            let (deployment, cancel, enough) = (deployment.clone(), cancel.clone(), enough.clone());
            running.spawn(run_queue(deployment, queue, cancel, enough));
        }
        let Some(ended) = running.join_next().await else { break };
        match ended {
            Ok(Ok(some)) => reports.extend(some),
            Ok(Err(e)) => {
                enough.cancel();
                failure = failure.or(Some(e));
            }
            Err(e) => {
                enough.cancel();
                failure = failure.or(Some(Error::own("run a job", e)));
            }
        }
    }
    reports.sort_by(|a, b| a.id.cmp(&b.id));
    failure.map_or(Ok(reports), Err)
}

async fn run_queue(
    deployment: Arc<Deployment>,
    queue: Vec<Ready>,
    cancel: CancellationToken,
    enough: CancellationToken,
) -> Result<Vec<JobReport>> {
    let mut reports = Vec::with_capacity(queue.len());
    for ready in queue {
        let Ready { task, view, journal, asked } = ready;
        if (cancel.is_cancelled() || enough.is_cancelled()) && task.is_fresh() {
            let (id, source, target) = (task.id().to_string(), task.source().clone(), task.target().clone());
            reports.push(JobReport::not_started(id, source, target, task.slots(), task.method()));
            let store = journal.store().clone();
            drop((asked, journal));
            store.remove(task.id().as_str())?;
            continue;
        }
        // Who cancels this job does not mean the others; who cancels all of them means this one as well.
        let (all, this) = (cancel.clone(), asked.cancel.clone());
        if all.is_cancelled() {
            this.cancel();
        }
        let watcher = tokio::spawn(async move {
            all.cancelled().await;
            this.cancel();
        });
        if !task.is_fresh() {
            journal.store().note_resumed(journal.id());
        }
        let report = match task {
            Task::External(record) => go_on(*record, &journal, &deployment, &view, &asked.cancel).await,
            Task::Plain(plain) => {
                let begun = PlainRecord { begun: true, ..plain.clone() };
                let kept = view.progress.disk.until_room(|| journal.try_save(&begun, None)).await;
                kept.map_err(|e| journal.fail(&e))?;
                let started = Instant::now();
                match plain::run(&plain, &journal, &deployment, &view, &asked.cancel).await {
                    Ended::Report(report) => Ok(*report),
                    Ended::FellBack(record) => {
                        asked.allow_rates(&view);
                        let report = go_on(*record, &journal, &deployment, &view, &asked.cancel).await;
                        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                        report.map(|report| JobReport { duration_ms, ..report })
                    }
                }
            }
        };
        watcher.abort();
        let report = report?;
        journal.store().keep_report(journal.id(), &report);
        if report.ending != Ending::Done {
            enough.cancel();
        }
        reports.push(report);
    }
    Ok(reports)
}

/// Runs an external job, or goes on with one; `record` is in the journal.
async fn go_on(
    record: Record,
    journal: &Journal,
    deployment: &Arc<Deployment>,
    view: &View,
    cancel: &CancellationToken,
) -> Result<JobReport> {
    let fell_back = record.fell_back.clone();
    let report = job::run(record, journal, deployment.clone(), view, cancel.clone()).await?;
    let notice = fell_back.iter().map(|why| format!("the servers' own migration was left: {why}"));
    let notices = notice.chain(report.notices).collect();
    Ok(JobReport { fell_back, notices, ..report })
}
