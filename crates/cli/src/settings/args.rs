//! What the user types.
//!
//! One definition feeds the parser, the help texts, the shell completions and the manual pages.

mod access;
mod assess;
mod cluster;
mod console;
mod copy;
mod fleet;
mod front;
mod moves;
mod shared;
mod sync;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use whimbrel_control::values::parse_ms;
use whimbrel_core::units::parse_count;

pub use self::access::{PASSWORD_TTL_MS, Reach};
pub use self::assess::AssessArgs;
pub use self::cluster::{ClusterArgs, RepairArgs, StatusArgs, Strays};
pub use self::console::{TokenArgs, TokenCommand};
pub use self::copy::{CopyArgs, Depth, VerifyArgs};
pub use self::fleet::{Asked, CoordinatorArgs, FleetArgs, FleetAt, FleetCommand};
pub use self::front::{FrontArgs, FrontAt, FrontCommand, JoinArgs};
pub use self::moves::{
    Balanced, DrainArgs, JobAccess, JobsArgs, JobsCommand, MethodChoice, MovingArgs, RebalanceArgs,
    ReshardArgs, ServeArgs, VerifyChoice,
};
pub use self::shared::{Beforehand, Endpoints, HookArgs, Limits, Names, Show};
pub use self::sync::{CompareChoice, CutoverArgs, FeedChoice, FenceChoice, SyncArgs, UnfenceArgs, WatchArgs};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "whimbrel",
    version,
    long_version = crate::version::long(),
    about = "Non-stop migration for Redis and Valkey",
    long_about = "Moves live data between Redis- and Valkey-compatible servers, and compares both sides.",
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
        "\nEnvironment:\n  WHIMBREL_OPTION      any option, in capitals with _ for -: WHIMBREL_MAX_PAUSE is \
            --max-pause (docs/configuration.md)\n  \
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
    /// Remove the fence of a cutover, so that clients can write to the old source again
    Unfence(Box<UnfenceArgs>),
    /// Show the state of jobs or of a fleet; on a terminal, single keys pause, resume and cancel jobs
    Watch(WatchArgs),
    /// Move slots of a cluster to other primaries, while clients write
    Reshard(Box<ReshardArgs>),
    /// Give every primary of a cluster its share of the slots
    Rebalance(Box<RebalanceArgs>),
    /// Move all slots of a primary to the others
    Drain(Box<DrainArgs>),
    /// Run a daemon that moves slots on request, by Valkey's own commands, and answers clients that ask which
    /// node owns a slot; or run the coordinator of a fleet of fronts
    Serve(Box<ServeArgs>),
    /// Run a proxy in front of a server or a cluster, which serves clients while the keys move to another one
    Front(Box<FrontArgs>),
    /// Show a fleet of fronts, and make members join, leave, or give away their partitions
    Fleet(Box<FleetArgs>),
    /// List, show, cancel, resume and forget jobs
    Jobs(Box<JobsArgs>),
    /// Show a cluster's shards, slots, keys and replicas, and what is wrong
    Status(Box<StatusArgs>),
    /// Find half-done migrations, slots without owner and keys in slots of another node, and repair them
    Repair(Box<RepairArgs>),
    /// Manage who may use the console of whimbrel serve: create, list and revoke tokens
    Token(TokenArgs),
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

Precedence, strongest first: the command line, the environment, the file, the defaults.")]
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

/// `whimbrel demo`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    /// Which demo; the rebalance by default.
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
    /// Open the console of a cluster under load, to plan and watch moves in a browser; Ctrl-C ends it, then
    /// the demo proves that nothing was lost
    Console {
        /// What it is made of.
        #[command(flatten)]
        options: DemoOptions,
        /// How long at most
        #[arg(long, default_value = "1h", value_parser = parse_ms)]
        time: u64,
    },
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
