//! What all sessions share while keys move: which keys have moved, the moves themselves, and what is counted.
//!
//! `docs/design/front.md` shows why this is exact.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{RwLock, mpsc, watch};
use tokio::time::timeout;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::probe::{Capabilities, Info};
use whimbrel_wire::payload::Dialect;

use crate::command::plan::Tables;
use crate::migrate::alarms::Alarms;
use crate::migrate::arrived::Arrived;
use crate::migrate::direction::Direction;
use crate::migrate::locks::{Locks, Moved, MovedSender, Shared};
use crate::migrate::staging::OnTheirWay;
use crate::pipe::memory::MemoryBudget;
use crate::upstream::Upstream;
use crate::upstream::cluster::ask_keys;

/// Between two tries of what went wrong.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Keys that are known to be home and need not be asked for: this many at most, 8 bytes each.
const KNOWN_MAX: usize = 1 << 18;

/// Batches of the background that wait for its workers. Their keys are free until they are taken.
const BATCHES_AHEAD: usize = 4;

/// This many keys of one command are moved at a time.
const KEYS_AT_ONCE: usize = 64;

/// Requests whose keys are not all at their beginning are held whole. All clients together hold so much
/// beyond the usual.
const LONG_BYTES_MAX: u64 = 256 << 20;

/// What both servers are: the source is the one that keys move from, see [`Direction`].
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) source: Upstream,
    pub(crate) target: Upstream,
    pub(crate) link: LinkOptions,
    pub(crate) source_can: Capabilities,
    pub(crate) target_can: Capabilities,
    pub(crate) dialects: (Dialect, Dialect),
    /// Strings are read and written as such, not as payloads.
    pub(crate) strings: bool,
    pub(crate) tables: Tables,
    /// Keys of both when they were looked at.
    pub(crate) keys: u64,
    /// A database of the source other than 0 that had keys then.
    pub(crate) other_database: Option<u32>,
    /// Which process the source was then; `None` if it is more than one.
    pub(crate) source_run_id: Option<String>,
}

/// Whether sessions may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Old connections may still be alive.
    NotYet,
    Yes,
    /// It could not begin. Sessions that wait end.
    Never,
}

/// Keys that the background wants moved, and the channel that reports what came of them.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) keys: Vec<Bytes>,
    pub(crate) sender: MovedSender,
}

/// What the workers take.
#[derive(Debug)]
pub(crate) struct Moves {
    /// Keys that commands want, and those that readers kept from the background.
    pub(crate) wanted: mpsc::UnboundedReceiver<Bytes>,
    pub(crate) background: mpsc::Receiver<Batch>,
}

/// What has been counted since this process began to move keys.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Commands that were sent to the source.
    pub(crate) forwarded: AtomicU64,
    /// Commands that waited for keys of theirs.
    pub(crate) pulled: AtomicU64,
    /// Commands that were sent to the target at once.
    pub(crate) direct: AtomicU64,
    /// Commands that wait now.
    pub(crate) waiting: AtomicU64,
    /// Commands that got an error because their keys could not be moved in time.
    pub(crate) given_up: AtomicU64,
    /// Keys that the source had and the target has now.
    pub(crate) moved: AtomicU64,
    /// A command asked the filter for a key that was not at the target, and it said no.
    pub(crate) filter_no: AtomicU64,
    /// The same, and it said yes.
    pub(crate) filter_wrong: AtomicU64,
    /// Moves that were begun again on new connections.
    pub(crate) retries: AtomicU64,
    /// Keys that the target cannot hold, in the last pass over the source.
    pub(crate) staying: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct MigrationState {
    pub(crate) servers: Servers,
    /// How often the direction has been reversed. There is a migration for each turn.
    pub(crate) reversals: u32,
    /// Part of the names of staging keys. What a crash has left of them is none of the next turn's.
    pub(crate) job: String,
    pub(crate) locks: Arc<Locks>,
    /// The channel by which the background hands over what it has found at the source.
    pub(crate) background: mpsc::Sender<Batch>,
    pub(crate) arrived: Arrived,
    pub(crate) tally: Tally,
    pub(crate) ready: watch::Sender<Ready>,
    pub(crate) paused: watch::Sender<bool>,
    /// Moves hold it for reading, questions about both servers for writing.
    pub(crate) gate: RwLock<()>,
    /// Large keys that are being moved.
    pub(crate) on_their_way: OnTheirWay,
    /// The file that says that both servers are being emptied.
    pub(crate) flush_file: OnceLock<PathBuf>,
    /// How long a command waits for its keys.
    pub(crate) wait: Duration,
    hasher: RandomState,
    /// A key of the source may expire.
    expires: AtomicBool,
    known: Box<[AtomicU64]>,
    rebuilding: AtomicBool,
    done: AtomicBool,
    /// For what clients send that has to be held whole.
    pub(crate) long: Arc<MemoryBudget>,
    /// For questions about the words of a command.
    asking: tokio::sync::Mutex<Option<Link>>,
    trouble: Mutex<Option<String>>,
    alarms: Mutex<Alarms>,
}

