//! Typed transfers between real servers.

mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use whimbrel_core::slot::Slot;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Code, Error, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_engine::probe::Capabilities;
use whimbrel_flow::large::{
    Assembly, Existing, KeyType, Outcome, TRIES_MAX, Transfer, staging_key, transfer, type_of,
};
use whimbrel_lab::{Engine, Server};
use whimbrel_wire::value::Value;

use self::values::{blob, call, describe, int, pipeline, populate, run, times_of_fields, words};

whimbrel_lab::for_each_engine! {
    async on every:
        every_type_arrives_everywhere
}

whimbrel_lab::for_each_engine! {
    async
        changes_of_groups_are_noticed_without_watch
        a_full_target_keeps_no_half_value
}

whimbrel_lab::for_each_engine! {
    async on Redis70 Valkey91:
        goes_on_where_watch_is_forbidden
        staging_keys_stay_in_the_slot
}

const JOB: &str = "test";

/// How far delivery times may be apart: a server reports them relative to now, and a busy machine lets it
/// wait between two commands, of which the first says what time it is.
const DELIVERED_MS: i64 = 500;

async fn open(url: &str, side: Side) -> Link {
    let endpoint = Arc::new(Endpoint::parse(side, url).expect("a valid address"));
    let address = endpoint.address.clone();
    Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection")
}

/// Two servers, a link to each for the transfer and one to look at things.
struct Pair {
    source: Link,
    target: Link,
    source_side: Link,
    target_side: Link,
    source_can: Capabilities,
    target_can: Capabilities,
}

impl Pair {
    async fn new(source: &Server, target: &Server) -> Pair {
        Pair::of_urls(&source.url(), &target.url()).await
    }

    async fn of_urls(source: &str, target: &str) -> Pair {
        let mut source_side = open(source, Side::Source).await;
        let mut target_side = open(target, Side::Target).await;
        Pair {
            source: open(source, Side::Source).await,
            target: open(target, Side::Target).await,
            source_can: Capabilities::probe(&mut source_side).await.expect("capabilities"),
            target_can: Capabilities::probe(&mut target_side).await.expect("capabilities"),
            source_side,
            target_side,
        }
    }

    async fn transfer(
        &mut self,
        key: &[u8],
        existing: Existing,
        chunk_bytes: usize,
    ) -> Result<Outcome, Error> {
        let t = staged(key, existing, chunk_bytes, (&self.source_can, &self.target_can));
        transfer(&mut self.source, &mut self.target, &t).await
    }

    async fn replace(&mut self, key: &[u8], chunk_bytes: usize) -> Outcome {
        self.transfer(key, Existing::Replace, chunk_bytes).await.expect("a transfer")
    }

    async fn assert_equal(&mut self, key: &[u8], what: &str) {
        let expected = describe(&mut self.source_side, key, self.source_can.hash_field_ttl).await;
        let found = describe(&mut self.target_side, key, self.target_can.hash_field_ttl).await;
        let name = key.escape_ascii();
        assert_eq!(
            expected.text.len(),
            found.text.len(),
            "{what}: {name}: {} and {}",
            expected.head(),
            found.head()
        );
        assert!(expected.text == found.text, "{what}: {name}: {} and {}", expected.head(), found.head());
        assert_eq!(expected.times_ms.len(), found.times_ms.len(), "{what}: {name}");
        for (ours, theirs) in expected.times_ms.iter().zip(&found.times_ms) {
            let apart_ms = (ours - theirs).abs();
            assert!(apart_ms <= DELIVERED_MS, "{what}: {name}: delivered at {ours} and {theirs}");
        }
        assert_eq!(
            exists(&mut self.target_side, &staging_key(JOB, key)).await,
            0,
            "{what}: {name}: staging key"
        );
    }
}

