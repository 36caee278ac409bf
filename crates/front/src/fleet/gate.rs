//! What a front knows of the fleet that it is a member of, and what follows for a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use whimbrel_core::fleet::{MemberId, Partition};
use whimbrel_core::node::NodeId;
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_core::topology::{Group, Health, Member, Naming, Table};
use whimbrel_engine::deployment::{Shard, Topology};
use whimbrel_engine::endpoint::Address;
use whimbrel_engine::error::Error;
use whimbrel_engine::link::Link;
use whimbrel_fleet::{Standing, View};

use super::carrier::is_fence;
use crate::face::Face;
use crate::upstream::admission::{Admission, Verdict, Waits};
use crate::upstream::cluster::Cluster;

/// A fleet has at most this many partitions if fronts are to join it: no slot is in two of them.
pub(crate) const PARTITIONS_MAX: u32 = Slot::COUNT as u32;

/// While the table changes all the time, what clients are shown is not made again more often.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);

/// How often to check whether there is a lease again.
const LEASE_POLL: Duration = Duration::from_millis(50);

/// A member that has left goes on redirecting clients until none has asked for this long.
const LINGER: Duration = Duration::from_secs(2);

/// And no longer than this.
const LINGER_MAX: Duration = Duration::from_secs(10);

/// This many connections may wait to be let go of.
const LET_GO_MAX: usize = 1 << 10;

/// While partitions are sealed all the time, connections on which something waits do not hear of it more
/// often.
const SEAL_PAUSE: Duration = Duration::from_millis(20);

/// The first digits of the names of members, "whimbrel"; the last ones are the member's number.
const NAME: &str = "7768696d6272656c0000000000000000";

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    view: View,
    /// The address at which clients reach this front.
    own: Address,
    /// What clients get to know of the fleet.
    face: Arc<Face>,
    /// How many times clients were redirected.
    redirections: AtomicU64,
    /// Cancelled, and replaced, when the lease has ended.
    lapse: Mutex<CancellationToken>,
    /// Counts how often others have come or gone.
    news: watch::Sender<u64>,
    /// Requests that wait for something to happen.
    waits: Arc<Waits>,
    /// Counts how often something may have to be let go.
    seals_seen: watch::Sender<u64>,
    /// Connections on which something that waits is to be let go, by the ids that their servers gave them.
    let_go: mpsc::Sender<(Address, i64)>,
    letting_go: Mutex<Option<mpsc::Receiver<(Address, i64)>>>,
}

impl Gate {
    pub(crate) fn new(view: View, own: Address, face: Arc<Face>) -> Arc<Gate> {
        let (let_go, letting_go) = mpsc::channel(LET_GO_MAX);
        Arc::new(Gate {
            view,
            own,
            face,
            redirections: AtomicU64::new(0),
            lapse: Mutex::default(),
            news: watch::Sender::new(0),
            waits: Arc::default(),
            seals_seen: watch::Sender::new(0),
            let_go,
            letting_go: Mutex::new(Some(letting_go)),
        })
    }

    /// What is known of the fleet.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The version of the row of a slot's partition, and the number of its backend.
    pub(crate) fn place_of(&self, slot: Slot) -> Option<(u64, u32)> {
        self.view.place(self.partition_of(slot))
    }

    /// The slots of a partition.
    pub(crate) fn slots_of(&self, partition: Partition) -> Vec<Slot> {
        let partitions = self.view.partitions();
        Slot::all().filter(|slot| partition_of(*slot, partitions) == partition).collect()
    }

    /// Waits until no request waits any more that keeps no slot.
    pub(crate) async fn none_unpinned(&self) {
        while self.waits.count_unpinned() > 0 {
            self.notify_seals();
            sleep(FOLLOW_PAUSE).await;
        }
    }

    /// From now on requests that wait for something to happen keep their slots. Earlier ones are to be ended.
    pub(crate) fn pin_waits(&self) {
        if self.waits.pin() {
            self.notify_seals();
        }
    }

    fn notify_seals(&self) {
        self.seals_seen.send_modify(|count| *count += 1);
    }

    /// Lets go of what is asked for, and passes on that partitions are sealed, for ever.
    pub(crate) async fn let_go_of_all(&self, cluster: &Cluster<Gate>) {
        let taken = self.letting_go.lock().take();
        let mut seals = self.view.seals();
        let passes_on = async {
            while seals.changed().await.is_ok() {
                self.notify_seals();
                sleep(SEAL_PAUSE).await;
            }
            std::future::pending::<()>().await
        };
        let lets_go = async {
            let mut links: HashMap<Address, Link> = HashMap::new();
            let Some(mut asked) = taken else { return std::future::pending().await };
            while let Some((address, id)) = asked.recv().await {
                let link = match links.remove(&address) {
                    Some(link) => Ok(link),
                    None => cluster.open_at(&address).await,
                };
                let outcome = async {
                    let mut link = link?;
                    link.call(&[b"CLIENT", b"UNBLOCK", id.to_string().as_bytes(), b"ERROR"]).await?;
                    Ok::<_, Error>(link)
                };
                match outcome.await {
                    Ok(link) => drop(links.insert(address, link)),
                    Err(error) => tracing::warn!(%error, "a request that waits cannot be cancelled"),
                }
            }
        };
        tokio::join!(passes_on, lets_go);
    }

