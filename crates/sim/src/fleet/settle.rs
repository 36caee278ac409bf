//! What comes of a world when nothing is lost any more.

use whimbrel_core::fleet::{Input, Member, Snapshot};

use super::world::{Bug, MEMBERS, Machines, Mail, NONE, PARTITIONS, STEADY_TICKS, World};

/// Long enough for leases to run out twice, and for everything to be asked and answered.
const ROUNDS: usize = 30;

/// Nobody has so much to say at one time: an answer to an answer, a dozen times.
const EXCHANGES_MAX: usize = 60;

impl Machines {
    /// Lets the world go on without further trouble; says what is wrong where it does not come to rest.
    pub fn settle(&mut self, mut world: World) -> Option<String> {
        let last = if world.coordinators[1] == NONE { 0 } else { 1 };
        // An earlier one dies at last, also where the one that came after it has died before it.
        world.coordinators[1 - last] = NONE;
        let is_superseded = world.coordinators[last] != NONE
            && self.coordinators.get(world.coordinators[last]).term() < self.disks.get(world.disk).term;
        if is_superseded && self.bug != Some(Bug::OldTerm) {
            world.coordinators[last] = NONE;
            world.queues[last] = self.queues.number(Vec::new());
        }
        if world.coordinators[last] == NONE {
            self.start_coordinator(&mut world, last);
        }
        for round in 0..ROUNDS {
            // What is sent from now on arrives; what was sent before is lost, but what a process sends itself
            // is not.
            if round == 0 {
                let mut mail = self.mails.get(world.mail).clone();
                mail.retain(|letter| matches!(self.letters.get(*letter), Mail::Local(..)));
                world.mail = self.mails.number(mail);
            }
            self.tick(&mut world, None);
            for exchange in 0.. {
                if exchange == EXCHANGES_MAX {
                    return Some("they never stop talking".to_owned());
                }
                let mail = self.mails.get(world.mail).clone();
                world.mail = self.mails.number(Vec::new());
                mail.iter().for_each(|letter| self.deliver(&mut world, *letter));
                if !self.write(&mut world, last) && mail.is_empty() {
                    break;
                }
            }
            if let Some(what) = self.violation(&world) {
                return Some(format!("{what}, after trouble has ended"));
            }
            if round >= 4 && self.is_settled(&world, last) {
                return None;
            }
        }
        Some("this does not come to rest".to_owned())
    }

    fn is_settled(&mut self, world: &World, last: usize) -> bool {
        if world.coordinators[last] == NONE {
            return false;
        }
        let coordinator = self.coordinators.get(world.coordinators[last]);
        let members: Vec<&Member> = world.members.iter().map(|number| self.members.get(*number)).collect();
        let mut known: Vec<_> = coordinator.members().map(|(id, _)| Some(id)).collect();
        let mut alive: Vec<_> = members.iter().map(|member| member.id()).collect();
        known.sort();
        alive.sort();
        let serves = |partition| {
            (0..MEMBERS).filter(|at| members[*at].serves(partition, Machines::clock(world, *at))).count() == 1
        };
        coordinator.is_idle()
            && coordinator.remaining() == 0
            && known == alive
            && members.iter().all(|member| member.table() == coordinator.table())
            && (0..PARTITIONS).all(serves)
    }

    /// The first world: one member owns everything, another one has just been enrolled.
    pub fn first(&mut self, faults: u8) -> World {
        let queue = self.queues.number(Vec::new());
        let mut world = World {
            coordinators: [NONE, NONE],
            queues: [queue, queue],
            members: [NONE; MEMBERS],
            disk: self.disks.number(Snapshot::new(PARTITIONS)),
            mail: self.mails.number(Vec::new()),
            now: 0,
            behind: [0; MEMBERS],
            steady: [STEADY_TICKS; MEMBERS],
            started: 0,
            faults,
            dead: 0,
        };
        (0..MEMBERS).for_each(|at| self.replace_member(&mut world, at));
        world.mail = self.mails.number(Vec::new());
        self.start_coordinator(&mut world, 0);
        self.send_to_coordinator(&mut world, 0, Input::Hold(true));
        // Nothing moves until both are members that have a lease and the same table.
        while (0..MEMBERS).any(|at| {
            let member = self.members.get(world.members[at]);
            member.lease_until_ms() <= u64::from(world.now)
                || member.table().stamp() != self.disks.get(world.disk).table.stamp()
        }) {
            self.tick(&mut world, None);
            for _ in 0..6 {
                let mail = self.mails.get(world.mail).clone();
                mail.iter().for_each(|letter| self.deliver(&mut world, *letter));
                while self.write(&mut world, 0) {}
            }
        }
        self.send_to_coordinator(&mut world, 0, Input::Hold(false));
        // What was said before is over: it would only make more states of the same.
        world.mail = self.mails.number(Vec::new());
        self.tick(&mut world, None);
        world
    }
}
