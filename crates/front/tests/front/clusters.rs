//! A front of which the source, the target or both are clusters.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use whimbrel_core::slot::Slot;
use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Cluster, Engine, Server};

use crate::common::{Between, Client, Served, alone, command, wait_until};

pub fn cluster(engine: Engine) -> Cluster {
    Cluster::builder(engine).primaries(3).start().expect("a cluster")
}

fn server(engine: Engine) -> Server {
    Server::builder(engine).start().expect("a server")
}

pub fn slot(key: &str) -> u16 {
    Slot::of_key(key.as_bytes()).number()
}

/// A key of this node, whose name begins so.
pub fn key_of(cluster: &Cluster, node: usize, name: &str) -> String {
    let mut names = (0..).map(|n| format!("{name}{n}"));
    let is_there = |key: &String| cluster.owner_of(slot(key)).expect("an owner") == node;
    names.find(is_there).expect("there is no end of names")
}

/// Two names, in slots of different nodes of a cluster of three.
const FAR: [&str; 2] = ["{a}1", "{b}1"];

fn is_done(between: &Between) -> bool {
    serde_json::to_value(between.status()).expect("JSON")["phase"] == "done"
}

/// All keys that `SCAN` gives.
fn scanned(client: &mut Client) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        client.send(&command(&["SCAN", &cursor, "COUNT", "20"]));
        assert_eq!(client.line(), "*2\r\n");
        client.line();
        cursor = client.line().trim().to_owned();
        let count: usize = client.line()[1..].trim().parse().expect("a number");
        for _ in 0..count {
            client.line();
            keys.push(client.line().trim().to_owned());
        }
        if cursor == "0" {
            return keys;
        }
    }
}

#[test]
fn a_cluster_is_served_like_one_server() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    let front = Served::of(&cluster.seed());
    let mut client = front.client();
    // A pipeline over all nodes is answered in its order.
    let many: Vec<u8> = (0..500).flat_map(|i| command(&["SET", &format!("k{i}"), &i.to_string()])).collect();
    client.send(&many);
    client.expect(&b"+OK\r\n".repeat(500));
    let many: Vec<u8> = (0..500).flat_map(|i| command(&["GET", &format!("k{i}")])).collect();
    client.send(&many);
    for i in 0..500 {
        let text = i.to_string();
        client.expect(format!("${}\r\n{text}\r\n", text.len()).as_bytes());
    }
    // Of all nodes.
    client.ask(&["DBSIZE"], ":500\r\n");
    let keys = scanned(&mut client);
    assert_eq!(keys.len(), 500);
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 500);
    client.send(&command(&["KEYS", "k49*"]));
    assert_eq!(client.line(), "*11\r\n");
    (0..22).for_each(|_| drop(client.line()));
    assert!(client.asks(&["RANDOMKEY"]).starts_with('k'));
    let sha = client.asks(&["SCRIPT", "LOAD", "return redis.call('get', KEYS[1])"]);
    for i in 0..20 {
        let (key, text) = (format!("k{i}"), i.to_string());
        client.ask(&["EVALSHA", sha.trim(), "1", &key], &format!("${}\r\n{text}\r\n", text.len()));
    }
    // Keys of one slot, and of several.
    client.ask(&["MSET", "{x}1", "a", "{x}2", "b"], "+OK\r\n");
    client.ask(&["MGET", "{x}2", "{x}1"], "*2\r\n$1\r\nb\r\n$1\r\na\r\n");
    client.ask(&["MGET", "k1", "k2"], "-CROSSSLOT Keys in request don't hash to the same slot\r\n");
    client.ask(
        &["ZUNIONSTORE", "{x}z", "2", "{x}none", "k1"],
        "-CROSSSLOT Keys in request don't hash to the same slot\r\n",
    );
    // As a server without others answers.
    client.ask(&["CLUSTER", "INFO"], "-ERR This instance has cluster support disabled\r\n");
    client.ask(&["SELECT", "0"], "+OK\r\n");
    client.ask(&["SELECT", "1"], "-ERR SELECT is not allowed in cluster mode\r\n");
    client.send(&command(&["CONFIG", "SET", "maxmemory", "1"]));
    assert!(client.line().contains("refuses CONFIG: a cluster has many nodes"));
    // Long values, and long commands.
    let long = "x".repeat(3 << 20);
    client.send(&command(&["SET", "{x}1", &long]));
    client.send(&command(&["MSET", "{x}3", &long, "{x}4", &long]));
    client.ask(&["STRLEN", "{x}1"], "+OK\r\n+OK\r\n:3145728\r\n");
    client.ask(&["STRLEN", "{x}4"], ":3145728\r\n");
    assert_eq!(client.asks(&["GET", "{x}1"]).len(), long.len() + 2);
    client.ask(&["FLUSHALL"], "+OK\r\n");
    client.ask(&["DBSIZE"], ":0\r\n");
    client.ask(&["QUIT"], "+OK\r\n");
    assert!(client.rest().is_empty());
}

