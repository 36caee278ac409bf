//! The slot table: which shard owns which slot, and what changed when it changed.
//!
//! A [`Table`] answers two questions without a search: which shard owns a slot, and which ranges a shard has.
//! A change of it returns a [`Change`], which says what has to be built again of anything that is built from
//! the table. The replies to clients are such a thing; they are built in the crate `wire`.
//!
//! Ranges come from one walk over the slots, when a table is made. After that only the lists of the shards
//! that gave or got a slot are edited: neither depends on the number of nodes times the number of slots.

use std::collections::BTreeSet;

use crate::node::NodeId;
use crate::slot::{Slot, SlotRange, SlotSet};

/// How a node is, in the eyes of the node that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// It answers.
    Online,
    /// A replica that has not taken in its primary's data yet: clients are not sent to it.
    Loading,
    /// The node that was asked finds it unreachable: `fail?` in the servers' words.
    Suspected,
    /// A majority of the primaries does: `fail`.
    Failed,
}

/// How a cluster names the hosts of its nodes to clients: `cluster-preferred-endpoint-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Naming {
    /// By their IP addresses.
    #[default]
    Ip,
    /// By the host names that they announce.
    Hostname,
    /// Not at all: clients go to the host that they have asked.
    Unknown,
}

/// One node as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub id: NodeId,
    /// Its IP address as it announces it. Never empty: a node that no client can be sent to is in no table.
    pub ip: String,
    /// The host name that it announces besides.
    pub hostname: Option<String>,
    /// By what clients are sent to it.
    pub naming: Naming,
    /// The port for clients without TLS, if it is known.
    pub port: Option<u16>,
    /// The port for clients with TLS, if it is known.
    pub tls_port: Option<u16>,
    /// The port of its cluster bus, if it is known.
    pub bus_port: Option<u16>,
    /// The epoch of its claim to its slots; of a replica its primary's.
    pub config_epoch: u64,
    /// How it is.
    pub health: Health,
    /// Whether the asked node has a link to it.
    pub is_connected: bool,
}

impl Member {
    /// The host that clients are sent to, as servers write it: `?` for a host name that is not announced,
    /// `None` for the host that was asked.
    pub fn endpoint(&self) -> Option<&str> {
        match self.naming {
            Naming::Ip => Some(&self.ip),
            Naming::Hostname => Some(self.hostname.as_deref().unwrap_or("?")),
            Naming::Unknown => None,
        }
    }

    /// The port that clients are sent to: the one without TLS if both are known, 0 if none is.
    pub fn client_port(&self) -> u16 {
        self.port.or(self.tls_port).unwrap_or(0)
    }
}

/// A primary and its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The owner of the slots.
    pub primary: Member,
    /// The nodes that follow it, in the order of ids.
    pub replicas: Vec<Member>,
}

impl Group {
    /// The primary first, then the replicas.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.primary).chain(&self.replicas)
    }
}

/// One shard of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    group: Group,
    ranges: Vec<SlotRange>,
}

impl Shard {
    /// Its nodes.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Its slots, as the fewest possible ranges, in ascending order.
    pub fn ranges(&self) -> &[SlotRange] {
        &self.ranges
    }
}

/// Slots as their places in arrays.
const SLOTS: usize = Slot::COUNT as usize;

/// Of a slot that no shard owns.
const NOBODY: u32 = 0;

/// Which shard owns which slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    myself: NodeId,
    /// In the order in which they were given.
    shards: Vec<Shard>,
    /// For each slot the index of its shard plus one, or [`NOBODY`]. Invariant: says the same as the shards'
    /// ranges.
    owners: Box<[u32; SLOTS]>,
    /// How many slots have an owner.
    assigned: usize,
}

/// What is not any more as it was. Indices are those of the table after the change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// Everything: another set of shards, or another node that speaks. The rest is empty then.
    pub is_whole: bool,
    /// Slots with another owner.
    pub slots: SlotSet,
    /// Shards that gave or got slots.
    pub owners: BTreeSet<usize>,
    /// Shards with a node that is another, or is shown in another way.
    pub groups: BTreeSet<usize>,
}

