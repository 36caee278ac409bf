//! `whimbrel cutover`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::cutovers::{compared, failed_hooks, last, rehearsal};
use whimbrel_control::fronts;
use whimbrel_control::steering::{Answer, Call, Request, Scheduled, Standing};
use whimbrel_control::store::{Status, Store};
use whimbrel_control::{private::state_dir, service};
use whimbrel_core::units::{format_count, format_count_of, format_duration_ms};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::seal::WriterFenceKind;
use whimbrel_flow::sync::{Compare, CutoverOptions};

use crate::commands::words;
use crate::exit::Exit;
use crate::settings::args::{CompareChoice, CutoverArgs, FenceChoice};
use crate::ui::confirm::confirm;
use crate::ui::errors;
use whimbrel_terminal::question::Question;

/// How long the running sync may take to answer, besides the pause: moved slots are gone through again
/// before, and hooks are run. A process that hangs is noticed long before.
const ANSWER_WITHIN: Duration = Duration::from_secs(2 * 3600);

/// How long it may take if all keys are compared, besides the wait. A process that hangs is noticed long
/// before.
const COMPARED_WITHIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often, at least, the progress of the cutover is shown.
const PRINT_PERIOD: Duration = Duration::from_secs(5);

/// Runs the command.
pub async fn run(args: &CutoverArgs, stop: CancellationToken) -> Exit {
    match ask(args, &stop).await {
        Ok(Asked::Answered(answer, sides)) => {
            let exit = show(args, &answer, &sides, stop.is_cancelled());
            if let (Ok(report), false) = (&answer.outcome, args.json) {
                show_hooks(report);
            }
            exit
        }
        Ok(Asked::Over(exit)) => exit,
        Err(e) => errors::end_of(&e, args.json),
    }
}

/// Which deployment is which, for people.
struct Endpoints {
    source: String,
    target: String,
    /// Whether the sync runs on.
    runs_on: bool,
}

/// What came of asking the user, and then the sync.
enum Asked {
    Answered(Box<Answer>, Endpoints),
    /// Nothing is done now.
    Over(Exit),
}

async fn ask(args: &CutoverArgs, stop: &CancellationToken) -> Result<Asked> {
    let folder = state_dir(args.state_dir.as_deref())?;
    let store = Store::new(&folder);
    let named = args.job.as_deref().unwrap_or_default();
    if args.later.withdraw {
        return withdraw(args, &store, named).await.map(Asked::Over);
    }
    let sync = store.running_sync(named)?;
    let (source, target) = (format!("the source ({})", sync.source), format!("the target ({})", sync.target));
    let options = CutoverOptions {
        max_pause_ms: args.max_pause,
        fence: match args.fence {
            None | Some(FenceChoice::None) => WriterFenceKind::None,
            Some(FenceChoice::Pause) => WriterFenceKind::Pause { limit_ms: args.fence_for },
            Some(FenceChoice::Acl) => WriterFenceKind::Acl,
            Some(FenceChoice::ReadonlyReplica) => WriterFenceKind::ReadonlyReplica,
            Some(FenceChoice::External) => {
                WriterFenceKind::External { quiet_ms: args.quiet_for, wait_ms: args.wait_for_quiet }
            }
            Some(FenceChoice::Front) => WriterFenceKind::Front,
        },
        front: front(args, &folder, &sync)?,
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
        eprintln!("sync     {}", sync.id);
    }
    let when = args.later.when();
    let question = match when.is_later() {
        true => {
            Question::new(format!("Have {target} take over from {source} {}?", when.in_words(args.max_pause)))
        }
        false => question(args, &source, &target),
    };
    let decision = confirm(&question, args.ask.yes || args.dry_run, false, args.json, stop).await?;
    if let Some(exit) = decision.end(Exit::Success) {
        return Ok(Asked::Over(exit));
    }
    let tried = rehearsal(&sync, &options).filter(|_| when.is_later());
    let is_tried = tried.is_some();
    let scheduled = Scheduled { when, options: options.clone() };
    if when.is_later() && !is_tried {
        return order(args, &store, &sync, scheduled).await.map(Asked::Over);
    }
    let options = tried.unwrap_or(options);
    let within = match is_external(args) {
        true => COMPARED_WITHIN + Duration::from_millis(args.wait_for_quiet),
        false => ANSWER_WITHIN + Duration::from_millis(args.max_pause),
    };
    let socket = store.socket(&sync.id);
    let call = Call { socket: &socket, request: Request::Cutover(options.clone()), within };
    let mut signals = Signals { args, source: &source, before: None, printed: Instant::now() };
    // Writes may be paused already when the user would rather not; then it is too late, and the result has to
    // be known.
    let answer = call
        .make(stop, |standing| {
            if is_external(args) && !args.dry_run && !is_tried {
                signals.hear(standing);
            }
        })
        .await
        .map_err(|e| match e.remedy {
            Some(_) => e,
            None => e.with_remedy(
                "see the output of the process that runs the sync. If it died while writes were paused, the \
                    servers resume them by themselves, after --max-pause at the latest",
            ),
        })?;
    if is_tried && answer.outcome.is_ok() {
        return order(args, &store, &sync, scheduled).await.map(Asked::Over);
    }
    let runs_on = store.running_sync(&sync.id).is_ok();
    Ok(Asked::Answered(Box::new(answer), Endpoints { source, target, runs_on }))
}

