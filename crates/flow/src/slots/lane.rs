//! One lane of a slot transfer: a connection to each node, and the keys of certain slots.
//!
//! A lane reads from the source and writes to the target strictly in order, so of two reads of one key the
//! later is written later. The next group is read while the one before is written.
//!
//! A value and its expiry are two replies of one pipeline, and may belong to different moments: whatever
//! happened in between is in the feed, and the key is transferred again. The same holds for everything else
//! that is read here.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Code, Error, Result, ServerError, Side};
use whimbrel_engine::expiry::{self, Expiry};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_engine::slot_keys;
use whimbrel_wire::payload;
use whimbrel_wire::value::Value;

use super::Shared;
use crate::large::elements;
use crate::large::{self, KeyType, Outcome, Place, Transfer};
use crate::state::{Body, SAMPLES_FIRST, UNSTABLE_ROUNDS_MAX, pack, was_sampled};

/// Keys that are listed at once, and slots that are asked for at once.
const PIECE_KEYS_MAX: u64 = 1_024;
const PIECE_SLOTS_MAX: usize = 128;

/// From this number of keys on a slot is enumerated with `SCAN`: one reply with all of its keys would stall
/// the node.
pub(super) const GIANT_SLOT_KEYS: u64 = 20_000;

/// `COUNT` of that `SCAN`.
const SCAN_COUNT: &[u8] = b"1000";

/// The types of payloads that are streams, by the first byte: `RDB_TYPE_STREAM_LISTPACKS` and its later
/// forms.
const STREAM_TYPES: [u8; 3] = [15, 19, 21];

/// What a lane is to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Transfer all keys of these slots; with how many there are.
    Slots(Vec<(Slot, u64)>),
    /// Transfer these keys, or what changed of them.
    Touches(Vec<super::Change>),
}

/// The state of one key.
#[derive(Debug)]
struct State {
    key: Bytes,
    body: Body,
    expires_at_ms: Option<i64>,
}

impl State {
    fn bytes(&self) -> u64 {
        (self.key.len() + self.body.len()) as u64
    }
}

/// A lane.
pub(super) struct Lane {
    shared: Arc<Shared>,
    source: Link,
    target: Link,
}

impl Lane {
    pub(super) async fn open(shared: &Arc<Shared>) -> Result<Lane> {
        let source = shared.deployment.open(&shared.source.address, 0).await?;
        let target = shared.deployment.open_as(Side::Target, &shared.target.address, 0).await?;
        Ok(Lane { shared: shared.clone(), source, target })
    }

    /// Does it. After an error the lane is out of step with its servers and must be dropped.
    pub(super) async fn run(&mut self, work: Work) -> Result<()> {
        let expires = self.expires_exist().await?;
        match work {
            Work::Slots(slots) => self.snapshot(slots, expires).await,
            Work::Touches(changes) => self.follow(changes, expires).await,
        }
    }

    /// Whether any key of the node has an expiry. One that gets its first later on is in the feed.
    async fn expires_exist(&mut self) -> Result<bool> {
        let info = Info::ask(&mut self.source, "keyspace").await?;
        Ok(info.keyspace().get(&0).is_some_and(|db| db.expires > 0))
    }

    async fn snapshot(&mut self, slots: Vec<(Slot, u64)>, expires: bool) -> Result<()> {
        let (giant, usual): (Vec<_>, Vec<_>) = slots.into_iter().partition(|(_, n)| *n > GIANT_SLOT_KEYS);
        let mut piece: Vec<(Slot, u64)> = Vec::new();
        let mut keys = 0;
        for (slot, count) in usual {
            if !piece.is_empty() && (keys + count > PIECE_KEYS_MAX || piece.len() >= PIECE_SLOTS_MAX) {
                self.snapshot_piece(&piece, expires).await?;
                piece.clear();
                keys = 0;
            }
            piece.push((slot, count));
            keys += count;
        }
        if !piece.is_empty() {
            self.snapshot_piece(&piece, expires).await?;
        }
        if !giant.is_empty() {
            self.scan_giants(&giant, expires).await?;
        }
        Ok(())
    }

