//! One native migration from its start to its end.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::SlotSet;

use crate::deployment::Deployment;
use crate::error::{Error, Result};

use super::failure::NativeFailure;
use super::migration::{NativeCancel, NativeFound, NativeMigration, NativeOwner, Peer};
use super::pace::Pace;
use super::state::{NativePhase, NativeState};
use super::support::NativeKind;

/// The longest pause between two tries.
const BACKOFF_MAX_MS: u64 = 5_000;

/// How long the nodes may take to end a migration at each try, and how long to wait between two tries.
const END_SETTLE_MS: u64 = 5_000;
const END_POLL: Duration = Duration::from_millis(200);

/// Bounds on one native migration.
#[derive(Debug, Clone, Copy)]
pub struct NativeOptions {
    /// How often it is started at most, retriable failures provided. With Redis, which tries again by itself,
    /// how often the server tries.
    pub attempts_max: u32,
    /// How often the server is asked how far it is. Less often if its answer takes long.
    pub poll_ms: u64,
    /// How long to wait for another migration of the same node to end; 0 refuses at once.
    pub wait_turn_ms: u64,
    /// How long both nodes may take to agree on the owner, and to clean up after a failure.
    pub settle_ms: u64,
    /// How long the node that drives it may be out of reach before that counts as a failure.
    pub unreachable_ms: u64,
    /// The pause before the second try; each further one is twice as long, up to 5 s.
    pub backoff_first_ms: u64,
    /// Go on with what a run with the same arguments has left, and do not take it for another job's: set when
    /// a job is resumed. Slots that are at the target already then count as moved.
    pub adopt: bool,
    /// How long it may take altogether. Then it is cancelled. Valkey waits for ever for writers that outrun
    /// it.
    pub give_up_after_ms: u64,
    /// How long it may stay as far as it is. Then it is cancelled. `None`: for ever.
    pub stall_ms: Option<u64>,
}

impl Default for NativeOptions {
    fn default() -> Self {
        NativeOptions {
            attempts_max: 3,
            poll_ms: 50,
            wait_turn_ms: 0,
            settle_ms: 10_000,
            unreachable_ms: 10_000,
            backoff_first_ms: 200,
            adopt: false,
            give_up_after_ms: 3_600_000,
            stall_ms: None,
        }
    }
}

/// What a native migration came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeReport {
    /// [`NativePhase::Done`] or [`NativePhase::Cancelled`].
    pub phase: NativePhase,
    /// Which built-in migration it was.
    pub kind: NativeKind,
    /// The server's name for the last try; empty if none was started.
    pub name: String,
    /// How often it was started, the server's own retries included.
    pub attempts: u32,
    /// Why the tries before the last one failed. At most as many as tries.
    pub failures: Vec<String>,
    /// How many slots have moved: all or none.
    pub slots: usize,
    /// From the first start to the agreement of both nodes, in milliseconds.
    pub duration_ms: u64,
    /// How long writes were paused, if the server reports it (Redis).
    pub pause_ms: Option<u64>,
    /// The most that waited to be sent, of what was seen, if the server reports it (Valkey 9.1).
    pub remaining_bytes_max: Option<u64>,
    /// Bytes copied by the kernel because pages changed under the snapshot, if the server reports them
    /// (Valkey).
    pub cow_bytes: Option<u64>,
}

