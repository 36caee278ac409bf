//! `whimbrel cutover`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::format_count;
use whimbrel_engine::error::Result;
use whimbrel_engine::seal::FenceKind;
use whimbrel_flow::sync::Compare;

use super::desk::{Desk, Reply, Wish};
use crate::args::{CompareChoice, CutoverArgs, FenceChoice};
use crate::copying::state_dir;
use crate::exit::Exit;

/// How long the running sync may take to answer, besides the pause: moved slots are gone through again before.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// Runs the command.
pub async fn run(args: &CutoverArgs, stop: CancellationToken) -> Exit {
    let asked = tokio::select! {
        asked = ask(args) => asked,
        () = stop.cancelled() => {
            eprintln!("withdrawn: unless writers were held already, nothing was done; `whimbrel watch` shows how it stands");
            return Exit::Stopped;
        }
    };
    match asked {
        Ok(reply) => show(args, &reply),
        Err(e) => crate::end_of(&e, args.json),
    }
}

async fn ask(args: &CutoverArgs) -> Result<Reply> {
    let folder = state_dir(args.state_dir.as_deref())?;
    let desk = Desk::find(&folder, args.job.as_deref().unwrap_or_default())?;
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
    desk.ask(&wish, ANSWER_WITHIN + Duration::from_millis(args.max_pause)).await
}

fn show(args: &CutoverArgs, reply: &Reply) -> Exit {
    let exit = match reply.exit {
        0 => Exit::Success,
        4 => Exit::Refused,
        7 => Exit::Interrupted,
        _ => Exit::Internal,
    };
    if args.json {
        println!(
            "{}",
            json!({"event": "cutover", "report": reply.report, "error": reply.error, "exit": exit as u8})
        );
        return exit;
    }
    match (&reply.report, &reply.error) {
        (Some(report), _) => {
            let number = |name: &str| report[name].as_u64().unwrap_or(0);
            println!("estimate writers held for about {} ms", number("estimate_ms"));
            if args.dry_run {
                println!("dry run: nobody was held, and nothing was changed");
                return exit;
            }
            println!("writers  held for {} ms", number("pause_ms"));
            println!("drained  {} keys under the pause", format_count(number("drained")));
            println!("compared {} keys in full", format_count(number("compared")));
            println!("{}", fenced(args));
            if args.reverse_sync {
                println!(
                    "way back the target is followed back into the source; whimbrel cutover --back returns to it"
                );
            }
            if args.back {
                println!("back     writers are let in again where they came from");
            }
        }
        (None, error) => {
            eprintln!("error: {}", error.as_deref().unwrap_or("the sync gave no reason"));
            eprintln!("         no writer is held, and the sync goes on as before");
        }
    }
    exit
}

fn fenced(args: &CutoverArgs) -> String {
    match args.fence {
        Some(FenceChoice::Pause) => format!(
            "cut over writers of the source stay paused for {} s: send clients to the target now",
            args.fence_for / 1000
        ),
        Some(FenceChoice::Acl) => {
            "cut over users of the source may not write any more: send clients to the target".to_owned()
        }
        Some(FenceChoice::ReadonlyReplica) => {
            "cut over the source is a replica of nobody and refuses writes: send clients to the target"
                .to_owned()
        }
        Some(FenceChoice::None) | None => {
            "equal    writers were let go again; the sync goes on following them until you stop it".to_owned()
        }
    }
}
