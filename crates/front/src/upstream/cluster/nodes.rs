//! What is known of a cluster: its nodes, which of them has which slot, and the commands that they have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::{Deployment, Topology};
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

use super::map::{FIRST, Map, NODES_MAX};
use crate::command::keys::CommandTable;
use crate::pipe::memory::MemoryBudget;
use crate::upstream::admission::{Admission, NoFleet};

/// Requests whose keys are not all at their beginning are held whole: all connections together so much of
/// them.
const LONG_BYTES_MAX: u64 = 256 << 20;

/// How often the topology is asked for without a reason.
const REFRESHED_EVERY: Duration = Duration::from_secs(1);

/// Connections to nodes, by the address and the id that the node gave: those of one connection to the
/// cluster.
pub(crate) type Ids = Arc<Mutex<Vec<(Address, i64)>>>;

/// A cluster, and what is known of it.
#[derive(Debug)]
pub(crate) struct Cluster<A> {
    pub(crate) deployment: Arc<Deployment>,
    /// Further backends of a fleet, by their numbers.
    further: RwLock<Vec<(u32, Arc<Deployment>)>>,
    table: CommandTable,
    map: RwLock<Arc<Map>>,
    /// One asks at a time. When was that last?
    refreshing: tokio::sync::Mutex<Option<Instant>>,
    /// For questions about the words of a command.
    asking: tokio::sync::Mutex<Option<Link>>,
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) role: Role<A>,
}

/// What becomes of an answer about the owners of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adopt {
    /// It counts as another one in any case: others wait for an answer that is newer than theirs.
    Always,
    /// It counts if it says something else.
    Changes,
}

/// What it has to do with a fleet.
#[derive(Debug)]
pub(crate) enum Role<A> {
    /// Nothing: it is asked for its topology.
    None,
    /// It is what the members have in common, and this front serves some of its slots. It may be a single
    /// server.
    Backend(Arc<A>),
    /// Its primaries are the members, and the gate reports them.
    Members(Arc<A>),
}

impl Cluster<NoFleet> {
    /// Asks one node for the commands that it has.
    ///
    /// # Errors
    /// As [`CommandTable::ask`]; `Unfit` if it has too many primaries.
    pub(crate) async fn of(deployment: Deployment) -> Result<Arc<Cluster<NoFleet>>> {
        let topology = deployment.topology();
        if topology.shards.len() > NODES_MAX {
            let what = format!("it has {} primaries", topology.shards.len());
            let at = deployment.endpoint.address.to_string();
            return Err(Error::unfit(deployment.side(), at, "serve in front of it", what)
                .with_remedy(format!("a front serves clusters of {NODES_MAX} primaries at most")));
        }
        Cluster::with(deployment, Role::None).await
    }
}

impl<A: Admission> Cluster<A> {
    /// A server or cluster whose slots this front serves as a member of a fleet.
    ///
    /// # Errors
    /// As [`Cluster::of`].
    pub(crate) async fn gated(deployment: Deployment, gate: Arc<A>) -> Result<Arc<Cluster<A>>> {
        Cluster::with(deployment, Role::Backend(gate)).await
    }

    /// The members of a fleet, which all have the same `backend`.
    ///
    /// # Errors
    /// As [`CommandTable::ask`], of the backend.
    pub(crate) async fn of_members(
        backend: &Deployment,
        endpoint: Arc<Endpoint>,
        gate: Arc<A>,
    ) -> Result<Arc<Cluster<A>>> {
        let table = ask_table(backend).await?;
        let members = Deployment::of_members(endpoint, backend.options, backend, gate.topology());
        Ok(Arc::new(Cluster::known(members, table, Role::Members(gate))))
    }

    async fn with(deployment: Deployment, role: Role<A>) -> Result<Arc<Cluster<A>>> {
        let table = ask_table(&deployment).await?;
        Ok(Arc::new(Cluster::known(deployment, table, role)))
    }

    fn known(deployment: Deployment, table: CommandTable, role: Role<A>) -> Cluster<A> {
        Cluster {
            table,
            map: RwLock::new(Arc::new(Map::of(&deployment.topology()))),
            refreshing: tokio::sync::Mutex::new(None),
            asking: tokio::sync::Mutex::new(None),
            budget: MemoryBudget::new(LONG_BYTES_MAX),
            deployment: Arc::new(deployment),
            further: RwLock::default(),
            role,
        }
    }

    /// All backends, by their numbers.
    pub(crate) fn backends(&self) -> Vec<(u32, Arc<Deployment>)> {
        let further = self.further.read();
        std::iter::once((FIRST, self.deployment.clone())).chain(further.iter().cloned()).collect()
    }

    /// A further backend, which has been looked at.
    pub(crate) fn add_backend(&self, number: u32, deployment: Deployment) {
        let mut further = self.further.write();
        if number != FIRST && !further.iter().any(|(other, _)| *other == number) {
            further.push((number, Arc::new(deployment)));
        }
        drop(further);
        self.adopt_backends(Adopt::Always);
    }

    /// The backend of this number, and which of its nodes has a slot.
    pub(crate) fn place_of(&self, backend: u32, slot: Slot) -> Option<(Arc<Deployment>, Address)> {
        let (_, deployment) = self.backends().into_iter().find(|(number, _)| *number == backend)?;
        let map = self.map();
        let address = map.address(map.owner_at(backend, slot)?).clone();
        Some((deployment, address))
    }

    /// A connection of our own to a node.
    ///
    /// # Errors
    /// As [`Deployment::open`].
    pub(crate) async fn open_at(&self, address: &Address) -> Result<Link> {
        self.deployment_at(address).open(address, 0).await
    }

