//! Comparing numbers of keys only.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;

use super::options::VerifyOptions;
use crate::retry::{Backoff, RetryPolicy};
use crate::scan::{KeyScan, ScanOptions, Unit};

/// Counts the keys of one pair of databases, again if the counts differ, until they agree or hold still.
pub(super) async fn settled_counts(
    source: &Arc<Deployment>,
    target: &Arc<Deployment>,
    options: &VerifyOptions,
    index: usize,
) -> Result<(u64, u64)> {
    let (source_db, target_db) = options.dbs[index];
    let both = async || {
        tokio::try_join!(
            count(source, source_db, options.from_replica, options),
            count(target, target_db, false, options)
        )
    };
    let settle = options.settle;
    let mut unchanged = 0;
    let mut round = 0;
    let mut last = both().await?;
    while last.0 != last.1 && round < settle.rounds && unchanged < settle.unchanged {
        round += 1;
        tokio::time::sleep(Duration::from_millis(settle.pause_ms.saturating_mul(u64::from(round)))).await;
        let now = both().await?;
        unchanged = if now == last { unchanged + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

async fn count(
    deployment: &Arc<Deployment>,
    db: u32,
    from_replica: bool,
    options: &VerifyOptions,
) -> Result<u64> {
    if options.selection.is_everything() && options.types.is_empty() {
        return dbsize(deployment, db, from_replica, options.retry).await;
    }
    // One iteration for each type: the server distinguishes them without a round trip for each key.
    let mut types: Vec<Option<String>> = options.types.iter().cloned().map(Some).collect();
    if types.is_empty() {
        types.push(None);
    }
    let mut count = 0;
    for unit in Unit::of_all(deployment, db, from_replica) {
        for type_name in &types {
            count += count_unit(deployment, &unit, type_name.clone(), options).await?;
        }
    }
    Ok(count)
}

async fn count_unit(
    deployment: &Arc<Deployment>,
    unit: &Unit,
    type_name: Option<String>,
    options: &VerifyOptions,
) -> Result<u64> {
    let scan_options = ScanOptions { type_name, ..options.scan_options() };
    let mut scan = KeyScan::new(deployment.clone(), unit.clone(), scan_options, options.retry, None);
    let mut count = 0;
    while let Some(page) = scan.next().await? {
        if page.restarted {
            count = 0;
        }
        count += page.keys.iter().filter(|key| options.selection.admits(key)).count() as u64;
    }
    Ok(count)
}

/// How many keys `deployment` has in `db`, all shards together.
pub(super) async fn dbsize(
    deployment: &Arc<Deployment>,
    db: u32,
    from_replica: bool,
    retry: RetryPolicy,
) -> Result<u64> {
    let mut total = 0;
    for unit in Unit::of_all(deployment, db, from_replica) {
        let mut backoff = Backoff::new(retry);
        total += loop {
            match unit_size(deployment, &unit).await {
                Ok(keys) => break keys,
                Err(e) => backoff.pause(e).await?,
            }
            if let Err(e) = deployment.refresh().await {
                tracing::debug!(error = %e, "topology refresh failed");
            }
        };
    }
    Ok(total)
}

async fn unit_size(deployment: &Deployment, unit: &Unit) -> Result<u64> {
    let mut link = unit.open(deployment).await?;
    let reply = link.call(&[b"DBSIZE"]).await?;
    let keys = reply.as_int().and_then(|n| u64::try_from(n).ok());
    keys.ok_or_else(|| link.unexpected("DBSIZE", &reply))
}
