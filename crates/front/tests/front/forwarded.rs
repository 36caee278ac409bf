//! A request that a fleet forwards is scanned once by each front that it passes, and so is its reply.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use whimbrel_lab::{Engine, Server};
use whimbrel_wire::{boundary, request};

use crate::fleets::Fleet;

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

/// What a busy machine has asked again is scanned again: then it is tried once more.
#[track_caller]
fn are_scanned(stream: &mut TcpStream, expected: u64, by: &str) {
    let counted = [(); 3].map(|()| scanned(stream));
    assert!(counted.contains(&(expected, expected)), "{by}: {counted:?} instead of {expected}");
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    stream
}

#[test]
fn a_forwarded_request_is_scanned_once_by_each_front() {
    let backend = Server::builder(Engine::Redis70).start().expect("a server");
    let fleet = Fleet::start(&[&backend]);
    let member = fleet.join(&backend, Duration::from_millis(100));
    let (mut direct, mut forwarded) = (connect(member.own), connect(member.forwarding));
    // Until the member serves all slots, and everything is connected.
    whimbrel_lab::wait_until("the member serves", || {
        direct.write_all(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n").expect("it is taken");
        let mut reply = [0; 512];
        let read = direct.read(&mut reply).expect("a reply");
        reply[..read] == *b"$-1\r\n"
    });
    scanned(&mut forwarded);
    are_scanned(&mut direct, REQUESTS, "by the member");
    are_scanned(&mut forwarded, 2 * REQUESTS, "by the front, and by the member");
}
