//! A standalone server or a cluster: its nodes, its slots, and connections to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use whimbrel_core::slot::{Slot, SlotRange, SlotSet, tag_for_slot};
use whimbrel_core::topology::Naming;
use whimbrel_wire::value::Value;

use crate::endpoint::{Address, Behind, Endpoint};
use crate::error::{Error, ErrorKind, Result, Side};
use crate::link::{Link, LinkOptions};
use crate::probe::{Capabilities, ServerFacts};
use crate::routes;
use crate::sentinel::{self, Group};

/// One primary with its slots and its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The node id; empty for a standalone server.
    pub id: String,
    /// Where to connect to, the address map applied.
    pub primary: Address,
    /// Its replicas, likewise.
    pub replicas: Vec<Address>,
    /// The slots it owns; all of them for a standalone server.
    pub slots: SlotSet,
}

/// Which shard owns which slot, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// False for a standalone server.
    pub cluster: bool,
    /// The shards that own slots.
    pub shards: Vec<Shard>,
    /// For each slot the index of its shard plus one; 0 if no shard owns it.
    owner: Vec<u16>,
}

impl Topology {
    fn new(cluster: bool, shards: Vec<Shard>) -> Topology {
        let mut owner = vec![0; usize::from(Slot::COUNT)];
        // A cluster has at most 16,384 primaries with slots: the index fits.
        for (shard, index) in shards.iter().zip(1u16..) {
            for slot in shard.slots.iter() {
                owner[usize::from(slot.number())] = index;
            }
        }
        Topology { cluster, shards, owner }
    }

    /// A cluster in which each of these primaries has one slot, for tests of what uses one.
    pub fn of(owners: impl IntoIterator<Item = (Address, Slot)>) -> Topology {
        let shard = |(primary, slot): (Address, Slot)| {
            let mut slots = SlotSet::new();
            slots.insert(slot);
            Shard { id: primary.to_string(), primary, replicas: Vec::new(), slots }
        };
        Topology::new(true, owners.into_iter().map(shard).collect())
    }

    /// A cluster of these shards.
    pub fn of_shards(shards: Vec<Shard>) -> Topology {
        Topology::new(true, shards)
    }

    fn standalone(primary: Address, replicas: Vec<Address>) -> Topology {
        let shard = Shard { id: String::new(), primary, replicas, slots: SlotSet::full() };
        Topology::new(false, vec![shard])
    }

    /// Servers behind a proxy. Which of them has a key the proxy knows alone; commands about keys go to any.
    fn behind(servers: Vec<Behind>) -> Topology {
        let shard = |server: Behind| Shard {
            id: server.server.clone(),
            primary: Address::Behind(Arc::new(server)),
            replicas: Vec::new(),
            slots: SlotSet::full(),
        };
        Topology::new(false, servers.into_iter().map(shard).collect())
    }

    /// Whether a proxy stands before the servers.
    pub fn is_proxied(&self) -> bool {
        self.nodes().any(|node| matches!(node, Address::Behind(_)))
    }

    /// The shard that owns `slot`.
    pub fn shard_of(&self, slot: Slot) -> Option<&Shard> {
        let index = self.owner[usize::from(slot.number())];
        self.shards.get(usize::from(index).checked_sub(1)?)
    }

    /// Whether `asked`, which reports `now`, seems to have left the cluster that this is: it knows of none of
    /// the other nodes that have slots, and of no owner for some slot. A node that was reset knows of itself
    /// at most.
    fn is_left_by(&self, now: &Topology, asked: &Address) -> bool {
        let knows = |node: &Address| now.nodes().any(|other| other == node);
        let mut others = self.nodes().filter(|node| *node != asked).peekable();
        others.peek().is_some() && !others.any(knows) && now.owner.contains(&0)
    }

    /// Primaries that own slots, and their replicas.
    pub fn nodes(&self) -> impl Iterator<Item = &Address> {
        self.shards.iter().flat_map(|shard| std::iter::once(&shard.primary).chain(&shard.replicas))
    }

