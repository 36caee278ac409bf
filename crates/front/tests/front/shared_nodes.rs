//! Clients that share connections to the nodes of a cluster see no difference either.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use whimbrel_lab::{Cluster, Engine, Server};

use crate::clusters::{cluster, key_of, slots_move_unnoticed};
use crate::common::{Client, Served, alone, command, wait_until};
use crate::sharing::{
    are_answered_alike, are_carried_out_in_order, are_counted_once, askers, begin_to_move_at_rest, count,
    have_their_own_rights, keep_to_their_own, logs_in_by_a_refused_hello,
};

#[test]
fn many_clients_have_few_connections_to_each_node() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    let served = Served::sharing(&cluster.seed(), 2);
    let mut clients: Vec<Client> = (0..12).map(|_| served.client()).collect();
    for (node, server) in cluster.nodes().iter().enumerate() {
        let key = key_of(&cluster, node, "k");
        // The first reply comes on the client's own connection.
        clients.iter_mut().for_each(|client| client.ask(&["EXISTS", &key], ":0\r\n"));
        let shared = askers(server, "\"APPEND\"", || {
            for _ in 0..5 {
                clients.iter_mut().for_each(|client| client.send(&command(&["APPEND", &key, "x"])));
                clients.iter_mut().for_each(|client| assert!(client.reply().starts_with(':')));
            }
        });
        assert_eq!(shared.len(), 2, "{shared:?}");
        // Scripts are each client's own affair. Which of their words are keys is asked elsewhere.
        let own = askers(server, "] \"EVAL\"", || {
            clients.iter_mut().for_each(|client| client.ask(&["EVAL", "return 7", "1", &key], ":7\r\n"));
        });
        assert_eq!((own.len(), own.intersection(&shared).count()), (12, 0), "{own:?}");
        clients[0].ask(&["STRLEN", &key], ":60\r\n");
    }
    // A client that has changed what commands do on its connection stays on it.
    let key = key_of(&cluster, 0, "k");
    let eval = || clients[0].ask(&["EVAL", "return 7", "1", &key], ":7\r\n");
    let own = askers(&cluster.nodes()[0], "] \"EVAL\"", eval);
    for is_alone in [false, true] {
        let read = || clients[0].ask(&["GETRANGE", &key, "0", "0"], "$1\r\nx\r\n");
        let asker = askers(&cluster.nodes()[0], "\"GETRANGE\"", read);
        assert_eq!(asker == own, is_alone, "{asker:?}");
        clients[0].ask(&["CLIENT", "NO-EVICT", "on"], "+OK\r\n");
    }
}

#[test]
fn replies_are_those_without_sharing_turn_by_turn() {
    let _alone = alone();
    let lines = "PING|SET k v|GET k|GET missing|INCR k|MSET {k}a 1 {k}b 2|MGET {k}a k {k}b\
        |MGET k missing|MULTI|SET k 2|GET k|EXEC|GET k|WATCH k|GET k|SET k 3|MULTI|GET k\
        |EXEC|GET k|RPUSH l 1 2|BLPOP l 1|LRANGE l 0 -1|SELECT 3|SELECT 0|GET k\
        |EVAL return{1} 0|GET k|CLIENT SETNAME me|GET k|CLIENT GETNAME|HELLO 3\
        |HSET h f v|HGETALL h|HGETALL h|CLIENT GETNAME|GET missing|HELLO 2|HGETALL h\
        |RESET|GET k|GET|NOSUCH|SET k v EX 0|MULTI|SET k 4|DISCARD|GET k|SUBSCRIBE c\
        |UNSUBSCRIBE c|GET k|PUBLISH c x|XADD s 1-1 f v|XREAD COUNT 1 STREAMS s 0\
        |OBJECT ENCODING k|SORT l|DEL k l h|DBSIZE|WAIT 0 0|GET k";
    let (one, other) = (cluster(Engine::Valkey91), cluster(Engine::Valkey91));
    let (own, shared) = (Served::of(&one.seed()), Served::sharing(&other.seed(), 1));
    are_answered_alike(lines, own.client(), shared.client());
}

#[test]
fn what_is_sent_at_once_is_carried_out_in_its_order() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis80);
    are_carried_out_in_order(&Served::sharing(&cluster.seed(), 1));
}

#[test]
fn users_have_their_own_rights() {
    let _alone = alone();
    let cluster = cluster_with_reader();
    have_their_own_rights(&Served::sharing(&cluster.seed(), 1), || want_password(&cluster));
}

/// One with a user `reader`.
fn cluster_with_reader() -> Cluster {
    let cluster = cluster(Engine::Redis70);
    for node in cluster.nodes() {
        node.call(&["ACL", "SETUSER", "reader", "on", ">pw", "~r:*", "+get", "+hello"]);
    }
    cluster
}

