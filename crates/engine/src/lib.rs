//! The only crate that knows server versions and dialects.
//!
//! - [`endpoint`]: what the user typed to name a deployment, and how to reach it;
//! - [`clock`]: the clock for leases and pauses, which goes on while the machine is suspended;
//! - [`link`]: one connection to one server, greeted and ready for commands;
//! - [`unanswered`]: connections that ended while a server may still have commands of them;
//! - [`login`]: passwords, and those that expire, which a command prints;
//! - [`behind`] and [`routes`]: servers behind a proxy that divides keys among them;
//! - [`paused`]: servers whose clients are paused;
//! - [`probe`]: what a server is and can do, found by asking it;
//! - [`deployment`]: a standalone server or a cluster, its nodes and its slots;
//! - [`nodes`]: how the nodes of a cluster see each other, and where their keys are;
//! - [`sentinel`]: which server is the primary, by what sentinels say;
//! - [`slot_keys`]: which keys a node holds in its slots, and how many;
//! - [`native`]: the atomic slot migration that some servers have built in;
//! - [`handover`]: handing slots over between two primaries from outside;
//! - [`seal`]: pausing all writes to a deployment, and keeping writers out;
//! - [`inventory`]: what a deployment is like, asked for before it is migrated;
//! - [`rights`]: what this user may do on a server;
//! - [`expiry`]: when keys expire;
//! - [`error`]: whose fault it was, what was tried, what the user can do.
//!
//! **Architecture invariant:** no other crate compares server versions. They ask for a capability.

pub mod behind;
pub mod clock;
pub mod deployment;
pub mod endpoint;
pub mod error;
pub mod expiry;
pub mod feed;
pub mod handover;
pub mod inventory;
pub mod link;
pub mod login;
pub mod native;
pub mod nodes;
pub mod paused;
pub mod probe;
pub mod remedy;
pub mod rights;
pub mod routes;
pub mod seal;
pub mod sentinel;
mod side;
pub mod slot_keys;
pub mod tls;
pub mod unanswered;
