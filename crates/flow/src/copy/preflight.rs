//! What is looked at before the first key is touched.

use bytes::Bytes;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::tag_for_slot;
use whimbrel_core::units::{format_count, format_count_of};
use whimbrel_engine::deployment::{Deployment, Shard, Topology};
use whimbrel_engine::error::{Code, Error, ErrorKind, Result, Side};
use whimbrel_engine::expiry::{self, Clock};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::{Info, PROBE_KEY, ServerFacts};
use whimbrel_engine::remedy::Remedy;
use whimbrel_wire::value::Value;

use super::rights::unpromised;
use crate::keys::{Body, Fetch, Write};
use crate::large::Existing;
use crate::modules::{LeftBehind, left_behind};
use crate::pipeline::{CopyOptions, DbPair, Shared};
use crate::retry::RetryPolicy;
use crate::scan::{KeyScan, ScanOptions, Unit};
use crate::verify::check_comparable;

/// What a copy would do.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// What the source is, for people.
    pub source: String,
    /// What the target is, for people.
    pub target: String,
    /// Each database.
    pub dbs: Vec<PlannedDb>,
    /// Function libraries on the source that the user did not ask to copy.
    pub functions_left: usize,
    /// What modules of the source leave behind.
    pub left_behind: LeftBehind,
    /// What cannot be promised, since the source's user lacks rights.
    pub unpromised: Vec<String>,
}

impl Plan {
    /// Refuses keys of the target, if the user did not say what happens to them.
    ///
    /// # Errors
    /// `Unfit` if there are any.
    pub fn must_find_none(&self, target: &Deployment) -> Result<()> {
        must_be_empty(target, &self.dbs)
    }

    /// Both sides, those of the databases that are worth a line, and what stays behind.
    pub fn lines(&self, is_shown: impl Fn(&PlannedDb) -> bool) -> Vec<String> {
        let mut lines = vec![format!("source   {}", self.source), format!("target   {}", self.target)];
        for db in self.dbs.iter().filter(|db| is_shown(db)) {
            let selected = match (db.source_keys, db.selected_keys) {
                (Some(all), Some(n)) if n != all => format!(", {} of them selected", format_count(n)),
                (None, Some(n)) => format!(", {} selected", format_count(n)),
                (Some(_), None) => ", a part of them selected".to_owned(),
                _ => String::new(),
            };
            lines.push(format!(
                "db {:<5} {}{selected}; to db {}, which holds {}",
                db.db.source,
                db.source_keys.map_or_else(|| UNCOUNTED.to_owned(), |keys| format_count_of(keys, "key")),
                db.db.target,
                format_count(db.target_keys)
            ));
        }
        lines.extend(self.left_behind.lines());
        lines.extend(self.unpromised.iter().map(|words| format!("rights   {words}")));
        lines
    }
}

/// In the place of how many keys there are.
const UNCOUNTED: &str = "keys that are not counted";

impl Plan {
    /// Whether the target has keys where the copy goes.
    pub fn holds_keys(&self) -> bool {
        self.dbs.iter().any(|db| db.target_keys > 0)
    }
}

/// One database of a plan.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedDb {
    /// Which.
    pub db: DbPair,
    /// Keys on the source, all of them; `None` if this user may not ask how many they are.
    pub source_keys: Option<u64>,
    /// Keys on the source that are selected; the same number if everything is.
    pub selected_keys: Option<u64>,
    /// Keys on the target.
    pub target_keys: u64,
}

/// The databases that hold keys, over all shards of a deployment: number, keys.
///
/// # Errors
/// As [`Deployment::open`] and `INFO`; `Unfit` if this user has no right to that.
pub async fn databases(deployment: &Deployment) -> Result<Vec<(u32, u64)>> {
    deployment
        .check_known("nothing else shows which databases hold keys", "name the database, or give it +info")?;
    let mut sums = std::collections::BTreeMap::new();
    for shard in &deployment.topology().shards {
        let mut link = deployment.open(&shard.primary, 0).await?;
        let info = Info::ask(&mut link, "").await?;
        if info.field("loading") == Some("1") {
            // Until then it counts fewer keys, and fewer databases, than it has.
            let what = "the server is still loading its data set";
            return Err(Error::unfit(deployment.side(), shard.primary.to_string(), "count the keys", what)
                .with_remedy("wait until it has finished"));
        }
        for (db, counts) in info.keyspace() {
            if db != 0 && deployment.is_proxied() {
                // Clients of the proxy have none but this.
                continue;
            }
            *sums.entry(db).or_insert(0) += counts.keys;
        }
    }
    Ok(sums.into_iter().collect())
}

