//! What all requests have in common.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::fleet::Fleet;
use whimbrel_control::jobs::Jobs;
use whimbrel_control::lobby::Guesses;
use whimbrel_engine::tls::Acceptor;

use crate::audit::Audit;
use crate::counted::Counted;
use crate::mover::Mover;
use crate::plans::Plans;
use crate::remembered::Remembered;
use crate::runs::Runs;
use crate::snapshot::Watched;
use crate::tokens::Tokens;

/// What the console is to be.
#[derive(Debug)]
pub struct ConsoleOptions {
    /// Where it listens.
    pub listen: SocketAddr,
    /// TLS, where it has a certificate.
    pub tls: Option<Acceptor>,
    /// Names under which it is reached, besides addresses and this machine's own.
    pub hosts: Vec<String>,
    /// Where jobs are, and what the console keeps.
    pub state_dir: PathBuf,
    /// How the folder was named, for commands that are shown; `None` for the usual one.
    pub named_dir: Option<PathBuf>,
    /// The version of this binary, for people.
    pub version: String,
}

/// What all requests have in common.
pub(crate) struct Inner {
    pub(crate) options: ConsoleOptions,
    pub(crate) mover: Option<Mover>,
    pub(crate) fleet: Option<Fleet>,
    pub(crate) tokens: Tokens,
    pub(crate) audit: Audit,
    pub(crate) guesses: Guesses,
    pub(crate) counted: Counted,
    pub(crate) watched: Watched,
    pub(crate) plans: Plans,
    pub(crate) runs: Arc<Runs>,
    pub(crate) remembered: Remembered,
    /// Orders under way: they come to their end although the client has gone.
    pub(crate) orders: Mutex<JoinSet<()>>,
    /// The cluster as it was found last, and when. Held while it is surveyed: all who ask share one survey.
    pub(crate) last_survey: tokio::sync::Mutex<Option<(Instant, Arc<Value>)>>,
    /// Held while keys are counted for a plan.
    pub(crate) planning: tokio::sync::Mutex<()>,
    pub(crate) stop: CancellationToken,
}

impl Inner {
    /// The jobs of the folder.
    pub(crate) fn jobs(&self) -> Jobs {
        Jobs::of(&self.options.state_dir)
    }
}
