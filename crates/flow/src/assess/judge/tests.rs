use std::collections::BTreeMap;

use whimbrel_engine::inventory::{BufferLimit, CommandUse, Rate, WritesRefused};
use whimbrel_engine::nodes::NoAnswer;
use whimbrel_engine::probe::DbCounts;

use super::*;
use crate::assess::sample::{Dumped, LargeKey, SlotShare, TypeCount};
use crate::assess::{Severity, Way, estimate};
use crate::copy::DbPair;

/// Source and target, with nothing to say about them.
fn quiet() -> Facts {
    let node = |address: &str| NodeFacts {
        address: address.to_owned(),
        primary: true,
        persistent: Some(true),
        clients: 1,
        clients_max: Some(10_000),
        ..NodeFacts::default()
    };
    let deployment = |address: &str| Inventory {
        nodes: vec![node(address)],
        functions: true,
        hash_field_ttl: true,
        modules: Some(BTreeSet::new()),
        users: Some(BTreeSet::new()),
        databases_max: Some(16),
        ..Inventory::default()
    };
    let ways = WayKind::ALL.map(|kind| Way { kind, problem: None, remedy: None });
    Facts {
        source: deployment("s:1"),
        target: Some(deployment("t:1")),
        dbs: vec![DbPair { source: 0, target: 0 }],
        lacking: Some(Vec::new()),
        ways: ways.to_vec(),
        ..Facts::default()
    }
}

fn source(facts: &mut Facts) -> &mut NodeFacts {
    &mut facts.source.nodes[0]
}

fn target(facts: &mut Facts) -> &mut Inventory {
    facts.target.as_mut().expect("there is one")
}

#[track_caller]
fn finds(change: impl FnOnce(&mut Facts), expected: &Finding) {
    let mut facts = quiet();
    assert_eq!(judge(&facts, &estimate(&facts)), [], "there is nothing to find yet");
    change(&mut facts);
    let found = judge(&facts, &estimate(&facts));
    assert!(found.contains(expected), "{found:?}");
    let is_sorted = found.is_sorted_by_key(Finding::severity);
    assert!(is_sorted, "{found:?}");
}

fn closed(facts: &mut Facts, kind: WayKind, why: &str) {
    let way = facts.ways.iter_mut().find(|way| way.kind == kind).expect("there is one");
    way.problem = Some(why.to_owned());
}

#[test]
fn a_copy_that_is_refused() {
    let refused = Finding::CopyRefused { problem: "full".to_owned(), remedy: None };
    finds(|facts| closed(facts, WayKind::Copy, "full"), &refused);
    assert_eq!(refused.severity(), Severity::Blocks);
}

#[test]
fn a_source_that_cannot_be_followed() {
    finds(
        |facts| {
            closed(facts, WayKind::FollowReplication, "a");
            closed(facts, WayKind::FollowTracking, "b");
            closed(facts, WayKind::FollowNotifications, "c");
        },
        &Finding::NoFeed {
            replication: Some("a".to_owned()),
            tracking: Some("b".to_owned()),
            notifications: Some("c".to_owned()),
        },
    );
    finds(
        |facts| {
            closed(facts, WayKind::FollowReplication, "a");
            closed(facts, WayKind::FollowTracking, "b");
        },
        &Finding::NotificationsOnly { why: "b".to_owned(), streams: 0 },
    );
    finds(
        |facts| {
            closed(facts, WayKind::FollowReplication, "a");
            facts.sample.types.insert("stream".to_owned(), TypeCount { keys: 3, bytes: 1 });
        },
        &Finding::TrackingOnly { why: "a".to_owned(), streams: 3 },
    );
}

#[test]
fn fences_that_are_refused() {
    finds(
        |facts| closed(facts, WayKind::CutoverAcl, "no"),
        &Finding::FenceRefused { way: WayKind::CutoverAcl, problem: "no".to_owned() },
    );
    finds(
        |facts| {
            for kind in [WayKind::CutoverAcl, WayKind::CutoverReadonlyReplica, WayKind::CutoverPause] {
                closed(facts, kind, "no");
            }
        },
        &Finding::NoFence,
    );
}

