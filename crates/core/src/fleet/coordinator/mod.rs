//! The coordinator: the only writer of the table.

mod moves;
mod news;
mod running;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::message::{Enrolled, Move, Order, Record, Report, ToCoordinator, ToMember};
use super::plan::{Target, plan, plan_backends, transfers};
use super::snapshot::Snapshot;
use super::table::Partition;
use super::table::{Change, MemberId, Row, Table};
use running::Running;

/// The backend that has everything until others are given a part: new rows name it.
const FIRST_BACKEND: u32 = 0;

/// How a coordinator works.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Options {
    /// How many members should hold a partition, its owner included, as far as there are enough of them; at
    /// most [`HOLDERS_MAX`](super::HOLDERS_MAX).
    pub copies: usize,
    /// How long a member may serve after it asked, by its own clock, in milliseconds.
    pub lease_ms: u64,
    /// By how much clocks may run faster or slower than each other, in thousandths.
    pub drift_per_mille: u64,
    /// What is not answered is said again after this many milliseconds.
    pub retry_ms: u64,
    /// A source that has not given its data away after this many milliseconds has failed to.
    pub transfer_ms: u64,
    /// The most moves that a member takes part in at once.
    pub moves_per_member: u32,
    /// While partitions move, members that take no part hear of them at most once per this number of moves,
    /// all together.
    pub batch: u32,
    /// How often members are asked whether their table is the same, in milliseconds, while nothing moves.
    pub ask_ms: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            copies: 1,
            lease_ms: 3_000,
            drift_per_mille: 20,
            retry_ms: 500,
            transfer_ms: 60_000,
            moves_per_member: 8,
            batch: 50,
            ask_ms: 5_000,
        }
    }
}

impl Options {
    /// How long the coordinator waits, by its own clock, after it heard from a member, before it gives away
    /// what that member owns: the lease, as much more as the clocks may differ, and one for the rounding of
    /// both.
    pub fn expire_ms(&self) -> u64 {
        let drift_ms = self.lease_ms.saturating_mul(self.drift_per_mille).div_ceil(1_000);
        self.lease_ms.saturating_add(drift_ms).saturating_add(1)
    }
}

/// The events that a coordinator handles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// A member says something.
    Message(ToCoordinator),
    /// All records up to this number are on disk.
    Journaled {
        /// See [`Output::Journal`].
        upto: u64,
    },
    /// There is a new connection to this member: what was sent on the last one may be lost.
    Linked(MemberId),
    /// Whether to leave partitions where they are when members join. Those without an owner get one all the
    /// same.
    Hold(bool),
    /// A member should hold nothing any more, and leave then.
    Leave(MemberId),
    /// A member's process is known to be gone: what it owns goes to others without waiting for its lease.
    /// This must never be said of a living member, as two would serve the same partitions.
    Dead(MemberId),
    /// A member should take another part of the work: in relation to others, 0 for none.
    Weigh {
        /// The member.
        member: MemberId,
        /// Its part from now on.
        weight: u32,
    },
    /// A backend should have another part of the data: in relation to others, 0 for none. Until one is given,
    /// the first has all.
    WeighBackend {
        /// Its number.
        backend: u32,
        /// Its part from now on.
        weight: u32,
    },
    /// No other process is the coordinator before this time of the coordinator's own clock. Only if a store
    /// is shared by several; after it no lease is given any more.
    Reign {
        /// In milliseconds of its own clock.
        until_ms: u64,
    },
}

/// The recipient of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recipient {
    /// The process that asked to join by this token.
    Joiner(u64),
    /// A member, or a former one.
    Member(MemberId),
}

