//! A worker, which moves keys, several at a time where several wait.
//!
//! Keys that wait are taken in batches, and go through each step together. Each of them has its own lock, and
//! its own end: a key that a server refuses, that is too large, or that does not travel in one piece, leaves
//! its batch and is moved alone. After an error all keys of the batch whose end is not known are moved alone,
//! on new connections.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result};
use whimbrel_engine::link::Link;
use whimbrel_flow::keys::size::{Size, pack_within, sizes_of};
use whimbrel_flow::keys::{Fetch, exist, memory_bytes_of, unlink};
use whimbrel_flow::large::staging_key;
use whimbrel_wire::value::Value;

use crate::migrate::carry::{Attempt, Carried, GroupPlan, LARGE_BYTES, Route, carry, carry_all, is_large};
use crate::migrate::locks::{Moved, MovedSender};
use crate::migrate::state::{Batch, MigrationState, RETRY_PAUSE};
use crate::upstream::KillHandle;

/// Workers for keys that commands want; each moves a batch at a time.
pub(super) const WORKERS: usize = 8;

/// Workers of the background.
pub(super) const BACKGROUND_WORKERS: usize = 4;

/// Keys that one worker moves at a time if a command waits. A wanted key waits for few others.
const FEW: Limits = Limits { keys: 32, bytes: 256 << 10 };

/// The same if none does.
const MANY: Limits = Limits { keys: BATCH_KEYS, bytes: 512 << 10 };

/// Keys that the background hands over at a time.
pub(super) const BATCH_KEYS: usize = 128;

/// Bounds of a batch.
#[derive(Debug, Clone, Copy)]
struct Limits {
    keys: usize,
    /// Values together take no more memory, except one of them.
    bytes: u64,
}

pub(super) struct Worker {
    pub(super) migration: Arc<MigrationState>,
    /// The queue for large keys.
    large: mpsc::UnboundedSender<Bytes>,
    pub(super) source: Option<Link>,
    /// With what ends it.
    target: Option<(Link, KillHandle)>,
}

/// How the move of a key alone ended.
enum Alone {
    Moved(Moved),
    /// It is too large to be moved at once. Nothing has been written.
    TooLarge,
}

/// Keys of a batch that are not moved yet.
#[derive(Default)]
struct Left {
    /// To be moved together, with the command that reads them.
    groups: Vec<(Fetch, Vec<Bytes>)>,
    /// To be moved alone.
    alone: Vec<Bytes>,
    /// To be moved alone, if an attempt may have left the key at the target.
    again: Vec<Bytes>,
    /// For the workers of large keys.
    large: Vec<Bytes>,
}

impl Worker {
    pub(super) fn new(migration: &Arc<MigrationState>, large: &mpsc::UnboundedSender<Bytes>) -> Worker {
        Worker { migration: migration.clone(), large: large.clone(), source: None, target: None }
    }

    /// Moves what commands want.
    pub(super) async fn run(mut self, moves: Arc<Mutex<mpsc::UnboundedReceiver<Bytes>>>) {
        loop {
            let mut keys = Vec::new();
            if moves.lock().await.recv_many(&mut keys, FEW.keys).await == 0 {
                return;
            }
            // No command counts keys while one of them may be on both sides.
            let migration = self.migration.clone();
            let gate = migration.gate.read().await;
            let large = self.move_keys(keys, FEW).await;
            drop(gate);
            self.leave(large);
        }
    }

    /// Moves what the background has found, for as long as it is not paused.
    pub(super) async fn run_background(mut self, batches: Arc<Mutex<mpsc::Receiver<Batch>>>) {
        loop {
            let batch = batches.lock().await.recv().await;
            let Some(Batch { mut keys, sender }) = batch else { return };
            while !keys.is_empty() {
                let migration = self.migration.clone();
                migration.resumed().await;
                let gate = migration.gate.read().await;
                // Asked each time: a key that a command wants must not be kept waiting.
                let is_wanted = migration.tally.waiting.load(Ordering::Relaxed) > 0;
                let limits = if is_wanted { FEW } else { MANY };
                let rest = keys.split_off(limits.keys.min(keys.len()));
                // Locked only now. What readers hold, or another task wants already, is moved by others.
                keys.retain(|key| !self.has_moved_since(key, &sender) && migration.locks.take(key, &sender));
                let large = self.move_keys(std::mem::replace(&mut keys, rest), limits).await;
                drop(gate);
                self.leave(large);
            }
        }
    }

