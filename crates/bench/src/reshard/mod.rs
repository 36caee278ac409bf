//! `./dev bench reshard`: ways to move slots between nodes, side by side, in turns.

mod chart;
mod contender;
mod fleet;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use whimbrel_core::units::{format_bytes, format_count};
use whimbrel_lab::{Engine, SLOTS, Server};
use whimbrel_loadgen::content::{Content, Names};
use whimbrel_loadgen::interrupt::{self, Interrupt};
use whimbrel_loadgen::load::{Load, Pace, Plan};

use self::contender::{Allotment, Contender, Goal, Ran};
use self::fleet::{Fleet, Layout, even_layout, names_within};
use self::report::{Case, CaseReport, Clients, Outcome, Report, Run, faults_in_words};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::report::Entry;

/// Clients are at work for so long before slots move, and after.
const BEFORE: Duration = Duration::from_millis(2000);
const AFTER: Duration = Duration::from_millis(1500);

/// A stall within this time after the move still belongs to it: servers delete what they gave away.
const AFTERMATH: Duration = Duration::from_secs(1);

/// Shards of the experiment that scales.
const SHARDS: usize = 4;

/// Bytes of each value where data is moved, as in the seed.
const VALUE_BYTES: usize = 16 * 1024;

/// Slots that move where not a whole share does.
const SLOTS_MOVED: u16 = 4096;

/// Keys and bytes of each value where slots are nearly empty.
const NEARLY_EMPTY_KEYS: u64 = 10_000;
const NEARLY_EMPTY_BYTES: usize = 1024;

/// Keys that move where many small keys move; as many stay on the source.
const SMALL_KEYS: u64 = 400_000;

/// Keys that are written where writers saturate the source.
const SATURATED_KEYS: u64 = 1_000_000;

/// Bytes of each value of both.
const SMALL_BYTES: usize = 100;

/// Commands that a saturating writer sends at once.
const PIPELINE: u32 = 16;

/// What servers have by default. A node that is busy must not count as one that has failed.
const NODE_TIMEOUT_MS: u32 = 15_000;

/// Likewise. Without it a server forks at once for each that asks for its replication stream.
const SYNC_DELAY_S: u32 = 5;

/// `./dev bench reshard`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  ./dev bench reshard --engine redis-7.0 --svg reshard.svg      3 to 4 shards and back, 2 GiB
  ./dev bench reshard --gb 0.25 --rounds 1                      a quick look
  ./dev bench reshard --engine valkey-9.1 --small-keys          400,000 keys of 100 bytes: the longest stall
  ./dev bench reshard --engine valkey-9.1 --saturate --io-threads 3
  ./dev bench reshard --nearly-empty --primaries 5,10,20        what a slot costs")]
pub struct BenchReshardArgs {
    /// Server to measure with: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0")]
    pub engine: String,

    /// GiB of 16 KiB strings in the cluster; a quarter of them moves
    #[arg(long, default_value_t = 2.0)]
    pub gb: f64,

    /// Counted rounds; each measures every contender once
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,

    /// Replicas of each primary
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub replicas: u8,

    /// Commands a second that clients send, one SET to ten GET; 0 leaves the turns with load out
    #[arg(long, default_value_t = 5000)]
    pub rate: u32,

    /// Client connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub clients: u32,

    /// Leave out the turns without load
    #[arg(long)]
    pub only_load: bool,

    /// Contenders to leave out: legacy, whimbrel-external, cli-atomic, migrateslots, whimbrel-native;
    /// repeatable or with commas
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<String>,

    /// Instead: what a slot costs, with next to nothing in it, from cluster to cluster
    #[arg(long, group = "experiment")]
    pub nearly_empty: bool,

    /// Numbers of primaries for --nearly-empty
    #[arg(long, value_delimiter = ',', default_values_t = [5, 10, 20])]
    pub primaries: Vec<usize>,

    /// Instead: writers that send to the moving slots as fast as the source answers
    #[arg(long, group = "experiment")]
    pub saturate: bool,

