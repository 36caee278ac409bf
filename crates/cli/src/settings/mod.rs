//! What the user typed, and what it resolves to.

pub mod args;
pub mod endpoints;
mod help;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod reference;
mod selection;
#[cfg(test)]
mod tests;

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::Error;
use whimbrel_settings::{Surroundings, help::explain};

use self::args::Cli;

/// The definition of the command line, with what the help texts leave out until they are asked for.
pub fn command() -> clap::Command {
    whimbrel_settings::help::decorate(Cli::command(), &help::USUAL)
}

/// What the user typed, with what environment and file add to it.
///
/// # Errors
/// Of clap, also where nothing but help was asked for.
pub fn parse(arguments: &[OsString]) -> Result<Cli, Error> {
    let command = command();
    whimbrel_settings::parse(&command, arguments, around())
        .map_err(|error| explain(error, &command, arguments))
}

/// What this process has around it.
pub fn around() -> Surroundings<'static> {
    Surroundings {
        variable: &|name| std::env::var_os(name),
        holds_secret: &|file| {
            let what = "the configuration, which may hold a password,";
            let warning = whimbrel_control::private::warning_if_shared(file, what);
            warning.iter().for_each(|words| eprintln!("{words}"));
        },
    }
}
