//! One iteration over the source.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::{JoinError, JoinSet};
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

use super::worker::{BATCH_KEYS, WORKERS};
use crate::migrate::locks::Moved;
use crate::migrate::staging::is_hidden;
use crate::migrate::state::MigrationState;

/// Keys that the background wants at the same time: as many as the workers take. What a client wants is taken
/// in the batch after them.
const BACKGROUND_KEYS: usize = WORKERS * BATCH_KEYS;

/// How much a server looks at in one `SCAN`.
const SCAN_COUNT: &[u8] = b"500";

/// One iteration over the source.
pub(super) struct Pass {
    pub(super) migration: Arc<MigrationState>,
    pub(super) source: Link,
    /// Keys that move.
    pub(super) wanted: JoinSet<(Bytes, Option<Moved>)>,
    /// Keys that cannot be moved.
    pub(super) staying: u64,
    /// Keys that are home, and have not been asked for at the source since.
    pub(super) home: Vec<Bytes>,
    /// Keys that are home, and at the source.
    pub(super) returned: u64,
    /// Keys that have not gone from the source although they were seen to, lately.
    pub(super) stuck: HashSet<Bytes>,
    /// Iterations over the nodes have given all keys, slots or not.
    pub(super) is_scanned: bool,
}

impl Pass {
    /// Has keys moved that the source has, a few at a time.
    pub(super) async fn take(&mut self, keys: Vec<Bytes>) -> Result<()> {
        let (staged, keys): (Vec<Bytes>, Vec<Bytes>) = keys.into_iter().partition(|key| is_hidden(key));
        // Nothing is assembled at the source: a crash has left them in another turn.
        sum_of(&mut self.source, b"UNLINK", &staged).await?;
        for key in keys {
            resumed(&self.migration).await;
            if self.migration.is_known(&key) {
                // Moved since the reply was made, or it has come back: then it must not be taken for the key.
                if self.stuck.insert(key.clone()) {
                    self.home.push(key);
                }
                continue;
            }
            if self.stuck.contains(&key) {
                continue;
            }
            if self.wanted.len() >= BACKGROUND_KEYS {
                let ended = self.wanted.join_next().await;
                self.ended(ended);
            }
            // At once and in this order, so that the workers find several together.
            let moved = self.migration.locks.want(&key);
            self.wanted.spawn(async move { (key, moved.await.ok()) });
        }
        // Once for each reply, so the bound is what a server gives in a few of them.
        self.look_for_returned().await
    }

    /// Waits for all that move.
    pub(super) async fn settle(&mut self) -> Result<()> {
        while let Some(ended) = self.wanted.join_next().await {
            self.ended(Some(ended));
        }
        self.look_for_returned().await
    }

    pub(super) fn ended(&mut self, wanted: Option<std::result::Result<(Bytes, Option<Moved>), JoinError>>) {
        match wanted {
            Some(Ok((key, Some(Moved::Home | Moved::WasHome)))) => self.home.push(key),
            Some(Ok((key, Some(Moved::Refused(_))))) => {
                self.staying += 1;
                self.stuck.insert(key);
            }
            _ => {}
        }
    }

    /// A key that is home is not at the source, for ever. One that is has been put there by somebody else, or
    /// the source has forgotten that it was removed.
    pub(super) async fn look_for_returned(&mut self) -> Result<()> {
        self.returned += sum_of(&mut self.source, b"EXISTS", &self.home).await?;
        self.home.clear();
        Ok(())
    }

    /// All keys that iterations over the nodes give.
    pub(super) async fn scan(&mut self) -> Result<()> {
        for mut node in self.migration.servers.source.each().await? {
            let mut cursor = Bytes::from_static(b"0");
            loop {
                let (next, keys) = scan(&mut node, &cursor).await?;
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

/// Sends a command for each of the keys, and adds up the replies. One command for all would not do in a
/// cluster.
pub(super) async fn sum_of(link: &mut Link, command: &[u8], keys: &[Bytes]) -> Result<u64> {
    for key in keys {
        link.push(&[command, key]);
    }
    link.flush().await?;
    let mut sum = 0;
    for _ in keys {
        let reply = link.reply().await?;
        let reply = link.check(reply, command)?;
        sum += number(link, &String::from_utf8_lossy(command), &reply)?;
    }
    Ok(sum)
}

pub(super) fn number(link: &Link, command: &str, reply: &Value) -> Result<u64> {
    reply.as_int().and_then(|n| u64::try_from(n).ok()).ok_or_else(|| link.unexpected(command, reply))
}

/// Waits while the background is paused.
pub(super) async fn resumed(migration: &MigrationState) {
    // The sender is the migration's own, so it cannot have gone.
    let _ = migration.paused.subscribe().wait_for(|paused| !paused).await;
}

pub(super) async fn scan(link: &mut Link, cursor: &Bytes) -> Result<(Bytes, Vec<Bytes>)> {
    let reply = link.call(&[b"SCAN", cursor, b"COUNT", SCAN_COUNT]).await?;
    let unexpected = link.unexpected("SCAN", &reply);
    let mut items = reply.into_items().unwrap_or_default().into_iter();
    match (items.next().and_then(Value::into_bytes), items.next().and_then(Value::into_items)) {
        (Some(next), Some(keys)) => Ok((next, keys.into_iter().filter_map(Value::into_bytes).collect())),
        _ => Err(unexpected),
    }
}
