//! Jobs: what is to move, by which rules, and how far it is.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::effect::{Effect, Process, Reason};
use super::phase::{End, Phase};
use super::verify::Verify;
use crate::node::NodeId;
use crate::slot::SlotSet;

/// The name of a job: 1 to 40 lower-case letters, digits and hyphens, so that it fits where servers show
/// names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl JobId {
    /// How long a name may be.
    pub const LENGTH_MAX: usize = 40;

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<JobId, JobIdError> {
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if (1..=JobId::LENGTH_MAX).contains(&text.len()) && text.bytes().all(fits) {
            Ok(JobId(text.to_owned()))
        } else {
            Err(JobIdError { text: text.to_owned() })
        }
    }
}

impl TryFrom<String> for JobId {
    type Error = JobIdError;

    fn try_from(text: String) -> Result<JobId, JobIdError> {
        text.parse()
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> String {
        id.0
    }
}

/// A text that is not the name of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not the name of a job: expected at most 40 lower-case letters, digits and hyphens")]
pub struct JobIdError {
    /// The text.
    pub text: String,
}

/// What a job may do. Set when it is made; [`Job::allow_pause`] changes one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rules {
    /// How long writes may be paused at once.
    pub max_pause_ms: u64,
    /// How thoroughly to compare before each fence.
    pub verify: Verify,
    /// Whether writers that outrun the catch-up may be slowed by short pauses.
    pub brake: bool,
    /// Whether all slots change hands in one handover, or none: the job has one batch then, whatever it was
    /// made of. Only a takeover that went half-way can divide it. From then on it goes forward, since what
    /// was taken cannot be undone: it is suspended if it would fail, and not cancelled while it runs.
    #[serde(default)]
    pub atomic: bool,
    /// How often a batch is started before the job fails.
    pub attempts_max: u32,
    /// How often one attempt may pause and find that the rest does not fit, before the job fails.
    pub pauses_max: u32,
    /// How many rounds of catching up there may be before each pause.
    pub rounds_max: u32,
    /// How many outcomes of one attempt may have to be looked into, before the job is suspended.
    pub troubles_max: u32,
    /// How often to look for a primary that does not answer. With `observe_every_ms` this must cover the time
    /// that the cluster takes for a failover.
    pub observations_max: u32,
    /// How long to wait between observations.
    pub observe_every_ms: u64,
    /// How old the knowledge may be that a takeover relies on; see
    /// [`Action::TakeOver`](super::Action::TakeOver).
    pub guard_ms: u64,
    /// How long to wait for the target's replicas, under the pause.
    pub replica_wait_ms: u64,
    /// How many keys a second may be deleted on the source after the takeover, and on the target in a
    /// rollback. `None`: as many as go without a stall.
    pub cleanup_keys_per_s: Option<u64>,
}

impl Default for Rules {
    /// Pauses of at most 100 ms; a sample is compared; 5 attempts; a minute for a failover.
    fn default() -> Rules {
        Rules {
            max_pause_ms: 100,
            verify: Verify::default(),
            brake: true,
            atomic: false,
            attempts_max: 5,
            pauses_max: 10,
            rounds_max: 200,
            troubles_max: 20,
            observations_max: 120,
            observe_every_ms: 500,
            guard_ms: 500,
            replica_wait_ms: 50,
            cleanup_keys_per_s: None,
        }
    }
}

/// The slots that change hands at once, and what happened to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// The slots; never empty.
    #[serde(with = "super::slots")]
    pub slots: SlotSet,
    /// How far it is.
    pub state: BatchState,
    /// How often it was started.
    pub attempts: u32,
    /// How many pauses of this attempt did not lead to a fence.
    pub pauses_failed: u32,
    /// How many outcomes of this attempt had to be looked into.
    pub troubles: u32,
    /// What was done for it, over all attempts.
    pub work: Work,
}

impl Batch {
    pub(super) fn new(slots: SlotSet) -> Batch {
        let state = BatchState::Waiting;
        Batch { slots, state, attempts: 0, pauses_failed: 0, troubles: 0, work: Work::default() }
    }
}

