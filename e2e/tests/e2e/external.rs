//! Cutovers from services that forbid `CLIENT PAUSE`: somebody else stops the writers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_e2e::syncing::{
    PATIENCE, Sync, assert_equal, comparison, deployment, fill, report, stop, wait_until_following, writers,
};
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, tags_in};
use whimbrel_lab::{Cluster, Engine, Server};

/// As managed services restrict their users: no replication, no configuration, no users, nobody paused.
const FORBIDDEN: &str =
    "user mover on >secret ~* &* +@all -psync -sync -replconf -config -acl -client|pause -client|unpause";

/// The last client to write does so for so long after all others have stopped: twice, once with writes that a
/// tracking feed sees, and once with changes of a consumer group, which it does not see. Longer than
/// [`QUIET`] each.
const STRAGGLES: Duration = Duration::from_secs(7);
const QUIET: &str = "5s";

/// Entries of the stream that the last client to write reads.
const ENTRIES: usize = 20_000;

fn start_cutover(job: &Sync, more: &[&str]) -> Running {
    let args: Vec<&str> = ["cutover", "--json", "--fence", "external"].iter().chain(more).copied().collect();
    Invocation::new(&args).env("XDG_STATE_HOME", job.state.path()).timeout(PATIENCE).spawn()
}

fn wait_for_output(running: &mut Running, words: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !running.stdout().contains(words) {
        assert!(running.is_running(), "it ended: {}\n{}", running.stdout(), running.stderr());
        assert!(Instant::now() < deadline, "{words}: {}", running.stdout());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Writes until `is_over`, and for a while longer; returns how often.
fn straggle(source: &Server, is_over: &AtomicBool) -> u64 {
    let mut connection = source.connection();
    redis::cmd("CLIENT").arg("SETNAME").arg("straggler").exec(&mut connection).expect("named");
    let mut written = 0;
    let mut increase = |connection: &mut redis::Connection| {
        written = redis::cmd("INCR").arg("straggling").query(connection).expect("written");
        thread::sleep(Duration::from_millis(20));
    };
    while !is_over.load(Ordering::Relaxed) {
        increase(&mut connection);
    }
    let until = Instant::now() + STRAGGLES;
    while Instant::now() < until {
        increase(&mut connection);
    }
    let until = Instant::now() + STRAGGLES;
    while Instant::now() < until {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("readers").arg("straggler").arg("COUNT").arg(1).arg("STREAMS").arg("entries");
        read.arg(">").exec(&mut connection).expect("read");
        thread::sleep(Duration::from_millis(20));
    }
    written
}

#[test]
fn nothing_is_lost_where_somebody_else_stops_the_writers() {
    for (from, to) in [(Engine::Redis70, Engine::Valkey91), (Engine::Valkey91, Engine::Valkey91)] {
        let source = Server::builder(from).user_acl(FORBIDDEN).start().expect("the source starts");
        let target = Server::builder(to).start().expect("the target starts");
        fill(&deployment(source.addr()));
        let mut pipe = redis::pipe();
        for number in 0..ENTRIES {
            pipe.cmd("XADD").arg("entries").arg("*").arg("n").arg(number).ignore();
        }
        pipe.cmd("XGROUP").arg("CREATE").arg("entries").arg("readers").arg(0).ignore();
        pipe.exec(&mut source.connection()).expect("written");
        let load = Load { clients: 16, ..Load::on(tags_in(0..16_384, 56)) };
        let writers = ClusterWriters::start(&[source.addr()], &load);
        assert!(writers.wait_for(400, PATIENCE), "the writers do not come to work");
        let job = Sync::new(&format!("redis://mover:secret@{}", source.addr()), &target.addr(), &[]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        assert!(sync.stdout().contains("tracking"), "{}", sync.stdout());

        // What is forbidden is found out beforehand, with the way that is left.
        for fence in ["none", "pause", "acl", "readonly-replica"] {
            let refused = job.cutover(&["--fence", fence, "--dry-run"]).expect_code(4);
            assert!(refused.stdout.contains("CLIENT PAUSE is refused there"), "{}", refused.stdout);
            assert!(refused.stdout.contains("use --fence external"), "{}", refused.stdout);
        }
        let predicted = job.cutover_under_writers(&["--fence", "external", "--dry-run"]).expect_code(0);
        let predicted = report(&predicted);
        assert!(predicted["report"]["external"]["clients"].get(0).is_some(), "{predicted}");
        assert!(predicted["report"]["estimate_ms"].as_u64().is_some_and(|ms| ms > 0), "{predicted}");

        // Nobody stops them.
        let refused = job.cutover(&["--fence", "external", "--wait-for-quiet", "3s"]).expect_code(4);
        assert!(refused.stdout.contains("still written to after"), "{}", refused.stdout);
        assert!(refused.stdout.contains("user default"), "{}", refused.stdout);
        // Somebody has second thoughts.
        let mut withdrawn = start_cutover(&job, &["--quiet-for", QUIET]);
        wait_for_output(&mut withdrawn, "\"event\":\"waiting\"");
        withdrawn.terminate();
        withdrawn.wait(PATIENCE).expect("it ends").expect_code(130);

        let is_over = AtomicBool::new(false);
        let mut cutover = start_cutover(&job, &["--quiet-for", QUIET]);
        wait_for_output(&mut cutover, "\"event\":\"waiting\"");
        let (record, written, output) = thread::scope(|scope| {
            let straggler = scope.spawn(|| straggle(&source, &is_over));
            let record = writers.stop();
            is_over.store(true, Ordering::Relaxed);
            let output = cutover.wait(PATIENCE).expect("it ends").expect_code(0);
            let is_done = straggler.is_finished();
            let written = straggler.join().expect("no panic");
            assert!(is_done, "{from}: the target took over while a client wrote: {}", output.stdout);
            (record, written, output)
        });
        let outcome = report(&output)["report"].clone();
        let last = &outcome["external"]["clients"][0];
        assert_eq!(
            (last["name"].as_str(), last["user"].as_str()),
            (Some("straggler"), Some("default")),
            "{outcome}"
        );
        assert_eq!(outcome["finds_one_percent"], serde_json::Value::Null, "all keys are compared: {outcome}");
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
        assert_equal(&record, &source.addr(), &target.addr(), &comparison());
        let arrived = target.call(&["GET", "straggling"]);
        assert_eq!(arrived, Value::BulkString(written.to_string().into_bytes()), "{from}");
        eprintln!(
            "{from}: quiet for {} ms, {} restarts",
            outcome["pause_ms"], outcome["external"]["restarts"]
        );
    }
}

/// Consumer groups change unseen by such a feed: while they do, a difference in them proves nothing.
#[test]
fn groups_that_change_while_they_are_compared_are_no_reason_to_refuse() {
    let streams: Vec<String> = (0..40).map(|number| format!("stream:{number}")).collect();
    let source = Server::builder(Engine::Redis70).user_acl(FORBIDDEN).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let mut pipe = redis::pipe();
    for stream in &streams {
        pipe.cmd("XADD").arg(stream).arg("*").arg("n").arg(1).ignore();
        pipe.cmd("XGROUP").arg("CREATE").arg(stream).arg("readers").arg(0).ignore();
    }
    pipe.exec(&mut source.connection()).expect("written");
    let job = Sync::new(&format!("redis://mover:secret@{}", source.addr()), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    assert!(sync.stdout().contains("tracking"), "{}", sync.stdout());

    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = source.connection();
            for id in 1_u64.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let mut pipe = redis::pipe();
                for stream in &streams {
                    pipe.cmd("XGROUP").arg("SETID").arg(stream).arg("readers").arg(id).ignore();
                }
                pipe.exec(&mut connection).expect("set");
                thread::sleep(Duration::from_millis(1));
            }
        });
        let compared = ["full", "sample"].map(|how| {
            job.cutover(&["--fence", "external", "--dry-run", "--compare", how, "--quiet-for", "1s"])
        });
        is_over.store(true, Ordering::Relaxed);
        for output in compared {
            output.expect_code(0);
        }
    });
    let done = job.cutover(&["--fence", "external", "--quiet-for", "1s"]).expect_code(0);
    assert_eq!(report(&done)["report"]["compared"].as_u64(), Some(streams.len() as u64));
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
}

