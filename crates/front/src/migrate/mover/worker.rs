//! A worker, which moves keys one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;
use whimbrel_engine::error::{Code, Error, ErrorKind, Result};
use whimbrel_engine::link::Link;
use whimbrel_flow::large::staging_key;
use whimbrel_wire::value::Value;

use crate::migrate::carry::{Carried, Route, carry, is_large};
use crate::migrate::locks::Moved;
use crate::migrate::state::{MigrationState, RETRY_PAUSE};
use crate::upstream::KillHandle;

pub(super) struct Worker {
    pub(super) migration: Arc<MigrationState>,
    /// Where large keys go.
    large: mpsc::UnboundedSender<Bytes>,
    pub(super) source: Option<Link>,
    /// With what ends it.
    target: Option<(Link, KillHandle)>,
}

/// What came of an attempt to move a key.
enum Attempt {
    Carried(Carried),
    /// It is too large to be moved at once. Nothing has been written.
    TooLarge,
}

impl Worker {
    pub(super) fn new(migration: &Arc<MigrationState>, large: &mpsc::UnboundedSender<Bytes>) -> Worker {
        Worker { migration: migration.clone(), large: large.clone(), source: None, target: None }
    }

    pub(super) async fn run(mut self, moves: Arc<Mutex<mpsc::UnboundedReceiver<Bytes>>>) {
        loop {
            let key = moves.lock().await.recv().await;
            let Some(key) = key else { return };
            let moved = {
                // Nobody counts keys while one of them may be on both sides.
                let migration = self.migration.clone();
                let _gate = migration.gate.read().await;
                self.bring_home(&key, false).await
            };
            match moved {
                Some(moved) => self.end(&key, &moved),
                None => {
                    self.migration.locks.let_in(&key);
                    // Its workers end with this one.
                    let _ = self.large.send(key);
                }
            }
        }
    }

    /// Ends the move of a key.
    pub(super) fn end(&self, key: &Bytes, moved: &Moved) {
        if matches!(moved, Moved::Home | Moved::WasHome) {
            // Before the lock is let go, or a reader could take the key for one of the source.
            self.migration.note_home(key);
            self.migration.alarms().not_taken(key);
        }
        self.migration.locks.finish(key, moved);
    }

    /// Moves a key whose lock is held, however often that has to be tried. `None` where it is too large to be
    /// moved at once, unless `of_any_size`.
    pub(super) async fn bring_home(&mut self, key: &[u8], of_any_size: bool) -> Option<Moved> {
        let mut is_first = true;
        loop {
            match self.attempt(key, std::mem::take(&mut is_first), of_any_size).await {
                Ok(Attempt::TooLarge) => return None,
                Ok(Attempt::Carried(Carried::Stays(why))) => return Some(Moved::Refused(why.into())),
                Ok(Attempt::Carried(Carried::Taken)) => return Some(self.taken(key)),
                Ok(Attempt::Carried(Carried::WasHome)) => return Some(Moved::WasHome),
                Ok(Attempt::Carried(Carried::Home)) => return Some(Moved::Home),
                Err(error) => {
                    if let Some(refused) = self.after(error, key).await {
                        return Some(refused);
                    }
                }
            }
        }
    }

    /// What follows where the target has another key of this name.
    pub(super) fn taken(&self, key: &[u8]) -> Moved {
        self.migration.alarms().taken = Some(Bytes::copy_from_slice(key));
        Moved::Refused("the target has another one of this name, which was not moved there".into())
    }

    /// What follows from an error: `None` where the move begins again, on new connections.
    pub(super) async fn after(&mut self, error: Error, key: &[u8]) -> Option<Moved> {
        // Refused by a server. The lock may be let go only where nothing was written: a copy at the target
        // that is not home would be taken for the key itself.
        if is_final(&error) && self.is_as_before(key).await {
            let text = error.to_string();
            self.migration.set_trouble(Some(text.clone()));
            return Some(Moved::Refused(text.into()));
        }
        self.note(&error);
        self.source = None;
        self.replace_target().await;
        sleep(RETRY_PAUSE).await;
        None
    }

