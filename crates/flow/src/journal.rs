//! What a killed copy needs in order to go on.
//!
//! One redb file for each job, in the state folder. It holds the job's description (so that a copy is only
//! ever resumed with what it was started with), for each shard and database how far every key has been
//! acknowledged, and which keys could not be copied. No password and no value is in it.

mod disk;
mod documents;
mod files;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::remedy::Remedy;

pub use self::disk::{DiskFull, disk_full_words, is_full};
pub use self::documents::{Documents, FileDocument, OpenError, RedbDocuments};
pub use self::files::{
    is_at, make_anew, refuse_link, remove_if_there, replace, sync_name, write_durably, write_whole,
};
use crate::scan::Position;

/// Format of the documents. A file of another format is refused with a clear message.
pub(crate) const FORMAT: u32 = 2;

/// Journals above this number are not listed.
const UNFINISHED_MAX: usize = 10_000;

/// How far one unit is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitMark {
    /// Every key up to this position has been dealt with. Survives a restart of whimbrel; void when the
    /// server's process is another.
    At(Mark),
    /// All keys have been dealt with in this pass.
    Done,
}

/// A [`Position`] as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    run_id: String,
    cursor: String,
}

impl From<&Position> for Mark {
    fn from(p: &Position) -> Self {
        Mark { run_id: p.run_id.clone(), cursor: String::from_utf8_lossy(&p.cursor).into_owned() }
    }
}

impl From<Mark> for Position {
    fn from(m: Mark) -> Self {
        Position { run_id: m.run_id, cursor: Bytes::from(m.cursor) }
    }
}

/// A key that was not copied, and why.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct KeyFailure {
    /// Its database on the source.
    pub db: u32,
    /// Its name, with unprintable bytes escaped.
    pub key: String,
    /// Its slot.
    pub slot: u16,
    /// The reason.
    pub reason: String,
}

/// A failed key as a later run has to know it: a run that goes on reads some keys again.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct FailedKey {
    /// What people see of it.
    #[serde(flatten)]
    pub failure: KeyFailure,
    /// Hash of its database and its whole name, in hexadecimal: of a long name only the beginning is shown.
    /// Journals of earlier versions have none.
    #[serde(default)]
    pub hash: String,
}

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JournalState {
    /// The pass under way, from 1 on; 0 before the first.
    pub pass: u32,
    /// The slots this pass is about, if these are not all: as ranges, `0-5,9`.
    #[serde(with = "slots_as_text")]
    pub slots: Option<SlotSet>,
    /// Each unit that has begun, by `SHARD/DATABASE`.
    pub units: BTreeMap<String, UnitMark>,
    /// Which shard of the source owned which slots when this pass began: shard id and slots.
    pub source_layout: BTreeMap<String, String>,
    /// Slots of the source in doubt so far: gone through again after this pass. Journals have had them under
    /// this name, and those below.
    #[serde(rename = "doubt_source", with = "slots_as_text")]
    pub suspects_source: Option<SlotSet>,
    /// Slots of the target in doubt so far.
    #[serde(rename = "doubt_target", with = "slots_as_text")]
    pub suspects_target: Option<SlotSet>,
    /// How many keys could not be copied so far.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<FailedKey>,
    /// The process behind each primary of the target. Another one may have lost what was acknowledged.
    pub target_runs: HashMap<String, String>,
}

impl JournalState {
    /// True if nothing has been done yet.
    pub fn is_fresh(&self) -> bool {
        self.pass == 0
    }

    /// The next pass goes through these slots.
    pub(crate) fn begin_pass(&mut self, slots: &SlotSet) {
        self.slots = if slots.is_full() { None } else { Some(slots.clone()) };
        self.units.clear();
    }
}

/// True if a journal by this name is left over from an earlier run.
pub fn exists(folder: &Path, name: &str) -> bool {
    file_of(folder, name).exists()
}

/// The path of the journal of this name.
pub(crate) fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.journal"))
}

