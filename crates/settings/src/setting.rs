//! What one source says about one option.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Arg;
use clap::error::{Error, ErrorKind};

/// What a process has around it.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// A variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Is called with each file that may hold a password.
    pub holds_secret: &'a dyn Fn(&Path),
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Typed,
    /// A variable of the environment, by its name.
    Variable(String),
    /// A line of the file; counted from 1.
    Line {
        /// The file.
        file: PathBuf,
        /// The line.
        line: usize,
    },
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Typed => f.write_str("command line"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Line { file, line } => write!(f, "{}:{line}", file.display()),
        }
    }
}

/// What one source says about one option.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The option, as clap defines it.
    pub(crate) arg: Arg,
    /// Its values, a string each; none for a flag that is off.
    pub(crate) values: Vec<OsString>,
    /// Where it stands.
    pub(crate) origin: Origin,
}

/// A mistake in file or environment, as an error of clap: what is wrong, and what to do.
pub(crate) fn problem(text: impl std::fmt::Display) -> Error {
    Error::raw(ErrorKind::ValueValidation, format!("{text}\n"))
}
