//! Commands about a fleet, and what makes `whimbrel serve` its coordinator.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use whimbrel_core::fleet::{HOLDERS_MAX, PARTITIONS_DEFAULT, PARTITIONS_MAX};
use whimbrel_engine::endpoint::Address;

use super::shared::Beforehand;
use whimbrel_control::values::parse_ms;

/// What makes `whimbrel serve` the coordinator of a fleet.
#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// Run the coordinator of a fleet of fronts. Its journal is in --state-dir, or in --store. Without
    /// --cluster the process does nothing else
    #[arg(long, help_heading = "Fleet")]
    pub fleet: bool,

    /// How many partitions the fleet has. It stays the same as long as its journal is kept
    #[arg(long, value_name = "N", default_value_t = PARTITIONS_DEFAULT, requires = "fleet",
        help_heading = "Fleet",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(PARTITIONS_MAX)))]
    pub partitions: u32,

    /// A server or cluster that has the data, as NAME=URL without a password: each member is given the
    /// password when it is started. Repeatable
    #[arg(long, value_name = "NAME=URL", requires = "fleet", help_heading = "Fleet",
        value_parser = parse_backend)]
    pub backend: Vec<(String, String)>,

    /// How long a member may serve without hearing from the coordinator. A little later its partitions go to
    /// other members
    #[arg(long, value_name = "TIME", default_value = "3s", requires = "fleet", help_heading = "Fleet",
          value_parser = parse_lease)]
    pub lease: u64,

    /// How many members hold each partition: its owner, and standbys that take over at once if the owner is
    /// lost
    #[arg(long, value_name = "N", default_value_t = 1, requires = "fleet", help_heading = "Fleet",
          value_parser = clap::value_parser!(u8).range(1..=HOLDERS_MAX as i64))]
    pub copies: u8,

    /// Consider a member dead, without waiting for its lease, when its connection has ended and its host
    /// refuses connections to its address. Use it only if nothing else can refuse them: no proxy, no load
    /// balancer, no firewall in between
    #[arg(long, requires = "fleet", help_heading = "Fleet")]
    pub dead_when_refused: bool,

    /// An etcd (3.4 or later) that keeps the journal, and in which the coordinators elect a leader:
    /// etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/PREFIX], or etcds:// for TLS. Each fleet needs its
    /// own prefix
    #[arg(long, value_name = "URL", requires = "fleet", help_heading = "Fleet")]
    pub store: Option<String>,

    /// File whose first line is the password for --store (or set WHIMBREL_STORE_PASSWORD)
    #[arg(long, value_name = "FILE", requires = "store", help_heading = "Fleet")]
    pub store_password_file: Option<PathBuf>,

    /// PEM file with the CAs to trust for etcds:// [default: the system's]
    #[arg(long, value_name = "FILE", requires = "store", help_heading = "Fleet")]
    pub store_ca: Option<PathBuf>,

    /// How long the leading coordinator may fail to reach --store before another one is elected, in whole
    /// seconds: 1s to 10m
    #[arg(long, value_name = "TIME", default_value = "3s", requires = "store", help_heading = "Fleet",
          value_parser = parse_reign)]
    pub reign: u64,

    /// Address at which members and users reach this coordinator while it leads [default: the address of
    /// --listen]
    #[arg(long, value_name = "HOST:PORT", requires = "store", help_heading = "Fleet",
        value_parser = parse_address)]
    pub announce: Option<String>,
}

/// In seconds: etcd knows no shorter ones.
fn parse_reign(text: &str) -> Result<u64, String> {
    match parse_ms(text)? {
        ms @ 1_000..=600_000 if ms % 1_000 == 0 => Ok(ms / 1_000),
        _ => Err("a reign is from 1s to 10m, in whole seconds".to_owned()),
    }
}

fn parse_address(text: &str) -> Result<String, String> {
    let is_plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    match Address::parse_tcp(text).filter(|address| address.host().is_some_and(|host| !host.is_empty())) {
        Some(address) if is_plain => Ok(address.to_string()),
        _ => Err("write HOST:PORT".to_owned()),
    }
}

fn parse_backend(text: &str) -> Result<(String, String), String> {
    let (name, url) = text.split_once('=').ok_or("write NAME=URL")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err("a name has letters, digits, - and _".to_owned());
    }
    if url.is_empty() || url.chars().any(char::is_control) {
        return Err("write NAME=URL".to_owned());
    }
    Ok((name.to_owned(), url.to_owned()))
}

