//! One node's view of its cluster.

use std::collections::HashSet;

use whimbrel_core::cluster::Role;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotRange, SlotSet};

use whimbrel_wire::value::Value;

use crate::endpoint::{Address, Endpoint};
use crate::error::{Error, Result, Side};
use crate::link::Link;

/// The flags of a node, in the eyes of the node that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeFlags {
    /// The node that was asked.
    pub myself: bool,
    /// A majority of the primaries found it unreachable.
    pub fail: bool,
    /// The node that was asked finds it unreachable.
    pub maybe_fail: bool,
    /// It is being introduced; its id is not its own yet.
    pub handshake: bool,
    /// Its address is not known.
    pub noaddr: bool,
    /// A replica that has not taken in its primary's data yet. Only [`ClusterView::ask_with_replicas`] finds
    /// out.
    pub loading: bool,
}

/// One node in one view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// Where to connect to, the address map applied. An empty host and port 0 if the address is not known:
    /// such a node is not [usable](Node::is_usable).
    pub address: Address,
    /// The address that it announces, before the address map: an IP address and a port. `None` if that is not
    /// known; an empty host if the asked node leaves it to the asking client.
    pub announced: Option<Address>,
    /// The port of its cluster bus; `None` if it is not reported.
    pub bus_port: Option<u16>,
    /// The host name that it announces besides its IP address.
    pub hostname: Option<String>,
    /// What it is.
    pub role: Role,
    /// The node that it follows, if it is a replica.
    pub primary: Option<NodeId>,
    /// The epoch of its claim to its slots; a replica shows its primary's.
    pub config_epoch: u64,
    /// Its flags.
    pub flags: NodeFlags,
    /// Whether the asked node has a link to it. Always true for the asked node itself.
    pub connected: bool,
    /// The slots it owns.
    pub slots: SlotSet,
    /// Open slots that it takes in, and from which node. Only known of the node that was asked.
    pub importing: Vec<(Slot, NodeId)>,
    /// Open slots that it gives away, and to which node. Only known of the node that was asked.
    pub migrating: Vec<(Slot, NodeId)>,
}

impl Node {
    /// True for a primary.
    pub fn is_primary(&self) -> bool {
        self.role == Role::Primary
    }

    /// Open slots, in either direction. Only known of the node that was asked.
    pub fn marked_slots(&self) -> SlotSet {
        self.importing.iter().chain(&self.migrating).map(|(slot, _)| *slot).collect()
    }

    /// Whether the asked node can reach it and knows its address: neither failing, nor being introduced.
    pub fn is_usable(&self) -> bool {
        let flags = self.flags;
        self.connected && !flags.fail && !flags.maybe_fail && !flags.handshake && !flags.noaddr
    }
}

/// A cluster in the eyes of one of its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// Every node that it knows, itself included, in the order of ids.
    pub nodes: Vec<Node>,
    /// The node that was asked.
    pub myself: NodeId,
    /// Which side it belongs to, for errors.
    side: Side,
    /// The node that was asked.
    pub(super) asked: Address,
}

impl ClusterView {
    /// Asks a node with `CLUSTER NODES`.
    ///
    /// # Errors
    /// As [`Link::call`]; `Unexpected` for a reply that has another form, or no line about the node itself.
    pub async fn ask(link: &mut Link) -> Result<ClusterView> {
        link.push(&[b"CLUSTER", b"NODES"]);
        link.flush().await?;
        ClusterView::read(link).await
    }

    /// As [`ClusterView::ask`], and finds out which replicas are loading: `CLUSTER NODES` does not show it,
    /// but `CLUSTER SLOTS` leaves them out. (`CLUSTER SHARDS`, which names their state, crashes some
    /// servers.)
    ///
    /// # Errors
    /// As [`ClusterView::ask`].
    pub async fn ask_with_replicas(link: &mut Link) -> Result<ClusterView> {
        link.push(&[b"CLUSTER", b"NODES"]);
        link.push(&[b"CLUSTER", b"SLOTS"]);
        link.flush().await?;
        let view = ClusterView::read(link).await;
        // Also after an error of the first, so that the link stays in step.
        let slots = link.reply().await?;
        let mut view = view?;
        if let Some(entries) = slots.as_items() {
            view.note_loading(entries);
        }
        Ok(view)
    }

    /// `entries` are those of `CLUSTER SLOTS`: a range, and its nodes as `[host, port, id, ...]`.
    fn note_loading(&mut self, entries: &[Value]) {
        let nodes = entries.iter().filter_map(|entry| entry.as_items()?.get(2..)).flatten();
        let listed: HashSet<&str> = nodes.filter_map(|node| node.as_items()?.get(2)?.as_str()).collect();
        if listed.is_empty() {
            // Of no node: names came with Redis 4.
            return;
        }
        for node in &mut self.nodes {
            // No node reports the replicas of a primary without slots.
            let is_listed = node.primary.as_ref().is_some_and(|primary| listed.contains(primary.as_str()));
            node.flags.loading = is_listed && node.is_usable() && !listed.contains(node.id.as_str());
        }
    }

