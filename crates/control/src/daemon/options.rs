//! How the server behaves.

use std::net::SocketAddr;

use whimbrel_engine::endpoint::Secret;

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct DaemonOptions {
    /// Where it listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The user that logs in; `default` is always understood.
    pub user: Option<String>,
    /// The password. Required where `listen` is not a loopback address.
    pub password: Option<Secret>,
    /// Connections at once that have logged in, members of a fleet not counted; more are told so and closed.
    pub connections_max: usize,
    /// The longest command. Before login it is 16 KiB.
    pub request_bytes_max: u64,
    /// A connection that says nothing for so long is closed.
    pub idle_timeout_ms: u64,
    /// A connection that has not logged in by then is closed.
    pub login_timeout_ms: u64,
    /// A connection that takes in nothing of a reply for so long is closed.
    pub write_timeout_ms: u64,
}

impl DaemonOptions {
    /// The usual bounds, without a password.
    pub fn new(listen: SocketAddr) -> DaemonOptions {
        DaemonOptions {
            listen,
            user: None,
            password: None,
            connections_max: 1_024,
            request_bytes_max: 1 << 20,
            idle_timeout_ms: 600_000,
            login_timeout_ms: 5_000,
            write_timeout_ms: 10_000,
        }
    }
}
