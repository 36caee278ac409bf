//! `whimbrel jobs`: lists, shows, cancels, resumes and forgets jobs that are written down.

mod report;

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_console::again;
use whimbrel_control::hooks::HookSettings;
use whimbrel_control::jobs::{CancelAnswer, Chosen, Jobs, Seen, open_cluster};
use whimbrel_control::service::{self, Ready, Task, Wanted};
use whimbrel_control::steering::Request;
use whimbrel_control::store::{Entry, Kind, Status, Store};
use whimbrel_control::strangers;
use whimbrel_core::units::{format_count, format_count_of, format_time};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::budget::{RateChange, RatesNow};
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text};

use crate::commands::reshard::run_begun;
use crate::exit::Exit;
use crate::settings::args::{JobAccess, JobsArgs, JobsCommand, Show};

/// `whimbrel jobs`.
pub async fn run(args: &JobsArgs, stop: CancellationToken) -> Exit {
    match try_run(args, &stop).await {
        Ok(exit) => exit,
        Err(e) => crate::commands::cluster::end_of(&e, args.json),
    }
}

async fn try_run(args: &JobsArgs, stop: &CancellationToken) -> Result<Exit> {
    let folder = whimbrel_control::private::state_dir(args.state_dir.as_deref())?;
    let jobs = Jobs::of(&folder);
    let (named, as_json) = (args.state_dir.as_deref(), args.json);
    let Some(command) = &args.command else {
        list(&jobs.as_they_are(jobs.all()?).await, named, as_json);
        return Ok(Exit::Success);
    };
    match command {
        JobsCommand::List { access } => {
            let mut seen = jobs.as_they_are(jobs.all()?).await;
            if access.cluster.is_some() {
                let own: Vec<Status> = seen.iter().map(|seen| seen.entry.status.clone()).collect();
                let deployment = open(access, &Status::default()).await?;
                seen.extend(strangers::others(&deployment, &own).await?.into_iter().map(Seen::elsewhere));
            }
            list(&seen, named, as_json);
            Ok(Exit::Success)
        }
        JobsCommand::Show { job } => {
            let found = jobs.as_they_are(vec![jobs.find(job)?]).await;
            found.iter().for_each(|seen| show(seen, named, as_json));
            Ok(Exit::Success)
        }
        JobsCommand::Clean => {
            let cleaned = jobs.store.remove_ended()?;
            print(as_json, "cleaned", &format!("{} forgotten", format_count_of(cleaned, "ended job")));
            Ok(Exit::Success)
        }
        JobsCommand::Events { job, follow } => {
            report::events(&jobs, &jobs.find(job)?, *follow, as_json, stop).await
        }
        JobsCommand::Report { check: Some(file), .. } => report::check(file, as_json),
        JobsCommand::Report { job, html, .. } => {
            let found = jobs.as_they_are(vec![jobs.find(job.as_deref().unwrap_or_default())?]).await;
            for seen in &found {
                report::report(&jobs, &seen.entry.status, html.as_deref())?;
            }
            Ok(Exit::Success)
        }
        JobsCommand::Pause { job, all } => {
            let chosen = job.as_ref().map(|job| Chosen::find(&jobs, job, *all));
            let chosen = chosen.unwrap_or_else(|| Chosen::every(&jobs))?;
            steer(&jobs, &chosen, Request::Pause, as_json).await
        }
        JobsCommand::Set { which, rates } => {
            let request = Request::Set(rates.iter().copied().fold(RateChange::default(), RateChange::and));
            steer(&jobs, &Chosen::find(&jobs, &which.job, which.all)?, request, as_json).await
        }
        JobsCommand::Cancel { which, access } => {
            cancel(&jobs, &Chosen::find(&jobs, &which.job, which.all)?, access, as_json).await
        }
        JobsCommand::Resume { job: None, all: true, .. } => {
            steer(&jobs, &Chosen::every(&jobs)?, Request::Resume, as_json).await
        }
        JobsCommand::Resume { job, all, access, hooks } => {
            let hooks = hooks.settings(Kind::Move)?;
            let chosen = job.as_ref().map(|job| Chosen::find(&jobs, job, *all)).transpose()?;
            let mut entries: Vec<Entry> = match &chosen {
                // What runs goes on by itself.
                Some(chosen) => chosen.entries().filter(|entry| !entry.running).cloned().collect(),
                None => {
                    let waits = |e: &Entry| e.is_interrupted() && e.status.kind == Kind::Move;
                    jobs.store.list()?.into_iter().filter(waits).collect()
                }
            };
            let runs = |chosen: &&Chosen| chosen.entries().any(|entry| entry.running);
            if entries.is_empty() && chosen.as_ref().filter(runs).is_none() {
                print(as_json, "nothing", "no move of slots waits to be resumed");
                return Ok(Exit::Success);
            }
            if let Some(chosen) = chosen.as_ref().filter(runs) {
                if !hooks.hooks.is_empty() {
                    let what = "a job that runs has the hooks that it was begun with";
                    return Err(
                        Error::options(Side::Own, "resume the job", what).with_remedy("leave out --on")
                    );
                }
                let steered = steer(&jobs, chosen, Request::Resume, as_json).await?;
                // Others of the command may have been interrupted.
                entries.retain(Entry::is_interrupted);
                if entries.is_empty() {
                    return Ok(steered);
                }
            }
            if let Some(entry) = entries.iter().find(|entry| entry.status.kind != Kind::Move) {
                return Err(goes_on_by_itself(entry, named));
            }
            if let Some(chosen) = &chosen {
                show_others(chosen, &jobs, chosen.others.clone(), as_json).await;
            }
            resume(&jobs.store, &entries, (access, &hooks), as_json, stop).await
        }
    }
}

