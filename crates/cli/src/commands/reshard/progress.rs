//! How jobs stand while they run: a line for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use whimbrel_control::job::View;
use whimbrel_control::service::Ready;
use whimbrel_core::migration::Summary;
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_flow::journal::disk_full_words;

use crate::settings::args::Show;
use crate::ui::display::{eta, paused};
use whimbrel_terminal::progress::{Display, Lines, Speed, SpeedNow};
use whimbrel_terminal::row::{Cell, cell};

/// Cells of the bar that a line has if there is room.
const BAR: usize = 12;

/// One job, as the display knows it.
struct Shown {
    id: String,
    between: String,
    slots: u64,
    view: Arc<View>,
    speed: Speed,
}

/// Shows how jobs stand until it is finished.
pub fn of_jobs(show: &Show, jobs: &[Ready]) -> Display {
    let mut jobs: Vec<Shown> = jobs
        .iter()
        .map(|job| Shown {
            id: job.task.id().to_string(),
            between: format!("{} -> {}", job.task.source().short(), job.task.target().short()),
            slots: job.task.slots().len() as u64,
            view: job.view.clone(),
            speed: Speed::begin(),
        })
        .collect();
    let started = Instant::now();
    Display::start(show.form(), move || lines(&mut jobs, started))
}

fn lines(jobs: &mut [Shown], started: Instant) -> Lines {
    let slots: u64 = jobs.iter().map(|job| job.slots).sum();
    let (mut moved, mut waiting) = (0, 0);
    let (mut rows, mut details) = (Vec::new(), Vec::new());
    for job in jobs {
        let words = job.view.words();
        if words.is_empty() {
            waiting += 1;
            continue;
        }
        let progress = &job.view.progress;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let keys = progress.keys();
        let speed = job.speed.of(keys.0, load(&progress.moved.bytes));
        let now = Now {
            summary: job.view.summary(),
            left_ms: progress.rates.left_ms(left_ms(keys, &speed)),
            speed,
            keys,
            keys_sent: load(&progress.moved.keys),
            bytes: load(&progress.moved.bytes),
            touched: load(&progress.touched),
            braked_ms: load(&progress.braked_ms),
            disk_full_ms: progress.disk.full_ms(),
            paused: paused(&progress.rates),
        };
        moved += now.summary.as_ref().map_or(0, |summary| summary.slots_handed_over);
        details.push(now.json(&job.id, &words));
        let has_ended =
            |summary: &Summary| matches!(summary.phase, "done" | "cancelled" | "failed" | "suspended");
        if !now.summary.as_ref().is_some_and(has_ended) {
            rows.push(now.row(&job.between, &words));
        }
    }
    if waiting > 0 {
        rows.push(vec![cell(0, format!("{} waiting", format_count_of(waiting, "job")))]);
    }
    let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let json = json!({"event": "progress", "elapsed_ms": elapsed_ms, "slots": slots,
        "slots_handed_over": moved, "jobs": details});
    Lines { done: None, rows, json, notes: Vec::new(), plain: None }
}

/// How a job stands at one moment.
struct Now {
    /// Of a job that whimbrel carries out by itself.
    summary: Option<Summary>,
    speed: SpeedNow,
    /// How long it takes, as far as that can be known.
    left_ms: Option<u64>,
    /// At the target, and all; 0 if they were not counted.
    keys: (u64, u64),
    /// Repetitions included.
    keys_sent: u64,
    bytes: u64,
    touched: u64,
    braked_ms: u64,
    /// For how long the journal's disk has been full.
    disk_full_ms: Option<u64>,
    /// What is said if it is paused.
    paused: Option<String>,
}

fn left_ms((done, total): (u64, u64), speed: &SpeedNow) -> Option<u64> {
    (done < total).then(|| speed.left_ms(total - done)).flatten()
}

impl Now {
    /// The share of keys at the target. All of it is not said before the last slot is.
    fn percent(&self) -> Option<u64> {
        let (done, total) = self.keys;
        let is_over = self.summary.as_ref().is_some_and(|s| s.slots_handed_over == s.slots);
        let most = if is_over { 100 } else { 99 };
        (total > 0)
            .then(|| (u128::from(done) * 100 / u128::from(total)) as u64)
            .map(|percent| percent.min(most))
    }