impl Change {
    /// True if everything is as it was.
    pub fn is_empty(&self) -> bool {
        !self.is_whole && self.slots.is_empty() && self.groups.is_empty()
    }
}

impl Table {
    /// The table in the eyes of the node `myself`. `owner_of` is asked once for each slot, in ascending
    /// order, for the index in `groups`; an index that is not there counts as no owner.
    pub fn new(myself: NodeId, groups: Vec<Group>, mut owner_of: impl FnMut(Slot) -> Option<usize>) -> Table {
        let shards = groups.into_iter().map(|group| Shard { group, ranges: Vec::new() }).collect();
        let mut table = Table { myself, shards, owners: Box::new([NOBODY; SLOTS]), assigned: 0 };
        for slot in Slot::all() {
            let Some(index) = owner_of(slot).filter(|index| *index < table.shards.len()) else { continue };
            table.owners[place(slot)] = owner_word(index);
            table.assigned += 1;
            append(&mut table.shards[index].ranges, slot);
        }
        table
    }

    /// In whose eyes the table is.
    pub fn myself(&self) -> &NodeId {
        &self.myself
    }

    /// All shards, those without slots included.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Which shard this node is the primary of.
    pub fn shard_of_primary(&self, id: &NodeId) -> Option<usize> {
        self.shards.iter().position(|shard| shard.group.primary.id == *id)
    }

    /// Which shard owns a slot.
    pub fn owner(&self, slot: Slot) -> Option<usize> {
        index_of(self.owners[place(slot)])
    }

    /// The same table with its primaries shown in another way.
    #[must_use]
    pub fn with_primaries(&self, show: impl FnMut(&mut Member)) -> Table {
        let mut table = self.clone();
        table.shards.iter_mut().map(|shard| &mut shard.group.primary).for_each(show);
        table
    }

    /// How many slots have an owner.
    pub fn assigned(&self) -> usize {
        self.assigned
    }

    /// The whole range that a slot is part of, and its owner.
    pub fn range_of(&self, slot: Slot) -> Option<(SlotRange, usize)> {
        let index = self.owner(slot)?;
        let ranges = &self.shards[index].ranges;
        let at = ranges.partition_point(|range| range.end() < slot);
        ranges.get(at).map(|range| (*range, index))
    }

    /// The ranges that begin within `window`, with their owners, in ascending order; the last may end beyond
    /// it. With [`SlotRange::FULL`] these are all: one walk over the slots.
    pub fn ranges_from(&self, window: SlotRange) -> impl Iterator<Item = (SlotRange, usize)> {
        let (mut at, last) = (place(window.start()), place(window.end()));
        // What goes on from before the window began before it.
        if at > 0 && self.owners[at] != NOBODY {
            let before = self.owners[at - 1];
            at += self.owners[at..=last].iter().take_while(|owner| **owner == before).count();
        }
        std::iter::from_fn(move || {
            at += self.owners.get(at..=last)?.iter().take_while(|owner| **owner == NOBODY).count();
            let owner = *self.owners.get(at..=last)?.first()?;
            let start = slot_at(at)?;
            at += self.owners[at..=last].iter().take_while(|other| **other == owner).count();
            let index = index_of(owner)?;
            let end = match at > last {
                // It may go on: its shard knows how far, so that no walk is needed there.
                true => self.range_of(start)?.0.end(),
                false => slot_at(at - 1)?,
            };
            Some((SlotRange::new(start, end)?, index))
        })
    }

    /// Gives slots to a shard, or to none; an index that is not there is none. Costs as much as the slots
    /// that change and the ranges of the shards that gave and got them, whatever the size of the cluster.
    pub fn assign(&mut self, slots: &SlotSet, owner: Option<usize>) -> Change {
        let owner = owner.filter(|index| *index < self.shards.len());
        let mut change = Change::default();
        for slot in slots {
            let before = self.owner(slot);
            if before == owner {
                continue;
            }
            if let Some(index) = before {
                take_out(&mut self.shards[index].ranges, slot);
                change.owners.insert(index);
                self.assigned -= 1;
            }
            if let Some(index) = owner {
                put_in(&mut self.shards[index].ranges, slot);
                change.owners.insert(index);
                self.assigned += 1;
            }
            self.owners[place(slot)] = owner.map_or(NOBODY, owner_word);
            change.slots.insert(slot);
        }
        change
    }