    /// Reads the reply to a `CLUSTER NODES` that was sent before.
    ///
    /// # Errors
    /// As [`ClusterView::ask`].
    pub async fn read(link: &mut Link) -> Result<ClusterView> {
        let reply = link.reply().await?;
        let reply = link.check(reply, b"CLUSTER NODES")?;
        let Some(text) = reply.as_str() else {
            return Err(link.unexpected("CLUSTER NODES", &reply));
        };
        ClusterView::parse(text, link.endpoint(), link.address())
            .ok_or_else(|| link.unexpected("CLUSTER NODES", &reply))
    }

    /// Reads the text of a reply that `asked` gave; `None` if it has another form.
    pub fn parse(text: &str, endpoint: &Endpoint, asked: &Address) -> Option<ClusterView> {
        let mut nodes =
            text.lines().map(|line| parse_line(line, endpoint, asked)).collect::<Option<Vec<Node>>>()?;
        nodes.sort_by(|a, b| a.id.cmp(&b.id));
        let myself = nodes.iter().find(|n| n.flags.myself)?.id.clone();
        Some(ClusterView { nodes, myself, side: endpoint.side, asked: asked.clone() })
    }

    /// A node by its name.
    pub fn node(&self, id: &NodeId) -> Option<&Node> {
        self.nodes.binary_search_by(|n| n.id.cmp(id)).ok().map(|at| &self.nodes[at])
    }

    /// The node that was asked.
    pub fn me(&self) -> &Node {
        self.node(&self.myself).expect("a view is only made with a line about the node itself")
    }

    /// All primaries, failing ones and those without slots included; none that is still being introduced.
    pub fn primaries(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|n| n.is_primary() && !n.flags.handshake)
    }

    /// The replicas of a primary, failing ones included.
    pub fn replicas_of<'a>(&'a self, primary: &'a NodeId) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().filter(move |n| n.primary.as_ref() == Some(primary))
    }

    /// The owner of a slot in this view.
    pub fn primary_of(&self, slot: Slot) -> Option<&Node> {
        self.nodes.iter().find(|n| n.slots.contains(slot))
    }

    /// Finds the node that a person means: its whole id, a prefix of it that only one node has, or its
    /// address as `HOST:PORT`, as the cluster announces it or as it is reached.
    ///
    /// # Errors
    /// `Unfit` for a name that fits no node, or several; it lists the candidates.
    pub fn resolve(&self, text: &str) -> Result<&Node> {
        let fail = |what: String| Err(Error::unfit(self.side, self.asked.to_string(), "find the node", what));
        if let Ok(id) = text.parse::<NodeId>()
            && let Some(node) = self.node(&id)
        {
            return Ok(node);
        }
        if let Some(Address::Tcp(host, port)) = Address::parse_tcp(text) {
            let named = |n: &&Node| match &n.address {
                Address::Tcp(h, p) => {
                    let named = |name: &str| name.eq_ignore_ascii_case(&host);
                    *p == port && (named(h) || n.hostname.as_deref().is_some_and(named))
                }
                Address::Unix(_) | Address::Sentinel(_) | Address::Behind(_) => false,
            };
            let found: Vec<&Node> = self.nodes.iter().filter(named).collect();
            return match found[..] {
                [node] => Ok(node),
                [] => fail(format!("no node of the cluster is at {text}"))
                    .map_err(|e| e.with_remedy(self.candidates(&self.nodes))),
                _ => fail(format!("several nodes are at {text}: {}", list(&found))),
            };
        }
        let prefix = text.to_ascii_lowercase();
        let found: Vec<&Node> =
            self.nodes.iter().filter(|n| !prefix.is_empty() && n.id.as_str().starts_with(&prefix)).collect();
        match found[..] {
            [node] => Ok(node),
            [] => fail(format!("no node has an id that begins with \"{text}\""))
                .map_err(|e| e.with_remedy(self.candidates(&self.nodes))),
            _ => fail(format!("\"{text}\" may be any of {}", list(&found)))
                .map_err(|e| e.with_remedy("write more of its id, or its address")),
        }
    }

    fn candidates(&self, nodes: &[Node]) -> String {
        let primaries: Vec<&Node> = nodes.iter().filter(|n| n.is_primary()).collect();
        format!("the primaries are {}", list(&primaries))
    }
}

/// How many candidates an error lists.
const LISTED_MAX: usize = 12;

