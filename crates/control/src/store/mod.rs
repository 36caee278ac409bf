//! Where jobs are written down, so that a killed whimbrel can go on, and so that others can see them.
//!
//! The folder `jobs` below the state folder, and in it for each job:
//!
//! - `ID.json`: how it stands, replaced as a whole every second or so. Those of jobs that have ended are kept
//!   for 30 days, and at most 1,000 of them;
//! - `ID.events`: what happened to it and when, see [`Event`]; kept as long as the above;
//! - `ID.report`: what came of it, likewise;
//! - `ID.schedule`: a scheduled cutover, see [`crate::steering::Scheduled`];
//! - `ID.socket`: where the process that runs it takes requests, see [`crate::steering`];
//! - `names.lock`: held by the process that is about to give jobs their names;
//! - `ID.job`: for a job that moves slots, its journal, a redb file. The process that runs the job has it
//!   open, and locked. Other kinds have theirs in the state folder, see `whimbrel_flow::journal`.
//!
//! No password and no value is in any of them; names of keys may be in the reason why a job failed.

mod names;
mod status;
mod trace;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;
use whimbrel_flow::budget::RatesNow;
use whimbrel_flow::journal::{
    self, Documents, OpenError, RedbDocuments, remove_if_there, write_durably, write_whole,
};

pub use self::status::{BEGUN_BY, CUT_OVER, Entry, FAILED, FOLLOWING, Kind, Origin, Status, on_behalf_of};
pub use self::trace::{Event, HookEnd, What};
use crate::clock::now_s;
use crate::socket::is_served;

/// Format of the document. A file of another format is refused with a clear message.
const FORMAT: &str = "1";

/// Journals above this number are not listed: the folder is not ours alone.
const JOBS_MAX: usize = 10_000;

/// How often jobs are listed again if one has just gone.
const LISTED_TRIES: usize = 3;

/// How long all journals together may be open elsewhere while jobs are listed.
const LISTED_WITHIN: Duration = Duration::from_secs(1);

/// How long it is kept how a job ended, in seconds, and of how many.
const ENDED_FOR_S: u64 = 30 * 24 * 3600;
const ENDED_MAX: usize = 1_000;

