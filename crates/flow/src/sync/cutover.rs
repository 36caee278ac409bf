//! The target takes over.
//!
//! Writes to the source are paused on all primaries; the feeds come to the offsets at which they were paused;
//! what is still touched is transferred; both sides are compared; then the writers are fenced off and the
//! pause is lifted. If any of this does not succeed within the pause, writes resume and everything is as
//! before.

use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::clock;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::feed::{Feed, History};
use whimbrel_engine::probe::Info;
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::seal::{Reached, Seal, WriterFence, WriterFenceKind, check_rights};

use super::asked::Beginning;
use super::compare::{Sample, chance_of_one_percent};
use super::conditions::{begin, is_wanted, refused};
use super::external::QuietWait;
use super::heard::millis;
use super::options::CutoverOptions;
use super::report::CutoverReport;
use super::source::{Round, Source};
use super::state::{Back, Fronted, Position};
use super::status::SyncPhase;
use super::syncer::Syncer;
use super::unseen::Unseen;
use crate::copy;
use crate::pipeline::Shared;
use crate::verify::Settle;

/// For how long rounds go on before it is measured what one of them takes.
const DRAIN_FOR: Duration = Duration::from_secs(5);

/// How often slots are repaired before a cutover gives up on them.
const REPAIRS_MAX: u32 = 20;

/// What is left of the pause for fencing the writers off, when everything has been compared.
pub(super) const FENCE_SHARE: f64 = 0.2;

/// What a pause of this many milliseconds has without that.
pub(super) fn before_fence(pause_ms: u64) -> Duration {
    Duration::from_millis((pause_ms as f64 * (1.0 - FENCE_SHARE)) as u64)
}

impl Syncer {
    pub(super) async fn cutover(
        &mut self,
        options: &CutoverOptions,
        withdrawn: &CancellationToken,
        beginning: &Beginning,
    ) -> Result<CutoverReport> {
        self.check_answers().await?;
        for _ in 0..REPAIRS_MAX {
            self.repair().await?;
            if self.is_calm() {
                break;
            }
        }
        self.status.phase(SyncPhase::of_cutover(options.dry_run));
        self.check(options)?;
        let source = self.shared.source.clone();
        if let Some(left) = &self.state.cut_over {
            // Users do not have the rights now that they are to get back.
            left.lift(&source).await?;
            self.state.cut_over = None;
        }
        let lift = self.state.lift.clone().filter(|_| options.back);
        check_rights(&source, options.fence).await?;
        if let Some(lift) = &lift {
            lift.check_lift(&self.shared.target).await?;
        }
        let fence = WriterFence::plan(&source, options.fence).await?;
        let (mut report, chosen) = self.rehearse(options, withdrawn, &fence).await?;
        if let WriterFenceKind::External { quiet_ms, wait_ms } = options.fence {
            let bounds =
                QuietWait { quiet: Duration::from_millis(quiet_ms), wait: Duration::from_millis(wait_ms) };
            if options.dry_run {
                report.external = Some(self.rehearse_quiet().await?);
                return Ok(report);
            }
            self.be_ready(&mut report, withdrawn).await?;
            begin(beginning)?;
            self.take_over_when_quiet(options, bounds, &mut report, lift.as_ref(), &chosen, withdrawn)
                .await?;
            // From here on this side is not authoritative.
            self.state.cut_over = Some(fence);
            return Ok(report);
        }
        let estimate_ms = report.estimate_ms;
        if estimate_ms > options.max_pause_ms {
            let what = format!("the pause would take about {estimate_ms} ms, which is more than allowed");
            return Err(refused(what).with_remedy(Remedy::AllowLongerPause));
        }
        let feeds = if options.reverse { self.follow_target().await? } else { Vec::new() };
        let mut fronted = None;
        if options.fence == WriterFenceKind::Front {
            let (front, there) = self.rehearse_hold(options).await?;
            (report.front, fronted) = (Some(front), Some(there));
        }
        if options.dry_run {
            return Ok(report);
        }
        self.be_ready(&mut report, withdrawn).await?;
        self.calm_down().await?;
        self.check(options)?;
        is_wanted(withdrawn)?;
        self.note_fence(&fence, fronted, beginning)?;
        let fences = (&fence, lift.as_ref());
        let outcome = match options.fence {
            WriterFenceKind::Front => {
                self.switch_front(options, &mut report, fences, feeds, &chosen).await.map_err(Into::into)
            }
            _ => self.pause_and_switch(options, &mut report, fences, feeds, &chosen).await,
        };
        self.forget_fence(options.fence, outcome)?;
        Ok(report)
    }

