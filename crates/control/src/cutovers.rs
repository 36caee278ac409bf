//! What the report of a cutover says, in words.

use serde_json::Value;
use whimbrel_core::units::{format_count, format_count_of, format_duration_ms};
use whimbrel_engine::seal::is_whimbrels;
use whimbrel_flow::sync::{CutoverOptions, ExternalShown, ExternalStage};

use crate::store::{FOLLOWING, Status};

/// Clients that are named in one line.
const CLIENTS_SHOWN: usize = 5;

/// How long a pause is allowed if a scheduled cutover is only rehearsed, in milliseconds.
const REHEARSED_MAX_MS: u64 = 60_000;

/// The rehearsal of a scheduled cutover: what would be refused then is refused now. How long
/// it would pause writes now does not matter: it is not due yet. `None` if the sync has not come far enough
/// to try it, or is outside of its window, where nothing arrives.
pub fn rehearsal(sync: &Status, ordered: &CutoverOptions) -> Option<CutoverOptions> {
    let can_be = sync.phase == FOLLOWING && sync.rates.paused_until_s.is_none();
    can_be.then(|| CutoverOptions { dry_run: true, max_pause_ms: REHEARSED_MAX_MS, ..ordered.clone() })
}

/// Which clients wrote last, and which keys, as far as it is known.
pub fn last(external: &Value) -> String {
    let clients: Vec<String> =
        external["clients"].as_array().into_iter().flatten().take(CLIENTS_SHOWN).map(client).collect();
    let keys = external["keys"].as_array().into_iter().flatten().filter_map(|key| key.as_str());
    let keys: Vec<&str> = keys.collect();
    let mut text = String::new();
    if !clients.is_empty() {
        text.push_str(&format!("; last by {}", clients.join(", ")));
    }
    if !keys.is_empty() {
        text.push_str(&format!("; keys {}", keys.join(", ")));
    }
    text
}

fn client(client: &Value) -> String {
    let field = |name: &str| client[name].as_str().unwrap_or_default();
    let job = if is_whimbrels(field("name")) { ", a job of whimbrel's" } else { "" };
    let mut text = format!("{} ({}{job}", field("address"), field("command"));
    for name in ["name", "user"].into_iter().filter(|name| !field(name).is_empty()) {
        text.push_str(&format!(", {name} {}", field(name)));
    }
    text + ")"
}

/// What a cutover is waiting for.
pub fn waiting(external: &ExternalShown) -> String {
    if external.stage == ExternalStage::Comparing {
        return "nobody writes to the source; comparing".to_owned();
    }
    let times = [external.quiet_ms, external.wanted_ms].map(format_duration_ms);
    format!("waiting until nobody writes to the source: for {} of {}", times[0], times[1])
}

/// Hooks that failed: their events, and how.
pub fn failed_hooks(report: &Value) -> impl Iterator<Item = (&str, &str)> {
    let hooks = report["hooks"].as_array().into_iter().flatten();
    hooks.filter_map(|hook| Some((hook["event"].as_str()?, hook["failure"].as_str()?)))
}

/// How much was compared, and what that is worth.
pub fn compared(report: &Value) -> String {
    let number = |name: &str| format_count(report[name].as_u64().unwrap_or(0));
    match report["finds_one_percent"].as_f64() {
        Some(chance) => format!(
            "compared {} of {} keys in full: such a sample finds a difference in 1 % of the keys with {:.0} \
                % probability",
            number("compared"),
            number("keys"),
            chance * 100.0
        ),
        None => {
            format!("compared {} in full", format_count_of(report["compared"].as_u64().unwrap_or(0), "key"))
        }
    }
}
