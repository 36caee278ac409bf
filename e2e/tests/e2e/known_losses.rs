//! What other tools lose: everything here was seen lost, with exit status 0, by one of them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use serde_json::Value as Json;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_judge::compare::{Comparison, KeyState, assert_equal, snapshot};
use whimbrel_judge::deployment::{Deployment, now_ms};
use whimbrel_judge::writers::{Load, Writers};
use whimbrel_lab::{Cluster, Engine, Server};

whimbrel_lab::for_each_engine! {
    on Redis80 Valkey91:
        a_fragmented_cluster_upgraded_in_place
}

const PATIENCE: Duration = Duration::from_secs(120);

/// A writer rests this long between writes: otherwise it would take a whole processor.
const BETWEEN_WRITES: Duration = Duration::from_millis(2);

fn server(engine: Engine) -> Server {
    Server::builder(engine).start().expect("the server starts")
}

fn at(addr: impl std::fmt::Display) -> Deployment {
    Deployment::at(addr).expect("the deployment answers")
}

fn invocation(state: &tempfile::TempDir, args: &[&str]) -> Invocation {
    let all: Vec<&str> = ["copy"].iter().chain(args).copied().collect();
    Invocation::new(&all).env("XDG_STATE_HOME", state.path())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// Runs `whimbrel copy --json` to a good end and returns its report.
#[track_caller]
fn copied(args: &[&str]) -> Json {
    let args: Vec<&str> = args.iter().chain(&["--json"]).copied().collect();
    report(&invocation(&folder(), &args).run().expect_code(0))
}

#[track_caller]
fn report(output: &Output) -> Json {
    let lines = output.stdout.lines().map(|line| serde_json::from_str::<Json>(line).expect(line));
    let mut reports: Vec<Json> = lines.filter(|object| object["event"] == "report").collect();
    assert_eq!(reports.len(), 1, "{}", output.stdout);
    reports.remove(0)["report"].take()
}

#[track_caller]
fn count(report: &Json, name: &str) -> u64 {
    report["counts"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn keys(deployment: &Deployment) -> BTreeMap<Vec<u8>, KeyState> {
    snapshot(deployment, 0).expect("the deployment can be read").keys
}

fn db_size(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.connection()).expect("it counts its keys")
}

/// Writes keys `PREFIX:0` … in large pipelines.
fn strings(server: &Server, prefix: &str, count: usize) {
    let mut connection = server.connection();
    for from in (0..count).step_by(5000) {
        let mut pipe = redis::pipe();
        for i in from..count.min(from + 5000) {
            pipe.set(format!("{prefix}:{i}"), format!("value of {i}")).ignore();
        }
        let () = pipe.query(&mut connection).expect("it takes keys");
    }
}

/// Of every source key, what the target must have of it: all keys under these prefixes, as they are.
#[track_caller]
fn assert_kept(source: &Deployment, target: &Deployment, prefix: &str) {
    let of = |deployment: &Deployment| -> BTreeMap<Vec<u8>, KeyState> {
        keys(deployment).into_iter().filter(|(name, _)| name.starts_with(prefix.as_bytes())).collect()
    };
    let (ours, theirs) = (of(source), of(target));
    let lost = ours.iter().filter(|(name, state)| theirs.get(*name) != Some(state)).count();
    assert_eq!((lost, theirs.len()), (0, ours.len()), "lost, and copied, of {} keys {prefix}*", ours.len());
}

/// A client deletes keys of all types while they are copied: between SCAN and the reading of the value as
/// well.
#[test]
fn keys_deleted_while_they_are_copied() {
    for (from, to) in [(Engine::Redis70, Engine::Valkey91), (Engine::Valkey81, Engine::Redis80)] {
        let (source, target) = (server(from), server(to));
        strings(&source, "stays", 20_000);
        let mut pipe = redis::pipe();
        for i in 0..20_000 {
            match i % 4 {
                0 => pipe.set(format!("goes:{i}"), i).ignore(),
                1 => pipe.rpush(format!("goes:{i}"), i).ignore(),
                2 => pipe.hset(format!("goes:{i}"), "f", i).ignore(),
                _ => pipe.sadd(format!("goes:{i}"), i).ignore(),
            };
        }
        let () = pipe.query(&mut source.connection()).expect("it takes keys");
        let over = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            let deleter = scope.spawn(|| {
                let mut connection = source.connection();
                while db_size(&target) == 0 && !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(5));
                }
                for i in 0..20_000 {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    // From the middle outwards, a few at a time, so that it goes on during the whole copy.
                    let () = connection.del(format!("goes:{}", i * 7919 % 20_000)).expect("it deletes");
                }
            });
            let report = copied(&[&source.addr(), &target.addr(), "--rate-keys", "10000"]);
            over.store(true, Ordering::Relaxed);
            deleter.join().expect("the deleter does not panic");
            report
        });
        assert_eq!(report["complete"], true);
        assert_eq!(count(&report, "failed"), 0, "{report}");
        assert!(count(&report, "gone") > 0, "no key was deleted at the right time: {report}");
        assert_kept(&at(source.addr()), &at(target.addr()), "stays:");
        // A key that was deleted after it was read is there: only a change feed could know. None is invented.
        let (ours, theirs) = (keys(&at(source.addr())), keys(&at(target.addr())));
        assert!(theirs.keys().all(|name| name.starts_with(b"stays:") || name.starts_with(b"goes:")));
        assert!(
            ours.iter().all(|(name, state)| theirs.get(name) == Some(state)),
            "a key that is there was lost"
        );
    }
}

