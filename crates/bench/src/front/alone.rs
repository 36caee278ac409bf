//! Moving keys that no client asks for: what the movers can do, beside a copy, which removes nothing.

use std::fs::File;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use redis::cmd;
use serde::Serialize;
use whimbrel_core::units::format_count;
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::child::{self, Ended};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::program::last_words;

use super::args::BenchFrontArgs;
use super::data::fill;
use super::destinations::Destinations;
use super::moving::PATIENCE;
use super::paper::{self, Bloom};
use super::ways::Running;
use crate::binaries::whimbrel_binary;
use crate::report::{aligned, median};

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Alone {
    keys: u64,
    value_bytes: usize,
    movers: Vec<Moved>,
}

#[derive(Debug, Serialize)]
struct Moved {
    mover: Mover,
    /// Median of the rounds.
    seconds: f64,
    keys_per_second: f64,
    rounds: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mover {
    /// `whimbrel copy`, from the start of its process to its end.
    Copy,
    Paper,
    /// The front, from the order to when all have moved.
    Whimbrel,
}

impl Mover {
    const ALL: [Mover; 3] = [Mover::Copy, Mover::Paper, Mover::Whimbrel];

    fn name(self) -> &'static str {
        match self {
            Mover::Copy => "whimbrel copy",
            Mover::Paper => "paper",
            Mover::Whimbrel => "whimbrel front",
        }
    }
}

/// Runs all movers in turns.
pub(super) fn measure(engine: Engine, args: &BenchFrontArgs, interrupt: &Interrupt) -> anyhow::Result<Alone> {
    let mut movers: Vec<Moved> = Mover::ALL
        .map(|mover| Moved { mover, seconds: 0.0, keys_per_second: 0.0, rounds: Vec::new() })
        .into();
    for round in 1..=args.rounds {
        for moved in &mut movers {
            interrupt.check()?;
            let seconds = run(engine, args, moved.mover, interrupt)?;
            eprintln!("{}, round {round}: {seconds:.2} s", moved.mover.name());
            moved.rounds.push(seconds);
        }
    }
    for moved in &mut movers {
        moved.seconds = median(moved.rounds.clone()).unwrap_or(0.0);
        moved.keys_per_second = args.keys as f64 / moved.seconds;
    }
    Ok(Alone { keys: args.keys, value_bytes: args.value_bytes, movers })
}

/// Seconds that one mover takes.
fn run(engine: Engine, args: &BenchFrontArgs, mover: Mover, interrupt: &Interrupt) -> anyhow::Result<f64> {
    let source = Server::builder(engine).name("source").start()?;
    let target = Destinations::start(engine, 1)?;
    fill(&source, args)?;
    let seconds = match mover {
        Mover::Copy => copy(&source, target.servers()[0], interrupt)?,
        Mover::Paper => {
            let filter = Bloom::new(args.keys);
            let began = Instant::now();
            paper::move_all(&source, &target, args.keys, &filter, interrupt)?;
            began.elapsed().as_secs_f64()
        }
        Mover::Whimbrel => {
            let front = Running::between(&source, &target)?;
            let began = Instant::now();
            front.move_all(PATIENCE, interrupt)?;
            began.elapsed().as_secs_f64()
        }
    };
    let arrived: u64 = cmd("DBSIZE").query(&mut target.servers()[0].try_connection()?)?;
    ensure!(arrived == args.keys, "{} has moved {arrived} of {} keys", mover.name(), args.keys);
    Ok(seconds)
}

fn copy(source: &Server, target: &Server, interrupt: &Interrupt) -> anyhow::Result<f64> {
    let mut command = whimbrel_binary()?;
    command.args(["copy", &source.addr(), &target.addr(), "--quiet", "--state-dir"]);
    let output_path = target.dir().join("output");
    let file = File::create(&output_path)?;
    command.arg(target.dir().join("state"));
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    match child::run(&mut command, Some(PATIENCE), interrupt)? {
        Ended::Exited { status, wall, .. } if status.success() => Ok(wall.as_secs_f64()),
        Ended::Exited { status, .. } => {
            let output = std::fs::read_to_string(&output_path).context("read what the copy said")?;
            bail!("whimbrel copy: {status}: {}", last_words(&output))
        }
        Ended::TimedOut => bail!("whimbrel copy has not ended in {} s", PATIENCE.as_secs()),
    }
}

impl Alone {
    /// As a table.
    pub(super) fn text(&self) -> String {
        let head = ["mover", "seconds", "keys a second", "of copy", "of paper"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        let times = |moved: &Moved, of: Mover| {
            let other = self.movers.iter().find(|other| other.mover == of);
            other.map_or_else(String::new, |other| {
                format!("{:.2} ×", moved.keys_per_second / other.keys_per_second)
            })
        };
        for moved in &self.movers {
            rows.push(vec![
                moved.mover.name().to_owned(),
                format!("{:.2}", moved.seconds),
                format_count(moved.keys_per_second as u64),
                times(moved, Mover::Copy),
                times(moved, Mover::Paper),
            ]);
        }
        format!(
            "{} keys of {} bytes, which nobody asks for\n\n{}",
            format_count(self.keys),
            self.value_bytes,
            aligned(&rows)
        )
    }
}
