//! The machine itself.

use super::abandon::{abandon, out_of_phase, silent};
use super::effect::{
    Action, Detail, Effect, Event, Observation, Outcome, Primary, Reason, Reject, Seen, Why,
};
use super::job::{Batch, BatchState, Job};
use super::lost::{goes_forward, lost_keys};
use super::phase::{End, Phase, Preparation, Reached, Streaming, Then, Undo};
use super::rounds::{self, Next};
use super::verify::Verify;
use crate::slot::SlotSet;

/// Takes `job` one step further: what `event` means in its phase, and what to do next.
///
/// Adds at most one effect to `effects`. The caller writes the job to its journal, then executes the effect,
/// then comes back with [`Event::Finished`]. Without an effect the job waits for an event from outside, or
/// has ended.
///
/// # Errors
///
/// [`Reject`] if the event does not fit; the job is unchanged then, and nothing is added.
pub fn step(job: &mut Job, event: Event, effects: &mut Vec<Effect>) -> Result<(), Reject> {
    match event {
        Event::Start => match job.phase {
            Phase::Queued => begin_batch(job, effects),
            _ => return Err(out_of_phase(job, "started")),
        },
        Event::Resume => resume(job, effects)?,
        Event::Cancel => cancel(job, effects)?,
        Event::Abandon => abandon(job)?,
        Event::Finished { effect, outcome } => {
            if job.in_flight.as_ref() != Some(&effect) {
                let in_flight = job.in_flight.as_ref().map_or("nothing", |effect| effect.action.name());
                return Err(Reject::NotInFlight { finished: effect.action.name(), in_flight });
            }
            if !outcome.fits(&effect.action) {
                return Err(Reject::WrongDetail { finished: effect.action.name() });
            }
            job.in_flight = None;
            finished(job, outcome, effects);
        }
    }
    Ok(())
}

// ---- From outside ----

fn resume(job: &mut Job, effects: &mut Vec<Effect>) -> Result<(), Reject> {
    let (reached, then) = match &job.phase {
        Phase::Ended(_) => return Err(out_of_phase(job, "resumed")),
        Phase::Queued => {
            begin_batch(job, effects);
            return Ok(());
        }
        Phase::Closing { end } => {
            // The feed ended with the process that had it, or ends when its owner drops it.
            let end = end.clone();
            job.in_flight = None;
            job.phase = Phase::Ended(end);
            return Ok(());
        }
        Phase::Preparing { step: Preparation::Check } => (Reached::Nothing, Then::Again),
        Phase::Preparing { .. }
        | Phase::Attaching
        | Phase::Snapshotting
        | Phase::Streaming(_)
        | Phase::Pausing
        | Phase::Draining
        | Phase::Comparing => (Reached::Staging, Then::Again),
        Phase::Fencing => (reached_by_fence(job), Then::Again),
        Phase::TakingOver { reached } => (Reached::Sent.max(*reached), Then::Again),
        Phase::Releasing | Phase::Confirming | Phase::CleaningUp => (Reached::Taken, Then::Again),
        Phase::GivingBack { then } => (Reached::Fence, then.clone()),
        Phase::RollingBack { then, .. } => (Reached::Staging, then.clone()),
        Phase::Observing { reached, then, .. } | Phase::Suspended { reached, then, .. } => {
            (*reached, then.clone())
        }
    };
    // The user decided to go on, so what went wrong before does not count any more.
    let batch = at_hand(job);
    batch.attempts = 1;
    batch.pauses_failed = 0;
    batch.troubles = 0;
    job.last_trouble = Some(Reason::new(Why::Restarted, "resumed"));
    // What is streamed needs the feed and the pause of a process that may be gone.
    let then = if then == Then::Stream { Then::Again } else { then };
    try_observing(job, reached, then, 0, effects);
    Ok(())
}