#[test]
fn nodes_that_are_not_well() {
    let (side, at) = (Side::Source, "s:1".to_owned());
    let silent = Finding::Silent { side, at: at.clone(), primary: true, why: NoAnswer::because("gone") };
    finds(|facts| source(facts).silent = Some(NoAnswer::because("gone")), &silent);
    finds(|facts| source(facts).loading = true, &Finding::Loading { side, at: at.clone() });
    finds(|facts| source(facts).cluster_ok = Some(false), &Finding::ClusterDown { side, at: at.clone() });
    finds(|facts| source(facts).link_up = Some(false), &Finding::ReplicaLinkDown { side, at: at.clone() });
    finds(|facts| source(facts).replica = true, &Finding::IsReplica { side, at: at.clone() });
    let why = WritesRefused::Snapshot;
    finds(
        |facts| source(facts).refuses_writes = Some(why),
        &Finding::WritesRefused { side, at: at.clone(), why },
    );
    finds(
        |facts| source(facts).clients = 9_000,
        &Finding::Clients { side, at: at.clone(), clients: 9_000, most: 10_000 },
    );
    let policy = "allkeys-lru".to_owned();
    finds(
        |facts| {
            let node = source(facts);
            (node.maxmemory_bytes, node.maxmemory_policy, node.evicted_keys) =
                (Some(1), "allkeys-lru".to_owned(), 7);
        },
        &Finding::Evicts { side, at, policy, evicted: 7 },
    );
    finds(|facts| source(facts).sentinels = 3, &Finding::Sentinels { side, sentinels: 3 });
}

#[test]
fn slots_that_are_not_at_rest() {
    let side = Side::Source;
    let unowned = |facts: &mut Facts| (facts.source.cluster, facts.source.unowned_slots) = (true, 5);
    finds(unowned, &Finding::Unowned { side, slots: 5 });
    let problem = "two claim slot 5".to_owned();
    let disorder = |facts: &mut Facts| facts.source.disorder = vec!["two claim slot 5".to_owned()];
    finds(disorder, &Finding::Disorder { side, problem });
    finds(|facts| facts.source.open_slots = 2, &Finding::OpenSlots { side, slots: 2 });
}

#[test]
fn feeds_that_would_not_last() {
    finds(
        |facts| {
            facts.rate = Rate { writes_per_second: 1.0, bytes_per_second: 1_000.0 };
            source(facts).backlog_bytes = Some(30_000);
        },
        &Finding::Backlog { at: "s:1".to_owned(), bytes: 30_000, lasts_ms: 30_000 },
    );
    // Nothing replicates yet: what is written is as long as what there is.
    finds(
        |facts| {
            facts.rate = Rate { writes_per_second: 10.0, bytes_per_second: 0.0 };
            facts.sample.dumped = Dumped { keys: 10, bytes: 1_000, took_us: 10 };
            source(facts).backlog_bytes = Some(2_000);
        },
        &Finding::Backlog { at: "s:1".to_owned(), bytes: 2_000, lasts_ms: 2_000 },
    );
    let limit = BufferLimit { hard_bytes: 1 << 20, soft_bytes: 0, soft_seconds: 0 };
    finds(
        |facts| source(facts).replica_buffer = Some(limit),
        &Finding::ReplicaBuffer { at: "s:1".to_owned(), bytes: 1 << 20 },
    );
    finds(
        |facts| {
            facts.sample.dumped = Dumped { keys: 1, bytes: 1, took_us: 1_000_000 };
            facts.rate.writes_per_second = 5.0;
        },
        &Finding::Outrun { writes_per_second: 5, carried_per_second: 1 },
    );
}

#[test]
fn a_target_without_room() {
    finds(
        |facts| {
            source(facts).dataset_bytes = 100;
            let node = &mut target(facts).nodes[0];
            (node.maxmemory_bytes, node.used_memory_bytes) = (Some(200), 100);
            "noeviction".clone_into(&mut node.maxmemory_policy);
        },
        &Finding::TargetTooSmall { needed_bytes: 110, free_bytes: 100 },
    );
    let keys = |facts: &mut Facts| {
        let counts = DbCounts { keys: 4, ..DbCounts::default() };
        target(facts).databases = [(0, counts), (3, counts)].into();
    };
    finds(keys, &Finding::TargetHasKeys { keys: 4 });
    let beyond = |facts: &mut Facts| facts.dbs = vec![DbPair { source: 20, target: 20 }];
    finds(beyond, &Finding::Databases { dbs: vec![20], target_has: 16 });
}

