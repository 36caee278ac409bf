//! Every option of `whimbrel copy` does what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::Commands;
use serde_json::Value as Json;
use tempfile::TempDir;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::compare::{Comparison, KeyState, assert_equal, snapshot};
use whimbrel_e2e::dataset::{Dataset, Scale};
use whimbrel_e2e::deployment::{Deployment, slot_of};
use whimbrel_e2e::permissions::{denied, documented, give};
use whimbrel_lab::{Cluster, Engine, Proxy, Server, ServerBuilder, Tls};

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        stopping_and_going_on
}

const PATIENCE: Duration = Duration::from_secs(120);

// Exit codes, as documented.
const SUCCESS: i32 = 0;
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
    let text: String = redis::cmd("INFO").arg(section).query(connection).expect("it tells about itself");
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

/// Keys of all types under a few prefixes, one in three with a time to live.
fn fill_for_selection(deployment: &Deployment) {
    for (i, name) in names_for_selection().iter().enumerate() {
        let owner = deployment.owner_of(name).expect("every slot has an owner");
        let mut connection = deployment.primaries()[owner].connect(0).expect("it answers");
        let name = name.as_slice();
        let done: redis::RedisResult<()> = match i % 6 {
            0 => connection.set(name, i),
            1 => connection.rpush(name, &["a", "b"]),
            2 => connection.sadd(name, &["a", "b"]),
            3 => connection.zadd(name, "a", i),
            4 => connection.hset(name, "f", i),
            _ => redis::cmd("XADD").arg(name).arg("1-1").arg("f").arg(i).exec(&mut connection),
        };
        done.expect("it can be written");
        if i % 3 == 0 {
            let () = connection.pexpire_at(name, 4_000_000_000_000 + i as i64).expect("it can expire");
        }
    }
}

fn names_for_selection() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for prefix in ["user:", "session:", "tmp:", "USER:"] {
        names.extend((0..30).map(|i| format!("{prefix}{i}").into_bytes()));
    }
    names.extend([&b""[..], b"\xff\xfe\x00", b"user:\xff", b"[user]", b"user*"].map(<[u8]>::to_vec));
    names
}

/// Options and which keys they select, by name and type.
type Case = (&'static [&'static str], fn(&[u8], &str) -> bool);

fn selections() -> Vec<Case> {
    vec![
        (&["--match", "user:*"], |name, _| name.starts_with(b"user:")),
        (&["--pattern", "user:*"], |name, _| name.starts_with(b"user:")),
        (&["--match", "user:*", "--match", "session:*"], |name, _| {
            name.starts_with(b"user:") || name.starts_with(b"session:")
        }),
        (&["--match", "user:?"], |name, _| name.starts_with(b"user:") && name.len() == 6),
        (&["--match", "[us]*:1[0-4]"], |name, _| {
            (name.starts_with(b"user:") || name.starts_with(b"session:"))
                && name
                    .rsplit(|&b| b == b':')
                    .next()
                    .is_some_and(|n| n.len() == 2 && (&b"10"[..]..=&b"14"[..]).contains(&n))
        }),
        (&["--match", r"user\*"], |name, _| name == b"user*"),
        (&["--match", r"\[user\]"], |name, _| name == b"[user]"),
        (&["--match", "*"], |_, _| true),
        (&["--match", "nothing:*"], |_, _| false),
        (&["--exclude", "user:*", "--exclude", "tmp:*"], |name, _| {
            !name.starts_with(b"user:") && !name.starts_with(b"tmp:")
        }),
        (&["--match", "user:*", "--exclude", "*1*"], |name, _| {
            name.starts_with(b"user:") && !name.contains(&b'1')
        }),
        (&["--type", "list"], |_, kind| kind == "list"),
        (&["--type", "string,stream"], |_, kind| kind == "string" || kind == "stream"),
        (&["--type", "set", "--type", "zset", "--match", "tmp:*"], |name, kind| {
            (kind == "set" || kind == "zset") && name.starts_with(b"tmp:")
        }),
        (&["--slots", "0-8191"], |name, _| slot_of(name) < 8192),
        (
            &["--slots", "0-99,5461-10922,16383"],
            |name, _| matches!(slot_of(name), 0..=99 | 5461..=10922 | 16383),
        ),
        (&["--slots", "8000-16383", "--type", "hash", "--exclude", "tmp:*"], |name, kind| {
            slot_of(name) >= 8000 && kind == "hash" && !name.starts_with(b"tmp:")
        }),
    ]
}

