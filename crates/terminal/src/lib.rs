//! What a person sees and is asked, within the width of a terminal, and without what servers would have it
//! do. Where there is no terminal, nothing is wrapped, cut or left out. Nothing here knows what is shown.
//!
//! - [`screen`] knows the width, and wraps text at words; [`plain`] is text that a terminal only shows;
//! - [`table`] shows rows under a head, and leaves columns out where there is no room;
//! - [`row`] does so for lines of progress, which [`progress`] shows;
//! - [`question`] asks; [`keyboard`] takes keys as they are pressed, under a page that is redrawn.

pub mod keyboard;
pub mod page;
pub mod plain;
pub mod print;
pub mod progress;
pub mod question;
pub mod row;
pub mod screen;
pub mod table;
