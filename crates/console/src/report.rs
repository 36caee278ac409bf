//! The report of a job as one page that needs nothing else, to hand on.

use std::path::Path;

use serde_json::Value;
use whimbrel_control::reports;
use whimbrel_control::store::{Event, Status, What};
use whimbrel_core::units::{format_duration_ms, format_time};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_terminal::page::{self, Page};

/// A document as a page. Everything on it comes from the document, so that the page can be made again.
pub fn page_of(document: &Value) -> String {
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
        ("took", if took_ms == 0 { "less than 1 s".to_owned() } else { format_duration_ms(took_ms) }),
        ("whimbrel", text(&document["whimbrel"])),
        ("digest", text(&document["digest"])),
    ];
    if let Some(by) = &status.origin.begun_by {
        lines.insert(2, ("begun by", by.clone()));
    }
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

/// Whether a report in a file, as a page or as JSON, is as it was made; and the digest that it names.
///
/// # Errors
/// `Own` where the file cannot be read; `Options` where it is no report.
pub fn check(file: &Path) -> Result<(bool, Value)> {
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
    Ok((is_intact, document["digest"].clone()))
}