    /// Does what is done under the pause, but without one. Returns what it would come to, with an estimate of
    /// how long it takes, and what is compared and carried again when writes have stopped.
    async fn rehearse(
        &mut self,
        options: &CutoverOptions,
        withdrawn: &CancellationToken,
        fence: &WriterFence,
    ) -> Result<(CutoverReport, (Sample, Unseen))> {
        let keys = self.keys_of_source().await?;
        let unseen = self.unseen().await?;
        let sample = self.sample(options.compare).await?;
        // As it will be under the pause, and without: what it takes is the estimate.
        self.drain_for(DRAIN_FOR, withdrawn).await?;
        // Most of them arrive now: under the pause there are only those that are new.
        self.carry_unseen(&unseen).await?;
        let rehearsed = Instant::now();
        self.carry_unseen(&unseen).await?;
        let carried = self.carry_unseen_types().await?;
        self.rounds().await?;
        // It is a rehearsal, and what was written meanwhile is known.
        let compared = self.compare(options.compare, &sample, Settle::none()).await?;
        let estimate_ms = millis(rehearsed) + 1;
        let (compared, notice) = self.settle(options.compare, &sample, compared, (&unseen, carried)).await?;
        let mut report = CutoverReport {
            dry_run: options.dry_run,
            estimate_ms,
            compared: compared.keys,
            keys,
            finds_one_percent: chance_of_one_percent(options.compare, compared.keys, keys),
            // If it is no dry run, both sides are compared once more, when writes have stopped.
            notices: notice.filter(|_| options.dry_run).into_iter().collect(),
            reverse: options.reverse,
            hooks: if options.dry_run { self.planned_hooks(options.fence) } else { Vec::new() },
            ..CutoverReport::of(fence)
        };
        if options.reverse && options.fence == WriterFenceKind::Acl {
            // Only what stands in the way now: which clients use the target then is not known.
            if let Err(e) = WriterFence::plan(&self.shared.target, WriterFenceKind::Acl).await
                && !e.is_link()
            {
                let why = e.problem();
                report.notices.push(format!("a way back with this fence would be refused now: {why}"));
            }
        }
        Ok((report, (sample, unseen)))
    }

    /// Writes the fence down before it goes up: the process that goes on after a crash knows what to take
    /// down.
    fn note_fence(
        &mut self,
        fence: &WriterFence,
        fronted: Option<Fronted>,
        beginning: &Beginning,
    ) -> Result<()> {
        begin(beginning)?;
        (self.state.cut_over, self.state.fronted) = (Some(fence.clone()), fronted);
        if let Err(e) = self.save_at_once() {
            (self.state.cut_over, self.state.fronted) = (None, None);
            return Err(refused(e.problem()).with_remedy("see that the disk has room, and ask again"));
        }
        Ok(())
    }

    /// Forgets the fence of a cutover that did not come about, but not while a part of it stands.
    fn forget_fence(&mut self, kind: WriterFenceKind, outcome: Result<(), NotSwitched>) -> Result<()> {
        let (outcome, stays) = match outcome {
            Ok(()) => (Ok(()), false),
            Err(NotSwitched { error, stays, .. }) => (Err(error), stays),
        };
        if stays {
            self.notice(
                "a part of the fence stays on the source, and is taken down as soon as that is possible",
            );
        } else if outcome.is_err() && self.state.fronted.is_none() || kind == WriterFenceKind::None {
            self.state.cut_over = None;
            self.save()?;
        }
        outcome
    }

