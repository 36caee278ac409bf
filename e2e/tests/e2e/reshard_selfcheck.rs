//! The judges of resharding are judged: what clients of a cluster see and must find, and whether a cluster is
//! sound.

use std::collections::BTreeSet;
use std::time::Duration;

use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::{ClusterWriters, IncidentKind, Load, tags_in};
use whimbrel_judge::deployment::{Deployment, slot_of};
use whimbrel_judge::trouble::TroubleKind;
use whimbrel_lab::{Cluster, Engine};

/// Enough for anything here on a busy machine; nothing waits that long unless it fails.
const PATIENCE: Duration = Duration::from_secs(180);
const FAR_MS: &str = "4000000000000";

/// Sends a command to the owner of a key.
fn call(cluster: &Cluster, key: &str, words: &[&str]) {
    let owner = cluster.owner_of(slot_of(key.as_bytes())).expect("every slot has an owner");
    let mut connection = cluster.connection_to(owner);
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).expect("a command to the owner");
}

fn planted_losses_are_found(engine: Engine) {
    let cluster = Cluster::builder(engine).primaries(3).start().expect("the cluster starts");
    let deployment = Deployment::at(cluster.seed()).expect("the cluster answers");
    let tags = tags_in(0..16384, 24);
    let load = Load { clients: 8, pause: Duration::ZERO, ..Load::on(tags) };
    let writers = ClusterWriters::start(&shards::addresses(&cluster), &load);
    assert!(writers.wait_for(8_000, PATIENCE));
    // Slots that have moved are followed.
    {
        let _hold = writers.hold();
        for tag in load.tags.iter().take(2) {
            let slot = slot_of(tag.as_bytes());
            let owner = cluster.owner_of(slot).unwrap();
            cluster.move_slot(slot, owner, (owner + 1) % 3).unwrap();
        }
    }
    assert!(writers.wait_for(4_000, PATIENCE));
    let record = writers.stop();
    record.observed.assert_only_moved();
    assert!(record.observed.moved > 0 && record.observed.longest.is_some(), "{}", record.observed);
    // MIGRATE sends times that are left, not times of expiry: those may be off by a millisecond, and nothing
    // else.
    let drifted = record.check(&deployment).unwrap();
    assert!(drifted.iter().all(|trouble| trouble.words.contains("expiry is")), "{drifted:#?}");
    let drifted: BTreeSet<String> = drifted.into_iter().map(|trouble| trouble.name).collect();

    let present: BTreeSet<Vec<u8>> =
        whimbrel_judge::compare::snapshot(&deployment, 0).unwrap().keys.into_keys().collect();
    let (there, gone): (Vec<String>, Vec<String>) =
        record.key_names().partition(|key| present.contains(key.as_bytes()));
    // The name of a subject is that of its key, or of its keys without their last part.
    let mut taken = BTreeSet::new();
    let mut take = |names: &[String], kind: &str| -> String {
        let fits = |name: &&String| name.contains(kind) && !taken.contains(*name) && !drifted.contains(*name);
        let name = names.iter().find(fits).unwrap_or_else(|| panic!("no key of kind {kind}")).clone();
        taken.insert(name.clone());
        name
    };
    let mut expected = BTreeSet::new();
    let mut plant = |key: &str, kind: TroubleKind, words: &[&str]| {
        call(&cluster, key, words);
        let subject = key.trim_end_matches(":0").trim_end_matches(":left");
        expected.insert((kind, subject.to_owned()));
    };
    let key = take(&there, ":Hash");
    plant(&key, TroubleKind::Lost, &["DEL", &key]);
    let key = take(&there, ":Text");
    plant(&key, TroubleKind::Stale, &["APPEND", &key, "x"]);
    let key = take(&there, ":Counter");
    plant(&key, TroubleKind::Stale, &["DECR", &key]);
    let key = take(&there, ":List");
    plant(&key, TroubleKind::Stale, &["RPUSH", &key, "stranger"]);
    let key = take(&there, ":Set");
    plant(&key, TroubleKind::Stale, &["SADD", &key, "stranger"]);
    let key = take(&there, ":SortedSet");
    plant(&key, TroubleKind::Stale, &["ZADD", &key, "0.5", "stranger"]);
    let key = take(&there, ":Hash");
    plant(&key, TroubleKind::Stale, &["PEXPIREAT", &key, FAR_MS]);
    let key = take(&there, ":Queue");
    plant(&key, TroubleKind::Stale, &["XGROUP", "CREATE", &key, "strangers", "0"]);
    let key = take(&there, ":Queue");
    plant(&key, TroubleKind::Stale, &["XGROUP", "CREATECONSUMER", &key, "workers", "stranger"]);
    let key = take(&there, ":Tuple:0");
    plant(&key, TroubleKind::Stale, &["SET", &key, "another"]);
    let key = take(&there, ":Twins:left");
    plant(&key, TroubleKind::Lost, &["DEL", &key]);
    let key = take(&gone, ":Set");
    plant(&key, TroubleKind::Resurrected, &["SADD", &key, "back"]);
    let key = take(&gone, ":Queue");
    plant(&key, TroubleKind::Resurrected, &["XGROUP", "CREATE", &key, "workers", "0", "MKSTREAM"]);

    let found: BTreeSet<(TroubleKind, String)> =
        record.check(&deployment).unwrap().into_iter().map(|trouble| (trouble.kind, trouble.name)).collect();
    let found: BTreeSet<_> = found.into_iter().filter(|(_, name)| !drifted.contains(name)).collect();
    assert_eq!(found, expected);
}