fn cancel(job: &mut Job, effects: &mut Vec<Effect>) -> Result<(), Reject> {
    match &job.phase {
        Phase::Ended(_) | Phase::Closing { .. } => return Err(out_of_phase(job, "cancelled")),
        Phase::Queued => job.phase = Phase::Ended(End::Cancelled),
        Phase::Suspended { .. } => {
            job.cancel = true;
            // A person has seen how it stands.
            job.give_up = job.is_divided();
            return resume(job, effects);
        }
        // Something is in flight: its outcome is waited for, then the phase decides.
        _ => {}
    }
    job.cancel = true;
    Ok(())
}

// ---- Moves that several phases make ----

/// The batch at hand. Only for phases that have one: all between the start and the closing.
fn at_hand(job: &mut Job) -> &mut Batch {
    job.batches.get_mut(job.at).expect("a phase that is about a batch is left before the last batch is done")
}

/// Enters a phase and asks for its effect.
fn act(job: &mut Job, phase: Phase, action: Action, effects: &mut Vec<Effect>) {
    let slots = job.batch().map_or_else(SlotSet::new, |batch| batch.slots.clone());
    let effect = Effect { source: job.source.clone(), target: job.target.clone(), slots, action };
    job.phase = phase;
    job.in_flight = Some(effect.clone());
    effects.push(effect);
}

/// Starts the batch at hand, for the first time or again; ends the job if there is none, or if it is to end.
fn begin_batch(job: &mut Job, effects: &mut Vec<Effect>) {
    if job.at == job.batches.len() {
        return close(job, End::Done, effects);
    }
    let batch = at_hand(job);
    let is_staged = batch.state == BatchState::Staged;
    batch.state = BatchState::AtHand;
    batch.attempts += 1;
    batch.pauses_failed = 0;
    batch.troubles = 0;
    if is_staged {
        return try_observing(job, Reached::Fence, Then::Again, 0, effects);
    }
    if job.may_end() {
        return close(job, End::Cancelled, effects);
    }
    act(job, Phase::Preparing { step: Preparation::Check }, Action::Check, effects);
}

/// Ends the job. Nothing of the batch at hand may be left on the cluster, or it is left on purpose. An atomic
/// job of which a part was taken waits for a person instead, unless no person could go on with it.
fn close(job: &mut Job, end: End, effects: &mut Vec<Effect>) {
    if let End::Failed(reason) = &end
        && job.is_divided()
        && !job.give_up
        && !matches!(reason.why, Why::OwnerChanged | Why::DataInDoubt)
    {
        let (reached, then, reason) = (Reached::Nothing, Then::Again, reason.clone());
        job.phase = Phase::Suspended { reached, then, reason };
        return;
    }
    if let Some(batch) = job.batches.get_mut(job.at).filter(|batch| batch.state == BatchState::AtHand) {
        batch.state = match &end {
            End::Failed(reason) if matches!(reason.why, Why::OwnerChanged | Why::DataInDoubt) => {
                BatchState::LeftAsIs
            }
            _ => BatchState::RolledBack,
        };
    }
    act(job, Phase::Closing { end }, Action::Detach, effects);
}

/// What follows the undoing of a batch that may start again.
fn again(job: &mut Job, reason: Reason) -> Then {
    let attempts_max = job.rules.attempts_max;
    if at_hand(job).attempts >= attempts_max {
        return Then::Fail(reason);
    }
    job.last_trouble = Some(reason);
    Then::Again
}

/// Undoes a batch that was not fenced.
fn undo(job: &mut Job, then: Then, effects: &mut Vec<Effect>) {
    join_rest(job);
    act(job, Phase::RollingBack { step: Undo::LiftPause, then }, Action::LiftPause, effects);
}

/// Has writes resume and catches up once more: the rest did not fit into the pause, or a write slipped in.
fn ease(job: &mut Job, reason: Reason, effects: &mut Vec<Effect>) {
    let pauses_max = job.rules.pauses_max;
    let batch = at_hand(job);
    batch.pauses_failed += 1;
    if batch.pauses_failed > pauses_max {
        return undo(job, Then::Fail(reason), effects);
    }
    job.last_trouble = Some(reason);
    let streaming = Streaming { lifting: true, ..rounds::first(job) };
    act(job, Phase::Streaming(streaming), Action::LiftPause, effects);
}

