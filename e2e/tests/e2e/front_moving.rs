//! Clients are served by `whimbrel front` while keys move, and every answer that they get is checked.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use redis::{Connection, Value};
use serde_json::Value as Json;

use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::deployment::slot_of;
use whimbrel_e2e::fronts::{self, PATIENCE};
use whimbrel_lab::{Cluster, Engine, Proxy, Server};

const CLIENTS: usize = 16;
/// Of each kind, of each client.
const KEYS_EACH: usize = 6;
/// They are not written to; they take the time in which the front is killed.
const STABLE_KEYS: usize = 15_000;
/// All clients are at about the same few of them at a time, and go on to others that nobody has touched
/// before.
const COUNTERS: usize = 3_000;
const QUEUES: usize = 4;
const KILLS: usize = 3;
const TURNS: usize = 6;

// ---- Source and target ----

enum Deployed {
    Server(Server),
    Cluster(Cluster),
}

impl Deployed {
    fn server(engine: Engine) -> Deployed {
        Deployed::Server(Server::builder(engine).start().expect("a server"))
    }

    fn cluster(engine: Engine) -> Deployed {
        Deployed::Cluster(Cluster::builder(engine).primaries(3).start().expect("a cluster"))
    }

    fn address(&self) -> String {
        match self {
            Deployed::Server(server) => server.addr(),
            Deployed::Cluster(cluster) => cluster.seed(),
        }
    }

    fn servers(&self) -> &[Server] {
        match self {
            Deployed::Server(server) => std::slice::from_ref(server),
            Deployed::Cluster(cluster) => cluster.nodes(),
        }
    }

    fn keys(&self) -> i64 {
        self.servers().iter().map(|server| number(server, &["DBSIZE"])).sum()
    }

    fn names(&self) -> Vec<String> {
        let of_one = |server: &Server| {
            let Value::Array(names) = server.call(&["KEYS", "*"]) else { panic!("no names") };
            names.into_iter().map(|name| Kind::Text.shown(name)).collect::<Vec<_>>()
        };
        self.servers().iter().flat_map(of_one).collect()
    }

    /// Which of the servers has a key.
    fn owner_of(&self, key: &str) -> usize {
        match self {
            Deployed::Server(_) => 0,
            Deployed::Cluster(cluster) => cluster.owner_of(slot_of(key.as_bytes())).expect("an owner"),
        }
    }

    /// What the commands are answered with, each about one key.
    fn ask_all(&self, commands: &[Vec<String>]) -> Vec<Value> {
        let mut of_each: Vec<Vec<usize>> = vec![Vec::new(); self.servers().len()];
        let mut owners: BTreeMap<u16, usize> = BTreeMap::new();
        for (at, command) in commands.iter().enumerate() {
            let slot = slot_of(command[1].as_bytes());
            let owner = *owners.entry(slot).or_insert_with(|| self.owner_of(&command[1]));
            of_each[owner].push(at);
        }
        let mut replies = vec![Value::Nil; commands.len()];
        for (server, at) in self.servers().iter().zip(of_each) {
            let mut connection = server.connection();
            for part in at.chunks(5_000) {
                let mut pipe = redis::pipe();
                for at in part {
                    let mut words = commands[*at].iter();
                    let command = pipe.cmd(words.next().expect("a name"));
                    for word in words {
                        command.arg(word);
                    }
                }
                let found: Vec<Value> = pipe.query(&mut connection).expect("replies");
                for (at, found) in part.iter().zip(found) {
                    replies[*at] = found;
                }
            }
        }
        replies
    }
}

// ---- The front ----

struct Front<'a> {
    process: fronts::Front,
    source: &'a Deployed,
    target: &'a Deployed,
}

impl<'a> Front<'a> {
    #[track_caller]
    fn between(source: &'a Deployed, target: &'a Deployed) -> Front<'a> {
        Front::at(source, target, &source.address(), &target.address())
    }

    /// Between these servers, which it reaches at these addresses.
    #[track_caller]
    fn at(source: &'a Deployed, target: &'a Deployed, source_url: &str, target_url: &str) -> Front<'a> {
        // Until keys move; with clusters it is refused.
        let is_shared = matches!(source, Deployed::Server(_));
        let sharing: &[&str] = if is_shared { &["--share-connections", "2"] } else { &[] };
        Front { process: fronts::Front::between(source_url, target_url, sharing), source, target }
    }

    #[track_caller]
    fn wait_until_done(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.process.status()["phase"] != "done" {
            assert!(Instant::now() < deadline, "not done: {}", self.process.status());
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(self.ends(&self.process.status()).0.keys(), 0, "keys are left where they were");
    }

    /// Where keys move from by this status, and where they move to.
    fn ends(&self, status: &Json) -> (&'a Deployed, &'a Deployed) {
        match status["direction"].as_str() {
            Some("to-target") => (self.source, self.target),
            Some("to-source") => (self.target, self.source),
            other => panic!("no direction: {other:?}"),
        }
    }

    /// The direction is turned, and the front dies in the middle of it, before or after it is written down.
    fn turn_and_kill(&mut self, random: &mut Random) {
        let folder = self.process.state_dir().to_owned();
        let mut asking = Invocation::new(&["front", "reverse", "--state-dir", &folder, "--json"]).spawn();
        std::thread::sleep(Duration::from_millis(random.below(300) as u64));
        self.process.kill_and_run_again();
        asking.wait(PATIENCE).expect("nobody is there to wait for");
    }

    fn client(&self) -> Client {
        Client { port: self.process.port(), connection: None }
    }
}

