//! Things go wrong while a copy runs: killed processes, failovers, cut links, slots on the move. Afterwards both sides
//! are equal, by a comparison that shares no code with whimbrel.

use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_e2e::compare::Comparison;
use whimbrel_e2e::dataset::{Dataset, Scale};
use whimbrel_e2e::deployment::{Deployment, slot_of};
use whimbrel_lab::{Cluster, Engine, Proxy, Server};

/// Far more than any of these takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Keys besides the data set of all types. With the rate below a copy takes a few seconds, so that there is a middle.
const KEYS: usize = 120_000;
const RATE: &str = "40000";

fn deployment(addr: String) -> Deployment {
    Deployment::at(addr).expect("the servers answer")
}

/// Fills a deployment with the data set of all types and many short strings.
fn fill(source: &Deployment) {
    Dataset::generate(5, Scale::Tiny)
        .with_databases(&[0])
        .write_to(source)
        .expect("the source takes the data");
    for (index, primary) in source.primaries().iter().enumerate() {
        let mut connection = primary.connect(0).expect("the source answers");
        let names = (0..KEYS).map(|n| format!("plain:{n}"));
        let own: Vec<String> = names.filter(|name| source.owner_of(name.as_bytes()) == Some(index)).collect();
        for names in own.chunks(5_000) {
            let mut pipeline = redis::pipe();
            for name in names {
                pipeline.cmd("SET").arg(name).arg(format!("value of {name}")).ignore();
            }
            pipeline.exec(&mut connection).expect("the source takes the data");
        }
    }
}

/// The journal's folder and the arguments that every run of one copy shares.
struct Job {
    args: Vec<String>,
    state: tempfile::TempDir,
}

impl Job {
    fn new(source: &str, target: &str) -> Job {
        let args = ["copy", source, target, "--db", "0", "--json", "--rate-keys", RATE, "--retry-for", "60s"];
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
    let count = |primary: &whimbrel_e2e::deployment::Primary| -> redis::RedisResult<u64> {
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

fn target_failover(engine: Engine) {
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

#[test]
fn the_target_fails_over_redis_7_0() {
    target_failover(Engine::Redis70);
}

#[test]
fn the_target_fails_over_valkey_9_1() {
    target_failover(Engine::Valkey91);
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
    assert!(output.stdout.contains("--resume"), "{output:?}");
    proxy.heal().expect("the proxy heals");
    let report = finish(job.start(&["--resume"]));
    assert_eq!(report["resumed"], true);
    assert_equal(&source, &target);
}
