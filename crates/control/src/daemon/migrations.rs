//! The three commands that Valkey has for slot migrations, as it has them: grammar, fields, states and errors
//! were compared with Valkey 9.1.

use std::cmp::Reverse;

use bytes::Bytes;
use whimbrel_core::node::NodeId;
use whimbrel_core::plan::Move;
use whimbrel_core::slot::{Slot, SlotRange, SlotSet};
use whimbrel_engine::nodes::ClusterView;
use whimbrel_wire::value::Value;

use super::reply::{shown, text};

/// How far a job is, in the words that Valkey has for an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It waits for its turn.
    Connecting,
    /// The job is being checked, and the target is marked.
    SendingEstablish,
    /// The feed is being attached.
    ReadingEstablish,
    /// It waits: until it is resumed, or until a batch that was rolled back starts again.
    WaitingToSnapshot,
    /// All keys are copied once.
    Snapshotting,
    /// Keys that were touched are copied again.
    Replicating,
    /// Writes are about to be paused.
    WaitingToPause,
    /// Writes are paused.
    FailoverPaused,
    /// The target takes the slots, or has taken them and the rest is cleaned up.
    FailoverGranted,
    /// All slots are at the target.
    Success,
    /// It was given up; the slots that were not handed over before are at the source.
    Failed,
    /// It was cancelled; likewise.
    Cancelled,
}

impl JobState {
    /// The state for a phase of ours, by its name. A phase that is not known is one of those in between.
    pub fn of_phase(phase: &str) -> JobState {
        match phase {
            "queued" | "connecting" => JobState::Connecting,
            "preparing" => JobState::SendingEstablish,
            "attaching" => JobState::ReadingEstablish,
            "snapshotting" | "receiving-snapshot" | "send-bulk-and-stream" => JobState::Snapshotting,
            // Of a migration that was begun at a node.
            "waiting-to-snapshot" | "wait-bgsave-start" => JobState::WaitingToSnapshot,
            "waiting-to-pause" => JobState::WaitingToPause,
            "failover-paused" | "failover-requested" => JobState::FailoverPaused,
            "failover-granted" => JobState::FailoverGranted,
            "pausing" => JobState::WaitingToPause,
            "draining" | "comparing" | "fencing" | "giving-back" => JobState::FailoverPaused,
            "taking-over" | "releasing" | "confirming" | "cleaning-up" | "closing" => {
                JobState::FailoverGranted
            }
            "done" => JobState::Success,
            "failed" => JobState::Failed,
            "cancelled" => JobState::Cancelled,
            "rolling-back" | "observing" | "suspended" | "lost" => JobState::WaitingToSnapshot,
            _ => JobState::Replicating,
        }
    }

    /// Valkey's word.
    pub const fn word(self) -> &'static str {
        match self {
            JobState::Connecting => "connecting",
            JobState::SendingEstablish => "sending-establish-command",
            JobState::ReadingEstablish => "reading-establish-response",
            JobState::WaitingToSnapshot => "waiting-to-snapshot",
            JobState::Snapshotting => "snapshotting",
            JobState::Replicating => "replicating",
            JobState::WaitingToPause => "waiting-to-pause",
            JobState::FailoverPaused => "failover-paused",
            JobState::FailoverGranted => "failover-granted",
            JobState::Success => "success",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// Valkey's word for it at the node that gets the slots.
    pub const fn word_of_import(self) -> &'static str {
        match self {
            JobState::Connecting
            | JobState::SendingEstablish
            | JobState::ReadingEstablish
            | JobState::WaitingToSnapshot => "waiting-for-ack",
            JobState::Snapshotting => "receiving-snapshot",
            JobState::Replicating | JobState::WaitingToPause => "waiting-for-paused",
            JobState::FailoverPaused => "failover-requested",
            JobState::FailoverGranted | JobState::Success | JobState::Failed | JobState::Cancelled => {
                self.word()
            }
        }
    }

    /// True if nothing is left to be done.
    pub const fn is_final(self) -> bool {
        matches!(self, JobState::Success | JobState::Failed | JobState::Cancelled)
    }
}

