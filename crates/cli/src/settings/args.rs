//! What the user types.
//!
//! One definition feeds the parser, the help texts, the shell completions and the manual pages.

mod assessing;
mod cluster;
mod fleet;
mod front;
mod moving;
mod syncing;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use whimbrel_core::slot::SlotSet;
use whimbrel_core::units::{self, parse_count};

pub use self::assessing::AssessArgs;
pub use self::cluster::{ClusterArgs, RepairArgs, StatusArgs, Strays};
pub use self::fleet::{CoordinatorArgs, FleetArgs, FleetAt, FleetCommand};
pub use self::front::{FrontArgs, FrontAt, FrontCommand, JoinArgs};
pub use self::moving::{
    Balanced, DrainArgs, JobAccess, JobsArgs, JobsCommand, MethodChoice, MovingArgs, RebalanceArgs,
    ReshardArgs, ServeArgs, VerifyChoice,
};
pub use self::syncing::{
    CompareChoice, CutoverArgs, FeedChoice, FenceChoice, SyncArgs, UnfenceArgs, WatchArgs,
};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "whimbrel",
    version,
    long_version = crate::version::long(),
    about = "Non-stop migration for Redis and Valkey",
    long_about = "Moves live data between Redis- and Valkey-compatible servers and proves that nothing was \
        lost.",
    after_help = "whimbrel help COMMAND explains a command; --help also lists exit codes and the environment",
    after_long_help = closing_words(),
    max_term_width = 110,
    propagate_version = true
)]
pub struct Cli {
    /// File with options, in TOML: for all commands, for each, and in profiles (or set WHIMBREL_CONFIG)
    #[arg(long, value_name = "FILE", global = true, help_heading = "Configuration")]
    pub config: Option<PathBuf>,

    /// Options from [profile.NAME] of that file as well, which win over the others (or set WHIMBREL_PROFILE)
    #[arg(long, value_name = "NAME", global = true, help_heading = "Configuration")]
    pub profile: Option<OsString>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn closing_words() -> String {
    let mut text = "Exit codes:\n".to_owned();
    for (exit, meaning) in crate::exit::Exit::TABLE {
        text.push_str(&format!("  {:>3}  {meaning}\n", exit as u8));
    }
    text.push_str(
        "\nEnvironment:\n  WHIMBREL_NAME        the option --name of any command, - written as _: see \
            docs/configuration.md\n  \
         WHIMBREL_LOG         what is logged on standard error, from error (default) to \
            info and debug\n  \
         WHIMBREL_LOG_FORMAT  json: each line of the log is a JSON object\n\n\
         Passwords:\n  one in an address is in the list of processes for some milliseconds; prefer \
         --password-file\n",
    );
    text
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find out what stands in the way of a migration, and how long it would take; changes nothing
    Assess(Box<AssessArgs>),
    /// Copy keys from one deployment to another
    Copy(Box<CopyArgs>),
    /// Prove that two deployments hold equal keys
    Verify(Box<VerifyArgs>),
    /// Keep a deployment equal to another while clients write, until the other takes over
    Sync(Box<SyncArgs>),
    /// Have the target of a running sync take over
    Cutover(Box<CutoverArgs>),
    /// Take down the fence that a cutover has put up: let writers in again where they were
    Unfence(Box<UnfenceArgs>),
    /// Show how a running sync stands, or a fleet
    Watch(WatchArgs),
    /// Move slots of a cluster to other primaries, while clients write
    Reshard(Box<ReshardArgs>),
    /// Give every primary of a cluster its share of the slots
    Rebalance(Box<RebalanceArgs>),
    /// Move all slots of a primary to the others
    Drain(Box<DrainArgs>),
    /// Keep running, move slots when told so over the network, by Valkey's own commands, and tell clients who
    /// owns them; or be the coordinator of a fleet of fronts
    Serve(Box<ServeArgs>),
    /// Serve clients in front of a server or a cluster, also while its keys move to another one
    Front(Box<FrontArgs>),
    /// Show a fleet of fronts, and have its members join in, leave, or give away what they have
    Fleet(Box<FleetArgs>),
    /// List, show, cancel, resume and forget jobs
    Jobs(Box<JobsArgs>),
    /// Show a cluster's shards, slots, keys and replicas, and what is wrong
    Status(Box<StatusArgs>),
    /// Find half-done migrations, slots without owner and keys in slots of another node, and repair them
    Repair(Box<RepairArgs>),
    /// Show which options files and environment set, and what is in force
    Config(ConfigArgs),
    /// Start a real cluster, rebalance a million keys while clients write, and prove that nothing is lost
    Demo(DemoArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or with a folder write one for each command
    Man {
        /// Where to write the pages.
        folder: Option<PathBuf>,
    },
}

/// `whimbrel config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show each option that is in force for a command and where it comes from; without a command, what file
    /// and environment set. Passwords are not shown
    #[command(after_help = "\
Examples:
  whimbrel config show --config orders.toml                 what the file and the environment set
  whimbrel config show --config orders.toml --profile eu sync
  whimbrel config show copy old:6379 new:6379 --replace     the command is not run

The command line wins over the environment, that over the file, and that over defaults.")]
    Show(ConfigShowArgs),
}

/// `whimbrel config show`.
#[derive(Debug, Args)]
pub struct ConfigShowArgs {
    /// Print JSON, one object for each option
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// A command with its options, as it would be run
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// What the user may have answered already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct Beforehand {
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// Where the two sides are and how to reach them.
#[derive(Debug, Args)]
pub struct Sides {
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

/// How to reach a source and a target.
#[derive(Debug, Args)]
pub struct Reach {
    #[command(flatten)]
    pub source_access: SourceAccess,

