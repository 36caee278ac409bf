//! What the executor does with an effect: the promises of
//! [`Action`], kept in the small world, and the ways in which an effect can end.

use whimbrel_core::migration::{
    Action, Detail, Effect, Event, Observation, Outcome, Phase, Primary, Process, Reason, Seen, Why,
};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};

use crate::world::{ABSENT, Command, Pause, Pending, SLOTS, Side, SlotFence, World, numbers};

/// A mistake in the driver, for showing that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The fence is said to have held without looking whether a write slipped in.
    HeldUnseen,
    /// A fence whose reply was lost is taken for one that held.
    HeldUnknown,
    /// Resuming from the fence goes straight to the takeover, as if it had just held.
    ResumeForward,
    /// The drain does not wait for the target's replicas.
    NoReplicaWait,
    /// A takeover is sent however old the knowledge is.
    NoGuard,
    /// An observation leaves alone what was sent before and may still be executed.
    LeaveLingering,
    /// The fence does not clear the target's marks before.
    FenceMarked,
    /// The pause is lifted after the takeover without seeing to it that the source knows of its loss.
    ReleaseEarly,
    /// An observation does not notice what the target owns.
    OverlookTarget,
    /// The fence comes when a part of the slots is staged only, and the comparison does not notice.
    FenceUnstaged,
    /// It is not said of a fence that it takes over as well.
    TakeOverUnsaid,
    /// A job that is to be atomic hands its batches over one after another.
    OneByOne,
}

/// How an effect ended, short enough to be compared and remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Done, with nothing to say but what the effect implies.
    Done,
    /// Done with a fence that did not hold.
    Slipped,
    /// Done with an observation.
    Saw {
        /// Of the source's shard.
        source: Option<Sight>,
        /// Of the target's shard.
        target: Option<Sight>,
    },
    /// Refused.
    Refused(Why),
    /// Not known.
    Unknown,
}

/// What is seen of a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sight {
    node: u8,
    process: u8,
    /// Which of the batch's slots it claims, by bits.
    claims: u8,
    keys: u8,
}

/// The source's or the target's name after some failovers.
pub fn node_id(is_source: bool, node: u8) -> NodeId {
    let text = format!("{}{node:039x}", if is_source { 'a' } else { 'b' });
    text.parse().expect("40 hexadecimal digits")
}

fn process(is_source: bool, number: u8) -> Process {
    Process(format!("{}{number}", if is_source { 'a' } else { 'b' }))
}

/// The real slots of these slots of the world.
pub fn slot_set(numbers: impl IntoIterator<Item = usize>) -> SlotSet {
    let slot = |number| u16::try_from(number).ok().and_then(Slot::new).expect("the world is small");
    numbers.into_iter().map(slot).collect()
}

/// An effect, and which slots of the world it is about.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The effect.
    pub effect: &'a Effect,
    /// Its slots, by bits.
    pub slots: u8,
}

impl<'a> Order<'a> {
    /// Resolves an effect.
    pub fn new(effect: &'a Effect) -> Order<'a> {
        Order { effect, slots: effect.slots.iter().fold(0, |bits, slot| bits | 1 << slot.number()) }
    }

    fn numbers(self) -> impl Iterator<Item = usize> {
        numbers(self.slots)
    }
}

/// The driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// How sources are fenced.
    pub fence: SlotFence,
    /// What it does wrong.
    pub bug: Option<Bug>,
}