fn list(nodes: &[&Node]) -> String {
    let mut text: Vec<String> =
        nodes.iter().take(LISTED_MAX).map(|n| format!("{} ({})", n.id.short(), n.address)).collect();
    if nodes.len() > LISTED_MAX {
        text.push(format!("{} more", nodes.len() - LISTED_MAX));
    }
    text.join(", ")
}

/// `ID HOST:PORT@BUS[,HOSTNAME[,shard-id=…]] FLAGS PRIMARY|- PING PONG EPOCH LINK SLOTS…`
fn parse_line(line: &str, endpoint: &Endpoint, asked: &Address) -> Option<Node> {
    let mut words = line.split_ascii_whitespace();
    let id = words.next()?.parse().ok()?;
    let announced = words.next()?;
    let mut flags = NodeFlags::default();
    let mut role = None;
    for flag in words.next()?.split(',') {
        match flag {
            "myself" => flags.myself = true,
            "master" | "primary" => role = Some(Role::Primary),
            "slave" | "replica" => role = Some(Role::Replica),
            "fail" => flags.fail = true,
            "fail?" => flags.maybe_fail = true,
            "handshake" => flags.handshake = true,
            "noaddr" => flags.noaddr = true,
            _ => {}
        }
    }
    let primary = match words.next()? {
        "-" => None,
        id => Some(id.parse().ok()?),
    };
    // The times of the last ping and pong.
    let mut words = words.skip(2);
    let config_epoch = words.next()?.parse().ok()?;
    let connected = words.next()? == "connected" || flags.myself;
    let (address, bus_port, hostname) = parse_announced(announced, endpoint, asked)?;
    let mut node = Node {
        id,
        address,
        announced: Address::parse_tcp(announced),
        bus_port,
        hostname,
        // A node that is being introduced has no role yet.
        role: role.unwrap_or(Role::Primary),
        primary,
        config_epoch,
        flags,
        connected,
        slots: SlotSet::new(),
        importing: Vec::new(),
        migrating: Vec::new(),
    };
    for word in words {
        match word.strip_prefix('[') {
            Some(mark) => node.mark(mark.strip_suffix(']')?)?,
            None => node.slots.extend(word.parse::<SlotRange>().ok()?.slots()),
        }
    }
    Some(node)
}

impl Node {
    /// Reads `93->-ID` or `77-<-ID`.
    fn mark(&mut self, mark: &str) -> Option<()> {
        let (marks, (slot, other)) = match mark.split_once("->-") {
            Some(parts) => (&mut self.migrating, parts),
            None => (&mut self.importing, mark.split_once("-<-")?),
        };
        marks.push((slot.parse().ok()?, other.parse().ok()?));
        Some(())
    }
}

