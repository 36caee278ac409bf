//! The target takes over from a source whose clients go through a front, which holds them meanwhile.
//!
//! ```text
//!  sync                         front                          clients
//!   Hold ─────────────────────▶ lets them come to rest ───────▶ wait
//!        ◀──────── number ───── nothing is under way
//!   transfers, compares,
//!   looks whether anybody wrote
//!   Switch(number) ───────────▶ writes it down, opens ────────▶ go on at the target
//!   or Release, or nothing ───▶ opens, in time ───────────────▶ go on at the source
//! ```
//!
//! **Invariant:** the switch is ordered only when both sides are equal and no client has written to the
//! source since all clients came to rest; the front carries it out only if they have rested all the time
//! since (`whimbrel_front::control::hold`). So clients find at the target all that they ever received in
//! replies.
//!
//! **What is not known.** An order that is not answered may have been carried out, or may be later. That
//! clients may be sent away is written down before the first order ([`Fronted`]); from there on nothing is
//! transferred before the front has said where its clients are. It says so in answer to a `Release`, which
//! also ends the hold: what comes later of a switch is refused. A sync that is run again begins with that.
//!
//! Clients that do not come through the front are not held. As with an external fence, we check whether a
//! client writes, up to the switch and once more after it.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::feed::Feed;
use whimbrel_engine::probe::process_behind;
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::seal::{Reached, WriterFence, other_clients};

use super::compare::Sample;
use super::conditions::refused;
use super::cutover::{FENCE_SHARE, positions_of};
use super::external::Watch;
use super::options::CutoverOptions;
use super::order::{FrontOrder, FrontStand, HoldOrder};
use super::report::{CutoverReport, FrontReport};
use super::state::{Back, Fronted};
use super::syncer::Syncer;
use super::unseen::Unseen;

/// The share of the pause that is kept to find out which clients write, if that is why it does not end.
const NAMES_SHARE: f64 = 0.1;

/// How often what is left is transferred and compared, if no client writes.
const TRIES_MAX: u32 = 5;

/// How long to try to find out where the front has its clients.
const RESOLVED_WITHIN: Duration = Duration::from_secs(60);

/// Between two tries.
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);

/// How long connections of clients that have gone may take to be gone from the source's list.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Between two looks at that list.
const GONE_PAUSE: Duration = Duration::from_millis(50);

/// Whether a front has sent its clients to the target.
enum Resolved {
    Switched(FrontStand),
    Stayed,
}

impl Syncer {
    /// Finds out whether a front could hold its clients and send them to the target, and where its clients
    /// are. Changes nothing.
    pub(super) async fn rehearse_hold(&self, options: &CutoverOptions) -> Result<(FrontReport, Fronted)> {
        let socket = socket(options)?;
        if self.shared.options.dbs.iter().any(|pair| pair.source != pair.target) {
            let what = "a database of the source has another number at the target: clients of the front \
                would look for it where it was";
            return Err(refused(what).with_remedy(Remedy::ChooseFence("acl, pause or external")));
        }
        let order = self.hold_order(options, true).await?;
        let stand = self.order(socket, FrontOrder::Hold(order)).await.map_err(unsteered)?;
        let others = match self.shared.source.is_cluster() {
            // A client has connections to as many nodes as it likes.
            true => None,
            false => self.others(&[]).await.map(|others| others.saturating_sub(stand.clients)),
        };
        let report = FrontReport { clients: stand.clients, others, ..FrontReport::default() };
        Ok((report, Fronted { socket: socket.to_owned(), before: stand.at, back: None }))
    }

    /// All that happens while the front holds its clients. [`Fronted`] is on disk.
    ///
    /// # Errors
    /// If clients have stayed, and everything is as before; then [`Fronted`] is forgotten. If it is still
    /// there, it is unknown where clients are, and nothing may be transferred.
    pub(super) async fn switch_front(
        &mut self,
        options: &CutoverOptions,
        report: &mut CutoverReport,
        (fence, lift): (&WriterFence, Option<&WriterFence>),
        feeds: Vec<Feed>,
        chosen: &(Sample, Unseen),
    ) -> Result<()> {
        let mut watch = Watch::new();
        let stand = match self.hold_and_order(options, report, lift, (&feeds, &mut watch), chosen).await {
            Ok(stand) => stand,
            // Whatever it was that went wrong, the front says where its clients are.
            Err(error) => match self.resolve().await? {
                Resolved::Switched(stand) => stand,
                Resolved::Stayed => {
                    self.state.fronted = None;
                    if self.state.lifted {
                        self.close_target().await;
                    }
                    // What was not answered did not happen.
                    return Err(if error.is_refusal() { error } else { refused(error.problem()) });
                }
            },
        };
        self.set_way_back(fence, feeds);
        report.lifted = lift.is_some();
        (report.pause_ms, report.ended) = (stand.held_ms, stand.ended);
        // They are reported, and nothing else: nothing transfers what is written to the source now.
        let late = self.has_been_written(&mut watch).await.then(|| watch.report(0));
        let others = self.others_at_last(watch.ignored()).await;
        report.front = Some(FrontReport { clients: stand.clients, held_ms: stand.held_ms, others, late });
        Ok(())
    }

