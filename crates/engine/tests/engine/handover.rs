//! Handing slots over between real nodes, with replicas, the append-only file, and clients at work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use whimbrel_core::migration::Seen;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint, Secret};
use whimbrel_engine::error::{Code, Side};
use whimbrel_engine::handover::{Fenced, Handover, HandoverOptions, Sealed, SlotFenceKind};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::nodes::{ClusterView, key_counts};
use whimbrel_lab::{Cluster, ClusterBuilder, Engine, Tls};
use whimbrel_wire::value::Value;

use self::retried::{clean_up, clear_marks, wipe};
use self::seen::{a_pause_of_another_job_is_left, two_handovers_see_each_other_and_old_ones_are_cut_off};

mod lapsed;
mod retried;
mod seen;
mod silent;

whimbrel_lab::for_each_engine! {
    async
        slots_move_under_load_and_nobody_notices
        a_node_that_gives_all_its_slots_away_stays_a_primary_with_its_replica
        a_fence_does_not_hold_when_something_was_written
        what_was_dropped_half_way_is_found_out_and_repaired
        replicas_that_lag_are_waited_for
        keys_that_have_expired_are_removed_with_the_others
        a_pause_of_another_job_is_left
        two_handovers_see_each_other_and_old_ones_are_cut_off
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        what_is_forbidden_is_found_before_anything_changes
}

whimbrel_lab::for_each_engine! {
    async on Redis80 Valkey81:
        after_a_failover_the_promoted_replica_is_found
        passwords_and_certificates_are_no_hindrance
}

whimbrel_lab::for_each_engine! {
    async on Valkey80 Valkey81 Valkey91:
        a_bare_fence_hands_over_as_well
}

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client gives up after this many redirections in a row, as common ones do.
const REDIRECTIONS_MAX: u32 = 50;

/// From this many on it waits before each, a little longer each time: a busy machine takes longer than it is
/// meant to between the moments at which the one node gives slots up and the other takes them.
const REDIRECTIONS_AT_ONCE: u32 = 10;

/// Long enough to copy whatever clients may have written: how that is staged here is not tested.
const PAUSE_MS: u64 = 60_000;

/// Slots whose keys are written or copied by one round trip.
const SLOTS_AT_ONCE: usize = 256;

/// A client rests between two commands: many of them that do not would take the processors from the servers.
const BETWEEN_COMMANDS: Duration = Duration::from_millis(5);

fn slots(text: &str) -> SlotSet {
    text.parse().expect("a set of slots")
}

/// Which nodes a test uses, by index: slots go from node 0 to node 1. The third one looks on.
struct Field {
    engine: Engine,
    cluster: Cluster,
    deployment: Deployment,
}

impl Field {
    fn builder(engine: Engine) -> ClusterBuilder {
        Cluster::builder(engine)
            .primaries(3)
            .replicas(1)
            // A busy node must not count as one that has failed.
            .node_timeout_ms(30_000)
            .arg("appendonly", "yes")
            // The tests' own staging takes long on a busy machine. Nobody could say of two pings that they
            // are no write.
            .arg("repl-ping-replica-period", "3600")
            .arg("repl-timeout", "7200")
            // A disk that is busy would have it wait, and what waits for replicas is given up.
            .arg("appendfsync", "no")
            .arg("cluster-require-full-coverage", "yes")
            .arg("cluster-allow-replica-migration", "yes")
    }

    async fn new(engine: Engine) -> Field {
        Field::of(engine, &Field::builder(engine)).await
    }

    async fn of(engine: Engine, builder: &ClusterBuilder) -> Field {
        let cluster = builder.start().expect("a cluster");
        let endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an address");
        let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment");
        Field { engine, cluster, deployment }
    }

    fn id(&self, i: usize) -> NodeId {
        self.cluster.node_id(i).parse().expect("a node id")
    }

    async fn link(&self, i: usize) -> Link {
        let address = Address::parse_tcp(&self.cluster.nodes()[i].addr()).expect("an address");
        let mut link = self.deployment.open(&address, 0).await.expect("a connection");
        link.call(&[b"READONLY"]).await.expect("READONLY");
        link
    }

    async fn view(&self, i: usize) -> ClusterView {
        ClusterView::ask(&mut self.link(i).await).await.expect("a view")
    }

    /// The index of the replica of node `i`.
    fn replica(&self, i: usize) -> usize {
        self.cluster.primaries().len() + i
    }

