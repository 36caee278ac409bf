//! What the target loses to a copy or a sync: keys that are replaced or removed.

use serde_json::json;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_flow::copy::Plan;
use whimbrel_flow::losses::Losses;

use crate::settings::args::Show;
use whimbrel_terminal::question::Question;

/// Asks whether the keys of the target may become what is said.
pub fn question(target: &Deployment, plan: &Plan, become_what: &str) -> Question {
    let at = target.endpoint.address.to_string();
    let keys: u64 = plan.dbs.iter().map(|db| db.target_keys).sum();
    let keys = format_count_of(keys, "key");
    Question::typed(format!("The target, {at}, holds {keys}: they are {become_what}. Do it?"), at)
}

/// Says what the target would lose.
pub fn show(losses: Losses, show: &Show) {
    let Losses { replaced, removed, is_partial } = losses;
    if show.json {
        outln!(
            "{}",
            json!({"event": "losses", "replaced": replaced, "removed": removed.unwrap_or(0),
                    "partial": is_partial})
        );
    } else if !show.quiet {
        let removed = removed.map_or(String::new(), |n| format!(", {} removed", format_count_of(n, "key")));
        let stopped = if is_partial { "; stopped before all were looked at" } else { "" };
        eprintln!("target   would have {} replaced{removed}{stopped}", format_count_of(replaced, "key"));
    }
}
