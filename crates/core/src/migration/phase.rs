//! Where a job is.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::effect::Reason;

/// How far a job is. Set by [`step`](super::step) only, and written to the journal with the job, so every
/// phase survives a restart; what [`Event::Resume`](super::Event::Resume) makes of it is said at each.
///
/// The effect that a phase waits for has the phase's name if nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for its turn. Resume starts it.
    Queued,

    /// Checks and marks the target, before anything of the batch is copied. Resume: a check, which can leave
    /// nothing, is done again; marks are rolled back and the batch starts again.
    Preparing {
        /// What it waits for.
        step: Preparation,
    },

    /// Waits for the feed to record changes. Resume: rollback, the batch again.
    Attaching,

    /// Waits for the first copy of all keys. Resume: rollback, the batch again.
    Snapshotting,

    /// Copies what was touched, round after round, until the rest fits into a pause. Resume: rollback, the
    /// batch again.
    Streaming(Streaming),

    /// Waits for the write pause on the source. Resume: rollback, the batch again.
    Pausing,

    /// Writes are paused; the last touched keys move. Resume: rollback, the batch again.
    Draining,

    /// Writes are paused; both sides are compared. Resume: rollback, the batch again.
    Comparing,

    /// The source may refuse the slots, or not yet. Resume: observe; what is fenced is given back, since it
    /// is not known whether writes slipped in, and the batch starts again. If the fence takes over as well,
    /// and only if none did: as [`Phase::TakingOver`].
    Fencing,

    /// The fence held; the target may own the slots, or not yet. Resume: observe; forward if the target owns
    /// them or still can take them, else back.
    TakingOver {
        /// How far the batch had got before this takeover was sent: [`Reached::Held`] or further.
        reached: Reached,
    },

    /// The target owns the slots; writes resume as soon as the source knows. Resume: observe, then
    /// release once more.
    Releasing,

    /// Waits for all others to know. Resume: observe, then as above.
    Confirming,

    /// Deletes what the source still holds. Resume: observe, then as above.
    CleaningUp,

    /// A fence is being undone. Resume: observe; go on giving back, or forward if the target owns the slots.
    GivingBack {
        /// What comes next.
        then: Then,
    },

    /// The batch is being undone: pause lifted, staged keys wiped, marks cleared. Resume: observe, then from
    /// the first step.
    RollingBack {
        /// What it waits for.
        step: Undo,
        /// What comes next.
        then: Then,
    },

    /// Finds out what is true after an outcome was not known, a node changed, or the executor restarted.
    /// Resume: observe.
    Observing {
        /// How far the batch may have got.
        reached: Reached,
        /// What comes after the batch was undone, if that is what it comes to.
        then: Then,
        /// How many observations brought no decision.
        tries: u32,
    },

    /// What is left to do cannot be done now: a node does not answer, or owners are not what they should be.
    /// Waits for [`Event::Resume`](super::Event::Resume), which observes. No end: the journal must keep the
    /// job.
    Suspended {
        /// How far the batch may have got.
        reached: Reached,
        /// What comes after the batch was undone, if that is what it comes to.
        then: Then,
        /// What is in the way.
        reason: Reason,
    },

    /// Nothing is left to do on the cluster; waits for the feed to be ended. Resume: ended, since a feed does
    /// not survive its process.
    Closing {
        /// How the job ends.
        end: End,
    },

    /// The end. Set when [`Phase::Closing`] is done.
    Ended(End),
}

/// What [`Phase::Preparing`] waits for. Set by [`step`](super::step), survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Preparation {
    /// [`Action::Check`](super::Action::Check).
    Check,
    /// [`Action::MarkImporting`](super::Action::MarkImporting), before the snapshot.
    Mark,
    /// The same, after a fence was given back; the staged keys and the feed are still there, so streaming
    /// follows.
    MarkAgain,
}

