//! Keys that are too large to be moved at once.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Value;
use whimbrel_flow::large::staging_key;
use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, Client, alone, command, wait_until};

/// A far future, not a multiple of a second.
const FAR_MS: &str = "4102444800123";

/// All of them above a mebibyte.
const WRITES: [(&str, &str); 7] = [
    ("string", "redis.call('SET', KEYS[1], string.rep('0123456789', 300000))"),
    ("list", "for i = 1, 80000 do redis.call('RPUSH', KEYS[1], 'an element of the list ' .. i) end"),
    ("set", "for i = 1, 30000 do redis.call('SADD', KEYS[1], 'an element of the set ' .. i) end"),
    ("zset", "for i = 1, 30000 do redis.call('ZADD', KEYS[1], i / 7, 'an element of the set ' .. i) end"),
    (
        "hash",
        "for i = 1, 30000 do redis.call('HSET', KEYS[1], 'field ' .. i, 'the value of the field ' .. i) end",
    ),
    (
        "mortal",
        "for i = 1, 30000 do redis.call('HSET', KEYS[1], 'field ' .. i, 'the value of the field ' .. i) end \
         for i = 1, 900 do redis.call('HPEXPIREAT', KEYS[1], 4102444800123, 'FIELDS', 1, 'field ' .. i) end",
    ),
    (
        "stream",
        "for i = 1, 80000 do redis.call('XADD', KEYS[1], '7-' .. i, 'field', 'the value of the field ' .. i) \
            end \
         redis.call('XGROUP', 'CREATE', KEYS[1], 'idle', '7-5') \
         redis.call('XGROUP', 'CREATE', KEYS[1], 'busy', '0') \
         redis.call('XREADGROUP', 'GROUP', 'busy', 'one', 'COUNT', 50, 'STREAMS', KEYS[1], '>') \
         redis.call('XDEL', KEYS[1], '7-19999')",
    ),
];

/// What a key holds, in an order of its own.
fn contents(server: &Server, key: &str) -> Vec<String> {
    let questions: &[&str] = match key {
        "string" => &["GET string"],
        "list" => &["LRANGE list 0 -1"],
        "set" => &["SMEMBERS set"],
        "zset" => &["ZRANGE zset 0 -1 WITHSCORES"],
        "hash" => &["HGETALL hash"],
        "mortal" => &["HGETALL mortal", "HPEXPIRETIME mortal FIELDS 3 f1 f900 f901"],
        _ => &[
            "XRANGE stream - +",
            "XINFO GROUPS stream",
            "XPENDING stream busy",
            "XINFO CONSUMERS stream idle",
        ],
    };
    let mut all = vec![format!("{:?}", server.call(&["PEXPIRETIME", key]))];
    for question in questions {
        let mut words: Vec<String> = question.split(' ').map(str::to_owned).collect();
        if words[0] == "HPEXPIRETIME" {
            words[4..].iter_mut().for_each(|word| *word = format!("field {}", &word[1..]));
        }
        let reply = server.call(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let mut items: Vec<String> = match reply {
            Value::Array(items) if words[0] == "HGETALL" => {
                items.chunks(2).map(|pair| format!("{pair:?}")).collect()
            }
            // Servers write the same number in several ways.
            Value::Array(items) if key == "zset" => {
                let text = |item: &Value| match item {
                    Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    other => panic!("{other:?}"),
                };
                let score = |item| text(item).parse().map(f64::to_bits).expect("a number");
                items.chunks(2).map(|pair| format!("{} {:x}", text(&pair[0]), score(&pair[1]))).collect()
            }
            Value::Array(items) => items.iter().map(|item| format!("{item:?}")).collect(),
            other => vec![format!("{other:?}")],
        };
        if matches!(key, "set" | "hash" | "mortal") && words[0] != "HPEXPIRETIME" {
            items.sort();
        }
        all.extend(items);
    }
    all
}

fn start(engine: Engine) -> Server {
    Server::builder(engine).start().expect("a server")
}

/// How often the server has carried out a command.
fn calls(server: &Server, name: &str) -> u64 {
    let Value::BulkString(info) = server.call(&["INFO", "commandstats"]) else { panic!("no statistics") };
    let info = String::from_utf8_lossy(&info).into_owned();
    let prefix = format!("cmdstat_{name}:calls=");
    let found = info.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok());
    found.unwrap_or(0)
}