#[test]
fn transactions_go_to_the_node_of_their_keys() {
    let _alone = alone();
    let cluster = cluster(Engine::Valkey91);
    let front = Served::of(&cluster.seed());
    let mut client = front.client();
    let mut other = front.client();
    for key in FAR {
        let [first, second] = [1, 2].map(|n| format!("{key}:{n}"));
        client.ask(&["WATCH", &first], "+OK\r\n");
        client.ask(&["MULTI"], "+OK\r\n");
        client.ask(&["PING"], "+QUEUED\r\n");
        client.ask(&["SET", &first, "v"], "+QUEUED\r\n");
        client.ask(&["INCR", &second], "+QUEUED\r\n");
        client.ask(&["EXEC"], "*3\r\n+PONG\r\n+OK\r\n:1\r\n");
        // Without a watch it is not known at first where it goes.
        client.ask(&["MULTI"], "+OK\r\n");
        client.ask(&["ECHO", "x"], "+QUEUED\r\n");
        client.ask(&["GET", &first], "+QUEUED\r\n");
        client.ask(&["EXEC"], "*2\r\n$1\r\nx\r\n$1\r\nv\r\n");
        client.ask(&["WATCH", &first], "+OK\r\n");
        other.ask(&["SET", &first, "w"], "+OK\r\n");
        client.ask(&["MULTI"], "+OK\r\n");
        client.ask(&["SET", &first, "lost"], "+QUEUED\r\n");
        client.ask(&["EXEC"], "*-1\r\n");
        client.ask(&["GET", &first], "$1\r\nw\r\n");
    }
    // All of it comes at once.
    let lines: [&[&str]; 5] = [&["MULTI"], &["INCR", "n"], &["EXEC"], &["GET", "n"], &["GET", "none"]];
    client.send(&lines.iter().flat_map(|words| command(words)).collect::<Vec<u8>>());
    client.expect(b"+OK\r\n+QUEUED\r\n*1\r\n:1\r\n$1\r\n1\r\n$-1\r\n");
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["EXEC"], "*0\r\n");
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["SET", FAR[0], "v"], "+QUEUED\r\n");
    client.ask(&["SET", FAR[1], "v"], "-CROSSSLOT Keys in request don't hash to the same slot\r\n");
    client.send(&command(&["EXEC"]));
    assert!(client.line().starts_with("-EXECABORT"));
    client.ask(&["MULTI"], "+OK\r\n");
    client.send(&command(&["DBSIZE"]));
    assert!(client.line().contains("refuses DBSIZE: in a transaction"));
    client.ask(&["SET", FAR[0], "v"], "+QUEUED\r\n");
    client.send(&command(&["EXEC"]));
    assert!(client.line().starts_with("-EXECABORT"));
    client.ask(&["EXISTS", FAR[0]], ":0\r\n");
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["DISCARD"], "+OK\r\n");
    client.ask(&["EXEC"], "-ERR EXEC without MULTI\r\n");
}

