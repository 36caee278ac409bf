//! What somebody can do who reaches the ports of a daemon, with and without its password.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Services};
use whimbrel_control::fleet::{Coordination, Fleet, FleetOptions, FleetStatus};
use whimbrel_control::http::{HttpServer, Metric, MetricsSource};
use whimbrel_core::fleet::{MemberId, Move, Options, Order, Report, ToCoordinator};
use whimbrel_engine::endpoint::{Endpoint, Secret};
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Io, LinkOptions};
use whimbrel_fleet::frame::{self, Frames};
use whimbrel_fleet::protocol::{COMMAND, FRAME_BYTES_MAX, FromCoordinator, FromMember, Hello};
use whimbrel_fleet::{AtBackends, Membership, MembershipOptions, login};

/// Longer than anything takes here on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const PARTITIONS: u32 = 32;

/// A coordinator that runs until it is dropped.
struct Coordinator {
    fleet: Fleet,
    port: u16,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
    runs: JoinHandle<()>,
}

impl Coordinator {
    async fn start(password: Option<&str>, connections_max: usize) -> Coordinator {
        let folder = tempfile::tempdir().expect("a folder");
        let options = FleetOptions {
            partitions: PARTITIONS,
            backends: Vec::new(),
            // What is left without a connection leaves after that; a busy machine lets nobody else leave.
            machine: Options { lease_ms: 10_000, ..Options::default() },
            trusts_refusals: false,
        };
        let (fleet, coordination) =
            Coordination::open(&folder.path().join("fleet"), options).expect("it opens");
        let mut options = DaemonOptions::new(([127, 0, 0, 1], 0).into());
        options.password = password.map(Secret::new);
        options.connections_max = connections_max;
        let services = Services::<Queue> { jobs: None, fleet: Some(fleet.clone()) };
        let daemon = Daemon::offer(options, services).await.expect("it listens");
        let (port, stop) = (daemon.address().expect("it listens").port(), CancellationToken::new());
        tokio::spawn(daemon.serve(stop.clone()));
        let until = stop.clone();
        let runs = tokio::spawn(async move { coordination.run(until).await.expect("nothing ends it") });
        Coordinator { fleet, port, stop, _folder: folder, runs }
    }

    async fn settled(&self, members: usize) -> FleetStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.fleet.status().await.expect("it answers");
            if status.is_settled() && status.members.len() == members {
                return status;
            }
            assert!(Instant::now() < deadline, "{members} members: {status:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.runs.await.expect("it ends");
    }
}

fn endpoint(port: u16, password: Option<&str>) -> Endpoint {
    let mut endpoint = Endpoint::parse(Side::Source, &format!("127.0.0.1:{port}")).expect("an address");
    endpoint.password = password.map(Secret::new);
    endpoint
}

fn member(port: u16, password: Option<&str>, name: &str) -> Membership {
    let options = MembershipOptions {
        coordinators: vec![endpoint(port, password)],
        link: LinkOptions::default(),
        name: name.to_owned(),
        address: format!("{name}:6379"),
        weight: 1,
    };
    Membership::start(options, AtBackends)
}

async fn id_of(member: &Membership) -> MemberId {
    let mut seen = member.view().watch();
    let seen = timeout(PATIENCE, seen.wait_for(|seen| seen.member.is_some())).await;
    seen.expect("in time").expect("it runs").member.expect("it is a member")
}

/// A connection whose frames are made up here.
struct Wire {
    frames: Frames<tokio::io::ReadHalf<Io>>,
    writer: tokio::io::WriteHalf<Io>,
}

impl Wire {
    async fn connect(port: u16, token: u64) -> Wire {
        let mut link =
            login::open(&Arc::new(endpoint(port, None)), LinkOptions::default()).await.expect("let in");
        link.call(&COMMAND.map(str::as_bytes)).await.expect("it is a coordinator");
        let (io, begun): (Io, BytesMut) = link.into_parts();
        let (reader, writer) = tokio::io::split(io);
        let mut wire = Wire { frames: Frames::new(reader, begun, FRAME_BYTES_MAX), writer };
        wire.send(&FromMember::Hello(Hello { token, weight: 1, ..Hello::default() })).await;
        wire
    }

