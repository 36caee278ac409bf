//! Visits every state that can be reached.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use serde_json::{Value, json};
use whimbrel_core::migration::{Action, BatchState, End, Event, Job, Phase, Rules, Why, step};

use crate::driver::{Bug, Driver, Ended, Order, node_id, slot_set};
use crate::world::{ABSENT, BATCHES, SLOTS, SlotFence, World};

/// How much may happen in one run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many things may go wrong: a reply is lost, an effect is done in part, late or not at all, a node
    /// dies or restarts, the executor dies, somebody cancels.
    pub faults: u8,
    /// How many writes clients make.
    pub writes: u8,
    /// Whether the job is to hand over all of its slots or none.
    pub atomic: bool,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The executor does what the machine asked for, or finds that it cannot.
    Execute,
    /// It does it, and does not learn that it did.
    LoseReply,
    /// It sends it, and does not learn what becomes of it.
    Linger,
    /// The same, and it takes that for a refusal that may not be one the next time.
    LingerSeemsRefused,
    /// It does a part of it, and does not learn how far it got.
    ExecutePartly,
    /// It is refused, for this reason.
    Refuse(Why),
    /// The executor dies before it does anything.
    CrashBefore,
    /// The executor dies after it sent something.
    CrashAmid,
    /// The executor dies after it did something, before it could write that down.
    CrashAfter,
    /// A new executor reads the journal, or somebody resumes a job that is suspended.
    Resume,
    /// Somebody cancels the job.
    Cancel,
    /// A client writes to a slot.
    Write(usize),
    /// Claims reach everybody.
    Gossip,
    /// A target that imports takes a slot that its owner stopped claiming.
    TargetHelpsItself,
    /// The pause runs out.
    PauseEnds,
    /// Something that was sent earlier is executed.
    LateCommand,
    /// The source's primary dies.
    SourceDies,
    /// Its replica takes its place.
    SourceFailsOver,
    /// The source's primary restarts.
    SourceRestarts,
    /// The target's primary dies.
    TargetDies,
    /// Its replica takes its place.
    TargetFailsOver,
    /// The target's primary restarts.
    TargetRestarts,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many different states of the world there are.
    pub states: usize,
    /// How many steps lead from one to another.
    pub steps: usize,
    /// How many different states of the job there are among them.
    pub jobs: usize,
    /// In how many states jobs ended, by how they ended.
    pub ends: Vec<(String, usize)>,
    /// The shortest way to something that must not be, if there is one.
    pub found: Option<Found>,
}

/// Something that must not be, and how it came to it.
#[derive(Clone, Debug)]
pub struct Found {
    /// What it is.
    pub what: String,
    /// One line for each step.
    pub trace: Vec<String>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        self.trace.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// What can be given to the machine, short enough to be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Input {
    Start,
    Resume,
    Cancel,
    Ended(Ended, u8, u8),
}

/// All jobs seen so far, by number, and what becomes of them: jobs are large, worlds are many.
struct Machine {
    driver: Driver,
    /// Whether the job is to be atomic.
    atomic: bool,
    jobs: Vec<Job>,
    numbers: HashMap<Job, u32>,
    advanced: HashMap<(u32, Input), u32>,
}

impl Machine {
    fn new(driver: Driver, atomic: bool) -> Machine {
        Machine { driver, atomic, jobs: Vec::new(), numbers: HashMap::new(), advanced: HashMap::new() }
    }

    fn job(&self, number: u32) -> &Job {
        &self.jobs[number as usize]
    }

