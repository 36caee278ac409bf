//! `whimbrel demo copy`: a real copy between two real servers, and its proof.

use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::cmd;
use whimbrel_core::units::format_count;
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::check;
use whimbrel_loadgen::child::{self, Ended};
use whimbrel_loadgen::data::{self, DataSet};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::program::full_version;

use crate::stage::{Outcome, duration, own_binary, patient_connection, print, shown_code};

/// Keys that are read from both servers.
const SAMPLE_KEYS: usize = 1000;

/// Starts two servers, fills one, copies it into the other with this same binary as a user would, and proves
/// by other means than `verify` that both are equal. Everything is gone afterwards.
///
/// # Errors
/// When the servers are not on this machine or go away, or something of our own fails.
pub fn show(engine: Engine, key_count: u64, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let keys = format_count(key_count);
    print(&format!(
        "This starts two real servers ({}), fills one with {keys} keys, copies them into the other with\n\
         `whimbrel copy --verify`, and then proves by other means that both hold the same.\n\
         All of it happens on loopback; servers and files are gone when it ends.\n",
        full_version(engine)
    ))?;
    let source = Server::builder(engine).name("source").start()?;
    let target = Server::builder(engine).name("target").start()?;
    print(&format!("1. The source listens at {}, the target at {}.", source.addr(), target.addr()))?;

    print(&format!("2. Filling the source with {keys} keys: {}.", DataSet::Demo.content()))?;
    let started = Instant::now();
    data::fill(&mut patient_connection(&source)?, DataSet::Demo, key_count, interrupt)?;
    print(&format!("   That took {}.", duration(started.elapsed())))?;

    let (status, wall) = copy(&source, &target, interrupt)?;
    if !status.success() {
        print(&format!("\nThe copy has failed, with exit code {}.", shown_code(status)))?;
        return Ok(Outcome::of_failed(status));
    }
    interrupt.check()?;

    print("\n4. The proof, by other means than whimbrel's own:")?;
    let is_proven = prove(&source, &target)?;
    source.stop()?;
    target.stop()?;
    if !is_proven {
        print("\nThe servers are NOT equal.")?;
        return Ok(Outcome::Different);
    }
    let rate = (key_count as f64 / wall.as_secs_f64()).round() as u64;
    print(&format!(
        "\n{keys} keys copied and verified in {}, {} keys/s for both together, and proven equal. Both \
         servers are stopped.",
        duration(wall),
        format_count(rate)
    ))?;
    Ok(Outcome::Proven)
}

/// Runs this binary as a user would, with its progress and report on the user's terminal.
fn copy(source: &Server, target: &Server, interrupt: &Interrupt) -> anyhow::Result<(ExitStatus, Duration)> {
    let state = tempfile::Builder::new().prefix("whimbrel-demo-").tempdir()?;
    let mut command = own_binary()?;
    command.arg("copy").args([source.addr(), target.addr()]).arg("--verify");
    // A journal of this is of no use to anybody later.
    command.arg("--state-dir").arg(state.path());
    print(&format!("3. $ whimbrel copy {} {} --verify\n", source.addr(), target.addr()))?;
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
    print(&format!(
        "   DBSIZE         source {}, target {}: {}",
        format_count(comparison.source_keys),
        format_count(comparison.target_keys),
        verdict(are_counts_equal)
    ))?;
    let are_digests_equal = source_digest == target_digest;
    print(&format!(
        "   DEBUG DIGEST   source {source_digest}\n                  target {target_digest}: \
            {}\n                  \
         (the servers' own checksum over all keys and values)",
        verdict(are_digests_equal)
    ))?;
    let are_samples_equal = comparison.different == 0 && comparison.expiry_off_ms_max == 0;
    print(&format!(
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
