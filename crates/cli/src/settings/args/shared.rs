//! Options that several commands have.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use whimbrel_control::hooks::{Hook, HookSettings};
use whimbrel_control::naming::JobName;
use whimbrel_control::store::Kind;
use whimbrel_core::schedule::Window;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::parse_count;
use whimbrel_engine::error::Result;
use whimbrel_flow::budget::{RateChange, Rates, Times};
use whimbrel_flow::{copy::LaneCounts, journal, lag::MaxLag, load::MaxLoad};
use whimbrel_terminal::progress::Form;

use super::access::Reach;
use whimbrel_control::values::{parse_bytes, parse_hook_timeout, parse_ms, parse_small};
use whimbrel_core::select::parse_type;

/// What the user may have answered already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct Beforehand {
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// Where the two sides are and how to reach them.
#[derive(Debug, Args)]
pub struct Endpoints {
    /// The source: HOST:PORT, or redis://, valkey://, unix://, rediss:// or valkeys:// (TLS) with user,
    /// password and database; or sentinel://HOST:PORT,HOST:PORT/NAME
    #[arg(value_name = "SOURCE")]
    pub source: String,

    /// The target, likewise
    #[arg(value_name = "TARGET")]
    pub target: String,

    #[command(flatten)]
    pub reach: Reach,

    /// How long one operation is tried again before it counts as failed
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_ms, help_heading = "Limits")]
    pub retry_for: u64,
}

/// Which keys.
#[derive(Debug, Args)]
pub struct KeySelection {
    #[command(flatten)]
    pub names: Names,

    /// Only keys of these types: string, list, set, zset, hash, stream, or a module's; repeatable or with
    /// commas
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = parse_type,
        help_heading = "Selection")]
    pub types: Vec<String>,
}

/// Which keys, by name, slot and database.
#[derive(Debug, Args)]
pub struct Names {
    /// Only keys that match this glob pattern, as in KEYS and SCAN; repeated: keys that match any of them
    #[arg(long = "match", visible_alias = "pattern", value_name = "PATTERN", help_heading = "Selection")]
    pub matches: Vec<String>,

    /// Leave out keys that match this pattern; repeatable
    #[arg(long, value_name = "PATTERN", help_heading = "Selection")]
    pub exclude: Vec<String>,

    /// Only keys in these slots: 0-5460,10000
    #[arg(long, value_name = "SLOTS", help_heading = "Selection")]
    pub slots: Option<SlotSet>,

    /// Which databases: N, SOURCE:TARGET for another number on the target, or all; repeatable or with commas
    /// [default: the one in the URL, else all]
    #[arg(long = "db", value_name = "DB", value_delimiter = ',', help_heading = "Selection")]
    pub dbs: Vec<String>,
}

/// How fast keys are read, and when.
#[derive(Debug, Args)]
pub struct Pace {
    /// Read at most N keys per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "Limits")]
    pub rate_keys: Option<u64>,

    /// Slow down while a server takes longer than this to answer, such as 5ms [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_ms, help_heading = "Limits")]
    pub max_latency: Option<u64>,

    /// Slow down while a server uses more of a core than this, such as 60% [default: no limit]
    #[arg(long, value_name = "PERCENT", help_heading = "Limits")]
    pub max_load: Option<MaxLoad>,

    /// Process keys only at this time of day: 01:00-05:00 (UTC), or 01:00-05:00+01:00 with an offset
    #[arg(long, value_name = "FROM-UNTIL", help_heading = "Limits")]
    pub between: Option<Window>,
}

impl Pace {
    /// The same, for the command that goes on.
    pub fn change(&self) -> RateChange {
        RateChange {
            keys: self.rate_keys,
            max_latency_ms: self.max_latency,
            max_load: self.max_load,
            times: self.between.map(Times::Between),
            ..RateChange::default()
        }
    }
}

/// Bounds of whatever transfers keys.
#[derive(Debug, Args)]
pub struct Limits {
    #[command(flatten)]
    pub pace: Pace,

    /// Read at most this many bytes of values per second [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Limits")]
    pub rate_bytes: Option<u64>,

    /// Slow down while a replica of the target is further behind than this, such as 64MiB or 5s [default: no
    /// limit]
    #[arg(long, value_name = "BYTES|TIME", help_heading = "Limits")]
    pub max_lag: Option<MaxLag>,