/// Thousands of keys whose last milliseconds come while they are copied: none is made immortal.
#[test]
fn keys_in_their_last_milliseconds() {
    for (from, to) in [(Engine::Redis70, Engine::Redis70), (Engine::Valkey91, Engine::Redis80)] {
        let (source, target) = (server(from), server(to));
        strings(&source, "stays", 2000);
        let over = AtomicBool::new(false);
        let copies = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut connection = source.connection();
                let mut n = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    let mut pipe = redis::pipe();
                    for _ in 0..100 {
                        n += 1;
                        let (key, ms) = (format!("mortal:{n}"), 1 + n * 37 % 300);
                        if n.is_multiple_of(3) {
                            pipe.hset(&key, "f", n).ignore().cmd("PEXPIRE").arg(&key).arg(ms).ignore();
                        } else {
                            pipe.cmd("SET").arg(&key).arg(n).arg("PX").arg(ms).ignore();
                        }
                    }
                    let () = pipe.query(&mut connection).expect("it takes keys");
                    thread::sleep(BETWEEN_WRITES);
                }
                n
            });
            let copies: Vec<Json> = (0..12)
                .map(|_| copied(&[&source.addr(), &target.addr(), "--replace", "--big-key", "1KiB"]))
                .collect();
            over.store(true, Ordering::Relaxed);
            assert!(writer.join().expect("the writer does not panic") > 3000);
            copies
        });
        let written: u64 = copies.iter().map(|report| count(report, "written")).sum();
        assert!(written > 12 * 2000 + 1000, "hardly a mortal key was met: {written}");
        assert!(copies.iter().all(|report| count(report, "failed") == 0), "{copies:?}");
        for (name, state) in keys(&at(target.addr())) {
            let is_mortal = name.starts_with(b"mortal:");
            assert_eq!(state.expires_at_ms.is_some(), is_mortal, "{}", String::from_utf8_lossy(&name));
        }
        // Longer than any of them lives. Not a measurement: it may be as late as it likes.
        thread::sleep(Duration::from_millis(400));
        let left = keys(&at(target.addr())).into_keys().filter(|name| name.starts_with(b"mortal:")).count();
        assert_eq!(left, 0, "{left} keys live for ever");
        assert_kept(&at(source.addr()), &at(target.addr()), "stays:");
    }
}

