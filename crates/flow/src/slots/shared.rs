//! What the lanes of a slot transfer share, and what is remembered for the batch at hand.

use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::RwLockReadGuard;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::feed::{Collection, Touch, What};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::payload::Dialect;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::options::{SlotOptions, SlotProgress};
use crate::keys::Fit;
use crate::large::KeyType;
use crate::large::elements::ElementCommands;
use crate::memory::BigTransfers;

/// How many keys that moved in chunks are followed by their elements. Further ones are transferred whole
/// again.
pub const FOLLOWED_MAX: usize = 10_000;

/// How many keys are compared under the pause if samples are compared.
const SAMPLE_KEYS: usize = 64;

/// A sampled key's value is at most this large, and all of them together: the comparison happens under the
/// pause.
const SAMPLE_BYTES_MAX: u64 = 64 << 10;

const SAMPLES_BYTES_MAX: u64 = 256 << 10;

/// One of the two nodes.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) capabilities: Capabilities,
    pub(super) dialect: Dialect,
    /// The highest version of payloads that the target accepts; found out when the first slot is being
    /// imported.
    pub(super) payloads: OnceLock<Option<u16>>,
}

/// A key to transfer again.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) key: Bytes,
    /// `None` if it is the whole key. Which elements, and of what; there are none if only the expiry changed.
    pub(super) elements: Option<(Option<Collection>, BTreeSet<Bytes>)>,
    pub(super) expiry: bool,
}

impl Change {
    pub(super) fn whole(key: Bytes) -> Change {
        Change { key, elements: None, expiry: false }
    }

    pub(super) fn expiry(key: Bytes) -> Change {
        Change { key, elements: Some((None, BTreeSet::new())), expiry: true }
    }
}

/// What all lanes share.
pub(super) struct Shared {
    pub(super) deployment: Arc<Deployment>,
    pub(super) source: Node,
    pub(super) target: Node,
    pub(super) options: SlotOptions,
    pub(super) progress: Arc<SlotProgress>,
    pub(super) big_transfers: BigTransfers,
    pub(super) stop: CancellationToken,
    /// Keys move under a pause of our own: nothing else has to be waited for.
    pub(super) is_draining: AtomicBool,
    /// The feed does not see changes of consumer groups: streams are remembered, and move once more under the
    /// pause.
    pub(super) remember_streams: AtomicBool,
    /// What is remembered for the batch at hand.
    pub(super) batch: Mutex<Batch>,
}

impl Shared {
    /// A connection to the target, which shows the job's name.
    pub(super) async fn open_target(&self) -> Result<Link> {
        let mut link = self.deployment.open_as(Side::Target, &self.target.address, 0).await?;
        // A courtesy, as in [`Link::open`].
        link.ask(&[b"CLIENT", b"SETNAME", self.options.client_name.as_bytes()]).await?;
        Ok(link)
    }
}

/// What is remembered for one batch.
#[derive(Default)]
pub(super) struct Batch {
    /// Keys that moved in chunks and are followed by their elements since.
    pub(super) followed: HashMap<Bytes, KeyType>,
    /// Keys that changed while they were read, with how often and how long the last read took.
    pub(super) again: HashMap<Bytes, Changing>,
    /// How long keys took that moved in chunks, in milliseconds.
    pub(super) took_ms: HashMap<Bytes, u64>,
    /// Streams, if the feed does not see all of their changes, and vector sets. They move once more under the
    /// pause.
    pub(super) unseen: HashSet<Bytes>,
    /// Those with the smallest hashes: a sample that needs no random numbers and does not depend on the
    /// order.
    pub(super) sample: BinaryHeap<(u64, Bytes, u64)>,
    /// Bytes of those.
    pub(super) sample_bytes: u64,
}

pub(super) struct Changing {
    pub(super) kind: String,
    pub(super) reads: u32,
    /// What the shorter one of the last two reads took.
    pub(super) read_ms: u64,
    /// What the last one took.
    last_ms: u64,
}

impl Changing {
    /// A key that may have changed unseen.
    pub(super) fn unseen() -> Changing {
        Changing { kind: "stream or vector set".to_owned(), reads: 0, read_ms: 0, last_ms: 0 }
    }
}

