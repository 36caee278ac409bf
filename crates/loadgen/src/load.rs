//! Clients that read and write at a given rate while slots move, and note when each command was due and done.
//!
//! A rate is kept from outside: a command is due at its time, whether the one before was slow or not, and its
//! latency counts from then. So a stall of the server is seen by every command that falls into it. Without a
//! rate the clients saturate: each sends a pipeline of SET as soon as the one before is answered.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;

use crate::content::{Content, noise, stamp};
use crate::slots::slot_of;
use crate::wire::{Reply, Wire};

/// Width of a bar of throughput over time.
pub const BUCKET: Duration = Duration::from_millis(100);

/// One command in this many is a SET, the others are GET: the seed's 1:10.
const SET_ONE_IN: u64 = 11;

/// MOVED and ASK that are followed for one command.
const REDIRECTIONS_MAX: u32 = 16;

/// How often a command is tried again after TRYAGAIN, CLUSTERDOWN or a broken connection, and how long apart.
const TRIES_MAX: u32 = 2000;
const TRY_PAUSE: Duration = Duration::from_millis(5);

/// Commands that one client notes: at 24 bytes each. More than the longest turn at any sensible rate.
const NOTED_MAX: usize = 4_000_000;

/// What is sent, and how fast.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of all primaries.
    pub addresses: Vec<String>,
    /// For each slot the index of its owner's address.
    pub owner_of: Vec<usize>,
    /// The keys, all of which are there.
    pub content: Content,
    /// Connections, each with a thread of its own.
    pub clients: u32,
    /// How fast they go.
    pub pace: Pace,
}

/// How fast the clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// This many commands a second of all clients together, one SET in eleven.
    Rate(u32),
    /// As fast as the servers answer, this many SET at a time.
    Saturate(u32),
}

impl Pace {
    /// How many commands one [`Sample`] stands for.
    pub fn commands_per_sample(self) -> u32 {
        match self {
            Self::Rate(_) => 1,
            Self::Saturate(pipeline) => pipeline,
        }
    }
}

/// What a command may meet besides a reply and MOVED.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// `-ASK`.
    Ask,
    /// `-TRYAGAIN`.
    Tryagain,
    /// `-CLUSTERDOWN`.
    Clusterdown,
    /// Any other error.
    Error,
    /// The connection broke.
    Disconnect,
    /// Too many redirections or tries: the command was given up.
    GivenUp,
}

/// One command, or one pipeline of them.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When it was due, since the start.
    pub due: Duration,
    /// From then until its last reply.
    pub took: Duration,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    pace: Pace,
    stop: Arc<AtomicBool>,
    started: Instant,
    clients: Vec<JoinHandle<Recorded>>,
}

/// What the clients met.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Everything that was answered.
    pub samples: Vec<Sample>,
    /// Commands that each sample stands for.
    pub commands_per_sample: u32,
    /// How often each fault was met.
    pub faults: BTreeMap<Fault, u64>,
    /// MOVED that were followed.
    pub moved: u64,
}

/// Throughput and latencies of a part of the time.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Latencies {
    /// Commands.
    pub commands: u64,
    /// Commands a second.
    pub per_s: f64,
    /// Half of them were answered within this time, in milliseconds.
    pub p50_ms: f64,
    /// 99 % of them.
    pub p99_ms: f64,
    /// 99.9 % of them.
    pub p999_ms: f64,
    /// All of them.
    pub max_ms: f64,
}

impl Load {
    /// Starts the clients.
    pub fn start(plan: &Plan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let clients = (0..plan.clients)
            .map(|number| {
                let client = Client::new(plan, number, started, Arc::clone(&stop));
                thread::spawn(move || client.work())
            })
            .collect();
        Self { pace: plan.pace, stop, started, clients }
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Ends the load.
    pub fn stop(self) -> Recorded {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Recorded::of(self.pace);
        for client in self.clients {
            match client.join() {
                Ok(own) => all.merge(own),
                // A client without a result has answered nothing.
                Err(_) => *all.faults.entry(Fault::GivenUp).or_default() += 1,
            }
        }
        all.samples.sort_by_key(|sample| sample.due);
        all
    }
}

impl Recorded {
    fn of(pace: Pace) -> Self {
        let commands_per_sample = pace.commands_per_sample();
        Self { samples: Vec::new(), commands_per_sample, faults: BTreeMap::new(), moved: 0 }
    }

