//! How to reach servers, and who logs in there.

use std::path::PathBuf;

use clap::Args;
use whimbrel_engine::link::LinkOptions;

use whimbrel_control::access::Access;
use whimbrel_control::values::{parse_ms, parse_ttl};

/// For how long a password that a command prints is valid, where the command line has no option for it.
pub const PASSWORD_TTL_MS: u64 = 600_000;

/// How to reach a source and a target.
#[derive(Debug, Args)]
pub struct Reach {
    #[command(flatten)]
    pub source_access: SourceAccess,

    #[command(flatten)]
    pub target_access: TargetAccess,

    /// How long a password is valid that comes from --source-password-command or --target-password-command;
    /// the command runs again before it expires
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_ttl,
        help_heading = "Access")]
    pub password_ttl: u64,

    /// Accept any certificate of either side. For tests only
    #[arg(long, help_heading = "TLS")]
    pub insecure: bool,

    #[command(flatten)]
    pub timeouts: Timeouts,
}

/// How long connections may take.
#[derive(Debug, Clone, Copy, Args)]
pub struct Timeouts {
    /// How long a connection attempt may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_ms, help_heading = "Limits")]
    pub connect_timeout: u64,

    /// How long a reply may take without a single byte arriving
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ms, help_heading = "Limits")]
    pub timeout: u64,
}

impl Timeouts {
    /// How connections behave.
    pub fn link_options(&self, readonly: bool) -> LinkOptions {
        let (connect_timeout_ms, reply_timeout_ms) = (self.connect_timeout, self.timeout);
        LinkOptions { db: 0, readonly, connect_timeout_ms, reply_timeout_ms }
    }
}

/// The sides' options are types of their own, since each flag has its own name, but have the same fields.
macro_rules! access {
    ($name:ident, $side:literal, $announcer:literal, $prefix:literal, $variables:literal) => {
        #[doc = concat!("How to get into the ", $side, ".")]
        #[derive(Debug, Clone, Args)]
        pub struct $name {
            #[arg(
                help = concat!("ACL user on the ", $side),
                long = concat!($prefix, "user"), id = concat!($prefix, "user"), value_name = "NAME",
                help_heading = "Access"
            )]
            pub user: Option<String>,

            #[arg(
                help = concat!("File whose first line is the password for the ", $side, " (or \
                    set ", $variables, "PASSWORD)"),
                long = concat!($prefix, "password-file"), id = concat!($prefix, "password-file"),
                value_name = "FILE", help_heading = "Access"
            )]
            pub password_file: Option<PathBuf>,

            #[arg(
                help = concat!("Command, run by sh -c, whose first line of output is the password for \
                    the ", $side,
                               ": for passwords that expire"),
                long = concat!($prefix, "password-command"), id = concat!($prefix, "password-command"),
                value_name = "CMD", conflicts_with = concat!($prefix, "password-file"),
                help_heading = "Access"
            )]
            pub password_command: Option<String>,

            #[arg(
                help = concat!("With sentinel://: ACL user on the sentinels of the ", $side),
                long = concat!($prefix, "sentinel-user"), id = concat!($prefix, "sentinel-user"),
                value_name = "NAME", help_heading = "Access"
            )]
            pub sentinel_user: Option<String>,

            #[arg(
                help = concat!("With sentinel://: file whose first line is the password for the sentinels \
                    (or set ", $variables, "SENTINEL_PASSWORD)"),
                long = concat!($prefix, "sentinel-password-file"),
                id = concat!($prefix, "sentinel-password-file"), value_name = "FILE", help_heading = "Access"
            )]
            pub sentinel_password_file: Option<PathBuf>,

            #[arg(
                help = concat!("Connect to TO where the ", $announcer, " announces the address FROM; \
                    repeatable"),
                long = concat!($prefix, "map"), id = concat!($prefix, "map"), value_name = "FROM=TO",
                help_heading = "Access"
            )]
            pub map: Vec<String>,

            #[arg(
                help = concat!("Use TLS to the ", $side, ", as rediss:// does"),
                long = concat!($prefix, "tls"), id = concat!($prefix, "tls"), help_heading = "TLS"
            )]
            pub tls: bool,

            #[arg(
                help = concat!("PEM file with the CAs to trust for the ", $side),
                long = concat!($prefix, "ca"), id = concat!($prefix, "ca"), value_name = "FILE",
                help_heading = "TLS"
            )]
            pub ca: Option<PathBuf>,

            #[arg(
                help = concat!("PEM file with whimbrel's client certificate for the ", $side),
                long = concat!($prefix, "cert"), id = concat!($prefix, "cert"), value_name = "FILE",
                requires = concat!($prefix, "key"), help_heading = "TLS"
            )]
            pub cert: Option<PathBuf>,

            #[arg(
                help = "PEM file with the private key of the client certificate",
                long = concat!($prefix, "key"), id = concat!($prefix, "key"), value_name = "FILE",
                requires = concat!($prefix, "cert"), help_heading = "TLS"
            )]
            pub key: Option<PathBuf>,

            #[arg(
                help = concat!("Name to expect in the certificate of the ", $side, " instead of the host"),
                long = concat!($prefix, "server-name"), id = concat!($prefix, "server-name"),
                value_name = "NAME", help_heading = "TLS"
            )]
            pub server_name: Option<String>,
        }

        impl<'a> From<&'a $name> for Access<'a> {
            fn from(a: &'a $name) -> Self {
                Access {
                    prefix: $prefix,
                    user: a.user.as_ref(),
                    password_file: a.password_file.as_deref(),
                    password_command: a.password_command.as_ref(),
                    password_ttl_ms: PASSWORD_TTL_MS,
                    password_variable: concat!($variables, "PASSWORD"),
                    sentinel_user: a.sentinel_user.as_ref(),
                    sentinel_password_file: a.sentinel_password_file.as_deref(),
                    sentinel_variable: concat!($variables, "SENTINEL_PASSWORD"),
                    map: &a.map,
                    tls: a.tls,
                    ca: a.ca.as_deref(),
                    cert: a.cert.as_deref(),
                    key: a.key.as_deref(),
                    server_name: a.server_name.as_ref(),
                }
            }
        }
    };
}

access!(SourceAccess, "source", "source cluster", "source-", "WHIMBREL_SOURCE_");
access!(TargetAccess, "target", "target cluster", "target-", "WHIMBREL_TARGET_");
access!(ClusterAccess, "cluster", "cluster", "", "WHIMBREL_");
