//! A member: what it serves, what it gives away, and what it knows.

use std::collections::BTreeMap;

use super::message::{Move, Order, Report, ToCoordinator, ToMember};
use super::table::Partition;
use super::table::{Applied, Change, MemberId, Row, Table};

/// The events that a member handles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MemberInput {
    /// Time has passed.
    Tick,
    /// There is a new connection to the coordinator, which does not know yet whose it is.
    Linked,
    /// The coordinator says something.
    Message(ToMember),
    /// The destination has the data of this move as it was; it may have changed since.
    Transferred(Move),
    /// The destination has all data of this move, and no request of the partition is under way here.
    Drained(Move),
    /// The destination does not take the data of this move.
    TransferFailed(Move),
}

/// What a member wants done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this to the coordinator. It may be lost.
    Send(ToCoordinator),
    /// Give the data of a partition to the destination, while it is served here. Answered by
    /// [`MemberInput::Transferred`].
    Transfer(Move),
    /// The partition is not served here any more: finish the requests that are under way, and give the
    /// destination what has changed. Answered by [`MemberInput::Drained`].
    Drain(Move),
    /// The data of this partition is not needed here any more.
    Discard(Partition),
    /// By this move the data has another backend: what is left at the one before, whose number follows, is
    /// not needed any more.
    Leave(Move, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Transferring,
    Draining,
    Ready,
    Failed,
}

/// A move that this member is the source of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Outgoing {
    moving: Move,
    stage: Stage,
    /// Once sealed, a partition is served again only when its row has a later version. Nothing else says that
    /// the change was not made: neither time nor another coordinator.
    is_sealed: bool,
    again_ms: u64,
}

/// One member of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    token: u64,
    weight: u32,
    retry_ms: u64,
    id: Option<MemberId>,
    term: u64,
    table: Table,
    /// Serves before this time of its own clock.
    lease_until_ms: u64,
    /// When it asks next to be a member, or to stay one.
    ask_at_ms: u64,
    lease_ms: u64,
    outgoing: BTreeMap<Partition, Outgoing>,
    /// The versions that data was offered for.
    incoming: BTreeMap<Partition, u64>,
}

impl Member {
    /// A process that wants to be a member. `token` is a random number; no other process has it or the next
    /// few; `weight` is its part of the work in relation to others; what is not answered is sent again after
    /// `retry_ms`.
    pub fn new(token: u64, weight: u32, retry_ms: u64) -> Member {
        Member {
            token,
            weight,
            retry_ms: retry_ms.max(1),
            id: None,
            term: 0,
            table: Table::new(1),
            lease_until_ms: 0,
            ask_at_ms: 0,
            lease_ms: 0,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
        }
    }

    /// Its number, while it has one.
    pub fn id(&self) -> Option<MemberId> {
        self.id
    }

    /// The name it asked by, or asks by.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The latest term that it has heard of.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The table as it knows it.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// When its lease ends, in milliseconds of its own clock.
    pub fn lease_until_ms(&self) -> u64 {
        self.lease_until_ms
    }

    /// Whether it may serve a partition now. To be asked right before each request is carried out.
    pub fn serves(&self, partition: Partition, now_ms: u64) -> bool {
        now_ms < self.lease_until_ms && self.owns(partition) && !self.is_sealed(partition)
    }

    fn owns(&self, partition: Partition) -> bool {
        self.id.is_some() && self.table.row(partition).and_then(|row| row.holders.owner()) == self.id
    }

    /// Whether a partition is not served here any more, or not yet again, although it may be this member's:
    /// its data moves.
    pub fn is_sealed(&self, partition: Partition) -> bool {
        self.outgoing.get(&partition).is_some_and(|outgoing| outgoing.is_sealed)
    }

    /// Another member offers the data of a move: whether it is to be taken. Not if the move is over, or was
    /// never meant for this one.
    pub fn offered(&mut self, moving: &Move) -> bool {
        let version = self.table.row(moving.partition).map(|row| row.version);
        let is_wanted = self.id == Some(moving.destination)
            && moving.term >= self.term
            && version.is_some_and(|version| version <= moving.from)
            && !self.owns(moving.partition);
        if is_wanted {
            self.incoming.insert(moving.partition, moving.from);
        }
        is_wanted
    }

