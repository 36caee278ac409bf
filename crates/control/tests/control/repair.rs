//! Repairs that die and are begun anew, on a real cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_control::repair::round;
use whimbrel_control::repair::run::Repairer;
use whimbrel_core::repair::plan::{Action, Change, Fate, Why};
use whimbrel_core::slot::{Slot, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::nodes::Survey;
use whimbrel_flow::large::staging_key;
use whimbrel_lab::{Cluster, Engine, wait_until};
use whimbrel_wire::value::Value;

/// The first node owns it.
const SLOT: Slot = Slot::MIN;

async fn call(cluster: &Cluster, node: usize, command: &str) -> Value {
    let endpoint = Endpoint::parse(Side::Source, &cluster.nodes()[node].addr()).expect("an address");
    let (endpoint, address) = (Arc::new(endpoint.clone()), endpoint.address);
    let mut link = Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection");
    // Understood by a node that imports the slot, and no harm to its owner.
    link.call(&[b"ASKING"]).await.expect("OK");
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    link.call(&words).await.expect("it is carried out")
}

async fn actions(deployment: &Deployment) -> (Survey, Vec<Action>) {
    let survey = Survey::take(deployment).await.expect("a survey");
    let plan = round::plan(deployment, &survey, None, &CancellationToken::new()).await.expect("a plan");
    (survey, plan.actions)
}

fn fate(actions: &[Action]) -> (bool, Fate) {
    match actions {
        [Action { change: Change::Empty { copied, fate: Some(fate), .. }, .. }] => (*copied, *fate),
        other => panic!("something else: {other:?}"),
    }
}

#[tokio::test]
async fn keys_that_a_killed_repair_was_moving_are_moved_by_the_next() {
    let cluster = Cluster::builder(Engine::Valkey91).start().expect("a cluster");
    let endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an address");
    let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment");
    let tag = tag_for_slot(SLOT);
    // Two keys were where they do not belong; one of them has been moved, but not yet removed.
    call(&cluster, 1, &format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", cluster.node_id(0))).await;
    for (node, key) in [(0, "a"), (1, "a"), (1, "b")] {
        call(&cluster, node, &format!("SET {{{tag}}}:{key} value")).await;
    }
    let (_, without_note) = actions(&deployment).await;
    assert_eq!(fate(&without_note), (true, Fate::Discard));
    let note = String::from_utf8(staging_key("repair", tag.as_bytes())).expect("a name");
    call(&cluster, 0, &format!("SET {note} -")).await;
    let (survey, with_note) = actions(&deployment).await;
    assert_eq!((fate(&with_note), with_note[0].keys), ((false, Fate::Move), 2));
    let stop = CancellationToken::new();
    let tally = Repairer::new(&deployment, &survey, &stop).carry_out(&with_note[0]).await.expect("done");
    assert_eq!((tally.moved, tally.removed), (1, 2));
    let (survey, actions) = actions(&deployment).await;
    assert_eq!(actions, []);
    let owner = cluster.node_id(0).parse().expect("an id");
    let counts = survey.node(&owner).and_then(|node| node.state()?.counts.as_ref()).expect("counted");
    assert_eq!(counts.of(SLOT), 2, "both keys, and no note");
}

/// A node of a cluster that is down refuses `EXISTS`: without the note, the only copies look like copies.
#[tokio::test]
async fn a_note_is_found_while_the_cluster_is_down() {
    // Not so short that a node that only waits for a processor is taken for dead.
    let cluster = Cluster::builder(Engine::Redis70).node_timeout_ms(5_000).start().expect("a cluster");
    let endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an address");
    let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment");
    let survey = Survey::take(&deployment).await.expect("a survey");
    let tag = tag_for_slot(SLOT);
    let note = String::from_utf8(staging_key("repair", tag.as_bytes())).expect("a name");
    call(&cluster, 0, &format!("SET {note} -")).await;
    cluster.kill9(2).expect("it is killed");
    wait_until("the cluster is down", || {
        format!("{:?}", cluster.nodes()[0].call(&["CLUSTER", "INFO"])).contains("cluster_state:fail")
    });
    let stop = CancellationToken::new();
    let owner = cluster.node_id(0).parse().expect("an id");
    let slots = [SLOT, Slot::new(1).expect("a slot")].into_iter().collect();
    let found =
        Repairer::new(&deployment, &survey, &stop).moving(&owner, &slots).await.expect("they are listed");
    assert_eq!(found.iter().collect::<Vec<_>>(), [SLOT]);
}

/// Whether a replica's link is up, by its own word.
fn follows(cluster: &Cluster, node: usize) -> bool {
    let replication = cluster.nodes()[node].call(&["INFO", "replication"]);
    format!("{replication:?}").contains("master_link_status:up")
}

/// Since Valkey 8 a primary passes marks on to its replicas, but only to those that it has heard of.
#[tokio::test]
async fn marks_that_a_replica_keeps_are_not_called_cleared() {
    // Since 8.1 a node introduces itself again to one that has not connected to it for this long.
    let cluster = Cluster::builder(Engine::Valkey81).replicas(1).node_timeout_ms(60_000).start();
    let cluster = cluster.expect("a cluster");
    let (died, promoted) = (0, 3);
    // Valkey 8.1 does not start with a file in which a replica is not yet of its primary's shard.
    let shards = |reply: Value| reply.as_items().expect("a list").len();
    while shards(call(&cluster, died, "CLUSTER SHARDS").await) != 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    call(&cluster, died, &format!("CLUSTER SETSLOT 16383 IMPORTING {}", cluster.node_id(2))).await;
    // The mark is answered before it is saved.
    call(&cluster, died, "CLUSTER SAVECONFIG").await;
    cluster.kill9(died).expect("it is killed");
    call(&cluster, promoted, "CLUSTER FAILOVER TAKEOVER").await;
    call(&cluster, promoted, "CLUSTER SETSLOT 16383 STABLE").await;
    cluster.nodes()[died].restart().expect("it restarts");
    wait_until("it is a replica", || follows(&cluster, died));
    cluster.wait_ok().expect("all nodes agree");
    // The one node that knows of all others while these forget it.
    let endpoint = Endpoint::parse(Side::Source, &cluster.nodes()[died].addr()).expect("an address");
    let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment");
    let (survey, seen) = actions(&deployment).await;
    let [action] = &seen[..] else { panic!("something else: {seen:?}") };
    assert_eq!(action.why, Why::ReplicaKeptMarks);
    call(&cluster, promoted, &format!("CLUSTER FORGET {}", cluster.node_id(died))).await;
    let stop = CancellationToken::new();
    let outcome = Repairer::new(&deployment, &survey, &stop).carry_out(action).await;
    let error = outcome.expect_err("its primary cannot have passed on what clears the marks");
    assert!(error.to_string().contains("one of its replicas has kept them"), "{error}");
}