impl MigrationState {
    /// Nothing has moved that is known of. With `rebuilding` every command moves its keys first until the
    /// filter has been built from the target: after a crash, and after a turn.
    pub(crate) fn new(
        servers: Servers,
        reversals: u32,
        wait: Duration,
        rebuilding: bool,
    ) -> (Arc<MigrationState>, Moves) {
        let (ready, wanted) = mpsc::unbounded_channel();
        let (background, batches) = mpsc::channel(BATCHES_AHEAD);
        let migration = MigrationState {
            locks: Locks::new(ready),
            background,
            arrived: Arrived::new(servers.keys, servers.source.is_cluster()),
            tally: Tally::default(),
            ready: watch::Sender::new(Ready::NotYet),
            paused: watch::Sender::new(false),
            gate: RwLock::new(()),
            on_their_way: OnTheirWay::default(),
            flush_file: OnceLock::new(),
            wait,
            hasher: RandomState::new(),
            expires: AtomicBool::new(true),
            known: (0..KNOWN_MAX).map(|_| AtomicU64::new(0)).collect(),
            rebuilding: AtomicBool::new(rebuilding),
            done: AtomicBool::new(false),
            long: MemoryBudget::new(LONG_BYTES_MAX),
            asking: tokio::sync::Mutex::new(None),
            trouble: Mutex::new(None),
            alarms: Mutex::new(Alarms { other_database: servers.other_database, ..Alarms::default() }),
            servers,
            reversals,
            job: format!("front{reversals}"),
        };
        (Arc::new(migration), Moves { wanted, background: batches })
    }

    /// Which way keys move.
    pub(crate) fn direction(&self) -> Direction {
        Direction::after(self.reversals)
    }

    // ---- What is known of keys ----

    /// Hashes are secret, so that no user can choose keys that are mistaken for others.
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Whether a key has been found to be home. It stays so for this turn, in which nothing creates keys at
    /// the source.
    pub(crate) fn is_known(&self, key: &[u8]) -> bool {
        let hash = self.hash(key);
        // 0 is what an empty place holds.
        let is_remembered =
            hash != 0 && self.known[hash as usize % KNOWN_MAX].load(Ordering::Acquire) == hash;
        is_remembered || self.arrived.is_done(key)
    }

    /// Whether a key may have arrived; if not, it certainly has not.
    pub(crate) fn may_have_arrived(&self, key: &[u8]) -> bool {
        self.arrived.may_have(key, self.hash(key))
    }

    /// A key has arrived. Its lock is held, or it was seen at the target.
    pub(crate) fn note_arrival(&self, key: &[u8]) {
        self.arrived.insert(key, self.hash(key));
    }

    /// A key is home. Its lock is held.
    pub(crate) fn note_moved(&self, key: &[u8]) {
        let hash = self.hash(key);
        self.arrived.insert(key, hash);
        self.known[hash as usize % KNOWN_MAX].store(hash, Ordering::Release);
    }

    /// Reads may be sent to the source, if the filter has none of their keys.
    pub(crate) fn may_forward(&self, keys: &[Bytes]) -> bool {
        !self.is_rebuilding() && !keys.iter().any(|key| self.may_have_arrived(key))
    }

