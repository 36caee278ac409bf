//! Words about a job that several commands use.

use whimbrel_control::store::{Kind, Status};
use whimbrel_core::units::{format_bytes, format_count_of};
use whimbrel_flow::budget::RatesNow;

/// From where to where: nodes of a cluster by the beginning of their ids.
pub(super) fn between(status: &Status) -> String {
    let short = |id: &str| match status.kind {
        Kind::Move => id.get(..8).unwrap_or(id).to_owned(),
        _ => id.to_owned(),
    };
    format!("{} -> {}", short(&status.source), short(&status.target))
}

/// How fast keys of a job move at most, and whether they do.
pub(super) fn rates_in_words(now: RatesNow) -> String {
    let keys = now.rate_keys.map(|rate| format!("{} a second", format_count_of(rate, "key")));
    let bytes = now.rate_bytes.map(|rate| format!("{} a second", format_bytes(rate)));
    let bounds: Vec<String> = keys.into_iter().chain(bytes).collect();
    let bounds = if bounds.is_empty() { "no rate is set".to_owned() } else { bounds.join(", ") };
    if now.paused { format!("{bounds}; paused") } else { bounds }
}