    fn number_of(&mut self, job: Job) -> u32 {
        let job = canonical(&job);
        let next = u32::try_from(self.jobs.len()).expect("memory is smaller");
        match self.numbers.entry(job) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                self.jobs.push(entry.key().clone());
                *entry.insert(next)
            }
        }
    }

    /// Takes the world's job a step further.
    fn advance(&mut self, world: &World, input: Input) -> World {
        let known = self.advanced.get(&(world.job, input)).copied();
        let number = known.unwrap_or_else(|| {
            let mut job = self.job(world.job).clone();
            let event = match input {
                Input::Start => Event::Start,
                Input::Resume => self.driver.resumed(job.phase(), job.in_flight()),
                Input::Cancel => Event::Cancel,
                Input::Ended(ended, ..) => {
                    let effect = job.in_flight().expect("only given while something is in flight").clone();
                    self.driver.event(world, &effect, ended)
                }
            };
            let mut effects = Vec::new();
            step(&mut job, event, &mut effects).expect("the driver only says what fits");
            let asked = effects.as_slice();
            assert!(asked.is_empty() || asked.iter().eq(job.in_flight()), "one thing at a time");
            let number = self.number_of(job);
            self.advanced.insert((world.job, input), number);
            number
        });
        World { job: number, ..*world }
    }

    fn ended(&mut self, world: &World, ended: Ended) -> World {
        // A check reports the processes, which are not in the short form.
        self.advance(world, Input::Ended(ended, world.source.process, world.target.process))
    }

    /// Everything that can happen next. The first is what happens if nothing goes wrong any more.
    fn successors(&mut self, world: &World, acts: &mut Vec<(Act, World)>) {
        acts.clear();
        let driver = self.driver;
        let fence = driver.fence;
        if self.job(world.job).has_ended() && world.executor {
            return;
        }
        let mut push = |act, next: Option<World>| acts.extend(next.map(|next| (act, next)));
        push(Act::Gossip, world.gossip(fence));
        push(Act::SourceFailsOver, world.source_fails_over());
        push(Act::TargetFailsOver, world.target_fails_over(fence));
        let job = self.job(world.job);
        let suspended = matches!(job.phase(), Phase::Suspended { .. });
        if !world.executor || suspended {
            let alive = World { executor: true, ..*world };
            acts.push((Act::Resume, self.advance(&alive, Input::Resume)));
        } else {
            self.executor_acts(world, acts);
        }
        let mut push = |act, next: Option<World>| acts.extend(next.map(|next| (act, next)));
        push(Act::TargetHelpsItself, world.target_helps_itself(fence));
        push(Act::PauseEnds, world.pause_ends());
        push(Act::LateCommand, world.late_command(fence));
        push(Act::SourceDies, world.source_dies());
        push(Act::TargetDies, world.target_dies());
        push(Act::SourceRestarts, world.source_restarts(fence));
        push(Act::TargetRestarts, world.target_restarts());
        for slot in 0..SLOTS {
            push(Act::Write(slot), world.client_writes(slot, fence));
        }
    }

    fn executor_acts(&mut self, world: &World, acts: &mut Vec<(Act, World)>) {
        let driver = self.driver;
        let job = self.job(world.job);
        let cancellable = !job.is_cancelling() && !matches!(job.phase(), Phase::Closing { .. });
        let effect = job.in_flight().expect("a job that runs has an effect in flight").clone();
        let order = Order::new(&effect);
        let executed = driver.execute(world, order);
        if let Some((after, ended)) = executed {
            acts.push((Act::Execute, self.ended(&after, ended)));
        }
        let Some(faults) = world.faults.checked_sub(1) else { return };
        let world = World { faults, ..*world };
        let dead = |world: World| World { executor: false, feed: false, fresh: false, ..world };
        acts.push((Act::CrashBefore, dead(world)));
        if cancellable {
            acts.push((Act::Cancel, self.advance(&world, Input::Cancel)));
        }
        if let Some((after, ended)) = executed {
            let after = World { faults, ..after };
            if after != world {
                acts.push((Act::CrashAfter, dead(after)));
            }
            if !matches!(ended, Ended::Refused(_)) {
                acts.push((Act::LoseReply, self.ended(&after, Ended::Unknown)));
            }
        }
        let changes_owners =
            matches!(effect.action, Action::Fence | Action::TakeOver { .. } | Action::GiveBack);
        for sent in driver.send_only(&world, order) {
            acts.push((Act::CrashAmid, dead(sent)));
            acts.push((Act::Linger, self.ended(&sent, Ended::Unknown)));
            if !changes_owners {
                let refused = Ended::Refused(Why::Transient);
                acts.push((Act::LingerSeemsRefused, self.ended(&sent, refused)));
            }
        }
        if let Some(partly) = driver.execute_partly(&world, order) {
            acts.push((Act::ExecutePartly, self.ended(&partly, Ended::Unknown)));
            acts.push((Act::CrashAmid, dead(partly)));
        }
        for why in [Why::Transient, Why::Permanent, Why::TooSlow] {
            acts.push((Act::Refuse(why), self.ended(&world, Ended::Refused(why))));
        }
    }

    /// What is wrong with a cluster whose job ended.
    fn violation_at_end(&self, world: &World) -> Option<String> {
        let job = self.job(world.job);
        let end = job.phase().end()?;
        let handed_over = world.slots.iter().filter(|slot| slot.target_owns).count();
        if self.atomic && handed_over != 0 && handed_over != SLOTS {
            return Some(format!("{handed_over} of {SLOTS} slots were handed over at the end"));
        }
        for batch in job.batches() {
            for number in batch.slots.iter().map(|slot| usize::from(slot.number())) {
                let slot = &world.slots[number];
                if batch.state == BatchState::LeftAsIs {
                    return Some(format!("slot {number} is left as it is"));
                }
                let handed_over = batch.state == BatchState::HandedOver;
                if slot.target_owns != handed_over || slot.source_owns == handed_over {
                    return Some(format!("slot {number} has a wrong owner at the end"));
                }
                if handed_over && slot.at_source != ABSENT {
                    return Some(format!("slot {number} has a key left on the source"));
                }
                if !handed_over && (slot.at_target != ABSENT || slot.at_replica != ABSENT) {
                    return Some(format!("slot {number} has a staged key left"));
                }
                if slot.marked {
                    return Some(format!("slot {number} has a mark left"));
                }
                if *end == End::Done && !handed_over {
                    return Some(format!("slot {number} was not handed over, but the job is done"));
                }
            }
        }
        None
    }
}

