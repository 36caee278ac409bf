//! What travels, and what does not.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::fleet::carrier::names::read_left;
use crate::fleet::carrier::payloads::{Life, Reader};
use crate::fleet::carrier::{CARRY_KEYS_MAX, Copying, LOAD_KEY_BYTES_MAX, groups, measure, verify};

whimbrel_lab::for_each_engine! {
    async
        a_slot_without_keys_costs_one_look_at_each_side
        many_keys_and_long_ones_travel
        what_expires_on_its_way_does_not_come_back
}

whimbrel_lab::for_each_engine! {
    async on Redis80 Valkey91:
        a_hash_whose_fields_expire_on_their_way_is_no_failure
}

const WRITES: &str = "SET s v|SET n 42|SET empty |RPUSH l a b c|SADD set a b|SADD ints 1 2|ZADD z 1.5 a 2 \
    b|HSET h f v\
                      |XADD x 1-1 f v|XADD x 2-1 f w|XGROUP CREATE x g 0|XREADGROUP GROUP g c COUNT 1 \
                      STREAMS x >\
                      |PFADD p a|SETBIT bits 7 1|GEOADD geo 1 2 here";
const READS: &str = "GET s|GET n|GET empty|LRANGE l 0 -1|SMEMBERS set|SMEMBERS ints|ZRANGE z 0 -1 \
    WITHSCORES|HGETALL h\
                     |XRANGE x - +|XPENDING x g|XLEN x|PFCOUNT p|GETBIT bits 7|ZSCORE geo here";

/// The words of a line, with the tag in the names of keys.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let at = match words[0].as_str() {
        "XGROUP" => 2,
        "XREADGROUP" => 7,
        _ => 1,
    };
    words[at] = format!("{TAG}{}", words[at]);
    words
}

