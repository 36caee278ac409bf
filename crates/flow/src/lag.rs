//! How far replicas are behind their primary, and how far they may be.
//!
//! A replica reports its offset to its primary once a second, and `INFO replication` of the primary shows
//! that. What the replica has received since is not reported anywhere: a replica that keeps up seems to be up
//! to a second behind.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use whimbrel_core::units::{format_bytes, format_duration_ms, parse_bytes, parse_duration};
use whimbrel_engine::probe::{Info, ReplicaFacts};

/// The shortest time that can be distinguished from none, in milliseconds.
const TIME_MS_MIN: u64 = 2_000;

/// For how long it is known how far the primary was, and of how many moments.
const KNOWN_FOR: Duration = Duration::from_secs(600);
const KNOWN_MAX: usize = 4_000;

/// How far replicas may be behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MaxLag {
    /// By this many bytes of what the primary sends them; 0 for as far as they like.
    Bytes(u64),
    /// By what the primary has written in this time, in milliseconds.
    Ms(u64),
}

impl MaxLag {
    /// As far as they like.
    pub const NONE: MaxLag = MaxLag::Bytes(0);
}

/// As it is written: `64MiB`, or `5s`.
impl FromStr for MaxLag {
    type Err = String;

    fn from_str(text: &str) -> Result<MaxLag, String> {
        if text.ends_with(['s', 'h']) {
            let ms = parse_duration(text).map_err(|e| e.to_string())?.as_millis();
            let ms = u64::try_from(ms).map_err(|_| "that is too long".to_owned())?;
            let is_measurable = ms >= TIME_MS_MIN;
            return is_measurable
                .then_some(MaxLag::Ms(ms))
                .ok_or_else(|| "at least 2s: replicas report their offset once a second".to_owned());
        }
        if text.ends_with(['m', 'M']) {
            return Err("write MiB for bytes, or seconds: 5m could be either".to_owned());
        }
        match parse_bytes(text) {
            Ok(0) => Err("it must be more than nothing".to_owned()),
            Ok(bytes) => Ok(MaxLag::Bytes(bytes)),
            Err(_) => Err("write bytes or a time, for example 64MiB or 5s".to_owned()),
        }
    }
}

impl fmt::Display for MaxLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MaxLag::Bytes(bytes) => f.write_str(&format_bytes(bytes)),
            MaxLag::Ms(ms) => f.write_str(&format_duration_ms(ms)),
        }
    }
}

/// How far a replica is behind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lag {
    /// By this many bytes.
    Bytes(u64),
    /// By what was written in this time, in milliseconds.
    Ms(u64),
    /// It gets everything anew.
    Anew,
}

impl Lag {
    /// How much of what is allowed that is: 1 is all of it.
    pub(crate) fn share_of(self, allowed: MaxLag) -> f64 {
        match (self, allowed) {
            (Lag::Bytes(bytes), MaxLag::Bytes(most)) if most > 0 => bytes as f64 / most as f64,
            (Lag::Ms(ms), MaxLag::Ms(most)) if most > 0 => ms as f64 / most as f64,
            // What is written meanwhile waits in the primary's memory, which is bounded: beyond that it
            // begins again.
            (Lag::Anew, _) => 2.0,
            _ => 0.0,
        }
    }

    /// In words that follow "a replica of the target".
    pub(crate) fn in_words(self, allowed: MaxLag) -> String {
        match self {
            Lag::Bytes(bytes) => format!("is {} behind, of {allowed}", format_bytes(bytes)),
            Lag::Ms(ms) => format!("is {} behind, of {allowed}", format_duration_ms(ms)),
            Lag::Anew => "gets all keys anew".to_owned(),
        }
    }
}

/// How far one primary was when.
#[derive(Debug, Default)]
pub(crate) struct Offsets(VecDeque<(Instant, u64)>);

