//! `whimbrel jobs`: lists, shows, cancels, resumes and forgets jobs that are written down.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::service::{Ready, Task};
use whimbrel_control::store::{Entry, Status, Store};
use whimbrel_core::units::{format_count, format_count_of};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::link::LinkOptions;
use whimbrel_flow::journal;

use crate::commands::reshard::run_begun;
use crate::exit::Exit;
use crate::settings::args::{JobAccess, JobsArgs, JobsCommand, Show};
use crate::ui::display::format_time;
use crate::ui::screen::Screen;
use crate::ui::table::{Table, number, text};

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
    match &args.command {
        JobsCommand::List => {
            let unfinished = journal::unfinished(&folder)
                .map_err(|e| Error::own(format!("read {}", folder.display()), e))?;
            let entries = store.list()?;
            if !entries.is_empty() || unfinished.is_empty() || args.json {
                list(&entries, args.json);
            }
            crate::commands::unfinished::show(&unfinished, args.state_dir.as_deref(), args.json);
            Ok(Exit::Success)
        }
        JobsCommand::Show { job } => {
            let entry = find(&store, job)?;
            show(&entry, args.json);
            Ok(Exit::Success)
        }
        JobsCommand::Clean => {
            let mut cleaned = 0;
            for entry in store.list()?.iter().filter(|entry| entry.status.ended) {
                store.remove(&entry.status.id)?;
                cleaned += 1;
            }
            say(args.json, "cleaned", &format!("{} forgotten", format_count_of(cleaned, "ended job")));
            Ok(Exit::Success)
        }
        JobsCommand::Cancel { job, access } => cancel(&store, &find(&store, job)?, access, args.json).await,
        JobsCommand::Resume { job, access } => {
            let entries = match job {
                Some(job) => vec![find(&store, job)?],
                None => store.list()?.into_iter().filter(|e| !e.status.ended && !e.running).collect(),
            };
            if entries.is_empty() {
                say(args.json, "nothing", "no job waits to be resumed");
                return Ok(Exit::Success);
            }
            resume(&store, &entries, access, args.json, stop).await
        }
    }
}

fn say(as_json: bool, event: &str, text: &str) {
    if as_json {
        say!("{}", json!({"event": event, "text": text}));
    } else {
        say!("{text}");
    }
}

fn find(store: &Store, job: &str) -> Result<Entry> {
    let entries = store.list()?;
    let found: Vec<&Entry> = entries.iter().filter(|entry| entry.status.id.starts_with(job)).collect();
    match &found[..] {
        [one] => Ok((*one).clone()),
        several => {
            let what = match several.len() {
                0 => format!("there is no job {job}"),
                n => format!("{job} could be any of {n} jobs"),
            };
            Err(Error::unfit(Side::Own, "", "find the job", what).with_remedy("see `whimbrel jobs list`"))
        }
    }
}

/// What a person calls the state of a job: a phase alone does not say that nobody runs it.
fn state(entry: &Entry) -> String {
    let status = &entry.status;
    match (status.ended, entry.running) {
        (true, _) => status.phase.clone(),
        (false, true) => format!("running: {}", status.phase),
        (false, false) => format!("interrupted: {}", status.phase),
    }
}

fn list(entries: &[Entry], as_json: bool) {
    if as_json {
        entries.iter().for_each(|entry| say!("{}", json!(entry)));
        return;
    }
    if entries.is_empty() {
        say!("no jobs are written down here");
        return;
    }
    let head = [
        text("JOB", 0),
        text("STATE", 0),
        number("KEYS", 2),
        text("SLOTS", 1),
        text("FROM -> TO", 3),
        text("STARTED", 4),
        text("ENDED", 5),
        text("CLUSTER", 6),
        text("METHOD", 7),
    ];
    let mut table = Table::new(&head, 1);
    for entry in entries {
        let status = &entry.status;
        table.row(vec![
            status.id.clone(),
            state(entry),
            percent(status).map_or_else(|| "-".to_owned(), |percent| format!("{percent} %")),
            format!("{} of {}", slots_in(&status.moved), slots_in(&status.slots)),
            format!("{} -> {}", short(&status.source), short(&status.target)),
            format_time(status.created_s),
            ended(status).unwrap_or_default(),
            status.cluster.clone(),
            status.method.clone(),
        ]);
    }
    table.lines(Screen::of_stdout()).iter().for_each(|line| say!("{line}"));
}

/// The share of keys that are at the target; `None` where nobody counted them.
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

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

fn show(entry: &Entry, as_json: bool) {
    if as_json {
        say!("{}", json!(entry));
        return;
    }
    let status = &entry.status;
    say!("job      {}", status.id);
    say!("state    {}", state(entry));
    if !status.message.is_empty() {
        say!("         {}", status.message);
    }
    say!("started  {}", format_time(status.created_s));
    if let Some(ended) = ended(status) {
        say!("ended    {ended}");
    }
    say!("method   {}", status.method);
    say!("cluster  {}", status.cluster);
    say!("source   {}", status.source);
    say!("target   {}", status.target);
    say!("slots    {}", status.slots);
    say!("moved    {}", if status.moved.is_empty() { "none" } else { &status.moved });
    if let Some(percent) = percent(status) {
        let (done, all) = (format_count(status.keys_moved), format_count_of(status.keys, "key"));
        say!("keys     {done} of {all} are at the target: {percent} %");
    }
    if !status.ended && !entry.running {
        say!("go on with: whimbrel jobs resume {}", status.id);
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

async fn cancel(store: &Store, entry: &Entry, access: &JobAccess, as_json: bool) -> Result<Exit> {
    let id = &entry.status.id;
    if entry.status.ended {
        say(as_json, "nothing", &format!("job {id} has ended already: {}", entry.status.phase));
        return Ok(Exit::Success);
    }
    if !entry.running {
        let stop = CancellationToken::new();
        // Resumed and cancelled at once: what was begun is looked at and rolled back.
        stop.cancel();
        let deployment = open(access, &entry.status).await?;
        let ready = Ready::open(store, id)?;
        let show = quiet(as_json);
        let exit = run_begun(&deployment, vec![ready], &show, &stop).await?;
        // Rolled back is what was asked for.
        if exit == Exit::Stopped {
            return Ok(Exit::Success);
        }
        if exit == Exit::Success {
            say_too_late(id, as_json);
        }
        return Ok(exit);
    }
    store.ask_to_cancel(id)?;
    let asked = std::time::Instant::now();
    while asked.elapsed() < CANCEL_WAIT {
        let now = find(store, id)?;
        if now.status.ended || !now.running {
            match now.status.phase == "done" {
                true => say_too_late(id, as_json),
                false => say(as_json, "cancelled", &format!("job {id}: {}", now.status.phase)),
            }
            return Ok(Exit::Success);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let what = "the process that runs it has not ended it yet; it has been asked to";
    Err(Error::own(format!("cancel job {id}"), what).with_remedy("see `whimbrel jobs show`"))
}

fn say_too_late(id: &str, as_json: bool) {
    let what = "all of its slots were behind the fence already, so it was finished";
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
