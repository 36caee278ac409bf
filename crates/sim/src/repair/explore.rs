//! Every state of a small cluster, and what becomes of it.

use std::collections::HashMap;

use whimbrel_core::cluster::{Cluster, KeyCounts, Node, Owners, Role, State};
use whimbrel_core::node::NodeId;
use whimbrel_core::repair::decide;
use whimbrel_core::repair::plan::{Change, Evidence, Fate, Plan};
use whimbrel_core::slot::{Slot, SlotSet};

use super::carry::{Bug, Carrier, Discarded, number};
use super::world::{Cell, KEYS, Mark, NOBODY, NODES, SLOTS, Shape, World};
use crate::Found;

/// How many rounds a repair may take: `whimbrel repair` makes no more.
const ROUNDS_MAX: usize = 4;

/// What was found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many states it began with.
    pub roots: usize,
    /// How many different states there are.
    pub states: usize,
    /// After how many commands a repair was interrupted.
    pub steps: usize,
    /// How many rounds each state takes: how many take none, one, and so on.
    pub rounds: Vec<usize>,
    /// Something that must not be, if there is any.
    pub found: Option<Found>,
}

/// What nodes may say, once for all: worlds are many.
struct Sayings {
    ids: Vec<NodeId>,
    /// The slots that exist.
    all: SlotSet,
    /// Sets of slots, by their bits.
    sets: Vec<SlotSet>,
    /// Views, by the owner of each slot.
    owners: Vec<Owners>,
    /// Counts, by the keys in each slot.
    counts: Vec<KeyCounts>,
    /// Marks, by the other node of each slot.
    marks: Vec<Vec<(Slot, NodeId)>>,
}

fn slot(number: usize) -> Slot {
    Slot::new(number as u16).expect("there are few")
}

impl Sayings {
    fn new(shape: &Shape) -> Sayings {
        let ids: Vec<NodeId> =
            (0..NODES).map(|node| node.to_string().repeat(NodeId::LENGTH).parse().expect("an id")).collect();
        let sets = (0..1 << SLOTS)
            .map(|bits: usize| (0..SLOTS).filter(|at| bits >> at & 1 == 1).map(slot).collect())
            .collect();
        // For each of the two slots a node, or nobody.
        let pairs = || (0..(NODES + 1) * (NODES + 1)).map(|at| [at / (NODES + 1), at % (NODES + 1)]);
        let named = |pair: [usize; SLOTS]| {
            let named = pair.into_iter().enumerate().filter(|(_, node)| *node < NODES);
            named.map(|(at, node)| (slot(at), ids[node].clone())).collect::<Vec<_>>()
        };
        let view = |pair| {
            Owners::new(ids.iter().map(|id| {
                let owned = named(pair).into_iter().filter(|(_, owner)| owner == id);
                (id.clone(), owned.map(|(slot, _)| slot).collect())
            }))
        };
        let count = |at: usize| {
            let mut counts = KeyCounts::default();
            counts.set(slot(0), (at / (KEYS + 1)) as u32);
            counts.set(slot(1), (at % (KEYS + 1)) as u32);
            counts
        };
        Sayings {
            all: (0..shape.slots).map(slot).collect(),
            sets,
            owners: pairs().map(view).collect(),
            counts: (0..(KEYS + 1) * (KEYS + 1)).map(count).collect(),
            marks: pairs().map(named).collect(),
            ids,
        }
    }

    fn pair(nodes: [u8; SLOTS]) -> usize {
        let [first, second] = nodes.map(|node| usize::from(node).min(NODES));
        first * (NODES + 1) + second
    }

