//! Moves large keys in chunks, apart from all others, which do not wait behind them.
//!
//! A large key is copied while clients read it at the source; a client that writes to it waits. Then readers
//! are shut out, and it is removed from the source. The target gets it under a name of its own first, and in
//! one step under the right one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;
use whimbrel_engine::error::Result;
use whimbrel_flow::keys::unlink;
use whimbrel_flow::large::Outcome;

use super::worker::{Worker, route};
use crate::migrate::carry::copy;
use crate::migrate::locks::Moved;
use crate::migrate::state::RETRY_PAUSE;

/// Large keys that are moved at the same time.
pub(crate) const LARGE_WORKERS: usize = 2;

impl Worker {
    pub(super) async fn run_large(mut self, keys: Arc<Mutex<mpsc::UnboundedReceiver<Bytes>>>) {
        loop {
            let key = keys.lock().await.recv().await;
            let Some(key) = key else { return };
            let moved = self.move_large(&key).await;
            self.end(&key, &moved);
        }
    }

    /// Moves a large key that is wanted, and that readers may hold. None holds it when this returns.
    async fn move_large(&mut self, key: &Bytes) -> Moved {
        let migration = self.migration.clone();
        {
            let _gate = migration.gate.read().await;
            migration.on_their_way.begin(key);
        }
        let mut is_tried_again = false;
        let copied = loop {
            match self.copy(key, std::mem::replace(&mut is_tried_again, true)).await {
                Ok(outcome) => break Ok(outcome),
                Err(error) => {
                    if let Some(refused) = self.after(error, key).await {
                        break Err(refused);
                    }
                }
            }
        };
        // From here on no client reads it at the source any more.
        migration.locks.shut_out(key).await;
        // No command counts keys from its removal there until it has arrived.
        let _gate = migration.gate.read().await;
        let moved = match copied {
            Ok(Some(Outcome::Gone)) => Moved::Earlier,
            // As a payload it may be taken, like the types of modules.
            Ok(Some(Outcome::Unholdable(_))) => self.move_key(key).await,
            Ok(None) => self.taken(key),
            Ok(Some(_)) => {
                self.remove(key).await;
                Moved::Arrived
            }
            Err(refused) => refused,
        };
        migration.on_their_way.end(key);
        moved
    }

    /// `None` if the target has another key of this name.
    async fn copy(&mut self, key: &[u8], is_tried_again: bool) -> Result<Option<Outcome>> {
        let migration = self.migration.clone();
        let (source, target) = self.links().await?;
        let route = route(&migration, is_tried_again);
        let outcome = copy(source, target, key, &route).await?;
        migration.set_trouble(None);
        Ok((outcome != Outcome::Skipped || route.may_be_there).then_some(outcome))
    }

    /// Removes a key from the source that the target has, however often that has to be tried.
    async fn remove(&mut self, key: &[u8]) {
        let migration = self.migration.clone();
        loop {
            let removed = async {
                let (source, _) = self.links().await?;
                source.call(&unlink(key)).await
            };
            let Err(error) = removed.await else { break };
            self.note(&error);
            self.source = None;
            sleep(RETRY_PAUSE).await;
        }
        migration.set_trouble(None);
        migration.tally.moved.fetch_add(1, Ordering::Relaxed);
    }
}
