//! A cluster of real servers on loopback, with its replicas.

use std::collections::BTreeSet;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, cmd};

use crate::engine::Engine;
use crate::error::LabError;
use crate::ports;
use crate::server::{NotReady, Server, ServerBuilder};
use crate::tls::Tls;
use crate::wait::rest_after;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// What the servers themselves need is about 2 s; a busy machine may need much more.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(180);

/// After how long without an answer a node counts as failing unless a test says otherwise, in milliseconds:
/// what servers have by default. On a busy machine less takes nodes that only wait for a processor for dead.
const NODE_TIMEOUT_MS: u32 = 15_000;

/// Nodes that do not know each other after this time are introduced once more.
const INTRODUCED_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How much of each node's log a test shows that fails.
const LOG_LINES: usize = 120;

/// Keys that a slot move sends in one command.
const MOVE_BATCH_KEYS: usize = 500;

/// How long one such command may take on the receiving side.
const MOVE_TIMEOUT_MS: u32 = 30_000;

/// A cluster of real servers on loopback, formed by this crate and not by the engines' own tools.
///
/// Nodes have a fixed index: first the primaries as created, then the replicas of primary 0, of primary 1,
/// and so on. A failover changes roles, not indexes.
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    primaries: usize,
    replicas_each: usize,
}

/// A test that fails shows how it left the cluster.
impl Drop for Cluster {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let view = node.try_call(&["CLUSTER", "NODES"]).map(redis::from_redis_value::<String>);
            eprintln!("as {} sees it: {}", node.addr(), view.map_or("?".into(), Result::unwrap_or_default));
        }
        for node in &self.nodes {
            // Servers write a line for each slot that moves.
            let log = node.log();
            let lines: Vec<&str> = log.lines().filter(|line| !line.contains(" slot ")).collect();
            let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            eprintln!("log of {}:\n{end}", node.addr());
        }
    }
}

/// How to start a [`Cluster`].
#[derive(Clone)]
pub struct ClusterBuilder {
    template: ServerBuilder,
    primaries: usize,
    replicas_each: usize,
    node_timeout_ms: u32,
}

impl ClusterBuilder {
    /// How many primaries share the slots evenly; 3 by default.
    #[must_use]
    pub fn primaries(mut self, count: usize) -> Self {
        self.primaries = count;
        self
    }

    /// As [`ServerBuilder::modules`] for each node.
    #[must_use]
    pub fn modules(mut self) -> Self {
        self.template = self.template.modules();
        self
    }

    /// How many replicas each primary has; none by default.
    #[must_use]
    pub fn replicas(mut self, each: usize) -> Self {
        self.replicas_each = each;
        self
    }

    /// After how long without an answer a node counts as failing, in milliseconds; [`NODE_TIMEOUT_MS`] by
    /// default.
    #[must_use]
    pub fn node_timeout_ms(mut self, node_timeout_ms: u32) -> Self {
        self.node_timeout_ms = node_timeout_ms;
        self
    }

    /// A directive for every node; see [`ServerBuilder::arg`].
    #[must_use]
    pub fn arg(mut self, directive: &str, value: &str) -> Self {
        self.template = self.template.arg(directive, value);
        self
    }

    /// See [`ServerBuilder::overwrites_freed`].
    #[must_use]
    pub fn overwrites_freed(mut self) -> Self {
        self.template = self.template.overwrites_freed();
        self
    }

