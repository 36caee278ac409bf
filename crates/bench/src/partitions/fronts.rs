//! The same experiment with the real program: a coordinator and fronts, each a process, before one server.
//!
//! Partitions are the right to serve slots, so no entries move. What is measured is what the program does for
//! each: the agreement of the old owner, which drains the slot, the journal, and news to all.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::interrupt::Interrupt;

use crate::binaries::whimbrel_binary;
use crate::listening::{Listening, free_address};

/// Fronts and partitions. There are no more partitions than slots.
pub(super) const SIZES: [(u32, u32); 4] = [(5, 1_999), (5, 10_000), (10, 10_000), (10, 16_384)];

/// How many hold each partition, as in the original experiment; all where there are fewer.
const HOLDERS_MAX: u32 = 7;

/// How long the fleet may take to settle before the measurement.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often it is looked whether it has settled: that takes a process each time, on the same cores.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// What one run came to.
#[derive(Debug, Serialize)]
pub(super) struct FrontsOutcome {
    pub(super) members: u32,
    pub(super) partitions: u32,
    /// Changes of the table that were made.
    pub(super) moved: u64,
    pub(super) seconds: f64,
    /// Of the coordinator, in microseconds for each change.
    pub(super) coordinator_cpu_us: f64,
    /// Of all fronts together.
    pub(super) fronts_cpu_us: f64,
}

/// A fleet that runs. Fields end in their order: fronts before the server that they ask.
struct Fleet {
    fronts: Vec<Listening>,
    coordinator: Listening,
    at: SocketAddr,
    _server: Server,
}

/// One front has all partitions, then the others take their parts of them.
///
/// # Errors
/// When a process does not start, or the fleet does not settle within `limit`.
pub(super) fn measure(
    members: u32,
    partitions: u32,
    limit: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<FrontsOutcome> {
    let fleet = Fleet::start(members, partitions)?;
    fleet.settle(PATIENCE, interrupt)?;
    for front in 1..members {
        fleet.command(&["drain", &name(front), "--yes", "--no-wait"])?;
    }
    let before = fleet.settle(PATIENCE, interrupt)?;
    let (coordinator_s, fronts_s) = fleet.cpu_s()?;
    let began = Instant::now();
    for front in 1..members {
        fleet.command(&["join", &name(front), "--no-wait"])?;
    }
    let after = fleet.settle(limit, interrupt)?;
    let seconds = began.elapsed().as_secs_f64();
    let failed = number(&after, "failed")? - number(&before, "failed")?;
    ensure!(failed == 0, "{failed} moves were given up");
    let moved = number(&after, "moved")? - number(&before, "moved")?;
    ensure!(moved > 0, "nothing has moved");
    let now = fleet.cpu_s()?;
    let each_us = |seconds: f64| seconds * 1e6 / moved as f64;
    Ok(FrontsOutcome {
        members,
        partitions,
        moved,
        seconds,
        coordinator_cpu_us: each_us(now.0 - coordinator_s),
        fronts_cpu_us: each_us(now.1 - fronts_s),
    })
}

fn name(front: u32) -> String {
    format!("front-{front}")
}

fn number(status: &Value, name: &str) -> anyhow::Result<u64> {
    status[name].as_u64().with_context(|| format!("the status of the fleet has no number {name}"))
}

impl Fleet {
    fn start(members: u32, partitions: u32) -> anyhow::Result<Fleet> {
        let server = Server::builder(Engine::Redis70).start()?;
        let at = free_address()?;
        let mut command = whimbrel_binary()?;
        command.args(["serve", "--fleet", "--listen", &at.to_string()]);
        command.args(["--backend", &format!("main={}", server.addr())]);
        command.args(["--partitions", &partitions.to_string()]);
        command.args(["--copies", &members.min(HOLDERS_MAX).to_string()]);
        command.arg("--state-dir").arg(server.dir().join("fleet"));
        let coordinator = Listening::start("coordinator", command, at, server.dir())?;
        let fronts = (0..members).map(|front| join(front, at, &server)).collect::<anyhow::Result<_>>()?;
        Ok(Fleet { fronts, coordinator, at, _server: server })
    }

    /// `whimbrel fleet` with these words; what it says, as JSON.
    fn command(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut command = whimbrel_binary()?;
        command.arg("fleet").args(words).args(["--server", &self.at.to_string(), "--json"]);
        let output = command.output().with_context(|| format!("run whimbrel fleet {}", words.join(" ")))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "whimbrel fleet {}: {printed}", words.join(" "));
        serde_json::from_str(printed.lines().last().unwrap_or_default()).context("read what it says")
    }

    /// Waits until all partitions are where they belong; how it stands then.
    fn settle(&self, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<Value> {
        let began = Instant::now();
        loop {
            interrupt.check()?;
            let mut status = self.command(&["status"])?;
            let members = status["fleet"]["members"].as_array().map_or(0, Vec::len);
            if status["settled"] == true && members == self.fronts.len() {
                return Ok(status["fleet"].take());
            }
            if began.elapsed() > limit {
                bail!("the fleet has not settled in {} s", limit.as_secs());
            }
            std::thread::sleep(POLL_PERIOD);
        }
    }

    /// Processor time of the coordinator, and of all fronts, in seconds.
    fn cpu_s(&self) -> anyhow::Result<(f64, f64)> {
        let fronts = self.fronts.iter().map(Listening::cpu_s).sum::<anyhow::Result<f64>>();
        Ok((self.coordinator.cpu_s()?, fronts?))
    }
}

fn join(front: u32, coordinator: SocketAddr, server: &Server) -> anyhow::Result<Listening> {
    let address = free_address()?;
    let mut command: Command = whimbrel_binary()?;
    command.args(["front", "--quiet", "--join", &coordinator.to_string()]);
    command.args(["--listen", &address.to_string(), "--name", &name(front)]);
    Listening::start(&name(front), command, address, server.dir())
}