    fn merge(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.moved += other.moved;
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }

    /// Of commands that were under way at any time of this window.
    pub fn latencies(&self, window: &Range<Duration>) -> Latencies {
        let mut took: Vec<Duration> = self
            .samples
            .iter()
            .filter(|sample| sample.due < window.end && sample.due + sample.took >= window.start)
            .map(|sample| sample.took)
            .collect();
        took.sort_unstable();
        let at = |share: f64| {
            let last = took.len().saturating_sub(1);
            // The rank that covers this share, rounded up.
            let rank = ((share * took.len() as f64).ceil() as usize).saturating_sub(1).min(last);
            took.get(rank).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        let seconds = window.end.saturating_sub(window.start).as_secs_f64();
        let commands = took.len() as u64 * u64::from(self.commands_per_sample);
        Latencies {
            commands,
            per_s: if seconds > 0.0 { commands as f64 / seconds } else { 0.0 },
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: at(1.0),
        }
    }

    /// Commands that were answered in each [`BUCKET`] of time since the start.
    pub fn throughput(&self) -> Vec<u32> {
        let mut buckets = Vec::new();
        for sample in &self.samples {
            let bucket = usize::try_from((sample.due + sample.took).as_millis() / BUCKET.as_millis());
            // The number of an hour's buckets fits.
            let bucket = bucket.unwrap_or_default();
            if buckets.len() <= bucket {
                buckets.resize(bucket + 1, 0);
            }
            buckets[bucket] += self.commands_per_sample;
        }
        // The last is not a whole one.
        buckets.pop();
        buckets
    }
}

struct Client {
    plan: Plan,
    number: u32,
    started: Instant,
    stop: Arc<AtomicBool>,
    wires: BTreeMap<usize, Wire>,
    value: Vec<u8>,
    recorded: Recorded,
    random: Rng,
}

impl Client {
    fn new(plan: &Plan, number: u32, started: Instant, stop: Arc<AtomicBool>) -> Self {
        Self {
            plan: plan.clone(),
            number,
            started,
            stop,
            wires: BTreeMap::new(),
            value: noise(plan.content.value_bytes, u64::from(number)),
            recorded: Recorded::of(plan.pace),
            random: Rng::with_seed(number.into()),
        }
    }

    fn work(mut self) -> Recorded {
        match self.plan.pace {
            Pace::Rate(rate) => self.keep_rate(rate),
            Pace::Saturate(pipeline) => self.saturate(pipeline),
        }
        self.recorded
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.recorded.samples.len() >= NOTED_MAX
    }

    fn keep_rate(&mut self, rate: u32) {
        let interval = Duration::from_secs_f64(f64::from(self.plan.clients) / f64::from(rate.max(1)));
        // The clients take turns.
        let first = interval.mul_f64(f64::from(self.number) / f64::from(self.plan.clients));
        for turn in 0.. {
            let due = first + interval * turn;
            let early = due.saturating_sub(self.started.elapsed());
            if !early.is_zero() {
                thread::sleep(early);
            }
            if self.is_over() {
                break;
            }
            let (key, is_set) = (self.random_key(), self.random.u64(..SET_ONE_IN) == 0);
            if self.send(&key, is_set) {
                self.note(due);
            }
        }
    }

    fn saturate(&mut self, pipeline: u32) {
        while !self.is_over() {
            let due = self.started.elapsed();
            let mut keys: Vec<String> = (0..pipeline).map(|_| self.random_key()).collect();
            // Usually once: what was redirected is sent again alone, as a client does.
            let Ok(redirected) = self.send_together(&keys) else {
                self.wires.clear();
                self.fault(Fault::Disconnect);
                thread::sleep(TRY_PAUSE);
                continue;
            };
            keys.retain(|key| redirected.contains(key));
            if keys.iter().all(|key| self.send(key, true)) {
                self.note(due);
            }
        }
    }

    /// The keys whose command was not done.
    fn send_together(&mut self, keys: &[String]) -> std::io::Result<Vec<String>> {
        stamp(&mut self.value, self.random.u64(..));
        let mut by_node: BTreeMap<usize, Vec<&String>> = BTreeMap::new();
        for key in keys {
            let slot = usize::from(slot_of(key.as_bytes()));
            by_node.entry(self.plan.owner_of[slot]).or_default().push(key);
        }
        for (&node, keys) in &by_node {
            let wire = wire_to(&mut self.wires, &self.plan.addresses, node)?;
            for key in keys {
                wire.push(&[b"SET", key.as_bytes(), &self.value]);
            }
            wire.flush()?;
        }
        let mut not_done = Vec::new();
        for (node, keys) in by_node {
            for key in keys {
                let wire = wire_to(&mut self.wires, &self.plan.addresses, node)?;
                if let Reply::Error(_) = wire.reply()? {
                    not_done.push(key.clone());
                }
            }
        }
        Ok(not_done)
    }

