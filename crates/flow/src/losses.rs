//! What the target loses to a copy or a sync: keys that are replaced or removed.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;

use crate::budget::Rates;
use crate::copy::CopyOptions;
use crate::verify::{self, Depth, Settle, VerifyOptions, VerifyProgress};

/// Keys of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Losses {
    /// Those that the source has too. Values are not compared: some of them may be equal already.
    pub replaced: u64,
    /// Those that only the target has, if they are removed.
    pub removed: Option<u64>,
    /// Whether the user stopped it before all were looked at.
    pub is_partial: bool,
}

/// Counts them by looking for each selected key on both sides; also counts what only the target has, if that
/// is removed.
///
/// `None` if the source's user has too few rights to look.
///
/// # Errors
/// As [`verify::verify`].
pub async fn count(
    source: &Arc<Deployment>,
    target: &Arc<Deployment>,
    (options, removes): (&CopyOptions, bool),
    stop: &CancellationToken,
) -> Result<Option<Losses>> {
    if !source.facts.are_known {
        return Ok(None);
    }
    let comparison = VerifyOptions {
        depth: Depth::Meta,
        selection: options.selection.clone(),
        types: options.types.clone(),
        dbs: options.dbs.iter().map(|pair| (pair.source, pair.target)).collect(),
        settle: Settle { rounds: 0, ..Settle::default() },
        retry: options.retry,
        differences_max: 0,
        check_extra: removes,
        rates: Rates::new(options.rates.now().rate_keys, None),
        ..VerifyOptions::default()
    };
    let progress = Arc::new(VerifyProgress::default());
    let report = verify::verify(source.clone(), target.clone(), comparison, progress, stop.clone()).await?;
    let found = report.tally;
    Ok(Some(Losses {
        replaced: found.equal + found.differing + found.unstable,
        removed: removes.then_some(found.extra),
        is_partial: report.stopped_early,
    }))
}
