//! `whimbrel front start`, `status`, `pause`, `resume`, `reverse` and `finish`.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use whimbrel_control::fronts::ask;
use whimbrel_control::steering::{Answer, Request};
use whimbrel_core::units::{format_bytes, format_count, format_count_of};
use whimbrel_engine::error::Result;

use crate::exit::Exit;
use crate::settings::args::{Beforehand, FrontAt, FrontCommand};
use crate::ui::confirm::confirm;
use crate::ui::errors;
use whimbrel_control::private::state_dir;

/// Asks the front that runs, and shows what it answers.
pub async fn run(command: &FrontCommand, stop: &CancellationToken) -> Exit {
    let (at, change, question) = match command {
        FrontCommand::Start(change) => (&change.at, Some(change), Request::Start),
        FrontCommand::Status(at) => (at, None, Request::Status),
        FrontCommand::Pause(at) => (at, None, Request::Pause),
        FrontCommand::Resume(at) => (at, None, Request::Resume),
        FrontCommand::Reverse(change) => (&change.at, Some(change), Request::Reverse),
        FrontCommand::Finish(change) => (&change.at, Some(change), Request::Finish),
    };
    let question = match change {
        Some(change) if change.dry_run => Request::Rehearse(Box::new(question)),
        _ => question,
    };
    let outcome = async {
        if let Some(change) = change.filter(|change| !change.ask.yes && !change.dry_run)
            && let Some(exit) = agree(at, &question, change.ask, stop).await?
        {
            return Ok(exit);
        }
        Ok(show(at, &question, &asked(at, question.clone()).await?))
    };
    outcome.await.unwrap_or_else(|e| errors::end_of(&e, at.json))
}

/// Asks the user, with what the front says about itself; returns the exit code if the user does not agree.
async fn agree(
    at: &FrontAt,
    question: &Request,
    ask: Beforehand,
    stop: &CancellationToken,
) -> Result<Option<Exit>> {
    let answer = asked(at, Request::Status).await?;
    let status = answer.standing.map(|standing| standing.details).unwrap_or_default();
    let (from, to, _) = way(&status);
    let text = match question {
        Request::Reverse => format!("Have the keys move the other way, from {to} to {from}?"),
        Request::Finish => {
            let clients = format_count_of(status["clients"].as_u64().unwrap_or(0), "client");
            format!(
                "End the front from {from} to {to}? It disconnects {clients}, which have to find {to} \
                    themselves."
            )
        }
        _ => format!("Move the keys of {from} to {to}?"),
    };
    let question = whimbrel_terminal::question::Question::new(text);
    Ok(confirm(&question, ask.yes, false, at.json, stop).await?.end(Exit::Success))
}

/// What a change would do that is only rehearsed; `keys` would move.
fn show_rehearsed(change: &Request, status: &Value, keys: &Value) {
    let (from, to, _) = way(status);
    let keys = format_count_of(keys.as_u64().unwrap_or(0), "key");
    match change {
        Request::Reverse => out!("plan     {keys} would move from {to} to {from}"),
        Request::Finish => {
            let clients = format_count_of(status["clients"].as_u64().unwrap_or(0), "client");
            out!("plan     the front would end and disconnect {clients}, which have to find {to} themselves");
        }
        _ => out!("plan     {keys} would move from {from} to {to}"),
    }
    out!("dry run: nothing was changed");
}

async fn asked(at: &FrontAt, question: Request) -> Result<Answer> {
    ask(&state_dir(at.state_dir.as_deref())?, at.front, question).await
}

fn show(at: &FrontAt, question: &Request, answer: &Answer) -> Exit {
    let exit = answer.outcome.as_ref().err().map_or(Exit::Success, Exit::from);
    let status = answer.standing.as_ref().map(|standing| &standing.details);
    let error = answer.outcome.as_ref().err().map(|refusal| &refusal.text);
    if at.json {
        let line = json!({
            "event": "front", "asked": question, "status": status, "error": error, "exit": exit as u8,
        });
        out!("{line}");
        return exit;
    }
    if let Some(error) = error {
        eprintln!("error: {error}");
        return exit;
    }
    let status = status.unwrap_or(&Value::Null);
    match question {
        Request::Finish => {
            let (_, to, _) = way(status);
            out!("finished the front has ended; clients go to {to} themselves");
        }
        Request::Rehearse(change) => {
            show_rehearsed(change, status, answer.outcome.as_ref().unwrap_or(&Value::Null));
        }
        _ => show_status(status),
    }
    exit
}

