//! The only crate that knows server versions and dialects.
//!
//! - [`endpoint`]: what the user typed to name a deployment, and how to reach it;
//! - [`link`]: one connection to one server, greeted and ready for commands;
//! - [`probe`]: what a server is and can do, found by asking it;
//! - [`deployment`]: a standalone server or a cluster, its nodes and its slots;
//! - [`error`]: whose fault it was, what was tried, what the user can do.
//!
//! **Architecture invariant:** no other crate compares server versions. They ask for a capability.

pub mod deployment;
pub mod endpoint;
pub mod error;
pub mod link;
pub mod probe;
mod tls;
