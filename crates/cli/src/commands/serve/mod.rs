//! `whimbrel serve`: a daemon that moves slots on request, or is the coordinator of a fleet, or both.

mod console;
mod fleet;

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::log::Log;
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Jobs, NodePorts, STRANGERS_MAX, Services};
use whimbrel_control::fleet::Coordinator;
use whimbrel_control::http::{CONNECTIONS_MAX, bind, expose};
use whimbrel_control::store::Store;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_fleet::protocol::MEMBERS_MAX;

use crate::commands::{cluster, reshard};
use crate::exit::Exit;
use crate::settings::args::ServeArgs;
use whimbrel_control::{open_files::make_room, private::job_dir};

/// Files for connections to servers, journals and etcd.
const SERVER_FILES: u64 = 256;

/// How many names of jobs are shown at once.
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
    options.node_ports = args.node_ports.clone();
    if options.password.is_none() && !args.listen.ip().to_canonical().is_loopback() {
        // Said before anything is contacted; the daemon would refuse as well.
        let what = format!("every client that reaches {} could move slots: it needs a password", args.listen);
        return Err(Error::options(Side::Own, "reading the options", what).with_remedy(
            "set WHIMBREL_SERVE_PASSWORD, name a --listen-password-file, or listen on 127.0.0.1",
        ));
    }
    fit_files(args, &mut options)?;
    let has_password = options.password.is_some();
    let state_dir = job_dir(args.moving.state_dir.as_deref())?;
    let voice = Voice { as_json: args.moving.show.json };
    let mut log = Log::new(move |text, json| voice.print(text, json));
    let mover = match args.at.cluster.as_str() {
        "" => None,
        _ => Some(Mover::open(args, &state_dir, &mut log).await?),
    };
    let (fleet, coordinator) = match args.coordinator.fleet {
        true => fleet::open(args, &state_dir).await.map(|(fleet, task)| (Some(fleet), Some(task)))?,
        false => (None, None),
    };
    let queue = mover.as_ref().map(|mover| mover.queue.clone());
    // If the coordinator cannot go on, the rest ends as well: its supervisor starts it again.
    let stop = &stop.child_token();
    let consoled = mover.as_ref().map(|mover| mover.console.clone());
    let console = console::open(args, &state_dir, consoled, fleet.clone(), stop).await?;
    let daemon = Daemon::offer(options, Services { jobs: queue.clone(), fleet: fleet.clone() }).await?;
    let address = daemon.address()?;
    voice.print_serving(&address.to_string(), has_password, mover.as_ref(), coordinator.as_ref());
    if let Some(mover) = &mover {
        mover.print_resuming(voice);
    }
    if let Some(console) = &console {
        let url = console.url()?;
        voice.print(&format!("console  {url}"), &json!({"event": "console", "url": url}));
    }
    let consoles = async {
        if let Some(console) = console {
            console.serve().await;
        }
    };
    // Its tasks end with this function.
    let _exposing =
        expose(bind(args.exposing.http).await?, log.shown(), stop, |text, json| voice.print(text, json))?;
    let moves = async {
        if let Some(queue) = &queue {
            queue.run(stop).await;
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
    let follows = log.follow(queue.as_deref(), fleet.as_ref(), stop);
    let served = daemon.serve(stop.clone());
    let ((), (), (), (), coordinated) = tokio::join!(served, moves, follows, consoles, coordinates);
    if let Some(queue) = &queue {
        log.poll(queue).await;
    }
    coordinated?;
    match &mover {
        Some(mover) => mover.print_stopped(voice)?,
        None => voice.print("stopped", &json!({"event": "stopped"})),
    }
    Ok(())
}

/// Lets in no more clients than there may be open files, besides those of the daemon itself.
fn fit_files(args: &ServeArgs, options: &mut DaemonOptions) -> Result<()> {
    let members = if args.coordinator.fleet { MEMBERS_MAX } else { 0 };
    let consoles = if args.console.console.is_some() { whimbrel_console::CONNECTIONS_MAX } else { 0 };
    let ports = args.node_ports.as_ref().map_or(0, NodePorts::count);
    let besides = (STRANGERS_MAX + CONNECTIONS_MAX + consoles + members + ports) as u64 + SERVER_FILES;
    let wanted = options.connections_max as u32;
    let places = make_room(wanted, 1, besides)?;
    if places == 0 {
        let what = format!(
            "the hard limit of open files leaves no place for clients: the daemon itself needs {besides}"
        );
        return Err(Error::own("listen", what).with_remedy("raise it: ulimit -Hn"));
    }
    if places < wanted && !args.moving.show.json {
        eprintln!("note     too few open files for {wanted} clients: at most {places}; raise ulimit -n");
    }
    options.connections_max = places as usize;
    Ok(())
}

/// The part that moves slots of a cluster.
struct Mover {
    queue: Arc<Queue>,
    console: whimbrel_console::Mover,
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
        let queue = Queue::open(deployment.clone(), store.clone(), settings.clone()).await?;
        log.begin(queue.list().await?);
        let console =
            whimbrel_console::Mover { queue: queue.clone(), deployment, settings, why: why.clone() };
        Ok(Mover { queue, console, store, at, method, why, interrupted })
    }

    fn print_resuming(&self, voice: Voice) {
        voice.print(
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

    fn print_stopped(&self, voice: Voice) -> Result<()> {
        let left = self.store.interrupted_of(&self.at)?;
        voice.print(
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

/// Reports what becomes of the daemon: on standard error, as JSON on standard output.
#[derive(Debug, Clone, Copy)]
struct Voice {
    as_json: bool,
}

impl Voice {
    fn print(self, text: &str, json: &serde_json::Value) {
        if self.as_json {
            out!("{json}");
        } else {
            eprintln!("{text}");
        }
    }

    fn print_serving(
        self,
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
        self.print(&format!("serving  on {address}{without}: {}", what.join("; ")), &line);
    }
}
