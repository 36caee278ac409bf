//! Opens connections to a cluster.

use std::sync::Arc;

use tokio::io::duplex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::link::Io;

use super::connection::state::Conn;
use super::nodes::{Cluster, Counted, Ids};

/// What the pipe to a connection holds in each direction.
const PIPE_BYTES: usize = 16 << 10;

impl Cluster {
    /// A connection for a client.
    pub(crate) fn open_for_client(self: &Arc<Cluster>) -> Io {
        self.spawn(None, Some(Counted::new(&self.open))).0
    }

    /// A connection of our own, on which nobody has logged in. Where there are `ids`, each connection to a node is noted there before anything
    /// else is sent on it. The future ends when nothing is sent any more for the connection: soon after it was dropped.
    pub(crate) fn open(self: &Arc<Cluster>, ids: Option<Ids>) -> (Io, JoinHandle<()>) {
        self.spawn(ids, None)
    }

    fn spawn(self: &Arc<Cluster>, ids: Option<Ids>, counted: Option<Counted>) -> (Io, JoinHandle<()>) {
        let (near, far) = duplex(PIPE_BYTES);
        let gone = CancellationToken::new();
        let conn = Conn::new(self.clone(), far, gone.clone(), ids);
        let task = tokio::spawn(async move {
            conn.run().await;
            drop(counted);
        });
        (Io::within(near, gone.drop_guard()), task)
    }
}