fn number(server: &Server, words: &[&str]) -> i64 {
    match server.call(words) {
        Value::Int(n) => n,
        other => panic!("{other:?}"),
    }
}

// ---- A client ----

/// Nobody knows whether the command was carried out.
#[derive(Debug)]
struct Maybe;

struct Client {
    port: u16,
    connection: Option<Connection>,
}

impl Client {
    /// Where the front is gone, waits until another one is there.
    fn connection(&mut self) -> &mut Connection {
        let deadline = Instant::now() + PATIENCE;
        while self.connection.is_none() {
            assert!(Instant::now() < deadline, "no front for {PATIENCE:?}");
            let client =
                redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).expect("an address");
            match client.get_connection_with_timeout(Duration::from_secs(5)) {
                Ok(connection) => {
                    connection.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
                    self.connection = Some(connection);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        self.connection.as_mut().expect("it is there")
    }

    fn call(&mut self, words: &[String]) -> Result<Value, Maybe> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let reply = command.query::<Value>(self.connection());
        self.judge(words, reply)
    }

    /// As one transaction.
    fn transact(&mut self, commands: &[Vec<String>], watch: Option<&str>) -> Result<(), Maybe> {
        if let Some(key) = watch {
            self.call(&words(&format!("WATCH {key}")))?;
        }
        self.call(&words("MULTI"))?;
        for command in commands {
            let queued = self.call(command)?;
            assert_eq!(queued, Value::SimpleString("QUEUED".to_owned()), "{command:?}");
        }
        match self.call(&words("EXEC"))? {
            Value::Array(replies) => assert_eq!(replies.len(), commands.len()),
            other => panic!("a transaction was not carried out although nobody else wrote: {other:?}"),
        }
        Ok(())
    }

    #[track_caller]
    fn judge(&mut self, words: &[String], reply: redis::RedisResult<Value>) -> Result<Value, Maybe> {
        match reply {
            Ok(value) => Ok(value),
            Err(error) => {
                let text = error.to_string();
                let is_gone = error.is_io_error() || error.is_connection_dropped() || error.is_timeout();
                let is_front = text.contains("whimbrel front") && !text.contains("refuses");
                assert!(is_gone || is_front, "{words:?}: {text}");
                self.connection = None;
                Err(Maybe)
            }
        }
    }

    /// A read, as often as it takes.
    fn read(&mut self, kind: Kind, key: &str) -> String {
        loop {
            if let Ok(value) = self.call(&kind.read(key)) {
                return kind.shown(value);
            }
        }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

// ---- Keys that one client writes and all read ----

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    List,
    Hash,
    Set,
    Sorted,
    Stream,
}

const KINDS: [Kind; 6] = [Kind::Text, Kind::List, Kind::Hash, Kind::Set, Kind::Sorted, Kind::Stream];

impl Kind {
    fn read(self, key: &str) -> Vec<String> {
        words(&match self {
            Kind::Text => format!("GET {key}"),
            Kind::List => format!("LRANGE {key} 0 -1"),
            Kind::Hash => format!("HGETALL {key}"),
            Kind::Set => format!("SMEMBERS {key}"),
            Kind::Sorted => format!("ZRANGE {key} 0 -1 WITHSCORES"),
            Kind::Stream => format!("XRANGE {key} - +"),
        })
    }

    /// A reply to [`Kind::read`], as [`State::shown`] writes it.
    fn shown(self, value: Value) -> String {
        fn flat(value: &Value, into: &mut Vec<String>) {
            match value {
                Value::Nil => {}
                Value::BulkString(bytes) => into.push(String::from_utf8_lossy(bytes).into_owned()),
                Value::Array(items) | Value::Set(items) => items.iter().for_each(|item| flat(item, into)),
                Value::Map(pairs) => pairs.iter().for_each(|(k, v)| {
                    flat(k, into);
                    flat(v, into);
                }),
                other => panic!("{other:?}"),
            }
        }
        let mut items = Vec::new();
        flat(&value, &mut items);
        match self {
            Kind::Text | Kind::List | Kind::Stream => items.join(","),
            Kind::Set => items.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(","),
            Kind::Hash | Kind::Sorted => {
                let pairs: BTreeMap<&String, &String> =
                    items.chunks(2).map(|pair| (&pair[0], &pair[1])).collect();
                pairs.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// What a key should be: the items of a list, a set or a stream, the pairs of a hash or sorted set. Empty: it
/// is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    items: Vec<String>,
    pairs: BTreeMap<String, String>,
}

impl State {
    fn shown(&self) -> String {
        let pairs = self.pairs.iter().map(|(k, v)| format!("{k}={v}"));
        self.items.iter().cloned().chain(pairs).collect::<Vec<_>>().join(",")
    }
}

/// A key, and all that it has been or may have been.
struct Key {
    name: String,
    kind: Kind,
    /// What it was after each write, in their order. The last may not have been carried out yet.
    log: Mutex<Vec<String>>,
    /// It is known to have been at least so far in the log.
    floor: AtomicUsize,
}

impl Key {
    fn log(&self) -> MutexGuard<'_, Vec<String>> {
        self.log.lock()
    }

    fn floor(&self) -> usize {
        self.floor.load(Ordering::SeqCst)
    }

    /// A read that began when the floor was `from` found this.
    #[track_caller]
    fn saw(&self, from: usize, found: &str) {
        let log = self.log();
        let at = (from..log.len()).find(|at| log[*at] == found);
        let Some(at) = at else {
            let known: Vec<&String> = log[from..].iter().collect();
            let before = log[..from].iter().rposition(|state| state == found);
            panic!(
                "{}: found {found:?}, which was state {before:?}, but since {from} it was {known:?}",
                self.name
            );
        };
        self.floor.fetch_max(at, Ordering::SeqCst);
    }

    /// A write begins, after which it will be this. Returns where that is in the log.
    fn begin(&self, state: &State) -> usize {
        let mut log = self.log();
        log.push(state.shown());
        log.len() - 1
    }

    fn reach(&self, at: usize) {
        self.floor.fetch_max(at, Ordering::SeqCst);
    }
}

// ---- What all clients know ----

struct World {
    /// Source or target is a cluster.
    is_clustered: bool,
    /// Nothing moves keys but the front.
    is_at_rest: bool,
    /// Of each client, by kind.
    keys: Vec<Vec<Key>>,
    counters: Vec<Counter>,
    queues: Vec<Queue>,
    stop: AtomicBool,
    operations: AtomicUsize,
}

/// Incremented by all.
#[derive(Default)]
struct Counter {
    /// The highest value that somebody was told, or read.
    floor: AtomicI64,
    told: Mutex<HashSet<i64>>,
    maybe: AtomicI64,
}

/// Filled and emptied by all.
#[derive(Default)]
struct Queue {
    pushed: Mutex<HashSet<String>>,
    maybe_pushed: Mutex<HashSet<String>>,
    popped: Mutex<HashSet<String>>,
    maybe_popped: AtomicUsize,
}

/// What a client does next, and what the keys it writes will be.
struct Write {
    commands: Vec<Vec<String>>,
    /// Which of its keys, and what they become.
    becomes: Vec<(usize, State)>,
    watch: bool,
    expires: bool,
}

struct Worker<'a> {
    world: &'a World,
    id: usize,
    client: Client,
    random: Random,
    states: Vec<State>,
    /// Never the same twice.
    n: usize,
}

impl Worker<'_> {
    fn run(mut self) {
        while !self.world.stop.load(Ordering::SeqCst) {
            match self.random.below(100) {
                0..30 => self.write(),
                30..50 => self.read(),
                50..80 => self.count(),
                80..86 => self.push(),
                86..91 => self.pop(),
                91..95 => self.read_several(),
                95..98 => self.look_for_stable_keys(),
                _ => self.scan(),
            }
            self.world.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn keys(&self) -> &[Key] {
        &self.world.keys[self.id]
    }

    fn write(&mut self) {
        let write = self.next_write();
        let places: Vec<usize> =
            write.becomes.iter().map(|(key, state)| self.keys()[*key].begin(state)).collect();
        let gone: Option<usize> =
            write.expires.then(|| self.keys()[write.becomes[0].0].begin(&State::default()));
        let watched = write.watch.then(|| self.keys()[write.becomes[0].0].name.clone());
        let done = if write.commands.len() > 1 || write.watch {
            self.client.transact(&write.commands, watched.as_deref())
        } else {
            self.client.call(&write.commands[0]).map(|_| ())
        };
        match (done, gone) {
            (Ok(()), None) => {
                for ((key, state), place) in write.becomes.into_iter().zip(places) {
                    self.keys()[key].reach(place);
                    self.states[key] = state;
                }
            }
            (outcome, Some(gone)) => {
                // If it was written it cannot be there after its time; if it was not, it is what it was.
                let key = write.becomes[0].0;
                if outcome.is_ok() {
                    self.keys()[key].reach(places[0]);
                }
                // Twice its time to live.
                std::thread::sleep(Duration::from_millis(200));
                match outcome {
                    Ok(()) => {
                        self.states[key] = State::default();
                        self.keys()[key].reach(gone);
                    }
                    Err(Maybe) => self.find_out(&[(key, State::default())], &[gone]),
                }
            }
            (Err(Maybe), None) => self.find_out(&write.becomes, &places),
        }
    }

    /// Nobody knows whether a write was carried out: looks. It was as a whole, or not at all.
    fn find_out(&mut self, becomes: &[(usize, State)], places: &[usize]) {
        let mut carried_out = None;
        // What a server has received on a connection that broke it may still carry out.
        std::thread::sleep(Duration::from_millis(50));
        for ((key, state), place) in becomes.iter().zip(places) {
            let (name, kind) = (self.keys()[*key].name.clone(), self.keys()[*key].kind);
            let from = self.keys()[*key].floor();
            let found = self.client.read(kind, &name);
            self.keys()[*key].saw(from, &found);
            let is_new = found == state.shown();
            let is_old = found == self.states[*key].shown();
            assert!(is_new || is_old, "{name}: {found:?} is neither {:?} nor {state:?}", self.states[*key]);
            if is_new != is_old {
                assert_ne!(carried_out, Some(!is_new), "{name}: half of a transaction was carried out");
                carried_out = Some(is_new);
            }
            let now = if is_new { state.clone() } else { self.states[*key].clone() };
            // Known from here on, with a place of its own.
            let at = self.keys()[*key].begin(&now);
            assert!(at > *place);
            self.keys()[*key].reach(at);
            self.states[*key] = now;
        }
    }

    fn next_write(&mut self) -> Write {
        let key = self.random.below(KINDS.len() * KEYS_EACH);
        let (kind, name) = (self.keys()[key].kind, self.keys()[key].name.clone());
        self.n += 1;
        let (n, id) = (self.n, self.id);
        let one = |commands: Vec<String>, state: State| Write {
            commands: vec![commands],
            becomes: vec![(key, state)],
            watch: false,
            expires: false,
        };
        match self.random.below(20) {
            0 => return one(words(&format!("DEL {name}")), State::default()),
            1 => return one(words(&format!("UNLINK {name}")), State::default()),
            2 | 3 => return self.next_of_two(key),
            4 if kind == Kind::Text => {
                let state = State { items: vec![format!("e{id}.{n}")], ..State::default() };
                let command = words(&format!("SET {name} e{id}.{n} PX 100"));
                return Write { expires: true, ..one(command, state) };
            }
            5 => {
                // Several commands, of which the last tells.
                let (first, between) = self.step(key, &self.states[key].clone());
                self.n += 1;
                let (second, state) = self.step(key, &between);
                let watch = n % 2 == 0;
                return Write {
                    commands: vec![first, second],
                    becomes: vec![(key, state)],
                    watch,
                    expires: false,
                };
            }
            _ => {}
        }
        let (command, state) = self.step(key, &self.states[key].clone());
        one(command, state)
    }

    /// Something that changes two keys of one kind at once.
    fn next_of_two(&mut self, key: usize) -> Write {
        let other = key / KEYS_EACH * KEYS_EACH + self.random.below(KEYS_EACH);
        let (name, to) = (self.keys()[key].name.clone(), self.keys()[other].name.clone());
        let (old, kind) = (self.states[key].clone(), self.keys()[key].kind);
        if key == other || old == State::default() {
            let (command, state) = self.step(key, &old);
            return Write {
                commands: vec![command],
                becomes: vec![(key, state)],
                watch: false,
                expires: false,
            };
        }
        let (commands, becomes) = match self.random.below(4) {
            0 => (vec![words(&format!("RENAME {name} {to}"))], vec![(key, State::default()), (other, old)]),
            1 => (vec![words(&format!("COPY {name} {to} REPLACE"))], vec![(other, old)]),
            2 if kind == Kind::Text => {
                let values = [format!("m{}.{}", self.id, self.n), format!("n{}.{}", self.id, self.n)];
                let command = words(&format!("MSET {name} {} {to} {}", values[0], values[1]));
                let [a, b] = values.map(|value| State { items: vec![value], ..State::default() });
                (vec![command], vec![(key, a), (other, b)])
            }
            _ => {
                let (first, a) = self.step(key, &old);
                self.n += 1;
                let (second, b) = self.step(other, &self.states[other].clone());
                (vec![first, second], vec![(key, a), (other, b)])
            }
        };
        Write { commands, becomes, watch: false, expires: false }
    }

    /// A command that changes one key of a known state, and the state after it.
    fn step(&mut self, key: usize, before: &State) -> (Vec<String>, State) {
        let (kind, name) = (self.keys()[key].kind, self.keys()[key].name.clone());
        let mut state = before.clone();
        let value = format!("v{}.{}", self.id, self.n);
        let field = format!("f{}", self.random.below(5));
        let shrink = self.random.below(3) == 0;
        let command = match kind {
            Kind::Text if state.items.len() == 1 && state.items[0].len() < 60 && shrink => {
                state.items[0].push_str(&value);
                format!("APPEND {name} {value}")
            }
            Kind::Text => {
                state.items = vec![value.clone()];
                format!("SET {name} {value}")
            }
            Kind::List if state.items.len() > 8 || shrink && !state.items.is_empty() => {
                state.items.remove(0);
                format!("LPOP {name}")
            }
            Kind::List => {
                state.items.push(value.clone());
                format!("RPUSH {name} {value}")
            }
            Kind::Hash if shrink && state.pairs.contains_key(&field) => {
                state.pairs.remove(&field);
                format!("HDEL {name} {field}")
            }
            Kind::Hash => {
                state.pairs.insert(field.clone(), value.clone());
                format!("HSET {name} {field} {value}")
            }
            Kind::Set if state.items.len() > 8 || shrink && !state.items.is_empty() => {
                let gone = state.items.remove(0);
                format!("SREM {name} {gone}")
            }
            Kind::Set => {
                state.items.push(value.clone());
                state.items.sort();
                format!("SADD {name} {value}")
            }
            Kind::Sorted if shrink && state.pairs.contains_key(&field) => {
                state.pairs.remove(&field);
                format!("ZREM {name} {field}")
            }
            Kind::Sorted => {
                let score = state.pairs.get(&field).and_then(|score| score.parse().ok()).unwrap_or(0_i64) + 1;
                state.pairs.insert(field.clone(), score.to_string());
                format!("ZINCRBY {name} 1 {field}")
            }
            Kind::Stream if state.items.len() > 16 => {
                let gone: Vec<String> = state.items.drain(..3).collect();
                format!("XDEL {name} {}", gone[0])
            }
            Kind::Stream => {
                let entry = format!("{}-1", self.n);
                state.items.extend([entry.clone(), "f".to_owned(), value.clone()]);
                format!("XADD {name} {entry} f {value}")
            }
        };
        (words(&command), state)
    }

    fn read(&mut self) {
        let owner = self.random.below(CLIENTS);
        let key = &self.world.keys[owner][self.random.below(KINDS.len() * KEYS_EACH)];
        let from = key.floor();
        let Ok(value) = self.client.call(&key.kind.read(&key.name)) else { return };
        key.saw(from, &key.kind.shown(value));
    }

    fn read_several(&mut self) {
        let owner = self.random.below(CLIENTS);
        let keys = &self.world.keys[owner][..KEYS_EACH];
        let from: Vec<usize> = keys.iter().map(Key::floor).collect();
        let names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        let Ok(value) = self.client.call(&words(&format!("MGET {}", names.join(" ")))) else { return };
        let Value::Array(values) = value else { panic!("{value:?}") };
        for ((key, from), value) in keys.iter().zip(from).zip(values) {
            key.saw(from, &Kind::Text.shown(value));
        }
    }

    fn count(&mut self) {
        let front_line = self.world.operations.load(Ordering::Relaxed) / 32;
        let i = (front_line + self.random.below(3)) % COUNTERS;
        let counter = &self.world.counters[i];
        let from = counter.floor.load(Ordering::SeqCst);
        let line =
            if self.random.below(2) == 0 { format!("INCR counter:{i}") } else { format!("GET counter:{i}") };
        let is_write = line.starts_with("INCR");
        let found = match self.client.call(&words(&line)) {
            Ok(Value::Int(n)) => n,
            Ok(Value::BulkString(text)) => String::from_utf8_lossy(&text).parse().expect("a number"),
            Ok(other) => panic!("{line}: {other:?}"),
            Err(Maybe) if is_write => {
                counter.maybe.fetch_add(1, Ordering::SeqCst);
                return;
            }
            Err(Maybe) => return,
        };
        assert!(found >= from + i64::from(is_write), "{line}: {found} after {from}");
        if is_write {
            assert!(counter.told.lock().insert(found), "{line}: {found} was told twice");
        }
        counter.floor.fetch_max(found, Ordering::SeqCst);
    }

    fn push(&mut self) {
        let i = self.random.below(QUEUES);
        self.n += 1;
        let element = format!("q{}.{}", self.id, self.n);
        let queue = &self.world.queues[i];
        // Before it can be popped.
        queue.maybe_pushed.lock().insert(element.clone());
        if self.client.call(&words(&format!("RPUSH queue:{i} {element}"))).is_ok() {
            queue.pushed.lock().insert(element);
        }
    }

    fn pop(&mut self) {
        let i = self.random.below(QUEUES);
        let queue = &self.world.queues[i];
        match self.client.call(&words(&format!("BLPOP queue:{i} 0.05"))) {
            Ok(Value::Nil) => {}
            Ok(Value::Array(found)) => {
                let element = Kind::Text.shown(found[1].clone());
                assert!(queue.maybe_pushed.lock().contains(&element), "{element} was not pushed");
                assert!(queue.popped.lock().insert(element.clone()), "{element} popped twice");
            }
            Ok(other) => panic!("{other:?}"),
            Err(Maybe) => {
                queue.maybe_popped.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn look_for_stable_keys(&mut self) {
        // In a cluster each is in a slot of its own.
        let count = if self.world.is_clustered { 1 } else { 5 };
        let names: Vec<String> =
            (0..count).map(|_| format!("stable:{}", self.random.below(STABLE_KEYS))).collect();
        if let Ok(found) = self.client.call(&words(&format!("EXISTS {}", names.join(" ")))) {
            assert_eq!(found, Value::Int(count), "{names:?}");
        }
    }

    /// A whole iteration gives all keys that are there all the time.
    fn scan(&mut self) {
        let pattern = format!("stable:*{}", self.random.below(100));
        let mut cursor = "0".to_owned();
        let mut found = HashSet::new();
        loop {
            let line = format!("SCAN {cursor} MATCH {pattern} COUNT 2000");
            let Ok(value) = self.client.call(&words(&line)) else { return };
            let Value::Array(parts) = value else { panic!("{value:?}") };
            cursor = Kind::Text.shown(parts[0].clone());
            let Value::Array(keys) = &parts[1] else { panic!("{parts:?}") };
            found.extend(keys.iter().map(|key| Kind::Text.shown(key.clone())));
            if cursor == "0" || self.world.stop.load(Ordering::SeqCst) {
                break;
            }
        }
        // While slots move, a cluster itself may leave out keys, or give none of a node for a moment.
        if cursor == "0" && self.world.is_at_rest {
            let ending = &pattern["stable:*".len()..];
            let expected =
                (0..STABLE_KEYS).filter(|i| i.to_string().ends_with(ending)).map(|i| format!("stable:{i}"));
            for key in expected {
                assert!(found.contains(&key), "SCAN {pattern} did not give {key}");
            }
        }
    }
}

// ---- The run ----

fn world(is_clustered: bool, is_at_rest: bool) -> World {
    let keys = |id: usize| {
        let of_kind = |kind: Kind| (0..KEYS_EACH).map(move |i| (kind, i));
        let key = |(kind, i): (Kind, usize)| Key {
            // All of one client are in one slot.
            name: format!("{kind:?}:{{{id}}}:{i}"),
            kind,
            log: Mutex::new(vec![String::new()]),
            floor: AtomicUsize::new(0),
        };
        KINDS.into_iter().flat_map(of_kind).map(key).collect()
    };
    World {
        is_clustered,
        is_at_rest,
        keys: (0..CLIENTS).map(keys).collect(),
        counters: (0..COUNTERS).map(|_| Counter::default()).collect(),
        queues: (0..QUEUES).map(|_| Queue::default()).collect(),
        stop: AtomicBool::new(false),
        operations: AtomicUsize::new(0),
    }
}

fn fill(source: &Deployed) {
    let stable = (0..STABLE_KEYS).map(|i| format!("SET stable:{i} {}", i.to_string().repeat(10)));
    let counters = (0..COUNTERS).map(|i| format!("SET counter:{i} 0"));
    source.ask_all(&stable.chain(counters).map(|line| words(&line)).collect::<Vec<_>>());
}

/// What happens while keys move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// The front is killed and run again.
    Kill,
    /// Its connections to one of the servers break, and for a moment there are no new ones.
    Cut,
    /// Slots move between nodes of the clusters, and it is killed as well.
    Slots,
    /// Keys move back, and to and fro, and the front is killed in the middle of that.
    Turn,
}

/// Has keys move to and fro; at last all have moved, and turn once more.
fn turn_to_and_fro(front: &mut Front<'_>, random: &mut Random) {
    for i in 0..TURNS {
        std::thread::sleep(Duration::from_millis(50 + random.below(600) as u64));
        let before = front.process.status();
        if i % 3 == 1 {
            front.turn_and_kill(random);
        } else {
            front.process.tell("reverse").expect_code(0);
            if i % 3 == 2 {
                front.process.kill_and_run_again();
            }
            assert_eq!(
                front.process.status()["turns"].as_u64(),
                before["turns"].as_u64().map(|turns| turns + 1)
            );
        }
        println!("{} {}, then {}", before["turns"], before["phase"], front.process.status()["turns"]);
    }
    front.wait_until_done();
    front.process.tell("reverse").expect_code(0);
}

/// Standalone servers of a pair of versions that `seed` chooses.
fn servers(seed: u64) -> (Deployed, Deployed) {
    let pairs = [
        (Engine::Redis70, Engine::Valkey91),
        (Engine::Redis70, Engine::Redis80),
        (Engine::Valkey81, Engine::Valkey91),
        (Engine::Redis70, Engine::Redis70),
    ];
    let (from, to) = pairs[seed as usize / 1_000 % pairs.len()];
    println!("seed {seed}, {from:?} to {to:?}");
    (Deployed::server(from), Deployed::server(to))
}

/// Has a slot of a cluster change its owner, with one of the keys that clients write.
fn move_a_slot(deployed: &Deployed, random: &mut Random) {
    let Deployed::Cluster(cluster) = deployed else { return };
    let slot = slot_of(random.below(CLIENTS).to_string().as_bytes());
    let from = cluster.owner_of(slot).expect("an owner");
    cluster.move_slot(slot, from, (from + 1) % 3).expect("it moves");
}

fn seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_nanos() as u64
}

fn a_move_with(trouble: Trouble, seed: u64, source: &Deployed, target: &Deployed) {
    fill(source);
    let links = [source, target].map(|side| Proxy::start(&side.address()).expect("a proxy"));
    let mut front = match trouble {
        Trouble::Kill | Trouble::Slots | Trouble::Turn => Front::between(source, target),
        Trouble::Cut => Front::at(source, target, &links[0].addr(), &links[1].addr()),
    };
    let mut random = Random(seed);
    let is_clustered = [source, target].iter().any(|side| matches!(side, Deployed::Cluster(_)));
    let world = world(is_clustered, trouble != Trouble::Slots);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|id| {
                let worker = Worker {
                    world: &world,
                    id,
                    client: front.client(),
                    random: Random(seed ^ (id as u64) << 32),
                    states: vec![State::default(); KINDS.len() * KEYS_EACH],
                    n: 0,
                };
                let stop = &world.stop;
                scope.spawn(move || {
                    // One that fails ends the others too.
                    struct Stop<'a>(&'a AtomicBool);
                    impl Drop for Stop<'_> {
                        fn drop(&mut self) {
                            if std::thread::panicking() {
                                self.0.store(true, Ordering::SeqCst);
                            }
                        }
                    }
                    let _stop = Stop(stop);
                    worker.run();
                })
            })
            .collect();
        // For a while only the source is there, so that some of the keys are.
        std::thread::sleep(Duration::from_millis(500));
        front.process.tell("start").expect_code(0);
        let kills = if trouble == Trouble::Turn { 0 } else { KILLS };
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(50 + random.below(600) as u64));
            println!("{trouble:?} while {}", front.process.status()["phase"]);
            if trouble == Trouble::Slots {
                std::thread::scope(|both| {
                    let mut own = Random(random.0 ^ 1);
                    both.spawn(move || move_a_slot(source, &mut own));
                    move_a_slot(target, &mut random);
                });
            }
            if trouble != Trouble::Cut {
                front.process.kill_and_run_again();
                continue;
            }
            for link in links.iter().rev() {
                link.cut();
                std::thread::sleep(Duration::from_millis(100 + random.below(200) as u64));
                link.heal().expect("the port is still free");
            }
        }
        if trouble == Trouble::Turn {
            turn_to_and_fro(&mut front, &mut random);
        }
        front.wait_until_done();
        std::thread::sleep(Duration::from_millis(200));
        world.stop.store(true, Ordering::SeqCst);
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let (_, serving) = front.ends(&front.process.status());
    check_what_is_left(&world, serving);
    println!("{} operations, {:?}", world.operations.load(Ordering::Relaxed), front.process.status());
    front.process.tell("finish").expect_code(0);
    front.process.running.wait(PATIENCE).expect("it ends").expect_code(0);
}

