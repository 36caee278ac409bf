//! Carries the data of partitions from one backend to another, when this member is ordered to.
//!
//! A move has two steps. While the partition is served, only its size is checked: what is too much to carry
//! while no client may write is refused. Then, sealed, the keys of its slots are copied; see
//! [`carrier`](super::carrier). When the change is written down they are removed where they were.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use whimbrel_core::fleet::{Move, Partition};
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::Error;
use whimbrel_engine::link::Link;
use whimbrel_engine::slot_keys;
use whimbrel_fleet::{Data, Failure};

use super::carrier::{self, LOAD_BYTES_MAX, LOAD_KEY_BYTES_MAX, LOAD_KEYS_MAX, Load, Refusal, Route, Token};
use super::gate::Gate;
use crate::upstream::admission::Admission;
use crate::upstream::cluster::Cluster;

/// How long requests that wait for something to happen may take to end, of those that began before there was
/// a second backend.
const UNPINNED_PATIENCE: Duration = Duration::from_secs(5);

/// This many slots are emptied at once of what is not needed any more.
const CLEARED_AT_ONCE: usize = 4;

/// How long a replica may take to confirm what was carried, in milliseconds.
const REPLICA_PATIENCE_MS: &[u8] = b"1000";

/// How often to check whether the table has stayed the same, so that what was left behind can be looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// This many slots are asked for at once.
const SWEPT_AT_ONCE: usize = 512;

/// This many connections are kept to one node: as many as moves go on at once.
const LINKS_MAX: usize = 32;

/// A connection that was not used for this long may have been closed at the other side.
const LINK_LASTS: Duration = Duration::from_secs(10);

/// See the module. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Porter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    known: OnceLock<(Arc<Gate>, Arc<Cluster<Gate>>)>,
    links: Mutex<HashMap<Address, Vec<(Link, Instant)>>>,
    clears: Semaphore,
}

impl Default for Inner {
    fn default() -> Inner {
        let clears = Semaphore::new(CLEARED_AT_ONCE);
        Inner { known: OnceLock::new(), links: Mutex::default(), clears }
    }
}

/// A slot at a backend.
struct Site {
    deployment: Arc<Deployment>,
    address: Address,
    slot: Slot,
}

impl Porter {
    /// What it carries, and where. Before this is said it carries nothing.
    pub(super) fn begin(&self, gate: &Arc<Gate>, cluster: &Arc<Cluster<Gate>>) {
        // It is said once.
        let _ = self.0.known.set((gate.clone(), cluster.clone()));
    }

    /// Waits until what was carried away is removed, but not for longer than this.
    pub(super) async fn finish(&self, patience: Duration) {
        // Permits are given in turn, so these come after those of all tasks that wait for one already.
        let all = u32::try_from(CLEARED_AT_ONCE).unwrap_or(u32::MAX);
        if timeout(patience, self.0.clears.acquire_many(all)).await.is_err() {
            tracing::warn!("what was carried away is still there as well; nobody sees it");
        }
    }

    /// Looks, for ever, for what was left behind by members that were lost between a change and the removal
    /// of what they had carried away. Once for each state of the table that lasts.
    pub(super) async fn sweep(&self) {
        let (mut last, mut done) = (None, None);
        loop {
            sleep(SWEEP_EVERY).await;
            let Ok((gate, _)) = self.0.known() else { continue };
            let now = Some(gate.view().watch().borrow().stamp);
            let is_due = gate.waits().are_pinned() && now == last && now != done;
            last = now;
            if is_due {
                match self.0.sweep_all().await {
                    Ok(()) => done = now,
                    Err(why) => tracing::warn!(%why, "what was left behind cannot be looked for"),
                }
            }
        }
    }

