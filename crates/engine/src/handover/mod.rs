//! Handing slots over between two primaries from outside: without a crash, a lost write, two writers, or an
//! error that clients would have to handle besides `MOVED`.
//!
//! The order is the caller's: [`raise_epoch`](Handover::raise_epoch) and
//! [`mark_importing`](Handover::mark_importing), staging; [`pause`](Handover::pause), the last touched keys,
//! [`wait_replicas`](Handover::wait_replicas), comparing; [`fence`](Handover::fence),
//! [`take_over`](Handover::take_over), [`settle`](Handover::settle), [`confirm`](Handover::confirm),
//! [`clean_up`](Handover::clean_up). Before the take-over everything can be undone with
//! [`give_back`](Handover::give_back) (after a fence), [`release`](Handover::release),
//! [`wipe`](Handover::wipe) and [`clear_marks`](Handover::clear_marks); after it, only forward.
//!
//! # Why there are three fences
//!
//! Servers check redirections before they check pauses: no pause holds a client back whose slot has no owner,
//! it is sent `CLUSTERDOWN` at once. So a slot must go from the source to the target without being unowned in
//! between, in the eyes of the source. How that can be done differs:
//!
//! - [`SlotFenceKind::Redirecting`] (Redis, Valkey 7.2): one transaction on the source deletes the slots and
//!   assigns them to the target. Afterwards the source answers `MOVED`, keeps its keys, and has nothing to
//!   learn by gossip, which would crash Redis 7.2 to 8.0 under a pause, and on 7.0 would leave keys behind on
//!   replicas. (Assigning a slot directly is refused while it holds keys.) Clients that come before the
//!   take-over are sent back and forth between the two nodes, so that must follow at once:
//!   [`Handover::fence_and_take_over`]. A script does the same if it may be used: it looks first, and acts
//!   only if nothing was written. Its single short answer makes the time until the take-over short; answers
//!   to a thousand commands of a transaction do not. And if the target can be made to wait for the source,
//!   there is no such time at all.
//! - [`SlotFenceKind::Gossip`] (Valkey 8.1 and later, whose `SETSLOT` in a transaction crashes, and whose
//!   learning by gossip under a pause does not crash): one transaction prolongs the pause and reads the
//!   replication offset. If nothing was written until then, nothing can be until long after the take-over.
//!   The source learns of that by gossip and deletes its keys itself, in one go, on its replicas as well; it
//!   is released once it has learned. No client is sent anywhere before the target is ready. Batches must be
//!   small, since the deletion blocks the source, and since for each slot every node of the cluster writes a
//!   line to its log.
//! - [`SlotFenceKind::Bare`] (Valkey 8.0, on which both of the above crash): the source deletes the slots,
//!   and learns of the new owner by gossip or by being notified. Clients may see `CLUSTERDOWN` for some
//!   milliseconds.
//!
//! Valkey 8.1.0 to 8.1.4 may crash when they remove keys of a lost slot while a child of theirs saves, for a
//! file or for a replica (<https://github.com/valkey-io/valkey/pull/2753>; seen with 8.1.1). Their source is
//! asked before the fence: if there is a child, the fence is a bare one. Before the take-over it is asked
//! again.
//!
//! # What else was found with real servers, and relied on here
//!
//! - The bus connections that a server opens have Nagle's algorithm on: of two broadcasts within 40 ms the
//!   second one waits for the acknowledgement of the first. `CLUSTER BUMPEPOCH` broadcasts. So the epoch is
//!   raised well before the pause, and the take-over broadcasts once.
//! - `BUMPEPOCH` in the transaction that adds slots announces them at once, but answers `STILL` and announces
//!   nothing if the node's epoch is the highest already. So on Valkey, on which `SETSLOT` cannot be used in a
//!   transaction and would make writers wait for replicas, the source's epoch is raised above the target's
//!   beforehand. Valkey 8.0 announces nothing even so. There the transaction leaves out one slot, and a
//!   `SETSLOT` for that follows: without it, others would hear of the new owner by chance, most of a second
//!   later for each batch.
//! - Since Valkey 8 a `SETSLOT` of a node with replicas takes effect between two turns of the event loop, and
//!   its broadcast leaves in the next: on an idle server after up to 100 ms, unless a command wakes it. So
//!   each such take-over is followed by a `PING`.
//! - A node and its replicas that see the node lose its last slot turn into replicas of the new owner, unless
//!   `cluster-allow-replica-migration` is off. It is switched off on the source and its replicas while its
//!   last slots move. Even then, on Redis, the source's replicas follow if *all* slots of the source go to a
//!   target without slots *at once*: see [`Handover::should_split`].
//! - Since Valkey 8 a write pause holds up `SETSLOT`: nothing of the kind is sent to a source that is paused.
//! - Redis 8.4 and later show keys of a slot, and count them, only if the slot is the node's own or marked as
//!   importing; `DBSIZE` and the memory have them all the same. So what is to be counted or removed there is
//!   marked meanwhile. A source that learns by gossip that it lost a slot removes the keys itself; one that
//!   was notified with `SETSLOT` does not. Marks are refused while the server removes what a migration of its
//!   own has left. Replicas delete hidden keys as they follow the stream.
//! - A primary sends its replicas a `PING` every ten seconds, also under a pause. It is the only command of
//!   14 bytes in a replication stream, and no write: it does not break a fence.

