//! The ways to copy that are measured beside each other.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::cmd;
use whimbrel_lab::{LabError, Server};
use whimbrel_loadgen::child::{self, Ended};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::program::{find_on_path, last_words};

use crate::binaries::whimbrel_binary;

/// COUNT of each SCAN that feeds MIGRATE.
const MIGRATE_SCAN_COUNT: u32 = 1000;

/// Keys in one MIGRATE.
const MIGRATE_BATCH_KEYS: usize = 100;

/// Given to MIGRATE: how long the servers may be silent towards each other.
const MIGRATE_TIMEOUT_MS: u32 = 60_000;

/// Precision of the time that is measured for a full sync.
const SYNC_POLL: Duration = Duration::from_millis(5);

/// One way to copy all keys of a source into an empty target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// `whimbrel copy`.
    Whimbrel,
    /// `whimbrel sync`, until nothing is left to transfer.
    WhimbrelSync,
    /// A full sync between the servers themselves.
    Replicaof,
    /// The MIGRATE command, driven by a script.
    Migrate,
    /// go-redis-migrate.
    GoRedisMigrate,
    /// RedisShake, reading with SCAN and DUMP.
    RedisShakeScan,
    /// RedisShake, reading as a replica.
    RedisShakeSync,
}

/// Where and how long a contender may work.
pub struct Allotment<'a> {
    /// Holds the keys.
    pub source: &'a Server,
    /// Newly started and empty.
    pub target: &'a Server,
    /// How many keys there are.
    pub keys: u64,
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
    },
    /// It was stopped because it took too long.
    TimedOut,
    /// It gave up, with this reason.
    Failed(String),
}

impl Contender {
    /// All of them. Whimbrel first: the others are compared with it.
    pub const ALL: [Self; 7] = [
        Self::Whimbrel,
        Self::WhimbrelSync,
        Self::Replicaof,
        Self::Migrate,
        Self::GoRedisMigrate,
        Self::RedisShakeScan,
        Self::RedisShakeSync,
    ];

    /// What the command line and the tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::WhimbrelSync => "whimbrel-sync",
            Self::Replicaof => "replicaof",
            Self::Migrate => "migrate",
            Self::GoRedisMigrate => "go-redis-migrate",
            Self::RedisShakeScan => "redis-shake-scan",
            Self::RedisShakeSync => "redis-shake-sync",
        }
    }

    /// The contender with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|contender| contender.name() == name)
    }

    /// How it is configured.
    pub fn how(self) -> String {
        match self {
            Self::Whimbrel => "whimbrel copy SOURCE TARGET --quiet; lanes and limits as they are by \
                default"
                .to_owned(),
            Self::WhimbrelSync => {
                "whimbrel sync SOURCE TARGET --once --quiet: feed, snapshot, catch-up; all else by \
                    default"
                    .to_owned()
            }
            Self::Replicaof => "REPLICAOF on the target until master_link_status is up and DBSIZE is equal, \
                then REPLICAOF NO ONE; the source sends without a file and without delay (repl-diskless-sync \
                yes, repl-diskless-sync-delay 0), the target loads as it does by default"
                .to_owned(),
            Self::Migrate => format!(
                "SCAN COUNT {MIGRATE_SCAN_COUNT}, then MIGRATE … COPY REPLACE KEYS in batches of \
                 {MIGRATE_BATCH_KEYS}, one connection"
            ),
            Self::GoRedisMigrate => "go-redis-migrate copy SOURCE TARGET --pattern=*; all else by \
                default"
                .to_owned(),
            Self::RedisShakeScan => "redis-shake with scan_reader; all else by default".to_owned(),
            Self::RedisShakeSync => {
                "redis-shake with sync_reader, try_diskless = true, sync_aof = false (so that it ends after \
                 the snapshot); all else by default"
                    .to_owned()
            }
        }
    }

    /// The program that has to be on `PATH`, if it is not ours.
    pub const fn needs(self) -> Option<&'static str> {
        match self {
            Self::Whimbrel | Self::WhimbrelSync | Self::Replicaof | Self::Migrate => None,
            Self::GoRedisMigrate => Some("go-redis-migrate"),
            Self::RedisShakeScan | Self::RedisShakeSync => Some("redis-shake"),
        }
    }

    /// Copies everything.
    ///
    /// # Errors
    /// When the user stops us, or something of our own fails. What the contender fails at is no error: see
    /// [`Ran`].
    pub fn run(self, turn: &Allotment<'_>) -> anyhow::Result<Ran> {
        match self {
            Self::Whimbrel => run_program(turn, &mut whimbrel(turn, &["copy"])?),
            Self::WhimbrelSync => run_program(turn, &mut whimbrel(turn, &["sync", "--once"])?),
            Self::GoRedisMigrate => {
                let mut command = on_path_command("go-redis-migrate")?;
                command.arg("copy").args([turn.source.addr(), turn.target.addr()]).arg("--pattern=*");
                run_program(turn, &mut command)
            }
            Self::RedisShakeScan => {
                let reader = format!("[scan_reader]\naddress = \"{}\"\n", turn.source.addr());
                run_program(turn, &mut redis_shake(turn, &reader)?)
            }
            Self::RedisShakeSync => {
                let address = turn.source.addr();
                let reader = format!(
                    "[sync_reader]\naddress = \"{address}\"\nsync_aof = false\ntry_diskless = true\n"
                );
                run_program(turn, &mut redis_shake(turn, &reader)?)
            }
            Self::Replicaof => refused_is_failed(replicaof(turn)),
            Self::Migrate => refused_is_failed(migrate(turn)),
        }
    }
}

