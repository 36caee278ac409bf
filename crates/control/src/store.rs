//! Where jobs are written down, so that a killed whimbrel can go on, and so that others can see them.
//!
//! One folder, and in it for each job:
//!
//! - `ID.job`: its journal, a redb file. The process that runs the job has it open, and locked;
//! - `ID.json`: how it stands, for `whimbrel jobs list`, replaced as a whole every now and then. The journal
//!   knows better, but can be read only while nobody runs the job;
//! - `ID.cancel`: somebody wants the job cancelled. The process that runs it looks for this file.
//!
//! No password and no value is in any of them; names of keys may be in the reason why a job failed.

use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use whimbrel_engine::error::{Error, Result};
use whimbrel_flow::journal::{make_anew, refuse_link, write_whole};

/// The only table: names to JSON documents.
const DOCUMENTS: TableDefinition<'_, &str, &str> = TableDefinition::new("documents");

/// Format of the document. A file of another format is refused with a clear message.
const FORMAT: &str = "1";

/// Journals above this number are not listed: the folder is not ours alone.
const JOBS_MAX: usize = 10_000;

/// The folder of the jobs.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// How a job stands, as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub id: String,
    /// The cluster, as `HOST:PORT` without credentials.
    pub cluster: String,
    /// Addresses of the cluster's primaries when the job was made, likewise.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Node id of the source.
    pub source: String,
    /// Node id of the target.
    pub target: String,
    /// All of its slots, as ranges.
    pub slots: String,
    /// The slots that have been handed over.
    pub moved: String,
    /// How many keys the slots had when the job was made; 0 where nobody counted.
    #[serde(default)]
    pub keys: u64,
    /// How many of them are at the target.
    #[serde(default)]
    pub keys_moved: u64,
    /// `external`, `native` or `legacy`.
    pub method: String,
    /// The phase it is in.
    pub phase: String,
    /// Why it failed, or what it waits for; empty where there is nothing to say.
    pub message: String,
    /// When it was made and last changed, in seconds since the epoch.
    pub created_s: u64,
    /// See `created_s`.
    pub updated_s: u64,
    /// True once nothing is left to be done for it.
    pub ended: bool,
}

/// A job in the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// How it stands.
    #[serde(flatten)]
    pub status: Status,
    /// A process has it open.
    pub running: bool,
}

impl Store {
    /// The folder `jobs` below `state_dir`. It is made when the first job is.
    pub fn new(state_dir: &Path) -> Store {
        Store { folder: state_dir.join("jobs") }
    }

    /// Makes the journal of a new job.
    ///
    /// # Errors
    /// `Own` where the folder or file cannot be made, or a job of that name exists.
    pub fn create(&self, id: &str) -> Result<Journal> {
        std::fs::create_dir_all(&self.folder).map_err(|e| self.fail(id, &e))?;
        let path = self.path(id, "job");
        refuse_link(&path).map_err(|e| self.fail(id, &e))?;
        if path.exists() {
            return Err(self.fail(id, &"a job of this name exists"));
        }
        let db = Database::create(&path).map_err(|e| self.fail(id, &e))?;
        let journal = Journal { store: self.clone(), id: id.to_owned(), db };
        journal.write(&[("format", FORMAT)])?;
        Ok(journal)
    }

    /// Opens the journal of a job that nobody runs.
    ///
    /// # Errors
    /// `Own` where there is none, somebody runs it, or it cannot be read.
    pub fn open(&self, id: &str) -> Result<Journal> {
        let path = self.path(id, "job");
        if !path.exists() {
            return Err(self
                .fail(id, &"there is no such job")
                .with_remedy("see `whimbrel jobs list`; another --state-dir perhaps"));
        }
        let db = Database::open(&path).map_err(|e| match e {
            redb::DatabaseError::DatabaseAlreadyOpen => self
                .fail(id, &"another whimbrel is running this job")
                .with_remedy("wait for it, or cancel it with `whimbrel jobs cancel`"),
            other => self.fail(id, &other),
        })?;
        let journal = Journal { store: self.clone(), id: id.to_owned(), db };
        match journal.read("format")?.as_deref() {
            Some(FORMAT) => Ok(journal),
            _ => Err(self.fail(id, &"it was written by another version of whimbrel")),
        }
    }

