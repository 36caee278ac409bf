//! What to do about what the nodes say: a pure function.

use std::collections::BTreeMap;

use super::plan::{Action, Change, Evidence, Fate, Left, Obstacle, Plan, Why};
use crate::cluster::{Cluster, OutdatedReplicas, State};
use crate::node::NodeId;
use crate::slot::{Slot, SlotSet};

/// Slots that a primary must have for [`Change::Remind`] to work: a replica must claim some of them with one
/// left out.
const REMINDED_SLOTS_MIN: usize = 2;

/// Decides for each of `slots` which node owns it or shall own it, and what has to be done about marks and
/// keys in it.
///
/// Slots whose owner does not answer are left alone, and so are keys of nodes that use several databases.
pub fn decide(cluster: &Cluster<'_>, slots: &SlotSet) -> Plan {
    let mut draft = Draft::new(cluster, slots);
    for slot in slots {
        draft.slot(slot);
    }
    draft.replicas();
    draft.elections();
    draft.into_plan()
}

/// What becomes of the keys that only the holder has.
///
/// An importing node whose slot's owner is not giving it away answers no client in that slot. So what only
/// the node has was deleted or has expired at the owner since it was copied, unless the owner has lost its
/// mark in the middle of a migration by `SETSLOT`. In such a migration keys are moved, not copied: the two
/// hold hardly a key in common.
pub fn fate(copied: bool, evidence: Evidence) -> Fate {
    if copied && evidence.both > 0 && evidence.both >= evidence.only { Fate::Discard } else { Fate::Move }
}

/// Divides an action about copies. In `moving`, slots in which an earlier repair was interrupted while it
/// moved keys, the mark is that repair's, and what the node holds are no copies. `keys` counts what it holds.
pub fn divide(action: Action, moving: &SlotSet, keys: impl Fn(&SlotSet) -> u64) -> Vec<Action> {
    let Change::Empty { holder, owner, copied: true, fate: None } = &action.change else {
        return vec![action];
    };
    let (holder, owner) = (holder.clone(), owner.clone());
    let moving = action.slots.intersection(moving);
    let copies = action.slots.difference(&moving);
    let stray = Change::Empty { holder, owner, copied: false, fate: None };
    let parts = [(action.change, copies, action.why), (stray, moving, Why::ForeignKeys)];
    let parts = parts.into_iter().filter(|(_, slots, _)| !slots.is_empty());
    let part = |(change, slots, why)| Action { keys: keys(&slots), change, slots, why, evidence: None };
    parts.map(part).collect()
}

/// A primary that answered, with what is asked of it for every slot.
struct Primary<'a> {
    id: &'a NodeId,
    state: State<'a>,
    importing: BTreeMap<Slot, &'a NodeId>,
    migrating: BTreeMap<Slot, &'a NodeId>,
}

impl Primary<'_> {
    fn keys(&self, slot: Slot) -> u64 {
        self.state.counts.map_or(0, |counts| u64::from(counts.of(slot)))
    }

    /// Whether keys of a slot may be among those that it hides.
    fn may_hide(&self, slot: Slot) -> bool {
        self.state.hidden_keys > 0 && !self.importing.contains_key(&slot) && !self.state.slots.contains(slot)
    }
}

/// The owner of a slot, by decision.
enum Owner<'a> {
    /// This primary, already: its index.
    Is(usize),
    /// This primary, by a claim that is part of the plan.
    Becomes(usize),
    /// A node that does not answer.
    Silent(&'a NodeId),
    /// There is no primary to give it to.
    Nobody,
}

/// What the owner's own mark leads to.
enum Moving {
    /// The owner stays the owner.
    Stays,
    /// The slot is moved to this primary.
    To(usize),
    /// It was being moved, and nothing can be done about it.
    Left,
}

struct Draft<'a> {
    cluster: &'a Cluster<'a>,
    /// The slots to look at.
    slots: &'a SlotSet,
    primaries: Vec<Primary<'a>>,
    /// Slots and keys of each change with its reason.
    changes: BTreeMap<(Change, Why), (SlotSet, u64)>,
    left: BTreeMap<Obstacle, SlotSet>,
    /// How many slots each primary has, with those that it is given.
    load: Vec<usize>,
}