/// The same for values that are moved in chunks, and for keys that are long past when they arrive.
#[test]
fn expiry_times_are_exact() {
    let now = now_ms();
    for (from, to) in [(Engine::Redis70, Engine::Redis80), (Engine::Redis80, Engine::Valkey81)] {
        let (source, target) = (server(from), server(to));
        let mut pipe = redis::pipe();
        for i in 0..3000_i64 {
            let key = format!("key:{i}");
            match i % 3 {
                0 => pipe.set(&key, "x".repeat(if i % 2 == 0 { 10 } else { 3000 })).ignore(),
                1 => pipe.rpush(&key, vec!["element"; if i % 2 == 0 { 1 } else { 600 }]).ignore(),
                _ => pipe.zadd(&key, "member", i).ignore(),
            };
            // From ten minutes to a century away, to the odd millisecond.
            pipe.cmd("PEXPIREAT").arg(&key).arg(now + 600_000 + i * i * 350_001 + i % 997).ignore();
        }
        let () = pipe.query(&mut source.connection()).expect("it takes keys");
        let expiries = |server: &Server| -> Vec<i64> {
            let mut pipe = redis::pipe();
            for i in 0..3000 {
                pipe.cmd("PEXPIRETIME").arg(format!("key:{i}"));
            }
            pipe.query(&mut server.connection()).expect("it answers")
        };
        let expected = expiries(&source);
        assert!(expected.iter().all(|at| *at > now));
        let report = copied(&[&source.addr(), &target.addr(), "--big-key", "2KiB"]);
        assert!(count(&report, "big") >= 500, "{report}");
        assert_eq!(expiries(&target), expected);
        assert_equal(&at(source.addr()), &at(target.addr()));
    }
}

#[test]
fn the_key_without_a_name() {
    for (from, to) in [(Engine::Redis70, Engine::Valkey91), (Engine::Valkey91, Engine::Redis70)] {
        let (source, target) = (server(from), server(to));
        for command in [&["SET", "", "value"][..], &["HSET", "", "", ""], &["RPUSH", "", "", ""]] {
            source.call(&["FLUSHALL"]);
            source.call(command);
            for big in ["4MiB", "1"] {
                target.call(&["FLUSHALL"]);
                let report = copied(&[&source.addr(), &target.addr(), "--big-key", big]);
                assert_eq!(count(&report, "written"), 1, "{report}");
                assert_equal(&at(source.addr()), &at(target.addr()));
            }
        }
        // With names that are hard in other ways: a pattern, bytes that are no text, protocol.
        for name in [&b"\x00"[..], b"*", b"\xff\xfe", b"\r\n$3\r\n", b" ", b"{}", b"{", b"a{b}c"] {
            let () = source.connection().set(name, name).expect("it takes the key");
        }
        copied(&[&source.addr(), &target.addr(), "--replace"]);
        assert_equal(&at(source.addr()), &at(target.addr()));
    }
}

#[test]
fn functions_are_never_forgotten_in_silence() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    source.call(&["SET", "key", "value"]);
    source.call(&["FUNCTION", "LOAD", whimbrel_judge::dataset::FUNCTION_LIBRARY]);
    let output = invocation(&folder(), &[&source.addr(), &target.addr()]).run().expect_code(0);
    assert!(output.stderr.contains("1 function libraries"), "{}", output.stderr);
    assert!(output.stderr.contains("--functions"), "{}", output.stderr);
    let report = copied(&[&source.addr(), &target.addr(), "--replace"]);
    let notices = report["notices"].to_string();
    assert!(notices.contains("1 function libraries") && notices.contains("--functions"), "{notices}");
    copied(&[&source.addr(), &target.addr(), "--replace", "--functions"]);
    Comparison::default().functions().assert_equal(&at(source.addr()), &at(target.addr()));
}

/// Counters of streams after deletions, groups with pending entries and idle consumers: by DUMP and in
/// chunks.
#[test]
fn streams_with_a_past() {
    for (from, to) in [
        (Engine::Redis70, Engine::Redis70),
        (Engine::Redis80, Engine::Valkey91),
        (Engine::Valkey91, Engine::Redis70),
    ] {
        let (source, target) = (server(from), server(to));
        let mut commands: Vec<String> = Vec::new();
        let streams = ["deleted-last", "deleted-all", "trimmed", "set", "pending", "unborn"];
        for name in &streams[..5] {
            commands.extend((1..=50).map(|i| format!("XADD {name} {i}-{i} field value-{i}")));
        }
        commands.extend(
            [
                "XDEL deleted-last 50-50 49-49",
                "XTRIM deleted-all MAXLEN 0",
                "XTRIM trimmed MINID 30",
                "XDEL trimmed 40-40",
                "XSETID set 999-9 ENTRIESADDED 12345 MAXDELETEDID 77-7",
                "XGROUP CREATE pending readers 0",
                "XGROUP CREATE pending behind 10-10 ENTRIESREAD 10",
                "XGROUP CREATE pending ahead $",
                "XGROUP CREATECONSUMER pending readers idle",
                "XREADGROUP GROUP readers one COUNT 20 STREAMS pending >",
                "XREADGROUP GROUP readers two COUNT 10 STREAMS pending >",
                "XACK pending readers 1-1 2-2 25-25",
                "XCLAIM pending readers one 0 3-3 TIME 1700000000123 RETRYCOUNT 7 JUSTID",
                // An entry that is deleted and still pending.
                "XDEL pending 5-5",
                "XGROUP CREATE deleted-all g 0",
                "XGROUP CREATE unborn g $ MKSTREAM",
            ]
            .map(str::to_owned),
        );
        for command in &commands {
            source.call(&command.split(' ').collect::<Vec<_>>());
        }
        copied(&[&source.addr(), &target.addr()]);
        // Delivery times are reported relative to now where a stream has to be copied entry by entry.
        Comparison::default().tolerance_ms(20).assert_equal(&at(source.addr()), &at(target.addr()));
        let report = copied(&[&source.addr(), &target.addr(), "--replace", "--big-key", "1"]);
        assert_eq!(count(&report, "big"), streams.len() as u64, "{report}");
        Comparison::default().tolerance_ms(20).assert_equal(&at(source.addr()), &at(target.addr()));
    }
}

