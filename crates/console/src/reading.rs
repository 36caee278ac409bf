//! Reads how everything stands, once for all who watch, and only while somebody does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_control::clock::now_ms;
use whimbrel_control::daemon::Jobs as _;
use whimbrel_control::daemon::migrations::JobView;
use whimbrel_control::jobs::Seen;
use whimbrel_control::pace::Paces;
use whimbrel_control::store::{Entry, Kind, Status, Store};

use crate::canaries::Canaries;
use crate::cluster::Moving;
use crate::inner::Inner;
use crate::mover::Mover;
use crate::shown::Shown;
use crate::{again, cluster};

/// How often it is looked.
const PERIOD: Duration = Duration::from_secs(1);

/// The cluster is asked no more often than this many times as long as that takes.
const CLUSTER_SHARE: u32 = 5;

/// How long it is not asked while a node is silent.
const SILENT_PAUSE: Duration = Duration::from_secs(2);

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

/// The jobs of the folder, as they were written down.
async fn listed(inner: &Inner) -> Result<Vec<Entry>, String> {
    let jobs = inner.jobs();
    let listing = tokio::task::spawn_blocking(move || jobs.all()).await;
    listing.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// The job of this name as it stands now, or how its last run ended. No other job is asked: one that does not
/// answer holds up its own page alone.
pub(crate) async fn read_job(inner: &Arc<Inner>, name: &str) -> Result<Option<Seen>, String> {
    match Store::of_name(listed(inner).await?, |entry| &entry.status, name) {
        Some(entry) => Ok(inner.jobs().as_they_are(vec![entry]).await.pop()),
        // Those of other whimbrels are found with all others.
        None => Ok(Store::of_name(read_jobs(inner).await?, |seen| &seen.entry.status, name)),
    }
}

/// All jobs, as they stand now.
pub(crate) async fn read_jobs(inner: &Arc<Inner>) -> Result<Vec<Seen>, String> {
    let mut seen = inner.jobs().as_they_are(listed(inner).await?).await;
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

/// Moves of slots of the cluster that a process carries out now.
async fn moving(inner: &Inner, mover: &Mover) -> Vec<Moving> {
    let jobs = inner.jobs();
    let entries = tokio::task::spawn_blocking(move || jobs.store.list()).await;
    let entries = entries.ok().and_then(|entries| entries.ok()).unwrap_or_default();
    let cluster = mover.cluster();
    let ours = entries.into_iter().filter(|e| e.running && e.status.kind == Kind::Move);
    let ours = ours.filter(|entry| entry.status.cluster == cluster && !entry.status.ended);
    let ours = ours.filter_map(|Entry { status, .. }| {
        Some(Moving { source: status.source, target: status.target, slots: status.slots.parse().ok()? })
    });
    let others = mover.queue.others().await.unwrap_or_default();
    let others = others.into_iter().filter(|job| !job.state.is_final());
    let others = others.map(|job| Moving { source: job.source, target: job.target, slots: job.slots });
    ours.chain(others).collect()
}

/// The cluster, as it was found less than `at_most` ago, or as it is found now. Who asks meanwhile waits for
/// the same look.
pub(crate) async fn read_cluster(inner: &Inner, mover: &Mover, at_most: Duration) -> Arc<Value> {
    let mut last_survey = inner.last_survey.lock().await;
    let before = match &*last_survey {
        Some((when, known)) if when.elapsed() < at_most => return known.clone(),
        Some((_, known)) => Some(known.clone()),
        None => None,
    };
    // Also those that end, or begin, while the nodes are asked.
    let mut moves = moving(inner, mover).await;
    let found = cluster::survey(mover).await;
    moves.extend(moving(inner, mover).await);
    let value = Arc::new(cluster::describe(mover, found, &moves, before.as_deref()));
    *last_survey = Some((Instant::now(), value.clone()));
    value
}

async fn follow_cluster(inner: &Arc<Inner>) {
    let Some(mover) = &inner.mover else { return std::future::pending().await };
    loop {
        let began = Instant::now();
        let read = read_cluster(inner, mover, PERIOD).await;
        let is_silent = cluster::has_silence(&read);
        inner.watched.change(|snapshot| snapshot.cluster = Some(read));
        // To wait for who is silent is no load.
        let pause = if is_silent { SILENT_PAUSE } else { PERIOD.max(began.elapsed() * CLUSTER_SHARE) };
        tokio::time::sleep(pause).await;
    }
}

/// The fleet, and the canaries. They do not wait for each other.
async fn follow_rest(inner: &Arc<Inner>) {
    let mut canaries = Canaries::default();
    let mut ticks = tokio::time::interval(PERIOD);
    loop {
        ticks.tick().await;
        if let (Some(mover), Some(cluster)) = (&inner.mover, inner.watched.latest().cluster.clone()) {
            canaries.follow(mover, &cluster);
            let lately = canaries.take_lately().map(Arc::new);
            inner.watched.change(|snapshot| snapshot.canary = lately);
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
