//! What the lanes of one job share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::{Error, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::ServerFacts;
use whimbrel_engine::remedy::Remedy;

use super::failures::Failures;
use super::followed::Followed;
use super::limits::Limits;
use super::options::CopyOptions;
use super::suspects::Suspects;
use super::unstable::Unstable;
use crate::latency::{self, Watched, Watching, Written};
use crate::progress::CopyProgress;
use crate::retry::Backoff;

/// Both sides, what is to be done between them, and the parts that keep what is found out.
pub(crate) struct Shared {
    pub(crate) source: Arc<Deployment>,
    pub(crate) target: Arc<Deployment>,
    pub(crate) options: CopyOptions,
    pub(crate) progress: Arc<CopyProgress>,
    /// Values travel whole or not at all, and why: a proxy stands before one side, or the source does not
    /// allow pieces.
    pub(super) only_whole: Option<&'static str>,
    /// Cancelled when the user wants to stop: scanning ends, what is in the lanes is finished.
    pub(crate) stop: CancellationToken,
    pub(crate) limits: Limits,
    pub(crate) failures: Failures,
    pub(crate) suspects: Suspects,
    pub(crate) unstable: Unstable,
    pub(crate) followed: Followed,
    /// Slows the lanes down for slow servers, as long as there are lanes.
    _watching: Watching,
}

impl Shared {
    pub(crate) fn new(
        source: Arc<Deployment>,
        target: Arc<Deployment>,
        options: CopyOptions,
        progress: Arc<CopyProgress>,
        stop: CancellationToken,
    ) -> Shared {
        let watched =
            |deployment: &Arc<Deployment>, written| Watched { deployment: deployment.clone(), written };
        let both = vec![watched(&source, Written::None), watched(&target, Written::All)];
        let _watching = latency::watch(&options.rates, both);
        let only_whole = if source.is_proxied() || target.is_proxied() {
            // Pieces are put together by transactions, and by names that a proxy would send elsewhere.
            Some("through a proxy it goes in no other way")
        } else if !source.capabilities.reads_pieces() {
            Some("this user may not read it in pieces from the source: that needs TYPE and TIME at least")
        } else {
            None
        };
        let big_key_bytes = if only_whole.is_some() { u64::MAX } else { options.big_key_bytes };
        let options = CopyOptions { big_key_bytes, ..options };
        Shared {
            only_whole,
            limits: Limits::new(&options, progress.clone(), stop.clone()),
            failures: Failures::new(progress.clone(), options.mirror),
            suspects: Suspects::default(),
            unstable: Unstable::default(),
            followed: Followed::default(),
            _watching,
            source,
            target,
            options,
            progress,
            stop,
        }
    }

    /// Notes a key that could not be copied. What the target holds of it is not what the next changed
    /// elements belong to.
    pub(super) fn failed(&self, db: u32, key: &[u8], reason: String) {
        self.followed.forget(db, key);
        self.failures.note(db, key, reason);
    }

    /// Notes a key that is gone from both sides.
    pub(super) fn removed(&self, db: u32, key: &Bytes) {
        self.failures.arrived(db, key);
        self.followed.forget(db, key);
    }

    /// A pause before the next try, cut short when the user stops.
    pub(crate) async fn pause(&self, backoff: &mut Backoff, error: Error) -> Result<()> {
        tokio::select! {
            paused = backoff.pause(error) => paused,
            () = self.stop.cancelled() => {
                Err(Error::own("try again", "stopped while waiting for a server to recover")
                    .with_remedy(Remedy::Resume("")))
            }
        }
    }

    /// Asks the source for its topology; what moved is in doubt.
    pub(crate) async fn refresh_source(&self) {
        if let Err(error) = self.check_source().await {
            tracing::debug!(%error, "topology refresh failed");
        }
    }

    /// As [`Shared::refresh_source`], if nothing may be left unknown.
    ///
    /// # Errors
    /// If no node reports the topology.
    pub(crate) async fn check_source(&self) -> Result<()> {
        self.suspects.note_source_slots(&refresh(&self.source).await?);
        Ok(())
    }

    /// Asks the target for its topology; what moved is in doubt, since a failover may have lost acknowledged
    /// writes.
    pub(crate) async fn refresh_target(&self) {
        match refresh(&self.target).await {
            Ok(moved) => self.suspects.note_target_slots(&moved),
            Err(error) => tracing::debug!(%error, "topology refresh failed"),
        }
    }

    /// A connection to a node of the target. Another process than the one met there before is noted: it may
    /// have lost what the old one had acknowledged.
    pub(crate) async fn open_target(&self, address: &Address, db: u32) -> Result<Link> {
        let mut link = self.target.open(address, db).await?;
        let facts = ServerFacts::ask(&mut link).await?;
        if facts.replica && (self.target.is_cluster() || self.target.is_watched()) {
            // Demoted, and the others may not have notified us yet: what it acknowledged may be lost.
            let demoted = ServerError::classify(b"READONLY this node is a replica now");
            return Err(link.server_error(demoted, b"connect"));
        }
        if facts.replica {
            return Err(Error::unfit(
                self.target.side(),
                address.to_string(),
                "connect",
                "this server is a replica and takes no writes",
            )
            .with_remedy("name its primary"));
        }
        self.suspects.met(address, facts, &self.target.topology());
        Ok(link)
    }

    /// A connection to the target's owner of `slot`.
    pub(super) async fn open_target_owner(&self, slot: Slot, db: u32) -> Result<Link> {
        let topology = self.target.topology();
        match topology.shard_of(slot) {
            Some(shard) => self.open_target(&shard.primary, db).await,
            None => Err(self.target.unowned(slot)),
        }
    }
}

async fn refresh(deployment: &Deployment) -> Result<SlotSet> {
    let before = deployment.topology();
    deployment.refresh().await.map(|now| before.moved_slots(&now))
}

/// The average size of a value by the source's own count, for sizing the first groups, in bytes.
pub(crate) fn average_bytes(shared: &Shared) -> u64 {
    let keys = shared.progress.keys_total.load(Ordering::Relaxed).max(1);
    let shards = shared.source.topology().shards.len() as u64;
    // `dataset_bytes` is one node's share.
    shared.source.facts.dataset_bytes.saturating_mul(shards) / keys
}
