//! What the user typed, and what it resolves to.

pub mod args;
pub mod config;
pub mod endpoints;
mod help;
#[cfg(test)]
mod reference;
mod selection;

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::Error;

use self::args::Cli;

/// The definition of the command line, with what the help texts leave out until they are asked for.
pub fn command() -> clap::Command {
    help::decorate(Cli::command())
}

/// What the user typed, with what environment and file add to it.
///
/// # Errors
/// Of clap, also where nothing but help was asked for.
pub fn parse(arguments: &[OsString]) -> Result<Cli, Error> {
    let command = command();
    config::parse(&command, arguments, &variable).map_err(|error| help::explain(error, &command, arguments))
}

/// A variable of the environment.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}
