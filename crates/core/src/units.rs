//! Sizes, durations and counts as people type and read them.
//!
//! Sizes are in binary units unless the unit says otherwise: `k`, `K` and `KiB` are 1024 bytes, `KB` is 1000;
//! the same goes for `m`, `g` and `t`. Durations are in `ms`, `s`, `m`, `h` or `d`, and in seconds without a
//! unit. Upper and lower case are the same, a fraction as in `1.5GiB` is allowed, a blank before the unit as
//! well.

use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Unit names in lower case, with their worth in bytes.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", KIB),
    ("kib", KIB),
    ("kb", 1_000),
    ("m", MIB),
    ("mib", MIB),
    ("mb", 1_000_000),
    ("g", GIB),
    ("gib", GIB),
    ("gb", 1_000_000_000),
    ("t", TIB),
    ("tib", TIB),
    ("tb", 1_000_000_000_000),
];

/// Unit names in lower case, with their worth in milliseconds.
const DURATION_UNITS: &[(&str, u64)] = &[
    ("", 1_000),
    ("ms", 1),
    ("s", 1_000),
    ("m", 60 * 1_000),
    ("h", 60 * 60 * 1_000),
    ("d", 24 * 60 * 60 * 1_000),
];

/// Parses a size in bytes: `4MiB`, `64k`, `1GB`, `1.5g`, `4096`. See the head of this module for the units.
///
/// A fraction of a byte is dropped. Fails if the text has another form, if its unit is unknown, or if the
/// size does not fit into 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, ParseUnitError> {
    parse_scaled(text, SIZE_UNITS).map_err(|problem| ParseUnitError::Size { input: text.to_owned(), problem })
}

/// Parses a duration: `500ms`, `10s`, `2m`, `1h`, `1.5d`, or a plain number of seconds.
///
/// The result has whole milliseconds; a fraction of one is dropped. Fails if the text has another form, if
/// its unit is unknown, or if the milliseconds do not fit into 64 bits.
pub fn parse_duration(text: &str) -> Result<Duration, ParseUnitError> {
    parse_scaled(text, DURATION_UNITS)
        .map(Duration::from_millis)
        .map_err(|problem| ParseUnitError::Duration { input: text.to_owned(), problem })
}

/// Parses a count above 0: `50000`, `50,000`, `50_000`, `50k`, `1m`. Here `k` is a thousand and `m` a
/// million.
///
/// Fails if the text has another form, is 0, or does not fit into 64 bits.
pub fn parse_count(text: &str) -> Result<u64, ParseUnitError> {
    let digits: String = text.chars().filter(|c| *c != ',' && *c != '_').collect();
    let (digits, factor) = match digits.strip_suffix(['k', 'K']) {
        Some(rest) => (rest, 1_000),
        None => match digits.strip_suffix(['m', 'M']) {
            Some(rest) => (rest, 1_000_000),
            None => (digits.as_str(), 1),
        },
    };
    match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
        Some(0) | None => Err(ParseUnitError::Count),
        Some(n) => Ok(n),
    }
}

/// A size for people, in the largest binary unit below it: `17 B`, `1.5 KiB`, `64.0 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB"), (TIB, "TiB"), (1 << 50, "PiB")];
    if bytes < KIB {
        return format!("{bytes} B");
    }
    // Rounded to tenths before the unit is chosen, or 1,048,575 bytes would be "1024.0 KiB".
    let tenths = |unit: u64| (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    let (unit, name) =
        UNITS.into_iter().find(|&(unit, _)| tenths(unit) < 10_240).unwrap_or(UNITS[UNITS.len() - 1]);
    format!("{}.{} {name}", tenths(unit) / 10, tenths(unit) % 10)
}

/// A count for people, with a comma before each three digits: `1,234,567`.
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How many there are of something whose name takes an *s* when there are several: `1 key`, `2,731 slots`.
pub fn format_count_of(count: u64, name: &str) -> String {
    format!("{} {name}{}", format_count(count), if count == 1 { "" } else { "s" })
}