    /// Transfers most of what was written during the rehearsal, and while another party got ready. What that
    /// has brought into doubt would otherwise be found under the pause.
    async fn calm_down(&mut self) -> Result<()> {
        for _ in 0..REPAIRS_MAX {
            self.rounds().await?;
            if self.is_calm() {
                break;
            }
            self.repair().await?;
            self.status.phase(SyncPhase::CuttingOver);
        }
        Ok(())
    }

    /// All that happens while writes are paused.
    async fn pause_and_switch(
        &mut self,
        options: &CutoverOptions,
        report: &mut CutoverReport,
        (fence, lift): (&WriterFence, Option<&WriterFence>),
        feeds: Vec<Feed>,
        chosen: &(Sample, Unseen),
    ) -> Result<(), NotSwitched> {
        let source = self.shared.source.clone();
        let mut seal = Seal::open(&source).await?;
        // Writers would wait for rates with it.
        let _lifted = self.shared.options.rates.lift();
        let paused_at = Instant::now();
        let switched = match self.pause_and_seal_off(options, paused_at, &mut seal, chosen).await {
            Ok((drained, compared)) => {
                (report.drained, report.compared) = (drained, compared);
                self.switch(fence, lift, &feeds, &mut seal).await
            }
            Err(e) => Err(e.into()),
        };
        let is_fence = matches!(fence.kind(), WriterFenceKind::Pause { .. });
        // Writers are fenced off, or everything is as before.
        let is_over = is_fence && switched.is_ok() || resume(&mut seal).await;
        let (positions, ended) = switched.map_err(|e| {
            // Nothing else ends the long pause. The short one is over soon, and any pause that is on then is
            // not ours to end.
            let is_paused = e.is_paused_long && !is_over;
            self.pause_ends_ms = seal.until_ms().filter(|_| is_paused);
            NotSwitched { stays: e.stays || is_paused, ..e }
        })?;
        report.ended = ended;
        if options.reverse {
            self.back = Some(Back { positions, fence: fence.clone(), journal: None, _feeds: feeds });
        }
        report.lifted = lift.is_some();
        report.pause_ms = millis(paused_at);
        Ok(())
    }

    /// Pauses writes, and does what happens meanwhile. If that does not end within its share of the pause,
    /// writes resume at once.
    async fn pause_and_seal_off(
        &mut self,
        options: &CutoverOptions,
        paused_at: Instant,
        seal: &mut Seal,
        chosen: &(Sample, Unseen),
    ) -> Result<(u64, u64)> {
        let deadline = paused_at + before_fence(options.max_pause_ms);
        let too_late = |what: &str| {
            let what = format!("{what} within {} ms", options.max_pause_ms);
            refused(what).with_remedy(Remedy::AllowLongerPause)
        };
        let Ok(reached) = timeout_at(deadline, seal.pause(options.max_pause_ms)).await else {
            return Err(too_late("a primary of the source did not answer"));
        };
        let reached = reached?;
        let sealing = self.seal_off(options, deadline, &reached, chosen);
        tokio::pin!(sealing);
        match timeout_at(deadline, &mut sealing).await {
            Ok(sealed) => sealed,
            Err(_) => {
                resume(seal).await;
                // What has been taken is transferred; nothing waits for it any more.
                let _ = sealing.await;
                Err(too_late("it did not come to an end"))
            }
        }
    }