fn catch_up(job: &mut Job, streaming: Streaming, effects: &mut Vec<Effect>) {
    let action = Action::CatchUp { brake_percent: streaming.brake_percent };
    act(job, Phase::Streaming(streaming), action, effects);
}

fn take_over(job: &mut Job, reached: Reached, effects: &mut Vec<Effect>) {
    let guard_ms = job.rules.guard_ms;
    act(job, Phase::TakingOver { reached }, Action::TakeOver { guard_ms }, effects);
}

/// Looks into an outcome that does not say what is true. Bounded: a batch with too many of them is left to a
/// person.
fn observe(job: &mut Job, reached: Reached, then: Then, reason: Reason, effects: &mut Vec<Effect>) {
    let troubles_max = job.rules.troubles_max;
    let batch = at_hand(job);
    batch.troubles += 1;
    if batch.troubles > troubles_max {
        return suspend(job, reached, then, reason, effects);
    }
    // If it will start again, the reason is remembered already.
    if then != Then::Again {
        job.last_trouble = Some(reason);
    }
    try_observing(job, reached, then, 0, effects);
}

fn try_observing(job: &mut Job, reached: Reached, then: Then, tries: u32, effects: &mut Vec<Effect>) {
    // What was found out at once may be acted upon at once; what did not work is given time.
    let troubled = tries > 0 || job.batch().is_some_and(|batch| batch.troubles > 1);
    let after_ms = if troubled { job.rules.observe_every_ms } else { 0 };
    act(job, Phase::Observing { reached, then, tries }, Action::Observe { after_ms }, effects);
}

/// Stops without an end, or with one if there is nothing left to do.
fn suspend(job: &mut Job, reached: Reached, then: Then, reason: Reason, effects: &mut Vec<Effect>) {
    if reached == Reached::Nothing {
        return close(job, ending(job, then, reason), effects);
    }
    job.phase = Phase::Suspended { reached, then, reason };
}

/// How a job ends that cannot go on because of `reason`.
fn ending(job: &Job, then: Then, reason: Reason) -> End {
    match then {
        Then::Fail(first) => End::Failed(first),
        Then::Cancel => End::Cancelled,
        Then::Again | Then::Stream if job.may_end() => End::Cancelled,
        Then::Again | Then::Stream => End::Failed(reason),
    }
}

/// A cancellation that came in meanwhile takes the place of another try.
fn unless_cancelled(job: &Job, then: Then) -> Then {
    match then {
        Then::Again | Then::Stream if job.may_end() => Then::Cancel,
        then => then,
    }
}

// ---- Effects that came to an end ----

fn finished(job: &mut Job, outcome: Outcome, effects: &mut Vec<Effect>) {
    match job.phase.clone() {
        Phase::Preparing { .. }
        | Phase::Attaching
        | Phase::Snapshotting
        | Phase::Streaming(_)
        | Phase::Pausing
        | Phase::Draining
        | Phase::Comparing => finished_before_fence(job, outcome, effects),
        Phase::Fencing => finished_fence(job, outcome, effects),
        Phase::TakingOver { .. } | Phase::Releasing | Phase::Confirming | Phase::CleaningUp => {
            finished_after_fence(job, outcome, effects);
        }
        Phase::GivingBack { then } => finished_giving_back(job, then, outcome, effects),
        Phase::RollingBack { step, then } => finished_undoing(job, step, then, outcome, effects),
        Phase::Observing { reached, then, tries } => match outcome {
            Outcome::Done(Detail::Observed(observation)) => {
                decide(job, reached, then, tries, &observation, effects);
            }
            Outcome::Refused(reason) => {
                // What is not allowed will not be the next time either.
                let is_final = matches!(reason.why, Why::Forbidden | Why::Permanent);
                let tries = if is_final { job.rules.observations_max } else { tries };
                not_seen(job, reached, then, tries, None, reason, effects);
            }
            Outcome::Unknown { message } => {
                let reason = Reason::new(Why::Unknown, message);
                not_seen(job, reached, then, tries, None, reason, effects);
            }
            Outcome::Done(_) => unreachable!("the detail of an observation was checked before"),
        },
        // A feed that cannot be ended ends with the process.
        Phase::Closing { end } => job.phase = Phase::Ended(end),
        Phase::Queued | Phase::Suspended { .. } | Phase::Ended(_) => {
            unreachable!("nothing is in flight in this phase")
        }
    }
}