/// Which server keys move from, which they move to, and what to say about that.
fn way(status: &Value) -> (String, String, String) {
    let text = |name: &str| status[name].as_str().unwrap_or("?").to_owned();
    let (source, target) = (text("source"), text("target"));
    let note = match status["reversals"].as_u64() {
        None | Some(0) => String::new(),
        Some(1) => " (reversed once)".to_owned(),
        Some(reversals) => format!(" (reversed {reversals} times)"),
    };
    match status["direction"].as_str() {
        Some("to-source") => (target, source, note),
        _ => (source, target, note),
    }
}

/// What the filter of moved keys takes, and how often it is wrong: both mean nothing before it holds some.
fn filter(moving: &Value) -> String {
    let bytes = format_bytes(moving["filter_bytes"].as_u64().unwrap_or(0));
    if moving["moved"].as_u64().unwrap_or(0) == 0 {
        return format!("{bytes}, no key has moved yet");
    }
    let bits = moving["filter_bits_per_key"].as_f64();
    let bits = bits.map_or_else(String::new, |bits| format!(", {bits:.1} bits a key"));
    let wrong = moving["filter_false_positives"].as_f64();
    let wrong = wrong.map_or_else(String::new, |share| {
        format!(", {:.3} % false positives, which cost a look at the other server", share * 100.0)
    });
    format!("{bytes}{bits}{wrong}")
}

fn show_status(status: &Value) {
    let text = |name: &str| status[name].as_str().unwrap_or("?").to_owned();
    let (from, to, note) = way(status);
    let back = if status["direction"] == "to-source" { "back " } else { "" };
    out!("phase    {}: {from} {back}to {to}{note}", text("phase"));
    match status["held_ms"].as_u64() {
        None => out!("clients  {}", status["clients"]),
        Some(held_ms) => {
            out!("clients  {}, held for a cutover for {held_ms} ms so far", status["clients"]);
        }
    }
    let moving = &status["moving"];
    if moving.is_null() {
        return;
    }
    let count = |name: &str| moving[name].as_u64().map_or_else(|| "?".to_owned(), format_count);
    let note = match (moving["rebuilding"].as_bool(), moving["paused"].as_bool()) {
        (Some(true), _) => "; the filter is made anew, every command moves its keys first",
        (_, Some(true)) => "; paused but for the keys that commands need",
        _ => "",
    };
    out!(
        "keys     {} moved, {} left, {} cannot be moved{note}",
        count("moved"),
        count("left"),
        count("staying")
    );
    out!(
        "commands {} to {from}, {} to {to}, {} after a move; {} wait, {} gave up",
        count("forwarded"),
        count("direct"),
        count("pulled"),
        count("waiting"),
        count("given_up"),
    );
    let slots = &moving["slots"];
    if !slots.is_null() {
        let count = |name: &str| slots[name].as_u64().map_or_else(|| "?".to_owned(), format_count);
        out!("slots    {} done, {} moving, {} not begun", count("done"), count("moving"), count("not_begun"));
    }
    out!("filter   {}", filter(moving));
    if let Some(trouble) = moving["trouble"].as_str() {
        out!("trouble  {trouble}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_a_filter_without_keys() {
        let of = |moved: u64| {
            json!({"moved": moved, "filter_bytes": 75_008, "filter_bits_per_key": 12.04,
            "filter_false_positives": 0.001})
        };
        assert_eq!(filter(&of(0)), "73.3 KiB, no key has moved yet");
        assert_eq!(
            filter(&of(50_000)),
            "73.3 KiB, 12.0 bits a key, 0.100 % false positives, which cost a look at the other server"
        );
    }
}
