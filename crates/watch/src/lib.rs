//! `whimbrel watch`: jobs on a terminal, as they stand, and the keys that steer them.
//!
//! - `run` shows it: a page that is redrawn, with keys, on a terminal; lines or JSON elsewhere;
//! - `poll` asks jobs how they stand, and `watched` keeps what is shown of one, and when it was heard;
//! - `job` and `list` are the pages, of one job and of all; `details` has what only its kind shows;
//! - `app` says what a key does;
//! - `http_page` is the page of what a process reports over HTTP, [`fleet`] that of a fleet.
//!
//! What is shown is what the process that runs the job has said, or what was written down; each page says
//! when that was. Nothing is measured here but how fast it changes.

mod app;
mod details;
pub mod fleet;
mod http_page;
mod job;
mod list;
mod poll;
mod run;
mod watched;

pub use self::job::GoesOn;
pub use self::run::{Form, watch_at, watch_jobs};