    /// All jobs, the newest last. Files that are none are left out.
    ///
    /// # Errors
    /// `Own` where the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let files = match std::fs::read_dir(&self.folder) {
            Ok(files) => files,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.fail("list", &e)),
        };
        let mut entries: Vec<Entry> = files
            .filter_map(|file| {
                file.ok()?.path().file_name()?.to_str()?.strip_suffix(".json").map(str::to_owned)
            })
            .take(JOBS_MAX)
            .filter_map(|id| {
                let text = std::fs::read_to_string(self.path(&id, "json")).ok()?;
                let status: Status = serde_json::from_str(&text).ok()?;
                Some(if status.ended { Entry { status, running: false } } else { self.look(&id, status) })
            })
            .collect();
        entries.sort_by(|a, b| (a.status.created_s, &a.status.id).cmp(&(b.status.created_s, &b.status.id)));
        Ok(entries)
    }

    /// Whether a process has the job open; where none has, what was written down last is what counts.
    fn look(&self, id: &str, published: Status) -> Entry {
        let db = match Database::open(self.path(id, "job")) {
            Err(e) => {
                let running = matches!(e, redb::DatabaseError::DatabaseAlreadyOpen);
                return Entry { status: published, running };
            }
            Ok(db) => db,
        };
        let journal = Journal { store: self.clone(), id: id.to_owned(), db };
        let saved = journal.read("status").ok().flatten().and_then(|text| serde_json::from_str(&text).ok());
        Entry { status: saved.unwrap_or(published), running: false }
    }

    /// Asks the process that runs the job to cancel it.
    ///
    /// # Errors
    /// `Own` where the file cannot be written.
    pub fn ask_to_cancel(&self, id: &str) -> Result<()> {
        make_anew(&self.path(id, "cancel")).map(drop).map_err(|e| self.fail(id, &e))
    }

    /// Whether somebody wants the job cancelled.
    pub fn is_cancel_asked(&self, id: &str) -> bool {
        self.path(id, "cancel").exists()
    }

    /// Forgets a job.
    ///
    /// # Errors
    /// `Own` where a file cannot be removed.
    pub fn remove(&self, id: &str) -> Result<()> {
        for ending in ["cancel", "job", "json"] {
            match std::fs::remove_file(self.path(id, ending)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(self.fail(id, &e)),
                _ => {}
            }
        }
        Ok(())
    }

    fn path(&self, id: &str, ending: &str) -> PathBuf {
        // Names come from users as well: none may lead out of the folder.
        let name: String = id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        self.folder.join(format!("{name}.{ending}"))
    }

    fn fail(&self, id: &str, what: &dyn std::fmt::Display) -> Error {
        Error::own(format!("job {id} in {}", self.folder.display()), what)
            .with_remedy("see that the disk has room, or choose another folder with --state-dir")
    }
}

/// The journal of one job, locked against other processes for as long as it is open.
#[derive(Debug)]
pub struct Journal {
    store: Store,
    id: String,
    db: Database,
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
    /// `Own` where it cannot be written: a full disk, for example. The job must stop then.
    pub fn save(&self, job: &impl Serialize, status: Option<&Status>) -> Result<()> {
        let job = serde_json::to_string(job).map_err(|e| self.fail(&e))?;
        let status = status.map(serde_json::to_string).transpose().map_err(|e| self.fail(&e))?;
        let mut documents = vec![("job", job.as_str())];
        documents.extend(status.as_deref().map(|status| ("status", status)));
        self.write(&documents)
    }

    /// What was written last.
    ///
    /// # Errors
    /// `Own` where there is nothing, or it cannot be understood.
    pub fn load<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.read("job")?.ok_or_else(|| self.fail(&"it is empty"))?;
        serde_json::from_str(&text).map_err(|e| self.fail(&e))
    }

    /// Shows others how the job stands. Nothing depends on it, so a failure is no error.
    pub fn publish(&self, status: &Status) {
        if let Err(error) = write_whole(&self.store.path(&self.id, "json"), status) {
            tracing::warn!(%error, "the job's status could not be written");
        }
    }

    fn read(&self, name: &str) -> Result<Option<String>> {
        let read = || -> std::result::Result<Option<String>, redb::Error> {
            let tx = self.db.begin_read()?;
            let table = tx.open_table(DOCUMENTS)?;
            Ok(table.get(name)?.map(|v| v.value().to_owned()))
        };
        read().map_err(|e| self.fail(&e))
    }

    fn write(&self, documents: &[(&str, &str)]) -> Result<()> {
        let write = || -> std::result::Result<(), redb::Error> {
            let tx = self.db.begin_write()?;
            {
                let mut table = tx.open_table(DOCUMENTS)?;
                for (name, text) in documents {
                    table.insert(*name, *text)?;
                }
            }
            tx.commit()?;
            Ok(())
        };
        write().map_err(|e| self.fail(&e))
    }

    fn fail(&self, what: &dyn std::fmt::Display) -> Error {
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
            nodes: Vec::new(),
            source: "s".to_owned(),
            target: "t".to_owned(),
            slots: "0-5".to_owned(),
            moved: String::new(),
            keys: 7,
            keys_moved: 3,
            method: "external".to_owned(),
            phase: "Streaming".to_owned(),
            message: String::new(),
            created_s: 1,
            updated_s: 2,
            ended: false,
        };
        journal.publish(&status);
        assert_eq!(store.list().expect("listed"), [Entry { status: status.clone(), running: true }]);
        // Of a process that dies the journal tells where it was.
        let later = Status { phase: "Draining".to_owned(), ..status };
        journal.save(&vec![1], Some(&later)).expect("saved");
        drop(journal);
        assert_eq!(store.list().expect("listed"), [Entry { status: later, running: false }]);
        assert!(!store.is_cancel_asked("a-1"));
        store.ask_to_cancel("a-1").expect("asked");
        assert!(store.is_cancel_asked("a-1"));
        store.remove("a-1").expect("removed");
        assert!(store.list().expect("listed").is_empty() && !store.is_cancel_asked("a-1"));
    }
}
