//! Feeds of touched keys, against every engine: what is seen, how offsets are counted, and what happens to
//! links.

mod commands;
mod notifications;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use commands::*;
use fastrand::Rng;
use redis::{Commands, Connection, RedisResult, Value};
use whimbrel_core::slot::{Slot, SlotSet};
use whimbrel_engine::deployment::Deployment;
use whimbrel_engine::endpoint::{Address, Endpoint};
use whimbrel_engine::error::Side;
use whimbrel_engine::feed::{
    Collection, Feed, FeedFailure, FeedKind, FeedOptions, Touch, TouchedLimits, What,
};
use whimbrel_engine::link::LinkOptions;
use whimbrel_lab::{Cluster, Engine, Proxy, Server, wait_until};

whimbrel_lab::for_each_engine! {
    async on every:
        every_command_touches_what_it_changes
        what_is_no_plain_command_is_seen_as_well
}

whimbrel_lab::for_each_engine! {
    async
        the_offset_is_exact
        attaching_transfers_no_data
        attaching_forks_nothing
        in_a_cluster_with_replicas
        a_dropped_link_is_resumed
        a_gap_is_a_failure
        a_restarted_or_demoted_server_is_a_failure
        another_server_behind_the_address_is_a_failure
        a_pause_does_not_hold_up_the_feed
        tracking_sees_plain_changes
        without_permission_for_psync
}

/// Long enough for a busy machine. Nothing is measured with it.
const REACH_MS: u64 = 120_000;

async fn deployment(url: &str) -> Deployment {
    let endpoint = Endpoint::parse(Side::Source, url).expect("a valid address");
    Deployment::probe(endpoint, LinkOptions::default()).await.expect("the server answers")
}

async fn attach(url: &str, slots: SlotSet, options: FeedOptions) -> Feed {
    let deployment = deployment(url).await;
    let address = deployment.endpoint.address.clone();
    Feed::attach(&deployment, &address, slots, options).await.expect("a feed")
}

/// A feed of everything.
async fn attach_all(server: &Server) -> Feed {
    attach(&server.url(), SlotSet::full(), FeedOptions::default()).await
}

fn of_kind(kind: FeedKind) -> FeedOptions {
    FeedOptions { kind: Some(kind), ..FeedOptions::default() }
}

fn run(con: &mut Connection, command: &str) -> Value {
    try_run(con, command).unwrap_or_else(|e| panic!("{command}: {e}"))
}

/// Runs a command of words; `''` is an empty word, and `_` in a word stands for a blank.
fn try_run(con: &mut Connection, command: &str) -> RedisResult<Value> {
    let mut words = command.split_ascii_whitespace();
    let mut cmd = redis::cmd(words.next().expect("a command"));
    for word in words {
        cmd.arg(if word == "''" { String::new() } else { word.replace('_', " ") });
    }
    cmd.query(con)
}

fn info(con: &mut Connection, section: &str, field: &str) -> Option<String> {
    let text: String = redis::cmd("INFO").arg(section).query(con).expect("INFO");
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(|value| value.trim_end().to_owned())
}

fn offset(con: &mut Connection) -> u64 {
    let offset = info(con, "replication", "master_repl_offset").expect("every server has an offset");
    offset.parse().expect("a number")
}

/// Waits until `feed` has everything that the server did.
async fn reach(feed: &Feed, con: &mut Connection) {
    let offset = offset(con);
    let reached = feed.reach(offset, REACH_MS).await.unwrap_or_else(|e| panic!("{e}"));
    assert!(reached, "the feed is at {} and not at {offset}", feed.offset());
}

/// Everything that was touched, taken out.
async fn drain(feed: &Feed, con: &mut Connection) -> Vec<Touch> {
    reach(feed, con).await;
    let touched = feed.touched();
    let taken = touched.take(usize::MAX);
    assert_eq!(touched.len(), 0);
    assert_eq!(touched.bytes(), 0);
    taken
}

/// `key=w`, `key=e`, or `key=hash:f,g` with `+e` at the end where the time to live is touched as well.
fn shown(touch: &Touch) -> String {
    let key = String::from_utf8_lossy(&touch.key);
    match &touch.what {
        What::Anything => format!("{key}=w"),
        What::Expiry => format!("{key}=e"),
        What::Elements(elements) => {
            let names: Vec<_> = elements.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
            let collection = match elements.collection {
                Collection::Hash => "hash",
                Collection::Set => "set",
                Collection::SortedSet => "zset",
            };
            let expiry = if elements.expiry { "+e" } else { "" };
            format!("{key}={collection}:{}{expiry}", names.join(","))
        }
    }
}

