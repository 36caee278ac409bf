//! The reading half of a lane: from keys to key states.
//!
//! Strings are fetched in groups, since most keys of most deployments are short strings, and without asking
//! first what they are: `MGET` answers null for anything that is no string. What is left is measured, then
//! dumped or, above the big-key size, left to the writing half to be moved in chunks.
//!
//! **A value and its time to live always belong together.** On a standalone server a group is read in one
//! transaction. On a cluster, where a transaction may touch one slot only, the expiry is asked before and
//! after the value, and the key is read again where the two differ: an expiry that was the same before and
//! after was the expiry when the value was read.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use whimbrel_core::slot::Slot;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError};
use whimbrel_engine::expiry::{self, Expiry};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

use super::Shared;
use super::track::Origins;
use crate::budget::MemoryPermit;
use crate::progress::CopyProgress;
use crate::retry::Backoff;
use crate::scan::Unit;
use crate::state::{
    Body, CAREFUL_AVERAGE_BYTES, CAREFUL_VALUE_BYTES, GROUP_BYTES, GROUP_KEYS_MAX, SAMPLES_FIRST,
    UNSTABLE_ROUNDS_MAX, pack, was_sampled,
};

/// Keys on their way to a reader.
#[derive(Debug)]
pub(super) struct KeyBatch {
    pub keys: Vec<Bytes>,
    pub origins: Origins,
}

/// The state of one key.
#[derive(Debug)]
pub(super) struct State {
    pub key: Bytes,
    pub body: Body,
    /// Absolute, in milliseconds since the epoch.
    pub expires_at_ms: Option<i64>,
    /// Where the target sent us for this key with `ASK`; valid for one try.
    pub ask: Option<Address>,
}

impl State {
    /// Bytes of key and value, as far as they are in memory.
    pub fn bytes(&self) -> u64 {
        (self.key.len() + self.body.len()) as u64
    }
}

/// States on their way to a writer.
#[derive(Debug)]
pub(super) struct StateBatch {
    pub states: Vec<State>,
    /// Pages whose keys are dealt with once this batch is written. Empty on all but the last batch that a
    /// batch of keys gave rise to.
    pub origins: Origins,
    pub _permit: Option<MemoryPermit>,
}

/// Most bytes taken in for a group whose sizes were not asked. A reply that announces more is not taken in:
/// the connection is given up, and sizes are asked from then on. The server has such a reply in its output
/// buffer once, since nothing else tells it how much is too much.
const UNMEASURED_BYTES_MAX: u64 = 4 * GROUP_BYTES;

/// How many redirections of one key are followed.
const HOPS_MAX: usize = 6;

/// What a look at one key gave.
enum Fetched {
    Gone,
    Value(Bytes, Option<i64>),
    NotAString,
    /// Its expiry changed while it was read, or is unclear.
    Unstable,
    Redirected,
    /// Found elsewhere, and read there.
    Elsewhere(State),
    /// Its slot is in doubt, and is gone through again: it is left alone until then.
    Later,
    Refused(ServerError),
}

/// Which command fetches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fetch {
    Get,
    Dump,
}

