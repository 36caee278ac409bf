use proptest::prelude::*;

use super::*;

fn node(number: usize) -> NodeId {
    format!("{number:040x}").parse().unwrap()
}

fn slots(text: &str) -> SlotSet {
    if text.is_empty() { SlotSet::new() } else { text.parse().unwrap() }
}

/// Shards 0, 1, 2… with these slots.
fn shards(owned: &[&str]) -> Vec<Shard> {
    owned.iter().enumerate().map(|(number, text)| Shard { id: node(number), slots: slots(text) }).collect()
}

fn weights(of: &[(usize, f64)]) -> BTreeMap<NodeId, f64> {
    of.iter().map(|&(number, weight)| (node(number), weight)).collect()
}

fn a_move(source: usize, target: usize, text: &str) -> Move {
    Move { source: node(source), target: node(target), slots: slots(text) }
}

/// Carries a plan out, and checks what is true of every plan.
fn apply(before: &[Shard], moves: &[Move]) -> Vec<Shard> {
    let mut after = before.to_vec();
    let mut moved = SlotSet::new();
    for Move { source, target, slots } in moves {
        assert!(!slots.is_empty() && source != target, "an empty move");
        assert!(moved.intersection(slots).is_empty(), "a slot moves twice");
        moved = moved.union(slots);
        let giver = after.iter_mut().find(|shard| shard.id == *source).expect("the source is a shard");
        assert!(slots.difference(&giver.slots).is_empty(), "the source owns what it gives");
        giver.slots = giver.slots.difference(slots);
        let taker = after.iter_mut().find(|shard| shard.id == *target).expect("the target is a shard");
        taker.slots = taker.slots.union(slots);
    }
    let owned = |shards: &[Shard]| shards.iter().fold(SlotSet::new(), |all, shard| all.union(&shard.slots));
    assert_eq!(owned(before), owned(&after), "no slot comes or goes");
    assert_eq!(
        after.iter().map(|shard| shard.slots.len()).sum::<usize>(),
        owned(&after).len(),
        "one owner each"
    );
    after
}

fn gives_and_takes(moves: &[Move]) -> bool {
    moves.iter().any(|one| moves.iter().any(|other| one.source == other.target))
}

fn counts(shards: &[Shard]) -> Vec<usize> {
    shards.iter().map(|shard| shard.slots.len()).collect()
}

fn moved_count(moves: &[Move]) -> usize {
    moves.iter().map(|one| one.slots.len()).sum()
}

const EVEN: Balance = Balance { use_empty: false, threshold: 0.0 };
const USE_EMPTY: Balance = Balance { use_empty: true, threshold: 0.0 };

// ---- Examples ----

#[test]
fn three_full_shards_give_an_empty_one_exactly_its_quarter() {
    let before = shards(&["0-5460", "5461-10922", "10923-16383", ""]);
    let moves = rebalance(&before, &BTreeMap::new(), &SlotCosts::uniform(), USE_EMPTY).unwrap();
    assert_eq!(counts(&apply(&before, &moves)), [4096; 4]);
    assert_eq!(moved_count(&moves), 4096);
    // One range from each, from an edge of what it had.
    assert!(moves.iter().all(|one| one.slots.ranges().len() == 1), "{moves:?}");
    // Nothing else to do, also if asked without the empty shard in mind.
    let after = apply(&before, &moves);
    assert_eq!(rebalance(&after, &BTreeMap::new(), &SlotCosts::uniform(), EVEN).unwrap(), []);
}

#[test]
fn an_empty_shard_is_left_alone_unless_it_is_to_be_used_or_has_a_weight() {
    let before = shards(&["0-8191", "8192-16383", ""]);
    let plan = |weights, balance| {
        rebalance(&before, &weights, &SlotCosts::uniform(), balance).map(|moves| apply(&before, &moves))
    };
    assert_eq!(counts(&plan(BTreeMap::new(), EVEN).unwrap()), [8192, 8192, 0]);
    // The odd slot stays where it is.
    assert_eq!(counts(&plan(BTreeMap::new(), USE_EMPTY).unwrap()), [5462, 5461, 5461]);
    assert_eq!(counts(&plan(weights(&[(2, 2.0)]), EVEN).unwrap()), [4096, 4096, 8192]);
}

