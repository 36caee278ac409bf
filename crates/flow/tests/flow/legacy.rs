//! The classic way to move slots, between real servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_flow::legacy::{LegacyOptions, LegacyProgress, LegacyReport, move_slots};
use whimbrel_flow::retry::RetryPolicy;
use whimbrel_lab::{Cluster, ClusterBuilder, Engine};
use whimbrel_wire::value::Value;

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        slots_move
        a_half_moved_slot_is_finished
        a_slot_that_cannot_leave_is_given_back
}

whimbrel_lab::for_each_engine! {
    async on Redis80 Valkey81:
        a_cancellation_finishes_the_slot
}

const PATIENCE: Duration = Duration::from_secs(60);

fn slots(text: &str) -> SlotSet {
    text.parse().expect("a set of slots")
}

fn key(slot: Slot, i: usize) -> String {
    format!("{{{}}}:{i}", tag_for_slot(slot))
}

/// A cluster whose node 0 gives slots to node 1.
struct Field {
    cluster: Cluster,
    deployment: Deployment,
}

impl Field {
    async fn new(engine: Engine) -> Field {
        Field::of(&Cluster::builder(engine), "").await
    }

    async fn of(builder: &ClusterBuilder, login: &str) -> Field {
        let cluster = builder.start().expect("a cluster");
        let url = format!("redis://{login}{}", cluster.seed());
        let endpoint = Endpoint::parse(Side::Source, &url).expect("an address");
        let options = LinkOptions { connect_timeout_ms: 2_000, ..LinkOptions::default() };
        let deployment = Deployment::probe(endpoint, options).await.expect("a deployment");
        Field { cluster, deployment }
    }

    fn id(&self, i: usize) -> NodeId {
        self.cluster.node_id(i).parse().expect("a node id")
    }

    async fn link(&self, i: usize) -> Link {
        let address = self.cluster.nodes()[i].addr();
        let address = Endpoint::parse(Side::Source, &address).expect("an address").address;
        let endpoint: &Arc<Endpoint> = &self.deployment.endpoint;
        Link::open(endpoint, &address, LinkOptions::default()).await.expect("a connection")
    }

    /// Three kinds of keys in each of the slots.
    async fn fill(&self, slots: &SlotSet) {
        let mut link = self.link(0).await;
        for slot in slots {
            let keys = [0, 1, 2].map(|i| key(slot, i));
            link.push(&[b"SET", keys[0].as_bytes(), b"value", b"EX", b"100000"]);
            link.push(&[b"HSET", keys[1].as_bytes(), b"field", slot.to_string().as_bytes()]);
            link.push(&[b"ZADD", keys[2].as_bytes(), b"1.5", b"member"]);
        }
        link.flush().await.expect("sent");
        for reply in link.replies(slots.len() * 3).await.expect("replies") {
            assert!(reply.as_error().is_none(), "{reply:?}");
        }
    }

    async fn keyspace(&self, i: usize) -> BTreeMap<Bytes, Value> {
        let mut link = self.link(i).await;
        link.call(&[b"READONLY"]).await.expect("READONLY");
        let keys = link.call(&[b"KEYS", b"*"]).await.expect("KEYS").into_items().expect("a list");
        let mut all = BTreeMap::new();
        for key in keys {
            let key = key.into_bytes().expect("a key");
            all.insert(key.clone(), link.call(&[b"DUMP", &key]).await.expect("a payload"));
        }
        all
    }

    async fn run_with(
        &self,
        slots: &SlotSet,
        options: LegacyOptions,
        progress: impl FnMut(LegacyProgress),
        cancel: &CancellationToken,
    ) -> Result<LegacyReport, Error> {
        let (source, target) = (self.id(0), self.id(1));
        let moving = move_slots(&self.deployment, &source, &target, slots, options, progress, cancel);
        let report = tokio::time::timeout(PATIENCE, moving).await.expect("it ends")?;
        match report.failure {
            Some(e) => Err(e),
            None => Ok(report),
        }
    }

    async fn run(&self, slots: &SlotSet, options: LegacyOptions) -> Result<LegacyReport, Error> {
        self.run_with(slots, options, |_| {}, &CancellationToken::new()).await
    }

    /// Whether a node has marked any slot.
    async fn has_marks(&self, i: usize) -> bool {
        let nodes = self.link(i).await.call(&[b"CLUSTER", b"NODES"]).await.expect("nodes");
        nodes.as_str().expect("a text").contains('[')
    }