mod claim;
mod fence;
mod gate;
mod options;
mod peer;
mod permissions;
mod state;
mod sweep;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use whimbrel_core::migration::Process;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;

pub use self::claim::Claim;
pub use self::options::{HandoverOptions, SlotFenceKind};
use self::peer::{Closing, Connector, Mark, Peer};
pub use self::state::{Fenced, Handover, Members, Paused, Sealed};
use self::state::{MIGRATION_OPTION, Watchers};
pub use self::watch::Sighting;
use crate::deployment::Deployment;
use crate::endpoint::{Address, Endpoint};
use crate::error::{Code, Error, Result, Side};
use crate::nodes::{Node, native_migrations};
use crate::probe::Info;

/// Round trips between fence and release: the fence, the take-over, the source's view, the end of the pause.
/// If the target is made to wait, the check of that takes the place of the take-over.
const SEAL_TRIPS: u32 = 4;

/// With a fence that relies on the pause: the source is asked once more before the take-over.
const SEAL_TRIPS_GOSSIP: u32 = SEAL_TRIPS + 1;

/// Those of a source that just gives the slots up: before it marks are removed, and one slot is claimed on
/// its own, which takes three.
const SEAL_TRIPS_BARE: u32 = 9;

/// What a source does in one go when slots leave it, in microseconds: for each slot (a command of the fence,
/// and if it logs each, two lines of its log), and for each key that it deletes by itself.
const SLOT_US: u64 = 4;
const LOGGED_SLOT_US: u64 = 20;
const KEY_US: u64 = 2;

/// What one of the two nodes says of some slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Whether it is a primary.
    pub is_primary: bool,
    /// Which of them it owns in its own view.
    pub claims: SlotSet,
    /// Which of them it has marked as importing or migrating.
    pub open: SlotSet,
    /// How many keys it holds in them.
    pub keys: u64,
    /// Its process.
    pub process: Process,
}

/// What both nodes say of some slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The node that gives them away.
    pub source: Seen,
    /// The node that gets them.
    pub target: Seen,
}

impl Handover {
    /// Connects to the two primaries.
    ///
    /// # Errors
    /// `Unfit` if the cluster knows no such node; whatever keeps us from connecting.
    pub async fn open(deployment: &Deployment, source: NodeId, target: NodeId) -> Result<Handover> {
        Handover::open_with(deployment, source, target, HandoverOptions::default()).await
    }