    /// What a node answers.
    fn state(&self, shape: &Shape, world: &World, node: usize) -> State<'_> {
        let cells = &world.cells[node];
        let primary = shape.primary_of(node);
        let claimed = (0..shape.slots).filter(|slot| primary.is_none() && world.claims(node, *slot));
        let marked = |other: fn(Mark) -> Option<u8>| {
            &self.marks[Sayings::pair(cells.map(|cell| other(cell.mark).unwrap_or(NOBODY)))][..]
        };
        let held = cells.map(|cell| cell.values.iter().filter(|value| **value != 0).count());
        State {
            role: if primary.is_some() { Role::Replica } else { Role::Primary },
            primary: primary.map(|primary| &self.ids[primary]),
            config_epoch: u64::from(world.epochs[node]),
            slots: &self.sets[claimed.fold(0, |bits, slot| bits | 1 << slot)],
            importing: marked(|mark| if let Mark::From(other) = mark { Some(other) } else { None }),
            migrating: marked(|mark| if let Mark::To(other) = mark { Some(other) } else { None }),
            owners: &self.owners[Sayings::pair(cells.map(|cell| cell.owner))],
            failed: &[],
            counts: Some(&self.counts[held[0] * (KEYS + 1) + held[1]]),
            hidden_keys: 0,
            keys_elsewhere: 0,
            repl_offset: 0,
            corrects_replicas: true,
        }
    }

    fn cluster(&self, shape: &Shape, world: &World) -> Cluster<'_> {
        let node = |node: usize| {
            let state = self.state(shape, world, node);
            Node {
                id: &self.ids[node],
                reported_role: state.role,
                reported_primary: state.primary,
                state: shape.answers(node).then_some(state),
            }
        };
        Cluster { nodes: shape.nodes().map(node).collect() }
    }
}

/// Everything that is known while states are visited.
struct Explorer {
    shape: Shape,
    bug: Option<Bug>,
    sayings: Sayings,
    worlds: Vec<World>,
    numbers: HashMap<World, u32>,
    /// From which state each was reached.
    parents: Vec<u32>,
    /// Where a plan leads from each state if nothing interrupts it.
    ends: Vec<u32>,
    /// Which keys a plan discards in each state.
    discarded: Vec<Discarded>,
    /// Interruptions: between which states.
    steps: Vec<(u32, u32)>,
}

/// Visits every state, and all that follow from it.
pub fn explore(bug: Option<Bug>, shape: Shape) -> Report {
    let mut explorer = Explorer {
        shape,
        bug,
        sayings: Sayings::new(&shape),
        worlds: Vec::new(),
        numbers: HashMap::new(),
        parents: Vec::new(),
        ends: Vec::new(),
        discarded: Vec::new(),
        steps: Vec::new(),
    };
    explorer.add_roots();
    let roots = explorer.worlds.len();
    let mut found = None;
    while found.is_none() && explorer.ends.len() < explorer.worlds.len() {
        found = explorer.visit(explorer.ends.len());
    }
    let mut rounds = Vec::new();
    if found.is_none() {
        found = explorer.spoilt().or_else(|| explorer.endless(&mut rounds));
    }
    let found = found.map(|(what, at)| Found { what, trace: explorer.trace(at) });
    Report { roots, states: explorer.worlds.len(), steps: explorer.steps.len(), rounds, found }
}

impl Explorer {
    /// Every state of a slot on a node.
    fn cells(&self, node: usize) -> Vec<Cell> {
        let shape = &self.shape;
        if !shape.answers(node) {
            // Nobody knows; others take it for the owner or do not.
            return vec![Cell { owner: node as u8, ..Cell::EMPTY }];
        }
        let primaries = 0..shape.primaries as u8;
        let others = shape.nodes().map(|other| other as u8).filter(|other| usize::from(*other) != node);
        let mut marks = vec![Mark::None];
        match shape.primary_of(node) {
            None => {
                let sources = others.clone().filter(|other| usize::from(*other) < shape.primaries);
                marks.extend(sources.map(Mark::From));
                marks.extend(others.map(Mark::To));
            }
            // A mark of its own from before it became a replica.
            Some(_) => marks.extend(primaries.clone().map(Mark::From)),
        }
        let mut cells = Vec::new();
        for owner in primaries.chain([NOBODY]) {
            for mark in &marks {
                for held in 0..=shape.keys {
                    let mut values = [0; KEYS];
                    values[..held].fill(node as u8 + 1);
                    cells.push(Cell { owner, mark: *mark, values, noted: false });
                }
            }
        }
        cells
    }

    /// Every state of the cluster: the epochs of primaries are in the order of their numbers, since which has
    /// which number makes no difference but where epochs do.
    fn add_roots(&mut self) {
        let mut first = World { epochs: [0; NODES], cells: [[Cell::EMPTY; SLOTS]; NODES] };
        for node in self.shape.nodes() {
            first.epochs[node] = self.shape.primary_of(node).unwrap_or(node) as u8 + 1;
        }
        let mut worlds = vec![first];
        for node in self.shape.nodes() {
            let cells = self.cells(node);
            for slot in 0..self.shape.slots {
                let with = |world: &World, cell: &Cell| {
                    let mut world = *world;
                    world.cells[node][slot] = *cell;
                    world
                };
                worlds =
                    worlds.iter().flat_map(|world| cells.iter().map(move |cell| with(world, cell))).collect();
            }
        }
        for world in worlds {
            let own = self.worlds.len() as u32;
            self.number(world, own);
        }
    }

