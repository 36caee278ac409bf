//! Commands that move slots, and those about their jobs.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use whimbrel_control::daemon::NodePorts;
use whimbrel_core::schedule::Window;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::parse_count;
use whimbrel_flow::budget::RateChange;
use whimbrel_flow::lag::MaxLag;
use whimbrel_flow::load::MaxLoad;

use super::access::ClusterAccess;
use super::cluster::ClusterArgs;
use super::console::ConsoleArgs;
use super::fleet::CoordinatorArgs;
use super::shared::{Beforehand, ExposeArgs, HookArgs, JobArgs, Show};
use whimbrel_control::values::{parse_bytes, parse_ms, parse_pause, parse_stall};

/// How slots move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum MethodChoice {
    /// Whimbrel's own, which compares and bounds pauses. With --native-stall, and on Redis 8.4 and later, the
    /// servers' own first
    #[default]
    Auto,
    /// Whimbrel's own: feed, snapshot, catch-up, fence, takeover
    External,
    /// The servers' own: CLUSTER MIGRATESLOTS of Valkey 9, CLUSTER MIGRATION IMPORT of Redis 8.4. Faster for
    /// small keys; compares nothing and bounds no pause
    Native,
    /// SETSLOT and MIGRATE, key by key, as the classic tools do; for comparison
    Legacy,
}

/// How thoroughly source and target are compared before each handover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum VerifyChoice {
    /// Not at all
    None,
    /// The number of keys of each slot
    Counts,
    /// That, and the values of a sample of keys
    #[default]
    Sample,
    /// Every key
    Full,
}

/// What all commands that move slots have.
#[derive(Debug, Args)]
pub struct MovingArgs {
    /// How slots move
    #[arg(long, value_enum, default_value_t, help_heading = "Method")]
    pub method: MethodChoice,

    /// Longest single pause of writes to a node (external) [default: 100ms, or what round trips take, up to
    /// 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_pause, help_heading = "Method")]
    pub max_pause: Option<u64>,

    /// What is compared before slots are handed over (external) [default: sample]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Method")]
    pub verify: Option<VerifyChoice>,

    /// Move all slots in one handover, or none. Refused if the pause does not allow it (external; the
    /// servers' own method does so anyway)
    #[arg(long, help_heading = "Method", conflicts_with = "batch_keys")]
    pub atomic: bool,

    /// Switch to whimbrel's own method when the servers' own fails, or makes no progress for this time (auto,
    /// native) [default: 30s with auto; never with native]
    #[arg(long, value_name = "TIME", value_parser = parse_stall, help_heading = "Method")]
    pub native_stall: Option<u64>,

    /// How long a job may make no progress before it fails, because it waits for other jobs on its nodes, or
    /// for a node that does not answer
    #[arg(long, value_name = "TIME", value_parser = parse_stall, default_value = "10m",
        help_heading = "Limits")]
    pub stall: u64,

    /// Roll back rather than slow down writers that outrun the catch-up (external)
    #[arg(long, help_heading = "Method")]
    pub no_brake: bool,

    /// Hand over at most N keys in one batch (external) [default: chosen for the servers]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "Limits")]
    pub batch_keys: Option<u64>,

    /// Memory for chunks of large values (external)
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_bytes,
        help_heading = "Limits")]
    pub memory: u64,

    /// Values from this size on move in chunks (external)
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = parse_bytes,
        help_heading = "Limits")]
    pub big_key: u64,

    /// Move at most N keys per second from each source (external) [default: no limit]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "Limits")]
    pub rate_keys: Option<u64>,

    /// Move at most this many bytes per second from each source (external) [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Limits")]
    pub rate_bytes: Option<u64>,

    /// Slow down while a node takes longer than this to answer, such as 5ms (external) [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_ms, help_heading = "Limits")]
    pub max_latency: Option<u64>,

    /// Slow down while a replica of the target is further behind than this, such as 64MiB or 5s (external)
    /// [default: no limit]
    #[arg(long, value_name = "BYTES|TIME", help_heading = "Limits")]
    pub max_lag: Option<MaxLag>,

    /// Slow down while a node uses more of a core than this, such as 60% (external) [default: no limit]
    #[arg(long, value_name = "PERCENT", help_heading = "Limits")]
    pub max_load: Option<MaxLoad>,

    /// Move keys and begin handovers only at this time of day: 01:00-05:00 (UTC), or 01:00-05:00+01:00 with
    /// an offset (external)
    #[arg(long, value_name = "FROM-UNTIL", help_heading = "Limits")]
    pub between: Option<Window>,

    #[command(flatten)]
    pub job: JobArgs,

    /// Where journals are kept [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,

    /// Hand the moves to a daemon (whimbrel serve), which makes them with its own options: HOST:PORT, or
    /// redis:// with a password
    #[arg(long, value_name = "ADDR", help_heading = "Daemon", conflicts_with_all = [
        "method", "atomic", "max_pause", "verify", "no_brake", "batch_keys", "memory", "big_key", "rate_keys",
            "rate_bytes", "max_latency", "max_lag", "max_load", "between", "name", "on", "state_dir",
            "native_stall", "stall",
    ])]
    pub server: Option<String>,

    /// File whose first line is the daemon's password (or set WHIMBREL_SERVE_PASSWORD)
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "Daemon")]
    pub server_password_file: Option<PathBuf>,

    /// Show the plan and do nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,

    #[command(flatten)]
    pub ask: Beforehand,

    #[command(flatten)]
    pub show: Show,
}