/// True if a journal by this name holds a job that has begun. A process that was killed while it made the
/// journal has left an empty one.
pub fn has_begun(folder: &Path, name: &str) -> bool {
    let is_empty = |documents: RedbDocuments| matches!(documents.read("state"), Ok(None));
    exists(folder, name) && !lock(folder, name).is_ok_and(is_empty)
}

/// Keeps others from running the job of this name, until the result is dropped.
///
/// # Errors
/// If a process runs it, or its journal cannot be opened.
pub fn lock(folder: &Path, name: &str) -> std::result::Result<RedbDocuments, OpenError> {
    RedbDocuments::open_soon(&file_of(folder, name))
}

/// True if a process has the journal of this name open: the job runs.
pub fn is_open(folder: &Path, name: &str) -> bool {
    exists(folder, name) && matches!(lock(folder, name), Err(OpenError::InUse))
}

/// Ends the job of a journal that no process has open: it cannot go on any more.
///
/// # Errors
/// `Own` if a process runs the job, or the file cannot be removed. A missing file is no error.
pub fn discard(folder: &Path, name: &str) -> Result<()> {
    let path = file_of(folder, name);
    if !path.exists() {
        return Ok(());
    }
    let fail = |e: &dyn std::fmt::Display| Error::own(format!("remove the journal {}", path.display()), e);
    match lock(folder, name) {
        Err(OpenError::InUse) => Err(fail(&"a process runs this job")),
        Ok(documents) => Box::new(documents).remove().map_err(|e| fail(&e)),
        // The system could not open it, so a process may have it open.
        Err(OpenError::Failed(e)) if e.raw_os_error().is_some() && !is_full(&e) => Err(fail(&e)),
        // What cannot be read cannot be resumed either.
        Err(OpenError::Failed(_)) => std::fs::remove_file(&path).map_err(|e| fail(&e)),
    }
}

/// A copy, a sync or a verification that has not ended: its journal is in the folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Unfinished {
    /// The name of the journal.
    pub name: String,
    /// A process has it open.
    pub running: bool,
    /// When it was last written, in seconds since the epoch; 0 if the system does not report it.
    pub written_s: u64,
    /// What describes the job, as it was given to [`Journal::open`]; `Null` if it cannot be read.
    pub described: serde_json::Value,
}

/// Copies, syncs and verifications that have not ended, by name: at most 10,000.
///
/// # Errors
/// If the folder cannot be read. A missing folder holds none.
pub fn unfinished(folder: &Path) -> std::io::Result<Vec<Unfinished>> {
    let files = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut found: Vec<Unfinished> = files
        .filter_map(|file| {
            let name = file.ok()?.file_name().to_str()?.strip_suffix(".journal")?.to_owned();
            ["copy-", "sync-", "verify-"].iter().any(|kind| name.starts_with(kind)).then_some(name)
        })
        .take(UNFINISHED_MAX)
        .filter_map(|name| read_unfinished(folder, name))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn read_unfinished(folder: &Path, name: String) -> Option<Unfinished> {
    let path = file_of(folder, &name);
    refuse_link(&path).ok()?;
    let about = path.metadata();
    // It is just being made, or its process was killed then.
    if about.as_ref().is_ok_and(|about| about.len() == 0) {
        return None;
    }
    let written = about.and_then(|about| about.modified()).ok();
    let written_s =
        written.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs());
    let unread = Unfinished { name, running: false, written_s, described: serde_json::Value::Null };
    let described = match RedbDocuments::open(&path) {
        Ok(documents) => documents.read("job").ok().flatten(),
        Err(OpenError::InUse) => return Some(Unfinished { running: true, ..unread }),
        Err(OpenError::Failed(_)) => None,
    };
    // If a process was killed, opening its journal wrote to it. What is reported is the time at which that
    // process wrote.
    if let (Some(written), Ok(file)) = (written, File::options().write(true).open(&path))
        && let Err(error) = file.set_modified(written)
    {
        tracing::debug!(%error, "the time of a journal is not put back");
    }
    let described = described.and_then(|text| serde_json::from_str(&text).ok());
    Some(Unfinished { described: described.unwrap_or_default(), ..unread })
}

