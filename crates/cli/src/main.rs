//! The whimbrel binary: flags, progress, reports, exit codes, demo.

/// Prints a line to standard output, without what servers would have the terminal do. That whoever reads it has left, as `head` does, is no failure of ours.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), "{}", crate::display::plain(&format!($($words)*)));
    }};
}

/// In the place of the macro of this name, which panics where nobody reads standard error any more: a process whose log has ended goes on,
/// and ends when it is told to.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", crate::display::plain(&format!($($words)*)));
    }};
}

mod args;
mod cluster;
mod confirm;
mod copying;
mod demo;
mod display;
mod exit;
mod fleeting;
mod fronting;
mod losses;
mod moving;
mod safety;
mod serving;
mod sides;
mod syncing;
mod verifying;
mod which;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{CommandFactory, Parser};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use whimbrel_engine::error::Error;

use crate::args::{Cli, Command};
use crate::exit::Exit;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors; clap prints them to standard output.
            let exit = if e.use_stderr() { Exit::Usage } else { Exit::Success };
            // Nothing is left to do where even that cannot be printed.
            let _ = e.print();
            return exit.into();
        }
    };
    if let Err(e) = sides::hide_passwords(&cli.command) {
        show_error(&e, false, Exit::Internal);
        return Exit::Internal.into();
    }
    if !matches!(cli.command, Command::Man { .. } | Command::Completions { .. }) {
        safety::keep_files_private();
    }
    start_logging();
    run(cli.command).into()
}

fn run(command: Command) -> Exit {
    match command {
        Command::Copy(args) => block_on(|stop| async move { copying::run(&args, stop).await }),
        Command::Verify(args) => block_on(|stop| async move { verifying::run(&args, stop).await }),
        Command::Sync(args) => block_on(|stop| async move { syncing::run(&args, stop).await }),
        Command::Cutover(args) => block_on(|stop| async move { syncing::cutover::run(&args, stop).await }),
        Command::Unfence(args) => block_on(|_| async move { syncing::unfence::run(&args).await }),
        Command::Watch(args) => block_on(|stop| async move { syncing::watch::run(&args, stop).await }),
        Command::Reshard(args) => block_on(|stop| async move { moving::reshard(&args, stop).await }),
        Command::Rebalance(args) => block_on(|stop| async move { moving::rebalance(&args, stop).await }),
        Command::Drain(args) => block_on(|stop| async move { moving::drain(&args, stop).await }),
        Command::Serve(args) => block_on(|stop| async move { serving::run(&args, stop).await }),
        Command::Front(args) => block_on(|stop| async move { fronting::run(&args, stop).await }),
        Command::Fleet(args) => block_on(|stop| async move { fleeting::run(&args, stop).await }),
        Command::Jobs(args) => block_on(|stop| async move { moving::jobs::run(&args, stop).await }),
        Command::Status(args) => block_on(|stop| async move { cluster::status::run(&args, stop).await }),
        Command::Repair(args) => block_on(|stop| async move { cluster::repair::run(&args, stop).await }),
        Command::Demo(args) => shown(demo::run(&args)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "whimbrel", &mut std::io::stdout());
            Exit::Success
        }
        Command::Man { folder } => shown(manual(folder)),
    }
}

fn block_on<F: Future<Output = Exit>>(job: impl FnOnce(CancellationToken) -> F) -> Exit {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let exit = runtime.block_on(async {
                let stop = CancellationToken::new();
                watch_signals(stop.clone());
                job(stop).await
            });
            // A look-up of a host name cannot be cancelled, and need not be waited for.
            runtime.shutdown_background();
            exit
        }
        Err(e) => {
            show_error(&Error::own("start", e), false, Exit::Internal);
            Exit::Internal
        }
    }
}

static STOPPED_BY_USER: AtomicBool = AtomicBool::new(false);

/// Nothing is in flight that a signal could stop half-way.
static ONLY_LOOKS: AtomicBool = AtomicBool::new(false);

/// Says that this command changes nothing: ending it is not worth a word.
pub fn only_looks() {
    ONLY_LOOKS.store(true, Ordering::Relaxed);
}

/// Nothing has begun yet: the user is being asked. Until it is dropped, being stopped is not worth a word.
pub struct WhileAsking {
    only_looked: bool,
}

impl WhileAsking {
    /// From here on.
    pub fn begin() -> WhileAsking {
        WhileAsking { only_looked: ONLY_LOOKS.swap(true, Ordering::Relaxed) }
    }
}

impl Drop for WhileAsking {
    fn drop(&mut self) {
        ONLY_LOOKS.store(self.only_looked, Ordering::Relaxed);
    }
}

/// True after Ctrl-C or SIGTERM.
pub fn stopped_by_user() -> bool {
    STOPPED_BY_USER.load(Ordering::Relaxed)
}

/// What the process ends with after an error. `begun` is true once something may have been written.
pub fn exit_of(error: &Error, begun: bool) -> Exit {
    if begun && stopped_by_user() { Exit::Stopped } else { Exit::of(error, begun) }
}

/// Shows why a command ended that writes nothing, and says what the process ends with.
pub fn end_of(error: &Error, as_json: bool) -> Exit {
    let exit = Exit::of(error, false);
    show_error(error, as_json, exit);
    exit
}

/// The first signal stops cleanly, the second at once.
fn watch_signals(stop: CancellationToken) {
    tokio::spawn(async move {
        let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        else {
            return;
        };
        loop {
            tokio::select! {
                ctrl_c = tokio::signal::ctrl_c() => if ctrl_c.is_err() { return },
                _ = terminate.recv() => {}
            }
            if STOPPED_BY_USER.swap(true, Ordering::Relaxed) {
                eprintln!(
                    "stopped at once, half-way: `whimbrel jobs list` shows what is left of moving slots, and --resume \
                     goes on with a copy or a sync"
                );
                std::process::exit(Exit::Stopped as i32);
            }
            if !ONLY_LOOKS.load(Ordering::Relaxed) {
                eprintln!("stopping: what is in flight is finished; once more to stop at once");
            }
            stop.cancel();
        }
    });
}

fn start_logging() {
    let filter = EnvFilter::try_from_env("WHIMBREL_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::env::var("WHIMBREL_LOG_FORMAT").is_ok_and(|format| format == "json") {
        log.json().flatten_event(true).init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).init();
    }
}

/// Prints an error: one line, on standard error; with `--json` an object on standard output.
pub fn show_error(error: &Error, as_json: bool, exit: Exit) {
    if as_json {
        say!(
            "{}",
            json!({"event": "error", "side": error.side.to_string(), "text": error.to_string(), "exit": exit as u8})
        );
    } else {
        eprintln!("error: {error}");
    }
}

fn shown(outcome: anyhow::Result<Exit>) -> Exit {
    outcome.unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        Exit::Internal
    })
}

fn manual(folder: Option<std::path::PathBuf>) -> anyhow::Result<Exit> {
    match folder {
        Some(folder) => {
            std::fs::create_dir_all(&folder)?;
            clap_mangen::generate_to(Cli::command(), folder)?;
        }
        None => clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?,
    }
    Ok(Exit::Success)
}
