//! The cluster and what is wrong with it, as `whimbrel status` and `whimbrel repair` show it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use whimbrel_control::clock::now_ms;
use whimbrel_control::described;
use whimbrel_control::repair::instruction;
use whimbrel_control::repair::round;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::nodes::{Counted, Finding, Survey, SurveyOptions};

use crate::mover::Mover;

/// How long a node may take for an answer: what others say is shown without it then.
pub const NODE_WITHIN: Duration = Duration::from_secs(2);

/// How long all nodes together may take to answer.
const SURVEY_WITHIN: Duration = Duration::from_secs(15);

/// How long it may take to find out what a repair would do: keys are looked at.
const REPAIR_WITHIN: Duration = Duration::from_secs(120);

/// How long nodes may take to agree before a repair is planned.
const PATIENCE: Duration = Duration::from_secs(1);

/// A move of slots that a process carries out now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moving {
    /// The node that gives them away.
    pub source: String,
    /// The node that gets them.
    pub target: String,
    /// The slots.
    pub slots: SlotSet,
}

/// What the nodes say; or in words why none does.
///
/// # Errors
/// Where none answers, or all of them take too long.
pub async fn survey(mover: &Mover) -> std::result::Result<Survey, String> {
    let what = SurveyOptions { counts: Counted::Nothing, activity: true };
    match timeout(SURVEY_WITHIN, Survey::take_within(&mover.deployment, what, NODE_WITHIN)).await {
        Ok(survey) => survey.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the nodes have not answered within {} s", SURVEY_WITHIN.as_secs())),
    }
}

/// The cluster as it was found, while `moves` were under way. What is not known now is as it was `before`,
/// and says so.
pub fn describe(
    mover: &Mover,
    found: std::result::Result<Survey, String>,
    moves: &[Moving],
    before: Option<&Value>,
) -> Value {
    let now_ms = now_ms();
    match found {
        Ok(survey) => {
            let mut value = described::status(&mover.cluster(), &survey);
            let findings = survey.findings();
            weigh(&mut value, &findings, moves);
            note_silence(&mut value, &findings, before, now_ms);
            value["read_ms"] = json!(now_ms);
            value["method"] = json!(mover.settings.method.name());
            value["why"] = json!(mover.why);
            value["error"] = Value::Null;
            value
        }
        Err(error) => {
            let nothing = || {
                json!({
                    "cluster": mover.cluster(), "healthy": false, "nodes": 0, "shards": [], "findings": [],
                    "read_ms": null, "method": mover.settings.method.name(), "why": mover.why,
                })
            };
            let mut value = before.map_or_else(nothing, Value::clone);
            value["error"] = json!(error);
            value
        }
    }
}

/// Says of each finding whether it is a problem. What every move shows while it is under way is none: it is
/// over with the move.
fn weigh(value: &mut Value, findings: &[Finding], moves: &[Moving]) {
    let is_active = findings.iter().any(Finding::is_activity);
    let is_down = findings.iter().any(|found| matches!(found, Finding::ClusterDown { .. }));
    let shown = findings.iter().map(|found| {
        let is_under_way = found.is_activity()
            || is_active && found.is_part_of_a_migration()
            || !is_down && is_explained(found, moves);
        let mut shown = described::finding(found);
        shown["under_way"] = json!(is_under_way);
        shown["problem"] = json!(found.is_problem() && !is_under_way);
        shown
    });
    value["findings"] = shown.collect();
    let found = value["findings"].as_array().into_iter().flatten();
    value["healthy"] = json!(!found.into_iter().any(|found| found["problem"] == true));
}

/// Whether a move that is under way explains this. Nodes hear of a new owner, and are asked, one after
/// another: for a moment two of them may own a slot, or none.
fn is_explained(found: &Finding, moves: &[Moving]) -> bool {
    let all = || moves.iter().fold(SlotSet::new(), |all, moving| all.union(&moving.slots));
    match found {
        Finding::Open { slots, .. }
        | Finding::Leftovers { slots, .. }
        | Finding::Disagreement { slots, .. }
        | Finding::Unowned { slots, .. } => slots.difference(&all()).is_empty(),
        // One that has given all its slots away follows the node that got them.
        Finding::ReplicaLinkDown { node, .. } => moves.iter().any(|m| m.source == node.id.as_str()),
        _ => false,
    }
}

