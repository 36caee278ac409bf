//! Puts together what several sources say.

use std::ffi::OsString;

use clap::{Arg, Command};

use crate::setting::{Origin, Setting};
use crate::shape;
use crate::typed::Typed;

/// A command line with what file and environment add to it.
#[derive(Debug)]
pub(crate) struct Merged {
    typed: Typed,
    /// The options of the command, each with its strongest source.
    pub(crate) in_force: Vec<Setting>,
    /// What a stronger source has put out of force, and which.
    pub(crate) overruled: Vec<(Setting, String)>,
}

/// Merges what was typed with weaker sources, the strongest first. A source says nothing about an option that
/// a stronger one sets, or excludes by another that it sets: where `--skip` is typed, `replace` in the file
/// does not count.
pub(crate) fn merge(command: &Command, mut typed: Typed, weaker: [Vec<Setting>; 2]) -> Merged {
    let at = shape::at(command, &typed.path).unwrap_or(command);
    let mut in_force = std::mem::take(&mut typed.settings);
    let mut overruled = Vec::new();
    for source in weaker {
        let stronger = in_force.len();
        for setting in source {
            let by = in_force[..stronger].iter().find(|winner| {
                let excludes = || !winner.is_off() && shape::are_exclusive(at, &winner.arg, &setting.arg);
                winner.arg.get_id() == setting.arg.get_id() || excludes()
            });
            match by.map(|by| format!("{} ({})", shown(&by.arg), by.origin)) {
                Some(by) => overruled.push((setting, by)),
                None => in_force.push(setting),
            }
        }
    }
    Merged { typed, in_force, overruled }
}

impl Merged {
    /// The commands, as `fleet` and `status`.
    pub(crate) fn path(&self) -> &[String] {
        &self.typed.path
    }

    /// True where nothing is added to what was typed.
    pub(crate) fn is_as_typed(&self) -> bool {
        self.in_force.iter().all(|setting| setting.origin == Origin::Typed)
    }

    /// The whole as one command line.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![self.typed.program.clone()];
        for (outer, name) in self.typed.outer.iter().zip(&self.typed.path) {
            outer.iter().for_each(|setting| push_option(&mut arguments, setting));
            arguments.push(name.into());
        }
        let (mut positionals, options): (Vec<&Setting>, Vec<&Setting>) =
            self.in_force.iter().partition(|setting| setting.arg.is_positional());
        options.into_iter().for_each(|setting| push_option(&mut arguments, setting));
        positionals.sort_by_key(|setting| setting.arg.get_index());
        // One that comes after a gap would be taken for the one that is missing; clap names that one.
        let in_turn = positionals.into_iter().zip(1..).take_while(|(one, n)| one.arg.get_index() == Some(*n));
        let values: Vec<OsString> = in_turn.flat_map(|(one, _)| one.values.iter().cloned()).collect();
        if !values.is_empty() {
            arguments.push("--".into());
            arguments.extend(values);
        }
        arguments
    }

    /// Where the option stands that clap shows as `--name <VALUE>`; nothing for one that was typed.
    pub(crate) fn whereabouts(&self, shown_by_clap: &str) -> Option<String> {
        let is_meant = |arg: &Arg| {
            arg.to_string() == shown_by_clap || shown_by_clap.split(' ').next() == Some(&shown(arg))
        };
        let setting = self.in_force.iter().find(|setting| is_meant(&setting.arg))?;
        let is_typed = setting.origin == Origin::Typed;
        (!is_typed).then(|| format!("{} comes from {}", shown(&setting.arg), setting.origin))
    }
}

impl Setting {
    /// True for a flag that is switched off.
    fn is_off(&self) -> bool {
        shape::is_flag(&self.arg) && self.values.is_empty()
    }
}

/// An option as it is typed, a positional as it is called.
pub(crate) fn shown(arg: &Arg) -> String {
    let name = shape::name(arg);
    if arg.is_positional() { name.to_uppercase() } else { format!("--{name}") }
}

fn push_option(arguments: &mut Vec<OsString>, setting: &Setting) {
    let option = format!("--{}", shape::name(&setting.arg));
    if shape::is_flag(&setting.arg) {
        arguments.extend((!setting.is_off()).then(|| option.into()));
        return;
    }
    for value in &setting.values {
        let mut argument = OsString::from(format!("{option}="));
        argument.push(value);
        arguments.push(argument);
    }
}
