//! Carries out the effects of the state machine for one job, with the external method.
//!
//! **Order under the pause.** The source is paused; the feed reaches the source's offset; what is left is
//! transferred; the target's replicas acknowledge; both sides are compared; the fence finds out whether
//! anything was written since. Each step relies on the one before, and `core::migration` asks for them in
//! this order only.
//!
//! **The pause ends in time.** Until the fence the source ends it by itself. The fence is begun only if what
//! is left of the pause is enough for it and all that follows, and a fence that itself took too long is
//! lifted if it is nothing but a pause. From the takeover on forward is the shortest way.
//!
//! Errors become outcomes here: what certainly did not happen is refused, and the result of a fence, a
//! takeover or a giving back that got no answer is unknown: it is reported as unknown, and looked into.

mod brake;
mod check;
mod silence;
mod waiting;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::migration::{Action, Detail, Effect, Outcome, Process, Reason, Rules, Verify, Why};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::clock::{self, Asked};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error};
use whimbrel_engine::feed::{Feed, FeedOptions, TouchedLimits};
use whimbrel_engine::handover::{
    Handover, HandoverOptions, Members, Paused, Sealed, Sighting, SlotFenceKind,
};
use whimbrel_flow::functions;
use whimbrel_flow::slots::{Level, SlotMover, SlotOptions, TargetGate, TargetGateGuard, count_keys};

use self::brake::{BRAKED_ROUND, beside_brake, slow_writers};
pub use self::silence::Silence;
use crate::naming::process_name;
use crate::options::TransferOptions;
use crate::pause::PauseNeed;
use crate::progress::JobProgress;

/// Touched elements of one key that are followed; beyond it the key moves as a whole again.
const TOUCHED_ELEMENTS_MAX: usize = 65_536;

/// How fast keys are taken to move before anything was measured, per second.
const KEYS_PER_S_FIRST: f64 = 30_000.0;

/// Why these slots of a source cannot leave it in one handover.
pub(crate) const NOT_AT_ONCE: &str = "these are all slots of the source, and the target has none: these \
     servers would make the source's replicas follow the slots, so they need two handovers";

/// Result of an effect: what it brings, or why it was not done.
type Done = std::result::Result<Detail, Trouble>;

/// An effect that is being carried out. The largest are boxed: the futures of jobs, which wait for them,
/// would be as large.
type Doing<'a> = BoxFuture<'a, Done>;

/// Why an effect was not done.
enum Trouble {
    /// The machine's word for it.
    Reason(Reason),
    /// An error of a link, a server, or ourselves.
    Error(Error),
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Self {
        Trouble::Error(e)
    }
}

fn because(why: Why, message: impl Into<String>) -> Trouble {
    Trouble::Reason(Reason::new(why, message))
}

/// What was written down of the cluster by the process that ran the job before.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The nodes of both shards.
    pub members: Option<Members>,
    /// Nodes on which `cluster-allow-replica-migration` has to be switched on again.
    pub sheltered: Vec<NodeId>,
    /// Whether the job has changed anything.
    pub begun: bool,
    /// A node that did not answer.
    pub silent: Option<Silence>,
}

/// Carries out effects for one job.
pub(crate) struct Executor {
    deployment: Arc<Deployment>,
    options: TransferOptions,
    rules: Rules,
    job: String,
    /// All slots of the job.
    slots: SlotSet,
    progress: Arc<JobProgress>,
    /// Cancelled when the job is to be cancelled: what may be broken off is.
    stop: CancellationToken,
    between: Option<(NodeId, NodeId)>,
    handover: Option<Handover>,
    feed: Option<Feed>,
    mover: Option<SlotMover>,
    paused: Option<(Paused, Instant)>,
    /// This process has paused writes and has not resumed them since, as far as it knows.
    has_paused: bool,
    /// From before the pause until writes resume.
    gate: Option<TargetGateGuard>,
    /// How old the knowledge is that the source is fenced, by [`clock::now_ms`]: a failover goes on while
    /// this machine is suspended.
    sealed_at_ms: Option<u64>,
    /// The target's process when the batch was begun: another one may have lost what was staged.
    staged_at: Option<Process>,
    /// The slots that were taken over together with their fence, and what came of that.
    taken: Option<(SlotSet, Result<(), Error>)>,
    /// The nodes of both shards as they were when the job last looked: a promoted replica is found among
    /// them.
    members: Option<Members>,
    /// Nodes whose replicas are kept from following the slots, as the last handover knew.
    sheltered: Vec<NodeId>,
    begun: bool,
    functions_shared: bool,
    compared_ahead: bool,
    keys_per_s: f64,
    /// What a pause needs, as it was measured by the check of the batch at hand.
    need: PauseNeed,
    /// When the fence at hand was begun, and how long it took from there to the release the last times.
    fence_begun: Option<Instant>,
    /// A child of the source has been waited for in vain.
    beside_child: bool,
    sealing_took_ms: u64,
    /// A node of the job that does not answer, as far as it was looked for one.
    silent: Option<Silence>,
    /// Whether it gives way to others at these nodes, although it has begun: it is between two batches.
    gives_way: bool,
    /// How long it takes to write the job down.
    write_took: Duration,
    notices: Vec<String>,
}

