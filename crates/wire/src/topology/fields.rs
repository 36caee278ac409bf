//! The fields of the replies, as servers have them.

use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotRange};
use whimbrel_core::topology::{Group, Health, Member, Naming, Shard, Table};

use crate::encode::Protocol;

/// The length of `:16383\r\n`.
const NUMBER_BYTES_MAX: usize = 8;

/// The line that begins an aggregate, a string, or a number.
pub(super) fn header(kind: u8, count: usize, out: &mut BytesMut) {
    out.put_u8(kind);
    out.put_slice(itoa::Buffer::new().format(count).as_bytes());
    out.put_slice(b"\r\n");
}

pub(super) fn header_bytes(kind: u8, count: usize) -> Bytes {
    let mut out = BytesMut::new();
    header(kind, count, &mut out);
    out.freeze()
}

pub(super) fn bulk(text: &[u8], out: &mut BytesMut) {
    header(b'$', text.len(), out);
    out.put_slice(text);
    out.put_slice(b"\r\n");
}

/// A pair of a map whose value is a string.
fn field(name: &str, value: &str, out: &mut BytesMut) {
    bulk(name.as_bytes(), out);
    bulk(value.as_bytes(), out);
}

/// Nothing, if a value is expected.
fn null(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Resp2 => b"$-1\r\n",
        Protocol::Resp3 => b"_\r\n",
    }
}

/// A map of `pairs`: in RESP2 an array of twice as many.
fn map(pairs: usize, protocol: Protocol, out: &mut BytesMut) {
    match protocol {
        Protocol::Resp2 => header(b'*', pairs * 2, out),
        Protocol::Resp3 => header(b'%', pairs, out),
    }
}

/// What comes before a text of `bytes` bytes: in RESP3 it is a verbatim string. After it comes a line break.
pub(super) fn text_head(bytes: usize, protocol: Protocol) -> Bytes {
    const FORMAT: &[u8] = b"txt:";
    let mut out = BytesMut::new();
    match protocol {
        Protocol::Resp2 => header(b'$', bytes, &mut out),
        Protocol::Resp3 => {
            header(b'=', bytes + FORMAT.len(), &mut out);
            out.put_slice(FORMAT);
        }
    }
    out.freeze()
}

/// Both ends of a range, as two numbers.
pub(super) fn numbers(range: SlotRange, out: &mut impl BufMut) {
    // One copy instead of six: large tables have tens of thousands of ranges.
    let mut both = [0; 2 * NUMBER_BYTES_MAX];
    let mut len = 0;
    for slot in [range.start(), range.end()] {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(slot.number()).as_bytes();
        both[len] = b':';
        both[len + 1..len + 1 + digits.len()].copy_from_slice(digits);
        len += digits.len() + 1;
        both[len..len + 2].copy_from_slice(b"\r\n");
        len += 2;
    }
    out.put_slice(&both[..len]);
}

/// The slots of a shard in `CLUSTER SHARDS`, the same in both protocols.
pub(super) fn shard_slots(shard: &Shard) -> Bytes {
    let mut out = Vec::with_capacity(32 + shard.ranges().len() * 2 * NUMBER_BYTES_MAX);
    out.extend(header_bytes(b'*', shard.ranges().len() * 2));
    for range in shard.ranges() {
        numbers(*range, &mut out);
    }
    out.into()
}

/// The replicas that `CLUSTER SLOTS` names: those that have not failed, and have their data.
pub(super) fn named_replicas(group: &Group) -> impl Iterator<Item = &Member> {
    group.replicas.iter().filter(|member| !matches!(member.health, Health::Failed | Health::Loading))
}

/// The nodes of an entry of `CLUSTER SLOTS`: where to connect to, the name, and the other ways to name the
/// host.
pub(super) fn slot_nodes(group: &Group, protocol: Protocol) -> Bytes {
    let mut out = BytesMut::new();
    for member in std::iter::once(&group.primary).chain(named_replicas(group)) {
        header(b'*', 4, &mut out);
        match member.endpoint() {
            Some(host) => bulk(host.as_bytes(), &mut out),
            None => out.put_slice(null(protocol)),
        }
        header(b':', member.client_port().into(), &mut out);
        bulk(member.id.as_str().as_bytes(), &mut out);
        let ip = (member.naming != Naming::Ip).then_some(("ip", &member.ip));
        let hostname = member.hostname.as_ref().filter(|_| member.naming != Naming::Hostname);
        let others = [ip, hostname.map(|name| ("hostname", name))];
        map(others.iter().flatten().count(), protocol, &mut out);
        for (name, value) in others.into_iter().flatten() {
            field(name, value, &mut out);
        }
    }
    out.freeze()
}

