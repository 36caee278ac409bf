//! What is about to move, shown before anything does.

use serde_json::json;
use whimbrel_control::described::times;
use whimbrel_control::moves::{MethodRule, Plan, Situation};
use whimbrel_control::service::Method;
use whimbrel_core::plan::Move;
use whimbrel_core::units::{format_bytes, format_count_of, format_duration_ms};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};

use crate::settings::args::{MethodChoice, MovingArgs, VerifyChoice};
use crate::ui::display::show_times;

/// How many ranges of slots are shown for each move.
const RANGES_SHOWN: usize = 6;

/// An error about options that make no sense, or not for this cluster.
pub fn usage(what: &str) -> Error {
    Error::options(Side::Own, "understand the options", what)
}

/// How the moves are made, and why.
///
/// # Errors
/// As [`Situation::method`]; `Options` if the options exclude the method.
pub async fn method(
    situation: &Situation,
    deployment: &Deployment,
    moves: &[Move],
    moving: &MovingArgs,
) -> Result<(Method, String)> {
    let external_only = moving.external_only();
    let chosen = |method, word: &str| Ok((method, format!("--method {word}")));
    let native_first = moving.native_stall.is_some();
    let rule = match (moving.method, external_only) {
        (MethodChoice::External | MethodChoice::Legacy, _) if native_first => {
            return Err(usage("--native-stall is about the servers' own migration")
                .with_remedy("leave it out, or --method"));
        }
        (MethodChoice::External, _) => return chosen(Method::External, "external"),
        (MethodChoice::Legacy, _) if moving.atomic => {
            return Err(usage("the legacy method moves slot by slot: it cannot be --atomic")
                .with_remedy("leave out --method, or --atomic"));
        }
        (MethodChoice::Legacy, Some(option)) => {
            return Err(usage(&format!("the legacy method does not support {option}"))
                .with_remedy("leave it out, or leave out --method"));
        }
        (MethodChoice::Legacy, None) => return chosen(Method::Legacy, "legacy"),
        (choice, Some(option)) if choice == MethodChoice::Native || native_first => {
            let what = format!("the servers' own migration does not support {option}");
            return Err(usage(&what).with_remedy("leave it out, or leave out --method"));
        }
        (MethodChoice::Native, _) => MethodRule::Native,
        (MethodChoice::Auto, only) => MethodRule::Best { external_only: only.is_some(), native_first },
    };
    situation.method(deployment, moves, rule).await.map_err(|e| match e.kind {
        ErrorKind::Unfit(_) if e.remedy.is_none() => e.with_remedy("leave out --method"),
        _ => e,
    })
}

fn compared(verify: VerifyChoice) -> &'static str {
    match verify {
        VerifyChoice::None => "nothing is compared",
        VerifyChoice::Counts => "the number of keys of each slot is compared",
        VerifyChoice::Sample => "the number of keys of each slot and a sample of keys are compared",
        VerifyChoice::Full => "every key is compared",
    }
}

/// Shows what is about to move.
pub fn show(plan: &Plan, moving: &MovingArgs) {
    let (slots, keys, bytes) = plan.sums();
    if moving.show.json {
        let moves: Vec<_> = plan
            .rows
            .iter()
            .zip(&plan.moves)
            .map(|(row, m)| {
                json!({
                    "source": m.source, "target": m.target, "slots": row.slots.to_string(),
                    "slot_count": row.slots.len(), "keys": row.keys, "estimated_bytes": row.bytes,
                })
            })
            .collect();
        out!(
            "{}",
            json!({
                "event": "plan", "dry_run": moving.dry_run, "moves": moves, "method": plan.method.name(),
                "why": plan.why, "native_stall_ms": plan.native_stall_ms,
                "slots": slots, "keys": keys, "estimated_bytes": bytes,
                "estimated_ms": plan.estimate_ms(),
                "max_pause_ms": plan.max_pause_ms, "pause_ms": plan.need.least_ms,
                "round_trip_us": u64::try_from(plan.need.round_trip.as_micros()).unwrap_or(u64::MAX),
                "batches": plan.rows.iter().map(|row| row.batches).sum::<usize>(),
                "empty_primaries": plan.empty, "without_replicas": plan.without_replicas,
                "times": times(moving.between),
            })
        );
        return;
    }
    if moving.show.quiet {
        return;
    }
    if plan.rows.is_empty() {
        match plan.empty.is_empty() {
            true => eprintln!("nothing to move: everything is where it should be"),
            false => eprintln!("nothing to move among the primaries that have slots"),
        }
        for node in &plan.empty {
            eprintln!("note     {node} has no slots: whimbrel rebalance --use-empty gives it a share");
        }
        return;
    }
    for row in &plan.rows {
        eprintln!(
            "move     {} from {} to {}: {}",
            format_count_of(row.slots.len() as u64, "slot"),
            row.source,
            row.target,
            whimbrel_engine::nodes::shortened(&row.slots, RANGES_SHOWN)
        );
        eprintln!("         {}, about {}", format_count_of(row.keys, "key"), format_bytes(row.bytes));
    }
    eprintln!("method   {}: {}", plan.method.name(), plan.why);
    if plan.method == Method::External {
        let batches = plan.pauses_max();
        match plan.max_pause_ms {
            Some(max_pause_ms) => eprintln!(
                "writes   of a source are paused {}, for {} at most, about {} without load; reads go on",
                if batches == 1 { "once".to_owned() } else { format!("up to {batches} times") },
                format_duration_ms(max_pause_ms),
                format_duration_ms(plan.need.least_ms),
            ),
            None => eprintln!("writes   of a source are paused as the daemon is configured; reads go on"),
        }
        if let Some(notice) = plan.clusterdown() {
            eprintln!("         {notice}");
        }
        eprintln!("verify   {} before each handover", compared(moving.verify()));
    }
    if let Method::Native(_) = plan.method {
        eprintln!("verify   nothing is compared, and no rate is kept: the servers do it");
    }
    if let Some(ms) = plan.native_stall_ms {
        let ms = format_duration_ms(ms);
        eprintln!("         if that fails or stalls for {ms}, whimbrel goes on with its own method");
    }
    if let Some(node) = &plan.demoted {
        eprintln!("note     {node} is left without slots: its servers make it a replica of the new owner");
    }
    for node in &plan.without_replicas {
        eprintln!("note     {node} has no replica: what moves there is lost when it fails");
    }
    eprintln!("time     about {} without load", format_duration_ms(plan.estimate_ms()));
    show_times(moving.between);
    if moving.dry_run {
        eprintln!("dry run: nothing was changed");
    }
}
