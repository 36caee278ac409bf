//! `whimbrel status`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::{format_bytes, format_count, format_count_of};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::nodes::{Counted, Finding, NodeState, Survey, SurveyOptions, Surveyed, shortened};

use crate::commands::cluster;
use crate::exit::Exit;
use crate::settings::args::StatusArgs;
use crate::ui::json as describe;
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text as column};

/// Up to so many nodes the table names each replica; above, it counts them.
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
        say!("{}", as_json(&deployment, &survey, &findings, healthy));
    } else {
        let screen = Screen::of_stdout();
        say!("{}", as_text(&deployment, &survey, &findings, healthy, screen).trim_end());
    }
    Ok(if healthy { Exit::Success } else { Exit::Problem })
}

/// The primaries, those with the lowest slots first, those without slots and without an answer last.
fn shards(survey: &Survey) -> Vec<&Surveyed> {
    let mut shards: Vec<&Surveyed> = survey.primaries().collect();
    shards.sort_by_key(|n| {
        let first = n.state().and_then(|s| s.slots.iter().next());
        (Reverse(first.is_some()), first, n.address.to_string())
    });
    shards
}

/// How many bytes of its primary's replication stream a replica has yet to take in. The two were asked one
/// after the other, so some of it is the time between.
fn lag_bytes(primary: &Surveyed, replica: &Surveyed) -> Option<u64> {
    let (primary, replica) = (primary.state()?, replica.state()?);
    Some(primary.facts.repl_offset.saturating_sub(replica.facts.repl_offset))
}

fn replica_text(primary: &Surveyed, replica: &Surveyed) -> String {
    match replica.state() {
        None => format!("{} (no answer)", replica.address),
        Some(state) if state.facts.primary_link_up == Some(false) => {
            format!("{} (link down)", replica.address)
        }
        Some(_) => match lag_bytes(primary, replica) {
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
    let lag = replicas.iter().filter_map(|r| lag_bytes(primary, r)).max().unwrap_or(0);
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
    for primary in shards(survey) {
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

fn as_json(deployment: &Deployment, survey: &Survey, findings: &[Finding], healthy: bool) -> Value {
    let shards: Vec<Value> = shards(survey)
        .into_iter()
        .map(|primary| {
            let replicas: Vec<Value> = survey
                .replicas_of(&primary.id)
                .map(|replica| {
                    let mut value = describe::node(&replica.name());
                    value["answers"] = replica.answer.is_ok().into();
                    value["link_up"] = replica.state().and_then(|s| s.facts.primary_link_up).into();
                    value["lag_bytes"] = lag_bytes(primary, replica).into();
                    value["keys"] = replica.state().map(|s| s.facts.keys).into();
                    value
                })
                .collect();
            let mut value = describe::node(&primary.name());
            value["answers"] = primary.answer.is_ok().into();
            value["replicas"] = replicas.into();
            if let Some(state) = primary.state() {
                let facts = &state.facts;
                value["version"] = facts.version.as_str().into();
                value["slots"] = state.slots.to_string().into();
                value["slot_count"] = state.slots.len().into();
                value["config_epoch"] = state.config_epoch.into();
                value["keys"] = facts.keys.into();
                value["bytes"] = facts.dataset_bytes.into();
                value["used_memory_bytes"] = facts.used_memory_bytes.into();
                value["maxmemory_bytes"] = facts.maxmemory_bytes.into();
                value["evicted_keys"] = facts.evicted_keys.into();
                value["ops_per_second"] = facts.ops_per_second.into();
            }
            value
        })
        .collect();
    json!({
        "event": "status", "cluster": deployment.endpoint.address.to_string(), "healthy": healthy,
        "nodes": survey.nodes.len(), "shards": shards,
        "findings": findings.iter().map(describe::finding).collect::<Vec<_>>(),
    })
}
