//! A cluster as it was found: who owns what, what moves may be made, and by which means.

use std::collections::BTreeMap;

use whimbrel_core::node::NodeId;
use whimbrel_core::plan::{Move, Shard, SlotCosts};
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_core::units::format_count_of;
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::native::NativeSupport;
use whimbrel_engine::nodes::{Counted, NodeState, Survey, SurveyOptions, Surveyed};

use crate::service::{Method, Native};
use crate::strangers::{self, Own, Wanted};

/// Why the method is whimbrel's own unless something else is asked for.
const PROMISES: &str = "it compares before each handover and bounds each pause";

/// Why it is the servers' own if they hide what a node gave away.
const HIDDEN: &str =
    "these servers hide keys of slots that a node gave away, and remove them by themselves after it";

/// Why it is the servers' own if the user says how long it may not move.
const FIRST: &str = "the servers move slots themselves as long as they get on with it";

/// What the slots of nodes are weighed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighing {
    /// Their number.
    Slots,
    /// Their keys.
    Keys,
    /// Bytes: keys by the mean size of a key of their node.
    Bytes,
    /// Operations per second: the node's present rate, spread over its keys.
    Operations,
}

/// How the user wants slots to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodRule {
    /// By those that promise most. Something that only whimbrel's own method knows may be asked for besides.
    Best {
        /// Whether it is.
        external_only: bool,
        /// Whether the servers' own is to be tried first.
        native_first: bool,
    },
    /// By the servers' own.
    Native,
}

/// What a primary has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Its address.
    pub address: String,
    /// Slots that it owns.
    pub slots: u64,
    /// Keys in them.
    pub keys: u64,
    /// About how many bytes these take.
    pub bytes: u64,
}

/// The cluster as it was found.
#[derive(Debug)]
pub struct Situation {
    pub(super) survey: Survey,
    /// The primaries and what they own.
    pub shards: Vec<Shard>,
    /// Which slots each node owns.
    owners: BTreeMap<NodeId, usize>,
}

impl Situation {
    /// Asks every node.
    ///
    /// # Errors
    /// If no node answers.
    pub async fn find(deployment: &Deployment) -> Result<Situation> {
        let what = SurveyOptions { counts: Counted::Owned, activity: true };
        Ok(Situation::of(Survey::take_with(deployment, what).await?))
    }

    fn of(survey: Survey) -> Situation {
        let mut shards = Vec::new();
        let mut owners = BTreeMap::new();
        for (node, state) in survey.answering_primaries() {
            owners.insert(node.id.clone(), shards.len());
            shards.push(Shard { id: node.id.clone(), slots: state.slots.clone() });
        }
        Situation { survey, shards, owners }
    }

    /// The node that a person means: by id, by the unique beginning of one, or by address.
    ///
    /// # Errors
    /// `Options` if it is none of the primaries, or could be several; `Unfit` if it does not answer.
    pub fn resolve(&self, text: &str) -> Result<NodeId> {
        let lower = text.to_ascii_lowercase();
        let primaries: Vec<&Surveyed> = self.survey.primaries().collect();
        // Every id begins with nothing.
        let is_called = |n: &&Surveyed| {
            n.address.to_string() == text || !text.is_empty() && n.id.to_string().starts_with(&lower)
        };
        let found: Vec<&&Surveyed> = primaries.iter().filter(|n| is_called(n)).collect();
        let list =
            |nodes: &[&Surveyed]| nodes.iter().map(|n| n.name().to_string()).collect::<Vec<_>>().join(", ");
        let what = match &found[..] {
            [one] if self.owners.contains_key(&one.id) => return Ok(one.id.clone()),
            [one] => {
                let at = one.name().to_string();
                let why =
                    one.answer.as_ref().err().map_or("it does not answer".to_owned(), ToString::to_string);
                return Err(
                    Error::unfit(Side::Source, at, "find a node", why).with_remedy("see `whimbrel status`")
                );
            }
            [] => match self.survey.nodes.iter().find(is_called) {
                Some(replica) => format!("node {} is a replica; name its primary", replica.name()),
                None => format!("no primary is called {text}; there are {}", list(&primaries)),
            },
            several => {
                let several: Vec<&Surveyed> = several.iter().map(|n| **n).collect();
                format!("{text} could be any of {}", list(&several))
            }
        };
        Err(Error::options(Side::Own, "find a node", what).with_remedy("see `whimbrel status`"))
    }

