//! What a person sees while a job runs.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::{format_bytes, format_count, format_duration_ms};
use whimbrel_flow::copy::CopyOptions;
use whimbrel_flow::progress::{CopyCounts, CopyProgress};

use crate::settings::args::Show;
use crate::ui::for_stderr;
use crate::ui::row::{Cell, cell, fitted, whole};
use crate::ui::screen::Screen;

/// Colours that are ours: see [`super::screen`].
pub const COLOURS: [&str; 4] = ["\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"];

/// A text that a terminal only shows. Servers' words are part of what is said, and may hold what sets its
/// title, moves its cursor or turns the direction of writing round: that is shown as its number. In JSON it
/// means the same as before.
pub fn plain(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len() + 16), text);
    while let Some(c) = rest.chars().next() {
        let colour = COLOURS.into_iter().find(|colour| rest.starts_with(colour));
        let taken = colour.map_or(c.len_utf8(), str::len);
        match colour {
            None if acts(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => shown.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    Cow::Owned(shown)
}

/// In which form progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A bar that is redrawn, on standard error.
    Bar,
    /// A plain line every so often, on standard error; ever more seldom where no period is given.
    Lines(Option<Duration>),
    /// A JSON object a line every so often, on standard output.
    Json(Duration),
    /// Nothing.
    None,
}

impl Form {
    /// What the options and the terminal ask for.
    pub fn of(show: &Show) -> Form {
        let asked = show.report.map(Duration::from_secs);
        let period = asked.unwrap_or(Duration::from_secs(1));
        match (show.quiet, show.json, show.report) {
            (true, ..) => Form::None,
            (_, true, _) => Form::Json(period),
            (_, _, Some(_)) => Form::Lines(asked),
            _ if std::io::stderr().is_terminal() => Form::Bar,
            _ => Form::Lines(None),
        }
    }
}

/// What is shown at one moment.
pub struct Lines {
    /// How far it is, of how much: a bar stands before the only row. `None` where there is no end to it, or
    /// each row says that of its own.
    pub done: Option<(u64, u64)>,
    /// The lines, usually one.
    pub rows: Vec<Vec<Cell>>,
    /// The same for programs.
    pub json: serde_json::Value,
    /// What has to be told once, above the lines.
    pub notes: Vec<String>,
}

/// Shows progress until dropped or finished.
pub struct Display {
    over: CancellationToken,
    task: JoinHandle<()>,
}

impl Display {
    /// Shows a copy.
    pub fn of_copy(
        form: Form,
        progress: Arc<CopyProgress>,
        options: &CopyOptions,
        total: Option<u64>,
    ) -> Display {
        let limit = options.limit;
        let memory = options.memory_bytes;
        let mut speed = Speed::new();
        Display::start(form, move |form, bar| {
            let counts = progress.snapshot();
            let speed = speed.of(counts.written + counts.skipped, counts.bytes_written);
            let total = total.map(|total| limit.map_or(total, |l| l.min(total)));
            let disk = progress.disk.words();
            match form {
                Form::Bar => {
                    bar.set_length(total.unwrap_or(0).max(counts.scanned));
                    bar.set_position(counts.scanned.min(dealt_with(&counts)));
                    let mut details = copy_details(&counts, &speed, total);
                    details.extend(disk.map(|words| cell(0, words)));
                    bar.set_message(beside_bar(&[details]));
                }
                Form::Lines(_) => {
                    let disk = disk.map_or_else(String::new, |words| format!("  {words}"));
                    eprintln!("{}{disk}", copy_line(&counts, &speed, total));
                }
                Form::Json(_) => say!(
                    "{}",
                    json!({
                        "event": "progress", "elapsed_ms": speed.elapsed_ms,
                        "keys_per_second": speed.keys as u64,
                        "bytes_per_second": speed.bytes as u64, "memory_budget_bytes": memory,
                        "counts": counts, "disk_full_ms": progress.disk.full_ms(),
                    })
                ),
                Form::None => {}
            }
        })
    }

    /// Shows anything that can be told in a line or a few.
    pub fn of_lines(form: Form, mut lines: impl FnMut() -> Lines + Send + 'static) -> Display {
        let mut has_bar = true;
        Display::start(form, move |form, bar| {
            let Lines { done, rows, json, notes } = lines();
            match form {
                Form::Bar => {
                    notes.iter().for_each(|note| bar.println(for_stderr(&format!("note     {note}"))));
                    if std::mem::replace(&mut has_bar, done.is_some()) != done.is_some() {
                        set_style(bar, if done.is_some() { BAR } else { ONLY_ROWS });
                    }
                    let (position, length) = done.unwrap_or_default();
                    bar.set_length(length.max(1));
                    bar.set_position(position);
                    bar.set_message(if done.is_some() { beside_bar(&rows) } else { shown_rows(&rows, 0) });
                }
                Form::Lines(_) => {
                    notes.iter().for_each(|note| eprintln!("note     {note}"));
                    rows.iter().for_each(|row| eprintln!("{}", whole(row)));
                }
                Form::Json(_) => say!("{json}"),
                Form::None => {}
            }
        })
    }

    fn start(form: Form, mut show: impl FnMut(Form, &ProgressBar) + Send + 'static) -> Display {
        let over = CancellationToken::new();
        let ended = over.clone();
        let task = tokio::spawn(async move {
            let bar = match form {
                Form::Bar => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8)),
                _ => ProgressBar::hidden(),
            };
            set_style(&bar, BAR);
            for shown in 0_u64.. {
                let pause = match form {
                    Form::Bar => Duration::from_millis(150),
                    Form::Lines(Some(period)) | Form::Json(period) => period,
                    Form::Lines(None) => pause_after(shown),
                    Form::None => return,
                };
                if ended.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    break;
                }
                show(form, &bar);
            }
            show(form, &bar);
            bar.finish_and_clear();
        });
        Display { over, task }
    }

    /// Shows the last state and ends.
    pub async fn finish(self) {
        self.over.cancel();
        // A display that has panicked is no reason to fail the job.
        let _ = self.task.await;
    }
}

