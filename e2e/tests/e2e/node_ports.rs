//! The servers' own tools move slots through `whimbrel serve --node-ports`, which has a port for each
//! primary: they ask each node for itself.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::resharding::{PATIENCE, Scene};
use whimbrel_e2e::shards::{self, Ranges};
use whimbrel_judge::cluster_writers::{Load, tags_in};
use whimbrel_lab::Engine;

use crate::daemon::{
    BEGUN, EXTERNAL, Served, filled, invocation, lines, paused_before_copying, release, serve,
};

/// Writes of one client before and after slots move.
const WARM: u64 = 300;

/// Three shards of which the last has no slots.
const UNEVEN: fn() -> [Ranges; 3] = || [vec![0..=8191], vec![8192..=16383], vec![]];

/// Starts a daemon with free ports for the nodes.
#[track_caller]
fn serve_nodes(scene: &Scene, more: &[&str]) -> Served {
    // A busy machine must not fail tests that are not about pauses.
    serve(scene, &[&EXTERNAL[..], &["--node-ports", "0", "--max-pause", "5s"], more].concat())
}

/// The port of a node, which is reported when it is opened.
#[track_caller]
fn port_of(daemon: &Served, node: &str) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reported = lines(&daemon.running.stdout(), "node-port");
        let last = reported.iter().rev().find(|line| line["node"] == node);
        if let Some(line) = last.filter(|line| line["open"] == true) {
            return line["port"].as_u64().expect("a number");
        }
        assert!(Instant::now() < deadline, "node {node} has no port: {reported:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// One of the tools with `--cluster`, given the port of one node.
fn tool(engine: Engine, command: &str, port: u64, more: &[&str]) -> Command {
    let mut tool = Command::new(engine.binaries().expect("the engine is installed").cli);
    tool.args(["--cluster", command, &format!("127.0.0.1:{port}")]).args(more);
    tool.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    tool
}

fn ended(output: std::process::Output) -> Output {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Output { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[track_caller]
fn run(mut tool: Command) -> Output {
    ended(tool.output().expect("the tool runs"))
}

/// What a client is answered at a port.
#[track_caller]
fn asked(port: u64, words: &str) -> String {
    let cli = Engine::Valkey91.binaries().expect("Valkey is installed").cli;
    let output = Command::new(cli).args(["-p", &port.to_string()]).args(words.split(' ')).output();
    String::from_utf8_lossy(&output.expect("valkey-cli runs").stdout).trim().to_owned()
}

fn slots_of(scene: &Scene) -> Vec<usize> {
    (0..3).map(|node| shards::slots_of(&scene.cluster, node).expect("slots").len()).collect()
}

const ATOMIC: &str = "--cluster-use-atomic-slot-migration";

/// A cluster of any version is rebalanced and resharded by Valkey's tool, by its way for Valkey 9, while
/// clients write.
fn valkeys_tool_moves_slots_while_clients_write(engine: Engine) {
    let scene = filled(Scene::of(engine, 1, &UNEVEN()).start());
    let before = scene.unwritten();
    let writers = scene.write(&Load { clients: 8, ..Load::on(tags_in(0..16384, 60)) });
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    let daemon = serve_nodes(&scene, &[]);
    let ids = [0, 1, 2].map(|node| scene.cluster.node_id(node).to_owned());
    let ports = [0, 1, 2].map(|node| port_of(&daemon, &ids[node]));

    let rebalance = run(tool(
        Engine::Valkey91,
        "rebalance",
        ports[0],
        &["--cluster-use-empty-masters", ATOMIC, "--cluster-threshold", "1"],
    ))
    .expect_code(0);
    // Its exit code is 0 also where a migration has failed.
    assert!(!rebalance.stdout.contains("failed"), "{}", rebalance.stdout);
    let counts = slots_of(&scene);
    assert!(counts.iter().all(|count| (5_460..=5_463).contains(count)), "{counts:?}\n{}", rebalance.stdout);
    assert!(writers.wait_for(WARM / 3, PATIENCE));
    // The tool moves nothing while nodes disagree, and says so when it checks.
    scene.cluster.wait_ok().expect("the nodes agree");

    // Slots in many pieces, from two nodes to the third.
    let from = ids[..2].join(",");
    let more = ["--cluster-from", &from, "--cluster-to", &ids[2], "--cluster-slots", "600", "--cluster-yes"];
    let reshard = run(tool(Engine::Valkey91, "reshard", ports[2], &[&more[..], &[ATOMIC]].concat()));
    let reshard = reshard.expect_code(0);
    let after = slots_of(&scene);
    assert!(after[2] >= counts[2] + 599, "{counts:?} -> {after:?}\n{}", reshard.stdout);

    // Each job is an export at one port and an import at the other.
    let [exported, imported] = [ports[0], ports[2]].map(|port| asked(port, "CLUSTER GETSLOTMIGRATIONS"));
    assert!(exported.contains("EXPORT") && !exported.contains("IMPORT"), "{exported}");
    assert!(imported.contains("IMPORT") && !imported.contains("EXPORT"), "{imported}");
    scene.cluster.wait_ok().expect("the nodes agree");
    for port in ports {
        let check = run(tool(Engine::Valkey91, "check", port, &[])).expect_code(0);
        assert!(check.stdout.contains("All nodes agree about slots configuration"), "{}", check.stdout);
        assert_eq!(check.stdout.matches("1 additional replica(s)").count(), 3, "{}", check.stdout);
    }
    assert!(writers.wait_for(WARM / 3, PATIENCE));
    let record = writers.stop();
    // Four slot ranges or more change hands. On a busy machine a target may give up its wait for the source:
    // then clients are sent back and forth for a moment.
    record.observed.assert_only_redirected();
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
    let jobs = lines(&daemon.end().stdout, "ended");
    assert!(jobs.len() >= 4 && jobs.iter().all(|job| job["state"] == "success"), "{jobs:#?}");
}

/// What each node is asked for itself.
fn each_port_answers_for_its_node(engine: Engine) {
    let scene = filled(Scene::of(engine, 1, &UNEVEN()).start());
    let daemon = serve_nodes(&scene, &[]);
    let ids = [0, 1, 2].map(|node| scene.cluster.node_id(node).to_owned());
    let ports = [0, 1, 2].map(|node| port_of(&daemon, &ids[node]));
    for node in 0..3 {
        let expected = |words: &str| {
            let node = &scene.cluster.nodes()[node];
            asked(node.port().into(), words)
        };
        for words in [
            "DBSIZE",
            "CLUSTER MYID",
            "CLUSTER MYSHARDID",
            "CLUSTER COUNTKEYSINSLOT 7",
            "CLUSTER GETKEYSINSLOT 7 3",
            "CLUSTER COUNT-FAILURE-REPORTS 0000000000000000000000000000000000000000",
            "CLUSTER SLOT-STATS SLOTSRANGE 0 0",
        ] {
            assert_eq!(asked(ports[node], words), expected(words), "{words} at node {node}");
        }
        let nodes = asked(ports[node], "CLUSTER NODES");
        let mine = format!("{} 127.0.0.1:{}@", ids[node], ports[node]);
        let own: Vec<&str> = nodes.lines().filter(|line| line.contains("myself")).collect();
        assert!(own.len() == 1 && own[0].starts_with(&mine), "{nodes}");
        assert_eq!(nodes.lines().count(), 6, "{nodes}");
        let replica = scene.cluster.replicas_of(node)[0].port();
        assert!(nodes.contains(&format!("127.0.0.1:{replica}@")), "replicas are where they are: {nodes}");
        assert!(asked(ports[node], "CLUSTER SLOTS").contains(&ports[0].to_string()));
        assert!(asked(ports[node], "CLUSTER SHARDS").contains(&ports[2].to_string()));
        assert!(asked(ports[node], "CLUSTER LINKS").contains(&ids[(node + 1) % 3]));
        assert!(asked(ports[node], "CLUSTER INFO").contains("cluster_state:ok"));
        assert!(
            asked(ports[node], "INFO").contains(&format!("tcp_port:{}", scene.cluster.nodes()[node].port()))
        );
        let replicas = asked(ports[node], &format!("CLUSTER REPLICAS {}", ids[node]));
        assert!(replicas.contains(&format!("slave {}", ids[node])), "{replicas}");
    }
    // What is none of a node's own is refused, and nothing is changed.
    let words = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 9 NODE {}", ids[2]);
    assert_eq!(asked(ports[1], &words), "ERR Slots are not served by this node.");
    for words in ["CLUSTER SETSLOT 0 STABLE", "CLUSTER FLUSHSLOTS", "CLUSTER RESET", "FLUSHALL"] {
        assert!(asked(ports[0], words).starts_with("ERR "), "{words}");
    }
    let large = asked(ports[0], "CLUSTER GETKEYSINSLOT 7 100000");
    assert!(large.contains("at once"), "{large}");
    // Keys are with their owners.
    let tag = &tags_in(16_000..=16_000, 1)[0];
    let moved = asked(ports[0], &format!("GET {{{tag}}}"));
    assert!(moved.ends_with(&format!(":{}", scene.cluster.nodes()[1].port())), "{moved}");
    // The daemon's own port shows the nodes themselves.
    let main = daemon.cluster("NODES");
    assert!(main.contains(&scene.cluster.nodes()[0].addr()), "{main}");
    assert!(!main.contains(&format!(":{}@", ports[0])), "{main}");
    daemon.end();
}

/// Redis' tool of that version moves keys one by one, which is refused before anything is changed.
fn the_classic_way_is_refused(engine: Engine) {
    let scene = filled(Scene::of(engine, 0, &UNEVEN()).start());
    let before = scene.unwritten();
    let daemon = serve_nodes(&scene, &[]);
    let port = port_of(&daemon, scene.cluster.node_id(1));
    run(tool(engine, "check", port, &[])).expect_code(0);
    let [from, to] = [0, 2].map(|node| scene.cluster.node_id(node).to_owned());
    let more = ["--cluster-from", &from, "--cluster-to", &to, "--cluster-slots", "5", "--cluster-yes"];
    let reshard = run(tool(engine, "reshard", port, &more)).expect_code(1);
    let printed = reshard.stdout + &reshard.stderr;
    assert!(printed.contains("SETSLOT is refused") && printed.contains("MIGRATESLOTS"), "{printed}");
    let rebalance = run(tool(engine, "rebalance", port, &["--cluster-use-empty-masters"])).expect_code(1);
    let printed = rebalance.stdout + &rebalance.stderr;
    assert!(printed.contains("SETSLOT is refused"), "{printed}");
    assert_eq!(slots_of(&scene), [8192, 8192, 0]);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    daemon.end();
}

/// The tool says what is wrong when its daemon is killed, and its job goes on when the daemon is back, at the
/// same ports.
fn a_killed_daemon_is_plain_to_the_tool(engine: Engine) {
    let scene = filled(Scene::of(engine, 0, &UNEVEN()).start());
    let before = scene.unwritten();
    // A range that is not this test's alone: ports that somebody else has are left out.
    let free = whimbrel_lab::free_port().expect("a port");
    let range = format!("{free}-{}", free.saturating_add(200));
    let more = [&EXTERNAL[..], &["--node-ports", &range, "--max-pause", "5s"]].concat();
    let mut daemon = Served::by(paused_before_copying(invocation(&scene, "127.0.0.1:0", &more), &scene));
    let ids = [0, 2].map(|node| scene.cluster.node_id(node).to_owned());
    let port = port_of(&daemon, &ids[0]);
    let more = [
        "--cluster-from",
        &ids[0],
        "--cluster-to",
        &ids[1],
        "--cluster-slots",
        "100",
        "--cluster-yes",
        ATOMIC,
    ];
    let reshard = tool(Engine::Valkey91, "reshard", port, &more).spawn().expect("the tool runs");
    daemon.wait_for("0-99", &BEGUN);
    daemon.running.kill9();
    // Its exit code is 0, whatever became of a migration: that is so in Valkey 9.1.
    let printed = ended(reshard.wait_with_output().expect("it ends"));
    let printed = printed.stdout + &printed.stderr;
    assert!(
        printed.contains("Atomic slot migration failed: CLUSTER GETSLOTMIGRATIONS failed to run"),
        "{printed}"
    );
    let check = run(tool(Engine::Valkey91, "check", port, &[])).expect_code(1);
    assert!((check.stdout + &check.stderr).contains("Could not connect"));

    let more = [&EXTERNAL[..], &["--node-ports", &range, "--max-pause", "5s"]].concat();
    let daemon = Served::by(invocation(&scene, "127.0.0.1:0", &more));
    daemon.wait_for("0-99", &["success"]);
    let port = port_of(&daemon, &ids[0]);
    scene.cluster.wait_ok().expect("the nodes agree");
    run(tool(Engine::Valkey91, "check", port, &[])).expect_code(0);
    assert_eq!(slots_of(&scene), [8092, 8192, 100]);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    daemon.end();
}

/// The tool says so where a job was cancelled at the port of its source, and where one has failed.
fn the_tool_learns_how_a_job_ended(engine: Engine) {
    let scene = filled(Scene::of(engine, 0, &UNEVEN()).start());
    let more = [&EXTERNAL[..], &["--node-ports", "0"]].concat();
    let daemon = Served::by(paused_before_copying(invocation(&scene, "127.0.0.1:0", &more), &scene));
    let ids = [0, 2].map(|node| scene.cluster.node_id(node).to_owned());
    let ports = [0, 1].map(|node| port_of(&daemon, scene.cluster.node_id(node)));
    let more = [
        "--cluster-from",
        &ids[0],
        "--cluster-to",
        &ids[1],
        "--cluster-slots",
        "100",
        "--cluster-yes",
        ATOMIC,
    ];
    let reshard = tool(Engine::Valkey91, "reshard", ports[1], &more).spawn().expect("the tool runs");
    daemon.wait_for("0-99", &BEGUN);
    // Those of another node are none of it.
    assert_eq!(asked(ports[1], "CLUSTER CANCELSLOTMIGRATIONS"), "ERR No migrations ongoing");
    assert_eq!(asked(ports[0], "CLUSTER CANCELSLOTMIGRATIONS"), "OK");
    release(&scene);
    let printed = ended(reshard.wait_with_output().expect("it ends"));
    let printed = printed.stdout + &printed.stderr;
    assert!(printed.contains("Slot migration was cancelled"), "{printed}");
    daemon.wait_for("0-99", &["cancelled"]);

    scene.cluster.nodes()[2].call(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let printed = run(tool(Engine::Valkey91, "reshard", ports[0], &more));
    let printed = printed.stdout + &printed.stderr;
    assert!(printed.to_lowercase().contains("memory"), "{printed}");
    assert_eq!(slots_of(&scene), [8192, 8192, 0]);
    shards::assert_sound(&scene.cluster);
    daemon.end();
}

/// A replica that becomes a primary gets a port, at which the tool works.
fn a_new_primary_gets_a_port(engine: Engine) {
    let scene = filled(
        Scene::of(engine, 1, &[vec![0..=4999], vec![5000..=9999], vec![10000..=16383]])
            .cluster(|cluster| cluster.node_timeout_ms(8_000))
            .start(),
    );
    let daemon = serve_nodes(&scene, &[]);
    let was = port_of(&daemon, scene.cluster.node_id(1));
    // The replica of the second primary.
    let replica = scene.cluster.node_id(4).to_owned();
    let promoted = &scene.cluster.replicas_of(1)[0];
    let deadline = Instant::now() + PATIENCE;
    // It is given up where the primary is slow to agree.
    while !format!("{:?}", promoted.call(&["ROLE"])).contains("master") {
        assert!(Instant::now() < deadline, "no failover");
        promoted.try_call(&["CLUSTER", "FAILOVER"]).ok();
        thread::sleep(Duration::from_secs(1));
    }
    let port = port_of(&daemon, &replica);
    assert!(asked(port, "CLUSTER MYID") == replica);
    // The one that is a replica now has none any more.
    let deadline = Instant::now() + PATIENCE;
    while was != port && TcpStream::connect(("127.0.0.1", u16::try_from(was).expect("a port"))).is_ok() {
        assert!(Instant::now() < deadline, "the port of a replica stays open");
        thread::sleep(Duration::from_millis(50));
    }
    // The tool moves nothing while nodes disagree.
    scene.cluster.wait_ok().expect("the nodes agree");
    let other = port_of(&daemon, scene.cluster.node_id(0));
    let target = scene.cluster.node_id(0).to_owned();
    let more =
        ["--cluster-from", &replica, "--cluster-to", &target, "--cluster-slots", "50", "--cluster-yes"];
    run(tool(Engine::Valkey91, "reshard", other, &[&more[..], &[ATOMIC]].concat())).expect_code(0);
    scene.cluster.wait_ok().expect("the nodes agree");
    run(tool(Engine::Valkey91, "check", port, &[])).expect_code(0);
    assert_eq!(shards::slots_of(&scene.cluster, 0).expect("slots").len(), 5_050);
    daemon.end();
}

/// The ports of nodes ask for the password as well, and are not there without a cluster, or without places.
#[test]
fn ports_of_nodes_are_protected_as_the_daemons_own() {
    const PASSWORD: &str = "a password of its own";
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=8191], vec![8192..=16383]])
        .cluster(|cluster| cluster.password(PASSWORD))
        .start();
    let file = scene.file("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).expect("the file can be written");
    let file = file.to_string_lossy().into_owned();
    let by = |more: &[&str]| {
        let files = ["--password-file", &file, "--listen-password-file", &file];
        invocation(&scene, "127.0.0.1:0", &[&EXTERNAL[..], &files, more].concat())
    };
    let daemon = Served::by(by(&["--node-ports", "0"]));
    let port = port_of(&daemon, scene.cluster.node_id(0));
    assert!(asked(port, "CLUSTER NODES").contains("NOAUTH"));
    assert!(asked(port, "DBSIZE").contains("NOAUTH"));
    run(tool(Engine::Valkey91, "check", port, &[])).expect_code(1);
    run(tool(Engine::Valkey91, "check", port, &["-a", PASSWORD])).expect_code(0);
    daemon.end();

    // Two primaries, one port.
    let free = whimbrel_lab::free_port().expect("a port");
    let output = by(&["--node-ports", &format!("{free}-{free}")]).run().expect_code(2);
    assert!(output.stdout.contains("2 primaries need a port each"), "{}", output.stdout);
    by(&["--node-ports", "9-8"]).run().expect_code(2);
    let fleet = ["serve", "--fleet", "--listen", "127.0.0.1:0", "--node-ports", "0"];
    Invocation::new(&fleet).run().expect_code(2);
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        valkeys_tool_moves_slots_while_clients_write
        each_port_answers_for_its_node
        a_new_primary_gets_a_port
}

whimbrel_lab::for_each_engine! {
    on Redis70:
        the_classic_way_is_refused
        a_killed_daemon_is_plain_to_the_tool
        the_tool_learns_how_a_job_ended
}
