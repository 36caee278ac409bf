//! `--atomic`: all slots of a command move in one handover, or none does. What cannot be done so is refused
//! before anything changes.

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene};
use whimbrel_e2e::shards;
use whimbrel_lab::Engine;

/// More slots and more keys than any server's batch has.
const MOVING: std::ops::RangeInclusive<u16> = 0..=1999;
const MOVING_TEXT: &str = "0-1999";
const KEYS: usize = 10_000;

/// The pause that these servers need for that, and that a busy machine needs.
const LONG: [&str; 4] = ["--method", "external", "--max-pause", "20s"];

fn scene(engine: Engine) -> Scene {
    let scene = Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(MOVING, 400, KEYS);
    scene
}

/// How many of the moving slots a node owns, by its own word.
fn owned(scene: &Scene, node: usize) -> usize {
    let owned = shards::slots_of(&scene.cluster, node).expect("it answers");
    MOVING.filter(|slot| owned.contains(slot)).count()
}

/// One handover, where there would be two or more, while clients write.
fn all_slots_move_at_once(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let writers = scene.writers(MOVING);
    assert!(writers.wait_for(1_000, PATIENCE), "the writers do not come to work");
    for target in [1, 0] {
        let mut running = scene.reshard(MOVING_TEXT, target, &[&LONG[..], &["--atomic"]].concat()).spawn();
        while running.is_running() {
            let moved = owned(&scene, target);
            assert!(moved == 0 || moved == MOVING.count(), "{moved} slots have moved");
        }
        let outcome = MoveReport::by(running);
        outcome.assert_done();
        assert_eq!(owned(&scene, target), MOVING.count());
        assert!(outcome.output.stdout.contains("\"batches\":1"), "{}", outcome.output.stdout);
        assert!(writers.wait_for(300, PATIENCE), "the writers have stopped");
    }
    let record = writers.stop();
    eprintln!("{engine}: {}", record.observed);
    // How often a client is sent back and forth at a handover is asserted elsewhere.
    record.observed.assert_only_redirected();
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
}

