//! All jobs of a state folder, for people: also those of whose journals alone is left.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::link::LinkOptions;
use whimbrel_flow::journal::{self, Unfinished};
use whimbrel_flow::sync::FenceNote;

use crate::again;
use crate::clock::now_s;
use crate::service;
use crate::steering::{self, Request};
use crate::store::{Entry, Event, FOLLOWING, Kind, Status, Store};

/// How long a job that another process runs may take to notice that it is to be cancelled, and to roll back.
const CANCEL_WAIT: Duration = Duration::from_secs(120);

/// How long those that waited behind a job may be listed once it has ended: the process that would have run
/// them gives them up then.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(2);

/// How often to check whether it has.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// How often to look for more events.
const EVENTS_PERIOD: Duration = Duration::from_millis(500);

/// What is said of a sync that was cancelled after a cutover of it was interrupted.
pub const FENCE_LEFT: &str = ". A cutover of it was interrupted: writers may still be kept away from its \
    source, and whimbrel unfence SOURCE lets them in";

/// What came of an order to cancel a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAnswer {
    /// It had ended before.
    HasEnded,
    /// The process that runs it has been asked to end it.
    Asked,
    /// No process ran it, and now it cannot go on any more.
    Discarded {
        /// A cutover of it was killed, and what keeps writers away from its source may still be there. It is
        /// noted: `whimbrel unfence` takes it down.
        leaves_fence: bool,
    },
    /// No process runs it, and what it has moved has to be rolled back in its cluster.
    NeedsCluster,
}

/// A job that was named, and the others of its command that have not ended.
#[derive(Debug)]
pub struct Chosen {
    /// The named job.
    pub job: Entry,
    /// The others.
    pub others: Vec<Entry>,
    /// Whether the others are meant as well.
    pub all: bool,
}

impl Chosen {
    /// The job of this name.
    ///
    /// # Errors
    /// As [`Jobs::find`] and [`Jobs::beside`].
    pub fn find(jobs: &Jobs, name: &str, all: bool) -> Result<Chosen> {
        let job = jobs.find(name)?;
        Ok(Chosen { others: jobs.beside(&job.status)?, job, all })
    }

    /// Every job that runs.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read; `Options` if none runs.
    pub fn every(jobs: &Jobs) -> Result<Chosen> {
        let mut others = jobs.store.list()?;
        others.retain(|entry| entry.running);
        let nothing = || Error::options(Side::Own, "look for jobs that run", "there are none");
        let job = others.pop().ok_or_else(nothing)?;
        Ok(Chosen { job, others, all: true })
    }

    /// Those that are meant: those that wait for their turn come first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        let others = self.others.iter().filter(|_| self.all);
        let (first, last) =
            if self.job.status.waits() { (Some(&self.job), None) } else { (None, Some(&self.job)) };
        first.into_iter().chain(others).chain(last)
    }
}

/// Something that can be asked of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Move no more keys for now.
    Pause,
    /// Move them again.
    Resume,
    /// Move them faster or slower.
    Set,
    /// End it, and undo what can be undone.
    Cancel,
    /// Have the target of a sync take over.
    Cutover,
    /// Go on with a copy, a sync or a verification that was interrupted.
    GoOn,
}

impl Ask {
    const ALL: [Ask; 6] = [Ask::Pause, Ask::Resume, Ask::Set, Ask::Cancel, Ask::Cutover, Ask::GoOn];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Ask::Pause => "pause",
            Ask::Resume => "resume",
            Ask::Set => "set",
            Ask::Cancel => "cancel",
            Ask::Cutover => "cutover",
            Ask::GoOn => "go-on",
        }
    }
}

/// The jobs of a state folder.
#[derive(Debug)]
pub struct Jobs {
    folder: PathBuf,
    /// The store that they are in.
    pub store: Store,
}

/// A job, and whether the process that runs it has answered.
#[derive(Debug)]
pub struct Seen {
    /// The job.
    pub entry: Entry,
    /// Whether it has.
    pub answers: bool,
    /// Whether it is none of the folder's.
    pub is_elsewhere: bool,
}

impl Seen {
    /// What others do in a cluster.
    pub fn elsewhere(status: Status) -> Seen {
        Seen { entry: Entry { status, running: true }, answers: true, is_elsewhere: true }
    }

