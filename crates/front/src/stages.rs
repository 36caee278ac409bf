//! How far a front is, and the moment at which keys begin to move.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::hub::Hub;

/// How long clients may take to come to rest. Whoever has not by then is disconnected.
const REST: Duration = Duration::from_secs(1);

/// How a front stands that has a target.
#[derive(Debug)]
pub(crate) struct Stages {
    stage: Mutex<Stage>,
}

/// Sessions in front of the source alone.
#[derive(Debug, Default)]
struct Present {
    sessions: AtomicUsize,
    /// One has ended, or come to rest.
    left: Notify,
}

#[derive(Debug)]
enum Stage {
    /// Everything goes to the source.
    Forwarding(Forwarding),
    /// Keys move, or have moved.
    Moving(Arc<Hub>),
}

#[derive(Debug, Default)]
struct Forwarding {
    /// Tells sessions to come to rest.
    begin: CancellationToken,
    /// Tells those that have not to end.
    evict: CancellationToken,
    present: Arc<Present>,
}

/// How a new session begins.
pub(crate) enum Entrance {
    /// In front of the source alone.
    Forwarding(Ticket),
    /// In front of both.
    Moving(Arc<Hub>),
}

/// That of a session in front of the source alone. While there is one, nothing moves.
#[derive(Debug)]
pub(crate) struct Ticket {
    present: Arc<Present>,
    pub(crate) begin: CancellationToken,
    pub(crate) evict: CancellationToken,
}

impl Stages {
    pub(crate) fn forwarding() -> Arc<Stages> {
        Arc::new(Stages { stage: Mutex::new(Stage::Forwarding(Forwarding::default())) })
    }

    pub(crate) fn moving(hub: Arc<Hub>) -> Arc<Stages> {
        Arc::new(Stages { stage: Mutex::new(Stage::Moving(hub)) })
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a new session.
    pub(crate) fn enter(&self) -> Entrance {
        match &*self.stage() {
            Stage::Forwarding(forwarding) => {
                // Under the mutex: `begin` counts it, or it finds keys moving.
                forwarding.present.sessions.fetch_add(1, Ordering::AcqRel);
                let (begin, evict) = (forwarding.begin.child_token(), forwarding.evict.child_token());
                Entrance::Forwarding(Ticket { present: forwarding.present.clone(), begin, evict })
            }
            Stage::Moving(hub) => Entrance::Moving(hub.clone()),
        }
    }

    /// What moves keys; `None` before that begins.
    pub(crate) fn hub(&self) -> Option<Arc<Hub>> {
        match &*self.stage() {
            Stage::Forwarding(_) => None,
            Stage::Moving(hub) => Some(hub.clone()),
        }
    }

    /// From here on new sessions wait for `hub`. Returns when no session talks to the source any more.
    pub(crate) async fn begin(&self, hub: Arc<Hub>) {
        let before = std::mem::replace(&mut *self.stage(), Stage::Moving(hub));
        let Stage::Forwarding(forwarding) = before else { return };
        forwarding.begin.cancel();
        if timeout(REST, forwarding.present.none()).await.is_err() {
            forwarding.evict.cancel();
            forwarding.present.none().await;
        }
    }

    /// It could not begin after all.
    pub(crate) fn undo(&self) {
        *self.stage() = Stage::Forwarding(Forwarding::default());
    }
}

impl Present {
    async fn none(&self) {
        while self.sessions.load(Ordering::Acquire) > 0 {
            self.left.notified().await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.present.sessions.fetch_sub(1, Ordering::AcqRel);
        // Kept for whoever looks later.
        self.present.left.notify_one();
    }
}