    /// Becomes `next`, and says what is different.
    pub fn adopt(&mut self, next: Table) -> Change {
        let is_same_set = self.myself == next.myself
            && self.shards.len() == next.shards.len()
            && self.shards.iter().zip(&next.shards).all(|(a, b)| a.group.primary.id == b.group.primary.id);
        let mut change = Change::default();
        if is_same_set {
            for slot in Slot::all().filter(|slot| self.owner(*slot) != next.owner(*slot)) {
                change.slots.insert(slot);
                change.owners.extend(self.owner(slot).into_iter().chain(next.owner(slot)));
            }
            let pairs = self.shards.iter().zip(&next.shards).enumerate();
            change.groups = pairs.filter(|(_, (a, b))| a.group != b.group).map(|(index, _)| index).collect();
        } else {
            change.is_whole = true;
        }
        *self = next;
        change
    }
}

fn place(slot: Slot) -> usize {
    usize::from(slot.number())
}

fn slot_at(place: usize) -> Option<Slot> {
    u16::try_from(place).ok().and_then(Slot::new)
}

fn index_of(owner: u32) -> Option<usize> {
    usize::try_from(owner).ok()?.checked_sub(1)
}

fn owner_word(index: usize) -> u32 {
    u32::try_from(index + 1).expect("a cluster has far fewer than 2^32 shards")
}

/// Adds a slot above all others.
fn append(ranges: &mut Vec<SlotRange>, slot: Slot) {
    match ranges.last_mut() {
        Some(last) if last.end().number() + 1 == slot.number() => {
            *last = joined(*last, SlotRange::from(slot));
        }
        _ => ranges.push(SlotRange::from(slot)),
    }
}

/// Two ranges that follow each other, as one.
fn joined(low: SlotRange, high: SlotRange) -> SlotRange {
    SlotRange::new(low.start(), high.end()).expect("the lower one comes first")
}

/// Adds a slot that is in none of the ranges.
fn put_in(ranges: &mut Vec<SlotRange>, slot: Slot) {
    let at = ranges.partition_point(|range| range.end() < slot);
    let follows = at > 0 && ranges[at - 1].end().number() + 1 == slot.number();
    let precedes = ranges.get(at).is_some_and(|next| next.start().number() == slot.number() + 1);
    match (follows, precedes) {
        (true, true) => {
            ranges[at - 1] = joined(ranges[at - 1], ranges[at]);
            ranges.remove(at);
        }
        (true, false) => ranges[at - 1] = joined(ranges[at - 1], slot.into()),
        (false, true) => ranges[at] = joined(slot.into(), ranges[at]),
        (false, false) => ranges.insert(at, slot.into()),
    }
}

