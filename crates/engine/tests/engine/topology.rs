//! What clients get to know of a cluster from the built replies, beside what its own servers report.

use std::time::Duration;

use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::nodes::ClusterView;
use whimbrel_lab::{Cluster, Engine, Server, made_up_nodes};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::topology::{Replies, Reply};
use whimbrel_wire::value::Value;

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        large_tables_are_reported_as_servers_report_them
        clusters_with_replicas_are_reported_as_servers_report_them
        hosts_are_named_as_the_cluster_prefers
}

const PATIENCE: Duration = Duration::from_secs(60);

async fn link(address: &str) -> Link {
    let endpoint = Endpoint::parse(Side::Source, address).expect("an address");
    let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("the cluster answers");
    deployment.open(&deployment.endpoint.address, 0).await.expect("the node answers")
}

fn parsed(reply: &Reply) -> Value {
    Value::parse(&reply.to_bytes()).expect("one whole value")
}

/// What is said about one node.
type Fields = Vec<(Value, Value)>;

/// The shards in the order of their first slot, without what only nodes know.
fn shards(reply: Value) -> Vec<(Value, Vec<Fields>)> {
    let own = |name: &Value| {
        let known = ["id", "port", "tls-port", "ip", "endpoint", "hostname", "role"];
        name.as_str().is_some_and(|name| known.contains(&name))
    };
    let node = |node: Value| {
        let mut pairs = node.into_pairs().expect("pairs");
        pairs.retain(|(name, _)| own(name));
        pairs
    };
    let mut shards: Vec<_> = reply
        .into_items()
        .expect("a list")
        .into_iter()
        .map(|shard| {
            let nodes = shard.field("nodes").cloned().and_then(Value::into_items).expect("nodes");
            let mut nodes: Vec<_> = nodes.into_iter().map(node).collect();
            nodes.sort_by_key(|pairs| format!("{pairs:?}"));
            (shard.field("slots").cloned().expect("slots"), nodes)
        })
        .collect();
    shards.sort_by_key(|(slots, _)| slots.as_items().and_then(|slots| slots.first()?.as_int()));
    shards
}

/// The lines about nodes, without the times of pings, in the order of ids. Links to nodes that are not there
/// come and go: without them.
fn lines(reply: &Value, are_there: bool) -> Vec<String> {
    let text = reply.as_str().expect("text");
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let link = if are_there { words[7] } else { "" };
            [&words[..4], &words[6..7], &[link], &words[8..]].concat().join(" ")
        })
        .collect();
    lines.sort();
    lines
}

fn info(reply: &Value, name: &str) -> String {
    let text = reply.as_str().expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).trim().to_owned()
}

/// Compares all replies with those of the server that the link leads to, in both protocols.
async fn assert_alike(mut link: Link, are_there: bool) {
    // Before SHARDS: some servers repeat ranges in NODES after it.
    assert_alike_but_for_shards(&mut link, Protocol::Resp2, are_there).await;
    let replies = replies(&mut link).await;
    link.call(&[b"HELLO", b"3"]).await.expect("the server speaks RESP3");
    assert_alike_but_for_shards(&mut link, Protocol::Resp3, are_there).await;
    let theirs = link.call(&[b"CLUSTER", b"SHARDS"]).await.expect("shards");
    assert!(matches!(theirs.as_items().expect("a list")[0], Value::Map(_)), "{theirs:?}");
    assert_eq!(shards(parsed(&replies.shards(Protocol::Resp3))), shards(theirs));
    link.call(&[b"HELLO", b"2"]).await.expect("the server speaks RESP2");
    let theirs = link.call(&[b"CLUSTER", b"SHARDS"]).await.expect("shards");
    assert_eq!(shards(parsed(&replies.shards(Protocol::Resp2))), shards(theirs));
}

async fn replies(link: &mut Link) -> Replies {
    let endpoint = link.endpoint().clone();
    Replies::new(&ClusterView::ask(link).await.expect("a view").table(&endpoint))
}

async fn assert_alike_but_for_shards(link: &mut Link, protocol: Protocol, are_there: bool) {
    let replies = replies(link).await;
    let nodes = link.call(&[b"CLUSTER", b"NODES"]).await.expect("nodes");
    let slots = link.call(&[b"CLUSTER", b"SLOTS"]).await.expect("slots");
    assert_eq!(sorted_replicas(parsed(&replies.slots(protocol))), sorted_replicas(slots));
    assert_eq!(lines(&parsed(&replies.nodes(protocol)), are_there), lines(&nodes, are_there));
    let theirs = link.call(&[b"CLUSTER", b"INFO"]).await.expect("info");
    let ours = parsed(&replies.info(protocol));
    for name in [
        "cluster_slots_assigned",
        "cluster_slots_ok",
        "cluster_slots_pfail",
        "cluster_slots_fail",
        "cluster_known_nodes",
        "cluster_size",
        "cluster_my_epoch",
    ] {
        assert_eq!(info(&ours, name), info(&theirs, name), "{name}");
    }
    // What nodes send each other is reported by kind, of those kinds that there were; and what Redis 8.4
    // moves by itself is nothing of ours.
    let fields = theirs.as_str().expect("text").lines().filter_map(|line| line.split_once(':'));
    let is_own =
        |name: &str| !["cluster_stats_", "cluster_slot_migration_"].iter().any(|it| name.starts_with(it));
    for (name, value) in fields.filter(|(name, _)| is_own(name)) {
        let ours = ours.as_str().expect("text").contains(&format!("\n{name}:"));
        assert!(ours || name == "cluster_state", "{name}:{value} is left out");
    }
    let id = link.call(&[b"CLUSTER", b"MYID"]).await.expect("an id");
    assert_eq!(parsed(&replies.my_id()), id);
}

