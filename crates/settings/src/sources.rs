//! All that is said about a command: what was typed, by the environment and in the file.

use std::ffi::OsString;

use clap::error::Error;
use clap::{ArgMatches, Command};

use crate::environment;
use crate::file::File;
use crate::merge::{self, Merged};
use crate::setting::{Surroundings, problem};
use crate::typed::Typed;

/// The variable that names the file where `--config` is not typed.
const CONFIG_VARIABLE: &str = "WHIMBREL_CONFIG";

/// The variable that names the profile where `--profile` is not typed.
const PROFILE_VARIABLE: &str = "WHIMBREL_PROFILE";

/// Everything that is said about the command that was typed. Nothing where what was typed is no command line,
/// which clap then explains.
pub(crate) fn merged(
    command: &Command,
    arguments: &[OsString],
    around: Surroundings<'_>,
) -> Result<Option<Merged>, Error> {
    let mut command = command.clone();
    command.build();
    let Some(typed) = Typed::read(&command, arguments) else { return Ok(None) };
    let file = chosen_file(&command, typed.value_of("config"), typed.value_of("profile"), around)?;
    let from_file = match file {
        Some((file, profile)) => file.settings(&command, &typed.path, profile.as_deref())?,
        None => Vec::new(),
    };
    let from_environment = environment::settings(&command, &typed.path, around)?;
    Ok(Some(merge::merge(&command, typed, [from_environment, from_file])))
}

/// True where neither a file nor the environment says anything about the command that was typed.
pub(crate) fn add_nothing(command: &Command, matches: &ArgMatches, around: Surroundings<'_>) -> bool {
    let (mut path, mut matches) = (Vec::new(), matches);
    while let Some((name, below)) = matches.subcommand() {
        path.push(name.to_owned());
        matches = below;
    }
    let is_typed = |id: &&str| matches.ids().any(|found| found == *id);
    let is_set = |name: &&str| (around.variable)(name).is_some_and(|value| !value.is_empty());
    // What is wrong is reported where all sources are read.
    let is_silent =
        || environment::settings(command, &path, around).is_ok_and(|settings| settings.is_empty());
    !["config", "profile"].iter().any(is_typed)
        && ![CONFIG_VARIABLE, PROFILE_VARIABLE].iter().any(is_set)
        && is_silent()
}

/// The file and the profile, as typed or named by the environment.
pub(crate) fn chosen_file(
    command: &Command,
    config: Option<&OsString>,
    profile: Option<&OsString>,
    around: Surroundings<'_>,
) -> Result<Option<(File, Option<OsString>)>, Error> {
    let given = |typed: Option<&OsString>, variable: &str| {
        typed.cloned().or_else(|| (around.variable)(variable).filter(|value| !value.is_empty()))
    };
    let profile = given(profile, PROFILE_VARIABLE);
    match given(config, CONFIG_VARIABLE) {
        Some(path) => Ok(Some((File::read(command, path.into(), around)?, profile))),
        None if profile.is_none() => Ok(None),
        None => {
            Err(problem("a profile is named, but no file that has it\n       name the file with --config"))
        }
    }
}
