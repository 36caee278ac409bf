//! Copies from a source whose user may do next to nothing: `SCAN`, `PTTL` and `DUMP`. All keys arrive, and
//! what cannot be promised then is said before and after.

use std::time::{Duration, Instant};

use redis::Value;
use whimbrel_e2e::binary::{Invocation, Output, run};
use whimbrel_e2e::syncing::{KEYS, PATIENCE, deployment, fill};
use whimbrel_judge::compare::Comparison;
use whimbrel_lab::{Cluster, Engine, Server};
use whimbrel_loadgen::content::noise;

const REFUSED: i32 = 4;
const PARTIAL: i32 = 5;

/// Expiries are relative: on a busy machine a batch of keys may take this long, in milliseconds.
const LATER_MS: u64 = 60_000;

whimbrel_lab::for_each_engine! {
    three_rights_are_enough
    a_killed_copy_goes_on
}

/// The address of a server for a user with these rights and no others.
fn as_user(server: &Server, rights: &[&str]) -> String {
    let user = ["ACL", "SETUSER", "mover", "reset", "on", ">secret", "~*"];
    server.call(&[&user[..], rights].concat());
    format!("redis://mover:secret@{}", server.addr())
}

const THREE: [&str; 3] = ["+scan", "+pttl", "+dump"];

fn server(engine: Engine) -> Server {
    Server::builder(engine).start().expect("the server starts")
}

fn assert_arrived(source: &Server, target: &Server) {
    let [source, target] = [source, target].map(|server| deployment(server.addr()));
    Comparison::default().databases(&[(0, 0)]).tolerance_ms(LATER_MS).assert_equal(&source, &target);
}

