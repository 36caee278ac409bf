//! The coordinator of a fleet.
//!
//! - [`FleetJournal`]: what survives it, in a redb file;
//! - [`Fleet`]: how others reach it: members with their connections, and people with their questions;
//! - [`Coordination`]: the task that runs `whimbrel_core::fleet::Coordinator`. It alone changes anything:
//!   everything comes to it in one bounded queue, and what it decides is on disk before anybody hears of it;
//! - [`FleetStatus`]: how it stands;
//! - `etcd`: a journal that several processes share, one of which is elected to be the coordinator.

mod coordination;
#[cfg(feature = "etcd")]
pub mod etcd;
mod handle;
mod journal;
mod links;
mod status;

pub use coordination::{Coordination, FleetOptions};
pub use handle::{Fleet, Refused, Role};
pub use journal::{FleetJournal, Journal};
pub use status::{FleetStatus, MemberStatus};
