//! Names that users give: of jobs that have not ended, no two have the same.

use std::fs::File;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use whimbrel_engine::error::{Error, Result, Side};

use super::status::Status;
use super::{Entry, Store};
use crate::private::open_lock;

/// How long another process may take to list the job that it has named.
const LISTED_WITHIN: Duration = Duration::from_secs(5);

/// How often it is tried again meanwhile.
const TRIED_EVERY: Duration = Duration::from_millis(20);

impl Store {
    /// Refuses names that belong to jobs that have not ended, except the job `own`, and names that jobs have
    /// by default.
    ///
    /// # Errors
    /// `Options`, in a line that names the job; `Own` if the folder cannot be read.
    pub fn refuse_taken(&self, names: impl IntoIterator<Item: AsRef<str>>, own: &str) -> Result<()> {
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return Ok(());
        }
        let others: Vec<Entry> = self.list()?.into_iter().filter(|entry| entry.status.id != own).collect();
        for name in names {
            let name = name.as_ref();
            let has_it = |entry: &&Entry| match entry.status.id == name {
                true => true,
                false => !entry.status.ended && entry.status.name.as_deref() == Some(name),
            };
            if let Some(entry) = others.iter().find(has_it) {
                return Err(taken(name, entry));
            }
        }
        Ok(())
    }

    /// No other task gives jobs of this folder their names until the returned lock is dropped.
    ///
    /// # Errors
    /// `Own` if that takes others too long, or the folder cannot be written.
    pub(crate) async fn lock_names(&self) -> Result<Flock<File>> {
        let fail = |what: &dyn std::fmt::Display| self.fail("names", what);
        std::fs::create_dir_all(&self.folder).map_err(|e| fail(&e))?;
        let began = Instant::now();
        let mut file = open_lock(&self.folder.join("names.lock")).map_err(|e| fail(&e))?;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => return Ok(locked),
                Err((file, _)) if began.elapsed() < LISTED_WITHIN => file,
                Err(_) => return Err(fail(&"another whimbrel is naming a job for too long")),
            };
            tokio::time::sleep(TRIED_EVERY).await;
        }
    }

    /// Lists a job, unless another one has its name.
    ///
    /// # Errors
    /// As [`Store::refuse_taken`] and [`Store::lock_names`].
    pub(crate) async fn publish_first(&self, job: &Status) -> Result<()> {
        let _lock = match &job.name {
            Some(name) => {
                let lock = self.lock_names().await?;
                self.refuse_taken([name], &job.id)?;
                Some(lock)
            }
            None => None,
        };
        self.publish(job);
        Ok(())
    }
}

fn taken(name: &str, Entry { status, running }: &Entry) -> Error {
    let (id, kind, between) = (&status.id, status.kind.word(), status.between());
    let (state, remedy) = match (status.ended, running) {
        (true, _) => ("ended", "choose another name".to_owned()),
        (false, true) => ("runs", "choose another name, or wait until that one has ended".to_owned()),
        (false, false) => {
            ("was interrupted", format!("choose another name, or end that one: whimbrel jobs cancel {id}"))
        }
    };
    let what = format!("the name {name} is taken: {id} has it, a {kind} {between} that {state}");
    Error::options(Side::Own, "name the job", what).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Kind;

    fn job(id: &str, name: Option<&str>, ended: bool) -> Status {
        let (id, name) = (id.to_owned(), name.map(str::to_owned));
        Status { id, name, kind: Kind::Front, ended, updated_s: crate::clock::now_s(), ..Status::default() }
    }

    #[tokio::test]
    async fn a_name_belongs_to_one_job_until_that_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        store.publish_first(&job("front-1", Some("nightly"), false)).await.expect("it is free");
        store.publish_first(&job("front-1", Some("nightly"), false)).await.expect("it is its own");
        let second = store.publish_first(&job("front-2", Some("nightly"), false)).await;
        let error = second.expect_err("it is taken").to_string();
        assert!(error.contains("the name nightly is taken: front-1 has it"), "{error}");
        assert!(store.find("front-2").is_none(), "it is listed all the same");
        store.publish(&job("front-1", Some("nightly"), true));
        store.publish_first(&job("front-2", Some("nightly"), false)).await.expect("the first has ended");
        let own = store.refuse_taken(["front-1"], "front-3");
        assert!(own.is_err(), "a job that has ended is found by the name that it has of itself");
        store.refuse_taken(None::<&str>, "").expect("nothing is asked for");
    }

    #[tokio::test]
    async fn two_that_begin_at_once_do_not_get_the_same_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let lock = store.lock_names().await.expect("nobody has it");
        let (name, second) = (Some("x"), job("front-2", Some("x"), false));
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.publish_first(&second).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.publish(&job("front-1", name, false));
        drop(lock);
        assert!(waiting.await.expect("it ends").is_err(), "both have it");
    }
}