impl Driver {
    /// Executes an effect completely, or finds that its conditions are not met. `None` if it is not ended yet
    /// and waits for something else to happen.
    pub fn execute(self, world: &World, order: Order) -> Option<(World, Ended)> {
        let mut world = *world;
        if let Some(why) = self.obstacle(&world, order) {
            return Some((world, Ended::Refused(why)));
        }
        let mut ended = Ended::Done;
        match order.effect.action {
            Action::Check | Action::Compare { .. } => {}
            Action::Confirm { .. } if world.has_news() => return None,
            Action::Confirm { .. } => {}
            Action::Attach => {
                world.feed = true;
                world.touched = 0;
            }
            Action::CatchUp { .. } => {
                self.send(&mut world, order);
                world.touched = 0;
            }
            Action::Drain { .. } => {
                self.send(&mut world, order);
                world.touched = 0;
                world.slipped = false;
                if self.bug != Some(Bug::NoReplicaWait) {
                    for number in order.numbers() {
                        world.slots[number].at_replica = world.slots[number].at_target;
                    }
                }
            }
            Action::Fence => {
                let held = !world.slipped || self.bug == Some(Bug::HeldUnseen);
                self.send(&mut world, order);
                world.fresh = true;
                if !held {
                    ended = Ended::Slipped;
                }
            }
            Action::Observe { .. } => {
                if self.bug != Some(Bug::LeaveLingering) {
                    world.pending = None;
                }
                world.fresh = true;
                ended = Ended::Saw {
                    source: self.sight(&world, order, true),
                    target: self.sight(&world, order, false),
                };
            }
            Action::Detach => world.feed = false,
            Action::MarkImporting
            | Action::Snapshot
            | Action::Pause { .. }
            | Action::TakeOver { .. }
            | Action::Release
            | Action::CleanUp
            | Action::LiftPause
            | Action::Wipe
            | Action::ClearMarks
            | Action::GiveBack => self.send(&mut world, order),
        }
        Some((world, ended))
    }

    /// Why the executor cannot do what it is asked to.
    fn obstacle(self, world: &World, order: Order) -> Option<Why> {
        let effect = order.effect;
        let needs_source = !matches!(
            effect.action,
            Action::Wipe
                | Action::ClearMarks
                | Action::TakeOver { .. }
                | Action::Detach
                | Action::Observe { .. }
        );
        let needs_target = !matches!(
            effect.action,
            Action::Attach | Action::LiftPause | Action::CleanUp | Action::Detach | Action::Observe { .. }
        );
        let is_there =
            |side: Side, is_source, node: &NodeId| side.alive && node_id(is_source, side.node) == *node;
        if needs_source && !is_there(world.source, true, &effect.source) {
            return Some(Why::SourceChanged);
        }
        if needs_target && !is_there(world.target, false, &effect.target) {
            return Some(Why::TargetChanged);
        }
        let slots = || order.numbers().map(|number| &world.slots[number]);
        let needs_feed = matches!(
            effect.action,
            Action::Snapshot | Action::CatchUp { .. } | Action::Pause { .. } | Action::Drain { .. }
        );
        if needs_feed && !world.feed {
            return Some(Why::FeedLost);
        }
        let source_owns = || slots().all(|slot| slot.source_owns);
        let target_owns = || slots().any(|slot| slot.target_owns);
        match effect.action {
            Action::Check if !source_owns() || target_owns() => Some(Why::OwnerChanged),
            Action::Check if slots().any(|slot| slot.marked || slot.at_target != ABSENT) => Some(Why::Busy),
            Action::MarkImporting if target_owns() => Some(Why::OwnerChanged),
            Action::Fence if !source_owns() => Some(Why::OwnerChanged),
            Action::Wipe if target_owns() => Some(Why::OwnerChanged),
            Action::GiveBack if target_owns() => Some(Why::OwnerChanged),
            Action::Release if !slots().all(|slot| slot.target_owns) => Some(Why::OwnerChanged),
            Action::TakeOver { .. } if !world.fresh && !self.has_no_guard() => Some(Why::TooLate),
            // Without a pause the difference may be a write that came in since.
            Action::Compare { .. } if self.bug == Some(Bug::FenceUnstaged) => None,
            Action::Compare { .. } if slots().any(|slot| slot.at_source != slot.at_target) => {
                Some(if world.pause == Pause::Off { Why::TooSlow } else { Why::Differs })
            }
            _ => None,
        }
    }