    fn row(&self, between: &str, words: &str) -> Vec<Cell> {
        let (done, total) = self.keys;
        let percent = self.percent();
        let known = |text: String| if total > 0 { text } else { String::new() };
        let mut row = vec![
            cell(6, percent.map_or_else(String::new, bar)),
            cell(0, percent.map_or_else(String::new, |percent| format!("{percent:>2} %"))),
            cell(3, known(eta(self.left_ms))),
            cell(4, known(format!("{} keys/s", format_count(self.speed.keys as u64)))),
            cell(1, self.summary.as_ref().map_or(words, |summary| summary.phase)),
            cell(1, self.disk_full_ms.map_or_else(String::new, disk_full_words)),
            cell(1, self.paused.clone().unwrap_or_default()),
            cell(2, between),
            cell(5, known(format!("{} of {}", format_count(done), format_count_of(total, "key")))),
        ];
        let Some(summary) = &self.summary else { return row };
        let batch = (summary.batches_handed_over + 1).min(summary.batches);
        let when = |is_so: bool, text: String| if is_so { text } else { String::new() };
        row.extend([
            cell(4, when(summary.attempt > 1, format!("attempt {}", summary.attempt))),
            cell(4, when(summary.brake_percent > 0, format!("writes slowed {} %", summary.brake_percent))),
            cell(7, when(summary.batches > 1, format!("batch {batch} of {}", summary.batches))),
            cell(9, format_bytes(self.bytes)),
            cell(8, when(self.touched > 0, format!("{} touched", format_count(self.touched)))),
            cell(8, when(summary.work.pauses > 0, pauses(summary))),
        ]);
        row
    }

    fn json(&self, id: &str, words: &str) -> Value {
        let (done, total) = self.keys;
        let mut value = json!({
            "job": id, "keys_moved": done, "keys_total": total, "percent": self.percent(),
            "keys_per_second": self.speed.keys as u64, "eta_ms": self.left_ms,
            "disk_full_ms": self.disk_full_ms,
        });
        let more = match &self.summary {
            None => json!({"words": words}),
            Some(summary) => json!({
                "phase": summary.phase, "slots": summary.slots,
                "slots_handed_over": summary.slots_handed_over,
                "batch": (summary.batches_handed_over + 1).min(summary.batches), "batches": summary.batches,
                "keys": self.keys_sent, "bytes": self.bytes, "touched_waiting": self.touched,
                "pauses": summary.work.pauses,
                "paused_ms": summary.work.paused_ms, "longest_pause_ms": summary.work.longest_pause_ms,
                "braked_ms": self.braked_ms, "attempt": summary.attempt,
            }),
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    }
}

fn pauses(summary: &Summary) -> String {
    let longest = format_duration_ms(summary.work.longest_pause_ms);
    format!("{}, longest {longest}", format_count_of(summary.work.pauses, "pause"))
}

fn bar(percent: u64) -> String {
    let full = (percent as usize * BAR / 100).min(BAR);
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use whimbrel_core::migration::Work;
    use whimbrel_flow::budget::Rates;

    use super::*;
    use whimbrel_terminal::row::{fitted, whole};

    fn now(done: u64, speed: f64) -> Now {
        let elapsed_ms = Duration::from_secs(9).as_millis() as u64;
        let (keys, speed) = ((done, 1_000_000), SpeedNow { elapsed_ms, keys: speed, bytes: 0.0 });
        Now {
            summary: Some(Summary {
                phase: "streaming",
                batches: 4,
                batches_handed_over: 1,
                slots: 4_001,
                slots_handed_over: 1_024,
                attempt: 1,
                brake_percent: 0,
                cancelling: false,
                verified: true,
                work: Work { pauses: 1, longest_pause_ms: 31, ..Work::default() },
                reason: None,
            }),
            left_ms: left_ms(keys, &speed),
            speed,
            keys,
            keys_sent: done,
            bytes: 12 << 20,
            touched: 5,
            braked_ms: 0,
            disk_full_ms: None,
            paused: None,
        }
    }

    #[test]
    fn a_line_of_a_job_fits_every_width() {
        let row = now(370_123, 61_234.0).row("07c37dfe -> a1b2c3d4", "");
        let at = |width| fitted(std::slice::from_ref(&row), width).remove(0);
        assert_eq!(at(50), "37 %  ETA 10.3 s  streaming  07c37dfe -> a1b2c3d4");
        assert_eq!(at(80), "37 %  ETA 10.3 s  61,234 keys/s  streaming  07c37dfe -> a1b2c3d4");
        assert_eq!(
            at(120),
            "████░░░░░░░░  37 %  ETA 10.3 s  61,234 keys/s  streaming  07c37dfe -> a1b2c3d4  370,123 of \
                1,000,000 keys  batch 2 of 4"
        );
        assert_eq!(at(200), whole(&row));
        assert!(
            at(200).ends_with("  batch 2 of 4  12.0 MiB  5 touched  1 pause, longest 31 ms"),
            "{}",
            at(200)
        );
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        assert_eq!(now(1_000_000, 0.0).percent(), Some(99));
        assert_eq!(now(500_000, 0.0).left_ms, None);
        // Outside of its window it moves nothing, however fast it was a moment ago.
        let closed = Rates::default();
        closed.pause(true);
        let fast = now(500_000, 1_000.0);
        assert_eq!((fast.left_ms, closed.left_ms(fast.left_ms)), (Some(500_000), None));
        let row = Now { summary: None, keys: (0, 0), ..now(0, 0.0) }.row("a -> b", "replicating");
        assert_eq!(whole(&row), "replicating  a -> b");
    }
}