/// What a shard had when it was asked last, of one that is silent now.
const KEPT: [&str; 10] = [
    "version",
    "slots",
    "slot_count",
    "config_epoch",
    "keys",
    "bytes",
    "used_memory_bytes",
    "maxmemory_bytes",
    "evicted_keys",
    "ops_per_second",
];

/// While somebody looks, the cluster is asked again before this has passed.
const ASKED_LATELY_MS: u64 = 30_000;

/// Whether a node of the cluster, as it was found, is silent.
pub fn has_silence(value: &Value) -> bool {
    let is_silent = |node: &Value| node["answers"] == false;
    let shards = value["shards"].as_array().into_iter().flatten();
    shards
        .into_iter()
        .any(|shard| is_silent(shard) || shard["replicas"].as_array().into_iter().flatten().any(is_silent))
}

/// Says since when a silent node is silent. Its slots are those that others say it has, and its numbers those
/// that it had.
fn note_silence(value: &mut Value, findings: &[Finding], before: Option<&Value>, now_ms: u64) {
    let nothing = Vec::new();
    let shards_before = before.and_then(|before| before["shards"].as_array()).unwrap_or(&nothing);
    let nodes_before = || {
        let replicas = shards_before.iter().filter_map(|shard| shard["replicas"].as_array()).flatten();
        shards_before.iter().chain(replicas)
    };
    let silent_since = |id: &Value| {
        let known = nodes_before().find(|node| node["id"] == *id);
        let since = known.and_then(|node| node["silent_since_ms"].as_u64());
        // It answered when it was asked before. Where nobody has looked for a while, nobody has asked since.
        let is_lately = |read_ms: &u64| now_ms.saturating_sub(*read_ms) <= ASKED_LATELY_MS;
        let answered = || known.and(before).and_then(|before| before["read_ms"].as_u64()).filter(is_lately);
        let patience = u64::try_from(NODE_WITHIN.as_millis()).unwrap_or(u64::MAX);
        since.or_else(answered).unwrap_or_else(|| now_ms.saturating_sub(patience))
    };
    let slots_of_silent = |id: &Value| {
        findings.iter().find_map(|found| match found {
            Finding::Unreachable { node, slots, .. } if *id == node.id.as_str() => Some(slots),
            _ => None,
        })
    };
    for shard in value["shards"].as_array_mut().into_iter().flatten() {
        for replica in shard["replicas"].as_array_mut().into_iter().flatten() {
            if replica["answers"] == false {
                replica["silent_since_ms"] = json!(silent_since(&replica["id"]));
            }
        }
        if shard["answers"] == true {
            shard["read_ms"] = json!(now_ms);
            continue;
        }
        shard["silent_since_ms"] = json!(silent_since(&shard["id"]));
        if let Some(known) = shards_before.iter().find(|known| known["id"] == shard["id"]) {
            for name in KEPT.into_iter().chain(["read_ms"]) {
                shard[name] = known[name].clone();
            }
        }
        if let Some(slots) = slots_of_silent(&shard["id"]) {
            (shard["slots"], shard["slot_count"]) = (json!(slots.to_string()), json!(slots.len()));
        }
    }
}

/// What a repair would do now. Nothing is changed.
///
/// # Errors
/// Where the nodes do not answer, or not in time.
pub async fn repair(mover: &Mover) -> Result<Value> {
    let planned = async {
        let survey = round::settled_survey(&mover.deployment, PATIENCE).await?;
        let plan = round::plan(&mover.deployment, &survey, None, &CancellationToken::new()).await?;
        let findings = survey.findings();
        Ok::<_, Error>(json!({
            "read_ms": now_ms(),
            "findings": findings.iter().map(described::finding).collect::<Vec<_>>(),
            "actions": plan.actions.iter().map(|a| described::action(&survey, a)).collect::<Vec<_>>(),
            "left": plan.left.iter().map(|left| instruction::left(&survey, left)).collect::<Vec<_>>(),
            "command": format!("whimbrel repair {}", mover.cluster()),
        }))
    };
    let late = || Error::own("plan a repair", "the nodes have not answered in time");
    timeout(REPAIR_WITHIN, planned).await.map_err(|_| late())?
}

