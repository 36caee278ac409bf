//! Counters that the stages of a copy raise and a display reads.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;
use whimbrel_engine::error::Error;

use crate::journal::DiskFull;

/// Counters of one copy. All grow, except the gauges at the end.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Keys that the sources hold, by their own count at the start; an estimate on a live source.
    pub keys_total: AtomicU64,
    /// Keys seen by `SCAN`.
    pub scanned: AtomicU64,
    /// Keys that the selection admits.
    pub selected: AtomicU64,
    /// Keys whose state has been read.
    pub read: AtomicU64,
    /// Keys written to the target.
    pub written: AtomicU64,
    /// Keys that the target had already and that were left alone.
    pub skipped: AtomicU64,
    /// Keys that were gone, deleted or expired, when they were to be read.
    pub gone: AtomicU64,
    /// Keys that could not be copied; each is in the report.
    pub failed: AtomicU64,
    /// Bytes of keys and values read.
    pub bytes_read: AtomicU64,
    /// Bytes of keys and values written and acknowledged.
    pub bytes_written: AtomicU64,
    /// Keys moved in chunks.
    pub big: AtomicU64,
    /// Keys compared with the target by a sync, because changes of them may have been missed.
    pub compared: AtomicU64,
    /// Operations that were tried again.
    pub retries: AtomicU64,
    /// Gauge: batches waiting for a reader.
    pub waiting_to_read: AtomicI64,
    /// Gauge: batches waiting for a writer.
    pub waiting_to_write: AtomicI64,
    /// Gauge: keys being moved in chunks now.
    pub big_in_flight: AtomicI64,
    /// Whether the journal's disk has room.
    pub disk: DiskFull,
    notices: Mutex<Vec<String>>,
    /// Why something was tried again last, and when.
    trouble: Mutex<Option<(Instant, String)>>,
}

/// For how long after something was tried again the reason is shown.
const TROUBLE_FRESH: Duration = Duration::from_secs(3);

/// How many notices are kept; later ones are dropped.
const NOTICES_MAX: usize = 200;

impl CopyProgress {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Moves a gauge.
    pub fn shift(gauge: &AtomicI64, by: i64) {
        gauge.fetch_add(by, Ordering::Relaxed);
    }

    /// Notes that something is tried again, and why.
    pub fn retried(&self, why: &Error) {
        Self::add(&self.retries, 1);
        let mut trouble = self.trouble.lock();
        *trouble = Some((Instant::now(), why.to_string()));
    }

    /// Why something was tried again in the last few seconds.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.as_ref().filter(|(at, _)| at.elapsed() < TROUBLE_FRESH).map(|(_, why)| why.clone())
    }

    /// Says something that the user should know but that does not stop the work.
    pub fn notice(&self, text: String) {
        tracing::warn!("{text}");
        let mut notices = self.notices.lock();
        if notices.len() < NOTICES_MAX && !notices.contains(&text) {
            notices.push(text);
        }
    }

    /// What was said so far.
    pub fn notices(&self) -> Vec<String> {
        self.notices.lock().clone()
    }

    /// The values now.
    pub fn snapshot(&self) -> CopyCounts {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let g = |c: &AtomicI64| c.load(Ordering::Relaxed).max(0).unsigned_abs();
        CopyCounts {
            keys_total: n(&self.keys_total),
            scanned: n(&self.scanned),
            selected: n(&self.selected),
            read: n(&self.read),
            written: n(&self.written),
            skipped: n(&self.skipped),
            gone: n(&self.gone),
            failed: n(&self.failed),
            bytes_read: n(&self.bytes_read),
            bytes_written: n(&self.bytes_written),
            big: n(&self.big),
            compared: n(&self.compared),
            retries: n(&self.retries),
            waiting_to_read: g(&self.waiting_to_read),
            waiting_to_write: g(&self.waiting_to_write),
            big_in_flight: g(&self.big_in_flight),
        }
    }
}

/// [`CopyProgress`] at one moment.
#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is documented in CopyProgress")]
pub struct CopyCounts {
    pub keys_total: u64,
    pub scanned: u64,
    pub selected: u64,
    pub read: u64,
    pub written: u64,
    pub skipped: u64,
    pub gone: u64,
    pub failed: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub big: u64,
    pub compared: u64,
    pub retries: u64,
    pub waiting_to_read: u64,
    pub waiting_to_write: u64,
    pub big_in_flight: u64,
}
