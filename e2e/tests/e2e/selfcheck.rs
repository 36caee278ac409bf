//! The judges are judged: equal data sets compare equal, and every planted difference is found.

use std::collections::BTreeSet;
use std::time::Duration;

use whimbrel_e2e::binary;
use whimbrel_judge::compare::{Comparison, assert_equal, diff, snapshot};
use whimbrel_judge::dataset::{Dataset, Scale};
use whimbrel_judge::deployment::{Deployment, now_ms, slot_of};
use whimbrel_judge::trouble::TroubleKind;
use whimbrel_judge::writers::{Load, Writers};
use whimbrel_lab::{Cluster, Engine, Proxy, Server};

whimbrel_lab::for_each_engine! {
    on Redis80 Valkey81 Valkey91:
        newer_servers_restore_equal_states
}

/// Enough for anything here on a busy machine; nothing waits that long unless it fails.
const PATIENCE: Duration = Duration::from_secs(60);
const FAR_MS: &str = "4000000000000";

fn server(engine: Engine) -> (Server, Deployment) {
    let server = Server::builder(engine).start().expect("the server starts");
    let deployment = Deployment::at(server.addr()).expect("the server answers");
    (server, deployment)
}

fn cluster(engine: Engine) -> (Cluster, Deployment) {
    let cluster = Cluster::builder(engine).primaries(3).start().expect("the cluster starts");
    let deployment = Deployment::at(cluster.seed()).expect("the cluster answers");
    (cluster, deployment)
}

fn equal_data_sets_compare_equal(engine: Engine) {
    let (_left, source) = server(engine);
    let (right, target) = server(engine);
    let reference_ms = now_ms();
    let generate =
        |seed| Dataset::generate(seed, Scale::Tiny).at(reference_ms).with_near_expiries().with_functions();
    let written = generate(7).write_to(&source).unwrap();
    assert_eq!(written, generate(7).write_to(&target).unwrap());
    assert_eq!(written.field_expiries, matches!(engine, Engine::Redis80 | Engine::Valkey91));
    assert!((450..700).contains(&written.total()), "{written:?}");
    Comparison::default().functions().assert_equal(&source, &target);

    assert_eq!(source.databases().unwrap(), [0, 1, 9]);
    let keys = snapshot(&source, 0).unwrap().keys;
    let types: BTreeSet<&str> = keys.values().map(|state| state.value.type_name()).collect();
    assert_eq!(types, BTreeSet::from(["hash", "list", "set", "stream", "string", "zset"]));
    assert!(keys.contains_key(&b""[..]));

    right.call(&["FLUSHALL"]);
    generate(8).write_to(&target).unwrap();
    assert_ne!(diff(&snapshot(&source, 0).unwrap(), &snapshot(&target, 0).unwrap(), 0), [""; 0]);
    assert_ne!(diff(&snapshot(&source, 9).unwrap(), &snapshot(&target, 9).unwrap(), 0), [""; 0]);
}

/// Commands that make a key on both sides, and those that make it another on the right.
struct Plant {
    key: &'static str,
    both: Vec<String>,
    right: Vec<String>,
    /// Words that must be in the difference.
    words: &'static str,
}

/// In each command, `@` stands for the key.
fn plant(key: &'static str, both: &[&str], right: &[&str], words: &'static str) -> Plant {
    let with_key = |commands: &[&str]| commands.iter().map(|command| command.replace('@', key)).collect();
    Plant { key, both: with_key(both), right: with_key(right), words }
}

