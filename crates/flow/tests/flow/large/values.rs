//! Values of every type, and how two of them are distinguished.

use std::fmt::Write as _;

use bytes::Bytes;
use whimbrel_engine::link::Link;
use whimbrel_flow::large::{KeyType, type_of};
use whimbrel_wire::value::Value;

/// A far future, not a multiple of a second.
const FAR_MS: i64 = 4_102_444_800_123;

pub(super) async fn call(link: &mut Link, args: &[&[u8]]) -> Value {
    link.call(args).await.expect("a command")
}

pub(super) async fn int(link: &mut Link, args: &[&[u8]]) -> i64 {
    call(link, args).await.as_int().expect("an integer")
}

/// Pipelines `count` commands.
pub(super) async fn pipeline(link: &mut Link, count: usize, mut args: impl FnMut(usize) -> Vec<Vec<u8>>) {
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

pub(super) fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

pub(super) async fn run(link: &mut Link, lines: &[&str]) {
    pipeline(link, lines.len(), |i| words(lines[i])).await;
}

/// Bytes of any value, different for each `i`, of `len` and a little.
pub(super) fn blob(i: usize, len: usize) -> Vec<u8> {
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
pub(super) struct Description {
    pub(super) text: String,
    /// Delivery times, which are reported to about a millisecond only.
    pub(super) times_ms: Vec<i64>,
}

impl Description {
    pub(super) fn head(&self) -> String {
        self.text.chars().take(2_000).collect()
    }

    pub(super) fn add(&mut self, value: &Value) {
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

pub(super) async fn describe(link: &mut Link, key: &[u8], field_ttl: bool) -> Description {
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
pub(super) async fn times_of_fields(link: &mut Link, key: &[u8], fields: &[Bytes]) -> Vec<i64> {
    let count = fields.len().to_string();
    let mut args = vec![&b"HPEXPIRETIME"[..], key, b"FIELDS", count.as_bytes()];
    args.extend(fields.iter().map(|field| &field[..]));
    let reply = call(link, &args).await;
    reply.as_items().expect("times").iter().map(|time| time.as_int().expect("a time")).collect()
}

/// Creates keys of every type; returns their names.
pub(super) async fn populate(link: &mut Link, field_ttl: bool) -> Vec<Vec<u8>> {
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
    // More pending entries than one request returns, all of entries that are gone.
    pipeline(link, 2_500, |i| words(&format!("XADD x:ghosts {}-1 a b", i + 1))).await;
    run(
        link,
        &["XGROUP CREATE x:ghosts g 0", "XREADGROUP GROUP g c STREAMS x:ghosts >", "XTRIM x:ghosts MAXLEN 3"],
    )
    .await;
}
