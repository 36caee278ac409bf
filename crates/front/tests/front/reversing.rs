//! Keys that move back, and to and fro, while clients are served.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use serde_json::Value as Json;
use whimbrel_front::migrate::direction::REVERSALS_MAX;
use whimbrel_front::migrate::phase::{Phase, Stand};
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, Client, alone, command, wait_until};

fn start(engine: Engine) -> Server {
    Server::builder(engine).start().expect("a server")
}

fn pair() -> (Server, Server) {
    (start(Engine::Redis70), start(Engine::Valkey91))
}

fn status(between: &Between) -> Json {
    serde_json::to_value(between.status()).expect("JSON")
}

#[track_caller]
fn wait_until_done(between: &Between) {
    wait_until("all keys have moved", || status(between)["phase"] == "done");
}

fn fill(server: &Server, keys: usize) {
    for i in 0..keys {
        server.call(&["SET", &format!("k{i}"), &i.to_string()]);
    }
}

fn count(server: &Server) -> i64 {
    match server.call(&["DBSIZE"]) {
        Value::Int(n) => n,
        other => panic!("{other:?}"),
    }
}

fn refusal(between: &Between) -> String {
    between.reverse().expect_err("it cannot be turned").to_string()
}

/// The process that goes on after one that died leaves the background as somebody has left it.
#[test]
fn a_pause_is_kept_by_the_process_that_comes_next() {
    let _alone = alone();
    let (source, target) = pair();
    fill(&source, 50);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let between = between.run_again(&source, &target);
    assert_eq!(status(&between)["moving"]["paused"], true);
    let mut client = between.client();
    client.ask(&["INCR", "k7"], ":8\r\n");
    assert_eq!((count(&source), count(&target)), (49, 1), "only what commands need moves");
    drop(client);
    between.resume();
    wait_until_done(&between);
    between.reverse_paused().expect("it is reversed");
    between.pause().expect("it is paused already");
    let between = between.run_again(&source, &target);
    let moving = status(&between)["moving"].clone();
    assert_eq!((&moving["paused"], count(&target)), (&Json::from(true), 50), "{moving}");
    between.resume();
    let between = between.run_again(&source, &target);
    assert_ne!(status(&between)["moving"]["paused"], true);
    wait_until_done(&between);
}