/// A transfer by way of a staging key.
fn staged<'a>(
    key: &'a [u8],
    existing: Existing,
    chunk_bytes: usize,
    (source, target): (&'a Capabilities, &'a Capabilities),
) -> Transfer<'a> {
    let (place, tries_max, job, stop) = (Assembly::Staging, TRIES_MAX, JOB, None);
    Transfer { key, existing, place, chunk_bytes, tries_max, job, source, target, stop }
}

async fn exists(link: &mut Link, key: &[u8]) -> i64 {
    int(link, &[b"EXISTS", key]).await
}

async fn every_type_arrives_everywhere(from: Engine) {
    let source = Server::builder(from).start().expect("a source");
    let mut keys = Vec::new();
    for to in Engine::ALL {
        let target = Server::builder(to).start().expect("a target");
        let mut pair = Pair::new(&source, &target).await;
        if keys.is_empty() {
            keys = populate(&mut pair.source_side, pair.source_can.hash_field_ttl).await;
            assert!(keys.len() > 35, "{} keys", keys.len());
        }
        for chunk_bytes in [4_096, 256 << 10] {
            let what = format!("{from} to {to} by {chunk_bytes}");
            for key in &keys {
                // Something to replace, of another type.
                if chunk_bytes == 4_096 {
                    call(&mut pair.target_side, &[b"RPUSH", key, b"old"]).await;
                }
                let outcome = pair.replace(key, chunk_bytes).await;
                if key.starts_with(b"h:ttl") && !pair.target_can.hash_field_ttl {
                    assert!(matches!(outcome, Outcome::Unholdable(_)), "{what}: {outcome:?}");
                    assert_eq!(exists(&mut pair.target_side, &staging_key(JOB, key)).await, 0);
                    assert_eq!(type_of(&mut pair.target_side, key).await.expect("TYPE"), Some(KeyType::List));
                    continue;
                }
                assert!(
                    matches!(outcome, Outcome::Written { .. }),
                    "{what}: {}: {outcome:?}",
                    key.escape_ascii()
                );
                pair.assert_equal(key, &what).await;
            }
        }
        assert_eq!(int(&mut pair.target_side, &[b"DBSIZE"]).await, keys.len() as i64);
        target.stop().expect("stop");
    }
}

async fn two(from: Engine, to: Engine) -> (Server, Server, Pair) {
    let source = Server::builder(from).start().expect("a source");
    let target = Server::builder(to).start().expect("a target");
    let pair = Pair::new(&source, &target).await;
    (source, target, pair)
}

#[tokio::test]
async fn counts_what_was_sent() {
    let (_source, _target, mut pair) = two(Engine::Redis70, Engine::Redis70).await;
    run(&mut pair.source_side, &["RPUSH l aa bb cc", "SET s abcd PX 100000000", "HSET h field value"]).await;
    let list = pair.replace(b"l", 1).await;
    assert_eq!(list, Outcome::Written { bytes: 6, elements: 3, ttl: false });
    let string = pair.replace(b"s", 3).await;
    assert_eq!(string, Outcome::Written { bytes: 4, elements: 1, ttl: true });
    let hash = pair.replace(b"h", 1 << 20).await;
    assert_eq!(hash, Outcome::Written { bytes: 10, elements: 1, ttl: false });
    assert_eq!(pair.replace(b"nothing", 1 << 20).await, Outcome::Gone);
}