/// A job as the server shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// Its name.
    pub name: String,
    /// The slots that it moves, or has moved.
    pub slots: SlotSet,
    /// The node that gives them away.
    pub source: String,
    /// The node that gets them.
    pub target: String,
    /// When it was made, in seconds of Unix time.
    pub created_s: u64,
    /// When it last changed, likewise.
    pub updated_s: u64,
    /// How far it is.
    pub state: JobState,
    /// Why it failed, or what it waits for.
    pub message: String,
    /// Bytes that are known to be still on their way; 0 if that is not known.
    pub remaining_bytes: u64,
}

impl JobView {
    /// One entry of `CLUSTER GETSLOTMIGRATIONS`: an export, as the source sees it.
    pub(super) fn reply(&self) -> Value {
        self.entry("EXPORT", self.state.word())
    }

    /// The same at one node; `None` if it is neither the source nor the target.
    fn reply_at(&self, node: &NodeId) -> Option<Value> {
        match node.as_str() {
            id if id == self.source => Some(self.reply()),
            id if id == self.target => Some(self.entry("IMPORT", self.state.word_of_import())),
            _ => None,
        }
    }

    /// When it was taken in: jobs of one process within a second differ by the number that their names end
    /// with.
    fn age(&self) -> (u64, u64) {
        let number = self.name.rsplit('-').next().and_then(|number| number.parse().ok());
        (self.created_s, number.unwrap_or(0))
    }

    /// Valkey 9.1's fields in its order. `cow_size` is always 0: nothing is forked. A failure always has a
    /// message: `valkey-cli` relies on it.
    fn entry(&self, operation: &str, state: &str) -> Value {
        let message = match self.state {
            JobState::Failed if self.message.is_empty() => "failed",
            _ => &self.message,
        };
        let number = |n: u64| Value::Int(i64::try_from(n).unwrap_or(i64::MAX));
        let ranges: Vec<String> =
            self.slots.ranges().into_iter().map(|r| format!("{}-{}", r.start(), r.end())).collect();
        let fields = [
            ("name", text(&self.name)),
            ("operation", text(operation)),
            ("slot_ranges", text(&ranges.join(" "))),
            ("target_node", text(&self.target)),
            ("source_node", text(&self.source)),
            ("create_time", number(self.created_s)),
            ("last_update_time", number(self.updated_s)),
            ("last_ack_time", number(self.updated_s)),
            ("state", text(state)),
            ("message", text(message)),
            ("cow_size", number(0)),
            ("remaining_repl_size", number(self.remaining_bytes)),
        ];
        Value::Map(fields.into_iter().map(|(name, value)| (text(name), value)).collect())
    }
}

/// The jobs of one node, the newest first: `valkey-cli` takes the first with its slots for its own.
pub(super) fn jobs_of(node: &NodeId, mut jobs: Vec<JobView>) -> impl Iterator<Item = Value> {
    jobs.sort_by_key(|job| Reverse(job.age()));
    let node = node.clone();
    jobs.into_iter().filter_map(move |job| job.reply_at(&node))
}

/// Reads what follows `CLUSTER MIGRATESLOTS`, and checks it against the cluster and the jobs that have not
/// ended.
///
/// # Errors
/// Valkey's own words for what is wrong, without `ERR`. Two differ by their nature: if no particular node is
/// asked, slots may be those of any node, but all of one block must be those of one node; and a target must
/// be a primary from the start.
pub(super) fn parse_moves(
    words: &[Bytes],
    view: &ClusterView,
    jobs: &[JobView],
    asked: Option<&NodeId>,
) -> Result<Vec<Move>, String> {
    let owners = owners(view);
    let busy = jobs.iter().filter(|j| !j.state.is_final()).fold(SlotSet::new(), |all, j| all.union(&j.slots));
    let mut moves: Vec<Move> = Vec::new();
    let mut at = 0;
    while at < words.len() {
        expect(words, at, "slotsrange")?;
        let (slots, source, next) = parse_ranges(words, at + 1, &owners, view, asked)?;
        if let Some(slot) = slots.intersection(&busy).iter().next() {
            return Err(format!("I am already migrating slot {slot}."));
        }
        if moves.iter().any(|m| !m.slots.intersection(&slots).is_empty()) {
            return Err("Slot ranges in migrations overlap".to_owned());
        }
        expect(words, next, "node")?;
        let name = words.get(next + 1).ok_or("syntax error")?;
        let target = parse_target(name, view)?;
        if target == source {
            return Err("Target node can not be this node.".to_owned());
        }
        moves.push(Move { source, target, slots });
        at = next + 2;
    }
    Ok(moves)
}