/// The folder of the jobs.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The folder `jobs` below `state_dir`. It is made when the first job is.
    pub fn new(state_dir: &Path) -> Store {
        Store { folder: state_dir.join("jobs") }
    }

    /// The state folder.
    pub(crate) fn state_dir(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    /// Makes the journal of a new job.
    ///
    /// # Errors
    /// `Own` if the folder or file cannot be made, or a job of that name exists.
    pub fn create(&self, id: &str) -> Result<Journal> {
        std::fs::create_dir_all(&self.folder).map_err(|e| self.fail(id, &e))?;
        let path = self.path(id, "job");
        if path.symlink_metadata().is_ok() {
            return Err(self.fail(id, &"a job of this name exists"));
        }
        let documents = RedbDocuments::create(&path).map_err(|e| match e {
            OpenError::InUse => self.fail(id, &"a job of this name exists"),
            OpenError::Failed(e) => {
                // It may be half written, if the disk is full.
                drop(std::fs::remove_file(&path));
                self.fail(id, &e)
            }
        })?;
        let journal = self.journal(id, documents);
        journal.write(&[("format", FORMAT)]).inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        self.prune();
        Ok(journal)
    }

    /// Opens the journal of a job that no process runs.
    ///
    /// # Errors
    /// `Own` if there is none, a process runs it, or it cannot be read.
    pub fn open(&self, id: &str) -> Result<Journal> {
        let path = self.path(id, "job");
        if !path.exists() {
            return Err(self.fail(id, &"there is no such job").with_remedy(Remedy::ListJobs));
        }
        let documents = RedbDocuments::open_soon(&path).map_err(|e| match e {
            OpenError::InUse => {
                self.fail(id, &"another whimbrel is running this job").with_remedy(Remedy::WaitOrCancelJob)
            }
            OpenError::Failed(e) => self.fail(id, &e),
        })?;
        let journal = self.journal(id, documents);
        match journal.read("format")?.as_deref() {
            Some(FORMAT) => Ok(journal),
            _ => Err(self.fail(id, &"it was written by another version of whimbrel")),
        }
    }

    /// All jobs, the newest last. Files that are none are left out.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let until = Instant::now() + LISTED_WITHIN;
        let mut entries: Vec<Entry> =
            self.published()?.into_iter().filter_map(|status| self.entry_of(status, until)).collect();
        entries.sort_by(|a, b| (a.status.created_s, &a.status.id).cmp(&(b.status.created_s, &b.status.id)));
        Ok(entries)
    }

    /// How jobs stand as they were last written down, in no order.
    fn published(&self) -> Result<Vec<Status>> {
        // A run that ends gets another name, which a listing that had begun before does not show.
        let mut listed = self.published_once()?;
        for _ in 1..LISTED_TRIES {
            if !listed.1 {
                break;
            }
            listed = self.published_once()?;
        }
        Ok(listed.0)
    }

    /// The same, and whether one was gone that had been listed just before.
    fn published_once(&self) -> Result<(Vec<Status>, bool)> {
        let files = match std::fs::read_dir(&self.folder) {
            Ok(files) => files,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
            Err(e) => return Err(self.fail("list", &e)),
        };
        // What is no file, a pipe for example, could keep its reader waiting.
        let ids = files.filter_map(|file| {
            let file = file.ok().filter(|file| file.file_type().is_ok_and(|kind| kind.is_file()))?;
            let id = file.file_name().to_str()?.strip_suffix(".json").map(str::to_owned)?;
            // A name that no job has is not looked for.
            (self.path(&id, "json").file_name() == Some(&file.file_name())).then_some(id)
        });
        // All names first, so that they are those of one moment, nearly.
        let ids: Vec<String> = ids.take(JOBS_MAX).collect();
        // One under another name was left by a process that was killed while it wrote down how the job ended.
        let mut is_gone = false;
        let found = |id: String| {
            let found = self.find(&id);
            is_gone |= found.is_none() && !self.path(&id, "json").exists();
            found.filter(|status| status.id == id)
        };
        let mut found: Vec<Status> = ids.into_iter().filter_map(found).collect();
        // A run that ends is there under both of its names for a moment. What is newer is its next run, which
        // may have begun within the same second.
        let kept: HashMap<(String, u64), u64> = found
            .iter()
            .filter_map(|status| Some(((status.run_of()?.to_owned(), status.created_s), status.updated_s)))
            .collect();
        let has_ended = |status: &Status| {
            kept.get(&(status.id.clone(), status.created_s))
                .is_some_and(|ended_s| status.updated_s <= *ended_s)
        };
        found.retain(|status| !has_ended(status));
        Ok((found, is_gone))
    }

    /// Jobs of the cluster that have not ended and that no process runs, by name.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read.
    pub fn interrupted_of(&self, cluster: &str) -> Result<Vec<String>> {
        let left = |entry: &Entry| entry.is_interrupted() && entry.status.cluster == cluster;
        Ok(self.list()?.into_iter().filter(left).map(|entry| entry.status.id).collect())
    }

    /// The sync that runs and whose name is `wanted`, or begins so; if that is empty, the only one.
    ///
    /// # Errors
    /// `Options` if there is none, or more than one; `Own` if the folder cannot be read.
    pub fn running_sync(&self, wanted: &str) -> Result<Status> {
        let is_it = |entry: &Entry| {
            entry.status.kind == Kind::Sync && entry.running && entry.status.is_called(wanted)
        };
        let mut found: Vec<Status> =
            self.list()?.into_iter().filter(is_it).map(|entry| entry.status).collect();
        if let Some(at) = found.iter().position(|sync| [sync.label(), &sync.id].contains(&wanted)) {
            return Ok(found.swap_remove(at));
        }
        let refused = |what: String| Error::options(Side::Own, "find the sync", what);
        match (found.pop(), found.is_empty()) {
            (Some(sync), true) => Ok(sync),
            (None, _) => {
                let which = if wanted.is_empty() { "" } else { " by this name" };
                let folder = self.folder.parent().unwrap_or(&self.folder).display();
                Err(refused(format!("no sync runs in {folder}{which}")).with_remedy(Remedy::RunSync))
            }
            (Some(last), false) => {
                let names: Vec<&str> = found.iter().chain([&last]).map(Status::label).collect();
                Err(refused(format!("several run: {}", names.join(", ")))
                    .with_remedy("name the one you mean"))
            }
        }
    }

    /// The job of this name among these; else how the last run of it ended, which is kept under another name.
    pub fn of_name<T>(all: Vec<T>, status: impl Fn(&T) -> &Status, name: &str) -> Option<T> {
        let runs = all.into_iter().filter(|one| status(one).is_run_of(name));
        runs.max_by_key(|one| (status(one).id == name, status(one).created_s))
    }

    /// How a job stood when that was last written down; `None` if it never was.
    pub fn find(&self, id: &str) -> Option<Status> {
        serde_json::from_str(&std::fs::read_to_string(self.path(id, "json")).ok()?).ok()
    }

    /// A job of this name, and whether a process runs it; `None` if there is none.
    pub fn entry(&self, id: &str) -> Option<Entry> {
        self.entry_of(self.find(id)?, Instant::now() + LISTED_WITHIN)
    }

    /// The job with whether a process runs it; `None` for a job that is over although no process could record
    /// that.
    fn entry_of(&self, published: Status, until: Instant) -> Option<Entry> {
        match published.kind {
            _ if published.ended => Some(Entry { status: published, running: false }),
            Kind::Move => Some(self.entry_of_journal(published, until)),
            kind => {
                let running = self.is_served(&published.id);
                let is_over = !running && kind.has_journal() && !self.has_journal(&published.id);
                (!is_over).then_some(Entry { status: published, running })
            }
        }
    }

    /// Whether a journal of this name is in the state folder.
    fn has_journal(&self, id: &str) -> bool {
        self.folder.parent().is_some_and(|state_dir| journal::exists(state_dir, id))
    }

    /// Whether a process has the job open; if none has, what was written down last counts.
    fn entry_of_journal(&self, published: Status, until: Instant) -> Entry {
        let id = published.id.clone();
        if self.is_served(&id) {
            return Entry { status: published, running: true };
        }
        // Others who list jobs have it open for a moment, and so may a process that was just killed.
        let documents = match RedbDocuments::open_until(&self.path(&id, "job"), until) {
            Ok(documents) => documents,
            Err(e) => {
                return Entry { status: published, running: matches!(e, OpenError::InUse) };
            }
        };
        let journal = self.journal(&id, documents);
        let saved = journal.read("status").ok().flatten().and_then(|text| serde_json::from_str(&text).ok());
        let saved = saved.map(|saved: Status| saved.with_origin_of(Some(&published)));
        Entry { status: saved.unwrap_or(published), running: false }
    }

    /// The socket on which the process that runs a job takes requests.
    pub fn socket(&self, id: &str) -> PathBuf {
        self.path(id, "socket")
    }

    /// Whether a process takes requests there; even if it is stopped or hangs.
    pub fn is_served(&self, id: &str) -> bool {
        is_served(&self.socket(id))
    }

    /// Shows others how a job stands. Nothing depends on it, so a failure is no error.
    pub fn publish(&self, status: &Status) {
        // Two tasks of this process would use the same draft.
        static PUBLISHING: Mutex<()> = Mutex::new(());
        let _publishing = PUBLISHING.lock();
        self.publish_after(self.find(&status.id).as_ref(), status);
    }

    /// Likewise, if `before` is its state so far.
    fn publish_after(&self, before: Option<&Status>, status: &Status) {
        let publish = || {
            std::fs::create_dir_all(&self.folder)?;
            let mut status = status.clone().with_origin_of(before);
            status.pid = Some(std::process::id());
            if before.is_none_or(|before| before.created_s != status.created_s) {
                status.origin.begun_by = status.origin.begun_by.or_else(|| Some(status::begun_by()));
            }
            write_whole(&self.path(&status.id, "json"), &status)?;
            trace::note(&self.path(&status.id, "events"), before, &status)
        };
        if let Err(error) = publish() {
            tracing::warn!(%error, "the job's status could not be written");
        }
    }

    /// Notes that another process goes on with a job. Nothing depends on it, so a failure is no error.
    pub fn note_resumed(&self, id: &str) {
        self.note(id, What::Resumed { by: status::begun_by() });
    }

    /// Notes that a job was asked to be `done`. Nothing depends on it, so a failure is no error.
    pub(crate) fn note_asked(&self, id: &str, done: &str, on_behalf: Option<&str>, rates: RatesNow) {
        let by = on_behalf.map_or_else(status::begun_by, on_behalf_of);
        self.note(id, What::Asked { done: done.to_owned(), by, rates });
    }

    /// Notes that something has happened to a job. Nothing depends on it, so a failure is no error.
    pub(crate) fn note(&self, id: &str, what: What) {
        let event = Event { at_s: now_s(), what };
        if let Err(error) = trace::append(&self.path(id, "events"), [event]) {
            tracing::warn!(%error, "the job's events could not be written");
        }
    }

    /// Keeps how a job ended under a name of its own, which is returned: its next run has the same name.
    /// Nothing depends on it, so a failure is no error.
    pub fn end(&self, status: &Status) -> String {
        let mut kept = status.clone().with_origin_of(self.find(&status.id).as_ref());
        // Its next run, by another process, may have begun: what stands under its name is that one's then.
        let before = self.find(&status.id);
        let is_ours = before.as_ref().is_none_or(|there| there.created_s == status.created_s);
        // Runs that began within the same second take the next ones: none takes the place of another.
        while is_ours && self.path(&kept.kept_as(), "json").exists() {
            kept.created_s += 1;
        }
        let name = kept.kept_as();
        if is_ours {
            for ending in ["events", "report"] {
                // Not every job has one.
                let _ = std::fs::rename(self.path(&status.id, ending), self.path(&name, ending));
            }
            let _ = self.keep_schedule(&status.id, None::<&()>);
        }
        // First under its new name, so that it is listed at any moment.
        let kept = Status { id: name.clone(), scheduled: None, ..kept };
        self.publish_after(before.filter(|_| is_ours).as_ref(), &kept);
        if is_ours {
            let _ = std::fs::remove_file(self.path(&status.id, "json"));
        }
        self.prune();
        name
    }

    /// Keeps what came of a job that ends now. Nothing depends on it, so a failure is no error.
    pub fn keep_report(&self, id: &str, report: &impl Serialize) {
        if let Err(error) = write_whole(&self.path(id, "report"), report) {
            tracing::warn!(%error, "the job's report could not be written");
        }
    }

    /// What came of a job; `None` if it has not ended, or that was not written down.
    pub fn report(&self, id: &str) -> Option<Value> {
        serde_json::from_str(&std::fs::read_to_string(self.path(id, "report")).ok()?).ok()
    }

    /// Writes down a scheduled cutover; `None` if none is, or none any more.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub(crate) fn keep_schedule(&self, id: &str, scheduled: Option<&impl Serialize>) -> std::io::Result<()> {
        let path = self.path(id, "schedule");
        match scheduled {
            Some(scheduled) => write_durably(&path, scheduled),
            None => remove_if_there(&path),
        }
    }

    /// A scheduled cutover, if any was.
    ///
    /// # Errors
    /// Whatever the file system reports, or if it cannot be understood.
    pub(crate) fn schedule<T: DeserializeOwned>(&self, id: &str) -> std::io::Result<Option<T>> {
        match std::fs::read_to_string(self.path(id, "schedule")) {
            Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What happened to a job, the oldest first; empty if that was not written down.
    pub fn events(&self, id: &str) -> Vec<Event> {
        trace::read(&self.path(id, "events"))
    }

    /// Does not show a job any more; its journal stays.
    pub fn forget(&self, id: &str) {
        for ending in ["json", "events", "report", "schedule"] {
            // It may not be there.
            let _ = std::fs::remove_file(self.path(id, ending));
        }
    }

    /// Forgets those that ended long ago, and those above the number that is kept.
    fn prune(&self) {
        let Ok(mut ended) = self.published() else { return };
        ended.retain(|status| status.ended);
        ended.sort_by_key(|status| std::cmp::Reverse(status.updated_s));
        let now_s = now_s();
        let is_old = |status: &Status| status.updated_s.saturating_add(ENDED_FOR_S) < now_s;
        for (place, status) in ended.iter().enumerate() {
            if (place >= ENDED_MAX || is_old(status))
                && let Err(error) = self.remove(&status.id)
            {
                tracing::warn!(%error, "an old job could not be forgotten");
            }
        }
    }

    /// Forgets all jobs that have ended; how many.
    ///
    /// # Errors
    /// `Own` if the folder cannot be read, or a file cannot be removed.
    pub fn remove_ended(&self) -> Result<u64> {
        let ended: Vec<Entry> = self.list()?.into_iter().filter(|entry| entry.status.ended).collect();
        ended.iter().try_for_each(|entry| self.remove(&entry.status.id))?;
        Ok(ended.len() as u64)
    }

    /// Forgets a job.
    ///
    /// # Errors
    /// `Own` if a file cannot be removed.
    pub fn remove(&self, id: &str) -> Result<()> {
        let mut all = ["job", "json", "events", "report", "schedule"].into_iter();
        all.try_for_each(|ending| remove_if_there(&self.path(id, ending))).map_err(|e| self.fail(id, &e))
    }

    fn journal(&self, id: &str, documents: RedbDocuments) -> Journal {
        let documents = Box::new(documents);
        Journal { store: self.clone(), id: id.to_owned(), documents, latest: Arc::default() }
    }

    fn path(&self, id: &str, ending: &str) -> PathBuf {
        // Names come from users as well: none may lead out of the folder.
        let name: String = id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        self.folder.join(format!("{name}.{ending}"))
    }

    fn fail(&self, id: &str, what: &dyn std::fmt::Display) -> Error {
        Error::own(format!("job {id} in {}", self.folder.display()), what)
            .with_remedy(Remedy::ChooseStateDir("see that the disk has room"))
    }
}

/// The journal of one job, locked against other processes for as long as it is open.
#[derive(Debug)]
pub struct Journal {
    store: Store,
    id: String,
    documents: Box<dyn Documents>,
    latest: Arc<Mutex<Status>>,
}

impl Journal {
    /// The job's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The folder it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes the job down, and how it stands; it is on disk when this returns. Without a `status` what was
    /// [published](Journal::publish) is what others see.
    ///
    /// # Errors
    /// `Own` if it cannot be written: a full disk, for example. The job must stop then.
    pub fn save(&self, job: &impl Serialize, status: Option<&Status>) -> Result<()> {
        self.try_save(job, status).map_err(|e| self.fail(&e))
    }

    /// As [`Journal::save`]; the next try may succeed.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn try_save(&self, job: &impl Serialize, status: Option<&Status>) -> std::io::Result<()> {
        let job = serde_json::to_string(job)?;
        let status = status.map(serde_json::to_string).transpose()?;
        let mut documents = vec![("job", job.as_str())];
        documents.extend(status.as_deref().map(|status| ("status", status)));
        self.documents.write(&documents)
    }

    /// What was written last.
    ///
    /// # Errors
    /// `Own` if there is nothing, or it cannot be understood.
    pub fn load<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.read("job")?.ok_or_else(|| self.fail(&"it is empty"))?;
        serde_json::from_str(&text).map_err(|e| self.fail(&e))
    }

    /// Shows others how the job stands. Nothing depends on it, so a failure is no error.
    pub fn publish(&self, status: &Status) {
        self.latest.lock().clone_from(status);
        self.store.publish(status);
    }

    /// How the job stood when that was [published](Journal::publish) last.
    pub fn latest(&self) -> Arc<Mutex<Status>> {
        self.latest.clone()
    }

    fn read(&self, name: &str) -> Result<Option<String>> {
        self.documents.read(name).map_err(|e| self.fail(&e))
    }

    fn write(&self, documents: &[(&str, &str)]) -> Result<()> {
        self.documents.write(documents).map_err(|e| self.fail(&e))
    }

    /// What is said of a journal that cannot be used.
    pub(crate) fn fail(&self, what: &dyn std::fmt::Display) -> Error {
        self.store.fail(&self.id, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        (folder, store)
    }

    /// A run of a job, as it stands now.
    fn run_of(id: &str, created_s: u64) -> Status {
        Status { id: id.to_owned(), created_s, updated_s: now_s(), ..Status::default() }
    }

    #[test]
    fn a_job_is_found_again_and_locked_while_it_is_open() {
        let (_folder, store) = store();
        assert!(store.list().expect("no folder yet").is_empty());
        let journal = store.create("a-1").expect("created");
        journal.save(&vec![1, 2, 3], None).expect("saved");
        assert!(store.create("a-1").is_err(), "a name is used once");
        assert!(store.open("a-1").expect_err("locked").to_string().contains("another whimbrel"));
        drop(journal);
        let loaded: Vec<u32> = store.open("a-1").expect("free again").load().expect("loaded");
        assert_eq!(loaded, [1, 2, 3]);
        assert!(store.open("b-2").expect_err("unknown").to_string().contains("no such job"));
    }

    #[test]
    fn the_list_shows_who_is_running() {
        let (_folder, store) = store();
        let journal = store.create("a-1").expect("created");
        let status = Status {
            id: "a-1".to_owned(),
            cluster: "127.0.0.1:7000".to_owned(),
            source: "s".to_owned(),
            target: "t".to_owned(),
            slots: "0-5".to_owned(),
            moved: String::new(),
            keys: 7,
            keys_moved: 3,
            method: "external".to_owned(),
            phase: "Streaming".to_owned(),
            created_s: 1,
            updated_s: 2,
            ..Status::default()
        };
        journal.publish(&status);
        let origin = Origin { begun_by: Some(status::user()), plan: None };
        let status = Status { origin, pid: Some(std::process::id()), ..status };
        assert_eq!(store.list().expect("listed"), [Entry { status: status.clone(), running: true }]);
        // If a process dies, the journal shows how far it was.
        let later = Status { phase: "Draining".to_owned(), ..status };
        journal.save(&vec![1], Some(&later)).expect("saved");
        drop(journal);
        assert_eq!(store.list().expect("listed"), [Entry { status: later, running: false }]);
        store.remove("a-1").expect("removed");
        assert!(store.list().expect("listed").is_empty());
    }

    #[test]
    fn what_a_killed_process_has_left_under_another_name_is_no_second_job() {
        let (_folder, store) = store();
        store.publish(&Status { id: "sync-1".to_owned(), ..Status::default() });
        std::fs::rename(store.path("sync-1", "json"), store.path("sync-1-65f", "json")).expect("renamed");
        assert!(store.list().expect("listed").is_empty());
    }

    #[test]
    fn how_jobs_ended_is_kept_for_a_while() {
        let (_folder, store) = store();
        let copy = |id: &str, updated_s: u64| Status {
            id: id.to_owned(),
            kind: Kind::Copy,
            created_s: 17,
            updated_s,
            ..Status::default()
        };
        let now_s = now_s();
        store.publish(&copy("copy-1", now_s));
        store.end(&Status { ended: true, ..copy("copy-1", now_s) });
        store.end(&Status { ended: true, ..copy("copy-2", now_s - ENDED_FOR_S - 1) });
        let listed = store.list().expect("listed");
        let ids: Vec<&str> = listed.iter().map(|entry| entry.status.id.as_str()).collect();
        assert_eq!(ids, ["copy-1-11"], "one is too old, and the other runs no more");
        for number in 0..ENDED_MAX as u64 + 5 {
            store.publish(&Status { ended: true, ..copy(&format!("copy-9-{number}"), now_s + number) });
        }
        store.prune();
        let listed = store.list().expect("listed");
        assert_eq!(listed.len(), ENDED_MAX, "the oldest are forgotten");
        assert!(!listed.iter().any(|entry| entry.status.id == "copy-1-11"));
    }

    /// Who had it begun is known to the end, even if what writes its standing down does not know it.
    #[test]
    fn who_had_a_job_begun_is_kept() {
        let (_folder, store) = store();
        let (begun_by, plan) = (Some("token alice (console)".to_owned()), Some("p1".to_owned()));
        let origin = Origin { begun_by, plan };
        let updated_s = now_s();
        let plain = Status { id: "m-1".to_owned(), created_s: 7, updated_s, ..Status::default() };
        store.publish(&Status { origin: origin.clone(), ..plain.clone() });
        store.publish(&plain);
        let by = |id: &str| store.events(id).first().map(|event| event.what.to_string());
        assert_eq!(by("m-1").as_deref(), Some("begun by token alice (console)"));
        assert_eq!(store.find("m-1").expect("there").origin, origin);
        let name = store.end(&Status { ended: true, ..plain.clone() });
        assert_eq!(store.find(&name).expect("kept").origin, origin);
        // The next run of the same name is another one's.
        store.publish(&Status { created_s: 8, ..plain });
        let own = Origin { begun_by: Some(status::user()), plan: None };
        assert_eq!(store.find("m-1").expect("there").origin, own);
    }

    /// On whose behalf a job runs can be claimed by anyone: the user of the process stands behind it,
    /// whatever the claim says.
    #[test]
    fn a_claim_does_not_hide_the_user() {
        let as_user = format!(", as {}", status::user());
        assert_eq!(on_behalf_of("token a (console)"), format!("token a (console){as_user}"));
        for claim in ["token a (console), as nobody", &"x".repeat(10_000), "a\u{202e}\u{7}\u{200b}"] {
            let by = on_behalf_of(claim);
            assert!(by.ends_with(&as_user) && by.chars().count() <= 100 + as_user.len(), "{by}");
            assert!(!by.contains(['\u{202e}', '\u{7}', '\u{200b}']), "{by:?}");
        }
    }

    /// A program that asks for a job finds it at any moment, also while it ends.
    #[test]
    fn a_job_is_listed_at_any_moment_while_it_ends() {
        let (_folder, store) = store();
        let run = |created_s| run_of("sync-1", created_s);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            store.publish(&run(1));
            scope.spawn(|| {
                for number in 1..100 {
                    store.end(&Status { ended: true, ..run(number) });
                    store.publish(&run(number + 1));
                }
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let all = store.published().expect("listed");
                assert!(Store::of_name(all, |status| status, "sync-1").is_some(), "it was not listed");
            }
        });
    }

    #[test]
    fn runs_of_one_second_are_all_kept() {
        let (_folder, store) = store();
        let (id, updated_s) = ("copy-1".to_owned(), now_s());
        let run = Status { id, created_s: 7, updated_s, ended: true, ..Status::default() };
        let names: Vec<String> = (0..3)
            .map(|_| {
                store.publish(&run);
                store.end(&run)
            })
            .collect();
        assert_eq!(names, ["copy-1-7", "copy-1-8", "copy-1-9"]);
        let listed = store.list().expect("listed").into_iter().map(|entry| entry.status.id);
        assert_eq!(listed.collect::<Vec<_>>(), names);
        assert!(names.iter().all(|name| store.find(name).is_some_and(|kept| kept.is_run_of("copy-1"))));
    }

    /// A process may be slow to write down how its job ended: the journal is free by then, and another
    /// process may run the job again.
    #[test]
    fn a_run_that_ends_late_takes_nothing_from_the_next_one() {
        let (_folder, store) = store();
        let run = |created_s| run_of("copy-1", created_s);
        store.publish(&run(7));
        store.forget("copy-1");
        store.publish(&run(9));
        store.keep_report("copy-1", &"of the second");
        let kept = store.end(&Status { ended: true, ..run(7) });
        assert_eq!(store.find(&kept).map(|kept| kept.ended), Some(true));
        assert_eq!(store.find("copy-1").map(|next| (next.ended, next.created_s)), Some((false, 9)));
        assert_eq!((store.report(&kept), store.report("copy-1")), (None, Some("of the second".into())));
    }

    #[test]
    fn a_run_that_has_ended_is_found_by_the_name_that_it_had() {
        let (_folder, store) = store();
        let run = |created_s: u64| Status {
            id: "sync-1".to_owned(),
            kind: Kind::Sync,
            created_s,
            updated_s: now_s(),
            ended: true,
            ..Status::default()
        };
        let find = |name: &str| {
            let all = store.list().expect("listed");
            Store::of_name(all, |entry| &entry.status, name).map(|entry| entry.status.id)
        };
        store.end(&run(17));
        let last = store.end(&run(18));
        let other = Status { id: "sync-1-other".to_owned(), ..run(19) };
        store.publish(&other);
        assert_eq!(find("sync-1"), Some(last.clone()));
        assert_eq!(find(&last), Some(last));
        assert_eq!(find("sync-1-other").as_deref(), Some("sync-1-other"));
        assert_eq!(find("sync"), None);
        store.publish(&Status { ended: false, kind: Kind::Front, ..run(3) });
        std::fs::write(store.state_dir().join("sync-1.journal"), "").expect("written");
        assert_eq!(find("sync-1").as_deref(), Some("sync-1"), "the one that is there comes first");
    }

    /// A job whose process was killed is listed while there is something to continue.
    #[test]
    fn a_copy_without_its_journal_is_over() {
        let (folder, store) = store();
        store.publish(&Status { id: "copy-1".to_owned(), kind: Kind::Copy, ..Status::default() });
        std::fs::write(folder.path().join("copy-1.journal"), "").expect("written");
        assert_eq!(store.list().expect("listed").len(), 1);
        std::fs::remove_file(folder.path().join("copy-1.journal")).expect("removed");
        assert!(store.list().expect("listed").is_empty());
    }
}
