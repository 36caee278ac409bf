//! Plans: which slots move where, so that a goal is reached with the least that moves; and how they are cut
//! into batches.
//!
//! All functions are deterministic, and none looks at a cluster: they take what other code found out. In
//! every plan a slot moves at most once, and from its owner; no node gives and takes at once (except if the
//! caller of [`reshard`] says so). If several choices are equally good, the one that cuts fewest ranges of
//! slots is taken, since servers and clients pay for each range.

mod costs;
mod pick;
#[cfg(test)]
mod tests;

pub use self::costs::SlotCosts;
use std::collections::BTreeMap;

use crate::node::NodeId;
use crate::slot::{Slot, SlotSet};

/// A primary and what it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The primary.
    pub id: NodeId,
    /// The slots it owns; may be empty.
    pub slots: SlotSet,
}

/// Slots that go from one primary to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The owner.
    pub source: NodeId,
    /// The new owner; never the source.
    pub target: NodeId,
    /// The slots; never empty.
    pub slots: SlotSet,
}

/// How [`rebalance`] balances.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// Whether primaries without slots get some. A primary with a weight of its own gets some in any case:
    /// a user who sets one means it.
    pub use_empty: bool,
    /// By which part of its due a node may be off before anything moves: 0.02 is 2 %. With 0 a plain balance
    /// of slots is exact.
    pub threshold: f64,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A node is not among the primaries.
    #[error("{node} is not a primary of this cluster")]
    UnknownNode {
        /// The node.
        node: NodeId,
    },
    /// Slots to move have no owner.
    #[error("slots {slots} have no owner: repair the cluster first")]
    Unowned {
        /// The slots.
        slots: SlotSet,
    },
    /// Two primaries are said to own the same slots.
    #[error("slots {slots} have two owners: repair the cluster first")]
    OwnedTwice {
        /// The slots.
        slots: SlotSet,
    },
    /// The same slots are to go to two nodes.
    #[error("slots {slots} cannot go to two nodes at once")]
    TwoTargets {
        /// The slots.
        slots: SlotSet,
    },
    /// Slots are to go where they come from.
    #[error("{node} cannot be the source and the target")]
    SameNode {
        /// The node.
        node: NodeId,
    },
    /// A node has fewer slots than are to be taken from it.
    #[error("{node} owns {owned} slots, fewer than {wanted}")]
    TooFew {
        /// The node.
        node: NodeId,
        /// How many it owns.
        owned: usize,
        /// How many were wanted.
        wanted: usize,
    },
    /// A weight or a threshold that is negative or no number.
    #[error("{value} is no weight or threshold: expected 0 or more")]
    BadNumber {
        /// The value, as text, since it need not be equal to itself.
        value: String,
    },
    /// No node may take slots.
    #[error("no node may take slots: all weights are 0, or all other nodes are empty and not to be used")]
    NoTarget,
}

/// Moves the given slots to the given nodes. Slots that are there already stay.
///
/// # Errors
///
/// If a node is unknown, a slot has no owner or two, or is to go to two nodes.
pub fn reshard(shards: &[Shard], wanted: &[(SlotSet, NodeId)]) -> Result<Vec<Move>, PlanError> {
    check_owners(shards)?;
    let mut seen = SlotSet::new();
    let mut twice = SlotSet::new();
    let mut moves = Moves::default();
    for (slots, target) in wanted {
        shard_of(shards, target)?;
        twice = twice.union(&seen.intersection(slots));
        seen = seen.union(slots);
        let mut unowned = slots.clone();
        for shard in shards {
            let owned = shard.slots.intersection(slots);
            unowned = unowned.difference(&owned);
            moves.add(&shard.id, target, &owned);
        }
        if !unowned.is_empty() {
            return Err(PlanError::Unowned { slots: unowned });
        }
    }
    if !twice.is_empty() {
        return Err(PlanError::TwoTargets { slots: twice });
    }
    Ok(moves.into_list())
}

