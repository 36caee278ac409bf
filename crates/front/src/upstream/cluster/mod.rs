//! A cluster that looks like one server to everyone with a connection to it.
//!
//! - `map`: which node has which slot, and the numbers of nodes;
//! - `destination`: to which nodes a command goes;
//! - `nodes`: what is known of the cluster;
//! - `connection`: one such connection, and behind it one to each node that it needs;
//! - `polled`: what a session sees of it;
//! - `open`: opens one; `as_io`: one as a stream of bytes, for the front's own commands.
//!
//! Redirections are followed here, and never passed on: they would lead a client past the front.
//!
//! **Bounds.** A connection to a cluster holds what a connection to a server does for each node that it uses,
//! and as many bytes of requests that
//! may have to be sent again as `connection` says. Long requests whose keys are not at their beginning are
//! held whole, all together within `nodes::LONG_BYTES_MAX`.

mod as_io;
mod connection;
mod destination;
mod map;
mod nodes;
mod open;
mod polled;

pub(crate) use self::as_io::AsIo;
pub(crate) use self::nodes::{Cluster, Ids, ask_keys};
pub(crate) use self::open::Connector;
pub(crate) use self::polled::ClusterConnection;
