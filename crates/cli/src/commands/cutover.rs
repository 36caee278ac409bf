//! `whimbrel cutover`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use whimbrel_core::units::{format_count, format_count_of, format_duration_ms};
use whimbrel_engine::error::Result;
use whimbrel_engine::seal::FenceKind;
use whimbrel_flow::sync::Compare;

use crate::commands::sync::control_file::{ControlFile, CutoverRequest, Reply};
use crate::exit::Exit;
use crate::paths::state_dir;
use crate::settings::args::{CompareChoice, CutoverArgs, FenceChoice};
use crate::ui::confirm::{Question, confirm};
use crate::ui::errors;

/// How long the running sync may take to answer, besides the pause: moved slots are gone through again
/// before.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// How long it may take where all keys are compared, besides the wait. A process that hangs is noticed long
/// before.
const COMPARED_WITHIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often it is looked how far the cutover is, and how often that is said at least.
const LOOK_PERIOD: Duration = Duration::from_millis(200);
const SAID_EVERY: Duration = Duration::from_secs(5);

/// Clients that are named in one line.
const CLIENTS_SHOWN: usize = 5;

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
    let control_file = ControlFile::find(&folder, args.job.as_deref().unwrap_or_default())?;
    let card = control_file.card().unwrap_or_default();
    let side =
        |name: &str| card[name].as_str().map_or(format!("the {name}"), |at| format!("the {name} ({at})"));
    let (source, target) = (side("source"), side("target"));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wish = CutoverRequest {
        id: format!("{}-{}", std::process::id(), since.as_nanos()),
        pid: std::process::id(),
        max_pause_ms: args.max_pause,
        fence: match args.fence {
            None | Some(FenceChoice::None) => FenceKind::None,
            Some(FenceChoice::Pause) => FenceKind::Pause { limit_ms: args.fence_for },
            Some(FenceChoice::Acl) => FenceKind::Acl,
            Some(FenceChoice::ReadonlyReplica) => FenceKind::ReadonlyReplica,
            Some(FenceChoice::External) => {
                FenceKind::External { quiet_ms: args.quiet_for, wait_ms: args.wait_for_quiet }
            }
        },
        compare: match args.compare {
            Some(CompareChoice::None) => Compare::None,
            Some(CompareChoice::Counts) => Compare::Counts,
            Some(CompareChoice::Sample) => Compare::Sample,
            Some(CompareChoice::Full) => Compare::Full,
            None if is_external(args) => Compare::Full,
            None => Compare::Sample,
        },
        reverse: args.reverse_sync,
        back: args.back,
        accept_failures: args.accept_failures,
        dry_run: args.dry_run,
    };
    if !args.json {
        eprintln!("sync     {}", control_file.name());
    }
    let question = question(args, &source, &target);
    let decision = confirm(&question, args.ask.yes || args.dry_run, false, args.json, stop).await?;
    if let Some(exit) = decision.end(Exit::Success) {
        return Ok(Asked::NotAgreed(exit));
    }
    let within = match is_external(args) {
        true => COMPARED_WITHIN + Duration::from_millis(args.wait_for_quiet),
        false => ANSWER_WITHIN + Duration::from_millis(args.max_pause),
    };
    let answer = control_file.ask(&wish, within);
    let signals = async {
        match is_external(args) && !args.dry_run {
            true => signal(args, &control_file, &source).await,
            false => std::future::pending().await,
        }
    };
    tokio::pin!(answer);
    let reply = tokio::select! {
        reply = &mut answer => reply,
        never = signals => match never {},
        () = stop.cancelled() => {
            // Writers may be held already; then it is too late, and what came of it has to be known.
            control_file.withdraw(&wish)?;
            answer.await
        }
    }?;
    Ok(Asked::Answered(reply, Sides { source, target, is_attended: control_file.is_attended() }))
}

/// Says when the writers may be stopped, and how far it is, for as long as it is asked.
async fn signal(args: &CutoverArgs, control_file: &ControlFile, source: &str) -> std::convert::Infallible {
    let (mut before, mut said) = (None, Instant::now());
    loop {
        sleep(LOOK_PERIOD).await;
        let card = control_file.card().unwrap_or_default();
        let external = &card["status"]["external"];
        let Some(stage) = external["stage"].as_str().map(str::to_owned) else { continue };
        let is_new = before.as_ref() != Some(&stage);
        if !is_new && said.elapsed() < SAID_EVERY {
            continue;
        }
        said = Instant::now();
        let is_again = before.is_some();
        before = Some(stage.clone());
        if args.json {
            say!("{}", json!({"event": stage, "external": external}));
            continue;
        }
        let times = ["quiet_ms", "wanted_ms"].map(|n| format_duration_ms(external[n].as_u64().unwrap_or(0)));
        match (stage.as_str(), is_new, is_again) {
            ("waiting", true, false) => say!("ready    stop the writers of {source} now"),
            ("waiting", true, true) => say!("again    somebody wrote during the comparison"),
            ("waiting", false, _) => {
                say!("waiting  nobody has written for {} of {}{}", times[0], times[1], last(external));
            }
            (_, true, _) => say!("quiet    nobody writes any more: comparing"),
            _ => {}
        }
    }
}

