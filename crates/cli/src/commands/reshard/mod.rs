//! Commands that move slots: `reshard`, `rebalance`, `drain`.

mod plan;
mod progress;
mod report;
mod settings;
mod submit;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use whimbrel_control::canary::{self, Canary};
use whimbrel_control::daemon::client::DaemonClient;
use whimbrel_control::moves::{Plan, Situation, Weighing};
use whimbrel_control::service::{self, Settings};
use whimbrel_control::store::{Kind, Store};
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::{self as planner, Balance, Move, PlanError};
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;

use self::plan::{method, usage};
use self::report::{exit_of, show_reports};
use self::settings::settings;
use crate::commands::cluster;
use crate::exit::Exit;
use crate::settings::args::{Balanced, ClusterArgs, DrainArgs, MovingArgs, RebalanceArgs, ReshardArgs, Show};
use crate::ui::confirm::confirm;
use crate::ui::errors;
use whimbrel_control::private::{job_dir, state_dir};
use whimbrel_terminal::question::Question;

/// `whimbrel reshard`.
pub async fn reshard(args: &ReshardArgs, stop: CancellationToken) -> Exit {
    let wanted = |situation: &Situation| {
        let mut targets = Vec::with_capacity(args.to.len());
        for node in &args.to {
            targets.push(situation.resolve(node)?);
        }
        if let (Some(from), Some(count)) = (&args.from, args.count) {
            let [to] = &targets[..] else {
                return Err(usage("--from takes slots for one --to"));
            };
            return planned(planner::take(&situation.shards, &situation.resolve(from)?, count, to));
        }
        if args.slots.is_empty() || args.slots.len() != targets.len() {
            return Err(usage(
                "each --slots needs its --to: --slots 0-99 --to NODE; or use --from, --count and --to",
            ));
        }
        let wanted: Vec<(SlotSet, NodeId)> = args.slots.iter().cloned().zip(targets).collect();
        planned(planner::reshard(&situation.shards, &wanted))
    };
    command(&args.at, &args.moving, stop, wanted).await
}

/// `whimbrel rebalance`.
pub async fn rebalance(args: &RebalanceArgs, stop: CancellationToken) -> Exit {
    let wanted = |situation: &Situation| {
        let mut weights = BTreeMap::new();
        for (node, weight) in &args.weight {
            weights.insert(situation.resolve(node)?, *weight);
        }
        let costs = situation.costs(args.by.into());
        let balance = Balance { use_empty: args.use_empty, threshold: args.threshold / 100.0 };
        planned(planner::rebalance(&situation.shards, &weights, &costs, balance))
    };
    command(&args.at, &args.moving, stop, wanted).await
}

/// `whimbrel drain`.
pub async fn drain(args: &DrainArgs, stop: CancellationToken) -> Exit {
    let wanted = |situation: &Situation| {
        let node = situation.resolve(&args.node)?;
        let costs = situation.costs(Weighing::Slots);
        planned(planner::drain(&situation.shards, &node, &BTreeMap::new(), &costs, false))
    };
    command(&args.at, &args.moving, stop, wanted).await
}

fn planned(plan: std::result::Result<Vec<Move>, PlanError>) -> Result<Vec<Move>> {
    plan.map_err(|e| usage(&e.to_string()))
}

async fn command(
    at: &ClusterArgs,
    moving: &MovingArgs,
    stop: CancellationToken,
    wanted: impl Fn(&Situation) -> Result<Vec<Move>>,
) -> Exit {
    let mut begun = false;
    match try_command(at, moving, &stop, wanted, &mut begun).await {
        Ok(exit) => exit,
        Err(e) => {
            let exit = errors::exit_of(&e, begun);
            cluster::show_error(&e, moving.show.json, exit);
            exit
        }
    }
}

