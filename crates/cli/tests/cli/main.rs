//! The binary among processes of its own kind, and a fleet within this process.

mod fleet;
mod scanned;