/// Schedules a cutover.
async fn order(args: &CutoverArgs, store: &Store, sync: &Status, what: Scheduled) -> Result<Exit> {
    let (id, when, words) = (&sync.id, what.when, what.in_words());
    service::ask(store, id, Request::Schedule(Some(what)), "schedule the cutover of").await?;
    if args.json {
        out!("{}", json!({"event": "scheduled", "job": id, "when": when}));
    } else {
        out!("scheduled: {id} cuts over {words}");
        if let Some(paused) = sync.rates.pause_in_words().filter(|_| !sync.rates.paused) {
            out!("note     not rehearsed: the sync is {paused}");
        }
        out!("         whimbrel cutover {id} --withdraw takes that back; jobs show says how it stands");
    }
    Ok(Exit::Success)
}

/// Takes that back.
async fn withdraw(args: &CutoverArgs, store: &Store, named: &str) -> Result<Exit> {
    let (id, stood) = service::withdraw_cutover(store, named).await?;
    match (args.json, stood) {
        (true, _) => out!("{}", json!({"event": "withdrawn", "job": id, "scheduled": stood})),
        (false, true) => out!("withdrawn: the scheduled cutover of {id}"),
        (false, false) => out!("nothing to withdraw: no cutover of {id} is scheduled"),
    }
    Ok(Exit::Success)
}

/// The socket of the front that clients go through.
fn front(args: &CutoverArgs, folder: &Path, sync: &Status) -> Result<Option<PathBuf>> {
    if is_front(args) {
        return fronts::of_cutover(folder, &args.front, (&sync.source, &sync.target)).map(Some);
    }
    if args.front.is_empty() {
        return Ok(None);
    }
    let what = "--front is for --fence front";
    Err(Error::options(Side::Own, "read the options", what).with_remedy("add --fence front"))
}

/// Says when the writers may be stopped, and how far it is.
struct Signals<'a> {
    args: &'a CutoverArgs,
    source: &'a str,
    before: Option<String>,
    printed: Instant,
}

impl Signals<'_> {
    fn hear(&mut self, standing: &Standing) {
        let external = &standing.details["status"]["external"];
        let Some(stage) = external["stage"].as_str() else { return };
        let is_new = self.before.as_deref() != Some(stage);
        if !is_new && self.printed.elapsed() < PRINT_PERIOD {
            return;
        }
        self.printed = Instant::now();
        let is_again = self.before.replace(stage.to_owned()).is_some();
        if self.args.json {
            out!("{}", json!({"event": stage, "external": external}));
            return;
        }
        let times = ["quiet_ms", "wanted_ms"].map(|n| format_duration_ms(external[n].as_u64().unwrap_or(0)));
        match (stage, is_new, is_again) {
            ("waiting", true, false) => out!("ready    stop the writers of {} now", self.source),
            ("waiting", true, true) => out!("again    somebody wrote during the comparison"),
            ("waiting", false, _) => {
                out!("waiting  nobody has written for {} of {}{}", times[0], times[1], last(external));
            }
            (_, true, _) => out!("quiet    nobody writes any more: comparing"),
            _ => {}
        }
    }
}

