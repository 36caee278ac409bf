//! `whimbrel serve`: a daemon that moves slots when told so, or is the coordinator of a fleet, or both.

mod fleet;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::migrations::{JobState, JobView};
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::shown::Shown;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Jobs, STRANGERS_MAX, Services};
use whimbrel_control::fleet::{Coordinator, Fleet, FleetStatus, Role};
use whimbrel_control::http::{CONNECTIONS_MAX, HttpServer};
use whimbrel_control::store::Store;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_fleet::protocol::MEMBERS_MAX;

use crate::commands::{cluster, reshard};
use crate::exit::Exit;
use crate::paths;
use crate::settings::args::ServeArgs;
use crate::settings::files::make_room;

/// How often it is looked which jobs have begun and which have ended.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Files for connections to servers, journals and etcd.
const SERVER_FILES: u64 = 256;

/// How many names of jobs are told at once.
const NAMES_SHOWN: usize = 10;

/// `whimbrel serve`.
pub async fn run(args: &ServeArgs, stop: CancellationToken) -> Exit {
    if args.at.cluster.is_empty() && !args.coordinator.fleet {
        eprintln!(
            "error: nothing to serve: name a --cluster to move slots of, be the coordinator of a --fleet, or \
                both"
        );
        return Exit::Usage;
    }
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
        let what = format!("every client that reaches {} could move slots: it needs a password", args.listen);
        return Err(Error::options(Side::Own, "reading the options", what).with_remedy(
            "set WHIMBREL_SERVE_PASSWORD, name a --listen-password-file, or listen on 127.0.0.1",
        ));
    }
    fit_files(args, &mut options)?;
    let has_password = options.password.is_some();
    let state_dir = paths::state_dir(args.moving.state_dir.as_deref())?;
    let mut log = Log { as_json: args.moving.show.json, seen: BTreeMap::new(), shown: Arc::default() };
    let mover = match args.at.cluster.as_str() {
        "" => None,
        _ => Some(Mover::open(args, &state_dir, &mut log).await?),
    };
    let (fleet, coordinator) = match args.coordinator.fleet {
        true => fleet::open(args, &state_dir).await.map(|(fleet, task)| (Some(fleet), Some(task)))?,
        false => (None, None),
    };
    let queue = mover.as_ref().map(|mover| mover.queue.clone());
    let daemon = Daemon::offer(options, Services { jobs: queue.clone(), fleet: fleet.clone() }).await?;
    let address = daemon.address()?;
    log.say_serving(&address.to_string(), has_password, mover.as_ref(), coordinator.as_ref());
    if let Some(mover) = &mover {
        mover.say_resuming(&log);
    }
    // Its tasks end with this function.
    let _exposing = log.expose(args.http, stop).await?;
    // Where the coordinator cannot go on, the rest ends as well: its supervisor starts it again.
    let stop = stop.child_token();
    let moves = async {
        if let Some(queue) = &queue {
            queue.run(&stop).await;
        }
    };
    let announced = args.coordinator.announce.clone().unwrap_or_else(|| address.to_string());
    let coordinates = async {
        let outcome = match coordinator {
            Some(coordinator) => coordinator.run(announced, stop.clone()).await,
            None => Ok(()),
        };
        if outcome.is_err() {
            stop.cancel();
        }
        outcome
    };
    let follows = log.follow(queue.as_deref(), fleet.as_ref(), &stop);
    let ((), (), (), coordinated) = tokio::join!(daemon.serve(stop.clone()), moves, follows, coordinates);
    if let Some(queue) = &queue {
        log.look(queue).await;
    }
    coordinated?;
    match &mover {
        Some(mover) => mover.say_stopped(&log)?,
        None => log.say("stopped", &json!({"event": "stopped"})),
    }
    Ok(())
}

/// Lets in no more clients than files may be open, beside those of the daemon itself.
fn fit_files(args: &ServeArgs, options: &mut DaemonOptions) -> Result<()> {
    let members = if args.coordinator.fleet { MEMBERS_MAX } else { 0 };
    let besides = (STRANGERS_MAX + CONNECTIONS_MAX + members) as u64 + SERVER_FILES;
    let wanted = options.connections_max as u32;
    let places = make_room(wanted, 1, besides)?;
    if places == 0 {
        let what = format!(
            "the hard limit of open files leaves no place for clients: the daemon takes up to {besides}"
        );
        return Err(Error::own("listen", what).with_remedy("raise it: ulimit -Hn"));
    }
    if places < wanted && !args.moving.show.json {
        eprintln!("note     no more files may be open for {wanted} clients, but for {places}: see ulimit -n");
    }
    options.connections_max = places as usize;
    Ok(())
}