#[test]
fn messages_reach_clients_of_both_protocols() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    let front = Served::of(&cluster.seed());
    let (mut older, mut newer, mut speaker) = (front.client(), front.client(), front.client());
    older.ask(&["SUBSCRIBE", "c"], "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    newer.send(&command(&["HELLO", "3"]));
    while newer.line() != "modules\r\n" {}
    newer.expect(b"*0\r\n");
    newer.ask(&["SUBSCRIBE", "c"], ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    speaker.send(&command(&["PUBLISH", "c", "m"]));
    assert!(speaker.line().starts_with(':'));
    older.expect(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    newer.expect(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    // With the newer one everything else goes on, wherever it is.
    for key in FAR {
        newer.ask(&["SET", key, "v"], "+OK\r\n");
        newer.ask(&["GET", key], "$1\r\nv\r\n");
    }
    older.ask(&["UNSUBSCRIBE", "c"], "*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n");
    let replies: Vec<String> = FAR
        .map(|key| {
            older.send(&command(&["EXISTS", key]));
            older.line()
        })
        .into();
    // One of them at least is of another node.
    assert!(replies.iter().any(|reply| reply.contains("needs another connection")), "{replies:?}");
    assert!(replies.iter().all(|reply| !reply.contains("MOVED")), "{replies:?}");
}

/// A command that a node cannot carry out now, as its keys are at two, is not carried out after those that
/// the client has sent behind it.
#[test]
fn what_is_sent_behind_a_command_stays_behind_it() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    let served = Served::of(&cluster.seed());
    let mut client = served.client();
    client.ask(&["SET", "{t}a", "0"], "+OK\r\n");
    let (from, number) = (cluster.owner_of(slot("{t}")).expect("an owner"), slot("{t}").to_string());
    let to = (from + 1) % cluster.primaries().len();
    cluster.nodes()[to].call(&["CLUSTER", "SETSLOT", &number, "IMPORTING", cluster.node_id(from)]);
    cluster.nodes()[from].call(&["CLUSTER", "SETSLOT", &number, "MIGRATING", cluster.node_id(to)]);
    let sent = [&["MSET", "{t}a", "1", "{t}b", "1"][..], &["SET", "{t}a", "2"], &["GET", "{t}a"]];
    client.send(&sent.map(command).concat());
    let there = || cluster.nodes()[from].call(&["GET", "{t}a"]);
    wait_until("the second is carried out", || there() == redis::Value::BulkString(b"2".to_vec()));
    // Now the first one could be carried out as well.
    cluster.nodes()[from].call(&["CLUSTER", "SETSLOT", &number, "STABLE"]);
    let first = client.reply();
    client.expect(b"+OK\r\n$1\r\n2\r\n");
    assert!(first.starts_with("-TRYAGAIN"), "{first}");
    // One behind which nothing has been sent waits until it can be carried out.
    cluster.nodes()[from].call(&["CLUSTER", "SETSLOT", &number, "MIGRATING", cluster.node_id(to)]);
    client.send(&command(&["MSET", "{t}a", "3", "{t}b", "3"]));
    for node in [from, to] {
        cluster.nodes()[node].call(&["CLUSTER", "SETSLOT", &number, "STABLE"]);
    }
    client.expect(b"+OK\r\n");
    client.ask(&["GET", "{t}a"], "$1\r\n3\r\n");
}

/// Its replica has taken over from a primary that says nothing and keeps its connections.
#[test]
fn a_primary_that_hangs_is_left_once_it_was_replaced() {
    let _alone = alone();
    let cluster = Cluster::builder(Engine::Valkey81).primaries(3).replicas(1).node_timeout_ms(5_000).start();
    let cluster = cluster.expect("a cluster");
    let served = Served::of(&cluster.seed());
    let key = key_of(&cluster, 0, "k");
    let mut client = served.client();
    client.ask(&["SET", &key, "v"], "+OK\r\n");
    client.ask(&["WAIT", "1", "0"], ":1\r\n");
    cluster.nodes()[0].suspend().expect("suspended");
    let mut waiting = served.client();
    waiting.send(&command(&["GET", &key]));
    cluster.wait_failover(0).expect("a replica takes over");
    // It ends: what became of its request is not known.
    assert!(waiting.rest().is_empty(), "nobody has answered it");
    served.client().ask(&["GET", &key], "$1\r\nv\r\n");
    cluster.nodes()[0].resume().expect("resumed");
}

/// A cluster that does not notice for long that a primary has died, with a key of the last one, and one of
/// the first.
fn slow_to_notice() -> (Cluster, [String; 2]) {
    let cluster = Cluster::builder(Engine::Redis70).primaries(3).node_timeout_ms(120_000).start();
    let cluster = cluster.expect("a cluster");
    let keys = [key_of(&cluster, 2, "dead"), key_of(&cluster, 0, "k")];
    (cluster, keys)
}

/// What is left of a long request goes nowhere, and what the client sends behind it is answered.
#[test]
fn a_long_request_to_a_node_that_cannot_be_reached_is_passed_over() {
    let _alone = alone();
    let (cluster, [dead, key]) = slow_to_notice();
    let served = Served::of(&cluster.seed());
    cluster.kill9(2).expect("killed");
    let mut client = served.client();
    let long = command(&["SET", &dead, &"v".repeat(4 << 20)]);
    client.send(&[long, command(&["SET", &key, "v"])].concat());
    let refused = client.line();
    assert!(refused.starts_with("-CLUSTERDOWN"), "{refused}");
    client.expect(b"+OK\r\n");
    // Its node begins with a request, not within one.
    cluster.nodes()[2].restart().expect("it runs again");
    cluster.wait_ok().expect("all is well");
    client.ask(&["SET", &dead, "v"], "+OK\r\n");
}

/// Requests that are to be sent again elsewhere fill nothing that is never emptied.
#[test]
fn many_requests_to_a_node_that_cannot_be_reached_are_answered() {
    let _alone = alone();
    let (cluster, [dead, key]) = slow_to_notice();
    let served = Served::of(&cluster.seed());
    cluster.kill9(2).expect("killed");
    let mut client = served.client();
    client.ask(&["SET", &key, "v"], "+OK\r\n");
    // Its reply comes last, so that those to the other node are under way until then.
    let (first, many) = (command(&["BLPOP", &format!("{{{key}}}queue"), "1"]), 4);
    let other = command(&["SET", &dead, &"v".repeat(200 << 10)]);
    client.send(&[first, other.repeat(many), command(&["GET", &key])].concat());
    client.expect(b"*-1\r\n");
    // They are tried for a while, so some may be carried out.
    cluster.nodes()[2].restart().expect("it runs again");
    for _ in 0..many {
        let reply = client.line();
        assert!(reply == "+OK\r\n" || reply.starts_with("-CLUSTERDOWN"), "{reply}");
    }
    client.expect(b"$1\r\nv\r\n");
}

/// It listens to nobody then, and is notified once.
#[test]
fn who_cannot_listen_says_so() {
    let _alone = alone();
    let (cluster, [dead, key]) = slow_to_notice();
    let served = Served::of(&cluster.seed());
    let (mut client, mut older) = (served.client(), served.client());
    // All that a client of the newer protocol needs without a key is at the first node that it uses.
    client.ask(&["SET", &key, "v"], "+OK\r\n");
    client.send(&command(&["HELLO", "3"]));
    assert!(client.reply().starts_with('%'));
    cluster.kill9(2).expect("killed");
    client.send(&command(&["SSUBSCRIBE", &dead]));
    let refused = client.line();
    assert!(refused.starts_with("-CLUSTERDOWN"), "{refused}");
    client.ask(&["GET", &key], "$1\r\nv\r\n");
    // With the older protocol nobody can say which answer is whose: it ends.
    older.send(&command(&["SSUBSCRIBE", &dead]));
    let reply = String::from_utf8(older.rest()).expect("text");
    assert!(reply.starts_with("-CLUSTERDOWN") && reply.lines().count() == 1, "{reply}");
}

/// Slots go to and fro while clients count: each number is counted once, and nobody hears of it.
#[test]
fn no_client_notices_that_slots_move() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    slots_move_unnoticed(&cluster, &Served::of(&cluster.seed()));
}

/// Slots of `cluster` go to and fro behind this front.
pub fn slots_move_unnoticed(cluster: &Cluster, front: &Served) {
    const KEYS: usize = 8;
    let moving = AtomicBool::new(true);
    let counted: u64 = std::thread::scope(|scope| {
        let counters: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut rounds) = (front.client(), 0);
                    while moving.load(Ordering::Relaxed) {
                        let all: Vec<u8> =
                            (0..KEYS).flat_map(|k| command(&["INCR", &format!("{{t}}{k}")])).collect();
                        client.send(&all);
                        for _ in 0..KEYS {
                            let reply = client.line();
                            assert!(reply.starts_with(':'), "{reply}");
                        }
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let slot = slot("{t}");
        let mut at = cluster.owner_of(slot).expect("an owner");
        for _ in 0..6 {
            let to = (at + 1) % 3;
            cluster.move_slot(slot, at, to).expect("it moves");
            at = to;
            std::thread::sleep(Duration::from_millis(50));
        }
        moving.store(false, Ordering::Relaxed);
        counters.into_iter().map(|counter| counter.join().expect("it counted")).sum()
    });
    assert!(counted > 0);
    let mut client = front.client();
    for k in 0..KEYS {
        let text = counted.to_string();
        client.ask(&["GET", &format!("{{t}}{k}")], &format!("${}\r\n{text}\r\n", text.len()));
    }
}

/// Moves everything, from whatever to whatever.
fn moves_all(between: &Between, keys: usize) {
    let mut client = between.client();
    for i in 0..keys {
        client.ask(&["SET", &format!("k{i}"), &i.to_string()], "+OK\r\n");
    }
    client.ask(&["SET", "{m}1", "a"], "+OK\r\n");
    client.ask(&["PEXPIREAT", "{m}1", "4102444800000"], ":1\r\n");
    between.start_paused().expect("it begins");
    let moved = || serde_json::to_value(between.status()).expect("JSON")["moving"]["moved"].clone();
    client.ask(&["GET", "k1"], "$1\r\n1\r\n");
    assert_eq!(moved(), 0);
    client.ask(&["APPEND", "k1", "!"], ":2\r\n");
    assert_eq!(moved(), 1);
    client.ask(&["GET", "k1"], "$2\r\n1!\r\n");
    client.ask(&["DEL", "k2"], ":1\r\n");
    client.ask(&["DBSIZE"], &format!(":{keys}\r\n"));
    let scanned = scanned(&mut client);
    assert_eq!(scanned.iter().collect::<HashSet<_>>().len(), keys);
    // A transaction is the target's.
    client.ask(&["WATCH", "{m}1"], "+OK\r\n");
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["GET", "{m}1"], "+QUEUED\r\n");
    client.ask(&["SET", "{m}2", "b", "KEEPTTL"], "+QUEUED\r\n");
    client.ask(&["EXEC"], "*2\r\n$1\r\na\r\n+OK\r\n");
    client.ask(&["PEXPIRETIME", "{m}1"], ":4102444800000\r\n");
    between.resume();
    wait_until("all keys have moved", || is_done(between));
    client.ask(&["DBSIZE"], &format!(":{}\r\n", keys + 1));
    client.ask(&["GET", "k1"], "$2\r\n1!\r\n");
    for i in 3..keys {
        let text = i.to_string();
        client.ask(&["GET", &format!("k{i}")], &format!("${}\r\n{text}\r\n", text.len()));
    }
    between.finish().expect("it is done");
}