    /// The slots whose owner differs between the two, an unowned slot included.
    pub fn moved_slots(&self, other: &Topology) -> SlotSet {
        let mut moved = SlotSet::new();
        // Neighbours mostly have the same owners: those need not be compared by name once more.
        let mut last = None;
        for slot in Slot::all() {
            let [before, now] = [self, other].map(|t| t.owner[usize::from(slot.number())]);
            let differs = match last {
                Some((pair, differs)) if pair == (before, now) => differs,
                _ => {
                    let id = |shard: &Shard| (shard.id.clone(), shard.primary.clone());
                    self.shard_of(slot).map(id) != other.shard_of(slot).map(id)
                }
            };
            last = Some(((before, now), differs));
            if differs {
                moved.insert(slot);
            }
        }
        moved
    }

    /// Slots without an owner.
    pub fn unowned(&self) -> usize {
        self.owner.iter().filter(|o| **o == 0).count()
    }
}

/// What the primaries of a cluster said of themselves at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The line of `CLUSTER NODES` of each about itself, except its times.
    lines: Vec<String>,
    open: SlotSet,
}

impl Claims {
    /// Whether no slot is on the move.
    pub fn are_at_rest(&self) -> bool {
        self.open.is_empty()
    }
}

/// A deployment that has been probed: what it is, what it can do, and its topology as last seen.
#[derive(Debug)]
pub struct Deployment {
    /// How it was named.
    pub endpoint: Arc<Endpoint>,
    /// How connections to it behave; the database is set for each.
    pub options: LinkOptions,
    /// What the first server said of itself.
    pub facts: ServerFacts,
    /// What the first server can do.
    pub capabilities: Capabilities,
    topology: RwLock<Arc<Topology>>,
    /// Where the next refresh starts, so that one node with a stale view is not asked for ever.
    turn: AtomicUsize,
}

impl Deployment {
    /// Connects and finds out what is there. Writes nothing.
    ///
    /// # Errors
    /// Whatever keeps us from connecting or asking; `Unfit` if a cluster has no slots, or a database other
    /// than 0 was named for a cluster.
    pub async fn probe(endpoint: Endpoint, options: LinkOptions) -> Result<Deployment> {
        Deployment::probe_by(endpoint, options, true).await
    }

    /// As [`Deployment::probe`], of what is only read: its user need not have the right to `INFO`. What goes
    /// on with it has to look whether [its facts are reported](ServerFacts::are_known).
    ///
    /// # Errors
    /// As [`Deployment::probe`].
    pub async fn probe_readable(endpoint: Endpoint, options: LinkOptions) -> Result<Deployment> {
        Deployment::probe_by(endpoint, options, false).await
    }

