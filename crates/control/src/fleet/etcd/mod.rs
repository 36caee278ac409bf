//! etcd as the journal of a fleet, and as where its coordinators elect one of them.
//!
//! - [`EtcdOptions`]: where it is, and under which keys;
//! - [`client`]: calls to its JSON gateway;
//! - [`encoding`]: what is under which key;
//! - [`journal`]: what is written down, by which coordinator, as long as none came after it;
//! - [`election`]: which coordinator leads, and until when;
//! - [`Candidate`]: one process of several. It stands by until it is elected, coordinates, and stands by
//!   again.
//!
//! `docs/design/fleet.md` says what guards what.

mod address;
mod candidate;
mod client;
mod election;
mod encoding;
mod journal;

pub use address::EtcdOptions;
pub use candidate::{Candidate, CandidateOptions};
