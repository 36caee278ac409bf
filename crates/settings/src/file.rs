//! Options from a file in TOML.
//!
//! ```toml
//! connect-timeout = "2s"            # for every command that has the option
//!
//! [sync]                            # for `whimbrel sync`
//! memory = "128MiB"
//!
//! [profile.orders]                  # with `--profile orders`
//! source-user = "whimbrel"
//!
//! [profile.orders.sync]
//! source = "rediss://old.example.net:6380"
//! ```
//!
//! The closer heading wins: a command's over the whole file's, a profile's over both. The whole file is
//! checked each time, also what is not meant for this command: a mistake should not wait for the night in
//! which it matters.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::PathBuf;

use clap::error::Error;
use clap::{Arg, Command};
use toml_edit::{Document, Item, Table, Value};

use crate::setting::{Origin, Setting, Surroundings, problem};
use crate::shape;

/// The largest file that is read, in bytes.
const LARGEST_BYTES: u64 = 1 << 20;

/// The heading that profiles are below.
const PROFILES: &str = "profile";

/// A file that has been read and checked.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    document: Document<String>,
}

impl File {
    /// Reads a file, and checks all of it against the definition of the command line.
    ///
    /// # Errors
    /// For a file that cannot be read, is no TOML, or has keys or values that no command knows; with the
    /// line.
    pub(crate) fn read(command: &Command, path: PathBuf, around: Surroundings<'_>) -> Result<File, Error> {
        let shown = path.display();
        let unreadable = |why: &dyn std::fmt::Display| {
            problem(format!(
                "the configuration {shown} cannot be read: {why}\n       name another one with --config"
            ))
        };
        let size = path.metadata().map_err(|e| unreadable(&e))?.len();
        if size > LARGEST_BYTES {
            return Err(unreadable(&format!("it has {size} bytes, and {LARGEST_BYTES} are read at most")));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| unreadable(&e))?;
        if text.contains("://") && text.contains('@') {
            (around.holds_secret)(&path);
        }
        let parsed = Document::parse(text.clone()).map_err(|e| {
            let line = e.span().map_or(1, |span| line_of(&text, &span));
            problem(format!("{shown}:{line}: no TOML: {}", e.message().trim_end()))
        });
        let file = File { document: parsed?, path: path.clone() };
        file.check(command)?;
        Ok(file)
    }

    /// What the file says about the options of the command at `path`; the strongest once for each option.
    ///
    /// # Errors
    /// For a profile that the file does not have.
    pub(crate) fn settings(
        &self,
        command: &Command,
        path: &[String],
        profile: Option<&OsStr>,
    ) -> Result<Vec<Setting>, Error> {
        let mut tables = headings(self.document.as_table(), path);
        if let Some(profile) = profile {
            tables.extend(headings(self.profile(profile)?, path));
        }
        let Some(command) = shape::settable(command, path) else { return Ok(Vec::new()) };
        let mut settings = Vec::new();
        for arg in shape::options(command) {
            let key = shape::name(arg);
            let strongest = tables.iter().rev().find_map(|table| table.get_key_value(&key));
            if let Some((key, item)) = strongest {
                let line = self.line(key.span());
                let values = self.values(arg, item, line)?;
                let origin = Origin::Line { file: self.path.clone(), line };
                settings.push(Setting { arg: arg.clone(), values, origin });
            }
        }
        Ok(settings)
    }

    fn profile(&self, name: &OsStr) -> Result<&Table, Error> {
        let profiles = self.document.get(PROFILES).and_then(Item::as_table);
        let found = name.to_str().and_then(|name| profiles?.get(name)?.as_table());
        found.ok_or_else(|| {
            let names: Vec<&str> =
                profiles.into_iter().flat_map(|table| table.iter()).map(|(name, _)| name).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let (file, name) = (self.path.display(), name.display());
            problem(format!("{file} has no profile {name}\n       its profiles: {there}"))
        })
    }

    fn check(&self, command: &Command) -> Result<(), Error> {
        let all = self.document.as_table();
        self.check_table(command, &[], all, true)?;
        let Some(profiles) = all.get_key_value(PROFILES) else { return Ok(()) };
        let (key, item) = profiles;
        let not_a_table =
            |line: usize| self.wrong(line, "a profile is a table", "write [profile.NAME] above its options");
        let profiles = item.as_table().ok_or_else(|| not_a_table(self.line(key.span())))?;
        for (name, item) in profiles.iter() {
            let line = || self.line(profiles.key(name).and_then(toml_edit::Key::span));
            self.check_table(command, &[], item.as_table().ok_or_else(|| not_a_table(line()))?, false)?;
        }
        Ok(())
    }

