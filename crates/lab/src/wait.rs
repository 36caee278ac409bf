//! Waiting for what other processes do in their own time.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long a busy machine may take for anything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(180);

/// The shortest rest between two checks.
const REST_MIN: Duration = Duration::from_millis(20);

/// The longest.
const REST_MAX: Duration = Duration::from_millis(700);

/// It rests this many times as long as the check took. Many checks start a process, or ask each node of a
/// cluster: they would take the processors that what they wait for needs.
const REST: u32 = 10;

/// Rests between two checks, the last of which began then.
pub fn rest_after(began: Instant) {
    thread::sleep((began.elapsed() * REST).clamp(REST_MIN, REST_MAX));
}

/// Waits until there is something, instead of a sleep that is too short on a busy machine and too long on an
/// idle one. `what` completes the sentence "it is never so that".
///
/// Panics after three minutes.
#[track_caller]
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let began = Instant::now();
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "it is never so that {what}");
        rest_after(began);
    }
}

/// Waits until something holds; otherwise as [`until`].
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || holds().then_some(()));
}

/// Waits until nothing listens there. The port of a process that has just ended may at once be another
/// test's, for a while.
///
/// Panics after three minutes.
#[track_caller]
pub fn wait_until_refused(address: SocketAddr) {
    wait_until("nobody listens there", || TcpStream::connect(address).is_err());
}
