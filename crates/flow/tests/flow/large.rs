//! Typed transfers between real servers.

use std::fmt::Write as _;
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
    Existing, KeyType, Outcome, Place, TRIES_MAX, Transfer, staging_key, transfer, type_of,
};
use whimbrel_lab::{Engine, Server};
use whimbrel_wire::value::Value;

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

/// A far future, not a multiple of a second.
const FAR_MS: i64 = 4_102_444_800_123;

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
            assert!((ours - theirs).abs() <= 20, "{what}: {name}: delivered at {ours} and {theirs}");
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
    let (place, tries_max, job, stop) = (Place::Staging, TRIES_MAX, JOB, None);
    Transfer { key, existing, place, chunk_bytes, tries_max, job, source, target, stop }
}

async fn call(link: &mut Link, args: &[&[u8]]) -> Value {
    link.call(args).await.expect("a command")
}

async fn int(link: &mut Link, args: &[&[u8]]) -> i64 {
    call(link, args).await.as_int().expect("an integer")
}

async fn exists(link: &mut Link, key: &[u8]) -> i64 {
    int(link, &[b"EXISTS", key]).await
}

/// Pipelines `count` commands.
async fn pipeline(link: &mut Link, count: usize, mut args: impl FnMut(usize) -> Vec<Vec<u8>>) {
    for start in (0..count).step_by(500) {
        let end = count.min(start + 500);
        for i in start..end {
            let args = args(i);
            let args: Vec<&[u8]> = args.iter().map(|arg| &arg[..]).collect();
            link.push(&args);
        }
        link.flush().await.expect("a flush");
        for reply in link.replies(end - start).await.expect("replies") {
            link.check(reply, b"a pipelined command").expect("success");
        }
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

async fn run(link: &mut Link, lines: &[&str]) {
    pipeline(link, lines.len(), |i| words(lines[i])).await;
}

/// Bytes of any value, different for each `i`, of `len` and a little.
fn blob(i: usize, len: usize) -> Vec<u8> {
    let mut blob = format!("{i}:\r\n\0\u{ff}").into_bytes();
    let mut state = i as u32 | 1;
    while blob.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        blob.push((state >> 24) as u8);
    }
    blob
}

/// All that can be known of a key, except what no command can set.
#[derive(Default)]
struct Description {
    text: String,
    /// Delivery times, which are told to about a millisecond only.
    times_ms: Vec<i64>,
}

impl Description {
    fn head(&self) -> String {
        self.text.chars().take(2_000).collect()
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Int(n) if *n > 1_000_000_000_000 => self.times_ms.push(*n),
            Value::Int(n) => write!(self.text, "{n},").expect("memory"),
            Value::Array(items) => {
                self.text.push('[');
                let mut items = items.iter();
                while let Some(item) = items.next() {
                    // What depends on the way of writing, and what no command can set.
                    if matches!(
                        item.as_str(),
                        Some("radix-tree-keys" | "radix-tree-nodes" | "seen-time" | "active-time")
                    ) {
                        items.next();
                    } else {
                        self.add(item);
                    }
                }
                self.text.push(']');
            }
            Value::Null => self.text.push_str("null,"),
            other => write!(self.text, "{:?},", other.as_bytes().expect("a string")).expect("memory"),
        }
    }
}

