//! `whimbrel jobs`: lists, shows, cancels, resumes and forgets jobs that are written down.

pub mod again;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::clock::now_s;
use whimbrel_control::service::{self, Ready, Task};
use whimbrel_control::steering;
use whimbrel_control::store::{Entry, Kind, Status, Store};
use whimbrel_core::units::{format_count, format_count_of};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::link::LinkOptions;
use whimbrel_flow::journal::{self, Unfinished};

use crate::commands::reshard::run_begun;
use crate::exit::Exit;
use crate::settings::args::{JobAccess, JobsArgs, JobsCommand, Show};
use whimbrel_core::units::format_time;
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text};

/// How long a job that another process runs may take to notice that it is to be cancelled, and to roll back.
const CANCEL_WAIT: Duration = Duration::from_secs(120);

/// `whimbrel jobs`.
pub async fn run(args: &JobsArgs, stop: CancellationToken) -> Exit {
    match try_run(args, &stop).await {
        Ok(exit) => exit,
        Err(e) => crate::commands::cluster::end_of(&e, args.json),
    }
}

async fn try_run(args: &JobsArgs, stop: &CancellationToken) -> Result<Exit> {
    let folder = crate::paths::state_dir(args.state_dir.as_deref())?;
    let store = Store::new(&folder);
    let (named, as_json) = (args.state_dir.as_deref(), args.json);
    match args.command.as_ref().unwrap_or(&JobsCommand::List) {
        JobsCommand::List => {
            list(&as_they_are(&store, all(&folder, &store)?).await, named, as_json);
            Ok(Exit::Success)
        }
        JobsCommand::Show { job } => {
            let found = as_they_are(&store, vec![find(&folder, &store, job)?]).await;
            found.iter().for_each(|seen| show(seen, named, as_json));
            Ok(Exit::Success)
        }
        JobsCommand::Clean => {
            let mut cleaned = 0;
            for entry in store.list()?.iter().filter(|entry| entry.status.ended) {
                store.remove(&entry.status.id)?;
                cleaned += 1;
            }
            say(as_json, "cleaned", &format!("{} forgotten", format_count_of(cleaned, "ended job")));
            Ok(Exit::Success)
        }
        JobsCommand::Cancel { job, access } => {
            cancel((&folder, &store), &find(&folder, &store, job)?, access, as_json).await
        }
        JobsCommand::Resume { job, access } => {
            let entries = match job {
                Some(job) => vec![find(&folder, &store, job)?],
                None => {
                    let waits = |e: &Entry| !e.status.ended && !e.running && e.status.kind == Kind::Move;
                    store.list()?.into_iter().filter(waits).collect()
                }
            };
            if entries.is_empty() {
                say(as_json, "nothing", "no move of slots waits to be resumed");
                return Ok(Exit::Success);
            }
            if let Some(entry) = entries.iter().find(|entry| entry.status.kind != Kind::Move) {
                return Err(goes_on_by_itself(entry, named));
            }
            resume(&store, &entries, access, as_json, stop).await
        }
    }
}

/// Only moves of slots go on from here: what the others need to connect is written down nowhere.
fn goes_on_by_itself(entry: &Entry, folder: Option<&Path>) -> Error {
    let (kind, id) = (entry.status.kind.word(), &entry.status.id);
    let what = match (entry.status.ended, entry.running) {
        (true, _) => format!("{id} has ended already"),
        (_, true) => format!("{id} runs already"),
        _ => format!("a {kind} goes on with a command of its own: users and passwords are not written down"),
    };
    let error = Error::options(Side::Own, "resume the job", what);
    match again::command(&entry.status, folder).filter(|_| !entry.status.ended && !entry.running) {
        Some(command) => error.with_remedy(format!("{command}, and what it needs to connect")),
        None => error,
    }
}

/// All jobs of the folder, also those of whose journals alone is left.
fn all(folder: &Path, store: &Store) -> Result<Vec<Entry>> {
    let mut entries = store.list()?;
    let journals =
        journal::unfinished(folder).map_err(|e| Error::own(format!("read {}", folder.display()), e))?;
    for job in journals {
        if !entries.iter().any(|entry| entry.status.id == job.name) {
            entries.extend(of_journal(job));
        }
    }
    Ok(entries)
}