fn is_external(args: &CutoverArgs) -> bool {
    args.fence == Some(FenceChoice::External)
}

fn is_front(args: &CutoverArgs) -> bool {
    args.fence == Some(FenceChoice::Front)
}

fn question(args: &CutoverArgs, source: &str, target: &str) -> Question {
    if is_front(args) {
        return Question::new(format!(
            "Have the front hold all clients of {source} for at most {}, and send them to {target}?",
            format_duration_ms(args.max_pause)
        ));
    }
    let pause = format!("Pause writes to {source} for at most {}", format_duration_ms(args.max_pause));
    if is_external(args) {
        return Question::new(format!(
            "Have {target} take over when you have stopped the writers of {source}? You are notified when \
                to stop them."
        ));
    }
    Question::new(match (args.back, args.fence) {
        (true, _) => format!("{pause}, and have {target} take over again?"),
        (false, None | Some(FenceChoice::None)) => format!("{pause}, and let them go on there?"),
        (false, Some(_)) => format!("{pause}, and have {target} take over?"),
    })
}

fn show(args: &CutoverArgs, answer: &Answer, sides: &Endpoints, withdrawn: bool) -> Exit {
    let exit = match answer.outcome.as_ref().map_err(Exit::from) {
        Ok(report) if failed_hooks(report).next().is_some() => Exit::Partial,
        Ok(_) => Exit::Success,
        Err(Exit::Refused) if withdrawn => Exit::Stopped,
        Err(exit) => exit,
    };
    if args.json {
        let (report, error) = (answer.outcome.as_ref().ok(), answer.outcome.as_ref().err());
        let error = error.map(|refusal| &refusal.text);
        out!("{}", json!({"event": "cutover", "report": report, "error": error, "exit": exit as u8}));
        return exit;
    }
    match &answer.outcome {
        Ok(report) => {
            let number = |name: &str| report[name].as_u64().unwrap_or(0);
            if withdrawn {
                out!("too late to withdraw it: writes were paused already");
            }
            for notice in report["notices"].as_array().into_iter().flatten() {
                out!("note     {}", notice.as_str().unwrap_or_default());
            }
            if is_external(args) {
                return show_external(args, report, sides, exit);
            }
            if is_front(args) {
                return show_front(args, report, sides, exit);
            }
            out!("estimate writes paused for about {} ms", number("estimate_ms"));
            if args.dry_run {
                out!("{}", compared(report));
                out!("dry run: no write was paused, and nothing was changed");
                return exit;
            }
            out!("writes   paused for {} ms", number("pause_ms"));
            out!("drained  {} under the pause", format_count_of(number("drained"), "key"));
            out!("{}", compared(report));
            out!("{}", fenced(args, sides));
            if number("ended") > 0 {
                let clients = if number("ended") == 1 { "client" } else { "clients" };
                out!(
                    "ended    {} {clients} of the source that waited in a command or were in a transaction",
                    format_count(number("ended"))
                );
            }
            if args.reverse_sync {
                let (from, to) = (&sides.target, &sides.source);
                out!("way back {from} is followed back into {to}");
                out!("         whimbrel cutover --fence acl --back returns to it");
            }
            if args.back {
                out!("back     writers are let in again where they came from");
            }
        }
        Err(refusal) => {
            eprintln!("error: {}", refusal.text);
            if sides.runs_on {
                eprintln!("         writes are not paused, and the sync goes on as before");
            }
        }
    }
    exit
}

