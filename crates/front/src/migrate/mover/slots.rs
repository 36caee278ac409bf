//! Goes over a source that is a cluster, slot by slot.
//!
//! A slot is done when all nodes together have no key of it, at a moment at which no slot is on the move, and
//! no move of one of its keys is under way that could have begun before. `docs/design/front.md` shows why
//! that is for ever.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_core::slot::Slot;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;
use whimbrel_engine::slot_keys;

use super::pass::Pass;
use crate::migrate::arrived::{Slots, group, groups};
use crate::upstream::were_at_rest;

/// Keys of a slot that are asked for at first.
const PAGE_KEYS: usize = 100;

/// Keys of a slot that are asked for at most. Servers look for the first keys of a slot from the place of the
/// very first, past all that have gone: so the more keys a slot has, the more are asked for at a time.
const PAGE_KEYS_MAX: usize = 5_000;

/// Keys that have not gone, and are remembered. Each of them is reported again with every page, so they are
/// fewer than one has room for.
const STUCK_MAX: usize = PAGE_KEYS_MAX * 2 / 5;

/// Slots that are asked about at a time, fewer if their keys would be more than [`PAGE_KEYS_MAX`].
const SLOTS_AT_ONCE: usize = 16;

/// A node, and the slots that it has as far as is known.
type Node = (Link, BTreeSet<Slot>);

impl Pass {
    /// All keys that the nodes have, one group of slots after the other.
    pub(super) async fn by_slot(&mut self, slots: &Slots) -> Result<()> {
        let upstream = self.migration.servers.source.clone();
        let mut claims = upstream.claims().await?;
        let mut nodes = upstream.each_with_slots().await?;
        for number in groups() {
            let (done, open): (Vec<Slot>, Vec<Slot>) = group(number).partition(|slot| slots.is_done(*slot));
            if !self.is_scanned {
                // Another client has put it there, or a node has forgotten that it was removed.
                self.returned += counts(&mut nodes, &done).await?.values().sum::<u64>();
            }
            if open.is_empty() {
                continue;
            }
            self.stuck.clear();
            if !self.is_scanned && !self.move_all_of(&mut nodes, &open).await? {
                // So many do not go that they would be most of what nodes report. Iterations give each key
                // once, of all groups.
                (self.staying, self.returned, self.is_scanned) = (0, 0, true);
                self.stuck.clear();
                self.scan().await?;
            }
            let left = counts(&mut nodes, &open).await?;
            // Those that have begun since see that the source has nothing, and write nothing.
            let wanted = self.wanted_slots();
            let now = upstream.claims().await?;
            if were_at_rest(&claims, &now) {
                let is_done = |slot: &&Slot| left.get(*slot) == Some(&0) && !wanted.contains(*slot);
                open.iter().filter(is_done).for_each(|slot| slots.finish(*slot));
            }
            if claims != now {
                nodes = upstream.each_with_slots().await?;
            }
            claims = now;
        }
        Ok(())
    }

    /// Has all keys of these slots moved. False if too many of them do not go.
    async fn move_all_of(&mut self, nodes: &mut [Node], open: &[Slot]) -> Result<bool> {
        for (node, own) in nodes {
            let mut slots: Vec<Slot> = open.iter().filter(|slot| own.contains(*slot)).copied().collect();
            let mut page = PAGE_KEYS;
            while !slots.is_empty() {
                let mut more = Vec::new();
                for some in slots.chunks((PAGE_KEYS_MAX / page).clamp(1, SLOTS_AT_ONCE)) {
                    for (slot, keys) in
                        some.iter().zip(slot_keys::first_names(node, some, page as u64).await?)
                    {
                        if keys.len() >= page {
                            more.push(*slot);
                        }
                        self.take(keys).await?;
                    }
                    if self.stuck.len() > STUCK_MAX {
                        self.settle().await?;
                        return Ok(false);
                    }
                }
                self.settle().await?;
                // A node reports the first keys of a slot: the next ones are seen when these have gone. Those
                // that stay, or have come back, would hide them: they are at most those of the last page, and
                // at most `STUCK_MAX`.
                page = (page * 2).min(PAGE_KEYS_MAX);
                slots = more;
            }
        }
        Ok(true)
    }

    fn wanted_slots(&self) -> BTreeSet<Slot> {
        let mut wanted = BTreeSet::new();
        self.migration.locks.for_each_wanted(|key| {
            wanted.insert(Slot::of_key(key));
        });
        wanted
    }
}

/// How many keys of each of these slots all nodes have together.
async fn counts(nodes: &mut [Node], slots: &[Slot]) -> Result<BTreeMap<Slot, u64>> {
    let mut counts: BTreeMap<Slot, u64> = slots.iter().map(|slot| (*slot, 0)).collect();
    for (node, _) in nodes {
        for (slot, keys) in slots.iter().zip(slot_keys::counts(node, slots).await?) {
            *counts.entry(*slot).or_default() += keys;
        }
    }
    Ok(counts)
}
