//! One connection to a cluster: at one end it looks like a connection to a server, at the other it has one to
//! each node that it needs.
//!
//! Requests go to the nodes that have their keys, replies come back in the order of the requests. Only the
//! node is read from whose reply is next, so
//! nothing has to be held for its turn.
//!
//! **Redirections.** If a node says that a request's slot has moved, the request is sent again, to the node
//! that has it, on a connection that is used for such requests alone: on the usual connection other replies
//! may come before. Until nothing is due any more no further requests are taken then, so requests for one key
//! keep their order. Therefore requests are kept until their replies have come, if they are no longer than
//! `io::OUT_BYTES_MAX`. A longer one is passed on while it arrives, and answered with an error instead.
//!
//! **What belongs to a connection** (user, protocol, name) is sent to each node before anything else is.
//! Transactions and watches are with the
//! node of their keys, and their keys have to be in one slot, as in any cluster.
//!
//! A node that closes a connection on which something is due, or on which something is watched or listened
//! to, ends the connection to the cluster: it is
//! not known what was carried out. The client has to connect again, as with a server.
//!
//! It has no task of its own. What holds it polls it, hands it requests whose words are known, and takes
//! replies whose ends are known.
//!
//! From the top down:
//!
//! - `serve`: what a poll does;
//! - `take`: requests on their way to nodes; `replies`: replies on their way back;
//! - `held`: transactions before a fleet; `blocking`: requests before a fleet that may wait for something to
//!   happen; `stalled`: clients that keep a slot of a fleet from moving;
//! - `admission`: whether a member of a fleet may carry a request out;
//! - `every`: requests that go to all primaries, or to one after the other;
//! - `send`: a request goes to a node, or is answered here; `nodes`: connections to nodes;
//! - `sharing`: requests that go over connections which other clients use as well;
//! - `silence`: nodes that say nothing, and may have been replaced;
//! - `state`: what a connection is; `node`, `due`, `request`, `parts`, `news`, `shared`: what it consists of.

mod admission;
mod blocking;
mod due;
mod every;
mod held;
mod news;
mod node;
mod nodes;
mod parts;
mod replies;
mod request;
mod send;
mod serve;
mod shared;
mod sharing;
mod silence;
mod stalled;
pub(super) mod state;
mod take;
