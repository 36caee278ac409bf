//! Carries a plan out as `control::repair` does, and watches each command.

use std::ops::Range;

use whimbrel_core::node::NodeId;
use whimbrel_core::repair::plan::{Action, Change, Fate, Plan};
use whimbrel_core::slot::SlotSet;

use super::world::{KEYS, Mark, NOBODY, SLOTS, Shape, World};

/// A mistake in what carries plans out or makes them, for showing that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Marks are cleared last.
    MarksLast,
    /// What nobody owns goes to the node with the fewest keys.
    FewestKeys,
    /// Who has to stop claiming slots is not notified.
    NobodyYields,
    /// Nodes are emptied without moving what only they have.
    Discard,
    /// Keys are removed before the owner has them.
    RemoveFirst,
    /// What a stranger has replaces what the owner has.
    Overwrite,
    /// What the target of a move has by now stays, although the source has it as well.
    KeepTarget,
    /// Nothing notes that keys are being moved, while they look like copies.
    Unnoted,
    /// The last one of several slots is forgotten.
    ForgetSlot,
}

/// A plan in the model's terms does not name nodes but counts them.
pub fn number(id: &NodeId) -> usize {
    usize::from(id.as_str().as_bytes()[0] - b'0')
}

/// The slots of an action.
fn slots_of(slots: &SlotSet) -> Vec<usize> {
    slots.iter().map(|slot| usize::from(slot.number())).collect()
}

/// The keys that an action may remove from the only node that has them: for each slot and key.
pub type Discarded = [[bool; KEYS]; SLOTS];

/// What came of a plan.
pub struct Outcome {
    /// The world after each command, and by which action.
    pub reached: Vec<(World, usize)>,
    /// The last of them.
    pub end: World,
    /// What must not be, and in which action.
    pub wrong: Option<(String, usize)>,
}

/// Somebody who carries out a plan.
pub struct Carrier<'a> {
    shape: &'a Shape,
    bug: Option<Bug>,
    now: World,
    /// For each slot the values that clients found when it last had one owner.
    found: [Option<[u8; KEYS]>; SLOTS],
    discarded: Discarded,
    reached: Vec<(World, usize)>,
    /// The action under way.
    at: usize,
    /// Nodes that may have noticed during the action that a slot which they import is not claimed.
    tempted: Vec<(usize, usize)>,
    wrong: Option<(String, usize)>,
}

impl<'a> Carrier<'a> {
    /// Carries a plan out.
    pub fn carry_out(
        shape: &'a Shape,
        bug: Option<Bug>,
        world: World,
        plan: &Plan,
        discarded: Discarded,
    ) -> Outcome {
        let mut carrier = Carrier {
            shape,
            bug,
            now: world,
            found: [None; SLOTS],
            discarded,
            reached: Vec::new(),
            at: 0,
            tempted: Vec::new(),
            wrong: None,
        };
        carrier.watch_clients();
        for (at, action) in plan.actions.iter().enumerate() {
            carrier.at = at;
            carrier.tempted.clear();
            carrier.act(action);
            if carrier.wrong.is_some() {
                break;
            }
        }
        Outcome { reached: carrier.reached, end: carrier.now, wrong: carrier.wrong }
    }

    fn complain(&mut self, what: String) {
        self.wrong.get_or_insert((what, self.at));
    }

    /// One command, which is executed or not.
    fn command(&mut self, is_mark_cleared: bool, change: impl FnOnce(&Shape, &mut World)) {
        let mut next = self.now;
        change(self.shape, &mut next);
        self.watch_keys(&next);
        self.now = next;
        self.reached.push((next, self.at));
        self.watch_clients();
        if !is_mark_cleared {
            self.tempt();
        }
    }

    fn watch_keys(&mut self, next: &World) {
        for slot in 0..self.shape.slots {
            for key in 0..self.shape.keys {
                let is_lost = self.now.exists(self.shape, slot, key) && !next.exists(self.shape, slot, key);
                if is_lost && !self.discarded[slot][key] {
                    self.complain(format!("key {key} of slot {slot} is lost"));
                }
            }
        }
    }

