//! `./dev bench partitions`: what it costs to move a partition in a fleet, by its size. The experiment of
//! Hazelcast's *Speed-Up Partition Migrations*, with members in processes of their own.

mod chart;
mod coordinator;
mod link;
mod member;

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde::Serialize;
use whimbrel_core::fleet::Partition;
use whimbrel_core::units::format_count;
use whimbrel_lab::Engine;
use whimbrel_loadgen::interrupt::{self, Interrupt};

use self::coordinator::{Fleet, Measured};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::report::aligned;

/// Members and partitions of the original experiment, and one beyond it.
const SIZES: [(u32, u32); 4] = [(5, 1_999), (5, 10_000), (10, 10_000), (20, 100_000)];

/// How others learn of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Who takes part learns it in the move, others in batches
    Changes,
    /// Everybody gets the whole table after each move
    WholeTable,
}

/// How large the measured fleet is.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Size {
    members: u32,
    partitions: u32,
    entries: u32,
    entry_bytes: u32,
}

/// `./dev bench partitions`.
#[derive(Debug, Args)]
pub struct BenchPartitionsArgs {
    /// Members; with --partitions instead of the four sizes of the experiment
    #[arg(long, requires = "partitions", value_parser = clap::value_parser!(u32).range(2..=40))]
    pub members: Option<u32>,

    /// Partitions; with --members
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub partitions: Option<u32>,

    /// How members learn of moves, with commas
    #[arg(long, value_enum, default_value = "changes,whole-table", value_delimiter = ',')]
    pub mode: Vec<Mode>,

    /// Entries in all partitions together
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub entries: u32,

    /// Bytes of an entry
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub entry_bytes: u32,

    /// Moves that a member takes part in at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub moves_per_member: u32,

    /// Seconds after which a run is stopped; what it would have taken is then estimated, and marked
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub limit: u64,

    /// Print the percentiles of each run, in the format of HdrHistogram
    #[arg(long)]
    pub percentiles: bool,

    /// Draw the results into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,

    /// What a child of the measurement does: be a member of the coordinator at this port
    #[arg(long, hide = true)]
    member_of: Option<u16>,

    /// What it is called
    #[arg(long, hide = true, default_value_t = 1)]
    token: u64,

    /// Whether it has all entries to begin with
    #[arg(long, hide = true)]
    fills: bool,
}

/// The entries, which are the same in every process.
#[derive(Debug, Clone, Copy)]
pub struct Entries {
    count: u32,
    bytes: u32,
    partitions: u32,
}

impl Entries {
    /// All of them, by their partition.
    fn by_partition(self) -> HashMap<Partition, Vec<Vec<u8>>> {
        let mut all: HashMap<Partition, Vec<Vec<u8>>> = HashMap::new();
        for number in 0..self.count {
            let mut word = u64::from(number) + 1;
            let mut next = || {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (word >> 32) as u8
            };
            let entry = (0..self.bytes).map(|_| next()).collect();
            all.entry(number % self.partitions).or_default().push(entry);
        }
        all
    }

    /// How many there are in each partition, and their digest.
    fn digests(self) -> HashMap<Partition, (u64, u64)> {
        let digest = |entries: Vec<Vec<u8>>| (entries.len() as u64, member::digest(&entries));
        self.by_partition().into_iter().map(|(partition, entries)| (partition, digest(entries))).collect()
    }
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    moves_per_member: u32,
    rows: Vec<Outcome>,
}

/// What one run came to. Times of a move in microseconds.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    size: Size,
    mode: Mode,
    planned: u64,
    moved: u64,
    seconds: f64,
    /// Where the run was stopped: what all moves would have taken, at the same pace.
    seconds_estimated: Option<f64>,
    interval: Times,
    latency: Times,
    published_bytes_per_move: f64,
    bystander_messages_per_move: f64,
    journal_writes: u64,
    log: Vec<String>,
    percentiles: Vec<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Times {
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Times {
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Times { mean_us: histogram.mean() / 1e3, p50_us: us(0.5), p99_us: us(0.99), max_us: us(1.0) }
    }
}

