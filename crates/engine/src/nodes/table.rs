//! One node's view as a slot table, in the words that clients get.

use std::collections::HashMap;

use whimbrel_core::node::NodeId;
use whimbrel_core::slot::Slot;
use whimbrel_core::topology::{Group, Health, Member, Table};

use super::view::{ClusterView, Node};
use crate::endpoint::{Address, Endpoint};

impl ClusterView {
    /// The slot table. It leaves out nodes that are being introduced, nodes whose address is not known, with
    /// the slots that they claim, and replicas of either.
    ///
    /// Nodes are named as they announce themselves: the address map is the way that we take, clients may have
    /// another. They are named by what the cluster prefers. A port that was reported over TLS is a port for
    /// TLS.
    pub fn table(&self, endpoint: &Endpoint) -> Table {
        let listed: Vec<&Node> = self.nodes.iter().filter(|node| is_listed(node)).collect();
        let mut groups = Vec::new();
        let mut places: HashMap<&NodeId, usize> = HashMap::new();
        for primary in listed.iter().filter(|node| node.is_primary()) {
            places.insert(&primary.id, groups.len());
            groups.push(Group { primary: self.member(primary, endpoint), replicas: Vec::new() });
        }
        for replica in listed.iter().filter(|node| !node.is_primary()) {
            if let Some(place) = replica.primary.as_ref().and_then(|id| places.get(id)) {
                groups[*place].replicas.push(self.member(replica, endpoint));
            }
        }
        let mut owners = vec![None; usize::from(Slot::COUNT)];
        for node in listed {
            let Some(place) = places.get(&node.id) else { continue };
            for slot in &node.slots {
                owners[usize::from(slot.number())] = Some(*place);
            }
        }
        Table::new(self.myself.clone(), groups, |slot| owners[usize::from(slot.number())])
    }

    fn member(&self, node: &Node, endpoint: &Endpoint) -> Member {
        let (host, port) = match &node.announced {
            Some(Address::Tcp(host, port)) => (host.as_str(), Some(*port)),
            _ => ("", None),
        };
        // A client of ours would take an empty host for ours.
        let ip = if host.is_empty() { self.asked.host().unwrap_or("127.0.0.1") } else { host };
        let (port, tls_port) = if endpoint.tls.is_some() { (None, port) } else { (port, None) };
        let is_failed = node.flags.fail;
        Member {
            id: node.id.clone(),
            ip: ip.to_owned(),
            hostname: node.hostname.clone(),
            naming: endpoint.naming,
            port,
            tls_port,
            bus_port: node.bus_port,
            config_epoch: node.config_epoch,
            health: match node.flags.maybe_fail {
                _ if is_failed => Health::Failed,
                true => Health::Suspected,
                false if node.flags.loading => Health::Loading,
                false => Health::Online,
            },
            is_connected: node.connected,
        }
    }
}

fn is_listed(node: &Node) -> bool {
    node.announced.is_some() && !node.flags.handshake && !node.flags.noaddr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Side;
    use whimbrel_core::slot::SlotRange;
    use whimbrel_core::topology::Naming;

    fn id(digit: char) -> String {
        std::iter::repeat_n(digit, NodeId::LENGTH).collect()
    }

    fn table(text: &str, asked: &str) -> Table {
        table_of(text, asked, Naming::Ip)
    }

    fn table_of(text: &str, asked: &str, naming: Naming) -> Table {
        let mut endpoint = Endpoint::parse(Side::Source, asked).expect("an address");
        endpoint.naming = naming;
        let parse = |text| Address::parse_tcp(text).expect("an address");
        endpoint.address_map = vec![(parse("10.0.0.2:7001"), parse("127.0.0.1:9001"))];
        let view = ClusterView::parse(text, &endpoint, &endpoint.address).expect("a good reply");
        view.table(&endpoint)
    }

    #[test]
    fn a_table_names_nodes_as_they_announce_themselves() {
        let (a, b, c, d, e) = (id('a'), id('b'), id('c'), id('d'), id('e'));
        let text = format!(
            "{b} 10.0.0.2:7001@17001,b.example master,fail - 0 0 2 connected 5461-16383\n\
             {a} :7000@17000 myself,master - 0 0 4 connected 0-5000 7000\n\
             {c} 10.0.0.3:7002@17002 slave,fail? {a} 0 0 4 disconnected\n\
             {d} :0@0 master,noaddr - 0 0 1 disconnected 5001-5460\n\
             {e} 10.0.0.5:7004@17004 handshake - 0 0 0 disconnected\n"
        );
        let built = table(&text, "10.0.0.1:7000");
        let [first, second] = built.shards() else { panic!("{built:?}") };
        let (mine, failed) = (&first.group().primary, &second.group().primary);
        assert_eq!((mine.ip.as_str(), mine.port, mine.tls_port), ("10.0.0.1", Some(7000), None));
        assert_eq!((failed.endpoint(), failed.client_port()), (Some("10.0.0.2"), 7001));
        assert_eq!((failed.health, failed.config_epoch), (Health::Failed, 2));
        let replica = &first.group().replicas[0];
        assert_eq!(
            (replica.id.to_string(), replica.health, replica.is_connected),
            (c, Health::Suspected, false)
        );
        // Slot 7000 is claimed by two: the last word is that of the line that comes last in the order of ids.
        let ranges: Vec<String> =
            built.ranges_from(SlotRange::FULL).map(|(range, owner)| format!("{range}:{owner}")).collect();
        assert_eq!(ranges, ["0-5000:0", "5461-16383:1"]);
    }

    #[test]
    fn a_table_names_hosts_as_the_cluster_prefers_and_ports_for_tls() {
        let text =
            format!("{} 10.0.0.2:7001@17001,b.example myself,master - 0 0 2 connected 0-16383\n", id('b'));
        for (naming, named) in
            [(Naming::Ip, Some("10.0.0.2")), (Naming::Hostname, Some("b.example")), (Naming::Unknown, None)]
        {
            let built = table_of(&text, "rediss://b.example:7001", naming);
            let member = &built.shards()[0].group().primary;
            assert_eq!((member.endpoint(), member.ip.as_str()), (named, "10.0.0.2"));
            assert_eq!((member.port, member.tls_port), (None, Some(7001)));
        }
    }
}
