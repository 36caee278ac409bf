//! What others do with the nodes of a cluster, or have left half-done there: slots are not moved into its
//! way.
//!
//! What keeps jobs apart lies in the cluster itself, whichever folder they are written down in:
//!
//! - a job of whimbrel's, by whatever method, shows in the list of clients of its two nodes, with its slots,
//!   for as long as its process lives, between two batches as well;
//! - a migration of the servers' own is listed by its two nodes;
//! - marks of slots stay where a process was killed, until its job goes on or a repair clears them.
//!
//! What has not begun gives way to what has; of two that look at the same time one at most begins, and the
//! other looks again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;
use whimbrel_core::migration::JobId;
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::handover::{Claim, HandoverOptions};
use whimbrel_engine::native::Peer;
use whimbrel_engine::nodes::{
    Counted, JOB_CLIENT_NAME, NativeSeen, NodeState, Survey, SurveyOptions, Surveyed, shortened,
};

use crate::clock::now_s;
use crate::naming::process_name;
use crate::progress::JobProgress;
use crate::store::Status;

/// What can be done about it.
const REMEDY: &str = "wait for it, or see `whimbrel status` and, where it was started, `whimbrel jobs list`; \
                      `whimbrel repair` undoes moves that nobody resumes";

/// How long a job that gives way to others waits until it looks again, at least, and by how much more at
/// most: two that give way to each other do not do so for ever.
const GIVE_WAY: Duration = Duration::from_millis(150);
const GIVE_WAY_MORE_MS: u64 = 250;

/// What is known to be our own, and not another job's.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// The slots of jobs that have not ended: their marks may be there, whether the jobs run or were
    /// interrupted.
    pub slots: SlotSet,
    /// The nodes of those jobs.
    pub nodes: BTreeSet<NodeId>,
}

impl Own {
    /// Whether a migration of the servers' own may be one's own.
    fn has(&self, node: &NodeId, native: &NativeSeen) -> bool {
        self.nodes.contains(node) && native.slot_set().difference(&self.slots).is_empty()
    }
}

/// What is to move: between which nodes, and which slots.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The nodes that give slots away, and those that get them.
    pub nodes: BTreeSet<NodeId>,
    /// The slots.
    pub slots: SlotSet,
}

impl Wanted {
    /// What moves take.
    pub fn of(moves: &[Move]) -> Wanted {
        let mut wanted = Wanted::default();
        for planned in moves {
            wanted.nodes.extend([planned.source.clone(), planned.target.clone()]);
            wanted.slots = wanted.slots.union(&planned.slots);
        }
        wanted
    }
}

/// Refuses to move slots while another job is at work with them, or at their nodes.
///
/// A running job shows in the list of clients of its two nodes, even between two batches. If a user may not
/// have that list, the marks of slots still show it.
///
/// # Errors
/// `Unfit` if one is, or if something was left half-done; whatever keeps the cluster from being asked.
pub async fn refuse(deployment: &Deployment, wanted: &Wanted, own: &Own) -> Result<()> {
    let survey = survey(deployment).await?;
    let found = survey.nodes.iter().find_map(|node| Some((node, trouble_at(node, wanted, own)?)));
    found.map_or(Ok(()), |(node, what)| Err(refusal(node, what)))
}

async fn survey(deployment: &Deployment) -> Result<Survey> {
    let what = SurveyOptions { counts: Counted::Nothing, activity: true };
    Survey::take_with(deployment, what).await
}

/// A job of whimbrel's that is not an external one, and wants its place at its nodes.
pub(crate) struct Applicant<'a> {
    pub job: &'a JobId,
    pub nodes: &'a (Peer, Peer),
    pub slots: &'a SlotSet,
    /// How long it waits for others.
    pub patience: Duration,
}

