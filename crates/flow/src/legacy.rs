//! The classic way to move slots: `SETSLOT IMPORTING` and `MIGRATING`, `MIGRATE` key by key, `SETSLOT NODE`.
//!
//! This is what `redis-cli` and `valkey-cli` do. It is here to be compared with, and for servers on which
//! every other way is forbidden: clients see `ASK` and `TRYAGAIN` while a slot moves, `MIGRATE` blocks both
//! servers for as long as a key takes, and every slot costs several commands at every primary.
//!
//! A slot on its way is served by both nodes, so that being cut off in the middle of one loses nothing, but
//! leaves it marked: the same call finishes it. There is no way back for a slot that is half moved: without
//! its marks the source would answer for keys that are already at the target. A source that loses its last
//! slot becomes a replica of the target, unless `cluster-allow-replica-migration` is switched off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, ServerError, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::nodes::{ClusterView, Node};
use whimbrel_engine::slot_keys;
use whimbrel_wire::value::Value;

use crate::keys::dumps;
use crate::retry::{Backoff, RetryPolicy};

/// How a slot is moved.
#[derive(Debug, Clone, Copy)]
pub struct LegacyOptions {
    /// Keys in one `MIGRATE`; the classic tools take 10. At least 1, at most [`KEYS_PER_MIGRATE_MAX`].
    pub keys_per_migrate: usize,
    /// How long one `MIGRATE` may wait for the target; the classic tools take 60 s.
    pub migrate_timeout_ms: u32,
    /// Overwrite keys that the target has already and that differ. Keys that are equal on both, as a
    /// `MIGRATE` whose reply was lost leaves them, are always overwritten.
    pub replace: bool,
    /// Notify the other primaries of each slot, as the classic tools do, and do not leave it to gossip.
    pub notify_all: bool,
    /// Bounds on trying a slot again after a broken link or a transient error.
    pub retry: RetryPolicy,
}

impl Default for LegacyOptions {
    fn default() -> Self {
        LegacyOptions {
            keys_per_migrate: 10,
            migrate_timeout_ms: 60_000,
            replace: false,
            notify_all: true,
            retry: RetryPolicy { give_up_after_ms: 10_000, ..RetryPolicy::default() },
        }
    }
}

/// More keys than this in one `MIGRATE` would stall both servers for long, and make one command of them.
pub const KEYS_PER_MIGRATE_MAX: usize = 10_000;

/// How often a slot's first keys may turn out to be gone without any key leaving the slot.
const IDLE_ROUNDS_MAX: u32 = 100;

/// The pause after such a round.
const IDLE_PAUSE: Duration = Duration::from_millis(10);

/// How much longer than a `MIGRATE` we wait for its reply.
const GRACE_MS: u64 = 5_000;

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LegacyProgress {
    /// Slots to move.
    pub slots_total: usize,
    /// Slots moved.
    pub slots_done: usize,
    /// Keys moved, those of the current slot included.
    pub keys: u64,
    /// The slot on its way.
    pub slot: Option<Slot>,
}

/// What a move came to.
#[derive(Debug, Default)]
pub struct LegacyReport {
    /// The slots that are at the target now.
    pub moved: SlotSet,
    /// Keys that went with them.
    pub keys: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// True if it stopped because it was cancelled, before all slots had moved.
    pub cancelled: bool,
    /// What stopped it, if anything did: the slots in [`moved`](LegacyReport::moved) stay at the target all
    /// the same. The message says which slot it was.
    pub failure: Option<Error>,
    /// That slot, if both nodes serve it now, or may.
    pub half_moved: Option<Slot>,
}

