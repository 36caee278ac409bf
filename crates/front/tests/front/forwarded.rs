//! A request that a fleet forwards is scanned once by each front that it passes, and so is its reply.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_control::daemon::queue::Queue;
use whimbrel_control::daemon::{Daemon, DaemonOptions, Services};
use whimbrel_control::fleet::{Coordination, FleetOptions};
use whimbrel_core::fleet::Options;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_front::fleet::{JoinOptions, Joined};
use whimbrel_front::server::FrontOptions;
use whimbrel_lab::{Engine, Server};
use whimbrel_wire::{boundary, request};

/// This many requests are sent.
const REQUESTS: u64 = 200;

/// Sends requests one after the other, and returns how many requests and replies this process has scanned.
fn scanned(stream: &mut TcpStream) -> (u64, u64) {
    let before = (request::scanned(), boundary::scanned());
    for i in 0..REQUESTS {
        let key = format!("k{i}");
        let set = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1\r\nv\r\n", key.len());
        stream.write_all(set.as_bytes()).expect("it is taken");
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"+OK\r\n");
    }
    (request::scanned() - before.0, boundary::scanned() - before.1)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    stream
}

/// A coordinator and its only member, both in this process.
async fn member(folder: &std::path::Path, backend: &Server, stop: &CancellationToken) -> Joined {
    let backends = vec![("one".to_owned(), backend.url())];
    let options =
        FleetOptions { partitions: 16, backends, machine: Options::default(), trusts_refusals: false };
    let (fleet, coordination) = Coordination::open(&folder.join("fleet"), options).expect("it opens");
    let options = DaemonOptions::new(([127, 0, 0, 1], 0).into());
    let services = Services::<Queue> { jobs: None, fleet: Some(fleet) };
    let daemon = Daemon::offer(options, services).await.expect("it listens");
    let coordinator = daemon.address().expect("it listens").to_string();
    tokio::spawn(daemon.serve(stop.clone()));
    tokio::spawn(coordination.run(stop.clone()));
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = FrontOptions::new(any, 100);
    let join = JoinOptions {
        coordinators: vec![Endpoint::parse(Side::Source, &coordinator).expect("an address")],
        name: None,
        announce: None,
        weight: 1,
        forward_listen: Some(any),
        leave_patience_ms: 100,
        endpoint_of: Arc::new(|url| Endpoint::parse(Side::Source, url)),
    };
    let backend = Endpoint::parse(Side::Source, &backend.url()).expect("an address");
    Joined::join(options, backend, join).await.expect("a member")
}

#[test]
fn a_forwarded_request_is_scanned_once_by_each_front() {
    let backend = Server::builder(Engine::Redis70).start().expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let stop = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let joined = runtime.block_on(member(folder.path(), &backend, &stop));
    let own: SocketAddr = joined.announced().to_string().parse().expect("an address");
    let forwarding = joined.forwarding().expect("an address").expect("it forwards");
    runtime.spawn(joined.serve(stop.clone()));
    let (mut direct, mut forwarded) = (connect(own), connect(forwarding));
    // Until the member serves all slots, and everything is connected.
    whimbrel_lab::wait_until("the member serves", || {
        direct.write_all(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n").expect("it is taken");
        let mut reply = [0; 512];
        let read = direct.read(&mut reply).expect("a reply");
        reply[..read] == *b"$-1\r\n"
    });
    scanned(&mut forwarded);
    assert_eq!(scanned(&mut direct), (REQUESTS, REQUESTS), "by the member");
    assert_eq!(scanned(&mut forwarded), (2 * REQUESTS, 2 * REQUESTS), "by the front, and by the member");
    stop.cancel();
}