/// What moving slots key by key does to clients is noticed.
#[test]
fn redirections_of_other_kinds_are_noticed() {
    let cluster = Cluster::builder(Engine::Redis70).primaries(2).start().expect("the cluster starts");
    let load = Load { pause: Duration::ZERO, ..Load::on(tags_in(0..1000, 4)) };
    let writers = ClusterWriters::start(&shards::addresses(&cluster), &load);
    assert!(writers.wait_for(1_000, PATIENCE));
    let marked = |state: [&str; 2]| {
        for tag in &load.tags {
            let slot = slot_of(tag.as_bytes()).to_string();
            for (node, state) in [(1, state[0]), (0, state[1])] {
                let id = cluster.node_id(1 - node);
                let rest: &[&str] = if state == "STABLE" { &[state] } else { &[state, id] };
                let mut command = redis::cmd("CLUSTER");
                command.arg("SETSLOT").arg(&slot).arg(rest).exec(&mut cluster.connection_to(node)).unwrap();
            }
        }
    };
    marked(["IMPORTING", "MIGRATING"]);
    assert!(writers.wait_for(2_000, PATIENCE));
    marked(["STABLE", "STABLE"]);
    assert!(writers.wait_for(500, PATIENCE));
    cluster.kill9(0).unwrap();
    // In steps: a machine that stands still is late for one of them alone.
    (0..10).for_each(|_| std::thread::sleep(Duration::from_millis(300)));
    let observed = writers.stop().observed;
    let seen: BTreeSet<IncidentKind> = observed.counts.keys().copied().collect();
    let expected = [IncidentKind::Ask, IncidentKind::TryAgain, IncidentKind::NotConnected];
    assert!(seen.is_superset(&expected.into()), "{observed}");
    assert!(seen.contains(&IncidentKind::Disconnected), "{observed}");
    assert!(std::panic::catch_unwind(|| observed.assert_only_moved()).is_err());
}

