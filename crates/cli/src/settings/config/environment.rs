//! Options from the environment: `WHIMBREL_` and the option's name in capitals.

use clap::error::Error;
use clap::{Arg, Command};

use super::shape;
use super::{Origin, Setting, Variables, problem};

/// What the environment says about the options of the command at `path`. An empty variable says nothing.
///
/// # Errors
/// For a flag that is neither on nor off.
pub fn settings(command: &Command, path: &[String], variables: Variables) -> Result<Vec<Setting>, Error> {
    let Some(command) = settable(command, path) else { return Ok(Vec::new()) };
    shape::options(command).filter_map(|arg| setting(arg, variables).transpose()).collect()
}

/// The command at `path`, if files and environment may set options of it.
pub fn settable<'a>(command: &'a Command, path: &[String]) -> Option<&'a Command> {
    let is_listed =
        shape::commands(command).any(|sub| Some(sub.get_name()) == path.first().map(String::as_str));
    if is_listed { shape::at(command, path) } else { None }
}

fn setting(arg: &Arg, variables: Variables) -> Result<Option<Setting>, Error> {
    let variable = shape::variable(arg);
    let Some(value) = variables(&variable).filter(|value| !value.is_empty()) else { return Ok(None) };
    let values = match value.to_str().map(shape::parse_switch) {
        _ if !shape::is_flag(arg) => vec![value],
        Some(Some(true)) => vec!["true".into()],
        Some(Some(false)) => Vec::new(),
        _ => {
            return Err(problem(format!(
                "{variable} is neither on nor off\n       write true or false, or unset it"
            )));
        }
    };
    Ok(Some(Setting { arg: arg.clone(), values, origin: Origin::Variable(variable) }))
}