    /// The default user's password on every node.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.template = self.template.password(password);
        self
    }

    /// An ACL user on every node; see [`ServerBuilder::user_acl`].
    #[must_use]
    pub fn user_acl(mut self, rule: &str) -> Self {
        self.template = self.template.user_acl(rule);
        self
    }

    /// TLS on a second port of every node, and between the nodes.
    #[must_use]
    pub fn tls(mut self, tls: &Tls) -> Self {
        self.template = self.template.tls(tls);
        self
    }

    /// Starts the nodes, forms the cluster, and waits until every node agrees and every replica follows.
    ///
    /// # Errors
    /// When the numbers make no cluster, a node does not start, or the nodes do not agree in time.
    pub fn start(&self) -> Result<Cluster, LabError> {
        if self.primaries == 0 || self.primaries > usize::from(SLOTS) {
            return Err(LabError::Cluster(format!(
                "{} primaries cannot share {SLOTS} slots",
                self.primaries
            )));
        }
        let nodes = self.start_nodes()?;
        let ids = nodes
            .iter()
            .map(|node| node.query(&mut node.try_connection()?, "CLUSTER MYID", cmd("CLUSTER").arg("MYID")))
            .collect::<Result<_, _>>()?;
        let cluster = Cluster { nodes, ids, primaries: self.primaries, replicas_each: self.replicas_each };
        cluster.assign_slots()?;
        cluster.introduce_all()?;
        let mut introduced = Instant::now();
        cluster.wait_for("every node to know every other", |cluster| {
            let strangers = cluster.strangers()?;
            // A server says so once, and on a busy machine the handshake may be given up.
            if introduced.elapsed() > INTRODUCED_AGAIN_AFTER {
                introduced = Instant::now();
                return Some(cluster.introduce_all().map_or_else(|e| e.to_string(), |()| strangers));
            }
            Some(strangers)
        })?;
        cluster.assign_replicas()?;
        cluster.wait_for("the cluster to form", |cluster| {
            cluster.disagreement().or_else(|| cluster.missing_replica())
        })?;
        Ok(cluster)
    }

    /// All processes start at once; only then the first is waited for.
    fn start_nodes(&self) -> Result<Vec<Server>, LabError> {
        let count = self.primaries * (1 + self.replicas_each);
        let builders: Vec<ServerBuilder> = (0..count)
            .map(|index| {
                self.template
                    .clone()
                    .name(&format!("node {index}"))
                    .arg("cluster-node-timeout", &self.node_timeout_ms.to_string())
                    .cluster()
            })
            .collect();
        let launched = builders.iter().map(ServerBuilder::launch).collect::<Result<Vec<_>, _>>()?;
        launched
            .into_iter()
            .zip(&builders)
            .map(|(server, builder)| match server.wait_ready() {
                Ok(()) => Ok(server),
                Err(NotReady::PortTaken) => builder.start(),
                Err(NotReady::Failed(error)) => Err(error),
            })
            .collect()
    }
}

/// How often, and how long apart, a new owner is asked whether it still owns a slot.
const SETTLE_ROUNDS: u32 = 4;
const SETTLE_PAUSE: Duration = Duration::from_millis(25);

impl Cluster {
    /// Describes a cluster to start.
    pub fn builder(engine: Engine) -> ClusterBuilder {
        // Otherwise a replica may leave its primary for another that has lost its own, and tests would be
        // surprised.
        let template = match engine {
            // It knows no other way than to ask for more replicas than there ever are.
            Engine::Redis60 => Server::builder(engine).arg("cluster-migration-barrier", "1000"),
            _ => Server::builder(engine).arg("cluster-allow-replica-migration", "no"),
        };
        ClusterBuilder { template, primaries: 3, replicas_each: 0, node_timeout_ms: NODE_TIMEOUT_MS }
    }

    /// Every node by its index, whatever its role and whether it runs.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The nodes that were created as primaries.
    pub fn primaries(&self) -> &[Server] {
        &self.nodes[..self.primaries]
    }

    /// The nodes that were created as replicas of primary `i`.
    pub fn replicas_of(&self, i: usize) -> &[Server] {
        &self.nodes[self.replica_indexes(i)]
    }

    /// The nodes that are primaries now, by index, as they say themselves. Nodes that do not run are not
    /// asked.
    ///
    /// # Errors
    /// When a running node does not answer.
    pub fn current_primaries(&self) -> Result<Vec<usize>, LabError> {
        let mut primaries = Vec::new();
        for index in self.running() {
            if self.own_entry(index)?.is_primary() {
                primaries.push(index);
            }
        }
        Ok(primaries)
    }

    /// The address of a running node, as `127.0.0.1:PORT`: the way into the cluster.
    pub fn seed(&self) -> String {
        let index = self.running().next().unwrap_or(0);
        self.nodes[index].addr()
    }