fn plants(field_expiries: bool) -> Vec<Plant> {
    let stream = ["XADD @ 1-1 f v", "XADD @ 2-1 f v", "XGROUP CREATE @ g 0"];
    let pending = [
        stream[0],
        stream[1],
        stream[2],
        "XREADGROUP GROUP g c STREAMS @ >",
        "XCLAIM @ g c 0 1-1 2-1 TIME 1700000000000 RETRYCOUNT 1 JUSTID",
    ];
    let far = format!("PEXPIREAT @ {FAR_MS}");
    let mut plants = vec![
        plant("missing", &["SET @ v"], &["DEL @"], "missing on the right"),
        plant("extra", &[], &["RPUSH @ v"], "only on the right"),
        plant("type", &["SADD @ a"], &["DEL @", "RPUSH @ a"], "type is set against list"),
        plant("string:value", &["SET @ abc"], &["SET @ abd"], "string"),
        plant("string:length", &["SET @ abc"], &["APPEND @ d"], "string"),
        plant("string:bit", &["SETBIT @ 1000 1"], &["SETBIT @ 999 1"], "string"),
        plant("string:number-form", &["SET @ 7"], &["SET @ 07"], "string"),
        plant("string:large", &["SETRANGE @ 300000 x"], &["SETRANGE @ 150000 x"], "digest"),
        plant("hll", &["PFADD @ a b"], &["PFADD @ c"], "string"),
        plant("list:order", &["RPUSH @ a b"], &["DEL @", "RPUSH @ b a"], "list"),
        plant("list:element", &["RPUSH @ a b"], &["LSET @ 1 c"], "list"),
        plant("list:longer", &["RPUSH @ a b"], &["RPUSH @ b"], "(2 against 3 elements)"),
        plant("set:member", &["SADD @ a b"], &["SREM @ b", "SADD @ c"], "set"),
        plant("set:int", &["SADD @ 1 2"], &["SADD @ 3"], "set"),
        plant("zset:score", &["ZADD @ 1 a"], &["ZADD @ 1.0000000000000002 a"], "zset"),
        plant("zset:member", &["ZADD @ 1 a"], &["DEL @", "ZADD @ 1 b"], "zset"),
        plant("zset:inf", &["ZADD @ inf a"], &["ZADD @ 1.7976931348623157e308 a"], "zset"),
        plant("geo", &["GEOADD @ 13.361389 38.115556 p"], &["GEOADD @ 13.3614 38.115556 p"], "zset"),
        plant("hash:value", &["HSET @ f v"], &["HSET @ f w"], "hash"),
        plant("hash:field", &["HSET @ f v"], &["HSET @ g v"], "hash"),
        plant("hash:swapped", &["HSET @ f v g w"], &["HSET @ f w g v"], "hash"),
        plant("expiry:lost", &["SET @ v", &far], &["PERSIST @"], "against never"),
        plant("expiry:gained", &["SADD @ v"], &[&far], "never against"),
        plant("expiry:1-ms", &["RPUSH @ v", &far], &["PEXPIREAT @ 4000000000001"], "4000000000001"),
        plant("stream:entry", &stream, &["XADD @ 3-1 f v"], "stream entries"),
        plant("stream:field", &["XADD @ 1-1 f v"], &["DEL @", "XADD @ 1-1 g v"], "stream entries"),
        plant("stream:deleted", &stream, &["XDEL @ 1-1"], "highest deleted id"),
        plant("stream:last-id", &stream, &["XSETID @ 9-9 ENTRIESADDED 2 MAXDELETEDID 0-0"], "last id"),
        plant("stream:added", &stream, &["XSETID @ 2-1 ENTRIESADDED 9 MAXDELETEDID 0-0"], "entries added"),
        plant("group:missing", &stream, &["XGROUP DESTROY @ g"], "group \"g\" is only on the left"),
        plant("group:extra", &stream, &["XGROUP CREATE @ h 0"], "group \"h\" is only on the right"),
        plant("group:last-id", &stream, &["XGROUP SETID @ g 1-1"], "last delivered id"),
        plant("group:read", &stream, &["XGROUP SETID @ g 0 ENTRIESREAD 1"], "entries read"),
        plant("group:consumer", &stream, &["XGROUP CREATECONSUMER @ g idle"], "consumer \"idle\""),
        plant("pending:acknowledged", &pending, &["XACK @ g 1-1"], "pending 1-1 is only on the left"),
        plant(
            "pending:owner",
            &pending,
            &["XCLAIM @ g d 0 1-1 TIME 1700000000000 RETRYCOUNT 1 JUSTID"],
            "pending 1-1",
        ),
        plant(
            "pending:count",
            &pending,
            &["XCLAIM @ g c 0 1-1 TIME 1700000000000 RETRYCOUNT 2 JUSTID"],
            "deliveries: 2",
        ),
        plant(
            "pending:time",
            &pending,
            &["XCLAIM @ g c 0 2-1 TIME 1700000001000 RETRYCOUNT 1 JUSTID"],
            "pending 2-1",
        ),
    ];
    if field_expiries {
        let expiring = ["HSET @ f v g w", "HPEXPIREAT @ 4000000000000 FIELDS 1 f"];
        plants.extend([
            plant("field:lost", &expiring, &["HPERSIST @ FIELDS 1 f"], "field \"f\""),
            plant("field:gained", &expiring, &["HPEXPIREAT @ 4000000000000 FIELDS 1 g"], "field \"g\""),
            plant("field:1-ms", &expiring, &["HPEXPIREAT @ 4000000000001 FIELDS 1 f"], "4000000000001"),
            plant("field:deleted", &expiring, &["HDEL @ f"], "only on the left"),
        ]);
    }
    plants
}

