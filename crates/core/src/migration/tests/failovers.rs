//! Servers that fail over or restart, and slots that others move.

use super::*;

#[test]
fn a_failover_before_the_fence_starts_the_batch_again_with_the_new_primary() {
    for (why, new_source, new_target) in [(Why::SourceChanged, 'c', 'b'), (Why::TargetChanged, 'a', 'c')] {
        for name in ["mark-importing", "attach", "snapshot", "catch-up", "pause", "drain", "compare", "fence"]
        {
            let mut run = Run::until(name);
            run.refused(why);
            let all = run.batch_slots();
            let observation = Observation {
                source: run.seen(new_source, "new", &all, 100),
                target: run.seen(new_target, "new", &SlotSet::new(), 0),
                elsewhere: SlotSet::new(),
            };
            run.saw(observation);
            assert_eq!(run.asked(), "lift-pause", "{name}");
            assert_eq!((run.job.source(), run.job.target()), (&node(new_source), &node(new_target)));
            run.go_to("snapshot");
            let effect = run.effect.as_ref().unwrap();
            assert_eq!((&effect.source, &effect.target), (&node(new_source), &node(new_target)));
            run.rest();
            assert_eq!(run.job.phase(), &Phase::Ended(End::Done), "{name}");
        }
    }
}

#[test]
fn a_failover_is_waited_for() {
    let mut run = Run::until("snapshot");
    run.refused(Why::SourceChanged);
    let gone = Observation { source: Seen::Unreachable, ..run.owned_by_source() };
    for _ in 0..10 {
        run.saw(gone.clone());
        let Action::Observe { after_ms } = run.effect.as_ref().unwrap().action else {
            panic!("{}", run.asked())
        };
        assert!(after_ms > 0, "not in a hurry");
    }
    let source = run.owned_by_source();
    run.saw(source);
    assert_eq!(run.asked(), "lift-pause");
}

#[test]
fn without_a_source_the_target_is_cleaned_and_the_job_fails() {
    let mut run = Run::new(Rules { observations_max: 2, ..Rules::default() });
    run.go_to("snapshot");
    run.refused(Why::SourceChanged);
    let gone = Observation { source: Seen::Unreachable, ..run.owned_by_source() };
    (0..3).for_each(|_| run.saw(gone.clone()));
    assert_eq!(run.rest(), ["wipe", "clear-marks", "detach"]);
    assert_eq!(run.failure(), Why::Unreachable);
}

#[test]
fn a_job_that_waits_for_somebody_ends_where_nobody_waits_with_it_unless_slots_are_between_two_owners() {
    let mut run = Run::new(Rules { observations_max: 2, ..Rules::default() });
    run.go_to("snapshot");
    assert!(step(&mut run.job, Event::Abandon, &mut Vec::new()).is_err(), "it does not wait");
    run.refused(Why::TargetChanged);
    let gone = Observation { target: Seen::Unreachable, ..run.owned_by_source() };
    (0..3).for_each(|_| run.saw(gone.clone()));
    step(&mut run.job, Event::Abandon, &mut Vec::new()).expect("abandoned");
    assert_eq!(run.failure(), Why::Unreachable);
    assert_eq!(run.job.batches()[0].state, BatchState::LeftAsIs);

    let mut run = Run::new(Rules { observations_max: 2, ..Rules::default() });
    run.go_to("take-over");
    run.unknown();
    let nobodys = Observation { target: Seen::Unreachable, ..run.owned_by_source() };
    (0..3).for_each(|_| run.saw(nobodys.clone()));
    assert!(matches!(run.job.phase(), Phase::Suspended { .. }));
    assert!(step(&mut run.job, Event::Abandon, &mut Vec::new()).is_err(), "behind the fence");
}

#[test]
fn without_a_target_a_job_that_staged_something_is_suspended_until_somebody_resumes_it() {
    let mut run = Run::new(Rules { observations_max: 2, ..Rules::default() });
    run.go_to("snapshot");
    run.refused(Why::TargetChanged);
    let gone = Observation { target: Seen::Unreachable, ..run.owned_by_source() };
    (0..3).for_each(|_| run.saw(gone.clone()));
    assert_eq!(run.job.phase().name(), "suspended");
    assert_eq!(run.asked(), "nothing");
    assert!(!run.job.has_ended());
    assert_eq!(run.job.summary().reason.unwrap().why, Why::Unreachable);
    run.take_in(Event::Resume);
    let source = run.owned_by_source();
    run.saw(source);
    assert_eq!(run.asked(), "lift-pause");
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));
}

