//! Serves clients in front of a server, and of two while keys move from one to the other.
//!
//! From the top down; nothing uses what stands above it:
//!
//! - [`fleet`]: a front that is a member of a fleet;
//! - [`counted`]: what is counted, for metrics;
//! - [`control`]: begins to move keys, goes on with it after a crash, turns it round, reports how it stands;
//! - [`server`]: listens, lets in, and counts;
//! - `session`: one client, its connections to servers, and what is on its way between them;
//! - [`migrate`]: keys on their way from one server to another while clients use them;
//! - `upstream`: what is behind the front: servers, clusters that look like one, connections that clients
//!   share;
//! - [`face`]: presents the front as a cluster, for clients that only know clusters;
//! - [`command`]: what is done with which command, the documentation of that, and where the keys of a command
//!   are;
//! - `pipe`: bytes on their way, and what may be held in memory;
//! - [`exposure`]: refuses to make a server public that asks for no password.
//!
//! **Every client has its own connection to each server,** and to each node of a cluster that it needs.
//! Whatever belongs to a connection there (its user, its database, its
//! protocol, `MULTI`, `WATCH`, subscriptions, its name) belongs to the client by nature, and nothing is
//! imitated.
//!
//! **Bounds.** What is held for a client is bounded by constants of `session`. A client that does not read is
//! not read from.

pub mod command;
pub mod control;
pub mod counted;
pub mod exposure;
pub mod face;
pub mod fleet;
pub mod migrate;
mod pipe;
pub mod server;
mod session;
mod upstream;