    /// Whether a key has moved since the background found it, which is notified then. Were the source to have
    /// it again, it would be no key to be moved: its owner may have deleted it at the target.
    fn has_moved_since(&self, key: &Bytes, sender: &MovedSender) -> bool {
        let is_known = self.migration.is_known(key);
        if is_known {
            // The pass looks whether the source has it. It may have ended.
            let _ = sender.send((key.clone(), Moved::Earlier));
        }
        is_known
    }

    /// Leaves large keys to their workers.
    fn leave(&self, keys: Vec<Bytes>) {
        for key in keys {
            self.migration.locks.let_in(&key);
            // Its workers end with this one.
            let _ = self.large.send(key);
        }
    }

    /// Moves keys whose locks are held, and returns those that are too large to be moved at once.
    async fn move_keys(&mut self, keys: Vec<Bytes>, limits: Limits) -> Vec<Bytes> {
        let mut left = Left::default();
        if keys.is_empty() {
            return left.large;
        }
        if let Err(error) = self.sort_out(&keys, limits, &mut left).await {
            // Nothing has been written. What a server refuses is found out of each key.
            if !is_final(&error) {
                self.begin_again(&error).await;
            }
            left = Left { alone: keys, ..Left::default() };
        }
        for (fetch, group) in std::mem::take(&mut left.groups) {
            if let Err(error) = self.move_group(fetch, &group, &mut left).await {
                self.begin_again(&error).await;
                left.again.extend(group);
            }
        }
        let Left { alone, again, mut large, .. } = left;
        let again = again.into_iter().map(|key| (key, true));
        let mut waiting: VecDeque<(Bytes, bool)> =
            alone.into_iter().map(|key| (key, false)).chain(again).collect();
        while let Some((key, is_tried_again)) = waiting.pop_front() {
            match self.try_move(&key, is_tried_again, false).await {
                Some(Alone::Moved(moved)) => self.end(&key, &moved),
                Some(Alone::TooLarge) => large.push(key),
                // The others need not wait for a node that is gone.
                None => waiting.push_back((key, true)),
            }
        }
        large
    }

    /// Ends the moves of keys that are home already, and divides the others by their sizes.
    ///
    /// # Errors
    /// Whatever a link or a server reports. No key has been written or removed, and no move has ended.
    async fn sort_out(&mut self, keys: &[Bytes], limits: Limits, left: &mut Left) -> Result<()> {
        let migration = self.migration.clone();
        if !migration.servers.source_can.memory_usage {
            // Their total size is unknown.
            left.alone = keys.to_vec();
            return Ok(());
        }
        let is_rebuilding = migration.is_rebuilding();
        let in_filter: Vec<&Bytes> =
            keys.iter().filter(|key| !is_rebuilding && migration.may_have_arrived(key)).collect();
        // What the target has is home, except what a crash has left. The target is not asked if it is not
        // needed: readers of a large key need not wait for a target that hangs.
        let (there, sizes) = match in_filter.is_empty() {
            true => (Vec::new(), sizes(&migration, self.source().await?, keys).await?),
            false => {
                let (source, target) = self.links().await?;
                let (there, sizes) = tokio::join!(exist(target, &in_filter), sizes(&migration, source, keys));
                (there?, sizes?)
            }
        };
        let moved_earlier: HashSet<&Bytes> =
            in_filter.into_iter().zip(there).filter_map(|(key, is_there)| is_there.then_some(key)).collect();
        let (mut strings, mut others) = (Vec::with_capacity(keys.len()), Vec::new());
        for (key, size) in keys.iter().zip(sizes) {
            match size {
                _ if moved_earlier.contains(key) => self.end(key, &Moved::Earlier),
                Size::Refused(_) => left.alone.push(key.clone()),
                Size::String(bytes) | Size::Other(bytes) if bytes > LARGE_BYTES => {
                    left.large.push(key.clone());
                }
                Size::String(bytes) => strings.push((key.clone(), bytes)),
                Size::Other(bytes) => others.push((key.clone(), bytes)),
            }
        }
        for (fetch, sized) in [(Fetch::String, strings), (Fetch::Payload, others)] {
            let groups = pack_within(sized, limits.keys, limits.bytes);
            left.groups.extend(groups.into_iter().map(|(group, _)| (fetch, group)));
        }
        Ok(())
    }