    async fn attempt(&mut self, key: &[u8], is_first: bool, of_any_size: bool) -> Result<Attempt> {
        let migration = self.migration.clone();
        let route = route(&migration, !is_first);
        let is_in_filter = !migration.is_rebuilding() && migration.may_have_arrived(key);
        // What the target has is home, but for what a crash has left, or an attempt that failed half-way.
        if is_first && is_in_filter {
            let (_, target) = self.links().await?;
            if target.call(&[b"EXISTS", key]).await? == Value::Int(1) {
                return Ok(Attempt::Carried(Carried::WasHome));
            }
        }
        if !of_any_size && is_large(self.source().await?, key, &route).await? {
            return Ok(Attempt::TooLarge);
        }
        let (source, target) = self.links().await?;
        let carried = carry(source, target, key, &route).await?;
        if carried == Carried::Home {
            migration.set_trouble(None);
            migration.tally.moved.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Attempt::Carried(carried))
    }

    /// The connection to the source, made anew where there is none.
    pub(super) async fn source(&mut self) -> Result<&mut Link> {
        if self.source.is_none() {
            self.source = Some(self.migration.open_source().await?);
        }
        self.source.as_mut().ok_or_else(not_open)
    }

    /// Both connections.
    pub(super) async fn links(&mut self) -> Result<(&mut Link, &mut Link)> {
        if self.target.is_none() {
            self.target = Some(self.migration.servers.target.killable().await?);
        }
        self.source().await?;
        match (&mut self.source, &mut self.target) {
            (Some(source), Some((target, _))) => Ok((source, target)),
            _ => Err(not_open()),
        }
    }

    /// The move of a key begins again, because of this.
    pub(super) fn note(&self, error: &Error) {
        tracing::warn!(%error, "the move of a key begins again");
        self.migration.tally.retries.fetch_add(1, Ordering::Relaxed);
        self.migration.set_trouble(Some(error.to_string()));
    }

    /// Whether the target has nothing of a key, and nothing is on its way there.
    async fn is_as_before(&mut self, key: &[u8]) -> bool {
        self.source = None;
        self.replace_target().await;
        let Some((target, _)) = &mut self.target else { return false };
        let staged = staging_key(&self.migration.job, key);
        target.call(&[b"UNLINK", &staged]).await.is_ok()
            && matches!(target.call(&[b"EXISTS", key]).await, Ok(Value::Int(0)))
    }

    /// After an error: a new connection to the target, once the old one has been ended. Otherwise a `RESTORE`
    /// that still waits in it could be carried out later, when the key has been deleted, and bring it back.
    async fn replace_target(&mut self) {
        let mut old = self.target.take().map(|(_, kill_handle)| kill_handle);
        loop {
            let replaced = async {
                if let Some(old) = &mut old {
                    old.kill().await?;
                }
                self.migration.servers.target.killable().await
            };
            match replaced.await {
                Ok(target) => {
                    self.target = Some(target);
                    return;
                }
                Err(error) => {
                    self.migration.set_trouble(Some(error.to_string()));
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

/// Whether a server has refused, and will again. A cluster in which a slot moves or a node fails will not for
/// ever.
fn is_final(error: &Error) -> bool {
    match &error.kind {
        ErrorKind::Server(refused) => !matches!(refused.code, Code::TryAgain | Code::ClusterDown),
        _ => false,
    }
}

/// What both sides are and can do.
pub(super) fn route(migration: &MigrationState, is_tried_again: bool) -> Route<'_> {
    let servers = &migration.servers;
    Route {
        source: &servers.source_can,
        target: &servers.target_can,
        dialects: servers.dialects,
        job: &migration.job,
        may_be_there: is_tried_again || migration.is_rebuilding(),
    }
}

fn not_open() -> Error {
    Error::own("move a key", "no connection after opening it")
}
