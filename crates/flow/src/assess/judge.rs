//! From facts to findings. Pure: each rule stands by itself.

use std::collections::BTreeSet;

use whimbrel_engine::error::Side;
use whimbrel_engine::inventory::{Inventory, NodeFacts, Reach};

use super::estimate::Estimates;
use super::facts::Facts;
use super::findings::Finding;
use super::ways::WayKind;

/// The types that every server has.
const BUILT_IN: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];

/// Clocks that are further apart make expiries come early or late by what people notice.
const CLOCKS_MS: i64 = 1_000;

/// How long a link that breaks should still find what it has missed.
const BACKLOG_MS: u64 = 60_000;

/// With a smaller limit a replica that reads slowly is soon dropped.
const REPLICA_BUFFER_BYTES: u64 = 32 << 20;

/// A slot with a larger share than this is hot, if it holds more than a few keys of the sample.
const HOT_PERCENT: u64 = 10;
const HOT_KEYS: u64 = 20;

/// What is used of a limit before it is worth a word.
const CLIENTS_PERCENT: u64 = 80;

/// The connections that a migration makes to a server, by and large.
const CONNECTIONS: u64 = 40;

/// What the data take on another server: allocators differ.
const ROOM_PERCENT: u64 = 110;

/// Judges; the worst comes first.
pub fn judge(facts: &Facts, estimates: &Estimates) -> Vec<Finding> {
    let mut findings = Vec::new();
    ways(facts, &mut findings);
    health(Side::Source, &facts.source, &mut findings);
    replication(facts, &mut findings);
    keys(facts, &mut findings);
    clients(facts, &mut findings);
    if let Some(target) = &facts.target {
        health(Side::Target, target, &mut findings);
        capacity(facts, target, &mut findings);
        support(facts, target, &mut findings);
        commands(facts, target, &mut findings);
        differences(facts, target, &mut findings);
    }
    let writes_per_second = facts.rate.writes_per_second as u64;
    if let Some(carried_per_second) = estimates.carried_per_second
        && estimates.sync.is_none()
    {
        findings.push(Finding::Outrun { writes_per_second, carried_per_second });
    }
    findings.sort_by_key(Finding::severity);
    findings
}

fn ways(facts: &Facts, findings: &mut Vec<Finding>) {
    let problem = |kind: WayKind| facts.ways.iter().find(|way| way.kind == kind)?.problem.clone();
    let fences = [WayKind::CutoverAcl, WayKind::CutoverReadonlyReplica, WayKind::CutoverPause];
    let has_fence = facts.ways.is_empty() || fences.iter().any(|kind| problem(*kind).is_none());
    if !has_fence {
        findings.push(Finding::NoFence);
    }
    for way in &facts.ways {
        match (&way.problem, way.kind) {
            (Some(problem), WayKind::Copy) => {
                findings.push(Finding::CopyRefused { problem: problem.clone(), remedy: way.remedy.clone() });
            }
            (Some(problem), kind) if has_fence && !kind.follows() => {
                findings.push(Finding::FenceRefused { way: kind, problem: problem.clone() });
            }
            _ => {}
        }
    }
    let followed = [WayKind::FollowReplication, WayKind::FollowTracking, WayKind::FollowNotifications];
    let streams = facts.sample.types.get("stream").map_or(0, |of| of.keys);
    match followed.map(problem) {
        [replication @ Some(_), tracking @ Some(_), notifications @ Some(_)] => {
            findings.push(Finding::NoFeed { replication, tracking, notifications });
        }
        [Some(why), None, _] => findings.push(Finding::TrackingOnly { why, streams }),
        [Some(_), Some(why), None] => findings.push(Finding::NotificationsOnly { why, streams }),
        [None, ..] => {}
    }
}

fn health(side: Side, deployment: &Inventory, findings: &mut Vec<Finding>) {
    if deployment.unowned_slots > 0 && deployment.cluster {
        findings.push(Finding::Unowned { side, slots: deployment.unowned_slots });
    }
    if deployment.open_slots > 0 {
        findings.push(Finding::OpenSlots { side, slots: deployment.open_slots });
    }
    for problem in &deployment.disorder {
        findings.push(Finding::Disorder { side, problem: problem.clone() });
    }
    let sentinels = deployment.primaries().map(|node| node.sentinels).max().unwrap_or(0);
    if sentinels > 0 && !deployment.watched {
        findings.push(Finding::Sentinels { side, sentinels });
    }
    for node in &deployment.nodes {
        health_of_node(side, node, findings);
    }
}

