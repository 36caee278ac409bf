//! How copies and verifications stand that this process runs, for those who ask. Syncs are in
//! [`crate::syncing`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use whimbrel_flow::progress::CopyProgress;
use whimbrel_flow::verify::VerifyProgress;

use crate::steering::Standing;
use crate::store::Status;

/// How a copy stands that began so.
pub fn of_copy(begun_with: Status, progress: Arc<CopyProgress>) -> impl Fn() -> Standing + Send + Sync {
    move || {
        let counts = progress.snapshot();
        let dealt_with = counts.written + counts.skipped + counts.gone + counts.failed;
        // If it is not known how many there are, those that were seen so far.
        let keys = if counts.keys_total > 0 { counts.keys_total } else { counts.scanned };
        let job = Status {
            keys,
            // What was done before an interruption is not counted again.
            keys_moved: (begun_with.keys_moved + dealt_with).min(keys),
            phase: "copying".to_owned(),
            ..begun_with.clone()
        };
        let details = json!({"counts": counts, "disk_full_ms": progress.disk.full_ms()});
        Standing { job, details }
    }
}

/// How a verification stands that began so.
pub fn of_verification(
    begun_with: Status,
    progress: Arc<VerifyProgress>,
) -> impl Fn() -> Standing + Send + Sync {
    move || {
        let (done, all) = keys_checked(&progress);
        let job = Status { keys: all, keys_moved: done, phase: "comparing".to_owned(), ..begun_with.clone() };
        let differing = progress.differing.load(Ordering::Relaxed);
        let details = json!({"differing": differing, "disk_full_ms": progress.disk.full_ms()});
        Standing { job, details }
    }
}

/// How many keys were looked at, and how many there are: on both sides if extra ones are looked for.
pub fn keys_checked(progress: &VerifyProgress) -> (u64, u64) {
    let n = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let all = n(&progress.total_estimate) + n(&progress.extra_estimate);
    ((n(&progress.compared) + n(&progress.extra_checked)).min(all), all)
}
