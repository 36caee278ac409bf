//! `whimbrel front`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{Show, SourceAccess, parse_ms};

/// `whimbrel front`.
#[derive(Debug, Args)]
#[command(after_help = "\
Clients connect to the front as they would to the source, with their own users and passwords, and see no difference.
docs/operating/front.md tells what is bounded, docs/front-commands.md what is done with which command.

Examples:
  whimbrel front --listen 127.0.0.1:6380 --source old:6379
  whimbrel front --listen 0.0.0.0:6380 --source rediss://old:6379 --source-ca ca.pem --max-clients 20000
  whimbrel front --listen 0.0.0.0:6380 --source old:6379 --tls-cert front.pem --tls-key front.key

Exit codes: see whimbrel --help")]
pub struct FrontArgs {
    /// Where clients connect to
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddr,

    /// The source: HOST:PORT, redis://, rediss:// (TLS), valkey://, valkeys:// (TLS) or unix:// with user and password, which
    /// the front looks at it with; clients bring their own
    #[arg(long, value_name = "SOURCE")]
    pub source: String,

    #[command(flatten)]
    pub source_access: SourceAccess,

    /// Clients connect with TLS, and are shown the certificate in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,

    /// Clients have to show a certificate of the authority in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,

    /// Accept any certificate of the source. For tests only
    #[arg(long, help_heading = "TLS")]
    pub insecure: bool,

    /// How long a connection attempt may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_ms, help_heading = "Limits")]
    pub connect_timeout: u64,

    /// How long the source may take to answer the front itself
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ms, help_heading = "Limits")]
    pub timeout: u64,

    /// Clients at once; more are turned away
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000),
          help_heading = "Limits")]
    pub max_clients: u32,

    #[command(flatten)]
    pub show: Show,
}
