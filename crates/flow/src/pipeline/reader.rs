//! The reading half of a lane: from keys to key states.
//!
//! Strings are fetched in groups, since most keys of most deployments are short strings, and without asking
//! first what they are. What is left is measured, then dumped or, above the big-key size, left to the writing
//! half to be moved in chunks. What a user may neither fetch as a string nor ask the size of is [dumped
//! without](payloads). On a standalone server a group of strings is read in one
//! [transaction](Way::Transaction), everything else [between two questions](Way::Bracketed) for its expiry.

mod payloads;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use whimbrel_core::slot::Slot;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError};
use whimbrel_engine::expiry::{self, Clock};
use whimbrel_engine::link::Link;
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::shared::Shared;
use super::tracker::Origins;
use super::writers::{Batch, Writers};
use crate::keys::read::{Answer, UNSTABLE_ROUNDS_MAX};
use crate::keys::size::{GROUP_BYTES, GROUP_KEYS_MAX, Samples, length, pack, usage, was_sampled};
use crate::keys::{Fetch, Found, KeyState, Read, Way};
use crate::large::is_of_module;
use crate::memory::MemoryPermit;
use crate::progress::CopyProgress;
use crate::retry::Backoff;
use crate::scan::Unit;

/// Keys on their way to a reader.
#[derive(Debug)]
pub(super) struct KeyBatch {
    pub keys: Vec<Bytes>,
    pub origins: Origins,
}

/// Most bytes taken in for a group whose sizes were not asked. A reply that announces more is not taken in:
/// the connection is given up, and sizes are asked from then on. The server has such a reply in its output
/// buffer once, since nothing else shows how much is too much.
const UNMEASURED_BYTES_MAX: u64 = 4 * GROUP_BYTES;

/// How many redirections of one key are followed.
const HOPS_MAX: usize = 6;

/// From this size of a value on, or on average, sizes are asked before values: a group of unexpectedly large
/// values would fill the server's output buffer.
const CAREFUL_VALUE_BYTES: u64 = 64 << 10;
const CAREFUL_AVERAGE_BYTES: u64 = 2 << 10;

/// What became of one key.
enum Fetched {
    /// As it was found at the node that was asked, or where that sent us.
    Found(Found, Fetch),
    /// Its slot is in doubt, and is gone through again: it is left alone until then.
    Later,
}

/// The destination of a batch's states.
struct Out<'a> {
    writers: &'a Writers,
    batch: Arc<Batch>,
}

/// What is sent last of a batch: keys that are gone, and those that do not travel as one state.
#[derive(Default)]
struct Last {
    states: Vec<KeyState>,
    in_chunks: Vec<Bytes>,
}

/// The reading half of one lane.
pub(super) struct Reader {
    shared: Arc<Shared>,
    unit: Unit,
    link: Option<Link>,
    redirects: HashMap<Address, Link>,
    /// Whether any key of this database has, or had, a time to live. Until one is seen, one look at the
    /// counters spares a command for each key.
    expires_seen: bool,
    transactions: bool,
    careful: bool,
    average_bytes: f64,
}

impl Reader {
    pub fn new(shared: Arc<Shared>, unit: Unit, average_bytes: u64) -> Reader {
        // A key need not lie at the server of a proxy that was asked for its counters.
        let expires_seen = shared.source.is_proxied() || !shared.source.facts.are_known;
        Reader {
            transactions: !shared.source.is_cluster() && !shared.source.is_proxied(),
            careful: average_bytes >= CAREFUL_AVERAGE_BYTES,
            shared,
            unit,
            link: None,
            redirects: HashMap::new(),
            expires_seen,
            average_bytes: average_bytes.max(16) as f64,
        }
    }

    /// Reads batches until there are no more, or the writer is gone.
    pub async fn run(mut self, mut keys: mpsc::Receiver<KeyBatch>, writers: Writers) -> Result<()> {
        while let Some(batch) = keys.recv().await {
            CopyProgress::shift(&self.shared.progress.waiting_to_read, -1);
            if self.shared.stop.is_cancelled() {
                // What has not been read is left to a later run.
                continue;
            }
            if !self.read(batch, &writers).await? {
                break;
            }
        }
        Ok(())
    }

