//! The topology that `whimbrel serve` reports is what the nodes say.

use whimbrel_e2e::resharding::{MoveReport, Scene};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::tags_in;
use whimbrel_lab::{Engine, wait_until};

use crate::daemon::{EXTERNAL, serve};

/// What a node answers.
fn reply_of(scene: &Scene, node: usize, words: &[&str]) -> String {
    format!("{:?}", scene.cluster.nodes()[node].call(words))
}

/// A replica that has not taken in its primary's data is not shown as usable, until it has.
fn a_replica_that_loads_is_shown_as_the_nodes_show_it(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16382], vec![16383..=16383]]).start();
    // Only a primary without slots can become a replica.
    MoveReport::of(scene.reshard("16383", 1, &EXTERNAL).run().expect_code(0)).assert_done();
    let daemon = serve(&scene, &[]);
    let replica = scene.cluster.node_id(2).to_owned();
    let set_delay = |seconds: &str| {
        scene.cluster.nodes()[0].call(&["CONFIG", "SET", "repl-diskless-sync-delay", seconds]);
    };
    set_delay("600");
    scene.cluster.nodes()[2].call(&["CLUSTER", "REPLICATE", scene.cluster.node_id(0)]);
    wait_until("the nodes say so", || reply_of(&scene, 1, &["CLUSTER", "SHARDS"]).contains("loading"));
    wait_until("the daemon says so", || daemon.cluster("SHARDS").contains("loading"));
    assert!(!reply_of(&scene, 1, &["CLUSTER", "SLOTS"]).contains(&replica), "as the nodes do");
    assert!(!daemon.cluster("SLOTS").contains(&replica), "it is given as usable");
    assert!(daemon.cluster("NODES").contains(&replica));
    set_delay("0");
    wait_until("the nodes give it", || reply_of(&scene, 1, &["CLUSTER", "SLOTS"]).contains(&replica));
    wait_until("the daemon gives it", || daemon.cluster("SLOTS").contains(&replica));
    // Another node may be asked the next time, where one takes long on a busy machine.
    wait_until("it loads no more", || !daemon.cluster("SHARDS").contains("loading"));
}

/// Clients find out with which server they have to do.
fn it_says_of_the_servers_what_they_say_of_themselves(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=16383]]).start();
    let daemon = serve(&scene, &[]);
    let all = daemon.cli(&[], &["INFO"]);
    for field in ["whimbrel_version:", "jobs_active:0", "redis_version:", "cluster_enabled:1"] {
        assert_eq!(all.matches(&format!("\n{field}")).count(), 1, "{field}: {all}");
    }
    assert_eq!(all.contains("valkey_version:"), engine.is_valkey(), "{all}");
    let server = daemon.cli(&[], &["INFO", "server"]);
    assert!(server.starts_with("# Server") && !server.contains("whimbrel_"), "{server}");
}

/// As from the command line: the one does not wait for the other.
fn several_sources_give_slots_to_one_target_at_the_same_time(engine: Engine) {
    let layout = [vec![0..=4999], vec![5000..=9999], vec![10000..=16383]];
    let scene = Scene::of(engine, 0, &layout).start();
    for (node, slots) in [(0, 0..=199), (1, 5000..=5199)] {
        let mut pipeline = redis::pipe();
        for (number, tag) in tags_in(slots, 200).iter().cycle().take(1_000).enumerate() {
            pipeline.cmd("SET").arg(format!("plain:{{{tag}}}:{number}")).arg("value").ignore();
        }
        pipeline.exec(&mut scene.cluster.connection_to(node)).expect("the node takes the data");
    }
    let before = scene.unwritten();
    let daemon = serve(&scene, &[&EXTERNAL[..], &["--rate-keys", "50"]].concat());
    let target = scene.cluster.node_id(2);
    let words = format!("MIGRATESLOTS SLOTSRANGE 0 199 NODE {target} SLOTSRANGE 5000 5199 NODE {target}");
    assert_eq!(daemon.cluster(&words), "OK");
    wait_until("both copy their keys", || {
        daemon.cluster("GETSLOTMIGRATIONS").matches("\nsnapshotting\n").count() == 2
    });
    for ranges in ["0-199", "5000-5199"] {
        daemon.wait_for(ranges, &["success"]);
    }
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

whimbrel_lab::for_each_engine! {
    several_sources_give_slots_to_one_target_at_the_same_time
    a_replica_that_loads_is_shown_as_the_nodes_show_it
    it_says_of_the_servers_what_they_say_of_themselves
}
