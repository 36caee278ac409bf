//! What others see of a copy, a verification or a sync that this process runs, and what they can ask of it.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_flow::budget::{RateChange, Rates};
use whimbrel_flow::journal;
use whimbrel_flow::sync::{
    self, Ask, Beginning, CutoverOptions, CutoverReport, NotTakenOver, SILENT_AFTER_MS, SyncStatus,
};

use super::attended::{Attended, How};
use super::protocol::{Refusal, Request, Standing, Steered, Why};
use super::schedule::{NO_ORDER, Schedule};
use crate::again;
use crate::clock::now_s;
use crate::hooks::JobHooks;
use crate::store::{Kind, Status, Store};

/// How long a server may be silent before a cutover that has not begun is given up; and how often that is
/// checked.
const SILENT_MS_MAX: u64 = 30_000;
const SILENCE_POLL: Duration = Duration::from_secs(1);

/// How an error is worded for people who use another process.
pub type Worded = fn(Error) -> String;

/// Permanently ends a copy, a verification or a sync that no process runs: it cannot go on any more. True if
/// the fence of a killed cutover may still be up.
///
/// # Errors
/// As [`sync::discard`].
pub(crate) fn discard(folder: &Path, kind: Kind, name: &str) -> Result<bool> {
    match kind {
        Kind::Sync => sync::discard(folder, name),
        _ => journal::discard(folder, name).map(|()| false),
    }
}

/// What a job is, and how to find out how it stands.
pub struct LocalJob {
    standing: Box<dyn Fn() -> Standing + Send + Sync>,
    /// Stops the job, so that it can go on.
    stop: CancellationToken,
    is_cancelled: AtomicBool,
    /// How fast its keys move.
    rates: Rates,
    /// Where cutovers are asked for, of a job that can be cut over.
    cutovers: Option<(mpsc::Sender<Ask>, Arc<SyncStatus>, Worded)>,
    /// A scheduled cutover, and where that is written down.
    schedule: Schedule,
    kept: Option<(Store, String)>,
    hooks: Option<Arc<JobHooks>>,
}

impl std::fmt::Debug for LocalJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalJob").field("is_cancelled", &self.is_cancelled).finish_non_exhaustive()
    }
}

impl LocalJob {
    /// A job that `stop` stops, that takes from `rates` and that is seen by `standing`.
    pub fn new(
        stop: CancellationToken,
        rates: Rates,
        standing: impl Fn() -> Standing + Send + Sync + 'static,
    ) -> LocalJob {
        let is_cancelled = AtomicBool::new(false);
        LocalJob {
            standing: Box::new(standing),
            stop,
            rates,
            is_cancelled,
            cutovers: None,
            schedule: Schedule::default(),
            kept: None,
            hooks: None,
        }
    }

    /// That is run at its events.
    #[must_use]
    pub fn with_hooks(self, hooks: Option<Arc<JobHooks>>) -> LocalJob {
        LocalJob { hooks, ..self }
    }

    /// Cutovers of it are asked for there, and why one did not come about is worded so. `status` shows which
    /// servers are silent.
    #[must_use]
    pub fn with_cutovers(
        self,
        cutovers: mpsc::Sender<Ask>,
        status: Arc<SyncStatus>,
        worded: Worded,
    ) -> LocalJob {
        LocalJob { cutovers: Some((cutovers, status, worded)), ..self }
    }

    /// Cutovers of it can be scheduled, which is written down there, under this name. A job that is
    /// resumed goes on with what was `ordered` before, which is reported.
    #[must_use]
    pub fn with_schedule(
        self,
        store: &Store,
        id: &str,
        is_resumed: bool,
        ordered: impl FnOnce(&str),
    ) -> LocalJob {
        self.schedule.begin(store, id, is_resumed);
        if let Some(scheduled) = self.schedule.get() {
            ordered(&scheduled.in_words());
        }
        LocalJob { kept: Some((store.clone(), id.to_owned())), ..self }
    }

    fn kind(&self) -> Kind {
        (self.standing)().job.kind
    }

    /// Whether the user wants it to end permanently.
    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// [`steer`]s it. The longest pause of a sync is its scheduled cutover's. All of it is done, or nothing.
    fn steer(&self, request: Request) -> std::result::Result<Value, Refusal> {
        let kind = self.kind();
        let mut ordered_ms = None;
        let request = match request {
            Request::Set(change) if kind == Kind::Sync && change.max_pause_ms.is_some() => {
                ordered_ms = change.max_pause_ms;
                Request::Set(RateChange { max_pause_ms: None, ..change })
            }
            other => other,
        };
        if let (Some(ms), Request::Set(change)) = (ordered_ms, &request) {
            fits(&self.rates, kind, change)?;
            let Some((store, id)) = &self.kept else { return Err(Refusal::unsupported(NO_ORDER)) };
            self.schedule.allow_pause(store, id, ms)?;
        }
        let mut now = steer(&self.rates, kind, request).unwrap_or_else(|| {
            let text = "this job can be paused, resumed, set and cancelled, and a sync be cut over";
            Err(Refusal::unsupported(text))
        })?;
        if let Some(ms) = ordered_ms {
            now["max_pause_ms"] = ms.into();
        }
        Ok(now)
    }

