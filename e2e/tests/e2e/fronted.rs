//! Cutovers of clients that go through a front, which holds them meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Value;
use serde_json::Value as Json;
use whimbrel_e2e::binary::{Invocation, Output, Running};
use whimbrel_e2e::fronts::Front;
use whimbrel_e2e::syncing::{
    PATIENCE, Sync, assert_equal, comparison, deployment, fill, report, stop, wait_until_following, writers,
};
use whimbrel_judge::cluster_writers::{self, ClusterWriters, tags_in};
use whimbrel_judge::writers::{Load, Writers};
use whimbrel_lab::{Engine, Server};

/// As managed services restrict their users: no replication, no configuration, no users, nobody paused.
const FORBIDDEN: &str =
    "user mover on >secret ~* &* +@all -psync -sync -replconf -config -acl -client|pause -client|unpause";

/// One that may have its changes sent, and nobody paused either.
const REPLICATING: &str = "user mover on >secret ~* &* +@all -config -acl -client|pause -client|unpause";

/// Far more than a cutover takes on a busy machine.
const PAUSE: &str = "20s";

/// Both servers, the front between them, and a sync from the one to the other.
struct Scene {
    source: Server,
    target: Server,
    front: Front,
    job: Sync,
}

impl Scene {
    #[track_caller]
    fn new((from, to): (Engine, Engine), acl: &str) -> Scene {
        let source = Server::builder(from).user_acl(acl).start().expect("the source starts");
        let target = Server::builder(to).user_acl(acl).start().expect("the target starts");
        let url = |server: &Server| format!("redis://mover:secret@{}", server.addr());
        let front = Front::between(&url(&source), &url(&target), &[]);
        let job = Sync::new(&url(&source), &url(&target), &[]);
        Scene { source, target, front, job }
    }

    fn at(&self) -> String {
        format!("127.0.0.1:{}", self.front.port())
    }

    fn writers(&self, clients: u64) -> ClusterWriters {
        let load = cluster_writers::Load { clients, ..cluster_writers::Load::on(tags_in(0..16_384, 56)) };
        let writers = ClusterWriters::start(&[self.at()], &load);
        assert!(writers.wait_for(400, PATIENCE), "the writers do not come to work");
        writers
    }

    fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let named = ["--fence", "front", "--front", self.front.state_dir(), "--max-pause", PAUSE];
        named.iter().chain(more).copied().collect()
    }

    fn cutover(&self, more: &[&str]) -> Output {
        self.job.cutover(&self.arguments(more))
    }

    /// A dry run while clients write.
    #[track_caller]
    fn rehearse(&self, more: &[&str]) -> Output {
        let more = [&["--dry-run"][..], more].concat();
        self.job.cutover_under_writers(&self.arguments(&more))
    }

    fn start_cutover(&self, more: &[&str]) -> Running {
        self.job.start_cutover(&self.arguments(more))
    }

    /// Runs the front again so that it dies at that place.
    #[track_caller]
    fn arm_front(&mut self, place: &str) {
        self.front.running.kill9();
        let mut running = Invocation::new(&self.front.args).env("WHIMBREL_FAILPOINT", place).spawn();
        assert!(running.wait_for_text("\"serving\"", PATIENCE), "{}{}", running.stdout(), running.stderr());
        self.front.running = running;
    }

    /// All clients are at the target, which has all that was ever acknowledged to them.
    #[track_caller]
    fn assert_cut_over(&self, writers: ClusterWriters, place: &str) {
        self.assert_phase("done", "to-target");
        assert!(writers.wait_for(200, PATIENCE), "{place}: the writers do not go on");
        writers.stop().assert_kept(&deployment(self.target.addr()));
    }

    #[track_caller]
    fn assert_phase(&self, phase: &str, direction: &str) {
        let status = self.front.status();
        assert_eq!((&status["phase"], &status["direction"]), (&Json::from(phase), &Json::from(direction)));
    }
}

/// A client that has always sent more writes than the server has carried out, so that however short a hold
/// is, and however busy the machine, something is written meanwhile.
struct Flood {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Flood {
    fn begin(server: &Server) -> Flood {
        let mut connection = server.connection();
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = stops.clone();
        let thread = thread::spawn(move || {
            let mut pipe = redis::pipe();
            for _ in 0..1_000 {
                pipe.cmd("INCR").arg("w:past:flood").ignore();
            }
            while !stopped.load(Ordering::Relaxed) {
                pipe.exec(&mut connection).expect("written");
            }
        });
        Flood { stops, thread }
    }

