//! Whether two deployments hold the same, found with typed reads and nothing of the product's own.

mod digest;
mod read;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use anyhow::{Context, Result, bail};
use redis::Connection;

pub use digest::Digest;
pub use state::{ExpiringField, GroupState, HashState, KeyState, PendingEntry, StreamState, ValueState};

use crate::dataset::knows_command;
use crate::deployment::{Deployment, now_ms, slot_of};
use digest::quoted;
use read::Reader;
use state::Slack;

/// Differences that [`assert_equal`] shows.
const SHOWN: usize = 20;

/// All keys of one database, as they were when they were read.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// By name.
    pub keys: BTreeMap<Vec<u8>, KeyState>,
    /// Keys on cluster nodes that do not own their slots: leftovers of a migration.
    pub strays: Vec<Stray>,
    /// When the reading had ended, milliseconds since the epoch.
    pub read_ms: i64,
}

impl Snapshot {
    /// Redis 7.0 does not send its replicas the logical read counters of groups.
    pub fn without_read_counters(&self) -> Snapshot {
        let mut snapshot = self.clone();
        for state in snapshot.keys.values_mut() {
            if let ValueState::Stream(stream) = &mut state.value {
                stream.groups.values_mut().for_each(|group| group.entries_read = None);
            }
        }
        snapshot
    }
}

/// A key on a node that does not own its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The node that has it.
    pub node: String,
    /// Its name.
    pub key: Vec<u8>,
}

/// Reads database `db` of all primaries. The deployment's topology is probed again, because a key is a
/// stray or not by the owner of now. Not atomic: meant for deployments that nobody writes to.
///
/// Fails when a primary does not answer, or owns a slot twice.
pub fn snapshot(deployment: &Deployment, db: i64) -> Result<Snapshot> {
    let deployment = deployment.refreshed()?;
    let field_expiries = knows_command(&deployment, "HPEXPIRETIME")?;
    let mut keys = BTreeMap::new();
    let mut strays = Vec::new();
    for primary in deployment.primaries() {
        let mut reader = Reader { connection: primary.connect(db)?, field_expiries };
        let (own, foreign): (Vec<_>, Vec<_>) = reader
            .scan()?
            .into_iter()
            .partition(|key| !deployment.is_cluster() || primary.owns(slot_of(key)));
        strays.extend(foreign.into_iter().map(|key| Stray { node: primary.name().to_owned(), key }));
        let states = reader.states(&own).with_context(|| format!("reading from {}", primary.name()))?;
        for (key, state) in states {
            let shown = quoted(&key);
            if keys.insert(key, state).is_some() {
                bail!("two primaries own {shown}");
            }
        }
    }
    Ok(Snapshot { keys, strays, read_ms: now_ms() })
}

/// What one node of a cluster holds.
#[derive(Clone, Debug)]
pub struct NodeKeys {
    /// The keys of its own slots.
    pub own: Snapshot,
    /// The names of all others.
    pub strays: BTreeSet<Vec<u8>>,
}

/// Reads everything that one node holds; `owns` says which slots are its own. A replica must have been sent
/// READONLY. `field_expiries` says whether the server knows expiries of hash fields.
///
/// Fails when the node does not answer.
pub fn node_keys(
    connection: Connection,
    field_expiries: bool,
    owns: impl Fn(u16) -> bool,
) -> Result<NodeKeys> {
    let mut reader = Reader { connection, field_expiries };
    let (own, strays): (BTreeSet<_>, BTreeSet<_>) =
        reader.scan()?.into_iter().partition(|key| owns(slot_of(key)));
    let keys = reader.states(&own.into_iter().collect::<Vec<_>>())?;
    Ok(NodeKeys { own: Snapshot { keys, strays: Vec::new(), read_ms: now_ms() }, strays })
}

/// The states of those of `keys` that exist in database `db`, each asked from its owner.
///
/// Fails when a primary does not answer or a slot has no owner.
pub fn states_of(deployment: &Deployment, db: i64, keys: &[Vec<u8>]) -> Result<BTreeMap<Vec<u8>, KeyState>> {
    let deployment = deployment.refreshed()?;
    let field_expiries = knows_command(&deployment, "HPEXPIRETIME")?;
    let mut owned = vec![Vec::new(); deployment.primaries().len()];
    for key in keys {
        let owner = deployment.owner_of(key).with_context(|| format!("nobody owns {}", quoted(key)))?;
        owned[owner].push(key.clone());
    }
    let mut states = BTreeMap::new();
    for (primary, keys) in deployment.primaries().iter().zip(owned) {
        let mut reader = Reader { connection: primary.connect(db)?, field_expiries };
        states.extend(reader.states(&keys)?);
    }
    Ok(states)
}

/// Every difference between two snapshots, one line each, "left against right". A key that is on one
/// side only is equal to nothing if it had expired when the other side was read. Expiries and delivery
/// times may be up to `tolerance_ms` apart.
pub fn diff(left: &Snapshot, right: &Snapshot, tolerance_ms: u64) -> Vec<String> {
    differences(left, right, tolerance_ms).into_iter().map(|difference| difference.to_string()).collect()
}

/// Every difference between two states that are both of now.
pub(crate) fn state_differences(left: &KeyState, right: &KeyState) -> Vec<String> {
    let read_ms = now_ms();
    left.differences(right, Slack { tolerance_ms: 0, left_read_ms: read_ms, right_read_ms: read_ms })
}

/// One difference, with the key it is about.
struct Difference {
    key: Vec<u8>,
    words: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", quoted(&self.key), self.words)
    }
}

