//! What a repair looks at before, between and after its actions.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::repair::decide;
use whimbrel_core::repair::plan::{Action, Change, Fate, Plan, Why};
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_engine::nodes::{Counted, Finding, Survey, SurveyOptions};

use super::run::Repairer;
use crate::store::Entry;

/// Views of nodes differ for a moment after every change. Only what still differs after this time counts
/// before anything is done.
pub const PATIENCE_BEFORE: Duration = Duration::from_secs(5);
/// Likewise, after it: nodes that found the cluster down take up to five seconds to come back, and longer on
/// a busy machine.
pub const PATIENCE_AFTER: Duration = Duration::from_secs(25);
const POLL_PAUSE: Duration = Duration::from_millis(300);

/// A survey without problems that may pass by themselves, or one that is taken when they have not passed for
/// so long.
///
/// # Errors
/// As [`Survey::take`].
pub async fn settled_survey(deployment: &Deployment, patience: Duration) -> Result<Survey> {
    // To count keys takes a command for each slot. They are counted again once the views agree.
    let views_only = SurveyOptions { counts: Counted::Nothing, activity: false };
    let mut survey = Survey::take(deployment).await?;
    let deadline = Instant::now() + patience;
    while may_pass(&survey) && Instant::now() < deadline {
        tokio::time::sleep(POLL_PAUSE).await;
        while may_pass(&Survey::take_with(deployment, views_only).await?) && Instant::now() < deadline {
            tokio::time::sleep(POLL_PAUSE).await;
        }
        survey = Survey::take(deployment).await?;
    }
    Ok(survey)
}

/// Whether some of its problems may pass by themselves.
fn may_pass(survey: &Survey) -> bool {
    let findings = survey.findings();
    // What does not answer will not soon, and the cluster may well be down because of it.
    let lost = findings.iter().any(|f| matches!(f, Finding::Unreachable { .. }));
    findings.iter().any(|f| match f {
        Finding::Disagreement { .. } | Finding::Unowned { .. } | Finding::EpochCollision { .. } => true,
        // A migration of the server's own may just have ended.
        Finding::HiddenKeys { .. } => true,
        Finding::ClusterDown { .. } | Finding::Failing { .. } | Finding::ReplicaLinkDown { .. } => !lost,
        _ => false,
    })
}

/// Decides, and looks at the keys in question to decide what becomes of them, unless `strays` says it.
///
/// # Errors
/// When a node does not answer.
pub async fn plan(
    deployment: &Deployment,
    survey: &Survey,
    strays: Option<Fate>,
    stop: &CancellationToken,
) -> Result<Plan> {
    let mut plan = decide::decide(&survey.cluster(), &SlotSet::full());
    let repairer = Repairer::new(deployment, survey, stop);
    for action in std::mem::take(&mut plan.actions) {
        let moving = match &action.change {
            Change::Empty { owner, copied: true, .. } => repairer.moving(owner, &action.slots).await?,
            _ => SlotSet::new(),
        };
        let holder = match &action.change {
            Change::Empty { holder, .. } => survey.node(holder).and_then(|node| node.state()),
            _ => None,
        };
        let counts = holder.and_then(|state| state.counts.as_ref());
        let keys = |slots: &SlotSet| counts.map_or(0, |counts| counts.sum(slots));
        plan.actions.extend(decide::divide(action, &moving, keys));
    }
    let claims = |action: &&Action| matches!(action.change, Change::Claim { .. });
    let claimed = plan.actions.iter().filter(claims).fold(SlotSet::new(), |all, a| all.union(&a.slots));
    for action in &mut plan.actions {
        let Change::Empty { holder, owner, copied, fate } = &mut action.change else { continue };
        if matches!(action.why, Why::HiddenKeys { .. }) {
            // In a slot without an owner they may be the only ones: none of them is a stray.
            let is_claimed = !action.slots.intersection(&claimed).is_empty();
            *fate = Some(strays.filter(|_| !is_claimed).unwrap_or(Fate::Move));
            continue;
        }
        // An owner that shows its keys only once it owns the slot is compared then.
        let hides = survey.node(owner).and_then(|node| node.state()).is_some_and(|s| s.hidden_keys > 0);
        if *copied && hides && strays.is_none() && !action.slots.intersection(&claimed).is_empty() {
            continue;
        }
        let evidence = repairer.evidence(holder, owner, &action.slots).await?;
        *fate = Some(strays.unwrap_or_else(|| decide::fate(*copied, evidence)));
        action.evidence = Some(evidence);
    }
    Ok(plan)
}

