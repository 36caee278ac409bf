//! How much of a core a server uses, and how much it may use.
//!
//! A server of Redis or Valkey carries out commands in one thread. `INFO cpu` says how much time of a
//! processor that thread has taken since the start; the difference between two moments is its load. Servers
//! before 6.2 say it of the whole process alone, which threads for deletions and for sockets add to.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use whimbrel_engine::probe::Info;

/// How far back a load reaches: one slow command should not look like a busy server.
const SPAN: Duration = Duration::from_secs(1);

/// Two moments that are closer say too little.
const SPAN_MIN: Duration = Duration::from_millis(200);

/// How many moments are known.
const KNOWN_MAX: usize = 64;

/// How much of a core a server may use before keys are moved slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MaxLoad(u8);

impl MaxLoad {
    /// As much as it likes.
    pub const NONE: MaxLoad = MaxLoad(0);

    /// In percent of a core; `None` for as much as it likes.
    pub fn percent(self) -> Option<u64> {
        Some(u64::from(self.0)).filter(|percent| *percent > 0)
    }
}

/// As it is written: `60%`, or `60`.
impl FromStr for MaxLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<MaxLoad, String> {
        match text.strip_suffix('%').unwrap_or(text).trim_end().parse() {
            Ok(percent @ 1..=100) => Ok(MaxLoad(percent)),
            _ => Err("write percent of a core, from 1% to 100%".to_owned()),
        }
    }
}

/// As it is read again: `60%`, or `none`.
impl fmt::Display for MaxLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            percent => write!(f, "{percent}%"),
        }
    }
}

/// What one server had used when, in seconds of a processor.
#[derive(Debug, Default)]
pub(crate) struct Used(VecDeque<(Instant, f64)>);

impl Used {
    /// Its load of the last second, in percent of a core, by what it says `now`. `None` if it does not say,
    /// or nothing earlier is known.
    pub(crate) fn percent(&mut self, info: &Info, now: Instant) -> Option<f64> {
        let used_s = used_s(info)?;
        // Another process, which counts from 0.
        if self.0.back().is_some_and(|(_, before_s)| *before_s > used_s) {
            self.0.clear();
        }
        self.0.push_back((now, used_s));
        // The first kept entry is as old as the span, or older.
        let is_old = |(at, _): &(Instant, f64)| now.saturating_duration_since(*at) >= SPAN;
        while self.0.get(1).is_some_and(is_old) || self.0.len() > KNOWN_MAX {
            self.0.pop_front();
        }
        let (since, before_s) = self.0.front()?;
        let span = now.saturating_duration_since(*since);
        (span >= SPAN_MIN).then(|| (used_s - before_s) / span.as_secs_f64() * 100.0)
    }
}

/// What it has used since its start, in seconds: its main thread, if it reports that separately.
fn used_s(info: &Info) -> Option<f64> {
    let seconds = |name: &str| info.field(name)?.parse::<f64>().ok();
    let sum = |suffix: &str| {
        Some(seconds(&format!("used_cpu_sys{suffix}"))? + seconds(&format!("used_cpu_user{suffix}"))?)
    };
    sum("_main_thread").or_else(|| sum(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(main_s: f64, all_s: f64) -> Info {
        let text = format!(
            "used_cpu_sys:0.5\r\nused_cpu_user:{all_s}\r\nused_cpu_sys_main_thread:0.25\r\n\
             used_cpu_user_main_thread:{main_s}\r\n"
        );
        Info::parse(text.as_bytes())
    }

    #[test]
    fn it_is_written_in_percent() {
        let read = |text: &str| text.parse::<MaxLoad>().map(MaxLoad::percent);
        assert_eq!((read("60%"), read("60"), read("100 %")), (Ok(Some(60)), Ok(Some(60)), Ok(Some(100))));
        for wrong in ["0", "101%", "-5", "", "%", "1.5", "fast", "300"] {
            assert!(read(wrong).is_err_and(|why| why.contains("1% to 100%")), "{wrong}: {:?}", read(wrong));
        }
        assert_eq!("60".parse::<MaxLoad>().expect("a load").to_string(), "60%");
    }

    #[test]
    fn the_load_is_that_of_the_main_thread_in_the_last_second() {
        let (mut used, began) = (Used::default(), Instant::now());
        let mut at = |ms: u64, main_s: f64| {
            used.percent(&info(main_s, main_s * 3.0), began + Duration::from_millis(ms))
        };
        let near = |load: Option<f64>, percent: f64| load.is_some_and(|load| (load - percent).abs() < 0.01);
        assert_eq!(at(0, 10.0), None, "nothing is known of before");
        assert_eq!(at(100, 10.1), None, "that is too short a time");
        assert!(near(at(500, 10.25), 50.0));
        assert!(near(at(1_000, 10.5), 50.0));
        assert!(near(at(2_000, 10.6), 10.0), "what was before the last second does not count");
        assert_eq!(at(2_250, 0.1), None, "it has started again");
        assert!(near(at(2_500, 0.2), 40.0));
    }

    #[test]
    fn servers_that_do_not_distinguish_threads_say_it_of_all_and_others_nothing() {
        let (mut used, began) = (Used::default(), Instant::now());
        let old =
            |user_s: f64| Info::parse(format!("used_cpu_sys:1\r\nused_cpu_user:{user_s}\r\n").as_bytes());
        assert_eq!(used.percent(&old(1.0), began), None);
        assert_eq!(used.percent(&old(1.5), began + Duration::from_secs(1)), Some(50.0));
        assert_eq!(used.percent(&Info::parse(b"uptime_in_seconds:7\r\n"), began), None);
    }
}