/// A job of which nothing but the journal is there.
fn of_journal(job: Unfinished) -> Option<Entry> {
    let kind = [Kind::Copy, Kind::Verify, Kind::Sync]
        .into_iter()
        .find(|kind| job.name.strip_prefix(kind.word()).is_some_and(|rest| rest.starts_with('-')))?;
    let text = |name: &str| job.described[name].as_str().unwrap_or("?").to_owned();
    let status = Status {
        kind,
        source: text("source"),
        target: text("target"),
        created_s: job.written_s,
        updated_s: job.written_s,
        again: again::arguments(kind, &job.described).unwrap_or_default(),
        id: job.name,
        ..Status::default()
    };
    Some(Entry { status, running: job.running })
}

/// A job, and whether the process that runs it has answered.
struct Seen {
    entry: Entry,
    answers: bool,
}

/// Jobs that run are asked how they stand, all at once; one that does not answer is shown as it was written
/// down last.
async fn as_they_are(store: &Store, entries: Vec<Entry>) -> Vec<Seen> {
    let mut asked = JoinSet::new();
    for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.running) {
        let socket = store.socket(&entry.status.id);
        asked.spawn(async move { (place, steering::standing(&socket).await) });
    }
    let mut seen: Vec<Seen> = entries.into_iter().map(|entry| Seen { entry, answers: true }).collect();
    while let Some(answer) = asked.join_next().await {
        let Ok((place, standing)) = answer else { continue };
        match standing {
            Some(standing) => seen[place].entry.status = standing.job,
            None => seen[place].answers = false,
        }
    }
    seen
}

fn say(as_json: bool, event: &str, text: &str) {
    if as_json {
        say!("{}", json!({"event": event, "text": text}));
    } else {
        say!("{text}");
    }
}

fn find(folder: &Path, store: &Store, job: &str) -> Result<Entry> {
    let entries = all(folder, store)?;
    let found: Vec<&Entry> = match entries.iter().find(|entry| entry.status.id == job) {
        // How earlier runs of it ended has names that begin with its name.
        Some(exactly) => vec![exactly],
        None => entries.iter().filter(|entry| entry.status.id.starts_with(job)).collect(),
    };
    match &found[..] {
        [one] => Ok((*one).clone()),
        several => {
            let what = match several.len() {
                0 => format!("there is no job {job}"),
                n => format!("{job} could be any of {n} jobs"),
            };
            Err(Error::options(Side::Own, "find the job", what).with_remedy("see `whimbrel jobs list`"))
        }
    }
}

/// Whether a job runs, in one word.
fn state(entry: &Entry) -> &'static str {
    match (entry.status.ended, entry.running) {
        (true, _) => "ended",
        (false, true) => "running",
        (false, false) => "interrupted",
    }
}

/// What a person calls the state of a job: a phase alone does not say that nobody runs it.
fn state_in_words(seen: &Seen) -> String {
    let status = &seen.entry.status;
    let state = match (state(&seen.entry), seen.answers) {
        ("ended", _) => return status.phase.clone(),
        (_, false) => "does not answer",
        (state, true) => state,
    };
    match status.phase.is_empty() {
        true => state.to_owned(),
        false => format!("{state}: {}", status.phase),
    }
}

/// Whether nobody runs the job and it has not ended.
fn is_interrupted(entry: &Entry) -> bool {
    !entry.status.ended && !entry.running
}

fn as_object(seen: &Seen, folder: Option<&Path>) -> Value {
    let entry = &seen.entry;
    let mut line = json!(entry);
    let again = is_interrupted(entry).then(|| again::command(&entry.status, folder));
    line["name"] = json!(entry.status.id);
    line["state"] = json!(state(entry));
    line["answers"] = json!(seen.answers);
    line["percent"] = json!(percent(&entry.status));
    line["ended_s"] = json!(entry.status.ended.then_some(entry.status.updated_s));
    line["again"] = json!(again.flatten());
    line
}