#[test]
fn what_the_target_cannot_hold() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    finds(
        |facts| facts.source.modules = Some(names(&["bf"])),
        &Finding::Modules { modules: vec!["bf".to_owned()] },
    );
    finds(
        |facts| {
            facts.source.modules = Some(names(&["bf"]));
            facts.sample.types.insert("MBbloom--".to_owned(), TypeCount { keys: 2, bytes: 9 });
        },
        &Finding::Types { types: vec!["MBbloom--".to_owned()], keys: 2 },
    );
    finds(
        |facts| {
            let counts = DbCounts { keys: 4, volatile: 2, ..DbCounts::default() };
            facts.source.databases.insert(0, counts);
            target(facts).hash_field_ttl = false;
        },
        &Finding::FieldExpiries { hashes: 2 },
    );
    finds(
        |facts| {
            facts.sample.largest = vec![large("string", 2_000_000)];
            target(facts).settings.insert("proto-max-bulk-len".to_owned(), "1048576".to_owned());
        },
        &Finding::TooLong { bytes: 2_000_000, most_bytes: 1_048_576 },
    );
    finds(
        |facts| (facts.libraries, target(facts).functions) = (1, false),
        &Finding::Functions { libraries: 1, supported: false },
    );
}

fn large(type_name: &str, bytes: u64) -> LargeKey {
    LargeKey { db: 0, key: "\"k\"".to_owned(), type_name: type_name.to_owned(), bytes, slot: 7 }
}

#[test]
fn keys_that_stand_out() {
    finds(
        |facts| {
            facts.sample.largest = vec![large("list", 9_000_000)];
            facts.sample.large = 1;
        },
        &Finding::LargeKeys { keys: 1, largest: "\"k\"".to_owned(), bytes: 9_000_000 },
    );
    finds(
        |facts| {
            target(facts).cluster = true;
            (facts.sample.keys, facts.sample.bytes) = (100, 1_000);
            facts.sample.slots = vec![SlotShare { slot: 7, keys: 30, bytes: 200 }];
        },
        &Finding::HotSlot { slot: 7, percent: 30 },
    );
}

fn used(facts: &mut Facts, name: &str, reach: Reach) {
    facts.source.used.insert(name.to_owned(), CommandUse { calls: 1, micros: 1, reach });
}

#[test]
fn commands_that_will_not_work() {
    finds(
        |facts| facts.lacking = Some(vec!["vadd".to_owned()]),
        &Finding::CommandsLacking { commands: vec!["vadd".to_owned()] },
    );
    finds(
        |facts| {
            target(facts).cluster = true;
            used(facts, "mget", Reach::Several);
            used(facts, "get", Reach::One);
        },
        &Finding::CrossSlot { commands: vec!["mget".to_owned()] },
    );
    finds(
        |facts| {
            target(facts).cluster = true;
            used(facts, "keys", Reach::Server);
            used(facts, "swapdb", Reach::Databases);
        },
        &Finding::WholeServer { commands: vec!["keys".to_owned(), "swapdb".to_owned()] },
    );
    let mut clusters = quiet();
    (clusters.source.cluster, target(&mut clusters).cluster) = (true, true);
    used(&mut clusters, "mget", Reach::Several);
    assert_eq!(judge(&clusters, &estimate(&clusters)), [], "the source is a cluster as well");
}

#[test]
fn what_stays_behind() {
    finds(|facts| source(facts).scripts = 2, &Finding::Scripts { scripts: 2 });
    finds(|facts| source(facts).clients_blocked = 2, &Finding::Blocked { clients: 2 });
    finds(|facts| source(facts).channels = 2, &Finding::Channels { channels: 2 });
    finds(|facts| facts.libraries = 2, &Finding::Functions { libraries: 2, supported: true });
    let users = |facts: &mut Facts| facts.source.users = Some(["app".to_owned()].into());
    finds(users, &Finding::Users { users: vec!["app".to_owned()] });
}

#[test]
fn what_differs() {
    finds(|facts| target(facts).clock_ms = -3_000, &Finding::Clocks { apart_ms: -3_000 });
    finds(|facts| target(facts).nodes[0].persistent = Some(false), &Finding::NotPersistent);
    finds(|facts| source(facts).replicas = 1, &Finding::NoReplicas);
    let (name, source, target) = ("timeout".to_owned(), "0".to_owned(), "30".to_owned());
    finds(
        |facts| {
            facts.source.settings = BTreeMap::from([("timeout".to_owned(), "0".to_owned())]);
            self::target(facts).settings = BTreeMap::from([("timeout".to_owned(), "30".to_owned())]);
        },
        &Finding::Setting { name, source, target },
    );
}
