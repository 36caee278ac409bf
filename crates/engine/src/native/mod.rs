//! The atomic slot migration that some servers have built in, driven and watched from outside.
//!
//! Two servers have one, and they are driven from opposite ends (each command is one of `CLUSTER`):
//!
//! | | [`NativeKind::Valkey9`] | [`NativeKind::Redis84`] |
//! |---|---|---|
//! | starts on | the source: `MIGRATESLOTS SLOTSRANGE s e … NODE id` | the target: `MIGRATION IMPORT s e …` |
//! | is reported by | `GETSLOTMIGRATIONS` on both nodes | `MIGRATION STATUS ALL` on both nodes |
//! | is cancelled by | `CANCELSLOTMIGRATIONS`: *all* exports of the node | `MIGRATION CANCEL ID id` |
//! | several at once | yes | one a node |
//! | after a failure | gives up for good | tries again every second until it is cancelled |
//!
//! [`NativeMigration`] speaks both in the same words; [`run`] queues one, watches it, tries again what is
//! worth trying again, cancels on request, and checks at the end that both nodes name the same owner.
//! Whatever the outcome, the server either moved all slots or none: nothing has to be rolled back here.
//!
//! Neither moves functions, compares what it moved, or slows writers down; both refuse while any slot of
//! either node is marked IMPORTING or MIGRATING by hand.

mod entry;
mod failure;
mod migration;
mod run;

use std::fmt;
use std::time::Duration;

use whimbrel_core::node::NodeId;

use crate::endpoint::Address;
use crate::error::{Code, Result, ServerError};
use crate::link::Link;

pub use failure::NativeFailure;
pub use migration::{NativeCancel, NativeFound, NativeMigration, NativeOwner};
pub use run::{NativeOptions, NativeReport, run};

/// Which built-in migration a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NativeKind {
    /// `CLUSTER MIGRATESLOTS`, as Valkey has it since 9.0.
    Valkey9,
    /// `CLUSTER MIGRATION IMPORT`, as Redis has it since 8.4.
    Redis84,
}

impl NativeKind {
    /// The command that starts it, for messages.
    pub const fn command(self) -> &'static str {
        match self {
            NativeKind::Valkey9 => "CLUSTER MIGRATESLOTS",
            NativeKind::Redis84 => "CLUSTER MIGRATION IMPORT",
        }
    }

    /// Whether servers that have it hide keys of slots that a node does not own, so that nobody else can
    /// remove them.
    pub const fn hides_keys(self) -> bool {
        matches!(self, NativeKind::Redis84)
    }
}

impl fmt::Display for NativeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.command())
    }
}

/// Whether a server has a migration of its own that we may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeSupport {
    /// It has, and this user may start, watch and cancel it.
    Present(NativeKind),
    /// It has not, or this user may not use it.
    Absent {
        /// Why, for the plan that is shown to the user.
        reason: String,
    },
}

impl NativeSupport {
    /// Asks a server by trying its commands, in forms that change nothing.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn find(link: &mut Link) -> Result<NativeSupport> {
        let mut forbidden = None;
        for (kind, list, others) in PROBES {
            let reply = link.ask(list).await?;
            match ServerError::of(&reply) {
                None if reply.as_items().is_some() => {}
                None => continue,
                Some(e) => {
                    if e.code == Code::NoPermission {
                        forbidden = Some(e.text);
                    }
                    continue;
                }
            }
            for command in others {
                if let Some(e) = link.may_run(command).await? {
                    return Ok(NativeSupport::Absent { reason: e.text });
                }
            }
            return Ok(NativeSupport::Present(kind));
        }
        let reason =
            forbidden.unwrap_or_else(|| "the server has no atomic slot migration of its own".to_owned());
        Ok(NativeSupport::Absent { reason })
    }

    /// The kind, where there is one.
    pub fn kind(&self) -> Option<NativeKind> {
        match self {
            NativeSupport::Present(kind) => Some(*kind),
            NativeSupport::Absent { .. } => None,
        }
    }
}

/// A command of short arguments.
type Command = &'static [&'static [u8]];

/// For each kind the command that lists its migrations, and the others it takes, with arguments that they
/// refuse: an ACL is asked before the command looks at them.
const PROBES: [(NativeKind, Command, &[Command]); 2] = [
    (
        NativeKind::Valkey9,
        &[b"CLUSTER", b"GETSLOTMIGRATIONS"],
        // `CANCELSLOTMIGRATIONS` takes no arguments and would cancel: one too many is refused before the ACL
        // is asked, so that command is not tried. Nobody allows the one and forbids the other.
        &[&[b"CLUSTER", b"MIGRATESLOTS", b"?", b"?"]],
    ),
    (
        NativeKind::Redis84,
        &[b"CLUSTER", b"MIGRATION", b"STATUS", b"ALL"],
        &[&[b"CLUSTER", b"MIGRATION", b"IMPORT", b"?"]],
    ),
];

/// One of the two nodes of a migration: its name and where to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name in the cluster.
    pub id: NodeId,
    /// Where to connect to, the address map applied.
    pub address: Address,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id.short(), self.address)
    }
}

/// How far a native migration is, in the words of our own migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
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
    /// The server does not list it any more: whether it succeeded is told by who owns the slots.
    Lost,
}

impl NativePhase {
    /// True where the server does nothing more about it.
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

/// A native migration at one moment, as its server tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NativeState {
    /// How far it is, in our words.
    pub phase: NativePhase,
    /// How far it is, in the server's words; empty before it has started.
    pub raw: String,
    /// What the server says about it, or the other node where that one knows more: why it failed, why it was
    /// tried again. At most 300 bytes.
    pub message: String,
    /// The server's name for it: 40 hexadecimal digits.
    pub name: String,
    /// Which try of ours this is, from 1 on; 0 before the first.
    pub attempt: u32,
    /// How often the server itself has tried again.
    pub server_retries: u32,
    /// Bytes that wait to be sent, where the server tells (Valkey 9.1).
    pub remaining_bytes: Option<u64>,
    /// Bytes copied by the kernel because pages changed under the snapshot, where the server tells (Valkey).
    pub cow_bytes: Option<u64>,
    /// When the server's job began, in milliseconds of Unix time. Valkey tells whole seconds.
    pub created_ms: Option<u64>,
    /// When the server last changed it, likewise (Valkey).
    pub updated_ms: Option<u64>,
    /// When the other node was last heard of, likewise (Valkey).
    pub acked_ms: Option<u64>,
    /// How long writes were paused, where the server tells (Redis, once it is done).
    pub pause_ms: Option<u64>,
}

/// How long to sleep after a look that took `took`: servers list up to 1,000 old migrations, and looking must
/// not become their main work.
fn nap(poll_ms: u64, took: Duration) -> Duration {
    Duration::from_millis(poll_ms).max(took * 4)
}