/// Moves `count` slots of one node to another: neighbouring ones if possible.
///
/// # Errors
///
/// If a node is unknown, both are the same, or there are not enough slots.
pub fn take(shards: &[Shard], from: &NodeId, count: usize, to: &NodeId) -> Result<Vec<Move>, PlanError> {
    check_owners(shards)?;
    let source = shard_of(shards, from)?;
    let target = shard_of(shards, to)?;
    if from == to {
        return Err(PlanError::SameNode { node: from.clone() });
    }
    let owned = source.slots.len();
    if count > owned {
        return Err(PlanError::TooFew { node: from.clone(), owned, wanted: count });
    }
    let slots = pick::pick(&source.slots, &target.slots, &SlotCosts::uniform(), count as f64);
    debug_assert_eq!(slots.len(), count, "plain slots can be picked exactly");
    let mut moves = Moves::default();
    moves.add(from, to, &slots);
    Ok(moves.into_list())
}

/// Moves what it takes to give every node its due: its share of the total cost by its weight, 1 if `weights`
/// has none. A weight of 0 empties a node.
///
/// If all slots cost the same, every node ends with its due, rounded down or up, and the number of slots that
/// move is the least possible. Else slots are indivisible loads of different size: nodes get near their due,
/// in contiguous ranges, and slots that cost nothing only move in between others.
///
/// # Errors
///
/// If a weight is for an unknown node or no number, or no node may take slots.
pub fn rebalance(
    shards: &[Shard],
    weights: &BTreeMap<NodeId, f64>,
    costs: &SlotCosts,
    balance: Balance,
) -> Result<Vec<Move>, PlanError> {
    check_owners(shards)?;
    check_number(balance.threshold)?;
    let weights = effective_weights(shards, weights, balance.use_empty)?;
    let all_slots = shards.iter().fold(SlotSet::new(), |all, shard| all.union(&shard.slots));
    let loads: Vec<f64> = shards.iter().map(|shard| costs.load(&shard.slots)).collect();
    let total: f64 = loads.iter().sum();
    if all_slots.is_empty() {
        return Ok(Vec::new());
    }
    let weight_sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| total * weight / weight_sum).collect();
    let within = |(load, due): (&f64, &f64)| (load - due).abs() <= due * balance.threshold;
    // Slots that cost nothing would be left on a node whose weight is 0, which is to be empty.
    let emptied = |index: usize| weights[index] == 0.0 && !shards[index].slots.is_empty();
    let to_empty: Vec<usize> = (0..shards.len()).filter(|&index| emptied(index)).collect();
    if to_empty.is_empty() && loads.iter().zip(&exact).all(within) {
        return Ok(Vec::new());
    }
    let due = if costs.is_uniform(&all_slots) {
        let slot_cost = total / all_slots.len() as f64;
        let counts: Vec<usize> = shards.iter().map(|shard| shard.slots.len()).collect();
        round_dues(&counts, &exact, slot_cost)
    } else {
        exact
    };

    let mut left: Vec<SlotSet> = shards.iter().map(|shard| shard.slots.clone()).collect();
    let mut moves = Moves::default();
    // What each node has above its due; below 0 it is to take.
    let mut surplus: Vec<f64> = loads.iter().zip(&due).map(|(load, due)| load - due).collect();
    let largest_first = |mut indices: Vec<usize>| {
        indices.sort_by(|&a, &b| {
            surplus[b].abs().total_cmp(&surplus[a].abs()).then_with(|| shards[a].id.cmp(&shards[b].id))
        });
        indices
    };
    let givers = largest_first((0..shards.len()).filter(|&index| surplus[index] > 0.0).collect());
    let takers = largest_first((0..shards.len()).filter(|&index| surplus[index] < 0.0).collect());
    let mut takers_left = takers.iter().copied().peekable();
    for giver in givers {
        while surplus[giver] > 0.0
            && let Some(&taker) = takers_left.peek()
        {
            let wanted = surplus[giver].min(-surplus[taker]);
            let taker_is_served = -surplus[taker] <= surplus[giver];
            let slots = pick::pick(&left[giver], &shards[taker].slots, costs, wanted);
            left[giver] = left[giver].difference(&slots);
            moves.add(&shards[giver].id, &shards[taker].id, &slots);
            let load = costs.load(&slots);
            surplus[giver] -= load;
            surplus[taker] += load;
            // Slots have their sizes, so what remains of the smaller side cannot be helped.
            if taker_is_served {
                takers_left.next();
            } else {
                break;
            }
        }
    }
    // What is to be empty may still have slots: they cost nothing, or their size did not fit anywhere.
    let heirs: Vec<usize> = if takers.is_empty() {
        (0..shards.len()).filter(|&index| weights[index] > 0.0).collect()
    } else {
        takers
    };
    for giver in to_empty {
        let heir = heirs.iter().copied().min_by(|&a, &b| surplus[a].total_cmp(&surplus[b]));
        let heir = heir.expect("some node has a weight, or there would be no due");
        surplus[heir] += costs.load(&left[giver]);
        moves.add(&shards[giver].id, &shards[heir].id, &left[giver]);
    }
    Ok(moves.into_list())
}

