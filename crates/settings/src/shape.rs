//! What clap's definition says about options, by the names that files and the environment use.

use clap::{Arg, ArgAction, Command};

/// What can be set: by name as in `--source-password-file`; a positional by the name of its field.
pub(crate) fn name(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().replace('_', "-"), str::to_owned)
}

/// The variable of an option.
pub fn variable(arg: &Arg) -> String {
    format!("WHIMBREL_{}", name(arg).replace('-', "_").to_uppercase())
}

/// What a file and the environment may set of a command: all but what asks for help, and what names the file.
pub fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_option = |arg: &&Arg| {
        let asks = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !asks && !matches!(arg.get_id().as_str(), "config" | "profile")
    };
    command.get_arguments().filter(is_option)
}

/// The commands that have options in a file: not those that only explain.
pub(crate) fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    let is_explained = |sub: &&Command| !matches!(sub.get_name(), "help" | "completions" | "man" | "config");
    command.get_subcommands().filter(is_explained)
}

/// The command that a path of names leads to.
pub(crate) fn at<'a>(command: &'a Command, path: &[String]) -> Option<&'a Command> {
    path.iter().try_fold(command, |command, name| command.find_subcommand(name))
}

/// True for an option that is on or off, and has no value.
pub(crate) fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
}

/// True for an option that may have several values.
pub(crate) fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_num_args().is_some_and(|n| n.max_values() > 1)
}

/// What a flag's word means.
pub(crate) fn parse_switch(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// The command and all below it that have options in a file, with the path to each.
pub fn with_paths(command: &Command) -> Vec<(Vec<String>, &Command)> {
    let mut found = vec![(Vec::new(), command)];
    for sub in commands(command) {
        for (path, below) in with_paths(sub) {
            found.push((std::iter::once(sub.get_name().to_owned()).chain(path).collect(), below));
        }
    }
    found
}

/// True where two options of a command exclude each other.
pub(crate) fn are_exclusive(command: &Command, one: &Arg, other: &Arg) -> bool {
    let names = |arg: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(arg).iter().any(|found| found.get_id() == other.get_id())
    };
    let share_a_group = || {
        command.get_groups().any(|group| {
            let has = |arg: &Arg| group.get_args().any(|id| id == arg.get_id());
            has(one) && has(other) && !group.clone().is_multiple()
        })
    };
    names(one, other) || names(other, one) || share_a_group()
}

/// The command at `path`, if files and environment may set options of it.
pub(crate) fn settable<'a>(command: &'a Command, path: &[String]) -> Option<&'a Command> {
    let is_listed = commands(command).any(|sub| Some(sub.get_name()) == path.first().map(String::as_str));
    if is_listed { at(command, path) } else { None }
}
