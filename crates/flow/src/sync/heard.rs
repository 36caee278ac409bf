//! When a server was last heard from.
//!
//! A link to a server that hangs, or to one behind a network that drops everything, looks like one to a
//! server with nothing to say: replication links of idle primaries are silent for as long as
//! `repl-ping-replica-period` says. So each primary of both sides is asked for a sign of life every second,
//! on a connection of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;

/// How often a server is asked.
const PERIOD: Duration = Duration::from_secs(1);

/// How long an answer is waited for before another connection is tried.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Beyond this a server is silent: its state is unknown.
pub const SILENT_AFTER_MS: u64 = 5_000;

/// When the primaries of one side were last heard from, by their addresses.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<BTreeMap<String, Instant>>);

impl Heard {
    /// From now on it is listened to.
    fn begin(&self, address: &Address) {
        self.lock().insert(address.to_string(), Instant::now());
    }

    /// It was heard. Nothing is noted of a server that is not listened to any more: an answer may come late.
    fn note(&self, address: &Address) {
        if let Some(at) = self.lock().get_mut(&address.to_string()) {
            *at = Instant::now();
        }
    }

    fn forget(&self, address: &Address) {
        self.lock().remove(&address.to_string());
    }

    /// Nothing listens any more.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// For how long nothing was heard from each.
    pub(super) fn silences(&self) -> Vec<(String, u64)> {
        let silence = |(address, at): (&String, &Instant)| (address.clone(), millis(*at));
        self.lock().iter().map(silence).collect()
    }

    /// How long nothing was heard from a server; 0 if nothing listens to it.
    pub(super) fn silent_ms(&self, address: &str) -> u64 {
        self.lock().get(address).map_or(0, |at| millis(*at))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock()
    }
}

/// Milliseconds since then.
pub(super) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Whether that is longer than any server that is well stays silent.
pub(super) fn is_silent(silent_ms: u64) -> bool {
    silent_ms > SILENT_AFTER_MS
}

/// Listens to all primaries of a deployment, until it is dropped.
pub(super) async fn listen(deployment: Arc<Deployment>, heard: Arc<Heard>) {
    let mut listeners = JoinSet::new();
    let mut by_address: HashMap<Address, AbortHandle> = HashMap::new();
    loop {
        let topology = deployment.topology();
        by_address.retain(|address, listener| {
            let is_kept = topology.shards.iter().any(|shard| shard.primary == *address);
            if !is_kept {
                listener.abort();
                heard.forget(address);
            }
            is_kept
        });
        for shard in &topology.shards {
            by_address.entry(shard.primary.clone()).or_insert_with(|| {
                heard.begin(&shard.primary);
                listeners.spawn(listen_to(deployment.clone(), shard.primary.clone(), heard.clone()))
            });
        }
        // Those that were aborted.
        while listeners.try_join_next().is_some() {}
        sleep(PERIOD).await;
    }
}

async fn listen_to(deployment: Arc<Deployment>, address: Address, heard: Arc<Heard>) {
    let mut link = None;
    loop {
        let kept = link.take();
        let ask = async {
            let mut link = match kept {
                Some(link) => link,
                None => deployment.open(&address, 0).await?,
            };
            // Our users may ask this on both sides, unlike PING. An error is a sign of life as well.
            link.ask(&[b"INFO", b"replication"]).await?;
            Ok(link)
        };
        let answered: Result<Link> = match timeout(ANSWER_TIME, ask).await {
            Ok(answered) => answered,
            Err(_) => continue,
        };
        match answered {
            Ok(open) => {
                heard.note(&address);
                link = Some(open);
            }
            Err(e) if e.server().is_some() => heard.note(&address),
            Err(_) => {}
        }
        sleep(PERIOD).await;
    }
}