/// Everything that was written is there, once, and nothing else.
fn check_what_is_left(world: &World, serving: &Deployed) {
    // What expires on its own does by itself.
    std::thread::sleep(Duration::from_millis(200));
    let ask = |line: String| serving.ask_all(&[words(&line)]).remove(0);
    let mut keys = (STABLE_KEYS + COUNTERS) as i64;
    let mut expected: HashSet<String> = (0..STABLE_KEYS).map(|i| format!("stable:{i}")).collect();
    expected.extend((0..COUNTERS).map(|i| format!("counter:{i}")));
    for key in world.keys.iter().flatten() {
        let found = key.kind.shown(ask(key.kind.read(&key.name).join(" ")));
        key.saw(key.floor(), &found);
        keys += i64::from(!found.is_empty());
        if !found.is_empty() {
            expected.insert(key.name.clone());
        }
    }
    let counters: Vec<_> = (0..COUNTERS).map(|i| words(&format!("GET counter:{i}"))).collect();
    for (i, (counter, found)) in world.counters.iter().zip(serving.ask_all(&counters)).enumerate() {
        let found: i64 = Kind::Text.shown(found).parse().expect("a number");
        let told = counter.told.lock().len() as i64;
        let maybe = counter.maybe.load(Ordering::SeqCst);
        assert!(
            (told..=told + maybe).contains(&found),
            "counter {i}: {found}, but {told} told and {maybe} maybe"
        );
    }
    for (i, queue) in world.queues.iter().enumerate() {
        let name = format!("queue:{i}");
        let left = Kind::List.shown(ask(format!("LRANGE {name} 0 -1")));
        let left: Vec<String> = left.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect();
        keys += i64::from(!left.is_empty());
        if !left.is_empty() {
            expected.insert(name.clone());
        }
        let (pushed, maybe) = (queue.pushed.lock(), queue.maybe_pushed.lock());
        let mut seen = queue.popped.lock().clone();
        for element in left {
            assert!(maybe.contains(&element), "{name}: {element} was not pushed");
            assert!(
                seen.insert(element.clone()),
                "{name}: {element} is there although it was popped, or twice"
            );
        }
        let lost = pushed.iter().filter(|element| !seen.contains(*element)).count();
        let maybe_popped = queue.maybe_popped.load(Ordering::SeqCst);
        assert!(lost <= maybe_popped, "{name}: {lost} elements are lost, {maybe_popped} pops are unknown");
    }
    let mut names: Vec<String> =
        serving.names().into_iter().filter(|name| !expected.contains(name)).collect();
    names.sort();
    assert!(names.is_empty(), "keys have come back, or are nobody's: {names:?}");
    assert_eq!(serving.keys(), keys, "keys are missing");
    let stable: Vec<_> = (0..STABLE_KEYS).map(|i| words(&format!("GET stable:{i}"))).collect();
    for (i, found) in serving.ask_all(&stable).into_iter().enumerate() {
        assert_eq!(Kind::Text.shown(found), i.to_string().repeat(10), "stable:{i}");
    }
}

