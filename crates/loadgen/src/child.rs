//! Running a program to its end, with a limit, and what it took.

use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::interrupt::{Interrupt, Stopped};

/// Also the precision of the measured time.
const POLL: Duration = Duration::from_millis(2);

/// A Ctrl-C on the terminal has reached the child too: it may be about to leave by itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// How a child ended.
#[derive(Debug)]
pub enum Ended {
    /// By itself.
    Exited {
        /// With what.
        status: ExitStatus,
        /// Time from start to end.
        wall: Duration,
        /// Processor time, in user and kernel mode.
        cpu: Duration,
    },
    /// It took longer than it was given, and was killed.
    TimedOut,
}

/// Runs a program until it ends, the limit is over, or the user stops us.
///
/// No other child of this process may end meanwhile: the kernel only has the sum of their processor times.
///
/// # Errors
/// When it cannot be started, or [`Stopped`]; it has ended then.
pub fn run(command: &mut Command, limit: Option<Duration>, interrupt: &Interrupt) -> anyhow::Result<Ended> {
    let before = cpu_of(UsageWho::RUSAGE_CHILDREN)?;
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    loop {
        if let Some(status) = child.try_wait()? {
            let wall = started.elapsed();
            let cpu = cpu_of(UsageWho::RUSAGE_CHILDREN)?.saturating_sub(before);
            return Ok(Ended::Exited { status, wall, cpu });
        }
        if interrupt.is_seen() {
            end(&mut child)?;
            return Err(Stopped.into());
        }
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::TimedOut);
        }
        thread::sleep(POLL);
    }
}

/// First it may leave by itself, then it is asked to, then it is killed.
fn end(child: &mut Child) -> anyhow::Result<()> {
    if has_left(child)? {
        return Ok(());
    }
    // Not waited for yet, so the id is still its own.
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
    if has_left(child)? {
        return Ok(());
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn has_left(child: &mut Child) -> std::io::Result<bool> {
    let deadline = Instant::now() + LEAVE_TIMEOUT;
    while Instant::now() < deadline {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        thread::sleep(POLL);
    }
    Ok(false)
}

/// Processor time of this process so far, in user and kernel mode.
///
/// # Errors
/// When the kernel does not report it.
pub fn own_cpu() -> anyhow::Result<Duration> {
    cpu_of(UsageWho::RUSAGE_SELF)
}

fn cpu_of(who: UsageWho) -> anyhow::Result<Duration> {
    let usage: Usage = getrusage(who).context("read processor time")?;
    let microseconds = [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| {
            // Neither part of a processor time is negative.
            time.tv_sec().unsigned_abs() * 1_000_000 + time.tv_usec().unsigned_abs()
        })
        .sum();
    Ok(Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_and_limits() {
        let interrupt = Interrupt::never();
        // Busy for long enough that no clock can miss it.
        let busy = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; exit 7";
        match run(Command::new("sh").args(["-c", busy]), None, &interrupt).expect("sh runs") {
            Ended::Exited { status, wall, cpu } => {
                assert_eq!(status.code(), Some(7));
                assert!(!wall.is_zero() && !cpu.is_zero(), "{wall:?} {cpu:?}");
            }
            Ended::TimedOut => panic!("without a limit nothing times out"),
        }
        let limit = Some(Duration::from_millis(50));
        let ended = run(Command::new("sleep").arg("600"), limit, &interrupt).expect("sleep runs");
        assert!(matches!(ended, Ended::TimedOut), "{ended:?}");
        assert!(run(&mut Command::new("/no/such/program"), None, &interrupt).is_err());
    }
}
