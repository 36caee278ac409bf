//! Enumerates the keys of one shard and database.
//!
//! `SCAN` gives every key that exists during the whole of an iteration, at least once. That holds for one
//! process of the server only: the cursor means nothing to another process, since each has its own hash seed.
//! So the cursor is tied to the `run_id` it came from, and another `run_id` starts the iteration again. If
//! the server does not report its `run_id`, the cursor is tied to the connection.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::{Deployment, Shard, Topology};
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_wire::value::Value;

use crate::retry::{Backoff, RetryPolicy};

/// What one iteration covers: the keys of one database on one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The id of the shard's primary when the unit was made; empty for a standalone server.
    pub shard_id: String,
    /// The slots it owned then. After a failover, when the id is gone, they show which shard took its place.
    /// A single slot would not do: it may move to another shard while the rest stays.
    pub slots: SlotSet,
    /// The database.
    pub db: u32,
    /// Read from a replica of the shard if it has one.
    pub from_replica: bool,
}

impl Unit {
    /// The units of all shards of `deployment` for one database.
    pub fn of_all(deployment: &Deployment, db: u32, from_replica: bool) -> Vec<Unit> {
        let topology = deployment.topology();
        let unit = |s: &Shard| Unit { shard_id: s.id.clone(), slots: s.slots.clone(), db, from_replica };
        topology.shards.iter().map(unit).collect()
    }

    /// The shard that this unit is about, as it is now: the one with the same id, else the shard that has
    /// most of its slots.
    pub fn shard<'a>(&self, topology: &'a Topology) -> Option<&'a Shard> {
        let shared = |s: &Shard| s.slots.intersection(&self.slots).len();
        topology
            .shards
            .iter()
            .find(|s| s.id == self.shard_id)
            .or_else(|| topology.shards.iter().max_by_key(|s| shared(s)).filter(|s| shared(s) > 0))
    }

    /// Opens a connection to the server that holds this unit now, by the topology as last seen.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub async fn open(&self, deployment: &Deployment) -> Result<Link> {
        let topology = deployment.topology();
        let Some(shard) = self.shard(&topology) else {
            return Err(deployment.unowned(self.slots.iter().next().unwrap_or(Slot::MIN)));
        };
        deployment.open(self.address(shard), self.db).await
    }

    fn address<'a>(&self, shard: &'a Shard) -> &'a Address {
        if self.from_replica { shard.replicas.first().unwrap_or(&shard.primary) } else { &shard.primary }
    }
}

/// Where an iteration stands: what a journal keeps in order to go on later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The process the cursor belongs to; empty if it is not known.
    pub run_id: String,
    /// The cursor, in decimal.
    pub cursor: Bytes,
}

/// One reply of `SCAN`.
#[derive(Debug)]
pub struct Page {
    /// The keys. A key may come more than once in an iteration.
    pub keys: Vec<Bytes>,
    /// Where the iteration stands after this page; `None` if it is complete.
    pub next: Option<Position>,
    /// True if the iteration had to start again, and this is its first page.
    pub restarted: bool,
}

/// What to ask `SCAN` for.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// `COUNT`: how many buckets the server looks at in one call.
    pub count: u32,
    /// `MATCH`, applied by the server.
    pub pattern: Option<Bytes>,
    /// `TYPE`, applied by the server.
    pub type_name: Option<String>,
}

/// An iteration over one unit. The next page is asked for before the last one is handed out, so that the
/// server works while we do.
#[derive(Debug)]
pub struct KeyScan {
    deployment: Arc<Deployment>,
    unit: Unit,
    options: ScanOptions,
    retry: RetryPolicy,
    link: Option<Link>,
    /// Where the next call starts.
    position: Option<Position>,
    in_flight: bool,
    started_over: bool,
    done: bool,
}

impl KeyScan {
    /// Starts at the beginning, or goes on at `from`, if the server's process is still the same.
    pub fn new(
        deployment: Arc<Deployment>,
        unit: Unit,
        options: ScanOptions,
        retry: RetryPolicy,
        from: Option<Position>,
    ) -> Self {
        KeyScan {
            deployment,
            unit,
            options,
            retry,
            link: None,
            position: from,
            in_flight: false,
            started_over: false,
            done: false,
        }
    }

