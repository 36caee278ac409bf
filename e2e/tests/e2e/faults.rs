//! Things go wrong while a copy runs: killed processes, failovers, cut links, slots on the move. Afterwards
//! both sides are equal, by a comparison that shares no code with whimbrel.

use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_judge::compare::Comparison;
use whimbrel_judge::dataset::{Dataset, Scale, write_strings};
use whimbrel_judge::deployment::{Deployment, slot_of};
use whimbrel_lab::{Cluster, Engine, Proxy, Server};

/// Far more than any of these takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Keys besides the data set of all types. With this rate a copy takes some seconds, so that there is a
/// middle, also on a machine that is busy with something else for a while.
const KEYS: usize = 60_000;
const RATE: &str = "5000";

/// A lane reads some 2,500 keys ahead of what is written. With more lanes a shard would have been scanned in
/// the middle of its copy.
const LANES: &str = "2";

fn deployment(addr: String) -> Deployment {
    Deployment::at(addr).expect("the servers answer")
}

/// Fills a deployment with the data set of all types and many short strings.
fn fill(source: &Deployment) {
    Dataset::generate(5, Scale::Tiny)
        .with_databases(&[0])
        .write_to(source)
        .expect("the source takes the data");
    write_strings(source, KEYS).expect("the source takes the data");
}

/// The journal's folder and the arguments that every run of one copy shares.
struct Job {
    args: Vec<String>,
    state: tempfile::TempDir,
}

impl Job {
    fn new(source: &str, target: &str) -> Job {
        let limits = ["--rate-keys", RATE, "--lanes", LANES, "--retry-for", "120s"];
        let args = [&["copy", source, target, "--db", "0", "--json"][..], &limits].concat();
        Job {
            args: args.iter().map(ToString::to_string).collect(),
            state: tempfile::tempdir().expect("a folder for journals"),
        }
    }

    fn start(&self, more: &[&str]) -> Running {
        let args: Vec<&str> = self.args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Invocation::new(&args).env("XDG_STATE_HOME", self.state.path()).spawn()
    }
}

fn keys_of(target: &Deployment) -> u64 {
    let count = |primary: &whimbrel_judge::deployment::Primary| -> redis::RedisResult<u64> {
        let mut connection =
            primary.connect(0).map_err(|e| redis::RedisError::from(std::io::Error::other(e.to_string())))?;
        redis::cmd("DBSIZE").query(&mut connection)
    };
    target.primaries().iter().map(|p| count(p).unwrap_or(0)).sum()
}

