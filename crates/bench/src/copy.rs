//! `./dev bench copy`: ways to copy, side by side, in turns.

use std::fmt::Display;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use redis::{Connection, cmd};
use whimbrel_core::units::{format_count, parse_count};
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::check::{self, Comparison};
use whimbrel_loadgen::data::{self, DataSet};
use whimbrel_loadgen::interrupt::{self, Interrupt};
use whimbrel_loadgen::program::find_on_path;

use crate::contender::{Allotment, Contender, Ran};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::report::{Entry, Outcome, Report, Run, SetReport, Summary};

/// Keys that are compared in full after each turn.
const SAMPLE_KEYS: usize = 200;

/// The least time that every contender has.
const LIMIT_MIN: Duration = Duration::from_secs(120);

/// A contender may take this many times as long as the slowest so far.
const LIMIT_FACTOR: u32 = 10;

/// A snapshot that nobody reads any more is given up at once; this is for busy machines.
const SNAPSHOT_END_TIMEOUT: Duration = Duration::from_secs(30);

/// A source of many large values takes its time for some commands.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// `./dev bench copy`.
#[derive(Debug, Args)]
pub struct BenchCopyArgs {
    /// Server to measure with: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0")]
    pub engine: String,

    /// Data sets: strings (100 bytes each), mixed (all types), large (16 KiB strings); repeatable or with
    /// commas
    #[arg(long, value_delimiter = ',', default_values = ["strings", "mixed", "large"])]
    pub data: Vec<String>,

    /// Keys in the set of short strings; the other sets follow in proportion
    #[arg(long, default_value = "1000000", value_parser = parse_count)]
    pub keys: u64,

    /// Counted rounds; each measures every contender once
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,