/// Hooks that would be run, and those that have failed.
fn show_hooks(report: &serde_json::Value) {
    for hook in report["hooks"].as_array().into_iter().flatten() {
        if let (Some(event), Some(command)) = (hook["event"].as_str(), hook["command"].as_str()) {
            out!("hook     {event}: {command}");
        }
    }
    for (event, failure) in failed_hooks(report) {
        out!("HOOK     {}", words::failed_hook(event, failure));
    }
}

/// The report of a cutover whose writers another party stops.
fn show_external(args: &CutoverArgs, report: &serde_json::Value, sides: &Endpoints, exit: Exit) -> Exit {
    let number = |name: &str| report[name].as_u64().unwrap_or(0);
    let external = &report["external"];
    let stopped = number("estimate_ms") + args.quiet_for;
    out!("{}", compared(report));
    if args.dry_run {
        out!("estimate writers have to be stopped for about {}", format_duration_ms(stopped));
        let who = last(external);
        let who = if who.is_empty() { "; nobody has written for a second" } else { who.as_str() };
        out!("writers  you stop them when the cutover says so{who}");
        out!("dry run: no client was paused, and nothing was changed");
        return exit;
    }
    let waited = external["waited_ms"].as_u64().unwrap_or(0);
    out!("waited   {} until nobody wrote{}", format_duration_ms(waited), last(external));
    out!("drained  {} keys", format_count(number("drained")));
    out!("quiet    for {} when the target took over", format_duration_ms(number("pause_ms")));
    out!("{}", fenced(args, sides));
    if args.back {
        out!("back     writers are let in again where they came from");
    }
    exit
}

/// The report of a cutover of a front's clients.
fn show_front(args: &CutoverArgs, report: &serde_json::Value, sides: &Endpoints, exit: Exit) -> Exit {
    let number = |name: &str| report[name].as_u64().unwrap_or(0);
    let front = &report["front"];
    let clients = format_count_of(front["clients"].as_u64().unwrap_or(0), "client");
    if args.dry_run {
        out!("estimate {clients} of the front held for about {} ms", number("estimate_ms"));
    } else {
        out!("clients  {clients} of the front held for {} ms", number("pause_ms"));
        out!("drained  {} meanwhile", format_count_of(number("drained"), "key"));
    }
    out!("{}", compared(report));
    match front["others"].as_u64() {
        None => out!("others   the source does not show whether other clients are connected to it"),
        Some(0) => out!("others   no client is connected to the source except through the front"),
        Some(others) => out!(
            "others   {} to the source that {} not go through the front: nothing holds them",
            format_count_of(others, "connection"),
            if others == 1 { "does" } else { "do" }
        ),
    }
    if args.dry_run {
        out!("dry run: no client was paused, and nothing was changed");
        return exit;
    }
    if !front["late"].is_null() {
        out!(
            "LATE     somebody wrote to the source meanwhile: the target lacks these writes{}",
            last(&front["late"])
        );
    }
    out!("{}", fenced(args, sides));
    if number("ended") > 0 {
        out!("ended    {} that did not become idle", format_count_of(number("ended"), "client"));
    }
    if args.reverse_sync {
        out!("way back {} is followed back into {}", sides.target, sides.source);
        out!("         whimbrel cutover --fence front --back returns to it");
    }
    exit
}

fn fenced(args: &CutoverArgs, Endpoints { source, target, .. }: &Endpoints) -> String {
    match args.fence {
        Some(FenceChoice::Pause) => {
            let seconds = args.fence_for / 1000;
            format!("cut over writers of {source} stay paused for {seconds} s: send clients to {target} now")
        }
        Some(FenceChoice::Acl) => {
            format!("cut over users of {source} may not write any more: send clients to {target}")
        }
        Some(FenceChoice::ReadonlyReplica) => {
            format!("cut over {source} serves reads and refuses writes: send clients to {target}")
        }
        Some(FenceChoice::External) => {
            format!("cut over point clients to {target}; nothing blocks writes on {source} but you")
        }
        Some(FenceChoice::Front) => {
            format!("cut over the front sends its clients to {target}; others can still write to {source}")
        }
        Some(FenceChoice::None) | None => {
            "equal    writes resumed; the sync follows them until you stop it".to_owned()
        }
    }
}
