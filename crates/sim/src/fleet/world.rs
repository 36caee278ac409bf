//! The world: processes, what they have written down, and what is on its way.

use std::collections::HashMap;
use std::hash::Hash;

use whimbrel_core::fleet::{
    Action, Change, Coordinator, Input, Member, MemberId, MemberInput, Options, Order, Output, Partition,
    Recipient, Record, Report, Snapshot, ToCoordinator, ToMember,
};

/// How many members there are.
pub const MEMBERS: usize = 2;

/// How many partitions there are.
pub const PARTITIONS: u32 = 2;

/// Stands for a process that does not run.
pub const NONE: u32 = u32::MAX;

/// A member's clock may stand still in one in this many ticks of the coordinator's.
pub const STEADY_TICKS: u8 = 3;

/// A known mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A member serves although its lease is over.
    ServePastLease,
    /// The coordinator gives away what a member owns before its lease is surely over.
    Hasty,
    /// A change that does not fit is taken in all the same.
    ApplyWithGap,
    /// The journal says that something is on disk before it is.
    Unwritten,
    /// The journal takes what an earlier coordinator writes.
    OldTerm,
    /// A source says that it is ready without having stopped to serve.
    Unsealed,
    /// Who comes back after its lease gets the number it had before.
    SameNumber,
    /// A coordinator reads what is written down before its term keeps the last one from writing.
    ClaimLate,
    /// Somebody says that a member is dead which lives.
    DeadTooSoon,
}

/// How the machines are set: the shortest times that are different from each other.
pub fn options(copies: usize) -> Options {
    Options {
        copies,
        lease_ms: 1,
        drift_per_mille: 500,
        retry_ms: 2,
        transfer_ms: 2,
        moves_per_member: 2,
        batch: 50,
        ask_ms: 4,
    }
}

/// What is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Mail {
    /// To the process that is the coordinator.
    Up(ToCoordinator),
    /// To a member.
    Down(Recipient, ToMember),
    /// What a member learns of its own transfers, by its token.
    Local(u64, MemberInput),
}

impl Mail {
    fn is_question(&self) -> bool {
        match self {
            Mail::Up(message) => {
                matches!(message.body, Report::Gap { .. } | Report::Differs { .. } | Report::Have { .. })
            }
            Mail::Down(_, message) => {
                matches!(message.body, Order::Ask { .. } | Order::CompareSegments { .. })
            }
            Mail::Local(..) => false,
        }
    }
}

fn version_of(member: &Member, partition: Partition) -> u64 {
    member.table().row(partition).map_or(0, |row| row.version)
}

/// Whether an order can still change something at a member: versions and leases only grow.
fn order_matters(member: &Member, order: &Order) -> bool {
    let knows = |change: &Change| version_of(member, change.partition) >= change.to;
    match order {
        Order::Lease { asked_ms, lease_ms, .. } => asked_ms + lease_ms > member.lease_until_ms(),
        Order::Prepare { moving, news } => {
            version_of(member, moving.partition) <= moving.from || !news.iter().all(knows)
        }
        Order::News { news } => !news.iter().all(knows),
        Order::Rows { rows } => {
            rows.iter().any(|(partition, row)| version_of(member, *partition) < row.version)
        }
        Order::Welcome { .. }
        | Order::Gone { .. }
        | Order::Commit { .. }
        | Order::Ask { .. }
        | Order::CompareSegments { .. } => true,
    }
}

/// Different values by number.
pub struct Pool<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T: Clone + Eq + Hash> Pool<T> {
    /// None yet.
    pub fn new() -> Pool<T> {
        Pool { values: Vec::new(), numbers: HashMap::new() }
    }

    /// The number of a value.
    pub fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let number = u32::try_from(self.values.len()).expect("memory is smaller");
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }

    /// The value of a number.
    pub fn get(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }
}

/// Records that are not on disk yet, with their number.
pub type Queue = Vec<(u64, Vec<Record>)>;

