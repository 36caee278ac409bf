//! The console: a page in the browser and the interface over HTTP that it uses.
//!
//! No module uses one that stands above it:
//!
//! - [`Console`] (`server`): listens, and stops;
//! - `routes`: what is answered where; `stream`: what is sent to those who watch; `checks`: who asks;
//! - `orders`: what is asked of jobs; `reading`: how everything stands, read once for all who watch;
//! - `inner`: what all requests have in common;
//! - [`remembered`]: what was found out about migrations;
//! - [`plans`]: moves of slots, from a plan to its approval; [`cluster`]: the cluster, and what is wrong
//!   with it; [`runs`]: assessments, copies, syncs and verifications that are begun here;
//! - `canaries`: how long clients wait for answers; [`Mover`] (`mover`): the cluster of this console, and
//!   what moves its slots;
//! - [`snapshot`]: how everything stood; [`shown`]: a job as the page gets it;
//! - [`interface`]: the document that describes what can be asked; [`page`]: the files of the page, all of
//!   them in the binary;
//! - [`audit`]: who has done what; [`tokens`]: who may do what; `counted`: how often, for `/metrics`;
//! - `failure`: why a request was refused or failed; `files`: those of the state folder that only their user
//!   reads, and that several consoles share;
//! - [`again`], [`report`]: the command that goes on with an interrupted job, and the report of one that has
//!   ended, as a page: for the command line as well.
//!
//! Jobs are those of the state folder, however they were begun: the console looks at them and asks them by
//! the same sockets as the command line ([`whimbrel_control::steering`]). It keeps nothing of its own but
//! tokens, the audit log, and what was found out about migrations, so it can end and begin again at any
//! moment.
//!
//! **Architecture invariant:** what changes anything is an order: it is written to the audit log before it is
//! carried out, and then comes to its end although the client has gone.

pub mod again;
pub mod audit;
mod canaries;
mod checks;
pub mod cluster;
mod counted;
mod failure;
mod files;
mod inner;
pub mod interface;
mod mover;
mod orders;
pub mod page;
pub mod plans;
mod reading;
pub mod remembered;
pub mod report;
mod routes;
pub mod runs;
mod server;
pub mod shown;
pub mod snapshot;
mod stream;
pub mod tokens;

pub use self::inner::ConsoleOptions;
pub use self::mover::Mover;
pub use self::server::{CONNECTIONS_MAX, Console};
