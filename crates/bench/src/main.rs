//! Benchmarks: whimbrel beside other ways to do the same, in one run. Not published.

/// In the place of the macro of this name, which panics where nobody reads standard error any more.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod args;
mod bars;
mod before;
mod binaries;
mod contender;
mod copy;
mod exit;
mod front;
mod latency;
mod listening;
mod machine;
mod partitions;
mod pattern;
mod report;
mod reshard;
mod svg;
mod sync;
mod topology;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Bench, Cli};
use crate::exit::Exit;

fn main() -> ExitCode {
    let outcome = match Cli::parse().bench {
        Bench::Before(args) => before::run(&args),
        Bench::Copy(args) => copy::run(&args),
        Bench::Front(args) => front::run(&args),
        Bench::Latency(args) => latency::run(&args),
        Bench::Partitions(args) => partitions::run(&args),
        Bench::Pattern(args) => pattern::run(&args),
        Bench::Reshard(args) => reshard::run(&args),
        Bench::Sync(args) => sync::run(&args),
        Bench::Topology(args) => topology::run(&args),
    };
    let exit = outcome.unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        Exit::Internal
    });
    exit.into()
}
