//! A client of our own that reads from the moving slots, as the users' clients do, and notes what it meets.
//!
//! It asks `EXISTS` for names that nobody uses, so it changes nothing and finds nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::link::Link;

/// How often it asks while slots move.
pub const PERIOD: Duration = Duration::from_millis(5);

/// Redirections that are followed for one request.
const HOPS_MAX: usize = 5;

/// What the canary met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CanaryReport {
    /// Requests.
    pub requests: u64,
    /// `MOVED` replies, which clients follow.
    pub moved: u64,
    /// `ASK` replies.
    pub ask: u64,
    /// `TRYAGAIN` replies.
    pub tryagain: u64,
    /// `CLUSTERDOWN` replies.
    pub clusterdown: u64,
    /// Anything else that is no answer: other errors, dropped connections, too many redirections.
    pub errors: u64,
    /// The longest time from a request to its answer, redirections included, in milliseconds.
    pub longest_ms: u64,
}

/// How long answers took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answered {
    /// Requests that were answered, or should have been.
    pub requests: u64,
    /// Those without an answer.
    pub errors: u64,
    /// Redirections that were followed.
    pub redirects: u64,
    /// How long all of them took together, in microseconds.
    pub total_us: u64,
    /// How long the slowest took, in microseconds.
    pub longest_us: u64,
}

/// A running canary.
#[derive(Debug)]
pub struct Canary {
    stop: CancellationToken,
    task: JoinHandle<CanaryReport>,
    lately: Arc<Mutex<Answered>>,
}

impl Canary {
    /// Begins to ask for names in `slots`, one after another, one in each `period`.
    pub fn start(deployment: Arc<Deployment>, slots: &SlotSet, period: Duration) -> Canary {
        let (stop, lately) = (CancellationToken::new(), Arc::<Mutex<Answered>>::default());
        let slots: Vec<Slot> = slots.iter().collect();
        let task = tokio::spawn(watch(deployment, slots, period, lately.clone(), stop.clone()));
        Canary { stop, task, lately }
    }

    /// How long answers took since this was asked last.
    pub fn take_lately(&self) -> Answered {
        std::mem::take(&mut self.lately.lock())
    }

    /// Ends it, and tells what it met.
    pub async fn end(mut self) -> CanaryReport {
        self.stop.cancel();
        (&mut self.task).await.unwrap_or_default()
    }
}

impl Drop for Canary {
    /// One that nobody listens to any more asks nothing more.
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(
    deployment: Arc<Deployment>,
    slots: Vec<Slot>,
    period: Duration,
    lately: Arc<Mutex<Answered>>,
    stop: CancellationToken,
) -> CanaryReport {
    let mut seen = CanaryReport::default();
    let mut client = Client { deployment, links: HashMap::new(), owners: HashMap::new() };
    let mut turn = 0;
    while !stop.is_cancelled() && !slots.is_empty() {
        // Neighbours have the same fate: a stride looks at all parts of the range soon.
        turn = (turn + 4_099) % slots.len();
        let started = Instant::now();
        let before = seen.moved + seen.ask;
        seen.requests += 1;
        let has_failed = client.ask(slots[turn], &mut seen).await.is_err();
        if has_failed {
            seen.errors += 1;
            client.links.clear();
        }
        let took = started.elapsed();
        seen.longest_ms = seen.longest_ms.max(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        {
            let mut lately = lately.lock();
            lately.requests += 1;
            lately.errors += u64::from(has_failed);
            lately.redirects += seen.moved + seen.ask - before;
            lately.total_us = lately.total_us.saturating_add(took_us);
            lately.longest_us = lately.longest_us.max(took_us);
        }
        let _ = stop.run_until_cancelled(tokio::time::sleep(period.saturating_sub(took))).await;
    }
    seen
}

struct Client {
    deployment: Arc<Deployment>,
    links: HashMap<Address, Link>,
    owners: HashMap<Slot, Address>,
}

impl Client {
    /// One request; an error where no answer was to be had.
    async fn ask(&mut self, slot: Slot, seen: &mut CanaryReport) -> Result<()> {
        let key = format!("whimbrel:canary:{{{}}}", tag_for_slot(slot));
        let mut asking = false;
        let mut at = match self.owners.get(&slot) {
            Some(address) => address.clone(),
            None => match self.deployment.topology().shard_of(slot) {
                Some(shard) => shard.primary.clone(),
                None => return Err(self.deployment.unowned(slot)),
            },
        };
        for _ in 0..=HOPS_MAX {
            let link = match self.links.remove(&at) {
                Some(link) => link,
                None => self.deployment.open(&at, 0).await?,
            };
            let link = self.links.entry(at.clone()).or_insert(link);
            if std::mem::take(&mut asking) {
                link.call(&[b"ASKING"]).await?;
            }
            let reply = link.ask(&[b"EXISTS", key.as_bytes()]).await?;
            let Some(e) = ServerError::of(&reply) else {
                self.owners.insert(slot, at);
                return Ok(());
            };
            let to = match &e.code {
                Code::Moved(_, to) => {
                    seen.moved += 1;
                    to
                }
                Code::Ask(_, to) => {
                    seen.ask += 1;
                    asking = true;
                    to
                }
                Code::TryAgain => {
                    seen.tryagain += 1;
                    return Ok(());
                }
                Code::ClusterDown => {
                    seen.clusterdown += 1;
                    return Ok(());
                }
                _ => return Err(link.server_error(e, b"EXISTS")),
            };
            match self.deployment.reach(to, &at) {
                Some(next) => at = next,
                None => break,
            }
        }
        Err(self.deployment.unowned(slot))
    }
}