#[test]
fn a_source_that_failed_over_after_the_fence_and_claims_the_slots_gets_them_back() {
    let mut run = Run::until("take-over");
    run.refused(Why::TooLate);
    let all = run.batch_slots();
    let observation = Observation { source: run.seen('c', "s2", &all, 100), ..run.owned_by_nobody() };
    run.saw(observation);
    assert_eq!(run.asked(), "lift-pause");
    assert_eq!(run.job.source(), &node('c'));
}

#[test]
fn a_target_that_failed_over_before_any_takeover_was_sent_can_have_the_slots_given_back() {
    let mut run = Run::until("take-over");
    run.refused(Why::TargetChanged);
    let observation =
        Observation { target: run.seen('c', "t2", &SlotSet::new(), 0), ..run.owned_by_nobody() };
    run.saw(observation);
    assert_eq!(run.asked(), "give-back", "it has fewer keys than the source");
}

/// No node owns the slots, and the target's replica has taken its place with this many keys.
fn seen_with_successor(run: &Run, keys: u64) -> Observation {
    Observation { target: run.seen('c', "t2", &SlotSet::new(), keys), ..run.owned_by_nobody() }
}

#[test]
fn a_target_that_failed_over_after_a_takeover_may_have_owned_the_slots_so_there_is_no_way_back() {
    for name in ["take-over", "release", "confirm"] {
        let mut run = Run::until(name);
        run.unknown();
        for _ in 0..3 {
            run.saw(seen_with_successor(&run, 100));
            assert_eq!(run.asked(), "take-over", "{name}");
            assert_eq!(run.effect.as_ref().unwrap().target, node('c'));
            run.unknown();
        }
    }
}

#[test]
fn a_target_that_failed_over_while_a_fence_took_over_may_have_owned_the_slots() {
    let begin = [
        ("fence", crash as fn(&mut Run)),
        ("fence", Run::unknown),
        ("take-over", |run: &mut Run| run.refused(Why::Transient)),
    ];
    for (name, go_wrong) in begin {
        let mut run = Run::until_with_one_fence(name);
        go_wrong(&mut run);
        for _ in 0..3 {
            run.saw(seen_with_successor(&run, 100));
            assert_eq!(run.asked(), "take-over", "{name}");
            assert_eq!(run.effect.as_ref().unwrap().target, node('c'));
            run.refused(Why::Transient);
        }
    }
}

/// A replica that had not got all keys, and was promoted while a takeover was on its way, does not cost the
/// source its copies.
#[test]
fn a_successor_that_lacks_keys_is_handed_nothing() {
    let begin = [("fence", true), ("take-over", false)];
    for (name, with_one_fence) in begin {
        let mut run = if with_one_fence { Run::until_with_one_fence(name) } else { Run::until(name) };
        run.unknown();
        while run.asked() == "observe" {
            run.saw(seen_with_successor(&run, 99));
        }
        assert_eq!(run.rest(), ["detach"], "{name}");
        assert_eq!(run.failure(), Why::DataInDoubt, "{name}");
    }
}

#[test]
fn a_takeover_that_never_works_is_given_back_while_the_target_is_the_same_and_owns_nothing() {
    let mut run = Run::until("take-over");
    for _ in 0..50 {
        if run.asked() != "take-over" {
            break;
        }
        run.refused(Why::Transient);
        let nobody = run.owned_by_nobody();
        run.saw(nobody);
    }
    assert_eq!(run.asked(), "give-back");

    let mut run = Run::until("take-over");
    run.refused(Why::Forbidden);
    let nobody = run.owned_by_nobody();
    run.saw(nobody);
    assert_eq!(run.rest(), ["give-back", "lift-pause", "wipe", "clear-marks", "detach"]);
    assert_eq!(run.failure(), Why::Forbidden);
}

#[test]
fn a_target_that_took_the_slots_while_they_were_given_back_keeps_them() {
    let mut run = Run::until("fence");
    run.unknown();
    let nobody = run.owned_by_nobody();
    run.saw(nobody);
    run.refused(Why::OwnerChanged);
    let target = run.owned_by_target();
    run.saw(target);
    assert_eq!(run.asked(), "release");
}

#[test]
fn a_target_that_restarted_with_fewer_keys_does_not_cost_the_source_its_copies() {
    let mut run = Run::until("clean-up");
    run.refused(Why::Transient);
    let all = run.batch_slots();
    let observation = Observation { target: run.seen('b', "t2", &all, 7), ..run.owned_by_target() };
    run.saw(observation);
    assert_eq!(run.rest(), ["detach"]);
    assert_eq!(run.failure(), Why::DataInDoubt);
    assert_eq!(run.job.batches()[0].state, BatchState::LeftAsIs);

    // Before the takeover it gets nothing.
    let mut run = Run::until("take-over");
    run.refused(Why::TooLate);
    let observation =
        Observation { target: run.seen('b', "t2", &SlotSet::new(), 7), ..run.owned_by_nobody() };
    run.saw(observation);
    assert_eq!(run.asked(), "give-back");
}

