//! What is changed of a job that runs, and how its limits are at a moment.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_core::schedule::{TimeError, Window};
use whimbrel_core::units::{
    ParseUnitError, format_bytes, format_count_of, format_duration_ms, format_time_of_day, parse_bytes,
    parse_count, parse_duration,
};

use crate::lag::MaxLag;
use crate::lane_counts::LaneCounts;
use crate::load::MaxLoad;

/// What is changed of the rates; what is `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RateChange {
    /// Keys per second, at most; 0 for as many as there are.
    pub keys: Option<u64>,
    /// Bytes of values per second, at most; 0 for as many as there are.
    pub bytes: Option<u64>,
    /// How long a server may take for an answer before keys are moved slower, in milliseconds; 0 for as long
    /// as it likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency_ms: Option<u64>,
    /// How far replicas of the target may be behind before keys are moved slower; [`MaxLag::NONE`] for as far
    /// as they like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lag: Option<MaxLag>,
    /// How much of a core a server may use before keys are moved slower; [`MaxLoad::NONE`] for as much as it
    /// likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_load: Option<MaxLoad>,
    /// When keys move at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// Bytes of values in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How many lanes there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<LaneCounts>,
    /// How long writes may be paused at once, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pause_ms: Option<u64>,
}

/// At which times of the day keys move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Times {
    /// At any.
    Any,
    /// At these alone.
    Between(Window),
}

impl RateChange {
    /// This one, and what `later` names.
    pub fn and(self, later: RateChange) -> RateChange {
        RateChange {
            keys: later.keys.or(self.keys),
            bytes: later.bytes.or(self.bytes),
            max_latency_ms: later.max_latency_ms.or(self.max_latency_ms),
            max_lag: later.max_lag.or(self.max_lag),
            max_load: later.max_load.or(self.max_load),
            times: later.times.or(self.times),
            memory_bytes: later.memory_bytes.or(self.memory_bytes),
            lanes: later.lanes.or(self.lanes),
            max_pause_ms: later.max_pause_ms.or(self.max_pause_ms),
        }
    }
}

/// As people write one of them: `rate-keys=1000`, `rate-bytes=10MiB`, `max-latency=5ms`, `max-lag=64MiB`,
/// `max-load=60%`, `between=01:00-05:00`, each with `none` for no bound; and `memory=64MiB`, `lanes=8`,
/// `max-pause=500ms`.
impl FromStr for RateChange {
    type Err = String;

    fn from_str(text: &str) -> Result<RateChange, String> {
        const FORMS: &str = "write rate-keys=N, rate-bytes=BYTES, max-latency=TIME, max-lag=BYTES|TIME, \
            max-load=PERCENT or between=FROM-UNTIL, or none for no bound; or memory=BYTES, \
            lanes=N or max-pause=TIME";
        let (name, value) = text.split_once('=').ok_or(FORMS)?;
        let number = |parsed: Result<u64, ParseUnitError>| match value {
            "none" => Ok(Some(0)),
            // It would count as no bound, and the user means the opposite.
            _ => match parsed.map_err(|e| e.to_string())? {
                0 => Err(format!("{name} must be more than nothing; to move no keys: whimbrel jobs pause")),
                n => Ok(Some(n)),
            },
        };
        let millis = |value: &str| parse_duration(value).map(|time| time.as_millis() as u64);
        let none = RateChange::default();
        match name {
            "rate-keys" => Ok(RateChange { keys: number(parse_count(value))?, ..none }),
            "rate-bytes" => Ok(RateChange { bytes: number(parse_bytes(value))?, ..none }),
            "max-latency" => Ok(RateChange { max_latency_ms: number(millis(value))?, ..none }),
            "max-lag" if value == "none" => Ok(RateChange { max_lag: Some(MaxLag::NONE), ..none }),
            "max-lag" => Ok(RateChange { max_lag: Some(value.parse()?), ..none }),
            "max-load" if value == "none" => Ok(RateChange { max_load: Some(MaxLoad::NONE), ..none }),
            "max-load" => Ok(RateChange { max_load: Some(value.parse()?), ..none }),
            "between" if value == "none" => Ok(RateChange { times: Some(Times::Any), ..none }),
            "between" => {
                let window = value.parse().map_err(|e: TimeError| e.to_string())?;
                Ok(RateChange { times: Some(Times::Between(window)), ..none })
            }
            "memory" => match parse_bytes(value) {
                Ok(0) | Err(_) => Err("write memory=BYTES, more than nothing".to_owned()),
                Ok(bytes) => Ok(RateChange { memory_bytes: Some(bytes), ..none }),
            },
            "lanes" => {
                let lanes = value.parse().map_err(|e| format!("lanes={value}: {e}"))?;
                Ok(RateChange { lanes: Some(lanes), ..none })
            }
            "max-pause" => {
                let ms = parse_pause(value).map_err(|e| format!("max-pause={value}: {e}"))?;
                Ok(RateChange { max_pause_ms: Some(ms), ..none })
            }
            other => Err(format!("there is no {other} to be set; {FORMS}")),
        }
    }
}

/// How long writes may be paused, in milliseconds. A number without a unit would be seconds, which no user
/// means here.
///
/// # Errors
/// For what is no such time, in words for the person who wrote it.
pub fn parse_pause(text: &str) -> Result<u64, String> {
    const LONGEST: Duration = Duration::from_secs(60);
    if text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err("say the unit, for example 50ms or 0.2s".to_owned());
    }
    match parse_duration(text).map_err(|e| e.to_string())? {
        Duration::ZERO => Err("writes have to be paused for a moment: from 1ms on".to_owned()),
        time if time > LONGEST => Err("writes are paused for a minute at most".to_owned()),
        time => Ok(time.as_millis() as u64),
    }
}

