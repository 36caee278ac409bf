//! The ways to move slots that are measured beside each other.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::{Value, cmd};
use whimbrel_lab::{Engine, LabError};
use whimbrel_loadgen::child::{self, Ended};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::program::last_words;

use super::fleet::{Fleet, ranges_of};
use crate::binaries::whimbrel_binary;

/// Precision of the time that is measured where a server does all by itself.
const POLL: Duration = Duration::from_millis(3);

/// A way to move slots between the nodes of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Contender {
    /// The engine's own tool, key by key.
    Legacy,
    /// This program, from outside.
    External,
    /// The engine's own tool, with the built-in migration.
    CliAtomic,
    /// The built-in migration, bare.
    Migrateslots,
    /// This program, with the built-in migration.
    Native,
}

/// What is to move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Goal {
    /// The last primary has no slots and gets its share.
    Out,
    /// The last primary gives all its slots to the others.
    In,
    /// This many slots from slot 0 on go from the first primary to the second.
    Slots(u16),
}

/// Where and how long a contender may work.
pub struct Allotment<'a> {
    /// The cluster.
    pub fleet: &'a Fleet,
    /// What to do.
    pub goal: &'a Goal,
    /// Given to this program besides what the contender's name says.
    pub more_args: &'a [String],
    /// After this time the contender is stopped.
    pub limit: Duration,
    /// A folder for the contender's files, gone afterwards.
    pub scratch: &'a Path,
    /// Whether the user wants to stop.
    pub interrupt: &'a Interrupt,
}

/// How a contender's turn ended.
#[derive(Debug)]
pub enum Ran {
    /// It says that it is done.
    Done {
        /// How long it took.
        wall: Duration,
        /// Processor time of the tool; `None` where the servers do all by themselves.
        tool_cpu: Option<Duration>,
        /// The last line of its JSON, where it has one.
        report: Option<serde_json::Value>,
    },
    /// It was stopped because it took too long.
    TimedOut,
    /// It gave up, with this reason.
    Failed(String),
}

impl Contender {
    /// All of them. Legacy first: the others are compared with it.
    pub const ALL: [Self; 5] =
        [Self::Legacy, Self::External, Self::CliAtomic, Self::Migrateslots, Self::Native];

    /// What the command line and the tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::External => "whimbrel-external",
            Self::CliAtomic => "cli-atomic",
            Self::Migrateslots => "migrateslots",
            Self::Native => "whimbrel-native",
        }
    }

    /// The contender with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|contender| contender.name() == name)
    }

    /// How it is configured.
    pub const fn how(self) -> &'static str {
        match self {
            Self::Legacy => {
                "redis-cli or valkey-cli of the same version: --cluster rebalance (reshard, where certain \
                 slots move), all else by default"
            }
            Self::External => "whimbrel rebalance, drain or reshard --method external, all else by default",
            Self::CliAtomic => "as legacy, with --cluster-use-atomic-slot-migration",
            Self::Migrateslots => {
                "CLUSTER MIGRATESLOTS on every source at once, until CLUSTER GETSLOTMIGRATIONS says success"
            }
            Self::Native => "whimbrel rebalance, drain or reshard --method native, all else by default",
        }
    }

    /// Whether this version can take part.
    pub fn is_possible_on(self, engine: Engine) -> bool {
        match self {
            Self::Legacy | Self::External => true,
            Self::CliAtomic | Self::Migrateslots | Self::Native => engine.is_valkey() && engine.major() >= 9,
        }
    }

    /// Whether it is this program.
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::External | Self::Native)
    }

    /// Moves the slots.
    ///
    /// # Errors
    /// When the user stops us, or something of our own fails. What the contender fails at is no error: see
    /// [`Ran`].
    pub fn run(self, turn: &Allotment<'_>) -> anyhow::Result<Ran> {
        match self {
            Self::Legacy => run_program(turn, &mut engine_cli(turn, &[])?),
            Self::CliAtomic => {
                run_program(turn, &mut engine_cli(turn, &["--cluster-use-atomic-slot-migration"])?)
            }
            Self::External => run_program(turn, &mut whimbrel(turn, "external")?),
            Self::Native => run_program(turn, &mut whimbrel(turn, "native")?),
            Self::Migrateslots => match migrateslots(turn) {
                // A server that refuses a command, or goes away, fails the contender and not the measurement.
                Err(error) if error.is::<redis::RedisError>() || error.is::<LabError>() => {
                    Ok(Ran::Failed(format!("{error:#}")))
                }
                other => other,
            },
        }
    }
}

fn engine_cli(turn: &Allotment<'_>, more: &[&str]) -> anyhow::Result<Command> {
    let cluster = &turn.fleet.cluster;
    let engine = cluster.primaries()[0].engine();
    let mut command = Command::new(engine.binaries()?.cli);
    let last = cluster.primaries().len() - 1;
    let action = if matches!(turn.goal, Goal::Slots(_)) { "reshard" } else { "rebalance" };
    command.arg("--cluster").arg(action).arg(turn.fleet.address(0));
    match turn.goal {
        Goal::Out => command.arg("--cluster-use-empty-masters"),
        Goal::In => command.arg("--cluster-weight").arg(format!("{}=0", cluster.node_id(last))),
        Goal::Slots(count) => command
            .args(["--cluster-from", cluster.node_id(0), "--cluster-to", cluster.node_id(1)])
            .args(["--cluster-slots", &count.to_string(), "--cluster-yes"]),
    };
    command.args(more);
    Ok(command)
}

