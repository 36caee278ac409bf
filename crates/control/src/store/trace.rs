//! What happened to a job and when: a line of JSON for each event, in `jobs/ID.events`.
//!
//! Events are the differences between one standing of the job and the next, as both are written down: so
//! every kind of job has them, and what lasts less than the time between two standings (a second) may not
//! be among them. What comes of hooks is noted beside them.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use whimbrel_core::units::format_duration_ms;
use whimbrel_flow::budget::RatesNow;
use whimbrel_flow::journal::{is_at, replace};

use super::status::{Status, user};

/// Above this size the older half is forgotten, in bytes.
const BYTES_MAX: u64 = 256 << 10;

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in seconds since the epoch.
    pub at_s: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// A process runs it, for the first time.
    Begun {
        /// Whose: the user's name, or number, behind on whose behalf that was, if any.
        by: String,
    },
    /// Another process goes on with it.
    Resumed {
        /// Whose, likewise.
        by: String,
    },
    /// It is in another phase.
    Phase {
        /// Which.
        phase: String,
    },
    /// It says why it waits or was interrupted.
    Message {
        /// In words; empty once that is over.
        message: String,
    },
    /// Another share of its keys is done with.
    Progress {
        /// Which.
        percent: u64,
    },
    /// It was paused or resumed, or its rates were set.
    Steered {
        /// How they are since.
        rates: RatesNow,
    },
    /// A user has asked for that.
    Asked {
        /// What the job did: `paused`, `resumed` or `set`.
        done: String,
        /// Who.
        by: String,
        /// How its rates were then.
        rates: RatesNow,
    },
    /// A hook was run, or should have been: see [`crate::hooks`].
    Hook {
        /// The event that it was for.
        hook: String,
        /// How it ended.
        end: HookEnd,
        /// The last that it printed.
        output: String,
    },
    /// A cutover was scheduled, or withdrawn.
    Scheduled {
        /// When, in words; `None` if it was taken back.
        when: Option<String>,
    },
    /// A cutover that was due has not come about.
    NotCutOver {
        /// Why, in words.
        why: String,
    },
    /// Nothing is left to be done for it.
    Ended {
        /// How it ended.
        phase: String,
    },
}

/// In words.
impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Begun { by } => write!(f, "begun by {by}"),
            What::Resumed { by } => write!(f, "resumed by {by}"),
            What::Phase { phase } => f.write_str(phase),
            What::Message { message } if message.is_empty() => f.write_str("goes on"),
            What::Message { message } => f.write_str(message),
            What::Progress { percent } => write!(f, "{percent} % of its keys"),
            What::Steered { rates } => write!(f, "{rates}"),
            What::Asked { done, by, rates } if done == "set" => write!(f, "{done} by {by}: {rates}"),
            What::Asked { done, by, .. } => write!(f, "{done} by {by}"),
            What::Hook { hook, end, output } => {
                write!(f, "the hook of {hook} {end}")?;
                output.lines().try_for_each(|line| write!(f, "\n    {line}"))
            }
            What::Scheduled { when: Some(when) } => write!(f, "a cutover is scheduled: {when}"),
            What::Scheduled { when: None } => f.write_str("no cutover is scheduled any more"),
            What::NotCutOver { why } => write!(f, "not cut over: {why}"),
            What::Ended { phase } => write!(f, "ended: {phase}"),
        }
    }
}

/// How a hook ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookEnd {
    /// With exit code 0.
    Succeeded,
    /// With another one.
    Failed {
        /// Which.
        code: i32,
    },
    /// By a signal.
    Killed {
        /// Which.
        signal: i32,
    },
    /// It took too long, and was killed.
    TimedOut {
        /// How long it had, in milliseconds.
        after_ms: u64,
    },
    /// It is a webhook, and no receiver has taken what was posted.
    NotDelivered {
        /// How often it was tried.
        tries: u32,
        /// Why not, the last time, in words.
        why: String,
    },
    /// It was not run, or not to its end.
    NotRun {
        /// Why, in words.
        why: String,
    },
}