async fn every_command_touches_what_it_changes(engine: Engine) {
    let server = Server::builder(engine).start().expect("a server");
    let mut con = server.connection();
    let feed = attach_all(&server).await;
    // Another database and back, since a link that continues does not know where it is.
    run(&mut con, "SELECT 1");
    run(&mut con, "SET warm up");
    run(&mut con, "SELECT 0");
    run(&mut con, "SET warm up");
    drain(&feed, &mut con).await;
    let mut failures = Vec::new();
    for (_, commands, expected) in TABLE.iter().filter(|(only, ..)| only.includes(engine)) {
        run(&mut con, "FLUSHALL");
        for command in SETUP.split(';') {
            run(&mut con, command);
        }
        drain(&feed, &mut con).await;
        assert!(feed.touched().take_flushed());
        for command in commands.split(';') {
            run(&mut con, command);
        }
        let taken = drain(&feed, &mut con).await;
        assert!(taken.iter().all(|touch| touch.db == Some(0)), "{taken:?}");
        let seen: BTreeSet<String> = taken.iter().map(shown).collect();
        let seen = seen.into_iter().collect::<Vec<_>>().join(" ");
        if !expected.split('|').any(|expected| expected == seen) || feed.touched().flushed() {
            failures.push(format!("{engine}: {commands}: {seen:?} and not {expected:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(feed.failure(), None);
}

async fn what_is_no_plain_command_is_seen_as_well(engine: Engine) {
    let server = Server::builder(engine).start().expect("a server");
    let mut con = server.connection();
    let feed = attach_all(&server).await;
    let touched = feed.touched();
    assert!(touched.is_empty() && !touched.take_functions_changed());

    // Restored values.
    run(&mut con, "SET a 1");
    let payload: Vec<u8> = redis::cmd("DUMP").arg("a").query(&mut con).expect("DUMP");
    redis::cmd("RESTORE").arg("r").arg(0).arg(&payload).exec(&mut con).expect("RESTORE");
    let taken: Vec<String> = drain(&feed, &mut con).await.iter().map(shown).collect();
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 2);
    assert!(taken.contains(&"r=w".to_owned()), "{taken:?}");

    // Keys that expire.
    run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 0");
    run(&mut con, "SET short 1 PX 20");
    drain(&feed, &mut con).await;
    run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 1");
    wait_until("the key expires", || run(&mut con, "DBSIZE") == Value::Int(2));
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["short=w"]);

    // Fields that expire.
    if Only::FieldTtl.includes(engine) {
        run(&mut con, "HSET h f 1 g 2");
        run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 0");
        run(&mut con, "HPEXPIRE h 20 FIELDS 1 f");
        drain(&feed, &mut con).await;
        run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 1");
        wait_until("the field expires", || run(&mut con, "HLEN h") == Value::Int(1));
        assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["h=hash:f+e"]);
    }

    // A client that waits is served by another's command.
    let mut waiting = server.connection();
    let waiter = std::thread::spawn(move || run(&mut waiting, "BLMOVE wait moved LEFT LEFT 30"));
    wait_until("a client waits", || info(&mut con, "clients", "blocked_clients") == Some("1".to_owned()));
    run(&mut con, "RPUSH wait v");
    waiter.join().expect("served");
    let taken: BTreeSet<String> = drain(&feed, &mut con).await.iter().map(shown).collect();
    assert_eq!(taken, BTreeSet::from(["moved=w".to_owned(), "wait=w".to_owned()]));

    // Functions.
    assert!(!touched.take_functions_changed());
    let code = "#!lua name=lib\nredis.register_function('put', function(keys, args) \
                return redis.call('set', keys[1], args[1]) end)";
    redis::cmd("FUNCTION").arg("LOAD").arg(code).exec(&mut con).expect("FUNCTION LOAD");
    run(&mut con, "FCALL put 1 called 1");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["called=w"]);
    assert!(touched.take_functions_changed() && !touched.take_functions_changed());

    // Databases.
    run(&mut con, "SELECT 3");
    run(&mut con, "MSET a 1 b 2 c 3");
    drain(&feed, &mut con).await;
    run(&mut con, "MOVE a 4");
    run(&mut con, "COPY b b2 DB 5");
    run(&mut con, "SET c 4");
    let taken = drain(&feed, &mut con).await;
    let taken: BTreeSet<_> = taken.iter().map(|touch| (touch.db, shown(touch))).collect();
    let expected = [(3, "a=w"), (3, "c=w"), (4, "a=w"), (5, "b2=w")];
    assert_eq!(taken, expected.iter().map(|(db, touch)| (Some(*db), (*touch).to_owned())).collect());

    // Databases that are emptied or exchanged.
    for command in ["FLUSHDB", "SWAPDB 0 1", "FLUSHALL ASYNC"] {
        assert!(!touched.flushed() && touched.is_empty());
        run(&mut con, command);
        drain(&feed, &mut con).await;
        assert!(touched.flushed() && !touched.is_empty(), "{command}");
        assert!(touched.take_flushed());
    }
}