    #[command(flatten)]
    pub target_access: TargetAccess,

    /// For how long a password is valid that --source-password-command or --target-password-command has
    /// printed; a new one is asked for before that
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_ttl,
        help_heading = "Access")]
    pub password_ttl: u64,

    /// Accept any certificate of either side. For tests only
    #[arg(long, help_heading = "TLS")]
    pub insecure: bool,

    /// How long a connection attempt may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_ms, help_heading = "Limits")]
    pub connect_timeout: u64,

    /// How long a reply may take without a single byte arriving
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ms, help_heading = "Limits")]
    pub timeout: u64,
}

macro_rules! access {
    ($name:ident, $side:literal, $announcer:literal, $user:literal, $file:literal, $command:literal,
        $env:literal, $sentinel_user:literal, $sentinel_file:literal, $sentinel_env:literal,
     $map:literal, $tls:literal, $ca:literal,
     $cert:literal, $key:literal, $sni:literal, $heading:literal) => {
        #[doc = concat!("How to get into the ", $side, ".")]
        #[derive(Debug, Clone, Args)]
        pub struct $name {
            #[arg(
                help = concat!("ACL user on the ", $side),
                long = $user, id = $user, value_name = "NAME", help_heading = $heading
            )]
            pub user: Option<String>,

            #[arg(
                help = concat!("File whose first line is the password for the ", $side, " (or \
                    set ", $env, ")"),
                long = $file, id = $file, value_name = "FILE", help_heading = $heading
            )]
            pub password_file: Option<PathBuf>,

            #[arg(
                help = concat!("Command, run by sh -c, whose first line of output is the password for \
                    the ", $side,
                               ": for passwords that expire, see --password-ttl"),
                long = $command, id = $command, value_name = "CMD", conflicts_with = $file,
                    help_heading = $heading
            )]
            pub password_command: Option<String>,

            #[arg(
                help = concat!("With sentinel://: ACL user on the sentinels of the ", $side),
                long = $sentinel_user, id = $sentinel_user, value_name = "NAME", help_heading = $heading
            )]
            pub sentinel_user: Option<String>,

            #[arg(
                help = concat!("With sentinel://: file whose first line is the password for the sentinels \
                    (or set ", $sentinel_env, ")"),
                long = $sentinel_file, id = $sentinel_file, value_name = "FILE", help_heading = $heading
            )]
            pub sentinel_password_file: Option<PathBuf>,

            #[arg(
                help = concat!("Address that the ", $announcer, " announces and what to connect to instead, \
                    as FROM=TO; repeatable"),
                long = $map, id = $map, value_name = "FROM=TO", help_heading = $heading
            )]
            pub map: Vec<String>,

            #[arg(
                help = concat!("Use TLS to the ", $side, ", as rediss:// does"),
                long = $tls, id = $tls, help_heading = "TLS"
            )]
            pub tls: bool,

            #[arg(
                help = concat!("PEM file with the authorities to trust for the ", $side),
                long = $ca, id = $ca, value_name = "FILE", help_heading = "TLS"
            )]
            pub ca: Option<PathBuf>,

            #[arg(
                help = concat!("PEM file with our certificate for the ", $side),
                long = $cert, id = $cert, value_name = "FILE", requires = $key, help_heading = "TLS"
            )]
            pub cert: Option<PathBuf>,

            #[arg(
                help = concat!("PEM file with its key"),
                long = $key, id = $key, value_name = "FILE", requires = $cert, help_heading = "TLS"
            )]
            pub key: Option<PathBuf>,

            #[arg(
                help = concat!("Name to expect in the certificate of the ", $side, " instead of the host"),
                long = $sni, id = $sni, value_name = "NAME", help_heading = "TLS"
            )]
            pub server_name: Option<String>,
        }
    };
}

