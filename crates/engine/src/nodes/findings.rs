//! What a survey shows to be wrong.

use std::collections::BTreeMap;
use std::fmt;

use whimbrel_core::cluster::{OutdatedReplicas, Role};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_core::units::format_count;

use super::survey::{NoAnswer, NodeName, NodeState, Survey};

/// Which owner some nodes name for some slots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opinion {
    /// The owner; `None` for no owner.
    pub owner: Option<NodeName>,
    /// The nodes that say so, primaries and replicas.
    pub reported_by: Vec<NodeName>,
}

/// Something that a survey shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A node did not answer us.
    Unreachable {
        /// Which.
        node: NodeName,
        /// Whether it is a primary, by others' word.
        primary: bool,
        /// The slots that others say are its own.
        slots: SlotSet,
        /// Why there was no answer.
        reason: NoAnswer,
    },
    /// A node answers us, but other nodes find it failing.
    Failing {
        /// Which.
        node: NodeName,
        /// How many of the nodes say so.
        reported_by: usize,
    },
    /// Nodes that find the cluster down: they refuse commands.
    ClusterDown {
        /// Which.
        nodes: Vec<NodeName>,
    },
    /// No node claims these slots.
    Unowned {
        /// Which.
        slots: SlotSet,
        /// Which owners the nodes name, if they name any.
        opinions: Vec<Opinion>,
        /// The primaries that hold keys in them, and how many; empty if keys were not counted.
        keys: Vec<(NodeName, u64)>,
    },
    /// The nodes do not agree on the owner of these slots.
    Disagreement {
        /// Which.
        slots: SlotSet,
        /// The nodes that say that they own them.
        claimants: Vec<NodeName>,
        /// What each says.
        opinions: Vec<Opinion>,
    },
    /// Several primaries with slots have the same configuration epoch. They settle that themselves, usually.
    EpochCollision {
        /// The epoch.
        epoch: u64,
        /// Whose it is.
        nodes: Vec<NodeName>,
    },
    /// A primary has failed, and none of its replicas can be elected: the other primaries know of a later
    /// claim of it than they do, and refuse to vote for a replica that asks with an older one.
    OutdatedReplicas {
        /// The primary.
        primary: NodeName,
        /// Its last claim's epoch, by the other primaries' word.
        epoch: u64,
        /// Its replicas that answer.
        replicas: Vec<NodeName>,
    },
    /// Slots that are marked as being on the move.
    Open {
        /// Which.
        slots: SlotSet,
        /// Which node takes them in, and from which.
        importing: Vec<(NodeName, NodeName)>,
        /// Which node gives them away, and to which.
        migrating: Vec<(NodeName, NodeName)>,
        /// The nodes named above that hold keys in them, and how many; empty if keys were not counted.
        keys: Vec<(NodeName, u64)>,
    },
    /// A node holds keys in slots that it neither owns nor takes in; for a replica, that its primary does
    /// not.
    Leftovers {
        /// Which.
        node: NodeName,
        /// Whether it is a replica.
        replica: bool,
        /// The slots.
        slots: SlotSet,
        /// The keys in them.
        keys: u64,
    },
    /// A primary holds keys in slots that it neither owns nor takes in, and shows them to no client: Redis
    /// 8.4 and later.
    HiddenKeys {
        /// Which.
        node: NodeName,
        /// How many.
        keys: u64,
    },
    /// A replica has no link to its primary.
    ReplicaLinkDown {
        /// Which.
        node: NodeName,
        /// Its primary.
        primary: NodeName,
    },
    /// A migration by the servers themselves is running.
    NativeMigration {
        /// The node that says so.
        node: NodeName,
        /// What it says.
        what: String,
    },
    /// A job of ours is running.
    Job {
        /// The node that it is connected to.
        node: NodeName,
        /// Its connection.
        what: String,
    },
}

impl Finding {
    /// False for what only says that a migration is running.
    pub fn is_problem(&self) -> bool {
        !self.is_activity()
    }