/// These databases that hold keys, and the empty ones that both sides have: they may not stay empty. If a
/// server does not say how many it has, or has only one, those that are named.
///
/// # Errors
/// As [`Deployment::open`].
pub async fn with_empty_databases(
    source: &Deployment,
    target: &Deployment,
    named: Vec<DbPair>,
) -> Result<Vec<DbPair>> {
    if source.is_cluster() || target.is_cluster() || target.endpoint.db.is_some() {
        return Ok(named);
    }
    let (Some(ours), Some(theirs)) = (how_many(source).await?, how_many(target).await?) else {
        return Ok(named);
    };
    let mut dbs: Vec<DbPair> = (0..ours.min(theirs)).map(|db| DbPair { source: db, target: db }).collect();
    // A database that the target does not have is reported when it is checked.
    dbs.extend(named.into_iter().filter(|pair| pair.source >= ours.min(theirs)));
    Ok(dbs)
}

/// How many databases a server has; `None` if it does not say.
async fn how_many(deployment: &Deployment) -> Result<Option<u32>> {
    let mut link = deployment.open(&deployment.server(), 0).await?;
    let reply = link.ask(&[b"CONFIG", b"GET", b"databases"]).await?;
    let number = reply.field("databases").and_then(Value::as_int);
    Ok(number.and_then(|n| u32::try_from(n).ok()))
}

/// Looks at both sides and decides whether a copy may start. Writes nothing.
///
/// `fresh` is false for a copy that goes on with an earlier one: then the target holds keys of ours.
/// `refuse_existing` is true if the user has not said what to do with keys that exist. `count_selected` makes
/// it scan the source to count what is selected.
///
/// # Errors
/// `Unfit` with a remedy for everything that would make the copy fail or do harm.
pub async fn plan(
    source: &std::sync::Arc<Deployment>,
    target: &Deployment,
    options: &CopyOptions,
    fresh: bool,
    refuse_existing: bool,
    count_selected: bool,
    stop: &CancellationToken,
) -> Result<Plan> {
    if options.mirror {
        source.check_known(SYNC_ASKS_MORE, GIVE_INFO)?;
        source.check_direct("it does not say what changes")?;
        target.check_direct("a sync needs transactions there")?;
    }
    if options.existing == Existing::Fail {
        check_comparable(source)?;
    }
    match options.mirror {
        true => check_reading(source, options.dbs.iter().map(|db| db.source)).await?,
        false => check_copying(source, options).await?,
    }
    check_distinct(source, target, options)?;
    check_target(source, target, options).await?;
    let on_source = if source.facts.are_known { Some(databases(source).await?) } else { None };
    let on_target = databases(target).await?;
    let keys_in =
        |list: &[(u32, u64)], db: u32| list.iter().find(|(n, _)| *n == db).map_or(0, |(_, keys)| *keys);
    let mut dbs = Vec::new();
    for db in &options.dbs {
        let all = options.selection.is_everything() && options.types.is_empty() && options.limit.is_none();
        let source_keys = on_source.as_ref().map(|list| keys_in(list, db.source));
        let selected_keys = if count_selected {
            Some(count(source, options, db.source, stop).await?)
        } else if options.selection.is_everything() && options.types.is_empty() {
            source_keys
        } else {
            None
        };
        dbs.push(PlannedDb {
            db: *db,
            source_keys: source_keys.or(selected_keys.filter(|_| all)),
            selected_keys,
            target_keys: keys_in(&on_target, db.target),
        });
    }
    if refuse_existing && fresh {
        must_be_empty(target, &dbs)?;
    }
    Ok(Plan {
        source: described(source),
        target: described(target),
        dbs,
        functions_left: crate::functions::count(source).await,
        left_behind: left_behind(source, target, options, stop).await?,
        unpromised: unpromised(source, options),
    })
}

