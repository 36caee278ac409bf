//! What is to be done to a cluster, and what stays wrong, in words.

use std::fmt;

use whimbrel_core::node::NodeId;
use whimbrel_core::repair::plan::{Action, Change, Evidence, Fate, Left, Obstacle, Why};
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{format_count, format_count_of};
use whimbrel_engine::nodes::{NoAnswer, Survey, shortened};

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
pub struct Instruction<'a> {
    /// The action.
    pub action: &'a Action,
    /// It has the addresses.
    pub survey: &'a Survey,
}

impl Instruction<'_> {
    /// Why it is done.
    pub fn why(&self) -> String {
        let text = match &self.action.why {
            Why::OlderClaim => "both say that they own them, and its claim is the older one",
            Why::OnlyHolder => "no node owns them; this node alone has their keys",
            Why::MayHideThem => "no node owns them; this node hides keys that may be theirs",
            Why::LastOwner => "no node owns them or has keys in them; this was the last to",
            Why::FewestSlots => "no node owns them or has keys in them; this primary has the fewest slots",
            Why::SeenAsOwner => {
                "no node owns them; the other nodes still take this one for the owner, and it has keys"
            }
            Why::WasSource => "no node owns them; this node was giving them away, and it has keys",
            Why::WasTarget => "no node owns them; this node was taking them in, and it has keys",
            Why::MostKeys => "no node owns them; this node has most of their keys",
            Why::Mistaken => "the owner says so; other nodes take another one for it",
            Why::TowardsNoPrimary(node) => {
                let name = self.survey.name(node);
                return format!("they are marked as migrating to {name}, which is no primary");
            }
            Why::NothingMoved => "they were to be moved by SETSLOT, and nothing has been moved yet",
            Why::NobodyImports => "they are marked as migrating to a node that takes in nothing",
            Why::Interrupted => "a move by SETSLOT was interrupted; some keys have arrived",
            Why::MayHaveArrived => {
                "a move by SETSLOT was interrupted; the target hides keys, of which some may have arrived"
            }
            Why::ImportsItsOwn => "it imports what it owns already",
            Why::GivesAwayForeign => "it gives away what it does not own",
            Why::ImportsUngiven => "it imports them from their owner, which does not give them away",
            Why::ImportsFromStranger => "it imports them from a node that does not own them",
            Why::Copies => "copies that an interrupted move or clean-up has left",
            Why::ForeignKeys => "keys in slots of another node",
            Why::HiddenKeys { keys } => {
                let keys = format_count_of(*keys, "key");
                return format!("it hides {keys} in slots that are not its own");
            }
            Why::ReplicaKeptMarks => "a replica kept marks that its primary does not have",
            Why::ReplicaKeptKeys => "the replica kept what its primary gave away",
            Why::NoVotes => {
                "it has failed, and the others vote for none that has not heard of its last claim"
            }
        };
        text.to_owned()
    }
}

impl fmt::Display for Instruction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Action { change, slots, keys, evidence, .. } = self.action;
        let name = |id: &NodeId| self.survey.name(id);
        let slots = slots_text(slots);
        let keys = format_count_of(*keys, "key");
        match change {
            Change::Remind { primary, epoch, replicas } => {
                let replicas: Vec<String> = replicas.iter().map(|id| name(id).to_string()).collect();
                write!(
                    f,
                    "notify {} of {}'s last claim to {slots}, of epoch {epoch}, and wait for an election",
                    replicas.join(", "),
                    name(primary)
                )?;
            }
            Change::ClearMarks { node } => write!(f, "clear the marks of {slots} on {}", name(node))?,
            Change::Yield { node, owner } => {
                write!(f, "have {} give up {slots} to {}", name(node), name(owner))?;
            }
            Change::Claim { node } => write!(f, "make {} the owner of {slots}", name(node))?,
            Change::Announce { owner } => {
                write!(f, "make every node see that {} owns {slots}", name(owner))?;
            }
            Change::Finish { source, target, .. } => {
                let (source, target) = (name(source), name(target));
                write!(f, "finish moving {slots} from {source} to {target}: {keys} still to go")?;
            }
            Change::Empty { holder, owner, fate, .. } => {
                let (holder, owner) = (name(holder), name(owner));
                if matches!(self.action.why, Why::HiddenKeys { .. }) {
                    write!(
                        f,
                        "look on {holder} for keys in {slots}, by marking the slots for a moment, and remove \
                         them; {owner} owns them"
                    )?;
                    if *fate == Some(Fate::Move) {
                        write!(f, "; keys that it lacks are moved to it first")?;
                    }
                } else if *fate == Some(Fate::Move) {
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
                    let (compared, both, only) =
                        (format_count(both + only), format_count(*both), format_count(*only));
                    write!(f, " (of {compared} compared it has {both}, and lacks {only})")?;
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
        write!(f, ": {}", self.why())
    }
}

/// What stays wrong, for people, with the nodes' addresses.
pub fn left(survey: &Survey, left: &Left) -> String {
    let name = |id: &NodeId| survey.name(id);
    let answer = |id: &NodeId| survey.node(id).and_then(|node| node.answer.as_ref().err());
    let verb = |id: &NodeId| answer(id).map_or("does not answer", NoAnswer::verb);
    let why = match &left.obstacle {
        Obstacle::SilentOwner(owner) => {
            format!("its owner {} {}: nothing is touched there", name(owner), verb(owner))
        }
        Obstacle::SilentTarget(target) => {
            let (name, verb) = (name(target), verb(target));
            format!("it is being moved to {name}, which {verb}: nothing is touched there")
        }
        Obstacle::NoPrimary => "no primary answers that could own it".to_owned(),
        Obstacle::OtherDatabases(node) => {
            format!("{} has keys in databases other than 0: its keys are not touched", name(node))
        }
        Obstacle::NoElection { primary, best } => format!(
            "{} has failed, and no primary votes for its replicas: start it, or make {}, which has most of \
             its data, a primary without a vote, by CLUSTER FAILOVER TAKEOVER sent there",
            name(primary),
            name(best)
        ),
        Obstacle::Silent(node) if answer(node).is_some_and(|answer| answer.refuses_login) => {
            return format!("{} refuses the login: give it the user and password of the others", name(node));
        }
        Obstacle::Silent(node) => {
            let name = name(node);
            return format!(
                "{name} does not answer: start it, or remove it with CLUSTER FORGET on every other node"
            );
        }
    };
    format!("{}: {why}", slots_text(&left.slots))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::{id, survey, third};

    #[test]
    fn what_stays_wrong_names_slots_and_addresses() {
        let text = |obstacle, slots| left(&survey(), &Left { obstacle, slots });
        let slot = SlotSet::from_iter(third(0).iter().take(1));
        let silent = text(Obstacle::SilentOwner(id(0)), slot);
        assert_eq!(silent, "slot 0: its owner 00000000 (h:7000) does not answer: nothing is touched there");
        let best = text(Obstacle::NoElection { primary: id(0), best: id(3) }, third(0));
        assert!(best.starts_with("5,461 slots 0-5460: 00000000 (h:7000) has failed"), "{best}");
        assert!(best.contains("33333333 (h:7003), which has most"), "{best}");
        let node = text(Obstacle::Silent(id(1)), SlotSet::new());
        assert!(node.starts_with("11111111 (h:7001) does not answer"), "{node}");
    }
}
