//! Native slot migration on real clusters, and by a recorded dialogue where no server of the kind is at hand.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Error, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::native::{
    NativeCancel, NativeKind, NativeMigration, NativeOptions, NativeOwner, NativePhase, NativeReport,
    NativeState, NativeSupport, Peer, run,
};
use whimbrel_lab::{Cluster, Engine, Server};
use whimbrel_wire::scan::{Progress, Scanner};
use whimbrel_wire::value::Value;

/// Long enough for any machine; nothing waits that long unless it fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn slots(text: &str) -> SlotSet {
    text.parse().expect("a set of slots")
}

async fn link(address: &str) -> Link {
    let endpoint = Arc::new(Endpoint::parse(Side::Source, address).expect("an address"));
    let address = endpoint.address.clone();
    Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection")
}

async fn probe(address: &str) -> Deployment {
    let endpoint = Endpoint::parse(Side::Source, address).expect("an address");
    Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment")
}

fn address(text: &str) -> Address {
    Address::parse_tcp(text).expect("HOST:PORT")
}

/// Until `done` holds.
async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never came: {what}"));
}

/// A cluster whose node 0 gives slots to node 1.
struct Field {
    cluster: Cluster,
    deployment: Deployment,
}

impl Field {
    async fn new(primaries: usize, replicas: usize) -> Field {
        let cluster = Cluster::builder(Engine::Valkey91)
            .primaries(primaries)
            .replicas(replicas)
            .start()
            .expect("a cluster");
        let deployment = probe(&cluster.seed()).await;
        Field { cluster, deployment }
    }

    fn peer(&self, i: usize) -> Peer {
        let id = self.cluster.node_id(i).parse().expect("a node id");
        Peer { id, address: address(&self.cluster.nodes()[i].addr()) }
    }

    /// Writes `each` keys of about `bytes` into each of the slots, at the primary 0.
    async fn fill(&self, slots: &SlotSet, each: usize, bytes: usize) {
        let mut link = link(&self.cluster.nodes()[0].addr()).await;
        for slot in slots {
            let tag = tag_for_slot(slot);
            for i in 0..each {
                let value = format!("{slot}:{i}:").repeat(bytes / 8 + 1);
                let key = format!("{{{tag}}}:{i}");
                let (key, value) = (key.as_bytes(), value.as_bytes());
                match i % 3 {
                    0 => link.push(&[b"SET", key, value, b"PXAT", b"4102444800123"]),
                    1 => link.push(&[b"SET", key, value]),
                    _ => link.push(&[b"HSET", key, b"field", value]),
                }
            }
            link.flush().await.expect("sent");
            for reply in link.replies(each).await.expect("replies") {
                assert!(reply.as_error().is_none(), "{reply:?}");
            }
        }
    }

    /// Every key with its payload and its expiry, as a node holds it.
    async fn keyspace(&self, i: usize) -> BTreeMap<Bytes, [Value; 2]> {
        let mut link = link(&self.cluster.nodes()[i].addr()).await;
        link.call(&[b"READONLY"]).await.expect("READONLY");
        let keys = link.call(&[b"KEYS", b"*"]).await.expect("KEYS").into_items().expect("a list");
        let keys: Vec<Bytes> = keys.into_iter().map(|k| k.into_bytes().expect("a key")).collect();
        let mut all = BTreeMap::new();
        for chunk in keys.chunks(512) {
            for key in chunk {
                link.push(&[b"DUMP", key]);
                link.push(&[b"PEXPIRETIME", key]);
            }
            link.flush().await.expect("sent");
            for key in chunk {
                let state = [link.reply().await.expect("a payload"), link.reply().await.expect("a time")];
                all.insert(key.clone(), state);
            }
        }
        all
    }

    /// Keys that a node has in the slots, staged ones included.
    async fn keys_in(&self, i: usize, slots: &SlotSet) -> i64 {
        let mut link = link(&self.cluster.nodes()[i].addr()).await;
        for slot in slots {
            link.push(&[b"CLUSTER", b"COUNTKEYSINSLOT", slot.to_string().as_bytes()]);
        }
        link.flush().await.expect("sent");
        let counts = link.replies(slots.len()).await.expect("counts");
        counts.iter().map(|n| n.as_int().expect("a number")).sum()
    }