#[test]
fn large_keys_of_every_type_arrive_in_chunks() {
    let _alone = alone();
    let pairs = [
        (Engine::Redis70, Engine::Valkey91),
        (Engine::Redis80, Engine::Valkey91),
        (Engine::Valkey91, Engine::Redis80),
        (Engine::Redis80, Engine::Redis70),
    ];
    for (from, to) in pairs {
        let (source, target) = (start(from), start(to));
        let has_field_ttl = |engine| matches!(engine, Engine::Redis80 | Engine::Valkey91);
        let keys: Vec<&str> = WRITES
            .iter()
            .filter(|(key, _)| *key != "mortal" || has_field_ttl(from) && has_field_ttl(to))
            .map(|(key, write)| {
                source.call(&["EVAL", write, "1", key]);
                *key
            })
            .collect();
        source.call(&["PEXPIREAT", "zset", FAR_MS]);
        let before: Vec<Vec<String>> = keys.iter().map(|key| contents(&source, key)).collect();
        let between = Between::of(&source, &target);
        between.start_paused().expect("it begins");
        // Asked to find out what it takes.
        let restores = calls(&target, "restore");
        between.resume();
        wait_until("all keys have moved", || between.status().phase == Phase::Done);
        for (key, before) in keys.iter().zip(before) {
            assert!(contents(&target, key) == before, "{from:?} to {to:?}: {key} is another");
        }
        assert_eq!(target.call(&["DBSIZE"]), Value::Int(keys.len() as i64));
        assert_eq!(calls(&target, "restore"), restores, "{from:?} to {to:?}: at once");
        assert_eq!(calls(&target, "renamenx"), keys.len() as u64);
    }
}

#[test]
fn a_large_key_is_read_while_it_is_copied_and_written_when_it_has_moved() {
    let _alone = alone();
    let (source, target) = (start(Engine::Redis70), start(Engine::Valkey91));
    source.call(&["EVAL", WRITES[0].1, "1", "string"]);
    let between = Between::with_wait(&source, &target, Duration::from_millis(300));
    between.start_paused().expect("it begins");
    let (mut writes, mut reads) = (between.client(), between.client());
    writes.ask(&["GETRANGE", "string", "0", "1"], "$2\r\n01\r\n");
    // It takes nothing in, so the copy hangs until it goes on.
    target.suspend().expect("suspended");
    let append = |client: &mut Client| {
        client.send(&command(&["APPEND", "string", "!"]));
        client.line()
    };
    let reply = append(&mut writes);
    assert!(reply.starts_with("-TRYAGAIN"), "{reply}");
    // On a busy machine it takes longer until it is known that the key is a large one.
    wait_until("readers are let in", || {
        reads.send(&command(&["GETRANGE", "string", "2999998", "-1"]));
        let reply = reads.line();
        if reply.starts_with("-TRYAGAIN") {
            return false;
        }
        assert_eq!((&*reply, &*reads.line()), ("$2\r\n", "89\r\n"));
        true
    });
    assert_eq!(source.call(&["EXISTS", "string"]), Value::Int(1));
    target.resume().expect("resumed");
    wait_until("the move ends", || append(&mut writes) == ":3000001\r\n");
    reads.ask(&["GETRANGE", "string", "2999998", "-1"], "$3\r\n89!\r\n");
    // One that the target has no room for stays as it is, and nothing of it is left there.
    source.call(&["EVAL", WRITES[1].1, "1", "list"]);
    target.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut push = || {
        writes.send(&command(&["RPUSH", "list", "last"]));
        writes.line()
    };
    wait_until("the reason is reported", || {
        let reply = push();
        assert!(reply.starts_with("-TRYAGAIN"), "{reply}");
        reply.contains("OOM")
    });
    reads.ask(&["LLEN", "list"], ":80000\r\n");
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(1));
    target.call(&["CONFIG", "SET", "maxmemory", "0"]);
    wait_until("there is space", || push() == ":80001\r\n");
    between.resume();
    wait_until("all keys have moved", || between.status().phase == Phase::Done);
    assert_eq!(source.call(&["DBSIZE"]), Value::Int(0));
}