    /// What a person calls the state of a job: a phase alone does not say that no process runs it.
    pub fn state_in_words(&self) -> String {
        let status = &self.entry.status;
        let paused = status.rates.pause_in_words().filter(|_| self.entry.running);
        let state = match (self.entry.state(), self.answers) {
            ("ended", _) => return status.phase.clone(),
            (_, false) => "does not answer",
            (state, true) => paused.as_deref().unwrap_or(state),
        };
        let scheduled = if status.scheduled.is_some() { ", cutover scheduled" } else { "" };
        match status.phase.is_empty() {
            true => format!("{state}{scheduled}"),
            false => format!("{state}: {}{scheduled}", status.phase),
        }
    }

    /// What can be asked of it now.
    pub fn asks(&self) -> Vec<Ask> {
        Ask::ALL.into_iter().filter(|ask| self.can(*ask)).collect()
    }

    /// Whether that can be asked of it now.
    pub fn can(&self, ask: Ask) -> bool {
        let (status, running) = (&self.entry.status, self.entry.running && self.answers);
        if status.ended || self.is_elsewhere {
            return false;
        }
        // The servers move slots by themselves: that can be ended, not slowed down.
        let is_paced = status.kind != Kind::Move || status.method == "external";
        let is_front = status.kind == Kind::Front;
        match ask {
            Ask::Pause => running && is_paced && !status.rates.paused,
            Ask::Resume => running && is_paced && status.rates.paused,
            Ask::Set => running && is_paced && !is_front,
            Ask::Cancel => !is_front && (running || self.entry.is_interrupted()),
            Ask::Cutover => running && status.kind == Kind::Sync && status.phase == FOLLOWING,
            // Moves go on by the daemon; of the others their command is written down.
            Ask::GoOn => self.entry.is_interrupted() && !status.again.is_empty(),
        }
    }

    /// All that is known of it, for programs. `again` is the command that continues it, if it was
    /// interrupted.
    pub fn as_object(&self, again: Option<String>) -> Value {
        let (entry, status) = (&self.entry, &self.entry.status);
        let mut object = json!(entry);
        object["name"] = json!(status.label());
        object["state"] = json!(entry.state());
        object["answers"] = json!(self.answers);
        object["elsewhere"] = json!(self.is_elsewhere);
        object["percent"] = json!(status.percent());
        object["ended_s"] = json!(status.ended.then_some(status.updated_s));
        object["again"] = json!(again.filter(|_| entry.is_interrupted()));
        object
    }
}

impl Jobs {
    /// Those of this folder.
    pub fn of(folder: &Path) -> Jobs {
        Jobs { folder: folder.to_owned(), store: Store::new(folder) }
    }

    /// All of them.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read.
    pub fn all(&self) -> Result<Vec<Entry>> {
        let mut entries = self.store.list()?;
        let journals = journal::unfinished(&self.folder)
            .map_err(|e| Error::own(format!("read {}", self.folder.display()), e))?;
        for job in journals {
            let is_listed = entries.iter().any(|entry| entry.status.id == job.name);
            // Its process has written down how it ended, and is about to remove the journal.
            let ends = || {
                let has_ended = entries.iter().any(|entry| entry.status.run_of() == Some(&job.name));
                has_ended && self.store.is_served(&job.name)
            };
            if !is_listed && !ends() {
                entries.extend(self.of_journal(job));
            }
        }
        Ok(entries)
    }

