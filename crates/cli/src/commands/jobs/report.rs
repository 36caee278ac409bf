//! `whimbrel jobs events` and `jobs report`: what happened to a job, and what came of it.

use std::path::Path;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use whimbrel_control::jobs::Jobs;
use whimbrel_control::reports;
use whimbrel_control::store::{Entry, Event, Status, What};
use whimbrel_core::units::{format_duration_ms, format_time};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_terminal::page::{self, Page};

use crate::exit::Exit;

/// How often it is looked for more events.
const LOOK_PERIOD: std::time::Duration = std::time::Duration::from_millis(500);

/// Prints what happened to a job; with `follow` until it has ended.
pub async fn events(
    jobs: &Jobs,
    entry: &Entry,
    follow: bool,
    as_json: bool,
    stop: &CancellationToken,
) -> Result<Exit> {
    let mut last: Option<Event> = None;
    let mut id = entry.status.id.clone();
    loop {
        // Looked at first: what a process writes last it writes while it still runs the job.
        let runs = jobs.all()?.iter().any(|entry| entry.status.id == id && entry.running);
        let mut events = jobs.store.events(&id);
        if events.is_empty() && last.is_some() {
            // It has ended, and is kept under another name.
            id = format!("{id}-{:x}", entry.status.created_s);
            events = jobs.store.events(&id);
        }
        let seen = last.as_ref().and_then(|last| events.iter().rposition(|event| event == last));
        for event in &events[seen.map_or(0, |seen| seen + 1)..] {
            match as_json {
                true => out!("{}", json!(event)),
                false => out!("{}  {}", format_time(event.at_s), event.what),
            }
        }
        last = events.pop();
        if !follow || !runs {
            return Ok(Exit::Success);
        }
        if stop.run_until_cancelled(tokio::time::sleep(LOOK_PERIOD)).await.is_none() {
            return Ok(Exit::Stopped);
        }
    }
}

/// Prints the document of a job, or writes it to a file as a page.
pub fn report(jobs: &Jobs, status: &Status, html: Option<&Path>) -> Result<()> {
    let document = reports::document(&jobs.store, status, env!("CARGO_PKG_VERSION"));
    match html {
        None => {
            out!("{}", serde_json::to_string_pretty(&document).map_err(|e| Error::own("write a report", e))?)
        }
        Some(file) => std::fs::write(file, page_of(&document))
            .map_err(|e| Error::own(format!("write {}", file.display()), e))?,
    }
    Ok(())
}

/// Finds out whether a file is as `jobs report` has written it.
pub fn check(file: &Path, as_json: bool) -> Result<Exit> {
    let text =
        std::fs::read_to_string(file).map_err(|e| Error::own(format!("read {}", file.display()), e))?;
    let is_page = text.trim_start().starts_with("<!DOCTYPE");
    let document = if is_page { page::document_of(&text) } else { serde_json::from_str(&text).ok() };
    let Some(document) = document else {
        let what = format!("{} is no report of a job", file.display());
        return Err(Error::options(Side::Own, "check a report", what));
    };
    // A page shows more than its document: it is made anew and compared.
    let is_intact = reports::is_intact(&document) && (!is_page || page_of(&document) == text);
    match (is_intact, as_json) {
        (_, true) => {
            out!("{}", json!({"event": "checked", "intact": is_intact, "digest": document["digest"]}))
        }
        (true, false) => out!("{} is unchanged", file.display()),
        (false, false) => out!("{} was changed after it was made", file.display()),
    }
    Ok(if is_intact { Exit::Success } else { Exit::Different })
}

/// A document as a page. Everything on it comes from the document, so that the page can be made again.
fn page_of(document: &Value) -> String {
    let status: Status = serde_json::from_value(document["job"].clone()).unwrap_or_default();
    let events: Vec<Event> = serde_json::from_value(document["events"].clone()).unwrap_or_default();
    let state = if status.phase.is_empty() { "begun" } else { &status.phase };
    let took_ms = status.updated_s.saturating_sub(status.created_s).saturating_mul(1_000);
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut lines = vec![
        ("job", status.label().to_owned()),
        ("from, to", status.between()),
        ("started", format_time(status.created_s)),
        (if status.ended { "ended" } else { "as of" }, format_time(status.updated_s)),
        ("took", format_duration_ms(took_ms)),
        ("whimbrel", text(&document["whimbrel"])),
        ("digest", text(&document["digest"])),
    ];
    if !status.message.is_empty() {
        lines.insert(1, ("message", status.message.clone()));
    }
    let points: Vec<(f64, f64)> = events
        .iter()
        .filter_map(|event| match event.what {
            What::Progress { percent } => Some((event.at_s as f64, percent as f64)),
            _ => None,
        })
        .collect();
    let page = Page {
        title: format!("whimbrel {}: {state}", status.kind.word()),
        lines,
        chart: (points.len() > 1).then(|| ("Share of its keys, over time".to_owned(), points)),
        events: events
            .iter()
            .filter(|event| !matches!(event.what, What::Progress { .. }))
            .map(|event| (format_time(event.at_s), event.what.to_string()))
            .collect(),
    };
    page::of(&page, document, &document["report"])
}
