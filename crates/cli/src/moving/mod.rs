//! Commands that move slots: `reshard`, `rebalance`, `drain`; and `jobs`.

pub mod jobs;
mod plan;
mod progress;
mod submit;
mod unfinished;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::options::TransferOptions;
use whimbrel_control::report::{Ending, JobReport};
use whimbrel_control::service::{self, Method, Settings};
use whimbrel_control::store::Store;
use whimbrel_control::witness::{Testimony, Witness};
use whimbrel_core::migration::{Rules, Verify};
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::{self as planner, Balance, Move, PlanError};
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};

use self::plan::{Plan, Situation};
use crate::args::{Balanced, DrainArgs, MethodChoice, MovingArgs, RebalanceArgs, ReshardArgs, VerifyChoice};
use crate::cluster;
use crate::confirm::{Question, confirm};
use crate::copying::state_dir;
use crate::exit::Exit;

/// Lanes for each job: more do not help, since a server has one thread for its keys.
const LANES: usize = 4;

/// Size of the pieces in which large values move.
const CHUNK_BYTES: usize = 512 << 10;

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
        let costs = situation.costs(args.by);
        let balance = Balance { use_empty: args.use_empty, threshold: args.threshold / 100.0 };
        planned(planner::rebalance(&situation.shards, &weights, &costs, balance))
    };
    command(&args.at, &args.moving, stop, wanted).await
}

/// `whimbrel drain`.
pub async fn drain(args: &DrainArgs, stop: CancellationToken) -> Exit {
    let wanted = |situation: &Situation| {
        let node = situation.resolve(&args.node)?;
        let costs = situation.costs(Balanced::Slots);
        planned(planner::drain(&situation.shards, &node, &BTreeMap::new(), &costs, false))
    };
    command(&args.at, &args.moving, stop, wanted).await
}

fn usage(what: &str) -> Error {
    Error::unfit(Side::Own, "", "understand the options", what)
}

fn planned(plan: std::result::Result<Vec<Move>, PlanError>) -> Result<Vec<Move>> {
    plan.map_err(|e| usage(&e.to_string()))
}

async fn command(
    at: &crate::args::ClusterArgs,
    moving: &MovingArgs,
    stop: CancellationToken,
    wanted: impl Fn(&Situation) -> Result<Vec<Move>>,
) -> Exit {
    let mut begun = false;
    match try_command(at, moving, &stop, wanted, &mut begun).await {
        Ok(exit) => exit,
        Err(e) => {
            let exit = crate::exit_of(&e, begun);
            cluster::show_error(&e, moving.show.json, exit);
            exit
        }
    }
}

async fn try_command(
    at: &crate::args::ClusterArgs,
    moving: &MovingArgs,
    stop: &CancellationToken,
    wanted: impl Fn(&Situation) -> Result<Vec<Move>>,
    begun: &mut bool,
) -> Result<Exit> {
    let daemon = moving.daemon()?;
    let deployment = Arc::new(cluster::connect(at).await?);
    let situation = Situation::find(&deployment).await?;
    let moves = wanted(&situation)?;
    let involved: Vec<NodeId> = moves.iter().flat_map(|m| [m.source.clone(), m.target.clone()]).collect();
    if daemon.is_none() {
        // A daemon has jobs wait for those that it runs, and looks again before each.
        situation.refuse_trouble(&involved)?;
    }
    let (method, mut why) = situation.method(&deployment, &moves, moving).await?;
    if let Some(daemon) = &daemon {
        why.push_str(&format!("; unless the daemon at {} was told otherwise", daemon.address));
    }
    let plan = Plan::new(&deployment, &situation, moves, (method, why), moving).await?;
    plan.show(moving);
    if plan.moves.is_empty() {
        return Ok(Exit::Success);
    }
    let slots: usize = plan.moves.iter().map(|m| m.slots.len()).sum();
    let cluster = &deployment.endpoint.address;
    let question =
        Question::new(format!("Move {} in the cluster at {cluster}?", format_count_of(slots as u64, "slot")));
    let decision = confirm(&question, moving.yes, moving.dry_run, moving.show.json, stop).await?;
    if let Some(exit) = decision.end(Exit::Success) {
        return Ok(exit);
    }
    if let Some(daemon) = daemon {
        return Ok(submit::run(daemon, at.link_options(), &deployment, &plan.moves, &moving.show, stop).await);
    }
    let store = Store::new(&state_dir(moving.state_dir.as_deref())?);
    let keys_of = |node: &NodeId, slot| situation.keys_of(node, slot);
    let jobs = service::prepare(&store, &deployment, &plan.moves, &settings(moving, method), keys_of).await?;
    *begun = true;
    run_begun(&deployment, jobs, &moving.show, stop).await
}

