//! What is known of a job that is watched, and since when.

use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_control::jobs::Seen;
use whimbrel_control::pace::{Pace, left_ms};
use whimbrel_control::store::{Entry, Event, Kind, Status};

use crate::poll::Polled;

/// After this silence a process is said to be silent: one that runs answers every second.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(2);

/// How often in a row a job may not be found: it is written anew under another name while it ends.
const MISSED_MAX: u32 = 2;

/// A moment, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// By the one that no one sets.
    pub at: Instant,
    /// In seconds since the epoch.
    pub s: u64,
}

impl Moment {
    /// Now.
    pub(crate) fn now() -> Moment {
        Moment { at: Instant::now(), s: whimbrel_control::clock::now_s() }
    }
}

/// What has become of a job that is not run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Nothing is left to be done for it.
    Ended,
    /// It can go on.
    Interrupted,
    /// It is not written down any more.
    Gone,
}

/// A job that is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    /// As it stood when that was heard last.
    pub entry: Entry,
    /// What one of its kind shows besides.
    pub details: Value,
    /// What happened to it, the oldest first.
    pub events: Vec<Event>,
    /// Whether it is written down what came of it.
    pub has_report: bool,
    /// When its process said how it stands; where it never did, when that was written down.
    pub heard: Moment,
    missed: u32,
    keys: Pace,
    bytes: Pace,
    /// Keys and bytes a second, once they can be known.
    pub keys_per_s: Option<f64>,
    /// See `keys_per_s`.
    pub bytes_per_s: Option<f64>,
}

impl Watched {
    /// A job of which nothing is known but what was written down.
    pub(crate) fn new(entry: Entry, now: Moment) -> Watched {
        let ago = Duration::from_secs(now.s.saturating_sub(entry.status.updated_s));
        let heard = Moment { at: now.at.checked_sub(ago).unwrap_or(now.at), s: entry.status.updated_s };
        Watched {
            entry,
            details: Value::Null,
            events: Vec::new(),
            has_report: false,
            heard,
            missed: 0,
            keys: Pace::default(),
            bytes: Pace::default(),
            keys_per_s: None,
            bytes_per_s: None,
        }
    }

    /// It was looked at.
    pub(crate) fn note(&mut self, polled: Polled, now: Moment) {
        let Polled { entry, standing, events, has_report } = polled;
        let Some(entry) = entry else {
            self.missed += 1;
            return;
        };
        (self.missed, self.events, self.has_report) = (0, events, has_report);
        let answers = standing.is_some();
        match standing {
            Some(standing) => {
                self.entry = Entry { status: standing.job, running: entry.running };
                self.details = standing.details;
                self.heard = now;
                self.pace(now);
            }
            // As it was heard last is later than what was written down before.
            None if entry.running => self.entry.running = true,
            None => {
                self.heard = Moment { s: entry.status.updated_s, ..now };
                self.entry = entry;
            }
        }
        // How fast it was before that says nothing about how fast it is afterwards.
        if !answers || self.status().rates.is_paused() {
            self.keys.forget();
            self.bytes.forget();
            (self.keys_per_s, self.bytes_per_s) = (None, None);
        }
    }

    fn pace(&mut self, now: Moment) {
        let counts = match self.status().kind {
            Kind::Sync => &self.details["status"]["counts"],
            _ => &self.details["counts"],
        };
        // What a sync has transferred again counts too: all keys are at the target since its snapshot.
        let written = counts["written"].as_u64().filter(|_| self.status().kind == Kind::Sync);
        let (keys, bytes) = (written.unwrap_or(self.status().keys_moved), counts["bytes_written"].as_u64());
        self.keys_per_s = self.keys.note(keys, now.at);
        self.bytes_per_s = bytes.and_then(|bytes| self.bytes.note(bytes, now.at));
    }

    /// How it stood.
    pub(crate) fn status(&self) -> &Status {
        &self.entry.status
    }

    /// For how long nothing was heard from the process that runs it, where that is too long.
    pub(crate) fn silent(&self, now: Moment) -> Option<Duration> {
        let silence = now.at.saturating_duration_since(self.heard.at);
        (self.over().is_none() && silence >= SILENT_AFTER).then_some(silence)
    }

    /// The job as lists show it.
    pub(crate) fn seen(&self, now: Moment) -> Seen {
        let entry = Entry { running: self.entry.running && self.over().is_none(), ..self.entry.clone() };
        Seen { entry, answers: self.silent(now).is_none(), is_elsewhere: false }
    }

    /// How long it takes until all keys are done with, in milliseconds; `None` where that is not known.
    pub(crate) fn left_ms(&self) -> Option<u64> {
        left_ms(self.status(), self.keys_per_s?)
    }

