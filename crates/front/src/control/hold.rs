//! Holds all clients while a sync brings the other side up to date, and sends them there.
//!
//! **Invariant.** From the answer to [`FrontOrder::Hold`] to the switch of the same number, no request of any
//! client is at a server, is sent to one, or is answered. So what the sync has transferred and compared in
//! between is all that clients were ever sent, and whichever side they go on at has it. The switch is on disk
//! before any client goes on; and once clients have gone on without it, no order can bring it about any more.
//!
//! All of it happens under the mutex of [`Control`], one thing at a time: the switch, the end of the hold's
//! time, and the release see each other's outcome whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use whimbrel_engine::error::Result;
use whimbrel_engine::probe::process_behind;
use whimbrel_flow::sync::{FrontOrder, FrontSide, FrontStand, HoldOrder};

use super::{Control, Tasks, refuse, unfit, when_done};
use crate::migrate::direction::{Direction, REVERSALS_MAX, Side};
use crate::migrate::hold::{Late, Switch};
use crate::migrate::phase::{Phase, Stand};
use crate::upstream::{Found, Upstream};

/// What is being done, for people.
const TRIED: &str = "hold clients";

/// Clients have to come to rest within this part of the hold: the rest of it is for the sync.
const REST_SHARE: u32 = 4;

impl Control {
    /// Does what a cutover wants.
    ///
    /// # Errors
    /// `Options` or `Unfit` if it was not done, and never will be; `Own` if the state cannot be written. In
    /// each case clients go on where they are.
    pub async fn carry_out(self: &Arc<Control>, order: FrontOrder) -> Result<FrontStand> {
        match order {
            FrontOrder::Hold(order) => self.hold(&order).await,
            FrontOrder::Switch(number) => self.switch(number).await,
            FrontOrder::Release => {
                let mut tasks = self.tasks.lock().await;
                if tasks.hold.release() {
                    self.let_go(&mut tasks);
                }
                self.stands(&tasks)
            }
        }
    }

    async fn hold(self: &Arc<Control>, order: &HoldOrder) -> Result<FrontStand> {
        let mut tasks = self.tasks.lock().await;
        tasks.must_be_free(TRIED)?;
        let before = self.resting_stand(&tasks)?;
        let mut switch = self.prepare(order, before).await?;
        // Whether it can be written is better known before clients are held.
        self.state.save(before)?;
        if order.rehearse {
            return self.stands(&tasks);
        }
        let limit = Duration::from_millis(order.limit_ms);
        let until = Instant::now() + limit;
        let Ok(held) = timeout_at(until, self.stages.hold(limit / REST_SHARE)).await else {
            self.let_go(&mut tasks);
            return Err(refuse(TRIED, "clients did not become idle in time", "try again"));
        };
        switch.ended = held.ended;
        let number = tasks.hold.begin(until, switch);
        let control = self.clone();
        while tasks.expiry.try_join_next().is_some() {}
        tasks.expiry.spawn(async move {
            sleep_until(until).await;
            let mut tasks = control.tasks.lock().await;
            if tasks.hold.expire(number) {
                tracing::warn!("clients were held for as long as they may be: they go on where they are");
                control.stages.open(control.stages.migration());
            }
        });
        let resting = held.resting.iter().map(ToString::to_string).collect();
        Ok(FrontStand { resting, ended: held.ended, ..self.stands(&tasks)? })
    }

    async fn switch(&self, number: u64) -> Result<FrontStand> {
        let mut tasks = self.tasks.lock().await;
        let switch = match tasks.hold.switch(number, Instant::now()) {
            Ok(switch) => switch,
            Err(late) => {
                if late == Late::Expired {
                    self.let_go(&mut tasks);
                }
                return Err(refuse(
                    "send clients to the other side",
                    "they are not held any more: they have gone on where they were",
                    "try again, and allow a longer pause",
                ));
            }
        };
        if let Err(error) = self.write_down(switch.stand, switch.before) {
            self.let_go(&mut tasks);
            return Err(error);
        }
        // On disk, and no client has gone on: from here on it cannot fail.
        if let Some(connections) = &self.shared.connections {
            connections.close().await;
        }
        let held_ms = self.held_ms();
        self.stages.open(Some(switch.migration));
        tasks.expiry.abort_all();
        Ok(FrontStand { held_ms, ended: switch.ended, ..self.stands(&tasks)? })
    }

