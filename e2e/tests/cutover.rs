//! Cutovers: who is kept out, what a rehearsal finds, and what arrives with them.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};
use whimbrel_e2e::binary::Running;
use whimbrel_e2e::syncing::{PATIENCE, Sync, wait_until_following};
use whimbrel_lab::{Engine, Server};

const RULES: [&str; 2] = ["user mover on >secret ~* &* +@all", "user app on >secret ~* &* +@all"];

fn server(engine: Engine) -> Server {
    let [mover, app] = RULES;
    Server::builder(engine).user_acl(mover).user_acl(app).start().expect("the server starts")
}

fn url(server: &Server) -> String {
    format!("redis://mover:secret@{}", server.addr())
}

fn client(server: &Server) -> redis::Connection {
    let address = format!("redis://app:secret@{}/", server.addr());
    redis::Client::open(address).expect("an address").get_connection().expect("the server answers")
}

fn words(line: &str) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    for word in line.split(' ') {
        command.arg(word);
    }
    command
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: it does not come to that");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A client that waits for one command's answer.
fn waiting(server: &Server, line: &'static str) -> JoinHandle<RedisResult<Value>> {
    let mut connection = client(server);
    thread::spawn(move || words(line).query(&mut connection))
}

const WAITS: [&str; 5] = [
    "BLPOP queue 150",
    "BZPOPMIN scores 150",
    "BLMPOP 150 1 queue LEFT",
    "BLMOVE queue elsewhere LEFT RIGHT 150",
    "XREAD BLOCK 150000 STREAMS stream $",
];

/// A server with clients that wait, one in a transaction and one that watches a key; and a sync that follows it.
struct Waiting {
    source: Server,
    target: Server,
    job: Sync,
    sync: Running,
    waiting: Vec<JoinHandle<RedisResult<Value>>>,
    queueing: redis::Connection,
    watching: redis::Connection,
    reading: redis::Connection,
}

impl Waiting {
    fn start(engine: Engine) -> Waiting {
        let (source, target) = (server(engine), server(engine));
        source.call(&["XGROUP", "CREATE", "stream", "g", "$", "MKSTREAM"]);
        source.call(&["SET", "plain", "1"]);
        let job = Sync::new(&url(&source), &url(&target), &["--db", "0"]);
        let mut sync = job.start(&[]);
        wait_until_following(&mut sync);
        let waiting = WAITS.into_iter().map(|line| waiting(&source, line)).collect();
        let (mut queueing, mut watching) = (client(&source), client(&source));
        words("MULTI").exec(&mut queueing).expect("a transaction begins");
        words("GET plain").exec(&mut queueing).expect("queued");
        words("WATCH plain").exec(&mut watching).expect("watched");
        let mut reading = client(&source);
        words("GET plain").exec(&mut reading).expect("read");
        wait_for("clients that wait", || blocked(&source) == WAITS.len());
        Waiting { source, target, job, sync, waiting, queueing, watching, reading }
    }

    /// All that could still take or leave something has been ended; who only reads has not.
    fn assert_ended(&mut self, how: &str) {
        wait_for(how, || blocked(&self.source) == 0);
        for (line, waiting) in WAITS.iter().zip(self.waiting.drain(..)) {
            let answer = waiting.join().expect("no panic");
            assert!(answer.is_err(), "{how}: {line}: {answer:?}");
        }
        words("GET plain").exec(&mut self.queueing).expect_err("ended in its transaction");
        let clients = self.source.call(&["CLIENT", "LIST"]);
        if format!("{clients:?}").contains("watch=") {
            words("GET plain").exec(&mut self.watching).expect_err("ended while it watches");
        }
        words("GET plain").exec(&mut self.reading).expect("who only reads goes on");
    }
}

/// How many clients wait in a command, writers that are paused included.
fn blocked(server: &Server) -> usize {
    let Value::BulkString(info) = server.call(&["INFO", "clients"]) else { panic!("no text") };
    let info = String::from_utf8(info).expect("text");
    let number = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    number.and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// Clients that waited for an item before the cutover take none of those that come back from the target.
#[test]
fn who_waits_takes_nothing_of_the_way_back() {
    for engine in Engine::ALL {
        let mut w = Waiting::start(engine);
        w.job.cutover(&["--fence", "acl", "--reverse-sync", "--max-pause", "5s"]).expect_code(0);
        w.target.call(&["RPUSH", "queue", "1", "2", "3"]);
        w.target.call(&["ZADD", "scores", "1", "one", "2", "two"]);
        w.target.call(&["XADD", "stream", "1-1", "f", "v"]);
        w.target.call(&["SET", "last", "1"]);
        let last = || w.source.call(&["EXISTS", "last"]) == Value::Int(1);
        wait_for("the way back", last);
        wait_until_following(&mut w.sync);
        w.job.cutover(&["--fence", "acl", "--back", "--max-pause", "5s"]).expect_code(0);
        for (server, side) in [(&w.source, "source"), (&w.target, "target")] {
            for (command, expected) in [("LLEN", 3), ("ZCARD", 2), ("XLEN", 1)] {
                let key = match command {
                    "LLEN" => "queue",
                    "ZCARD" => "scores",
                    _ => "stream",
                };
                let found = server.call(&[command, key]);
                assert_eq!(found, Value::Int(expected), "{engine}: {command} {key} of the {side}");
            }
            assert_eq!(server.call(&["EXISTS", "elsewhere"]), Value::Int(0), "{engine}: {side}");
        }
        w.assert_ended(&format!("{engine}: acl"));
    }
}

/// The other fences end them as well; without a fence nobody is disturbed.
#[test]
fn every_fence_ends_who_waits() {
    for (fence, engine) in [("readonly-replica", Engine::Redis70), ("pause", Engine::Valkey91)] {
        let mut w = Waiting::start(engine);
        w.job.cutover(&["--fence", "none", "--max-pause", "5s"]).expect_code(0);
        wait_for("paused writers are let go", || blocked(&w.source) == WAITS.len());
        assert!(w.waiting.iter().all(|waiting| !waiting.is_finished()), "{engine}");
        w.job.cutover(&["--fence", fence, "--fence-for", "20s", "--max-pause", "5s"]).expect_code(0);
        w.assert_ended(fence);
    }
}
