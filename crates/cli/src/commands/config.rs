//! `whimbrel config`.

use std::ffi::OsString;

use clap::error::Error;
use serde_json::json;

use crate::exit::Exit;
use crate::settings::args::{ConfigCommand, ConfigShowArgs};
use crate::settings::{around, command};
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, text};

/// The file and profile that were typed.
#[derive(Debug)]
pub struct Source {
    /// `--config`.
    pub config: Option<OsString>,
    /// `--profile`.
    pub profile: Option<OsString>,
}

/// Runs the command.
pub fn run(what: &ConfigCommand, file: &Source) -> Exit {
    let ConfigCommand::Show(args) = what;
    let outcome = if args.command.is_empty() { show_sources(args, file) } else { show_command(args, file) };
    outcome.unwrap_or_else(|error| {
        // Nothing is left to do if even that cannot be printed.
        let _ = error.print();
        Exit::Usage
    })
}

fn show_command(args: &ConfigShowArgs, file: &Source) -> Result<Exit, Error> {
    let mut line: Vec<OsString> = vec!["whimbrel".into()];
    for (option, value) in [("--config=", &file.config), ("--profile=", &file.profile)] {
        if let Some(value) = value {
            let mut typed = OsString::from(option);
            typed.push(value);
            line.push(typed);
        }
    }
    line.extend(args.command.iter().cloned());
    let Some(whole) = whimbrel_settings::of_command(&command(), &line, around())? else {
        // What clap says about it is what the command itself would say.
        return Err(command().try_get_matches_from(&line).err().unwrap_or_else(|| {
            Error::raw(clap::error::ErrorKind::InvalidSubcommand, "there is nothing to show for it\n")
        }));
    };
    if args.json {
        for one in &whole.options {
            out!(
                "{}",
                json!({
                    "command": whole.command, "option": one.option, "value": one.value, "from": one.origin,
                    "overruled_by": one.overruled_by,
                })
            );
        }
        return Ok(Exit::Success);
    }
    let mut table = Table::new(&[text("OPTION", 0), text("VALUE", 0), text("FROM", 0)], 1);
    for one in &whole.options {
        let from = match &one.overruled_by {
            Some(by) => format!("{}, not in force: {by}", one.origin),
            None => one.origin.clone(),
        };
        table.row(vec![one.option.clone(), one.value.clone(), from]);
    }
    print(&table);
    Ok(Exit::Success)
}

fn show_sources(args: &ConfigShowArgs, file: &Source) -> Result<Exit, Error> {
    let all =
        whimbrel_settings::of_sources(&command(), file.config.as_deref(), file.profile.as_deref(), around())?;
    if args.json {
        for (one, commands) in &all {
            out!(
                "{}",
                json!({"option": one.option, "value": one.value, "from": one.origin, "commands": commands})
            );
        }
        return Ok(Exit::Success);
    }
    if all.is_empty() {
        out!("neither a file nor the environment sets an option; name a file with --config");
        return Ok(Exit::Success);
    }
    let head = [text("OPTION", 0), text("VALUE", 0), text("FROM", 0), text("FOR", 1)];
    let mut table = Table::new(&head, 1);
    for (one, commands) in &all {
        let to = match commands.as_slice() {
            [_, _, _, _, ..] => format!("{} commands", commands.len()),
            few => few.join(", "),
        };
        table.row(vec![one.option.clone(), one.value.clone(), one.origin.clone(), to]);
    }
    print(&table);
    Ok(Exit::Success)
}

fn print(table: &Table) {
    table.lines(Screen::of_stdout()).iter().for_each(|line| out!("{line}"));
}
