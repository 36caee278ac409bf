//! The servers' own migrations, and what whimbrel does where they fail, do not move, or are forgotten.

use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Running;
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::{ClusterWriters, tags_in};
use whimbrel_judge::compare::diff;
use whimbrel_lab::{Engine, wait_until};
use whimbrel_loadgen::content::{Content, Names};
use whimbrel_loadgen::load::{self, Pace};

/// Slots that move, and how they are written on the command line.
const MOVING: RangeInclusive<u16> = 0..=1023;
const MOVING_TEXT: &str = "0-1023";

/// Commands that clients have done before slots move, and after.
const WARM: u64 = 2_000;

/// Two shards, the first of which has keys in the slots that move.
fn scene(engine: Engine) -> Scene {
    let scene = Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(MOVING, 500, 2_000);
    scene
}

fn writers(scene: &Scene) -> ClusterWriters {
    let writers = scene.writers(MOVING);
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    writers
}

/// What keeps the servers' own migrations of the first node from coming to an end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slowdown {
    /// They do not move.
    Still,
    /// They do not come to an end at once. On Redis a snapshot that has begun stays as slow as it is.
    Slow,
    /// Nothing does.
    Off,
}

fn prevent(scene: &Scene, hold: Slowdown) {
    let node = &scene.cluster.nodes()[0];
    if node.engine().is_valkey() {
        let is_on = if hold == Slowdown::Off { "0" } else { "1" };
        node.call(&["DEBUG", "SLOTMIGRATION", "PREVENT-PAUSE", is_on]);
        return;
    }
    // Microseconds before each key. It is noticed between two keys that nobody waits any more.
    let delay = match hold {
        Slowdown::Still => "5000000",
        Slowdown::Slow => "5000",
        Slowdown::Off => "0",
    };
    node.call(&["CONFIG", "SET", "rdb-key-save-delay", delay]);
}

/// What a node lists of the servers' own migrations.
fn listed(scene: &Scene, node: usize) -> String {
    let node = &scene.cluster.nodes()[node];
    let command: &[&str] = match node.engine() {
        engine if engine.is_valkey() => &["CLUSTER", "GETSLOTMIGRATIONS"],
        _ => &["CLUSTER", "MIGRATION", "STATUS", "ALL"],
    };
    format!("{:?}", node.call(command))
}

/// Waits until the first node is at work on a migration of the servers' own.
fn wait_until_it_runs(scene: &Scene) {
    wait_until("the servers work on it", || {
        let listed = listed(scene, 0);
        ["snapshotting", "waiting-to-pause", "replicating", "send-bulk-and-stream", "wait-bgsave-start"]
            .iter()
            .any(|state| listed.contains(state))
    });
}

/// Everything is where it should be, and nothing is left, also of what nodes hide: DBSIZE counts that.
fn assert_kept(scene: &Scene, writers: ClusterWriters, owner: usize) {
    assert!(writers.wait_for(WARM / 4, PATIENCE), "the writers have stopped");
    let record = writers.stop();
    eprintln!("{}", record.observed);
    scene.assert_kept(&record);
    let owned = shards::slots_of(&scene.cluster, owner).expect("it answers");
    assert!(MOVING.clone().all(|slot| owned.contains(&slot)), "node {owner} does not own the slots");
    scene.assert_nothing_hidden();
}

/// The only job of a report.
fn job(outcome: &MoveReport) -> serde_json::Value {
    outcome.report["jobs"][0].clone()
}

fn what_does_not_move_is_left(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let writers = writers(&scene);
    prevent(&scene, Slowdown::Still);
    let running = scene.reshard(MOVING_TEXT, 1, &["--native-stall", "2s"]).spawn();
    wait_until("whimbrel's own method takes over", || {
        scene.jobs(&["list"]).run().stdout.contains("\"fell_back\"")
    });
    // How long it may pause cannot be said beforehand. A job that has ended takes no order any more.
    for job in scene.unfinished() {
        scene.jobs(&["set", &job, "max-pause=5s"]).run();
    }
    prevent(&scene, Slowdown::Off);
    let outcome = MoveReport::by(running);
    outcome.assert_done();
    let job = job(&outcome);
    assert_eq!(job["method"], "external", "{job:#}");
    let why = job["fell_back"].as_str().expect("it says why");
    assert!(why.contains("it did not move for 2 s"), "{why}");
    assert!(job["notices"].to_string().contains("did not move"), "{job:#}");
    // Of the node that was asked to move them.
    let driver = if engine.is_valkey() { 0 } else { 1 };
    assert!(listed(&scene, driver).contains("cancel"), "{}", listed(&scene, driver));
    assert_kept(&scene, writers, 1);
    scene.assert_unchanged(&before);
    // Nothing is in the way of the next one.
    let outcome = MoveReport::by(scene.reshard(MOVING_TEXT, 0, &["--method", "native"]).spawn());
    assert_eq!(outcome.report["jobs"][0]["ending"], "done", "{:#}", outcome.report);
    scene.assert_unchanged(&before);
    scene.assert_nothing_hidden();
}

