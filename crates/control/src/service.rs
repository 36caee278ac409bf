//! Makes jobs of planned moves and runs them, each by its method, those with different sources at the same
//! time.

mod plain;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_core::migration::{Job, JobId, Phase, Rules};
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::native::NativePhase;
use whimbrel_flow::budget::{Rates, RatesNow};
use whimbrel_flow::journal::{self, OpenError};
use whimbrel_flow::latency::{self, Watched, Written};

use crate::clock::now_s;
use crate::executor::put_back;
use crate::hooks::{HookSettings, JobHooks};
use crate::job::{self, Record, View};
use crate::report::{Ending, JobReport};
use crate::steering::{Call, Refusal, Request, Socket, SocketFile, Standing, Steered, steer, take_back};
use crate::store::{Entry, Journal, Kind, Origin, Status, Store};

use self::plain::Ended;
pub use self::plain::{Fallback, PlainRecord};
pub use self::settings::{
    HandoverPlan, Method, NATIVE_STALL_MS, Native, Settings, check_legacy, plan_handovers,
};

/// How many jobs run at once: each has its own source, and its own connections and buffers.
pub const PARALLEL_MAX: usize = 8;

/// How long the process that runs a job may take to answer.
const ASKED_WITHIN: Duration = Duration::from_secs(20);

/// How many addresses are written down with a job.
const NODES_MAX: usize = 32;

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

    /// How slots move.
    pub fn method(&self) -> &'static str {
        match self {
            Task::External(_) => "external",
            Task::Plain(plain) => plain.method.name(),
        }
    }

    /// Whether no other job may have its target at the same time: the servers' own migration of Redis takes
    /// in one at a time, and what takes the place of one is an external job.
    pub(crate) fn takes_target_alone(&self) -> bool {
        match self {
            Task::External(_) => false,
            Task::Plain(plain) => plain.method == Method::Native(Native::Redis84) || plain.fallback.is_some(),
        }
    }

    /// Reads the job of a journal.
    ///
    /// # Errors
    /// `Own` if it cannot be understood.
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

/// A job that is ready to run, with its journal. Others can ask it, also while it waits for its turn.
#[derive(Debug)]
pub struct Ready {
    /// What it is.
    pub task: Task,
    /// What a display reads while it runs.
    pub view: Arc<View>,
    /// What is run at its events.
    hooks: Option<Arc<JobHooks>>,
    // Dropped in this order: the socket is gone before another process can open the journal.
    asked: Asked,
    journal: Journal,
}

impl Ready {
    /// Takes up a job that is in the folder and that no process runs.
    ///
    /// # Errors
    /// As [`Store::open`] and [`Task::load`]; `Own` if its socket cannot be made.
    pub fn open(store: &Store, id: &str) -> Result<Ready> {
        let journal = store.open(id)?;
        let task = Task::load(&journal)?;
        Ready::new(task, journal)
    }

    fn new(task: Task, journal: Journal) -> Result<Ready> {
        *journal.latest().lock() = task.status();
        let view: Arc<View> = Arc::default();
        if let Task::External(record) = &task {
            view.progress.rates.change(record.transfer.rates());
        }
        let asked = Asked::begin(&journal)?;
        if matches!(task, Task::External(_)) {
            asked.allow_rates(&view);
        }
        Ok(Ready { task, view, hooks: None, asked, journal })
    }

    /// The same, at whose events these are run while this process runs it.
    #[must_use]
    pub fn with_hooks(self, hooks: &HookSettings) -> Ready {
        let begun_with = self.journal.latest().lock().clone();
        Ready { hooks: hooks.begin(self.journal.store(), &begun_with), ..self }
    }

    /// Ends a job that waits for a node for longer than it may stand still, if it may end. False if it goes
    /// on.
    ///
    /// # Errors
    /// `Own` if the journal cannot be written.
    pub(crate) async fn give_up(&mut self, deployment: &Deployment) -> Result<bool> {
        let Task::External(record) = &mut self.task else { return Ok(false) };
        if !job::give_up(record) {
            return Ok(false);
        }
        // Before it is written down that it has ended: nothing comes back to it then.
        put_back(deployment, &std::mem::take(&mut record.sheltered)).await;
        self.task.save(&self.journal)?;
        self.journal.publish(&self.task.status());
        Ok(true)
    }

    /// Has it roll back what it has begun, in its turn.
    pub fn cancel(&self) {
        self.asked.cancel.cancel();
    }
}