/// The part that moves slots of a cluster.
struct Mover {
    queue: Arc<Queue>,
    store: Store,
    at: String,
    method: &'static str,
    /// Why this method.
    why: String,
    interrupted: Vec<String>,
}

impl Mover {
    async fn open(args: &ServeArgs, state_dir: &Path, log: &mut Log) -> Result<Mover> {
        let deployment = Arc::new(cluster::connect(&args.at).await?);
        let (settings, why) = reshard::settings_of_daemon(&deployment, &args.moving).await?;
        let method = settings.method.name();
        let store = Store::new(state_dir);
        let at = deployment.endpoint.address.to_string();
        let interrupted = store.interrupted_of(&at)?;
        let queue = Queue::open(deployment, store.clone(), settings).await?;
        log.begin(queue.list().await?);
        Ok(Mover { queue, store, at, method, why: why.to_string(), interrupted })
    }

    fn say_resuming(&self, log: &Log) {
        log.say(
            &match self.interrupted.len() {
                0 => "resuming no job: none was interrupted".to_owned(),
                n => {
                    let jobs = format_count_of(n as u64, "interrupted job");
                    format!("resuming {jobs}: {}", names(&self.interrupted))
                }
            },
            &json!({"event": "resuming", "jobs": self.interrupted}),
        );
    }

    fn say_stopped(&self, log: &Log) -> Result<()> {
        let left = self.store.interrupted_of(&self.at)?;
        log.say(
            &match left.len() {
                0 => "stopped".to_owned(),
                n => format!(
                    "stopped  with {} interrupted: {}; what is left goes on when it serves again, or with \
                        whimbrel jobs resume",
                    format_count_of(n as u64, "job"),
                    names(&left)
                ),
            },
            &json!({"event": "stopped", "jobs": left}),
        );
        Ok(())
    }
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
    /// The jobs that are listed, as they were last reported.
    seen: BTreeMap<String, Stage>,
    /// For those who ask over HTTP.
    shown: Arc<Shown>,
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

    fn say_serving(
        &self,
        address: &str,
        has_password: bool,
        mover: Option<&Mover>,
        coordinator: Option<&Coordinator>,
    ) {
        let mut what = Vec::new();
        let mut line = json!({"event": "serving", "address": address, "password": has_password});
        if let Some(Mover { at, method, why, .. }) = mover {
            what.push(format!("cluster {at}, method {method}: {why}"));
            (line["cluster"], line["method"], line["why"]) = (json!(at), json!(method), json!(why));
        }
        if let Some(coordinator) = coordinator {
            what.push(fleet::described(coordinator, &mut line));
        }
        let without = if has_password { "" } else { ", without a password" };
        self.say(&format!("serving  on {address}{without}: {}", what.join("; ")), &line);
    }

    async fn follow(&mut self, queue: Option<&Queue>, fleet: Option<&Fleet>, stop: &CancellationToken) {
        let mut before = FleetStatus::default();
        let mut role = fleet.map(Fleet::role);
        loop {
            if let Some(fleet) = fleet {
                self.look_at_the_role(fleet, &mut role);
                let status = fleet.status().await.ok();
                if let Some(status) = &status {
                    fleet::news(&before, status).iter().for_each(|(text, json)| self.say(text, json));
                    before = status.clone();
                }
                // Who stands by knows nothing of it.
                self.shown.set_fleet(status);
            }
            if stop.run_until_cancelled(tokio::time::sleep(LOOK_PERIOD)).await.is_none() {
                return;
            }
            if let Some(queue) = queue {
                self.look(queue).await;
            }
        }
    }

    fn look_at_the_role(&self, fleet: &Fleet, before: &mut Option<Role>) {
        let role = Some(fleet.role());
        if let Some(now) = role.as_ref().filter(|_| role != *before) {
            let (text, json) = fleet::turn(now);
            self.say(&text, &json);
        }
        self.shown.set_role(role.clone());
        *before = role;
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
        self.shown.set_jobs(&jobs);
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
                JobState::Cancelled => say("ended", &format!("cancelled: {}", job.message)),
                _ => say("ended", &format!("FAILED: {}", job.message)),
            },
        }
    }
}

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}
