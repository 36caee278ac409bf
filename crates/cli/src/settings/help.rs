//! What the help texts show first, and what is said where a command line makes no sense.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, ArgAction, Command};

/// The options that `-h` shows, for each command that has many. `--help` shows all.
const USUAL: [(&str, &[&str]); 13] = [
    ("assess", &["db", "sample", "full", "load", SOURCE_FILE, TARGET_FILE, "html", "json"]),
    (
        "copy",
        &[
            "match",
            "db",
            "replace",
            "skip",
            "verify",
            "dry-run",
            "resume",
            "yes",
            SOURCE_FILE,
            TARGET_FILE,
            "json",
        ],
    ),
    ("verify", &["match", "db", "depth", "sample", "settle", "resume", SOURCE_FILE, TARGET_FILE, "json"]),
    (
        "sync",
        &[
            "match",
            "db",
            "mirror",
            "dry-run",
            "once",
            "resume",
            "yes",
            SOURCE_FILE,
            TARGET_FILE,
            "http",
            "json",
        ],
    ),
    (
        "cutover",
        &[
            "fence",
            "max-pause",
            "compare",
            "quiet-for",
            "reverse-sync",
            "back",
            "dry-run",
            "yes",
            "state-dir",
            "json",
        ],
    ),
    (
        "reshard",
        &["slots", "to", "from", "count", "max-pause", "verify", "server", "dry-run", "yes", FILE, "json"],
    ),
    (
        "rebalance",
        &["weight", "by", "use-empty", "max-pause", "verify", "server", "dry-run", "yes", FILE, "json"],
    ),
    ("drain", &["max-pause", "verify", "rate-keys", "server", "dry-run", "yes", FILE, "json"]),
    (
        "serve",
        &[
            "cluster",
            "listen",
            "listen-password-file",
            "http",
            "max-pause",
            "state-dir",
            FILE,
            "fleet",
            "backend",
            "store",
        ],
    ),
    ("front", &["listen", "source", "target", SOURCE_FILE, TARGET_FILE, "join"]),
    ("status", &["no-counts", FILE, "json"]),
    ("unfence", &["dry-run", "state-dir", FILE, "json"]),
    ("repair", &["strays", "dry-run", "yes", FILE, "json"]),
];

const FILE: &str = "password-file";
const SOURCE_FILE: &str = "source-password-file";
const TARGET_FILE: &str = "target-password-file";

/// Leaves out of `-h` what is seldom needed.
pub fn decorate(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let mut command = command.mut_args(|arg| hidden(arg, |name| matches!(name, "config" | "profile")));
    // Each of them: a command that is changed becomes the last one, so this keeps their order.
    for name in names {
        let usual = USUAL.iter().find(|(command, _)| *command == name).map(|(_, usual)| *usual);
        command = command.mut_subcommand(name, |sub| match usual {
            Some(usual) => short(sub, usual),
            None => sub,
        });
    }
    command
}

fn short(command: Command, usual: &[&str]) -> Command {
    let name = command.get_name().to_owned();
    let left_out =
        |arg: &Arg| !arg.is_positional() && !arg.get_long().is_some_and(|long| usual.contains(&long));
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::USUAL;
    use crate::settings::{self, command};

    fn words(line: &[&str]) -> String {
        let line: Vec<OsString> = ["whimbrel"].iter().chain(line).map(OsString::from).collect();
        settings::parse(&line).expect_err("it is words or an error").to_string()
    }

    #[test]
    fn short_help_fits_a_screen_and_long_help_has_all() {
        let mut whole = command().term_width(100);
        whole.build();
        let mut long_ones = Vec::new();
        for sub in whole.get_subcommands_mut() {
            let (name, long) = (sub.get_name().to_owned(), sub.render_long_help().to_string());
            let lines = sub.render_help().to_string().lines().count();
            if lines > 50 {
                long_ones.push(format!("whimbrel {name} -h has {lines} lines"));
            }
            for arg in sub.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
                let option = format!("--{}", arg.get_long().expect("it has a long name"));
                assert!(long.contains(&option), "whimbrel {name} --help lacks {option}");
            }
        }
        assert!(long_ones.is_empty(), "{long_ones:?}");
        assert!(whole.render_help().to_string().lines().count() <= 50);
    }

    #[test]
    fn what_short_help_shows_is_there() {
        let whole = command();
        for (name, usual) in USUAL {
            let sub = whole.find_subcommand(name).expect("the command is there");
            for option in usual {
                let arg = sub.get_arguments().find(|arg| arg.get_long() == Some(option));
                assert!(arg.is_some_and(|arg| !arg.is_hide_short_help_set()), "{name} --{option}");
            }
            let short = words(&[name, "-h"]);
            assert!(short.contains(&format!("whimbrel {name} --help shows ")), "{short}");
        }
    }

    #[test]
    fn help_for_what_is_no_command_names_a_similar_one() {
        let error = words(&["help", "cutovr"]);
        assert!(error.contains("'cutover'"), "{error}");
        let error = words(&["help", "fleet", "statsu"]);
        assert!(error.contains("'status'"), "{error}");
    }

    #[test]
    fn choices_are_named_where_an_option_is_missing() {
        let error = words(&["cutover"]);
        assert!(
            error.contains("--fence <FENCE> is one of none, pause, acl, readonly-replica, external"),
            "{error}"
        );
    }
}