    /// I/O threads of each server, for --saturate
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub io_threads: Option<u8>,

    /// Instead: many small keys, and the longest stall that a client sees
    #[arg(long, group = "experiment")]
    pub small_keys: bool,

    /// Stop a contender after this many seconds
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,

    /// An argument to add to whimbrel's own turns, such as --whimbrel-arg=--max-pause=50ms; repeatable
    #[arg(long, allow_hyphen_values = true)]
    pub whimbrel_arg: Vec<String>,

    /// A directive for each server, such as --server-arg=loglevel=warning; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = directive)]
    pub server_arg: Vec<(String, String)>,

    /// Write a picture of the throughput over time of the turns with load
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// A directive of the servers' configuration, with its value.
fn directive(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    parts.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| "not NAME=VALUE".to_owned())
}

/// Measures, and prints tables or one JSON document on standard output; what happens meanwhile on standard
/// error.
///
/// # Errors
/// When servers do not start or go away, or something of our own fails. A contender that fails is a result
/// and no error; if it is whimbrel, the exit code says so.
pub fn run(args: &BenchReshardArgs) -> anyhow::Result<Exit> {
    match Bench::of(args) {
        Ok(bench) => interrupt::run(Exit::Stopped, |interrupt| bench.measure(interrupt)),
        Err(reason) => {
            eprintln!("error: {reason}");
            Ok(Exit::Usage)
        }
    }
}

/// What was asked for.
struct Bench<'a> {
    args: &'a BenchReshardArgs,
    engine: Engine,
    entries: Vec<Entry>,
    contenders: Vec<Contender>,
}

/// One thing to move, and the cluster it moves in.
struct Setting {
    content: Content,
    layout: Layout,
    /// In this order, each from where the one before has left the slots.
    goals: Vec<(Goal, Case)>,
    pace: Option<Pace>,
    /// Whether the slots are back at the end of the goals, so that the next contender can go on from there.
    is_round_trip: bool,
}