    fn end(self) {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only writes");
    }
}

#[track_caller]
fn wait_until_ended(running: &mut Running, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while running.is_running() {
        assert!(Instant::now() < deadline, "{what} does not end");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_go_on_at_the_target_and_nothing_is_lost() {
    for pair in [(Engine::Redis70, Engine::Valkey91), (Engine::Valkey91, Engine::Valkey91)] {
        let mut scene = Scene::new(pair, FORBIDDEN);
        fill(&deployment(scene.source.addr()));
        let writers = scene.writers(16);
        let mut sync = scene.job.start(&[]);
        wait_until_following(&mut sync);
        assert!(sync.stdout().contains("tracking"), "{}", sync.stdout());
        let mut waiting = scene.front.connect();
        let waiting = thread::spawn(move || {
            redis::cmd("BLPOP").arg("nothing").arg(0).query::<Value>(&mut waiting).expect_err("it is ended")
        });

        // What the source forbids is in the way of the others, and not of this one.
        let refused = scene.job.cutover(&["--fence", "acl", "--dry-run"]).expect_code(4);
        assert!(refused.stdout.contains("--fence front"), "{}", refused.stdout);
        let predicted = report(&scene.rehearse(&["--compare", "full"]).expect_code(0));
        let front = &predicted["report"]["front"];
        assert_eq!(front["clients"], 17, "{predicted}");
        assert_eq!(front["held_ms"], 0, "{predicted}");
        assert!(predicted["report"]["estimate_ms"].as_u64().is_some_and(|ms| ms > 0), "{predicted}");
        scene.assert_phase("forwarding", "to-target");

        let outcome = report(&scene.cutover(&["--compare", "full"]).expect_code(0))["report"].clone();
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
        waiting.join().expect("no panic");
        assert!(outcome["ended"].as_u64().is_some_and(|ended| ended >= 1), "{outcome}");
        assert_eq!(outcome["pause_ms"], outcome["front"]["held_ms"], "{outcome}");
        assert_eq!(outcome["front"]["others"], 0, "nobody else is at the source: {outcome}");
        assert_eq!(outcome["front"]["late"], Json::Null, "{outcome}");
        assert_eq!(outcome["finds_one_percent"], Json::Null, "all keys are compared: {outcome}");
        eprintln!("{pair:?}: clients held for {} ms", outcome["pause_ms"]);
        scene.assert_phase("done", "to-target");
        assert!(writers.wait_for(400, PATIENCE), "the writers do not go on");

        // It starts again where it was.
        scene.front.kill_and_run_again();
        assert!(writers.wait_for(400, PATIENCE), "the writers do not go on");
        let record = writers.stop();
        eprintln!("{}", record.observed);
        record.assert_kept(&deployment(scene.target.addr()));
        let mut client = scene.front.connect();
        let keys: i64 = redis::cmd("DBSIZE").query(&mut client).expect("a number");
        assert_eq!(scene.target.call(&["DBSIZE"]), Value::Int(keys));
    }
}

/// The front's own move is for database 0 alone. A cutover behind it is for all that the sync follows.
#[test]
fn clients_of_several_databases_go_on_at_the_target() {
    let scene = Scene::new((Engine::Redis70, Engine::Valkey91), REPLICATING);
    fill(&deployment(scene.source.addr()));
    let through = deployment(scene.at());
    let of_database = |db| {
        let load = Load { threads: 2, db, pause: Duration::from_millis(2), ..Load::default() };
        (db, Writers::start(&through, load))
    };
    let writers = [0, 3, 9].map(of_database);
    let mut sync = scene.job.start(&[]);
    wait_until_following(&mut sync);
    let go_on = || writers.iter().all(|(_, writers)| writers.wait_for(100, PATIENCE));
    assert!(go_on(), "the writers do not come to work");
    scene.rehearse(&["--compare", "full"]).expect_code(0);
    scene.cutover(&["--compare", "full"]).expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    scene.assert_phase("done", "to-target");
    assert!(go_on(), "the writers do not go on");
    for (db, writers) in writers {
        let record = writers.stop();
        assert!(record.keys() > 100, "database {db}: {}", record.keys());
        record.assert_kept(&deployment(scene.target.addr()));
    }
}

#[test]
fn nothing_is_lost_when_the_sync_dies_while_clients_are_held() {
    let places = [("hold:after", false), ("switch:before", false), ("switch:after", true)];
    for (place, has_switched) in places {
        let scene = Scene::new((Engine::Valkey91, Engine::Redis80), REPLICATING);
        fill(&deployment(scene.source.addr()));
        let writers = scene.writers(8);
        let mut sync = scene.job.start_with(&[], &[("WHIMBREL_FAILPOINT", place)]);
        wait_until_following(&mut sync);
        let more = ["--max-pause", "15s"];
        let args = ["--fence", "front", "--front", scene.front.state_dir()];
        scene.job.cutover(&[&args[..], &more].concat()).expect_code(1);
        wait_until_ended(&mut sync, "the sync");
        // Nobody has to do anything: the front opens by itself.
        assert!(writers.wait_for(400, PATIENCE), "{place}: the writers do not go on");
        let mut sync = scene.job.start(&["--resume"]);
        if has_switched {
            let output = sync.wait(PATIENCE).expect("it ends").expect_code(0);
            assert!(output.stdout.contains("are at the target already"), "{place}: {}", output.stdout);
        } else {
            wait_until_following(&mut sync);
            scene.assert_phase("forwarding", "to-target");
            scene.cutover(&[]).expect_code(0);
            sync.wait(PATIENCE).expect("it ends").expect_code(0);
        }
        scene.assert_cut_over(writers, place);
    }
}

#[test]
fn nothing_is_lost_when_the_front_dies_while_clients_are_held() {
    let places = [("front-hold", false), ("front-switch:before", false), ("front-switch:after", true)];
    for (place, has_switched) in places {
        let mut scene = Scene::new((Engine::Redis70, Engine::Valkey91), REPLICATING);
        fill(&deployment(scene.source.addr()));
        let mut sync = scene.job.start(&[]);
        wait_until_following(&mut sync);
        scene.arm_front(place);
        let writers = scene.writers(8);
        let mut cutover = scene.start_cutover(&[]);
        wait_until_ended(&mut scene.front.running, "the front");
        scene.front.run_again();
        let code = if has_switched { 0 } else { 4 };
        let output = cutover.wait(PATIENCE).expect("it ends").expect_code(code);
        assert!(writers.wait_for(400, PATIENCE), "{place}: the writers do not go on");
        if !has_switched {
            scene.assert_phase("forwarding", "to-target");
            assert!(sync.is_running(), "{place}: {}", output.stdout);
            scene.cutover(&[]).expect_code(0);
        }
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
        scene.assert_cut_over(writers, place);
    }
}

#[test]
fn a_cutover_that_is_killed_has_come_to_its_end_all_the_same() {
    let scene = Scene::new((Engine::Valkey91, Engine::Valkey91), REPLICATING);
    fill(&deployment(scene.source.addr()));
    let writers = scene.writers(8);
    let go_on = scene.job.state.path().join("go-on");
    let go_on_name = go_on.to_str().expect("a name");
    let pause = [("WHIMBREL_FAILPOINT_PAUSE", "hold:after"), ("WHIMBREL_FAILPOINT_FILE", go_on_name)];
    let mut sync = scene.job.start_with(&[], &pause);
    wait_until_following(&mut sync);
    let mut cutover = scene.start_cutover(&[]);
    let reached = format!("{go_on_name}.reached");
    let deadline = Instant::now() + PATIENCE;
    while !Path::new(&reached).exists() {
        let is_on = cutover.is_running() && Instant::now() < deadline;
        assert!(is_on, "clients are not held: {}{}", cutover.stdout(), cutover.stderr());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(scene.front.status()["held_ms"].is_u64(), "{}", scene.front.status());
    cutover.kill9();
    std::fs::write(&go_on, "").expect("written");
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    scene.assert_cut_over(writers, "hold:after");
}

#[test]
fn clients_come_back_with_what_they_have_written_since() {
    for pair in [(Engine::Redis70, Engine::Redis70), (Engine::Valkey91, Engine::Redis80)] {
        let mut scene = Scene::new(pair, REPLICATING);
        fill(&deployment(scene.source.addr()));
        let writers = scene.writers(8);
        let mut sync = scene.job.start(&[]);
        wait_until_following(&mut sync);
        scene.cutover(&["--reverse-sync"]).expect_code(0);
        assert!(sync.wait_for_text("\"event\":\"back\"", PATIENCE), "{}", sync.stdout());
        wait_until_following(&mut sync);
        scene.assert_phase("done", "to-target");
        assert!(writers.wait_for(400, PATIENCE), "the writers do not go on");
        // Who leads back where a front has sent its clients away has it send them back.
        let refused = scene.job.cutover(&["--fence", "acl", "--back"]).expect_code(4);
        assert!(refused.stdout.contains("a front has sent its clients away"), "{}", refused.stdout);
        let refused = scene.cutover(&[]).expect_code(4);
        assert!(refused.stdout.contains("--back"), "{}", refused.stdout);
        scene.cutover(&["--back"]).expect_code(0);
        sync.wait(PATIENCE).expect("it ends").expect_code(0);
        scene.assert_phase("done", "to-source");
        assert!(writers.wait_for(400, PATIENCE), "the writers do not go on");
        scene.front.kill_and_run_again();
        assert!(writers.wait_for(200, PATIENCE), "the writers do not go on");
        writers.stop().assert_kept(&deployment(scene.source.addr()));
    }
}

#[test]
fn who_writes_past_the_front_is_named_and_keeps_it_from_taking_over() {
    let scene = Scene::new((Engine::Redis70, Engine::Valkey91), REPLICATING);
    fill(&deployment(scene.source.addr()));
    let through = scene.writers(4);
    let mut sync = scene.job.start(&[]);
    wait_until_following(&mut sync);
    let past = writers(&[scene.source.addr()], "past");
    let flood = Flood::begin(&scene.source);
    let predicted = report(&scene.rehearse(&[]).expect_code(0));
    assert!(predicted["report"]["front"]["others"].as_u64().is_some_and(|n| n >= 8), "{predicted}");
    let refused = scene.job.cutover(&[
        "--fence",
        "front",
        "--front",
        scene.front.state_dir(),
        "--max-pause",
        "20s",
        "--compare",
        "counts",
    ]);
    let refused = refused.expect_code(4);
    assert!(refused.stdout.contains("does not go through the front"), "{}", refused.stdout);
    assert!(refused.stdout.contains("w:past:"), "their keys are named: {}", refused.stdout);
    scene.assert_phase("forwarding", "to-target");
    flood.end();
    let past = past.stop();
    assert!(through.wait_for(200, PATIENCE), "the writers do not go on");
    let outcome = report(&scene.cutover(&[]).expect_code(0))["report"].clone();
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_eq!(outcome["front"]["late"], Json::Null, "{outcome}");
    let through = through.stop();
    past.assert_kept(&deployment(scene.target.addr()));
    through.assert_kept(&deployment(scene.target.addr()));
}

#[test]
fn both_sides_are_equal_when_nobody_writes_any_more() {
    let scene = Scene::new((Engine::Redis70, Engine::Valkey91), REPLICATING);
    fill(&deployment(scene.source.addr()));
    let writers = scene.writers(8);
    let mut sync = scene.job.start(&[]);
    wait_until_following(&mut sync);
    assert!(writers.wait_for(400, PATIENCE), "the writers do not go on");
    let record = writers.stop();
    scene.cutover(&[]).expect_code(0);
    sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_equal(&record, &scene.source.addr(), &scene.target.addr(), &comparison());
}

#[test]
fn what_cannot_be_is_refused_before_anybody_is_held() {
    let scene = Scene::new((Engine::Redis70, Engine::Valkey91), REPLICATING);
    let other = Scene::new((Engine::Redis70, Engine::Valkey91), REPLICATING);
    let mut sync = scene.job.start(&[]);
    wait_until_following(&mut sync);
    let (ours, theirs) = (scene.front.state_dir(), other.front.state_dir());
    let cases: [(&[&str], &str); 5] = [
        (&["--fence", "front"], "no front between"),
        (&["--fence", "front", "--front", ours, "--front", theirs], "one front alone"),
        (&["--fence", "front", "--front", theirs], "does not come from it"),
        (&["--fence", "front", "--front", "127.0.0.1:1"], "no front with a target runs"),
        (&["--fence", "none", "--front", ours], "--front is for --fence front"),
    ];
    for (options, words) in cases {
        for more in [&["--dry-run"][..], &[]] {
            let output = scene.job.cutover(&[options, more].concat());
            assert!(matches!(output.code(), Some(2 | 4)), "{options:?}: {output:?}");
            let printed = format!("{}{}", output.stdout, output.stderr);
            assert!(printed.contains(words), "{options:?} {more:?}: {printed}");
        }
    }
    assert!(scene.front.status()["held_ms"].is_null());
    // Keys that the front moves itself are at both servers.
    other.front.command("start");
    let mut sync_of_other = other.job.start(&["--mirror"]);
    wait_until_following(&mut sync_of_other);
    let refused = other.cutover(&["--dry-run"]).expect_code(4);
    assert!(refused.stdout.contains("front"), "{}", refused.stdout);
    stop(sync_of_other);
    stop(sync);
}