    fn random_key(&mut self) -> String {
        let number = self.random.u64(..self.plan.content.keys.max(1));
        self.plan.content.names.of(number)
    }

    fn note(&mut self, due: Duration) {
        let took = self.started.elapsed().saturating_sub(due);
        self.recorded.samples.push(Sample { due, took });
    }

    /// Whether the command was answered in the end.
    fn send(&mut self, key: &str, is_set: bool) -> bool {
        let slot = usize::from(slot_of(key.as_bytes()));
        let (mut node, mut is_asking) = (self.plan.owner_of[slot], false);
        let (mut redirections, mut tries) = (0, 0);
        while redirections <= REDIRECTIONS_MAX && tries <= TRIES_MAX {
            let Ok(reply) = self.call(node, is_asking, key, is_set) else {
                self.wires.remove(&node);
                self.fault(Fault::Disconnect);
                tries += 1;
                if self.stop.load(Ordering::Relaxed) {
                    return false;
                }
                thread::sleep(TRY_PAUSE);
                continue;
            };
            if let Some((code, address)) = reply.redirection() {
                redirections += 1;
                is_asking = code == "ASK";
                node = self.index_of(address);
                if is_asking {
                    self.fault(Fault::Ask);
                } else {
                    self.recorded.moved += 1;
                    self.plan.owner_of[slot] = node;
                }
                continue;
            }
            let Reply::Error(reason) = reply else { return true };
            match reason.split(' ').next() {
                Some("TRYAGAIN") => self.fault(Fault::Tryagain),
                Some("CLUSTERDOWN") => self.fault(Fault::Clusterdown),
                _ => {
                    self.fault(Fault::Error);
                    return false;
                }
            }
            tries += 1;
            thread::sleep(TRY_PAUSE);
        }
        self.fault(Fault::GivenUp);
        false
    }

    fn call(&mut self, node: usize, is_asking: bool, key: &str, is_set: bool) -> std::io::Result<Reply> {
        if is_set {
            stamp(&mut self.value, self.random.u64(..));
        }
        let wire = wire_to(&mut self.wires, &self.plan.addresses, node)?;
        if is_asking {
            wire.push(&[b"ASKING"]);
        }
        if is_set {
            wire.push(&[b"SET", key.as_bytes(), &self.value]);
        } else {
            wire.push(&[b"GET", key.as_bytes()]);
        }
        wire.flush()?;
        if is_asking {
            wire.reply()?;
        }
        wire.reply()
    }

    fn index_of(&mut self, address: &str) -> usize {
        let addresses = &mut self.plan.addresses;
        addresses.iter().position(|known| known == address).unwrap_or_else(|| {
            addresses.push(address.to_owned());
            addresses.len() - 1
        })
    }

    fn fault(&mut self, fault: Fault) {
        *self.recorded.faults.entry(fault).or_default() += 1;
    }
}

fn wire_to<'a>(
    wires: &'a mut BTreeMap<usize, Wire>,
    addresses: &[String],
    node: usize,
) -> std::io::Result<&'a mut Wire> {
    Ok(match wires.entry(node) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(Wire::connect(&addresses[node])?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn latencies_are_of_the_window_and_throughput_is_of_all() {
        let samples = [(0, 1), (10, 1), (90, 300), (120, 2), (500, 1)]
            .map(|(due, took)| Sample { due: ms(due), took: ms(took) })
            .to_vec();
        let recorded = Recorded { samples, ..Recorded::of(Pace::Rate(1)) };
        let within = recorded.latencies(&(ms(100)..ms(200)));
        // That of 90 was still under way.
        assert_eq!((within.commands, within.max_ms, within.p50_ms, within.per_s), (2, 300.0, 2.0, 20.0));
        assert_eq!(recorded.throughput(), [2, 1, 0, 1, 0]);
        assert_eq!(recorded.latencies(&(ms(900)..ms(900))).commands, 0);
    }
}
