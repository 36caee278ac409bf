//! Runs the real binary against real servers.
//!
//! Everything here speaks to the servers through the `redis` crate only, so that what it finds is
//! independent of the code it judges: [`dataset`] fills a deployment, [`compare`] says whether two
//! hold the same, [`binary`] runs `whimbrel`, and [`writers`] keep writing meanwhile and remember
//! what was promised to them.

pub mod binary;
pub mod browser;
pub mod cluster_writers;
pub mod compare;
pub mod dataset;
pub mod deployment;
pub mod fleets;
pub mod fronts;
pub mod http;
pub mod permissions;
pub mod resharding;
pub mod shards;
pub mod slow_jobs;
pub mod syncing;
pub mod terminal;
pub mod writers;
