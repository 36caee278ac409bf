//! The move of one key between real servers, also after a crash in the middle of it.

use std::sync::Arc;

use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::probe::{Capabilities, ServerFacts};
use whimbrel_front::migrate::carry::{Carried, Route, carry};
use whimbrel_lab::{Engine, Server};
use whimbrel_wire::payload::Dialect;
use whimbrel_wire::value::Value;

use crate::common::alone;

/// A far future, not a multiple of a second.
const FAR_MS: i64 = 4_102_444_800_123;

struct Pair {
    source: Link,
    target: Link,
    source_can: Capabilities,
    target_can: Capabilities,
    dialects: (Dialect, Dialect),
    servers: (Server, Server),
}

async fn open(server: &Server, side: Side) -> Link {
    let endpoint = Arc::new(Endpoint::parse(side, &server.url()).expect("a valid address"));
    let address = endpoint.address.clone();
    Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection")
}

impl Pair {
    async fn of(from: Engine, to: Engine) -> Pair {
        let start = |engine| Server::builder(engine).start().expect("a server");
        let servers = (start(from), start(to));
        let mut source = open(&servers.0, Side::Source).await;
        let mut target = open(&servers.1, Side::Target).await;
        let source_can = Capabilities::probe(&mut source).await.expect("capabilities");
        let mut target_can = Capabilities::probe(&mut target).await.expect("capabilities");
        target_can.probe_payload_version(&mut target, b"probe", false).await.expect("a version");
        let dialects = (
            ServerFacts::ask(&mut source).await.expect("facts").dialect,
            ServerFacts::ask(&mut target).await.expect("facts").dialect,
        );
        Pair { source, target, source_can, target_can, dialects, servers }
    }

    async fn carry(&mut self, key: &str) -> Carried {
        let route = Route {
            source: &self.source_can,
            target: &self.target_can,
            dialects: self.dialects,
            job: "test",
            may_be_there: true,
        };
        carry(&mut self.source, &mut self.target, key.as_bytes(), &route).await.expect("carried")
    }

    async fn at_source(&mut self, words: &[&str]) -> Value {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.source.call(&words).await.expect("the source answers")
    }

    async fn at_target(&mut self, words: &[&str]) -> Value {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.target.call(&words).await.expect("the target answers")
    }

    /// Leaves what a front leaves that dies after it has written a key and before it has removed it.
    async fn die_half_way(&mut self, key: &str) {
        let Value::Bulk(dump) = self.at_source(&["DUMP", key]).await else { panic!("no {key}") };
        let at = self.at_source(&["PEXPIRETIME", key]).await.as_int().expect("a time").max(0).to_string();
        let words = [b"RESTORE", key.as_bytes(), at.as_bytes(), &dump, b"ABSTTL"];
        assert!(self.target.call(&words).await.expect("restored").is_ok());
    }
}

#[tokio::test]
async fn every_type_arrives_between_all_servers() {
    let _alone = alone();
    let writes = "SET s v|RPUSH l a b c|SADD set a b|SADD ints 1 2|ZADD z 1.5 a 2 b|HSET h f v|XADD x 1-1 f \
        v|PFADD p a\
                  |XGROUP CREATE x g 0|SET empty ";
    let reads = "GET s|LRANGE l 0 -1|SMEMBERS set|SMEMBERS ints|ZRANGE z 0 -1 WITHSCORES|HGETALL h|XRANGE x \
        - +|PFCOUNT p\
                 |GET empty";
    for from in Engine::ALL {
        for to in Engine::ALL {
            let mut pair = Pair::of(from, to).await;
            for line in writes.split('|') {
                pair.at_source(&line.split(' ').collect::<Vec<_>>()).await;
            }
            let at = FAR_MS.to_string();
            pair.at_source(&["PEXPIREAT", "h", &at]).await;
            for line in reads.split('|') {
                let words: Vec<&str> = line.split(' ').collect();
                let key = words[1];
                let sorted = |value: Value| {
                    let mut items = value.as_items().map_or_else(|| vec![value.clone()], <[Value]>::to_vec);
                    if words[0] == "SMEMBERS" {
                        items.sort_by_key(|item| item.as_bytes().cloned());
                    }
                    items
                };
                let before = sorted(pair.at_source(&words).await);
                assert_eq!(pair.carry(key).await, Carried::Arrived, "{from:?} to {to:?}: {line}");
                assert_eq!(sorted(pair.at_target(&words).await), before, "{from:?} to {to:?}: {line}");
                assert_eq!(pair.at_source(&["EXISTS", key]).await, Value::Int(0), "{line}");
                assert_eq!(pair.carry(key).await, Carried::Earlier, "{line}");
            }
            assert_eq!(pair.at_target(&["PEXPIRETIME", "h"]).await, Value::Int(FAR_MS));
            let groups = pair.at_target(&["XINFO", "GROUPS", "x"]).await;
            assert_eq!(groups.as_items().map(<[Value]>::len), Some(1));
            assert_eq!(pair.at_target(&["PEXPIRETIME", "l"]).await, Value::Int(-1));
            assert_eq!(pair.at_source(&["DBSIZE"]).await, Value::Int(0));
        }
    }
}