/// Sends random commands in pipelines.
fn write_randomly(con: &mut Connection, random: &mut Rng, commands: usize) {
    for _ in 0..commands / 50 {
        let mut pipe = redis::pipe();
        for _ in 0..50 {
            let key = format!("key:{}", random.u64(..500));
            let len = if random.u64(..20) == 0 { random.u64(..200_000) } else { random.u64(..200) };
            let value = vec![b'v'; usize::try_from(len).expect("small")];
            match random.u64(..8) {
                0..=2 => pipe.cmd("SET").arg(format!("s{key}")).arg(value),
                3 => pipe.cmd("HSET").arg(format!("h{key}")).arg(random.u64(..50)).arg(value),
                4 => pipe.cmd("DEL").arg(format!("s{key}")).arg(format!("h{key}")),
                5 => pipe.cmd("RPUSH").arg(format!("l{key}")).arg(value),
                6 => pipe.cmd("SET").arg(format!("s{key}")).arg(value).arg("PX").arg(1 + random.u64(..30)),
                _ => pipe.cmd("ZINCRBY").arg(format!("z{key}")).arg(1).arg(random.u64(..50)),
            };
        }
        pipe.exec(con).expect("written");
    }
}

/// The offset is counted to the byte: also what is not a command of a client.
async fn the_offset_is_exact(engine: Engine) {
    // Many PINGs to the replica, so that they are among the commands.
    let server = Server::builder(engine).arg("repl-ping-replica-period", "1").start().expect("a server");
    let mut con = server.connection();
    for kind in [FeedKind::Partial, FeedKind::Filtered] {
        let feed = attach(&server.url(), SlotSet::full(), of_kind(kind)).await;
        assert_eq!(feed.kind(), kind);
        let mut random = Rng::with_seed(0x9e37_79b9 + engine as u64);
        for _ in 0..5 {
            write_randomly(&mut con, &mut random, 2_000);
            run(&mut con, "MULTI");
            run(&mut con, "SET a 1");
            run(&mut con, "EXEC");
            // Between two equal answers there was nothing to count.
            wait_until("the server is idle and the feed has all", || {
                let before = offset(&mut con);
                let seen = feed.offset();
                before == offset(&mut con) && seen == before
            });
        }
        assert_eq!(feed.failure(), None);
        assert!(feed.bytes_read() > 1_000_000);
    }
}

/// Neither kind of link transfers data, and neither the first nor the tenth replica is a problem.
async fn attaching_transfers_no_data(engine: Engine) {
    let server = Server::builder(engine).start().expect("a server");
    let mut con = server.connection();
    run(&mut con, "DEBUG POPULATE 50000 key 1000");
    run(&mut con, "SET last 1");
    let filtered = attach(&server.url(), SlotSet::full(), of_kind(FeedKind::Filtered)).await;
    let partial = attach_all(&server).await;
    assert_eq!((filtered.kind(), partial.kind()), (FeedKind::Filtered, FeedKind::Partial));
    assert!(!partial.misses_consumer_groups());
    run(&mut con, "SET new 1");
    for feed in [&filtered, &partial] {
        let taken = drain(feed, &mut con).await;
        assert_eq!(taken.iter().map(shown).collect::<Vec<_>>(), ["new=w"]);
        assert!(feed.bytes_read() < 64 << 10, "{engine}: {} bytes", feed.bytes_read());
    }
    let names: String = redis::cmd("CLIENT").arg("LIST").query(&mut con).expect("CLIENT LIST");
    assert_eq!(names.matches("name=whimbrel:feed").count(), 2, "{names}");
    drop((filtered, partial));
    wait_until("the links are closed", || {
        info(&mut con, "replication", "connected_slaves") == Some("0".to_owned())
    });
}