/// No size is too large, and no database but 0 is forgotten.
#[test]
fn nothing_is_skipped() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey81));
    for db in [0, 1, 7, 15] {
        let mut connection = source.connection();
        redis::cmd("SELECT").arg(db).exec(&mut connection).expect("it has the database");
        let mut pipe = redis::pipe();
        // Around the limit above which a value is moved in chunks, and far above it.
        for bytes in [0, 1, (4 << 20) - 100, 4 << 20, (4 << 20) + 100, 30 << 20] {
            pipe.set(format!("string:{bytes}"), vec![b'x'; bytes]).ignore();
        }
        for (name, elements) in [("few", 5), ("many", 6000)] {
            let members: Vec<String> = (0..elements).map(|i| format!("{i:0>1000}")).collect();
            pipe.rpush(format!("list:{name}"), &members).ignore();
            pipe.sadd(format!("set:{name}"), &members).ignore();
            let pairs: Vec<(usize, &String)> = members.iter().enumerate().collect();
            pipe.hset_multiple(format!("hash:{name}"), &pairs).ignore();
            pipe.zadd_multiple(format!("zset:{name}"), &pairs).ignore();
        }
        let () = pipe.query(&mut connection).expect("it takes keys");
    }
    let report = copied(&[&source.addr(), &target.addr()]);
    assert_eq!((count(&report, "written"), count(&report, "failed")), (4 * 14, 0), "{report}");
    assert_eq!(count(&report, "big"), 4 * 6, "{report}");
    assert_eq!(at(target.addr()).databases().expect("it answers"), [0, 1, 7, 15]);
    assert_equal(&at(source.addr()), &at(target.addr()));
}

#[test]
fn sigterm_is_heard() {
    let (source, target) = (server(Engine::Redis80), server(Engine::Redis80));
    strings(&source, "key", 20_000);
    let state = folder();
    let (from, to) = (source.addr(), target.addr());
    let mut running =
        invocation(&state, &[&from, &to, "--rate-keys", "500", "--json", "--report", "1"]).spawn();
    assert!(running.wait_for_text("\"progress\"", PATIENCE), "{}", running.stdout());
    running.terminate();
    let stopped = running.wait(PATIENCE).expect("it ends").expect_code(130);
    assert_eq!(report(&stopped)["complete"], false);
    let there = db_size(&target);
    assert!(there < 20_000, "it did not stop");
    // What it says it has written is what is there.
    assert_eq!(count(&report(&stopped), "written"), there);
    let resumed = report(&invocation(&state, &[&from, &to, "--resume", "--json"]).run().expect_code(0));
    assert_eq!(resumed["complete"], true);
    assert_equal(&at(&from), &at(&to));
}

