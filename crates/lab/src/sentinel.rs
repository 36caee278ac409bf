//! Sentinels that watch a server and fail it over.

use crate::engine::Engine;
use crate::error::LabError;
use crate::server::Server;
use crate::wait::wait_until;

/// After how long without an answer a server counts as down, in milliseconds.
const DOWN_AFTER_MS: &str = "5000";

/// How long a failover may take, in milliseconds; the next one is not tried before twice that.
const FAILOVER_MS: &str = "5000";

/// How many sentinels watch, and how many of them have to agree that a server is down.
const COUNT: usize = 3;
const QUORUM: usize = 2;

/// Three sentinels that watch a primary, and have a replica take its place when it is down.
#[derive(Debug)]
pub struct Sentinels {
    name: String,
    nodes: Vec<Server>,
}

impl Sentinels {
    /// Starts them, and waits until all of them know each other and the replicas of `primary`.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start(
        engine: Engine,
        name: &str,
        primary: &Server,
        password: Option<&str>,
    ) -> Result<Sentinels, LabError> {
        let monitor = format!("monitor {name} 127.0.0.1 {} {QUORUM}", primary.port());
        let mut nodes = Vec::new();
        for n in 0..COUNT {
            let mut builder = Server::builder(engine)
                .name(&format!("sentinel {n}"))
                .sentinel()
                .arg("sentinel", &monitor)
                .arg("sentinel", &format!("down-after-milliseconds {name} {DOWN_AFTER_MS}"))
                .arg("sentinel", &format!("failover-timeout {name} {FAILOVER_MS}"));
            if let Some(password) = password {
                builder = builder.password(password).arg("sentinel", &format!("sentinel-pass {password}"));
            }
            nodes.push(builder.start()?);
        }
        let sentinels = Sentinels { name: name.to_owned(), nodes };
        wait_until("the sentinels know each other", || {
            sentinels.nodes.iter().all(|node| {
                let of = |what: &str| entries(node.try_call(&["SENTINEL", what, &sentinels.name])).len();
                of("SENTINELS") == COUNT - 1 && of("SLAVES") > 0
            })
        });
        Ok(sentinels)
    }

    /// The sentinels.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// What follows `sentinel://` to name the primary.
    pub fn address(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(Server::addr).collect();
        format!("{}/{}", nodes.join(","), self.name)
    }

    /// The port of the primary, if all of them say the same.
    pub fn primary_port(&self) -> Option<u16> {
        let port = |node: &Server| -> Option<u16> {
            let reply = node.try_call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name]).ok()?;
            let (_, port): (String, String) = redis::from_redis_value(reply).ok()?;
            port.parse().ok()
        };
        let ports: Vec<_> = self.nodes.iter().map(port).collect();
        ports.windows(2).all(|two| two[0] == two[1]).then(|| ports[0]).flatten()
    }

    /// The ports of all replicas that any of them knows, whatever their state.
    pub fn replica_ports(&self) -> Vec<String> {
        let of = |node: &Server| entries(node.try_call(&["SENTINEL", "SLAVES", &self.name]));
        let mut ports: Vec<String> = self.nodes.iter().flat_map(of).collect();
        ports.sort();
        ports.dedup();
        ports
    }
}

/// The ports of servers that a sentinel lists, each as fields and values in turn.
fn entries(reply: Result<redis::Value, LabError>) -> Vec<String> {
    let entries: Vec<Vec<String>> =
        reply.ok().and_then(|reply| redis::from_redis_value(reply).ok()).unwrap_or_default();
    let port =
        |entry: Vec<String>| entry.chunks(2).find(|pair| pair[0] == "port").map(|pair| pair[1].clone());
    entries.into_iter().filter_map(port).collect()
}
