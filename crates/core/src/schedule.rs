//! When something is due that was scheduled: a pure function of the time. Times are in seconds since
//! the epoch, in UTC.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{format_duration_ms, format_time, format_time_of_day};

const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;

/// How long after its time something without a window is still begun: later no user expects it.
const LATE_MAX_S: u64 = HOUR_S;

/// Why a time is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// A moment has another form.
    #[error("write a time with its offset, for example 2026-11-26T02:00Z or 2026-11-26T03:00+01:00")]
    Moment,
    /// A window has another form.
    #[error("write a time of the day, for example 01:00-05:00, which is UTC, or 01:00-05:00+01:00")]
    Window,
    /// A window begins when it ends.
    #[error("the window begins when it ends")]
    Empty,
}

/// A time of the day, every day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Window {
    /// When it begins, in seconds of the day.
    from_s: u64,
    /// When it ends; before it begins if it lasts over midnight.
    until_s: u64,
}

impl Window {
    /// Whether a moment is in it.
    pub fn contains(&self, epoch_s: u64) -> bool {
        let length_s = (self.until_s + DAY_S - self.from_s) % DAY_S;
        (epoch_s % DAY_S + DAY_S - self.from_s) % DAY_S < length_s
    }

    /// When it begins next, after a moment that is not in it.
    pub fn begins_after(&self, epoch_s: u64) -> u64 {
        next(self.from_s, epoch_s)
    }

    /// When keys move that move at this time of the day only, for people, at a moment.
    pub fn in_words(&self, epoch_s: u64) -> String {
        let is_open = self.contains(epoch_s);
        let at = next(if is_open { self.until_s } else { self.from_s }, epoch_s);
        let (time, left) = (format_time_of_day(at), format_duration_ms((at - epoch_s) * 1_000));
        let when = match is_open {
            true => format!("now, until {time}, for {left} more"),
            false => format!("next from {time}, in {left}"),
        };
        format!("keys move only between {self}: {when}")
    }
}

/// The next moment with this time of the day, in seconds; the moment itself if it has that.
fn next(of_day_s: u64, epoch_s: u64) -> u64 {
    epoch_s + (of_day_s + DAY_S - epoch_s % DAY_S) % DAY_S
}

impl FromStr for Window {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Window, TimeError> {
        let (from, rest) = text.split_once('-').ok_or(TimeError::Window)?;
        let (until, offset) = rest.split_at(rest.find(['Z', '+', '-']).unwrap_or(rest.len()));
        let offset = if offset.is_empty() { Some(0) } else { offset_s(offset) };
        let offset = offset.ok_or(TimeError::Window)?;
        let of_day = |text| {
            let local = i64::try_from(time_of_day_s(text)?).ok()?;
            u64::try_from((local - offset).rem_euclid(DAY_S as i64)).ok()
        };
        let [from_s, until_s] = [from, until].map(of_day);
        match (from_s.ok_or(TimeError::Window)?, until_s.ok_or(TimeError::Window)?) {
            (from_s, until_s) if from_s == until_s => Err(TimeError::Empty),
            (from_s, until_s) => Ok(Window { from_s, until_s }),
        }
    }
}

impl TryFrom<String> for Window {
    type Error = TimeError;

    fn try_from(text: String) -> Result<Window, TimeError> {
        text.parse()
    }
}

impl From<Window> for String {
    fn from(window: Window) -> String {
        window.to_string()
    }
}

/// As it is written, in UTC: `01:00-05:00Z`, with seconds if it has any: jobs are written down so.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, until] = [self.from_s, self.until_s].map(|s| {
            let time = format!("{:02}:{:02}", s / HOUR_S, s / MINUTE_S % MINUTE_S);
            if s % MINUTE_S == 0 { time } else { format!("{time}:{:02}", s % MINUTE_S) }
        });
        write!(f, "{from}-{until}Z")
    }
}

/// What has to be true for something to begin that was scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct When {
    /// Not before this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_s: Option<u64>,
    /// Only at this time of the day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Only while the pause that it needs is known, and no longer than allowed.
    #[serde(default)]
    pub when_ready: bool,
}