access!(
    SourceAccess,
    "source",
    "source cluster",
    "source-user",
    "source-password-file",
    "source-password-command",
    "WHIMBREL_SOURCE_PASSWORD",
    "source-sentinel-user",
    "source-sentinel-password-file",
    "WHIMBREL_SOURCE_SENTINEL_PASSWORD",
    "source-map",
    "source-tls",
    "source-ca",
    "source-cert",
    "source-key",
    "source-server-name",
    "Access"
);
access!(
    TargetAccess,
    "target",
    "target cluster",
    "target-user",
    "target-password-file",
    "target-password-command",
    "WHIMBREL_TARGET_PASSWORD",
    "target-sentinel-user",
    "target-sentinel-password-file",
    "WHIMBREL_TARGET_SENTINEL_PASSWORD",
    "target-map",
    "target-tls",
    "target-ca",
    "target-cert",
    "target-key",
    "target-server-name",
    "Access"
);

access!(
    ClusterAccess,
    "cluster",
    "cluster",
    "user",
    "password-file",
    "password-command",
    "WHIMBREL_PASSWORD",
    "sentinel-user",
    "sentinel-password-file",
    "WHIMBREL_SENTINEL_PASSWORD",
    "map",
    "tls",
    "ca",
    "cert",
    "key",
    "server-name",
    "Access"
);

/// Which keys.
#[derive(Debug, Args)]
pub struct Which {
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
    /// Only keys that match this pattern, as KEYS and SCAN understand it; repeatable: any of them
    #[arg(long = "match", visible_alias = "pattern", value_name = "PATTERN", help_heading = "Selection")]
    pub matches: Vec<String>,

    /// No keys that match this pattern; repeatable
    #[arg(long, value_name = "PATTERN", help_heading = "Selection")]
    pub exclude: Vec<String>,

    /// Only keys in these slots: 0-5460,10000
    #[arg(long, value_name = "SLOTS", help_heading = "Selection")]
    pub slots: Option<SlotSet>,

    /// Database, or SOURCE:TARGET, or all; repeatable or with commas [default: the one in the URL, else all]
    #[arg(long = "db", value_name = "DB", value_delimiter = ',', help_heading = "Selection")]
    pub dbs: Vec<String>,
}

/// Bounds of whatever transfers keys.
#[derive(Debug, Args)]
pub struct Limits {
    /// Read at most N keys per second
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "Limits")]
    pub rate_keys: Option<u64>,

    /// Read at most this many bytes of values per second
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Limits")]
    pub rate_bytes: Option<u64>,

    /// Values in flight at any time; resident memory stays under this plus 64 MiB
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_bytes,
        help_heading = "Limits")]
    pub memory: u64,

    /// Values above this size move in chunks
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = parse_bytes,
        help_heading = "Limits")]
    pub big_key: u64,

    /// Lanes for each shard: connections that read, and as many to each node that is written to
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parse_small, help_heading = "Limits")]
    pub lanes: usize,

    /// Shards copied at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parse_small, help_heading = "Limits")]
    pub shards: usize,

    /// COUNT of each SCAN: how much the source looks at in one command
    #[arg(long, value_name = "N", default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
          help_heading = "Limits")]
    pub scan_count: u32,
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
    pub sides: Sides,

    #[command(flatten)]
    pub which: Which,

    /// Stop after N keys
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "Selection")]
    pub limit: Option<u64>,

    /// Replace keys that the target has already
    #[arg(long, group = "existing", help_heading = "Existing keys")]
    pub replace: bool,

    /// Leave keys alone that the target has already
    #[arg(long, group = "existing", help_heading = "Existing keys")]
    pub skip: bool,

    /// Stop at the first key that the target has already with another value
    #[arg(long, group = "existing", help_heading = "Existing keys")]
    pub fail: bool,

    /// Count what would be copied, with --replace what would be replaced, write nothing
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

    /// Go on with the same copy where it was interrupted
    #[arg(long, conflicts_with_all = ["dry_run", "limit"], help_heading = "What else")]
    pub resume: bool,

    /// Where journals are kept [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", help_heading = "What else")]
    pub state_dir: Option<PathBuf>,

    /// Read from replicas of the source where it has any
    #[arg(long, help_heading = "What else")]
    pub from_replicas: bool,

    #[command(flatten)]
    pub limits: Limits,

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
    pub sides: Sides,

    #[command(flatten)]
    pub which: Which,

    /// How closely to compare
    #[arg(long, value_enum, default_value_t = Depth::Full, help_heading = "Comparison")]
    pub depth: Depth,

    /// Compare a sample only: N keys, or P percent (10%)
    #[arg(long, value_name = "N|P%", help_heading = "Comparison")]
    pub sample: Option<String>,

    /// How far expiry times may be apart
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_ms,
        help_heading = "Comparison")]
    pub ttl_tolerance: u64,

    /// Do not look for keys that only the target has
    #[arg(long, help_heading = "Comparison")]
    pub ignore_extra: bool,

    /// Look at a difference again up to N times before it stands: a live source changes while it is read
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Comparison")]
    pub settle: u32,

    /// List at most N differences; all are counted
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Output")]
    pub list: usize,

    /// Go on with a verification that was interrupted: with the same options; what was found so far is kept
    #[arg(long, help_heading = "What else")]
    pub resume: bool,

    /// Where journals are kept [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", help_heading = "What else")]
    pub state_dir: Option<PathBuf>,

    /// Read from replicas of the source where it has any
    #[arg(long, help_heading = "Comparison")]
    pub from_replicas: bool,

    /// Read at most N keys per second
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "Limits")]
    pub rate_keys: Option<u64>,

    #[command(flatten)]
    pub show: Show,
}