    /// Attaches feeds to all primaries of the target. They will not see our own writes as another client's:
    /// those are over before the positions are taken.
    async fn follow_target(&self) -> Result<Vec<Feed>> {
        let target = &self.shared.target;
        copy::check_way_back(&self.shared).await?;
        let mut feeds = Vec::new();
        for shard in &target.topology().shards {
            let feed = Feed::attach(target, &shard.primary, SlotSet::full(), self.options.feed).await?;
            if !feed.kind().is_replication() {
                let what = format!("{} does not let us have a replication link", shard.primary);
                return Err(refused(what).with_remedy(Remedy::AllowReplicationOrNoReverseSync));
            }
            feeds.push(feed);
        }
        Ok(feeds)
    }

    /// Has writers fenced off on the source, and let in on the target if they were not. Returns the target's
    /// positions, to which only we have written so far, and how many waiting clients were ended.
    ///
    /// **Invariant:** at no time are writers let in on both sides. If it does not succeed within the pause,
    /// whatever hangs, everything that was begun is undone in the opposite order; what cannot be undone at
    /// once is said. The caller ends the pause.
    async fn switch(
        &mut self,
        fence: &WriterFence,
        lift: Option<&WriterFence>,
        feeds: &[Feed],
        seal: &mut Seal,
    ) -> Result<(Vec<Position>, u64), NotSwitched> {
        let shared = self.shared.clone();
        let mut begun = Begun::default();
        let until_ms = seal.until_ms().unwrap_or_default();
        let left = Duration::from_millis(until_ms.saturating_sub(clock::now_ms()));
        let switching = switch_over(&shared, (fence, lift), feeds, (seal, until_ms), &mut begun);
        let switched = timeout(left, switching).await.unwrap_or_else(|_| Err(too_late()));
        let error = match switched {
            Ok(switched) => {
                // It leads to the side where writers are let in, and without a fence it goes on.
                self.state.lifted &= lift.is_none();
                return Ok(switched);
            }
            Err(e) => e,
        };
        if begun.lift {
            self.close_target().await;
        }
        let mut stays = false;
        if begun.fence
            && let Err(error) = fence.lift(&shared.source).await
        {
            tracing::warn!(%error, "a part of the fence stays");
            stays = true;
        }
        Err(NotSwitched { error, stays, is_paused_long: begun.long_pause })
    }

    /// What happens under the pause; returns how many keys were transferred and compared.
    pub(super) async fn seal_off(
        &mut self,
        options: &CutoverOptions,
        deadline: Instant,
        reached: &[Reached],
        (sample, unseen): &(Sample, Unseen),
    ) -> Result<(u64, u64)> {
        let before = self.transferred();
        for source in &self.sources {
            let Some(at) = reached.iter().find(|at| at.address == *source.feed.address()) else {
                return Err(refused("a primary of the source is not the one that was followed"));
            };
            if !source.feed.reach_in(&at.replid, at.offset, options.max_pause_ms).await? {
                return Err(refused("the feed did not come to the end of what was written"));
            }
        }
        if self.sources.len() != reached.len() {
            return Err(refused("a primary of the source is not followed"));
        }
        self.carry_unseen_types().await?;
        self.carry_unseen(unseen).await?;
        while self.rounds().await? != Round::All {
            // Writes have resumed by then, and there may be no end to what they touch.
            let is_late = Instant::now() >= deadline;
            if is_late || self.shared.stop.is_cancelled() || self.sources.iter().any(Source::is_broken) {
                return Err(refused(
                    "it took too long or was stopped, a feed ended, or a database was emptied",
                ));
            }
        }
        let is_drained = |source: &Source| source.feed.touched().is_empty();
        if !self.sources.iter().all(is_drained) || !self.is_calm() {
            return Err(refused("keys changed that could not be transferred at once"));
        }
        // Not every feed reports that they changed.
        if self.options.functions {
            self.copy_functions().await?;
        }
        let drained = self.transferred() - before;
        // No client writes any more: the first look decides.
        let compared = self.compare(options.compare, sample, Settle::none()).await?;
        compared.refusal().map_or(Ok(()), Err)?;
        // A primary of the target that was replaced may lack what its predecessor had acknowledged, and slots
        // of the source that moved may be written to on nodes where writes are not paused. A primary that
        // does not answer may be either.
        copy::check_target(&self.shared).await?;
        self.shared.check_source().await?;
        if !self.is_calm() {
            return Err(refused("slots moved, or a server of the target was replaced"));
        }
        self.check(options)?;
        Ok((drained, compared.keys))
    }
}