    /// Takes in what happened at `now_ms` of a monotonic clock, and adds what is to be done.
    pub fn handle(&mut self, now_ms: u64, input: MemberInput, actions: &mut Vec<Action>) {
        match input {
            MemberInput::Tick => self.tick(now_ms, actions),
            MemberInput::Linked => {
                self.ask_at_ms = now_ms;
                self.tick(now_ms, actions);
            }
            MemberInput::Message(message) => self.listen(now_ms, message, actions),
            MemberInput::Transferred(moving) => self.transferred(now_ms, moving, actions),
            MemberInput::Drained(moving) => {
                self.report(now_ms, moving, Stage::Draining, Stage::Ready, actions)
            }
            MemberInput::TransferFailed(moving) => {
                let Some(outgoing) = self.outgoing.get(&moving.partition) else { return };
                self.report(now_ms, moving, outgoing.stage, Stage::Failed, actions);
            }
        }
    }

    fn tick(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        if now_ms >= self.ask_at_ms {
            let every_ms = if self.lease_ms > 0 { (self.lease_ms / 3).max(1) } else { self.retry_ms };
            self.ask_at_ms = now_ms + every_ms;
            actions.push(self.to_coordinator(match self.id {
                Some(_) => Report::Renew { asked_ms: now_ms },
                None => Report::Join { token: self.token, weight: self.weight },
            }));
        }
        let retry_ms = self.retry_ms;
        let mut again = Vec::new();
        for outgoing in self.outgoing.values_mut().filter(|outgoing| now_ms >= outgoing.again_ms) {
            outgoing.again_ms = now_ms + retry_ms;
            again.extend(outgoing.result());
        }
        actions.extend(again.into_iter().map(|report| self.to_coordinator(report)));
    }

    fn to_coordinator(&self, body: Report) -> Action {
        Action::Send(ToCoordinator { member: self.id.unwrap_or(MemberId::NOBODY), term: self.term, body })
    }

    fn listen(&mut self, now_ms: u64, message: ToMember, actions: &mut Vec<Action>) {
        if message.term < self.term {
            return;
        }
        match message.body {
            Order::Welcome { token, member, partitions } if self.id.is_none() && token == self.token => {
                self.id = Some(member);
                if self.table.partitions() != partitions {
                    self.table = Table::new(partitions);
                }
                self.ask_at_ms = now_ms;
                self.term = message.term;
                self.tick(now_ms, actions);
            }
            Order::Gone { member } if self.id == Some(member) => {
                self.start_anew(now_ms, message.term, actions)
            }
            Order::Welcome { .. } | Order::Gone { .. } => {}
            body if self.id.is_some() => {
                self.term = message.term;
                self.obey(now_ms, body, actions);
            }
            _ => {}
        }
    }

    /// It is no member any more, and asks to be another one. What it knows of the table stays true.
    fn start_anew(&mut self, now_ms: u64, term: u64, actions: &mut Vec<Action>) {
        self.id = None;
        self.term = term;
        self.token = self.token.wrapping_add(1);
        self.lease_until_ms = 0;
        self.lease_ms = 0;
        self.outgoing.clear();
        self.incoming.clear();
        self.ask_at_ms = now_ms;
        self.tick(now_ms, actions);
    }

    fn obey(&mut self, now_ms: u64, order: Order, actions: &mut Vec<Action>) {
        match order {
            Order::Lease { member, asked_ms, lease_ms } if self.id == Some(member) => {
                self.lease_ms = lease_ms;
                self.lease_until_ms = self.lease_until_ms.max(asked_ms.saturating_add(lease_ms));
            }
            Order::Prepare { moving, news } => {
                self.apply_news(&news, actions);
                self.prepare(now_ms, moving, actions);
            }
            Order::Commit { change, news } => {
                self.apply_news(&news, actions);
                self.apply_news(&[change], actions);
                let version = self.table.row(change.partition).map_or(0, |row| row.version);
                if version >= change.to {
                    actions.push(self.to_coordinator(Report::Took { partition: change.partition, version }));
                }
            }
            Order::News { news } => self.apply_news(&news, actions),
            Order::Ask { stamp } if stamp != self.table.stamp() => {
                // One segment has nothing to be narrowed down.
                match self.table.segments() {
                    [_] => self.compare_segments(&[0], actions),
                    stamps => actions.push(self.to_coordinator(Report::Differs { stamps: stamps.to_vec() })),
                }
            }
            Order::CompareSegments { segments } => self.compare_segments(&segments, actions),
            Order::Rows { rows } => rows.into_iter().for_each(|(partition, row)| {
                let before = self.table.row(partition).copied();
                if self.table.take_row(partition, row) == Applied::Changed {
                    self.changed(partition, before, actions);
                }
            }),
            Order::Lease { .. } | Order::Ask { .. } | Order::Welcome { .. } | Order::Gone { .. } => {}
        }
    }

