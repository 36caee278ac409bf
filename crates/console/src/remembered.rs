//! What was found out about migrations: the last assessment and rehearsals of each, in a file of the state
//! folder, so that it is there when the page is loaded again, and after a restart.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use whimbrel_control::clock::now_ms;
use whimbrel_control::store::Status;
use whimbrel_flow::journal::write_whole;

use crate::files::lock_of;
use crate::runs::{has_address, is_side};

const FILE: &str = "console-migrations.json";

/// Of how many migrations it is kept: those about which something was found out last.
const MIGRATIONS_MAX: usize = 32;

/// The longest document that is kept, in bytes of JSON.
const BYTES_MAX: usize = 256 << 10;

/// What is known of one pair of servers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Migration {
    source: String,
    target: String,
    #[serde(default)]
    assessment: Value,
    #[serde(default)]
    rehearsal: Value,
    #[serde(default)]
    begun: Value,
}

/// What is remembered.
#[derive(Debug)]
pub struct Remembered {
    path: PathBuf,
    /// The one that was changed last is the last one.
    migrations: Mutex<Vec<Migration>>,
}

/// What is remembered of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// How it was assessed.
    Assessment,
    /// How its cutover was rehearsed.
    Rehearsal,
    /// How its sync was begun.
    Begun,
}

impl Remembered {
    /// Of this folder. A file that cannot be read says nothing.
    pub fn of(state_dir: &Path) -> Remembered {
        let path = state_dir.join(FILE);
        let migrations = Mutex::new(known_in(&path).unwrap_or_default());
        Remembered { path, migrations }
    }

    /// Remembers this of the migration between two addresses, in place of what was known about it before.
    /// Nothing depends on it: a failure is logged.
    pub fn note(&self, (source, target): (&str, &str), about: About, mut what: Value) {
        what["at_ms"] = json!(now_ms());
        if what.to_string().len() > BYTES_MAX {
            tracing::warn!(?about, source, target, "too long to be remembered");
            return;
        }
        let mut migrations = self.migrations.lock();
        // Another console of the folder may find out something at the same time, or has before.
        let lock = lock_of(&self.path);
        if let Some(known) = known_in(&self.path) {
            *migrations = known;
        }
        let place = migrations.iter().position(|known| known.source == source && known.target == target);
        let mut migration = match place {
            Some(place) => migrations.remove(place),
            None => {
                Migration { source: source.to_owned(), target: target.to_owned(), ..Migration::default() }
            }
        };
        match about {
            About::Assessment => migration.assessment = what,
            About::Rehearsal => migration.rehearsal = what,
            About::Begun => migration.begun = what,
        }
        migrations.push(migration);
        let above = migrations.len().saturating_sub(MIGRATIONS_MAX);
        migrations.drain(..above);
        if let Err(error) = lock.and_then(|_lock| write_whole(&self.path, &*migrations)) {
            tracing::warn!(%error, "what was found out about a migration cannot be written down");
        }
    }

    /// What is known of the migration that this job is. Addresses may have been given in several spellings:
    /// of each the newest counts.
    pub fn find(&self, job: &Status) -> Value {
        let migrations = self.migrations.lock();
        let its = migrations.iter().filter(|known| {
            // Where no address was given, it is known of the job that was begun so, or that is named so.
            let is_run = known.begun["job"].as_str().is_some_and(|name| job.is_run_of(name));
            let was_begun = is_run && known.begun["created_s"] == json!(job.created_s);
            let is_its = |given: &str, address: &str| {
                is_side(address, given) && (was_begun || has_address(given) || given == address)
            };
            is_its(&known.source, &job.source) && is_its(&known.target, &job.target)
        });
        let newest = |of: fn(&Migration) -> &Value| {
            let found = its.clone().map(of).filter(|value| !value.is_null());
            found.max_by_key(|value| value["at_ms"].as_u64()).cloned()
        };
        // How another run was begun says nothing about this one.
        let begun = newest(|known| &known.begun).filter(|begun| begun["created_s"] == json!(job.created_s));
        json!({
            "assessment": newest(|known| &known.assessment), "rehearsal": newest(|known| &known.rehearsal),
            "begun": begun,
        })
    }
}

