//! Feeds of touched keys: what a server changes while its keys are being moved.
//!
//! A [`Feed`] follows one server in a task of its own and records which keys were touched in a [`Touched`].
//! It never carries values: the mover reads each touched key's state anew. There are three kinds,
//! tried in this order:
//!
//! - [`FeedKind::Partial`]: a replication link from the server's present offset. It costs the server nothing.
//!   It needs a backlog, which a server keeps from its first replica on; where there is none, asking for a
//!   snapshot makes one, and the question is withdrawn before the snapshot begins wherever the server waits
//!   with it (`repl-diskless-sync-delay`);
//! - [`FeedKind::Filtered`]: a replication link that starts with a snapshot without data (`rdb-filter-only`,
//!   Redis 7.0 and later): a fork, and a few hundred bytes;
//! - [`FeedKind::Tracking`]: invalidations of client-side caching, where replication is forbidden, or can
//!   only be had with all data. It has blind spots: see [`Feed::misses_consumer_groups`].
//!
//! A replication link sees everything: effects of scripts, transactions, expiries, consumer groups. The
//! server counts it as a replica: in `INFO` and `ROLE`, and for `min-replicas-to-write`. But nothing is ever
//! acknowledged to the server beyond the offset at which the feed was attached, so that `WAIT` does not take
//! it for a copy of the data. A server that is shut down in order therefore waits for it, up to
//! `shutdown-timeout`.

mod command;
mod connector;
mod limits;
mod options;
mod progress;
mod prospect;
mod stream;
mod touched;
mod tracking;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use whimbrel_core::slot::SlotSet;

pub(crate) use self::stream::NO_PORT;

use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::{Error, ErrorKind, Result, Side};

use self::connector::Connector;
pub use self::connector::FEED_CLIENT_NAME;
pub use self::limits::holdup;
pub use self::options::{FeedKind, FeedOptions};
pub use self::progress::{FeedFailure, History};
use self::progress::{Progress, Shared};
pub use self::prospect::{Prospect, prospect};
pub use self::touched::{Collection, Elements, Touch, Touched, TouchedLimits, What};
use self::tracking::Barrier;

/// Whether a command of this name, as `CLIENT LIST` writes it, can write: by itself, or since it carries out
/// others. Servers before Redis 7.0 do not name subcommands.
pub fn may_write(command: &str) -> bool {
    let command = command.to_ascii_uppercase();
    let (name, subcommand) = command.split_once('|').unwrap_or((&command, ""));
    match name {
        "EXEC" => true,
        // The others change who owns what, or tell it.
        "CLUSTER" => subcommand == "FLUSHSLOT",
        "FUNCTION" => !["LIST", "DUMP", "STATS"].contains(&subcommand),
        name => command::writes(name.as_bytes()),
    }
}

fn attach_timeout(deployment: &Deployment, address: &Address, options: FeedOptions) -> Error {
    let kind = ErrorKind::Timeout(options.attach_timeout_ms);
    Error::new(deployment.side(), address.to_string(), "attach a feed of changes", kind)
        .with_remedy("see whether the server is busy with a snapshot for a replica")
}

/// How many barriers may wait at once.
const BARRIERS_MAX: usize = 64;

/// Follows the changes of one server. The task behind it ends when this is dropped.
#[derive(Debug)]
pub struct Feed {
    kind: FeedKind,
    side: Side,
    address: Address,
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    /// Of a tracking feed.
    barriers: Option<mpsc::Sender<Barrier>>,
    task: JoinHandle<()>,
}

impl Feed {
    /// Attaches to the server at `address` and records touches of keys in `slots` from this moment on: every
    /// change that the server acknowledges after this returns will be seen.
    ///
    /// # Errors
    /// As [`Link::open`](crate::link::Link::open) and [`Link::call`](crate::link::Link::call); `Unfit` where
    /// no kind of feed can be had; `Timeout`.
    pub async fn attach(
        deployment: &Deployment,
        address: &Address,
        slots: SlotSet,
        options: FeedOptions,
    ) -> Result<Feed> {
        let place = Connector::of(deployment, address);
        let limit = Duration::from_millis(options.attach_timeout_ms);
        let attached =
            timeout(limit, Feed::start(deployment, place, Shared::new(slots, options), options)).await;
        attached.unwrap_or_else(|_| Err(attach_timeout(deployment, address, options)))
    }

    /// Attaches to the server at `address` and records touches from a point of its history on: what came
    /// after `from` will be seen, however long ago it was. `None` where the server does not have all of that
    /// any more.
    ///
    /// # Errors
    /// As [`Feed::attach`].
    pub async fn attach_at(
        deployment: &Deployment,
        address: &Address,
        slots: SlotSet,
        options: FeedOptions,
        from: &History,
    ) -> Result<Option<Feed>> {
        let place = Connector::of(deployment, address);
        let shared = Shared::new(slots, options);
        let limit = Duration::from_millis(options.attach_timeout_ms);
        let attached = timeout(limit, stream::attach_at(deployment, &place, &shared, options, from)).await;
        let stream = attached.unwrap_or_else(|_| Err(attach_timeout(deployment, address, options)))?;
        Ok(stream.map(|stream| Feed {
            kind: stream.kind(),
            side: deployment.side(),
            address: address.clone(),
            progress: shared.progress.subscribe(),
            shared,
            barriers: None,
            task: tokio::spawn(stream.run()),
        }))
    }