/// A server that never had a replica keeps no backlog. It is made to, without a fork, where it would wait for
/// more replicas to come.
async fn attaching_forks_nothing(engine: Engine) {
    let server = Server::builder(engine)
        .arg("repl-diskless-sync", "yes")
        .arg("repl-diskless-sync-delay", "5")
        .start()
        .expect("a server");
    let mut con = server.connection();
    assert_eq!(info(&mut con, "replication", "repl_backlog_active").as_deref(), Some("0"));
    let feed = attach_all(&server).await;
    assert_eq!(feed.kind(), FeedKind::Partial);
    run(&mut con, "SET new 1");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["new=w"]);
    wait_until("only the feed is left", || {
        info(&mut con, "replication", "connected_slaves") == Some("1".to_owned())
    });
    // Longer than the server would wait.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(info(&mut con, "stats", "total_forks").as_deref(), Some("0"), "{engine}");
    run(&mut con, "SET later 1");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["later=w"]);
}

/// In a cluster with replicas: the database is known from the start, only watched slots are recorded, and the
/// real replica alone satisfies `WAIT`.
async fn in_a_cluster_with_replicas(engine: Engine) {
    let cluster = Cluster::builder(engine).primaries(1).replicas(1).start().expect("a cluster");
    let server = &cluster.nodes()[0];
    let mut con = server.connection();
    let slot_a = Slot::of_key(b"{a}");
    let watched: SlotSet = [slot_a].into_iter().collect();
    let feed = attach(&server.url(), watched.clone(), FeedOptions::default()).await;
    assert_eq!(feed.kind(), FeedKind::Partial);
    assert_eq!(feed.watched(), watched);
    run(&mut con, "MSET {a}1 1 {a}2 2");
    run(&mut con, "MSET {b}1 1 {b}2 2");
    run(&mut con, "SADD {b}s x");
    let taken = drain(&feed, &mut con).await;
    assert!(taken.iter().all(|touch| touch.db == Some(0)));
    let taken: BTreeSet<String> = taken.iter().map(shown).collect();
    assert_eq!(taken, BTreeSet::from(["{a}1=w".to_owned(), "{a}2=w".to_owned()]));

    // What is no longer watched is forgotten.
    run(&mut con, "SET {a}1 1");
    reach(&feed, &mut con).await;
    assert_eq!(feed.touched().len(), 1);
    feed.watch([Slot::of_key(b"{b}")].into_iter().collect());
    assert!(feed.touched().is_empty() && feed.touched().bytes() == 0);
    run(&mut con, "SET {a}1 1");
    run(&mut con, "SADD {b}s y");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["{b}s=set:y"]);

    // Several acknowledgements later the feed still does not count as a copy.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    run(&mut con, "SET {b}1 2");
    run(&mut con, "WAIT 1 60000");
    assert_eq!(run(&mut con, "WAIT 2 1500"), Value::Int(1), "{engine}");
    assert_eq!(info(&mut con, "replication", "connected_slaves").as_deref(), Some("2"));
}

