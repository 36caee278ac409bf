//! What there is to know before a migration.

use serde::Serialize;
use whimbrel_engine::error::Side;
use whimbrel_engine::inventory::WritesRefused;
use whimbrel_engine::nodes::NoAnswer;
use whimbrel_engine::remedy::Remedy;

use super::ways::WayKind;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing can begin before it is dealt with.
    Blocks,
    /// The user should think of it.
    Warns,
    /// Good to know.
    Notes,
}

/// One thing to know.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields are named for what they are, with their units")]
pub enum Finding {
    /// A copy would be refused.
    CopyRefused {
        problem: String,
        #[serde(skip)]
        remedy: Option<Remedy>,
    },
    /// No feed is available: the source cannot be followed.
    NoFeed { replication: Option<String>, tracking: Option<String>, notifications: Option<String> },
    /// The feed does not see everything: replication is not available.
    TrackingOnly { why: String, streams: u64 },
    /// The feed does not see everything: neither replication nor tracking is available.
    NotificationsOnly { why: String, streams: u64 },
    /// A fence of this kind cannot be put up.
    FenceRefused { way: WayKind, problem: String },
    /// No fence can be put up: another party has to stop the writers.
    NoFence,
    /// A node does not answer.
    Silent { side: Side, at: String, primary: bool, why: NoAnswer },
    /// A node of a cluster serves no requests.
    ClusterDown { side: Side, at: String },
    /// Slots without an owner.
    Unowned { side: Side, slots: usize },
    /// Slots on the move.
    OpenSlots { side: Side, slots: usize },
    /// Something else is wrong among the nodes of a cluster.
    Disorder { side: Side, problem: String },
    /// A server still loads its data set.
    Loading { side: Side, at: String },
    /// A server refuses writes.
    WritesRefused { side: Side, at: String, why: WritesRefused },
    /// A replica does not hear from its primary.
    ReplicaLinkDown { side: Side, at: String },
    /// The source, or the target, is a replica.
    IsReplica { side: Side, at: String },
    /// The target has less room than the source has data.
    TargetTooSmall { needed_bytes: u64, free_bytes: u64 },
    /// A server removes keys by itself when it is full.
    Evicts { side: Side, at: String, policy: String, evicted: u64 },
    /// The target has keys already.
    TargetHasKeys { keys: u64 },
    /// Databases that the target does not have.
    Databases { dbs: Vec<u32>, target_has: u64 },
    /// Types that the target cannot hold.
    Types { types: Vec<String>, keys: u64 },
    /// Modules that the target lacks.
    Modules { modules: Vec<String> },
    /// Fields of hashes that expire, which the target does not know.
    FieldExpiries { hashes: u64 },
    /// Values that are longer than the target takes.
    TooLong { bytes: u64, most_bytes: u64 },
    /// Commands that clients use and the target lacks.
    CommandsLacking { commands: Vec<String> },
    /// Commands that name several keys, which have to be in one slot of the target.
    CrossSlot { commands: Vec<String> },
    /// Commands about all keys, or other databases, which mean something else in a cluster.
    WholeServer { commands: Vec<String> },
    /// Libraries of functions.
    Functions { libraries: usize, supported: bool },
    /// Scripts that clients call by their digests.
    Scripts { scripts: u64 },
    /// ACL users that the target lacks.
    Users { users: Vec<String> },
    /// Clocks that differ.
    Clocks { apart_ms: i64 },
    /// The backlog is soon overwritten: a link that breaks for longer means that all is copied again.
    Backlog { at: String, bytes: u64, lasts_ms: u64 },
    /// The server drops replicas early that read slowly.
    ReplicaBuffer { at: String, bytes: u64 },
    /// Keys that move in chunks.
    LargeKeys { keys: u64, largest: String, bytes: u64 },
    /// A slot that has much of all.
    HotSlot { slot: u16, percent: u32 },
    /// Hardly any room for further clients.
    Clients { side: Side, at: String, clients: u64, most: u64 },
    /// Clients that wait in a command.
    Blocked { clients: u64 },
    /// Channels, whose messages are not carried over.
    Channels { channels: u64 },
    /// A setting that differs.
    Setting { name: String, source: String, target: String },
    /// Sentinels watch the server.
    Sentinels { side: Side, sentinels: u64 },
    /// The target writes nothing to disk.
    NotPersistent,
    /// The source has replicas and the target has none.
    NoReplicas,
    /// Clients write more than can be carried over.
    Outrun { writes_per_second: u64, carried_per_second: u64 },
}

impl Finding {
    /// How much it matters.
    pub fn severity(&self) -> Severity {
        match self {
            Finding::CopyRefused { .. }
            | Finding::NoFeed { .. }
            | Finding::Silent { primary: true, .. }
            | Finding::ClusterDown { .. }
            | Finding::Unowned { .. }
            | Finding::Loading { .. }
            | Finding::WritesRefused { .. }
            | Finding::IsReplica { side: Side::Target, .. }
            | Finding::TargetTooSmall { .. }
            | Finding::Databases { .. }
            | Finding::Types { .. }
            | Finding::FieldExpiries { .. }
            | Finding::TooLong { .. }
            | Finding::Outrun { .. } => Severity::Blocks,
            Finding::TrackingOnly { .. }
            | Finding::NotificationsOnly { .. }
            | Finding::NoFence
            | Finding::Silent { .. }
            | Finding::OpenSlots { .. }
            | Finding::Disorder { .. }
            | Finding::ReplicaLinkDown { .. }
            | Finding::IsReplica { .. }
            | Finding::Evicts { .. }
            | Finding::TargetHasKeys { .. }
            | Finding::Modules { .. }
            | Finding::CommandsLacking { .. }
            | Finding::CrossSlot { .. }
            | Finding::WholeServer { .. }
            | Finding::Functions { supported: false, .. }
            | Finding::Users { .. }
            | Finding::Clocks { .. }
            | Finding::Backlog { .. }
            | Finding::HotSlot { .. }
            | Finding::Clients { .. }
            | Finding::Sentinels { .. } => Severity::Warns,
            Finding::FenceRefused { .. }
            | Finding::Functions { .. }
            | Finding::Scripts { .. }
            | Finding::ReplicaBuffer { .. }
            | Finding::LargeKeys { .. }
            | Finding::Blocked { .. }
            | Finding::Channels { .. }
            | Finding::Setting { .. }
            | Finding::NotPersistent
            | Finding::NoReplicas => Severity::Notes,
        }
    }
}
