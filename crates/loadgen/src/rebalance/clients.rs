//! Readers and writers: cluster clients that follow MOVED, at a steady rate.
//!
//! A command is due at its time, whether the one before was slow or not, and its latency counts from then: so
//! a stall of the servers is seen by every command that falls into it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Client as Redis, Cmd, Connection, RedisError, RedisResult, Value};

use super::keys::Keys;

/// Clients of each sort, each with a thread and a connection to every primary.
pub const WRITERS: u64 = 8;
/// As [`WRITERS`], of those that read.
pub const READERS: u64 = 8;

/// One client sends a command so often: 4000 commands a second of all together.
const INTERVAL: Duration = Duration::from_millis(4);

/// MOVED that are followed for one command.
const REDIRECTIONS_MAX: u32 = 16;

/// A reply that takes longer is as good as none.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Where the slots are.
#[derive(Debug, Clone)]
pub struct Map {
    /// Of all nodes.
    pub addresses: Vec<String>,
    /// For each slot the index of its owner's address.
    pub owner_of: Vec<usize>,
}

/// What the clients met since the last look.
#[derive(Debug, Default)]
pub struct Met {
    /// Latencies of the commands that were answered, in microseconds. Bounded by the rate, and by who looks.
    pub took_us: Vec<u32>,
    /// MOVED that were followed.
    pub moved: u64,
    /// Writes that a server acknowledged.
    pub acknowledged: u64,
    /// Reads whose reply was another than it should be.
    pub wrong_reads: u64,
    /// Errors besides MOVED that was followed, by their first word.
    pub errors: BTreeMap<String, u64>,
}

/// What a writer knows of one of its keys.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written {
    /// Writes that a server acknowledged.
    pub acknowledged: u64,
    /// Whether the reply to the last write never came. Such a key is written no more.
    pub is_in_doubt: bool,
}

/// Clients at work; they stop when this is dropped.
#[derive(Debug)]
pub struct Clients {
    stop: Arc<AtomicBool>,
    met: Arc<Mutex<Met>>,
    readers: Vec<JoinHandle<()>>,
    writers: Vec<JoinHandle<Vec<(u64, Written)>>>,
}