/// Takes a slot out of the range that has it.
fn take_out(ranges: &mut Vec<SlotRange>, slot: Slot) {
    let at = ranges.partition_point(|range| range.end() < slot);
    let Some(range) = ranges.get(at).copied().filter(|range| range.contains(slot)) else { return };
    let below = Slot::new(slot.number().wrapping_sub(1)).and_then(|end| SlotRange::new(range.start(), end));
    let above = Slot::new(slot.number() + 1).and_then(|start| SlotRange::new(start, range.end()));
    ranges.splice(at..=at, below.into_iter().chain(above));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(number: usize) -> Member {
        Member {
            id: format!("{number:040x}").parse().expect("an id"),
            ip: "10.0.0.1".to_owned(),
            hostname: None,
            naming: Naming::Ip,
            port: Some(7000),
            tls_port: None,
            bus_port: Some(17_000),
            config_epoch: 1,
            health: Health::Online,
            is_connected: true,
        }
    }

    fn table(shards: usize, owner_of: impl FnMut(Slot) -> Option<usize>) -> Table {
        let groups = (0..shards).map(|number| Group { primary: member(number), replicas: Vec::new() });
        Table::new(member(0).id, groups.collect(), owner_of)
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).expect("a slot")
    }

    /// The ranges by their definition: a slot begins one where the slot before has another owner.
    fn plain_ranges(table: &Table) -> Vec<(SlotRange, usize)> {
        let mut ranges: Vec<(SlotRange, usize)> = Vec::new();
        for slot in Slot::all() {
            let Some(owner) = table.owner(slot) else { continue };
            match ranges.last_mut() {
                Some((range, last)) if *last == owner && range.end().number() + 1 == slot.number() => {
                    *range = SlotRange::new(range.start(), slot).expect("ascending");
                }
                _ => ranges.push((slot.into(), owner)),
            }
        }
        ranges
    }

    #[test]
    fn ranges_are_found_by_one_walk() {
        let table = table(3, |slot| match slot.number() {
            0..=99 => Some(0),
            100 => Some(1),
            101..=199 => Some(0),
            5_000..=16_383 => Some(2),
            _ => None,
        });
        let shown: Vec<String> =
            table.ranges_from(SlotRange::FULL).map(|(range, owner)| format!("{range}:{owner}")).collect();
        assert_eq!(shown, ["0-99:0", "100:1", "101-199:0", "5000-16383:2"]);
        assert_eq!(table.assigned(), 200 + 11_384);
        assert_eq!(table.range_of(slot(150)), Some(("101-199".parse().expect("a range"), 0)));
        assert_eq!(table.range_of(slot(300)), None);
        // An index without a shard is no owner.
        assert_eq!(self::table(1, |_| Some(1)).assigned(), 0);
    }

    #[test]
    fn another_set_of_shards_is_another_table() {
        let mut known = table(2, |_| Some(0));
        assert!(known.adopt(table(3, |_| Some(0))).is_whole);
        let mut reported = table(3, |slot| Some(usize::from(slot.number() == 7)));
        reported.shards[2].group.primary.health = Health::Failed;
        let change = known.adopt(reported.clone());
        assert_eq!((change.slots.to_string().as_str(), change.is_whole), ("7", false));
        assert_eq!((change.owners, change.groups), ([0, 1].into(), [2].into()));
        assert!(known.adopt(reported).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn editing_ranges_is_building_them_anew(
            fragments in 1u16..40,
            edits in prop::collection::vec((0u16..16_384, 1u16..200, 0usize..5), 1..40),
        ) {
            let mut edited = table(4, |slot| Some(usize::from(slot.number() / fragments) % 4));
            for (start, count, owner) in edits {
                // The fifth is no owner.
                let owner = Some(owner).filter(|owner| *owner < 4);
                let moved = SlotSet::from_iter((start..start.saturating_add(count)).filter_map(Slot::new));
                let before = edited.clone();
                let change = edited.assign(&moved, owner);
                let anew = table(4, |slot| if moved.contains(slot) { owner } else { before.owner(slot) });
                prop_assert_eq!(&edited, &anew);
                prop_assert_eq!(&change, &before.clone().adopt(anew));
            }
            prop_assert_eq!(edited.ranges_from(SlotRange::FULL).collect::<Vec<_>>(), plain_ranges(&edited));
        }

        #[test]
        fn a_window_has_the_ranges_that_begin_in_it(
            fragments in 1u16..300, holes in 2u16..9, start in 0u16..16_384, count in 1u16..2_000,
        ) {
            let table = table(5, |slot| {
                Some(usize::from(slot.number() / fragments) % 5).filter(|_| slot.number() % 97 > holes)
            });
            let end = start.saturating_add(count).min(16_383);
            let window = SlotRange::new(slot(start), slot(end)).expect("ascending");
            let all = plain_ranges(&table);
            let expected: Vec<_> = all.into_iter().filter(|(range,
                _)| window.contains(range.start())).collect();
            prop_assert_eq!(table.ranges_from(window).collect::<Vec<_>>(), expected);
        }
    }
}