    /// Moves keys for the first time, and ends the moves of all that are not `left`.
    ///
    /// # Errors
    /// Whatever a link reports. No move has ended, and any of the keys may be at the target.
    async fn move_group(&mut self, fetch: Fetch, group: &[Bytes], left: &mut Left) -> Result<()> {
        let migration = self.migration.clone();
        let servers = &migration.servers;
        let are_one = (!servers.source.is_cluster(), !servers.target.is_cluster());
        let plan = GroupPlan { fetch, expiries: migration.may_expire(), are_one };
        let (source, target) = self.links().await?;
        let attempts = carry_all(source, target, group.to_vec(), &route(&migration, false), plan).await?;
        let mut arrived = 0;
        for (key, attempt) in attempts {
            match attempt {
                Attempt::Ended(carried) => {
                    arrived += u64::from(carried == Carried::Arrived);
                    let moved = self.outcome(&key, carried);
                    self.end(&key, &moved);
                }
                Attempt::InChunks | Attempt::Refused(_) => left.alone.push(key),
                Attempt::CopiedOnly(_) => left.again.push(key),
            }
        }
        if arrived > 0 {
            migration.set_trouble(None);
            migration.tally.moved.fetch_add(arrived, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Ends the move of a key.
    pub(super) fn end(&self, key: &Bytes, moved: &Moved) {
        if matches!(moved, Moved::Arrived | Moved::Earlier) {
            // Before the lock is let go, or a reader could take the key for one of the source.
            self.migration.note_moved(key);
            self.migration.alarms().not_taken(key);
        }
        self.migration.locks.finish(key, moved);
    }

    /// Moves a key of any size whose lock is held, at once, and however often that has to be tried.
    pub(super) async fn move_key(&mut self, key: &Bytes) -> Moved {
        let mut is_tried_again = false;
        loop {
            if let Some(Alone::Moved(moved)) = self.try_move(key, is_tried_again, true).await {
                return moved;
            }
            is_tried_again = true;
        }
    }

    /// Tries to move a key whose lock is held. `None` if it has to be tried again.
    async fn try_move(&mut self, key: &Bytes, is_tried_again: bool, of_any_size: bool) -> Option<Alone> {
        match self.attempt(key, is_tried_again, of_any_size).await {
            Ok(alone) => Some(alone),
            Err(error) => self.after(error, key).await.map(Alone::Moved),
        }
    }

    /// What follows from where a key is.
    fn outcome(&self, key: &[u8], carried: Carried) -> Moved {
        match carried {
            Carried::Stays(why) => Moved::Refused(why.into()),
            Carried::Taken => self.taken(key),
            Carried::Earlier => Moved::Earlier,
            Carried::Arrived => Moved::Arrived,
        }
    }

    /// What follows if the target has another key of this name.
    pub(super) fn taken(&self, key: &[u8]) -> Moved {
        self.migration.alarms().taken = Some(Bytes::copy_from_slice(key));
        Moved::Refused("the target has another one of this name, which was not moved there".into())
    }

    /// What follows from an error: `None` if the move begins again, on new connections.
    pub(super) async fn after(&mut self, error: Error, key: &[u8]) -> Option<Moved> {
        // Refused by a server. The lock may be let go only if nothing was written: a copy at the target that
        // is not home would be mistaken for the key itself.
        if is_final(&error) && self.is_as_before(key).await {
            let text = error.to_string();
            self.migration.set_trouble(Some(text.clone()));
            return Some(Moved::Refused(text.into()));
        }
        self.begin_again(&error).await;
        None
    }

    /// Makes new connections after an error.
    async fn begin_again(&mut self, error: &Error) {
        self.note(error);
        self.source = None;
        self.replace_target().await;
        sleep(RETRY_PAUSE).await;
    }

    async fn attempt(&mut self, key: &[u8], is_tried_again: bool, of_any_size: bool) -> Result<Alone> {
        let migration = self.migration.clone();
        let route = route(&migration, is_tried_again);
        let is_in_filter = !migration.is_rebuilding() && migration.may_have_arrived(key);
        // What the target has is home, except what a crash has left, or an attempt that failed half-way.
        if !is_tried_again && is_in_filter {
            let (_, target) = self.links().await?;
            if target.call(&[b"EXISTS", key]).await? == Value::Int(1) {
                return Ok(Alone::Moved(Moved::Earlier));
            }
        }
        if !of_any_size && is_large(self.source().await?, key, &route).await? {
            return Ok(Alone::TooLarge);
        }
        let (source, target) = self.links().await?;
        let carried = carry(source, target, key, &route).await?;
        if carried == Carried::Arrived {
            migration.set_trouble(None);
            migration.tally.moved.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Alone::Moved(self.outcome(key, carried)))
    }

    /// The connection to the source, made again if there is none.
    pub(super) async fn source(&mut self) -> Result<&mut Link> {
        if self.source.is_none() {
            self.source = Some(self.migration.open_source().await?);
        }
        self.source.as_mut().ok_or_else(not_open)
    }

    /// Both connections.
    pub(super) async fn links(&mut self) -> Result<(&mut Link, &mut Link)> {
        if self.target.is_none() {
            self.target = Some(self.migration.servers.target.killable().await?);
        }
        self.source().await?;
        match (&mut self.source, &mut self.target) {
            (Some(source), Some((target, _))) => Ok((source, target)),
            _ => Err(not_open()),
        }
    }

    /// The move of a key begins again, because of this.
    pub(super) fn note(&self, error: &Error) {
        tracing::warn!(%error, "the move of a key begins again");
        self.migration.tally.retries.fetch_add(1, Ordering::Relaxed);
        self.migration.set_trouble(Some(error.to_string()));
    }

    /// Whether the target has nothing of a key, and nothing is on its way there.
    async fn is_as_before(&mut self, key: &[u8]) -> bool {
        self.source = None;
        self.replace_target().await;
        let Some((target, _)) = &mut self.target else { return false };
        let staged = staging_key(&self.migration.job, key);
        target.call(&unlink(&staged)).await.is_ok()
            && matches!(target.call(&[b"EXISTS", key]).await, Ok(Value::Int(0)))
    }

    /// After an error: a new connection to the target, once the old one has been ended. Otherwise a `RESTORE`
    /// that still waits in it could be carried out later, when the key has been deleted, and bring it back.
    async fn replace_target(&mut self) {
        let mut old = self.target.take().map(|(_, kill_handle)| kill_handle);
        loop {
            let replaced = async {
                if let Some(old) = &mut old {
                    old.kill().await?;
                }
                self.migration.servers.target.killable().await
            };
            match replaced.await {
                Ok(target) => {
                    self.target = Some(target);
                    return;
                }
                Err(error) => {
                    self.migration.set_trouble(Some(error.to_string()));
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

/// Whether a server has refused, and will again. A cluster in which a slot moves or a node fails will not for
/// ever.
fn is_final(error: &Error) -> bool {
    match &error.kind {
        ErrorKind::Server(refused) => !matches!(refused.code, Code::TryAgain | Code::ClusterDown),
        _ => false,
    }
}

/// How large keys are. Of few it is asked what costs the source more and takes no second question.
async fn sizes(migration: &MigrationState, source: &mut Link, keys: &[Bytes]) -> Result<Vec<Size>> {
    if migration.servers.strings {
        return sizes_of(source, keys, LARGE_BYTES, keys.len() <= FEW.keys).await;
    }
    let sizes = memory_bytes_of(source, keys, LARGE_BYTES).await?;
    Ok(sizes.into_iter().map(|bytes| Size::Other(bytes.unwrap_or(0))).collect())
}

/// What both sides are and can do.
pub(super) fn route(migration: &MigrationState, is_tried_again: bool) -> Route<'_> {
    let servers = &migration.servers;
    Route {
        source: &servers.source_can,
        target: &servers.target_can,
        dialects: servers.dialects,
        job: &migration.job,
        may_be_there: is_tried_again || migration.is_rebuilding(),
    }
}

fn not_open() -> Error {
    Error::own("move a key", "no connection after opening it")
}