    /// If that fails the state is what it was, or else what it is to be: then the next process would go
    /// there, so it has been done.
    fn write_down(&self, stand: Stand, before: Stand) -> Result<()> {
        let Err(error) = self.state.save(stand) else { return Ok(()) };
        if self.state.save(before).is_err() && self.state.load().is_ok_and(|found| found == stand) {
            return Ok(());
        }
        Err(error)
    }

    /// Clients go on where they are.
    fn let_go(&self, tasks: &mut Tasks) {
        tasks.expiry.abort_all();
        self.stages.open(self.stages.migration());
    }

    /// How far the front is, if all clients are at one server.
    fn resting_stand(&self, tasks: &Tasks) -> Result<Stand> {
        match self.stages.migration() {
            _ if tasks.is_finished => Err(refuse(TRIED, "the front was finished", "run it anew")),
            None => Ok(Phase::Forwarding.into()),
            Some(migration) if migration.is_done() => {
                Ok(Stand { phase: Phase::Done, reversals: migration.reversals })
            }
            Some(_) => Err(refuse(
                TRIED,
                "the front moves keys itself, so clients are at both servers",
                "wait until all have moved: see whimbrel front status",
            )),
        }
    }

    /// Looks at both servers: they have to be those that the sync is about. No client is held meanwhile.
    async fn prepare(&self, order: &HoldOrder, before: Stand) -> Result<Switch> {
        let reversals = match before.phase {
            Phase::Done => before.reversals + 1,
            Phase::Forwarding | Phase::Moving | Phase::Finished => before.reversals,
        };
        if reversals > REVERSALS_MAX {
            let what = format!("clients have been sent to and fro {REVERSALS_MAX} times");
            return Err(refuse(TRIED, &what, "begin anew after whimbrel front finish"));
        }
        let (from, to) = Direction::after(reversals).ordered(self.source.clone(), self.target.clone());
        let from_found = Upstream::find(&from, self.link).await?;
        must_be(&from_found, &order.from, "clients are served from it, and the sync does not come from it")
            .await?;
        let to_found = Upstream::find(&to, self.link).await?;
        must_be(&to_found, &order.to, "the front would send clients there, and the sync does not lead to it")
            .await?;
        let migration = when_done(&from, to_found, self.link, self.wait, reversals).await?;
        let stand = Stand { phase: Phase::Done, reversals };
        Ok(Switch { migration, stand, before, ended: 0 })
    }

    fn held_ms(&self) -> u64 {
        self.stages.held_for().map_or(0, |held| u64::try_from(held.as_millis()).unwrap_or(u64::MAX))
    }

    fn stands(&self, tasks: &Tasks) -> Result<FrontStand> {
        let stand = self.resting_stand(tasks)?;
        let (_, to) = Direction::after(stand.reversals).ordered(Side::Source, Side::Target);
        let at = match (stand.phase, to) {
            (Phase::Done, Side::Target) => FrontSide::Target,
            _ => FrontSide::Source,
        };
        Ok(FrontStand {
            at,
            hold: tasks.hold.number().unwrap_or(0),
            held_ms: self.held_ms(),
            clients: self.shared.counts.clients.load(Ordering::Relaxed),
            ended: 0,
            resting: Vec::new(),
        })
    }
}

impl Tasks {
    /// Clients are not held for a cutover.
    pub(super) fn must_be_free(&self, tried: &str) -> Result<()> {
        match self.hold.number() {
            None => Ok(()),
            Some(_) => Err(refuse(tried, "clients are held for a cutover", "try again when that is over")),
        }
    }
}

/// One of its processes has to be among those that are `wanted`.
async fn must_be(found: &Found, wanted: &[String], what: &str) -> Result<()> {
    let endpoint = found.upstream.endpoint();
    if found.facts.replica && !found.facts.cluster {
        return Err(unfit(endpoint, "it is a replica", "run the front with its primary"));
    }
    let mut processes = BTreeSet::new();
    for mut link in found.upstream.each().await? {
        processes.insert(process_behind(&mut link).await?);
    }
    match wanted.iter().any(|wanted| processes.contains(wanted)) {
        true => Ok(()),
        false => Err(unfit(endpoint, what, "name the front that serves the two sides of this sync")),
    }
}
