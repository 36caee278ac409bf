//! Verification between real servers.

mod data;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use data::*;
use tokio_util::sync::CancellationToken;
use whimbrel_core::glob::Pattern;
use whimbrel_core::select::Selection;
use whimbrel_core::slot::{Slot, tag_for_slot};
use whimbrel_engine::error::{Code, Side};
use whimbrel_flow::budget::{RateChange, Rates};
use whimbrel_flow::journal::{self, Journal};
use whimbrel_flow::verify::{
    Depth, DifferenceKind, Scope, Settle, VerifyOptions, VerifyProgress, VerifyState, verify,
    verify_with_journal,
};
use whimbrel_lab::{Cluster, Engine, Proxy, Server, wait_until};
use whimbrel_wire::value::Value;

whimbrel_lab::for_each_engine! {
    async
        a_cluster_equals_a_standalone_server_either_way_round
}

whimbrel_lab::for_each_engine! {
    async on Redis80 Valkey91: what_ends_while_it_is_compared_does_not_differ
}

/// A far future, not a multiple of a second.

#[tokio::test]
async fn equal_values_in_other_encodings_and_orders_are_equal() {
    for (source, target) in SAME.into_iter().chain(MIXED) {
        let (source_server, target_server) = (plain(source), loosely_encoded(target));
        let (mut s, mut t) = two(&source_server, &target_server).await;
        let mut data = data_set(has_field_ttl(source) && has_field_ttl(target));
        s.run(&data).await;
        // Unordered collections are filled the other way round.
        let unordered = |c: &Command| matches!(&c[0][..], b"SADD" | b"HSET" | b"ZADD" | b"SET");
        data.sort_by_key(|c| !unordered(c));
        let end = data.iter().take_while(|c| unordered(c)).count();
        data[..end].reverse();
        t.run(&data).await;
        let report = compare(&s, &t, quiet()).await;
        assert!(report.is_equal(), "{source:?} to {target:?}: {:?} {:?}", report.tally, report.differences);
        let keys = first_number(&source_server, &["DBSIZE"]);
        assert!(report.tally.compared >= keys && keys > 3_000, "{:?} of {keys}", report.tally);
        assert_eq!(report.tally.equal, report.tally.compared);
        assert!(report.bytes_compared > 1_100_000, "{}", report.bytes_compared);
    }
}

/// The first number in a reply.
fn first_number(server: &Server, command: &[&str]) -> u64 {
    let reply = format!("{:?}", server.call(command));
    let digits = reply.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().expect("a number")
}

#[tokio::test]
async fn every_planted_difference_is_found_with_its_kind() {
    for (source, target) in SAME.into_iter().chain([(Engine::Redis70, Engine::Valkey91)]) {
        let (source_server, target_server) = (plain(source), plain(target));
        let (mut s, mut t) = two(&source_server, &target_server).await;
        let (base, plants) = plants(has_field_ttl(source) && has_field_ttl(target));
        let others: Vec<Command> = (0..1_500).map(|i| words(&format!("SET other:{i} {i}"))).collect();
        for side in [&mut s, &mut t] {
            side.run(&base).await;
            side.run(&others).await;
        }
        let before = compare(&s, &t, quiet()).await;
        assert!(before.is_equal(), "{source:?} to {target:?}: {:?}", before.differences);

        for plant in &plants {
            t.run(&plant.commands).await;
        }
        let report = compare(&s, &t, quiet()).await;
        let found = kinds(&report);
        for plant in &plants {
            let kinds = found.get(plant.key);
            assert!(
                kinds.is_some_and(|kinds| kinds.contains(&plant.finds)),
                "{source:?} to {target:?}: {:?} should be found at {:?}, found: {kinds:?}",
                plant.finds,
                plant.key,
            );
        }
        assert_eq!(found.len(), plants.len(), "{source:?} to {target:?}: {found:?}");
        let many = &found["many-ways"];
        assert!(many.contains(&DifferenceKind::Ttl), "both ways are reported: {many:?}");
        let tally = &report.tally;
        assert_eq!(tally.missing, 1);
        assert_eq!(tally.extra, 2);
        assert_eq!(tally.differing, plants.len() as u64 - 3);
        assert_eq!(tally.unstable, 0);
        assert_eq!(tally.equal + tally.differing + tally.missing, tally.compared);
        assert!(!report.is_equal() && !report.stopped_early);

        let staging = report.differences.iter().find(|d| d.key.as_deref() == Some("whimbrel:staging:{x}:1"));
        assert!(staging.is_some_and(|d| d.detail.contains("staging key")), "{staging:?}");
        let big = report.differences.iter().find(|d| d.key.as_deref() == Some("ten-megabytes"));
        assert!(big.is_some_and(|d| d.detail.contains("10485759")), "{big:?}");
        let binary = report.differences.iter().find(|d| d.key_hex.is_some()).expect("the binary key");
        assert_eq!(binary.key_hex.as_deref(), Some("ff0062696e617279"));

        // Only this many are kept, but all are counted; and less depth finds less.
        let few = compare(&s, &t, VerifyOptions { differences_max: 3, ..quiet() }).await;
        assert_eq!((few.differences.len(), few.differences_cut), (3, true));
        assert_eq!((few.tally.differing, few.kinds), (report.tally.differing, report.kinds.clone()));
        let meta = compare(&s, &t, VerifyOptions { depth: Depth::Meta, ..quiet() }).await;
        let at: BTreeSet<_> = kinds(&meta).into_keys().collect();
        let expected = [
            "extra",
            "many-ways",
            "missing",
            "ttl-extra",
            "ttl-gone",
            "ttl-off",
            "type",
            "whimbrel:staging:{x}:1",
        ];
        assert_eq!(at, expected.into_iter().map(str::to_owned).collect());
        let source_only = compare(&s, &t, VerifyOptions { check_extra: false, ..quiet() }).await;
        assert_eq!((source_only.tally.extra, source_only.tally.extra_checked), (0, 0));
    }
}

