//! Options from the environment: `WHIMBREL_` and the option's name in capitals.

use clap::error::Error;
use clap::{Arg, Command};

use crate::setting::{Origin, Setting, Surroundings, problem};
use crate::shape;

/// What the environment says about the options of the command at `path`. An empty variable says nothing.
///
/// # Errors
/// For a flag that is neither on nor off.
pub(crate) fn settings(
    command: &Command,
    path: &[String],
    around: Surroundings<'_>,
) -> Result<Vec<Setting>, Error> {
    let Some(command) = shape::settable(command, path) else { return Ok(Vec::new()) };
    shape::options(command).filter_map(|arg| setting(arg, around).transpose()).collect()
}

fn setting(arg: &Arg, around: Surroundings<'_>) -> Result<Option<Setting>, Error> {
    let variable = shape::variable(arg);
    let Some(value) = (around.variable)(&variable).filter(|value| !value.is_empty()) else { return Ok(None) };
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