/// `whimbrel demo`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    /// Which demo; the rebalance unless told.
    #[command(subcommand)]
    pub demo: Option<Demo>,

    #[command(flatten)]
    pub options: DemoOptions,
}

/// The demos.
#[derive(Debug, Subcommand)]
pub enum Demo {
    /// Rebalance a cluster onto an empty shard while clients read and write, and prove it; this is the
    /// default
    Reshard(DemoOptions),
    /// Copy all keys of one server to another, and prove it
    Copy(DemoOptions),
}

/// What a demo is made of.
#[derive(Debug, Args)]
pub struct DemoOptions {
    /// How many keys
    #[arg(long, default_value = "1000000", value_parser = parse_count)]
    pub keys: u64,

    /// Servers to start: redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1
    #[arg(long, default_value = "redis-7.0")]
    pub engine: String,
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    match units::parse_bytes(text) {
        Ok(0) => Err("it must be more than nothing".to_owned()),
        other => other.map_err(|e| e.to_string()),
    }
}

/// The types of the server itself are written as it writes them; a module's name is kept as it is. Servers
/// find no keys of a type that does not exist, which would look like success.
fn parse_type(text: &str) -> Result<String, String> {
    const BUILT_IN: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];
    if text.is_empty() {
        return Err("a type has a name".to_owned());
    }
    if let Some(name) = BUILT_IN.into_iter().find(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(name.to_owned());
    }
    // As `RedisModule_CreateDataType` wants it; `vectorset` of Redis 8 is made like this too.
    let is_of_module =
        text.len() == 9 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_of_module {
        return Ok(text.to_owned());
    }
    Err(format!("there is no such type: {}, or a module's, of nine characters", BUILT_IN.join(", ")))
}

fn parse_ms(text: &str) -> Result<u64, String> {
    let duration = units::parse_duration(text).map_err(|e| e.to_string())?;
    u64::try_from(duration.as_millis()).map_err(|_| "that is too long".to_owned())
}

/// How long writes may be paused. A number without a unit would be seconds, which nobody means here.
fn parse_pause(text: &str) -> Result<u64, String> {
    const LONGEST_MS: u64 = 60_000;
    if text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err("say the unit, for example 50ms or 0.2s".to_owned());
    }
    match parse_ms(text)? {
        0 => Err("writes have to be paused for a moment: from 1ms on".to_owned()),
        ms if ms > LONGEST_MS => Err("writes are paused for a minute at most".to_owned()),
        ms => Ok(ms),
    }
}

/// For how long nobody must have written. A shorter time would tell nothing.
fn parse_quiet(text: &str) -> Result<u64, String> {
    match parse_ms(text)? {
        ms if ms < 100 => Err("nobody must have written for a while: from 100ms on".to_owned()),
        ms => Ok(ms),
    }
}

/// For how long a password is valid.
fn parse_ttl(text: &str) -> Result<u64, String> {
    const LONGEST_MS: u64 = 24 * 3_600_000;
    match parse_ms(text)? {
        ms if !(1_000..=LONGEST_MS).contains(&ms) => Err("from 1s to 24h".to_owned()),
        ms => Ok(ms),
    }
}

fn parse_small(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err("write a number from 1 to 64".to_owned()),
    }
}