#[cfg(test)]
mod tests {
    use whimbrel_engine::endpoint::Address;
    use whimbrel_engine::nodes::{NoAnswer, NodeName};

    use super::*;

    fn name(letter: &str) -> NodeName {
        let id = letter.repeat(40).parse().expect("an id");
        NodeName { id, address: Address::Tcp(letter.to_owned(), 7000) }
    }

    fn slots(ranges: &str) -> SlotSet {
        ranges.parse().expect("slots")
    }

    fn weighed(findings: &[Finding], moves: &[Moving]) -> Value {
        let mut value = json!({});
        weigh(&mut value, findings, moves);
        value
    }

    /// Also where the move's own connection is not seen, and only its marks are.
    #[test]
    fn what_a_move_shows_while_it_is_under_way_is_no_problem() {
        let (a, b) = (name("a"), name("b"));
        let moving = Moving { source: a.id.to_string(), target: b.id.to_string(), slots: slots("0-99") };
        let open = |ranges: &str| Finding::Open {
            slots: slots(ranges),
            importing: vec![(b.clone(), a.clone())],
            migrating: Vec::new(),
            keys: Vec::new(),
        };
        let both = Finding::Disagreement {
            slots: slots("7"),
            claimants: vec![a.clone(), b.clone()],
            opinions: Vec::new(),
        };
        let now = weighed(&[open("0-9"), both.clone()], std::slice::from_ref(&moving));
        assert_eq!(now["healthy"], true, "{now}");
        for found in now["findings"].as_array().expect("findings") {
            assert_eq!((&found["problem"], &found["under_way"]), (&json!(false), &json!(true)), "{found}");
        }
        for (findings, moves) in [
            (vec![open("0-9")], Vec::new()),
            (vec![both.clone()], Vec::new()),
            (vec![open("0-9,500")], vec![moving.clone()]),
            (vec![both, Finding::ClusterDown { nodes: vec![a.clone()] }], vec![moving]),
        ] {
            let now = weighed(&findings, &moves);
            assert_eq!(now["healthy"], false, "{now}");
        }
    }

    #[test]
    fn a_silent_node_is_shown_as_it_was_and_since_when() {
        let a = name("a");
        let (id, silent) = (a.id.to_string(), json!({"id": a.id.as_str(), "answers": false, "replicas": []}));
        let findings = [Finding::Unreachable {
            node: a,
            primary: true,
            slots: slots("0-5"),
            reason: NoAnswer::because("no answer for 2000 ms"),
        }];
        let shown = |before: Option<&Value>, now_ms| {
            let mut value = json!({"shards": [silent.clone()]});
            note_silence(&mut value, &findings, before, now_ms);
            value["shards"][0].clone()
        };
        let first = shown(None, 10_000);
        assert_eq!((&first["silent_since_ms"], &first["slots"]), (&json!(8_000), &json!("0-5")));
        let before = json!({
            "read_ms": 9_000,
            "shards": [
                {"id": id, "answers": true, "keys": 7, "slots": "0-9", "read_ms": 9_000, "replicas": []},
            ],
        });
        let next = shown(Some(&before), 12_000);
        assert_eq!((&next["silent_since_ms"], &next["keys"]), (&json!(9_000), &json!(7)));
        assert_eq!((&next["read_ms"], &next["slot_count"]), (&json!(9_000), &json!(6)));
        let unwatched = shown(Some(&before), 9_000_000);
        assert_eq!(unwatched["silent_since_ms"], json!(8_998_000), "nobody has asked meanwhile");
        let later = shown(Some(&json!({"read_ms": 12_000, "shards": [next]})), 16_000);
        assert_eq!((&later["silent_since_ms"], &later["read_ms"]), (&json!(9_000), &json!(9_000)));
    }
}