/// In words that follow what ended.
impl fmt::Display for HookEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookEnd::Succeeded => f.write_str("succeeded"),
            HookEnd::Failed { code } => write!(f, "ended with exit code {code}"),
            HookEnd::Killed { signal } => write!(f, "was ended by signal {signal}"),
            HookEnd::TimedOut { after_ms } => {
                write!(f, "was killed, as it had not ended after {}", format_duration_ms(*after_ms))
            }
            HookEnd::NotDelivered { tries, why } => {
                write!(
                    f,
                    "was not delivered in {}: {why}",
                    if *tries == 1 { "one try".to_owned() } else { format!("{tries} tries") }
                )
            }
            HookEnd::NotRun { why } => write!(f, "was not run: {why}"),
        }
    }
}

/// How long another process may take to make the file shorter, and how often it is tried again meanwhile.
const SHORTENED_WITHIN: Duration = Duration::from_secs(1);
const TRIED_EVERY: Duration = Duration::from_millis(5);

/// Only one of this process writes at a time.
static WRITING: Mutex<()> = Mutex::new(());

/// What happened between two standings. `before` is `None` at the job's beginning.
fn between(before: Option<&Status>, now: &Status) -> Vec<What> {
    let mut events = Vec::new();
    let begins = Status::default();
    let known = before.unwrap_or(&begins);
    if before.is_none() {
        events.push(What::Begun { by: now.origin.begun_by.clone().unwrap_or_else(user) });
    }
    if known.rates != now.rates {
        events.push(What::Steered { rates: now.rates });
    }
    if now.percent().is_some() && known.percent() != now.percent() {
        events.extend(now.percent().map(|percent| What::Progress { percent }));
    }
    if known.phase != now.phase && !now.phase.is_empty() && !now.ended {
        events.push(What::Phase { phase: now.phase.clone() });
    }
    if known.message != now.message {
        events.push(What::Message { message: now.message.clone() });
    }
    if now.ended && !known.ended {
        events.push(What::Ended { phase: now.phase.clone() });
    }
    events
}

/// Writes down what has happened since the job stood as `before`.
///
/// # Errors
/// Whatever the file system reports.
pub(super) fn note(path: &Path, before: Option<&Status>, now: &Status) -> io::Result<()> {
    append(path, between(before, now).into_iter().map(|what| Event { at_s: now.updated_s, what }))
}

/// Writes down events, in their order.
///
/// # Errors
/// Whatever the file system reports.
pub(super) fn append(path: &Path, events: impl IntoIterator<Item = Event>) -> io::Result<()> {
    let mut text = String::new();
    for event in events {
        text.push_str(&serde_json::to_string(&event)?);
        text.push('\n');
    }
    if text.is_empty() {
        return Ok(());
    }
    let _writing = WRITING.lock();
    let (flags, until) = (OFlag::O_NOFOLLOW.bits(), Instant::now() + SHORTENED_WITHIN);
    loop {
        let file = File::options().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
        let is_long = file.metadata()?.len() > BYTES_MAX;
        // Any number of processes may add to it, but none while one makes it shorter.
        let lock = if is_long { FlockArg::LockExclusiveNonblock } else { FlockArg::LockSharedNonblock };
        match Flock::lock(file, lock) {
            Err((_, Errno::EWOULDBLOCK)) if Instant::now() < until => {}
            // That process is stopped.
            Err((mut file, Errno::EWOULDBLOCK)) => return file.write_all(text.as_bytes()),
            // The file system has no locks.
            Err((mut file, _)) => return put(path, &mut file, is_long, text),
            Ok(mut file) if is_at(path, &file.metadata()?) || Instant::now() >= until => {
                return put(path, &mut file, is_long, text);
            }
            // Another one has the name meanwhile.
            Ok(_) => {}
        }
        std::thread::sleep(TRIED_EVERY);
    }
}

/// Adds to the file; if that is too long, to a new file with its newer half.
fn put(path: &Path, file: &mut File, is_long: bool, text: String) -> io::Result<()> {
    if !is_long {
        return file.write_all(text.as_bytes());
    }
    replace(path, &(newer_half(&std::fs::read_to_string(path)?).to_owned() + &text), false)
}

/// The lines of the second half.
fn newer_half(known: &str) -> &str {
    let half = (known.len() / 2..known.len()).find(|at| known.is_char_boundary(*at)).unwrap_or(known.len());
    known[half..].split_once('\n').map_or("", |(_, newer)| newer)
}

