//! Jobs that no process waits for any longer.

use super::effect::{Reason, Reject, Why};
use super::job::{BatchState, Job};
use super::phase::{End, Phase, Reached};
use crate::node::NodeId;

/// Ends a job that waits for others. Nothing of it is at the source, which owns the slots and serves them;
/// what was staged stays where it is, since the node that has it does not answer.
pub(super) fn abandon(job: &mut Job) -> Result<(), Reject> {
    let Phase::Suspended { reached: Reached::Nothing | Reached::Staging, reason, .. } = &job.phase else {
        return Err(out_of_phase(job, "abandoned"));
    };
    let end = End::Failed(reason.clone());
    if let Some(batch) = job.batches.get_mut(job.at).filter(|batch| batch.state == BatchState::AtHand) {
        batch.state = BatchState::LeftAsIs;
    }
    job.phase = Phase::Ended(end);
    Ok(())
}

pub(super) fn out_of_phase(job: &Job, event: &'static str) -> Reject {
    Reject::OutOfPhase { phase: job.phase.name(), event }
}

/// Why a job cannot go on whose source or target does not answer.
pub(super) fn silent(side: &str, node: &NodeId) -> Reason {
    let message =
        format!("no primary of the {side}'s shard answers: not {}, and none in its place", node.short());
    Reason::new(Why::Unreachable, message)
}
