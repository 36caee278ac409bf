//! Carries the keys of a slot from one backend to another, while no client is served there.
//!
//! An owner may stand still in the middle of this, lose its lease, and go on when another owner has the slot,
//! and clients write to it at either side. So each command that changes keys is part of a script that checks
//! the *fence* first: a key of the slot, with the token of the attempt that may change it. An owner that
//! begins a later attempt has taken the fence at both sides before it does anything else, and from then on
//! what is left of earlier ones does nothing. `docs/design/fleet.md` shows why that is enough.
//!
//! **Bounds.** Names: 64 MiB at either side. Payloads: a group that is read, while one is written, of about 1
//! MiB each or of one key, of at most 128 MiB.
//!
//! After a [`Refusal`] both links have to be closed: replies may be on their way.

mod attempt;
mod fence;
mod measure;
mod names;
mod payloads;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Code, Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_flow::keys::KeyState;

pub use self::attempt::{CARRY_KEYS_MAX, LOAD_KEYS_MAX, Refusal, Route, Token};
pub use self::fence::is_fence;
use self::fence::{MoveEnd, SlotClaim};
pub use self::measure::{LOAD_BYTES_MAX, LOAD_KEY_BYTES_MAX, Load, measure};
use self::names::{FIRST_NAMES, Seen, claim, names, read_left};
use self::payloads::{GROUP_BYTES, GROUP_KEYS, Item, Life, Reader};

/// Names that are asked for at a time when keys are removed. Servers look for the first keys of a slot past
/// all that have gone, so a few thousand at a time cost less than a few.
const SWEEP_NAMES: u64 = 5_000;

/// What was carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// Keys that were written.
    pub keys: u64,
    /// The length of their payloads, in bytes.
    pub bytes: u64,
    /// Keys that had expired before they were read.
    pub expired: u64,
    /// Keys of an earlier attempt that were there, and were removed first.
    pub cleared: u64,
}

/// Copies all keys of a slot, and removes what was there. The links lead to the nodes that own it at either
/// side, and no client is served in it. May be called again with the same token.
///
/// A slot without keys costs one round trip to each side; one with few keys costs four or five to the one,
/// and three to the other.
///
/// # Errors
/// See [`Refusal`]. What `from` has is never touched, except for its fence; what was written to `to` stays
/// there until the next attempt removes it.
pub async fn carry_slot(
    from: &mut Link,
    to: &mut Link,
    slot: Slot,
    token: Token,
    route: &Route<'_>,
) -> Result<Carried, Refusal> {
    let (origin, destination) = tokio::join!(
        claim(from, slot, token, MoveEnd::Origin, route.from),
        claim(to, slot, token, MoveEnd::Destination, route.to),
    );
    let (mut origin, destination) = (origin?, destination?);
    let cleared = sweep(to, &destination).await?;
    if origin.count == 0 {
        return Ok(Carried { cleared, ..Carried::default() });
    }
    if origin.count > CARRY_KEYS_MAX {
        return Err(Refusal::TooMany { keys: origin.count });
    }
    if origin.count >= FIRST_NAMES {
        origin.names = names(from, slot, origin.count + 2).await?;
    }
    let mut copy =
        Copying { hold: &destination.hold, route, lives: HashMap::new(), carried: Carried::default() };
    copy.carried.cleared = cleared;
    copy.all(from, to, Reader::new(std::mem::take(&mut origin.names))).await?;
    verify(from, to, (&origin.hold, &destination.hold), &copy.lives).await?;
    Ok(copy.carried)
}

/// Removes all keys of a slot at a node that owns it, except the fence, which it takes first. How many there
/// were.
///
/// # Errors
/// See [`Refusal`].
pub async fn clear_slot(
    at: &mut Link,
    slot: Slot,
    token: Token,
    capabilities: &Capabilities,
) -> Result<u64, Refusal> {
    let seen = claim(at, slot, token, MoveEnd::Origin, capabilities).await?;
    sweep(at, &seen).await
}

/// Removes what attempts have left of a slot at a node that owns it. If it was never fenced, its keys are a
/// user's, and stay.
///
/// # Errors
/// See [`Refusal`].
pub async fn clear_what_was_left(
    at: &mut Link,
    slot: Slot,
    token: Token,
    capabilities: &Capabilities,
) -> Result<u64, Refusal> {
    match claim(at, slot, token, MoveEnd::Destination, capabilities).await {
        Ok(seen) => sweep(at, &seen).await,
        Err(Refusal::Occupied { .. }) => Ok(0),
        Err(refusal) => Err(refusal),
    }
}