#[test]
fn what_cannot_be_even_stays_where_it_is() {
    // 16384 = 3 * 5461 + 1: the node that has one more keeps it.
    for before in [["0-5461", "5462-10922", "10923-16383"], ["0-5460", "5461-10922", "10923-16383"]] {
        assert_eq!(rebalance(&shards(&before), &BTreeMap::new(), &SlotCosts::uniform(), EVEN).unwrap(), []);
    }
}

#[test]
fn a_weight_of_zero_empties_a_node_of_slots_that_cost_nothing_too() {
    let before = shards(&["0-99", "100-199", "200-299"]);
    let costs = SlotCosts::new(|slot| u64::from(slot.number() < 50));
    let moves = rebalance(&before, &weights(&[(0, 0.0)]), &costs, EVEN).unwrap();
    let after = apply(&before, &moves);
    assert!(after[0].slots.is_empty());
    assert!(!gives_and_takes(&moves));
    // The load went to both.
    assert_eq!(costs.total(&after[1].slots), 25);
    assert_eq!(costs.total(&after[2].slots), 25);
}

#[test]
fn a_threshold_leaves_small_differences_alone() {
    let before = shards(&["0-101", "102-199"]);
    let balance = |threshold| Balance { use_empty: false, threshold };
    let plan =
        |threshold| rebalance(&before, &BTreeMap::new(), &SlotCosts::uniform(), balance(threshold)).unwrap();
    assert_eq!(plan(0.02), []);
    assert_eq!(moved_count(&plan(0.01)), 2);
}

#[test]
fn a_hot_slot_is_not_carried_back_and_forth() {
    let before = shards(&["0-9", "10-19"]);
    let costs = SlotCosts::new(|slot| if slot.number() == 3 { 1000 } else { 1 });
    let moves = rebalance(&before, &BTreeMap::new(), &costs, EVEN).unwrap();
    let after = apply(&before, &moves);
    assert!(after[0].slots.contains(Slot::new(3).unwrap()), "moving it would only turn the picture round");
    assert_eq!(costs.total(&after[0].slots), 1000);
    assert_eq!(rebalance(&after, &BTreeMap::new(), &costs, EVEN).unwrap(), []);
}

#[test]
fn neighbours_of_the_taker_are_preferred() {
    let before = shards(&["0-99,300-399", "400-419"]);
    let moves = take(&before, &node(0), 10, &node(1)).unwrap();
    assert_eq!(moves, [a_move(0, 1, "390-399")]);
    // A whole range is better than a piece of one.
    let before = shards(&["0-99,200-209,300-399", "400-419"]);
    assert_eq!(take(&before, &node(0), 10, &node(1)).unwrap(), [a_move(0, 1, "200-209")]);
}

#[test]
fn slots_are_moved_from_the_node_that_owns_them() {
    let before = shards(&["0-99", "100-199", "200-299"]);
    let wanted = [(slots("50-149,210"), node(2)), (slots("0-9"), node(1))];
    let moves = reshard(&before, &wanted).unwrap();
    assert_eq!(moves, [a_move(0, 1, "0-9"), a_move(0, 2, "50-99"), a_move(1, 2, "100-149")]);
    assert_eq!(reshard(&apply(&before, &moves), &wanted).unwrap(), [], "asked for once more");
}