fn check_selections(source: &str, target: &str, flush: &dyn Fn(), written: &dyn Fn() -> Vec<String>) {
    let deployment = at(source);
    fill_for_selection(&deployment);
    let all = keys(&deployment, 0);
    assert_eq!(all.len(), names_for_selection().len());
    for (args, selects) in selections() {
        flush();
        let expected: BTreeMap<_, _> =
            all.iter().filter(|(name, state)| selects(name, state.value.type_name())).collect();

        let before = written();
        let dry: Vec<&str> = [source, target, "--dry-run", "--json"].iter().chain(args).copied().collect();
        let dry = copy(&dry).expect_code(SUCCESS);
        let plans = events(&dry, "plan");
        assert_eq!(plans.len(), 1, "{}", dry.stdout);
        assert_eq!(plans[0]["plan"]["dbs"][0]["selected_keys"], expected.len(), "{args:?}: {}", plans[0]);
        assert_eq!(plans[0]["plan"]["dbs"][0]["source_keys"], all.len());
        assert_eq!(before, written(), "a dry run has written");

        let wet: Vec<&str> = [source, target].iter().chain(args).copied().collect();
        let report = copied(&wet);
        let found = keys(&at(target), 0);
        assert_eq!(found.iter().collect::<BTreeMap<_, _>>(), expected, "{args:?}");
        assert_eq!(count(&report, "written"), expected.len() as u64, "{args:?}: {report}");
        assert_eq!(
            count(&report, "failed") + count(&report, "skipped") + count(&report, "gone"),
            0,
            "{report}"
        );
        assert_eq!(report["complete"], true);
    }
}

#[test]
fn selection_on_standalone_servers() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    check_selections(&source.addr(), &target.addr(), &|| drop(target.call(&["FLUSHALL"])), &|| {
        vec![writes(&target)]
    });
}

#[test]
fn selection_on_clusters() {
    let source = Cluster::builder(Engine::Valkey81).primaries(3).start().expect("the cluster starts");
    let target = Cluster::builder(Engine::Redis80).primaries(3).start().expect("the cluster starts");
    check_selections(&source.seed(), &target.seed(), &|| target.flush().expect("it can be flushed"), &|| {
        target.nodes().iter().map(writes).collect()
    });
}