/// Under a thousand writes a second nothing that was left alone may be missing or changed, and nothing made
/// up.
#[test]
fn under_writes() {
    for (from, to, clustered) in [
        (Engine::Redis70, Engine::Redis70, false),
        (Engine::Valkey91, Engine::Redis80, false),
        (Engine::Redis70, Engine::Valkey81, true),
    ] {
        let standalone = server(from);
        let cluster =
            clustered.then(|| Cluster::builder(from).primaries(3).start().expect("the cluster starts"));
        let source = cluster.as_ref().map_or_else(|| standalone.addr(), Cluster::seed);
        let target = server(to);
        let deployment = at(&source);
        still_keys(&deployment, 30_000);
        let still: BTreeMap<_, _> = keys(&deployment).into_iter().collect();
        let load = |prefix: &str, seed| Load { threads: 2, prefix: prefix.into(), seed, ..Load::default() };
        let writers = Writers::start(&deployment, load("busy", 1));
        assert!(writers.wait_for(1000, PATIENCE));
        // Others write to the same keys again and again, in ways that the first kind does not.
        let over = AtomicBool::new(false);
        let (report, churned) = thread::scope(|scope| {
            let churn = scope.spawn(|| churn(&deployment, &over));
            let before = writers.acknowledged();
            let report = copied(&[&source, &target.addr(), "--rate-keys", "8000"]);
            over.store(true, Ordering::Relaxed);
            (report, churn.join().expect("the writer does not panic") + writers.acknowledged() - before)
        });
        let record = writers.stop();
        assert_eq!((count(&report, "failed"), &report["complete"]), (0, &Json::Bool(true)), "{report}");
        assert!(churned > 1000, "only {churned} writes happened during the copy");
        let there = keys(&at(target.addr()));
        let lost = still.iter().filter(|(name, state)| there.get(*name) != Some(state)).count();
        assert_eq!(lost, 0, "of {} keys that nobody touched", still.len());
        let busy: std::collections::BTreeSet<&[u8]> = record.key_names().map(str::as_bytes).collect();
        let made_up: Vec<_> = there
            .keys()
            .filter(|name| {
                !still.contains_key(*name) && !busy.contains(name.as_slice()) && !name.starts_with(b"churn:")
            })
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        assert_eq!(made_up, [""; 0]);
        // A value of a key that was written to is one that it had, whole: all its elements are of one
        // generation.
        for (name, fields) in churned_hashes(&target) {
            let first = fields.values().next().expect("no hash is empty");
            assert!(
                fields.len() == 20 && fields.values().all(|value| value == first),
                "{name} is torn: {fields:?}"
            );
        }
        // And once the writing is over, a copy brings everything up to date.
        copied(&[&source, &target.addr(), "--replace"]);
        let (ours, theirs) = (keys(&deployment), keys(&at(target.addr())));
        let stale = ours.iter().filter(|(name, state)| theirs.get(*name) != Some(state)).count();
        assert_eq!(stale, 0, "of {} keys", ours.len());
    }
}

fn still_keys(deployment: &Deployment, count: usize) {
    for primary in deployment.primaries() {
        let mut connection = primary.connect(0).expect("it answers");
        let mut pipe = redis::pipe();
        for i in 0..count {
            let key = format!("still:{i}");
            if !primary.owns(whimbrel_judge::deployment::slot_of(key.as_bytes())) {
                continue;
            }
            match i % 8 {
                0 => pipe.rpush(&key, vec![i; i % 40 + 1]).ignore(),
                1 => pipe.hset(&key, "f", i).ignore(),
                2 => pipe.cmd("SET").arg(&key).arg(i).arg("PXAT").arg(4_000_000_000_000 + i as i64).ignore(),
                _ => pipe.set(&key, i).ignore(),
            };
        }
        let () = pipe.query(&mut connection).expect("it takes keys");
    }
}

/// Replaces the same few hashes, each in one transaction; returns how often.
fn churn(deployment: &Deployment, over: &AtomicBool) -> u64 {
    let mut connections: Vec<_> =
        deployment.primaries().iter().map(|primary| primary.connect(0).expect("it answers")).collect();
    let mut n = 0_u64;
    while !over.load(Ordering::Relaxed) {
        n += 1;
        let key = format!("churn:{}", n % 50);
        let value = format!("generation {n}");
        let fields: Vec<(String, &String)> = (0..20).map(|i| (format!("f{i}"), &value)).collect();
        let owner = deployment.owner_of(key.as_bytes()).expect("every slot has an owner");
        let () = redis::pipe()
            .atomic()
            .del(&key)
            .ignore()
            .hset_multiple(&key, &fields)
            .ignore()
            .query(&mut connections[owner])
            .expect("it takes the hash");
        thread::sleep(BETWEEN_WRITES);
    }
    n
}

