//! Demonstrations: real servers on this machine, real work, and the proof that nothing was lost.
//!
//! A demonstration runs this same binary as a user would, and proves by other means what it did. It uses no
//! library of ours that moves data. Everything that it has started is gone afterwards.

mod console;
mod copy;
mod reshard;
mod stage;

use std::time::Duration;

use whimbrel_lab::Engine;
use whimbrel_loadgen::interrupt;
use whimbrel_loadgen::rebalance::keys::Keys;

pub use self::stage::Outcome;

/// With fewer keys a rebalance shows nothing.
pub const KEYS_MIN: u64 = Keys::TOTAL_MIN;

/// The servers of this name.
///
/// # Errors
/// The names that there are, where it is none of them.
pub fn engine(name: &str) -> Result<Engine, String> {
    Engine::from_name(name).ok_or_else(|| Engine::ALL.map(Engine::name).join(", "))
}

/// Copies all keys of one server to another, and proves it.
///
/// # Errors
/// When the servers are not on this machine or go away, or something of our own fails.
pub fn copy(engine: Engine, keys: u64) -> anyhow::Result<Outcome> {
    interrupt::run(Outcome::Stopped, |interrupt| copy::show(engine, keys, interrupt))
}

/// Rebalances a cluster with at least [`KEYS_MIN`] keys under load, and proves it.
///
/// # Errors
/// As [`copy`]. What the proof finds is no error.
pub fn reshard(engine: Engine, keys: u64) -> anyhow::Result<Outcome> {
    interrupt::run(Outcome::Stopped, |interrupt| reshard::show(engine, keys, interrupt))
}

/// Opens the console of a cluster with at least [`KEYS_MIN`] keys under load, until the user stops it or
/// for `time`, and proves that nothing was lost.
///
/// # Errors
/// As [`copy`].
pub fn console(engine: Engine, keys: u64, time: Duration) -> anyhow::Result<Outcome> {
    interrupt::run(Outcome::Stopped, |interrupt| console::show(engine, keys, time, interrupt))
}