    /// The next page, or `None` after the last one.
    ///
    /// # Errors
    /// Anything that is not transient, or went on for longer than the retry policy allows.
    pub async fn next(&mut self) -> Result<Option<Page>> {
        if self.done {
            return Ok(None);
        }
        let mut backoff = Backoff::new(self.retry);
        loop {
            match self.try_next().await {
                Ok(page) => return Ok(Some(page)),
                Err(e) => {
                    self.link = None;
                    self.in_flight = false;
                    backoff.pause(e).await?;
                    // After a failover another node owns the shard. A failed refresh is the next try's
                    // problem.
                    if let Err(e) = self.deployment.refresh().await {
                        tracing::debug!(error = %e, "topology refresh failed");
                    }
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<Page> {
        if self.link.is_none() {
            self.attach().await?;
        }
        let Some(link) = self.link.as_mut() else {
            return Err(Error::own("scan", "no connection after attaching"));
        };
        let Some(position) = self.position.as_mut() else {
            return Err(Error::own("scan", "no position after attaching"));
        };
        if !self.in_flight {
            request(link, &position.cursor, &self.options);
            link.flush().await?;
            self.in_flight = true;
        }
        let reply = link.reply().await?;
        self.in_flight = false;
        let (cursor, keys) = page_in(link, reply)?;
        let restarted = std::mem::take(&mut self.started_over);
        if &cursor[..] == b"0" {
            self.done = true;
            self.link = None;
            return Ok(Page { keys, next: None, restarted });
        }
        position.cursor = cursor;
        request(link, &position.cursor, &self.options);
        link.flush().await?;
        self.in_flight = true;
        Ok(Page { keys, next: Some(position.clone()), restarted })
    }

    async fn attach(&mut self) -> Result<()> {
        let mut link = self.unit.open(&self.deployment).await?;
        let run_id = match self.deployment.facts.are_known {
            true => Info::ask(&mut link, "server").await?.field("run_id").unwrap_or_default().to_owned(),
            false => String::new(),
        };
        match &self.position {
            Some(p) if p.run_id == run_id && !run_id.is_empty() => {}
            old => {
                if let Some(old) = old {
                    tracing::warn!(
                        server = %link.address(), old_run_id = %old.run_id, %run_id,
                        "another process answers: the scan of this shard starts again"
                    );
                    self.started_over = true;
                }
                self.position = Some(Position { run_id, cursor: Bytes::from_static(b"0") });
            }
        }
        self.link = Some(link);
        Ok(())
    }
}

/// One page of an iteration over the server of this link, and the cursor after it: `0` if it was the last. An
/// iteration begins at `0`. The caller makes sure that the link stays with one process.
///
/// # Errors
/// As [`Link::call`], or a reply of another form.
pub async fn page(link: &mut Link, cursor: &[u8], count: u32) -> Result<(Bytes, Vec<Bytes>)> {
    request(link, cursor, &ScanOptions { count, ..ScanOptions::default() });
    link.flush().await?;
    let reply = link.reply().await?;
    page_in(link, reply)
}

/// The cursor and the names in a reply of `SCAN`.
fn page_in(link: &Link, reply: Value) -> Result<(Bytes, Vec<Bytes>)> {
    let reply = link.check(reply, b"SCAN")?;
    let unexpected = link.unexpected("SCAN", &reply);
    let mut items = reply.into_items().unwrap_or_default().into_iter();
    match (items.next().and_then(Value::into_bytes), items.next().and_then(Value::into_items)) {
        // A copy: the slice would keep the whole reply alive for as long as the cursor is remembered.
        (Some(cursor), Some(keys)) => {
            Ok((Bytes::copy_from_slice(&cursor), keys.into_iter().filter_map(Value::into_bytes).collect()))
        }
        _ => Err(unexpected),
    }
}

fn request(link: &mut Link, cursor: &[u8], options: &ScanOptions) {
    let count = options.count.to_string();
    let mut args: Vec<&[u8]> = vec![b"SCAN", cursor, b"COUNT", count.as_bytes()];
    if let Some(pattern) = &options.pattern {
        args.extend([&b"MATCH"[..], pattern]);
    }
    if let Some(type_name) = &options.type_name {
        args.extend([&b"TYPE"[..], type_name.as_bytes()]);
    }
    link.push(&args);
}