/// A duration for people, with two units at most: `850 ms`, `2.4 s`, `3m 05s`, `2h 10m`, `4d 06h`.
pub fn format_duration_ms(duration_ms: u64) -> String {
    if duration_ms < 1_000 {
        return format!("{duration_ms} ms");
    }
    // Rounded before the unit is chosen, or 59,990 ms would be "60.0 s".
    let tenths_of_second = duration_ms.saturating_add(50) / 100;
    if tenths_of_second < 600 {
        return format!("{}.{} s", tenths_of_second / 10, tenths_of_second % 10);
    }
    let seconds = duration_ms.saturating_add(500) / 1_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    if hours == 0 {
        format!("{minutes}m {:02}s", seconds % 60)
    } else if days == 0 {
        format!("{hours}h {:02}m", minutes % 60)
    } else {
        format!("{days}d {:02}h", hours % 24)
    }
}

/// Why a text is not a size, a duration or a count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// The text should be a size.
    #[error("\"{input}\" is not a size: {problem}; expected for example 64MiB, 4k, 1.5GB or 4096")]
    Size {
        /// The text.
        input: String,
        /// What is wrong with it.
        problem: UnitProblem,
    },
    /// The text should be a duration.
    #[error("\"{input}\" is not a duration: {problem}; expected for example 500ms, 10s, 2m or 1h")]
    Duration {
        /// The text.
        input: String,
        /// What is wrong with it.
        problem: UnitProblem,
    },
    /// The text should be a count above 0.
    #[error("write a number above 0, for example 50000 or 50k")]
    Count,
}

/// What is wrong with a number that has a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitProblem {
    /// The text does not start with a number, or the number has no digit on one side of its point.
    #[error("it does not start with a number")]
    NoNumber,
    /// The unit is none of those that are known.
    #[error("the unit \"{unit}\" is unknown")]
    UnknownUnit {
        /// The unit as it was given.
        unit: String,
    },
    /// The value is above what can be held.
    #[error("it is too large")]
    TooLarge,
}

/// Parses a decimal number with a unit and returns their product, rounded down. Integers all the way:
/// floating point would be off above 2^53.
fn parse_scaled(text: &str, units: &[(&str, u64)]) -> Result<u64, UnitProblem> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = unit.trim_start();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(UnitProblem::NoNumber);
    }
    let scale = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .map(|&(_, scale)| u128::from(scale))
        .ok_or_else(|| UnitProblem::UnknownUnit { unit: unit.to_owned() })?;
    // Only digits are left, so parsing can fail by overflow only.
    let whole: u64 = whole.parse().map_err(|_| UnitProblem::TooLarge)?;
    // Digits beyond the 18th are worth less than one unit of the result, whatever the scale.
    let fraction = &fraction[..fraction.len().min(18)];
    let fraction_scale = 10u128.pow(u32::try_from(fraction.len()).expect("at most 18"));
    let fraction: u128 = fraction.parse().expect("at most 18 digits");
    let value = u128::from(whole) * scale + fraction * scale / fraction_scale;
    u64::try_from(value).map_err(|_| UnitProblem::TooLarge)
}

