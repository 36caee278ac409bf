//! Reads how everything stands, once for all who watch, and only while somebody does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whimbrel_control::canary::{Answered, Canary};
use whimbrel_control::clock::now_ms;
use whimbrel_control::daemon::Jobs as _;
use whimbrel_control::daemon::migrations::JobView;
use whimbrel_control::jobs::Seen;
use whimbrel_control::pace::Paces;
use whimbrel_control::store::{Kind, Status};
use whimbrel_core::slot::{Slot, SlotSet};

use crate::inner::Inner;
use crate::mover::Mover;
use crate::shown::Shown;
use crate::{again, cluster};

/// How often it is looked.
const PERIOD: Duration = Duration::from_secs(1);

/// The cluster is asked no more often than this many times as long as that takes.
const CLUSTER_SHARE: u32 = 5;

/// How often the canary asks: nothing that servers feel.
const CANARY_PERIOD: Duration = Duration::from_millis(20);

/// Reads until the console stops.
pub(crate) async fn run(inner: &Arc<Inner>) {
    while inner.stop.run_until_cancelled(inner.watched.until_wanted()).await.is_some() {
        let read = async { tokio::join!(follow_jobs(inner), follow_cluster(inner), follow_rest(inner)) };
        tokio::select! {
            () = inner.stop.cancelled() => {}
            () = inner.watched.until_unwanted() => {}
            _ = read => {}
        }
    }
}

/// Jobs of the folder, and what others move in the cluster.
async fn follow_jobs(inner: &Arc<Inner>) {
    let mut paces = Paces::default();
    loop {
        let began = Instant::now();
        let read = read_jobs(inner).await;
        let before = inner.watched.latest();
        let read_ms = now_ms();
        match read {
            Ok(seen) => {
                let now = Instant::now();
                let shown = |seen: &Seen| {
                    let pace = paces.note(&seen.entry, now);
                    let name = seen.entry.status.id.clone();
                    let shown = show(inner, seen, pace);
                    // What has not changed is not sent again: it stays the same object.
                    match before.jobs.get(&name) {
                        Some(known) if **known == shown => (name, known.clone()),
                        _ => (name, Arc::new(shown)),
                    }
                };
                let jobs: BTreeMap<String, Arc<Shown>> = seen.iter().map(shown).collect();
                paces.keep(|name| jobs.contains_key(name));
                inner.watched.change(|snapshot| {
                    (snapshot.read_ms, snapshot.jobs, snapshot.trouble) = (read_ms, jobs, None);
                });
            }
            Err(why) => inner.watched.change(|snapshot| snapshot.trouble = Some(why.into())),
        }
        tokio::time::sleep(PERIOD.saturating_sub(began.elapsed())).await;
    }
}

/// A job as it is shown.
pub(crate) fn show(inner: &Inner, seen: &Seen, pace: Option<f64>) -> Shown {
    let goes_on = again::command(&seen.entry.status, inner.options.named_dir.as_deref());
    Shown::new(seen, goes_on, pace)
}

/// All jobs, as they stand now.
pub(crate) async fn read_jobs(inner: &Arc<Inner>) -> Result<Vec<Seen>, String> {
    let jobs = inner.jobs();
    let listing = tokio::task::spawn_blocking(move || jobs.all().map(|all| (jobs, all))).await;
    let (jobs, entries) = listing.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    let mut seen = jobs.as_they_are(entries).await;
    if let Some(mover) = &inner.mover {
        // Those of other whimbrels may be ours as well: of another console on the same folder.
        let others = mover.queue.others().await.unwrap_or_default();
        let unknown =
            others.into_iter().filter(|other| !seen.iter().any(|s| s.entry.status.id == other.name));
        let unknown: Vec<Seen> = unknown.map(|other| elsewhere(mover, other)).collect();
        seen.extend(unknown);
    }
    Ok(seen)
}

fn elsewhere(mover: &Mover, job: JobView) -> Seen {
    Seen::elsewhere(Status {
        id: job.name,
        kind: Kind::Move,
        cluster: mover.cluster(),
        source: job.source,
        target: job.target,
        slots: job.slots.to_string(),
        phase: job.state.word().to_owned(),
        message: job.message,
        created_s: job.created_s,
        updated_s: job.updated_s,
        remaining_bytes: job.remaining_bytes,
        ..Status::default()
    })
}

async fn follow_cluster(inner: &Arc<Inner>) {
    let Some(mover) = &inner.mover else { return std::future::pending().await };
    loop {
        let began = Instant::now();
        let before = inner.watched.latest().cluster.clone();
        let read = Arc::new(cluster::read(mover, before.as_ref()).await);
        inner.watched.change(|snapshot| snapshot.cluster = Some(read));
        tokio::time::sleep(PERIOD.max(began.elapsed() * CLUSTER_SHARE)).await;
    }
}

/// The fleet, and the canary. They do not wait for each other.
async fn follow_rest(inner: &Arc<Inner>) {
    let canary = inner.mover.as_ref().map(|mover| {
        let slots = Slot::all().collect::<SlotSet>();
        Canary::start(mover.deployment.clone(), &slots, CANARY_PERIOD)
    });
    let mut ticks = tokio::time::interval(PERIOD);
    loop {
        ticks.tick().await;
        if let Some(canary) = &canary {
            let lately = Arc::new(describe(canary.take_lately()));
            inner.watched.change(|snapshot| snapshot.canary = Some(lately));
        }
        if let Some(fleet) = &inner.fleet {
            // Who stands by knows nothing of it.
            let status = fleet.status().await.ok().and_then(|status| serde_json::to_value(status).ok());
            let before = inner.watched.latest().fleet.clone();
            let now = match (status, before) {
                (Some(status), Some(before)) if *before == status => Some(before),
                (status, _) => status.map(Arc::new),
            };
            inner.watched.change(|snapshot| snapshot.fleet = now);
        }
    }
}

fn describe(lately: Answered) -> Value {
    let ms = |us: u64| us as f64 / 1_000.0;
    json!({
        "at_ms": now_ms(), "requests": lately.requests, "errors": lately.errors,
        "redirects": lately.redirects, "longest_ms": ms(lately.longest_us),
        "mean_ms": (lately.requests > 0).then(|| ms(lately.total_us) / lately.requests as f64),
    })
}