#[test]
fn keys_move_from_a_server_to_a_cluster() {
    let _alone = alone();
    let (source, target) = (server(Engine::Redis70), cluster(Engine::Valkey91));
    moves_all(&Between::of(&source, &target), 2_000);
    assert_eq!(source.call(&["DBSIZE"]), redis::Value::Int(0));
    assert_eq!(target.total_keys().expect("a number"), 2_001);
}

#[test]
fn keys_move_from_a_cluster_to_a_server() {
    let _alone = alone();
    let (source, target) = (cluster(Engine::Redis80), server(Engine::Redis80));
    moves_all(&Between::of(&source, &target), 2_000);
    assert_eq!(source.total_keys().expect("a number"), 0);
}

#[test]
fn keys_move_between_clusters() {
    let _alone = alone();
    let (source, target) = (cluster(Engine::Redis70), cluster(Engine::Valkey81));
    let between = Between::of(&source, &target);
    let mut client = between.client();
    client.ask(&["GET", "none"], "$-1\r\n");
    moves_all(&between, 2_000);
    // The client of before is still served.
    client.ask(&["GET", "k3"], "$1\r\n3\r\n");
    assert_eq!(source.total_keys().expect("a number"), 0);
    assert_eq!(target.total_keys().expect("a number"), 2_001);
}

