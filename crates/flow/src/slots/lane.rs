//! One lane of a slot transfer: a connection to each node, and the keys of certain slots.
//!
//! A lane reads from the source and writes to the target strictly in order, so of two reads of one key the
//! later is written later. The next group is read while the one before is written.
//!
//! All that is read here is [protected by the feed](Way::FeedProtected).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Code, Error, Result, ServerError, Side};
use whimbrel_engine::expiry::Clock;
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::slot_keys;
use whimbrel_wire::payload;
use whimbrel_wire::value::Value;

use super::shared::{Change, Shared};
use crate::keys::size::{
    GROUP_BYTES, GROUP_KEYS_MAX, LENGTH, Samples, length, measure_exactly, pack_within, usage, usage_of,
};
use crate::keys::{Fetch, Found, KeyState, Read, Way, Write, WriteMode, Written, read_together, write_all};
use crate::large::elements;
use crate::large::{self, Assembly, KeyType, Outcome, Transfer};
use crate::modules::VECTOR_SET;
use crate::scan;

/// Keys that are listed at once, and slots that are asked for at once.
const PIECE_KEYS_MAX: u64 = 1_024;
const PIECE_SLOTS_MAX: usize = 128;

/// From this number of keys on a slot is enumerated with `SCAN`: one reply with all of its keys would stall
/// the node.
pub(super) const GIANT_SLOT_KEYS: u64 = 20_000;

/// This many keys are asked both whether they are strings and how much memory they take, before it is known
/// which of the two matters.
const FEW_KEYS: usize = 256;

/// `COUNT` of that `SCAN`.
const SCAN_COUNT: u32 = 1_000;

/// What a lane is to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Transfer all keys of these slots; with how many there are.
    Slots(Vec<(Slot, u64)>),
    /// Transfer these keys, or what changed of them.
    Touches(Vec<Change>),
}

/// A key that is no string, with what a first look at its size has answered.
struct Other {
    key: Bytes,
    usage: Option<Value>,
}

impl Other {
    fn unseen(key: Bytes) -> Other {
        Other { key, usage: None }
    }
}

/// Keys that are read together.
#[derive(Default)]
struct Group {
    strings: Vec<Bytes>,
    payloads: Vec<Bytes>,
}

impl Group {
    /// Groups of `keys_max` strings and as many payloads at most.
    fn pack(strings: Vec<(Bytes, u64)>, payloads: Vec<(Bytes, u64)>, keys_max: usize) -> Vec<Group> {
        let packed = |sized| pack_within(sized, GROUP_KEYS_MAX.min(keys_max), GROUP_BYTES);
        let (strings, payloads) = (packed(strings), packed(payloads));
        let mut groups: Vec<Group> = Vec::new();
        groups.resize_with(strings.len().max(payloads.len()), Group::default);
        for (group, (keys, _)) in groups.iter_mut().zip(strings) {
            group.strings = keys;
        }
        for (group, (keys, _)) in groups.iter_mut().zip(payloads) {
            group.payloads = keys;
        }
        groups
    }

    fn keys(&self) -> u64 {
        (self.strings.len() + self.payloads.len()) as u64
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
        let target = shared.open_target().await?;
        Ok(Lane { shared: shared.clone(), source, target })
    }

    /// One more lane. A node that takes no more connections says so with the first answer.
    pub(super) async fn open_another(shared: &Arc<Shared>) -> Result<Lane> {
        let mut lane = Lane::open(shared).await?;
        for link in [&mut lane.source, &mut lane.target] {
            let answer = link.ask(&[b"PING"]).await?;
            if let Some(refusal) = ServerError::of(&answer) {
                return Err(link.server_error(refusal, b"PING"));
            }
        }
        Ok(lane)
    }

    /// Does it. After an error the lane is out of step with its servers and must be dropped.
    pub(super) async fn run(&mut self, work: Work) -> Result<()> {
        match work {
            Work::Slots(slots) => self.snapshot(slots).await,
            Work::Touches(changes) => self.follow(changes).await,
        }
    }

    async fn snapshot(&mut self, slots: Vec<(Slot, u64)>) -> Result<()> {
        let (giant, usual): (Vec<_>, Vec<_>) = slots.into_iter().partition(|(_, n)| *n > GIANT_SLOT_KEYS);
        let mut piece: Vec<(Slot, u64)> = Vec::new();
        let mut keys = 0;
        for (slot, count) in usual {
            if !piece.is_empty() && (keys + count > PIECE_KEYS_MAX || piece.len() >= PIECE_SLOTS_MAX) {
                self.snapshot_piece(&piece).await?;
                piece.clear();
                keys = 0;
            }
            piece.push((slot, count));
            keys += count;
        }
        if !piece.is_empty() {
            self.snapshot_piece(&piece).await?;
        }
        if !giant.is_empty() {
            self.scan_giants(&giant).await?;
        }
        Ok(())
    }

    async fn snapshot_piece(&mut self, piece: &[(Slot, u64)]) -> Result<()> {
        self.shared.check_stop()?;
        let keys = slot_keys::all_names(&mut self.source, piece).await?;
        self.transfer(keys).await
    }

