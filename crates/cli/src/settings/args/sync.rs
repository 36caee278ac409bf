//! What the user types to keep two deployments equal.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::cluster::ClusterArgs;
use super::shared::{Beforehand, Endpoints, ExposeArgs, JobArgs, Limits, Names, Resuming, Show};
use whimbrel_control::values::{parse_bytes, parse_ms, parse_pause, parse_quiet};
use whimbrel_core::schedule::{When, Window, parse_time};

/// How whimbrel follows changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FeedChoice {
    /// A replication link if possible, else tracking, else notifications
    Auto,
    /// A replication link, or nothing
    Replication,
    /// Invalidations of client-side caching, which do not report changes to consumer groups
    Tracking,
    /// Keyspace notifications, even if whimbrel cannot check that notify-keyspace-events is AE
    Notifications,
}

/// `whimbrel sync`.
#[derive(Debug, Args)]
#[command(after_help = "\
The target is kept equal to the source: a key deleted on the source is deleted on the target.
Stop with Ctrl-C, continue with --resume. When it follows, `whimbrel cutover` has the target take over.

Examples:
  whimbrel sync old:6379 new:6379                     everything, into an empty target
  whimbrel sync old:6379 new-cluster:7000 --db 0      one database, into a cluster
  whimbrel sync old:6379 new:6379 --mirror            into a target whose keys may be lost
  whimbrel sync old:6379 new:6379 --resume            go on where it was interrupted

Exit codes: see whimbrel --help")]
pub struct SyncArgs {
    #[command(flatten)]
    pub sides: Endpoints,

    #[command(flatten)]
    pub names: Names,

    /// Allow a target that holds keys: they are replaced, or removed if the source does not have them
    #[arg(long, help_heading = "Existing keys")]
    pub mirror: bool,

    /// Sync again from a source that was cut over before: what clients have written to the other side since
    /// then is overwritten
    #[arg(long, help_heading = "Existing keys")]
    pub again: bool,

    /// Check both sides, attach and detach the feeds, count the keys that the target would lose (with
    /// --mirror); write nothing
    #[arg(long, conflicts_with = "yes", help_heading = "What else")]
    pub dry_run: bool,

    #[command(flatten)]
    pub ask: Beforehand,

    /// End as soon as nothing is left to transfer; --resume goes on from there later
    #[arg(long, conflicts_with = "dry_run", help_heading = "What else")]
    pub once: bool,

    /// Copy function libraries too, and again at the cutover if they have changed
    #[arg(long, help_heading = "What else")]
    pub functions: bool,

    #[command(flatten)]
    pub going_on: Resuming,

    /// Where journals are kept [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", help_heading = "What else")]
    pub state_dir: Option<PathBuf>,

    /// How whimbrel follows changes of the source
    #[arg(long, value_enum, default_value_t = FeedChoice::Auto, help_heading = "What else")]
    pub feed: FeedChoice,

    /// What the source calls PSYNC, if the service has renamed it; HOST:PORT=NAME for one primary;
    /// repeatable
    #[arg(long, value_name = "NAME", help_heading = "What else")]
    pub source_psync: Vec<String>,

    /// Memory for the names of touched keys, for each primary of the source; beyond it whole slots are
    /// transferred again
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = parse_bytes,
        help_heading = "Limits")]
    pub feed_memory: u64,

    #[command(flatten)]
    pub limits: Limits,

    #[command(flatten)]
    pub job: JobArgs,

    #[command(flatten)]
    pub exposing: ExposeArgs,

    #[command(flatten)]
    pub show: Show,
}

/// `whimbrel unfence`.
#[derive(Debug, Args)]
#[command(after_help = "\
CLUSTER is the source of the sync that was cut over; it may be a standalone server too. What clients write to
it from then on is not copied to the target. If the cutover had --reverse-sync, use
`whimbrel cutover --fence acl --back` instead: it loses nothing.

Examples:
  whimbrel unfence old:6379 --dry-run
  whimbrel unfence old:6379

Exit codes: see whimbrel --help")]
pub struct UnfenceArgs {
    #[command(flatten)]
    pub at: ClusterArgs,

    /// Where the sync kept its journal [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", help_heading = "What else")]
    pub state_dir: Option<PathBuf>,

    /// Say what would be done
    #[arg(long, help_heading = "What else")]
    pub dry_run: bool,

    /// Print the outcome as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// `whimbrel watch`.
#[derive(Debug, Args)]
#[command(after_help = "\
On a terminal: p pauses and resumes, c cancels, Esc shows all jobs, q quits.

Examples:
  whimbrel watch                                      the job that runs here, or the list of jobs
  whimbrel watch nightly                              one of them
  whimbrel watch nightly --once                       how it stands now
  whimbrel watch --at mover.example.com:9400          one that runs elsewhere, with --http
  whimbrel watch friday --json | jq '.status.sources[].lag_ms'

Exit codes: see whimbrel --help")]
pub struct WatchArgs {
    /// The job, or the beginning of its name [default: the only one that runs, else the list of jobs]
    pub job: Option<String>,

    /// Ask one that runs on another machine, by the HOST:PORT that it was given with --http
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["job", "state_dir"])]
    pub at: Option<String>,

    /// Show it once and end
    #[arg(long)]
    pub once: bool,

    /// Where jobs keep their journals [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,

    /// Print a JSON object a line, once a second
    #[arg(long)]
    pub json: bool,
}