    fn is_own(&self, announced: &str) -> bool {
        Address::parse_tcp(announced).as_ref() == Some(&self.own)
    }

    fn partition_of(&self, slot: Slot) -> Partition {
        partition_of(slot, self.view.partitions())
    }

    /// What clients are shown.
    fn table(&self) -> Option<Table> {
        let member = self.view.member()?;
        let mut all = self.view.addresses();
        // The coordinator may not have heard of it yet.
        all.retain(|(other, address)| *other != member && !address.is_empty());
        all.push((member, self.own.to_string().into()));
        all.sort();
        let (members, groups) = groups(&all, self.face.is_tls());
        let (owners, mut place_of) = (self.view.owners(), places(members));
        let owner_of = |slot| owner_of(&owners, slot).and_then(&mut place_of);
        Some(Table::new(name_of(member).parse().ok()?, groups, owner_of))
    }

    /// Takes in what becomes known of the table and of addresses, for ever. `members` are the same, as a
    /// cluster.
    pub(crate) async fn follow(&self, members: Option<&Cluster<Gate>>) {
        let mut seen = self.view.watch();
        let mut present = Vec::new();
        loop {
            seen.mark_unchanged();
            if let Some(table) = self.table() {
                self.face.publish(table);
            }
            if let Some(members) = members {
                members.adopt(&self.topology());
            }
            if self.view.backends().len() > 1 {
                self.pin_waits();
            }
            let now = self.view.addresses();
            if now != present {
                present = now;
                self.news.send_modify(|count| *count += 1);
            }
            sleep(FOLLOW_PAUSE).await;
            if seen.changed().await.is_err() {
                // The membership has ended: there is nothing more to hear.
                return std::future::pending().await;
            }
        }
    }

    /// Waits until hardly any client asks for what has gone elsewhere: a client that finds no front here any
    /// more gets an error instead of a redirection.
    pub(crate) async fn linger(&self) {
        let until = Instant::now() + LINGER_MAX;
        let mut seen = self.redirections.load(Ordering::Relaxed);
        while Instant::now() < until {
            sleep(LINGER).await;
            let now = self.redirections.load(Ordering::Relaxed);
            if now == std::mem::replace(&mut seen, now) {
                return;
            }
        }
    }

    /// Reports each end of the lease, for ever.
    pub(crate) async fn watch_lease(&self) {
        loop {
            let life = self.view.member();
            let left = self.view.lease_left();
            if left.is_zero() || life.is_none() {
                sleep(LEASE_POLL).await;
                continue;
            }
            sleep(left.min(LEASE_POLL)).await;
            if self.view.lease_left().is_zero() || self.view.member() != life {
                let mut lapse = self.lapse.lock();
                std::mem::take(&mut *lapse).cancel();
            }
        }
    }
}

impl Admission for Gate {
    fn verdict(&self, slot: Slot) -> Verdict {
        match self.view.standing(self.partition_of(slot)) {
            Standing::Ours(guard) => Verdict::Ours(guard),
            // It was this front's, whose lease has ended, and which is another member by now: clients would
            // go round in circles.
            Standing::Other { address, .. } if self.is_own(&address) => Verdict::Nobody,
            Standing::Other { address, .. } => {
                self.redirections.fetch_add(1, Ordering::Relaxed);
                Verdict::At(address)
            }
            Standing::Nobody => Verdict::Nobody,
        }
    }

    fn owns(&self, slot: Slot) -> bool {
        let owner = self.view.owner(self.partition_of(slot));
        owner.is_some() && owner == self.view.member()
    }

    fn backend_of(&self, slot: Slot) -> u32 {
        self.view.backend(self.partition_of(slot))
    }

    fn own(&self) -> &Address {
        &self.own
    }

    fn knows(&self, address: &Address) -> bool {
        let is_it = |announced: &str| Address::parse_tcp(announced).as_ref() == Some(address);
        self.view.addresses().iter().any(|(_, announced)| is_it(announced))
    }

