//! Fronts that can move keys, as jobs: only one runs between two servers, and others find and ask it.
//!
//! - `between-A-and-B.lock`: held by the process that runs the front, in either direction and however the
//!   servers are spelt;
//! - `between-A-and-B.state`: how far it is, see `whimbrel_front::migrate::phase`;
//! - its socket and how it stands are those of every job, see [`crate::steering`].

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use tokio_util::sync::CancellationToken;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;
use whimbrel_flow::sync::{FrontOrder, FrontStand, Fronts, OrderAnswer};

use crate::failpoint::{self, When};
use crate::hooks::{HookSettings, JobHooks};
use crate::naming::{job_of, one_spelling};
use crate::private::open_lock;
use crate::steering::{Answer, Attended, Call, Refusal, Request, Steered, Why, beginning_at};
use crate::store::{Entry, Kind, Status, Store};

/// How long an answer may take: clients come to rest, and servers are looked at.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// How long an answer to a sync may take: servers are looked at, and clients held for a minute at most.
const SYNC_ANSWER_WITHIN: Duration = Duration::from_secs(90);

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
    /// Makes sure that no other process runs a front between these two servers. How far the keys have moved
    /// is kept by the servers, whatever it listens on. `again` are the arguments that run it.
    ///
    /// # Errors
    /// `Options` if one does; `Own` if the folder cannot be written.
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
        let mut spelt = [source, target]
            .map(|side| Address::parse_tcp(side).map_or_else(|| side.to_owned(), |at| one_spelling(&at)));
        spelt.sort();
        let locked = folder.join(format!("between-{}-and-{}.lock", plain(&spelt[0]), plain(&spelt[1])));
        let lock = open_lock(&locked).map_err(|e| fail(&e))?;
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

    /// The file that says how far the front is.
    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// How the front stands that begins.
    pub fn beginning(&self) -> Status {
        self.beginning.clone()
    }

    /// What is run at events of the front that begins.
    pub fn begin_hooks(&self, hooks: &HookSettings) -> Option<Arc<JobHooks>> {
        hooks.begin(&self.store, &self.beginning)
    }

    /// Shows the front to others and takes their requests.
    ///
    /// # Errors
    /// `Own` if its socket cannot be made.
    pub async fn attend<S: Steered>(&self, job: S) -> Result<Attended<S>> {
        Attended::begin(&self.store, Arc::new(job)).await
    }
}

/// The socket of the front that holds its clients in a cutover: the named front, by its address or its state
/// folder, else the front between the two servers. The path is absolute, since the sync asks there, wherever
/// it runs.
///
/// # Errors
/// As [`find`]; `Options` if several are named.
pub fn of_cutover(folder: &Path, named: &[String], (source, target): (&str, &str)) -> Result<PathBuf> {
    let socket = match named {
        [] => find(folder, FrontName::Between(source, target)),
        [one] => match one.parse() {
            Ok(listen) => find(folder, FrontName::Listening(listen)),
            Err(_) => find(Path::new(one), FrontName::Any),
        },
        _ => {
            let what = "one front alone can hold the clients: of two, one could send its clients to the \
                target and the other could not";
            Err(Error::options(Side::Own, "read the options", what).with_remedy(Remedy::OneFront))
        }
    }?;
    std::path::absolute(socket).map_err(|e| Error::own("find the front", e))
}

/// Asks a front that runs: the one with this address, or the only one.
///
/// # Errors
/// As [`find`]; `Own` if it does not answer.
pub async fn ask(folder: &Path, listen: Option<SocketAddr>, request: Request) -> Result<Answer> {
    let socket = find(folder, listen.map_or(FrontName::Any, FrontName::Listening))?;
    let call = Call { socket: &socket, request, within: ANSWER_WITHIN };
    call.make(&CancellationToken::new(), |_| {}).await
}

/// Which front is meant.
#[derive(Debug, Clone, Copy)]
pub enum FrontName<'a> {
    /// The only one.
    Any,
    /// The front that listens there.
    Listening(SocketAddr),
    /// The only one between these servers, whichever way, as they were named.
    Between(&'a str, &'a str),
}

impl FrontName<'_> {
    fn is(&self, status: &Status) -> bool {
        match *self {
            FrontName::Any => true,
            FrontName::Listening(listen) => status.listen.as_deref() == Some(&*listen.to_string()),
            FrontName::Between(source, target) => {
                let sides = (&*status.source, &*status.target);
                sides == (source, target) || sides == (target, source)
            }
        }
    }
}

/// The socket of a running front.
///
/// # Errors
/// `Options` if there is none that is meant, or more than one.
pub fn find(folder: &Path, named: FrontName<'_>) -> Result<PathBuf> {
    let store = Store::new(folder);
    let mut found = running(&store)?;
    found.retain(|entry| named.is(&entry.status));
    if found.len() > 1 {
        let fronts = found.iter().filter_map(|entry| entry.status.listen.as_deref());
        let what = format!("several run: {}", fronts.collect::<Vec<_>>().join(", "));
        return Err(Error::options(Side::Own, "find the front", what).with_remedy(Remedy::NameFront));
    }
    let Some(front) = found.pop() else {
        let between = match named {
            FrontName::Between(source, target) => format!(" between {source} and {target}"),
            FrontName::Any | FrontName::Listening(_) => " with a target".to_owned(),
        };
        let what = format!("no front{between} runs in {}", folder.display());
        let remedy = match named {
            FrontName::Between(..) => Remedy::NameFront,
            FrontName::Any | FrontName::Listening(_) => Remedy::RunFront,
        };
        return Err(Error::options(Side::Own, "find the front", what).with_remedy(remedy));
    };
    Ok(store.socket(&front.status.id))
}

/// How a sync gives orders to fronts of this machine.
#[derive(Debug, Clone, Copy)]
pub struct LocalFronts;

impl Fronts for LocalFronts {
    fn send<'a>(&'a self, socket: &'a Path, order: FrontOrder) -> OrderAnswer<'a> {
        Box::pin(send(socket, order))
    }
}

async fn send(socket: &Path, order: FrontOrder) -> Result<FrontStand> {
    let name = order.name();
    failpoint::reached(name, When::Before, 0).await;
    let call = Call { socket, request: Request::Front(order), within: SYNC_ANSWER_WITHIN };
    let answer = call.make(&CancellationToken::new(), |_| {}).await?;
    failpoint::reached(name, When::After, 0).await;
    let failed = |what: &dyn std::fmt::Display| Error::own("give the front its order", what);
    match answer.outcome {
        Ok(stand) => serde_json::from_value(stand).map_err(|e| failed(&e)),
        // It is certain that it was not done, and will not be.
        Err(Refusal { why: Why::Refused | Why::Unsupported, text }) => {
            Err(Error::options(Side::Own, "have the front hold its clients", text))
        }
        Err(refusal) => Err(failed(&refusal.text)),
    }
}

fn running(store: &Store) -> Result<Vec<Entry>> {
    let fronts = store.list()?.into_iter().filter(|entry| entry.status.kind == Kind::Front && entry.running);
    Ok(fronts.collect())
}

/// As a part of the name of a file.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}