    /// Contenders to leave out; repeatable or with commas
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<String>,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Measures, and prints tables or one JSON document on standard output; what happens meanwhile on standard
/// error.
///
/// # Errors
/// When servers do not start or go away, or something of our own fails. A contender that fails or loses keys
/// is a result and no error; if it is whimbrel, the exit code says so.
pub fn run(args: &BenchCopyArgs) -> anyhow::Result<Exit> {
    match Plan::of(args) {
        Ok(plan) => interrupt::run(Exit::Stopped, |interrupt| plan.measure(args, interrupt)),
        Err(reason) => {
            eprintln!("error: {reason}");
            Ok(Exit::Usage)
        }
    }
}

/// What was asked for.
#[derive(Debug)]
struct Plan {
    engine: Engine,
    sets: Vec<DataSet>,
    entries: Vec<Entry>,
    contenders: Vec<Contender>,
}

impl Plan {
    fn of(args: &BenchCopyArgs) -> Result<Self, String> {
        let engine = Engine::from_name(&args.engine)
            .ok_or_else(|| unknown("engine", &args.engine, Engine::ALL.map(Engine::name)))?;
        let sets = args
            .data
            .iter()
            .map(|name| {
                DataSet::from_name(name)
                    .ok_or_else(|| unknown("data set", name, DataSet::MEASURED.map(DataSet::name)))
            })
            .collect::<Result<_, _>>()?;
        let without = args
            .without
            .iter()
            .map(|name| {
                Contender::from_name(name)
                    .ok_or_else(|| unknown("contender", name, Contender::ALL.map(Contender::name)))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let entries: Vec<Entry> = Contender::ALL
            .into_iter()
            .map(|contender| Entry {
                name: contender.name(),
                how: contender.how(),
                absent: why_absent(contender, &without),
            })
            .collect();
        let contenders: Vec<Contender> = Contender::ALL
            .into_iter()
            .zip(&entries)
            .filter_map(|(contender, entry)| entry.absent.is_none().then_some(contender))
            .collect();
        if contenders.is_empty() || args.rounds == 0 {
            return Err("there is nothing left to measure".to_owned());
        }
        Ok(Self { engine, sets, entries, contenders })
    }

    fn measure(self, args: &BenchCopyArgs, interrupt: &Interrupt) -> anyhow::Result<Exit> {
        let machine = Machine::of_this(self.engine);
        let mut out = std::io::stdout();
        if !args.json {
            writeln!(out, "{}\n\nContenders, all on loopback:", machine.describe())?;
            for entry in &self.entries {
                let what = entry.absent.as_ref().map_or(&entry.how, |reason| reason);
                writeln!(out, "  {:<17} {what}", entry.name)?;
            }
        }
        let mut data_sets = Vec::new();
        for set in &self.sets {
            let measured = self.measure_set(*set, args, interrupt)?;
            if !args.json {
                writeln!(out, "\n{}", measured.table())?;
            }
            data_sets.push(measured);
        }
        let report =
            Report { bench: "copy", machine, rounds: args.rounds, contenders: self.entries, data_sets };
        if args.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        }
        Ok(exit_of(&report))
    }

    fn measure_set(
        &self,
        set: DataSet,
        args: &BenchCopyArgs,
        interrupt: &Interrupt,
    ) -> anyhow::Result<SetReport> {
        let keys = set.keys(args.keys);
        let source = Server::builder(self.engine)
            .name("source")
            .arg("repl-diskless-sync", "yes")
            .arg("repl-diskless-sync-delay", "0")
            .start()?;
        let mut connection = patient_connection(&source)?;
        eprintln!("{}: filling the source with {} keys", set.name(), format_count(keys));
        data::fill(&mut connection, set, keys, interrupt)?;
        let source_memory_bytes = memory_bytes(&mut connection)?;

        let mut runs: Vec<Run> = Vec::new();
        for round in 1..=args.rounds {
            let mut order = self.contenders.clone();
            let shift = (round - 1) as usize % order.len();
            order.rotate_left(shift);
            for (contender, place) in order.into_iter().zip(1..) {
                let limit = limit(&runs);
                let run = self
                    .take_turn(contender, &source, keys, limit, interrupt)
                    .map(|(outcome, measured)| measured.into_run(contender, round, place, outcome))?;
                eprintln!("{}: round {round} of {}: {}", set.name(), args.rounds, describe(&run));
                runs.push(run);
            }
        }
        let results = self.contenders.iter().map(|contender| Summary::of(*contender, keys, &runs)).collect();
        Ok(SetReport { name: set.name(), content: set.content(), keys, source_memory_bytes, results, runs })
    }

    /// Every turn has a target of its own, newly started, so that all begin alike.
    fn take_turn(
        &self,
        contender: Contender,
        source: &Server,
        keys: u64,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(Outcome, Measured)> {
        interrupt.check()?;
        let target = Server::builder(self.engine).name("target").start()?;
        let scratch = tempfile::Builder::new().prefix("whimbrel-bench-").tempdir()?;
        let (source_before, target_before) = (source.cpu_seconds()?, target.cpu_seconds()?);
        let turn = Allotment { source, target: &target, keys, limit, scratch: scratch.path(), interrupt };
        let ran = contender.run(&turn)?;
        interrupt.check()?;

        let mut source_connection = patient_connection(source)?;
        // Only when a process that was forked has ended its time counts as the server's.
        wait_for_snapshot_end(&mut source_connection)?;
        let source_cpu_s = source.cpu_seconds()? - source_before;
        let target_cpu_s = target.cpu_seconds()? - target_before;
        let check = check::compare(&mut source_connection, &mut patient_connection(&target)?, SAMPLE_KEYS)
            .with_context(|| format!("compare after {}", contender.name()))?;
        let (wall_s, tool_cpu_s, outcome) = match ran {
            Ran::Done { wall, tool_cpu } => {
                let outcome = if check.is_equal() { Outcome::Equal } else { Outcome::Wrong };
                (Some(wall.as_secs_f64()), tool_cpu.map(|cpu| cpu.as_secs_f64()), outcome)
            }
            Ran::TimedOut => (None, None, Outcome::TimedOut { limit_s: limit.as_secs() }),
            Ran::Failed(reason) => (None, None, Outcome::Failed { reason }),
        };
        Ok((outcome, Measured { wall_s, tool_cpu_s, source_cpu_s, target_cpu_s, check }))
    }
}

/// The numbers of one turn.
struct Measured {
    wall_s: Option<f64>,
    tool_cpu_s: Option<f64>,
    source_cpu_s: f64,
    target_cpu_s: f64,
    check: Comparison,
}

impl Measured {
    fn into_run(self, contender: Contender, round: u32, place: usize, outcome: Outcome) -> Run {
        Run {
            contender: contender.name(),
            round,
            place,
            outcome,
            wall_s: self.wall_s,
            tool_cpu_s: self.tool_cpu_s,
            source_cpu_s: self.source_cpu_s,
            target_cpu_s: self.target_cpu_s,
            check: self.check,
        }
    }
}

fn unknown<const N: usize>(what: &str, name: &str, known: [impl Display; N]) -> String {
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    format!("unknown {what} {name:?}: there are {}", known.join(", "))
}

fn why_absent(contender: Contender, without: &[Contender]) -> Option<String> {
    if without.contains(&contender) {
        return Some("absent: left out by --without".to_owned());
    }
    let program = contender.needs()?;
    find_on_path(program).is_none().then(|| format!("absent: no {program} on PATH"))
}

fn patient_connection(server: &Server) -> anyhow::Result<Connection> {
    let connection = server.try_connection()?;
    connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
    Ok(connection)
}

fn memory_bytes(connection: &mut Connection) -> anyhow::Result<u64> {
    let info: String = cmd("INFO").arg("memory").query(connection)?;
    info.lines()
        .find_map(|line| line.strip_prefix("used_memory:")?.parse().ok())
        .context("the source does not report how much memory it uses")
}

fn limit(runs: &[Run]) -> Duration {
    runs.iter()
        .filter_map(|run| run.wall_s)
        .reduce(f64::max)
        .map_or(LIMIT_MIN, |slowest| LIMIT_MIN.max(Duration::from_secs_f64(slowest) * LIMIT_FACTOR))
}

fn wait_for_snapshot_end(connection: &mut Connection) -> anyhow::Result<()> {
    let deadline = Instant::now() + SNAPSHOT_END_TIMEOUT;
    while Instant::now() < deadline {
        let info: String = cmd("INFO").arg("persistence").query(connection)?;
        if info.lines().any(|line| line == "rdb_bgsave_in_progress:0") {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn describe(run: &Run) -> String {
    let how = match (&run.outcome, run.wall_s) {
        (Outcome::Equal, Some(wall_s)) => format!("{wall_s:.2} s, equal"),
        (Outcome::Wrong, Some(wall_s)) => format!(
            "{wall_s:.2} s, WRONG: {} of {} keys, {} of {} sampled differ",
            format_count(run.check.target_keys),
            format_count(run.check.source_keys),
            run.check.different,
            run.check.sampled
        ),
        (Outcome::TimedOut { limit_s }, _) => format!("stopped after {limit_s} s"),
        (Outcome::Failed { reason }, _) => format!("FAILED: {reason}"),
        (Outcome::Equal | Outcome::Wrong, None) => "not timed".to_owned(),
    };
    format!("{} {how}", run.contender)
}

/// Only whimbrel's own results decide.
fn exit_of(report: &Report) -> Exit {
    report
        .data_sets
        .iter()
        .flat_map(|set| &set.runs)
        .filter(|run| {
            [Contender::Whimbrel, Contender::WhimbrelSync].map(Contender::name).contains(&run.contender)
        })
        .map(|run| match run.outcome {
            Outcome::Equal => Exit::Success,
            Outcome::Wrong => Exit::Different,
            Outcome::TimedOut { .. } | Outcome::Failed { .. } => Exit::Interrupted,
        })
        .find(|exit| *exit != Exit::Success)
        .unwrap_or(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(engine: &str, data: &str, without: &[&str]) -> BenchCopyArgs {
        BenchCopyArgs {
            engine: engine.to_owned(),
            data: vec![data.to_owned()],
            keys: 1000,
            rounds: 1,
            without: without.iter().map(|name| (*name).to_owned()).collect(),
            json: false,
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let refused = |args: &BenchCopyArgs| Plan::of(args).err().unwrap_or_default();
        assert!(Plan::of(&args("redis-7.0", "mixed", &["migrate"])).is_ok());
        assert!(refused(&args("redis-5.0", "mixed", &[])).contains("valkey-9.1"));
        assert!(refused(&args("redis-7.0", "tiny", &[])).contains("strings"));
        assert!(refused(&args("redis-7.0", "mixed", &["rsync"])).contains("replicaof"));
        let everyone = Contender::ALL.map(Contender::name);
        assert!(refused(&args("redis-7.0", "mixed", &everyone)).contains("nothing left"));
    }

    #[test]
    fn who_is_left_out_is_listed_with_the_reason() {
        let plan = Plan::of(&args("redis-7.0", "mixed", &["migrate"])).expect("known names");
        assert_eq!(plan.entries.len(), Contender::ALL.len());
        let migrate = plan.entries.iter().find(|entry| entry.name == "migrate").expect("it is listed");
        assert!(migrate.absent.as_ref().is_some_and(|reason| reason.contains("--without")));
        assert!(!plan.contenders.contains(&Contender::Migrate));
    }

    #[test]
    fn the_slowest_run_sets_the_limit() {
        assert_eq!(limit(&[]), LIMIT_MIN);
    }
}