#[tokio::test]
async fn fields_that_expire_on_the_way_stay_mortal() {
    for (from, to) in [(Engine::Redis80, Engine::Valkey91), (Engine::Valkey91, Engine::Redis80)] {
        let (_source, _target, mut pair) = two(from, to).await;
        pipeline(&mut pair.source_side, 4_000, |i| words(&format!("HSET h f{i} v"))).await;
        pipeline(&mut pair.source_side, 3_000, |i| {
            words(&format!("HPEXPIRE h {} FIELDS 1 f{i}", 500 + i / 2))
        })
        .await;
        let mut written = 0;
        // In many small chunks and in a few large ones, while fields expire all the time.
        for i in 0..20 {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let chunk_bytes = if i % 5 == 0 { 40 } else { 64 << 10 };
            let outcome = pair.replace(b"h", chunk_bytes).await;
            if outcome == Outcome::Changing {
                // A server may count a field that expires as a change.
                continue;
            }
            assert!(matches!(outcome, Outcome::Written { .. }), "{from} to {to}: {outcome:?}");
            written += 1;
            let reply = call(&mut pair.target_side, &[b"HKEYS", b"h"]).await;
            let fields: Vec<Bytes> =
                reply.into_items().expect("fields").into_iter().filter_map(Value::into_bytes).collect();
            let times = times_of_fields(&mut pair.target_side, b"h", &fields).await;
            for (field, at_ms) in fields.iter().zip(times) {
                let name = std::str::from_utf8(field).expect("a name");
                let number: usize = name[1..].parse().expect("a number");
                // -2 where one more has expired since.
                assert_eq!(at_ms == -1, number >= 3_000, "{from} to {to}: {name} expires at {at_ms}");
            }
        }
        assert!(written > 0, "{from} to {to}");
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        let left = call(&mut pair.target_side, &[b"HKEYS", b"h"]).await;
        assert_eq!(left.as_items().map(<[Value]>::len), Some(1_000), "{from} to {to}");
    }
}

#[tokio::test]
async fn a_key_that_becomes_another_starts_over() {
    let (_source, _target, mut pair) = two(Engine::Redis70, Engine::Redis80).await;
    pipeline(&mut pair.source_side, 20_000, |i| words(&format!("RPUSH k {i}"))).await;
    let t = staged(b"k", Existing::Replace, 1, (&pair.source_can, &pair.target_can));
    let staging = staging_key(JOB, b"k");
    let (source_side, target_side) = (&mut pair.source_side, &mut pair.target_side);
    let other = async {
        for _ in 0..10_000 {
            if exists(target_side, &staging).await == 1 {
                break;
            }
        }
        call(source_side, &[b"SET", b"k", b"a string now"]).await;
    };
    let (result, ()) = tokio::join!(transfer(&mut pair.source, &mut pair.target, &t), other);
    assert!(matches!(result, Ok(Outcome::Written { .. })), "{result:?}");
    pair.assert_equal(b"k", "as a string").await;
}

#[tokio::test]
async fn commands_of_big_collections_are_short() {
    const COUNT: usize = 200_000;
    const TRIES: usize = 20;
    let start = |engine| Server::builder(engine).start().expect("a server");
    for (from, to) in [(Engine::Redis70, Engine::Valkey91), (Engine::Valkey81, Engine::Redis80)] {
        let (source, target) = (start(from), start(to));
        let mut pair = Pair::new(&source, &target).await;
        let value = blob(0, 1_000);
        pipeline(&mut pair.source_side, COUNT, |i| {
            vec![b"HSET".into(), b"hash".into(), format!("field:{i}").into_bytes(), value.clone()]
        })
        .await;
        pipeline(&mut pair.source_side, COUNT, |_| vec![b"RPUSH".into(), b"list".into(), value.clone()])
            .await;
        pipeline(&mut pair.source_side, 32, |i| vec![b"APPEND".into(), b"string".into(), blob(i, 1 << 20)])
            .await;
        source.slow_commands();
        for (key, bytes_min) in [(&b"hash"[..], 200_000_000), (b"list", 200_000_000), (b"string", 32 << 20)] {
            // The first time there is nothing to replace.
            pair.replace(key, 256 << 10).await;
            source.slow_commands();
            target.slow_commands();
            // A command that takes long always does. One that the machine has interrupted does so now and
            // then.
            let mut slow = Vec::new();
            for _ in 0..TRIES {
                let outcome = pair.replace(key, 256 << 10).await;
                let Outcome::Written { bytes, .. } = outcome else { panic!("{from} to {to}: {outcome:?}") };
                assert!(bytes >= bytes_min, "{bytes} bytes");
                slow = source.slow_commands();
                slow.extend(target.slow_commands());
                if slow.is_empty() {
                    break;
                }
            }
            assert!(slow.is_empty(), "{from} to {to}: {}: slow: {slow:?}", key.escape_ascii());
        }
        assert_eq!(int(&mut pair.target_side, &[b"HLEN", b"hash"]).await, COUNT as i64);
        assert_eq!(int(&mut pair.target_side, &[b"LLEN", b"list"]).await, COUNT as i64);
    }
}