/// How far a batch is. Set by [`step`](super::step), survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BatchState {
    /// Waits for the batches before it.
    Waiting,
    /// The same, but staged keys and marks of it are there: the takeover of the batch before it, to which it
    /// belonged, went half-way only. It starts with being undone.
    Staged,
    /// It is the batch that the job's phase is about.
    AtHand,
    /// The job ended before it was handed over, and nothing of it is left on the target.
    RolledBack,
    /// The job ended because its owner or its keys are not what they should be. Nothing was deleted; the
    /// job's reason says more.
    LeftAsIs,
    /// The target owns it, confirmed and cleaned up.
    HandedOver,
}

/// What was done, in numbers for people. Nothing depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Work {
    /// How many keys were copied; a key that was touched counts again.
    pub keys: u64,
    /// How many bytes that were.
    pub bytes: u64,
    /// How many of those copies were of touched keys.
    pub touched: u64,
    /// How many keys were compared by value.
    pub compared: u64,
    /// How many times writes were paused for a handover; brakes do not count.
    pub pauses: u64,
    /// How long that was in total.
    pub paused_ms: u64,
    /// How long the longest of them was.
    pub longest_pause_ms: u64,
}

impl Work {
    /// Adds what was done elsewhere.
    pub fn add(&mut self, other: &Work) {
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.touched += other.touched;
        self.compared += other.compared;
        self.pauses += other.pauses;
        self.paused_ms += other.paused_ms;
        self.longest_pause_ms = self.longest_pause_ms.max(other.longest_pause_ms);
    }
}

/// Slots on their way from one primary to another.
///
/// Everything that must survive a restart of the executor is in here. Only [`step`](super::step) changes it;
/// write it to the journal after each step, before the step's effects are executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    pub(super) id: JobId,
    pub(super) source: NodeId,
    pub(super) target: NodeId,
    pub(super) rules: Rules,
    pub(super) batches: Vec<Batch>,
    /// The index of the batch at hand; the number of batches when all are handed over.
    pub(super) at: usize,
    pub(super) phase: Phase,
    /// What was asked for and did not finish yet.
    pub(super) in_flight: Option<Effect>,
    /// Whether the user wants the job to end.
    pub(super) cancel: bool,
    /// Whether the user wants it to end although it is divided; see [`Rules::atomic`].
    #[serde(default)]
    pub(super) give_up: bool,
    /// As in [`Detail::Paused`](super::Detail::Paused), of the last pause.
    #[serde(default)]
    pub(super) fence_takes_over: bool,
    /// The process behind the source when it was last looked at.
    pub(super) source_process: Option<Process>,
    /// The process behind the target when it was last looked at.
    pub(super) target_process: Option<Process>,
    /// Why the last batch that was started again was.
    pub(super) last_trouble: Option<Reason>,
}

impl Job {
    /// A job that waits for its start. Batches are handed over in the given order; empty ones are left out.
    /// Those of an [atomic](Rules::atomic) job are one.
    pub fn new(
        id: JobId,
        source: NodeId,
        target: NodeId,
        batches: impl IntoIterator<Item = SlotSet>,
        rules: Rules,
    ) -> Job {
        let mut batches: Vec<SlotSet> = batches.into_iter().filter(|slots| !slots.is_empty()).collect();
        if rules.atomic {
            let all = batches.drain(..).reduce(|all, slots| all.union(&slots));
            batches.extend(all);
        }
        Job {
            id,
            source,
            target,
            rules,
            batches: batches.into_iter().map(Batch::new).collect(),
            at: 0,
            phase: Phase::Queued,
            in_flight: None,
            cancel: false,
            give_up: false,
            fence_takes_over: false,
            source_process: None,
            target_process: None,
            last_trouble: None,
        }
    }

    /// Its name.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// The primary that gives slots away. Another one after a failover.
    pub fn source(&self) -> &NodeId {
        &self.source
    }

    /// The primary that gets them. Another one after a failover.
    pub fn target(&self) -> &NodeId {
        &self.target
    }

    /// What it may do.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Changes how long writes may be paused at once. Not from a pause on until it has ended: what is under
    /// way goes by what it began with.
    pub fn allow_pause(&mut self, max_pause_ms: u64) {
        self.rules.max_pause_ms = max_pause_ms;
    }

    /// All batches in their order.
    pub fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// The batch at hand: `None` when all are handed over.
    pub fn batch(&self) -> Option<&Batch> {
        self.batches.get(self.at)
    }