    async fn handover(&self, from: usize, to: usize) -> Handover {
        self.handover_with(from, to, HandoverOptions::default()).await
    }

    async fn handover_with(&self, from: usize, to: usize, options: HandoverOptions) -> Handover {
        let (from, to) = (self.id(from), self.id(to));
        Handover::open_with(&self.deployment, from, to, options).await.expect("a handover")
    }

    async fn own_slots(&self, i: usize) -> SlotSet {
        self.view(i).await.me().slots.clone()
    }

    async fn keys_in(&self, i: usize, slots: &SlotSet) -> u64 {
        key_counts(&mut self.link(i).await, slots).await.expect("counts").sum(slots)
    }

    /// Writes `each` keys into each of `slots` at node `i`: `{tag}:n`, whose values are their names.
    async fn fill(&self, i: usize, slots: &SlotSet, each: usize) {
        let mut link = self.link(i).await;
        let slots: Vec<Slot> = slots.iter().collect();
        for some in slots.chunks(SLOTS_AT_ONCE) {
            for (slot, n) in some.iter().flat_map(|slot| (0..each).map(move |n| (*slot, n))) {
                let key = format!("{{{}}}:{n}", tag_for_slot(slot));
                link.push(&[b"SET", key.as_bytes(), key.as_bytes()]);
            }
            answered(&mut link, some.len() * each).await;
        }
    }

    /// Copies all keys of `slots` from one node to another that imports them.
    async fn stage(&self, from: usize, to: usize, slots: &SlotSet) {
        let (mut from, mut to) = (self.link(from).await, self.link(to).await);
        let counts = key_counts(&mut from, slots).await.expect("counts");
        let occupied: Vec<Slot> = counts.occupied().iter().collect();
        for some in occupied.chunks(SLOTS_AT_ONCE) {
            for slot in some {
                let (number, n) = (slot.number().to_string(), counts.of(*slot).to_string());
                from.push(&[b"CLUSTER", b"GETKEYSINSLOT", number.as_bytes(), n.as_bytes()]);
            }
            let lists = answered(&mut from, some.len()).await;
            let keys = lists.into_iter().flat_map(|keys| keys.into_items().expect("a list"));
            let keys: Vec<Bytes> = keys.map(|key| key.into_bytes().expect("a key")).collect();
            for key in &keys {
                from.push(&[b"DUMP", key]);
            }
            for (key, reply) in keys.iter().zip(answered(&mut from, keys.len()).await) {
                let text = format!("{reply:?}");
                let payload = reply.into_bytes().unwrap_or_else(|| panic!("no payload of {key:?}: {text}"));
                to.push(&[b"RESTORE-ASKING", key, b"0", &payload, b"REPLACE"]);
            }
            answered(&mut to, keys.len()).await;
        }
    }

    /// The whole procedure for one batch. What clients write meanwhile is copied under the pause.
    async fn hand_over(&self, handover: &mut Handover, from: usize, to: usize, slots: &SlotSet) -> Fenced {
        handover.mark_importing(slots).await.expect("marks");
        self.stage(from, to, slots).await;
        handover.raise_epoch().await.expect("an epoch");
        let paused = handover.pause(PAUSE_MS).await.expect("a pause");
        self.stage(from, to, slots).await;
        assert!(handover.wait_replicas(20_000).await.expect("an answer"), "replicas lag");
        let Sealed { fenced, taken } =
            handover.fence_and_take_over(slots, &paused, u64::MAX).await.expect("a fence");
        assert!(fenced.held && taken.is_ok(), "{fenced:?} {taken:?}");
        handover.settle(slots, Some(paused.until)).await.expect("settled");
        handover.confirm(slots, slots).await.expect("confirmed");
        clean_up(handover, slots, None).await;
        fenced
    }

    /// Slots as the fence wants them in one batch.
    fn batches(handover: &Handover, slots: &SlotSet) -> Vec<SlotSet> {
        let all: Vec<Slot> = slots.iter().collect();
        let max = handover.batch_slots_max();
        all.chunks(max).map(|part| part.iter().copied().collect()).collect()
    }

