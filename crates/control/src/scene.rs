//! A cluster that is made up, for unit tests.

use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::nodes::{KeyCounts, NodeFacts, NodeState, Owners, Role, Survey, Surveyed};

/// The id of a node.
pub fn id(node: usize) -> NodeId {
    node.to_string().repeat(40).parse().expect("an id")
}

/// The slots of a primary.
pub fn third(node: usize) -> SlotSet {
    ["0-5460", "5461-10922", "10923-16383"][node].parse().expect("slots")
}

/// A cluster of primaries 0 to 2, each with a third of the slots, and replicas 3 to 5 of them. They hold no
/// keys.
pub fn survey() -> Survey {
    let owned: Vec<(NodeId, SlotSet)> = (0..3).map(|n| (id(n), third(n))).collect();
    let nodes = (0..6)
        .map(|node| {
            let primary = (node >= 3).then(|| id(node - 3));
            let role = if primary.is_some() { Role::Replica } else { Role::Primary };
            Surveyed {
                id: id(node),
                address: Address::Tcp("h".to_owned(), 7_000 + node as u16),
                reported_role: role,
                reported_primary: primary.clone(),
                answer: Ok(NodeState {
                    role,
                    config_epoch: (node % 3) as u64 + 1,
                    slots: if node < 3 { third(node) } else { SlotSet::new() },
                    importing: Vec::new(),
                    migrating: Vec::new(),
                    owners: Owners::new(owned.clone()),
                    failing: Vec::new(),
                    failed: Vec::new(),
                    facts: NodeFacts {
                        version: String::new(),
                        run_id: String::new(),
                        cluster_ok: true,
                        keys: 0,
                        keys_elsewhere: 0,
                        dataset_bytes: 0,
                        used_memory_bytes: 0,
                        maxmemory_bytes: 0,
                        corrects_replicas: true,
                        hides_keys: false,
                        is_trimming: false,
                        evicted_keys: 0,
                        ops_per_second: 0,
                        repl_offset: 0,
                        primary_link_up: primary.as_ref().map(|_| true),
                    },
                    counts: Some(KeyCounts::default()),
                    hidden_keys: 0,
                    native: Vec::new(),
                    jobs: Vec::new(),
                    primary,
                }),
            }
        })
        .collect();
    Survey { nodes }
}
