//! A job as the page gets it: as the command line shows it, with what may be done with it now, and how fast
//! it goes.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whimbrel_control::jobs::Seen;
use whimbrel_control::store::{Entry, Kind};

use crate::tokens::Role;

/// How far back it is looked for how fast keys move.
const PACE_OVER: Duration = Duration::from_secs(15);

/// The phase of a sync that can be cut over.
const FOLLOWING: &str = "following";

/// Something that can be asked of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Move no more keys for now.
    Pause,
    /// Move them again.
    Resume,
    /// Move them faster or slower.
    Set,
    /// End it, and undo what can be undone.
    Cancel,
    /// Have the target of a sync take over.
    Cutover,
}

impl Ask {
    const ALL: [Ask; 5] = [Ask::Pause, Ask::Resume, Ask::Set, Ask::Cancel, Ask::Cutover];

    /// The word for it, in the interface.
    pub fn word(self) -> &'static str {
        match self {
            Ask::Pause => "pause",
            Ask::Resume => "resume",
            Ask::Set => "set",
            Ask::Cancel => "cancel",
            Ask::Cutover => "cutover",
        }
    }

    /// The role that it needs.
    pub fn needs(self) -> Role {
        match self {
            Ask::Cutover => Role::Administer,
            Ask::Pause | Ask::Resume | Ask::Set | Ask::Cancel => Role::Operate,
        }
    }

    /// Whether a job that was seen so can be asked.
    fn is_possible(self, seen: &Seen) -> bool {
        let (status, running) = (&seen.entry.status, seen.entry.running && seen.answers);
        if status.ended || seen.is_elsewhere {
            return false;
        }
        // The servers move slots by themselves: that can be ended, not slowed down.
        let is_paced = status.kind != Kind::Move || status.method == "external";
        let is_front = status.kind == Kind::Front;
        match self {
            Ask::Pause => running && is_paced && !status.rates.paused,
            Ask::Resume => running && is_paced && status.rates.paused,
            Ask::Set => running && is_paced && !is_front,
            Ask::Cancel => !is_front && (running || seen.entry.is_interrupted()),
            Ask::Cutover => running && status.kind == Kind::Sync && status.phase == FOLLOWING,
        }
    }
}

/// A job, for all who watch.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    object: Value,
    asks: Vec<Ask>,
}

impl Shown {
    /// As it was seen. `goes_on` is the command for an interrupted one, `pace` how many keys it moves in a
    /// second.
    pub fn new(seen: &Seen, goes_on: Option<String>, pace: Option<f64>) -> Shown {
        let mut object = seen.as_object(goes_on);
        // A name that its user gave can be that of several that have ended: it is shown beside.
        object["given_name"] = object["name"].take();
        object["name"] = json!(seen.entry.status.id);
        let Entry { status, running } = &seen.entry;
        let pace = pace.filter(|_| *running);
        let left = status.keys.saturating_sub(status.keys_moved) as f64;
        object["keys_per_s"] = json!(pace.map(f64::round));
        object["eta_ms"] = json!(
            pace.filter(|pace| *pace >= 1.0 && left > 0.0).map(|pace| (left / pace * 1_000.0).round() as u64)
        );
        object["run_of"] = json!(seen.entry.status.run_of());
        object["state_in_words"] = json!(seen.state_in_words());
        Shown { object, asks: Ask::ALL.into_iter().filter(|ask| ask.is_possible(seen)).collect() }
    }

    /// What somebody of this role gets.
    pub fn for_role(&self, role: Role) -> Value {
        let mut object = self.object.clone();
        let may = self.asks.iter().filter(|ask| ask.needs() <= role).map(|ask| ask.word());
        object["can"] = may.collect();
        object
    }
}

/// How many keys jobs have moved lately, by name.
#[derive(Debug, Default)]
pub struct Paces(HashMap<String, VecDeque<(Instant, u64)>>);

