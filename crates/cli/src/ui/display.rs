//! Cells that several lines of progress have, and the progress of a copy.

use std::sync::Arc;

use serde_json::json;
use whimbrel_control::clock::now_s;
use whimbrel_core::schedule::Window;
use whimbrel_core::units::{format_bytes, format_count, format_duration_ms};
use whimbrel_flow::budget::Rates;
use whimbrel_flow::copy::CopyOptions;
use whimbrel_flow::progress::{CopyCounts, CopyProgress};
use whimbrel_terminal::progress::{Display, Form, Lines, Speed, SpeedNow};
use whimbrel_terminal::row::{Cell, cell};

/// Keys that failed or differ and are listed without `--json`, unless the user wants more.
pub const LISTED: usize = 20;

/// The cell for the time that is left.
pub fn eta(left_ms: Option<u64>) -> String {
    format!("ETA {}", left_ms.map_or_else(|| "–".to_owned(), format_duration_ms))
}

/// The line of a plan that says when its keys move, if they move only at some time of the day.
pub fn show_times(between: Option<Window>) {
    if let Some(window) = between {
        eprintln!("times    {}", window.in_words(now_s()));
    }
}

/// What is shown of a job that the user has paused, or that its servers slow down.
pub fn paused(rates: &Rates) -> Option<String> {
    let now = rates.now();
    let how = if now.paused { "resume NAME" } else { "set NAME between=none" };
    let paused = now
        .pause_in_words()
        .map(|words| format!("{}; to continue: whimbrel jobs {how}", words.to_uppercase()));
    paused.or_else(|| rates.slowed_in_words())
}

/// Shows a copy.
pub fn of_copy(
    form: Form,
    progress: Arc<CopyProgress>,
    options: &CopyOptions,
    total: Option<u64>,
) -> Display {
    let (limit, memory, rates) = (options.limit, options.memory_bytes, options.rates.clone());
    let mut speed = Speed::begin();
    Display::start(form, move || {
        let counts = progress.snapshot();
        let speed = speed.of(counts.written + counts.skipped, counts.bytes_written);
        let total = total.map(|total| limit.map_or(total, |l| l.min(total)));
        let disk = progress.disk.words();
        let json = json!({
            "event": "progress", "elapsed_ms": speed.elapsed_ms, "keys_per_second": speed.keys as u64,
            "bytes_per_second": speed.bytes as u64, "memory_budget_bytes": memory, "counts": counts,
            "disk_full_ms": progress.disk.full_ms(), "rates": rates.now(),
        });
        let left = rates.left_ms(left_ms(&counts, &speed, total));
        let mut details = copy_details(&counts, &speed, total, left);
        let stops: Vec<String> = disk.into_iter().chain(paused(&rates)).collect();
        details.extend(stops.iter().map(|words| cell(0, words.clone())));
        let stops: String = stops.iter().map(|words| format!("  {words}")).collect();
        let plain = format!("{}{stops}", copy_line(&counts, &speed, total, left));
        let length = total.unwrap_or(0).max(counts.scanned);
        let done = Some((counts.scanned.min(dealt_with(&counts)), length));
        Lines { done, rows: vec![details], plain: Some(plain), json, notes: Vec::new() }
    })
}

/// Keys for which nothing is left to do.
fn dealt_with(c: &CopyCounts) -> u64 {
    c.written + c.skipped + c.gone + c.failed + (c.scanned - c.selected.min(c.scanned))
}

fn left_ms(counts: &CopyCounts, speed: &SpeedNow, total: Option<u64>) -> Option<u64> {
    let left = total.filter(|&total| total > 0).map(|total| total.saturating_sub(dealt_with(counts)));
    left.and_then(|left| speed.left_ms(left))
}

fn of(total: Option<u64>) -> String {
    total.map_or_else(String::new, |total| format!(" of {}", format_count(total)))
}

/// Beside the bar.
fn copy_details(c: &CopyCounts, speed: &SpeedNow, total: Option<u64>, left_ms: Option<u64>) -> Vec<Cell> {
    let extras = extras(c);
    vec![
        cell(0, eta(left_ms)),
        cell(1, format!("{} keys/s", format_count(speed.keys as u64))),
        cell(3, format!("{}{} keys", format_count(c.written + c.skipped), of(total))),
        cell(2, extras.trim_start()),
        cell(4, format!("{}/s", format_bytes(speed.bytes as u64))),
        cell(5, format_bytes(c.bytes_written)),
        cell(6, format!("queues {}+{}", c.waiting_to_read, c.waiting_to_write)),
    ]
}

fn copy_line(c: &CopyCounts, speed: &SpeedNow, total: Option<u64>, left_ms: Option<u64>) -> String {
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
        eta(left_ms),
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