/// What [`Phase::Streaming`] remembers. Set by [`step`](super::step); survives a restart, but is not used
/// after one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Streaming {
    /// Whether it waits for the pause to be lifted before the first round.
    pub lifting: bool,
    /// Which round is running, counted from 1.
    pub round: u32,
    /// How many keys were waiting after the round before; `None` before the first.
    pub left: Option<u64>,
    /// How many rounds in a row did not halve that number.
    pub stalled: u32,
    /// How hard writes are slowed; see [`Action::CatchUp`](super::Action::CatchUp).
    pub brake_percent: u8,
}

/// The steps of [`Phase::RollingBack`], in their order. Set by [`step`](super::step), survive a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Undo {
    /// [`Action::LiftPause`](super::Action::LiftPause): clients first. If it fails, the pause ends by itself.
    LiftPause,
    /// [`Action::Wipe`](super::Action::Wipe), while the marks still let commands in.
    Wipe,
    /// [`Action::ClearMarks`](super::Action::ClearMarks).
    ClearMarks,
}

/// What follows when a batch is undone. Set by [`step`](super::step), survives a restart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Then {
    /// The batch starts again.
    Again,
    /// More catching up, with what is staged: a write slipped in before the fence.
    Stream,
    /// The job ends as cancelled.
    Cancel,
    /// The job ends as failed, because of this.
    Fail(Reason),
}

/// How far a batch may have got when that is not known exactly. Set by [`step`](super::step), survives a
/// restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reached {
    /// Nothing was changed.
    Nothing,
    /// Marks and staged keys; the source owns the slots.
    Staging,
    /// The fence was sent. Whether it held is not known.
    Fence,
    /// The fence held. The target never owned the slots.
    Held,
    /// The fence held, and a takeover was sent to the target, perhaps together with it: then it held if the
    /// source gave the slots up. If that is still the same node and owns nothing, it never did.
    Sent,
    /// The same, but the target was replaced since. Its predecessor may have owned the slots and died before
    /// it notified any node; then the new one has acknowledged writes that the source has not.
    MaybeTaken,
    /// The target owned the slots, and has acknowledged writes that the source has not. Forward only.
    Taken,
}

/// How a job ended. Set by [`step`](super::step), survives a restart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum End {
    /// All batches were handed over.
    Done,
    /// Cancelled by the user. Batches handed over before stay handed over.
    Cancelled,
    /// Given up. Batches handed over before stay handed over.
    Failed(Reason),
}

impl Phase {
    /// What to call it: in progress lines, reports and as the state of a slot migration.
    pub fn name(&self) -> &'static str {
        match self {
            Phase::Queued => "queued",
            Phase::Preparing { .. } => "preparing",
            Phase::Attaching => "attaching",
            Phase::Snapshotting => "snapshotting",
            Phase::Streaming(_) => "streaming",
            Phase::Pausing => "pausing",
            Phase::Draining => "draining",
            Phase::Comparing => "comparing",
            Phase::Fencing => "fencing",
            Phase::TakingOver { .. } => "taking-over",
            Phase::Releasing => "releasing",
            Phase::Confirming => "confirming",
            Phase::CleaningUp => "cleaning-up",
            Phase::GivingBack { .. } => "giving-back",
            Phase::RollingBack { .. } => "rolling-back",
            Phase::Observing { .. } => "observing",
            Phase::Suspended { .. } => "suspended",
            Phase::Closing { .. } => "closing",
            Phase::Ended(End::Done) => "done",
            Phase::Ended(End::Cancelled) => "cancelled",
            Phase::Ended(End::Failed(_)) => "failed",
        }
    }

    /// How the job ended, if it did.
    pub fn end(&self) -> Option<&End> {
        match self {
            Phase::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Whether a cancellation still undoes the batch at hand. From the fence on it takes effect after the
    /// batch.
    pub fn is_before_fence(&self) -> bool {
        matches!(
            self,
            Phase::Queued
                | Phase::Preparing { .. }
                | Phase::Attaching
                | Phase::Snapshotting
                | Phase::Streaming(_)
                | Phase::Pausing
                | Phase::Draining
                | Phase::Comparing
        )
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
