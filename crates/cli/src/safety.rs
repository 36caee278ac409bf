//! Files that are nobody else's business: what whimbrel keeps, and what holds its secrets.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use whimbrel_engine::error::{Error, Result, Side};

/// Others may write.
const WRITABLE: u32 = 0o022;

/// Others may do anything at all.
const SHARED: u32 = 0o077;

/// Whatever this process makes from here on is its user's alone, whatever the umask that it was started with.
pub fn keep_files_private() {
    umask(Mode::from_bits_truncate(SHARED));
}

/// Refuses a state folder that others have made, or can write to: what is in it are orders to whimbrel. That
/// which nobody named is closed to others where an older version left it open.
///
/// # Errors
/// `Options` for such a folder; `Own` where it cannot be closed.
pub fn check_folder(folder: &Path, is_default: bool) -> Result<()> {
    // One that is not there will be made, for nobody else.
    let Ok(about) = folder.symlink_metadata() else { return Ok(()) };
    let refused = |what: &str, remedy: &str| {
        let what = format!("the state folder {} {what}", folder.display());
        Err(Error::options(Side::Own, "use the state folder", what).with_remedy(remedy.to_owned()))
    };
    if about.is_symlink() {
        return refused("is a symbolic link", "name the folder that it leads to with --state-dir");
    }
    if about.uid() != geteuid().as_raw() {
        return refused("belongs to another user", "name a folder of your own with --state-dir");
    }
    if is_default && about.mode() & SHARED != 0 {
        return std::fs::set_permissions(folder, Permissions::from_mode(0o700))
            .map_err(|e| Error::own(format!("close {} to others", folder.display()), e));
    }
    if about.mode() & WRITABLE != 0 {
        let remedy = format!("chmod 700 {}, or name another folder with --state-dir", folder.display());
        return refused("can be written to by other users", &remedy);
    }
    Ok(())
}

/// Says so where others can read a file that holds a secret.
pub fn warn_if_shared(path: &Path, what: &str) {
    if let Ok(about) = path.metadata()
        && about.is_file()
        && about.mode() & SHARED != 0
    {
        let path = path.display();
        eprintln!("warning  {what} {path} can be read by other users of this machine: chmod 600 {path}");
    }
}
