//! A link that is cut and healed.

use std::io::{Read, Write};
use std::net::TcpStream;

use whimbrel_lab::{Engine, Proxy, Server, wait_until_refused};

whimbrel_lab::for_each_engine! {
    a_cut_link_refuses_until_it_is_healed
}

/// Sends a PING as plain text and reads the answer.
fn ping(stream: &mut TcpStream) -> std::io::Result<[u8; 7]> {
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).map(|()| answer)
}

fn a_cut_link_refuses_until_it_is_healed(engine: Engine) {
    let server = Server::builder(engine).start().unwrap();
    let proxy = Proxy::start(&server.addr()).unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(&ping(&mut stream).unwrap(), b"+PONG\r\n");
    assert_eq!(proxy.connections(), 1);

    proxy.cut();
    assert!(ping(&mut stream).is_err());
    assert_eq!(proxy.connections(), 0);
    let refused = TcpStream::connect(proxy.addr()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    // The server itself is as well as before.
    server.call(&["PING"]);

    proxy.heal().unwrap();
    proxy.heal().unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(&ping(&mut stream).unwrap(), b"+PONG\r\n");

    let addr = proxy.addr();
    drop(proxy);
    assert!(ping(&mut stream).is_err());
    wait_until_refused(addr.parse().unwrap());
}

#[test]
fn bytes_pass_unchanged_and_an_end_ends_both_sides() {
    let server = Server::builder(Engine::Redis70).start().unwrap();
    let proxy = Proxy::start(&server.addr()).unwrap();
    let value: Vec<u8> = (0..4 << 20).map(|n: u32| n.to_le_bytes()[n as usize % 4]).collect();
    {
        let mut connection =
            redis::Client::open(format!("redis://{}", proxy.addr())).unwrap().get_connection().unwrap();
        redis::cmd("SET").arg("key").arg(&value).exec(&mut connection).unwrap();
        let back: Vec<u8> = redis::cmd("GET").arg("key").query(&mut connection).unwrap();
        assert!(back == value);
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while proxy.connections() > 0 {
        assert!(std::time::Instant::now() < deadline, "a closed connection is still counted");
        std::thread::yield_now();
    }
}

#[test]
fn a_dead_target_closes_the_connection() {
    let server = Server::builder(Engine::Redis70).start().unwrap();
    let proxy = Proxy::start(&server.addr()).unwrap();
    server.kill9().unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert!(ping(&mut stream).is_err());
    server.restart().unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(&ping(&mut stream).unwrap(), b"+PONG\r\n");
}

#[test]
fn a_target_that_is_no_address_is_refused() {
    assert!(Proxy::start("no such place").is_err());
}

#[test]
fn bytes_of_a_distant_link_are_under_way_for_a_while_and_all_arrive() {
    let server = Server::builder(Engine::Redis70).start().unwrap();
    let delay = std::time::Duration::from_millis(20);
    let proxy = Proxy::distant(&server.addr(), delay).unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    let asked = std::time::Instant::now();
    assert_eq!(&ping(&mut stream).unwrap(), b"+PONG\r\n");
    assert!(asked.elapsed() >= 2 * delay, "{:?}", asked.elapsed());
    let value = vec![b'x'; 4 << 20];
    let mut connection =
        redis::Client::open(format!("redis://{}", proxy.addr())).unwrap().get_connection().unwrap();
    redis::cmd("SET").arg("key").arg(&value).exec(&mut connection).unwrap();
    let back: Vec<u8> = redis::cmd("GET").arg("key").query(&mut connection).unwrap();
    assert!(back == value);
}