    async fn start(
        deployment: &Deployment,
        place: Connector,
        shared: Arc<Shared>,
        options: FeedOptions,
    ) -> Result<Feed> {
        let (side, address) = (deployment.side(), place.address.clone());
        let mut barriers = None;
        let replication = if options.kind == Some(FeedKind::Tracking) {
            Err("another kind was asked for".to_owned())
        } else {
            stream::attach(deployment, &place, &shared, options).await?
        };
        let (kind, task) = match replication {
            Ok(stream) => (stream.kind(), tokio::spawn(stream.run())),
            Err(why) if matches!(options.kind, None | Some(FeedKind::Tracking)) => {
                tracing::info!(at = %address, %why, "no replication link: tracking instead");
                let (sender, receiver) = mpsc::channel(BARRIERS_MAX);
                let feed = tracking::attach(deployment, &place, &shared, receiver).await?;
                barriers = Some(sender);
                (FeedKind::Tracking, tokio::spawn(feed.run()))
            }
            Err(why) => {
                return Err(Error::unfit(side, address.to_string(), "attach a feed of changes", why));
            }
        };
        let progress = shared.progress.subscribe();
        Ok(Feed { kind, side, address, shared, progress, barriers, task })
    }

    /// How it learns of changes.
    pub fn kind(&self) -> FeedKind {
        self.kind
    }

    /// The server it follows.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// True for a [`FeedKind::Tracking`] feed: it does not see `XGROUP`, `XREADGROUP`, `XACK`, `XCLAIM`,
    /// `XAUTOCLAIM`, `XSETID` and `SWAPDB`, nor changes of functions. All streams have to be moved once more
    /// under the pause.
    pub fn misses_consumer_groups(&self) -> bool {
        self.kind == FeedKind::Tracking
    }

    /// What was touched.
    pub fn touched(&self) -> Arc<Touched> {
        self.shared.touched.clone()
    }

    /// The replication offset up to which everything is in [`Feed::touched`]; 0 for a tracking feed.
    pub fn offset(&self) -> u64 {
        self.progress.borrow().offset
    }

    /// The point up to which everything is in [`Feed::touched`]; `None` for a tracking feed.
    pub fn history(&self) -> Option<History> {
        let progress = self.progress.borrow();
        let history =
            || History { replid: progress.replid.clone(), offset: progress.offset, db: progress.db };
        (!progress.replid.is_empty()).then(history)
    }

    /// Waits until everything up to `offset` of the server (`master_repl_offset` of `INFO replication`) is in
    /// [`Feed::touched`]; false where that takes longer than `timeout_ms`. A tracking feed knows no offsets:
    /// there it waits until everything is recorded that the server did before this was called.
    ///
    /// # Errors
    /// `Unfit` where the feed has ended; [`Feed::failure`] has the reason.
    pub async fn reach(&self, offset: u64, timeout_ms: u64) -> Result<bool> {
        let limit = Duration::from_millis(timeout_ms);
        let reached = async {
            if let Some(barriers) = &self.barriers {
                let (done, told) = oneshot::channel();
                // Where the task has ended, the failure below tells why.
                if barriers.send(done).await.is_ok() && told.await.is_ok() {
                    return;
                }
            }
            let mut progress = self.progress.clone();
            let offset = if self.barriers.is_some() { u64::MAX } else { offset };
            // The sender lives as long as `self`.
            let _ = progress.wait_for(|p| p.failure.is_some() || p.offset >= offset).await;
        };
        let in_time = timeout(limit, reached).await.is_ok();
        match self.failure() {
            Some(failure) => Err(self.error(&failure)),
            None => Ok(in_time),
        }
    }

    /// Sets which slots are recorded from now on. Touches of other slots are forgotten.
    pub fn watch(&self, slots: SlotSet) {
        self.shared.touched.watch(slots);
    }

    /// The slots that are recorded.
    pub fn watched(&self) -> SlotSet {
        self.shared.touched.watched()
    }

    /// Why the feed has ended, where it has.
    pub fn failure(&self) -> Option<FeedFailure> {
        self.progress.borrow().failure.clone()
    }

    /// Waits until the feed ends, and says why.
    pub async fn failed(&self) -> FeedFailure {
        let mut progress = self.progress.clone();
        let failure = match progress.wait_for(|p| p.failure.is_some()).await {
            Ok(progress) => progress.failure.clone(),
            Err(_) => None,
        };
        // The sender lives as long as `self`, so there is a failure.
        failure.unwrap_or(FeedFailure::Lost { cause: "the feed was dropped".to_owned() })
    }

    /// A failure as an error.
    pub fn error(&self, failure: &FeedFailure) -> Error {
        Error::unfit(self.side, self.address.to_string(), "follow the changes", failure.to_string())
    }

    /// Bytes that the server has sent since the feed was attached.
    pub fn bytes_read(&self) -> u64 {
        self.shared.bytes_read.load(Ordering::Relaxed)
    }

    /// Why nothing is heard of the server at the moment; `None` while the link is there.
    pub fn broken(&self) -> Option<String> {
        self.shared.broken.lock().clone()
    }

    /// Why no other one could take its place yet, of one that has ended.
    pub fn is_not_replaced(&self, why: &Error) {
        self.shared.is_broken(Some(why.to_string()));
    }

    /// How often a dropped link was resumed without a gap.
    pub fn resumed(&self) -> u64 {
        self.shared.resumed.load(Ordering::Relaxed)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}