fn known_in(path: &Path) -> Option<Vec<Migration>> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(created_s: u64) -> Status {
        let (source, target) = ("a:1".to_owned(), "b:2".to_owned());
        Status { source, target, created_s, ..Status::default() }
    }

    #[test]
    fn the_last_of_each_is_there_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let remembered = Remembered::of(folder.path());
        assert_eq!(remembered.find(&job(7))["assessment"], Value::Null);
        remembered.note(("redis://u@a:1/0", "b:2"), About::Assessment, json!({"state": "failed"}));
        remembered.note(("redis://u@a:1/0", "b:2"), About::Assessment, json!({"state": "done"}));
        remembered.note(("a:1", "b:2"), About::Rehearsal, json!({"text": ["about 3 ms"]}));
        remembered.note(("a:1", "b:2"), About::Begun, json!({"mirror": true, "created_s": 7}));
        let found = Remembered::of(folder.path()).find(&job(7));
        assert_eq!(
            (&found["assessment"]["state"], &found["begun"]["mirror"]),
            (&json!("done"), &json!(true))
        );
        assert_eq!(found["rehearsal"]["text"][0], "about 3 ms");
        assert!(found["rehearsal"]["at_ms"].as_u64() > Some(0));
        assert_eq!(Remembered::of(folder.path()).find(&job(8))["begun"], Value::Null, "another run");
        let other = Status { target: "c:3".to_owned(), ..job(7) };
        assert_eq!(remembered.find(&other)["rehearsal"], Value::Null);
    }

    #[test]
    fn what_is_known_of_one_primary_of_a_sentinel_is_not_shown_of_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let remembered = Remembered::of(folder.path());
        let sides = ("sentinel://s:26379/main", "b:2");
        remembered.note(sides, About::Assessment, json!({"state": "done"}));
        assert_eq!(remembered.find(&job(7))["assessment"], Value::Null, "any primary may be meant");
        remembered.note(sides, About::Begun, json!({"job": "sync-1", "created_s": 7}));
        let begun = |id: &str| Status { id: id.to_owned(), ..job(7) };
        assert_eq!(remembered.find(&begun("sync-1"))["assessment"]["state"], "done");
        assert_eq!(remembered.find(&begun("sync-2"))["assessment"], Value::Null);
        let ended = Status { ended: true, ..begun("sync-1-7") };
        assert_eq!(remembered.find(&ended)["assessment"]["state"], "done", "it is kept under another name");
        remembered.note(("sentinel://s:26379/other", "b:2"), About::Rehearsal, json!({"text": "its own"}));
        let named = Status { source: "sentinel://s:26379/other".to_owned(), ..job(9) };
        assert_eq!(remembered.find(&named)["rehearsal"]["text"], "its own");
    }

    #[test]
    fn what_two_consoles_note_at_the_same_moment_is_all_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let notes_of = |console: char| {
            let remembered = Remembered::of(folder.path());
            for number in 0..MIGRATIONS_MAX / 2 {
                let source = format!("{console}{number}:1");
                remembered.note((&source, "b:2"), About::Assessment, json!({"state": "done"}));
            }
        };
        std::thread::scope(|scope| {
            for console in ['x', 'y'] {
                scope.spawn(move || notes_of(console));
            }
        });
        assert_eq!(Remembered::of(folder.path()).migrations.lock().len(), MIGRATIONS_MAX);
    }

    #[test]
    fn two_consoles_of_one_folder_keep_what_both_have_found_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, other) = (Remembered::of(folder.path()), Remembered::of(folder.path()));
        one.note(("a:1", "b:2"), About::Rehearsal, json!({"text": "of one"}));
        other.note(("a:1", "b:2"), About::Assessment, json!({"state": "done"}));
        let found = Remembered::of(folder.path()).find(&job(7));
        assert_eq!(
            (&found["rehearsal"]["text"], &found["assessment"]["state"]),
            (&json!("of one"), &json!("done"))
        );
    }

    #[test]
    fn it_stays_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let remembered = Remembered::of(folder.path());
        for port in 0..2 * MIGRATIONS_MAX {
            remembered.note((&format!("a:{port}"), "b:2"), About::Rehearsal, json!({}));
        }
        remembered.note(("a:1", "b:2"), About::Assessment, json!({"text": "x".repeat(BYTES_MAX)}));
        let kept = remembered.migrations.lock();
        assert_eq!(kept.len(), MIGRATIONS_MAX);
        assert!(kept.iter().all(|known| known.assessment.is_null()));
    }
}