whimbrel_lab::for_each_engine! {
    on Redis86 Valkey91:
        what_does_not_move_is_left
}

mod matrix {
    use whimbrel_lab::Engine;

    fn who_was_killed_goes_on(engine: Engine) {
        super::who_was_killed_goes_on(engine);
    }

    fn who_was_killed_is_cancelled(engine: Engine) {
        super::who_was_killed_is_cancelled(engine);
    }

    fn a_job_is_cancelled(engine: Engine) {
        super::a_job_is_cancelled(engine);
    }

    fn a_job_goes_on_by_the_method_that_it_had_reached(engine: Engine) {
        super::a_job_goes_on_by_the_method_that_it_had_reached(engine);
    }

    fn a_server_that_forgets_is_asked_again(engine: Engine) {
        super::a_server_that_forgets_is_asked_again(engine);
    }

    fn native_alone_stays_native(engine: Engine) {
        super::native_alone_stays_native(engine);
    }

    whimbrel_lab::for_each_engine! {
        on Redis86 Valkey90 Valkey91:
            who_was_killed_goes_on
            who_was_killed_is_cancelled
            a_job_is_cancelled
            a_job_goes_on_by_the_method_that_it_had_reached
            a_server_that_forgets_is_asked_again
            native_alone_stays_native
    }

    #[test]
    fn everything_moves_however_much_is_written() {
        super::everything_moves_however_much_is_written();
    }
}

/// A move by the servers' own method that is under way and held.
fn start_slowed(scene: &Scene, how: Slowdown, more: &[&str]) -> Running {
    prevent(scene, how);
    let mut running = scene.reshard(MOVING_TEXT, 1, &[&["--report", "1"], more].concat()).spawn();
    wait_until_it_runs(scene);
    assert!(running.is_running(), "{}\n{}", running.stdout(), running.stderr());
    running
}

fn who_was_killed_goes_on(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let writers = writers(&scene);
    start_slowed(&scene, Slowdown::Slow, &["--method", "native"]).kill9();
    assert_eq!(scene.unfinished().len(), 1);
    prevent(&scene, Slowdown::Off);
    scene.resume();
    assert_kept(&scene, writers, 1);
    scene.assert_unchanged(&before);
}

fn who_was_killed_is_cancelled(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let writers = writers(&scene);
    start_slowed(&scene, Slowdown::Still, &["--method", "native"]).kill9();
    let [name] = &scene.unfinished()[..] else { panic!("one job") };
    scene.jobs(&["cancel", name, "--cluster", &scene.cluster.seed()]).run().expect_code(0);
    assert_eq!(scene.unfinished().len(), 0);
    assert_kept(&scene, writers, 0);
    scene.assert_unchanged(&before);
    prevent(&scene, Slowdown::Off);
}

fn a_job_is_cancelled(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let writers = writers(&scene);
    let mut running = start_slowed(&scene, Slowdown::Still, &["--method", "auto", "--native-stall", "10m"]);
    let [name] = &scene.unfinished()[..] else { panic!("one job") };
    // The servers move the keys: how fast is not ours to say.
    scene.jobs(&["set", name, "rate-keys=5"]).run().expect_code(2);
    scene.jobs(&["cancel", name]).run().expect_code(0);
    let output = running.wait(PATIENCE).expect("it ends");
    assert_eq!(MoveReport::of(output).report["jobs"][0]["ending"], "cancelled");
    assert_kept(&scene, writers, 0);
    scene.assert_unchanged(&before);
    prevent(&scene, Slowdown::Off);
}

fn a_job_goes_on_by_the_method_that_it_had_reached(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let writers = writers(&scene);
    prevent(&scene, Slowdown::Still);
    let command = scene.reshard(MOVING_TEXT, 1, &["--method", "native", "--native-stall", "2s"]);
    let output = command.env("WHIMBREL_FAILPOINT", "attach:before").run();
    assert_eq!(output.code(), None, "it was not killed: {output:#?}");
    let tried = listed(&scene, 0).matches("operation").count();
    let [name] = &scene.unfinished()[..] else { panic!("one job") };
    let shown = scene.jobs(&["show", name]).run().expect_code(0);
    assert!(shown.stdout.contains("\"fell_back\":"), "{}", shown.stdout);
    prevent(&scene, Slowdown::Off);
    scene.resume();
    assert_eq!(listed(&scene, 0).matches("operation").count(), tried, "{}", listed(&scene, 0));
    assert_kept(&scene, writers, 1);
    scene.assert_unchanged(&before);
}

