//! Feeds of touched keys: what a server changes while its keys are being moved.
//!
//! A [`Feed`] follows one server in a task of its own and records which keys were touched in a [`Touched`].
//! It never carries values: the mover reads each touched key's state anew. There are four kinds,
//! tried in this order:
//!
//! - [`FeedKind::Partial`]: a replication link from the server's present offset. It costs the server nothing.
//!   It needs a backlog, which a server keeps from its first replica on; if there is none, asking for a
//!   snapshot makes one, and the request is withdrawn before the snapshot begins if the server delays it
//!   (`repl-diskless-sync-delay`);
//! - [`FeedKind::Filtered`]: a replication link that starts with a snapshot without data (`rdb-filter-only`,
//!   Redis 7.0 and later): a fork, and a few hundred bytes;
//! - [`FeedKind::Tracking`]: invalidations of client-side caching, if replication is forbidden, or would send
//!   all data. It has blind spots: see [`Feed::misses_consumer_groups`];
//! - [`FeedKind::Notifications`]: keyspace notifications, if neither is permitted and the server publishes
//!   all of them. It has more blind spots: see [`Feed::unseen_types`], and [`FeedOptions::notifications`].
//!
//! A replication link sees everything: effects of scripts, transactions, expiries, consumer groups. The
//! server counts it as a replica: in `INFO` and `ROLE`, and for `min-replicas-to-write`. But nothing is ever
//! acknowledged to the server beyond the offset at which the feed was attached, so that `WAIT` does not take
//! it for a copy of the data. A server that is shut down in order therefore waits for it, up to
//! `shutdown-timeout`.

mod asking;
mod command;
mod connector;
mod limits;
mod notifications;
mod options;
mod progress;
mod prospect;
mod pushes;
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
use crate::remedy::Remedy;

use self::connector::Connector;
pub use self::connector::FEED_CLIENT_NAME;
pub use self::limits::holdup;
use self::notifications::Notifications;
pub use self::options::{FeedKind, FeedOptions};
pub use self::progress::{FeedFailure, History};
use self::progress::{Progress, Shared};
pub use self::prospect::{Prospect, prospect};
use self::pushes::{Barrier, Pushed, Pushes};
pub use self::touched::{Collection, Elements, Touch, Touched, TouchedLimits, What};
use self::tracking::Tracking;

