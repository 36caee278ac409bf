//! The binaries that are run: whimbrel, which is measured, and this one again, as a part of a measurement.

use std::process::Command;

use anyhow::{Context, ensure};
use whimbrel_loadgen::program;

/// The whimbrel binary, which stands beside this one.
///
/// # Errors
/// When it is not there.
pub fn whimbrel_binary() -> anyhow::Result<Command> {
    let path = std::env::current_exe().context("find this binary")?.with_file_name("whimbrel");
    ensure!(path.is_file(), "{} is missing: `./dev bench` builds it", path.display());
    Ok(program::whimbrel(&path))
}

/// This binary, to be run again in another role.
///
/// # Errors
/// When it cannot be found.
pub fn this_binary() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("find this binary")?))
}