#[test]
fn half_way_keys_move_back_and_clients_stay() {
    let _alone = alone();
    let (source, target) = pair();
    fill(&source, 200);
    let between = Between::of(&source, &target);
    let [mut client, mut named, mut subscribed, mut watching] = std::array::from_fn(|_| between.client());
    between.start_paused().expect("it begins");
    for i in 0..100 {
        client.ask(&["INCR", &format!("k{i}")], &format!(":{}\r\n", i + 1));
    }
    client.ask(&["DEL", "k0", "k150"], ":2\r\n");
    named.ask(&["CLIENT", "SETNAME", "me"], "+OK\r\n");
    watching.ask(&["WATCH", "k1"], "+OK\r\n");
    subscribed.ask(&["SUBSCRIBE", "c"], "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    assert_eq!((count(&source), count(&target)), (99, 99));
    let mut direct = [source.connection(), target.connection()];
    let before = status(&between);
    assert_eq!((&before["direction"], &before["reversals"]), (&Json::from("to-target"), &Json::from(0)));

    between.reverse_paused().expect("it is reversed");
    let now = status(&between);
    assert_eq!((&now["direction"], &now["reversals"]), (&Json::from("to-source"), &Json::from(1)));
    assert_eq!(now["phase"], "moving");
    // That is on disk, for the next process.
    assert_eq!(between.stand(), Stand { phase: Phase::Moving, reversals: 1 });
    // Those that are home now are not looked for where the others are.
    client.ask(&["MGET", "k120", "k199"], "*2\r\n$3\r\n120\r\n$3\r\n199\r\n");
    assert_eq!((watching.rest(), subscribed.rest()), (Vec::new(), Vec::new()));
    // Nothing comes late of what was sent there before.
    assert!(
        direct.iter_mut().all(|direct| redis::cmd("SET").arg("k3").arg("late").query::<()>(direct).is_err())
    );
    wait_until("reads are sent to where keys are", || status(&between)["moving"]["rebuilding"] == false);
    // Those that had moved are read there, and move back when they are written; the others are home.
    client.ask(&["MGET", "k1", "k2", "k0"], "*3\r\n$1\r\n2\r\n$1\r\n3\r\n$-1\r\n");
    assert_eq!((count(&source), count(&target)), (99, 99));
    client.ask(&["INCR", "k1"], ":3\r\n");
    client.ask(&["RENAME", "k2", "r"], "+OK\r\n");
    client.ask(&["INCR", "k199"], ":200\r\n");
    assert_eq!((count(&source), count(&target)), (101, 97));
    client.ask(&["DBSIZE"], ":198\r\n");
    client.ask(&["MGET", "r", "k1", "k199", "k150"], "*4\r\n$1\r\n3\r\n$1\r\n3\r\n$3\r\n200\r\n$-1\r\n");
    named.ask(&["CLIENT", "GETNAME"], "$2\r\nme\r\n");
    let error = between.finish().expect_err("it is not done").to_string();
    assert!(error.contains("keys are still at the target"), "{error}");

    between.resume();
    wait_until_done(&between);
    assert_eq!(between.stand(), Stand { phase: Phase::Done, reversals: 1 });
    assert_eq!((count(&source), count(&target)), (198, 0));
    client.ask(&["SET", "new", "v"], "+OK\r\n");
    assert_eq!(source.call(&["GET", "new"]), Value::BulkString(b"v".to_vec()));
    client.ask(&["EVAL", "return redis.call('GET', 'k77')", "0"], "$2\r\n78\r\n");
    between.finish().expect("it is done");
    assert_eq!(between.stand(), Stand { phase: Phase::Finished, reversals: 1 });
    assert!(refusal(&between).contains("no keys have moved"), "{}", refusal(&between));
}

#[test]
fn a_client_that_never_rests_by_itself_stays_and_is_answered_in_its_turn() {
    let _alone = alone();
    // Whom a machine that stands still does not answer within a second is disconnected: then once more.
    assert!((0..4).any(|_| stays_and_is_answered()), "it was disconnected each time");
}

/// False where it was disconnected. What it was answered until then was right.
fn stays_and_is_answered() -> bool {
    let (source, target) = pair();
    fill(&source, 500);
    let between = Between::of(&source, &target);
    between.start().expect("it begins");
    // The servers always owe it something.
    let flood = between.client();
    let (mut writes, reads) = (flood.0.try_clone().expect("the same connection"), flood.0);
    let (stop, heard) = (AtomicBool::new(false), AtomicU64::new(0));
    let answered = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let hundred = command(&["INCR", "n"]).repeat(100);
            let mut sent = 0;
            while !stop.load(Ordering::SeqCst) {
                // No more than a busy machine answers in the second that clients have to come to rest.
                if sent > heard.load(Ordering::SeqCst) + 1_000 {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                if writes.write_all(&hundred).is_err() {
                    return None;
                }
                sent += 100;
            }
            writes.shutdown(Shutdown::Write).ok()?;
            Some(sent)
        });
        let reader = scope.spawn(|| {
            let (mut reads, mut answered, mut line) = (BufReader::new(reads), 0, String::new());
            // Until it is disconnected, with an error or without.
            while reads.read_line(&mut line).is_ok() && line.ends_with('\n') && !line.starts_with("-ERR") {
                answered += 1;
                heard.store(answered, Ordering::SeqCst);
                assert_eq!(line, format!(":{answered}\r\n"));
                line.clear();
            }
            answered
        });
        for _ in 0..4 {
            between.reverse().expect("it is reversed");
        }
        stop.store(true, Ordering::SeqCst);
        let sent = writer.join().expect("it has sent");
        let answered = reader.join().expect("it was answered in its turn");
        (sent == Some(answered)).then_some(answered)
    });
    let Some(answered) = answered else { return false };
    wait_until_done(&between);
    let expected = format!("{answered}\r\n");
    assert_eq!(between.client().asks(&["GET", "n"]), expected);
    assert_eq!((count(&source), count(&target)), (0, 501));
    true
}

