//! The daemon's server, its queue, and a fleet's coordinator, over real sockets.

mod attacks;
mod daemon;
mod fleet;
mod queue;