/// Whether something is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It is.
    Now,
    /// Not before this moment.
    At(u64),
    /// Once the pause that it needs is known, and short enough.
    OnceReady,
    /// Its time has passed; no user expects it any more.
    TooLate,
}

impl When {
    /// Whether it names anything to wait for.
    pub fn is_later(&self) -> bool {
        *self != When::default()
    }

    /// Whether it is due, by the pause that it needs in milliseconds, as far as that is known, and the pause
    /// that is allowed.
    pub fn due(&self, now_s: u64, pause_ms: Option<u64>, allowed_ms: u64) -> Due {
        if let Some(at) = self.not_before_s {
            if now_s < at {
                return Due::At(self.window.filter(|w| !w.contains(at)).map_or(at, |w| w.begins_after(at)));
            }
            if self.window.is_none() && !self.when_ready && now_s - at > LATE_MAX_S {
                return Due::TooLate;
            }
        }
        if let Some(window) = self.window.filter(|window| !window.contains(now_s)) {
            return Due::At(window.begins_after(now_s));
        }
        match pause_ms {
            Some(pause_ms) if pause_ms <= allowed_ms => Due::Now,
            _ if self.when_ready => Due::OnceReady,
            _ => Due::Now,
        }
    }

    /// In words that follow what is ordered, with the pause that is allowed.
    pub fn in_words(&self, allowed_ms: u64) -> String {
        let mut words = Vec::new();
        if let Some(at) = self.not_before_s {
            words.push(format!("at {}", format_time(at)));
        }
        if let Some(window) = self.window {
            words.push(format!("between {window}"));
        }
        if self.when_ready {
            let allowed = format_duration_ms(allowed_ms);
            words.push(format!("once writes would be paused for at most {allowed}"));
        }
        words.join(", ")
    }
}

/// Reads a moment: `2026-11-26T02:00Z`, `2026-11-26 03:00:30+01:00` (RFC 3339, with or without seconds).
///
/// # Errors
/// For another form, and for days that no calendar has.
pub fn parse_time(text: &str) -> Result<u64, TimeError> {
    let parse = || {
        let (date, rest) = text.split_at_checked(10)?;
        let (time, offset) = rest.strip_prefix(['T', ' '])?.split_at(rest.find(['Z', '+', '-'])? - 1);
        let seconds = days_since_epoch(date)? * DAY_S + time_of_day_s(time)?;
        u64::try_from(i64::try_from(seconds).ok()? - offset_s(offset)?).ok()
    };
    parse().ok_or(TimeError::Moment)
}

/// `HH:MM` or `HH:MM:SS`, in seconds.
fn time_of_day_s(text: &str) -> Option<u64> {
    let mut parts = text.split(':').map(|part| number(part, 2));
    let (hour, minute) = (parts.next()??, parts.next()??);
    let second = parts.next().unwrap_or(Some(0))?;
    let is_time = hour < 24 && minute < 60 && second < 60 && parts.next().is_none();
    is_time.then_some(hour * HOUR_S + minute * MINUTE_S + second)
}

/// `Z` or `+HH:MM`, in seconds to the east.
fn offset_s(text: &str) -> Option<i64> {
    let seconds = |text: &str| time_of_day_s(text).and_then(|s| i64::try_from(s).ok());
    match text.split_at_checked(1)? {
        ("Z", "") => Some(0),
        ("+", east) => seconds(east),
        ("-", west) => seconds(west).map(|s| -s),
        _ => None,
    }
}

