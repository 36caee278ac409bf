//! How far a front is, on disk, for the process that comes after one that died.
//!
//! One file, replaced as a whole. It is on disk before the first key moves. No password and no key is in it.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::remedy::Remedy;
use whimbrel_flow::journal::{Documents, FileDocument};

use crate::migrate::direction::REVERSALS_MAX;

/// What the only document of the file is called.
const DOCUMENT: &str = "state";

/// The form of the file. Another one is refused, except [`FORMAT_WITHOUT_REVERSALS`].
const FORMAT: u32 = 2;

/// A front that wrote this knew no way back.
const FORMAT_WITHOUT_REVERSALS: u32 = 1;

/// How far a front is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Everything goes to the source; no key has moved.
    Forwarding,
    /// Keys move, or have moved.
    Moving,
    /// All keys have moved.
    Done,
    /// Clients have been sent to the server with the keys. No front serves from then on.
    Finished,
}

/// How far a front is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stand {
    /// How far it is.
    pub phase: Phase,
    /// How often the direction has been reversed.
    pub reversals: u32,
}

impl From<Phase> for Stand {
    /// If the direction was never reversed.
    fn from(phase: Phase) -> Stand {
        Stand { phase, reversals: 0 }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    format: u32,
    phase: Phase,
    /// Under the name that it has had since files had it: without it keys would go the wrong way.
    #[serde(default, rename = "turns")]
    reversals: u32,
    /// The background moves no keys until the user says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
    source: String,
    target: String,
}

/// The file of one front. Clones share what was read or written last.
#[derive(Debug, Clone)]
pub struct StateFile {
    document: FileDocument,
    source: String,
    target: String,
    last: Arc<Mutex<Kept>>,
}

/// What the file says.
#[derive(Debug, Clone, Copy)]
struct Kept {
    stand: Stand,
    paused: bool,
}

impl StateFile {
    /// That of a front between these servers.
    pub fn new(path: &Path, source: &Endpoint, target: &Endpoint) -> StateFile {
        let (source, target) = (source.address.to_string(), target.address.to_string());
        let last = Kept { stand: Phase::Forwarding.into(), paused: false };
        StateFile { document: FileDocument::new(path), source, target, last: Arc::new(Mutex::new(last)) }
    }

    /// How far the front was; at `Forwarding` if there is no file.
    ///
    /// # Errors
    /// `Own` if it cannot be read or understood; `Options` if it is about other servers.
    pub fn load(&self) -> Result<Stand> {
        let text = match self.document.read(DOCUMENT) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(Phase::Forwarding.into()),
            Err(e) => return Err(self.fail("read", e)),
        };
        let content: Content = serde_json::from_str(&text).map_err(|e| {
            self.fail("read", format!("it is damaged: {e}")).with_remedy(
                "restore it; without it nobody knows whether keys have moved. Where none has, remove it",
            )
        })?;
        if content.format != FORMAT && content.format != FORMAT_WITHOUT_REVERSALS {
            return Err(self.fail("read", "it was written by another version of whimbrel"));
        }
        if content.reversals > REVERSALS_MAX {
            return Err(self.fail("read", "it says that the direction was reversed more often than can be"));
        }
        if (&content.source, &content.target) != (&self.source, &self.target) {
            let what = format!(
                "{} is about keys that move from {} to {}, not from {} to {}",
                self.path().display(),
                content.source,
                content.target,
                self.source,
                self.target
            );
            return Err(Error::options(Side::Own, "go on", what)
                .with_remedy(Remedy::ChooseStateDir("write both addresses as before")));
        }
        let stand = Stand { phase: content.phase, reversals: content.reversals };
        *self.last.lock() = Kept { stand, paused: content.paused };
        Ok(stand)
    }

    /// Whether the background was paused, as the file said when it was read or written last.
    pub fn is_paused(&self) -> bool {
        self.last.lock().paused
    }

    /// Writes down how far the front is. It is on disk when this returns. A pause ends if that changes.
    ///
    /// # Errors
    /// `Own` if it cannot be written.
    pub fn save(&self, stand: Stand) -> Result<()> {
        let mut last = self.last.lock();
        let paused = last.paused && last.stand == stand;
        self.write(&mut last, Kept { stand, paused })
    }