/// How writers are kept away from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FenceChoice {
    /// Not at all: writes resume when both sides are equal, and the sync goes on following clients that still
    /// write
    None,
    /// Writes stay paused for --fence-for, and clients have to find the target meanwhile
    Pause,
    /// Every ACL user but whimbrel's own loses the right to write, on all nodes
    Acl,
    /// The source becomes a replica of an address without a server (REPLICAOF 127.0.0.1 1): it serves reads
    /// and refuses writes; not for clusters
    ReadonlyReplica,
    /// You stop the writers when whimbrel asks for it. Whimbrel waits until nothing is written any more
    /// (--quiet-for), and compares all keys. It needs no right to pause clients
    External,
    /// By the front that clients go through (--front): it holds them while the sync drains and compares, and
    /// sends them to the target. It needs no right to pause clients
    Front,
}

/// How much is compared before the target takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompareChoice {
    /// Nothing
    None,
    /// The number of keys that do not expire
    Counts,
    /// That, and the content of a sample of keys
    Sample,
    /// The content of all keys, which takes as long as whimbrel verify
    Full,
}

/// `whimbrel cutover`.
#[derive(Debug, Args)]
#[command(after_help = "\
Pauses writes on the source, transfers what is left, compares, and fences writers off. If that takes
longer than --max-pause, writes resume and the sync goes on as before.

Examples:
  whimbrel cutover --dry-run                          how long would writes be paused?
  whimbrel cutover --fence acl --max-pause 100ms
  whimbrel cutover --fence external --quiet-for 10s   you stop the writers yourself
  whimbrel cutover --fence front                      clients go through whimbrel front
  whimbrel cutover sync-3f2a --fence pause --fence-for 30s
  whimbrel cutover --fence acl --between 01:00-05:00 --when-ready     tonight, by itself
  whimbrel cutover --fence acl --reverse-sync         and later, without losing what was written since:
  whimbrel cutover --fence acl --back

Exit codes: see whimbrel --help")]
pub struct CutoverArgs {
    /// The sync, or the beginning of its name [default: the only one that runs]
    pub job: Option<String>,

    /// How long writes may be paused; with --fence front, how long clients may be held
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_pause)]
    pub max_pause: u64,

    /// How writers are kept away from the source afterwards; required, except with --dry-run and --withdraw
    #[arg(long, value_enum, required_unless_present_any = ["dry_run", "withdraw"])]
    pub fence: Option<FenceChoice>,

    /// With --fence front: the front, by the IP:PORT that it listens on, or by its --state-dir if that is
    /// another one [default: the only one that runs between source and target]
    #[arg(long, value_name = "FRONT")]
    pub front: Vec<String>,

    /// With --fence pause: for how long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_ms)]
    pub fence_for: u64,

    /// With --fence external: how long the source must be without writes before the target takes over
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_quiet)]
    pub quiet_for: u64,

    /// With --fence external: how long to wait for --quiet-for; then the cutover is given up, and the sync
    /// continues
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_ms)]
    pub wait_for_quiet: u64,

    /// How much is compared before the target takes over [default: sample; with --fence external: full]
    #[arg(long, value_enum)]
    pub compare: Option<CompareChoice>,

    /// Keep a way back: afterwards the same process syncs the target back into the source. Needs a fence that
    /// lets whimbrel write there (acl, front or pause)
    #[arg(long)]
    pub reverse_sync: bool,

    /// Cut over back to the old source, with the sync that a cutover with --reverse-sync has begun, and let
    /// clients write there again
    #[arg(long, conflicts_with = "reverse_sync")]
    pub back: bool,

    /// Go on although some known keys are missing on the target
    #[arg(long)]
    pub accept_failures: bool,

    #[command(flatten)]
    pub later: Later,

    /// Say what would happen, how long writes would be paused, and which hooks of the sync would be run
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,

    #[command(flatten)]
    pub ask: Beforehand,

    /// Where the sync keeps its journal [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,

    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// When a cutover is due that is not made at once. The sync makes it, also after it was resumed; one that is
/// refused is tried again every minute.
#[derive(Debug, Args)]
pub struct Later {
    /// Do not cut over before this time: 2026-11-26T02:00Z or 2026-11-26T03:00+01:00. An hour after it the
    /// cutover is given up, unless --between or --when-ready is given
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "dry_run",
        help_heading = "Later")]
    pub at: Option<u64>,

    /// Cut over only at this time of day: 01:00-05:00 (UTC), or 01:00-05:00+01:00 with an offset
    #[arg(long, value_name = "FROM-UNTIL", conflicts_with = "dry_run", help_heading = "Later")]
    pub between: Option<Window>,

    /// Cut over as soon as writes would be paused for at most --max-pause
    #[arg(long, conflicts_with = "dry_run", help_heading = "Later")]
    pub when_ready: bool,

    /// Withdraw a scheduled cutover
    #[arg(long, help_heading = "Later", conflicts_with_all = ["at", "between", "when_ready", "dry_run"])]
    pub withdraw: bool,
}

impl Later {
    /// When it is due.
    pub fn when(&self) -> When {
        When { not_before_s: self.at, window: self.between, when_ready: self.when_ready }
    }
}