fn planted_differences_are_found(engine: Engine) {
    let (left, source) = server(engine);
    let (right, target) = server(engine);
    let field_expiries = matches!(engine, Engine::Redis80 | Engine::Valkey91);
    let plants = plants(field_expiries);
    let call = |server: &Server, command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        server.call(&words);
    };
    for plant in &plants {
        for command in &plant.both {
            call(&left, command);
            call(&right, command);
        }
    }
    assert_equal(&source, &target);
    for plant in &plants {
        for command in &plant.right {
            call(&right, command);
        }
    }
    let found = diff(&snapshot(&source, 0).unwrap(), &snapshot(&target, 0).unwrap(), 0);
    for plant in &plants {
        let about: Vec<&String> =
            found.iter().filter(|line| line.starts_with(&format!("\"{}\": ", plant.key))).collect();
        assert!(about.iter().any(|line| line.contains(plant.words)), "{}: {about:?}", plant.key);
    }
    let keys = plants.iter().map(|plant| plant.key);
    assert_eq!(Comparison::default().except(keys).differences(&source, &target).unwrap(), [""; 0]);

    // In another database only.
    left.call(&["FLUSHALL"]);
    right.call(&["FLUSHALL"]);
    let mut elsewhere = target.primaries()[0].connect(9).unwrap();
    redis::cmd("SET").arg("k").arg("v").exec(&mut elsewhere).unwrap();
    let found = Comparison::default().differences(&source, &target).unwrap();
    assert_eq!(found, ["db 9 against 9, \"k\": string is only on the right"]);
    let other_pair = Comparison::default().databases(&[(0, 9)]).differences(&source, &target).unwrap();
    assert_eq!(other_pair, ["db 0 against 9, \"k\": string is only on the right"]);
    redis::cmd("FUNCTION")
        .arg(&["LOAD", whimbrel_judge::dataset::FUNCTION_LIBRARY])
        .exec(&mut elsewhere)
        .unwrap();
    let found = Comparison::default().functions().differences(&source, &target).unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
}

fn clusters_are_compared_as_a_whole(engine: Engine) {
    let (nodes, source) = cluster(engine);
    let (single, target) = server(engine);
    let dataset = Dataset::generate(11, Scale::Tiny).with_databases(&[0]).with_functions();
    assert_eq!(dataset.write_to(&source).unwrap(), dataset.write_to(&target).unwrap());
    Comparison::default().functions().assert_equal(&source, &target);
    for primary in nodes.primaries() {
        assert!(matches!(primary.call(&["DBSIZE"]), redis::Value::Int(50..)), "one node has next to nothing");
    }

    // A key on a node that does not own its slot, as an interrupted migration leaves it.
    let slot = slot_of(b"stray").to_string();
    let owner = nodes.owner_of(slot_of(b"stray")).unwrap();
    let wrong = (owner + 1) % 3;
    let mut connection = nodes.connection_to(wrong);
    let mut call = |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
    call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", nodes.node_id(owner)]);
    call(&["ASKING"]);
    call(&["SET", "stray", "v"]);
    call(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
    let found = Comparison::default().differences(&source, &target).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("\"stray\"") && found[0].contains("does not own its slot"), "{found:?}");
    assert_eq!(single.call(&["EXISTS", "stray"]), redis::Value::Int(0));
}

