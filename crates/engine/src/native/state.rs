//! How far a native migration is.

use std::fmt;

/// How far a native migration is, in the words of our own migrations. What comes later is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum NativePhase {
    /// Waits for its turn, or for the next try after a failure.
    #[default]
    Queued,
    /// The two nodes connect to each other, log in, and agree on the slots.
    Attaching,
    /// The source forks and sends what the slots hold.
    Snapshotting,
    /// The source sends what is written meanwhile. Also while it waits for a moment to pause writes.
    Streaming,
    /// Writes to the source are paused; the target takes in the rest.
    Draining,
    /// The target takes the slots.
    TakingOver,
    /// The target has the slots; both nodes are asked until they agree.
    Confirming,
    /// Both nodes agree that the target owns the slots.
    Done,
    /// It ended without moving a slot.
    Failed,
    /// It was cancelled and moved no slot.
    Cancelled,
    /// The server does not list it any more: whether it succeeded is shown by the owner of the slots.
    Lost,
}

impl NativePhase {
    /// True if the server does nothing more about it.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            NativePhase::Confirming
                | NativePhase::Done
                | NativePhase::Failed
                | NativePhase::Cancelled
                | NativePhase::Lost
        )
    }
}

impl fmt::Display for NativePhase {
    /// In the words of our own phases: `snapshotting`, `taking-over`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            NativePhase::Queued => "queued",
            NativePhase::Attaching => "attaching",
            NativePhase::Snapshotting => "snapshotting",
            NativePhase::Streaming => "streaming",
            NativePhase::Draining => "draining",
            NativePhase::TakingOver => "taking-over",
            NativePhase::Confirming => "confirming",
            NativePhase::Done => "done",
            NativePhase::Failed => "failed",
            NativePhase::Cancelled => "cancelled",
            NativePhase::Lost => "lost",
        })
    }
}

/// A native migration at one moment, as its server reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NativeState {
    /// How far it is, in our words.
    pub phase: NativePhase,
    /// How far it is, in the server's words; empty before it has started.
    pub raw: String,
    /// What the server says about it, or the other node if that node knows more: why it failed, why it was
    /// tried again. At most 300 bytes.
    pub message: String,
    /// The server's name for it: 40 hexadecimal digits.
    pub name: String,
    /// Which try of ours this is, from 1 on; 0 before the first.
    pub attempt: u32,
    /// How often the server itself has tried again.
    pub server_retries: u32,
    /// Bytes that wait to be sent, if the server reports them (Valkey 9.1).
    pub remaining_bytes: Option<u64>,
    /// Bytes copied by the kernel because pages changed under the snapshot, if the server reports them
    /// (Valkey).
    pub cow_bytes: Option<u64>,
    /// When the server's job began, in milliseconds of Unix time. Valkey reports whole seconds.
    pub created_ms: Option<u64>,
    /// When the server last changed it, likewise (Valkey).
    pub updated_ms: Option<u64>,
    /// When the other node was last heard from, likewise (Valkey).
    pub acked_ms: Option<u64>,
    /// How long writes were paused, if the server reports it (Redis, once it is done).
    pub pause_ms: Option<u64>,
}
