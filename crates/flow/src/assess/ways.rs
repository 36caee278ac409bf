//! Each way to copy, to follow and to cut over, and what stands in its way.

use std::sync::Arc;

use serde::Serialize;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::feed;
use whimbrel_engine::remedy::Remedy;
use whimbrel_engine::seal::{WriterFence, WriterFenceKind, check_rights};

use crate::copy::{self, CopyOptions};

/// A way to do a part of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WayKind {
    /// Copy keys.
    Copy,
    /// Follow the source by a replication link.
    FollowReplication,
    /// Follow the source by client-side caching.
    FollowTracking,
    /// Follow the source by keyspace notifications.
    FollowNotifications,
    /// Cut over: writers stay paused until they have found the target.
    CutoverPause,
    /// Cut over: users lose the right to write.
    CutoverAcl,
    /// Cut over: the source becomes a replica of an address where nothing listens.
    CutoverReadonlyReplica,
    /// Cut over: a front holds its clients and sends them to the target.
    CutoverFront,
    /// Cut over: another party stops the writers.
    CutoverExternal,
}

impl WayKind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [WayKind; 9] = [
        WayKind::Copy,
        WayKind::FollowReplication,
        WayKind::FollowTracking,
        WayKind::FollowNotifications,
        WayKind::CutoverAcl,
        WayKind::CutoverReadonlyReplica,
        WayKind::CutoverPause,
        WayKind::CutoverFront,
        WayKind::CutoverExternal,
    ];

    /// Whether whimbrel itself keeps writers waiting. If another party stops them, that party decides how
    /// long.
    pub fn pauses(self) -> bool {
        !matches!(self, WayKind::Copy | WayKind::CutoverExternal) && !self.follows()
    }

    /// Whether it is one to follow the source.
    pub fn follows(self) -> bool {
        matches!(self, WayKind::FollowReplication | WayKind::FollowTracking | WayKind::FollowNotifications)
    }
}

/// What is known of a way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Which.
    pub kind: WayKind,
    /// What stands in its way; `None` if nothing does.
    pub problem: Option<String>,
    /// What can be done about that.
    #[serde(skip)]
    pub remedy: Option<Remedy>,
}

impl Way {
    fn of(kind: WayKind, outcome: Result<()>) -> Way {
        let (problem, remedy) = match outcome {
            Ok(()) => (None, None),
            Err(e) => (Some(e.problem()), e.remedy.map(|remedy| *remedy)),
        };
        Way { kind, problem, remedy }
    }

    /// Whether nothing stands in its way.
    pub fn is_open(&self) -> bool {
        self.problem.is_none()
    }
}

/// Tries all of them, as far as that goes without doing anything.
pub(super) async fn all(
    source: &Arc<Deployment>,
    target: Option<&Arc<Deployment>>,
    options: &CopyOptions,
    stop: &CancellationToken,
) -> Vec<Way> {
    let mut ways = Vec::new();
    for kind in WayKind::ALL {
        let outcome = match kind {
            WayKind::Copy => copy(source, target, options, stop).await,
            WayKind::FollowReplication => follow(source, |found| found.replication).await,
            WayKind::FollowTracking => follow(source, |found| found.tracking).await,
            WayKind::FollowNotifications => follow(source, |found| found.notifications).await,
            WayKind::CutoverPause => fence(source, WriterFenceKind::Pause { limit_ms: 1 }).await,
            WayKind::CutoverAcl => fence(source, WriterFenceKind::Acl).await,
            WayKind::CutoverReadonlyReplica => fence(source, WriterFenceKind::ReadonlyReplica).await,
            // Both are up to another party.
            WayKind::CutoverFront | WayKind::CutoverExternal => Ok(()),
        };
        ways.push(Way::of(kind, outcome));
    }
    ways
}

async fn copy(
    source: &Arc<Deployment>,
    target: Option<&Arc<Deployment>>,
    options: &CopyOptions,
    stop: &CancellationToken,
) -> Result<()> {
    match target {
        // Keys that the target has are another matter.
        Some(target) => copy::plan(source, target, options, true, false, false, stop).await.map(drop),
        None => copy::check_reading(source, options.dbs.iter().map(|db| db.source)).await,
    }
}

async fn follow(source: &Deployment, why_not: fn(feed::Prospect) -> Option<String>) -> Result<()> {
    for shard in &source.topology().shards {
        if let Some(why) = why_not(feed::prospect(source, &shard.primary).await?) {
            let at = shard.primary.to_string();
            return Err(Error::unfit(source.side(), at, "attach a feed of changes", why));
        }
    }
    Ok(())
}

async fn fence(source: &Deployment, kind: WriterFenceKind) -> Result<()> {
    check_rights(source, kind).await?;
    WriterFence::plan(source, kind).await.map(drop)
}
