//! Scripts and functions while keys move, with the promise that they declare their keys.

use redis::Value;
use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, alone, command, wait_until};

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
}

const SUM: &str = "return redis.call('INCRBY', KEYS[1], ARGV[1]) + redis.call('INCRBY', KEYS[2], ARGV[1])";

#[test]
fn scripts_run_with_the_keys_that_they_declare() {
    let _alone = alone();
    let (source, target) = pair();
    for key in ["a", "b", "c", "d", "e"] {
        source.call(&["SET", key, "10"]);
    }
    let Value::BulkString(sha) = source.call(&["SCRIPT", "LOAD", SUM]) else { panic!("no digest") };
    let sha = String::from_utf8(sha).expect("text");
    source.call(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=lib\nredis.register_function('put', function(keys, args) \
        return redis.call('APPEND', keys[1], args[1]) end)",
    ]);
    let between = Between::with_scripts(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    client.ask(&["EVAL", SUM, "2", "a", "b", "1"], ":22\r\n");
    assert_eq!(
        source.call(&["EXISTS", "a", "b", "c"]),
        Value::Int(1),
        "other keys moved than those it declares"
    );
    client.ask(&["FCALL", "put", "1", "c", "!"], ":3\r\n");
    client.ask(&["EVAL_RO", "return redis.call('GET', KEYS[1])", "1", "d"], "$2\r\n10\r\n");
    // What the source was given is unknown at the target, as to any client that comes to another server. This
    // loads it.
    let digest = format!("{:0>40}", "0");
    client.send(&command(&["EVALSHA", &digest, "0"]));
    assert!(client.line().starts_with("-NOSCRIPT"));
    client.ask(&["SCRIPT", "FLUSH"], "+OK\r\n");
    client.send(&command(&["EVALSHA", &sha, "2", "a", "e", "1"]));
    assert!(client.line().starts_with("-NOSCRIPT"));
    client.ask(&["SCRIPT", "LOAD", SUM], &format!("${}\r\n{sha}\r\n", sha.len()));
    client.ask(&["EVALSHA", &sha, "2", "a", "e", "1"], ":23\r\n");
    // In a transaction, and where the words are wrong.
    source.call(&["SET", "f", "10"]);
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["EVAL", SUM, "2", "a", "f", "1"], "+QUEUED\r\n");
    client.ask(&["EXEC"], "*1\r\n:24\r\n");
    client.send(&command(&["EVAL", SUM, "9", "a", "b"]));
    assert!(client.line().starts_with("-ERR Number of keys"));
    // One that is passed on as it arrives, with its keys behind it.
    source.call(&["SET", "g", "10"]);
    let long = format!("{SUM} -- {}", "x".repeat(300_000));
    client.ask(&["EVAL", &long, "2", "a", "g", "1"], ":25\r\n");
    between.resume();
    wait_until("all keys have moved", || between.status().phase == Phase::Done);
    assert_eq!(target.call(&["MGET", "a", "g"]), target.call(&["MGET", "a", "f"]));
}

#[test]
fn without_the_promise_scripts_are_refused_and_the_flag_is_named() {
    let _alone = alone();
    let (source, target) = pair();
    // Without any key all have moved.
    source.call(&["SET", "stays", "v"]);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    for words in [&["EVAL", "return 1", "0"][..], &["SCRIPT", "LOAD", "return 1"], &["FUNCTION", "LIST"]] {
        client.send(&command(words));
        let reply = client.line();
        assert!(reply.contains("refuses") && reply.contains("--scripts-declare-keys"), "{reply}");
    }
}

#[test]
fn a_script_that_does_not_keep_the_promise_is_noticed() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["SET", "undeclared", "of the source"]);
    let large = "redis.call('SET', KEYS[1], string.rep('0123456789', 300000))";
    source.call(&["EVAL", large, "1", "large"]);
    let between = Between::with_scripts(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    for key in ["undeclared", "large"] {
        client.ask(&["EVAL", &format!("return redis.call('SET', '{key}', 'of a script')"), "0"], "+OK\r\n");
        client.send(&command(&["APPEND", key, "!"]));
        let reply = client.line();
        assert!(reply.starts_with("-TRYAGAIN") && reply.contains("another one of this name"), "{reply}");
        let trouble = between.status().moving.expect("keys move").trouble.expect("it is noticed");
        assert!(
            trouble.contains(&format!("key {key} is at the target although it has not moved")),
            "{trouble}"
        );
        // Nothing is thrown away before somebody has said which one is right.
        assert_eq!(source.call(&["EXISTS", key]), Value::Int(1));
        target.call(&["DEL", key]);
    }
    client.ask(&["APPEND", "undeclared", "!"], ":14\r\n");
    client.ask(&["APPEND", "large", "!"], ":3000001\r\n");
    assert_eq!(between.status().moving.expect("keys move").trouble, None);
}
