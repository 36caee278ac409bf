//! Files that no other user may read: what whimbrel keeps, and what holds its secrets.

use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;

use crate::naming::process_name;

/// Others may write.
const WRITABLE: u32 = 0o022;

/// Others may do anything at all.
const SHARED: u32 = 0o077;

/// Whatever this process makes from here on is its user's alone, whatever the umask that it was started with.
pub fn keep_files_private() {
    umask(Mode::from_bits_truncate(SHARED));
}

/// Where journals are: the folder that was named, or the user's own for such things.
///
/// # Errors
/// `Own` if none is named and there is no home; `Options` for a folder that others can write to.
pub fn state_dir(named: Option<&Path>) -> Result<PathBuf> {
    let folder = named.map_or_else(default_state_dir, |folder| Ok(folder.to_owned()))?;
    check_folder(&folder, named.is_none())?;
    Ok(folder)
}

/// The same for jobs, which write there. It also checks that this is possible: it creates and removes a file
/// there, or where the folder would be.
///
/// # Errors
/// As [`state_dir`]; `Own` if nothing can be written there.
pub fn job_dir(named: Option<&Path>) -> Result<PathBuf> {
    let folder = state_dir(named)?;
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    // Rights alone do not show that: a file system may take nothing.
    // In containers every process has the same number.
    let trial = there.join(format!(".whimbrel-{}", process_name()));
    let made = File::options().write(true).create_new(true).mode(0o600).open(&trial);
    let outcome = made.and_then(|_| std::fs::remove_file(&trial));
    outcome.map_err(|e| {
        let what = format!("the state folder {} cannot be used: {e}", folder.display());
        Error::own(format!("write to {}", there.display()), what).with_remedy(Remedy::ChooseStateDir(""))
    })?;
    Ok(folder)
}

fn default_state_dir() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("whimbrel"))
        .ok_or_else(|| {
            Error::own("find the state folder", "neither XDG_STATE_HOME nor HOME is set")
                .with_remedy(Remedy::ChooseStateDir(""))
        })
}

/// Refuses a state folder that others have made, or can write to: what is in it are orders to whimbrel. The
/// default folder is closed to others if an older version left it open.
///
/// # Errors
/// `Options` for such a folder; `Own` if it cannot be closed.
fn check_folder(folder: &Path, is_default: bool) -> Result<()> {
    // A missing folder will be created, closed to all other users.
    let Ok(about) = folder.symlink_metadata() else { return Ok(()) };
    let refused = |what: &str, first: &'static str| {
        let what = format!("the state folder {} {what}", folder.display());
        let error = Error::options(Side::Own, "use the state folder", what);
        Err(error.with_remedy(Remedy::ChooseStateDir(first)))
    };
    if about.is_symlink() {
        return refused("is a symbolic link", "");
    }
    if about.uid() != geteuid().as_raw() {
        return refused("belongs to another user", "");
    }
    if is_default && about.mode() & SHARED != 0 {
        return std::fs::set_permissions(folder, Permissions::from_mode(0o700))
            .map_err(|e| Error::own(format!("close {} to others", folder.display()), e));
    }
    if about.mode() & WRITABLE != 0 {
        return refused("can be written to by other users", "close it to them with chmod 700");
    }
    Ok(())
}

/// Opens a file to lock it, and creates it if it is missing. A symbolic link is not followed.
pub(crate) fn open_lock(path: &Path) -> std::io::Result<File> {
    let flags = OFlag::O_NOFOLLOW.bits();
    File::options().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
}

/// What a user is warned of if others can read a file that holds a secret.
pub fn warning_if_shared(path: &Path, what: &str) -> Option<String> {
    let is_shared = |about: &Metadata| about.is_file() && about.mode() & SHARED != 0;
    path.metadata().ok().filter(is_shared)?;
    let path = path.display();
    Some(format!("warning  {what} {path} can be read by other users of this machine: chmod 600 {path}"))
}
