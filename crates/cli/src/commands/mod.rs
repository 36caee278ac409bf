//! The commands, each in a module of its name.
//!
//! `rebalance` and `drain` are with [`reshard`]. What several share: [`cluster`] for those about one cluster,
//! [`losses`] for those that replace or remove keys.

pub mod assess;
pub mod cluster;
pub mod config;
pub mod copy;
pub mod cutover;
pub mod demo;
pub mod fleet;
pub mod front;
pub mod jobs;
mod losses;
pub mod repair;
pub mod reshard;
pub mod serve;
pub mod status;
pub mod sync;
pub mod token;
pub mod unfence;
pub mod verify;
pub mod watch;
mod words;
