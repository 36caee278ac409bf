//! Passes over the source, until nothing is in doubt.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::deployment::Topology;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;

use crate::journal::{JournalState, UnitMark};
use crate::pipeline::{Lanes, Shared, Tracker, average_bytes};
use crate::progress::CopyProgress;
use crate::retry::Backoff;
use crate::scan::{KeyScan, ScanOptions, Unit};

/// How often keys in doubt are gone through again before the copy gives up.
const PASSES_MAX: u32 = 100;

/// After a pass that left nothing in doubt but slots on the move, this long is waited, and longer with each
/// pass.
const OPEN_SLOTS_PAUSE: Duration = Duration::from_millis(500);

/// How often the journal is written.
const JOURNAL_PERIOD: Duration = Duration::from_millis(500);

/// Writes down how far a copy is.
pub(crate) type Keep<'a> = dyn FnMut(&JournalState) -> Result<()> + Send + 'a;

/// Goes through the source, and again through what is in doubt afterwards, until nothing is; false if it was
/// stopped before.
pub(crate) async fn passes(
    shared: &Arc<Shared>,
    state: &mut JournalState,
    keep: &mut Keep<'_>,
) -> Result<bool> {
    // The pass that was under way is continued.
    state.pass = state.pass.saturating_sub(1);
    let mut complete = false;
    while state.pass < PASSES_MAX {
        state.pass += 1;
        let before = shared.source.topology();
        let before_target = shared.target.topology();
        state.source_layout = layout(&before);
        complete = run_pass(shared, state, keep).await?;
        if !complete {
            break;
        }
        let (again, open) = find_suspects(shared, &before, &before_target).await?;
        if again.is_empty() {
            break;
        }
        complete = false;
        if shared.limits.are_reached() {
            let what = "slots changed hands or lost their server, and with a limit it is not known which \
                keys to copy again";
            return Err(Error::own("copy", what).with_remedy("copy again"));
        }
        if again == open {
            // Nothing but migrations that are under way: they need time, not passes.
            let pause = OPEN_SLOTS_PAUSE * state.pass.min(10);
            shared.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
        shared.progress.notice(format!(
            "{} slots changed hands or lost their server during pass {}: they are copied once more",
            again.len(),
            state.pass
        ));
        shared.failures.forget(&again);
        state.begin_pass(&again);
    }
    if !complete && state.pass >= PASSES_MAX {
        let what = format!("slots were on the move, or changed hands, during {PASSES_MAX} passes");
        return Err(Error::own("copy", what)
            .with_remedy(Remedy::Resume("finish or undo the slot migrations of both clusters")));
    }
    Ok(complete)
}

/// Takes over what an earlier run had found.
pub(crate) fn remember(shared: &Shared, state: &JournalState) {
    shared.failures.take_over(state.failed, &state.failures);
    let of = |slots: &Option<SlotSet>| slots.clone().unwrap_or_default();
    shared.suspects.take_over(of(&state.suspects_source), of(&state.suspects_target));
}

/// Writes down what a later run has to know. It comes after the positions of the same save have been taken: a
/// key is noted as failed or in doubt before its page counts as dealt with, and must not be forgotten once it
/// does.
pub(crate) fn record(shared: &Shared, state: &mut JournalState) {
    state.failed = shared.failures.count();
    state.failures = shared.failures.for_journal();
    let (source, target) = shared.suspects.by_side();
    state.suspects_source = Some(source).filter(|slots| !slots.is_empty());
    state.suspects_target = Some(target).filter(|slots| !slots.is_empty());
}

/// How many keys the target has evicted since it was first met; if there are any, the user should know.
pub(crate) fn note_evicted(shared: &Shared) -> u64 {
    let evicted = shared.suspects.evicted();
    if evicted > 0 {
        shared.progress.notice(format!(
            "the target evicted {evicted} keys meanwhile to stay within its maxmemory: it does not hold \
                everything"
        ));
    }
    evicted
}

/// Which shard owns which slots, for the journal.
pub(crate) fn layout(topology: &Topology) -> BTreeMap<String, String> {
    topology.shards.iter().map(|s| (s.id.clone(), s.slots.to_string())).collect()
}

/// The process behind each primary of the target, for the journal and for later comparison. After a failure
/// the topology is asked for again: a primary that is gone is not waited for when another has taken its
/// place.
pub(crate) async fn target_runs(shared: &Arc<Shared>) -> Result<HashMap<String, String>> {
    let mut backoff = Backoff::new(shared.options.retry);
    loop {
        match try_target_runs(shared).await {
            Ok(runs) => return Ok(runs),
            Err(e) => shared.pause(&mut backoff, e).await?,
        }
    }
}

async fn try_target_runs(shared: &Arc<Shared>) -> Result<HashMap<String, String>> {
    let before = shared.target.topology();
    let now = shared.target.refresh().await?;
    let moved = before.moved_slots(&now);
    shared.suspects.note_target_slots(&moved);
    for shard in &now.shards {
        shared.open_target(&shard.primary, 0).await?;
    }
    Ok(shared.suspects.runs(&now))
}

/// As [`poll_target`], if nothing may be left unknown.
///
/// # Errors
/// When a primary of the target, or what reports them, does not answer.
pub(crate) async fn check_target(shared: &Arc<Shared>) -> Result<()> {
    try_target_runs(shared).await.map(drop)
}

/// Looks whether the primaries of the target are the processes they were; those that are not are in doubt.
pub(crate) async fn poll_target(shared: &Arc<Shared>) {
    if let Err(error) = try_target_runs(shared).await {
        tracing::debug!(%error, "a primary of the target does not answer");
    }
}

/// After a pass: the slots that have to be gone through again, and those of them that are on the move right
/// now. Asks both sides how they are.
pub(crate) async fn find_suspects(
    shared: &Arc<Shared>,
    before: &Topology,
    before_target: &Topology,
) -> Result<(SlotSet, SlotSet)> {
    // Every primary of the target is met once more: otherwise a primary that was replaced or restarted after
    // the last write to it would go unnoticed.
    target_runs(shared).await?;
    let mut backoff = Backoff::new(shared.options.retry);
    let open = loop {
        match open_slots(shared).await {
            Ok(open) => break open,
            Err(e) => shared.pause(&mut backoff, e).await?,
        }
    };
    let slots = (shared.suspects.take())
        .union(&before.moved_slots(&shared.source.topology()))
        .union(&before_target.moved_slots(&shared.target.topology()))
        .union(&open);
    Ok(match &shared.options.selection.slots {
        Some(wanted) => (slots.intersection(wanted), open.intersection(wanted)),
        None => (slots, open),
    })
}

/// Slots that are on the move on either side, by the latest topology of the source.
async fn open_slots(shared: &Arc<Shared>) -> Result<SlotSet> {
    shared.source.refresh().await?;
    Ok(shared.source.open_slots().await?.union(&shared.target.open_slots().await?))
}

/// Goes through everything once, or through the slots of the state; true if nothing was left out.
pub(crate) async fn run_pass(
    shared: &Arc<Shared>,
    state: &mut JournalState,
    keep: &mut Keep<'_>,
) -> Result<bool> {
    let mut backoff = Backoff::new(shared.options.retry);
    let open = loop {
        match shared.source.open_slots().await {
            Ok(open) => break open,
            Err(e) => shared.pause(&mut backoff, e).await?,
        }
        shared.refresh_source().await;
    };
    let mut waiting = Vec::new();
    for pair in &shared.options.dbs {
        for unit in Unit::of_all(&shared.source, pair.source, shared.options.from_replicas) {
            // A slot that is on the move has keys on two nodes: only if none is, its owner alone is enough.
            let wanted = wanted_slots(shared, state).filter(|w| w.intersection(&open).is_empty());
            if wanted.is_some_and(|w| shared.source.is_cluster() && w.intersection(&unit.slots).is_empty()) {
                continue;
            }
            let name = format!("{}/{}:{}", unit.shard_id, pair.source, pair.target);
            if state.units.get(&name).is_some_and(|mark| *mark == UnitMark::Done) {
                continue;
            }
            waiting.push((name, unit, pair.target));
        }
    }
    waiting.reverse();
    let mut running: JoinSet<(String, Result<bool>)> = JoinSet::new();
    let mut trackers: HashMap<String, Arc<Tracker>> = HashMap::new();
    let mut complete = true;
    let mut failure = None;
    let mut tick = tokio::time::interval(JOURNAL_PERIOD);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        while failure.is_none() && running.len() < shared.options.shards_at_once.max(1) {
            let Some((name, unit, target_db)) = waiting.pop() else { break };
            let tracker = Arc::new(Tracker::default());
            trackers.insert(name.clone(), tracker.clone());
            let from = match state.units.get(&name) {
                Some(UnitMark::At(position)) => Some(position.clone().into()),
                _ => None,
            };
            let slots = state.slots.clone();
            let shared = shared.clone();
            running.spawn(async move {
                let result = run_unit(shared, unit, target_db, slots, from, tracker).await;
                (name, result)
            });
        }
        tokio::select! {
            joined = running.join_next() => match joined {
                None => break,
                Some(Err(e)) => failure = failure.or(Some(Error::own("copy a shard", e))),
                Some(Ok((name, result))) => {
                    let tracker = trackers.remove(&name);
                    match result {
                        Ok(true) => {
                            state.units.insert(name, UnitMark::Done);
                        }
                        Ok(false) => {
                            complete = false;
                            note(state, &name, tracker.as_deref());
                        }
                        // What the user stopped is no failure: its keys have not been dealt with, that is
                        // all.
                        Err(e) if failure.is_none() && shared.stop.is_cancelled() && e.side == Side::Own => {
                            complete = false;
                            note(state, &name, tracker.as_deref());
                        }
                        Err(e) => {
                            complete = false;
                            note(state, &name, tracker.as_deref());
                            // The other shards need not go on: nothing can be complete any more.
                            shared.stop.cancel();
                            failure = failure.or(Some(e));
                        }
                    }
                }
            },
            _ = tick.tick() => {}
        }
        for (name, tracker) in &trackers {
            note(state, name, Some(tracker));
        }
        record(shared, state);
        keep(state)?;
    }
    match failure {
        Some(e) => Err(e),
        None => Ok(complete && waiting.is_empty()),
    }
}