    /// Every process is still the one that was started, none has reported a crash, and all agree that node
    /// `owner` has the slots. Roles are as at the start.
    async fn all_well(&self, slots: &SlotSet, owner: usize) {
        self.cluster.wait_ok().expect("the cluster is well");
        for (i, node) in self.cluster.nodes().iter().enumerate() {
            assert!(node.is_running(), "node {i} has ended: {}", tail(&node.log()));
            let log = node.log();
            for word in ["REPORT START", "crashed by signal", "ASSERTION FAILED"] {
                assert!(!log.contains(word), "node {i}: {}", tail(&log));
            }
            let view = self.view(i).await;
            let theirs = &view.node(&self.id(owner)).expect("it knows the owner").slots;
            assert!(slots.difference(theirs).is_empty(), "node {i} does not know the owner of all slots");
            let primaries = self.cluster.primaries().len();
            let follows = (i >= primaries).then(|| self.id(i - primaries));
            assert_eq!(view.me().primary, follows, "node {i} follows another node");
            assert!(view.me().importing.is_empty() && view.me().migrating.is_empty(), "node {i} has marks");
            let config =
                self.link(i).await.call(&[b"CONFIG", b"GET", b"cluster-allow-replica-migration"]).await;
            let config = config.expect("CONFIG GET").into_items().expect("a list");
            assert_eq!(config[1].as_str(), Some("yes"), "node {i} was left with another configuration");
        }
    }

    /// The keys of `slots` are at node `owner` and its replica, and neither at node `other` nor at its
    /// replica.
    async fn keys_are_at(&self, slots: &SlotSet, owner: usize, other: usize, keys: u64) {
        assert_eq!(self.keys_in(owner, slots).await, keys, "at the owner");
        let replica = self.replica(owner);
        until("the owner's replica has all keys", async || self.keys_in(replica, slots).await == keys).await;
        assert_eq!(self.keys_in(other, slots).await, 0, "at the former owner");
        let replica = self.replica(other);
        until("the former owner's replica has none", async || self.keys_in(replica, slots).await == 0).await;
    }
}

/// Sends what was pushed, and takes its answers, none of which is an error.
async fn answered(link: &mut Link, requests: usize) -> Vec<Value> {
    link.flush().await.expect("sent");
    let replies = link.replies(requests).await.expect("replies");
    for reply in &replies {
        assert!(reply.as_error().is_none(), "{reply:?}");
    }
    replies
}

fn tail(log: &str) -> &str {
    let from = log.rmatch_indices('\n').nth(60).map_or(0, |(at, _)| at + 1);
    &log[from..]
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never came: {what}"));
}

/// Clients with a connection to each node, that follow redirections and keep a book.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    commands: u64,
    moved: u64,
    most_redirections: u32,
    longest: Duration,
    errors: BTreeMap<String, u64>,
    /// Counters, and how often each was increased with an acknowledgement.
    counters: BTreeMap<String, i64>,
    /// Answers that contradict the book.
    wrong: Vec<String>,
}

struct Client {
    nodes: BTreeMap<u16, redis::Connection>,
    table: BTreeMap<Slot, u16>,
    first: u16,
    book: Book,
}

impl Client {
    fn ask(&mut self, command: &redis::Cmd, slot: Slot) -> Option<redis::Value> {
        let begun = Instant::now();
        let mut port = self.table.get(&slot).copied().unwrap_or(self.first);
        let mut redirections = 0;
        let answer = loop {
            let node = self.nodes.get_mut(&port).expect("a node of the cluster");
            match command.query::<redis::Value>(node) {
                Ok(value) => break Some(value),
                Err(e) if e.code() == Some("MOVED") => {
                    self.book.moved += 1;
                    redirections += 1;
                    if redirections > REDIRECTIONS_MAX {
                        *self.book.errors.entry("too many redirections".to_owned()).or_default() += 1;
                        break None;
                    }
                    let wait_ms = redirections.saturating_sub(REDIRECTIONS_AT_ONCE);
                    std::thread::sleep(Duration::from_millis(wait_ms.into()));
                    let (place, _) = e.redirect_node().expect("a place");
                    let (_, number) = place.rsplit_once(':').expect("a port");
                    port = number.parse().expect("a port");
                    self.table.insert(slot, port);
                }
                Err(e) => {
                    *self.book.errors.entry(e.to_string()).or_default() += 1;
                    break None;
                }
            }
        };
        self.book.commands += 1;
        self.book.longest = self.book.longest.max(begun.elapsed());
        self.book.most_redirections = self.book.most_redirections.max(redirections);
        answer
    }
}

