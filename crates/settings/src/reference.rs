//! A reference of commands, written from their definition.

use clap::{Arg, Command};

/// Describes all commands below this one, in Markdown.
pub fn markdown(command: &mut Command) -> String {
    let mut text = String::new();
    describe(command, "", &mut text);
    text
}

fn describe(command: &mut Command, above: &str, text: &mut String) {
    let name = format!("{above}{}", command.get_name());
    // The options of the whole are those of each command.
    if !above.is_empty() {
        let usage = command.render_usage().to_string();
        let about =
            command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("\n## {name}\n\n{about}.\n\n```text\n{usage}\n```\n"));
        let is_shown = |arg: &&Arg| {
            !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version" | "config" | "profile")
        };
        let all: Vec<&Arg> = command.get_arguments().filter(is_shown).collect();
        if !all.is_empty() {
            text.push('\n');
        }
        all.into_iter().for_each(|arg| text.push_str(&option(arg)));
        if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
            text.push_str(&format!("\n```text\n{}\n```\n", after.to_string().trim()));
        }
    }
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for sub in names.iter().filter(|sub| *sub != "help") {
        if let Some(sub) = command.find_subcommand_mut(sub) {
            describe(sub, &format!("{name} "), text);
        }
    }
}

fn option(arg: &Arg) -> String {
    let help = arg
        .get_long_help()
        .or(arg.get_help())
        .map(|help| help.to_string().replace('\n', " "))
        .unwrap_or_default();
    let mut line = format!("- `{arg}`");
    if let Some(short) = arg.get_short() {
        line.push_str(&format!(", `-{short}`"));
    }
    line.push_str(&format!(": {}.", escaped(help.trim_end_matches('.'))));
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    // One that help does not show stands for the option's absence.
    let takes_values = arg.get_action().takes_values();
    if takes_values && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        line.push_str(&format!(" Default: `{}`.", defaults.join(",")));
    }
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|_| takes_values)
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({})", value.get_name(), escaped(&help.to_string())),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !choices.is_empty() {
        line.push_str(&format!(" One of {}.", choices.join(", ")));
    }
    line + "\n"
}

/// Brackets would be links, and angles tags.
fn escaped(text: &str) -> String {
    text.replace('[', "\\[").replace('<', "\\<").replace('*', "\\*")
}
