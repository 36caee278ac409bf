//! What the user sees and is asked, within the width of a terminal, and without what servers would have it
//! do. Where there is no terminal, nothing is wrapped, cut or left out.
//!
//! - `screen` knows the width, and wraps text at words;
//! - `table` shows rows under a head, and leaves columns out where there is no room;
//! - `row` does so for lines of progress, which `display` shows;
//! - `confirm` asks, `errors` shows errors and `remedies` what to do about them, `json` has what programs read.

pub mod confirm;
pub mod display;
pub mod errors;
pub mod json;
pub mod remedies;
pub mod row;
pub mod screen;
pub mod table;

use self::display::plain;
use self::screen::Screen;

/// What the macro `say!` prints.
pub fn for_stdout(text: &str) -> String {
    Screen::of_stdout().wrapped(&plain(text))
}

/// What the macro `eprintln!` prints.
pub fn for_stderr(text: &str) -> String {
    Screen::of_stderr().wrapped(&plain(text))
}