impl MovingArgs {
    /// What is compared before slots are handed over.
    pub fn verify(&self) -> VerifyChoice {
        self.verify.unwrap_or_default()
    }

    /// An option that was given and that only the external method knows.
    pub fn external_only(&self) -> Option<&'static str> {
        let compares = self.verify.is_some_and(|verify| verify != VerifyChoice::None);
        [
            (self.max_pause.is_some(), "--max-pause"),
            (compares, "--verify"),
            (self.no_brake, "--no-brake"),
            (self.batch_keys.is_some(), "--batch-keys"),
            (self.rate_keys.is_some(), "--rate-keys"),
            (self.rate_bytes.is_some(), "--rate-bytes"),
            (self.max_latency.is_some(), "--max-latency"),
            (self.max_lag.is_some(), "--max-lag"),
            (self.max_load.is_some(), "--max-load"),
            (self.between.is_some(), "--between"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

/// What makes no sense for a daemon, of the options that it shares with the commands that move slots.
/// `--listen` is always there, so that each of these is refused.
fn not_served(arg: clap::Arg) -> clap::Arg {
    arg.hide(true).conflicts_with("listen")
}

/// `whimbrel serve`.
#[derive(Debug, Args)]
#[command(
    mut_arg("cluster", |arg| arg.long("cluster").required(false).default_value("").hide_default_value(true)),
    mut_arg("server", not_served),
    mut_arg("server_password_file", not_served),
    mut_arg("atomic", not_served),
    mut_arg("name", not_served),
    mut_arg("on", not_served),
    mut_arg("hook_ca", not_served),
    mut_arg("hook_secret_file", not_served),
    mut_arg("hook_timeout", |arg| arg.hide(true)),
    mut_arg("dry_run", not_served),
    mut_arg("yes", not_served),
    mut_arg("report", not_served),
    mut_arg("quiet", not_served),
    after_help = "\
Examples:
  whimbrel serve --cluster 10.0.0.1:7000 --listen 127.0.0.1:7999
  whimbrel serve --cluster 10.0.0.1:7000 --listen 0.0.0.0:7999 --listen-password-file pw --max-pause 50ms

  whimbrel reshard 10.0.0.1:7000 --slots 0-1023 --to 4fa81b --server 127.0.0.1:7999
  valkey-cli -p 7999 CLUSTER MIGRATESLOTS SLOTSRANGE 0 1023 NODE 4fa81b…
  valkey-cli -p 7999 CLUSTER GETSLOTMIGRATIONS
  valkey-cli -p 7999 CLUSTER CANCELSLOTMIGRATIONS

  whimbrel serve --cluster 10.0.0.1:7000 --listen 127.0.0.1:7999 --node-ports 8001-8032
  valkey-cli --cluster rebalance 127.0.0.1:8001 --cluster-use-atomic-slot-migration

  whimbrel serve --fleet --listen 10.0.0.9:7999 --listen-password-file pw --backend main=10.0.0.1:6379
  whimbrel fleet status --server 10.0.0.9:7999 --server-password-file pw

It runs until Ctrl-C or SIGTERM, and ends with 0 then. Jobs that were interrupted go on when it runs again
with the same --cluster and --state-dir. A fleet goes on from its journal there."
)]
pub struct ServeArgs {
    // Its address is empty where none is given.
    #[command(flatten)]
    pub at: ClusterArgs,

    /// Where to listen: IP:PORT. Port 0 takes a free one. Addresses other than loopback need a password
    #[arg(long, value_name = "ADDR", help_heading = "Daemon")]
    pub listen: SocketAddr,