/// A dropped link goes on where it broke: nothing is lost that was written meanwhile.
async fn a_dropped_link_is_resumed(engine: Engine) {
    let server = Server::builder(engine).arg("repl-backlog-size", "64mb").start().expect("a server");
    let proxy = Proxy::start(&server.addr()).expect("a proxy");
    let feed = attach(&format!("redis://{}", proxy.addr()), SlotSet::full(), FeedOptions::default()).await;
    let mut con = server.connection();
    let mut taken = BTreeSet::new();
    let rounds = 5;
    for round in 0..rounds {
        for n in 0..400 {
            if n == 100 {
                // The link breaks in the middle of it.
                let _: () = con.set(format!("large:{round}"), vec![b'x'; 4 << 20]).expect("written");
                proxy.cut();
            }
            let value = "x".repeat(n * 5);
            let _: () = con.set(format!("k:{round}:{n}"), value).expect("written");
            if n == 300 {
                proxy.heal().expect("the port is free");
            }
        }
        taken.extend(drain(&feed, &mut con).await.iter().map(shown));
    }
    let expected: BTreeSet<String> = (0..rounds)
        .flat_map(|round| (0..400).map(move |n| format!("k:{round}:{n}=w")))
        .chain((0..rounds).map(|round| format!("large:{round}=w")))
        .collect();
    assert_eq!(taken, expected, "{engine}");
    assert_eq!(feed.failure(), None);
    assert!(feed.resumed() >= rounds);
    assert_eq!(feed.offset(), offset(&mut con));
}

/// More was written than the backlog holds: the feed says so, and does not go on as if nothing were.
async fn a_gap_is_a_failure(engine: Engine) {
    let server = Server::builder(engine).arg("repl-backlog-size", "16kb").start().expect("a server");
    let proxy = Proxy::start(&server.addr()).expect("a proxy");
    let feed = attach(&format!("redis://{}", proxy.addr()), SlotSet::full(), FeedOptions::default()).await;
    let mut con = server.connection();
    run(&mut con, "SET before 1");
    reach(&feed, &mut con).await;
    let broke_at = feed.offset();
    proxy.cut();
    for n in 0..100 {
        // The servers keep more than they are set to while a replica's output is not sent.
        let _: () = con.set(format!("k:{n}"), vec![b'x'; 100_000]).expect("written");
    }
    proxy.heal().expect("the port is free");
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert!(
        matches!(failure, FeedFailure::Gap { offset, .. } if offset >= broke_at),
        "{engine}: {failure:?}"
    );
    let error = feed.reach(offset(&mut con), REACH_MS).await.expect_err("the feed has ended");
    assert!(error.to_string().contains("missed"), "{error}");
}

/// A server that stays away is given up, within the time that was set.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_server_is_a_failure() {
    let server = Server::builder(Engine::Valkey81).start().expect("a server");
    let options = FeedOptions { resume_timeout_ms: 300, ..FeedOptions::default() };
    let feed = attach(&server.url(), SlotSet::full(), options).await;
    server.kill9().expect("killed");
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert!(matches!(failure, FeedFailure::Lost { .. }), "{failure:?}");
}

/// A server that comes back with another history has a gap; one that comes back as a replica is no source any
/// more.
async fn a_restarted_or_demoted_server_is_a_failure(engine: Engine) {
    let server = Server::builder(engine).start().expect("a server");
    let feed = attach_all(&server).await;
    server.kill9().expect("killed");
    server.restart().expect("started again");
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert!(matches!(failure, FeedFailure::Gap { .. }), "{engine}: {failure:?}");

    let proxy = Proxy::start(&server.addr()).expect("a proxy");
    let feed = attach(&format!("redis://{}", proxy.addr()), SlotSet::full(), FeedOptions::default()).await;
    let other = Server::builder(engine).start().expect("a server");
    proxy.cut();
    run(&mut server.connection(), &format!("REPLICAOF 127.0.0.1 {}", other.port()));
    proxy.heal().expect("the port is free");
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert_eq!(failure, FeedFailure::Demoted, "{engine}");
}

/// A replica takes over behind an address that stays the same. It can continue, but connections that were
/// made before lead to the former primary.
async fn another_server_behind_the_address_is_a_failure(engine: Engine) {
    let server = Server::builder(engine).start().expect("a server");
    let other = Server::builder(engine).start().expect("a server");
    let mut con = server.connection();
    run(&mut other.connection(), &format!("REPLICAOF 127.0.0.1 {}", server.port()));
    let mut proxy = Proxy::start(&server.addr()).expect("a proxy");
    let feed = attach(&format!("redis://{}", proxy.addr()), SlotSet::full(), FeedOptions::default()).await;
    let unaware = attach_all(&server).await;
    run(&mut con, "SET before 1");
    assert_eq!(run(&mut con, "WAIT 1 60000"), Value::Int(1), "{engine}: the replica has it");
    reach(&feed, &mut con).await;
    let replid = |con: &mut Connection| info(con, "replication", "master_replid").expect("a history");
    unaware.compare_history("");
    unaware.compare_history(&replid(&mut con));
    assert_eq!(unaware.failure(), None, "{engine}: it is the same server");

    let mut other_con = other.connection();
    run(&mut other_con, "REPLICAOF NO ONE");
    run(&mut other_con, "SET after 1");
    proxy.lead_to(&other.addr()).expect("the port is free");
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert_eq!(failure, FeedFailure::Replaced, "{engine}");

    // Its connection still leads to the former primary, which goes on as if nothing had happened.
    unaware.compare_history(&replid(&mut other_con));
    assert_eq!(unaware.failure(), Some(FeedFailure::Replaced), "{engine}");
}

