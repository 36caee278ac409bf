//! Holds the writers of a deployment for a while.

use crate::clock;
use crate::deployment::Deployment;
use crate::endpoint::Address;
use crate::error::Result;
use crate::link::Link;
use crate::probe::Info;

/// Connections to all primaries, by which their writers can be held.
#[derive(Debug)]
pub struct Seal {
    links: Vec<Link>,
    until_ms: Option<u64>,
}

/// How far one primary is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// Which.
    pub address: Address,
    /// Its replication offset.
    pub offset: u64,
}

impl Seal {
    /// Connects to all primaries. Nobody is held yet.
    ///
    /// # Errors
    /// As [`Deployment::open`].
    pub async fn open(deployment: &Deployment) -> Result<Seal> {
        let mut links = Vec::new();
        for shard in &deployment.topology().shards {
            links.push(deployment.open(&shard.primary, 0).await?);
        }
        Ok(Seal { links, until_ms: None })
    }

    /// Holds all writers from now on, for `limit_ms` at most, and tells how far the primaries are. Where one
    /// refuses, the others are let go.
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
                    tracing::warn!(error = %e, "writes are paused until the pause ends by itself");
                }
                Err(e)
            }
        }
    }

    async fn try_hold(&mut self, limit_ms: u64) -> Result<Vec<Reached>> {
        let limit = limit_ms.to_string();
        for link in &mut self.links {
            link.push(&[b"CLIENT", b"PAUSE", limit.as_bytes(), b"WRITE"]);
            // Answered in order: the offset is one after which no writer came.
            link.push(&[b"INFO", b"replication"]);
            link.flush().await?;
        }
        let mut reached = Vec::new();
        for link in &mut self.links {
            let paused = link.reply().await?;
            let info = link.reply().await?;
            link.check(paused, b"CLIENT PAUSE")?;
            let info = link.check(info, b"INFO")?;
            let info = Info::parse(info.as_bytes().map_or(&[], |text| text));
            let offset = info.number("master_repl_offset").unwrap_or(0);
            reached.push(Reached { address: link.address().clone(), offset });
        }
        Ok(reached)
    }

    /// When the first of the servers lets its writers go by itself, by [`clock::now_ms`]: servers count on
    /// while this machine is suspended. `None` where nobody is held.
    pub fn until_ms(&self) -> Option<u64> {
        self.until_ms
    }

    /// Lets all writers go.
    ///
    /// # Errors
    /// The first that occurred; the other servers have been told all the same.
    pub async fn release(&mut self) -> Result<()> {
        self.until_ms = None;
        let mut outcome = Ok(());
        for link in &mut self.links {
            let released = link.call(&[b"CLIENT", b"UNPAUSE"]).await.map(drop);
            outcome = outcome.and(released);
        }
        outcome
    }
}