/// How others ask a job that moves slots.
#[derive(Debug)]
struct Asked {
    /// Cancelled when the job is to be cancelled.
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
                let steered = self.rates.get().and_then(|rates| steer(rates, Kind::Move, other));
                steered.unwrap_or_else(|| {
                    Err(Refusal::unsupported(match self.rates.get() {
                        Some(_) => "a move of slots can be paused, resumed, set and cancelled",
                        None => {
                            "whimbrel's own method alone can be paused and slowed down: this job can be \
                             cancelled"
                        }
                    }))
                })
            }
        }
    }
}

/// Asks the process that runs a job for something; `what` says so. Returns what it answers. A job that is
/// asked to cancel has not done so yet when this returns.
///
/// # Errors
/// `Own` if it cannot be asked; `Options` if it refuses.
pub async fn ask(store: &Store, id: &str, request: Request, what: &str) -> Result<serde_json::Value> {
    let socket = store.socket(id);
    let call = Call { socket: &socket, request, within: ASKED_WITHIN };
    let answer = call.make(&CancellationToken::new(), |_| {}).await?;
    let refused = |refusal: Refusal| Error::options(Side::Own, format!("{what} job {id}"), refusal.text);
    answer.outcome.map_err(refused)
}

/// What is wanted of a job that runs, in words.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// What the job is to do.
    pub verb: &'static str,
    /// What it has done then.
    pub done: &'static str,
}

impl Wanted {
    /// The words for a request that steers.
    pub fn of(request: &Request) -> Wanted {
        let (verb, done) = match request {
            Request::Pause => ("pause", "paused"),
            Request::Resume => ("resume", "resumed"),
            _ => ("set the rates of", "set"),
        };
        Wanted { verb, done }
    }
}

/// [`ask`]s a job to move its keys faster or slower, or not at all. The job records who did it as an event:
/// this process's user, and on whose behalf, if that is given.
///
/// # Errors
/// As [`ask`].
pub async fn steered(store: &Store, id: &str, request: Request, on_behalf: Option<&str>) -> Result<RatesNow> {
    let Wanted { verb, done } = Wanted::of(&request);
    let answer = ask(store, id, request, verb).await?;
    // A front has no rates.
    let rates: RatesNow = serde_json::from_value(answer).unwrap_or_default();
    store.note_asked(id, done, on_behalf, rates);
    Ok(rates)
}

/// Takes back the cutover that was ordered of a sync, even if the sync was interrupted: its name is `wanted`,
/// or begins so; if that is empty, it is the only sync. Says which it is, and whether anything was ordered.
///
/// # Errors
/// `Options` if there is none, or more than one; as [`ask`] if it runs.
pub async fn withdraw_cutover(store: &Store, wanted: &str) -> Result<(String, bool)> {
    let is_it = |entry: &Entry| {
        entry.status.kind == Kind::Sync && entry.is_interrupted() && entry.status.is_called(wanted)
    };
    let (id, stood) = match store.running_sync(wanted) {
        Ok(sync) => {
            let stood = ask(store, &sync.id, Request::Schedule(None), "take back the cutover of").await?;
            (sync.id, stood == true)
        }
        Err(none) => match &store.list()?.into_iter().filter(is_it).collect::<Vec<_>>()[..] {
            [interrupted] => {
                let id = interrupted.status.id.clone();
                // A process that goes on with it now reads the order once it has the journal.
                let stood = match journal::lock(store.state_dir(), &id) {
                    Ok(_held) => take_back(store, &interrupted.status)?,
                    Err(OpenError::InUse) => {
                        ask(store, &id, Request::Schedule(None), "take back the cutover of").await? == true
                    }
                    Err(OpenError::Failed(e)) => return Err(Error::own("take back the cutover", e)),
                };
                (id, stood)
            }
            _ => return Err(none),
        },
    };
    Ok((id, stood))
}

/// Jobs for planned moves, written down and not begun. Whimbrel's own method hands over in the parts of the
/// `plans`, one for each move. `keys_of` says how many keys a node has in a slot.
///
/// # Errors
/// `Own` if a journal cannot be written or a plan is missing; `Options` if other jobs have their names.
pub async fn prepare(
    store: &Store,
    deployment: &Deployment,
    (moves, plans): (&[Move], Vec<HandoverPlan>),
    settings: &Settings,
    keys_of: impl Fn(&NodeId, Slot) -> u64,
) -> Result<Vec<Ready>> {
    prepare_for(store, deployment, (moves, plans), settings, keys_of, &Origin::default()).await
}

