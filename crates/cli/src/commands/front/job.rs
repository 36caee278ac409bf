//! A front that can move keys as a job: others see it and ask it, and only one runs between two servers.
//!
//! - `between-A-and-B.lock`: held by the process that runs the front;
//! - `between-A-and-B.state`: how far it is, see `whimbrel_front::migrate::phase`;
//! - its socket and how it stands are those of every job, see `whimbrel_control::steering`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use whimbrel_control::naming::job_of;
use whimbrel_control::steering::{
    Answer, Attended, Call, How, Refusal, Request, Standing, Steered, Why, beginning_at,
};
use whimbrel_control::store::{Entry, Kind, Status, Store};
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_front::control::Control;
use whimbrel_front::migrate::phase::Phase;

use crate::safety;
use crate::ui::remedies::whole;

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
    /// `Unfit` where somebody does; `Own` where the folder cannot be written.
    pub fn open(
        folder: &Path,
        listen: SocketAddr,
        (source, target): (&str, &str),
        again: Vec<String>,
    ) -> Result<FrontFiles> {
        let fail = |e: &dyn std::fmt::Display| {
            Error::own(format!("keep the front's state in {}", folder.display()), e)
                .with_remedy("name another folder with --state-dir")
        };
        std::fs::create_dir_all(folder).map_err(|e| fail(&e))?;
        let pair = folder.join(format!("between-{}-and-{}", plain(source), plain(target)));
        let lock = safety::open_lock(&pair.with_extension("lock")).map_err(|e| fail(&e))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| {
            let what = format!("another whimbrel front runs between {source} and {target}");
            Error::options(Side::Own, "run the front", what).with_remedy("end that one")
        })?;
        let store = Store::new(folder);
        let listens = |entry: &Entry| entry.status.listen.as_deref() == Some(&*listen.to_string());
        if running(&store)?.iter().any(listens) {
            let what = format!("another whimbrel front runs with --listen {listen} and this state folder");
            return Err(Error::options(Side::Own, "run the front", what)
                .with_remedy("end that one, or name another folder with --state-dir"));
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

    /// Shows the front to others and takes their requests. `finished` is cancelled when it has nothing left
    /// to do.
    ///
    /// # Errors
    /// `Own` where its socket cannot be made.
    pub async fn attend(
        &self,
        control: Arc<Control>,
        finished: CancellationToken,
    ) -> Result<Attended<FrontJob>> {
        let (is_finished, beginning) = (AtomicBool::new(false), self.beginning.clone());
        let job = FrontJob { control, finished, is_finished, beginning };
        Attended::begin(&self.store, Arc::new(job)).await
    }
}

/// A front, for others.
pub struct FrontJob {
    control: Arc<Control>,
    finished: CancellationToken,
    is_finished: AtomicBool,
    beginning: Status,
}

impl Steered for FrontJob {
    async fn standing(&self) -> Standing {
        let status = self.control.status().await;
        let phase = serde_json::to_value(status.phase).unwrap_or_default();
        let moving = status.moving.as_ref();
        let (moved, left) = moving.map_or((0, None), |moving| (moving.moved, moving.left));
        let job = Status {
            keys: left.map_or(0, |left| moved + left),
            keys_moved: moved,
            phase: phase.as_str().unwrap_or_default().to_owned(),
            ..self.beginning.clone()
        };
        Standing { job, details: serde_json::to_value(&status).unwrap_or_default() }
    }

    async fn carry_out(
        &self,
        request: Request,
        _withdrawn: CancellationToken,
    ) -> std::result::Result<Value, Refusal> {
        let done = match request {
            Request::Start => self.control.start().await,
            Request::Pause => self.control.pause(true),
            Request::Resume => self.control.pause(false),
            Request::Reverse => self.control.reverse().await,
            Request::Finish => self.control.finish().inspect(|()| {
                self.is_finished.store(true, Ordering::Release);
                self.finished.cancel();
            }),
            Request::Status => Ok(()),
            Request::Cancel | Request::Cutover(_) => {
                let text = "a front is not cancelled or cut over: whimbrel front reverse has the keys move \
                    back, whimbrel front finish ends it";
                return Err(Refusal::unsupported(text));
            }
        };
        done.map(|()| Value::Null).map_err(|e| Refusal { why: why(&e), text: whole(&e) })
    }
}

/// The front has ended: it is written down how far it came.
pub async fn leave(attended: Attended<FrontJob>) {
    let job = attended.steered();
    let how = match job.control.status().await.phase {
        _ if job.is_finished.load(Ordering::Acquire) => How::Ended("finished"),
        // No key has moved, so nobody has to go on.
        Phase::Forwarding => How::Forgotten,
        Phase::Moving | Phase::Done | Phase::Finished => How::Interrupted(""),
    };
    attended.leave(how).await;
}

fn why(error: &Error) -> Why {
    match (&error.kind, error.side) {
        // The command line is right; it is the servers or the moment that do not fit.
        (
            ErrorKind::Unfit(_)
            | ErrorKind::Options(_)
            | ErrorKind::Forbidden { .. }
            | ErrorKind::StillWritten(_),
            _,
        ) => Why::Refused,
        (ErrorKind::Own(_), _) | (_, Side::Own) => Why::Internal,
        (ErrorKind::Server(_), _) => Why::Refused,
        _ => Why::Unreachable,
    }
}

/// Asks a front that runs: the one with this address, or the only one.
///
/// # Errors
/// `Unfit` where there is none, or more than one; `Own` where it does not answer.
pub async fn ask(folder: &Path, listen: Option<SocketAddr>, request: Request) -> Result<Answer> {
    let store = Store::new(folder);
    let mut found = running(&store)?;
    if let Some(listen) = listen {
        found.retain(|entry| entry.status.listen.as_deref() == Some(&*listen.to_string()));
    }
    if found.len() > 1 {
        let fronts = found.iter().filter_map(|entry| entry.status.listen.as_deref());
        let what = format!("several run: {}", fronts.collect::<Vec<_>>().join(", "));
        return Err(Error::options(Side::Own, "find the front", what)
            .with_remedy("name the address of the one you mean, as given with --listen"));
    }
    let Some(front) = found.pop() else {
        let what = format!("no front with a target runs in {}", folder.display());
        return Err(Error::options(Side::Own, "find the front", what)
            .with_remedy("run one with whimbrel front --target, or name its folder with --state-dir"));
    };
    let socket = store.socket(&front.status.id);
    Call { socket: &socket, request, within: ANSWER_WITHIN }.make(&CancellationToken::new(), |_| {}).await
}

fn running(store: &Store) -> Result<Vec<Entry>> {
    let fronts = store.list()?.into_iter().filter(|entry| entry.status.kind == Kind::Front && entry.running);
    Ok(fronts.collect())
}

/// As a part of the name of a file.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}
