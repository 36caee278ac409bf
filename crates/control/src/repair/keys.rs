//! Keys on the wrong node: looked at, moved to the owner, removed.

use std::collections::HashSet;

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Code, Error, Result, ServerError};
use whimbrel_engine::expiry::Clock;
use whimbrel_engine::link::Link;
use whimbrel_engine::slot_keys;
use whimbrel_flow::keys::size::{pack_within, usage_of};
use whimbrel_flow::keys::{
    Fetch, Found, KeyState, Read, Way, Write, WriteMode, Written, exist, read_all, unlink_all, write_all,
};
use whimbrel_wire::value::Value;

/// Keys handled together.
const BATCH_KEYS: usize = 64;

/// Values read together, by the server's estimate of their size. A larger value is read alone.
const BATCH_BYTES: u64 = 8 << 20;

/// Keys of one slot that cannot be handled and are passed over; with more, the slot is given up.
pub(super) const STUCK_MAX: usize = 4_096;

/// How long the owner's replicas may take to have what was moved before it is removed where it was, in
/// milliseconds.
const REPLICAS_TIMEOUT_MS: u64 = 1_000;

/// What was done to keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Brought to the owner.
    pub moved: u64,
    /// Removed from the node that does not own their slot.
    pub removed: u64,
    /// Left where they are, with the reason of the first few.
    pub stuck: u64,
    /// Those reasons.
    pub reasons: Vec<String>,
}

impl Tally {
    /// Reasons that are kept.
    const REASONS_MAX: usize = 5;

    /// Adds another one.
    pub fn add(&mut self, other: Tally) {
        self.moved += other.moved;
        self.removed += other.removed;
        self.stuck += other.stuck;
        for reason in other.reasons {
            self.note(reason);
        }
    }

    pub(super) fn stuck(&mut self, reason: String) {
        self.stuck += 1;
        self.note(reason);
    }

    fn note(&mut self, reason: String) {
        if self.reasons.len() < Tally::REASONS_MAX && !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }
}

/// Keys of one slot that are listed to compare two nodes; what is beyond counts as absent.
const LISTED_MAX: u64 = 100_000;

/// How many of some keys of a slot exist on a node, whether it owns the slot or not.
pub async fn count_present(link: &mut Link, slot: Slot, keys: &[Bytes]) -> Result<u64> {
    match exist(link, keys).await {
        Ok(found) => return Ok(found.into_iter().filter(|is_there| *is_there).count() as u64),
        Err(e) if e.server().is_none() => return Err(e),
        Err(_) => {}
    }
    // It does not own the slot, or not yet: it lists its keys all the same.
    let held: HashSet<Bytes> =
        slot_keys::first_names(link, &[slot], LISTED_MAX).await?.concat().into_iter().collect();
    Ok(keys.iter().filter(|key| held.contains(*key)).count() as u64)
}

/// Reads keys where they are, and leaves out those that are gone. No client writes to them there, or `WATCH`
/// says that one has. The link may lead to an importing node: then `asking`. `absolute` if the node knows
/// `PEXPIRETIME`.
pub(super) async fn read(
    link: &mut Link,
    keys: &[Bytes],
    asking: bool,
    absolute: bool,
) -> Result<Vec<KeyState>> {
    let clock = Clock::of_server(absolute);
    let read = Read { fetch: Fetch::Payload, way: Way::Frozen, clock, expiries: true, asking };
    let mut states = Vec::with_capacity(keys.len());
    for (key, found) in read_all(link, &read, keys).await? {
        match found {
            Found::Gone => {}
            // A node that gives a slot away answers so for a key that it does not have any more.
            Found::Redirected(ServerError { code: Code::Ask(..), .. }) => {}
            Found::Redirected(e) | Found::Refused(e) => {
                return Err(link.server_error(e, Fetch::Payload.command()));
            }
            found => states.extend(found.into_state(key, Fetch::Payload)),
        }
    }
    Ok(states)
}

/// Divides a batch if its values would be too large to hold together.
pub(super) async fn portions(
    link: &mut Link,
    keys: &[Bytes],
    asking: bool,
    bytes_max: u64,
) -> Result<Vec<Vec<Bytes>>> {
    let replies = usage_of(link, keys, bytes_max, asking).await?;
    let sized = keys.iter().zip(replies).map(|(key, reply)| match reply {
        Value::Null => (key.clone(), 0),
        // If its size cannot be known, a value is taken to be large.
        other => (key.clone(), other.as_int().map_or(bytes_max, i64::unsigned_abs)),
    });
    let groups = pack_within(sized.collect(), BATCH_KEYS, bytes_max);
    Ok(groups.into_iter().map(|(portion, _)| portion).collect())
}

/// Removes keys from an importing node, and so from its replicas.
async fn unlink(holder: &mut Link, keys: &[Bytes]) -> Result<u64> {
    let removed = unlink_all(holder, true, keys).await?;
    Ok(removed.into_iter().filter(|was_there| *was_there).count() as u64)
}

