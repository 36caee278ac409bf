//! What the target loses to a copy or a sync: keys that are replaced or removed.

use std::sync::Arc;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_flow::copy::{CopyOptions, Plan};
use whimbrel_flow::verify::{self, Depth, Settle, VerifyOptions, VerifyProgress};

use crate::settings::args::Show;
use whimbrel_terminal::question::Question;

/// Keys of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Losses {
    /// Those that the source has too.
    replaced: u64,
    /// Those that only the target has, where they are removed.
    removed: Option<u64>,
    /// Whether the user stopped it before all were looked at.
    is_partial: bool,
}

/// Counts them by looking for each selected key on both sides; what only the target has where that is
/// removed.
///
/// # Errors
/// As [`verify::verify`].
pub async fn count(
    source: &Arc<Deployment>,
    target: &Arc<Deployment>,
    (options, removes): (&CopyOptions, bool),
    stop: &CancellationToken,
) -> Result<Losses> {
    let look = VerifyOptions {
        depth: Depth::Meta,
        selection: options.selection.clone(),
        types: options.types.clone(),
        dbs: options.dbs.iter().map(|pair| (pair.source, pair.target)).collect(),
        // Only whether they are there counts.
        ttl_tolerance_ms: u64::MAX,
        settle: Settle { rounds: 0, ..Settle::default() },
        retry: options.retry,
        differences_max: 0,
        check_extra: removes,
        read_rate_keys: options.rate_keys,
        ..VerifyOptions::default()
    };
    let progress = Arc::new(VerifyProgress::default());
    let report = verify::verify(source.clone(), target.clone(), look, progress, stop.clone()).await?;
    let found = report.tally;
    Ok(Losses {
        replaced: found.equal + found.differing + found.unstable,
        removed: removes.then_some(found.extra),
        is_partial: report.stopped_early,
    })
}

/// Asks whether the keys of the target may become what is said.
pub fn question(target: &Deployment, plan: &Plan, become_what: &str) -> Question {
    let at = target.endpoint.address.to_string();
    let keys: u64 = plan.dbs.iter().map(|db| db.target_keys).sum();
    let keys = format_count_of(keys, "key");
    Question::typed(format!("The target, {at}, holds {keys}: they are {become_what}. Do it?"), at)
}

impl Losses {
    /// Says so.
    pub fn show(&self, show: &Show) {
        let Losses { replaced, removed, is_partial } = *self;
        if show.json {
            say!(
                "{}",
                json!({"event": "losses", "replaced": replaced, "removed": removed.unwrap_or(0),
                    "partial": is_partial})
            );
        } else if !show.quiet {
            let removed =
                removed.map_or(String::new(), |n| format!(", {} removed", format_count_of(n, "key")));
            let stopped = if is_partial { "; stopped before all were looked at" } else { "" };
            eprintln!("target   would have {} replaced{removed}{stopped}", format_count_of(replaced, "key"));
        }
    }
}
