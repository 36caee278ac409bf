//! What stands on the command line, option by option, whether or not it is allowed.

use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::setting::{Origin, Setting};
use crate::shape;

/// A command line in its parts.
#[derive(Debug)]
pub(crate) struct Typed {
    /// The name of the program.
    pub(crate) program: OsString,
    /// The commands: `fleet`, `status`.
    pub(crate) path: Vec<String>,
    /// The options of each command of the path but the last, as they were typed.
    pub(crate) outer: Vec<Vec<Setting>>,
    /// The options of the last one, and those that all commands have.
    pub(crate) settings: Vec<Setting>,
}

impl Typed {
    /// Reads a command line; `None` for what no command understands, and for a question for help or the
    /// version.
    pub(crate) fn read(command: &Command, arguments: &[OsString]) -> Option<Typed> {
        let matches = lenient(command).try_get_matches_from(arguments).ok()?;
        let program = arguments.first()?.clone();
        let (mut path, mut outer) = (Vec::new(), Vec::new());
        let (mut at, mut matches) = (command, &matches);
        while let Some((name, below)) = matches.subcommand() {
            // Options that all commands have are in the matches of the last one as well.
            outer.push(settings(at, matches, |arg| !arg.is_global_set()));
            path.push(name.to_owned());
            at = at.find_subcommand(name)?;
            matches = below;
        }
        let settings = settings(at, matches, |_| true);
        Some(Typed { program, path, outer, settings })
    }

    /// The value of an option, by its id.
    pub(crate) fn value_of(&self, id: &str) -> Option<&OsString> {
        self.settings.iter().find(|setting| setting.arg.get_id().as_str() == id)?.values.last()
    }
}

fn settings(command: &Command, matches: &ArgMatches, is_meant: impl Fn(&Arg) -> bool) -> Vec<Setting> {
    let typed = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        is_meant(arg)
            && matches.ids().any(|found| found == id)
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let setting = |arg: &Arg| {
        let id = arg.get_id().as_str();
        let values = if shape::is_flag(arg) {
            vec!["true".into()]
        } else {
            matches.get_raw(id).into_iter().flatten().map(OsStr::to_owned).collect()
        };
        Setting { arg: arg.clone(), values, origin: Origin::Typed }
    };
    command.get_arguments().filter(typed).map(setting).collect()
}

/// The same commands and options, without any rule about what is needed, what goes together and what a value
/// may be.
fn lenient(command: &Command) -> Command {
    let mut bare = Command::new(command.get_name().to_owned())
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .args(command.get_arguments().filter(|arg| !asks_for_words(arg)).map(lenient_arg));
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let aliases: Vec<String> = sub.get_all_aliases().map(str::to_owned).collect();
        bare = bare.subcommand(lenient(sub).aliases(aliases));
    }
    bare
}

fn asks_for_words(arg: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(arg.get_action(), Help | HelpShort | HelpLong | Version)
}

fn lenient_arg(arg: &Arg) -> Arg {
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut bare = Arg::new(arg.get_id().clone())
        .action(arg.get_action().clone())
        .global(arg.is_global_set())
        .allow_hyphen_values(arg.is_allow_hyphen_values_set())
        .trailing_var_arg(arg.is_trailing_var_arg_set())
        .last(arg.is_last_set())
        .require_equals(arg.is_require_equals_set());
    if let Some(long) = arg.get_long() {
        bare = bare.long(long.to_owned()).aliases(owned(arg.get_all_aliases().unwrap_or_default()));
    }
    if let Some(short) = arg.get_short() {
        bare = bare.short(short);
    }
    if let Some(index) = arg.get_index() {
        bare = bare.index(index);
    }
    if !shape::is_flag(arg) {
        bare = bare.value_parser(value_parser!(OsString));
        if let Some(values) = arg.get_num_args() {
            bare = bare.num_args(values);
        }
    }
    bare
}
