//! A client of our own that reads from the moving slots, as the users' clients do, and notes what it meets.
//!
//! It asks `EXISTS` for names that no client uses, so it changes nothing and finds nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
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

/// Whom a canary asks, and how long it waits.
#[derive(Debug, Clone)]
pub struct Node {
    /// The node that has the slots, as far as is known.
    pub address: Address,
    /// How long a request may take, redirections included: after that it has no answer.
    pub within: Duration,
}

/// A running canary.
#[derive(Debug)]
pub struct Canary {
    stop: CancellationToken,
    task: JoinHandle<CanaryReport>,
    shared: Arc<Shared>,
}

/// What a canary's task and its owner have in common.
#[derive(Debug)]
struct Shared {
    slots: Mutex<Vec<Slot>>,
    lately: Mutex<Answered>,
    /// When an answer came last; in the beginning, when it began.
    answered: Mutex<Instant>,
}

impl Canary {
    /// Begins to ask for names in `slots`, one after another, one in each `period`.
    pub fn start(deployment: Arc<Deployment>, slots: &SlotSet, period: Duration) -> Canary {
        Canary::begin(deployment, slots, period, None)
    }

    /// The same for the slots of one node: if that is silent, those of other nodes are measured all the same.
    pub fn of_node(deployment: Arc<Deployment>, node: Node, slots: &SlotSet, period: Duration) -> Canary {
        Canary::begin(deployment, slots, period, Some(node))
    }

    fn begin(deployment: Arc<Deployment>, slots: &SlotSet, period: Duration, node: Option<Node>) -> Canary {
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            slots: Mutex::new(slots.iter().collect()),
            lately: Mutex::default(),
            answered: Mutex::new(Instant::now()),
        });
        let client = Client { deployment, node, links: HashMap::new(), owners: HashMap::new() };
        let task = tokio::spawn(watch(client, period, shared.clone(), stop.clone()));
        Canary { stop, task, shared }
    }

    /// From now on it asks for names in these slots.
    pub fn set_slots(&self, slots: &SlotSet) {
        *self.shared.slots.lock() = slots.iter().collect();
    }

    /// How long answers took since this was asked last.
    pub fn take_lately(&self) -> Answered {
        std::mem::take(&mut self.shared.lately.lock())
    }

    /// For how long there has been no answer.
    pub fn silent_for(&self) -> Duration {
        self.shared.answered.lock().elapsed()
    }

    /// Ends it, and reports what it met.
    pub async fn end(mut self) -> CanaryReport {
        self.stop.cancel();
        (&mut self.task).await.unwrap_or_default()
    }
}

impl Drop for Canary {
    /// A canary that nothing listens to any more asks nothing more.
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(
    mut client: Client,
    period: Duration,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> CanaryReport {
    let mut seen = CanaryReport::default();
    let mut turn: usize = 0;
    while !stop.is_cancelled() {
        let slot = {
            let slots = shared.slots.lock();
            // Neighbours have the same fate: a stride looks at all parts of the range soon.
            turn = (turn + 4_099).checked_rem(slots.len()).unwrap_or(0);
            slots.get(turn).copied()
        };
        let Some(slot) = slot else {
            // It may get some.
            let _ = stop.run_until_cancelled(tokio::time::sleep(period)).await;
            continue;
        };
        let started = Instant::now();
        let before = seen.moved + seen.ask;
        seen.requests += 1;
        let has_failed = !client.is_answered(slot, &mut seen).await;
        match has_failed {
            true => seen.errors += 1,
            false => *shared.answered.lock() = Instant::now(),
        }
        let took = started.elapsed();
        seen.longest_ms = seen.longest_ms.max(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        {
            let mut lately = shared.lately.lock();
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
    /// The node that it asks at first, if it is one node that is measured.
    node: Option<Node>,
    links: HashMap<Address, Link>,
    owners: HashMap<Slot, Address>,
}

impl Client {
    /// One request within its bound; false if there was no answer.
    async fn is_answered(&mut self, slot: Slot, seen: &mut CanaryReport) -> bool {
        let is_answered = match self.node.as_ref().map(|node| node.within) {
            Some(within) => timeout(within, self.ask(slot, seen)).await.is_ok_and(|answer| answer.is_ok()),
            None => self.ask(slot, seen).await.is_ok(),
        };
        if !is_answered {
            // What was cut off is out of step.
            self.links.clear();
            if self.node.is_some() {
                // The node that was asked may be the wrong one by now.
                self.owners.clear();
            }
        }
        is_answered
    }

    /// One request; an error if there was no answer.
    async fn ask(&mut self, slot: Slot, seen: &mut CanaryReport) -> Result<()> {
        let key = format!("whimbrel:canary:{{{}}}", tag_for_slot(slot));
        let mut asking = false;
        let mut at = match self.owners.get(&slot) {
            Some(address) => address.clone(),
            None => match (&self.node, self.deployment.topology().shard_of(slot)) {
                (Some(node), _) => node.address.clone(),
                (None, Some(shard)) => shard.primary.clone(),
                (None, None) => return Err(self.deployment.unowned(slot)),
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
