//! Choosing ports that no other process uses.
//!
//! A port belongs to the process that got it until that process ends, also while nothing listens on it: a
//! server that a test restarts finds its port free. Processes that run side by side agree by names of
//! abstract sockets, which the kernel gives to one process at a time and takes back when the process ends.
//! Programs that know nothing of this may still take a port, so this only makes collisions unlikely with
//! them.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::Mutex;

use crate::error::LabError;

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

/// What keeps other processes from the ports of this one.
static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A port on loopback that no process listens on, nor on its bus port (10,000 higher), and that this process
/// keeps.
///
/// # Errors
/// [`LabError::NoFreePort`] if every port of the range is taken.
pub fn free_port() -> Result<u16, LabError> {
    (0..COUNT)
        .map(|_| FIRST + advance())
        .find(|&port| reserve(port) && is_free(port) && is_free(port + BUS_OFFSET))
        .ok_or(LabError::NoFreePort { first: FIRST, last: FIRST + COUNT - 1 })
}

/// The next offset in turn, so that a port is not offered twice by one process for a long while.
fn advance() -> u16 {
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| Some((at + 1) % COUNT))
        .expect("the closure never refuses")
}

/// Whether the port is this process' own from now on. False if any process has it, this one included.
fn reserve(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("whimbrel-lab-port-{port}")).expect("a short name");
    let taken = UnixListener::bind_addr(&name);
    taken.map(|held| RESERVED.lock().push(held)).is_ok()
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_or_bus_port_is_not_free_port() {
        let port = free_port().expect("some port is free");
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port + BUS_OFFSET)).expect("was free");
        assert!(is_free(port) && !is_free(port + BUS_OFFSET));
        drop(taken);
        assert_ne!(free_port().expect("some port is free"), port);
    }

    #[test]
    fn a_port_is_given_to_one_process_at_a_time() {
        let port = free_port().expect("some port is free");
        assert!(!reserve(port), "it was given away again, though nothing listens on it yet");
    }
}