/// What is not done, as a reason.
fn failure(outcome: Outcome) -> Result<Detail, Reason> {
    match outcome {
        Outcome::Done(detail) => Ok(detail),
        Outcome::Refused(reason) => Err(reason),
        Outcome::Unknown { message } => Err(Reason::new(Why::Unknown, message)),
    }
}

fn finished_before_fence(job: &mut Job, outcome: Outcome, effects: &mut Vec<Effect>) {
    let detail = match failure(outcome) {
        Ok(detail) => detail,
        Err(reason) => return failed_before_fence(job, reason, effects),
    };
    match &detail {
        Detail::Checked { source, target, .. } => {
            job.source_process = Some(source.clone());
            job.target_process = Some(target.clone());
        }
        Detail::Moved { keys, bytes } => {
            let touched = if job.phase == Phase::Draining { *keys } else { 0 };
            count_copies(job, *keys, *bytes, touched);
        }
        Detail::CaughtUp { keys, bytes, .. } => count_copies(job, *keys, *bytes, *keys),
        Detail::Compared { keys } => at_hand(job).work.compared += keys,
        Detail::Paused { takes_over } => job.fence_takes_over = *takes_over,
        Detail::Released { paused_ms } => count_pause(job, *paused_ms),
        _ => {}
    }
    if job.may_end() {
        return match job.phase {
            // Nothing was changed yet, and what is on the target may be another job's.
            Phase::Preparing { step: Preparation::Check } => close(job, End::Cancelled, effects),
            _ => undo(job, Then::Cancel, effects),
        };
    }
    match job.phase.clone() {
        Phase::Preparing { step: Preparation::Check } => {
            if let Some(reason) = rounds::no_pause_suffices(job, &detail) {
                return close(job, End::Failed(reason), effects);
            }
            act(job, Phase::Preparing { step: Preparation::Mark }, Action::MarkImporting, effects);
        }
        Phase::Preparing { step: Preparation::Mark } => act(job, Phase::Attaching, Action::Attach, effects),
        Phase::Preparing { step: Preparation::MarkAgain } => {
            let streaming = rounds::first(job);
            catch_up(job, streaming, effects);
        }
        Phase::Attaching => act(job, Phase::Snapshotting, Action::Snapshot, effects),
        Phase::Snapshotting => {
            let streaming = rounds::first(job);
            catch_up(job, streaming, effects);
        }
        Phase::Streaming(streaming) => next_round(job, streaming, &detail, effects),
        Phase::Pausing => {
            let replica_wait_ms = job.rules.replica_wait_ms;
            act(job, Phase::Draining, Action::Drain { replica_wait_ms }, effects);
        }
        Phase::Draining if job.rules.verify != Verify::None => {
            let verify = job.rules.verify;
            act(job, Phase::Comparing, Action::Compare { verify }, effects);
        }
        Phase::Draining | Phase::Comparing => act(job, Phase::Fencing, Action::Fence, effects),
        phase => unreachable!("{phase} is not before the fence"),
    }
}

/// What follows a round of catching up.
fn next_round(job: &mut Job, streaming: Streaming, detail: &Detail, effects: &mut Vec<Effect>) {
    match rounds::next(job, streaming, detail) {
        Next::Round(streaming) => catch_up(job, streaming, effects),
        Next::Pause => {
            let pause_ms = job.rules.max_pause_ms;
            act(job, Phase::Pausing, Action::Pause { pause_ms }, effects);
        }
        Next::GiveUp(reason) => undo(job, Then::Fail(reason), effects),
    }
}

