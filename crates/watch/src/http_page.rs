//! The page of what a process reports of itself: a sync, a daemon with its jobs, the coordinator of
//! a fleet, a front that moves no keys. The page of another job is in [`crate::job`].

use serde_json::Value;
use whimbrel_control::fleet::FleetStatus;
use whimbrel_control::syncing::nothing_heard;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{format_bytes, format_count, format_count_of};
use whimbrel_flow::budget::RatesNow;
use whimbrel_flow::journal::disk_full_words;
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text as column};

use crate::fleet;

/// How a process stands: a sync, the jobs of a daemon, or a fleet. `last` is how it stood a second before.
pub(crate) fn page(snapshot: &Value, last: Option<&Value>, screen: Screen) -> String {
    let fleet = serde_json::from_value::<FleetStatus>(snapshot["fleet"].clone()).ok();
    let fleet = fleet.map(|fleet| fleet::page(&fleet, screen));
    match (fleet, snapshot["jobs"].as_array()) {
        // A coordinator alone lists no jobs.
        (Some(fleet), None) => fleet,
        (Some(fleet), Some(jobs)) if jobs.is_empty() => fleet,
        (Some(fleet), Some(jobs)) => format!("{fleet}\n{}", page_of_jobs(jobs, screen)),
        (None, Some(jobs)) => page_of_jobs(jobs, screen),
        (None, None) => match snapshot["clients"].as_u64() {
            Some(clients) => format!("front    {} connected\n", format_count_of(clients, "client")),
            None => page_of_sync(snapshot, last, screen),
        },
    }
}

/// What a daemon says of its jobs.
fn page_of_jobs(jobs: &[Value], screen: Screen) -> String {
    let text = |job: &Value, name: &str| job[name].as_str().unwrap_or_default().to_owned();
    let is_open = |job: &&Value| !matches!(job["state"].as_str(), Some("success" | "failed" | "cancelled"));
    let open = jobs.iter().filter(is_open).count();
    let listed = format_count_of(jobs.len() as u64, "job");
    let mut page = format!("jobs     {listed}, of which {open} have not ended\n");
    if jobs.is_empty() {
        return page;
    }
    let head = [
        column("JOB", 0),
        column("STATE", 0),
        number("SLOTS", 1),
        column("FROM -> TO", 2),
        column("MESSAGE", 3),
    ];
    let mut table = Table::new(&head, 1);
    for job in jobs {
        let slots = text(job, "slots").parse::<SlotSet>().map_or(0, |slots| slots.len());
        let [source, target] = ["source", "target"].map(|name| text(job, name));
        let short = |id: &str| id.get(..8).unwrap_or(id).to_owned();
        table.row(vec![
            text(job, "name"),
            text(job, "state"),
            format_count(slots as u64),
            format!("{} -> {}", short(&source), short(&target)),
            text(job, "message"),
        ]);
    }
    page.push('\n');
    table.lines(screen).iter().for_each(|line| page.push_str(&format!("{line}\n")));
    page
}

fn page_of_sync(snapshot: &Value, last: Option<&Value>, screen: Screen) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (status, counts) = (&snapshot["status"], &snapshot["status"]["counts"]);
    let since = |last: &Value, name: &str| {
        number(&counts[name]).saturating_sub(number(&last["status"]["counts"][name]))
    };
    let rates = last.map_or_else(String::new, |last| {
        let (keys, bytes) = (since(last, "written"), since(last, "bytes_written"));
        format!("{} keys/s, {}/s; ", format_count(keys), format_bytes(bytes))
    });
    let head = format!(
        "sync     {}: {} -> {}\nphase    {}\n",
        text(&snapshot["name"]),
        text(&snapshot["source"]),
        text(&snapshot["target"]),
        text(&status["phase"]),
    );
    let now = serde_json::from_value::<RatesNow>(snapshot["rates"].clone()).unwrap_or_default();
    let paused = now.pause_in_words().map_or_else(String::new, |words| format!("{words}: nothing arrives"));
    let paused = if paused.is_empty() { paused } else { format!("         {}\n", screen.bad(&paused)) };
    head + &paused + &lines_of_sync(status, &rates, screen)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// How a sync stands, below its phase. `rates` is how fast it goes, as part of a sentence.