fn churned_hashes(server: &Server) -> Vec<(String, BTreeMap<String, String>)> {
    let mut connection = server.connection();
    let names: Vec<String> = connection.keys("churn:*").expect("it lists keys");
    names
        .into_iter()
        .map(|name| {
            let fields = connection.hgetall(&name).expect("it is a hash");
            (name, fields)
        })
        .collect()
}

/// `CLUSTER SHARDS` kills nodes of a cluster that was upgraded in place from Redis 7.0 with fragmented slots.
/// Here such a cluster is made, upgraded, and copied from.
fn a_fragmented_cluster_upgraded_in_place(engine: Engine) {
    let cluster = Cluster::builder(Engine::Redis70).primaries(3).start().expect("the cluster starts");
    for slot in (0..60).step_by(2) {
        cluster.move_slot(slot, 0, 1).expect("a slot can be moved");
    }
    for slot in (6000..6040).step_by(2) {
        cluster.move_slot(slot, 1, 2).expect("a slot can be moved");
    }
    cluster.wait_ok().expect("the cluster is well");
    still_keys(&at(cluster.seed()), 5000);
    let target = server(Engine::Redis80);
    let topology_commands = |nodes: &[Server]| -> u64 {
        nodes
            .iter()
            .map(|node| {
                let stats: String =
                    redis::cmd("INFO").arg("commandstats").query(&mut node.connection()).expect("it answers");
                assert!(!stats.contains("cluster|shards"), "CLUSTER SHARDS was asked: {stats}");
                u64::from(stats.contains("cluster|slots"))
            })
            .sum()
    };
    cluster.nodes().iter().for_each(|node| drop(node.call(&["CONFIG", "RESETSTAT"])));
    copied(&[&cluster.seed(), &target.addr()]);
    assert!(topology_commands(cluster.nodes()) > 0, "it did not ask for the topology at all");
    assert_equal(&at(cluster.seed()), &at(target.addr()));

    // The same nodes.conf under newer servers, without shard ids: they are as they were started, only newer.
    let upgraded = upgraded(&cluster, engine);
    let deployment = at(upgraded[0].addr());
    still_keys(&deployment, 5000);
    let target = server(Engine::Redis70);
    copied(&[&upgraded[0].addr(), &target.addr()]);
    topology_commands(&upgraded);
    assert!(upgraded.iter().all(Server::is_running), "a node has died");
    assert_equal(&deployment, &at(target.addr()));
}

/// Nodes of another version with the nodes.conf of `cluster`'s, the addresses replaced. They are empty.
fn upgraded(cluster: &Cluster, engine: Engine) -> Vec<Server> {
    let nodes: Vec<Server> = cluster
        .nodes()
        .iter()
        .map(|_| Server::builder(engine).cluster().start().expect("the node starts"))
        .collect();
    for (i, node) in nodes.iter().enumerate() {
        let old =
            fs::read_to_string(cluster.nodes()[i].dir().join("nodes.conf")).expect("the old node has one");
        node.kill9().expect("it can be killed");
        let mut text = String::new();
        for word in old.split_inclusive([' ', '\n']) {
            let replaced = cluster.nodes().iter().zip(&nodes).find_map(|(old, new)| {
                let rest = word.strip_prefix(&format!("{}@{}", old.addr(), old.port() + 10_000))?;
                // What follows the ports are a host name and a shard id, which 7.0 does not write.
                let end = rest.find([' ', '\n']).map_or("", |at| &rest[at..]);
                Some(format!("{}@{}{end}", new.addr(), new.port() + 10_000))
            });
            text.push_str(replaced.as_deref().unwrap_or(word));
        }
        fs::write(node.dir().join("nodes.conf"), text).expect("it can be written");
    }
    nodes.iter().for_each(|node| node.restart().expect("the node starts again"));
    let deadline = Instant::now() + PATIENCE;
    let is_well = |node: &Server| {
        let info: String =
            redis::cmd("CLUSTER").arg("INFO").query(&mut node.connection()).expect("it answers");
        info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
    };
    while !nodes.iter().all(is_well) {
        assert!(Instant::now() < deadline, "the upgraded cluster does not form:\n{}", nodes[0].log());
        thread::sleep(Duration::from_millis(20));
    }
    nodes
}
