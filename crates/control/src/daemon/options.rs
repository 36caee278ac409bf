//! How the server behaves.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use whimbrel_engine::endpoint::Secret;

/// Ports, one for each primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePorts {
    /// Whatever is free.
    Free,
    /// These, as far as no other process has them.
    Range(RangeInclusive<u16>),
}

impl NodePorts {
    /// The most ports in a range: as many as a cluster may reasonably have primaries.
    pub const MAX: usize = 1_024;

    /// How many there may be.
    pub fn count(&self) -> usize {
        match self {
            NodePorts::Free => NodePorts::MAX,
            NodePorts::Range(range) => range.len(),
        }
    }
}

impl FromStr for NodePorts {
    type Err = String;

    /// Reads `FIRST-LAST`, or `0` for free ones.
    fn from_str(text: &str) -> Result<NodePorts, String> {
        if text == "0" {
            return Ok(NodePorts::Free);
        }
        let ends = text.split_once('-').and_then(|(first, last)| {
            Some((first.parse::<u16>().ok().filter(|port| *port > 0)?, last.parse::<u16>().ok()?))
        });
        match ends.map(|(first, last)| first..=last) {
            Some(range) if range.is_empty() => {
                Err(format!("{text} has no port: the first is above the last"))
            }
            Some(range) if range.len() > NodePorts::MAX => {
                Err(format!("{text} has {} ports; {} at most", range.len(), NodePorts::MAX))
            }
            Some(range) => Ok(NodePorts::Range(range)),
            None => Err(format!("\"{text}\" is no range of ports such as 8001-8032")),
        }
    }
}

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct DaemonOptions {
    /// The address that it listens on. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Ports of the same address, one for each primary.
    pub node_ports: Option<NodePorts>,
    /// The user that logs in; `default` is always understood.
    pub user: Option<String>,
    /// The password. Required if `listen` is not a loopback address.
    pub password: Option<Secret>,
    /// Connections at once that have logged in, members of a fleet not counted; more are refused and closed.
    pub connections_max: usize,
    /// The longest command. Before login it is 16 KiB.
    pub request_bytes_max: u64,
    /// A connection that says nothing for this long is closed.
    pub idle_timeout_ms: u64,
    /// A connection that has not logged in by then is closed.
    pub login_timeout_ms: u64,
    /// A connection that takes in nothing of a reply for this long is closed.
    pub write_timeout_ms: u64,
}

impl DaemonOptions {
    /// The usual bounds, without a password.
    pub fn new(listen: SocketAddr) -> DaemonOptions {
        DaemonOptions {
            listen,
            node_ports: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_range_or_free_ones() {
        assert_eq!("0".parse::<NodePorts>(), Ok(NodePorts::Free));
        assert_eq!("8001-8001".parse::<NodePorts>(), Ok(NodePorts::Range(8001..=8001)));
        assert_eq!("1-1024".parse::<NodePorts>().map(|ports| ports.count()), Ok(1_024));
        for text in ["", "8001", "0-7", "8002-8001", "1-1025", "1-65536", "a-b", "-", "-1-5"] {
            assert!(text.parse::<NodePorts>().is_err(), "{text}");
        }
    }
}
