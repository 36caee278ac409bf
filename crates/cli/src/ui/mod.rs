//! What the user of these commands sees and is asked. How it fits a terminal, `whimbrel_terminal` knows.
//!
//! - `display` shows the progress of a copy; `confirm` asks;
//! - `errors` shows errors and `remedies` what to do about them.

pub mod confirm;
pub mod display;
pub mod errors;
pub mod remedies;
