//! The whimbrel binary: flags, progress, reports, exit codes, demo.
//!
//! - [`commands`]: one module for each command;
//! - [`settings`]: what the user typed, and what it resolves to;
//! - [`ui`]: questions, progress, tables, words for errors, JSON;
//! - [`signals`], [`exit`], [`version`]: Ctrl-C, exit codes, what `--version` prints.
//!
//! Commands use the rest. `ui` and `settings` do not use each other, and neither uses commands.

/// Prints a line to standard output, wrapped at words on a terminal, and without what servers would have it
/// do.
macro_rules! out {
    ($($words:tt)*) => { whimbrel_terminal::print::line(&format!($($words)*)) };
}

/// In the place of the macro of this name, which panics if nothing reads standard error any more: a process
/// whose log reader has gone continues, and ends when it is asked to.
macro_rules! eprintln {
    ($($words:tt)*) => { whimbrel_terminal::print::note(&format!($($words)*)) };
}

mod commands;
mod exit;
mod settings;
mod signals;
mod ui;
mod version;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use whimbrel_engine::error::Error;

use crate::commands::config::Source;
use crate::exit::Exit;
use crate::settings::args::{Cli, Command};
use crate::ui::errors;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match settings::parse(&arguments) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors; clap prints them to standard output.
            let exit = if e.use_stderr() { Exit::Usage } else { Exit::Success };
            // Nothing is left to do if even that cannot be printed.
            let _ = e.print();
            return exit.into();
        }
    };
    if let Err(e) = settings::endpoints::hide_passwords(&cli.command) {
        errors::show_error(&e, false, Exit::Internal);
        return Exit::Internal.into();
    }
    if !matches!(cli.command, Command::Man { .. } | Command::Completions { .. }) {
        whimbrel_control::private::keep_files_private();
    }
    start_logging();
    run(cli).into()
}

fn run(cli: Cli) -> Exit {
    match cli.command {
        Command::Assess(args) => block_on(|stop| async move { commands::assess::run(&args, stop).await }),
        Command::Copy(args) => block_on(|stop| async move { commands::copy::run(&args, stop).await }),
        Command::Verify(args) => block_on(|stop| async move { commands::verify::run(&args, stop).await }),
        Command::Sync(args) => block_on(|stop| async move { commands::sync::run(&args, stop).await }),
        Command::Cutover(args) => block_on(|stop| async move { commands::cutover::run(&args, stop).await }),
        Command::Unfence(args) => block_on(|_| async move { commands::unfence::run(&args).await }),
        Command::Watch(args) => block_on(|stop| async move { commands::watch::run(&args, stop).await }),
        Command::Reshard(args) => {
            block_on(|stop| async move { commands::reshard::reshard(&args, stop).await })
        }
        Command::Rebalance(args) => {
            block_on(|stop| async move { commands::reshard::rebalance(&args, stop).await })
        }
        Command::Drain(args) => block_on(|stop| async move { commands::reshard::drain(&args, stop).await }),
        Command::Serve(args) => block_on(|stop| async move { commands::serve::run(&args, stop).await }),
        Command::Front(args) => block_on(|stop| async move { commands::front::run(&args, stop).await }),
        Command::Fleet(args) => block_on(|stop| async move { commands::fleet::run(&args, stop).await }),
        Command::Jobs(args) => block_on(|stop| async move { commands::jobs::run(&args, stop).await }),
        Command::Status(args) => block_on(|stop| async move { commands::status::run(&args, stop).await }),
        Command::Repair(args) => block_on(|stop| async move { commands::repair::run(&args, stop).await }),
        Command::Token(args) => commands::token::run(&args),
        Command::Config(args) => {
            let file = Source { config: cli.config.map(Into::into), profile: cli.profile };
            commands::config::run(&args.command, &file)
        }
        Command::Demo(args) => shown(commands::demo::run(&args)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut settings::command(), "whimbrel", &mut std::io::stdout());
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
                signals::watch(stop.clone());
                job(stop).await
            });
            // A look-up of a host name cannot be cancelled, and need not be waited for.
            runtime.shutdown_background();
            exit
        }
        Err(e) => {
            errors::show_error(&Error::own("start", e), false, Exit::Internal);
            Exit::Internal
        }
    }
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
            clap_mangen::generate_to(settings::command(), folder)?;
        }
        None => clap_mangen::Man::new(settings::command()).render(&mut std::io::stdout())?,
    }
    Ok(Exit::Success)
}