    /// From when clients come to rest to when they go on at the target.
    async fn hold_and_order(
        &mut self,
        options: &CutoverOptions,
        report: &mut CutoverReport,
        lift: Option<&WriterFence>,
        (feeds, watch): (&[Feed], &mut Watch),
        chosen: &(Sample, Unseen),
    ) -> Result<FrontStand> {
        let (socket, fronts) = (socket(options)?, self.options.fronts.clone());
        // Its connections are there when clients wait for what is asked.
        self.check_for_writes(watch).await?;
        watch.begin_anew();
        // Clients would wait for rates with it.
        let _lifted = self.shared.options.rates.lift();
        let order = FrontOrder::Hold(self.hold_order(options, false).await?);
        let stand = fronts.send(socket, order).await.map_err(unsteered)?;
        watch.ignore(stand.resting.iter().cloned());
        let of_pause = |share: f64| {
            let left_ms = options.max_pause_ms as f64 * share - stand.held_ms as f64;
            Instant::now() + Duration::from_millis(left_ms as u64)
        };
        let (late, deadline) = (of_pause(1.0 - FENCE_SHARE - NAMES_SHARE), of_pause(1.0 - FENCE_SHARE));
        let equal = {
            let until_equal = self.until_equal(options, late, watch, chosen);
            tokio::pin!(until_equal);
            match timeout_at(deadline, &mut until_equal).await {
                Ok(equal) => equal,
                Err(_) => {
                    // What has been taken is transferred; nothing waits for it any more.
                    if let Err(e) = fronts.send(socket, FrontOrder::Release).await {
                        tracing::warn!(error = %e, "clients are held until the front lets them go by itself");
                    }
                    let _ = until_equal.await;
                    Err(too_late(options))
                }
            }
        };
        (report.drained, report.compared) = equal?;
        if options.reverse {
            let positions = positions_of(feeds, &self.shared.target).await?;
            if let Some(fronted) = &mut self.state.fronted {
                fronted.back = Some(positions);
            }
            self.save_at_once()?;
        }
        if let Some(lift) = lift {
            // No client writes to the source meanwhile: its clients rest.
            self.state.lifted = true;
            lift.lift(&self.shared.target).await?;
        }
        fronts.send(socket, FrontOrder::Switch(stand.hold)).await
    }

    /// Transfers what is left and compares, until it is late, or certain that a client writes. Returns how
    /// many keys were transferred and compared.
    async fn until_equal(
        &mut self,
        options: &CutoverOptions,
        late: Instant,
        watch: &mut Watch,
        chosen: &(Sample, Unseen),
    ) -> Result<(u64, u64)> {
        // The first look has nothing to compare with.
        self.check_for_writes(watch).await?;
        let mut drained = 0;
        for tried in 1.. {
            let reached = self.reached(watch);
            let sealed = self.seal_off(options, late, &reached, chosen).await;
            let wrote = self.check_for_writes(watch).await?;
            // The clients of the front rest: a client that does not will write again, if not just now.
            if watch.is_certain() {
                break;
            }
            let is_late = Instant::now() >= late;
            match sealed {
                Ok((more, compared)) if !wrote => return Ok((drained + more, compared)),
                Ok((more, _)) => drained += more,
                // Keys expire although no client writes, and what that touches is transferred with the next
                // try.
                Err(error) if !wrote && (is_late || tried >= TRIES_MAX) => return Err(error),
                Err(_) => {}
            }
            if is_late {
                break;
            }
        }
        let what = format!("somebody who does not go through the front wrote to the source{}", watch.named());
        Err(refused(what).with_remedy("have all clients go through the front, and ask again"))
    }

    /// The offsets of all feeds at the last look.
    fn reached(&self, watch: &Watch) -> Vec<Reached> {
        self.sources.iter().filter_map(|source| watch.reached(source.feed.address())).collect()
    }