    fn probe_by(
        endpoint: Endpoint,
        options: LinkOptions,
        needs_info: bool,
    ) -> BoxFuture<'static, Result<Deployment>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            let endpoint = Arc::new(endpoint);
            let (primary, replicas) = match &endpoint.address {
                Address::Sentinel(watched) => {
                    let Group { primary, replicas } = sentinel::group(&endpoint, watched, options).await?;
                    (primary, replicas)
                }
                named => (named.clone(), Vec::new()),
            };
            let at_zero = LinkOptions { db: 0, ..options };
            let (mut link, facts, behind) = met(&endpoint, &primary, at_zero, needs_info).await?;
            if facts.replica && matches!(endpoint.address, Address::Sentinel(_)) {
                let what = "the primary that the sentinels name is a replica: a failover is under way";
                let kind = ErrorKind::Connect(std::io::Error::other(what));
                return Err(Error::new(endpoint.side, primary.to_string(), "find the primary", kind)
                    .with_remedy("try again when it is over"));
            }
            let mut capabilities = Capabilities::probe(&mut link).await?;
            let (topology, naming) = match facts.cluster {
                true => read_topology(&mut link).await?,
                false if behind.is_empty() => (Topology::standalone(primary, replicas), Naming::Ip),
                false => (Topology::behind(behind), Naming::Ip),
            };
            if topology.is_proxied() {
                // Scripts report it whatever the server has; libraries of functions no proxy passes on.
                (capabilities.pexpiretime, capabilities.functions) = (true, false);
            }
            let endpoint = Arc::new(Endpoint { naming, ..(*endpoint).clone() });
            let mut deployment = Deployment {
                endpoint,
                options,
                facts,
                capabilities,
                topology: RwLock::new(Arc::new(topology)),
                turn: AtomicUsize::new(0),
            };
            if deployment.side() == Side::Target {
                deployment.probe_payloads().await?;
            }
            Ok(deployment)
        })
    }

    /// Finds out which payloads it takes, without writing anything. A target's is asked when it is probed;
    /// this is for others that keys are carried to.
    ///
    /// # Errors
    /// As [`Link::open`] and [`Capabilities::probe_payload_version`].
    pub async fn probe_payloads(&mut self) -> Result<()> {
        let topology = self.topology();
        let (address, key) = match topology.shards.first() {
            // Any owned slot will do: the key is never written.
            Some(shard) if self.facts.cluster => {
                let slot = shard.slots.iter().next().map(tag_for_slot).unwrap_or_default();
                (&shard.primary, format!("whimbrel:probe:{{{slot}}}"))
            }
            _ => (&self.server(), "whimbrel:probe".to_owned()),
        };
        let mut link = self.open(address, 0).await?;
        self.capabilities.probe_payload_version(&mut link, key.as_bytes(), false).await
    }

    /// A cluster whose nodes others have reported. None of them is asked.
    pub fn of_members(
        endpoint: Arc<Endpoint>,
        options: LinkOptions,
        like: &Deployment,
        topology: Topology,
    ) -> Deployment {
        Deployment {
            endpoint,
            options,
            facts: ServerFacts { cluster: true, ..like.facts.clone() },
            capabilities: like.capabilities,
            topology: RwLock::new(Arc::new(topology)),
            turn: AtomicUsize::new(0),
        }
    }

    /// Which side this is.
    pub fn side(&self) -> Side {
        self.endpoint.side
    }

    /// True for a cluster.
    pub fn is_cluster(&self) -> bool {
        self.facts.cluster
    }

    /// The topology as last seen.
    pub fn topology(&self) -> Arc<Topology> {
        self.topology.read().clone()
    }

    /// A server to ask what all of them know: the primary of a standalone deployment, which sentinels may
    /// have named; of a cluster the node that was named.
    pub fn server(&self) -> Address {
        let topology = self.topology();
        match topology.shards.first() {
            Some(shard) if !self.facts.cluster => shard.primary.clone(),
            _ => self.endpoint.address.clone(),
        }
    }

    /// Whether sentinels say who the primary is, and have another take its place when it fails.
    pub fn is_watched(&self) -> bool {
        matches!(self.endpoint.address, Address::Sentinel(_))
    }

    /// Whether a proxy stands before the servers: commands about several keys, and what a connection
    /// otherwise learns, are not available.
    pub fn is_proxied(&self) -> bool {
        self.topology().is_proxied()
    }

    /// Refuses a deployment behind a proxy.
    ///
    /// # Errors
    /// `Unfit`, with `why`.
    pub fn check_direct(&self, why: &str) -> Result<()> {
        if !self.is_proxied() {
            return Ok(());
        }
        let what = format!("a proxy stands before these servers: {why}");
        Err(Error::unfit(self.side(), self.endpoint.address.to_string(), "look at the servers", what)
            .with_remedy("name a server behind it"))
    }

    /// Refuses a deployment that does not show this user what it is.
    ///
    /// # Errors
    /// `Unfit`, with `why` and what to do.
    pub fn check_known(&self, why: &str, remedy: &'static str) -> Result<()> {
        if self.facts.are_known {
            return Ok(());
        }
        let what = format!("this user may not run INFO, and {why}");
        Err(Error::unfit(self.side(), self.endpoint.address.to_string(), "look at the server", what)
            .with_remedy(remedy))
    }

    /// Asks the nodes for the topology, one after another until one answers; or the sentinels for the
    /// primary. A standalone server without sentinels has none to ask for.
    ///
    /// # Errors
    /// The last node's error, if none answered; as [`sentinel::group`].
    pub async fn refresh(&self) -> Result<Arc<Topology>> {
        Ok(self.set_topology(self.topology_now().await?))
    }

    /// The topology as a node sees it now. Nothing goes by it but what the caller does.
    ///
    /// # Errors
    /// As [`Deployment::refresh`].
    pub fn topology_now(&self) -> BoxFuture<'_, Result<Topology>> {
        // Boxed, so that it is compiled here and not in each crate that awaits it.
        Box::pin(async move {
            if let Address::Sentinel(watched) = &self.endpoint.address {
                let Group { primary, replicas } =
                    sentinel::group(&self.endpoint, watched, self.options).await?;
                return Ok(Topology::standalone(primary, replicas));
            }
            if !self.facts.cluster {
                return Ok((*self.topology()).clone());
            }
            let known = self.topology();
            let mut candidates: Vec<Address> = known.shards.iter().map(|s| s.primary.clone()).collect();
            candidates.push(self.endpoint.address.clone());
            candidates.extend(known.shards.iter().flat_map(|s| s.replicas.iter().cloned()));
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % candidates.len();
            candidates.rotate_left(turn);
            let mut failure = None;
            for address in candidates {
                let found = async { read_topology(&mut self.open(&address, 0).await?).await }.await;
                match found.map(|(topology, _)| topology) {
                    Ok(topology) if known.is_left_by(&topology, &address) => {
                        let what = "the node has left the cluster";
                        let at = address.to_string();
                        failure = Some(Error::unfit(self.side(), at, "refresh the topology", what));
                    }
                    Ok(topology) => return Ok(topology),
                    Err(e) => failure = Some(e),
                }
            }
            // `candidates` holds the endpoint's own address at least.
            Err(failure.unwrap_or_else(|| Error::own("refresh the topology", "no node is known")))
        })
    }

    fn set_topology(&self, topology: Topology) -> Arc<Topology> {
        let topology = Arc::new(topology);
        *self.topology.write() = topology.clone();
        topology
    }

    /// Slots that are on the move: marked as importing or migrating on any primary. `CLUSTER SLOTS` does not
    /// show them, and each has keys on two nodes.
    ///
    /// # Errors
    /// As [`Deployment::open`] and [`Link::call`], of any primary.
    pub async fn open_slots(&self) -> Result<SlotSet> {
        let mut open = SlotSet::new();
        if !self.facts.cluster {
            return Ok(open);
        }
        for shard in &self.topology().shards {
            let mut link = self.open(&shard.primary, 0).await?;
            let reply = link.ask(&[b"CLUSTER", b"NODES"]).await?;
            match reply.as_bytes() {
                Some(text) => marked_slots(&String::from_utf8_lossy(text), &mut open),
                // If an ACL forbids it, redirections still show it.
                None if reply.as_error().is_some() => {}
                None => return Err(link.unexpected("CLUSTER NODES", &reply)),
            }
        }
        Ok(open)
    }

    /// Which node claims which slots, by the nodes' own words. If two of these are equal and [at
    /// rest](Claims::are_at_rest), no key has gone from one node to another between them: a slot that changes
    /// its owner raises an epoch, which is among the words. A standalone server claims nothing.
    ///
    /// # Errors
    /// As [`Deployment::refresh`], [`Deployment::open`] and [`Link::call`], of any primary.
    pub async fn claims(&self) -> Result<Claims> {
        let mut claims = Claims { lines: Vec::new(), open: SlotSet::new() };
        if !self.facts.cluster {
            return Ok(claims);
        }
        for shard in &self.refresh().await?.shards {
            let mut link = self.open(&shard.primary, 0).await?;
            let reply = link.call(&[b"CLUSTER", b"NODES"]).await?;
            let Some(text) = reply.as_bytes() else { return Err(link.unexpected("CLUSTER NODES", &reply)) };
            let text = String::from_utf8_lossy(text);
            marked_slots(&text, &mut claims.open);
            let own = own_line(&text).ok_or_else(|| link.unexpected("CLUSTER NODES", &reply))?;
            // All but the times of pings and pongs, which pass.
            let words = own.split(' ').enumerate().filter(|(at, _)| !matches!(at, 4 | 5));
            claims.lines.push(words.map(|(_, word)| word).collect::<Vec<_>>().join(" "));
        }
        claims.lines.sort();
        Ok(claims)
    }

    /// A connection to one node.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub async fn open(&self, address: &Address, db: u32) -> Result<Link> {
        Link::open(&self.endpoint, address, LinkOptions { db, ..self.options }).await
    }

    /// As [`Deployment::open`], if the node is one `side` of a transfer inside this deployment: its errors
    /// say so.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub async fn open_as(&self, side: Side, address: &Address, db: u32) -> Result<Link> {
        let endpoint = Arc::new(Endpoint { side, ..(*self.endpoint).clone() });
        Link::open(&endpoint, address, LinkOptions { db, ..self.options }).await
    }

    /// The error for a slot without an owner: transient, since a failover leaves slots so for a while.
    pub fn unowned(&self, slot: Slot) -> Error {
        let text = format!("CLUSTERDOWN slot {} has no owner", slot.number());
        let kind = ErrorKind::Server(crate::error::ServerError::classify(text.as_bytes()));
        Error::new(self.side(), self.endpoint.address.to_string(), "find the owner of a slot", kind)
    }

    /// Where a redirection to `announced` by the server `asked` leads, the address map applied.
    pub fn reach(&self, announced: &str, asked: &Address) -> Option<Address> {
        Some(self.endpoint.reach(&Address::parse_tcp(announced)?, asked))
    }
}

