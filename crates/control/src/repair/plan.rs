//! What is to be done to a cluster, and how that is put in words.

use std::fmt;

use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{format_count, format_count_of};
use whimbrel_engine::nodes::{Survey, shortened};

/// What a node that does not own some slots holds in them, beside what their owner holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evidence {
    /// Keys looked at that the owner has as well.
    pub both: u64,
    /// Keys looked at that only this node has.
    pub only: u64,
}

/// What becomes of keys that only a node has which does not own their slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// They go to the owner.
    Move,
    /// They are removed.
    Discard,
}

/// One change, in the order in which they have to be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Have the replicas of a primary that has failed hear of its last claim, so that one of them can be
    /// elected.
    Remind {
        /// The primary.
        primary: NodeId,
        /// The claim's epoch.
        epoch: u64,
        /// Those of its replicas that answer.
        replicas: Vec<NodeId>,
    },
    /// Clear the marks of slots that lead nowhere. Before anything else: since Valkey 8 a node takes over a
    /// slot that it imports by itself as soon as the other end of the mark no longer claims it.
    ClearMarks {
        /// The node with the marks.
        node: NodeId,
    },
    /// Make a node the owner of slots that nobody owns, or that several claim.
    Claim {
        /// The owner to be.
        node: NodeId,
        /// Nodes that claim them as well, and stop it first. They keep their keys.
        yielding: Vec<NodeId>,
    },
    /// Make the others see who owns the slots.
    Announce {
        /// The owner.
        owner: NodeId,
    },
    /// Finish a migration by `SETSLOT`: move the remaining keys, then the slots.
    Finish {
        /// The owner, which gives them away.
        source: NodeId,
        /// Who takes them in.
        target: NodeId,
        /// Whether the target has lost its mark and needs it again.
        mark_target: bool,
    },
    /// Empty slots on a node that does not own them, by the owner's keys.
    Empty {
        /// The node.
        holder: NodeId,
        /// The owner.
        owner: NodeId,
        /// Whether the node imports the slots from that owner, who does not give them away. Then no client
        /// was ever sent there: what it holds are copies, made by an interrupted move, or left by an
        /// interrupted clean-up.
        copied: bool,
        /// What becomes of keys that the owner lacks; undecided until the two were compared.
        fate: Option<Fate>,
    },
    /// Remove keys from a replica that its primary does not have.
    EmptyReplica {
        /// The primary.
        primary: NodeId,
        /// The replica.
        replica: NodeId,
    },
}

/// A change, with the slots it is about and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// What to do.
    pub change: Change,
    /// Where.
    pub slots: SlotSet,
    /// The keys that it has to move or remove, as far as they were counted.
    pub keys: u64,
    /// Why, for people.
    pub why: String,
    /// What the two nodes of [`Change::Empty`] were found to hold.
    pub evidence: Option<Evidence>,
}

impl Action {
    /// Whether it may undo what a job has left that was interrupted: marks of slots that a node takes in, and
    /// copies in them.
    pub fn may_be_of_job(&self) -> bool {
        matches!(self.change, Change::ClearMarks { .. } | Change::Empty { copied: true, .. })
    }
}

/// What to do, and what cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// In the order in which they have to be done.
    pub actions: Vec<Action>,
    /// What is wrong and stays so, and why.
    pub left: Vec<String>,
}

/// Ranges of slots that a text shows at most.
const RANGES_SHOWN: usize = 8;

/// Slots for people: how many, and the first ranges of many.
pub(super) fn slots_text(slots: &SlotSet) -> String {
    match slots.len() {
        1 => format!("slot {slots}"),
        n => format!("{} slots {}", format_count(n as u64), shortened(slots, RANGES_SHOWN)),
    }
}

/// An action for people, with the nodes' addresses.
pub struct Told<'a> {
    /// The action.
    pub action: &'a Action,
    /// Where the addresses are.
    pub survey: &'a Survey,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Action { change, slots, keys, why, evidence } = self.action;
        let name = |id: &NodeId| self.survey.name(id);
        let slots = slots_text(slots);
        let keys = format_count_of(*keys, "key");
        match change {
            Change::Remind { primary, epoch, replicas } => {
                let replicas: Vec<String> = replicas.iter().map(|id| name(id).to_string()).collect();
                write!(
                    f,
                    "tell {} of {}'s last claim to {slots}, of epoch {epoch}, and wait for an election",
                    replicas.join(", "),
                    name(primary)
                )?;
            }
            Change::ClearMarks { node } => write!(f, "clear the marks of {slots} on {}", name(node))?,
            Change::Claim { node, yielding } => {
                write!(f, "make {} the owner of {slots}", name(node))?;
                for other in yielding {
                    write!(f, ", and take them from {}", name(other))?;
                }
            }
            Change::Announce { owner } => {
                write!(f, "make every node see that {} owns {slots}", name(owner))?;
            }
            Change::Finish { source, target, .. } => {
                let (source, target) = (name(source), name(target));
                write!(f, "finish moving {slots} from {source} to {target}: {keys} still to go")?;
            }
            Change::Empty { holder, owner, fate, .. } => {
                let (holder, owner) = (name(holder), name(owner));
                if *fate == Some(Fate::Move) {
                    write!(
                        f,
                        "move {keys} in {slots} from {holder} to {owner}, which owns them: what it lacks is \
                         moved, what it has already is removed here"
                    )?;
                } else {
                    write!(
                        f,
                        "remove {keys} in {slots} from {holder}, and from its replicas; {owner} owns them"
                    )?;
                }
                if *fate == Some(Fate::Discard) {
                    write!(f, "; keys that it lacks are removed as well")?;
                }
                if let Some(Evidence { both, only }) = evidence {
                    let (looked_at, both, only) =
                        (format_count(both + only), format_count(*both), format_count(*only));
                    write!(f, " (of {looked_at} looked at it has {both}, and lacks {only})")?;
                }
            }
            Change::EmptyReplica { primary, replica } => {
                let (primary, replica) = (name(primary), name(replica));
                write!(
                    f,
                    "remove {keys} in {slots} from replica {replica}, by way of its primary {primary}"
                )?;
            }
        }
        write!(f, ": {why}")
    }
}