#[test]
fn a_transaction_comes_to_its_end_before_keys_move_back() {
    let _alone = alone();
    let (source, target) = pair();
    let between = Between::of(&source, &target);
    between.start().expect("it begins");
    wait_until_done(&between);
    // Who is too slow on a machine that is too busy is disconnected: then once more.
    let key = |reversals: u32| format!("k{reversals}");
    let is_heard = |reversals: u32| {
        let (mut client, key) = (between.client(), key(reversals));
        client.ask(&["WATCH", &key], "+OK\r\n");
        client.ask(&["MULTI"], "+OK\r\n");
        std::thread::scope(|scope| {
            let reversing = scope.spawn(|| between.reverse().expect("it is reversed"));
            wait_until("clients are to rest", || between.status().reversals == reversals);
            client.send(&[command(&["INCR", &key]), command(&["EXEC"]), command(&["GET", "none"])].concat());
            let mut replies = b"+QUEUED\r\n*1\r\n:1\r\n$-1\r\n".to_vec();
            let read = client.0.read_exact(&mut replies);
            reversing.join().expect("it turned");
            wait_until_done(&between);
            read.is_ok() && replies == b"+QUEUED\r\n*1\r\n:1\r\n$-1\r\n"
        })
    };
    let heard = (1..=5).find(|reversals| is_heard(*reversals));
    let heard = heard.expect("no transaction was heard to its end");
    between.client().ask(&["GET", &key(heard)], "$1\r\n1\r\n");
}

#[test]
fn an_iteration_misses_nothing_however_often_the_direction_is_reversed() {
    let _alone = alone();
    let (source, target) = pair();
    fill(&source, 300);
    let between = Between::of(&source, &target);
    let mut client = between.client();
    between.start_paused().expect("it begins");
    for i in 0..150 {
        client.ask(&["APPEND", &format!("k{i}"), ""], &format!(":{}\r\n", i.to_string().len()));
    }
    let (mut found, mut cursor) = (BTreeSet::new(), "0".to_owned());
    // Far into the second half, and then two turns, after which every key is where it was.
    for reversals in 1..=2 {
        cursor = client.scan(&cursor, &mut found);
        while cursor.parse::<u64>().expect("a number") & (1 << 52) == 0 || found.len() < 200 {
            cursor = client.scan(&cursor, &mut found);
        }
        assert!(found.len() < 300, "nothing is left to be missed");
        found.clear();
        between.reverse_paused().expect("it is reversed");
        assert_eq!(status(&between)["reversals"], reversals);
        wait_until("the filter is there", || status(&between)["moving"]["rebuilding"] == false);
    }
    while cursor != "0" {
        cursor = client.scan(&cursor, &mut found);
    }
    assert_eq!(found.len(), 300);
    // A cursor that was given in a transaction, without a mark, could be that of either server.
    between.resume();
    wait_until_done(&between);
    client.ask(&["MULTI"], "+OK\r\n");
    client.send(&command(&["SCAN", "17"]));
    assert!(client.line().contains("refuses SCAN"));
    client.ask(&["DISCARD"], "+OK\r\n");
}

