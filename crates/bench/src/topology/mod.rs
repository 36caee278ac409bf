//! `./dev bench topology`: what it costs to report to clients who owns what, beside the servers, a
//! storm of clients that ask after each move of a slot, and what their own reads feel of that.

mod algorithm;
mod ask;
mod chart;
mod layout;
mod stand;
mod symptom;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use redis::{Connection, cmd};
use serde::Serialize;
use whimbrel_core::units::format_count;
use whimbrel_lab::Engine;
use whimbrel_loadgen::interrupt::{self, Interrupt};
use whimbrel_loadgen::program::full_version;

use self::algorithm::Cost;
use self::ask::{Asked, Storm};
use self::layout::{Layout, Moves, form};
use self::stand::Stand;
use self::symptom::Felt;
use crate::exit::Exit;
use crate::machine::Machine;
use crate::report::aligned;

/// How often a server is asked in one go, and how often right after a change.
const CALLS: usize = 500;
const CHANGES: usize = 100;

/// The storm's table.
const STORM: Layout = Layout { primaries: 128, is_fragmented: false };

/// `./dev bench topology`.
#[derive(Debug, Args)]
pub struct BenchTopologyArgs {
    /// Servers to measure beside, with commas: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0,valkey-9.1", value_delimiter = ',')]
    pub engines: Vec<String>,

    /// How many primaries the tables have, with commas
    #[arg(long, default_value = "3,128,1000", value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(2..=1_000))]
    pub primaries: Vec<u16>,

    /// Clients of the storm
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub clients: u16,

    /// Slots that move in the storm; 0 leaves it out
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    pub moves: u16,

    /// For how many seconds slots leave a server while clients read from it; 0 leaves that out
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=6))]
    pub seconds: u16,

    /// Draw what those clients felt
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,

    /// What a child of the measurement does
    #[arg(long, hide = true, value_parser = Layout::parse)]
    serve: Option<Layout>,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    rows: Vec<Row>,
    storm: Vec<Storm>,
    felt: Vec<Felt>,
}

/// One way to answer, with one table.
#[derive(Debug, Serialize)]
struct Row {
    primaries: usize,
    is_fragmented: bool,
    reply_bytes: usize,
    name: String,
    /// Of a server what it says itself.
    answer_us: f64,
    changed_us: f64,
    /// Over a socket, where there is one.
    round_trip_us: Option<f64>,
    cpu_us: Option<f64>,
}

/// Runs the benchmark.
///
/// # Errors
/// When servers do not start or go away, or something of our own fails.
pub fn run(args: &BenchTopologyArgs) -> anyhow::Result<Exit> {
    if let Some(layout) = args.serve {
        stand::serve(layout)?;
        return Ok(Exit::Success);
    }
    let engines: Option<Vec<Engine>> = args.engines.iter().map(|name| Engine::from_name(name)).collect();
    let Some(engines) = engines.filter(|engines| !engines.is_empty()) else {
        eprintln!("error: there is no engine among {}", args.engines.join(", "));
        return Ok(Exit::Usage);
    };
    interrupt::run(Exit::Stopped, |interrupt| measure(&engines, args, interrupt))
}

fn measure(engines: &[Engine], args: &BenchTopologyArgs, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let mut machine = Machine::of_this(engines[0]);
    machine.engine = engines.iter().map(|engine| full_version(*engine)).collect::<Vec<_>>().join(", ");
    let mut report =
        Report { bench: "topology", machine, rows: Vec::new(), storm: Vec::new(), felt: Vec::new() };
    for primaries in &args.primaries {
        for is_fragmented in [false, true] {
            let layout = Layout { primaries: usize::from(*primaries), is_fragmented };
            eprintln!("{primaries} primaries, {}", form(is_fragmented));
            measure_layout(layout, engines, interrupt, &mut report.rows)?;
        }
    }
    if args.moves > 0 {
        let size = (usize::from(args.clients), usize::from(args.moves));
        eprintln!("storm: {} clients after each of {} moves", size.0, size.1);
        report.storm.push(ask::storm("whimbrel", Stand::ours(STORM)?, STORM, size, interrupt)?);
        for engine in engines {
            let stand = Stand::server(*engine, STORM)?;
            report.storm.push(ask::storm(engine.name(), stand, STORM, size, interrupt)?);
        }
    }
    if args.seconds > 0 {
        report.felt = feel(engines, args, interrupt)?;
    }
    if let Some(file) = &args.chart {
        let title = "Reads while slots leave their server: the 99th of 100";
        std::fs::write(file, chart::svg(title, &report.felt))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut out = std::io::stdout();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => writeln!(out, "{}", report.text(args))?,
    }
    if report.storm.first().is_some_and(|ours| ours.stale > 0) {
        bail!("ours gave answers that were out of date");
    }
    Ok(Exit::Success)
}

/// What clients feel whose server also answers `CLUSTER SLOTS`, and of whimbrel's answering it.
fn feel(engines: &[Engine], args: &BenchTopologyArgs, interrupt: &Interrupt) -> anyhow::Result<Vec<Felt>> {
    let size = (usize::from(args.clients), Duration::from_secs(args.seconds.into()));
    let mut felt = Vec::new();
    for engine in engines {
        for is_fragmented in [false, true] {
            let layout = Layout { is_fragmented, ..STORM };
            for by_whimbrel in [false, true] {
                interrupt.check()?;
                let who = if by_whimbrel { "whimbrel" } else { "the node" };
                eprintln!(
                    "reads: {}, {}, CLUSTER SLOTS answered by {who}",
                    engine.name(),
                    form(is_fragmented)
                );
                felt.push(symptom::measure((*engine, layout), by_whimbrel, size, interrupt)?);
            }
        }
    }
    Ok(felt)
}