    /// Reads one batch; false if a writer is gone.
    async fn read(&mut self, batch: KeyBatch, writers: &Writers) -> Result<bool> {
        let KeyBatch { mut keys, origins } = batch;
        let several_pages = origins.len() > 1;
        let out = &Out { writers, batch: writers.begin(origins) };
        if several_pages || self.shared.source.is_cluster() {
            keys = last_of_each(keys);
        }
        if !self.shared.limits.paced(self.shared.limits.rates.take_keys(keys.len() as u64)).await {
            return Ok(true);
        }
        if self.shared.options.asks_types() {
            keys = self.of_wanted_types(keys).await?;
            self.shared.limits.select(&mut keys);
        }
        let all = keys.len() as u64;
        let mut others = Vec::new();
        if !self.shared.source.capabilities.get {
            others = std::mem::take(&mut keys);
        }
        let mut measured = self.careful;
        let mut groups = VecDeque::from(match measured {
            true => self.measured_groups(keys, &mut others).await?,
            false => self.groups(keys),
        });
        while let Some((mut group, estimate)) = groups.pop_front() {
            if self.shared.stop.is_cancelled() {
                return Ok(true);
            }
            let permit = self.shared.limits.budget.take(estimate).await;
            let bytes_max = (!measured).then_some(UNMEASURED_BYTES_MAX);
            let found = match self.fetch(&mut group, Fetch::String, bytes_max).await {
                Err(e) if e.is_too_large() && !measured => {
                    drop(permit);
                    (self.careful, measured) = (true, true);
                    let left = std::iter::once((group, 0)).chain(groups).flat_map(|(keys, _)| keys).collect();
                    groups = self.measured_groups(left, &mut others).await?.into();
                    continue;
                }
                found => found?,
            };
            let states = self.sort_out(found, Some(&mut others));
            if !self.hand_over(states, permit, out).await {
                return Ok(false);
            }
        }
        let mut last = Last::default();
        if self.dumps_unmeasured() {
            if !self.dump_unmeasured(others, out).await? {
                return Ok(false);
            }
            others = Vec::new();
        }
        for (mut group, estimate) in self.dump_groups(others, &mut last).await? {
            if self.shared.stop.is_cancelled() {
                return Ok(true);
            }
            let permit = self.shared.limits.budget.take(estimate).await;
            let found = self.fetch(&mut group, Fetch::Payload, None).await?;
            let states = self.sort_out(found, None);
            if !self.hand_over(states, permit, out).await {
                return Ok(false);
            }
        }
        if self.shared.stop.is_cancelled() {
            return Ok(true);
        }
        CopyProgress::add(&self.shared.progress.read, all);
        let Last { states, in_chunks } = last;
        let is_sent = writers.send(&self.shared, &out.batch, states, in_chunks, None).await;
        out.batch.part_is_done();
        Ok(is_sent)
    }

    async fn hand_over(&mut self, states: Vec<KeyState>, permit: MemoryPermit, out: &Out<'_>) -> bool {
        if states.is_empty() {
            return true;
        }
        let bytes: u64 = states.iter().map(KeyState::bytes).sum();
        self.adapt(states.len(), bytes, states.iter().map(KeyState::bytes).max().unwrap_or(0));
        CopyProgress::add(&self.shared.progress.bytes_read, bytes);
        // If the copy is stopped, what has been read is written all the same.
        self.shared.limits.paced(self.shared.limits.rates.take_bytes(bytes)).await;
        out.writers.send(&self.shared, &out.batch, states, Vec::new(), Some(permit)).await
    }

    fn adapt(&mut self, keys: usize, bytes: u64, largest: u64) {
        let mean = bytes as f64 / keys.max(1) as f64;
        self.average_bytes = (self.average_bytes * 0.7 + mean * 0.3).max(16.0);
        if largest >= CAREFUL_VALUE_BYTES {
            self.careful = true;
        }
    }