impl Clients {
    /// `writers` increase counters of their own, `readers` read the keys that [`Field::fill`] wrote, in
    /// `slots`.
    fn start(field: &Field, slots: &SlotSet, writers: usize, readers: usize, each: usize) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let slots: Vec<Slot> = slots.iter().collect();
        let client = |i: usize| {
            let nodes: BTreeMap<u16, redis::Connection> =
                field.cluster.primaries().iter().map(|n| (n.port(), n.connection())).collect();
            let first = field.cluster.primaries()[i % 3].port();
            Client { nodes, table: BTreeMap::new(), first, book: Book::default() }
        };
        let mut threads = Vec::new();
        for i in 0..writers {
            let (mut client, stop) = (client(i), stop.clone());
            let own: Vec<Slot> = slots.iter().copied().skip(i).step_by(slots.len().div_ceil(60)).collect();
            threads.push(std::thread::spawn(move || {
                let mut turn = 0;
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(BETWEEN_COMMANDS);
                    let slot = own[turn % own.len()];
                    turn += 1;
                    let key = format!("{{{}}}:counter:{i}", tag_for_slot(slot));
                    let mut command = redis::cmd("INCR");
                    command.arg(&key);
                    if let Some(answer) = client.ask(&command, slot) {
                        let count = client.book.counters.entry(key.clone()).or_default();
                        *count += 1;
                        if answer != redis::Value::Int(*count) {
                            client.book.wrong.push(format!("{key}: {answer:?} instead of {count}"));
                        }
                    }
                }
                client.book
            }));
        }
        for i in 0..readers {
            let (mut client, stop, slots) = (client(i), stop.clone(), slots.clone());
            threads.push(std::thread::spawn(move || {
                let mut turn = i * 7;
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(BETWEEN_COMMANDS);
                    let slot = slots[turn % slots.len()];
                    turn += 13;
                    let key = format!("{{{}}}:{}", tag_for_slot(slot), turn % each);
                    let mut command = redis::cmd("GET");
                    command.arg(&key);
                    if let Some(answer) = client.ask(&command, slot)
                        && answer != redis::Value::BulkString(key.clone().into_bytes())
                    {
                        client.book.wrong.push(format!("{key}: {answer:?}"));
                    }
                }
                client.book
            }));
        }
        Clients { stop, threads }
    }

    /// Ends them. No error, no wrong answer, and every acknowledged increase is there.
    async fn finish(self, field: &Field) {
        self.stop.store(true, Ordering::Relaxed);
        let books: Vec<Book> =
            self.threads.into_iter().map(|t| t.join().expect("a client's thread")).collect();
        let commands: u64 = books.iter().map(|b| b.commands).sum();
        let moved: u64 = books.iter().map(|b| b.moved).sum();
        let longest = books.iter().map(|b| b.longest).max().expect("clients");
        let most = books.iter().map(|b| b.most_redirections).max().expect("clients");
        println!(
            "{}: {commands} commands, {moved} redirections, at most {most} in a row, longest {longest:?}",
            field.engine
        );
        for book in &books {
            assert!(book.errors.is_empty(), "{:?}", book.errors);
            assert!(book.wrong.is_empty(), "{:?}", book.wrong);
            assert!(book.commands > 0);
        }
        let mut client = Client {
            nodes: field.cluster.primaries().iter().map(|n| (n.port(), n.connection())).collect(),
            table: BTreeMap::new(),
            first: field.cluster.primaries()[0].port(),
            book: Book::default(),
        };
        for (key, count) in books.iter().flat_map(|b| &b.counters) {
            let mut command = redis::cmd("GET");
            command.arg(key);
            let found = client.ask(&command, Slot::of_key(key.as_bytes()));
            assert_eq!(found, Some(redis::Value::BulkString(count.to_string().into_bytes())), "{key}");
        }
        assert!(moved > 0, "no client noticed that anything moved");
    }
}

