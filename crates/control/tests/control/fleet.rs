//! A coordinator and its members over real sockets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Services};
use whimbrel_control::fleet::{Coordination, Fleet, FleetOptions, FleetStatus, Journal};
use whimbrel_core::fleet::{MemberId, Options, Partition, Record, Snapshot};
use whimbrel_engine::endpoint::{Endpoint, Secret};
use whimbrel_engine::error::{Error, Result, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_fleet::{AtBackends, Guard, Membership, MembershipOptions, Standing};

/// Longer than anything takes here on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often it is looked.
const POLL_PERIOD: Duration = Duration::from_millis(10);

const PARTITIONS: u32 = 64;

/// Waits until something is so.
async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it is never so that {what}");
        sleep(POLL_PERIOD).await;
    }
}

/// A coordinator that runs.
struct Coordinator {
    fleet: Fleet,
    port: u16,
    stop: CancellationToken,
    runs: JoinHandle<Result<()>>,
    serves: JoinHandle<()>,
}

impl Coordinator {
    async fn start(path: &Path, port: u16, password: Option<&str>) -> Coordinator {
        let backends = vec![("one".to_owned(), "redis://one:6379".to_owned())];
        let options = FleetOptions {
            partitions: PARTITIONS,
            backends,
            // No lease ends by itself, however busy the machine is.
            machine: Options { lease_ms: 60_000, ..Options::default() },
            trusts_refusals: false,
        };
        let (fleet, coordination) = Coordination::open(path, options).expect("it opens");
        Coordinator::of(fleet, coordination, port, password).await
    }

    async fn of(fleet: Fleet, coordination: Coordination, port: u16, password: Option<&str>) -> Coordinator {
        let mut options = DaemonOptions::new(([127, 0, 0, 1], port).into());
        options.password = password.map(Secret::new);
        let services = Services::<Queue> { jobs: None, fleet: Some(fleet.clone()) };
        let daemon = Daemon::offer(options, services).await.expect("it listens");
        let port = daemon.address().expect("it listens").port();
        let stop = CancellationToken::new();
        let serves = tokio::spawn(daemon.serve(stop.clone()));
        let runs = tokio::spawn(coordination.run(stop.clone()));
        Coordinator { fleet, port, stop, runs, serves }
    }

    async fn end(self) {
        self.stop.cancel();
        self.serves.await.expect("it ends");
        self.runs.await.expect("it ends").expect("no error");
    }

    /// Waits until all partitions are where they should be, with this many members whose tables are all the
    /// same.
    async fn settled(&self, members: usize) -> FleetStatus {
        until("nothing moves and all tables are the same", async || {
            let status = self.fleet.status().await.expect("it answers");
            (status.is_settled() && status.members.len() == members).then_some(status)
        })
        .await
    }

    fn member(&self, name: &str, weight: u32) -> Membership {
        member(self.port, None, name, weight)
    }
}

fn endpoint(port: u16, password: Option<&str>) -> Endpoint {
    let mut endpoint = Endpoint::parse(Side::Source, &format!("127.0.0.1:{port}")).expect("an address");
    endpoint.password = password.map(Secret::new);
    endpoint
}

fn member(port: u16, password: Option<&str>, name: &str, weight: u32) -> Membership {
    let options = MembershipOptions {
        coordinators: vec![endpoint(port, password)],
        link: LinkOptions::default(),
        name: name.to_owned(),
        address: format!("{name}:6379"),
        weight,
    };
    Membership::start(options, AtBackends)
}

async fn id_of(member: &Membership) -> MemberId {
    let mut seen = member.view().watch();
    let seen = timeout(PATIENCE, seen.wait_for(|seen| seen.member.is_some())).await;
    seen.expect("in time").expect("it runs").member.expect("it is a member")
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fleet");
    (folder, path)
}

/// Who serves each partition: exactly one of these, and all others say that it does, and where.
async fn served(members: &[&Membership]) -> Vec<MemberId> {
    let mut owners = Vec::new();
    for partition in 0..PARTITIONS {
        let owner =
            until("one serves the partition and all others know", async || served_by(members, partition))
                .await;
        owners.push(owner);
    }
    owners
}

fn served_by(members: &[&Membership], partition: Partition) -> Option<MemberId> {
    let (mut guards, mut others): (Vec<(MemberId, Guard)>, Vec<_>) = (Vec::new(), Vec::new());
    for member in members {
        let id = member.view().watch().borrow().member?;
        match member.view().standing(partition) {
            Standing::Ours(guard) => guards.push((id, guard)),
            Standing::Other { member, address } => others.push((member, address)),
            Standing::Nobody => return None,
        }
    }
    assert!(guards.len() <= 1, "two serve partition {partition}");
    let owner = guards.first()?.0;
    let mut addresses = others.iter().map(|(_, address)| address);
    let first = addresses.next();
    let is_agreed =
        others.iter().all(|(member, _)| *member == owner) && addresses.all(|other| Some(other) == first);
    is_agreed.then_some(owner)
}