pub(crate) fn lines_of_sync(status: &Value, rates: &str, screen: Screen) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let counts = &status["counts"];
    let mut page = format!(
        "written  {}, {}; {rates}{} removed\n",
        format_count_of(number(&counts["written"]), "key"),
        format_bytes(number(&counts["bytes_written"])),
        format_count(number(&counts["gone"])),
    );
    for source in status["sources"].as_array().into_iter().flatten() {
        if let Some(trouble) = source["trouble"].as_str() {
            page.push_str(&format!("BROKEN   {}: {trouble}\n", text(&source["address"])));
        }
    }
    for (side, servers) in [("source", &status["sources"]), ("target", &status["targets"])] {
        for server in servers.as_array().into_iter().flatten().filter(|server| server["silent"] == true) {
            let silence = (side, text(&server["address"]), number(&server["silent_ms"]));
            page.push_str(&format!("SILENT   {}\n", nothing_heard(silence)));
        }
    }
    if let Some(line) = disk_line(status) {
        page.push_str(&format!("{line}\n"));
    }
    if let Some(trouble) = status["trouble"].as_str() {
        page.push_str(&format!("again    {trouble}\n"));
    }
    if let Some(estimate_ms) = status["pause_estimate_ms"].as_u64() {
        page.push_str(&format!("cutover  would pause writes for about {estimate_ms} ms now\n"));
    }
    page.push_str(&format!(
        "trouble  {} retries, {} failed, {} in doubt; {} on their way\n\n",
        format_count(number(&counts["retries"])),
        format_count_of(number(&counts["failed"]), "key"),
        format_count_of(number(&status["suspect_slots"]), "slot"),
        format_count_of(number(&counts["big_in_flight"]), "large key"),
    ));
    page.push_str(&sources(status, screen));
    for failure in status["failures"].as_array().into_iter().flatten() {
        page.push_str(&format!(
            "failed   db {} key {}: {}\n",
            number(&failure["db"]),
            text(&failure["key"]),
            text(&failure["reason"])
        ));
    }
    page
}

/// That what a job did is not written down; `None` where its disk has room.
pub(crate) fn disk_line(standing: &Value) -> Option<String> {
    standing["disk_full_ms"].as_u64().map(|full_ms| format!("DISK     {}", disk_full_words(full_ms)))
}

/// A row for each primary of the source.
fn sources(status: &Value, screen: Screen) -> String {
    let of = |value: &Value| value.as_u64().unwrap_or(0);
    let unknown = || "unknown".to_owned();
    // Of a feed that has no offsets.
    let none = |source: &Value| source["feed"] == "tracking" || source["feed"] == "notifications";
    let mut table = Table::new(
        &[
            column("PRIMARY", 0),
            number("OFFSET", 3),
            number("LAG", 1),
            number("LAG MS", 1),
            number("TOUCHED", 2),
            number("RESUMED", 4),
            column("FEED", 5),
        ],
        0,
    );
    for source in status["sources"].as_array().into_iter().flatten() {
        table.row(vec![
            source["address"].as_str().unwrap_or_default().to_owned(),
            if none(source) { "-".to_owned() } else { format_count(of(&source["offset"])) },
            match source["lag_bytes"].as_u64() {
                None if none(source) => "-".to_owned(),
                lag => lag.map_or_else(unknown, format_bytes),
            },
            source["lag_ms"].as_u64().map_or_else(unknown, format_count),
            format_count(of(&source["touched"])),
            format_count(of(&source["resumed"])),
            source["feed"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    table.lines(screen).iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_of_a_daemon_shows_its_jobs() {
        let id = |digit: &str| digit.repeat(40);
        let snapshot = json!({"jobs": [
            {"name": "m1", "slots": "0-99", "source": id("a"), "target": id("b"), "state": "snapshotting",
                "message": ""},
            {"name": "m0", "slots": "5", "source": id("a"), "target": id("b"), "state": "failed",
                "message": "why"},
        ]});
        let page = page(&snapshot, None, Screen { width: 120, colour: false });
        assert!(page.contains("2 jobs, of which 1 have not ended") && !page.contains("sync "), "{page}");
        let line = page.lines().find(|line| line.starts_with("m1 ")).expect("a line for it");
        assert!(line.contains("snapshotting") && line.contains(" 100  aaaaaaaa -> bbbbbbbb"), "{page}");
        assert!(page.contains("why"), "{page}");
        assert!(
            super::page(&json!({"jobs": []}), None, Screen { width: 120, colour: false }).contains("0 jobs")
        );
    }

    #[test]
    fn the_page_shows_each_primary() {
        let snapshot = |written: u64| {
            json!({
                "name": "sync-1", "source": "a:1", "target": "b:2",
                "status": {
                    "phase": "following", "suspect_slots": 0, "failures": [],
                    "counts": {"written": written, "bytes_written": 2048, "gone": 3, "retries": 0,
                    "failed": 0, "big_in_flight": 0},
                    "sources": [{"address": "a:1", "feed": "tracking", "offset": 0, "lag_bytes": 0,
                    "lag_ms": 7, "touched": 12, "resumed": 0}],
                },
            })
        };
        let page = page(&snapshot(1_500), Some(&snapshot(1_000)), Screen { width: 80, colour: false });
        assert!(page.contains("sync-1: a:1 -> b:2") && page.contains("1,500 keys"), "{page}");
        assert!(
            page.contains("; 500 keys/s")
                && page.lines().any(|l| l.contains("a:1") && l.ends_with("tracking")),
            "{page}"
        );
    }
}