#[tokio::test]
async fn vector_sets_are_compared_by_their_elements() {
    let (source, target) = (plain(Engine::Redis80), plain(Engine::Redis80));
    let (mut s, mut t) = two(&source, &target).await;
    let keys = ["same", "vector", "attribute", "element", "more", "large"];
    let mut commands = Vec::new();
    for key in keys {
        let count = if key == "large" { 5_000 } else { 100 };
        commands.extend(
            (0..count).map(|i| words(&format!("VADD {key} VALUES 3 0.{i} {i} 7 e{i} SETATTR {{\"n\":{i}}}"))),
        );
    }
    s.run(&commands).await;
    recopy(&mut s, &mut t, &keys.map(str::to_owned)).await;
    let report = compare(&s, &t, quiet()).await;
    assert!(report.is_equal(), "{:?}", report.differences);
    assert_eq!((report.tally.equal, report.tally.opaque), (6, 1), "of the large one, a part was compared");

    t.run(&[
        words("VADD vector VALUES 3 9 9 9 e7"),
        words("VSETATTR attribute e7 {}"),
        words("VREM element e7"),
        words("VADD element VALUES 3 9 9 9 other"),
        words("VADD more VALUES 3 9 9 9 other"),
        words("VREM large e7"),
    ])
    .await;
    let found = kinds(&compare(&s, &t, quiet()).await);
    assert!(found["vector"].contains(&DifferenceKind::Value), "{found:?}");
    assert!(found["attribute"].contains(&DifferenceKind::Value), "{found:?}");
    assert!(found["element"].contains(&DifferenceKind::Element), "{found:?}");
    assert!(found["more"].contains(&DifferenceKind::Length), "{found:?}");
    assert!(found["large"].contains(&DifferenceKind::Length), "{found:?}");
    assert_eq!(found.len(), 5);
}

#[tokio::test]
async fn a_tolerance_for_expiry_times() {
    let (source, target) = (plain(Engine::Redis70), plain(Engine::Valkey81));
    let (mut s, mut t) = two(&source, &target).await;
    for i in 0..10 {
        s.run(&[words(&format!("SET k{i} v PXAT {FAR_MS}"))]).await;
        t.run(&[words(&format!("SET k{i} v PXAT {}", FAR_MS + i))]).await;
    }
    let differing = async |ttl_tolerance_ms| {
        compare(&s, &t, VerifyOptions { ttl_tolerance_ms, ..quiet() }).await.tally.differing
    };
    assert_eq!(differing(0).await, 9);
    assert_eq!(differing(1).await, 8);
    assert_eq!(differing(9).await, 0);

    // What one side has dropped already and the other is about to drop is no difference, either way round.
    let soon = first_number(&source, &["TIME"]) * 1_000 + 60_000;
    s.run(&[words(&format!("SET leaving v PXAT {soon}"))]).await;
    t.run(&[words(&format!("SET staying v PXAT {soon}"))]).await;
    let strict = compare(&s, &t, VerifyOptions { ttl_tolerance_ms: 9, ..quiet() }).await;
    assert_eq!((strict.tally.missing, strict.tally.extra), (1, 1));
    let lenient = compare(&s, &t, VerifyOptions { ttl_tolerance_ms: 120_000, ..quiet() }).await;
    assert!(lenient.is_equal(), "{:?}", lenient.differences);
}