/// Everything that is true at one moment, by numbers of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    /// The first and a later one; both may run.
    pub coordinators: [u32; 2],
    /// What each of them has given to the journal.
    pub queues: [u32; 2],
    /// The members.
    pub members: [u32; MEMBERS],
    /// What is written down.
    pub disk: u32,
    /// What was ever sent.
    pub mail: u32,
    /// The coordinators' clock.
    pub now: u8,
    /// By how much each member's clock is behind.
    pub behind: [u8; MEMBERS],
    /// How long ago it stood still last.
    pub steady: [u8; MEMBERS],
    /// How many members were ever started: their tokens.
    pub started: u8,
    /// How many times something may still die or be replaced.
    pub faults: u8,
    /// The member whose process was replaced last, which a coordinator may be notified of; 0 for none.
    pub dead: u32,
}

/// Something a process takes in, as a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Coordinator(u32, u64, Input),
    Member(u32, u64, MemberInput),
}

/// What came of it.
#[derive(Debug, Clone)]
struct Effect {
    process: u32,
    mail: Vec<u32>,
    records: Queue,
    is_over: bool,
}

/// All values seen so far, and what becomes of them.
pub struct Machines {
    /// The mistake, if there is one.
    pub bug: Option<Bug>,
    /// How many members hold a partition.
    pub copies: usize,
    /// Whether deaths of members are reported to coordinators.
    pub reports_deaths: bool,
    /// Coordinators.
    pub coordinators: Pool<Coordinator>,
    /// Members.
    pub members: Pool<Member>,
    /// Journals.
    pub disks: Pool<Snapshot>,
    /// What is given to journals.
    pub queues: Pool<Queue>,
    /// Single letters.
    pub letters: Pool<Mail>,
    /// All that was ever sent: numbers of letters in ascending order.
    pub mails: Pool<Vec<u32>>,
    known: HashMap<Step, Effect>,
}

impl Machines {
    /// Machines that have not begun.
    pub fn new(bug: Option<Bug>, copies: usize, reports_deaths: bool) -> Machines {
        Machines {
            bug,
            copies,
            reports_deaths,
            coordinators: Pool::new(),
            members: Pool::new(),
            disks: Pool::new(),
            queues: Pool::new(),
            letters: Pool::new(),
            mails: Pool::new(),
            known: HashMap::new(),
        }
    }

    /// The clock of a member.
    pub fn clock(world: &World, at: usize) -> u64 {
        u64::from(world.now - world.behind[at])
    }

    /// Questions about tables and their answers arrive at once: a late one only makes for more rows than
    /// needed. When the rows arrive, if they do, is open.
    fn add_mail(&mut self, world: &mut World, letters: &[u32]) {
        let mut mail = self.mails.get(world.mail).clone();
        let (at_once, later): (Vec<u32>, Vec<u32>) =
            letters.iter().partition(|letter| self.letters.get(**letter).is_question());
        mail.extend(later);
        mail.sort_unstable();
        mail.dedup();
        world.mail = self.mails.number(mail);
        at_once.into_iter().for_each(|letter| self.deliver(world, letter));
    }

    /// Leaves out what cannot make a difference any more, so that fewer worlds are different.
    pub fn forget_what_is_over(&mut self, world: &mut World) {
        let mut mail = self.mails.get(world.mail).clone();
        mail.retain(|letter| self.matters(world, self.letters.get(*letter)));
        world.mail = self.mails.number(mail);
        // Everybody who could be notified of it has forgotten it already.
        let dead = MemberId(world.dead);
        let running = world.coordinators.iter().filter(|number| **number != NONE);
        let mut running = running.map(|number| self.coordinators.get(*number));
        if !self.disks.get(world.disk).members.contains_key(&dead)
            && !running.any(|coordinator| coordinator.token_of(dead).is_some())
        {
            world.dead = 0;
        }
    }