fn number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// `YYYY-MM-DD`, from 1970 on.
fn days_since_epoch(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let (year, month) = (number(parts.next()?, 4)?, number(parts.next()?, 2)?);
    let day = number(parts.next()?, 2)?;
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let month_days = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month).ok()?.checked_sub(1)?;
    if year < 1970 || !(1..=*month_days.get(before)?).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    Some(years + month_days[..before].iter().sum::<u64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> u64 {
        parse_time(text).expect("a time")
    }

    #[test]
    fn moments_are_read_as_they_are_shown() {
        for text in
            ["1970-01-01 00:00:00Z", "2000-02-29 23:59:59Z", "2026-11-26 02:00:00Z", "2100-03-01 00:00:00Z"]
        {
            assert_eq!(format_time(at(text)), text);
        }
        assert_eq!(at("2026-11-26T02:00Z"), at("2026-11-26T03:00:00+01:00"));
        assert_eq!(at("2026-11-26T02:00Z"), at("2026-11-25T21:30-04:30"));
        for text in [
            "",
            "02:00",
            "2026-11-26T02:00",
            "2026-02-29T00:00Z",
            "2026-13-01T00:00Z",
            "2026-11-26T24:00Z",
            "2026-11-26T02:00+1:00",
            "1969-12-31T23:00Z",
            "2026-11-26T02:00:00:00Z",
            "2026-11-2úT02:00Z",
        ] {
            assert_eq!(parse_time(text), Err(TimeError::Moment), "{text}");
        }
    }

    #[test]
    fn windows_last_over_midnight_and_have_offsets() {
        let window = |text: &str| text.parse::<Window>();
        let night = window("22:00-02:30").expect("a window");
        for (time, is_in) in
            [("21:59", false), ("22:00", true), ("00:00", true), ("02:29", true), ("02:30", false)]
        {
            assert_eq!(night.contains(at(&format!("2026-11-26T{time}Z"))), is_in, "{time}");
        }
        assert_eq!(window("01:00-05:00+02:00").expect("a window").to_string(), "23:00-03:00Z");
        assert_eq!(window("01:00-01:00"), Err(TimeError::Empty));
        for text in ["", "1-5", "01:00", "01:00-05:00 ", "25:00-05:00", "01:00-05:00+99:00"] {
            assert_eq!(window(text), Err(TimeError::Window), "{text}");
        }
        let words = |time: &str| night.in_words(at(&format!("2026-11-26T{time}Z")));
        let only = "keys move only between 22:00-02:30Z:";
        assert_eq!(words("19:46"), format!("{only} next from 22:00Z, in 2h 14m"));
        assert_eq!(words("02:30"), format!("{only} next from 22:00Z, in 19h 30m"));
        assert_eq!(words("22:00"), format!("{only} now, until 02:30Z, for 4h 30m more"));
        assert_eq!(words("02:29:30"), format!("{only} now, until 02:30Z, for 30.0 s more"));
        for written in ["22:00-02:30Z", "01:00:30-05:00Z", "01:00-05:00:59Z", "01:00:30-01:00:31Z"] {
            assert_eq!(window(written).expect("a window").to_string(), written);
            let as_json = serde_json::to_string(&window(written).expect("a window")).expect("JSON");
            assert_eq!(serde_json::from_str(&as_json).ok(), window(written).ok());
        }
    }

    #[test]
    fn it_is_due_when_all_that_was_named_is_true() {
        let two = at("2026-11-26T02:00Z");
        let only_at = When { not_before_s: Some(two), ..When::default() };
        assert_eq!(only_at.due(two - 1, Some(1), 100), Due::At(two));
        assert_eq!(only_at.due(two, None, 100), Due::Now);
        assert_eq!(only_at.due(two + LATE_MAX_S, Some(900), 100), Due::Now, "whatever the pause");
        assert_eq!(only_at.due(two + LATE_MAX_S + 1, Some(1), 100), Due::TooLate);
        let window = Some("01:00-05:00".parse().expect("a window"));
        let nightly = When { window, ..When::default() };
        let six = at("2026-11-26T06:00Z");
        assert_eq!(nightly.due(six, Some(1), 100), Due::At(at("2026-11-27T01:00Z")));
        assert_eq!(nightly.due(two, Some(1), 100), Due::Now);
        let both = When { not_before_s: Some(six), window, when_ready: true };
        assert_eq!(
            both.due(two, Some(1), 100),
            Due::At(at("2026-11-27T01:00Z")),
            "the first window after it"
        );
        let next_night = at("2026-11-27T02:00Z");
        assert_eq!(both.due(next_night, None, 100), Due::OnceReady);
        assert_eq!(both.due(next_night, Some(101), 100), Due::OnceReady);
        assert_eq!(both.due(next_night, Some(100), 100), Due::Now);
        let words =
            "at 2026-11-26 06:00:00Z, between 01:00-05:00Z, once writes would be paused for at most 100 ms";
        assert_eq!(both.in_words(100), words);
    }
}