fn differences(left: &Snapshot, right: &Snapshot, tolerance_ms: u64) -> Vec<Difference> {
    let mut found = Vec::new();
    for (side, snapshot) in [("left", left), ("right", right)] {
        for stray in &snapshot.strays {
            let words = format!("on the {side}, {} has this key and does not own its slot", stray.node);
            found.push(Difference { key: stray.key.clone(), words });
        }
    }
    let slack = Slack { tolerance_ms, left_read_ms: left.read_ms, right_read_ms: right.read_ms };
    let names: BTreeSet<_> = left.keys.keys().chain(right.keys.keys()).collect();
    for key in names {
        let words = match (left.keys.get(key), right.keys.get(key)) {
            (Some(own), Some(other)) => own.differences(other, slack),
            (Some(own), None) if !own.may_be_gone(right.read_ms) => {
                vec![format!("{} is missing on the right", own.value.type_name())]
            }
            (None, Some(other)) if !other.may_be_gone(left.read_ms) => {
                vec![format!("{} is only on the right", other.value.type_name())]
            }
            _ => Vec::new(),
        };
        found.extend(words.into_iter().map(|words| Difference { key: key.clone(), words }));
    }
    found
}

/// Panics with the first differences unless both deployments hold the same in all databases.
pub fn assert_equal(source: &Deployment, target: &Deployment) {
    Comparison::default().assert_equal(source, target);
}

/// A comparison of two deployments with exceptions.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    tolerance_ms: u64,
    databases: Option<Vec<(i64, i64)>>,
    excepted: BTreeSet<Vec<u8>>,
    functions: bool,
    without_read_counters: bool,
}

impl Comparison {
    /// Lets expiries and delivery times be this far apart. 0 unless set.
    pub fn tolerance_ms(mut self, tolerance_ms: u64) -> Self {
        self.tolerance_ms = tolerance_ms;
        self
    }

    /// Compares these databases, source and target of each, instead of all with all.
    pub fn databases(mut self, pairs: &[(i64, i64)]) -> Self {
        self.databases = Some(pairs.to_vec());
        self
    }

    /// Leaves these keys out: what the target cannot hold.
    pub fn except<K: AsRef<[u8]>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.excepted.extend(keys.into_iter().map(|key| key.as_ref().to_vec()));
        self
    }

    /// Compares function libraries too: every primary must have those of the source's first.
    pub fn functions(mut self) -> Self {
        self.functions = true;
        self
    }

    /// As [`Snapshot::without_read_counters`], for a side that was a replica.
    pub fn without_read_counters(mut self) -> Self {
        self.without_read_counters = true;
        self
    }

    /// Every difference, one line each.
    ///
    /// Fails when one of the servers cannot be read.
    pub fn differences(&self, source: &Deployment, target: &Deployment) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (source_db, target_db) in self.pairs(source, target)? {
            // Both at once: on two cores that halves the wait for large collections.
            let (left, right) = thread::scope(|scope| {
                let left = scope.spawn(|| snapshot(source, source_db).context("source"));
                let right = snapshot(target, target_db).context("target");
                (left.join().expect("reading the source does not panic"), right)
            });
            let (mut left, mut right) = (left?, right?);
            if self.without_read_counters {
                (left, right) = (left.without_read_counters(), right.without_read_counters());
            }
            for difference in differences(&left, &right, self.tolerance_ms) {
                if !self.excepted.contains(&difference.key) {
                    found.push(format!("db {source_db} against {target_db}, {difference}"));
                }
            }
        }
        if self.functions {
            let expected = functions_of(source)?.into_iter().next().map(|(_, libraries)| libraries);
            for (node, libraries) in functions_of(source)?.into_iter().chain(functions_of(target)?) {
                if Some(&libraries) != expected.as_ref() {
                    found.push(format!("functions on {node}: {libraries:?} instead of {expected:?}"));
                }
            }
        }
        Ok(found)
    }

    /// Panics with the first differences, if there are any or a server cannot be read.
    pub fn assert_equal(&self, source: &Deployment, target: &Deployment) {
        let found = match self.differences(source, target) {
            Ok(found) => found,
            Err(error) => panic!("cannot compare: {error:#}"),
        };
        if !found.is_empty() {
            let shown = found[..found.len().min(SHOWN)].join("\n  ");
            panic!("{} differences, source against target:\n  {shown}", found.len());
        }
    }

    fn pairs(&self, source: &Deployment, target: &Deployment) -> Result<Vec<(i64, i64)>> {
        if let Some(pairs) = &self.databases {
            return Ok(pairs.clone());
        }
        let mut databases: BTreeSet<i64> = source.databases()?.into_iter().collect();
        databases.extend(target.databases()?);
        for deployment in [source, target] {
            if let Some(db) = databases.iter().find(|&&db| db != 0 && deployment.is_cluster()) {
                bail!("database {db} holds keys and one side is a cluster: name the databases to compare");
            }
        }
        Ok(databases.into_iter().map(|db| (db, db)).collect())
    }
}

/// For each primary its function libraries, by name, with their code.
fn functions_of(deployment: &Deployment) -> Result<Vec<(String, BTreeMap<String, String>)>> {
    let mut all = Vec::new();
    for primary in deployment.primaries() {
        let libraries: Vec<BTreeMap<String, redis::Value>> =
            redis::cmd("FUNCTION").arg(&["LIST", "WITHCODE"]).query(&mut primary.connect(0)?)?;
        let mut by_name = BTreeMap::new();
        for mut library in libraries {
            let mut text = |field: &str| -> Result<String> {
                let value = library.remove(field).with_context(|| format!("a library without {field}"))?;
                Ok(redis::from_redis_value(value)?)
            };
            by_name.insert(text("library_name")?, text("library_code")?);
        }
        all.push((primary.name().to_owned(), by_name));
    }
    Ok(all)
}