#[tokio::test]
async fn a_key_that_changes_is_exact_or_given_up() {
    let (source, _target, mut pair) = two(Engine::Valkey81, Engine::Redis70).await;
    pipeline(&mut pair.source_side, 5_000, |i| words(&format!("RPUSH l {i}"))).await;
    call(&mut pair.target_side, &[b"SET", b"l", b"before"]).await;

    let done = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (url, done) = (source.url(), done.clone());
        async move {
            let mut link = open(&url, Side::Source).await;
            // Both ends always hold the same number.
            for i in (0..1_000_000).take_while(|_| !done.load(Ordering::Relaxed)) {
                let lines = [format!("LSET l 0 {i}"), format!("LSET l -1 {i}")];
                run(&mut link, &["MULTI", &lines[0], &lines[1], "EXEC"]).await;
            }
        }
    });
    // It is at work before the list is read.
    while call(&mut pair.source_side, &[b"LINDEX", b"l", b"-1"]).await.as_str() == Some("4999") {
        tokio::task::yield_now().await;
    }
    run(&mut pair.source_side, &["LSET l 0 x", "LSET l -1 x"]).await;
    let outcome = pair.replace(b"l", 100).await;
    assert_eq!(outcome, Outcome::Changing);
    assert_eq!(call(&mut pair.target_side, &[b"GET", b"l"]).await.as_str(), Some("before"));
    assert_eq!(int(&mut pair.target_side, &[b"DBSIZE"]).await, 1, "no staging key is left");
    // In one chunk there is a chance. Whatever arrives is a state that the list was in.
    for _ in 0..8 {
        let outcome = pair.replace(b"l", 1 << 20).await;
        if matches!(outcome, Outcome::Written { .. }) {
            let ends = (
                call(&mut pair.target_side, &[b"LINDEX", b"l", b"0"]).await,
                call(&mut pair.target_side, &[b"LINDEX", b"l", b"-1"]).await,
            );
            assert_eq!(ends.0, ends.1);
        } else {
            assert_eq!(outcome, Outcome::Changing);
        }
    }
    done.store(true, Ordering::Relaxed);
    writer.await.expect("the writer");
    assert!(matches!(pair.replace(b"l", 100).await, Outcome::Written { .. }));
    pair.assert_equal(b"l", "after the changes").await;
}