async fn run(side: &mut Backend, line: &str) -> Value {
    let words = words(line);
    let mut reply = side.ask(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    if let (true, Value::Array(items)) = (line.starts_with("SMEMBERS"), &mut reply) {
        items.sort_by_key(|item| item.as_bytes().cloned());
    }
    reply
}

#[tokio::test]
async fn every_type_travels_between_all_servers() {
    let (mut origins, mut destinations) = (Vec::new(), Vec::new());
    for (engine, Pair { a, b }) in Pair::each(&Engine::ALL).await {
        origins.push((engine, a));
        destinations.push((engine, b));
    }
    for (from, a) in &mut origins {
        for (to, b) in &mut destinations {
            b.ask(&["FLUSHALL"]).await;
            for line in WRITES.split('|') {
                run(a, line).await;
            }
            for key in ["h", "s", "x"] {
                run(a, &format!("PEXPIREAT {key} {FAR_MS}")).await;
            }
            // Of another slot.
            a.ask(&["SET", "other", "v"]).await;
            let mut left_out: &[&str] = &[];
            if *from != *to && *to == Engine::Redis70 {
                // It does not know the forms in which the others keep these.
                assert!(matches!(carry(a, b, token(1)).await, Err(Refusal::Unholdable { .. })), "{from:?}");
                left_out = &["set", "x"];
                (a.link, b.link) = (a.open(Side::Source).await, b.open(Side::Target).await);
                a.ask(&["DEL", "{a}set", "{a}x"]).await;
            }
            let carried = carry(a, b, token(1)).await.expect("carried");
            assert_eq!(carried.keys, 12 - left_out.len() as u64, "{from:?} to {to:?}");
            for line in
                READS.split('|').filter(|line| !left_out.contains(&line.split(' ').nth(1).expect("a key")))
            {
                let (read, was) = (run(b, line).await, run(a, line).await);
                assert_eq!(read, was, "{from:?} to {to:?}: {line}");
                assert!(!matches!(read, Value::Null | Value::Int(0)), "{line}");
            }
            for key in ["h", "s"] {
                assert_eq!(run(b, &format!("PEXPIRETIME {key}")).await, Value::Int(FAR_MS), "{key}");
            }
            assert_eq!(run(b, "PEXPIRETIME l").await, Value::Int(-1));
            assert_eq!(b.ask(&["EXISTS", "other"]).await, Value::Int(0));
            if from == to {
                // Nothing says in which order a set has its members.
                a.ask(&["DEL", "{a}set"]).await;
                b.ask(&["DEL", "{a}set"]).await;
                assert_eq!(a.all().await, b.all().await);
            }
            a.ask(&["FLUSHALL"]).await;
        }
    }
}

async fn a_slot_without_keys_costs_one_look_at_each_side(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.ask(&["CONFIG", "RESETSTAT"]).await;
    pair.b.ask(&["CONFIG", "RESETSTAT"]).await;
    for version in 1..=3 {
        assert_eq!(pair.carry(token(version)).await.expect("carried"), Carried::default());
    }
    for side in [&mut pair.a, &mut pair.b] {
        let stats = side.text(&["INFO", "commandstats"]).await.expect("text");
        for command in ["eval", "cluster|getkeysinslot", "exists"] {
            assert!(stats.contains(&format!("cmdstat_{command}:calls=3,")), "{command}: {stats}");
        }
        for command in ["dump", "restore", "unlink", "time"] {
            assert!(!stats.contains(&format!("cmdstat_{command}:")), "{command}: {stats}");
        }
        assert!(side.fence().await.is_some());
    }
}

async fn many_keys_and_long_ones_travel(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.fill(5_000).await;
    for i in 0..3 {
        // Two groups at least, and longer than one.
        let long = "x".repeat((1 + i) << 20);
        pair.a.ask(&["CONFIG", "SET", "rdbcompression", "no"]).await;
        pair.a.ask(&["SET", &format!("{TAG}long{i}"), &long]).await;
    }
    let carried = pair.carry(token(1)).await.expect("carried");
    assert_eq!(carried.keys, 5_003);
    assert!(carried.bytes > 6 << 20, "{carried:?}");
    assert_eq!(pair.b.ask(&["DBSIZE"]).await, Value::Int(5_004));
    pair.b.ask(&["CONFIG", "SET", "rdbcompression", "no"]).await;
    pair.assert_equal().await;
    assert_eq!(pair.a.clear(token(1)).await.expect("cleared"), 5_003);
    assert_eq!(pair.a.ask(&["DBSIZE"]).await, Value::Int(1));
    // And back, over what a later attempt finds there.
    pair.b.fill(10).await;
    let Pair { a, b } = &mut pair;
    let route = Route { from: &b.can, to: &a.can, dialects: (b.dialect, a.dialect) };
    let carried = carry_slot(&mut b.link, &mut a.link, slot(), token(2), &route).await.expect("carried");
    assert_eq!((carried.keys, carried.cleared), (5_003, 0));
    pair.assert_equal().await;
}

async fn what_expires_on_its_way_does_not_come_back(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    let Pair { a, b } = &mut pair;
    a.fill(3).await;
    // It goes when it is asked for, and not before.
    a.ask(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]).await;
    a.ask(&["SET", "{a}early", "v", "PX", "50"]).await;
    a.ask(&["SET", "{a}late", "v", "PX", "400"]).await;
    let (from_can, to_can) = (a.can, b.can);
    let route = Route { from: &from_can, to: &to_can, dialects: (a.dialect, b.dialect) };
    let origin = claim(&mut a.link, slot(), token(1), MoveEnd::Origin, &a.can).await.expect("taken");
    let destination =
        claim(&mut b.link, slot(), token(1), MoveEnd::Destination, &b.can).await.expect("taken");
    assert_eq!((origin.count, origin.names.len()), (5, 5));
    let mut copy = Copying {
        hold: &destination.hold,
        route: &route,
        lives: Default::default(),
        carried: Carried::default(),
    };
    // The one after it was listed, the other one after it was read.
    wait_gone(&mut a.own, "{a}early").await;
    let mut reader = Reader::new(origin.names);
    let items = reader.next(&mut a.link, &route).await.expect("read").expect("a group");
    let read_late =
        items.iter().any(|item| item.state.key == "{a}late" && matches!(item.life, Life::Until(_)));
    let keys = copy.note(items);
    wait_gone(&mut a.own, "{a}late").await;
    copy.write(&mut b.link, &keys).await.expect("written");
    assert!(reader.next(&mut a.link, &route).await.expect("read").is_none());
    verify(&mut a.link, &mut b.link, (&origin.hold, &destination.hold), &copy.lives).await.expect("right");
    assert_eq!(copy.carried.expired, if read_late { 1 } else { 2 });
    let left: Vec<Bytes> = b.all().await.into_iter().map(|(name, ..)| name).collect();
    assert_eq!(left, ["{a}0", "{a}1", "{a}2"]);
}