/// Up to its first NUL, as servers compare keywords: `valkey-cli --cluster reshard` of Valkey 9.1 sends one
/// along.
fn expect(words: &[Bytes], at: usize, keyword: &str) -> Result<(), String> {
    match words.get(at).and_then(|word| word.split(|byte| *byte == 0).next()) {
        Some(word) if word.eq_ignore_ascii_case(keyword.as_bytes()) => Ok(()),
        _ => Err("syntax error".to_owned()),
    }
}

/// Ranges from `at` up to the first word that is no number: the slots, their owner, and the position of that
/// word.
fn parse_ranges(
    words: &[Bytes],
    mut at: usize,
    owners: &[Option<usize>],
    view: &ClusterView,
    asked: Option<&NodeId>,
) -> Result<(SlotSet, NodeId, usize), String> {
    let (mut slots, mut ranges) = (SlotSet::new(), Vec::<SlotRange>::new());
    let mut source: Option<usize> = None;
    while let Some(start) = words.get(at).and_then(|word| integer(word)) {
        let start = slot(start)?;
        let end = words.get(at + 1).ok_or("No end slot for final slot range")?;
        let end = slot(integer(end).unwrap_or(-1))?;
        let Some(range) = SlotRange::new(start, end) else {
            return Err(format!("Start slot number {start} is greater than end slot number {end}."));
        };
        for slot in range.slots() {
            let owner = owners[usize::from(slot.number())];
            let owner = owner.ok_or_else(|| format!("Slot {slot} has no node served."))?;
            if asked.is_some_and(|asked| view.nodes[owner].id != *asked) {
                return Err("Slots are not served by this node.".to_owned());
            }
            if *source.get_or_insert(owner) != owner {
                return Err("Requested slots span multiple shards".to_owned());
            }
        }
        if let Some(other) = ranges.iter().find(|other| other.start() <= end && start <= other.end()) {
            let (from, to) = (other.start(), other.end());
            return Err(format!("Slot range {start}-{end} overlaps with previous range {from}-{to}."));
        }
        ranges.push(range);
        slots.extend(range.slots());
        at += 2;
    }
    let source = source.ok_or("No slot ranges specified")?;
    Ok((slots, view.nodes[source].id.clone(), at))
}

fn parse_target(word: &[u8], view: &ClusterView) -> Result<NodeId, String> {
    let name = shown(word);
    if word.len() != NodeId::LENGTH {
        return Err(format!("Invalid node name: {name}"));
    }
    let id: Option<NodeId> = name.parse().ok();
    match id.as_ref().and_then(|id| view.node(id)) {
        None => Err(format!("Unknown node name: {name}")),
        Some(node) if !node.is_primary() => Err("Target node is not a primary".to_owned()),
        Some(node) => Ok(node.id.clone()),
    }
}

/// For each slot the index of its owner among the nodes.
fn owners(view: &ClusterView) -> Vec<Option<usize>> {
    let mut owners = vec![None; usize::from(Slot::COUNT)];
    for (index, node) in view.nodes.iter().enumerate() {
        for slot in &node.slots {
            owners[usize::from(slot.number())] = Some(index);
        }
    }
    owners
}

pub(super) fn integer(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn slot(number: i64) -> Result<Slot, String> {
    let slot = u16::try_from(number).ok().and_then(Slot::new);
    slot.ok_or_else(|| "Invalid or out of range slot".to_owned())
}