async fn slots_move_under_load_and_nobody_notices(engine: Engine) {
    let field = Field::new(engine).await;
    let moving = slots("0-4095");
    field.fill(0, &moving, 3).await;
    let clients = Clients::start(&field, &moving, 10, 6, 3);
    let mut handover = field.handover(0, 1).await;
    handover.check_permissions().await.expect("permissions");
    assert_eq!(handover.other_jobs().await.expect("a list"), Vec::<String>::new());
    let mut seamless = 0;
    for batch in Field::batches(&handover, &moving) {
        seamless += usize::from(field.hand_over(&mut handover, 0, 1, &batch).await.seamless);
    }
    // A target that is made to wait too late is no error: a machine that is busy can do that to a batch, and
    // to all of them. Then there are more.
    let mut moved = moving.clone();
    while seamless == 0 && moved.len() < 4_200 {
        let next = slots(&moved.len().to_string());
        seamless += usize::from(field.hand_over(&mut handover, 0, 1, &next).await.seamless);
        moved = moved.union(&next);
    }
    assert!(seamless > 0, "clients were sent back and forth");
    tokio::time::sleep(Duration::from_millis(300)).await;
    clients.finish(&field).await;
    field.all_well(&moved, 1).await;
    let keys = field.keys_in(1, &moved).await;
    assert!(keys > 3 * 4096, "{keys}");
    field.keys_are_at(&moved, 1, 0, keys).await;
    assert_eq!(field.own_slots(0).await.to_string(), format!("{}-5460", moved.len()));
}

async fn a_node_that_gives_all_its_slots_away_stays_a_primary_with_its_replica(engine: Engine) {
    let field = Field::new(engine).await;
    let all = field.own_slots(0).await;
    field.fill(0, &all, 2).await;
    let clients = Clients::start(&field, &all, 8, 4, 2);
    let mut handover = field.handover(0, 1).await;
    // In one batch, whatever is recommended.
    assert!(!handover.should_split(&all).await.expect("an answer"), "the target has slots");
    field.hand_over(&mut handover, 0, 1, &all).await;
    clients.finish(&field).await;
    field.all_well(&all, 1).await;
    assert!(field.own_slots(0).await.is_empty());
    let keys = field.keys_in(1, &all).await;
    field.keys_are_at(&all, 1, 0, keys).await;

    // And back to the node that is empty now, all that the other has.
    let all = field.own_slots(1).await;
    let mut handover = field.handover(1, 0).await;
    let parts = match handover.should_split(&all).await.expect("an answer") {
        true => vec![slots("0-10920"), slots("10921")],
        false => vec![all.clone()],
    };
    assert_eq!(parts.len() > 1, !engine.is_valkey());
    for part in &parts {
        field.hand_over(&mut handover, 1, 0, part).await;
    }
    field.all_well(&all, 0).await;
    assert!(field.own_slots(1).await.is_empty());
    field.keys_are_at(&all, 0, 1, keys).await;
}

/// Every way to fence that an engine survives.
fn ways(engine: Engine) -> Vec<HandoverOptions> {
    let usual = HandoverOptions::default();
    if engine.is_valkey() {
        let bare = HandoverOptions { fence: Some(SlotFenceKind::Bare), ..usual.clone() };
        vec![usual, bare]
    } else {
        let without_gate = HandoverOptions { gate: false, ..usual.clone() };
        let transaction = HandoverOptions { scripts: false, ..usual.clone() };
        let lists = HandoverOptions { scripts: false, ranges: false, ..usual.clone() };
        vec![usual, without_gate, transaction, lists]
    }
}

/// Writes a key of `slot` at node `i`; what it answered.
async fn set(field: &Field, i: usize, slot: Slot) -> Value {
    let key = format!("{{{}}}:written", tag_for_slot(slot));
    field.link(i).await.ask(&[b"SET", key.as_bytes(), b"late"]).await.expect("an answer")
}

fn is_moved_to(field: &Field, answer: &Value, i: usize) -> bool {
    let port = field.cluster.nodes()[i].port().to_string();
    answer.as_error().is_some_and(|e| e.starts_with(b"MOVED ") && e.ends_with(port.as_bytes()))
}