    /// Splits keys into groups by the average size of the values seen so far.
    fn groups(&self, keys: Vec<Bytes>) -> Vec<(Vec<Bytes>, u64)> {
        let per_group = ((GROUP_BYTES as f64 / self.average_bytes) as usize).clamp(1, GROUP_KEYS_MAX);
        let estimate = |n: usize| (n as f64 * self.average_bytes) as u64;
        if keys.len() <= per_group {
            let bytes = estimate(keys.len());
            return vec![(keys, bytes)];
        }
        keys.chunks(per_group).map(|g| (g.to_vec(), estimate(g.len()))).collect()
    }

    /// Asks for the length of each string and groups by it; what is no string goes to `others`.
    async fn measured_groups(
        &mut self,
        keys: Vec<Bytes>,
        others: &mut Vec<Bytes>,
    ) -> Result<Vec<(Vec<Bytes>, u64)>> {
        let replies = self
            .exchange(&|out| {
                for key in &keys {
                    out.push(&length(key));
                }
                keys.len()
            })
            .await?;
        let mut sized = Vec::with_capacity(keys.len());
        for (key, reply) in keys.into_iter().zip(replies) {
            match reply.as_int() {
                Some(len) if len.unsigned_abs() > self.shared.options.big_key_bytes => others.push(key),
                Some(len) => sized.push((key, len.unsigned_abs())),
                // Not a string, or on the move: the way for the others finds out.
                None => others.push(key),
            }
        }
        Ok(pack(sized))
    }

    /// The states among what was found, of keys that are no strings as well if these are not wanted as
    /// `others`. What is to be reported, or transferred later, is handed on.
    fn sort_out(&self, fetched: Vec<(Bytes, Fetched)>, mut others: Option<&mut Vec<Bytes>>) -> Vec<KeyState> {
        let mut states = Vec::with_capacity(fetched.len());
        for (key, fetched) in fetched {
            let Fetched::Found(found, fetch) = fetched else { continue };
            match (found, &mut others) {
                (Found::NotAString, Some(others)) => others.push(key),
                (Found::Gone, _) => self.gone(key, &mut states),
                (Found::Refused(e), _) => {
                    self.shared.failed(self.unit.db, &key, format!("source: {}", e.text));
                }
                (Found::Unstable, _) if self.shared.options.mirror => {
                    self.shared.unstable.note(&self.unit, key);
                }
                (Found::NotAString, None) | (Found::Unstable | Found::Redirected(_), _) => {
                    self.shared.failed(
                        self.unit.db,
                        &key,
                        "source: the key changed each time it was read".to_owned(),
                    );
                }
                (found @ Found::Value(..), _) => states.extend(found.into_state(key, fetch)),
            }
        }
        states
    }

    /// The key does not exist.
    fn gone(&self, key: Bytes, states: &mut Vec<KeyState>) {
        match self.shared.options.mirror {
            // Counted when it has been removed.
            true => states.push(KeyState::gone(key)),
            false => CopyProgress::add(&self.shared.progress.gone, 1),
        }
    }