fn counts(owners: &[MemberId]) -> BTreeMap<MemberId, usize> {
    let mut counts = BTreeMap::new();
    owners.iter().for_each(|owner| *counts.entry(*owner).or_default() += 1);
    counts
}

#[tokio::test]
async fn who_joins_takes_its_part_by_weight() {
    let (_folder, path) = folder();
    let coordinator = Coordinator::start(&path, 0, None).await;
    let first = coordinator.member("a", 1);
    let a = id_of(&first).await;
    coordinator.settled(1).await;
    assert_eq!(counts(&served(&[&first]).await), BTreeMap::from([(a, 64)]));
    let second = coordinator.member("b", 2);
    let third = coordinator.member("c", 1);
    let (b, c) = (id_of(&second).await, id_of(&third).await);
    let status = coordinator.settled(3).await;
    let owners = served(&[&first, &second, &third]).await;
    assert_eq!(counts(&owners), BTreeMap::from([(a, 16), (b, 32), (c, 16)]));
    assert_eq!(
        (status.moved, status.failed, status.unowned),
        (48, 0, 0),
        "nothing moved that did not have to"
    );
    let shown = status.member(b.0).expect("it is listed");
    assert_eq!((shown.name.as_str(), shown.address.as_str(), shown.owned), ("b", "b:6379", 32));
    let Standing::Other { member, address } =
        first.view().standing(owners.iter().position(|id| *id == b).expect("one") as u32)
    else {
        panic!("another's");
    };
    assert_eq!((member, &*address), (b, "b:6379"));
    assert_eq!(third.view().addresses().len(), 3);
    assert_eq!(third.view().backends().first().map(|backend| backend.name.clone()), Some("one".to_owned()));
    assert!(matches!(first.view().standing(PARTITIONS), Standing::Nobody), "there is no such partition");
    coordinator.end().await;
}

#[tokio::test]
async fn drained_and_leaving_members_are_emptied_first() {
    let (_folder, path) = folder();
    let coordinator = Coordinator::start(&path, 0, None).await;
    let (first, mut second) = (coordinator.member("a", 1), coordinator.member("b", 1));
    let (a, b) = (id_of(&first).await, id_of(&second).await);
    coordinator.settled(2).await;
    coordinator.fleet.drain(b.0).await.expect("it is drained");
    let refused = coordinator.fleet.drain(a.0).await.expect_err("nobody would be left").to_string();
    assert!(refused.contains("nobody else"), "{refused}");
    let status = coordinator.settled(2).await;
    assert_eq!(status.member(b.0).map(|member| (member.owned, member.weight)), Some((0, 0)));
    assert_eq!(counts(&served(&[&first, &second]).await), BTreeMap::from([(a, 64)]));
    coordinator.fleet.join(b.0, None).await.expect("it takes its part again");
    let status = coordinator.settled(2).await;
    assert_eq!(status.member(b.0).map(|member| (member.owned, member.weight)), Some((32, 1)));
    coordinator.fleet.leave(b.0).await.expect("it leaves");
    timeout(PATIENCE, second.ended()).await.expect("it ends").expect("no error");
    assert!(second.view().watch().borrow().has_left);
    assert!(!matches!(second.view().standing(0), Standing::Ours(_)));
    coordinator.settled(1).await;
    assert_eq!(counts(&served(&[&first]).await), BTreeMap::from([(a, 64)]));
    assert!(coordinator.fleet.leave(b.0).await.is_err(), "it is gone");
    coordinator.end().await;
}

#[tokio::test]
async fn a_member_leaves_by_itself() {
    let (_folder, path) = folder();
    let coordinator = Coordinator::start(&path, 0, None).await;
    let (first, second) = (coordinator.member("a", 1), coordinator.member("b", 1));
    let (a, _) = (id_of(&first).await, id_of(&second).await);
    coordinator.settled(2).await;
    assert!(second.leave(PATIENCE).await, "it has left");
    let status = coordinator.settled(1).await;
    assert_eq!(status.members[0].member, a.0);
    assert_eq!(counts(&served(&[&first]).await), BTreeMap::from([(a, 64)]));
    // The last one has nobody to give anything to, and does not wait for ever.
    assert!(!first.leave(Duration::from_millis(300)).await);
    coordinator.end().await;
}

