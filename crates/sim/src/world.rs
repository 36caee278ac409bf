//! The cluster that jobs are let loose on: what its nodes believe and hold, and what they do by themselves.

/// How many slots there are, each with one key. The first batch has two, so that a takeover can stop
/// half-way.
pub const SLOTS: usize = 3;

/// Which slots are in each batch.
pub const BATCHES: [&[usize]; 2] = [&[0, 1], &[2]];

/// The slots that these bits stand for.
pub fn numbers(bits: u8) -> impl Iterator<Item = usize> {
    (0..SLOTS).filter(move |number| bits & (1 << number) != 0)
}

/// How the source is kept from accepting writes until the takeover is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotFence {
    /// The source redirects to the target at once: it gives the slots up and assigns them to the target in
    /// one transaction.
    Redirecting,
    /// The same by a script that looks first, and acts only if nothing was written. The takeover is sent
    /// together with it, as one effect.
    Scripted,
    /// A long pause; the source learns of its loss by gossip, and deletes its keys then.
    Gossip,
    /// The source gives the slots up without assigning them. Its target is one that takes slots by itself
    /// when their owner stops claiming them, and the source one that claims unassigned slots again after a
    /// restart if it holds keys of them.
    Bare,
}

/// The version of a key's state that is not there.
pub const ABSENT: i8 = -1;

/// A slot and its key. The state of a key is the number of the write that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotState {
    /// The last write that a client got an acknowledgement for.
    pub acked: i8,
    /// Whether the source's primary owns the slot in its own view.
    pub source_owns: bool,
    /// Whether the target's primary owns the slot in its own view.
    pub target_owns: bool,
    /// Whether the target has the slot marked as importing.
    pub marked: bool,
    /// Whether the target's claim has reached everybody else: the source, all replicas, the other primaries.
    pub known: bool,
    /// What the source and its replica hold. Clients' writes reach both: what an engine loses by replicating
    /// later is not ours to prevent.
    pub at_source: i8,
    /// What the target's primary holds.
    pub at_target: i8,
    /// What the target's replica holds. Clients' writes reach it at once; what is staged, when it is waited
    /// for.
    pub at_replica: i8,
}

/// The primary of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    /// Whether it runs. If not, its replica may be promoted.
    pub alive: bool,
    /// Which node of the shard it is: counted up by each failover.
    pub node: u8,
    /// Which process it is: counted up by each failover and restart.
    pub process: u8,
}

/// The write pause on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pause {
    /// None.
    Off,
    /// One that may run out at any time.
    Short,
    /// One that does not run out while the news of a takeover is on its way.
    Long,
}

/// What was sent and may still be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// What it does.
    pub command: Command,
    /// To which slots, by bits.
    pub slots: u8,
    /// What it would write, where it writes keys.
    pub values: [i8; SLOTS],
}

/// What an effect comes to on the servers, apart from its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Marks on the target.
    Mark,
    /// No marks on the target.
    Unmark,
    /// Keys to the target.
    Stage,
    /// A short pause on the source.
    Pause,
    /// No pause on the source.
    Unpause,
    /// The fence on the source.
    Fence,
    /// The takeover on the target.
    TakeOver,
    /// The fence on the source, and the takeover on a target that runs then.
    FenceAndTakeOver,
    /// The source gives up what it does not know to have lost, then no pause.
    Release,
    /// The source owns the slots again, and is not paused.
    GiveBack,
    /// No keys of the slots on the target and its replica.
    Wipe,
    /// No keys of the slots on the source.
    CleanUp,
}

impl Command {
    /// Whether the source executes it, else the target does.
    pub fn is_for_source(self) -> bool {
        use Command::{CleanUp, Fence, FenceAndTakeOver, GiveBack, Pause, Release, Unpause};
        matches!(self, Pause | Unpause | Fence | FenceAndTakeOver | Release | GiveBack | CleanUp)
    }
}

/// Everything that is true at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The slots.
    pub slots: [SlotState; SLOTS],
    /// The shard that gives slots away.
    pub source: Side,
    /// The shard that gets them.
    pub target: Side,
    /// The write pause on the source.
    pub pause: Pause,
    /// Whether the feed is attached to the source's present process.
    pub feed: bool,
    /// Which slots the feed saw touched since they were copied last, by bits.
    pub touched: u8,
    /// Whether the source accepted a write since the drain.
    pub slipped: bool,
    /// Whether the executor's knowledge that the source is fenced is young enough for a takeover.
    pub fresh: bool,
    /// The slots, by bits, whose owner died before its claim had reached anybody. While there are any, the
    /// source does not fail on top of that.
    pub orphaned: u8,
    /// Whether the executor's process runs.
    pub executor: bool,
    /// The number of the job's state, as the journal has it.
    pub job: u32,
    /// What may still be executed.
    pub pending: Option<Pending>,
    /// How many things may still go wrong.
    pub faults: u8,
    /// How many writes clients may still make.
    pub writes: u8,
}

