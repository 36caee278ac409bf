//! Somebody else moves slots at the same nodes, by the servers' own commands: what comes later waits or is
//! refused, and nothing is lost.

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::Running;
use whimbrel_e2e::cluster_writers::tags_in;
use whimbrel_e2e::resharding::{PATIENCE, Scene, Told, wait_for_phase};
use whimbrel_e2e::shards;
use whimbrel_lab::Engine;

/// Three shards; slots 0-399 have keys, large ones those from 200 on.
fn scene(engine: Engine) -> Scene {
    let layout = [vec![0..=4999], vec![5000..=9999], vec![10000..=16383]];
    let scene = Scene::of(engine, 0, &layout).start();
    let mut connection = scene.cluster.connection_to(0);
    for (slots, bytes) in [(0..=199, 10), (200..=399, 100_000)] {
        let mut pipeline = redis::pipe();
        for (number, tag) in tags_in(slots, 200).iter().enumerate() {
            pipeline.cmd("SET").arg(format!("plain:{{{tag}}}:{number}")).arg("x".repeat(bytes)).ignore();
        }
        pipeline.exec(&mut connection).expect("the source takes the data");
    }
    scene
}

/// A move of slots 0-199 to the second shard, held before `place`, and the file that lets it go on.
fn held(scene: &Scene, place: &str, phase: &str) -> (Running, std::path::PathBuf) {
    let go_on = scene.file("go-on");
    let options = ["--method", "external", "--report", "1", "--max-pause", "1s"];
    let mut running = scene
        .reshard("0-199", 1, &options)
        .env("WHIMBREL_FAILPOINT_PAUSE", place)
        .env("WHIMBREL_FAILPOINT_FILE", &go_on)
        .spawn();
    wait_for_phase(&mut running, phase);
    whimbrel_lab::wait_until("it waits at the failpoint", || go_on.with_extension("reached").exists());
    (running, go_on)
}

/// The states of the native migrations that a node lists.
fn natives(scene: &Scene, node: usize) -> String {
    format!("{:?}", scene.cluster.nodes()[node].call(&["CLUSTER", "GETSLOTMIGRATIONS"]))
}

fn migrate(scene: &Scene, from: &str, to: &str, node: usize) {
    let target = scene.cluster.node_id(node).to_owned();
    let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", from, to, "NODE", &target];
    scene.cluster.nodes()[0].try_call(&words).expect("the server takes it in");
}

/// Of other slots, to a third node: it is under way when the job comes to its handover, which waits.
fn a_migration_of_other_slots_is_waited_for(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let writers = scene.writers(0..=199);
    assert!(writers.wait_for(500, PATIENCE), "the writers do not come to work");
    let (running, go_on) = held(&scene, "catch-up:after", "streaming");
    // It cannot end while its target stands still.
    scene.cluster.nodes()[2].suspend().expect("it can be stopped");
    migrate(&scene, "200", "399", 2);
    std::fs::write(&go_on, "").expect("a file in our folder");
    // Some rounds of its own: nothing of ours is handed over meanwhile.
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        assert!(shards::slots_of(&scene.cluster, 1).expect("it answers").len() == 5000, "handed over");
        thread::sleep(Duration::from_millis(100));
    }
    scene.cluster.nodes()[2].resume().expect("it goes on");
    Told::by(running).assert_done();
    assert_eq!(shards::slots_of(&scene.cluster, 1).expect("it answers").len(), 5200);
    let deadline = Instant::now() + PATIENCE;
    while !natives(&scene, 0).contains("success") && !natives(&scene, 0).contains("failed") {
        assert!(Instant::now() < deadline, "{}", natives(&scene, 0));
        thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{engine}: {}", natives(&scene, 0));
    assert!(writers.wait_for(200, PATIENCE), "the writers have stopped");
    scene.assert_kept(&writers.stop());
    scene.assert_unchanged(&before);
}

/// Of the same slots: the server refuses what comes to marked slots, and where it goes to a third node,
/// either of the two ends well, and nothing is lost.
fn a_migration_of_the_same_slots_loses_nothing(engine: Engine) {
    for node in [1, 2] {
        let scene = scene(engine);
        let before = scene.unwritten();
        let writers = scene.writers(0..=199);
        assert!(writers.wait_for(500, PATIENCE), "the writers do not come to work");
        let (mut running, go_on) = held(&scene, "catch-up:after", "streaming");
        migrate(&scene, "0", "199", node);
        let deadline = Instant::now() + PATIENCE;
        while !["success", "failed", "cancelled"].iter().any(|end| natives(&scene, 0).contains(end)) {
            assert!(Instant::now() < deadline, "{}", natives(&scene, 0));
            thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{engine}, to node {node}: {}", natives(&scene, 0));
        std::fs::write(&go_on, "").expect("a file in our folder");
        let output = running.wait(PATIENCE).expect("it ends");
        let told = Told::of(output.clone());
        eprintln!("{engine}, to node {node}: {:?} {}", output.code(), told.reason());
        let owner = scene.cluster.owner_of(100).expect("an owner");
        match output.code() {
            Some(0) => assert_eq!(owner, 1),
            Some(7) => assert_eq!(owner, node, "{:#}", told.report),
            code => panic!("{code:?}: {output:#?}"),
        }
        assert!(writers.wait_for(200, PATIENCE), "the writers have stopped");
        scene.assert_kept(&writers.stop());
        scene.assert_unchanged(&before);
    }
}

whimbrel_lab::for_each_engine! {
    on Valkey91:
        a_migration_of_other_slots_is_waited_for
        a_migration_of_the_same_slots_loses_nothing
}