fn health_of_node(side: Side, node: &NodeFacts, findings: &mut Vec<Finding>) {
    let at = node.address.clone();
    if let Some(why) = &node.silent {
        findings.push(Finding::Silent { side, at, primary: node.primary, why: why.clone() });
        return;
    }
    if node.loading {
        findings.push(Finding::Loading { side, at: at.clone() });
    }
    if node.cluster_ok == Some(false) {
        findings.push(Finding::ClusterDown { side, at: at.clone() });
    }
    if node.link_up == Some(false) {
        findings.push(Finding::ReplicaLinkDown { side, at: at.clone() });
    }
    if !node.primary {
        return;
    }
    if node.replica {
        findings.push(Finding::IsReplica { side, at: at.clone() });
    }
    if let Some(why) = node.refuses_writes {
        findings.push(Finding::WritesRefused { side, at: at.clone(), why });
    }
    if node.evicts() {
        let (policy, evicted) = (node.maxmemory_policy.clone(), node.evicted_keys);
        findings.push(Finding::Evicts { side, at: at.clone(), policy, evicted });
    }
    if let Some(most) = node.clients_max
        && (node.clients + CONNECTIONS > most || node.clients * 100 > most * CLIENTS_PERCENT)
    {
        findings.push(Finding::Clients { side, at, clients: node.clients, most });
    }
}

fn replication(facts: &Facts, findings: &mut Vec<Finding>) {
    let primaries = facts.source.primaries().count().max(1) as f64;
    let dumped = facts.sample.dumped;
    // If nothing replicates, what is written is as long as what there is.
    let by_keys = facts.rate.writes_per_second * (dumped.bytes as f64 / dumped.keys.max(1) as f64);
    let bytes_per_second = facts.rate.bytes_per_second.max(by_keys) / primaries;
    for node in facts.source.primaries() {
        let at = node.address.clone();
        if let Some(bytes) = node.backlog_bytes.filter(|_| bytes_per_second > 0.0) {
            let lasts_ms = (bytes as f64 / bytes_per_second * 1e3) as u64;
            if lasts_ms < BACKLOG_MS {
                findings.push(Finding::Backlog { at: at.clone(), bytes, lasts_ms });
            }
        }
        if let Some(bytes) = node.replica_buffer.and_then(|limit| limit.least_bytes())
            && bytes < REPLICA_BUFFER_BYTES
        {
            findings.push(Finding::ReplicaBuffer { at, bytes });
        }
    }
}

fn keys(facts: &Facts, findings: &mut Vec<Finding>) {
    let sample = &facts.sample;
    if let Some(largest) = sample.largest.first().filter(|_| sample.large > 0) {
        let (largest, bytes) = (largest.key.clone(), largest.bytes);
        findings.push(Finding::LargeKeys { keys: sample.large, largest, bytes });
    }
    let is_cluster = facts.source.cluster || facts.target.as_ref().is_some_and(|target| target.cluster);
    if let Some(slot) = sample.slots.first().filter(|slot| is_cluster && slot.keys >= HOT_KEYS) {
        let percent = |part: u64, all: u64| part.saturating_mul(100).checked_div(all).unwrap_or(0);
        let share = percent(slot.bytes, sample.bytes).max(percent(slot.keys, sample.keys));
        if share >= HOT_PERCENT {
            findings.push(Finding::HotSlot { slot: slot.slot, percent: share as u32 });
        }
    }
    if facts.libraries > 0 {
        let supported = facts.target.as_ref().is_none_or(|target| target.functions);
        findings.push(Finding::Functions { libraries: facts.libraries, supported });
    }
}

fn clients(facts: &Facts, findings: &mut Vec<Finding>) {
    let sum = |value: fn(&NodeFacts) -> u64| facts.source.primaries().map(value).sum::<u64>();
    let (scripts, blocked) = (sum(|node| node.scripts), sum(|node| node.clients_blocked));
    if scripts > 0 {
        findings.push(Finding::Scripts { scripts });
    }
    if blocked > 0 {
        findings.push(Finding::Blocked { clients: blocked });
    }
    // Sentinels talk over a channel of theirs, which has its own finding.
    let channels = sum(|node| node.channels.saturating_sub(u64::from(node.sentinels > 0)));
    if channels > 0 {
        findings.push(Finding::Channels { channels });
    }
}