    fn number(&mut self, world: World, parent: u32) -> u32 {
        let world = world.ranked();
        *self.numbers.entry(world).or_insert_with(|| {
            self.worlds.push(world);
            self.parents.push(parent);
            // Memory is smaller than four thousand million worlds.
            (self.worlds.len() - 1) as u32
        })
    }

    /// The plan for a state, what it discards, and what is wrong with it.
    fn plan(&self, world: &World) -> (Plan, Discarded, Option<String>) {
        let cluster = self.sayings.cluster(&self.shape, world);
        let mut plan = decide::decide(&cluster, &self.sayings.all);
        self.divide(world, &mut plan);
        let mut discarded = [[false; KEYS]; SLOTS];
        let mut wrong = None;
        for action in &mut plan.actions {
            let Change::Empty { holder, owner, copied, fate } = &mut action.change else { continue };
            let (holder, owner) = (number(holder), number(owner));
            let mut evidence = Evidence::default();
            let mut only = Vec::new();
            let mut are_copies = true;
            for slot in action.slots.iter().map(|slot| usize::from(slot.number())) {
                let [held, owned] = [holder, owner].map(|node| world.cells[node][slot]);
                for key in (0..KEYS).filter(|key| held.values[*key] != 0) {
                    if owned.values[key] != 0 {
                        evidence.both += 1;
                    } else {
                        evidence.only += 1;
                        only.push((slot, key));
                    }
                }
                are_copies &= held.mark == Mark::From(owner as u8) && owned.mark != Mark::To(holder as u8);
            }
            *fate = Some(decide::fate(*copied, evidence));
            if *fate == Some(Fate::Discard) {
                only.into_iter().for_each(|(slot, key)| discarded[slot][key] = true);
                if !are_copies || evidence.only > evidence.both {
                    wrong = Some("keys are discarded that are no copies".to_owned());
                }
            }
            if self.bug == Some(Bug::Discard) {
                *fate = Some(Fate::Discard);
            }
        }
        self.spoil(world, &mut plan);
        (plan, discarded, wrong)
    }

    /// Looks for notes as `control::repair` does.
    fn divide(&self, world: &World, plan: &mut Plan) {
        for action in std::mem::take(&mut plan.actions) {
            let moving = match &action.change {
                Change::Empty { owner, .. } => {
                    let cells = &world.cells[number(owner)];
                    (0..self.shape.slots).filter(|at| cells[*at].noted).map(slot).collect()
                }
                _ => SlotSet::new(),
            };
            plan.actions.extend(decide::divide(action, &moving, |_| 0));
        }
    }

    /// Makes the mistakes that are about the plan.
    fn spoil(&self, world: &World, plan: &mut Plan) {
        if self.bug == Some(Bug::MarksLast) {
            plan.actions.sort_by_key(|action| matches!(action.change, Change::ClearMarks { .. }));
        }
        if self.bug == Some(Bug::FewestKeys) {
            for action in &mut plan.actions {
                let Change::Claim { node, .. } = &mut action.change else { continue };
                let keys = |node: &usize| {
                    let slots = action.slots.iter().map(|slot| usize::from(slot.number()));
                    slots
                        .map(|slot| world.cells[*node][slot].values.map(|v| usize::from(v != 0)))
                        .collect::<Vec<_>>()
                };
                let fewest = (0..self.shape.primaries).min_by_key(keys).unwrap_or(0);
                *node = self.sayings.ids[fewest].clone();
            }
        }
    }