async fn describe(link: &mut Link, key: &[u8], field_ttl: bool) -> Description {
    let mut description = Description::default();
    let kind = type_of(link, key).await.expect("TYPE");
    let expires = int(link, &[b"PEXPIRETIME", key]).await;
    write!(description.text, "{kind:?} {expires} ").expect("memory");
    let all: &[&[u8]] = match kind {
        None | Some(KeyType::Module(_)) => return description,
        Some(KeyType::String) => &[b"GET", key],
        Some(KeyType::List) => &[b"LRANGE", key, b"0", b"-1"],
        Some(KeyType::Set) => &[b"SMEMBERS", key],
        Some(KeyType::Zset) => &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
        Some(KeyType::Hash) => &[b"HGETALL", key],
        Some(KeyType::Stream) => &[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"],
    };
    let reply = call(link, all).await;
    let mut elements: Vec<Vec<Value>> = match kind {
        Some(KeyType::Set) => reply.into_items().expect("items").into_iter().map(|item| vec![item]).collect(),
        Some(KeyType::Zset | KeyType::Hash) => {
            reply.into_pairs().expect("pairs").into_iter().map(|(a, b)| vec![a, b]).collect()
        }
        _ => {
            description.add(&reply);
            return description;
        }
    };
    elements.sort_by_key(|element| element[0].as_bytes().cloned());
    let mut field_times = Vec::new();
    if kind == Some(KeyType::Hash) && field_ttl {
        let fields: Vec<_> = elements.iter().map(|e| e[0].as_bytes().expect("a field").clone()).collect();
        for fields in fields.chunks(1_000) {
            field_times.extend(times_of_fields(link, key, fields).await);
        }
    }
    for (i, element) in elements.iter().enumerate() {
        description.add(&element[0]);
        match kind {
            // Versions print the same score in different ways.
            Some(KeyType::Zset) => {
                let score: f64 = element[1].as_str().expect("a score").parse().expect("a number");
                // The servers themselves lose the sign of a zero: a sorted set starts as a listpack, which
                // stores whole numbers as integers, and ZADD takes -0 over 0 for no change. Which elements
                // come first depends on the hash seed. -0.0 + 0.0 is 0.0.
                write!(description.text, "{:x},", (score + 0.0).to_bits()).expect("memory");
            }
            Some(KeyType::Hash) => {
                description.add(&element[1]);
                write!(description.text, "{},", field_times.get(i).unwrap_or(&-1)).expect("memory");
            }
            _ => {}
        }
    }
    description
}

/// When fields expire; -1 for never.
async fn times_of_fields(link: &mut Link, key: &[u8], fields: &[Bytes]) -> Vec<i64> {
    let count = fields.len().to_string();
    let mut args = vec![&b"HPEXPIRETIME"[..], key, b"FIELDS", count.as_bytes()];
    args.extend(fields.iter().map(|field| &field[..]));
    let reply = call(link, &args).await;
    reply.as_items().expect("times").iter().map(|time| time.as_int().expect("a time")).collect()
}

/// Creates keys of every type; returns their names.
async fn populate(link: &mut Link, field_ttl: bool) -> Vec<Vec<u8>> {
    let far = FAR_MS.to_string();
    run(
        link,
        &[
            "SET s:plain value",
            "SET s:int 1234567890123",
            &format!("SET s:ttl value PXAT {far}"),
            "SETBIT s:bits 100000 1",
            "PFADD s:hll a b c d e f",
            "RPUSH l:one x",
            "RPUSH l:few 1 2 3 4 5 1 2 3",
            "SADD set:int 1 2 3 -9223372036854775808 9223372036854775807",
            "SADD set:few a b c 1",
            "ZADD z:few inf a -inf b 1e-7 c 0.1 d 12345678901234567 e -0 f 3.1415926535897931 g 1e308 h \
                5e-324 i",
            "GEOADD z:geo 13.361389 38.115556 Palermo 15.087269 37.502669 Catania",
            "HSET h:few a 1 b 2 c 3",
            &format!("PEXPIREAT h:few {far}"),
        ],
    )
    .await;
    let value = blob(1, 300_000);
    for (key, value) in [
        (&b"s:empty"[..], &b""[..]),
        (b"", b"the key without a name"),
        (b"bin\0\r\n\xff{\xfe}", b"\0\r\n$-1\r\n"),
        (b"s:big", &value),
        (b"s:exact", &value[..8_192]),
    ] {
        call(link, &[b"SET", key, value]).await;
    }
    call(link, &[b"HSET", b"h:empty", b"", b"", b"\xff", b"\0"]).await;
    call(link, &[b"HSET", b"h:huge", b"small", b"x", b"huge", &value]).await;
    call(link, &[b"RPUSH", b"l:huge", b"x", &value, b"", &value, b"y"]).await;
    pipeline(link, 20_000, |i| vec![b"RPUSH".into(), b"l:many".into(), blob(i, 3 + i % 50)]).await;
    pipeline(link, 20_000, |i| vec![b"SADD".into(), b"set:many".into(), blob(i, 3 + i % 50)]).await;
    pipeline(link, 400, |i| vec![b"SADD".into(), b"set:ints".into(), (i * 7_919).to_string().into()]).await;
    pipeline(link, 20_000, |i| vec![b"HSET".into(), b"h:many".into(), blob(i, 9), blob(i, i % 90)]).await;
    pipeline(link, 20_000, |i| {
        let score = match i % 5 {
            0 => (i as f64).sqrt(),
            1 => -1.0 / (i as f64),
            2 => f64::from_bits(0x3ff0_0000_0000_0000 + (i as u64) * 7_919_191_919),
            3 => i as f64 * 1e300,
            _ => i as f64,
        };
        vec![b"ZADD".into(), b"z:many".into(), score.to_string().into(), blob(i, 9)]
    })
    .await;
    run(link, &["ZADD z:many inf top -inf bottom -0 zero", &format!("PEXPIREAT z:many {far}")]).await;
    if field_ttl {
        pipeline(link, 3_000, |i| vec![b"HSET".into(), b"h:ttl".into(), blob(i, 9), b"v".into()]).await;
        pipeline(link, 1_000, |i| {
            let (field, at_ms) = (blob(i * 3, 9), FAR_MS + (i as i64 % 7) * 1_001);
            let mut args = words("HPEXPIREAT h:ttl");
            args.extend([at_ms.to_string().into_bytes(), b"FIELDS".into(), b"1".into(), field]);
            args
        })
        .await;
        run(link, &["HSET h:ttl1 a 1 b 2", &format!("HPEXPIREAT h:ttl1 {far} FIELDS 1 a")]).await;
    }
    populate_streams(link).await;

    let mut keys = Vec::new();
    let mut cursor = b"0".to_vec();
    loop {
        let reply = call(link, &[b"SCAN", &cursor, b"COUNT", b"1000"]).await;
        let [next, page] = reply.as_items().expect("a page") else { panic!("not a page") };
        keys.extend(page.as_items().expect("keys").iter().map(|key| key.as_bytes().expect("a key").to_vec()));
        cursor = next.as_bytes().expect("a cursor").to_vec();
        if cursor == b"0" {
            break;
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

async fn populate_streams(link: &mut Link) {
    run(
        link,
        &[
            // Never had an entry; with and without a group.
            "XGROUP CREATE x:virgin g 0 MKSTREAM",
            "XGROUP DESTROY x:virgin g",
            "XGROUP CREATE x:group g $ MKSTREAM",
            "XGROUP CREATECONSUMER x:group g idle",
            // No groups, holes at both ends and in the middle.
            "XADD x:holes 1-1 a 1",
            "XADD x:holes 2-1 a 2 b 2",
            "XADD x:holes 3-1 a 3",
            "XADD x:holes 4-1 a 4",
            "XADD x:holes 5-18446744073709551615 a 5",
            "XDEL x:holes 1-1 3-1 5-18446744073709551615",
            // Emptied by deletion and by trimming, everything pending.
            "XADD x:deleted 1-1 a 1",
            "XADD x:deleted 2-1 a 2",
            "XGROUP CREATE x:deleted g 0",
            "XREADGROUP GROUP g c STREAMS x:deleted >",
            "XDEL x:deleted 1-1 2-1",
            "XADD x:trimmed 1-1 a 1",
            "XADD x:trimmed 2-1 a 2",
            "XGROUP CREATE x:trimmed g 0",
            "XREADGROUP GROUP g c STREAMS x:trimmed >",
            "XTRIM x:trimmed MAXLEN 0",
            // Trimmed at the front, never deleted from: the highest deleted id stays nothing.
            "XADD x:front 1-1 a 1",
            "XADD x:front 2-1 a 2",
            "XADD x:front 3-1 a 3",
            "XGROUP CREATE x:front g 0",
            "XREADGROUP GROUP g c STREAMS x:front >",
            "XTRIM x:front MAXLEN 1",
            // The last and the middle one deleted while pending, in two groups, with a group that was set
            // ahead.
            "XADD x:mixed 1-1 a 1",
            "XADD x:mixed 2-1 a 2",
            "XADD x:mixed 3-1 a 3",
            "XADD x:mixed 4-1 a 4",
            "XADD x:mixed 5-1 a 5",
            "XGROUP CREATE x:mixed g 0",
            "XGROUP CREATE x:mixed h 2-1",
            "XGROUP CREATE x:mixed ahead 9-9",
            "XGROUP CREATE x:mixed read 3-1 ENTRIESREAD 3",
            "XREADGROUP GROUP g c1 COUNT 2 STREAMS x:mixed >",
            "XREADGROUP GROUP g c2 STREAMS x:mixed >",
            "XREADGROUP GROUP h c1 COUNT 1 STREAMS x:mixed >",
            "XREADGROUP GROUP h c1 STREAMS x:mixed 0",
            "XACK x:mixed g 3-1",
            "XCLAIM x:mixed g c3 0 2-1 TIME 1700000000123 RETRYCOUNT 7",
            "XTRIM x:mixed MINID 2-1",
            "XDEL x:mixed 3-1 5-1",
            "XGROUP CREATECONSUMER x:mixed h never",
            // The highest possible id.
            "XADD x:last 18446744073709551615-18446744073709551615 a 1",
            "XGROUP CREATE x:last g 0",
            "XREADGROUP GROUP g c STREAMS x:last >",
        ],
    )
    .await;
    call(link, &[b"XADD", b"x:huge", b"1-1", b"small", b"", b"huge", &blob(1, 300_000)]).await;
    call(link, &[b"XADD", b"x:huge", b"2-1", b"", b"\0\r\n"]).await;
    pipeline(link, 6_000, |i| {
        vec![
            b"XADD".into(),
            b"x:many".into(),
            format!("{}-{}", 10 + i / 3, i % 3 + 1).into(),
            b"f".into(),
            blob(i, i % 90),
        ]
    })
    .await;
    run(link, &["XGROUP CREATE x:many g 0", "XGROUP CREATE x:many h 0"]).await;
    for consumer in ["a", "b\u{ff}", "c"] {
        run(link, &[&format!("XREADGROUP GROUP g {consumer} COUNT 1500 STREAMS x:many >")]).await;
    }
    run(link, &["XREADGROUP GROUP h a COUNT 5000 STREAMS x:many >"]).await;
    pipeline(link, 1_500, |i| words(&format!("XDEL x:many {}-{}", 10 + i, i % 3 + 1))).await;
    run(link, &["XTRIM x:many MINID 900-1", &format!("PEXPIREAT x:many {FAR_MS}")]).await;
    pipeline(link, 800, |i| words(&format!("XACK x:many g {}-1", 10 + i))).await;
    // More pending entries than one request tells, all of entries that are gone.
    pipeline(link, 2_500, |i| words(&format!("XADD x:ghosts {}-1 a b", i + 1))).await;
    run(
        link,
        &["XGROUP CREATE x:ghosts g 0", "XREADGROUP GROUP g c STREAMS x:ghosts >", "XTRIM x:ghosts MAXLEN 3"],
    )
    .await;
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

/// The names of commands in the slow log, which is emptied.
async fn slow_commands(link: &mut Link) -> Vec<String> {
    let log = call(link, &[b"SLOWLOG", b"GET", b"100"]).await;
    run(link, &["SLOWLOG RESET"]).await;
    let name = |entry: &Value| Some(entry.as_items()?.get(3)?.as_items()?.first()?.as_str()?.to_owned());
    log.as_items().expect("entries").iter().map(|entry| name(entry).expect("a command")).collect()
}

#[tokio::test]
async fn big_collections_stay_out_of_the_slow_log() {
    const COUNT: usize = 200_000;
    const TRIES: usize = 6;
    let start =
        |engine| Server::builder(engine).arg("slowlog-log-slower-than", "50000").start().expect("a server");
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
        slow_commands(&mut pair.source_side).await;
        for (key, bytes_min) in [(&b"hash"[..], 200_000_000), (b"list", 200_000_000), (b"string", 32 << 20)] {
            // The first time there is nothing to replace.
            pair.replace(key, 256 << 10).await;
            slow_commands(&mut pair.source_side).await;
            slow_commands(&mut pair.target_side).await;
            // A command that takes long always does. One that the machine has interrupted does so now and
            // then.
            let mut slow = Vec::new();
            for _ in 0..TRIES {
                let outcome = pair.replace(key, 256 << 10).await;
                let Outcome::Written { bytes, .. } = outcome else { panic!("{from} to {to}: {outcome:?}") };
                assert!(bytes >= bytes_min, "{bytes} bytes");
                slow = slow_commands(&mut pair.source_side).await;
                slow.extend(slow_commands(&mut pair.target_side).await);
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
                tokio::time::sleep(Duration::from_millis(5)).await;
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
async fn types_are_told() {
    let (_source, _target, mut pair) = two(Engine::Redis80, Engine::Redis70).await;
    run(&mut pair.source_side, &["SET s 1", "XADD x 1-1 a b"]).await;
    for (key, kind) in [(&b"s"[..], Some(KeyType::String)), (b"x", Some(KeyType::Stream)), (b"nothing", None)]
    {
        assert_eq!(type_of(&mut pair.source, key).await.expect("TYPE"), kind);
    }
}
