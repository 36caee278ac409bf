//! `whimbrel serve`: a daemon that moves slots when told so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::migrations::{JobState, JobView};
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Jobs};
use whimbrel_control::http::{Exposed, HttpServer, Metric, MetricKind};
use whimbrel_control::store::Store;
use whimbrel_engine::error::{Error, Result, Side};

use crate::args::ServeArgs;
use crate::exit::Exit;
use crate::{cluster, copying, moving};

/// How often it is looked which jobs have begun and which have ended.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// How many names of jobs are told at once.
const NAMES_SHOWN: usize = 10;

/// `whimbrel serve`.
pub async fn run(args: &ServeArgs, stop: CancellationToken) -> Exit {
    match try_run(args, &stop).await {
        Ok(()) => Exit::Success,
        Err(e) => cluster::end_of(&e, args.moving.show.json),
    }
}

async fn try_run(args: &ServeArgs, stop: &CancellationToken) -> Result<()> {
    let mut options = DaemonOptions::new(args.listen);
    options.password = args.listen_password()?;
    if options.password.is_none() && !args.listen.ip().to_canonical().is_loopback() {
        // Said before anything is contacted; the daemon would refuse as well.
        let what = format!("whoever reaches {} could move slots: it needs a password", args.listen);
        return Err(Error::unfit(Side::Own, "", "reading the options", what).with_remedy(
            "set WHIMBREL_SERVE_PASSWORD, name a --listen-password-file, or listen on 127.0.0.1",
        ));
    }
    let has_password = options.password.is_some();
    let deployment = Arc::new(cluster::connect(&args.at).await?);
    let (settings, why) = moving::settings_of_daemon(&deployment, &args.moving).await?;
    let method = settings.method.name();
    let store = Store::new(&copying::state_dir(args.moving.state_dir.as_deref())?);
    let at = deployment.endpoint.address.to_string();
    let interrupted = interrupted(&store, &at)?;
    let queue = Queue::open(deployment, store.clone(), settings).await?;
    let mut log = Log { as_json: args.moving.show.json, seen: BTreeMap::new(), shown: Arc::default() };
    log.begin(queue.list().await?);
    let daemon = Daemon::bind(options, queue.clone()).await?;
    let address = daemon.address()?;
    log.say(
        &format!(
            "serving  cluster {at} on {address}{}, method {method}: {why}",
            if has_password { "" } else { ", without a password" }
        ),
        &json!({
            "event": "serving", "address": address.to_string(), "cluster": at, "password": has_password,
            "method": method, "why": why,
        }),
    );
    log.say(
        &match interrupted.len() {
            0 => "resuming no job: none was interrupted".to_owned(),
            n => format!("resuming {n} interrupted jobs: {}", names(&interrupted)),
        },
        &json!({"event": "resuming", "jobs": interrupted}),
    );
    // Its tasks end with this function.
    let _exposing = log.expose(args.http, stop).await?;
    tokio::join!(daemon.serve(stop.clone()), queue.run(stop), log.follow(&queue, stop));
    log.look(&queue).await;
    let left = self::interrupted(&store, &at)?;
    log.say(
        &match left.len() {
            0 => "stopped".to_owned(),
            n => format!(
                "stopped  with {n} jobs interrupted: {}; they go on when it serves again, or with whimbrel jobs resume",
                names(&left)
            ),
        },
        &json!({"event": "stopped", "jobs": left}),
    );
    Ok(())
}

/// Jobs of the cluster that have not ended and that nobody runs.
fn interrupted(store: &Store, cluster: &str) -> Result<Vec<String>> {
    let ours = store
        .list()?
        .into_iter()
        .filter(|entry| !entry.status.ended && !entry.running && entry.status.cluster == cluster);
    Ok(ours.map(|entry| entry.status.id).collect())
}

fn names(jobs: &[String]) -> String {
    let shown = jobs[..jobs.len().min(NAMES_SHOWN)].join(", ");
    match jobs.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What a person may know of a job's way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    /// It waits for something to change, and says what.
    Held(String),
    Ended,
}

impl Stage {
    fn of(job: &JobView) -> Stage {
        match job.state {
            state if state.is_final() => Stage::Ended,
            JobState::Connecting => Stage::Waiting,
            JobState::WaitingToSnapshot if !job.message.is_empty() => Stage::Held(job.message.clone()),
            _ => Stage::Running,
        }
    }
}

/// Tells what becomes of jobs: on standard error, as JSON on standard output.
struct Log {
    as_json: bool,
    /// The jobs that are listed, as they were last told of.
    seen: BTreeMap<String, Stage>,
    /// For those who ask over HTTP.
    shown: Arc<Shown>,
}

/// The jobs, as they were when it was last looked.
#[derive(Debug, Default)]
struct Shown(Mutex<Vec<JobView>>);