    /// The cluster's name for node `i`.
    pub fn node_id(&self, i: usize) -> &str {
        &self.ids[i]
    }

    /// A new connection to node `i`.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub fn connection_to(&self, i: usize) -> Connection {
        self.nodes[i].connection()
    }

    /// The index of the node that owns a slot, by its own word. If two claim it, the later claim counts.
    ///
    /// # Errors
    /// When no running node claims it, or a running node does not answer.
    pub fn owner_of(&self, slot: u16) -> Result<usize, LabError> {
        let mut owner = None;
        for index in self.running() {
            let entry = self.own_entry(index)?;
            if entry.is_primary() && entry.owns(slot) {
                owner = owner.max(Some((entry.epoch, index)));
            }
        }
        owner
            .map(|(_, index)| index)
            .ok_or_else(|| LabError::Cluster(format!("no running node owns slot {slot}")))
    }

    /// Moves a slot with all its keys between two primaries, in the way that works on every version: mark,
    /// migrate key by key, notify every primary.
    ///
    /// # Errors
    /// When a node refuses; the slot may then be left half moved.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) -> Result<(), LabError> {
        let setslot = |at: usize, state: &str, id: &str| {
            let mut command = cmd("CLUSTER");
            command.arg("SETSLOT").arg(slot).arg(state).arg(id);
            self.command(at, "CLUSTER SETSLOT", &command)
        };
        setslot(to, "IMPORTING", &self.ids[from])?;
        setslot(from, "MIGRATING", &self.ids[to])?;
        self.migrate_keys(slot, from, to)?;
        // The new owner first: if the old one lost it first, no node would have it for a moment.
        setslot(to, "NODE", &self.ids[to])?;
        setslot(from, "NODE", &self.ids[to])?;
        for other in self.current_primaries()? {
            if other != from && other != to {
                setslot(other, "NODE", &self.ids[to])?;
            }
        }
        // A claim of the old owner that was under way can undo this: Redis 7.0 was seen with two nodes that
        // each permanently said that the slot was the other's. So it is checked for a while, and said again.
        for _ in 0..SETTLE_ROUNDS {
            std::thread::sleep(SETTLE_PAUSE);
            if !self.own_entry(to)?.owns(slot) {
                setslot(to, "NODE", &self.ids[to])?;
            }
        }
        if self.own_entry(to)?.owns(slot) {
            Ok(())
        } else {
            Err(LabError::Cluster(format!("node {to} does not keep slot {slot}")))
        }
    }

    /// Removes every key from every primary.
    ///
    /// # Errors
    /// When a primary refuses.
    pub fn flush(&self) -> Result<(), LabError> {
        self.current_primaries()?
            .into_iter()
            .try_for_each(|index| self.command(index, "FLUSHALL", &cmd("FLUSHALL")))
    }

    /// How many keys the primaries hold.
    ///
    /// # Errors
    /// When a primary does not answer.
    pub fn total_keys(&self) -> Result<u64, LabError> {
        self.current_primaries()?
            .into_iter()
            .map(|index| self.ask::<u64>(index, "DBSIZE", &cmd("DBSIZE")))
            .sum()
    }

    /// Waits until all nodes that run say the cluster is well, agree on the owners, and have their links.
    ///
    /// # Errors
    /// When that takes too long; the error says what was wrong.
    pub fn wait_ok(&self) -> Result<(), LabError> {
        self.wait_for("the cluster to be well", Self::disagreement)
    }

    /// SIGKILL to node `i`.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn kill9(&self, i: usize) -> Result<(), LabError> {
        self.nodes[i].kill9()
    }

    /// Waits until a replica has taken over from primary `i`, which was killed or suspended, and the other
    /// nodes agree. Returns the index of the new primary.
    ///
    /// # Errors
    /// When that takes too long, or `i` was not created as a primary with replicas.
    pub fn wait_failover(&self, i: usize) -> Result<usize, LabError> {
        if i >= self.primaries || self.replicas_each == 0 {
            return Err(LabError::Cluster(format!("node {i} was not created as a primary with replicas")));
        }
        let mut successor = None;
        self.wait_for(&format!("a failover of node {i}"), |cluster| {
            successor = cluster.replica_indexes(i).find(|&index| {
                cluster.nodes[index].is_running()
                    && cluster.own_entry(index).is_ok_and(|entry| entry.is_primary())
            });
            if successor.is_none() {
                return Some("no replica of it has become a primary".to_owned());
            }
            cluster.disagreement_without(Some(i))
        })?;
        successor.ok_or_else(|| LabError::Cluster(format!("no successor of node {i}")))
    }

    fn replica_indexes(&self, primary: usize) -> std::ops::Range<usize> {
        let first = self.primaries + primary * self.replicas_each;
        first..first + self.replicas_each
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&index| self.nodes[index].is_running())
    }

    /// The primaries share the slots evenly, and their epochs differ from the start: otherwise the nodes
    /// would have to sort that out among themselves first.
    fn assign_slots(&self) -> Result<(), LabError> {
        for (index, epoch) in (0..self.nodes.len()).zip(1_u64..) {
            self.command(
                index,
                "CLUSTER SET-CONFIG-EPOCH",
                cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(epoch),
            )?;
        }
        let bound = |index: usize| index * usize::from(SLOTS) / self.primaries;
        for index in 0..self.primaries {
            let (first, last) = (bound(index), bound(index + 1) - 1);
            let mut command = cmd("CLUSTER");
            if self.nodes[index].engine().is_before_7() {
                command.arg("ADDSLOTS").arg((first..=last).collect::<Vec<_>>());
            } else {
                command.arg("ADDSLOTSRANGE").arg(first).arg(last);
            }
            self.command(index, "CLUSTER ADDSLOTS", &command)?;
        }
        Ok(())
    }

    /// Each pair is introduced: waiting for gossip to do it takes seconds in larger clusters.
    fn introduce_all(&self) -> Result<(), LabError> {
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            let mut pipeline = redis::pipe();
            for other in &self.nodes[..index] {
                let port = cluster_port(other);
                pipeline
                    .cmd("CLUSTER")
                    .arg("MEET")
                    .arg("127.0.0.1")
                    .arg(port)
                    .arg(port + ports::BUS_OFFSET)
                    .ignore();
            }
            pipeline
                .exec(&mut node.try_connection()?)
                .map_err(|source| node.command_failed("CLUSTER MEET", source))?;
        }
        Ok(())
    }

    fn assign_replicas(&self) -> Result<(), LabError> {
        for primary in 0..self.primaries {
            for replica in self.replica_indexes(primary) {
                let mut command = cmd("CLUSTER");
                command.arg("REPLICATE").arg(&self.ids[primary]);
                self.command(replica, "CLUSTER REPLICATE", &command)?;
            }
        }
        Ok(())
    }

    fn migrate_keys(&self, slot: u16, from: usize, to: usize) -> Result<(), LabError> {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let mut connection = source.try_connection()?;
        let mut list = cmd("CLUSTER");
        list.arg("GETKEYSINSLOT").arg(slot).arg(MOVE_BATCH_KEYS);
        loop {
            let keys: Vec<Vec<u8>> = source.query(&mut connection, "CLUSTER GETKEYSINSLOT", &list)?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut migrate = cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(cluster_port(target)).arg("").arg(0).arg(MOVE_TIMEOUT_MS);
            if let Some(password) = target.password() {
                migrate.arg("AUTH").arg(password);
            }
            migrate.arg("KEYS").arg(keys);
            source.query::<()>(&mut connection, "MIGRATE", &migrate)?;
        }
    }

    /// Polls until nothing is wrong any more.
    fn wait_for(&self, what: &str, mut problem: impl FnMut(&Self) -> Option<String>) -> Result<(), LabError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let began = Instant::now();
            let Some(seen) = problem(self) else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(LabError::Timeout {
                    what: what.to_owned(),
                    waited_s: SETTLE_TIMEOUT.as_secs(),
                    seen,
                });
            }
            rest_after(began);
        }
    }

    /// A node that does not know all others, if there is one.
    fn strangers(&self) -> Option<String> {
        let everyone: BTreeSet<&str> = self.ids.iter().map(String::as_str).collect();
        self.running().find_map(|index| {
            let view = match self.view(index) {
                Ok(view) => view,
                Err(error) => return Some(error.to_string()),
            };
            let known: BTreeSet<&str> =
                view.iter().filter(|entry| entry.is_reachable()).map(|entry| entry.id.as_str()).collect();
            (known != everyone || view.len() != everyone.len())
                .then(|| format!("node {index} knows {} of {}", known.len(), everyone.len()))
        })
    }

    fn disagreement(&self) -> Option<String> {
        self.disagreement_without(None)
    }

    /// What keeps the running nodes, except one, from being a cluster that is well.
    fn disagreement_without(&self, absent: Option<usize>) -> Option<String> {
        let present: Vec<usize> = self.running().filter(|&index| Some(index) != absent).collect();
        let mut first: Option<Vec<Role>> = None;
        for &index in &present {
            match self.trouble_at(index, &present) {
                Err(error) => return Some(error.to_string()),
                Ok(Err(trouble)) => return Some(trouble),
                Ok(Ok(roles)) => match &first {
                    None => first = Some(roles),
                    Some(first) if *first != roles => {
                        let first = present[0];
                        return Some(format!(
                            "nodes {first} and {index} disagree on who owns or follows what"
                        ));
                    }
                    Some(_) => {}
                },
            }
        }
        None
    }

    /// The owners and followers in the eyes of a node, or what troubles it.
    fn trouble_at(&self, index: usize, present: &[usize]) -> Result<Result<Vec<Role>, String>, LabError> {
        let info: String = self.ask(index, "CLUSTER INFO", cmd("CLUSTER").arg("INFO"))?;
        if !info.lines().any(|line| line == "cluster_state:ok") {
            return Ok(Err(format!("node {index} does not say cluster_state:ok")));
        }
        let view = self.view(index)?;
        for &other in present {
            if !view.iter().any(|entry| entry.id == self.ids[other] && entry.is_reachable()) {
                return Ok(Err(format!("node {index} does not reach node {other}")));
            }
        }
        let itself = view.iter().find(|entry| entry.is_itself);
        if itself.is_some_and(|entry| !entry.is_primary()) {
            let replication: String = self.ask(index, "INFO", cmd("INFO").arg("replication"))?;
            if !replication.lines().any(|line| line == "master_link_status:up") {
                return Ok(Err(format!("replica {index} has no link to its primary")));
            }
        }
        // A node that comes back as a replica is a primary without slots to the others until they hear of it.
        let mut roles: Vec<Role> = view
            .into_iter()
            .filter(|entry| present.iter().any(|&other| self.ids[other] == entry.id))
            .map(|entry| (entry.id, entry.primary, format!("{:?}", entry.slots)))
            .collect();
        roles.sort();
        Ok(Ok(roles))
    }

    /// A replica that is not yet known to all as one of its primary, or not yet fed by it, if there is one.
    fn missing_replica(&self) -> Option<String> {
        for index in 0..self.nodes.len() {
            let view = match self.view(index) {
                Ok(view) => view,
                Err(error) => return Some(error.to_string()),
            };
            for primary in 0..self.primaries {
                let known =
                    view.iter().filter(|entry| entry.primary.as_ref() == Some(&self.ids[primary])).count();
                if known != self.replicas_each {
                    return Some(format!("node {index} knows {known} replicas of node {primary}"));
                }
            }
        }
        (0..self.primaries).find_map(|primary| {
            let replication = match self.ask::<String>(primary, "INFO", cmd("INFO").arg("replication")) {
                Ok(replication) => replication,
                Err(error) => return Some(error.to_string()),
            };
            let fed =
                replication.lines().filter(|l| l.starts_with("slave") && l.contains("state=online")).count();
            (fed != self.replicas_each).then(|| format!("node {primary} feeds {fed} replicas"))
        })
    }

    /// The cluster as node `index` sees it.
    fn view(&self, index: usize) -> Result<Vec<NodeEntry>, LabError> {
        let text: String = self.ask(index, "CLUSTER NODES", cmd("CLUSTER").arg("NODES"))?;
        Ok(text.lines().filter_map(NodeEntry::parse).collect())
    }

    /// What node `index` says about itself.
    fn own_entry(&self, index: usize) -> Result<NodeEntry, LabError> {
        self.view(index)?
            .into_iter()
            .find(|entry| entry.is_itself)
            .ok_or_else(|| LabError::Cluster(format!("node {index} does not list itself")))
    }

    fn command(&self, index: usize, what: &str, command: &Cmd) -> Result<(), LabError> {
        self.ask(index, what, command)
    }

    fn ask<T: redis::FromRedisValue>(&self, index: usize, what: &str, command: &Cmd) -> Result<T, LabError> {
        let node = &self.nodes[index];
        node.query(&mut node.try_connection()?, what, command)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&self.nodes).finish()
    }
}