/// Has others see that a job is at work on its two nodes, once no other whimbrel is. What this process runs
/// it keeps apart itself. `None` if it was cancelled meanwhile.
///
/// # Errors
/// `Unfit` if others are there for longer than the job may wait; as [`Claim::open`].
pub(crate) async fn claim(
    deployment: &Deployment,
    applicant: Applicant<'_>,
    progress: &JobProgress,
    cancel: &CancellationToken,
) -> Result<Option<Claim>> {
    let Applicant { job, nodes: (source, target), slots, patience } = applicant;
    let since = Instant::now();
    loop {
        let options = HandoverOptions {
            label: job.to_string(),
            process: process_name().to_owned(),
            slots: slots.clone(),
            ..HandoverOptions::default()
        };
        let nodes = [source.address.clone(), target.address.clone()];
        let mut claim = Claim::open(deployment, nodes, options).await?;
        let others = claim.others().await?;
        if others.is_empty() {
            claim.begin().await;
            progress.waits(None);
            return Ok(Some(claim));
        }
        let what = format!("another whimbrel is moving slots of these nodes: {}", all_shown(&others));
        if since.elapsed() >= patience {
            progress.waits(None);
            let at = source.address.to_string();
            return Err(Error::unfit(Side::Source, at, "begin", waited(&what, patience)).with_remedy(REMEDY));
        }
        progress.waits(Some(&what));
        // Others go first.
        drop(claim);
        if cancel.run_until_cancelled(tokio::time::sleep(give_way())).await.is_none() {
            return Ok(None);
        }
    }
}

/// How long to wait before one looks again.
pub(crate) fn give_way() -> Duration {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    GIVE_WAY + Duration::from_millis(u64::from(nanos / 1_000) % GIVE_WAY_MORE_MS)
}

/// Why it is not waited for any longer.
pub(crate) fn waited(what: &str, patience: Duration) -> String {
    match patience.as_secs() {
        0 => what.to_owned(),
        seconds => format!("{what}; it was waited for, for {}", format_count_of(seconds, "second")),
    }
}

/// Connections of other jobs, for people.
pub(crate) fn all_shown(others: &[String]) -> String {
    let mut all: Vec<String> = others.iter().map(|other| shown(other)).collect();
    all.dedup();
    all.join(", ")
}

/// Another whimbrel's job that is connected to a node, in words.
fn job_at(state: &NodeState) -> Option<String> {
    let ours = format!("{JOB_CLIENT_NAME}:{}:", process_name());
    let job = state.jobs.iter().find(|job| !job.starts_with(&ours))?;
    Some(format!("another whimbrel is moving slots there: {}", shown(job)))
}

/// What is going on at a node that is in the way, in words; `None` if nothing is. Others may move slots of
/// the cluster at the same time, as long as they have no node in common, and none of the slots.
pub fn trouble_at(node: &Surveyed, wanted: &Wanted, own: &Own) -> Option<String> {
    let involved = wanted.nodes.contains(&node.id);
    let state = match &node.answer {
        Ok(state) => state,
        Err(why) => return involved.then(|| why.to_string()),
    };
    let in_the_way = |slots: &SlotSet| involved || !slots.intersection(&wanted.slots).is_empty();
    let natives = state.native.iter().filter(|native| !own.has(&node.id, native));
    let natives: Vec<&NativeSeen> = natives.filter(|native| in_the_way(&native.slot_set())).collect();
    if let Some(first) = natives.first() {
        let all: Vec<String> = natives.iter().map(ToString::to_string).collect();
        let ends = first.ended_by();
        return Some(format!("a migration is running there: {} (ended by {ends})", all.join(", ")));
    }
    if let Some(job) = job_at(state).filter(|_| involved) {
        return Some(job);
    }
    let (importing, migrating) = (state.importing_slots(), state.migrating_slots());
    let marked = importing.union(&migrating).difference(&own.slots);
    if marked.is_empty() || !in_the_way(&marked) {
        return None;
    }
    let (importing, migrating) = (importing.difference(&own.slots), migrating.difference(&own.slots));
    Some(format!(
        "it has {} marked as importing and {} as migrating ({}): a migration is running, or one was left \
            half-done",
        format_count_of(importing.len() as u64, "slot"),
        format_count_of(migrating.len() as u64, "slot"),
        shortened(&marked, RANGES_SHOWN),
    ))
}

