//! Visits every state that can be reached.

use std::collections::HashMap;

use whimbrel_core::fleet::Input;

use super::world::{Bug, MEMBERS, Machines, NONE, STEADY_TICKS, World};
use crate::Found;

/// How much may happen in one run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many times a process dies, is replaced, or is superseded while it lives on.
    pub faults: u8,
    /// How many times the clock ticks.
    pub ticks: u8,
    /// One in this many states is checked to come to rest; [`usize::MAX`] leaves the check out.
    pub settle_every: usize,
    /// No more states are looked at.
    pub states_max: usize,
    /// How many members hold a partition.
    pub copies: usize,
    /// Whether deaths of members are reported to coordinators, at any time after it is.
    pub reports_deaths: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many different states of the world there are.
    pub states: usize,
    /// How many steps lead from one to another.
    pub steps: usize,
    /// How many different states of a coordinator and of a member there are among them.
    pub machines: (usize, usize),
    /// How many states were followed until they came to rest.
    pub settled: usize,
    /// The shortest way to something that must not be, if there is one.
    pub found: Option<Found>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Deliver(u32),
    Write(usize),
    Tick(Option<usize>),
    CoordinatorDies(usize),
    CoordinatorStarts(usize),
    DeathIsReported(usize),
    Supersede,
    MemberIsReplaced(usize),
}

/// Everything that can happen next.
fn successors(machines: &mut Machines, world: &World, ticks_until: u8, acts: &mut Vec<(Act, World)>) {
    acts.clear();
    let mut push = |machines: &mut Machines, act, mut next: World| {
        machines.forget_what_is_over(&mut next);
        if next != *world {
            acts.push((act, next));
        }
    };
    for letter in machines.mails.get(world.mail).clone() {
        let mut next = *world;
        machines.deliver(&mut next, letter);
        push(machines, Act::Deliver(letter), next);
    }
    for at in 0..2 {
        let mut next = *world;
        if machines.write(&mut next, at) {
            push(machines, Act::Write(at), next);
        }
    }
    if world.now < ticks_until {
        let may_stand = (0..MEMBERS).filter(|at| world.steady[*at] + 1 >= STEADY_TICKS).map(Some);
        for slow in [None].into_iter().chain(may_stand) {
            let mut next = *world;
            machines.tick(&mut next, slow);
            push(machines, Act::Tick(slow), next);
        }
    }
    if world.coordinators == [NONE, NONE] {
        let mut next = *world;
        machines.start_coordinator(&mut next, 0);
        push(machines, Act::CoordinatorStarts(0), next);
    }
    for at in (0..2).filter(|at| world.coordinators[*at] != NONE) {
        let mut next = *world;
        if machines.report_death(&mut next, at) {
            push(machines, Act::DeathIsReported(at), next);
        }
    }
    let Some(faults) = world.faults.checked_sub(1) else { return };
    for at in (0..2).filter(|at| world.coordinators[*at] != NONE) {
        let mut next = World { faults, ..*world };
        next.coordinators[at] = NONE;
        next.queues[at] = machines.queues.number(Vec::new());
        push(machines, Act::CoordinatorDies(at), next);
    }
    if world.coordinators[0] != NONE && world.coordinators[1] == NONE {
        // The store lets another one begin only when the reign of the first is over.
        let mut next = World { faults, ..*world };
        machines.send_to_coordinator(&mut next, 0, Input::Reign { until_ms: u64::from(world.now) });
        machines.start_coordinator(&mut next, 1);
        push(machines, Act::Supersede, next);
    }
    for at in 0..MEMBERS {
        let mut next = World { faults, ..*world };
        machines.replace_member(&mut next, at);
        push(machines, Act::MemberIsReplaced(at), next);
    }
}

