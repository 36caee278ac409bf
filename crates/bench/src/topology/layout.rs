//! The tables that are measured, and how slots move in them.

use anyhow::Context;
use serde::Serialize;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::Slot;
use whimbrel_core::topology::{Group, Health, Member, Naming, Table};
use whimbrel_lab::{made_up_id, made_up_port};

/// Slots of a cluster.
pub const SLOTS: usize = Slot::COUNT as usize;

/// Who owns which slot at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// How many primaries there are, without replicas.
    pub primaries: usize,
    /// Whether each slot belongs to the next node, instead of one range to each.
    pub is_fragmented: bool,
}

/// In words.
pub fn form(is_fragmented: bool) -> &'static str {
    if is_fragmented { "fragmented" } else { "whole ranges" }
}

impl Layout {
    /// As it is written on the command line of a child.
    pub fn word(self) -> String {
        format!("{}:{}", self.primaries, if self.is_fragmented { "fragmented" } else { "whole" })
    }

    /// Reads [`Layout::word`].
    ///
    /// # Errors
    /// For anything else.
    pub fn parse(text: &str) -> Result<Layout, String> {
        let (primaries, form) = text.split_once(':').ok_or("expected PRIMARIES:whole or :fragmented")?;
        let primaries = primaries.parse().map_err(|_| "expected a number of primaries".to_owned())?;
        Ok(Layout { primaries, is_fragmented: form == "fragmented" })
    }

    /// The number of a slot's owner.
    pub fn owner(self, slot: usize) -> usize {
        if self.is_fragmented { slot % self.primaries } else { slot * self.primaries / SLOTS }
    }

    /// The table.
    ///
    /// # Errors
    /// Never for names that are made up.
    pub fn table(self) -> anyhow::Result<Table> {
        let groups: Vec<Group> = (0..self.primaries).map(group).collect::<anyhow::Result<_>>()?;
        Ok(Table::new(node_id(0)?, groups, |slot| Some(self.owner(usize::from(slot.number())))))
    }
}

/// The name of a node.
///
/// # Errors
/// Never for names that are made up.
pub fn node_id(node: usize) -> anyhow::Result<NodeId> {
    made_up_id(node).parse().context("name a node")
}

fn group(node: usize) -> anyhow::Result<Group> {
    let port = u16::try_from(made_up_port(node)).context("too many primaries")?;
    let primary = Member {
        id: node_id(node)?,
        ip: "127.0.0.1".to_owned(),
        hostname: None,
        naming: Naming::Ip,
        port: Some(port),
        tls_port: None,
        bus_port: Some(port + 10_000),
        config_epoch: node as u64 + 1,
        health: Health::Online,
        is_connected: true,
    };
    Ok(Group { primary, replicas: Vec::new() })
}

/// One slot after another gets another owner. Whole ranges stay whole: a slot goes from the end of one to the
/// next.
#[derive(Debug)]
pub struct Moves {
    layout: Layout,
    turn: usize,
    owners: Vec<usize>,
    /// The last slot of each node, where ranges are whole.
    last: Vec<usize>,
}

/// One move.
#[derive(Debug, Clone, Copy)]
pub struct SlotMove {
    /// The slot.
    pub slot: usize,
    /// Its new owner.
    pub to: usize,
    /// The last slot of the range that it begins, where ranges are whole.
    pub range_end: usize,
}

impl Moves {
    /// From the beginning.
    pub fn new(layout: Layout) -> Moves {
        let owners: Vec<usize> = (0..SLOTS).map(|slot| layout.owner(slot)).collect();
        let mut last = vec![0; layout.primaries];
        for (slot, owner) in owners.iter().enumerate() {
            last[*owner] = slot;
        }
        Moves { layout, turn: 0, owners, last }
    }

    /// The next one.
    pub fn advance(&mut self) -> SlotMove {
        let turn = self.turn;
        self.turn += 1;
        if self.layout.is_fragmented {
            // A step that has no factor in common with the number of slots visits all of them.
            let slot = turn * 37 % SLOTS;
            let to = (self.owners[slot] + (self.layout.primaries / 2).max(1)) % self.layout.primaries;
            self.owners[slot] = to;
            return SlotMove { slot, to, range_end: slot };
        }
        let from = turn % (self.layout.primaries - 1);
        let (slot, to) = (self.last[from], from + 1);
        self.last[from] -= 1;
        SlotMove { slot, to, range_end: self.last[to] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::slot::{SlotRange, SlotSet};

    #[test]
    fn moves_keep_the_form_of_the_table() {
        for (primaries, is_fragmented) in [(3, false), (128, false), (128, true), (1_000, true)] {
            let layout = Layout { primaries, is_fragmented };
            assert_eq!(Layout::parse(&layout.word()), Ok(layout));
            let mut table = layout.table().expect("a table");
            let before = table.ranges_from(SlotRange::FULL).count();
            assert_eq!(before, if is_fragmented { SLOTS } else { primaries });
            let mut moves = Moves::new(layout);
            for _ in 0..500 {
                let moved = moves.advance();
                let slot = u16::try_from(moved.slot).ok().and_then(Slot::new).expect("a slot");
                assert_ne!(table.owner(slot), Some(moved.to));
                table.assign(&SlotSet::from_iter([slot]), Some(moved.to));
                let (range, owner) = table.range_of(slot).expect("a range");
                assert_eq!((owner, usize::from(range.end().number())), (moved.to, moved.range_end));
            }
            assert_eq!(table.ranges_from(SlotRange::FULL).count(), before);
        }
    }
}