fn measure_layout(
    layout: Layout,
    engines: &[Engine],
    interrupt: &Interrupt,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let costs = algorithm::measure(layout)?;
    let row = |name: &str, cost: Cost, asked: Option<Asked>| Row {
        primaries: layout.primaries,
        is_fragmented: layout.is_fragmented,
        reply_bytes: costs.reply_bytes,
        name: name.to_owned(),
        answer_us: cost.answer_us,
        changed_us: cost.changed_us,
        round_trip_us: asked.map(|asked| asked.round_trip_us),
        cpu_us: asked.map(|asked| asked.cpu_us),
    };
    rows.push(row("nodes times slots", costs.nodes_times_slots, None));
    rows.push(row("walk", costs.walk, None));
    interrupt.check()?;
    let asked = ask::repeatedly(&mut Stand::ours(layout)?)?;
    rows.push(row("whimbrel", costs.built, Some(asked)));
    for engine in engines {
        interrupt.check()?;
        let mut stand = Stand::server(*engine, layout)?;
        let asked = ask::repeatedly(&mut stand)?;
        let cost = server_cost(&mut stand, layout)?;
        rows.push(row(engine.name(), cost, Some(asked)));
    }
    Ok(())
}

/// What a server says that `CLUSTER SLOTS` takes it, again and again and right after each change.
fn server_cost(stand: &mut Stand, layout: Layout) -> anyhow::Result<Cost> {
    let ask = |stand: &mut Stand| -> anyhow::Result<()> {
        let connection = connection(stand)?;
        Ok(cmd("CLUSTER").arg("SLOTS").exec(connection)?)
    };
    ask(stand)?;
    cmd("CONFIG").arg("RESETSTAT").exec(connection(stand)?)?;
    for _ in 0..if layout.is_fragmented { CHANGES } else { CALLS } {
        ask(stand)?;
    }
    let answer_us = stand::command_us(connection(stand)?)?;
    cmd("CONFIG").arg("RESETSTAT").exec(connection(stand)?)?;
    let mut moves = Moves::new(layout);
    for _ in 0..CHANGES {
        stand.take_in(moves.advance())?;
        ask(stand)?;
    }
    Ok(Cost { answer_us, changed_us: stand::command_us(connection(stand)?)? })
}

fn connection(stand: &mut Stand) -> anyhow::Result<&mut Connection> {
    match stand {
        Stand::Server(_, connection) => Ok(connection),
        Stand::Ours(_) => bail!("ours has no statistics of commands"),
    }
}

/// Microseconds with as many digits as mean something.
fn us(value: f64) -> String {
    match value {
        _ if value < 1.0 => format!("{value:.3}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format_count(value.round() as u64),
    }
}

impl Report {
    fn felt_text(&self, args: &BenchTopologyArgs) -> String {
        let head = [
            "reads, table",
            "tables asked for",
            "p50 ms before",
            "p99 ms before",
            "p50 ms",
            "p99 ms",
            "longest ms",
            "CLUSTER SLOTS by",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for felt in &self.felt {
            let ms = |value: f64| format!("{value:.2}");
            rows.push(vec![
                format!("{}, {}", felt.engine, form(felt.is_fragmented)),
                format_count(felt.refreshes as u64),
                ms(felt.calm.p50_ms),
                ms(felt.calm.p99_ms),
                ms(felt.moving.p50_ms),
                ms(felt.moving.p99_ms),
                ms(felt.moving.most_ms),
                felt.answered_by.to_owned(),
            ]);
        }
        format!(
            "\nReads (MGET of ten keys) of {} clients, 20 a second each, while a slot leaves their server \
             each 50 ms; {} primaries\n\n{}",
            args.clients,
            STORM.primaries,
            aligned(&rows)
        )
    }

    fn text(&self, args: &BenchTopologyArgs) -> String {
        let head =
            ["primaries, table", "answer µs", "after a change µs", "round trip µs", "CPU µs", "KiB", "by"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.rows {
            rows.push(vec![
                format!("{}, {}", format_count(row.primaries as u64), form(row.is_fragmented)),
                us(row.answer_us),
                us(row.changed_us),
                row.round_trip_us.map_or_else(|| "–".to_owned(), us),
                row.cpu_us.map_or_else(|| "–".to_owned(), us),
                format_count(row.reply_bytes.div_ceil(1_024) as u64),
                row.name.clone(),
            ]);
        }
        let mut text = format!("{}\n\n{}", self.machine.describe(), aligned(&rows));
        if !self.felt.is_empty() {
            text.push_str(&self.felt_text(args));
        }
        if self.storm.is_empty() {
            return text;
        }
        let head = [
            "storm",
            "requests",
            "stale",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "CPU µs",
            "% of a core for 1,000/s",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for storm in &self.storm {
            rows.push(vec![
                storm.name.clone(),
                format_count(storm.requests as u64),
                format_count(storm.stale as u64),
                format_count(storm.requests_per_second as u64),
                format!("{:.2}", storm.p50_ms),
                format!("{:.2}", storm.p99_ms),
                us(storm.cpu_us),
                format!("{:.2}", storm.core_percent()),
            ]);
        }
        text.push_str(&format!(
            "\nStorm: {} clients ask after each of {} moves; {} primaries, whole ranges\n\n{}",
            args.clients,
            format_count(args.moves.into()),
            STORM.primaries,
            aligned(&rows)
        ));
        text
    }
}