    /// What has become of it, where nobody runs it.
    pub(crate) fn over(&self) -> Option<Over> {
        match (self.status().ended, self.missed >= MISSED_MAX, self.entry.running) {
            (true, ..) => Some(Over::Ended),
            (_, true, _) => Some(Over::Gone),
            (_, _, true) => None,
            (..) => Some(Over::Interrupted),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use whimbrel_control::steering::Standing;

    use super::*;

    /// A job of this kind that runs.
    pub(crate) fn entry(kind: Kind) -> Entry {
        let node = |digit: &str| digit.repeat(40);
        let (source, target) = match kind {
            Kind::Move => (node("a"), node("b")),
            _ => ("old.example.com:6379".to_owned(), "new.example.com:6379".to_owned()),
        };
        let status = Status {
            id: format!("{}-0123456789abcdef", kind.word()),
            kind,
            source,
            target,
            cluster: if kind == Kind::Move { "10.0.0.1:7000".to_owned() } else { String::new() },
            slots: if kind == Kind::Move { "0-99".to_owned() } else { String::new() },
            moved: if kind == Kind::Move { "0-9".to_owned() } else { String::new() },
            method: if kind == Kind::Move { "external".to_owned() } else { String::new() },
            keys: 10_000,
            keys_moved: 4_200,
            phase: "copying".to_owned(),
            created_s: 1_764_000_000,
            updated_s: 1_764_000_100,
            ..Status::default()
        };
        Entry { status, running: true }
    }

    /// A look at a job that has answered.
    pub(crate) fn answered(entry: &Entry, details: Value) -> Polled {
        let standing = Some(Standing { job: entry.status.clone(), details });
        Polled { entry: Some(entry.clone()), standing, events: Vec::new(), has_report: false }
    }

    /// This many seconds after the job was written down last.
    pub(crate) fn after(began: Moment, seconds: u64) -> Moment {
        Moment { at: began.at + Duration::from_secs(seconds), s: began.s + seconds }
    }

    #[test]
    fn how_fast_it_goes_is_known_while_it_answers() {
        let mut entry = entry(Kind::Copy);
        let began = Moment { s: entry.status.updated_s, ..Moment::now() };
        let mut watched = Watched::new(entry.clone(), began);
        assert_eq!((watched.keys_per_s, watched.left_ms()), (None, None));
        for second in 0..=4 {
            entry.status.keys_moved = 4_200 + 500 * second;
            let details = serde_json::json!({"counts": {"bytes_written": 1_024 * second}});
            watched.note(answered(&entry, details), after(began, second));
        }
        assert_eq!((watched.keys_per_s, watched.bytes_per_s), (Some(500.0), Some(1_024.0)));
        assert_eq!(watched.left_ms(), Some(7_600), "3,800 keys are left");
        // It is stopped: what was heard last is not how it stands now.
        let silent = || Polled { standing: None, ..answered(&entry, Value::Null) };
        watched.note(silent(), after(began, 5));
        assert_eq!((watched.silent(after(began, 5)), watched.left_ms()), (None, None));
        watched.note(silent(), after(began, 11));
        let seen = watched.seen(after(began, 11));
        assert_eq!(watched.silent(after(began, 11)), Some(Duration::from_secs(7)));
        assert!(!seen.answers && seen.state_in_words().contains("does not answer"), "{seen:?}");
        assert_eq!(watched.status().keys_moved, 6_200, "what was heard last is later than what was written");
    }

    #[test]
    fn what_has_become_of_it_is_distinguished() {
        let entry = entry(Kind::Copy);
        let now = Moment { s: entry.status.updated_s, ..Moment::now() };
        let polled =
            |entry: Option<Entry>| Polled { entry, standing: None, events: Vec::new(), has_report: false };
        let mut watched = Watched::new(entry.clone(), now);
        assert_eq!(watched.over(), None);
        // It is written anew just now.
        watched.note(polled(None), now);
        assert_eq!(watched.over(), None);
        watched.note(polled(None), now);
        assert_eq!(watched.over(), Some(Over::Gone));
        watched.note(polled(Some(Entry { running: false, ..entry.clone() })), now);
        assert_eq!(watched.over(), Some(Over::Interrupted));
        let status = Status { ended: true, phase: "copied".to_owned(), ..entry.status };
        watched.note(polled(Some(Entry { status, running: false })), now);
        assert_eq!(watched.over(), Some(Over::Ended));
        assert_eq!(watched.silent(after(now, 100)), None, "nobody runs it");
    }
}
