//! Which keys a node holds in its slots, and how many: the one place that asks `CLUSTER COUNTKEYSINSLOT` and
//! `CLUSTER GETKEYSINSLOT` and reads the answers. (The daemon passes on what its clients ask, and one script
//! of a fleet counts in the turn of the server in which it acts.)
//!
//! A node answers for slots that it does not own as well. Redis 8.4 and later are the exception: they answer
//! as if such slots were empty.
//!
//! `push_…` queues a question on the link and `…_in` reads its reply, for callers that pipeline them with
//! other commands. The others do a round trip of their own.

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_wire::value::Value;

use crate::error::Result;
use crate::link::Link;

/// Commands sent before their replies are read: enough to hide the round trip, few enough that neither the
/// server nor we hold more than some tens of KiB.
const PIPELINED: usize = 1_024;

/// Names asked for beyond those that were counted: this many keys may have come meanwhile without a second
/// question.
const SLACK: u64 = 64;

/// Asks how many keys the node holds in a slot; see [`count_in`].
pub fn push_count(link: &mut Link, slot: Slot) {
    let outbox = link.outbox();
    outbox.command(3);
    outbox.arg(b"CLUSTER");
    outbox.arg(b"COUNTKEYSINSLOT");
    outbox.arg_int(i64::from(slot.number()));
}

/// Asks for the names of up to `most` keys of a slot; see [`names_in`].
pub fn push_names(link: &mut Link, slot: Slot, most: u64) {
    let outbox = link.outbox();
    outbox.command(4);
    outbox.arg(b"CLUSTER");
    outbox.arg(b"GETKEYSINSLOT");
    outbox.arg_int(i64::from(slot.number()));
    outbox.arg_int(i64::try_from(most).unwrap_or(i64::MAX));
}

/// The count in a reply to [`push_count`].
///
/// # Errors
/// The server's error, or a reply of another form.
pub fn count_in(link: &Link, reply: Value) -> Result<u64> {
    let reply = link.check(reply, b"CLUSTER COUNTKEYSINSLOT")?;
    let count = reply.as_int().and_then(|n| u64::try_from(n).ok());
    count.ok_or_else(|| link.unexpected("CLUSTER COUNTKEYSINSLOT", &reply))
}

/// The names in a reply to [`push_names`].
///
/// # Errors
/// The server's error, or a reply of another form.
pub fn names_in(link: &Link, reply: Value) -> Result<Vec<Bytes>> {
    let reply = link.check(reply, b"CLUSTER GETKEYSINSLOT")?;
    let unexpected = link.unexpected("CLUSTER GETKEYSINSLOT", &reply);
    Ok(reply.into_items().ok_or(unexpected)?.into_iter().filter_map(Value::into_bytes).collect())
}

/// How many keys the node holds in each of these slots, in their order. Each count is of its own moment.
///
/// # Errors
/// As [`Link::call`].
pub async fn counts(link: &mut Link, slots: &[Slot]) -> Result<Vec<u64>> {
    let mut counts = Vec::with_capacity(slots.len());
    for piece in slots.chunks(PIPELINED) {
        piece.iter().for_each(|slot| push_count(link, *slot));
        link.flush().await?;
        // All replies are read before any is judged, so that the link stays in step.
        for reply in link.replies(piece.len()).await? {
            counts.push(count_in(link, reply)?);
        }
    }
    Ok(counts)
}

/// How many keys the node holds in one slot.
///
/// # Errors
/// As [`Link::call`].
pub async fn count(link: &mut Link, slot: Slot) -> Result<u64> {
    push_count(link, slot);
    link.flush().await?;
    let reply = link.reply().await?;
    count_in(link, reply)
}

/// Up to `most` names of each of these slots, in their order. The caller bounds `slots` times `most`.
///
/// # Errors
/// As [`Link::call`].
pub async fn first_names(link: &mut Link, slots: &[Slot], most: u64) -> Result<Vec<Vec<Bytes>>> {
    slots.iter().for_each(|slot| push_names(link, *slot, most));
    link.flush().await?;
    let replies = link.replies(slots.len()).await?;
    replies.into_iter().map(|reply| names_in(link, reply)).collect()
}

/// All names of these slots, each with how many keys it held a moment ago. They are held in memory together.
///
/// Servers list the newest first, or in any order, so a list that is as long as was asked for may lack some
/// of the old ones: then more are asked for.
///
/// # Errors
/// As [`Link::call`].
pub async fn all_names(link: &mut Link, slots: &[(Slot, u64)]) -> Result<Vec<Bytes>> {
    let mut asked: Vec<(Slot, u64)> =
        slots.iter().map(|(slot, count)| (*slot, count.saturating_add(SLACK))).collect();
    let mut names = Vec::new();
    while !asked.is_empty() {
        asked.iter().for_each(|(slot, most)| push_names(link, *slot, *most));
        link.flush().await?;
        let mut grown = Vec::new();
        for ((slot, most), reply) in asked.iter().zip(link.replies(asked.len()).await?) {
            let listed = names_in(link, reply)?;
            match (listed.len() as u64) < *most {
                true => names.extend(listed),
                false => grown.push((*slot, most.saturating_mul(2))),
            }
        }
        asked = grown;
    }
    Ok(names)
}
