//! `whimbrel watch`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use whimbrel_control::fleet::FleetStatus;
use whimbrel_control::http;
use whimbrel_core::units::{format_bytes, format_count};
use whimbrel_engine::error::Result;

use crate::commands::sync::desk::Desk;
use crate::commands::sync::exposed::nothing_heard;
use crate::exit::Exit;
use crate::paths::state_dir;
use crate::settings::args::WatchArgs;
use crate::ui::display::plain;
use crate::ui::errors;

/// How often it looks; the sync tells as often how it stands.
const PERIOD: Duration = Duration::from_secs(1);

/// Moves to the top left and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Where it is seen how a sync stands.
enum View {
    /// In the state folder.
    Desk(Desk),
    /// Over HTTP.
    At(String),
}

impl View {
    fn of(args: &WatchArgs) -> Result<View> {
        if let Some(at) = &args.at {
            return Ok(View::At(at.clone()));
        }
        let folder = state_dir(args.state_dir.as_deref())?;
        Desk::find(&folder, args.job.as_deref().unwrap_or_default()).map(View::Desk)
    }

    /// How it stands; `None` where nothing is shown yet.
    async fn card(&self) -> Result<Option<Value>> {
        match self {
            View::Desk(desk) => Ok(desk.card()),
            View::At(at) => Ok(Some(http::status_at(at).await?).filter(Value::is_object)),
        }
    }

    /// Whether the process is known to have ended.
    fn has_ended(&self) -> bool {
        matches!(self, View::Desk(desk) if !desk.is_attended())
    }

    fn name(&self) -> &str {
        match self {
            View::Desk(desk) => desk.name(),
            View::At(at) => at,
        }
    }
}

/// Runs the command.
pub async fn run(args: &WatchArgs, stop: CancellationToken) -> Exit {
    crate::signals::only_looks();
    watch(args, &stop).await.unwrap_or_else(|e| errors::end_of(&e, args.json))
}

async fn watch(args: &WatchArgs, stop: &CancellationToken) -> Result<Exit> {
    let view = View::of(args)?;
    let mut last: Option<Value> = None;
    loop {
        if let Some(card) = view.card().await? {
            if show(args, &card, last.as_ref()).is_err() || args.once {
                // Once is enough, or whoever read it has left.
                return Ok(Exit::Success);
            }
            last = Some(card);
        }
        if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            return Ok(Exit::Success);
        }
        if view.has_ended() {
            if !args.json {
                say!("ended    {} does not run any more", view.name());
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
    write!(out, "{clear}{}", plain(&page(card, last)))?;
    out.flush()
}

fn page(card: &Value, last: Option<&Value>) -> String {
    match serde_json::from_value::<FleetStatus>(card["fleet"].clone()) {
        Ok(fleet) => crate::commands::fleet::page(&fleet),
        Err(_) => page_of_sync(card, last),
    }
}

fn page_of_sync(card: &Value, last: Option<&Value>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let unknown = || "unknown".to_owned();
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
        "sync     {}: {} -> {}\nphase    {}\nwritten  {} keys, {}; {rates}{} removed\n",
        text(&card["name"]),
        text(&card["source"]),
        text(&card["target"]),
        text(&status["phase"]),
        format_count(number(&counts["written"])),
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
    if let Some(trouble) = status["trouble"].as_str() {
        page.push_str(&format!("again    {trouble}\n"));
    }
    if let Some(estimate_ms) = status["pause_estimate_ms"].as_u64() {
        page.push_str(&format!("cutover  would hold writers for about {estimate_ms} ms now\n"));
    }
    page.push_str(&format!(
        "trouble  {} retries, {} keys failed, {} slots in doubt; {} large keys on their way\n\n",
        format_count(number(&counts["retries"])),
        format_count(number(&counts["failed"])),
        format_count(number(&status["doubtful_slots"])),
        format_count(number(&counts["big_in_flight"])),
    ));
    page.push_str(&format!(
        "{:<22} {:>16} {:>10} {:>9} {:>9} {:>8}  FEED\n",
        "PRIMARY", "OFFSET", "LAG", "LAG MS", "TOUCHED", "RESUMED"
    ));
    for source in status["sources"].as_array().into_iter().flatten() {
        page.push_str(&format!(
            "{:<22} {:>16} {:>10} {:>9} {:>9} {:>8}  {}\n",
            text(&source["address"]),
            format_count(number(&source["offset"])),
            source["lag_bytes"].as_u64().map_or_else(unknown, format_bytes),
            source["lag_ms"].as_u64().map_or_else(unknown, format_count),
            format_count(number(&source["touched"])),
            format_count(number(&source["resumed"])),
            text(&source["feed"]),
        ));
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_tells_of_each_primary() {
        let card = |written: u64| {
            json!({
                "name": "sync-1", "source": "a:1", "target": "b:2",
                "status": {
                    "phase": "following", "doubtful_slots": 0, "failures": [],
                    "counts": {"written": written, "bytes_written": 2048, "gone": 3, "retries": 0, "failed": 0, "big_in_flight": 0},
                    "sources": [{"address": "a:1", "feed": "tracking", "offset": 0, "lag_bytes": 0, "lag_ms": 7, "touched": 12, "resumed": 0}],
                },
            })
        };
        let page = page(&card(1_500), Some(&card(1_000)));
        assert!(page.contains("sync-1: a:1 -> b:2") && page.contains("1,500 keys"), "{page}");
        assert!(
            page.contains("; 500 keys/s")
                && page.lines().any(|l| l.contains("a:1") && l.ends_with("tracking")),
            "{page}"
        );
    }
}
