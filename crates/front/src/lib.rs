//! Serves clients in front of a server.
//!
//! - [`server`]: listens, lets in, and counts;
//! - [`commands`]: what is done with which command, and the table of it for the documentation;
//! - [`carry`]: the move of one key; not served yet;
//! - [`filter`]: which keys have arrived at a target; not served yet;
//! - [`table`]: where the keys of a command are; not used yet;
//! - `session`: one client, its own connection to the server, and what is on its way between them.
//!
//! **Every client has its own connection to the server.** Whatever belongs to a connection there (its user, its database, its
//! protocol, `MULTI`, `WATCH`, subscriptions, its name) belongs to the client by nature, and nothing is imitated.
//!
//! **Bounds.** What is held for a client is bounded by constants of `session`. Whoever does not read is not read from.

pub mod carry;
pub mod commands;
pub mod filter;
pub mod server;
mod session;
pub mod table;