/// One server shows a field in the millisecond in which another has removed it, and a string that has expired
/// reads as an empty one.
async fn what_ends_while_it_is_compared_does_not_differ(engine: Engine) {
    const HASHES: u64 = 1_000;
    let source = plain(engine);
    // It removes what has ended as early as it can.
    let target = Server::builder(engine).arg("hz", "500").start().expect("the target starts");
    let (mut s, mut t) = two(&source, &target).await;
    let (mut compared, mut round, mut filling_ms) = (0, 0, 0);
    while round < 10 || compared <= 20 * HASHES {
        assert!(round < 60, "only {compared} were compared");
        round += 1;
        // A busy machine needs longer to write them.
        let begun = Instant::now();
        let begin_ms = first_number(&source, &["TIME"]) * 1_000 + 1_500 + 3 * filling_ms;
        let commands: Vec<Command> = (0..HASHES)
            .flat_map(|i| {
                // Every fourth has a field that stays.
                let stays = if i % 4 == 0 { " stays v" } else { "" };
                let end_ms = begin_ms + i / 2;
                [
                    words(&format!("HSET h{i} f v g v{stays}")),
                    words(&format!("HPEXPIREAT h{i} {end_ms} FIELDS 2 f g")),
                    words(&format!("SET short{i} v PXAT {end_ms}")),
                    words(&format!("SET long{i} {} PXAT {end_ms}", "v".repeat(3_000))),
                ]
            })
            .collect();
        s.run(&commands).await;
        t.run(&commands).await;
        filling_ms = u64::try_from(begun.elapsed().as_millis()).expect("a short time");
        while first_number(&source, &["DBSIZE"]) > HASHES / 4 {
            let report = compare(&s, &t, VerifyOptions { settle: Settle::none(), ..quiet() }).await;
            assert!(report.is_equal(), "{round}: {:?} {:?}", report.tally, report.differences);
            compared += report.tally.compared;
        }
    }
}

#[tokio::test]
async fn servers_without_absolute_expiry_times_are_compared_all_the_same() {
    let (source, target) = (plain(Engine::Redis70), plain(Engine::Redis70));
    let mut old = probe(&source.url(), Side::Source).await;
    old.capabilities.pexpiretime = false;
    old.capabilities.memory_usage = false;
    let (mut s, mut t) = (Fixture::of(old), Fixture::new(&target.url(), Side::Target).await);
    let (base, plants) = plants(false);
    s.run(&base).await;
    t.run(&base).await;
    // The time left is reported in whole milliseconds, and a busy machine lets a server wait before it says
    // it. What is planted differs by a second.
    let options = || VerifyOptions { ttl_tolerance_ms: 500, ..quiet() };
    let before = compare(&s, &t, options()).await;
    assert!(before.is_equal(), "{:?}", before.differences);
    for plant in &plants {
        t.run(&plant.commands).await;
    }
    let found = kinds(&compare(&s, &t, options()).await);
    assert_eq!(found.len(), plants.len(), "{found:?}");
    for plant in plants {
        assert!(found[plant.key].contains(&plant.finds), "{}: {:?}", plant.key, found[plant.key]);
    }
}

async fn a_cluster_equals_a_standalone_server_either_way_round(engine: Engine) {
    let cluster = Cluster::builder(engine).primaries(3).start().expect("a cluster");
    let server = plain(engine);
    let mut c = Fixture::new(&cluster.seed(), Side::Source).await;
    let mut s = Fixture::new(&server.url(), Side::Target).await;
    let data = data_set(has_field_ttl(engine));
    c.run(&data).await;
    s.run(&data).await;
    let report = compare(&c, &s, quiet()).await;
    assert!(report.is_equal(), "{engine:?}: {:?} {:?}", report.tally, report.differences);
    assert_eq!(report.tally.compared, cluster.total_keys().expect("a count"));
    let counts = compare(&c, &s, VerifyOptions { depth: Depth::Counts, ..quiet() }).await;
    assert!(counts.is_equal(), "{:?}", counts.differences);
    assert_eq!(counts.dbs[0].source_keys, Some(report.tally.compared));

    s.run(&[words("SET many:1 x"), words("DEL many:2"), words("SET new v"), words("HDEL big:hash field:1")])
        .await;
    let there = kinds(&compare(&c, &s, quiet()).await);
    let back = kinds(&compare(&s, &c, quiet()).await);
    assert_eq!(there.keys().collect::<Vec<_>>(), ["big:hash", "many:1", "many:2", "new"]);
    assert_eq!(back.keys().collect::<Vec<_>>(), ["big:hash", "many:1", "many:2", "new"]);
    assert!(
        there["many:2"].contains(&DifferenceKind::Missing) && back["many:2"].contains(&DifferenceKind::Extra)
    );

    let counts = compare(&c, &s, VerifyOptions { depth: Depth::Counts, ..quiet() }).await;
    assert!(counts.is_equal(), "one key less and one more: counts cannot show that");
    s.run(&[words("DEL many:3")]).await;
    let counts = compare(&c, &s, VerifyOptions { depth: Depth::Counts, ..quiet() }).await;
    assert_eq!(counts.tally.count_mismatches, 1);
    assert_eq!(
        (counts.differences[0].kind, counts.differences[0].key.clone()),
        (DifferenceKind::Count, None)
    );
}