fn list(jobs: &[Seen], folder: Option<&Path>, as_json: bool) {
    if as_json {
        jobs.iter().for_each(|seen| say!("{}", as_object(seen, folder)));
        return;
    }
    if jobs.is_empty() {
        say!("no jobs are written down here");
        return;
    }
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
    ];
    let mut table = Table::new(&head, 2);
    for seen in jobs {
        let status = &seen.entry.status;
        let slots = match status.kind {
            Kind::Move => format!("{} of {}", slots_in(&status.moved), slots_in(&status.slots)),
            _ => String::new(),
        };
        table.row(vec![
            status.id.clone(),
            status.kind.word().to_owned(),
            state_in_words(seen),
            percent(status).map_or_else(|| "-".to_owned(), |percent| format!("{percent} %")),
            between(status),
            slots,
            format_time(status.created_s),
            ended(status).unwrap_or_default(),
            status.cluster.clone(),
            status.method.clone(),
        ]);
    }
    table.lines(Screen::of_stdout()).iter().for_each(|line| say!("{line}"));
    for entry in jobs.iter().map(|seen| &seen.entry).filter(|entry| is_interrupted(entry)) {
        say_again(entry, folder);
    }
}

/// What goes on with an interrupted job.
fn say_again(entry: &Entry, folder: Option<&Path>) {
    let id = &entry.status.id;
    match again::command(&entry.status, folder) {
        Some(command) if entry.status.kind == Kind::Move => say!("{id} goes on with: {command}"),
        Some(command) => say!("{id} goes on with: {command}, and what it needs to connect"),
        None => say!("{id} cannot go on: start it again"),
    }
}

/// From where to where: nodes of a cluster by the beginning of their ids.
fn between(status: &Status) -> String {
    let short = |id: &str| match status.kind {
        Kind::Move => id.get(..8).unwrap_or(id).to_owned(),
        _ => id.to_owned(),
    };
    format!("{} -> {}", short(&status.source), short(&status.target))
}

/// The share of keys that are done with; `None` where nobody counted them.
fn percent(status: &Status) -> Option<u64> {
    let share = |total: u64| (u128::from(status.keys_moved.min(total)) * 100 / u128::from(total)) as u64;
    (status.keys > 0).then(|| share(status.keys))
}

/// When a job has ended.
fn ended(status: &Status) -> Option<String> {
    status.ended.then(|| format_time(status.updated_s))
}

fn slots_in(ranges: &str) -> usize {
    ranges.parse::<whimbrel_core::slot::SlotSet>().map_or(0, |slots| slots.len())
}

fn show(seen: &Seen, folder: Option<&Path>, as_json: bool) {
    if as_json {
        say!("{}", as_object(seen, folder));
        return;
    }
    let status = &seen.entry.status;
    say!("job      {}", status.id);
    say!("kind     {}", status.kind.word());
    say!("state    {}", state_in_words(seen));
    if !status.message.is_empty() {
        say!("         {}", status.message);
    }
    say!("started  {}", format_time(status.created_s));
    if let Some(ended) = ended(status) {
        say!("ended    {ended}");
    }
    if let Some(listen) = &status.listen {
        say!("listens  {listen}");
    }
    if status.kind == Kind::Move {
        say!("method   {}", status.method);
        say!("cluster  {}", status.cluster);
    }
    say!("source   {}", status.source);
    say!("target   {}", status.target);
    if status.kind == Kind::Move {
        say!("slots    {}", status.slots);
        say!("moved    {}", if status.moved.is_empty() { "none" } else { &status.moved });
    }
    if let Some(percent) = percent(status) {
        let (done, all) = (format_count(status.keys_moved), format_count_of(status.keys, "key"));
        let what = if status.kind == Kind::Verify { "compared" } else { "at the target" };
        say!("keys     {done} of {all} are {what}: {percent} %");
    }
    if is_interrupted(&seen.entry) {
        match again::command(status, folder) {
            Some(command) => say!("go on with: {command}"),
            None => say!("it cannot go on: start it again"),
        }
        say!("or undo it: whimbrel jobs cancel {}", status.id);
    }
}

/// Opens the cluster of a job: where the user says, else where it was reached when the job was made, else by
/// any of the primaries that it had then.
async fn open(access: &JobAccess, status: &Status) -> Result<Arc<Deployment>> {
    let named = access.cluster.as_deref();
    let probe = async |at: &str| {
        let endpoint = access.endpoint(at)?;
        Deployment::probe(endpoint, LinkOptions::default()).await.map(Arc::new)
    };
    let first = named.unwrap_or(&status.cluster);
    let failure = match probe(first).await {
        Err(e) if e.is_link() && named.is_none() => e,
        outcome => return outcome,
    };
    for other in status.nodes.iter().filter(|other| *other != first) {
        match probe(other).await {
            Err(e) if e.is_link() => {}
            outcome => return outcome,
        }
    }
    Err(failure.with_remedy("name a node of the cluster that answers with --cluster"))
}

