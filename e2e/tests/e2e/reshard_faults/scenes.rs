//! Clusters whose slots move to and fro, and what is waited for in them.

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::resharding::{PATIENCE, Scene};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, Record, tags_in};
use whimbrel_lab::{Engine, Server, wait_until};

/// Slots that move, and how they are written on the command line.
pub(super) const MOVING: std::ops::RangeInclusive<u16> = 0..=599;

pub(super) const MOVING_TEXT: &str = "0-599";

/// Keys in the moving slots besides those of the writers, so that there is something to copy.
const KEYS: usize = 2_000;

/// Two shards that pass the moving slots to and fro; each has a replica.
pub(super) fn scene(engine: Engine) -> Scene {
    filled(Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383]]).start())
}

pub(super) fn filled(scene: Scene) -> Scene {
    filled_in(scene, MOVING)
}

pub(super) fn filled_in(scene: Scene, slots: std::ops::RangeInclusive<u16>) -> Scene {
    scene.fill(slots, 200, KEYS);
    scene
}

/// A third shard has a vote when one of the others has lost its primary.
pub(super) fn scene_with_failovers(engine: Engine) -> Scene {
    let layout = [vec![0..=8191], vec![8192..=16000], vec![BYSTANDING]];
    let scene = Scene::of(engine, 1, &layout).cluster(|cluster| {
        // Longer than a machine stands still. As servers are by default: a primary that comes back and has
        // lost its slots becomes a replica. But no replica leaves its shard: two of one primary split the
        // votes, in one election after another.
        let cluster = cluster.node_timeout_ms(5_000).arg("cluster-allow-replica-migration", "yes");
        cluster.arg("cluster-migration-barrier", "1000")
    });
    filled(scene.start())
}

/// How soon every shard serves clients again once a failover is over: far more than it takes, on a busy
/// machine too.
const SERVES_WITHIN: Duration = Duration::from_secs(180);

/// Indexes of the nodes of the third shard.
pub(super) const BYSTANDERS: [usize; 2] = [2, 5];

/// Slots of the third shard.
const BYSTANDING: std::ops::RangeInclusive<u16> = 16001..=16383;

/// Writers with a name of their own: several follow one another on one cluster.
pub(super) fn writers(scene: &Scene, name: &str) -> ClusterWriters {
    let mut tags = tags_in(MOVING, 24);
    tags.extend(tags_in(0..16384, 4));
    tags.extend(tags_in(BYSTANDING, 2));
    // These tests wait for failovers most of the time.
    let pause = Duration::from_millis(40);
    let load = Load { clients: 8, subjects: 27, prefix: name.to_owned(), pause, ..Load::on(tags) };
    let writers = scene.write(&load);
    assert!(writers.wait_for(400, PATIENCE), "{name}: the writers do not come to work");
    writers
}

/// The owners of some of the moving slots.
pub(super) fn owners_of_moving(scene: &Scene) -> [usize; 3] {
    [0, 300, 599].map(|slot| scene.cluster.owner_of(slot).expect("every slot has an owner"))
}

/// The owner of the moving slots, and the other primary, by index as created. All slots must have one owner.
#[track_caller]
pub(super) fn owner(scene: &Scene, case: &str) -> (usize, usize) {
    let owners = owners_of_moving(scene);
    assert!(owners.windows(2).all(|pair| pair[0] == pair[1]), "{case}: the slots are split: {owners:?}");
    let primaries = scene.cluster.current_primaries().expect("the nodes answer");
    let is_other = |node: &usize| {
        *node != owners[0] && (scene.cluster.primaries().len() == 2 || !BYSTANDERS.contains(node))
    };
    let other = primaries.into_iter().find(is_other).expect("there is another primary");
    (owners[0], other)
}

