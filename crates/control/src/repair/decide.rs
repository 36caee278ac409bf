//! What to do about what a survey shows: a pure function.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::nodes::{Finding, NodeName, NodeState, Survey};

use super::plan::{Action, Change, Evidence, Fate, Plan, slots_text};

/// Slots that a primary must have for [`Change::Remind`] to work: a replica must claim some of them with one
/// left out.
const REMINDED_SLOTS_MIN: usize = 2;

/// Why nothing may be touched: a migration is running. `own` begins the name of our own connections.
pub fn refusal(survey: &Survey, own: &str) -> Option<String> {
    survey.nodes.iter().find_map(|node| {
        let state = node.state()?;
        if let Some(what) = state.native.first() {
            return Some(format!("{} is in a native migration: {what}", node.name()));
        }
        let job = state.jobs.iter().find(|job| !job.starts_with(own))?;
        Some(format!("a whimbrel job is connected to {}: {job}", node.name()))
    })
}

/// Decides for each slot who owns it or shall own it, and what has to be done about marks and keys in it.
///
/// Slots whose owner does not answer are left alone, and so are keys of nodes that use several databases.
pub fn decide(survey: &Survey) -> Plan {
    let mut draft = Draft::new(survey);
    for slot in Slot::all() {
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

/// A primary that answered, with what is asked of it for every slot.
struct Primary<'a> {
    id: &'a NodeId,
    name: NodeName,
    state: &'a NodeState,
    importing: BTreeMap<Slot, &'a NodeId>,
    migrating: BTreeMap<Slot, &'a NodeId>,
}

impl Primary<'_> {
    fn keys(&self, slot: Slot) -> u64 {
        self.state.counts.as_ref().map_or(0, |counts| u64::from(counts.of(slot)))
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

struct Draft<'a> {
    survey: &'a Survey,
    primaries: Vec<Primary<'a>>,
    /// Slots and keys of each change with its reason.
    changes: BTreeMap<(Change, String), (SlotSet, u64)>,
    left: BTreeMap<String, SlotSet>,
    /// How many slots each primary has, with those that it is given.
    load: Vec<usize>,
}

impl<'a> Draft<'a> {
    fn new(survey: &'a Survey) -> Draft<'a> {
        let primaries: Vec<Primary<'a>> = survey
            .answering_primaries()
            .map(|(node, state)| Primary {
                id: &node.id,
                name: node.name(),
                state,
                importing: state.importing.iter().map(|(slot, id)| (*slot, id)).collect(),
                migrating: state.migrating.iter().map(|(slot, id)| (*slot, id)).collect(),
            })
            .collect();
        let load = primaries.iter().map(|p| p.state.slots.len()).collect();
        Draft { survey, primaries, changes: BTreeMap::new(), left: BTreeMap::new(), load }
    }

    fn add(&mut self, change: Change, slot: Slot, keys: u64, why: impl Into<String>) {
        let (slots, sum) = self.changes.entry((change, why.into())).or_default();
        slots.insert(slot);
        *sum += keys;
    }

    fn leave(&mut self, slot: Slot, why: String) {
        self.left.entry(why).or_default().insert(slot);
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
                    let name = self.survey.name(id);
                    self.leave(slot, format!("its owner {name} does not answer: nothing is touched there"));
                }
                return;
            }
            Owner::Nobody => {
                self.leave(slot, "no primary answers that could own it".to_owned());
                return;
            }
        };
        let finishing = self.source_mark(slot, owner);
        for node in 0..self.primaries.len() {
            if Some(node) != finishing {
                self.other_marks(slot, owner, node);
            }
        }
    }

    /// Whose slot it is. Where that has to be changed first, the change is added.
    fn owner(&mut self, slot: Slot) -> Owner<'a> {
        let claimants: Vec<usize> =
            (0..self.primaries.len()).filter(|i| self.primaries[*i].state.slots.contains(slot)).collect();
        let named = self.named(slot);
        // A node that most take for the owner and that cannot be asked may come back, or be failed over.
        let silent = named.first().filter(|(id, _)| self.survey.node(id).is_none_or(|n| n.answer.is_err()));
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
                let yielding = claimants
                    .iter()
                    .filter(|i| **i != owner)
                    .map(|i| self.primaries[*i].id.clone())
                    .collect();
                let change = Change::Claim { node: self.primaries[owner].id.clone(), yielding };
                self.add(
                    change,
                    slot,
                    0,
                    "several nodes say that they own them; this one's claim is the newest",
                );
                Owner::Is(owner)
            }
        }
    }

    /// Whom the nodes that answer take for the owner, the one that most name first.
    fn named(&self, slot: Slot) -> Vec<(&'a NodeId, usize)> {
        let mut votes: BTreeMap<&'a NodeId, usize> = BTreeMap::new();
        for id in self.survey.nodes.iter().filter_map(|n| n.state()?.owners.of(slot)) {
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
        let source = importer.and_then(|i| self.index(self.primaries[i].importing[&slot]));
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
            [holder] => (Some(*holder), "nobody owns them; this node alone has their keys"),
            [] => match last.or(source).or(importer) {
                Some(owner) => {
                    (Some(owner), "nobody owns them, nobody has keys in them; this was the last to")
                }
                None => {
                    (fewest, "nobody owns them, nobody has keys in them; this primary has the fewest slots")
                }
            },
            _ if among(last).is_some() => {
                (last, "nobody owns them; the other nodes still take this one for the owner, and it has keys")
            }
            _ if among(source).is_some() => {
                (source, "nobody owns them; this node was giving them away, and it has keys")
            }
            _ if among(importer).is_some() => {
                (importer, "nobody owns them; this node was taking them in, and it has keys")
            }
            _ => {
                let most = holders.iter().copied().max_by_key(|i| self.primaries[*i].keys(slot));
                (most, "nobody owns them; this node has most of their keys")
            }
        };
        let Some(owner) = owner else { return Owner::Nobody };
        let change = Change::Claim { node: self.primaries[owner].id.clone(), yielding: Vec::new() };
        self.add(change, slot, 0, why);
        Owner::Becomes(owner)
    }

    /// Nodes that take another one for the owner than the owner itself.
    fn announce(&mut self, slot: Slot, owner: usize) {
        let id = self.primaries[owner].id;
        let differs = |state: &NodeState| state.owners.of(slot) != Some(id);
        let mistaken = self.survey.nodes.iter().any(|n| n.state().is_some_and(differs));
        // Where several claim it, the claim that settles it is announced by itself.
        let contested = self.primaries.iter().filter(|p| p.state.slots.contains(slot)).count() > 1;
        if mistaken && !contested {
            let change = Change::Announce { owner: id.clone() };
            self.add(change, slot, 0, "the owner says so; other nodes take another one for it");
        }
    }

    /// What the owner's own mark leads to. Returns the node that the slot is moved to, if it is.
    fn source_mark(&mut self, slot: Slot, owner: usize) -> Option<usize> {
        let source = &self.primaries[owner];
        // A claim clears the mark of the node that makes it: it was not the owner.
        let to = *source.migrating.get(&slot).filter(|_| source.state.slots.contains(slot))?;
        let (id, keys) = (source.id.clone(), source.keys(slot));
        let Some(target) = self.index(to).filter(|target| *target != owner) else {
            let name = self.survey.name(to);
            if self.survey.node(to).is_some_and(|n| n.answer.is_err()) {
                let why =
                    format!("it is being moved to {name}, which does not answer: nothing is touched there");
                self.leave(slot, why);
            } else {
                let change = Change::ClearMarks { node: id };
                self.add(
                    change,
                    slot,
                    0,
                    format!("they are marked as migrating to {name}, which is no primary"),
                );
            }
            return None;
        };
        let importing = self.primaries[target].importing.get(&slot) == Some(&&id);
        let arrived = self.primaries[target].keys(slot);
        if arrived == 0 {
            let why = if importing {
                "they were to be moved by SETSLOT, and nothing has been moved yet"
            } else {
                "they are marked as migrating to a node that takes in nothing"
            };
            self.add(Change::ClearMarks { node: id }, slot, 0, why);
            // Its own mark is looked at with all others.
            return None;
        }
        if let Some(why) = self.several_databases(&[owner, target]) {
            self.leave(slot, why);
            return Some(target);
        }
        let target_id = self.primaries[target].id.clone();
        let change = Change::Finish { source: id, target: target_id, mark_target: !importing };
        self.add(change, slot, keys, "a move by SETSLOT was interrupted; some keys have arrived");
        Some(target)
    }

    /// Marks and keys of a node which the slot is not being moved to.
    fn other_marks(&mut self, slot: Slot, owner: usize, node: usize) {
        let it = &self.primaries[node];
        let keys = it.keys(slot);
        let (importing, migrating) = (it.importing.get(&slot).copied(), it.migrating.get(&slot).copied());
        if keys == 0 && importing.is_none() && migrating.is_none() {
            return;
        }
        let id = it.id.clone();
        if node == owner {
            if importing.is_some() {
                self.add(Change::ClearMarks { node: id }, slot, 0, "it imports what it owns already");
            }
            return;
        }
        if migrating.is_some() {
            let change = Change::ClearMarks { node: id.clone() };
            self.add(change, slot, 0, "it gives away what it does not own");
        }
        let owner_id = self.primaries[owner].id.clone();
        let from_owner = importing == Some(&owner_id);
        // Of an owner that only the plan makes the owner, nobody knows what it was doing before.
        let owner_gives_it_away = self.primaries[owner].migrating.get(&slot) == Some(&&id);
        // Where it holds keys its mark is cleared once they are gone: until then it tells what they are. But
        // a mark that points to a node without a claim is a danger to a node that claims the slot.
        if importing.is_some() && (keys == 0 || !self.primaries[owner].state.slots.contains(slot)) {
            let why = match from_owner {
                true => "it imports them from their owner, who does not give them away",
                false => "it imports them from a node that does not own them",
            };
            self.add(Change::ClearMarks { node: id.clone() }, slot, 0, why);
        }
        if keys == 0 {
            return;
        }
        if let Some(why) = self.several_databases(&[owner, node]) {
            self.leave(slot, why);
            return;
        }
        let copied = from_owner && !owner_gives_it_away;
        let why = if copied {
            "copies that an interrupted move or clean-up has left"
        } else {
            "keys in slots of another node"
        };
        let change = Change::Empty { holder: id, owner: owner_id, copied, fate: None };
        self.add(change, slot, keys, why);
    }

    /// Keys are only handled in database 0.
    fn several_databases(&self, nodes: &[usize]) -> Option<String> {
        let node = nodes.iter().find(|i| self.primaries[**i].state.facts.keys_elsewhere > 0)?;
        Some(format!(
            "{} has keys in databases other than 0: its keys are not touched",
            self.primaries[*node].name
        ))
    }

    /// Keys of replicas that their primaries do not have, in slots that these do not own.
    fn replicas(&mut self) {
        for replica in self.survey.nodes.iter().filter(|n| !n.is_primary()) {
            let Some(primary) = replica.primary().and_then(|id| self.index(id)) else { continue };
            for slot in &self.survey.stray_marks(replica) {
                // What clears a mark of the primary is repeated to its replicas, also where the primary has
                // none.
                let change = Change::ClearMarks { node: self.primaries[primary].id.clone() };
                self.add(change, slot, 0, "a replica kept marks that its primary does not have");
            }
            let Some(counts) = replica.state().and_then(|s| s.counts.as_ref()) else { continue };
            let state = self.primaries[primary].state;
            let foreign = counts.occupied().difference(&state.slots).difference(&state.importing_slots());
            for slot in &foreign {
                // What the primary holds itself is removed there, and so from its replicas. What it is about
                // to own stays.
                let owned_soon = self.changes.iter().any(|((change, _), (slots, _))| {
                    matches!(change, Change::Claim { node, .. } if node == self.primaries[primary].id)
                        && slots.contains(slot)
                });
                if self.primaries[primary].keys(slot) == 0 && !owned_soon {
                    let change = Change::EmptyReplica {
                        primary: self.primaries[primary].id.clone(),
                        replica: replica.id.clone(),
                    };
                    let why = "the replica kept what its primary gave away";
                    self.add(change, slot, u64::from(counts.of(slot)), why);
                }
            }
        }
    }

    /// Replicas that cannot be elected since they have not heard of their primary's last claim.
    fn elections(&mut self) {
        for finding in self.survey.outdated_replicas() {
            let Finding::OutdatedReplicas { primary, epoch, replicas } = finding else { continue };
            let knows = |p: &&Primary<'_>| p.state.failed.contains(&(primary.id.clone(), epoch));
            let Some(other) = self.primaries.iter().find(knows) else { continue };
            let owned: SlotSet =
                Slot::all().filter(|slot| other.state.owners.of(*slot) == Some(&primary.id)).collect();
            let corrected = self.primaries.iter().filter(knows).any(|p| p.state.facts.corrects_replicas);
            if !corrected || owned.len() < REMINDED_SLOTS_MIN {
                let offset = |name: &&NodeName| {
                    self.survey.node(&name.id).and_then(|n| n.state()).map(|s| s.facts.repl_offset)
                };
                let Some(best) = replicas.iter().max_by_key(offset) else { continue };
                let why = format!(
                    "{primary} has failed, and nobody votes for its replicas: start it, or make {best}, \
                     which has most of its data, a primary without a vote, by CLUSTER FAILOVER TAKEOVER sent \
                     there"
                );
                self.left.entry(why).or_default().extend(owned.iter());
                continue;
            }
            let change = Change::Remind {
                primary: primary.id,
                epoch,
                replicas: replicas.into_iter().map(|name| name.id).collect(),
            };
            let why = "it has failed, and the others vote for none that has not heard of its last claim";
            self.changes.insert((change, why.to_owned()), (owned, 0));
        }
    }

    fn into_plan(self) -> Plan {
        let mut left: Vec<String> =
            self.left.iter().map(|(why, slots)| format!("{}: {why}", slots_text(slots))).collect();
        let silent: BTreeSet<NodeName> =
            self.survey.nodes.iter().filter(|n| n.answer.is_err()).map(|n| n.name()).collect();
        left.extend(silent.iter().map(|name| {
            format!("{name} does not answer: start it, or remove it with CLUSTER FORGET on every other node")
        }));
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
    use whimbrel_engine::nodes::{NativeSeen, Owners};

    use super::*;
    use crate::scene::{id, survey, third};

    const SLOT: Slot = Slot::MIN;

    /// A cluster, see [`survey`].
    struct Scene {
        survey: Survey,
    }

    impl Scene {
        fn new() -> Scene {
            Scene { survey: survey() }
        }

        fn state(&mut self, node: usize) -> &mut NodeState {
            self.survey.nodes[node].answer.as_mut().expect("it answers")
        }

        fn keys(mut self, node: usize, keys: u32) -> Scene {
            self.state(node).counts.as_mut().expect("counted").set(SLOT, keys);
            self
        }

        fn importing(mut self, node: usize, from: usize) -> Scene {
            self.state(node).importing.push((SLOT, id(from)));
            self
        }

        fn migrating(mut self, node: usize, to: usize) -> Scene {
            self.state(node).migrating.push((SLOT, id(to)));
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
            let state = self.state(node);
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
            self.survey.nodes[node].answer = Err("it is gone".to_owned());
            self
        }

        /// The changes, each of which must be about the one slot.
        fn changes(&self) -> Vec<Change> {
            let plan = decide(&self.survey);
            plan.actions
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
        Change::Claim { node: id(node), yielding: Vec::new() }
    }

    fn empty(holder: usize, owner: usize, copied: bool) -> Change {
        Change::Empty { holder: id(holder), owner: id(owner), copied, fate: None }
    }

    #[test]
    fn nothing_is_done_to_a_healthy_cluster() {
        let scene = Scene::new().keys(0, 5).keys(3, 5);
        assert_eq!(decide(&scene.survey), Plan::default());
        assert_eq!(refusal(&scene.survey, "whimbrel:job:repair-1"), None);
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
        assert_eq!(Scene::new().migrating(0, 1).importing(1, 2).keys(1, 1).changes(), [finish(true)]);
        assert_eq!(Scene::new().importing(1, 2).changes(), [clear(1)]);
        assert_eq!(Scene::new().importing(1, 2).keys(1, 1).changes(), [empty(1, 0, false)]);
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
        tied.survey.nodes.retain(|n| n.id == id(0) || n.id == id(1));
        assert!(tied.changes_of_slot().contains(&claim(0)));
    }

    impl Scene {
        /// The changes about the slot, whatever else there is.
        fn changes_of_slot(&self) -> Vec<Change> {
            let plan = decide(&self.survey);
            plan.actions.into_iter().filter(|a| a.slots.contains(SLOT)).map(|a| a.change).collect()
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
        let change = Change::Claim { node: id(1), yielding: vec![id(0)] };
        assert_eq!(both.changes(), [change, empty(0, 1, false)]);
    }

    #[test]
    fn what_belongs_to_a_silent_node_is_left_alone() {
        let plan = decide(&Scene::new().silent(0).importing(1, 0).keys(1, 3).keys(2, 3).survey);
        assert_eq!(plan.actions, []);
        assert_eq!(plan.left.len(), 2, "{:?}", plan.left);
        assert!(plan.left[0].starts_with("slot 0: its owner"), "{:?}", plan.left);
        let plan = decide(&Scene::new().silent(1).migrating(0, 1).survey);
        assert_eq!(plan.actions, []);
        // The node that took over from it has a newer claim that all others see.
        let scene = (1..6).fold(Scene::new().silent(0).keys(1, 3), |scene, node| scene.sees(node, Some(1)));
        assert_eq!(scene.changes_of_slot(), []);
    }

    /// Primary 0 has failed with its last claim at this epoch, in the view of each other one.
    fn failed(epochs: [u64; 2]) -> Scene {
        let mut scene = Scene::new().silent(0);
        for (node, epoch) in [1, 2].into_iter().zip(epochs) {
            scene.state(node).failed.push((id(0), epoch));
        }
        scene
    }

    #[test]
    fn a_replica_that_nobody_votes_for_is_told_what_its_primary_claimed() {
        let remind = || Change::Remind { primary: id(0), epoch: 9, replicas: vec![id(3)] };
        let changes = |scene: &Scene| -> Vec<Change> {
            decide(&scene.survey).actions.into_iter().map(|action| action.change).collect()
        };
        assert_eq!(changes(&failed([9, 9])), [remind()]);
        assert_eq!(decide(&failed([9, 9]).survey).actions[0].slots, third(0));
        // Of three votes it needs two.
        assert_eq!(changes(&failed([1, 9])), [remind()]);
        assert_eq!(changes(&failed([1, 1])), [], "it is elected");
        let mut scene = failed([9, 9]);
        for node in [1, 2] {
            scene.state(node).facts.corrects_replicas = false;
        }
        assert_eq!(changes(&scene), [], "they would not tell it");
        let left = decide(&scene.survey).left;
        assert!(left.iter().any(|left| left.contains("(h:7003), which has most")), "{left:?}");
        let mut scene = failed([9, 9]);
        scene.state(3).config_epoch = 9;
        assert_eq!(changes(&scene), [], "it is elected");
        let mut scene = failed([9, 9]);
        scene.state(2).failed.clear();
        assert_eq!(changes(&scene), [], "a majority does not find it failed");
        assert_eq!(changes(&failed([9, 9]).silent(3)), [], "there is no replica");
        assert_eq!(changes(&failed([9, 9]).silent(2)), [], "there is no majority");
    }

    #[test]
    fn other_databases_and_running_migrations_stop_it() {
        let mut scene = Scene::new().keys(1, 3);
        scene.state(1).facts.keys_elsewhere = 1;
        let plan = decide(&scene.survey);
        assert_eq!(plan.actions, []);
        assert!(plan.left[0].contains("databases other than 0"), "{:?}", plan.left);
        let mut scene = Scene::new();
        scene.state(1).jobs.push("whimbrel:job:repair-1 from here".to_owned());
        assert_eq!(refusal(&scene.survey, "whimbrel:job:repair-1"), None);
        assert!(refusal(&scene.survey, "whimbrel:job:repair-2").expect("another's").contains("repair-1"));
        let mut scene = Scene::new();
        scene.state(2).native.push(NativeSeen::default());
        assert!(refusal(&scene.survey, "whimbrel:job").is_some());
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
