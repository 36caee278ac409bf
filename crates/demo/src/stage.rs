//! What all demonstrations need: words for the user, connections, this binary.

use std::io::{Write, stdout};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use redis::Connection;
use whimbrel_core::units::format_duration_ms;
use whimbrel_lab::Server;
use whimbrel_loadgen::program;

/// A digest of very many keys takes its time.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// What came of a demonstration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is as it should be, which is proven.
    Proven,
    /// The proof found that something is not as it should be.
    Different,
    /// The command that was shown failed with this exit code; one that was killed has none.
    Failed(Option<i32>),
    /// The user stopped it.
    Stopped,
}

impl Outcome {
    /// Of the command that was shown, and has failed.
    pub(crate) fn of_failed(status: ExitStatus) -> Outcome {
        Outcome::Failed(status.code())
    }
}

/// An exit code for people.
pub(crate) fn shown_code(status: ExitStatus) -> String {
    status.code().map_or_else(|| "1".to_owned(), |code| code.to_string())
}

pub(crate) fn patient_connection(server: &Server) -> anyhow::Result<Connection> {
    let connection = server.try_connection()?;
    connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
    Ok(connection)
}

/// This binary, to be run as a user would.
pub(crate) fn own_binary() -> anyhow::Result<Command> {
    Ok(program::whimbrel(&std::env::current_exe().context("find this binary")?))
}

pub(crate) fn duration(duration: Duration) -> String {
    format_duration_ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Not `println!`, which panics where standard output is a pipe that nobody reads any more.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    writeln!(stdout(), "{text}").context("write to standard output")
}
