//! The server that takes jobs, beside a real Valkey 9.1 whose commands it speaks, and under clients that
//! misbehave.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::migrations::{JobState, JobView};
use whimbrel_control::daemon::{Daemon, DaemonOptions, Jobs};
use whimbrel_control::topology::Topology;
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::endpoint::{Endpoint, Secret};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::nodes::ClusterView;
use whimbrel_lab::{Cluster, Engine, wait_until_refused};
use whimbrel_wire::scan::{Progress, Scanner};
use whimbrel_wire::value::Value;

whimbrel_lab::for_each_engine! {
    async
        command_line_clients_are_served
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Three made-up nodes.
pub(crate) const NODES: [&str; 3] = [
    "1111111111111111111111111111111111111111",
    "2222222222222222222222222222222222222222",
    "3333333333333333333333333333333333333333",
];

pub(crate) fn slots(text: &str) -> SlotSet {
    text.parse().expect("a set of slots")
}

/// Takes jobs in and does nothing about them.
#[derive(Debug)]
pub(crate) struct Notebook {
    /// `CLUSTER NODES` of the cluster that it claims to serve.
    nodes: String,
    pub(crate) jobs: Mutex<Vec<JobView>>,
    /// While it is set, a submission waits for it.
    gate: Mutex<Option<Arc<Notify>>>,
    /// Notified when a submission begins.
    at_gate: Notify,
    pub(crate) topology: Topology,
}

impl Notebook {
    pub(crate) fn new() -> Arc<Notebook> {
        let line = |i: usize, slots: &str| {
            format!("{} 127.0.0.1:{}@1 master - 0 0 {i} connected {slots}\n", NODES[i], 7000 + i)
        };
        let lines = line(0, "0-5460").replace("master", "myself,master")
            + &line(1, "5461-10922")
            + &line(2, "10923-16000");
        let replica = format!("{} 127.0.0.1:7003@1 slave {} 0 0 1 connected\n", "4".repeat(40), NODES[0]);
        Notebook::of(lines + &replica)
    }

    fn of(nodes: String) -> Arc<Notebook> {
        let endpoint = Endpoint::parse(Side::Source, "127.0.0.1:7000").expect("an address");
        let view = ClusterView::parse(&nodes, &endpoint, &endpoint.address).expect("a view");
        let topology = Topology::new(view.table(&endpoint));
        let (jobs, gate, at_gate) = Default::default();
        Arc::new(Notebook { nodes, jobs, gate, at_gate, topology })
    }

    fn jobs(&self) -> Vec<JobView> {
        self.jobs.lock().clone()
    }

    fn set_state(&self, name: &str, state: JobState, message: &str) {
        let mut jobs = self.jobs.lock();
        let job = jobs.iter_mut().find(|job| job.name == name).expect("a job");
        job.state = state;
        message.clone_into(&mut job.message);
    }
}

impl Jobs for Notebook {
    async fn view(&self) -> Result<ClusterView> {
        let endpoint = Endpoint::parse(Side::Source, "127.0.0.1:7000")?;
        ClusterView::parse(&self.nodes, &endpoint, &endpoint.address)
            .ok_or_else(|| Error::own("read", "no view"))
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Knows the keys of `GET` and `MGET`, and counts as many keys in each slot as the slot's number.
    async fn ask(&self, node: Option<&NodeId>, words: &[&[u8]]) -> Result<Value> {
        match (node, words) {
            (None, [b"COMMAND", b"GETKEYS", b"GET" | b"MGET", keys @ ..]) => Ok(Value::Array(
                keys.iter().map(|key| Value::Bulk(bytes::Bytes::copy_from_slice(key))).collect(),
            )),
            (Some(owner), [b"CLUSTER", b"COUNTKEYSINSLOT", slot]) => {
                let slot: i64 = std::str::from_utf8(slot).expect("text").parse().expect("a number");
                let index = NODES.iter().position(|id| *id == owner.as_str()).expect("one of ours");
                assert_eq!(
                    index,
                    usize::from(slot > 5_460) + usize::from(slot > 10_922),
                    "the owner is asked"
                );
                Ok(Value::Int(slot))
            }
            _ => Ok(Value::Error(bytes::Bytes::from_static(b"ERR Invalid command specified"))),
        }
    }

    async fn others(&self) -> Result<Vec<JobView>> {
        Ok(Vec::new())
    }

    async fn submit(&self, moves: Vec<Move>) -> Result<Vec<String>> {
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            self.at_gate.notify_one();
            gate.notified().await;
        }
        let mut jobs = self.jobs.lock();
        let mut names = Vec::new();
        // The newest command first, and within it the first block, as Valkey lists them.
        for (place, planned) in moves.into_iter().enumerate() {
            let job = JobView {
                name: format!("m{}", jobs.len() + 1),
                slots: planned.slots,
                source: planned.source.to_string(),
                target: planned.target.to_string(),
                created_s: 1_795_310_207,
                updated_s: 1_795_310_208,
                state: JobState::Snapshotting,
                message: String::new(),
                remaining_bytes: 17,
            };
            names.push(job.name.clone());
            jobs.insert(place, job);
        }
        Ok(names)
    }

    async fn list(&self) -> Result<Vec<JobView>> {
        Ok(self.jobs())
    }

    async fn cancel(&self, name: &str) -> Result<()> {
        self.set_state(name, JobState::Cancelled, "");
        Ok(())
    }
}

/// A server under test; it stops when it is dropped.
pub(crate) struct Running {
    pub(crate) port: u16,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) async fn new(jobs: Arc<Notebook>) -> Running {
        Running::with(jobs, |_| {}).await
    }

    pub(crate) async fn with(jobs: Arc<Notebook>, change: impl FnOnce(&mut DaemonOptions)) -> Running {
        let mut options = DaemonOptions::new("127.0.0.1:0".parse().expect("an address"));
        change(&mut options);
        let daemon = Daemon::bind(options, jobs).await.expect("it listens");
        let port = daemon.address().expect("an address").port();
        let stop = CancellationToken::new();
        let task = Some(tokio::spawn(daemon.serve(stop.clone())));
        Running { port, stop, task }
    }

    async fn link(&self) -> Link {
        link(&format!("127.0.0.1:{}", self.port)).await
    }

    pub(crate) async fn raw(&self) -> Raw {
        Raw::open(self.port).await
    }

    /// Stops it, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let task = self.task.take().expect("it runs");
        tokio::time::timeout(PATIENCE, task).await.expect("it ends").expect("it does not panic");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn link(address: &str) -> Link {
    let endpoint = Arc::new(Endpoint::parse(Side::Source, address).expect("an address"));
    let address = endpoint.address.clone();
    Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection")
}

/// A connection that sees the bytes.
pub(crate) struct Raw {
    stream: TcpStream,
    inbox: BytesMut,
    scanner: Scanner,
}

impl Raw {
    pub(crate) async fn open(port: u16) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
        Raw { stream, inbox: BytesMut::new(), scanner: Scanner::default() }
    }

    async fn send(&mut self, bytes: &[u8]) {
        // The server may have closed already: what it said is what counts.
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next reply, `None` at the end.
    async fn reply(&mut self) -> Option<Vec<u8>> {
        let reading = async {
            loop {
                if let Progress::Complete(len) = self.scanner.scan(&self.inbox).expect("RESP") {
                    return Some(self.inbox.split_to(len).to_vec());
                }
                match self.stream.read_buf(&mut self.inbox).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("a reply or an end")
    }

    pub(crate) async fn ask(&mut self, words: &[&str]) -> String {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.send(bytes.as_bytes()).await;
        String::from_utf8(self.reply().await.expect("a reply")).expect("text")
    }

    pub(crate) async fn is_closed(&mut self) -> bool {
        self.reply().await.is_none()
    }
}

/// What kind of value each field of each entry is, in order.
fn shape(reply: &Value) -> Vec<Vec<(String, &'static str)>> {
    let kind = |value: &Value| match value {
        Value::Bulk(_) => "string",
        Value::Int(_) => "integer",
        other => panic!("unexpected {other:?}"),
    };
    let entry = |item: &Value| {
        let pairs = item.clone().into_pairs().expect("pairs");
        pairs.iter().map(|(k, v)| (k.as_str().expect("a name").to_owned(), kind(v))).collect()
    };
    reply.as_items().expect("a list").iter().map(entry).collect()
}

fn parse(reply: &str) -> Value {
    Value::parse(&bytes::Bytes::copy_from_slice(reply.as_bytes())).expect("one frame")
}

/// Asserts that both servers show their jobs in one form, in both protocols.
async fn assert_shown_alike(theirs: &mut Raw, ours: &mut Raw) {
    let list = ["CLUSTER", "GETSLOTMIGRATIONS"];
    for version in ["2", "3"] {
        theirs.ask(&["HELLO", version]).await;
        ours.ask(&["HELLO", version]).await;
        let (their, our) = (theirs.ask(&list).await, ours.ask(&list).await);
        let marks = |text: &str| text.chars().filter(|c| "*%~>".contains(*c)).collect::<String>();
        assert_eq!(marks(&our), marks(&their), "RESP{version}: maps or flat lists\n{our}\n{their}");
        let (their, our) = (parse(&their), parse(&our));
        assert_eq!(shape(&our), shape(&their), "RESP{version}");
        for (our, their) in our.as_items().expect("a list").iter().zip(their.as_items().expect("a list")) {
            for same in ["operation", "slot_ranges", "target_node", "source_node"] {
                assert_eq!(our.field(same), their.field(same), "RESP{version} {same}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_speaks_as_valkey_does() {
    let cluster = Cluster::builder(Engine::Valkey91).start().expect("a cluster");
    let nodes = link(&cluster.seed()).await.call(&[b"CLUSTER", b"NODES"]).await.expect("nodes");
    let notebook = Notebook::of(nodes.as_str().expect("a text").to_owned());
    let server = Running::new(notebook.clone()).await;
    let mut theirs = Raw::open(cluster.nodes()[0].port()).await;
    let mut ours = server.raw().await;
    let (own, other, third) = (cluster.node_id(0), cluster.node_id(1), cluster.node_id(2));
    let unknown = "a".repeat(40);

    // Refusals first: nothing is started by them.
    let refused: &[&[&str]] = &[
        &["CLUSTER", "MIGRATESLOTS"],
        &["CLUSTER", "MIGRATESLOTS", "FOO"],
        &["CLUSTER", "MIGRATESLOTS", "FOO", "BAR"],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100"],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "x", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "200", "100", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "x", "3", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "-1", "3", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "16384", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "99999999999999999999", "1", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "100"],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "100", "NODE"],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "100", "NODES", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTS\0RANGE", "100", "100", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100\0", "100", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "100", "NODE", "abc"],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "100", "NODE", &unknown],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "100", "NODE", own],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "6000", "NODE", other],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "110", "105", "120", "NODE", other],
        &[
            "CLUSTER",
            "MIGRATESLOTS",
            "SLOTSRANGE",
            "100",
            "110",
            "NODE",
            other,
            "SLOTSRANGE",
            "105",
            "120",
            "NODE",
            third,
        ],
        &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "100", "110", "NODE", other, "FOO"],
        &["CLUSTER", "CANCELSLOTMIGRATIONS"],
        &["CLUSTER", "GETSLOTMIGRATIONS", "x"],
        &["CLUSTER", "FOO"],
        &["CLUSTER"],
        &["SELECT", "x", "y"],
        &["CLIENT", "FOO"],
        &["CLIENT", "ID", "x"],
        &["HELLO", "4"],
        &["AUTH", "x"],
        &["PING", "a", "b"],
    ];
    for words in refused {
        let (their, our) = (theirs.ask(words).await, ours.ask(words).await);
        assert!(their.starts_with('-'), "{words:?}: {their}");
        assert_eq!(our, their, "{words:?}");
    }
    assert!(notebook.jobs().is_empty(), "nothing was started");

    // What is accepted, and how it is shown, in both protocols.
    let accepted = [
        "CLUSTER",
        "migrateslots",
        // As valkey-cli 9.1 sends it: servers compare words up to their first NUL.
        "slotsrange\0",
        "0",
        "9",
        "20",
        "29",
        "node\0x",
        other,
        "SLOTSRANGE",
        "30",
        "30",
        "NODE",
        third,
    ];
    assert_eq!(theirs.ask(&accepted).await, "+OK\r\n");
    assert_eq!(ours.ask(&accepted).await, "+OK\r\n");
    assert_shown_alike(&mut theirs, &mut ours).await;
    let jobs = notebook.jobs();
    assert_eq!((jobs.len(), &jobs[1].slots, &jobs[0].slots), (2, &slots("30"), &slots("0-9,20-29")));
    // Slots under way are refused in the same words: theirs have moved, so ours alone is asked.
    let again = ours.ask(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "25", "35", "NODE", other]).await;
    assert_eq!(again, "-ERR I am already migrating slot 25.\r\n");
    server.stop().await;
}

#[tokio::test]
async fn every_state_is_a_word_of_valkeys() {
    for (phase, word) in [
        ("queued", "connecting"),
        ("preparing", "sending-establish-command"),
        ("attaching", "reading-establish-response"),
        ("snapshotting", "snapshotting"),
        ("streaming", "replicating"),
        ("pausing", "waiting-to-pause"),
        ("draining", "failover-paused"),
        ("comparing", "failover-paused"),
        ("fencing", "failover-paused"),
        ("taking-over", "failover-granted"),
        ("releasing", "failover-granted"),
        ("confirming", "failover-granted"),
        ("cleaning-up", "failover-granted"),
        ("suspended", "waiting-to-snapshot"),
        ("rolling-back", "waiting-to-snapshot"),
        ("done", "success"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
    ] {
        let state = JobState::of_phase(phase);
        assert_eq!(state.word(), word, "{phase}");
        assert_eq!(state.is_final(), ["done", "failed", "cancelled"].contains(&phase), "{phase}");
    }
}

#[tokio::test]
async fn slots_may_be_any_nodes_but_of_one_at_a_time() {
    let notebook = Notebook::new();
    let server = Running::new(notebook.clone()).await;
    let mut link = server.raw().await;
    let [_, second, third] = NODES;
    let mut migrate = async |start: &str, end: &str, to: &str| {
        link.ask(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", start, end, "NODE", to]).await
    };
    assert_eq!(migrate("6000", "6001", third).await, "+OK\r\n");
    assert_eq!(migrate("6001", "6001", second).await, "-ERR I am already migrating slot 6001.\r\n");
    assert_eq!(migrate("6002", "6003", second).await, "-ERR Target node can not be this node.\r\n");
    assert_eq!(migrate("16001", "16002", second).await, "-ERR Slot 16001 has no node served.\r\n");
    assert_eq!(migrate("0", "9", &"4".repeat(40)).await, "-ERR Target node is not a primary\r\n");
    let jobs = notebook.jobs();
    assert_eq!((jobs.len(), jobs[0].source.as_str(), jobs[0].target.as_str()), (1, second, third));
}

#[tokio::test]
async fn jobs_are_cancelled_all_or_one() {
    let notebook = Notebook::new();
    let server = Running::new(notebook.clone()).await;
    let mut link = server.raw().await;
    for slot in ["1", "2", "3", "4"] {
        link.ask(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", NODES[1]]).await;
    }
    notebook.set_state("m1", JobState::Failed, "no luck\r\n+OK");
    let states = |notebook: &Notebook| {
        let mut jobs = notebook.jobs();
        jobs.reverse();
        jobs.iter().map(|job| job.state.word()).collect::<Vec<_>>().join(" ")
    };
    let mut cancel =
        async |name: &[&str]| link.ask(&[&["CLUSTER", "CANCELSLOTMIGRATIONS"], name].concat()).await;
    assert_eq!(cancel(&["m9"]).await, "-ERR No such slot migration job\r\n");
    assert_eq!(cancel(&["m1"]).await, "-ERR No migrations ongoing\r\n");
    assert_eq!(cancel(&["m3"]).await, "+OK\r\n");
    assert_eq!(states(&notebook), "failed snapshotting cancelled snapshotting");
    assert_eq!(cancel(&[]).await, "+OK\r\n");
    assert_eq!(states(&notebook), "failed cancelled cancelled cancelled");
    assert_eq!(cancel(&[]).await, "-ERR No migrations ongoing\r\n");
    assert_eq!(cancel(&["ALL"]).await, "-ERR No migrations ongoing\r\n");
    assert_eq!(
        cancel(&["a", "b"]).await,
        "-ERR wrong number of arguments for 'cluster|cancelslotmigrations' command\r\n"
    );
    let info = link.ask(&["INFO"]).await;
    assert!(info.contains("jobs_active:0\r\n") && info.contains("jobs_listed:4\r\n"), "{info}");
}

/// Runs a command-line client with a password in its environment; what it printed.
fn cli(engine: Engine, port: u16, password: &str, words: &[&str]) -> String {
    let output = Command::new(engine.binaries().expect("an engine").cli)
        .args(["-p", &port.to_string()])
        .args(words)
        .env("REDISCLI_AUTH", password)
        .env("VALKEYCLI_AUTH", password)
        .output()
        .expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(err.is_empty(), "{words:?}: {err}");
    out.trim().to_owned()
}

async fn command_line_clients_are_served(engine: Engine) {
    let notebook = Notebook::new();
    let server =
        Running::with(notebook.clone(), |options| options.password = Some(Secret::new("hunter2"))).await;
    let port = server.port;
    let run = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        tokio::task::spawn_blocking(move || {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            cli(engine, port, "hunter2", &words)
        })
    };
    let run = async |words: &[&str]| run(words).await.expect("it runs");
    assert_eq!(run(&["PING"]).await, "PONG");
    let migrate = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", "9", "NODE", NODES[1]];
    assert_eq!(run(&migrate).await, "OK", "{engine}");
    assert_eq!(notebook.jobs().len(), 1);
    // In the clients' own words, RESP2 and RESP3 alike.
    for protocol in [&[][..], &["-3"]] {
        let listed = run(&[protocol, &["CLUSTER", "GETSLOTMIGRATIONS"]].concat()).await;
        for word in ["slot_ranges", "0-9", "snapshotting", NODES[1], "remaining_repl_size", "17"] {
            assert!(listed.contains(word), "{engine} {protocol:?}: no {word} in\n{listed}");
        }
    }
    assert_eq!(run(&["CLUSTER", "CANCELSLOTMIGRATIONS", "m1"]).await, "OK");
    assert_eq!(run(&["CLUSTER", "CANCELSLOTMIGRATIONS"]).await, "ERR No migrations ongoing");
    server.stop().await;
}

#[tokio::test]
async fn nobody_gets_in_without_the_password() {
    let options = DaemonOptions::new("0.0.0.0:0".parse().expect("an address"));
    let error = Daemon::bind(options.clone(), Notebook::new()).await.expect_err("it is open to all");
    assert!(error.to_string().contains("password is required"), "{error}");
    let empty = DaemonOptions { password: Some(Secret::new("")), ..options.clone() };
    Daemon::bind(empty, Notebook::new()).await.expect_err("an empty password keeps nobody out");
    let kept = DaemonOptions { password: Some(Secret::new("hunter2")), ..options };
    Daemon::bind(kept, Notebook::new()).await.expect("with a password it may listen");

    let server = Running::with(Notebook::new(), |options| {
        options.user = Some("ops".to_owned());
        options.password = Some(Secret::new("hunter2"));
    })
    .await;
    let mut raw = server.raw().await;
    for words in [&["PING"][..], &["INFO"], &["CLUSTER", "GETSLOTMIGRATIONS"], &["HELLO", "3"], &["COMMAND"]]
    {
        let answer = raw.ask(words).await;
        assert!(answer.starts_with("-NOAUTH "), "{words:?}: {answer}");
    }
    assert_eq!(raw.ask(&["AUTH", "hunter2"]).await, "+OK\r\n");
    assert_eq!(raw.ask(&["PING"]).await, "+PONG\r\n");
    // A failed login ends the one before.
    assert!(raw.ask(&["AUTH", "ops", "hunter3"]).await.starts_with("-WRONGPASS "));
    assert!(raw.ask(&["PING"]).await.starts_with("-NOAUTH "));
    assert_eq!(raw.ask(&["AUTH", "ops", "hunter2"]).await, "+OK\r\n");

    let mut raw = server.raw().await;
    for words in [["AUTH", "default", "hunter"], ["AUTH", "root", "hunter2"], ["AUTH", "default", ""]] {
        assert!(raw.ask(&words).await.starts_with("-WRONGPASS "), "{words:?}");
    }
    assert!(raw.is_closed().await, "three tries are enough");

    let mut raw = server.raw().await;
    let hello = raw.ask(&["HELLO", "3", "AUTH", "default", "hunter2", "SETNAME", "me"]).await;
    assert!(hello.starts_with("%7\r\n$6\r\nserver\r\n$8\r\nwhimbrel\r\n"), "{hello}");
    assert_eq!(raw.ask(&["CLIENT", "GETNAME"]).await, "$2\r\nme\r\n");

    // Who has not logged in may not send much.
    let mut raw = server.raw().await;
    raw.send(format!("*2\r\n$4\r\nAUTH\r\n${}\r\n", 20_000).as_bytes()).await;
    let answer = String::from_utf8(raw.reply().await.expect("an answer")).expect("text");
    assert!(answer.starts_with("-ERR Protocol error"), "{answer}");
    assert!(raw.is_closed().await);
}

#[tokio::test]
async fn what_is_no_command_ends_the_connection() {
    let server = Running::new(Notebook::new()).await;
    let sent: [Vec<u8>; 6] = [
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_vec(),
        b"PING\r\n".to_vec(),
        b"*1\r\n:1\r\n".to_vec(),
        b"*1\r\n*1\r\n$4\r\nPING\r\n".to_vec(),
        b"*2000000000\r\n".to_vec(),
        b"*2\r\n$4\r\nECHO\r\n$9999999\r\n".to_vec(),
    ];
    for bytes in sent {
        let mut raw = server.raw().await;
        raw.send(&bytes).await;
        let answer = raw.reply().await.expect("an answer");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("-ERR Protocol error: "), "{bytes:?}: {answer}");
        assert!(raw.is_closed().await, "{bytes:?}");
    }
    // An empty command is none, several may come at once, and names are not repeated with their line breaks.
    let mut raw = server.raw().await;
    raw.send(b"*0\r\n*1\r\n$4\r\nping\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*1\r\n$6\r\nA\r\nB\r\n\r\n").await;
    for expected in
        ["+PONG\r\n", "$2\r\nhi\r\n", "-ERR unknown command 'AB', or it has no keys: it is for the nodes\r\n"]
    {
        assert_eq!(raw.reply().await.expect("a reply"), expected.as_bytes());
    }
}

#[tokio::test]
async fn a_command_may_name_every_second_slot() {
    let notebook = Notebook::new();
    let server = Running::new(notebook.clone()).await;
    let numbers: Vec<String> = (0..5460).step_by(2).map(|n| n.to_string()).collect();
    let mut words = vec!["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"];
    words.extend(numbers.iter().flat_map(|n| [n.as_str(), n.as_str()]));
    words.extend(["NODE", NODES[1]]);
    assert_eq!(server.raw().await.ask(&words).await, "+OK\r\n");
    assert_eq!(notebook.jobs()[0].slots.len(), 2730);
}

#[tokio::test]
async fn connections_are_bounded_in_number_and_time() {
    let server = Running::with(Notebook::new(), |options| options.connections_max = 2).await;
    let (mut first, mut second) = (server.raw().await, server.raw().await);
    assert_eq!(first.ask(&["PING"]).await, "+PONG\r\n");
    assert_eq!(second.ask(&["PING"]).await, "+PONG\r\n");
    let mut third = server.raw().await;
    assert_eq!(third.ask(&["PING"]).await, "-ERR max number of clients reached\r\n");
    assert!(third.is_closed().await);
    assert_eq!(first.ask(&["QUIT"]).await, "+OK\r\n");
    assert!(first.is_closed().await);
    // Its place is free again.
    let free = async {
        loop {
            let mut next = server.raw().await;
            if next.ask(&["PING"]).await == "+PONG\r\n" {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, free).await.expect("a place");

    let server = Running::with(Notebook::new(), |options| options.idle_timeout_ms = 50).await;
    let mut silent = server.raw().await;
    assert!(silent.is_closed().await, "it said nothing for too long");
    let server = Running::with(Notebook::new(), |options| {
        options.password = Some(Secret::new("hunter2"));
        options.login_timeout_ms = 50;
    })
    .await;
    let mut stranger = server.raw().await;
    assert!(stranger.is_closed().await, "it did not log in");
}

#[tokio::test]
async fn a_command_under_way_is_finished_before_the_end() {
    let notebook = Notebook::new();
    let gate = Arc::new(Notify::new());
    *notebook.gate.lock() = Some(gate.clone());
    let server = Running::new(notebook.clone()).await;
    let (mut busy, mut idle) = (server.link().await, server.raw().await);
    assert_eq!(idle.ask(&["PING"]).await, "+PONG\r\n");
    let submitting = tokio::spawn(async move {
        let words: [&[u8]; 7] =
            [b"CLUSTER", b"MIGRATESLOTS", b"SLOTSRANGE", b"0", b"9", b"NODE", NODES[1].as_bytes()];
        let reply = busy.ask(&words).await.expect("a reply");
        (reply, busy)
    });
    notebook.at_gate.notified().await;
    let port = server.port;
    let stopping = tokio::spawn(server.stop());
    assert!(idle.is_closed().await, "who is idle is let go");
    gate.notify_one();
    let (reply, mut busy) = submitting.await.expect("joined");
    assert!(reply.is_ok(), "{reply:?}");
    stopping.await.expect("stopped");
    assert!(busy.ask(&[b"PING"]).await.is_err(), "then it is let go as well");
    // Nobody is let in any more.
    wait_until_refused(([127, 0, 0, 1], port).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_reports_who_owns_what_in_both_protocols() {
    let notebook = Notebook::new();
    let server = Running::new(notebook.clone()).await;
    let mut raw = server.raw().await;
    let place = |i: usize, map: &str| {
        format!("*4\r\n$9\r\n127.0.0.1\r\n:{}\r\n$40\r\n{}\r\n{map}\r\n", 7000 + i, NODES[i])
    };
    let replica =
        |map: &str| format!("*4\r\n$9\r\n127.0.0.1\r\n:7003\r\n$40\r\n{}\r\n{map}\r\n", "4".repeat(40));
    let expected = |map: &str| {
        format!(
            "*3\r\n*4\r\n:0\r\n:5460\r\n{}{}*3\r\n:5461\r\n:10922\r\n{}*3\r\n:10923\r\n:16000\r\n{}",
            place(0, map),
            replica(map),
            place(1, map),
            place(2, map)
        )
    };
    assert_eq!(raw.ask(&["CLUSTER", "SLOTS"]).await, expected("*0"));
    raw.ask(&["HELLO", "3"]).await;
    assert_eq!(raw.ask(&["cluster", "slots"]).await, expected("%0"));
    assert_eq!(raw.ask(&["CLUSTER", "MYID"]).await, format!("$40\r\n{}\r\n", NODES[0]));
    assert_eq!(raw.ask(&["CLUSTER", "KEYSLOT", "foo"]).await, ":12182\r\n");
    assert!(raw.ask(&["CLUSTER", "NODES"]).await.contains("myself,master - 0 0 0 connected 0-5460\n"));
    // 383 slots are nobody's.
    assert!(
        raw.ask(&["CLUSTER", "INFO"])
            .await
            .contains("cluster_state:fail\r\ncluster_slots_assigned:16001\r\n")
    );
    assert!(
        raw.ask(&["CLUSTER", "SHARDS"]).await.starts_with("*3\r\n%2\r\n$5\r\nslots\r\n*2\r\n:0\r\n:5460\r\n")
    );

    let moved = SlotSet::from_iter(slots("5000").iter());
    notebook.topology.hand_over(&moved, &NODES[2].parse().expect("an id"));
    let reply = raw.ask(&["CLUSTER", "SLOTS"]).await;
    assert!(reply.starts_with("*5\r\n*4\r\n:0\r\n:4999\r\n"), "{reply}");
    assert!(reply.contains(&format!("*3\r\n:5000\r\n:5000\r\n{}", place(2, "%0"))), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_sends_clients_to_the_owners() {
    let server = Running::new(Notebook::new()).await;
    let mut raw = server.raw().await;
    for (words, expected) in [
        (&["GET", "foo"][..], "-MOVED 12182 127.0.0.1:7002\r\n"),
        (&["MGET", "{bar}a", "{bar}b"], "-MOVED 5061 127.0.0.1:7000\r\n"),
        (&["MGET", "foo", "bar"], "-CROSSSLOT Keys in request don't hash to the same slot\r\n"),
        (&["FLUSHALL"], "-ERR unknown command 'FLUSHALL', or it has no keys: it is for the nodes\r\n"),
        (&["READONLY"], "+OK\r\n"),
        (&["CLUSTER", "COUNTKEYSINSLOT", "17"], ":17\r\n"),
        (&["CLUSTER", "COUNTKEYSINSLOT", "10923"], ":10923\r\n"),
        (&["CLUSTER", "COUNTKEYSINSLOT", "16383"], "-CLUSTERDOWN Hash slot not served\r\n"),
        (&["CLUSTER", "COUNTKEYSINSLOT", "16384"], "-ERR Invalid slot\r\n"),
        (&["CLUSTER", "COUNTKEYSINSLOT", "x"], "-ERR value is not an integer or out of range\r\n"),
        (&["CLUSTER", "SLOTS", "x"], "-ERR wrong number of arguments for 'cluster|slots' command\r\n"),
        (&["CLUSTER", "KEYSLOT"], "-ERR wrong number of arguments for 'cluster|keyslot' command\r\n"),
    ] {
        let reply = raw.ask(words).await;
        assert_eq!(reply, expected, "{words:?}");
    }
}