/// Moves slots one after another, as the classic tools do. `cancel` is checked between slots: the current one
/// is finished first, so that none is left half moved.
///
/// # Errors
/// `Unfit` if the nodes are not two primaries of this cluster; if they cannot be reached. Nothing has moved
/// then. What goes wrong later is in the [report](LegacyReport::failure): what a server refuses, other values
/// that the target has for keys that are to move, a break for longer than the retries last.
pub async fn move_slots(
    deployment: &Deployment,
    source: &NodeId,
    target: &NodeId,
    slots: &SlotSet,
    options: LegacyOptions,
    mut progress: impl FnMut(LegacyProgress),
    cancel: &CancellationToken,
) -> Result<LegacyReport> {
    let started = Instant::now();
    let mut mover = Mover::open(deployment, source, target, options).await?;
    let mut state = LegacyProgress { slots_total: slots.len(), ..LegacyProgress::default() };
    let mut report = LegacyReport::default();
    'slots: for slot in slots {
        if cancel.is_cancelled() {
            report.cancelled = true;
            break;
        }
        state.slot = Some(slot);
        progress(state);
        let mut backoff = Backoff::new(options.retry);
        let mut is_first = true;
        loop {
            let mut count = |keys: u64| {
                state.keys += keys;
                progress(state);
            };
            let error = match mover.move_slot(slot, is_first, &mut count).await {
                Ok(()) => break,
                Err(e) => e,
            };
            is_first = false;
            if let Err(e) = backoff.pause(as_transient(error)).await {
                let (error, is_half_moved) = mover.explain(slot, e).await;
                (report.failure, report.half_moved) = (Some(error), Some(slot).filter(|_| is_half_moved));
                break 'slots;
            }
            mover.reconnect();
        }
        report.moved.insert(slot);
        state.slots_done += 1;
    }
    report.keys = state.keys;
    state.slot = None;
    progress(state);
    report.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// `MIGRATE` reports a target that it cannot reach as an error of its own: worth another try, as a broken
/// link is.
fn as_transient(mut error: Error) -> Error {
    let text = error.server().filter(|e| e.text.starts_with("IOERR")).map(|e| e.text.clone());
    if let Some(text) = text {
        error.kind = ErrorKind::Broken(std::io::Error::other(text));
        error =
            error.with_remedy("see that the source can reach the target, then run the same command again");
    }
    if error.is_link() && error.remedy.is_none() {
        error = error.with_remedy("see that the server is up and reachable, then run the same command again");
    }
    error
}

/// One node, with a connection that is opened when it is needed.
struct Peer {
    endpoint: Arc<Endpoint>,
    address: Address,
    options: LinkOptions,
    link: Option<Link>,
}

impl Peer {
    async fn link(&mut self) -> Result<&mut Link> {
        if self.link.is_none() {
            self.link = Some(Link::open(&self.endpoint, &self.address, self.options).await?);
        }
        Ok(self.link.as_mut().expect("it was opened just now"))
    }

    fn error(&self, tried: &str, what: impl Into<String>) -> Error {
        Error::unfit(self.endpoint.side, self.address.to_string(), tried, what)
    }
}

struct Mover {
    options: LegacyOptions,
    source_id: NodeId,
    target_id: NodeId,
    source: Peer,
    target: Peer,
    others: Vec<Peer>,
    /// Host and port under which the nodes themselves know the target.
    announced: (String, String),
    /// Slots that the target had before the first was moved: of a call that was cut off.
    at_target: SlotSet,
}

impl Mover {
    async fn open(
        deployment: &Deployment,
        source: &NodeId,
        target: &NodeId,
        options: LegacyOptions,
    ) -> Result<Mover> {
        let tried = "look at the cluster";
        let own = &deployment.endpoint;
        let mut link = deployment.open(&own.address, 0).await?;
        let reply = link.call(&[b"CLUSTER", b"NODES"]).await?;
        let text = reply.as_str().unwrap_or_default();
        let unexpected = || link.unexpected("CLUSTER NODES", &reply);
        let view = ClusterView::parse(text, own, &own.address).ok_or_else(unexpected)?;
        // The nodes reach each other under what they announce, whatever we have to use.
        let bare = Endpoint { address_map: Vec::new(), ..(**own).clone() };
        let as_announced = ClusterView::parse(text, &bare, &own.address).ok_or_else(unexpected)?;

        let link_options = LinkOptions {
            db: 0,
            reply_timeout_ms: deployment
                .options
                .reply_timeout_ms
                .max(u64::from(options.migrate_timeout_ms) + GRACE_MS),
            ..deployment.options
        };
        let end = |side: Side, node: &Node| Peer {
            endpoint: Arc::new(Endpoint { side, ..(**own).clone() }),
            address: node.address.clone(),
            options: link_options,
            link: None,
        };
        let primary = |side: Side, id: &NodeId| match view.node(id) {
            Some(node) if node.is_primary() => Ok(end(side, node)),
            Some(node) => Err(Error::unfit(
                side,
                node.address.to_string(),
                tried,
                format!("node {} is a replica", id.short()),
            )),
            None => {
                let what = format!("node {} is not in the cluster", id.short());
                Err(Error::unfit(side, own.address.to_string(), tried, what))
            }
        };
        let (source_end, target_end) = (primary(Side::Source, source)?, primary(Side::Target, target)?);
        if source == target {
            return Err(target_end.error(tried, "source and target are the same node"));
        }
        let announced = match as_announced.node(target).map(|n| &n.address) {
            Some(Address::Tcp(host, port)) => (host.clone(), port.to_string()),
            _ => return Err(target_end.error(tried, "the cluster does not know its address")),
        };
        let is_other = |n: &&Node| n.id != *source && n.id != *target && n.is_usable();
        let others = view.primaries().filter(is_other).map(|n| end(Side::Source, n)).collect();
        let mut mover = Mover {
            options,
            source_id: source.clone(),
            target_id: target.clone(),
            source: source_end,
            target: target_end,
            others,
            announced,
            at_target: SlotSet::new(),
        };
        mover.at_target = ClusterView::ask(mover.target.link().await?).await?.me().slots.clone();
        Ok(mover)
    }