    /// Sorts keys that are no strings, or large ones: those to be dumped in groups, and those to be moved in
    /// chunks, which go to `last`.
    async fn dump_groups(&mut self, keys: Vec<Bytes>, last: &mut Last) -> Result<Vec<(Vec<Bytes>, u64)>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let source = &self.shared.source.capabilities;
        if !(source.dump && source.memory_usage && self.shared.target.capabilities.restore) {
            last.in_chunks.extend(keys);
            return Ok(Vec::new());
        }
        let replies = self.memory_usage(&keys).await?;
        let whole = self.only_whole(&keys, &replies).await?;
        let mut sized = Vec::with_capacity(keys.len());
        for (key, reply) in keys.into_iter().zip(replies) {
            match (&reply, ServerError::of(&reply).map(|e| e.code)) {
                (Value::Int(n), _)
                    if n.unsigned_abs() > self.shared.options.big_key_bytes && !whole.contains(&key) =>
                {
                    last.in_chunks.push(key);
                }
                (Value::Int(n), _) => sized.push((key, n.unsigned_abs())),
                (Value::Null, _) => self.gone(key, &mut last.states),
                (_, Some(Code::NoPermission)) => {
                    let text = ServerError::of(&reply).map(|e| e.text).unwrap_or_default();
                    self.shared.failed(self.unit.db, &key, format!("source: {text}"));
                }
                // On the move: fetching it finds out where it is.
                (_, Some(Code::Moved(..) | Code::Ask(..) | Code::TryAgain)) => {
                    sized.push((key, CAREFUL_VALUE_BYTES))
                }
                _ => last.in_chunks.push(key),
            }
        }
        Ok(pack(sized))
    }

    /// Those of the large keys whose values cannot be taken apart: their types are those of modules.
    async fn only_whole(&mut self, keys: &[Bytes], usages: &[Value]) -> Result<HashSet<Bytes>> {
        let big = self.shared.options.big_key_bytes;
        let is_large = |usage: &Value| usage.as_int().is_some_and(|n| n.unsigned_abs() > big);
        let large: Vec<&Bytes> =
            keys.iter().zip(usages).filter(|(_, usage)| is_large(usage)).map(|(key, _)| key).collect();
        if large.is_empty() {
            return Ok(HashSet::new());
        }
        let ask = |out: &mut Outbox| {
            for key in &large {
                out.push(&[b"TYPE", key]);
            }
            large.len()
        };
        let types = self.exchange(&ask).await?;
        let of_modules = large.iter().zip(&types).filter(|(_, name)| name.as_str().is_some_and(is_of_module));
        Ok(of_modules.map(|(key, _)| (*key).clone()).collect())
    }

    /// The replies of `MEMORY USAGE`, exact for all that are not above the big-key size.
    async fn memory_usage(&mut self, keys: &[Bytes]) -> Result<Vec<Value>> {
        let mut replies = self
            .exchange(&|out| {
                for key in keys {
                    out.push(&usage(key, Samples::First));
                }
                keys.len()
            })
            .await?;
        let big = self.shared.options.big_key_bytes;
        let sampled: Vec<usize> = (0..keys.len()).filter(|&i| was_sampled(&replies[i], big)).collect();
        if sampled.is_empty() {
            return Ok(replies);
        }
        let exact = self
            .exchange(&|out| {
                for &i in &sampled {
                    out.push(&usage(&keys[i], Samples::All));
                }
                sampled.len()
            })
            .await?;
        for (i, reply) in sampled.into_iter().zip(exact) {
            replies[i] = reply;
        }
        Ok(replies)
    }

    /// Fetches values with their expiries until every key has a settled answer, and takes the keys out of
    /// `keys`. If it fails, all are there still, in any order: values may be larger than `bytes_max` allows.
    async fn fetch(
        &mut self,
        keys: &mut Vec<Bytes>,
        fetch: Fetch,
        bytes_max: Option<u64>,
    ) -> Result<Vec<(Bytes, Fetched)>> {
        let mut open = std::mem::take(keys);
        let mut settled: Vec<(Bytes, Fetched)> = Vec::with_capacity(open.len());
        for _ in 0..UNSTABLE_ROUNDS_MAX {
            let found = match self.fetch_once(&open, fetch, bytes_max).await {
                Ok(found) => found,
                Err(e) => {
                    open.extend(settled.into_iter().map(|(key, _)| key));
                    *keys = open;
                    return Err(e);
                }
            };
            let mut again = Vec::new();
            let mut pairs = open.into_iter().zip(found);
            while let Some((key, found)) = pairs.next() {
                match found {
                    Found::Unstable => again.push(key),
                    Found::Redirected(_) => match self.follow(&key).await {
                        Ok(fetched) => settled.push((key, fetched)),
                        Err(e) => {
                            let left = pairs.map(|(key, _)| key).chain(again);
                            keys.extend(left.chain(settled.into_iter().map(|(key, _)| key)));
                            keys.push(key);
                            return Err(e);
                        }
                    },
                    found => settled.push((key, Fetched::Found(found, fetch))),
                }
            }
            open = again;
            if open.is_empty() {
                return Ok(settled);
            }
        }
        settled.extend(open.into_iter().map(|key| (key, Fetched::Found(Found::Unstable, fetch))));
        Ok(settled)
    }

    async fn fetch_once(
        &mut self,
        keys: &[Bytes],
        fetch: Fetch,
        bytes_max: Option<u64>,
    ) -> Result<Vec<Found>> {
        loop {
            let read = Read {
                fetch,
                way: match fetch {
                    Fetch::String if self.transactions => Way::Transaction,
                    _ => Way::Bracketed,
                },
                clock: self.shared.source.capabilities.clock(),
                expiries: self.expires_seen || fetch == Fetch::Payload,
                asking: false,
            };
            let replies = self.exchange_within(bytes_max, &|out| read.push(out, keys)).await?;
            match read.answer(keys.len(), replies, self.unit.db) {
                Answer::Found(found) => return Ok(found),
                Answer::ExpiriesSeen => self.expires_seen = true,
                Answer::NoTransactions(e) => {
                    tracing::info!(error = %e.text, "no transactions there: reading without");
                    self.transactions = false;
                }
                Answer::Unexpected(command, Some(reply)) => return Err(self.unexpected(command, &reply)),
                Answer::Unexpected(command, None) => return Err(Error::own(command, "a reply is missing")),
            }
        }
    }

    /// Reads one key whose slot is on the move, wherever it is.
    async fn follow(&mut self, key: &Bytes) -> Result<Fetched> {
        let big = self.shared.options.big_key_bytes;
        for _ in 0..UNSTABLE_ROUNDS_MAX {
            let clock = self.shared.source.capabilities.clock();
            let before = self.follow_expiry(key, clock).await?;
            let (fetch, size) = self.follow_size(key).await?;
            if size.is_some_and(|bytes| bytes > big) {
                // Too large to be read here in one piece: its slot is gone through again when it has settled.
                self.shared.suspects.note_source(Slot::of_key(key));
                return Ok(Fetched::Later);
            }
            let value = self.follow_call(key, &[fetch.command(), key]).await?;
            if ServerError::of(&value).is_some_and(|e| e.code == Code::WrongType) {
                // It was replaced since it was measured.
                continue;
            }
            let after = self.follow_expiry(key, clock).await?;
            let read = Read { fetch, way: Way::Bracketed, clock, expiries: true, asking: false };
            let mut replies: Vec<Value> = before.into_iter().chain([value]).chain(after).collect();
            match read.found(&mut replies) {
                Found::Unstable => {}
                found => return Ok(Fetched::Found(found, fetch)),
            }
        }
        Ok(Fetched::Found(Found::Unstable, Fetch::String))
    }

    /// How it is fetched, and how many bytes it takes, if its server says that.
    async fn follow_size(&mut self, key: &Bytes) -> Result<(Fetch, Option<u64>)> {
        if self.shared.source.capabilities.get
            && let Some(length) = self.follow_call(key, &length(key)).await?.as_int()
        {
            return Ok((Fetch::String, Some(length.unsigned_abs())));
        }
        let mut size = self.follow_usage(key, Samples::First).await?;
        if was_sampled(&size, self.shared.options.big_key_bytes) {
            size = self.follow_usage(key, Samples::All).await?;
        }
        Ok((Fetch::Payload, size.as_int().map(i64::unsigned_abs)))
    }

    async fn follow_usage(&mut self, key: &Bytes, samples: Samples) -> Result<Value> {
        self.follow_call(key, &usage(key, samples)).await
    }

    async fn follow_expiry(&mut self, key: &Bytes, clock: Clock) -> Result<Vec<Value>> {
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        expiry::question(clock, key, &mut |command| commands.push(command.to_vec()));
        self.follow_calls(key, &commands).await
    }

    async fn follow_call(&mut self, key: &Bytes, args: &[&[u8]]) -> Result<Value> {
        let replies = self.follow_calls(key, &[args.to_vec()]).await?;
        Ok(replies.into_iter().next_back().unwrap_or(Value::Null))
    }

    /// Has one node answer all commands, whichever has the key.
    async fn follow_calls(&mut self, key: &Bytes, commands: &[Vec<&[u8]>]) -> Result<Vec<Value>> {
        let slot = Slot::of_key(key);
        let mut backoff = Backoff::new(self.shared.options.retry);
        let mut next: Option<(Address, bool)> = None;
        let mut hops = 0;
        loop {
            let (address, asking) = match next.take() {
                Some(hop) => hop,
                None => match self.shared.source.topology().shard_of(slot) {
                    Some(shard) => (shard.primary.clone(), false),
                    None => {
                        self.shared.pause(&mut backoff, self.shared.source.unowned(slot)).await?;
                        self.shared.refresh_source().await;
                        continue;
                    }
                },
            };
            let replies = match self.side_calls(&address, asking, commands).await {
                Ok(replies) => replies,
                Err(e) => {
                    self.redirects.remove(&address);
                    self.shared.pause(&mut backoff, e).await?;
                    self.shared.refresh_source().await;
                    continue;
                }
            };
            let Some(e) = replies.iter().find_map(ServerError::of) else { return Ok(replies) };
            match &e.code {
                Code::Moved(_, to) | Code::Ask(_, to) if hops < HOPS_MAX => {
                    hops += 1;
                    self.shared.suspects.note_source(slot);
                    let asking = matches!(e.code, Code::Ask(..));
                    next = self.shared.source.reach(to, &address).map(|a| (a, asking));
                }
                // Two nodes that each say it is the other's, for example, have yet to hear the news.
                code if code.is_transient() => {
                    let tried = commands.last().and_then(|args| args.first()).copied().unwrap_or_default();
                    let tried = String::from_utf8_lossy(tried).into_owned();
                    let kind = ErrorKind::Server(e);
                    let error = Error::new(self.shared.source.side(), address.to_string(), tried, kind);
                    self.shared.pause(&mut backoff, error).await?;
                    self.shared.refresh_source().await;
                    hops = 0;
                }
                _ => return Ok(replies),
            }
        }
    }

    async fn side_calls(
        &mut self,
        address: &Address,
        asking: bool,
        commands: &[Vec<&[u8]>],
    ) -> Result<Vec<Value>> {
        if !self.redirects.contains_key(address) {
            let link = self.shared.source.open(address, self.unit.db).await?;
            self.redirects.insert(address.clone(), link);
        }
        let Some(link) = self.redirects.get_mut(address) else {
            return Err(Error::own("follow a redirection", "no connection"));
        };
        link.ask_each(asking, commands).await
    }

    async fn of_wanted_types(&mut self, keys: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let replies = self
            .exchange(&|out| {
                for key in &keys {
                    out.push(&[b"TYPE", key]);
                }
                keys.len()
            })
            .await?;
        let mut of_types = Vec::with_capacity(keys.len());
        for (key, mut reply) in keys.into_iter().zip(replies) {
            let redirected = ServerError::of(&reply)
                .is_some_and(|e| matches!(e.code, Code::Moved(..) | Code::Ask(..) | Code::TryAgain));
            if redirected {
                reply = self.follow_call(&key, &[b"TYPE", &key]).await?;
            }
            let wanted = &self.shared.options.types;
            // Whatever names no type is kept, for the read to find out why: rather one too many than one too
            // few. Servers do not care about case here either.
            if reply.as_str().is_none_or(|t| wanted.iter().any(|w| w.eq_ignore_ascii_case(t))) {
                of_types.push(key);
            }
        }
        Ok(of_types)
    }

    /// Sends what `build` queues and returns its replies, on a connection to the owner of the unit, again
    /// and again until the whole exchange has succeeded. `build` returns how many replies to expect.
    async fn exchange(&mut self, build: &(dyn Fn(&mut Outbox) -> usize + Send + Sync)) -> Result<Vec<Value>> {
        self.exchange_within(None, build).await
    }

    /// As [`Reader::exchange`], if the replies are no longer than `bytes_max`; [`Error::is_too_large`]
    /// otherwise.
    async fn exchange_within(
        &mut self,
        bytes_max: Option<u64>,
        build: &(dyn Fn(&mut Outbox) -> usize + Send + Sync),
    ) -> Result<Vec<Value>> {
        let mut backoff = Backoff::new(self.shared.options.retry);
        loop {
            match self.try_exchange(bytes_max, build).await {
                Ok(replies) => return Ok(replies),
                Err(e) => {
                    self.link = None;
                    if e.is_too_large() {
                        return Err(e);
                    }
                    self.shared.progress.retried(&e);
                    self.shared.pause(&mut backoff, e).await?;
                    self.shared.refresh_source().await;
                }
            }
        }
    }

    async fn try_exchange(
        &mut self,
        bytes_max: Option<u64>,
        build: &(dyn Fn(&mut Outbox) -> usize + Send + Sync),
    ) -> Result<Vec<Value>> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.unit.open(&self.shared.source).await?,
        };
        let expected = build(link.outbox());
        link.flush().await?;
        let replies = match bytes_max {
            Some(bytes_max) => link.replies_within(expected, bytes_max).await?,
            None => link.replies(expected).await?,
        };
        let mut moved = false;
        for e in replies.iter().filter_map(ServerError::of) {
            match e.code {
                // The node as a whole cannot answer now.
                Code::Loading | Code::MasterDown | Code::ClusterDown | Code::Busy => {
                    return Err(link.server_error(e, b"read keys"));
                }
                Code::Moved(..) => moved = true,
                _ => {}
            }
        }
        if moved {
            self.shared.refresh_source().await;
            let topology = self.shared.source.topology();
            let here = self.unit.shard(&topology).map(|s| &s.primary) == Some(link.address());
            if !here && !self.unit.from_replica {
                // The unit itself has moved, by a failover: everything is to be asked there.
                let text = "MOVED with its whole shard".to_owned();
                return Err(link.server_error(ServerError { code: Code::TryAgain, text }, b"read keys"));
            }
        }
        self.link = Some(link);
        Ok(replies)
    }

    fn unexpected(&self, command: &str, reply: &Value) -> Error {
        match &self.link {
            Some(link) => link.unexpected(command, reply),
            None => Error::own(command, "unexpected reply"),
        }
    }
}

