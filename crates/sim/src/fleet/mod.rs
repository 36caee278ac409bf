//! Model checking of [`whimbrel_core::fleet`]: the real coordinator and the real members in a small world in
//! which messages are lost, late and doubled, processes die, and clocks differ, in every order.
//!
//! The world ([`world`]) has two members and two partitions. What was ever sent may arrive at any later time,
//! any number of times, or never: that is loss, delay, doubling and any order at once. Coordinators die
//! before or after their journal is written, or live on while a later one works. The explorer ([`explore`])
//! visits every state within its limits, [`wander`] goes much further by chance. Both check in each state
//! that
//!
//! - no two members serve a partition at once, each by its own clock;
//! - what a member or a coordinator knows of a partition is what was written down, never more;
//! - from here, once nothing is lost any more, all tables become equal and all partitions are served. This
//!   one is checked in some of the states only, since it takes long.
//!
//! [`Bug`] plants known mistakes, to show that they would be found.

mod explore;
mod settle;
mod world;

pub use explore::{Limits, Report, Walks, explore, wander};
pub use world::Bug;