/// Refuses keys of the target if the user did not say what happens to them.
fn must_be_empty(target: &Deployment, dbs: &[PlannedDb]) -> Result<()> {
    let Some(full) = dbs.iter().find(|d| d.target_keys > 0) else { return Ok(()) };
    let keys = format_count_of(full.target_keys, "key");
    let what = format!("database {} holds {keys} already", full.db.target);
    Err(Error::unfit(Side::Target, target.endpoint.address.to_string(), "look at the target", what)
        .with_remedy(Remedy::SayWhatHappensToExistingKeys))
}

/// A copy of a database onto itself would undo what clients write between our read and our write.
fn check_distinct(source: &Deployment, target: &Deployment, options: &CopyOptions) -> Result<()> {
    let ids = |d: &Deployment| -> Vec<String> {
        let topology = d.topology();
        if topology.cluster || topology.is_proxied() {
            topology.shards.iter().map(|s| s.id.clone()).collect()
        } else {
            vec![d.facts.run_id.clone()]
        }
    };
    let own = ids(source);
    // If the source does not say what it is, its address is all there is to know.
    let same_address = !source.facts.are_known && source.endpoint.address == target.endpoint.address;
    let same = same_address || ids(target).iter().any(|id| !id.is_empty() && own.contains(id));
    match options.dbs.iter().find(|db| same && db.source == db.target) {
        None => Ok(()),
        Some(db) => {
            let what =
                format!("source and target are the same: database {} would be copied onto itself", db.source);
            Err(Error::unfit(Side::Target, target.endpoint.address.to_string(), "look at the target", what)
                .with_remedy(Remedy::MapDatabase("name another target")))
        }
    }
}

fn described(deployment: &Deployment) -> String {
    let topology = deployment.topology();
    let at = &deployment.endpoint.address;
    let replicas: usize = topology.shards.iter().map(|s| s.replicas.len()).sum();
    if topology.cluster {
        let primaries = topology.shards.len();
        format!(
            "{at}: {}, cluster of {primaries} primaries and {replicas} replicas",
            deployment.facts.version
        )
    } else if topology.is_proxied() {
        let servers = format_count_of(topology.shards.len() as u64, "server");
        format!("{at}: {}, {servers} behind a proxy", deployment.facts.version)
    } else {
        format!("{at}: {}, standalone", deployment.facts.version)
    }
}

/// What to do about a database that cannot be selected.
fn no_such_db(e: Error, deployment: &Deployment) -> Error {
    match &e.kind {
        ErrorKind::Unfit(_) if deployment.is_cluster() => e.with_remedy(match deployment.side() {
            Side::Source => Remedy::from("a cluster has one database, 0: name that one"),
            _ => Remedy::MapDatabase("a cluster has one database, 0: leave the number out of its address"),
        }),
        ErrorKind::Unfit(_) => e.with_remedy(Remedy::MapDatabase("see the server's setting databases")),
        _ => e,
    }
}

/// Tries whether the target could be read and the source be written, as the way back does.
pub(crate) async fn check_way_back(shared: &Shared) -> Result<()> {
    let dbs = &shared.options.dbs;
    check_reading(&shared.target, dbs.iter().map(|db| db.target)).await?;
    for shard in &shared.source.topology().shards {
        for db in dbs {
            let mut link = shared.source.open(&shard.primary, db.source).await?;
            check_permissions(&mut link, &[&set(PROBE_KEY)]).await?;
        }
    }
    Ok(())
}

/// Tries whether the keys of these databases can be read in every way.
pub(crate) async fn check_reading(source: &Deployment, dbs: impl Iterator<Item = u32> + Clone) -> Result<()> {
    let mut commands: Vec<Vec<&[u8]>> = vec![
        SCAN.to_vec(),
        vec![b"TYPE", PROBE_KEY],
        vec![Fetch::String.command(), PROBE_KEY],
        vec![b"TIME"],
    ];
    let clock = Clock::of_server(source.capabilities.pexpiretime);
    expiry::question(clock, PROBE_KEY, &mut |command| commands.push(command.to_vec()));
    if source.capabilities.hash_field_ttl {
        commands.push(FIELD_TIMES.to_vec());
    }
    check_everywhere(source, dbs, &commands).await
}