/// The target's positions, to which only we have written so far.
pub(super) async fn positions_of(feeds: &[Feed], target: &Deployment) -> Result<Vec<Position>> {
    let mut positions = Vec::new();
    for feed in feeds {
        let mut link = target.open(feed.address(), 0).await?;
        let info = Info::ask(&mut link, "replication").await?;
        let Some(offset) = info.number("master_repl_offset") else {
            return Err(refused("the target does not report how far it is"));
        };
        let Some(history) = feed.history() else {
            return Err(refused("the target's history is not known"));
        };
        // What lies between was not read: it may have selected another database.
        let history = History { offset, db: None, ..history };
        positions.push(Position { address: feed.address().to_string(), seen: history.clone(), history });
    }
    Ok(positions)
}

/// Why the target has not taken over.
pub(super) struct NotSwitched {
    error: Error,
    /// A part of the fence may stand: it could not be taken down again.
    stays: bool,
    /// The pause that was to be the fence was begun.
    is_paused_long: bool,
}

impl From<Error> for NotSwitched {
    fn from(error: Error) -> NotSwitched {
        NotSwitched { error, stays: false, is_paused_long: false }
    }
}

/// What has been begun, and may have been done.
#[derive(Debug, Default)]
struct Begun {
    /// To fence the writers of the source off.
    fence: bool,
    /// To pause them for as long as they are to be fenced off.
    long_pause: bool,
    /// To let those of the target in.
    lift: bool,
}

/// The switch itself, under the pause: first no client may write to the source any more, then writers are let
/// in on the target.
async fn switch_over(
    Shared { source, target, .. }: &Shared,
    (fence, lift): (&WriterFence, Option<&WriterFence>),
    feeds: &[Feed],
    (seal, until_ms): (&mut Seal, u64),
    begun: &mut Begun,
) -> Result<(Vec<Position>, u64)> {
    let positions = positions_of(feeds, target).await?;
    let ended = raise(fence, source, seal, begun).await?;
    // Else a client may have written before the fence was up. The machine may have been suspended meanwhile.
    if clock::now_ms() >= until_ms {
        return Err(too_late());
    }
    if let Some(lift) = lift {
        begun.lift = true;
        // A client that writes there from now on is not followed by us any more, and everything is equal.
        lift.lift(target).await?;
    }
    Ok((positions, ended))
}

/// Fences the writers off, or makes the pause the fence. Returns how many clients were ended that waited.
async fn raise(fence: &WriterFence, source: &Deployment, seal: &mut Seal, begun: &mut Begun) -> Result<u64> {
    match fence.kind() {
        // With the latter two writes are not paused, and nothing is raised.
        WriterFenceKind::None | WriterFenceKind::External { .. } | WriterFenceKind::Front => return Ok(0),
        WriterFenceKind::Pause { limit_ms } => {
            begun.long_pause = true;
            seal.pause(limit_ms).await?;
        }
        WriterFenceKind::Acl | WriterFenceKind::ReadonlyReplica => {
            begun.fence = true;
            fence.raise(source).await?;
        }
    }
    fence.end_waiting(source).await
}

fn too_late() -> Error {
    refused("fencing the writers off took longer than the pause").with_remedy(Remedy::AllowLongerPause)
}

/// Resumes writes, if they are paused still. False if they may still be paused at a server: it resumes them
/// when the pause is over.
async fn resume(seal: &mut Seal) -> bool {
    if seal.until_ms().is_none() {
        return true;
    }
    let released = seal.release().await;
    if let Err(error) = &released {
        tracing::warn!(%error, "writes are paused until the pause ends by itself");
    }
    released.is_ok()
}
