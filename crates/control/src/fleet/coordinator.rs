//! What coordinates a fleet: one process alone, or one of several.

use std::path::Path;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};

use super::coordination::{Coordination, FleetOptions};
#[cfg(feature = "etcd")]
use super::etcd::{Candidate, CandidateOptions};
use super::handle::Fleet;

/// What coordinates.
#[derive(Debug)]
pub enum Coordinator {
    /// The only one of its fleet.
    Alone(Box<Coordination>),
    /// One of several that share a store.
    #[cfg(feature = "etcd")]
    Candidate(Box<Candidate>),
}

impl Coordinator {
    /// The only one, with its journal in a file of this folder, which is created if it is missing.
    ///
    /// # Errors
    /// `Own` if the folder cannot be made; as [`Coordination::open`].
    pub fn alone(folder: &Path, journal: &str, options: FleetOptions) -> Result<(Fleet, Coordinator)> {
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::own(format!("make the folder {}", folder.display()), e))?;
        let (fleet, coordination) = Coordination::open(&folder.join(journal), options)?;
        Ok((fleet, Coordinator::Alone(Box::new(coordination))))
    }

    /// One of several.
    ///
    /// # Errors
    /// As [`Candidate::open`].
    #[cfg(feature = "etcd")]
    pub async fn among_others(options: CandidateOptions) -> Result<(Fleet, Coordinator)> {
        let (fleet, candidate) = Candidate::open(options).await?;
        Ok((fleet, Coordinator::Candidate(Box::new(candidate))))
    }

    /// Coordinates until `stop`. It is reached at `address`.
    ///
    /// # Errors
    /// As [`Coordination::run`], and if what is in the store has to be put right first.
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "only etcd names them"))]
    pub fn run(self, address: String, stop: CancellationToken) -> BoxFuture<'static, Result<()>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            match self {
                Coordinator::Alone(coordination) => coordination.run(stop).await,
                #[cfg(feature = "etcd")]
                Coordinator::Candidate(candidate) => candidate.run(address, stop).await,
            }
        })
    }
}