/// Moves everything that `node` owns to the others, so that they are as balanced as this allows; nothing else
/// moves.
///
/// The others get weights as in [`rebalance`]; primaries without slots get some only with `use_empty` or a
/// weight of their own.
///
/// # Errors
///
/// If a node is unknown, a weight is no number, or no other node may take slots.
pub fn drain(
    shards: &[Shard],
    node: &NodeId,
    weights: &BTreeMap<NodeId, f64>,
    costs: &SlotCosts,
    use_empty: bool,
) -> Result<Vec<Move>, PlanError> {
    check_owners(shards)?;
    let source = shard_of(shards, node)?;
    if source.slots.is_empty() {
        return Ok(Vec::new());
    }
    for id in weights.keys() {
        shard_of(shards, id)?;
    }
    let others: Vec<Shard> = shards.iter().filter(|shard| shard.id != *node).cloned().collect();
    let mut others_weights = weights.clone();
    others_weights.remove(node);
    let weights = effective_weights(&others, &others_weights, use_empty)?;

    // Without load of its own, every slot weighs the same.
    let plain = SlotCosts::uniform();
    let costs = if costs.total(&source.slots) == 0 { &plain } else { costs };
    let loads: Vec<f64> = others.iter().map(|shard| costs.load(&shard.slots)).collect();
    let shares = fill(&loads, &weights, costs.load(&source.slots));

    // The slots in order, each to the node in whose part its middle falls: contiguous ranges, and exact if
    // all cost the same.
    let mut order: Vec<usize> = (0..others.len()).filter(|&index| shares[index] > 0.0).collect();
    order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]).then_with(|| others[a].id.cmp(&others[b].id)));
    let shares = if costs.is_uniform(&source.slots) {
        let slot_cost = costs.load(&source.slots) / source.slots.len() as f64;
        round_dues(&vec![0; others.len()], &shares, slot_cost)
    } else {
        shares
    };
    let mut parts = vec![SlotSet::new(); others.len()];
    let mut position = 0;
    let mut end = shares[order[0]];
    let mut before = 0.0;
    for slot in source.slots.iter() {
        let cost = costs.of(slot) as f64;
        while before + cost / 2.0 >= end && position + 1 < order.len() {
            position += 1;
            end += shares[order[position]];
        }
        parts[order[position]].insert(slot);
        before += cost;
    }
    let mut moves = Moves::default();
    for (shard, part) in others.iter().zip(&parts) {
        moves.add(node, &shard.id, part);
    }
    Ok(moves.into_list())
}

/// How large a batch may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// How many keys at most; a slot that has more is a batch of its own.
    pub keys_max: u64,
    /// How many slots at most; 0 counts as 1.
    pub slots_max: usize,
}

/// Cuts slots, in their order, into batches within the limits.
pub fn batches(slots: &SlotSet, keys_of: impl Fn(Slot) -> u64, limits: BatchLimits) -> Vec<SlotSet> {
    let mut batches = Vec::new();
    let mut batch = SlotSet::new();
    let mut count = 0;
    let mut keys = 0_u64;
    for slot in slots {
        let more = keys_of(slot);
        let is_full = count >= limits.slots_max || keys.saturating_add(more) > limits.keys_max;
        if count > 0 && is_full {
            batches.push(std::mem::take(&mut batch));
            count = 0;
            keys = 0;
        }
        batch.insert(slot);
        count += 1;
        keys = keys.saturating_add(more);
    }
    if count > 0 {
        batches.push(batch);
    }
    batches
}

/// Moves by source and target, so that each pair has one.
#[derive(Default)]
struct Moves(BTreeMap<(NodeId, NodeId), SlotSet>);

impl Moves {
    /// Slots that are where they should be, or none, are no move.
    fn add(&mut self, source: &NodeId, target: &NodeId, slots: &SlotSet) {
        if source != target && !slots.is_empty() {
            let moved = self.0.entry((source.clone(), target.clone())).or_default();
            *moved = moved.union(slots);
        }
    }