    /// Holds keys for a read at the source. `None` if one of them is not certainly there, or nowhere.
    pub(crate) fn lock_for_read(&self, keys: &[Bytes]) -> Option<Box<[Shared]>> {
        let held = keys.iter().map(|key| self.locks.try_share(key)).collect::<Option<Box<[Shared]>>>()?;
        // Again, now that no move can come in between: one may have ended since it was asked.
        self.may_forward(keys).then_some(held)
    }

    pub(crate) fn all_known(&self, keys: &[Bytes]) -> bool {
        keys.iter().all(|key| self.is_known(key))
    }

    pub(crate) fn is_rebuilding(&self) -> bool {
        self.rebuilding.load(Ordering::Acquire)
    }

    /// The filter has all keys of the target, and no key is on both sides.
    pub(crate) fn rebuilt(&self) {
        self.rebuilding.store(false, Ordering::Release);
    }

    /// Whether a key of the source may expire.
    pub(crate) fn may_expire(&self) -> bool {
        self.expires.load(Ordering::Acquire)
    }

    /// The source says whether any of its keys expires. If none does, none will: no client writes there.
    pub(crate) fn note_expiries(&self, there_are: bool) {
        self.expires.store(there_are, Ordering::Release);
    }

    /// The source is empty, for the rest of this turn.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn set_done(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// Waits while the background is paused.
    pub(crate) async fn resumed(&self) {
        // The sender is the migration's own, so it cannot have gone.
        let _ = self.paused.subscribe().wait_for(|paused| !paused).await;
    }

    // ---- Moving what a command needs ----

    /// Moves keys, unless they are home.
    ///
    /// # Errors
    /// What the client is sent: they cannot be moved, or not within the limit.
    pub(crate) async fn pull(self: Arc<MigrationState>, keys: Vec<Bytes>) -> std::result::Result<(), String> {
        let pulling = async {
            for keys in keys.chunks(KEYS_AT_ONCE) {
                let unknown = keys.iter().filter(|key| !self.is_known(key));
                let wanted: Vec<_> =
                    unknown.map(|key| (self.may_have_arrived(key), self.locks.want(key))).collect();
                for (is_in_filter, outcome) in wanted {
                    let counter = if is_in_filter { &self.tally.filter_wrong } else { &self.tally.filter_no };
                    match outcome.await {
                        Ok(Moved::Arrived) if self.is_rebuilding() => {}
                        Ok(Moved::Arrived) => {
                            counter.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(Moved::Earlier) => {}
                        Ok(Moved::Refused(why)) => {
                            let from = self.direction().from();
                            return Err(format!("the key stays at the {from}: {why}"));
                        }
                        Err(_) => return Err("it is ending".to_owned()),
                    }
                }
            }
            Ok(())
        };
        timeout(self.wait, pulling).await.unwrap_or_else(|_| {
            self.tally.given_up.fetch_add(1, Ordering::Relaxed);
            let why = self.trouble().map(|why| format!(": {why}")).unwrap_or_default();
            Err(format!("the keys could not be moved within {} ms{why}", self.wait.as_millis()))
        })
    }

    /// The keys among the words of a command, by the target's own understanding.
    ///
    /// # Errors
    /// What the client is sent, as an error reply has it after its sign.
    pub(crate) async fn keys_of(&self, words: &[Bytes]) -> std::result::Result<Vec<Bytes>, String> {
        ask_keys(&self.asking, self.open_target(), words, self.wait).await
    }

    /// Notices if the source is another process than it was: it may have lost what it had acknowledged.
    pub(crate) async fn open_source(&self) -> Result<Link> {
        let mut link = self.servers.source.link().await?;
        if let Some(run_id) = &self.servers.source_run_id {
            let info = Info::ask(&mut link, "server").await?;
            if info.field("run_id") != Some(run_id) {
                self.alarms().is_source_another = true;
                // It may have brought back keys that expire.
                self.note_expiries(true);
            }
        }
        Ok(link)
    }

    pub(crate) async fn open_target(&self) -> Result<Link> {
        self.servers.target.link().await
    }

    /// What went wrong last, and what is wrong with the source, for people.
    pub(crate) fn trouble(&self) -> Option<String> {
        let last = self.trouble.lock().clone();
        let all: Vec<String> = [last, self.alarms().text(self.direction())].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// What is wrong with the source.
    pub(crate) fn alarms(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }
}
