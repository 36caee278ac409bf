//! Ctrl-C and SIGTERM for the commands that start servers of their own.
//!
//! Left to its default, a signal would end this process before the servers' folders are removed.

use std::fmt;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// What the process ends with at the second signal: the exit code of whimbrel for being stopped.
const STOPPED_CODE: i32 = 130;

/// Notices that the user wants to stop.
#[derive(Debug)]
pub struct Interrupt {
    seen: AtomicBool,
}

impl Interrupt {
    /// Never sees anything: for tests, which leave signals alone.
    pub fn never() -> Self {
        Self { seen: AtomicBool::new(false) }
    }

    /// Whether a signal has come.
    pub fn is_seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// Goes on, or ends what is being done.
    ///
    /// # Errors
    /// [`Stopped`] once a signal has come.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.is_seen() { Err(Stopped) } else { Ok(()) }
    }
}

/// Does the work in a thread of its own while this thread, which must be the main one, takes the signals: the
/// kernel prefers it, so that no system call of the work is cut short. The first signal is only noticed, the
/// second ends the process at once. Being stopped is no failure: the outcome is `stopped` then.
///
/// # Errors
/// When the work fails, or signals cannot be listened to.
pub fn run<T: Send>(
    stopped: T,
    work: impl FnOnce(&Interrupt) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().context("listen to signals")?;
    let (mut interrupted, mut terminated) = {
        let _within = runtime.enter();
        let listen = |kind| signal(kind).context("listen to signals");
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?)
    };
    let interrupt = Interrupt { seen: AtomicBool::new(false) };
    let outcome = thread::scope(|scope| {
        let (done, mut is_done) = oneshot::channel::<()>();
        let worker = scope.spawn(|| {
            // Dropped at the end, also by a panic: that is the message.
            let _done = done;
            work(&interrupt)
        });
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = &mut is_done => break,
                    _ = interrupted.recv() => {}
                    _ = terminated.recv() => {}
                }
                if interrupt.seen.swap(true, Ordering::Relaxed) {
                    std::process::exit(STOPPED_CODE);
                }
            }
        });
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    stopped_is_no_failure(stopped, outcome)
}

/// The user wants to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped by the user")
    }
}

impl std::error::Error for Stopped {}

fn stopped_is_no_failure<T>(stopped: T, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
    match outcome {
        Err(error) if error.is::<Stopped>() => {
            // Nothing is left to do where standard error is closed.
            let _ = writeln!(io::stderr(), "stopped; the servers are gone and nothing is left behind");
            Ok(stopped)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_with_its_outcome() {
        assert_eq!(run("stopped", |_| Ok("done")).ok(), Some("done"));
        let stopped = run("stopped", |interrupt| {
            interrupt.seen.store(true, Ordering::Relaxed);
            interrupt.check()?;
            Ok("done")
        });
        assert_eq!(stopped.ok(), Some("stopped"));
    }

    #[test]
    fn only_being_stopped_is_no_failure() {
        assert_eq!(stopped_is_no_failure("stopped", Err(Stopped.into())).ok(), Some("stopped"));
        assert!(stopped_is_no_failure("stopped", Err(anyhow::anyhow!("another reason"))).is_err());
        assert_eq!(stopped_is_no_failure("stopped", Ok("done")).ok(), Some("done"));
    }
}
