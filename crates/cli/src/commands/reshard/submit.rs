//! Hands moves to a daemon, and watches until they are made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::canary::{Canary, CanaryReport};
use whimbrel_control::daemon::migrations::JobState;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_wire::value::Value;

use super::report::say_seen;
use crate::exit::Exit;
use crate::settings::args::Show;
use crate::ui::errors;
use whimbrel_terminal::progress::{Display, Lines};
use whimbrel_terminal::row::cell;

/// How often the daemon is asked how its jobs stand.
const POLL: Duration = Duration::from_millis(250);

/// How long a daemon that is being restarted is waited for.
const RECONNECT_MAX: Duration = Duration::from_secs(60);

/// A job that is not listed so many times in a row is gone: its state is being written when it is missed
/// once.
const MISSED_MAX: u32 = 4;

/// A job of the daemon, as it lists it.
#[derive(Debug, Clone)]
struct Listed {
    name: String,
    source: String,
    target: String,
    slots: SlotSet,
    state: String,
    message: String,
}

/// A move that the daemon was told to make.
#[derive(Debug, Clone)]
struct Submitted {
    planned: Move,
    name: String,
    state: String,
    message: String,
    missed: u32,
}

/// How a submitted move ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Cancelled,
    Failed,
    /// The daemon has forgotten it: somebody removed its files.
    Gone,
}

impl Submitted {
    fn end(&self) -> Option<End> {
        let ended = [
            (JobState::Success, End::Done),
            (JobState::Cancelled, End::Cancelled),
            (JobState::Failed, End::Failed),
        ];
        let found = ended.into_iter().find(|(state, _)| state.word() == self.state).map(|(_, end)| end);
        found.or((self.missed >= MISSED_MAX).then_some(End::Gone))
    }

    fn between(&self) -> String {
        format!("{} -> {}", self.planned.source.short(), self.planned.target.short())
    }
}

/// Submits `moves` to the daemon at `endpoint`, shows how they stand until all have ended, and tells what
/// came of them. `stop` cancels those that have not ended.
pub async fn run(
    endpoint: Endpoint,
    options: LinkOptions,
    deployment: &Arc<Deployment>,
    moves: &[Move],
    show: &Show,
    stop: &CancellationToken,
) -> Exit {
    if stop.is_cancelled() {
        return Exit::Stopped;
    }
    let mut begun = false;
    let mut daemon = Daemon { endpoint: Arc::new(endpoint), options, link: None };
    let outcome = async {
        let jobs = submit(&mut daemon, moves, &mut begun).await?;
        watch(&mut daemon, deployment, jobs, show, stop).await
    };
    match outcome.await {
        Ok(exit) => exit,
        Err(e) => {
            let exit = errors::exit_of(&e, begun);
            show_error(&e, show.json, exit);
            exit
        }
    }
}

/// Prints an error of the daemon, which is no side of a transfer.
fn show_error(error: &Error, as_json: bool, exit: Exit) {
    crate::ui::errors::show_error_of("daemon", error, str::to_owned, as_json, exit);
}

/// A daemon, to which a new connection is made when one breaks.
struct Daemon {
    endpoint: Arc<Endpoint>,
    options: LinkOptions,
    link: Option<Link>,
}

impl Daemon {
    async fn link(&mut self) -> Result<&mut Link> {
        let link = match self.link.take() {
            Some(link) => link,
            None => Link::open(&self.endpoint, &self.endpoint.address, self.options).await?,
        };
        Ok(self.link.insert(link))
    }

    /// One command, once: where its answer is lost it is not known whether it was carried out.
    async fn call(&mut self, command: &[&[u8]]) -> Result<Value> {
        let outcome = async { self.link().await?.call(command).await }.await;
        if outcome.as_ref().is_err_and(|e| e.server().is_none()) {
            self.link = None;
        }
        outcome
    }

    /// One command that may be sent again.
    async fn call_again(&mut self, command: &[&[u8]]) -> Result<Value> {
        let asked = Instant::now();
        loop {
            match self.call(command).await {
                Err(e) if e.is_link() && asked.elapsed() < RECONNECT_MAX => tokio::time::sleep(POLL).await,
                Err(e) if e.is_link() => {
                    return Err(e.with_remedy(
                        "jobs that it has taken in go on once it runs again; see CLUSTER GETSLOTMIGRATIONS \
                            there",
                    ));
                }
                outcome => return outcome,
            }
        }
    }

    fn listed(&self, reply: Value) -> Result<Vec<Listed>> {
        let unexpected = || {
            let what = "a list of slot migrations that cannot be understood".to_owned();
            let kind = whimbrel_engine::error::ErrorKind::Unexpected(what);
            let at = self.endpoint.address.to_string();
            Error::new(self.endpoint.side, at, "CLUSTER GETSLOTMIGRATIONS", kind)
        };
        let items = reply.into_items().ok_or_else(unexpected)?;
        items.iter().map(read_job).collect::<Option<_>>().ok_or_else(unexpected)
    }
}