async fn wait_gone(link: &mut Link, key: &str) {
    let deadline = Instant::now() + PATIENCE;
    while link.call(&[b"EXISTS", key.as_bytes()]).await.expect("it answers") != Value::Int(0) {
        assert!(Instant::now() < deadline, "{key} does not expire");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_hash_whose_fields_expire_on_their_way_is_no_failure(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.ask(&["SET", "{a}s", "v"]).await;
    pair.a.ask(&["HSET", "{a}far", "f", "v", "g", "w"]).await;
    pair.a.ask(&["HPEXPIREAT", "{a}far", &FAR_MS.to_string(), "FIELDS", "1", "f"]).await;
    pair.a.ask(&["HSET", "{a}near", "f", "v"]).await;
    pair.a.ask(&["HPEXPIRE", "{a}near", "300", "FIELDS", "1", "f"]).await;
    let Pair { a, b } = &mut pair;
    let (from_can, to_can) = (a.can, b.can);
    let route = Route { from: &from_can, to: &to_can, dialects: (a.dialect, b.dialect) };
    let origin = claim(&mut a.link, slot(), token(1), MoveEnd::Origin, &a.can).await.expect("taken");
    let destination =
        claim(&mut b.link, slot(), token(1), MoveEnd::Destination, &b.can).await.expect("taken");
    let mut copy = Copying {
        hold: &destination.hold,
        route: &route,
        lives: Default::default(),
        carried: Carried::default(),
    };
    let mut reader = Reader::new(origin.names);
    let items = reader.next(&mut a.link, &route).await.expect("read").expect("a group");
    let keys = copy.note(items);
    wait_gone(&mut a.own, "{a}near").await;
    copy.write(&mut b.link, &keys).await.expect("written");
    wait_gone(&mut b.own, "{a}near").await;
    verify(&mut a.link, &mut b.link, (&origin.hold, &destination.hold), &copy.lives).await.expect("right");
    let at = b.ask(&["HPEXPIRETIME", "{a}far", "FIELDS", "1", "f"]).await;
    assert_eq!(at, Value::Array(vec![Value::Int(FAR_MS)]), "{engine:?}");
    pair.assert_equal().await;
}

#[tokio::test]
async fn what_the_other_side_cannot_read_is_named() {
    let older = [
        (Engine::Redis80, Engine::Redis70),
        (Engine::Redis80, Engine::Valkey91),
        (Engine::Valkey91, Engine::Valkey81),
        (Engine::Valkey91, Engine::Redis80),
    ];
    for (from, to) in older {
        let mut pair = Pair::of(from, to).await;
        pair.a.fill(20).await;
        pair.a.ask(&["HSET", "{a}hash", "f", "v"]).await;
        pair.a.ask(&["HPEXPIREAT", "{a}hash", &FAR_MS.to_string(), "FIELDS", "1", "f"]).await;
        let before = pair.a.all().await;
        match pair.carry(token(1)).await {
            Err(Refusal::Unholdable { key, why }) => {
                assert_eq!(key, "{a}hash");
                assert!(why.contains("does not read"), "{why}");
            }
            other => panic!("{from:?} to {to:?}: {other:?}"),
        }
        assert_eq!(pair.a.all().await, before);
        // The server has the last word.
        pair.again().await;
        pair.b.can.payload_version_max = Some(200);
        pair.b.dialect = pair.a.dialect;
        match pair.carry(token(2)).await {
            Err(Refusal::Unholdable { why, .. }) => {
                assert!(why.contains("does not understand"), "{why}");
            }
            other => panic!("{from:?} to {to:?}: {other:?}"),
        }
        assert_eq!(pair.a.all().await, before);
    }
}

#[tokio::test]
async fn a_payload_that_is_too_long_is_named() {
    let mut pair = Pair::of(Engine::Redis70, Engine::Redis70).await;
    pair.a.ask(&["CONFIG", "SET", "rdbcompression", "no"]).await;
    pair.a.ask(&["SETRANGE", "{a}long", &(128 << 20).to_string(), "x"]).await;
    assert!(measure(&mut pair.a.link, slot(), &pair.a.can).await.expect("measured").is_too_much());
    match pair.carry(token(1)).await {
        Err(Refusal::Unholdable { key, .. }) => assert_eq!(key, "{a}long"),
        other => panic!("{other:?}"),
    }
    assert_eq!(pair.b.ask(&["DBSIZE"]).await, Value::Int(1));
}

#[tokio::test]
async fn older_commands_do_as_well() {
    let mut pair = Pair::of(Engine::Redis70, Engine::Valkey81).await;
    pair.a.can.pexpiretime = false;
    pair.a.can.memory_usage = false;
    pair.a.can.functions = false;
    pair.a.fill(50).await;
    pair.a.ask(&["SET", "{a}mortal", "v", "PX", "3600000"]).await;
    pair.a.ask(&["SET", "{a}short", "v", "PX", "60"]).await;
    pair.carry(token(1)).await.expect("carried");
    let left = pair.b.ask(&["PTTL", "{a}mortal"]).await.as_int().expect("a time");
    assert!((3_000_000..=3_600_000).contains(&left), "{left}");
    assert_eq!(pair.b.ask(&["PTTL", "{a}1"]).await, Value::Int(-1));
    pair.b.wait_until_gone("{a}short").await;
    assert_eq!(measure(&mut pair.a.link, slot(), &pair.a.can).await.expect("measured").bytes, 0);
}

#[tokio::test]
async fn a_slot_is_measured_without_its_fence() {
    for cluster in start(&Engine::ALL) {
        let mut a = Backend::of(cluster, Side::Source).await;
        assert_eq!(measure(&mut a.link, slot(), &a.can).await.expect("measured").keys, 0);
        a.fill(700).await;
        a.ask(&["SET", "{a}long", &"x".repeat(1 << 20)]).await;
        let before = measure(&mut a.link, slot(), &a.can).await.expect("measured");
        assert_eq!(before.keys, 701);
        assert!(before.largest_bytes > 1 << 20 && before.bytes > before.largest_bytes, "{before:?}");
        assert!(!before.is_too_much());
        a.claim(token(1), MoveEnd::Origin).await.expect("taken");
        assert_eq!(measure(&mut a.link, slot(), &a.can).await.expect("measured"), before);
        a.ask(&["SETRANGE", "{a}huge", &LOAD_KEY_BYTES_MAX.to_string(), "x"]).await;
        let after = measure(&mut a.link, slot(), &a.can).await.expect("measured");
        assert!(after.is_too_much() && after.largest_bytes > LOAD_KEY_BYTES_MAX, "{after:?}");
    }
}

#[tokio::test]
async fn who_writes_meanwhile_is_noticed() {
    let mut pair = Pair::of(Engine::Valkey81, Engine::Redis70).await;
    pair.a.fill(5).await;
    let cases = [
        ("added", "{a}new", true, "added meanwhile"),
        ("removed", "{a}1", true, "1 keys were removed meanwhile"),
        ("added", "{a}new", false, "that were not carried there"),
        ("removed", "{a}1", false, "1 keys were written, and are not there"),
    ];
    for (version, (what, key, is_at_a, expected)) in (1..).zip(cases) {
        pair.carry(token(version)).await.expect("carried");
        let Pair { a, b } = &mut pair;
        let origin = a.claim(token(version), MoveEnd::Origin).await.expect("taken").hold;
        let destination = b.claim(token(version), MoveEnd::Destination).await.expect("taken").hold;
        let lives = (0..5).map(|key| (Bytes::from(format!("{TAG}{key}")), Life::Endless)).collect();
        verify(&mut a.link, &mut b.link, (&origin, &destination), &lives).await.expect("right");
        let side = if is_at_a { &mut *a } else { &mut *b };
        match what {
            "added" => side.ask(&["SET", key, "v"]).await,
            _ => side.ask(&["DEL", key]).await,
        };
        let outcome = verify(&mut a.link, &mut b.link, (&origin, &destination), &lives).await;
        let text = failure(outcome);
        assert!(text.contains(expected) && text.contains("nobody but the fleet"), "{text}");
        a.ask(&["DEL", "{a}new"]).await;
        a.fill(5).await;
    }
    // What has a time of its own may be gone when that has come, and not before.
    let Pair { a, b } = &mut pair;
    let origin = a.claim(token(9), MoveEnd::Origin).await.expect("taken").hold;
    let destination = b.claim(token(9), MoveEnd::Destination).await.expect("taken").hold;
    b.fill(5).await;
    let now = read_left(&mut b.link, &destination, 1).await.expect("a look").now_ms;
    for (life, is_right) in [(Life::Until(now), true), (Life::Until(now + 3_600_000), false)] {
        let mut lives: std::collections::HashMap<_, _> =
            (0..5).map(|key| (Bytes::from(format!("{TAG}{key}")), Life::Endless)).collect();
        lives.insert(Bytes::from_static(b"{a}mortal"), life);
        let outcome = verify(&mut a.link, &mut b.link, (&origin, &destination), &lives).await;
        assert_eq!(outcome.is_ok(), is_right);
    }
}

#[tokio::test]
async fn a_move_during_which_somebody_writes_fails() {
    let mut pair = Pair::of(Engine::Redis70, Engine::Redis70).await;
    pair.a.fill(5_000).await;
    let mut connection = pair.a.cluster.connection_to(0);
    let is_over = Arc::new(AtomicBool::new(false));
    let until = is_over.clone();
    let writer = std::thread::spawn(move || {
        for i in 0..50_000 {
            if until.load(Ordering::Relaxed) {
                break;
            }
            redis::cmd("SET").arg(format!("{TAG}new{i}")).arg("v").exec(&mut connection).expect("written");
        }
    });
    // It is at work before the first look.
    while pair.a.ask(&["EXISTS", "{a}new0"]).await == Value::Int(0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let outcome = pair.carry(token(1)).await;
    is_over.store(true, Ordering::Relaxed);
    writer.join().expect("it ends");
    assert!(failure(outcome).contains("keys were added meanwhile"));
}

#[tokio::test]
async fn more_keys_than_are_carried_stay() {
    let mut pair = Pair::of(Engine::Valkey91, Engine::Redis80).await;
    pair.a.fill(usize::try_from(CARRY_KEYS_MAX).expect("small") + 1).await;
    assert!(measure(&mut pair.a.link, slot(), &pair.a.can).await.expect("measured").is_too_much());
    let outcome = pair.carry(token(1)).await;
    assert!(matches!(outcome, Err(Refusal::TooMany { keys }) if keys == CARRY_KEYS_MAX + 1), "{outcome:?}");
    assert_eq!(pair.b.ask(&["DBSIZE"]).await, Value::Int(1));
    assert_eq!(pair.a.clear(token(1)).await.expect("cleared"), CARRY_KEYS_MAX + 1);
}

#[test]
fn groups_are_bounded_by_number_and_length() {
    let sizes =
        |sizes: &[usize]| groups(sizes, |size| *size).iter().map(|group| group.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&[]), [0; 0]);
    assert_eq!(sizes(&[1; 600]), [256, 256, 88]);
    assert_eq!(sizes(&[2 << 20, 5 << 20, 1, 1 << 20, 1]), [1, 1, 1, 1, 1]);
    assert_eq!(sizes(&[1 << 19, 1 << 19, 1]), [2, 1]);
}
