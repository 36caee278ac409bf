//! What a connection before a fleet hears of while nothing else happens on it.

use std::pin::Pin;

use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::stalled::Stall;
use crate::upstream::admission::Admission;
use crate::upstream::cluster::nodes::{Cluster, Role};

pub(super) type NextNews = Pin<Box<dyn Future<Output = watch::Receiver<u64>> + Send>>;

/// What a connection has to hear of while nothing else happens on it.
pub(super) enum FleetNews {
    Nothing,
    /// The end of the lease.
    Lapse(Pin<Box<WaitForCancellationFutureOwned>>),
    /// Members that have come or gone.
    Members(NextNews),
}

impl FleetNews {
    pub(super) fn of<A: Admission>(cluster: &Cluster<A>) -> FleetNews {
        match &cluster.role {
            Role::None => FleetNews::Nothing,
            Role::Backend(gate) => FleetNews::Lapse(Box::pin(gate.lapse())),
            Role::Members(gate) => FleetNews::Members(next(gate.news())),
        }
    }
}

/// Tells when slots are sealed of which something may be under way.
pub(super) struct SealNotice {
    pub(super) told: NextNews,
    /// Until it is looked again, whatever is told: what was let go of may have arrived at the server after
    /// that, and a client may do nothing.
    pub(super) again: Option<Pin<Box<Sleep>>>,
    /// The client keeps such a slot from moving.
    pub(super) stall: Option<Stall>,
    /// Bytes of the client, and for it, at the end of the last poll.
    pub(super) requests_left: usize,
    pub(super) replies_left: usize,
}

/// The next time that a number changes.
pub(super) fn next(mut news: watch::Receiver<u64>) -> NextNews {
    Box::pin(async move {
        if news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        news
    })
}
