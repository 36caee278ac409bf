//! Requests and replies on their way: how they are read and written, where each ends, the few frames that the
//! front makes itself, and what may be held in memory.
//!
//! Nothing here knows what is at either end.

pub(crate) mod frame;
pub(crate) mod io;
pub(crate) mod memory;
pub(crate) mod replies;
pub(crate) mod requests;