    /// The backend that has a node at this address; the first if none is known to.
    pub(super) fn deployment_at(&self, address: &Address) -> Arc<Deployment> {
        let further = self.further.read();
        let has_it = |deployment: &Deployment| deployment.topology().nodes().any(|node| node == address);
        let found = further.iter().find(|(_, deployment)| has_it(deployment));
        found.map_or_else(|| self.deployment.clone(), |(_, deployment)| deployment.clone())
    }

    pub(crate) fn table(&self) -> &CommandTable {
        &self.table
    }

    pub(super) fn map(&self) -> Arc<Map> {
        self.map.read().clone()
    }

    pub(super) fn limit(&self) -> Duration {
        Duration::from_millis(self.deployment.options.connect_timeout_ms)
    }

    /// Asks which node has which slot, unless another task has done so since `seen`.
    pub(super) async fn refresh(&self, seen: u64) {
        let mut last = self.refreshing.lock().await;
        if self.map().generation == seen {
            self.ask_nodes(Adopt::Always).await;
            *last = Some(Instant::now());
        }
    }

    /// The same, not more often than is worth it: for callers that have no reason to expect a change.
    pub(super) async fn refresh_at_times(&self, seen: u64) {
        let mut last = self.refreshing.lock().await;
        if self.map().generation == seen && last.is_none_or(|last| last.elapsed() >= REFRESHED_EVERY) {
            self.ask_nodes(Adopt::Changes).await;
            *last = Some(Instant::now());
        }
    }

    async fn ask_nodes(&self, what: Adopt) {
        if let Role::Members(gate) = &self.role {
            return self.adopt(&gate.topology());
        }
        let mut asked = JoinSet::new();
        for (_, deployment) in self.backends() {
            let limit = self.limit();
            asked.spawn(async move {
                match timeout(limit, deployment.refresh()).await {
                    Ok(Ok(_)) => return true,
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "the topology of the cluster cannot be asked for");
                    }
                    Err(_) => tracing::warn!("no node reports the topology of the cluster in time"),
                }
                false
            });
        }
        while let Some(refreshed) = asked.join_next().await {
            if matches!(refreshed, Ok(true)) {
                self.adopt_backends(what);
            }
        }
    }

    /// Takes in which node has which slot now, if there is one backend, or these are the members.
    pub(crate) fn adopt(&self, topology: &Topology) {
        let mut map = self.map.write();
        *map = Arc::new(map.next(&[(FIRST, topology)]));
    }

    /// Takes in what all backends have last reported.
    fn adopt_backends(&self, what: Adopt) {
        let topologies: Vec<(u32, Arc<Topology>)> =
            self.backends().iter().map(|(number, deployment)| (*number, deployment.topology())).collect();
        let topologies: Vec<(u32, &Topology)> =
            topologies.iter().map(|(number, topology)| (*number, &**topology)).collect();
        let mut map = self.map.write();
        let next = map.next(&topologies);
        // Connections keep the map that they have: if nothing changes they share it.
        if what == Adopt::Always || !next.is_as(&map) {
            *map = Arc::new(next);
        }
    }

    /// The keys among the words of a command, by a node's own understanding.
    ///
    /// # Errors
    /// What the client is sent, as an error reply has it after its sign.
    pub(super) async fn keys_of(
        self: Arc<Cluster<A>>,
        words: Vec<Bytes>,
    ) -> std::result::Result<Vec<Bytes>, String> {
        let open = async {
            let map = self.map();
            let first = map.primaries().first().map(|number| map.address(*number).clone());
            let first = first.unwrap_or_else(|| self.deployment.endpoint.address.clone());
            self.deployment.open(&first, 0).await
        };
        ask_keys(&self.asking, open, &words, self.limit()).await
    }
}

/// The commands that a node has.
async fn ask_table(deployment: &Deployment) -> Result<CommandTable> {
    let topology = deployment.topology();
    let first = topology.shards.first().map_or(&deployment.endpoint.address, |shard| &shard.primary);
    CommandTable::ask(&mut deployment.open(first, 0).await?).await
}

/// Asks a server, whose connection is kept for the next question, which of the words are keys.
///
/// # Errors
/// What the client is sent, as an error reply has it after its sign.
pub(crate) async fn ask_keys(
    kept: &tokio::sync::Mutex<Option<Link>>,
    open: impl Future<Output = Result<Link>>,
    words: &[Bytes],
    limit: Duration,
) -> std::result::Result<Vec<Bytes>, String> {
    let asking = async {
        let mut kept = kept.lock().await;
        // A kept connection may have been closed because it was idle.
        if let Some(link) = kept.take()
            && let Ok((link, reply)) = ask(link, words).await
        {
            *kept = Some(link);
            return Ok(reply);
        }
        let (link, reply) = ask(open.await?, words).await?;
        *kept = Some(link);
        Ok::<_, Error>(reply)
    };
    match timeout(limit, asking).await {
        Ok(Ok(Value::Array(keys))) => Ok(keys.into_iter().filter_map(Value::into_bytes).collect()),
        Ok(Ok(Value::Error(text))) => Err(String::from_utf8_lossy(&text).into_owned()),
        Ok(Ok(_)) => Err("ERR whimbrel front: the server does not report the keys".to_owned()),
        Ok(Err(error)) => Err(format!("ERR whimbrel front: {error}")),
        Err(_) => Err("ERR whimbrel front: the server does not report the keys in time".to_owned()),
    }
}

/// The link comes back if it is in step.
async fn ask(mut link: Link, words: &[Bytes]) -> Result<(Link, Value)> {
    let out = link.outbox();
    out.command(words.len() + 2);
    out.arg(b"COMMAND");
    out.arg(b"GETKEYS");
    for word in words {
        out.arg_bytes(word);
    }
    link.flush().await?;
    let reply = link.reply().await?;
    Ok((link, reply))
}