async fn a_fence_does_not_hold_when_something_was_written(engine: Engine) {
    let field = Field::new(engine).await;
    let mut next = 0;
    for options in ways(engine) {
        let moving = slots(&format!("{next}-{}", next + 99));
        next += 100;
        let written = moving.iter().next().expect("a slot");
        field.fill(0, &moving, 2).await;
        let mut handover = field.handover_with(0, 1, options).await;
        handover.mark_importing(&moving).await.expect("marks");
        let paused = handover.pause(PAUSE_MS).await.expect("a pause");
        // Somebody lifts it, and a client is quick.
        field.link(0).await.call(&[b"CLIENT", b"UNPAUSE"]).await.expect("unpaused");
        assert!(set(&field, 0, written).await.as_error().is_none());

        let fenced = handover.fence_and_take_over(&moving, &paused, u64::MAX).await.expect("one").fenced;
        assert!(!fenced.held, "{fenced:?}");
        assert!(fenced.offset > paused.offset, "{fenced:?} after {paused:?}");
        // The source serves as before, and is not paused.
        assert!(set(&field, 0, written).await.as_error().is_none());
        let seen = handover.inspect(&moving).await.expect("seen");
        assert_eq!((seen.source.claims, seen.target.claims), (moving.clone(), SlotSet::new()));
        assert_eq!(seen.target.open, moving, "they are marked as before");
        // A write before the offset that the fence is given does no harm.
        field.hand_over(&mut handover, 0, 1, &moving).await;
        assert!(is_moved_to(&field, &set(&field, 0, written).await, 1));
        field.all_well(&moving, 1).await;
        field.keys_are_at(&moving, 1, 0, 201).await;
    }
}

async fn what_was_dropped_half_way_is_found_out_and_repaired(engine: Engine) {
    let field = Field::new(engine).await;
    let claims = async |moving: &SlotSet| {
        let (source, target) = (field.id(0), field.id(1));
        let seen = Handover::observe(&field.deployment, &source, &target, moving).await.expect("seen");
        let (Seen::Primary(from), Seen::Primary(to)) = (seen.source, seen.target) else {
            panic!("both are there")
        };
        assert_eq!((&from.node, &to.node), (&source, &target));
        (from.claims, to.claims, to.keys)
    };
    let none = SlotSet::new();
    let mut next = 0;
    for options in ways(engine) {
        let moving = slots(&format!("{next}-{}", next + 99));
        next += 100;
        let some = moving.iter().nth(50).expect("a slot");
        field.fill(0, &moving, 2).await;
        let open = async || field.handover_with(0, 1, options.clone()).await;

        // Staged, and paused.
        let mut handover = open().await;
        handover.mark_importing(&moving).await.expect("marks");
        field.stage(0, 1, &moving).await;
        handover.pause(PAUSE_MS).await.expect("a pause");
        drop(handover);
        assert_eq!(claims(&moving).await, (moving.clone(), none.clone(), 200));
        let mut handover = open().await;
        handover.release().await.expect("released");
        assert_eq!(wipe(&mut handover, &moving).await, 200);
        clear_marks(&mut handover, &moving).await;
        assert!(set(&field, 0, some).await.as_error().is_none());
        field.all_well(&moving, 0).await;
        field.keys_are_at(&moving, 0, 1, 201).await;

        // Fenced: given back, twice.
        handover.mark_importing(&moving).await.expect("marks");
        field.stage(0, 1, &moving).await;
        let paused = handover.pause(PAUSE_MS).await.expect("a pause");
        let kind = handover.fence_kind();
        assert!(handover.fence(&moving, &paused).await.expect("a fence").held);
        drop(handover);
        let fenced = if kind == SlotFenceKind::Gossip { moving.clone() } else { none.clone() };
        assert_eq!(claims(&moving).await, (fenced, none.clone(), 201));
        let mut handover = open().await;
        handover.give_back(&moving).await.expect("given back");
        assert!(set(&field, 0, some).await.as_error().is_none());
        handover.give_back(&moving).await.expect("given back again");
        assert_eq!(claims(&moving).await, (moving.clone(), none.clone(), 201));
        let mut handover = open().await;
        wipe(&mut handover, &moving).await;
        clear_marks(&mut handover, &moving).await;
        field.all_well(&moving, 0).await;
        field.keys_are_at(&moving, 0, 1, 201).await;

        // In the middle of the take-over: only forward.
        handover.mark_importing(&moving).await.expect("marks");
        field.stage(0, 1, &moving).await;
        let paused = handover.pause(PAUSE_MS).await.expect("a pause");
        assert!(handover.fence(&moving, &paused).await.expect("a fence").held);
        drop(handover);
        let mut half = moving.clone();
        for slot in moving.iter().skip(60) {
            half.remove(slot);
        }
        let (first, last) = (half.ranges()[0].start().to_string(), half.ranges()[0].end().to_string());
        let mut link = field.link(1).await;
        for command in ["DELSLOTSRANGE", "ADDSLOTSRANGE"] {
            let command = [b"CLUSTER", command.as_bytes(), first.as_bytes(), last.as_bytes()];
            link.call(&command).await.expect("taken by hand");
        }
        assert_eq!(claims(&moving).await.1, half);
        let mut handover = open().await;
        handover.give_back(&moving).await.expect_err("not any more");
        handover.take_over(&moving, u64::MAX).await.expect("taken over");
        handover.take_over(&moving, u64::MAX).await.expect("taken over again");
        drop(handover);
        let (_, taken, keys) = claims(&moving).await;
        assert_eq!((taken, keys), (moving.clone(), 201));
        let mut handover = open().await;
        let refused = handover.wipe(&moving, None).await.expect_err("these are no copies");
        assert!(refused.to_string().contains("the target owns slots"), "{refused}");
        handover.settle(&moving, None).await.expect("settled");
        handover.settle(&moving, None).await.expect("settled again");
        assert!(is_moved_to(&field, &set(&field, 0, some).await, 1));
        handover.confirm(&moving, &moving).await.expect("confirmed");
        clean_up(&mut handover, &moving, Some(100_000)).await;
        clean_up(&mut handover, &moving, None).await;
        field.all_well(&moving, 1).await;
        field.keys_are_at(&moving, 1, 0, 201).await;
    }
}