/// Where an announced node is reached, its bus port, and the host name that it announces.
fn parse_announced(
    text: &str,
    endpoint: &Endpoint,
    asked: &Address,
) -> Option<(Address, Option<u16>, Option<String>)> {
    let (place, hostname) = match text.split_once(',') {
        // After it there may be more, such as `shard-id=…`.
        Some((place, rest)) => (place, rest.split(',').next().filter(|h| !h.is_empty() && !h.contains('='))),
        None => (text, None),
    };
    let (place, bus_port) = match place.split_once('@') {
        Some((place, bus)) => (place, bus.parse().ok().filter(|p| *p > 0)),
        None => (place, None),
    };
    // `:0` of a node whose address is not known.
    let Some(announced) = Address::parse_tcp(place) else {
        place.rsplit_once(':')?;
        return Some((Address::Tcp(String::new(), 0), bus_port, hostname.map(str::to_owned)));
    };
    let address = endpoint.reach_node(endpoint.naming, &announced, hostname, asked);
    Some((address, bus_port, hostname.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "07c37dfeb235213a872192d90877d0cd55635b91";
    const B: &str = "07c3acfeb235213a872192d90877d0cd55635b92";
    const C: &str = "292f8b365bb7edb5e285caf0b7e6ddc7265d2f4f";
    const D: &str = "67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1";

    fn endpoint(map: &[(&str, &str)]) -> Endpoint {
        let mut endpoint = Endpoint::parse(Side::Source, "10.0.0.1:7000").expect("an address");
        let parse = |text| Address::parse_tcp(text).expect("an address");
        endpoint.address_map = map.iter().map(|(from, to)| (parse(from), parse(to))).collect();
        endpoint
    }

    fn view(text: &str) -> ClusterView {
        let endpoint = endpoint(&[]);
        ClusterView::parse(text, &endpoint, &endpoint.address).expect("a good reply")
    }

    fn id(text: &str) -> NodeId {
        text.parse().expect("an id")
    }

    fn sample() -> ClusterView {
        view(&format!(
            "{C} 10.0.0.2:7001@17001 master - 0 1426238316232 2 connected 5461-10922\n\
             {A} :7000@17000 myself,master - 0 0 4 connected 0-5460 7000 [5461-<-{C}] [93->-{C}]\n\
             {D} :0@0 slave,fail,noaddr {C} 1 2 2 disconnected\n\
             {B} ::1:7002@17002,host.example,shard-id=aa master,fail? - 0 0 0 connected\n"
        ))
    }

    #[test]
    fn a_reply_is_understood() {
        let view = sample();
        assert_eq!(view.myself, id(A));
        let me = view.me();
        assert_eq!(me.address, Address::Tcp("10.0.0.1".to_owned(), 7000), "its own host is that we asked");
        assert_eq!((me.bus_port, me.config_epoch, me.role), (Some(17000), 4, Role::Primary));
        assert_eq!(me.slots.to_string(), "0-5460,7000");
        assert_eq!(me.importing, [(Slot::new(5461).unwrap(), id(C))]);
        assert_eq!(me.migrating, [(Slot::new(93).unwrap(), id(C))]);
        assert!(me.is_usable());
        let six = view.node(&id(B)).expect("it is there");
        assert_eq!(
            (six.address.to_string().as_str(), six.hostname.as_deref()),
            ("[::1]:7002", Some("host.example"))
        );
        assert!(!six.is_usable());
        let lost = view.node(&id(D)).expect("it is there");
        assert_eq!((lost.role, lost.primary.clone(), lost.bus_port), (Role::Replica, Some(id(C)), None));
        assert!(lost.flags.fail && lost.flags.noaddr && !lost.is_usable());
        assert_eq!(view.replicas_of(&id(C)).count(), 1);
        assert_eq!(view.primaries().count(), 3);
        assert_eq!(view.primary_of(Slot::new(6000).unwrap()).map(|n| &n.id), Some(&id(C)));
        assert_eq!(view.primary_of(Slot::MAX), None);
    }

    #[test]
    fn what_is_no_such_reply_is_not_understood() {
        let endpoint = endpoint(&[]);
        for text in [
            "",
            "ERR no",
            &format!("{A} 10.0.0.1:7000@17000 master - 0 0 1 connected 0-16383"),
            &format!("{A} 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-16384"),
            &format!("{A} 10.0.0.1:7000@17000 myself,master - 0 0 1 connected [5->{B}]"),
            &format!("{A} 10.0.0.1:7000@17000 myself,master - 0 0 connected"),
            "short 10.0.0.1:7000@17000 myself,master - 0 0 1 connected",
        ] {
            assert_eq!(ClusterView::parse(text, &endpoint, &endpoint.address), None, "{text}");
        }
    }

    #[test]
    fn nodes_are_found_by_id_prefix_and_address() {
        let view = sample();
        for (text, found) in [
            (A, A),
            ("292", C),
            ("07C37", A),
            ("10.0.0.2:7001", C),
            ("[::1]:7002", B),
            ("HOST.example:7002", B),
        ] {
            assert_eq!(view.resolve(text).expect(text).id, id(found), "{text}");
        }
        let ambiguous = view.resolve("07c3").expect_err("two begin so").to_string();
        assert!(
            ambiguous.contains("07c37dfe (10.0.0.1:7000)") && ambiguous.contains("07c3acfe"),
            "{ambiguous}"
        );
        for unknown in ["ff", "", "10.0.0.9:7001", &A.replace('7', "8")] {
            let error = view.resolve(unknown).expect_err(unknown).to_string();
            assert!(error.contains("the primaries are") && error.contains("292f8b36"), "{error}");
        }
    }

    #[test]
    fn names_and_maps_decide_where_a_node_is_reached() {
        let text = format!("{A} 10.0.0.1:7000@17000,one.example myself,master - 0 0 1 connected 0-16383\n");
        let reached = |map: &[(&str, &str)], asked: &str| {
            let asked = Address::parse_tcp(asked).expect("an address");
            let view = ClusterView::parse(&text, &endpoint(map), &asked).expect("a good reply");
            view.me().address.to_string()
        };
        assert_eq!(reached(&[], "10.0.0.1:7000"), "10.0.0.1:7000");
        assert_eq!(reached(&[], "seed.example:7000"), "one.example:7000");
        let by_ip = [("10.0.0.1:7000", "127.0.0.1:9000")];
        assert_eq!(reached(&by_ip, "seed.example:7000"), "127.0.0.1:9000");
        let by_name = [("one.example:7000", "127.0.0.1:9001")];
        assert_eq!(reached(&by_name, "10.0.0.1:7000"), "127.0.0.1:9001");
    }
}
