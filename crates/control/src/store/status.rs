//! How a job stands.

use serde::{Deserialize, Serialize};
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::format_time;
use whimbrel_flow::budget::{RateChange, RatesNow, Times};
use whimbrel_flow::lag::MaxLag;

use crate::naming::{JobName, written};

/// How a sync ended whose target has taken over.
pub const CUT_OVER: &str = "cut over";

/// The phase of a sync that can be cut over.
pub const FOLLOWING: &str = "following";

/// How a move of slots ended that could not be made.
pub const FAILED: &str = "failed";

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Moves slots within a cluster.
    #[default]
    Move,
    /// Copies a deployment.
    Copy,
    /// Compares two.
    Verify,
    /// Keeps one equal to another.
    Sync,
    /// Serves clients while keys move from one server to another.
    Front,
}

impl Kind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Move => "move",
            Kind::Copy => "copy",
            Kind::Verify => "verify",
            Kind::Sync => "sync",
            Kind::Front => "front",
        }
    }

    /// What the keys are that such a job has dealt with.
    pub fn keys_are(self) -> &'static str {
        match self {
            Kind::Verify => "compared",
            Kind::Front => "moved",
            // Those that could not be copied are among them.
            Kind::Copy => "done",
            Kind::Sync | Kind::Move => "at the target",
        }
    }

    /// Whether a job of this kind goes on with a journal in the state folder.
    pub(super) fn has_journal(self) -> bool {
        matches!(self, Kind::Copy | Kind::Verify | Kind::Sync)
    }
}

/// How a job stands, as others see it. What only jobs that move slots have is empty for others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Status {
    /// The name that it has of itself.
    pub id: String,
    /// What its user calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it does.
    #[serde(default)]
    pub kind: Kind,
    /// The cluster whose slots move, as `HOST:PORT` without credentials.
    #[serde(default)]
    pub cluster: String,
    /// Addresses of the cluster's primaries when the job was made, likewise.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// The source, as `HOST:PORT` without credentials; if slots move, its node id.
    pub source: String,
    /// The target, likewise.
    pub target: String,
    /// All slots that move, as ranges.
    #[serde(default)]
    pub slots: String,
    /// The slots that have been handed over.
    #[serde(default)]
    pub moved: String,
    /// How many keys the job is about; 0 if they were not counted.
    #[serde(default)]
    pub keys: u64,
    /// How many of them are done with.
    #[serde(default)]
    pub keys_moved: u64,
    /// Bytes that wait to be sent, if the servers' own migration reports them; 0 otherwise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remaining_bytes: u64,
    /// Of a move of slots: `external`, `native` or `legacy`.
    #[serde(default)]
    pub method: String,
    /// Why the servers' own migration was left for this method, if the job was begun by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// The phase it is in.
    pub phase: String,
    /// Why it failed, or what it waits for; empty if there is nothing to say.
    pub message: String,
    /// When it was made and last changed, in seconds since the epoch.
    pub created_s: u64,
    /// See `created_s`.
    pub updated_s: u64,
    /// True once nothing is left to be done for it.
    pub ended: bool,
    /// The process that runs it, or ran it last; `None` if that was not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What goes on with it, as arguments for whimbrel; empty if it is the same for all of its kind, or
    /// nothing can.
    #[serde(default)]
    pub again: Vec<String>,
    /// How fast its keys move at most, and whether they do.
    #[serde(default, flatten)]
    pub rates: RatesNow,
    /// When a cutover is due that was scheduled, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<String>,
    /// The address that it listens on, if it serves clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// How to name the source again, if its address is not enough: with user, TLS and database, and without a
    /// password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_url: Option<String>,
    /// The target, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_url: Option<String>,
    /// Who had it begun.
    #[serde(default, flatten)]
    pub origin: Origin,
}

/// Who had a job begun. It stays as it was when the job was written down first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// In words: the user of its process, or on whose behalf that ran and the user: see [`on_behalf_of`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_by: Option<String>,
    /// The plan of which it is a part, or the command: that is called as its first job is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

/// By this a process learns on whose behalf it runs a job: in words, for people. Anyone can set it, so it
/// never stands alone: see [`on_behalf_of`].
pub const BEGUN_BY: &str = "WHIMBREL_BEGUN_BY";

/// The longest that is kept of it, in characters.
const BEGUN_BY_MAX: usize = 100;

/// Who began the jobs that this process runs: its user, and on whose behalf, if that was given.
pub(super) fn begun_by() -> String {
    match std::env::var(BEGUN_BY) {
        Ok(name) if !name.is_empty() => on_behalf_of(&name),
        _ => user(),
    }
}

/// That this process runs a job on somebody's behalf: `token NAME (console), as root`. Anyone can claim the
/// first part; the second is this process's user, and always the last.
pub fn on_behalf_of(name: &str) -> String {
    let seen = name.chars().filter(|c| !c.is_control() && !is_unseen(*c));
    format!("{}, as {}", seen.take(BEGUN_BY_MAX).collect::<String>(), user())
}

/// The user of this process: the name, or the number of a user without a name.
pub(super) fn user() -> String {
    let id = nix::unistd::geteuid();
    nix::unistd::User::from_uid(id).ok().flatten().map_or_else(|| id.to_string(), |user| user.name)
}