    async fn cut_over(
        &self,
        options: CutoverOptions,
        withdrawn: CancellationToken,
    ) -> std::result::Result<Value, Refusal> {
        let Some((cutovers, status, worded)) = &self.cutovers else {
            return Err(Refusal::unsupported("only a sync can be cut over"));
        };
        let now = self.rates.now();
        if let Some(paused) = now.pause_in_words() {
            let job = (self.standing)().job;
            let name = job.label();
            let how = if now.paused { format!("resume {name}") } else { format!("set {name} between=none") };
            let text = format!(
                "the sync is {paused}, so what is left would not arrive; to continue: whimbrel jobs {how}"
            );
            return Err(Refusal { why: Why::Refused, text });
        }
        let report = handed_over(cutovers, status, options, withdrawn).await;
        let value = report.map(|report| serde_json::to_value(&report).unwrap_or_default());
        value.map_err(|it| Refusal { why: why_refused(&it), text: worded(it.error) })
    }

    /// Cuts over when that was ordered.
    async fn cut_over_later(&self) -> Infallible {
        match &self.kept {
            Some((store, id)) => {
                let cut_over = |options, withdrawn| self.cut_over(options, withdrawn);
                self.schedule.carry_out((store, id), || self.standing(), cut_over).await
            }
            None => std::future::pending().await,
        }
    }
}

/// Does what changes nothing but how fast keys move; `None` for other requests. What a job of this kind
/// cannot change is refused.
pub(crate) fn steer(
    rates: &Rates,
    kind: Kind,
    request: Request,
) -> Option<std::result::Result<Value, Refusal>> {
    match request {
        Request::Set(change) => {
            if let Err(refusal) = fits(rates, kind, &change) {
                return Some(Err(refusal));
            }
            rates.change(change);
        }
        Request::Pause => rates.pause(true),
        Request::Resume => rates.pause(false),
        _ => return None,
    }
    Some(Ok(serde_json::to_value(rates.now()).unwrap_or_default()))
}

/// Refuses what a job of this kind does not go by, or cannot go by now.
fn fits(rates: &Rates, kind: Kind, change: &RateChange) -> std::result::Result<(), Refusal> {
    let unsupported = |text: &str| Err(Refusal::unsupported(format!("{text}; nothing was changed")));
    if change.max_lag.is_some() && kind == Kind::Verify {
        return unsupported("a verification writes nothing, so no replica falls behind for it");
    }
    if change.memory_bytes.is_some() && !rates.steers_memory() {
        return unsupported("memory can be changed of a copy or a sync whose keys move");
    }
    if change.lanes.is_some() && !rates.steers_lanes() {
        return unsupported("lanes can be changed of a copy, a sync or a move of slots whose keys move");
    }
    if change.lanes.is_some_and(|lanes| lanes.read != lanes.write) && kind == Kind::Move {
        return unsupported("each lane of a move of slots reads and writes, so it is lanes=N");
    }
    let Some(max_pause_ms) = change.max_pause_ms else { return Ok(()) };
    if !rates.steers_pause() {
        return Err(Refusal::unsupported(NO_ORDER));
    }
    let least_ms = rates.least_pause_ms();
    if max_pause_ms < least_ms {
        let text = format!(
            "a handover takes a pause of about {least_ms} ms even without writers, so {max_pause_ms} ms are \
             too short; nothing was changed"
        );
        return Err(Refusal { why: Why::Refused, text });
    }
    Ok(())
}

/// Has a sync cut over, unless a server is silent. If one falls silent before anything is begun, we wait for
/// it no longer than an answer may take.
async fn handed_over(
    cutovers: &mpsc::Sender<Ask>,
    status: &SyncStatus,
    options: CutoverOptions,
    withdrawn: CancellationToken,
) -> std::result::Result<CutoverReport, NotTakenOver> {
    let beginning = Beginning::default();
    let not = |error| NotTakenOver::new(error, &beginning);
    let gone = || not(Error::own("cut over", "the sync has ended"));
    if let Some(error) = status.unheard(SILENT_AFTER_MS) {
        return Err(not(error));
    }
    let (answer, answered) = oneshot::channel();
    let ask = Ask { options, withdrawn, beginning: beginning.clone(), answer };
    cutovers.send(ask).await.map_err(|_| gone())?;
    tokio::pin!(answered);
    loop {
        tokio::select! {
            outcome = &mut answered => return match outcome {
                Ok(outcome) => outcome,
                Err(_) => Err(gone()),
            },
            () = sleep(SILENCE_POLL) => {}
        }
        if let Some(error) = status.unheard(SILENT_MS_MAX)
            && beginning.give_up()
        {
            return Err(not(error));
        }
    }
}

