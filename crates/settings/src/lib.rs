//! Options of a command line that come from the environment and from a file as well.
//!
//! What is typed wins over the environment, that over the file, that over an option's default. Nothing here
//! knows an option by its name: all is read from clap's definition of the command line, which stays the only
//! list of options.
//!
//! ```text
//! typed ──────▶ [typed]: what stands on the command line, not judged ─┐
//! WHIMBREL_* ─▶ [environment] ────────────────────────────────────────┼─▶ [merge] ─▶ one line ─▶ clap
//! --config ───▶ [file]: every key checked against the definition ─────┘
//! ```
//!
//! The merged command line goes through clap like a typed one. So a value from a file is checked by the same
//! rules, and what requires or excludes it is found. Where neither file nor environment say anything, clap
//! gets what was typed.

mod environment;
mod file;
pub mod help;
mod merge;
pub mod pages;
pub mod reference;
mod setting;
mod shape;
mod show;
mod sources;
#[cfg(test)]
mod tests;
mod typed;
pub mod values;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error};
use clap::{Command, FromArgMatches};

pub use self::setting::{Origin, Surroundings};
pub use self::shape::{options, variable, with_paths};
pub use self::show::{Effective, Shown, of_command, of_sources};

use self::merge::Merged;

/// The command line as it is in force, with what environment and file add to it.
///
/// # Errors
/// Of clap: for a command line that makes no sense, for a file that cannot be read or says what no command
/// knows, and for a value that an option does not take.
pub fn parse<Cli: FromArgMatches>(
    command: &Command,
    arguments: &[OsString],
    around: Surroundings<'_>,
) -> Result<Cli, Error> {
    // Usually nothing is to be merged. Then clap builds the typed command only, and not all of them twice.
    let mut parsing = command.clone();
    if let Ok(mut matches) = parsing.try_get_matches_from_mut(arguments)
        && sources::add_nothing(&parsing, &matches, around)
    {
        return Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut parsing));
    }
    let merged = sources::merged(command, arguments, around)?;
    let Some(merged) = merged.filter(|merged| !merged.is_as_typed()) else {
        return parse_plainly(command, arguments);
    };
    parse_plainly(command, &merged.arguments()).map_err(|error| with_origins(error, &merged))
}

fn parse_plainly<Cli: FromArgMatches>(command: &Command, arguments: &[OsString]) -> Result<Cli, Error> {
    let mut matches = command.clone().try_get_matches_from(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command.clone()))
}

/// Adds where the options stand that clap complains about, unless they were typed.
fn with_origins(mut error: Error, merged: &Merged) -> Error {
    let named: Vec<String> = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .into_iter()
        .flat_map(|kind| match error.get(kind) {
            Some(ContextValue::String(one)) => vec![one.clone()],
            Some(ContextValue::Strings(several)) => several.clone(),
            _ => Vec::new(),
        })
        .collect();
    let tips: Vec<_> = named.iter().filter_map(|shown| merged.whereabouts(shown)).map(Into::into).collect();
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}