    /// Moves one slot. After a failure it may be called again: every step may be repeated.
    async fn move_slot(&mut self, slot: Slot, is_first: bool, count: &mut impl FnMut(u64)) -> Result<()> {
        let number = slot.to_string();
        let (source_id, target_id) = (self.source_id.to_string(), self.target_id.to_string());
        // A try before may have got further than it knows.
        let is_done = if is_first { self.at_target.contains(slot) } else { self.is_at_target(slot).await? };
        if !is_done {
            setslot(&mut self.target, &number, "IMPORTING", &source_id).await?;
            setslot(&mut self.source, &number, "MIGRATING", &target_id).await?;
            self.move_keys(slot, count).await?;
        }
        // The new owner first: if the old one lost it first, no node would have it for a moment.
        setslot(&mut self.target, &number, "NODE", &target_id).await?;
        setslot(&mut self.source, &number, "NODE", &target_id).await?;
        if self.options.notify_all {
            for other in &mut self.others {
                // The owner's claim reaches it by gossip as well.
                if let Err(error) = setslot(other, &number, "NODE", &target_id).await {
                    tracing::debug!(%error, slot = slot.number(), "a primary did not take a slot's owner");
                    other.link = None;
                }
            }
        }
        Ok(())
    }

    async fn is_at_target(&mut self, slot: Slot) -> Result<bool> {
        let view = ClusterView::ask(self.target.link().await?).await?;
        Ok(view.me().slots.contains(slot))
    }

    /// Sends keys until the source has none left. No new ones can come: for a key that is not there, a
    /// MIGRATING slot sends clients to the target.
    async fn move_keys(&mut self, slot: Slot, count: &mut impl FnMut(u64)) -> Result<()> {
        let most = self.options.keys_per_migrate.clamp(1, KEYS_PER_MIGRATE_MAX) as u64;
        let number = slot.to_string();
        let mut idle = 0;
        loop {
            let link = self.source.link().await?;
            let keys = slot_keys::first_names(link, &[slot], most).await?.concat();
            if keys.is_empty() {
                return Ok(());
            }
            if self.migrate(&number, &keys).await? {
                count(keys.len() as u64);
                idle = 0;
                continue;
            }
            // All of them have expired, or were deleted meanwhile.
            idle += 1;
            if idle >= IDLE_ROUNDS_MAX {
                let what = format!("slot {slot} lists keys that the server does not find");
                return Err(self.source.error("MIGRATE", what));
            }
            tokio::time::sleep(IDLE_PAUSE).await;
        }
    }

    /// Sends some keys; false if none of them was there any more.
    async fn migrate(&mut self, slot: &str, keys: &[Bytes]) -> Result<bool> {
        let reply = self.send_migrate(keys, self.options.replace).await?;
        let Some(e) = ServerError::of(&reply) else {
            return Ok(reply.as_bytes().is_none_or(|text| &text[..] != b"NOKEY"));
        };
        // "ERR Target instance replied with error: BUSYKEY Target key name already exists."
        let is_busy = e.code == Code::BusyKey || e.text.contains("BUSYKEY");
        if !is_busy {
            let about = match e.text.contains("Target instance replied") {
                true => &self.target,
                false => &self.source,
            };
            let error = Error::new(
                about.endpoint.side,
                about.address.to_string(),
                "MIGRATE",
                ErrorKind::Server(e.clone()),
            );
            return Err(match e.text.contains("OOM") {
                true => error.with_remedy("raise maxmemory on that server or make room"),
                false => error,
            });
        }
        let differing = self.differing(keys).await?;
        if differing > 0 {
            let what = format!("it has other values for {differing} keys of slot {slot}");
            return Err(self
                .target
                .error("MIGRATE", what)
                .with_remedy("see which are right and delete the others, or let keys be replaced"));
        }
        let reply = self.send_migrate(keys, true).await?;
        self.source.link().await?.check(reply, b"MIGRATE")?;
        Ok(true)
    }

