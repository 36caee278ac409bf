//! `whimbrel repair`.

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::repair::instruction::{self, Instruction};
use whimbrel_control::repair::keys::Tally;
use whimbrel_control::repair::round::{
    self, PATIENCE_AFTER, PATIENCE_BEFORE, announce, refuse_if_busy, remaining, settled_survey,
};
use whimbrel_control::repair::run::Repairer;
use whimbrel_control::store::Store;
use whimbrel_core::repair::plan::{Action, Fate, Plan};
use whimbrel_core::units::{format_count, format_count_of};
use whimbrel_engine::error::Result;
use whimbrel_engine::nodes::{Finding, JOB_CLIENT_NAME, Survey};
use whimbrel_terminal::question::Question;
use whimbrel_terminal::screen::Screen;

use crate::commands::cluster;
use crate::exit::Exit;
use crate::settings::args::{RepairArgs, Strays};
use crate::ui::confirm::confirm;
use whimbrel_control::described as describe;
use whimbrel_control::private::state_dir;

/// How often the cluster is checked again and repaired: a repair may bring up more, for example replicas that
/// kept what their primary lost. Each round sees fewer problems, or none that can be repaired.
const ROUNDS_MAX: usize = 4;

/// Runs the command.
pub async fn run(args: &RepairArgs, stop: CancellationToken) -> Exit {
    let mut begun = false;
    run_inner(args, &stop, &mut begun).await.unwrap_or_else(|e| {
        let exit = Exit::of(&e, begun);
        cluster::show_error(&e, args.json, exit);
        exit
    })
}

async fn run_inner(args: &RepairArgs, stop: &CancellationToken, begun: &mut bool) -> Result<Exit> {
    let deployment = cluster::connect(&args.at).await?;
    let own_name = format!("{JOB_CLIENT_NAME}:repair-{}", std::process::id());
    let strays = match args.strays {
        Strays::Auto => None,
        Strays::Move => Some(Fate::Move),
        Strays::Discard => Some(Fate::Discard),
    };
    let survey = settled_survey(&deployment, PATIENCE_BEFORE).await?;
    let plan = round::plan(&deployment, &survey, strays, stop).await?;
    let findings = survey.findings();
    // A folder that cannot be read keeps no user from repairing: no job is named then.
    let jobs = state_dir(args.state_dir.as_deref()).and_then(|folder| Store::new(&folder).list());
    let interrupted = round::interrupted(jobs.unwrap_or_default(), &survey, &plan);
    show_plan(args, &survey, (&findings, &interrupted), &plan);
    if Survey::is_healthy(&findings) && plan.actions.is_empty() {
        return Ok(Exit::Success);
    }
    refuse_if_busy(&deployment, &survey, &own_name)?;
    if plan.actions.is_empty() {
        return Ok(Exit::Problem);
    }
    let cluster = deployment.endpoint.address.to_string();
    let question = format!("Do this in the cluster at {cluster}, and what follows from it?");
    let decision =
        confirm(&Question::typed(question, cluster), args.ask.yes, args.dry_run, args.json, stop).await?;
    if let Some(exit) = decision.end(Exit::Problem) {
        return Ok(exit);
    }
    // From here on others see that a job is running. Another job may have begun while we were asking.
    let _announced = announce(&deployment, &survey, &own_name).await?;
    refuse_if_busy(&deployment, &Survey::take(&deployment).await?, &own_name)?;
    *begun = true;
    let (mut survey, mut plan) = (survey, plan);
    let mut total = Tally::default();
    for _ in 0..ROUNDS_MAX {
        let repairer = Repairer::new(&deployment, &survey, stop);
        for action in &plan.actions {
            if stop.is_cancelled() {
                return Ok(Exit::Stopped);
            }
            print_action(args, &survey, action);
            total.add(repairer.carry_out(action).await?);
        }
        if stop.is_cancelled() {
            return Ok(Exit::Stopped);
        }
        survey = settled_survey(&deployment, PATIENCE_AFTER).await?;
        refuse_if_busy(&deployment, &survey, &own_name)?;
        plan = round::plan(&deployment, &survey, strays, stop).await?;
        if plan.actions.is_empty() || total.stuck > 0 {
            break;
        }
    }
    let findings = remaining(&survey, &own_name);
    let healthy = Survey::is_healthy(&findings);
    show_outcome(args, &total, &findings, &left(&survey, &plan), healthy);
    Ok(if healthy { Exit::Success } else { Exit::Problem })
}

/// What stays wrong, in words.
fn left(survey: &Survey, plan: &Plan) -> Vec<String> {
    plan.left.iter().map(|left| instruction::left(survey, left)).collect()
}

/// Shows the problems, which interrupted jobs can be continued instead, and what would be done.
fn show_plan(
    args: &RepairArgs,
    survey: &Survey,
    (findings, interrupted): (&[Finding], &[String]),
    plan: &Plan,
) {
    if args.json {
        out!(
            "{}",
            json!({
                "event": "repair_plan", "healthy": Survey::is_healthy(findings),
                "findings": findings.iter().map(describe::finding).collect::<Vec<_>>(),
                "actions": plan.actions.iter().map(|a| describe::action(survey, a)).collect::<Vec<_>>(),
                "left": left(survey, plan), "interrupted": interrupted,
            })
        );
        return;
    }
    let screen = Screen::of_stdout();
    for finding in findings.iter().filter(|f| f.is_problem()) {
        out!("{}  {finding}", screen.bad("problem"));
    }
    let instead = |text: String| out!("instead  {text}");
    for job in interrupted {
        instead(format!(
            "job {job} was interrupted here: `whimbrel jobs resume {job}` goes on with it, `whimbrel jobs \
             cancel {job}` undoes it. Repair only what neither can"
        ));
    }
    if interrupted.is_empty() && plan.actions.iter().any(Action::may_be_of_job) {
        instead(
            "this may be what an interrupted job has left: where it was started, `whimbrel jobs list` names \
             it, and `whimbrel jobs resume` or `cancel` loses nothing of it"
                .to_owned(),
        );
    }
    for action in &plan.actions {
        let text = Instruction { action, survey }.to_string();
        out!("{}   {}", screen.good("repair"), text);
    }
    for left in left(survey, plan) {
        out!("left     {left}");
    }
    if plan.actions.is_empty() {
        out!("nothing to repair");
    }
}

fn print_action(args: &RepairArgs, survey: &Survey, action: &Action) {
    if !args.json {
        out!("doing    {}", Instruction { action, survey });
    }
}

fn show_outcome(args: &RepairArgs, total: &Tally, findings: &[Finding], left: &[String], healthy: bool) {
    if args.json {
        out!(
            "{}",
            json!({
                "event": "repair_report", "healthy": healthy, "keys_moved": total.moved,
                "keys_removed": total.removed, "keys_stuck": total.stuck, "reasons": total.reasons,
                "findings": findings.iter().map(describe::finding).collect::<Vec<_>>(), "left": left,
            })
        );
        return;
    }
    let screen = Screen::of_stdout();
    out!(
        "done     {} moved to their owner, {} removed where they did not belong, {} stuck",
        format_count_of(total.moved, "key"),
        format_count(total.removed),
        format_count(total.stuck),
    );
    for reason in &total.reasons {
        out!("stuck    {}", reason);
    }
    for finding in findings.iter().filter(|f| f.is_problem()) {
        out!("{}  {finding}", screen.bad("problem"));
    }
    if healthy {
        out!("{}   every node agrees, every slot has an owner", screen.good("health"));
    }
}
