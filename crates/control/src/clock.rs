//! The time, as jobs are dated.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the epoch.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
