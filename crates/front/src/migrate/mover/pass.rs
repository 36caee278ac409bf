//! One iteration over the source.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Info;
use whimbrel_flow::keys::count::{count_existing, unlink_counted};
use whimbrel_flow::scan::page;

use super::worker::{BACKGROUND_WORKERS, BATCH_KEYS};
use crate::migrate::locks::{Moved, MovedSender};
use crate::migrate::staging::is_hidden;
use crate::migrate::state::{Batch, MigrationState};

/// Keys that the background has found and that have not moved yet, at most: twice as many as its workers
/// take, so that they need not wait for the next ones to be found.
const FOUND_KEYS: usize = 2 * BACKGROUND_WORKERS * BATCH_KEYS;

/// How much a server looks at in one `SCAN`.
pub(super) const SCAN_COUNT: u32 = 500;

/// One iteration over the source.
pub(super) struct Pass {
    pub(super) migration: Arc<MigrationState>,
    pub(super) source: Link,
    /// Keys to be handed over to the workers.
    found: Vec<Bytes>,
    /// How many have been handed over, and not been reported.
    under_way: usize,
    sender: MovedSender,
    outcomes: mpsc::UnboundedReceiver<(Bytes, Moved)>,
    /// Keys that cannot be moved.
    pub(super) staying: u64,
    /// Keys that are home, and have not been asked for at the source since.
    pub(super) moved: Vec<Bytes>,
    /// Keys that are home, and at the source.
    pub(super) returned: u64,
    /// Keys that have not gone from the source although they were seen to, lately.
    pub(super) stuck: HashSet<Bytes>,
    /// Iterations over the nodes have given all keys, slots or not.
    pub(super) is_scanned: bool,
}

impl Pass {
    pub(super) fn new(migration: &Arc<MigrationState>, source: Link) -> Pass {
        let (sender, outcomes) = mpsc::unbounded_channel();
        Pass {
            migration: migration.clone(),
            source,
            found: Vec::new(),
            under_way: 0,
            sender,
            outcomes,
            staying: 0,
            moved: Vec::new(),
            returned: 0,
            stuck: HashSet::new(),
            is_scanned: false,
        }
    }

    /// Has keys moved that the source has, a few at a time.
    pub(super) async fn take(&mut self, keys: Vec<Bytes>) -> Result<()> {
        let (staged, keys): (Vec<Bytes>, Vec<Bytes>) = keys.into_iter().partition(|key| is_hidden(key));
        // Nothing is assembled at the source: a crash has left them in another turn.
        unlink_counted(&mut self.source, &staged, false).await?;
        for key in keys {
            if self.migration.is_known(&key) {
                // Moved since the reply was made, or it has come back: then it must not be mistaken for the
                // key.
                if self.stuck.insert(key.clone()) {
                    self.moved.push(key);
                }
                continue;
            }
            if self.stuck.contains(&key) {
                continue;
            }
            self.found.push(key);
            if self.found.len() >= BATCH_KEYS {
                self.hand_over().await?;
            }
        }
        // Once for each reply, so the bound is what a server gives in a few of them.
        self.check_returned().await
    }

    /// Hands over to the workers what has been found. Waits until they have time for it.
    async fn hand_over(&mut self) -> Result<()> {
        self.migration.resumed().await;
        while let Ok(ended) = self.outcomes.try_recv() {
            self.ended(ended);
        }
        while self.under_way > 0 && self.under_way + self.found.len() > FOUND_KEYS {
            self.next_ended().await;
        }
        let keys = std::mem::take(&mut self.found);
        self.under_way += keys.len();
        let batch = Batch { keys, sender: self.sender.clone() };
        let sent = self.migration.background.send(batch).await;
        sent.map_err(|_| Error::own("move keys", "the workers have ended"))
    }

    /// Waits for all that move.
    pub(super) async fn settle(&mut self) -> Result<()> {
        if !self.found.is_empty() {
            self.hand_over().await?;
        }
        while self.under_way > 0 {
            self.next_ended().await;
        }
        self.check_returned().await
    }

    async fn next_ended(&mut self) {
        // The pass has a sender of its own, so there is a next one.
        if let Some(ended) = self.outcomes.recv().await {
            self.ended(ended);
        }
    }

    fn ended(&mut self, (key, moved): (Bytes, Moved)) {
        self.under_way -= 1;
        match moved {
            Moved::Arrived | Moved::Earlier => self.moved.push(key),
            Moved::Refused(_) => {
                self.staying += 1;
                self.stuck.insert(key);
            }
        }
    }

    /// A key that is home is not at the source, for ever. A key that is has been put there by another client,
    /// or the source has forgotten that it was removed.
    pub(super) async fn check_returned(&mut self) -> Result<()> {
        let is_one = !self.migration.servers.source.is_cluster();
        self.returned += count_existing(&mut self.source, &self.moved, is_one).await?;
        self.moved.clear();
        Ok(())
    }

    /// If none of a server's keys expires, keys are not asked one by one. In a cluster a key could be on its
    /// way from one node to another.
    async fn check_expiries(&mut self, node: &mut Link) -> Result<()> {
        if !self.migration.servers.source.is_cluster() {
            let keyspace = Info::ask(node, "keyspace").await?.keyspace();
            // A service may leave that out. Then it is unknown.
            let is_known = !keyspace.is_empty();
            self.migration.note_expiries(!is_known || keyspace.values().any(|counts| counts.expires > 0));
        }
        Ok(())
    }

    /// All keys that iterations over the nodes give.
    pub(super) async fn scan(&mut self) -> Result<()> {
        for mut node in self.migration.servers.source.each().await? {
            let mut cursor = Bytes::from_static(b"0");
            loop {
                self.check_expiries(&mut node).await?;
                let (next, keys) = page(&mut node, &cursor, SCAN_COUNT).await?;
                self.take(keys).await?;
                self.stuck.clear();
                if &next[..] == b"0" {
                    break;
                }
                cursor = next;
            }
        }
        self.settle().await
    }
}
