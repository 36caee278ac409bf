//! Bytes to and from RESP2 and RESP3. No sockets.
//!
//! Three parts, each usable alone:
//!
//! - [`scan`] finds where a frame ends, incrementally, without looking at payload bytes;
//! - [`value`] turns a complete frame into a [`value::Value`] whose strings share the frame's memory;
//! - [`encode`] writes commands, splicing large payloads instead of copying them.
//!
//! Two more serve a proxy, which passes on what it does not hold: [`request`] finds the commands of a client,
//! [`boundary`] the ends of replies.
//!
//! [`topology`] keeps the replies about a cluster's slots and nodes. [`payload`] knows the footer and the
//! object types of `DUMP` payloads.
//!
//! **Architecture invariant:** nothing here reads a clock, opens a socket or blocks. A caller hands in bytes
//! and gets values, or hands in values and gets bytes.

pub mod boundary;
pub mod encode;
pub mod payload;
pub mod replication;
pub mod request;
pub mod scan;
pub mod topology;
pub mod value;