impl Shown {
    fn jobs(&self) -> MutexGuard<'_, Vec<JobView>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exposed for Shown {
    fn metrics(&self) -> Vec<Metric> {
        let jobs = self.jobs();
        let mut states: BTreeMap<&str, f64> = BTreeMap::new();
        for job in jobs.iter() {
            *states.entry(job.state.word()).or_default() += 1.0;
        }
        let is_open = |job: &&JobView| !job.state.is_final();
        let slots: usize = jobs.iter().filter(is_open).map(|job| job.slots.len()).sum();
        let bytes: u64 = jobs.iter().filter(is_open).map(|job| job.remaining_bytes).sum();
        let by_state = states.into_iter().map(|(state, number)| (vec![("state", state.to_owned())], number));
        vec![
            Metric::by(
                MetricKind::Gauge,
                "whimbrel_jobs",
                "Jobs that move slots, those that ended not long ago too",
                by_state,
            ),
            Metric::new(
                MetricKind::Gauge,
                "whimbrel_jobs_open_slots",
                "Slots of jobs that have not ended",
                slots as f64,
            ),
            Metric::new(
                MetricKind::Gauge,
                "whimbrel_jobs_remaining_bytes",
                "Bytes known to be on their way",
                bytes as f64,
            ),
        ]
    }

    fn health(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    fn readiness(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    fn status(&self) -> serde_json::Value {
        let view = |job: &JobView| {
            json!({
                "name": job.name, "slots": job.slots.to_string(), "source": job.source, "target": job.target,
                "state": job.state.word(), "message": job.message, "created_s": job.created_s,
                "updated_s": job.updated_s, "remaining_bytes": job.remaining_bytes,
            })
        };
        json!({"jobs": self.jobs().iter().map(view).collect::<Vec<_>>()})
    }
}

impl Log {
    fn say(&self, text: &str, json: &serde_json::Value) {
        if self.as_json {
            say!("{json}");
        } else {
            eprintln!("{text}");
        }
    }

    /// What ended before is none of this run's.
    fn begin(&mut self, jobs: Vec<JobView>) {
        let ended = jobs.into_iter().filter(|job| job.state.is_final());
        self.seen.extend(ended.map(|job| (job.name, Stage::Ended)));
    }

    /// Shows the jobs over HTTP, where that is wished.
    async fn expose(&self, listen: Option<SocketAddr>, stop: &CancellationToken) -> Result<JoinSet<()>> {
        let mut tasks = JoinSet::new();
        if let Some(listen) = listen {
            let server = HttpServer::bind(listen).await?;
            let address = server.address()?.to_string();
            tasks.spawn(server.serve(self.shown.clone(), stop.clone()));
            self.say(
                &format!("http     http://{address}/metrics, /healthz, /readyz, /status"),
                &json!({"event": "http", "address": address}),
            );
        }
        Ok(tasks)
    }

    async fn follow(&mut self, queue: &Queue, stop: &CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK_PERIOD)).await.is_some() {
            self.look(queue).await;
        }
    }

    async fn look(&mut self, queue: &Queue) {
        let mut jobs = match queue.list().await {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::warn!(%error, "the jobs cannot be listed");
                return;
            }
        };
        jobs.sort_by(|a, b| (a.created_s, &a.name).cmp(&(b.created_s, &b.name)));
        self.shown.jobs().clone_from(&jobs);
        let before = std::mem::take(&mut self.seen);
        for job in jobs {
            let (was, stage) = (before.get(&job.name), Stage::of(&job));
            if was != Some(&stage) {
                self.tell(&job, was, &stage);
            }
            self.seen.insert(job.name, stage);
        }
    }

    fn tell(&self, job: &JobView, was: Option<&Stage>, stage: &Stage) {
        let say = |event: &str, words: &str| {
            let (slots, source, target) = (job.slots.len(), short(&job.source), short(&job.target));
            self.say(
                &format!("job {}  {slots} slots, {source} -> {target}: {words}", job.name),
                &json!({
                    "event": event, "job": job.name, "slots": job.slots.to_string(), "source": job.source,
                    "target": job.target, "state": job.state.word(), "message": job.message,
                }),
            );
        };
        let has_begun = matches!(was, Some(Stage::Running | Stage::Held(_)));
        match stage {
            Stage::Waiting => say("queued", "waits for its turn"),
            Stage::Running if !has_begun => say("started", "started"),
            Stage::Running => say("started", "goes on"),
            Stage::Held(what) => say("held", &format!("waits: {what}")),
            Stage::Ended => match job.state {
                JobState::Success => say("ended", "done"),
                JobState::Cancelled => say("ended", "cancelled"),
                _ => say("ended", &format!("FAILED, rolled back: {}", job.message)),
            },
        }
    }
}

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}
