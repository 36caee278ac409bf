//! Clients of a cluster that write and read all the while, and know exactly what they must find.
//!
//! Each client has its own connections and its own keys, so that the writes of a key have one order. What a
//! server answers is compared with what it must answer, and at the end every key with what it must hold. A
//! write without an answer may have been done or not; both are right, and its keys are left alone from then
//! on.
//!
//! The clients follow MOVED as all cluster clients do. Everything else that is no reply is noted: see
//! [`Observed`].

mod client;
mod observed;
mod subject;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

pub use client::{Client, Outcome};
pub use observed::{Incident, IncidentKind, Observed, Stall};

use crate::compare::{KeyState, states_of};
use crate::dataset::random::Random;
use crate::deployment::{Deployment, now_ms, slot_of};
use crate::trouble::TroubleKind;
use client::{words_of, words_of_outcome};
use subject::{Contradiction, Kind, Model};

/// How long a client waits after an error before it goes on.
const ERROR_PAUSE: Duration = Duration::from_millis(10);
/// How long a command may be under way before it counts as paused: longer than a busy machine leaves a
/// process waiting, or what is answered after all is lost with a server that a test kills.
const HOLD_PATIENCE: Duration = Duration::from_secs(2);
/// And how often it is looked at least: where the whole machine stood still, nobody could answer meanwhile.
const HOLD_POLLS_MIN: u32 = 300;
/// Commands of a subject that are remembered, to be shown if it turns out wrong.
const PAST_KEPT: usize = 24;
/// Subjects that one client gives up in favour of new ones, at most.
const RETIRED_MAX: usize = 5_000;
/// One deletion in this many is the last that happens to a key: it must not come back.
const RETIRED_BY: u64 = 3;

/// What is written, and how fast.
#[derive(Clone, Debug)]
pub struct Load {
    /// Clients, each with its own connections.
    pub clients: u64,
    /// Subjects that each client writes in turn: single keys, tuples and twins of one slot.
    pub subjects: u64,
    /// Hash tags of the keys, used in turn. They decide which slots are written.
    pub tags: Vec<String>,
    /// Of values and of the order of commands.
    pub seed: u64,
    /// Between two commands of a client.
    pub pause: Duration,
    /// How key names begin.
    pub prefix: String,
    /// A file with the address of the server, which clients read before each command: as a name that they
    /// look up.
    pub address_file: Option<PathBuf>,
}

impl Load {
    /// 12 clients with 45 subjects each, on these tags. Six hundred commands in a second leave the
    /// processors to what is tested, and to the tests beside it.
    pub fn on(tags: Vec<String>) -> Self {
        let pause = Duration::from_millis(20);
        let (prefix, address_file) = ("w".into(), None);
        Self { clients: 12, subjects: 45, tags, seed: 1, pause, prefix, address_file }
    }
}

/// Hash tags, `count` of them, whose slots are all in `slots`, and all different while there are enough.
///
/// Panics if `slots` is empty.
pub fn tags_in(slots: impl IntoIterator<Item = u16>, count: usize) -> Vec<String> {
    let wanted: std::collections::BTreeSet<u16> = slots.into_iter().collect();
    assert!(!wanted.is_empty(), "there are no slots to find tags for");
    let mut found = std::collections::BTreeMap::new();
    for number in 0.. {
        let tag = format!("t{number}");
        let slot = slot_of(tag.as_bytes());
        if wanted.contains(&slot) {
            found.entry(slot).or_insert(tag);
        }
        if found.len() == wanted.len().min(count) {
            break;
        }
    }
    let found: Vec<String> = found.into_values().collect();
    found.iter().cycle().take(count).cloned().collect()
}

/// Clients that go on until [`ClusterWriters::stop`].
#[derive(Debug)]
pub struct ClusterWriters {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<(Vec<Subject>, Observed)>>,
    started: Instant,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Whether no command may be sent.
    held: AtomicBool,
    /// Commands that were sent and not answered.
    under_way: AtomicU64,
    acknowledged: AtomicU64,
}

