//! Who owns which slots of a cluster, as every node reports it, and whether each node holds exactly what
//! it must.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use whimbrel_judge::compare::{NodeKeys, Snapshot, Stray, diff, node_keys};
use whimbrel_judge::dataset::knows_command;
use whimbrel_judge::deployment::{Deployment, SLOTS};
use whimbrel_lab::{Cluster, Server, rest_after, wait_until};

/// How long nodes may take to agree, and replicas to follow, on a busy machine.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// Passes after which every node has forgotten its slots, however many claims were under way.
const FORGET_PASSES: usize = 20;
/// Troubles that are shown.
const SHOWN: usize = 20;

/// Ranges of slots.
pub type Ranges = Vec<RangeInclusive<u16>>;

/// The addresses of all nodes, whatever their role.
pub fn addresses(cluster: &Cluster) -> Vec<String> {
    cluster.nodes().iter().map(Server::addr).collect()
}

/// Gives the slots of a cluster without keys to its primaries anew, by index; those not named get none.
///
/// Fails when a node refuses, a slot is named twice or not at all, or the nodes do not agree in time.
pub fn lay_out(cluster: &Cluster, slots: &[Ranges]) -> Result<()> {
    let named: usize = slots.iter().flatten().map(|range| range.len()).sum();
    ensure!(named == usize::from(SLOTS), "{named} slots are named instead of {SLOTS}");
    // A claim that is under way can bring a slot back: so until none was seen anywhere twice in a row.
    let mut quiet_passes = 0;
    for _ in 0..FORGET_PASSES {
        let mut forgotten = 0;
        for node in cluster.nodes() {
            let view = View::of(node)?;
            if !view.ranges.is_empty() {
                let mut command = redis::cmd("CLUSTER");
                // Ranges are Redis 7.0 and later.
                command.arg("DELSLOTS");
                for slot in view.ranges.iter().cloned().flatten() {
                    command.arg(slot);
                }
                command.exec(&mut node.connection()).context("forgetting slots")?;
                forgotten += 1;
            }
        }
        quiet_passes = if forgotten == 0 { quiet_passes + 1 } else { 0 };
        if quiet_passes == 2 {
            break;
        }
        thread::sleep(POLL);
    }
    for (node, ranges) in cluster.primaries().iter().zip(slots).filter(|(_, ranges)| !ranges.is_empty()) {
        let mut command = redis::cmd("CLUSTER");
        command.arg("ADDSLOTS");
        for slot in ranges.iter().cloned().flatten() {
            command.arg(slot);
        }
        command.exec(&mut node.connection()).context("adding slots")?;
    }
    cluster.wait_ok()?;
    Ok(())
}

/// Waits until a replica has what its primary has sent by now.
///
/// Panics if that takes longer than three minutes.
#[track_caller]
pub fn wait_until_follows(primary: &Server, replica: &Server) {
    let offset = |node: &Server, field: &str| -> u64 {
        let text: String =
            redis::from_redis_value(node.call(&["INFO", "replication"])).expect("INFO is text");
        let mut found = text.lines().filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.next().map_or(0, |number| number.parse().expect("an offset is a number"))
    };
    let sent = offset(primary, "master_repl_offset");
    let follows = format!("{} has what {} sent", replica.addr(), primary.addr());
    wait_until(&follows, || offset(replica, "slave_repl_offset") >= sent);
}

/// Panics unless, within half a minute, every slot has one owner that all running nodes agree on, no slot is
/// marked as importing or migrating, every key is where it belongs, and every replica holds what its primary
/// holds. Meant for clusters that nobody writes to.
#[track_caller]
pub fn assert_sound(cluster: &Cluster) {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let began = Instant::now();
        let troubles = troubles(cluster).unwrap_or_else(|error| vec![format!("{error:#}")]);
        if troubles.is_empty() {
            return;
        }
        if Instant::now() >= deadline {
            let shown = troubles[..troubles.len().min(SHOWN)].join("\n  ");
            panic!("the cluster is not sound, {} troubles:\n  {shown}", troubles.len());
        }
        rest_after(began);
    }
}