/// The keys without repetitions, each at its last place. A scan may give a key twice, and two reads of one
/// key that are written together would be distinguished by nothing.
fn last_of_each(mut keys: Vec<Bytes>) -> Vec<Bytes> {
    // Sorted by a quick hash: a set of the keys took a twentieth of the time of a copy.
    let mut places: Vec<(u64, usize)> =
        keys.iter().enumerate().map(|(place, key)| (xxh3_64(key), place)).collect();
    places.sort_unstable();
    let mut superseded = HashSet::new();
    for alike in places.chunk_by(|(a, _), (b, _)| a == b).filter(|alike| alike.len() > 1) {
        for (at, (_, place)) in alike.iter().enumerate() {
            if alike[at + 1..].iter().any(|(_, later)| keys[*later] == keys[*place]) {
                superseded.insert(*place);
            }
        }
    }
    if !superseded.is_empty() {
        let mut place = 0..;
        keys.retain(|_| place.next().is_none_or(|place| !superseded.contains(&place)));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_stays_at_its_last_place() {
        let keys = |text: &'static str| {
            text.split(' ').map(|key| Bytes::from_static(key.as_bytes())).collect::<Vec<_>>()
        };
        assert_eq!(last_of_each(keys("a b c")), keys("a b c"));
        assert_eq!(last_of_each(keys("a b a c b a")), keys("c b a"));
        assert_eq!(last_of_each(Vec::new()), Vec::<Bytes>::new());
    }
}