#[test]
fn when_all_have_moved_what_clients_changed_since_goes_back() {
    let _alone = alone();
    let (source, target) = pair();
    fill(&source, 50);
    let library = |name: &str, function: &str, answer: &str| {
        format!("#!lua name={name}\nredis.register_function('{function}', function() return '{answer}' end)")
    };
    for (name, function) in [("same", "f"), ("changed", "g"), ("gone", "h")] {
        source.call(&["FUNCTION", "LOAD", &library(name, function, "old")]);
    }
    let between = Between::of(&source, &target);
    between.start().expect("it begins");
    wait_until_done(&between);
    let [mut client, mut logged_in, mut elsewhere, mut returned] = std::array::from_fn(|_| between.client());
    client.ask(&["FUNCTION", "DELETE", "gone"], "+OK\r\n");
    // It takes over the function of one that has gone.
    client.ask(&["FUNCTION", "LOAD", "REPLACE", &library("changed", "h", "new")], "$7\r\nchanged\r\n");
    for server in [&source, &target] {
        server.call(&["ACL", "SETUSER", "bob", "on", ">b0b", "~*", "+@all"]);
    }
    logged_in.ask(&["AUTH", "bob", "b0b"], "+OK\r\n");
    elsewhere.ask(&["SELECT", "0"], "+OK\r\n");
    elsewhere.ask(&["SELECT", "1"], "+OK\r\n");
    elsewhere.ask(&["SET", "other", "v"], "+OK\r\n");
    returned.ask(&["SELECT", "1"], "+OK\r\n");
    returned.ask(&["SELECT", "0"], "+OK\r\n");

    // The source holds nothing of that database, and keys are served of the first alone while they move.
    assert!(refusal(&between).contains("database 1 has keys"), "{}", refusal(&between));
    assert_eq!(status(&between)["phase"], "done");
    elsewhere.ask(&["DEL", "other"], ":1\r\n");
    // Somebody put a key there, or the source has forgotten that it was removed.
    source.call(&["SET", "k1", "stale"]);
    assert!(refusal(&between).contains("it has keys"), "{}", refusal(&between));
    source.call(&["DEL", "k1"]);
    client.ask(&["GET", "k1"], "$1\r\n1\r\n");

    // The few keys would be there before a function is asked for.
    between.reverse_paused().expect("it is reversed");
    assert_eq!(elsewhere.rest(), b"");
    returned.ask(&["GET", "k7"], "$1\r\n7\r\n");
    logged_in.ask(&["ACL", "WHOAMI"], "$3\r\nbob\r\n");
    logged_in.ask(&["INCR", "k1"], ":2\r\n");
    client.send(&command(&["FCALL", "f", "0"]));
    assert!(client.line().contains("refuses FCALL"));
    between.resume();
    wait_until_done(&between);
    assert_eq!((count(&source), count(&target)), (50, 0));
    client.ask(&["FCALL", "f", "0"], "$3\r\nold\r\n");
    client.ask(&["FCALL", "h", "0"], "$3\r\nnew\r\n");
    client.send(&command(&["FCALL", "g", "0"]));
    assert!(client.line().contains("Function not found"));
    // And again to the target.
    between.reverse().expect("it is reversed again");
    wait_until_done(&between);
    assert_eq!((count(&source), count(&target)), (0, 50));
    client.ask(&["GET", "k1"], "$1\r\n2\r\n");
}