    /// Lets exports of node 0 wait before they pause writes, or go on.
    fn prevent_pause(&self, on: bool) {
        let on = if on { "1" } else { "0" };
        self.cluster.nodes()[0].call(&["DEBUG", "SLOTMIGRATION", "PREVENT-PAUSE", on]);
    }

    async fn start(&self, slots: &SlotSet, target: usize) -> Result<NativeMigration, Error> {
        let (source, target) = (self.peer(0), self.peer(target));
        NativeMigration::start(&self.deployment, NativeKind::Valkey9, &source, &target, slots).await
    }

    /// Runs it while `meanwhile` watches its progress and does things.
    async fn run_with(
        &self,
        slots: &SlotSet,
        options: NativeOptions,
        meanwhile: impl AsyncFnOnce(watch::Receiver<NativeState>, CancellationToken),
    ) -> Result<NativeReport, Error> {
        let (sender, receiver) = watch::channel(NativeState::default());
        let cancel = CancellationToken::new();
        let (kind, source, target) = (NativeKind::Valkey9, self.peer(0), self.peer(1));
        let running = run(&self.deployment, kind, &source, &target, slots, options, &sender, &cancel);
        let both = async { tokio::join!(running, meanwhile(receiver, cancel.clone())) };
        tokio::time::timeout(PATIENCE, both).await.expect("it ends").0
    }

    async fn run(&self, slots: &SlotSet) -> Result<NativeReport, Error> {
        self.run_with(slots, NativeOptions::default(), async |_, _| {}).await
    }

    /// The replica comes to hold what its primary holds.
    async fn check_replica(&self, primary: usize, replica: usize) {
        let expected = self.keyspace(primary).await;
        until("the replica to hold what its primary holds", async || {
            self.keyspace(replica).await == expected
        })
        .await;
    }
}

/// Waits until a state is reported.
async fn reported(progress: &mut watch::Receiver<NativeState>, what: impl FnMut(&NativeState) -> bool) {
    let waiting = progress.wait_for(what);
    tokio::time::timeout(PATIENCE, waiting).await.expect("it comes to that").expect("it runs");
}

