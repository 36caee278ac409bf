//! Where a job's journal is kept: a few documents by name, small enough to be written as a whole.
//!
//! redb refuses all further work after an I/O error, so a database that failed, on a full disk for example,
//! is opened anew for the next access. What was there before the failed write is there still. The lock is
//! kept meanwhile: otherwise a second process could begin the same job.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{
    BackendError, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    TableHandle,
};

use super::files::{is_at, refuse_link, replace, sync_name};

/// The only table: names to JSON documents.
const DOCUMENTS: TableDefinition<'_, &str, &str> = TableDefinition::new("documents");

/// Documents by name.
pub trait Documents: fmt::Debug + Send + Sync {
    /// A document; `None` if there is none of that name.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&self, name: &str) -> io::Result<Option<String>>;

    /// Writes documents, all of them or none. They are on disk when this returns.
    ///
    /// # Errors
    /// If they cannot be written: a full disk, for example.
    fn write(&self, documents: &[(&str, &str)]) -> io::Result<()>;

    /// Removes all of them, and what they are kept in.
    ///
    /// # Errors
    /// If that cannot be done.
    fn remove(self: Box<Self>) -> io::Result<()>;
}

/// Documents in a redb file. A process that has it open keeps others from opening it.
#[derive(Debug)]
pub struct RedbDocuments {
    path: PathBuf,
    file: Arc<FileBackend>,
    /// `None` after an access that failed, until the next one.
    db: Mutex<Option<Database>>,
}

/// Why a file of documents cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has it open.
    InUse,
    /// Anything else.
    Failed(io::Error),
}

impl From<DatabaseError> for OpenError {
    fn from(e: DatabaseError) -> OpenError {
        match e {
            DatabaseError::DatabaseAlreadyOpen => OpenError::InUse,
            other => OpenError::Failed(failure(other)),
        }
    }
}

/// What the file system reported, if that is the cause: a full disk has to be recognized.
fn failure(e: impl Into<redb::Error>) -> io::Error {
    match e.into() {
        redb::Error::Io(e) => e,
        other => io::Error::other(other),
    }
}

/// By its first bytes redb knows a file; there are more numbers in its first page.
const FIRST_BYTES: usize = 9;
const FIRST_PAGE_BYTES: usize = 4_096;

/// A file that was begun just now is not longer.
const UNBEGUN_BYTES_MAX: u64 = 16 << 20;

/// How long others may have a file open to look at it, and how often it is tried again meanwhile.
const LISTED_WITHIN: Duration = Duration::from_secs(1);
const TRIED_EVERY: Duration = Duration::from_millis(10);

impl RedbDocuments {
    /// Opens the file, and creates it if it is missing. A symbolic link is not followed. A process that lists
    /// jobs may find the file between its creation and its lock, and has it open for a moment.
    ///
    /// # Errors
    /// If it cannot be used, or another process has had it open for a second.
    pub fn create(path: &Path) -> Result<RedbDocuments, OpenError> {
        refuse_link(path).map_err(OpenError::Failed)?;
        let make = || RedbDocuments::of(path, File::options().create(true).truncate(false).mode(0o600));
        tried_until(Instant::now() + LISTED_WITHIN, make)
    }

