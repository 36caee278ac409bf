//! Options from the environment and from a file, besides those that are typed.
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
mod merge;
mod shape;
mod show;
#[cfg(test)]
mod tests;
mod typed;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, Command, FromArgMatches};

pub use self::show::{of_command, of_sources};

use self::file::File;
use self::merge::Merged;
use self::typed::Typed;
use crate::settings::args::Cli;

/// The variable that names the file where `--config` is not typed.
const CONFIG_VARIABLE: &str = "WHIMBREL_CONFIG";

/// The variable that names the profile where `--profile` is not typed.
const PROFILE_VARIABLE: &str = "WHIMBREL_PROFILE";

/// How a variable of the environment is read.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Typed,
    /// A variable of the environment, by its name.
    Variable(String),
    /// A line of the file; counted from 1.
    Line { file: PathBuf, line: usize },
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Typed => f.write_str("command line"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Line { file, line } => write!(f, "{}:{line}", file.display()),
        }
    }
}

/// What one source says about one option.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The option, as clap defines it.
    pub arg: Arg,
    /// Its values, a string each; none for a flag that is off.
    pub values: Vec<OsString>,
    /// Where it stands.
    pub origin: Origin,
}

/// The command line as it is in force, with what environment and file add to it.
///
/// # Errors
/// Of clap: for a command line that makes no sense, for a file that cannot be read or says what no command
/// knows, and for a value that an option does not take.
pub fn parse(command: &Command, arguments: &[OsString], variables: Variables) -> Result<Cli, Error> {
    let merged = merged(command, arguments, variables)?;
    let Some(merged) = merged.filter(|merged| !merged.is_as_typed()) else {
        return parse_plainly(command, arguments);
    };
    parse_plainly(command, &merged.arguments()).map_err(|error| with_origins(error, &merged))
}

/// Everything that is said about the command that was typed. Nothing where what was typed is no command line,
/// which clap then explains.
fn merged(command: &Command, arguments: &[OsString], variables: Variables) -> Result<Option<Merged>, Error> {
    let mut command = command.clone();
    command.build();
    let Some(typed) = Typed::read(&command, arguments) else { return Ok(None) };
    let file = chosen_file(&command, typed.value_of("config"), typed.value_of("profile"), variables)?;
    let from_file = match file {
        Some((file, profile)) => file.settings(&command, &typed.path, profile.as_deref())?,
        None => Vec::new(),
    };
    let from_environment = environment::settings(&command, &typed.path, variables)?;
    Ok(Some(merge::merge(&command, typed, [from_environment, from_file])))
}

/// The file and the profile, as typed or named by the environment.
fn chosen_file(
    command: &Command,
    config: Option<&OsString>,
    profile: Option<&OsString>,
    variables: Variables,
) -> Result<Option<(File, Option<OsString>)>, Error> {
    let said = |typed: Option<&OsString>, variable: &str| {
        typed.cloned().or_else(|| variables(variable).filter(|value| !value.is_empty()))
    };
    let profile = said(profile, PROFILE_VARIABLE);
    match said(config, CONFIG_VARIABLE) {
        Some(path) => Ok(Some((File::read(command, path.into())?, profile))),
        None if profile.is_none() => Ok(None),
        None => {
            Err(problem("a profile is named, but no file that has it\n       name the file with --config"))
        }
    }
}

fn parse_plainly(command: &Command, arguments: &[OsString]) -> Result<Cli, Error> {
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

/// A mistake in file or environment, as an error of clap: what is wrong, and what to do.
fn problem(text: impl std::fmt::Display) -> Error {
    Error::raw(ErrorKind::ValueValidation, format!("{text}\n"))
}