    async fn check_left(&self, moving: &Move, to: u32) -> Result<(), Failure> {
        let (gate, _) = self.0.known()?;
        gate.pin_waits();
        timeout(UNPINNED_PATIENCE, gate.none_unpinned())
            .await
            .map_err(|_| Failure("requests wait that began before there was another backend".to_owned()))?;
        let from = gate.view().backend(moving.partition);
        let mut all = Load::default();
        for (source, target) in
            self.0.sites(moving.partition, from)?.iter().zip(self.0.sites(moving.partition, to)?)
        {
            for site in [source, &target] {
                if !site.deployment.is_cluster() {
                    let at = &site.deployment.endpoint.address;
                    let what = "has no cluster mode: only with that does it know which keys are in a slot";
                    return Err(Failure(format!("the server {at} {what}")));
                }
            }
            let mut link = self.0.link(source).await?;
            let load = carrier::measure(&mut link, source.slot, &source.deployment.capabilities).await;
            let load = load.map_err(|e| Failure(e.to_string()))?;
            self.0.keep(link);
            all.keys += load.keys;
            all.bytes += load.bytes;
            all.largest_bytes = all.largest_bytes.max(load.largest_bytes);
        }
        if all.is_too_much() {
            return Err(Failure(format!(
                "it has at least {} keys of {} bytes, the largest of {}: more than {LOAD_KEYS_MAX}, \
                 {LOAD_BYTES_MAX} and {LOAD_KEY_BYTES_MAX} would keep clients waiting for too long",
                all.keys, all.bytes, all.largest_bytes
            )));
        }
        Ok(())
    }

    async fn carry(&self, moving: &Move, to: u32) -> Result<(), Failure> {
        let (gate, _) = self.0.known()?;
        let from = gate.view().backend(moving.partition);
        if from == to {
            return Err(Failure("the data is there already".to_owned()));
        }
        let token = token_of(moving);
        for (source, target) in
            self.0.sites(moving.partition, from)?.iter().zip(&self.0.sites(moving.partition, to)?)
        {
            let (mut from, mut to) = (self.0.link(source).await?, self.0.link(target).await?);
            let route = Route {
                from: &source.deployment.capabilities,
                to: &target.deployment.capabilities,
                dialects: (source.deployment.facts.dialect, target.deployment.facts.dialect),
            };
            let carried = carrier::carry_slot(&mut from, &mut to, source.slot, token, &route).await;
            let carried = carried.map_err(|refusal| Failure(refusal.to_string()))?;
            if carried.keys > 0 {
                confirm(&mut to, target).await?;
            }
            self.0.keep(from);
            self.0.keep(to);
        }
        Ok(())
    }
}

impl Data for Porter {
    async fn transfer(&self, moving: &Move) -> Result<(), Failure> {
        match moving.backend {
            Some(to) => self.check_left(moving, to).await,
            None => Ok(()),
        }
    }

    async fn settle(&self, moving: &Move) -> Result<(), Failure> {
        match moving.backend {
            Some(to) => self.carry(moving, to).await,
            None => Ok(()),
        }
    }

    fn discard(&self, _: Partition) {}

    fn leave(&self, moving: &Move, backend: u32) {
        let (inner, moving) = (self.0.clone(), *moving);
        tokio::spawn(async move {
            let Ok(_one) = inner.clears.acquire().await else { return };
            if let Err(why) = inner.clear(&moving, backend).await {
                tracing::warn!(partition = moving.partition, %why, "what was carried away is still there as \
                    well; nobody sees it");
            }
        });
    }
}

/// Waits until a replica has what was carried, if there are any: the keys are removed at the other backend
/// soon, and a failover would lose them.
async fn confirm(to: &mut Link, target: &Site) -> Result<(), Failure> {
    let topology = target.deployment.topology();
    if topology.shard_of(target.slot).is_none_or(|shard| shard.replicas.is_empty()) {
        return Ok(());
    }
    let reply = to.call(&[b"WAIT", b"1", REPLICA_PATIENCE_MS]).await.map_err(|e| Failure(e.to_string()))?;
    match reply.as_int() {
        Some(1..) => Ok(()),
        _ => Err(Failure(format!(
            "no replica of {} has confirmed in time what was carried there",
            target.address
        ))),
    }
}

/// Which attempt of which owner it is.
fn token_of(moving: &Move) -> Token {
    Token { version: moving.from, term: moving.term }
}

impl Inner {
    fn known(&self) -> Result<&(Arc<Gate>, Arc<Cluster<Gate>>), Failure> {
        self.known.get().ok_or_else(|| Failure("this front has only just begun".to_owned()))
    }