    /// Finds out where the front has its clients. From then on it does not send them anywhere.
    ///
    /// # Errors
    /// `Own` if the front does not say.
    async fn resolve(&self) -> Result<Resolved> {
        let Some(fronted) = &self.state.fronted else { return Ok(Resolved::Stayed) };
        let deadline = Instant::now() + RESOLVED_WITHIN;
        loop {
            let error = match self.order(&fronted.socket, FrontOrder::Release).await {
                Ok(stand) if stand.at == fronted.before => return Ok(Resolved::Stayed),
                Ok(stand) => return Ok(Resolved::Switched(stand)),
                Err(error) => error,
            };
            let pause = self.shared.stop.run_until_cancelled(sleep(RESOLVE_PAUSE)).await;
            if pause.is_none() || Instant::now() >= deadline {
                let tried = "find out whether the front has sent its clients to the target";
                return Err(Error::own(tried, error.problem())
                    .with_remedy(Remedy::Resume("run the front again, with the same command line")));
            }
        }
    }

    /// Goes on with a cutover during which an earlier process died. The report, if the target has taken over.
    ///
    /// # Errors
    /// As [`Syncer::resolve`]. Nothing may be transferred then.
    pub(super) async fn resume_switch(&mut self, fence: WriterFence) -> Result<Option<CutoverReport>> {
        // It stays until it is known.
        self.state.cut_over = Some(fence.clone());
        match self.resolve().await? {
            Resolved::Stayed => {
                (self.state.cut_over, self.state.fronted) = (None, None);
                self.notice("a cutover was interrupted: clients of the front have stayed at the source");
                Ok(None)
            }
            Resolved::Switched(stand) => {
                self.notice("a cutover was interrupted: clients of the front are at the target already");
                self.set_way_back(&fence, Vec::new());
                let front = FrontReport { clients: stand.clients, ..FrontReport::default() };
                let (reverse, lifted) = (self.back.is_some(), self.state.lift.is_some());
                let front = Some(front);
                let report = CutoverReport { reverse, lifted, front, ..CutoverReport::of(&fence) };
                Ok(Some(report))
            }
        }
    }

    /// The target has taken over: what a sync that leads back begins with, if one was wanted.
    fn set_way_back(&mut self, fence: &WriterFence, feeds: Vec<Feed>) {
        let positions = self.state.fronted.as_ref().and_then(|fronted| fronted.back.clone());
        self.back =
            positions.map(|positions| Back { positions, fence: fence.clone(), journal: None, _feeds: feeds });
    }

    async fn order(&self, socket: &Path, order: FrontOrder) -> Result<FrontStand> {
        self.options.fronts.send(socket, order).await
    }

    async fn hold_order(&self, options: &CutoverOptions, rehearse: bool) -> Result<HoldOrder> {
        let (from, to) = (processes(&self.shared.source).await?, processes(&self.shared.target).await?);
        Ok(HoldOrder { from, to, limit_ms: options.max_pause_ms, rehearse })
    }

    /// How many connections the source has besides our own and those; `None` if it does not report them.
    async fn others(&self, known: &[String]) -> Option<u64> {
        let source = &self.shared.source;
        let mut others = 0;
        for shard in &source.topology().shards {
            let mut link = source.open(&shard.primary, 0).await.ok()?;
            others += other_clients(&mut link, known).await.ok()??;
        }
        Some(others)
    }

    /// The same, when those that have gone are off the list.
    async fn others_at_last(&self, known: &[String]) -> Option<u64> {
        let until = Instant::now() + GONE_WITHIN;
        let mut others = self.others(known).await?;
        while others > 0 && Instant::now() < until {
            sleep(GONE_PAUSE).await;
            others = self.others(known).await?;
        }
        Some(others)
    }
}

/// The socket on which the front takes requests.
fn socket(options: &CutoverOptions) -> Result<&Path> {
    options.front.as_deref().ok_or_else(|| refused("no front is named").with_remedy(Remedy::RunFront))
}

/// The processes of the primaries.
async fn processes(deployment: &Deployment) -> Result<Vec<String>> {
    let mut processes = Vec::new();
    for shard in &deployment.topology().shards {
        processes.push(process_behind(&mut deployment.open(&shard.primary, 0).await?).await?);
    }
    Ok(processes)
}

fn too_late(options: &CutoverOptions) -> Error {
    let what = format!("it did not come to an end within {} ms", options.max_pause_ms);
    refused(what).with_remedy(Remedy::AllowLongerPause)
}

/// With a front that cannot be asked, nothing was begun.
fn unsteered(error: Error) -> Error {
    match error.is_refusal() {
        true => error,
        false => refused(error.problem()).with_remedy(Remedy::RunFront),
    }
}