impl Shared {
    pub(super) fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock()
    }

    pub(super) fn check_stop(&self) -> Result<()> {
        if self.stop.is_cancelled() {
            return Err(Error::own("move keys", "stopped"));
        }
        Ok(())
    }

    pub(super) fn hash_field_ttls(&self) -> ElementCommands {
        ElementCommands::of(&self.source.capabilities, &self.target.capabilities)
    }

    /// What the target takes.
    pub(super) fn fit(&self) -> Fit {
        let (source, target) = (&self.source, &self.target);
        let fit = Fit::of((source.dialect, target.dialect), &target.capabilities);
        // Known when the first slot is being imported.
        Fit { payload_version_max: target.payloads.get().copied().flatten(), ..fit }
    }

    /// Whether keys travel as payloads, and can be measured for it.
    pub(super) fn dumps(&self) -> bool {
        let (from, to) = (&self.source.capabilities, &self.target.capabilities);
        from.dump && from.memory_usage && to.restore
    }

    /// The type of a key that is followed by its elements.
    pub(super) fn followed(&self, key: &Bytes) -> Option<KeyType> {
        self.batch().followed.get(key).cloned()
    }

    /// Followed keys with the commands that count their elements. Hashes are left out if fields may expire:
    /// servers count those that have for a while longer; only that the key is there is asked then.
    pub(super) fn counted(&self) -> Vec<(Bytes, &'static [u8])> {
        let mortal = self.source.capabilities.hash_field_ttl;
        let command = |kind: &KeyType| -> &'static [u8] {
            match kind {
                KeyType::Hash if !mortal => b"HLEN",
                KeyType::Set => b"SCARD",
                KeyType::Zset => b"ZCARD",
                _ => b"EXISTS",
            }
        };
        self.batch().followed.iter().map(|(key, kind)| (key.clone(), command(kind))).collect()
    }

    /// Whether writers wait for the rest.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// How long a key may have taken that moves in chunks under a pause, in milliseconds.
    pub(super) fn drain_ms_max(&self) -> u64 {
        self.options.rates.max_pause_ms().map_or(self.options.drain_ms_max, |ms| ms / 2)
    }

    /// How long the key took when it last moved in chunks, in milliseconds.
    pub(super) fn took_ms(&self, key: &Bytes) -> u64 {
        self.batch().took_ms.get(key).copied().unwrap_or(0)
    }

    /// Waits while another job has the target to itself, which it cannot begin before the permit is dropped.
    pub(super) async fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.is_draining() {
            return None;
        }
        Some(self.options.gate.enter().await)
    }

    /// From now on the key is followed by its elements, if its type allows it.
    pub(super) fn follow(&self, key: &Bytes, kind: Option<&KeyType>) {
        let mut batch = self.batch();
        match kind {
            Some(kind) if followable(kind) && batch.followed.len() < FOLLOWED_MAX => {
                batch.followed.insert(key.clone(), kind.clone());
            }
            _ => {
                batch.followed.remove(key);
            }
        }
    }

    /// The key changed while it was read, and has to be read again.
    pub(super) fn changed(&self, key: Bytes, kind: Option<KeyType>, read_ms: u64) {
        let kind = kind.map_or_else(|| "gone".to_owned(), |kind| format!("{kind:?}").to_lowercase());
        let mut batch = self.batch();
        let entry = batch.again.entry(key).or_insert_with(Changing::unseen);
        // One stall of a server must not make it a key that no pause is long enough for.
        entry.read_ms = if entry.reads == 0 { read_ms } else { entry.last_ms.min(read_ms) };
        entry.last_ms = read_ms;
        entry.reads += 1;
        entry.kind = kind;
    }

    /// Remembers a stream if that is wanted.
    pub(super) fn stream(&self, key: &Bytes) {
        if self.remember_streams.load(Ordering::Relaxed) {
            self.batch().unseen.insert(key.clone());
        }
    }

    /// Remembers a vector set: Redis replicates no `VADD` of an element that is there already, though it gets
    /// another vector, so no feed by replication reports it.
    pub(super) fn vector_set(&self, key: &Bytes) {
        self.batch().unseen.insert(key.clone());
    }

    /// The key has arrived.
    pub(super) fn settled(&self, key: &Bytes) {
        self.batch().again.remove(key);
    }

    /// Offers a key that has been written to the sample.
    pub(super) fn sampled(&self, key: &Bytes, bytes: u64) {
        if bytes > SAMPLE_BYTES_MAX {
            return;
        }
        let hash = xxh3_64_with_seed(key, 1);
        let mut batch = self.batch();
        let is_full =
            |batch: &Batch| batch.sample.len() >= SAMPLE_KEYS || batch.sample_bytes >= SAMPLES_BYTES_MAX;
        if batch.sample.iter().any(|(known, ..)| *known == hash) {
            return;
        }
        if is_full(&batch) && batch.sample.peek().is_some_and(|(largest, ..)| *largest <= hash) {
            return;
        }
        batch.sample.push((hash, key.clone(), bytes));
        batch.sample_bytes += bytes;
        while batch.sample.len() > SAMPLE_KEYS
            || batch.sample_bytes > SAMPLES_BYTES_MAX && batch.sample.len() > 1
        {
            let Some((_, _, bytes)) = batch.sample.pop() else { break };
            batch.sample_bytes -= bytes;
        }
    }

    /// Waits until this many keys may be read, cut short when the job is stopped. Under a pause of writes
    /// nothing waits: writers would wait with it.
    pub(super) async fn pace_keys(&self, keys: u64) {
        if !self.is_draining() {
            self.stop.run_until_cancelled(self.options.rates.take_keys(keys)).await;
        }
    }

    /// Waits until this many bytes of values may pass, likewise. How many they are is known once they are
    /// read.
    pub(super) async fn pace_bytes(&self, bytes: u64) {
        if !self.is_draining() {
            self.stop.run_until_cancelled(self.options.rates.take_bytes(bytes)).await;
        }
    }

    /// How many keys may be read together.
    pub(super) fn keys_at_once(&self) -> usize {
        if self.is_draining() { usize::MAX } else { self.options.rates.keys_at_once() }
    }
}

impl From<Touch> for Change {
    fn from(touch: Touch) -> Change {
        match touch.what {
            What::Anything => Change::whole(touch.key),
            What::Elements(elements) => Change {
                key: touch.key,
                expiry: elements.expiry,
                elements: Some((Some(elements.collection), elements.names)),
            },
            What::Expiry => Change { key: touch.key, elements: Some((None, BTreeSet::new())), expiry: true },
        }
    }
}

/// Which elements a followed key has.
fn followable(kind: &KeyType) -> bool {
    matches!(kind, KeyType::Hash | KeyType::Set | KeyType::Zset)
}