    /// One port for each primary, on the address of --listen, for clients that query every node separately:
    /// FIRST-LAST, or 0 for free ones. Give one of them to valkey-cli --cluster
    #[arg(long, value_name = "PORTS", requires = "cluster", help_heading = "Daemon")]
    pub node_ports: Option<NodePorts>,

    /// File whose first line is the password that clients need (or set WHIMBREL_SERVE_PASSWORD)
    #[arg(long, value_name = "FILE", help_heading = "Daemon")]
    pub listen_password_file: Option<PathBuf>,

    #[command(flatten)]
    pub exposing: ExposeArgs,

    #[command(flatten)]
    pub console: ConsoleArgs,

    #[command(flatten)]
    pub coordinator: CoordinatorArgs,

    #[command(flatten)]
    pub moving: MovingArgs,
}

/// `whimbrel reshard`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel reshard 10.0.0.1:7000 --slots 0-1023,5000 --to 4fa81b         a node by the beginning of its id
  whimbrel reshard 10.0.0.1:7000 --slots 0-99 --to 10.0.0.4:7000 --slots 100-199 --to 10.0.0.5:7000
  whimbrel reshard 10.0.0.1:7000 --from 4fa81b --count 512 --to 10.0.0.4:7000 --dry-run

Nodes are named by id, by a unique beginning of it, or by address: see whimbrel status.
Exit codes: see whimbrel --help")]
pub struct ReshardArgs {
    #[command(flatten)]
    pub at: ClusterArgs,

    /// Slots to move, as ranges: 0-1023,5000. Repeatable: the first --slots goes to the first --to, and so on
    #[arg(long, value_name = "RANGES",
        value_parser = |t: &str| t.parse::<SlotSet>().map_err(|e| e.to_string()))]
    pub slots: Vec<SlotSet>,

    /// Node to move the slots to
    #[arg(long, value_name = "NODE", required = true)]
    pub to: Vec<String>,

    /// Take --count slots from this node, instead of naming them with --slots
    #[arg(long, value_name = "NODE", conflicts_with = "slots", requires = "count")]
    pub from: Option<String>,

    /// How many slots to take from the --from node
    #[arg(long, value_name = "N", requires = "from")]
    pub count: Option<usize>,

    #[command(flatten)]
    pub moving: MovingArgs,
}

/// What is balanced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Balanced {
    /// The number of slots
    #[default]
    Slots,
    /// The number of keys
    Keys,
    /// Estimated bytes: the number of keys times the mean key size of their node
    Bytes,
    /// Operations per second: the node's present rate, spread over its keys
    Ops,
}

/// `whimbrel rebalance`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel rebalance 10.0.0.1:7000 --use-empty              give nodes that joined their share
  whimbrel rebalance 10.0.0.1:7000 --by keys --dry-run
  whimbrel rebalance 10.0.0.1:7000 --weight 4fa81b=2 --weight 10.0.0.4:7000=0

Exit codes: see whimbrel --help")]
pub struct RebalanceArgs {
    #[command(flatten)]
    pub at: ClusterArgs,

    /// Share of a node relative to the others [default: 1]; 0 empties the node. Repeatable
    #[arg(long, value_name = "NODE=W", value_parser = parse_weight)]
    pub weight: Vec<(String, f64)>,

    /// What is balanced
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub by: Balanced,

    /// Give primaries without slots a share, too
    #[arg(long)]
    pub use_empty: bool,

    /// Move nothing if every node is within this many percent of its share
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub threshold: f64,

    #[command(flatten)]
    pub moving: MovingArgs,
}

fn parse_weight(text: &str) -> Result<(String, f64), String> {
    // Ids and addresses have no equals sign.
    let (node, weight) = text.rsplit_once('=').ok_or("write NODE=WEIGHT")?;
    let weight: f64 = weight.parse().map_err(|_| format!("{weight} is no number"))?;
    if !(weight.is_finite() && weight >= 0.0) {
        return Err("a weight is 0 or more".to_owned());
    }
    Ok((node.to_owned(), weight))
}

/// `whimbrel drain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel drain 10.0.0.1:7000 4fa81b                       move all slots of a node to the others
  whimbrel drain 10.0.0.1:7000 10.0.0.4:7000 --dry-run

The node stays a primary without slots, with its replicas. Exit codes: see whimbrel --help")]
pub struct DrainArgs {
    #[command(flatten)]
    pub at: ClusterArgs,