#[tokio::test]
async fn slots_that_moved_or_are_on_the_move_are_followed() {
    let cluster = Cluster::builder(Engine::Valkey81).primaries(3).start().expect("a cluster");
    let server = plain(Engine::Redis80);
    let mut c = Fixture::new(&cluster.seed(), Side::Target).await;
    let mut s = Fixture::new(&server.url(), Side::Source).await;
    let tag: Vec<Command> = (0..50).map(|i| words(&format!("SET {{tag}}:{i} v{i}"))).collect();
    for side in [&mut c, &mut s] {
        side.run(&tag).await;
        side.run(&(0..200).map(|i| words(&format!("SET key:{i} {i}"))).collect::<Vec<_>>()).await;
    }
    let slot = Slot::of_key(b"tag").number();
    let from = cluster.owner_of(slot).expect("an owner");
    let to = (from + 1) % 3;
    let (from_node, to_node) = (&cluster.nodes()[from], &cluster.nodes()[to]);
    let slot_text = slot.to_string();
    to_node.call(&["CLUSTER", "SETSLOT", &slot_text, "IMPORTING", cluster.node_id(from)]);
    from_node.call(&["CLUSTER", "SETSLOT", &slot_text, "MIGRATING", cluster.node_id(to)]);
    let port = to_node.port().to_string();
    for i in 0..25 {
        from_node.call(&["MIGRATE", "127.0.0.1", &port, &format!("{{tag}}:{i}"), "0", "5000"]);
    }
    let report = compare(&s, &c, quiet()).await;
    assert!(report.is_equal(), "{:?}", report.differences);
    assert_eq!(report.tally.compared, 250);
    let back = compare(&c, &s, quiet()).await;
    assert!(back.is_equal(), "{:?}", back.differences);

    for i in 25..50 {
        from_node.call(&["MIGRATE", "127.0.0.1", &port, &format!("{{tag}}:{i}"), "0", "5000"]);
    }
    for node in [to_node, from_node] {
        node.call(&["CLUSTER", "SETSLOT", &slot_text, "NODE", cluster.node_id(to)]);
    }
    // One that hears of it later would make it look as if it moved meanwhile.
    cluster.wait_ok().expect("all nodes know");
    // The topology that was read at the beginning is out of date now.
    let report = compare(&s, &c, quiet()).await;
    assert!(report.is_equal(), "{:?}", report.differences);
    assert!(report.notes.is_empty(), "nothing has moved meanwhile: {:?}", report.notes);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_slot_that_moves_meanwhile_are_not_overlooked() {
    overlooks_nothing(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_slot_that_goes_and_comes_back_are_not_overlooked() {
    overlooks_nothing(true).await;
}

/// A slot moves to a shard that was read already, and back once its own was read.
async fn overlooks_nothing(comes_back: bool) {
    let cluster = Cluster::builder(Engine::Valkey81).primaries(3).start().expect("a cluster");
    let server = plain(Engine::Redis80);
    let mut c = Fixture::new(&cluster.seed(), Side::Source).await;
    let mut s = Fixture::new(&server.url(), Side::Target).await;
    // From the shard that is read last to the one that is read first, once that was read.
    let topology = c.deployment.topology();
    let first = &topology.shards[0].slots;
    let last = topology.shards[2].slots.iter().next().expect("it owns slots");
    let key = |n: usize| format!("{{{}}}:{n}", tag_for_slot(last));
    let all: Vec<String> = (0..3_000).map(|i| format!("key:{i}")).chain((0..20).map(key)).collect();
    let data: Vec<Command> = all.iter().map(|key| words(&format!("SET {key} v"))).collect();
    c.run(&data).await;
    s.run(&data).await;
    s.run(&[words(&format!("DEL {}", key(7)))]).await;
    let read_first = all.iter().filter(|key| first.contains(Slot::of_key(key.as_bytes()))).count();
    let (from, to) = (last.number(), first.iter().next().expect("it owns slots").number());
    let [from, to] = [from, to].map(|slot| cluster.owner_of(slot).expect("an owner"));

    let progress = Arc::new(VerifyProgress::default());
    let rates = Rates::new(Some(300), None);
    let at_rate = |keys| rates.change(RateChange { keys: Some(keys), ..RateChange::default() });
    let options =
        VerifyOptions { rates: rates.clone(), batch_keys: 20, concurrency: 1, check_extra: false, ..quiet() };
    let run = tokio::spawn(verify(
        c.deployment.clone(),
        s.deployment.clone(),
        options,
        progress.clone(),
        CancellationToken::new(),
    ));
    while progress.compared.load(Ordering::Relaxed) <= read_first as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // As long as it takes, and then as fast as it can.
    at_rate(10);
    let moves = |from, to| {
        tokio::task::block_in_place(|| cluster.move_slot(last.number(), from, to).expect("it moves"));
    };
    moves(from, to);
    if comes_back {
        at_rate(300);
        // The names of all others have been read by then.
        while progress.compared.load(Ordering::Relaxed) < 2_900 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        at_rate(10);
        moves(to, from);
    }
    at_rate(0);
    let report = run.await.expect("a task").expect("a report");
    assert_eq!(kinds(&report).into_keys().collect::<Vec<_>>(), [key(7)]);
    assert!(report.notes.iter().any(|note| note.contains("compared once more")), "{:?}", report.notes);
}

#[tokio::test]
async fn a_cluster_is_read_from_its_replicas() {
    let cluster = Cluster::builder(Engine::Redis70).primaries(2).replicas(1).start().expect("a cluster");
    let server = plain(Engine::Redis70);
    let mut c = Fixture::new(&cluster.seed(), Side::Source).await;
    let mut s = Fixture::new(&server.url(), Side::Target).await;
    let data: Vec<Command> = (0..500).map(|i| words(&format!("SET key:{i} {i}"))).collect();
    c.run(&data).await;
    s.run(&data).await;
    // A node names a replica once it has heard of its offset, and any of the nodes may be asked.
    let is_with_replica = |shard: &redis::Value| shard.as_sequence().is_some_and(|words| words.len() == 4);
    let names_replicas = |node: &Server| {
        let slots = node.call(&["CLUSTER", "SLOTS"]);
        slots.as_sequence().is_some_and(|shards| shards.len() == 2 && shards.iter().all(is_with_replica))
    };
    wait_until("all nodes name the replicas", || cluster.nodes().iter().all(names_replicas));
    let gets = |i: usize| {
        format!("{:?}", cluster.nodes()[i].call(&["INFO", "commandstats"])).contains("cmdstat_getrange")
    };
    let replicas: Vec<&Server> = (0..2).flat_map(|i| cluster.replicas_of(i)).collect();
    let report = compare(&c, &s, VerifyOptions { from_replica: true, ..quiet() }).await;
    assert!(report.is_equal(), "{:?}", report.differences);
    assert_eq!(report.tally.compared, 500);
    for (i, node) in cluster.nodes().iter().enumerate() {
        let is_replica = replicas.iter().any(|r| r.port() == node.port());
        assert_eq!(gets(i), is_replica, "node {i} was read from");
    }
}

#[tokio::test]
async fn a_live_source_settles_and_real_differences_stand() {
    let (source, target) = (plain(Engine::Redis80), plain(Engine::Redis80));
    let (mut s, mut t) = two(&source, &target).await;
    let still: Vec<Command> = (0..2_000).map(|i| words(&format!("SET still:{i} {i}"))).collect();
    s.run(&still).await;
    t.run(&still).await;
    t.run(&[words("SET still:17 other"), words("DEL still:18"), words("SET still:new v")]).await;

    let done = Arc::new(AtomicBool::new(false));
    let mut writer = Fixture::of(probe(&source.url(), Side::Source).await);
    let (mut reader, mut keeper) = (
        Fixture::of(probe(&source.url(), Side::Source).await),
        Fixture::of(probe(&target.url(), Side::Target).await),
    );
    let stop = done.clone();
    let writing = tokio::spawn(async move {
        let mut n = 0u32;
        while !stop.load(Ordering::Relaxed) {
            let i = n % 100;
            writer
                .run(&[
                    words(&format!("SET hot:text:{i} {n}")),
                    words(&format!("HSET hot:hash:{i} f{n} {n}")),
                    words(&format!("RPUSH hot:list:{i} {n}")),
                    words(&format!(
                        "DEL hot:{}:{}",
                        ["text", "hash", "list"][(n % 3) as usize],
                        (i + 50) % 100
                    )),
                ])
                .await;
            n += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let stop = done.clone();
    let keeping = tokio::spawn(async move {
        // One more time after the writer has stopped.
        loop {
            let last = stop.load(Ordering::Relaxed);
            for kind in ["text", "hash", "list"] {
                let keys: Vec<String> = (0..100).map(|i| format!("hot:{kind}:{i}")).collect();
                recopy(&mut reader, &mut keeper, &keys).await;
            }
            if last {
                break;
            }
        }
    });
    let settle = Settle { pause_ms: 300, ..Settle::default() };
    let options = VerifyOptions { settle, concurrency: 2, ..VerifyOptions::default() };
    let expected = ["still:17", "still:18", "still:new"];
    for _ in 0..2 {
        let report = compare(&s, &t, options.clone()).await;
        let found = kinds(&report);
        // A key that nobody brings up to date for longer than is waited for does differ.
        let still: Vec<_> = found.keys().filter(|key| !key.starts_with("hot:")).collect();
        assert_eq!(still, expected, "{:?} {:?}", report.tally, report.differences);
        assert!(report.unstable_keys.iter().all(|k| k.starts_with("hot:")), "{:?}", report.unstable_keys);
        assert_eq!(report.unstable_keys.len() as u64, report.tally.unstable);
    }
    done.store(true, Ordering::Relaxed);
    writing.await.expect("the writer");
    keeping.await.expect("the keeper");
    let report = compare(&s, &t, options).await;
    let found = kinds(&report);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected, "{:?}", report.differences);
    assert_eq!(report.tally.unstable, 0);
}

/// Copies keys as they are, deletions included.
async fn recopy(from: &mut Fixture, to: &mut Fixture, keys: &[String]) {
    if from.links.is_empty() {
        from.run(&[words("EXISTS x")]).await;
    }
    let link = from.links.values_mut().next().expect("open");
    for key in keys {
        link.push(&[b"DUMP", key.as_bytes()]);
    }
    link.flush().await.expect("sent");
    let mut commands = Vec::new();
    for (key, payload) in keys.iter().zip(link.replies(keys.len()).await.expect("payloads")) {
        commands.push(match payload {
            Value::Bulk(payload) => bytes(&[b"RESTORE", key.as_bytes(), b"0", &payload, b"REPLACE"]),
            _ => bytes(&[b"DEL", key.as_bytes()]),
        });
    }
    to.run(&commands).await;
}

#[tokio::test]
async fn a_key_that_never_holds_still_is_unstable() {
    let (source, target) = (plain(Engine::Valkey81), plain(Engine::Valkey81));
    let (mut s, mut t) = two(&source, &target).await;
    s.run(&[words("SET steady v"), words("SET counter 0")]).await;
    t.run(&[words("SET steady v"), words("SET counter -1")]).await;
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let mut writer = Fixture::of(probe(&source.url(), Side::Source).await);
    let writing = tokio::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            writer.run(&[words("INCR counter")]).await;
        }
    });
    // Longer than a busy machine lets the writer wait.
    let settle = Settle { rounds: 3, pause_ms: 500, unchanged: 1 };
    let report = compare(&s, &t, VerifyOptions { settle, ..quiet() }).await;
    done.store(true, Ordering::Relaxed);
    writing.await.expect("the writer");
    assert_eq!(report.unstable_keys, ["counter"]);
    assert_eq!((report.tally.unstable, report.tally.differing, report.tally.equal), (1, 0, 1));
    assert!(!report.is_equal());
}

#[tokio::test]
async fn selections_types_databases_and_samples() {
    let (source, target) = (plain(Engine::Redis70), plain(Engine::Valkey91));
    let (mut s, mut t) = two(&source, &target).await;
    let keys: Vec<Command> = (0..2_000)
        .flat_map(|i| [words(&format!("SET user:{i} {i}")), words(&format!("SADD group:{i} {i}"))])
        .collect();
    s.run(&keys).await;
    t.run(&keys).await;
    s.run_in(3, &[words("SET three 3"), words("SET four 4")]).await;
    t.run_in(5, &[words("SET three 3"), words("SET four 5")]).await;
    t.run(&[
        words("SET user:5 x"),
        words("SADD group:5 x"),
        words("SET user:new x"),
        words("SADD group:new x"),
    ])
    .await;
    let patterns = |texts: &[&str]| texts.iter().map(|p| Pattern::new(p.as_bytes())).collect::<Vec<_>>();
    let found = async |options: VerifyOptions| {
        let report = compare(&s, &t, options).await;
        (kinds(&report).into_keys().collect::<Vec<_>>(), report)
    };

    let selection = Selection { include: patterns(&["user:*"]), ..Selection::default() };
    let (keys, report) = found(VerifyOptions { selection, ..quiet() }).await;
    assert_eq!(keys, ["user:5", "user:new"]);
    assert_eq!(report.tally.compared, 2_000);
    let selection = Selection { exclude: patterns(&["user:*", "*:5"]), ..Selection::default() };
    let (keys, _) = found(VerifyOptions { selection: selection.clone(), ..quiet() }).await;
    assert_eq!(keys, ["group:new"]);
    let counts = compare(&s, &t, VerifyOptions { selection, depth: Depth::Counts, ..quiet() }).await;
    assert_eq!((counts.dbs[0].source_keys, counts.dbs[0].target_keys), (Some(1_999), Some(2_000)));

    for types in [vec!["set".to_owned()], vec!["set".to_owned(), "hash".to_owned()]] {
        let (keys, report) = found(VerifyOptions { types: types.clone(), ..quiet() }).await;
        assert_eq!(keys, ["group:5", "group:new"], "{types:?}");
        assert_eq!(report.tally.equal, 1_999);
        let counts = compare(&s, &t, VerifyOptions { types, depth: Depth::Counts, ..quiet() }).await;
        assert_eq!((counts.dbs[0].source_keys, counts.dbs[0].target_keys), (Some(2_000), Some(2_001)));
    }

    let (keys, report) = found(VerifyOptions { dbs: vec![(3, 5), (0, 0)], ..quiet() }).await;
    assert_eq!(keys, ["four", "group:5", "group:new", "user:5", "user:new"]);
    assert_eq!(report.differences.iter().find(|d| d.key.as_deref() == Some("four")).map(|d| d.db), Some(3));
    assert_eq!((report.dbs[0].tally.differing, report.dbs[1].tally.differing), (1, 2));
    let text = serde_json::to_string(&report).expect("a report is JSON");
    assert!(text.contains("\"kind\":\"element\"") && text.contains("\"source_db\":3"), "{text}");

    // The same half on every run, and on both sides: nothing looks missing or extra that is not.
    let half = VerifyOptions { scope: Scope::SamplePercent(50.0), ..quiet() };
    let (first, report) = found(half.clone()).await;
    let (second, again) = found(half).await;
    assert_eq!((&first, report.tally.compared), (&second, again.tally.compared));
    assert!(
        first.iter().all(|k| ["group:5", "group:new", "user:5", "user:new"].contains(&k.as_str())),
        "{first:?}"
    );
    assert!((1_700..2_300).contains(&report.tally.compared), "{:?}", report.tally);
    let (_, report) =
        found(VerifyOptions { scope: Scope::SampleKeys(300), check_extra: false, ..quiet() }).await;
    assert!((200..=300).contains(&report.tally.compared), "{:?}", report.tally);
    let selection = Selection { include: patterns(&["user:*"]), ..Selection::default() };
    let sample = VerifyOptions { scope: Scope::SampleKeys(300), selection, check_extra: false, ..quiet() };
    assert_eq!(found(sample).await.1.tally.compared, 300);
}

#[tokio::test]
async fn a_broken_link_is_repaired() {
    let (source, target) = (plain(Engine::Valkey91), plain(Engine::Redis80));
    let proxies =
        [Proxy::start(&source.addr()).expect("a proxy"), Proxy::start(&target.addr()).expect("a proxy")];
    let (mut s, mut t) = (
        Fixture::new(&proxies[0].addr(), Side::Source).await,
        Fixture::new(&proxies[1].addr(), Side::Target).await,
    );
    let data: Vec<Command> = (0..4_000).map(|i| words(&format!("SET key:{i} {i}"))).collect();
    s.run(&data).await;
    t.run(&data).await;
    t.run(&[words("SET key:7 x")]).await;
    let progress = Arc::new(VerifyProgress::default());
    let options = VerifyOptions { rates: Rates::new(Some(4_000), None), batch_keys: 64, ..quiet() };
    let run = tokio::spawn(verify(
        s.deployment.clone(),
        t.deployment.clone(),
        options,
        progress.clone(),
        CancellationToken::new(),
    ));
    for (proxy, after) in proxies.iter().zip([500, 1_500]) {
        while progress.compared.load(Ordering::Relaxed) < after {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.heal().expect("healed");
    }
    let report = run.await.expect("a task").expect("a report");
    assert_eq!(kinds(&report).into_keys().collect::<Vec<_>>(), ["key:7"]);
    assert!(report.tally.compared >= 4_000 && report.tally.extra_checked >= 4_000, "{:?}", report.tally);
}

#[tokio::test]
async fn a_run_that_is_stopped_reports_what_it_knows() {
    let (source, target) = (plain(Engine::Redis70), plain(Engine::Redis70));
    let (mut s, t) = two(&source, &target).await;
    s.run(&(0..5_000).map(|i| words(&format!("SET key:{i} {i}"))).collect::<Vec<_>>()).await;
    let progress = Arc::new(VerifyProgress::default());
    let stop = CancellationToken::new();
    let options = VerifyOptions { rates: Rates::new(Some(1_000), None), batch_keys: 50, ..quiet() };
    let run = tokio::spawn(verify(
        s.deployment.clone(),
        t.deployment.clone(),
        options,
        progress.clone(),
        stop.clone(),
    ));
    while progress.compared.load(Ordering::Relaxed) < 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    let report = run.await.expect("a task").expect("a report");
    assert!(report.stopped_early && !report.is_equal());
    assert!(report.tally.compared >= 200 && report.tally.compared < 5_000, "{:?}", report.tally);
    assert_eq!(progress.total_estimate.load(Ordering::Relaxed), 5_000);
}

#[tokio::test]
async fn a_run_that_was_stopped_goes_on_and_keeps_what_it_found() {
    const KEYS: usize = 6_000;
    let (source, target) = (plain(Engine::Redis70), plain(Engine::Redis70));
    let (mut s, mut t) = two(&source, &target).await;
    let keys: Vec<Command> = (0..KEYS).map(|i| words(&format!("SET key:{i} {i}"))).collect();
    s.run(&keys).await;
    t.run(&keys).await;
    // Some are found before it is stopped, some after.
    t.run(&(0..KEYS).step_by(10).map(|i| words(&format!("SET key:{i} other"))).collect::<Vec<_>>()).await;
    t.run(&[words("SET extra 1")]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let journal = Journal::open(folder.path(), "verify-1", "{}", false).expect("a journal");
    let run = |journal, options, progress: &Arc<VerifyProgress>, stop: &CancellationToken| {
        let (source, target) = (s.deployment.clone(), t.deployment.clone());
        verify_with_journal(source, target, options, progress.clone(), Some(journal), stop.clone())
    };
    let (progress, stop) = (Arc::new(VerifyProgress::default()), CancellationToken::new());
    let slow = VerifyOptions {
        rates: Rates::new(Some(2_000), None),
        journal_period_ms: 20,
        differences_max: KEYS,
        ..quiet()
    };
    let first = tokio::spawn(run(journal, slow, &progress, &stop));
    while progress.compared.load(Ordering::Relaxed) < 3_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    assert!(first.await.expect("a task").expect("a report").stopped_early);

    // What was aborted may hold the journal for a moment longer.
    let reopened = async || loop {
        match Journal::<VerifyState>::open(folder.path(), "verify-1", "{}", true) {
            Ok(journal) => return journal,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let kept = run(reopened().await, quiet(), &Arc::default(), &stop).await.expect("a report");
    assert!((1..6_000).contains(&kept.tally.compared) && kept.tally.differing > 0, "{:?}", kept.tally);
    let resumed = reopened().await;
    let (progress, stop) = (Arc::new(VerifyProgress::default()), CancellationToken::new());
    let options = VerifyOptions { differences_max: KEYS, ..quiet() };
    let going_on = run(resumed, options, &progress, &stop);
    let report = going_on.await.expect("a report");
    // What a page had that was not written down is compared again, and counted once.
    assert_eq!((report.tally.compared, report.tally.differing, report.tally.extra), (6_000, 600, 1));
    assert_eq!(report.tally.extra_checked, 6_001);
    let named: BTreeSet<_> = report.differences.iter().map(|difference| &difference.key).collect();
    assert_eq!((named.len(), report.stopped_early), (601, false));
    assert!(!journal::exists(folder.path(), "verify-1"), "it is complete");
}

#[tokio::test]
async fn what_cannot_be_helped_is_an_error_that_names_the_side() {
    let source = plain(Engine::Redis70);
    let target = Server::builder(Engine::Redis70)
        .user_acl("user blind on >pass ~* +@all -getrange")
        .start()
        .expect("a server");
    let mut s = Fixture::new(&source.url(), Side::Source).await;
    let url = format!("redis://blind:pass@{}", target.addr());
    let mut t = Fixture::new(&url, Side::Target).await;
    s.run(&[words("SET k v")]).await;
    t.run(&[words("SET k v")]).await;
    let error = try_compare(&s, &t, quiet()).await.expect_err("not permitted");
    assert_eq!(error.side, Side::Target);
    assert_eq!(error.server().map(|e| e.code.clone()), Some(Code::NoPermission));
    assert!(error.to_string().contains("GETRANGE") && error.remedy.is_some(), "{error}");

    let none = VerifyOptions { dbs: Vec::new(), ..quiet() };
    assert!(try_compare(&s, &t, none).await.is_err());
    let beyond = VerifyOptions { dbs: vec![(0, 99)], ..quiet() };
    let error = try_compare(&s, &t, beyond).await.expect_err("no such database");
    assert!(error.to_string().contains("99"), "{error}");
    let nothing = VerifyOptions { scope: Scope::SamplePercent(0.0), ..quiet() };
    assert!(try_compare(&s, &t, nothing).await.is_err());
}