async fn a_bare_fence_hands_over_as_well(engine: Engine) {
    let field = Field::new(engine).await;
    let all = field.own_slots(0).await;
    field.fill(0, &all, 1).await;
    let options = HandoverOptions { fence: Some(SlotFenceKind::Bare), ..HandoverOptions::default() };
    let mut handover = field.handover_with(0, 1, options).await;
    for batch in Field::batches(&handover, &all) {
        field.hand_over(&mut handover, 0, 1, &batch).await;
    }
    field.all_well(&all, 1).await;
    field.keys_are_at(&all, 1, 0, all.len() as u64).await;
}

async fn replicas_that_lag_are_waited_for(engine: Engine) {
    let field = Field::new(engine).await;
    let moving = slots("0-9");
    field.fill(0, &moving, 50).await;
    let mut handover = field.handover(0, 1).await;
    handover.mark_importing(&moving).await.expect("marks");
    assert!(handover.wait_replicas(10_000).await.expect("an answer"));
    let replica = &field.cluster.nodes()[field.replica(1)];
    replica.suspend().expect("suspended");
    field.stage(0, 1, &moving).await;
    assert!(!handover.wait_replicas(50).await.expect("an answer"));
    replica.resume().expect("resumed");
    assert!(handover.wait_replicas(20_000).await.expect("an answer"));
    assert_eq!(field.keys_in(field.replica(1), &moving).await, 500);
    wipe(&mut handover, &moving).await;
    assert_eq!(field.keys_in(field.replica(1), &moving).await, 0);
    clear_marks(&mut handover, &moving).await;
    field.all_well(&moving, 0).await;
}