impl Outcome {
    fn new(size: Size, mode: Mode, measured: Measured) -> Outcome {
        let seconds = measured.elapsed.as_secs_f64();
        let per_move = |count: u64| count as f64 / measured.moved.max(1) as f64;
        let is_whole = measured.moved >= measured.planned;
        Outcome {
            size,
            mode,
            planned: measured.planned,
            moved: measured.moved,
            seconds,
            seconds_estimated: (!is_whole)
                .then(|| seconds * measured.planned as f64 / measured.moved.max(1) as f64),
            interval: Times::of(&measured.intervals),
            latency: Times::of(&measured.latencies),
            published_bytes_per_move: per_move(measured.published_bytes),
            bystander_messages_per_move: per_move(measured.bystander_messages),
            journal_writes: measured.journal_writes,
            percentiles: percentiles(&measured.intervals),
            log: measured.log,
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When members do not start or go away, or entries are not where they should be in the end.
pub fn run(args: &BenchPartitionsArgs) -> anyhow::Result<Exit> {
    let partitions = args.partitions.unwrap_or(1);
    if let Some(port) = args.member_of {
        let entries = Entries { count: args.entries, bytes: args.entry_bytes, partitions };
        member::run(port, args.token, args.fills.then_some(entries))?;
        return Ok(Exit::Success);
    }
    let sizes = match args.members {
        Some(members) => vec![(members, partitions)],
        None if args.partitions.is_some() => {
            eprintln!("error: --partitions needs --members");
            return Ok(Exit::Usage);
        }
        None => SIZES.to_vec(),
    };
    interrupt::run(Exit::Stopped, |interrupt| measure(&sizes, args, interrupt))
}

fn measure(sizes: &[(u32, u32)], args: &BenchPartitionsArgs, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let mut machine = Machine::of_this(Engine::Redis70);
    machine.engine = "none".to_owned();
    let moves_per_member = args.moves_per_member;
    let mut report = Report { bench: "partitions", machine, moves_per_member, rows: Vec::new() };
    for (members, partitions) in sizes.iter().copied() {
        for mode in args.mode.iter().copied() {
            eprintln!("{members} members, {} partitions, {}", format_count(partitions.into()), name(mode));
            let size = Size { members, partitions, entries: args.entries, entry_bytes: args.entry_bytes };
            let fleet = Fleet::start(size, mode, moves_per_member)?;
            let measured = fleet.measure(Duration::from_secs(args.limit), interrupt)?;
            report.rows.push(Outcome::new(size, mode, measured));
        }
    }
    if let Some(file) = &args.svg {
        let title = "What it costs to move a partition";
        std::fs::write(file, chart::svg(title, &report.rows))
            .with_context(|| format!("write {}", file.display()))?;
    }
    let mut out = std::io::stdout();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => writeln!(out, "{}", report.text(args.percentiles))?,
    }
    Ok(Exit::Success)
}

fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Changes => "changes",
        Mode::WholeTable => "whole table",
    }
}

/// The percentiles of a histogram of nanoseconds, in microseconds, in the format of HdrHistogram.
fn percentiles(histogram: &Histogram<u64>) -> Vec<String> {
    let mut lines = vec!["       Value(µs) Percentile TotalCount 1/(1-Percentile)".to_owned(), String::new()];
    let mut count = 0;
    for value in histogram.iter_quantiles(5) {
        let quantile = value.quantile_iterated_to();
        let value_us = value.value_iterated_to() as f64 / 1e3;
        count += value.count_since_last_iteration();
        let rest = if quantile < 1.0 { format!(" {:14.2}", 1.0 / (1.0 - quantile)) } else { String::new() };
        lines.push(format!("{value_us:12.3} {quantile:14.12} {count:10}{rest}"));
    }
    let us = |nanoseconds: f64| nanoseconds / 1e3;
    lines.push(format!(
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        us(histogram.mean()),
        us(histogram.stdev())
    ));
    lines.push(format!(
        "#[Max     = {:12.3}, Total count    = {:12}]",
        us(histogram.max() as f64),
        histogram.len()
    ));
    lines
}

impl Report {
    fn text(&self, with_percentiles: bool) -> String {
        let head = [
            "members, partitions",
            "moves",
            "seconds",
            "mean µs",
            "p99 µs",
            "one move p50 ms",
            "p99 ms",
            "bytes told",
            "to bystanders",
            "by",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.rows {
            let seconds = match row.seconds_estimated {
                Some(estimated) => format!("~{estimated:.0}"),
                None => format!("{:.1}", row.seconds),
            };
            let moves = match row.seconds_estimated {
                Some(_) => format!("{} of {}", format_count(row.moved), format_count(row.planned)),
                None => format_count(row.moved),
            };
            rows.push(vec![
                format!("{}, {}", row.size.members, format_count(row.size.partitions.into())),
                moves,
                seconds,
                format!("{:.0}", row.interval.mean_us),
                format!("{:.0}", row.interval.p99_us),
                format!("{:.1}", row.latency.p50_us / 1e3),
                format!("{:.1}", row.latency.p99_us / 1e3),
                format_count(row.published_bytes_per_move.round() as u64),
                format!("{:.4}", row.bystander_messages_per_move),
                name(row.mode).to_owned(),
            ]);
        }
        let mut text = format!("{}\n\n{}", self.machine.describe(), aligned(&rows));
        if with_percentiles {
            for row in &self.rows {
                let size = format!(
                    "{} members, {} partitions, {}",
                    row.size.members,
                    row.size.partitions,
                    name(row.mode)
                );
                let (lines, log) = (row.percentiles.join("\n"), row.log.join("\n"));
                text.push_str(&format!("\n{size}\n\n{lines}\n\n{log}\n"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_printed_as_hdrhistogram_does() {
        let mut histogram = Histogram::new(3).expect("a histogram");
        (1..=4).for_each(|value| histogram.record(value * 1_000).expect("it fits"));
        let lines = percentiles(&histogram);
        assert_eq!(lines[0], "       Value(µs) Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[2], "       1.000 0.000000000000          1           1.00");
        assert!(
            lines.contains(&"       2.000 0.500000000000          2           2.00".to_owned()),
            "{lines:?}"
        );
        assert!(lines[lines.len() - 2].starts_with("#[Mean    =        2.50"), "{lines:?}");
    }

    #[test]
    fn entries_are_spread_over_the_partitions() {
        let entries = Entries { count: 25, bytes: 8, partitions: 10 };
        let digests = entries.digests();
        assert_eq!((digests.len(), digests[&4].0, digests[&5].0), (10, 3, 2));
        assert_ne!(digests[&4].1, digests[&5].1);
    }
}