/// The port under which the nodes know each other.
fn cluster_port(node: &Server) -> u16 {
    node.tls_port().unwrap_or(node.port())
}

/// What a node is to another: its id, that of its primary if it has one, and its slots.
type Role = (String, Option<String>, String);

/// One line of `CLUSTER NODES`.
#[derive(Debug, PartialEq, Eq)]
struct NodeEntry {
    id: String,
    flags: Vec<String>,
    is_itself: bool,
    /// The primary that it follows.
    primary: Option<String>,
    epoch: u64,
    is_linked: bool,
    /// First and last slot of each range, without slots on the move.
    slots: Vec<(u16, u16)>,
}

impl NodeEntry {
    /// `None` if this is not such a line.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let id = fields.next()?.to_owned();
        let flags: Vec<String> = fields.nth(1)?.split(',').map(str::to_owned).collect();
        let primary = fields.next().filter(|&field| field != "-").map(str::to_owned);
        // Between them stand the times of the last ping and pong.
        let epoch = fields.nth(2)?.parse().ok()?;
        let is_linked = fields.next()? == "connected";
        let slots = fields
            .filter(|field| !field.starts_with('['))
            .map(|field| {
                let (first, last) = field.split_once('-').unwrap_or((field, field));
                Some((first.parse().ok()?, last.parse().ok()?))
            })
            .collect::<Option<_>>()?;
        let is_itself = flags.iter().any(|flag| flag == "myself");
        Some(Self { id, flags, is_itself, primary, epoch, is_linked, slots })
    }

    fn is_primary(&self) -> bool {
        self.flags.iter().any(|flag| flag == "master")
    }

    fn is_reachable(&self) -> bool {
        let is_bad = |flag: &String| matches!(flag.as_str(), "fail" | "fail?" | "handshake" | "noaddr");
        self.is_linked && !self.flags.iter().any(is_bad)
    }

    fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|&(first, last)| (first..=last).contains(&slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cluster_nodes_is_understood() {
        let line = "07c37df 127.0.0.1:30004@31004,host myself,master - 0 1426238317239 4 connected \
                    0-5460 7000 [5461->-292f8b] [93-<-07c3]";
        let entry = NodeEntry::parse(line).expect("a good line");
        assert!(entry.is_itself && entry.is_primary() && entry.is_reachable());
        assert_eq!((entry.epoch, entry.primary.as_deref()), (4, None));
        assert_eq!(entry.slots, [(0, 5460), (7000, 7000)]);
        assert!(entry.owns(7000) && entry.owns(5460) && !entry.owns(5461));
    }

    #[test]
    fn a_failed_replica_is_understood() {
        let line = "6ec2 127.0.0.1:30005@31005 slave,fail 67ed 0 1426238316232 5 disconnected";
        let entry = NodeEntry::parse(line).expect("a good line");
        assert!(!entry.is_itself && !entry.is_primary() && !entry.is_reachable());
        assert_eq!(entry.primary.as_deref(), Some("67ed"));
        assert_eq!(NodeEntry::parse("not a node"), None);
    }
}