fn failed_before_fence(job: &mut Job, reason: Reason, effects: &mut Vec<Effect>) {
    if job.phase == (Phase::Preparing { step: Preparation::Check }) {
        return failed_check(job, reason, effects);
    }
    if let Phase::Streaming(streaming @ Streaming { lifting: true, .. }) = job.phase
        && !matches!(reason.why, Why::Unknown | Why::Transient)
    {
        // The pause ends by itself, and a source that is gone is noticed by the round. But a pause whose
        // lifting may still come some time could be the next one.
        return catch_up(job, Streaming { lifting: false, ..streaming }, effects);
    }
    // Looked into whatever it is: something that was sent for an effect that broke off could be executed
    // after the rollback that undoes it.
    let then = match reason.why {
        Why::TooSlow if !matches!(job.phase, Phase::Streaming(_)) => return ease(job, reason, effects),
        Why::Interrupted if job.may_end() => Then::Cancel,
        Why::TooSlow
        | Why::Permanent
        | Why::Forbidden
        | Why::Busy
        | Why::OutOfMemory
        | Why::Differs
        | Why::TooLarge
        | Why::PauseTooShort
        | Why::NotConverging => Then::Fail(reason.clone()),
        Why::Transient
        | Why::FeedLost
        | Why::Flushed
        | Why::TooLate
        | Why::Interrupted
        | Why::OwnerChanged
        | Why::SourceChanged
        | Why::TargetChanged
        | Why::Unknown
        | Why::Unreachable
        | Why::DataInDoubt
        | Why::Restarted => again(job, reason.clone()),
    };
    observe(job, Reached::Staging, then, reason, effects);
}

/// Nothing was changed yet: there is nothing to undo, and undoing could destroy what is another job's.
fn failed_check(job: &mut Job, reason: Reason, effects: &mut Vec<Effect>) {
    if job.may_end() {
        return close(job, End::Cancelled, effects);
    }
    match reason.why {
        Why::Transient | Why::SourceChanged | Why::TargetChanged | Why::Unknown | Why::Unreachable => {
            match again(job, reason.clone()) {
                Then::Again => observe(job, Reached::Nothing, Then::Again, reason, effects),
                _ => close(job, End::Failed(reason), effects),
            }
        }
        _ => close(job, End::Failed(reason), effects),
    }
}

fn finished_fence(job: &mut Job, outcome: Outcome, effects: &mut Vec<Effect>) {
    match outcome {
        Outcome::Done(Detail::Fenced { held: true }) => {
            let reached = reached_by_fence(job).max(Reached::Held);
            take_over(job, reached, effects);
        }
        Outcome::Done(_) => {
            let pauses_max = job.rules.pauses_max;
            let batch = at_hand(job);
            batch.pauses_failed += 1;
            let reason = Reason::new(Why::TooSlow, "a write slipped in before the fence: the pause ran out");
            let then = if batch.pauses_failed > pauses_max { Then::Fail(reason) } else { Then::Stream };
            act(job, Phase::GivingBack { then }, Action::GiveBack, effects);
        }
        Outcome::Refused(reason) => failed_before_fence(job, reason, effects),
        Outcome::Unknown { message } => {
            let reason = Reason::new(Why::Unknown, message);
            let (reached, then) = (reached_by_fence(job), again(job, reason.clone()));
            observe(job, reached, then, reason, effects);
        }
    }
}

/// How far a batch may have got with a fence whose outcome is unknown. A fence that takes over as well was
/// held if the source gave the slots up, and the target may have owned them since.
fn reached_by_fence(job: &Job) -> Reached {
    if job.fence_takes_over { Reached::Sent } else { Reached::Fence }
}

