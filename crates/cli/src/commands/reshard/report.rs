//! What came of jobs that moved slots.

use serde_json::json;
use whimbrel_control::canary::CanaryReport;
use whimbrel_control::report::{Ending, JobReport};
use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};

use crate::exit::Exit;
use crate::settings::args::Show;

/// What the process ends with after these jobs.
pub fn exit_of(reports: &[JobReport]) -> Exit {
    let any = |ending| reports.iter().any(|report| report.ending == ending);
    if any(Ending::Failed) || any(Ending::Suspended) {
        Exit::Interrupted
    } else if any(Ending::Cancelled) || any(Ending::NotStarted) {
        Exit::Stopped
    } else {
        Exit::Success
    }
}

/// Prints what came of the jobs, and what our own client met meanwhile.
pub fn show_reports(show: &Show, reports: &[JobReport], seen: &CanaryReport, duration_ms: u64, exit: Exit) {
    let sum = |of: fn(&JobReport) -> u64| reports.iter().map(of).sum::<u64>();
    let longest_ms = reports.iter().map(|r| r.pauses.longest_ms).max().unwrap_or(0);
    let slots: usize = reports.iter().map(|r| r.slots_handed_over.len()).sum();
    let verified = reports.iter().all(|r| r.verified || r.slots_handed_over.is_empty()) && slots > 0;
    if show.json {
        out!(
            "{}",
            json!({
                "event": "report", "duration_ms": duration_ms, "slots": slots, "keys": sum(|r| r.keys),
                "bytes": sum(|r| r.bytes), "braked_ms": sum(|r| r.braked_ms),
                "pauses": {"count": sum(|r| r.pauses.count), "total_ms": sum(|r| r.pauses.total_ms),
                "longest_ms": longest_ms},
                "verified": verified, "canary": seen, "jobs": reports, "exit": exit as u8,
            })
        );
        return;
    }
    for report in reports {
        let words = match report.ending {
            Ending::Done => "moved",
            // Slot by slot: what was not begun stays where it is, and nothing has to be rolled back.
            Ending::Cancelled if report.method == "legacy" => "CANCELLED, the rest is where it was",
            Ending::Cancelled if report.slots_handed_over.is_empty() => "CANCELLED, rolled back",
            Ending::Cancelled => "CANCELLED, the rest rolled back",
            Ending::Failed if !report.slots_left_as_is.is_empty() => "FAILED",
            Ending::Failed if report.method == "legacy" => "FAILED, the rest is where it was",
            Ending::Failed if report.slots_handed_over.is_empty() => "FAILED, rolled back",
            Ending::Failed => "FAILED, the rest rolled back",
            Ending::Suspended => "SUSPENDED",
            Ending::NotStarted => "not started",
        };
        out!(
            "{} -> {}  {words}, {} of {} slots in {}",
            report.source.short(),
            report.target.short(),
            report.slots_handed_over.len(),
            report.slots.len(),
            format_duration_ms(report.duration_ms)
        );
        if let Some(reason) = &report.reason {
            out!("         {reason}");
        }
        if !report.slots_left_as_is.is_empty() {
            let left = &report.slots_left_as_is;
            out!(
                "         slots {left} are left as they are: `whimbrel repair` says what is to be done about \
                    them"
            );
        }
        match report.ending {
            Ending::Suspended => out!("         go on with: whimbrel jobs resume {}", report.id),
            Ending::Cancelled => out!("         the same command again moves the rest"),
            _ => {}
        }
        for notice in &report.notices {
            out!("note     {notice}");
        }
    }
    if reports.iter().all(|r| r.method == "external") {
        out!(
            "moved    {} in {}, {} and {} transferred, {} of the keys again because they were written \
                meanwhile",
            format_count_of(slots as u64, "slot"),
            format_duration_ms(duration_ms),
            format_count_of(sum(|r| r.keys), "key"),
            format_bytes(sum(|r| r.bytes)),
            format_count(sum(|r| r.touched)),
        );
    } else {
        // The servers do not report what they have moved.
        out!("moved    {} in {}", format_count_of(slots as u64, "slot"), format_duration_ms(duration_ms));
    }
    if reports.iter().any(|r| r.method == "external") {
        out!(
            "writes   paused {}, {} together, {} at most{}",
            format_count_of(sum(|r| r.pauses.count), "time"),
            format_duration_ms(sum(|r| r.pauses.total_ms)),
            format_duration_ms(longest_ms),
            match sum(|r| r.braked_ms) {
                0 => String::new(),
                ms => format!("; slowed for {} to let the catch-up converge", format_duration_ms(ms)),
            },
        );
    }
    print_canary(seen);
    out!(
        "verified {}",
        match verified {
            true => "yes: source and target were compared before each handover",
            false if reports.iter().any(|r| r.method != "external") => "no: this method does not compare",
            false => "no",
        }
    );
}

/// What our own client met with while slots moved.
pub fn print_canary(seen: &CanaryReport) {
    out!(
        "probe    our client read {}: {} MOVED, {} ASK, {} TRYAGAIN, {} CLUSTERDOWN, {} other errors, {} ms \
            at most",
        format_count_of(seen.requests, "time"),
        seen.moved,
        seen.ask,
        seen.tryagain,
        seen.clusterdown,
        seen.errors,
        seen.longest_ms,
    );
}
