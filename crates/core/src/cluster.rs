//! A cluster as its nodes report it, each by its own word: what a repair is decided by.
//!
//! Addresses, versions and sizes are left out: nothing here depends on them.

use crate::node::NodeId;
use crate::slot::{Slot, SlotSet};

/// What a node is in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Owns slots, or may: `master` in the servers' words.
    Primary,
    /// Follows a primary.
    Replica,
}

/// The owner of each slot, in one view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    ids: Vec<NodeId>,
    /// For each slot an index into `ids` plus one; 0 if no node owns it.
    of: Box<[u16]>,
}

impl Owners {
    /// The owner of a slot.
    pub fn of(&self, slot: Slot) -> Option<&NodeId> {
        let index = self.of[usize::from(slot.number())];
        self.ids.get(usize::from(index).checked_sub(1)?)
    }

    /// All nodes that own any.
    pub fn ids(&self) -> &[NodeId] {
        &self.ids
    }

    /// From a set of slots for each owner. If two have the same slot, the later one has it.
    pub fn new(owned: impl IntoIterator<Item = (NodeId, SlotSet)>) -> Owners {
        let mut owners = Owners { ids: Vec::new(), of: vec![0; usize::from(Slot::COUNT)].into_boxed_slice() };
        // There are no more owners than slots: the index fits.
        for ((id, slots), index) in owned.into_iter().filter(|(_, slots)| !slots.is_empty()).zip(1u16..) {
            owners.ids.push(id);
            for slot in &slots {
                owners.of[usize::from(slot.number())] = index;
            }
        }
        owners
    }
}

/// The keys that one node holds, for each slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyCounts(Box<[u32]>);

impl Default for KeyCounts {
    /// No keys anywhere.
    fn default() -> Self {
        KeyCounts(vec![0; usize::from(Slot::COUNT)].into_boxed_slice())
    }
}

impl KeyCounts {
    /// The keys in one slot; 0 for a slot that was not asked for.
    pub fn of(&self, slot: Slot) -> u32 {
        self.0[usize::from(slot.number())]
    }

    /// Notes the keys of one slot.
    pub fn set(&mut self, slot: Slot, keys: u32) {
        self.0[usize::from(slot.number())] = keys;
    }

    /// The keys in some slots together.
    pub fn sum(&self, slots: &SlotSet) -> u64 {
        slots.iter().map(|slot| u64::from(self.of(slot))).sum()
    }

    /// The slots that hold keys.
    pub fn occupied(&self) -> SlotSet {
        Slot::all().filter(|slot| self.of(*slot) > 0).collect()
    }
}

/// What a node that answers says.
#[derive(Debug, Clone, Copy)]
pub struct State<'a> {
    /// What it is.
    pub role: Role,
    /// Whom it follows.
    pub primary: Option<&'a NodeId>,
    /// The epoch of its claim; for a replica, of its primary's last claim that it has heard of.
    pub config_epoch: u64,
    /// The slots that it says are its own.
    pub slots: &'a SlotSet,
    /// Open slots that it takes in, and from which node.
    pub importing: &'a [(Slot, NodeId)],
    /// Open slots that it gives away, and to which node.
    pub migrating: &'a [(Slot, NodeId)],
    /// The owners of slots in its view.
    pub owners: &'a Owners,
    /// Nodes that a majority has agreed have failed, with the epoch of each one's last claim in its view.
    pub failed: &'a [(NodeId, u64)],
    /// Its keys in each slot, if they were counted.
    pub counts: Option<&'a KeyCounts>,
    /// Its keys beyond those that were counted, in slots that are not its own: Redis 8.4 and later show such
    /// keys only if a slot is marked as importing.
    pub hidden_keys: u64,
    /// Its keys in databases other than 0.
    pub keys_elsewhere: u64,
    /// How far its replication stream has come, in bytes.
    pub repl_offset: u64,
    /// It tells a replica the owners of slots, if that one's idea of its primary's slots differs from its
    /// own.
    pub corrects_replicas: bool,
}

impl State<'_> {
    fn marked_slots(&self) -> SlotSet {
        self.importing.iter().chain(self.migrating).map(|(slot, _)| *slot).collect()
    }
}

/// One node.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Its name.
    pub id: &'a NodeId,
    /// What it is in the eyes of others.
    pub reported_role: Role,
    /// Whom it follows, likewise.
    pub reported_primary: Option<&'a NodeId>,
    /// What it says itself; `None` if it does not answer.
    pub state: Option<State<'a>>,
}

impl<'a> Node<'a> {
    /// Whether it is a primary: by its own word, or else by others'.
    pub fn is_primary(&self) -> bool {
        self.state.map_or(self.reported_role, |s| s.role) == Role::Primary
    }