    fn has_no_guard(self) -> bool {
        matches!(self.bug, Some(Bug::NoGuard | Bug::ResumeForward))
    }

    /// What is sent to the servers for an effect, if anything that lasts is.
    pub fn command(self, world: &World, order: Order) -> Option<Pending> {
        let command = match order.effect.action {
            Action::MarkImporting => Command::Mark,
            Action::ClearMarks => Command::Unmark,
            Action::Snapshot | Action::CatchUp { .. } | Action::Drain { .. } => Command::Stage,
            Action::Pause { .. } => Command::Pause,
            Action::LiftPause => Command::Unpause,
            Action::Fence if self.fence == SlotFence::Scripted => Command::FenceAndTakeOver,
            Action::Fence => Command::Fence,
            Action::TakeOver { .. } => Command::TakeOver,
            Action::Release if self.bug == Some(Bug::ReleaseEarly) => Command::Unpause,
            Action::Release => Command::Release,
            Action::GiveBack => Command::GiveBack,
            Action::Wipe => Command::Wipe,
            Action::CleanUp => Command::CleanUp,
            Action::Check
            | Action::Attach
            | Action::Compare { .. }
            | Action::Confirm { .. }
            | Action::Detach
            | Action::Observe { .. } => return None,
        };
        let mut values = [ABSENT; SLOTS];
        for number in order.numbers() {
            let slot = &world.slots[number];
            let is_due = order.effect.action == Action::Snapshot || world.touched & (1 << number) != 0;
            let is_due =
                is_due && (self.bug != Some(Bug::FenceUnstaged) || Some(number) == order.numbers().next());
            values[number] = if is_due { slot.at_source } else { slot.at_target };
        }
        Some(Pending { command, slots: order.slots, values })
    }

    /// Sends and executes.
    fn send(self, world: &mut World, order: Order) {
        let pending = self.command(world, order).expect("only asked for effects that send something");
        self.prepare(world, order);
        world.execute(pending, self.fence);
    }

    /// What goes before the command itself, and is known to be done when it is sent.
    fn prepare(self, world: &mut World, order: Order) {
        let unmarks = match order.effect.action {
            Action::Fence => self.fence == SlotFence::Bare && self.bug != Some(Bug::FenceMarked),
            Action::GiveBack => true,
            _ => false,
        };
        if unmarks {
            for number in order.numbers() {
                world.slots[number].marked = false;
            }
        }
    }

    /// Sends, and does not know what becomes of it: it may be executed later. Of two commands both may be on
    /// their way, or the first alone, or the second after the first is done.
    pub fn send_only(self, world: &World, order: Order) -> Vec<World> {
        let Some(pending) = self.command(world, order).filter(|_| self.obstacle(world, order).is_none())
        else {
            return Vec::new();
        };
        let mut prepared = *world;
        self.prepare(&mut prepared, order);
        let with = |world: World, pending| World { pending: Some(pending), ..world };
        let mut sent = vec![with(prepared, pending)];
        if pending.command == Command::FenceAndTakeOver {
            let first = Pending { command: Command::Fence, ..pending };
            sent.push(with(prepared, first));
            // The second is sent only if the first held.
            if !world.slipped {
                let mut fenced = prepared;
                fenced.execute(first, self.fence);
                sent.push(with(fenced, Pending { command: Command::TakeOver, ..pending }));
            }
        }
        sent
    }

    /// Executes for the first slot of the batch only. A fence is never done in part, but what is done with it
    /// may be.
    pub fn execute_partly(self, world: &World, order: Order) -> Option<World> {
        let is_divisible = matches!(
            order.effect.action,
            Action::MarkImporting
                | Action::Snapshot
                | Action::CatchUp { .. }
                | Action::Drain { .. }
                | Action::TakeOver { .. }
                | Action::CleanUp
                | Action::Wipe
                | Action::ClearMarks
        );
        let pending = self.command(world, order)?;
        let is_fence = pending.command == Command::FenceAndTakeOver && !world.slipped;
        let first = order.numbers().next()?;
        if !(is_divisible || is_fence) || order.numbers().count() < 2 || self.obstacle(world, order).is_some()
        {
            return None;
        }
        let mut changed = *world;
        self.send(&mut changed, order);
        let mut partly = *world;
        if is_fence {
            partly.execute(Pending { command: Command::Fence, ..pending }, self.fence);
        }
        partly.slots[first] = changed.slots[first];
        Some(partly)
    }

