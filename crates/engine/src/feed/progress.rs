//! How far a feed has come, and why it ended.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use whimbrel_core::slot::SlotSet;

use super::options::FeedOptions;
use super::touched::Touched;
use crate::error::Error;

/// Why a feed ended. What was touched since is unknown: keys have to be read anew, with a new feed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedFailure {
    /// The link broke, and the server no longer has what came after this offset: its backlog is too small, or
    /// it was restarted, or its data are another history.
    Gap {
        /// The last offset that was seen.
        offset: u64,
        /// Which limit of the server cut the previous link, if one did.
        cut: Option<String>,
    },
    /// The link broke and could not be made again in time.
    Lost {
        /// What the last attempt met with.
        cause: String,
    },
    /// The server is no longer a primary.
    Demoted,
    /// Another server answers at this address, with a history of its own: the address is a name or a proxy
    /// that leads to it now. Connections that were made before may still lead to the former one, and what
    /// they give is old.
    Replaced,
    /// The server has stopped reporting some changes.
    Muted {
        /// Which it leaves out, and by what setting.
        why: String,
    },
    /// The link carried something that is not understood.
    Malformed {
        /// What it was.
        cause: String,
    },
}

impl fmt::Display for FeedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeedFailure::Gap { offset, cut } => {
                write!(
                    f,
                    "changes were missed: the link broke at offset {offset} and the server cannot continue \
                     from there"
                )?;
                cut.iter().try_for_each(|cut| write!(f, "; {cut}"))
            }
            FeedFailure::Lost { cause } => write!(f, "the link broke and could not be resumed: {cause}"),
            FeedFailure::Demoted => f.write_str("the server is no longer a primary"),
            FeedFailure::Replaced => f.write_str("another server has taken over at this address"),
            FeedFailure::Muted { why } => write!(f, "the server no longer reports every change: {why}"),
            FeedFailure::Malformed { cause } => write!(f, "the link carried something unexpected: {cause}"),
        }
    }
}

impl From<Error> for FeedFailure {
    /// Of a link that cannot be resumed.
    fn from(e: Error) -> FeedFailure {
        FeedFailure::Lost { cause: e.to_string() }
    }
}

/// A point in a server's history of changes. Replicas share the history of their primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Which history: `master_replid` of `INFO replication`.
    pub replid: String,
    /// How far in it, in bytes.
    pub offset: u64,
    /// The database that the commands after it are for, until a `SELECT` names another: a stream that goes on
    /// does not say it again. `None` if it is not known.
    #[serde(default)]
    pub db: Option<u32>,
}

/// How far a feed has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The history that the offset is of; empty if it is no replication link.
    pub(super) replid: String,
    /// The offset up to which everything is in the [`Touched`].
    pub(super) offset: u64,
    /// The database of what comes after it.
    pub(super) db: Option<u32>,
    pub(super) failure: Option<FeedFailure>,
}

/// What the task and the handle of a feed share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) touched: Arc<Touched>,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) bytes_read: AtomicU64,
    pub(super) resumed: AtomicU64,
    /// Why there is no link now.
    pub(super) broken: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new(slots: SlotSet, options: FeedOptions) -> Arc<Shared> {
        Arc::new(Shared {
            touched: Arc::new(Touched::new(slots, options.limits)),
            progress: watch::Sender::new(Progress::default()),
            bytes_read: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            broken: Mutex::new(None),
        })
    }

    pub(super) fn is_broken(&self, why: Option<String>) {
        *self.broken.lock() = why;
    }

    pub(super) fn fail(&self, failure: FeedFailure) {
        tracing::warn!(%failure, "the feed has ended");
        self.is_broken(Some(failure.to_string()));
        self.progress.send_modify(|progress| progress.failure = Some(failure));
    }
}