impl Paces {
    /// A job has moved so many keys by now. Returns how many it moves in a second, once that can be told.
    pub fn note(&mut self, entry: &Entry, now: Instant) -> Option<f64> {
        if !entry.running || entry.status.ended {
            self.0.remove(&entry.status.id);
            return None;
        }
        let moved = self.0.entry(entry.status.id.clone()).or_default();
        // A verification that begins a round anew counts from 0 again.
        if moved.back().is_some_and(|(_, before)| *before > entry.status.keys_moved) {
            moved.clear();
        }
        moved.push_back((now, entry.status.keys_moved));
        while moved.front().is_some_and(|(then, _)| now.duration_since(*then) > PACE_OVER) {
            moved.pop_front();
        }
        let (first, last) = (moved.front()?, moved.back()?);
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        (seconds >= 1.0).then(|| (last.1 - first.1) as f64 / seconds)
    }

    /// Forgets all jobs but these.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_there(name));
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_control::store::Status;

    use super::*;

    fn seen(kind: Kind, phase: &str, running: bool) -> Seen {
        let status = Status { id: "j".to_owned(), kind, phase: phase.to_owned(), ..Status::default() };
        Seen { entry: Entry { status, running }, answers: true, is_elsewhere: false }
    }

    fn can(seen: &Seen, role: Role) -> Vec<String> {
        let shown = Shown::new(seen, None, None).for_role(role);
        serde_json::from_value(shown["can"].clone()).expect("words")
    }

    #[test]
    fn a_role_is_offered_what_it_may_do_and_what_is_possible() {
        let sync = seen(Kind::Sync, FOLLOWING, true);
        assert_eq!(can(&sync, Role::Look), [""; 0]);
        assert_eq!(can(&sync, Role::Operate), ["pause", "set", "cancel"]);
        assert_eq!(can(&sync, Role::Administer), ["pause", "set", "cancel", "cutover"]);
        assert_eq!(
            can(&seen(Kind::Sync, "snapshotting", true), Role::Administer),
            ["pause", "set", "cancel"]
        );
        assert_eq!(can(&seen(Kind::Copy, "", false), Role::Operate), ["cancel"]);
        assert_eq!(can(&seen(Kind::Front, "", true), Role::Operate), ["pause"]);
        let mut native = seen(Kind::Move, "streaming", true);
        native.entry.status.method = "native".to_owned();
        assert_eq!(can(&native, Role::Operate), ["cancel"]);
        native.entry.status.ended = true;
        assert_eq!(can(&native, Role::Administer), [""; 0]);
        let silent = Seen { answers: false, ..seen(Kind::Copy, "", true) };
        assert_eq!(can(&silent, Role::Administer), [""; 0]);
        let others = Seen { is_elsewhere: true, ..seen(Kind::Move, "streaming", true) };
        assert_eq!(can(&others, Role::Administer), [""; 0]);
    }

    #[test]
    fn how_long_it_takes_follows_from_the_last_seconds() {
        let (mut paces, began) = (Paces::default(), Instant::now());
        let mut job = seen(Kind::Copy, "", true);
        (job.entry.status.keys, job.entry.status.keys_moved) = (10_000, 0);
        let mut at = |seconds: u64, moved: u64| {
            job.entry.status.keys_moved = moved;
            let pace = paces.note(&job.entry, began + Duration::from_secs(seconds));
            let shown = Shown::new(&job, None, pace).for_role(Role::Look);
            (shown["keys_per_s"].as_f64(), shown["eta_ms"].as_u64())
        };
        assert_eq!(at(0, 0), (None, None));
        assert_eq!(at(2, 1_000), (Some(500.0), Some(18_000)));
        assert_eq!(at(20, 1_000), (None, None), "what was long ago does not count");
        assert_eq!(at(22, 1_000), (Some(0.0), None), "it stands still");
        assert_eq!(at(23, 10), (None, None), "it has begun anew");
    }
}
