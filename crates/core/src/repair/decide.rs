//! What to do about what the nodes say: a pure function.

use std::collections::BTreeMap;

use super::plan::{Action, Change, Evidence, Fate, Left, Obstacle, Plan, Why};
use crate::cluster::{Cluster, OutdatedReplicas, State};
use crate::node::NodeId;
use crate::slot::{Slot, SlotSet};

/// Slots that a primary must have for [`Change::Remind`] to work: a replica must claim some of them with one
/// left out.
const REMINDED_SLOTS_MIN: usize = 2;

/// Decides for each of `slots` who owns it or shall own it, and what has to be done about marks and keys in
/// it.
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
}

/// Who owns a slot, by decision.
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
    /// Where to look.
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

    /// Whose slot it is. Where that has to be changed first, the change is added.
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

    /// Whom the nodes that answer take for the owner, the one that most name first.
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
        let holders: Vec<usize> =
            (0..self.primaries.len()).filter(|i| self.primaries[*i].keys(slot) > 0).collect();
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
            [holder] => (Some(*holder), Why::OnlyHolder),
            [] => match last.or(source).or(importer) {
                Some(owner) => (Some(owner), Why::LastOwner),
                None => (fewest, Why::FewestSlots),
            },
            _ if among(last).is_some() => (last, Why::SeenAsOwner),
            _ if among(source).is_some() => (source, Why::WasSource),
            _ if among(importer).is_some() => (importer, Why::WasTarget),
            _ => {
                let most = holders.iter().copied().max_by_key(|i| self.primaries[*i].keys(slot));
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
        if arrived == 0 {
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
        self.add(change, slot, keys, Why::Interrupted);
        Moving::To(target)
    }

    /// Marks and keys of a node which the slot is not being moved to.
    fn other_marks(&mut self, slot: Slot, owner: usize, moving: &Moving, node: usize) {
        let it = &self.primaries[node];
        let keys = it.keys(slot);
        let (importing, migrating) = (it.importing.get(&slot).copied(), it.migrating.get(&slot).copied());
        if keys == 0 && importing.is_none() && migrating.is_none() {
            return;
        }
        let (id, claims) = (it.id.clone(), it.state.slots.contains(slot));
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
        // Clients were sent to who claims the slot: what such a node holds are no copies.
        let from_owner = importing == Some(&owner_id) && !claims;
        // Of an owner that only the plan makes the owner, nobody knows what it was doing before.
        let owner_gives_it_away = self.primaries[owner].migrating.get(&slot) == Some(&&id);
        // Where it holds copies its mark is cleared once they are gone: until then it tells what they are.
        // But a mark that points to a node without a claim, or to one that is to give it up, is a danger to
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
        // By then the slot has moved.
        let owner = match moving {
            Moving::To(target) => self.primaries[*target].id.clone(),
            Moving::Stays | Moving::Left => owner_id,
        };
        let change = Change::Empty { holder: id, owner, copied, fate: None };
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
                // What clears a mark of the primary is repeated to its replicas, also where the primary has
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
mod tests {
    use super::*;
    use crate::cluster::{KeyCounts, Node, Owners, Role};

    const SLOT: Slot = Slot::MIN;

    /// The id of a node.
    fn id(node: usize) -> NodeId {
        node.to_string().repeat(40).parse().expect("an id")
    }

    /// The slots of a primary.
    fn third(node: usize) -> SlotSet {
        ["0-5460", "5461-10922", "10923-16383"][node].parse().expect("slots")
    }

    /// A node, with what it says.
    struct Said {
        id: NodeId,
        primary: Option<NodeId>,
        answers: bool,
        config_epoch: u64,
        slots: SlotSet,
        importing: Vec<(Slot, NodeId)>,
        migrating: Vec<(Slot, NodeId)>,
        owners: Owners,
        failed: Vec<(NodeId, u64)>,
        counts: KeyCounts,
        keys_elsewhere: u64,
        corrects_replicas: bool,
    }

    impl Said {
        fn role(&self) -> Role {
            if self.primary.is_some() { Role::Replica } else { Role::Primary }
        }

        fn node(&self) -> Node<'_> {
            let state = State {
                role: self.role(),
                primary: self.primary.as_ref(),
                config_epoch: self.config_epoch,
                slots: &self.slots,
                importing: &self.importing,
                migrating: &self.migrating,
                owners: &self.owners,
                failed: &self.failed,
                counts: Some(&self.counts),
                keys_elsewhere: self.keys_elsewhere,
                repl_offset: 0,
                corrects_replicas: self.corrects_replicas,
            };
            Node {
                id: &self.id,
                told_role: self.role(),
                told_primary: self.primary.as_ref(),
                state: self.answers.then_some(state),
            }
        }
    }

    /// Primaries 0 to 2, each with a third of the slots, and replicas 3 to 5 of them. They hold no keys.
    struct Scene {
        nodes: Vec<Said>,
    }

    impl Scene {
        fn new() -> Scene {
            let owned: Vec<(NodeId, SlotSet)> = (0..3).map(|n| (id(n), third(n))).collect();
            let said = |node: usize| Said {
                id: id(node),
                primary: (node >= 3).then(|| id(node - 3)),
                answers: true,
                config_epoch: (node % 3) as u64 + 1,
                slots: if node < 3 { third(node) } else { SlotSet::new() },
                importing: Vec::new(),
                migrating: Vec::new(),
                owners: Owners::new(owned.clone()),
                failed: Vec::new(),
                counts: KeyCounts::default(),
                keys_elsewhere: 0,
                corrects_replicas: true,
            };
            Scene { nodes: (0..6).map(said).collect() }
        }

        fn plan(&self) -> Plan {
            let nodes = self.nodes.iter().map(Said::node).collect();
            decide(&Cluster { nodes }, &SlotSet::full())
        }

        /// Why something is left alone.
        fn obstacles(&self) -> Vec<Obstacle> {
            self.plan().left.into_iter().map(|left| left.obstacle).collect()
        }

        fn keys(mut self, node: usize, keys: u32) -> Scene {
            self.nodes[node].counts.set(SLOT, keys);
            self
        }

        fn importing(mut self, node: usize, from: usize) -> Scene {
            self.nodes[node].importing.push((SLOT, id(from)));
            self
        }

        fn migrating(mut self, node: usize, to: usize) -> Scene {
            self.nodes[node].migrating.push((SLOT, id(to)));
            self
        }

        /// In the view of `node` the slot belongs to `owner`; if that is the node itself, it claims it.
        fn sees(mut self, node: usize, owner: Option<usize>) -> Scene {
            let slots = |n| {
                let mut slots = third(n);
                slots.remove(SLOT);
                slots.extend((owner == Some(n)).then_some(SLOT));
                (id(n), slots)
            };
            let state = &mut self.nodes[node];
            state.owners = Owners::new((0..3).map(slots));
            if node < 3 {
                state.slots = slots(node).1;
            }
            self
        }

        fn all_see(self, owner: Option<usize>) -> Scene {
            (0..6).fold(self, |scene, node| scene.sees(node, owner))
        }

        fn silent(mut self, node: usize) -> Scene {
            self.nodes[node].answers = false;
            self
        }

        /// The changes, each of which must be about the one slot.
        fn changes(&self) -> Vec<Change> {
            let actions = self.plan().actions;
            actions
                .into_iter()
                .map(|action| {
                    assert_eq!(action.slots, SlotSet::from_iter([SLOT]), "{:?}", action.change);
                    action.change
                })
                .collect()
        }
    }

    fn clear(node: usize) -> Change {
        Change::ClearMarks { node: id(node) }
    }

    fn claim(node: usize) -> Change {
        Change::Claim { node: id(node) }
    }

    fn empty(holder: usize, owner: usize, copied: bool) -> Change {
        Change::Empty { holder: id(holder), owner: id(owner), copied, fate: None }
    }

    #[test]
    fn nothing_is_done_to_a_healthy_cluster() {
        let scene = Scene::new().keys(0, 5).keys(3, 5);
        assert_eq!(scene.plan(), Plan::default());
    }

    #[test]
    fn open_slots_are_closed_or_finished() {
        let pair = || Scene::new().migrating(0, 1).importing(1, 0).keys(0, 5);
        assert_eq!(pair().changes(), [clear(0), clear(1)]);
        let finish = |mark_target| Change::Finish { source: id(0), target: id(1), mark_target };
        assert_eq!(pair().keys(1, 2).changes(), [finish(false)]);
        assert_eq!(pair().keys(0, 0).keys(1, 2).changes(), [finish(false)]);
        // One side only.
        let source_only = || Scene::new().migrating(0, 1).keys(0, 5);
        assert_eq!(source_only().changes(), [clear(0)]);
        assert_eq!(source_only().keys(1, 2).changes(), [finish(true)]);
        let target_only = || Scene::new().importing(1, 0).keys(0, 5);
        assert_eq!(target_only().changes(), [clear(1)]);
        assert_eq!(target_only().keys(1, 2).changes(), [empty(1, 0, true)]);
        // The marks do not meet.
        assert_eq!(Scene::new().migrating(0, 1).importing(2, 0).changes(), [clear(0), clear(2)]);
        assert_eq!(
            Scene::new().migrating(0, 1).importing(2, 0).keys(2, 1).changes(),
            [clear(0), empty(2, 0, true)]
        );
        assert_eq!(
            Scene::new().migrating(0, 1).importing(1, 2).keys(1, 1).changes(),
            [clear(1), finish(true)]
        );
        assert_eq!(Scene::new().importing(1, 2).changes(), [clear(1)]);
        assert_eq!(Scene::new().importing(1, 2).keys(1, 1).changes(), [clear(1), empty(1, 0, false)]);
        // A third node imports as well, from who is about to lose the slot: it must not take it by itself.
        assert_eq!(
            pair().keys(1, 2).importing(2, 0).keys(2, 1).changes(),
            [clear(2), finish(false), empty(2, 1, false)]
        );
        // Marks that the wrong node has.
        assert_eq!(Scene::new().migrating(2, 1).changes(), [clear(2)]);
        assert_eq!(Scene::new().importing(0, 1).changes(), [clear(0)]);
        // To a replica, and to the node itself.
        assert_eq!(Scene::new().migrating(0, 4).changes(), [clear(0)]);
        assert_eq!(Scene::new().migrating(0, 0).changes(), [clear(0)]);
    }

    #[test]
    fn keys_that_do_not_belong_are_found() {
        assert_eq!(Scene::new().keys(2, 1).changes(), [empty(2, 0, false)]);
        let replica = Change::EmptyReplica { primary: id(1), replica: id(4) };
        assert_eq!(Scene::new().keys(4, 1).changes(), [replica]);
        // What the primary has is removed there, and so from its replica.
        assert_eq!(Scene::new().keys(1, 1).keys(4, 1).changes(), [empty(1, 0, false)]);
    }

    #[test]
    fn a_slot_without_owner_goes_where_the_rules_say() {
        let unowned = || Scene::new().all_see(None);
        // All lie the same: the first with the fewest slots. Node 0 and 2 have 5460 and 5461 then.
        assert_eq!(unowned().changes(), [claim(0)]);
        assert_eq!(unowned().keys(2, 3).changes(), [claim(2)]);
        let last_was_0 = || Scene::new().sees(0, None);
        assert_eq!(last_was_0().changes(), [claim(0)]);
        assert_eq!(last_was_0().keys(0, 1).keys(1, 9).changes(), [claim(0), empty(1, 0, false)]);
        assert_eq!(last_was_0().keys(1, 1).keys(2, 9).changes(), [claim(2), empty(1, 2, false)]);
        assert_eq!(
            unowned().keys(1, 9).keys(2, 1).importing(2, 0).changes(),
            [clear(2), claim(2), empty(1, 2, false)]
        );
        assert_eq!(unowned().importing(1, 0).changes(), [clear(1), claim(0)]);
    }

    #[test]
    fn a_broken_handover_goes_back_to_the_source() {
        // The source names the target, which has not taken over; everybody else still names the source.
        let broken = Scene::new().sees(0, Some(1)).importing(1, 0).keys(0, 9).keys(1, 9);
        assert_eq!(broken.changes(), [clear(1), claim(0), empty(1, 0, true)]);
        // In a cluster of two there are as many votes for either.
        let mut tied = Scene::new().sees(0, Some(1)).importing(1, 0).keys(0, 9).keys(1, 9);
        tied.nodes.truncate(2);
        assert!(tied.changes_of_slot().contains(&claim(0)));
    }

    impl Scene {
        /// The changes about the slot, whatever else there is.
        fn changes_of_slot(&self) -> Vec<Change> {
            self.plan().actions.into_iter().filter(|a| a.slots.contains(SLOT)).map(|a| a.change).collect()
        }
    }

    #[test]
    fn views_that_differ_are_corrected() {
        let announce = || Change::Announce { owner: id(0) };
        assert_eq!(Scene::new().sees(2, Some(1)).changes(), [announce()]);
        assert_eq!(Scene::new().sees(5, Some(1)).changes(), [announce()]);
        // Two that take each other for it: who has the keys gets it.
        let mutual = || Scene::new().sees(0, Some(1));
        assert_eq!(mutual().keys(1, 3).changes(), [claim(1)]);
        assert_eq!(mutual().keys(0, 3).changes(), [claim(0)]);
        // Two that claim it: the newer claim stands, and the keys of the other go there.
        let both = Scene::new().sees(1, Some(1)).keys(0, 4).keys(1, 1);
        let (stop, announce) =
            (Change::Yield { node: id(0), owner: id(1) }, Change::Announce { owner: id(1) });
        assert_eq!(both.changes(), [stop, announce, empty(0, 1, false)]);
    }

    #[test]
    fn what_belongs_to_a_silent_node_is_left_alone() {
        let scene = Scene::new().silent(0).importing(1, 0).keys(1, 3).keys(2, 3);
        assert_eq!(scene.changes(), []);
        assert_eq!(scene.obstacles(), [Obstacle::SilentOwner(id(0)), Obstacle::Silent(id(0))]);
        assert_eq!(scene.plan().left[0].slots, SlotSet::from_iter([SLOT]));
        let scene = Scene::new().silent(1).migrating(0, 1);
        assert_eq!(scene.changes(), []);
        assert_eq!(scene.obstacles(), [Obstacle::SilentTarget(id(1)), Obstacle::Silent(id(1))]);
        // The node that took over from it has a newer claim that all others see.
        let scene = (1..6).fold(Scene::new().silent(0).keys(1, 3), |scene, node| scene.sees(node, Some(1)));
        assert_eq!(scene.changes_of_slot(), []);
    }

    /// Primary 0 has failed with its last claim at this epoch, in the view of each other one.
    fn failed(epochs: [u64; 2]) -> Scene {
        let mut scene = Scene::new().silent(0);
        for (node, epoch) in [1, 2].into_iter().zip(epochs) {
            scene.nodes[node].failed.push((id(0), epoch));
        }
        scene
    }

    #[test]
    fn a_replica_that_nobody_votes_for_is_told_what_its_primary_claimed() {
        let remind = || Change::Remind { primary: id(0), epoch: 9, replicas: vec![id(3)] };
        let changes = |scene: &Scene| -> Vec<Change> {
            scene.plan().actions.into_iter().map(|action| action.change).collect()
        };
        assert_eq!(changes(&failed([9, 9])), [remind()]);
        assert_eq!(failed([9, 9]).plan().actions[0].slots, third(0));
        // Of three votes it needs two.
        assert_eq!(changes(&failed([1, 9])), [remind()]);
        assert_eq!(changes(&failed([1, 1])), [], "it is elected");
        let mut scene = failed([9, 9]);
        for node in [1, 2] {
            scene.nodes[node].corrects_replicas = false;
        }
        assert_eq!(changes(&scene), [], "they would not tell it");
        let obstacle = Obstacle::NoElection { primary: id(0), best: id(3) };
        assert!(scene.obstacles().contains(&obstacle), "{:?}", scene.obstacles());
        let mut scene = failed([9, 9]);
        scene.nodes[3].config_epoch = 9;
        assert_eq!(changes(&scene), [], "it is elected");
        let mut scene = failed([9, 9]);
        scene.nodes[2].failed.clear();
        assert_eq!(changes(&scene), [], "a majority does not find it failed");
        assert_eq!(changes(&failed([9, 9]).silent(3)), [], "there is no replica");
        assert_eq!(changes(&failed([9, 9]).silent(2)), [], "there is no majority");
    }

    #[test]
    fn keys_in_other_databases_stop_it() {
        let mut scene = Scene::new().keys(1, 3);
        scene.nodes[1].keys_elsewhere = 1;
        assert_eq!(scene.changes(), []);
        assert_eq!(scene.obstacles(), [Obstacle::OtherDatabases(id(1))]);
    }

    #[test]
    fn what_a_repair_was_moving_are_no_copies() {
        let scene = || Scene::new().importing(1, 0).keys(1, 2);
        let divided = |moving: &str| {
            let action = scene().plan().actions.remove(0);
            divide(action, &moving.parse().expect("slots"), |slots| 2 * slots.len() as u64)
        };
        assert_eq!(divided("7"), scene().plan().actions);
        let all = divided("0-7");
        assert_eq!((all.len(), all[0].keys, &all[0].change), (1, 2, &empty(1, 0, false)));
    }

    #[test]
    fn only_what_was_copied_is_discarded() {
        let evidence = |both, only| Evidence { both, only };
        assert_eq!(fate(true, evidence(9, 1)), Fate::Discard);
        assert_eq!(fate(true, evidence(0, 1)), Fate::Move);
        assert_eq!(fate(true, evidence(3, 4)), Fate::Move);
        assert_eq!(fate(false, evidence(9, 0)), Fate::Move);
    }
}
