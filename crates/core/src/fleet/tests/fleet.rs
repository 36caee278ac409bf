//! Whole fleets on a network that loses, doubles and delays, with crashes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::fleet::*;

/// Numbers that look random, from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count.max(1)
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// Data of one partition at one backend: what was last written there, and whose attempt the fence is.
#[derive(Clone, Copy, Default)]
struct Site {
    value: Option<u64>,
    fence: (u64, u64),
}

/// What an owner does at backends, step by step. The owner may be gone by then, or not own the partition any
/// more, like bytes that lie in sockets.
struct Work {
    /// By the name that it had when it began.
    member: u64,
    moving: Move,
    from: u32,
    next: Task,
    stands_still: bool,
}

#[derive(Clone, Copy)]
enum Task {
    Claim,
    Clear,
    Read,
    Restore(Option<u64>),
    Discard,
    Over { done: bool },
}

/// The number of backends.
const BACKENDS: usize = 3;

enum Mail {
    Up(ToCoordinator),
    Down(Recipient, ToMember),
}

struct World {
    dice: Dice,
    now_ms: u64,
    disk: Snapshot,
    options: Options,
    coordinator: Option<Coordinator>,
    /// Given to the journal, and not on disk yet.
    writing: Vec<(u64, Vec<Record>)>,
    members: Vec<Member>,
    mail: Vec<Mail>,
    tokens: u64,
    /// Whether no data can be carried, and how often it was tried.
    is_stuck: bool,
    carried: usize,
    works: Vec<Work>,
    sites: Vec<[Site; BACKENDS]>,
    /// What was last written to each partition by the member that served it.
    truth: Vec<Option<u64>>,
    /// How often something is lost, doubled or late, in percent.
    trouble: usize,
}

impl World {
    fn new(seed: u64, partitions: u32, copies: usize, members: usize) -> World {
        let options =
            Options { copies, lease_ms: 30, retry_ms: 5, transfer_ms: 60, ask_ms: 10, ..Options::default() };
        let mut world = World {
            dice: Dice(seed),
            now_ms: 1_000,
            disk: Snapshot::new(partitions),
            options,
            coordinator: None,
            writing: Vec::new(),
            members: Vec::new(),
            mail: Vec::new(),
            tokens: 0,
            is_stuck: false,
            carried: 0,
            works: Vec::new(),
            sites: vec![Default::default(); partitions as usize],
            truth: vec![None; partitions as usize],
            trouble: 30,
        };
        (0..members).for_each(|_| world.start_member());
        world
    }

    fn start_member(&mut self) {
        self.tokens += 1_000;
        self.members.push(Member::new(self.tokens, 1, 5));
    }

    fn start_coordinator(&mut self) {
        self.writing.clear();
        let mut out = Vec::new();
        self.disk.term += 1;
        let (disk, options) = (self.disk.clone(), self.options.clone());
        self.coordinator = Some(Coordinator::recover(disk, options, self.now_ms, &mut out));
        self.carry_out(out);
    }