/// Whether a command of this name, as `CLIENT LIST` writes it, can write: by itself, or since it carries out
/// others. Servers before Redis 7.0 do not name subcommands.
pub fn may_write(command: &str) -> bool {
    let command = command.to_ascii_uppercase();
    let (name, subcommand) = command.split_once('|').unwrap_or((&command, ""));
    match name {
        "EXEC" => true,
        // The others change or report owners of slots.
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

/// The type whose consumer groups change unseen.
const STREAM: &str = "stream";

/// What a feed does not see.
#[derive(Debug, Default)]
struct Blind {
    /// Types of keys that may change unseen.
    types: Vec<&'static str>,
    /// What could not be checked.
    unproven: Vec<String>,
}

/// Follows the changes of one server. The task behind it ends when this is dropped.
#[derive(Debug)]
pub struct Feed {
    kind: FeedKind,
    side: Side,
    address: Address,
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    /// Of a feed that is no replication link.
    barriers: Option<mpsc::Sender<Barrier>>,
    blind: Blind,
    task: JoinHandle<()>,
}

impl Feed {
    /// Attaches to the server at `address` and records touches of keys in `slots` from this moment on: every
    /// change that the server acknowledges after this returns will be seen.
    ///
    /// # Errors
    /// As [`Link::open`](crate::link::Link::open) and [`Link::call`](crate::link::Link::call); `Unfit` if no
    /// kind of feed is available; `Timeout`.
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
    /// after `from` will be seen, however long ago it was. `None` if the server does not have all of that any
    /// more.
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
            blind: Blind::default(),
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
        let is_wanted = |kind| options.kind.is_none_or(|only| only == kind);
        let feed = |kind, task, barriers, blind| {
            let (shared, progress) = (shared.clone(), shared.progress.subscribe());
            Feed { kind, side, address: address.clone(), shared, progress, barriers, blind, task }
        };
        let mut refused = Vec::new();
        if options.kind.is_none_or(FeedKind::is_replication) {
            match stream::attach(deployment, &place, &shared, options).await? {
                Ok(stream) => {
                    return Ok(feed(stream.kind(), tokio::spawn(stream.run()), None, Blind::default()));
                }
                Err(why) => refused.push(format!("replication: {why}")),
            }
        }
        let (sender, receiver) = mpsc::channel(BARRIERS_MAX);
        if is_wanted(FeedKind::Tracking) {
            let mut link = place.open().await?;
            match Tracking::begin(deployment, &mut link).await? {
                Ok(tracking) => {
                    tracing::info!(at = %address, why = ?refused, "tracking");
                    let pushes = Pushes::new(link, Pushed::Tracking(tracking), &shared, receiver);
                    let blind = Blind { types: vec![STREAM], ..Blind::default() };
                    return Ok(feed(FeedKind::Tracking, tokio::spawn(pushes.run()), Some(sender), blind));
                }
                Err(why) => refused.push(format!("tracking: {why}")),
            }
        }
        let is_asked_for = options.kind == Some(FeedKind::Notifications);
        if is_asked_for || options.notifications && options.kind.is_none() {
            let mut link = place.open().await?;
            match Notifications::begin(&mut link, is_asked_for).await? {
                Ok(notifications) => {
                    tracing::info!(at = %address, why = ?refused, "keyspace notifications");
                    let types = [&[STREAM][..], &notifications.unseen_types].concat();
                    let blind = Blind { types, unproven: notifications.unproven.clone() };
                    let pushed = Pushed::Notifications(Box::new(notifications));
                    let pushes = Pushes::new(link, pushed, &shared, receiver);
                    let task = tokio::spawn(pushes.run());
                    return Ok(feed(FeedKind::Notifications, task, Some(sender), blind));
                }
                Err(why) => refused.push(format!("notifications: {why}")),
            }
        }
        let e = Error::unfit(side, address.to_string(), "attach a feed of changes", refused.join("; "));
        Err(match options.kind {
            None if options.notifications => e.with_remedy(Remedy::AllowAnyFeed),
            None => {
                e.with_remedy("give this user the permission for PSYNC and REPLCONF, or for CLIENT TRACKING")
            }
            Some(_) => e,
        })
    }

    /// How it learns of changes.
    pub fn kind(&self) -> FeedKind {
        self.kind
    }

    /// The server it follows.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// True for a feed that is no replication link: it does not see `XGROUP`, `XREADGROUP`, `XACK`,
    /// `XCLAIM`, `XAUTOCLAIM` and `XSETID`, nor changes of functions; and with tracking no `SWAPDB`. All
    /// streams have to be moved once more under the pause.
    pub fn misses_consumer_groups(&self) -> bool {
        !self.kind.is_replication()
    }

    /// Types of keys, as `TYPE` says them, that may change without the feed seeing it: all keys of them have
    /// to be moved once more under the pause. None for a replication link.
    pub fn unseen_types(&self) -> &[&'static str] {
        &self.blind.types
    }

    /// What could not be checked of a feed that was asked for by its kind, each in words that go on after
    /// "it could not be checked"; empty otherwise.
    pub fn unproven(&self) -> &[String] {
        &self.blind.unproven
    }

    /// What was touched.
    pub fn touched(&self) -> Arc<Touched> {
        self.shared.touched.clone()
    }

    /// The replication offset up to which everything is in [`Feed::touched`]; 0 if it is no replication link.
    pub fn offset(&self) -> u64 {
        self.progress.borrow().offset
    }

    /// The point up to which everything is in [`Feed::touched`]; `None` if it is no replication link.
    pub fn history(&self) -> Option<History> {
        let progress = self.progress.borrow();
        let history =
            || History { replid: progress.replid.clone(), offset: progress.offset, db: progress.db };
        (!progress.replid.is_empty()).then(history)
    }

    /// Waits until everything up to `offset` of the server (`master_repl_offset` of `INFO replication`) is in
    /// [`Feed::touched`]; false if that takes longer than `timeout_ms`. Only replication links know offsets:
    /// others wait until everything is recorded that the server did before this was called.
    ///
    /// # Errors
    /// `Unfit` if the feed has ended; [`Feed::failure`] has the reason.
    pub async fn reach(&self, offset: u64, timeout_ms: u64) -> Result<bool> {
        let limit = Duration::from_millis(timeout_ms);
        let reached = async {
            if let Some(barriers) = &self.barriers {
                let (done, answer) = oneshot::channel();
                // If the task has ended, the failure below says why.
                if barriers.send(done).await.is_ok() {
                    let mut progress = self.progress.clone();
                    tokio::select! {
                        answer = answer => if answer.is_ok() { return },
                        // What is sent in the moment in which the task ends is neither answered nor dropped.
                        _ = progress.wait_for(|p| p.failure.is_some()) => {}
                    }
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

    /// [`Feed::compare_history`], then [`Feed::reach`]: of a server's history, and its offset in that.
    ///
    /// # Errors
    /// As [`Feed::reach`]; also if the history is another one.
    pub async fn reach_in(&self, replid: &str, offset: u64, timeout_ms: u64) -> Result<bool> {
        self.compare_history(replid);
        self.reach(offset, timeout_ms).await
    }

    /// Compares with what the server at [`Feed::address`] names as its history (`master_replid` of
    /// `INFO replication`; empty if it names none). If that is another history, the feed ends: another server
    /// answers there, and its changes are not reported.
    pub fn compare_history(&self, replid: &str) {
        // It stays the same for as long as the feed lives.
        let own = self.progress.borrow().replid.clone();
        let is_other = !own.is_empty() && !replid.is_empty() && own != replid;
        if is_other && self.failure().is_none() {
            self.shared.fail(FeedFailure::Replaced);
            self.task.abort();
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

    /// Why the feed has ended, if it has.
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

    /// Why nothing is heard from the server at the moment; `None` while the link is there.
    pub fn broken(&self) -> Option<String> {
        self.shared.broken.lock().clone()
    }

    /// Of a feed that has ended: why no other feed could take its place yet.
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
