//! Moves keys: those that commands wait for, and all others in the background.
//!
//! A move belongs to no client, so a client that leaves does not end it half-way. A few workers, each with a
//! connection to either server, take the keys that commands want, in the order they were wanted and several
//! at a time. Others take what the background has found at the source: those keys are free until one of them
//! has time for them, and it takes fewer at a time while a command waits. Large keys are left to [workers of
//! their own](large).
//!
//! - `worker`: moves keys in batches; `large`: what is different for large ones;
//! - `pass`: an iteration over the source; `slots`: what is different if that is a cluster;
//! - `sweep`: passes until the source is empty, and the filter made anew after a crash.

mod large;
mod pass;
mod slots;
mod sweep;
mod worker;

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use self::large::LARGE_WORKERS;
pub(crate) use self::sweep::{rebuild, sweep};
use self::worker::{BACKGROUND_WORKERS, WORKERS, Worker};
use crate::migrate::state::{MigrationState, Moves};

/// Runs the workers until all of them are dropped with the future.
pub(crate) async fn work(migration: Arc<MigrationState>, Moves { wanted, background }: Moves) {
    let (wanted, background) = (Arc::new(Mutex::new(wanted)), Arc::new(Mutex::new(background)));
    let (large, large_moves) = mpsc::unbounded_channel();
    let large_moves = Arc::new(Mutex::new(large_moves));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(Worker::new(&migration, &large).run(wanted.clone()));
    }
    for _ in 0..BACKGROUND_WORKERS {
        workers.spawn(Worker::new(&migration, &large).run_background(background.clone()));
    }
    for _ in 0..LARGE_WORKERS {
        workers.spawn(Worker::new(&migration, &large).run_large(large_moves.clone()));
    }
    while workers.join_next().await.is_some() {}
}
