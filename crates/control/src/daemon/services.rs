//! What the daemon serves (moves of slots, a fleet, or both), and the trait by which it has slots moved.

use std::sync::Arc;

use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_engine::error::Result;
use whimbrel_engine::nodes::ClusterView;
use whimbrel_wire::value::Value;

use super::migrations::JobView;
use crate::fleet::Fleet;
use crate::topology::Topology;

/// The part that does the work.
pub trait Jobs: Send + Sync + 'static {
    /// The cluster as it is now.
    ///
    /// # Errors
    /// Whatever keeps it from being asked.
    fn view(&self) -> impl Future<Output = Result<ClusterView>> + Send;

    /// What clients get to know of the cluster.
    fn topology(&self) -> &Topology;

    /// Passes a question on to a node, or to any if none is named. A refusal is a reply as well.
    ///
    /// # Errors
    /// Whatever keeps the node from being asked.
    fn ask(&self, node: Option<&NodeId>, words: &[&[u8]]) -> impl Future<Output = Result<Value>> + Send;

    /// Takes jobs in, one for each move, and writes them down before it returns. All or none. Returns their
    /// names.
    ///
    /// # Errors
    /// Whatever keeps it from taking them.
    fn submit(&self, moves: Vec<Move>) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Jobs that run, wait, or ended not long ago: those of the newest command first, and those of one
    /// command in their order in it, as Valkey lists them.
    ///
    /// # Errors
    /// Whatever keeps them from being listed.
    fn list(&self) -> impl Future<Output = Result<Vec<JobView>>> + Send;

    /// What others do in the cluster, shown as jobs: migrations begun at a node, and what another whimbrel
    /// moves.
    ///
    /// # Errors
    /// Whatever keeps the cluster from being asked.
    fn others(&self) -> impl Future<Output = Result<Vec<JobView>>> + Send;

    /// Asks for a job's cancellation, which takes effect soon after. A job that has ended is left as it is.
    ///
    /// # Errors
    /// Whatever keeps it from being asked for.
    fn cancel(&self, name: &str) -> impl Future<Output = Result<()>> + Send;
}

/// What the server is there for: one of the two, or both.
#[derive(Debug)]
pub struct Services<J> {
    /// Slots of a cluster are moved.
    pub jobs: Option<Arc<J>>,
    /// A fleet is coordinated.
    pub fleet: Option<Fleet>,
}

impl<J> Clone for Services<J> {
    fn clone(&self) -> Self {
        Services { jobs: self.jobs.clone(), fleet: self.fleet.clone() }
    }
}
