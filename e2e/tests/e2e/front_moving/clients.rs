//! Clients that know what each answer has to be.

use super::*;
use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use redis::{Connection, Value};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use whimbrel_e2e::fronts::PATIENCE;

/// Between two requests of a client: the front has processors left to move keys with.
const PAUSE: Duration = Duration::from_millis(10);

// ---- A client ----

/// Nobody knows whether the command was carried out.
#[derive(Debug)]
pub(super) struct Maybe;

pub(super) struct Client {
    pub(super) port: u16,
    pub(super) connection: Option<Connection>,
}

impl Client {
    /// Where the front is gone, waits until another one is there.
    pub(super) fn connection(&mut self) -> &mut Connection {
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

    pub(super) fn call(&mut self, words: &[String]) -> Result<Value, Maybe> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let reply = command.query::<Value>(self.connection());
        self.judge(words, reply)
    }

    /// As one transaction.
    pub(super) fn transact(&mut self, commands: &[Vec<String>], watch: Option<&str>) -> Result<(), Maybe> {
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
    pub(super) fn judge(
        &mut self,
        words: &[String],
        reply: redis::RedisResult<Value>,
    ) -> Result<Value, Maybe> {
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
    pub(super) fn read(&mut self, kind: Kind, key: &str) -> String {
        loop {
            if let Ok(value) = self.call(&kind.read(key)) {
                return kind.shown(value);
            }
        }
    }
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

// ---- Keys that one client writes and all read ----

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    List,
    Hash,
    Set,
    Sorted,
    Stream,
}

pub(super) const KINDS: [Kind; 6] =
    [Kind::Text, Kind::List, Kind::Hash, Kind::Set, Kind::Sorted, Kind::Stream];

impl Kind {
    pub(super) fn read(self, key: &str) -> Vec<String> {
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
    pub(super) fn shown(self, value: Value) -> String {
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
pub(super) struct State {
    pub(super) items: Vec<String>,
    pub(super) pairs: BTreeMap<String, String>,
}

impl State {
    pub(super) fn shown(&self) -> String {
        let pairs = self.pairs.iter().map(|(k, v)| format!("{k}={v}"));
        self.items.iter().cloned().chain(pairs).collect::<Vec<_>>().join(",")
    }
}

/// A key, and all that it has been or may have been.
pub(super) struct Key {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// What it was after each write, in their order. The last may not have been carried out yet.
    pub(super) log: Mutex<Vec<String>>,
    /// It is known to have been at least so far in the log.
    pub(super) floor: AtomicUsize,
}

impl Key {
    pub(super) fn log(&self) -> MutexGuard<'_, Vec<String>> {
        self.log.lock()
    }

    pub(super) fn floor(&self) -> usize {
        self.floor.load(Ordering::SeqCst)
    }

    /// A read that began when the floor was `from` found this.
    #[track_caller]
    pub(super) fn saw(&self, from: usize, found: &str) {
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
    pub(super) fn begin(&self, state: &State) -> usize {
        let mut log = self.log();
        log.push(state.shown());
        log.len() - 1
    }

    pub(super) fn reach(&self, at: usize) {
        self.floor.fetch_max(at, Ordering::SeqCst);
    }
}

// ---- What all clients know ----

pub(super) struct World {
    /// Source or target is a cluster.
    pub(super) is_clustered: bool,
    /// Nothing moves keys but the front.
    pub(super) is_at_rest: bool,
    /// Of each client, by kind.
    pub(super) keys: Vec<Vec<Key>>,
    pub(super) counters: Vec<Counter>,
    pub(super) queues: Vec<Queue>,
    pub(super) stop: AtomicBool,
    pub(super) operations: AtomicUsize,
}

/// Incremented by all.
#[derive(Default)]
pub(super) struct Counter {
    /// The highest value that an increment returned, or that was read.
    pub(super) floor: AtomicI64,
    pub(super) acknowledged: Mutex<HashSet<i64>>,
    pub(super) maybe: AtomicI64,
}

/// Filled and emptied by all.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) pushed: Mutex<HashSet<String>>,
    pub(super) maybe_pushed: Mutex<HashSet<String>>,
    pub(super) popped: Mutex<HashSet<String>>,
    pub(super) maybe_popped: AtomicUsize,
}

/// What a client does next, and what the keys it writes will be.
pub(super) struct Write {
    pub(super) commands: Vec<Vec<String>>,
    /// Which of its keys, and what they become.
    pub(super) becomes: Vec<(usize, State)>,
    pub(super) watch: bool,
    pub(super) expires: bool,
}

pub(super) struct Worker<'a> {
    pub(super) world: &'a World,
    pub(super) id: usize,
    pub(super) client: Client,
    pub(super) random: Rng,
    pub(super) states: Vec<State>,
    /// Never the same twice.
    pub(super) n: usize,
}

impl Worker<'_> {
    pub(super) fn run(mut self) {
        while !self.world.stop.load(Ordering::SeqCst) {
            match self.random.usize(..100) {
                0..30 => self.write(),
                30..50 => self.read(),
                50..80 => self.count(),
                80..86 => self.push(),
                86..91 => self.pop(),
                91..95 => self.read_several(),
                95..98 => self.check_stable_keys(),
                _ => self.scan(),
            }
            self.world.operations.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.world.keys[self.id]
    }

    pub(super) fn write(&mut self) {
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
    pub(super) fn find_out(&mut self, becomes: &[(usize, State)], places: &[usize]) {
        let mut carried_out = None;
        // What a server has received on a connection that broke it may still carry out: on a busy machine it
        // does so when its turn comes.
        std::thread::sleep(Duration::from_millis(500));
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

    pub(super) fn next_write(&mut self) -> Write {
        let key = self.random.usize(..KINDS.len() * KEYS_EACH);
        let (kind, name) = (self.keys()[key].kind, self.keys()[key].name.clone());
        self.n += 1;
        let (n, id) = (self.n, self.id);
        let one = |commands: Vec<String>, state: State| Write {
            commands: vec![commands],
            becomes: vec![(key, state)],
            watch: false,
            expires: false,
        };
        match self.random.usize(..20) {
            0 => return one(words(&format!("DEL {name}")), State::default()),
            1 => return one(words(&format!("UNLINK {name}")), State::default()),
            2 | 3 => return self.next_of_two(key),
            4 if kind == Kind::Text => {
                let state = State { items: vec![format!("e{id}.{n}")], ..State::default() };
                let command = words(&format!("SET {name} e{id}.{n} PX 100"));
                return Write { expires: true, ..one(command, state) };
            }
            5 => {
                // Several commands, of which the last decides.
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
    pub(super) fn next_of_two(&mut self, key: usize) -> Write {
        let other = key / KEYS_EACH * KEYS_EACH + self.random.usize(..KEYS_EACH);
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
        let (commands, becomes) = match self.random.usize(..4) {
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
    pub(super) fn step(&mut self, key: usize, before: &State) -> (Vec<String>, State) {
        let (kind, name) = (self.keys()[key].kind, self.keys()[key].name.clone());
        let mut state = before.clone();
        let value = format!("v{}.{}", self.id, self.n);
        let field = format!("f{}", self.random.usize(..5));
        let shrink = self.random.usize(..3) == 0;
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

    pub(super) fn read(&mut self) {
        let owner = self.random.usize(..CLIENTS);
        let key = &self.world.keys[owner][self.random.usize(..KINDS.len() * KEYS_EACH)];
        let from = key.floor();
        let Ok(value) = self.client.call(&key.kind.read(&key.name)) else { return };
        key.saw(from, &key.kind.shown(value));
    }

    pub(super) fn read_several(&mut self) {
        let owner = self.random.usize(..CLIENTS);
        let keys = &self.world.keys[owner][..KEYS_EACH];
        let from: Vec<usize> = keys.iter().map(Key::floor).collect();
        let names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        let Ok(value) = self.client.call(&words(&format!("MGET {}", names.join(" ")))) else { return };
        let Value::Array(values) = value else { panic!("{value:?}") };
        for ((key, from), value) in keys.iter().zip(from).zip(values) {
            key.saw(from, &Kind::Text.shown(value));
        }
    }

    pub(super) fn count(&mut self) {
        let front_line = self.world.operations.load(Ordering::Relaxed) / 32;
        let i = (front_line + self.random.usize(..3)) % COUNTERS;
        let counter = &self.world.counters[i];
        let from = counter.floor.load(Ordering::SeqCst);
        let line = if self.random.usize(..2) == 0 {
            format!("INCR counter:{i}")
        } else {
            format!("GET counter:{i}")
        };
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
            assert!(counter.acknowledged.lock().insert(found), "{line}: {found} was returned twice");
        }
        counter.floor.fetch_max(found, Ordering::SeqCst);
    }

    pub(super) fn push(&mut self) {
        let i = self.random.usize(..QUEUES);
        self.n += 1;
        let element = format!("q{}.{}", self.id, self.n);
        let queue = &self.world.queues[i];
        // Before it can be popped.
        queue.maybe_pushed.lock().insert(element.clone());
        if self.client.call(&words(&format!("RPUSH queue:{i} {element}"))).is_ok() {
            queue.pushed.lock().insert(element);
        }
    }

    pub(super) fn pop(&mut self) {
        let i = self.random.usize(..QUEUES);
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

    pub(super) fn check_stable_keys(&mut self) {
        // In a cluster each is in a slot of its own.
        let count = if self.world.is_clustered { 1 } else { 5 };
        let names: Vec<String> =
            (0..count).map(|_| format!("stable:{}", self.random.usize(..STABLE_KEYS))).collect();
        if let Ok(found) = self.client.call(&words(&format!("EXISTS {}", names.join(" ")))) {
            assert_eq!(found, Value::Int(count), "{names:?}");
        }
    }

    /// A whole iteration gives all keys that are there all the time.
    pub(super) fn scan(&mut self) {
        let pattern = format!("stable:*{}", self.random.usize(..100));
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
