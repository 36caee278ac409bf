//! Iterations over the elements of a key that moves meanwhile.

use std::collections::BTreeSet;

use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, Client, alone, command, wait_until};

const ELEMENTS: usize = 2_000;

/// This many replies are enough for any iteration over the key.
const STEPS_MAX: usize = 200;

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
}

/// One step: the next cursor; every second item of a hash or a sorted set is a name.
fn step(client: &mut Client, scan: &str, cursor: &str, found: &mut BTreeSet<String>) -> String {
    client.send(&command(&[scan, "k", cursor, "COUNT", "100"]));
    let (next, items) = client.page();
    let is_name = |at: usize| scan == "SSCAN" || at.is_multiple_of(2);
    found.extend(items.into_iter().enumerate().filter(|(at, _)| is_name(*at)).map(|(_, item)| item));
    next
}

/// Goes on to the end of an iteration.
#[track_caller]
fn finish(client: &mut Client, scan: &str, mut cursor: String, found: &mut BTreeSet<String>) {
    for _ in 0..STEPS_MAX {
        if cursor == "0" {
            return;
        }
        cursor = step(client, scan, &cursor, found);
    }
    panic!("{scan} does not come to its end");
}

#[test]
fn an_iteration_misses_nothing_when_its_key_moves() {
    let _alone = alone();
    let (source, target) = pair();
    let writes = [("HSCAN", "HSET", true), ("SSCAN", "SADD", false), ("ZSCAN", "ZADD", true)];
    for (scan, add, has_values) in writes {
        for i in 0..ELEMENTS {
            let (name, number) = (format!("element-{i}"), i.to_string());
            match (scan, has_values) {
                ("ZSCAN", _) => source.call(&[add, "k", &number, &name]),
                (_, true) => source.call(&[add, "k", &name, &number]),
                (_, false) => source.call(&[add, "k", &name]),
            };
        }
        let between = Between::of(&source, &target);
        let mut client = between.client();
        let mut found = BTreeSet::new();
        // Before keys move at all, and at the source while they do.
        let mut cursor = step(&mut client, scan, "0", &mut found);
        between.start_paused().expect("it begins");
        for _ in 0..4 {
            cursor = step(&mut client, scan, &cursor, &mut found);
        }
        assert_ne!(cursor, "0");
        client.ask(&["EXPIRE", "k", "10000"], ":1\r\n");
        assert_eq!(source.call(&["EXISTS", "k"]), redis::Value::Int(0));
        // A transaction hands out cursors without a mark, and does not know whose one is.
        client.ask(&["MULTI"], "+OK\r\n");
        client.send(&command(&[scan, "k", &cursor]));
        assert!(client.line().contains("an iteration cannot go on in a transaction"));
        client.ask(&["DISCARD"], "+OK\r\n");
        finish(&mut client, scan, cursor, &mut found);
        assert_eq!(found.len(), ELEMENTS, "{scan}");

        // One that begins there comes to its end, also in a transaction, and when all keys have moved.
        let mut found = BTreeSet::new();
        let mut cursor = step(&mut client, scan, "0", &mut found);
        cursor = step(&mut client, scan, &cursor, &mut found);
        client.ask(&["MULTI"], "+OK\r\n");
        client.ask(&[scan, "k", &cursor], "+QUEUED\r\n");
        client.ask(&["DISCARD"], "+OK\r\n");
        between.resume();
        wait_until("all keys have moved", || between.status().phase == Phase::Done);
        finish(&mut client, scan, cursor, &mut found);
        assert_eq!(found.len(), ELEMENTS, "{scan}");
        target.call(&["FLUSHALL"]);
    }
}