impl Executor {
    pub(crate) fn new(
        deployment: Arc<Deployment>,
        options: TransferOptions,
        rules: Rules,
        (job, slots): (String, SlotSet),
        progress: Arc<JobProgress>,
        stop: CancellationToken,
        known: Known,
    ) -> Executor {
        let Known { members, sheltered, begun, silent } = known;
        Executor {
            deployment,
            options,
            rules,
            job,
            slots,
            progress,
            stop,
            between: None,
            handover: None,
            feed: None,
            mover: None,
            paused: None,
            has_paused: false,
            gate: None,
            sealed_at_ms: None,
            staged_at: None,
            taken: None,
            members,
            sheltered,
            begun,
            functions_shared: false,
            compared_ahead: false,
            keys_per_s: KEYS_PER_S_FIRST,
            need: PauseNeed::default(),
            fence_begun: None,
            beside_child: false,
            sealing_took_ms: 0,
            silent,
            gives_way: false,
            write_took: Duration::ZERO,
            notices: Vec::new(),
        }
    }

    /// The nodes of both shards, to be written down with the job.
    pub(crate) fn members(&self) -> Option<&Members> {
        self.members.as_ref()
    }

    /// The nodes on which `cluster-allow-replica-migration` has to be switched on again, to be written down
    /// with the job before it is switched off.
    pub(crate) fn sheltered(&self) -> &[NodeId] {
        &self.sheltered
    }

    /// A node that does not answer, to be written down with the job.
    pub(crate) fn silent(&self) -> Option<&Silence> {
        self.silent.as_ref()
    }

    /// Puts back what a job has changed besides slots and keys, if it ended in a way that did not put it
    /// back.
    pub(crate) async fn put_back(&mut self) {
        put_back(&self.deployment, &std::mem::take(&mut self.sheltered)).await;
    }

    /// The job was written down, which took this long.
    pub(crate) fn note_write(&mut self, took: Duration) {
        self.write_took = (self.write_took + took) / 2;
    }

    /// How long writes may be paused at once from now on.
    pub(crate) fn allow_pause(&mut self, max_pause_ms: u64) {
        self.rules.max_pause_ms = max_pause_ms;
    }

