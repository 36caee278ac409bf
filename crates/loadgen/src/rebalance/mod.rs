//! Clients of a cluster that is rebalanced, at a steady rate, and the keys that they read and write.

pub mod clients;
pub mod keys;