#[tokio::test]
async fn after_a_crash_the_target_wins() {
    let _alone = alone();
    let mut pair = Pair::of(Engine::Redis70, Engine::Valkey91).await;
    pair.at_source(&["SET", "k", "old"]).await;
    pair.die_half_way("k").await;
    // The first client is served with the state that both have, and from then on it is the target's.
    pair.at_target(&["APPEND", "k", " and new"]).await;
    assert_eq!(pair.carry("k").await, Carried::Arrived);
    assert_eq!(pair.at_target(&["GET", "k"]).await.as_str(), Some("old and new"));
    assert_eq!(pair.at_source(&["EXISTS", "k"]).await, Value::Int(0));
}

#[tokio::test]
async fn what_was_removed_after_a_crash_stays_away() {
    let _alone = alone();
    let mut pair = Pair::of(Engine::Valkey81, Engine::Redis80).await;
    pair.at_source(&["SET", "k", "v"]).await;
    pair.die_half_way("k").await;
    // Every command moves its keys first then, `DEL` as well.
    assert_eq!(pair.carry("k").await, Carried::Arrived);
    assert_eq!(pair.at_target(&["DEL", "k"]).await, Value::Int(1));
    assert_eq!(pair.carry("k").await, Carried::Earlier);
    assert_eq!(pair.at_target(&["EXISTS", "k"]).await, Value::Int(0));
}

#[tokio::test]
async fn what_has_expired_does_not_come_back() {
    let _alone = alone();
    let mut pair = Pair::of(Engine::Redis70, Engine::Redis80).await;
    pair.at_source(&["SET", "gone", "v", "PX", "1"]).await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert_eq!(pair.carry("gone").await, Carried::Earlier);
    // Those that may expire on their way.
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        pair.at_source(&["SET", key, "v", "PX", "30"]).await;
        let carried = pair.carry(key).await;
        assert!(matches!(carried, Carried::Arrived | Carried::Earlier), "{carried:?}");
        tokio::time::sleep(std::time::Duration::from_millis(40)).await;
        assert_eq!(pair.at_target(&["EXISTS", key]).await, Value::Int(0));
        assert_eq!(pair.at_source(&["EXISTS", key]).await, Value::Int(0));
    }
}

#[tokio::test]
async fn what_the_target_cannot_hold_stays() {
    let _alone = alone();
    let mut pair = Pair::of(Engine::Redis80, Engine::Redis70).await;
    pair.at_source(&["HSET", "h", "f", "v"]).await;
    pair.at_source(&["HPEXPIREAT", "h", &FAR_MS.to_string(), "FIELDS", "1", "f"]).await;
    assert!(matches!(pair.carry("h").await, Carried::Stays(_)));
    assert_eq!(pair.at_source(&["HGET", "h", "f"]).await.as_str(), Some("v"));
    assert_eq!(pair.at_target(&["DBSIZE"]).await, Value::Int(0));
}

#[tokio::test]
async fn a_full_target_loses_nothing() {
    let _alone = alone();
    let mut pair = Pair::of(Engine::Redis70, Engine::Redis70).await;
    pair.at_target(&["CONFIG", "SET", "maxmemory", "1"]).await;
    pair.at_source(&["SET", "k", "v"]).await;
    let route = Route {
        source: &pair.source_can,
        target: &pair.target_can,
        dialects: pair.dialects,
        job: "test",
        may_be_there: true,
    };
    let error = carry(&mut pair.source, &mut pair.target, b"k", &route).await.expect_err("it is full");
    assert_eq!(error.side, Side::Target);
    assert_eq!(pair.at_source(&["GET", "k"]).await.as_str(), Some("v"));
    pair.at_target(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(pair.carry("k").await, Carried::Arrived);
    assert!(pair.servers.0.is_running() && pair.servers.1.is_running());
}
