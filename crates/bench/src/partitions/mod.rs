//! `./dev bench partitions`: what it costs to move a partition in a fleet, by its size. The experiment of
//! Hazelcast's *Speed-Up Partition Migrations*, with members in processes of their own.

mod chart;
mod coordinator;
mod entries;
mod fronts;
mod hdr;
mod link;
mod member;
mod outcome;
mod size;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use whimbrel_core::units::format_count;
use whimbrel_lab::Engine;
use whimbrel_loadgen::interrupt::{self, Interrupt};

use self::coordinator::Fleet;
use self::entries::Entries;
use self::fronts::FrontsOutcome;
use self::outcome::Outcome;
use self::size::{Mode, Size, name};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::report::aligned;

/// Members and partitions of the original experiment, and one beyond it.
const SIZES: [(u32, u32); 4] = [(5, 1_999), (5, 10_000), (10, 10_000), (20, 100_000)];

/// What only the experiment with entries has.
const OF_ENTRIES: [&str; 7] =
    ["mode", "entries", "entry_bytes", "moves_per_member", "percentiles", "hdr", "svg"];

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

    /// Measure the real program, `whimbrel serve --fleet` and `whimbrel front --join`, in the place of the
    /// machines of the fleet with entries
    #[arg(long, conflicts_with_all = OF_ENTRIES)]
    pub fronts: bool,

    /// Print the percentiles of each run, in the format of HdrHistogram
    #[arg(long)]
    pub percentiles: bool,

    /// Write a log of each run into this folder, MEMBERS-PARTITIONS-MODE.hdr, as HdrHistogram's tools read it
    #[arg(long, value_name = "FOLDER")]
    pub hdr: Option<PathBuf>,

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

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    moves_per_member: u32,
    rows: Vec<Outcome>,
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
        None if args.fronts => fronts::SIZES.to_vec(),
        None => SIZES.to_vec(),
    };
    if args.fronts {
        return interrupt::run(Exit::Stopped, |interrupt| measure_fronts(&sizes, args, interrupt));
    }
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
            if let Some(folder) = &args.hdr {
                std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
                let file =
                    folder.join(format!("{members}-{partitions}-{}.hdr", name(mode).replace(' ', "-")));
                let title =
                    format!("{members} members, {partitions} partitions, {}: nanoseconds", name(mode));
                hdr::write(&file, &title, measured.began_at, &measured.samples)?;
            }
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

#[derive(Debug, Serialize)]
struct FrontsReport {
    bench: &'static str,
    machine: Machine,
    rows: Vec<FrontsOutcome>,
}

fn measure_fronts(
    sizes: &[(u32, u32)],
    args: &BenchPartitionsArgs,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let machine = Machine::of_this(Engine::Redis70);
    let mut report = FrontsReport { bench: "partitions --fronts", machine, rows: Vec::new() };
    for (members, partitions) in sizes.iter().copied() {
        eprintln!("{members} fronts, {} partitions", format_count(partitions.into()));
        let limit = Duration::from_secs(args.limit);
        report.rows.push(fronts::measure(members, partitions, limit, interrupt)?);
    }
    let mut out = std::io::stdout();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => writeln!(out, "{}", report.text())?,
    }
    Ok(Exit::Success)
}

impl FrontsReport {
    fn text(&self) -> String {
        let head =
            ["fronts, partitions", "moves", "seconds", "mean µs", "coordinator CPU µs", "fronts CPU µs"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.rows {
            rows.push(vec![
                format!("{}, {}", row.members, format_count(row.partitions.into())),
                format_count(row.moved),
                format!("{:.1}", row.seconds),
                format!("{:.0}", row.seconds * 1e6 / row.moved as f64),
                format!("{:.0}", row.coordinator_cpu_us),
                format!("{:.0}", row.fronts_cpu_us),
            ]);
        }
        format!("{}\n\n{}", self.machine.describe(), aligned(&rows))
    }
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
            "bytes published",
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
