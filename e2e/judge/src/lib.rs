//! Fills deployments, writes to them, and judges what they hold, for the end-to-end tests.
//!
//! Everything here speaks to the servers through the `redis` crate only, so that what it finds is
//! independent of the code it judges: [`dataset`] fills a deployment, [`compare`] says whether two
//! hold the same, and [`writers`] and [`cluster_writers`] keep writing meanwhile and remember what
//! was promised to them.
//!
//! It is a crate of its own because this is where end-to-end tests compute: it is optimised, and
//! they are not (`profile.dev.package` in the workspace's `Cargo.toml`).

pub mod cluster_writers;
pub mod compare;
pub mod dataset;
pub mod deployment;
pub mod trouble;
pub mod writers;