#[test]
fn every_answer_is_right_while_keys_move_and_the_front_is_killed() {
    let seed = seed();
    let (source, target) = servers(seed);
    a_move_with(Trouble::Kill, seed, &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_move_and_connections_break() {
    let seed = seed();
    let (source, target) = servers(seed);
    a_move_with(Trouble::Cut, seed, &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_move_to_a_cluster() {
    let (source, target) = (Deployed::server(Engine::Redis70), Deployed::cluster(Engine::Valkey91));
    a_move_with(Trouble::Kill, seed(), &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_move_between_clusters() {
    let (source, target) = (Deployed::cluster(Engine::Redis70), Deployed::cluster(Engine::Redis80));
    a_move_with(Trouble::Kill, seed(), &source, &target);
}

#[test]
fn every_answer_is_right_while_slots_of_the_clusters_move_too() {
    let (source, target) = (Deployed::cluster(Engine::Redis70), Deployed::cluster(Engine::Redis70));
    a_move_with(Trouble::Slots, seed(), &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_turn_round_and_the_front_is_killed() {
    let seed = seed();
    let (source, target) = servers(seed);
    a_move_with(Trouble::Turn, seed, &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_turn_round_between_clusters() {
    let (source, target) = (Deployed::cluster(Engine::Redis70), Deployed::cluster(Engine::Valkey81));
    a_move_with(Trouble::Turn, seed(), &source, &target);
}

#[test]
fn commands_find_the_front_and_say_what_they_refuse() {
    let [source, target, other] = [Engine::Redis70, Engine::Valkey91, Engine::Redis70].map(Deployed::server);
    source.ask_all(&[words("SET k v")]);
    let nobody = tempfile::tempdir().expect("a folder");
    let folder = nobody.path().to_str().expect("a name");
    let refused = Invocation::new(&["front", "status", "--state-dir", folder]).run().expect_code(2);
    assert!(refused.stderr.contains("no front with a target runs"), "{}", refused.stderr);

    let mut front = Front::between(&source, &target);
    assert_eq!(front.process.status()["phase"], "forwarding");
    let told = front.process.tell("finish").expect_code(4);
    assert!(told.stdout.contains("no key has moved"), "{}", told.stdout);
    let told = front.process.tell("reverse").expect_code(4);
    assert!(told.stdout.contains("no keys have moved that could move back"), "{}", told.stdout);
    // A second one would know nothing of the locks of the first.
    let second = Invocation::new(&front.process.args).run().expect_code(2);
    assert!(second.stdout.contains("another whimbrel front runs"), "{}", second.stdout);
    front.process.tell("start").expect_code(0);
    front.wait_until_done();
    let told = front.process.tell("start").expect_code(4);
    assert!(told.stdout.contains("already"), "{}", told.stdout);
    let folder = front.process.state_dir().to_owned();
    let shown = Invocation::new(&["front", "status", "--state-dir", &folder]).run().expect_code(0);
    assert!(shown.stdout.starts_with("phase    done"), "{}", shown.stdout);
    // There and back.
    for (turns, note) in [("1", "turned round once"), ("2", "turned round 2 times")] {
        let told = front.process.tell("reverse").expect_code(0);
        assert!(told.stdout.contains(&format!("\"turns\":{turns}")), "{}", told.stdout);
        let shown = Invocation::new(&["front", "status", "--state-dir", &folder]).run().expect_code(0);
        let (from, to) = front.ends(&front.process.status());
        let back = if turns == "1" { "back " } else { "" };
        let line = format!("{} {back}to {} ({note})\n", from.address(), to.address());
        assert!(shown.stdout.contains(&line), "{line}: {}", shown.stdout);
        front.wait_until_done();
    }

    // What is on disk is believed by the next one, or refused.
    front.process.running.kill9();
    let usual = front.process.args.clone();
    let args = |source: &Deployed| {
        let mut args = usual.clone();
        let at = args.iter().position(|arg| arg == "--source").expect("it is there");
        args[at + 1] = source.address();
        args
    };
    let state = std::fs::read_dir(&folder)
        .expect("a folder")
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "state"))
        .expect("a state");
    let text = std::fs::read_to_string(&state).expect("text");
    // That of one pair of servers is not that of another.
    let plain = |server: &Deployed| server.address().replace(['.', ':'], "-");
    let misplaced = format!("between-{}-and-{}.state", plain(&other), plain(&target));
    std::fs::copy(&state, state.with_file_name(misplaced)).expect("a copy");
    let refused = Invocation::new(&args(&other)).run().expect_code(2);
    assert!(refused.stdout.contains("is about keys that move from"), "{}", refused.stdout);
    std::fs::write(&state, &text[..10]).expect("written");
    let refused = Invocation::new(&args(&source)).run().expect_code(1);
    assert!(refused.stdout.contains("it is damaged"), "{}", refused.stdout);
    std::fs::write(&state, text).expect("written");
    front.process.run_again();
    let told = front.process.tell("finish").expect_code(0);
    assert!(told.stdout.contains("\"exit\":0"), "{}", told.stdout);
    front.process.running.wait(PATIENCE).expect("it ends").expect_code(0);

    // One that is run again must not serve from the empty source.
    let refused = Invocation::new(&args(&source)).run().expect_code(4);
    let name = state.to_str().expect("a name");
    assert!(refused.stdout.contains("clients have been sent here"), "{}", refused.stdout);
    assert!(refused.stdout.contains(&format!("remove {name}")), "{}", refused.stdout);
}