/// Why a source has to report what it is, and what to do.
pub(crate) const SYNC_ASKS_MORE: &str = "a sync asks for more than keys";
pub(crate) const GIVE_INFO: &str = "give it +info and what else a sync needs, or name another user";

/// Asks when a field of a hash expires.
const FIELD_TIMES: [&[u8]; 5] = [b"HPEXPIRETIME", PROBE_KEY, b"FIELDS", b"1", b"f"];

/// Enumerates keys, hardly any.
const SCAN: [&[u8]; 4] = [b"SCAN", b"0", b"COUNT", b"1"];

/// Tries whether the keys of a copy can be read in one way at least.
async fn check_copying(source: &Deployment, options: &CopyOptions) -> Result<()> {
    let can = &source.capabilities;
    let mut commands: Vec<Vec<&[u8]>> = vec![SCAN.to_vec()];
    expiry::question(can.clock(), PROBE_KEY, &mut |command| commands.push(command.to_vec()));
    if can.get {
        commands.push(vec![Fetch::String.command(), PROBE_KEY]);
    }
    if !(can.get && can.reads_pieces()) {
        commands.push(vec![Fetch::Payload.command(), PROBE_KEY]);
    }
    check_everywhere(source, options.dbs.iter().map(|db| db.source), &commands).await?;
    if can.type_name || !options.asks_types() {
        return Ok(());
    }
    let what = "keys of several types are distinguished by TYPE, which this user may not run";
    Err(Error::unfit(source.side(), source.endpoint.address.to_string(), "look at the source", what)
        .with_remedy("ask for one type, by which SCAN itself chooses, or give this user +type"))
}

/// Tries commands that change nothing on each primary and in these databases.
async fn check_everywhere(
    source: &Deployment,
    dbs: impl Iterator<Item = u32> + Clone,
    commands: &[Vec<&[u8]>],
) -> Result<()> {
    let commands: Vec<&[&[u8]]> = commands.iter().map(Vec::as_slice).collect();
    for shard in &source.topology().shards {
        for db in dbs.clone() {
            let mut link = source.open(&shard.primary, db).await.map_err(|e| no_such_db(e, source))?;
            check_permissions(&mut link, &commands).await?;
        }
    }
    Ok(())
}

/// Tries commands that change nothing: better now than half-way. All that this user may not run are named.
/// Returns the refusal of a server that has stopped writes.
async fn check_permissions(link: &mut Link, commands: &[&[&[u8]]]) -> Result<Option<Error>> {
    let (mut refused, mut stopped) = (Vec::new(), None);
    let mut rights: Vec<String> = Vec::new();
    for command in commands {
        let Some(refusal) = link.try_out(command).await? else { continue };
        if refusal.code == Code::WritesStopped {
            stopped = stopped.or_else(|| Some(link.server_error(refusal, command[0])));
            continue;
        }
        if !refusal.forbids_command() {
            continue;
        }
        let right = format!("+{}", String::from_utf8_lossy(command[0]).to_lowercase());
        if refusal.code == Code::NoPermission && !rights.contains(&right) {
            rights.push(right);
        }
        refused.push((refusal, command[0]));
    }
    let Some((refusal, command)) = refused.into_iter().next() else { return Ok(stopped) };
    let e = link.server_error(refusal, command);
    Err(match rights.is_empty() {
        true => e,
        false => e.with_remedy(format!("give this user {}, or name another user", rights.join(" "))),
    })
}

/// Refused for its last word, if not for its first.
fn set(key: &[u8]) -> [&[u8]; 4] {
    [b"SET", key, b"", b"WHIMBREL"]
}

/// A key for such questions. A node of a cluster redirects keys that are not its own before it looks whether
/// it is paused, so there it is one of its own.
fn probe_key(topology: &Topology, shard: &Shard) -> Vec<u8> {
    match shard.slots.iter().next().filter(|_| topology.cluster) {
        Some(slot) => format!("{{{}}}{}", tag_for_slot(slot), PROBE_KEY.escape_ascii()).into_bytes(),
        None => PROBE_KEY.to_vec(),
    }
}