/// Waits until every node that runs finds the cluster well, and until clients of each shard can write.
pub(super) fn serves_again(scene: &Scene, case: &str) {
    let deadline = Instant::now() + SERVES_WITHIN;
    for node in scene.cluster.nodes().iter().filter(|node| node.is_running()) {
        let state = || format!("{:?}", node.call(&["CLUSTER", "INFO"]));
        while !state().contains("cluster_state:ok") {
            assert!(Instant::now() < deadline, "{case}: {}: {}", node.addr(), state());
            thread::sleep(Duration::from_millis(100));
        }
    }
    let nodes = scene.cluster.nodes();
    let tags = [tags_in(MOVING, 8), tags_in(0..16384, 24), tags_in(BYSTANDING, 4)].concat();
    for tag in tags {
        let key = format!("w:served:{{{tag}}}");
        let writes = || {
            let at = nodes.iter().filter(|node| node.is_running());
            at.map(|node| node.try_call(&["SET", &key, "1"])).any(|reply| reply.is_ok())
        };
        while !writes() {
            assert!(Instant::now() < deadline, "{case}: nobody takes {key}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A primary that comes back and finds its slots with several others becomes a replica of the last one to say
/// so. For the next case it has to be one of its own shard again.
pub(super) fn rejoin_its_shard(scene: &Scene, index: usize) {
    let shards = scene.cluster.primaries().len();
    let mate = (index + shards) % scene.cluster.nodes().len();
    let ids = [index, mate].map(|node| scene.cluster.node_id(node));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match [index, mate].map(|node| follows(&scene.cluster.nodes()[node])) {
            [Some(primary), None] if primary == ids[1] => break,
            [None, Some(primary)] if primary == ids[0] => break,
            // Refused until it has heard that its mate is a primary.
            [Some(_), None] => drop(scene.cluster.nodes()[index].try_call(&["CLUSTER", "REPLICATE", ids[1]])),
            // It has not heard yet that its slots are another's.
            _ => {}
        }
        assert!(Instant::now() < deadline, "the node that was killed does not come back to its shard");
        thread::sleep(Duration::from_millis(100));
    }
    scene.cluster.wait_ok().expect("the replica follows");
}

/// Elections that replicas have won so far.
pub(super) fn elections_won(scene: &Scene) -> usize {
    scene.cluster.nodes().iter().map(|node| node.log().matches("Failover election won").count()).sum()
}

/// Compares what was acknowledged since `before` elections were won. Not if more than the `expected` ones
/// were won since: a machine that stands still for longer than the node timeout has other nodes fail over,
/// and what a server acknowledges before its replica has it is lost then.
#[track_caller]
pub(super) fn assert_kept_but_for_failovers(scene: &Scene, record: &Record, before: usize, expected: usize) {
    let won = elections_won(scene).saturating_sub(before);
    if won <= expected {
        return scene.assert_kept(record);
    }
    eprintln!("{won} failovers instead of {expected}: what was acknowledged is not compared");
    shards::assert_sound(&scene.cluster);
}

/// What a node says of itself in `CLUSTER NODES`.
pub(super) fn own_line(node: &Server) -> Vec<String> {
    let text: String =
        redis::from_redis_value(node.call(&["CLUSTER", "NODES"])).expect("CLUSTER NODES is text");
    let mut lines = text.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    lines.find(|words| words[2].contains("myself")).expect("a node lists itself")
}

/// The primary that a node follows, by its own word.
fn follows(node: &Server) -> Option<String> {
    Some(own_line(node).swap_remove(3)).filter(|primary| primary != "-")
}

/// The replica of a primary now, by index.
pub(super) fn replica_of(scene: &Scene, primary: usize) -> usize {
    let id = scene.cluster.node_id(primary);
    let is_replica = |node: &Server| follows(node).as_deref() == Some(id);
    scene.cluster.nodes().iter().position(is_replica).expect("each primary has a replica")
}

pub(super) fn wait_until_replica_follows(scene: &Scene, primary: usize) {
    let nodes = scene.cluster.nodes();
    shards::wait_until_follows(&nodes[primary], &nodes[replica_of(scene, primary)]);
}

pub(super) fn wait_until_replica_knows_epoch(scene: &Scene, primary: usize) {
    let nodes = scene.cluster.nodes();
    // A replica shows its primary's.
    let epoch = |node: &Server| own_line(node)[6].parse::<u64>().expect("an epoch is a number");
    let replica = &nodes[replica_of(scene, primary)];
    wait_until("the replica hears of the epoch", || epoch(replica) >= epoch(&nodes[primary]));
}

pub(super) fn wait_for_failover(scene: &Scene, case: &str) {
    let deadline = Instant::now() + PATIENCE;
    while scene.cluster.current_primaries().map_or(0, |primaries| primaries.len()) < 3 {
        assert!(Instant::now() < deadline, "{case}: no failover");
        thread::sleep(Duration::from_millis(50));
    }
}
