//! `./dev bench pattern`: some of a source's keys, chosen by a pattern.
//!
//! The two tests of an article about a copier of keys that grew from one loop to three stages with thirty
//! workers each: 10,000 and 367,610 of 453,967 keys. Both of its programs are contenders here, written with
//! the same commands: `SCAN` with `MATCH`, `PTTL` and `DUMP` in one round trip, `RESTORE`, key by key.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use parking_lot::Mutex;
use redis::{Connection, cmd};
use serde::Serialize;
use whimbrel_core::units::{format_count, parse_count};
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::child::{self, Ended};
use whimbrel_loadgen::content::noise;
use whimbrel_loadgen::interrupt::{self, Interrupt};
use whimbrel_loadgen::program::{find_on_path, last_words};

use crate::binaries::whimbrel_binary;
use crate::exit::Exit;
use crate::machine::Machine;
use crate::report::median;

/// Keys of the source in the article.
const KEYS: u64 = 453_967;

/// The two tests: how many of [`KEYS`] are chosen, and the names that they begin with.
const CHOSEN: [(u64, &str); 2] = [(10_000, "few"), (367_610, "many")];

/// Bytes of a value. Where the article does not say it, short ones: a key costs its round trips.
const VALUE_BYTES: usize = 100;

/// How many workers each of the article's stages has.
const WORKERS: usize = 30;

/// `COUNT` of the article's `SCAN`.
const SCAN_COUNT: u32 = 100;

/// After this time a contender is stopped.
const LIMIT: Duration = Duration::from_secs(900);

/// Keys that are written to the source in one round trip.
const FILL_AT_ONCE: u64 = 1_000;

/// `./dev bench pattern`.
#[derive(Debug, Args)]
pub struct BenchPatternArgs {
    /// Server to measure with: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0")]
    pub engine: String,

    /// Keys in the source; those that are chosen follow in proportion
    #[arg(long, default_value_t = KEYS, value_parser = parse_count)]
    pub keys: u64,

    /// Counted rounds; each measures every contender once
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// A way to copy keys that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    Whimbrel,
    ThreeRights,
    Loop,
    Stages,
    GoRedisMigrate,
}

impl Contender {
    const ALL: [Self; 5] =
        [Self::Whimbrel, Self::ThreeRights, Self::Loop, Self::Stages, Self::GoRedisMigrate];

    fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::ThreeRights => "whimbrel, 3 rights",
            Self::Loop => "one loop",
            Self::Stages => "30 and 30 workers",
            Self::GoRedisMigrate => "go-redis-migrate",
        }
    }

    fn how(self) -> String {
        match self {
            Self::Whimbrel => "whimbrel copy SOURCE TARGET --match PATTERN; all else by default".to_owned(),
            Self::ThreeRights => "the same, as a user with SCAN, PTTL and DUMP and nothing else".to_owned(),
            Self::Loop => "the article's first program: one key after the other".to_owned(),
            Self::Stages => format!(
                "its second: one scanner, {WORKERS} workers that dump and {WORKERS} that restore, each with \
                    a connection"
            ),
            Self::GoRedisMigrate => "the tool of that name, all else by default".to_owned(),
        }
    }

    fn is_there(self) -> bool {
        self != Self::GoRedisMigrate || find_on_path("go-redis-migrate").is_some()
    }
}

/// One turn of one contender.
#[derive(Debug, Clone, Serialize)]
struct Run {
    contender: &'static str,
    round: u32,
    /// Seconds by the clock; `None` where it failed.
    wall_s: Option<f64>,
    /// What came of it.
    result: String,
}

/// One of the two tests.
#[derive(Debug, Serialize)]
struct Experiment {
    /// Keys that are chosen.
    chosen: u64,
    /// Keys that there are.
    keys: u64,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    rounds: u32,
    experiments: Vec<Experiment>,
}

const EQUAL: &str = "equal";

/// Measures, and prints tables or one JSON document on standard output.
///
/// # Errors
/// When servers do not start or go away, or something of our own fails. A contender that fails is a result;
/// if it is whimbrel, the exit code says so.
pub fn run(args: &BenchPatternArgs) -> anyhow::Result<Exit> {
    let Some(engine) = Engine::from_name(&args.engine).filter(|_| args.rounds > 0 && args.keys >= 100) else {
        eprintln!("error: name one of the engines, one round and 100 keys at least");
        return Ok(Exit::Usage);
    };
    interrupt::run(Exit::Stopped, |interrupt| measure(args, engine, interrupt))
}