    /// True for a running migration.
    pub fn is_activity(&self) -> bool {
        matches!(self, Finding::NativeMigration { .. } | Finding::Job { .. })
    }

    /// True for what every migration shows while it runs: open slots, and keys that have yet to be removed.
    pub fn is_part_of_a_migration(&self) -> bool {
        matches!(self, Finding::Open { .. } | Finding::Leftovers { .. } | Finding::HiddenKeys { .. })
    }
}

/// Ranges that a text shows at most.
const RANGES_SHOWN: usize = 8;

/// A set of slots for people: its first ranges, and how many more there are.
pub fn shortened(slots: &SlotSet, ranges_max: usize) -> String {
    let ranges = slots.ranges();
    let mut text: Vec<String> = ranges.iter().take(ranges_max).map(ToString::to_string).collect();
    if ranges.len() > ranges_max {
        let left: usize = ranges[ranges_max..].iter().map(|r| r.count()).sum();
        text.push(format!("… {} more", format_count(left as u64)));
    }
    text.join(",")
}

fn slots_of(slots: &SlotSet) -> String {
    match slots.len() {
        1 => format!("slot {slots}"),
        n => format!("{} slots {}", format_count(n as u64), shortened(slots, RANGES_SHOWN)),
    }
}

fn keys_of(keys: u64) -> String {
    if keys == 1 { "1 key".to_owned() } else { format!("{} keys", format_count(keys)) }
}

/// Nodes that a text names at most.
const NODES_SHOWN: usize = 4;

fn names(nodes: &[NodeName]) -> String {
    let mut text: Vec<String> = nodes.iter().take(NODES_SHOWN).map(ToString::to_string).collect();
    if nodes.len() > NODES_SHOWN {
        text.push(format!("{} more", nodes.len() - NODES_SHOWN));
    }
    text.join(", ")
}

fn opinions(opinions: &[Opinion]) -> String {
    let one = |o: &Opinion| {
        let owner = o.owner.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string);
        match o.reported_by.len() {
            1 => format!("{owner} in the view of {}", o.reported_by[0]),
            n => format!("{owner} in the view of {n} nodes"),
        }
    };
    opinions.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn write_keys(f: &mut fmt::Formatter<'_>, keys: &[(NodeName, u64)]) -> fmt::Result {
    keys.iter().try_for_each(|(node, keys)| write!(f, "; {} at {node}", keys_of(*keys)))
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unreachable { node, primary, slots, reason } => {
                let role = if *primary { "primary" } else { "replica" };
                write!(f, "{role} {node} {}", reason.verb())?;
                if !slots.is_empty() {
                    write!(f, ", and owns {}", slots_of(slots))?;
                }
                write!(f, ": {}", reason.why)
            }
            Finding::Failing { node, reported_by } => {
                write!(f, "{node} answers us, but {reported_by} of the nodes find it failing")
            }
            Finding::ClusterDown { nodes } => {
                write!(f, "nodes that call the cluster down and refuse commands: {}", names(nodes))
            }
            Finding::Unowned { slots, opinions: views, keys } => {
                write!(f, "nobody owns {}", slots_of(slots))?;
                if views.iter().any(|o| o.owner.is_some()) {
                    write!(f, ": {}", opinions(views))?;
                }
                write_keys(f, keys)
            }
            Finding::Disagreement { slots, opinions: views, .. } => {
                write!(f, "the nodes do not agree who owns {}: {}", slots_of(slots), opinions(views))
            }
            Finding::EpochCollision { epoch, nodes } => {
                write!(f, "the configuration epoch {epoch} belongs to several primaries: {}", names(nodes))
            }
            Finding::OutdatedReplicas { primary, epoch, replicas } => {
                write!(
                    f,
                    "{primary} has failed, and no replica of it can be elected: {} has not heard of its last \
                     claim, of epoch {epoch}",
                    names(replicas)
                )
            }
            Finding::Open { slots, importing, migrating, keys } => {
                write!(f, "open {}:", slots_of(slots))?;
                let marks = migrating
                    .iter()
                    .map(|(node, to)| format!(" {node} migrates to {to}"))
                    .chain(importing.iter().map(|(node, from)| format!(" {node} imports from {from}")));
                f.write_str(&marks.collect::<Vec<_>>().join(","))?;
                write_keys(f, keys)
            }
            Finding::Leftovers { node, replica, slots, keys } => {
                let role = if *replica { "replica " } else { "" };
                write!(f, "{role}{node} holds {} in {} of another node", keys_of(*keys), slots_of(slots))
            }
            Finding::HiddenKeys { node, keys } => {
                write!(f, "{node} hides {} in slots that are not its own", keys_of(*keys))
            }
            Finding::ReplicaLinkDown { node, primary } => {
                write!(f, "replica {node} has no link to its primary {primary}")
            }
            Finding::NativeMigration { node, what } => write!(f, "{node} is in a native migration: {what}"),
            Finding::Job { node, what } => write!(f, "a whimbrel job is connected to {node}: {what}"),
        }
    }
}