/// As long as it lives the clients send nothing.
#[derive(Debug)]
pub struct PausedWriters<'a>(&'a Shared);

impl Drop for PausedWriters<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::SeqCst);
    }
}

impl ClusterWriters {
    /// Starts the clients, which learn the slots from any of `addresses` (`HOST:PORT`). Keys of the same
    /// prefix must not be there yet.
    ///
    /// Panics if the load has no tags.
    pub fn start(addresses: &[String], load: &Load) -> Self {
        assert!(!load.tags.is_empty(), "the writers have no tags");
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            held: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
        });
        let started = Instant::now();
        let threads = (0..load.clients)
            .map(|number| {
                let (shared, load, addresses) = (Arc::clone(&shared), load.clone(), addresses.to_vec());
                thread::spawn(move || {
                    let client = Client::new(addresses, Observed::since(started));
                    Writer::new(number, client, &load, &shared).write_until_stopped()
                })
            })
            .collect();
        Self { shared, threads, started }
    }

    /// Commands acknowledged so far, reads included.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Since the start; incidents and stalls count their time from there.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until `more` further commands are acknowledged; says whether they were before `timeout`.
    pub fn wait_for(&self, more: u64, timeout: Duration) -> bool {
        let goal = self.acknowledged() + more;
        let deadline = Instant::now() + timeout;
        while self.acknowledged() < goal {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Lets no command be sent until the hold is dropped, and waits until none is under way, but not for
    /// those that a server has paused. For crashes that must not lose what a server acknowledged before its
    /// replicas had it: that is the server's promise, not ours.
    pub fn hold(&self) -> PausedWriters<'_> {
        self.shared.held.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + HOLD_PATIENCE;
        let mut polls = 0;
        while self.shared.under_way.load(Ordering::SeqCst) > 0
            && (Instant::now() < deadline || polls < HOLD_POLLS_MIN)
        {
            polls += 1;
            thread::sleep(Duration::from_millis(1));
        }
        PausedWriters(&self.shared)
    }

    /// Ends the writing and gives the record of it.
    pub fn stop(self) -> Record {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut subjects = Vec::new();
        let mut observed = Observed::since(self.started);
        for thread in self.threads {
            let (own, seen) = thread.join().expect("a writer does not panic");
            subjects.extend(own);
            observed.merge(seen);
        }
        let acknowledged = self.shared.acknowledged.load(Ordering::Relaxed);
        Record { acknowledged, observed, subjects }
    }
}

/// What is known of one key, or of keys that belong together.
#[derive(Clone, Debug)]
struct Subject {
    name: String,
    model: Model,
    /// What it holds if the write without an answer was done after all.
    possible: Option<Model>,
    wrong_reply: Option<String>,
    written: bool,
    /// The last commands, with their time and outcome.
    past: VecDeque<String>,
}

impl Subject {
    fn new(name: String, kind: Kind) -> Self {
        let model = Model::empty(kind);
        Self { name, model, possible: None, wrong_reply: None, written: false, past: VecDeque::new() }
    }

    fn keys(&self) -> Vec<String> {
        self.model.keys(&self.name)
    }
}

struct Writer<'a> {
    number: u64,
    client: Client,
    load: &'a Load,
    shared: &'a Shared,
    random: Random,
    subjects: Vec<Subject>,
    /// Those that are not written any more, but checked.
    retired: Vec<Subject>,
    generations: u64,
}

/// What becomes of a subject after a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Stays,
    /// Checked at the end and left alone until then.
    Retires,
    /// Not checked: nobody can say what it must hold.
    IsForgotten,
}