    async fn scan_giants(&mut self, giant: &[(Slot, u64)]) -> Result<()> {
        let mut cursor = Bytes::from_static(b"0");
        let mut keys: Vec<Bytes> = Vec::new();
        loop {
            self.shared.check_stop()?;
            let (next, page) = scan::page(&mut self.source, &cursor, SCAN_COUNT).await?;
            cursor = next;
            keys.extend(
                page.into_iter().filter(|key| giant.iter().any(|(slot, _)| *slot == Slot::of_key(key))),
            );
            let last = &cursor[..] == b"0";
            if last || keys.len() as u64 >= PIECE_KEYS_MAX {
                self.transfer(std::mem::take(&mut keys)).await?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Transfers what changed. Only keys that have moved in chunks are followed by their elements: the others
    /// are smaller than the commands that would take.
    async fn follow(&mut self, changes: Vec<Change>) -> Result<()> {
        self.shared.check_stop()?;
        let (mut whole, mut followed) = (Vec::new(), Vec::new());
        for change in changes {
            match (&change.elements, self.shared.followed(&change.key)) {
                (Some((collection, _)), Some(kind)) if elements::fits(*collection, &kind) => {
                    followed.push(change);
                }
                _ => whole.push(change.key),
            }
        }
        let no_names = BTreeSet::new();
        // Before the pause a key has no expiry there; under it, it gets it.
        let is_draining = self.shared.is_draining();
        let of_elements: Vec<elements::Change<'_>> = followed
            .iter()
            .map(|change| elements::Change {
                key: &change.key,
                collection: change.elements.as_ref().and_then(|(collection, _)| *collection),
                names: change.elements.as_ref().map_or(&no_names, |(_, names)| names),
                expiry: change.expiry && is_draining,
            })
            .collect();
        let links = (&mut self.source, &mut self.target);
        let done = elements::transfer_all(links, &of_elements, &self.shared.hash_field_ttls(), true).await?;
        for (change, done) in followed.iter().zip(done) {
            self.shared.progress.add_touched(1, done.bytes);
            if !done.is_exact {
                whole.push(change.key.clone());
            }
        }
        let count = whole.len() as u64;
        self.transfer(whole).await?;
        self.shared.progress.add_touched(count, 0);
        Ok(())
    }

    /// Transfers whole keys: a few of them in three round trips, whatever they are.
    async fn transfer(&mut self, keys: Vec<Bytes>) -> Result<()> {
        let mut chunked = Vec::new();
        let (known_big, keys): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| self.shared.followed(key).is_some());
        let mut others: Vec<Other> = known_big.into_iter().map(Other::unseen).collect();
        for piece in keys.chunks(PIECE_KEYS_MAX as usize) {
            let (strings, expiries) = self.measure_strings(piece, &mut others, &mut chunked).await?;
            let payloads = self.measure_payloads(std::mem::take(&mut others), &mut chunked).await?;
            let groups = Group::pack(strings, payloads, self.shared.keys_at_once());
            others = self.move_groups(groups, expiries, &mut chunked).await?;
        }
        // What had become something else when it was read, or was known to be no string.
        while !others.is_empty() {
            let rest = others.split_off(others.len().min(PIECE_KEYS_MAX as usize));
            let piece = std::mem::replace(&mut others, rest);
            let payloads = self.measure_payloads(piece, &mut chunked).await?;
            let groups = Group::pack(Vec::new(), payloads, self.shared.keys_at_once());
            others.extend(self.move_groups(groups, true, &mut chunked).await?);
        }
        for key in chunked {
            self.chunks(key).await?;
        }
        Ok(())
    }

    /// Transfers groups of keys, and returns those that were to be read as strings and are none. Those that
    /// do not travel as one state are added to `chunked`. The next group is read while the one before is
    /// written.
    async fn move_groups(
        &mut self,
        groups: Vec<Group>,
        expiries: bool,
        chunked: &mut Vec<Bytes>,
    ) -> Result<Vec<Other>> {
        let shared = self.shared.clone();
        let clock = Clock::of_server(shared.source.capabilities.pexpiretime);
        let read = |fetch, expiries| Read { fetch, way: Way::FeedProtected, clock, expiries, asking: false };
        let (strings, payloads) = (read(Fetch::String, expiries), read(Fetch::Payload, true));
        let fit = shared.fit();
        let mut others = Vec::new();
        let mut states: Vec<KeyState> = Vec::new();
        for group in groups {
            // Before they are read: a rate bounds what clients of the source feel, from the first key on.
            shared.pace_keys(group.keys()).await;
            shared.check_stop()?;
            let _turn = shared.enter().await;
            let parts = [(strings, &group.strings[..]), (payloads, &group.payloads[..])];
            let (found, written) = tokio::join!(
                read_together(&mut self.source, &parts),
                write(&mut self.target, &shared, std::mem::take(&mut states)),
            );
            chunked.extend(written?);
            for (fetch, key, found) in found? {
                if let Found::Value(payload, _) = &found
                    && fetch == Fetch::Payload
                    && let Ok(payload) = payload::peek(payload)
                {
                    if payload::is_stream(payload.object_type) {
                        shared.stream(&key);
                    } else if payload::is_vector_set(&payload) {
                        shared.vector_set(&key);
                    }
                }
                match found {
                    Found::NotAString => others.push(Other::unseen(key)),
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
        Ok(others)
    }

    /// The strings among `keys`, with their sizes, and whether keys of the node have expiries: a first expiry
    /// that comes later is in the feed. What is no string is added to `others`, and what is too large to
    /// `chunked`.
    ///
    /// Sizes before values: nothing but its size shows that one is large, and a server that is asked for a
    /// large value has built the whole reply in memory before we can refuse it.
    async fn measure_strings(
        &mut self,
        keys: &[Bytes],
        others: &mut Vec<Other>,
        chunked: &mut Vec<Bytes>,
    ) -> Result<(Vec<(Bytes, u64)>, bool)> {
        // What a few questions too many cost is less than another round trip.
        let asks_both = keys.len() <= FEW_KEYS && self.shared.dumps();
        self.source.push(&[b"INFO", b"keyspace"]);
        for key in keys {
            self.source.push(&length(key));
            if asks_both {
                self.source.push(&usage(key, Samples::First));
            }
        }
        self.source.flush().await?;
        let keyspace = self.source.reply().await?;
        let keyspace = Info::parse(self.source.check(keyspace, b"INFO")?.as_bytes().map_or(&[], |b| b));
        let expiries = keyspace.keyspace().get(&0).is_some_and(|db| db.expires > 0);
        let mut sized = Vec::with_capacity(keys.len());
        for key in keys.iter().cloned() {
            let reply = self.source.reply().await?;
            let usage = if asks_both { Some(self.source.reply().await?) } else { None };
            match ServerError::of(&reply) {
                Some(e) if e.code == Code::WrongType => others.push(Other { key, usage }),
                Some(e) => return Err(self.source.server_error(e, LENGTH)),
                None => match reply.as_int().map(i64::unsigned_abs) {
                    Some(bytes) if bytes > self.shared.options.big_key_bytes => chunked.push(key),
                    bytes => sized.push((key, bytes.unwrap_or(0))),
                },
            }
        }
        Ok((sized, expiries))
    }

    /// The sizes of keys that are no strings and travel as payloads; those that cannot travel so are added to
    /// `chunked`.
    async fn measure_payloads(
        &mut self,
        others: Vec<Other>,
        chunked: &mut Vec<Bytes>,
    ) -> Result<Vec<(Bytes, u64)>> {
        let big_key_bytes = self.shared.options.big_key_bytes;
        if !self.shared.dumps() {
            chunked.extend(others.into_iter().map(|other| other.key));
            return Ok(Vec::new());
        }
        let (seen, unseen): (Vec<_>, Vec<_>) = others.into_iter().partition(|other| other.usage.is_some());
        let mut keys: Vec<Bytes> = unseen.into_iter().map(|other| other.key).collect();
        let mut replies = match keys.is_empty() {
            true => Vec::new(),
            false => usage_of(&mut self.source, &keys, big_key_bytes, false).await?,
        };
        let (names, mut usages): (Vec<_>, Vec<_>) =
            seen.into_iter().filter_map(|other| Some((other.key, other.usage?))).unzip();
        measure_exactly(&mut self.source, &names, &mut usages, big_key_bytes, false).await?;
        keys.extend(names);
        replies.extend(usages);
        let mut sized = Vec::with_capacity(keys.len());
        for (key, reply) in keys.into_iter().zip(replies) {
            match reply {
                Value::Int(n) if n.unsigned_abs() > big_key_bytes => chunked.push(key),
                Value::Int(n) => sized.push((key, n.unsigned_abs())),
                // Gone, which the read finds out as well.
                Value::Null => sized.push((key, 0)),
                other => {
                    self.source.check(other, b"MEMORY USAGE")?;
                    chunked.push(key);
                }
            }
        }
        Ok(sized)
    }

    /// Transfers one key in chunks.
    async fn chunks(&mut self, key: Bytes) -> Result<()> {
        let shared = self.shared.clone();
        shared.pace_keys(1).await;
        let kind = large::type_of(&mut self.source, &key).await?;
        // Before the first element is read: from here on every change of an element is in the feed, and
        // followed.
        shared.follow(&key, kind.as_ref());
        match &kind {
            Some(KeyType::Stream) => shared.stream(&key),
            Some(KeyType::Module(name)) if name == VECTOR_SET => shared.vector_set(&key),
            _ => {}
        }
        // Held for the beginning only: a large key may take longer than others can wait.
        drop(shared.enter().await);
        let _permit = shared.big_transfers.start().await;
        let is_draining = shared.is_draining();
        if is_draining && shared.took_ms(&key) > shared.drain_ms_max() {
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
            place: Assembly::Importing { mortal: is_draining },
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
                shared.pace_bytes(bytes).await;
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
    let write = Write { mode: WriteMode::Replace, asking: true, by_own_clock: false };
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
    shared.pace_bytes(bytes).await;
    failure.map_or(Ok(chunked), Err)
}