    fn state(&self, node: &NodeId) -> Option<&NodeState> {
        self.survey.node(node).and_then(Surveyed::state)
    }

    /// How many keys a node holds in a slot.
    pub fn keys_of(&self, node: &NodeId, slot: Slot) -> u64 {
        let counts = self.state(node).and_then(|state| state.counts.as_ref());
        counts.map_or(0, |counts| u64::from(counts.of(slot)))
    }

    pub(super) fn keys_in(&self, node: &NodeId, slots: &SlotSet) -> u64 {
        let counts = self.state(node).and_then(|state| state.counts.as_ref());
        counts.map_or(0, |counts| counts.sum(slots))
    }

    /// What a primary has now: its address, how many slots and keys, and about how many bytes.
    pub fn load_of(&self, shard: &Shard) -> Load {
        let address = self.survey.name(&shard.id).address.to_string();
        let keys = self.keys_in(&shard.id, &shard.slots);
        let bytes = (keys as f64 * self.key_bytes(&shard.id)) as u64;
        Load { address, slots: shard.slots.len() as u64, keys, bytes }
    }

    /// Bytes of a key on the mean of its node.
    pub(super) fn key_bytes(&self, node: &NodeId) -> f64 {
        self.state(node).map_or(0.0, |s| s.facts.dataset_bytes as f64 / s.facts.keys.max(1) as f64)
    }

    /// What each slot weighs.
    pub fn costs(&self, by: Weighing) -> SlotCosts {
        if by == Weighing::Slots {
            return SlotCosts::uniform();
        }
        let mut cost = vec![0_u64; usize::from(Slot::COUNT)];
        for shard in &self.shards {
            let Some(state) = self.state(&shard.id) else { continue };
            let per_key = match by {
                Weighing::Slots | Weighing::Keys => 1.0,
                Weighing::Bytes => self.key_bytes(&shard.id),
                // Thousandths of an operation, so that shards of a quiet cluster differ as well.
                Weighing::Operations => {
                    state.facts.ops_per_second as f64 * 1_000.0 / state.facts.keys.max(1) as f64
                }
            };
            for slot in &shard.slots {
                cost[usize::from(slot.number())] = (self.keys_of(&shard.id, slot) as f64 * per_key) as u64;
            }
        }
        SlotCosts::new(|slot| cost[usize::from(slot.number())])
    }

    /// Moves from each primary to another one, of slots that are not known yet.
    pub fn any_moves(&self) -> Vec<Move> {
        let next = self.shards.iter().cycle().skip(1);
        let any = self.shards.iter().zip(next).map(|(source, target)| Move {
            source: source.id.clone(),
            target: target.id.clone(),
            slots: SlotSet::new(),
        });
        any.collect()
    }

    /// No plan leaves out a primary that owns slots and does not answer: its slots would count as no node's,
    /// and their cluster may refuse commands meanwhile.
    ///
    /// # Errors
    /// `Unfit` if there is one.
    pub fn refuse_silence(&self) -> Result<()> {
        let Some((_, state)) = self.survey.answering_primaries().next() else { return Ok(()) };
        for node in &self.survey.nodes {
            let Err(reason) = &node.answer else { continue };
            let slots = Slot::all().filter(|slot| state.owners.of(*slot) == Some(&node.id)).count() as u64;
            if slots > 0 {
                let owns = format_count_of(slots, "slot");
                let what = format!("it {}, and owns {owns}: {}", reason.verb(), reason.why);
                return Err(Error::unfit(Side::Source, node.name().to_string(), "plan moves", what)
                    .with_remedy("see `whimbrel status`"));
            }
        }
        Ok(())
    }

