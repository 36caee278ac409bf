//! Both servers are emptied while keys move.

use std::time::Duration;

use redis::Value;
use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, alone, command, wait_until};

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
}

#[test]
fn nothing_is_left_at_either_server() {
    let _alone = alone();
    for line in ["FLUSHALL", "flushdb async"] {
        let (source, target) = pair();
        for key in ["a", "b", "c"] {
            source.call(&["SET", key, "v"]);
        }
        for server in [&source, &target] {
            server.call(&["ACL", "SETUSER", "bob", "on", ">word", "~*", "+@all", "-flushall", "-flushdb"]);
        }
        let between = Between::of(&source, &target);
        between.start_paused().expect("it begins");
        let mut client = between.client();
        client.ask(&["APPEND", "a", "!"], ":2\r\n");
        let words: Vec<&str> = line.split(' ').collect();
        // Nothing is removed for one who may not, nor where it is not understood, nor in a transaction.
        let mut bob = between.client();
        bob.ask(&["AUTH", "bob", "word"], "+OK\r\n");
        bob.send(&command(&words));
        assert!(bob.line().starts_with("-NOPERM"));
        client.ask(&["FLUSHALL", "NOW"], "-ERR syntax error\r\n");
        client.ask(&["MULTI"], "+OK\r\n");
        client.send(&command(&words));
        assert!(client.line().contains("not in a transaction"));
        client.ask(&["DISCARD"], "+OK\r\n");
        client.ask(&["DBSIZE"], ":3\r\n");

        client.ask(&words, "+OK\r\n");
        client.ask(&["DBSIZE"], ":0\r\n");
        assert_eq!(source.call(&["DBSIZE"]), Value::Int(0));
        client.ask(&["MGET", "a", "b"], "*2\r\n$-1\r\n$-1\r\n");
        client.ask(&["GET", "c"], "$-1\r\n");
        client.ask(&["APPEND", "b", "new"], ":3\r\n");
        between.resume();
        wait_until("all keys have moved", || between.status().phase == Phase::Done);
        assert_eq!(target.call(&["DBSIZE"]), Value::Int(1));
    }
}

#[test]
fn nobody_sees_one_of_them_empty_and_the_other_not() {
    let _alone = alone();
    // On a busy machine the target may be emptied before it is paused.
    assert!((0..5).any(|_| nobody_sees_the_source_empty()), "each time both were emptied too quickly");
}

/// False where both were emptied before anybody could look.
fn nobody_sees_the_source_empty() -> bool {
    let (source, target) = pair();
    // Enough for the source to take its time.
    source.call(&["EVAL", "for i = 1, 1000000 do redis.call('SET', 'k' .. i, 'v') end", "0"]);
    let between = Between::with_wait(&source, &target, Duration::from_secs(1));
    between.start_paused().expect("it begins");
    let (mut client, mut reads) = (between.client(), between.client());
    wait_until("a key moves", || {
        client.send(&command(&["APPEND", "k1", "!"]));
        client.line() == ":2\r\n"
    });
    client.send(&command(&["FLUSHALL", "SYNC"]));
    // The key and the mark of what has begun, unless it is over already.
    wait_until("it has begun", || target.call(&["DBSIZE"]) != Value::Int(1));
    // The target comes next, and waits.
    target.call(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    if target.call(&["EXISTS", "k1"]) == Value::Int(0) {
        return false;
    }
    wait_until("the source is empty", || source.call(&["DBSIZE"]) == Value::Int(0));
    reads.ask(&["EXISTS", "k1"], ":1\r\n");
    for words in [&["EXISTS", "k2"][..], &["SCAN", "0"], &["DBSIZE"]] {
        reads.send(&command(words));
        let reply = reads.line();
        assert!(reply.starts_with("-TRYAGAIN"), "{words:?} sees that the source is empty: {reply}");
    }
    target.call(&["CLIENT", "UNPAUSE"]);
    client.expect(b"+OK\r\n");
    for words in [["EXISTS", "k1"], ["EXISTS", "k2"]] {
        reads.ask(&words, ":0\r\n");
    }
    client.ask(&["DBSIZE"], ":0\r\n");
    true
}