/// Says which other jobs go on, if they were not meant.
async fn show_others(chosen: &Chosen, jobs: &Jobs, left: Vec<Entry>, as_json: bool) {
    if chosen.all || left.is_empty() {
        return;
    }
    let left = jobs.as_they_are(left).await;
    let each = |seen: &Seen| format!("{} ({})", seen.entry.status.label(), seen.state_in_words());
    let names = left.iter().map(each).collect::<Vec<_>>().join(", ");
    let others = format_count_of(left.len() as u64, "other job");
    let text = format!("{others} of the same command: {names}; --all means them as well");
    if as_json {
        let ids: Vec<&String> = left.iter().map(|seen| &seen.entry.status.id).collect();
        out!("{}", json!({"event": "others", "jobs": ids, "text": text}));
    } else {
        eprintln!("note     {text}");
    }
}

/// Only moves of slots go on from here: what the others need to connect is written down nowhere.
fn goes_on_by_itself(entry: &Entry, folder: Option<&Path>) -> Error {
    let (kind, id) = (entry.status.kind.word(), &entry.status.id);
    let what = match entry.status.ended {
        true => format!("{id} has ended already"),
        false => {
            format!("a {kind} goes on with a command of its own: users and passwords are not written down")
        }
    };
    let error = Error::options(Side::Own, "resume the job", what);
    match again::command(&entry.status, folder).filter(|_| !entry.status.ended) {
        Some(command) => {
            error.with_remedy(format!("add its users, passwords and other options to: {command}"))
        }
        None => error,
    }
}

fn print(as_json: bool, event: &str, text: &str) {
    if as_json {
        out!("{}", json!({"event": event, "text": text}));
    } else {
        out!("{text}");
    }
}

fn list(jobs: &[Seen], folder: Option<&Path>, as_json: bool) {
    if as_json {
        jobs.iter().for_each(|seen| out!("{}", seen.as_object(again::command(&seen.entry.status, folder))));
        return;
    }
    if jobs.is_empty() {
        match folder {
            Some(folder) => out!("there are no jobs in {}", folder.display()),
            None => out!("there are no jobs in the usual state folder; name another one with --state-dir"),
        }
        return;
    }
    table(jobs).lines(Screen::of_stdout()).iter().for_each(|line| out!("{line}"));
    for status in jobs.iter().filter(|seen| seen.is_elsewhere).map(|seen| &seen.entry.status) {
        out!("{}: {}", status.id, status.message);
    }
    for entry in jobs.iter().map(|seen| &seen.entry).filter(|entry| entry.is_interrupted()) {
        print_resume(entry, folder);
    }
}

