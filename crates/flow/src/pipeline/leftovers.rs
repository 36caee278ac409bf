//! What a killed run of a job has left at the target: values that it was assembling under
//! [staging keys](crate::large::staging_key).
//!
//! Most of them are assembled anew, under the same name. But a key may be gone from the source since, or
//! small: then no transfer comes back to its staging key, and clients of the target see it until it expires.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;

use super::shared::Shared;
use crate::keys::{expire_in_ms, unlink_all};
use crate::large::{STAGING_PREFIX, STAGING_TTL_MS, staging_job};
use crate::scan::{KeyScan, ScanOptions, Unit};

/// Removes what is left, beside the job that goes on. What cannot be removed expires.
pub(crate) async fn remove_leftovers(shared: Arc<Shared>) {
    let began = Instant::now();
    let removed = tokio::select! {
        removed = remove(&shared, began) => removed,
        () = shared.stop.cancelled() => return,
    };
    match removed {
        Ok(0) => {}
        Ok(keys) => tracing::info!(keys, "removed what a killed run was assembling at the target"),
        Err(e) => tracing::debug!(error = %e, "leftovers of a killed run are not removed, they will expire"),
    }
}

async fn remove(shared: &Shared, began: Instant) -> Result<usize> {
    let options = ScanOptions {
        count: shared.options.scan_count,
        pattern: Some(Bytes::from(format!("{STAGING_PREFIX}*"))),
        type_name: None,
    };
    let mut removed = 0;
    for pair in &shared.options.dbs {
        for unit in Unit::of_all(&shared.target, pair.target, false) {
            let (target, retry) = (shared.target.clone(), shared.options.retry);
            let mut scan = KeyScan::new(target, unit.clone(), options.clone(), retry, None);
            while let Some(page) = scan.next().await? {
                let is_ours = |key: &Bytes| staging_job(key) == Some(shared.options.job.as_bytes());
                let keys: Vec<Bytes> = page.keys.into_iter().filter(is_ours).collect();
                if !keys.is_empty() {
                    let mut link = unit.open(&shared.target).await?;
                    removed += remove_old(&mut link, keys, began).await?;
                }
            }
        }
    }
    Ok(removed)
}

/// Removes those of `keys` to which nothing has been added since `began`.
async fn remove_old(link: &mut Link, keys: Vec<Bytes>, began: Instant) -> Result<usize> {
    let expiries = expire_in_ms(link, &keys).await?;
    // Each chunk gives the whole time again, so a key that this run assembles has more than that. If clocks
    // run apart and one of those is removed all the same, its transfer finds elements missing and starts
    // again.
    let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let left_ms = STAGING_TTL_MS.saturating_sub(elapsed_ms);
    let is_old = |expiry: Option<u64>| expiry.is_some_and(|ms| ms < left_ms);
    let old = keys.into_iter().zip(expiries).filter(|(_, expiry)| is_old(*expiry));
    let old: Vec<Bytes> = old.map(|(key, _)| key).collect();
    Ok(unlink_all(link, false, &old).await?.into_iter().filter(|was_there| *was_there).count())
}
