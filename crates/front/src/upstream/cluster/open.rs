//! Opens connections to a cluster.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::duplex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::link::Io;

use super::connection::state::Conn;
use super::nodes::{Cluster, Counted, Ids};
use crate::upstream::admission::Admission;

/// What the pipe to a connection holds in each direction.
const PIPE_BYTES: usize = 16 << 10;

/// What opens connections to a cluster. It is asked once for each connection.
pub(crate) trait Connector: fmt::Debug + Send + Sync {
    /// What is known of the cluster as a deployment.
    fn deployment(&self) -> &Arc<Deployment>;

    /// A connection for a client.
    fn open_for_client(self: Arc<Self>) -> Io;

    /// A connection of our own, on which nobody has logged in. Where there are `ids`, each connection to a
    /// node is noted there before anything
    /// else is sent on it. The future ends when nothing is sent any more for the connection: soon after it
    /// was dropped.
    fn open(self: Arc<Self>, ids: Option<Ids>) -> (Io, JoinHandle<()>);

    /// Waits until no connection of a client is served any more. Those that were dropped end at once.
    fn none_open(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

impl<A: Admission> Connector for Cluster<A> {
    fn deployment(&self) -> &Arc<Deployment> {
        &self.deployment
    }

    fn open_for_client(self: Arc<Self>) -> Io {
        let counted = Counted::new(&self.open);
        spawn(self, None, Some(counted)).0
    }

    fn open(self: Arc<Self>, ids: Option<Ids>) -> (Io, JoinHandle<()>) {
        spawn(self, ids, None)
    }

    fn none_open(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.open.none())
    }
}

fn spawn<A: Admission>(
    cluster: Arc<Cluster<A>>,
    ids: Option<Ids>,
    counted: Option<Counted>,
) -> (Io, JoinHandle<()>) {
    let (near, far) = duplex(PIPE_BYTES);
    let gone = CancellationToken::new();
    let conn = Conn::new(cluster, far, gone.clone(), ids, counted.is_some());
    let task = tokio::spawn(async move {
        conn.run().await;
        drop(counted);
    });
    (Io::within(near, gone.drop_guard()), task)
}