    /// What the user should know.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Does what is asked for.
    pub(crate) fn execute<'a>(&'a mut self, effect: &'a Effect) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let between = (effect.source.clone(), effect.target.clone());
            if self.between.as_ref() != Some(&between) {
                // Another node leads the shard now: nothing that was open is of use.
                self.feed = None;
                self.forget_links();
                self.between = Some(between);
            }
            let done = self.perform(effect).await;
            if let Some(handover) = &self.handover {
                self.sheltered = handover.sheltered().cloned().collect();
            }
            let trouble = match done {
                Ok(detail) => return Outcome::Done(detail),
                Err(trouble) => trouble,
            };
            let changes_owners =
                matches!(effect.action, Action::Fence | Action::TakeOver { .. } | Action::GiveBack);
            match trouble {
                Trouble::Reason(reason) => Outcome::Refused(reason),
                Trouble::Error(e) => {
                    let action = effect.action.name();
                    tracing::info!(action, error = %e, "an effect was not carried out");
                    if e.is_link() {
                        self.forget_links();
                    }
                    if changes_owners && e.server().is_none() {
                        return Outcome::Unknown { message: e.to_string() };
                    }
                    Outcome::Refused(self.reason_of(&e).await)
                }
            }
        })
    }

    /// Closes the connections; the feed stays, since it repairs its own.
    fn forget_links(&mut self) {
        self.handover = None;
        self.mover = None;
        self.paused = None;
        self.gate = None;
        self.sealed_at_ms = None;
        self.taken = None;
    }

    async fn perform(&mut self, effect: &Effect) -> Done {
        let slots = &effect.slots;
        match &effect.action {
            Action::Check => self.check(slots).await,
            Action::MarkImporting => {
                self.handover().await?.mark_importing(slots).await?;
                Ok(Detail::Nothing)
            }
            Action::Attach => self.attach(slots).await,
            Action::Snapshot => self.snapshot(slots).await,
            Action::CatchUp { brake_percent } => self.catch_up(slots, *brake_percent).await,
            Action::Pause { pause_ms } => self.pause(slots, *pause_ms).await,
            Action::Drain { replica_wait_ms } => self.drain(*replica_wait_ms).await,
            Action::Compare { verify } => self.compare(slots, *verify).await,
            Action::Fence => self.fence(slots).await,
            Action::TakeOver { guard_ms } => self.take_over(slots, *guard_ms).await,
            Action::Release => {
                let until = self.paused.as_ref().map(|(paused, _)| paused.until);
                self.handover().await?.settle(slots, until).await?;
                if let Some(begun) = self.fence_begun.take() {
                    let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                    self.sealing_took_ms = u64::midpoint(self.sealing_took_ms, took_ms);
                }
                Ok(self.released())
            }
            Action::Confirm { everywhere } => {
                self.handover().await?.confirm(slots, everywhere).await?;
                Ok(Detail::Nothing)
            }
            Action::CleanUp => {
                let pace = self.rules.cleanup_keys_per_s;
                let keys = self.handover().await?.clean_up(slots, pace).await?;
                Ok(Detail::Moved { keys, bytes: 0 })
            }
            Action::LiftPause => {
                // Even if we know of none: an earlier process may have died under one.
                match self.has_paused {
                    true => self.handover().await?.release().await?,
                    false => self.handover().await?.release_what_is_left().await?,
                }
                Ok(self.released())
            }
            Action::Wipe => {
                let pace = self.rules.cleanup_keys_per_s;
                let keys = self.handover().await?.wipe(slots, pace).await?;
                Ok(Detail::Moved { keys, bytes: 0 })
            }
            Action::ClearMarks => {
                self.handover().await?.clear_marks(slots).await?;
                Ok(Detail::Nothing)
            }
            Action::Detach => {
                self.feed = None;
                Ok(Detail::Nothing)
            }
            Action::GiveBack => {
                self.handover().await?.give_back(slots).await?;
                self.paused = None;
                self.gate = None;
                Ok(Detail::Nothing)
            }
            Action::Observe { after_ms } => self.observe(slots, *after_ms).await,
        }
    }

    async fn handover(&mut self) -> Result<&mut Handover, Trouble> {
        if self.handover.is_none() {
            let (source, target) = self.between.clone().ok_or_else(no_nodes)?;
            let options = self.handover_options();
            self.handover = Some(Handover::open_with(&self.deployment, source, target, options).await?);
        }
        Ok(self.handover.as_mut().ok_or_else(no_nodes)?)
    }

    fn handover_options(&self) -> HandoverOptions {
        HandoverOptions {
            label: self.job.clone(),
            process: process_name().to_owned(),
            slots: self.slots.clone(),
            begun: self.begun && !self.gives_way,
            sheltered: self.sheltered.clone(),
            ..HandoverOptions::default()
        }
    }

    async fn mover(&mut self) -> Result<&mut SlotMover, Trouble> {
        if self.mover.is_none() {
            let handover = self.handover().await?;
            let (source, target) = (handover.source_address().clone(), handover.target_address().clone());
            let options = SlotOptions {
                lanes: self.options.lanes,
                big_key_bytes: self.options.big_key_bytes,
                chunk_bytes: self.options.chunk_bytes,
                memory_bytes: self.options.memory_bytes,
                rates: self.progress.rates.clone(),
                job: self.job.clone(),
                client_name: self.handover_options().client_name(),
                drain_ms_max: self.rules.max_pause_ms / 2,
                gate: gate_of(&target),
            };
            let (deployment, progress) = (self.deployment.clone(), self.progress.moved.clone());
            let mover =
                SlotMover::open(deployment, &source, &target, options, progress, self.stop.clone()).await?;
            self.mover = Some(mover);
        }
        Ok(self.mover.as_mut().ok_or_else(no_nodes)?)
    }

    async fn share_functions(&mut self) -> Result<(), Trouble> {
        let handover = self.handover().await?;
        let (from, to) = (handover.source_address().clone(), handover.target_address().clone());
        let (mut from, mut to) = (self.deployment.open(&from, 0).await?, self.deployment.open(&to, 0).await?);
        for library in functions::share(&mut from, &mut to).await? {
            let notice = format!(
                "function library {library} differs between source and target; the target's was left as it is"
            );
            if !self.notices.contains(&notice) {
                self.notices.push(notice);
            }
        }
        self.functions_shared = true;
        Ok(())
    }

    fn attach<'a>(&'a mut self, slots: &'a SlotSet) -> Doing<'a> {
        Box::pin(async move {
            match self.feed.take().filter(|feed| feed.failure().is_none()) {
                Some(feed) => {
                    feed.watch(slots.clone());
                    feed.touched().take_flushed();
                    self.feed = Some(feed);
                }
                None => {
                    let address = self.handover().await?.source_address().clone();
                    let options = FeedOptions {
                        limits: TouchedLimits {
                            bytes_max: self.options.touched_bytes,
                            elements_max: TOUCHED_ELEMENTS_MAX,
                        },
                        attach_timeout_ms: FeedOptions::default()
                            .attach_timeout_ms
                            .min(self.options.stall_ms),
                        ..FeedOptions::default()
                    };
                    self.feed = Some(self.attach_feed(&address, slots, options).await?);
                }
            }
            // Not before: the feed reports what is loaded from here on.
            if !self.functions_shared {
                self.share_functions().await?;
            }
            Ok(Detail::Nothing)
        })
    }

    async fn snapshot(&mut self, slots: &SlotSet) -> Done {
        let remember_streams = self.feed()?.misses_consumer_groups();
        self.compared_ahead = false;
        let address = self.handover().await?.source_address().clone();
        let mut link = self.deployment.open(&address, 0).await?;
        let counts = count_keys(&mut link, slots).await?;
        let expected: u64 = counts.iter().map(|(_, n)| n).sum();
        self.progress.begin_batch(expected);
        let (keys, bytes) = self.moved();
        let started = Instant::now();
        let mover = self.mover().await?;
        mover.begin_batch(remember_streams);
        if let Err(e) = mover.snapshot(&counts).await {
            self.mover = None;
            return Err(e.into());
        }
        let (keys_now, bytes_now) = self.moved();
        self.update_rate(keys_now - keys, started.elapsed());
        Ok(Detail::Moved { keys: keys_now - keys, bytes: bytes_now - bytes })
    }

    fn moved(&self) -> (u64, u64) {
        let moved = &self.progress.moved;
        (moved.keys.load(Ordering::Relaxed), moved.bytes.load(Ordering::Relaxed))
    }

    fn update_rate(&mut self, keys: u64, took: Duration) {
        if keys > 100 {
            let measured = keys as f64 / took.as_secs_f64().max(0.001);
            self.keys_per_s = (self.keys_per_s + measured) / 2.0;
        }
    }

    fn feed(&self) -> Result<&Feed, Trouble> {
        match &self.feed {
            None => Err(because(Why::FeedLost, "no feed is attached")),
            Some(feed) => match feed.failure() {
                Some(failure) => Err(because(Why::FeedLost, failure.to_string())),
                None if feed.touched().flushed() => {
                    Err(because(Why::Flushed, "all keys of the source were flushed while the slots moved"))
                }
                None => Ok(feed),
            },
        }
    }

    fn catch_up<'a>(&'a mut self, slots: &'a SlotSet, brake_percent: u8) -> Doing<'a> {
        Box::pin(async move {
            let touched = self.feed()?.touched();
            let (keys, bytes) = self.moved();
            let started = Instant::now();
            self.handover().await?;
            if self.mover.is_none() {
                return Err(because(
                    Why::Transient,
                    "it is not known any more which keys have to move again",
                ));
            }
            let (Some(mover), Some(handover)) = (&mut self.mover, &mut self.handover) else {
                return Err(no_nodes().into());
            };
            let mut repeated = 0;
            let caught_up = if brake_percent == 0 {
                mover.catch_up(&touched).await.map(|round| repeated += round.moved)
            } else {
                let rounds = async {
                    while started.elapsed() < BRAKED_ROUND {
                        let round = mover.catch_up(&touched).await?;
                        repeated += round.moved;
                        if round.moved == 0 {
                            break;
                        }
                    }
                    Ok(())
                };
                let (longest_ms, enough) = (self.rules.max_pause_ms, CancellationToken::new());
                let brake = slow_writers(handover, brake_percent, longest_ms, &self.progress, &enough);
                beside_brake(rounds, brake, &enough).await
            };
            if let Err(e) = caught_up {
                self.mover = None;
                return Err(e.into());
            }
            self.update_rate(repeated, started.elapsed());
            let max_pause_ms = self.rules.max_pause_ms;
            let mover = self.mover().await?;
            if let Some(unstable) = mover.unstable().filter(|o| o.read_ms > max_pause_ms) {
                let message = format!(
                    "{} {} changes whenever it is read, and a read takes {} ms, more than the longest \
                 pause of {} ms; stop its writers for a while, or allow a longer pause",
                    unstable.kind, unstable.key, unstable.read_ms, max_pause_ms
                );
                return Err(because(Why::TooLarge, message));
            }
            let changing_ms = mover.unstable().map_or(0, |o| o.read_ms);
            let left = (touched.len() + mover.changing()) as u64;
            if self.rules.verify == Verify::Full && !self.compared_ahead {
                self.mover().await?.compare_ahead(slots).await?;
                self.compared_ahead = true;
            }
            self.progress.touched.store(left, Ordering::Relaxed);
            let (keys_now, bytes_now) = self.moved();
            let drain_ms = self.need.with_keys_ms(left, self.keys_per_s);
            Ok(Detail::CaughtUp {
                keys: keys_now - keys,
                bytes: bytes_now - bytes,
                left,
                drain_ms: drain_ms + changing_ms,
                fixed_ms: if left > 0 { self.need.beside_writers_ms() } else { self.need.least_ms },
                pause_ms: self.need.least_ms,
            })
        })
    }

    fn pause<'a>(&'a mut self, slots: &'a SlotSet, pause_ms: u64) -> Doing<'a> {
        Box::pin(async move {
            self.feed()?;
            self.wait_until_clear().await?;
            if !self.beside_child {
                self.beside_child = !self.handover().await?.await_children().await?;
            }
            let seen = self.handover().await?.inspect(slots).await?;
            if !slots.difference(&seen.source.claims).is_empty() {
                return Err(because(Why::OwnerChanged, "the source does not own all of the slots any more"));
            }
            if !seen.target.is_primary || self.staged_at.as_ref() != Some(&seen.target.process) {
                let message = "the target restarted, or was replaced, since keys were copied to it";
                return Err(because(Why::TargetChanged, message));
            }
            let compares = self.rules.verify != Verify::None;
            let mover = self.mover().await?;
            if compares {
                mover.prepare_compare().await?;
            }
            // Before the pause: what other jobs have on their way to the target would make writers wait
            // longer. And before the epochs are looked at: a takeover of another job would change the
            // target's.
            let target = self.handover().await?.target_address().clone();
            self.gate = Some(gate_of(&target).begin().await);
            self.handover().await?.raise_epoch().await?;
            self.sealed_at_ms = None;
            let handover = self.handover().await?;
            let paused = handover.pause(pause_ms).await?;
            // When it was sent: before that a connection may have had to be opened.
            let started = paused.until.checked_sub(Duration::from_millis(pause_ms)).unwrap_or(paused.until);
            let takes_over = handover.fences_by_script(&paused);
            self.paused = Some((paused, started));
            self.has_paused = true;
            Ok(Detail::Paused { takes_over })
        })
    }

    fn paused(&self) -> Result<(&Paused, Instant), Trouble> {
        match &self.paused {
            Some((paused, started)) => Ok((paused, *started)),
            None => Err(because(Why::TooSlow, "the source is not paused any more")),
        }
    }

    /// When a pause has only so much time left.
    fn before_end(paused: &Paused, left_ms: u64) -> Instant {
        paused.until.checked_sub(Duration::from_millis(left_ms)).unwrap_or(paused.until)
    }

    /// What a released pause comes to.
    fn released(&mut self) -> Detail {
        self.has_paused = false;
        self.gate = None;
        let sealed = self.sealed_at_ms.is_some();
        let paused_ms = self.paused.take().map_or(0, |(paused, started)| {
            // If no fence prolonged it, it has ended by itself when its time was up.
            let end = if sealed { Instant::now() } else { Instant::now().min(paused.until) };
            // A pause of less than a millisecond is one, too.
            u64::try_from((end - started).as_millis()).unwrap_or(u64::MAX).max(1)
        });
        Detail::Released { paused_ms }
    }

    async fn drain(&mut self, replica_wait_ms: u64) -> Done {
        let (paused, _) = self.paused()?;
        let deadline = Self::before_end(paused, self.need.after_drain_ms);
        let offset = paused.offset.unwrap_or(0);
        let (keys, bytes) = self.moved();
        let feed = self.feed()?;
        let touched = feed.touched();
        let left = deadline.saturating_duration_since(Instant::now());
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        if !feed.reach(offset, left_ms).await? {
            return Err(because(Why::TooSlow, "the feed did not reach the source's offset within the pause"));
        }
        let mover = self.mover().await?;
        match mover.drain(&touched, deadline).await {
            Ok(true) => {}
            Ok(false) => {
                let message = format!("{} touched keys did not fit into the pause", touched.len());
                return Err(because(Why::TooSlow, message));
            }
            Err(e) => {
                self.mover = None;
                return Err(e.into());
            }
        }
        // What the feed has read by now is transferred as well, if nothing of it waits: the fence goes by the
        // later offset.
        let read_on = self.feed()?.offset();
        if touched.is_empty()
            && let Some((Paused { offset: Some(offset), .. }, _)) = &mut self.paused
        {
            *offset = read_on.max(*offset);
        }
        // A flush may have come with the last bytes of the feed.
        self.feed()?;
        if touched.take_functions_changed() || !self.functions_shared {
            // No client can change them any more until the slots are the target's, and callers are sent
            // there.
            self.functions_shared = false;
            self.share_functions().await?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let wait_ms = replica_wait_ms.min(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)).max(1);
        if !self.handover().await?.wait_replicas(wait_ms).await? {
            let message = "the target's replicas did not acknowledge the staged keys within the pause";
            return Err(because(Why::TooSlow, message));
        }
        let (keys_now, bytes_now) = self.moved();
        Ok(Detail::Moved { keys: keys_now - keys, bytes: bytes_now - bytes })
    }

    async fn compare(&mut self, slots: &SlotSet, verify: Verify) -> Done {
        let until = Self::before_end(self.paused()?.0, self.need.sealing_ms);
        let level = match verify {
            Verify::None => return Ok(Detail::Compared { keys: 0 }),
            Verify::Counts => Level::Counts,
            Verify::Sample => Level::Sample,
            Verify::Full => Level::Full,
        };
        let Ok(found) = tokio::time::timeout_at(until, self.mover().await?.compare(slots, level)).await
        else {
            // The mover stays: it knows which keys have to move again, and which are to be compared.
            return Err(because(Why::TooSlow, "the comparison did not fit into the pause"));
        };
        let found = found?;
        if found.differences > 0 {
            let message = format!(
                "source and target differ in {} places, so the slots were not handed over: {}",
                found.differences,
                found.shown.join("; ")
            );
            return Err(because(Why::Differs, message));
        }
        Ok(Detail::Compared { keys: found.compared })
    }

    async fn fence(&mut self, slots: &SlotSet) -> Done {
        let Some((paused, _)) = &self.paused else {
            return Err(because(Why::TooSlow, "the source is not paused any more"));
        };
        let paused = paused.clone();
        if Instant::now() > Self::before_end(&paused, self.need.sealing_ms) {
            return Err(because(Why::TooSlow, "what is left of the pause is too short for the handover"));
        }
        self.fence_begun = Some(Instant::now());
        let last_moment = Self::before_end(&paused, self.need.sealing_ms * 3 / 5);
        let not_after_ms = clock::now_ms().saturating_add(self.rules.guard_ms);
        let handover = self.handover().await?;
        let asked = Asked::now();
        let fenced = if handover.fence_kind() == SlotFenceKind::Redirecting {
            // From the fence on clients are sent to the target, so there must be no moment in which it sends
            // them back, not even that of a journal. What a process that dies in between leaves is looked
            // into as after any fence.
            let Sealed { fenced, taken } = handover.fence_and_take_over(slots, &paused, not_after_ms).await?;
            // The next effect reports the result of the takeover: that the fence held is known.
            self.taken = fenced.held.then(|| (slots.clone(), taken));
            fenced
        } else {
            let fenced = handover.fence(slots, &paused).await?;
            if fenced.held && Instant::now() > last_moment && handover.lift_fence().await? {
                self.sealed_at_ms = Some(asked.answered_ms());
                return Err(because(Why::TooSlow, "the fence took too long, and was lifted"));
            }
            fenced
        };
        self.sealed_at_ms = Some(asked.answered_ms());
        Ok(Detail::Fenced { held: fenced.held })
    }

    async fn take_over(&mut self, slots: &SlotSet, guard_ms: u64) -> Done {
        if let Some((_, taken)) = self.taken.take().filter(|(taken, _)| taken == slots) {
            return Ok(taken.map(|()| Detail::Nothing)?);
        }
        let not_after_ms = self.sealed_at_ms.map_or(0, |at_ms| at_ms.saturating_add(guard_ms));
        let is_too_late = || clock::now_ms() > not_after_ms;
        if !is_too_late() {
            match self.handover().await?.take_over(slots, not_after_ms).await {
                // It got too late while the source was asked, and nothing was changed.
                Err(e) if e.server().is_some() && is_too_late() => {}
                taken => return Ok(taken.map(|()| Detail::Nothing)?),
            }
        }
        // If it is nothing but a pause, no client has to wait until that is looked into.
        self.handover().await?.lift_fence().await?;
        Err(because(Why::TooLate, "too much time went by since the fence"))
    }

    async fn observe(&mut self, slots: &SlotSet, after_ms: u64) -> Done {
        // Also while the job is being cancelled: the awaited state takes its time.
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        self.forget_links();
        let (source, target) = self.between.clone().ok_or_else(no_nodes)?;
        let members = self.members.clone().unwrap_or(Members { source: vec![source], target: vec![target] });
        let options = self.handover_options();
        let asked = Asked::now();
        let Sighting { observation, silence } =
            Handover::observe_with(&self.deployment, &members, slots, &options).await?;
        self.sealed_at_ms = Some(asked.answered_ms());
        self.note_silence(&observation, silence).await;
        Ok(Detail::Observed(Box::new(observation)))
    }
}