    /// Memory for values in flight; resident memory stays under this plus 64 MiB
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_bytes,
        help_heading = "Limits")]
    pub memory: u64,

    /// Values above this size move in chunks
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = parse_bytes,
        help_heading = "Limits")]
    pub big_key: u64,

    /// Lanes (connections) for each shard: N that read, and N to each node that is written to; or READ:WRITE
    #[arg(long, value_name = "N", default_value = "4", help_heading = "Limits")]
    pub lanes: LaneCounts,

    /// Shards copied at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parse_small, help_heading = "Limits")]
    pub shards: usize,

    /// COUNT of each SCAN: about how many keys the source examines in one command
    #[arg(long, value_name = "N", default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
          help_heading = "Limits")]
    pub scan_count: u32,
}

impl Limits {
    /// How fast keys move, and when.
    pub fn rates(&self) -> Rates {
        Rates::of(self.change())
    }

    /// The same, for the command that goes on.
    pub fn change(&self) -> RateChange {
        RateChange { bytes: self.rate_bytes, max_lag: self.max_lag, ..self.pace.change() }
    }
}

/// Whether to go on with what was interrupted.
#[derive(Debug, Args)]
pub struct Resuming {
    /// Resume the same job where it was interrupted
    #[arg(long, conflicts_with = "dry_run", help_heading = "What else")]
    pub resume: bool,

    /// Resume if it was interrupted, else begin: for supervisors and scripts
    #[arg(long, conflicts_with_all = ["resume", "dry_run"], help_heading = "What else")]
    pub resume_or_begin: bool,
}

impl Resuming {
    /// Whether the job of this name goes on.
    pub fn resumes(&self, folder: &Path, name: &str) -> bool {
        self.resume || self.resume_or_begin && journal::has_begun(folder, name)
    }
}

/// What the job is called, and what is run at its events.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// A name for the job, to use in other commands; unique among jobs that have not ended. Further jobs of
    /// the same command are NAME-2 and so on
    #[arg(long, value_name = "NAME", help_heading = "What else")]
    pub name: Option<JobName>,

    #[command(flatten)]
    pub hooks: HookArgs,
}

/// What is run at events of the job.
#[derive(Debug, Args)]
pub struct HookArgs {
    /// At an event of the job run a command with /bin/sh, or post the event to an https:// URL; repeatable.
    /// docs/operating/hooks.md lists the events
    #[arg(long = "on", value_name = "EVENT=COMMAND|URL", help_heading = "Hooks")]
    pub on: Vec<Hook>,

    /// How long each hook may take; then the command is killed, or the post is given up
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_hook_timeout,
        help_heading = "Hooks")]
    pub hook_timeout: u64,

    /// PEM file with the CAs to trust for webhooks [default: the system's]
    #[arg(long, value_name = "FILE", help_heading = "Hooks")]
    pub hook_ca: Option<PathBuf>,

    /// File whose first line signs what webhooks are sent (or set WHIMBREL_HOOK_SECRET)
    #[arg(long, value_name = "FILE", help_heading = "Hooks")]
    pub hook_secret_file: Option<PathBuf>,
}

impl HookArgs {
    /// Those of a job of this kind.
    ///
    /// # Errors
    /// As [`HookSettings::check`]; `Options` or `Own` for files that cannot be read.
    pub fn settings(&self, kind: Kind) -> Result<HookSettings> {
        let limit = Duration::from_millis(self.hook_timeout);
        HookSettings { hooks: self.on.clone(), limit, sender: self.sender()? }.check(kind)
    }
}

/// How the result is shown.
#[derive(Debug, Args)]
pub struct Show {
    /// Print progress and the report as JSON, one object a line, on standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Print a line of progress every N seconds [default without a terminal: each second, after ten lines
    /// every 10 s, after ten minutes each minute; with --json each second]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Output")]
    pub report: Option<u64>,

    /// Print only the final report
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

/// Whether others can see how it stands.
#[derive(Debug, Args)]
pub struct ExposeArgs {
    /// Serve status and metrics on IP:PORT: /metrics for Prometheus, /healthz, /readyz, /status. Read only,
    /// and without a login
    #[arg(long, value_name = "ADDR", help_heading = "What else")]
    pub http: Option<SocketAddr>,
}

impl Show {
    /// Says something as a line of text, or of JSON; nothing where the user wants only the report.
    pub fn print(&self, text: &str, json: &serde_json::Value) {
        if self.json {
            out!("{json}");
        } else if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// In which form progress is shown.
    pub fn form(&self) -> Form {
        Form::of(self.quiet, self.json, self.report)
    }
}
