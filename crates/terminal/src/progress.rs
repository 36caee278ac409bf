//! What a person sees while something goes on.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::plain::plain;
use crate::print;
use crate::row::{Cell, fitted, whole};
use crate::screen::Screen;

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
    /// What is asked for, and what the terminal can show; `report` is how often, in seconds.
    pub fn of(quiet: bool, as_json: bool, report: Option<u64>) -> Form {
        let asked = report.map(Duration::from_secs);
        let period = asked.unwrap_or(Duration::from_secs(1));
        match (quiet, as_json, report) {
            (true, ..) => Form::None,
            (_, true, _) => Form::Json(period),
            (_, _, Some(_)) => Form::Lines(asked),
            _ if std::io::stderr().is_terminal() => Form::Bar,
            _ => Form::Lines(None),
        }
    }
}

/// What is shown at one moment.
#[derive(Debug)]
pub struct Lines {
    /// How far it is, of how much: a bar stands before the only row. `None` where there is no end to it, or
    /// each row says that of its own.
    pub done: Option<(u64, u64)>,
    /// The lines, usually one.
    pub rows: Vec<Vec<Cell>>,
    /// What a plain line says instead of the rows.
    pub plain: Option<String>,
    /// The same for programs.
    pub json: serde_json::Value,
    /// What has to be printed once, above the lines.
    pub notes: Vec<String>,
}

/// Shows progress until dropped or finished.
#[derive(Debug)]
pub struct Display {
    over: CancellationToken,
    task: JoinHandle<()>,
}

impl Display {
    /// Shows what fits in a line or a few.
    pub fn start(form: Form, mut lines: impl FnMut() -> Lines + Send + 'static) -> Display {
        let over = CancellationToken::new();
        let ended = over.clone();
        let task = tokio::spawn(async move {
            let bar = match form {
                Form::Bar => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8)),
                _ => ProgressBar::hidden(),
            };
            set_style(&bar, BAR);
            let mut has_bar = true;
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
                show(form, &bar, &mut has_bar, lines());
            }
            show(form, &bar, &mut has_bar, lines());
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

/// Shows one moment. `has_bar` is whether a bar stood there before.
fn show(form: Form, bar: &ProgressBar, has_bar: &mut bool, now: Lines) {
    let Lines { done, rows, plain, json, notes } = now;
    match form {
        Form::Bar => {
            notes.iter().for_each(|note| bar.println(print::for_stderr(&format!("note     {note}"))));
            if std::mem::replace(has_bar, done.is_some()) != done.is_some() {
                set_style(bar, if done.is_some() { BAR } else { ONLY_ROWS });
            }
            let (position, length) = done.unwrap_or_default();
            bar.set_length(length.max(1));
            bar.set_position(position);
            bar.set_message(shown_rows(&rows, if done.is_some() { BAR_COLUMNS } else { 0 }));
        }
        Form::Lines(_) => {
            notes.iter().for_each(|note| print::note(&format!("note     {note}")));
            match plain {
                Some(line) => print::note(&line),
                None => rows.iter().for_each(|row| print::note(&whole(row))),
            }
        }
        Form::Json(_) => print::line(&json.to_string()),
        Form::None => {}
    }
}

/// How long nothing is said after N lines: a log of hours is read as a whole, the beginning is watched.
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

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
    }
}

/// Rates over the last few seconds and overall.
#[derive(Debug)]
pub struct Speed {
    started: Instant,
    samples: Vec<(Instant, u64, u64)>,
}

/// Rates at one moment.
#[derive(Debug)]
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

impl Speed {
    /// From now on.
    pub fn begin() -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