    fn watch_clients(&mut self) {
        for slot in 0..self.shape.slots {
            let Some(owner) = self.now.sole_claimant(self.shape, slot) else { continue };
            let mut found = [0; KEYS];
            for (key, value) in found.iter_mut().enumerate() {
                *value = self.now.found_at(self.shape, owner, slot, key);
                let before = self.found[slot].map_or(0, |found| found[key]);
                if before != 0 && *value != before {
                    self.complain(format!("clients find something else under key {key} of slot {slot}"));
                }
            }
            self.found[slot] = Some(found);
        }
    }

    /// Since Valkey 8 a node takes what it imports as soon as the other end of its mark does not claim it. It
    /// may notice late, and it need not.
    fn tempt(&mut self) {
        for node in (0..self.shape.primaries).filter(|node| self.shape.answers(*node)) {
            for slot in 0..self.shape.slots {
                let Mark::From(other) = self.now.cells[node][slot].mark else {
                    self.tempted.retain(|tempted| *tempted != (node, slot));
                    continue;
                };
                let other = usize::from(other);
                if other != node
                    && self.shape.answers(other)
                    && !self.now.claims(other, slot)
                    && !self.tempted.contains(&(node, slot))
                {
                    self.tempted.push((node, slot));
                }
                if self.tempted.contains(&(node, slot)) && !self.now.claims(node, slot) {
                    let mut taken = self.now;
                    taken.take(self.shape, node, slot);
                    self.watch_keys(&taken);
                }
            }
        }
    }

    fn mark(&mut self, node: usize, slot: usize, mark: Mark) {
        if !self.shape.answers(node) {
            self.complain(format!("node {node} is asked for something and does not answer"));
        }
        if self.now.claims(node, slot) && matches!(mark, Mark::From(_)) {
            self.complain(format!("node {node} refuses to import what it owns"));
        }
        self.command(mark == Mark::None, |shape, world| world.set_mark(shape, node, slot, mark));
    }

    fn act(&mut self, action: &Action) {
        let mut slots = slots_of(&action.slots);
        if self.bug == Some(Bug::ForgetSlot) && slots.len() > 1 {
            slots.pop();
        }
        match &action.change {
            // Only for a primary that has failed, which none has in this model.
            Change::Remind { .. } => self.complain("an election is wanted".to_owned()),
            Change::ClearMarks { node } => {
                slots.into_iter().for_each(|slot| self.mark(number(node), slot, Mark::None));
            }
            Change::Yield { .. } if self.bug == Some(Bug::NobodyYields) => {}
            Change::Yield { node, .. } => {
                let node = number(node);
                slots.into_iter().for_each(|slot| self.command(false, |_, world| world.forget(node, slot)));
            }
            Change::Claim { node } => {
                let node = number(node);
                slots.into_iter().for_each(|slot| self.claim(node, slot));
            }
            Change::Announce { owner } => {
                let owner = number(owner);
                self.command(false, |shape, world| {
                    world.bump(shape, owner);
                    world.spread(shape, owner);
                });
                slots.into_iter().for_each(|slot| self.settle(owner, slot));
            }
            Change::Finish { source, target, mark_target } => {
                let (source, target) = (number(source), number(target));
                slots.into_iter().for_each(|slot| self.finish(source, target, *mark_target, slot));
            }
            Change::Empty { holder, owner, fate, .. } => {
                let (holder, owner) = (number(holder), number(owner));
                let rescue = *fate != Some(Fate::Discard);
                slots.into_iter().for_each(|slot| self.empty(holder, owner, rescue, slot));
            }
            Change::EmptyReplica { primary, replica } => {
                let (primary, replica) = (number(primary), number(replica));
                slots.into_iter().for_each(|slot| self.empty_replica(primary, replica, slot));
            }
        }
    }

    fn claim(&mut self, node: usize, slot: usize) {
        let has_keys = |node: usize| self.now.cells[node][slot].values != [0; KEYS];
        let answering = (0..self.shape.primaries).filter(|node| self.shape.answers(*node));
        if answering.into_iter().any(has_keys) && !has_keys(node) {
            self.complain(format!("slot {slot} goes to node {node}, which has no keys of it"));
        }
        self.command(false, |shape, world| world.take(shape, node, slot));
        self.settle(node, slot);
    }