    /// How far it is.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// What was asked for and did not finish yet. In a job read from a journal: what may or may not have
    /// happened.
    pub fn in_flight(&self) -> Option<&Effect> {
        self.in_flight.as_ref()
    }

    /// Whether the user wants the job to end. An executor may then break off what [may be
    /// interrupted](super::Action::may_be_interrupted).
    pub fn is_cancelling(&self) -> bool {
        self.cancel
    }

    /// Whether a takeover of an [atomic](Rules::atomic) job went half-way: the rest has to follow.
    pub fn is_divided(&self) -> bool {
        self.rules.atomic && self.batches.len() > 1
    }

    /// Whether the user wants the job to end, and it may.
    pub(super) fn may_end(&self) -> bool {
        self.cancel && (self.give_up || !self.is_divided())
    }

    /// Whether nothing will happen any more.
    pub fn has_ended(&self) -> bool {
        self.phase.end().is_some()
    }

    /// All slots of the job, handed over or not.
    pub fn slots(&self) -> SlotSet {
        self.batches.iter().fold(SlotSet::new(), |all, batch| all.union(&batch.slots))
    }

    /// The slots that were handed over.
    pub fn slots_handed_over(&self) -> SlotSet {
        let handed_over = self.batches.iter().filter(|batch| batch.state == BatchState::HandedOver);
        handed_over.fold(SlotSet::new(), |all, batch| all.union(&batch.slots))
    }

    /// How far it is, in numbers for people.
    pub fn summary(&self) -> Summary {
        let handed_over = || self.batches.iter().filter(|batch| batch.state == BatchState::HandedOver);
        let slots = |batch: &Batch| batch.slots.len() as u64;
        let mut work = Work::default();
        self.batches.iter().for_each(|batch| work.add(&batch.work));
        let reason = match &self.phase {
            Phase::Suspended { reason, .. } | Phase::Ended(End::Failed(reason)) => Some(reason.clone()),
            Phase::Ended(_) => None,
            _ => self.last_trouble.clone(),
        };
        Summary {
            phase: self.phase.name(),
            batches: self.batches.len() as u64,
            batches_handed_over: handed_over().count() as u64,
            slots: self.batches.iter().map(slots).sum(),
            slots_handed_over: handed_over().map(slots).sum(),
            attempt: self.batch().map_or(0, |batch| batch.attempts),
            brake_percent: match &self.phase {
                Phase::Streaming(streaming) => streaming.brake_percent,
                _ => 0,
            },
            cancelling: self.cancel,
            verified: self.rules.verify != Verify::None,
            work,
            reason,
        }
    }
}

/// What a person wants to know of a job; made by [`Job::summary`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The name of the phase.
    pub phase: &'static str,
    /// How many batches there are.
    pub batches: u64,
    /// How many of them were handed over.
    pub batches_handed_over: u64,
    /// How many slots there are.
    pub slots: u64,
    /// How many of them were handed over.
    pub slots_handed_over: u64,
    /// How often the batch at hand was started; 0 if none is.
    pub attempt: u32,
    /// Which share of the time writes are slowed at present.
    pub brake_percent: u8,
    /// Whether the user wants the job to end.
    pub cancelling: bool,
    /// Whether what is handed over was compared before: never handed over with a difference, if so.
    pub verified: bool,
    /// What was done over all batches.
    pub work: Work,
    /// Why it failed or is suspended, or why the last batch was started again.
    pub reason: Option<Reason>,
}

impl fmt::Display for Summary {
    /// One line: `streaming, batch 2 of 7, 2048 of 8192 slots, 70211 keys, 3 pauses (longest 31 ms)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phase)?;
        if self.batches_handed_over < self.batches {
            write!(f, ", batch {} of {}", self.batches_handed_over + 1, self.batches)?;
        }
        write!(f, ", {} of {} slots, {} keys", self.slots_handed_over, self.slots, self.work.keys)?;
        if self.work.pauses > 0 {
            write!(f, ", {} pauses (longest {} ms)", self.work.pauses, self.work.longest_pause_ms)?;
        }
        if self.brake_percent > 0 {
            write!(f, ", writes paused {} % of the time", self.brake_percent)?;
        }
        if self.attempt > 1 {
            write!(f, ", attempt {}", self.attempt)?;
        }
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}
