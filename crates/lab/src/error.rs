//! Why something in the lab did not work.

use std::io;

use crate::engine::Engine;

/// Why something in the lab did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The engine's binaries are not on this machine.
    #[error("{engine} is not on this machine: run `./dev engines {engine}`")]
    EngineMissing {
        /// The engine that was asked for.
        engine: Engine,
    },
    /// etcd's binary is not on this machine.
    #[error("etcd is not on this machine: run `./dev engines etcd`")]
    EtcdMissing,
    /// nutcracker's binary is not on this machine.
    #[error("nutcracker is not on this machine: run `./dev engines nutcracker`")]
    NutcrackerMissing,
    /// A server process ended, or never became ready, after it was started.
    #[error("{server} did not start: {reason}; the end of its log:\n{log_tail}")]
    StartFailed {
        /// Engine and name of the server.
        server: String,
        /// What was seen.
        reason: String,
        /// The last lines the server wrote.
        log_tail: String,
    },
    /// No port was free, in many attempts.
    #[error("no free port on loopback between {first} and {last}")]
    NoFreePort {
        /// The lowest port that is tried.
        first: u16,
        /// The highest port that is tried.
        last: u16,
    },
    /// A file, folder, process or socket could not be handled.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A signal could not be sent.
    #[error("cannot signal process {pid}: {source}")]
    Signal {
        /// The process the signal was for.
        pid: u32,
        /// Why it failed.
        source: nix::Error,
    },
    /// A server refused a command, or its connection failed.
    #[error("{server}: {what}: {source}")]
    Command {
        /// Engine and name of the server.
        server: String,
        /// The command, without its arguments.
        what: String,
        /// What the client library says.
        source: redis::RedisError,
    },
    /// Certificates could not be made.
    #[error("cannot make certificates: {0}")]
    Certificates(#[from] rcgen::Error),
    /// Something that should happen by itself did not happen in time.
    #[error("waited {waited_s} s in vain for {what}: {seen}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long, in seconds.
        waited_s: u64,
        /// What was seen last.
        seen: String,
    },
    /// The cluster is not in a state in which the request makes sense.
    #[error("cluster: {0}")]
    Cluster(String),
}

impl LabError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}