/// Waits until the migration has sent its snapshot and is held before the pause.
async fn wait_for_snapshot(progress: &mut watch::Receiver<NativeState>) {
    reported(progress, |s| s.raw == "waiting-to-pause").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_with_all_their_keys() {
    let field = Field::new(3, 1).await;
    // Two ranges, so that the command has both.
    let moved = slots("0-2047,3000-5047");
    field.fill(&slots("0-5460"), 3, 64).await;
    let before = field.keyspace(0).await;
    let mut last = NativePhase::Queued;
    let report = field
        .run_with(&moved, NativeOptions::default(), async |mut progress, _| {
            while last != NativePhase::Done && progress.changed().await.is_ok() {
                last = progress.borrow_and_update().phase;
            }
        })
        .await
        .expect("a migration");
    assert_eq!((report.phase, report.slots, report.attempts), (NativePhase::Done, 4096, 1), "{report:?}");
    assert_eq!((report.name.len(), report.failures.len()), (40, 0), "{report:?}");

    let (source, target) = (field.keyspace(0).await, field.keyspace(1).await);
    assert_eq!(target.len(), 4096 * 3);
    assert!(target.keys().all(|key| moved.contains(Slot::of_key(key))));
    let mut union = source;
    union.extend(target);
    assert!(union == before, "keys differ: {} before, {} after", before.len(), union.len());
    field.check_replica(0, 3).await;
    field.check_replica(1, 4).await;
    field.cluster.wait_ok().expect("all nodes agree");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_one_leaves_everything_as_it_was() {
    let field = Field::new(3, 1).await;
    let moved = slots("0-1023");
    field.fill(&moved, 3, 256).await;
    let before = field.keyspace(0).await;
    field.prevent_pause(true);
    let report = field
        .run_with(&moved, NativeOptions::default(), async |mut progress, cancel| {
            wait_for_snapshot(&mut progress).await;
            assert_eq!(progress.borrow().phase, NativePhase::Streaming);
            assert!(field.keys_in(1, &moved).await > 0, "the target has received keys");
            cancel.cancel();
        })
        .await
        .expect("a cancellation");
    assert_eq!((report.phase, report.slots, report.attempts), (NativePhase::Cancelled, 0, 1), "{report:?}");
    assert_eq!(field.keys_in(1, &moved).await, 0, "the target still has keys");
    until("the target's replica to be clean", async || field.keys_in(4, &moved).await == 0).await;
    assert!(field.keyspace(0).await == before);
    // Nothing is in the way of the next one.
    field.prevent_pause(false);
    let report = field.run(&moved).await.expect("a migration");
    assert_eq!(report.phase, NativePhase::Done);
    assert!(field.keyspace(1).await == before);
    assert!(field.keyspace(0).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_may_come_too_late_or_early() {
    let field = Field::new(3, 0).await;
    let mut migration = field.start(&slots("0-9"), 1).await.expect("started");
    until("it to succeed", async || migration.poll().await.expect("a state").phase.is_final()).await;
    assert_eq!(migration.settle(30_000).await.expect("an owner"), NativeOwner::Target);
    assert_eq!(migration.cancel(30_000).await.expect("an answer"), NativeCancel::TooLate);

    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let (sender, _) = watch::channel(NativeState::default());
    let (kind, source, target) = (NativeKind::Valkey9, field.peer(0), field.peer(1));
    let (moved, options) = (slots("10-19"), NativeOptions::default());
    let report = run(&field.deployment, kind, &source, &target, &moved, options, &sender, &cancelled).await;
    let report = report.expect("a report");
    assert_eq!((report.phase, report.attempts), (NativePhase::Cancelled, 0), "{report:?}");
    assert_eq!(field.cluster.owner_of(10).expect("an owner"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_is_tried_again_within_bounds() {
    let field = Field::new(3, 0).await;
    let moved = slots("0-99");
    field.fill(&moved, 2, 64).await;
    field.prevent_pause(true);
    let report = field
        .run_with(&moved, NativeOptions::default(), async |mut progress, _| {
            wait_for_snapshot(&mut progress).await;
            field.cluster.nodes()[1].call(&["FLUSHALL"]);
            reported(&mut progress, |s| s.attempt == 2).await;
            field.prevent_pause(false);
        })
        .await
        .expect("a migration");
    assert_eq!((report.phase, report.attempts), (NativePhase::Done, 2), "{report:?}");
    assert_eq!(report.failures, ["Data was flushed"]);
    assert_eq!(field.keyspace(1).await.len(), 200);

    field.prevent_pause(true);
    let options = NativeOptions { attempts_max: 1, ..NativeOptions::default() };
    let error = field
        .run_with(&slots("100-199"), options, async |mut progress, _| {
            wait_for_snapshot(&mut progress).await;
            field.cluster.nodes()[0].call(&["FLUSHALL"]);
        })
        .await
        .expect_err("no try is left");
    assert!(error.to_string().contains("Data was flushed"), "{error}");
    assert_eq!(field.cluster.owner_of(100).expect("an owner"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_memory_is_named() {
    let field = Field::new(3, 0).await;
    let moved = slots("0-499");
    field.fill(&moved, 3, 4096).await;
    field.cluster.nodes()[1].call(&["CONFIG", "SET", "maxmemory", "4mb"]);
    let error = field.run(&moved).await.expect_err("the target is full");
    assert_eq!(error.side, Side::Target, "{error}");
    let text = error.to_string();
    assert!(text.contains(&field.cluster.nodes()[1].addr()) && text.contains("out of memory"), "{text}");
    assert!(text.contains("raise maxmemory") && !text.contains("tried"), "not worth another try: {text}");
    assert_eq!(field.keys_in(1, &moved).await, 0, "the target still has keys");
    assert_eq!(field.keys_in(0, &moved).await, 1500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_dies_keeps_its_slots() {
    let field = Field::new(3, 1).await;
    let moved = slots("0-499");
    field.fill(&moved, 3, 64).await;
    let before = field.keyspace(0).await;
    field.check_replica(0, 3).await;
    field.prevent_pause(true);
    let options = NativeOptions { unreachable_ms: 300, settle_ms: 300, ..NativeOptions::default() };
    let error = field
        .run_with(&moved, options, async |mut progress, _| {
            wait_for_snapshot(&mut progress).await;
            field.cluster.kill9(0).expect("killed");
        })
        .await
        .expect_err("the source is gone");
    assert_eq!(error.side, Side::Source, "{error}");
    assert!(error.to_string().contains(&field.cluster.nodes()[0].addr()), "{error}");
    assert_eq!(field.cluster.wait_failover(0).expect("a successor"), 3);
    assert_eq!(field.cluster.owner_of(0).expect("an owner"), 3);
    assert!(field.keyspace(3).await == before);
    until("the target to be clean", async || field.keys_in(1, &moved).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_marked_by_hand_are_in_the_way() {
    let field = Field::new(3, 0).await;
    let nodes = field.cluster.nodes();
    let refused = async |side: Side, node: usize, mark: &str| {
        let error = field.run(&slots("0-9")).await.expect_err("a slot is marked");
        let text = error.to_string();
        assert_eq!(error.side, side, "{text}");
        assert!(text.contains(&nodes[node].addr()), "{text}");
        assert!(text.contains("slots 77") && text.contains(mark) && text.contains("repair"), "{text}");
        let mut link = link(&nodes[0].addr()).await;
        let listed = link.call(&[b"CLUSTER", b"GETSLOTMIGRATIONS"]).await.expect("a list");
        assert_eq!(listed.as_items().map(<[_]>::len), Some(0), "nothing was started");
    };
    nodes[0].call(&["CLUSTER", "SETSLOT", "77", "MIGRATING", field.cluster.node_id(2)]);
    refused(Side::Source, 0, "MIGRATING").await;
    nodes[0].call(&["CLUSTER", "SETSLOT", "77", "STABLE"]);
    nodes[1].call(&["CLUSTER", "SETSLOT", "77", "IMPORTING", field.cluster.node_id(0)]);
    refused(Side::Target, 1, "IMPORTING").await;
    nodes[1].call(&["CLUSTER", "SETSLOT", "77", "STABLE"]);
    field.run(&slots("0-9")).await.expect("nothing is in the way any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_of_others_are_left_alone() {
    let field = Field::new(3, 0).await;
    let nodes = field.cluster.nodes();
    let by_hand = |slot: &str| {
        let to = field.cluster.node_id(2);
        nodes[0].call(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to]);
    };
    field.prevent_pause(true);
    by_hand("500");
    let error = field.run(&slots("0-9")).await.expect_err("another is under way");
    assert!(NativeMigration::is_busy(&error), "{error}");
    assert!(error.to_string().contains("slots 500"), "{error}");

    // In its turn it starts.
    let options = NativeOptions { wait_turn_ms: 60_000, ..NativeOptions::default() };
    let report = field
        .run_with(&slots("0-9"), options, async |mut progress, _| {
            reported(&mut progress, |s| s.message.contains("slots 500")).await;
            field.prevent_pause(false);
        })
        .await
        .expect("its turn came");
    assert_eq!((report.phase, report.attempts), (NativePhase::Done, 1));

    // What would hit another's is refused.
    field.prevent_pause(true);
    let mut ours = field.start(&slots("10-19"), 1).await.expect("started");
    by_hand("501");
    let error = ours.cancel(30_000).await.expect_err("another would be cancelled");
    assert!(error.to_string().contains("slots 501"), "{error}");
    field.prevent_pause(false);
    until("ours to succeed", async || ours.owner().await.expect("an owner") == NativeOwner::Target).await;
    until("the other to succeed", async || field.cluster.owner_of(501).expect("an owner") == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_are_elsewhere_are_refused() {
    let field = Field::new(3, 1).await;
    let error = field.run(&slots("0-9,6000")).await.expect_err("6000 is not at node 0");
    assert!(error.to_string().contains("slots 6000 are not at this node"), "{error}");
    let error = field.start(&slots("0-9"), 4).await.expect_err("a replica takes no slots");
    assert!(error.side == Side::Target && error.to_string().contains("replica"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_cut_off_goes_on() {
    let field = Field::new(3, 0).await;
    let moved = slots("0-9");
    field.prevent_pause(true);
    let cut_off = field.start(&moved, 1).await.expect("started");
    let name = cut_off.name().to_owned();
    drop(cut_off);
    field.run(&moved).await.expect_err("it may be somebody else's");
    let adopt = NativeOptions { adopt: true, ..NativeOptions::default() };
    let report = field
        .run_with(&moved, adopt, async |mut progress, _| {
            wait_for_snapshot(&mut progress).await;
            field.prevent_pause(false);
        })
        .await
        .expect("a migration");
    assert_eq!((report.phase, report.name, report.attempts), (NativePhase::Done, name, 1));
    let report = field.run_with(&moved, adopt, async |_, _| {}).await.expect("it is done");
    assert_eq!((report.phase, report.slots, report.attempts), (NativePhase::Done, 10, 0), "{report:?}");
    let report = field.run_with(&slots("10-19"), adopt, async |_, _| {}).await.expect("a migration");
    assert_eq!((report.phase, report.attempts), (NativePhase::Done, 1), "there was nothing to adopt");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_link_of_ours_changes_nothing() {
    let field = Field::new(3, 0).await;
    field.prevent_pause(true);
    let report = field
        .run_with(&slots("0-9"), NativeOptions::default(), async |mut progress, _| {
            wait_for_snapshot(&mut progress).await;
            for node in field.cluster.nodes() {
                node.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
            field.prevent_pause(false);
        })
        .await
        .expect("a migration");
    assert_eq!(
        (report.phase, report.attempts, report.failures.len()),
        (NativePhase::Done, 1, 0),
        "{report:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_is_given_up() {
    let field = Field::new(3, 0).await;
    field.prevent_pause(true);
    let options = NativeOptions { give_up_after_ms: 10_000, ..NativeOptions::default() };
    let error = field.run_with(&slots("0-9"), options, async |_, _| {}).await.expect_err("it is held");
    let text = error.to_string();
    assert!(text.contains("10000 ms") && text.contains("waiting-to-pause"), "{text}");
    assert_eq!(field.cluster.owner_of(0).expect("an owner"), 0);
    field.prevent_pause(false);
    field.run(&slots("0-9")).await.expect("nothing is left of the first");
}

whimbrel_lab::for_each_engine! {
    async on every:
        servers_without_it_say_so
}

async fn servers_without_it_say_so(engine: Engine) {
    let server = Server::builder(engine).cluster().start().expect("a server");
    let found = NativeSupport::find(&mut link(&server.addr()).await).await.expect("an answer");
    let expected = (engine == Engine::Valkey91).then_some(NativeKind::Valkey9);
    assert_eq!(found.kind(), expected, "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_slots_says_so() {
    let alone = Server::builder(Engine::Valkey91).start().expect("a server");
    let found = NativeSupport::find(&mut link(&alone.addr()).await).await.expect("an answer");
    assert_eq!(found.kind(), None, "a server without slots");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_who_may_not_are_notified() {
    for forbidden in ["-cluster|migrateslots", "-cluster|getslotmigrations"] {
        let server = Server::builder(Engine::Valkey91)
            .cluster()
            .user_acl(&format!("user bob on >secret ~* +@all {forbidden}"))
            .start()
            .expect("a server");
        let url = format!("redis://bob:secret@{}", server.addr());
        let found = NativeSupport::find(&mut link(&url).await).await.expect("an answer");
        let NativeSupport::Absent { reason } = found else { panic!("{forbidden}: {found:?}") };
        assert!(reason.contains("no permissions") && reason.contains(&forbidden[1..]), "{reason}");
    }
}

/// A step of a dialogue: the words that the server must be sent, and what it answers; `None` hangs up.
struct Step(String, Option<String>);

fn step(words: &str, answer: impl Into<String>) -> Step {
    Step(words.to_owned(), Some(answer.into()))
}

/// Plays a dialogue over as many connections as are opened one after another, and returns what was not asked.
/// Greetings are answered in between.
fn play(listener: TcpListener, steps: Vec<Step>) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut steps = VecDeque::from(steps);
        while !steps.is_empty() {
            let (stream, _) = listener.accept().expect("a connection");
            converse(stream, &mut steps);
        }
        steps.into_iter().map(|step| step.0).collect()
    })
}

fn converse(mut stream: TcpStream, steps: &mut VecDeque<Step>) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut inbox, mut scanner) = (BytesMut::new(), Scanner::default());
    let mut chunk = [0; 4096];
    while !steps.is_empty() {
        let Progress::Complete(len) = scanner.scan(&inbox).expect("a command") else {
            match stream.read(&mut chunk).expect("bytes") {
                0 => return,
                n => inbox.extend_from_slice(&chunk[..n]),
            }
            continue;
        };
        let frame = inbox.split_to(len).freeze();
        let words = Value::parse(&frame).expect("a command").into_items().expect("a command");
        let command = words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        if command == "CLIENT SETNAME whimbrel" {
            stream.write_all(b"+OK\r\n").expect("sent");
            continue;
        }
        // What a link asks of a target at its beginning; it goes without an answer.
        let is_expected = steps.front().is_none_or(|step| step.0 == command);
        if !is_expected && matches!(&*command, "CLIENT ID" | "INFO server") {
            stream.write_all(b"-NOPERM not here\r\n").expect("sent");
            continue;
        }
        let Step(expected, answer) = steps.pop_front().expect("a step is left");
        assert_eq!(command, expected);
        let Some(answer) = answer else { return };
        stream.write_all(answer.as_bytes()).expect("sent");
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

const SOURCE: &str = "1111111111111111111111111111111111111111";
const TARGET: &str = "2222222222222222222222222222222222222222";
const TASK: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";
const OTHER: &str = "9999999999999999999999999999999999999999";
const LIST: &str = "CLUSTER MIGRATION STATUS ALL";
const IMPORT: &str = "CLUSTER MIGRATION IMPORT 0 9 20 29";
const BROKEN: &str = "Main channel - Connection is closed (state: streaming-buffer, rdb_channel_state: done)";

/// A task as Redis 8.6.3 lists it over RESP2: fields in its order, numbers as strings.
fn task(id: &str, ranges: &str, operation: &str, state: &str, [error, retries, pause]: [&str; 3]) -> String {
    let fields = [
        ("id", id),
        ("slots", ranges),
        ("source", SOURCE),
        ("dest", TARGET),
        ("operation", operation),
        ("state", state),
        ("last_error", error),
        ("retries", retries),
        ("create_time", "1795310207123"),
        ("start_time", "1795310207124"),
        ("end_time", if state == "completed" { "1795310208000" } else { "-1" }),
        ("write_pause_ms", pause),
    ];
    let fields = fields.map(|(name, value)| bulk(name) + &bulk(value));
    format!("*{}\r\n{}", fields.len() * 2, fields.concat())
}

/// Our task as the target has it.
fn ours(state: &str, error: &str, retries: &str) -> String {
    format!("*1\r\n{}", task(TASK, "0-9 20-29", "import", state, [error, retries, "0"]))
}

fn status(state: &str, error: &str, retries: &str) -> Step {
    step(&format!("CLUSTER MIGRATION STATUS ID {TASK}"), ours(state, error, retries))
}

fn quick() -> NativeOptions {
    NativeOptions { poll_ms: 5, backoff_first_ms: 5, ..NativeOptions::default() }
}

/// The two nodes of a dialogue.
struct Stage {
    source: Peer,
    target: Peer,
    listeners: [TcpListener; 2],
}

impl Stage {
    fn new() -> Stage {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let peer = |id: &str, at: &TcpListener| {
            let at = at.local_addr().expect("an address").to_string();
            Peer { id: id.parse().expect("an id"), address: address(&at) }
        };
        let (source, target) = (peer(SOURCE, &listeners[0]), peer(TARGET, &listeners[1]));
        Stage { source, target, listeners }
    }

    /// `CLUSTER NODES` with all slots at the one or the other, as `me` sees it.
    fn nodes(&self, me: &str, owner: &str, mark: &str) -> Step {
        let line = |peer: &Peer| {
            let (id, is_me) = (peer.id.as_str(), peer.id.as_str() == me);
            let myself = if is_me { "myself," } else { "" };
            let owned = if id == owner { " 0-16383" } else { "" };
            let mark = if is_me { mark } else { "" };
            format!("{id} {}@1 {myself}master - 0 1 1 connected{owned}{mark}\n", peer.address)
        };
        step("CLUSTER NODES", bulk(&(line(&self.source) + &line(&self.target))))
    }

    /// Plays both parts against a run of `0-9,20-29`.
    async fn perform(
        self,
        source: Vec<Step>,
        target: Vec<Step>,
        options: NativeOptions,
        cancel_at: Option<&str>,
    ) -> Result<NativeReport, Error> {
        // Only its options and credentials matter here.
        let stand_in = Server::builder(Engine::Redis70).start().expect("a server");
        let deployment = probe(&stand_in.addr()).await;
        let [at_source, at_target] = self.listeners;
        let parts = [play(at_source, source), play(at_target, target)];
        let (sender, mut receiver) = watch::channel(NativeState::default());
        let cancel = CancellationToken::new();
        let (kind, moved) = (NativeKind::Redis84, slots("0-9,20-29"));
        let running = run(&deployment, kind, &self.source, &self.target, &moved, options, &sender, &cancel);
        let watching = async {
            if let Some(raw) = cancel_at {
                reported(&mut receiver, |s| s.raw == raw).await;
                cancel.cancel();
            }
        };
        let both = async { tokio::join!(running, watching).0 };
        let report = tokio::time::timeout(PATIENCE, both).await.expect("it ends");
        for part in parts {
            until("the part to be played", async || part.is_finished()).await;
            let left = part.join().expect("no other words were said");
            assert!(left.is_empty(), "never asked: {left:?}");
        }
        report
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_driven_from_the_target() {
    let stage = Stage::new();
    let there = task(TASK, "0-9 20-29", "migrate", "completed", ["", "0", "37"]);
    let old = task(OTHER, "50-59", "import", "completed", ["", "0", "0"]);
    let source = vec![
        stage.nodes(SOURCE, SOURCE, ""),
        step(LIST, "*0\r\n"),
        stage.nodes(SOURCE, TARGET, ""),
        step(LIST, format!("*1\r\n{there}")),
    ];
    let target = vec![
        stage.nodes(TARGET, SOURCE, ""),
        step(LIST, format!("*1\r\n{old}")),
        step(IMPORT, bulk(TASK)),
        status("connecting", "", "0"),
        status("accumulate-buffer", "", "0"),
        status("streaming-buffer", "", "0"),
        status("wait-stream-eof", "", "0"),
        status("completed", "", "0"),
        stage.nodes(TARGET, TARGET, ""),
    ];
    let report = stage.perform(source, target, quick(), None).await.expect("a migration");
    assert_eq!((report.phase, report.slots, report.attempts), (NativePhase::Done, 20, 1), "{report:?}");
    assert_eq!((report.name.as_str(), report.pause_ms), (TASK, Some(37)));
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_does_not_try_for_ever() {
    let stage = Stage::new();
    let source = vec![
        stage.nodes(SOURCE, SOURCE, ""),
        step(LIST, "*0\r\n"),
        // To cancel, and to see that both are through.
        step(LIST, "*0\r\n"),
        stage.nodes(SOURCE, SOURCE, ""),
        step(LIST, "*0\r\n"),
        stage.nodes(SOURCE, SOURCE, ""),
    ];
    let target = vec![
        stage.nodes(TARGET, SOURCE, ""),
        step(LIST, "*0\r\n"),
        step(IMPORT, bulk(TASK)),
        status("streaming-buffer", "", "0"),
        status("failed", BROKEN, "0"),
        status("failed", BROKEN, "0"),
        status("connecting", BROKEN, "1"),
        status("failed", BROKEN, "1"),
        step(&format!("CLUSTER MIGRATION CANCEL ID {TASK}"), ":1\r\n"),
        step(LIST, ours("canceled", BROKEN, "1")),
        stage.nodes(TARGET, SOURCE, ""),
        step(LIST, ours("canceled", BROKEN, "1")),
        stage.nodes(TARGET, SOURCE, ""),
    ];
    let options = NativeOptions { attempts_max: 2, ..quick() };
    let error = stage.perform(source, target, options, None).await.expect_err("two tries are all");
    let text = error.to_string();
    assert!(text.contains("Connection is closed") && text.contains("tried 2 times"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cancels_one_task_by_its_id() {
    let stage = Stage::new();
    let source = vec![
        stage.nodes(SOURCE, SOURCE, ""),
        step(LIST, "*0\r\n"),
        step(LIST, "*0\r\n"),
        stage.nodes(SOURCE, SOURCE, ""),
    ];
    let target = vec![
        stage.nodes(TARGET, SOURCE, ""),
        step(LIST, "*0\r\n"),
        step(IMPORT, bulk(TASK)),
        status("accumulate-buffer", "", "0"),
        step(&format!("CLUSTER MIGRATION CANCEL ID {TASK}"), ":1\r\n"),
        // It first removes what it has received.
        step(LIST, ours("streaming-buffer", "", "0")),
        step(LIST, ours("canceled", "Cancelled due to user request", "0")),
        stage.nodes(TARGET, SOURCE, ""),
    ];
    // The source is asked as often as the target.
    let mut source = source;
    source.insert(2, step(LIST, "*0\r\n"));
    let options = NativeOptions { poll_ms: 600_000, ..quick() };
    let report = stage.perform(source, target, options, Some("accumulate-buffer")).await;
    let report = report.expect("a cancellation");
    assert_eq!((report.phase, report.slots), (NativePhase::Cancelled, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_looked_up() {
    let stage = Stage::new();
    let source = vec![
        stage.nodes(SOURCE, SOURCE, ""),
        step(LIST, "*0\r\n"),
        stage.nodes(SOURCE, TARGET, ""),
        step(LIST, "*0\r\n"),
    ];
    let target = vec![
        stage.nodes(TARGET, SOURCE, ""),
        step(LIST, "*0\r\n"),
        Step(IMPORT.to_owned(), None),
        step(LIST, ours("connecting", "", "0")),
        status("completed", "", "0"),
        stage.nodes(TARGET, TARGET, ""),
    ];
    let report = stage.perform(source, target, quick(), None).await.expect("it was started after all");
    assert_eq!((report.name.as_str(), report.attempts), (TASK, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_has_one_task_a_node() {
    let stage = Stage::new();
    let other = task(OTHER, "50-59", "import", "failed", [BROKEN, "7", "0"]);
    let source = vec![stage.nodes(SOURCE, SOURCE, "")];
    let target = vec![stage.nodes(TARGET, SOURCE, ""), step(LIST, format!("*1\r\n{other}"))];
    let error = stage.perform(source, target, quick(), None).await.expect_err("it will be tried again");
    assert!(NativeMigration::is_busy(&error) && error.side == Side::Target, "{error}");

    let stage = Stage::new();
    let source = vec![stage.nodes(SOURCE, SOURCE, &format!(" [93->-{TARGET}]"))];
    let error = stage.perform(source, Vec::new(), quick(), None).await.expect_err("a slot is marked");
    assert!(error.side == Side::Source && error.to_string().contains("slots 93"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_found_by_its_commands() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    let part = play(
        listener,
        vec![
            step(
                "CLUSTER GETSLOTMIGRATIONS",
                "-ERR unknown subcommand 'GETSLOTMIGRATIONS'. Try CLUSTER HELP.\r\n",
            ),
            step(LIST, "*0\r\n"),
            step(
                "CLUSTER MIGRATION IMPORT ?",
                "-ERR wrong number of arguments for 'cluster|migration' command\r\n",
            ),
        ],
    );
    let found = NativeSupport::find(&mut link(&at).await).await.expect("an answer");
    assert_eq!(found, NativeSupport::Present(NativeKind::Redis84));
    part.join().expect("no other words were said");
}