    async fn check_clean(&self) {
        assert!(!self.has_marks(0).await && !self.has_marks(1).await, "a slot is still marked");
        self.cluster.wait_ok().expect("all nodes agree");
    }
}

async fn slots_move(engine: Engine) {
    let builder = Cluster::builder(engine).replicas(1).password("hunter2");
    let field = Field::of(&builder, ":hunter2@").await;
    field.fill(&slots("0-99")).await;
    let before = field.keyspace(0).await;
    let mut progress = Vec::new();
    let moved = slots("0-19,50-59");
    let report = field
        .run_with(&moved, LegacyOptions::default(), |p| progress.push(p), &CancellationToken::new())
        .await
        .expect("a move");
    assert_eq!((report.moved, report.keys, report.cancelled), (moved.clone(), 90, false));
    let last = LegacyProgress { slots_total: 30, slots_done: 30, keys: 90, slot: None };
    assert_eq!(progress.last(), Some(&last));
    assert!(progress.windows(2).all(|w| w[0].keys <= w[1].keys && w[0].slots_done <= w[1].slots_done));
    field.check_clean().await;
    let (source, target) = (field.keyspace(0).await, field.keyspace(1).await);
    assert_eq!((source.len(), target.len()), (210, 90));
    assert!(target.keys().all(|key| moved.contains(Slot::of_key(key))));
    let union: BTreeMap<_, _> = source.into_iter().chain(target).collect();
    assert!(union == before);
}

async fn a_cancellation_finishes_the_slot(engine: Engine) {
    let field = Field::new(engine).await;
    field.fill(&slots("0-9")).await;
    let before = field.keyspace(0).await;
    let cancel = CancellationToken::new();
    let one_by_one = LegacyOptions { keys_per_migrate: 1, ..LegacyOptions::default() };
    let progress = |p: LegacyProgress| {
        // Half-way through the fourth slot.
        if p.keys == 10 {
            cancel.cancel();
        }
    };
    let report = field.run_with(&slots("0-9"), one_by_one, progress, &cancel).await.expect("a report");
    assert_eq!((report.moved, report.keys, report.cancelled), (slots("0-3"), 12, true), "{engine}");
    field.check_clean().await;
    assert_eq!((field.keyspace(0).await.len(), field.keyspace(1).await.len()), (18, 12));
    assert_eq!(field.cluster.owner_of(3).expect("an owner"), 1);
    assert_eq!(field.cluster.owner_of(4).expect("an owner"), 0);
    // The same command goes on where it stopped.
    let report = field.run(&slots("0-9"), LegacyOptions::default()).await.expect("the rest");
    assert_eq!((report.moved, report.keys), (slots("0-9"), 18));
    assert!(field.keyspace(1).await == before);
    field.check_clean().await;
}