    fn matters(&self, world: &World, mail: &Mail) -> bool {
        let members = || world.members.iter().map(|number| self.members.get(*number));
        let disk = self.disks.get(world.disk);
        let written = |partition| disk.table.row(partition).map_or(0, |row| row.version);
        match mail {
            // Who is gone does not come back by its number. To one that dies before it was welcomed nothing
            // was said.
            Mail::Up(ToCoordinator { member, body, .. }) => match body {
                Report::Join { token, .. } => members().any(|member| member.token() == *token),
                Report::Took { partition, version } => written(*partition) <= *version,
                _ => members().any(|other| other.id() == Some(*member)),
            },
            Mail::Down(Recipient::Joiner(token), _) => {
                members().any(|member| member.token() == *token && member.id().is_none())
            }
            Mail::Down(Recipient::Member(id), message) => {
                let Some(member) = members().find(|member| member.id() == Some(*id)) else {
                    return members().any(|member| member.id().is_none()) && id.0 + 1 >= disk.next_member;
                };
                message.term >= member.term() && order_matters(member, &message.body)
            }
            Mail::Local(token, MemberInput::Transferred(moving) | MemberInput::Drained(moving)) => members()
                .any(|member| {
                    member.token() == *token && version_of(member, moving.partition) <= moving.from
                }),
            Mail::Local(..) => true,
        }
    }

    /// One coordinator takes something in.
    pub fn send_to_coordinator(&mut self, world: &mut World, at: usize, input: Input) {
        let number = world.coordinators[at];
        if number == NONE {
            return;
        }
        let hasty = self.bug == Some(Bug::Hasty) && input == Input::Tick;
        let now_ms = u64::from(world.now) + if hasty { 2 } else { 0 };
        let step = Step::Coordinator(number, now_ms, input.clone());
        if !self.known.contains_key(&step) {
            let mut coordinator = self.coordinators.get(number).clone();
            let mut out = Vec::new();
            coordinator.handle(now_ms, input, &mut out);
            let effect = self.effect_of(coordinator, out);
            self.known.insert(step.clone(), effect);
        }
        let effect = self.known[&step].clone();
        self.take_effect(world, at, &effect);
    }

    fn effect_of(&mut self, coordinator: Coordinator, out: Vec<Output>) -> Effect {
        let mut effect = Effect { process: 0, mail: Vec::new(), records: Vec::new(), is_over: false };
        effect.process = self.coordinators.number(coordinator);
        for output in out {
            match output {
                Output::Journal { number, records } => effect.records.push((number, records)),
                Output::Send { to, message, .. } => {
                    effect.mail.push(self.letters.number(Mail::Down(to, message)))
                }
                Output::Superseded => effect.is_over = true,
                Output::Started(_) | Output::Finished(_) | Output::Failed(_) => {}
            }
        }
        effect
    }

    fn take_effect(&mut self, world: &mut World, at: usize, effect: &Effect) {
        world.coordinators[at] = if effect.is_over { NONE } else { effect.process };
        self.add_mail(world, &effect.mail);
        if effect.is_over {
            world.queues[at] = self.queues.number(Vec::new());
        } else if !effect.records.is_empty() {
            let mut queue = self.queues.get(world.queues[at]).clone();
            queue.extend(effect.records.iter().cloned());
            world.queues[at] = self.queues.number(queue);
            if self.bug == Some(Bug::Unwritten) {
                let upto = effect.records.last().map_or(0, |(number, _)| *number);
                self.send_to_coordinator(world, at, Input::Journaled { upto });
            }
        }
    }

    /// A coordinator starts from what is written down.
    pub fn start_coordinator(&mut self, world: &mut World, at: usize) {
        let mut snapshot = self.disks.get(world.disk).clone();
        snapshot.term += 1;
        if self.bug != Some(Bug::ClaimLate) {
            world.disk = self.disks.number(snapshot.clone());
        }
        if self.bug == Some(Bug::SameNumber) {
            snapshot.next_member = snapshot.members.keys().map(|id| id.0 + 1).max().unwrap_or(1);
        }
        let mut out = Vec::new();
        let coordinator =
            Coordinator::recover(snapshot, options(self.copies), u64::from(world.now), &mut out);
        let effect = self.effect_of(coordinator, out);
        world.queues[at] = self.queues.number(Vec::new());
        self.take_effect(world, at, &effect);
    }

