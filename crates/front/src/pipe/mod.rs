//! Bytes on their way: how they are read and written, the few frames that the front makes itself, and what
//! may be held in memory.
//!
//! Nothing here knows what is at either end.

pub(crate) mod frame;
pub(crate) mod io;
pub(crate) mod memory;
