//! Clients that write all the while, and remember exactly what was acknowledged.
//!
//! Each key belongs to one thread, so that its writes have one order. A write that was not answered is
//! *unknown*: both outcomes are right, and its key is left alone from then on.

mod link;
mod model;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use parking_lot::RwLock;

use crate::compare::{state_differences, states_of};
use crate::dataset::random::Random;
use crate::deployment::{Deployment, now_ms};
use crate::trouble::TroubleKind;
use link::{Link, Outcome};
use model::{Kind, Model, Write};

/// How long a thread waits after a refusal before it writes again.
const REFUSED_PAUSE: Duration = Duration::from_millis(5);
/// Refusals kept to be shown.
const REFUSALS_KEPT: usize = 5;

/// How much is written.
#[derive(Clone, Debug)]
pub struct Load {
    /// Threads, each with its own connections.
    pub threads: u64,
    /// Keys that each thread writes in turn.
    pub keys_per_thread: u64,
    /// Of keys and values.
    pub seed: u64,
    /// Between two writes of a thread.
    pub pause: Duration,
    /// Database.
    pub db: i64,
    /// How key names begin.
    pub prefix: String,
}

impl Default for Load {
    /// 4 threads with 200 keys each. They leave the processors to what is tested, and to the tests beside it.
    fn default() -> Self {
        Self {
            threads: 4,
            keys_per_thread: 200,
            seed: 1,
            pause: Duration::from_millis(3),
            db: 0,
            prefix: "writer".into(),
        }
    }
}

/// Threads that write until [`Writers::stop`].
#[derive(Debug)]
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Entry>>>,
    load: Load,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Where to write, and how often that has changed.
    goal: RwLock<(u64, Deployment)>,
    acknowledged: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    refusals: RwLock<Vec<String>>,
}

/// What is known of one key.
#[derive(Clone, Debug)]
struct Entry {
    key: String,
    kind: Kind,
    model: Model,
    /// What it holds if the write without an answer was done after all.
    possible: Option<Model>,
    wrong_reply: Option<String>,
    /// Whether an acknowledged write has ever been recorded.
    written: bool,
}

impl Entry {
    fn new(key: String, kind: Kind) -> Self {
        Self { key, kind, model: Model::default(), possible: None, wrong_reply: None, written: false }
    }

    /// Whether more writes would blur what is known.
    fn is_closed(&self) -> bool {
        self.possible.is_some() || self.wrong_reply.is_some()
    }
}

impl Writers {
    /// Starts writing. Keys of the same prefix must not be there yet.
    pub fn start(deployment: &Deployment, load: Load) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            goal: RwLock::new((0, deployment.clone())),
            acknowledged: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            refusals: RwLock::new(Vec::new()),
        });
        let threads = (0..load.threads)
            .map(|thread| {
                let (shared, load) = (Arc::clone(&shared), load.clone());
                thread::spawn(move || write_until_stopped(thread, &shared, &load))
            })
            .collect();
        Self { shared, threads, load }
    }

    /// Writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until `more` further writes are acknowledged; says whether they were before `timeout`.
    pub fn wait_for(&self, more: u64, timeout: Duration) -> bool {
        let goal = self.acknowledged() + more;
        let deadline = std::time::Instant::now() + timeout;
        while self.acknowledged() < goal {
            if std::time::Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Sends all further writes to another deployment, as clients do at a cutover. Waits until the writes
    /// under way have ended: after it, nothing more goes to the old one.
    pub fn switch_to(&self, deployment: &Deployment) {
        let mut goal = self.shared.goal.write();
        *goal = (goal.0 + 1, deployment.clone());
    }

    /// Ends the writing and gives the record of it.
    pub fn stop(self) -> Record {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut entries = Vec::new();
        for thread in self.threads {
            entries.extend(thread.join().expect("a writer does not panic"));
        }
        Record {
            acknowledged: self.shared.acknowledged.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            unknown: self.shared.unknown.load(Ordering::Relaxed),
            refusals: self.shared.refusals.read().clone(),
            db: self.load.db,
            entries,
        }
    }
}

/// What was written, and what must be found now.
#[derive(Clone, Debug)]
pub struct Record {
    /// Writes that the server confirmed.
    pub acknowledged: u64,
    /// Writes that were certainly not done.
    pub refused: u64,
    /// Writes without an answer.
    pub unknown: u64,
    /// Some of the reasons for refusals and unknown outcomes.
    pub refusals: Vec<String>,
    db: i64,
    entries: Vec<Entry>,
}

/// Something that an acknowledged write contradicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Of what kind.
    pub kind: TroubleKind,
    /// The key it happened to.
    pub key: String,
    /// More about it.
    pub words: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: {}", self.kind, self.key, self.words)
    }
}

impl Record {
    /// How many keys were written.
    pub fn keys(&self) -> usize {
        self.entries.len()
    }

    /// The names of the keys that were written, those that were deleted at last included.
    pub fn key_names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Compares every key with what `deployment` holds; ordered by key.
    ///
    /// Fails when a server cannot be read.
    pub fn check(&self, deployment: &Deployment) -> Result<Vec<Trouble>> {
        self.check_in(deployment, self.db)
    }