    /// The journal writes what one coordinator gave it first. It refuses one that is not the last.
    pub fn write(&mut self, world: &mut World, at: usize) -> bool {
        if world.coordinators[at] == NONE {
            return false;
        }
        let mut queue = self.queues.get(world.queues[at]).clone();
        if queue.is_empty() {
            return false;
        }
        let mut disk = self.disks.get(world.disk).clone();
        let is_earlier = disk.term > self.coordinators.get(world.coordinators[at]).term();
        if is_earlier && self.bug != Some(Bug::OldTerm) {
            world.coordinators[at] = NONE;
            world.queues[at] = self.queues.number(Vec::new());
            return true;
        }
        disk.term = disk.term.max(self.coordinators.get(world.coordinators[at]).term());
        let (number, records) = queue.remove(0);
        records.iter().for_each(|record| disk.apply(record));
        world.disk = self.disks.number(disk);
        world.queues[at] = self.queues.number(queue);
        self.send_to_coordinator(world, at, Input::Journaled { upto: number });
        true
    }

    /// A member takes something in.
    pub fn send_to_member(&mut self, world: &mut World, at: usize, input: MemberInput) {
        let number = world.members[at];
        let now_ms = Machines::clock(world, at);
        let step = Step::Member(number, now_ms, input.clone());
        if !self.known.contains_key(&step) {
            let mut member = self.members.get(number).clone();
            let token = member.token();
            let mut actions = Vec::new();
            member.handle(now_ms, input, &mut actions);
            let mail = actions.into_iter().filter_map(|action| self.letter_of(token, action)).collect();
            let process = self.members.number(member);
            self.known.insert(step.clone(), Effect { process, mail, records: Vec::new(), is_over: false });
        }
        let effect = self.known[&step].clone();
        world.members[at] = effect.process;
        self.add_mail(world, &effect.mail);
    }

    fn letter_of(&mut self, token: u64, action: Action) -> Option<u32> {
        let mail = match action {
            Action::Send(message) => Mail::Up(message),
            Action::Transfer(moving) if self.bug == Some(Bug::Unsealed) => {
                let (member, term) = (moving.source, moving.term);
                Mail::Up(ToCoordinator { member, term, body: Report::Ready { moving } })
            }
            // Whether the destination takes it is found out when it arrives.
            Action::Transfer(moving) => Mail::Local(token, MemberInput::Transferred(moving)),
            Action::Drain(moving) => Mail::Local(token, MemberInput::Drained(moving)),
            Action::Discard(_) | Action::Leave(..) => return None,
        };
        Some(self.letters.number(mail))
    }

    /// What was sent arrives at everybody it is for.
    ///
    /// The wish to go on serving arrives once: a second time it only makes the coordinator wait longer.
    pub fn deliver(&mut self, world: &mut World, letter: u32) {
        let mail = self.letters.get(letter).clone();
        if let Mail::Up(ToCoordinator { body: Report::Renew { .. }, .. }) = &mail {
            let rest = self.mails.get(world.mail).iter().copied().filter(|other| *other != letter).collect();
            world.mail = self.mails.number(rest);
        }
        match mail {
            Mail::Up(message) => {
                for at in 0..world.coordinators.len() {
                    if world.coordinators[at] != NONE {
                        self.send_to_coordinator(world, at, Input::Message(message.clone()));
                    }
                }
            }
            Mail::Down(to, message) => {
                for at in 0..MEMBERS {
                    let member = self.members.get(world.members[at]);
                    let is_meant = match to {
                        Recipient::Joiner(token) => member.token() == token,
                        Recipient::Member(id) => member.id() == Some(id),
                    };
                    if is_meant {
                        let message = self.tampered_order(world.members[at], message.clone());
                        self.send_to_member(world, at, MemberInput::Message(message));
                    }
                }
            }
            Mail::Local(token, input) => {
                let source = (0..MEMBERS).find(|at| self.members.get(world.members[*at]).token() == token);
                source.into_iter().for_each(|at| self.deliver_data(world, at, input.clone()));
            }
        }
    }