async fn cancel(
    (folder, store): (&Path, &Store),
    entry: &Entry,
    access: &JobAccess,
    as_json: bool,
) -> Result<Exit> {
    let id = &entry.status.id;
    if entry.status.ended {
        say(as_json, "nothing", &format!("job {id} has ended already: {}", entry.status.phase));
        return Ok(Exit::Success);
    }
    if !entry.running {
        return match entry.status.kind {
            Kind::Move => cancel_here(store, entry, access, as_json).await,
            _ => discard(folder, store, &entry.status, as_json),
        };
    }
    service::ask_to_cancel(store, id).await?;
    say(as_json, "asked", &format!("job {id} has been asked to end"));
    let asked = std::time::Instant::now();
    while asked.elapsed() < CANCEL_WAIT {
        // How it ended is kept under another name where it can be begun again.
        let now = store.list()?.into_iter().find(|now| {
            now.status.id == *id
                || now.status.ended
                    && now.status.id.starts_with(&format!("{id}-"))
                    && now.status.created_s == entry.status.created_s
        });
        match now {
            Some(now) if !now.status.ended && now.running => {}
            Some(now) if now.status.phase == "done" => {
                say_too_late(&now.status, as_json);
                return Ok(Exit::Success);
            }
            now => {
                let phase = now.map_or_else(|| "cancelled".to_owned(), |now| now.status.phase);
                say(as_json, "cancelled", &format!("job {id}: {phase}"));
                return Ok(Exit::Success);
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let what = "the process that runs it has not ended it yet; it has been asked to";
    Err(Error::own(format!("cancel job {id}"), what).with_remedy("see `whimbrel jobs show`"))
}

/// Cancels a move of slots that nobody runs.
async fn cancel_here(store: &Store, entry: &Entry, access: &JobAccess, as_json: bool) -> Result<Exit> {
    let stop = CancellationToken::new();
    // Resumed and cancelled at once: what was begun is looked at and rolled back.
    stop.cancel();
    let deployment = open(access, &entry.status).await?;
    let ready = Ready::open(store, &entry.status.id)?;
    let exit = run_begun(&deployment, vec![ready], &quiet(as_json), &stop).await?;
    // Rolled back is what was asked for.
    if exit == Exit::Stopped {
        return Ok(Exit::Success);
    }
    if exit == Exit::Success {
        say_too_late(&entry.status, as_json);
    }
    Ok(exit)
}

/// Cancels a job of another kind that nobody runs: it cannot go on any more.
fn discard(folder: &Path, store: &Store, status: &Status, as_json: bool) -> Result<Exit> {
    let id = &status.id;
    if status.kind == Kind::Front {
        let what = "keys of a front can be on both servers: it is no job that can be left as it is";
        return Err(Error::options(Side::Own, "cancel the job", what)
            .with_remedy("run the front again; whimbrel front reverse has the keys move back"));
    }
    journal::discard(folder, id)?;
    store.end(&Status { phase: "cancelled".to_owned(), ended: true, updated_s: now_s(), ..status.clone() });
    let what = if status.kind == Kind::Verify { "" } else { "; what it wrote stays at the target" };
    say(as_json, "cancelled", &format!("job {id}: cancelled{what}"));
    Ok(Exit::Success)
}

fn say_too_late(status: &Status, as_json: bool) {
    let id = &status.id;
    let what = match status.kind {
        Kind::Move => "all of its slots were behind the fence already, so it was finished",
        _ => "it had just come to its end",
    };
    say(as_json, "too-late", &format!("job {id} could not be cancelled any more: {what}"));
}

fn quiet(json: bool) -> Show {
    Show { json, report: None, quiet: false }
}

async fn resume(
    store: &Store,
    entries: &[Entry],
    access: &JobAccess,
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
                say(
                    as_json,
                    "nothing",
                    &format!("job {} has ended already: {}", entry.status.id, entry.status.phase),
                );
                continue;
            }
            let ready = Ready::open(store, &entry.status.id)?;
            if matches!(ready.task, Task::Plain(_)) && !as_json {
                eprintln!("note     job {} begins again with what is left to move", entry.status.id);
            }
            jobs.push(ready);
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