/// How a daemon moves slots, and why by this method: any primary may give some, and get some.
///
/// # Errors
/// Where the cluster cannot be looked at, or its nodes lack the method that is asked for.
pub async fn settings_of_daemon(
    deployment: &Arc<Deployment>,
    moving: &MovingArgs,
) -> Result<(Settings, String)> {
    let situation = Situation::find(deployment).await?;
    let next = situation.shards.iter().cycle().skip(1);
    let any = situation.shards.iter().zip(next).map(|(source, target)| Move {
        source: source.id.clone(),
        target: target.id.clone(),
        // Which ones nobody knows yet.
        slots: SlotSet::new(),
    });
    let (method, why) = situation.method(deployment, &any.collect::<Vec<_>>(), moving).await?;
    Ok((settings(moving, method), why))
}

fn settings(moving: &MovingArgs, method: Method) -> Settings {
    Settings {
        method,
        rules: Rules {
            max_pause_ms: moving.max_pause_ms(),
            verify: match moving.verify() {
                VerifyChoice::None => Verify::None,
                VerifyChoice::Counts => Verify::Counts,
                VerifyChoice::Sample => Verify::Sample,
                VerifyChoice::Full => Verify::Full,
            },
            brake: !moving.no_brake,
            ..Rules::default()
        },
        transfer: TransferOptions {
            lanes: LANES,
            big_key_bytes: moving.big_key,
            chunk_bytes: CHUNK_BYTES,
            memory_bytes: moving.memory,
            rate_keys: moving.rate_keys,
            rate_bytes: moving.rate_bytes,
            ..TransferOptions::default()
        },
        batch_keys: moving.batch_keys,
    }
}

/// Runs jobs, shows how they stand, and tells what came of them.
async fn run_begun(
    deployment: &Arc<Deployment>,
    jobs: Vec<service::Ready>,
    show: &crate::args::Show,
    stop: &CancellationToken,
) -> Result<Exit> {
    let slots = jobs.iter().fold(SlotSet::new(), |all, job| all.union(&job.task.slots()));
    let started = std::time::Instant::now();
    let witness = Witness::start(deployment.clone(), &slots);
    let display = progress::of_jobs(show, &jobs);
    let outcome = service::run(deployment, jobs, stop).await;
    display.finish().await;
    let seen = witness.end().await;
    let reports = outcome?;
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let exit = exit_of(&reports);
    show_reports(show, &reports, &seen, duration_ms, exit);
    Ok(exit)
}

fn exit_of(reports: &[JobReport]) -> Exit {
    let any = |ending| reports.iter().any(|report| report.ending == ending);
    if any(Ending::Failed) || any(Ending::Suspended) {
        Exit::Interrupted
    } else if any(Ending::Cancelled) || any(Ending::NotStarted) {
        Exit::Stopped
    } else {
        Exit::Success
    }
}

