//! How real clusters look to [`whimbrel_engine::nodes`].

use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::nodes::{ClusterView, Finding, Role, Survey, key_counts};
use whimbrel_lab::{Cluster, Engine};

whimbrel_lab::for_each_engine! {
    async
        a_healthy_cluster_has_no_findings
        marks_leftovers_and_jobs_are_found
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        unowned_slots_and_lost_nodes_are_found
        a_node_that_refuses_the_login_is_not_called_silent
}

async fn deployment(cluster: &Cluster) -> Deployment {
    let endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an address");
    Deployment::probe(endpoint, LinkOptions::default()).await.expect("the cluster answers")
}

async fn link(cluster: &Cluster, node: usize) -> Link {
    let deployment = deployment(cluster).await;
    let address = Endpoint::parse(Side::Source, &cluster.nodes()[node].addr()).expect("an address").address;
    deployment.open(&address, 0).await.expect("the node answers")
}

fn slots(text: &str) -> SlotSet {
    text.parse().expect("slots")
}

fn key_in(slot: u16) -> String {
    format!("{{{}}}a", tag_for_slot(Slot::new(slot).expect("a slot")))
}

fn call(cluster: &Cluster, node: usize, command: &str) {
    cluster.nodes()[node].call(&command.split(' ').collect::<Vec<_>>());
}

async fn a_healthy_cluster_has_no_findings(engine: Engine) {
    let cluster = Cluster::builder(engine).replicas(1).start().expect("the cluster starts");
    for slot in [0, 1, 9_000, 16_383] {
        let owner = cluster.owner_of(slot).expect("it has an owner");
        let mut link = link(&cluster, owner).await;
        link.call(&[b"SET", key_in(slot).as_bytes(), b"value"]).await.expect("it is written");
        let reached = link.call(&[b"WAIT", b"1", b"10000"]).await.expect("an answer");
        assert_eq!(reached.as_int(), Some(1));
    }
    let view = ClusterView::ask(&mut link(&cluster, 0).await).await.expect("a view");
    assert_eq!(view.nodes.len(), 6);
    assert_eq!(view.myself.as_str(), cluster.node_id(0));
    assert_eq!(view.primaries().count(), 3);
    let replica = view.replicas_of(&view.myself).next().expect("it has one");
    assert_eq!(replica.id.as_str(), cluster.node_id(3));
    assert_eq!(replica.address.to_string(), cluster.nodes()[3].addr());
    assert_eq!(view.primary_of(Slot::MAX).expect("it is owned").id.as_str(), cluster.node_id(2));

    let survey = Survey::take(&deployment(&cluster).await).await.expect("a survey");
    assert_eq!(survey.findings(), [], "{engine}");
    assert_eq!(survey.nodes.len(), 6);
    for (index, server) in cluster.nodes().iter().enumerate() {
        let node = survey.node(&cluster.node_id(index).parse().expect("an id")).expect("it is there");
        let state = node.state().expect("it answered");
        assert_eq!(node.address.to_string(), server.addr());
        assert_eq!(state.role, if index < 3 { Role::Primary } else { Role::Replica });
        let held = ["0-1", "9000", "16383"][index % 3];
        assert_eq!(state.counts.as_ref().expect("asked for").occupied(), slots(held), "{engine} {index}");
        assert_eq!(state.facts.keys, slots(held).len() as u64);
        assert!(state.facts.cluster_ok && state.facts.version.contains('.'));
        assert_eq!(state.facts.primary_link_up, (index >= 3).then_some(true));
    }
}

