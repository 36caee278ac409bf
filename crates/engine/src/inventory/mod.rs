//! What a deployment is like: facts for the decision whether to migrate it.
//!
//! Nothing is changed: every command reads. Rights are found out without carrying out what they are for: see
//! [`rights`](crate::rights).

mod commands;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use serde::Serialize;
use whimbrel_wire::value::Value;

use crate::deployment::{Deployment, Topology};
use crate::endpoint::Address;
use crate::error::{Error, Result};
use crate::link::Link;
use crate::nodes::{Counted, Finding, NoAnswer, Survey, SurveyOptions};
use crate::probe::{DbCounts, Info};

pub use self::commands::{CommandUse, Reach, lacking};
pub use self::node::{Activity, BufferLimit, NodeFacts, Rate, WritesRefused};

/// Settings whose differences clients notice.
const COMPARED: [&str; 5] =
    ["maxmemory-policy", "notify-keyspace-events", "proto-max-bulk-len", "timeout", "maxclients"];

/// How many slots [`Inventory::slots`] names at most.
const SLOTS_NAMED: &[u8] = b"10";

/// What is known of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Inventory {
    /// How it was named, without a password.
    pub address: String,
    /// What the first server says that it is.
    pub version: String,
    /// Whether it is a cluster.
    pub cluster: bool,
    /// Whether it was named by the sentinels that watch it.
    pub watched: bool,
    /// Its nodes, primaries first.
    pub nodes: Vec<NodeFacts>,
    /// The databases that hold keys, over all primaries.
    pub databases: BTreeMap<u32, DbCounts>,
    /// How many databases it has; `None` if it does not report it.
    pub databases_max: Option<u64>,
    /// Slots without an owner.
    pub unowned_slots: usize,
    /// Slots that are marked as importing or migrating.
    pub open_slots: usize,
    /// What else is wrong among its nodes, by how they see each other.
    pub disorder: Vec<String>,
    /// Modules by name; `None` if it does not report them.
    pub modules: Option<BTreeSet<String>>,
    /// ACL users by name; `None` if it does not report them.
    pub users: Option<BTreeSet<String>>,
    /// Commands that clients have used since the statistics were reset, by their names in small letters.
    pub used: BTreeMap<String, CommandUse>,
    /// Some settings; those that it does not report are missing.
    pub settings: BTreeMap<String, String>,
    /// Whether hash fields can expire there.
    pub hash_field_ttl: bool,
    /// Whether it has `FUNCTION`.
    pub functions: bool,
    /// How far its clocks are from ours, in milliseconds: the furthest of its primaries.
    pub clock_ms: i64,
    /// The slots that its primaries have most work with, as far as they count it.
    pub slots: Vec<SlotLoad>,
}

/// How much a slot is used, as its owner counts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotLoad {
    /// Its number.
    pub slot: u16,
    /// Keys in it.
    pub keys: u64,
    /// Microseconds of commands since the statistics were reset; `None` if that is not counted.
    pub cpu_us: Option<u64>,
}

impl Inventory {
    /// Asks all nodes. One that does not answer is part of what is found.
    ///
    /// # Errors
    /// As [`Deployment::open`] and [`Link::ask`], of the first server only.
    pub fn take(deployment: &Deployment) -> BoxFuture<'_, Result<Inventory>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let topology = deployment.topology();
            let mut inventory = Inventory {
                address: deployment.endpoint.address.to_string(),
                version: deployment.facts.version.clone(),
                cluster: deployment.is_cluster(),
                watched: deployment.is_watched(),
                unowned_slots: topology.unowned(),
                hash_field_ttl: deployment.capabilities.hash_field_ttl,
                functions: deployment.capabilities.functions,
                ..Inventory::default()
            };
            inventory.open_slots = deployment.open_slots().await.map_or(0, |open| open.len());
            for (primary, address) in nodes(&topology) {
                let node = inventory.ask_node(deployment, address, primary).await;
                let silent =
                    |e: Error| NodeFacts { silent: Some(NoAnswer::of(e)), ..NodeFacts::at(address, primary) };
                inventory.nodes.push(node.unwrap_or_else(silent));
            }
            if inventory.cluster {
                // If the nodes may not be asked, nothing is known.
                inventory.disorder = disorder(deployment).await.unwrap_or_default();
            }
            let mut link = deployment.open(&deployment.server(), 0).await?;
            inventory.databases_max = databases_max(&mut link, inventory.cluster).await?;
            inventory.modules = names_of(&link.ask(&[b"MODULE", b"LIST"]).await?, |entry| {
                entry.field("name").and_then(Value::as_str).map(str::to_owned)
            });
            inventory.users =
                names_of(&link.ask(&[b"ACL", b"USERS"]).await?, |name| name.as_str().map(str::to_owned));
            for name in COMPARED {
                let reply = link.ask(&[b"CONFIG", b"GET", name.as_bytes()]).await?;
                if let Some(value) = reply.field(name).and_then(Value::as_str) {
                    inventory.settings.insert(name.to_owned(), value.to_owned());
                }
            }
            commands::ask_reach(&mut link, &mut inventory.used).await?;
            inventory.slots.sort_by_key(|slot| std::cmp::Reverse((slot.cpu_us, slot.keys)));
            Ok(inventory)
        })
    }

    async fn ask_node(
        &mut self,
        deployment: &Deployment,
        address: &Address,
        primary: bool,
    ) -> Result<NodeFacts> {
        let mut link = deployment.open(address, 0).await?;
        let reply = link.call(&[b"INFO", b"ALL"]).await?;
        let Some(text) = reply.as_bytes() else { return Err(link.unexpected("INFO", &reply)) };
        let info = Info::parse(text);
        let node = NodeFacts::ask(&mut link, address, primary, &info).await?;
        if primary {
            for (db, counts) in info.keyspace() {
                let sum = self.databases.entry(db).or_default();
                sum.keys += counts.keys;
                sum.expires += counts.expires;
                sum.volatile += counts.volatile;
            }
            commands::add_used(&info, &mut self.used);
            let clock_ms = clock_ms(&mut link).await?;
            if clock_ms.abs() > self.clock_ms.abs() {
                self.clock_ms = clock_ms;
            }
            if self.cluster {
                self.slots.extend(slot_loads(&mut link).await?);
            }
        }
        Ok(node)
    }

    /// Its primaries.
    pub fn primaries(&self) -> impl Iterator<Item = &NodeFacts> {
        self.nodes.iter().filter(|node| node.primary)
    }

    /// All keys.
    pub fn keys(&self) -> u64 {
        self.databases.values().map(|db| db.keys).sum()
    }
}

