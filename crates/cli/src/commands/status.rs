//! `whimbrel status`.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;
use whimbrel_core::units::{format_bytes, format_count, format_count_of};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::nodes::{Counted, Finding, NodeState, Survey, SurveyOptions, Surveyed, shortened};

use crate::commands::cluster;
use crate::exit::Exit;
use crate::settings::args::StatusArgs;
use whimbrel_control::described;
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text as column};

/// Up to this many nodes the table names each replica; above, it counts them.
const REPLICAS_NAMED_NODES: usize = 24;

/// Ranges of slots that a row shows; the table cuts what does not fit.
const RANGES_SHOWN: usize = 6;

/// Runs the command.
pub async fn run(args: &StatusArgs, stop: CancellationToken) -> Exit {
    let outcome = tokio::select! {
        // Nothing is written, so it may end at any point.
        () = stop.cancelled() => return Exit::Stopped,
        outcome = run_inner(args) => outcome,
    };
    outcome.unwrap_or_else(|e| cluster::end_of(&e, args.json))
}

async fn run_inner(args: &StatusArgs) -> Result<Exit> {
    let deployment = cluster::connect(&args.at).await?;
    let counts = if args.no_counts { Counted::Nothing } else { Counted::Everything };
    let what = SurveyOptions { counts, activity: true };
    let survey = Survey::take_with(&deployment, what).await?;
    let findings = survey.findings();
    let healthy = Survey::is_healthy(&findings);
    if args.json {
        out!("{}", described::status(&deployment.endpoint.address.to_string(), &survey));
    } else {
        let screen = Screen::of_stdout();
        out!("{}", as_text(&deployment, &survey, &findings, healthy, screen).trim_end());
    }
    Ok(if healthy { Exit::Success } else { Exit::Problem })
}

fn replica_text(primary: &Surveyed, replica: &Surveyed) -> String {
    match replica.state() {
        None => format!("{} (no answer)", replica.address),
        Some(state) if state.facts.primary_link_up == Some(false) => {
            format!("{} (link down)", replica.address)
        }
        Some(_) => match primary.lag_bytes_of(replica) {
            None | Some(0) => replica.address.to_string(),
            Some(lag) => format!("{} ({} behind)", replica.address, format_bytes(lag)),
        },
    }
}

fn replicas_text(survey: &Survey, primary: &Surveyed) -> String {
    let replicas: Vec<&Surveyed> = survey.replicas_of(&primary.id).collect();
    if replicas.is_empty() {
        return "none".to_owned();
    }
    if survey.nodes.len() <= REPLICAS_NAMED_NODES {
        return replicas.iter().map(|r| replica_text(primary, r)).collect::<Vec<_>>().join(", ");
    }
    let silent = replicas.iter().filter(|r| r.answer.is_err()).count();
    let lag = replicas.iter().filter_map(|r| primary.lag_bytes_of(r)).max().unwrap_or(0);
    let mut text = replicas.len().to_string();
    if lag > 0 {
        text.push_str(&format!(", {} behind", format_bytes(lag)));
    }
    if silent > 0 {
        text.push_str(&format!(", {silent} without answer"));
    }
    text
}

fn as_text(
    deployment: &Deployment,
    survey: &Survey,
    findings: &[Finding],
    healthy: bool,
    screen: Screen,
) -> String {
    let states = || survey.answering_primaries().map(|(_, state)| state);
    let sum = |value: fn(&NodeState) -> u64| states().map(value).sum::<u64>();
    let versions: BTreeSet<&str> =
        survey.nodes.iter().filter_map(|n| n.state()).map(|s| s.facts.version.as_str()).collect();
    let primaries = survey.primaries().count();
    let mut text = format!(
        "cluster  {}: {}; {}, {}, {}, {}, {}\n\n",
        deployment.endpoint.address,
        versions.into_iter().collect::<Vec<_>>().join(", "),
        if primaries == 1 { "1 primary".to_owned() } else { format!("{primaries} primaries") },
        format_count_of((survey.nodes.len() - primaries) as u64, "replica"),
        format_count_of(sum(|s| s.slots.len() as u64), "slot"),
        format_count_of(sum(|s| s.facts.keys), "key"),
        format_bytes(sum(|s| s.facts.dataset_bytes)),
    );
    let mut table = Table::new(
        &[
            column("ID", 0),
            column("ADDRESS", 0),
            column("SLOTS", 2),
            number("COUNT", 5),
            number("KEYS", 1),
            number("BYTES", 4),
            column("REPLICAS", 3),
        ],
        2,
    );
    for primary in survey.shards() {
        let mut row = vec![primary.id.short().to_owned(), primary.address.to_string()];
        match primary.state() {
            Some(state) => row.extend([
                shortened(&state.slots, RANGES_SHOWN),
                format_count(state.slots.len() as u64),
                format_count(state.facts.keys),
                format_bytes(state.facts.dataset_bytes),
            ]),
            None => row.extend(["no answer", "?", "?", "?"].map(str::to_owned)),
        }
        row.push(replicas_text(survey, primary));
        table.row(row);
    }
    for line in table.lines(screen) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push('\n');
    for finding in findings {
        let (label, painted) = match finding.is_problem() {
            true => ("problem", screen.bad("problem")),
            false => ("running", screen.good("running")),
        };
        let pad = " ".repeat(9 - label.len());
        text.push_str(&format!("{painted}{pad}{finding}\n"));
    }
    text.push_str(&match (healthy, findings.is_empty()) {
        (true, true) => format!("{}   every node agrees, every slot has an owner\n", screen.good("health")),
        (true, false) => {
            format!("{}   a migration is running; nothing else is wrong\n", screen.good("health"))
        }
        (false, _) => format!(
            "{}   {}; whimbrel repair --dry-run shows what it would do, and whimbrel jobs list whether a job \
             of this machine was interrupted\n",
            screen.bad("health"),
            format_count_of(findings.iter().filter(|f| f.is_problem()).count() as u64, "problem"),
        ),
    });
    text
}