#[test]
fn limit() {
    let (source, target) = (server(Engine::Redis80), server(Engine::Redis80));
    fill_for_selection(&at(source.addr()));
    let (from, to) = (source.addr(), target.addr());
    let all = names_for_selection().len() as u64;
    let is_list_or_set = |state: &KeyState| matches!(state.value.type_name(), "list" | "set");
    let lists_and_sets = keys(&at(&from), 0).values().filter(|state| is_list_or_set(state)).count() as u64;
    for (args, expected) in [
        (&["--limit", "7"][..], 7),
        (&["--limit", "1"], 1),
        (&["--limit", "1k"], all),
        (&["--limit", "5", "--match", "user:*"], 5),
        (&["--limit", "5", "--type", "hash"], 5),
        (&["--limit", "20", "--type", "list,set"], 20),
        (&["--limit", "1000", "--type", "list,set"], lists_and_sets),
        (&["--limit", "3", "--scan-count", "1", "--lanes", "1"], 3),
    ] {
        target.call(&["FLUSHALL"]);
        let both: Vec<&str> = [&*from, &*to].iter().chain(args).copied().collect();
        let report = copied(&both);
        assert_eq!((db_size(&target), count(&report, "written")), (expected, expected), "{args:?}");
        assert_eq!(report["complete"], true, "{args:?}");
        let source_keys = keys(&at(&from), 0);
        assert!(keys(&at(&to), 0).iter().all(|(name, state)| source_keys.get(name) == Some(state)));
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

        // Counting asks for no policy.
        let before = writes(&target);
        let dry = run(&["--dry-run"]).expect_code(SUCCESS);
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

#[test]
fn tls_with_client_certificates() {
    let [left, right] =
        [(); 2].map(|()| Tls::new().expect("certificates can be made").requiring_client_cert());
    let source = start(Server::builder(Engine::Redis70).tls(&left));
    let target = start(Server::builder(Engine::Valkey91).tls(&right));
    Dataset::generate(4, Scale::Tiny).write_to(&at(source.addr())).expect("it is filled");
    let text = |path: std::path::PathBuf| path.display().to_string();
    let files = [
        "--source-ca",
        &text(left.ca()),
        "--source-cert",
        &text(left.client_cert()),
        "--source-key",
        &text(left.client_key()),
        "--target-ca",
        &text(right.ca()),
        "--target-cert",
        &text(right.client_cert()),
        "--target-key",
        &text(right.client_key()),
    ]
    .map(str::to_owned);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let port = |server: &Server| server.tls_port().expect("it has TLS");
    let (from, to) =
        (format!("rediss://localhost:{}", port(&source)), format!("valkeys://127.0.0.1:{}", port(&target)));
    let with = |more: &[&str], files: &[&str]| {
        target.call(&["FLUSHALL"]);
        let plain = target.call(&["INFO", "commandstats"]);
        drop(plain);
        let args: Vec<&str> = more.iter().chain(files).copied().collect();
        copied(&args);
        assert_equal(&at(source.addr()), &at(target.addr()));
    };
    with(&[&from, &to], &files);
    // The scheme is optional where a flag says it, and so is the name.
    let (from, to) = (format!("127.0.0.1:{}", port(&source)), format!("127.0.0.1:{}", port(&target)));
    with(&[&from, &to, "--source-tls", "--target-tls", "--source-server-name", "localhost"], &files);
    // A user who asks for it may do without authorities.
    let without_ca: Vec<&str> =
        files.chunks(2).filter(|pair| !pair[0].ends_with("-ca")).flatten().copied().collect();
    with(&[&from, &to, "--source-tls", "--target-tls", "--insecure"], &without_ca);
}

#[test]
fn tls_to_every_node_of_a_cluster() {
    let tls = Tls::new().expect("certificates can be made");
    let source =
        Cluster::builder(Engine::Redis80).primaries(3).tls(&tls).start().expect("the cluster starts");
    let target = start(Server::builder(Engine::Redis80).tls(&tls));
    Dataset::generate(5, Scale::Tiny).write_to(&at(source.seed())).expect("it is filled");
    let from = format!("rediss://127.0.0.1:{}", source.nodes()[1].tls_port().expect("it has TLS"));
    let ca = tls.ca().display().to_string();
    copied(&[&from, &target.addr(), "--source-ca", &ca]);
    assert_equal(&at(source.seed()), &at(target.addr()));
}

#[test]
fn passwords() {
    // Everything that has a meaning in a URL, a shell or a protocol.
    let password = "p@ss:w/o?r#d% é'\"\\$";
    let encoded = "p%40ss%3Aw%2Fo%3Fr%23d%25%20%C3%A9%27%22%5C%24";
    // The lab's default user gets none, so that the tests see everything; the users get theirs at run time.
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis80));
    for server in [&source, &target] {
        let secret = format!(">{password}");
        server.call(&["ACL", "SETUSER", "mover:1", "on", &secret, "~*", "&*", "+@all"]);
    }
    strings(&source, 3000, 10);
    let state = folder();
    let file = state.path().join("password");
    fs::write(&file, format!("{password}\nnot this line\n")).expect("a file can be written");
    let file = file.display().to_string();
    let (from, to) = (source.addr(), target.addr());
    let (from_url, to_url) =
        (format!("redis://mover%3A1:{encoded}@{from}"), format!("redis://mover%3A1:{encoded}@{to}"));
    let (from_user, to_user) = (format!("redis://mover%3A1@{from}"), format!("redis://mover%3A1@{to}"));
    let env = |call: Invocation| {
        call.env("WHIMBREL_SOURCE_PASSWORD", password).env("WHIMBREL_TARGET_PASSWORD", password)
    };
    let calls = [
        invocation(state.path(), &[&from_url, &to_url]),
        env(invocation(state.path(), &[&from_user, &to_user])),
        env(invocation(state.path(), &[&from, &to, "--source-user", "mover:1", "--target-user", "mover:1"])),
        invocation(
            state.path(),
            &[&from_user, &to_user, "--source-password-file", &file, "--target-password-file", &file],
        ),
        // A file is closer to the user's mind than a variable.
        invocation(state.path(), &[&from_user, &to_url, "--source-password-file", &file])
            .env("WHIMBREL_SOURCE_PASSWORD", "another"),
    ];
    for call in calls {
        target.call(&["FLUSHALL"]);
        let output = call.run().expect_code(SUCCESS);
        assert_eq!(db_size(&target), 3000);
        for text in [&output.stdout, &output.stderr] {
            assert!(!text.contains("p@ss") && !text.contains("p%40ss"), "{text}");
        }
    }

    // What others on the machine see of the process, and what stays behind of it.
    target.call(&["FLUSHALL"]);
    let args = [&*from_user, &to_user, "--rate-keys", "500", "--report", "1"];
    let mut running = env(invocation(state.path(), &args)).env("WHIMBREL_LOG", "trace").spawn();
    assert!(running.wait_for_text("written", PATIENCE));
    let seen = fs::read(format!("/proc/{}/cmdline", running.pid())).expect("it runs");
    assert!(!String::from_utf8_lossy(&seen).contains("p@ss"));
    let kept = state.path().join("whimbrel");
    // Its socket is there as well, and cannot be read.
    let files: Vec<_> = [kept.clone(), kept.join("jobs")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("it keeps a journal"))
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(|path| path.is_file())
        .collect();
    assert!(!files.is_empty(), "it keeps no journal");
    for file in files {
        let bytes = fs::read(&file).expect("it can be read");
        let has_password = bytes.windows(4).any(|bytes| bytes == b"p@ss" || bytes == b"p%40");
        assert!(!has_password, "{}", file.display());
    }
    running.interrupt();
    let output = running.wait(PATIENCE).expect("it ends");
    assert!(
        !output.stderr.contains("p@ss") && !output.stderr.contains("p%40"),
        "with the log at its chattiest"
    );
}

