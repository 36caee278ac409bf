//! Where keys move to: one server, or a cluster in which each key has its own.

use std::path::Path;

use anyhow::{Context, bail};
use redis::Value;
use whimbrel_core::slot::Slot;
use whimbrel_lab::{Cluster, Engine, Server};

/// Where keys move to.
pub(super) enum Destinations {
    One(Box<Server>),
    /// With the primary that owns each slot.
    Cluster(Box<Cluster>, Vec<usize>),
}

impl Destinations {
    /// Starts `count` servers; several are a cluster.
    pub(super) fn start(engine: Engine, count: u8) -> anyhow::Result<Destinations> {
        if count <= 1 {
            return Ok(Destinations::One(Box::new(Server::builder(engine).name("target").start()?)));
        }
        let cluster = Cluster::builder(engine).primaries(count.into()).start()?;
        cluster.wait_ok()?;
        let mut owners = vec![0; usize::from(Slot::COUNT)];
        let ranges: Vec<Vec<Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query(&mut cluster.connection_to(0))?;
        for range in ranges {
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else {
                bail!("an answer to CLUSTER SLOTS without numbers");
            };
            let is_it = |server: &Server| primary.get(1) == Some(&Value::Int(server.port().into()));
            let owner =
                cluster.primaries().iter().position(is_it).context("a node that nobody has started")?;
            owners[usize::try_from(*first)?..=usize::try_from(*last)?].fill(owner);
        }
        Ok(Destinations::Cluster(Box::new(cluster), owners))
    }

    /// Each of them.
    pub(super) fn servers(&self) -> Vec<&Server> {
        match self {
            Destinations::One(server) => vec![server],
            Destinations::Cluster(cluster, _) => cluster.primaries().iter().collect(),
        }
    }

    /// Which of them has a key of this name.
    pub(super) fn of(&self, name: &str) -> usize {
        match self {
            Destinations::One(_) => 0,
            Destinations::Cluster(_, owners) => owners[usize::from(Slot::of_key(name.as_bytes()).number())],
        }
    }

    /// As it is named to whimbrel.
    pub(super) fn addr(&self) -> String {
        match self {
            Destinations::One(server) => server.addr(),
            Destinations::Cluster(cluster, _) => cluster.seed(),
        }
    }

    /// A folder that is gone with them.
    pub(super) fn folder(&self) -> &Path {
        self.servers()[0].dir()
    }
}
