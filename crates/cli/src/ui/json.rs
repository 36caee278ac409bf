//! Nodes, slots and findings as JSON.

use serde_json::{Value, json};
use whimbrel_engine::nodes::{Finding, NodeName, Opinion};

/// A node.
pub fn node(node: &NodeName) -> Value {
    json!({"id": node.id.as_str(), "address": node.address.to_string()})
}

fn nodes(nodes: &[NodeName]) -> Value {
    nodes.iter().map(node).collect()
}

fn marks(marks: &[(NodeName, NodeName)], other: &str) -> Value {
    marks.iter().map(|(a, b)| json!({"node": node(a), other: node(b)})).collect()
}

fn held(keys: &[(NodeName, u64)]) -> Value {
    keys.iter().map(|(n, keys)| json!({"node": node(n), "keys": keys})).collect()
}

fn opinions(opinions: &[Opinion]) -> Value {
    opinions
        .iter()
        .map(|o| json!({"owner": o.owner.as_ref().map(node), "said_by": nodes(&o.said_by)}))
        .collect()
}

/// A finding: its kind, the text that people read, and what it is about.
pub fn finding(finding: &Finding) -> Value {
    let (kind, mut value) = match finding {
        Finding::Unreachable { node: n, primary, slots, reason } => (
            "unreachable",
            json!({"node": node(n), "primary": primary, "slots": slots.to_string(), "reason": reason}),
        ),
        Finding::Failing { node: n, said_by } => ("failing", json!({"node": node(n), "said_by": said_by})),
        Finding::ClusterDown { nodes: said_by } => ("cluster_down", json!({"said_by": nodes(said_by)})),
        Finding::Unowned { slots, opinions: said, keys } => {
            ("unowned", json!({"slots": slots.to_string(), "opinions": opinions(said), "keys": held(keys)}))
        }
        Finding::Disagreement { slots, claimants, opinions: said } => (
            "disagreement",
            json!({"slots": slots.to_string(), "claimants": nodes(claimants), "opinions": opinions(said)}),
        ),
        Finding::EpochCollision { epoch, nodes: whose } => {
            ("epoch_collision", json!({"epoch": epoch, "nodes": nodes(whose)}))
        }
        Finding::OutdatedReplicas { primary, epoch, replicas } => (
            "outdated_replicas",
            json!({"primary": node(primary), "epoch": epoch, "replicas": nodes(replicas)}),
        ),
        Finding::Open { slots, importing, migrating, keys } => (
            "open",
            json!({
                "slots": slots.to_string(), "importing": marks(importing, "from"),
                "migrating": marks(migrating, "to"), "keys": held(keys),
            }),
        ),
        Finding::Leftovers { node: n, replica, slots, keys } => (
            "leftovers",
            json!({"node": node(n), "replica": replica, "slots": slots.to_string(), "keys": keys}),
        ),
        Finding::ReplicaLinkDown { node: n, primary } => {
            ("replica_link_down", json!({"node": node(n), "primary": node(primary)}))
        }
        Finding::NativeMigration { node: n, what } => {
            ("native_migration", json!({"node": node(n), "what": what}))
        }
        Finding::Job { node: n, what } => ("job", json!({"node": node(n), "what": what})),
    };
    value["kind"] = kind.into();
    value["problem"] = finding.is_problem().into();
    value["text"] = finding.to_string().into();
    value
}