/// `CLIENT PAUSE` pauses writes and not the feed.
async fn a_pause_does_not_hold_up_the_feed(engine: Engine) {
    let server = Server::builder(engine).arg("notify-keyspace-events", "AE").start().expect("a server");
    let mut con = server.connection();
    for kind in [FeedKind::Partial, FeedKind::Filtered, FeedKind::Tracking, FeedKind::Notifications] {
        let feed = attach(&server.url(), SlotSet::full(), of_kind(kind)).await;
        let mut writer = server.connection();
        let writer = std::thread::spawn(move || {
            let mut acknowledged = 0;
            while redis::cmd("SET").arg(format!("w:{acknowledged}")).arg("v").exec(&mut writer).is_ok() {
                acknowledged += 1;
                if acknowledged == 3_000 {
                    break;
                }
            }
            acknowledged
        });
        wait_until("the writer is at work", || feed.touched().len() > 300);
        run(&mut con, "CLIENT PAUSE 60000 WRITE");
        let paused_at = offset(&mut con);
        let keys = run(&mut con, "DBSIZE");
        assert!(feed.reach(paused_at, REACH_MS).await.expect("no failure"));
        let taken = feed.touched().take(usize::MAX);
        assert_eq!(Value::Int(i64::try_from(taken.len()).expect("few")), keys, "{engine} {kind}");
        assert_eq!(offset(&mut con), paused_at);
        run(&mut con, "CLIENT UNPAUSE");
        assert_eq!(writer.join().expect("the writer ends"), 3_000);
        run(&mut con, "FLUSHALL");
    }
}

async fn tracking_sees_plain_changes(engine: Engine) {
    let server = Server::builder(engine).start().expect("a server");
    let mut con = server.connection();
    let feed = attach(&server.url(), SlotSet::full(), of_kind(FeedKind::Tracking)).await;
    assert!(feed.misses_consumer_groups());
    assert_eq!(info(&mut con, "replication", "connected_slaves").as_deref(), Some("0"));
    let cases: &[(&str, &[&str])] = &[
        ("MSET a 1 b 2", &["a", "b"]),
        ("HSET h f 1", &["h"]),
        ("EXPIRE h 100", &["h"]),
        ("DEL a", &["a"]),
        ("EVAL redis.call('set','q','2')_redis.call('del','b') 0", &["b", "q"]),
        ("XADD x 1-1 f v", &["x"]),
        // What it is known to miss.
        ("XGROUP CREATE x grp 0", &[]),
        ("XREADGROUP GROUP grp c STREAMS x >", &[]),
        ("XACK x grp 1-1", &[]),
    ];
    for (command, keys) in cases {
        run(&mut con, command);
        let taken = drain(&feed, &mut con).await;
        assert!(taken.iter().all(|touch| touch.what == What::Anything));
        let seen: BTreeSet<_> = taken.iter().map(|touch| touch.key.to_vec()).collect();
        assert_eq!(seen, keys.iter().map(|key| key.as_bytes().to_vec()).collect(), "{engine} {command}");
    }
    run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 0");
    run(&mut con, "SET short 1 PX 20");
    drain(&feed, &mut con).await;
    run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 1");
    wait_until("the key expires", || run(&mut con, "DBSIZE") == Value::Int(3));
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["short=w"]);
    assert!(!feed.touched().flushed());
    run(&mut con, "FLUSHALL");
    drain(&feed, &mut con).await;
    assert!(feed.touched().take_flushed());
    // Many at once.
    write_randomly(&mut con, &mut Rng::with_seed(7), 5_000);
    let keys: BTreeSet<_> =
        drain(&feed, &mut con).await.into_iter().map(|touch| touch.key.to_vec()).collect();
    let present: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut con).expect("KEYS");
    assert!(present.len() > 500 && present.iter().all(|key| keys.contains(key)));
    // It cannot be resumed.
    assert_eq!(feed.failure(), None);
    server.kill9().expect("killed");
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert!(matches!(failure, FeedFailure::Lost { .. }), "{failure:?}");
    assert!(feed.reach(0, REACH_MS).await.is_err());
}