/// How rates are at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RatesNow {
    /// Keys per second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_keys: Option<u64>,
    /// Bytes of values per second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes: Option<u64>,
    /// How long a server may take for an answer before keys are moved slower, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency_ms: Option<u64>,
    /// How far replicas of the target may be behind before keys are moved slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lag: Option<MaxLag>,
    /// How much of a core a server may use before keys are moved slower, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_load: Option<MaxLoad>,
    /// The times of the day at which keys move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Window>,
    /// When they move again, in seconds since the epoch, if none of these times applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until_s: Option<u64>,
    /// Bytes of values in flight, if the user has changed that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How many lanes there are, if the user has changed that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<LaneCounts>,
    /// How long writes may be paused at once, in milliseconds, if the user has changed that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pause_ms: Option<u64>,
    /// Whether no keys move until the user says so.
    #[serde(default)]
    pub paused: bool,
}

impl RatesNow {
    /// What makes another job's rates these, except the pause; what is bounded nowhere stays.
    pub fn as_change(&self) -> RateChange {
        RateChange {
            keys: self.rate_keys,
            bytes: self.rate_bytes,
            max_latency_ms: self.max_latency_ms,
            max_lag: self.max_lag,
            max_load: self.max_load,
            times: self.between.map(Times::Between),
            ..RateChange::default()
        }
    }

    /// Whether no keys move.
    pub fn is_paused(&self) -> bool {
        self.paused || self.paused_until_s.is_some()
    }

    /// That no keys move, in words: `paused`, or `paused until 01:00Z`. `None` if they do.
    pub fn pause_in_words(&self) -> Option<String> {
        let until = || Some(format!("paused until {}", format_time_of_day(self.paused_until_s?)));
        if self.paused { Some("paused".to_owned()) } else { until() }
    }
}

/// In words: `1,000 keys a second, 1.0 MiB a second; paused`.
impl fmt::Display for RatesNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.rate_keys.map(|rate| format!("{} a second", format_count_of(rate, "key")));
        let bytes = self.rate_bytes.map(|rate| format!("{} a second", format_bytes(rate)));
        let latency = self.max_latency_ms.map(|ms| format!("slower where a server takes over {ms} ms"));
        let lag = self.max_lag.map(|lag| format!("slower where a replica is over {lag} behind"));
        let load = self.max_load.map(|load| format!("slower where a server uses over {load} of a core"));
        let between = self.between.map(|window| format!("between {window}"));
        let memory = self.memory_bytes.map(|bytes| format!("values of {} in flight", format_bytes(bytes)));
        let lanes = self.lanes.map(|lanes| format!("lanes: {lanes}"));
        let pause =
            self.max_pause_ms.map(|ms| format!("writes paused for at most {}", format_duration_ms(ms)));
        let all = [keys, bytes, latency, lag, load, between, memory, lanes, pause];
        let bounds: Vec<String> = all.into_iter().flatten().collect();
        let bounds = if bounds.is_empty() { "no rate is set".to_owned() } else { bounds.join(", ") };
        write!(f, "{bounds}{}", self.pause_in_words().map(|words| format!("; {words}")).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_written_as_people_do() {
        let parsed = |texts: &[&str]| {
            let each = texts.iter().map(|text| text.parse::<RateChange>());
            each.collect::<Result<Vec<_>, _>>()
                .map(|all| all.into_iter().fold(RateChange::default(), RateChange::and))
        };
        let (max_latency_ms, max_lag) = (Some(5), Some(MaxLag::NONE));
        let times = Some(Times::Between("01:00-05:00".parse().expect("a window")));
        let change = RateChange {
            keys: Some(1_000),
            bytes: Some(0),
            max_latency_ms,
            max_lag,
            max_load: Some(MaxLoad::NONE),
            times,
            memory_bytes: Some(8 << 20),
            lanes: Some(LaneCounts { read: 2, write: 8 }),
            max_pause_ms: Some(500),
        };
        assert_eq!(
            parsed(&[
                "rate-keys=7",
                "rate-keys=1k",
                "rate-bytes=none",
                "max-latency=5ms",
                "max-lag=5s",
                "max-lag=none",
                "max-load=60%",
                "max-load=none",
                "between=01:00-05:00Z",
                "memory=8MiB",
                "lanes=2:8",
                "max-pause=0.5s",
            ]),
            Ok(change)
        );
        let written = serde_json::to_string(&change).expect("JSON");
        assert_eq!(serde_json::from_str::<RateChange>(&written).expect("a change"), change);
        assert!(parsed(&["memory=none"]).is_err_and(|why| why.contains("more than nothing")));
        assert!(parsed(&["between=1-5"]).is_err_and(|why| why.contains("01:00-05:00")));
        assert!(parsed(&["max-load=0"]).is_err_and(|why| why.contains("1% to 100%")));
        assert!(parsed(&["lanes=0"]).is_err_and(|why| why.contains("READ:WRITE")));
        assert!(parsed(&["max-pause=5"]).is_err_and(|why| why.contains("say the unit")));
        assert!(parsed(&["max-pause=2m"]).is_err_and(|why| why.contains("a minute at most")));
        assert!(parsed(&["rate-key=4"]).is_err_and(|why| why.starts_with("there is no rate-key")));
        for nothing in ["rate-keys=0", "rate-bytes=0", "max-latency=0s", "max-latency=0.5ms"] {
            assert!(parsed(&[nothing]).is_err(), "{nothing} would be no bound");
        }
        assert!(parsed(&["max-latency"]).is_err());
    }
}