/// Jobs of this machine that were interrupted in this cluster, with slots that the plan is about.
pub fn interrupted(entries: Vec<Entry>, survey: &Survey, plan: &Plan) -> Vec<String> {
    // Hidden keys are looked for in all slots: only a job of the node that hides them may have left them.
    let is_about = |action: &Action, entry: &Entry| match (&action.why, &action.change) {
        (Why::HiddenKeys { .. }, Change::Empty { holder, .. }) => {
            [&entry.status.source, &entry.status.target].into_iter().any(|end| *end == holder.as_str())
        }
        _ => true,
    };
    let is_meant = |entry: &Entry| {
        let status = &entry.status;
        let is_here = |id: &String| id.parse().is_ok_and(|id| survey.node(&id).is_some());
        let slots = status.slots.parse::<SlotSet>().unwrap_or_default();
        !status.ended
            && !entry.running
            && is_here(&status.source)
            && is_here(&status.target)
            && (plan.actions.iter().filter(|action| is_about(action, entry)))
                .any(|action| !slots.intersection(&action.slots).is_empty())
    };
    entries.into_iter().filter(is_meant).map(|entry| entry.status.id).collect()
}

/// Why nothing may be touched: a migration is running. `own` begins the name of our own connections.
fn refusal(survey: &Survey, own: &str) -> Option<String> {
    survey.nodes.iter().find_map(|node| {
        let state = node.state()?;
        if let Some(what) = state.native.first() {
            return Some(format!("{} is in a native migration: {what}", node.name()));
        }
        if state.facts.is_trimming {
            return Some(format!("{} still removes keys of slots that it has given away", node.name()));
        }
        let job = state.jobs.iter().find(|job| !job.starts_with(own))?;
        Some(format!("a whimbrel job is connected to {}: {job}", node.name()))
    })
}

/// Refuses to repair a cluster in which something else moves slots.
///
/// # Errors
/// `Unfit` if that is so.
pub fn refuse_if_busy(deployment: &Deployment, survey: &Survey, own_name: &str) -> Result<()> {
    match refusal(survey, own_name) {
        None => Ok(()),
        Some(what) => {
            let at = deployment.endpoint.address.to_string();
            Err(Error::unfit(deployment.side(), at, "repair", what)
                .with_remedy("wait for it, or cancel it, and run repair again"))
        }
    }
}

/// Connections that show others that a job is running. They last as long as they are held.
///
/// # Errors
/// When a node does not answer.
pub async fn announce(deployment: &Deployment, survey: &Survey, own_name: &str) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    for (node, _) in survey.answering_primaries() {
        let mut link = deployment.open(&node.address, 0).await?;
        // If an ACL forbids it, others cannot see us; the marks of open slots still show us.
        link.ask(&[b"CLIENT", b"SETNAME", own_name.as_bytes()]).await?;
        links.push(link);
    }
    Ok(links)
}

/// The problems, without our own connections.
pub fn remaining(survey: &Survey, own_name: &str) -> Vec<Finding> {
    let is_own = |f: &Finding| matches!(f, Finding::Job { what, .. } if what.starts_with(own_name));
    survey.findings().into_iter().filter(|f| !is_own(f)).collect()
}

#[cfg(test)]
mod tests {
    use whimbrel_engine::nodes::NativeSeen;

    use super::*;
    use crate::scene;

    #[test]
    fn running_migrations_stop_it() {
        let with = |change: &dyn Fn(&mut Survey)| {
            let mut survey = scene::survey();
            change(&mut survey);
            survey
        };
        assert_eq!(refusal(&with(&|_| {}), "whimbrel:job:repair-1"), None);
        let job = "whimbrel:job:repair-1 from here";
        let survey = with(&|survey| {
            let state = survey.nodes[1].answer.as_mut().expect("it answers");
            state.jobs.push(job.to_owned());
        });
        assert_eq!(refusal(&survey, "whimbrel:job:repair-1"), None);
        assert!(refusal(&survey, "whimbrel:job:repair-2").expect("another's").contains("repair-1"));
        let survey = with(&|survey| {
            let state = survey.nodes[2].answer.as_mut().expect("it answers");
            state.native.push(NativeSeen::default());
        });
        assert!(refusal(&survey, "whimbrel:job").is_some());
    }
}
