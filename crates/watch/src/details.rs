//! What a page shows of one kind of job only.

use serde_json::Value;
use whimbrel_control::store::{Kind, Status};
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_terminal::screen::Screen;

use crate::http_page::{disk_line, lines_of_sync};

/// The lines of a job, by what it said; empty where it has said nothing.
pub(crate) fn lines(status: &Status, details: &Value, screen: Screen) -> Vec<String> {
    let of = |value: &Value| value.as_u64().unwrap_or(0);
    match status.kind {
        Kind::Move => of_move(status),
        _ if details.is_null() => Vec::new(),
        Kind::Copy => with_disk(of_copy(&details["counts"]), details),
        Kind::Verify => {
            let found = format_count_of(of(&details["differing"]), "key");
            with_disk(vec![format!("found    {found} differing so far")], details)
        }
        Kind::Sync => {
            let lines = lines_of_sync(&details["status"], "", screen);
            lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
        }
        Kind::Front => of_front(details),
    }
}

fn with_disk(mut lines: Vec<String>, details: &Value) -> Vec<String> {
    lines.extend(disk_line(details));
    lines
}

fn of_copy(counts: &Value) -> Vec<String> {
    let of = |name: &str| counts[name].as_u64().unwrap_or(0);
    let big = match of("big_in_flight") {
        0 => String::new(),
        big => format!("; {} on their way", format_count_of(big, "large key")),
    };
    vec![
        format!(
            "written  {}, {}{big}",
            format_count_of(of("written"), "key"),
            format_bytes(of("bytes_written"))
        ),
        format!(
            "trouble  {} skipped, {} failed, {} gone meanwhile; {} retries",
            format_count(of("skipped")),
            format_count(of("failed")),
            format_count(of("gone")),
            format_count(of("retries")),
        ),
    ]
}

fn of_move(status: &Status) -> Vec<String> {
    let waits = match status.remaining_bytes {
        0 => String::new(),
        bytes => format!("; {} wait to be sent", format_bytes(bytes)),
    };
    let mut lines = vec![format!(
        "slots    {} of {} are at their new owner{waits}",
        format_count(status.slots_moved() as u64),
        format_count(status.slots_planned() as u64),
    )];
    let by = match &*status.method {
        "external" => "external: whimbrel moves the keys",
        "native" => "native: the servers move the slots themselves, and report no keys",
        "legacy" => "legacy: with MIGRATE",
        other => other,
    };
    lines.push(format!("method   {by}; the cluster is that of {}", status.cluster));
    lines.extend(status.fell_back.as_ref().map(|why| format!("left     the servers' own migration: {why}")));
    lines
}

fn of_front(details: &Value) -> Vec<String> {
    let of = |value: &Value| value.as_u64().unwrap_or(0);
    let held = details["held_ms"].as_u64().map_or_else(String::new, |ms| {
        format!("; they have been held for {} for a cutover", format_duration_ms(ms))
    });
    let reversed = match of(&details["reversals"]) {
        0 => String::new(),
        reversals => format!("; reversed {reversals} times"),
    };
    let mut lines = vec![format!("clients  {}{held}{reversed}", format_count(of(&details["clients"])))];
    let moving = &details["moving"];
    if moving.is_object() {
        let staying = of(&moving["staying"]);
        let kept = match staying {
            0 => String::new(),
            keys => format!("; {} could not be moved", format_count_of(keys, "key")),
        };
        let rebuilding = match moving["rebuilding"] == true {
            true => "; the filter is being made anew",
            false => "",
        };
        let left = moving["left"].as_u64().map_or_else(|| "unknown".to_owned(), format_count);
        lines.push(format!("moving   {left} keys left{kept}{rebuilding}"));
    }
    lines
}