#[test]
fn a_drained_node_is_empty_and_the_others_are_even() {
    let before = shards(&["0-5460", "5461-10922", "10923-16383"]);
    let plain = SlotCosts::uniform();
    let moves = drain(&before, &node(1), &BTreeMap::new(), &plain, false).unwrap();
    assert_eq!(counts(&apply(&before, &moves)), [8192, 0, 8192]);
    assert!(moves.iter().all(|one| one.slots.ranges().len() == 1));
    // The fuller one gets less.
    let before = shards(&["0-49", "50-69", "70-99", ""]);
    let moves = drain(&before, &node(2), &BTreeMap::new(), &plain, false).unwrap();
    assert_eq!(counts(&apply(&before, &moves)), [50, 50, 0, 0]);
    let moves = drain(&before, &node(2), &BTreeMap::new(), &plain, true).unwrap();
    assert_eq!(counts(&apply(&before, &moves)), [50, 25, 0, 25]);
    // Slots without any key still have to go.
    let nothing = SlotCosts::new(|_| 0);
    let moves = drain(&before, &node(2), &BTreeMap::new(), &nothing, false).unwrap();
    assert_eq!(apply(&before, &moves)[2].slots.len(), 0);
    assert_eq!(drain(&before, &node(3), &BTreeMap::new(), &plain, false).unwrap(), []);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let before = shards(&["0-99", "100-199", ""]);
    let plain = SlotCosts::uniform();
    let stranger = node(9);
    let unknown = || PlanError::UnknownNode { node: stranger.clone() };
    let to_stranger = [(slots("0"), stranger.clone())];
    assert_eq!(reshard(&before, &to_stranger).unwrap_err(), unknown());
    assert_eq!(take(&before, &stranger, 1, &node(0)).unwrap_err(), unknown());
    assert_eq!(take(&before, &node(0), 1, &stranger).unwrap_err(), unknown());
    assert_eq!(rebalance(&before, &weights(&[(9, 1.0)]), &plain, EVEN).unwrap_err(), unknown());
    assert_eq!(drain(&before, &stranger, &BTreeMap::new(), &plain, false).unwrap_err(), unknown());
    assert_eq!(drain(&before, &node(0), &weights(&[(9, 1.0)]), &plain, false).unwrap_err(), unknown());

    let same = PlanError::SameNode { node: node(0) };
    assert_eq!(take(&before, &node(0), 1, &node(0)).unwrap_err(), same);
    let few = PlanError::TooFew { node: node(0), owned: 100, wanted: 101 };
    assert_eq!(take(&before, &node(0), 101, &node(1)).unwrap_err(), few);
    let unowned = PlanError::Unowned { slots: slots("200-201") };
    assert_eq!(reshard(&before, &[(slots("199-201"), node(0))]).unwrap_err(), unowned);
    let both = [(slots("0-9"), node(1)), (slots("9-10"), node(2))];
    assert_eq!(reshard(&before, &both).unwrap_err(), PlanError::TwoTargets { slots: slots("9") });

    let zero = weights(&[(0, 0.0), (1, 0.0)]);
    assert_eq!(rebalance(&before, &zero, &plain, EVEN).unwrap_err(), PlanError::NoTarget);
    assert_eq!(
        drain(&before, &node(0), &weights(&[(1, 0.0)]), &plain, false).unwrap_err(),
        PlanError::NoTarget
    );
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let error = rebalance(&before, &weights(&[(0, bad)]), &plain, EVEN).unwrap_err();
        assert!(matches!(error, PlanError::BadNumber { .. }), "{error}");
    }
    let balance = Balance { use_empty: false, threshold: -0.1 };
    let error = rebalance(&before, &BTreeMap::new(), &plain, balance).unwrap_err();
    assert!(matches!(error, PlanError::BadNumber { .. }), "{error}");
    let twice = shards(&["0-99", "99-199"]);
    let error = rebalance(&twice, &BTreeMap::new(), &plain, EVEN).unwrap_err();
    assert_eq!(error, PlanError::OwnedTwice { slots: slots("99") });
}

#[test]
fn batches_end_at_their_limits() {
    let limits = |keys_max, slots_max| BatchLimits { keys_max, slots_max };
    let cut = |text: &str, limits| batches(&slots(text), |slot| u64::from(slot.number()), limits);
    assert_eq!(cut("1-6", limits(7, 9)), [slots("1-3"), slots("4"), slots("5"), slots("6")]);
    assert_eq!(cut("1-6", limits(100, 4)), [slots("1-4"), slots("5-6")]);
    // More than fits: alone.
    assert_eq!(cut("1,50,2", limits(10, 9)), [slots("1-2"), slots("50")]);
    assert_eq!(cut("1-3", limits(0, 0)), [slots("1"), slots("2"), slots("3")]);
    assert_eq!(batches(&SlotSet::new(), |_| 1, limits(10, 10)), []);
}

// ---- Properties ----

/// Some shards that own all slots, in ranges of any length; some may own nothing.
fn any_shards() -> impl Strategy<Value = Vec<Shard>> {
    (2_usize..8).prop_flat_map(|count| {
        prop::collection::vec((1_u16..3000, 0..count), 6..60).prop_map(move |runs| {
            let mut shards: Vec<Shard> =
                (0..count).map(|number| Shard { id: node(number), slots: SlotSet::new() }).collect();
            let mut runs = runs.into_iter().cycle();
            let mut slots = Slot::all();
            while slots.len() > 0 {
                let (length, owner) = runs.next().unwrap();
                shards[owner].slots.extend(slots.by_ref().take(usize::from(length)));
            }
            shards
        })
    })
}

