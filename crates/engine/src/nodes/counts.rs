//! How many keys a node holds in each slot.

use whimbrel_core::cluster::KeyCounts;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_wire::value::Value;

use super::view::{ClusterView, Node};
use crate::error::{Code, Result, ServerError};
use crate::link::Link;
use crate::probe::Info;
use crate::slot_keys;

/// Fields of `CLUSTER INFO`, of Redis 8.4 and later.
const ACTIVE_TASKS: &str = "cluster_slot_migration_active_tasks";
pub(super) const TRIM_RUNNING: &str = "cluster_slot_migration_active_trim_running";

/// Counts the keys that `link`'s node holds in each of `slots`, whether it owns the slot or not. Each count
/// is of its own moment.
///
/// # Errors
/// As [`Link::call`].
pub async fn key_counts(link: &mut Link, slots: &SlotSet) -> Result<KeyCounts> {
    let slots: Vec<Slot> = slots.iter().collect();
    let mut counts = KeyCounts::default();
    for (slot, keys) in slots.iter().zip(slot_keys::counts(link, &slots).await?) {
        counts.set(*slot, u32::try_from(keys).unwrap_or(u32::MAX));
    }
    Ok(counts)
}

/// The keys of a primary that hides those of slots which are neither its own nor marked as importing.
#[derive(Debug)]
pub(super) struct ShownAndHidden {
    /// Those of the slots that it shows.
    pub(super) shown: KeyCounts,
    /// All others. 0 while it moves slots or removes what a migration of its own has left: those are hidden
    /// as well.
    pub(super) hidden: u64,
}

/// Counts what a primary holds that shows the keys of `shown` only, its own slots and those that it imports.
/// It counts the others in `DBSIZE`. All counts are of the same moment, by a transaction, so that neither
/// writers nor a slot that comes or goes make up a difference: it keeps the server busy for 1 to 5 ms. `None`
/// if this user may use no transactions.
///
/// # Errors
/// As [`Link::call`].
pub(super) async fn count_shown_and_hidden(
    link: &mut Link,
    shown: &SlotSet,
) -> Result<Option<ShownAndHidden>> {
    // Outside of a transaction: in one they are refused for just that. A transaction that this user cannot
    // end must not be begun.
    link.push(&[b"EXEC"]);
    link.push(&[b"DISCARD"]);
    link.flush().await?;
    let replies = link.replies(2).await?;
    let is_forbidden = |reply| {
        let code = ServerError::of(reply).map(|e| e.code);
        matches!(code, Some(Code::NoPermission | Code::UnknownCommand))
    };
    if replies.iter().any(is_forbidden) || ServerError::of(&link.ask(&[b"MULTI"]).await?).is_some() {
        return Ok(None);
    }
    link.push(&[b"CLUSTER", b"NODES"]);
    link.push(&[b"CLUSTER", b"INFO"]);
    link.push(&[b"DBSIZE"]);
    shown.iter().for_each(|slot| slot_keys::push_count(link, slot));
    link.push(&[b"EXEC"]);
    link.flush().await?;
    // `QUEUED` for each but `EXEC`.
    let answers = link.replies(shown.len() + 4).await?.pop().and_then(Value::into_items).unwrap_or_default();
    let [nodes, info, keys, counts @ ..] = &answers[..] else { return Ok(None) };
    let (Some(nodes), Some(info), Some(keys)) = (nodes.as_bytes(), info.as_bytes(), keys.as_int()) else {
        return Ok(None);
    };
    let nodes = ClusterView::parse(&String::from_utf8_lossy(nodes), link.endpoint(), link.address());
    let is_shown = |me: &Node| {
        let importing: SlotSet = me.importing.iter().map(|(slot, _)| *slot).collect();
        me.slots.union(&importing) == *shown
    };
    let info = Info::parse(info);
    let is_idle = [ACTIVE_TASKS, TRIM_RUNNING].iter().all(|field| info.number(field).unwrap_or(0) == 0);
    let mut held = ShownAndHidden { shown: KeyCounts::default(), hidden: u64::try_from(keys).unwrap_or(0) };
    for (slot, count) in shown.iter().zip(counts) {
        let count = slot_keys::count_in(link, count.clone())?;
        held.shown.set(slot, u32::try_from(count).unwrap_or(u32::MAX));
        held.hidden = held.hidden.saturating_sub(count);
    }
    if !is_idle || !nodes.is_some_and(|view| is_shown(view.me())) {
        held.hidden = 0;
    }
    Ok(Some(held))
}
