//! Goes through slots again whose changes may have been missed.
//!
//! Nothing is followed meanwhile, so no lane is at work; the feeds record what is touched, and that is
//! transferred afterwards. So what is read here may be old by the time it is written, but never stays so.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::slot_keys;
use whimbrel_wire::value::Value;

use super::source::Source;
use super::status::SyncPhase;
use super::syncer::Syncer;
use crate::copy;
use crate::large::STAGING_PREFIX;
use crate::pipeline::Shared;
use crate::retry::Backoff;
use crate::scan::{KeyScan, Unit};

/// So few slots of a cluster are listed one by one; for more of them all keys are scanned.
const LISTED_SLOTS_MAX: usize = 256;

/// A slot with more keys than this is scanned for: listing it would stall its node.
const LISTED_KEYS_MAX: u64 = 50_000;

/// How far going through slots has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Through all of them.
    Complete,
    /// The user stopped it before.
    Stopped,
    /// Another node has taken the place of a primary of the source, which is not followed yet: the slots are
    /// gone through again when it is.
    Displaced,
}

/// What came of asking one primary of the source.
enum Asked<T> {
    Answered(T),
    /// It is no primary any more.
    Displaced,
}

impl Syncer {
    /// Makes all keys of `slots` equal, and removes those that only the target has.
    ///
    /// A few slots are transferred once more. If there are many, reading both sides costs less than rewriting
    /// one of them, with its replicas and its append-only file: so only what differs is transferred.
    ///
    /// # Errors
    /// What could not be helped by trying again.
    async fn reconcile(&mut self, slots: &SlotSet) -> Result<Walk> {
        self.shared.failures.forget(slots);
        // A key may have been removed and created again unseen, between the looks at the source and at the
        // target.
        self.shared.followed.forget_slots(slots);
        // Slots are listed in database 0 only.
        let is_one = self.shared.options.dbs.iter().all(|pair| pair.source == 0);
        let few = self.shared.source.is_cluster() && is_one && slots.len() <= LISTED_SLOTS_MAX;
        let scanned = match few {
            true => match self.transfer_listed(slots).await? {
                Asked::Answered(left) => left,
                Asked::Displaced => return Ok(Walk::Displaced),
            },
            false => slots.clone(),
        };
        // If it is killed meanwhile, it begins anew: the slots are written down as being in doubt.
        if !scanned.is_empty() && !self.compare_scanned(scanned).await? {
            return Ok(Walk::Stopped);
        }
        self.sweep(slots).await
    }

    /// Compares all keys of `slots`, and transfers those that differ; false if the user stopped it before.
    async fn compare_scanned(&mut self, slots: SlotSet) -> Result<bool> {
        // As many at once as a copy has: each has connections to all nodes of the target.
        let at_once = Arc::new(Semaphore::new(self.shared.options.shards_at_once.max(1)));
        let slots = Arc::new(slots);
        let compare = |mut source: Source| {
            let (at_once, slots) = (at_once.clone(), slots.clone());
            async move {
                // It is never closed.
                let _permit = at_once.acquire().await;
                let outcome = source.compare(&slots).await;
                (source, outcome)
            }
        };
        Ok(self.of_all(compare).await?.into_iter().all(|is_done| is_done))
    }

    /// Transfers the keys of slots of a cluster, slot by slot. Returns those that were left out, because they
    /// have too many, or moved meanwhile.
    async fn transfer_listed(&mut self, slots: &SlotSet) -> Result<Asked<SlotSet>> {
        let shared = self.shared.clone();
        let mut left = SlotSet::new();
        for source in &mut self.sources {
            let own = slots.intersection(&source.unit.slots);
            if own.is_empty() {
                continue;
            }
            let at = source.feed.address();
            let Asked::Answered(listed) = asked(&shared, at, async || list(at, &shared, &own).await).await?
            else {
                return Ok(Asked::Displaced);
            };
            for (slot, keys) in listed {
                let Some(mut keys) = keys else {
                    left.insert(slot);
                    continue;
                };
                keys.retain(|key| shared.options.selection.admits(key));
                if !source.transfer(0, keys).await? {
                    left.insert(slot);
                }
            }
        }
        Ok(Asked::Answered(left))
    }

    /// Removes the keys of `slots` from the target that the source does not have.
    ///
    /// # Errors
    /// What could not be helped by trying again.
    pub(super) async fn sweep(&mut self, slots: &SlotSet) -> Result<Walk> {
        let shared = self.shared.clone();
        let is_wanted = |key: &Bytes| {
            slots.contains(Slot::of_key(key))
                && shared.options.selection.admits(key)
                && !key.starts_with(STAGING_PREFIX.as_bytes())
        };
        for pair in &shared.options.dbs {
            for unit in Unit::of_all(&shared.target, pair.target, false) {
                if shared.target.is_cluster() && unit.slots.intersection(slots).is_empty() {
                    continue;
                }
                let mut scan = KeyScan::new(
                    shared.target.clone(),
                    unit,
                    shared.options.scan_options(),
                    shared.options.retry,
                    None,
                );
                while let Some(page) = scan.next().await? {
                    if shared.stop.is_cancelled() {
                        return Ok(Walk::Stopped);
                    }
                    let keys: Vec<Bytes> = page.keys.into_iter().filter(is_wanted).collect();
                    match self.remove_missing(pair.source, keys).await? {
                        Walk::Complete => {}
                        other => return Ok(other),
                    }
                }
            }
        }
        Ok(Walk::Complete)
    }

