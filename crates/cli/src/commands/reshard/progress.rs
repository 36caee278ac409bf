//! The progress line of jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::json;
use whimbrel_control::job::View;
use whimbrel_control::service::Ready;
use whimbrel_core::units::{format_bytes, format_count, format_duration_ms};

use crate::settings::args::Show;
use crate::ui::display::{Display, Form};

/// One job, as the display knows it.
struct Shown {
    id: String,
    between: String,
    slots: u64,
    view: Arc<View>,
}

/// Shows how jobs stand until it is finished.
pub fn of_jobs(show: &Show, jobs: &[Ready]) -> Display {
    let jobs: Vec<Shown> = jobs
        .iter()
        .map(|job| Shown {
            id: job.task.id().to_string(),
            between: format!("{} -> {}", job.task.source().short(), job.task.target().short()),
            slots: job.task.slots().len() as u64,
            view: job.view.clone(),
        })
        .collect();
    let started = Instant::now();
    Display::of_lines(Form::of(show), move || line(&jobs, started))
}

fn line(jobs: &[Shown], started: Instant) -> (u64, u64, String, serde_json::Value) {
    let slots: u64 = jobs.iter().map(|job| job.slots).sum();
    let mut moved = 0;
    let mut parts = Vec::new();
    let mut details = Vec::new();
    for job in jobs {
        let words = job.view.words();
        if words.is_empty() {
            continue;
        }
        let progress = &job.view.progress;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (keys, bytes) = (load(&progress.moved.keys), load(&progress.moved.bytes));
        let (touched, braked_ms) = (load(&progress.touched), load(&progress.braked_ms));
        let Some(summary) = job.view.summary() else {
            parts.push(format!("{}: {words}", job.between));
            details.push(json!({"job": job.id, "words": words}));
            continue;
        };
        moved += summary.slots_handed_over;
        details.push(json!({
            "job": job.id, "phase": summary.phase, "slots": summary.slots, "slots_handed_over": summary.slots_handed_over,
            "batch": (summary.batches_handed_over + 1).min(summary.batches), "batches": summary.batches, "keys": keys, "bytes": bytes,
            "touched_waiting": touched, "pauses": summary.work.pauses, "paused_ms": summary.work.paused_ms,
            "longest_pause_ms": summary.work.longest_pause_ms, "braked_ms": braked_ms, "attempt": summary.attempt,
        }));
        if matches!(summary.phase, "done" | "cancelled" | "failed") {
            continue;
        }
        let mut part = format!(
            "{} {} {}/{}: {} keys, {}",
            job.between,
            summary.phase,
            (summary.batches_handed_over + 1).min(summary.batches),
            summary.batches,
            format_count(keys),
            format_bytes(bytes)
        );
        if touched > 0 {
            part.push_str(&format!(", {} touched wait", format_count(touched)));
        }
        if summary.work.pauses > 0 {
            part.push_str(&format!(
                ", {} pauses, longest {}",
                summary.work.pauses,
                format_duration_ms(summary.work.longest_pause_ms)
            ));
        }
        if summary.brake_percent > 0 {
            part.push_str(&format!(", writers slowed {} %", summary.brake_percent));
        }
        if summary.attempt > 1 {
            part.push_str(&format!(", attempt {}", summary.attempt));
        }
        parts.push(part);
    }
    let elapsed = started.elapsed();
    let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let left = match moved {
        0 => String::new(),
        moved if moved < slots => {
            let left_ms = elapsed.as_millis() as f64 / moved as f64 * (slots - moved) as f64;
            format!(", about {} left", format_duration_ms(left_ms as u64))
        }
        _ => String::new(),
    };
    let parts: String = parts.iter().map(|part| format!("; {part}")).collect();
    let text = format!("{moved}/{slots} slots{left}{parts}");
    let json = json!({"event": "progress", "elapsed_ms": elapsed_ms, "slots": slots, "slots_handed_over": moved, "jobs": details});
    (moved, slots, text, json)
}