fn parse_lease(text: &str) -> Result<u64, String> {
    match parse_ms(text)? {
        ms @ 200..=600_000 => Ok(ms),
        _ => Err("a lease is from 200ms to 10m".to_owned()),
    }
}

/// `whimbrel fleet`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel fleet status --server 127.0.0.1:7999
  whimbrel fleet leave front-2 --server 127.0.0.1:7999      before its machine is switched off
  whimbrel fleet dead front-3 --server 127.0.0.1:7999       its process is gone: do not wait for its lease
  whimbrel fleet drain 3 --server 127.0.0.1:7999            it stays a member, without partitions
  whimbrel fleet join 3 --weight 2 --server 127.0.0.1:7999  it gets twice the share of the others
  whimbrel fleet join --backend b --server 127.0.0.1:7999   backend b gets its share of the data
  whimbrel fleet drain --backend a --server 127.0.0.1:7999  backend a gives all its data to the others

Members are named by number, name or address: see whimbrel fleet status. They join by themselves when they
start. The coordinator is whimbrel serve --fleet; if there are several, name all of them with --server. If
you stop this command, the coordinator continues. Exit codes: 0 done; 3 the coordinator cannot be reached;
4 it refuses; 8, of fleet status: a partition has no owner, or a member is not connected. See
whimbrel --help")]
pub struct FleetArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: FleetCommand,
}

/// What to do with a fleet.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Show members, what they have, and what moves
    Status(FleetAt),
    /// Give a drained member its share of the partitions again, change a member's share, or give a backend
    /// its share of the data
    Join {
        #[command(flatten)]
        which: FleetWhich,
        /// Share relative to the others [default: the one that a member was started with; 1 for a backend]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
        weight: Option<u32>,
        #[command(flatten)]
        order: FleetOrder,
    },
    /// Have a member give all its partitions to others and leave the fleet
    Leave {
        /// The member: its number, name or address
        member: String,
        #[command(flatten)]
        asked: Asked,
        #[command(flatten)]
        order: FleetOrder,
    },
    /// Give the partitions of a dead member to others at once, without waiting for its lease. Use it only if
    /// the process is gone: if it still runs, two members serve the same slots
    Dead {
        /// The member: its number, name or address
        member: String,
        #[command(flatten)]
        asked: Asked,
        #[command(flatten)]
        order: FleetOrder,
    },
    /// Have a member give all its partitions to others and stay without any; or a backend all its data
    Drain {
        #[command(flatten)]
        which: FleetWhich,
        #[command(flatten)]
        asked: Asked,
        #[command(flatten)]
        order: FleetOrder,
    },
    /// Give every member and backend its share, retry moves that failed, and wait until all have it
    Rebalance(FleetOrder),
}

impl FleetCommand {
    /// Where the coordinator is.
    pub fn at(&self) -> &FleetAt {
        match self {
            FleetCommand::Status(at) => at,
            FleetCommand::Join { order, .. }
            | FleetCommand::Leave { order, .. }
            | FleetCommand::Dead { order, .. }
            | FleetCommand::Drain { order, .. }
            | FleetCommand::Rebalance(order) => &order.at,
        }
    }
}

/// What takes partitions or data away from somebody asks first.
#[derive(Debug, Clone, Copy, Args)]
pub struct Asked {
    #[command(flatten)]
    pub ask: Beforehand,

    /// Show what would be done, and fail where the real run would fail
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

/// A member or a backend.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct FleetWhich {
    /// The member: its number, name or address
    pub member: Option<String>,
    /// The backend whose data is meant, by its name
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
}

/// Where the coordinator of a fleet is.
#[derive(Debug, Args)]
pub struct FleetAt {
    /// The coordinator, as given with --listen to whimbrel serve: HOST:PORT, or redis:// with a password.
    /// Where there are several, all of them: ADDR,ADDR or repeated. The one that leads is found
    #[arg(long, value_name = "ADDR", required = true, value_delimiter = ',')]
    pub server: Vec<String>,

    /// File whose first line is its password (or set WHIMBREL_SERVE_PASSWORD)
    #[arg(long, value_name = "FILE")]
    pub server_password_file: Option<PathBuf>,

    /// Print JSON, one object a line
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// What the coordinator is asked to do, and whether to wait for the end.
#[derive(Debug, Args)]
pub struct FleetOrder {
    #[command(flatten)]
    pub at: FleetAt,

    /// Do not wait until it is done, only until the coordinator has written it down
    #[arg(long)]
    pub no_wait: bool,
}