    fn send_to_coordinator(&mut self, input: Input) {
        let mut out = Vec::new();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle(self.now_ms, input, &mut out);
        }
        self.carry_out(out);
    }

    fn carry_out(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Journal { number, records } => self.writing.push((number, records)),
                Output::Send { to, message, .. } => self.mail.push(Mail::Down(to, message)),
                Output::Superseded => self.coordinator = None,
                Output::Started(_) | Output::Finished(_) | Output::Failed(_) => {}
            }
        }
    }

    fn write(&mut self) {
        let Some((number, records)) = (!self.writing.is_empty()).then(|| self.writing.remove(0)) else {
            return;
        };
        records.iter().for_each(|record| self.disk.apply(record));
        self.send_to_coordinator(Input::Journaled { upto: number });
    }

    fn send_to_member(&mut self, at: usize, input: MemberInput) {
        let mut actions = Vec::new();
        self.members[at].handle(self.now_ms, input, &mut actions);
        for action in actions {
            match action {
                Action::Send(message) => self.mail.push(Mail::Up(message)),
                Action::Transfer(moving) if moving.backend.is_some() => {
                    self.carried += 1;
                    let input = match self.is_stuck {
                        true => MemberInput::TransferFailed(moving),
                        false => MemberInput::Transferred(moving),
                    };
                    self.send_to_member(at, input);
                }
                Action::Transfer(moving) => {
                    let taken = self.members.iter_mut().any(|member| member.offered(&moving));
                    let failed = !taken || self.dice.percent(self.trouble / 3);
                    let input = if failed {
                        MemberInput::TransferFailed(moving)
                    } else {
                        MemberInput::Transferred(moving)
                    };
                    self.send_to_member(at, input);
                }
                Action::Drain(moving) if moving.backend.is_some() => {
                    let from = self.members[at].table().row(moving.partition).expect("it is there").backend;
                    self.begin_work(at, moving, from, Task::Claim);
                }
                Action::Drain(moving) => self.send_to_member(at, MemberInput::Drained(moving)),
                Action::Leave(moving, from) => self.begin_work(at, moving, from, Task::Discard),
                Action::Discard(_) => {}
            }
        }
    }

    fn begin_work(&mut self, at: usize, moving: Move, from: u32, next: Task) {
        let member = self.members[at].token();
        self.works.push(Work { member, moving, from, next, stands_still: false });
    }

    /// The next step of something that is done at backends: any of it, so some of it comes very late.
    fn work(&mut self) {
        if self.works.is_empty() {
            return;
        }
        let at = self.dice.below(self.works.len());
        let stands_still = self.dice.percent(self.trouble);
        let work = &mut self.works[at];
        work.stands_still |= stands_still;
        // It goes on at last, when others have long done the same.
        if work.stands_still && !self.dice.percent(2) {
            return;
        }
        let Work { member, moving, from, next, .. } = &mut self.works[at];
        let (from, to) = (*from as usize, moving.backend.expect("one of data") as usize);
        let (sites, token) = (&mut self.sites[moving.partition as usize], (moving.from, moving.term));
        *next = match *next {
            Task::Claim if sites[from].fence.max(sites[to].fence) > token => Task::Over { done: false },
            Task::Claim => {
                (sites[from].fence, sites[to].fence) = (token, token);
                Task::Clear
            }
            Task::Discard => {
                if sites[from].fence == token {
                    sites[from].value = None;
                }
                self.works.remove(at);
                return;
            }
            Task::Clear | Task::Restore(_) if sites[to].fence != token => Task::Over { done: false },
            Task::Clear => {
                sites[to].value = None;
                Task::Read
            }
            Task::Read => Task::Restore(sites[from].value),
            Task::Restore(value) => {
                sites[to].value = value;
                Task::Over { done: true }
            }
            Task::Over { done } => {
                let (member, moving) = (*member, *moving);
                self.works.remove(at);
                let input =
                    if done { MemberInput::Drained(moving) } else { MemberInput::TransferFailed(moving) };
                if let Some(at) = self.members.iter().position(|other| other.token() == member) {
                    self.send_to_member(at, input);
                }
                return;
            }
        };
    }

    /// The member that serves a partition finds what was last written, and writes something else.
    fn serve(&mut self) {
        let partition = self.dice.below(self.sites.len());
        let number = u32::try_from(partition).expect("few");
        let Some(member) = self.members.iter().find(|member| member.serves(number, self.now_ms)) else {
            return;
        };
        let row = member.table().row(number).expect("it is there");
        let site = &mut self.sites[partition][row.backend as usize];
        assert_eq!(site.value, self.truth[partition], "of partition {partition}, {row:?}");
        self.truth[partition] = Some(self.truth[partition].map_or(0, |last| last + 1));
        site.value = self.truth[partition];
    }

    fn deliver(&mut self) {
        if self.mail.is_empty() {
            return;
        }
        let at = if self.dice.percent(self.trouble) { self.dice.below(self.mail.len()) } else { 0 };
        let doubled = self.dice.percent(self.trouble / 3);
        let mail = self.mail.remove(at);
        if self.dice.percent(self.trouble / 2) {
            return;
        }
        match mail {
            Mail::Up(message) => {
                if doubled {
                    self.mail.push(Mail::Up(message.clone()));
                }
                self.send_to_coordinator(Input::Message(message));
            }
            Mail::Down(to, message) => {
                let is_meant = |member: &Member| match to {
                    Recipient::Joiner(token) => member.token() == token,
                    Recipient::Member(id) => member.id() == Some(id),
                };
                let Some(at) = self.members.iter().position(is_meant) else { return };
                if doubled {
                    self.mail.push(Mail::Down(to, message.clone()));
                }
                self.send_to_member(at, MemberInput::Message(message));
            }
        }
    }

    fn check(&self) {
        for partition in 0..self.disk.table.partitions() {
            let serving = self.members.iter().filter(|member| member.serves(partition, self.now_ms));
            let serving: Vec<_> = serving.map(Member::id).collect();
            assert!(serving.len() <= 1, "partition {partition} is served by {serving:?}");
            let written = self.disk.table.row(partition).expect("it is there");
            for member in self.members.iter().filter(|member| member.table().partitions() > partition) {
                let known = member.table().row(partition).expect("it is there");
                assert!(known.version < written.version || known == written, "{known:?} is not {written:?}");
            }
        }
    }

    fn step(&mut self) {
        match self.dice.below(20) {
            0..=11 => (0..self.mail.len().div_ceil(8)).for_each(|_| self.deliver()),
            12..=13 => self.write(),
            14 => self.serve(),
            15 => self.work(),
            _ => {
                self.now_ms += 1;
                self.send_to_coordinator(Input::Tick);
                (0..self.members.len()).for_each(|at| self.send_to_member(at, MemberInput::Tick));
            }
        }
        self.check();
    }

    fn fault(&mut self) {
        match self.dice.below(8) {
            0 if self.members.len() > 1 => {
                let at = self.dice.below(self.members.len());
                self.members.remove(at);
            }
            1 if self.members.len() < 5 => self.start_member(),
            2 => self.coordinator = None,
            3 => {
                let at = self.dice.below(self.members.len());
                self.members[at].id().into_iter().for_each(|id| self.send_to_coordinator(Input::Leave(id)));
            }
            4..=5 => {
                let backend = u32::try_from(self.dice.below(BACKENDS)).expect("few");
                let weight = u32::try_from(self.dice.below(3)).expect("few");
                self.send_to_coordinator(Input::WeighBackend { backend, weight });
            }
            _ => self.start_coordinator(),
        }
    }

    /// No more trouble: everything is said and done until nothing moves.
    fn settle(&mut self) {
        self.trouble = 0;
        if self.coordinator.is_none() {
            self.start_coordinator();
        }
        for _ in 0..4_000 {
            self.step();
            // What is on its way arrives before the next thing happens: else only leases would ever run out.
            (0..self.mail.len()).for_each(|_| self.deliver());
            self.write();
            (0..self.works.len() * 2).for_each(|_| self.work());
            (0..4).for_each(|_| self.serve());
            self.check();
            if self.is_settled() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn is_settled(&self) -> bool {
        let Some(coordinator) = &self.coordinator else { return false };
        let alive: BTreeSet<MemberId> = self.members.iter().filter_map(Member::id).collect();
        let known: BTreeSet<MemberId> = coordinator.members().map(|(id, _)| id).collect();
        let table = coordinator.table();
        let all_served = (0..table.partitions())
            .all(|partition| self.members.iter().any(|member| member.serves(partition, self.now_ms)));
        let weights = coordinator.backend_weights();
        let is_placed = |row: &Row| {
            weights.values().all(|weight| *weight == 0)
                || weights.get(&row.backend).is_some_and(|weight| *weight > 0)
        };
        let nobody_works = coordinator.members().all(|(_, enrolled)| enrolled.is_leaving);
        coordinator.is_idle()
            && coordinator.remaining() == 0
            && alive == known
            && alive.len() == self.members.len()
            && self.members.iter().all(|member| member.table() == table)
            && (all_served || nobody_works)
            && (nobody_works || table.rows().iter().all(is_placed))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_trouble_ends_in_equal_tables_and_never_in_two_owners(
        seed in any::<u64>(), partitions in 1_u32..300, copies in 1_usize..4, members in 1_usize..5,
        faults in 0..12,
    ) {
        let mut world = World::new(seed, partitions, copies, members);
        world.start_coordinator();
        for _ in 0..faults {
            (0..300).for_each(|_| world.step());
            world.fault();
        }
        world.settle();
        let coordinator = world.coordinator.as_ref().expect("it is there");
        prop_assert_eq!(coordinator.table(), &world.disk.table);
        for _ in 0..partitions * 4 {
            world.serve();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn what_was_written_is_found_wherever_data_moves(
        seed in any::<u64>(), partitions in 1_u32..6, members in 2_usize..4, faults in 5..40,
    ) {
        let mut world = World::new(seed, partitions, 1, members);
        world.start_coordinator();
        for _ in 0..faults {
            (0..150).for_each(|_| world.step());
            world.fault();
        }
        world.settle();
        while !world.works.is_empty() {
            world.work();
            world.serve();
        }
    }
}

#[test]
fn data_has_another_backend_when_that_is_ordered() {
    let mut world = World::new(3, 100, 1, 2);
    world.trouble = 0;
    world.start_coordinator();
    world.settle();
    (0..400).for_each(|_| world.serve());
    world.send_to_coordinator(Input::WeighBackend { backend: 1, weight: 1 });
    world.settle();
    let at = |world: &World, backend: u32| {
        world.disk.table.rows().iter().filter(|row| row.backend == backend).count()
    };
    assert_eq!((at(&world, 0), at(&world, 1)), (50, 50));
    world.send_to_coordinator(Input::WeighBackend { backend: 0, weight: 0 });
    world.settle();
    // The next coordinator knows what was wished.
    world.coordinator = None;
    world.start_coordinator();
    world.settle();
    assert_eq!((at(&world, 0), at(&world, 1)), (0, 100));
    (0..400).for_each(|_| world.serve());
    while !world.works.is_empty() {
        world.work();
    }
    assert!(world.sites.iter().all(|sites| sites[0].value.is_none()), "nothing is left behind");
}

#[test]
fn data_that_cannot_be_carried_keeps_nobody_busy_and_nobody_from_leaving() {
    let mut world = World::new(5, 400, 1, 2);
    (world.trouble, world.is_stuck) = (0, true);
    world.start_coordinator();
    world.settle();
    world.send_to_coordinator(Input::WeighBackend { backend: 1, weight: 1 });
    let (began_ms, mut idle) = (world.now_ms, 0);
    while world.now_ms < began_ms + 400 {
        world.step();
        (0..world.mail.len()).for_each(|_| world.deliver());
        world.write();
        idle += usize::from(world.coordinator.as_ref().is_some_and(Coordinator::is_idle));
    }
    // Once for each rest, of 10 ms, as many as go on at once.
    assert!(world.carried > 20 && world.carried <= 41 * 2 * 8, "{}", world.carried);
    assert!(idle > 50, "{idle}");
    let leaving = world.members[0].id().expect("a member");
    world.send_to_coordinator(Input::Leave(leaving));
    while world.coordinator.as_ref().is_some_and(|coordinator| coordinator.members().count() == 2) {
        world.step();
        (0..world.mail.len()).for_each(|_| world.deliver());
        world.write();
        assert!(world.now_ms < began_ms + 5_000, "it has left");
    }
    world.is_stuck = false;
    world.members.remove(0);
    world.settle();
    assert_eq!(world.disk.table.rows().iter().filter(|row| row.backend == 1).count(), 200);
}

#[test]
fn a_destination_that_is_lost_before_it_knows_leaves_the_partition_with_its_source() {
    let mut world = World::new(1, 1, 1, 1);
    world.trouble = 0;
    world.start_coordinator();
    world.settle();
    let source = world.members[0].id().expect("welcomed");
    world.start_member();
    // Until the change is written down; the destination never hears of it.
    while world.disk.table.row(0).and_then(|row| row.holders.owner()) == Some(source) {
        if world.members[1].id().is_some() {
            world.send_to_coordinator(Input::Leave(source));
        }
        world.step();
    }
    world.members.pop();
    let before = world.disk.table.row(0).expect("it is there").version;
    while !world.members[0].serves(0, world.now_ms) {
        world.now_ms += 1;
        world.send_to_coordinator(Input::Tick);
        world.send_to_member(0, MemberInput::Tick);
        (0..20).for_each(|_| world.deliver());
        world.write();
        world.check();
        assert!(world.now_ms < 10_000, "the source serves again");
    }
    let row = world.disk.table.row(0).expect("it is there");
    assert_eq!((row.holders.owner(), row.version), (Some(source), before + 1));
    assert_eq!(world.members[0].table().row(0), Some(row));
}

#[test]
fn no_lease_is_given_after_the_reign() {
    let mut out = Vec::new();
    let mut snapshot = Snapshot::new(1);
    let enrolled = Enrolled { token: 5, weight: 1, is_leaving: false };
    snapshot.apply(&Record::Member(MemberId(1), enrolled));
    snapshot.term = 1;
    let mut coordinator = Coordinator::recover(snapshot, Options::default(), 100, &mut out);
    coordinator.handle(100, Input::Reign { until_ms: 200 }, &mut out);
    let mut leases = |now_ms| {
        let mut out = Vec::new();
        let renew = ToCoordinator { member: MemberId(1), term: 1, body: Report::Renew { asked_ms: 7 } };
        coordinator.handle(now_ms, Input::Message(renew), &mut out);
        let is_lease = |output: &&Output| {
            matches!(output, Output::Send { message: ToMember { body: Order::Lease { .. }, .. }, .. })
        };
        out.iter().filter(is_lease).count()
    };
    assert_eq!((leases(199), leases(200)), (1, 0));
}

#[test]
fn a_weight_and_a_farewell_at_once_both_count() {
    let mut out = Vec::new();
    let mut snapshot = Snapshot::new(1);
    let enrolled = Enrolled { token: 5, weight: 1, is_leaving: false };
    snapshot.apply(&Record::Member(MemberId(1), enrolled));
    let mut coordinator = Coordinator::recover(snapshot, Options::default(), 100, &mut out);
    out.clear();
    // The second is said before the first is on disk.
    coordinator.handle(100, Input::Weigh { member: MemberId(1), weight: 7 }, &mut out);
    coordinator.handle(100, Input::Leave(MemberId(1)), &mut out);
    coordinator.handle(100, Input::Leave(MemberId(1)), &mut out);
    let written = out.iter().filter_map(|output| match output {
        Output::Journal { records, .. } => Some(records),
        _ => None,
    });
    let members: Vec<Enrolled> = written
        .flatten()
        .filter_map(|record| match record {
            Record::Member(MemberId(1), enrolled) => Some(*enrolled),
            _ => None,
        })
        .collect();
    let weighed = Enrolled { weight: 7, ..enrolled };
    assert_eq!(members, [weighed, Enrolled { is_leaving: true, ..weighed }], "and nothing twice");
    coordinator.handle(100, Input::Journaled { upto: u64::MAX }, &mut out);
    assert_eq!(coordinator.members().next(), Some((MemberId(1), members[1])));
}
