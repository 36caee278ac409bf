//! What clients get to know of the cluster: `CLUSTER SLOTS`, `SHARDS`, `NODES`, `INFO` and `MYID`, kept
//! built.
//!
//! It learns from two things: what a node of the cluster says, now and then, and of slots that were handed
//! over by jobs of ours, at once. The node that is asked may hear of a handover later than we do, so ours
//! stands until that node has said the same, or for 10 s: then something else has happened since, and the
//! cluster is right.
//!
//! If primaries have ports of ours, clients that ask there are shown these ports instead.

mod announced;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_core::topology::{Health, Table};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::topology::{Replies, Reply};

use self::announced::Announced;

/// How long a handover of ours stands against what a node says.
const NEWS_TIMEOUT: Duration = Duration::from_secs(10);

/// A slot table with its replies, for many to ask.
#[derive(Debug)]
pub struct Topology {
    state: Mutex<State>,
    /// Notified when the set of shards is another.
    regrouped: Notify,
}

#[derive(Debug)]
struct State {
    table: Table,
    replies: Replies,
    /// Slots that were handed over; the node that is asked may not have heard of it.
    news: BTreeMap<Slot, News>,
    announced: Announced,
}

#[derive(Debug)]
struct News {
    owner: Arc<NodeId>,
    until: Instant,
}