/// What changes how text is shown, and is not seen itself: with it one name could look like another.
fn is_unseen(c: char) -> bool {
    let ranges = ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}'];
    matches!(c, '\u{ad}' | '\u{feff}') || ranges.iter().any(|range| range.contains(&c))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A job in the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// How it stands.
    #[serde(flatten)]
    pub status: Status,
    /// A process has it open.
    pub running: bool,
}

impl Entry {
    /// Whether no process runs the job and it has not ended.
    pub fn is_interrupted(&self) -> bool {
        !self.status.ended && !self.running
    }

    /// Whether the job runs, in one word.
    pub fn state(&self) -> &'static str {
        match (self.status.ended, self.running) {
            (true, _) => "ended",
            (false, true) => "running",
            (false, false) => "interrupted",
        }
    }
}

fn slots_in(ranges: &str) -> usize {
    ranges.parse::<SlotSet>().map_or(0, |slots| slots.len())
}

impl Status {
    /// The same, with the origin of `known` if it names none itself. Another run of the same name has another
    /// origin.
    #[must_use]
    pub(crate) fn with_origin_of(mut self, known: Option<&Status>) -> Status {
        if let Some(known) = known.filter(|known| known.created_s == self.created_s) {
            let Origin { begun_by, plan } = &known.origin;
            self.origin.begun_by = self.origin.begun_by.or_else(|| begun_by.clone());
            self.origin.plan = self.origin.plan.or_else(|| plan.clone());
        }
        self
    }

    /// The name under which it is kept once it has ended, if its next run has the same name.
    pub(crate) fn kept_as(&self) -> String {
        format!("{}-{:x}", self.id, self.created_s)
    }

    /// The name that the job had while it ran, if it has been kept under another name since it ended.
    pub fn run_of(&self) -> Option<&str> {
        let name = self.id.strip_suffix(&format!("-{:x}", self.created_s))?;
        self.ended.then_some(name)
    }

    /// Whether this is the job `name`, or how a run of it ended.
    pub fn is_run_of(&self, name: &str) -> bool {
        self.id == name || self.run_of() == Some(name)
    }

    /// Whether it waits for its turn, and nothing was done for it.
    pub fn waits(&self) -> bool {
        matches!(&*self.phase, "queued" | "connecting")
    }

    /// What people call it.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// Whether one of its names begins so.
    pub fn is_called(&self, beginning: &str) -> bool {
        [Some(&self.id), self.name.as_ref()].into_iter().flatten().any(|name| name.starts_with(beginning))
    }

    /// The same with the name that its user gives it now; a continued job keeps its name if none is given.
    /// The command that continues it has the name as well.
    #[must_use]
    pub fn named(self, given: Option<&JobName>) -> Status {
        let name = given.map(ToString::to_string).or_else(|| self.name.clone());
        let again = name.clone();
        Status { name, ..self.going_on_with("name", again) }
    }

    /// The same; the command that continues it has this option as well, if it has a value.
    #[must_use]
    pub fn going_on_with(mut self, option: &str, value: Option<impl ToString>) -> Status {
        if let Some(value) = value.filter(|_| !self.again.is_empty()) {
            self.again.extend([written(option), value.to_string()]);
        }
        self
    }

    /// The same, whose command that goes on with it has these limits as well.
    #[must_use]
    pub fn going_on_at(self, limits: &RateChange) -> Status {
        let RateChange { keys, bytes, max_latency_ms, max_lag, max_load, times, .. } = limits;
        let between = times.and_then(|times| match times {
            Times::Between(window) => Some(window),
            Times::Any => None,
        });
        self.going_on_with("between", between)
            .going_on_with("rate-keys", *keys)
            .going_on_with("rate-bytes", *bytes)
            .going_on_with("max-latency", max_latency_ms.map(|ms| format!("{ms}ms")))
            .going_on_with(
                "max-lag",
                max_lag.map(|lag| match lag {
                    MaxLag::Bytes(bytes) => bytes.to_string(),
                    MaxLag::Ms(ms) => format!("{ms}ms"),
                }),
            )
            .going_on_with("max-load", *max_load)
    }

    /// The same; the command that continues it has this switch as well, if it `is_on`.
    #[must_use]
    pub fn going_on_switched(mut self, switch: &str, is_on: bool) -> Status {
        if is_on && !self.again.is_empty() {
            self.again.push(written(switch));
        }
        self
    }

    /// When it has ended, for people.
    pub fn ended_at(&self) -> Option<String> {
        self.ended.then(|| format_time(self.updated_s))
    }

    /// How many slots are to move.
    pub fn slots_planned(&self) -> usize {
        slots_in(&self.slots)
    }

    /// How many slots have moved.
    pub fn slots_moved(&self) -> usize {
        slots_in(&self.moved)
    }

    /// The share of keys that are done with; `None` if they were not counted.
    pub fn percent(&self) -> Option<u64> {
        let share = |total: u64| (u128::from(self.keys_moved.min(total)) * 100 / u128::from(total)) as u64;
        (self.keys > 0).then(|| share(self.keys))
    }

    /// Source and target, for people: nodes of a cluster by the beginning of their ids.
    pub fn between(&self) -> String {
        let short = |id: &str| match self.kind {
            Kind::Move => id.get(..8).unwrap_or(id).to_owned(),
            _ => id.to_owned(),
        };
        format!("{} -> {}", short(&self.source), short(&self.target))
    }
}