/// How often a server is asked directly again that seems to be a proxy.
const DIRECT_AGAIN: usize = 3;

/// Connects, and asks what answers there: if `INFO` is refused and not `needs_info`, this is guessed; of a
/// proxy, one of the servers behind it, and all of them.
async fn met(
    endpoint: &Arc<Endpoint>,
    address: &Address,
    options: LinkOptions,
    needs_info: bool,
) -> Result<(Link, ServerFacts, Vec<Behind>)> {
    let direct = async || {
        let mut link = Link::open(endpoint, address, options).await?;
        let facts = match needs_info {
            true => ServerFacts::ask(&mut link).await?,
            false => ServerFacts::ask_or_guess(&mut link).await?,
        };
        Ok((link, facts))
    };
    let e = match direct().await {
        Ok((link, facts)) => return Ok((link, facts, Vec::new())),
        Err(e) if routes::may_be_proxy(&e) => e,
        Err(e) => return Err(e),
    };
    let servers = routes::servers(endpoint, address, options, e).await?;
    // A server runs scripts as well: the first connection may just have been dropped, by a server that is
    // starting or by what stands before it. Taken for a proxy it would be left with one of its databases.
    for _ in 0..DIRECT_AGAIN {
        match direct().await {
            Ok((link, facts)) => return Ok((link, facts, Vec::new())),
            Err(e) if routes::may_be_proxy(&e) => {}
            Err(e) => return Err(e),
        }
    }
    let Some(first) = servers.first() else { return Err(Error::own("look behind a proxy", "no server")) };
    let mut link = Link::open(endpoint, &Address::Behind(Arc::new(first.clone())), options).await?;
    let facts = ServerFacts { cluster: false, ..ServerFacts::ask(&mut link).await? };
    Ok((link, facts, servers))
}

