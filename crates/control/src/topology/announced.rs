//! The cluster as it is shown where each primary has a port of ours: primaries are at that port, on the
//! address that the client has reached us by. Replicas are where they are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use whimbrel_core::node::NodeId;
use whimbrel_core::slot::SlotSet;
use whimbrel_core::topology::{Change, Member, Naming, Table};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::topology::{Replies, Reply};

/// Addresses of ours that replies are kept for. All of a machine's loopback network reaches us, so there may
/// be more than clients need.
const ADDRESSES_MAX: usize = 8;

/// What is shown on the ports of nodes.
#[derive(Debug, Default)]
pub(super) struct Announced {
    ports: BTreeMap<NodeId, u16>,
    /// For each address of ours that a client has come by.
    shown: BTreeMap<IpAddr, Shown>,
}

#[derive(Debug)]
struct Shown {
    table: Table,
    replies: Replies,
}

impl Announced {
    pub(super) fn ports(&self) -> &BTreeMap<NodeId, u16> {
        &self.ports
    }

    pub(super) fn set_ports(&mut self, ports: BTreeMap<NodeId, u16>) {
        self.ports = ports;
        self.shown.clear();
    }

    /// The cluster is as `table` says now.
    pub(super) fn adopt(&mut self, table: &Table) {
        let Announced { ports, shown } = self;
        for (ip, Shown { table: known, replies }) in shown {
            let change = known.adopt(seen_from(*ip, ports, table));
            replies.update(known, &change);
        }
    }

    /// Slots have another owner, by its place in the table.
    pub(super) fn assign(&mut self, slots: &SlotSet, owner: Option<usize>) {
        for Shown { table, replies } in self.shown.values_mut() {
            let change: Change = table.assign(slots, owner);
            replies.update(table, &change);
        }
    }

    /// The reply to `CLUSTER` and this subcommand at the port of a node, for a client that has reached us by
    /// `ip`.
    pub(super) fn reply(
        &mut self,
        table: &Table,
        ip: IpAddr,
        node: &NodeId,
        subcommand: &[u8],
        protocol: Protocol,
    ) -> Option<Reply> {
        if !matches!(subcommand, b"SLOTS" | b"SHARDS" | b"NODES") {
            return None;
        }
        if self.shown.len() >= ADDRESSES_MAX && !self.shown.contains_key(&ip) {
            self.shown.clear();
        }
        let Shown { table, replies } = self.shown.entry(ip).or_insert_with(|| {
            let table = seen_from(ip, &self.ports, table);
            Shown { replies: Replies::new(&table), table }
        });
        Some(match subcommand {
            b"SLOTS" => replies.slots(protocol),
            b"SHARDS" => replies.shards(protocol),
            _ => replies.nodes_of(table, node, protocol),
        })
    }
}

fn seen_from(ip: IpAddr, ports: &BTreeMap<NodeId, u16>, table: &Table) -> Table {
    table.with_primaries(|member: &mut Member| {
        let Some(port) = ports.get(&member.id) else { return };
        (member.ip, member.hostname, member.naming) = (ip.to_string(), None, Naming::Ip);
        (member.port, member.tls_port) = (Some(*port), None);
    })
}