/// How many ranges of slots an error names.
const RANGES_SHOWN: usize = 8;

/// The error that says so.
pub fn refusal(node: &Surveyed, what: String) -> Error {
    Error::unfit(Side::Source, node.name().to_string(), "look at the cluster", what).with_remedy(REMEDY)
}

/// A connection of a job, for people: the job's own name is what they know, and its slots.
fn shown(connection: &str) -> String {
    let (name, from) = connection.split_once(' ').unwrap_or((connection, ""));
    let (slots, job) = slots_and_job(name);
    let of = slots.map(|slots| format!(" of slots {slots}")).unwrap_or_default();
    format!("job {job}{of} {from}").trim_end().to_owned()
}

/// The slots of a job, if its connections show them, and its name.
fn slots_and_job(name: &str) -> (Option<&str>, &str) {
    let mut parts = name.rsplit(':');
    let job = parts.next().unwrap_or(name);
    // whimbrel:job:PROCESS:SLOTS:JOB; without slots if an older one, or a repair, is at work.
    let slots = parts.next().filter(|_| name.split(':').count() >= 5);
    (slots, job)
}

/// What others do in a cluster, as jobs of a folder are shown, those of `own` left out: migrations begun at a
/// node, and jobs of whimbrels with another folder.
///
/// # Errors
/// If no node can be asked for the list of nodes.
pub async fn others(deployment: &Deployment, own: &[Status]) -> Result<Vec<Status>> {
    Ok(found(&survey(deployment).await?, &deployment.endpoint.address.to_string(), own))
}