    fn sites(&self, partition: Partition, backend: u32) -> Result<Vec<Site>, Failure> {
        let (gate, cluster) = self.known()?;
        let site = |slot: Slot| match cluster.place_of(backend, slot) {
            Some((deployment, address)) => Ok(Site { deployment, address, slot }),
            None => Err(Failure(format!(
                "backend number {backend} is not reached, or has no owner of slot {slot}"
            ))),
        };
        gate.slots_of(partition).into_iter().map(site).collect()
    }

    async fn clear(&self, moving: &Move, backend: u32) -> Result<(), Failure> {
        for site in self.sites(moving.partition, backend)? {
            let mut link = self.link(&site).await?;
            match carrier::clear_slot(&mut link, site.slot, token_of(moving), &site.deployment.capabilities)
                .await
            {
                Ok(_) => self.keep(link),
                // A later attempt carries it back, and has cleared it.
                Err(Refusal::Superseded { .. }) => {}
                Err(refusal) => return Err(Failure(refusal.to_string())),
            }
        }
        Ok(())
    }

    /// At each backend looks at the slots of this member whose data is at another one.
    async fn sweep_all(&self) -> Result<(), Failure> {
        let (gate, cluster) = self.known()?;
        for (backend, deployment) in cluster.backends().into_iter().filter(|(_, at)| at.is_cluster()) {
            let mut by_node: HashMap<Address, Vec<Slot>> = HashMap::new();
            for slot in Slot::all().filter(|slot| gate.owns(*slot) && gate.backend_of(*slot) != backend) {
                if let Some((_, address)) = cluster.place_of(backend, slot) {
                    by_node.entry(address).or_default().push(slot);
                }
            }
            for (address, slots) in by_node {
                for some in slots.chunks(SWEPT_AT_ONCE) {
                    self.sweep_some(backend, &deployment, &address, some).await?;
                }
            }
        }
        Ok(())
    }

    async fn sweep_some(
        &self,
        backend: u32,
        deployment: &Arc<Deployment>,
        address: &Address,
        slots: &[Slot],
    ) -> Result<(), Failure> {
        let (gate, _) = self.known()?;
        let failed = |e: Error| Failure(e.to_string());
        let site = |slot| Site { deployment: deployment.clone(), address: address.clone(), slot };
        let Some(first) = slots.first() else { return Ok(()) };
        let mut link = self.link(&site(*first)).await?;
        let counts = slot_keys::counts(&mut link, slots).await.map_err(failed)?;
        // A fence is one of them, and keys without one do not matter here.
        for (slot, _) in slots.iter().zip(counts).filter(|(_, count)| *count > 1) {
            // Later than whatever has led to this row, and earlier than whatever comes after it.
            let Some((version, at)) = gate.place_of(*slot).filter(|(_, at)| *at != backend) else { continue };
            let token = Token { version, term: 0 };
            match carrier::clear_what_was_left(&mut link, *slot, token, &deployment.capabilities).await {
                Ok(0) => {}
                Ok(keys) => {
                    tracing::info!(%slot, keys, at, "removed what was left behind at another backend")
                }
                // It is being carried there by now.
                Err(Refusal::Superseded { .. }) => link = self.link(&site(*slot)).await?,
                Err(refusal) => return Err(Failure(refusal.to_string())),
            }
        }
        self.keep(link);
        Ok(())
    }

    /// A connection to a node. After an error it is dropped; [`Inner::keep`] is for all others.
    async fn link(&self, site: &Site) -> Result<Link, Failure> {
        let kept = self.links().get_mut(&site.address).and_then(Vec::pop);
        match kept.filter(|(_, used)| used.elapsed() < LINK_LASTS) {
            Some((link, _)) => Ok(link),
            None => site.deployment.open(&site.address, 0).await.map_err(|e| Failure(e.to_string())),
        }
    }

    fn keep(&self, link: Link) {
        let mut links = self.links();
        let kept = links.entry(link.address().clone()).or_default();
        if kept.len() < LINKS_MAX {
            kept.push((link, Instant::now()));
        }
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Address, Vec<(Link, Instant)>>> {
        self.links.lock()
    }
}