/// A row for each job, and a line below it if that has no room for both sides.
fn table(jobs: &[Seen]) -> Table {
    let head = [
        text("JOB", 0),
        text("KIND", 2),
        text("STATE", 0),
        number("DONE", 1),
        text("FROM -> TO", 3),
        text("SLOTS", 5),
        text("STARTED", 4),
        text("ENDED", 6),
        text("CLUSTER", 7),
        text("METHOD", 8),
        text("BEGUN BY", 9),
    ];
    let mut table = Table::new(&head, 4).with_line_below();
    for seen in jobs {
        let status = &seen.entry.status;
        let slots = match status.kind {
            Kind::Move => format!("{} of {}", status.slots_moved(), status.slots_planned()),
            _ => String::new(),
        };
        table.row(vec![
            status.label().to_owned(),
            status.kind.word().to_owned(),
            seen.state_in_words(),
            status.percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent} %")),
            status.between(),
            slots,
            format_time(status.created_s),
            status.ended_at().unwrap_or_default(),
            status.cluster.clone(),
            status.method.clone(),
            status.origin.begun_by.clone().unwrap_or_default(),
        ]);
    }
    table
}

/// What goes on with an interrupted job.
fn print_resume(entry: &Entry, folder: Option<&Path>) {
    let id = entry.status.label();
    match again::command(&entry.status, folder) {
        Some(command) if entry.status.kind == Kind::Move => out!("{id} goes on with: {command}"),
        Some(command) => {
            out!("{id} goes on with this, and its users, passwords and other options:");
            out!("         {command}");
        }
        None => out!("{id} cannot go on: start it again"),
    }
}

fn show(seen: &Seen, folder: Option<&Path>, as_json: bool) {
    if as_json {
        out!("{}", seen.as_object(again::command(&seen.entry.status, folder)));
        return;
    }
    let status = &seen.entry.status;
    out!("job      {}", status.label());
    if status.name.is_some() {
        out!("id       {}", status.id);
    }
    out!("kind     {}", status.kind.word());
    out!("state    {}", seen.state_in_words());
    if !status.message.is_empty() {
        out!("         {}", status.message);
    }
    out!("started  {}", format_time(status.created_s));
    if let Some(by) = &status.origin.begun_by {
        out!("begun by {by}");
    }
    if let Some(ended) = status.ended_at() {
        out!("ended    {ended}");
    }
    if let Some(listen) = &status.listen {
        out!("listens  {listen}");
    }
    if status.kind == Kind::Move {
        out!("method   {}", status.method);
        out!("cluster  {}", status.cluster);
    }
    out!("source   {}", status.source);
    out!("target   {}", status.target);
    if status.kind == Kind::Move {
        out!("slots    {}", status.slots);
        out!("moved    {}", if status.moved.is_empty() { "none" } else { &status.moved });
    }
    if let Some(percent) = status.percent() {
        let (done, all) = (format_count(status.keys_moved), format_count_of(status.keys, "key"));
        out!("keys     {done} of {all} are {}: {percent} %", status.kind.keys_are());
    }
    if status.rates != RatesNow::default() {
        out!("rates    {}", status.rates);
    }
    if let Some(when) = &status.scheduled {
        out!("cutover  scheduled {when}");
        out!("         whimbrel cutover {} --withdraw takes that back", status.id);
    }
    if seen.entry.is_interrupted() {
        match again::command(status, folder) {
            Some(command) => out!("go on with: {command}"),
            None => out!("it cannot go on: start it again"),
        }
        let end = if status.kind == Kind::Move { "undo it" } else { "end it, keeping what it wrote" };
        out!("or {end}: {}", again::cancel(status, folder));
    }
}