impl<'a> Writer<'a> {
    fn new(number: u64, client: Client, load: &'a Load, shared: &'a Shared) -> Self {
        let random = Random::new(load.seed.wrapping_mul(1_000_003).wrapping_add(number));
        let mut writer = Self {
            number,
            client,
            load,
            shared,
            random,
            subjects: Vec::new(),
            retired: Vec::new(),
            generations: 0,
        };
        writer.subjects = (0..load.subjects.max(1)).map(|place| writer.new_subject(place)).collect();
        writer
    }

    fn new_subject(&mut self, place: u64) -> Subject {
        let kind = Kind::ALL[(place % Kind::ALL.len() as u64) as usize];
        // Every client meets every tag with every kind in the course of time.
        let turn = self.number * 7 + place + self.generations;
        let tag = &self.load.tags[(turn % self.load.tags.len() as u64) as usize];
        let (prefix, number, generation) = (&self.load.prefix, self.number, self.generations);
        Subject::new(format!("{prefix}:{{{tag}}}:{number}:{place}:{generation}:{kind:?}"), kind)
    }

    fn write_until_stopped(mut self) -> (Vec<Subject>, Observed) {
        let shared = self.shared;
        while !shared.stop.load(Ordering::Relaxed) {
            // Counted first and looked at then: the one that pauses does it the other way round.
            shared.under_way.fetch_add(1, Ordering::SeqCst);
            if shared.held.load(Ordering::SeqCst) {
                shared.under_way.fetch_sub(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            let place = self.random.below(self.subjects.len() as u64);
            let next = self.write_once(place as usize);
            shared.under_way.fetch_sub(1, Ordering::SeqCst);
            if next != Next::Stays {
                self.generations += 1;
                let fresh = self.new_subject(place);
                let old = std::mem::replace(&mut self.subjects[place as usize], fresh);
                if next == Next::Retires {
                    self.retired.push(old);
                }
            }
            if !self.load.pause.is_zero() {
                thread::sleep(self.load.pause);
            }
        }
        self.retired.extend(self.subjects.into_iter().filter(|subject| subject.written));
        (self.retired, self.client.observed)
    }

    fn write_once(&mut self, place: usize) -> Next {
        let subject = &mut self.subjects[place];
        let sent_ms = now_ms();
        // Too close to an expiry: its turn comes again.
        let Some(model) = subject.model.at(sent_ms) else { return Next::Stays };
        let op = model.choose(&mut self.random, sent_ms);
        let (after, expected) = model.after(&op);
        let command = op.command(model.kind(), &subject.keys());
        if let Some(file) = &self.load.address_file {
            self.client.go_to(&std::fs::read_to_string(file).expect("the address can be read"));
        }
        let outcome = self.client.send(&subject.name, &command);
        let answered_ms = now_ms();
        if subject.past.len() == PAST_KEPT {
            subject.past.pop_front();
        }
        let (asked, answered) = (words_of(&command), words_of_outcome(&outcome));
        subject.past.push_back(format!("{sent_ms}..{answered_ms} {asked} -> {answered}"));
        if matches!(outcome, Outcome::Refused) {
            thread::sleep(ERROR_PAUSE);
            return Next::Stays;
        }
        subject.written = true;
        // It may have expired between the sending and the doing.
        if model.at(answered_ms).as_ref() != Some(&model) {
            return Next::IsForgotten;
        }
        let Outcome::Acknowledged(reply) = outcome else {
            (subject.model, subject.possible) = (model, Some(after));
            thread::sleep(ERROR_PAUSE);
            return Next::Retires;
        };
        self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        let was_deleted = after.len() == 0 && model.len() > 0;
        subject.model = after;
        if !expected.is(&reply) {
            subject.wrong_reply = Some(format!("{op:?} was answered {reply:?} instead of {expected:?}"));
            return Next::Retires;
        }
        let retires = was_deleted && self.retired.len() < RETIRED_MAX && self.random.below(RETIRED_BY) == 0;
        if retires { Next::Retires } else { Next::Stays }
    }
}

/// What was written, what was seen, and what must be found now.
#[derive(Clone, Debug)]
pub struct Record {
    /// Commands that a server confirmed, reads included.
    pub acknowledged: u64,
    /// What all clients saw.
    pub observed: Observed,
    subjects: Vec<Subject>,
}

/// Something that an acknowledged command contradicts.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// Of what kind.
    pub kind: TroubleKind,
    /// The key it happened to, or the name that its keys share.
    pub name: String,
    /// More about it, and the last commands.
    pub words: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} (slot {}): {}", self.kind, self.name, slot_of(self.name.as_bytes()), self.words)
    }
}

