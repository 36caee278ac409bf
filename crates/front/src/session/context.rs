//! What all sessions of a front have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::face::Face;
use crate::migrate::stages::Stages;
use crate::upstream::Upstream;
use crate::upstream::shared::SharedConnections;

/// What sessions share.
#[derive(Debug)]
pub(crate) struct SessionContext {
    pub(crate) source: Upstream,
    pub(crate) connect_timeout_ms: u64,
    /// If there is a target that keys can move to.
    pub(crate) stages: Option<Arc<Stages>>,
    /// If connections to the source are shared.
    pub(crate) connections: Option<Arc<SharedConnections>>,
    /// If it presents itself as a cluster.
    pub(crate) face: Option<Arc<Face>>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) ending: Ending,
}

/// That the front ends: each session takes what has arrived, answers it, and hangs up.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Apart from the token, which is behind a mutex that the requests of all sessions would take.
    has_begun: AtomicBool,
    token: CancellationToken,
}

impl Ending {
    pub(crate) fn begin(&self) {
        // In this order: a session that is woken finds it.
        self.has_begun.store(true, Ordering::Release);
        self.token.cancel();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Wakes the task that has polled it once, when it begins.
    pub(crate) fn wakes(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }
}

/// What has been counted since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Clients that are connected.
    pub clients: AtomicU64,
    /// Clients that were let in.
    pub accepted: AtomicU64,
    /// Clients that were turned away, as there were too many.
    pub turned_away: AtomicU64,
    /// Clients whose TLS handshake failed.
    pub no_tls: AtomicU64,
    /// Clients whose server could not be reached.
    pub unreachable: AtomicU64,
}
