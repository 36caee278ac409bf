//! Rounds of catching up: when the pause comes, when writers are slowed, and when it is given up.

use super::effect::{Detail, Reason, Why};
use super::job::Job;
use super::phase::Streaming;

/// By how much more of the time writes are slowed when that is not enough.
const BRAKE_STEP_PERCENT: u8 = 20;

/// Writers always get some of the time.
const BRAKE_MAX_PERCENT: u8 = 80;

/// How many rounds in a row may fail to halve what is waiting before a job without brake gives up.
const STALLED_ROUNDS_MAX: u32 = 8;

/// What follows a round.
pub(super) enum Next {
    /// Another one.
    Round(Streaming),
    /// What is left fits into a pause.
    Pause,
    /// It never will.
    GiveUp(Reason),
}

/// The first round of catching up, braked the harder the more pauses were in vain. The first may have been
/// bad luck.
pub(super) fn first(job: &Job) -> Streaming {
    let in_vain = pauses_failed(job).saturating_sub(1);
    let steps = u8::try_from(in_vain).unwrap_or(u8::MAX);
    let wanted = steps.saturating_mul(BRAKE_STEP_PERCENT).min(BRAKE_MAX_PERCENT);
    let brake_percent = if job.rules.brake { wanted } else { 0 };
    Streaming { lifting: false, round: 1, left: None, stalled: 0, brake_percent }
}

/// Decides after a round of catching up: pause, another round, a harder brake, or give up.
pub(super) fn next(job: &Job, streaming: Streaming, detail: &Detail) -> Next {
    let Detail::CaughtUp { left, drain_ms, fixed_ms, .. } = *detail else {
        // The pause was lifted.
        return Next::Round(Streaming { lifting: false, ..streaming });
    };
    if let Some(reason) = no_pause_suffices(job, detail) {
        return Next::GiveUp(reason);
    }
    // Of what is left of the pause for keys, half is for what the estimate does not know; each pause in vain
    // makes it more careful. Round trips are what they are, however few keys wait.
    let fixed_ms = fixed_ms.min(drain_ms);
    let left_ms = job.rules.max_pause_ms.saturating_sub(fixed_ms);
    let budget_ms = fixed_ms + left_ms / (2 + u64::from(pauses_failed(job)));
    let fits = fixed_ms <= job.rules.max_pause_ms && drain_ms <= budget_ms;
    if fits {
        return Next::Pause;
    }
    if fixed_ms > job.rules.max_pause_ms && streaming.round >= STALLED_ROUNDS_MAX {
        return Next::GiveUp(Reason::new(Why::PauseTooShort, beside_writers(job, fixed_ms)));
    }
    let mut next = Streaming { round: streaming.round + 1, left: Some(left), ..streaming };
    let stalled = streaming.left.is_some_and(|before| left > before / 2);
    next.stalled = if stalled { streaming.stalled + 1 } else { 0 };
    let gives_up = next.stalled > STALLED_ROUNDS_MAX && !job.rules.brake;
    if gives_up || next.round > job.rules.rounds_max {
        return Next::GiveUp(Reason::new(
            Why::NotConverging,
            outrun(job, &streaming, left, drain_ms, budget_ms),
        ));
    }
    if stalled && job.rules.brake && fixed_ms <= job.rules.max_pause_ms {
        next.brake_percent = (streaming.brake_percent + BRAKE_STEP_PERCENT).min(BRAKE_MAX_PERCENT);
    }
    Next::Round(next)
}

/// Why neither more rounds nor slower writers help.
fn beside_writers(job: &Job, fixed_ms: u64) -> String {
    format!(
        "beside writers the handover takes a pause of about {fixed_ms} ms, however few keys they touch, and \
         {} ms are allowed",
        job.rules.max_pause_ms,
    )
}

/// Why no more rounds are made.
fn outrun(job: &Job, streaming: &Streaming, left: u64, drain_ms: u64, budget_ms: u64) -> String {
    if left == 0 {
        return format!(
            "a handover would take a pause of about {} ms even without writers, and {} ms are allowed: allow \
             a longer pause",
            drain_ms * 2,
            job.rules.max_pause_ms,
        );
    }
    format!(
        "writers outrun the catch-up: {left} keys still wait after {} rounds, which would take a pause of \
         {drain_ms} ms, and {budget_ms} ms are allowed for it{}",
        streaming.round,
        if job.rules.brake { "" } else { ", and writes may not be slowed down" },
    )
}

/// Why the batch cannot be handed over within the longest pause, even without any writers: then neither
/// catching up nor slowing writers down helps.
pub(super) fn no_pause_suffices(job: &Job, detail: &Detail) -> Option<Reason> {
    let (Detail::Checked { pause_ms, .. } | Detail::CaughtUp { pause_ms, .. }) = *detail else { return None };
    let allowed_ms = job.rules.max_pause_ms;
    let whole = if job.rules.atomic { " of all slots at once" } else { "" };
    (pause_ms > allowed_ms).then(|| {
        let message = format!(
            "the handover{whole} takes a pause of about {pause_ms} ms even without writers, and {allowed_ms} \
             ms are allowed"
        );
        Reason::new(Why::PauseTooShort, message)
    })
}

/// How many pauses of the batch at hand were in vain.
fn pauses_failed(job: &Job) -> u32 {
    job.batch().map_or(0, |batch| batch.pauses_failed)
}