/// What a crash has left: a key on both sides, others on either.
#[test]
fn after_a_crash_between_clusters_the_target_is_gone_through() {
    let _alone = alone();
    let (source, target) = (cluster(Engine::Redis70), cluster(Engine::Redis70));
    let call = |cluster: &Cluster, words: &[&str]| {
        let node = cluster.owner_of(slot(words[1])).expect("an owner");
        cluster.nodes()[node].call(words)
    };
    for i in 0..300 {
        let key = format!("k{i}");
        if i % 3 != 0 {
            call(&source, &["SET", &key, "old"]);
        }
        if i % 3 != 1 {
            call(&target, &["SET", &key, if i % 3 == 0 { "new" } else { "old" }]);
        }
    }
    let between = Between::after(Phase::Moving, &source, &target);
    let mut client = between.client();
    client.ask(&["GET", "k0"], "$3\r\nnew\r\n");
    client.ask(&["APPEND", "k2", "!"], ":4\r\n");
    wait_until("all keys have moved", || is_done(&between));
    client.ask(&["GET", "k2"], "$4\r\nold!\r\n");
    assert_eq!(source.total_keys().expect("a number"), 0);
    assert_eq!(target.total_keys().expect("a number"), 300);
}

#[test]
fn one_cluster_is_not_taken_for_two() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    let between = Between::of(&cluster, &cluster.nodes()[1]);
    let error = between.start().expect_err("it is the same").to_string();
    assert!(error.contains("it is the source as well"), "{error}");
}