    /// Nothing may move while something else does with the same nodes or slots, or was left half-done there.
    ///
    /// # Errors
    /// `Unfit` if that is so.
    pub fn refuse_trouble(&self, moves: &[Move]) -> Result<()> {
        let wanted = Wanted::of(moves);
        for node in &self.survey.nodes {
            if let Some(what) = strangers::trouble_at(node, &wanted, &Own::default()) {
                return Err(strangers::refusal(node, what));
            }
        }
        Ok(())
    }

    /// A node that is left without slots.
    pub(super) fn emptied(&self, moves: &[Move]) -> Option<&NodeId> {
        let shard = self.shards.iter().find(|shard| {
            let given = moves.iter().filter(|m| m.source == shard.id);
            let given = given.fold(SlotSet::new(), |all, m| all.union(&m.slots));
            !given.is_empty() && shard.slots.difference(&given).is_empty()
        });
        shard.map(|shard| &shard.id)
    }

    /// Primaries without slots that get none by `moves` either.
    pub(super) fn left_empty(&self, moves: &[Move]) -> Vec<String> {
        let gets_none = |shard: &&Shard| shard.slots.is_empty() && moves.iter().all(|m| m.target != shard.id);
        self.shards.iter().filter(gets_none).map(|shard| self.survey.name(&shard.id).to_string()).collect()
    }

    /// Nodes that get slots of a primary with replicas, and have none themselves.
    pub(super) fn without_replicas(&self, moves: &[Move]) -> Vec<String> {
        let has_one = |id: &NodeId| self.survey.replicas_of(id).any(|replica| replica.state().is_some());
        let loses_them = |shard: &&Shard| {
            let gets = moves.iter().any(|m| m.target == shard.id && has_one(&m.source));
            gets && !has_one(&shard.id)
        };
        let shards = self.shards.iter().filter(loses_them);
        shards.map(|shard| self.survey.name(&shard.id).to_string()).collect()
    }