impl<'a> Bench<'a> {
    fn of(args: &'a BenchReshardArgs) -> Result<Self, String> {
        let engine = Engine::from_name(&args.engine).ok_or_else(|| {
            format!(
                "unknown engine {:?}: there are {}",
                args.engine,
                Engine::ALL.map(Engine::name).join(", ")
            )
        })?;
        let without = args
            .without
            .iter()
            .map(|name| {
                Contender::from_name(name).ok_or_else(|| {
                    let known = Contender::ALL.map(Contender::name).join(", ");
                    format!("unknown contender {name:?}: there are {known}")
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let absent = |contender: Contender| {
            if without.contains(&contender) {
                return Some("absent: left out by --without".to_owned());
            }
            (!contender.is_possible_on(engine)).then(|| format!("absent: {engine} has nothing built in"))
        };
        let entries: Vec<Entry> = Contender::ALL
            .into_iter()
            .map(|contender| Entry {
                name: contender.name(),
                how: contender.how().to_owned(),
                absent: absent(contender),
            })
            .collect();
        let contenders: Vec<Contender> =
            Contender::ALL.into_iter().filter(|contender| absent(*contender).is_none()).collect();
        if contenders.is_empty() || args.rounds == 0 {
            return Err("there is nothing left to measure".to_owned());
        }
        if !(args.gb > 0.0 && args.gb <= 1024.0) {
            return Err("--gb must be above 0 and at most 1024".to_owned());
        }
        if args.primaries.iter().any(|count| !(2..=100).contains(count)) {
            return Err("--primaries must be between 2 and 100".to_owned());
        }
        Ok(Self { args, engine, entries, contenders })
    }

    fn experiment(&self) -> &'static str {
        match (self.args.nearly_empty, self.args.saturate, self.args.small_keys) {
            (true, ..) => "nearly empty",
            (_, true, _) => "saturate",
            (.., true) => "small keys",
            _ => "scale",
        }
    }

    fn settings(&self) -> Vec<Setting> {
        let rate = self.args.rate.max(1);
        if self.args.nearly_empty {
            return self.args.primaries.iter().map(|&primaries| nearly_empty(primaries)).collect();
        }
        if self.args.saturate {
            return vec![small_keys(SATURATED_KEYS, SLOTS_MOVED, Pace::Saturate(PIPELINE))];
        }
        if self.args.small_keys {
            return vec![small_keys(2 * SMALL_KEYS, 2 * SLOTS_MOVED, Pace::Rate(rate))];
        }
        let mut settings = Vec::new();
        if !self.args.only_load {
            settings.push(scale(self.args.gb, None));
        }
        if self.args.rate > 0 {
            settings.push(scale(self.args.gb, Some(Pace::Rate(rate))));
        }
        settings
    }

    fn measure(&self, interrupt: &Interrupt) -> anyhow::Result<Exit> {
        let machine = Machine::of_this(self.engine);
        let mut out = std::io::stdout();
        if !self.args.json {
            writeln!(out, "{}\n\nContenders, all on loopback:", machine.describe())?;
            for entry in &self.entries {
                let what = entry.absent.as_ref().map_or(&entry.how, |reason| reason);
                writeln!(out, "  {:<18} {what}", entry.name)?;
            }
        }
        let mut cases = Vec::new();
        for setting in self.settings() {
            for measured in self.measure_setting(&setting, interrupt)? {
                if !self.args.json {
                    writeln!(out, "\n{}", measured.table())?;
                }
                cases.push(measured);
            }
        }
        if let Some(file) = &self.args.svg {
            let columns: Vec<_> =
                cases.iter().map(CaseReport::panels).filter(|panels| !panels.is_empty()).collect();
            let title = format!("{}: throughput while slots move", machine.engine);
            std::fs::write(file, chart::svg(&title, &columns))
                .with_context(|| format!("write {}", file.display()))?;
        }
        let report = Report {
            bench: "reshard",
            experiment: self.experiment(),
            machine,
            rounds: self.args.rounds,
            replicas: usize::from(self.args.replicas),
            contenders: self.entries.clone(),
            cases,
        };
        if self.args.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        }
        Ok(exit_of(&report))
    }

    fn measure_setting(&self, setting: &Setting, interrupt: &Interrupt) -> anyhow::Result<Vec<CaseReport>> {
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); setting.goals.len()];
        let mut fleet: Option<Fleet> = None;
        for round in 1..=self.args.rounds {
            let mut order = self.contenders.clone();
            let shift = (round - 1) as usize % order.len();
            order.rotate_left(shift);
            for contender in order {
                let ready = match fleet.take() {
                    Some(used) => used,
                    None => self.start(setting, interrupt)?,
                };
                let mut is_usable = setting.is_round_trip;
                for ((goal, case), runs) in setting.goals.iter().zip(&mut runs) {
                    let run = self.take_turn(contender, round, &ready, setting, goal, interrupt)?;
                    eprintln!("{}: round {round} of {}: {}", case.name, self.args.rounds, describe(&run));
                    let has_moved = run.outcome == Outcome::Moved;
                    runs.push(run);
                    if !has_moved {
                        is_usable = false;
                        break;
                    }
                }
                fleet = is_usable.then_some(ready);
            }
        }
        Ok(setting
            .goals
            .iter()
            .zip(runs)
            .map(|((_, case), runs)| CaseReport::of(case.clone(), &self.contenders, runs))
            .collect())
    }

