//! The effects that the machine asks for, and the events that it handles.

use serde::{Deserialize, Serialize};

use super::verify::Verify;
use crate::node::NodeId;
use crate::slot::SlotSet;

/// One thing to do on the cluster for the batch at hand.
///
/// At most one effect of a job is in flight. It survives a restart as a part of the [`Job`](super::Job);
/// whether it was executed is then not known, which is why [`Event::Resume`] never sends it again without
/// [observing](Action::Observe).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Effect {
    /// The primary that gives the slots away.
    pub source: NodeId,
    /// The primary that gets them.
    pub target: NodeId,
    /// The slots of the batch at hand; empty only for [`Action::Detach`] at the end of a job.
    #[serde(with = "super::slots")]
    pub slots: SlotSet,
    /// What to do.
    pub action: Action,
}

/// What to do with the slots of an [`Effect`].
///
/// Each is set by [`step`](super::step) only. The comments say what the executor must have reached when it
/// answers [`Outcome::Done`], and with which [`Detail`]; without one it is [`Detail::Nothing`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Look, change nothing. Done with [`Detail::Checked`] if both nodes are primaries, the source owns all
    /// the slots, no node has any of them marked as importing or migrating, no other migration has either
    /// node, and the target holds no key in them. The last one matters: such a key would come alive with the
    /// takeover, and [`Action::Wipe`] would delete it.
    Check,

    /// Mark the slots on the target as importing from the source. Done when all are.
    MarkImporting,

    /// Have a feed on the source record changes in these slots from now on: attach one if there is none (or
    /// if it broke), else give it the slots. It stays attached from batch to batch.
    Attach,

    /// Copy every key of the slots to the target, while the feed records what changes. Done with
    /// [`Detail::Moved`].
    Snapshot,

    /// Copy once more what the feed recorded. Done with [`Detail::CaughtUp`] after one round; the machine
    /// decides whether another follows.
    CatchUp {
        /// For which share of the time writes to the source are to be paused, by short pauses that are each
        /// within the rules' longest pause. 0: not at all.
        brake_percent: u8,
    },

    /// Give the target an epoch above all others, so that its later claim is believed; then stop writes on
    /// the source for at most `pause_ms`. Done with the pause on. Nothing survives a restart of the executor
    /// but the pause itself, which ends by itself.
    Pause {
        /// How long the source may pause writes, counted from before the command is sent.
        pause_ms: u64,
    },

    /// Under the pause: wait until the feed has reached the source's offset, copy the last touched keys, and
    /// wait until *all* replicas of the target have acknowledged what was staged: the source's copies go away
    /// soon after the takeover, and the target may fail over before. Done with [`Detail::Moved`], and only if
    /// so; too long for the pause is [`Why::TooSlow`].
    Drain {
        /// How long to wait for the target's replicas at most.
        replica_wait_ms: u64,
    },

    /// Under the pause: compare the slots on both sides. Done with [`Detail::Compared`] if they are equal; a
    /// difference is [`Why::Differs`].
    Compare {
        /// How thoroughly.
        verify: Verify,
    },

    /// Make the source refuse writes to the slots permanently, or for so long that the takeover and its news
    /// fit in, and find out in the same transaction whether a write slipped in since [`Action::Drain`]. Done
    /// with [`Detail::Fenced`].
    ///
    /// If a target takes slots by itself when their owner stops claiming them, its marks must be cleared
    /// *before* the fence: else it takes them even if a write slipped in.
    Fence,

    /// Make the target claim the slots, with an epoch above the source's, and broadcast it. Safe to repeat.
    /// Done when the target owns all of them in its own view.
    ///
    /// Must be sent within `guard_ms` of the reply to the [`Action::Fence`] or [`Action::Observe`] before it;
    /// after that it is [`Why::TooLate`] without a try. A failover of the source takes longer, and would
    /// make the knowledge wrong that the source is fenced.
    TakeOver {
        /// How old the knowledge that the source is fenced may be.
        guard_ms: u64,
    },

    /// Lift the pause as soon as the source does not own the slots in its own view, and make sure that it
    /// comes to that. Before the source is made to give them up, the target must have said that it owns them
    /// ([`Why::OwnerChanged`] or [`Why::TargetChanged`] if not): a claim that died with its target must not
    /// leave them without an owner. Safe to repeat. Done with [`Detail::Released`], never while the source
    /// would accept a write to them.
    Release,

    /// Wait until both nodes and their replicas show the target as the owner of the slots, and all other
    /// primaries as the owner of those in `everywhere`. Changes nothing. Not yet is [`Why::Transient`].
    Confirm {
        /// All slots that were handed over, with the last batch; nothing before: what a client hears from a
        /// node that has not heard yet leads it to the source, which knows. So a job does not ask every node
        /// after every batch.
        #[serde(with = "super::slots")]
        everywhere: SlotSet,
    },

    /// Delete the keys that the source still holds in these slots, paced, on its replicas as well. Safe to
    /// repeat. Done with [`Detail::Moved`] (of what was deleted) when none is left.
    CleanUp,

    /// Lift the write pause on the source. Safe if there is none. Done with [`Detail::Released`].
    LiftPause,

    /// Delete every staged key in the slots from the target and its replicas. Safe to repeat. Must be refused
    /// with [`Why::OwnerChanged`] if the target owns any of the slots: then they are no staged keys. Done
    /// with [`Detail::Moved`] (of what was deleted).
    Wipe,

    /// Clear the marks of the slots on the target. Safe to repeat.
    ClearMarks,

    /// End the feed, if there is one.
    Detach,

    /// Undo a fence: clear the target's marks *first* (a target that is importing may take slots by itself),
    /// make sure that it does not own any of the slots ([`Why::OwnerChanged`] if it does), then have the
    /// source own all of them, then lift the pause. Safe to repeat. Done when the source owns all of them in
    /// its own view.
    GiveBack,

    /// Find out what is true. Before it answers, the executor makes sure that nothing sent earlier on behalf
    /// of this job, by this or by an earlier process, can still be executed by either node: connections of
    /// the job are killed on the server. Done with [`Detail::Observed`].
    Observe {
        /// How long to wait before looking.
        after_ms: u64,
    },
}

