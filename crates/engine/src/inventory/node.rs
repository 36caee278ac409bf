//! What one server reports of itself.

use serde::Serialize;
use tokio::time::Instant;
use whimbrel_wire::value::Value;

use crate::endpoint::Address;
use crate::error::Result;
use crate::feed;
use crate::link::Link;
use crate::nodes::NoAnswer;
use crate::probe::{Info, ServerFacts};

/// The channel on which sentinels find each other.
const SENTINEL_CHANNEL: &[u8] = b"__sentinel__:hello";

/// What is known of one server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeFacts {
    /// Its address.
    pub address: String,
    /// Whether the topology has it as a primary.
    pub primary: bool,
    /// Why it did not answer; `None` if it did.
    pub silent: Option<NoAnswer>,
    /// What it says that it is.
    pub version: String,
    /// Whether it says that it is a replica.
    pub replica: bool,
    /// Of a replica: whether it hears from its primary.
    pub link_up: Option<bool>,
    /// Whether it still loads its data set.
    pub loading: bool,
    /// Why it refuses writes, by what it says; `None` if it does not.
    pub refuses_writes: Option<WritesRefused>,
    /// Of a node of a cluster: whether it serves requests.
    pub cluster_ok: Option<bool>,
    /// Keys in all databases.
    pub keys: u64,
    /// Bytes that it has taken from the system.
    pub used_memory_bytes: u64,
    /// Bytes of its data set, by its own estimate.
    pub dataset_bytes: u64,
    /// The most that it may use; `None` without a limit.
    pub maxmemory_bytes: Option<u64>,
    /// What it does when it is full.
    pub maxmemory_policy: String,
    /// Keys it has evicted since it started.
    pub evicted_keys: u64,
    /// Whether it writes its data to disk, by a log or by snapshots.
    pub persistent: Option<bool>,
    /// Commands it carries out each second.
    pub ops_per_second: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// How many may be; `None` if it does not report it.
    pub clients_max: Option<u64>,
    /// Clients that wait in a command.
    pub clients_blocked: u64,
    /// Channels and patterns that clients listen to.
    pub channels: u64,
    /// Scripts that it keeps for `EVALSHA`.
    pub scripts: u64,
    /// Sentinels that watch it.
    pub sentinels: u64,
    /// Replicas that are connected.
    pub replicas: u64,
    /// How far the last of them is behind, in bytes.
    pub replica_lag_bytes: u64,
    /// The size of its replication backlog; `None` if it does not report it.
    pub backlog_bytes: Option<u64>,
    /// When it drops a replica that reads too slowly; `None` if it does not report it.
    pub replica_buffer: Option<BufferLimit>,
}

/// Why a server refuses writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WritesRefused {
    /// Its last snapshot failed.
    Snapshot,
    /// Its log could not be written.
    Log,
    /// It wants to have more replicas.
    Replicas,
}

/// A `client-output-buffer-limit`; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BufferLimit {
    /// Dropped at once above this many bytes.
    pub hard_bytes: u64,
    /// Dropped when it was above this many bytes.
    pub soft_bytes: u64,
    /// For this many seconds.
    pub soft_seconds: u64,
}

impl BufferLimit {
    /// The part about replicas of what `CONFIG GET client-output-buffer-limit` reports.
    fn parse(text: &str) -> Option<BufferLimit> {
        let mut words = text.split(' ').skip_while(|word| !matches!(*word, "slave" | "replica")).skip(1);
        let mut next = || words.next()?.parse().ok();
        Some(BufferLimit { hard_bytes: next()?, soft_bytes: next()?, soft_seconds: next()? })
    }

    /// The least of its limits that is one, in bytes.
    pub fn least_bytes(&self) -> Option<u64> {
        [self.hard_bytes, self.soft_bytes].into_iter().filter(|bytes| *bytes > 0).min()
    }
}

impl NodeFacts {
    /// Only the address is known.
    pub(super) fn at(address: &Address, primary: bool) -> NodeFacts {
        NodeFacts { address: address.to_string(), primary, ..NodeFacts::default() }
    }

    /// From all sections of its `INFO`, and some questions more.
    pub(super) async fn ask(
        link: &mut Link,
        address: &Address,
        primary: bool,
        info: &Info,
    ) -> Result<NodeFacts> {
        let mut node = NodeFacts { ..NodeFacts::of(info) };
        (node.address, node.primary) = (address.to_string(), primary);
        let subscribed = link.ask(&[b"PUBSUB", b"NUMSUB", SENTINEL_CHANNEL]).await?;
        let count = subscribed.as_items().and_then(|items| items.get(1)?.as_int());
        node.sentinels = count.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        if info.field("cluster_enabled") == Some("1") {
            let reply = link.ask(&[b"CLUSTER", b"INFO"]).await?;
            node.cluster_ok =
                reply.as_bytes().map(|text| Info::parse(text).field("cluster_state") == Some("ok"));
        }
        let setting = |reply: &Value, name| reply.field(name).and_then(Value::as_str).map(str::to_owned);
        let limit = link.ask(&[b"CONFIG", b"GET", b"client-output-buffer-limit"]).await?;
        node.replica_buffer =
            setting(&limit, "client-output-buffer-limit").and_then(|text| BufferLimit::parse(&text));
        // The older names are known to all servers.
        let (wanted, lag) = ("min-slaves-to-write", info.field("min_slaves_good_slaves"));
        let reply = link.ask(&[b"CONFIG", b"GET", wanted.as_bytes()]).await?;
        let wanted: u64 = setting(&reply, wanted).and_then(|n| n.parse().ok()).unwrap_or(0);
        let good = lag.and_then(|n| n.parse().ok()).unwrap_or(node.replicas);
        if node.refuses_writes.is_none() && !node.replica && good < wanted {
            node.refuses_writes = Some(WritesRefused::Replicas);
        }
        let stops = link.ask(&[b"CONFIG", b"GET", b"stop-writes-on-bgsave-error"]).await?;
        if node.refuses_writes == Some(WritesRefused::Snapshot)
            && setting(&stops, "stop-writes-on-bgsave-error").as_deref() == Some("no")
        {
            node.refuses_writes = None;
        }
        let save = link.ask(&[b"CONFIG", b"GET", b"save"]).await?;
        let log = info.number("aof_enabled").map(|n| n == 1);
        node.persistent = match (setting(&save, "save"), log) {
            (Some(save), log) => Some(!save.is_empty() || log == Some(true)),
            (None, Some(true)) => Some(true),
            (None, _) => None,
        };
        Ok(node)
    }

