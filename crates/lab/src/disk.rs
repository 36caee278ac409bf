//! A disk that can be filled.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::error::LabError;
use crate::process::Process;

/// The file that takes all the room.
const FILLER: &str = "filler";

/// A file system of its own, in memory, with little room. It is mounted in a namespace of one child process,
/// so no rights are needed beyond those to make one, and nothing is left when that process ends.
pub struct SmallDisk {
    path: PathBuf,
    _holder: Process,
    _folder: TempDir,
}

impl SmallDisk {
    /// One with room for this many bytes.
    ///
    /// # Errors
    /// If this user may not make namespaces, or not mount anything in them.
    pub fn start(bytes: u64) -> Result<SmallDisk, LabError> {
        let fail = |source| LabError::io("mount a small disk", source);
        let folder = tempfile::tempdir().map_err(fail)?;
        let at = folder.path().display();
        let mut command = Command::new("unshare");
        // It ends when its standard input does: with this process, at the latest.
        let script = format!("mount -t tmpfs -o size={bytes},mode=700 tmpfs '{at}' && echo ok && exec cat");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
        let (answer, mouth) = std::io::pipe().map_err(fail)?;
        command.stdin(Stdio::piped()).stdout(mouth.try_clone().map_err(fail)?).stderr(mouth);
        let holder = Process::spawn(command).map_err(fail)?;
        let mut line = String::new();
        BufReader::new(answer).read_line(&mut line).map_err(fail)?;
        if line.trim() != "ok" {
            return Err(fail(std::io::Error::other(line.trim().to_owned())));
        }
        // From outside, the mount is seen through the process that has it.
        let path = PathBuf::from(format!("/proc/{}/root{at}", holder.pid()));
        Ok(SmallDisk { path, _holder: holder, _folder: folder })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes all the room that there is.
    ///
    /// # Errors
    /// If the disk cannot be written for another reason than that it is full.
    pub fn fill(&self) -> Result<(), LabError> {
        let fail = |source| LabError::io("fill a small disk", source);
        let mut file =
            File::options().create(true).append(true).open(self.path.join(FILLER)).map_err(fail)?;
        loop {
            match file.write(&[0; 4096]) {
                Err(e) if e.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
                written => written.map_err(fail)?,
            };
        }
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// If the file that takes it cannot be removed.
    pub fn make_room(&self) -> Result<(), LabError> {
        std::fs::remove_file(self.path.join(FILLER)).map_err(|e| LabError::io("empty a small disk", e))
    }
}