fn measure(args: &BenchPatternArgs, engine: Engine, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let source = Server::builder(engine).name("source").start()?;
    let rights = ["ACL", "SETUSER", "three", "reset", "on", ">three", "~*", "+scan", "+pttl", "+dump"];
    source.call(&rights);
    let chosen = |of: u64| (of as f64 * args.keys as f64 / KEYS as f64).round() as u64;
    eprintln!("filling the source with {} keys", format_count(args.keys));
    fill(&source, args.keys, CHOSEN.map(|(of, name)| (chosen(of), name)), interrupt)?;
    let mut experiments = Vec::new();
    for (of, name) in CHOSEN {
        let mut runs = Vec::new();
        for round in 1..=args.rounds {
            let mut order: Vec<Contender> = Contender::ALL.into_iter().filter(|c| c.is_there()).collect();
            let shift = (round - 1) as usize % order.len();
            order.rotate_left(shift);
            for contender in order {
                let run = take_turn(contender, &source, engine, (name, chosen(of)), round, interrupt)?;
                let wall = run.wall_s.map_or_else(|| "-".to_owned(), |s| format!("{s:.2} s"));
                eprintln!("{name}: round {round}: {}: {wall}, {}", run.contender, run.result);
                runs.push(run);
            }
        }
        experiments.push(Experiment { chosen: chosen(of), keys: args.keys, runs });
    }
    let machine = Machine::of_this(engine);
    let is_right = |run: &Run| !run.contender.starts_with("whimbrel") || run.result == EQUAL;
    let all_right = experiments.iter().flat_map(|experiment| &experiment.runs).all(is_right);
    let mut out = std::io::stdout();
    if args.json {
        let report = Report { bench: "pattern", machine, rounds: args.rounds, experiments };
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(out, "{}\n\nContenders, all on loopback:", machine.describe())?;
        for contender in Contender::ALL {
            let absent = if contender.is_there() { "" } else { "absent, not on PATH: " };
            writeln!(out, "  {:<19} {absent}{}", contender.name(), contender.how())?;
        }
        experiments.iter().try_for_each(|experiment| write!(out, "\n{}", table(experiment)))?;
    }
    Ok(if all_right { Exit::Success } else { Exit::Different })
}

/// Of the names first those of the first test, then those of the second; the rest matches neither.
fn fill(source: &Server, keys: u64, chosen: [(u64, &str); 2], interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut connection = source.try_connection()?;
    let [(few, first), (many, second)] = chosen;
    let mut next = 0;
    while next < keys {
        let mut pipeline = redis::pipe();
        for number in next..(next + FILL_AT_ONCE).min(keys) {
            let name = match number {
                n if n < few => first,
                n if n < few + many => second,
                _ => "other",
            };
            let command = pipeline.cmd("SET").arg(format!("{name}:{number:07}"));
            command.arg(noise(VALUE_BYTES, number));
            // Every tenth expires, far away.
            if number % 10 == 0 {
                command.arg("EX").arg(86_400 + number % 1_000);
            }
            command.ignore();
        }
        pipeline.exec(&mut connection)?;
        next += FILL_AT_ONCE;
        interrupt.check()?;
    }
    let found: u64 = cmd("DBSIZE").query(&mut connection)?;
    ensure!(found == keys, "the source should hold {keys} keys now, but holds {found}");
    Ok(())
}