/// [`prepare`], for a user other than this process's. Several jobs without a plan form a plan of their own:
/// the jobs of one command belong together.
///
/// # Errors
/// Likewise.
pub(crate) async fn prepare_for(
    store: &Store,
    deployment: &Deployment,
    (moves, plans): (&[Move], Vec<HandoverPlan>),
    settings: &Settings,
    keys_of: impl Fn(&NodeId, Slot) -> u64,
    origin: &Origin,
) -> Result<Vec<Ready>> {
    let cluster = deployment.endpoint.address.to_string();
    let nodes: Vec<String> =
        deployment.topology().shards.iter().take(NODES_MAX).map(|shard| shard.primary.to_string()).collect();
    static MADE: AtomicU64 = AtomicU64::new(0);
    let names = settings.name.as_ref().map(|name| name.numbered(moves.len())).unwrap_or_default();
    let mut tasks = Vec::with_capacity(moves.len());
    let mut plans = plans.into_iter();
    for (place, planned) in moves.iter().enumerate() {
        let given = names.get(place).cloned();
        // Names sort by their age. Two processes that start within a second differ by their own numbers.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("m{:x}-{:x}-{number}", now_s(), std::process::id());
        let id: JobId = name.parse().map_err(|e| Error::own("name a job", e))?;
        tasks.push(match (settings.method, plans.next()) {
            (Method::External, Some(HandoverPlan { parts, max_pause_ms, .. })) => {
                let keys_of = |slot| keys_of(&planned.source, slot);
                let (source, target) = (planned.source.clone(), planned.target.clone());
                let batch_keys = parts.iter().map(|part| part.iter().map(keys_of).sum()).collect();
                let rules = Rules { max_pause_ms, ..settings.rules.clone() };
                let observations_max = settings.transfer.stall_ms / rules.observe_every_ms.max(1);
                let observations_max =
                    u32::try_from(observations_max).unwrap_or(u32::MAX).clamp(1, rules.observations_max);
                let job = Job::new(id, source, target, parts, Rules { observations_max, ..rules });
                let record = Record::new(cluster.clone(), nodes.clone(), settings.transfer.clone(), job);
                Task::External(Box::new(Record { batch_keys, name: given, ..record }))
            }
            (Method::External, None) => {
                return Err(Error::own("make a job", "a move has not been divided into batches"));
            }
            (method, _) => Task::Plain(PlainRecord {
                fallback: Fallback::of(settings),
                cluster: cluster.clone(),
                nodes: nodes.clone(),
                created_s: now_s(),
                id,
                name: given,
                method,
                source: planned.source.clone(),
                target: planned.target.clone(),
                slots: planned.slots.clone(),
                stall_ms: settings.transfer.stall_ms,
                keys: planned.slots.iter().map(|slot| keys_of(&planned.source, slot)).sum(),
                begun: false,
            }),
        });
    }
    // None may get their names meanwhile.
    let _lock = if names.is_empty() { None } else { Some(store.lock_names().await?) };
    store.refuse_taken(&names, "")?;
    let of_command = tasks.first().filter(|_| tasks.len() > 1).map(|first| first.id().to_string());
    let origin = Origin { plan: origin.plan.clone().or(of_command), ..origin.clone() };
    let mut jobs = Vec::with_capacity(tasks.len());
    for task in tasks {
        match listed(store, task, &origin) {
            Ok(ready) => jobs.push(ready),
            Err(e) => {
                // None of them is begun, by this process or by another that takes up what others have left.
                for ready in &jobs {
                    forget(store, ready.task.id());
                }
                return Err(e);
            }
        }
    }
    Ok(jobs)
}

/// Writes down a job that can be begun; if that fails, nothing of it is left.
fn listed(store: &Store, task: Task, origin: &Origin) -> Result<Ready> {
    let id = task.id().clone();
    let journal = store.create(id.as_str())?;
    let saved = task.save(&journal);
    if saved.is_ok() {
        journal.publish(&Status { origin: origin.clone(), ..task.status() });
    }
    saved.and_then(|()| Ready::new(task, journal)).inspect_err(|_| forget(store, &id))
}

fn forget(store: &Store, id: &JobId) {
    if let Err(error) = store.remove(id.as_str()) {
        tracing::warn!(%error, %id, "a job that was not begun is left in the state folder");
    }
}