impl<'a> Draft<'a> {
    fn new(cluster: &'a Cluster<'a>, slots: &'a SlotSet) -> Draft<'a> {
        let primaries: Vec<Primary<'a>> = cluster
            .answering_primaries()
            .map(|(id, state)| Primary {
                id,
                state,
                importing: state.importing.iter().map(|(slot, id)| (*slot, id)).collect(),
                migrating: state.migrating.iter().map(|(slot, id)| (*slot, id)).collect(),
            })
            .collect();
        let load = primaries.iter().map(|p| p.state.slots.len()).collect();
        Draft { cluster, slots, primaries, changes: BTreeMap::new(), left: BTreeMap::new(), load }
    }

    fn add(&mut self, change: Change, slot: Slot, keys: u64, why: Why) {
        let (slots, sum) = self.changes.entry((change, why)).or_default();
        slots.insert(slot);
        *sum += keys;
    }

    fn leave(&mut self, slot: Slot, obstacle: Obstacle) {
        self.left.entry(obstacle).or_default().insert(slot);
    }

    fn slot(&mut self, slot: Slot) {
        let owner = match self.owner(slot) {
            Owner::Is(owner) => {
                self.announce(slot, owner);
                owner
            }
            Owner::Becomes(owner) => {
                self.load[owner] += 1;
                owner
            }
            Owner::Silent(id) => {
                let marked = self.primaries.iter().any(|p| {
                    p.importing.contains_key(&slot) || p.migrating.contains_key(&slot) || p.keys(slot) > 0
                });
                if marked {
                    self.leave(slot, Obstacle::SilentOwner(id.clone()));
                }
                return;
            }
            Owner::Nobody => {
                self.leave(slot, Obstacle::NoPrimary);
                return;
            }
        };
        let moving = self.source_mark(slot, owner);
        if matches!(moving, Moving::Left) {
            return;
        }
        for node in 0..self.primaries.len() {
            if !matches!(moving, Moving::To(target) if target == node) {
                self.other_marks(slot, owner, &moving, node);
            }
        }
    }

    /// Whose slot it is. If that has to be changed first, the change is added.
    fn owner(&mut self, slot: Slot) -> Owner<'a> {
        let claimants: Vec<usize> =
            (0..self.primaries.len()).filter(|i| self.primaries[*i].state.slots.contains(slot)).collect();
        let named = self.named(slot);
        // A node that most take for the owner and that cannot be asked may come back, or be failed over.
        let silent = named.first().filter(|(id, _)| self.cluster.node(id).is_none_or(|n| n.state.is_none()));
        match (&claimants[..], silent) {
            ([owner], None) => Owner::Is(*owner),
            ([owner], Some((id, votes))) => {
                let agreeing = named.iter().find(|(id, _)| *id == self.primaries[*owner].id);
                // A claim that is newer than the others' view of the silent node wins by itself.
                if agreeing.is_some_and(|(_, agreeing)| agreeing >= votes) {
                    Owner::Is(*owner)
                } else {
                    Owner::Silent(id)
                }
            }
            ([], Some((id, _))) => Owner::Silent(id),
            ([], None) => self.new_owner(slot, &named),
            (_, _) => {
                // Ties cannot last: servers with the same epoch settle that themselves.
                let owner = claimants
                    .iter()
                    .copied()
                    .max_by_key(|i| (self.primaries[*i].state.config_epoch, self.primaries[*i].keys(slot)))
                    .unwrap_or(claimants[0]);
                for other in claimants.into_iter().filter(|other| *other != owner) {
                    let [node, owner] = [other, owner].map(|i| self.primaries[i].id.clone());
                    self.add(Change::Yield { node, owner }, slot, 0, Why::OlderClaim);
                }
                Owner::Is(owner)
            }
        }
    }