    /// [`Handover::open`], with options.
    ///
    /// # Errors
    /// Likewise.
    pub async fn open_with(
        deployment: &Deployment,
        source: NodeId,
        target: NodeId,
        options: HandoverOptions,
    ) -> Result<Handover> {
        let view = watch::any_view(deployment).await?;
        let name = options.client_name();
        let open = async |side, id: NodeId| {
            let Some(node) = view.node(&id) else {
                let at = deployment.endpoint.address.to_string();
                let what = format!("the cluster knows no node {id}");
                return Err(Error::unfit(side, at, "find the node", what)
                    .with_remedy("whimbrel status lists the nodes"));
            };
            let endpoint = Endpoint { side, ..(*deployment.endpoint).clone() };
            let connector =
                Connector { endpoint: Arc::new(endpoint), options: deployment.options, name: name.clone() };
            let address = node.address.clone();
            Peer::open(connector, id, address, &options).await
        };
        let members = Members::of(&view, &source, &target);
        let sheltered = options.sheltered.iter().filter_map(|id| view.node(id));
        let sheltered = sheltered.map(|node| (node.id.clone(), node.address.clone())).collect();
        let (mut source, target) = tokio::try_join!(open(Side::Source, source), open(Side::Target, target))?;
        let node_timeout_ms = source
            .run(async |link| {
                let reply = link.ask(&[b"CONFIG", b"GET", b"cluster-node-timeout"]).await?;
                Ok(reply.as_items().and_then(|r| u64::try_from(r.get(1)?.as_int()?).ok()))
            })
            .await?;
        Ok(Handover {
            source,
            target,
            long_pause_ms: (2 * node_timeout_ms.unwrap_or(NODE_TIMEOUT_MS)).max(LONG_PAUSE_MS_MIN),
            options,
            marked: SlotSet::new(),
            taken: SlotSet::new(),
            claim_until_ms: 0,
            long_pause: None,
            beside_child: false,
            sheltered,
            members,
            gate: None,
            watchers: Watchers::default(),
        })
    }

    /// Where the source is reached.
    pub fn source_address(&self) -> &Address {
        &self.source.address
    }

    /// Where the target is reached.
    pub fn target_address(&self) -> &Address {
        &self.target.address
    }

    /// How many slots a batch should have at most, so that the source does not block for more than about 20
    /// ms.
    pub fn batch_slots_max(&self) -> usize {
        match self.usual_fence() {
            // Two lines in the source's log for each, in one go, 5 to 10 µs a line, and one in the log of
            // every other node.
            SlotFenceKind::Gossip if !self.source.traits.logs_ranges => 512,
            // One command for each, 1 to 2 µs.
            SlotFenceKind::Gossip | SlotFenceKind::Redirecting => 1_024,
            // As many, but of each the source is then notified once more, while clients see CLUSTERDOWN.
            SlotFenceKind::Bare => 256,
        }
    }