fn note(state: &mut JournalState, name: &str, tracker: Option<&Tracker>) {
    match tracker.and_then(Tracker::safe) {
        Some(position) => state.units.insert(name.to_owned(), UnitMark::At((&position).into())),
        None => state.units.remove(name),
    };
}

/// The slots that this pass is about, if it is not all.
fn wanted_slots<'a>(shared: &'a Shared, state: &'a JournalState) -> Option<&'a SlotSet> {
    state.slots.as_ref().or(shared.options.selection.slots.as_ref())
}

/// Copies the keys of one unit; true if all of them were dealt with.
async fn run_unit(
    shared: Arc<Shared>,
    unit: Unit,
    target_db: u32,
    slots: Option<SlotSet>,
    from: Option<crate::scan::Position>,
    tracker: Arc<Tracker>,
) -> Result<bool> {
    let mut lanes = Lanes::open(&shared, &unit, target_db, average_bytes(&shared), tracker.clone());
    let scanned = feed_lanes(&shared, &unit, slots, from, &tracker, &mut lanes).await;
    match (scanned, lanes.close().await.err()) {
        // Stopped by the user, or because another shard has failed: no error of this one, it is only not
        // complete.
        (_, Some(e)) | (Err(e), None) if shared.stop.is_cancelled() && e.side == Side::Own => {
            tracing::debug!(error = %e, "stopped");
            Ok(false)
        }
        (_, Some(e)) | (Err(e), None) => Err(e),
        (Ok(complete), None) => Ok(complete && tracker.is_settled()),
    }
}

