//! Choosing ports that nobody else uses.
//!
//! A port that was free a moment ago may be taken now, so this only makes collisions unlikely; whoever binds the
//! port has to try another one when it is taken.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::LabError;

/// A cluster node talks to the others on its port plus this.
pub(crate) const BUS_OFFSET: u16 = 10_000;

/// Ports and bus ports stay apart from each other, and below those that Linux gives to outgoing connections.
const FIRST: u16 = 11_000;
const COUNT: u16 = 10_000;

/// Processes that run side by side start at different places.
static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
    let somewhere = RandomState::new().hash_one(std::process::id()) % u64::from(COUNT);
    AtomicU16::new(u16::try_from(somewhere).expect("below COUNT"))
});

/// A port on loopback that nobody listens on, and whose bus port nobody listens on either.
pub(crate) fn free() -> Result<u16, LabError> {
    (0..COUNT)
        .map(|_| FIRST + advance())
        .find(|&port| is_free(port) && is_free(port + BUS_OFFSET))
        .ok_or(LabError::NoFreePort { first: FIRST, last: FIRST + COUNT - 1 })
}

/// The next offset in turn, so that a port is not offered twice by one process for a long while.
fn advance() -> u16 {
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| Some((at + 1) % COUNT))
        .expect("the closure never refuses")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_or_bus_port_is_not_free() {
        let port = free().expect("some port is free");
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port + BUS_OFFSET)).expect("was free");
        assert!(is_free(port) && !is_free(port + BUS_OFFSET));
        drop(taken);
        assert_ne!(free().expect("some port is free"), port);
    }
}
