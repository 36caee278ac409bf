//! The binary among processes of its own kind.

mod fleet;
