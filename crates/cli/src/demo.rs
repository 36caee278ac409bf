//! `whimbrel demo`: a real copy between two real servers, and its proof.

use std::io::{Write, stdout};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::{Connection, cmd};
use whimbrel_core::units::{format_count, format_duration_ms};
use whimbrel_lab::{Engine, Server};

use crate::args::DemoArgs;
use crate::bench::check;
use crate::bench::child::{self, Ended};
use crate::bench::contender::own_binary;
use crate::bench::data::{self, DataSet};
use crate::bench::interrupt::{self, Interrupt};
use crate::bench::machine::full_version;
use crate::exit::Exit;

/// What every Debian 12 has.
const ENGINE: Engine = Engine::Redis70;

/// Keys that are read from both servers.
const SAMPLE_KEYS: usize = 1000;

/// A digest of very many keys takes its time.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// Starts two servers, fills one, copies it into the other with this same binary as a user would, and proves by other
/// means than `verify` that both are equal. Everything is gone afterwards.
///
/// # Errors
/// When the servers are not on this machine or go away, or something of our own fails.
pub fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    interrupt::run(|interrupt| show(args, interrupt))
}

fn show(args: &DemoArgs, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let keys = format_count(args.keys);
    say(&format!(
        "This starts two real servers ({}), fills one with {keys} keys, copies them into the other with\n\
         `whimbrel copy --verify`, and then proves by other means that both hold the same.\n\
         All of it happens on loopback; servers and files are gone when it ends.\n",
        full_version(ENGINE)
    ))?;
    let source = Server::builder(ENGINE).name("source").start()?;
    let target = Server::builder(ENGINE).name("target").start()?;
    say(&format!("1. The source listens at {}, the target at {}.", source.addr(), target.addr()))?;

    say(&format!("2. Filling the source with {keys} keys: {}.", DataSet::Demo.content()))?;
    let started = Instant::now();
    data::fill(&mut patient_connection(&source)?, DataSet::Demo, args.keys, interrupt)?;
    say(&format!("   That took {}.", duration(started.elapsed())))?;

    let (status, wall) = copy(&source, &target, interrupt)?;
    if !status.success() {
        let exit = exit_of(status);
        say(&format!("\nThe copy has failed, with exit code {}.", exit as u8))?;
        return Ok(exit);
    }
    interrupt.check()?;

    say("\n4. The proof, by other means than whimbrel's own:")?;
    let is_proven = prove(&source, &target)?;
    source.stop()?;
    target.stop()?;
    if !is_proven {
        say("\nThe servers are NOT equal.")?;
        return Ok(Exit::Different);
    }
    let rate = (args.keys as f64 / wall.as_secs_f64()).round() as u64;
    say(&format!(
        "\n{keys} keys copied and verified in {}, {} keys/s for both together, and proven equal. Both servers are \
         stopped.",
        duration(wall),
        format_count(rate)
    ))?;
    Ok(Exit::Success)
}

/// Runs this binary as a user would, with its progress and report on the user's terminal.
fn copy(source: &Server, target: &Server, interrupt: &Interrupt) -> anyhow::Result<(ExitStatus, Duration)> {
    let state = tempfile::Builder::new().prefix("whimbrel-demo-").tempdir()?;
    let mut command = own_binary()?;
    command.arg("copy").args([source.addr(), target.addr()]).arg("--verify");
    // A journal of this is of no use to anybody later.
    command.arg("--state-dir").arg(state.path());
    say(&format!("3. $ whimbrel copy {} {} --verify\n", source.addr(), target.addr()))?;
    match child::run(&mut command, None, interrupt)? {
        Ended::Exited { status, wall, .. } => Ok((status, wall)),
        Ended::TimedOut => unreachable!("there was no limit"),
    }
}

/// Compares what the servers themselves say, and what a plain client reads.
fn prove(source: &Server, target: &Server) -> anyhow::Result<bool> {
    let (source_digest, target_digest) = thread::scope(|scope| {
        let of_target = scope.spawn(|| digest(target));
        let of_source = digest(source);
        let of_target = of_target.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the digest failed")));
        of_source.and_then(|of_source| of_target.map(|of_target| (of_source, of_target)))
    })?;
    let mut connections = (patient_connection(source)?, patient_connection(target)?);
    let comparison = check::compare(&mut connections.0, &mut connections.1, SAMPLE_KEYS)?;
    let verdict = |is_equal: bool| if is_equal { "equal" } else { "DIFFERENT" };

    let are_counts_equal = comparison.source_keys == comparison.target_keys;
    say(&format!(
        "   DBSIZE         source {}, target {}: {}",
        format_count(comparison.source_keys),
        format_count(comparison.target_keys),
        verdict(are_counts_equal)
    ))?;
    let are_digests_equal = source_digest == target_digest;
    say(&format!(
        "   DEBUG DIGEST   source {source_digest}\n                  target {target_digest}: {}\n                  \
         (the servers' own checksum over all keys and values)",
        verdict(are_digests_equal)
    ))?;
    let are_samples_equal = comparison.different == 0 && comparison.expiry_off_ms_max == 0;
    say(&format!(
        "   Plain reads    {} random keys read from both by type, with expiry times to the millisecond: {}",
        format_count(comparison.sampled),
        match &comparison.example {
            Some(example) => format!("{} DIFFERENT, such as {example}", comparison.different),
            None if are_samples_equal => "all equal".to_owned(),
            None => format!("expiry times up to {} ms apart", comparison.expiry_off_ms_max),
        }
    ))?;
    Ok(are_counts_equal && are_digests_equal && are_samples_equal)
}

fn digest(server: &Server) -> anyhow::Result<String> {
    let mut connection = patient_connection(server)?;
    cmd("DEBUG").arg("DIGEST").query(&mut connection).context("DEBUG DIGEST")
}

fn patient_connection(server: &Server) -> anyhow::Result<Connection> {
    let connection = server.try_connection()?;
    connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
    Ok(connection)
}

/// The exit code of the copy is ours as well. One that was killed has none.
fn exit_of(status: ExitStatus) -> Exit {
    Exit::TABLE
        .into_iter()
        .map(|(exit, _)| exit)
        .find(|exit| status.code() == Some(i32::from(*exit as u8)))
        .unwrap_or(Exit::Internal)
}

fn duration(duration: Duration) -> String {
    format_duration_ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Not `println!`, which panics where standard output is a pipe that nobody reads any more.
fn say(text: &str) -> anyhow::Result<()> {
    writeln!(stdout(), "{text}").context("write to standard output")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn the_copy_decides_the_exit_code() {
        assert_eq!(exit_of(ExitStatus::from_raw(6 << 8)), Exit::Different);
        assert_eq!(exit_of(ExitStatus::from_raw(130 << 8)), Exit::Stopped);
        assert_eq!(exit_of(ExitStatus::from_raw(9)), Exit::Internal, "killed by a signal");
    }
}
