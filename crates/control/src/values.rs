//! Values of options, and what is wrong with those that are none.
//!
//! Each fails with words for the person who wrote it.

use whimbrel_core::units;
pub use whimbrel_flow::budget::parse_pause;

/// Bytes, at least one.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    match units::parse_bytes(text) {
        Ok(0) => Err("it must be more than nothing".to_owned()),
        other => other.map_err(|e| e.to_string()),
    }
}

/// A time, in milliseconds.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    let duration = units::parse_duration(text).map_err(|e| e.to_string())?;
    u64::try_from(duration.as_millis()).map_err(|_| "that is too long".to_owned())
}

/// How long something may not move. Within less than a second this could not be known.
pub fn parse_stall(text: &str) -> Result<u64, String> {
    parse_ms(text)?.checked_sub(1_000).map(|ms| ms + 1_000).ok_or_else(|| "from 1s on".to_owned())
}

/// How long no client may have written. A shorter time would show nothing.
pub fn parse_quiet(text: &str) -> Result<u64, String> {
    match parse_ms(text)? {
        ms if ms < 100 => Err("nobody must have written for a while: from 100ms on".to_owned()),
        ms => Ok(ms),
    }
}

/// For how long a password is valid.
pub fn parse_ttl(text: &str) -> Result<u64, String> {
    const LONGEST_MS: u64 = 24 * 3_600_000;
    match parse_ms(text)? {
        ms if !(1_000..=LONGEST_MS).contains(&ms) => Err("from 1s to 24h".to_owned()),
        ms => Ok(ms),
    }
}

/// How long a hook may take. A cutover waits for some of them.
pub fn parse_hook_timeout(text: &str) -> Result<u64, String> {
    const LONGEST_MS: u64 = 300_000;
    match parse_ms(text)? {
        ms if !(100..=LONGEST_MS).contains(&ms) => Err("from 100ms to 5m".to_owned()),
        ms => Ok(ms),
    }
}

/// How many of something that is never many.
pub fn parse_small(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err("write a number from 1 to 64".to_owned()),
    }
}