/// What a coordinator wants done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Output {
    /// Write these down, after all earlier ones. Answered by [`Input::Journaled`] when they are on disk, not
    /// before. Several may be written at once. If it fails, the coordinator has to end.
    Journal {
        /// Counts up.
        number: u64,
        /// At least one.
        records: Vec<Record>,
    },
    /// Send this. It may be lost.
    Send {
        /// The recipient.
        to: Recipient,
        /// What.
        message: ToMember,
        /// The member takes no part in these changes.
        to_bystander: bool,
    },
    /// A move begins. For watchers only.
    Started(Move),
    /// A move is decided and its destination knows. For watchers only.
    Finished(Move),
    /// A move failed: the owner stays the owner. For watchers only.
    Failed(Move),
    /// There is a later coordinator: this one does nothing any more.
    Superseded,
}

/// A member as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Peer {
    enrolled: Enrolled,
    /// When its lease has surely run out.
    expires_ms: u64,
    /// It was sent all changes of the log before this one.
    sent: u64,
    /// How many moves it takes part in.
    moves: u32,
}

/// What follows when a record is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Then {
    Enrol(MemberId, Enrolled),
    Forget(MemberId),
    Change(Change),
    WeighBackend(u32, u32),
}

/// The coordinator of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Coordinator {
    options: Options,
    term: u64,
    /// There is a later one.
    is_over: bool,
    is_held: bool,
    reigns_until_ms: u64,
    table: Table,
    peers: BTreeMap<MemberId, Peer>,
    /// Tokens that are being written down, so that a process that asks twice is not two members.
    joining: BTreeSet<u64>,
    next_member: u32,
    targets: Vec<Target>,
    /// The parts of the data that backends should have.
    backends: BTreeMap<u32, u32>,
    /// For each partition the backend that it should have.
    backend_targets: Vec<u32>,
    /// For each owner the partitions that it has to give away or to copy.
    queues: BTreeMap<MemberId, VecDeque<Partition>>,
    /// The same of those whose data should have another backend. They come after all others, and may fail for
    /// ever: what is too large stays.
    data_queues: BTreeMap<MemberId, VecDeque<Partition>>,
    /// What failed, and when to try it again.
    later: VecDeque<(u64, Partition)>,
    data_later: VecDeque<(u64, Partition)>,
    /// No member carries data before this time, as that has just failed.
    data_rests_until_ms: u64,
    data_rests: bool,
    running: BTreeMap<Partition, Running>,
    /// Records of the present call, and what follows those that are not on disk yet.
    records: Vec<Record>,
    unwritten: VecDeque<(u64, Then)>,
    next_number: u64,
    /// The last changes, with the members that know them already, and the number of the first one.
    log: VecDeque<(Change, MemberId)>,
    log_start: u64,
    since_batch: u32,
    /// Members that have to hear the news at once.
    urgent: BTreeSet<MemberId>,
    /// Members to be asked for the stamp of their table: they may lack more than the log has.
    to_ask: BTreeSet<MemberId>,
    ask_at_ms: u64,
}

impl Coordinator {
    /// A new coordinator that goes on from what the last one wrote down. It assumes that every member has
    /// just renewed its lease: the last coordinator may have granted it.
    ///
    /// `snapshot.term` is this coordinator's own: the store raised it in the transaction that the snapshot
    /// was read in, or before. From then on it refuses what an earlier coordinator writes, so the snapshot
    /// has everything.
    pub fn recover(snapshot: Snapshot, options: Options, now_ms: u64, out: &mut Vec<Output>) -> Coordinator {
        let expires_ms = now_ms + options.expire_ms();
        let peer = |enrolled| Peer { enrolled, expires_ms, sent: 0, moves: 0 };
        let peers = snapshot.members.into_iter().map(|(id, enrolled)| (id, peer(enrolled))).collect();
        let mut coordinator = Coordinator {
            ask_at_ms: now_ms,
            options,
            term: snapshot.term,
            is_over: false,
            is_held: false,
            reigns_until_ms: u64::MAX,
            table: snapshot.table,
            peers,
            joining: BTreeSet::new(),
            next_member: snapshot.next_member,
            targets: Vec::new(),
            backends: snapshot.backends,
            backend_targets: Vec::new(),
            queues: BTreeMap::new(),
            data_queues: BTreeMap::new(),
            later: VecDeque::new(),
            data_later: VecDeque::new(),
            data_rests_until_ms: 0,
            data_rests: false,
            running: BTreeMap::new(),
            records: Vec::new(),
            unwritten: VecDeque::new(),
            next_number: 0,
            log: VecDeque::new(),
            log_start: 0,
            since_batch: 0,
            urgent: BTreeSet::new(),
            to_ask: BTreeSet::new(),
        };
        coordinator.to_ask.extend(coordinator.peers.keys());
        coordinator.replan();
        coordinator.go_on(now_ms, out);
        coordinator
    }

