//! `whimbrel cutover`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::{format_count, format_duration_ms};
use whimbrel_engine::error::Result;
use whimbrel_engine::seal::FenceKind;
use whimbrel_flow::sync::Compare;

use crate::commands::sync::desk::{Desk, Reply, Wish};
use crate::exit::Exit;
use crate::paths::state_dir;
use crate::settings::args::{CompareChoice, CutoverArgs, FenceChoice};
use crate::ui::confirm::{Question, confirm};
use crate::ui::errors;

/// How long the running sync may take to answer, besides the pause: moved slots are gone through again before.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// Runs the command.
pub async fn run(args: &CutoverArgs, stop: CancellationToken) -> Exit {
    match ask(args, &stop).await {
        Ok(Asked::Answered(reply, sides)) => show(args, &reply, &sides, stop.is_cancelled()),
        Ok(Asked::NotAgreed(exit)) => exit,
        Err(e) => errors::end_of(&e, args.json),
    }
}

/// Who is who, for people.
struct Sides {
    source: String,
    target: String,
    /// Whether the sync runs on.
    is_attended: bool,
}

/// What came of asking the user, and then the sync.
enum Asked {
    Answered(Reply, Sides),
    NotAgreed(Exit),
}

async fn ask(args: &CutoverArgs, stop: &CancellationToken) -> Result<Asked> {
    let folder = state_dir(args.state_dir.as_deref())?;
    let desk = Desk::find(&folder, args.job.as_deref().unwrap_or_default())?;
    let card = desk.card().unwrap_or_default();
    let side =
        |name: &str| card[name].as_str().map_or(format!("the {name}"), |at| format!("the {name} ({at})"));
    let (source, target) = (side("source"), side("target"));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wish = Wish {
        id: format!("{}-{}", std::process::id(), since.as_nanos()),
        pid: std::process::id(),
        max_pause_ms: args.max_pause,
        fence: match args.fence {
            None | Some(FenceChoice::None) => FenceKind::None,
            Some(FenceChoice::Pause) => FenceKind::Pause { limit_ms: args.fence_for },
            Some(FenceChoice::Acl) => FenceKind::Acl,
            Some(FenceChoice::ReadonlyReplica) => FenceKind::ReadonlyReplica,
        },
        compare: match args.compare {
            CompareChoice::None => Compare::None,
            CompareChoice::Counts => Compare::Counts,
            CompareChoice::Sample => Compare::Sample,
            CompareChoice::Full => Compare::Full,
        },
        reverse: args.reverse_sync,
        back: args.back,
        accept_failures: args.accept_failures,
        dry_run: args.dry_run,
    };
    if !args.json {
        eprintln!("sync     {}", desk.name());
    }
    let question = question(args, &source, &target);
    let decision = confirm(&question, args.ask.yes || args.dry_run, false, args.json, stop).await?;
    if let Some(exit) = decision.end(Exit::Success) {
        return Ok(Asked::NotAgreed(exit));
    }
    let answer = desk.ask(&wish, ANSWER_WITHIN + Duration::from_millis(args.max_pause));
    tokio::pin!(answer);
    let reply = tokio::select! {
        reply = &mut answer => reply,
        () = stop.cancelled() => {
            // Writers may be held already; then it is too late, and what came of it has to be known.
            desk.withdraw(&wish)?;
            answer.await
        }
    }?;
    Ok(Asked::Answered(reply, Sides { source, target, is_attended: desk.is_attended() }))
}

fn question(args: &CutoverArgs, source: &str, target: &str) -> Question {
    let hold = format!("Pause the writers of {source} for at most {}", format_duration_ms(args.max_pause));
    Question::new(match (args.back, args.fence) {
        (true, _) => format!("{hold}, and have {target} take over again?"),
        (false, None | Some(FenceChoice::None)) => format!("{hold}, and let them go on there?"),
        (false, Some(_)) => format!("{hold}, and have {target} take over?"),
    })
}

fn show(args: &CutoverArgs, reply: &Reply, sides: &Sides, withdrawn: bool) -> Exit {
    let exit = match reply.exit {
        4 if withdrawn => Exit::Stopped,
        0 => Exit::Success,
        4 => Exit::Refused,
        7 => Exit::Interrupted,
        _ => Exit::Internal,
    };
    if args.json {
        say!(
            "{}",
            json!({"event": "cutover", "report": reply.report, "error": reply.error, "exit": exit as u8})
        );
        return exit;
    }
    match (&reply.report, &reply.error) {
        (Some(report), _) => {
            let number = |name: &str| report[name].as_u64().unwrap_or(0);
            if withdrawn {
                say!("too late to withdraw it: writers were held already");
            }
            for notice in report["notices"].as_array().into_iter().flatten() {
                say!("note     {}", notice.as_str().unwrap_or_default());
            }
            say!("estimate writers held for about {} ms", number("estimate_ms"));
            if args.dry_run {
                say!("{}", compared(report));
                say!("dry run: nobody was held, and nothing was changed");
                return exit;
            }
            say!("writers  held for {} ms", number("pause_ms"));
            say!("drained  {} keys under the pause", format_count(number("drained")));
            say!("{}", compared(report));
            say!("{}", fenced(args, sides));
            if number("ended") > 0 {
                let clients = if number("ended") == 1 { "client" } else { "clients" };
                say!(
                    "ended    {} {clients} of the source that waited in a command or were in a transaction",
                    format_count(number("ended"))
                );
            }
            if args.reverse_sync {
                let (from, to) = (&sides.target, &sides.source);
                say!("way back {from} is followed back into {to}");
                say!("         whimbrel cutover --fence acl --back returns to it");
            }
            if args.back {
                say!("back     writers are let in again where they came from");
            }
        }
        (None, error) => {
            eprintln!("error: {}", error.as_deref().unwrap_or("the sync gave no reason"));
            if sides.is_attended {
                eprintln!("         no writer is held, and the sync goes on as before");
            }
        }
    }
    exit
}

/// How much was compared, and what that is worth.
fn compared(report: &serde_json::Value) -> String {
    let number = |name: &str| format_count(report[name].as_u64().unwrap_or(0));
    match report["finds_one_percent"].as_f64() {
        Some(chance) => format!(
            "compared {} of {} keys in full: such a sample finds a difference in 1 % of the keys with {:.0} % probability",
            number("compared"),
            number("keys"),
            chance * 100.0
        ),
        None => format!("compared {} keys in full", number("compared")),
    }
}

fn fenced(args: &CutoverArgs, Sides { source, target, .. }: &Sides) -> String {
    match args.fence {
        Some(FenceChoice::Pause) => {
            let seconds = args.fence_for / 1000;
            format!("cut over writers of {source} stay paused for {seconds} s: send clients to {target} now")
        }
        Some(FenceChoice::Acl) => {
            format!("cut over users of {source} may not write any more: send clients to {target}")
        }
        Some(FenceChoice::ReadonlyReplica) => {
            format!("cut over {source} is a replica of nobody and refuses writes: send clients to {target}")
        }
        Some(FenceChoice::None) | None => {
            "equal    writers were let go again; the sync goes on following them until you stop it".to_owned()
        }
    }
}
