//! Servers before Redis 7.0, and targets that take short commands only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Connection, Value};
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::syncing::{Sync, wait_until_following, writers};
use whimbrel_judge::deployment::{Deployment, ask, now_ms};
use whimbrel_lab::{Cluster, Engine, Server};

/// Far more than any of these takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Expiring keys.
const MORTALS: u64 = 5_000;

fn whimbrel(args: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("a folder for journals");
    Invocation::new(args).env("XDG_STATE_HOME", state.path()).timeout(PATIENCE).run()
}

fn start(engine: Engine) -> Server {
    Server::builder(engine).start().expect("the server starts")
}

fn connect(addr: &str) -> Connection {
    let deployment = Deployment::at(addr).expect("the server answers");
    deployment.primaries()[0].connect(0).expect("a connection")
}

/// Keeps two processors busy, as long as it lives.
struct Load(Arc<AtomicBool>);

impl Load {
    fn begin() -> Load {
        let goes_on = Arc::new(AtomicBool::new(true));
        for _ in 0..2 {
            let goes_on = goes_on.clone();
            std::thread::spawn(move || while goes_on.load(Ordering::Relaxed) {});
        }
        Load(goes_on)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Writes keys of two types with expiries, and returns these.
fn fill_mortals(deployment: &Deployment) -> BTreeMap<String, i64> {
    let far_ms = now_ms() + 3_600_000;
    let mut times = BTreeMap::new();
    for primary in deployment.primaries() {
        let mut connection = primary.connect(0).expect("a connection");
        let mut pipeline = redis::pipe();
        for n in 0..MORTALS {
            let (key, at) = (format!("mortal:{n}"), far_ms + (n * 7_919 % 1_000_003) as i64);
            if !primary.owns(whimbrel_judge::deployment::slot_of(key.as_bytes())) {
                continue;
            }
            match n % 3 {
                0 => pipeline.cmd("RPUSH").arg(&key).arg("a").arg("b"),
                _ => pipeline.cmd("SET").arg(&key).arg(n),
            };
            pipeline.ignore().cmd("PEXPIREAT").arg(&key).arg(at).ignore();
            times.insert(key, at);
        }
        pipeline.exec(&mut connection).expect("the source takes them");
    }
    times
}

fn expiries_arrive(source: &str, deployment: &Deployment) {
    let times = fill_mortals(deployment);
    let target = start(Engine::Redis70);
    let load = Load::begin();
    whimbrel(&["copy", source, &target.addr(), "--verify"]).expect_code(0);
    whimbrel(&["verify", source, &target.addr(), "--ttl-tolerance", "0ms"]).expect_code(0);
    drop(load);
    let mut connection = connect(&target.addr());
    let mut found = redis::pipe();
    for key in times.keys() {
        found.cmd("PEXPIRETIME").arg(key);
    }
    let found: Vec<i64> = found.query(&mut connection).expect("times");
    for ((key, expected), found) in times.iter().zip(found) {
        assert_eq!(*expected, found, "{key}");
    }
}

#[test]
fn expiries_arrive_to_the_millisecond() {
    for engine in [Engine::Redis62, Engine::Redis60] {
        let server = start(engine);
        expiries_arrive(&server.addr(), &Deployment::at(server.addr()).expect("it answers"));
    }
}

#[test]
fn expiries_of_a_cluster_arrive_to_the_millisecond() {
    let cluster = Cluster::builder(Engine::Redis62).primaries(3).start().expect("the cluster starts");
    expiries_arrive(&cluster.seed(), &Deployment::at(cluster.seed()).expect("it answers"));
}

/// Keys of every type that all these servers have.
const DATA: &[&str] = &[
    "SET string:plain value",
    "SET string:mortal value",
    "PEXPIREAT string:mortal 4102444800123",
    "SETBIT string:long 80000 1",
    "PEXPIREAT string:long 4102444800123",
    "HSET hash a 1 b 2 c 3",
    "SADD set a b c",
    "SADD set:integers 1 2 3",
    "ZADD zset 1.5 a -inf b 3 c",
    "RPUSH list a b c d",
    "PEXPIREAT list 4102444800123",
    "XADD stream:plain 1-1 f v",
    "XADD stream:plain 1-2 f w",
    "XADD stream 1-1 f v",
    "XADD stream 1-18446744073709551615 f v",
    "XADD stream 2-0 f v",
    "XADD stream 3-0 f v",
    "XADD stream 4-0 f v",
    "XGROUP CREATE stream workers 0",
    "XGROUP CREATE stream late $",
    "XREADGROUP GROUP workers busy COUNT 3 STREAMS stream >",
    "XREADGROUP GROUP workers other COUNT 1 STREAMS stream >",
    "XREADGROUP GROUP workers idle STREAMS stream 0",
    "XREADGROUP GROUP late bored STREAMS stream 0",
    "XDEL stream 2-0",
    "XGROUP CREATE stream:empty waiting $ MKSTREAM",
];

/// What these say is to be the same on both sides. `XPENDING` and `XINFO` report some things relative to now,
/// and are looked at apart.
const QUERIES: &[&str] = &[
    "GET string:plain",
    "GET string:mortal",
    "GET string:long",
    "SCARD set",
    "SISMEMBER set b",
    "SMEMBERS set:integers",
    "HMGET hash a b c",
    "HLEN hash",
    "ZRANGE zset 0 -1 WITHSCORES",
    "LRANGE list 0 -1",
    "XRANGE stream:plain - +",
    "XRANGE stream - +",
    "XLEN stream:empty",
    "XPENDING stream workers",
    "XPENDING stream late",
    "DBSIZE",
];

/// The fields `names` of each part of a reply of `XINFO`.
fn parts(connection: &mut Connection, words: &str, names: &[&str]) -> Vec<String> {
    let parts: Vec<BTreeMap<String, Value>> =
        redis::from_redis_value(ask(connection, words)).expect("a list of maps");
    let shown = |part: &BTreeMap<String, Value>| {
        let fields: Vec<_> = names.iter().map(|name| part.get(*name)).collect();
        format!("{fields:?}")
    };
    parts.iter().map(shown).collect()
}

fn assert_same(source: &mut Connection, target: &mut Connection, what: &str) {
    for query in QUERIES {
        assert_eq!(ask(source, query), ask(target, query), "{what}: {query}");
    }
    for (query, names) in [
        ("XINFO GROUPS stream", &["name", "consumers", "pending", "last-delivered-id"][..]),
        ("XINFO GROUPS stream:empty", &["name", "last-delivered-id"]),
        ("XINFO CONSUMERS stream workers", &["name", "pending"]),
        ("XINFO CONSUMERS stream late", &["name", "pending"]),
    ] {
        assert_eq!(parts(source, query, names), parts(target, query, names), "{what}: {query}");
    }
    for key in ["string:mortal", "string:long", "list"] {
        let Value::Int(left_ms) = ask(target, &format!("PTTL {key}")) else { panic!("{key}") };
        let at = now_ms() + left_ms;
        assert!((4_102_444_700_000..=4_102_444_900_000).contains(&at), "{what}: {key} expires at {at}");
    }
}

#[test]
fn every_type_from_and_to_redis_6_0() {
    use Engine::{Redis60, Redis62, Redis70};
    for (from, to) in
        [(Redis60, Redis70), (Redis70, Redis60), (Redis60, Redis62), (Redis62, Redis60), (Redis60, Redis60)]
    {
        let what = format!("{from} to {to}");
        let source = start(from);
        let mut ours = connect(&source.addr());
        DATA.iter().for_each(|words| drop(ask(&mut ours, words)));
        // As they are, and by the commands of their types.
        for big_key in ["8MiB", "64"] {
            let target = start(to);
            let copied =
                whimbrel(&["copy", &source.addr(), &target.addr(), "--verify", "--big-key", big_key]);
            copied.expect_code(0);
            assert_same(&mut ours, &mut connect(&target.addr()), &format!("{what}, {big_key}"));
        }
    }
}

/// Redis 6.0 pauses all its clients or none. A dry run and the real cutover refuse every fence that pauses
/// writes, and name the way that works, which loses nothing.
fn redis_6_0_is_left_by_an_external_cutover(to: Engine) {
    let (source, target) = (start(Engine::Redis60), start(to));
    let writers = writers(&[source.addr()], "old");
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    for fence in ["none", "pause", "acl", "readonly-replica"] {
        for more in [&["--dry-run"][..], &[]] {
            let refused = job.cutover_under_writers(&[&["--fence", fence], more].concat()).expect_code(4);
            assert!(refused.stdout.contains("has no CLIENT PAUSE WRITE"), "{}", refused.stdout);
            assert!(refused.stdout.contains("use --fence external"), "{}", refused.stdout);
        }
    }
    job.cutover_under_writers(&["--fence", "external", "--dry-run"]).expect_code(0);
    assert!(writers.wait_for(400, PATIENCE), "the writers made no progress");
    let record = writers.stop();
    job.cutover(&["--fence", "external", "--quiet-for", "2s"]).expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    if to != Engine::Redis62 {
        // It needs absolute expiries.
        record.assert_kept(&Deployment::at(target.addr()).expect("it answers"));
    }
    whimbrel(&["verify", &source.addr(), &target.addr()]).expect_code(0);
}

whimbrel_lab::for_each_engine! {
    on Redis62 Redis80 Valkey91:
        redis_6_0_is_left_by_an_external_cutover
}

/// Bytes that no server packs into fewer.
fn incompressible(count: usize) -> Vec<u8> {
    let next = |state: &u64| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(Some(count as u64), next)
        .skip(1)
        .take(count)
        .map(|state| (state >> 56) as u8)
        .collect()
}

#[test]
fn a_target_that_takes_short_commands_only() {
    let source = start(Engine::Redis70);
    let mut ours = connect(&source.addr());
    let mut set = |command: &str, key: &str, bytes: usize| {
        redis::cmd(command).arg(key).arg(incompressible(bytes)).exec(&mut ours).expect("the source takes it");
    };
    for n in 0..40 {
        set("SET", &format!("small:{n}"), 60_000);
    }
    set("SET", "long", 3 << 20);
    set("RPUSH", "items", 300_000);
    set("RPUSH", "items", 300_000);
    set("RPUSH", "items", 300_000);
    set("RPUSH", "item too long", 2 << 20);
    let target = Server::builder(Engine::Redis70).arg("client-query-buffer-limit", "1mb").start();
    let target = target.expect("the server starts");
    let copied = whimbrel(&["copy", &source.addr(), &target.addr()]).expect_code(5);
    let output = format!("{}{}", copied.stdout, copied.stderr);
    assert!(output.contains("item too long") && output.contains("client-query-buffer-limit"), "{output}");
    let mut theirs = connect(&target.addr());
    assert_eq!(ask(&mut theirs, "DBSIZE"), Value::Int(42));
    assert_eq!(ask(&mut theirs, "STRLEN long"), Value::Int(3 << 20));
    assert_eq!(ask(&mut theirs, "LLEN items"), Value::Int(3));
}
