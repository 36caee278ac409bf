//! The clock that leases are counted by.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine was started, the time it was suspended included: `CLOCK_BOOTTIME`. A clock
/// that stands still meanwhile would take a lease for valid long after it has ended. Means nothing on another
/// machine.
pub fn now_ms() -> u64 {
    // Linux has this clock since 2.6.39; it cannot fail there.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