#[tokio::test]
async fn a_partition_stays_until_its_requests_are_done() {
    let (_folder, path) = folder();
    let coordinator = Coordinator::start(&path, 0, None).await;
    let first = coordinator.member("a", 1);
    let a = id_of(&first).await;
    coordinator.settled(1).await;
    let second = coordinator.member("b", 1);
    let b = id_of(&second).await;
    coordinator.settled(2).await;
    let mine = (0..PARTITIONS).find_map(|partition| match first.view().standing(partition) {
        Standing::Ours(guard) => Some(guard),
        _ => None,
    });
    let guard = mine.expect("it has some");
    let partition = guard.partition();
    assert!(!guard.lease_left().is_zero());
    coordinator.fleet.leave(a.0).await.expect("it leaves");
    until("all others have moved", async || {
        let status = coordinator.fleet.status().await.expect("it answers");
        status.member(a.0).filter(|member| member.owned == 1 && member.held == 1).map(drop)
    })
    .await;
    // Nothing more moves now, however long it is waited: the coordinator has nothing but this one move under
    // way.
    assert!(matches!(first.view().standing(partition), Standing::Nobody), "sealed: no request begins");
    assert_eq!(second.view().owners()[partition as usize], Some(a));
    drop(guard);
    until("it has moved as well", async || {
        matches!(second.view().standing(partition), Standing::Ours(_)).then_some(())
    })
    .await;
    let status = coordinator.settled(1).await;
    assert_eq!(status.members[0].member, b.0);
    coordinator.end().await;
}

/// Passes bytes on until it is asked to cut all connections.
struct Cable {
    port: u16,
    cut: CancellationToken,
    tasks: JoinSet<()>,
}

impl Cable {
    async fn to(port: u16) -> Cable {
        // Nobody else gets its port while it is cut.
        let free = whimbrel_lab::free_port().expect("a port");
        let listener = TcpListener::bind(("127.0.0.1", free)).await.expect("it listens");
        let (cut, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let (mine, is_cut) = (listener.local_addr().expect("it listens").port(), cut.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            let accepting = async {
                while let Ok((mut inner, _)) = listener.accept().await {
                    connections.spawn(async move {
                        let mut outer = TcpStream::connect(("127.0.0.1", port)).await.expect("it is there");
                        let _ = tokio::io::copy_bidirectional(&mut inner, &mut outer).await;
                    });
                }
            };
            is_cut.run_until_cancelled(accepting).await;
        });
        Cable { port: mine, cut, tasks }
    }

    async fn cut(mut self) -> u16 {
        self.cut.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.port
    }
}

#[tokio::test]
async fn a_lost_connection_costs_nothing() {
    let (_folder, path) = folder();
    let coordinator = Coordinator::start(&path, 0, None).await;
    let cable = Cable::to(coordinator.port).await;
    let first = member(cable.port, None, "a", 1);
    let second = coordinator.member("b", 1);
    let (a, b) = (id_of(&first).await, id_of(&second).await);
    coordinator.settled(2).await;
    let before = served(&[&first, &second]).await;
    let mut seen = first.view().watch();
    let cut_port = cable.cut().await;
    timeout(PATIENCE, seen.wait_for(|seen| !seen.is_connected)).await.expect("in time").expect("it runs");
    // The cable is another one; its end is where the old one's was.
    let listener = TcpListener::bind(("127.0.0.1", cut_port)).await.expect("the port is free");
    let port = coordinator.port;
    let cable = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut inner, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut outer = TcpStream::connect(("127.0.0.1", port)).await.expect("it is there");
                let _ = tokio::io::copy_bidirectional(&mut inner, &mut outer).await;
            });
        }
    });
    timeout(PATIENCE, seen.wait_for(|seen| seen.is_connected)).await.expect("in time").expect("it runs");
    let status = coordinator.settled(2).await;
    let mut expected = [a.0, b.0];
    expected.sort_unstable();
    let ids: Vec<u32> = status.members.iter().map(|member| member.member).collect();
    assert_eq!(ids, expected, "they are the same members");
    assert_eq!(served(&[&first, &second]).await, before);
    cable.abort();
    coordinator.end().await;
}

#[tokio::test]
async fn members_go_on_while_there_is_no_coordinator_and_the_next_one_knows_them() {
    let (_folder, path) = folder();
    // Nobody else gets it between the two coordinators.
    let port = whimbrel_lab::free_port().expect("a port");
    let coordinator = Coordinator::start(&path, port, None).await;
    let (first, second) = (coordinator.member("a", 1), coordinator.member("b", 3));
    let (a, b) = (id_of(&first).await, id_of(&second).await);
    let before = coordinator.settled(2).await;
    let owners = served(&[&first, &second]).await;
    coordinator.end().await;
    // Leases have just been renewed; nobody is there who could renew them again.
    assert_eq!(served(&[&first, &second]).await, owners);
    let coordinator = Coordinator::start(&path, port, None).await;
    let after = coordinator.settled(2).await;
    assert_eq!((after.term, after.stamp), (before.term + 1, before.stamp));
    assert_eq!(counts(&served(&[&first, &second]).await), BTreeMap::from([(a, 16), (b, 48)]));
    assert_eq!(served(&[&first, &second]).await, owners);
    // It works as before: somebody joins.
    let third = coordinator.member("c", 4);
    let c = id_of(&third).await;
    coordinator.settled(3).await;
    assert_eq!(counts(&served(&[&first, &second, &third]).await).get(&c), Some(&32));
    coordinator.end().await;
}