/// How long nothing is said after so many lines: a log of hours is read as a whole, the beginning is watched.
fn pause_after(lines: u64) -> Duration {
    Duration::from_secs(match lines {
        0..10 => 1,
        10..69 => 10,
        _ => 60,
    })
}

/// What has an end.
const BAR: &str = "{bar:16} {percent:>3} %  {msg}";

/// How many columns of it are no message.
const BAR_COLUMNS: usize = 24;

/// What has none, or says it otherwise.
const ONLY_ROWS: &str = "{msg}";

/// Rows for a bar that is redrawn, each on a line of its own.
fn shown_rows(rows: &[Vec<Cell>], taken: usize) -> String {
    // Some terminals begin a new line behind the last column.
    let width = Screen::of_stderr().width.saturating_sub(taken + 1);
    fitted(rows, width).iter().map(|row| plain(row).into_owned()).collect::<Vec<_>>().join("\n")
}

fn beside_bar(rows: &[Vec<Cell>]) -> String {
    shown_rows(rows, BAR_COLUMNS)
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
    }
}

/// Rates over the last few seconds and overall.
pub struct Speed {
    started: Instant,
    samples: Vec<(Instant, u64, u64)>,
}

/// Rates at one moment.
pub struct SpeedNow {
    /// How long it has run, in milliseconds.
    pub elapsed_ms: u64,
    /// Keys a second.
    pub keys: f64,
    /// Bytes a second.
    pub bytes: f64,
}

impl SpeedNow {
    /// How long it takes until this many more keys are done, in milliseconds; `None` where next to nothing is
    /// done.
    pub fn left_ms(&self, keys: u64) -> Option<u64> {
        (self.keys >= 1.0).then(|| (keys as f64 / self.keys * 1000.0) as u64)
    }
}

/// The cell for the time that is left.
pub fn eta(left_ms: Option<u64>) -> String {
    format!("ETA {}", left_ms.map_or_else(|| "–".to_owned(), format_duration_ms))
}

impl Speed {
    /// From now on.
    pub fn new() -> Self {
        Speed { started: Instant::now(), samples: Vec::new() }
    }

