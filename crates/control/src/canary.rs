//! A client of our own that reads from the moving slots, as the users' clients do, and notes what it meets.
//!
//! It asks `EXISTS` for names that nobody uses, so it changes nothing and finds nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::link::Link;

/// One request in this many milliseconds.
const PERIOD: Duration = Duration::from_millis(5);

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

/// A running canary.
#[derive(Debug)]
pub struct Canary {
    stop: CancellationToken,
    task: JoinHandle<CanaryReport>,
}

impl Canary {
    /// Begins to ask for names in `slots`, one after another.
    pub fn start(deployment: Arc<Deployment>, slots: &SlotSet) -> Canary {
        let stop = CancellationToken::new();
        let slots: Vec<Slot> = slots.iter().collect();
        let task = tokio::spawn(watch(deployment, slots, stop.clone()));
        Canary { stop, task }
    }

    /// Ends it, and tells what it met.
    pub async fn end(self) -> CanaryReport {
        self.stop.cancel();
        self.task.await.unwrap_or_default()
    }
}

async fn watch(deployment: Arc<Deployment>, slots: Vec<Slot>, stop: CancellationToken) -> CanaryReport {
    let mut seen = CanaryReport::default();
    let mut client = Client { deployment, links: HashMap::new(), owners: HashMap::new() };
    let mut turn = 0;
    while !stop.is_cancelled() && !slots.is_empty() {
        // Neighbours have the same fate: a stride looks at all parts of the range soon.
        turn = (turn + 4_099) % slots.len();
        let started = Instant::now();
        seen.requests += 1;
        if client.ask(slots[turn], &mut seen).await.is_err() {
            seen.errors += 1;
            client.links.clear();
        }
        let took = started.elapsed();
        seen.longest_ms = seen.longest_ms.max(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let _ = stop.run_until_cancelled(tokio::time::sleep(PERIOD.saturating_sub(took))).await;
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
