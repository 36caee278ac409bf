//! What others do with the nodes of a cluster, or have left half-done there: slots are not moved into its
//! way.

use std::collections::BTreeSet;

use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::nodes::{Counted, JOB_CLIENT_NAME, NodeState, Survey, SurveyOptions, Surveyed};

use crate::executor::process_name;

/// What can be done about it.
const REMEDY: &str = "wait for it, or see `whimbrel status` and, where it was started, `whimbrel jobs list`; \
                      `whimbrel repair` undoes what nobody goes on with";

/// What is known to be one's own, and so nobody else's.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// The slots of jobs that have not ended: their marks may be there, whether the jobs run or were
    /// interrupted.
    pub slots: SlotSet,
    /// The nodes of those jobs.
    pub nodes: BTreeSet<NodeId>,
}

/// Refuses to move slots between the nodes `involved` while somebody else is at work there.
///
/// A job that runs shows in the list of clients of its two nodes, between two batches as well. Where a user
/// may not have that list, the marks of slots still tell.
///
/// # Errors
/// `Unfit` where somebody is, or where something was left half-done; whatever keeps the cluster from being
/// asked.
pub async fn refuse(deployment: &Deployment, involved: &BTreeSet<NodeId>, own: &Own) -> Result<()> {
    let what = SurveyOptions { counts: Counted::Nothing, activity: true };
    let survey = Survey::take_with(deployment, what).await?;
    let among = survey.nodes.iter().filter(|node| involved.contains(&node.id));
    let found = among.filter_map(|node| Some((node, trouble_at(node, true, own)?))).next();
    found.map_or(Ok(()), |(node, what)| Err(refusal(node, what)))
}

/// Refuses to begin a job of the servers' own, or of the classic way, on `nodes` where another whimbrel moves
/// slots there. What this process runs it keeps apart itself.
///
/// # Errors
/// As [`refuse`].
pub(crate) async fn refuse_jobs(deployment: &Deployment, nodes: [&NodeId; 2]) -> Result<()> {
    let what = SurveyOptions { counts: Counted::Nothing, activity: true };
    let survey = Survey::take_with(deployment, what).await?;
    let among = survey.nodes.iter().filter(|node| nodes.contains(&&node.id));
    let found = among.filter_map(|node| Some((node, job_at(node.state()?)?))).next();
    found.map_or(Ok(()), |(node, what)| Err(refusal(node, what)))
}

/// Another whimbrel's job that is connected to a node, in words.
fn job_at(state: &NodeState) -> Option<String> {
    let ours = format!("{JOB_CLIENT_NAME}:{}:", process_name());
    let job = state.jobs.iter().find(|job| !job.starts_with(&ours))?;
    Some(format!("another whimbrel is moving slots there: {}", shown(job)))
}

/// What is going on at a node, in words; `None` where nothing is. What whimbrels do there counts where the
/// node is `involved`: they may move slots of one cluster at the same time, as long as they have no node in
/// common.
pub fn trouble_at(node: &Surveyed, involved: bool, own: &Own) -> Option<String> {
    let state = match &node.answer {
        Ok(state) => state,
        Err(why) => return involved.then(|| format!("it does not answer: {why}")),
    };
    if !state.native.is_empty() && !own.nodes.contains(&node.id) {
        let all: Vec<String> = state.native.iter().map(ToString::to_string).collect();
        return Some(format!("a migration is running there: {}", all.join(", ")));
    }
    if let Some(job) = job_at(state).filter(|_| involved) {
        return Some(job);
    }
    let (importing, migrating) = (state.importing_slots(), state.migrating_slots());
    let (importing, migrating) = (importing.difference(&own.slots), migrating.difference(&own.slots));
    (!importing.is_empty() || !migrating.is_empty()).then(|| {
        format!(
            "it has {} marked as importing and {} as migrating: a migration is running, or one was left \
                half-done",
            format_count_of(importing.len() as u64, "slot"),
            format_count_of(migrating.len() as u64, "slot"),
        )
    })
}

/// The error that says so.
pub fn refusal(node: &Surveyed, what: String) -> Error {
    Error::unfit(Side::Source, node.name().to_string(), "look at the cluster", what).with_remedy(REMEDY)
}

/// A connection of a job, for people: the job's own name is what they know.
fn shown(connection: &str) -> String {
    let (name, from) = connection.split_once(' ').unwrap_or((connection, ""));
    format!("job {} {from}", name.rsplit(':').next().unwrap_or(name)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_job_is_shown_by_its_own_name() {
        assert_eq!(
            shown("whimbrel:job:7af3-18eb:m6b0-7af3-0 from 10.0.0.7"),
            "job m6b0-7af3-0 from 10.0.0.7"
        );
        assert_eq!(shown("whimbrel:job:repair-17 from ::1"), "job repair-17 from ::1");
    }
}
