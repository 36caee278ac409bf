//! The coordinator of a fleet.
//!
//! - [`FleetJournal`]: what survives it, in a redb file;
//! - [`Fleet`]: how others reach it: members with their connections, and people with their questions;
//! - [`Coordination`]: the task that runs `whimbrel_core::fleet::Coordinator`. It alone changes anything:
//!   everything comes to it in one bounded queue, and what it decides is on disk before anything hears of it;
//! - [`FleetStatus`]: how it stands, also in [numbers](metrics());
//! - [`client`]: the coordinator as people see it;
//! - `etcd`: a journal that several processes share, of which one is elected coordinator.

pub mod client;
mod coordination;
mod coordinator;
#[cfg(feature = "etcd")]
pub mod etcd;
mod handle;
mod journal;
mod links;
mod metrics;
pub(crate) mod news;
mod status;

pub use coordination::{Coordination, FleetOptions};
pub use coordinator::Coordinator;
pub use handle::{Fleet, Refused, Role};
pub use journal::{FleetJournal, Journal};
pub use metrics::metrics;
pub use status::{FleetStatus, MemberStatus};
