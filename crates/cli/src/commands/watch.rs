//! `whimbrel watch`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use whimbrel_control::fleet::FleetStatus;
use whimbrel_control::steering::View;
use whimbrel_control::syncing::nothing_heard;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{format_bytes, format_count, format_count_of};
use whimbrel_engine::error::{Error, Result};
use whimbrel_flow::journal::disk_full_words;

use crate::exit::Exit;
use crate::settings::args::WatchArgs;
use crate::ui::errors;
use whimbrel_control::private::state_dir;
use whimbrel_terminal::plain::plain;
use whimbrel_terminal::print::for_stdout;
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text as column};

/// How often it looks; the sync tells as often how it stands.
const PERIOD: Duration = Duration::from_secs(1);

/// Moves to the top left and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Where it is seen how the process stands.
fn view_of(args: &WatchArgs) -> Result<View> {
    match &args.at {
        Some(at) => Ok(View::At(at.clone())),
        None => {
            View::of_sync(&state_dir(args.state_dir.as_deref())?, args.job.as_deref().unwrap_or_default())
        }
    }
}

/// Runs the command.
pub async fn run(args: &WatchArgs, stop: CancellationToken) -> Exit {
    crate::signals::only_looks();
    watch(args, &stop).await.unwrap_or_else(|e| errors::end_of(&e, args.json))
}

async fn watch(args: &WatchArgs, stop: &CancellationToken) -> Result<Exit> {
    let view = view_of(args)?;
    let mut last: Option<Value> = None;
    loop {
        if let Some(card) = view.card().await? {
            if show(args, &card, last.as_ref()).is_err() || args.once {
                // Once is enough, or its reader has left.
                return Ok(Exit::Success);
            }
            last = Some(card);
        } else if args.once && !view.has_ended() {
            let what = format!("{} is stopped or hangs: it does not answer", view.name());
            return Err(Error::own("watch the sync", what).with_remedy(
                "see what the process does that runs it: SIGCONT has one go on that was stopped",
            ));
        }
        if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            return Ok(Exit::Success);
        }
        if view.has_ended() {
            if !args.json {
                out!("ended    {} does not run any more", view.name());
            }
            return Ok(Exit::Success);
        }
    }
}

fn show(args: &WatchArgs, card: &Value, last: Option<&Value>) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    if args.json {
        return writeln!(out, "{}", plain(&card.to_string()));
    }
    let clear = if !args.once && out.is_terminal() { CLEAR } else { "" };
    write!(out, "{clear}{}", for_stdout(&page(card, last, Screen::of_stdout())))?;
    out.flush()
}

fn page(card: &Value, last: Option<&Value>, screen: Screen) -> String {
    let fleet = serde_json::from_value::<FleetStatus>(card["fleet"].clone()).ok();
    let fleet = fleet.map(|fleet| crate::commands::fleet::page(&fleet, screen));
    match (fleet, card["jobs"].as_array()) {
        // A coordinator alone lists no jobs.
        (Some(fleet), None) => fleet,
        (Some(fleet), Some(jobs)) if jobs.is_empty() => fleet,
        (Some(fleet), Some(jobs)) => format!("{fleet}\n{}", page_of_jobs(jobs, screen)),
        (None, Some(jobs)) => page_of_jobs(jobs, screen),
        (None, None) => page_of_sync(card, last, screen),
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

fn page_of_sync(card: &Value, last: Option<&Value>, screen: Screen) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let status = &card["status"];
    let counts = &status["counts"];
    let since = |last: &Value, name: &str| {
        number(&counts[name]).saturating_sub(number(&last["status"]["counts"][name]))
    };
    let rates = last.map_or_else(String::new, |last| {
        let (keys, bytes) = (since(last, "written"), since(last, "bytes_written"));
        format!("{} keys/s, {}/s; ", format_count(keys), format_bytes(bytes))
    });
    let mut page = format!(
        "sync     {}: {} -> {}\nphase    {}\nwritten  {}, {}; {rates}{} removed\n",
        text(&card["name"]),
        text(&card["source"]),
        text(&card["target"]),
        text(&status["phase"]),
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
            let silence = (side, &*text(&server["address"]), number(&server["silent_ms"]));
            page.push_str(&format!("SILENT   {}\n", nothing_heard(silence)));
        }
    }
    if let Some(full_ms) = status["disk_full_ms"].as_u64() {
        page.push_str(&format!("DISK     {}\n", disk_full_words(full_ms)));
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
        format_count_of(number(&status["doubtful_slots"]), "slot"),
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

/// A row for each primary of the source.
fn sources(status: &Value, screen: Screen) -> String {
    let of = |value: &Value| value.as_u64().unwrap_or(0);
    let unknown = || "unknown".to_owned();
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
            format_count(of(&source["offset"])),
            source["lag_bytes"].as_u64().map_or_else(unknown, format_bytes),
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
    fn the_page_of_a_daemon_tells_of_its_jobs() {
        let id = |digit: &str| digit.repeat(40);
        let card = json!({"jobs": [
            {"name": "m1", "slots": "0-99", "source": id("a"), "target": id("b"), "state": "snapshotting",
                "message": ""},
            {"name": "m0", "slots": "5", "source": id("a"), "target": id("b"), "state": "failed",
                "message": "why"},
        ]});
        let page = page(&card, None, Screen { width: 120, colour: false });
        assert!(page.contains("2 jobs, of which 1 have not ended") && !page.contains("sync "), "{page}");
        let line = page.lines().find(|line| line.starts_with("m1 ")).expect("a line for it");
        assert!(line.contains("snapshotting") && line.contains(" 100  aaaaaaaa -> bbbbbbbb"), "{page}");
        assert!(page.contains("why"), "{page}");
        assert!(
            super::page(&json!({"jobs": []}), None, Screen { width: 120, colour: false }).contains("0 jobs")
        );
    }

    #[test]
    fn the_page_tells_of_each_primary() {
        let card = |written: u64| {
            json!({
                "name": "sync-1", "source": "a:1", "target": "b:2",
                "status": {
                    "phase": "following", "doubtful_slots": 0, "failures": [],
                    "counts": {"written": written, "bytes_written": 2048, "gone": 3, "retries": 0,
                    "failed": 0, "big_in_flight": 0},
                    "sources": [{"address": "a:1", "feed": "tracking", "offset": 0, "lag_bytes": 0,
                    "lag_ms": 7, "touched": 12, "resumed": 0}],
                },
            })
        };
        let page = page(&card(1_500), Some(&card(1_000)), Screen { width: 80, colour: false });
        assert!(page.contains("sync-1: a:1 -> b:2") && page.contains("1,500 keys"), "{page}");
        assert!(
            page.contains("; 500 keys/s")
                && page.lines().any(|l| l.contains("a:1") && l.ends_with("tracking")),
            "{page}"
        );
    }
}