/// The address of a slot's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its name.
    pub id: NodeId,
    /// The host that clients are sent to; empty if that is the host that they have asked.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Topology {
    /// Builds the replies about a table.
    pub fn new(table: Table) -> Topology {
        let replies = Replies::new(&table);
        let (news, announced) = Default::default();
        Topology { state: Mutex::new(State { table, replies, news, announced }), regrouped: Notify::new() }
    }

    /// Takes in what a node says. Only what is different is built again.
    pub fn see(&self, mut table: Table) {
        let mut state = self.lock();
        let now = Instant::now();
        let mut changes: BTreeMap<usize, SlotSet> = BTreeMap::new();
        state.news.retain(|slot, news| {
            // A node that is no primary any more owns nothing.
            let Some(owner) = table.shard_of_primary(&news.owner) else { return false };
            let stands = table.owner(*slot) != Some(owner) && now < news.until;
            if stands {
                changes.entry(owner).or_default().insert(*slot);
            }
            stands
        });
        for (owner, slots) in changes {
            table.assign(&slots, Some(owner));
        }
        let State { table: known, replies, announced, .. } = &mut *state;
        let change = known.adopt(table);
        replies.update(known, &change);
        if !change.is_empty() {
            announced.adopt(known);
        }
        if change.is_whole {
            self.regrouped.notify_one();
        }
    }

    /// Takes in that slots have a new owner, which it has acknowledged.
    pub fn hand_over(&self, slots: &SlotSet, owner: &NodeId) {
        let mut state = self.lock();
        let State { table, replies, news, announced } = &mut *state;
        let Some(index) = table.shard_of_primary(owner) else { return };
        let change = table.assign(slots, Some(index));
        replies.update(table, &change);
        announced.assign(slots, Some(index));
        let (owner, until) = (Arc::new(owner.clone()), Instant::now() + NEWS_TIMEOUT);
        news.extend(slots.iter().map(|slot| (slot, News { owner: owner.clone(), until })));
    }

    /// The reply to `CLUSTER` and this subcommand in upper case; `None` for another one.
    pub fn reply(&self, subcommand: &[u8], protocol: Protocol) -> Option<Reply> {
        let replies = &self.lock().replies;
        match subcommand {
            b"SLOTS" => Some(replies.slots(protocol)),
            b"SHARDS" => Some(replies.shards(protocol)),
            b"NODES" => Some(replies.nodes(protocol)),
            b"INFO" => Some(replies.info(protocol)),
            b"MYID" => Some(replies.my_id()),
            _ => None,
        }
    }

    /// As [`Topology::reply`], of `SLOTS`, `SHARDS` and `NODES`, at the port of a node, for a client that has
    /// reached us by `ip`.
    pub fn reply_at(
        &self,
        node: &NodeId,
        ip: IpAddr,
        subcommand: &[u8],
        protocol: Protocol,
    ) -> Option<Reply> {
        let State { table, announced, .. } = &mut *self.lock();
        announced.reply(table, ip, node, subcommand, protocol)
    }

    /// The primaries, failing ones and those without slots included.
    pub fn primaries(&self) -> BTreeSet<NodeId> {
        self.lock().table.shards().iter().map(|shard| shard.group().primary.id.clone()).collect()
    }

    /// Waits until the primaries may be others. For one waiter.
    pub async fn regrouped(&self) {
        self.regrouped.notified().await;
    }

    /// From now on these nodes are shown at these ports of ours.
    pub fn set_ports(&self, ports: BTreeMap<NodeId, u16>) {
        self.lock().announced.set_ports(ports);
    }

    /// Which nodes are shown at which ports of ours.
    pub fn ports(&self) -> BTreeMap<NodeId, u16> {
        self.lock().announced.ports().clone()
    }

    /// The primaries that own slots and that the last asked node cannot reach, by address; and whether a
    /// majority of the primaries finds so.
    pub fn unreachable(&self) -> Vec<(String, bool)> {
        let state = self.lock();
        let lost = state.table.shards().iter().filter(|shard| !shard.ranges().is_empty());
        let lost = lost.map(|shard| &shard.group().primary).filter_map(|primary| {
            let is_agreed = match primary.health {
                Health::Suspected => false,
                Health::Failed => true,
                Health::Online | Health::Loading => return None,
            };
            Some((format!("{}:{}", primary.ip, primary.client_port()), is_agreed))
        });
        lost.collect()
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: Slot) -> Option<Owner> {
        let state = self.lock();
        let primary = &state.table.shards()[state.table.owner(slot)?].group().primary;
        let (id, host) = (primary.id.clone(), primary.endpoint().unwrap_or_default().to_owned());
        Some(Owner { id, host, port: primary.client_port() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_engine::endpoint::Endpoint;
    use whimbrel_engine::error::Side;
    use whimbrel_engine::nodes::ClusterView;

    use super::*;

    fn id(digit: &str) -> NodeId {
        digit.repeat(NodeId::LENGTH).parse().expect("an id")
    }

    /// What a node says: slots of node 1 and of node 2.
    fn reported(first: &str, second: &str) -> Table {
        let endpoint = Endpoint::parse(Side::Source, "127.0.0.1:7001").expect("an address");
        let text = format!(
            "{} 127.0.0.1:7001@1 myself,master - 0 0 1 connected {first}\n\
             {} 127.0.0.1:7002@1 master - 0 0 2 connected {second}\n",
            id("1"),
            id("2")
        );
        let view = ClusterView::parse(&text, &endpoint, &endpoint.address).expect("a view");
        view.table(&endpoint)
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).expect("a slot")
    }

    fn owner(topology: &Topology, number: u16) -> NodeId {
        topology.owner(slot(number)).expect("an owner").id
    }

    #[test]
    fn a_handover_of_ours_stands_until_it_is_heard_of() {
        let topology = Topology::new(reported("0-99", "100-16383"));
        let built =
            |topology: &Topology| topology.reply(b"SLOTS", Protocol::Resp2).expect("built").to_bytes();
        topology.hand_over(&"7-9".parse().expect("slots"), &id("2"));
        assert_eq!((owner(&topology, 6), owner(&topology, 7)), (id("1"), id("2")));
        // The node that is asked lags behind.
        topology.see(reported("0-99", "100-16383"));
        assert_eq!(owner(&topology, 7), id("2"));
        assert_eq!(
            built(&topology),
            Replies::new(&reported("0-6 10-99", "7-9 100-16383")).slots(Protocol::Resp2).to_bytes()
        );
        // It has heard of it, and then the slots are moved back.
        topology.see(reported("0-6 10-99", "7-9 100-16383"));
        topology.see(reported("0-99", "100-16383"));
        assert_eq!(owner(&topology, 7), id("1"));
    }

    #[test]
    fn a_later_handover_takes_the_place_of_an_earlier_one() {
        let topology = Topology::new(reported("0-99", "100-16383"));
        topology.hand_over(&"7-9".parse().expect("slots"), &id("2"));
        topology.hand_over(&"8".parse().expect("slots"), &id("1"));
        topology.see(reported("0-99", "100-16383"));
        assert_eq!([7, 8, 9].map(|number| owner(&topology, number)), [id("2"), id("1"), id("2")]);
        // To a node that is not there, nothing.
        topology.hand_over(&"50".parse().expect("slots"), &id("3"));
        assert_eq!(owner(&topology, 50), id("1"));
    }

    #[test]
    fn a_handover_does_not_stand_for_ever() {
        let topology = Topology::new(reported("0-99", "100-16383"));
        topology.hand_over(&"7".parse().expect("slots"), &id("2"));
        for news in topology.lock().news.values_mut() {
            news.until = Instant::now();
        }
        topology.see(reported("0-99", "100-16383"));
        assert_eq!(owner(&topology, 7), id("1"));
    }
}
