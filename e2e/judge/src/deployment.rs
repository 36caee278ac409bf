//! Where a test reads and writes: one server, or all primaries of a cluster.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo};
pub use whimbrel_loadgen::slots::slot_of;

/// Number of slots of a cluster.
pub const SLOTS: u16 = 16384;

/// The introduction of a client counts into it, so a busy server needs a while.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Long enough for a server that is busy with a collection of a million elements.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A standalone server or a cluster, with its topology at the time it was probed.
#[derive(Clone, Debug)]
pub struct Deployment {
    primaries: Vec<Primary>,
    cluster: bool,
}

/// One primary of a [`Deployment`].
#[derive(Clone, Debug)]
pub struct Primary {
    client: Client,
    name: String,
    slots: Vec<RangeInclusive<u16>>,
}

impl Deployment {
    /// Probes the deployment that a server belongs to, given as `HOST:PORT` or as a `redis://` URL.
    ///
    /// Fails when the server does not answer or its topology cannot be read.
    pub fn at(addr: impl Display) -> Result<Self> {
        let addr = addr.to_string();
        let url = if addr.contains("://") { addr } else { format!("redis://{addr}/") };
        Self::of(Client::open(url.as_str())?)
    }

    /// Probes the deployment behind `client`, whose credentials and TLS settings serve for all nodes.
    ///
    /// Fails when the server does not answer or its topology cannot be read.
    pub fn of(client: Client) -> Result<Self> {
        let mut connection = open(&client)?;
        // Not what INFO says: a front of a fleet passes on that of the server behind it.
        let (primaries, cluster) = match redis::cmd("CLUSTER").arg("NODES").query::<String>(&mut connection) {
            Ok(nodes) => (primaries_of(&nodes, &client)?, true),
            Err(error) if error.to_string().contains("cluster support disabled") => {
                let name = client.get_connection_info().addr().to_string();
                (vec![Primary { client, name, slots: vec![0..=SLOTS - 1] }], false)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { primaries, cluster })
    }

    /// The deployment as it is now, asked from the first of its primaries that answers.
    ///
    /// Fails when none of them does.
    pub fn refreshed(&self) -> Result<Self> {
        let mut last = None;
        for primary in &self.primaries {
            match Self::of(primary.client.clone()) {
                Ok(fresh) => return Ok(fresh),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a deployment has at least one primary")).context("no known primary answers")
    }

    /// Whether the servers run in cluster mode.
    pub fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// All primaries, those without slots included.
    pub fn primaries(&self) -> &[Primary] {
        &self.primaries
    }

    /// Index of the primary that owns `key`; none when nobody owns its slot.
    pub fn owner_of(&self, key: &[u8]) -> Option<usize> {
        let slot = slot_of(key);
        self.primaries.iter().position(|primary| primary.owns(slot))
    }

    /// The databases that hold keys on any primary, ascending.
    ///
    /// Fails when a primary does not answer.
    pub fn databases(&self) -> Result<Vec<i64>> {
        let mut found = std::collections::BTreeSet::new();
        for primary in &self.primaries {
            let info: String = redis::cmd("INFO").arg("keyspace").query(&mut primary.connect(0)?)?;
            for line in info.lines() {
                if let Some((db, _)) = line.strip_prefix("db").and_then(|rest| rest.split_once(':')) {
                    found.insert(db.parse().context("database number in INFO keyspace")?);
                }
            }
        }
        Ok(found.into_iter().collect())
    }
}

impl Primary {
    /// Opens a new connection with database `db` selected.
    ///
    /// Fails when the server does not answer or has no such database.
    pub fn connect(&self, db: i64) -> Result<Connection> {
        let mut connection = open(&self.client)?;
        if db != 0 {
            redis::cmd("SELECT").arg(db).exec(&mut connection)?;
        }
        Ok(connection)
    }

    /// `HOST:PORT`, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether `slot` belongs to this primary.
    pub fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// The primary that a redirection names, reached with this one's credentials. It owns no slots.
    ///
    /// Fails when `addr` is not `HOST:PORT`.
    pub fn sibling(&self, addr: &str) -> Result<Self> {
        sibling(&self.client, addr, Vec::new())
    }
}

/// Milliseconds since the epoch. All servers of a test share this clock.
pub fn now_ms() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(elapsed.as_millis()).expect("the clock is before the year 292 million")
}

fn open(client: &Client) -> Result<Connection> {
    let addr = client.get_connection_info().addr();
    let connection = client
        .get_connection_with_timeout(CONNECT_TIMEOUT)
        .with_context(|| format!("connecting to {addr}"))?;
    connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
    connection.set_write_timeout(Some(REPLY_TIMEOUT))?;
    Ok(connection)
}

/// Reads the primaries out of a CLUSTER NODES reply. CLUSTER SLOTS would not name those without slots.
fn primaries_of(nodes: &str, seed: &Client) -> Result<Vec<Primary>> {
    let mut primaries = Vec::new();
    for line in nodes.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        ensure!(words.len() >= 8, "a line of CLUSTER NODES has {} words: {line}", words.len());
        let flags: Vec<&str> = words[2].split(',').collect();
        let usable = !["fail", "handshake", "noaddr"].iter().any(|bad| flags.contains(bad));
        if !flags.contains(&"master") || !usable {
            continue;
        }
        let mut slots = Vec::new();
        // Words in brackets are slots under way; their owner is still the node that lists them plainly.
        for word in words[8..].iter().filter(|word| !word.starts_with('[')) {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            slots.push(first.parse()?..=last.parse()?);
        }
        let addr = words[1].split('@').next().unwrap_or_default();
        primaries.push(sibling(seed, addr, slots)?);
    }
    ensure!(!primaries.is_empty(), "CLUSTER NODES lists no usable primary");
    Ok(primaries)
}

/// A primary at `addr`, reached like `seed`.
fn sibling(seed: &Client, addr: &str, slots: Vec<RangeInclusive<u16>>) -> Result<Primary> {
    let (host, port) = addr.rsplit_once(':').with_context(|| format!("not HOST:PORT: {addr}"))?;
    let port: u16 = port.parse().with_context(|| format!("port in {addr}"))?;
    let info = seed.get_connection_info().clone();
    let own_host = match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    };
    // A node that does not know its own address yet lists itself without a host.
    let host = if host.is_empty() { own_host } else { host.to_owned() };
    let name = format!("{host}:{port}");
    let there = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        ConnectionAddr::Tcp(..) | ConnectionAddr::Unix(_) => ConnectionAddr::Tcp(host, port),
        other => bail!("cannot reach cluster nodes over {other}"),
    };
    let client = Client::open(info.set_addr(there).into_connection_info()?)?;
    Ok(Primary { client, name, slots })
}

/// A client of the cluster that a node (`HOST:PORT`) belongs to, as the `redis` crate has one. By itself it
/// gives each connection a second, which a busy machine may need for less.
///
/// Panics where `address` is none.
pub fn cluster_client(address: impl Display) -> ClusterClient {
    let builder = ClusterClientBuilder::new([format!("redis://{address}/")]);
    builder.connection_timeout(CONNECT_TIMEOUT).build().expect("an address")
}

/// What a server answers to a command in words, of which none has a space.
///
/// # Panics
/// Where it refuses the command.
#[track_caller]
pub fn ask(connection: &mut redis::Connection, words: &str) -> redis::Value {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(connection).unwrap_or_else(|e| panic!("{command:?}: {e}"))
}