async fn a_half_moved_slot_is_finished(engine: Engine) {
    let field = Field::new(engine).await;
    field.fill(&slots("7")).await;
    let before = field.keyspace(0).await;
    let nodes = field.cluster.nodes();
    nodes[1].call(&["CLUSTER", "SETSLOT", "7", "IMPORTING", field.cluster.node_id(0)]);
    nodes[0].call(&["CLUSTER", "SETSLOT", "7", "MIGRATING", field.cluster.node_id(1)]);
    let (port, slot) = (nodes[1].port().to_string(), Slot::new(7).expect("a slot"));
    // One key is over, another is on both: the reply of its MIGRATE was lost.
    nodes[0].call(&["MIGRATE", "127.0.0.1", &port, &key(slot, 0), "0", "60000"]);
    nodes[0].call(&["MIGRATE", "127.0.0.1", &port, &key(slot, 1), "0", "60000", "COPY"]);
    let report = field.run(&slots("7"), LegacyOptions::default()).await.expect("a move");
    assert_eq!(report.moved, slots("7"));
    assert!(field.keyspace(1).await == before && field.keyspace(0).await.is_empty());
    field.check_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_values_at_the_target_are_not_overwritten() {
    let field = Field::new(Engine::Valkey91).await;
    field.fill(&slots("7")).await;
    let before = field.keyspace(0).await;
    let nodes = field.cluster.nodes();
    nodes[1].call(&["CLUSTER", "SETSLOT", "7", "IMPORTING", field.cluster.node_id(0)]);
    let theirs = key(Slot::new(7).expect("a slot"), 0);
    let mut link = field.link(1).await;
    link.call(&[b"ASKING"]).await.expect("OK");
    link.call(&[b"SET", theirs.as_bytes(), b"another value"]).await.expect("OK");

    let error = field.run(&slots("7"), LegacyOptions::default()).await.expect_err("a value differs");
    let text = error.to_string();
    assert_eq!(error.side, Side::Target, "{text}");
    assert!(text.contains("other values for 1 keys of slot 7") && text.contains("half moved"), "{text}");
    assert_eq!(field.cluster.owner_of(7).expect("an owner"), 0);
    link.call(&[b"ASKING"]).await.expect("OK");
    let kept = link.call(&[b"GET", theirs.as_bytes()]).await.expect("a value");
    assert_eq!(kept.as_str(), Some("another value"));

    let replace = LegacyOptions { replace: true, ..LegacyOptions::default() };
    field.run(&slots("7"), replace).await.expect("a move");
    assert!(field.keyspace(1).await == before);
    field.check_clean().await;
}

async fn a_slot_that_cannot_leave_is_given_back(engine: Engine) {
    let field = Field::new(engine).await;
    field.fill(&slots("0-3")).await;
    field.cluster.nodes()[1].call(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = field.run(&slots("0-3"), LegacyOptions::default()).await.expect_err("the target is full");
    let text = error.to_string();
    assert!(error.side == Side::Target && text.contains("OOM") && text.contains("maxmemory"), "{text}");
    assert!(text.contains("(it was left at the source)") && text.contains("slot 0"), "{text}");
    field.check_clean().await;
    assert_eq!((field.keyspace(0).await.len(), field.keyspace(1).await.len()), (12, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_hangs_is_tried_again_within_bounds() {
    let field = Field::new(Engine::Redis80).await;
    field.fill(&slots("0-1")).await;
    let before = field.keyspace(0).await;
    let target = &field.cluster.nodes()[1];
    let retry = RetryPolicy { give_up_after_ms: 3_000, ..RetryPolicy::default() };
    let options =
        LegacyOptions { retry, keys_per_migrate: 1, migrate_timeout_ms: 1_000, ..LegacyOptions::default() };
    let progress = |p: LegacyProgress| {
        // In the middle of the second slot.
        if p.keys == 4 {
            target.suspend().expect("suspended");
        }
    };
    let error = field
        .run_with(&slots("0-1"), options, progress, &CancellationToken::new())
        .await
        .expect_err("the target hangs");
    let text = error.to_string();
    assert!(text.contains("(it may be half moved") && text.contains("slot 1"), "{text}");
    target.resume().expect("resumed");
    field.cluster.wait_ok().expect("all nodes agree");
    let report = field.run(&slots("0-1"), LegacyOptions::default()).await.expect("the rest");
    assert_eq!(report.moved, slots("0-1"));
    assert!(field.keyspace(1).await == before && field.keyspace(0).await.is_empty());
    field.check_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_log_in_at_the_target_too() {
    let builder = Cluster::builder(Engine::Redis80)
        .user_acl("user bob on >secret ~* +@all")
        .user_acl("user default on nopass ~* +@all -restore-asking -restore");
    let field = Field::of(&builder, "bob:secret@").await;
    field.fill(&slots("0-3")).await;
    let report = field.run(&slots("0-3"), LegacyOptions::default()).await.expect("a move");
    assert_eq!(report.keys, 12);
    field.check_clean().await;

    // A refusal names no password.
    for node in field.cluster.nodes() {
        node.call(&["ACL", "SETUSER", "bob", "-restore-asking"]);
    }
    field.fill(&slots("4")).await;
    let error = field.run(&slots("4"), LegacyOptions::default()).await.expect_err("it may not");
    let text = format!("{error} {error:?}");
    assert!(text.contains("NOPERM") && !text.contains("secret"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_must_be_two_primaries() {
    let field = Field::of(&Cluster::builder(Engine::Valkey81).replicas(1), "").await;
    let cancel = CancellationToken::new();
    for (source, target, why) in
        [(field.id(0), field.id(4), "replica"), (field.id(0), field.id(0), "the same node")]
    {
        let moved = slots("0");
        let options = LegacyOptions::default();
        let error = move_slots(&field.deployment, &source, &target, &moved, options, |_| {}, &cancel).await;
        let error = error.expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    let error = field.run(&slots("16000"), LegacyOptions::default()).await.expect_err("it is not at node 0");
    assert!(error.to_string().contains("slot 16000"), "{error}");
    field.check_clean().await;
}