mod slots_as_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use whimbrel_core::slot::SlotSet;

    pub fn serialize<S: Serializer>(slots: &Option<SlotSet>, s: S) -> Result<S::Ok, S::Error> {
        slots.as_ref().map(ToString::to_string).serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<SlotSet>, D::Error> {
        Option::<String>::deserialize(d)?
            .map(|text| text.parse().map_err(serde::de::Error::custom))
            .transpose()
    }
}

/// The journal of one job, with how far it is.
#[derive(Debug)]
pub struct Journal<S = JournalState> {
    path: PathBuf,
    documents: Box<dyn Documents>,
    state: S,
    saved: Option<String>,
}

impl<S: Clone + Default + Serialize + DeserializeOwned> Journal<S> {
    /// Opens the journal of the job that `description` describes. The job's name is derived from it: the same
    /// copy finds its journal again. With `resume` it continues what it holds; otherwise it starts empty.
    ///
    /// # Errors
    /// `Own` if the folder or file cannot be used, if another whimbrel has it open, or if there is nothing to
    /// resume.
    pub fn open(folder: &Path, name: &str, description: &str, resume: bool) -> Result<Journal<S>> {
        if !resume {
            return Journal::begin_at_once(folder, name, description, S::default());
        }
        let path = file_of(folder, name);
        if !path.exists() {
            return Err(Error::own(
                format!("journal {}", path.display()),
                "there is no unfinished job like this one",
            )
            .with_remedy(Remedy::RepeatOptionsOrBeginAnew { existing: name.starts_with("copy-") }));
        }
        let documents = Box::new(RedbDocuments::open_soon(&path).map_err(|e| not_opened(&path, e))?);
        let mut journal = Journal { path, documents, state: S::default(), saved: None };
        journal.state = journal.load(description)?;
        Ok(journal)
    }

    /// The journal of a new job that begins with this state. If the disk is full it waits for room, as
    /// [`DiskFull::until_room`].
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub async fn begin(
        folder: &Path,
        name: &str,
        description: &str,
        state: S,
        disk: &DiskFull,
    ) -> Result<Journal<S>> {
        let path = file_of(folder, name);
        let make = || match Journal::make(&path, description, state.clone()) {
            Ok(journal) => Ok(Ok(journal)),
            Err(OpenError::Failed(e)) => Err(e),
            Err(e) => Ok(Err(e)),
        };
        let made = disk.until_room(make).await.unwrap_or_else(|e| Err(OpenError::Failed(e)));
        made.map_err(|e| not_opened(&path, e))
    }

