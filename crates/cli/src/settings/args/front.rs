//! `whimbrel front`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::access::{SourceAccess, TargetAccess};
use super::shared::{Beforehand, ExposeArgs, HookArgs, Show};
use whimbrel_control::values::parse_ms;

/// `whimbrel front`.
#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    mut_arg("on", |arg| arg.requires("target")),
    after_help = "\
Clients connect to the front as they would to the source, with their own users and passwords, and see no
difference. With --target, `whimbrel front start` moves the keys there while clients are served, and
`whimbrel front reverse` moves them back.
With --join it is one of several that share the slots: docs/operating/fleet.md.
docs/operating/front.md says what is bounded, docs/front-commands.md what is done with which command.

Examples:
  whimbrel front --listen 127.0.0.1:6380 --source old:6379
  whimbrel front --listen 0.0.0.0:6380 --source rediss://old:6379 --source-ca ca.pem --max-clients 20000
  whimbrel front --listen 0.0.0.0:6380 --source old:6379 --tls-cert front.pem --tls-key front.key
  whimbrel front --listen 0.0.0.0:6380 --source old:6379 --target new:6379
  whimbrel front --listen 10.0.0.1:6380 --join 10.0.0.9:7999 --forward-listen 10.0.0.1:6381
  whimbrel front start
  whimbrel front status
  whimbrel front reverse
  whimbrel front finish

Exit codes: see whimbrel --help"
)]
pub struct FrontArgs {
    /// What a front that runs is asked to do; without it, one is run.
    #[command(subcommand)]
    pub command: Option<FrontCommand>,

    /// Where clients connect to
    #[arg(long, value_name = "IP:PORT", required = true)]
    pub listen: Option<SocketAddr>,

    /// Listen on addresses that other machines reach, although a server behind the front wants no password.
    /// Such a server lets in only its own machine (protected mode); through the front anybody can use it
    #[arg(long)]
    pub open_to_all: bool,

    #[command(flatten)]
    pub joining: JoinArgs,

    /// The source, a server or any node of a cluster: HOST:PORT, redis://, rediss:// (TLS), valkey://,
    /// valkeys:// (TLS) or unix://, with the front's own user and password; clients log in with theirs
    #[arg(long, value_name = "SOURCE", required_unless_present = "join")]
    pub source: Option<String>,

    /// An empty server or cluster that the keys can be moved to, likewise
    #[arg(long, value_name = "TARGET", conflicts_with = "join")]
    pub target: Option<String>,

    /// Present the front as a cluster with one node, for clients that only know clusters. They are given
    /// this address; without a port, with that of --listen
    #[arg(long, value_name = "HOST[:PORT]", value_parser = host_and_port, conflicts_with = "join")]
    pub cluster_face: Option<(String, u16)>,

    /// Run scripts and functions while keys move, too. You promise that they use only keys that they declare:
    /// one that does not gives wrong results
    #[arg(long, requires = "target")]
    pub scripts_declare_keys: bool,

    /// Send plain reads and writes over N shared connections for each user and each primary, until keys begin
    /// to move; 0 for none. Without pipelining that is faster. CLIENT LIST, SLOWLOG and MONITOR of the server
    /// then show the shared connections
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=64),
        conflicts_with = "join")]
    pub share_connections: u32,

    #[command(flatten)]
    pub source_access: SourceAccess,

    #[command(flatten)]
    pub target_access: TargetAccess,

    /// Where the state of the migration is kept [default: $XDG_STATE_HOME/whimbrel or
    /// ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", help_heading = "What else")]
    pub state_dir: Option<PathBuf>,

    /// Serve clients over TLS, with the certificate in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,

    /// Require client certificates of the CA in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,

    /// Accept any certificate of the servers. For tests only
    #[arg(long, help_heading = "TLS")]
    pub insecure: bool,

    /// How long a connection attempt may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_ms, help_heading = "Limits")]
    pub connect_timeout: u64,

    /// How long the source may take to answer the front itself
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ms, help_heading = "Limits")]
    pub timeout: u64,

    /// How long a command may wait until its keys have moved
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_ms, help_heading = "Limits")]
    pub wait: u64,

    /// Clients at once; more are turned away
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
          help_heading = "Limits")]
    pub max_clients: u32,

    #[command(flatten)]
    pub hooks: HookArgs,

    #[command(flatten)]
    pub exposing: ExposeArgs,

    #[command(flatten)]
    pub show: Show,
}