    async fn snapshot_piece(&mut self, piece: &[(Slot, u64)], expires: bool) -> Result<()> {
        self.shared.check_stop()?;
        for (slot, count) in piece {
            slot_keys::push_names(&mut self.source, *slot, count + slot_keys::SLACK);
        }
        self.source.flush().await?;
        let mut keys = Vec::new();
        let mut grown = Vec::new();
        for (slot, count) in piece {
            let reply = self.source.reply().await?;
            let listed = slot_keys::names_in(&self.source, reply)?;
            if listed.len() as u64 >= count + slot_keys::SLACK {
                // As many as were asked for: it has grown since it was counted, and old ones may be missing.
                grown.push((*slot, 2 * count + slot_keys::SLACK));
            } else {
                keys.extend(listed);
            }
        }
        for (slot, count) in grown {
            keys.extend(slot_keys::all_names(&mut self.source, slot, count).await?);
        }
        self.transfer(keys, expires).await
    }

    async fn scan_giants(&mut self, giant: &[(Slot, u64)], expires: bool) -> Result<()> {
        let mut cursor = Bytes::from_static(b"0");
        let mut keys: Vec<Bytes> = Vec::new();
        loop {
            self.shared.check_stop()?;
            let reply = self.source.call(&[b"SCAN", &cursor, b"COUNT", SCAN_COUNT]).await?;
            let unexpected = self.source.unexpected("SCAN", &reply);
            let mut parts = reply.into_items().unwrap_or_default().into_iter();
            let (Some(next), Some(page)) =
                (parts.next().and_then(Value::into_bytes), parts.next().and_then(Value::into_items))
            else {
                return Err(unexpected);
            };
            cursor = next;
            let page = page.into_iter().filter_map(Value::into_bytes);
            keys.extend(page.filter(|key| giant.iter().any(|(slot, _)| *slot == Slot::of_key(key))));
            let last = &cursor[..] == b"0";
            if last || keys.len() as u64 >= PIECE_KEYS_MAX {
                self.transfer(std::mem::take(&mut keys), expires).await?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Transfers what changed. Only keys that have moved in chunks are followed by their elements: the others
    /// are smaller than the commands that would take.
    async fn follow(&mut self, changes: Vec<super::Change>, expires: bool) -> Result<()> {
        let mut whole = Vec::new();
        for change in changes {
            let kind = self.shared.followed(&change.key);
            match (change.elements, kind) {
                (Some((collection, names)), Some(kind)) if elements::fits(collection, &kind) => {
                    self.shared.check_stop()?;
                    // Before the pause the key has no expiry there; under it, it gets it.
                    let expiry = change.expiry && self.shared.is_draining();
                    let change = elements::Change { key: &change.key, collection, names: &names, expiry };
                    let links = (&mut self.source, &mut self.target);
                    let followed =
                        elements::transfer(links, &change, &self.shared.hash_field_ttls(), true).await?;
                    self.shared.progress.add_touched(1, followed.bytes);
                    if !followed.is_exact {
                        whole.push(change.key.clone());
                    }
                }
                _ => whole.push(change.key),
            }
        }
        let count = whole.len() as u64;
        self.transfer(whole, expires).await?;
        self.shared.progress.add_touched(count, 0);
        Ok(())
    }

    /// Transfers whole keys.
    async fn transfer(&mut self, keys: Vec<Bytes>, expires: bool) -> Result<()> {
        let mut others = Vec::new();
        let mut chunked = Vec::new();
        let (known_big, keys): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| self.shared.followed(key).is_some());
        others.extend(known_big);
        for piece in keys.chunks(PIECE_KEYS_MAX as usize) {
            self.strings(piece.to_vec(), expires, &mut others, &mut chunked).await?;
        }
        for piece in others.chunks(PIECE_KEYS_MAX as usize) {
            self.dumps(piece.to_vec(), &mut chunked).await?;
        }
        for key in chunked {
            self.chunks(key).await?;
        }
        Ok(())
    }

    async fn strings(
        &mut self,
        keys: Vec<Bytes>,
        expires: bool,
        others: &mut Vec<Bytes>,
        chunked: &mut Vec<Bytes>,
    ) -> Result<()> {
        // Sizes before values: nothing but its size tells that one is large, and a server that is asked for a
        // large value has built the whole reply in memory before we can refuse it.
        let groups = self.measured_groups(keys, others, chunked).await?;
        let mut read: Vec<State> = Vec::new();
        for group in groups {
            self.shared.check_stop()?;
            let shared = self.shared.clone();
            let _turn = shared.turn().await;
            let (next, written) = tokio::join!(
                fetch(&mut self.source, &self.shared, &group, b"GET", expires),
                write(&mut self.target, &self.shared, std::mem::take(&mut read)),
            );
            chunked.extend(written?);
            read = sort_out(next?, others);
        }
        chunked.extend(write(&mut self.target, &self.shared, read).await?);
        Ok(())
    }

    async fn measured_groups(
        &mut self,
        keys: Vec<Bytes>,
        others: &mut Vec<Bytes>,
        chunked: &mut Vec<Bytes>,
    ) -> Result<Vec<Vec<Bytes>>> {
        for key in &keys {
            self.source.push(&[b"STRLEN", key]);
        }
        self.source.flush().await?;
        let mut sized = Vec::with_capacity(keys.len());
        for key in keys {
            let reply = self.source.reply().await?;
            match ServerError::of(&reply) {
                Some(e) if e.code == Code::WrongType => others.push(key),
                Some(e) => return Err(self.source.server_error(e, b"STRLEN")),
                None => match reply.as_int().map(i64::unsigned_abs) {
                    Some(bytes) if bytes > self.shared.options.big_key_bytes => chunked.push(key),
                    bytes => sized.push((key, bytes.unwrap_or(0))),
                },
            }
        }
        Ok(pack(sized).into_iter().map(|(group, _)| group).collect())
    }

    /// Transfers keys that are no strings as payloads; those that cannot travel so are added to `chunked`.
    async fn dumps(&mut self, keys: Vec<Bytes>, chunked: &mut Vec<Bytes>) -> Result<()> {
        let (from, to) = (&self.shared.source.capabilities, &self.shared.target.capabilities);
        if !(from.dump && from.memory_usage && to.restore) {
            chunked.extend(keys);
            return Ok(());
        }
        let replies = self.memory_usage(&keys).await?;
        let mut sized = Vec::with_capacity(keys.len());
        for (key, reply) in keys.into_iter().zip(replies) {
            match reply {
                Value::Int(n) if n.unsigned_abs() > self.shared.options.big_key_bytes => chunked.push(key),
                Value::Int(n) => sized.push((key, n.unsigned_abs())),
                // Gone, which the read finds out as well.
                Value::Null => sized.push((key, 0)),
                other => {
                    self.source.check(other, b"MEMORY USAGE")?;
                    chunked.push(key);
                }
            }
        }
        let mut read: Vec<State> = Vec::new();
        let dialects = (self.shared.source.dialect, self.shared.target.dialect);
        for (group, _) in pack(sized) {
            self.shared.check_stop()?;
            let shared = self.shared.clone();
            let _turn = shared.turn().await;
            let (next, written) = tokio::join!(
                fetch(&mut self.source, &self.shared, &group, b"DUMP", true),
                write(&mut self.target, &self.shared, std::mem::take(&mut read)),
            );
            chunked.extend(written?);
            for (key, fetched) in next? {
                let (body, expires_at_ms) = match fetched {
                    Fetched::Value(dump, at) => {
                        if payload::peek(&dump).is_ok_and(|p| STREAM_TYPES.contains(&p.object_type)) {
                            self.shared.stream(&key);
                        }
                        let version_max = self.shared.target.payloads.get().copied().flatten();
                        (Body::Dump(dump).fit(dialects, version_max), at)
                    }
                    Fetched::Gone | Fetched::NotAString => (Body::Gone, None),
                };
                match body {
                    Body::Typed => chunked.push(key),
                    body => read.push(State { key, body, expires_at_ms }),
                }
            }
        }
        chunked.extend(write(&mut self.target, &self.shared, read).await?);
        Ok(())
    }

    /// The replies of `MEMORY USAGE`, exact for all that are not above the big-key size.
    async fn memory_usage(&mut self, keys: &[Bytes]) -> Result<Vec<Value>> {
        for key in keys {
            self.source.push(&[b"MEMORY", b"USAGE", key, b"SAMPLES", SAMPLES_FIRST]);
        }
        self.source.flush().await?;
        let mut replies = self.source.replies(keys.len()).await?;
        let big = self.shared.options.big_key_bytes;
        let sampled: Vec<usize> = (0..keys.len()).filter(|&i| was_sampled(&replies[i], big)).collect();
        for &i in &sampled {
            self.source.push(&[b"MEMORY", b"USAGE", &keys[i], b"SAMPLES", b"0"]);
        }
        self.source.flush().await?;
        for i in sampled {
            replies[i] = self.source.reply().await?;
        }
        Ok(replies)
    }

    /// Transfers one key in chunks.
    async fn chunks(&mut self, key: Bytes) -> Result<()> {
        let shared = self.shared.clone();
        let kind = large::type_of(&mut self.source, &key).await?;
        // Before the first element is read: from here on every change of an element is in the feed, and
        // followed.
        shared.follow(&key, kind.as_ref());
        if kind == Some(KeyType::Stream) {
            shared.stream(&key);
        }
        // Held for the beginning only: a large key may take longer than anybody can wait.
        drop(shared.turn().await);
        let _permit = shared.big_transfers.start().await;
        let is_draining = shared.is_draining();
        if is_draining && shared.took_ms(&key) > shared.options.drain_ms_max {
            let what = format!(
                "key {} took {} ms the last time it moved as a whole, too long for a pause, and its writers \
                    go on to replace \
                 it or to change more of it than can be followed",
                crate::copy::shown(&key),
                shared.took_ms(&key)
            );
            return Err(Error::own("move a large key", what)
                .with_remedy("stop its writers for a while, or allow a longer pause with --max-pause"));
        }
        let started = Instant::now();
        let t = Transfer {
            key: &key,
            existing: large::Existing::Replace,
            place: Place::Importing { mortal: is_draining },
            chunk_bytes: shared.options.chunk_bytes,
            tries_max: large::TRIES_FOLLOWED_MAX,
            job: &shared.options.job,
            source: &shared.source.capabilities,
            target: &shared.target.capabilities,
            stop: Some(&shared.stop),
        };
        match large::transfer(&mut self.source, &mut self.target, &t).await? {
            Outcome::Written { bytes, .. } => {
                let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                shared.batch().took_ms.insert(key.clone(), took_ms);
                shared.settled(&key);
                shared.progress.add_written(1, bytes);
                shared.paced(1, bytes).await;
            }
            Outcome::Gone => {
                shared.follow(&key, None);
                let gone = State { key, body: Body::Gone, expires_at_ms: None };
                write(&mut self.target, &shared, vec![gone]).await?;
            }
            Outcome::Changing => {
                // Several reads were tried.
                let read_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                shared.changed(key, kind, read_ms / u64::from(large::TRIES_FOLLOWED_MAX));
            }
            Outcome::Unholdable(why) => {
                let what = format!("key {} cannot be held there: {why}", crate::copy::shown(&key));
                return Err(Error::unfit(
                    Side::Target,
                    shared.target.address.to_string(),
                    "write a key",
                    what,
                ));
            }
            // Neither is asked for.
            Outcome::Skipped | Outcome::Conflict => {
                return Err(Error::own("write a key", "it was left alone, which nobody asked for"));
            }
        }
        Ok(())
    }
}

fn sort_out(fetched: Vec<(Bytes, Fetched)>, others: &mut Vec<Bytes>) -> Vec<State> {
    let mut states = Vec::with_capacity(fetched.len());
    for (key, fetched) in fetched {
        match fetched {
            Fetched::Value(value, expires_at_ms) => {
                states.push(State { key, body: Body::String(value), expires_at_ms });
            }
            Fetched::Gone => states.push(State { key, body: Body::Gone, expires_at_ms: None }),
            Fetched::NotAString => others.push(key),
        }
    }
    states
}

/// What a look at one key gave.
enum Fetched {
    Gone,
    Value(Bytes, Option<i64>),
    NotAString,
}

/// Fetches values with their expiries.
async fn fetch(
    source: &mut Link,
    shared: &Shared,
    keys: &[Bytes],
    command: &'static [u8],
    expires: bool,
) -> Result<Vec<(Bytes, Fetched)>> {
    let mut found = Vec::with_capacity(keys.len());
    let mut open = keys.to_vec();
    for _ in 0..UNSTABLE_ROUNDS_MAX {
        let fetched = fetch_once(source, shared, &open, command, expires).await?;
        open = Vec::new();
        for (key, fetched) in fetched {
            match fetched {
                Some(fetched) => found.push((key, fetched)),
                None => open.push(key),
            }
        }
        if open.is_empty() {
            return Ok(found);
        }
    }
    let what =
        "the server's clock goes on by a millisecond or more each time that it is asked when a key expires";
    Err(Error::unfit(shared.deployment.side(), source.address().to_string(), "read a key", what))
}

/// `None` for a key where it is unclear when it expires.
async fn fetch_once(
    source: &mut Link,
    shared: &Shared,
    keys: &[Bytes],
    command: &'static [u8],
    expires: bool,
) -> Result<Vec<(Bytes, Option<Fetched>)>> {
    let absolute = shared.source.capabilities.pexpiretime;
    for key in keys {
        source.push(&[command, key]);
        if expires {
            expiry::ask(source.outbox(), absolute, key);
        }
    }
    source.flush().await?;
    let each = 1 + if expires { expiry::commands(absolute) } else { 0 };
    let mut replies = source.replies(each * keys.len()).await?.into_iter();
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let value = replies.next().unwrap_or(Value::Null);
        let expiry = if expires { expiry::read(&mut replies, absolute) } else { Some(Expiry::Never) };
        let fetched = match (ServerError::of(&value), value.into_bytes(), expiry) {
            (Some(e), _, _) if e.code == Code::WrongType => Fetched::NotAString,
            (Some(e), _, _) => return Err(source.server_error(e, command)),
            (None, None, _) | (None, _, Some(Expiry::Gone)) => Fetched::Gone,
            (None, Some(value), Some(Expiry::Never)) => Fetched::Value(value, None),
            (None, Some(value), Some(Expiry::At(ms))) => Fetched::Value(value, Some(ms)),
            (None, Some(_), Some(Expiry::Unclear)) => {
                found.push((key.clone(), None));
                continue;
            }
            (None, Some(_), Some(Expiry::Unknown) | None) => {
                let what = "the expiry of a key cannot be read; without it the key would live for ever";
                return Err(Error::unfit(
                    shared.deployment.side(),
                    source.address().to_string(),
                    "read a key",
                    what,
                ));
            }
        };
        found.push((key.clone(), Some(fetched)));
    }
    Ok(found)
}

/// Writes states to the importing target, and returns the keys whose payloads it does not understand.
async fn write(target: &mut Link, shared: &Shared, states: Vec<State>) -> Result<Vec<Bytes>> {
    if states.is_empty() {
        return Ok(Vec::new());
    }
    for state in &states {
        let out = target.outbox();
        out.push(&[b"ASKING"]);
        match &state.body {
            Body::Gone | Body::Typed => out.push(&[b"UNLINK", &state.key]),
            Body::String(value) => {
                out.command(if state.expires_at_ms.is_some() { 5 } else { 3 });
                out.arg(b"SET");
                out.arg_bytes(&state.key);
                out.arg_bytes(value);
                if let Some(at) = state.expires_at_ms {
                    out.arg(b"PXAT");
                    // 0 is refused; an expiry at the epoch itself is long past at 1 as well.
                    out.arg_int(at.max(1));
                }
            }
            Body::Dump(dump) => {
                out.command(if state.expires_at_ms.is_some() { 6 } else { 5 });
                out.arg(b"RESTORE");
                out.arg_bytes(&state.key);
                // 0 means no expiry.
                out.arg_int(state.expires_at_ms.map_or(0, |at| at.max(1)));
                out.arg_bytes(dump);
                out.arg(b"REPLACE");
                if state.expires_at_ms.is_some() {
                    out.arg(b"ABSTTL");
                }
            }
        }
    }
    target.flush().await?;
    let mut failure = None;
    let mut chunked = Vec::new();
    let (mut written, mut bytes) = (0, 0);
    for state in states {
        target.reply().await?;
        let reply = target.reply().await?;
        match ServerError::of(&reply) {
            None => {
                shared.settled(&state.key);
                shared.sampled(&state.key, state.bytes());
                written += u64::from(!matches!(state.body, Body::Gone));
                bytes += state.bytes();
            }
            Some(e) if matches!(e.code, Code::PayloadVersion | Code::PayloadFormat) => {
                chunked.push(state.key);
            }
            Some(e) => failure = failure.or(Some(target.server_error(e, b"write a key"))),
        }
    }
    shared.progress.add_written(written, bytes);
    shared.paced(written, bytes).await;
    failure.map_or(Ok(chunked), Err)
}

/// Which elements a followed key has.
pub(super) fn followable(kind: &KeyType) -> bool {
    matches!(kind, KeyType::Hash | KeyType::Set | KeyType::Zset)
}
