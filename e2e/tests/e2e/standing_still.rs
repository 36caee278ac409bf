//! What a job waits for is named, with the node and since when, and within a bound that the user sets it
//! ends: nothing stands still for ever, and no slots are kept from anybody.

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene, wait_for_phase};
use whimbrel_e2e::shards;
use whimbrel_lab::{ClusterBuilder, Engine, wait_until};

use crate::daemon::{EXTERNAL, Served, serve};

/// Three shards; slots 0-199 have keys.
fn scene(engine: Engine) -> Scene {
    let layout = [vec![0..=4999], vec![5000..=9999], vec![10000..=16383]];
    let scene = Scene::of(engine, 0, &layout);
    // Without it all nodes refuse commands as soon as one of them has failed.
    let scene = scene.cluster(|cluster| cluster.arg("cluster-require-full-coverage", "no")).start();
    scene.fill(0..=199, 200, 2_000);
    scene
}

/// The address of a node, as messages have it.
fn address(scene: &Scene, node: usize) -> String {
    scene.cluster.nodes()[node].addr().to_string()
}

fn a_target_that_died_is_named(engine: Engine) {
    let scene = scene(engine);
    let before = shards::slots_of(&scene.cluster, 0).expect("it answers");
    let options = ["--method", "external", "--report", "1", "--rate-keys", "50", "--stall", "8s"];
    let mut running = scene.reshard("0-199", 1, &options).spawn();
    wait_for_phase(&mut running, "snapshotting");
    scene.cluster.kill9(1).expect("it can be killed");
    let output = running.wait(PATIENCE).expect("it ends by itself");
    let outcome = MoveReport::of(output);
    let reason = outcome.reason();
    assert!(reason.contains(&address(&scene, 1)), "{reason}");
    assert!(reason.contains("has not answered since 20"), "{reason}");
    assert_eq!(shards::slots_of(&scene.cluster, 0).expect("it answers"), before);
}

/// A daemon tries again for as long as it was set to, and then gives the slots free.
fn a_daemon_gives_up_what_waits_for_a_dead_target(engine: Engine) {
    let scene = scene(engine);
    let more = [&EXTERNAL[..], &["--rate-keys", "200", "--stall", "8s"]].concat();
    let daemon: Served = serve(&scene, &more);
    let [dead, other] = [1, 2].map(|node| scene.cluster.node_id(node).to_owned());
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 199 NODE {dead}")), "OK");
    daemon.wait_for("0-199", &["snapshotting"]);
    scene.cluster.kill9(1).expect("it can be killed");
    let failed = daemon.wait_for("0-199", &["failed"]);
    let message = failed["message"].as_str().expect("a text");
    for part in [&*address(&scene, 1), "has not answered since", "whimbrel repair", "no slot has moved"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // Somebody else gets them.
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 99 NODE {other}")), "OK");
    daemon.wait_for("0-99", &["success"]);
}

/// What was switched off for the source's last slots is on again once the job is given up, although its
/// target never answers any more.
fn a_daemon_that_gives_up_puts_back_what_it_switched_off(engine: Engine) {
    const FOLLOW: &str = "cluster-allow-replica-migration";
    let scene = Scene::of(engine, 0, &[vec![0..=199], vec![200..=9999], vec![10000..=16383]]);
    let on = |cluster: ClusterBuilder| cluster.arg("cluster-require-full-coverage", "no").arg(FOLLOW, "yes");
    let scene = scene.cluster(on).start();
    scene.fill(0..=199, 200, 2_000);
    let set = || format!("{:?}", scene.cluster.nodes()[0].call(&["CONFIG", "GET", FOLLOW]));
    let daemon: Served = serve(&scene, &[&EXTERNAL[..], &["--rate-keys", "50", "--stall", "8s"]].concat());
    let dead = scene.cluster.node_id(1).to_owned();
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 199 NODE {dead}")), "OK");
    daemon.wait_for("0-199", &["snapshotting"]);
    assert!(set().contains("\"no\""), "it was not switched off: {}", set());
    scene.cluster.kill9(1).expect("it can be killed");
    daemon.wait_for("0-199", &["failed"]);
    assert!(set().contains("\"yes\""), "it stays switched off: {}", set());
}

/// The process stood still, and the source had no room for what was written meanwhile.
fn a_limit_that_cuts_the_feed_is_named(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let source = &scene.cluster.nodes()[0];
    let limit = "1048576 1048576 0";
    source.call(&["CONFIG", "SET", "client-output-buffer-limit", &format!("slave {limit}")]);
    source.call(&["CONFIG", "SET", "repl-backlog-size", "16384"]);
    let go_on = scene.file("go-on");
    let mut running = scene
        .reshard(
            "0-199",
            1,
            &["--method", "external", "--report", "1", "--max-pause", "5s", "--rate-keys", "400"],
        )
        .env("WHIMBREL_FAILPOINT_PAUSE", "catch-up:before")
        .env("WHIMBREL_FAILPOINT_FILE", &go_on)
        .spawn();
    wait_until("it waits at the failpoint", || go_on.with_extension("reached").exists());
    running.suspend();
    let large = "x".repeat(500_000);
    let deadline = Instant::now() + PATIENCE;
    let counter = "client_output_buffer_limit_disconnections:";
    let cut = |text: &str| text.contains(counter) && !text.contains(&format!("{counter}0"));
    while !cut(&format!("{:?}", source.call(&["INFO", "stats"]))) {
        assert!(Instant::now() < deadline, "the server cuts nobody off");
        source.call(&["SET", "large:{06S}", &large]);
        thread::sleep(Duration::from_millis(5));
    }
    // Far more than the backlog keeps.
    for _ in 0..20 {
        source.call(&["SET", "large:{06S}", &large]);
    }
    source.call(&["DEL", "large:{06S}"]);
    running.resume();
    std::fs::write(&go_on, "").expect("a file in our folder");
    let outcome = MoveReport::by(running);
    outcome.assert_done();
    let job = outcome.report["jobs"][0]["id"].as_str().expect("a name").to_owned();
    let events = scene.jobs(&["events", &job]).run().expect_code(0).stdout;
    let named = format!("its client-output-buffer-limit for replicas (slave {limit}) cut the link at 20");
    assert!(events.contains(&named), "{events}");
    scene.assert_unchanged(&before);
}

whimbrel_lab::for_each_engine! {
    a_target_that_died_is_named
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        a_daemon_that_gives_up_puts_back_what_it_switched_off
}

mod matrix {
    use whimbrel_lab::Engine;

    fn a_daemon_gives_up_what_waits_for_a_dead_target(engine: Engine) {
        super::a_daemon_gives_up_what_waits_for_a_dead_target(engine);
    }

    whimbrel_lab::for_each_engine! {
        a_daemon_gives_up_what_waits_for_a_dead_target
    }

    /// Redis 7.0 does not count whom it cuts off.
    mod counted {
        use whimbrel_lab::Engine;

        fn a_limit_that_cuts_the_feed_is_named(engine: Engine) {
            super::super::a_limit_that_cuts_the_feed_is_named(engine);
        }

        whimbrel_lab::for_each_engine! {
            on Redis80 Valkey81 Valkey91:
                a_limit_that_cuts_the_feed_is_named
        }
    }
}
