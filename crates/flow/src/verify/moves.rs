//! Slots that move while two sides are compared: keys in them may be overlooked, or seen on one side only.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::{Deployment, Topology};
use whimbrel_engine::error::Result;

use super::options::{Depth, Scope};
use super::run::{Run, Sample};
use crate::retry::Backoff;

/// How often keys of slots that have moved meanwhile are compared once more.
const MOVES_FOLLOWED_MAX: u32 = 3;

/// What happens to keys in slots that have moved if they are not compared once more.
const OVERLOOKED: &str = "keys in them may have been overlooked";

/// How many nodes are asked whether slots have moved.
const VIEWS_MAX: usize = 8;

/// How long a verification that is stopped asks whether slots have moved.
const STOPPED_CHECK_MAX: Duration = Duration::from_secs(5);

/// How often to ask where slots are while keys are compared, and how long an answer may take.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Of the source, and of the target.
type Topologies = (Arc<Topology>, Arc<Topology>);

/// Slots of each side, with its name.
type Moves = [(&'static str, SlotSet); 2];

impl Run {
    /// Compares everything, and then keys of slots that have moved to another shard meanwhile, or are on the
    /// move: for example from a shard that was not read yet to a shard that was.
    pub(super) async fn all_and_what_moves(self: &Arc<Self>, mut before: Topologies) -> Result<()> {
        if !self.options.follow_moves {
            return self.all().await;
        }
        self.while_watched(&before, self.all()).await?;
        let is_compared_again = self.options.depth != Depth::Counts
            // A sample by number has no place left for more keys.
            && !matches!(self.options.scope, Scope::SampleKeys(_));
        let mut seen_open = SlotSet::new();
        for round in 0.. {
            let (now, mut moves) = self.moves_since(&before).await?;
            if is_compared_again {
                let open = [self.open_slots(&self.source).await?, self.open_slots(&self.target).await?];
                for ((_, slots), open) in moves.iter_mut().zip(open) {
                    // A slot that just stays open was compared with its keys on both nodes.
                    *slots = slots.union(&self.selected(open.difference(&seen_open)));
                    seen_open = seen_open.union(&open);
                }
            }
            let slots = moves[0].1.union(&moves[1].1);
            if slots.is_empty() {
                return Ok(());
            }
            if !is_compared_again || round == MOVES_FOLLOWED_MAX {
                self.note_moves(&moves, OVERLOOKED);
                self.ledger().unproven_slots = if is_compared_again { slots.len() as u64 } else { 0 };
                return Ok(());
            }
            self.give_up_journal()?;
            let percent = match self.options.scope {
                Scope::SamplePercent(percent) => percent,
                _ => 100.0,
            };
            let sample = Arc::new(Sample::of_slots(percent, slots));
            self.again.store(true, Ordering::Relaxed);
            self.while_watched(&now, self.compare_dbs(&sample)).await?;
            self.note_moves(&moves, "their keys were compared once more");
            before = now;
        }
        Ok(())
    }

    /// Notes which slots have moved until a verification was stopped, as far as that is found out at once.
    pub(super) async fn note_moves_at_stop(&self, before: &Topologies) -> Result<()> {
        // Stopping it does not wait for servers that do not answer.
        let checking = tokio::time::timeout(STOPPED_CHECK_MAX, self.moves_since(before));
        let moves = match checking.await {
            Ok(Ok((_, moves))) => moves,
            _ => named(std::mem::take(&mut *self.moved.lock())),
        };
        if moves.iter().any(|(_, slots)| !slots.is_empty()) {
            self.note_moves(&moves, OVERLOOKED);
            self.give_up_journal()?;
        }
        Ok(())
    }

    /// The topologies as they are now, and which selected slots of each side have moved to another shard
    /// since.
    async fn moves_since(&self, before: &Topologies) -> Result<(Topologies, Moves)> {
        let (source, of_source) = self.side_since(&self.source, &before.0).await?;
        let (target, of_target) = self.side_since(&self.target, &before.1).await?;
        // Those that are back by now were seen elsewhere meanwhile.
        let [seen_source, seen_target] = std::mem::take(&mut *self.moved.lock());
        let moves = named([of_source.union(&seen_source), of_target.union(&seen_target)]);
        Ok(((source, target), moves))
    }

    /// Does some work, and sees meanwhile which slots are elsewhere than `before`: a slot that goes to
    /// another shard and comes back would look at the end as if it had stayed. This sees slots that are away
    /// for longer than [`WATCH_PERIOD`], while the nodes answer.
    async fn while_watched(&self, before: &Topologies, work: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::select! {
            outcome = work => outcome,
            failed = self.watch_side(0, &self.source, &before.0) => failed,
            failed = self.watch_side(1, &self.target, &before.1) => failed,
        }
    }

    /// Watches a side, until it fails to write down that no run can go on from here.
    async fn watch_side(&self, side: usize, deployment: &Deployment, before: &Topology) -> Result<()> {
        if !before.cluster {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(WATCH_PERIOD).await;
            // A node that does not answer now is not waited for: another one is asked the next time. Requests
            // do not go by what it says, since which replica is read from must not change all the time.
            let Ok(Ok(now)) = tokio::time::timeout(ANSWER_WITHIN, deployment.topology_now()).await else {
                continue;
            };
            let moved = self.selected(moved_between(before, &now));
            if !moved.is_empty() {
                {
                    let mut seen = self.moved.lock();
                    seen[side] = seen[side].union(&moved);
                }
                self.give_up_journal()?;
            }
        }
    }

    /// Asks one node after another: a node may not have heard yet of a slot that has just moved.
    async fn side_since(
        &self,
        deployment: &Deployment,
        before: &Topology,
    ) -> Result<(Arc<Topology>, SlotSet)> {
        let mut moved = SlotSet::new();
        for _ in 0..before.shards.len().clamp(1, VIEWS_MAX) {
            moved = moved.union(&moved_between(before, &*self.refreshed(deployment).await?));
        }
        Ok((deployment.topology(), self.selected(moved)))
    }

    /// Which slots are on the move.
    async fn open_slots(&self, deployment: &Deployment) -> Result<SlotSet> {
        let mut backoff = Backoff::new(self.options.retry);
        loop {
            match deployment.open_slots().await {
                Ok(open) => return Ok(open),
                Err(e) => backoff.pause(e).await?,
            }
            // A primary that is gone is not heard from; another one has its slots by now.
            self.refreshed(deployment).await?;
        }
    }

    async fn refreshed(&self, deployment: &Deployment) -> Result<Arc<Topology>> {
        let mut backoff = Backoff::new(self.options.retry);
        loop {
            match deployment.refresh().await {
                Ok(topology) => return Ok(topology),
                Err(e) => backoff.pause(e).await?,
            }
        }
    }

    fn selected(&self, slots: SlotSet) -> SlotSet {
        match &self.options.selection.slots {
            Some(selected) => slots.intersection(selected),
            None => slots,
        }
    }

    /// A verification that goes on from here would not know that slots have moved: they may be back by then.
    fn give_up_journal(&self) -> Result<()> {
        self.checkpoints.iter().try_for_each(|checkpoints| checkpoints.give_up(&self.progress.disk))
    }

    fn note_moves(&self, moves: &Moves, outcome: &str) {
        for (name, slots) in moves.iter().filter(|(_, slots)| !slots.is_empty()) {
            let slots = format_count_of(slots.len() as u64, "slot");
            let note = format!("{slots} of the {name} moved meanwhile, or are on the move: {outcome}");
            self.ledger().notes.push(note);
        }
    }
}

fn named([source, target]: [SlotSet; 2]) -> Moves {
    [("source", source), ("target", target)]
}

/// Slots that another shard has than before. After a failover another node has the same slots.
fn moved_between(before: &Topology, now: &Topology) -> SlotSet {
    if !now.cluster {
        return SlotSet::new();
    }
    let is_moved = |slot: &Slot| match (before.shard_of(*slot), now.shard_of(*slot)) {
        (Some(old), Some(new)) => {
            !old.replicas.contains(&new.primary) && !new.replicas.contains(&old.primary)
        }
        _ => true,
    };
    before.moved_slots(now).iter().filter(is_moved).collect()
}