    /// Begins to give a partition away, or says again what became of it.
    fn prepare(&mut self, now_ms: u64, moving: Move, actions: &mut Vec<Action>) {
        let version = self.table.row(moving.partition).map_or(0, |row| row.version);
        if self.id != Some(moving.source) || version > moving.from {
            return;
        }
        if version < moving.from || !self.owns(moving.partition) {
            actions.push(self.to_coordinator(Report::Gap { partitions: vec![moving.partition] }));
            return;
        }
        let known = self.outgoing.get(&moving.partition).copied();
        if let Some(known) = known.filter(|known| known.moving == moving) {
            actions.extend(known.result().map(|report| self.to_coordinator(report)));
            return;
        }
        let is_sealed = known.is_some_and(|known| known.is_sealed);
        let again_ms = now_ms + self.retry_ms;
        let outgoing = Outgoing { moving, stage: Stage::Transferring, is_sealed, again_ms };
        self.outgoing.insert(moving.partition, outgoing);
        actions.push(Action::Transfer(moving));
    }

    fn transferred(&mut self, now_ms: u64, moving: Move, actions: &mut Vec<Action>) {
        if !moving.seals {
            return self.report(now_ms, moving, Stage::Transferring, Stage::Ready, actions);
        }
        let outgoing = self.outgoing.get_mut(&moving.partition);
        let matches =
            |outgoing: &&mut Outgoing| outgoing.moving == moving && outgoing.stage == Stage::Transferring;
        if let Some(outgoing) = outgoing.filter(matches) {
            outgoing.is_sealed = true;
            outgoing.stage = Stage::Draining;
            actions.push(Action::Drain(moving));
        }
    }

    fn report(&mut self, now_ms: u64, moving: Move, from: Stage, to: Stage, actions: &mut Vec<Action>) {
        let again_ms = now_ms + self.retry_ms;
        let Some(outgoing) = self.outgoing.get_mut(&moving.partition) else { return };
        if outgoing.moving != moving || outgoing.stage != from {
            return;
        }
        (outgoing.stage, outgoing.again_ms) = (to, again_ms);
        let result = outgoing.result();
        actions.extend(result.map(|report| self.to_coordinator(report)));
    }

    fn apply_news(&mut self, news: &[Change], actions: &mut Vec<Action>) {
        let mut gaps = Vec::new();
        for change in news {
            let before = self.table.row(change.partition).copied();
            match self.table.apply(change) {
                Applied::Changed => self.changed(change.partition, before, actions),
                Applied::Gap => gaps.push(change.partition),
                Applied::Known => {}
            }
        }
        if !gaps.is_empty() {
            actions.push(self.to_coordinator(Report::Gap { partitions: gaps }));
        }
    }

    /// After a row has another version: what was begun before it is over.
    fn changed(&mut self, partition: Partition, before: Option<Row>, actions: &mut Vec<Action>) {
        let Some(row) = self.table.row(partition).copied() else { return };
        if let Some(outgoing) = self.outgoing.get(&partition).copied()
            && outgoing.moving.from < row.version
        {
            self.outgoing.remove(&partition);
            let was_at = before.map(|before| before.backend).filter(|backend| *backend != row.backend);
            let by_us = outgoing.stage == Stage::Ready && outgoing.moving.backend == Some(row.backend);
            actions.extend(was_at.filter(|_| by_us).map(|backend| Action::Leave(outgoing.moving, backend)));
        }
        if self.incoming.get(&partition).is_some_and(|from| *from >= row.version) {
            // It only catches up; the move that the data came for is still to be decided.
            return;
        }
        let was_offered = self.incoming.remove(&partition).is_some();
        let holds = |row: &Row| self.id.is_some_and(|id| row.holders.contains(id));
        if (was_offered || before.is_some_and(|before| holds(&before))) && !holds(&row) {
            actions.push(Action::Discard(partition));
        }
    }

    fn compare_segments(&self, segments: &[u32], actions: &mut Vec<Action>) {
        for segment in segments {
            let Some(stamp) = self.table.segments().get(*segment as usize).copied() else { continue };
            let versions = self.table.segment(*segment).map(|(_, row)| row.version).collect();
            actions.push(self.to_coordinator(Report::Have { segment: *segment, stamp, versions }));
        }
    }
}

impl Outgoing {
    /// What is to be reported of it, once it is known.
    fn result(&self) -> Option<Report> {
        match self.stage {
            Stage::Transferring | Stage::Draining => None,
            Stage::Ready => Some(Report::Ready { moving: self.moving }),
            Stage::Failed => Some(Report::Failed { moving: self.moving }),
        }
    }
}