    fn sight(self, world: &World, order: Order, is_source: bool) -> Option<Sight> {
        let side = if is_source { world.source } else { world.target };
        let mut sight = Sight { node: side.node, process: side.process, claims: 0, keys: 0 };
        for number in order.numbers() {
            let slot = &world.slots[number];
            let (owns, held) = if is_source {
                (slot.source_owns, slot.at_source)
            } else {
                (slot.target_owns, slot.at_target)
            };
            sight.claims |= u8::from(owns) << number;
            sight.keys += u8::from(held != ABSENT);
        }
        side.alive.then_some(sight)
    }

    /// The event that shows the machine how an effect ended.
    pub fn event(self, world: &World, effect: &Effect, ended: Ended) -> Event {
        let done = |detail| Outcome::Done(detail);
        let outcome = match (ended, &effect.action) {
            (Ended::Unknown, Action::Fence) if self.bug == Some(Bug::HeldUnknown) => {
                done(Detail::Fenced { held: true })
            }
            (Ended::Unknown, _) => Outcome::Unknown { message: String::new() },
            (Ended::Refused(why), _) => Outcome::Refused(Reason::new(why, "")),
            (Ended::Slipped, _) => done(Detail::Fenced { held: false }),
            (Ended::Saw { source, target }, _) => done(Detail::Observed(Box::new(Observation {
                source: self.seen(true, source),
                target: self.seen(false, target),
                elsewhere: SlotSet::new(),
            }))),
            (Ended::Done, action) => done(match action {
                Action::Check => Detail::Checked {
                    source: process(true, world.source.process),
                    target: process(false, world.target.process),
                    pause_ms: 0,
                },
                Action::Snapshot | Action::Drain { .. } | Action::CleanUp | Action::Wipe => {
                    Detail::Moved { keys: 0, bytes: 0 }
                }
                Action::CatchUp { .. } => {
                    Detail::CaughtUp { keys: 0, bytes: 0, left: 0, drain_ms: 0, fixed_ms: 0, pause_ms: 0 }
                }
                Action::Pause { .. } => Detail::Paused {
                    takes_over: self.fence == SlotFence::Scripted && self.bug != Some(Bug::TakeOverUnsaid),
                },
                Action::Compare { .. } => Detail::Compared { keys: 0 },
                Action::Fence => Detail::Fenced { held: true },
                Action::Release | Action::LiftPause => Detail::Released { paused_ms: 0 },
                _ => Detail::Nothing,
            }),
        };
        Event::Finished { effect: effect.clone(), outcome }
    }

    fn seen(self, is_source: bool, sight: Option<Sight>) -> Seen {
        let Some(sight) = sight else { return Seen::Unreachable };
        let is_overlooked = self.bug == Some(Bug::OverlookTarget) && !is_source;
        let claims = if is_overlooked { 0 } else { sight.claims };
        Seen::Primary(Primary {
            node: node_id(is_source, sight.node),
            process: process(is_source, sight.process),
            claims: slot_set(numbers(claims)),
            keys: u64::from(sight.keys),
        })
    }

    /// The event with which a new process goes on, given what the journal says.
    pub fn resumed(self, phase: &Phase, in_flight: Option<&Effect>) -> Event {
        match (phase, in_flight) {
            (Phase::Fencing, Some(effect)) if self.bug == Some(Bug::ResumeForward) => Event::Finished {
                effect: effect.clone(),
                outcome: Outcome::Done(Detail::Fenced { held: true }),
            },
            _ => Event::Resume,
        }
    }
}