/// What makes a front a member of a fleet.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Join the fleet of this coordinator (whimbrel serve --fleet): HOST:PORT, or redis:// with its password.
    /// If there are several, name all: COORDINATOR,COORDINATOR or repeated. Cluster clients connect to
    /// --listen, and learn which member serves which slot. The coordinator names the source, unless --source
    /// is given
    #[arg(long, value_name = "COORDINATOR", value_delimiter = ',', help_heading = "Fleet")]
    pub join: Vec<String>,

    /// File whose first line is the coordinator's password (or set WHIMBREL_SERVE_PASSWORD)
    #[arg(long, value_name = "FILE", requires = "join", help_heading = "Fleet")]
    pub join_password_file: Option<PathBuf>,

    /// A server or node whose address the coordinator may name, and that is sent the password of
    /// --source-user without TLS: HOST:PORT, repeated or with commas. Others are reached with TLS
    /// (rediss://), or not at all
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', requires = "join", help_heading = "Fleet")]
    pub trust_backend: Vec<String>,

    /// Where clients connect that do not support clusters: requests go to the member that serves the slot
    #[arg(
        long,
        value_name = "IP:PORT",
        requires = "join",
        conflicts_with = "tls_cert",
        help_heading = "Fleet"
    )]
    pub forward_listen: Option<SocketAddr>,

    /// Address at which clients and other members reach this member; without a port, the one of --listen
    /// [default: the address of --listen]
    #[arg(long, value_name = "HOST[:PORT]", requires = "join", value_parser = host_and_port,
        help_heading = "Fleet")]
    pub announce: Option<(String, u16)>,

    /// Name of this member, in commands and output [default: the address at which clients reach it]
    #[arg(long, value_name = "NAME", requires = "join", help_heading = "Fleet")]
    pub name: Option<String>,

    /// Share of the slots of this member, relative to the others; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1, requires = "join", help_heading = "Fleet",
          value_parser = clap::value_parser!(u32).range(..=1_000))]
    pub weight: u32,

    /// How long a member that is stopped may take to give its slots to others. The rest is given away when
    /// its lease has ended
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "join", value_parser = parse_ms,
        help_heading = "Fleet")]
    pub leave_timeout: u64,
}

/// What a front that runs can be asked to do.
#[derive(Debug, Subcommand)]
pub enum FrontCommand {
    /// Begin to move the keys to the target
    Start(FrontChange),
    /// Show the state of the front and of the move
    Status(FrontAt),
    /// Pause the move in the background: only keys that commands need still move
    Pause(FrontAt),
    /// Resume the move of all other keys in the background
    Resume(FrontAt),
    /// Reverse the direction: move the keys back to the source, or to the target again
    Reverse(FrontChange),
    /// End the front, if all keys have moved; clients that are connected are disconnected
    Finish(FrontChange),
}

/// Which front, for what changes where clients are served from.
#[derive(Debug, Args)]
pub struct FrontChange {
    #[command(flatten)]
    pub at: FrontAt,

    #[command(flatten)]
    pub ask: Beforehand,

    /// Show what would be done, and fail where the real run would fail
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

/// Which front.
#[derive(Debug, Args)]
pub struct FrontAt {
    /// The front, by its --listen address [default: the only one that runs]
    pub front: Option<SocketAddr>,

    /// Where the front keeps its state [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,

    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// A host, and a port or 0. IPv6 addresses stand in brackets where a port follows.
fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => match text.split_once(':') {
            Some((_, rest)) if rest.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err("give a host or an IP address, and a port if you like".to_owned());
    }
    let port = port.map_or(Ok(0), |port| port.parse().map_err(|_| format!("{port} is no port")))?;
    Ok((host.to_owned(), port))
}