/// Moves `slots` from `source` to `target` by the servers' own means: waits for its turn, starts, watches,
/// tries again what is worth it, cancels when `cancel` says so, and checks at the end that both nodes name
/// the same owner. `progress` has the latest state at any time.
///
/// A cancellation that comes after the target took the slots is too late: the report then says `Done`.
/// Dropping the future leaves a migration that was started to the servers.
///
/// # Errors
/// As [`NativeMigration::start`]; `Unfit` with the server's reason, the node it is about and what to do, if
/// it failed permanently or too often. In all of these the source keeps the slots, except if the error says
/// that the nodes do not agree.
#[expect(
    clippy::too_many_arguments,
    reason = "what, between whom, how, and two channels: none belongs to another"
)]
pub fn run<'a>(
    deployment: &'a Deployment,
    kind: NativeKind,
    source: &'a Peer,
    target: &'a Peer,
    slots: &'a SlotSet,
    options: NativeOptions,
    progress: &'a watch::Sender<NativeState>,
    cancel: &'a CancellationToken,
) -> BoxFuture<'a, Result<NativeReport>> {
    // Boxed, so that it is compiled here and not in each crate that awaits it.
    Box::pin(async move {
        let now = Instant::now();
        let mut runner = Runner {
            options,
            progress,
            cancel,
            deadline: now + Duration::from_millis(options.give_up_after_ms),
            since: now,
            report: NativeReport {
                phase: NativePhase::Cancelled,
                kind,
                name: String::new(),
                attempts: 0,
                failures: Vec::new(),
                slots: 0,
                duration_ms: 0,
                pause_ms: None,
                remaining_bytes_max: None,
                cow_bytes: None,
            },
        };
        let mut adopted = None;
        if options.adopt {
            let until = runner.patience();
            let found = loop {
                match NativeMigration::find(deployment, kind, source, target, slots).await {
                    Err(e) if e.is_transient() && Instant::now() < until => sleep(END_POLL).await,
                    found => break found?,
                }
            };
            match found {
                NativeFound::Running(migration) => adopted = Some(*migration),
                NativeFound::Done => {
                    runner.report.slots = slots.len();
                    return Ok(runner.finish(NativePhase::Done));
                }
                NativeFound::Nothing => {}
            }
        }
        let mut backoff_ms = options.backoff_first_ms;
        loop {
            runner.publish(NativeState { message: runner.last_failure(), ..NativeState::default() });
            let started = match adopted.take() {
                Some(migration) => Some(runner.begin(migration)),
                None => runner.start(deployment, kind, source, target, slots).await?,
            };
            let Some(mut migration) = started else { return Ok(runner.finish(NativePhase::Cancelled)) };
            let failure = match runner.watch(&mut migration).await? {
                End::Done => return runner.done(&mut migration, slots).await,
                End::Cancelled => return Ok(runner.finish(NativePhase::Cancelled)),
                End::Failed(failure) => failure,
            };
            // Before anything else: a failure of the driving node may hide a success, and a target that still
            // cleans up refuses the next try.
            let settled = runner.settle(&mut migration).await;
            match settled {
                Ok(NativeOwner::Target) => return runner.done(&mut migration, slots).await,
                Ok(NativeOwner::Source) => {}
                Ok(NativeOwner::Unsettled) => {
                    return Err(migration.unsettled("settle a failed slot migration"));
                }
                Err(_) if migration.is_taken().await.unwrap_or(false) => {
                    return Err(migration.unsettled("settle a failed slot migration"));
                }
                Err(_) => return Err(runner.fail(&migration, failure)),
            }
            if !failure.retriable || runner.report.attempts >= options.attempts_max {
                return Err(runner.fail(&migration, failure));
            }
            runner.report.failures.push(failure.reason);
            let message = runner.last_failure();
            runner.publish(NativeState { message, ..NativeState::default() });
            if runner.sleep(Duration::from_millis(backoff_ms)).await {
                return Ok(runner.finish(NativePhase::Cancelled));
            }
            backoff_ms = (backoff_ms * 2).min(BACKOFF_MAX_MS);
        }
    })
}

/// Makes sure that neither node works on a migration of `slots` from `source` to `target` any more, and finds
/// which node has the slots then. A migration that is under way is cancelled; a node that cannot be asked is
/// asked again, for at most `timeout_ms`.
///
/// # Errors
/// As [`NativeMigration::cancel`] and [`NativeMigration::owner`], if time is up.
pub async fn end(
    deployment: &Deployment,
    kind: NativeKind,
    source: &Peer,
    target: &Peer,
    slots: &SlotSet,
    timeout_ms: u64,
) -> Result<NativeOwner> {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
    loop {
        let outcome = NativeMigration::end(deployment, kind, source, target, slots, END_SETTLE_MS).await;
        let is_over = matches!(outcome, Ok(NativeOwner::Source | NativeOwner::Target));
        if is_over || Instant::now() >= deadline {
            return outcome;
        }
        sleep(END_POLL).await;
    }
}