/// Removes what a node has of a slot, a page of names after the other, until there are none.
async fn sweep(link: &mut Link, seen: &Seen) -> Result<u64, Refusal> {
    let mut page = seen.names.clone();
    let mut removed = 0;
    // Each page goes as a whole, so there are no more of them unless another client writes.
    for _ in 0..4 + seen.count / FIRST_NAMES {
        if page.is_empty() {
            return Ok(removed);
        }
        for some in groups(&page, |name| name.len()) {
            removed += seen.hold.unlink(link, some).await?;
        }
        page = names(link, seen.hold.slot(), SWEEP_NAMES).await?;
    }
    if page.is_empty() { Ok(removed) } else { Err(changed(link, "keys come as fast as they are removed")) }
}

/// Divides what is written in one step into bounded parts, in their order.
fn groups<T>(mut all: &[T], bytes_of: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut groups = Vec::new();
    while !all.is_empty() {
        let mut bytes = 0;
        let fitting = all.iter().take(GROUP_KEYS).take_while(|item| {
            bytes += bytes_of(item);
            bytes <= GROUP_BYTES
        });
        let (group, rest) = all.split_at(fitting.count().max(1));
        groups.push(group);
        all = rest;
    }
    groups
}

/// The keys on their way.
struct Copying<'a> {
    hold: &'a SlotClaim,
    route: &'a Route<'a>,
    /// All keys that were read.
    lives: HashMap<Bytes, Life>,
    carried: Carried,
}

impl Copying<'_> {
    /// While a group is written the next one is read.
    async fn all(&mut self, from: &mut Link, to: &mut Link, mut reader: Reader) -> Result<(), Refusal> {
        let mut next = reader.next(from, self.route).await?;
        while let Some(items) = next {
            let items = self.note(items);
            let (written, read) = tokio::join!(self.write(to, &items), reader.next(from, self.route));
            written?;
            next = read?;
        }
        Ok(())
    }

    /// Remembers what was read, and leaves out what was gone.
    fn note(&mut self, items: Vec<Item>) -> Vec<KeyState> {
        let mut there = Vec::with_capacity(items.len());
        for Item { state, life } in items {
            self.lives.insert(state.key.clone(), life);
            if life == Life::Gone {
                self.carried.expired += 1;
            } else {
                self.carried.keys += 1;
                self.carried.bytes += state.bytes() - state.key.len() as u64;
                there.push(state);
            }
        }
        there
    }

    async fn write(&self, to: &mut Link, keys: &[KeyState]) -> Result<(), Refusal> {
        for some in groups(keys, |state| usize::try_from(state.bytes()).unwrap_or(usize::MAX / 2)) {
            if let Some((index, e)) = self.hold.restore(to, some).await? {
                return Err(match e.code {
                    Code::PayloadVersion | Code::PayloadFormat => Refusal::Unholdable {
                        key: some[index].key.clone(),
                        why: "the server it would go to does not understand it".to_owned(),
                    },
                    _ => fence::script_error(to, e, "write keys to a slot").into(),
                });
            }
        }
        Ok(())
    }
}

/// Sees that both sides have what was read, except what has expired, and nothing else, and that both fences
/// are still the same.
async fn verify(
    from: &mut Link,
    to: &mut Link,
    holds: (&SlotClaim, &SlotClaim),
    lives: &HashMap<Bytes, Life>,
) -> Result<(), Refusal> {
    // The fence, and one key that would be too many.
    let most = lives.len() as u64 + 2;
    let (origin, destination) = tokio::join!(read_left(from, holds.0, most), read_left(to, holds.1, most));
    let (origin, destination) = (origin?, destination?);
    if origin.names.iter().any(|name| !lives.contains_key(name)) {
        return Err(changed(from, "keys were added meanwhile"));
    }
    let is_carried = |name: &Bytes| lives.get(name).is_some_and(|life| *life != Life::Gone);
    if !destination.names.iter().all(is_carried) {
        return Err(changed(to, "it has keys that were not carried there"));
    }
    let missing = |left: &names::Left, now_ms: i64| {
        let there: HashSet<&Bytes> = left.names.iter().collect();
        lives.iter().filter(|(name, life)| !life.may_be_over(now_ms) && !there.contains(name)).count()
    };
    match (missing(&origin, origin.now_ms), missing(&destination, destination.now_ms)) {
        (0, 0) => Ok(()),
        (0, keys) => Err(changed(to, &format!("{keys} keys were written, and are not there any more"))),
        (keys, _) => Err(changed(from, &format!("{keys} keys were removed meanwhile"))),
    }
}

/// Another client writes.
fn changed(link: &Link, what: &str) -> Refusal {
    let (side, at) = (link.endpoint().side, link.address().to_string());
    Error::unfit(side, at, "carry the keys of a slot", what)
        .with_remedy("see that nobody but the fleet writes to that server, and that it does not evict keys")
        .into()
}