/// Index of a node in the survey plus one; 0 for no owner; beyond the survey for nodes that it does not hold.
type OwnerIndex = u16;

/// How the nodes see one slot, if that needs attention.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Sight {
    /// The nodes that claim the slot, as indexes into the survey.
    claimants: Vec<usize>,
    /// For each named owner, the nodes that say so, as indexes into the survey.
    reported: BTreeMap<OwnerIndex, Vec<usize>>,
}

impl Survey {
    /// All that is wrong, and all migrations that are running.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        self.find_unreachable(&mut found);
        self.find_failing(&mut found);
        self.find_disputes(&mut found);
        self.find_epoch_collisions(&mut found);
        self.find_outdated_replicas(&mut found);
        self.find_open_slots(&mut found);
        let unowned = found.iter().fold(SlotSet::new(), |unowned, f| match f {
            Finding::Unowned { slots, .. } => unowned.union(slots),
            _ => unowned,
        });
        self.find_leftovers(&unowned, &mut found);
        self.find_lost_links(&mut found);
        self.find_activity(&mut found);
        found
    }

    /// Whether nothing is wrong: no finding is a problem, or a running migration explains it.
    pub fn is_healthy(findings: &[Finding]) -> bool {
        let active = findings.iter().any(Finding::is_activity);
        !findings.iter().any(|f| f.is_problem() && !(active && f.is_part_of_a_migration()))
    }

    fn find_unreachable(&self, found: &mut Vec<Finding>) {
        for node in &self.nodes {
            let Err(reason) = &node.answer else { continue };
            let slots = self
                .answering_primaries()
                .next()
                .map(|(_, state)| Slot::all().filter(|s| state.owners.of(*s) == Some(&node.id)).collect())
                .unwrap_or_default();
            found.push(Finding::Unreachable {
                node: node.name(),
                primary: node.is_primary(),
                slots,
                reason: reason.clone(),
            });
        }
    }

    fn find_failing(&self, found: &mut Vec<Finding>) {
        let mut reports: BTreeMap<&NodeId, usize> = BTreeMap::new();
        for id in self.nodes.iter().filter_map(|n| n.state()).flat_map(|s| &s.failing) {
            *reports.entry(id).or_default() += 1;
        }
        for (id, reported_by) in reports {
            // A node that does not answer us either is reported as that.
            if self.node(id).is_some_and(|n| n.answer.is_ok()) {
                found.push(Finding::Failing { node: self.name(id), reported_by });
            }
        }
        let nodes: Vec<NodeName> = self
            .nodes
            .iter()
            .filter(|n| n.state().is_some_and(|s| !s.facts.cluster_ok))
            .map(|n| n.name())
            .collect();
        if !nodes.is_empty() {
            found.push(Finding::ClusterDown { nodes });
        }
    }

    /// Groups the slots whose owner is not agreed on by how they are seen.
    fn find_disputes(&self, found: &mut Vec<Finding>) {
        let index: BTreeMap<&NodeId, usize> =
            self.nodes.iter().enumerate().map(|(i, n)| (&n.id, i)).collect();
        let states: Vec<(usize, &NodeState)> =
            self.nodes.iter().enumerate().filter_map(|(i, n)| Some((i, n.state()?))).collect();
        let mut sights: BTreeMap<Sight, SlotSet> = BTreeMap::new();
        for slot in Slot::all() {
            if self.is_agreed(slot, &states) {
                continue;
            }
            let mut sight = Sight { claimants: Vec::new(), reported: BTreeMap::new() };
            for (i, state) in &states {
                let owner = match state.owners.of(slot) {
                    None => 0,
                    // There are fewer nodes than slots. A node outside the survey is being introduced: it
                    // counts as no owner.
                    Some(id) => index.get(id).and_then(|i| OwnerIndex::try_from(i + 1).ok()).unwrap_or(0),
                };
                sight.reported.entry(owner).or_default().push(*i);
                if claims(state, slot) {
                    sight.claimants.push(*i);
                }
            }
            sights.entry(sight).or_default().insert(slot);
        }
        let name = |i: &usize| self.nodes[*i].name();
        for (sight, slots) in sights {
            let owner_answers = |owner: &OwnerIndex| match usize::from(*owner).checked_sub(1) {
                Some(i) => self.nodes[i].answer.is_ok(),
                None => true,
            };
            let unowned = sight.claimants.is_empty() && sight.reported.keys().all(owner_answers);
            let opinions = sight
                .reported
                .iter()
                .map(|(owner, reported_by)| Opinion {
                    owner: usize::from(*owner).checked_sub(1).map(|i| name(&i)),
                    reported_by: reported_by.iter().map(name).collect(),
                })
                .collect();
            found.push(if unowned {
                let keys = self.holders(&slots);
                Finding::Unowned { slots, opinions, keys }
            } else {
                let claimants = sight.claimants.iter().map(name).collect();
                Finding::Disagreement { slots, claimants, opinions }
            });
        }
    }

    /// The primaries that hold keys in some slots, and how many.
    fn holders(&self, slots: &SlotSet) -> Vec<(NodeName, u64)> {
        self.answering_primaries()
            .filter_map(|(node, state)| Some((node.name(), state.counts.as_ref()?.sum(slots))))
            .filter(|(_, keys)| *keys > 0)
            .collect()
    }

    /// Whether every node names the same owner, and that one agrees, or cannot be asked.
    fn is_agreed(&self, slot: Slot, states: &[(usize, &NodeState)]) -> bool {
        let Some(owner) = states.first().and_then(|(_, s)| s.owners.of(slot)) else { return false };
        states.iter().all(|(i, s)| {
            s.owners.of(slot) == Some(owner) && claims(s, slot) == (self.nodes[*i].id == *owner)
        })
    }

    fn find_epoch_collisions(&self, found: &mut Vec<Finding>) {
        let mut epochs: BTreeMap<u64, Vec<NodeName>> = BTreeMap::new();
        for (node, state) in self.answering_primaries().filter(|(_, s)| !s.slots.is_empty()) {
            epochs.entry(state.config_epoch).or_default().push(node.name());
        }
        for (epoch, nodes) in epochs.into_iter().filter(|(_, nodes)| nodes.len() > 1) {
            found.push(Finding::EpochCollision { epoch, nodes });
        }
    }

    fn find_outdated_replicas(&self, found: &mut Vec<Finding>) {
        for OutdatedReplicas { primary, epoch, replicas } in self.cluster().outdated_replicas() {
            let replicas = replicas.into_iter().map(|id| self.name(id)).collect();
            found.push(Finding::OutdatedReplicas { primary: self.name(primary), epoch, replicas });
        }
    }

    /// Groups open slots by their marks.
    fn find_open_slots(&self, found: &mut Vec<Finding>) {
        type Marks<'a> = Vec<(&'a NodeId, &'a NodeId)>;
        let mut by_slot: BTreeMap<Slot, (Marks<'_>, Marks<'_>)> = BTreeMap::new();
        let cluster = self.cluster();
        for (node, as_reported) in self.nodes.iter().zip(&cluster.nodes) {
            let Some(state) = node.state() else { continue };
            let stray = cluster.stray_marks(as_reported);
            let counts = |slot: &Slot| state.role == Role::Primary || stray.contains(*slot);
            for (slot, from) in state.importing.iter().filter(|(slot, _)| counts(slot)) {
                by_slot.entry(*slot).or_default().0.push((&node.id, from));
            }
            for (slot, to) in state.migrating.iter().filter(|(slot, _)| counts(slot)) {
                by_slot.entry(*slot).or_default().1.push((&node.id, to));
            }
        }
        let mut groups: BTreeMap<(Marks<'_>, Marks<'_>), SlotSet> = BTreeMap::new();
        for (slot, marks) in by_slot {
            groups.entry(marks).or_default().insert(slot);
        }
        for ((importing, migrating), slots) in groups {
            let mut holders: Vec<&NodeId> =
                importing.iter().chain(&migrating).flat_map(|(node, other)| [*node, *other]).collect();
            holders.sort();
            holders.dedup();
            let keys = holders
                .into_iter()
                .filter_map(|id| {
                    let keys = self.node(id)?.state()?.counts.as_ref()?.sum(&slots);
                    (keys > 0).then(|| (self.name(id), keys))
                })
                .collect();
            let named = |marks: Marks<'_>| marks.iter().map(|(a, b)| (self.name(a), self.name(b))).collect();
            let (importing, migrating) = (named(importing), named(migrating));
            found.push(Finding::Open { slots, importing, migrating, keys });
        }
    }

    /// Keys in slots without an owner are no leftovers: they are reported with those slots.
    fn find_leftovers(&self, unowned: &SlotSet, found: &mut Vec<Finding>) {
        for node in &self.nodes {
            let Some((state, counts)) = node.state().and_then(|s| Some((s, s.counts.as_ref()?))) else {
                continue;
            };
            // What a replica may hold is what its primary owns, by the primary's own word.
            let allowed_by = match state.role {
                Role::Primary => Some(state),
                Role::Replica => state.primary.as_ref().and_then(|id| self.node(id)?.state()),
            };
            let Some(allowed_by) = allowed_by else { continue };
            let taken_in = allowed_by.native.iter().filter(|native| !native.is_export());
            let taken_in =
                taken_in.fold(allowed_by.importing_slots(), |all, native| all.union(&native.slot_set()));
            let allowed = allowed_by.slots.union(&taken_in).union(unowned);
            let slots = counts.occupied().difference(&allowed);
            if !slots.is_empty() {
                let keys = counts.sum(&slots);
                let replica = state.role == Role::Replica;
                found.push(Finding::Leftovers { node: node.name(), replica, slots, keys });
            }
            if state.hidden_keys > 0 {
                found.push(Finding::HiddenKeys { node: node.name(), keys: state.hidden_keys });
            }
        }
    }

    fn find_lost_links(&self, found: &mut Vec<Finding>) {
        for node in &self.nodes {
            let Some(state) = node.state() else { continue };
            if let (Some(primary), Some(false)) = (&state.primary, state.facts.primary_link_up) {
                found.push(Finding::ReplicaLinkDown { node: node.name(), primary: self.name(primary) });
            }
        }
    }

    fn find_activity(&self, found: &mut Vec<Finding>) {
        for node in &self.nodes {
            let Some(state) = node.state() else { continue };
            for what in &state.native {
                found.push(Finding::NativeMigration { node: node.name(), what: what.to_string() });
            }
            for what in &state.jobs {
                found.push(Finding::Job { node: node.name(), what: what.clone() });
            }
        }
    }
}

/// Whether a node says that a slot is its own. A replica's line shows no slots, but be sure.
fn claims(state: &NodeState, slot: Slot) -> bool {
    state.role == Role::Primary && state.slots.contains(slot)
}