async fn marks_leftovers_and_jobs_are_found(engine: Engine) {
    let cluster = Cluster::builder(engine).replicas(1).start().expect("the cluster starts");
    let id = |node: usize| cluster.node_id(node);
    call(&cluster, 1, &format!("CLUSTER SETSLOT 7 IMPORTING {}", id(0)));
    call(&cluster, 0, &format!("CLUSTER SETSLOT 7 MIGRATING {}", id(1)));
    call(&cluster, 2, &format!("CLUSTER SETSLOT 9 IMPORTING {}", id(0)));
    // A key in slot 9 is left where it does not belong.
    let mut importer = link(&cluster, 2).await;
    importer.call(&[b"ASKING"]).await.expect("an answer");
    importer.call(&[b"SET", key_in(9).as_bytes(), b"stray"]).await.expect("it imports the slot");
    let reached = importer.call(&[b"WAIT", b"1", b"10000"]).await.expect("an answer");
    assert_eq!(reached.as_int(), Some(1));
    call(&cluster, 2, "CLUSTER SETSLOT 9 STABLE");
    let mut job = link(&cluster, 0).await;
    job.call(&[b"CLIENT", b"SETNAME", b"whimbrel:job:1"]).await.expect("a name");

    let counts = key_counts(&mut importer, &slots("8-10")).await.expect("counts");
    assert_eq!((counts.sum(&SlotSet::full()), counts.occupied()), (1, slots("9")));
    let survey = Survey::take(&deployment(&cluster).await).await.expect("a survey");
    let name = |node: usize| survey.name(&id(node).parse().expect("an id"));
    let findings = survey.findings();
    let expected = [
        Finding::Open {
            slots: slots("7"),
            importing: vec![(name(1), name(0))],
            migrating: vec![(name(0), name(1))],
            keys: Vec::new(),
        },
        Finding::Leftovers { node: name(2), replica: false, slots: slots("9"), keys: 1 },
        Finding::Leftovers { node: name(5), replica: true, slots: slots("9"), keys: 1 },
        Finding::Job { node: name(0), what: "whimbrel:job:1 from 127.0.0.1".to_owned() },
    ];
    assert_eq!(findings.len(), expected.len(), "{engine}: {findings:?}");
    for finding in expected {
        assert!(findings.contains(&finding), "{engine}: {finding:?} is not in {findings:?}");
    }
    assert!(Survey::is_healthy(&findings), "the job explains them");
    drop(job);
}

async fn unowned_slots_and_lost_nodes_are_found(engine: Engine) {
    let cluster = Cluster::builder(engine).start().expect("the cluster starts");
    call(&cluster, 0, &format!("SET {} value", key_in(5)));
    call(&cluster, 0, "CLUSTER DELSLOTS 5 6");
    cluster.kill9(2).expect("it can be killed");
    let survey = Survey::take(&deployment(&cluster).await).await.expect("a survey");
    let findings = survey.findings();
    let lost = survey.name(&cluster.node_id(2).parse().expect("an id"));
    assert!(
        findings.iter().any(|f| matches!(f, Finding::Unreachable { node, primary: true, slots, .. }
            if *node == lost && slots.len() == 5_462)),
        "{engine}: {findings:?}"
    );
    let holder = survey.name(&cluster.node_id(0).parse().expect("an id"));
    assert!(
        findings.iter().any(|f| matches!(f, Finding::Unowned { slots: unowned, keys, .. }
            if *unowned == slots("5-6") && *keys == [(holder.clone(), 1)])),
        "{engine}: {findings:?}"
    );
    assert!(!findings.iter().any(|f| matches!(f, Finding::Leftovers { .. })), "{engine}: {findings:?}");
    assert!(!Survey::is_healthy(&findings));
}

/// One node has another password than the others: it was reached, and says why it reports nothing.
async fn a_node_that_refuses_the_login_is_not_called_silent(engine: Engine) {
    let cluster = Cluster::builder(engine).start().expect("the cluster starts");
    for (node, password) in [(0, "common"), (1, "common"), (2, "other")] {
        call(&cluster, node, &format!("CONFIG SET requirepass {password}"));
    }
    let endpoint = Endpoint::parse(Side::Source, &format!("redis://:common@{}", cluster.seed()));
    let endpoint = endpoint.expect("an address");
    let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("most nodes answer");
    let survey = Survey::take(&deployment).await.expect("a survey");
    let odd = survey.name(&cluster.node_id(2).parse().expect("an id"));
    let findings: Vec<String> = survey.findings().iter().map(ToString::to_string).collect();
    let named = findings.iter().find(|text| text.contains(&odd.to_string()));
    let named = named.unwrap_or_else(|| panic!("{engine}: {findings:?}"));
    assert!(named.contains("refuses the login, and owns 5,462 slots"), "{engine}: {named}");
    assert!(named.contains("WRONGPASS") && !named.contains("does not answer"), "{engine}: {named}");
}