    /// Which nodes the answering nodes take for the owner, the most named first.
    fn named(&self, slot: Slot) -> Vec<(&'a NodeId, usize)> {
        let mut votes: BTreeMap<&'a NodeId, usize> = BTreeMap::new();
        for id in self.cluster.states().filter_map(|state| state.owners.of(slot)) {
            *votes.entry(id).or_default() += 1;
        }
        let mut votes: Vec<(&NodeId, usize)> = votes.into_iter().collect();
        votes.sort_by_key(|(_, votes)| std::cmp::Reverse(*votes));
        votes
    }

    fn index(&self, id: &NodeId) -> Option<usize> {
        self.primaries.iter().position(|p| p.id == id)
    }

    /// Which node shall own a slot that no node claims. The documentation of `whimbrel repair` has these
    /// rules.
    fn new_owner(&mut self, slot: Slot, named: &[(&'a NodeId, usize)]) -> Owner<'a> {
        let holds = |i: &usize| self.primaries[*i].keys(slot) > 0 || self.primaries[*i].may_hide(slot);
        let holders: Vec<usize> = (0..self.primaries.len()).filter(holds).collect();
        let importer = (0..self.primaries.len()).find(|i| self.primaries[*i].importing.contains_key(&slot));
        let source =
            importer.and_then(|i| self.index(self.primaries[i].importing[&slot]).filter(|s| *s != i));
        // In a small cluster the two ends of a broken move may get as many votes each. The keys that were
        // there before it began are at the source.
        let most_votes = named.iter().map(|(_, votes)| *votes).max();
        let mut last = None;
        for (id, _) in named.iter().filter(|(_, votes)| Some(*votes) == most_votes) {
            let candidate = self.index(id);
            last = if candidate.is_some() && candidate == source { candidate } else { last.or(candidate) };
        }
        let fewest = (0..self.primaries.len()).min_by_key(|i| (self.load[*i], *i));
        let among = |candidate: Option<usize>| candidate.filter(|i| holders.contains(i));
        let (owner, why) = match &holders[..] {
            [holder] if self.primaries[*holder].may_hide(slot) => (Some(*holder), Why::MayHideThem),
            [holder] => (Some(*holder), Why::OnlyHolder),
            [] => match last.or(source).or(importer) {
                Some(owner) => (Some(owner), Why::LastOwner),
                None => (fewest, Why::FewestSlots),
            },
            _ if among(last).is_some() => (last, Why::SeenAsOwner),
            _ if among(source).is_some() => (source, Why::WasSource),
            _ if among(importer).is_some() => (importer, Why::WasTarget),
            _ => {
                let may_hold = |it: &Primary<'_>| if it.may_hide(slot) { it.state.hidden_keys } else { 0 };
                let held = |i: &usize| (self.primaries[*i].keys(slot), may_hold(&self.primaries[*i]));
                let most = holders.iter().copied().max_by_key(held);
                (most, Why::MostKeys)
            }
        };
        let Some(owner) = owner else { return Owner::Nobody };
        let change = Change::Claim { node: self.primaries[owner].id.clone() };
        self.add(change, slot, 0, why);
        Owner::Becomes(owner)
    }

    /// Nodes that take another one for the owner than the owner itself, or take themselves for it.
    fn announce(&mut self, slot: Slot, owner: usize) {
        let id = self.primaries[owner].id;
        let mistaken = self.cluster.states().any(|state| state.owners.of(slot) != Some(id));
        if mistaken {
            let change = Change::Announce { owner: id.clone() };
            self.add(change, slot, 0, Why::Mistaken);
        }
    }

    /// What the owner's own mark leads to.
    fn source_mark(&mut self, slot: Slot, owner: usize) -> Moving {
        let source = &self.primaries[owner];
        // A claim clears the mark of the node that makes it: it was not the owner.
        let mark = source.migrating.get(&slot).filter(|_| source.state.slots.contains(slot));
        let Some(to) = mark.copied() else { return Moving::Stays };
        let (id, keys) = (source.id.clone(), source.keys(slot));
        let Some(target) = self.index(to).filter(|target| *target != owner) else {
            if self.cluster.node(to).is_some_and(|n| n.state.is_none()) {
                self.leave(slot, Obstacle::SilentTarget(to.clone()));
            } else {
                self.add(Change::ClearMarks { node: id }, slot, 0, Why::TowardsNoPrimary(to.clone()));
            }
            return Moving::Stays;
        };
        // A target that claims the slot as well forgets its mark when it yields.
        let importing = self.primaries[target].importing.get(&slot) == Some(&&id)
            && !self.primaries[target].state.slots.contains(slot);
        let arrived = self.primaries[target].keys(slot);
        let may_hide = self.primaries[target].may_hide(slot);
        if arrived == 0 && !may_hide {
            let why = if importing { Why::NothingMoved } else { Why::NobodyImports };
            self.add(Change::ClearMarks { node: id }, slot, 0, why);
            // Its own mark is looked at with all others.
            return Moving::Stays;
        }
        if let Some(obstacle) = self.several_databases(&[owner, target]) {
            self.leave(slot, obstacle);
            return Moving::Left;
        }
        let target_id = self.primaries[target].id.clone();
        if !importing && self.primaries[target].importing.contains_key(&slot) {
            let change = Change::ClearMarks { node: target_id.clone() };
            self.add(change, slot, 0, Why::ImportsFromStranger);
        }
        let change = Change::Finish { source: id, target: target_id, mark_target: !importing };
        self.add(change, slot, keys, if may_hide { Why::MayHaveArrived } else { Why::Interrupted });
        Moving::To(target)
    }

    /// Marks and keys of a node which the slot is not being moved to.
    fn other_marks(&mut self, slot: Slot, owner: usize, moving: &Moving, node: usize) {
        let it = &self.primaries[node];
        let keys = it.keys(slot);
        let (importing, migrating) = (it.importing.get(&slot).copied(), it.migrating.get(&slot).copied());
        let may_hide = it.may_hide(slot);
        if keys == 0 && importing.is_none() && migrating.is_none() && !may_hide {
            return;
        }
        let hidden = it.state.hidden_keys;
        let (id, claims) = (it.id.clone(), it.state.slots.contains(slot));
        // By then the slot has moved.
        let final_owner = match moving {
            Moving::To(target) => self.primaries[*target].id.clone(),
            Moving::Stays | Moving::Left => self.primaries[owner].id.clone(),
        };
        if may_hide && node != owner {
            let (holder, owner) = (id.clone(), final_owner.clone());
            let change = Change::Empty { holder, owner, copied: false, fate: None };
            self.add(change, slot, 0, Why::HiddenKeys { keys: hidden });
        }
        if node == owner {
            if importing.is_some() {
                self.add(Change::ClearMarks { node: id }, slot, 0, Why::ImportsItsOwn);
            }
            return;
        }
        if migrating.is_some() {
            self.add(Change::ClearMarks { node: id.clone() }, slot, 0, Why::GivesAwayForeign);
        }
        let owner_id = self.primaries[owner].id.clone();
        let stays = matches!(moving, Moving::Stays);
        // Clients were sent to the node that claims the slot: what such a node holds are no copies.
        let from_owner = importing == Some(&owner_id) && !claims;
        // If only the plan makes a node the owner, what it was doing before is unknown.
        let owner_gives_it_away = self.primaries[owner].migrating.get(&slot) == Some(&&id);
        // If it holds copies, its mark is cleared once they are gone: until then it shows what they are. But
        // a mark that points to a node without a claim, or to a node that is to give it up, is a danger to
        // the node that claims the slot.
        let is_claimed = self.primaries[owner].state.slots.contains(slot);
        if importing.is_some() && !(keys > 0 && from_owner && is_claimed && stays) {
            let why = if from_owner { Why::ImportsUngiven } else { Why::ImportsFromStranger };
            self.add(Change::ClearMarks { node: id.clone() }, slot, 0, why);
        }
        if keys == 0 {
            return;
        }
        if let Some(obstacle) = self.several_databases(&[owner, node]) {
            self.leave(slot, obstacle);
            return;
        }
        let copied = from_owner && !owner_gives_it_away && stays;
        let why = if copied { Why::Copies } else { Why::ForeignKeys };
        let change = Change::Empty { holder: id, owner: final_owner, copied, fate: None };
        self.add(change, slot, keys, why);
    }

    /// Keys are only handled in database 0.
    fn several_databases(&self, nodes: &[usize]) -> Option<Obstacle> {
        let node = nodes.iter().find(|i| self.primaries[**i].state.keys_elsewhere > 0)?;
        Some(Obstacle::OtherDatabases(self.primaries[*node].id.clone()))
    }

    /// Keys of replicas that their primaries do not have, in slots that these do not own.
    fn replicas(&mut self) {
        let cluster = self.cluster;
        for replica in cluster.nodes.iter().filter(|n| !n.is_primary()) {
            let Some(primary) = replica.primary().and_then(|id| self.index(id)) else { continue };
            for slot in &cluster.stray_marks(replica).intersection(self.slots) {
                // What clears a mark of the primary is repeated to its replicas, even if the primary has
                // none.
                let change = Change::ClearMarks { node: self.primaries[primary].id.clone() };
                self.add(change, slot, 0, Why::ReplicaKeptMarks);
            }
            let Some(counts) = replica.state.and_then(|s| s.counts) else { continue };
            for slot in self.slots {
                if counts.of(slot) > 0 && self.is_foreign(primary, slot) {
                    let change = Change::EmptyReplica {
                        primary: self.primaries[primary].id.clone(),
                        replica: replica.id.clone(),
                    };
                    self.add(change, slot, u64::from(counts.of(slot)), Why::ReplicaKeptKeys);
                }
            }
        }
    }

    /// Whether a primary neither has a slot nor gets it, nor holds keys in it. What it holds itself is
    /// removed there, and so from its replicas.
    fn is_foreign(&self, primary: usize, slot: Slot) -> bool {
        let it = &self.primaries[primary];
        let owned_soon = || {
            self.changes.iter().any(|((change, _), (slots, _))| {
                matches!(change, Change::Claim { node, .. } if node == it.id) && slots.contains(slot)
            })
        };
        !it.state.slots.contains(slot)
            && !it.importing.contains_key(&slot)
            && it.keys(slot) == 0
            && !owned_soon()
    }

    /// Replicas that cannot be elected since they have not heard of their primary's last claim.
    fn elections(&mut self) {
        for OutdatedReplicas { primary, epoch, replicas } in self.cluster.outdated_replicas() {
            let knows = |p: &&Primary<'_>| p.state.failed.contains(&(primary.clone(), epoch));
            let Some(other) = self.primaries.iter().find(knows) else { continue };
            let owned: SlotSet =
                self.slots.iter().filter(|slot| other.state.owners.of(*slot) == Some(primary)).collect();
            let corrected = self.primaries.iter().filter(knows).any(|p| p.state.corrects_replicas);
            if !corrected || owned.len() < REMINDED_SLOTS_MIN {
                let offset =
                    |id: &&&NodeId| self.cluster.node(id).and_then(|n| n.state).map(|s| s.repl_offset);
                let Some(best) = replicas.iter().max_by_key(offset) else { continue };
                let obstacle = Obstacle::NoElection { primary: primary.clone(), best: NodeId::clone(best) };
                self.left.entry(obstacle).or_default().extend(owned.iter());
                continue;
            }
            let replicas = replicas.into_iter().cloned().collect();
            let change = Change::Remind { primary: primary.clone(), epoch, replicas };
            self.changes.insert((change, Why::NoVotes), (owned, 0));
        }
    }

    fn into_plan(self) -> Plan {
        let silent = self.cluster.nodes.iter().filter(|n| n.state.is_none());
        let silent = silent.map(|n| (Obstacle::Silent(n.id.clone()), SlotSet::new()));
        let left =
            self.left.into_iter().chain(silent).map(|(obstacle, slots)| Left { obstacle, slots }).collect();
        let actions = self
            .changes
            .into_iter()
            .map(|((change, why), (slots, keys))| Action { change, slots, keys, why, evidence: None })
            .collect();
        Plan { actions, left }
    }
}

#[cfg(test)]
mod tests;