/// Has jobs that run move their keys faster or slower, or not at all.
async fn steer(jobs: &Jobs, named: &Chosen, request: Request, as_json: bool) -> Result<Exit> {
    let Status { id, ended, .. } = &named.job.status;
    let Wanted { verb, done: event } = Wanted::of(&request);
    let running: Vec<&Entry> = named.entries().filter(|entry| entry.running).collect();
    if running.is_empty() || !named.all && !named.job.running {
        let state = if *ended { "has ended" } else { "does not run: it was interrupted" };
        let others = if named.all { ", and no other one of its command runs" } else { "" };
        let what = format!("job {id} {state}{others}");
        let error = Error::options(Side::Own, format!("{verb} job {id}"), what);
        return Err(error.with_remedy("see `whimbrel jobs list`"));
    }
    let mut failed = None;
    for Entry { status, .. } in running {
        let (id, label) = (&status.id, status.label());
        let answer = service::steered(&jobs.store, id, request.clone(), None).await;
        // If one refuses, the others are still meant.
        let Ok(now) = answer.map_err(|e| failed = failed.take().or(Some(e))) else { continue };
        match event {
            _ if as_json => out!("{}", json!({"event": event, "job": id, "rates": now})),
            "set" => out!("job {label}: {now}"),
            // A job that is resumed outside of its times waits for them.
            _ => out!("job {label} is {}", now.pause_in_words().as_deref().unwrap_or(event)),
        }
    }
    show_others(named, jobs, named.others.clone(), as_json).await;
    failed.map_or(Ok(Exit::Success), Err)
}

/// Ends jobs permanently. All are asked before any is waited for: none is to begin when another one ends.
async fn cancel(jobs: &Jobs, named: &Chosen, access: &JobAccess, as_json: bool) -> Result<Exit> {
    let mut asked = Vec::new();
    for entry in named.entries() {
        asked.push((entry, jobs.cancel(entry).await?));
    }
    let mut exit = Exit::Success;
    for (entry, answer) in asked {
        let ended = cancelled(jobs, entry, answer, access, as_json).await?;
        exit = if ended == Exit::Success { exit } else { ended };
    }
    let left = jobs.left_of(&named.others).await?;
    for other in named.others.iter().filter(|_| !named.all) {
        if jobs.now_of(&other.status).is_none() {
            let id = other.status.label();
            print(
                as_json,
                "given-up",
                &format!("job {id} waited behind it, and was given up: nothing moved"),
            );
        }
    }
    show_others(named, jobs, left, as_json).await;
    Ok(exit)
}

/// Waits until a job has ended that was to be cancelled, and says how it did.
async fn cancelled(
    jobs: &Jobs,
    entry: &Entry,
    answer: CancelAnswer,
    access: &JobAccess,
    as_json: bool,
) -> Result<Exit> {
    let (id, Status { kind, phase, .. }) = (entry.status.label(), &entry.status);
    match answer {
        CancelAnswer::HasEnded => print(as_json, "nothing", &format!("job {id} has ended already: {phase}")),
        CancelAnswer::NeedsCluster => return cancel_here(&jobs.store, entry, access, as_json).await,
        CancelAnswer::Discarded { .. } => {
            let what = if *kind == Kind::Verify { "" } else { "; what it wrote stays at the target" };
            print(as_json, "cancelled", &format!("job {id}: cancelled{what}{}", jobs.fence_left(entry)));
        }
        CancelAnswer::Asked => {
            print(as_json, "asked", &format!("job {id}: its process was asked to end it; waiting for that"));
            match jobs.until_cancelled(entry).await? {
                Some(Some(now)) if now.phase == "done" => print_too_late(&now, as_json),
                // It would be listed as ended. Only going on with it is safe, or its journal cannot be read.
                Some(Some(now)) if !now.ended => {
                    let words = format!("job {id} has stopped and is not cancelled: {}", now.message);
                    print(as_json, "not-cancelled", &words);
                    return Ok(Exit::Refused);
                }
                Some(now) => {
                    let phase = now.map_or_else(|| "cancelled".to_owned(), |now| now.phase);
                    print(as_json, "cancelled", &format!("job {id}: {phase}{}", jobs.fence_left(entry)));
                }
                None => {
                    let what = "the process that runs it was asked to end it, and has not done so yet";
                    let error = Error::own(format!("cancel job {id}"), what);
                    return Err(error.with_remedy(format!("see whether it ends: whimbrel jobs show {id}")));
                }
            }
        }
    }
    Ok(Exit::Success)
}

