//! Which slots of a node make up a wanted load.

use super::costs::SlotCosts;
use crate::slot::{Slot, SlotSet};

/// Below this part of what is wanted, single slots are not picked to come closer: each may be one more range.
const ENOUGH: f64 = 0.01;

/// Some of `slots`, whose cost is as near to `wanted` as a run of neighbours comes, and if that is not near
/// enough, single slots in addition. Empty if nothing comes nearer than nothing.
///
/// Of runs that are equally near, the one that cuts fewest ranges is taken, then one that borders on
/// `neighbours`, the slots of the new owner, then the lowest.
pub(super) fn pick(slots: &SlotSet, neighbours: &SlotSet, costs: &SlotCosts, wanted: f64) -> SlotSet {
    let list: Vec<Slot> = slots.iter().collect();
    let run = best_run(&list, neighbours, costs, wanted);
    let mut picked: SlotSet = list[run.clone()].iter().copied().collect();
    let mut missing = wanted - costs.load(&picked);
    if missing <= wanted * ENOUGH {
        return picked;
    }
    let mut rest: Vec<Slot> = [&list[..run.start], &list[run.end..]].concat();
    rest.retain(|&slot| costs.of(slot) > 0);
    while missing > wanted * ENOUGH {
        let distance = |slot: Slot| (missing - costs.of(slot) as f64).abs();
        let nearest = (0..rest.len()).min_by(|&a, &b| distance(rest[a]).total_cmp(&distance(rest[b])));
        let Some(index) = nearest.filter(|&index| distance(rest[index]) < missing) else { break };
        let slot = rest.remove(index);
        missing -= costs.of(slot) as f64;
        picked.insert(slot);
    }
    picked
}

/// The positions of the best run in `list`, which is in ascending order.
fn best_run(list: &[Slot], neighbours: &SlotSet, costs: &SlotCosts, wanted: f64) -> std::ops::Range<usize> {
    let cost = |position: usize| costs.of(list[position]) as f64;
    let mut best = (Rank::of_nothing(wanted), 0..0);
    let mut end = 0;
    let mut sum = 0.0;
    let mut consider = |start: usize, end: usize, sum: f64| {
        if start < end {
            let rank = Rank::new(list, neighbours, start..end, (wanted - sum).abs());
            if rank.is_better_than(&best.0) {
                best = (rank, start..end);
            }
        }
    };
    for start in 0..list.len() {
        if end < start {
            end = start;
        }
        while end < list.len() && sum < wanted {
            sum += cost(end);
            end += 1;
        }
        // What costs nothing is no use at the edge of a run.
        if cost(start) > 0.0 && end > start {
            consider(start, end, sum);
            let mut shorter = end - 1;
            while shorter > start && cost(shorter - 1) == 0.0 {
                shorter -= 1;
            }
            consider(start, shorter, sum - cost(end - 1));
        }
        if end > start {
            sum -= cost(start);
        }
    }
    best.1
}

/// How good a run is.
struct Rank {
    /// How far its cost is from what is wanted.
    distance: f64,
    /// How many ranges it cuts in two.
    cuts: u8,
    /// Whether it borders on slots of its new owner.
    joins: bool,
}

impl Rank {
    fn of_nothing(wanted: f64) -> Rank {
        Rank { distance: wanted, cuts: 0, joins: true }
    }

    fn new(list: &[Slot], neighbours: &SlotSet, run: std::ops::Range<usize>, distance: f64) -> Rank {
        let follows = |low: usize, high: usize| list[low].number() + 1 == list[high].number();
        let (first, last) = (run.start, run.end - 1);
        let cuts_start = first > 0 && follows(first - 1, first);
        let cuts_end = last + 1 < list.len() && follows(last, last + 1);
        let has =
            |number: Option<u16>| number.and_then(Slot::new).is_some_and(|slot| neighbours.contains(slot));
        let joins = has(list[first].number().checked_sub(1)) || has(list[last].number().checked_add(1));
        Rank { distance, cuts: u8::from(cuts_start) + u8::from(cuts_end), joins }
    }

    fn is_better_than(&self, other: &Rank) -> bool {
        let by_distance = self.distance.total_cmp(&other.distance);
        by_distance.then(self.cuts.cmp(&other.cuts)).then(other.joins.cmp(&self.joins)).is_lt()
    }
}
