//! The daemon's server, its queue, a fleet's coordinator, and repairs, over real sockets.

mod attacks;
mod daemon;
mod fleet;
mod node_ports;
mod queue;
mod repair;