fn finished_after_fence(job: &mut Job, outcome: Outcome, effects: &mut Vec<Effect>) {
    let reached = match job.phase {
        // What was refused was not executed.
        Phase::TakingOver { reached } if matches!(outcome, Outcome::Refused(_)) => reached,
        Phase::TakingOver { reached } => Reached::Sent.max(reached),
        _ => Reached::Taken,
    };
    let detail = match failure(outcome) {
        Ok(detail) => detail,
        Err(reason) => {
            let then = match reason.why {
                Why::Permanent | Why::Forbidden => Then::Fail(reason.clone()),
                _ => again(job, reason.clone()),
            };
            return observe(job, reached, then, reason, effects);
        }
    };
    if let Detail::Released { paused_ms } = detail {
        count_pause(job, paused_ms);
    }
    match job.phase {
        Phase::TakingOver { .. } => act(job, Phase::Releasing, Action::Release, effects),
        Phase::Releasing => {
            let everywhere = slots_to_announce(job);
            act(job, Phase::Confirming, Action::Confirm { everywhere }, effects);
        }
        Phase::Confirming => act(job, Phase::CleaningUp, Action::CleanUp, effects),
        _ => {
            at_hand(job).state = BatchState::HandedOver;
            job.at += 1;
            job.last_trouble = None;
            begin_batch(job, effects);
        }
    }
}

fn finished_giving_back(job: &mut Job, then: Then, outcome: Outcome, effects: &mut Vec<Effect>) {
    match failure(outcome) {
        Ok(_) => match unless_cancelled(job, then) {
            Then::Stream => {
                act(job, Phase::Preparing { step: Preparation::MarkAgain }, Action::MarkImporting, effects);
            }
            then => undo(job, then, effects),
        },
        Err(reason) => {
            let then = match then {
                Then::Stream => again(job, reason.clone()),
                then => then,
            };
            observe(job, Reached::Fence, then, reason, effects);
        }
    }
}

fn finished_undoing(job: &mut Job, done: Undo, then: Then, outcome: Outcome, effects: &mut Vec<Effect>) {
    let failure = match failure(outcome) {
        Ok(Detail::Released { paused_ms }) => {
            count_pause(job, paused_ms);
            None
        }
        Ok(_) => None,
        Err(reason) => Some(reason),
    };
    match (done, failure) {
        // A pause that cannot be lifted ends by itself. But a pause whose lifting may still come some time
        // could be the next.
        (Undo::LiftPause, Some(reason)) if matches!(reason.why, Why::Unknown | Why::Transient) => {
            observe(job, Reached::Staging, then, reason, effects);
        }
        (Undo::LiftPause, _) => wipe(job, then, effects),
        (Undo::Wipe | Undo::ClearMarks, Some(reason)) => {
            observe(job, Reached::Staging, then, reason, effects);
        }
        (Undo::Wipe, None) => {
            act(job, Phase::RollingBack { step: Undo::ClearMarks, then }, Action::ClearMarks, effects);
        }
        (Undo::ClearMarks, None) => match unless_cancelled(job, then) {
            Then::Again | Then::Stream => begin_batch(job, effects),
            Then::Cancel => close(job, End::Cancelled, effects),
            Then::Fail(reason) => close(job, End::Failed(reason), effects),
        },
    }
}

fn wipe(job: &mut Job, then: Then, effects: &mut Vec<Effect>) {
    act(job, Phase::RollingBack { step: Undo::Wipe, then }, Action::Wipe, effects);
}

fn count_copies(job: &mut Job, keys: u64, bytes: u64, touched: u64) {
    let work = &mut at_hand(job).work;
    work.keys += keys;
    work.bytes += bytes;
    work.touched += touched;
}

fn count_pause(job: &mut Job, paused_ms: u64) {
    if paused_ms > 0 {
        let work = &mut at_hand(job).work;
        work.pauses += 1;
        work.paused_ms += paused_ms;
        work.longest_pause_ms = work.longest_pause_ms.max(paused_ms);
    }
}

// ---- Deciding by what is true ----

/// How much of the batch a side owns in its own view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    None,
    Some,
    All,
}

fn share(primary: &Primary, slots: &SlotSet) -> Share {
    match primary.claims.intersection(slots).len() {
        0 => Share::None,
        count if count == slots.len() => Share::All,
        _ => Share::Some,
    }
}