fn found(survey: &Survey, cluster: &str, own: &[Status]) -> Vec<Status> {
    let mut all: BTreeMap<String, Status> = BTreeMap::new();
    let jobs = || own.iter().filter(|job| !job.ended);
    let base = || Status { cluster: cluster.to_owned(), updated_s: now_s(), ..Status::default() };
    for (node, state) in survey.answering_primaries() {
        for native in &state.native {
            let slots = native.slot_set();
            let is_own = |job: &Status| {
                (&job.source, &job.target) == (&native.source, &native.target)
                    && job.slots.parse().is_ok_and(|of_job: SlotSet| of_job == slots)
            };
            // The node that gives them away reports more, if both list it.
            if jobs().any(is_own) || !native.is_export() && all.contains_key(&native.name) {
                continue;
            }
            let message = match &*native.message {
                "" | "?" => format!("begun at a node; {} ends it", native.ended_by()),
                message => format!("begun at a node; {} ends it; {message}", native.ended_by()),
            };
            let status = Status {
                id: native.name.clone(),
                source: native.source.clone(),
                target: native.target.clone(),
                slots: slots.to_string(),
                method: "native".to_owned(),
                phase: native.state.clone(),
                created_s: native.created_s,
                remaining_bytes: native.remaining_bytes,
                message,
                ..base()
            };
            all.insert(native.name.clone(), status);
        }
        for job in &state.jobs {
            let (name, from) = job.split_once(' ').unwrap_or((job, ""));
            let (slots, id) = slots_and_job(name);
            if own.iter().any(|job| job.id == id) {
                continue;
            }
            let status = all.entry(id.to_owned()).or_insert_with(|| Status {
                id: id.to_owned(),
                slots: slots.unwrap_or_default().split('+').next().unwrap_or_default().to_owned(),
                method: "other".to_owned(),
                phase: "running".to_owned(),
                message: format!("another whimbrel's, {from}; `whimbrel jobs cancel` ends it there"),
                ..base()
            });
            // The node that has marks takes slots in; the other node gives them away.
            let takes_in = !state.importing.is_empty() || !status.source.is_empty();
            let place = if takes_in { &mut status.target } else { &mut status.source };
            *place = node.id.to_string();
        }
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::{id, survey};

    #[test]
    fn a_job_is_shown_by_its_own_name() {
        for (connection, expected) in [
            ("whimbrel:job:7af3-18eb:m6b0-7af3-0 from 10.0.0.7", "job m6b0-7af3-0 from 10.0.0.7"),
            (
                "whimbrel:job:7af3-18eb:0-99,150+3:m6b0-7af3-0 from h",
                "job m6b0-7af3-0 of slots 0-99,150+3 from h",
            ),
            ("whimbrel:job:repair-17 from ::1", "job repair-17 from ::1"),
        ] {
            assert_eq!(shown(connection), expected);
        }
    }

    fn native(slots: &str) -> NativeSeen {
        NativeSeen {
            name: "n".repeat(40),
            operation: "export".to_owned(),
            slots: slots.to_owned(),
            source: id(0).to_string(),
            target: id(1).to_string(),
            state: "snapshotting".to_owned(),
            is_valkey: true,
            ..NativeSeen::default()
        }
    }

    #[test]
    fn only_what_has_nodes_or_slots_in_common_is_in_the_way() {
        let mut survey = survey();
        let state = survey.nodes[0].answer.as_mut().expect("it answers");
        state.native = vec![native("0-9 20-29")];
        let wanted = |nodes: &[usize], slots: &str| Wanted {
            nodes: nodes.iter().map(|node| id(*node)).collect(),
            slots: slots.parse().expect("slots"),
        };
        let trouble = |wanted: &Wanted, own: &Own| trouble_at(&survey.nodes[0], wanted, own);
        let of = trouble(&wanted(&[0, 2], "100"), &Own::default()).expect("a node in common");
        assert!(of.contains("of slots 0-9 20-29: snapshotting"), "{of}");
        assert!(of.contains("CLUSTER CANCELSLOTMIGRATIONS at "), "{of}");
        assert!(trouble(&wanted(&[1, 2], "25"), &Own::default()).is_some(), "a slot in common");
        assert_eq!(trouble(&wanted(&[1, 2], "100"), &Own::default()), None);
        // One's own is not in the way; another one at a node of one's own is.
        let own = |slots: &str| Own { slots: slots.parse().expect("slots"), nodes: [id(0)].into() };
        assert_eq!(trouble(&wanted(&[0], "100"), &own("0-50")), None);
        assert!(trouble(&wanted(&[0], "100"), &own("0-9")).is_some());
    }

    #[test]
    fn what_others_do_is_shown_as_jobs_are() {
        let mut survey = survey();
        for (node, operation) in [(1, "import"), (0, "export")] {
            let state = survey.nodes[node].answer.as_mut().expect("it answers");
            state.native = vec![NativeSeen { operation: operation.to_owned(), ..native("0-9") }];
            state.jobs = vec!["whimbrel:job:a-b:5000-5001:m1 from h".to_owned()];
        }
        let own = Status { id: "m2".to_owned(), ..Status::default() };
        let all = found(&survey, "h:1", std::slice::from_ref(&own));
        let shown: Vec<(&str, &str)> = all.iter().map(|job| (&*job.slots, &*job.method)).collect();
        assert_eq!(shown, [("5000-5001", "other"), ("0-9", "native")]);
        assert_eq!((&*all[1].phase, &*all[1].cluster), ("snapshotting", "h:1"));
        let native = Status {
            source: id(0).to_string(),
            target: id(1).to_string(),
            slots: "0-9".to_owned(),
            ..own.clone()
        };
        assert_eq!(found(&survey, "h:1", &[native, Status { id: "m1".to_owned(), ..own }]), []);
    }
}