impl Action {
    /// What to call it in messages and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Check => "check",
            Action::MarkImporting => "mark-importing",
            Action::Attach => "attach",
            Action::Snapshot => "snapshot",
            Action::CatchUp { .. } => "catch-up",
            Action::Pause { .. } => "pause",
            Action::Drain { .. } => "drain",
            Action::Compare { .. } => "compare",
            Action::Fence => "fence",
            Action::TakeOver { .. } => "take-over",
            Action::Release => "release",
            Action::Confirm { .. } => "confirm",
            Action::CleanUp => "clean-up",
            Action::LiftPause => "lift-pause",
            Action::Wipe => "wipe",
            Action::ClearMarks => "clear-marks",
            Action::Detach => "detach",
            Action::GiveBack => "give-back",
            Action::Observe { .. } => "observe",
        }
    }

    /// Whether the executor may break off when the job is to be cancelled, and answer [`Why::Interrupted`].
    /// These can take long and leave nothing behind that a rollback does not undo.
    pub fn may_be_interrupted(&self) -> bool {
        matches!(
            self,
            Action::Check
                | Action::MarkImporting
                | Action::Attach
                | Action::Snapshot
                | Action::CatchUp { .. }
                | Action::Pause { .. }
                | Action::Drain { .. }
                | Action::Compare { .. }
        )
    }
}

/// What happens to a job. Events come from its one executor, one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The job's turn has come.
    Start,
    /// The job was read from a journal, or is suspended, and is to go on. Whatever was in flight may or may
    /// not have been executed.
    Resume,
    /// The user wants the job to end: before the fence of a batch with a rollback, later after the batch.
    Cancel,
    /// The user waits no longer for what a suspended job waits for. It ends as failed, if its slots are still
    /// the source's; behind a fence it is not accepted.
    Abandon,
    /// An effect came to an end.
    Finished {
        /// The effect, as it was given.
        effect: Effect,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How an effect ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// What the [`Action`] says of being done is reached.
    Done(Detail),
    /// The effect did not happen, or not completely, for a reason that is known. Of a fence, a takeover and
    /// giving back it must be certain that they did not happen and will not: the server said so, or nothing
    /// was sent. Staging may have happened in part, since that is wiped.
    Refused(Reason),
    /// It is not known whether it happened, nor whether it still will: a timeout, a cut link. The machine
    /// observes. Always right for a link that broke after something was sent that changes anything.
    Unknown {
        /// What went wrong, for people.
        message: String,
    },
}

