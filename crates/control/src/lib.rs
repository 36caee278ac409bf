//! Carries out migrations: the journal of jobs and the executor of the state machine's effects.
//!
//! - [`job`]: runs one job of the external method;
//! - [`service`]: makes jobs of planned moves and runs them, by whatever method;
//! - [`daemon`]: a server that takes jobs, in Valkey's own commands;
//! - [`fleet`]: the coordinator of members that share the partitions of one table;
//! - [`store`]: where jobs are written down;
//! - [`fronts`]: those that can move keys, as jobs;
//! - [`hooks`]: commands of the user's that are run at events of a job;
//! - [`jobs`]: those of a folder, for people; [`again`]: what goes on with one;
//! - [`described`]: nodes, findings and repairs as JSON;
//! - [`steering`]: how others see and ask a job that runs;
//! - [`moves`]: what moves of slots would be, before they are made;
//! - [`naming`]: what jobs between two deployments are called;
//! - [`standing`], [`syncing`]: how copies, verifications and syncs stand that this process runs;
//! - [`topology`]: what clients get to know of the cluster;
//! - [`strangers`]: what others do with the nodes of a cluster;
//! - [`open_files`]: connections for which there are places;
//! - [`private`]: where files are, and that no other user can open them;
//! - [`cutovers`]: what came of a cutover, in words;
//! - [`canary`]: a client of our own that notes what the users' clients meet;
//! - [`report`]: what a job came to;
//! - [`pace`]: how fast jobs go, and how long they take;
//! - [`options`]: how keys move; [`values`]: those of options, as they are written;
//! - [`repair`]: finds and repairs what is wrong with a cluster, without jobs.
//!
//! **Architecture invariant:** what is to be done is decided in `whimbrel_core::migration` alone. This crate
//! carries it out, says truthfully what came of it, and writes it down.

pub mod access;
pub mod again;
pub mod canary;
pub mod clock;
pub mod cutovers;
pub mod daemon;
pub mod described;
mod executor;
pub mod failpoint;
pub mod fleet;
pub mod fronts;
pub mod hooks;
pub mod http;
pub mod job;
pub mod job_metrics;
pub mod jobs;
pub mod lobby;
pub mod moves;
pub mod naming;
pub mod open_files;
pub mod options;
pub mod pace;
pub mod pause;
pub mod private;
mod progress;
pub mod repair;
pub mod report;
pub mod reports;
#[cfg(test)]
mod scene;
pub mod secrets;
pub mod service;
mod socket;
pub mod standing;
pub mod steering;
pub mod store;
pub mod strangers;
pub mod syncing;
pub mod topology;
pub mod values;
pub mod verifying;
pub mod web;

pub use progress::JobProgress;

use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_engine::nodes::ClusterView;

/// The nodes of the cluster, as the first that answers sees them.
///
/// # Errors
/// The last node's error, if none answers.
pub async fn view_of(deployment: &Deployment) -> Result<ClusterView> {
    ask_anyone(deployment).await.map(|(_, view)| view)
}

/// As [`view_of`], with the connection to the node that answered.
async fn ask_anyone(deployment: &Deployment) -> Result<(Link, ClusterView)> {
    let topology = deployment.topology();
    let mut addresses = vec![deployment.endpoint.address.clone()];
    addresses.extend(topology.shards.iter().map(|shard| shard.primary.clone()));
    addresses.extend(topology.shards.iter().flat_map(|shard| shard.replicas.iter().cloned()));
    let mut failure = Error::own("ask for the nodes of the cluster", "no node is known");
    for address in addresses {
        let asking = async {
            let mut link = deployment.open(&address, 0).await?;
            let view = ClusterView::ask(&mut link).await?;
            Ok((link, view))
        };
        match asking.await {
            Ok(answered) => return Ok(answered),
            Err(e) => failure = e,
        }
    }
    Err(failure)
}