/// A node that is killed forgets what it was at work on. It comes back with its keys.
fn a_server_that_forgets_is_asked_again(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let mut running = start_slowed(&scene, Slowdown::Slow, &["--method", "native"]);
    // The node that is asked how far it is: the source on Valkey, the target on Redis.
    let node = if engine.is_valkey() { 0 } else { 1 };
    let node = &scene.cluster.nodes()[node];
    node.kill9().expect("killed");
    node.restart().expect("it starts again");
    scene.cluster.wait_ok().expect("the nodes agree");
    prevent(&scene, Slowdown::Off);
    let output = running.wait(PATIENCE).expect("it ends");
    eprintln!("{engine}: {:?} {}", output.code(), MoveReport::of(output.clone()).reason());
    let owner = match output.code() {
        Some(0) => 1,
        Some(7) => 0,
        code => panic!("{code:?}: {output:#?}"),
    };
    assert_eq!(scene.cluster.owner_of(5).expect("an owner"), owner);
    assert!(scene.unfinished().is_empty());
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    scene.assert_nothing_hidden();
    if owner == 0 {
        let outcome = MoveReport::by(scene.reshard(MOVING_TEXT, 1, &["--method", "native"]).spawn());
        assert_eq!(outcome.report["jobs"][0]["ending"], "done", "{:#}", outcome.report);
        scene.assert_unchanged(&before);
    }
}

/// Without the option nothing takes the place of what was asked for; with options that only whimbrel's own
/// method keeps, the servers' own is refused.
fn native_alone_stays_native(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    for more in [
        &["--native-stall", "5s", "--verify", "full"][..],
        &["--method", "native", "--verify", "full"],
        &["--method", "external", "--native-stall", "5s"],
    ] {
        scene.reshard(MOVING_TEXT, 1, more).run().expect_code(2);
    }
    // It cannot write a snapshot of its own while it is made to wait for ever.
    let mut running = start_slowed(&scene, Slowdown::Still, &["--method", "native"]);
    let deadline = Instant::now() + Duration::from_secs(4);
    while Instant::now() < deadline {
        assert!(running.is_running(), "{}\n{}", running.stdout(), running.stderr());
        thread::sleep(Duration::from_millis(100));
    }
    running.interrupt();
    let output = running.wait(PATIENCE).expect("it ends");
    assert_eq!(MoveReport::of(output).report["jobs"][0]["ending"], "cancelled");
    scene.assert_unchanged(&before);
    prevent(&scene, Slowdown::Off);
}

/// Valkey's own migration fails for good where more is written than it can send. Whimbrel's own slows the
/// writers down. Where clients take all processors a handover may need a longer pause than is allowed: then
/// it says so, and the next job goes on with the slots that are left.
fn everything_moves_however_much_is_written() {
    let scene = scene(Engine::Valkey91);
    let before = scene.unwritten();
    let writers = writers(&scene);
    let content = Content { names: Names::In(tags_in(MOVING, 200)), keys: 100_000, value_bytes: 200 };
    let addresses = shards::addresses(&scene.cluster);
    let owner_of = (0..16384).map(|slot| usize::from(slot > 8191)).collect();
    let plan = load::Plan { addresses, owner_of, content, clients: 4, pace: Pace::Saturate(100) };
    let load = load::Load::start(&plan);
    let begun = load.elapsed();
    let mut outcome = MoveReport::by(scene.reshard(MOVING_TEXT, 1, &["--native-stall", "3s"]).spawn());
    for _ in 0..5 {
        let job = job(&outcome);
        if job["ending"] == "done" {
            break;
        }
        eprintln!("again: {}; {} moved", job["reason"], job["slots_handed_over"]);
        assert!(outcome.reason().contains("takes a pause"), "{:#}", outcome.report);
        outcome = MoveReport::by(scene.reshard(MOVING_TEXT, 1, &["--native-stall", "3s"]).spawn());
    }
    let window = begun..load.elapsed();
    let recorded = load.stop();
    let written = recorded.samples.len() as f64 * 100.0 / window.end.as_secs_f64();
    let job = job(&outcome);
    eprintln!("{written:.0} writes a second; {} {}", job["method"], job["fell_back"]);
    assert_eq!(job["ending"], "done", "{:#}", outcome.report);
    assert_kept(&scene, writers, 1);
    let mut after = scene.unwritten();
    after.keys.retain(|key, _| before.keys.contains_key(key));
    assert!(diff(&before, &after, 1).is_empty(), "keys are lost");
}