/// Who wrote last and which keys, as far as it is known.
fn last(external: &serde_json::Value) -> String {
    let clients: Vec<String> =
        external["clients"].as_array().into_iter().flatten().take(CLIENTS_SHOWN).map(client).collect();
    let keys = external["keys"].as_array().into_iter().flatten().filter_map(|key| key.as_str());
    let keys: Vec<&str> = keys.collect();
    let mut text = String::new();
    if !clients.is_empty() {
        text.push_str(&format!("; last by {}", clients.join(", ")));
    }
    if !keys.is_empty() {
        text.push_str(&format!("; keys {}", keys.join(", ")));
    }
    text
}

fn client(client: &serde_json::Value) -> String {
    let field = |name: &str| client[name].as_str().unwrap_or_default();
    let mut text = format!("{} ({}", field("address"), field("command"));
    for name in ["name", "user"].into_iter().filter(|name| !field(name).is_empty()) {
        text.push_str(&format!(", {name} {}", field(name)));
    }
    text + ")"
}

fn is_external(args: &CutoverArgs) -> bool {
    args.fence == Some(FenceChoice::External)
}

fn question(args: &CutoverArgs, source: &str, target: &str) -> Question {
    let hold = format!("Pause the writers of {source} for at most {}", format_duration_ms(args.max_pause));
    if is_external(args) {
        return Question::new(format!(
            "Have {target} take over when you have stopped the writers of {source}? You are told when to \
                stop them."
        ));
    }
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
                say!("too late to withdraw it: writes were paused already");
            }
            for notice in report["notices"].as_array().into_iter().flatten() {
                say!("note     {}", notice.as_str().unwrap_or_default());
            }
            if is_external(args) {
                return show_external(args, report, sides, exit);
            }
            say!("estimate writes paused for about {} ms", number("estimate_ms"));
            if args.dry_run {
                say!("{}", compared(report));
                say!("dry run: no write was paused, and nothing was changed");
                return exit;
            }
            say!("writes   paused for {} ms", number("pause_ms"));
            say!("drained  {} under the pause", format_count_of(number("drained"), "key"));
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
                eprintln!("         writes are not paused, and the sync goes on as before");
            }
        }
    }
    exit
}

/// The report of a cutover whose writers somebody else stops.
fn show_external(args: &CutoverArgs, report: &serde_json::Value, sides: &Sides, exit: Exit) -> Exit {
    let number = |name: &str| report[name].as_u64().unwrap_or(0);
    let external = &report["external"];
    let stopped = number("estimate_ms") + args.quiet_for;
    say!("{}", compared(report));
    if args.dry_run {
        say!("estimate writers have to be stopped for about {}", format_duration_ms(stopped));
        let who = last(external);
        let who = if who.is_empty() { "; nobody has written for a second" } else { who.as_str() };
        say!("writers  you stop them when the cutover says so{who}");
        say!("dry run: nobody was held, and nothing was changed");
        return exit;
    }
    let waited = external["waited_ms"].as_u64().unwrap_or(0);
    say!("waited   {} until nobody wrote{}", format_duration_ms(waited), last(external));
    say!("drained  {} keys", format_count(number("drained")));
    say!("quiet    for {} when the target took over", format_duration_ms(number("pause_ms")));
    say!("{}", fenced(args, sides));
    if args.back {
        say!("back     writers are let in again where they came from");
    }
    exit
}

/// How much was compared, and what that is worth.
fn compared(report: &serde_json::Value) -> String {
    let number = |name: &str| format_count(report[name].as_u64().unwrap_or(0));
    match report["finds_one_percent"].as_f64() {
        Some(chance) => format!(
            "compared {} of {} keys in full: such a sample finds a difference in 1 % of the keys with {:.0} \
                % probability",
            number("compared"),
            number("keys"),
            chance * 100.0
        ),
        None => {
            format!("compared {} in full", format_count_of(report["compared"].as_u64().unwrap_or(0), "key"))
        }
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
        Some(FenceChoice::External) => {
            format!("cut over send clients to {target}, and keep them away from {source}: nothing else does")
        }
        Some(FenceChoice::None) | None => {
            "equal    writers were let go again; the sync goes on following them until you stop it".to_owned()
        }
    }
}