/// A moment for people, in UTC: `2026-11-24 21:31:42Z`. It is given in seconds since the epoch.
pub fn format_time(epoch_s: u64) -> String {
    let (days, second) = (epoch_s / 86_400, epoch_s % 86_400);
    // Days are counted in eras of 400 years, from the 1st of March of the year 0 on: leap days come last
    // then.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

/// A time of the day: `01:00Z`.
pub fn format_time_of_day(epoch_s: u64) -> String {
    format!("{:02}:{:02}Z", epoch_s / 3_600 % 24, epoch_s / 60 % 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_is_no_plural() {
        let shown: Vec<String> = [0, 1, 2, 2_731].map(|n| format_count_of(n, "key")).to_vec();
        assert_eq!(shown, ["0 keys", "1 key", "2 keys", "2,731 keys"]);
    }

    #[test]
    fn sizes() {
        let cases = [
            ("0", 0),
            ("4096", 4_096),
            ("17b", 17),
            ("64k", 65_536),
            ("64K", 65_536),
            ("64KiB", 65_536),
            ("64kb", 64_000),
            ("64KB", 64_000),
            ("4MiB", 4 << 20),
            ("4m", 4 << 20),
            ("4MB", 4_000_000),
            ("1GB", 1_000_000_000),
            ("1 GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.1k", 102),
            ("2t", 2 << 40),
            ("1TB", 1_000_000_000_000),
            (" 1k ", 1_024),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn durations() {
        let cases = [
            ("10", 10_000),
            ("0", 0),
            ("500ms", 500),
            ("10s", 10_000),
            ("2m", 120_000),
            ("2M", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1.5s", 1_500),
            ("0.25", 250),
            ("0.0019s", 1),
        ];
        for (text, duration_ms) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(duration_ms)), "{text}");
        }
    }

    #[test]
    fn counts() {
        let cases = [
            ("1", 1),
            ("50000", 50_000),
            ("50,000", 50_000),
            ("50_000", 50_000),
            ("50k", 50_000),
            ("2M", 2_000_000),
        ];
        for (text, count) in cases {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
        for text in ["", "k", "0", "0k", "-1", "1.5k", "18446744073709551615k"] {
            assert_eq!(parse_count(text), Err(ParseUnitError::Count), "{text}");
        }
    }

    #[test]
    fn errors_name_the_input_and_show_an_example() {
        let cases = [
            ("", "\"\" is not a size: it does not start with a number; expected for example 64MiB"),
            ("abc", "\"abc\" is not a size: it does not start with a number"),
            ("-1k", "\"-1k\" is not a size: it does not start with a number"),
            (".5k", "\".5k\" is not a size: it does not start with a number"),
            ("1.k", "\"1.k\" is not a size: it does not start with a number"),
            ("1.2.3", "\"1.2.3\" is not a size: it does not start with a number"),
            ("4MiBs", "\"4MiBs\" is not a size: the unit \"MiBs\" is unknown; expected for example 64MiB"),
            ("1 k k", "\"1 k k\" is not a size: the unit \"k k\" is unknown"),
            ("1é", "\"1é\" is not a size: the unit \"é\" is unknown"),
            ("18446744073709551616", "\"18446744073709551616\" is not a size: it is too large"),
            ("16777216t", "\"16777216t\" is not a size: it is too large"),
            ("99999999999999999999999k", "\"99999999999999999999999k\" is not a size: it is too large"),
        ];
        for (text, start) in cases {
            let message = parse_bytes(text).expect_err(text).to_string();
            assert!(message.starts_with(start), "{message}");
        }
        assert_eq!(
            parse_duration("5 weeks").expect_err("no such unit").to_string(),
            "\"5 weeks\" is not a duration: the unit \"weeks\" is unknown; expected for example 500ms, 10s, \
                2m or 1h"
        );
    }

    #[test]
    fn sizes_for_people() {
        let cases = [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (1_536, "1.5 KiB"),
            (1_048_575, "1.0 MiB"),
            (64 << 20, "64.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (5 << 40, "5.0 TiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn counts_for_people() {
        let cases =
            [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567"), (100_000, "100,000")];
        for (count, text) in cases {
            assert_eq!(format_count(count), text);
        }
        assert_eq!(format_count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn durations_for_people() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (2_449, "2.4 s"),
            (59_949, "59.9 s"),
            (59_990, "1m 00s"),
            (185_000, "3m 05s"),
            (3_599_600, "1h 00m"),
            (7_800_000, "2h 10m"),
            (367_200_000, "4d 06h"),
        ];
        for (duration_ms, text) in cases {
            assert_eq!(format_duration_ms(duration_ms), text, "{duration_ms}");
        }
        assert!(format_duration_ms(u64::MAX).ends_with('h'));
    }

    #[test]
    fn moments_are_reported_in_utc() {
        for (epoch_s, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (951_868_800, "2000-03-01 00:00:00Z"),
            (1_795_555_902, "2026-11-24 21:31:42Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(format_time(epoch_s), text);
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,24}") {
            let _ = parse_bytes(&text);
            let _ = parse_duration(&text);
        }

        #[test]
        fn plain_numbers_are_themselves(bytes in any::<u64>()) {
            prop_assert_eq!(parse_bytes(&bytes.to_string()), Ok(bytes));
            prop_assert_eq!(format_count(bytes).replace(',', ""), bytes.to_string());
        }

        /// What is shown is within half a tenth of the unit.
        #[test]
        fn shown_sizes_parse_to_about_the_same(bytes in 0u64..1 << 49) {
            let parsed = parse_bytes(&format_bytes(bytes)).expect("what we show can be typed");
            prop_assert!(parsed.abs_diff(bytes) <= bytes / 16, "{} became {}", bytes, parsed);
        }
    }
}