/// The target runs out of memory, somebody cancels: nothing has moved, and that is said.
fn none_moves_where_it_does_not_come_to_a_handover(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let node = &scene.cluster.nodes()[1];
    node.call(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let atomic = [&LONG[..], &["--atomic"]].concat();
    let outcome = MoveReport::of(scene.reshard(MOVING_TEXT, 1, &atomic).run().expect_code(7));
    assert!(outcome.reason().to_lowercase().contains("memory"), "{:#}", outcome.report);
    assert_eq!(outcome.report["jobs"][0]["slots_handed_over"], "", "{:#}", outcome.report);
    node.call(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(owned(&scene, 1), 0);

    let slow = [&atomic[..], &["--rate-keys", "500"]].concat();
    let mut running = scene.reshard(MOVING_TEXT, 1, &slow).spawn();
    let deadline = Instant::now() + PATIENCE;
    while node.call(&["DBSIZE"]) == redis::Value::Int(0) {
        assert!(Instant::now() < deadline, "nothing is staged");
        thread::sleep(Duration::from_millis(20));
    }
    running.terminate();
    let outcome = MoveReport::of(running.wait(PATIENCE).expect("it ends").expect_code(130));
    assert_eq!(outcome.report["slots"], 0, "{:#}", outcome.report);
    assert_eq!(owned(&scene, 1), 0);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

/// With the reason, and by a dry run as well; nothing is staged or marked.
fn what_cannot_be_done_at_once_is_refused(engine: Engine) {
    let layout = [vec![0..=1999], vec![2000..=16000], vec![16001..=16383], vec![]];
    let scene = Scene::of(engine, 1, &layout).start();
    let refused = |slots: &str, to: usize, more: &[&str], code: i32, why: &str| {
        let node = scene.cluster.node_id(to).to_owned();
        for last in ["--yes", "--dry-run"] {
            let args = ["--slots", slots, "--to", &node, "--atomic", last];
            let output = scene.command("reshard", &[&args[..], more].concat()).run().expect_code(code);
            assert!(output.stdout.contains(why), "{why}: {}", output.stdout);
        }
    };
    let external = ["--method", "external"];
    refused("0-999", 1, &[&external[..], &["--max-pause", "1ms"]].concat(), 4, "--max-pause");
    refused("0-9", 1, &["--method", "legacy"], 2, "slot by slot");
    refused("0-9,2000-2009", 2, &external, 2, "2 moves");
    scene.reshard("0-9", 1, &["--atomic", "--batch-keys", "5"]).run().expect_code(2);
    if engine == Engine::Redis70 {
        // All slots of a shard to one that has none: these servers' replicas would follow them.
        refused("0-1999", 3, &LONG, 4, "two handovers");
    }
    assert!(scene.unfinished().is_empty());
    shards::assert_sound(&scene.cluster);
}

/// `MIGRATESLOTS` at the daemon moves all of its slots or none, and refuses what its pause does not allow.
fn the_daemon_moves_all_slots_of_a_command_or_none(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let target = scene.cluster.node_id(1).to_owned();
    let migrate = |daemon: &redis::Client| {
        let mut connection = daemon.get_connection().expect("the daemon answers");
        let mut command = redis::cmd("CLUSTER");
        command.arg(&["MIGRATESLOTS", "SLOTSRANGE", "0", "1999", "NODE", &target]);
        command.query::<String>(&mut connection)
    };
    let state = |daemon: &redis::Client| {
        let mut connection = daemon.get_connection().expect("the daemon answers");
        let all: redis::Value =
            redis::cmd("CLUSTER").arg("GETSLOTMIGRATIONS").query(&mut connection).expect("a list");
        format!("{all:?}")
    };
    let serve = |pause: &str| {
        let (seed, state) = (scene.cluster.seed(), scene.file("").to_string_lossy().into_owned());
        let args = ["serve", "--cluster", &seed, "--listen", "127.0.0.1:0", "--state-dir", &state, "--json"];
        let args = [&args[..], &["--method", "external", "--max-pause", pause]].concat();
        let mut running = Invocation::new(&args).timeout(PATIENCE).spawn();
        assert!(running.wait_for_text("\"resuming\"", PATIENCE), "{}", running.stderr());
        let line = running.stdout().lines().find(|line| line.contains("\"serving\"")).map(str::to_owned);
        let line: serde_json::Value = serde_json::from_str(&line.expect("it says so")).expect("JSON");
        let address = line["address"].as_str().expect("an address").to_owned();
        (running, redis::Client::open(format!("redis://{address}")).expect("an address"))
    };
    let (running, daemon) = serve("1ms");
    let refused = migrate(&daemon).expect_err("the pause is too short").to_string();
    assert!(refused.contains("pause of about"), "{refused}");
    drop(running);

    let (_running, daemon) = serve("20s");
    let node = &scene.cluster.nodes()[1];
    node.call(&["CONFIG", "SET", "maxmemory", "1mb"]);
    assert_eq!(migrate(&daemon).expect("it is taken in"), "OK");
    let wait_for = |what: &str| {
        let deadline = Instant::now() + PATIENCE;
        while !state(&daemon).contains(what) {
            let moved = owned(&scene, 1);
            assert!(moved == 0 || moved == MOVING.count(), "{moved} slots have moved");
            assert!(Instant::now() < deadline, "{what}: {}", state(&daemon));
            thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("\"failed\"");
    assert!(state(&daemon).contains("no slot has moved"), "{}", state(&daemon));
    assert_eq!(owned(&scene, 1), 0);
    node.call(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(migrate(&daemon).expect("it is taken in"), "OK");
    wait_for("\"success\"");
    assert_eq!(owned(&scene, 1), MOVING.count());
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

whimbrel_lab::for_each_engine! {
    all_slots_move_at_once
    none_moves_where_it_does_not_come_to_a_handover
    what_cannot_be_done_at_once_is_refused
    the_daemon_moves_all_slots_of_a_command_or_none
}