/// Why the target has not taken over.
fn why_refused(not: &NotTakenOver) -> Why {
    match not.error.side {
        // Nothing was changed, or everything was undone.
        _ if not.error.is_refusal() => Why::Refused,
        Side::Own => Why::Internal,
        _ if !not.begun && not.error.is_link() => Why::Unreachable,
        _ => Why::Interrupted,
    }
}

impl Steered for LocalJob {
    async fn standing(&self) -> Standing {
        let mut standing = (self.standing)();
        standing.job.rates = self.rates.now();
        standing.job.scheduled = self.schedule.get().map(|it| it.in_words());
        standing
    }

    fn hooks(&self) -> Option<&JobHooks> {
        self.hooks.as_deref()
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
            Request::Schedule(scheduled) => {
                let Some((store, id)) = &self.kept else {
                    return Err(Refusal::unsupported("only a sync can be cut over"));
                };
                let stood = self.schedule.order(store, id, scheduled)?;
                // If this process dies now, others see it all the same.
                store.publish(&Status { updated_s: now_s(), ..self.standing().await.job });
                Ok(stood.into())
            }
            other => {
                let steered = self.steer(other);
                if let (Ok(_), Some((store, _))) = (&steered, &self.kept) {
                    // Others go by it at once: a cutover is not rehearsed while the window is closed.
                    store.publish(&Status { updated_s: now_s(), ..self.standing().await.job });
                }
                steered
            }
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
    let again = again.map(|words| again::by_url(words, [&source.endpoint, &target.endpoint]));
    Status {
        source_url: source.endpoint.url(source.endpoint.db),
        target_url: target.endpoint.url(target.endpoint.db),
        ..beginning_at(store, job, (at(source), at(target)), again.unwrap_or_default(), is_resumed)
    }
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
        name: before.as_ref().and_then(|before| before.name.clone()),
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

/// How far a job came that nothing has stopped against its will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// To its end: the word for it.
    Through(&'static str),
    /// Not so far.
    Short,
}

/// What came of a job, and whether the user wanted it to end permanently.
#[derive(Debug)]
pub struct Attendance<T> {
    /// What it was.
    pub outcome: Result<T>,
    /// Whether the user did.
    pub is_cancelled: bool,
}

/// Runs a job, which others see and can ask meanwhile. When it has stopped and its journal is closed, pending
/// requests get their answers, and its end is written down. The journal of a cancelled job is removed.
///
/// # Errors
/// `Own` if its socket cannot be made, or that journal cannot be removed.
pub async fn attended<T, R: Serialize>(
    folder: &Path,
    job: LocalJob,
    work: impl Future<Output = Result<T>>,
    came: impl FnOnce(&T) -> Came,
    report: impl FnOnce(&T) -> &R,
) -> Result<Attendance<T>> {
    let (job, store) = (Arc::new(job), Store::new(folder));
    let attended = Attended::begin(&store, job.clone()).await?;
    let outcome = tokio::select! {
        outcome = work => outcome,
        never = job.cut_over_later() => match never {},
    };
    let is_cancelled = job.is_cancelled();
    let Status { id: name, kind, .. } = job.standing().await.job;
    if let Ok(done) = &outcome {
        store.keep_report(&name, report(done));
    }
    match outcome.as_ref().map(came) {
        Ok(Came::Through(word)) => attended.leave(How::Ended(word)).await,
        _ if is_cancelled => {
            let refused = match kind {
                Kind::Sync => sync::refuse_to_discard(folder, &name),
                _ => Ok(()),
            };
            if let Err(error) = refused {
                attended.leave(How::Interrupted(&error.problem())).await;
                return Err(error);
            }
            let mut discarded = Ok(false);
            attended.leave_after(How::Ended("cancelled"), || discarded = discard(folder, kind, &name)).await;
            discarded?;
        }
        Ok(Came::Short) => attended.leave(How::Interrupted("")).await,
        Err(error) => attended.leave(How::Interrupted(&error.problem())).await,
    }
    Ok(Attendance { outcome, is_cancelled })
}