/// What a user may do, as in ACL SETUSER: `memory|usage`.
fn granted(commands: &[Vec<String>]) -> BTreeSet<String> {
    commands.iter().flatten().filter_map(|word| word.strip_prefix('+')).map(str::to_owned).collect()
}

/// With the documented permissions nothing is refused, and everything that is granted is used.
#[test]
fn documented_permissions() {
    let mut used: [BTreeSet<String>; 2] = Default::default();
    let mut given: [BTreeSet<String>; 2] = Default::default();
    let mut note = |side: usize, servers: &[Server], commands: &[Vec<String>]| {
        for server in servers {
            used[side]
                .extend(calls(server).into_iter().filter(|(_, calls)| *calls > 0).map(|(name, _)| name));
            assert_eq!(denied(server), [""; 0]);
        }
        given[side].extend(granted(commands));
    };
    for engine in Engine::ALL {
        let field_expiries = matches!(engine, Engine::Redis80 | Engine::Valkey91);
        let mut headings = vec!["Source", "Target", "Comparison", "Functions"];
        if field_expiries {
            headings.push("Hash fields with a time to live");
        }
        let source_user = documented("whimbrel-source", &headings, "one");
        let target_user = documented("whimbrel-target", &headings, "two");
        assert!(source_user.len() >= 5 && target_user.len() >= 7);
        let urls = |from: &str, to: &str| {
            (format!("redis://whimbrel-source:one@{from}"), format!("redis://whimbrel-target:two@{to}"))
        };
        let dataset = Dataset::generate(6, Scale::Tiny).with_functions();

        let (source, target) = (server(engine), server(engine));
        dataset.write_to(&at(source.addr())).expect("it is filled");
        // A stream all of whose entries are gone, and one that never had any.
        source.call(&["XADD", "emptied", "5-1", "f", "v"]);
        source.call(&["XDEL", "emptied", "5-1"]);
        source.call(&["XGROUP", "CREATE", "unborn", "g", "$", "MKSTREAM"]);
        for i in 0..400 {
            let i = i.to_string();
            source.call(&["SADD", "extra:set", &format!("member:{i}")]);
            source.call(&["HSET", "extra:hash", &format!("field:{i}"), &i]);
            source.call(&["ZADD", "extra:zset", &i, &format!("member:{i}")]);
        }
        give(&source, &source_user);
        give(&target, &target_user);
        let (from, to) = urls(&source.addr(), &target.addr());
        copied(&[&from, &to, "--functions"]);
        // In chunks, and with each of the policies.
        for policy in ["--replace", "--skip", "--fail"] {
            copied(&[&from, &to, policy, "--big-key", "1", "--db", "0"]);
        }
        copied(&[&from, &to, "--big-key", "1", "--db", "0:8", "--skip"]);
        copied(&[&from, &to, "--type", "list,set", "--replace"]);
        for args in [&[][..], &["--db", "0", "--depth", "counts"], &["--db", "0", "--depth", "meta"]] {
            let all: Vec<&str> =
                ["verify", &*from, &*to, "--ignore-extra"].iter().chain(args).copied().collect();
            Invocation::new(&all).run().expect_code(SUCCESS);
        }
        // What the target has more of is looked for on the source.
        let mut there = in_db(&target, 8);
        let extras = [("SADD", "extra:set"), ("HSET", "extra:hash"), ("ZADD", "extra:zset")];
        for (command, key) in extras {
            redis::cmd(command).arg(key).arg(&["1", "more"]).exec(&mut there).expect("it can be written");
        }
        // With a time to live: the target is asked whether it is about to expire.
        let () = there.set_ex("stowaway", 1, 1_000).expect("it can be written");
        Invocation::new(&["verify", &from, &to, "--db", "0:8"]).run().expect_code(DIFFERENT);
        let () = there.del("stowaway").expect("it can be deleted");
        for (_, key) in extras {
            let () = there.del(key).expect("it can be deleted");
            source.call(&["DEL", key]);
            target.call(&["DEL", key]);
        }
        note(0, std::slice::from_ref(&source), &source_user);
        note(1, std::slice::from_ref(&target), &target_user);
        Comparison::default()
            .databases(&[(0, 0), (1, 1), (9, 9), (0, 8)])
            // Where a stream is copied entry by entry, delivery times are told relative to now.
            .tolerance_ms(20)
            .functions()
            .assert_equal(&at(source.addr()), &at(target.addr()));

        if matches!(engine, Engine::Redis70 | Engine::Valkey91) {
            let build = || Cluster::builder(engine).primaries(2).start().expect("the cluster starts");
            let (source, target) = (build(), build());
            dataset.write_to(&at(source.seed())).expect("it is filled");
            source.nodes().iter().for_each(|node| give(node, &source_user));
            target.nodes().iter().for_each(|node| give(node, &target_user));
            let (from, to) = urls(&source.seed(), &target.seed());
            copied(&[&from, &to, "--functions", "--big-key", "64KiB", "--from-replicas"]);
            note(0, source.nodes(), &source_user);
            note(1, target.nodes(), &target_user);
            Comparison::default()
                .tolerance_ms(20)
                .functions()
                .assert_equal(&at(source.seed()), &at(target.seed()));
        }
    }
    // Needed only while a slot is on the move, and where a key changes while it is read in chunks.
    let exempt = ["asking", "unwatch"].map(str::to_owned);
    for (side, (given, used)) in given.iter().zip(&used).enumerate() {
        let idle: Vec<_> = given.difference(used).filter(|name| !exempt.contains(name)).collect();
        assert!(idle.is_empty(), "granted to the {} and never used: {idle:?}", ["source", "target"][side]);
    }
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
        (&["--rate-keys", "1000"][..], true),
        (&["--rate-bytes", "1MB"], true),
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
    strings(&source, 20_000, 20);
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
    assert!((1..20_000).contains(&there), "{there} keys were copied");

    // The target is not empty any more, and that is as it should be.
    let report = report(&call(&["--resume", "--json"]).run().expect_code(SUCCESS));
    assert_eq!((&report["resumed"], &report["complete"]), (&Json::Bool(true), &Json::Bool(true)));
    assert_equal(&at(&from), &at(&to));
    // It went on and did not start again.
    assert!(count(&report, "written") < 20_000, "{report}");
    // There is nothing left to go on with.
    call(&["--resume"]).run().expect_code(1);
}

