//! A disk that is full for a while.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::sleep;
use whimbrel_core::units::format_duration_ms;

/// How long a full disk is tolerated.
const FULL_MAX: Duration = Duration::from_secs(600);

/// How often a write is tried again that must be done before anything else.
const RETRY_PERIOD: Duration = Duration::from_millis(200);

/// True if there was no room for what was to be written: the disk is full, or the user's quota is.
pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Since when the disk has had no room for what is to be written.
#[derive(Debug, Default)]
pub struct DiskFull(Mutex<Option<Instant>>);

impl DiskFull {
    /// Notes how a write ended. A full disk is no error until it has been full for ten minutes: `None`.
    ///
    /// # Errors
    /// `outcome`'s own, if it has another reason, or the disk is full for too long.
    pub fn bear<T>(&self, outcome: Result<T>) -> Result<Option<T>> {
        let mut since = self.0.lock();
        match outcome {
            Err(e) if is_full(&e) => {
                let full = since.get_or_insert_with(|| {
                    tracing::warn!(error = %e, "the disk is full: progress is not written down");
                    Instant::now()
                });
                if full.elapsed() > FULL_MAX { Err(e) } else { Ok(None) }
            }
            Err(e) => Err(e),
            Ok(done) => {
                if since.take().is_some() {
                    tracing::info!("the disk has room again");
                }
                Ok(Some(done))
            }
        }
    }

    /// Writes, and again while the disk is full, for ten minutes at most.
    ///
    /// # Errors
    /// As [`DiskFull::bear`].
    pub async fn until_room<T>(&self, mut write: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            if let Some(done) = self.bear(write())? {
                return Ok(done);
            }
            sleep(RETRY_PERIOD).await;
        }
    }

    /// For how long it has been full; `None` while it has room.
    pub fn full_ms(&self) -> Option<u64> {
        let since = *self.0.lock();
        since.map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// That in words, for progress.
    pub fn words(&self) -> Option<String> {
        self.full_ms().map(disk_full_words)
    }
}

/// What is shown of a disk that has been full for this long, in milliseconds.
pub fn disk_full_words(full_ms: u64) -> String {
    format!("disk full since {}: progress is not written down", format_duration_ms(full_ms / 1_000 * 1_000))
}
