//! Developer chores: fetching engines, tidy checks, the map of modules, the results of tests, a recording of
//! the demo.

use std::process::ExitCode;

mod engines;
mod files;
mod modules;
mod record;
mod results;
mod tidy;

const USAGE: &str = "usage: cargo run -p xtask -- CHORE\n\
\n\
chores:\n\
\x20 engines [NAME...]   bring the servers used by tests, demo and benchmarks into the cache folder\n\
\x20 modules             write the map of all modules, docs/modules.md\n\
\x20 record BINARY FILE  draw what the demo of a whimbrel prints, line by line as it came\n\
\x20 results PROFILE     name the tests that took longest in the last run with this profile of nextest, and\n\
\x20                     why others failed\n\
\x20 tidy                check the rules that compilers and linters do not know\n";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let outcome = match args.next().as_deref() {
        Some("engines") => engines::run(&args.collect::<Vec<_>>()),
        Some("modules") => modules::run(),
        Some("record") => record::run(&args.collect::<Vec<_>>()),
        Some("results") => results::run(&args.collect::<Vec<_>>()),
        Some("tidy") => tidy::run(),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(other) => {
            eprint!("unknown chore '{other}'\n\n{USAGE}");
            return ExitCode::from(2);
        }
        None => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