#[test]
fn stopping_in_the_middle_of_a_big_key() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    big_hash(&source, 60_000_000);
    let state = folder();
    let (from, to) = (source.addr(), target.addr());
    let mut running = invocation(state.path(), &[&from, &to, "--json", "--report", "1"]).spawn();
    let deadline = std::time::Instant::now() + PATIENCE;
    // Its staging key appears first.
    while db_size(&target) == 0 {
        assert!(std::time::Instant::now() < deadline && running.is_running(), "it never begins");
    }
    running.interrupt();
    let output = running.wait(PATIENCE).expect("it ends").expect_code(STOPPED);
    let stopped = report(&output);
    assert_eq!(stopped["complete"], false, "{stopped}");
    assert_eq!(events(&output, "error").len(), 0, "{}", output.stdout);
    assert_eq!(db_size(&target), 0, "half a key is left behind");
    let resumed =
        report(&invocation(state.path(), &[&from, &to, "--json", "--resume"]).run().expect_code(SUCCESS));
    assert_eq!(count(&resumed, "written"), 1, "{resumed}");
    assert_equal(&at(&from), &at(&to));
}

fn big_hash(server: &Server, bytes: usize) {
    let value = vec![b'v'; 1000];
    let mut connection = server.connection();
    for from in (0..bytes / 1000).step_by(2000) {
        let mut pipe = redis::pipe();
        for i in (from..from + 2000).step_by(100) {
            let pairs: Vec<(String, &[u8])> =
                (i..i + 100).map(|i| (format!("field:{i}"), &value[..])).collect();
            pipe.hset_multiple("big:hash", &pairs).ignore();
        }
        let () = pipe.query(&mut connection).expect("it takes the hash");
    }
}