    async fn send(&mut self, frame: &FromMember) {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, frame.kind(), |out| frame.encode(out));
        // It may have hung up already.
        let _ = self.writer.write_all(&bytes).await;
    }

    async fn report(&mut self, member: MemberId, term: u64, body: Report) {
        self.send(&FromMember::Message(ToCoordinator { member, term, body })).await;
    }

    /// Why the connection is ended.
    async fn refused(&mut self) -> String {
        loop {
            let (kind, bytes) = timeout(PATIENCE, self.frames.next())
                .await
                .expect("in time")
                .expect("no broken frame")
                .expect("it is said why");
            if let Ok(FromCoordinator::Refused(why)) = FromCoordinator::decode(kind, &bytes) {
                return why;
            }
        }
    }

    async fn joined(&mut self, token: u64) -> MemberId {
        self.report(MemberId::NOBODY, 0, Report::Join { token, weight: 1 }).await;
        loop {
            let next = timeout(PATIENCE, self.frames.next()).await.expect("in time").expect("it is there");
            let (kind, bytes) = next.expect("it is there");
            let frame = FromCoordinator::decode(kind, &bytes).expect("a frame");
            if let FromCoordinator::Message(message) = frame
                && let Order::Welcome { member, .. } = message.body
            {
                return member;
            }
        }
    }
}

#[tokio::test]
async fn a_connection_speaks_for_nobody_but_who_has_joined_on_it() {
    let coordinator = Coordinator::start(None, 100).await;
    let (a, b) = (member(coordinator.port, None, "a"), member(coordinator.port, None, "b"));
    let (first, second) = (id_of(&a).await, id_of(&b).await);
    let before = coordinator.settled(2).await;
    let term = before.term;
    let moving = |partition| Move {
        term,
        partition,
        from: 1,
        source: first,
        destination: second,
        seals: true,
        backend: None,
    };
    for body in [
        Report::Renew { asked_ms: 1 },
        Report::Ready { moving: moving(0) },
        Report::Failed { moving: moving(1) },
        Report::Gap { partitions: vec![0] },
    ] {
        let mut wire = Wire::connect(coordinator.port, 7).await;
        wire.report(first, term, body).await;
        wire.send(&FromMember::Leave).await;
        assert!(wire.refused().await.contains("did not join"));
    }
    // One that is a member speaks for itself alone.
    let mut wire = Wire::connect(coordinator.port, 8).await;
    let third = wire.joined(8).await;
    wire.report(first, term, Report::Ready { moving: moving(0) }).await;
    assert!(wire.refused().await.contains("did not join"));
    let mut wire = Wire::connect(coordinator.port, 8).await;
    wire.report(third, term, Report::Ready { moving: moving(0) }).await;
    wire.report(third, term, Report::Renew { asked_ms: 1 }).await;
    drop(wire);
    let after = coordinator.settled(2).await;
    assert_eq!(after.members.iter().map(|member| member.member).collect::<Vec<_>>(), [first.0, second.0]);
    assert!(after.members.iter().all(|member| !member.leaving && member.owned == u64::from(PARTITIONS) / 2));
    coordinator.end().await;
}

#[tokio::test]
async fn a_term_that_has_not_begun_ends_the_connection_and_not_the_coordinator() {
    let coordinator = Coordinator::start(None, 100).await;
    let a = member(coordinator.port, None, "a");
    id_of(&a).await;
    let before = coordinator.settled(1).await;
    let mut wire = Wire::connect(coordinator.port, 7).await;
    wire.report(MemberId::NOBODY, u64::MAX, Report::Join { token: 7, weight: 1 }).await;
    assert!(wire.refused().await.contains("term"));
    assert_eq!(coordinator.settled(1).await.term, before.term);
    coordinator.end().await;
}

