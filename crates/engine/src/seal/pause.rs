//! Holds the writers of a deployment for a while.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock;
use crate::deployment::{Deployment, Shard};
use crate::endpoint::{Address, Endpoint};
use crate::error::{Error, ErrorKind, Result};
use crate::link::{Link, LinkOptions};
use crate::probe::Info;

/// How long servers may take to let writers go on the connections that hold them.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

/// What lets writers go.
const UNPAUSE: [&[u8]; 2] = [b"CLIENT", b"UNPAUSE"];

/// Connections to all primaries that can hold their writers.
#[derive(Debug)]
pub struct Seal {
    held: Vec<PausingLink>,
    until_ms: Option<u64>,
}

/// A connection to one primary.
#[derive(Debug)]
struct PausingLink {
    link: Link,
    /// All that was asked on it has been answered.
    is_in_step: bool,
}

/// How far one primary is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// Which.
    pub address: Address,
    /// Its replication offset.
    pub offset: u64,
    /// The history that the offset is of (`master_replid`); empty if it names none.
    pub replid: String,
}

impl PausingLink {
    /// Sends what pauses writes.
    async fn hold(&mut self, limit_ms: u64) -> Result<()> {
        self.is_in_step = false;
        self.link.push(&[b"CLIENT", b"PAUSE", limit_ms.to_string().as_bytes(), b"WRITE"]);
        // Answered in order: the offset is one after which no writer came.
        self.link.push(&[b"INFO", b"replication"]);
        self.link.flush().await
    }

    async fn reached(&mut self) -> Result<Reached> {
        let paused = self.link.reply().await?;
        let info = self.link.reply().await?;
        self.is_in_step = true;
        self.link.check(paused, b"CLIENT PAUSE")?;
        let info = self.link.check(info, b"INFO")?;
        let info = Info::parse(info.as_bytes().map_or(&[], |text| text));
        let offset = info.number("master_repl_offset").unwrap_or(0);
        let replid = info.field("master_replid").unwrap_or_default().to_owned();
        Ok(Reached { address: self.link.address().clone(), offset, replid })
    }

    /// Whether the server says that writers are let go, in answer to what was sent last.
    async fn is_released(&mut self) -> bool {
        self.link.reply().await.and_then(|reply| self.link.check(reply, b"CLIENT UNPAUSE")).is_ok()
    }
}

impl Seal {
    /// Connects to all primaries. No writer is held yet.
    ///
    /// # Errors
    /// As [`Deployment::open`].
    pub async fn open(deployment: &Deployment) -> Result<Seal> {
        let mut held = Vec::new();
        for shard in &deployment.topology().shards {
            held.push(PausingLink { link: deployment.open(&shard.primary, 0).await?, is_in_step: true });
        }
        Ok(Seal { held, until_ms: None })
    }

    /// Holds all writers from now on, for `limit_ms` at most, and reports how far the primaries are. If one
    /// refuses, the others are let go. If the future is dropped half-way, no writer is let go before
    /// [`Seal::release`].
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn hold(&mut self, limit_ms: u64) -> Result<Vec<Reached>> {
        // Counted from before the first server hears of it: none lets go earlier than this.
        self.until_ms = Some(clock::now_ms().saturating_add(limit_ms));
        match self.try_hold(limit_ms).await {
            Ok(reached) => Ok(reached),
            Err(e) => {
                if let Err(e) = self.release().await {
                    tracing::warn!(error = %e, "writes stay paused");
                }
                Err(e)
            }
        }
    }

    async fn try_hold(&mut self, limit_ms: u64) -> Result<Vec<Reached>> {
        for held in &mut self.held {
            held.hold(limit_ms).await?;
        }
        let mut reached = Vec::new();
        for held in &mut self.held {
            reached.push(held.reached().await?);
        }
        Ok(reached)
    }

    /// When the first of the servers lets its writers go by itself, by [`clock::now_ms`]: servers count on
    /// while this machine is suspended. `None` if no writer is held.
    pub fn until_ms(&self) -> Option<u64> {
        self.until_ms
    }

    /// Lets all writers go: over another connection if a server has not answered everything. A server that
    /// hangs does not delay the writers of the others. What it has not read yet ends with the release of its
    /// writers as well, whenever it reads that.
    ///
    /// # Errors
    /// The first that occurred: writers of that server may be held still. The others have been notified all
    /// the same.
    pub async fn release(&mut self) -> Result<()> {
        let until = Instant::now() + RELEASED_WITHIN;
        let mut sent = Vec::new();
        for held in &mut self.held {
            // In the same stream as what may hold writers later.
            held.link.push(&UNPAUSE);
            sent.push(matches!(timeout_at(until, held.link.flush()).await, Ok(Ok(()))));
        }
        let mut left = Vec::new();
        for (held, is_sent) in self.held.iter_mut().zip(sent) {
            let is_released =
                is_sent && held.is_in_step && timeout_at(until, held.is_released()).await.unwrap_or(false);
            if !is_released {
                held.is_in_step = false;
                left.push(&held.link);
            }
        }
        release_anew(left.into_iter().map(LinkTarget::of)).await?;
        self.until_ms = None;
        Ok(())
    }
}

/// Lets all writers of a deployment go, whichever client has paused them.
///
/// # Errors
/// As [`Seal::release`].
pub(super) async fn release_all(deployment: &Deployment) -> Result<()> {
    let topology = deployment.topology();
    let target = |shard: &Shard| LinkTarget {
        endpoint: deployment.endpoint.clone(),
        address: shard.primary.clone(),
        options: deployment.options,
    };
    release_anew(topology.shards.iter().map(target)).await
}

/// The server that a connection leads to.
struct LinkTarget {
    endpoint: Arc<Endpoint>,
    address: Address,
    options: LinkOptions,
}

impl LinkTarget {
    fn of(link: &Link) -> LinkTarget {
        LinkTarget {
            endpoint: link.endpoint().clone(),
            address: link.address().clone(),
            options: link.options(),
        }
    }

    async fn release(self) -> Result<()> {
        let mut link = Link::open(&self.endpoint, &self.address, self.options).await?;
        match timeout(RELEASED_WITHIN, link.call(&UNPAUSE)).await {
            Ok(released) => released.map(drop),
            Err(_) => {
                let kind = ErrorKind::Timeout(RELEASED_WITHIN.as_millis() as u64);
                Err(Error::new(self.endpoint.side, self.address.to_string(), "let writers go", kind))
            }
        }
    }
}

/// Lets writers go over connections of their own, at all these servers at the same time.
async fn release_anew(targets: impl Iterator<Item = LinkTarget>) -> Result<()> {
    let mut releasing: JoinSet<Result<()>> = targets.map(LinkTarget::release).collect();
    let mut failure = None;
    while let Some(released) = releasing.join_next().await {
        let released = released.unwrap_or_else(|e| Err(Error::own("let writers go", e)));
        failure = failure.or(released.err());
    }
    failure.map_or(Ok(()), Err)
}