impl Fetch {
    fn name(self) -> &'static [u8] {
        match self {
            Fetch::Get => b"GET",
            Fetch::Dump => b"DUMP",
        }
    }
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
        Reader {
            transactions: !shared.source.is_cluster(),
            careful: average_bytes >= CAREFUL_AVERAGE_BYTES,
            shared,
            unit,
            link: None,
            redirects: HashMap::new(),
            expires_seen: false,
            average_bytes: average_bytes.max(16) as f64,
        }
    }

    /// Reads batches until there are no more, or the writer is gone.
    pub async fn run(
        mut self,
        mut keys: mpsc::Receiver<KeyBatch>,
        states: mpsc::Sender<StateBatch>,
    ) -> Result<()> {
        while let Some(batch) = keys.recv().await {
            CopyProgress::shift(&self.shared.progress.waiting_to_read, -1);
            if self.shared.stop.is_cancelled() {
                // What has not been read is left to a later run.
                continue;
            }
            if !self.read(batch, &states).await? {
                break;
            }
        }
        Ok(())
    }

    /// Reads one batch; false where the writer is gone.
    async fn read(&mut self, batch: KeyBatch, out: &mpsc::Sender<StateBatch>) -> Result<bool> {
        let KeyBatch { mut keys, origins } = batch;
        if origins.len() > 1 || self.shared.source.is_cluster() {
            keys = last_of_each(keys);
        }
        if !self.shared.paced(self.shared.rates.take_keys(keys.len() as u64)).await {
            return Ok(true);
        }
        if self.shared.types_asked() {
            keys = self.of_wanted_types(keys).await?;
            self.shared.select(&mut keys);
        }
        let all = keys.len() as u64;
        let mut others = Vec::new();
        let mut measured = self.careful;
        let mut groups = VecDeque::from(match measured {
            true => self.measured_groups(keys, &mut others).await?,
            false => self.groups(keys),
        });
        while let Some((group, estimate)) = groups.pop_front() {
            if self.shared.stop.is_cancelled() {
                return Ok(true);
            }
            let permit = self.shared.budget.take(estimate).await;
            let bytes_max = (!measured).then_some(UNMEASURED_BYTES_MAX);
            let found = match self.strings(&group, bytes_max).await {
                Err(e) if e.is_too_large() && !measured => {
                    drop(permit);
                    (self.careful, measured) = (true, true);
                    let left = std::iter::once((group, 0)).chain(groups).flat_map(|(keys, _)| keys).collect();
                    groups = self.measured_groups(left, &mut others).await?.into();
                    continue;
                }
                found => found?,
            };
            others.extend(found.others);
            if !self.hand_over(found.states, permit, out).await {
                return Ok(false);
            }
        }
        let mut typed = Vec::new();
        for (group, estimate) in self.dump_groups(others, &mut typed).await? {
            if self.shared.stop.is_cancelled() {
                return Ok(true);
            }
            let permit = self.shared.budget.take(estimate).await;
            let states = self.dumps(group).await?;
            if !self.hand_over(states, permit, out).await {
                return Ok(false);
            }
        }
        CopyProgress::add(&self.shared.progress.read, all);
        let last = StateBatch { states: typed, origins, _permit: None };
        Ok(self.send(last, out).await)
    }

    async fn hand_over(
        &mut self,
        states: Vec<State>,
        permit: MemoryPermit,
        out: &mpsc::Sender<StateBatch>,
    ) -> bool {
        if states.is_empty() {
            return true;
        }
        let bytes: u64 = states.iter().map(State::bytes).sum();
        self.learn(states.len(), bytes, states.iter().map(State::bytes).max().unwrap_or(0));
        CopyProgress::add(&self.shared.progress.bytes_read, bytes);
        // Where the copy is stopped, what has been read is written all the same.
        self.shared.paced(self.shared.rates.take_bytes(bytes)).await;
        self.send(StateBatch { states, origins: Vec::new(), _permit: Some(permit) }, out).await
    }

    async fn send(&self, batch: StateBatch, out: &mpsc::Sender<StateBatch>) -> bool {
        CopyProgress::shift(&self.shared.progress.waiting_to_write, 1);
        out.send(batch).await.is_ok()
    }

    fn learn(&mut self, keys: usize, bytes: u64, largest: u64) {
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
                    out.push(&[b"STRLEN", key]);
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

    /// Reads strings in one go, where their replies are no longer than `bytes_max`.
    async fn strings(&mut self, keys: &[Bytes], bytes_max: Option<u64>) -> Result<Found> {
        let mut found = Found::default();
        let fetched = self.fetch(keys.to_vec(), Fetch::Get, bytes_max).await?;
        self.sort_out(fetched, &mut found);
        Ok(found)
    }

    fn sort_out(&self, fetched: Vec<(Bytes, Fetched)>, found: &mut Found) {
        for (key, fetched) in fetched {
            match fetched {
                Fetched::Value(value, expires_at_ms) => {
                    found.states.push(State { key, body: Body::String(value), expires_at_ms, ask: None });
                }
                Fetched::Elsewhere(state) => found.states.push(state),
                Fetched::NotAString => found.others.push(key),
                Fetched::Gone => self.gone(key, &mut found.states),
                Fetched::Later => {}
                Fetched::Refused(e) => self.shared.failed(self.unit.db, &key, format!("source: {}", e.text)),
                Fetched::Unstable if self.shared.options.mirror => {
                    self.shared.touch_again(&self.unit, key);
                }
                Fetched::Unstable | Fetched::Redirected => {
                    self.shared.failed(
                        self.unit.db,
                        &key,
                        "source: the key changed each time it was read".to_owned(),
                    );
                }
            }
        }
    }

    /// The key does not exist.
    fn gone(&self, key: Bytes, states: &mut Vec<State>) {
        match self.shared.options.mirror {
            // Counted when it has been removed.
            true => states.push(State { key, body: Body::Gone, expires_at_ms: None, ask: None }),
            false => CopyProgress::add(&self.shared.progress.gone, 1),
        }
    }

    /// `None` where the server does not let us use transactions.
    async fn strings_in_transaction(
        &mut self,
        keys: &[Bytes],
        bytes_max: Option<u64>,
    ) -> Result<Option<Vec<(Bytes, Fetched)>>> {
        let absolute = self.shared.source.capabilities.pexpiretime;
        loop {
            let with_expiries = self.expires_seen;
            let replies = self
                .exchange_within(bytes_max, &|out| {
                    out.push(&[b"MULTI"]);
                    out.command(keys.len() + 1);
                    out.arg(b"MGET");
                    for key in keys {
                        out.arg(key);
                    }
                    let mut queued = 2;
                    if !with_expiries {
                        out.push(&[b"INFO", b"keyspace"]);
                    } else {
                        for key in keys {
                            expiry::ask(out, absolute, key);
                        }
                        queued = 1 + keys.len() * expiry::commands(absolute);
                    }
                    out.push(&[b"EXEC"]);
                    queued + 2
                })
                .await?;
            if let Some(e) = replies.first().and_then(ServerError::of) {
                tracing::info!(error = %e.text, "no transactions there: reading without");
                return Ok(None);
            }
            let Some(exec) = replies.into_iter().next_back() else {
                return Err(Error::own("MGET", "no reply"));
            };
            if let Some(e) = ServerError::of(&exec) {
                tracing::info!(error = %e.text, "a transaction was refused: reading without");
                return Ok(None);
            }
            let Some([values, expiries @ ..]) = exec.as_items() else {
                return Err(self.unexpected("EXEC", &exec));
            };
            let Some(values) = values.as_items().filter(|v| v.len() == keys.len()) else {
                return Err(self.unexpected("MGET", values));
            };
            if !with_expiries {
                let info = expiries.first().and_then(Value::as_bytes).map(|text| Info::parse(text));
                if info.unwrap_or_default().keyspace().get(&self.unit.db).is_some_and(|c| c.expires > 0) {
                    self.expires_seen = true;
                    continue;
                }
            }
            let mut expiries = expiries.iter();
            let mut fetched = Vec::with_capacity(keys.len());
            for (key, value) in keys.iter().zip(values) {
                let expiry = match with_expiries {
                    true => expiry::read(&mut expiries, absolute),
                    false => Some(Expiry::Never),
                };
                fetched.push((
                    key.clone(),
                    match (value.as_bytes(), expiry) {
                        (None, _) => Fetched::NotAString,
                        (Some(value), Some(Expiry::At(ms))) => Fetched::Value(value.clone(), Some(ms)),
                        (Some(value), Some(Expiry::Never)) => Fetched::Value(value.clone(), None),
                        (Some(_), Some(Expiry::Unclear)) => Fetched::Unstable,
                        // Inside one transaction a key whose value was read cannot be gone.
                        (Some(_), Some(Expiry::Gone | Expiry::Unknown) | None) => {
                            return Err(self.unexpected("PEXPIRETIME or PTTL", &exec));
                        }
                    },
                ));
            }
            return Ok(Some(fetched));
        }
    }

    /// Sorts keys that are no strings, or large ones: those to be dumped in groups, and those to be moved in
    /// chunks, which go to `typed`.
    async fn dump_groups(
        &mut self,
        keys: Vec<Bytes>,
        typed: &mut Vec<State>,
    ) -> Result<Vec<(Vec<Bytes>, u64)>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let in_chunks = |key| State { key, body: Body::Typed, expires_at_ms: None, ask: None };
        let source = &self.shared.source.capabilities;
        if !(source.dump && source.memory_usage && self.shared.target.capabilities.restore) {
            typed.extend(keys.into_iter().map(in_chunks));
            return Ok(Vec::new());
        }
        let replies = self.memory_usage(&keys).await?;
        let mut sized = Vec::with_capacity(keys.len());
        for (key, reply) in keys.into_iter().zip(replies) {
            match (&reply, ServerError::of(&reply).map(|e| e.code)) {
                (Value::Int(n), _) if n.unsigned_abs() > self.shared.options.big_key_bytes => {
                    typed.push(in_chunks(key))
                }
                (Value::Int(n), _) => sized.push((key, n.unsigned_abs())),
                (Value::Null, _) => self.gone(key, typed),
                (_, Some(Code::NoPermission)) => {
                    let text = ServerError::of(&reply).map(|e| e.text).unwrap_or_default();
                    self.shared.failed(self.unit.db, &key, format!("source: {text}"));
                }
                // On the move: fetching it finds out where it is.
                (_, Some(Code::Moved(..) | Code::Ask(..) | Code::TryAgain)) => {
                    sized.push((key, CAREFUL_VALUE_BYTES))
                }
                _ => typed.push(in_chunks(key)),
            }
        }
        Ok(pack(sized))
    }

    /// The replies of `MEMORY USAGE`, exact for all that are not above the big-key size.
    async fn memory_usage(&mut self, keys: &[Bytes]) -> Result<Vec<Value>> {
        let mut replies = self
            .exchange(&|out| {
                for key in keys {
                    out.push(&[b"MEMORY", b"USAGE", key, b"SAMPLES", SAMPLES_FIRST]);
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
                    out.push(&[b"MEMORY", b"USAGE", &keys[i], b"SAMPLES", b"0"]);
                }
                sampled.len()
            })
            .await?;
        for (i, reply) in sampled.into_iter().zip(exact) {
            replies[i] = reply;
        }
        Ok(replies)
    }

    async fn dumps(&mut self, keys: Vec<Bytes>) -> Result<Vec<State>> {
        let mut states = Vec::with_capacity(keys.len());
        for (key, fetched) in self.fetch(keys, Fetch::Dump, None).await? {
            match fetched {
                Fetched::Value(payload, expires_at_ms) => {
                    states.push(State { key, body: Body::Dump(payload), expires_at_ms, ask: None });
                }
                Fetched::Elsewhere(state) => states.push(state),
                Fetched::Gone => self.gone(key, &mut states),
                Fetched::Later => {}
                Fetched::Refused(e) => self.shared.failed(self.unit.db, &key, format!("source: {}", e.text)),
                Fetched::Unstable if self.shared.options.mirror => {
                    self.shared.touch_again(&self.unit, key);
                }
                Fetched::NotAString | Fetched::Unstable | Fetched::Redirected => {
                    self.shared.failed(
                        self.unit.db,
                        &key,
                        "source: the key changed each time it was read".to_owned(),
                    );
                }
            }
        }
        Ok(states)
    }

    /// Fetches values with their expiries, one by one in a pipeline, until every key has a settled answer.
    async fn fetch(
        &mut self,
        keys: Vec<Bytes>,
        fetch: Fetch,
        bytes_max: Option<u64>,
    ) -> Result<Vec<(Bytes, Fetched)>> {
        let mut settled = Vec::with_capacity(keys.len());
        let mut open = keys;
        for _ in 0..UNSTABLE_ROUNDS_MAX {
            let mut again = Vec::new();
            for (key, fetched) in self.fetch_once(open, fetch, bytes_max).await? {
                match fetched {
                    Fetched::Unstable => again.push(key),
                    Fetched::Redirected => {
                        let fetched = self.follow(&key).await?;
                        settled.push((key, fetched));
                    }
                    other => settled.push((key, other)),
                }
            }
            open = again;
            if open.is_empty() {
                return Ok(settled);
            }
        }
        settled.extend(open.into_iter().map(|key| (key, Fetched::Unstable)));
        Ok(settled)
    }

    async fn fetch_once(
        &mut self,
        keys: Vec<Bytes>,
        fetch: Fetch,
        bytes_max: Option<u64>,
    ) -> Result<Vec<(Bytes, Fetched)>> {
        if fetch == Fetch::Get && self.transactions {
            if let Some(fetched) = self.strings_in_transaction(&keys, bytes_max).await? {
                return Ok(fetched);
            }
            self.transactions = false;
        }
        let absolute = self.shared.source.capabilities.pexpiretime;
        let with_expiries = self.expires_seen || fetch == Fetch::Dump;
        let replies = self
            .exchange_within(bytes_max, &|out| {
                if !with_expiries {
                    // No expiry in the whole database after the values were read (nor before): none of these
                    // had one.
                    out.push(&[b"INFO", b"keyspace"]);
                    for key in &keys {
                        out.push(&[fetch.name(), key]);
                    }
                    out.push(&[b"INFO", b"keyspace"]);
                    return keys.len() + 2;
                }
                for key in &keys {
                    expiry::ask(out, absolute, key);
                    out.push(&[fetch.name(), key]);
                    expiry::ask(out, absolute, key);
                }
                keys.len() * (1 + 2 * expiry::commands(absolute))
            })
            .await?;
        if !with_expiries {
            let none = |reply: Option<&Value>| {
                reply.and_then(Value::as_bytes).is_some_and(|t| {
                    Info::parse(t).keyspace().get(&self.unit.db).is_none_or(|c| c.expires == 0)
                })
            };
            if !none(replies.first()) || !none(replies.last()) {
                self.expires_seen = true;
                return Ok(keys.into_iter().map(|key| (key, Fetched::Unstable)).collect());
            }
            let values = replies.into_iter().skip(1);
            return Ok(keys.into_iter().zip(values.map(|v| outcome(v, Expiry::Never, fetch))).collect());
        }
        let mut replies = replies.into_iter();
        let mut results = Vec::with_capacity(keys.len());
        for key in keys {
            let before = expiry::read(&mut replies, absolute);
            let value = replies.next();
            let after = expiry::read(&mut replies, absolute);
            let (Some(before), Some(value), Some(after)) = (before, value, after) else {
                return Err(Error::own("read a pipeline", "a reply is missing"));
            };
            let fetched = match (ServerError::of(&value), before == after) {
                (None, false) => Fetched::Unstable,
                _ => outcome(value, before, fetch),
            };
            results.push((key, fetched));
        }
        Ok(results)
    }

    /// Reads one key whose slot is on the move, wherever it is.
    async fn follow(&mut self, key: &Bytes) -> Result<Fetched> {
        let absolute = self.shared.source.capabilities.pexpiretime;
        for _ in 0..UNSTABLE_ROUNDS_MAX {
            let before = self.follow_expiry(key, absolute).await?;
            let mut fetch = Fetch::Get;
            let mut value = self.follow_call(key, &[b"GET", key]).await?;
            if ServerError::of(&value).is_some_and(|e| e.code == Code::WrongType) {
                let big = self.shared.options.big_key_bytes;
                let usage = [&b"MEMORY"[..], b"USAGE", key, b"SAMPLES", SAMPLES_FIRST];
                let mut size = self.follow_call(key, &usage).await?;
                if was_sampled(&size, big) {
                    size = self.follow_call(key, &[b"MEMORY", b"USAGE", key, b"SAMPLES", b"0"]).await?;
                }
                if size.as_int().is_some_and(|n| n.unsigned_abs() > big) {
                    // Too large to be read here in one piece: its slot is gone through again when it has
                    // settled.
                    self.shared.doubt_source(Slot::of_key(key));
                    return Ok(Fetched::Later);
                }
                fetch = Fetch::Dump;
                value = self.follow_call(key, &[b"DUMP", key]).await?;
            }
            let after = self.follow_expiry(key, absolute).await?;
            if before != after || before == Expiry::Unclear {
                continue;
            }
            return Ok(match outcome(value, before, fetch) {
                Fetched::Value(bytes, expires_at_ms) => {
                    let body = if fetch == Fetch::Get { Body::String(bytes) } else { Body::Dump(bytes) };
                    Fetched::Elsewhere(State { key: key.clone(), body, expires_at_ms, ask: None })
                }
                other => other,
            });
        }
        Ok(Fetched::Unstable)
    }

    async fn follow_expiry(&mut self, key: &Bytes, absolute: bool) -> Result<Expiry> {
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        expiry::question(absolute, key, &mut |command| commands.push(command.to_vec()));
        let replies = self.follow_calls(key, &commands).await?;
        Ok(expiry::read(&mut replies.into_iter(), absolute).unwrap_or(Expiry::Unknown))
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
                    self.shared.doubt_source(slot);
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
        for args in commands {
            if asking {
                link.push(&[b"ASKING"]);
            }
            link.push(args);
        }
        link.flush().await?;
        let mut replies = Vec::with_capacity(commands.len());
        for _ in commands {
            if asking {
                link.reply().await?;
            }
            replies.push(link.reply().await?);
        }
        Ok(replies)
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
            // Whatever tells no type is kept, for the read to find out why: rather one too many than one too
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

    /// As [`Reader::exchange`], where the replies are no longer than `bytes_max`; [`Error::is_too_large`]
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

/// What a group of keys turned out to be.
#[derive(Default)]
struct Found {
    states: Vec<State>,
    others: Vec<Bytes>,
}

fn outcome(reply: Value, expiry: Expiry, fetch: Fetch) -> Fetched {
    match ServerError::of(&reply) {
        None => match (reply.into_bytes(), expiry) {
            (None, _) => Fetched::Gone,
            (Some(value), Expiry::Never) => Fetched::Value(value, None),
            (Some(value), Expiry::At(ms)) => Fetched::Value(value, Some(ms)),
            // Created and deleted again around the read, or to be asked again.
            (Some(_), Expiry::Gone | Expiry::Unclear) => Fetched::Unstable,
            // Without its expiry a key would live for ever on the other side.
            (Some(_), Expiry::Unknown) => {
                Fetched::Refused(ServerError::classify(b"NOPERM the expiry cannot be read"))
            }
        },
        Some(e) => match e.code {
            Code::WrongType if fetch == Fetch::Get => Fetched::NotAString,
            Code::Moved(..) | Code::Ask(..) | Code::TryAgain => Fetched::Redirected,
            _ => Fetched::Refused(e),
        },
    }
}

/// The keys without repetitions, each at its last place. A scan may give a key twice, and two reads of one
/// key that are written together would be told apart by nothing.
fn last_of_each(mut keys: Vec<Bytes>) -> Vec<Bytes> {
    let mut seen = HashSet::with_capacity(keys.len());
    let last: Vec<bool> = keys.iter().rev().map(|key| seen.insert(key.clone())).collect();
    if seen.len() < keys.len() {
        let mut last = last.into_iter().rev();
        keys.retain(|_| last.next().unwrap_or(true));
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
