//! The command that looks before anything is moved.

use std::path::PathBuf;

use clap::Args;
use whimbrel_core::units::parse_count;

use super::access::Reach;
use super::shared::Limits;
use whimbrel_control::values::parse_ms;

/// `whimbrel assess`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel assess old:6379                                  what there is, and how it can be followed
  whimbrel assess old:6379 new-cluster:7000 --html assessment.html
  whimbrel assess old:6379 new:6379 --json | jq '.findings[] | select(.severity == \"blocks\")'

Nothing is changed on either side. Exit code 0: a migration may begin; 4: something blocks it. See
whimbrel --help")]
pub struct AssessArgs {
    /// The source: HOST:PORT, or redis://, valkey://, unix://, rediss:// or valkeys:// (TLS) with user,
    /// password and database; or sentinel://HOST:PORT,HOST:PORT/NAME
    #[arg(value_name = "SOURCE")]
    pub source: String,

    /// The target, in the same form; without it only the source is assessed
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,

    #[command(flatten)]
    pub reach: Reach,

    /// What the source calls PSYNC, if the service has renamed it; HOST:PORT=NAME for one primary;
    /// repeatable
    #[arg(long, value_name = "NAME", help_heading = "Access")]
    pub source_psync: Vec<String>,

    /// Which databases: N, SOURCE:TARGET for another number on the target, or all; repeatable or with commas
    /// [default: the one in the URL, else all]
    #[arg(long = "db", value_name = "DB", value_delimiter = ',', help_heading = "Selection")]
    pub dbs: Vec<String>,

    /// Look at N keys
    #[arg(long, value_name = "N", default_value = "10000", value_parser = parse_count,
        conflicts_with = "full", help_heading = "Sample")]
    pub sample: u64,

    /// Look at all keys
    #[arg(long, help_heading = "Sample")]
    pub full: bool,

    /// Use at most this share of each server's time, in percent [default: 1; with --full: 10]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100),
        help_heading = "Sample")]
    pub load: Option<u8>,

    /// How long the sample may take; not with --full
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ms, help_heading = "Sample")]
    pub sample_time: u64,

    #[command(flatten)]
    pub limits: Limits,

    /// Write the assessment as one self-contained HTML file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}