fn read_job(entry: &Value) -> Option<Listed> {
    let text = |name| entry.field(name).and_then(Value::as_str).map(str::to_owned);
    Some(Listed {
        name: text("name")?,
        source: text("source_node")?,
        target: text("target_node")?,
        slots: text("slot_ranges")?.replace(' ', ",").parse().ok()?,
        state: text("state")?,
        message: text("message")?,
    })
}

const LIST: [&[u8]; 2] = [b"CLUSTER", b"GETSLOTMIGRATIONS"];

/// Has the daemon take in all moves, or none, and finds its jobs for them.
async fn submit(daemon: &mut Daemon, moves: &[Move], begun: &mut bool) -> Result<Vec<Submitted>> {
    let reply = daemon.call(&LIST).await?;
    let known: BTreeSet<String> = daemon.listed(reply)?.into_iter().map(|job| job.name).collect();
    let mut words: Vec<Vec<u8>> = vec![b"CLUSTER".to_vec(), b"MIGRATESLOTS".to_vec()];
    for planned in moves {
        words.push(b"SLOTSRANGE".to_vec());
        for range in planned.slots.ranges() {
            words.push(range.start().to_string().into_bytes());
            words.push(range.end().to_string().into_bytes());
        }
        words.push(b"NODE".to_vec());
        words.push(planned.target.to_string().into_bytes());
    }
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let outcome = daemon.call(&words).await;
    // Refused is refused; whatever else was lost on the way may have arrived.
    *begun = outcome.as_ref().err().is_none_or(|e| e.server().is_none());
    outcome.map_err(|e| match e.server() {
        Some(_) => e,
        None => e.with_remedy("see there with CLUSTER GETSLOTMIGRATIONS whether it has taken the jobs in"),
    })?;
    let reply = daemon.call_again(&LIST).await?;
    let mut new: Vec<Listed> =
        daemon.listed(reply)?.into_iter().filter(|job| !known.contains(&job.name)).collect();
    let mut jobs = Vec::with_capacity(moves.len());
    for planned in moves {
        // No two jobs that have not ended share a slot: a new one for these slots is the one that was asked
        // for.
        let place = new.iter().position(|job| {
            job.slots == planned.slots
                && job.target == planned.target.to_string()
                && job.source == planned.source.to_string()
        });
        let Some(place) = place else {
            let what = format!("it has taken in the jobs, but lists none for slots {}", planned.slots);
            return Err(Error::unfit(
                daemon.endpoint.side,
                daemon.endpoint.address.to_string(),
                "find the jobs",
                what,
            ));
        };
        let Listed { name, state, message, .. } = new.swap_remove(place);
        jobs.push(Submitted { planned: planned.clone(), name, state, message, missed: 0 });
    }
    Ok(jobs)
}

async fn watch(
    daemon: &mut Daemon,
    deployment: &Arc<Deployment>,
    jobs: Vec<Submitted>,
    show: &Show,
    stop: &CancellationToken,
) -> Result<Exit> {
    let started = Instant::now();
    let slots = jobs.iter().fold(SlotSet::new(), |all, job| all.union(&job.planned.slots));
    let canary = Canary::start(deployment.clone(), &slots);
    let shared = Arc::new(Mutex::new(jobs));
    let shown = shared.clone();
    let display = Display::start(show.form(), move || lines(&shown.lock(), started));
    let outcome = until_ended(daemon, &shared, stop).await;
    display.finish().await;
    let seen = canary.end().await;
    outcome?;
    let jobs = shared.lock().clone();
    report(daemon, deployment, &jobs, show, &seen, started).await
}

async fn until_ended(
    daemon: &mut Daemon,
    shared: &Mutex<Vec<Submitted>>,
    stop: &CancellationToken,
) -> Result<()> {
    let mut is_cancelled = false;
    while shared.lock().iter().any(|job| job.end().is_none()) {
        let mut refusal = None;
        if is_cancelled {
            tokio::time::sleep(POLL).await;
        } else if stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_none() {
            is_cancelled = true;
            let jobs: Vec<String> =
                shared.lock().iter().filter(|job| job.end().is_none()).map(|job| job.name.clone()).collect();
            for name in jobs {
                match daemon.call_again(&[b"CLUSTER", b"CANCELSLOTMIGRATIONS", name.as_bytes()]).await {
                    // One that has just ended is not to be cancelled any more.
                    Err(e) if e.server().is_some() => refusal = Some((name, e)),
                    outcome => drop(outcome?),
                }
            }
        }
        let reply = daemon.call_again(&LIST).await?;
        let listed = daemon.listed(reply)?;
        let mut jobs = shared.lock();
        for job in jobs.iter_mut() {
            match listed.iter().find(|listed| listed.name == job.name) {
                Some(listed) => {
                    job.state.clone_from(&listed.state);
                    job.message.clone_from(&listed.message);
                    job.missed = 0;
                }
                None if is_cancelled => JobState::Cancelled.word().clone_into(&mut job.state),
                None => job.missed += 1,
            }
        }
        if let Some((name, e)) = refusal
            && jobs.iter().any(|job| job.name == name && job.end().is_none())
        {
            return Err(e);
        }
    }
    Ok(())
}