/// Visits every state that can be reached within the limits, by the shortest ways, until one is found that
/// must not be.
pub fn explore(bug: Option<Bug>, limits: Limits) -> Report {
    let mut machines = Machines::new(bug, limits.copies, limits.reports_deaths);
    let first = machines.first(limits.faults);
    let ticks_until = first.now + limits.ticks;
    let mut worlds = vec![first];
    let mut numbers = HashMap::from([(first, 0_u32)]);
    let mut parents = vec![0_u32];
    let (mut steps, mut settled, mut at) = (0, 0, 0);
    let mut found = None;
    let mut acts = Vec::new();
    while at < worlds.len().min(limits.states_max) {
        let world = worlds[at];
        if let Some(what) = machines.violation(&world) {
            found = Some((what, at));
            break;
        }
        if limits.settle_every != usize::MAX && at.is_multiple_of(limits.settle_every) {
            settled += 1;
            if let Some(what) = machines.settle(world) {
                found = Some((what, at));
                break;
            }
        }
        successors(&mut machines, &world, ticks_until, &mut acts);
        steps += acts.len();
        for (_, next) in &acts {
            numbers.entry(*next).or_insert_with(|| {
                worlds.push(*next);
                // Memory is smaller than four thousand million worlds.
                parents.push(at as u32);
                (worlds.len() - 1) as u32
            });
        }
        at += 1;
    }
    let found = found.map(|(what, at)| {
        let trace = trace(&mut machines, &worlds, &parents, at, ticks_until);
        Found { what, trace }
    });
    let machines = (machines.coordinators.len(), machines.members.len());
    Report { states: worlds.len(), steps, machines, settled, found }
}

/// How far chance leads.
#[derive(Clone, Copy, Debug)]
pub struct Walks {
    /// How many ways are gone.
    pub count: u64,
    /// How many steps each has at most.
    pub steps: usize,
    /// What may happen on each; the number of states is not limited.
    pub limits: Limits,
}

/// Goes ways by chance, the same ones each time: much further than all states within reach can be visited.
/// Each ends in a world that is followed until it comes to rest.
pub fn wander(bug: Option<Bug>, walks: Walks) -> Report {
    let mut report = Report { states: 0, steps: 0, machines: (0, 0), settled: 0, found: None };
    for walk in 0..walks.count {
        // New ones now and then, so that what they remember stays small.
        let mut machines = Machines::new(bug, walks.limits.copies, walks.limits.reports_deaths);
        let mut chance = (walk + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = machines.first(walks.limits.faults);
        let ticks_until = first.now + walks.limits.ticks;
        let mut worlds = vec![first];
        let mut acts = Vec::new();
        let what = loop {
            let world = worlds[worlds.len() - 1];
            let what = machines.violation(&world);
            successors(&mut machines, &world, ticks_until, &mut acts);
            if what.is_some() || acts.is_empty() || worlds.len() > walks.steps {
                let settles = what.is_none() && walks.limits.settle_every != usize::MAX;
                report.settled += usize::from(settles);
                break what.or_else(|| settles.then(|| machines.settle(world)).flatten());
            }
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let dice = (chance >> 33) as usize;
            // Time and faults are scarce: most steps are something else.
            let is_scarce = |act: &Act| !matches!(act, Act::Deliver(_) | Act::Write(_));
            let likely: Vec<World> = acts
                .iter()
                .filter(|(act, _)| is_scarce(act) == dice.is_multiple_of(6))
                .map(|(_, next)| *next)
                .collect();
            let next = likely.get(dice / 6 % likely.len().max(1)).copied();
            worlds.push(next.unwrap_or(acts[dice / 6 % acts.len()].1));
        };
        report.states += worlds.len();
        report.machines.0 += machines.coordinators.len();
        report.machines.1 += machines.members.len();
        if let Some(what) = what {
            let parents: Vec<u32> = (0..worlds.len() as u32).map(|at| at.saturating_sub(1)).collect();
            let trace = trace(&mut machines, &worlds, &parents, worlds.len() - 1, ticks_until);
            report.found = Some(Found { what, trace });
            break;
        }
    }
    report.steps = report.states;
    report
}

/// What led to a world, one line for each step.
fn trace(
    machines: &mut Machines,
    worlds: &[World],
    parents: &[u32],
    at: usize,
    ticks_until: u8,
) -> Vec<String> {
    let mut way = vec![at];
    while let Some(&at) = way.last()
        && at != 0
    {
        way.push(parents[at] as usize);
    }
    way.reverse();
    let mut acts = Vec::new();
    let line = |pair: &[usize]| {
        let (before, after) = (worlds[pair[0]], worlds[pair[1]]);
        successors(machines, &before, ticks_until, &mut acts);
        match acts.iter().find(|(_, next)| *next == after) {
            Some((Act::Deliver(letter), _)) => format!("{:?}", machines.letters.get(*letter)),
            Some((act, _)) => format!("{act:?}"),
            None => "?".to_owned(),
        }
    };
    way.windows(2).map(line).collect()
}