    /// A job of which only the journal is left.
    fn of_journal(&self, job: Unfinished) -> Option<Entry> {
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

    /// The job that is meant: by its name, or the beginning of it. If the user has given several the same
    /// name, it is the job that has not ended, else the job that ended last.
    ///
    /// # Errors
    /// `Options` if it is none, or could be several; `Own` if the folder cannot be read.
    pub fn find(&self, job: &str) -> Result<Entry> {
        let entries = self.all()?;
        let named = entries.iter().filter(|entry| entry.status.name.as_deref() == Some(job));
        let named = named.max_by_key(|entry| (!entry.status.ended, entry.status.updated_s));
        let found: Vec<&Entry> = match entries.iter().find(|entry| entry.status.id == job).or(named) {
            // How earlier runs of it ended has names that begin with its name.
            Some(exactly) => vec![exactly],
            // An empty name, as of a variable that is not set, would be the beginning of every one.
            None => entries.iter().filter(|entry| !job.is_empty() && entry.status.is_called(job)).collect(),
        };
        match &found[..] {
            [one] => Ok((*one).clone()),
            several => {
                let what = match several.len() {
                    0 if job.is_empty() => "no job has an empty name".to_owned(),
                    0 => format!("there is no job {job}"),
                    n => format!("{job} could be any of {n} jobs"),
                };
                Err(Error::options(Side::Own, "find the job", what).with_remedy("see `whimbrel jobs list`"))
            }
        }
    }

    /// Jobs of one plan, or of one command, that have not ended. Those that wait for their turn come first:
    /// none of them is to begin when another one is ended.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read.
    pub fn of_plan(&self, plan: &str) -> Result<Vec<Entry>> {
        let is_of = |status: &Status| !status.ended && status.origin.plan.as_deref() == Some(plan);
        let mut left: Vec<Entry> = self.all()?.into_iter().filter(|entry| is_of(&entry.status)).collect();
        left.sort_by_key(|entry| (!entry.status.waits(), entry.status.id.clone()));
        Ok(left)
    }

    /// The other jobs of a job's plan or command: as [`Jobs::of_plan`].
    ///
    /// # Errors
    /// Likewise.
    pub fn beside(&self, job: &Status) -> Result<Vec<Entry>> {
        let Some(plan) = &job.origin.plan else { return Ok(Vec::new()) };
        let mut others = self.of_plan(plan)?;
        others.retain(|other| other.status.id != job.id);
        Ok(others)
    }

    /// Those of `others` that have not ended, now that one of them has been ended: a process that runs them
    /// one after another begins none after that, and gives up those that wait.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read.
    pub async fn left_of(&self, others: &[Entry]) -> Result<Vec<Entry>> {
        let asked = Instant::now();
        loop {
            let now = others.iter().filter_map(|other| self.now_of(&other.status));
            let left: Vec<Entry> = now.filter(|entry| !entry.status.ended).collect();
            if !left.iter().any(|entry| entry.status.waits()) || asked.elapsed() >= GIVEN_UP_WITHIN {
                return Ok(left);
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }

    /// A job as it is now, by how it stood before; also once it has ended, and is kept under another name.
    /// `None` if nothing is known of it any more.
    pub fn now_of(&self, before: &Status) -> Option<Entry> {
        // Another run of it can have got its name.
        let is_it = |entry: &Entry| entry.status.created_s == before.created_s;
        let entry = self.store.entry(&before.id).filter(is_it);
        entry.or_else(|| self.store.entry(&before.kept_as()).filter(is_it))
    }

    /// Jobs that run are asked how they stand, all at once; a job that does not answer is shown as it was
    /// last written down.
    pub async fn as_they_are(&self, entries: Vec<Entry>) -> Vec<Seen> {
        let mut asked = JoinSet::new();
        for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.running) {
            let socket = self.store.socket(&entry.status.id);
            asked.spawn(async move { (place, steering::standing(&socket).await) });
        }
        let mut seen: Vec<Seen> =
            entries.into_iter().map(|entry| Seen { entry, answers: true, is_elsewhere: false }).collect();
        while let Some(answer) = asked.join_next().await {
            let Ok((place, standing)) = answer else { continue };
            match standing {
                Some(standing) => {
                    let entry = &mut seen[place].entry;
                    entry.status = standing.job.with_origin_of(Some(&entry.status));
                }
                None => seen[place].answers = false,
            }
        }
        seen
    }

    /// Reports what happened to a job, and with `on` what happens to it until it has ended. False if `stop`
    /// came before that.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read.
    pub async fn follow(
        &self,
        entry: &Entry,
        on: bool,
        stop: &CancellationToken,
        report: impl Fn(&Event),
    ) -> Result<bool> {
        let mut last: Option<Event> = None;
        let mut id = entry.status.id.clone();
        loop {
            // Looked at first: what a process writes last it writes while it still runs the job.
            let runs = self.all()?.iter().any(|entry| entry.status.id == id && entry.running);
            let mut events = self.store.events(&id);
            if events.is_empty() && last.is_some() {
                // It has ended, and is kept under another name.
                id = entry.status.kept_as();
                events = self.store.events(&id);
            }
            let seen = last.as_ref().and_then(|last| events.iter().rposition(|event| event == last));
            events[seen.map_or(0, |seen| seen + 1)..].iter().for_each(&report);
            last = events.pop();
            if !on || !runs {
                return Ok(true);
            }
            if stop.run_until_cancelled(tokio::time::sleep(EVENTS_PERIOD)).await.is_none() {
                return Ok(false);
            }
        }
    }

    /// Waits until a job that was asked to end has ended; how it ended, if that is known. `None` if it takes
    /// too long.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read.
    pub async fn until_cancelled(&self, entry: &Entry) -> Result<Option<Option<Status>>> {
        let id = &entry.status.id;
        let asked = Instant::now();
        while asked.elapsed() < CANCEL_WAIT {
            let is_it = |now: &Entry| {
                now.status.id == *id
                    || now.status.is_run_of(id) && now.status.created_s == entry.status.created_s
            };
            let now = self.store.list()?.into_iter().find(is_it);
            match now {
                Some(now) if !now.status.ended && now.running => {}
                now => return Ok(Some(now.map(|now| now.status))),
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
        Ok(None)
    }

    /// What is said of the fence of a job that was cancelled: a cutover that is noted may have left one.
    pub fn fence_left(&self, entry: &Entry) -> &'static str {
        if FenceNote::file_of(&self.folder, &entry.status.id).exists() { FENCE_LEFT } else { "" }
    }

    /// Has a job end: the process that runs it is asked to; a job that no process runs is discarded, if
    /// nothing has to be rolled back.
    ///
    /// # Errors
    /// `Options` for a front that no process runs; as [`service::ask`] for a job that runs, and as
    /// [`whimbrel_flow::sync::discard`] for one that does not.
    pub async fn cancel(&self, entry: &Entry) -> Result<CancelAnswer> {
        let status = &entry.status;
        match status.kind {
            _ if status.ended => Ok(CancelAnswer::HasEnded),
            _ if entry.running => {
                service::ask(&self.store, &status.id, Request::Cancel, "cancel").await?;
                Ok(CancelAnswer::Asked)
            }
            Kind::Move => Ok(CancelAnswer::NeedsCluster),
            Kind::Front => {
                let what = "keys of a front can be on both servers: it is no job that can be left as it is";
                Err(Error::options(Side::Own, "cancel the job", what)
                    .with_remedy("run the front again; whimbrel front reverse has the keys move back"))
            }
            Kind::Copy | Kind::Verify | Kind::Sync => {
                Ok(CancelAnswer::Discarded { leaves_fence: self.discard(status)? })
            }
        }
    }

    /// Permanently ends a job that no process runs and that moves no slots: it cannot go on any more. True if
    /// the fence of a killed cutover may still be up.
    ///
    /// # Errors
    /// As [`whimbrel_flow::sync::discard`].
    fn discard(&self, status: &Status) -> Result<bool> {
        let leaves_fence = steering::discard(&self.folder, status.kind, &status.id)?;
        let (phase, updated_s) = ("cancelled".to_owned(), now_s());
        self.store.end(&Status { phase, ended: true, updated_s, ..status.clone() });
        Ok(leaves_fence)
    }
}

/// Opens the cluster of a job: at the address that the user gives, else at the one at which it was reached
/// when the job was made, else at any of the primaries that it had then.
///
/// # Errors
/// As [`Deployment::probe`]: of the first address, if none is reached.
pub async fn open_cluster(
    status: &Status,
    named: Option<&str>,
    endpoint: impl Fn(&str) -> Result<Endpoint>,
) -> Result<Arc<Deployment>> {
    let probe = async |at: &str| Deployment::probe(endpoint(at)?, LinkOptions::default()).await.map(Arc::new);
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
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Origin;

    fn status(id: &str) -> Status {
        let (id, updated_s) = (id.to_owned(), now_s());
        Status { id, kind: Kind::Front, ended: true, updated_s, ..Status::default() }
    }

    #[test]
    fn a_job_is_named_by_its_name_or_the_beginning_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let jobs = Jobs::of(folder.path());
        for id in ["copy-1", "copy-1-aa", "sync-2"] {
            jobs.store.publish(&status(id));
        }
        for (name, id) in [("copy-1", "copy-1"), ("copy-1-", "copy-1-aa"), ("s", "sync-2")] {
            assert_eq!(jobs.find(name).expect(name).status.id, id);
        }
        for (id, updated_s, ended) in [("m1", 9, false), ("m2", 10, true), ("m3", 11, true), ("m4", 8, true)]
        {
            let (name, kind) = (Some(if id == "m4" { "late" } else { "night" }.to_owned()), Kind::Front);
            let (id, updated_s) = (id.to_owned(), now_s() + updated_s);
            jobs.store.publish(&Status { name, kind, updated_s, ended, ..status(&id) });
        }
        for (name, id) in [("night", "m1"), ("m2", "m2"), ("lat", "m4")] {
            assert_eq!(jobs.find(name).expect(name).status.id, id);
        }
        jobs.store.publish(&Status { name: Some("night".to_owned()), updated_s: now_s(), ..status("m1") });
        assert_eq!(jobs.find("night").expect("it ended last").status.id, "m3");
        let refused = |name: &str| jobs.find(name).expect_err(name).to_string();
        assert!(refused("copy").contains("could be any of 2 jobs"), "{}", refused("copy"));
        assert!(refused("verify").contains("there is no job verify"), "{}", refused("verify"));
    }

    /// Jobs of one command are known together, those that wait first; ended ones and those of others are none
    /// of them.
    #[tokio::test]
    async fn jobs_of_one_command_are_known_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let jobs = Jobs::of(folder.path());
        let part = |id: &str, plan: &str, phase: &str, ended: bool| {
            let origin = Origin { plan: Some(plan.to_owned()), ..Origin::default() };
            let (kind, phase) = (Kind::Front, phase.to_owned());
            let status = Status { origin, kind, phase, ended, ..status(id) };
            jobs.store.publish(&status);
            status
        };
        let first = part("m-1", "m-1", "streaming", false);
        part("m-2", "m-1", "streaming", false);
        part("m-3", "m-1", "queued", false);
        part("m-4", "m-1", "done", true);
        part("m-5", "m-5", "streaming", false);
        let ids = |found: Vec<Entry>| found.into_iter().map(|entry| entry.status.id).collect::<Vec<_>>();
        assert_eq!(ids(jobs.of_plan("m-1").expect("listed")), ["m-3", "m-1", "m-2"]);
        let others = jobs.beside(&first).expect("listed");
        assert_eq!(ids(others.clone()), ["m-3", "m-2"]);
        assert!(jobs.beside(&status("m-6")).expect("listed").is_empty(), "it is no part of anything");
        // The job that waited is given up, and the other has ended.
        jobs.store.forget("m-3");
        part("m-2", "m-1", "cancelled", true);
        assert!(jobs.left_of(&others).await.expect("listed").is_empty());
    }

    /// Its process was killed before it could write down how the job stands.
    #[tokio::test]
    async fn a_journal_alone_is_a_job_that_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let described = serde_json::json!({"source": "a:1", "target": "b:2"}).to_string();
        let open = journal::Journal::<u32>::open(folder.path(), "copy-7", &described, false);
        drop(open.expect("a journal"));
        let jobs = Jobs::of(folder.path());
        let all = jobs.all().expect("listed");
        let job = all.first().expect("a job");
        assert_eq!((all.len(), job.status.kind, job.running), (1, Kind::Copy, false));
        assert_eq!((&*job.status.source, &*job.status.target), ("a:1", "b:2"));
        assert_eq!(job.status.again, ["copy", "a:1", "b:2", "--resume"]);
        let seen = jobs.as_they_are(all).await;
        assert!(seen[0].answers, "nobody is asked about what does not run");
        jobs.discard(&seen[0].entry.status).expect("removed");
        let left = jobs.all().expect("listed");
        assert_eq!(left.iter().map(|job| &*job.status.phase).collect::<Vec<_>>(), ["cancelled"]);
    }

    /// A job that is listed as running but has no process any more keeps nothing waiting.
    #[tokio::test]
    async fn nobody_waits_for_a_job_that_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let jobs = Jobs::of(folder.path());
        let running = Entry { status: status("sync-1"), running: true };
        assert!(jobs.until_cancelled(&running).await.expect("looked").is_some_and(|now| now.is_none()));
        let ended = Status { phase: "cancelled".to_owned(), ..status("sync-1") };
        jobs.store.end(&ended);
        let now = jobs.until_cancelled(&running).await.expect("looked").flatten();
        assert_eq!(now.map(|now| now.phase).as_deref(), Some("cancelled"));
        let seen = jobs.as_they_are(vec![running]).await;
        assert!(!seen[0].answers);
    }
}