fn capacity(facts: &Facts, target: &Inventory, findings: &mut Vec<Finding>) {
    let data: u64 = facts.source.primaries().map(|node| node.dataset_bytes).sum();
    let needed_bytes = data.saturating_mul(ROOM_PERCENT) / 100;
    let free: Option<u64> = target.primaries().map(NodeFacts::free_bytes).sum();
    if let Some(free_bytes) = free.filter(|free| *free < needed_bytes && target.primaries().count() > 0) {
        findings.push(Finding::TargetTooSmall { needed_bytes, free_bytes });
    }
    let of_target = |db: u32| target.databases.get(&db).map_or(0, |db| db.keys);
    let keys: u64 = facts.dbs.iter().map(|pair| of_target(pair.target)).sum();
    if keys > 0 {
        findings.push(Finding::TargetHasKeys { keys });
    }
    if let Some(target_has) = target.databases_max {
        let beyond = facts.dbs.iter().map(|pair| pair.target).filter(|db| u64::from(*db) >= target_has);
        let dbs: Vec<u32> = beyond.collect::<BTreeSet<_>>().into_iter().collect();
        if !dbs.is_empty() {
            findings.push(Finding::Databases { dbs, target_has });
        }
    }
}

fn support(facts: &Facts, target: &Inventory, findings: &mut Vec<Finding>) {
    if let (Some(ours), Some(theirs)) = (&facts.source.modules, &target.modules) {
        let modules: Vec<String> = ours.difference(theirs).cloned().collect();
        if !modules.is_empty() {
            findings.push(Finding::Modules { modules });
        }
        let of_modules = || facts.sample.types.iter().filter(|(name, _)| !BUILT_IN.contains(&name.as_str()));
        // Types do not say which module they are of: if the target lacks none, it has them all.
        if !ours.is_subset(theirs) && of_modules().count() > 0 {
            let keys = of_modules().map(|(_, of)| of.keys).sum();
            findings
                .push(Finding::Types { types: of_modules().map(|(name, _)| name.clone()).collect(), keys });
        }
    }
    let hashes: u64 = facts.source.databases.values().map(|db| db.volatile).sum();
    if hashes > 0 && !target.hash_field_ttl {
        findings.push(Finding::FieldExpiries { hashes });
    }
    let most = target.settings.get("proto-max-bulk-len").and_then(|most| most.parse::<u64>().ok());
    let longest =
        facts.sample.largest.iter().filter(|key| key.type_name == "string").map(|key| key.bytes).max();
    if let (Some(most_bytes), Some(bytes)) = (most, longest)
        && bytes > most_bytes
    {
        findings.push(Finding::TooLong { bytes, most_bytes });
    }
}

fn commands(facts: &Facts, target: &Inventory, findings: &mut Vec<Finding>) {
    if let Some(commands) = facts.lacking.clone().filter(|lacking| !lacking.is_empty()) {
        findings.push(Finding::CommandsLacking { commands });
    }
    if !target.cluster || facts.source.cluster {
        return;
    }
    let used = |wanted: &[Reach]| -> Vec<String> {
        let is_used = facts.source.used.iter().filter(|(_, u)| u.calls > 0 && wanted.contains(&u.reach));
        is_used.map(|(name, _)| name.clone()).collect()
    };
    let several = used(&[Reach::Several]);
    if !several.is_empty() {
        findings.push(Finding::CrossSlot { commands: several });
    }
    let whole = used(&[Reach::Server, Reach::Databases]);
    if !whole.is_empty() {
        findings.push(Finding::WholeServer { commands: whole });
    }
}

fn differences(facts: &Facts, target: &Inventory, findings: &mut Vec<Finding>) {
    let source = &facts.source;
    if let (Some(ours), Some(theirs)) = (&source.users, &target.users) {
        let users: Vec<String> = ours.difference(theirs).cloned().collect();
        if !users.is_empty() {
            findings.push(Finding::Users { users });
        }
    }
    let apart_ms = target.clock_ms - source.clock_ms;
    if apart_ms.abs() >= CLOCKS_MS {
        findings.push(Finding::Clocks { apart_ms });
    }
    for (name, ours) in &source.settings {
        if let Some(theirs) = target.settings.get(name).filter(|theirs| *theirs != ours) {
            let (name, source, target) = (name.clone(), ours.clone(), theirs.clone());
            findings.push(Finding::Setting { name, source, target });
        }
    }
    if target.primaries().any(|node| node.persistent == Some(false)) {
        findings.push(Finding::NotPersistent);
    }
    let replicas = |of: &Inventory| of.primaries().map(|node| node.replicas).sum::<u64>();
    if replicas(source) > 0 && replicas(target) == 0 {
        findings.push(Finding::NoReplicas);
    }
}

#[cfg(test)]
#[path = "judge/tests.rs"]
mod tests;
