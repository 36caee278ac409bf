//! Which node of a cluster has which slot.
//!
//! Each node that has ever been a primary has a number, which it keeps: cursors of `SCAN` tell by it where they go on. After a restart nodes are
//! numbered by their addresses, so their numbers are the same as long as the nodes are.

use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Topology;
use whimbrel_engine::endpoint::Address;

/// Numbers are so many: what fits into a cursor.
pub(super) const NODES_MAX: usize = 1 << 9;

#[derive(Debug, Clone)]
pub(super) struct Map {
    /// Another one after each question to the cluster.
    pub(super) generation: u64,
    /// For each slot the number of its owner and one; 0 where it has none.
    owners: Box<[u16]>,
    /// By their numbers.
    nodes: Vec<Address>,
    /// Those that have slots, by their numbers.
    primaries: Vec<u16>,
}

impl Map {
    pub(super) fn of(topology: &Topology) -> Map {
        let owners = vec![0; usize::from(Slot::COUNT)].into();
        Map { generation: 0, owners, nodes: Vec::new(), primaries: Vec::new() }.next(topology)
    }

    /// What it is by newer knowledge.
    pub(super) fn next(&self, topology: &Topology) -> Map {
        let mut next = Map { generation: self.generation + 1, ..self.clone() };
        let mut primaries: Vec<&Address> = topology.shards.iter().map(|shard| &shard.primary).collect();
        primaries.sort();
        for primary in primaries {
            next.add(primary);
        }
        for slot in Slot::all() {
            let owner = topology.shard_of(slot).and_then(|shard| next.number(&shard.primary));
            next.owners[usize::from(slot.number())] = owner.map_or(0, |number| number + 1);
        }
        next.primaries = topology.shards.iter().filter_map(|shard| next.number(&shard.primary)).collect();
        next.primaries.sort_unstable();
        next.primaries.dedup();
        next
    }

    /// Gives a node a number; `None` where all are taken.
    pub(super) fn add(&mut self, address: &Address) -> Option<u16> {
        if let Some(number) = self.number(address) {
            return Some(number);
        }
        if self.nodes.len() >= NODES_MAX {
            return None;
        }
        self.nodes.push(address.clone());
        self.number(address)
    }

    pub(super) fn number(&self, address: &Address) -> Option<u16> {
        let at = self.nodes.iter().position(|node| node == address)?;
        u16::try_from(at).ok()
    }

    pub(super) fn address(&self, number: u16) -> &Address {
        &self.nodes[usize::from(number)]
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<u16> {
        self.owners[usize::from(slot.number())].checked_sub(1)
    }

    /// Those that have slots, by their numbers.
    pub(super) fn primaries(&self) -> &[u16] {
        &self.primaries
    }

    pub(super) fn is_primary(&self, number: u16) -> bool {
        self.primaries.binary_search(&number).is_ok()
    }
}