impl World {
    /// The source owns all slots, with a key in each.
    pub fn new(job: u32, faults: u8, writes: u8) -> World {
        let slot = SlotState {
            acked: 0,
            source_owns: true,
            target_owns: false,
            marked: false,
            known: false,
            at_source: 0,
            at_target: ABSENT,
            at_replica: ABSENT,
        };
        let side = Side { alive: true, node: 0, process: 0 };
        World {
            slots: [slot; SLOTS],
            source: side,
            target: side,
            pause: Pause::Off,
            feed: false,
            touched: 0,
            slipped: false,
            fresh: false,
            orphaned: 0,
            executor: true,
            job,
            pending: None,
            faults,
            writes,
        }
    }

    /// Whether the source would execute a write to this slot.
    pub fn source_accepts(&self, slot: usize) -> bool {
        self.source.alive && self.slots[slot].source_owns && self.pause == Pause::Off
    }

    /// Whether the target would execute a write to this slot.
    pub fn target_accepts(&self, slot: usize) -> bool {
        self.target.alive && self.slots[slot].target_owns
    }

    /// What must never be: two writers, or one without an acknowledged write.
    pub fn violation(&self) -> Option<String> {
        for (number, slot) in self.slots.iter().enumerate() {
            let (source, target) = (self.source_accepts(number), self.target_accepts(number));
            if source && target {
                return Some(format!("source and target both accept writes to slot {number}"));
            }
            if source && slot.at_source != slot.acked {
                return Some(format!("the source serves slot {number} without an acknowledged write"));
            }
            if target && slot.at_target != slot.acked {
                return Some(format!("the target serves slot {number} without an acknowledged write"));
            }
        }
        None
    }

    /// Whether a claim of the target has not reached everybody yet.
    pub fn has_news(&self) -> bool {
        self.target.alive && self.slots.iter().any(|slot| slot.target_owns && !slot.known)
    }

    // ---- What happens by itself ----

    /// A client writes to this slot, wherever it is served and clients get to know of it.
    pub fn client_writes(mut self, number: usize, fence: SlotFence) -> Option<World> {
        self.writes = self.writes.checked_sub(1)?;
        let (source, target) = (self.source_accepts(number), self.target_accepts(number));
        let slot = &mut self.slots[number];
        if source {
            slot.acked += 1;
            slot.at_source = slot.acked;
            self.slipped = true;
            if self.feed {
                self.touched |= 1 << number;
            }
        } else if target && (slot.known || fence != SlotFence::Gossip) {
            // Before the news of a gossip fence nobody sends a client to the target.
            slot.acked += 1;
            slot.at_target = slot.acked;
            slot.at_replica = slot.acked;
        } else {
            return None;
        }
        Some(self)
    }

    /// The target's claims reach everybody.
    pub fn gossip(mut self, fence: SlotFence) -> Option<World> {
        if !self.has_news() {
            return None;
        }
        for (number, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.target_owns) {
            self.orphaned &= !(1 << number);
            slot.known = true;
            // A node that learns that it lost a slot deletes what it holds of it.
            if slot.source_owns && fence == SlotFence::Gossip {
                slot.at_source = ABSENT;
            }
            slot.source_owns = false;
        }
        Some(self)
    }

    /// A target that imports a slot takes it when it sees that its owner does not claim it any more.
    pub fn target_helps_itself(mut self, fence: SlotFence) -> Option<World> {
        let able = fence == SlotFence::Bare && self.source.alive && self.target.alive;
        let mut taken = false;
        for slot in self.slots.iter_mut().filter(|slot| slot.marked && !slot.source_owns && !slot.target_owns)
        {
            slot.target_owns = true;
            slot.marked = false;
            taken = true;
        }
        (able && taken).then_some(self)
    }

    /// The pause runs out.
    pub fn pause_ends(mut self) -> Option<World> {
        match self.pause {
            Pause::Off => return None,
            Pause::Short => {}
            // So long that the news of a takeover is everywhere before, and nothing that was sent is left.
            Pause::Long if self.has_news() => return None,
            Pause::Long => {
                self.pending = None;
                self.fresh = false;
            }
        }
        self.pause = Pause::Off;
        Some(self)
    }

    /// What was sent long ago is executed.
    pub fn late_command(mut self, fence: SlotFence) -> Option<World> {
        let pending = self.pending.take()?;
        self.execute(pending, fence);
        Some(self)
    }

    /// The source's primary dies.
    pub fn source_dies(mut self) -> Option<World> {
        self.faults = self.faults.checked_sub(1)?;
        (self.source.alive && self.orphaned == 0).then(|| {
            self.source.alive = false;
            self.forget_source_process();
            self
        })
    }

