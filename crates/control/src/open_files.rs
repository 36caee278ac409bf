//! Limits of connections that fit the process's limit of open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use whimbrel_engine::error::{Error, Result};

/// File descriptors of every process: the runtime, the listener, the standard streams.
const OWN_FILES: u64 = 64;

/// Raises the limit of open files for this many clients, each of which takes some connections: its own and
/// those to servers; and for this many files besides. Returns how many clients it is enough for: fewer if the
/// system allows no more.
///
/// # Errors
/// `Own` if the system refuses.
pub fn make_room(clients: u32, files_each: u64, files_besides: u64) -> Result<u32> {
    let fail = |e: nix::errno::Errno| Error::own("raise the limit of open files", e);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(fail)?;
    let besides = OWN_FILES + files_besides;
    let needed = u64::from(clients) * files_each + besides;
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).map_err(fail)?;
    }
    let places = needed.min(hard).saturating_sub(besides) / files_each;
    Ok(u32::try_from(places).unwrap_or(clients).min(clients))
}
