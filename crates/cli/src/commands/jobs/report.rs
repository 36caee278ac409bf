//! `whimbrel jobs events` and `jobs report`: what happened to a job, and what came of it.

use std::path::Path;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_console::report;
use whimbrel_control::jobs::Jobs;
use whimbrel_control::reports;
use whimbrel_control::store::{Entry, Status};
use whimbrel_core::units::format_time;
use whimbrel_engine::error::{Error, Result};

use crate::exit::Exit;

/// Prints what happened to a job; with `follow` until it has ended.
pub async fn events(
    jobs: &Jobs,
    entry: &Entry,
    follow: bool,
    as_json: bool,
    stop: &CancellationToken,
) -> Result<Exit> {
    let ended = jobs.follow(entry, follow, stop, |event| match as_json {
        true => out!("{}", json!(event)),
        false => out!("{}  {}", format_time(event.at_s), event.what),
    });
    Ok(if ended.await? { Exit::Success } else { Exit::Stopped })
}

/// Prints the document of a job, or writes it to a file as a page.
pub fn report(jobs: &Jobs, status: &Status, html: Option<&Path>) -> Result<()> {
    let document = reports::document(&jobs.store, status, env!("CARGO_PKG_VERSION"));
    match html {
        None => {
            out!("{}", serde_json::to_string_pretty(&document).map_err(|e| Error::own("write a report", e))?)
        }
        Some(file) => std::fs::write(file, report::page_of(&document))
            .map_err(|e| Error::own(format!("write {}", file.display()), e))?,
    }
    Ok(())
}

/// Finds out whether a file is as `jobs report` has written it.
pub fn check(file: &Path, as_json: bool) -> Result<Exit> {
    let (is_intact, digest) = report::check(file)?;
    match (is_intact, as_json) {
        (_, true) => out!("{}", json!({"event": "checked", "intact": is_intact, "digest": digest})),
        (true, false) => out!("{} is unchanged", file.display()),
        (false, false) => out!("{} was changed after it was made", file.display()),
    }
    Ok(if is_intact { Exit::Success } else { Exit::Different })
}