/// Reads `CLUSTER SLOTS`, which every version has and which crashes none (`CLUSTER SHARDS` does crash some):
/// which node has which slots, and how the cluster names its nodes.
async fn read_topology(link: &mut Link) -> Result<(Topology, Naming)> {
    let reply = link.call(&[b"CLUSTER", b"SLOTS"]).await?;
    let Some(entries) = reply.as_items() else {
        return Err(link.unexpected("CLUSTER SLOTS", &reply));
    };
    let mut shards: Vec<Shard> = Vec::new();
    let mut named = Naming::Ip;
    for entry in entries {
        let parsed = parse_entry(entry, link).ok_or_else(|| link.unexpected("CLUSTER SLOTS", entry))?;
        let (parsed, naming) = parsed;
        named = naming;
        match shards.iter_mut().find(|s| s.id == parsed.id && s.primary == parsed.primary) {
            Some(shard) => shard.slots = shard.slots.union(&parsed.slots),
            None => shards.push(parsed),
        }
    }
    if shards.is_empty() {
        let side = link.endpoint().side;
        let at = link.address().to_string();
        return Err(Error::unfit(
            side,
            at,
            "read the cluster's slots",
            "no node of this cluster owns a slot",
        )
        .with_remedy("create the cluster first, or name a node that is part of it"));
    }
    Ok((Topology::new(true, shards), named))
}

