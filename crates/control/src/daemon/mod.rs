//! A server that takes jobs: it speaks RESP, and Valkey's own commands for slot migrations. Clients of the
//! cluster may ask it for the cluster's topology as they would ask a node.
//!
//! - [`Daemon`]: listens, lets in, and serves;
//! - [`Jobs`]: what it needs from the part that does the work;
//! - [`migrations`]: the three commands, their grammar, their replies, their errors;
//! - [`topology`](crate::topology): what clients get to know of the cluster;
//! - [`node_ports`]: a port for each primary, at which clients ask it that ask each node for itself;
//! - [`at_node`]: what they are answered there;
//! - [`queue`]: the part that does the work;
//! - [`client`]: the server as seen by clients that hand moves to it;
//! - [`shown`]: how it stands, over HTTP; [`log`]: what becomes of its jobs, as it happens.
//!
//! The members of a [fleet](crate::fleet) also reach their coordinator here, and people ask for its state:
//! `FLEET`.
//!
//! ```text
//! valkey-cli -p PORT CLUSTER MIGRATESLOTS SLOTSRANGE 0 1023 NODE 07c37dfeb235213a872192d90877d0cd55635b91
//! valkey-cli -p PORT CLUSTER GETSLOTMIGRATIONS
//! valkey-cli -p PORT CLUSTER CANCELSLOTMIGRATIONS [NAME]
//! ```
//!
//! Any client that may connect may move slots. So off loopback a password is required; it travels in clear
//! text, as it does to a server without TLS.

mod at_node;
pub mod client;
mod command;
mod connection;
mod fleet;
pub mod log;
pub mod migrations;
mod node_ports;
mod options;
pub mod queue;
mod reply;
mod seed;
mod services;
pub mod shown;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_engine::error::{Error, Result};
use whimbrel_fleet::login::Verifier;

use self::at_node::AtNode;
use self::connection::{Client, Connection, Entrance};
use self::node_ports::{ACCEPT_PAUSE, Accepted, Listeners};
pub use self::options::{DaemonOptions, NodePorts};
pub use self::services::{Jobs, Services};
use crate::lobby::{Guesses, Lobby};

/// How long connections may take to finish what they are at when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// Connections that have not logged in, or not said anything yet: all together, and those of one address.
pub const STRANGERS_MAX: usize = 128;
const STRANGERS_EACH: usize = 32;

/// The server.
#[derive(Debug)]
pub struct Daemon<J> {
    listener: TcpListener,
    options: Arc<DaemonOptions>,
    services: Services<J>,
    entrance: Arc<Entrance>,
    /// The ports of nodes, and the clients that connect to them.
    nodes: Option<(Listeners, mpsc::Receiver<Accepted>)>,
}

impl<J: Jobs> Daemon<J> {
    /// As [`Daemon::offer`], for jobs alone.
    ///
    /// # Errors
    /// As [`Daemon::offer`].
    pub async fn bind(options: DaemonOptions, jobs: Arc<J>) -> Result<Daemon<J>> {
        Daemon::offer(options, Services { jobs: Some(jobs), fleet: None }).await
    }

    /// Begins to listen. Connections are served once [`Daemon::serve`] runs.
    ///
    /// # Errors
    /// `Own` if it could keep nobody out, or if the address cannot be listened on.
    pub async fn offer(options: DaemonOptions, services: Services<J>) -> Result<Daemon<J>> {
        let listen = options.listen;
        let has_password = options.password.as_ref().is_some_and(|p| !p.expose().is_empty());
        if !is_loopback(listen.ip()) && !has_password {
            return Err(Error::own(
                format!("listen on {listen}"),
                "anyone who reaches this address could move slots or partitions: a password is required",
            )
            .with_remedy("give it one, in a file or an environment variable, or listen on 127.0.0.1"));
        }
        let listener = TcpListener::bind(listen).await.map_err(|e| {
            Error::own(format!("listen on {listen}"), e)
                .with_remedy("see that the address is this machine's and that the port is free")
        })?;
        let entrance = Entrance {
            lobby: Lobby::new(STRANGERS_MAX, STRANGERS_EACH),
            places: Arc::new(Semaphore::new(options.connections_max)),
            guesses: Guesses::default(),
            verifier: options.password.as_ref().map(|p| Verifier::new(p.expose())).transpose()?,
        };
        let nodes = match (&options.node_ports, &services.jobs) {
            (Some(ports), Some(jobs)) => Some(Listeners::open(listen.ip(), ports.clone(), &**jobs).await?),
            _ => None,
        };
        Ok(Daemon { listener, options: Arc::new(options), services, entrance: Arc::new(entrance), nodes })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// `Own` if the system does not report it.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(|e| Error::own("read the address of a listener", e))
    }

    /// Serves until `stop`. Then no client is let in any more, commands under way are finished, and all
    /// connections are closed, within 5 s.
    pub async fn serve(mut self, stop: CancellationToken) {
        let ids = AtomicU64::new(1);
        let mut connections = JoinSet::new();
        let mut at_nodes = None;
        if let (Some((listeners, accepted)), Some(jobs)) = (self.nodes.take(), &self.services.jobs) {
            tokio::spawn(listeners.keep(jobs.clone(), stop.clone()));
            at_nodes = Some(accepted);
        }
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted.map(|(stream, peer)| (stream, peer, None)),
                Some(accepted) = next_of(&mut at_nodes) => {
                    let Accepted { stream, peer, node, ends } = accepted;
                    Ok((stream, peer, Some((node, ends))))
                }
                Some(_) = connections.join_next() => continue,
            };
            let (stream, peer, node) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (node, stop) = match node {
                None => (None, stop.clone()),
                Some((id, ends)) => match stream.local_addr() {
                    Ok(address) => (Some(AtNode { id, ip: address.ip().to_canonical() }), ends),
                    Err(_) => continue,
                },
            };
            let id = ids.fetch_add(1, Ordering::Relaxed);
            let waiting = self.entrance.lobby.enter(peer.ip());
            connections.spawn(self.connect(Client { id, ip: peer.ip(), stream, waiting, node }, stop));
        }
        let closing = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, closing).await.is_err() {
            connections.shutdown().await;
        }
    }

    /// Serves one client until it leaves, has to make room, or `stop`.
    fn connect(&self, client: Client, stop: CancellationToken) -> impl Future<Output = ()> + use<J> {
        let (id, peer, ends) = (client.id, client.ip, client.waiting.ends());
        let mut services = self.services.clone();
        if client.node.is_some() {
            services.fleet = None;
        }
        let connection = Connection::new(client, self.options.clone(), services, self.entrance.clone(), stop);
        async move {
            tracing::debug!(id, %peer, "a connection was opened");
            match ends.run_until_cancelled(connection.run()).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(id, %peer, %error, "a connection broke"),
                None => tracing::debug!(id, %peer, "a connection without a login was closed to make room"),
            }
        }
    }
}

/// The next client that connects to the port of a node; never if there are no such ports.
async fn next_of(accepted: &mut Option<mpsc::Receiver<Accepted>>) -> Option<Accepted> {
    match accepted {
        Some(accepted) => accepted.recv().await,
        None => std::future::pending().await,
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_several_forms() {
        for (ip, expected) in [
            ("127.0.0.1", true),
            ("127.8.9.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("::ffff:10.0.0.1", false),
            ("192.168.1.1", false),
        ] {
            assert_eq!(is_loopback(ip.parse().expect("an address")), expected, "{ip}");
        }
    }
}