impl Outcome {
    /// Whether it can be of this action.
    pub(super) fn fits(&self, action: &Action) -> bool {
        let Outcome::Done(detail) = self else { return true };
        match action {
            Action::Check => matches!(detail, Detail::Checked { .. }),
            Action::Snapshot | Action::Drain { .. } | Action::CleanUp | Action::Wipe => {
                matches!(detail, Detail::Moved { .. })
            }
            Action::CatchUp { .. } => matches!(detail, Detail::CaughtUp { .. }),
            Action::Pause { .. } => matches!(detail, Detail::Paused { .. }),
            Action::Compare { .. } => matches!(detail, Detail::Compared { .. }),
            Action::Fence => matches!(detail, Detail::Fenced { .. }),
            Action::Release | Action::LiftPause => matches!(detail, Detail::Released { .. }),
            Action::Observe { .. } => matches!(detail, Detail::Observed(_)),
            Action::MarkImporting
            | Action::Attach
            | Action::TakeOver { .. }
            | Action::Confirm { .. }
            | Action::ClearMarks
            | Action::Detach
            | Action::GiveBack => matches!(detail, Detail::Nothing),
        }
    }
}

/// What [`Outcome::Done`] brings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Detail {
    /// Nothing to add.
    Nothing,
    /// Of [`Action::Check`].
    Checked {
        /// The process behind the source.
        source: Process,
        /// The process behind the target.
        target: Process,
        /// How long a pause the handover takes at least, without writers, in milliseconds: round trips,
        /// counting, what the source does in one go. 0 if it was not measured.
        pause_ms: u64,
    },
    /// Of [`Action::Snapshot`], [`Action::Drain`], [`Action::CleanUp`] and [`Action::Wipe`].
    Moved {
        /// How many keys were copied (or deleted).
        keys: u64,
        /// How many bytes that were, as transferred; 0 if they are not counted.
        bytes: u64,
    },
    /// Of [`Action::CatchUp`].
    CaughtUp {
        /// How many keys were copied in this round.
        keys: u64,
        /// How many bytes that were, as transferred.
        bytes: u64,
        /// How many touched keys wait now.
        left: u64,
        /// How long it would take, under a pause, to drain what is left, to wait for the target's replicas
        /// and to compare, as far as that can be known from what was seen.
        drain_ms: u64,
        /// What of that does not depend on how many keys wait: `pause_ms`, and the round trips of a transfer
        /// if any wait.
        fixed_ms: u64,
        /// As in [`Detail::Checked`].
        pause_ms: u64,
    },
    /// Of [`Action::Pause`].
    Paused {
        /// Whether the next [`Action::Fence`] takes over as well, and does either only if nothing was written
        /// since the drain. Then slots that the source has given up lack no write, whatever became of the
        /// executor: they can be taken over. And they cannot be given back if the target was replaced, since
        /// it may have owned them.
        takes_over: bool,
    },
    /// Of [`Action::Compare`].
    Compared {
        /// How many keys were compared by value.
        keys: u64,
    },
    /// Of [`Action::Fence`].
    Fenced {
        /// Whether nothing was written since the drain. If not, the batch is given back and caught up once
        /// more.
        held: bool,
    },
    /// Of [`Action::Release`] and [`Action::LiftPause`].
    Released {
        /// How long writes were paused, by the executor's clock; 0 if it knows of no pause.
        paused_ms: u64,
    },
    /// Of [`Action::Observe`].
    Observed(Box<Observation>),
}

/// What both sides say about the slots of the batch at hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Observation {
    /// The shard that gives the slots away.
    pub source: Seen,
    /// The shard that gets them.
    pub target: Seen,
    /// Those that belong to a third shard, by the word of one of the two: they were moved on since.
    #[serde(with = "super::slots")]
    pub elsewhere: SlotSet,
}

/// What one side says. After a failover the side is the same shard with another primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Seen {
    /// The shard has a primary, and it answered.
    Primary(Primary),
    /// No node of the shard answered as its primary. A failover may be under way.
    Unreachable,
}

/// What the primary of a shard says about the slots of the batch at hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Primary {
    /// The present primary.
    pub node: NodeId,
    /// Its process.
    pub process: Process,
    /// Which of the batch's slots it owns in its own view.
    #[serde(with = "super::slots")]
    pub claims: SlotSet,
    /// How many keys it holds in the batch's slots.
    pub keys: u64,
}

/// Distinguishes the processes of a server: the `run_id` of `INFO server`.
///
/// A node that restarts keeps its [`NodeId`] but is another process: pauses are gone, and so may be keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process(pub String);

