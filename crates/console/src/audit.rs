//! Who has ordered what by the console, and what came of it: a line of JSON each, in the state folder.
//!
//! An order is written down before it is carried out, and what came of it afterwards: what a process that
//! was killed had begun is there as well.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use whimbrel_control::clock::now_ms;

use crate::files::{lock_of, private};
use crate::tokens::Role;

const FILE: &str = "console-audit.jsonl";

/// Above this size the file becomes the older one, whose place it takes, in bytes.
const BYTES_MAX: u64 = 4 << 20;

/// How many entries are shown.
const SHOWN_MAX: usize = 500;

/// The longest text that is kept of an outcome, and of what an order is about, in characters.
const OUTCOME_MAX: usize = 2_000;
const TARGET_MAX: usize = 500;

/// One order, or what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Whose token.
    pub who: String,
    /// With which role.
    pub role: Role,
    /// From which address.
    pub from: String,
    /// What was ordered.
    pub order: String,
    /// Of what: a job, a cluster.
    pub target: String,
    /// What came of it; `None` before that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

/// The log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// Only one at a time writes. True where the last line may have been cut short.
    is_torn: Mutex<bool>,
}

impl Audit {
    /// That of a state folder.
    pub fn of(state_dir: &Path) -> Audit {
        // Another process may have had no room for all of a line.
        Audit { path: state_dir.join(FILE), is_torn: Mutex::new(true) }
    }

    /// Writes an entry down.
    ///
    /// # Errors
    /// Where that fails: then nothing may be carried out.
    pub fn note(&self, entry: &Entry) -> io::Result<()> {
        let mut is_torn = self.is_torn.lock();
        // Another console of the folder may be about to make the same file the older one.
        let _changing = lock_of(&self.path)?;
        if fs::metadata(&self.path).is_ok_and(|about| about.len() > BYTES_MAX) {
            fs::rename(&self.path, self.older())?;
        }
        let target = entry.target.chars().take(TARGET_MAX).collect();
        let mut line = if *is_torn { vec![b'\n'] } else { Vec::new() };
        line.extend(serde_json::to_vec(&Entry { target, ..entry.clone() })?);
        line.push(b'\n');
        let mut file = private().append(true).create(true).open(&self.path)?;
        *is_torn = true;
        file.write_all(&line)?;
        *is_torn = false;
        // Before the order is carried out: what the machine's end cuts off is found here.
        file.sync_data()
    }

    /// What came of an order that was written down. Where that cannot be, it is logged: the order is carried
    /// out already.
    pub fn note_outcome(&self, entry: &Entry, outcome: &str) {
        let outcome = Some(outcome.chars().take(OUTCOME_MAX).collect());
        let entry = Entry { at_ms: now_ms(), outcome, ..entry.clone() };
        if let Err(error) = self.note(&entry) {
            tracing::error!(%error, ?entry, "the result of an order cannot be written down");
        }
    }

    /// The last entries, the newest first.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub fn latest(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for path in [self.older(), self.path.clone()] {
            match fs::File::open(path) {
                Ok(file) => {
                    for line in BufReader::new(file).split(b'\n') {
                        // A line that was cut short by a full disk hides none of the others.
                        entries.extend(serde_json::from_slice::<Entry>(&line?).ok());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        entries.reverse();
        entries.truncate(SHOWN_MAX);
        Ok(entries)
    }

    fn older(&self) -> PathBuf {
        self.path.with_extension("old.jsonl")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(order: &str) -> Entry {
        Entry {
            at_ms: 7,
            who: "alice".to_owned(),
            role: Role::Operate,
            from: "127.0.0.1:9".to_owned(),
            order: order.to_owned(),
            target: "copy-1".to_owned(),
            outcome: None,
        }
    }

    #[test]
    fn the_newest_come_first_and_a_broken_line_hides_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::of(folder.path());
        assert_eq!(audit.latest().expect("read"), []);
        audit.note(&entry("pause")).expect("written");
        let mut file = fs::OpenOptions::new().append(true).open(&audit.path).expect("opened");
        file.write_all(b"{\"at_ms\": 8, \"wh\xff").expect("written");
        let audit = Audit::of(folder.path());
        audit.note_outcome(&entry("resume"), "done");
        let latest = audit.latest().expect("read");
        assert_eq!(latest.len(), 2);
        assert_eq!((&*latest[0].order, latest[0].outcome.as_deref()), ("resume", Some("done")));
        assert_eq!(latest[1], entry("pause"));
    }

    /// Two consoles of one folder do not both make way: the second would replace what the first has kept.
    #[test]
    fn what_is_kept_is_replaced_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let full = vec![b'x'; usize::try_from(BYTES_MAX).expect("small") + 1];
        for _ in 0..40 {
            let audit = Audit::of(folder.path());
            fs::write(&audit.path, &full).expect("written");
            let _ = fs::remove_file(audit.older());
            let together = std::sync::Barrier::new(6);
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        let audit = Audit::of(folder.path());
                        together.wait();
                        audit.note(&entry("pause")).expect("written");
                    });
                }
            });
            assert!(audit.older().metadata().expect("kept").len() > BYTES_MAX, "it was replaced");
            assert_eq!(audit.latest().expect("read").len(), 6);
        }
    }

    #[test]
    fn it_stays_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::of(folder.path());
        let long = Entry { who: "x".repeat(1 << 20), target: "y".repeat(1 << 20), ..entry("pause") };
        for _ in 0..14 {
            audit.note(&long).expect("written");
        }
        assert_eq!(audit.latest().expect("read")[0].target.len(), TARGET_MAX);
        let sizes = [audit.older(), audit.path.clone()].map(|path| path.metadata().expect("about it").len());
        assert!(sizes.iter().all(|size| *size <= BYTES_MAX + (2 << 20)), "{sizes:?}");
        assert!(audit.latest().expect("read").len() >= 5);
    }
}