/// Refused for its payload.
const NO_PAYLOAD: [&[u8]; 3] = [PROBE_KEY, b"0", b""];

async fn check_target(source: &Deployment, target: &Deployment, options: &CopyOptions) -> Result<()> {
    let restore = [&[Write::command(&Body::Payload(Bytes::new()))][..], &NO_PAYLOAD].concat();
    let topology = target.topology();
    if topology.unowned() > 0 {
        let what = format!("{} slots of this cluster have no owner", topology.unowned());
        return Err(Error::unfit(
            Side::Target,
            target.endpoint.address.to_string(),
            "look at the cluster",
            what,
        )
        .with_remedy("repair the cluster first"));
    }
    for shard in &topology.shards {
        let key = probe_key(&topology, shard);
        let set = set(&key);
        let field_times: [&[u8]; 5] = [b"HPEXPIRETIME", &key, b"FIELDS", b"1", b"f"];
        let mut needed: Vec<&[&[u8]]> = vec![&[b"INFO", b"server"], &set];
        if !(source.capabilities.get && source.capabilities.reads_pieces()) {
            needed.push(&restore);
        }
        let compares_fields = source.capabilities.hash_field_ttl && target.capabilities.hash_field_ttl;
        if options.mirror && compares_fields {
            needed.push(&field_times);
        }
        for db in &options.dbs {
            let mut link = target.open(&shard.primary, db.target).await.map_err(|e| no_such_db(e, target))?;
            if let Some(stopped) = check_permissions(&mut link, &needed).await? {
                return Err(stopped);
            }
            let facts = ServerFacts::ask(&mut link).await?;
            if facts.replica {
                let at = shard.primary.to_string();
                let what = "this server is a replica and takes no writes";
                return Err(Error::unfit(Side::Target, at, "look at the target", what)
                    .with_remedy("name its primary"));
            }
            let info = Info::ask(&mut link, "memory").await?;
            let (used, max) = (info.number("used_memory"), info.number("maxmemory").filter(|m| *m > 0));
            let evicts = info.field("maxmemory_policy").is_some_and(|p| p != "noeviction");
            if let (Some(used), Some(max)) = (used, max)
                && used >= max
                && !evicts
            {
                let what = format!("it is full: {used} of {max} bytes of maxmemory are used");
                return Err(Error::unfit(
                    Side::Target,
                    shard.primary.to_string(),
                    "look at the target",
                    what,
                )
                .with_remedy("raise its maxmemory or make room"));
            }
        }
    }
    Ok(())
}

async fn count(
    source: &std::sync::Arc<Deployment>,
    options: &CopyOptions,
    db: u32,
    stop: &CancellationToken,
) -> Result<u64> {
    let mut total = 0;
    let scan_options = || ScanOptions {
        count: options.scan_count,
        pattern: options.selection.server_side_match().map(bytes::Bytes::copy_from_slice),
        type_name: match options.types.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        },
    };
    for unit in Unit::of_all(source, db, options.from_replicas) {
        let mut typed = match options.types.len() {
            0 | 1 => None,
            _ => Some(unit.open(source).await?),
        };
        let retry = RetryPolicy::default();
        let mut scan = KeyScan::new(source.clone(), unit, scan_options(), retry, None);
        while let Some(page) = scan.next().await? {
            if stop.is_cancelled() {
                return Ok(total);
            }
            let keys: Vec<_> = page.keys.into_iter().filter(|k| options.selection.admits(k)).collect();
            total += match &mut typed {
                None => keys.len() as u64,
                Some(link) => {
                    for key in &keys {
                        link.push(&[b"TYPE", key]);
                    }
                    link.flush().await?;
                    let types = link.replies(keys.len()).await?;
                    let wanted = |t: &str| options.types.iter().any(|w| w == t);
                    types.iter().filter(|t| t.as_str().is_some_and(wanted)).count() as u64
                }
            };
        }
    }
    Ok(options.limit.map_or(total, |limit| total.min(limit)))
}

impl Existing {
    /// What it does, for a plan.
    pub fn described(self) -> &'static str {
        match self {
            Existing::Replace => "keys that exist are replaced",
            Existing::Skip => "keys that exist are left alone",
            Existing::Fail => "a key that exists with another value stops the copy",
        }
    }
}
