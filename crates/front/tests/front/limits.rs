//! What a client or a server can make the front hold.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_lab::{Engine, Server, wait_until_refused};

use crate::common::{Client, Served, alone, command, in_own_process, resident_bytes, wait_until};

/// More than a session may hold, and far less than what is sent in these tests.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

fn server() -> Server {
    Server::builder(Engine::Redis70).start().expect("a server")
}

/// Sends until nothing is taken for a moment; returns how much was.
fn fill(client: &mut Client, bytes: &[u8], most: usize) -> usize {
    client.0.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let mut sent = 0;
    while sent < most {
        match client.0.write(&bytes[sent % bytes.len()..]) {
            Ok(n) => sent += n,
            Err(_) => return sent,
        }
    }
    sent
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    if in_own_process("limits::a_client_that_does_not_read_is_not_read_from") {
        return;
    }
    let source = server();
    let served = Served::of(&source.url());
    served.client().ask(&["SETRANGE", "k", "99999", "x"], ":100000\r\n");
    let before = resident_bytes();
    let mut slow = served.client();
    let request = command(&["GET", "k"]);
    // It is asked for 200 GB, many requests at a time.
    let sent = fill(&mut slow, &request.repeat(2_000), 2_000_000 * request.len());
    assert!(sent < 2_000_000 * request.len(), "all was taken in");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more");
    // Others do not notice, and it gets all that it has asked for.
    served.client().ask(&["ECHO", "x"], "$1\r\nx\r\n");
    let whole = sent / request.len();
    if !sent.is_multiple_of(request.len()) {
        // Its last request is half sent.
        let mut writer = Client(slow.0.try_clone().expect("a second handle"));
        let rest = request[sent % request.len()..].to_vec();
        writer.0.set_write_timeout(None).expect("no timeout");
        std::thread::spawn(move || writer.send(&rest));
    }
    let reply = [b"$100000\r\n".to_vec(), vec![0; 99_999], b"x\r\n".to_vec()].concat();
    for _ in 0..whole.min(2_000) {
        slow.expect(&reply);
    }
}

#[test]
fn a_server_that_does_not_read_stops_the_client() {
    if in_own_process("limits::a_server_that_does_not_read_stops_the_client") {
        return;
    }
    let source = server();
    let served = Served::of(&source.url());
    let mut client = served.client();
    client.ask(&["ECHO", "x"], "$1\r\nx\r\n");
    let value = "v".repeat(10_000);
    let request = command(&["SET", "k", &value]);
    let before = resident_bytes();
    source.suspend().expect("suspended");
    let sent = fill(&mut client, &request, 400 << 20);
    let grown = resident_bytes().saturating_sub(before);
    source.resume().expect("resumed");
    assert!(sent < 400 << 20, "all was taken in");
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more");
    let mut writer = Client(client.0.try_clone().expect("a second handle"));
    writer.0.set_write_timeout(None).expect("no timeout");
    let at = sent % request.len();
    let rest = if at > 0 { request[at..].to_vec() } else { Vec::new() };
    let writing = std::thread::spawn(move || writer.send(&rest));
    client.expect(&b"+OK\r\n".repeat(sent.div_ceil(request.len())));
    writing.join().expect("the rest is sent");
}

#[test]
fn large_values_are_not_held() {
    if in_own_process("limits::large_values_are_not_held") {
        return;
    }
    let source = server();
    let served = Served::of(&source.url());
    let value = vec![b'v'; 100 << 20];
    let mut request = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len()).into_bytes();
    request.extend_from_slice(&value);
    request.extend_from_slice(b"\r\n");
    let mut found = vec![0; value.len()];
    found.fill(1);
    let before = resident_bytes();
    let mut client = served.client();
    client.send(&request);
    client.expect(b"+OK\r\n");
    client.send(&command(&["GET", "k"]));
    client.expect(format!("${}\r\n", value.len()).as_bytes());
    std::io::Read::read_exact(&mut client.0, &mut found).expect("the value");
    client.expect(b"\r\n");
    let grown = resident_bytes().saturating_sub(before);
    assert!(found == value, "another value");
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more");
}