/// A user without the permission for replication gets the feed that needs none.
async fn without_permission_for_psync(engine: Engine) {
    let server = Server::builder(engine)
        .user_acl("nopsync on >pw ~* &* +@all -psync")
        .user_acl("noreplconf on >pw ~* &* +@all -replconf")
        .user_acl("noinfo on >pw ~* &* +@all -info -config -command -client|setname")
        .user_acl("neither on >pw ~* &* +@all -psync -client|tracking")
        .user_acl("silent on >pw ~* &* +@all -psync -ping")
        .start()
        .expect("a server");
    let mut con = server.connection();
    let url = |user: &str| format!("redis://{user}:pw@{}", server.addr());
    for user in ["nopsync", "noreplconf"] {
        let feed = attach(&url(user), SlotSet::full(), FeedOptions::default()).await;
        assert_eq!(feed.kind(), FeedKind::Tracking, "{engine} {user}");
        run(&mut con, "SET a 1");
        assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["a=w"]);
    }
    let deployment = deployment(&url("neither")).await;
    let address = deployment.endpoint.address.clone();
    let error = Feed::attach(&deployment, &address, SlotSet::full(), FeedOptions::default()).await;
    let error = error.expect_err("nothing is permitted").to_string();
    assert!(error.contains("CLIENT TRACKING") && error.contains("PSYNC"), "{error}");
    let forced = Feed::attach(&deployment, &address, SlotSet::full(), of_kind(FeedKind::Partial)).await;
    assert!(forced.is_err());
    // It could give no signs of life, and its feed would be lost again and again.
    let deployment = self::deployment(&url("silent")).await;
    let error = Feed::attach(&deployment, &address, SlotSet::full(), FeedOptions::default()).await;
    let error = error.expect_err("nothing is permitted").to_string();
    assert!(error.contains("PING is refused"), "{error}");
}

/// A bound on memory costs detail, and no touch.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_keys_become_touched_slots() {
    let server = Server::builder(Engine::Valkey81).start().expect("a server");
    let mut con = server.connection();
    let limits = TouchedLimits { bytes_max: 200_000, ..TouchedLimits::default() };
    let options = FeedOptions { limits, ..FeedOptions::default() };
    let feed = attach(&server.url(), SlotSet::full(), options).await;
    let touched = feed.touched();
    let mut pipe = redis::pipe();
    for n in 0..20_000 {
        pipe.set(format!("{{{}}}key:{n}", n % 50), 1);
    }
    pipe.exec(&mut con).expect("written");
    reach(&feed, &mut con).await;
    assert!(touched.bytes() <= limits.bytes_max && touched.recorded() == 20_000);
    let keys: BTreeSet<_> = touched.take(usize::MAX).into_iter().map(|touch| touch.key.to_vec()).collect();
    let slots = touched.take_slots();
    assert!(!slots.is_empty() && touched.is_empty());
    for n in 0..20_000 {
        let key = format!("{{{}}}key:{n}", n % 50).into_bytes();
        assert!(keys.contains(&key) != slots.contains(Slot::of_key(&key)), "{n}");
    }
    // From here on keys are recorded again; and what could not be moved is given back.
    run(&mut con, "SET {1}key:1 1");
    reach(&feed, &mut con).await;
    let taken = touched.take(10);
    assert_eq!(taken.iter().map(shown).collect::<Vec<_>>(), ["{1}key:1=w"]);
    touched.put_back(taken);
    assert_eq!(touched.take(10).len(), 1);
    touched.put_back_slots(&slots);
    assert_eq!(touched.take_slots(), slots);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_elements_touch_the_whole_key() {
    let server = Server::builder(Engine::Redis70).start().expect("a server");
    let mut con = server.connection();
    let feed = attach_all(&server).await;
    let write = |con: &mut Connection, fields: std::ops::Range<u32>| {
        let mut cmd = redis::cmd("HSET");
        cmd.arg("h");
        fields.for_each(|field| {
            cmd.arg(field).arg("v");
        });
        cmd.exec(con).expect("written");
    };
    (0..8).for_each(|n| write(&mut con, n * 512..(n + 1) * 512));
    let taken = drain(&feed, &mut con).await;
    let [Touch { what: What::Elements(elements), .. }] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!(elements.names.len(), 4_096);
    // One more, and in one command.
    feed.touched().put_back(taken);
    write(&mut con, 4_096..4_097);
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["h=w"]);
    write(&mut con, 0..50_000);
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["h=w"]);
    // A name that is too long to keep.
    redis::cmd("SADD").arg("s").arg(vec![b'm'; 100_000]).exec(&mut con).expect("written");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["s=w"]);
}

