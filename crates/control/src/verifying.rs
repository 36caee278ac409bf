//! What a verification writes down, so that it can be gone on with.

use std::path::{Path, PathBuf};

use whimbrel_engine::error::Result;
use whimbrel_flow::journal::{self, Journal};
use whimbrel_flow::verify::VerifyState;

use crate::again;
use crate::naming::{JobName, job_of};
use crate::store::{Kind, Store};

/// A verification that can be continued.
#[derive(Debug)]
pub struct VerifyRecord {
    /// How far it is.
    pub journal: Journal<VerifyState>,
    /// The folder that it is kept in.
    pub folder: PathBuf,
    /// What the job is known by.
    pub name: String,
    /// The arguments that go on with it.
    pub again: Option<Vec<String>>,
}

impl VerifyRecord {
    /// That of a verification with this description, which its user may have `given` a name. `None` if
    /// another process makes the same comparison: only one of the two can be continued.
    ///
    /// # Errors
    /// `Options` if the given name is taken, or what is to be resumed is another one; `Own` if the folder
    /// cannot be written.
    pub fn open(
        folder: &Path,
        description: &str,
        given: &Option<JobName>,
        resumes: bool,
    ) -> Result<Option<VerifyRecord>> {
        let name = format!("verify-{}", job_of(description));
        if !resumes && journal::is_open(folder, &name) {
            return Ok(None);
        }
        Store::new(folder).refuse_taken(given, &name)?;
        let journal = Journal::open(folder, &name, description, resumes)?;
        let again = again::of_description(Kind::Verify, description);
        Ok(Some(VerifyRecord { journal, folder: folder.to_owned(), name, again }))
    }
}