async fn changes_of_groups_are_noticed_without_watch(engine: Engine) {
    let (source, _target, mut pair) = two(engine, Engine::Redis70).await;
    pipeline(&mut pair.source_side, 1_000, |i| words(&format!("XADD x {}-1 a b", i + 1))).await;
    run(&mut pair.source_side, &["XGROUP CREATE x g 0", "XREADGROUP GROUP g c STREAMS x >"]).await;
    let done = Arc::new(AtomicBool::new(false));
    let worker = tokio::spawn({
        let (url, done) = (source.url(), done.clone());
        async move {
            let mut link = open(&url, Side::Source).await;
            for i in (1..1_000).take_while(|_| !done.load(Ordering::Relaxed)) {
                run(&mut link, &[&format!("XACK x g {i}-1")]).await;
                // There are enough of them for 20 s.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    // Read in steps of one entry, it takes longer than two acknowledgements do.
    let outcome = pair.replace(b"x", 1).await;
    done.store(true, Ordering::Relaxed);
    worker.await.expect("the worker");
    assert_eq!(outcome, Outcome::Changing, "{engine}");
    assert!(matches!(pair.replace(b"x", 1 << 20).await, Outcome::Written { .. }), "{engine}");
    pair.assert_equal(b"x", "after the changes").await;
}

#[tokio::test]
async fn a_key_that_expires_on_the_way_is_gone() {
    let (_source, _target, mut pair) = two(Engine::Redis70, Engine::Valkey91).await;
    pipeline(&mut pair.source_side, 20_000, |i| words(&format!("RPUSH l {i}"))).await;
    run(&mut pair.source_side, &["PEXPIRE l 50"]).await;
    call(&mut pair.target_side, &[b"SET", b"l", b"before"]).await;
    assert_eq!(pair.replace(b"l", 1).await, Outcome::Gone);
    assert_eq!(call(&mut pair.target_side, &[b"GET", b"l"]).await.as_str(), Some("before"));
    assert_eq!(int(&mut pair.target_side, &[b"DBSIZE"]).await, 1, "no staging key is left");
    // The links are as before.
    run(&mut pair.source_side, &["SET s 1"]).await;
    assert!(matches!(pair.replace(b"s", 1).await, Outcome::Written { .. }));
}

#[tokio::test]
async fn the_orphan_of_a_killed_transfer_expires() {
    let (source, target, mut pair) = two(Engine::Redis70, Engine::Redis80).await;
    pipeline(&mut pair.source_side, 50_000, |i| words(&format!("RPUSH l {i}"))).await;
    let killed = tokio::spawn({
        let (source, target) = (source.url(), target.url());
        async move { Pair::of_urls(&source, &target).await.replace(b"l", 1).await }
    });
    let staging = staging_key(JOB, b"l");
    assert_eq!(Slot::of_key(&staging), Slot::of_key(b"l"));
    let mut ttl_ms = -2;
    for _ in 0..10_000 {
        ttl_ms = int(&mut pair.target_side, &[b"PTTL", &staging]).await;
        if ttl_ms >= 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    killed.abort();
    assert!(killed.await.is_err_and(|e| e.is_cancelled()), "killed in the middle");
    assert!((1..=3_600_000).contains(&ttl_ms), "{ttl_ms}");
    assert_eq!(exists(&mut pair.target_side, &staging).await, 1);
    assert_eq!(exists(&mut pair.target_side, b"l").await, 0);
    // The next try starts from scratch.
    assert!(matches!(pair.replace(b"l", 64 << 10).await, Outcome::Written { .. }));
    pair.assert_equal(b"l", "second try").await;
}

#[tokio::test]
async fn a_stopped_transfer_leaves_nothing() {
    let (_source, _target, mut pair) = two(Engine::Valkey91, Engine::Valkey81).await;
    pipeline(&mut pair.source_side, 50_000, |i| words(&format!("RPUSH l {i}"))).await;
    let stop = CancellationToken::new();
    let t = Transfer {
        stop: Some(&stop),
        ..staged(b"l", Existing::Replace, 1, (&pair.source_can, &pair.target_can))
    };
    let staging = staging_key(JOB, b"l");
    let side = &mut pair.target_side;
    let stopper = async {
        for _ in 0..10_000 {
            if exists(side, &staging).await == 1 {
                break;
            }
        }
        stop.cancel();
    };
    let (result, ()) = tokio::join!(transfer(&mut pair.source, &mut pair.target, &t), stopper);
    assert_eq!(result.expect_err("stopped").side, Side::Own);
    assert_eq!(int(&mut pair.target_side, &[b"DBSIZE"]).await, 0);
}

#[tokio::test]
async fn what_exists_is_respected() {
    let (_source, _target, mut pair) = two(Engine::Redis70, Engine::Redis70).await;
    for side in [&mut pair.source_side, &mut pair.target_side] {
        run(side, &["SET same value", "RPUSH list a b c", "HSET other a 1 b 2"]).await;
    }
    run(&mut pair.target_side, &["HSET other b 3", "SET typed x"]).await;
    run(&mut pair.source_side, &["SADD typed x", "SET fresh x"]).await;
    for (key, skip, fail) in [
        (&b"same"[..], Outcome::Skipped, Outcome::Skipped),
        (b"list", Outcome::Skipped, Outcome::Skipped),
        (b"other", Outcome::Skipped, Outcome::Conflict),
        (b"typed", Outcome::Skipped, Outcome::Conflict),
    ] {
        let name = key.escape_ascii();
        assert_eq!(pair.transfer(key, Existing::Skip, 1 << 20).await.expect("skip"), skip, "{name}");
        assert_eq!(pair.transfer(key, Existing::Fail, 1 << 20).await.expect("fail"), fail, "{name}");
    }
    assert_eq!(call(&mut pair.target_side, &[b"HGET", b"other", b"b"]).await.as_str(), Some("3"));
    let outcome = pair.transfer(b"fresh", Existing::Fail, 1 << 20).await.expect("fresh");
    assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
    pair.assert_equal(b"fresh", "fresh").await;
    assert!(matches!(pair.replace(b"other", 1 << 20).await, Outcome::Written { .. }));
    pair.assert_equal(b"other", "replaced").await;
}

#[tokio::test]
async fn a_key_that_appears_on_the_way_is_respected() {
    for existing in [Existing::Skip, Existing::Fail] {
        let (_source, _target, mut pair) = two(Engine::Valkey91, Engine::Redis70).await;
        pipeline(&mut pair.source_side, 5_000, |i| words(&format!("RPUSH l {i}"))).await;
        let t = staged(b"l", existing, 1, (&pair.source_can, &pair.target_can));
        let staging = staging_key(JOB, b"l");
        let side = &mut pair.target_side;
        let rival = async {
            for _ in 0..10_000 {
                if exists(side, &staging).await == 1 {
                    break;
                }
            }
            call(side, &[b"RPUSH", b"l", b"rival"]).await;
        };
        let (result, ()) = tokio::join!(transfer(&mut pair.source, &mut pair.target, &t), rival);
        let expected = if existing == Existing::Skip { Outcome::Skipped } else { Outcome::Conflict };
        assert_eq!(result.expect("a transfer"), expected);
        assert_eq!(int(&mut pair.target_side, &[b"LLEN", b"l"]).await, 1);
        assert_eq!(int(&mut pair.target_side, &[b"PTTL", b"l"]).await, -1);
        assert_eq!(int(&mut pair.target_side, &[b"DBSIZE"]).await, 1, "no staging key is left");
    }
}

async fn goes_on_where_watch_is_forbidden(engine: Engine) {
    let source = Server::builder(engine)
        .user_acl("user reader on >secret ~* &* +@all -watch -unwatch -multi -exec")
        .start()
        .expect("a source");
    let target = Server::builder(engine).start().expect("a target");
    let url = source
        .url()
        .replace("redis://", "redis://reader:secret@")
        .replace("valkey://", "valkey://reader:secret@");
    let mut pair = Pair::of_urls(&url, &target.url()).await;
    let keys = populate(&mut pair.source_side, pair.source_can.hash_field_ttl).await;
    for key in &keys {
        let outcome = pair.replace(key, 64 << 10).await;
        assert!(matches!(outcome, Outcome::Written { .. }), "{}: {outcome:?}", key.escape_ascii());
        pair.assert_equal(key, "without WATCH").await;
    }
}

async fn a_full_target_keeps_no_half_value(engine: Engine) {
    let (_source, _target, mut pair) = two(Engine::Redis70, engine).await;
    let value = blob(0, 10_000);
    pipeline(&mut pair.source_side, 1_500, |_| vec![b"RPUSH".into(), b"l".into(), value.clone()]).await;
    run(&mut pair.target_side, &["SET l before", "CONFIG SET maxmemory 12mb"]).await;
    let error = pair.transfer(b"l", Existing::Replace, 256 << 10).await.expect_err("a full target");
    assert_eq!(error.server().map(|e| &e.code), Some(&Code::Oom), "{engine}: {error}");
    assert_eq!(int(&mut pair.target_side, &[b"DBSIZE"]).await, 1, "{engine}: no staging key is left");
    assert_eq!(call(&mut pair.target_side, &[b"GET", b"l"]).await.as_str(), Some("before"));
    run(&mut pair.target_side, &["CONFIG SET maxmemory 0"]).await;
    assert!(matches!(pair.replace(b"l", 256 << 10).await, Outcome::Written { .. }), "{engine}");
    pair.assert_equal(b"l", "with room").await;
}

#[tokio::test]
async fn lost_elements_are_noticed() {
    let (_source, _target, mut pair) = two(Engine::Redis70, Engine::Redis70).await;
    pipeline(&mut pair.source_side, 20_000, |i| words(&format!("SADD s {i}"))).await;
    call(&mut pair.target_side, &[b"SET", b"s", b"before"]).await;
    let t = staged(b"s", Existing::Replace, 1, (&pair.source_can, &pair.target_can));
    let staging = staging_key(JOB, b"s");
    let side = &mut pair.target_side;
    // As a failover to a replica that lags behind would.
    let thief = async {
        for _ in 0..10_000 {
            if int(side, &[b"SCARD", &staging]).await > 0 {
                break;
            }
        }
        call(side, &[b"SPOP", &staging]).await;
    };
    let (result, ()) = tokio::join!(transfer(&mut pair.source, &mut pair.target, &t), thief);
    let error = result.expect_err("lost elements");
    assert!(error.is_transient() && error.side == Side::Target, "{error}");
    assert_eq!(call(&mut pair.target_side, &[b"GET", b"s"]).await.as_str(), Some("before"));
}

/// What a transfer comes to whose staging key somebody removes in its middle, when it has this many elements:
/// an eviction, or a run that takes it for a leftover.
async fn robbed(pair: &mut Pair, key: &[u8], count: &[u8]) -> Error {
    let t = staged(key, Existing::Replace, 1, (&pair.source_can, &pair.target_can));
    let staging = staging_key(JOB, key);
    let side = &mut pair.target_side;
    let remover = async {
        for _ in 0..10_000 {
            if int(side, &[count, &staging]).await > 100 {
                break;
            }
        }
        int(side, &[b"UNLINK", &staging]).await
    };
    let (result, removed) = tokio::join!(transfer(&mut pair.source, &mut pair.target, &t), remover);
    assert_eq!(removed, 1, "the staging key was not there in time: {result:?}");
    result.expect_err("it lost elements")
}

#[tokio::test]
async fn a_staging_key_that_vanishes_is_noticed() {
    let (_source, _target, mut pair) = two(Engine::Redis80, Engine::Redis80).await;
    run(&mut pair.source_side, &["XGROUP CREATE stream g 0 MKSTREAM"]).await;
    pipeline(&mut pair.source_side, 20_000, |i| words(&format!("XADD stream {}-1 field v", i + 1))).await;
    run(&mut pair.source_side, &["XREADGROUP GROUP g reader COUNT 500 STREAMS stream >"]).await;
    pipeline(&mut pair.source_side, 20_000, |i| words(&format!("HSET hash field:{i} v"))).await;
    // Each of them may be missing some day, but not yet.
    pipeline(&mut pair.source_side, 20_000, |i| words(&format!("HPEXPIRE hash 3600000 FIELDS 1 field:{i}")))
        .await;
    pipeline(&mut pair.source_side, 20_000, |i| words(&format!("RPUSH list {i}"))).await;
    for (key, count) in [(&b"stream"[..], &b"XLEN"[..]), (b"hash", b"HLEN"), (b"list", b"LLEN")] {
        call(&mut pair.target_side, &[b"SET", key, b"before"]).await;
        let error = robbed(&mut pair, key, count).await;
        assert!(error.is_transient() && error.side == Side::Target, "{error}");
        assert_eq!(call(&mut pair.target_side, &[b"GET", key]).await.as_str(), Some("before"));
        assert!(matches!(pair.replace(key, 64 << 10).await, Outcome::Written { .. }));
        pair.assert_equal(key, "second try").await;
    }
}

#[tokio::test]
async fn what_grows_faster_than_it_is_read_is_given_up() {
    let (_source, _target, mut pair) = two(Engine::Redis70, Engine::Redis70).await;
    pipeline(&mut pair.source_side, 2_000, |i| words(&format!("RPUSH list {i}"))).await;
    pipeline(&mut pair.source_side, 2_000, |_| words("XADD stream * field v")).await;
    run(&mut pair.source_side, &["XGROUP CREATE stream g $"]).await;
    for (key, grow) in [(&b"list"[..], "RPUSH list more"), (b"stream", "XADD stream * field v")] {
        let t = staged(key, Existing::Replace, 64 << 10, (&pair.source_can, &pair.target_can));
        let side = &mut pair.source_side;
        let writer = async {
            loop {
                pipeline(side, 1_000, |_| words(grow)).await;
                if grow.starts_with("XADD") {
                    // Delivered, not acknowledged, and deleted.
                    let read =
                        ["XREADGROUP GROUP g reader COUNT 1 STREAMS stream >", "XTRIM stream MAXLEN 2000"];
                    run(side, &read).await;
                }
            }
        };
        let outcome = tokio::select! {
            outcome = transfer(&mut pair.source, &mut pair.target, &t) => outcome,
            () = writer => unreachable!("it writes without end"),
        };
        assert!(matches!(outcome, Ok(Outcome::Changing)), "{outcome:?}");
    }
}

async fn staging_keys_stay_in_the_slot(engine: Engine) {
    let start = || Server::builder(engine).cluster().start().expect("a node");
    let (source, target) = (start(), start());
    let mut pair = Pair::new(&source, &target).await;
    for side in [&mut pair.source_side, &mut pair.target_side] {
        run(side, &["CLUSTER ADDSLOTSRANGE 0 16383"]).await;
        for _ in 0..10_000 {
            let info = call(side, &[b"CLUSTER", b"INFO"]).await;
            if info.as_str().is_some_and(|info| info.contains("cluster_state:ok")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    for i in 0..50 {
        let key = blob(i, 9);
        call(&mut pair.source_side, &[b"RPUSH", &key, b"a", b"b", b"c"]).await;
        assert!(matches!(pair.replace(&key, 1).await, Outcome::Written { .. }), "{engine}");
        pair.assert_equal(&key, "in a cluster").await;
    }
    let key = blob(0, 9);
    let slot = Slot::of_key(&key).to_string();
    run(&mut pair.target_side, &["CONFIG SET cluster-require-full-coverage no"]).await;
    run(&mut pair.target_side, &[&format!("CLUSTER DELSLOTS {slot}")]).await;
    let error = pair.transfer(&key, Existing::Replace, 1).await.expect_err("nobody owns the slot");
    assert_eq!(error.server().map(|e| &e.code), Some(&Code::ClusterDown), "{engine}: {error}");
}

#[tokio::test]
async fn types_are_reported() {
    let (_source, _target, mut pair) = two(Engine::Redis80, Engine::Redis70).await;
    run(&mut pair.source_side, &["SET s 1", "XADD x 1-1 a b"]).await;
    for (key, kind) in [(&b"s"[..], Some(KeyType::String)), (b"x", Some(KeyType::Stream)), (b"nothing", None)]
    {
        assert_eq!(type_of(&mut pair.source, key).await.expect("TYPE"), kind);
    }
}
