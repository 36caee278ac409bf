//! Opens connections to a cluster.

use std::fmt;
use std::sync::Arc;

use whimbrel_engine::deployment::Deployment;

use super::connection::state::Conn;
use super::nodes::{Cluster, Ids};
use super::polled::ClusterConnection;
use crate::upstream::admission::Admission;

/// What opens connections to a cluster. It is asked once for each connection.
pub(crate) trait Connector: fmt::Debug + Send + Sync {
    /// What is known of the cluster as a deployment.
    fn deployment(&self) -> &Arc<Deployment>;

    /// A connection for a client.
    fn open_for_client(self: Arc<Self>) -> Box<dyn ClusterConnection>;

    /// A connection of our own, without a login. If there are `ids`, each connection to a node is noted there
    /// before anything else is sent on it.
    fn open(self: Arc<Self>, ids: Option<Ids>) -> Box<dyn ClusterConnection>;
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