/// Waits for the middle of the copy.
fn wait_for_middle(copy: &mut Running, target: &Deployment) {
    let until = Instant::now() + PATIENCE;
    while keys_of(target) < KEYS as u64 / 4 {
        assert!(copy.is_running(), "it ended before its middle: {} {}", copy.stdout(), copy.stderr());
        assert!(Instant::now() < until, "it never came to its middle: {} {}", copy.stdout(), copy.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(copy.is_running(), "it ended before its middle: {} {}", copy.stdout(), copy.stderr());
}

/// Waits for the end and returns the report.
#[track_caller]
fn finish(mut copy: Running) -> Value {
    let output = copy.wait(PATIENCE).expect("it ends").expect_code(0);
    let report = output.stdout.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let report = report.into_iter().find(|v| v["event"] == "report").expect("a report");
    assert_eq!(report["report"]["complete"], true);
    assert_eq!(report["report"]["counts"]["failed"], 0, "{report}");
    report["report"].clone()
}

#[track_caller]
fn assert_equal(source: &Deployment, target: &Deployment) {
    let source = source.refreshed().expect("the source answers");
    let target = target.refreshed().expect("the target answers");
    Comparison::default().databases(&[(0, 0)]).assert_equal(&source, &target);
}

fn server(engine: Engine) -> (Server, Deployment) {
    let server = Server::builder(engine).start().expect("the server starts");
    let deployment = deployment(server.addr());
    (server, deployment)
}

fn cluster(engine: Engine, replicas: usize) -> (Cluster, Deployment) {
    let cluster =
        Cluster::builder(engine).primaries(3).replicas(replicas).start().expect("the cluster starts");
    let deployment = deployment(cluster.seed());
    (cluster, deployment)
}

#[test]
fn a_killed_copy_goes_on_where_it_was() {
    let (s, source) = server(Engine::Redis70);
    let (t, target) = server(Engine::Redis80);
    fill(&source);
    let job = Job::new(&s.addr(), &t.addr());
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    // The journal is written twice a second, later on a busy machine: by now it knows of a part.
    while keys_of(&target) < KEYS as u64 * 6 / 10 {
        assert!(copy.is_running(), "it ended before: {} {}", copy.stdout(), copy.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    copy.kill9();
    let report = finish(job.start(&["--resume"]));
    assert_eq!(report["resumed"], true);
    // It went on: a part of the keys was not looked at again.
    assert!(report["counts"]["scanned"].as_u64().unwrap() < KEYS as u64 * 9 / 10, "{report}");
    assert_equal(&source, &target);
    // The journal is gone with the job.
    job.start(&["--resume"]).wait(PATIENCE).expect("it ends").expect_code(1);
}

#[test]
fn a_cursor_does_not_survive_a_restart_of_the_source() {
    let (s, source) = server(Engine::Valkey81);
    let (t, target) = server(Engine::Valkey81);
    fill(&source);
    let job = Job::new(&s.addr(), &t.addr());
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    copy.kill9();
    s.call(&["SAVE"]);
    s.restart().expect("the source restarts");
    let report = finish(job.start(&["--resume"]));
    assert!(report["counts"]["scanned"].as_u64().unwrap() >= KEYS as u64, "{report}");
    let notices = report["notices"].to_string();
    assert!(notices.contains("restarted"), "{notices}");
    assert_equal(&source, &target);
}

#[test]
fn a_target_that_lost_its_data_is_filled_again() {
    let (s, source) = server(Engine::Redis70);
    let (t, target) = server(Engine::Redis70);
    fill(&source);
    let job = Job::new(&s.addr(), &t.addr());
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    // Nothing was saved: the new process starts empty.
    t.kill9().expect("the target dies");
    t.restart().expect("the target restarts");
    let report = finish(copy);
    assert!(report["passes"].as_u64().unwrap() > 1, "{report}");
    assert_equal(&source, &target);
}

fn the_target_fails_over(engine: Engine) {
    let (s, source) = server(engine);
    let (t, target) = cluster(engine, 1);
    fill(&source);
    let job = Job::new(&s.addr(), &t.seed());
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    t.kill9(1).expect("the primary dies");
    t.wait_failover(1).expect("its replica takes over");
    finish(copy);
    assert_equal(&source, &deployment(t.seed()));
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        the_target_fails_over
}

#[test]
fn the_source_fails_over() {
    let (s, source) = cluster(Engine::Redis80, 1);
    let (t, target) = server(Engine::Redis80);
    fill(&source);
    // What the replica has when it takes over is what there is: nothing is written during the copy.
    for primary in source.primaries() {
        let mut connection = primary.connect(0).expect("the source answers");
        let replicas: i64 = redis::cmd("WAIT").arg(1).arg(30_000).query(&mut connection).expect("WAIT works");
        assert_eq!(replicas, 1);
    }
    let job = Job::new(&s.seed(), &t.addr());
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    s.kill9(2).expect("the primary dies");
    s.wait_failover(2).expect("its replica takes over");
    finish(copy);
    assert_equal(&deployment(s.seed()), &target);
}

#[test]
fn links_are_cut_for_five_seconds() {
    let (s, source) = server(Engine::Valkey91);
    let (t, target) = server(Engine::Redis80);
    fill(&source);
    let to_source = Proxy::start(&s.addr()).expect("the proxy starts");
    let to_target = Proxy::start(&t.addr()).expect("the proxy starts");
    let job = Job::new(&to_source.addr(), &to_target.addr());
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    for proxy in [&to_source, &to_target] {
        proxy.cut();
        std::thread::sleep(Duration::from_secs(5));
        assert!(copy.is_running(), "{} {}", copy.stdout(), copy.stderr());
        proxy.heal().expect("the proxy heals");
    }
    let report = finish(copy);
    assert!(report["counts"]["retries"].as_u64().unwrap() > 0, "{report}");
    assert_equal(&source, &target);
}

fn slots_move(engine: Engine, source_moves: bool) {
    let (s, source) = cluster(engine, 0);
    let (t, target) = cluster(engine, 0);
    fill(&source);
    let job = Job::new(&s.seed(), &t.seed());
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    let moving = if source_moves { &s } else { &t };
    for n in 0..40 {
        let slot = slot_of(format!("plain:{n}").as_bytes());
        let from = moving.owner_of(slot).expect("the slot has an owner");
        moving.move_slot(slot, from, (from + 1) % 3).expect("the slot moves");
    }
    moving.wait_ok().expect("all nodes know");
    finish(copy);
    assert_equal(&source, &target);
}

#[test]
fn slots_of_the_source_move() {
    slots_move(Engine::Redis70, true);
}

#[test]
fn slots_of_the_target_move() {
    slots_move(Engine::Valkey81, false);
}

#[test]
fn a_target_that_stays_away_ends_the_copy_and_can_be_gone_on_with() {
    let (s, source) = server(Engine::Redis70);
    let (t, target) = server(Engine::Redis70);
    fill(&source);
    let proxy = Proxy::start(&t.addr()).expect("the proxy starts");
    let job = Job::new(&s.addr(), &proxy.addr());
    // The last one of an option counts.
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    proxy.cut();
    copy.interrupt();
    let output = copy.wait(PATIENCE).expect("it ends").expect_code(130);
    assert!(output.stdout.contains(r#""complete":false"#), "{output:?}");
    proxy.heal().expect("the proxy heals");
    let report = finish(job.start(&["--resume"]));
    assert_eq!(report["resumed"], true);
    assert_equal(&source, &target);
}

#[test]
fn the_lowest_slot_of_a_shard_moves_and_links_break() {
    let (s, source) = cluster(Engine::Redis70, 0);
    let (t, target) = server(Engine::Redis70);
    fill(&source);
    let job = Job::new(&s.seed(), &t.addr());
    let mut copy = job.start(&["--shards", "1"]);
    wait_for_middle(&mut copy, &target);
    for primary in source.primaries() {
        let lowest = (0..16_384).find(|slot| primary.owns(*slot)).expect("it owns slots");
        let from = s.owner_of(lowest).expect("the slot has an owner");
        if from != 0 {
            s.move_slot(lowest, from, 0).expect("the slot moves");
        }
    }
    s.wait_ok().expect("all nodes know");
    for node in s.primaries() {
        node.try_call(&["CLIENT", "KILL", "TYPE", "normal"]).ok();
    }
    finish(copy);
    assert_equal(&source, &target);
}

/// Keys of an open slot are on two nodes, and `CLUSTER SLOTS` does not show it.
#[test]
fn a_slot_is_half_moved_while_the_copy_runs() {
    let (s, source) = cluster(Engine::Redis80, 0);
    let (t, target) = server(Engine::Redis80);
    fill(&source);
    let slot = slot_of(b"plain:5");
    let from = s.owner_of(slot).expect("the slot has an owner");
    let to = (from + 1) % 3;
    let mut owner = s.connection_to(from);
    let mut pipeline = redis::pipe();
    for chunk in 0..60 {
        let fields: Vec<(String, String)> =
            (0..1_000).map(|n| (format!("field:{chunk}:{n}"), "x".repeat(90))).collect();
        pipeline.cmd("HSET").arg("{plain:5}:large").arg(&fields).ignore();
    }
    pipeline.cmd("SET").arg("{plain:5}:stays").arg("here").ignore();
    pipeline.exec(&mut owner).expect("the source takes the data");

    let number = slot.to_string();
    let (from_id, to_id) = (s.node_id(from).to_owned(), s.node_id(to).to_owned());
    s.nodes()[to].call(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &from_id]);
    s.nodes()[from].call(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &to_id]);
    let port = s.nodes()[to].port().to_string();
    let moved = ["MIGRATE", "127.0.0.1", &port, "", "0", "30000", "KEYS", "{plain:5}:large", "plain:5"];
    s.nodes()[from].call(&moved);

    let job = Job::new(&s.seed(), &t.addr());
    let mut whole = job.start(&[]);
    let (t2, target2) = server(Engine::Redis80);
    let job2 = Job::new(&s.seed(), &t2.addr());
    let mut part = job2.start(&["--slots", &number]);
    wait_for_middle(&mut whole, &target);
    std::thread::sleep(Duration::from_secs(2));
    assert!(part.is_running(), "a copy of an open slot cannot be known to be whole: {}", part.stdout());
    let rest: Vec<String> = redis::cmd("CLUSTER")
        .arg("GETKEYSINSLOT")
        .arg(&number)
        .arg(1_000)
        .query(&mut owner)
        .expect("keys in the slot");
    assert!(rest.contains(&"{plain:5}:stays".to_owned()), "{rest:?}");
    let mut moved = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "30000", "KEYS"];
    moved.extend(rest.iter().map(String::as_str));
    s.nodes()[from].call(&moved);
    for node in [to, from] {
        s.nodes()[node].call(&["CLUSTER", "SETSLOT", &number, "NODE", &to_id]);
    }
    s.wait_ok().expect("all nodes know");
    finish(whole);
    assert_equal(&source, &target);
    finish(part);
    let mut connection = target2.primaries()[0].connect(0).expect("the target answers");
    let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).expect("DBSIZE works");
    let fields: u64 = redis::cmd("HLEN").arg("{plain:5}:large").query(&mut connection).expect("HLEN works");
    assert!(keys >= 3, "{keys}");
    assert_eq!(fields, 60_000);
}

#[test]
fn a_key_that_failed_is_not_forgotten_by_a_resumed_copy() {
    let (s, source) = server(Engine::Redis80);
    let (t, target) = server(Engine::Redis70);
    fill(&source);
    let job = Job::new(&s.addr(), &t.addr());
    let failures = |output: &whimbrel_e2e::binary::Output| -> Vec<String> {
        let report = output.stdout.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let report = report.into_iter().find(|v| v["event"] == "report").expect("a report");
        let listed = report["report"]["failures"].as_array().cloned().unwrap_or_default();
        assert_eq!(report["report"]["counts"]["failed"].as_u64(), Some(listed.len() as u64), "{report}");
        let mut keys: Vec<String> = listed.iter().map(|failure| failure["key"].to_string()).collect();
        keys.sort();
        keys
    };
    let expected = failures(&job.start(&["--replace"]).wait(PATIENCE).expect("it ends").expect_code(5));
    assert!(!expected.is_empty());
    t.call(&["FLUSHALL"]);
    let mut copy = job.start(&[]);
    wait_for_middle(&mut copy, &target);
    // Until some of those have failed.
    while keys_of(&target) < KEYS as u64 * 6 / 10 {
        assert!(copy.is_running(), "it ended before: {} {}", copy.stdout(), copy.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    copy.kill9();
    let output = job.start(&["--resume"]).wait(PATIENCE).expect("it ends").expect_code(5);
    assert_eq!(failures(&output), expected);
}

#[test]
fn a_target_that_evicts_is_no_success() {
    let (s, source) = server(Engine::Valkey81);
    fill(&source);
    let t = Server::builder(Engine::Valkey81)
        .arg("maxmemory", "4mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .start()
        .expect("the server starts");
    // Small keys only: a value that is larger than the target can make room for is another matter.
    let job = Job::new(&s.addr(), &t.addr());
    let output = job.start(&["--match", "plain:*"]).wait(PATIENCE).expect("it ends").expect_code(5);
    assert!(output.stdout.contains("evicted"), "{}", output.stdout);
}

#[test]
fn a_database_is_not_copied_onto_itself() {
    let (s, source) = server(Engine::Redis70);
    fill(&source);
    let output =
        Job::new(&s.addr(), &s.addr()).start(&["--replace"]).wait(PATIENCE).expect("it ends").expect_code(4);
    assert!(output.stdout.contains("onto itself"), "{}", output.stdout);
    let (c, source) = cluster(Engine::Valkey91, 0);
    fill(&source);
    let other = c.nodes()[1].addr();
    Job::new(&c.seed(), &other).start(&["--replace"]).wait(PATIENCE).expect("it ends").expect_code(4);
}