fn on_path_command(program: &str) -> anyhow::Result<Command> {
    let path = find_on_path(program).with_context(|| format!("{program} is no longer on PATH"))?;
    // It will run in another folder.
    Ok(Command::new(std::path::absolute(path)?))
}

fn whimbrel(turn: &Allotment<'_>, what: &[&str]) -> anyhow::Result<Command> {
    let mut command = whimbrel_binary()?;
    command.args(what).args([turn.source.addr(), turn.target.addr()]).arg("--quiet");
    command.arg("--state-dir").arg(turn.scratch.join("state"));
    Ok(command)
}

fn redis_shake(turn: &Allotment<'_>, reader: &str) -> anyhow::Result<Command> {
    let config = turn.scratch.join("shake.toml");
    let writer = format!("\n[redis_writer]\naddress = \"{}\"\n", turn.target.addr());
    fs::write(&config, reader.to_owned() + &writer)?;
    let mut command = on_path_command("redis-shake")?;
    command.arg(&config);
    Ok(command)
}

/// The program's output goes into a file: it is only of interest if the program fails.
fn run_program(turn: &Allotment<'_>, command: &mut Command) -> anyhow::Result<Ran> {
    let output = turn.scratch.join("output");
    let file = File::create(&output)?;
    command.stdin(std::process::Stdio::null()).stdout(file.try_clone()?).stderr(file);
    command.current_dir(turn.scratch);
    Ok(match child::run(command, Some(turn.limit), turn.interrupt)? {
        Ended::TimedOut => Ran::TimedOut,
        Ended::Exited { status, wall, cpu } if status.success() => Ran::Done { wall, tool_cpu: Some(cpu) },
        Ended::Exited { status, .. } => {
            let output = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
            Ran::Failed(format!("{status}: {}", last_words(&output)))
        }
    })
}

/// A server that refuses a command, or goes away, fails the contender and not the measurement.
fn refused_is_failed(outcome: anyhow::Result<Ran>) -> anyhow::Result<Ran> {
    match outcome {
        Err(error) if error.is::<redis::RedisError>() || error.is::<LabError>() => {
            Ok(Ran::Failed(format!("{error:#}")))
        }
        other => other,
    }
}

fn replicaof(turn: &Allotment<'_>) -> anyhow::Result<Ran> {
    let mut target = turn.target.try_connection()?;
    let started = Instant::now();
    cmd("REPLICAOF").arg("127.0.0.1").arg(turn.source.port()).exec(&mut target)?;
    let wall = loop {
        let info: String = cmd("INFO").arg("replication").query(&mut target)?;
        let is_up = info.lines().any(|line| line == "master_link_status:up");
        if is_up && cmd("DBSIZE").query::<u64>(&mut target)? == turn.keys {
            break Some(started.elapsed());
        }
        if started.elapsed() >= turn.limit {
            break None;
        }
        turn.interrupt.check()?;
        thread::sleep(SYNC_POLL);
    };
    cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut target)?;
    Ok(wall.map_or(Ran::TimedOut, |wall| Ran::Done { wall, tool_cpu: None }))
}

fn migrate(turn: &Allotment<'_>) -> anyhow::Result<Ran> {
    let cpu_before = child::own_cpu()?;
    let started = Instant::now();
    let mut source = turn.source.try_connection()?;
    let mut cursor = 0_u64;
    loop {
        let (next, keys): (u64, Vec<Vec<u8>>) =
            cmd("SCAN").arg(cursor).arg("COUNT").arg(MIGRATE_SCAN_COUNT).query(&mut source)?;
        for batch in keys.chunks(MIGRATE_BATCH_KEYS) {
            cmd("MIGRATE")
                .arg("127.0.0.1")
                .arg(turn.target.port())
                .arg("")
                .arg(0)
                .arg(MIGRATE_TIMEOUT_MS)
                .arg("COPY")
                .arg("REPLACE")
                .arg("KEYS")
                .arg(batch)
                .exec(&mut source)?;
        }
        if next == 0 {
            break;
        }
        cursor = next;
        if started.elapsed() >= turn.limit {
            return Ok(Ran::TimedOut);
        }
        turn.interrupt.check()?;
    }
    let wall = started.elapsed();
    Ok(Ran::Done { wall, tool_cpu: Some(child::own_cpu()?.saturating_sub(cpu_before)) })
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
    }
}