#[tokio::test]
async fn one_connection_is_one_member() {
    let coordinator = Coordinator::start(None, 100).await;
    let mut wire = Wire::connect(coordinator.port, 1).await;
    for token in 1..=600 {
        wire.report(MemberId::NOBODY, 0, Report::Join { token, weight: 1 }).await;
    }
    assert!(wire.refused().await.contains("joined on this connection already"));
    assert!(coordinator.fleet.status().await.expect("it answers").members.len() <= 1);
    coordinator.end().await;
}

#[tokio::test]
async fn the_password_is_proved_on_both_sides_and_never_said() {
    let coordinator = Coordinator::start(Some("a long secret"), 100).await;
    let a = member(coordinator.port, Some("a long secret"), "a");
    id_of(&a).await;
    let wrong = member(coordinator.port, Some("another one"), "b");
    let mut seen = wrong.view().watch();
    let refused =
        seen.wait_for(|seen| seen.trouble.as_ref().is_some_and(|why| why.contains("refused the cred")));
    drop(timeout(PATIENCE, refused).await.expect("in time").expect("it runs"));
    // One that listens in the coordinator's place learns nothing of use.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
    let c = member(listener.local_addr().expect("it listens").port(), Some("a long secret"), "c");
    let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.expect("in time").expect("it comes");
    let challenge = format!("*3\r\n$16\r\n{}\r\n:4096\r\n$32\r\n{}\r\n", "s".repeat(16), "n".repeat(32));
    stream.write_all(challenge.as_bytes()).await.expect("it listens");
    stream.write_all(format!("${}\r\n{}\r\n", 32, "p".repeat(32)).as_bytes()).await.expect("it listens");
    let mut reply = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut reply)).await.expect("in time").expect("it hangs up");
    let reply = String::from_utf8_lossy(&reply).into_owned();
    assert!(reply.contains("LOGIN") && !reply.contains("secret") && !reply.contains("MEMBER"), "{reply}");
    let mut seen = c.view().watch();
    let refused =
        seen.wait_for(|seen| seen.trouble.as_ref().is_some_and(|why| why.contains("does not prove")));
    drop(timeout(PATIENCE, refused).await.expect("in time").expect("it runs"));
    coordinator.end().await;
}

#[tokio::test]
async fn silent_connections_keep_nobody_from_logging_in() {
    let coordinator = Coordinator::start(Some("secret"), 4).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(("127.0.0.1", coordinator.port)).await.expect("it listens"));
    }
    let at = Arc::new(endpoint(coordinator.port, Some("secret")));
    let mut people = Vec::new();
    for _ in 0..4 {
        let mut link = login::open(&at, LinkOptions::default()).await.expect("let in");
        link.call(&[b"PING"]).await.expect("it answers");
        people.push(link);
    }
    // Members have places of their own.
    let a = member(coordinator.port, Some("secret"), "a");
    id_of(&a).await;
    let mut link = login::open(&at, LinkOptions::default()).await.expect("let in");
    let error = link.call(&[b"PING"]).await.expect_err("all places are taken");
    assert!(error.to_string().contains("max number of clients"), "{error}");
    coordinator.end().await;
}

/// A process that is well.
struct Well;

impl MetricsSource for Well {
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    fn readiness(&self) -> Result<(), String> {
        Ok(())
    }

    fn status(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

#[tokio::test]
async fn half_open_requests_fail_no_probe() {
    let server = HttpServer::bind(([127, 0, 0, 1], 0).into()).await.expect("it listens");
    let (address, stop) = (server.address().expect("it listens"), CancellationToken::new());
    tokio::spawn(server.serve(Arc::new(Well), stop.clone()));
    let mut open = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127").await.expect("it takes it in");
        open.push(stream);
    }
    let began = Instant::now();
    let mut probe = TcpStream::connect(address).await.expect("it listens");
    let request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    probe.write_all(request).await.expect("it takes it in");
    let mut answer = Vec::new();
    timeout(PATIENCE, probe.read_to_end(&mut answer)).await.expect("in time").expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    println!("answered after {:?}", began.elapsed());
    stop.cancel();
}