    fn topology(&self) -> Topology {
        let mut members = self.view.addresses();
        members.retain(|(_, address)| !address.is_empty());
        let mut slots = vec![SlotSet::new(); members.len()];
        let (owners, mut place_of) =
            (self.view.owners(), places(members.iter().map(|(id, _)| *id).collect()));
        for slot in Slot::all() {
            if let Some(place) = owner_of(&owners, slot).and_then(&mut place_of) {
                slots[place].insert(slot);
            }
        }
        let shards = members.into_iter().zip(slots).filter_map(|((member, address), slots)| {
            let primary = Address::parse_tcp(&address).filter(|_| !slots.is_empty())?;
            Some(Shard { id: name_of(member), primary, replicas: Vec::new(), slots })
        });
        Topology::of_shards(shards.collect())
    }

    fn is_hidden(&self, name: &[u8]) -> bool {
        is_fence(name)
    }

    fn lapse(&self) -> WaitForCancellationFutureOwned {
        self.lapse.lock().clone().cancelled_owned()
    }

    fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    fn seals(&self) -> watch::Receiver<u64> {
        self.seals_seen.subscribe()
    }

    fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    fn let_go(&self, address: Address, id: i64) {
        let _ = self.let_go.try_send((address, id));
    }
}

/// The partition of a slot: slots that follow each other are in one, or in partitions that follow each other.
fn partition_of(slot: Slot, partitions: u32) -> Partition {
    u32::from(slot.number()) * partitions / PARTITIONS_MAX
}

fn owner_of(owners: &[Option<MemberId>], slot: Slot) -> Option<MemberId> {
    let partitions = u32::try_from(owners.len()).unwrap_or(0);
    owners.get(partition_of(slot, partitions) as usize).copied().flatten()
}

/// Where members are in a list that is sorted by them. Neighbouring slots mostly have one owner, so the last
/// answer is remembered.
fn places(members: Vec<MemberId>) -> impl FnMut(MemberId) -> Option<usize> {
    let mut last = None;
    move |member| match last {
        Some((known, place)) if known == member => place,
        _ => {
            let place = members.binary_search(&member).ok();
            last = Some((member, place));
            place
        }
    }
}

/// A name as nodes of clusters have it.
fn name_of(member: MemberId) -> String {
    format!("{NAME}{:08x}", member.0)
}

/// The members whose addresses can be shown, and how each is: at the same places in both.
fn groups(all: &[(MemberId, Arc<str>)], is_tls: bool) -> (Vec<MemberId>, Vec<Group>) {
    all.iter().filter_map(|(id, address)| Some((*id, group(*id, address, is_tls)?))).unzip()
}

fn group(member: MemberId, address: &str, is_tls: bool) -> Option<Group> {
    let id: NodeId = name_of(member).parse().ok()?;
    let Address::Tcp(host, port) = Address::parse_tcp(address)? else { return None };
    let primary = Member {
        id,
        ip: host,
        hostname: None,
        naming: Naming::Ip,
        port: (!is_tls).then_some(port),
        tls_port: is_tls.then_some(port),
        bus_port: None,
        config_epoch: u64::from(member.0) + 1,
        health: Health::Online,
        is_connected: true,
    };
    Some(Group { primary, replicas: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_is_in_one_partition_and_each_partition_has_slots() {
        for partitions in [1, 3, 271, 1_999, 16_384] {
            let all: Vec<Partition> = Slot::all().map(|slot| partition_of(slot, partitions)).collect();
            assert!(all.is_sorted());
            let mut known = all.clone();
            known.dedup();
            assert_eq!(known, (0..partitions).collect::<Vec<_>>(), "{partitions}");
        }
    }

    #[test]
    fn a_member_that_cannot_be_shown_shifts_no_other() {
        let all = [(1, "127.0.0.1:7001"), (2, "nowhere"), (3, "127.0.0.1:7003")];
        let (members, groups) = groups(&all.map(|(id, address)| (MemberId(id), Arc::from(address))), false);
        assert_eq!(members, [MemberId(1), MemberId(3)]);
        let ports: Vec<_> = groups.iter().map(|group| group.primary.port).collect();
        assert_eq!(ports, [Some(7_001), Some(7_003)]);
    }

    #[test]
    fn members_are_found_in_any_order_and_strangers_are_not() {
        let mut place_of = places(vec![MemberId(1), MemberId(4), MemberId(9)]);
        let asked = [9, 9, 1, 4, 5, 5, 4, 1].map(MemberId);
        let found = asked.map(&mut place_of);
        assert_eq!(found, [Some(2), Some(2), Some(0), Some(1), None, None, Some(1), Some(0)]);
    }

    #[test]
    fn names_of_members_are_names_of_nodes() {
        let name: NodeId = name_of(MemberId(17)).parse().expect("a name");
        assert!(name.as_str().ends_with("00000011"));
        assert_ne!(name_of(MemberId(1)), name_of(MemberId(2)));
    }
}