/// Reads `[93->-ID]` and `[77-<-ID]` from a node's line about itself; only there are they shown.
fn marked_slots(nodes: &str, open: &mut SlotSet) {
    let own = own_line(nodes);
    for mark in own.into_iter().flat_map(|line| line.split(' ')).filter_map(|word| word.strip_prefix('[')) {
        if let Some(slot) = mark.split('-').next().and_then(|n| n.parse().ok()).and_then(Slot::new) {
            open.insert(slot);
        }
    }
}

/// What a node says of itself.
fn own_line(nodes: &str) -> Option<&str> {
    nodes.lines().find(|line| line.split(' ').nth(2).is_some_and(|flags| flags.contains("myself")))
}

fn parse_entry(entry: &Value, link: &Link) -> Option<(Shard, Naming)> {
    let [start, end, primary, replicas @ ..] = entry.as_items()? else { return None };
    let number = |v: &Value| u16::try_from(v.as_int()?).ok().and_then(Slot::new);
    let (primary, id, naming) = parse_node(primary, link)?;
    let slots = SlotSet::from_ranges([SlotRange::new(number(start)?, number(end)?)?]);
    let replicas = replicas.iter().filter_map(|r| parse_node(r, link)).map(|(address, ..)| address).collect();
    Some((Shard { id, primary, replicas, slots }, naming))
}

/// Where a node is, its id, and how it is named. The preferred name of its host comes first; the others are
/// reported besides, so that it shows which is which.
fn parse_node(node: &Value, link: &Link) -> Option<(Address, String, Naming)> {
    let items = node.as_items()?;
    let preferred = items.first()?.as_str();
    let port = u16::try_from(items.get(1)?.as_int()?).ok()?;
    let id = items.get(2).and_then(Value::as_str).unwrap_or_default();
    let other = |name| items.get(3)?.field(name)?.as_str();
    let (naming, ip, hostname) = match (preferred, other("ip")) {
        // A null host means: the one you are talking to.
        (None, ip) => (Naming::Unknown, ip.unwrap_or_default(), other("hostname")),
        (Some(name), Some(ip)) => (Naming::Hostname, ip, Some(name).filter(|name| *name != "?")),
        (Some(ip), None) => (Naming::Ip, ip, other("hostname")),
    };
    let announced = Address::Tcp(ip.to_owned(), port);
    let address = link.endpoint().reach_node(naming, &announced, hostname, link.address());
    Some((address, id.to_owned(), naming))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_reset_does_not_speak_for_the_cluster() {
        let at = |port: u16| Address::Tcp("127.0.0.1".into(), port);
        let of = |shards: &[(u16, &str)]| {
            let shard = |(port, slots): &(u16, &str)| Shard {
                id: port.to_string(),
                primary: at(*port),
                replicas: Vec::new(),
                slots: slots.parse().expect("ranges"),
            };
            Topology::new(true, shards.iter().map(shard).collect())
        };
        let known = of(&[(1, "0-5000"), (2, "5001-16383")]);
        assert!(known.is_left_by(&of(&[]), &at(3)), "reset, after it was drained");
        assert!(known.is_left_by(&of(&[(1, "0-2")]), &at(1)), "reset, with slots of its own");
        assert!(
            !known.is_left_by(&of(&[(2, "5001-16383")]), &at(1)),
            "its slots are lost, but it knows the others"
        );
        assert!(!known.is_left_by(&of(&[(3, "0-16383")]), &at(1)), "all slots went to a new node");
        assert!(!of(&[(1, "0-16383")]).is_left_by(&of(&[]), &at(1)), "there was nobody else");
    }

    #[test]
    fn open_slots_are_those_of_the_node_itself() {
        let nodes = "a1 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-99 [93->-b2] [5000-<-b2]\n\
                     b2 127.0.0.1:3@4 master - 0 0 2 connected 100-16383\n";
        let mut open = SlotSet::new();
        marked_slots(nodes, &mut open);
        assert_eq!(open.to_string(), "93,5000");
    }
}