/// Opens the cluster of a job.
async fn open(access: &JobAccess, status: &Status) -> Result<Arc<Deployment>> {
    let named = access.cluster.as_deref();
    open_cluster(status, named, |at| access.endpoint(at)).await.map_err(|e| match named {
        None if e.is_link() => e.with_remedy("name a node of the cluster that answers with --cluster"),
        _ => e,
    })
}

/// Cancels a move of slots that no process runs.
async fn cancel_here(store: &Store, entry: &Entry, access: &JobAccess, as_json: bool) -> Result<Exit> {
    let stop = CancellationToken::new();
    // Resumed and cancelled at once: what was begun is checked and rolled back.
    stop.cancel();
    let deployment = open(access, &entry.status).await?;
    let ready = Ready::open(store, &entry.status.id)?;
    let exit = run_begun(&deployment, vec![ready], &quiet(as_json), &stop).await?;
    // Rolled back is what was asked for.
    if exit == Exit::Stopped {
        return Ok(Exit::Success);
    }
    if exit == Exit::Success {
        print_too_late(&entry.status, as_json);
    }
    Ok(exit)
}

fn print_too_late(status: &Status, as_json: bool) {
    let id = status.label();
    let what = match status.kind {
        Kind::Move => "all of its slots were behind the fence already, so it was finished",
        _ => "it had just ended",
    };
    print(as_json, "too-late", &format!("job {id} could not be cancelled any more: {what}"));
}

fn quiet(json: bool) -> Show {
    Show { json, report: None, quiet: false }
}

async fn resume(
    store: &Store,
    entries: &[Entry],
    (access, hooks): (&JobAccess, &HookSettings),
    as_json: bool,
    stop: &CancellationToken,
) -> Result<Exit> {
    let mut exit = Exit::Success;
    let mut clusters: Vec<&str> = entries.iter().map(|entry| entry.status.cluster.as_str()).collect();
    clusters.sort_unstable();
    clusters.dedup();
    for cluster in clusters {
        let mut jobs = Vec::new();
        let mut at = None;
        for entry in entries.iter().filter(|entry| entry.status.cluster == cluster) {
            if entry.status.ended {
                print(
                    as_json,
                    "nothing",
                    &format!("job {} has ended already: {}", entry.status.id, entry.status.phase),
                );
                continue;
            }
            let ready = Ready::open(store, &entry.status.id)?;
            // What was set while it ran ended with its process.
            let how = match ready.task {
                Task::Plain(_) => "begins again with what is left to move".to_owned(),
                Task::External(_) => format!("is as fast as it began: {}", ready.view.progress.rates.now()),
            };
            if !as_json {
                eprintln!("note     job {} {how}", entry.status.id);
            }
            jobs.push(ready.with_hooks(hooks));
            at = Some(&entry.status);
        }
        let Some(at) = at else { continue };
        let deployment = open(access, at).await?;
        let ended = run_begun(&deployment, jobs, &quiet(as_json), stop).await?;
        if ended != Exit::Success {
            exit = ended;
        }
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However narrow the terminal, both sides of a move are seen.
    #[test]
    fn both_sides_of_a_job_are_seen_at_every_width() {
        let status = Status {
            id: "verify-2c0d219dd213e594-6b081b5e".to_owned(),
            kind: Kind::Verify,
            source: "10.20.30.40:6379".to_owned(),
            target: "cache-1.example.net:6379".to_owned(),
            phase: "comparing".to_owned(),
            ..Status::default()
        };
        let seen = Seen { entry: Entry { status, running: false }, answers: true, is_elsewhere: false };
        for width in [50, 80, 120, 200] {
            let lines = table(std::slice::from_ref(&seen)).lines(Screen { width, colour: false });
            let text = lines.join("\n");
            for expected in ["verify-2c0d219dd213e594-6b081b5e", "interrupted", "10.20.30.40:6379 -> cache-1"]
            {
                assert!(text.contains(expected), "no {expected} at {width}:\n{text}");
            }
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert_eq!(lines.len(), if width < 120 { 4 } else { 2 }, "{width}:\n{text}");
        }
    }
}