/// Keys that expire are nobody's writes, nor are those that a sync is not about.
#[test]
fn expiries_and_other_keys_are_no_writes() {
    for (more, noise) in [(&[][..], false), (&["--match", "mine:*"][..], true)] {
        let source = Server::builder(Engine::Redis70).start().expect("the source starts");
        let target = Server::builder(Engine::Redis70).start().expect("the target starts");
        source.call(&["SET", "mine:stays", "1"]);
        let mut pipe = redis::pipe();
        for number in 0..3_000 {
            let ttl = 3_000 + number * 5;
            pipe.cmd("SET").arg(format!("fades:{number}")).arg(number).arg("PX").arg(ttl).ignore();
        }
        pipe.exec(&mut source.connection()).expect("written");
        let job = Sync::new(&source.addr(), &target.addr(), more);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            if noise {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        source.call(&["INCR", "others"]);
                        thread::sleep(Duration::from_millis(10));
                    }
                });
            }
            let output = start_cutover(&job, &["--quiet-for", "1s"]).wait(PATIENCE).expect("it ends");
            is_over.store(true, Ordering::Relaxed);
            let outcome = report(&output.expect_code(0))["report"].clone();
            assert_eq!(outcome["external"]["restarts"], 0, "{outcome}");
        });
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
        assert_eq!(target.call(&["GET", "mine:stays"]), Value::BulkString(b"1".to_vec()));
    }
}

/// All primaries of a cluster are looked at, with feeds that see everything.
#[test]
fn a_cluster_is_left_in_the_same_way() {
    let source = Cluster::builder(Engine::Redis70).primaries(3).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    fill(&deployment(source.seed()));
    let writers = writers(&[source.seed()], "cluster");
    let job = Sync::new(&source.seed(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let mut cutover = start_cutover(&job, &["--quiet-for", QUIET]);
    wait_for_output(&mut cutover, "\"event\":\"waiting\"");
    writers.wait_for(1_000, PATIENCE);
    assert!(cutover.is_running(), "the target took over while clients wrote: {}", cutover.stdout());
    let record = writers.stop();
    cutover.wait(PATIENCE).expect("it ends").expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_equal(&record, &source.seed(), &target.addr(), &comparison());
}

/// The way back needs a source that others cannot write to.
#[test]
fn no_way_back_without_a_fence() {
    let source = Server::builder(Engine::Valkey91).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let refused = job.cutover(&["--fence", "external", "--reverse-sync"]).expect_code(4);
    assert!(refused.stdout.contains("the way back needs"), "{}", refused.stdout);
    stop(sync);
}