fn writers_know_what_was_promised(engine: Engine) {
    let (nodes, deployment) = cluster(engine);
    let writers = Writers::start(&deployment, Load { threads: 2, ..Load::default() });
    assert!(writers.wait_for(2_000, PATIENCE));
    // Redirected clients write on.
    for slot in (0..300).step_by(50) {
        let owner = nodes.owner_of(slot).unwrap();
        nodes.move_slot(slot, owner, (owner + 1) % 3).unwrap();
    }
    assert!(writers.wait_for(2_000, PATIENCE));
    let record = writers.stop();
    assert_eq!(record.unknown, 0, "{:?}", record.refusals);
    record.assert_kept(&deployment);

    let present = snapshot(&deployment, 0).unwrap().keys;
    let (there, gone): (Vec<&str>, Vec<&str>) =
        record.key_names().partition(|key| present.contains_key(key.as_bytes()));
    let (lost, stale, risen) = (there[0], there[1], gone[0]);
    let deployment = deployment.refreshed().unwrap();
    let call = |verb: &str, key: &str, args: &[&str]| {
        let owner = deployment.owner_of(key.as_bytes()).unwrap();
        let mut connection = deployment.primaries()[owner].connect(0).unwrap();
        redis::cmd(verb).arg(key).arg(args).exec(&mut connection).unwrap();
    };
    call("DEL", lost, &[]);
    call("PEXPIREAT", stale, &[FAR_MS]);
    call("SET", risen, &["back"]);
    let found: BTreeSet<(TroubleKind, String)> =
        record.check(&deployment).unwrap().into_iter().map(|trouble| (trouble.kind, trouble.key)).collect();
    let expected = BTreeSet::from([
        (TroubleKind::Lost, lost.to_owned()),
        (TroubleKind::Stale, stale.to_owned()),
        (TroubleKind::Resurrected, risen.to_owned()),
    ]);
    assert_eq!(found, expected);
}

whimbrel_lab::for_each_engine! {
    equal_data_sets_compare_equal
    planted_differences_are_found
    clusters_are_compared_as_a_whole
    writers_know_what_was_promised
}

/// What a state looks like must not depend on the server it is read from.
fn newer_servers_restore_equal_states(engine: Engine) {
    let (_old, source) = server(Engine::Redis70);
    Dataset::generate(5, Scale::Tiny).with_databases(&[0]).write_to(&source).unwrap();
    let mut reader = source.primaries()[0].connect(0).unwrap();
    let keys = snapshot(&source, 0).unwrap().keys;
    let (_new, target) = server(engine);
    let mut writer = target.primaries()[0].connect(0).unwrap();
    for (key, state) in &keys {
        let payload: Vec<u8> = redis::cmd("DUMP").arg(key).query(&mut reader).unwrap();
        let expires_at_ms = state.expires_at_ms.unwrap_or(0);
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(expires_at_ms).arg(payload).arg("ABSTTL").exec(&mut writer).unwrap();
    }
    assert_equal(&source, &target);
}

#[test]
fn expired_keys_are_no_difference_but_missing_ones_are() {
    let (left, source) = server(Engine::Redis80);
    let (_right, target) = server(Engine::Redis80);
    left.call(&["SET", "expires", "v"]);
    left.call(&["PEXPIREAT", "expires", FAR_MS]);
    left.call(&["HSET", "fields", "f", "v"]);
    left.call(&["HPEXPIREAT", "fields", FAR_MS, "FIELDS", "1", "f"]);
    left.call(&["SET", "stays", "v"]);
    let full = snapshot(&source, 0).unwrap();
    let mut empty = snapshot(&target, 0).unwrap();
    assert_eq!(diff(&full, &empty, 0).len(), 3);
    assert_eq!(diff(&empty, &full, 0).len(), 3);
    // As if the empty side had been read when two of the keys had expired.
    empty.read_ms = FAR_MS.parse().unwrap();
    assert_eq!(diff(&full, &empty, 0), ["\"stays\": string is missing on the right"]);
    assert_eq!(diff(&empty, &full, 0), ["\"stays\": string is only on the right"]);
    empty.read_ms -= 1;
    assert_eq!(diff(&full, &empty, 0).len(), 3);
}