#[test]
fn what_hinders_a_reversal_at_the_last_moment_leaves_all_as_it_was() {
    let _alone = alone();
    let (source, target) = pair();
    fill(&source, 100);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    // Nothing has gone over the source, so this is noticed when clients have stopped.
    let mut direct = source.connection();
    let () = redis::cmd("SELECT").arg(1).query(&mut direct).expect("selected");
    let () = redis::cmd("SET").arg("k").arg("v").query(&mut direct).expect("written");
    let mut client = between.client();
    client.ask(&["INCR", "k7"], ":8\r\n");
    let error = refusal(&between);
    // It had been called to rest.
    assert!(client.line().starts_with("-ERR whimbrel front"));
    assert!(error.contains("database 1 has keys"), "{error}");
    let now = status(&between);
    assert_eq!(
        (&now["phase"], &now["reversals"], &now["moving"]["paused"]),
        (&"moving".into(), &0.into(), &true.into())
    );
    let mut direct = source.connection();
    let () = redis::cmd("SELECT").arg(1).query(&mut direct).expect("selected");
    let () = redis::cmd("FLUSHDB").query(&mut direct).expect("emptied");
    let mut client = between.client();
    client.ask(&["SET", "k1", "new"], "+OK\r\n");
    between.resume();
    wait_until_done(&between);
    client.ask(&["GET", "k1"], "$3\r\nnew\r\n");

    // A library that the other server does not understand.
    let library = "#!lua name=lib\nserver.register_function('f', function() return 'hi' end)";
    client.ask(&["FUNCTION", "LOAD", library], "$3\r\nlib\r\n");
    let error = refusal(&between);
    assert!(error.contains("FUNCTION"), "{error}");
    assert_eq!((&status(&between)["phase"], &status(&between)["reversals"]), (&"done".into(), &0.into()));
    let mut client = between.client();
    client.ask(&["FCALL", "f", "0"], "$2\r\nhi\r\n");
    client.ask(&["FUNCTION", "DELETE", "lib"], "+OK\r\n");
    between.reverse().expect("now it can");
    client.ask(&["GET", "k1"], "$3\r\nnew\r\n");
}

#[test]
fn one_that_died_after_the_reversal_goes_on_in_its_direction() {
    let _alone = alone();
    let (source, target) = pair();
    // Not moved before the turn; left by a crash before it, or after it; not moved back yet.
    fill(&source, 1_000);
    for i in 990..1_500 {
        target.call(&["SET", &format!("k{i}"), &i.to_string()]);
    }
    // What the dead one has sent to either and is not carried out yet must never be.
    let mut late = [&source, &target].map(|server| {
        let mut late = Client::to(server.addr().parse().expect("an address"));
        late.ask(&["PING"], "+PONG\r\n");
        let words = command(&["SET", "k990", "late"]);
        late.send(&words[..words.len() - 2]);
        late
    });
    let between = Between::reversed(1, Phase::Moving, &source, &target);
    assert!(late.iter_mut().all(|late| late.rest().is_empty()));
    let mut client = between.client();
    client.ask(&["DEL", "k990"], ":1\r\n");
    client.ask(&["INCR", "k991"], ":992\r\n");
    client.ask(&["GET", "k992"], "$3\r\n992\r\n");
    client.ask(&["INCR", "k1499"], ":1500\r\n");
    client.ask(&["INCR", "k0"], ":1\r\n");
    wait_until_done(&between);
    assert_eq!(status(&between)["direction"], "to-source");
    assert_eq!((count(&source), count(&target)), (1_499, 0));
    client.ask(&["GET", "k990"], "$-1\r\n");
    client.ask(&["MGET", "k991", "k0", "k1499"], "*3\r\n$3\r\n992\r\n$1\r\n1\r\n$4\r\n1500\r\n");
    drop(between);

    // What is served is the source, and the target may be gone.
    target.stop().expect("stopped");
    let between = Between::reversed(1, Phase::Done, &source, &target);
    between.client().ask(&["GET", "k991"], "$3\r\n992\r\n");
    assert!(refusal(&between).contains("target"), "{}", refusal(&between));
    between.client().ask(&["INCR", "k991"], ":993\r\n");
    between.finish().expect("it is done");
}

#[test]
fn one_that_died_before_the_reversal_was_written_can_reverse() {
    let _alone = alone();
    let (source, target) = pair();
    fill(&source, 1_000);
    // Equal on both, as a crash leaves them.
    for i in 990..1_500 {
        target.call(&["SET", &format!("k{i}"), &i.to_string()]);
    }
    let between = Between::after(Phase::Moving, &source, &target);
    between.pause().expect("keys move");
    let mut client = between.client();
    client.ask(&["INCR", "k990"], ":991\r\n");
    between.reverse().expect("it is reversed, when the filter is there");
    client.ask(&["INCR", "k990"], ":992\r\n");
    wait_until_done(&between);
    assert_eq!((count(&source), count(&target)), (1_500, 0));
    client.ask(&["MGET", "k990", "k991"], "*2\r\n$3\r\n992\r\n$3\r\n991\r\n");
}

