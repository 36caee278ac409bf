//! Model checking of [`whimbrel_core::migration`]: the real [`step`](whimbrel_core::migration::step) in a
//! small world in which everything that can go wrong does, in every order.
//!
//! The world ([`world`]) is two shards, two batches, three slots of one key each, and clients that write;
//! nodes die, are replaced or restart, pauses run out, gossip is late. The driver ([`driver`]) executes
//! effects as the executor does, or in part, or too late, loses replies, and dies. The explorer
//! ([`mod@explore`]) visits every state that can be reached with a given number of faults, and checks in each
//! that
//!
//! - no two nodes accept writes to a slot;
//! - a node that accepts writes to a slot has every acknowledged write to it;
//! - a job that ended has left the cluster as its end says;
//! - from here, once faults stop, resuming leads to such an end.
//!
//! [`Bug`] plants known mistakes in the driver, to show that they would be found.
//!
//! [`fleet`] does the same with the coordinator and the members of a fleet, [`repair`] with what decides how
//! a broken cluster is repaired.
//!
//! `docs/design/state-machine.md` lists what the model assumes of the servers.

pub mod driver;
pub mod explore;
pub mod fleet;
pub mod repair;
pub mod world;

pub use driver::Bug;
pub use explore::{Found, Limits, Report, explore};
pub use world::SlotFence;
