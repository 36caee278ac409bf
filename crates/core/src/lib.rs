//! Slots, selections and topology: pure data and functions, without I/O, clock or randomness.
//!
//! **Architecture invariant:** nothing in this crate reads a clock, a socket, a file, the environment or a
//! random number. The same input gives the same output on every machine, so all of it can be tested with
//! generated input and used inside simulations.
//!
//! - [`slot`]: hash slots of keys, sets of slots and their text form;
//! - [`cluster`]: a cluster as its nodes report it;
//! - [`fleet`]: members on one partition table, their coordinator, and what they say to each other;
//! - [`glob`]: key patterns with the semantics that the servers use for `KEYS` and `SCAN … MATCH`;
//! - [`select`]: which keys a job is about;
//! - [`migration`]: the state machine of a slot migration;
//! - [`node`]: names of cluster nodes;
//! - [`plan`]: which slots move where;
//! - [`repair`]: what to do about a cluster in which something is wrong;
//! - [`schedule`]: when something is due that was scheduled;
//! - [`topology`]: the slot table, its ranges, and what changed when it changed;
//! - [`units`]: sizes, durations and counts as people type and read them.

pub mod cluster;
pub mod fleet;
pub mod glob;
pub mod migration;
pub mod node;
pub mod plan;
pub mod repair;
pub mod schedule;
pub mod select;
pub mod slot;
pub mod topology;
pub mod units;
