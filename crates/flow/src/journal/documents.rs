//! Where a job's journal is kept: a few documents by name, small enough to be written as a whole.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, ReadableDatabase, TableDefinition};

use super::files::{make_anew, refuse_link};

/// The only table: names to JSON documents.
const DOCUMENTS: TableDefinition<'_, &str, &str> = TableDefinition::new("documents");

/// Documents by name.
pub trait Documents: fmt::Debug + Send + Sync {
    /// A document; `None` where there is none of that name.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn read(&self, name: &str) -> io::Result<Option<String>>;

    /// Writes documents, all of them or none. They are on disk when this returns.
    ///
    /// # Errors
    /// Where they cannot be written: a full disk, for example.
    fn write(&self, documents: &[(&str, &str)]) -> io::Result<()>;

    /// Removes all of them, and what they are kept in.
    ///
    /// # Errors
    /// Where that cannot be done.
    fn remove(self: Box<Self>) -> io::Result<()>;
}

/// Documents in a redb file. A process that has it open keeps others from opening it.
#[derive(Debug)]
pub struct RedbDocuments {
    path: PathBuf,
    db: Database,
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
            other => OpenError::Failed(io::Error::other(other)),
        }
    }
}

impl RedbDocuments {
    /// Opens the file, and makes it where it is not there. A symbolic link is not followed.
    ///
    /// # Errors
    /// Where it cannot be used.
    pub fn create(path: &Path) -> Result<RedbDocuments, OpenError> {
        refuse_link(path).map_err(OpenError::Failed)?;
        Ok(RedbDocuments { path: path.to_owned(), db: Database::create(path)? })
    }

    /// Opens a file that is there. A symbolic link is not followed.
    ///
    /// # Errors
    /// Where it cannot be used.
    pub fn open(path: &Path) -> Result<RedbDocuments, OpenError> {
        refuse_link(path).map_err(OpenError::Failed)?;
        Ok(RedbDocuments { path: path.to_owned(), db: Database::open(path)? })
    }

    fn try_read(&self, name: &str) -> Result<Option<String>, redb::Error> {
        let table = self.db.begin_read()?.open_table(DOCUMENTS)?;
        Ok(table.get(name)?.map(|text| text.value().to_owned()))
    }

    fn try_write(&self, documents: &[(&str, &str)]) -> Result<(), redb::Error> {
        let tx = self.db.begin_write()?;
        {
            let mut table = tx.open_table(DOCUMENTS)?;
            for (name, text) in documents {
                table.insert(*name, *text)?;
            }
        }
        Ok(tx.commit()?)
    }
}

impl Documents for RedbDocuments {
    fn read(&self, name: &str) -> io::Result<Option<String>> {
        match self.try_read(name) {
            Ok(text) => Ok(text),
            // Nothing has been written yet.
            Err(redb::Error::TableDoesNotExist(_)) => Ok(None),
            Err(e) => Err(io::Error::other(e)),
        }
    }

    fn write(&self, documents: &[(&str, &str)]) -> io::Result<()> {
        self.try_write(documents).map_err(io::Error::other)
    }

    fn remove(self: Box<Self>) -> io::Result<()> {
        // Nobody opens it between the two: it is removed first.
        std::fs::remove_file(&self.path)
    }
}

/// One document in a file of its own, replaced as a whole, whatever its name. It keeps nobody out.
#[derive(Debug, Clone)]
pub struct FileDocument {
    path: PathBuf,
}

impl FileDocument {
    /// The one in this file, which need not be there.
    pub fn new(path: &Path) -> FileDocument {
        FileDocument { path: path.to_owned() }
    }

    /// Where it is.
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
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let draft = self.path.with_extension("draft");
        let mut file = make_anew(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, &self.path)?;
        // The name is part of the folder.
        File::open(folder)?.sync_all()
    }

    fn remove(self: Box<Self>) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What holds wherever documents are kept.
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
}
