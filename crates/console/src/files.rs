//! Files of the state folder that only their user reads, and that several consoles of it share.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// For how long another process may change a file: none takes longer than one write, unless it is stopped.
const CHANGED_WITHIN: Duration = Duration::from_secs(5);

const TRIED_EVERY: Duration = Duration::from_millis(5);

/// How a file is opened that is for this user alone, and is no link to another.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    options
}

/// Held while the file at `path` is changed: another process of the state folder does not meanwhile. It
/// blocks its thread.
///
/// # Errors
/// Whatever the file system reports, and where another process has held it for five seconds.
pub(crate) fn lock_of(path: &Path) -> io::Result<Flock<File>> {
    let until = Instant::now() + CHANGED_WITHIN;
    let mut file = private().write(true).create(true).truncate(false).open(path.with_extension("lock"))?;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < until => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(io::Error::other("another process has been changing it for too long"));
            }
            Err((_, e)) => return Err(e.into()),
        };
        std::thread::sleep(TRIED_EVERY);
    }
}