    /// Whom it follows, likewise.
    pub fn primary(&self) -> Option<&'a NodeId> {
        match self.state {
            Some(state) => state.primary,
            None => self.reported_primary,
        }
    }
}

/// A primary that has failed and whose replicas cannot be elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedReplicas<'a> {
    /// The primary.
    pub primary: &'a NodeId,
    /// Its last claim's epoch, by the other primaries' word.
    pub epoch: u64,
    /// Its replicas that answer.
    pub replicas: Vec<&'a NodeId>,
}

/// Every node's own word.
#[derive(Debug, Clone)]
pub struct Cluster<'a> {
    /// Every node that any of them knows, in the order of ids.
    pub nodes: Vec<Node<'a>>,
}

impl<'a> Cluster<'a> {
    /// A node by its name.
    pub fn node(&self, id: &NodeId) -> Option<&Node<'a>> {
        self.nodes.binary_search_by(|n| n.id.cmp(id)).ok().map(|at| &self.nodes[at])
    }

    /// What the nodes that answer say.
    pub fn states(&self) -> impl Iterator<Item = State<'a>> {
        self.nodes.iter().filter_map(|n| n.state)
    }

    /// The primaries that answer.
    pub fn answering_primaries(&self) -> impl Iterator<Item = (&'a NodeId, State<'a>)> {
        self.nodes.iter().filter_map(|n| Some((n.id, n.state?))).filter(|(_, s)| s.role == Role::Primary)
    }

    /// Slots that a replica has marked and its primary has not. A replica of Valkey 8 repeats its primary's
    /// marks; a primary that died and comes back as a replica keeps those that it had, and would act on them
    /// if it were promoted.
    pub fn stray_marks(&self, replica: &Node<'_>) -> SlotSet {
        let Some(state) = replica.state.filter(|state| state.role == Role::Replica) else {
            return SlotSet::new();
        };
        let Some(primary) = state.primary.and_then(|id| self.node(id)?.state) else {
            return SlotSet::new();
        };
        state.marked_slots().difference(&primary.marked_slots())
    }

    /// A server raises its epoch and dies before its replicas have heard of it: the others do not vote for an
    /// epoch below the highest that they have heard of, and the epoch of a node that is gone travels no
    /// further. Redis stays like that until the primary is back (redis/redis#9548); Valkey 7.2.10, 8.0.4,
    /// 8.1.2 and later notify the replica when they refuse it (valkey-io/valkey#2178).
    pub fn outdated_replicas(&self) -> Vec<OutdatedReplicas<'a>> {
        let mut found = Vec::new();
        let voters: Vec<State<'_>> =
            self.answering_primaries().map(|(_, s)| s).filter(|s| !s.slots.is_empty()).collect();
        // Nodes that have failed count as well: every owner of slots, in the view of any.
        let Some(owners) = voters.first().map(|s| s.owners.ids()) else { return found };
        let majority = owners.len() / 2 + 1;
        let lost = |n: &&Node<'_>| n.is_primary() && n.state.is_none() && owners.contains(n.id);
        for lost in self.nodes.iter().filter(lost) {
            // A node that does not find it failed votes for no replica.
            let epochs: Vec<u64> = voters
                .iter()
                .filter_map(|s| s.failed.iter().find(|f| f.0 == *lost.id))
                .map(|f| f.1)
                .collect();
            let known: Vec<(&NodeId, u64)> = self
                .nodes
                .iter()
                .filter(|n| !n.is_primary() && n.primary() == Some(lost.id))
                .filter_map(|n| Some((n.id, n.state?.config_epoch)))
                .collect();
            let Some(&epoch) = epochs.iter().max() else { continue };
            let votes_for = |known: u64| epochs.iter().filter(|epoch| **epoch <= known).count();
            if epochs.len() >= majority
                && !known.is_empty()
                && known.iter().all(|(_, known)| votes_for(*known) < majority)
            {
                let replicas = known.into_iter().map(|(id, _)| id).collect();
                found.push(OutdatedReplicas { primary: lost.id, epoch, replicas });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_kept_in_little_space() {
        let id = |digit: char| digit.to_string().repeat(40).parse::<NodeId>().expect("an id");
        let slots = |text: &str| text.parse::<SlotSet>().expect("slots");
        let owners = Owners::new([(id('a'), slots("0-5")), (id('b'), SlotSet::new()), (id('c'), slots("7"))]);
        let of = |n| owners.of(Slot::new(n).expect("a slot")).cloned();
        assert_eq!((of(5), of(6), of(7)), (Some(id('a')), None, Some(id('c'))));
        assert_eq!(owners.ids.len(), 2);
    }
}