fn decide(
    job: &mut Job,
    reached: Reached,
    then: Then,
    tries: u32,
    observation: &Observation,
    effects: &mut Vec<Effect>,
) {
    let (source, target) = match (&observation.source, &observation.target) {
        (Seen::Primary(source), Seen::Primary(target)) => (source, target),
        (Seen::Unreachable, Seen::Primary(target)) => {
            let reason = silent("source", &job.source);
            return not_seen(job, reached, then, tries, Some(target), reason, effects);
        }
        (_, Seen::Unreachable) => {
            let reason = silent("target", &job.target);
            return not_seen(job, reached, then, tries, None, reason, effects);
        }
    };
    let source_same = job.source_process.as_ref() == Some(&source.process);
    let target_same = job.target_process.as_ref() == Some(&target.process);
    let target_promoted = job.target != target.node;
    let slots = at_hand(job).slots.clone();
    let (at_source, at_target) = (share(source, &slots), share(target, &slots));
    let is_nobodys = at_source == Share::None && at_target == Share::None;
    let keys = (source.keys, target.keys);
    if is_nobodys
        && let Some(message) = lost_keys(&reached, (source_same, target_same), target_promoted, keys)
    {
        return in_doubt(job, (reached, then, tries), message, effects);
    }
    (job.source, job.target) = (source.node.clone(), target.node.clone());
    job.source_process = Some(source.process.clone());
    job.target_process = Some(target.process.clone());

    // What one of the two claims itself is theirs, whatever the other has heard.
    let elsewhere = observation.elsewhere.intersection(&slots);
    let elsewhere = elsewhere.difference(&source.claims).difference(&target.claims);
    if !elsewhere.is_empty() && !matches!(reached, Reached::Nothing | Reached::Staging) {
        // They must be neither taken nor given back: their owner has acknowledged writes to them.
        let reason =
            Reason::new(Why::OwnerChanged, format!("slots {elsewhere} belong to another node by now"));
        if reached == Reached::Taken || at_target != Share::None {
            return close(job, End::Failed(reason), effects);
        }
        return act(job, Phase::GivingBack { then: Then::Fail(reason) }, Action::GiveBack, effects);
    }

    match reached {
        Reached::Nothing => match unless_cancelled(job, then) {
            Then::Cancel => close(job, End::Cancelled, effects),
            Then::Fail(reason) => close(job, End::Failed(reason), effects),
            Then::Again | Then::Stream => begin_batch(job, effects),
        },

        // Not fenced: whichever node owns the slots, it must not be the target, or its keys are no staged
        // keys.
        Reached::Staging if at_target != Share::None => {
            let message = "the target owns slots of the batch, though they were not handed over yet";
            close(job, End::Failed(Reason::new(Why::OwnerChanged, message)), effects);
        }
        Reached::Staging => undo(job, then, effects),

        // Two owners in their own views, one of them new and not fenced by us. The cluster settles that.
        _ if !source_same && !source.claims.intersection(&target.claims).intersection(&slots).is_empty() => {
            let reason = Reason::new(Why::OwnerChanged, "source and target both claim slots of the batch");
            not_seen(job, Reached::Taken, then, tries, None, reason, effects);
        }
        _ if at_target != Share::None => {
            target_owns(job, source, target, !target_same && !target_promoted, effects);
        }

        // From here on the target owns nothing.
        Reached::Taken if at_source == Share::None => take_over(job, Reached::Taken, effects),
        // The target died before any node heard of its claim: no client was sent to it, and the source never
        // gave up.
        Reached::Taken if target_promoted && at_source == Share::All => undo(job, then, effects),
        Reached::Taken => {
            let message =
                "the target does not own the slots any more, and the source does again; nothing was deleted";
            close(job, End::Failed(Reason::new(Why::OwnerChanged, message)), effects);
        }
        _ if at_source == Share::All => undo(job, then, effects),
        _ if goes_forward(&reached, target_promoted) && at_source == Share::None => {
            take_over(job, Reached::MaybeTaken, effects);
        }
        Reached::Held | Reached::Sent if at_source == Share::None => {
            // Back is as good as forward, but further. A target that lost keys by a restart gets nothing.
            let patient = at_hand(job).troubles <= job.rules.troubles_max / 2;
            let complete = target.keys >= source.keys;
            if then == Then::Again && patient && complete {
                take_over(job, Reached::Held, effects);
            } else {
                act(job, Phase::GivingBack { then }, Action::GiveBack, effects);
            }
        }
        _ => act(job, Phase::GivingBack { then }, Action::GiveBack, effects),
    }
}