#[test]
fn a_stranger_among_the_writes_is_noticed_at_once() {
    let cluster = Cluster::builder(Engine::Valkey81).primaries(2).start().expect("the cluster starts");
    let deployment = Deployment::at(cluster.seed()).expect("the cluster answers");
    // The first subject is a counter.
    let load = Load { clients: 1, subjects: 1, pause: Duration::ZERO, ..Load::on(tags_in(0..100, 1)) };
    // The counter may just be absent, or expire before the next command: nobody can notice then.
    for attempt in 0..20 {
        let load = Load { prefix: format!("attempt{attempt}"), ..load.clone() };
        let writers = ClusterWriters::start(&shards::addresses(&cluster), &load);
        assert!(writers.wait_for(50, PATIENCE));
        {
            let _hold = writers.hold();
            let held = writers.acknowledged();
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(writers.acknowledged(), held, "the writers go on while they are held");
            for key in whimbrel_judge::compare::snapshot(&deployment, 0).unwrap().keys.into_keys() {
                let key = String::from_utf8(key).expect("names of keys are text");
                if key.starts_with(&load.prefix) {
                    call(&cluster, &key, &["INCRBY", &key, "1000000"]);
                }
            }
        }
        assert!(writers.wait_for(50, PATIENCE));
        let troubles = writers.stop().check(&deployment).unwrap();
        if troubles.iter().any(|trouble| trouble.kind == TroubleKind::WrongReply) {
            return;
        }
    }
    panic!("a counter was raised by somebody else, and no client noticed");
}

fn unsound_clusters_are_found(engine: Engine) {
    let cluster = Cluster::builder(engine).primaries(3).replicas(1).start().expect("the cluster starts");
    shards::lay_out(&cluster, &[vec![0..=99, 200..=16383], vec![100..=199], Vec::new()]).expect("a layout");
    assert_eq!(shards::slots_of(&cluster, 1).unwrap(), (100..200).collect());
    assert_eq!(shards::slots_of(&cluster, 2).unwrap().len(), 0);
    let tags = tags_in(0..16384, 3);
    for tag in &tags {
        let key = format!("{{{tag}}}");
        call(&cluster, &key, &["HSET", &key, "field", "value"]);
    }
    shards::assert_sound(&cluster);
    let found = |words: &str| {
        let troubles = shards::troubles(&cluster).unwrap();
        assert!(troubles.iter().any(|trouble| trouble.contains(words)), "{words}: {troubles:?}");
    };

    // What a primary did not send its replica.
    let key = format!("{{{}}}", tags[0]);
    let quietly = "redis.set_repl(redis.REPL_NONE) redis.call('HSET', KEYS[1], 'other', 'value')";
    call(&cluster, &key, &["EVAL", quietly, "1", &key]);
    found("against its primary");
    call(&cluster, &key, &["DEL", &key]);
    shards::assert_sound(&cluster);

    // A mark, and a key of another node that was put in under it.
    let slot = slot_of(tags[1].as_bytes()).to_string();
    let owner = cluster.owner_of(slot_of(tags[1].as_bytes())).unwrap();
    let wrong = (owner + 1) % 3;
    let mut connection = cluster.connection_to(wrong);
    let mut call_wrong =
        |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
    call_wrong(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", cluster.node_id(owner)]);
    call_wrong(&["ASKING"]);
    call_wrong(&["SET", &format!("{{{}}}:stray", tags[1]), "v"]);
    found("has a mark");
    call_wrong(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
    found("keys of others");
    call_wrong(&["FLUSHALL"]);
    shards::assert_sound(&cluster);

    // A slot that nobody owns in the eyes of one node, until its owner announces it again, a moment later.
    for _ in 0..50 {
        call_wrong(&["CLUSTER", "DELSLOTS", &slot]);
        let troubles = shards::troubles(&cluster).unwrap();
        if troubles.iter().any(|trouble| trouble.contains("knows no owner of 1 slots")) {
            return;
        }
        shards::assert_sound(&cluster);
    }
    panic!("a slot without an owner is not noticed");
}

whimbrel_lab::for_each_engine! {
    planted_losses_are_found
    unsound_clusters_are_found
}
