//! A source or a target: a server, or a cluster that looks like one.

pub(crate) mod admission;
pub(crate) mod cluster;
pub(crate) mod identity;
pub(crate) mod shared;

use std::collections::BTreeSet;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::MutexGuard;
use tokio::time::timeout;
use whimbrel_core::slot::Slot;
use whimbrel_engine::deployment::{Claims, Deployment};
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::{Io, Link, LinkOptions};
use whimbrel_engine::probe::{Capabilities, ServerFacts};

use crate::upstream::cluster::{AsIo, Cluster, ClusterConnection, Connector, Ids};
use crate::upstream::identity::{Identity, in_vain};

/// Where keys are.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    endpoint: Arc<Endpoint>,
    link: LinkOptions,
    cluster: Option<Arc<dyn Connector>>,
}

/// What is there, as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) upstream: Upstream,
    pub(crate) facts: ServerFacts,
    pub(crate) can: Capabilities,
}

/// A connection for a client. When it is dropped nothing is sent for it any more.
pub(crate) enum Connection {
    Server(Io),
    Cluster(Box<dyn ClusterConnection>),
}

/// By which connections to servers are ended for certain that are not answered any more.
#[derive(Debug)]
pub(crate) struct KillHandle {
    upstream: Upstream,
    ids: Ids,
}

impl Connection {
    /// As a stream of bytes.
    pub(crate) fn into_io(self) -> Io {
        match self {
            Connection::Server(io) => io,
            Connection::Cluster(cluster) => Io::within(AsIo::new(cluster)),
        }
    }
}

impl Upstream {
    /// Looks at what is there. Writes nothing.
    ///
    /// # Errors
    /// As [`Deployment::probe`].
    pub(crate) async fn find(endpoint: &Endpoint, link: LinkOptions) -> Result<Found> {
        let deployment = Deployment::probe(endpoint.clone(), link).await?;
        deployment.check_direct("clients would get what it passes on, and no more")?;
        let (facts, can) = (deployment.facts.clone(), deployment.capabilities);
        let endpoint = deployment.endpoint.clone();
        let cluster = if deployment.is_cluster() {
            Some(Cluster::of(deployment).await? as Arc<dyn Connector>)
        } else {
            None
        };
        Ok(Found { upstream: Upstream { endpoint, link, cluster }, facts, can })
    }

    /// What looks like a cluster.
    pub(crate) fn of(endpoint: Arc<Endpoint>, link: LinkOptions, cluster: Arc<dyn Connector>) -> Upstream {
        Upstream { endpoint, link, cluster: Some(cluster) }
    }

    /// A server about which nothing has to be known.
    pub(crate) fn server(endpoint: &Arc<Endpoint>, link: LinkOptions) -> Upstream {
        Upstream { endpoint: endpoint.clone(), link, cluster: None }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether both are one cluster, or parts of one.
    pub(crate) fn shares_nodes(&self, other: &Upstream) -> bool {
        let ids = |upstream: &Upstream| -> Vec<String> {
            let Some(cluster) = &upstream.cluster else { return Vec::new() };
            cluster.deployment().topology().shards.iter().map(|shard| shard.id.clone()).collect()
        };
        let own = ids(self);
        ids(other).iter().any(|id| own.contains(id))
    }

    /// Whether one command may have these keys there.
    pub(crate) fn takes_together(&self, keys: &[Bytes]) -> bool {
        self.cluster.is_none() || keys.windows(2).all(|two| Slot::of_key(&two[0]) == Slot::of_key(&two[1]))
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(self.link.connect_timeout_ms)
    }

    fn in_vain(&self) -> Error {
        in_vain(&self.endpoint, &self.endpoint.address)
    }

    /// A connection for a client that has introduced itself before.
    ///
    /// # Errors
    /// As [`Identity::introduce`].
    pub(crate) async fn introduce(&self, identity: &Identity) -> Result<Connection> {
        let (endpoint, at) = (&self.endpoint, &self.endpoint.address);
        Ok(match &self.cluster {
            Some(cluster) => {
                let opening = ready(Ok(AsIo::new(cluster.clone().open_for_client())));
                let io = identity.introduce(opening, endpoint, at, self.limit()).await?;
                Connection::Cluster(io.into_inner())
            }
            None => {
                let opening = Io::anonymous(endpoint, at, self.link);
                Connection::Server(identity.introduce(opening, endpoint, at, self.limit()).await?)
            }
        })
    }

    /// A connection of our own.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub(crate) async fn link(&self) -> Result<Link> {
        match &self.cluster {
            Some(cluster) => self.greet(cluster.clone().open(None)).await,
            None => Link::open(&self.endpoint, &self.endpoint.address, self.link).await,
        }
    }