/// Waits for the node's replicas, as long as it is worth: a node that is lost right after it took a key in
/// must not take the key with it. Without replicas it returns at once.
pub(super) async fn wait_for_replicas(link: &mut Link, timeout_ms: u64) -> Result<()> {
    let reply = link.call(&[b"INFO", b"replication"]).await?;
    let text = reply.as_bytes().map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default();
    let online = text.lines().filter(|l| l.starts_with("slave") && l.contains("state=online")).count();
    if online > 0 {
        let (online, timeout_ms) = (online.to_string(), timeout_ms.to_string());
        link.call(&[b"WAIT", online.as_bytes(), timeout_ms.as_bytes()]).await?;
    }
    Ok(())
}

/// The next keys of a slot that are not among those already found stuck; `None` when the slot holds no
/// others.
pub(super) async fn next_batch(
    link: &mut Link,
    slot: Slot,
    stuck: &HashSet<Bytes>,
) -> Result<Option<Vec<Bytes>>> {
    let mut keys = slot_keys::first_names(link, &[slot], (BATCH_KEYS + stuck.len()) as u64).await?.concat();
    keys.retain(|key| !stuck.contains(key));
    keys.truncate(BATCH_KEYS);
    Ok((!keys.is_empty()).then_some(keys))
}

pub(super) fn give_up(slot: Slot) -> Error {
    Error::own("move keys", format!("more than {STUCK_MAX} keys of slot {slot} cannot be moved"))
}

/// Empties a slot on a node that imports it from its owner. What the owner has is right, whatever it is. Keys
/// that it lacks are moved to it first, if `rescue` says so: written only if they are absent, and on its
/// replicas before they are removed here.
///
/// # Errors
/// When a node does not answer, or refuses what it should not.
pub async fn empty_slot(
    holder: &mut Link,
    owner: &mut Link,
    slot: Slot,
    rescue: bool,
    absolute: bool,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut stuck: HashSet<Bytes> = HashSet::new();
    let mut unlinked: HashSet<Bytes> = HashSet::new();
    while let Some(mut removable) = next_batch(holder, slot, &stuck).await? {
        // No client writes here. Something that we do not know of does.
        for key in removable.extract_if(.., |key| unlinked.contains(key)) {
            tally.stuck(format!("a key in slot {slot} comes back after it was removed"));
            stuck.insert(key);
        }
        if rescue {
            let present = exist(owner, &removable).await?;
            let (there, lacking): (Vec<_>, Vec<_>) =
                removable.into_iter().zip(present).partition(|(_, p)| *p);
            removable = there.into_iter().map(|(key, _)| key).collect();
            let lacking: Vec<Bytes> = lacking.into_iter().map(|(key, _)| key).collect();
            let before = tally.moved;
            for portion in portions(holder, &lacking, true, BATCH_BYTES).await? {
                let states = read(holder, &portion, true, absolute).await?;
                let write = Write { mode: WriteMode::IfAbsent, asking: false, by_own_clock: false };
                let outcomes = write_all(owner, write, &states).await?;
                for (state, written) in states.into_iter().zip(outcomes) {
                    match written {
                        Written::Exists => {}
                        Written::Refused(e) | Written::NotUnderstood(e) => {
                            tally.stuck(format!("the owner refuses a key: {}", e.text));
                            stuck.insert(state.key);
                        }
                        Written::Done | Written::Absent => tally.moved += 1,
                    }
                }
                removable.extend(portion.into_iter().filter(|key| !stuck.contains(key)));
            }
            if tally.moved > before {
                wait_for_replicas(owner, REPLICAS_TIMEOUT_MS).await?;
            }
        }
        if stuck.len() > STUCK_MAX {
            return Err(give_up(slot));
        }
        tally.removed += unlink(holder, &removable).await?;
        unlinked = removable.into_iter().collect();
    }
    Ok(tally)
}

/// Removes keys from a replica whose primary does not have them, while the primary imports the slot: each is
/// written there and removed, which the replica repeats.
///
/// # Errors
/// When a node does not answer, or refuses what it should not.
pub async fn empty_slot_of_replica(primary: &mut Link, replica: &mut Link, slot: Slot) -> Result<Tally> {
    let mut tally = Tally::default();
    let count = slot_keys::count(replica, slot).await?;
    // All at once: the replica removes them in its own time, and shows them until then.
    for keys in slot_keys::all_names(replica, &[(slot, count)]).await?.chunks(BATCH_KEYS) {
        for key in keys {
            primary.push(&[b"ASKING"]);
            // A key that the primary has after all is not ours, and is not touched.
            primary.push(&[b"SET", key, b"", b"NX", b"PX", b"60000"]);
        }
        primary.flush().await?;
        let mut ours = Vec::new();
        for key in keys {
            primary.reply().await?;
            let reply = primary.reply().await?;
            if !matches!(primary.check(reply, b"SET")?, Value::Null) {
                ours.push(key.clone());
            }
        }
        tally.removed += unlink(primary, &ours).await?;
    }
    wait_for_replicas(primary, REPLICAS_TIMEOUT_MS).await?;
    Ok(tally)
}