    /// Checks a table whose options are for the command at `path` and all below it.
    fn check_table(
        &self,
        command: &Command,
        path: &[String],
        table: &Table,
        is_root: bool,
    ) -> Result<(), Error> {
        for (key, item) in table.iter() {
            let line = self.line(table.key(key).and_then(toml_edit::Key::span));
            if is_root && key == PROFILES {
                continue;
            }
            if let Item::Table(below) = item {
                let path: Vec<String> = path.iter().cloned().chain([key.to_owned()]).collect();
                if !shape::with_paths(command).iter().any(|(known, _)| *known == path) {
                    return Err(self.unknown_command(command, &path, line));
                }
                self.check_table(command, &path, below, false)?;
                continue;
            }
            let below = shape::with_paths(command).into_iter().filter(|(known, _)| known.starts_with(path));
            let known: Vec<&Arg> = below.flat_map(|(_, sub)| shape::options(sub)).collect();
            match known.iter().find(|arg| shape::name(arg) == key) {
                Some(arg) => drop(self.values(arg, item, line)?),
                None => return Err(self.unknown_option(command, path, &known, key, line)),
            }
        }
        Ok(())
    }

    fn unknown_command(&self, command: &Command, path: &[String], line: usize) -> Error {
        let names: Vec<String> =
            shape::with_paths(command).iter().skip(1).map(|(path, _)| path.join(".")).collect();
        let what = format!("there is no command {}", path.join(" "));
        let remedy = match similar(&path.join("."), names.iter()) {
            Some(name) => format!("a similar heading is [{name}]"),
            None => "headings are commands, as [copy] or [fleet.status], and [profile.NAME]".to_owned(),
        };
        self.wrong(line, &what, &remedy)
    }

    fn unknown_option(
        &self,
        command: &Command,
        path: &[String],
        known: &[&Arg],
        key: &str,
        line: usize,
    ) -> Error {
        let what = match path {
            [] => format!("no command has an option {key}"),
            _ => format!("{} has no option {key}", path.join(" ")),
        };
        let elsewhere: Vec<String> = shape::with_paths(command)
            .into_iter()
            .filter(|(path, sub)| !path.is_empty() && shape::options(sub).any(|arg| shape::name(arg) == key))
            .map(|(path, _)| path.join(" "))
            .collect();
        let names: Vec<String> = known.iter().map(|arg| shape::name(arg)).collect();
        let remedy = match similar(key, names.iter()) {
            Some(name) => format!("a similar option is {name}"),
            None if elsewhere.is_empty() => "whimbrel help COMMAND names the options".to_owned(),
            None => format!("{} has it", elsewhere.join(", ")),
        };
        self.wrong(line, &what, &remedy)
    }

    /// The values of an option as they would be typed.
    fn values(&self, arg: &Arg, item: &Item, line: usize) -> Result<Vec<OsString>, Error> {
        let name = shape::name(arg);
        if shape::is_flag(arg) {
            return match item.as_bool() {
                Some(true) => Ok(vec!["true".into()]),
                Some(false) => Ok(Vec::new()),
                None => Err(self.wrong(line, &format!("{name} is on or off"), "write true or false")),
            };
        }
        let one = |value: &Value| match value {
            Value::String(text) => Some(text.value().into()),
            Value::Integer(number) => Some(number.value().to_string().into()),
            Value::Float(number) => Some(number.value().to_string().into()),
            _ => None,
        };
        let values = match item.as_value() {
            Some(Value::Array(several)) if shape::is_list(arg) => several.iter().map(one).collect(),
            Some(value) => one(value).map(|value| vec![value]),
            None => None,
        };
        values.ok_or_else(|| {
            let wanted =
                if shape::is_list(arg) { "a text, a number or a list of them" } else { "a text or a number" };
            self.wrong(line, &format!("{name} has another kind of value"), &format!("write {wanted}"))
        })
    }

    fn line(&self, span: Option<Range<usize>>) -> usize {
        span.map_or(1, |span| line_of(self.document.raw(), &span))
    }

    fn wrong(&self, line: usize, what: &str, remedy: &str) -> Error {
        problem(format!("{}:{line}: {what}\n       {remedy}", self.path.display()))
    }
}

/// The tables that hold for the command at `path`, the closest last.
fn headings<'a>(all: &'a Table, path: &[String]) -> Vec<&'a Table> {
    let mut tables = vec![all];
    let mut at = all;
    for name in path {
        let Some(below) = at.get(name).and_then(Item::as_table) else { break };
        tables.push(below);
        at = below;
    }
    tables
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
}

/// The name that was most likely meant.
fn similar<'a>(written: &str, names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let score = |name: &str| strsim::jaro_winkler(written, name);
    names.max_by(|a, b| score(a).total_cmp(&score(b))).filter(|name| score(name) > 0.85)
}
