//! Restarts of the executor: a job goes on after a crash.

use super::*;

#[test]
fn resuming_before_the_fence_rolls_back_and_starts_the_batch_again() {
    for name in BEFORE_FENCE {
        let mut run = Run::until(name);
        crash(&mut run);
        assert_eq!(run.asked(), "observe", "{name}");
        run.do_it();
        for expected in ROLLBACK {
            assert_eq!(run.asked(), expected, "{name}");
            run.do_it();
        }
        assert_eq!(run.asked(), "check", "{name}");
        run.rest();
        assert_eq!(run.job.phase(), &Phase::Ended(End::Done), "{name}");
    }
}

#[test]
fn resuming_from_a_check_wipes_nothing_since_it_could_be_somebody_elses() {
    let mut run = Run::new(Rules::default());
    crash(&mut run);
    run.do_it();
    assert_eq!(run.asked(), "check");
}

#[test]
fn resuming_from_the_fence_gives_back_what_was_fenced() {
    let mut run = Run::until("fence");
    crash(&mut run);
    let nobody = run.owned_by_nobody();
    run.saw(nobody);
    assert_eq!(run.asked(), "give-back");
    run.do_it();
    assert_eq!(run.asked(), "lift-pause");
    run.rest();
    assert_eq!(run.job.phase(), &Phase::Ended(End::Done));

    let mut run = Run::until("fence");
    crash(&mut run);
    run.do_it();
    assert_eq!(run.asked(), "lift-pause", "the source owns the slots: not fenced");
}

#[test]
fn resuming_from_a_fence_that_takes_over_goes_forward() {
    // Fenced, not taken: nothing was written before, so it is taken.
    let mut run = Run::until_with_one_fence("fence");
    crash(&mut run);
    let nobody = run.owned_by_nobody();
    run.saw(nobody);
    assert_eq!(run.asked(), "take-over");
    // Taken.
    let mut run = Run::until_with_one_fence("fence");
    crash(&mut run);
    let target = run.owned_by_target();
    run.saw(target);
    assert_eq!(run.asked(), "release");
    // Not fenced.
    let mut run = Run::until_with_one_fence("fence");
    crash(&mut run);
    run.do_it();
    assert_eq!(run.asked(), "lift-pause");
    // What the pause of the next batch says counts for that one.
    let mut run = Run::until_with_one_fence("clean-up");
    run.do_it();
    run.go_to("fence");
    crash(&mut run);
    let nobody = run.owned_by_nobody();
    run.saw(nobody);
    assert_eq!(run.asked(), "give-back");
}

#[test]
fn resuming_from_the_takeover_goes_by_what_is_true() {
    // Done: forward.
    let mut run = Run::until("take-over");
    crash(&mut run);
    let target = run.owned_by_target();
    run.saw(target);
    assert_eq!(run.asked(), "release");
    // Fenced, not taken: taken.
    let mut run = Run::until("take-over");
    crash(&mut run);
    let nobody = run.owned_by_nobody();
    run.saw(nobody);
    assert_eq!(run.asked(), "take-over");
    // The fence was a pause, and nothing is left of it: back.
    let mut run = Run::until("take-over");
    crash(&mut run);
    run.do_it();
    assert_eq!(run.asked(), "lift-pause");
}

#[test]
fn resuming_after_the_takeover_goes_forward() {
    for name in ["release", "confirm", "clean-up"] {
        let mut run = Run::until(name);
        crash(&mut run);
        let target = run.owned_by_target();
        run.saw(target);
        assert_eq!(run.asked(), "release", "{name}");
        run.rest();
        assert_eq!(run.job.phase(), &Phase::Ended(End::Done), "{name}");
    }
}

#[test]
fn resuming_a_rollback_or_a_give_back_finishes_it() {
    for (step, name) in ROLLBACK.into_iter().enumerate() {
        let mut run = Run::until("snapshot");
        run.refused(Why::OutOfMemory);
        run.do_it();
        (0..step).for_each(|_| run.do_it());
        assert_eq!(run.asked(), name);
        crash(&mut run);
        run.do_it();
        assert_eq!(run.rest(), UNDONE[1..]);
        assert_eq!(run.failure(), Why::OutOfMemory);
    }
    let mut run = Run::until("fence");
    run.done(Detail::Fenced { held: false });
    crash(&mut run);
    let nobody = run.owned_by_nobody();
    run.saw(nobody);
    assert_eq!(run.asked(), "give-back");
    run.do_it();
    assert_eq!(run.asked(), "lift-pause", "the feed is gone, so the batch starts again");
}

#[test]
fn resuming_a_job_that_only_had_to_end_ends_it() {
    let mut run = Run::until("clean-up");
    run.take_in(Event::Cancel);
    run.do_it();
    assert_eq!(run.asked(), "detach");
    crash(&mut run);
    assert_eq!(run.job.phase(), &Phase::Ended(End::Cancelled));
    let error = step(&mut run.job, Event::Resume, &mut Vec::new()).unwrap_err();
    assert_eq!(error, Reject::OutOfPhase { phase: "cancelled", event: "resumed" });
}