/// The same job without what nothing depends on, so that fewer are different: reasons, and counts of batches
/// that are handed over.
fn canonical(job: &Job) -> Job {
    fn forget_reasons(value: &mut Value) {
        match value {
            Value::Object(fields) if fields.contains_key("why") => {
                fields.insert("why".to_owned(), json!(Why::Permanent));
            }
            Value::Object(fields) => fields.values_mut().for_each(forget_reasons),
            Value::Array(items) => items.iter_mut().for_each(forget_reasons),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(job).expect("a job can be written to a journal");
    forget_reasons(&mut value["phase"]);
    value["last_trouble"] = Value::Null;
    for batch in value["batches"].as_array_mut().expect("a list") {
        if batch["state"] == json!(BatchState::HandedOver) {
            for count in ["attempts", "pauses_failed", "troubles"] {
                batch[count] = json!(0);
            }
        }
    }
    serde_json::from_value(value).expect("a job can be read from a journal")
}

/// Visits every state that can be reached within the limits, by the shortest ways, until one is found that
/// must not be.
pub fn explore(fence: SlotFence, bug: Option<Bug>, limits: Limits) -> Report {
    let driver = Driver { fence, bug };
    let mut machine = Machine::new(driver, limits.atomic);
    let rules = Rules {
        attempts_max: 2,
        pauses_max: 1,
        rounds_max: 2,
        troubles_max: 3,
        observations_max: 1,
        brake: false,
        atomic: limits.atomic && bug != Some(Bug::OneByOne),
        ..Rules::default()
    };
    let id = "model".parse().expect("letters");
    let batches = BATCHES.map(|numbers| slot_set(numbers.iter().copied()));
    let job = Job::new(id, node_id(true, 0), node_id(false, 0), batches, rules);
    let queued = machine.number_of(job);
    let first = machine.advance(&World::new(queued, limits.faults, limits.writes), Input::Start);

    let mut worlds = vec![first];
    let mut numbers = HashMap::from([(first, 0_u32)]);
    // From where each world was reached first, and where it goes if nothing goes wrong any more.
    let mut parents = vec![0_u32];
    let mut nexts: Vec<u32> = Vec::new();
    let mut steps = 0;
    let mut ends: HashMap<String, usize> = HashMap::new();
    let mut found = None;
    let mut acts = Vec::new();
    let mut at = 0;
    while at < worlds.len() {
        let world = worlds[at];
        let number = u32::try_from(at).expect("memory is smaller");
        if let Some(what) = world.violation() {
            found = Some((what, number));
            break;
        }
        machine.successors(&world, &mut acts);
        if acts.is_empty() {
            let phase = machine.job(world.job).phase();
            if let Some(what) = machine.violation_at_end(&world) {
                found = Some((what, number));
                break;
            }
            *ends.entry(phase.name().to_owned()).or_default() += 1;
        }
        steps += acts.len();
        for (index, (_, next)) in acts.iter().enumerate() {
            let next_number = *numbers.entry(*next).or_insert_with(|| {
                worlds.push(*next);
                parents.push(number);
                u32::try_from(worlds.len() - 1).expect("memory is smaller")
            });
            if index == 0 {
                nexts.push(next_number);
            }
        }
        if acts.is_empty() {
            nexts.push(number);
        }
        at += 1;
    }
    let found =
        found.or_else(|| stuck(&nexts).map(|number| ("this never comes to an end".to_owned(), number)));
    let found =
        found.map(|(what, number)| Found { what, trace: trace(&mut machine, &worlds, &parents, number) });
    let mut ends: Vec<_> = ends.into_iter().collect();
    ends.sort();
    Report { states: worlds.len(), steps, jobs: machine.jobs.len(), ends, found }
}

/// A world from which the way without further faults leads in a circle, if there is one. Ends lead to
/// themselves.
fn stuck(nexts: &[u32]) -> Option<u32> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnTheWay,
        Ends,
    }
    let mut marks = vec![Mark::New; nexts.len()];
    for start in 0..nexts.len() {
        let mut way = Vec::new();
        let mut at = start;
        while marks[at] == Mark::New {
            marks[at] = Mark::OnTheWay;
            way.push(at);
            let next = nexts[at] as usize;
            if next == at {
                break;
            }
            at = next;
            if marks[at] == Mark::OnTheWay {
                return u32::try_from(at).ok();
            }
        }
        for at in way {
            marks[at] = Mark::Ends;
        }
    }
    None
}

