//! The binaries that are run: whimbrel, which is measured, and this one again, as a part of a measurement.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use whimbrel_loadgen::program;

/// Which whimbrel is measured, where it is not the one beside this binary.
pub const MEASURED: &str = "WHIMBREL_BENCH_BINARY";

/// The whimbrel binary: the one that [`MEASURED`] names, or the one beside this binary.
///
/// # Errors
/// When it is not there.
pub fn whimbrel_binary() -> anyhow::Result<Command> {
    let path = match std::env::var_os(MEASURED) {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe().context("find this binary")?.with_file_name("whimbrel"),
    };
    ensure!(path.is_file(), "{} is missing: `./dev bench` builds it", path.display());
    Ok(program::whimbrel(&path))
}

/// The arguments by which a command asks nothing: `--yes`, but for an older binary that has no questions
/// there.
///
/// # Errors
/// When the binary is not there, or cannot be run.
pub fn without_questions(command: &str) -> anyhow::Result<&'static [&'static str]> {
    let help = whimbrel_binary()?.args([command, "--help"]).output().context("ask for its options")?;
    let has_questions = String::from_utf8_lossy(&help.stdout).contains("--yes");
    Ok(if has_questions { &["--yes"] } else { &[] })
}

/// This binary, to be run again in another role.
///
/// # Errors
/// When it cannot be found.
pub fn this_binary() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("find this binary")?))
}