    /// Has the lanes look at those of `keys` that the source seems not to have: they remove what is gone.
    async fn remove_missing(&mut self, db: u32, keys: Vec<Bytes>) -> Result<Walk> {
        let shared = self.shared.clone();
        let topology = shared.source.topology();
        for source in &mut self.sources {
            let own = |key: &&Bytes| {
                !topology.cluster
                    || topology.shard_of(Slot::of_key(key)).is_some_and(|s| s.id == source.unit.shard_id)
            };
            let mut keys: Vec<Bytes> = keys.iter().filter(own).cloned().collect();
            keys.sort_unstable();
            keys.dedup();
            if keys.is_empty() {
                continue;
            }
            let at = source.feed.address();
            let ask = async || {
                let mut link = shared.source.open(at, db).await?;
                missing(&mut link, &keys).await
            };
            let Asked::Answered(missing) = asked(&shared, at, ask).await? else {
                return Ok(Walk::Displaced);
            };
            if !missing.is_empty() && !source.transfer(db, missing).await? {
                return Ok(Walk::Stopped);
            }
        }
        Ok(Walk::Complete)
    }

    /// Puts in order what a round cannot deal with. Nothing is under way meanwhile. What could not be gone
    /// through stays in doubt, and comes with the next time.
    pub(super) async fn repair(&mut self) -> Result<()> {
        let (again, open) = copy::find_suspects(&self.shared, &self.seen.0, &self.seen.1).await?;
        self.seen = (self.shared.source.topology(), self.shared.target.topology());
        self.suspects = self.suspects.union(&again);
        for source in &self.sources {
            if source.feed.touched().take_flushed() {
                self.suspects = self.suspects.union(&source.unit.slots);
            }
        }
        self.attach().await?;
        if let Some(wanted) = &self.shared.options.selection.slots {
            self.suspects = self.suspects.intersection(wanted);
        }
        let ready = self.suspects.difference(&open);
        self.status.suspect_slots(self.suspects.len());
        self.save()?;
        if !ready.is_empty() {
            self.status.phase(SyncPhase::Reconciling);
            if self.reconcile(&ready).await? != Walk::Complete {
                return Ok(());
            }
            self.reconciled_slots += ready.len() as u64;
            self.suspects = self.suspects.difference(&ready);
            self.status.suspect_slots(self.suspects.len());
            self.save()?;
        }
        Ok(())
    }
}

/// Asks the primary of the source at this address until it answers, or has been replaced.
///
/// # Errors
/// What could not be helped by trying again.
async fn asked<T>(shared: &Shared, at: &Address, ask: impl AsyncFn() -> Result<T>) -> Result<Asked<T>> {
    let mut backoff = Backoff::new(shared.options.retry);
    loop {
        let error = match ask().await {
            Ok(answer) => return Ok(Asked::Answered(answer)),
            Err(e) => e,
        };
        shared.pause(&mut backoff, error).await?;
        shared.refresh_source().await;
        if !shared.source.topology().shards.iter().any(|shard| shard.primary == *at) {
            tracing::info!(%at, "a primary of the source was replaced");
            return Ok(Asked::Displaced);
        }
    }
}

/// The keys of each slot; `None` if the node has too many of them.
async fn list(
    address: &Address,
    shared: &Shared,
    slots: &SlotSet,
) -> Result<BTreeMap<Slot, Option<Vec<Bytes>>>> {
    let mut link = shared.source.open(address, 0).await?;
    let mut listed = BTreeMap::new();
    for slot in slots {
        let count = slot_keys::count(&mut link, slot).await?;
        if count > LISTED_KEYS_MAX {
            listed.insert(slot, None);
            continue;
        }
        listed.insert(slot, Some(slot_keys::all_names(&mut link, &[(slot, count)]).await?));
    }
    Ok(listed)
}

/// Those of `keys` that do not exist, or that the node does not answer for.
async fn missing(link: &mut Link, keys: &[Bytes]) -> Result<Vec<Bytes>> {
    for key in keys {
        link.push(&[b"EXISTS", key]);
    }
    link.flush().await?;
    let replies = link.replies(keys.len()).await?;
    for e in replies.iter().filter_map(ServerError::of) {
        // A key on the move seems to be missing; the lane finds it.
        let is_elsewhere = matches!(e.code, Code::Moved(..) | Code::Ask(..) | Code::TryAgain);
        if e.code.is_transient() && !is_elsewhere {
            return Err(link.server_error(e, b"EXISTS"));
        }
    }
    let is_missing = |reply: &Value| reply.as_int() != Some(1);
    Ok(keys.iter().zip(&replies).filter(|(_, reply)| is_missing(reply)).map(|(key, _)| key.clone()).collect())
}