impl Record {
    /// How many keys are checked.
    pub fn keys(&self) -> usize {
        self.subjects.iter().map(|subject| subject.keys().len()).sum()
    }

    /// The names of all keys that were written, those that were deleted at last included.
    pub fn key_names(&self) -> impl Iterator<Item = String> {
        self.subjects.iter().flat_map(Subject::keys)
    }

    /// Waits until what expires soon has expired, then compares every key with what the cluster holds;
    /// ordered by name.
    ///
    /// Fails when a server cannot be read or a slot has no owner.
    pub fn check(&self, deployment: &Deployment) -> Result<Vec<Trouble>> {
        let models =
            || self.subjects.iter().flat_map(|subject| [Some(&subject.model), subject.possible.as_ref()]);
        let now = now_ms();
        let wait_ms = models().flatten().map(|model| model.blurred_for_ms(now)).max().unwrap_or(0);
        thread::sleep(Duration::from_millis(wait_ms as u64));
        let keys: Vec<Vec<u8>> = self.key_names().map(String::into_bytes).collect();
        let states = states_of(deployment, 0, &keys)?;
        let now = now_ms();
        let mut troubles = Vec::new();
        for subject in &self.subjects {
            let keys = subject.keys();
            let found: Vec<Option<&KeyState>> = keys.iter().map(|key| states.get(key.as_bytes())).collect();
            let contradicted = |model: &Model| {
                model.at(now).expect("what expires soon has been waited for").contradiction(&found)
            };
            // Where a reply was wrong nobody can say what the key must hold after it.
            let (kind, words) = match (&subject.wrong_reply, contradicted(&subject.model)) {
                (Some(words), _) => (TroubleKind::WrongReply, words.clone()),
                (None, None) => continue,
                (None, Some(_)) if subject.possible.iter().any(|model| contradicted(model).is_none()) => {
                    continue;
                }
                (None, Some(Contradiction::Lost(type_name))) => {
                    (TroubleKind::Lost, format!("a {type_name} must be there"))
                }
                (None, Some(Contradiction::Risen(type_name))) => {
                    (TroubleKind::Resurrected, format!("a {type_name} is there"))
                }
                (None, Some(Contradiction::Stale(words))) => {
                    (TroubleKind::Stale, format!("expected against found: {words}"))
                }
            };
            let past = subject.past.iter().map(String::as_str).collect::<Vec<_>>().join("\n      ");
            let name = subject.name.clone();
            troubles.push(Trouble { kind, name, words: format!("{words}\n      {past}") });
        }
        troubles.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(troubles)
    }

    /// Panics with the first troubles if there are any, or if a server cannot be read.
    #[track_caller]
    pub fn assert_kept(&self, deployment: &Deployment) {
        let troubles = match self.check(deployment) {
            Ok(troubles) => troubles,
            Err(error) => panic!("cannot check: {error:#}"),
        };
        self.assert_none(&troubles);
    }

    /// Panics with the first of these troubles if there are any.
    #[track_caller]
    pub fn assert_none(&self, troubles: &[Trouble]) {
        let shown: Vec<String> = troubles.iter().take(8).map(Trouble::to_string).collect();
        assert!(
            troubles.is_empty(),
            "{} of {} subjects are wrong after {} acknowledged commands:\n  {}",
            troubles.len(),
            self.subjects.len(),
            self.acknowledged,
            shown.join("\n  ")
        );
    }
}