/// Has the replicas of these nodes follow slots again, even if the other nodes of the job do not answer.
pub(crate) async fn put_back(deployment: &Deployment, sheltered: &[NodeId]) {
    if let Err(e) = Handover::unshelter_nodes(deployment, sheltered).await {
        tracing::warn!(error = %e, "a setting is not put back");
    }
}

/// What all jobs of this process with that target share.
fn gate_of(target: &Address) -> TargetGate {
    static ALL: OnceLock<Mutex<HashMap<Address, TargetGate>>> = OnceLock::new();
    let all = ALL.get_or_init(Mutex::default);
    all.lock().entry(target.clone()).or_default().clone()
}

fn no_nodes() -> Error {
    Error::own("carry out a step", "no nodes are known for it")
}

/// What an error means for the batch.
fn reason_of(e: &Error, stopped: bool) -> Reason {
    let why = match e.server().map(|e| &e.code) {
        _ if stopped && e.server().is_none() && !e.is_link() => Why::Interrupted,
        Some(Code::Oom) => Why::OutOfMemory,
        Some(Code::NoPermission | Code::NoAuth | Code::UnknownCommand | Code::WrongPassword) => {
            Why::Forbidden
        }
        Some(Code::Moved(..)) => Why::OwnerChanged,
        Some(Code::ReadOnly) => Why::SourceChanged,
        Some(code) if code.is_transient() => Why::Transient,
        // ASKING in a slot that the target does not import any more, a script that refuses, and the like.
        Some(_) => Why::Transient,
        None if e.is_link() => Why::Transient,
        None => Why::Permanent,
    };
    Reason::new(why, e.to_string())
}
