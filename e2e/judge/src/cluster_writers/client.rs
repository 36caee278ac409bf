//! A cluster client that is as plain as can be: a table of slots, MOVED followed, everything else noted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redis::{Cmd, Connection, RedisError, Value};

use super::observed::{IncidentKind, Observed};
use crate::deployment::slot_of;

/// The introduction of a client counts into it, so a busy node needs a while.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than any pause of writes that a server may be left with, so that a stall is seen as a stall.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// As many as the most common clients follow.
const REDIRECTIONS_MAX: usize = 5;
/// A node that leaves redirects clients until none has asked for so long. One that comes later may find its
/// connection closed, as a pool of connections does.
const LEFT_AFTER: Duration = Duration::from_secs(2);
/// Letters of a command that are shown.
const SHOWN: usize = 100;

/// How a command ended.
#[derive(Debug)]
pub enum Outcome {
    /// The server has done it.
    Acknowledged(Value),
    /// Certainly not done: the server said no, or never got it.
    Refused,
    /// Sent, and no answer came.
    Unknown,
}

/// One client with connections of its own.
pub struct Client {
    /// All addresses ever heard of, to learn the slots from.
    addresses: Vec<String>,
    slots: Slots,
    /// With the time at which each was used last.
    connections: HashMap<String, (Connection, Instant)>,
    /// What it has seen so far.
    pub observed: Observed,
}

impl Client {
    /// Learns the slots from the first address (`HOST:PORT`) that answers.
    pub fn new(addresses: Vec<String>, observed: Observed) -> Self {
        let mut client = Self { addresses, slots: Slots::default(), connections: HashMap::new(), observed };
        client.refresh();
        client
    }

    /// Learns the slots from this address, unless it is there already.
    pub fn go_to(&mut self, address: &str) {
        if self.addresses.first().is_none_or(|first| first != address) {
            self.addresses = vec![address.to_owned()];
            self.slots = Slots::default();
            self.refresh();
        }
    }

    /// Sends one command to the owner of `key`, and never sends twice what may have been done.
    pub fn send(&mut self, key: &str, command: &Cmd) -> Outcome {
        let sent = Instant::now();
        let outcome = self.send_on(key, command);
        self.observed.command(sent, || words_of(command));
        outcome
    }

    fn send_on(&mut self, key: &str, command: &Cmd) -> Outcome {
        let slot = slot_of(key.as_bytes());
        let Some(mut address) = self.slots.owner(slot).or_else(|| self.addresses.first()).cloned() else {
            return Outcome::Refused;
        };
        let mut asking = false;
        for _ in 0..=REDIRECTIONS_MAX {
            let error = match self.send_to(&address, command, asking) {
                Ok(reply) => return Outcome::Acknowledged(reply),
                Err(Failure::NotSent(reason)) => {
                    self.note(IncidentKind::NotConnected, &address, command, &reason);
                    self.refresh();
                    return Outcome::Refused;
                }
                Err(Failure::NoAnswer(reason, idle)) => {
                    self.connections.remove(&address);
                    self.refresh();
                    let has_left = idle >= LEFT_AFTER && !self.slots.has(&address);
                    if !has_left {
                        let reason = format!("{reason} (idle for {} ms before)", idle.as_millis());
                        self.note(IncidentKind::Disconnected, &address, command, &reason);
                    }
                    return Outcome::Unknown;
                }
                Err(Failure::Answer(error)) => error,
            };
            let code = error.code().unwrap_or_default().to_owned();
            let next = error.redirect_node().map(|(next, _)| next.to_owned());
            match (code.as_str(), next) {
                ("MOVED", Some(next)) => {
                    self.observed.moved += 1;
                    self.slots.moved.insert(slot, next.clone());
                    (address, asking) = (next, false);
                }
                ("ASK", Some(next)) => {
                    self.note(IncidentKind::Ask, &address, command, &error.to_string());
                    (address, asking) = (next, true);
                }
                (code, _) => {
                    self.note(IncidentKind::of_code(code), &address, command, &error.to_string());
                    return Outcome::Refused;
                }
            }
        }
        self.note(IncidentKind::TooManyRedirections, &address, command, "gave up");
        self.refresh();
        Outcome::Refused
    }