    fn start(&self, setting: &Setting, interrupt: &Interrupt) -> anyhow::Result<Fleet> {
        let mut directives = vec![
            ("cluster-node-timeout", NODE_TIMEOUT_MS.to_string()),
            ("repl-diskless-sync-delay", SYNC_DELAY_S.to_string()),
        ];
        if let Some(threads) = self.args.io_threads {
            directives.push(("io-threads", threads.to_string()));
        }
        directives.extend(self.args.server_arg.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let replicas = usize::from(self.args.replicas);
        let fleet = Fleet::start(self.engine, replicas, &setting.layout, &directives)?;
        let Content { keys, value_bytes, .. } = setting.content;
        eprintln!(
            "filling {} nodes with {} keys, {}",
            fleet.cluster.nodes().len(),
            format_count(keys),
            format_bytes(keys * value_bytes as u64)
        );
        fleet.fill(&setting.content, interrupt)?;
        Ok(fleet)
    }

    fn take_turn(
        &self,
        contender: Contender,
        round: u32,
        fleet: &Fleet,
        setting: &Setting,
        goal: &Goal,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Run> {
        interrupt.check()?;
        let scratch = tempfile::Builder::new().prefix("whimbrel-bench-").tempdir()?;
        let limit = Duration::from_secs(self.args.limit);
        let turn = Allotment {
            fleet,
            goal,
            more_args: &self.args.whimbrel_arg,
            limit,
            scratch: scratch.path(),
            interrupt,
        };
        let load = match setting.pace {
            Some(pace) => Some(start_load(fleet, setting, pace, self.args.clients)?),
            None => None,
        };
        if load.is_some() {
            thread::sleep(BEFORE);
        }
        let cpu_before = servers_cpu(fleet)?;
        let begin = load.as_ref().map(Load::elapsed);
        let ran = contender.run(&turn)?;
        let end = load.as_ref().map(Load::elapsed);
        let servers_cpu_s = servers_cpu(fleet)? - cpu_before;
        if load.is_some() {
            thread::sleep(AFTER);
        }
        let clients = load.zip(begin.zip(end)).map(|(load, (begin, end))| clients_of(load, begin, end));
        let (wall_s, tool_cpu_s, report, outcome) = match ran {
            Ran::Done { wall, tool_cpu, report } => {
                let outcome = match fleet.problem(setting.content.keys)? {
                    None if !has_reached(fleet, goal)? => Outcome::Wrong("not all slots moved".to_owned()),
                    None => Outcome::Moved,
                    Some(problem) => Outcome::Wrong(problem),
                };
                (Some(wall.as_secs_f64()), tool_cpu.map(|cpu| cpu.as_secs_f64()), report, outcome)
            }
            Ran::TimedOut => (None, None, None, Outcome::TimedOut { limit_s: limit.as_secs() }),
            Ran::Failed(reason) => (None, None, None, Outcome::Failed(reason)),
        };
        Ok(Run {
            contender: contender.name(),
            round,
            outcome,
            wall_s,
            tool_cpu_s,
            servers_cpu_s,
            report,
            clients,
        })
    }
}

/// Three shards become four and three again.
fn scale(gb: f64, pace: Option<Pace>) -> Setting {
    let keys = (gb * f64::from(1 << 30) / VALUE_BYTES as f64).round() as u64;
    let load = match pace {
        Some(Pace::Rate(rate)) => format!("{} commands/s", format_count(u64::from(rate))),
        _ => "no load".to_owned(),
    };
    let case = |name: &str| Case {
        name: format!("{name} shards, {load}"),
        slots: u64::from(SLOTS) / SHARDS as u64,
        keys: keys / SHARDS as u64,
        bytes: keys / SHARDS as u64 * VALUE_BYTES as u64,
    };
    Setting {
        content: Content { names: Names::Everywhere, keys, value_bytes: VALUE_BYTES },
        layout: even_layout(SHARDS - 1, SHARDS),
        goals: vec![(Goal::Out, case("3 to 4")), (Goal::In, case("4 to 3"))],
        pace,
        is_round_trip: true,
    }
}

/// Slots with hardly a key go from the first to the second of many primaries, neither of which has others
/// only.
fn nearly_empty(primaries: usize) -> Setting {
    let rest = even_layout(primaries, primaries);
    // The first has the moving slots, and its share of what is left over; all share that evenly.
    let stretch = |slot: u16| {
        let left = u32::from(SLOTS - SLOTS_MOVED);
        SLOTS_MOVED
            + u16::try_from(u32::from(slot) * left / u32::from(SLOTS)).expect("below the number of slots")
    };
    let mut layout: Layout = rest
        .into_iter()
        .map(|ranges| {
            ranges.into_iter().map(|range| stretch(*range.start())..=stretch(*range.end() + 1) - 1).collect()
        })
        .collect();
    layout[0].insert(0, 0..=SLOTS_MOVED - 1);
    let keys = NEARLY_EMPTY_KEYS * u64::from(SLOTS_MOVED) / u64::from(SLOTS);
    let case = Case {
        name: format!("nearly empty slots, {primaries} primaries"),
        slots: u64::from(SLOTS_MOVED),
        keys,
        bytes: keys * NEARLY_EMPTY_BYTES as u64,
    };
    Setting {
        content: Content {
            names: Names::Everywhere,
            keys: NEARLY_EMPTY_KEYS,
            value_bytes: NEARLY_EMPTY_BYTES,
        },
        layout,
        goals: vec![(Goal::Slots(SLOTS_MOVED), case)],
        pace: None,
        is_round_trip: false,
    }
}

/// Small keys in the first `slots` slots of a source that has half of all; the first 4096 of them move.
fn small_keys(keys: u64, slots: u16, pace: Pace) -> Setting {
    let moved = keys * u64::from(SLOTS_MOVED) / u64::from(slots);
    let load = match pace {
        Pace::Rate(rate) => format!("{} commands/s", format_count(u64::from(rate))),
        Pace::Saturate(pipeline) => format!("writers without pause, {pipeline} SET at a time"),
    };
    let case = Case {
        name: format!("small keys, {load}"),
        slots: u64::from(SLOTS_MOVED),
        keys: moved,
        bytes: moved * SMALL_BYTES as u64,
    };
    Setting {
        content: Content { names: names_within(0..=slots - 1), keys, value_bytes: SMALL_BYTES },
        layout: even_layout(2, 2),
        goals: vec![(Goal::Slots(SLOTS_MOVED), case)],
        pace: Some(pace),
        is_round_trip: false,
    }
}

fn start_load(fleet: &Fleet, setting: &Setting, pace: Pace, clients: u32) -> anyhow::Result<Load> {
    let mut owner_of = vec![0; usize::from(SLOTS)];
    for (index, slots) in fleet.slots()?.into_iter().enumerate() {
        for slot in slots {
            owner_of[usize::from(slot)] = index;
        }
    }
    let content = setting.content.clone();
    Ok(Load::start(&Plan { addresses: fleet.addresses(), owner_of, content, clients, pace }))
}

fn clients_of(load: Load, begin: Duration, end: Duration) -> Clients {
    let recorded = load.stop();
    Clients {
        // Connecting takes its time.
        before: recorded.latencies(&(BEFORE / 4..begin)),
        during: recorded.latencies(&(begin..end)),
        after_max_ms: recorded.latencies(&(end..end + AFTERMATH)).max_ms,
        moved: recorded.moved,
        faults: recorded.faults.clone(),
        window_s: (begin.as_secs_f64(), end.as_secs_f64()),
        per_100_ms: recorded.throughput(),
    }
}

fn has_reached(fleet: &Fleet, goal: &Goal) -> anyhow::Result<bool> {
    let slots = fleet.slots()?;
    let last = slots.len() - 1;
    Ok(match goal {
        // Tools leave a few slots where they are: those of 2 % are no difference to them.
        Goal::Out => slots[last].len() * slots.len() * 100 >= usize::from(SLOTS) * 97,
        Goal::In => slots[last].is_empty(),
        Goal::Slots(count) => slots[1].iter().filter(|slot| *slot < count).count() == usize::from(*count),
    })
}

fn servers_cpu(fleet: &Fleet) -> anyhow::Result<f64> {
    let seconds = fleet.cluster.nodes().iter().map(Server::cpu_seconds).collect::<Result<Vec<_>, _>>()?;
    Ok(seconds.into_iter().sum())
}

fn describe(run: &Run) -> String {
    let how = match (&run.outcome, run.wall_s) {
        (Outcome::Moved, Some(wall_s)) => format!("{wall_s:.2} s"),
        (Outcome::Wrong(what), Some(wall_s)) => format!("{wall_s:.2} s, WRONG: {what}"),
        (Outcome::TimedOut { limit_s }, _) => format!("stopped after {limit_s} s"),
        (Outcome::Failed(reason), _) => format!("FAILED: {reason}"),
        (Outcome::Moved | Outcome::Wrong(_), None) => "not timed".to_owned(),
    };
    let clients = run.clients.as_ref().map_or_else(String::new, |clients| {
        format!(
            ", {:.0} commands/s, p99.9 {:.1} ms, longest {:.0} ms, errors: {}",
            clients.during.per_s,
            clients.during.p999_ms,
            clients.during.max_ms.max(clients.after_max_ms),
            faults_in_words(&clients.faults)
        )
    });
    format!("{} {how}{clients}", run.contender)
}

/// Only whimbrel's own results decide.
fn exit_of(report: &Report) -> Exit {
    let ours = Contender::ALL.into_iter().filter(|contender| contender.is_ours());
    let ours: Vec<&str> = ours.map(Contender::name).collect();
    report
        .cases
        .iter()
        .flat_map(|case| &case.runs)
        .filter(|run| ours.contains(&run.contender))
        .map(|run| match run.outcome {
            Outcome::Moved => Exit::Success,
            Outcome::Wrong(_) => Exit::Different,
            Outcome::TimedOut { .. } | Outcome::Failed(_) => Exit::Interrupted,
        })
        .find(|exit| *exit != Exit::Success)
        .unwrap_or(Exit::Success)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: BenchReshardArgs,
    }

    fn args(words: &[&str]) -> BenchReshardArgs {
        Cli::parse_from(["bench"].iter().chain(words)).args
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let refused = |words: &[&str]| Bench::of(&args(words)).err().unwrap_or_default();
        assert_eq!(refused(&[]), "");
        assert!(refused(&["--engine", "redis-5.0"]).contains("valkey-9.1"));
        assert!(refused(&["--without", "rsync"]).contains("cli-atomic"));
        assert!(refused(&["--without", "legacy,whimbrel-external"]).contains("nothing left"));
        assert!(refused(&["--gb", "0"]).contains("--gb"));
        assert!(Cli::try_parse_from(["bench", "--saturate", "--small-keys"]).is_err());
    }

    #[test]
    fn layouts_of_all_experiments_name_every_slot_once() {
        let words: [&[&str]; 4] = [&[], &["--nearly-empty"], &["--saturate"], &["--small-keys"]];
        for words in words {
            let args = args(words);
            for setting in Bench::of(&args).expect("known names").settings() {
                let mut named: Vec<u16> = setting.layout.iter().flatten().cloned().flatten().collect();
                named.sort_unstable();
                assert!(named.iter().copied().eq(0..SLOTS), "{words:?}");
            }
        }
    }

    #[test]
    fn nearly_empty_slots_leave_both_nodes_others() {
        for primaries in [2, 5, 20] {
            let setting = nearly_empty(primaries);
            let count = |index: usize| setting.layout[index].iter().map(|range| range.len()).sum::<usize>();
            let share = usize::from(SLOTS - SLOTS_MOVED) / primaries;
            assert!(count(0) >= usize::from(SLOTS_MOVED) + share && count(1) >= share);
        }
    }

    #[test]
    fn contenders_that_an_engine_does_not_have_are_listed_as_absent() {
        let args = args(&["--engine", "valkey-8.1"]);
        let bench = Bench::of(&args).expect("known names");
        assert_eq!(bench.contenders, [Contender::Legacy, Contender::External]);
        assert_eq!(bench.entries.len(), Contender::ALL.len());
        let native = bench.entries.iter().find(|entry| entry.name == "whimbrel-native");
        assert!(native.is_some_and(|entry| entry.absent.is_some()));
    }
}
