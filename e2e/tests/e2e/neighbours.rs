//! Somebody else moves slots at the same nodes, by the servers' own commands: what comes later waits or is
//! refused, and nothing is lost.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Output, Running};
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene, wait_for_phase};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::tags_in;
use whimbrel_lab::{Engine, wait_until};

use crate::daemon::serve;

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
fn start_paused(scene: &Scene, place: &str, phase: &str) -> (Running, std::path::PathBuf) {
    let go_on = scene.file("go-on");
    let options = ["--method", "external", "--report", "1", "--max-pause", "5s"];
    let mut running = scene
        .reshard("0-199", 1, &options)
        .env("WHIMBREL_FAILPOINT_PAUSE", place)
        .env("WHIMBREL_FAILPOINT_FILE", &go_on)
        .spawn();
    wait_for_phase(&mut running, phase);
    whimbrel_lab::wait_until("it waits at the failpoint", || go_on.with_extension("reached").exists());
    (running, go_on)
}

/// All that a command has written.
fn output_of(output: &Output) -> String {
    format!("{}{}", output.stdout, output.stderr)
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
    let (running, go_on) = start_paused(&scene, "catch-up:after", "streaming");
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
    MoveReport::by(running).assert_done();
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
        let (mut running, go_on) = start_paused(&scene, "catch-up:after", "streaming");
        migrate(&scene, "0", "199", node);
        let deadline = Instant::now() + PATIENCE;
        while !["success", "failed", "cancelled"].iter().any(|end| natives(&scene, 0).contains(end)) {
            assert!(Instant::now() < deadline, "{}", natives(&scene, 0));
            thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{engine}, to node {node}: {}", natives(&scene, 0));
        std::fs::write(&go_on, "").expect("a file in our folder");
        let output = running.wait(PATIENCE).expect("it ends");
        let outcome = MoveReport::of(output.clone());
        eprintln!("{engine}, to node {node}: {:?} {}", output.code(), outcome.reason());
        let owner = scene.cluster.owner_of(100).expect("an owner");
        match output.code() {
            Some(0) => assert_eq!(owner, 1),
            Some(7) => assert_eq!(owner, node, "{:#}", outcome.report),
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

/// Keeps the servers' own migrations of the first node from coming to an end, or not any more.
fn hold_natives(scene: &Scene, held: bool) {
    let node = &scene.cluster.nodes()[0];
    match node.engine() {
        Engine::Valkey91 => {
            node.call(&["DEBUG", "SLOTMIGRATION", "PREVENT-PAUSE", if held { "1" } else { "0" }])
        }
        // Microseconds before each key, of which there are 2,000. One that has begun stays as slow as it is:
        // it takes longer than a busy machine needs for all that is looked at meanwhile, and no longer than
        // it is waited for.
        _ => node.call(&["CONFIG", "SET", "rdb-key-save-delay", if held { "20000" } else { "0" }]),
    };
}

/// Begins a migration of slots 0-199 from the first node to the second, by a command to a node.
fn migrate_by_hand(scene: &Scene) {
    match scene.cluster.nodes()[0].engine() {
        Engine::Valkey91 => migrate(scene, "0", "199", 1),
        _ => {
            let words = ["CLUSTER", "MIGRATION", "IMPORT", "0", "199"];
            scene.cluster.nodes()[1].try_call(&words).expect("the server takes it in");
        }
    }
}

/// A migration that was begun at a node is listed, keeps others from its nodes and slots, and from nothing
/// else.
fn what_was_begun_at_a_node_is_seen(engine: Engine) {
    let layout = [vec![0..=3999], vec![4000..=7999], vec![8000..=11999], vec![12000..=16383]];
    let scene = Scene::of(engine, 0, &layout).start();
    scene.fill(0..=199, 200, 2_000);
    let before = scene.unwritten();
    let daemon = serve(&scene, &[]);
    hold_natives(&scene, true);
    migrate_by_hand(&scene);
    let seed = scene.cluster.seed();
    let others = || scene.jobs(&["list", "--cluster", &seed]).run().expect_code(0).stdout;
    let mut listed = String::new();
    wait_until("it is listed", || {
        listed = others();
        listed.contains("\"slots\":\"0-199\"")
    });
    let job: Value = serde_json::from_str(listed.trim()).expect("one job");
    assert_eq!((&job["elsewhere"], &job["method"]), (&true.into(), &"native".into()), "{job:#}");
    let name = job["name"].as_str().expect("a name").to_owned();
    let message = job["message"].as_str().expect("a text").to_owned();
    assert!(message.contains("; CLUSTER ") && message.contains(" ends it"), "{message}");
    assert_eq!(
        (job["source"].as_str(), job["target"].as_str()),
        (Some(scene.cluster.node_id(0)), Some(scene.cluster.node_id(1)))
    );
    wait_until("the daemon lists it", || daemon.cluster("GETSLOTMIGRATIONS").contains(&name));
    let refused = daemon.cluster(&format!("CANCELSLOTMIGRATIONS {name}"));
    assert!(refused.contains("not a job of this daemon") && refused.contains(" ends it"), "{refused}");
    // Who holds it: the node, the slots, the task.
    let refused = scene.reshard("300", 2, &["--method", "external"]).run().expect_code(4);
    let address = scene.cluster.nodes()[0].addr().to_string();
    for part in [&*address, "of slots 0-199", &name] {
        assert!(output_of(&refused).contains(part), "{part}: {refused:#?}");
    }
    // Nodes and slots that it has nothing to do with.
    MoveReport::of(scene.reshard("8000-8010", 3, &["--method", "external"]).run().expect_code(0))
        .assert_done();
    hold_natives(&scene, false);
    wait_until("it ends", || scene.cluster.owner_of(100).expect("an owner") == 1);
    wait_until("it is listed no more", || !others().contains(&name));
    scene.assert_unchanged(&before);
}

/// Two whimbrels with folders of their own that begin at the same moment, by whatever method: both come to
/// their end, one after the other.
fn two_that_begin_at_the_same_moment_do_so_one_after_the_other(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    // Not where slots move the classic way: that is not exact about expiries.
    let writers = scene.writers(0..=99);
    assert!(writers.wait_for(500, PATIENCE), "the writers do not come to work");
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain path").to_owned();
    let seed = scene.cluster.seed();
    for (round, methods) in [["external", "external"], ["legacy", "external"]].iter().enumerate() {
        let slots = [format!("{}-{}", round * 100, round * 100 + 49), format!("{}", round * 100 + 50)];
        let to = scene.cluster.node_id(2);
        let first = scene.reshard(&slots[0], 1, &["--method", methods[0], "--report", "1"]);
        let second = Invocation::new(&[
            "reshard",
            &seed,
            "--slots",
            &slots[1],
            "--to",
            to,
            "--yes",
            "--json",
            "--method",
            methods[1],
            "--max-pause",
            "5s",
            "--state-dir",
            &state,
        ]);
        let (first, second) = (first.spawn(), second.timeout(PATIENCE).spawn());
        for mut running in [first, second] {
            let output = running.wait(PATIENCE).expect("it ends");
            // One that comes a moment later is refused with who is there, or has waited.
            let refusals = ["another whimbrel is moving slots there: job ", "slots marked as importing"];
            let is_refused = refusals.iter().any(|what| output_of(&output).contains(what));
            assert!(output.code() == Some(0) || output.code() == Some(4) && is_refused, "{output:#?}");
        }
        shards::assert_sound(&scene.cluster);
    }
    assert!(writers.wait_for(200, PATIENCE), "the writers have stopped");
    scene.assert_kept(&writers.stop());
    scene.assert_unchanged(&before);
}

/// A whimbrel that was killed, and whose folder is lost with its machine, keeps nobody out: what it has left
/// is named, with the command that removes it.
fn one_that_was_killed_keeps_nobody_out(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain path").to_owned();
    let seed = scene.cluster.seed();
    let places = [
        "check:after",
        "mark-importing:after",
        "attach:after",
        "snapshot:after",
        "catch-up:after",
        "pause:after",
        "drain:after",
        "compare:after",
        "fence:before",
        "take-over:after",
        "release:after",
        "confirm:after",
        "clean-up:after",
    ];
    for (number, place) in places.iter().enumerate() {
        let slots = format!("{}-{}", number * 10, number * 10 + 4);
        let killed =
            scene.reshard(&slots, 1, &["--method", "external"]).env("WHIMBREL_FAILPOINT", place).run();
        assert_eq!(killed.code(), None, "{place}: {killed:#?}");
        // Another one, which knows nothing of that job, at the same nodes.
        let another = (number * 10 + 5).to_string();
        let args = [
            "reshard",
            &seed,
            "--slots",
            &another,
            "--to",
            scene.cluster.node_id(1),
            "--yes",
            "--json",
            "--method",
            "external",
            "--max-pause",
            "5s",
            "--stall",
            "5s",
            "--state-dir",
            &state,
        ];
        let again = || Invocation::new(&args).timeout(PATIENCE).run();
        let repair = ["repair", &seed, "--yes", "--json"];
        let repair = || Invocation::new(&repair).timeout(PATIENCE).run().expect_code(0);
        let mut output = again();
        if output.code() != Some(0) {
            assert_eq!(output.code(), Some(4), "{place}: {output:#?}");
            assert!(output_of(&output).contains("`whimbrel repair`"), "{place}: {output:#?}");
            repair();
            output = again();
        }
        assert_eq!(output.code(), Some(0), "{place}: {output:#?}");
        // What keeps nobody out is removed as well: keys that were taken over and are still at the source.
        repair();
        shards::assert_sound(&scene.cluster);
    }
    scene.assert_unchanged(&before);
}

whimbrel_lab::for_each_engine! {
    on Redis86 Valkey91:
        what_was_begun_at_a_node_is_seen
}

mod matrix {
    use whimbrel_lab::Engine;

    fn two_that_begin_at_the_same_moment_do_so_one_after_the_other(engine: Engine) {
        super::two_that_begin_at_the_same_moment_do_so_one_after_the_other(engine);
    }

    fn one_that_was_killed_keeps_nobody_out(engine: Engine) {
        super::one_that_was_killed_keeps_nobody_out(engine);
    }

    whimbrel_lab::for_each_engine! {
        two_that_begin_at_the_same_moment_do_so_one_after_the_other
        one_that_was_killed_keeps_nobody_out
    }
}