    /// With this many keys and bytes done by now.
    pub fn of(&mut self, keys: u64, bytes: u64) -> SpeedNow {
        let now = Instant::now();
        self.samples.push((now, keys, bytes));
        self.samples.retain(|(at, ..)| now.duration_since(*at) < Duration::from_secs(5));
        let (from, keys_then, bytes_then) = match self.samples.first() {
            Some(first) if self.samples.len() > 1 => *first,
            _ => (self.started, 0, 0),
        };
        let seconds = now.duration_since(from).as_secs_f64().max(0.001);
        SpeedNow {
            elapsed_ms: u64::try_from(now.duration_since(self.started).as_millis()).unwrap_or(u64::MAX),
            keys: keys.saturating_sub(keys_then) as f64 / seconds,
            bytes: bytes.saturating_sub(bytes_then) as f64 / seconds,
        }
    }
}

/// Keys of which nothing more is to be done.
fn dealt_with(c: &CopyCounts) -> u64 {
    c.written + c.skipped + c.gone + c.failed + (c.scanned - c.selected.min(c.scanned))
}

fn remaining(counts: &CopyCounts, speed: &SpeedNow, total: Option<u64>) -> String {
    let left = total.filter(|&total| total > 0).map(|total| total.saturating_sub(dealt_with(counts)));
    eta(left.and_then(|left| speed.left_ms(left)))
}

fn of(total: Option<u64>) -> String {
    total.map_or_else(String::new, |total| format!(" of {}", format_count(total)))
}

/// Beside the bar.
fn copy_details(c: &CopyCounts, speed: &SpeedNow, total: Option<u64>) -> Vec<Cell> {
    let extras = extras(c);
    vec![
        cell(0, remaining(c, speed, total)),
        cell(1, format!("{} keys/s", format_count(speed.keys as u64))),
        cell(3, format!("{}{} keys", format_count(c.written + c.skipped), of(total))),
        cell(2, extras.trim_start()),
        cell(4, format!("{}/s", format_bytes(speed.bytes as u64))),
        cell(5, format_bytes(c.bytes_written)),
        cell(6, format!("queues {}+{}", c.waiting_to_read, c.waiting_to_write)),
    ]
}

fn copy_line(c: &CopyCounts, speed: &SpeedNow, total: Option<u64>) -> String {
    format!(
        "{:>7}  scanned {}  read {}  written {}{}  {}/s  {}/s  queues {}+{}  {}{}",
        format_duration_ms(speed.elapsed_ms),
        format_count(c.scanned),
        format_count(c.read),
        format_count(c.written),
        of(total),
        format_count(speed.keys as u64),
        format_bytes(speed.bytes as u64),
        c.waiting_to_read,
        c.waiting_to_write,
        remaining(c, speed, total),
        extras(c),
    )
}

fn extras(c: &CopyCounts) -> String {
    let mut text = String::new();
    for (n, name) in [
        (c.skipped, "skipped"),
        (c.gone, "gone"),
        (c.failed, "failed"),
        (c.big_in_flight, "in chunks now"),
        (c.retries, "retries"),
    ] {
        if n > 0 {
            text.push_str(&format!("  {} {name}", format_count(n)));
        }
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_utc() {
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

    #[test]
    fn a_log_of_hours_has_few_lines() {
        let mut at_s = 0;
        let lines: Vec<u64> = (0..)
            .map(|n| {
                at_s += pause_after(n).as_secs();
                at_s
            })
            .take_while(|at| *at <= 10_800)
            .collect();
        assert_eq!(&lines[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30]);
        assert_eq!((lines[68], lines[69], lines.len()), (600, 660, 239));
    }

    #[test]
    fn what_a_terminal_would_do_is_shown_instead() {
        assert_eq!(plain("ERR \u{1b}]0;owned\u{7} no"), "ERR \\u001b]0;owned\\u0007 no");
        assert_eq!(plain("a\rb\u{9b}2J\u{202e}c\u{7f}"), "a\\u000db\\u009b2J\\u202ec\\u007f");
        let ours = "\u{1b}[31mamiss\u{1b}[0m\n\tkéys";
        assert!(matches!(plain(ours), Cow::Borrowed(_)) || plain(ours) == ours);
    }
}