    fn into_list(self) -> Vec<Move> {
        let to_move = |((source, target), slots)| Move { source, target, slots };
        self.0.into_iter().map(to_move).collect()
    }
}

fn shard_of<'a>(shards: &'a [Shard], node: &NodeId) -> Result<&'a Shard, PlanError> {
    let found = shards.iter().find(|shard| shard.id == *node);
    found.ok_or_else(|| PlanError::UnknownNode { node: node.clone() })
}

fn check_owners(shards: &[Shard]) -> Result<(), PlanError> {
    let mut seen = SlotSet::new();
    for shard in shards {
        let slots = seen.intersection(&shard.slots);
        if !slots.is_empty() {
            return Err(PlanError::OwnedTwice { slots });
        }
        seen = seen.union(&shard.slots);
    }
    Ok(())
}

fn check_number(value: f64) -> Result<(), PlanError> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(PlanError::BadNumber { value: value.to_string() })
    }
}

/// The weight of each shard, in their order: as given, else 1, else 0 for those that are empty and not to be
/// used.
fn effective_weights(
    shards: &[Shard],
    weights: &BTreeMap<NodeId, f64>,
    use_empty: bool,
) -> Result<Vec<f64>, PlanError> {
    for (id, weight) in weights {
        shard_of(shards, id)?;
        check_number(*weight)?;
    }
    let weight_of = |shard: &Shard| match weights.get(&shard.id) {
        Some(weight) => *weight,
        None if shard.slots.is_empty() && !use_empty => 0.0,
        None => 1.0,
    };
    let weights: Vec<f64> = shards.iter().map(weight_of).collect();
    let sum: f64 = weights.iter().sum();
    if sum > 0.0 && sum.is_finite() { Ok(weights) } else { Err(PlanError::NoTarget) }
}

/// Rounds dues to whole slots of `slot_cost` each, keeping their sum. Each is rounded down or up: up first
/// for those that have a slot more already, so that it can stay, then for those that lose most by rounding
/// down.
fn round_dues(counts: &[usize], dues: &[f64], slot_cost: f64) -> Vec<f64> {
    let whole = |due: f64| {
        let slots = due / slot_cost;
        // A division that should come out even may be off by the last bit.
        if (slots - slots.round()).abs() < 1e-6 { slots.round() } else { slots }
    };
    let wanted: Vec<f64> = dues.iter().map(|&due| whole(due)).collect();
    let mut rounded: Vec<f64> = wanted.iter().map(|wanted| wanted.floor()).collect();
    let total = (dues.iter().sum::<f64>() / slot_cost).round();
    let missing = (total - rounded.iter().sum::<f64>()).max(0.0) as usize;
    let mut candidates: Vec<usize> =
        (0..dues.len()).filter(|&index| wanted[index] > rounded[index]).collect();
    // Stable, so the order of the nodes decides between equals.
    candidates.sort_by(|&a, &b| {
        let has_more = |index: usize| counts[index] as f64 > rounded[index];
        let loss = |index: usize| wanted[index] - rounded[index];
        has_more(b).cmp(&has_more(a)).then_with(|| loss(b).total_cmp(&loss(a)))
    });
    for index in candidates.into_iter().take(missing) {
        rounded[index] += 1.0;
    }
    rounded.into_iter().map(|slots| slots * slot_cost).collect()
}

/// Divides `amount` so that loads by weight become as even as possible without taking from anyone: as water
/// fills vessels. Returns what each gets.
fn fill(loads: &[f64], weights: &[f64], amount: f64) -> Vec<f64> {
    let level_of = |index: usize| loads[index] / weights[index];
    let mut order: Vec<usize> = (0..loads.len()).filter(|&index| weights[index] > 0.0).collect();
    order.sort_by(|&a, &b| level_of(a).total_cmp(&level_of(b)));
    // The level that the first n vessels reach with all of the water; right if it is below the next one's.
    let mut weight_sum = 0.0;
    let mut load_sum = 0.0;
    let mut level = 0.0;
    for (position, &index) in order.iter().enumerate() {
        weight_sum += weights[index];
        load_sum += loads[index];
        level = (amount + load_sum) / weight_sum;
        if order.get(position + 1).is_none_or(|&next| level <= level_of(next)) {
            break;
        }
    }
    let share = |index: usize| if weights[index] > 0.0 { level * weights[index] - loads[index] } else { 0.0 };
    (0..loads.len()).map(|index| share(index).max(0.0)).collect()
}
