//! What a sync did, and what a cutover came to.

use serde::Serialize;
use whimbrel_engine::seal::{WriterFence, WriterFenceKind, WritingClient};

use crate::journal::KeyFailure;
use crate::progress::CopyCounts;

/// What a sync did.
#[derive(Debug, Clone, Serialize)]
pub struct SyncReport {
    /// All counters. Keys that were removed from the target count as `gone`.
    pub counts: CopyCounts,
    /// How long it ran.
    pub duration_ms: u64,
    /// True if it went on from a journal.
    pub resumed: bool,
    /// True if every key had been transferred at least once.
    pub snapshot_done: bool,
    /// How many slots were gone through again, repetitions included.
    pub reconciled_slots: u64,
    /// True if it ended by itself because nothing was left to transfer.
    pub caught_up: bool,
    /// The cutover, if there was one.
    pub cutover: Option<CutoverReport>,
    /// Keys that the target evicted meanwhile.
    pub evicted: u64,
    /// The first keys that are not on the target; their number is in the counters.
    pub failures: Vec<KeyFailure>,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// What a cutover came to.
#[derive(Debug, Clone, Serialize)]
pub struct CutoverReport {
    /// Nothing was done: it was only looked how it would go.
    pub dry_run: bool,
    /// How long writes would be paused, in milliseconds: estimated from what the same took without a pause.
    pub estimate_ms: u64,
    /// How long they were paused, in milliseconds, reads too if a front held clients; with `--fence pause`
    /// until they were fenced off, with `--fence external` how long no client had written when the target
    /// took over.
    pub pause_ms: u64,
    /// Touched keys that were transferred under the pause.
    pub drained: u64,
    /// Keys that were compared in full; in a dry run those of the rehearsal.
    pub compared: u64,
    /// Keys that the source held when it began.
    pub keys: u64,
    /// How likely it is that the sample would have shown a difference in one key of a hundred; `None` if all
    /// keys were compared, or no sample was.
    pub finds_one_percent: Option<f64>,
    /// What could not be found out.
    pub notices: Vec<String>,
    /// How writers of the source are kept out.
    pub fence: WriterFenceKind,
    /// Clients of the source that were disconnected: they waited in a command, were in a transaction, or
    /// watched keys.
    pub ended: u64,
    /// The target is followed back into the source from now on.
    pub reverse: bool,
    /// Writers were let in again on the target, which had been fenced off.
    pub lifted: bool,
    /// Which clients wrote last, if another party stops the writers; in a dry run, which write now.
    pub external: Option<ExternalReport>,
    /// What the front had to say that clients go through.
    pub front: Option<FrontReport>,
    /// What was run at moments of the cutover; in a dry run, what would be.
    pub hooks: Vec<HookReport>,
}

impl CutoverReport {
    /// A report with this fence; nothing else is known yet.
    pub(super) fn of(fence: &WriterFence) -> CutoverReport {
        CutoverReport {
            dry_run: false,
            estimate_ms: 0,
            pause_ms: 0,
            drained: 0,
            compared: 0,
            keys: 0,
            finds_one_percent: None,
            notices: Vec::new(),
            fence: fence.kind(),
            ended: 0,
            reverse: false,
            lifted: false,
            external: None,
            front: None,
            hooks: Vec::new(),
        }
    }

    /// Whether the sync ends with it. Without a fence it goes on following the clients that still write to
    /// the source.
    pub(super) fn is_final(&self) -> bool {
        !self.dry_run && self.fence != WriterFenceKind::None
    }
}

/// Something that was run at a moment of a cutover, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HookReport {
    /// The name of the moment.
    pub event: String,
    /// What would be run, in a dry run. It is in no report that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// How it failed, in words that follow what failed; `None` if it did not.
    pub failure: Option<String>,
}

impl HookReport {
    /// How it failed, in words that stand alone.
    pub(super) fn problem(&self) -> Option<String> {
        Some(format!("the hook of {} {}", self.event, self.failure.as_ref()?))
    }
}

/// What came of the wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExternalReport {
    /// How long it took until no client wrote, in milliseconds.
    pub waited_ms: u64,
    /// How often it began again because a client wrote during the comparison.
    pub restarts: u32,
    /// The clients that wrote last; empty if the server does not report them.
    pub clients: Vec<WritingClient>,
    /// Some of the keys that were touched last.
    pub keys: Vec<String>,
}

/// What a front had to say, and what it could not see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FrontReport {
    /// Clients that it has.
    pub clients: u64,
    /// For how long it held them, in milliseconds; 0 in a dry run.
    pub held_ms: u64,
    /// Connections to the source that are neither of its clients nor ours; `None` if that cannot be known.
    pub others: Option<u64>,
    /// Which clients wrote to the source while the target took over and for as long as we looked afterwards;
    /// `None` if none did.
    pub late: Option<ExternalReport>,
}
