//! How a partition moves, and what becomes of it if a member is lost.
//!
//! ```text
//! Transferring ─▶ Writing ─▶ Committing ─▶ over
//!       └─ failed ─▶ Writing a later version, by which nothing has moved ─▶ over
//! ```

use std::collections::{BTreeMap, VecDeque};

use super::running::{Running, Stage};
use super::{Coordinator, Output, Then};
use crate::fleet::message::{Move, Order, Record};
use crate::fleet::plan::{Step, next_step};
use crate::fleet::table::Partition;
use crate::fleet::table::{Applied, Change, Holders, MemberId, Row};

/// Data that could not be carried is tried again after this many times
/// [`Options::retry_ms`](super::Options::retry_ms); and whenever some could not, all other data rests for as
/// many. If everything fails, that bounds how often.
const DATA_LATER: u64 = 20;
const DATA_REST: u64 = 2;

/// How many partitions of an owner are searched for a move. More would make a step slow if all destinations
/// are busy.
const SEARCHED_MAX: usize = 64;

/// What is to be moved of a partition next.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    source: MemberId,
    destination: MemberId,
    seals: bool,
    /// The holders when it is done.
    after: Holders,
    backend: Option<u32>,
}

impl Coordinator {
    /// Looks whether a partition is as it should be, and does or enqueues what is next.
    pub(super) fn advance(&mut self, partition: Partition) {
        if self.running.contains_key(&partition) {
            return;
        }
        let row = self.row(partition);
        let target = self.targets.get(partition as usize);
        let present = row.holders.filtered(|member| self.peers.contains_key(&member));
        if present.len() < row.holders.len() || row.holders.is_empty() {
            let after = if present.is_empty() { self.anybody(partition) } else { present };
            if after != row.holders {
                self.change_directly(partition, after);
            }
            return;
        }
        if let Some(Step::Direct(after)) = target.and_then(|target| next_step(&row.holders, target)) {
            self.change_directly(partition, after);
        } else if let Some(transfer) = self.transfer_of(partition) {
            self.queues_of(transfer.backend.is_some())
                .entry(transfer.source)
                .or_default()
                .push_back(partition);
        }
    }

    fn queues_of(&mut self, of_data: bool) -> &mut BTreeMap<MemberId, VecDeque<Partition>> {
        if of_data { &mut self.data_queues } else { &mut self.queues }
    }

    /// An owner for a partition that no member has any more.
    fn anybody(&self, partition: Partition) -> Holders {
        let planned = self.targets.get(partition as usize).map(|target| target.owner);
        let working = || self.peers.iter().filter(|(_, peer)| peer.enrolled.weight > 0).map(|(id, _)| *id);
        let turn = working().nth(partition as usize % working().count().max(1));
        let owner = planned.filter(|owner| self.peers.contains_key(owner)).or(turn);
        owner.and_then(|owner| Holders::new(&[owner])).unwrap_or_default()
    }

    fn change_directly(&mut self, partition: Partition, after: Holders) {
        let (base, stage) = (self.row(partition), Stage::Writing { commits: false });
        let backend = base.backend;
        let running = Running { moving: None, base, after, backend, stage, again_ms: 0, until_ms: 0 };
        self.running.insert(partition, running);
        self.write_change(partition, after, backend);
    }

    fn write_change(&mut self, partition: Partition, holders: Holders, backend: u32) {
        let before = self.row(partition);
        let change = Change::between(partition, &before, &Row { holders, backend, ..before });
        let row = Row { version: change.to, backend, holders };
        self.write(Record::Row(partition, row), Then::Change(change));
    }

    /// Begins as many moves as members may take part in.
    pub(super) fn start_moves(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        while let Some(partition) =
            next_due(&mut self.later, now_ms).or_else(|| next_due(&mut self.data_later, now_ms))
        {
            self.advance(partition);
        }
        self.data_rests = now_ms < self.data_rests_until_ms;
        for of_data in [false, true] {
            if of_data && self.data_rests {
                continue;
            }
            let sources: Vec<MemberId> = self.queues_of(of_data).keys().copied().collect();
            for source in sources {
                while self.has_room(source) {
                    let Some(partition) = self.next_of(source, of_data) else { break };
                    self.begin(now_ms, source, partition, out);
                }
            }
            self.queues_of(of_data).retain(|_, queue| !queue.is_empty());
        }
    }

