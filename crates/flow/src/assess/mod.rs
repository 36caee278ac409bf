//! Finds out what stands in the way of a migration. Nothing is changed.
//!
//! - [`whimbrel_engine::inventory`] has what servers report about themselves;
//! - [`sample`] reads some keys, slowly enough that the server hardly notices;
//! - [`ways`] tries each way to copy, follow and cut over as far as that goes without doing it;
//! - [`estimate`] and [`judge`] are pure: from [`Facts`] to how long it takes, and to [`Finding`]s.

mod conclusion;
mod estimate;
mod facts;
mod findings;
mod judge;
mod page;
pub mod sample;
mod ways;
mod words;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::Result;
use whimbrel_engine::inventory::{Activity, Inventory, lacking};

use crate::budget::RatesNow;
use crate::copy::CopyOptions;
use crate::functions;

pub use self::conclusion::{Assessment, Verdict};
pub use self::estimate::{Estimates, Span, estimate};
pub use self::facts::{Facts, Planned};
pub use self::findings::{Finding, Severity};
pub use self::judge::judge;
pub use self::page::{Column, Line, Page, Section};
pub use self::sample::{LargeKey, Sample, SampleOptions, TypeCount};
pub use self::ways::{Way, WayKind};

/// For how long it is counted at least how much clients write.
const COUNTED: Duration = Duration::from_secs(2);

/// What applications do not depend on: the commands of operators of servers, and ours.
const OF_OPERATORS: [&str; 22] = [
    "acl",
    "auth",
    "bgsave",
    "bgrewriteaof",
    "client",
    "cluster",
    "command",
    "config",
    "debug",
    "hello",
    "info",
    "latency",
    "memory",
    "module",
    "monitor",
    "psync",
    "pubsub",
    "replconf",
    "role",
    "slowlog",
    "sync",
    "failover",
];

/// What is to be assessed.
#[derive(Debug, Clone)]
pub struct AssessOptions {
    /// What a copy would do: its databases, lanes and limits.
    pub copy: CopyOptions,
    /// How keys are looked at.
    pub sample: SampleOptions,
}

/// Assesses. Reads only; if `stop` is cancelled, with the keys that were read until then.
///
/// # Errors
/// What keeps us from asking the first server of either side.
pub fn assess<'a>(
    source: &'a Arc<Deployment>,
    target: Option<&'a Arc<Deployment>>,
    options: &'a AssessOptions,
    stop: &'a CancellationToken,
) -> LocalBoxFuture<'a, Result<Assessment>> {
    // Boxed, so that it is compiled here and not in each crate that awaits it.
    Box::pin(async move {
        let started = Instant::now();
        for side in std::iter::once(source).chain(target) {
            side.check_direct("copies go through it, and nothing else does")?;
        }
        let before = activities(source).await?;
        let mut facts = Facts { source: Inventory::take(source).await?, ..Facts::default() };
        facts.dbs.clone_from(&options.copy.dbs);
        facts.libraries = functions::count(source).await;
        let RatesNow { rate_keys, rate_bytes, .. } = options.copy.rates.now();
        facts.plan = Planned {
            lanes: options.copy.lanes.read.min(options.copy.lanes.write),
            shards_at_once: options.copy.shards_at_once,
            rate_keys,
            rate_bytes,
            big_key_bytes: options.copy.big_key_bytes,
        };
        if let Some(target) = target {
            facts.target = Some(Inventory::take(target).await?);
            let mut link = target.open(&target.server(), 0).await?;
            facts.target_rtt_us = sample::round_trip_us(&mut link).await?;
            facts.lacking = lacking(&mut link, &of_applications(&facts.source)).await?;
        }
        facts.ways = ways::all(source, target, &options.copy, stop).await;
        facts.sample = sample::take(
            source,
            (&facts.dbs, &facts.source),
            options.copy.big_key_bytes,
            &options.sample,
            stop,
        )
        .await?;
        stop.run_until_cancelled(sleep_until(started + COUNTED)).await;
        for (before, after) in before.iter().zip(activities(source).await?) {
            let rate = after.since(before);
            facts.rate.writes_per_second += rate.writes_per_second;
            facts.rate.bytes_per_second += rate.bytes_per_second;
        }
        Ok(concluded(facts, started.elapsed()))
    })
}

fn concluded(facts: Facts, took: Duration) -> Assessment {
    let estimates = estimate(&facts);
    let findings = judge(&facts, &estimates);
    let verdict = match findings.iter().map(Finding::severity).min() {
        Some(Severity::Blocks) => Verdict::Blocked,
        Some(Severity::Warns) => Verdict::WithCare,
        Some(Severity::Notes) | None => Verdict::Ready,
    };
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let estimates = estimates.of_open(&facts.ways);
    Assessment { facts, estimates, findings, verdict, duration_ms }
}

/// How much was written to each primary until now. A primary that does not answer counts as having written
/// nothing.
async fn activities(source: &Deployment) -> Result<Vec<Activity>> {
    let mut activities = Vec::new();
    for shard in &source.topology().shards {
        if let Ok(mut link) = source.open(&shard.primary, 0).await {
            activities.push(Activity::ask(&mut link).await?);
        }
    }
    Ok(activities)
}

/// Commands that clients have used, except those of operators.
fn of_applications(source: &Inventory) -> Vec<String> {
    let is_theirs = |name: &str| !OF_OPERATORS.contains(&name.split('|').next().unwrap_or_default());
    source
        .used
        .iter()
        .filter(|(name, used)| used.calls > 0 && is_theirs(name))
        .map(|(n, _)| n.clone())
        .collect()
}