fn show_reports(
    show: &crate::args::Show,
    reports: &[JobReport],
    seen: &Testimony,
    duration_ms: u64,
    exit: Exit,
) {
    let sum = |of: fn(&JobReport) -> u64| reports.iter().map(of).sum::<u64>();
    let longest_ms = reports.iter().map(|r| r.pauses.longest_ms).max().unwrap_or(0);
    let slots: usize = reports.iter().map(|r| r.slots_handed_over.len()).sum();
    let verified = reports.iter().all(|r| r.verified || r.slots_handed_over.is_empty()) && slots > 0;
    if show.json {
        say!(
            "{}",
            json!({
                "event": "report", "duration_ms": duration_ms, "slots": slots, "keys": sum(|r| r.keys),
                "bytes": sum(|r| r.bytes), "braked_ms": sum(|r| r.braked_ms),
                "pauses": {"count": sum(|r| r.pauses.count), "total_ms": sum(|r| r.pauses.total_ms), "longest_ms": longest_ms},
                "verified": verified, "witness": seen, "jobs": reports, "exit": exit as u8,
            })
        );
        return;
    }
    for report in reports {
        let words = match report.ending {
            Ending::Done => "moved",
            Ending::Cancelled if report.slots_handed_over.is_empty() => "CANCELLED, rolled back",
            Ending::Cancelled => "CANCELLED, the rest rolled back",
            Ending::Failed if !report.slots_left_as_is.is_empty() => "FAILED",
            Ending::Failed if report.slots_handed_over.is_empty() => "FAILED, rolled back",
            Ending::Failed => "FAILED, the rest rolled back",
            Ending::Suspended => "SUSPENDED",
            Ending::NotStarted => "not started",
        };
        say!(
            "{} -> {}  {words}, {} of {} slots in {}",
            report.source.short(),
            report.target.short(),
            report.slots_handed_over.len(),
            report.slots.len(),
            format_duration_ms(report.duration_ms)
        );
        if let Some(reason) = &report.reason {
            say!("         {reason}");
        }
        if !report.slots_left_as_is.is_empty() {
            let left = &report.slots_left_as_is;
            say!(
                "         slots {left} are left as they are: `whimbrel repair` says what is to be done about them"
            );
        }
        if report.ending == Ending::Suspended {
            say!("         go on with: whimbrel jobs resume {}", report.id);
        }
        for notice in &report.notices {
            say!("note     {notice}");
        }
    }
    if reports.iter().all(|r| r.method == "external") {
        say!(
            "moved    {} in {}, {} and {} transferred, {} of the keys again because they were written meanwhile",
            format_count_of(slots as u64, "slot"),
            format_duration_ms(duration_ms),
            format_count_of(sum(|r| r.keys), "key"),
            format_bytes(sum(|r| r.bytes)),
            format_count(sum(|r| r.touched)),
        );
    } else {
        // The servers do not tell what they have moved.
        say!("moved    {} in {}", format_count_of(slots as u64, "slot"), format_duration_ms(duration_ms));
    }
    if reports.iter().any(|r| r.method == "external") {
        say!(
            "writes   paused {}, {} together, {} at most{}",
            format_count_of(sum(|r| r.pauses.count), "time"),
            format_duration_ms(sum(|r| r.pauses.total_ms)),
            format_duration_ms(longest_ms),
            match sum(|r| r.braked_ms) {
                0 => String::new(),
                ms => format!("; slowed for {} to let the catch-up converge", format_duration_ms(ms)),
            },
        );
    }
    say_seen(seen);
    say!(
        "verified {}",
        match verified {
            true => "yes: source and target were compared before each handover",
            false if reports.iter().any(|r| r.method != "external") => "no: this method does not compare",
            false => "no",
        }
    );
}

/// What our own client met with while slots moved.
fn say_seen(seen: &Testimony) {
    say!(
        "clients  ours asked {}: {} MOVED, {} ASK, {} TRYAGAIN, {} CLUSTERDOWN, {} other errors, {} ms at most",
        format_count_of(seen.requests, "time"),
        seen.moved,
        seen.ask,
        seen.tryagain,
        seen.clusterdown,
        seen.errors,
        seen.longest_ms,
    );
}

impl MethodChoice {
    /// The word for it.
    fn word(self) -> &'static str {
        match self {
            MethodChoice::Auto => "auto",
            MethodChoice::External => "external",
            MethodChoice::Native => "native",
            MethodChoice::Legacy => "legacy",
        }
    }
}
