//! How a feed learns of changes, and how it behaves.

use std::fmt;

use super::touched::TouchedLimits;

/// How a feed learns of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedKind {
    /// A replication link that continues from the server's backlog.
    Partial,
    /// A replication link that started with a snapshot without data.
    Filtered,
    /// Invalidations of client-side caching.
    Tracking,
    /// Keyspace notifications.
    Notifications,
}

impl FeedKind {
    /// Whether it is a replication link: only those have offsets, and see everything.
    pub fn is_replication(self) -> bool {
        matches!(self, FeedKind::Partial | FeedKind::Filtered)
    }
}

impl fmt::Display for FeedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FeedKind::Partial => "replication from the backlog",
            FeedKind::Filtered => "replication after an empty snapshot",
            FeedKind::Tracking => "tracking",
            FeedKind::Notifications => "notifications",
        })
    }
}

/// How a feed behaves.
#[derive(Debug, Clone, Copy)]
pub struct FeedOptions {
    /// Bounds of what is remembered.
    pub limits: TouchedLimits,
    /// How long to try to attach. A server that is making a snapshot for another replica lets a
    /// [`FeedKind::Filtered`] feed wait until it is done.
    pub attach_timeout_ms: u64,
    /// How long to try to resume a dropped link.
    pub resume_timeout_ms: u64,
    /// The only kind to try; if it is `None`, all of them, the best first.
    pub kind: Option<FeedKind>,
    /// Whether a feed by keyspace notifications is accepted if no other kind is available and none was named.
    /// It does not see some types of keys at all: see [`Feed::unseen_types`](super::Feed::unseen_types).
    pub notifications: bool,
}

impl Default for FeedOptions {
    fn default() -> Self {
        FeedOptions {
            limits: TouchedLimits::default(),
            attach_timeout_ms: 60_000,
            resume_timeout_ms: 15_000,
            kind: None,
            notifications: false,
        }
    }
}