    /// As [`StateFile::save`], and whether the background is paused there: a process that dies between two
    /// writes would leave one without the other.
    ///
    /// # Errors
    /// Likewise.
    pub fn save_with(&self, stand: Stand, paused: bool) -> Result<()> {
        self.write(&mut self.last.lock(), Kept { stand, paused })
    }

    /// Writes down that the background is paused, or not any more.
    ///
    /// # Errors
    /// `Own` if it cannot be written.
    pub fn save_pause(&self, paused: bool) -> Result<()> {
        let mut last = self.last.lock();
        let now = Kept { paused, ..*last };
        self.write(&mut last, now)
    }

    fn write(&self, last: &mut Kept, now: Kept) -> Result<()> {
        let content = Content {
            format: FORMAT,
            phase: now.stand.phase,
            reversals: now.stand.reversals,
            paused: now.paused,
            source: self.source.clone(),
            target: self.target.clone(),
        };
        let text = serde_json::to_string(&content).map_err(|e| self.fail("write", e))?;
        self.document.write(&[(DOCUMENT, &text)]).map_err(|e| self.fail("write", e))?;
        *last = now;
        Ok(())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.document.path()
    }

    fn fail(&self, what: &str, e: impl std::fmt::Display) -> Error {
        Error::own(format!("{what} {}", self.path().display()), e)
            .with_remedy(Remedy::ChooseStateDir("see that the disk has room"))
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
        assert_eq!(state.load().expect("nothing yet"), Phase::Forwarding.into());
        for (phase, reversals) in [(Phase::Moving, 0), (Phase::Done, 1), (Phase::Finished, REVERSALS_MAX)] {
            let stand = Stand { phase, reversals };
            state.save(stand).expect("written");
            assert_eq!(state.load().expect("read"), stand);
        }
        let text = std::fs::read_to_string(folder.path().join("a/front.json")).expect("text");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn a_pause_is_found_again_and_ends_with_the_migration() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = || {
            let file = file(folder.path(), "old:6379");
            (file.load().expect("read"), file.is_paused())
        };
        let state = file(folder.path(), "old:6379");
        let moving = Stand { phase: Phase::Moving, reversals: 1 };
        state.save(moving).expect("written");
        state.save_pause(true).expect("written");
        assert_eq!(found(), (moving, true));
        state.save(moving).expect("written");
        assert_eq!(found(), (moving, true), "nothing has changed");
        state.save(Stand { reversals: 2, ..moving }).expect("written");
        assert_eq!(found(), (Stand { reversals: 2, ..moving }, false));
        state.save_pause(true).expect("written");
        state.save_pause(false).expect("written");
        assert!(!found().1);
    }

    #[test]
    fn what_is_damaged_or_about_others_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = file(folder.path(), "old:6379");
        state.save(Phase::Moving.into()).expect("written");
        let error = file(folder.path(), "other:6379").load().expect_err("another source").to_string();
        assert!(error.contains("from old:6379 to new:6379, not from other:6379"), "{error}");
        let path = folder.path().join("a/front.json");
        let text = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, &text[..text.len() / 2]).expect("written");
        let error = state.load().expect_err("it is damaged").to_string();
        assert!(error.contains("it is damaged"), "{error}");
        std::fs::write(&path, text.replace("\"format\":2", "\"format\":3")).expect("written");
        assert!(state.load().expect_err("another form").to_string().contains("another version"));
        let often = format!("\"turns\":{}", REVERSALS_MAX + 1);
        std::fs::write(&path, text.replace("\"turns\":0", &often)).expect("written");
        assert!(state.load().expect_err("too often").to_string().contains("more often than can be"));
    }

    /// A front that took it for another direction would send its clients to the wrong server.
    #[test]
    fn files_of_before_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = file(folder.path(), "old:6379");
        state.save(Phase::Forwarding.into()).expect("written");
        let text = r#"{"format":2,"phase":"done","turns":1,"source":"old:6379","target":"new:6379"}"#;
        std::fs::write(folder.path().join("a/front.json"), text).expect("written");
        assert_eq!(state.load().expect("read"), Stand { phase: Phase::Done, reversals: 1 });
    }

    #[test]
    fn what_knew_no_way_back_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/front.json");
        std::fs::create_dir_all(folder.path().join("a")).expect("a folder");
        let text = r#"{"format":1,"phase":"done","source":"old:6379","target":"new:6379"}"#;
        std::fs::write(path, text).expect("written");
        assert_eq!(file(folder.path(), "old:6379").load().expect("read"), Phase::Done.into());
    }
}