    /// As [`Journal::begin`], without waiting for room.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn begin_at_once(folder: &Path, name: &str, description: &str, state: S) -> Result<Journal<S>> {
        let path = file_of(folder, name);
        Journal::make(&path, description, state).map_err(|e| not_opened(&path, e))
    }

    fn make(path: &Path, description: &str, state: S) -> std::result::Result<Journal<S>, OpenError> {
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(OpenError::Failed)?;
        let documents = Box::new(RedbDocuments::create(path)?);
        // In one transaction: a process that is killed leaves all of it or nothing.
        let text = serde_json::to_string(&state).map_err(|e| OpenError::Failed(e.into()))?;
        let begun = [("format", &*FORMAT.to_string()), ("job", description), ("state", &text)];
        documents.write(&begun).map_err(OpenError::Failed)?;
        Ok(Journal { path: path.to_owned(), documents, state, saved: Some(text) })
    }

    /// What it held when it was opened.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The job begins with this state.
    ///
    /// # Errors
    /// As [`Journal::save`].
    pub fn begin_with(&mut self, state: S) -> Result<()> {
        self.save(&state)?;
        self.state = state;
        Ok(())
    }

    /// Writes the state, durably, if it differs from what was written last.
    ///
    /// # Errors
    /// `Own` if it cannot be written: a full disk, for example.
    pub fn save(&mut self, state: &S) -> Result<()> {
        self.write(state).map_err(|e| self.fail(&e))
    }

    /// As [`Journal::save`], but tolerates a full disk, which `disk` shows. For states that another run does
    /// not need: without one, it goes on from an earlier state and repeats more, and nothing else differs.
    ///
    /// # Errors
    /// `Own` if it cannot be written for another reason, or the disk has been full for too long.
    pub fn checkpoint(&mut self, state: &S, disk: &DiskFull) -> Result<()> {
        let outcome = self.write(state);
        disk.bear(outcome).map(drop).map_err(|e| self.fail(&e))
    }

    fn write(&mut self, state: &S) -> std::io::Result<()> {
        let text = serde_json::to_string(state)?;
        if self.saved.as_deref() != Some(&text) {
            self.documents.write(&[("state", &text)])?;
            self.saved = Some(text);
        }
        Ok(())
    }

    /// The job is done: the file is removed.
    ///
    /// # Errors
    /// `Own` if it cannot be removed.
    pub fn finish(self) -> Result<()> {
        let path = self.path;
        self.documents.remove().map_err(|e| Error::own(format!("remove the journal {}", path.display()), e))
    }

    fn load(&self, description: &str) -> Result<S> {
        let read = |name| self.documents.read(name).map_err(|e| self.fail(&e));
        let (job, state) = (read("job")?, read("state")?);
        check_format(&*self.documents).map_err(|e| self.fail(&e))?;
        if job.as_deref() != Some(description) {
            return Err(self.fail(&io::Error::other("it belongs to a job with other options")));
        }
        serde_json::from_str(&state.unwrap_or_default()).map_err(|e| self.fail(&e.into()))
    }

    fn fail(&self, e: &io::Error) -> Error {
        unusable(&self.path, e)
    }
}

/// A journal cannot be read or written: why, and what to do about it. Nothing but the journal of a sync says
/// whether a cutover keeps writers away from either side, so nobody is told to begin without it.
fn unusable(path: &Path, e: &io::Error) -> Error {
    let is_of_sync = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sync-"));
    let remedy = match (is_full(e), e.raw_os_error(), is_of_sync) {
        (true, ..) => "make room on the disk",
        (false, Some(_), _) => "see that this user may read and write the file",
        (false, None, false) => "remove the file and start again",
        (false, None, true) => {
            "use the version of whimbrel that wrote it. Before you remove it, see that clients may write \
                where they should: only this file says whether a cutover keeps them away from a side"
        }
    };
    Error::own("use the journal", format!("the journal {} cannot be used: {e}", path.display()))
        .with_remedy(remedy)
}

/// What this version writes, it can read: journals of others are not guessed at.
pub(crate) fn check_format(documents: &dyn Documents) -> io::Result<()> {
    match documents.read("format")?.as_deref() == Some(&FORMAT.to_string()) {
        true => Ok(()),
        false => Err(io::Error::other("it was written by another version of whimbrel")),
    }
}

/// Why a journal cannot be opened.
pub(crate) fn not_opened(path: &Path, error: OpenError) -> Error {
    let error = match error {
        OpenError::InUse => {
            let at = format!("journal {}", path.display());
            return Error::own(at, "another whimbrel is running this very job")
                .with_remedy("wait for it to end");
        }
        // Another folder would begin without what this one knows.
        OpenError::Failed(error) if path.exists() => return unusable(path, &error),
        OpenError::Failed(error) => error,
    };
    let first = if is_full(&error) { "make room on the disk" } else { "" };
    Error::own("open the journal", format!("the journal {} cannot be used: {error}", path.display()))
        .with_remedy(Remedy::ChooseStateDir(first))
}