fn whimbrel(turn: &Allotment<'_>, method: &str) -> anyhow::Result<Command> {
    let cluster = &turn.fleet.cluster;
    let last = cluster.primaries().len() - 1;
    let address = turn.fleet.address(0);
    let mut command = whimbrel_binary()?;
    match turn.goal {
        Goal::Out => command.args(["rebalance", &address, "--use-empty"]),
        Goal::In => command.args(["drain", &address, cluster.node_id(last)]),
        Goal::Slots(count) => {
            let slots = format!("0-{}", count - 1);
            command.args(["reshard", &address, "--slots", &slots, "--to", cluster.node_id(1)])
        }
    };
    command.args(["--yes", "--json", "--method", method]).args(turn.more_args);
    command.arg("--state-dir").arg(turn.scratch.join("state"));
    Ok(command)
}

/// The program's output goes into a file: its last line may be a report, or say why it failed.
fn run_program(turn: &Allotment<'_>, command: &mut Command) -> anyhow::Result<Ran> {
    let (output, errors) = (turn.scratch.join("output"), turn.scratch.join("errors"));
    command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&errors)?);
    command.current_dir(turn.scratch);
    let text = |path: &Path| -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
    };
    Ok(match child::run(command, Some(turn.limit), turn.interrupt)? {
        Ended::TimedOut => Ran::TimedOut,
        Ended::Exited { status, wall, cpu } if status.success() => {
            let report = text(&output)?
                .lines()
                .rev()
                .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
                .find(|line| line["event"] == "report");
            Ran::Done { wall, tool_cpu: Some(cpu), report }
        }
        Ended::Exited { status, .. } => {
            let errors = text(&errors)?;
            let printed = if errors.trim().is_empty() { text(&output)? } else { errors };
            Ran::Failed(format!("{status}: {}", last_words(&printed)))
        }
    })
}

/// Slots that go from one primary to another.
type Moves = Vec<(usize, usize, Vec<u16>)>;

fn moves(fleet: &Fleet, goal: &Goal) -> anyhow::Result<Moves> {
    let slots = fleet.slots()?;
    let last = slots.len() - 1;
    Ok(match goal {
        Goal::Slots(count) => vec![(0, 1, (0..*count).collect())],
        Goal::Out => {
            let share = usize::from(whimbrel_lab::SLOTS) / slots.len();
            slots[..last]
                .iter()
                .enumerate()
                .map(|(source, own)| (source, last, own.iter().copied().skip(share).collect()))
                .collect()
        }
        Goal::In => {
            let each = slots[last].len().div_ceil(last).max(1);
            slots[last].chunks(each).enumerate().map(|(target, own)| (last, target, own.to_vec())).collect()
        }
    })
}

fn migrateslots(turn: &Allotment<'_>) -> anyhow::Result<Ran> {
    let cluster = &turn.fleet.cluster;
    let moves = moves(turn.fleet, turn.goal)?;
    let mut sources: Vec<usize> = moves.iter().map(|(source, ..)| *source).collect();
    sources.dedup();
    let mut connections = sources
        .iter()
        .map(|&source| Ok((source, cluster.primaries()[source].try_connection()?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let before = connections
        .iter_mut()
        .map(|(_, connection)| Ok(jobs(connection)?.len()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let started = Instant::now();
    for (source, connection) in &mut connections {
        let mut command = cmd("CLUSTER");
        command.arg("MIGRATESLOTS");
        for (_, target, slots) in moves.iter().filter(|(from, ..)| from == source) {
            command.arg("SLOTSRANGE");
            for range in ranges_of(slots) {
                command.arg(range.start()).arg(range.end());
            }
            command.arg("NODE").arg(cluster.node_id(*target));
        }
        command.exec(connection)?;
    }
    loop {
        let mut is_done = true;
        for ((_, connection), before) in connections.iter_mut().zip(&before) {
            let jobs = jobs(connection)?;
            // The newest come first.
            let own = &jobs[..jobs.len().saturating_sub(*before)];
            if let Some((state, message)) =
                own.iter().find(|(state, _)| matches!(state.as_str(), "failed" | "cancelled"))
            {
                return Ok(Ran::Failed(format!("{state}: {message}")));
            }
            is_done &= !own.is_empty() && own.iter().all(|(state, _)| state == "success");
        }
        if is_done {
            return Ok(Ran::Done { wall: started.elapsed(), tool_cpu: None, report: None });
        }
        if started.elapsed() >= turn.limit {
            for (_, connection) in &mut connections {
                cmd("CLUSTER").arg("CANCELSLOTMIGRATIONS").exec(connection)?;
            }
            return Ok(Ran::TimedOut);
        }
        turn.interrupt.check()?;
        thread::sleep(POLL);
    }
}

/// State and message of every job that a node remembers.
fn jobs(connection: &mut redis::Connection) -> anyhow::Result<Vec<(String, String)>> {
    let reply: Vec<Value> = cmd("CLUSTER").arg("GETSLOTMIGRATIONS").query(connection)?;
    reply
        .into_iter()
        .map(|job| {
            let mut fields: std::collections::HashMap<String, Value> = redis::from_redis_value(job)?;
            let mut text = |name: &str| -> anyhow::Result<String> {
                let value = fields.remove(name).with_context(|| format!("a job without {name}"))?;
                Ok(redis::from_redis_value(value)?)
            };
            Ok((text("state")?, text("message")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        for contender in Contender::ALL {
            assert_eq!(Contender::from_name(contender.name()), Some(contender));
        }
        assert_eq!(Contender::from_name("rsync"), None);
        assert!(!Contender::Native.is_possible_on(Engine::Redis80));
        assert!(Contender::Native.is_possible_on(Engine::Valkey91));
    }
}