fn big_list(server: &Server, bytes: usize) {
    let value = vec![b'v'; 1000];
    let mut connection = server.connection();
    for from in (0..bytes / 1000).step_by(2000) {
        let mut pipe = redis::pipe();
        for i in (from..from + 2000).step_by(100) {
            let elements: Vec<Vec<u8>> =
                (i..i + 100).map(|i| [i.to_string().as_bytes(), &value].concat()).collect();
            pipe.rpush("big:list", elements).ignore();
        }
        let () = pipe.query(&mut connection).expect("it takes the list");
    }
}

/// A hash and a list of 200 MB: bounded memory here, short commands there.
#[test]
fn big_keys_in_bounded_memory() {
    const BUDGET_BYTES: u64 = 16 << 20;
    const CONSTANT_BYTES: u64 = 64 << 20;
    let slow = |engine| start(Server::builder(engine).arg("slowlog-log-slower-than", "50000"));
    for (from, to) in [(Engine::Redis70, Engine::Redis70), (Engine::Valkey91, Engine::Redis80)] {
        let (source, target) = (slow(from), slow(to));
        big_hash(&source, 200_000_000);
        big_list(&source, 200_000_000);
        let mut tries = 2;
        loop {
            tries -= 1;
            target.call(&["FLUSHALL", "ASYNC"]);
            source.call(&["SLOWLOG", "RESET"]);
            target.call(&["SLOWLOG", "RESET"]);
            let state = folder();
            let mut running =
                invocation(state.path(), &[&source.addr(), &target.addr(), "--memory", "16MiB", "--json"])
                    .spawn();
            let mut peak_bytes = 0;
            while running.is_running() {
                peak_bytes = peak_bytes.max(peak_rss_bytes(running.pid()));
                std::thread::sleep(Duration::from_millis(10));
            }
            let report = report(&running.wait(PATIENCE).expect("it has ended").expect_code(SUCCESS));
            assert_eq!((count(&report, "written"), count(&report, "big")), (2, 2), "{report}");
            assert!(peak_bytes > 1 << 20, "its memory was not seen");
            assert!(
                peak_bytes < BUDGET_BYTES + CONSTANT_BYTES,
                "{peak_bytes} bytes were resident at the peak"
            );
            let slow_ones: Vec<String> = [&source, &target].into_iter().flat_map(slow_commands).collect();
            if slow_ones.is_empty() {
                break;
            }
            // A busy machine makes any command slow once; not the same twice.
            assert!(tries > 0, "commands above 50 ms, twice: {slow_ones:?}");
        }
        assert_equal(&at(source.addr()), &at(target.addr()));
    }
}

/// `VmHWM`; 0 where the process has just ended.
fn peak_rss_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Slow commands, without those of the test itself.
fn slow_commands(server: &Server) -> Vec<String> {
    let log = server.call(&["SLOWLOG", "GET", "100"]);
    let redis::Value::Array(entries) = log else { panic!("{log:?}") };
    let shown = entries.iter().map(|entry| format!("{entry:?}").chars().take(300).collect::<String>());
    shown
        .filter(|entry| !entry.contains("FLUSHALL"))
        .map(|entry| format!("{}: {entry}", server.addr()))
        .collect()
}
