//! Named JSON documents in one redb file that one process has open, and that outlives a full disk.
//!
//! redb refuses all further work after an I/O error, so a database that failed is opened anew for the next
//! write. What was there before the failed write is there still. The lock is kept meanwhile: otherwise a
//! second process could begin the same job.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redb::backends::FileBackend;
use redb::{BackendError, Database, ReadableDatabase, StorageBackend, TableDefinition};
use tokio::time::sleep;
use whimbrel_core::units::format_duration_ms;

use crate::journal::refuse_link;

/// The only table: names to JSON documents. Small, so a whole document is written each time.
const DOCUMENTS: TableDefinition<'_, &str, &str> = TableDefinition::new("documents");

/// For how long a full disk is put up with.
const FULL_MAX: Duration = Duration::from_secs(600);

/// How often a write is tried again that must be done before anything else.
const RETRY_PERIOD: Duration = Duration::from_millis(200);

/// True where there was no room for what was to be written: the disk is full, or the user's quota is.
pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Since when the disk has had no room for what is to be written.
#[derive(Debug, Default)]
pub struct DiskFull(Mutex<Option<Instant>>);

impl DiskFull {
    /// Notes how a write ended. A full disk is no error until it has been full for ten minutes: `None`.
    ///
    /// # Errors
    /// `outcome`'s own, where it has another reason, or the disk is full for too long.
    pub fn bear<T>(&self, outcome: Result<T>) -> Result<Option<T>> {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Err(e) if is_full(&e) => {
                let full = since.get_or_insert_with(|| {
                    tracing::warn!(error = %e, "the disk is full: progress is not written down");
                    Instant::now()
                });
                if full.elapsed() > FULL_MAX { Err(e) } else { Ok(None) }
            }
            Err(e) => Err(e),
            Ok(done) => {
                if since.take().is_some() {
                    tracing::info!("the disk has room again");
                }
                Ok(Some(done))
            }
        }
    }

    /// Writes, and again while the disk is full, for ten minutes at most.
    ///
    /// # Errors
    /// As [`DiskFull::bear`].
    pub async fn until_room<T>(&self, mut write: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            if let Some(done) = self.bear(write())? {
                return Ok(done);
            }
            sleep(RETRY_PERIOD).await;
        }
    }

    /// For how long it has been full; `None` while it has room.
    pub fn full_ms(&self) -> Option<u64> {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// That in words, for progress.
    pub fn words(&self) -> Option<String> {
        self.full_ms().map(disk_full_words)
    }
}

/// What is shown of a disk that has been full for so long, in milliseconds.
pub fn disk_full_words(full_ms: u64) -> String {
    format!("disk full since {}: progress is not written down", format_duration_ms(full_ms / 1_000 * 1_000))
}

/// The documents of one file, locked against other processes for as long as this lives.
#[derive(Debug)]
pub struct Documents {
    file: Arc<FileBackend>,
    /// `None` after a write that failed, until the next one.
    db: Mutex<Option<Database>>,
}

impl Documents {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// `ResourceBusy` where another process has it open; whatever the file system reports; `InvalidData`
    /// where it is no such file.
    pub fn create(path: &Path) -> Result<Documents> {
        refuse_link(path)?;
        let file =
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Documents::of(file)
    }

    /// Opens the file.
    ///
    /// # Errors
    /// As [`Documents::create`]; `NotFound` where there is none.
    pub fn open(path: &Path) -> Result<Documents> {
        refuse_link(path)?;
        Documents::of(File::options().read(true).write(true).open(path)?)
    }

    fn of(file: File) -> Result<Documents> {
        let file = Arc::new(FileBackend::new(file).map_err(of_database)?);
        let db = Mutex::new(Some(database(&file)?));
        Ok(Documents { file, db })
    }

    /// What was written last by this name; `None` where nothing was.
    ///
    /// # Errors
    /// Whatever the file system reports.
    pub fn read(&self, name: &str) -> Result<Option<String>> {
        self.with(|db| {
            let table = db.begin_read()?.open_table(DOCUMENTS)?;
            Ok(table.get(name)?.map(|text| text.value().to_owned()))
        })
    }

    /// Writes documents by their names, all of them or none. They are on disk when this returns.
    ///
    /// # Errors
    /// Whatever the file system reports. What was there before is there still, and the next write may
    /// succeed.
    pub fn write(&self, documents: &[(&str, &str)]) -> Result<()> {
        self.with(|db| {
            let tx = db.begin_write()?;
            {
                let mut table = tx.open_table(DOCUMENTS)?;
                for (name, text) in documents {
                    table.insert(*name, *text)?;
                }
            }
            Ok(tx.commit()?)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&Database) -> std::result::Result<T, redb::Error>) -> Result<T> {
        let mut place = self.lock();
        let db = match place.take() {
            Some(db) => db,
            None => database(&self.file)?,
        };
        let done = work(&db).map_err(|e| match e {
            redb::Error::Io(e) => e,
            e => Error::other(e),
        });
        if done.is_ok() {
            *place = Some(db);
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, Option<Database>> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn database(file: &Arc<FileBackend>) -> Result<Database> {
    Database::builder().create_with_backend(Kept(file.clone())).map_err(of_database)
}

fn of_database(error: redb::DatabaseError) -> Error {
    match error {
        redb::DatabaseError::DatabaseAlreadyOpen => Error::new(ErrorKind::ResourceBusy, error),
        redb::DatabaseError::Storage(redb::StorageError::Io(e)) => e,
        e => Error::new(ErrorKind::InvalidData, e),
    }
}

/// A file that stays open and locked when the database on it is closed.
#[derive(Debug)]
struct Kept(Arc<FileBackend>);

impl StorageBackend for Kept {
    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(offset, data)
    }

    /// The lock goes with the file.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> std::result::Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> std::result::Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> std::result::Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> std::result::Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> std::result::Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> std::result::Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