    /// Those who do not believe the owner are notified one by one.
    fn settle(&mut self, owner: usize, slot: usize) {
        for node in (0..self.shape.primaries).filter(|node| self.shape.answers(*node)) {
            if usize::from(self.now.cells[node][slot].owner) != owner && !self.now.claims(node, slot) {
                self.command(false, |_, world| world.cells[node][slot].owner = owner as u8);
            }
        }
        let believes = |node: usize| usize::from(self.now.cells[node][slot].owner) == owner;
        if !self.shape.nodes().filter(|node| self.shape.answers(*node)).all(believes) {
            self.complain(format!("not every node learns that node {owner} owns slot {slot}"));
        }
    }

    fn finish(&mut self, source: usize, target: usize, mark_target: bool, slot: usize) {
        if mark_target {
            self.mark(target, slot, Mark::From(source as u8));
        }
        for key in 0..self.shape.keys {
            let value = self.now.cells[source][slot].values[key];
            if value == 0 {
                continue;
            }
            if self.now.cells[target][slot].values[key] == 0 || self.bug != Some(Bug::KeepTarget) {
                self.command(false, |shape, world| world.set_value(shape, target, slot, key, value));
            }
            self.command(false, |shape, world| world.set_value(shape, source, slot, key, 0));
        }
        self.command(false, |shape, world| world.take(shape, target, slot));
        if self.now.claims(source, slot) {
            self.complain(format!("node {source} still claims slot {slot}"));
        }
        self.command(false, |shape, world| {
            world.cells[source][slot].owner = target as u8;
            world.set_mark(shape, source, slot, Mark::None);
        });
    }

    fn empty(&mut self, holder: usize, owner: usize, rescue: bool, slot: usize) {
        let is_noted = rescue && self.bug != Some(Bug::Unnoted);
        if is_noted {
            self.command(false, |_, world| world.cells[owner][slot].noted = true);
        }
        self.mark(holder, slot, Mark::From(owner as u8));
        // Keys are handled in batches: all in one, and again each in its own.
        let (now, found) = (self.now, self.found);
        self.empty_batch(holder, owner, rescue, slot, 0..self.shape.keys);
        if self.shape.keys > 1 {
            (self.now, self.found) = (now, found);
            (0..self.shape.keys).for_each(|key| self.empty_batch(holder, owner, rescue, slot, key..key + 1));
        }
        self.mark(holder, slot, Mark::None);
        if is_noted {
            self.command(true, |_, world| world.cells[owner][slot].noted = false);
        }
    }

    fn empty_batch(&mut self, holder: usize, owner: usize, rescue: bool, slot: usize, keys: Range<usize>) {
        let values = self.now.cells[holder][slot].values;
        let keys: Vec<usize> = keys.filter(|key| values[*key] != 0).collect();
        let remove = |carrier: &mut Self| {
            for key in &keys {
                carrier.command(false, |shape, world| world.set_value(shape, holder, slot, *key, 0));
            }
        };
        if self.bug == Some(Bug::RemoveFirst) {
            remove(self);
        }
        if rescue && !keys.is_empty() && !self.now.claims(owner, slot) {
            self.complain(format!("node {owner} refuses keys of slot {slot}"));
        }
        for key in keys.iter().copied().filter(|_| rescue) {
            if self.now.cells[owner][slot].values[key] == 0 || self.bug == Some(Bug::Overwrite) {
                self.command(false, |shape, world| world.set_value(shape, owner, slot, key, values[key]));
            }
        }
        if self.bug != Some(Bug::RemoveFirst) {
            remove(self);
        }
    }

    /// Each key is written and removed on the primary, which the replica repeats.
    fn empty_replica(&mut self, primary: usize, replica: usize, slot: usize) {
        let owner = self.now.cells[primary][slot].owner;
        if owner == NOBODY {
            return;
        }
        self.mark(primary, slot, Mark::From(owner));
        for key in 0..self.shape.keys {
            if self.now.cells[primary][slot].values[key] == 0 {
                self.command(false, |_, world| world.cells[replica][slot].values[key] = 0);
            }
        }
        self.mark(primary, slot, Mark::None);
    }
}