    fn has_room(&self, member: MemberId) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.moves < self.options.moves_per_member)
    }

    /// The first partition of an owner whose destination has room. Drops, on the way, what does not have to
    /// be done any more.
    fn next_of(&mut self, source: MemberId, of_data: bool) -> Option<Partition> {
        let mut at = 0;
        while at < SEARCHED_MAX {
            let partition = *self.queues_of(of_data).get(&source)?.get(at)?;
            let is_meant =
                |transfer: &Transfer| transfer.source == source && transfer.backend.is_some() == of_data;
            let transfer = self.transfer_of(partition).filter(is_meant);
            let is_stale = transfer.is_none() || self.running.contains_key(&partition);
            if is_stale || transfer.is_some_and(|transfer| self.has_room(transfer.destination)) {
                self.queues_of(of_data).get_mut(&source)?.remove(at);
                if !is_stale {
                    return Some(partition);
                }
            } else {
                at += 1;
            }
        }
        None
    }

    /// First the holders, then the place of the data: so the data is carried by the member that stays the
    /// owner.
    fn transfer_of(&self, partition: Partition) -> Option<Transfer> {
        let row = self.row(partition);
        let target = self.targets.get(partition as usize);
        match target.and_then(|target| next_step(&row.holders, target)) {
            Some(Step::Transfer { source, destination, seals, after }) => {
                Some(Transfer { source, destination, seals, after, backend: None })
            }
            Some(Step::Direct(_)) => None,
            None => {
                let backend = *self.backend_targets.get(partition as usize)?;
                let owner = row.holders.owner().filter(|_| backend != row.backend)?;
                let (source, destination) = (owner, owner);
                Some(Transfer {
                    source,
                    destination,
                    seals: true,
                    after: row.holders,
                    backend: Some(backend),
                })
            }
        }
    }

    fn begin(&mut self, now_ms: u64, source: MemberId, partition: Partition, out: &mut Vec<Output>) {
        let Some(Transfer { destination, seals, after, backend, .. }) = self.transfer_of(partition) else {
            return;
        };
        let row = self.row(partition);
        let moving =
            Move { term: self.term, partition, from: row.version, source, destination, seals, backend };
        let running = Running {
            moving: Some(moving),
            base: row,
            after,
            backend: backend.unwrap_or(row.backend),
            stage: Stage::Transferring,
            again_ms: now_ms + self.options.retry_ms,
            until_ms: now_ms + self.options.transfer_ms,
        };
        self.running.insert(partition, running);
        self.count_moves(&moving, true);
        let news = self.news_for(source);
        self.send(source, Order::Prepare { moving, news }, false, out);
        out.push(Output::Started(moving));
    }

    fn count_moves(&mut self, moving: &Move, begins: bool) {
        let destination = Some(moving.destination).filter(|member| *member != moving.source);
        for member in destination.into_iter().chain([moving.source]) {
            if let Some(peer) = self.peers.get_mut(&member) {
                peer.moves = if begins { peer.moves + 1 } else { peer.moves.saturating_sub(1) };
            }
        }
    }

    /// The source has done its part: the move is decided as soon as that is on disk.
    pub(super) fn ready(&mut self, member: MemberId, moving: Move, out: &mut Vec<Output>) {
        match self.running.get_mut(&moving.partition) {
            Some(running) if running.is_transferring(&moving) => {
                running.stage = Stage::Writing { commits: true };
                let (after, backend) = (running.after, running.backend);
                self.write_change(moving.partition, after, backend);
            }
            _ => self.orphan(member, moving, out),
        }
    }

    /// The source could not do its part.
    pub(super) fn failed(&mut self, member: MemberId, moving: Move, out: &mut Vec<Output>) {
        match self.running.get(&moving.partition) {
            Some(running) if running.is_transferring(&moving) => self.give_up(moving.partition),
            _ => self.orphan(member, moving, out),
        }
    }

    /// A source speaks of a move that is not running: of an earlier coordinator, or a move that was given up.
    /// It may have sealed the partition, and only a later version ends that.
    fn orphan(&mut self, member: MemberId, moving: Move, out: &mut Vec<Output>) {
        let row = self.row(moving.partition);
        if row.version > moving.from {
            self.send_rows(member, vec![moving.partition], out);
        } else if !self.running.contains_key(&moving.partition) && row.version == moving.from {
            self.change_directly(moving.partition, row.holders);
        }
    }

    /// Raises the version, so that nothing of the move can count any more: the former holders hold the
    /// partition, as far as they are there. Its data stays where it is written down to be: once that is
    /// another backend everything is there, and clients may have written to it.
    fn give_up(&mut self, partition: Partition) {
        let Some(running) = self.running.get_mut(&partition) else { return };
        running.stage = Stage::Writing { commits: false };
        let base = running.base.holders;
        let present = base.filtered(|member| self.peers.contains_key(&member));
        let after = if present.is_empty() { self.anybody(partition) } else { present };
        let backend = self.row(partition).backend;
        self.write_change(partition, after, backend);
    }

    /// A change is on disk: from now on it is true, and may be sent.
    pub(super) fn decided(&mut self, now_ms: u64, change: Change, out: &mut Vec<Output>) {
        let applied = self.table.apply(&change);
        debug_assert_eq!(applied, Applied::Changed, "one change of a partition at a time");
        let Some(running) = self.running.get_mut(&change.partition) else { return };
        match (running.moving, running.stage) {
            (Some(moving), Stage::Writing { commits: true }) => {
                running.stage = Stage::Committing(change);
                running.again_ms = now_ms + self.options.retry_ms;
                if self.peers.contains_key(&moving.destination) {
                    let news = self.news_for(moving.destination);
                    self.send(moving.destination, Order::Commit { change, news }, false, out);
                } else {
                    self.lost_participant(change.partition, moving.destination);
                }
            }
            (moving, _) => {
                // From what all members know: what only a lost destination knew is passed over.
                let base = running.base;
                let row = self.row(change.partition);
                let whole = Change { to: row.version, ..Change::between(change.partition, &base, &row) };
                self.enter(whole, MemberId::NOBODY);
                self.urgent.extend(row.holders.owner());
                if let Some(moving) = moving {
                    self.urgent.insert(moving.source);
                    out.push(Output::Failed(moving));
                    let retry_ms = self.options.retry_ms;
                    match moving.backend {
                        None => self.later.push_back((now_ms + retry_ms, change.partition)),
                        Some(_) => {
                            self.data_later.push_back((now_ms + retry_ms * DATA_LATER, change.partition));
                            self.data_rests_until_ms = now_ms + retry_ms * DATA_REST;
                            self.data_rests = true;
                        }
                    }
                }
                self.over(change.partition, moving.is_none());
            }
        }
    }

    /// A member has taken in a commit.
    pub(super) fn took(
        &mut self,
        member: MemberId,
        partition: Partition,
        version: u64,
        out: &mut Vec<Output>,
    ) {
        let Some(Running { moving: Some(moving), stage: Stage::Committing(change), .. }) =
            self.running.get(&partition).cloned()
        else {
            return;
        };
        if member == moving.destination && version >= change.to {
            self.enter(change, member);
            self.urgent.insert(moving.source);
            out.push(Output::Finished(moving));
            self.over(partition, true);
        }
    }

    fn over(&mut self, partition: Partition, goes_on: bool) {
        if let Some(Running { moving: Some(moving), .. }) = self.running.remove(&partition) {
            self.count_moves(&moving, false);
        }
        let row = self.row(partition);
        let is_whole = row.holders.as_slice().iter().all(|member| self.peers.contains_key(member));
        if goes_on || !is_whole {
            self.advance(partition);
        }
    }

    /// A member is gone: what that means for a partition that is being changed.
    pub(super) fn lost_participant(&mut self, partition: Partition, member: MemberId) {
        let Some(Running { moving: Some(moving), stage, .. }) = self.running.get(&partition) else { return };
        let gives_up = match stage {
            Stage::Transferring => moving.source == member || moving.destination == member,
            // No other member was notified, and the former holders still have the data.
            Stage::Committing(_) => moving.destination == member,
            Stage::Writing { .. } => false,
        };
        if gives_up {
            self.give_up(partition);
        }
    }

    /// Says again what was not answered, and gives up what takes too long.
    pub(super) fn repeat(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let mut late = Vec::new();
        let mut again = Vec::new();
        for (partition, running) in &mut self.running {
            let Some(moving) = running.moving.filter(|_| now_ms >= running.again_ms) else { continue };
            match running.stage {
                Stage::Transferring if now_ms >= running.until_ms => late.push(*partition),
                Stage::Transferring => {
                    again.push((moving.source, Order::Prepare { moving, news: Vec::new() }));
                }
                Stage::Committing(change) => {
                    again.push((moving.destination, Order::Commit { change, news: Vec::new() }));
                }
                Stage::Writing { .. } => {}
            }
            running.again_ms = now_ms + self.options.retry_ms;
        }
        again.into_iter().for_each(|(member, order)| self.send(member, order, false, out));
        late.into_iter().for_each(|partition| self.give_up(partition));
    }

    /// Whether a member may hear of a row. A change that only its destination may know is not for the others.
    pub(super) fn may_hear(&self, member: MemberId, partition: Partition) -> bool {
        self.running.get(&partition).is_none_or(|running| {
            let is_destination = running.moving.is_some_and(|moving| moving.destination == member);
            is_destination || self.row(partition).version == running.base.version
        })
    }
}

/// The first partition, if its time has come.
fn next_due(later: &mut VecDeque<(u64, Partition)>, now_ms: u64) -> Option<Partition> {
    later.front().filter(|(at_ms, _)| now_ms >= *at_ms)?;
    later.pop_front().map(|(_, partition)| partition)
}

impl Running {
    /// Whether a member takes part in it, or holds the partition before or after it.
    pub(super) fn concerns(&self, member: MemberId) -> bool {
        let moves = self.moving.is_some_and(|moving| moving.source == member || moving.destination == member);
        moves || self.base.holders.contains(member) || self.after.contains(member)
    }

    fn is_transferring(&self, moving: &Move) -> bool {
        self.moving.as_ref() == Some(moving) && self.stage == Stage::Transferring
    }
}
