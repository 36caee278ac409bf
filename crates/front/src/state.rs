//! How far a front is, on disk, for the process that comes after one that died.
//!
//! One file, replaced as a whole. It is on disk before the first key moves. No password and no key is in it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};

/// The form of the file. Another one is refused.
const FORMAT: u32 = 1;

/// How far a front is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Everything goes to the source; no key has moved.
    Forwarding,
    /// Keys move, or have moved.
    Moving,
    /// The source is empty.
    Done,
    /// Clients have been sent to the target. No front serves from then on.
    Finished,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    format: u32,
    phase: Phase,
    source: String,
    target: String,
}

/// The file of one front.
#[derive(Debug, Clone)]
pub struct StateFile {
    path: PathBuf,
    source: String,
    target: String,
}

impl StateFile {
    /// That of a front between these servers.
    pub fn new(path: &Path, source: &Endpoint, target: &Endpoint) -> StateFile {
        let (source, target) = (source.address.to_string(), target.address.to_string());
        StateFile { path: path.to_owned(), source, target }
    }

    /// How far the front was; `Forwarding` where there is no file.
    ///
    /// # Errors
    /// `Own` where it cannot be read or understood; `Unfit` where it is about other servers.
    pub fn load(&self) -> Result<Phase> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Phase::Forwarding),
            Err(e) => return Err(self.fail("read", e)),
        };
        let content: Content = serde_json::from_str(&text).map_err(|e| {
            self.fail("read", format!("it is damaged: {e}")).with_remedy(
                "restore it; without it nobody knows whether keys have moved. Where none has, remove it",
            )
        })?;
        if content.format != FORMAT {
            return Err(self.fail("read", "it was written by another version of whimbrel"));
        }
        if (&content.source, &content.target) != (&self.source, &self.target) {
            let what = format!(
                "{} is about keys that move from {} to {}, not from {} to {}",
                self.path.display(),
                content.source,
                content.target,
                self.source,
                self.target
            );
            return Err(Error::unfit(Side::Own, "", "go on", what).with_remedy(
                "write both addresses as before, or name another folder with --state-dir for another front",
            ));
        }
        Ok(content.phase)
    }

    /// Writes down how far the front is. It is on disk when this returns.
    ///
    /// # Errors
    /// `Own` where it cannot be written.
    pub fn save(&self, phase: Phase) -> Result<()> {
        let content =
            Content { format: FORMAT, phase, source: self.source.clone(), target: self.target.clone() };
        let write = || -> std::io::Result<()> {
            let folder = self.path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)?;
            let draft = self.path.with_extension("draft");
            let mut file = File::create(&draft)?;
            file.write_all(serde_json::to_string(&content)?.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&draft, &self.path)?;
            // The name is part of the folder.
            File::open(folder)?.sync_all()
        };
        write().map_err(|e| self.fail("write", e))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn fail(&self, what: &str, e: impl std::fmt::Display) -> Error {
        Error::own(format!("{what} {}", self.path.display()), e)
            .with_remedy("see that the disk has room, or name another folder with --state-dir")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path, source: &str) -> StateFile {
        let endpoint = |side, text| Endpoint::parse(side, text).expect("an address");
        StateFile::new(
            &folder.join("a").join("front.json"),
            &endpoint(Side::Source, source),
            &endpoint(Side::Target, "redis://:secret@new:6379"),
        )
    }

    #[test]
    fn it_is_found_again_and_holds_no_password() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = file(folder.path(), "old:6379");
        assert_eq!(state.load().expect("nothing yet"), Phase::Forwarding);
        for phase in [Phase::Moving, Phase::Done, Phase::Finished] {
            state.save(phase).expect("written");
            assert_eq!(state.load().expect("read"), phase);
        }
        let text = std::fs::read_to_string(folder.path().join("a/front.json")).expect("text");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn what_is_damaged_or_about_others_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = file(folder.path(), "old:6379");
        state.save(Phase::Moving).expect("written");
        let error = file(folder.path(), "other:6379").load().expect_err("another source").to_string();
        assert!(error.contains("from old:6379 to new:6379, not from other:6379"), "{error}");
        let path = folder.path().join("a/front.json");
        let text = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, &text[..text.len() / 2]).expect("written");
        let error = state.load().expect_err("it is damaged").to_string();
        assert!(error.contains("it is damaged"), "{error}");
        std::fs::write(&path, text.replace("\"format\":1", "\"format\":2")).expect("written");
        assert!(state.load().expect_err("another form").to_string().contains("another version"));
    }
}
