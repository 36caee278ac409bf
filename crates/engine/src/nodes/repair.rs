//! Changing who owns what, one node at a time: what a repair is made of.
//!
//! Nothing here is atomic over nodes. The callers say what makes each change safe.

use tokio::task::JoinSet;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};

use super::view::ClusterView;
use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::{Error, Result};
use crate::link::Link;

/// Connections that mark slots of one node at the same time. Since Valkey 8 each `SETSLOT` waits for the
/// node's replicas, 1 to 2 ms, and holds up the connection it came on, no other.
const MARKING_LINKS_MAX: usize = 16;

/// Slots that are worth one more of them.
const SLOTS_PER_LINK: usize = 16;

/// Commands sent before their replies are read.
const PIPELINED: usize = 256;

/// Slots in one `ADDSLOTS` or `DELSLOTS`. Lists work on every version; ranges are Redis 7.0 and later.
const LISTED_MAX: usize = 1_024;

/// What `CLUSTER SETSLOT` sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotMark {
    /// The node takes the slot in, from the node with this name.
    Importing(NodeId),
    /// The node gives the slot away, to the node with this name.
    Migrating(NodeId),
    /// Neither.
    Stable,
    /// The slot belongs to the node with this name. If that is the node itself and it was importing the slot,
    /// it takes a new epoch and notifies all others at once.
    Node(NodeId),
}

impl SlotMark {
    fn push(&self, link: &mut Link, slot: Slot) {
        let (word, id) = match self {
            SlotMark::Importing(id) => ("IMPORTING", Some(id)),
            SlotMark::Migrating(id) => ("MIGRATING", Some(id)),
            SlotMark::Stable => ("STABLE", None),
            SlotMark::Node(id) => ("NODE", Some(id)),
        };
        let outbox = link.outbox();
        outbox.command(if id.is_some() { 5 } else { 4 });
        outbox.arg(b"CLUSTER");
        outbox.arg(b"SETSLOT");
        outbox.arg_int(i64::from(slot.number()));
        outbox.arg(word.as_bytes());
        if let Some(id) = id {
            outbox.arg(id.as_str().as_bytes());
        }
    }
}

/// Sends `CLUSTER SETSLOT` for each of `slots` to the node at `address`, never inside a transaction: that
/// crashes Valkey 8.1 and later. Over several connections if there are many slots.
///
/// # Errors
/// As [`Deployment::open`] and [`Link::call`]: the first refusal, after all commands that were under way have
/// been answered. Some of the slots may then be set.
pub async fn set_slots(
    deployment: &Deployment,
    address: &Address,
    slots: &SlotSet,
    mark: &SlotMark,
) -> Result<()> {
    let slots: Vec<Slot> = slots.iter().collect();
    let links = slots.len().div_ceil(SLOTS_PER_LINK).clamp(1, MARKING_LINKS_MAX);
    let mut running = JoinSet::new();
    for part in slots.chunks(slots.len().div_ceil(links).max(1)) {
        let (part, mark, address) = (part.to_vec(), mark.clone(), address.clone());
        let (endpoint, options) = (deployment.endpoint.clone(), deployment.options);
        running.spawn(async move {
            let mut link = Link::open(&endpoint, &address, options).await?;
            for piece in part.chunks(PIPELINED) {
                for slot in piece {
                    mark.push(&mut link, *slot);
                }
                link.flush().await?;
                for reply in link.replies(piece.len()).await? {
                    link.check(reply, b"CLUSTER SETSLOT")?;
                }
            }
            Ok(())
        });
    }
    let mut outcome = Ok(());
    while let Some(joined) = running.join_next().await {
        let result = joined.map_err(|e| Error::own("mark slots", e)).and_then(|r| r);
        outcome = outcome.and(result);
    }
    outcome
}

/// `CLUSTER ADDSLOTS` or `CLUSTER DELSLOTS` for each of `slots`.
async fn list_slots(link: &mut Link, command: &str, slots: &[Slot]) -> Result<()> {
    for piece in slots.chunks(LISTED_MAX) {
        let outbox = link.outbox();
        outbox.command(2 + piece.len());
        outbox.arg(b"CLUSTER");
        outbox.arg(command.as_bytes());
        for slot in piece {
            outbox.arg_int(i64::from(slot.number()));
        }
        link.flush().await?;
        let reply = link.reply().await?;
        link.check(reply, format!("CLUSTER {command}").as_bytes())?;
    }
    Ok(())
}

/// Makes the node behind `link` forget the owners of `slots`, itself included. If it was the owner, it no
/// longer serves them, keeps its keys in them, and then accepts news of another owner, which it refuses while
/// it owns keys there.
///
/// # Errors
/// As [`Link::call`].
pub async fn forget_owners(link: &mut Link, slots: &SlotSet) -> Result<()> {
    let view = ClusterView::ask(link).await?;
    // A slot without an owner cannot be deleted: the server refuses the whole list.
    let owned: Vec<Slot> = slots.iter().filter(|slot| view.primary_of(*slot).is_some()).collect();
    list_slots(link, "DELSLOTS", &owned).await
}

/// Makes the node behind `link` the owner of `slots`, whichever node it took for their owner before, and
/// makes it notify all others at once, with an epoch above all that it knows. Slots that it owns already are
/// claimed anew; for the length of a few commands one of them has no owner in its view then.
///
/// # Errors
/// As [`Link::call`]. `Unfit` if the node is no primary.
pub async fn claim(link: &mut Link, slots: &SlotSet) -> Result<()> {
    let view = ClusterView::ask(link).await?;
    let me = view.me();
    if !me.is_primary() {
        let (side, at) = (link.endpoint().side, link.address().to_string());
        return Err(Error::unfit(side, at, "claim slots", "the node has become a replica"));
    }
    let mut missing: Vec<Slot> = slots.difference(&me.slots).iter().collect();
    let peer = view.primaries().find(|n| n.id != me.id && n.is_usable());
    // The slot whose assignment notifies the others. A missing one, if there is any.
    let messenger = match (peer, missing.pop().or_else(|| slots.iter().next())) {
        (Some(peer), Some(slot)) => Some((peer.id.clone(), slot)),
        // Alone, there is no node to notify.
        (None, Some(slot)) => {
            missing.extend((!me.slots.contains(slot)).then_some(slot));
            None
        }
        (_, None) => return Ok(()),
    };
    let foreign: Vec<Slot> =
        missing.iter().copied().filter(|slot| view.primary_of(*slot).is_some()).collect();
    list_slots(link, "DELSLOTS", &foreign).await?;
    list_slots(link, "ADDSLOTS", &missing).await?;
    let Some((peer, slot)) = messenger else { return Ok(()) };
    if me.slots.contains(slot) {
        // An owner cannot import.
        list_slots(link, "DELSLOTS", &[slot]).await?;
    }
    for mark in [SlotMark::Importing(peer), SlotMark::Node(me.id.clone())] {
        mark.push(link, slot);
        link.flush().await?;
        let reply = link.reply().await?;
        link.check(reply, b"CLUSTER SETSLOT")?;
    }
    Ok(())
}

/// Gives the node behind `link` an epoch above all that it knows, if it does not have the highest one
/// already. The others hear of it with its next pings.
///
/// # Errors
/// As [`Link::call`].
pub async fn bump_epoch(link: &mut Link) -> Result<()> {
    link.call(&[b"CLUSTER", b"BUMPEPOCH"]).await.map(drop)
}