    async fn send_migrate(&mut self, keys: &[Bytes], replace: bool) -> Result<Value> {
        let (host, port) = &self.announced;
        let endpoint = self.source.endpoint.clone();
        let timeout = self.options.migrate_timeout_ms.max(1).to_string();
        let mut words: Vec<&[u8]> =
            vec![b"MIGRATE", host.as_bytes(), port.as_bytes(), b"", b"0", timeout.as_bytes()];
        if replace {
            words.push(b"REPLACE");
        }
        // The source logs in at the target as we do. Servers keep these words out of their own logs.
        let password = endpoint.token().await?.map(|token| token.secret);
        match (&endpoint.user, &password) {
            (_, None) => {}
            (None, Some(password)) => words.extend([b"AUTH", password.expose().as_bytes()]),
            (Some(user), Some(password)) => {
                words.extend([&b"AUTH2"[..], user.as_bytes(), password.expose().as_bytes()]);
            }
        }
        words.push(b"KEYS");
        words.extend(keys.iter().map(|key| &key[..]));
        self.source.link().await?.ask(&words).await
    }

    /// How many of the keys both nodes have with different payloads.
    async fn differing(&mut self, keys: &[Bytes]) -> Result<usize> {
        let mut payloads = [Vec::new(), Vec::new()];
        for (end, payloads) in [&mut self.source, &mut self.target].into_iter().zip(&mut payloads) {
            let asking = end.endpoint.side == Side::Target;
            *payloads = dumps(end.link().await?, keys, asking).await?;
        }
        let [source, target] = payloads;
        let is_there = |v: &Value| v.as_bytes().is_some();
        Ok(source.iter().zip(&target).filter(|(s, t)| is_there(s) && is_there(t) && s != t).count())
    }

    /// The next try begins with new connections.
    fn reconnect(&mut self) {
        self.source.link = None;
        self.target.link = None;
    }

    /// Says what became of the slot that failed, and whether it may be half moved. A slot that no key has
    /// left is given back clean.
    async fn explain(&mut self, slot: Slot, mut error: Error) -> (Error, bool) {
        self.reconnect();
        let is_at_source = matches!(self.undo(slot).await, Ok(true));
        let left = match is_at_source {
            true => "it was left at the source",
            false => "it may be half moved: both nodes serve it, and whimbrel repair finishes it",
        };
        error.tried = format!("{}, slot {slot}", error.tried).into();
        (error.with_left(left), !is_at_source)
    }

    /// Clears the marks of a slot whose keys are all still at the source. False if that is not so.
    async fn undo(&mut self, slot: Slot) -> Result<bool> {
        let number = slot.to_string();
        if self.is_at_target(slot).await? {
            return Ok(false);
        }
        let stable: [&[u8]; 4] = [b"CLUSTER", b"SETSLOT", number.as_bytes(), b"STABLE"];
        // The target first: from then on it takes no new keys of the slot, and a count of none stays true.
        // Clients that the source sends to it come back to the source for that moment.
        self.target.link().await?.call(&stable).await?;
        if slot_keys::count(self.target.link().await?, slot).await? > 0 {
            let source = self.source_id.to_string();
            setslot(&mut self.target, &number, "IMPORTING", &source).await?;
            return Ok(false);
        }
        self.source.link().await?.call(&stable).await?;
        Ok(true)
    }
}

/// `CLUSTER SETSLOT slot STATE node`.
async fn setslot(end: &mut Peer, slot: &str, state: &str, node: &str) -> Result<()> {
    let words: [&[u8]; 5] = [b"CLUSTER", b"SETSLOT", slot.as_bytes(), state.as_bytes(), node.as_bytes()];
    let link = end.link().await?;
    let reply = link.ask(&words).await?;
    link.check(reply, format!("CLUSTER SETSLOT {slot} {state}").as_bytes())?;
    Ok(())
}
