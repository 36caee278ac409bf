//! Which node of a cluster has which slot.
//!
//! Each node that has ever been a primary has a number, which it keeps as long as there are others: cursors of `SCAN` tell by it where they go
//! on. After a restart nodes are numbered by their addresses, so their numbers are the same as long as the nodes are.

use std::collections::BTreeSet;

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
        let primaries: BTreeSet<&Address> = topology.shards.iter().map(|shard| &shard.primary).collect();
        for primary in &primaries {
            if next.number(primary).is_some() {
                continue;
            }
            if next.nodes.len() < NODES_MAX {
                next.nodes.push((*primary).clone());
            } else if let Some(old) = next.nodes.iter_mut().find(|node| !primaries.contains(&**node)) {
                *old = (*primary).clone();
            }
        }
        next.owners.fill(0);
        next.primaries.clear();
        for shard in &topology.shards {
            let Some(number) = next.number(&shard.primary) else { continue };
            for slot in shard.slots.iter() {
                next.owners[usize::from(slot.number())] = number + 1;
            }
            next.primaries.push(number);
        }
        next.primaries.sort_unstable();
        next.primaries.dedup();
        next
    }

    fn number(&self, address: &Address) -> Option<u16> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Address {
        Address::Tcp("127.0.0.1".to_owned(), port)
    }

    fn topology(ports: &[u16]) -> Topology {
        Topology::of(ports.iter().enumerate().map(|(i, port)| {
            let slot = Slot::new(u16::try_from(i).expect("few")).expect("a slot");
            (at(*port), slot)
        }))
    }

    #[test]
    fn nodes_keep_their_numbers_and_those_of_the_gone_are_given_again() {
        let first = Map::of(&topology(&[3, 1, 2]));
        assert_eq!(first.primaries(), [0, 1, 2]);
        assert_eq!(first.address(0), &at(1));
        assert_eq!(first.owner(Slot::new(0).expect("a slot")).map(|node| first.address(node)), Some(&at(3)));
        assert_eq!(first.owner(Slot::new(3).expect("a slot")), None);
        let second = first.next(&topology(&[9, 1]));
        assert_eq!((second.primaries(), second.address(3)), (&[0, 3][..], &at(9)));
        assert!(!second.is_primary(1) && second.generation > first.generation);
        let many: Vec<u16> = (100..100 + NODES_MAX as u16).collect();
        let third = second.next(&topology(&many));
        assert_eq!((third.primaries().len(), third.nodes.len()), (NODES_MAX, NODES_MAX));
    }
}