#[tokio::test]
async fn only_who_has_the_password_is_a_member() {
    let (_folder, path) = folder();
    let coordinator = Coordinator::start(&path, 0, Some("hunter2")).await;
    for wrong in [None, Some("hunter3")] {
        let stranger = member(coordinator.port, wrong, "a", 1);
        let mut seen = stranger.view().watch();
        let seen = timeout(PATIENCE, seen.wait_for(|seen| seen.trouble.is_some())).await.expect("in time");
        let trouble = seen.expect("it runs").trouble.clone().expect("it says why");
        assert!(trouble.contains("password") && !trouble.contains("hunter"), "{trouble}");
    }
    assert!(coordinator.fleet.status().await.expect("it answers").members.is_empty());
    let friend = member(coordinator.port, Some("hunter2"), "a", 1);
    id_of(&friend).await;
    coordinator.end().await;
}

#[tokio::test]
async fn people_ask_in_resp() {
    let (_folder, path) = folder();
    let coordinator = Coordinator::start(&path, 0, None).await;
    let first = coordinator.member("a", 1);
    let a = id_of(&first).await.0.to_string();
    coordinator.settled(1).await;
    let endpoint = Arc::new(endpoint(coordinator.port, None));
    let mut link =
        Link::open(&endpoint, &endpoint.address, LinkOptions::default()).await.expect("it answers");
    let mut ask = async |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = link.ask(&words).await.expect("it answers");
        let text =
            reply.as_error().or(reply.as_bytes()).map(|text| String::from_utf8_lossy(text).into_owned());
        text.unwrap_or_else(|| format!("{reply:?}"))
    };
    let status: FleetStatus = serde_json::from_str(&ask(&["fleet", "status"]).await).expect("JSON");
    assert_eq!((status.members.len(), status.members[0].owned, status.partitions), (1, 64, 64));
    assert_eq!(ask(&["FLEET", "REBALANCE"]).await, "OK");
    assert_eq!(ask(&["FLEET", "JOIN", &a, "5"]).await, "OK");
    for (words, expected) in [
        (&["FLEET", "LEAVE", &a][..], "nobody else"),
        (&["FLEET", "DRAIN", "99"], "there is no member 99"),
        (&["FLEET", "DRAIN", "x"], "not an integer"),
        (&["FLEET", "JOIN", &a, "x"], "not an integer"),
        (&["FLEET", "LEAVE"], "wrong number"),
        (&["FLEET", "NONSENSE"], "unknown subcommand"),
        (&["FLEET"], "wrong number"),
        (&["GET", "x"], "unknown command 'GET'"),
        (&["CLUSTER", "SLOTS"], "unknown command 'CLUSTER'"),
        (&["FLEET", "MEMBER", "0"], "version 2"),
    ] {
        let answer = ask(words).await;
        assert!(answer.starts_with("ERR ") && answer.contains(expected), "{words:?}: {answer}");
    }
    assert_eq!(coordinator.settled(1).await.members[0].weight, 5);
    coordinator.end().await;
}

/// A disk that is full after this many writes.
struct Full(u32);

impl Journal for Full {
    fn write(&mut self, _: &[Record]) -> Result<()> {
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None => return Err(Error::own("write the journal", "no space left")),
        }
        Ok(())
    }

    fn latest_term(&mut self) -> Result<u64> {
        Ok(1)
    }
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_announced_and_ends_the_coordinator() {
    let snapshot = Snapshot { term: 1, ..Snapshot::new(PARTITIONS) };
    let (fleet, coordination) =
        Coordination::on(Path::new("nowhere"), Full(0), snapshot, Vec::new(), Options::default());
    let coordinator = Coordinator::of(fleet, coordination, 0, None).await;
    let first = coordinator.member("a", 1);
    let error =
        timeout(PATIENCE, coordinator.runs).await.expect("it ends").expect("it runs").expect_err("it fails");
    assert!(error.to_string().contains("no space left"), "{error}");
    assert!(coordinator.fleet.status().await.is_err());
    assert_eq!(first.view().watch().borrow().member, None, "it was never notified that it is one");
    coordinator.stop.cancel();
}
