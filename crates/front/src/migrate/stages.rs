//! How far a front is, and the moments at which keys begin to move, or to move the other way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::migrate::state::MigrationState;

/// How long clients may take to come to rest. A client that has not by then is disconnected.
const REST: Duration = Duration::from_secs(1);

/// How a front stands that has a target.
#[derive(Debug)]
pub(crate) struct Stages {
    stage: Mutex<Stage>,
}

/// Sessions of one stage.
#[derive(Debug, Default)]
struct Present {
    sessions: AtomicUsize,
    /// One has ended, or come to rest.
    left: Notify,
}

/// From one moment at which all clients rest to the next.
#[derive(Debug, Default)]
struct Stage {
    /// What moves keys, or has moved them; `None`: everything goes to the source.
    migration: Option<Arc<MigrationState>>,
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
    Moving(Arc<MigrationState>, Ticket),
}

/// That of a session. While there is one of a stage, the next does not begin.
#[derive(Debug)]
pub(crate) struct Ticket {
    present: Arc<Present>,
    pub(crate) begin: CancellationToken,
    pub(crate) evict: CancellationToken,
}

impl Stages {
    pub(crate) fn forwarding() -> Arc<Stages> {
        Arc::new(Stages { stage: Mutex::default() })
    }

    pub(crate) fn moving(migration: Arc<MigrationState>) -> Arc<Stages> {
        Arc::new(Stages { stage: Mutex::new(Stage { migration: Some(migration), ..Stage::default() }) })
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }

    /// For a new session.
    pub(crate) fn enter(&self) -> Entrance {
        let stage = self.stage();
        // Under the mutex: `begin` counts it, or it finds the next stage.
        stage.present.sessions.fetch_add(1, Ordering::AcqRel);
        let (begin, evict) = (stage.begin.child_token(), stage.evict.child_token());
        let ticket = Ticket { present: stage.present.clone(), begin, evict };
        match &stage.migration {
            None => Entrance::Forwarding(ticket),
            Some(migration) => Entrance::Moving(migration.clone(), ticket),
        }
    }

    /// What moves keys; `None` before that begins.
    pub(crate) fn migration(&self) -> Option<Arc<MigrationState>> {
        self.stage().migration.clone()
    }

    /// From here on new sessions wait for `migration`. Returns when no session of before talks to a server
    /// any more.
    pub(crate) async fn begin(&self, migration: Arc<MigrationState>) {
        let before =
            std::mem::replace(&mut *self.stage(), Stage { migration: Some(migration), ..Stage::default() });
        before.begin.cancel();
        if timeout(REST, before.present.none()).await.is_err() {
            before.evict.cancel();
            before.present.none().await;
        }
    }

    /// It could not begin after all: everything is as it was with `migration`, or without one.
    pub(crate) fn undo(&self, migration: Option<Arc<MigrationState>>) {
        *self.stage() = Stage { migration, ..Stage::default() };
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
        // Kept for one that looks later.
        self.present.left.notify_one();
    }
}