/// All that is wrong now, a line each.
///
/// Fails when a node that runs does not answer.
pub fn troubles(cluster: &Cluster) -> Result<Vec<String>> {
    let views = cluster
        .nodes()
        .iter()
        .filter(|node| node.is_running())
        .map(|node| Ok((node, View::of(node)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut found = Vec::new();
    let (first_node, first) = views.first().context("no node runs")?;
    for (node, view) in &views {
        let name = node.addr();
        let unowned = view.owners.iter().filter(|owner| owner.is_none()).count();
        if unowned > 0 {
            found.push(format!("{name} knows no owner of {unowned} slots"));
        }
        let other = view.owners.iter().zip(&first.owners).filter(|(own, other)| own != other).count();
        if other > 0 {
            found.push(format!("{name} and {} disagree on {other} slots", first_node.addr()));
        }
        if view.primaries != first.primaries {
            found.push(format!("{name} and {} disagree on who is whose replica", first_node.addr()));
        }
        found.extend(view.marks.iter().map(|mark| format!("{name} has a mark: {mark}")));
    }
    if !found.is_empty() {
        // Without agreement nobody can say what is where it belongs.
        return Ok(found);
    }
    let field_expiries = knows_command(&Deployment::at(first_node.addr())?, "HPEXPIRETIME")?;
    let mut by_node = BTreeMap::new();
    for (node, view) in &views {
        let mut connection = node.try_connection()?;
        if view.primary.is_some() {
            redis::cmd("READONLY").exec(&mut connection)?;
        }
        let shard = view.primary.as_ref().unwrap_or(&view.id);
        let owns = |slot: u16| view.owners[usize::from(slot)].as_ref() == Some(shard);
        let keys = node_keys(connection, field_expiries, owns)
            .with_context(|| format!("reading {}", node.addr()))?;
        if let Some(stray) = keys.strays.iter().next() {
            let stray = stray.escape_ascii();
            found.push(format!(
                "{} holds {} keys of others, such as {stray}",
                node.addr(),
                keys.strays.len()
            ));
        }
        by_node.insert(view.id.clone(), keys);
    }
    for (node, view) in &views {
        let Some(primary) = &view.primary else { continue };
        let Some(expected) = by_node.get(primary) else {
            found.push(format!("the primary of {} does not run", node.addr()));
            continue;
        };
        let NodeKeys { own, .. } = &by_node[&view.id];
        let differences = diff(&expected.own.without_read_counters(), &own.without_read_counters(), 0);
        found.extend(
            differences.iter().map(|words| format!("replica {} against its primary: {words}", node.addr())),
        );
    }
    Ok(found)
}

/// Every key of every node that calls itself a primary. Meant for clusters that are sound, and that nobody
/// writes to.
///
/// Fails when a node that runs does not answer, or two primaries hold the same key.
pub fn keys(cluster: &Cluster) -> Result<Snapshot> {
    let mut all = Snapshot { keys: BTreeMap::new(), strays: Vec::new(), read_ms: 0 };
    for node in cluster.nodes().iter().filter(|node| node.is_running()) {
        let view = View::of(node)?;
        if view.primary.is_some() {
            continue;
        }
        let field_expiries = knows_command(&Deployment::at(node.addr())?, "HPEXPIRETIME")?;
        let owns = |slot: u16| view.owners[usize::from(slot)].as_ref() == Some(&view.id);
        let found = node_keys(node.try_connection()?, field_expiries, owns)?;
        all.strays.extend(found.strays.into_iter().map(|key| Stray { node: node.addr(), key }));
        all.read_ms = found.own.read_ms;
        for (key, state) in found.own.keys {
            let name = key.escape_ascii().to_string();
            ensure!(all.keys.insert(key, state).is_none(), "two primaries hold {name}");
        }
    }
    Ok(all)
}

/// Who owns a slot, as the first running node sees it: the id of a primary.
///
/// Fails when no node runs or it does not answer.
pub fn owners(cluster: &Cluster) -> Result<Vec<Option<String>>> {
    let node = cluster.nodes().iter().find(|node| node.is_running()).context("no node runs")?;
    Ok(View::of(node)?.owners)
}

/// The slots that a primary owns, as it says itself.
///
/// Fails when it does not answer.
pub fn slots_of(cluster: &Cluster, node: usize) -> Result<BTreeSet<u16>> {
    let view = View::of(&cluster.nodes()[node])?;
    let own = |slot: &u16| view.owners[usize::from(*slot)].as_ref() == Some(&view.id);
    Ok((0..SLOTS).filter(own).collect())
}

/// The cluster as one node sees it.
struct View {
    id: String,
    /// Of whom it is a replica.
    primary: Option<String>,
    /// By slot.
    owners: Vec<Option<String>>,
    /// Every range that has an owner.
    ranges: Ranges,
    /// Its own importing and migrating slots, as `CLUSTER NODES` writes them.
    marks: Vec<String>,
    /// Of whom each node is a replica.
    primaries: BTreeMap<String, Option<String>>,
}

impl View {
    fn of(node: &Server) -> Result<Self> {
        let text: String =
            redis::cmd("CLUSTER").arg("NODES").query(&mut node.try_connection()?).context("CLUSTER NODES")?;
        let mut view = Self {
            id: String::new(),
            primary: None,
            owners: vec![None; usize::from(SLOTS)],
            ranges: Vec::new(),
            marks: Vec::new(),
            primaries: BTreeMap::new(),
        };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            ensure!(words.len() >= 8, "a line of CLUSTER NODES has {} words: {line}", words.len());
            let primary = (words[3] != "-").then(|| words[3].to_owned());
            view.primaries.insert(words[0].to_owned(), primary.clone());
            if words[2].split(',').any(|flag| flag == "myself") {
                view.id = words[0].to_owned();
                view.primary = primary;
            }
            for word in &words[8..] {
                if word.starts_with('[') {
                    view.marks.push((*word).to_owned());
                    continue;
                }
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                let range = first.parse()?..=last.parse()?;
                for slot in range.clone() {
                    view.owners[usize::from(slot)] = Some(words[0].to_owned());
                }
                view.ranges.push(range);
            }
        }
        ensure!(!view.id.is_empty(), "{} does not list itself", node.addr());
        Ok(view)
    }
}
