//! What is to be done to a cluster.

use crate::node::NodeId;
use crate::slot::SlotSet;

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
    /// slot that it imports by itself as soon as the other end of the mark no longer claims it. A node that
    /// claims the slot then loses it, and deletes its keys.
    ClearMarks {
        /// The node with the marks.
        node: NodeId,
    },
    /// Have a node stop claiming slots that another one claims more newly. It keeps its keys: a node that
    /// learns by gossip that it lost slots deletes its keys in them, and on Redis 8.0 may crash over it. So
    /// this comes before anything that gives a node a new epoch, which is for all slots that it claims.
    Yield {
        /// The node.
        node: NodeId,
        /// The owner.
        owner: NodeId,
    },
    /// Make a node the owner of slots that no node owns.
    Claim {
        /// The owner to be.
        node: NodeId,
    },
    /// Make the others see the owner of the slots.
    Announce {
        /// The owner.
        owner: NodeId,
    },
    /// Finish a migration by `SETSLOT`: move the remaining keys, then the slots.
    Finish {
        /// The owner, which gives them away.
        source: NodeId,
        /// The node that takes them in.
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
        /// Whether the node imports the slots from that owner, which does not give them away. Then no client
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

/// Why a change is made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Another node says as well that it owns the slots, and its claim is newer.
    OlderClaim,
    /// No node owns them, and this node alone has their keys.
    OnlyHolder,
    /// No node owns them or shows keys in them, and this node hides keys that may be theirs.
    MayHideThem,
    /// No node owns them or has keys in them, and this node was the last to own them.
    LastOwner,
    /// No node owns them or has keys in them, and this primary has the fewest slots.
    FewestSlots,
    /// No node owns them; the other nodes still take this one for the owner, and it has keys.
    SeenAsOwner,
    /// No node owns them; this node was giving them away, and it has keys.
    WasSource,
    /// No node owns them; this node was taking them in, and it has keys.
    WasTarget,
    /// No node owns them; this node has most of their keys.
    MostKeys,
    /// The owner says that it is; other nodes take another one for it.
    Mistaken,
    /// The slots are marked as migrating to this node, which is no primary.
    TowardsNoPrimary(NodeId),
    /// A move by `SETSLOT` has moved nothing yet.
    NothingMoved,
    /// They are marked as migrating to a node that takes in nothing.
    NobodyImports,
    /// A move by `SETSLOT` was interrupted, and some keys have arrived.
    Interrupted,
    /// A move by `SETSLOT` was interrupted, and the target hides keys: some may have arrived by it.
    MayHaveArrived,
    /// The node imports what it owns already.
    ImportsItsOwn,
    /// The node gives away what it does not own.
    GivesAwayForeign,
    /// It imports them from their owner, which does not give them away.
    ImportsUngiven,
    /// It imports them from a node that does not own them.
    ImportsFromStranger,
    /// Copies that an interrupted move or clean-up has left.
    Copies,
    /// Keys in slots of another node.
    ForeignKeys,
    /// The node hides keys of slots that are not its own. Which slots those are shows while they are marked.
    HiddenKeys {
        /// How many, in all slots that are not its own.
        keys: u64,
    },
    /// A replica kept marks that its primary does not have.
    ReplicaKeptMarks,
    /// A replica kept what its primary gave away.
    ReplicaKeptKeys,
    /// A primary has failed, and the others vote for none that has not heard of its last claim.
    NoVotes,
}

/// A change, with the slots it is about and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// What to do.
    pub change: Change,
    /// The slots.
    pub slots: SlotSet,
    /// The keys that it has to move or remove, as far as they were counted.
    pub keys: u64,
    /// Why.
    pub why: Why,
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

/// Why something is left alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The slots' owner does not answer.
    SilentOwner(NodeId),
    /// They are being moved to a node that does not answer.
    SilentTarget(NodeId),
    /// No primary answers that could own them.
    NoPrimary,
    /// The node has keys in databases other than 0.
    OtherDatabases(NodeId),
    /// The slots' owner has failed, and no node votes for its replicas or tells them why.
    NoElection {
        /// The owner.
        primary: NodeId,
        /// The replica that has most of its data.
        best: NodeId,
    },
    /// The node does not answer.
    Silent(NodeId),
}

/// Something that is wrong and stays so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Why.
    pub obstacle: Obstacle,
    /// The slots; empty if it is about a node.
    pub slots: SlotSet,
}

/// What to do, and what cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// In the order in which they have to be done.
    pub actions: Vec<Action>,
    /// What is wrong and stays so.
    pub left: Vec<Left>,
}
