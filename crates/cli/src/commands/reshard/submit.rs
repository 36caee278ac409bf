//! Hands moves to a daemon, and watches until they are made.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::canary::{self, Canary, CanaryReport};
use whimbrel_control::daemon::client::{DaemonClient, End, Submitted};
use whimbrel_core::plan::Move;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_terminal::progress::{Display, Lines};
use whimbrel_terminal::row::cell;

use super::report::print_canary;
use crate::exit::Exit;
use crate::settings::args::Show;
use crate::ui::errors;

/// Submits `moves` to the daemon, shows how they stand until all have ended, and reports what
/// came of them. `stop` cancels those that have not ended.
pub async fn run(
    mut daemon: DaemonClient,
    deployment: &Arc<Deployment>,
    moves: &[Move],
    show: &Show,
    stop: &CancellationToken,
) -> Exit {
    if stop.is_cancelled() {
        return Exit::Stopped;
    }
    let mut begun = false;
    let outcome = async {
        let jobs = daemon.submit(moves, &mut begun).await?;
        watch(&mut daemon, deployment, jobs, show, stop).await
    };
    match outcome.await {
        Ok(exit) => exit,
        Err(e) => {
            let exit = errors::exit_of(&e, begun);
            // It is no side of a transfer.
            errors::show_error_of("daemon", &e, str::to_owned, show.json, exit);
            exit
        }
    }
}

async fn watch(
    daemon: &mut DaemonClient,
    deployment: &Arc<Deployment>,
    jobs: Vec<Submitted>,
    show: &Show,
    stop: &CancellationToken,
) -> Result<Exit> {
    let started = Instant::now();
    let slots = jobs.iter().fold(SlotSet::new(), |all, job| all.union(&job.planned.slots));
    let canary = Canary::start(deployment.clone(), &slots, canary::PERIOD);
    let shared = Arc::new(Mutex::new(jobs));
    let shown = shared.clone();
    let display = Display::start(show.form(), move || lines(&shown.lock(), started));
    let outcome = daemon.until_ended(&shared, stop).await;
    display.finish().await;
    let seen = canary.end().await;
    outcome?;
    let jobs = shared.lock().clone();
    report(daemon, deployment, &jobs, show, &seen, started).await
}

fn lines(jobs: &[Submitted], started: Instant) -> Lines {
    let count = |jobs: &mut dyn Iterator<Item = &Submitted>| -> u64 {
        jobs.map(|job| job.planned.slots.len() as u64).sum()
    };
    let slots = count(&mut jobs.iter());
    let moved = count(&mut jobs.iter().filter(|job| job.end() == Some(End::Done)));
    let ended = jobs.iter().filter(|job| job.end().is_some()).count();
    let waiting = jobs.iter().filter(|job| job.is_waiting()).count();
    let runs = |job: &&Submitted| job.end().is_none() && !job.is_waiting();
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

/// Reports what came of the jobs. If a job did not end well, the cluster knows how many of its slots are at
/// its target.
async fn report(
    daemon: &DaemonClient,
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
            out!("{}  {words}, {} of {} slots", job.between(), there.len(), planned.slots.len());
            if !job.message.is_empty() {
                out!("         {}", job.message);
            }
        }
    }
    let duration_ms = elapsed_ms(started);
    let server = daemon.address();
    if show.json {
        out!(
            "{}",
            json!({
                "event": "report", "server": server, "duration_ms": duration_ms, "slots": moved,
                "canary": seen,
                "jobs": rows, "exit": exit as u8,
            })
        );
        return Ok(exit);
    }
    out!(
        "moved    {} in {} by the daemon at {server}",
        format_count_of(moved as u64, "slot"),
        format_duration_ms(duration_ms)
    );
    print_canary(seen);
    Ok(exit)
}
