//! The daemon's server, its queue, and a fleet's coordinator, over real sockets.

mod daemon;
mod fleet;
mod queue;