    fn of(info: &Info) -> NodeFacts {
        let number = |name| info.number(name).unwrap_or(0);
        let facts = ServerFacts::of(info);
        let replicas = number("connected_slaves");
        let offset = number("master_repl_offset");
        let lags = info.replicas().into_iter().map(|replica| offset.saturating_sub(replica.offset));
        let failed = |name| info.field(name).is_some_and(|status| status != "ok");
        NodeFacts {
            version: facts.version,
            replica: facts.replica,
            link_up: info.field("master_link_status").map(|status| status == "up"),
            loading: info.field("loading") == Some("1"),
            refuses_writes: match (failed("rdb_last_bgsave_status"), failed("aof_last_write_status")) {
                (_, true) => Some(WritesRefused::Log),
                (true, false) => Some(WritesRefused::Snapshot),
                (false, false) => None,
            },
            keys: info.keyspace().values().map(|db| db.keys).sum(),
            used_memory_bytes: number("used_memory"),
            dataset_bytes: facts.dataset_bytes,
            maxmemory_bytes: info.number("maxmemory").filter(|max| *max > 0),
            maxmemory_policy: info.field("maxmemory_policy").unwrap_or_default().to_owned(),
            evicted_keys: facts.evicted_keys,
            ops_per_second: number("instantaneous_ops_per_sec"),
            clients: number("connected_clients"),
            clients_max: info.number("maxclients"),
            clients_blocked: number("blocked_clients"),
            channels: number("pubsub_channels") + number("pubsub_patterns"),
            scripts: number("number_of_cached_scripts"),
            replicas,
            replica_lag_bytes: lags.max().unwrap_or(0),
            backlog_bytes: info.number("repl_backlog_size"),
            ..NodeFacts::default()
        }
    }

    /// Bytes that may still be written to it; `None` without a limit.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(self.maxmemory_bytes?.saturating_sub(self.used_memory_bytes))
    }

    /// Whether it removes keys by itself when it is full.
    pub fn evicts(&self) -> bool {
        self.maxmemory_bytes.is_some() && self.maxmemory_policy != "noeviction"
    }
}

/// How much a server has written, at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Activity {
    at: Instant,
    calls: u64,
    offset: u64,
}

/// How much a server writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rate {
    /// Commands that can write, each second.
    pub writes_per_second: f64,
    /// Bytes of its replication stream, each second; 0 if nothing replicates from it.
    pub bytes_per_second: f64,
}

impl Activity {
    /// Asks for it.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn ask(link: &mut Link) -> Result<Activity> {
        let used = Info::ask(link, "commandstats").await?;
        let offset = Info::ask(link, "replication").await?.number("master_repl_offset").unwrap_or(0);
        let mut commands = std::collections::BTreeMap::new();
        super::commands::add_used(&used, &mut commands);
        let writes = commands.iter().filter(|(name, _)| feed::may_write(name) && *name != "exec");
        Ok(Activity { at: Instant::now(), calls: writes.map(|(_, used)| used.calls).sum(), offset })
    }

    /// How much was written since `before`.
    pub fn since(&self, before: &Activity) -> Rate {
        let seconds = (self.at - before.at).as_secs_f64().max(0.001);
        Rate {
            writes_per_second: self.calls.saturating_sub(before.calls) as f64 / seconds,
            bytes_per_second: self.offset.saturating_sub(before.offset) as f64 / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_replicas_are_found_under_both_names() {
        for name in ["slave", "replica"] {
            let text = format!("normal 0 0 0 {name} 268435456 67108864 60 pubsub 33554432 8388608 60");
            let limit = BufferLimit::parse(&text).expect("a limit");
            assert_eq!((limit.hard_bytes, limit.soft_seconds), (268_435_456, 60));
            assert_eq!(limit.least_bytes(), Some(67_108_864));
        }
        assert_eq!(BufferLimit::parse("normal 0 0 0"), None);
        let none = BufferLimit { hard_bytes: 0, soft_bytes: 0, soft_seconds: 0 };
        assert_eq!(none.least_bytes(), None);
    }

    #[test]
    fn a_server_says_why_it_refuses_writes_and_how_far_replicas_are_behind() {
        let info = Info::parse(
            b"redis_version:7.0.15\r\nrdb_last_bgsave_status:err\r\naof_last_write_status:ok\r\n\
              connected_slaves:2\r\nslave0:ip=a,port=1,state=online,offset=90,lag=0\r\n\
              slave1:ip=a,port=2,state=online,offset=40,lag=1\r\nmaster_repl_offset:100\r\n\
              maxmemory:1000\r\nused_memory:400\r\nmaxmemory_policy:allkeys-lru\r\n",
        );
        let node = NodeFacts::of(&info);
        assert_eq!(node.refuses_writes, Some(WritesRefused::Snapshot));
        assert_eq!((node.replicas, node.replica_lag_bytes), (2, 60));
        assert_eq!((node.free_bytes(), node.evicts()), (Some(600), true));
    }
}
