//! A port for each primary: a client that connects to one asks that node, as clients do that ask each node of
//! a cluster for itself.
//!
//! A primary that joins gets a port, the first free one of the range. A primary that leaves loses its port,
//! with the connections to it. At the start ports are given out in the order of ids, so a restarted daemon
//! has them where they were.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_core::node::NodeId;
use whimbrel_engine::error::{Error, Result, Side};

use super::options::NodePorts;
use super::services::Jobs;

/// How long to wait after a connection could not be accepted: out of file descriptors, for example.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How soon a port is tried again that another process had, for a primary that has none.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// A client that has connected to the port of a node.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) node: NodeId,
    /// Cancelled when the node loses its port.
    pub(super) ends: CancellationToken,
}

/// A port that is open.
#[derive(Debug)]
struct Open {
    port: u16,
    ends: CancellationToken,
    /// Accepts connections.
    task: JoinHandle<()>,
}

/// The ports of all primaries.
#[derive(Debug)]
pub(super) struct Listeners {
    ip: IpAddr,
    ports: NodePorts,
    open: BTreeMap<NodeId, Open>,
    sender: mpsc::Sender<Accepted>,
    stop: CancellationToken,
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Listeners {
    /// Opens a port for each primary, and returns the receiver of the clients that connect.
    ///
    /// # Errors
    /// `Options` if the range is too short, `Own` if ports of it are in use.
    pub(super) async fn open<J: Jobs>(
        ip: IpAddr,
        ports: NodePorts,
        jobs: &J,
    ) -> Result<(Listeners, mpsc::Receiver<Accepted>)> {
        let (sender, receiver) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let mut listeners = Listeners { ip, ports, open: BTreeMap::new(), sender, stop };
        let without = listeners.fit(jobs).await;
        if without.is_empty() {
            return Ok((listeners, receiver));
        }
        let all = jobs.topology().primaries().len();
        let tried = format!("listen on {ip} for each node");
        let given = listeners.ports.count();
        if given < all {
            let what = format!("{all} primaries need a port each, and the range has {given}");
            return Err(Error::options(Side::Own, tried, what).with_remedy("give it a longer range of ports"));
        }
        let what = format!("{} of {all} primaries are without a port: others use theirs", without.len());
        Err(Error::own(tried, what).with_remedy("give it ports of which nobody else has one"))
    }

    /// Opens and closes ports as primaries come and go, until `stop`.
    pub(super) async fn keep<J: Jobs>(mut self, jobs: Arc<J>, stop: CancellationToken) {
        let mut reported = BTreeSet::new();
        loop {
            let without = self.fit(&*jobs).await;
            for node in without.difference(&reported) {
                tracing::warn!(%node, "a primary has no port here: too few are free");
            }
            reported = without;
            let again = async {
                match reported.is_empty() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(RETRY_PERIOD).await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = jobs.topology().regrouped() => {}
                () = again => {}
            }
        }
    }

    /// Opens what is missing and closes what is left over. Returns the primaries without a port.
    async fn fit<J: Jobs>(&mut self, jobs: &J) -> BTreeSet<NodeId> {
        let primaries = jobs.topology().primaries();
        let gone: Vec<NodeId> = self.open.keys().filter(|node| !primaries.contains(node)).cloned().collect();
        for gone in gone.iter().filter_map(|node| self.open.remove(node)).collect::<Vec<_>>() {
            gone.ends.cancel();
            // Then its port is free for another one.
            let _ = gone.task.await;
        }
        let mut without = BTreeSet::new();
        for node in &primaries {
            if self.open.contains_key(node) {
                continue;
            }
            match self.listen().await {
                Some((listener, port)) => self.begin(node.clone(), listener, port),
                None => {
                    without.insert(node.clone());
                }
            }
        }
        let ports: BTreeMap<NodeId, u16> =
            self.open.iter().map(|(node, open)| (node.clone(), open.port)).collect();
        if jobs.topology().ports() != ports {
            jobs.topology().set_ports(ports);
        }
        without
    }

    async fn listen(&self) -> Option<(TcpListener, u16)> {
        let candidates = match &self.ports {
            NodePorts::Free => 0..=0,
            NodePorts::Range(range) => range.clone(),
        };
        let taken: BTreeSet<u16> = self.open.values().map(|open| open.port).collect();
        for port in candidates.filter(|port| !taken.contains(port)) {
            let Ok(listener) = TcpListener::bind((self.ip, port)).await else { continue };
            let Ok(address) = listener.local_addr() else { continue };
            return Some((listener, address.port()));
        }
        None
    }

    /// Accepts connections to a port until its node loses it.
    fn begin(&mut self, node: NodeId, listener: TcpListener, port: u16) {
        let ends = self.stop.child_token();
        let (sender, id, until) = (self.sender.clone(), node.clone(), ends.clone());
        let task = tokio::spawn(async move {
            while let Some(accepted) = until.run_until_cancelled(listener.accept()).await {
                let (stream, peer) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, port, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let accepted = Accepted { stream, peer, node: id.clone(), ends: until.clone() };
                if !matches!(until.run_until_cancelled(sender.send(accepted)).await, Some(Ok(()))) {
                    return;
                }
            }
        });
        self.open.insert(node, Open { port, ends, task });
    }
}
