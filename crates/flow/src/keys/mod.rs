//! The state of a key, its value and its expiry: how it is read, and how it is written.
//!
//! All that moves keys asks here: which commands read a state from which server, what keeps a value and its
//! expiry together, what their replies mean, in which form the other side takes the state, and which command
//! writes it. When to read, which server to ask, and what follows from an answer is for each of them to
//! decide.
//!
//! Commands and replies are apart from connections: a caller with its own pipeline queues the commands in it,
//! and hands the replies back. [`read_all`] and [`write_all`] do both for callers that send nothing else.
//!
//! - [`state`]: what a state is;
//! - [`read`]: reads states, in one of four [`Way`]s;
//! - [`size`]: how large values are, before they are read; groups of bounded size;
//! - [`fit`]: makes a state fit for the server that it goes to;
//! - [`write`]: writes states, and removes keys;
//! - [`count`]: asks how many of several keys there are, and removes several;
//! - [`fenced`]: writes and removes keys as long as a fence is what it was.
//!
//! Values that are too large for this move in [chunks](crate::large). How many keys a slot has and which
//! they are is read by `engine::slot_keys`, when a key expires by `engine::expiry`. `verify` uses nothing of
//! this.

pub mod count;
pub mod fenced;
pub mod fit;
pub mod read;
pub mod size;
pub mod state;
pub mod write;

pub use fit::Fit;
pub use read::{Fetch, Found, Read, Way, exist, read_all, read_strings_together, read_together};
pub(crate) use read::{dumps, expire_in_ms};
pub use size::{memory_bytes, memory_bytes_of};
pub use state::{Body, KeyState, shown};
pub use write::{
    Write, WriteMode, Written, remove_together, unlink, unlink_all, write_all, write_strings_together,
};
