//! The machine as it is: nothing is found, however things go wrong.

use whimbrel_sim::{Fence, Limits, explore};

const LIMITS: Limits = Limits { faults: 2, writes: 2 };
const DEEPER: Limits = Limits { faults: 3, writes: 1 };

fn nothing_is_found(fence: Fence, limits: Limits) {
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
    assert!(report.states > 500_000, "the world has become smaller");
}

#[test]
fn a_fence_that_redirects() {
    nothing_is_found(Fence::Redirecting, LIMITS);
}

#[test]
fn a_fence_by_gossip() {
    nothing_is_found(Fence::Gossip, LIMITS);
}

#[test]
fn a_bare_fence() {
    nothing_is_found(Fence::Bare, LIMITS);
}

#[test]
fn one_fault_more() {
    for fence in [Fence::Redirecting, Fence::Gossip, Fence::Bare] {
        nothing_is_found(fence, DEEPER);
    }
}
