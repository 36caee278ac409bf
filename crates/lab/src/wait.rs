//! Waiting for what other processes do in their own time.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long a busy machine may take for anything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often to check.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until something holds, instead of a sleep that is too short on a busy machine and too long on an
/// idle one. `what` completes the sentence "it is never so that".
///
/// Panics after two minutes.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it is never so that {what}");
        thread::sleep(LOOK);
    }
}

/// Waits until nothing listens there. The port of a process that has just ended may at once be another
/// test's, for a while.
///
/// Panics after two minutes.
#[track_caller]
pub fn wait_until_refused(address: SocketAddr) {
    wait_until("nobody listens there", || TcpStream::connect(address).is_err());
}