/// Primaries first.
fn nodes(topology: &Topology) -> impl Iterator<Item = (bool, &Address)> {
    let primaries = topology.shards.iter().map(|shard| (true, &shard.primary));
    primaries.chain(topology.shards.iter().flat_map(|s| s.replicas.iter().map(|replica| (false, replica))))
}

/// What a survey finds, except what the inventory has itself.
async fn disorder(deployment: &Deployment) -> Result<Vec<String>> {
    let what = SurveyOptions { counts: Counted::Nothing, activity: false };
    let survey = Survey::take_with(deployment, what).await?;
    let is_more = |finding: &Finding| {
        !matches!(finding, Finding::Unowned { .. } | Finding::Open { .. } | Finding::ClusterDown { .. })
    };
    let more = survey.findings().into_iter().filter(|finding| finding.is_problem() && is_more(finding));
    Ok(more.map(|finding| finding.to_string()).collect())
}

async fn databases_max(link: &mut Link, cluster: bool) -> Result<Option<u64>> {
    // A cluster has one, unless it is of a kind that can have more.
    let (name, assumed) = if cluster { ("cluster-databases", Some(1)) } else { ("databases", None) };
    let reply = link.ask(&[b"CONFIG", b"GET", name.as_bytes()]).await?;
    Ok(reply.field(name).and_then(Value::as_str).and_then(|n| n.parse().ok()).or(assumed))
}

/// `None` if the server does not report them.
fn names_of(reply: &Value, name: impl Fn(&Value) -> Option<String>) -> Option<BTreeSet<String>> {
    Some(reply.as_items()?.iter().filter_map(name).collect())
}

/// How far the server's clock is from ours. What the question takes is halved out.
async fn clock_ms(link: &mut Link) -> Result<i64> {
    let ours = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as i64);
    let before = ours();
    let reply = link.ask(&[b"TIME"]).await?;
    let after = ours();
    let number = |v: &Value| v.as_str().and_then(|text| text.parse::<i64>().ok());
    Ok(match reply.as_items() {
        Some([seconds, micros]) => match (number(seconds), number(micros)) {
            (Some(s), Some(us)) => s * 1000 + us / 1000 - before.midpoint(after),
            _ => 0,
        },
        _ => 0,
    })
}

/// What the owner counts for its slots; nothing if it does not.
async fn slot_loads(link: &mut Link) -> Result<Vec<SlotLoad>> {
    let mut loads = BTreeMap::new();
    for by in [&b"CPU-USEC"[..], b"KEY-COUNT"] {
        let reply =
            link.ask(&[b"CLUSTER", b"SLOT-STATS", b"ORDERBY", by, b"LIMIT", SLOTS_NAMED, b"DESC"]).await?;
        for entry in reply.as_items().unwrap_or_default() {
            let Some([slot, stats]) = entry.as_items() else { continue };
            let count = |name| stats.field(name).and_then(Value::as_int).and_then(|n| u64::try_from(n).ok());
            if let Some(slot) = slot.as_int().and_then(|n| u16::try_from(n).ok()) {
                let load =
                    SlotLoad { slot, keys: count("key-count").unwrap_or(0), cpu_us: count("cpu-usec") };
                loads.insert(slot, load);
            }
        }
    }
    Ok(loads.into_values().collect())
}