/// Large values pass through without being held, and so do a million keys in one command.
#[tokio::test(flavor = "multi_thread")]
async fn large_values_take_no_memory() {
    let peak_bytes = || {
        let status = fs::read_to_string("/proc/self/status").expect("our own");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    };
    let server = Server::builder(Engine::Valkey91).start().expect("a server");
    let mut con = server.connection();
    // On a busy machine nearly all of it may be under way at once, which is as much as replicas are allowed.
    run(&mut con, "CONFIG SET client-output-buffer-limit replica_0_0_0");
    let feed = attach_all(&server).await;
    let before = peak_bytes();
    // The value is made by the server, so that it is nowhere in this process.
    run(&mut con, "EVAL redis.call('set','big',string.rep('x',200*1024*1024)) 0");
    let many = "local_keys={}_for_i=1,1000000_do_keys[#keys+1]='k'..i_\
                keys[#keys+1]='vvvvvvvvvvvvvvvvvvvvvvvvvvvvvv'_\
                if_#keys==7000_then_redis.call('mset',unpack(keys))_keys={}_end_end";
    feed.watch([Slot::of_key(b"big")].into_iter().collect());
    run(&mut con, &format!("EVAL {many} 0"));
    let taken = drain(&feed, &mut con).await;
    let seen: BTreeMap<_, _> = taken.iter().map(|touch| (touch.key.to_vec(), &touch.what)).collect();
    assert_eq!(seen.get(b"big".as_slice()), Some(&&What::Anything));
    assert!(seen.keys().all(|key| Slot::of_key(key) == Slot::of_key(b"big")));
    assert!(feed.bytes_read() > 220 << 20);
    let grown = peak_bytes() - before;
    assert!(grown < 64 << 20, "{grown} bytes more at the peak");
}

/// A key may be longer than anybody would keep: then nobody knows its slot, and all are touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_two_megabytes_touches_every_slot() {
    let server = Server::builder(Engine::Redis80).start().expect("a server");
    let mut con = server.connection();
    let watched: SlotSet = "0-99".parse().expect("slots");
    let feed = attach(&server.url(), watched.clone(), FeedOptions::default()).await;
    redis::cmd("SET").arg(vec![b'k'; 2 << 20]).arg("v").exec(&mut con).expect("written");
    assert_eq!(drain(&feed, &mut con).await, []);
    assert_eq!(feed.touched().take_slots(), watched);
}

/// A task that waits for touches is woken.
#[tokio::test(flavor = "multi_thread")]
async fn changes_wake_who_waits_for_them() {
    let server = Server::builder(Engine::Valkey81).start().expect("a server");
    let mut con = server.connection();
    let feed = attach_all(&server).await;
    let touched = feed.touched();
    let waiting = tokio::spawn(async move { touched.changed().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    run(&mut con, "SET a 1");
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("woken").expect("no panic");
}

/// A feed can be had of a Unix socket as well, and from a server that wants a password.
#[tokio::test(flavor = "multi_thread")]
async fn over_a_unix_socket_with_a_password() {
    let server = Server::builder(Engine::Redis70).unix_socket().password("secret").start().expect("a server");
    let path = server.unix_socket().expect("asked for").display().to_string();
    let feed = attach(&format!("unix://:secret@{path}"), SlotSet::full(), FeedOptions::default()).await;
    assert!(matches!(feed.address(), Address::Unix(_)));
    let mut con = server.connection();
    run(&mut con, "SET a 1");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["a=w"]);
}
