//! All states of the machines, as they are and with mistakes planted around them.

mod exhaustive;
mod fleet;
mod planted;
mod repair;