/// What led to a world, one line for each step.
fn trace(machine: &mut Machine, worlds: &[World], parents: &[u32], number: u32) -> Vec<String> {
    let mut way = vec![number];
    while let Some(&at) = way.last()
        && at != 0
    {
        way.push(parents[at as usize]);
    }
    way.reverse();
    let mut lines = vec![line(machine, "start".to_owned(), &worlds[0])];
    let mut acts = Vec::new();
    for pair in way.windows(2) {
        let (before, after) = (worlds[pair[0] as usize], worlds[pair[1] as usize]);
        let asked = machine.job(before.job).in_flight().map_or("nothing", |effect| effect.action.name());
        machine.successors(&before, &mut acts);
        let act = acts.iter().find(|(_, next)| *next == after).map(|(act, _)| *act);
        let act = act.expect("the parent leads to its child");
        lines.push(line(machine, format!("{act:?} (asked: {asked})"), &after));
    }
    lines
}

fn line(machine: &Machine, act: String, world: &World) -> String {
    let slots = world.slots.map(|slot| {
        let flag = |is: bool, sign: &'static str| if is { sign } else { "" };
        format!(
            "[{}{}{}{} {}|{},{} acked {}]",
            flag(slot.source_owns, "S"),
            flag(slot.target_owns, "T"),
            flag(slot.known, "k"),
            flag(slot.marked, "m"),
            slot.at_source,
            slot.at_target,
            slot.at_replica,
            slot.acked,
        )
    });
    format!(
        "{act} -> {} {:?} {}{}{}",
        machine.job(world.job).phase(),
        world.pause,
        slots.join(" "),
        if world.executor { "" } else { " executor dead" },
        if world.pending.is_some() { " something lingers" } else { "" },
    )
}