/// Keys that go away between two commands of a reading are gone, not an error.
#[test]
fn keys_may_vanish_while_they_are_read() {
    let (server, deployment) = server(Engine::Valkey91);
    let writers = Writers::start(&deployment, Load { keys_per_thread: 20, ..Load::default() });
    assert!(writers.wait_for(500, PATIENCE));
    for _ in 0..100 {
        snapshot(&deployment, 0).unwrap();
    }
    writers.stop().assert_kept(&deployment);
    drop(server);
}

#[test]
fn unanswered_writes_may_be_either_way() {
    let (server, direct) = server(Engine::Redis70);
    let proxy = Proxy::start(&server.addr()).unwrap();
    let through = Deployment::at(proxy.addr()).unwrap();
    let writers = Writers::start(&through, Load::default());
    for _ in 0..5 {
        assert!(writers.wait_for(500, PATIENCE));
        proxy.cut();
        proxy.heal().unwrap();
    }
    assert!(writers.wait_for(500, PATIENCE));
    // The other half of the writes goes past the proxy, as clients do after a cutover.
    writers.switch_to(&direct);
    assert!(writers.wait_for(500, PATIENCE));
    let record = writers.stop();
    assert_ne!(record.unknown + record.refused, 0);
    record.assert_kept(&direct);
}

#[test]
fn the_binary_is_built_and_runs() {
    assert!(binary::whimbrel().is_file());
    binary::run(&["--version"]).expect_code(0);
}

#[test]
fn a_terminal_shows_the_first_differences_and_a_report_all() {
    let ((left, _), (right, _)) = (server(Engine::Redis70), server(Engine::Valkey91));
    for number in 0..30 {
        left.call(&["SET", &format!("k{number}"), "v"]);
    }
    let (from, to) = (left.addr(), right.addr());
    let listed = |more: &[&str]| {
        let output = binary::run(&[&["verify", &*from, &*to][..], more].concat()).expect_code(6).stdout;
        (output.matches("differs ").count(), output.contains("--list N lists up to N"))
    };
    assert_eq!(listed(&[]), (20, true));
    assert_eq!(listed(&["--list", "29"]), (29, true));
    assert_eq!(listed(&["--list", "30"]), (30, false));
    let json = binary::run(&["verify", &from, &to, "--json"]).expect_code(6).stdout;
    assert_eq!(json.matches("on the source only").count(), 30);
}

mod matrix {
    use super::*;

    #[test]
    fn large_data_sets_compare_equal_but_for_what_was_changed() {
        let (left, source) = server(Engine::Valkey91);
        let (_right, target) = server(Engine::Valkey91);
        let dataset = Dataset::generate(3, Scale::Large);
        dataset.write_to(&source).unwrap();
        dataset.write_to(&target).unwrap();
        assert_eq!(left.call(&["LLEN", "large:list"]), redis::Value::Int(1_000_000));
        assert_eq!(left.call(&["XLEN", "large:stream"]), redis::Value::Int(200_000));
        assert_equal(&source, &target);
        left.call(&["LSET", "large:list", "654321", "other"]);
        left.call(&["SREM", "large:set", "element:654321"]);
        left.call(&["ZADD", "large:zset", "0.25", "element:654321"]);
        left.call(&["HSET", "large:hash", "field:654321", "other"]);
        left.call(&["XDEL", "large:stream", "1234-1"]);
        let found = diff(&snapshot(&source, 0).unwrap(), &snapshot(&target, 0).unwrap(), 0);
        let keys = ["large:list", "large:set", "large:zset", "large:hash", "large:stream"];
        let is_of = |line: &str, key: &str| line.starts_with(&format!("\"{key}\": "));
        for key in keys {
            assert!(found.iter().any(|line| is_of(line, key)), "{key}: {found:?}");
        }
        // Everything else is equal.
        assert!(found.iter().all(|line| keys.iter().any(|key| is_of(line, key))), "{found:?}");
    }
}
