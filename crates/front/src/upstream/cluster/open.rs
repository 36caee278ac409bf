//! Opens connections to a cluster.

use std::fmt;
use std::sync::Arc;
use std::task::Context;

use whimbrel_engine::deployment::Deployment;

use super::connection::state::Conn;
use super::nodes::{Cluster, Ids};
use crate::pipe::io::Ended;
use crate::pipe::replies::Replies;
use crate::pipe::requests::Requests;
use crate::upstream::admission::Admission;

/// What opens connections to a cluster. It is asked once for each connection.
pub(crate) trait Connector: fmt::Debug + Send + Sync {
    /// What is known of the cluster as a deployment.
    fn deployment(&self) -> &Arc<Deployment>;

    /// A connection for a client.
    fn open_for_client(self: Arc<Self>) -> Box<dyn ClusterConnection>;

    /// A connection of our own, on which nobody has logged in. Where there are `ids`, each connection to a
    /// node is noted there before anything else is sent on it.
    fn open(self: Arc<Self>, ids: Option<Ids>) -> Box<dyn ClusterConnection>;
}

/// A connection to a cluster. It does nothing but when it is polled, and nothing is sent for it any more once
/// it has been dropped.
pub(crate) trait ClusterConnection: Send {
    /// Takes requests, sends what can be sent, and adds the replies that are next in turn; true where
    /// anything moved.
    ///
    /// # Errors
    /// [`Ended`] where nothing more will come. What is in `from` by then is still the client's.
    fn poll(&mut self, cx: &mut Context<'_>, to: &mut Requests, from: &mut Replies) -> Result<bool, Ended>;

    /// The client will send no more than what is there already. What it waits for is let go of.
    fn close(&mut self);
}

impl<A: Admission> Connector for Cluster<A> {
    fn deployment(&self) -> &Arc<Deployment> {
        &self.deployment
    }

    fn open_for_client(self: Arc<Self>) -> Box<dyn ClusterConnection> {
        Box::new(Conn::new(self, None, true))
    }

    fn open(self: Arc<Self>, ids: Option<Ids>) -> Box<dyn ClusterConnection> {
        Box::new(Conn::new(self, ids, false))
    }
}