    /// As [`Self::check`], in another database than the one written to.
    ///
    /// Fails when a server cannot be read.
    pub fn check_in(&self, deployment: &Deployment, db: i64) -> Result<Vec<Trouble>> {
        let keys: Vec<Vec<u8>> = self.entries.iter().map(|entry| entry.key.clone().into_bytes()).collect();
        let states = states_of(deployment, db, &keys)?;
        let mut troubles = Vec::new();
        for entry in &self.entries {
            if let Some(words) = &entry.wrong_reply {
                troubles.push(Trouble {
                    kind: TroubleKind::WrongReply,
                    key: entry.key.clone(),
                    words: words.clone(),
                });
                // What the key must hold after it nobody can say.
                continue;
            }
            let found = states.get(entry.key.as_bytes());
            let possible = entry.possible.iter().any(|model| contradiction(model, found).is_none());
            if let Some((kind, words)) = contradiction(&entry.model, found).filter(|_| !possible) {
                troubles.push(Trouble { kind, key: entry.key.clone(), words });
            }
        }
        troubles.sort_by(|left, right| left.key.cmp(&right.key));
        Ok(troubles)
    }

    /// Panics with the first troubles if there are any, or if a server cannot be read.
    #[track_caller]
    pub fn assert_kept(&self, deployment: &Deployment) {
        let troubles = match self.check(deployment) {
            Ok(troubles) => troubles,
            Err(error) => panic!("cannot check: {error:#}"),
        };
        let shown: Vec<String> = troubles.iter().take(20).map(Trouble::to_string).collect();
        assert!(
            troubles.is_empty(),
            "{} of {} keys are wrong after {} acknowledged writes:\n  {}",
            troubles.len(),
            self.keys(),
            self.acknowledged,
            shown.join("\n  ")
        );
    }
}

/// How what was found contradicts a model; none if it does not.
fn contradiction(model: &Model, found: Option<&crate::compare::KeyState>) -> Option<(TroubleKind, String)> {
    match (model.state(), found) {
        (None, None) => None,
        (Some(expected), None) => {
            Some((TroubleKind::Lost, format!("a {} must be there", expected.value.type_name())))
        }
        (None, Some(found)) => {
            Some((TroubleKind::Resurrected, format!("a {} is there", found.value.type_name())))
        }
        (Some(expected), Some(found)) => {
            let words = state_differences(&expected, found);
            (!words.is_empty())
                .then(|| (TroubleKind::Stale, format!("expected against found: {}", words.join("; "))))
        }
    }
}

fn write_until_stopped(thread: u64, shared: &Shared, load: &Load) -> Vec<Entry> {
    let mut random = Random::new(load.seed.wrapping_mul(1_000_003).wrapping_add(thread));
    let mut closed = Vec::new();
    let mut generation = 0;
    let new_entry = |number: u64, generation: u64| {
        let kind = Kind::ALL[(number % Kind::ALL.len() as u64) as usize];
        Entry::new(format!("{}:{thread}:{kind:?}:{number}:{generation}", load.prefix), kind)
    };
    let mut entries: Vec<Entry> =
        (0..load.keys_per_thread.max(1)).map(|number| new_entry(number, 0)).collect();
    let mut current: Option<(u64, Link)> = None;
    while !shared.stop.load(Ordering::Relaxed) {
        // Held during the write: who changes the goal waits for it.
        let goal = shared.goal.read();
        let (_, link) = match current.take_if(|(version, _)| *version == goal.0) {
            Some(same) => current.insert(same),
            None => current.insert((goal.0, Link::new(goal.1.clone(), load.db))),
        };
        let number = random.below(entries.len() as u64);
        let entry = &mut entries[number as usize];
        write_once(entry, link, &mut random, shared);
        drop(goal);
        if entry.is_closed() {
            generation += 1;
            closed.push(std::mem::replace(entry, new_entry(number, generation)));
        }
        if !load.pause.is_zero() {
            thread::sleep(load.pause);
        }
    }
    closed.extend(entries.into_iter().filter(|entry| entry.written));
    closed
}

fn write_once(entry: &mut Entry, link: &mut Link, random: &mut Random, shared: &Shared) {
    let write = Write::choose(entry.kind, &entry.model, random, now_ms());
    let (next, answer) = entry.model.after(&write);
    let reason = match link.send(&entry.key, &write.command(&entry.key)) {
        Outcome::Acknowledged(reply) => {
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
            entry.written = true;
            if !answer.is(&reply) {
                entry.wrong_reply = Some(format!("{write:?} was answered {reply:?} instead of {answer:?}"));
            }
            entry.model = next;
            return;
        }
        Outcome::Refused(reason) => {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            thread::sleep(REFUSED_PAUSE);
            reason
        }
        Outcome::Unknown(reason) => {
            shared.unknown.fetch_add(1, Ordering::Relaxed);
            entry.possible = Some(next);
            reason
        }
    };
    let mut refusals = shared.refusals.write();
    if refusals.len() < REFUSALS_KEPT {
        refusals.push(reason);
    }
}
