//! What decides about repairs as it is, and with mistakes around it.

use whimbrel_sim::repair::{Bug, Report, Shape, explore};

/// Every state of one slot with three primaries.
const THREE: Shape = Shape { primaries: 3, replicas: 0, slots: 1, keys: 2, silent: None };

/// Two of them.
const TWO: Shape = Shape { primaries: 2, ..THREE };

/// Two of them, and a replica of the first.
const REPLICA: Shape = Shape { primaries: 2, replicas: 1, slots: 1, keys: 2, silent: None };

/// Two slots on two of them.
const SLOTS: Shape = Shape { primaries: 2, replicas: 0, slots: 2, keys: 1, silent: None };

fn print_report(name: &str, report: &Report) {
    println!(
        "{name}: {} states, {} of them to begin with, {} interruptions, by rounds {:?}",
        report.states, report.roots, report.steps, report.rounds
    );
}

fn nothing_is_found(name: &str, shape: Shape, expected: usize) {
    let report = explore(None, shape);
    print_report(name, &report);
    if let Some(found) = report.found {
        panic!("{found}");
    }
    assert!(report.states > expected, "the world has become smaller");
}

#[test]
fn nothing_is_found_with_three_primaries() {
    nothing_is_found("three primaries", THREE, 200_000);
}

#[test]
fn nothing_is_found_with_a_replica() {
    nothing_is_found("a replica", REPLICA, 30_000);
}

#[test]
fn nothing_is_found_with_two_slots() {
    nothing_is_found("two slots", SLOTS, 100_000);
}

#[test]
fn nothing_is_found_where_a_node_does_not_answer() {
    for silent in 0..3 {
        nothing_is_found("a silent node", Shape { silent: Some(silent), ..THREE }, 3_000);
    }
}

#[test]
fn nothing_is_found_further_away() {
    nothing_is_found("a replica and three primaries", Shape { replicas: 1, keys: 1, ..THREE }, 3_000_000);
    nothing_is_found("more keys and slots", Shape { keys: 2, ..SLOTS }, 500_000);
}

fn is_found(bug: Bug, shape: Shape, what: &str) {
    let report = explore(Some(bug), shape);
    let Some(found) = report.found else { panic!("{bug:?} was not found in {} states", report.states) };
    println!("{bug:?}, after {} states: {found}", report.states);
    assert!(found.what.contains(what), "found something else: {found}");
}

#[test]
fn clearing_marks_last() {
    is_found(Bug::MarksLast, THREE, "is lost");
}

#[test]
fn giving_slots_to_the_node_with_the_fewest_keys() {
    is_found(Bug::FewestKeys, THREE, "which has no keys of it");
}

#[test]
fn claiming_before_the_others_yield() {
    is_found(Bug::NobodyYields, THREE, "is lost");
}

#[test]
fn emptying_a_node_without_moving_its_keys() {
    is_found(Bug::Discard, THREE, "is lost");
}

#[test]
fn removing_keys_before_the_owner_has_them() {
    is_found(Bug::RemoveFirst, THREE, "is lost");
}

#[test]
fn overwriting_what_the_owner_has() {
    is_found(Bug::Overwrite, THREE, "clients find something else");
}

#[test]
fn keeping_what_the_target_of_a_move_has() {
    is_found(Bug::KeepTarget, THREE, "clients find something else");
}

#[test]
fn moving_keys_that_look_like_copies_meanwhile() {
    is_found(Bug::Unnoted, TWO, "an interruption makes keys discarded");
}

#[test]
fn forgetting_a_slot() {
    is_found(Bug::ForgetSlot, SLOTS, "is lost");
}