#[test]
fn what_the_older_server_cannot_hold_stays_and_is_reported() {
    let _alone = alone();
    let (source, target) = (start(Engine::Redis70), start(Engine::Redis80));
    let between = Between::of(&source, &target);
    between.start().expect("it begins");
    wait_until_done(&between);
    let mut client = between.client();
    // A payload of each kind that the older server refuses goes back by the commands of its type.
    client.ask(&["HSET", "hash", "f", "v"], ":1\r\n");
    client.ask(&["RPUSH", "list", "a", "b"], ":2\r\n");
    client.ask(&["ZADD", "sorted", "1.5", "a"], ":1\r\n");
    client.ask(&["XADD", "stream", "1-1", "f", "v"], "$3\r\n1-1\r\n");
    client.ask(&["SADD", "set", "a"], ":1\r\n");
    client.ask(&["SET", "text", "v", "PXAT", "4102444800123"], "+OK\r\n");
    client.ask(&["HSET", "fields", "f", "v"], ":1\r\n");
    client.ask(&["HPEXPIREAT", "fields", "4102444800123", "FIELDS", "1", "f"], "*1\r\n:1\r\n");
    between.reverse().expect("it is reversed");
    wait_until("all that can has moved", || status(&between)["moving"]["staying"] == 1);
    assert_eq!((status(&between)["phase"].clone(), count(&source), count(&target)), ("moving".into(), 6, 1));
    client.ask(&["HGET", "fields", "f"], "$1\r\nv\r\n");
    client.send(&command(&["HSET", "fields", "f", "w"]));
    let reply = client.line();
    assert!(reply.starts_with("-TRYAGAIN whimbrel front: the key stays at the target"), "{reply}");
    client.send(&command(&["HPTTL", "fields", "FIELDS", "1", "f"]));
    assert!(client.line().contains("no such command"));
    client.ask(&["LRANGE", "list", "0", "-1"], "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    client.ask(&["PEXPIRETIME", "text"], ":4102444800123\r\n");
    client.ask(&["XRANGE", "stream", "-", "+"], "*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
    // It is where it can be after one turn more.
    between.reverse().expect("it is reversed again");
    wait_until_done(&between);
    assert_eq!((count(&source), count(&target)), (0, 7));
    client.ask(&["HSET", "fields", "f", "w"], ":0\r\n");
}

#[test]
fn it_does_not_reverse_where_it_could_not_be_exact() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["SET", "k", "old"]);
    // Stays while moving is paused, so that the source is not found empty once `k` has moved.
    source.call(&["SET", "last", "v"]);
    let between = Between::of(&source, &target);
    assert!(refusal(&between).contains("no keys have moved"), "{}", refusal(&between));
    between.start_paused().expect("it begins");
    let mut client = between.client();
    client.ask(&["SET", "k", "new"], "+OK\r\n");
    // After a turn it would be taken for the key.
    source.call(&["SET", "k", "other"]);
    between.resume();
    wait_until("it is noticed", || !status(&between)["moving"]["trouble"].is_null());
    let error = refusal(&between);
    assert!(error.contains("1 keys are at the source again"), "{error}");
    client.ask(&["GET", "k"], "$3\r\nnew\r\n");
    source.call(&["DEL", "k"]);
    wait_until_done(&between);
    drop(between);
    let between = Between::reversed(REVERSALS_MAX - 1, Phase::Done, &source, &target);
    between.reverse().expect("the last turn");
    wait_until_done(&between);
    let error = refusal(&between);
    assert!(error.contains(&format!("has been reversed {REVERSALS_MAX} times")), "{error}");
    between.client().ask(&["GET", "k"], "$3\r\nnew\r\n");
}