async fn try_command(
    at: &ClusterArgs,
    moving: &MovingArgs,
    stop: &CancellationToken,
    wanted: impl Fn(&Situation) -> Result<Vec<Move>>,
    begun: &mut bool,
) -> Result<Exit> {
    let daemon = moving.daemon()?;
    let hooks = moving.job.hooks.settings(Kind::Move)?;
    let deployment = Arc::new(cluster::connect(at).await?);
    let situation = Situation::find(&deployment).await?;
    situation.refuse_silence()?;
    let moves = wanted(&situation)?;
    if daemon.is_none() {
        let store = Store::new(&job_dir(moving.state_dir.as_deref())?);
        let names = moving.job.name.iter().flat_map(|name| name.numbered(moves.len()));
        store.refuse_taken(names, "")?;
        // A daemon has jobs wait for those that it runs, and looks again before each.
        situation.refuse_trouble(&moves)?;
    }
    let (method, mut why) = method(&situation, &deployment, &moves, moving).await?;
    if let Some(daemon) = &daemon {
        why.push_str(&format!("; unless the daemon at {} is configured otherwise", daemon.address));
    }
    if moving.atomic && moves.len() > 1 {
        let what =
            format!("--atomic is one handover between two nodes, and this takes {} moves", moves.len());
        return Err(usage(&what).with_remedy("give one command for each, or leave out --atomic"));
    }
    let settings = settings(moving, method);
    let plan = Plan::new(&deployment, &situation, moves, (method, why), &settings, daemon.is_some()).await?;
    plan::show(&plan, moving);
    if plan.moves.is_empty() {
        return Ok(Exit::Success);
    }
    let slots: usize = plan.moves.iter().map(|m| m.slots.len()).sum();
    let cluster = &deployment.endpoint.address;
    let question =
        Question::new(format!("Move {} in the cluster at {cluster}?", format_count_of(slots as u64, "slot")));
    let decision = confirm(&question, moving.ask.yes, moving.dry_run, moving.show.json, stop).await?;
    if let Some(exit) = decision.end(Exit::Success) {
        return Ok(exit);
    }
    if let Some(daemon) = daemon {
        let daemon = DaemonClient::new(daemon, at.link_options());
        return Ok(submit::run(daemon, &deployment, &plan.moves, &moving.show, stop).await);
    }
    let store = Store::new(&state_dir(moving.state_dir.as_deref())?);
    let keys_of = |node: &NodeId, slot| situation.keys_of(node, slot);
    let handovers = plan.handovers(&deployment, &situation, &settings).await?;
    let jobs = service::prepare(&store, &deployment, (&plan.moves, handovers), &settings, keys_of).await?;
    *begun = true;
    let jobs = jobs.into_iter().map(|job| job.with_hooks(&hooks)).collect();
    run_begun(&deployment, jobs, &moving.show, stop).await
}

/// How a daemon moves slots, and why by this method: any primary may give some, and get some.
///
/// # Errors
/// If the cluster cannot be looked at, or its nodes lack the method that is asked for.
pub async fn settings_of_daemon(
    deployment: &Arc<Deployment>,
    moving: &MovingArgs,
) -> Result<(Settings, String)> {
    let situation = Situation::find(deployment).await?;
    let (method, why) = method(&situation, deployment, &situation.any_moves(), moving).await?;
    let mut settings = settings(moving, method);
    // As the servers' own migrations are, unless batches are asked for.
    settings.rules.atomic = moving.batch_keys.is_none();
    Ok((settings, why))
}

/// Runs jobs, shows how they stand, and reports what came of them.
pub async fn run_begun(
    deployment: &Arc<Deployment>,
    jobs: Vec<service::Ready>,
    show: &Show,
    stop: &CancellationToken,
) -> Result<Exit> {
    let slots = jobs.iter().fold(SlotSet::new(), |all, job| all.union(&job.task.slots()));
    let started = std::time::Instant::now();
    let canary = Canary::start(deployment.clone(), &slots, canary::PERIOD);
    let display = progress::of_jobs(show, &jobs);
    let outcome = service::run(deployment, jobs, stop).await;
    display.finish().await;
    let seen = canary.end().await;
    let reports = outcome?;
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let exit = exit_of(&reports);
    show_reports(show, &reports, &seen, duration_ms, exit);
    Ok(exit)
}

impl From<Balanced> for Weighing {
    fn from(by: Balanced) -> Weighing {
        match by {
            Balanced::Slots => Weighing::Slots,
            Balanced::Keys => Weighing::Keys,
            Balanced::Bytes => Weighing::Bytes,
            Balanced::Ops => Weighing::Operations,
        }
    }
}