/// Servers name replicas in an order of their own.
fn sorted_replicas(reply: Value) -> Vec<Vec<Value>> {
    let sort = |entry: Value| {
        let mut items = entry.into_items().expect("an entry");
        items[3..].sort_by_key(|node| format!("{node:?}"));
        items
    };
    reply.into_items().expect("a list").into_iter().map(sort).collect()
}

async fn large_tables_are_reported_as_servers_report_them(engine: Engine) {
    for (primaries, is_fragmented) in [(3, false), (3, true), (128, false), (128, true)] {
        let conf = made_up_nodes(engine, primaries, |slot| {
            let owner = if is_fragmented { slot % primaries } else { slot * primaries / 16_384 };
            // Some are nobody's.
            Some(owner).filter(|_| slot % 1_000 != 999)
        });
        // So that the nodes that are not there are not found to be missing.
        let builder = Server::builder(engine).nodes_conf(&conf).arg("cluster-node-timeout", "3600000");
        let server = builder.start().expect("a server");
        let mut link = link(&server.addr()).await;
        until(async || {
            let reply = link.call(&[b"CLUSTER", b"INFO"]).await.expect("info");
            info(&reply, "cluster_size") == primaries.to_string()
        })
        .await;
        assert_alike(link, false).await;
    }
}

async fn until(mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the server comes to know its cluster");
}

async fn clusters_with_replicas_are_reported_as_servers_report_them(engine: Engine) {
    let cluster = Cluster::builder(engine).replicas(2).start().expect("the cluster starts");
    for node in [0, 3] {
        let mut link = link(&cluster.nodes()[node].addr()).await;
        // Nodes report replicas once they know that these have data, and their shard once they have heard
        // of it.
        until(async || {
            let slots = link.call(&[b"CLUSTER", b"SLOTS"]).await.expect("slots");
            let shards = link.call(&[b"CLUSTER", b"SHARDS"]).await.expect("shards");
            let nodes_in = |entry: &Value| entry.field("nodes")?.as_items().map(<[Value]>::len);
            slots
                .as_items()
                .expect("a list")
                .iter()
                .all(|entry| entry.as_items().is_some_and(|e| e.len() == 5))
                && shards.as_items().expect("a list").iter().all(|entry| nodes_in(entry) == Some(3))
        })
        .await;
        assert_alike(link, true).await;
    }
}

/// How a cluster may name its hosts, whether nodes announce a host name, and what that is in each case.
const NAMINGS: [(&str, bool, Option<&str>); 4] = [
    ("hostname", true, Some("localhost")),
    ("hostname", false, Some("?")),
    ("unknown-endpoint", true, None),
    ("unknown-endpoint", false, None),
];

async fn hosts_are_named_as_the_cluster_prefers(engine: Engine) {
    for (preferred, is_announced, named) in NAMINGS {
        let mut builder = Cluster::builder(engine).arg("cluster-preferred-endpoint-type", preferred);
        if is_announced {
            builder = builder.arg("cluster-announce-hostname", "localhost");
        }
        let cluster = builder.start().expect("the cluster starts");
        let address = cluster.nodes()[0].addr();
        // Names spread by gossip.
        let mut asked = link(&address).await;
        until(async || {
            let nodes = asked.call(&[b"CLUSTER", b"NODES"]).await.expect("nodes");
            let text = nodes.as_str().expect("text");
            !is_announced || text.lines().all(|line| line.contains(",localhost"))
        })
        .await;
        let mut asked = link(&address).await;
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let version: &[u8] = if protocol == Protocol::Resp3 { b"3" } else { b"2" };
            asked.call(&[b"HELLO", version]).await.expect("the server speaks both");
            let slots = asked.call(&[b"CLUSTER", b"SLOTS"]).await.expect("slots");
            let first = slots.as_items().expect("a list")[0].as_items().expect("an entry")[2].clone();
            assert_eq!(first.as_items().expect("a node")[0].as_str(), named, "{preferred} {slots:?}");
            // There are no replicas, which servers name in an order of their own.
            let ours = replies(&mut asked).await.slots(protocol);
            assert_eq!(parsed(&ours), slots, "{preferred}");
        }
        asked.call(&[b"HELLO", b"2"]).await.expect("the server speaks both");
        assert_alike(asked, true).await;
        // Whimbrel reaches all nodes of it.
        let endpoint = Endpoint::parse(Side::Source, &address).expect("an address");
        let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("it answers");
        let mut asked = deployment.open(&deployment.endpoint.address, 0).await.expect("the node answers");
        let view = ClusterView::ask(&mut asked).await.expect("a view");
        let topology = deployment.topology();
        assert_eq!(topology.shards.len(), 3);
        for shard in &topology.shards {
            let node = view.nodes.iter().find(|node| node.id.as_str() == shard.id).expect("it is there");
            assert_eq!(node.address, shard.primary, "{preferred}");
            deployment.open(&shard.primary, 0).await.expect("each node answers");
        }
    }
}