    /// How long a round trip to the farther one of the two nodes takes.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn round_trip(&mut self) -> Result<Duration> {
        let (source, target) = tokio::join!(self.source.round_trip(), self.target.round_trip());
        Ok(source?.max(target?))
    }

    /// How long it takes from the fence of `slots` slots with `keys` keys to the release, if nothing stalls,
    /// with round trips of this length.
    pub fn sealing(&self, slots: usize, keys: u64, round_trip: Duration) -> Duration {
        let (slot_us, key_us) = match self.usual_fence() {
            SlotFenceKind::Gossip if !self.source.traits.logs_ranges => (LOGGED_SLOT_US, KEY_US),
            SlotFenceKind::Gossip => (SLOT_US, KEY_US),
            SlotFenceKind::Redirecting | SlotFenceKind::Bare => (SLOT_US, 0),
        };
        let us = slot_us.saturating_mul(slots as u64).saturating_add(key_us.saturating_mul(keys));
        let trips = match self.usual_fence() {
            SlotFenceKind::Bare => SEAL_TRIPS_BARE,
            // One question more before the fence, one before the take-over, and the other fence if there is a
            // child.
            SlotFenceKind::Gossip if self.minds_children() => SEAL_TRIPS_BARE + 2,
            SlotFenceKind::Gossip => SEAL_TRIPS_GOSSIP,
            SlotFenceKind::Redirecting => SEAL_TRIPS,
        };
        Duration::from_micros(us).saturating_add(round_trip.saturating_mul(trips))
    }

    /// From now on others see that the job has begun. What they may have seen before is that it looks whether
    /// it may.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn begin(&mut self) -> Result<()> {
        self.options.begun = true;
        let name = self.options.client_name();
        self.source.rename(name.clone()).await?;
        self.target.rename(name).await
    }

    /// Connections of other jobs of whimbrel's on the two nodes: their names, and their addresses. Two
    /// handovers of one node would lift each other's pauses.
    ///
    /// A job that has begun sees others that have; it does not give way to a job that is only checking
    /// whether it may begin. A checking job sees the jobs that have begun, and the checking jobs that came to
    /// a node before it. So of two jobs that check at the same time, at most one sees no other job.
    ///
    /// A connection that is just being closed counts for up to a second.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn other_jobs(&mut self) -> Result<Vec<String>> {
        let closing = Closing::begin();
        loop {
            let mut others = Vec::new();
            for peer in [&mut self.source, &mut self.target] {
                let own = peer.number();
                let found = peer.other_jobs().await?.into_iter();
                others.extend(found.filter(|other| other.goes_before(own, &self.options)));
            }
            if !closing.may_be(&others).await {
                return Ok(others.iter().map(ToString::to_string).collect());
            }
        }
    }

    /// Migrations of the servers' own that are under way on the two nodes, in words. They pause writes and
    /// change epochs as a handover does.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn native_migrations(&mut self) -> Result<Vec<String>> {
        let (source, target) =
            tokio::try_join!(self.source.run(native_migrations), self.target.run(native_migrations))?;
        let mut all: Vec<String> = source.iter().chain(&target).map(ToString::to_string).collect();
        all.dedup();
        Ok(all)
    }

    /// What both nodes say of `slots`. Changes nothing.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call).
    pub async fn inspect(&mut self, slots: &SlotSet) -> Result<Inspection> {
        let (source, target) =
            tokio::try_join!(seen(&mut self.source, slots), seen(&mut self.target, slots))?;
        Ok(Inspection { source, target })
    }

    /// True if `slots` are all that the source has and the target has none: then Redis would make the
    /// source's replicas follow the slots. Handed over in two batches, one of them of a single slot, they
    /// stay.
    ///
    /// # Errors
    /// As [`ClusterView::ask`](crate::nodes::ClusterView::ask).
    pub async fn should_split(&mut self, slots: &SlotSet) -> Result<bool> {
        let view = self.source.view().await?;
        let target_is_empty = view.node(&self.target.id).is_none_or(|n| n.slots.is_empty());
        let all = view.me().slots.difference(slots).is_empty();
        let has_replicas = view.replicas_of(&self.source.id).next().is_some();
        Ok(slots.len() > 1 && all && target_is_empty && has_replicas && !self.source.traits.setslot_waits)
    }

    /// Finds the nodes whose replicas must be kept from following `slots`: the source and its replicas, if
    /// these are its last. Changes nothing; a caller that means to survive a crash writes
    /// [`Handover::sheltered`] down before [`Handover::mark_importing`].
    ///
    /// # Errors
    /// As [`ClusterView::ask`](crate::nodes::ClusterView::ask); if a replica of the source cannot be reached.
    pub async fn find_shelter(&mut self, slots: &SlotSet) -> Result<()> {
        let view = self.source.view().await?;
        if !view.me().slots.difference(slots).is_empty() {
            return Ok(());
        }
        let replicas = view.replicas_of(&self.source.id).filter(|n| n.is_usable());
        for node in replicas.chain([view.me()]) {
            if self.sheltered.iter().any(|(known, _)| *known == node.id) {
                continue;
            }
            let (mut link, _) = self.source.connector.open(&node.address).await?;
            let reply = link.ask(&[b"CONFIG", b"GET", MIGRATION_OPTION]).await?;
            // If it cannot be read it cannot be set, and then the replicas follow: this harms no key.
            if reply.as_items().and_then(|r| r.get(1)).and_then(|v| v.as_str()) == Some("yes") {
                self.sheltered.push((node.id.clone(), node.address.clone()));
            }
        }
        Ok(())
    }

    /// Nodes on which `cluster-allow-replica-migration` is off for now, or about to be.
    pub fn sheltered(&self) -> impl Iterator<Item = &NodeId> {
        self.sheltered.iter().map(|(id, _)| id)
    }

    /// Marks `slots` on the target as importing from the source. Staged keys can be written to them then,
    /// with `ASKING`. Begins what [`Handover::raise_epoch`] waits for. Safe to repeat.
    ///
    /// If these are the source's last slots, its replicas and itself are kept from following them, until
    /// [`Handover::confirm`], [`Handover::clear_marks`] or [`Handover::give_back`].
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call). Some of the slots may then be marked.
    pub async fn mark_importing(&mut self, slots: &SlotSet) -> Result<()> {
        self.find_shelter(slots).await?;
        for (_, address) in &self.sheltered {
            let (mut link, _) = self.source.connector.open(address).await?;
            // Refused if the user may not: then the replicas follow, and no key comes to harm.
            link.ask(&[b"CONFIG", b"SET", MIGRATION_OPTION, b"no"]).await?;
        }
        let mark = Mark::Importing(self.source.id.clone());
        let deadline = Instant::now() + REPLICAS_MAX;
        // Servers that have their replicas follow each SETSLOT refuse it while these lag. No client waits for
        // us yet.
        while let Err(e) = self.target.set_slots(slots, &mark).await {
            let is_lag = e.server().is_some_and(|e| e.code == Code::WritesStopped);
            if !is_lag || Instant::now() >= deadline {
                return Err(e);
            }
            sleep(REPLICAS_POLL).await;
        }
        self.marked = self.marked.union(slots);
        self.settle_epochs(Duration::ZERO).await
    }

    /// Clears the marks of `slots` on the target. Safe to repeat.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call). Some of the marks may then be cleared.
    pub async fn clear_marks(&mut self, slots: &SlotSet) -> Result<()> {
        self.unmark(slots).await?;
        self.unshelter().await;
        Ok(())
    }
}

/// How long the target's replicas may lag before slots are marked.
/// On a busy machine one round over thousands of slots takes seconds, and one may be refused each time.
const REPLICAS_MAX: Duration = Duration::from_secs(30);

/// How often marking is tried meanwhile.
const REPLICAS_POLL: Duration = Duration::from_millis(100);

/// The servers' own default for `cluster-node-timeout`.
const NODE_TIMEOUT_MS: u64 = 15_000;

/// The shortest pause for a fence that relies on it.
const LONG_PAUSE_MS_MIN: u64 = 10_000;

async fn seen(peer: &mut Peer, slots: &SlotSet) -> Result<Seen> {
    let view = peer.view().await?;
    let info = peer.run(async |link| Info::ask(link, "server").await).await?;
    let keys = peer.count_keys(&view, slots).await?;
    let Node { importing, migrating, slots: own, .. } = view.me();
    let open: SlotSet = importing.iter().chain(migrating).map(|(slot, _)| *slot).collect();
    Ok(Seen {
        is_primary: view.me().is_primary(),
        claims: own.intersection(slots),
        open: open.intersection(slots),
        keys,
        process: Process(info.field("run_id").unwrap_or_default().to_owned()),
    })
}
