//! Which node of a cluster has which slot.
//!
//! Each node that has ever been a primary has a number, which it keeps as long as there are others: cursors
//! of `SCAN` show by it where they go on. After a restart nodes are numbered by their addresses, so their
//! numbers are the same as long as the nodes are.
//!
//! Several servers or clusters can be behind it, the backends of a fleet: then each has an owner of each
//! slot, and other code says which of them has the data of which slot. By default it is the first.

use std::collections::BTreeSet;

use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Topology;
use whimbrel_engine::endpoint::Address;

/// There are this many numbers: what fits into a cursor.
pub(super) const NODES_MAX: usize = 1 << 9;

#[derive(Debug, Clone)]
pub(super) struct Map {
    /// Another one after each question to the cluster.
    pub(super) generation: u64,
    /// Of each backend, the first before all others.
    backends: Vec<Owners>,
    /// By their numbers.
    nodes: Vec<Address>,
    /// Those that have slots, by their numbers.
    primaries: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Owners {
    backend: u32,
    /// For each slot the number of its owner and one; 0 if it has none.
    by_slot: Box<[u16]>,
    /// Those that have slots, by their numbers.
    primaries: Vec<u16>,
}

/// The number of the backend that is there in any case.
pub(super) const FIRST: u32 = 0;

impl Map {
    pub(super) fn of(topology: &Topology) -> Map {
        Map { generation: 0, backends: Vec::new(), nodes: Vec::new(), primaries: Vec::new() }
            .next(&[(FIRST, topology)])
    }

    /// What it is by newer knowledge of all backends.
    pub(super) fn next(&self, topologies: &[(u32, &Topology)]) -> Map {
        let mut next = Map { generation: self.generation + 1, ..self.clone() };
        let all = topologies.iter().flat_map(|(_, topology)| &topology.shards);
        let primaries: BTreeSet<&Address> = all.map(|shard| &shard.primary).collect();
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
        next.backends =
            topologies.iter().map(|(backend, topology)| next.owners(*backend, topology)).collect();
        next.primaries = next.backends.iter().flat_map(|owners| owners.primaries.iter().copied()).collect();
        next.primaries.sort_unstable();
        next.primaries.dedup();
        next
    }

    fn owners(&self, backend: u32, topology: &Topology) -> Owners {
        let by_slot = vec![0; usize::from(Slot::COUNT)].into();
        let mut owners = Owners { backend, by_slot, primaries: Vec::new() };
        for shard in &topology.shards {
            let Some(number) = self.number(&shard.primary) else { continue };
            for slot in shard.slots.iter() {
                owners.by_slot[usize::from(slot.number())] = number + 1;
            }
            owners.primaries.push(number);
        }
        owners.primaries.sort_unstable();
        owners
    }

    fn number(&self, address: &Address) -> Option<u16> {
        let at = self.nodes.iter().position(|node| node == address)?;
        u16::try_from(at).ok()
    }

    /// Whether another one says the same.
    pub(super) fn is_as(&self, other: &Map) -> bool {
        (&self.backends, &self.nodes, &self.primaries) == (&other.backends, &other.nodes, &other.primaries)
    }

    pub(super) fn address(&self, number: u16) -> &Address {
        &self.nodes[usize::from(number)]
    }

    /// Which node has a slot of the first backend.
    pub(super) fn owner(&self, slot: Slot) -> Option<u16> {
        self.owner_at(FIRST, slot)
    }

    /// Which node has a slot of a backend.
    pub(super) fn owner_at(&self, backend: u32, slot: Slot) -> Option<u16> {
        let owners = self.backends.iter().find(|owners| owners.backend == backend)?;
        owners.by_slot[usize::from(slot.number())].checked_sub(1)
    }

    /// Whether a backend is known.
    pub(super) fn has(&self, backend: u32) -> bool {
        self.backends.iter().any(|owners| owners.backend == backend)
    }

    /// Whether there is more than one backend.
    pub(super) fn has_several(&self) -> bool {
        self.backends.len() > 1
    }

    /// Those of the first backend that have slots, by their numbers: where commands without keys go, and
    /// channels are.
    pub(super) fn first_primaries(&self) -> &[u16] {
        self.backends.first().map_or(&[], |owners| &owners.primaries)
    }

    /// Those that have slots, by their numbers.
    pub(super) fn primaries(&self) -> &[u16] {
        &self.primaries
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
        let second = first.next(&[(FIRST, &topology(&[9, 1]))]);
        assert_eq!((second.primaries(), second.address(3)), (&[0, 3][..], &at(9)));
        assert!(second.generation > first.generation);
        let many: Vec<u16> = (100..100 + NODES_MAX as u16).collect();
        let third = second.next(&[(FIRST, &topology(&many))]);
        assert_eq!((third.primaries().len(), third.nodes.len()), (NODES_MAX, NODES_MAX));
    }

    #[test]
    fn each_backend_has_an_owner_of_its_own() {
        let slot = Slot::new(0).expect("a slot");
        let map = Map::of(&topology(&[1, 2])).next(&[(FIRST, &topology(&[1, 2])), (7, &topology(&[3]))]);
        let at = |backend| map.owner_at(backend, slot).map(|node| map.address(node).clone());
        assert_eq!((at(FIRST), at(7), at(8)), (Some(self::at(1)), Some(self::at(3)), None));
        assert_eq!((map.primaries(), map.first_primaries()), (&[0, 1, 2][..], &[0, 1][..]));
        assert!(map.has_several() && map.has(7) && !map.has(8));
    }
}