/// In an importing slot a server refuses several keys together where one of them has expired and is not gone
/// yet.
async fn keys_that_have_expired_are_removed_with_the_others(engine: Engine) {
    let field = Field::new(engine).await;
    let moving = slots("0-9");
    field.fill(0, &moving, 20).await;
    let mut handover = field.handover(0, 1).await;
    handover.mark_importing(&moving).await.expect("marks");
    field.stage(0, 1, &moving).await;
    let mut target = field.link(1).await;
    target.call(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"]).await.expect("nothing expires by itself");
    for slot in &moving {
        let key = format!("expired:{{{}}}", tag_for_slot(slot));
        target.push(&[b"ASKING"]);
        target.push(&[b"SET", key.as_bytes(), b"", b"PX", b"1"]);
    }
    target.flush().await.expect("sent");
    for reply in target.replies(2 * moving.len()).await.expect("replies") {
        assert!(reply.as_error().is_none(), "{reply:?}");
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(field.keys_in(1, &moving).await, 210);
    assert_eq!(wipe(&mut handover, &moving).await, 200);
    assert_eq!(field.keys_in(1, &moving).await, 0);
    target.call(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"1"]).await.expect("as before");
    clear_marks(&mut handover, &moving).await;
    field.all_well(&moving, 0).await;
}

async fn what_is_forbidden_is_found_before_anything_changes(engine: Engine) {
    for (denied, name) in [
        ("-cluster|setslot", "CLUSTER SETSLOT"),
        ("-client|pause", "CLIENT PAUSE"),
        ("-client|unpause", "CLIENT UNPAUSE"),
        ("-client|list", "CLIENT LIST"),
        ("-wait", "WAIT"),
        ("-restore", "RESTORE"),
        ("-dump", "DUMP"),
        ("-discard", "DISCARD"),
    ] {
        let rule = format!("mover on >secret ~* &* +@all {denied}");
        let cluster = Cluster::builder(engine).primaries(2).user_acl(&rule).start().expect("a cluster");
        let mut endpoint = Endpoint::parse(Side::Source, &cluster.seed()).expect("an address");
        endpoint.user = Some("mover".to_owned());
        endpoint.password = Some(Secret::new("secret"));
        let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment");
        let id = |i: usize| cluster.node_id(i).parse().expect("a node id");
        let mut handover = Handover::open(&deployment, id(0), id(1)).await.expect("a handover");
        let refused = handover.check_permissions().await.expect_err("it is forbidden");
        assert_eq!(refused.server().map(|e| &e.code), Some(&Code::NoPermission), "{refused}");
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

async fn after_a_failover_the_promoted_replica_is_found(engine: Engine) {
    let field = Field::of(engine, &Field::builder(engine).node_timeout_ms(5_000)).await;
    let moving = slots("0-9");
    let handover = field.handover(0, 1).await;
    let members = handover.members().clone();
    assert_eq!(members.source, [field.id(0), field.id(field.replica(0))]);
    drop(handover);
    field.cluster.kill9(0).expect("killed");
    let promoted = field.cluster.wait_failover(0).expect("a failover");
    for known in [true, false] {
        let (source, target) = (field.id(0), field.id(1));
        let seen = match known {
            true => Handover::observe_members(&field.deployment, &members, &moving).await,
            false => Handover::observe(&field.deployment, &source, &target, &moving).await,
        };
        let seen = seen.expect("seen");
        let Seen::Primary(source) = seen.source else { panic!("it has been promoted: {seen:?}") };
        assert_eq!((source.node, source.claims), (field.id(promoted), moving.clone()));
    }
    field.cluster.kill9(promoted).expect("killed");
    until("nobody leads the shard", async || {
        let seen = Handover::observe_members(&field.deployment, &members, &moving).await.expect("seen");
        seen.source == Seen::Unreachable
    })
    .await;
}

async fn passwords_and_certificates_are_no_hindrance(engine: Engine) {
    let tls = Tls::new().expect("certificates");
    let cluster = Cluster::builder(engine)
        .primaries(2)
        .replicas(1)
        .password("secret")
        .tls(&tls)
        .arg("slowlog-log-slower-than", "0")
        .arg("slowlog-max-len", "10000")
        .start()
        .expect("a cluster");
    let seed = &cluster.nodes()[0];
    let mut endpoint = Endpoint::parse(Side::Source, &seed.tls_url().expect("TLS")).expect("an address");
    endpoint.tls.as_mut().expect("TLS").ca_file = Some(tls.ca());
    let deployment = Deployment::probe(endpoint, LinkOptions::default()).await.expect("a deployment");
    let id = |i: usize| cluster.node_id(i).parse().expect("a node id");
    let mut handover = Handover::open(&deployment, id(0), id(1)).await.expect("a handover");
    let moving = slots("0-99");
    handover.check_permissions().await.expect("permissions");
    handover.mark_importing(&moving).await.expect("marks");
    handover.raise_epoch().await.expect("an epoch");
    let paused = handover.pause(PAUSE_MS).await.expect("a pause");
    let fenced = handover.fence_and_take_over(&moving, &paused, u64::MAX).await.expect("a fence").fenced;
    assert!(fenced.held, "{fenced:?}");
    handover.settle(&moving, None).await.expect("settled");
    handover.confirm(&moving, &moving).await.expect("confirmed");
    for node in cluster.nodes() {
        assert!(!node.log().contains("secret"), "a password in the log");
        let slow = format!("{:?}", node.call(&["SLOWLOG", "GET", "-1"]));
        assert!(slow.contains("CLUSTER"), "nothing is logged: {slow}");
        assert!(!slow.contains("secret"), "a password in the slow log: {slow}");
    }
    assert_eq!(cluster.owner_of(99).expect("an owner"), 1);
}
