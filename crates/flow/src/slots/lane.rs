//! One lane of a slot transfer: a connection to each node, and the keys of certain slots.
//!
//! A lane reads from the source and writes to the target strictly in order, so of two reads of one key the
//! later is written later. The next group is read while the one before is written.
//!
//! All that is read here is [protected by the feed](Way::FeedProtected).

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Code, Error, Result, ServerError, Side};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::slot_keys;
use whimbrel_wire::payload;
use whimbrel_wire::value::Value;

use super::shared::{Change, Shared};
use crate::keys::size::{pack, usage_of};
use crate::keys::{Fetch, Found, KeyState, Read, Way, Write, WriteMode, Written, read_all, write_all};
use crate::large::elements;
use crate::large::{self, KeyType, Outcome, Place, Transfer};

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
    Touches(Vec<Change>),
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
    async fn follow(&mut self, changes: Vec<Change>, expires: bool) -> Result<()> {
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
        chunked.extend(self.move_groups(groups, Fetch::String, expires, others).await?);
        Ok(())
    }

    /// Transfers groups of keys, and returns those that do not travel as one state. What was to be read as a
    /// string and is none is added to `others`. The next group is read while the one before is written.
    async fn move_groups(
        &mut self,
        groups: Vec<Vec<Bytes>>,
        fetch: Fetch,
        expiries: bool,
        others: &mut Vec<Bytes>,
    ) -> Result<Vec<Bytes>> {
        let shared = self.shared.clone();
        let absolute = shared.source.capabilities.pexpiretime;
        let read = Read { fetch, way: Way::FeedProtected, absolute, expiries, asking: false };
        let fit = shared.fit();
        let mut chunked = Vec::new();
        let mut states: Vec<KeyState> = Vec::new();
        for group in groups {
            shared.check_stop()?;
            let _turn = shared.turn().await;
            let (found, written) = tokio::join!(
                read_all(&mut self.source, &read, &group),
                write(&mut self.target, &shared, std::mem::take(&mut states)),
            );
            chunked.extend(written?);
            for (key, found) in found? {
                if let Found::Value(payload, _) = &found
                    && fetch == Fetch::Payload
                    && payload::peek(payload).is_ok_and(|p| STREAM_TYPES.contains(&p.object_type))
                {
                    shared.stream(&key);
                }
                match found {
                    Found::NotAString => others.push(key),
                    Found::Redirected(e) | Found::Refused(e) => {
                        return Err(self.source.server_error(e, fetch.command()));
                    }
                    found => match found.into_state(key, fetch).map(|state| fit.state(state)) {
                        Some(Ok(state)) => states.push(state),
                        Some(Err(key)) => chunked.push(key),
                        None => return Err(Error::own("read a key", "it has no state")),
                    },
                }
            }
        }
        chunked.extend(write(&mut self.target, &shared, states).await?);
        Ok(chunked)
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
        let replies = usage_of(&mut self.source, &keys, self.shared.options.big_key_bytes, false).await?;
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
        let groups = pack(sized).into_iter().map(|(group, _)| group).collect();
        let moved = self.move_groups(groups, Fetch::Payload, true, &mut Vec::new()).await?;
        chunked.extend(moved);
        Ok(())
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
                 go on to replace it or to change more of it than can be followed",
                crate::keys::shown(&key),
                shared.took_ms(&key)
            );
            return Err(
                Error::own("move a large key", what).with_remedy(Remedy::StopWritersOrAllowLongerPause)
            );
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
                write(&mut self.target, &shared, vec![KeyState::gone(key)]).await?;
            }
            Outcome::Changing => {
                // Several reads were tried.
                let read_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                shared.changed(key, kind, read_ms / u64::from(large::TRIES_FOLLOWED_MAX));
            }
            Outcome::Unholdable(why) => {
                let what = format!("key {} cannot be held there: {why}", crate::keys::shown(&key));
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

/// Writes states to the importing target, and returns the keys whose payloads it does not understand.
async fn write(target: &mut Link, shared: &Shared, states: Vec<KeyState>) -> Result<Vec<Bytes>> {
    if states.is_empty() {
        return Ok(Vec::new());
    }
    let write = Write { mode: WriteMode::Replace, asking: true };
    let mut failure = None;
    let mut chunked = Vec::new();
    let (mut keys, mut bytes) = (0, 0);
    let outcomes = write_all(target, write, &states).await?;
    for (state, written) in states.into_iter().zip(outcomes) {
        match written {
            Written::NotUnderstood(_) => chunked.push(state.key),
            Written::Refused(e) => failure = failure.or(Some(target.server_error(e, b"write a key"))),
            Written::Done | Written::Absent | Written::Exists => {
                shared.settled(&state.key);
                shared.sampled(&state.key, state.bytes());
                keys += u64::from(!state.is_gone());
                bytes += state.bytes();
            }
        }
    }
    shared.progress.add_written(keys, bytes);
    shared.paced(keys, bytes).await;
    failure.map_or(Ok(chunked), Err)
}
