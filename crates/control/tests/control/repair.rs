//! Repairs that die and are begun anew, on a real cluster.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use whimbrel_control::repair::round;
use whimbrel_control::repair::run::Repairer;
use whimbrel_core::repair::plan::{Action, Change, Fate};
use whimbrel_core::slot::{Slot, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::nodes::Survey;
use whimbrel_flow::large::staging_key;
use whimbrel_lab::{Cluster, Engine};

/// The first node owns it.
const SLOT: Slot = Slot::MIN;

async fn call(cluster: &Cluster, node: usize, command: &str) {
    let endpoint = Endpoint::parse(Side::Source, &cluster.nodes()[node].addr()).expect("an address");
    let (endpoint, address) = (Arc::new(endpoint.clone()), endpoint.address);
    let mut link = Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection");
    // Understood by a node that imports the slot, and no harm to its owner.
    link.call(&[b"ASKING"]).await.expect("OK");
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    link.call(&words).await.expect("it is carried out");
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
