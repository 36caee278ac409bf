//! The files of sockets: names that the system takes, and whether a process serves them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// The longest path that the system takes for a socket is a little longer.
const PATH_BYTES_MAX: usize = 100;

/// A name of the socket that the system takes, however long its own is. It is good while the file, that of
/// the folder, is open.
pub(crate) fn short(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("a socket has a name and a folder"));
    };
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return Ok((path.to_owned(), None));
    }
    let folder = File::open(folder)?;
    let through = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    Ok((through, Some(folder)))
}

/// Whether a process serves this socket; even if it is stopped or hangs.
pub(crate) fn is_served(socket: &Path) -> bool {
    let connect = || {
        let (name, _folder) = short(socket)?;
        let stream = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Should too many wait already, this one does not.
        stream.set_nonblocking(true)?;
        stream.connect(&SockAddr::unix(&name)?)
    };
    match connect() {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_long_name_is_no_hindrance() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("a".repeat(120));
        std::fs::create_dir(&deep).expect("made");
        let path = deep.join("job.socket");
        assert!(!is_served(&path), "there is none");
        let (name, file) = short(&path).expect("a name");
        assert!(file.is_some() && name.as_os_str().len() <= PATH_BYTES_MAX);
        let listener = UnixListener::bind(&name).expect("bound");
        drop(file);
        assert!(path.exists() && is_served(&path));
        drop(listener);
        assert!(!is_served(&path), "nobody serves it any more");
    }
}