    /// Data arrives at the destination, which takes it or does not.
    fn deliver_data(&mut self, world: &mut World, source: usize, input: MemberInput) {
        let MemberInput::Transferred(moving) = input else {
            return self.send_to_member(world, source, input);
        };
        let mut is_taken = false;
        for at in 0..MEMBERS {
            let mut member = self.members.get(world.members[at]).clone();
            if member.offered(&moving) {
                is_taken = true;
                world.members[at] = self.members.number(member);
            }
        }
        let input = if is_taken { input } else { MemberInput::TransferFailed(moving) };
        self.send_to_member(world, source, input);
    }

    fn tampered_order(&self, member: u32, mut message: ToMember) -> ToMember {
        let member = self.members.get(member);
        if self.bug == Some(Bug::ApplyWithGap) {
            let version = |change: &Change| member.table().row(change.partition).map_or(0, |row| row.version);
            if let Order::News { news } | Order::Prepare { news, .. } | Order::Commit { news, .. } =
                &mut message.body
            {
                for change in news {
                    change.from = change.from.min(version(change));
                }
            }
        }
        message
    }

    /// Time passes for everybody; the clock of one member may stand still.
    pub fn tick(&mut self, world: &mut World, slow: Option<usize>) {
        world.now += 1;
        for at in 0..MEMBERS {
            if slow == Some(at) {
                world.behind[at] += 1;
                world.steady[at] = 0;
            } else {
                world.steady[at] = (world.steady[at] + 1).min(STEADY_TICKS);
            }
        }
        for at in 0..world.coordinators.len() {
            self.send_to_coordinator(world, at, Input::Tick);
        }
        for at in 0..MEMBERS {
            self.send_to_member(world, at, MemberInput::Tick);
        }
    }

    /// A member dies, and another process takes its place that knows nothing.
    pub fn replace_member(&mut self, world: &mut World, at: usize) {
        world.started += 1;
        let before = Some(world.members[at]).filter(|number| *number != NONE);
        let id = before.and_then(|number| self.members.get(number).id());
        world.dead = id.filter(|_| self.reports_deaths).map_or(world.dead, |id| id.0);
        let member = Member::new(u64::from(world.started) * 100, 1, options(self.copies).retry_ms);
        world.members[at] = self.members.number(member);
        self.send_to_member(world, at, MemberInput::Tick);
    }

    /// Who watches over processes reports to a coordinator which one is gone, at any time after it is.
    pub fn report_death(&mut self, world: &mut World, at: usize) -> bool {
        let lives = self.bug == Some(Bug::DeadTooSoon);
        let first = self.members.get(world.members[0]).id().filter(|_| lives).map(|id| id.0);
        match first.unwrap_or(world.dead) {
            0 => false,
            dead => {
                self.send_to_coordinator(world, at, Input::Dead(MemberId(dead)));
                true
            }
        }
    }

    /// What must not be and is.
    pub fn violation(&self, world: &World) -> Option<String> {
        let disk = self.disks.get(world.disk);
        for partition in 0..PARTITIONS {
            let serves = |at: &usize| {
                let lenient = self.bug == Some(Bug::ServePastLease);
                let now_ms = if lenient { 0 } else { Machines::clock(world, *at) };
                self.members.get(world.members[*at]).serves(partition, now_ms)
            };
            if (0..MEMBERS).filter(serves).count() > 1 {
                return Some(format!("two members serve partition {partition}"));
            }
            let written = disk.table.row(partition);
            let running = world.coordinators.iter().filter(|number| **number != NONE);
            let tables = running.map(|number| self.coordinators.get(*number).table());
            let of_members = world.members.iter().map(|number| self.members.get(*number).table());
            for row in tables.chain(of_members).filter_map(|table| table.row(partition)) {
                let version = written.map_or(0, |written| written.version);
                if row.version > version {
                    return Some(format!(
                        "a change of partition {partition} is known that is not written down"
                    ));
                }
                if row.version == version && Some(row) != written {
                    return Some(format!("partition {partition} is not known as it is written down"));
                }
            }
        }
        None
    }
}
