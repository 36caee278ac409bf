//! The fleet's machines as they are, and with mistakes in what surrounds them.

use whimbrel_sim::fleet::{Bug, Limits, Report, Walks, explore, wander};

/// The nearest states with one fault and two ticks of the clock. All of them would be many millions.
const LIMITS: Limits = Limits {
    faults: 1,
    ticks: 2,
    settle_every: 1_009,
    states_max: 300_000,
    copies: 1,
    reports_deaths: false,
};

/// By chance: leases run out several times, and several processes die.
const FAR: Limits = Limits { faults: 3, ticks: 9, reports_deaths: true, ..LIMITS };

fn print_report(name: &str, report: &Report) {
    println!(
        "{name}: {} states, {} steps, {:?} states of machines, {} came to rest",
        report.states, report.steps, report.machines, report.settled
    );
}

#[test]
fn nothing_is_found_in_any_state() {
    for (faults, ticks, expected) in [(0, 2, 200_000), (2, 1, 100_000)] {
        let report = explore(None, Limits { faults, ticks, states_max: usize::MAX, ..LIMITS });
        print_report("all states", &report);
        if let Some(found) = report.found {
            panic!("{found}");
        }
        assert!(report.states > expected, "the world has become smaller");
    }
}

#[test]
fn nothing_is_found_in_the_nearest_states() {
    let report = explore(None, LIMITS);
    print_report("the nearest states", &report);
    if let Some(found) = report.found {
        panic!("{found}");
    }
}

#[test]
fn nothing_is_found_on_long_ways() {
    for copies in [1, 2] {
        let report = wander(None, Walks { count: 1_000, steps: 150, limits: Limits { copies, ..FAR } });
        print_report("long ways", &report);
        if let Some(found) = report.found {
            panic!("{found}");
        }
    }
}

#[test]
fn nothing_is_found_where_deaths_are_reported_and_others_stand_by() {
    for copies in [1, 2] {
        let limits = Limits { copies, reports_deaths: true, states_max: 150_000, ..LIMITS };
        let report = explore(None, limits);
        print_report("the nearest states with deaths reported", &report);
        if let Some(found) = report.found {
            panic!("{found}");
        }
    }
}

#[test]
fn nothing_is_found_further_away() {
    for (faults, ticks) in [(1, 2), (0, 3), (2, 2)] {
        let report = explore(None, Limits { faults, ticks, states_max: 3_000_000, ..LIMITS });
        print_report("further away", &report);
        if let Some(found) = report.found {
            panic!("{found}");
        }
    }
}

/// Found in the nearest states.
fn is_found(bug: Bug, what: &str) {
    let reports_deaths = bug == Bug::DeadTooSoon;
    check(bug, what, explore(Some(bug), Limits { settle_every: usize::MAX, reports_deaths, ..LIMITS }));
}

/// Found on a long way.
fn is_met(bug: Bug, what: &str) {
    let limits = Limits { settle_every: usize::MAX, ..FAR };
    check(bug, what, wander(Some(bug), Walks { count: 20_000, steps: 150, limits }));
}

fn check(bug: Bug, what: &str, report: Report) {
    let Some(found) = report.found else { panic!("{bug:?} was not found in {} states", report.states) };
    println!("{bug:?}, after {} states: {found}", report.states);
    assert!(found.what.contains(what), "found something else: {found}");
}

#[test]
fn serving_past_the_lease() {
    is_found(Bug::ServePastLease, "two members serve");
}

#[test]
fn giving_away_before_the_lease_is_over() {
    is_met(Bug::Hasty, "two members serve");
}

#[test]
fn taking_in_what_does_not_fit() {
    // It shows when the next change comes: in worlds that come to rest.
    check(Bug::ApplyWithGap, "is not known as it is written down", explore(Some(Bug::ApplyWithGap), LIMITS));
}

#[test]
fn telling_what_is_not_written_down() {
    is_found(Bug::Unwritten, "that is not written down");
}

#[test]
fn writing_in_an_earlier_term() {
    is_found(Bug::OldTerm, "partition");
}

#[test]
fn giving_a_partition_away_without_sealing_it() {
    is_found(Bug::Unsealed, "two members serve");
}

#[test]
fn giving_a_number_twice() {
    let limits = FAR;
    let walks = Walks { count: 20_000, steps: 150, limits };
    check(Bug::SameNumber, "two members serve", wander(Some(Bug::SameNumber), walks));
}

#[test]
fn calling_a_member_dead_that_lives() {
    is_found(Bug::DeadTooSoon, "two members serve");
}

#[test]
fn reading_before_the_last_one_is_fenced() {
    is_found(Bug::ClaimLate, "is not known as it is written down");
}
