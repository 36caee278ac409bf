//! How far a front is, and the moments at which keys begin to move, or to move the other way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
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
    /// Those that have not come to rest.
    sessions: AtomicUsize,
    /// One has ended, or come to rest.
    left: Notify,
    /// The addresses from which resting clients are connected to the server.
    resting: Mutex<Vec<SocketAddr>>,
}

/// The orders that the sessions of a stage are sent.
#[derive(Debug, Default, Clone)]
struct Signals {
    /// Come to rest.
    begin: CancellationToken,
    /// End, unless at rest.
    evict: CancellationToken,
    /// Go on as the present stage has it: this one is over.
    over: CancellationToken,
}

/// From one moment at which all clients rest to the next.
#[derive(Debug, Default)]
struct Stage {
    /// What moves keys, or has moved them; `None`: everything goes to the source.
    migration: Option<Arc<MigrationState>>,
    signals: Signals,
    present: Arc<Present>,
    /// Since when clients are held.
    held_since: Option<Instant>,
}

/// How a new session begins.
pub(crate) enum Entrance {
    /// In front of the source alone.
    Forwarding(Ticket),
    /// In front of both.
    Moving(Arc<MigrationState>, Ticket),
}

/// That of a session. While there is one of a stage that does not rest, the next does not begin.
#[derive(Debug)]
pub(crate) struct Ticket {
    present: Arc<Present>,
    is_counted: bool,
    pub(crate) begin: CancellationToken,
    pub(crate) evict: CancellationToken,
    pub(crate) over: CancellationToken,
}

/// Clients that are held.
#[derive(Debug)]
pub(crate) struct RestingClients {
    /// Those that were disconnected, as they did not come to rest.
    pub(crate) ended: u64,
    /// The addresses from which the others are connected to the server.
    pub(crate) resting: Vec<SocketAddr>,
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
        let Signals { begin, evict, over } = &stage.signals;
        let ticket = Ticket {
            present: stage.present.clone(),
            is_counted: true,
            begin: begin.child_token(),
            evict: evict.child_token(),
            over: over.child_token(),
        };
        match &stage.migration {
            None => Entrance::Forwarding(ticket),
            Some(migration) => Entrance::Moving(migration.clone(), ticket),
        }
    }

    /// What moves keys; `None` before that begins.
    pub(crate) fn migration(&self) -> Option<Arc<MigrationState>> {
        self.stage().migration.clone()
    }

    /// From here on new sessions wait for `migration`. Returns when no earlier session talks to a server any
    /// more.
    pub(crate) async fn begin(&self, migration: Arc<MigrationState>) {
        let before = self.go_on(Some(migration));
        // A session that comes to rest goes on at once.
        before.signals.over.cancel();
        before.rest(REST).await;
    }

    /// Has all clients come to rest, and stay there until [`Stages::open`]: from when this returns no session
    /// asks a server for anything. Those that have not come to rest `within` that time are disconnected.
    ///
    /// **Invariant:** what a session has asked for is answered before it rests, and a session that begins
    /// meanwhile rests from its beginning. A session that was ended has left nothing that a client was
    /// answered for, or will be.
    pub(crate) async fn hold(&self, within: Duration) -> RestingClients {
        let held = {
            let mut stage = self.stage();
            stage.held_since = Some(Instant::now());
            Stage {
                migration: None,
                signals: stage.signals.clone(),
                present: stage.present.clone(),
                held_since: None,
            }
        };
        let ended = held.rest(within.min(REST)).await;
        RestingClients { ended, resting: held.present.resting.lock().clone() }
    }

    /// Those that are held go on: with `migration`, or without one.
    pub(crate) fn open(&self, migration: Option<Arc<MigrationState>>) {
        // Under the mutex first: a client that is notified finds it.
        self.go_on(migration).signals.over.cancel();
    }

    /// For how long clients have been held; `None` if they are not.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        self.stage().held_since.map(|since| since.elapsed())
    }

    /// Replaces the stage, and returns the former one.
    fn go_on(&self, migration: Option<Arc<MigrationState>>) -> Stage {
        std::mem::replace(&mut *self.stage(), Stage { migration, ..Stage::default() })
    }

    /// It could not begin after all: everything is as it was with `migration`, or without one.
    pub(crate) fn undo(&self, migration: Option<Arc<MigrationState>>) {
        self.go_on(migration);
    }
}

impl Stage {
    /// Calls its sessions to rest, and disconnects those that have not come to rest `within` that time.
    /// Returns how many.
    async fn rest(&self, within: Duration) -> u64 {
        self.signals.begin.cancel();
        if timeout(within, self.present.none()).await.is_ok() {
            return 0;
        }
        let ended = self.present.sessions.load(Ordering::Acquire);
        self.signals.evict.cancel();
        self.present.none().await;
        ended as u64
    }
}

impl Present {
    async fn none(&self) {
        while self.sessions.load(Ordering::Acquire) > 0 {
            self.left.notified().await;
        }
    }
}

impl Ticket {
    /// The session rests, with connections to the server from there: it asks for nothing until the stage is
    /// over.
    pub(crate) fn rest(&mut self, from: impl Iterator<Item = SocketAddr>) {
        if self.is_counted {
            self.present.resting.lock().extend(from);
            self.leave();
        }
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.present.sessions.fetch_sub(1, Ordering::AcqRel);
            // Kept for a task that looks later.
            self.present.left.notify_one();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
    }
}
