//! The machine as it is: nothing is found, however things go wrong.

use whimbrel_sim::{Limits, SlotFence, explore};

const ALL: [SlotFence; 4] = [SlotFence::Redirecting, SlotFence::Scripted, SlotFence::Gossip, SlotFence::Bare];

const LIMITS: Limits = Limits { faults: 2, writes: 2, atomic: false };
const ATOMIC: Limits = Limits { atomic: true, ..LIMITS };
const DEEPER: Limits = Limits { faults: 3, writes: 1, atomic: false };

fn nothing_is_found(fence: SlotFence, limits: Limits) {
    let report = explore(fence, None, limits);
    println!(
        "{fence:?}, {limits:?}: {} states, {} steps, {} states of the job, ends {:?}",
        report.states, report.steps, report.jobs, report.ends
    );
    if let Some(found) = report.found {
        panic!("{fence:?}: {found}");
    }
    // Else finding nothing would mean nothing.
    let ends: Vec<&str> = report.ends.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(ends, ["cancelled", "done", "failed"]);
    let least = if limits.atomic { 100_000 } else { 500_000 };
    assert!(report.states > least, "the world has become smaller");
}

#[test]
fn a_fence_that_redirects() {
    nothing_is_found(SlotFence::Redirecting, LIMITS);
}

#[test]
fn a_fence_that_takes_over_as_well() {
    nothing_is_found(SlotFence::Scripted, LIMITS);
}

#[test]
fn a_fence_by_gossip() {
    nothing_is_found(SlotFence::Gossip, LIMITS);
}

#[test]
fn a_bare_fence() {
    nothing_is_found(SlotFence::Bare, LIMITS);
}

#[test]
fn an_atomic_job_moves_all_slots_or_none() {
    for fence in ALL {
        nothing_is_found(fence, ATOMIC);
    }
}

#[test]
fn one_fault_more() {
    for fence in ALL {
        nothing_is_found(fence, DEEPER);
        nothing_is_found(fence, Limits { atomic: true, ..DEEPER });
    }
}