/// Scans and hands the keys to their lanes; true if the scan came to its end.
async fn feed_lanes(
    shared: &Arc<Shared>,
    unit: &Unit,
    slots: Option<SlotSet>,
    from: Option<crate::scan::Position>,
    tracker: &Tracker,
    lanes: &mut Lanes,
) -> Result<bool> {
    let mut selection = shared.options.selection.clone();
    selection.slots = match (selection.slots, slots) {
        (Some(wanted), Some(slots)) => Some(wanted.intersection(&slots)),
        (wanted, slots) => wanted.or(slots),
    };
    let everything = selection.is_everything();
    let options = ScanOptions {
        count: shared.options.scan_count,
        pattern: selection.server_side_match().map(Bytes::copy_from_slice),
        type_name: match shared.options.types.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        },
    };
    let mut scan = KeyScan::new(shared.source.clone(), unit.clone(), options, shared.options.retry, from);
    let progress = &shared.progress;
    loop {
        if shared.limits.are_reached() {
            return lanes.flush().await.map(|()| true);
        }
        let page = tokio::select! {
            biased;
            () = shared.stop.cancelled() => {
                // If that fails, the lanes report why when they are closed.
                return lanes.flush().await.map(|()| false);
            }
            page = scan.next() => page?,
        };
        let Some(page) = page else { break };
        if page.restarted {
            tracker.restarted();
            progress.notice(match shared.source.facts.are_known {
                true => format!("the source restarted: shard {} is scanned again", unit.shard_id),
                false => "nothing shows whether the source is still the process it was: it is scanned from \
                    the beginning"
                    .to_owned(),
            });
        }
        CopyProgress::add(&progress.scanned, page.keys.len() as u64);
        let mut keys = page.keys;
        if !everything {
            keys.retain(|key| selection.admits(key));
        }
        if !shared.options.asks_types() {
            shared.limits.select(&mut keys);
        }
        let number = tracker.opened(keys.len(), page.next);
        for key in keys {
            if let Some(full) = lanes.put(key, number) {
                lanes.hand_over(full).await?;
            }
        }
    }
    lanes.flush().await.map(|()| true)
}
