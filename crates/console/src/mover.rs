//! The cluster of a console, and what moves its slots.

use std::sync::Arc;

use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::service::Settings;
use whimbrel_engine::deployment::Deployment;

/// The part that moves slots of a cluster.
#[derive(Clone)]
pub struct Mover {
    /// Who does it.
    pub queue: Arc<Queue>,
    /// The cluster.
    pub deployment: Arc<Deployment>,
    /// How it is done.
    pub settings: Settings,
    /// Why by this method.
    pub why: String,
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover").field("cluster", &self.cluster()).finish_non_exhaustive()
    }
}

impl Mover {
    /// What people call the cluster, and type where they approve of something: the address that was named.
    pub fn cluster(&self) -> String {
        self.deployment.endpoint.address.to_string()
    }
}
