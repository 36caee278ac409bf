//! How copies and verifications stand that this process runs, over HTTP. Syncs are in
//! [`crate::syncing`], daemons in [`crate::daemon`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use whimbrel_flow::budget::Rates;
use whimbrel_flow::progress::CopyProgress;
use whimbrel_flow::verify::VerifyProgress;

use crate::http::{Metric, MetricsSource, count, gauge, seconds};
use crate::standing;
use crate::steering::Standing;
use crate::store::Status;

/// What a process shows of what it runs.
pub struct JobMetrics {
    metrics: Box<dyn Fn() -> Vec<Metric> + Send + Sync>,
    status: Box<dyn Fn() -> Value + Send + Sync>,
}

impl std::fmt::Debug for JobMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobMetrics").finish_non_exhaustive()
    }
}

/// As the job answers requests.
fn answer_of(standing_of: &impl Fn() -> Standing, rates: &Rates) -> Value {
    let mut standing = standing_of();
    standing.job.rates = rates.now();
    serde_json::to_value(standing).unwrap_or_default()
}

impl JobMetrics {
    /// A copy that began so.
    pub fn copy(begun_with: &Status, progress: Arc<CopyProgress>, rates: Rates) -> JobMetrics {
        let standing_of = standing::of_copy(begun_with.clone(), progress.clone());
        let limits = rates.clone();
        let metrics = move || {
            let c = progress.snapshot();
            let is_paused = rates.now().is_paused();
            let full_help = "For how long the journal's disk has been full; 0 while it has room";
            vec![
                count("whimbrel_copy_keys_read", "Keys whose state was read from the source", c.read),
                count("whimbrel_copy_read_bytes", "Bytes of keys and values read", c.bytes_read),
                count("whimbrel_copy_keys_written", "Keys written to the target", c.written),
                count("whimbrel_copy_written_bytes", "Bytes of keys and values written", c.bytes_written),
                count("whimbrel_copy_keys_skipped", "Keys that the target had and that were left", c.skipped),
                count("whimbrel_copy_keys_gone", "Keys that were gone when they were to be read", c.gone),
                count("whimbrel_copy_retries", "Operations that were tried again", c.retries),
                gauge("whimbrel_copy_keys_source", "Keys of the source when it began", c.keys_total),
                gauge("whimbrel_copy_keys_failed", "Keys that are not on the target", c.failed),
                gauge("whimbrel_copy_big_keys_in_flight", "Keys that move in chunks now", c.big_in_flight),
                gauge(
                    "whimbrel_copy_paused",
                    "1 while it is paused, or outside of its hours",
                    is_paused.into(),
                ),
                seconds("whimbrel_copy_disk_full_seconds", full_help, progress.disk.full_ms().unwrap_or(0)),
            ]
        };
        JobMetrics { metrics: Box::new(metrics), status: Box::new(move || answer_of(&standing_of, &limits)) }
    }

    /// A verification that began so.
    pub fn verification(begun_with: &Status, progress: Arc<VerifyProgress>, rates: Rates) -> JobMetrics {
        let standing_of = standing::of_verification(begun_with.clone(), progress.clone());
        let limits = rates.clone();
        let metrics = move || {
            let p = &progress;
            let n = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let is_paused = rates.now().is_paused();
            let full_help = "For how long the journal's disk has been full; 0 while it has room";
            let extra_help = "Keys of the target that were looked for on the source";
            vec![
                count("whimbrel_verify_keys_compared", "Keys of the source compared", n(&p.compared)),
                count("whimbrel_verify_compared_bytes", "Bytes of values compared", n(&p.bytes)),
                count("whimbrel_verify_keys_looked_for", extra_help, n(&p.extra_checked)),
                gauge("whimbrel_verify_keys_source", "Keys of the source", n(&p.total_estimate)),
                gauge("whimbrel_verify_keys_target", "Keys of the target to look for", n(&p.extra_estimate)),
                gauge("whimbrel_verify_keys_differing", "Keys that differ for good", n(&p.differing)),
                gauge("whimbrel_verify_keys_rechecking", "Keys to be compared again", n(&p.rechecking)),
                gauge(
                    "whimbrel_verify_paused",
                    "1 while it is paused, or outside of its hours",
                    is_paused.into(),
                ),
                seconds("whimbrel_verify_disk_full_seconds", full_help, p.disk.full_ms().unwrap_or(0)),
            ]
        };
        JobMetrics { metrics: Box::new(metrics), status: Box::new(move || answer_of(&standing_of, &limits)) }
    }

    /// Anything else that has such numbers, and stands so.
    pub fn other(
        metrics: impl Fn() -> Vec<Metric> + Send + Sync + 'static,
        status: impl Fn() -> Value + Send + Sync + 'static,
    ) -> JobMetrics {
        JobMetrics { metrics: Box::new(metrics), status: Box::new(status) }
    }
}

impl MetricsSource for JobMetrics {
    fn metrics(&self) -> Vec<Metric> {
        (self.metrics)()
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    fn readiness(&self) -> Result<(), String> {
        Ok(())
    }

    fn status(&self) -> Value {
        (self.status)()
    }
}