    /// How the moves are made, and why. What is not possible from outside is refused with its
    /// reason as soon as the nodes are looked at.
    ///
    /// # Errors
    /// `Unfit` if a node lacks what is wished for, `Options` if nodes have different ones of it; whatever
    /// keeps us from connecting to them.
    pub async fn method(
        &self,
        deployment: &Deployment,
        moves: &[Move],
        rule: MethodRule,
    ) -> Result<(Method, String)> {
        if moves.is_empty() {
            return Ok((Method::External, "there is nothing to move".to_owned()));
        }
        if let MethodRule::Best { external_only, .. } = rule
            && (external_only || self.emptied(moves).is_some())
        {
            return Ok((Method::External, PROMISES.to_owned()));
        }
        let mut kinds = Vec::new();
        let mut nodes: Vec<&NodeId> = moves.iter().flat_map(|m| [&m.source, &m.target]).collect();
        nodes.sort();
        nodes.dedup();
        for node in nodes {
            let Some(node) = self.survey.node(node) else { continue };
            let mut link = deployment.open(&node.address, 0).await?;
            match NativeSupport::find(&mut link).await? {
                NativeSupport::Present(kind) => kinds.push(kind),
                NativeSupport::Absent { reason } if rule == MethodRule::Native => {
                    let at = node.name().to_string();
                    return Err(Error::unfit(Side::Source, at, "use the native method", reason));
                }
                NativeSupport::Absent { .. } => return Ok((Method::External, PROMISES.to_owned())),
            }
        }
        if let MethodRule::Best { native_first, .. } = rule {
            return Ok(match kinds.first() {
                Some(&kind) if native_first && kinds.iter().all(|&k| k == kind) => {
                    (Method::Native(Native::from(kind)), FIRST.to_owned())
                }
                Some(&kind) if kinds.iter().all(|kind| kind.hides_keys()) => {
                    (Method::Native(Native::from(kind)), HIDDEN.to_owned())
                }
                _ => (Method::External, PROMISES.to_owned()),
            });
        }
        match kinds.first() {
            Some(&kind) if kinds.iter().all(|&k| k == kind) => {
                Ok((Method::Native(Native::from(kind)), format!("all nodes have {kind}")))
            }
            _ => {
                let what = "the nodes have different native migrations";
                Err(Error::options(Side::Own, "understand the options", what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_engine::nodes::NoAnswer;

    use super::*;
    use crate::scene::{id, survey, third};

    #[test]
    fn a_node_is_named_by_its_address_or_the_beginning_of_its_id() {
        let situation = Situation::of(survey());
        for name in ["h:7001", "1", "111111", &id(1).to_string()] {
            assert_eq!(situation.resolve(name).expect(name), id(1), "{name}");
        }
        let refused = |name: &str| situation.resolve(name).expect_err(name).to_string();
        assert!(refused("3333").contains("is a replica; name its primary"), "{}", refused("3333"));
        assert!(refused("h:7004").contains("is a replica"), "{}", refused("h:7004"));
        for name in ["", "9", "h:9", "7001"] {
            assert!(refused(name).contains("no primary is called"), "{name}: {}", refused(name));
        }
    }

    #[test]
    fn a_primary_that_does_not_answer_and_one_of_two_are_refused() {
        let mut survey = survey();
        survey.nodes[2].answer = Err(NoAnswer::because("timeout"));
        survey.nodes[1].id = format!("0{}", "1".repeat(39)).parse().expect("an id");
        let situation = Situation::of(survey);
        let refused = |name: &str| situation.resolve(name).expect_err(name).to_string();
        assert!(refused("h:7002").contains("does not answer"), "{}", refused("h:7002"));
        assert!(refused("0").contains("could be any of"), "{}", refused("0"));
        assert_eq!(situation.resolve("00").expect("one"), id(0));
    }

    #[test]
    fn nothing_is_planned_around_a_primary_that_does_not_answer() {
        let mut survey = survey();
        assert!(Situation::of(survey.clone()).refuse_silence().is_ok());
        survey.nodes[2].answer = Err(NoAnswer::because("timeout"));
        let refused = Situation::of(survey).refuse_silence().expect_err("it owns slots").to_string();
        assert!(refused.contains("does not answer, and owns 5,4"), "{refused}");
    }

    #[test]
    fn who_is_left_without_slots_is_known_beforehand() {
        let mut survey = survey();
        survey.nodes[2].answer.as_mut().expect("it answers").slots = SlotSet::new();
        let situation = Situation::of(survey);
        let part = |slots: &str| Move { source: id(0), target: id(1), slots: slots.parse().expect("slots") };
        assert_eq!(situation.emptied(&[part("0-5000")]), None);
        assert_eq!(situation.emptied(&[part("0-5000"), part("5001-5460")]), Some(&id(0)));
        assert_eq!(situation.left_empty(&[part("0-9")]).len(), 1, "the third primary");
        let to_it = Move { target: id(2), ..part("0-9") };
        assert!(situation.left_empty(&[to_it]).is_empty());
    }

    #[test]
    fn slots_weigh_by_what_their_node_has() {
        let mut survey = survey();
        for (node, (keys, bytes, operations)) in
            [(100, 10_000, 50), (10, 100, 0), (0, 0, 0)].iter().enumerate()
        {
            let facts = &mut survey.nodes[node].answer.as_mut().expect("it answers").facts;
            (facts.keys, facts.dataset_bytes, facts.ops_per_second) = (*keys, *bytes, *operations);
        }
        let situation = Situation::of(survey);
        assert_eq!(situation.key_bytes(&id(0)), 100.0);
        assert_eq!(situation.key_bytes(&id(2)), 0.0, "no keys, and no division by them");
        assert_eq!(situation.keys_in(&id(1), &third(1)), 0);
        let slot = Slot::MIN;
        assert_eq!(situation.costs(Weighing::Slots).of(slot), 1);
        assert_eq!(situation.costs(Weighing::Operations).of(slot), 0, "nobody has keys in it");
    }
}