fn take_turn(
    contender: Contender,
    source: &Server,
    engine: Engine,
    (name, chosen): (&str, u64),
    round: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<Run> {
    interrupt.check()?;
    let target = Server::builder(engine).name("target").start()?;
    let pattern = format!("{name}:*");
    let ended = match contender {
        Contender::Whimbrel => whimbrel(source.addr(), &target, &pattern, interrupt)?,
        Contender::ThreeRights => {
            whimbrel(format!("redis://three:three@{}", source.addr()), &target, &pattern, interrupt)?
        }
        Contender::GoRedisMigrate => go_redis_migrate(source, &target, &pattern, interrupt)?,
        Contender::Loop => timed(|| one_loop(source, &target, &pattern, interrupt))?,
        Contender::Stages => timed(|| stages(source, &target, &pattern, interrupt))?,
    };
    interrupt.check()?;
    let (wall_s, result) = match ended {
        Ok(wall) => (Some(wall.as_secs_f64()), compare(source, &target, (name, chosen))?),
        Err(reason) => (None, format!("FAILED: {reason}")),
    };
    Ok(Run { contender: contender.name(), round, wall_s, result })
}

/// How long it took, or why it gave up.
type Took = Result<Duration, String>;

fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Took> {
    let started = Instant::now();
    work()?;
    Ok(Ok(started.elapsed()))
}

fn whimbrel(from: String, target: &Server, pattern: &str, interrupt: &Interrupt) -> anyhow::Result<Took> {
    let mut command = whimbrel_binary()?;
    command.args(["copy", &from, &target.addr(), "--match", pattern, "--quiet"]);
    program(&mut command, interrupt)
}

fn go_redis_migrate(
    source: &Server,
    target: &Server,
    pattern: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<Took> {
    let path = find_on_path("go-redis-migrate").context("go-redis-migrate is no longer on PATH")?;
    let mut command = std::process::Command::new(std::path::absolute(path)?);
    command.arg("copy").args([source.addr(), target.addr()]).arg(format!("--pattern={pattern}"));
    program(&mut command, interrupt)
}

fn program(command: &mut std::process::Command, interrupt: &Interrupt) -> anyhow::Result<Took> {
    let scratch = tempfile::Builder::new().prefix("whimbrel-bench-").tempdir()?;
    let output = scratch.path().join("output");
    let file = File::create(&output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    command.current_dir(scratch.path()).env("XDG_STATE_HOME", scratch.path());
    Ok(match child::run(command, Some(LIMIT), interrupt)? {
        Ended::TimedOut => Err(format!("stopped after {} s", LIMIT.as_secs())),
        Ended::Exited { status, wall, .. } if status.success() => Ok(wall),
        Ended::Exited { status, .. } => {
            let output = String::from_utf8_lossy(&std::fs::read(&output)?).into_owned();
            Err(format!("{status}: {}", last_words(&output)))
        }
    })
}

/// A key as it travels: its name, how long it lives in milliseconds or 0, and its dump.
type Dumped = (Vec<u8>, i64, Vec<u8>);

fn dump(source: &mut Connection, key: Vec<u8>) -> anyhow::Result<Option<Dumped>> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("PTTL").arg(&key).cmd("DUMP").arg(&key);
    let (left_ms, dump): (i64, Option<Vec<u8>>) = pipeline.query(source)?;
    Ok(dump.map(|dump| (key, left_ms.max(0), dump)))
}

fn restore(target: &mut Connection, (key, left_ms, dump): Dumped) -> anyhow::Result<()> {
    Ok(cmd("RESTORE").arg(key).arg(left_ms).arg(dump).arg("REPLACE").exec(target)?)
}

/// Hands every key that matches on.
fn scan(
    source: &Server,
    pattern: &str,
    interrupt: &Interrupt,
    mut each: impl FnMut(Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut connection = source.try_connection()?;
    let mut cursor = 0_u64;
    loop {
        let mut page = cmd("SCAN");
        page.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        let (next, keys): (u64, Vec<Vec<u8>>) = page.query(&mut connection)?;
        keys.into_iter().try_for_each(&mut each)?;
        interrupt.check()?;
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

fn one_loop(source: &Server, target: &Server, pattern: &str, interrupt: &Interrupt) -> anyhow::Result<()> {
    let (mut reading, mut writing) = (source.try_connection()?, target.try_connection()?);
    scan(source, pattern, interrupt, |key| match dump(&mut reading, key)? {
        Some(dumped) => restore(&mut writing, dumped),
        None => Ok(()),
    })
}

fn stages(source: &Server, target: &Server, pattern: &str, interrupt: &Interrupt) -> anyhow::Result<()> {
    // Nothing waits between two stages, as in the article.
    let (keys, to_dump) = sync_channel::<Vec<u8>>(0);
    let (dumps, to_restore) = sync_channel::<Dumped>(0);
    let (to_dump, to_restore) = (Mutex::new(to_dump), Mutex::new(to_restore));
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            let dumps = dumps.clone();
            let (to_dump, to_restore) = (&to_dump, &to_restore);
            workers.push(scope.spawn(move || -> anyhow::Result<()> {
                let mut connection = source.try_connection()?;
                while let Some(key) = next(to_dump) {
                    let Some(dumped) = dump(&mut connection, key)? else { continue };
                    if dumps.send(dumped).is_err() {
                        break;
                    }
                }
                Ok(())
            }));
            workers.push(scope.spawn(move || -> anyhow::Result<()> {
                let mut connection = target.try_connection()?;
                while let Some(dumped) = next(to_restore) {
                    restore(&mut connection, dumped)?;
                }
                Ok(())
            }));
        }
        drop(dumps);
        let scanned = scan(source, pattern, interrupt, |key| Ok(keys.send(key)?));
        drop(keys);
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a worker has panicked"))??;
        }
        scanned
    })
}

/// The next one of a queue that several workers share.
fn next<T>(queue: &Mutex<Receiver<T>>) -> Option<T> {
    queue.lock().recv().ok()
}

/// The values of some keys, and whether each of them expires.
type Contents = (Vec<Option<Vec<u8>>>, Vec<bool>);

/// Looks at every key of the target, and at the same keys of the source.
fn compare(source: &Server, target: &Server, (name, chosen): (&str, u64)) -> anyhow::Result<String> {
    let (mut ours, mut theirs) = (source.try_connection()?, target.try_connection()?);
    let found: u64 = cmd("DBSIZE").query(&mut theirs)?;
    if found != chosen {
        return Ok(format!("{found} keys instead of {chosen}"));
    }
    let mut different = 0;
    let mut cursor = 0_u64;
    loop {
        let (next, keys): (u64, Vec<Vec<u8>>) =
            cmd("SCAN").arg(cursor).arg("COUNT").arg(FILL_AT_ONCE).query(&mut theirs)?;
        if !keys.is_empty() {
            let read = |connection: &mut Connection| -> anyhow::Result<Contents> {
                let values = cmd("MGET").arg(&keys).query(connection)?;
                let mut pipeline = redis::pipe();
                for key in &keys {
                    pipeline.cmd("PTTL").arg(key);
                }
                let left: Vec<i64> = pipeline.query(connection)?;
                Ok((values, left.into_iter().map(|ms| ms > 0).collect()))
            };
            let (left, right) = (read(&mut ours)?, read(&mut theirs)?);
            let is_same = |at: usize| {
                keys[at].starts_with(name.as_bytes())
                    && left.0[at] == right.0[at]
                    && left.1[at] == right.1[at]
            };
            different += (0..keys.len()).filter(|at| !is_same(*at)).count();
        }
        if next == 0 {
            break;
        }
        cursor = next;
    }
    Ok(if different == 0 { EQUAL.to_owned() } else { format!("{different} keys DIFFER") })
}

fn table(experiment: &Experiment) -> String {
    let Experiment { chosen, keys, runs } = experiment;
    let walls = |name: &str| -> Vec<f64> {
        runs.iter().filter(|run| run.contender == name).filter_map(|run| run.wall_s).collect()
    };
    let base = median(walls(Contender::Whimbrel.name()));
    let mut out = format!("{} of {} keys\n\n", format_count(*chosen), format_count(*keys));
    out.push_str("| contender          | median s | min – max s     | by whimbrel | keys/s    | result |\n");
    out.push_str("|--------------------|---------:|-----------------|------------:|----------:|--------|\n");
    for contender in Contender::ALL.into_iter().filter(|contender| contender.is_there()) {
        let name = contender.name();
        let walls = walls(name);
        let own = || runs.iter().filter(|run| run.contender == name);
        let result = own().find(|run| run.result != EQUAL).map_or(EQUAL, |run| &run.result);
        let of = |pick: fn(f64, f64) -> f64| walls.iter().copied().reduce(pick).unwrap_or_default();
        let (middle, least, most) = (median(walls.clone()).unwrap_or_default(), of(f64::min), of(f64::max));
        let ratio = base.filter(|base| *base > 0.0).map_or(0.0, |base| middle / base);
        let speed =
            if middle > 0.0 { format_count((*chosen as f64 / middle) as u64) } else { "-".to_owned() };
        let range = format!("{least:.2} – {most:.2}");
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {name:<18} | {middle:>8.2} | {range:<15} | {ratio:>11.1} | {speed:>9} | {result} |"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_ratios_and_the_worst_result() {
        let run = |contender: Contender, wall_s, result: &str| Run {
            contender: contender.name(),
            round: 1,
            wall_s: Some(wall_s),
            result: result.to_owned(),
        };
        let runs = vec![
            run(Contender::Whimbrel, 2.0, EQUAL),
            run(Contender::Loop, 20.0, EQUAL),
            run(Contender::Loop, 22.0, "7 keys DIFFER"),
        ];
        let table = table(&Experiment { chosen: 1_000, keys: 2_000, runs });
        assert!(table.contains("1,000 of 2,000 keys"), "{table}");
        assert!(table.contains("10.5") && table.contains("7 keys DIFFER"), "{table}");
    }
}