    /// The node to empty
    #[arg(value_name = "NODE")]
    pub node: String,

    #[command(flatten)]
    pub moving: MovingArgs,
}

/// What to do with jobs.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// List all jobs (copies, verifications, syncs, moves of slots, fronts that move keys), with the command
    /// that resumes each interrupted one. This is the default. With --cluster, also list moves that others
    /// began there: by a command to a node, or by a whimbrel with another state folder
    List {
        #[command(flatten)]
        access: JobAccess,
    },
    /// Show one job
    Show {
        /// Its name
        job: String,
    },
    /// End a job for good, whether it runs or not. A move of slots is rolled back, as far as it is not fenced
    /// yet; what a copy or a sync has written stays
    Cancel {
        #[command(flatten)]
        which: JobSelection,
        #[command(flatten)]
        access: JobAccess,
    },
    /// Show what happened to a job, and when
    Events {
        /// Its name
        job: String,
        /// Go on until the job has ended
        #[arg(long)]
        follow: bool,
    },
    /// Print the report of a job (its facts, events and result) as one JSON document, or write it as an HTML
    /// page
    Report {
        /// Its name
        #[arg(required_unless_present = "check")]
        job: Option<String>,
        /// Write the report as one self-contained HTML file
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Check that a report, HTML or JSON, is unchanged; exits with 6 if it was changed
        #[arg(long, value_name = "FILE", conflicts_with_all = ["job", "html"])]
        check: Option<PathBuf>,
    },
    /// Pause a running job: it moves no keys until it is resumed. A sync still records changes of its source,
    /// a front still serves its clients, and a handover that has begun is finished
    Pause {
        /// Its name
        #[arg(required_unless_present = "all")]
        job: Option<String>,
        /// The other jobs of the same command as well; without a name every job that runs
        #[arg(long)]
        all: bool,
    },
    /// Change the limits of a running job, at once and until it ends
    Set {
        #[command(flatten)]
        which: JobSelection,
        /// rate-keys=N, rate-bytes=BYTES, max-latency=TIME, max-lag=BYTES|TIME, max-load=PERCENT: at most
        /// that, or none; between=FROM-UNTIL, or none for any time of the day; memory=BYTES, of a copy or a
        /// sync; lanes=N, or READ:WRITE; max-pause=TIME, of a move of slots or a scheduled cutover
        #[arg(required = true, value_name = "RATE")]
        rates: Vec<RateChange>,
    },
    /// Resume a paused job, or moves of slots that were interrupted or are waiting. For other interrupted
    /// jobs `jobs list` shows the command
    Resume {
        /// The job's name [default: all unfinished moves of slots]
        job: Option<String>,
        /// The other jobs of the same command as well; without a name every job that runs
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        access: JobAccess,
        #[command(flatten)]
        hooks: HookArgs,
    },
    /// Forget jobs that have ended
    Clean,
}

/// A job, or all jobs of a command that makes several moves of slots.
#[derive(Debug, Args)]
pub struct JobSelection {
    /// Its name
    pub job: String,

    /// The other jobs of the same command as well
    #[arg(long)]
    pub all: bool,
}

/// How to reach the cluster of a job: an address without credentials is written down with it.
#[derive(Debug, Args)]
pub struct JobAccess {
    /// Any node of the cluster, if not the one that the job was begun with
    #[arg(long, value_name = "CLUSTER")]
    pub cluster: Option<String>,

    #[command(flatten)]
    pub access: ClusterAccess,

    /// Accept any certificate. For tests only
    #[arg(long, help_heading = "TLS")]
    pub insecure: bool,
}

/// `whimbrel jobs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel jobs
  whimbrel jobs resume                                      after a crash or a power cut
  whimbrel jobs set m6740f2a1-1f-0 rate-keys=5k             slower, while it runs
  whimbrel jobs pause m6740f2a1-1f-0
  whimbrel jobs report copy-2a7c --html copy.html           what is handed on
  whimbrel jobs cancel m6740f2a1-1f-0
  whimbrel jobs cancel nightly --all                        all moves of one drain

A job that is `suspended`, or that was killed, has not ended: resume it, or cancel it. Slots that were
handed over before stay where they are. How jobs ended is kept for 30 days.")]
pub struct JobsArgs {
    #[command(subcommand)]
    pub command: Option<JobsCommand>,

    /// Where journals are kept [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", global = true)]
    pub state_dir: Option<PathBuf>,

    /// Print JSON, one object a line
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}