fn move_status(between: &Between) -> serde_json::Value {
    serde_json::to_value(between.status()).expect("JSON")["moving"].clone()
}

#[test]
fn slots_begin_with_the_first_of_their_keys_and_are_done_with_the_last() {
    let _alone = alone();
    let (source, target) = (cluster(Engine::Valkey81), server(Engine::Valkey81));
    for i in 0..1_000 {
        let key = if i < 300 { format!("{{m}}{i}") } else { format!("k{i}") };
        let node = source.owner_of(slot(&key)).expect("an owner");
        source.nodes()[node].call(&["SET", &key, "v"]);
    }
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    client.ask(&["GET", "{m}1"], "$1\r\nv\r\n");
    let slots = |done: u16, moving: u16| {
        let not_begun = Slot::COUNT - done - moving;
        serde_json::json!({ "done": done, "moving": moving, "not_begun": not_begun })
    };
    let shown = move_status(&between);
    assert_eq!((&shown["slots"], &shown["filter_bytes"]), (&slots(0, 0), &0.into()), "a read moves nothing");
    client.ask(&["APPEND", "{m}1", "!"], ":2\r\n");
    client.ask(&["GET", "{m}2"], "$1\r\nv\r\n");
    let shown = move_status(&between);
    assert_eq!((&shown["slots"], &shown["filter_keys"]), (&slots(0, 1), &1.into()));
    assert_eq!(shown["forwarded"], 2, "what has not arrived is read at the source");
    between.resume();
    wait_until("all keys have moved", || is_done(&between));
    let shown = move_status(&between);
    assert_eq!((&shown["slots"], &shown["filter_bytes"]), (&slots(Slot::COUNT, 0), &0.into()));
    client.ask(&["GET", "{m}1"], "$2\r\nv!\r\n");
    client.ask(&["DBSIZE"], ":1000\r\n");
}

#[test]
fn a_slot_is_not_done_while_keys_of_it_stay_and_is_watched_afterwards() {
    let _alone = alone();
    let (source, target) = (cluster(Engine::Redis80), server(Engine::Redis70));
    let at = |key: &str| &source.nodes()[source.owner_of(slot(key)).expect("an owner")];
    // More than are asked for at a time, so that the others are behind them.
    for i in 0..250 {
        let key = format!("{{s}}{i}");
        at(&key).call(&["HSET", &key, "f", "v"]);
        at(&key).call(&["HPEXPIREAT", &key, "4102444800123", "FIELDS", "1", "f"]);
    }
    for key in ["{s}can", "a", "b"] {
        at(key).call(&["SET", key, "v"]);
    }
    let between = Between::of(&source, &target);
    between.start().expect("it begins");
    let mut client = between.client();
    wait_until("all that can has moved", || move_status(&between)["staying"] == 250);
    let shown = move_status(&between);
    assert_eq!((&shown["slots"]["moving"], &shown["left"]), (&1.into(), &250.into()));
    assert_eq!(target.call(&["DBSIZE"]), redis::Value::Int(3));
    client.ask(&["HGET", "{s}7", "f"], "$1\r\nv\r\n");
    // A slot that is done is believed to be, and looked at all the same.
    client.ask(&["APPEND", "a", "!"], ":2\r\n");
    at("a").call(&["SET", "a", "other"]);
    wait_until("it is reported", || {
        move_status(&between)["trouble"]
            .as_str()
            .is_some_and(|text| text.contains("1 keys are at the source again"))
    });
    client.ask(&["GET", "a"], "$2\r\nv!\r\n");
    at("a").call(&["DEL", "a"]);
    for i in 0..250 {
        let key = format!("{{s}}{i}");
        at(&key).call(&["HPERSIST", &key, "FIELDS", "1", "f"]);
    }
    wait_until("all keys have moved", || is_done(&between));
    assert_eq!(target.call(&["DBSIZE"]), redis::Value::Int(253));
    client.ask(&["GET", "a"], "$2\r\nv!\r\n");
}

