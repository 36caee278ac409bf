//! Pauses the writes to a deployment for a while.

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

/// How long servers may take to resume writes on the connections that paused them.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

/// What resumes writes.
const UNPAUSE: [&[u8]; 2] = [b"CLIENT", b"UNPAUSE"];

/// Connections to all primaries that can pause the writes to them.
#[derive(Debug)]
pub struct Seal {
    links: Vec<PausingLink>,
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
    async fn pause(&mut self, limit_ms: u64) -> Result<()> {
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

    /// Whether the server says that writes are resumed, in answer to what was sent last.
    async fn is_released(&mut self) -> bool {
        self.link.reply().await.and_then(|reply| self.link.check(reply, b"CLIENT UNPAUSE")).is_ok()
    }
}

impl Seal {
    /// Connects to all primaries. Writes are not paused yet.
    ///
    /// # Errors
    /// As [`Deployment::open`].
    pub async fn open(deployment: &Deployment) -> Result<Seal> {
        let mut links = Vec::new();
        for shard in &deployment.topology().shards {
            links.push(PausingLink { link: deployment.open(&shard.primary, 0).await?, is_in_step: true });
        }
        Ok(Seal { links, until_ms: None })
    }

    /// Pauses all writes from now on, for `limit_ms` at most, and reports how far the primaries are. If one
    /// refuses, writes to the others resume. If the future is dropped half-way, they stay paused until
    /// [`Seal::release`], or the end of that time.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn pause(&mut self, limit_ms: u64) -> Result<Vec<Reached>> {
        // Counted from before the first server hears of it: none resumes earlier than this.
        self.until_ms = Some(clock::now_ms().saturating_add(limit_ms));
        match self.try_pause(limit_ms).await {
            Ok(reached) => Ok(reached),
            Err(e) => {
                if let Err(e) = self.release().await {
                    tracing::warn!(error = %e, "writes stay paused");
                }
                Err(e)
            }
        }
    }

    async fn try_pause(&mut self, limit_ms: u64) -> Result<Vec<Reached>> {
        for link in &mut self.links {
            link.pause(limit_ms).await?;
        }
        let mut reached = Vec::new();
        for link in &mut self.links {
            reached.push(link.reached().await?);
        }
        Ok(reached)
    }

    /// When the first of the servers resumes writes by itself, by [`clock::now_ms`]: servers count on
    /// while this machine is suspended. `None` if writes are not paused.
    pub fn until_ms(&self) -> Option<u64> {
        self.until_ms
    }

    /// Resumes all writes: over another connection if a server has not answered everything. A server that
    /// hangs does not delay writes to the others. What it has not read yet ends with writes resumed as well,
    /// whenever it reads that.
    ///
    /// # Errors
    /// The first that occurred: writes to that server may be paused still. The others have been notified all
    /// the same.
    pub async fn release(&mut self) -> Result<()> {
        let until = Instant::now() + RELEASED_WITHIN;
        let mut sent = Vec::new();
        for pausing in &mut self.links {
            // In the same stream as what may pause writes later.
            pausing.link.push(&UNPAUSE);
            sent.push(matches!(timeout_at(until, pausing.link.flush()).await, Ok(Ok(()))));
        }
        let mut left = Vec::new();
        for (pausing, is_sent) in self.links.iter_mut().zip(sent) {
            let is_released = is_sent
                && pausing.is_in_step
                && timeout_at(until, pausing.is_released()).await.unwrap_or(false);
            if !is_released {
                pausing.is_in_step = false;
                left.push(&pausing.link);
            }
        }
        release_anew(left.into_iter().map(LinkTarget::of)).await?;
        self.until_ms = None;
        Ok(())
    }
}

/// Resumes all writes to a deployment, whichever client has paused them.
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
                Err(Error::new(self.endpoint.side, self.address.to_string(), "resume writes", kind))
            }
        }
    }
}

/// Resumes writes over connections of their own, at all these servers at the same time.
async fn release_anew(targets: impl Iterator<Item = LinkTarget>) -> Result<()> {
    let mut releasing: JoinSet<Result<()>> = targets.map(LinkTarget::release).collect();
    let mut failure = None;
    while let Some(released) = releasing.join_next().await {
        let released = released.unwrap_or_else(|e| Err(Error::own("resume writes", e)));
        failure = failure.or(released.err());
    }
    failure.map_or(Ok(()), Err)
}