    async fn greet(&self, cluster: Box<dyn ClusterConnection>) -> Result<Link> {
        let io = Io::within(AsIo::new(cluster));
        let greeted = Link::greeted(io, &self.endpoint, &self.endpoint.address, self.link);
        timeout(self.limit(), greeted).await.unwrap_or_else(|_| Err(self.in_vain()))
    }

    /// As [`Upstream::link`], with what ends it for certain.
    ///
    /// # Errors
    /// As [`Upstream::link`], and what `CLIENT ID` is answered with.
    pub(crate) async fn killable(&self) -> Result<(Link, KillHandle)> {
        let ids = Ids::default();
        let link = match &self.cluster {
            Some(cluster) => self.greet(cluster.clone().open(Some(ids.clone()))).await?,
            None => {
                let mut link = self.link().await?;
                let reply = link.call(&[b"CLIENT", b"ID"]).await?;
                let id = reply.as_int().ok_or_else(|| link.unexpected("CLIENT ID", &reply))?;
                ids.lock().push((self.endpoint.address.clone(), id));
                link
            }
        };
        Ok((link, KillHandle { upstream: self.clone(), ids }))
    }

    /// A connection of our own to each server that has keys: a cluster's primaries.
    ///
    /// # Errors
    /// As [`Link::open`], for any of them.
    pub(crate) async fn each(&self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        for address in self.primaries() {
            links.push(Link::open(&self.endpoint, &address, self.link).await?);
        }
        Ok(links)
    }

    /// A connection of our own to each primary of a cluster, and the slots that it has as far as is known;
    /// none for a server.
    ///
    /// # Errors
    /// As [`Link::open`], for any of them.
    pub(crate) async fn each_with_slots(&self) -> Result<Vec<(Link, BTreeSet<Slot>)>> {
        let Some(cluster) = &self.cluster else { return Ok(Vec::new()) };
        let mut nodes = Vec::new();
        for shard in &cluster.deployment().topology().shards {
            let link = Link::open(&self.endpoint, &shard.primary, self.link).await?;
            nodes.push((link, shard.slots.iter().collect()));
        }
        Ok(nodes)
    }

    /// How many connections to servers one connection to this may need.
    pub(crate) fn connections_each(&self) -> u64 {
        match &self.cluster {
            Some(_) => self.primaries().len() as u64 + 1,
            None => 1,
        }
    }

    fn primaries(&self) -> Vec<Address> {
        match &self.cluster {
            Some(cluster) => {
                let topology = cluster.deployment().topology();
                topology.shards.iter().map(|shard| shard.primary.clone()).collect()
            }
            None => vec![self.endpoint.address.clone()],
        }
    }

    /// What the servers say about their slots; `None` for a server without slots.
    ///
    /// # Errors
    /// As [`Deployment::claims`].
    pub(crate) async fn claims(&self) -> Result<Option<Claims>> {
        match &self.cluster {
            Some(cluster) => cluster.deployment().claims().await.map(Some),
            None => Ok(None),
        }
    }
}

/// Whether no key went from one node to another between the two.
pub(crate) fn were_at_rest(before: &Option<Claims>, after: &Option<Claims>) -> bool {
    before == after && before.as_ref().is_none_or(Claims::are_at_rest)
}

impl KillHandle {
    /// Ends the connections of a link that has been dropped. When it returns nothing that was sent on them
    /// will be carried out later.
    ///
    /// # Errors
    /// If a server does not answer. It has to be called again then.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        loop {
            let last = self.ids().last().cloned();
            let Some((address, id)) = last else { return Ok(()) };
            match kill(&self.upstream, &address, id).await {
                Ok(()) => {}
                // A node that is no primary any more carries nothing out for a client.
                Err(_) if self.is_demoted(&address).await? => {}
                Err(error) => return Err(error),
            }
            self.ids().pop();
        }
    }

    fn ids(&self) -> MutexGuard<'_, Vec<(Address, i64)>> {
        self.ids.lock()
    }

    async fn is_demoted(&self, address: &Address) -> Result<bool> {
        let Some(cluster) = &self.upstream.cluster else { return Ok(false) };
        let topology = cluster.deployment().refresh().await?;
        Ok(topology.unowned() == 0 && topology.shards.iter().all(|shard| shard.primary != *address))
    }
}

async fn kill(upstream: &Upstream, address: &Address, id: i64) -> Result<()> {
    let mut link = Link::open(&upstream.endpoint, address, upstream.link).await?;
    link.call(&[b"CLIENT", b"KILL", b"ID", id.to_string().as_bytes()]).await?;
    Ok(())
}