    fn send_to(&mut self, address: &str, command: &Cmd, asking: bool) -> Result<Value, Failure> {
        if !self.connections.contains_key(address) {
            let connection = connect(address).map_err(|error| Failure::NotSent(format!("{error:#}")))?;
            self.connections.insert(address.to_owned(), (connection, Instant::now()));
        }
        let (connection, used) = self.connections.get_mut(address).expect("connected above");
        let idle = used.elapsed();
        let failure = |error| Failure::of(error, idle);
        if asking {
            redis::cmd("ASKING").exec(connection).map_err(failure)?;
        }
        let reply = command.query(connection).map_err(failure);
        *used = Instant::now();
        reply
    }

    fn note(&mut self, kind: IncidentKind, address: &str, command: &Cmd, reason: &str) {
        self.observed.incident(kind, || format!("{reason}, from {address} to {}", words_of(command)));
    }

    /// Asks the addresses in turn who owns what, until one answers. If none does all stays as it was.
    fn refresh(&mut self) {
        for address in self.addresses.clone() {
            if let Ok(slots) = slots_of(&address) {
                for (_, known) in slots.ranges.values() {
                    if !self.addresses.contains(known) {
                        self.addresses.push(known.clone());
                    }
                }
                self.slots = slots;
                return;
            }
        }
    }
}

fn connect(address: &str) -> Result<Connection> {
    let connection =
        redis::Client::open(format!("redis://{address}/"))?.get_connection_with_timeout(CONNECT_TIMEOUT)?;
    connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
    connection.set_write_timeout(Some(REPLY_TIMEOUT))?;
    Ok(connection)
}

/// Who owns what. Ranges rather than slots: clients ask again and again while a node is down, and must not
/// keep the processors from the servers with that.
#[derive(Default)]
struct Slots {
    /// By their first slots, with the last one.
    ranges: BTreeMap<u16, (u16, String)>,
    /// What was said otherwise since.
    moved: HashMap<u16, String>,
}

impl Slots {
    /// Whether a node owns anything.
    fn has(&self, address: &str) -> bool {
        self.ranges.values().any(|(_, owner)| owner == address)
    }

    fn owner(&self, slot: u16) -> Option<&String> {
        let range = self.ranges.range(..=slot).next_back();
        let of_range = range.filter(|(_, (last, _))| slot <= *last).map(|(_, (_, owner))| owner);
        self.moved.get(&slot).or(of_range)
    }
}

fn slots_of(address: &str) -> Result<Slots> {
    let mut connection = connect(address)?;
    connection.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    let reply: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query(&mut connection)?;
    let mut slots = Slots::default();
    for range in reply {
        let mut range = range.into_iter();
        let mut next = || range.next().context("a short entry in CLUSTER SLOTS");
        let (first, last): (u16, u16) =
            (redis::from_redis_value(next()?)?, redis::from_redis_value(next()?)?);
        let node: Vec<Value> = redis::from_redis_value(next()?)?;
        let host: String = redis::from_redis_value_ref(node.first().context("a node without host")?)?;
        let port: u16 = redis::from_redis_value_ref(node.get(1).context("a node without port")?)?;
        slots.ranges.insert(first, (last, format!("{host}:{port}")));
    }
    Ok(slots)
}

/// A command as a person would type it, cut to a readable length.
pub(super) fn words_of(command: &Cmd) -> String {
    let mut words = String::new();
    for argument in command.args_iter() {
        if let redis::Arg::Simple(bytes) = argument {
            words.extend(bytes.escape_ascii().take(SHOWN + 1).map(char::from));
            words.push(' ');
        }
        if words.len() > SHOWN {
            words.truncate(SHOWN);
            words.push('…');
            break;
        }
    }
    words.trim_end().to_owned()
}

/// How an outcome reads, cut to a readable length before the rest is even written.
pub(super) fn words_of_outcome(outcome: &Outcome) -> String {
    struct Short(String);
    impl fmt::Write for Short {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let left = SHOWN.saturating_sub(self.0.len());
            self.0.extend(text.chars().take(left));
            if text.len() > left { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut words = Short(String::new());
    if fmt::write(&mut words, format_args!("{outcome:?}")).is_err() {
        words.0.push('…');
    }
    words.0
}

enum Failure {
    NotSent(String),
    /// Why, and for how long the connection had not been used before.
    NoAnswer(String, Duration),
    Answer(RedisError),
}

impl Failure {
    fn of(error: RedisError, idle: Duration) -> Self {
        // Only what a server said has a code.
        match error.code() {
            Some(_) => Self::Answer(error),
            None => Self::NoAnswer(error.to_string(), idle),
        }
    }
}
