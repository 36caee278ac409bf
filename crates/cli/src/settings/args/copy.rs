//! What the user types to copy keys and to compare them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use whimbrel_core::units::parse_count;

use super::shared::{Beforehand, Endpoints, ExposeArgs, JobArgs, KeySelection, Limits, Pace, Resuming, Show};
use whimbrel_control::values::parse_ms;

/// `whimbrel copy`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel copy old:6379 new:6379                           everything, into an empty target
  whimbrel copy old:6379 new:6379 --match 'session:*' --replace --verify
  whimbrel copy rediss://app@old:6380 new:6379 --source-password-file old.pw
  whimbrel copy old:6379 new-cluster:7000 --db 3:0 --skip   database 3 into a cluster
  whimbrel copy old:6379 new:6379 --resume                  go on where it was interrupted

Exit codes: see whimbrel --help")]
pub struct CopyArgs {
    #[command(flatten)]
    pub sides: Endpoints,

    #[command(flatten)]
    pub which: KeySelection,

    /// Stop after N keys
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "Selection",
        conflicts_with_all = ["resume", "resume_or_begin"])]
    pub limit: Option<u64>,

    /// Replace keys that already exist on the target
    #[arg(long, group = "existing", help_heading = "Existing keys")]
    pub replace: bool,

    /// Skip keys that already exist on the target
    #[arg(long, group = "existing", help_heading = "Existing keys")]
    pub skip: bool,

    /// Stop at the first key that already exists on the target with another value
    #[arg(long, group = "existing", help_heading = "Existing keys")]
    pub fail: bool,

    /// Count the keys that would be copied (with --replace, also those that would be replaced); write nothing
    #[arg(long, conflicts_with = "yes", help_heading = "What else")]
    pub dry_run: bool,

    #[command(flatten)]
    pub ask: Beforehand,

    /// Copy function libraries too
    #[arg(long, help_heading = "What else")]
    pub functions: bool,

    /// Verify the full content of every key when the copy is done
    #[arg(long, conflicts_with = "limit", help_heading = "What else")]
    pub verify: bool,

    #[command(flatten)]
    pub going_on: Resuming,

    /// Where journals are kept [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", help_heading = "What else")]
    pub state_dir: Option<PathBuf>,

    /// Read from replicas of the source where it has any
    #[arg(long, help_heading = "What else")]
    pub from_replicas: bool,

    #[command(flatten)]
    pub limits: Limits,

    #[command(flatten)]
    pub job: JobArgs,

    #[command(flatten)]
    pub exposing: ExposeArgs,

    #[command(flatten)]
    pub show: Show,
}

/// How closely to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Depth {
    /// The number of keys in each database
    Counts,
    /// Existence, type and time to live of every key
    Meta,
    /// The whole content
    Full,
}

/// `whimbrel verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel verify old:6379 new:6379                         full content of all keys
  whimbrel verify old:6379 new:6379 --depth meta --ttl-tolerance 5ms
  whimbrel verify old:6379 new:6379 --sample 10%            a tenth of the keys, always the same tenth
  whimbrel verify old:6379 new:6379 --json | jq 'select(.report).report.differences'

Exit codes: see whimbrel --help")]
pub struct VerifyArgs {
    #[command(flatten)]
    pub sides: Endpoints,

    #[command(flatten)]
    pub which: KeySelection,

    /// How closely to compare
    #[arg(long, value_enum, default_value_t = Depth::Full, help_heading = "Comparison")]
    pub depth: Depth,

    /// Compare a sample only: N keys, or P percent (10%)
    #[arg(long, value_name = "N|P%", help_heading = "Comparison")]
    pub sample: Option<String>,

    /// How far expiry times may differ. A key that only one side has is not reported if it expires within
    /// this time
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_ms,
        help_heading = "Comparison")]
    pub ttl_tolerance: u64,

    /// Do not look for keys that only the target has
    #[arg(long, help_heading = "Comparison")]
    pub ignore_extra: bool,

    /// Check a difference again up to N times before it counts: a live source changes while it is read
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Comparison")]
    pub settle: u32,

    /// List at most N differences; all are counted [default: 20, with --json and in reports 1000]
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub list: Option<usize>,

    /// Go on with a verification that was interrupted: with the same options; what was found so far is kept
    #[arg(long, help_heading = "What else")]
    pub resume: bool,

    /// Where journals are kept [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", help_heading = "What else")]
    pub state_dir: Option<PathBuf>,

    /// Read from replicas of the source where it has any
    #[arg(long, help_heading = "Comparison")]
    pub from_replicas: bool,

    #[command(flatten)]
    pub pace: Pace,

    #[command(flatten)]
    pub job: JobArgs,

    #[command(flatten)]
    pub exposing: ExposeArgs,

    #[command(flatten)]
    pub show: Show,
}
