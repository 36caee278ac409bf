//! Which keys a slot has at a node.

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_engine::slot_keys;
use whimbrel_wire::value::Value;

use super::attempt::{Refusal, Token};
use super::fence::{MoveEnd, SlotClaim, absent_key, fence_key, is_fence, push_claim, script_error};

/// Names that are asked for before it is known how many there are. Most slots have fewer.
pub(super) const FIRST_NAMES: u64 = 1_000;

/// All names that are held of a slot, in bytes.
const NAMES_BYTES_MAX: u64 = 64 << 20;

/// What a node has of a slot whose fence was just taken.
#[derive(Debug)]
pub(super) struct Seen {
    /// The fence.
    pub hold: SlotClaim,
    /// How many keys there are, the fence not among them.
    pub count: u64,
    /// The first of them, or all.
    pub names: Vec<Bytes>,
}

/// Takes the fence of a slot at a node, and looks what is there, in one round trip.
pub(super) async fn claim(
    link: &mut Link,
    slot: Slot,
    token: Token,
    place: MoveEnd,
    capabilities: &Capabilities,
) -> Result<Seen, Refusal> {
    push_claim(link, slot, token, place, capabilities);
    slot_keys::push_count(link, slot);
    push_names(link, slot, FIRST_NAMES);
    link.flush().await?;
    let replies = link.replies_within(4, NAMES_BYTES_MAX).await?;
    let [claimed, count, names, owned] =
        <[Value; 4]>::try_from(replies).map_err(|_| link.unexpected("look at a slot", &Value::Null))?;
    let hold = SlotClaim::of(link, slot, token, claimed)?;
    let count = checked(link, count, "CLUSTER COUNTKEYSINSLOT")?;
    let count = slot_keys::count_in(link, count)?;
    let names = read_names(link, names, owned)?;
    // The fence is one of them.
    Ok(Seen { hold, count: count.saturating_sub(1), names })
}

/// How many keys a slot has, the fence not among them.
pub(super) async fn count(link: &mut Link, slot: Slot) -> Result<u64> {
    slot_keys::push_count(link, slot);
    link.push(&[b"EXISTS", &fence_key(slot)]);
    link.push(&[b"EXISTS", &absent_key(slot)]);
    link.flush().await?;
    let [count, fence, absent] = <[Value; 3]>::try_from(link.replies(3).await?)
        .map_err(|_| link.unexpected("count the keys of a slot", &Value::Null))?;
    let count = checked(link, count, "CLUSTER COUNTKEYSINSLOT")?;
    let fence = checked(link, fence, "EXISTS")?.as_int() == Some(1);
    // Of a key that is not there: an answer at all says that the node serves the slot.
    checked(link, absent, "EXISTS")?;
    Ok(slot_keys::count_in(link, count)?.saturating_sub(u64::from(fence)))
}

/// The names of this many keys of a slot, the fence counted but left out.
pub(super) async fn names(link: &mut Link, slot: Slot, most: u64) -> Result<Vec<Bytes>> {
    push_names(link, slot, most);
    link.flush().await?;
    let mut replies = link.replies_within(2, NAMES_BYTES_MAX).await?.into_iter();
    let (names, owned) = (replies.next().unwrap_or(Value::Null), replies.next().unwrap_or(Value::Null));
    read_names(link, names, owned)
}

/// What a node has of a slot at the end of a move.
pub(super) struct Left {
    pub names: Vec<Bytes>,
    pub now_ms: i64,
}

/// The names of this many keys, and the time after that; the fence has to be still this one.
pub(super) async fn read_left(link: &mut Link, hold: &SlotClaim, most: u64) -> Result<Left, Refusal> {
    push_names(link, hold.slot(), most);
    link.push(&[b"TIME"]);
    link.push(&[b"GET", &fence_key(hold.slot())]);
    link.flush().await?;
    let replies = link.replies_within(4, NAMES_BYTES_MAX).await?;
    let [names, owned, now, fence] =
        <[Value; 4]>::try_from(replies).map_err(|_| link.unexpected("look at a slot", &Value::Null))?;
    hold.check(link, &checked(link, fence, "GET")?)?;
    Ok(Left { names: read_names(link, names, owned)?, now_ms: read_time(link, now)? })
}

/// Queues two commands, for [`read_names`]. If a node does not own a slot, or is giving it to another node,
/// it does not list all of its names, and does not say so. So it is asked for a key afterwards: then it
/// redirects.
fn push_names(link: &mut Link, slot: Slot, most: u64) {
    slot_keys::push_names(link, slot, most);
    link.push(&[b"EXISTS", &absent_key(slot)]);
}

fn read_names(link: &Link, names: Value, owned: Value) -> Result<Vec<Bytes>> {
    checked(link, owned, "look for keys of a slot")?;
    let names = slot_keys::names_in(link, checked(link, names, "CLUSTER GETKEYSINSLOT")?)?;
    Ok(names.into_iter().filter(|name| !is_fence(name)).collect())
}

/// Milliseconds.
fn read_time(link: &Link, reply: Value) -> Result<i64> {
    let reply = checked(link, reply, "TIME")?;
    match reply.as_items() {
        Some([seconds, micros]) => match (seconds.as_int(), micros.as_int()) {
            (Some(seconds), Some(micros)) => Ok(seconds * 1_000 + micros / 1_000),
            _ => Err(link.unexpected("TIME", &reply)),
        },
        _ => Err(link.unexpected("TIME", &reply)),
    }
}

fn checked(link: &Link, reply: Value, tried: &str) -> Result<Value> {
    match ServerError::of(&reply) {
        None => Ok(reply),
        Some(e) => Err(script_error(link, e, tried)),
    }
}
