//! The ports of nodes: what is answered at each, and which nodes have one.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use whimbrel_control::daemon::migrations::{JobState, JobView};
use whimbrel_control::daemon::{Daemon, DaemonOptions, NodePorts};
use whimbrel_core::node::NodeId;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{ErrorKind, Side};
use whimbrel_engine::nodes::ClusterView;
use whimbrel_lab::{Engine, wait_until_refused};

use crate::daemon::{NODES, Notebook, PATIENCE, Raw, Running, slots};

fn id(text: &str) -> NodeId {
    text.parse().expect("an id")
}

/// A daemon with a port for each of the three nodes, and these ports.
async fn running() -> (Arc<Notebook>, Running, [u16; 3]) {
    running_with(NodePorts::Free).await
}

async fn running_with(ports: NodePorts) -> (Arc<Notebook>, Running, [u16; 3]) {
    let notebook = Notebook::new();
    let server = Running::with(notebook.clone(), |options| options.node_ports = Some(ports)).await;
    let ports = notebook.topology.ports();
    (notebook, server, NODES.map(|node| ports[&id(node)]))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_port_shows_the_cluster_as_its_node_does() {
    let (notebook, server, ports) = running().await;
    for (node, port) in ports.into_iter().enumerate() {
        let mut raw = Raw::open(port).await;
        assert_eq!(raw.ask(&["CLUSTER", "MYID"]).await, format!("$40\r\n{}\r\n", NODES[node]));
        let lines = raw.ask(&["cluster", "nodes"]).await;
        for (other, port) in ports.into_iter().enumerate() {
            let flags = if other == node { "myself,master" } else { "master" };
            let line = format!("{} 127.0.0.1:{port}@1 {flags} - 0 0 {other} connected", NODES[other]);
            assert!(lines.contains(&line), "{line} in {lines}");
        }
        assert_eq!(lines.matches("myself").count(), 1, "{lines}");
        assert!(lines.contains(":7003@1 slave"), "replicas are where they are: {lines}");
        assert!(raw.ask(&["CLUSTER", "SLOTS"]).await.contains(&format!(":{}\r\n", ports[2])));
        // A handover of a job is shown at once.
        let moved = slots(&(5_000 + node).to_string());
        notebook.topology.hand_over(&moved, &id(NODES[2]));
        let lines = raw.ask(&["CLUSTER", "NODES"]).await;
        let line = lines.lines().find(|line| line.starts_with(NODES[2])).expect("its line");
        assert!(line.contains(" 5000"), "{line}");
        let reply = raw.ask(&["CLUSTER", "SLOTS"]).await;
        assert!(reply.contains(&format!("*3\r\n:5000\r\n:{}\r\n", 5_000 + node)), "{reply}");
    }
    // The main port shows the nodes themselves.
    let main = server.raw().await.ask(&["CLUSTER", "NODES"]).await;
    assert!(main.contains("127.0.0.1:7000@1 myself,master"), "{main}");
    server.stop().await;
    wait_until_refused(([127, 0, 0, 1], ports[0]).into());
}

fn job(name: &str, source: usize, target: usize, state: JobState) -> JobView {
    JobView {
        name: name.to_owned(),
        slots: slots("0-9"),
        source: NODES[source].to_owned(),
        target: NODES[target].to_owned(),
        created_s: 1_795_310_207,
        updated_s: 1_795_310_208,
        state,
        message: String::new(),
        remaining_bytes: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_port_has_the_jobs_of_its_node() {
    let (notebook, _server, ports) = running().await;
    // Within one second: the same slots there, and back.
    notebook.jobs.lock().extend([
        job("m1-2-10", 1, 0, JobState::Snapshotting),
        job("m1-2-9", 0, 1, JobState::Success),
        job("m1-2-8", 2, 1, JobState::Failed),
    ]);
    let listed = async |port: u16| {
        let reply = Raw::open(port).await.ask(&["CLUSTER", "GETSLOTMIGRATIONS"]).await;
        let words: Vec<&str> = reply.split("\r\n").collect();
        let after = |name: &str| -> Vec<String> {
            let places = words.windows(3).filter(|three| three[0] == name);
            places.map(|three| three[2].to_owned()).collect()
        };
        let jobs = after("name").into_iter().zip(after("operation")).zip(after("state"));
        let jobs: Vec<String> = jobs.map(|((name, what), state)| format!("{name} {what} {state}")).collect();
        (jobs, after("message"))
    };
    let (first, _) = listed(ports[0]).await;
    assert_eq!(first, ["m1-2-10 IMPORT receiving-snapshot", "m1-2-9 EXPORT success"]);
    let (second, _) = listed(ports[1]).await;
    assert_eq!(
        second,
        ["m1-2-10 EXPORT snapshotting", "m1-2-9 IMPORT success", "m1-2-8 IMPORT failed"],
        "the newest first"
    );
    let (third, messages) = listed(ports[2]).await;
    assert_eq!((third, messages), (vec!["m1-2-8 EXPORT failed".to_owned()], vec!["failed".to_owned()]));

    // Each cancels what it exports.
    let cancel = async |port: u16| Raw::open(port).await.ask(&["CLUSTER", "CANCELSLOTMIGRATIONS"]).await;
    assert_eq!(cancel(ports[0]).await, "-ERR No migrations ongoing\r\n");
    assert_eq!(cancel(ports[1]).await, "+OK\r\n");
    assert_eq!(notebook.jobs.lock()[0].state, JobState::Cancelled);
    // And moves its own slots, with the NUL that valkey-cli 9.1 sends.
    for (port, expected) in [(ports[1], "-ERR Slots are not served by this node.\r\n"), (ports[0], "+OK\r\n")]
    {
        let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE\0", "20", "29", "NODE", NODES[2]];
        assert_eq!(Raw::open(port).await.ask(&words).await, expected);
    }
    let refused = Raw::open(ports[0]).await.ask(&["CLUSTER", "SETSLOT", "0", "IMPORTING", NODES[1]]).await;
    assert!(refused.starts_with("-ERR CLUSTER SETSLOT is refused"), "{refused}");
    let refused = Raw::open(ports[0]).await.ask(&["FLEET", "STATUS"]).await;
    assert!(refused.starts_with("-ERR "), "{refused}");
}

#[test]
fn every_state_of_an_import_is_a_word_of_valkeys() {
    let server = Engine::Valkey91.binaries().expect("Valkey is installed").server;
    let program = std::fs::read(server).expect("it can be read");
    let phases = ["queued", "preparing", "snapshotting", "streaming", "pausing", "draining", "fencing"];
    for phase in phases.into_iter().chain(["taking-over", "suspended", "done", "failed", "cancelled"]) {
        let state = JobState::of_phase(phase);
        // A word may be the end of another text.
        let word = [state.word_of_import().as_bytes(), b"\0"].concat();
        assert!(program.windows(word.len()).any(|part| part == word), "{phase}: {}", state.word_of_import());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_get_and_lose_their_ports() {
    // As many ports as nodes: who is new can only have the one of who has left.
    let three =
        std::iter::repeat_with(|| whimbrel_lab::free_port().expect("a port")).map(|first| first..=first + 2);
    let mut free =
        three.filter(|range| range.clone().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()));
    let range = NodePorts::Range(free.next().expect("three ports in a row"));
    let (notebook, _server, ports) = running_with(range).await;
    let mut stays = Raw::open(ports[0]).await;
    let mut leaves = Raw::open(ports[1]).await;
    assert_eq!(stays.ask(&["PING"]).await, "+PONG\r\n");
    assert_eq!(leaves.ask(&["PING"]).await, "+PONG\r\n");
    let new = "5".repeat(NodeId::LENGTH);
    let text = format!(
        "{} 127.0.0.1:7000@1 myself,master - 0 0 0 connected 0-5460\n\
         {} 127.0.0.1:7001@1 slave {new} 0 0 7 connected\n\
         {new} 127.0.0.1:7005@1 master - 0 0 7 connected 5461-10922\n\
         {} 127.0.0.1:7002@1 master - 0 0 2 connected 10923-16000\n",
        NODES[0], NODES[1], NODES[2]
    );
    let endpoint = Endpoint::parse(Side::Source, "127.0.0.1:7000").expect("an address");
    let view = ClusterView::parse(&text, &endpoint, &endpoint.address).expect("a view");
    notebook.topology.see(view.table(&endpoint));
    let begun = Instant::now();
    let port = loop {
        if let Some(port) = notebook.topology.ports().get(&id(&new)) {
            break *port;
        }
        assert!(begun.elapsed() < PATIENCE, "it gets no port");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert_eq!(port, ports[1]);
    assert!(leaves.is_closed().await, "the connections of a node end with its port");
    let lines = stays.ask(&["CLUSTER", "NODES"]).await;
    assert!(lines.contains(&format!("{new} 127.0.0.1:{port}@1 master")), "{lines}");
    assert!(lines.contains(&format!("{} 127.0.0.1:7001@1 slave {new}", NODES[1])), "{lines}");
    let mine = Raw::open(port).await.ask(&["CLUSTER", "MYID"]).await;
    assert!(mine.contains(&new), "{mine}");
}

#[tokio::test]
async fn a_daemon_begins_with_a_port_for_each_primary() {
    let free = whimbrel_lab::free_port().expect("a port");
    let mut options = DaemonOptions::new("127.0.0.1:0".parse().expect("an address"));
    options.node_ports = Some(NodePorts::Range(free..=free));
    let refused = Daemon::bind(options, Notebook::new()).await.expect_err("one port is not enough");
    assert!(refused.to_string().contains("3 primaries need a port each"), "{refused}");
    assert!(matches!(refused.kind, ErrorKind::Options(_)), "{refused:?}");
}
