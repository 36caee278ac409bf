//! A request is scanned once, and so is its reply: when the front has found where they end, nobody in the
//! same process looks for that again.

use whimbrel_lab::{Cluster, Engine, Server};
use whimbrel_wire::{boundary, request};

use crate::common::{AsUpstream, Between, Client, Served, alone, command};

/// This many requests of each kind.
const EACH: u64 = 50;

/// Sends requests of every usual kind, and returns how many. Replies are compared, not scanned.
#[track_caller]
fn use_keys(client: &mut Client) -> u64 {
    let long = "v".repeat(70_000);
    for i in 0..EACH {
        let (key, list) = (format!("k{i}"), format!("l{i}"));
        client.ask(&["SET", &key, "v"], "+OK\r\n");
        client.ask(&["GET", &key], "$1\r\nv\r\n");
        client.ask(&["RPUSH", &list, "a", &long], ":2\r\n");
        client.ask(&["LRANGE", &list, "0", "-1"], &format!("*2\r\n$1\r\na\r\n$70000\r\n{long}\r\n"));
        client.ask(&["DEL", &list], ":1\r\n");
    }
    // Many at once.
    let many: Vec<u8> = (0..EACH).flat_map(|i| command(&["GET", &format!("k{i}")])).collect();
    client.send(&many);
    client.expect(&b"$1\r\nv\r\n".repeat(usize::try_from(EACH).expect("few")));
    EACH * 6
}

/// That each of the requests of `client`, and each reply, is scanned once in this process. (What a busy
/// machine has asked again is scanned again. Then it is tried once more.)
#[track_caller]
fn each_is_scanned_once(client: &mut Client) {
    let mut counted = Vec::new();
    for _ in 0..3 {
        let before = (request::scanned(), boundary::scanned());
        let asked = use_keys(client);
        let after = (request::scanned(), boundary::scanned());
        if (after.0 - before.0, after.1 - before.1) == (asked, asked) {
            return;
        }
        counted.push((after.0 - before.0, after.1 - before.1, asked));
    }
    panic!("requests, replies, and how many there were: {counted:?}");
}

fn cluster() -> Cluster {
    Cluster::builder(Engine::Redis70).primaries(3).start().expect("a cluster")
}

fn server() -> Server {
    Server::builder(Engine::Redis70).start().expect("a server")
}

#[test]
fn before_one_server() {
    let _alone = alone();
    let server = server();
    let front = Served::of(&server.url());
    each_is_scanned_once(&mut front.client());
}

#[test]
fn over_shared_connections() {
    let _alone = alone();
    let server = server();
    let front = Served::sharing(&server.url(), 1);
    let mut client = front.client();
    client.ask(&["PING"], "+PONG\r\n");
    let before = request::scanned();
    let asked = use_keys(&mut client);
    // Replies are scanned by the shared connection, which gives them to clients, and by each of these.
    assert_eq!(request::scanned() - before, asked);
}

#[test]
fn before_a_cluster() {
    let _alone = alone();
    let cluster = cluster();
    let front = Served::of(&cluster.seed());
    each_is_scanned_once(&mut front.client());
}

/// Before keys move, and while they do, once those that are asked for have moved.
#[track_caller]
fn while_keys_move(source: &impl AsUpstream, target: &impl AsUpstream) {
    let between = Between::of(source, target);
    let mut client = between.client();
    each_is_scanned_once(&mut client);
    between.start_paused().expect("keys move");
    use_keys(&mut client);
    each_is_scanned_once(&mut client);
}

#[test]
fn between_servers() {
    let _alone = alone();
    while_keys_move(&server(), &server());
}

#[test]
fn between_clusters() {
    let _alone = alone();
    while_keys_move(&cluster(), &cluster());
}