/// A user with three rights is notified of what nobody can promise.
fn assert_notified(output: &Output) {
    let shown = format!("{}{}", output.stdout, output.stderr);
    for words in [
        "without INFO it goes unnoticed if the source is emptied (FLUSHALL, FLUSHDB, SWAPDB) or replaced",
        "nothing is known of other databases, of how many keys there are and how many of the target",
        "without PEXPIRETIME or TIME expiries are what PTTL says is left",
        "values move as dumps",
        "one whose dump is above",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

fn three_rights_are_enough(engine: Engine) {
    let (source, target) = (server(engine), server(engine));
    fill(&deployment(source.addr()));
    source.call(&["SET", "expires", "in an hour", "PX", "3600000"]);
    let from = as_user(&source, &THREE);

    let rehearsed = run(&["copy", &from, &target.addr(), "--dry-run"]).expect_code(0);
    assert_notified(&rehearsed);
    let Value::Int(keys) = source.call(&["DBSIZE"]) else { panic!("no number of keys") };
    let counted: String = rehearsed.stderr.chars().filter(|c| *c != ',').collect();
    assert!(counted.contains(&format!(" {keys} keys; to db 0")), "{keys}: {}", rehearsed.stderr);
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(0), "a dry run has written");

    let before = Instant::now();
    let copied = run(&["copy", &from, &target.addr(), "--json"]).expect_code(0);
    assert_notified(&copied);
    assert_arrived(&source, &target);
    let Value::Int(left) = target.call(&["PTTL", "expires"]) else { panic!("no expiry") };
    let passed = i64::try_from(before.elapsed().as_millis()).expect("less than forever");
    assert!((3_600_000 - passed - 60_000..=3_600_000).contains(&left), "{left} ms are left");
}

fn a_killed_copy_goes_on(engine: Engine) {
    let (source, target) = (server(engine), server(engine));
    fill(&deployment(source.addr()));
    let from = as_user(&source, &THREE);
    let state = tempfile::tempdir().expect("a folder");
    let job = |more: &[&str]| {
        let args = ["copy", &from, &target.addr(), "--json", "--rate-keys", "800", "--lanes", "1"];
        Invocation::new(&[&args[..], more].concat()).env("XDG_STATE_HOME", state.path()).spawn()
    };
    let mut copy = job(&[]);
    // The journal is written twice a second, later on a busy machine: by then it knows of a part.
    let until = Instant::now() + PATIENCE;
    while !matches!(target.call(&["DBSIZE"]), Value::Int(keys) if keys > KEYS as i64 * 4 / 10) {
        assert!(copy.is_running() && Instant::now() < until, "{} {}", copy.stdout(), copy.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    copy.kill9();
    source.call(&["DEL", "plain:7"]);
    source.call(&["SET", "plain:8", "changed meanwhile"]);
    // What was copied before the kill is not removed again.
    target.call(&["DEL", "plain:7"]);
    let output = job(&["--resume"]).wait(PATIENCE).expect("it ends").expect_code(0);
    assert_notified(&output);
    assert!(output.stdout.contains("\"resumed\":true"), "{}", output.stdout);
    assert!(output.stdout.contains("scanned from the beginning"), "{}", output.stdout);
    assert_arrived(&source, &target);
}

/// A cluster has to show as well which node has which slots.
#[test]
fn a_cluster_needs_one_right_more() {
    let user = |rights: &str| format!("user mover on >secret ~* +scan +pttl +dump {rights}");
    let cluster =
        |engine, rights| Cluster::builder(engine).user_acl(&user(rights)).start().expect("it starts");
    let (answering, target) = (cluster(Engine::Redis70, "+cluster|slots"), server(Engine::Valkey91));
    fill(&deployment(answering.seed()));
    let from = |cluster: &Cluster| format!("redis://mover:secret@{}", cluster.seed());
    // Redis 6.0 refuses even the greeting that says so; keys of other nodes show it.
    for engine in [Engine::Redis70, Engine::Redis60] {
        let silent = cluster(engine, "");
        let refused = run(&["copy", &from(&silent), &target.addr()]).expect_code(REFUSED);
        assert!(refused.stderr.contains("to run the 'cluster"), "{engine}: {refused:#?}");
    }
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(0), "something was written");
    assert_notified(&run(&["copy", &from(&answering), &target.addr()]).expect_code(0));
    let [source, target] = [answering.seed(), target.addr()].map(deployment);
    Comparison::default().databases(&[(0, 0)]).tolerance_ms(LATER_MS).assert_equal(&source, &target);
}

/// What takes more rights is refused by name, before anything is written.
#[test]
fn what_takes_more_is_refused() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    source.call(&["SET", "s", "v"]);
    source.call(&["HSET", "h", "f", "v"]);
    let from = as_user(&source, &THREE);
    let to = target.addr();
    let comparison = "give this user +@read +info +time";
    for (command, words) in [
        (vec!["copy", &from, &to, "--verify"], comparison),
        (vec!["copy", &from, &to, "--fail"], comparison),
        (vec!["verify", &from, &to], comparison),
        (vec!["copy", &from, &to, "--db", "all"], "nothing else shows which databases hold keys"),
        (vec!["copy", &from, &to, "--type", "string", "--type", "hash"], "TYPE, which this user may not run"),
        (vec!["copy", &from, &to, "--db", "1"], "SELECT"),
        (vec!["copy", &from, &to, "--functions"], "FUNCTION"),
        (vec!["sync", &from, &to], "INFO"),
    ] {
        let refused = run(&command);
        assert!(refused.stderr.contains(words), "{command:?}: {refused:#?}");
        assert_eq!(refused.code(), Some(REFUSED), "{command:?}: {refused:#?}");
        assert_eq!(target.call(&["DBSIZE"]), Value::Int(0), "{command:?} has written");
    }
    run(&["copy", &from, &to, "--type", "hash"]).expect_code(0);
    assert_eq!(target.call(&["KEYS", "*"]), Value::Array(vec![Value::BulkString(b"h".to_vec())]));
    let rehearsed = run(&["copy", &from, &to, "--replace", "--dry-run"]).expect_code(0);
    assert!(rehearsed.stderr.contains("how many of the target they replace"), "{rehearsed:#?}");
    run(&["copy", &from, &to, "--skip"]).expect_code(0);

    // Each of the three is needed, and all that are missing are named.
    let poor = as_user(&source, &["+scan"]);
    let refused = run(&["copy", &poor, &to, "--replace"]).expect_code(REFUSED);
    assert!(refused.stderr.contains("give this user +pttl +dump, or name another user"), "{refused:#?}");
    let reader = as_user(&source, &["+@read", "+info", "+time"]);
    run(&["verify", &reader, &to]).expect_code(0);

    // A target that may not be asked what it is does not do.
    let nobody = as_user(&target, &["+restore"]);
    let refused = run(&["copy", &reader, &nobody, "--replace"]).expect_code(REFUSED);
    assert!(refused.stderr.contains("target"), "{refused:#?}");
    assert!(refused.stderr.contains("give this user +info +set, or name another user"), "{refused:#?}");
}

/// A value that cannot be measured is read all the same, as far as the memory of the copy goes.
#[test]
fn values_of_unknown_size_are_bounded() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey91));
    let [left, right] = [&source, &target].map(|server| deployment(server.addr()));
    let mut connection = left.primaries()[0].connect(0).expect("the source answers");
    for (name, mib) in [("a", 1), ("b", 3), ("c", 3), ("d", 20)] {
        redis::cmd("SET").arg(name).arg(noise(mib << 20, 7)).exec(&mut connection).expect("it is written");
    }
    redis::cmd("RPUSH").arg("l").arg(noise(3 << 20, 7)).exec(&mut connection).expect("it is written");
    for n in 0..2_000 {
        source.call(&["SET", &format!("s:{n}"), "short"]);
    }
    let from = as_user(&source, &THREE);
    let partial =
        run(&["copy", &from, &target.addr(), "--memory", "8MiB", "--lanes", "2"]).expect_code(PARTIAL);
    assert!(
        partial.stderr.contains("\"d\": its dump is larger than the memory of this copy"),
        "{partial:#?}"
    );
    Comparison::default().except(["d"]).assert_equal(&left, &right);
    run(&["copy", &from, &target.addr(), "--replace", "--memory", "64MiB"]).expect_code(0);
    Comparison::default().assert_equal(&left, &right);
}