fn any_costs() -> impl Strategy<Value = SlotCosts> {
    prop_oneof![
        Just(SlotCosts::uniform()),
        // Sparse, flat and skewed ones.
        (1_u64..1000, 1_u64..50, any::<u64>()).prop_map(|(largest, every, seed)| {
            SlotCosts::new(|slot| {
                let mixed = (u64::from(slot.number()) ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                if mixed % every == 0 { mixed % (largest + 1) } else { 0 }
            })
        }),
    ]
}

fn any_weights() -> impl Strategy<Value = Vec<Option<u8>>> {
    prop::collection::vec(prop::option::of(0_u8..6), 8)
}

fn weights_for(shards: &[Shard], some: &[Option<u8>]) -> BTreeMap<NodeId, f64> {
    let given =
        shards.iter().zip(some).filter_map(|(shard, weight)| Some((shard.id.clone(), f64::from((*weight)?))));
    given.collect()
}

/// The sum of what nodes are off their due.
fn deviation(shards: &[Shard], weights: &[f64], costs: &SlotCosts) -> f64 {
    let loads: Vec<f64> = shards.iter().map(|shard| costs.total(&shard.slots) as f64).collect();
    let total: f64 = loads.iter().sum();
    let weight_sum: f64 = weights.iter().sum();
    loads.iter().zip(weights).map(|(load, weight)| (load - total * weight / weight_sum).abs()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plain_balance_is_exact_and_moves_the_least(before in any_shards(), some in any_weights(),
    use_empty: bool) {
        let given = weights_for(&before, &some);
        let balance = Balance { use_empty, threshold: 0.0 };
        let plain = SlotCosts::uniform();
        let Ok(weights) = effective_weights(&before, &given, use_empty) else {
            prop_assert_eq!(rebalance(&before, &given, &plain, balance), Err(PlanError::NoTarget));
            return Ok(());
        };
        let moves = rebalance(&before, &given, &plain, balance).unwrap();
        let after = apply(&before, &moves);
        prop_assert!(!gives_and_takes(&moves));
        let weight_sum: f64 = weights.iter().sum();
        for (shard, weight) in after.iter().zip(&weights) {
            let due = f64::from(Slot::COUNT) * weight / weight_sum;
            prop_assert!((shard.slots.len() as f64 - due).abs() < 1.0, "{} for a due of \
                {due}", shard.slots.len());
        }
        // Whatever the rounding: no plan that ends with dues rounded down or up moves less.
        let above: usize = before
            .iter()
            .zip(&weights)
            .map(|(shard, weight)| {
                let due = f64::from(Slot::COUNT) * weight / weight_sum;
                let ceiling = if (due - due.round()).abs() < 1e-6 { due.round() } else { due.ceil() };
                shard.slots.len().saturating_sub(ceiling as usize)
            })
            .sum();
        let below: usize = before
            .iter()
            .zip(&weights)
            .map(|(shard, weight)| {
                let due = f64::from(Slot::COUNT) * weight / weight_sum;
                let floor = if (due - due.round()).abs() < 1e-6 { due.round() } else { due.floor() };
                (floor as usize).saturating_sub(shard.slots.len())
            })
            .sum();
        prop_assert_eq!(moved_count(&moves), above.max(below));
        // Balanced now: nothing moves.
        let used = Balance { use_empty: true, ..balance };
        prop_assert_eq!(rebalance(&after, &given_or(&given, &after, &weights), &plain, used).unwrap(),
            vec![]);
        prop_assert_eq!(rebalance(&before, &given, &plain, balance).unwrap(), moves);
    }

    #[test]
    fn balance_by_cost_comes_nearer_and_never_overdoes_it(
        before in any_shards(), some in any_weights(), costs in any_costs(), use_empty: bool,
    ) {
        let given = weights_for(&before, &some);
        let balance = Balance { use_empty, threshold: 0.0 };
        let Ok(weights) = effective_weights(&before, &given, use_empty) else { return Ok(()) };
        let moves = rebalance(&before, &given, &costs, balance).unwrap();
        let after = apply(&before, &moves);
        prop_assert!(!gives_and_takes(&moves));
        for (shard, weight) in after.iter().zip(&weights) {
            prop_assert!(*weight > 0.0 || shard.slots.is_empty(), "a node without weight is emptied");
        }
        // A node that must be emptied may have to give a slot that fits nowhere.
        if weights.iter().all(|weight| *weight > 0.0) {
            prop_assert!(deviation(&after, &weights, &costs) <= deviation(&before, &weights, &costs) + 1e-6);
            // No giver ends further below its due than it was above: nothing moves that need not.
            let total: f64 = before.iter().map(|shard| costs.total(&shard.slots) as f64).sum();
            let weight_sum: f64 = weights.iter().sum();
            for (index, shard) in before.iter().enumerate() {
                let due = total * weights[index] / weight_sum;
                let was = costs.total(&shard.slots) as f64 - due;
                let is = costs.total(&after[index].slots) as f64 - due;
                prop_assert!(is.abs() <= was.abs() + 1e-6, "{was} became {is}");
            }
        }
        prop_assert_eq!(rebalance(&before, &given, &costs, balance).unwrap(), moves);
    }

    #[test]
    fn a_drain_empties_one_node_and_touches_no_other(
        before in any_shards(), some in any_weights(), costs in any_costs(), which in 0_usize..8,
        use_empty: bool,
    ) {
        let drained = which % before.len();
        let given = weights_for(&before, &some);
        let Ok(moves) = drain(&before, &node(drained), &given, &costs, use_empty) else { return Ok(()) };
        let after = apply(&before, &moves);
        prop_assert!(after[drained].slots.is_empty());
        prop_assert!(moves.iter().all(|one| one.source == node(drained)));
        prop_assert_eq!(moved_count(&moves), before[drained].slots.len());
        for one in &moves {
            prop_assert!(given.get(&one.target).is_none_or(|weight| *weight > 0.0), "a target without \
                weight");
        }
    }

    #[test]
    fn any_count_can_be_taken_in_few_ranges(before in any_shards(), from in 0_usize..8, to in 0_usize..8,
    part in 0.0..1.0) {
        let (from, to) = (from % before.len(), to % before.len());
        prop_assume!(from != to);
        let count = (before[from].slots.len() as f64 * part) as usize;
        let moves = take(&before, &node(from), count, &node(to)).unwrap();
        let after = apply(&before, &moves);
        prop_assert_eq!(after[from].slots.len(), before[from].slots.len() - count);
        prop_assert_eq!(moved_count(&moves), count);
        let ranges = |shards: &[Shard]| shards.iter().map(|shard| shard.slots.ranges().len()).sum::<usize>();
        prop_assert!(ranges(&after) <= ranges(&before) + 2, "a run has two ends");
    }

    #[test]
    fn batches_keep_order_and_limits(before in any_shards(), costs in any_costs(), keys_max in 0_u64..5000,
    slots_max in 1_usize..3000) {
        let slots = &before[0].slots;
        let cut = batches(slots, |slot| costs.of(slot), BatchLimits { keys_max, slots_max });
        let all: Vec<Slot> = cut.iter().flat_map(|batch| batch.iter().collect::<Vec<_>>()).collect();
        prop_assert_eq!(all, slots.iter().collect::<Vec<_>>());
        for batch in &cut {
            prop_assert!(!batch.is_empty() && batch.len() <= slots_max);
            prop_assert!(batch.len() == 1 || costs.total(batch) <= u128::from(keys_max));
        }
        // None could have taken the first slot of the next.
        for pair in cut.windows(2) {
            let next = u128::from(costs.of(pair[1].iter().next().unwrap()));
            prop_assert!(pair[0].len() == slots_max || costs.total(&pair[0]) + next > u128::from(keys_max));
        }
    }
}

/// The same weights for a layout in which other nodes are empty.
fn given_or(given: &BTreeMap<NodeId, f64>, shards: &[Shard], weights: &[f64]) -> BTreeMap<NodeId, f64> {
    let mut all: BTreeMap<NodeId, f64> =
        shards.iter().zip(weights).map(|(shard, weight)| (shard.id.clone(), *weight)).collect();
    all.extend(given.clone());
    all
}
