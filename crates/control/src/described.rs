//! Nodes, findings, repairs and times as programs read them: JSON.

use serde_json::{Value, json};
use whimbrel_core::repair::plan::{Action, Change, Fate};
use whimbrel_core::schedule::Window;
use whimbrel_engine::nodes::{Finding, NodeName, Opinion, Survey};

use crate::clock::now_s;
use crate::repair::instruction::Instruction;

/// At which times of the day keys move, for programs, and the moment at which they begin next if they are
/// closed.
pub fn times(between: Option<Window>) -> Value {
    let until_s = between.filter(|window| !window.contains(now_s())).map(|w| w.begins_after(now_s()));
    json!({"between": between, "paused_until_s": until_s})
}

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

fn keys_at(keys: &[(NodeName, u64)]) -> Value {
    keys.iter().map(|(n, keys)| json!({"node": node(n), "keys": keys})).collect()
}

fn opinions(opinions: &[Opinion]) -> Value {
    opinions
        .iter()
        .map(|o| json!({"owner": o.owner.as_ref().map(node), "reported_by": nodes(&o.reported_by)}))
        .collect()
}

/// A finding: its kind, the text that people read, and what it is about.
pub fn finding(finding: &Finding) -> Value {
    let (kind, mut value) = match finding {
        Finding::Unreachable { node: n, primary, slots, reason } => (
            "unreachable",
            json!({"node": node(n), "primary": primary, "slots": slots.to_string(), "reason": reason.why,
                "refuses_login": reason.refuses_login}),
        ),
        Finding::Failing { node: n, reported_by } => {
            ("failing", json!({"node": node(n), "reported_by": reported_by}))
        }
        Finding::ClusterDown { nodes: reported_by } => {
            ("cluster_down", json!({"reported_by": nodes(reported_by)}))
        }
        Finding::Unowned { slots, opinions: views, keys } => (
            "unowned",
            json!({"slots": slots.to_string(), "opinions": opinions(views), "keys": keys_at(keys)}),
        ),
        Finding::Disagreement { slots, claimants, opinions: views } => (
            "disagreement",
            json!({"slots": slots.to_string(), "claimants": nodes(claimants), "opinions": opinions(views)}),
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
                "migrating": marks(migrating, "to"), "keys": keys_at(keys),
            }),
        ),
        Finding::Leftovers { node: n, replica, slots, keys } => (
            "leftovers",
            json!({"node": node(n), "replica": replica, "slots": slots.to_string(), "keys": keys}),
        ),
        Finding::HiddenKeys { node: n, keys } => ("hidden_keys", json!({"node": node(n), "keys": keys})),
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

/// An action of a repair: its kind, the text that people read, and what it is about.
pub fn action(survey: &Survey, action: &Action) -> Value {
    let kind = match &action.change {
        Change::Remind { .. } => "remind",
        Change::ClearMarks { .. } => "clear_marks",
        Change::Yield { .. } => "yield",
        Change::Claim { .. } => "claim",
        Change::Announce { .. } => "announce",
        Change::Finish { .. } => "finish",
        Change::Empty { .. } => "empty",
        Change::EmptyReplica { .. } => "empty_replica",
    };
    let instruction = Instruction { action, survey };
    let mut value = json!({
        "kind": kind, "slots": action.slots.to_string(), "keys": action.keys, "why": instruction.why(),
        "text": instruction.to_string(),
    });
    let nodes = match &action.change {
        Change::Remind { primary, replicas, .. } => {
            value["replicas"] = replicas.iter().map(|id| node(&survey.name(id))).collect();
            vec![("primary", primary)]
        }
        Change::ClearMarks { node } | Change::Claim { node } => vec![("node", node)],
        Change::Yield { node, owner } => vec![("node", node), ("owner", owner)],
        Change::Announce { owner } => vec![("owner", owner)],
        Change::Finish { source, target, .. } => vec![("source", source), ("target", target)],
        Change::Empty { holder, owner, .. } => vec![("holder", holder), ("owner", owner)],
        Change::EmptyReplica { primary, replica } => vec![("primary", primary), ("replica", replica)],
    };
    for (name, id) in nodes {
        value[name] = node(&survey.name(id));
    }
    if let Some(evidence) = action.evidence {
        value["compared"] = json!({"both": evidence.both, "only_here": evidence.only});
    }
    if let Change::Empty { fate: Some(fate), .. } = action.change {
        value["keys_only_here"] = if fate == Fate::Move { "move" } else { "discard" }.into();
    }
    value
}

/// How a cluster stands.
pub fn status(cluster: &str, survey: &Survey) -> Value {
    let findings = survey.findings();
    let shards: Vec<Value> = survey
        .shards()
        .into_iter()
        .map(|primary| {
            let replicas: Vec<Value> = survey
                .replicas_of(&primary.id)
                .map(|replica| {
                    let mut value = node(&replica.name());
                    value["answers"] = replica.answer.is_ok().into();
                    value["link_up"] = replica.state().and_then(|s| s.facts.primary_link_up).into();
                    value["lag_bytes"] = primary.lag_bytes_of(replica).into();
                    value["keys"] = replica.state().map(|s| s.facts.keys).into();
                    value
                })
                .collect();
            let mut value = node(&primary.name());
            value["answers"] = primary.answer.is_ok().into();
            value["replicas"] = replicas.into();
            if let Some(state) = primary.state() {
                let facts = &state.facts;
                value["version"] = facts.version.as_str().into();
                value["slots"] = state.slots.to_string().into();
                value["slot_count"] = state.slots.len().into();
                value["config_epoch"] = state.config_epoch.into();
                value["keys"] = facts.keys.into();
                value["bytes"] = facts.dataset_bytes.into();
                value["used_memory_bytes"] = facts.used_memory_bytes.into();
                value["maxmemory_bytes"] = facts.maxmemory_bytes.into();
                value["evicted_keys"] = facts.evicted_keys.into();
                value["ops_per_second"] = facts.ops_per_second.into();
            }
            value
        })
        .collect();
    json!({
        "event": "status", "cluster": cluster, "healthy": Survey::is_healthy(&findings),
        "nodes": survey.nodes.len(), "shards": shards,
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