/// The target owns all slots of the batch, or some of them: then the takeover went half-way.
fn target_owns(
    job: &mut Job,
    source: &Primary,
    target: &Primary,
    target_restarted: bool,
    effects: &mut Vec<Effect>,
) {
    let slots = at_hand(job).slots.clone();
    let rest = slots.difference(&target.claims);
    match share(source, &slots) {
        // A target that lost keys by a restart must not cost the source its copies.
        Share::None if rest.is_empty() && target_restarted && target.keys < source.keys => {
            let message = format!(
                "the target restarted after the takeover and holds {} keys where the source still holds \
                 {}; nothing was deleted",
                target.keys, source.keys
            );
            close(job, End::Failed(Reason::new(Why::DataInDoubt, message)), effects);
        }
        // Also if the source did not hear of it yet: releasing sees to that.
        _ if rest.is_empty() => act(job, Phase::Releasing, Action::Release, effects),
        _ if source.claims.intersection(&rest).is_empty() => take_over(job, Reached::Taken, effects),
        _ => {
            // The source may accept writes to the rest again, so it cannot be taken any more.
            split_off(job, rest);
            act(job, Phase::Releasing, Action::Release, effects);
        }
    }
}

/// The check is repeated for a while, as keys that have expired still count on one side; a new process is not
/// known until then.
fn in_doubt(
    job: &mut Job,
    (reached, then, tries): (Reached, Then, u32),
    message: String,
    effects: &mut Vec<Effect>,
) {
    if tries < job.rules.observations_max / 12 {
        return try_observing(job, reached, then, tries + 1, effects);
    }
    close(job, End::Failed(Reason::new(Why::DataInDoubt, message)), effects);
}

/// What every node has to know of before the job goes on: all of it, if this is the last that is handed over.
fn slots_to_announce(job: &Job) -> SlotSet {
    let is_last = job.at + 1 == job.batches.len() || job.is_cancelling();
    if is_last { job.slots_handed_over().union(&job.batches[job.at].slots) } else { SlotSet::new() }
}

/// Leaves a part of the batch at hand for later.
fn split_off(job: &mut Job, rest: SlotSet) {
    let batch = at_hand(job);
    batch.slots = batch.slots.difference(&rest);
    let rest = Batch { state: BatchState::Staged, ..Batch::new(rest) };
    job.batches.insert(job.at + 1, rest);
}

/// Takes back what was left for later: a batch that is undone is undone as a whole.
fn join_rest(job: &mut Job) {
    let next = job.at + 1;
    if job.batches.get(next).is_some_and(|batch| batch.state == BatchState::Staged) {
        let rest = job.batches.remove(next);
        let batch = at_hand(job);
        batch.slots = batch.slots.union(&rest.slots);
    }
}

/// Looks again later, as long as the rules say; then does what can be done without knowing.
fn not_seen(
    job: &mut Job,
    reached: Reached,
    then: Then,
    tries: u32,
    target: Option<&Primary>,
    reason: Reason,
    effects: &mut Vec<Effect>,
) {
    let tries = tries + 1;
    if tries <= job.rules.observations_max {
        return try_observing(job, reached, then, tries, effects);
    }
    // Without the source there is no going on, but what was staged can be removed.
    let slots = at_hand(job).slots.clone();
    let only_staged = target.filter(|target| share(target, &slots) == Share::None);
    if let (Reached::Staging, Some(target)) = (reached, only_staged) {
        job.target = target.node.clone();
        job.target_process = Some(target.process.clone());
        let then = match ending(job, then, reason) {
            End::Failed(reason) => Then::Fail(reason),
            End::Cancelled | End::Done => Then::Cancel,
        };
        join_rest(job);
        return wipe(job, then, effects);
    }
    suspend(job, reached, then, reason, effects);
}