/// Where single rights are missing, the rest is used.
#[test]
fn single_rights_may_be_missing() {
    let source = server(Engine::Redis70);
    fill(&deployment(source.addr()));
    for (lacks, words) in [
        ("-info", "without INFO"),
        ("-get", "without GET"),
        ("-type", "without TYPE"),
        ("-pexpiretime", ""),
        ("-dump", ""),
        ("-command", ""),
    ] {
        let target = server(Engine::Valkey91);
        let from = as_user(&source, &["+@all", lacks]);
        let copied = run(&["copy", &from, &target.addr()]).expect_code(0);
        assert!(copied.stderr.contains(words), "{lacks}: {copied:#?}");
        let is_shown = copied.stderr.contains("rights   ");
        assert_eq!(is_shown, !words.is_empty(), "{lacks}: {copied:#?}");
        let [left, right] = [&source, &target].map(|server| deployment(server.addr()));
        Comparison::default().databases(&[(0, 0)]).assert_equal(&left, &right);
    }
}

/// Before Redis 6.2 even the greeting is refused: a dump shows what there is to know.
fn an_old_server_is_known_by_a_dump(engine: Engine) {
    let (source, target) = (server(engine), server(Engine::Valkey91));
    for n in 0..1_000 {
        source.call(&["SET", &format!("s:{n}"), &format!("value {n}"), "PX", "3600000"]);
        source.call(&["HSET", &format!("h:{n}"), "field", &n.to_string()]);
    }
    let from = as_user(&source, &THREE);
    let copied = run(&["copy", &from, &target.addr()]).expect_code(0);
    let word = if engine == Engine::Redis60 { "which dumps in version 9" } else { "Redis 6.2" };
    assert!(copied.stderr.contains(word), "{copied:#?}");
    for n in 0..1_000 {
        for command in [["GET", &format!("s:{n}")].to_vec(), ["HGETALL", &format!("h:{n}")].to_vec()] {
            assert_eq!(source.call(&command), target.call(&command), "{command:?}");
        }
        assert!(matches!(target.call(&["PTTL", &format!("s:{n}")]), Value::Int(1..=3_600_000)));
    }
}

/// The others, which the tier `all` runs.
mod matrix {
    whimbrel_lab::for_each_engine! { on Redis86 Valkey80: others }
    whimbrel_lab::for_each_engine! { on Redis60 Redis62: older }

    fn others(engine: whimbrel_lab::Engine) {
        super::three_rights_are_enough(engine);
    }

    fn older(engine: whimbrel_lab::Engine) {
        super::an_old_server_is_known_by_a_dump(engine);
    }
}
