//! What the help texts show first, and what is said where a command line makes no sense.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, ArgAction, Command};

/// The options that `-h` shows, by the name of their command, with blanks between them.
pub type Usual<'a> = &'a [(&'a str, &'a str)];

/// Leaves out of `-h` what is seldom needed; `--help` shows all.
pub fn decorate(command: Command, usual_options: Usual<'_>) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let mut command = command.mut_args(|arg| hidden(arg, |name| matches!(name, "config" | "profile")));
    // Each of them: a command that is changed becomes the last one, so this keeps their order.
    for name in names {
        let usual = usual_options.iter().find(|(command, _)| *command == name).map(|(_, usual)| *usual);
        command = command.mut_subcommand(name, |sub| match usual {
            Some(usual) => short(sub, usual),
            None => sub,
        });
    }
    command
}

fn short(command: Command, usual: &str) -> Command {
    let name = command.get_name().to_owned();
    let left_out = |arg: &Arg| {
        !arg.is_positional()
            && !arg.get_long().is_some_and(|long| usual.split(' ').any(|shown| shown == long))
    };
    let count = command.get_arguments().filter(|arg| left_out(arg)).count();
    let note = format!("whimbrel {name} --help shows {count} more options");
    let examples = command.get_after_help().map(|text| examples(&text.to_string())).unwrap_or_default();
    let after = format!("{examples}{note}");
    let long = command.get_after_long_help().or(command.get_after_help()).cloned().unwrap_or_default();
    command
        .mut_args(|arg| if left_out(&arg) { arg.hide_short_help(true) } else { arg })
        .after_help(after)
        .after_long_help(long)
}

/// The examples of a text that explains more.
fn examples(text: &str) -> String {
    let lines = text.lines().skip_while(|line| *line != "Examples:").take_while(|line| !line.is_empty());
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    if text.is_empty() { text } else { text + "\n" }
}

fn hidden(arg: Arg, is_meant: impl Fn(&str) -> bool) -> Arg {
    let is_meant = is_meant(arg.get_id().as_str());
    if is_meant { arg.hide_short_help(true) } else { arg }
}

/// Adds to an error what is known and clap does not say: the choices of an option that is missing, and the
/// command that was meant where help was asked for another.
pub fn explain(mut error: Error, command: &Command, arguments: &[OsString]) -> Error {
    match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) {
                let missing = missing.clone();
                let tips: Vec<_> = missing
                    .iter()
                    .filter_map(|shown| choices(command, arguments, shown))
                    .map(Into::into)
                    .collect();
                if !tips.is_empty() {
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
                }
            }
            error
        }
        // As if the command itself had been typed, whose name clap compares with those that there are.
        ErrorKind::InvalidSubcommand if arguments.get(1).is_some_and(|first| first == "help") => {
            let without_help = arguments.iter().take(1).chain(arguments.iter().skip(2));
            command.clone().try_get_matches_from(without_help).err().unwrap_or(error)
        }
        _ => error,
    }
}

/// What an option that is missing may be set to, where there are few choices.
fn choices(command: &Command, arguments: &[OsString], shown: &str) -> Option<String> {
    let mut command = command.clone();
    command.build();
    let mut at = &command;
    for argument in arguments.iter().skip(1) {
        at = argument.to_str().and_then(|name| at.find_subcommand(name)).unwrap_or(at);
    }
    let is_meant = |arg: &&Arg| arg.to_string() == shown && matches!(arg.get_action(), ArgAction::Set);
    let arg = at.get_arguments().find(is_meant)?;
    let names: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect();
    (!names.is_empty()).then(|| format!("{shown} is one of {}", names.join(", ")))
}