/// Runs jobs: those of one source one after another, those of different sources at the same time. After a job
/// that does not end well no other is begun; those that run are finished.
///
/// # Errors
/// `Own` if a journal cannot be written.
pub fn run<'a>(
    deployment: &'a Arc<Deployment>,
    jobs: Vec<Ready>,
    cancel: &'a CancellationToken,
) -> BoxFuture<'a, Result<Vec<JobReport>>> {
    // Boxed, so that it is compiled here and not in each crate that awaits it.
    Box::pin(async move {
        let mut queues: BTreeMap<NodeId, Vec<Ready>> = BTreeMap::new();
        for ready in jobs {
            queues.entry(ready.task.source().clone()).or_default().push(ready);
        }
        let enough = CancellationToken::new();
        // The pause of a source would hold up the takeover of a job that has it for its target.
        let targets: BTreeSet<NodeId> =
            queues.values().flatten().map(|ready| ready.task.target().clone()).collect();
        let parallel_max =
            if queues.keys().any(|source| targets.contains(source)) { 1 } else { PARALLEL_MAX };
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
    })
}

async fn run_queue(
    deployment: Arc<Deployment>,
    queue: Vec<Ready>,
    cancel: CancellationToken,
    enough: CancellationToken,
) -> Result<Vec<JobReport>> {
    let mut reports = Vec::with_capacity(queue.len());
    for ready in queue {
        let Ready { task, view, hooks, journal, asked } = ready;
        if (cancel.is_cancelled() || enough.is_cancelled()) && task.is_fresh() {
            let (id, source, target) = (task.id().to_string(), task.source().clone(), task.target().clone());
            reports.push(JobReport::not_started(id, source, target, task.slots(), task.method()));
            let store = journal.store().clone();
            drop((asked, journal));
            store.remove(task.id().as_str())?;
            continue;
        }
        // Cancelling this job does not cancel the others; cancelling all of them cancels this one as well.
        let (all, this) = (cancel.clone(), asked.cancel.clone());
        if all.is_cancelled() {
            this.cancel();
        }
        let watcher = tokio::spawn(async move {
            all.cancelled().await;
            this.cancel();
        });
        let is_resumed = !task.is_fresh();
        if is_resumed {
            journal.store().note_resumed(journal.id());
        }
        let latest = journal.latest();
        let work = async {
            let report = carry_out(task, &journal, &deployment, &view, &asked).await?;
            journal.store().keep_report(journal.id(), &report);
            Ok(report)
        };
        let report = match &hooks {
            Some(hooks) => hooks.attend(is_resumed, &latest, work).await,
            None => work.await,
        };
        watcher.abort();
        let report = report?;
        if report.ending != Ending::Done {
            enough.cancel();
        }
        reports.push(report);
    }
    Ok(reports)
}

/// Runs a job by its method.
async fn carry_out(
    task: Task,
    journal: &Journal,
    deployment: &Arc<Deployment>,
    view: &View,
    asked: &Asked,
) -> Result<JobReport> {
    let plain = match task {
        Task::External(record) => return go_on(*record, journal, deployment, view, &asked.cancel).await,
        Task::Plain(plain) => plain,
    };
    let begun = PlainRecord { begun: true, ..plain.clone() };
    let kept = view.progress.disk.until_room(|| journal.try_save(&begun, None)).await;
    kept.map_err(|e| journal.fail(&e))?;
    let started = Instant::now();
    match plain::run(&plain, journal, deployment, view, &asked.cancel).await {
        Ended::Report(report) => Ok(*report),
        Ended::FellBack(record) => {
            asked.allow_rates(view);
            let report = go_on(*record, journal, deployment, view, &asked.cancel).await;
            let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            report.map(|report| JobReport { duration_ms, ..report })
        }
    }
}

/// Runs an external job, or goes on with one; `record` is in the journal.
fn go_on<'a>(
    record: Record,
    journal: &'a Journal,
    deployment: &'a Arc<Deployment>,
    view: &'a View,
    cancel: &'a CancellationToken,
) -> BoxFuture<'a, Result<JobReport>> {
    Box::pin(async move {
        let fell_back = record.fell_back.clone();
        let target = record.job.target();
        // It may have no slots yet.
        let at = crate::view_of(deployment).await.ok();
        let at = at.and_then(|view| view.node(target).map(|node| node.address.clone()));
        let written = Written::Node(target.to_string(), at);
        let watched = Watched { deployment: deployment.clone(), written };
        let _watching = latency::watch(&view.progress.rates, vec![watched]);
        let report = job::run(record, journal, deployment.clone(), view, cancel.clone()).await?;
        let notice = fell_back.iter().map(|why| format!("the servers' own migration was left: {why}"));
        let notices = notice.chain(report.notices).collect();
        Ok(JobReport { fell_back, notices, ..report })
    })
}
