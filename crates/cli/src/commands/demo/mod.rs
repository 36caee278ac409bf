//! `whimbrel demo`: real servers, real work, and the proof that nothing was lost.

mod copy;
mod reshard;

use std::io::{Write, stdout};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use redis::Connection;
use whimbrel_core::units::format_duration_ms;
use whimbrel_lab::{Engine, Server};
use whimbrel_loadgen::rebalance::keys::Keys;
use whimbrel_loadgen::{interrupt, program};

use crate::exit::Exit;
use crate::settings::args::{Demo, DemoArgs};

/// A digest of very many keys takes its time.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// Shows what was asked for, a rebalance unless told otherwise.
///
/// # Errors
/// When the servers are not on this machine or go away, or something of our own fails.
pub fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let (is_copy, options) = match &args.demo {
        None => (false, &args.options),
        Some(Demo::Reshard(options)) => (false, options),
        Some(Demo::Copy(options)) => (true, options),
    };
    let Some(engine) = Engine::from_name(&options.engine) else {
        let known = Engine::ALL.map(Engine::name).join(", ");
        eprintln!("error: unknown engine {:?}: there are {known}", options.engine);
        return Ok(Exit::Usage);
    };
    if is_copy {
        return interrupt::run(Exit::Stopped, |interrupt| copy::show(engine, options.keys, interrupt));
    }
    if options.keys < Keys::TOTAL_MIN {
        eprintln!("error: --keys must be at least {} here", Keys::TOTAL_MIN);
        return Ok(Exit::Usage);
    }
    interrupt::run(Exit::Stopped, |interrupt| reshard::show(engine, options.keys, interrupt))
}

fn patient_connection(server: &Server) -> anyhow::Result<Connection> {
    let connection = server.try_connection()?;
    connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
    Ok(connection)
}

/// This binary, to be run as a user would.
fn own_binary() -> anyhow::Result<Command> {
    Ok(program::whimbrel(&std::env::current_exe().context("find this binary")?))
}

/// The exit code of the copy is ours as well. One that was killed has none.
fn exit_of(status: ExitStatus) -> Exit {
    Exit::TABLE
        .into_iter()
        .map(|(exit, _)| exit)
        .find(|exit| status.code() == Some(i32::from(*exit as u8)))
        .unwrap_or(Exit::Internal)
}

fn duration(duration: Duration) -> String {
    format_duration_ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Not `println!`, which panics where standard output is a pipe that nobody reads any more.
fn say(text: &str) -> anyhow::Result<()> {
    writeln!(stdout(), "{text}").context("write to standard output")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn the_copy_decides_the_exit_code() {
        assert_eq!(exit_of(ExitStatus::from_raw(6 << 8)), Exit::Different);
        assert_eq!(exit_of(ExitStatus::from_raw(130 << 8)), Exit::Stopped);
        assert_eq!(exit_of(ExitStatus::from_raw(9)), Exit::Internal, "killed by a signal");
    }
}
