//! `./dev bench latency`: how long clients of a source wait while it is copied, with `--max-latency` and
//! without.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use whimbrel_core::units::{format_count, parse_count};
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::content::{Content, Names, noise};
use whimbrel_loadgen::interrupt::{self, Interrupt};
use whimbrel_loadgen::load::{Latencies, Load, Pace, Plan};

use crate::binaries::whimbrel_binary;
use crate::exit::Exit;
use crate::machine::{Machine, engine};
use crate::report::aligned;

/// Connections of the load: enough for the rate where each answer takes as long as a limit allows.
const CLIENTS: u32 = 64;

/// How long the load is alone before a copy begins, and how long a copy has to find its pace.
const BEFORE: Duration = Duration::from_secs(3);
const SETTLES: Duration = Duration::from_secs(5);

/// Keys that are written to the source at once.
const BATCH: u64 = 1_000;

/// `./dev bench latency`.
#[derive(Debug, Args)]
pub struct BenchLatencyArgs {
    /// Servers to measure with: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0", value_parser = engine)]
    pub engine: Engine,

    /// Keys of the source
    #[arg(long, default_value = "1m", value_parser = parse_count)]
    pub keys: u64,

    /// Bytes of each value
    #[arg(long, default_value_t = 500)]
    pub value_bytes: usize,

    /// Commands a second of clients, one SET in eleven
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,

    /// Limits to copy with, in milliseconds; repeatable or with commas
    #[arg(long, value_delimiter = ',', default_values_t = [2, 5])]
    pub max_latency: Vec<u64>,

    /// How long each copy is measured, at most
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    rate: u32,
    runs: Vec<Run>,
}

/// A copy, and what clients met.
#[derive(Debug, Serialize)]
struct Run {
    limit_ms: Option<u64>,
    before: Latencies,
    during: Latencies,
    /// Of the 99th percentile meanwhile; `None` without a limit.
    times_limit: Option<f64>,
    keys_per_second: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// When servers do not start or go away, or whimbrel does not copy.
pub fn run(args: &BenchLatencyArgs) -> anyhow::Result<Exit> {
    interrupt::run(Exit::Stopped, |interrupt| measure(args, interrupt))
}

fn measure(args: &BenchLatencyArgs, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let machine = Machine::of_this(args.engine);
    let source = Server::builder(args.engine).name("source").start().context("start the source")?;
    let content = Content { names: Names::Everywhere, keys: args.keys, value_bytes: args.value_bytes };
    fill(&source, &content, interrupt)?;
    let mut runs = Vec::new();
    for limit_ms in std::iter::once(None).chain(args.max_latency.iter().copied().map(Some)) {
        runs.push(copy(args, &source, &content, limit_ms, interrupt)?);
    }
    let report = Report { bench: "latency", machine, rate: args.rate, runs };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => println!("{}\n\n{}", report.machine.describe(), table(&report.runs)),
    }
    Ok(Exit::Success)
}

fn fill(source: &Server, content: &Content, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut connection = source.try_connection()?;
    let value = noise(content.value_bytes, 7);
    for first in (0..content.keys).step_by(BATCH as usize) {
        interrupt.check()?;
        let mut batch = redis::pipe();
        for number in first..(first + BATCH).min(content.keys) {
            batch.cmd("SET").arg(content.names.of(number)).arg(&value).ignore();
        }
        batch.query::<()>(&mut connection)?;
    }
    Ok(())
}

fn copy(
    args: &BenchLatencyArgs,
    source: &Server,
    content: &Content,
    limit_ms: Option<u64>,
    interrupt: &Interrupt,
) -> anyhow::Result<Run> {
    let target = Server::builder(args.engine).name("target").start().context("start the target")?;
    let state = tempfile::tempdir().context("make a folder")?;
    let (addresses, owner_of) = (vec![source.addr()], vec![0; 16_384]);
    let pace = Pace::Rate(args.rate);
    let load = Load::start(&Plan { addresses, owner_of, content: content.clone(), clients: CLIENTS, pace });
    thread::sleep(BEFORE);
    let mut command = whimbrel_binary()?;
    command.args(["copy", &source.addr(), &target.addr(), "--quiet", "--state-dir"]).arg(state.path());
    command.args(limit_ms.iter().flat_map(|ms| ["--max-latency".to_owned(), format!("{ms}ms")]));
    let mut running =
        command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().context("run whimbrel")?;
    let (began, begin) = (Instant::now(), load.elapsed() + SETTLES);
    let patience = SETTLES + Duration::from_secs(args.seconds);
    while running.try_wait()?.is_none() && began.elapsed() < patience && !interrupt.is_seen() {
        thread::sleep(Duration::from_millis(20));
    }
    let (took, end) = (began.elapsed(), load.elapsed());
    let copied: u64 = redis::cmd("DBSIZE").query(&mut target.try_connection()?)?;
    // One that has ended cannot be killed.
    let _ = running.kill();
    running.wait()?;
    let recorded = load.stop();
    interrupt.check()?;
    ensure!(end > begin, "the copy was over before it had found its pace: --keys is too small");
    let during = recorded.latencies(&(begin..end));
    Ok(Run {
        limit_ms,
        before: recorded.latencies(&(BEFORE / 4..begin - SETTLES)),
        times_limit: limit_ms.map(|limit_ms| during.p99_ms / limit_ms as f64),
        during,
        keys_per_second: copied as f64 / took.as_secs_f64(),
    })
}

fn table(runs: &[Run]) -> String {
    let head = ["--max-latency", "alone p99", "p50", "p99", "p99.9", "keys/s", "p99 of the limit"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for run in runs {
        let ms = |ms: f64| format!("{ms:.2} ms");
        rows.push(vec![
            run.limit_ms.map_or("none".to_owned(), |limit| format!("{limit} ms")),
            ms(run.before.p99_ms),
            ms(run.during.p50_ms),
            ms(run.during.p99_ms),
            ms(run.during.p999_ms),
            format_count(run.keys_per_second as u64),
            run.times_limit.map_or_else(String::new, |times| format!("{:.0} %", times * 100.0)),
        ]);
    }
    aligned(&rows)
}