    /// The target's primary dies.
    pub fn target_dies(mut self) -> Option<World> {
        self.faults = self.faults.checked_sub(1)?;
        // A target whose claim has reached nobody does not die while the source is gone, too.
        (self.target.alive && (self.source.alive || !self.has_news())).then(|| {
            let is_orphan = |number: &usize| self.slots[*number].target_owns && !self.slots[*number].known;
            self.orphaned |= (0..SLOTS).filter(is_orphan).fold(0, |bits, number| bits | 1 << number);
            self.target.alive = false;
            self.pending = self.pending.filter(|pending| pending.command.is_for_source());
            self
        })
    }

    /// The source's replica is promoted. It believes to own what it knows of no other owner for.
    pub fn source_fails_over(mut self) -> Option<World> {
        // A failover takes longer than gossip, and longer than commands linger.
        if self.source.alive || self.has_news() {
            return None;
        }
        self.pending = None;
        self.fresh = false;
        self.source = Side { alive: true, node: self.source.node + 1, process: self.source.process + 1 };
        for slot in &mut self.slots {
            slot.source_owns = !slot.known;
        }
        Some(self)
    }

    /// The target's replica is promoted. It owns what it knew its primary to own.
    pub fn target_fails_over(mut self, fence: SlotFence) -> Option<World> {
        if self.target.alive {
            return None;
        }
        self.pending = None;
        self.fresh = false;
        self.target = Side { alive: true, node: self.target.node + 1, process: self.target.process + 1 };
        for slot in &mut self.slots {
            slot.target_owns = slot.known;
            slot.at_target = slot.at_replica;
            // Newer servers replicate marks.
            slot.marked &= !matches!(fence, SlotFence::Redirecting | SlotFence::Scripted);
        }
        Some(self)
    }

    /// The source's primary is replaced by another process of the same node, which takes longer than gossip
    /// and than commands linger: a restarted primary waits before it accepts anything.
    pub fn source_restarts(mut self, fence: SlotFence) -> Option<World> {
        self.faults = self.faults.checked_sub(1)?;
        if !self.source.alive || self.orphaned != 0 || self.has_news() {
            return None;
        }
        self.source.process += 1;
        self.forget_source_process();
        self.pending = None;
        self.fresh = false;
        if fence == SlotFence::Bare {
            // Keys in slots that are assigned to nobody: it takes them back.
            for slot in self.slots.iter_mut().filter(|slot| !slot.known && slot.at_source != ABSENT) {
                slot.source_owns = true;
            }
        }
        Some(self)
    }

    /// The target's primary is replaced by another process of the same node, with its keys, claims and marks.
    pub fn target_restarts(mut self) -> Option<World> {
        self.faults = self.faults.checked_sub(1)?;
        if !self.target.alive {
            return None;
        }
        self.target.process += 1;
        self.pending = self.pending.filter(|pending| pending.command.is_for_source());
        Some(self)
    }

    fn forget_source_process(&mut self) {
        self.pause = Pause::Off;
        self.feed = false;
        self.pending = self.pending.filter(|pending| !pending.command.is_for_source());
    }

    // ---- What commands do ----

    /// Executes a command, whatever that leads to.
    pub fn execute(&mut self, pending: Pending, fence: SlotFence) {
        let Pending { command, slots, values } = pending;
        let checks_first = fence == SlotFence::Scripted;
        if checks_first && self.slipped && matches!(command, Command::Fence | Command::FenceAndTakeOver) {
            return;
        }
        match (command, fence) {
            (Command::Pause, _) => self.pause = Pause::Short,
            (Command::Unpause | Command::Release | Command::GiveBack, _) => self.pause = Pause::Off,
            (Command::Fence, SlotFence::Gossip) => self.pause = Pause::Long,
            _ => {}
        }
        for number in numbers(slots) {
            let slot = &mut self.slots[number];
            match command {
                // A node refuses to import what it owns.
                Command::Mark => slot.marked = !slot.target_owns,
                Command::Unmark => slot.marked = false,
                Command::Stage => slot.at_target = values[number],
                Command::Pause | Command::Unpause => {}
                Command::Fence => slot.source_owns &= fence == SlotFence::Gossip,
                Command::TakeOver => {
                    slot.target_owns = true;
                    slot.marked = false;
                }
                Command::FenceAndTakeOver => {
                    slot.source_owns = false;
                    slot.target_owns |= self.target.alive;
                    slot.marked &= !self.target.alive;
                }
                Command::Release => slot.source_owns = false,
                Command::GiveBack => slot.source_owns = true,
                Command::Wipe => {
                    slot.at_target = ABSENT;
                    slot.at_replica = ABSENT;
                }
                Command::CleanUp => slot.at_source = ABSENT,
            }
        }
    }
}