/// How the watch over one try ended.
enum End {
    /// The server says that it succeeded.
    Done,
    Cancelled,
    Failed(NativeFailure),
}

struct Runner<'a> {
    options: NativeOptions,
    progress: &'a watch::Sender<NativeState>,
    cancel: &'a CancellationToken,
    deadline: Instant,
    since: Instant,
    report: NativeReport,
}

impl Runner<'_> {
    /// Starts it, after those that are under way on the same node. `None` if it was cancelled before.
    async fn start(
        &mut self,
        deployment: &Deployment,
        kind: NativeKind,
        source: &Peer,
        target: &Peer,
        slots: &SlotSet,
    ) -> Result<Option<NativeMigration>> {
        let turn_ends = Instant::now() + Duration::from_millis(self.options.wait_turn_ms);
        loop {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            let asked = Instant::now();
            match NativeMigration::start(deployment, kind, source, target, slots).await {
                Ok(migration) => return Ok(Some(self.begin(migration))),
                Err(e) if NativeMigration::is_busy(&e) && Instant::now() < turn_ends => {
                    self.publish(NativeState { message: e.to_string(), ..NativeState::default() });
                    self.sleep(nap(self.options.poll_ms, asked.elapsed())).await;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn begin(&mut self, migration: NativeMigration) -> NativeMigration {
        self.report.attempts += 1;
        migration.name().clone_into(&mut self.report.name);
        migration
    }

    /// Watches one try until it ends.
    async fn watch(&mut self, migration: &mut NativeMigration) -> Result<End> {
        let mut unreachable_since: Option<Instant> = None;
        let attempts_before = self.report.attempts;
        let mut pace = Pace::new(Instant::now());
        loop {
            if self.cancel.is_cancelled() {
                return self.stop(migration).await;
            }
            let asked = Instant::now();
            let is_stalled =
                self.options.stall_ms.is_some_and(|ms| pace.still(asked) >= Duration::from_millis(ms));
            if asked >= self.deadline || is_stalled {
                return self.give_up(migration, pace.still(asked).as_secs_f64(), is_stalled).await;
            }
            match migration.poll().await {
                Ok(mut state) => {
                    unreachable_since = None;
                    self.report.attempts = attempts_before + state.server_retries;
                    state.attempt = self.report.attempts;
                    self.note(&state);
                    pace.see(&state, asked);
                    if self.options.stall_ms.is_some() && pace.wants_count(&state, asked) {
                        // A courtesy: what cannot be counted is no move.
                        pace.count(migration.arrived().await.unwrap_or(0), asked);
                    }
                    let (phase, failure) = (state.phase, state.failure());
                    self.publish(state);
                    match failure {
                        _ if phase == NativePhase::Confirming => return Ok(End::Done),
                        // Redis will try again by itself, for ever: that is bounded here.
                        Some(failure) if !phase.is_final() => {
                            if !failure.retriable || self.report.attempts >= self.options.attempts_max {
                                return self.stop_retries(migration, failure).await;
                            }
                            self.remember(&failure.reason);
                        }
                        Some(failure) => return Ok(End::Failed(failure)),
                        None => {}
                    }
                }
                Err(e) if e.is_transient() => {
                    let since = *unreachable_since.get_or_insert(asked);
                    if since.elapsed() >= Duration::from_millis(self.options.unreachable_ms) {
                        return Ok(End::Failed(NativeFailure {
                            reason: e.to_string(),
                            side: e.side,
                            retriable: true,
                            remedy: Some("see that the node is up and reachable, then start again"),
                        }));
                    }
                }
                Err(e) => return Err(e),
            }
            self.sleep(nap(self.options.poll_ms, asked.elapsed())).await;
        }
    }

    /// Cancels because the user wants it.
    async fn stop(&mut self, migration: &mut NativeMigration) -> Result<End> {
        match self.cancelled(migration).await? {
            NativeCancel::Cancelled => Ok(End::Cancelled),
            NativeCancel::TooLate => Ok(End::Done),
        }
    }

    /// Ends the server's own retries.
    async fn stop_retries(&mut self, migration: &mut NativeMigration, failure: NativeFailure) -> Result<End> {
        match self.cancelled(migration).await? {
            NativeCancel::Cancelled => Ok(End::Failed(NativeFailure { retriable: false, ..failure })),
            NativeCancel::TooLate => Ok(End::Done),
        }
    }

    /// Cancels because time is up, or nothing moves.
    async fn give_up(&mut self, migration: &mut NativeMigration, still_s: f64, stalled: bool) -> Result<End> {
        let raw = self.progress.borrow().raw.clone();
        let what = match stalled {
            true => format!("it did not move for {still_s:.0} s"),
            false => format!("it was not done within {} ms", self.options.give_up_after_ms),
        };
        let reason = format!("{what} and was cancelled while \"{raw}\"");
        let failure = NativeFailure {
            reason,
            side: crate::error::Side::Source,
            retriable: false,
            remedy: Some("slow the writers down, move fewer slots at once, or use another method"),
        };
        self.stop_retries(migration, failure).await
    }

    /// Waits until both nodes are through with a failed try.
    async fn settle(&self, migration: &mut NativeMigration) -> Result<NativeOwner> {
        migration.quiesce(self.options.settle_ms).await?;
        migration.settle(self.options.settle_ms).await
    }

    /// The server says that it succeeded: both nodes must, too.
    async fn done(mut self, migration: &mut NativeMigration, slots: &SlotSet) -> Result<NativeReport> {
        match migration.settle(self.options.settle_ms).await? {
            NativeOwner::Target => {}
            _ => return Err(migration.unsettled("confirm a slot migration")),
        }
        self.report.slots = slots.len();
        self.report.pause_ms = migration.pause_ms().await.or(self.report.pause_ms);
        Ok(self.finish(NativePhase::Done))
    }

    fn finish(mut self, phase: NativePhase) -> NativeReport {
        self.report.phase = phase;
        self.report.duration_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.send_modify(|state| state.phase = phase);
        self.report
    }

    fn fail(&self, migration: &NativeMigration, failure: NativeFailure) -> Error {
        let tries = match self.report.attempts {
            0 | 1 => String::new(),
            n => format!(" (tried {n} times)"),
        };
        let what = format!("{}{tries}", failure.reason);
        let error = migration.error(failure.side, migration.kind().command(), what);
        self.progress.send_modify(|state| state.phase = NativePhase::Failed);
        match failure.remedy {
            Some(remedy) => error.with_remedy(remedy),
            None => error,
        }
    }

    fn publish(&self, state: NativeState) {
        self.progress.send_replace(state);
    }

    fn note(&mut self, state: &NativeState) {
        self.report.remaining_bytes_max = self.report.remaining_bytes_max.max(state.remaining_bytes);
        self.report.cow_bytes = self.report.cow_bytes.max(state.cow_bytes);
        self.report.pause_ms = self.report.pause_ms.max(state.pause_ms);
    }

    fn last_failure(&self) -> String {
        self.report.failures.last().cloned().unwrap_or_default()
    }

    /// A failure that the server gets over by itself is reported once, however often it is seen.
    fn remember(&mut self, reason: &str) {
        if self.report.failures.last().is_none_or(|last| last != reason) {
            self.report.failures.push(reason.to_owned());
        }
    }

    /// Until when a node may be out of reach that is needed now.
    fn patience(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.options.unreachable_ms)
    }

    /// Cancels it, again if a node is out of reach.
    async fn cancelled(&self, migration: &mut NativeMigration) -> Result<NativeCancel> {
        let until = self.patience();
        loop {
            match migration.cancel(self.options.settle_ms).await {
                Err(e) if e.is_transient() && Instant::now() < until => sleep(END_POLL).await,
                outcome => return outcome,
            }
        }
    }

    /// Sleeps, or wakes early for a cancellation: then true.
    async fn sleep(&self, duration: Duration) -> bool {
        tokio::select! {
            () = self.cancel.cancelled() => true,
            () = sleep(duration) => false,
        }
    }
}

/// How long to sleep after a look that took `took`: servers list up to 1,000 old migrations, and looking must
/// not become their main work.
fn nap(poll_ms: u64, took: Duration) -> Duration {
    Duration::from_millis(poll_ms).max(took * 4)
}
