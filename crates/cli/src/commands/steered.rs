//! What others see of a copy, a verification or a sync that this process runs, and what they can ask of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use whimbrel_control::clock::now_s;
use whimbrel_control::steering::{Attended, How, Refusal, Request, Standing, Steered, Why};
use whimbrel_control::store::{Entry, Kind, Status, Store};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, ErrorKind, Result, Side};
use whimbrel_flow::journal;
use whimbrel_flow::sync::{Ask, CutoverOptions};

use super::words;
use crate::exit::Exit;
use crate::ui::remedies::whole;

/// What a job is, and how to find out how it stands.
pub struct LocalJob {
    look: Box<dyn Fn() -> Standing + Send + Sync>,
    /// Stops the job, so that it can go on.
    stop: CancellationToken,
    is_cancelled: AtomicBool,
    /// Where cutovers are asked for, of one that can be cut over.
    cutovers: Option<mpsc::Sender<Ask>>,
}

impl LocalJob {
    /// A job that `stop` stops and that is seen by `look`.
    pub fn new(stop: CancellationToken, look: impl Fn() -> Standing + Send + Sync + 'static) -> LocalJob {
        LocalJob { look: Box::new(look), stop, is_cancelled: AtomicBool::new(false), cutovers: None }
    }

    /// Cutovers of it are asked for there.
    #[must_use]
    pub fn with_cutovers(self, cutovers: mpsc::Sender<Ask>) -> LocalJob {
        LocalJob { cutovers: Some(cutovers), ..self }
    }

    /// Whether somebody wants it to end for good.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    async fn cut_over(
        &self,
        options: CutoverOptions,
        withdrawn: CancellationToken,
    ) -> std::result::Result<Value, Refusal> {
        let Some(cutovers) = &self.cutovers else {
            return Err(Refusal::unsupported("only a sync can be cut over"));
        };
        let (answer, told) = oneshot::channel();
        let gone = || Error::own("cut over", "the sync has ended");
        let outcome = match cutovers.send(Ask { options, withdrawn, answer }).await {
            Ok(()) => told.await.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(gone()),
        };
        match outcome {
            Ok(report) => serde_json::to_value(&report).map_err(|e| refusal(&Error::own("cut over", e))),
            Err(e) => Err(refusal(&words::remedied(e))),
        }
    }
}

/// Why something was not done that may have been begun.
fn refusal(error: &Error) -> Refusal {
    let why = match (&error.kind, error.side) {
        // Nothing was changed, or everything was undone.
        (
            ErrorKind::Unfit(_)
            | ErrorKind::Forbidden { .. }
            | ErrorKind::Lacks { .. }
            | ErrorKind::StillWritten(_),
            _,
        ) => Why::Refused,
        (_, Side::Own) => Why::Internal,
        _ => Why::Interrupted,
    };
    Refusal { why, text: whole(error) }
}

/// What a process ends with that asked for something that was refused.
pub fn exit_of(refusal: &Refusal) -> Exit {
    match refusal.why {
        Why::Unsupported => Exit::Usage,
        Why::Refused => Exit::Refused,
        Why::Unreachable => Exit::Unreachable,
        Why::Interrupted => Exit::Interrupted,
        Why::Internal => Exit::Internal,
    }
}

impl Steered for LocalJob {
    async fn standing(&self) -> Standing {
        (self.look)()
    }

    async fn carry_out(
        &self,
        request: Request,
        withdrawn: CancellationToken,
    ) -> std::result::Result<Value, Refusal> {
        match request {
            Request::Cancel => {
                self.is_cancelled.store(true, Ordering::Release);
                self.stop.cancel();
                Ok(Value::Null)
            }
            Request::Cutover(options) => self.cut_over(options, withdrawn).await,
            _ => Err(Refusal::unsupported(
                "this job can be cancelled, and a sync be cut over, and nothing else",
            )),
        }
    }
}

/// How a job between two deployments stands that begins, or goes on.
pub fn beginning(
    store: &Store,
    job: (Kind, &str),
    (source, target): (&Deployment, &Deployment),
    again: Option<Vec<String>>,
    is_resumed: bool,
) -> Status {
    let at = |side: &Deployment| side.endpoint.address.to_string();
    beginning_at(store, job, (at(source), at(target)), again.unwrap_or_default(), is_resumed)
}

/// Likewise, by the addresses of both sides.
pub fn beginning_at(
    store: &Store,
    (kind, name): (Kind, &str),
    (source, target): (String, String),
    again: Vec<String>,
    is_resumed: bool,
) -> Status {
    let before = store.find(name).filter(|_| is_resumed);
    let now_s = now_s();
    Status {
        id: name.to_owned(),
        kind,
        source,
        target,
        keys_moved: before.as_ref().map_or(0, |before| before.keys_moved),
        created_s: before.map_or(now_s, |before| before.created_s),
        updated_s: now_s,
        again,
        ..Status::default()
    }
}

/// How far a job came that has stopped.
pub enum Came<'a> {
    /// To its end: the word for it.
    Through(&'a str),
    /// Not so far.
    Short,
    /// Something stopped it.
    Failed(&'a Error),
}

/// The job has stopped, and its journal is closed: those who asked get their answers, and it is written down
/// how the job ended. The journal of one that was cancelled is removed.
///
/// # Errors
/// `Own` where that cannot be.
pub async fn leave(
    folder: &Path,
    job: &LocalJob,
    attended: Attended<LocalJob>,
    came: Came<'_>,
) -> Result<()> {
    let name = job.standing().await.job.id;
    match came {
        Came::Through(word) => attended.leave(How::Ended(word)).await,
        _ if job.is_cancelled() => {
            attended.leave(How::Ended("cancelled")).await;
            journal::discard(folder, &name)?;
        }
        Came::Short => attended.leave(How::Interrupted("")).await,
        Came::Failed(error) => attended.leave(How::Interrupted(&error.problem())).await,
    }
    Ok(())
}

/// The sync that runs and whose name begins with `wanted`; where that is empty, the only one.
///
/// # Errors
/// `Unfit` where there is none, or more than one; `Own` where the folder cannot be read.
pub fn running_sync(folder: &Path, store: &Store, wanted: &str) -> Result<Status> {
    let is_it = |entry: &Entry| {
        entry.status.kind == Kind::Sync && entry.running && entry.status.id.starts_with(wanted)
    };
    let mut found: Vec<Status> = store.list()?.into_iter().filter(is_it).map(|entry| entry.status).collect();
    match (found.pop(), found.is_empty()) {
        (Some(sync), true) => Ok(sync),
        (None, _) => {
            let which = if wanted.is_empty() { "" } else { " by this name" };
            let what = format!("no sync runs in {}{which}", folder.display());
            Err(Error::unfit(Side::Own, "", "find the sync", what).with_remedy(
                "start it with whimbrel sync, with --resume where it had begun before; or name its folder \
                    with --state-dir",
            ))
        }
        (Some(last), false) => {
            let names: Vec<&str> = found.iter().chain([&last]).map(|status| status.id.as_str()).collect();
            let what = format!("several run: {}", names.join(", "));
            Err(Error::unfit(Side::Own, "", "find the sync", what).with_remedy("name the one you mean"))
        }
    }
}

/// A job, for as long as it runs here.
pub type Running = (Arc<LocalJob>, Attended<LocalJob>);

/// Shows a job to others, and takes their requests.
///
/// # Errors
/// `Own` where its socket cannot be made.
pub async fn attend(store: &Store, job: LocalJob) -> Result<Running> {
    let job = Arc::new(job);
    let attended = Attended::begin(store, job.clone()).await?;
    Ok((job, attended))
}