    /// Opens a file that is there. A symbolic link is not followed.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(path: &Path) -> Result<RedbDocuments, OpenError> {
        refuse_link(path).map_err(OpenError::Failed)?;
        RedbDocuments::of(path, &mut File::options())
    }

    /// As [`RedbDocuments::open`], for a job that goes on: a process that lists jobs has the file open for a
    /// moment.
    ///
    /// # Errors
    /// If it cannot be used, or another process has had it open for a second.
    pub fn open_soon(path: &Path) -> Result<RedbDocuments, OpenError> {
        RedbDocuments::open_until(path, Instant::now() + LISTED_WITHIN)
    }

    /// The same, with this bound instead: it is tried once at least.
    ///
    /// # Errors
    /// Likewise.
    pub fn open_until(path: &Path, until: Instant) -> Result<RedbDocuments, OpenError> {
        tried_until(until, || RedbDocuments::open(path))
    }

    fn of(path: &Path, options: &mut OpenOptions) -> Result<RedbDocuments, OpenError> {
        let file = options.read(true).write(true).open(path).map_err(OpenError::Failed)?;
        let opened = file.metadata().map_err(OpenError::Failed)?;
        let file = Arc::new(FileBackend::new(file)?);
        let db = match database(&file) {
            Err(DatabaseError::Storage(_)) if empty_unbegun(&file)? => database(&file)?,
            outcome => outcome?,
        };
        // Its last owner may have removed it between our opening and our lock: then no other process would
        // see it.
        if !is_at(path, &opened) {
            return Err(OpenError::InUse);
        }
        if has_other_tables(&db).map_err(|e| OpenError::Failed(failure(e)))? {
            let what = "another version of whimbrel has written it";
            return Err(OpenError::Failed(io::Error::other(what)));
        }
        Ok(RedbDocuments { path: path.to_owned(), file, db: Mutex::new(Some(db)) })
    }

    /// All documents by their names.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn all(&self) -> io::Result<BTreeMap<String, String>> {
        self.with(|db| {
            let table = match db.begin_read()?.open_table(DOCUMENTS) {
                Ok(table) => table,
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
                Err(e) => return Err(e.into()),
            };
            let mut all = BTreeMap::new();
            for entry in table.iter()? {
                let (name, text) = entry?;
                all.insert(name.value().to_owned(), text.value().to_owned());
            }
            Ok(all)
        })
    }

    /// Writes documents and removes those that are to be `None`: all of it or nothing. It is on disk when
    /// this returns.
    ///
    /// # Errors
    /// If that cannot be done: a full disk, for example.
    pub fn change<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> io::Result<()> {
        self.with(|db| {
            let tx = db.begin_write()?;
            {
                let mut table = tx.open_table(DOCUMENTS)?;
                for (name, text) in changes {
                    match text {
                        Some(text) => drop(table.insert(name, text)?),
                        None => drop(table.remove(name)?),
                    }
                }
            }
            Ok(tx.commit()?)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> io::Result<T> {
        let mut place = self.db.lock();
        let db = match place.take() {
            Some(db) => db,
            None => database(&self.file).map_err(failure)?,
        };
        let done = work(&db).map_err(failure);
        if done.is_ok() {
            *place = Some(db);
        }
        done
    }
}

fn tried_until<T>(until: Instant, mut open: impl FnMut() -> Result<T, OpenError>) -> Result<T, OpenError> {
    loop {
        match open() {
            Err(OpenError::InUse) if Instant::now() < until => std::thread::sleep(TRIED_EVERY),
            outcome => return outcome,
        }
    }
}

/// Empties a file in which nothing was ever written down: redb writes the first bytes last, so a process that
/// was killed while it made the file, or found the disk full, leaves zeros there. False for every other file.
fn empty_unbegun(file: &FileBackend) -> Result<bool, OpenError> {
    let fail = |e| OpenError::Failed(io::Error::other::<BackendError>(e));
    if !file.try_lock_range(Bound::Unbounded, Bound::Unbounded).map_err(fail)? {
        return Err(OpenError::InUse);
    }
    let emptied = match is_unbegun(file) {
        Ok(true) => file.set_len(0).map(|()| true),
        outcome => outcome,
    };
    file.unlock_range(Bound::Unbounded, Bound::Unbounded).map_err(fail)?;
    emptied.map_err(OpenError::Failed)
}

/// Whether there is nothing but what redb writes before the first bytes of a file: its first page without
/// those, and zeros.
fn is_unbegun(file: &FileBackend) -> io::Result<bool> {
    let len = file.len()?;
    if len == 0 || len > UNBEGUN_BYTES_MAX {
        return Ok(false);
    }
    let mut content = vec![0; usize::try_from(len).unwrap_or_default()];
    file.read(0, &mut content)?;
    let (first, rest) = (content.iter().take(FIRST_BYTES), content.iter().skip(FIRST_PAGE_BYTES));
    Ok(first.chain(rest).all(|byte| *byte == 0))
}

fn has_other_tables(db: &Database) -> Result<bool, redb::Error> {
    Ok(db.begin_read()?.list_tables()?.any(|table| table.name() != DOCUMENTS.name()))
}

fn database(file: &Arc<FileBackend>) -> Result<Database, DatabaseError> {
    Database::builder().create_with_backend(Kept(file.clone()))
}

impl Documents for RedbDocuments {
    fn read(&self, name: &str) -> io::Result<Option<String>> {
        self.with(|db| match db.begin_read()?.open_table(DOCUMENTS) {
            Ok(table) => Ok(table.get(name)?.map(|text| text.value().to_owned())),
            // Nothing has been written yet.
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(e) => Err(e.into()),
        })
    }

    fn write(&self, documents: &[(&str, &str)]) -> io::Result<()> {
        self.change(documents.iter().map(|(name, text)| (*name, Some(*text))))
    }

    fn remove(self: Box<Self>) -> io::Result<()> {
        // No process opens it between the two: it is removed first.
        std::fs::remove_file(&self.path)?;
        // After a power cut it must not be there again: what has ended would be done once more.
        sync_name(&self.path)
    }
}

/// A file that stays open and locked when the database on it is closed.
#[derive(Debug)]
struct Kept(Arc<FileBackend>);

impl StorageBackend for Kept {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    /// The lock goes with the file.
    fn close(&self) -> io::Result<()> {
        Ok(())
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}

/// One document in a file of its own, replaced as a whole, whatever its name. It keeps no process out.
#[derive(Debug, Clone)]
pub struct FileDocument {
    path: PathBuf,
}

impl FileDocument {
    /// The one in this file, which need not be there.
    pub fn new(path: &Path) -> FileDocument {
        FileDocument { path: path.to_owned() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Documents for FileDocument {
    fn read(&self, _name: &str) -> io::Result<Option<String>> {
        match std::fs::read_to_string(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    fn write(&self, documents: &[(&str, &str)]) -> io::Result<()> {
        let [(_, text)] = documents else { return Err(io::Error::other("it holds one document")) };
        self.path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        replace(&self.path, text, true)
    }

    fn remove(self: Box<Self>) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What holds for every place that keeps documents.
    fn keeps(open: impl Fn(&Path) -> Box<dyn Documents>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a-journal");
        let documents = open(&path);
        assert_eq!(documents.read("job").expect("nothing yet"), None);
        documents.write(&[("job", "1")]).expect("written");
        documents.write(&[("job", "2")]).expect("written again");
        drop(documents);
        let documents = open(&path);
        assert_eq!(documents.read("job").expect("read").as_deref(), Some("2"));
        documents.remove().expect("removed");
        assert!(!path.exists());
    }

    #[test]
    fn documents_are_found_again() {
        keeps(|path| Box::new(RedbDocuments::create(path).expect("opened")));
        keeps(|path| Box::new(FileDocument::new(path)));
    }

    #[test]
    fn what_is_changed_at_once_is_found_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let documents = RedbDocuments::create(&folder.path().join("a-journal")).expect("made");
        assert!(documents.all().expect("read").is_empty());
        documents.change([("a", Some("1")), ("b", Some("2")), ("c", Some("3"))]).expect("written");
        documents.change([("b", None), ("c", Some("4")), ("d", None)]).expect("written");
        let all = documents.all().expect("read");
        let all: Vec<(&str, &str)> = all.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(all, [("a", "1"), ("c", "4")]);
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a-journal");
        let tx = Database::create(&path).expect("made").begin_write().expect("begun");
        tx.open_table(TableDefinition::<u32, u32>::new("other")).expect("a table");
        tx.commit().expect("written");
        let OpenError::Failed(refused) = RedbDocuments::open(&path).expect_err("refused") else {
            panic!("nobody has it open");
        };
        assert!(refused.to_string().contains("another version"), "{refused}");
    }

    #[test]
    fn several_are_written_at_once_and_others_are_kept_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a-journal");
        let documents = RedbDocuments::create(&path).expect("made");
        documents.write(&[("job", "1"), ("status", "2")]).expect("written");
        assert!(matches!(RedbDocuments::open(&path), Err(OpenError::InUse)));
        assert_eq!(documents.read("status").expect("read").as_deref(), Some("2"));
        let file = FileDocument::new(&path);
        assert!(file.write(&[("job", "1"), ("status", "2")]).is_err(), "it holds one");
        let link = folder.path().join("a-link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(matches!(RedbDocuments::open(&link), Err(OpenError::Failed(_))));
    }

    #[test]
    fn a_journal_that_was_half_made_holds_no_job_that_has_begun() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sync-1.journal");
        drop(RedbDocuments::create(&path).expect("made"));
        assert!(!crate::journal::has_begun(folder.path(), "sync-1"));
        let journal: crate::journal::Journal =
            crate::journal::Journal::open(folder.path(), "sync-1", "{}", false).expect("begun");
        drop(journal);
        assert!(crate::journal::has_begun(folder.path(), "sync-1"));
    }

    #[test]
    fn a_job_that_begins_or_goes_on_waits_for_others_that_look() {
        for open in [RedbDocuments::open_soon, RedbDocuments::create] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("a-journal");
            let opened = RedbDocuments::create(&path).expect("made");
            let waiting = std::thread::spawn({
                let path = path.clone();
                move || open(&path).is_ok()
            });
            std::thread::sleep(Duration::from_millis(50));
            drop(opened);
            assert!(waiting.join().expect("no panic"), "it did not wait");
        }
    }
}
