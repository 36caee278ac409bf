//! Files that are replaced as a whole, and that a symbolic link cannot redirect.

use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde::Serialize;

/// Writes a document for others to read: they find the whole of it, or the whole of what was there before.
///
/// # Errors
/// Whatever the file system reports.
pub fn write_whole(path: &Path, content: &impl Serialize) -> std::io::Result<()> {
    replace(path, &serde_json::to_string(content)?, false)
}

/// Likewise; it is on disk when this returns.
///
/// # Errors
/// Likewise.
pub fn write_durably(path: &Path, content: &impl Serialize) -> std::io::Result<()> {
    replace(path, &serde_json::to_string(content)?, true)
}

/// Puts a text into the place of a file, as a whole. If it is to be `durable`, it is on disk when this
/// returns.
///
/// # Errors
/// Likewise.
pub fn replace(path: &Path, text: &str, durable: bool) -> std::io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push("-draft");
    let written = make_anew(Path::new(&draft)).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        if durable { file.sync_all() } else { Ok(()) }
    });
    if written.is_err() {
        // A full disk has no room for half of a document.
        let _ = std::fs::remove_file(&draft);
    }
    written?;
    std::fs::rename(&draft, path)?;
    if durable { sync_name(path) } else { Ok(()) }
}

/// When this returns it is on disk that a file has this name, or no longer has it: names are part of the
/// folder.
///
/// # Errors
/// Whatever the file system reports.
pub fn sync_name(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Whether the file that was `opened` has this name still.
pub fn is_at(path: &Path, opened: &Metadata) -> bool {
    path.symlink_metadata().is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino()))
}

/// A new and empty file that only its user can read, in the place of what may have that name. A symbolic link
/// is replaced, never followed.
///
/// # Errors
/// Whatever the file system reports.
pub fn make_anew(path: &Path) -> std::io::Result<File> {
    remove_if_there(path)?;
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes a file. A missing file is no error.
///
/// # Errors
/// Whatever else the file system reports.
pub fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// A symbolic link must not be followed: the user that made the link chose the file behind it.
///
/// # Errors
/// If there is a symbolic link of this name.
pub fn refuse_link(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Ok(about) if about.is_symlink() => Err(std::io::Error::other("it is a symbolic link")),
        _ => Ok(()),
    }
}
