//! The machine with a mistake in its driver: each is found, so that finding nothing means something.

use whimbrel_sim::{Bug, Limits, SlotFence, explore};

const LIMITS: Limits = Limits { faults: 2, writes: 2, atomic: false };
const ATOMIC: Limits = Limits { atomic: true, ..LIMITS };

fn is_found(fence: SlotFence, bug: Bug, what: &str) {
    is_found_within(fence, bug, LIMITS, what);
}

fn is_found_within(fence: SlotFence, bug: Bug, limits: Limits, what: &str) {
    let report = explore(fence, Some(bug), limits);
    let Some(found) = report.found else { panic!("{bug:?} was not found in {} states", report.states) };
    println!("{bug:?}, {fence:?}, after {} states: {found}", report.states);
    assert!(found.what.contains(what), "found something else: {found}");
}

#[test]
fn a_fence_that_is_taken_to_have_held() {
    is_found(SlotFence::Redirecting, Bug::HeldUnseen, "without an acknowledged write");
}

#[test]
fn a_fence_without_a_reply_that_is_taken_to_have_held() {
    is_found(SlotFence::Redirecting, Bug::HeldUnknown, "without an acknowledged write");
}

#[test]
fn resuming_forward_from_the_fence() {
    is_found(SlotFence::Gossip, Bug::ResumeForward, "source and target both accept writes");
}

#[test]
fn a_drain_that_does_not_wait_for_replicas() {
    is_found(
        SlotFence::Redirecting,
        Bug::NoReplicaWait,
        "the target serves slot 0 without an acknowledged write",
    );
}

#[test]
fn a_takeover_that_comes_too_late() {
    is_found(SlotFence::Gossip, Bug::NoGuard, "source and target both accept writes");
}

#[test]
fn an_observation_that_leaves_commands_lingering() {
    is_found(SlotFence::Redirecting, Bug::LeaveLingering, "a mark left");
}

#[test]
fn marks_that_are_left_when_the_fence_comes() {
    is_found(SlotFence::Bare, Bug::FenceMarked, "the target serves slot");
}

#[test]
fn a_pause_that_is_lifted_before_the_source_knows() {
    is_found(SlotFence::Gossip, Bug::ReleaseEarly, "source and target both accept writes");
}

#[test]
fn an_observation_that_overlooks_the_target() {
    is_found(
        SlotFence::Redirecting,
        Bug::OverlookTarget,
        "the source serves slot 0 without an acknowledged write",
    );
}

#[test]
fn a_fence_before_all_slots_are_staged() {
    for fence in [SlotFence::Redirecting, SlotFence::Gossip] {
        is_found_within(fence, Bug::FenceUnstaged, ATOMIC, "the target serves slot");
    }
}

#[test]
fn a_fence_of_which_nobody_says_that_it_takes_over() {
    is_found(SlotFence::Scripted, Bug::TakeOverUnsaid, "without an acknowledged write");
}

#[test]
fn a_batch_of_an_atomic_job_that_is_handed_over_although_another_fails() {
    is_found_within(SlotFence::Redirecting, Bug::OneByOne, ATOMIC, "slots were handed over at the end");
}