/// All keys that `SCAN` gives.
fn scanned(client: &mut Client) -> BTreeSet<String> {
    let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
    loop {
        client.send(&command(&["SCAN", &cursor, "COUNT", "1000"]));
        assert_eq!(client.line(), "*2\r\n");
        client.line();
        cursor = client.line().trim().to_owned();
        let keys: usize = client.line().trim()[1..].parse().expect("a number");
        for _ in 0..keys {
            client.line();
            found.insert(client.line().trim().to_owned());
        }
        if cursor == "0" {
            return found;
        }
    }
}

#[test]
fn what_is_not_whole_is_no_key_to_clients() {
    let _alone = alone();
    // On a busy machine all of it may have moved before anybody could look.
    assert!((0..5).any(|_| is_no_key_half_way()), "it moved too quickly for this test each time");
}

/// False where it had moved before anybody could look.
fn is_no_key_half_way() -> bool {
    let (source, target) = (start(Engine::Redis70), start(Engine::Valkey91));
    let many = "for i = 1, 400000 do redis.call('ZADD', KEYS[1], i, 'an element of the set ' .. i) end";
    source.call(&["EVAL", many, "1", "large"]);
    source.call(&["SET", "small", "v"]);
    source.call(&["SET", "moved", "v"]);
    let between = Between::with_wait(&source, &target, Duration::from_secs(120));
    between.start_paused().expect("it begins");
    let mut client = between.client();
    client.ask(&["APPEND", "moved", "!"], ":2\r\n");
    let staged = String::from_utf8(staging_key("front0", b"large")).expect("text");
    let mut writes = between.client();
    writes.send(&command(&["ZADD", "large", "0", "one more"]));
    // Caught in the middle: the target takes no writes until it is let go on.
    let is_whole = || source.call(&["EXISTS", "large"]) == Value::Int(0);
    wait_until("some of it is there", || target.call(&["EXISTS", &staged]) == Value::Int(1) || is_whole());
    target.call(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    if is_whole() {
        return false;
    }
    client.ask(&["DBSIZE"], ":3\r\n");
    client.ask(&["ZCARD", "large"], ":400000\r\n");
    client.send(&command(&["KEYS", "*"]));
    assert_eq!(client.line(), "*3\r\n");
    let named: BTreeSet<String> = (0..3)
        .map(|_| {
            client.line();
            client.line().trim().to_owned()
        })
        .collect();
    let all: BTreeSet<String> = ["large", "moved", "small"].map(str::to_owned).into();
    assert_eq!(named, all);
    assert_eq!(scanned(&mut client), all);
    for _ in 0..50 {
        assert!(all.contains(client.asks(&["RANDOMKEY"]).trim()));
    }
    target.call(&["CLIENT", "UNPAUSE"]);
    writes.expect(b":1\r\n");
    client.ask(&["ZCARD", "large"], ":400001\r\n");
    client.ask(&["DBSIZE"], ":3\r\n");
    assert_eq!(target.call(&["EXISTS", &staged]), Value::Int(0));
    true
}

#[test]
fn what_a_crash_has_left_of_a_large_key_is_removed() {
    let _alone = alone();
    let (source, target) = (start(Engine::Redis70), start(Engine::Valkey91));
    source.call(&["EVAL", WRITES[1].1, "1", "list"]);
    let before = contents(&source, "list");
    let staged = String::from_utf8(staging_key("front0", b"list")).expect("text");
    let gone = String::from_utf8(staging_key("front0", b"of a key that has expired")).expect("text");
    for name in [&staged, &gone] {
        target.call(&["RPUSH", name, "a part"]);
    }
    let between = Between::after(Phase::Moving, &source, &target);
    wait_until("all keys have moved", || between.status().phase == Phase::Done);
    assert!(contents(&target, "list") == before, "it is another");
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(1));
    assert_eq!(source.call(&["DBSIZE"]), Value::Int(0));
}