/// The nodes of an entry of `CLUSTER SHARDS`.
pub(super) fn shard_nodes(group: &Group, protocol: Protocol) -> Bytes {
    let mut out = BytesMut::new();
    header(b'*', group.members().count(), &mut out);
    for (place, member) in group.members().enumerate() {
        let ports = [("port", member.port), ("tls-port", member.tls_port)];
        let ports = ports.into_iter().filter_map(|(name, port)| Some((name, port?)));
        // Besides ports and host name: id, ip, endpoint, role, replication-offset, health.
        map(6 + ports.clone().count() + usize::from(member.hostname.is_some()), protocol, &mut out);
        field("id", member.id.as_str(), &mut out);
        for (name, port) in ports {
            bulk(name.as_bytes(), &mut out);
            header(b':', port.into(), &mut out);
        }
        field("ip", &member.ip, &mut out);
        field("endpoint", member.endpoint().unwrap_or_default(), &mut out);
        if let Some(name) = &member.hostname {
            field("hostname", name, &mut out);
        }
        field("role", if place == 0 { "master" } else { "replica" }, &mut out);
        bulk(b"replication-offset", &mut out);
        // Only the nodes themselves know it, and it changes with every write.
        header(b':', 0, &mut out);
        let health = match member.health {
            Health::Failed => "fail",
            Health::Loading => "loading",
            Health::Online | Health::Suspected => "online",
        };
        field("health", health, &mut out);
    }
    out.freeze()
}

/// An entry of `CLUSTER SHARDS`.
pub(super) fn shard(slots: &Bytes, nodes: &Bytes, protocol: Protocol, out: &mut BytesMut) {
    map(2, protocol, out);
    bulk(b"slots", out);
    out.put_slice(slots);
    bulk(b"nodes", out);
    out.put_slice(nodes);
}

/// The lines of `CLUSTER NODES` about one shard.
pub(super) fn lines(shard: &Shard, myself: &NodeId) -> Bytes {
    let mut out = Vec::with_capacity(256 + shard.ranges().len() * " 16383-16383".len());
    let primary = &shard.group().primary;
    for member in shard.group().members() {
        let is_primary = member.id == primary.id;
        let bus = member.bus_port.unwrap_or(0);
        let mut line = format!("{} {}:{}@{bus}", member.id, member.ip, member.client_port());
        if let Some(name) = &member.hostname {
            line.extend([",", name]);
        }
        line.push(' ');
        if member.id == *myself {
            line.push_str("myself,");
        }
        line.push_str(if is_primary { "master" } else { "slave" });
        line.push_str(match member.health {
            Health::Online | Health::Loading => "",
            Health::Suspected => ",fail?",
            Health::Failed => ",fail",
        });
        let followed = if is_primary { "-" } else { primary.id.as_str() };
        let link = if member.is_connected { "connected" } else { "disconnected" };
        // Pings and pongs are the affair of nodes: none are sent here, none are waited for.
        let _ = write!(line, " {followed} 0 0 {} {link}", member.config_epoch);
        out.extend_from_slice(line.as_bytes());
        for range in shard.ranges().iter().filter(|_| is_primary) {
            let mut digits = itoa::Buffer::new();
            out.push(b' ');
            out.extend_from_slice(digits.format(range.start().number()).as_bytes());
            if range.count() > 1 {
                out.push(b'-');
                out.extend_from_slice(digits.format(range.end().number()).as_bytes());
            }
        }
        out.push(b'\n');
    }
    out.into()
}

/// `CLUSTER INFO`. The state is that of servers with `cluster-require-full-coverage yes`, their default.
pub(super) fn info(table: &Table) -> String {
    let slots_of = |health: Health| -> usize {
        let sick = table.shards().iter().filter(|shard| shard.group().primary.health == health);
        sick.flat_map(Shard::ranges).map(|range| range.count()).sum()
    };
    let (suspected, failed) = (slots_of(Health::Suspected), slots_of(Health::Failed));
    let is_covered = table.assigned() == usize::from(Slot::COUNT) && failed == 0;
    let members = || table.shards().iter().flat_map(|shard| shard.group().members());
    let my_epoch = members().find(|member| member.id == *table.myself()).map_or(0, |m| m.config_epoch);
    let nodes_of = |health: Health| members().filter(|member| member.health == health).count() as u64;
    let voters = || table.shards().iter().filter(|shard| !shard.ranges().is_empty());
    let voters_of =
        |health: Health| voters().filter(|shard| shard.group().primary.health == health).count() as u64;
    // Those of the oldest and the newest servers: clients skip what they do not know.
    let values: [(&str, u64); 15] = [
        ("cluster_slots_assigned", table.assigned() as u64),
        ("cluster_slots_ok", (table.assigned() - suspected - failed) as u64),
        ("cluster_slots_pfail", suspected as u64),
        ("cluster_slots_fail", failed as u64),
        ("cluster_nodes_pfail", nodes_of(Health::Suspected)),
        ("cluster_nodes_fail", nodes_of(Health::Failed)),
        ("cluster_voting_nodes_pfail", voters_of(Health::Suspected)),
        ("cluster_voting_nodes_fail", voters_of(Health::Failed)),
        ("cluster_known_nodes", members().count() as u64),
        ("cluster_size", voters().count() as u64),
        ("cluster_current_epoch", members().map(|member| member.config_epoch).max().unwrap_or(0)),
        ("cluster_my_epoch", my_epoch),
        ("cluster_stats_messages_sent", 0),
        ("cluster_stats_messages_received", 0),
        ("total_cluster_links_buffer_limit_exceeded", 0),
    ];
    let mut text = format!("cluster_state:{}\r\n", if is_covered { "ok" } else { "fail" });
    for (name, value) in values {
        let _ = write!(text, "{name}:{value}\r\n");
    }
    text
}