fn lines(jobs: &[Submitted], started: Instant) -> Lines {
    let count = |jobs: &mut dyn Iterator<Item = &Submitted>| -> u64 {
        jobs.map(|job| job.planned.slots.len() as u64).sum()
    };
    let slots = count(&mut jobs.iter());
    let moved = count(&mut jobs.iter().filter(|job| job.end() == Some(End::Done)));
    let ended = jobs.iter().filter(|job| job.end().is_some()).count();
    let waiting = jobs.iter().filter(|job| job.state == JobState::Connecting.word()).count();
    let runs = |job: &&Submitted| job.end().is_none() && job.state != JobState::Connecting.word();
    let running = jobs.iter().filter(runs);
    let mut rows: Vec<_> = running
        .map(|job| vec![cell(1, job.between()), cell(0, job.state.as_str()), cell(2, job.message.as_str())])
        .collect();
    let all = format!("{ended} of {} ended, {moved} of {slots} slots moved", jobs.len());
    rows.push(match waiting {
        0 => vec![cell(0, all)],
        waiting => vec![cell(0, format!("{all}, {} waiting", format_count_of(waiting as u64, "job")))],
    });
    let details: Vec<_> = jobs
        .iter()
        .map(|job| {
            json!({"job": job.name, "state": job.state, "message": job.message,
                "slots": job.planned.slots.len()})
        })
        .collect();
    let json = json!({
        "event": "progress", "elapsed_ms": elapsed_ms(started), "slots": slots, "slots_handed_over": moved,
        "jobs": details,
    });
    Lines { done: None, rows, json, notes: Vec::new(), plain: None }
}

fn elapsed_ms(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Tells what came of the jobs. How many slots of one that did not end well are at its target, the cluster
/// knows.
async fn report(
    daemon: &Daemon,
    deployment: &Arc<Deployment>,
    jobs: &[Submitted],
    show: &Show,
    seen: &CanaryReport,
    started: Instant,
) -> Result<Exit> {
    let view = whimbrel_control::view_of(deployment).await?;
    let any = |end| jobs.iter().any(|job| job.end() == Some(end));
    let exit = if any(End::Failed) || any(End::Gone) {
        Exit::Interrupted
    } else if any(End::Cancelled) {
        Exit::Stopped
    } else {
        Exit::Success
    };
    let mut rows = Vec::with_capacity(jobs.len());
    let mut moved = 0;
    for job in jobs {
        let (planned, end) = (&job.planned, job.end().unwrap_or(End::Gone));
        let there = match (end, view.node(&planned.target)) {
            (End::Done, _) => planned.slots.clone(),
            (_, Some(target)) => planned.slots.intersection(&target.slots),
            (_, None) => SlotSet::new(),
        };
        moved += there.len();
        let (ending, words) = match end {
            End::Done => ("done", "moved"),
            End::Cancelled if there.is_empty() => ("cancelled", "CANCELLED, rolled back"),
            End::Cancelled => ("cancelled", "CANCELLED, the rest rolled back"),
            End::Failed if there.is_empty() => ("failed", "FAILED, rolled back"),
            End::Failed => ("failed", "FAILED, the rest rolled back"),
            End::Gone => ("gone", "GONE: the daemon does not list it any more"),
        };
        rows.push(json!({
            "id": job.name, "source": planned.source, "target": planned.target,
            "slots": planned.slots.to_string(),
            "slots_handed_over": there.to_string(), "ending": ending, "reason": job.message,
        }));
        if !show.json {
            say!("{}  {words}, {} of {} slots", job.between(), there.len(), planned.slots.len());
            if !job.message.is_empty() {
                say!("         {}", job.message);
            }
        }
    }
    let duration_ms = elapsed_ms(started);
    let server = daemon.endpoint.address.to_string();
    if show.json {
        say!(
            "{}",
            json!({
                "event": "report", "server": server, "duration_ms": duration_ms, "slots": moved,
                "canary": seen,
                "jobs": rows, "exit": exit as u8,
            })
        );
        return Ok(exit);
    }
    say!(
        "moved    {} in {} by the daemon at {server}",
        format_count_of(moved as u64, "slot"),
        format_duration_ms(duration_ms)
    );
    say_seen(seen);
    Ok(exit)
}