#[test]
fn keys_that_stay_hide_no_others_however_many_they_are() {
    let _alone = alone();
    let (source, target) = (cluster(Engine::Redis80), server(Engine::Redis70));
    let at = |key: &str| &source.nodes()[source.owner_of(slot(key)).expect("an owner")];
    // More than are remembered.
    let fill = "for i = 1, 2300 do local key = KEYS[1] .. i; redis.call('HSET', key, 'f', 'v'); \
                redis.call('HPEXPIREAT', key, 4102444800123, 'FIELDS', 1, 'f') end return 1";
    assert_eq!(at("{s}").call(&["EVAL", fill, "1", "{s}"]), redis::Value::Int(1));
    for key in ["{s}can", "a", "b"] {
        at(key).call(&["SET", key, "v"]);
    }
    let between = Between::of(&source, &target);
    between.start().expect("it begins");
    wait_until("all that can has moved", || move_status(&between)["staying"] == 2_300);
    let shown = move_status(&between);
    assert_eq!((&shown["left"], &shown["trouble"]), (&2_300.into(), &serde_json::Value::Null));
    assert_eq!(target.call(&["DBSIZE"]), redis::Value::Int(3));
    let done: serde_json::Value = (Slot::COUNT - 1).into();
    assert_eq!(shown["slots"]["done"], done, "all but that of the keys that stay");
    at("{s}").call(&["FLUSHALL"]);
    wait_until("all keys have moved", || is_done(&between));
}

#[test]
fn a_slot_is_not_done_while_one_of_its_keys_is_on_its_way() {
    let _alone = alone();
    let (source, target) = (cluster(Engine::Redis80), server(Engine::Redis70));
    let at = |key: &str| &source.nodes()[source.owner_of(slot(key)).expect("an owner")];
    // The background comes to the group of the second when it is through with that of the first. The earliest
    // is in the first slots that are listed: the background waits with it until keys move again, so it has
    // not seen the first one yet.
    let (first, second) = ("b", "a");
    let earliest = (0..).map(|n| format!("k{n}")).find(|key| slot(key) < 16).expect("there is one");
    let before = slot(second) / 256 * 256;
    assert!((256..before).contains(&slot(first)));
    for key in [&earliest, first, second] {
        at(key).call(&["SET", key, "v"]);
    }
    let listed = || -> u64 {
        let stats: String =
            redis::from_redis_value(at(&earliest).call(&["INFO", "commandstats"])).expect("statistics");
        let calls = stats.split_once("cmdstat_cluster|getkeysinslot:calls=").map_or("0", |(_, calls)| calls);
        calls.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number")
    };
    let listed_before = listed();
    let between = Between::with_wait(&source, &target, Duration::from_secs(60));
    between.start_paused().expect("it begins");
    wait_until("the first slots are listed", || listed() >= listed_before + 16);
    let mut client = between.client();
    client.ask(&["APPEND", &earliest, "!"], ":2\r\n");
    client.ask(&["GET", first], "$1\r\nv\r\n");
    target.suspend().expect("suspended");
    client.send(&command(&["APPEND", first, "!"]));
    wait_until("it waits for its key", || move_status(&between)["waiting"] == 1);
    // As if it expired there meanwhile: nothing is left of it but what is on its way.
    at(first).call(&["DEL", first]);
    between.resume();
    let done = || move_status(&between)["slots"]["done"].as_u64();
    wait_until("all slots before the second are done", || done() >= Some(u64::from(before) - 1));
    assert_eq!(done(), Some(u64::from(before) - 1), "that of the first is not");
    target.resume().expect("resumed");
    let length = client.line();
    assert!([":1\r\n", ":2\r\n"].contains(&&length[..]), "{length}");
    wait_until("all keys have moved", || is_done(&between));
}
