//! The state machine of a slot migration.
//!
//! A [`Job`] is about one source primary, one target primary, and slots that are cut into batches, which are
//! handed over one after another. The machine is the function [`step`]: it takes a job and an [`Event`],
//! changes the job, and says in [`Effect`]s what is to be done on the cluster. It does nothing itself, and
//! knows no time but what events say; the same function runs in production and in the model checker.
//!
//! ```text
//! Queued ─▶ for each batch:
//!   Preparing ─▶ Attaching ─▶ Snapshotting ─▶ Streaming ─▶ Pausing ─▶ Draining ─▶ Comparing ─▶ Fencing
//!                                               ▲  └─ not within the pause ◀──┘                   │
//!                                               └────────── GivingBack ◀── a write slipped in ◀───┤
//!   next batch or Done ◀─ CleaningUp ◀─ Confirming ◀─ Releasing ◀─ TakingOver ◀───────────────────┘
//! before the fence:   ─▶ RollingBack ─▶ the batch again, or Cancelled, or Failed
//! an outcome unknown: ─▶ Observing   ─▶ whatever is true; Suspended if it cannot be found out
//! ```
//!
//! # The caller's duties
//!
//! - After each [`step`], write the job to the journal *before* its effect is executed. A job that is read
//!   from the journal gets [`Event::Resume`].
//! - Execute one effect at a time, and answer it with [`Event::Finished`], whatever happened. What cannot be
//!   known is [`Outcome::Unknown`], never a guess.
//! - Keep each [`Action`]'s promises. Two of them carry the safety of the whole: a takeover is never sent
//!   later than its guard allows, and an observation first makes sure that nothing sent before it can still
//!   be executed.
//!
//! # What it guarantees in return
//!
//! Never do two nodes accept writes to a slot; no acknowledged write is lost; from every state, a crash
//! included, resuming leads to one owner. [`End::Cancelled`] and [`End::Failed`] leave nothing staged on the
//! target, with two exceptions, in which nothing is deleted since deleting could destroy data:
//! [`Why::OwnerChanged`] and [`Why::DataInDoubt`]. `docs/design/state-machine.md` says what these guarantees
//! rest on.

mod abandon;
mod effect;
mod job;
mod lost;
mod phase;
mod rounds;
mod slots;
mod step;
#[cfg(test)]
mod tests;
mod verify;

pub use effect::{
    Action, Detail, Effect, Event, Observation, Outcome, Primary, Process, Reason, Reject, Seen, Why,
};
pub use job::{Batch, BatchState, Job, JobId, JobIdError, Rules, Summary, Work};
pub use phase::{End, Phase, Preparation, Reached, Streaming, Then, Undo};
pub use step::step;
pub use verify::Verify;
