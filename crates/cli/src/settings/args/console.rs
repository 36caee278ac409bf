//! The console of `whimbrel serve`, and the tokens of those who use it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use whimbrel_console::tokens::Role;

/// What opens the console.
#[derive(Debug, Args)]
pub struct ConsoleArgs {
    /// Open the console on IP:PORT: jobs and the cluster in a browser, and the same as JSON. It needs tokens:
    /// see whimbrel token
    #[arg(long, value_name = "ADDR", help_heading = "Console")]
    pub console: Option<SocketAddr>,

    /// PEM file with the console's certificate; required unless --console is a loopback address
    #[arg(
        long,
        value_name = "FILE",
        requires = "console",
        requires = "console_key",
        help_heading = "Console"
    )]
    pub console_cert: Option<PathBuf>,

    /// PEM file with the private key of --console-cert
    #[arg(long, value_name = "FILE", requires = "console_cert", help_heading = "Console")]
    pub console_key: Option<PathBuf>,

    /// PEM file with CAs: browsers must present a certificate of one of them
    #[arg(long, value_name = "FILE", requires = "console_cert", help_heading = "Console")]
    pub console_client_ca: Option<PathBuf>,

    /// A name under which browsers reach the console, besides addresses and this machine's name; repeatable
    #[arg(long, value_name = "NAME", requires = "console", help_heading = "Console")]
    pub console_host: Vec<String>,
}

/// `whimbrel token`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  whimbrel token add alice --role operate
  whimbrel token list
  whimbrel token remove alice                    refused from the next request on

A token is shown once. The state folder keeps its hash. Roles: view sees everything; operate also pauses,
sets and cancels jobs, and approves moves of slots; administer also begins jobs and cuts over.")]
pub struct TokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,

    /// The state folder of whimbrel serve [default: $XDG_STATE_HOME/whimbrel or ~/.local/state/whimbrel]
    #[arg(long, value_name = "FOLDER", global = true)]
    pub state_dir: Option<PathBuf>,
}

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print it
    Add {
        /// Name of the owner, shown in the audit log
        name: String,
        /// What its owner may do: view, operate or administer
        #[arg(long)]
        role: Role,
    },
    /// List tokens, without their secrets
    List,
    /// Revoke a token
    Remove {
        /// Name of the owner
        name: String,
    },
}