/// Why something was refused, or why a job failed, was suspended or starts a batch again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reason {
    /// What it means for the job.
    pub why: Why,
    /// What happened, for people; no passwords, no values.
    pub message: String,
}

impl Reason {
    /// A reason with its message.
    pub fn new(why: Why, message: impl Into<String>) -> Reason {
        Reason { why, message: message.into() }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// The kinds of [`Reason`], each with its consequence before the fence, where the batch is undone after a
/// look at what is true. From the fence on, every refusal leads to [`Action::Observe`], and what is true
/// decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Why {
    /// May work the next time (a dropped link, a server that is loading): the batch again.
    Transient,
    /// Will not work the next time either: rollback, failed.
    Permanent,
    /// A command is not permitted: rollback, failed.
    Forbidden,
    /// Another migration, ours or not, has one of the nodes or slots, or left keys behind: failed, without
    /// touching what is not ours if found by the check, else after a rollback.
    Busy,
    /// The source does not own the slots, or the target already does: the batch again.
    OwnerChanged,
    /// The source is no primary any more, or another process, or does not answer: the batch again, with the
    /// present primary.
    SourceChanged,
    /// The target is no primary any more, or another process, or does not answer: the batch again, with the
    /// present primary.
    TargetChanged,
    /// The feed lost changes: the batch again.
    FeedLost,
    /// All keys of the source or of the target were flushed: the batch again.
    Flushed,
    /// The target has no memory for the keys: rollback, failed.
    OutOfMemory,
    /// Source and target differ after the drain: rollback, failed.
    Differs,
    /// A value is so large that it cannot be moved within the longest pause: rollback, failed.
    TooLarge,
    /// The drain or the comparison does not fit into the pause, or the pause ran out: more catching up, at
    /// once, so nothing may be on its way any more; after some tries rollback, failed.
    TooSlow,
    /// No handover of the batch fits into the longest pause, even without writers: failed before anything is
    /// staged, or after a rollback. Set by the machine, and by a check.
    PauseTooShort,
    /// Writers outrun the catch-up: rollback, failed. Found by the machine, too.
    NotConverging,
    /// Too much time went by since the knowledge that the effect relies on. Of a takeover only.
    TooLate,
    /// The executor broke off because the job is to be cancelled: rollback, cancelled.
    Interrupted,
    /// An outcome that never became known. Set by the machine.
    Unknown,
    /// A shard has no primary that answers. Set by the machine.
    Unreachable,
    /// The target restarted after the takeover with fewer keys than the source still holds. Set by the
    /// machine.
    DataInDoubt,
    /// The executor's process ended while the batch was at hand. Set by the machine.
    Restarted,
}

impl Why {
    /// The word for it in machine-readable reports.
    pub fn name(self) -> &'static str {
        match self {
            Why::Transient => "transient",
            Why::Permanent => "permanent",
            Why::Forbidden => "forbidden",
            Why::Busy => "busy",
            Why::OwnerChanged => "owner-changed",
            Why::SourceChanged => "source-changed",
            Why::TargetChanged => "target-changed",
            Why::FeedLost => "feed-lost",
            Why::Flushed => "flushed",
            Why::OutOfMemory => "out-of-memory",
            Why::Differs => "differs",
            Why::TooLarge => "too-large",
            Why::TooSlow => "too-slow",
            Why::PauseTooShort => "pause-too-short",
            Why::NotConverging => "not-converging",
            Why::TooLate => "too-late",
            Why::Interrupted => "interrupted",
            Why::Unknown => "unknown",
            Why::Unreachable => "unreachable",
            Why::DataInDoubt => "data-in-doubt",
            Why::Restarted => "restarted",
        }
    }
}

/// Why [`step`](super::step) did not accept an event. The job is unchanged then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// The event makes no sense in the job's phase.
    #[error("a job that is {phase} cannot be {event}")]
    OutOfPhase {
        /// The name of the phase.
        phase: &'static str,
        /// What was to happen: `started`, `resumed`, `cancelled`.
        event: &'static str,
    },
    /// An effect finished that is not in flight.
    #[error("{finished} finished, but {in_flight} is in flight")]
    NotInFlight {
        /// The name of what finished.
        finished: &'static str,
        /// The name of what is in flight, or `nothing`.
        in_flight: &'static str,
    },
    /// A detail that does not belong to the effect.
    #[error("the outcome of {finished} has a detail of another effect")]
    WrongDetail {
        /// The name of what finished.
        finished: &'static str,
    },
}