#[test]
fn slots_that_the_target_owns_without_a_handover_are_never_wiped() {
    let mut run = Run::until("snapshot");
    run.unknown();
    let target = run.owned_by_target();
    run.saw(target);
    assert_eq!(run.rest(), ["detach"]);
    assert_eq!(run.failure(), Why::OwnerChanged);
    assert_eq!(run.job.batches()[0].state, BatchState::LeftAsIs);
}

#[test]
fn slots_that_somebody_moved_back_are_left_alone() {
    let mut run = Run::until("clean-up");
    run.unknown();
    run.do_it();
    assert_eq!(run.rest(), ["detach"]);
    assert_eq!(run.failure(), Why::OwnerChanged);
}

#[test]
fn a_takeover_that_went_half_way_is_finished_if_the_rest_is_nobodys() {
    let mut run = Run::until("take-over");
    run.unknown();
    let half = Observation { target: run.seen('b', "t1", &slots("0-4"), 100), ..run.owned_by_nobody() };
    run.saw(half);
    assert_eq!(run.asked(), "take-over");
    assert_eq!(run.effect.as_ref().unwrap().slots, slots("0-9"));
}

#[test]
fn slots_that_somebody_has_moved_on_are_neither_taken_nor_given_back() {
    // Before the target owned them what was staged is removed; afterwards nothing is touched.
    for (name, undone) in [("fence", true), ("take-over", true), ("release", false), ("clean-up", false)] {
        let mut run = Run::until(name);
        crash(&mut run);
        let elsewhere = slots("3-4");
        let moved_on = Observation { elsewhere, ..run.owned_by_nobody() };
        run.saw(moved_on);
        if undone {
            assert_eq!(run.asked(), "give-back", "{name}");
            run.do_it();
            assert_eq!(run.asked(), "lift-pause", "{name}");
            run.go_to("detach");
        }
        assert_eq!(run.rest(), ["detach"], "{name}");
        let Phase::Ended(End::Failed(reason)) = run.job.phase() else {
            panic!("{name}: {:?}", run.job.phase());
        };
        assert_eq!(reason.why, Why::OwnerChanged, "{name}");
    }
}

#[test]
fn a_takeover_that_went_half_way_is_divided_if_the_source_has_the_rest() {
    let mut run = Run::until("take-over");
    run.unknown();
    let half = Observation {
        source: run.seen('a', "s1", &slots("5-9"), 100),
        target: run.seen('b', "t1", &slots("0-4"), 100),
        elsewhere: SlotSet::new(),
    };
    run.saw(half);
    assert_eq!(run.asked(), "release");
    assert_eq!(run.effect.as_ref().unwrap().slots, slots("0-4"));
    run.go_to("clean-up");
    run.do_it();
    // The rest: undone first.
    assert_eq!(run.effect.as_ref().unwrap().slots, slots("5-9"));
    run.do_it();
    assert_eq!(run.asked(), "lift-pause");
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));
    assert_eq!(run.job.slots_handed_over(), slots("0-14"));
    assert_eq!(run.job.batches().len(), 3);
}

/// A server without persistence starts empty; Redis 8.4 and later delete keys of slots that they do not own.
#[test]
fn a_source_that_restarted_with_fewer_keys_behind_the_fence_does_not_cost_the_target_its_copies() {
    for place in ["fence", "take-over"] {
        for cancelled in [false, true] {
            let mut run = Run::until(place);
            run.unknown();
            if cancelled {
                run.take_in(Event::Cancel);
            }
            let lost =
                Observation { source: run.seen('a', "s2", &SlotSet::new(), 7), ..run.owned_by_nobody() };
            let mut observations = 0;
            while run.asked() == "observe" {
                observations += 1;
                run.saw(lost.clone());
            }
            assert!(observations > 1, "keys that have expired are still counted on one side for a moment");
            assert_eq!(run.rest(), ["detach"], "{place}");
            assert_eq!(run.failure(), Why::DataInDoubt, "{place}");
            assert_eq!(run.job.batches()[0].state, BatchState::LeftAsIs);
        }
    }

    // A node that has them all gets the slots back.
    let mut run = Run::until("fence");
    run.unknown();
    let restarted =
        Observation { source: run.seen('a', "s2", &SlotSet::new(), 100), ..run.owned_by_nobody() };
    run.saw(restarted);
    assert_eq!(run.asked(), "give-back");
}
