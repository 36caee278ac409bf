//! Lines for standard output and standard error.

use std::io::Write;

use crate::plain::plain;
use crate::screen::Screen;

/// A text as standard output shows it.
pub fn for_stdout(text: &str) -> String {
    Screen::of_stdout().wrapped(&plain(text))
}

/// A text as standard error shows it.
pub fn for_stderr(text: &str) -> String {
    Screen::of_stderr().wrapped(&plain(text))
}

/// Prints a line to standard output. A reader that has left, as `head` does, is no failure of ours.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", for_stdout(text));
}

/// Prints a line to standard error. A process whose log has ended goes on.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", for_stderr(text));
}