impl Offsets {
    /// How far the last of the replicas is behind, by what the primary says `now`; `None` if it has none, or
    /// does not say how far it is.
    pub(crate) fn behind(&mut self, info: &Info, allowed: MaxLag, now: Instant) -> Option<Lag> {
        let offset = info.number("master_repl_offset")?;
        let is_old = |(at, _): &(Instant, u64)| now.saturating_duration_since(*at) > KNOWN_FOR;
        while self.0.front().is_some_and(is_old) || self.0.len() >= KNOWN_MAX {
            self.0.pop_front();
        }
        // It begins anew with a failover.
        if self.0.back().is_some_and(|(_, before)| *before > offset) {
            self.0.clear();
        }
        self.0.push_back((now, offset));
        let lags = info.replicas().into_iter().map(|replica| match allowed {
            _ if !replica.is_online => Lag::Anew,
            MaxLag::Bytes(_) => Lag::Bytes(offset.saturating_sub(replica.offset)),
            MaxLag::Ms(_) => Lag::Ms(self.since(&replica, now)),
        });
        lags.max_by(|a, b| a.share_of(allowed).total_cmp(&b.share_of(allowed)))
    }

    /// How long ago the primary has written what the replica lacks, in milliseconds. What was written between
    /// two looks counts as written at the first.
    fn since(&self, replica: &ReplicaFacts, now: Instant) -> u64 {
        if self.0.back().is_none_or(|(_, offset)| *offset <= replica.offset) {
            return 0;
        }
        let has_it = self.0.iter().rev().find(|(_, offset)| *offset <= replica.offset);
        let since = has_it.or(self.0.front()).map_or(now, |(at, _)| *at);
        u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(offset: u64, replicas: &[(&str, u64)]) -> Info {
        let mut text = format!("connected_slaves:{}\r\nmaster_repl_offset:{offset}\r\n", replicas.len());
        for (at, (state, offset)) in replicas.iter().enumerate() {
            text.push_str(&format!("slave{at}:ip=a,port=1,state={state},offset={offset},lag=0\r\n"));
        }
        Info::parse(text.as_bytes())
    }

    #[test]
    fn it_is_written_in_bytes_or_as_a_time() {
        let read = |text: &str| text.parse::<MaxLag>();
        assert_eq!((read("64MiB"), read("1.5g")), (Ok(MaxLag::Bytes(64 << 20)), Ok(MaxLag::Bytes(3 << 29))));
        assert_eq!((read("5s"), read("2500ms")), (Ok(MaxLag::Ms(5_000)), Ok(MaxLag::Ms(2_500))));
        for (wrong, why) in [
            ("1s", "at least 2s"),
            ("0", "more than nothing"),
            ("fast", "64MiB or 5s"),
            ("", "or 5s"),
            ("5m", "either"),
        ] {
            assert!(read(wrong).is_err_and(|error| error.contains(why)), "{wrong}: {:?}", read(wrong));
        }
    }

    #[test]
    fn the_last_replica_counts() {
        let (mut offsets, now) = (Offsets::default(), Instant::now());
        let allowed = MaxLag::Bytes(100);
        let online = [("online", 950), ("online", 700)];
        let lag = offsets.behind(&info(1_000, &online), allowed, now).expect("there are some");
        assert_eq!((lag, lag.share_of(allowed)), (Lag::Bytes(300), 3.0));
        assert_eq!(offsets.behind(&info(1_000, &[]), allowed, now), None);
        let anew = [("online", 1_000), ("wait_bgsave", 0)];
        assert_eq!(offsets.behind(&info(1_000, &anew), allowed, now), Some(Lag::Anew));
    }

    #[test]
    fn a_time_behind_is_that_since_the_primary_was_where_the_replica_is() {
        let (mut offsets, began) = (Offsets::default(), Instant::now());
        let allowed = MaxLag::Ms(2_000);
        let mut behind = |at_s: u64, offset: u64, replica: u64| {
            let now = began + Duration::from_secs(at_s);
            offsets.behind(&info(offset, &[("online", replica)]), allowed, now)
        };
        assert_eq!(behind(0, 100, 100), Some(Lag::Ms(0)));
        assert_eq!(behind(1, 200, 100), Some(Lag::Ms(1_000)));
        assert_eq!(behind(5, 300, 150), Some(Lag::Ms(5_000)), "it was there at 0 s last");
        assert_eq!(behind(6, 300, 200), Some(Lag::Ms(5_000)), "and now at 1 s");
        assert_eq!(behind(7, 300, 300), Some(Lag::Ms(0)));
        // Another primary has taken over, and counts from any number.
        assert_eq!(behind(8, 50, 20), Some(Lag::Ms(0)), "nothing is known of it yet");
        assert_eq!(behind(10, 60, 50), Some(Lag::Ms(2_000)));
    }
}