#[test]
fn thousands_of_clients_at_once() {
    if in_own_process("limits::thousands_of_clients_at_once") {
        return;
    }
    let source = server();
    let served = Served::of(&source.url());
    let before = resident_bytes();
    let mut clients: Vec<Client> = (0..2_000).map(|_| served.client()).collect();
    for round in 0..3 {
        // One after another, so that what remains is what idle clients take.
        for (i, client) in clients.iter_mut().enumerate() {
            let (key, value) = (format!("k{i}"), format!("{round}-{i:011990}"));
            client.send(&[command(&["SET", &key, &value]), command(&["GET", &key])].concat());
            client.expect(format!("+OK\r\n${}\r\n{value}\r\n", value.len()).as_bytes());
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes for idle clients");
}

#[test]
fn one_client_too_many_is_refused() {
    let _alone = alone();
    let source = server();
    let endpoint = Endpoint::parse(Side::Source, &source.url()).expect("a valid address");
    let served = Served::at(&endpoint, 2);
    let mut clients = [served.client(), served.client()];
    for client in &mut clients {
        client.ask(&["ECHO", "x"], "$1\r\nx\r\n");
    }
    assert_eq!(served.client().rest(), b"-ERR max number of clients reached\r\n");
    drop(clients);
    wait_until("there is room", || {
        let mut client = served.client();
        // It may be turned away before it has said anything.
        let _ = client.0.write_all(&command(&["ECHO", "x"]));
        let mut first = [0];
        std::io::Read::read_exact(&mut client.0, &mut first).is_ok() && first == *b"$"
    });
}

/// A front that ends waits longer for answers.
const ANSWERED_WITHIN: Duration = Duration::from_millis(1_500);

#[test]
fn a_front_that_ends_answers_what_is_under_way() {
    let _alone = alone();
    // On a busy machine the server may be too late.
    assert!((0..5).any(|_| is_answered_at_the_end()), "the server was too late each time");
}

/// False where the server was let answer too late for the front.
fn is_answered_at_the_end() -> bool {
    let source = server();
    let served = Served::of(&source.url());
    let (mut busy, mut idle) = (served.client(), served.client());
    idle.ask(&["ECHO", "x"], "$1\r\nx\r\n");
    let mut direct = Client::to(source.addr().parse().expect("an address"));
    direct.ask(&["CLIENT", "PAUSE", "60000", "WRITE"], "+OK\r\n");
    busy.send(&command(&["SET", "k", "v"]));
    wait_until("the request is at the server", || direct.asks(&["CLIENT", "LIST"]).contains("cmd=set"));
    let began = Instant::now();
    served.end();
    assert!(idle.rest().is_empty(), "nothing of it was under way");
    let address = busy.0.peer_addr().expect("it is connected");
    // Nobody is let in any more.
    wait_until_refused(address);
    direct.ask(&["CLIENT", "UNPAUSE"], "+OK\r\n");
    let mut reply = [0; 5];
    let is_answered = busy.0.read_exact(&mut reply).is_ok();
    if !is_answered && began.elapsed() >= ANSWERED_WITHIN {
        return false;
    }
    assert_eq!(&reply, b"+OK\r\n");
    assert!(busy.rest().is_empty());
    true
}

#[test]
fn errors_of_the_protocol_are_those_of_the_server() {
    let _alone = alone();
    let source = server();
    let served = Served::of(&source.url());
    let long_line = "x".repeat(70_000);
    let long_count = format!("*{}", "1".repeat(70_000));
    let cases: [&str; 8] = [
        "*x\r\n",
        "*1\r\nGET\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$x\r\n",
        "*2\r\n$3\r\nGET\r\n$536870913\r\n",
        "GET \"k\r\n",
        &long_line,
        &long_count,
    ];
    for case in cases {
        let request = [command(&["ECHO", "before"]), case.as_bytes().to_vec()].concat();
        let [expected, found] = [source.addr().parse().expect("an address"), served.address].map(|to| {
            let mut client = Client::to(to);
            client.send(&request);
            String::from_utf8(client.rest()).expect("text")
        });
        assert_eq!(found, expected, "{}", &case[..case.len().min(40)]);
    }
}
