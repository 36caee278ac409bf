//! `./dev bench front`: what it costs to go through the front, and queries that are served while keys arrive.

mod alone;
mod args;
mod chart;
mod data;
mod destinations;
mod moving;
mod paper;
mod through;
mod ways;

use std::io::Write;

use anyhow::Context;
use serde::Serialize;
use whimbrel_loadgen::interrupt;

use self::alone::Alone;
pub use self::args::BenchFrontArgs;
use self::args::Part;
use self::moving::Seen;
use self::through::Through;
use crate::exit::Exit;
use crate::machine::Machine;

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    through: Option<Through>,
    moving: Option<Vec<Seen>>,
    alone: Option<Alone>,
}

/// Runs the benchmark.
///
/// # Errors
/// When a server or a proxy does not start or goes away, or something of our own fails.
pub fn run(args: &BenchFrontArgs) -> anyhow::Result<Exit> {
    let engine = args.engine;
    interrupt::run(Exit::Stopped, |interrupt| {
        let machine = Machine::of_this(engine);
        let wants = |part| args.part.contains(&part);
        let through = wants(Part::Through).then(|| through::measure(engine, args, interrupt)).transpose()?;
        let moving = wants(Part::Moving).then(|| moving::measure(engine, args, interrupt)).transpose()?;
        let alone = wants(Part::Alone).then(|| alone::measure(engine, args, interrupt)).transpose()?;
        if let (Some(file), Some(seen)) = (&args.svg, &moving) {
            let title = format!("{}: queries that are served while keys arrive", machine.engine);
            std::fs::write(file, chart::svg(&title, seen))
                .with_context(|| format!("write {}", file.display()))?;
        }
        let report = Report { bench: "front", machine, through, moving, alone };
        let mut out = std::io::stdout();
        match args.json {
            true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
            false => writeln!(out, "{}", report.text())?,
        }
        Ok(Exit::Success)
    })
}

impl Report {
    fn text(&self) -> String {
        let mut parts = vec![self.machine.describe()];
        parts.extend(self.through.as_ref().map(Through::text));
        parts.extend(self.moving.as_deref().map(moving::table));
        parts.extend(self.alone.as_ref().map(Alone::text));
        parts.join("\n\n")
    }
}