fn want_password(cluster: &Cluster) {
    for node in cluster.nodes() {
        node.call(&["CONFIG", "SET", "requirepass", "sesame"]);
    }
}

#[test]
fn a_user_who_was_logged_in_by_a_refused_hello_has_no_other_rights() {
    let _alone = alone();
    let cluster = cluster_with_reader();
    let [its, secret] = ["r:", "k"].map(|start| key_of(&cluster, 0, start));
    let served = Served::sharing(&cluster.seed(), 1);
    logs_in_by_a_refused_hello(&served, [&its, &secret], || want_password(&cluster));
}

#[test]
fn clients_keep_to_their_own_connections_where_no_other_can_be_opened() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    let key = key_of(&cluster, 0, "k");
    keep_to_their_own(&Served::sharing(&cluster.seed(), 2), &key, &cluster.nodes()[0]);
}

/// What comes from one node waits until another one has answered, and nobody else waits for that.
#[test]
fn replies_that_wait_for_another_node_are_kept() {
    let _alone = alone();
    let cluster = Cluster::builder(Engine::Redis70).primaries(3).node_timeout_ms(60_000).start();
    let cluster = cluster.expect("a cluster");
    let served = Served::sharing(&cluster.seed(), 1);
    let (slow, key) = (key_of(&cluster, 0, "slow"), key_of(&cluster, 1, "k"));
    let mut clients: Vec<Client> = (0..5).map(|_| served.client()).collect();
    for client in &mut clients {
        client.ask(&["EXISTS", &slow], ":0\r\n");
        client.ask(&["SETRANGE", &key, "19999", "x"], ":20000\r\n");
    }
    cluster.nodes()[0].suspend().expect("suspended");
    let (asker, others) = clients.split_first_mut().expect("there are some");
    asker.send(&[command(&["GET", &slow]), command(&["GET", &key]).repeat(400)].concat());
    for _ in 0..300 {
        others.iter_mut().for_each(|other| other.ask(&["STRLEN", &key], ":20000\r\n"));
    }
    thread::sleep(Duration::from_millis(1_500));
    cluster.nodes()[0].resume().expect("resumed");
    asker.expect(b"$-1\r\n");
    (0..400).for_each(|_| assert_eq!(asker.reply().len(), "$20000\r\n\r\n".len() + 20_000));
}

#[test]
fn wait_waits_for_what_was_written_on_a_shared_connection() {
    let _alone = alone();
    let cluster = Cluster::builder(Engine::Redis70).primaries(3).replicas(1).start().expect("a cluster");
    let served = Served::sharing(&cluster.seed(), 1);
    let (mut client, key) = (served.client(), key_of(&cluster, 0, "k"));
    client.ask(&["EXISTS", &key], ":0\r\n");
    wait_until("the replicas are there", || {
        client.send(&command(&["WAIT", "1", "100"]));
        client.reply() == ":1\r\n"
    });
    let replica = &cluster.replicas_of(0)[0];
    replica.suspend().expect("suspended");
    let shared = askers(&cluster.nodes()[0], "\"SET\"", || client.ask(&["SET", &key, "1"], "+OK\r\n"));
    client.ask(&["WAIT", "1", "300"], ":0\r\n");
    client.ask(&["SET", &key, "2"], "+OK\r\n");
    replica.resume().expect("resumed");
    client.ask(&["WAIT", "1", "20000"], ":1\r\n");
    let own = askers(&cluster.nodes()[0], "\"WAIT\"", || client.ask(&["WAIT", "0", "0"], ":1\r\n"));
    assert!(shared.is_disjoint(&own), "{shared:?} {own:?}");
}

#[test]
fn no_client_notices_that_slots_move() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    slots_move_unnoticed(&cluster, &Served::sharing(&cluster.seed(), 1));
}

#[test]
fn nothing_is_done_twice_when_shared_connections_break() {
    let _alone = alone();
    let cluster = cluster(Engine::Redis70);
    let served = Served::sharing(&cluster.seed(), 2);
    let stop = AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        let counting = scope.spawn(|| count(|| served.client(), 8, &stop));
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(50));
            for node in cluster.nodes() {
                node.call(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
        }
        stop.store(true, Ordering::Relaxed);
        counting.join().expect("counted")
    });
    are_counted_once(&mut served.client(), counted);
}

#[test]
fn keys_begin_to_move_when_nothing_is_under_way() {
    let _alone = alone();
    let to = Server::builder(Engine::Redis70).start().expect("a server");
    begin_to_move_at_rest(&cluster(Engine::Redis70), &to);
    begin_to_move_at_rest(&cluster(Engine::Redis70), &cluster(Engine::Valkey91));
}