    /// Its term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The table: what is written down and decided.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The members.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, Enrolled)> {
        self.peers.iter().map(|(id, peer)| (*id, peer.enrolled))
    }

    /// By what a member has joined, while it is one.
    pub fn token_of(&self, member: MemberId) -> Option<u64> {
        self.peers.get(&member).map(|peer| peer.enrolled.token)
    }

    /// Whether a process has joined by this token, or is about to.
    pub fn has_joined(&self, token: u64) -> bool {
        self.joining.contains(&token) || self.peers.values().any(|peer| peer.enrolled.token == token)
    }

    /// How many are members, or about to be.
    pub fn enrolled(&self) -> usize {
        self.joining.len() + self.peers.len()
    }

    /// How many changes have not been sent to a member, and in how many moves it takes part; `None` if there
    /// is no such member.
    pub fn lag(&self, member: MemberId) -> Option<(u64, u32)> {
        let end = self.log_start + self.log.len() as u64;
        self.peers.get(&member).map(|peer| (end.saturating_sub(peer.sent), peer.moves))
    }

    /// How many partitions are being changed now.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// How many moves are left of the plan. Goes through the whole table.
    pub fn remaining(&self) -> u64 {
        let rows = self.table.rows().iter().zip(&self.targets);
        let of_members: u64 = rows.map(|(row, target)| transfers(&row.holders, target)).sum();
        let rows = self.table.rows().iter().zip(&self.backend_targets);
        of_members + rows.filter(|(row, target)| row.backend != **target).count() as u64
    }

    /// The parts of the data that backends should have, by their numbers; a backend that is not there has
    /// none.
    pub fn backend_weights(&self) -> BTreeMap<u32, u32> {
        let mut weights = self.backends.clone();
        weights.entry(FIRST_BACKEND).or_insert(1);
        weights
    }

    /// Whether nothing moves, nothing waits to move, and everything is on disk. Data that could not be
    /// carried to another backend may wait.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.unwritten.is_empty()
            && self.later.is_empty()
            && self.queues.values().all(VecDeque::is_empty)
            && (self.data_rests || self.data_queues.values().all(VecDeque::is_empty))
    }

    /// Takes in what happened at `now_ms` of a monotonic clock, and adds what is to be done, to be done in
    /// this order.
    pub fn handle(&mut self, now_ms: u64, input: Input, out: &mut Vec<Output>) {
        match input {
            _ if self.is_over => return,
            Input::Journaled { upto } => self.journaled(now_ms, upto, out),
            Input::Reign { until_ms } => self.reigns_until_ms = until_ms,
            Input::Tick => self.tick(now_ms, out),
            Input::Message(message) => self.listen(now_ms, message, out),
            Input::Linked(member) => {
                self.to_ask.insert(member);
            }
            Input::Hold(is_held) => {
                self.is_held = is_held;
                self.replan();
            }
            Input::Leave(member) => self.edit(member, |enrolled| enrolled.is_leaving = true),
            Input::Dead(member) if self.peers.contains_key(&member) => self.expel(member),
            Input::Dead(_) => {}
            Input::Weigh { member, weight } => self.edit(member, |enrolled| enrolled.weight = weight),
            Input::WeighBackend { backend, weight } => {
                self.write(Record::Backend(backend, weight), Then::WeighBackend(backend, weight));
            }
        }
        if !self.is_over {
            self.go_on(now_ms, out);
        }
    }

    fn go_on(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.start_moves(now_ms, out);
        self.spread(out);
        self.hand_over_records(out);
    }

    /// Writes a member down as it becomes, on top of what is being written down of it.
    fn edit(&mut self, member: MemberId, change: impl FnOnce(&mut Enrolled)) {
        let Some(peer) = self.peers.get(&member) else { return };
        let latest = self.unwritten.iter().rev().find_map(|(_, then)| match then {
            Then::Enrol(id, enrolled) if *id == member => Some(*enrolled),
            _ => None,
        });
        let before = latest.unwrap_or(peer.enrolled);
        let mut after = before;
        change(&mut after);
        if after != before {
            self.write(Record::Member(member, after), Then::Enrol(member, after));
        }
    }

    fn write(&mut self, record: Record, then: Then) {
        self.records.push(record);
        self.unwritten.push_back((self.next_number, then));
    }

    fn hand_over_records(&mut self, out: &mut Vec<Output>) {
        if !self.records.is_empty() {
            let records = std::mem::take(&mut self.records);
            out.push(Output::Journal { number: self.next_number, records });
            self.next_number += 1;
        }
    }

    fn journaled(&mut self, now_ms: u64, upto: u64, out: &mut Vec<Output>) {
        while self.unwritten.front().is_some_and(|(number, _)| *number <= upto) {
            let Some((_, then)) = self.unwritten.pop_front() else { return };
            match then {
                Then::Enrol(member, enrolled) => self.enrol(now_ms, member, enrolled, out),
                Then::Forget(member) => self.forget(member, out),
                Then::Change(change) => self.decided(now_ms, change, out),
                Then::WeighBackend(backend, weight) => {
                    self.backends.insert(backend, weight);
                    self.replan();
                }
            }
        }
    }

    fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let expired: Vec<MemberId> =
            self.peers.iter().filter(|(_, peer)| now_ms >= peer.expires_ms).map(|(id, _)| *id).collect();
        expired.into_iter().for_each(|member| self.expel(member));
        let holds = |id: MemberId| {
            self.running.values().any(|running| running.concerns(id))
                || self.table.rows().iter().any(|row| row.holders.contains(id))
        };
        let leaving = self.peers.iter().filter(|(_, peer)| peer.enrolled.is_leaving);
        let done: Vec<MemberId> = leaving.map(|(id, _)| *id).filter(|id| !holds(*id)).collect();
        done.into_iter().for_each(|member| self.expel(member));
        self.repeat(now_ms, out);
        if now_ms >= self.ask_at_ms && self.is_idle() {
            self.ask_at_ms = now_ms + self.options.ask_ms;
            self.to_ask.extend(self.peers.keys());
        }
    }

    /// From now on it gets no lease. What it owned is given away when that is written down.
    fn expel(&mut self, member: MemberId) {
        self.peers.remove(&member);
        self.write(Record::Gone(member), Then::Forget(member));
    }

    fn listen(&mut self, now_ms: u64, message: ToCoordinator, out: &mut Vec<Output>) {
        if message.term > self.term {
            self.is_over = true;
            out.push(Output::Superseded);
            return;
        }
        if let Report::Join { token, weight } = message.body {
            self.join(token, weight, out);
            return;
        }
        let member = message.member;
        if !self.peers.contains_key(&member) {
            if matches!(message.body, Report::Renew { .. }) {
                self.send(member, Order::Gone { member }, false, out);
            }
            return;
        }
        match message.body {
            Report::Join { .. } => {}
            Report::Renew { asked_ms } => self.renew(now_ms, member, asked_ms, out),
            // Only the source can say what became of its part.
            Report::Ready { moving } | Report::Failed { moving } if moving.source != member => {}
            Report::Ready { moving } => self.ready(member, moving, out),
            Report::Failed { moving } => self.failed(member, moving, out),
            Report::Took { partition, version } => self.took(member, partition, version, out),
            Report::Gap { partitions } => self.send_rows(member, partitions, out),
            Report::Differs { stamps } => self.narrow(member, &stamps, out),
            Report::Have { segment, stamp, versions } => {
                self.complete(member, segment, stamp, &versions, out)
            }
        }
    }

    fn join(&mut self, token: u64, weight: u32, out: &mut Vec<Output>) {
        let known = self.peers.iter().find(|(_, peer)| peer.enrolled.token == token).map(|(id, _)| *id);
        if let Some(member) = known {
            self.welcome(member, token, out);
        } else if self.joining.insert(token) {
            let member = MemberId(self.next_member);
            self.next_member += 1;
            let enrolled = Enrolled { token, weight, is_leaving: false };
            self.write(Record::Member(member, enrolled), Then::Enrol(member, enrolled));
        }
    }

    fn welcome(&mut self, member: MemberId, token: u64, out: &mut Vec<Output>) {
        let partitions = self.table.partitions();
        let message = ToMember { term: self.term, body: Order::Welcome { token, member, partitions } };
        out.push(Output::Send { to: Recipient::Joiner(token), message, to_bystander: false });
    }

    fn enrol(&mut self, now_ms: u64, member: MemberId, enrolled: Enrolled, out: &mut Vec<Output>) {
        let sent = self.log_start + self.log.len() as u64;
        let expires_ms = now_ms + self.options.expire_ms();
        if self.joining.remove(&enrolled.token) {
            self.peers.insert(member, Peer { enrolled, expires_ms, sent, moves: 0 });
            self.welcome(member, enrolled.token, out);
            self.to_ask.insert(member);
        } else if let Some(peer) = self.peers.get_mut(&member) {
            peer.enrolled = enrolled;
        }
        self.replan();
    }

    fn renew(&mut self, now_ms: u64, member: MemberId, asked_ms: u64, out: &mut Vec<Output>) {
        let lease_ms = self.options.lease_ms;
        // The next coordinator counts from the end of this one's reign.
        if now_ms >= self.reigns_until_ms {
            return;
        }
        if let Some(peer) = self.peers.get_mut(&member) {
            peer.expires_ms = peer.expires_ms.max(now_ms + self.options.expire_ms());
            self.send(member, Order::Lease { member, asked_ms, lease_ms }, false, out);
        }
    }

    fn forget(&mut self, member: MemberId, out: &mut Vec<Output>) {
        self.send(member, Order::Gone { member }, false, out);
        self.urgent.remove(&member);
        self.to_ask.remove(&member);
        self.queues.remove(&member);
        self.data_queues.remove(&member);
        let moves: Vec<Partition> = self.running.keys().copied().collect();
        for partition in moves {
            self.lost_participant(partition, member);
        }
        self.replan();
    }

    /// Plans anew which member should hold what.
    fn replan(&mut self) {
        self.queues.clear();
        self.data_queues.clear();
        self.later.clear();
        self.data_later.clear();
        self.data_rests = false;
        self.data_rests_until_ms = 0;
        self.targets.clear();
        self.backend_targets.clear();
        if !self.is_held {
            let part = |peer: &Peer| if peer.enrolled.is_leaving { 0 } else { peer.enrolled.weight };
            let members = self.peers.iter().map(|(id, peer)| (*id, part(peer))).collect();
            self.targets = plan(self.table.rows(), &members, self.options.copies);
            self.backend_targets = plan_backends(self.table.rows(), &self.backend_weights());
        }
        for partition in 0..self.table.partitions() {
            self.advance(partition);
        }
    }

    fn row(&self, partition: Partition) -> Row {
        self.table.row(partition).copied().unwrap_or_default()
    }

    fn send(&self, to: MemberId, body: Order, to_bystander: bool, out: &mut Vec<Output>) {
        let message = ToMember { term: self.term, body };
        out.push(Output::Send { to: Recipient::Member(to), message, to_bystander });
    }
}
