//! Commands that look at one cluster, and what every command about one cluster needs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::access::{ClusterAccess, Timeouts};
use super::shared::Beforehand;

/// Where the cluster is and how to reach it.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Any node of the cluster: HOST:PORT, redis://, rediss:// (TLS), valkey:// or valkeys:// (TLS) with user
    /// and password
    #[arg(value_name = "CLUSTER")]
    pub cluster: String,

    #[command(flatten)]
    pub access: ClusterAccess,

    /// Accept any certificate. For tests only
    #[arg(long, help_heading = "TLS")]
    pub insecure: bool,

    #[command(flatten)]
    pub timeouts: Timeouts,
}

/// `whimbrel status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel status 10.0.0.1:7000
  whimbrel status 10.0.0.1:7000 --json | jq '.findings[].text'

Exit code 0: no problem; 8: there is a problem. See whimbrel --help")]
pub struct StatusArgs {
    #[command(flatten)]
    pub at: ClusterArgs,

    /// Do not count the keys of each slot: faster, but keys in slots of another node are not found
    #[arg(long)]
    pub no_counts: bool,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// What becomes of keys that only a node holds which does not own their slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Strays {
    /// Move them to the owner, except those that an interrupted copy left behind: they are removed
    Auto,
    /// Move them to the owner, always
    Move,
    /// Remove them: the owner alone is right
    Discard,
}

/// `whimbrel repair`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel repair 10.0.0.1:7000 --dry-run                   what it would do
  whimbrel repair 10.0.0.1:7000                             shows it, asks, does it

What it does:
  - marks of open slots that lead nowhere are cleared;
  - a slot half moved by SETSLOT and MIGRATE is finished: its remaining keys follow, then its owner changes;
    where nothing has been moved yet, the marks are cleared instead;
  - a slot without an owner goes to the node that has its keys; where several have some, to the one that the
    other nodes still take for the owner, else to the one that a mark names as the source, else to the
    one that was importing it, else to the one with most keys; where none has any, to its last owner,
    else to the primary with fewest slots;
  - a failed primary's replicas get no votes while they do not know its last epoch: they are given it, and
    repair waits until one is elected, for four times cluster-node-timeout and 10 s, at most 5 minutes;
  - where two nodes claim a slot, the one with the higher configuration epoch keeps it;
  - keys in a slot of another node are removed there, with their copies on replicas. What the owner has is
    right; what it lacks is moved to it first, never over a key of its own (see --strays). Redis 8.4 and
    later hide such keys and only count them: they are looked for while their slots are marked.

It refuses to touch a cluster in which a migration is running. Exit code 0: no problem is left; 8: there is
still a problem. See whimbrel --help")]
pub struct RepairArgs {
    #[command(flatten)]
    pub at: ClusterArgs,

    /// What to do with keys that exist only on a node that does not own their slot
    #[arg(long, value_enum, default_value_t = Strays::Auto)]
    pub strays: Strays,

    /// Show what is wrong and what would be done, and do nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,

    /// Where journals are kept, to name a job that was interrupted in this cluster [default:
    /// $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,

    #[command(flatten)]
    pub ask: Beforehand,

    /// Print one JSON object for the plan and one for the outcome
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}
