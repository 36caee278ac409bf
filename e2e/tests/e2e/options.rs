//! Every option of `whimbrel copy` does what it says.

mod big_keys;
mod logins;
mod selection;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::Commands;
use serde_json::Value as Json;
use tempfile::TempDir;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_judge::compare::{Comparison, KeyState, assert_equal, snapshot};
use whimbrel_judge::dataset::{Dataset, Scale};
use whimbrel_judge::deployment::Deployment;
use whimbrel_lab::{Cluster, Engine, Proxy, Server, ServerBuilder};

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        stopping_and_going_on
}

const PATIENCE: Duration = Duration::from_secs(120);

// Exit codes, as documented.
const SUCCESS: i32 = 0;
const REFUSED: i32 = 4;
const UNREACHABLE: i32 = 3;
const DIFFERENT: i32 = 6;
const INTERRUPTED: i32 = 7;
const STOPPED: i32 = 130;

fn start(builder: ServerBuilder) -> Server {
    builder.start().expect("the server starts")
}

fn server(engine: Engine) -> Server {
    start(Server::builder(engine))
}

fn at(addr: impl std::fmt::Display) -> Deployment {
    Deployment::at(addr).expect("the deployment answers")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn invocation(state: &Path, args: &[&str]) -> Invocation {
    let all: Vec<&str> = ["copy"].iter().chain(args).copied().collect();
    Invocation::new(&all).env("XDG_STATE_HOME", state)
}

/// Runs `whimbrel copy` to its end.
fn copy(args: &[&str]) -> Output {
    invocation(folder().path(), args).run()
}

/// Runs `whimbrel copy --json` to a good end and returns its report.
#[track_caller]
fn copied(args: &[&str]) -> Json {
    let args: Vec<&str> = args.iter().chain(&["--json"]).copied().collect();
    report(&copy(&args).expect_code(SUCCESS))
}

/// All objects with this event.
#[track_caller]
fn events(output: &Output, event: &str) -> Vec<Json> {
    output
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .filter(|object| object["event"] == event)
        .collect()
}

#[track_caller]
fn report(output: &Output) -> Json {
    let mut reports = events(output, "report");
    assert_eq!(reports.len(), 1, "{}", output.stdout);
    reports.remove(0)["report"].take()
}

#[track_caller]
fn count(report: &Json, name: &str) -> u64 {
    report["counts"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn keys(deployment: &Deployment, db: i64) -> BTreeMap<Vec<u8>, KeyState> {
    snapshot(deployment, db).expect("the deployment can be read").keys
}

fn db_size(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.connection()).expect("it counts its keys")
}

fn in_db(server: &Server, db: i64) -> redis::Connection {
    let mut connection = server.connection();
    redis::cmd("SELECT").arg(db).exec(&mut connection).expect("it has the database");
    connection
}

fn info(connection: &mut redis::Connection, section: &str) -> BTreeMap<String, String> {
    let text: String = redis::cmd("INFO").arg(section).query(connection).expect("it answers");
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// How often each command was called, by its name in lower case.
fn calls(server: &Server) -> BTreeMap<String, u64> {
    info(&mut server.connection(), "commandstats")
        .into_iter()
        .filter_map(|(name, value)| {
            let calls = value.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            Some((name.strip_prefix("cmdstat_")?.to_owned(), calls))
        })
        .collect()
}

fn writes(server: &Server) -> String {
    info(&mut server.connection(), "persistence").remove("rdb_changes_since_last_save").expect("it counts")
}

fn strings(server: &Server, count: usize, bytes: usize) {
    for from in (0..count).step_by(5000) {
        let mut pipe = redis::pipe();
        for i in from..count.min(from + 5000) {
            pipe.set(format!("key:{i}"), format!("{i:0>bytes$}")).ignore();
        }
        let () = pipe.query(&mut server.connection()).expect("it takes keys");
    }
}

/// Keys on both sides that differ, that are the same, and that one side has alone; small ones and some in
/// chunks.
fn plant_existing(source: &Server, target: &Server) {
    let long = "x".repeat(6000);
    for (server, word) in [(source, "new"), (target, "old")] {
        server.call(&["FLUSHALL"]);
        server.call(&["SET", "differs:text", word]);
        server.call(&[
            "SET",
            "differs:mortal",
            word,
            "PXAT",
            if word == "new" { "4000000000001" } else { "4100000000002" },
        ]);
        server.call(&["SET", "differs:expiry", "same"]);
        server.call(&["HSET", "differs:hash", "f", word]);
        server.call(&["RPUSH", "differs:big", word, &long]);
        server.call(&["SET", "same:text", "same"]);
        server.call(&["SET", "same:mortal", "same", "PXAT", "4000000000003"]);
        server.call(&["SADD", "same:set", "a", "b"]);
        server.call(&["SET", &format!("only:{word}"), word]);
        server.call(&["RPUSH", &format!("only:{word}:big"), word, &long]);
    }
    source.call(&["PEXPIREAT", "differs:expiry", "4000000000004"]);
    target.call(&["PEXPIREAT", "differs:big", "4000000000005"]);
}

#[test]
fn keys_that_exist() {
    for (from, to) in [(Engine::Redis70, Engine::Redis70), (Engine::Valkey81, Engine::Valkey91)] {
        let (source, target) = (server(from), server(to));
        let (from, to) = (source.addr(), target.addr());
        let both = |args: &[&'static str]| -> Vec<String> {
            [&*from, &*to, "--big-key", "4KiB"].iter().chain(args).map(|&arg| arg.to_owned()).collect()
        };
        let run = |args: &[&'static str]| {
            let args = both(args);
            copy(&args.iter().map(String::as_str).collect::<Vec<_>>())
        };

        plant_existing(&source, &target);
        let (ours, theirs) = (keys(&at(&from), 0), keys(&at(&to), 0));
        let report = report(&run(&["--replace", "--json"]).expect_code(SUCCESS));
        assert_eq!(count(&report, "written"), 10, "{report}");
        assert_eq!(count(&report, "skipped"), 0, "{report}");
        assert_eq!(count(&report, "big"), 2, "{report}");
        let mut expected = theirs.clone();
        expected.extend(ours.clone());
        assert_eq!(keys(&at(&to), 0), expected, "what the source has replaces, what it has not stays");

        plant_existing(&source, &target);
        let report = self::report(&run(&["--skip", "--json"]).expect_code(SUCCESS));
        assert_eq!((count(&report, "written"), count(&report, "skipped")), (2, 8), "{report}");
        let mut expected = ours.clone();
        expected.extend(theirs.clone());
        assert_eq!(keys(&at(&to), 0), expected, "what the target has stays, expiries included");

        plant_existing(&source, &target);
        let failed = run(&["--fail"]).expect_code(INTERRUPTED);
        let errors: Vec<&str> = failed.stderr.lines().filter(|line| line.starts_with("error:")).collect();
        let &[error] = errors.as_slice() else { panic!("{}", failed.stderr) };
        for word in ["error: target", "\"differs:", "exists"] {
            assert!(error.contains(word), "no {word:?} in {error}");
        }
        // What to do follows on a line of its own.
        for word in ["--replace", "--skip"] {
            assert!(failed.stderr.contains(word), "no {word:?} in {}", failed.stderr);
        }
        let now = keys(&at(&to), 0);
        assert!(theirs.iter().all(|(name, state)| now.get(name) == Some(state)), "--fail has changed a key");

        // The same values are no reason to fail: so a repeated copy comes to a good end.
        for key in ["differs:text", "differs:mortal", "differs:expiry", "differs:hash", "differs:big"] {
            source.call(&["DEL", key]);
        }
        let report = self::report(&run(&["--fail", "--json"]).expect_code(SUCCESS));
        assert_eq!(count(&report, "written") + count(&report, "skipped"), 5, "{report}");
        let report = self::report(&run(&["--fail", "--json", "--exclude", "*:big"]).expect_code(SUCCESS));
        assert_eq!((count(&report, "written"), count(&report, "skipped")), (0, 4), "{report}");

        // An expiry is part of what a key is.
        source.call(&["PEXPIREAT", "same:text", "4000000000009"]);
        run(&["--fail"]).expect_code(INTERRUPTED);

        // Keys are counted where no policy is given, and the copy would be refused.
        let before = writes(&target);
        let dry = run(&["--dry-run"]).expect_code(REFUSED);
        assert!(dry.stderr.contains("5 keys"), "{}", dry.stderr);
        assert!(dry.stderr.contains("nothing was written"), "{}", dry.stderr);
        assert_eq!(before, writes(&target));
    }
}

#[test]
fn databases() {
    let (source, target) = (
        start(Server::builder(Engine::Redis70).unix_socket()),
        start(Server::builder(Engine::Valkey81).unix_socket()),
    );
    for db in [0, 2, 5, 11] {
        let () = in_db(&source, db).set(format!("of:{db}"), db).expect("it can be written");
    }
    let (from, to) = (source.addr(), target.addr());
    let urls =
        |from_db: &str, to_db: &str| (format!("redis://{from}{from_db}"), format!("valkey://{to}{to_db}"));
    let sockets =
        [&source, &target].map(|server| format!("unix://{}", server.unix_socket().unwrap().display()));
    let socket = |i: usize, query: &str| format!("{}{query}", sockets[i]);
    for (source_url, target_url, args, expected) in [
        (from.clone(), to.clone(), &[][..], &[(0, 0), (2, 2), (5, 5), (11, 11)][..]),
        (from.clone(), to.clone(), &["--db", "all"], &[(0, 0), (2, 2), (5, 5), (11, 11)]),
        (from.clone(), to.clone(), &["--db", "2"], &[(2, 2)]),
        (from.clone(), to.clone(), &["--db", "2:9"], &[(2, 9)]),
        (from.clone(), to.clone(), &["--db", "0,2:9"], &[(0, 0), (2, 9)]),
        (from.clone(), to.clone(), &["--db", "0:5", "--db", "5:0"], &[(0, 5), (5, 0)]),
        (from.clone(), to.clone(), &["--db", "11:1,all"], &[(0, 0), (2, 2), (5, 5), (11, 1)]),
        (from.clone(), to.clone(), &["--db", "2,2"], &[(2, 2)]),
        (from.clone(), to.clone(), &["--db", "7"], &[]),
        (urls("/5", "").0, to.clone(), &[], &[(5, 5)]),
        (urls("/5", "").0, urls("", "/3").1, &[], &[(5, 3)]),
        (urls("/5", "").0, urls("", "/3").1, &["--db", "2"], &[(2, 3)]),
        (urls("?db=5", "").0, urls("", "/").1, &[], &[(5, 5)]),
        (socket(0, ""), socket(1, ""), &[], &[(0, 0), (2, 2), (5, 5), (11, 11)]),
        (socket(0, "?db=2"), socket(1, "?db=4"), &[], &[(2, 4)]),
    ] {
        target.call(&["FLUSHALL"]);
        let both: Vec<&str> = [&*source_url, &*target_url].iter().chain(args).copied().collect();
        let report = copied(&both);
        assert_eq!(count(&report, "written"), expected.len() as u64, "{both:?}");
        let expected_dbs: BTreeSet<i64> = expected.iter().map(|&(_, to)| to).collect();
        let found: BTreeSet<i64> = at(&to).databases().expect("it answers").into_iter().collect();
        assert_eq!(found, expected_dbs, "{both:?}");
        Comparison::default().databases(expected).assert_equal(&at(&from), &at(&to));
    }
}

#[test]
fn one_database_into_a_cluster_and_back() {
    let cluster = Cluster::builder(Engine::Redis70).primaries(3).start().expect("the cluster starts");
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    Dataset::generate(3, Scale::Tiny)
        .with_databases(&[3])
        .write_to(&at(source.addr()))
        .expect("it is filled");
    copied(&[&source.addr(), &cluster.seed(), "--db", "3:0"]);
    Comparison::default().databases(&[(3, 0)]).assert_equal(&at(source.addr()), &at(cluster.seed()));
    copied(&[&cluster.seed(), &target.addr(), "--db", "0:7"]);
    Comparison::default().databases(&[(3, 7)]).assert_equal(&at(source.addr()), &at(target.addr()));
    copied(&[&cluster.seed(), &format!("redis://{}/9", target.addr())]);
    Comparison::default().databases(&[(3, 9)]).assert_equal(&at(source.addr()), &at(target.addr()));
}

/// Nodes that announce an address where nobody is, reached through another one: as behind NAT.
#[test]
fn address_maps() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    Dataset::generate(7, Scale::Tiny)
        .with_databases(&[0])
        .write_to(&at(source.addr()))
        .expect("it is filled");
    let clusters = [Engine::Redis70, Engine::Valkey91]
        .map(|engine| Cluster::builder(engine).primaries(3).start().expect("the cluster starts"));
    let mut proxies = Vec::new();
    let maps = clusters.each_ref().map(|cluster| {
        let mut maps = Vec::new();
        for (i, node) in cluster.nodes().iter().enumerate() {
            // Nobody listens on ports below 10.
            let announced = (i + 1).to_string();
            node.call(&["CONFIG", "SET", "cluster-announce-bus-port", &(node.port() + 10_000).to_string()]);
            node.call(&["CONFIG", "SET", "cluster-announce-port", &announced]);
            let proxy = Proxy::start(&node.addr()).expect("the proxy starts");
            maps.push(format!("127.0.0.1:{announced}={}", proxy.addr()));
            proxies.push(proxy);
        }
        // Until all nodes have heard of it.
        let deadline = std::time::Instant::now() + PATIENCE;
        let all_know = || {
            cluster.nodes().iter().all(|node| {
                let nodes: String =
                    redis::cmd("CLUSTER").arg("NODES").query(&mut node.connection()).expect("it answers");
                (1..=3).all(|port| nodes.contains(&format!(" 127.0.0.1:{port}@")))
            })
        };
        while !all_know() {
            assert!(std::time::Instant::now() < deadline, "the announced ports do not spread");
            std::thread::sleep(Duration::from_millis(20));
        }
        maps
    });
    let with_maps = |from: &str, source_maps: &[String], to: &str, target_maps: &[String]| {
        let mut args = vec![from.to_owned(), to.to_owned()];
        args.extend(source_maps.iter().flat_map(|map| ["--source-map".to_owned(), map.clone()]));
        args.extend(target_maps.iter().flat_map(|map| ["--target-map".to_owned(), map.clone()]));
        copied(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let seeds = [proxies[0].addr(), proxies[3].addr()];
    // In, across and out again.
    with_maps(&source.addr(), &[], &seeds[0], &maps[0]);
    with_maps(&seeds[0], &maps[0], &seeds[1], &maps[1]);
    with_maps(&seeds[1], &maps[1], &target.addr(), &[]);
    for cluster in &clusters {
        assert_eq!(cluster.nodes().iter().map(db_size).sum::<u64>(), db_size(&source));
        assert!(cluster.nodes().iter().all(|node| db_size(node) > 0));
    }
    Comparison::default().tolerance_ms(20).assert_equal(&at(source.addr()), &at(target.addr()));
    // Without a map there is no way in.
    let refused = copy(&[&seeds[0], &target.addr(), "--replace"]).expect_code(UNREACHABLE);
    assert!(refused.stderr.contains("error: source 127.0.0.1:"), "{}", refused.stderr);
}

#[test]
fn reading_from_replicas() {
    let cluster =
        Cluster::builder(Engine::Valkey81).primaries(2).replicas(1).start().expect("the cluster starts");
    let target = server(Engine::Valkey81);
    Dataset::generate(8, Scale::Tiny).write_to(&at(cluster.seed())).expect("it is filled");
    for primary in 0..2 {
        let acked: i64 = redis::cmd("WAIT")
            .arg(1)
            .arg(0)
            .query(&mut cluster.connection_to(primary))
            .expect("replicas keep up");
        assert_eq!(acked, 1);
    }
    let reads = |server: &Server| {
        let calls = calls(server);
        ["scan", "mget", "get", "dump", "hscan", "lrange"]
            .iter()
            .filter_map(|name| calls.get(*name))
            .sum::<u64>()
    };
    cluster.nodes().iter().for_each(|node| drop(node.call(&["CONFIG", "RESETSTAT"])));
    // A node lists a replica once it has heard from it how far it is.
    let deadline = std::time::Instant::now() + PATIENCE;
    let listed = || {
        let slots: Vec<Vec<redis::Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query(&mut cluster.connection_to(0)).expect("it answers");
        slots.iter().all(|entry| entry.len() == 4)
    };
    while !listed() {
        assert!(std::time::Instant::now() < deadline, "the replicas are not listed");
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = copied(&[&cluster.seed(), &target.addr(), "--from-replicas", "--big-key", "64KiB"]);
    assert!(count(&report, "big") > 0, "{report}");
    for primary in 0..2 {
        // What was tried beforehand.
        let on_primary = reads(&cluster.primaries()[primary]);
        let on_replica = reads(&cluster.replicas_of(primary)[0]);
        assert!(
            on_primary <= 4 && on_replica > 50,
            "{on_primary} reads at primary {primary}, {on_replica} at its replica"
        );
    }
    assert_equal(&at(cluster.seed()), &at(target.addr()));
}

#[test]
fn rates() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    strings(&source, 2000, 1000);
    let (from, to) = (source.addr(), target.addr());
    for (args, is_slow) in [
        // For so long that it is looked at in the middle, on a busy machine too.
        (&["--rate-keys", "400"][..], true),
        (&["--rate-bytes", "400k"], true),
        (&["--rate-keys", "100m", "--rate-bytes", "100GB"], false),
    ] {
        target.call(&["FLUSHALL"]);
        let both: Vec<&str> = [&*from, &*to, "--json", "--report", "1"].iter().chain(args).copied().collect();
        let output = copy(&both).expect_code(SUCCESS);
        let report = report(&output);
        assert_eq!((count(&report, "written"), db_size(&target)), (2000, 2000), "{args:?}");
        let progress = events(&output, "progress");
        // Unbounded it is over before it is looked at for the first time.
        let half_way =
            progress.iter().filter(|p| (1..2000).contains(&p["counts"]["written"].as_u64().unwrap())).count();
        assert!(!is_slow || half_way > 0, "{args:?} slows nothing: {progress:?}");
        assert_equal(&at(&from), &at(&to));
    }
}

/// As many connections read as lanes are to read, and as many write as are to write; every key arrives.
#[test]
fn lanes_that_read_and_lanes_that_write() {
    const KEYS: usize = 12_000;
    let source = server(Engine::Redis70);
    strings(&source, KEYS, 30);
    Dataset::generate(3, Scale::Tiny).with_databases(&[0]).write_to(&at(source.addr())).expect("filled");
    let ours = |server: &Server| {
        let list = server.call(&["CLIENT", "LIST"]);
        format!("{list:?}").matches("name=whimbrel").count()
    };
    for (reading, writing) in [(1_usize, 6_usize), (6, 1), (4, 2), (3, 2)] {
        let target = server(Engine::Valkey91);
        let state = folder();
        let (from, to) = (source.addr(), target.addr());
        let lanes = format!("{reading}:{writing}");
        let args = [&*from, &to, "--rate-keys", "2500", "--lanes", &lanes];
        let mut copy = invocation(state.path(), &args).spawn();
        let (mut readers, mut writers) = (0, 0);
        while copy.is_running() {
            readers = readers.max(ours(&source));
            writers = writers.max(ours(&target));
            std::thread::sleep(Duration::from_millis(20));
        }
        copy.wait(Duration::from_secs(60)).expect("it ends").expect_code(SUCCESS);
        // One more lists the keys. On the target others come and go that look after it.
        assert!((reading..=reading + 2).contains(&readers), "{readers} connections read, not {reading}");
        assert!((writing..=writing + 2).contains(&writers), "{writers} connections write, not {writing}");
        Comparison::default().databases(&[(0, 0)]).assert_equal(&at(source.addr()), &at(target.addr()));
    }
}

#[test]
fn functions() {
    let library = |code: &str| {
        format!("#!lua name=mylib\nredis.register_function('f', function() return {code} end)\n")
    };
    for (from, to) in [(Engine::Redis70, Engine::Valkey91), (Engine::Valkey81, Engine::Redis80)] {
        let source = server(from);
        let cluster = Cluster::builder(to).primaries(3).start().expect("the cluster starts");
        source.call(&["FUNCTION", "LOAD", &library("1")]);
        source.call(&["SET", "key", "value"]);
        let (from, to) = (source.addr(), cluster.seed());
        let call = |i: usize| -> i64 {
            redis::cmd("FCALL")
                .arg("f")
                .arg(0)
                .query(&mut cluster.connection_to(i))
                .expect("the function is there")
        };
        copied(&[&from, &to, "--functions"]);
        Comparison::default().functions().assert_equal(&at(&from), &at(&to));
        assert_eq!([call(0), call(1), call(2)], [1, 1, 1]);

        source.call(&["FUNCTION", "LOAD", "REPLACE", &library("2")]);
        copied(&[&from, &to, "--functions", "--skip"]);
        assert_eq!([call(0), call(1), call(2)], [1, 1, 1]);
        let failed = copy(&[&from, &to, "--functions", "--fail"]).expect_code(INTERRUPTED);
        assert!(failed.stderr.contains("mylib"), "{}", failed.stderr);
        copied(&[&from, &to, "--functions", "--replace"]);
        assert_eq!([call(0), call(1), call(2)], [2, 2, 2]);
    }
}

#[test]
fn output() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    Dataset::generate(9, Scale::Tiny).write_to(&at(source.addr())).expect("it is filled");
    let (from, to) = (source.addr(), target.addr());
    let total: u64 = [0, 1, 9].iter().map(|&db| keys(&at(&from), db).len() as u64).sum();

    // Machines.
    let output = copy(&[&from, &to, "--json", "--big-key", "100KiB"]).expect_code(SUCCESS);
    assert_eq!(output.stderr, "");
    let events_seen: Vec<Json> =
        output.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(events_seen.first().expect("there is a plan")["event"], "plan");
    assert_eq!(events_seen.last().expect("there is a report")["event"], "report");
    assert!(events_seen.iter().any(|event| event["event"] == "progress"));
    let report = report(&output);
    for (name, expected) in [
        ("keys_total", total),
        ("scanned", total),
        ("selected", total),
        ("read", total),
        ("written", total),
        ("skipped", 0),
        ("gone", 0),
        ("failed", 0),
        ("retries", 0),
        ("waiting_to_read", 0),
        ("waiting_to_write", 0),
        ("big_in_flight", 0),
    ] {
        assert_eq!(count(&report, name), expected, "{name}: {report}");
    }
    assert!(count(&report, "big") > 0, "{report}");
    assert_eq!(count(&report, "bytes_read"), count(&report, "bytes_written"), "{report}");
    assert_eq!((&report["complete"], &report["resumed"]), (&Json::Bool(true), &Json::Bool(false)));
    assert_eq!(report["passes"], 1);
    assert_equal(&at(&from), &at(&to));

    // Files and pipes: plain lines, and the report on standard output.
    let output = copy(&[&from, &to, "--replace"]).expect_code(SUCCESS);
    let written = total
        .to_string()
        .chars()
        .rev()
        .collect::<Vec<_>>()
        .chunks(3)
        .map(String::from_iter)
        .collect::<Vec<_>>();
    let written: String = written.join(",").chars().rev().collect();
    let progress = output.stderr.lines().rfind(|line| line.contains("scanned")).expect("there is progress");
    for part in
        [format!("scanned {written}"), format!("read {written}"), format!("written {written}"), "/s".into()]
    {
        assert!(progress.contains(&part), "no {part:?} in {progress}");
    }
    assert!(!output.stderr.contains('\x1b') && !output.stderr.contains('\r'), "{:?}", output.stderr);
    assert_eq!(output.stdout.lines().count(), 1, "{}", output.stdout);
    assert!(output.stdout.starts_with(&format!("copied   {written} keys")), "{}", output.stdout);

    // Nothing but the report.
    let output = copy(&[&from, &to, "--replace", "--quiet"]).expect_code(SUCCESS);
    assert_eq!((output.stderr.as_str(), output.stdout.lines().count()), ("", 1));
    let output = copy(&[&from, &to, "--replace", "--quiet", "--json"]).expect_code(SUCCESS);
    assert_eq!((output.stderr.as_str(), output.stdout.lines().count()), ("", 1));
    self::report(&output);

    // Help, completions, manual.
    let help = Invocation::new(&["--help"]).run().expect_code(SUCCESS).stdout;
    for line in ["Exit codes:", "130  stopped by Ctrl-C", "copy", "verify"] {
        assert!(help.contains(line), "no {line:?} in {help}");
    }
    let help = Invocation::new(&["copy", "--help"]).run().expect_code(SUCCESS).stdout;
    for option in ["Examples:", "--match", "--pattern", "--memory", "--resume", "WHIMBREL_SOURCE_PASSWORD"] {
        assert!(help.contains(option), "no {option:?} in {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = Invocation::new(&["completions", shell]).run().expect_code(SUCCESS).stdout;
        assert!(script.contains("--big-key") || script.contains("big-key"), "{shell}");
    }
    let manual = folder();
    Invocation::new(&["man", &manual.path().display().to_string()]).run().expect_code(SUCCESS);
    let page = fs::read_to_string(manual.path().join("whimbrel-copy.1")).expect("there is a page");
    assert!(page.contains("big"), "{page}");
}

#[test]
fn copy_and_verify() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    Dataset::generate(10, Scale::Tiny).write_to(&at(source.addr())).expect("it is filled");
    copy(&[&source.addr(), &target.addr(), "--verify"]).expect_code(SUCCESS);
    assert_equal(&at(source.addr()), &at(target.addr()));
    // What the target has alone is found where nobody said that it may.
    target.call(&["SET", "stowaway", "1"]);
    let verify = |args: &[&str]| {
        let (from, to) = (source.addr(), target.addr());
        let all: Vec<&str> = ["verify", &*from, &*to].iter().chain(args).copied().collect();
        Invocation::new(&all).run()
    };
    let found = verify(&[]).expect_code(6);
    assert!(found.stdout.contains("stowaway") || found.stderr.contains("stowaway"), "{found:?}");
    verify(&["--ignore-extra"]).expect_code(SUCCESS);
    copy(&[&source.addr(), &target.addr(), "--replace", "--verify"]).expect_code(SUCCESS);
}

/// Ctrl-C and SIGTERM: a report, an exit code of its own, and a copy that goes on where it was.
fn stopping_and_going_on(engine: Engine) {
    let (source, target) = (server(engine), server(engine));
    strings(&source, 60_000, 20);
    let state = folder();
    let (from, to) = (source.addr(), target.addr());
    let args = |more: &[&'static str]| -> Vec<String> {
        [&*from, &*to].iter().chain(more).map(|&arg| arg.to_owned()).collect()
    };
    let call = |more: &[&'static str]| {
        let args = args(more);
        invocation(state.path(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut running = call(&["--rate-keys", "4000", "--report", "1"]).spawn();
    assert!(running.wait_for_text("written", PATIENCE), "{}", running.stderr());
    if engine == Engine::Redis70 {
        running.interrupt()
    } else {
        running.terminate()
    }
    let output = running.wait(PATIENCE).expect("it ends").expect_code(STOPPED);
    assert!(output.stdout.starts_with("stopped  "), "{}", output.stdout);
    assert!(output.stdout.contains("--resume"), "{}", output.stdout);
    assert!(!output.stderr.contains("error:"), "{}", output.stderr);
    let there = db_size(&target);
    assert!((1..60_000).contains(&there), "{there} keys were copied");

    // The target is not empty any more, and that is as it should be.
    let report = report(&call(&["--resume", "--json"]).run().expect_code(SUCCESS));
    assert_eq!((&report["resumed"], &report["complete"]), (&Json::Bool(true), &Json::Bool(true)));
    assert_equal(&at(&from), &at(&to));
    // It went on and did not start again.
    assert!(count(&report, "written") < 60_000, "{report}");
    // There is nothing left to go on with.
    call(&["--resume"]).run().expect_code(1);
}

/// One command for what starts a copy by itself, whether it has begun or not.
#[test]
fn the_same_command_begins_and_goes_on() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    strings(&source, 20_000, 20);
    let state = folder();
    let (from, to) = (source.addr(), target.addr());
    let call =
        |more: &[&str]| invocation(state.path(), &[&[&*from, &*to, "--resume-or-begin"][..], more].concat());
    let mut running = call(&["--rate-keys", "1000", "--report", "1"]).spawn();
    assert!(running.wait_for_text("written", PATIENCE), "{}", running.stderr());
    running.terminate();
    running.wait(PATIENCE).expect("it ends").expect_code(STOPPED);
    let report = report(&call(&["--json"]).run().expect_code(SUCCESS));
    assert_eq!((&report["resumed"], &report["complete"]), (&Json::Bool(true), &Json::Bool(true)));
    assert_equal(&at(&from), &at(&to));
    // It is done, so this one would begin: the target is no longer empty.
    call(&[]).run().expect_code(4);
    call(&["--resume"]).run().expect_code(2);
}