impl Clients {
    /// Starts them.
    pub fn start(keys: Keys, map: &Map) -> Self {
        let (stop, met) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Met>>::default());
        let started = Instant::now();
        let worker = |number: u64| Worker {
            keys,
            wires: Wires::new(map.clone()),
            // They take turns.
            due: started + INTERVAL.mul_f64(number as f64 / (WRITERS + READERS) as f64),
            stop: Arc::clone(&stop),
            met: Arc::clone(&met),
        };
        let writers = (0..WRITERS)
            .map(|number| (number, worker(number)))
            .map(|(number, worker)| thread::spawn(move || worker.write(number)))
            .collect();
        let readers = (WRITERS..WRITERS + READERS)
            .map(|number| (number, worker(number)))
            .map(|(number, worker)| thread::spawn(move || worker.read(number)))
            .collect();
        Self { stop, met, readers, writers }
    }

    /// What they met since the last call.
    pub fn met(&self) -> Met {
        std::mem::take(&mut self.met.lock())
    }

    /// Ends them: what the writers wrote by key, and what all met since the last look.
    ///
    /// # Errors
    /// When a client has panicked.
    pub fn stop(mut self) -> anyhow::Result<(Vec<(u64, Written)>, Met)> {
        self.stop.store(true, Ordering::Relaxed);
        let failed = |_| anyhow::anyhow!("a client failed");
        for reader in std::mem::take(&mut self.readers) {
            reader.join().map_err(failed)?;
        }
        let mut written = Vec::new();
        for writer in std::mem::take(&mut self.writers) {
            written.extend(writer.join().map_err(failed)?);
        }
        Ok((written, self.met()))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Worker {
    keys: Keys,
    wires: Wires,
    due: Instant,
    stop: Arc<AtomicBool>,
    met: Arc<Mutex<Met>>,
}

impl Worker {
    /// Each writer has keys of its own and writes them in turn.
    fn write(mut self, number: u64) -> Vec<(u64, Written)> {
        let mut own: Vec<(u64, Written)> = (number..self.keys.written)
            .step_by(WRITERS as usize)
            .map(|key| (key, Written::default()))
            .collect();
        for turn in 0.. {
            let at = turn % own.len().max(1);
            let Some((key, written)) = own.get_mut(at).filter(|(_, written)| !written.is_in_doubt) else {
                if !self.wait() {
                    break;
                }
                continue;
            };
            let command = self.keys.write(*key, written.acknowledged + 1);
            if !self.wait() {
                break;
            }
            match self.call(*key, &command) {
                Ok(_) => {
                    written.acknowledged += 1;
                    self.met.lock().acknowledged += 1;
                }
                Err(is_answered) => written.is_in_doubt = !is_answered,
            }
        }
        own
    }

    /// Readers read the keys that stay as they are, each in a random order of its own.
    fn read(mut self, number: u64) {
        let mut random = fastrand::Rng::with_seed(number);
        while self.wait() {
            let key = random.u64(self.keys.written..self.keys.total);
            let command = self.keys.read(key);
            if let Ok(reply) = self.call(key, &command)
                && !self.keys.is_right(key, &reply)
            {
                self.met.lock().wrong_reads += 1;
            }
        }
    }

    /// Waits until the next command is due; false when there is to be none.
    fn wait(&mut self) -> bool {
        let early = self.due.saturating_duration_since(Instant::now());
        if !early.is_zero() {
            thread::sleep(early);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// The reply, or whether there was one at all. Notes what happened, and when the next command is due.
    fn call(&mut self, key: u64, command: &Cmd) -> Result<Value, bool> {
        let outcome = self.wires.call(self.keys.slot(key), command);
        let took = self.due.elapsed();
        self.due += INTERVAL;
        let mut met = self.met.lock();
        met.moved += std::mem::take(&mut self.wires.moved);
        match outcome {
            Ok(reply) => {
                met.took_us.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
                Ok(reply)
            }
            Err(error) => {
                let word = match error.code() {
                    Some("MOVED") => format!("MOVED over {REDIRECTIONS_MAX} times in a row"),
                    Some(word) => word.to_owned(),
                    None => "connection".to_owned(),
                };
                *met.errors.entry(word).or_default() += 1;
                Err(error.code().is_some())
            }
        }
    }
}

/// Connections of one client to the nodes of a cluster.
pub struct Wires {
    map: Map,
    open: BTreeMap<usize, Connection>,
    /// MOVED that were followed.
    pub moved: u64,
}

impl Wires {
    /// Connects when needed.
    pub fn new(map: Map) -> Self {
        Self { map, open: BTreeMap::new(), moved: 0 }
    }

    /// The reply of the owner of the slot.
    ///
    /// # Errors
    /// The server's error if it is not MOVED, MOVED if there are too many in a row, or that of the
    /// connection, which is opened anew the next time.
    pub fn call(&mut self, slot: usize, command: &Cmd) -> RedisResult<Value> {
        let mut redirections = 0;
        loop {
            let node = self.map.owner_of[slot];
            let error = match self.call_node(node, command) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let Some(owner) = self.moved_to(&error).filter(|_| redirections < REDIRECTIONS_MAX) else {
                if error.code().is_none() {
                    self.open.remove(&node);
                }
                return Err(error);
            };
            redirections += 1;
            self.moved += 1;
            self.map.owner_of[slot] = owner;
        }
    }

    fn call_node(&mut self, node: usize, command: &Cmd) -> RedisResult<Value> {
        if !self.open.contains_key(&node) {
            let client = Redis::open(format!("redis://{}/", self.map.addresses[node]))?;
            let connection = client.get_connection_with_timeout(REPLY_TIMEOUT)?;
            connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
            connection.set_write_timeout(Some(REPLY_TIMEOUT))?;
            self.open.insert(node, connection);
        }
        let connection = self.open.get_mut(&node).expect("it was there or is now");
        command.query(connection)
    }

    /// The node that a server says has the slot, if it says so and the node is known.
    fn moved_to(&self, error: &RedisError) -> Option<usize> {
        if error.code() != Some("MOVED") {
            return None;
        }
        let (address, _) = error.redirect_node()?;
        self.map.addresses.iter().position(|known| known == address)
    }
}
