//! How much a slot has.

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::Result;
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_flow::keys::memory_bytes_of;

use super::attempt::LOAD_KEYS_MAX;
use super::names::{count, names};
use crate::migrate::carry::LARGE_BYTES;

/// A slot that takes more memory is not moved.
pub const LOAD_BYTES_MAX: u64 = 256 << 20;

/// A slot with a key that takes more memory is not moved: servers do nothing else while they write it down or
/// read it in.
pub const LOAD_KEY_BYTES_MAX: u64 = 64 << 20;

/// Keys whose sizes are asked for at a time.
const SIZES_AT_ONCE: usize = 256;

/// What one slot has at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// How many keys, the fence not among them.
    pub keys: u64,
    /// The memory that they take, in bytes; 0 if the server does not report it. Large keys are estimated from
    /// some of their elements.
    pub bytes: u64,
    /// The memory that the largest one takes, in bytes; 0 if the server does not report it.
    pub largest_bytes: u64,
}

impl Load {
    /// Whether it is more than is moved.
    pub fn is_too_much(&self) -> bool {
        self.keys > LOAD_KEYS_MAX || self.bytes > LOAD_BYTES_MAX || self.largest_bytes > LOAD_KEY_BYTES_MAX
    }
}

/// Measures what a slot has at a node that owns it, while it is served and changes, and without changing
/// anything. Stops counting if it [is too much](Load::is_too_much). If `MEMORY USAGE` is not available it
/// only counts keys.
///
/// # Errors
/// As [`Link::call`]; what the node answers to a client that asks for keys of a slot that it does not own, or
/// gives away. [`is_too_large`](whimbrel_engine::error::Error::is_too_large) if the names of the keys alone
/// are more than 64 MiB.
pub async fn measure(at: &mut Link, slot: Slot, capabilities: &Capabilities) -> Result<Load> {
    let mut load = Load { keys: count(at, slot).await?, ..Load::default() };
    if !capabilities.memory_usage || load.is_too_much() || load.keys == 0 {
        return Ok(load);
    }
    let all: Vec<Bytes> = names(at, slot, load.keys + 1).await?;
    for some in all.chunks(SIZES_AT_ONCE) {
        for bytes in memory_bytes_of(at, some, LARGE_BYTES).await?.into_iter().flatten() {
            load.bytes += bytes;
            load.largest_bytes = load.largest_bytes.max(bytes);
        }
        if load.is_too_much() {
            break;
        }
    }
    Ok(load)
}