/// What was written down; lines that are no events are left out.
pub(super) fn read(path: &Path) -> Vec<Event> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(phase: &str, keys_moved: u64) -> Status {
        Status { phase: phase.to_owned(), keys: 200, keys_moved, ..Status::default() }
    }

    fn phase(phase: &str) -> What {
        What::Phase { phase: phase.to_owned() }
    }

    #[test]
    fn what_differs_is_an_event_and_what_does_not_is_none() {
        let (begins, moves) = (standing("", 0), standing("copying", 1));
        assert_eq!(between(None, &begins), [What::Begun { by: user() }, What::Progress { percent: 0 }]);
        assert_eq!(between(Some(&begins), &moves), [phase("copying")], "half a per cent is none");
        assert!(between(Some(&moves), &Status { updated_s: 7, keys_moved: 0, ..moves.clone() }).is_empty());
        let rates = RatesNow { paused: true, ..RatesNow::default() };
        let paused = Status { rates, message: "why".to_owned(), ..standing("copying", 100) };
        let message = |message: &str| What::Message { message: message.to_owned() };
        let expected = [What::Steered { rates }, What::Progress { percent: 50 }, message("why")];
        assert_eq!(between(Some(&moves), &paused), expected);
        let again = Status { rates, ..standing("copying", 100) };
        assert_eq!(between(Some(&paused), &again), [message("")]);
        let ended = Status { ended: true, ..standing("done", 200) };
        let expected = [
            What::Steered { rates: RatesNow::default() },
            What::Progress { percent: 100 },
            What::Ended { phase: "done".to_owned() },
        ];
        assert_eq!(between(Some(&again), &ended), expected);
        assert!(between(Some(&ended), &ended).is_empty());
    }

    #[test]
    fn what_is_noted_is_read_and_the_file_stays_small() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.events");
        let mut before = standing("", 0);
        note(&path, None, &before).expect("written");
        for number in 0..20_000 {
            let now = standing(&format!("phase {number}"), 0);
            note(&path, Some(&before), &now).expect("written");
            before = now;
        }
        assert!(path.metadata().expect("a file").len() <= BYTES_MAX + 1_000);
        let events = read(&path);
        let numbers: Vec<u64> = events
            .iter()
            .filter_map(|event| match &event.what {
                What::Phase { phase } => phase.strip_prefix("phase ")?.parse().ok(),
                _ => None,
            })
            .collect();
        assert_eq!(numbers.last(), Some(&19_999));
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "a line in between is gone");
        let hook = What::Hook {
            hook: "switch".to_owned(),
            end: HookEnd::TimedOut { after_ms: 5 },
            output: "two\nlines".to_owned(),
        };
        append(&path, [Event { at_s: 7, what: hook.clone() }]).expect("written");
        assert_eq!(read(&path).pop(), Some(Event { at_s: 7, what: hook }));
        std::fs::write(&path, "{\"at_s\":1,\"event\":\"begun\",\"by\":\"x\"}\nnonsense\n").expect("written");
        assert_eq!(read(&path), [Event { at_s: 1, what: What::Begun { by: "x".to_owned() } }]);
    }

    #[test]
    fn what_another_process_adds_is_not_lost_while_the_file_is_made_shorter() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.events");
        let message = |message: String| Event { at_s: 1, what: What::Message { message } };
        append(&path, (0..6_000).map(|n| message(format!("{n:040}")))).expect("written");
        let long = path.metadata().expect("a file").len();
        assert!(long > BYTES_MAX);
        // Another one is about to add to it, and is stopped.
        let other = File::options().append(true).open(&path).expect("opened");
        let mut other = Flock::lock(other, FlockArg::LockSharedNonblock).expect("locked");
        append(&path, [message("mine".to_owned())]).expect("written");
        assert!(path.metadata().expect("a file").len() > long, "all of it is kept meanwhile");
        other.write_all(b"{\"at_s\":1,\"event\":\"begun\",\"by\":\"x\"}\n").expect("written");
        drop(other);
        append(&path, [message("last".to_owned())]).expect("written");
        assert!(path.metadata().expect("a file").len() < BYTES_MAX);
        let last: Vec<Event> = read(&path).split_off(read(&path).len() - 3);
        let theirs = Event { at_s: 1, what: What::Begun { by: "x".to_owned() } };
        assert_eq!(last, [message("mine".to_owned()), theirs, message("last".to_owned())]);
    }
}
