//! Serves clients in front of a server.
//!
//! - [`server`]: listens, lets in, and counts;
//! - [`commands`]: what is done with which command, and the table of it for the documentation;
//! - `session`: one client, its connections to servers, and what is on its way between them;
//! - [`control`]: begins to move keys, goes on with it after a crash, turns it round, tells how it stands;
//! - [`direction`]: which way keys move;
//! - `staging`: what clients must not see of large keys on their way;
//! - [`state`]: how far it is, on disk;
//! - `stages`: the moments at which keys begin to move, or to move the other way;
//! - [`route`]: what is done with which command while keys move;
//! - `place`: what source and target are: servers, or clusters;
//! - `cluster`: a cluster that looks like one server;
//! - `alarms`: what is wrong with a source that somebody else uses;
//! - `hub`: what is known of keys, and commands that wait for theirs;
//! - [`locks`]: which keys are read at the source, and which are moved;
//! - `mover`: moves keys, and makes the filter anew after a crash;
//! - [`carry`]: the move of one key;
//! - [`face`]: presents the front as a cluster, for clients that only know clusters;
//! - [`arrived`], [`filter`]: which keys have arrived at the target;
//! - [`fleet`]: a front that is a member of a fleet;
//! - `flush`: empties both servers as if at one moment;
//! - [`table`]: where the keys of a command are;
//! - `whole`: questions about all keys.
//!
//! **Every client has its own connection to each server,** and to each node of a cluster that it needs. Whatever belongs to a connection there (its user, its database, its
//! protocol, `MULTI`, `WATCH`, subscriptions, its name) belongs to the client by nature, and nothing is imitated.
//!
//! **Bounds.** What is held for a client is bounded by constants of `session`. Whoever does not read is not read from.

mod alarms;
pub mod arrived;
pub mod carry;
mod cluster;
pub mod commands;
pub mod control;
pub mod direction;
pub mod exposure;
pub mod face;
pub mod filter;
pub mod fleet;
mod flush;
mod hub;
pub mod locks;
mod mover;
mod place;
mod room;
pub mod route;
pub mod server;
mod session;
mod stages;
mod staging;
pub mod state;
pub mod table;
mod trunk;
mod whole;
