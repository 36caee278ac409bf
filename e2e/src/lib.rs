//! Runs the real binary against real servers.
//!
//! [`binary`] runs `whimbrel`, `whimbrel_judge` fills the servers and compares what they hold
//! afterwards; the rest is what several modules of `tests/e2e` need.

pub mod binary;
pub mod browser;
pub mod fleets;
pub mod fronts;
pub mod http;
pub mod permissions;
pub mod resharding;
pub mod shards;
pub mod slow_jobs;
pub mod syncing;
pub mod terminal;
