//! Fronts that can move keys, as jobs: only one runs between two servers, and others find and ask it.
//!
//! - `between-A-and-B.lock`: held by the process that runs the front;
//! - `between-A-and-B.state`: how far it is, see `whimbrel_front::migrate::phase`;
//! - its socket and how it stands are those of every job, see [`crate::steering`].

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg, OFlag};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;

use crate::naming::job_of;
use crate::steering::{Answer, Attended, Call, Request, Steered, beginning_at};
use crate::store::{Entry, Kind, Status, Store};

/// How long an answer may take: clients come to rest, and servers are looked at.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// What a front between two servers has in the state folder.
#[derive(Debug)]
pub struct FrontFiles {
    state: PathBuf,
    store: Store,
    beginning: Status,
    /// Given up when the process ends, however it does.
    _lock: Flock<File>,
}

impl FrontFiles {
    /// Makes sure that nobody else runs a front between these two servers. How far the keys have moved is
    /// kept by the servers, whatever it listens on. `again` are the arguments that run it.
    ///
    /// # Errors
    /// `Options` where somebody does; `Own` where the folder cannot be written.
    pub fn open(
        folder: &Path,
        listen: SocketAddr,
        (source, target): (&str, &str),
        again: Vec<String>,
    ) -> Result<FrontFiles> {
        let fail = |e: &dyn std::fmt::Display| {
            Error::own(format!("keep the front's state in {}", folder.display()), e)
                .with_remedy(Remedy::ChooseStateDir(""))
        };
        std::fs::create_dir_all(folder).map_err(|e| fail(&e))?;
        let pair = folder.join(format!("between-{}-and-{}", plain(source), plain(target)));
        let lock = open_lock(&pair.with_extension("lock")).map_err(|e| fail(&e))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| {
            let what = format!("another whimbrel front runs between {source} and {target}");
            Error::options(Side::Own, "run the front", what).with_remedy("end that one")
        })?;
        let store = Store::new(folder);
        let listens = |entry: &Entry| entry.status.listen.as_deref() == Some(&*listen.to_string());
        if running(&store)?.iter().any(listens) {
            let what = format!("another whimbrel front runs on {listen} with this state folder");
            return Err(Error::options(Side::Own, "run the front", what)
                .with_remedy(Remedy::ChooseStateDir("end that one")));
        }
        let id = format!("front-{}", job_of(&format!("{source} {target}")));
        let sides = (source.to_owned(), target.to_owned());
        // How far its keys have moved is asked of the servers, so it always goes on.
        let beginning = Status {
            listen: Some(listen.to_string()),
            ..beginning_at(&store, (Kind::Front, &id), sides, again, true)
        };
        Ok(FrontFiles { state: pair.with_extension("state"), store, beginning, _lock: lock })
    }

    /// Where it is kept how far the front is.
    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// How the front stands that begins.
    pub fn beginning(&self) -> Status {
        self.beginning.clone()
    }

    /// Shows the front to others and takes their requests.
    ///
    /// # Errors
    /// `Own` where its socket cannot be made.
    pub async fn attend<S: Steered>(&self, job: S) -> Result<Attended<S>> {
        Attended::begin(&self.store, Arc::new(job)).await
    }
}

/// Asks a front that runs: the one with this address, or the only one.
///
/// # Errors
/// `Options` where there is none, or more than one; `Own` where it does not answer.
pub async fn ask(folder: &Path, listen: Option<SocketAddr>, request: Request) -> Result<Answer> {
    let store = Store::new(folder);
    let mut found = running(&store)?;
    if let Some(listen) = listen {
        found.retain(|entry| entry.status.listen.as_deref() == Some(&*listen.to_string()));
    }
    if found.len() > 1 {
        let fronts = found.iter().filter_map(|entry| entry.status.listen.as_deref());
        let what = format!("several run: {}", fronts.collect::<Vec<_>>().join(", "));
        return Err(Error::options(Side::Own, "find the front", what).with_remedy(Remedy::NameFront));
    }
    let Some(front) = found.pop() else {
        let what = format!("no front with a target runs in {}", folder.display());
        return Err(Error::options(Side::Own, "find the front", what).with_remedy(Remedy::RunFront));
    };
    let socket = store.socket(&front.status.id);
    Call { socket: &socket, request, within: ANSWER_WITHIN }.make(&CancellationToken::new(), |_| {}).await
}

fn running(store: &Store) -> Result<Vec<Entry>> {
    let fronts = store.list()?.into_iter().filter(|entry| entry.status.kind == Kind::Front && entry.running);
    Ok(fronts.collect())
}

/// Opens a file to lock it, and makes it where it is not there. A symbolic link is not followed.
fn open_lock(path: &Path) -> std::io::Result<File> {
    let flags = OFlag::O_NOFOLLOW.bits();
    File::options().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
}

/// As a part of the name of a file.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}