    /// Looks at one state and all that its plan goes through.
    fn visit(&mut self, at: usize) -> Option<(String, usize)> {
        let world = self.worlds[at];
        let (plan, discarded, wrong) = self.plan(&world);
        self.discarded.push(discarded);
        self.ends.push(at as u32);
        if wrong.is_some() {
            return wrong.map(|what| (what, at));
        }
        if self.touches_what_is_silent(&world, &plan) {
            return Some((format!("a silent node's slot is touched: {:?}", plan.actions), at));
        }
        let is_healthy = world.is_healthy(&self.shape);
        if self.shape.silent.is_none() && is_healthy != plan.actions.is_empty() {
            let what = if is_healthy { "something is done" } else { "nothing is done" };
            return Some((format!("{what} about this: {:?}", plan.actions), at));
        }
        let outcome = Carrier::carry_out(&self.shape, self.bug, world, &plan, discarded);
        for (reached, _) in outcome.reached {
            let reached = self.number(reached, at as u32);
            self.steps.push((at as u32, reached));
        }
        self.ends[at] = self.number(outcome.end, at as u32);
        let (what, action) = outcome.wrong?;
        Some((format!("{what}, by {:?}", plan.actions[action]), at))
    }

    /// Whether something is done in a slot that everybody takes for one of a node that does not answer.
    fn touches_what_is_silent(&self, world: &World, plan: &Plan) -> bool {
        let Some(silent) = self.shape.silent else { return false };
        let answering = || self.shape.nodes().filter(|node| self.shape.answers(*node));
        (0..self.shape.slots).any(|at| {
            answering().all(|node| usize::from(world.cells[node][at].owner) == silent)
                && plan.actions.iter().any(|action| action.slots.contains(slot(at)))
        })
    }

    /// A state in which keys are discarded that would not have been if nothing had interrupted the repair.
    ///
    /// Looked for with two nodes and one slot. What the owner got from a third one, and what is found in
    /// another slot, counts when it is judged whether keys are copies; so it may show something else by then.
    /// And whose slot it is that nobody claims is found out by marks among others, of which some are cleared.
    fn spoilt(&self) -> Option<(String, usize)> {
        if self.shape.slots > 1 || self.shape.primaries > 2 {
            return None;
        }
        let is_spoilt = |(before, after): &(u32, u32)| {
            let [before, after] = [before, after].map(|at| *at as usize);
            (0..self.shape.slots).any(|slot| {
                let is_new =
                    |key: usize| self.discarded[after][slot][key] && !self.discarded[before][slot][key];
                (0..KEYS).any(is_new) && self.worlds[before].claimants(&self.shape, slot).next().is_some()
            })
        };
        let (before, after) = self.steps.iter().copied().find(is_spoilt)?;
        let from = self.worlds[before as usize];
        Some((
            format!("an interruption makes keys discarded that were to be kept, in {from:?}"),
            after as usize,
        ))
    }

    /// A state from which a repair does not come to its end.
    fn endless(&self, rounds: &mut Vec<usize>) -> Option<(String, usize)> {
        rounds.resize(ROUNDS_MAX + 1, 0);
        for at in 0..self.worlds.len() {
            let mut end = at;
            let mut count = 0;
            while self.ends[end] as usize != end {
                end = self.ends[end] as usize;
                count += 1;
                if count > ROUNDS_MAX {
                    return Some((format!("not repaired after {ROUNDS_MAX} rounds"), at));
                }
            }
            rounds[count] += 1;
        }
        None
    }

    /// What led to a state: the first one, and each in which a repair was begun anew.
    fn trace(&self, at: usize) -> Vec<String> {
        let mut way = vec![at];
        while let Some(&at) = way.last()
            && self.parents[at] as usize != at
        {
            way.push(self.parents[at] as usize);
        }
        let mut lines = Vec::new();
        for (before, after) in way.iter().rev().zip(way.iter().rev().skip(1).map(Some).chain([None])) {
            let world = self.worlds[*before];
            lines.extend(self.shape.nodes().map(|node| {
                let cells = &world.cells[node][..self.shape.slots];
                format!("node {node}, epoch {}: {cells:?}", world.epochs[node])
            }));
            let (plan, discarded, _) = self.plan(&world);
            let outcome = Carrier::carry_out(&self.shape, self.bug, world, &plan, discarded);
            let last = after.and_then(|after| {
                let is_it = |(reached, _): &&(World, usize)| reached.ranked() == self.worlds[*after];
                outcome.reached.iter().find(is_it).map(|(_, action)| *action)
            });
            let actions = plan.actions.iter().take(last.map_or(usize::MAX, |last| last + 1));
            lines.extend(actions.map(|action| format!("  {:?}", action.change)));
            lines.extend(last.map(|_| "  interrupted there".to_owned()));
        }
        lines
    }
}
