//! The feed of keyspace notifications: what it is notified of, what it finds out by asking, and what it
//! refuses.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Connection;
use whimbrel_core::slot::SlotSet;
use whimbrel_engine::feed::{Feed, FeedFailure, FeedKind, FeedOptions, prospect};
use whimbrel_lab::{Engine, Server, ServerBuilder, wait_until};

use super::commands::{Only, SETUP, TABLE};
use super::{REACH_MS, attach, deployment, drain, of_kind, run, shown, try_run};

whimbrel_lab::for_each_engine! {
    async on Redis62 Valkey91:
        every_plain_command_is_reported
        what_empties_databases_is_found_out
        one_that_is_turned_off_ends
}

/// The others, which the tier `all` runs.
mod matrix {
    use whimbrel_lab::Engine::{Redis60, Redis70, Redis74, Redis86};

    #[tokio::test(flavor = "multi_thread")]
    async fn every_plain_command_is_reported() {
        for engine in [Redis60, Redis70, Redis74, Redis86] {
            super::every_plain_command_is_reported(engine).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_not_published_is_found_out() {
        for engine in [Redis60, Redis70, Redis86] {
            super::what_empties_databases_is_found_out(engine).await;
            super::one_that_is_turned_off_ends(engine).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn types_of_which_nothing_is_reported_are_named_on_redis_7_4() {
        super::types_of_which_nothing_is_reported_are_named().await;
    }
}

/// Commands for consumer groups: some servers publish some of them.
const GROUPS: [&str; 4] = ["XREADGROUP", "XACK", "XCLAIM", "XAUTOCLAIM"];

fn publishing(engine: Engine) -> ServerBuilder {
    Server::builder(engine).arg("notify-keyspace-events", "AE")
}

async fn followed(server: &Server) -> Feed {
    attach(&server.url(), SlotSet::full(), of_kind(FeedKind::Notifications)).await
}

/// The keys that a row of the table touches, in each of its alternatives.
fn keys_of(expected: &str) -> Vec<BTreeSet<&str>> {
    expected
        .split('|')
        .map(|one| one.split_ascii_whitespace().filter_map(|touch| touch.split('=').next()).collect())
        .collect()
}

async fn every_plain_command_is_reported(engine: Engine) {
    let server = publishing(engine).start().expect("a server");
    let mut con = server.connection();
    let feed = followed(&server).await;
    assert!(feed.misses_consumer_groups() && feed.unproven().is_empty());
    assert_eq!(feed.unseen_types().first(), Some(&"stream"));
    let mut failures = Vec::new();
    let mut count = 0;
    for (_, commands, expected) in
        TABLE.iter().filter(|(only, ..)| only.includes(engine) || *only == Only::All)
    {
        run(&mut con, "FLUSHALL");
        SETUP.split(';').for_each(|command| drop(run(&mut con, command)));
        drain(&feed, &mut con).await;
        assert!(feed.touched().take_flushed());
        // Older servers do not know all of them, and new ones forbid DEBUG.
        if !commands.split(';').all(|command| try_run(&mut con, command).is_ok()) {
            continue;
        }
        let taken = drain(&feed, &mut con).await;
        assert!(taken.iter().all(|touch| touch.db == Some(0)), "{taken:?}");
        let shown: BTreeSet<String> = taken.iter().map(shown).collect();
        let seen: BTreeSet<&str> = shown.iter().filter_map(|touch| touch.strip_suffix("=w")).collect();
        let is_of_group = GROUPS.iter().any(|command| commands.starts_with(command));
        // What counts is not changed by being counted.
        let is_left_out = seen.is_empty() && (is_of_group || commands.starts_with("PFCOUNT"));
        if !is_left_out && !keys_of(expected).contains(&seen) {
            failures.push(format!("{engine}: {commands}: {seen:?} and not {expected:?}"));
        }
        count += 1;
        assert!(!feed.touched().flushed(), "{engine}: {commands}");
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(count > 100, "{count} of them ran");
    // Expiries, and other databases.
    run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 0");
    run(&mut con, "SET short 1 PX 20");
    drain(&feed, &mut con).await;
    run(&mut con, "DEBUG SET-ACTIVE-EXPIRE 1");
    wait_until("the key expires", || run(&mut con, "EXISTS short") == redis::Value::Int(0));
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["short=w"]);
    run(&mut con, "SELECT 3");
    run(&mut con, "SET a 1");
    run(&mut con, "MOVE a 11");
    let taken = drain(&feed, &mut con).await;
    let taken: BTreeSet<_> = taken.iter().map(|touch| (touch.db, shown(touch))).collect();
    assert_eq!(taken, BTreeSet::from([(Some(3), "a=w".to_owned()), (Some(11), "a=w".to_owned())]));
    assert_eq!(feed.failure(), None);
}

/// Nothing is published of them: the server's counts of calls show them. A reset of these hides what was
/// before.
async fn what_empties_databases_is_found_out(engine: Engine) {
    let server = publishing(engine).start().expect("a server");
    let mut con = server.connection();
    let feed = followed(&server).await;
    let touched = feed.touched();
    let commands = [
        "FLUSHALL",
        "FLUSHDB",
        "FLUSHALL ASYNC",
        "SWAPDB 0 1",
        "EVAL redis.call('flushdb') 0",
        "MULTI; FLUSHALL; EXEC",
        "FLUSHALL; CONFIG RESETSTAT; FLUSHALL",
        "CONFIG RESETSTAT",
    ];
    // Settings may have been changed there and back.
    let counts_settings = !matches!(engine, Engine::Redis60 | Engine::Redis62);
    let settings = counts_settings.then_some("CONFIG SET maxmemory-samples 6");
    for commands in commands.into_iter().chain(settings) {
        run(&mut con, "SET a 1");
        drain(&feed, &mut con).await;
        assert!(!touched.flushed(), "{engine}: before {commands}");
        for command in commands.split(';') {
            run(&mut con, command);
        }
        // A barrier is enough.
        drain(&feed, &mut con).await;
        assert!(touched.take_flushed(), "{engine}: {commands}");
    }
    // And so is time.
    run(&mut con, "FLUSHALL");
    wait_until("the flush is noticed", || touched.flushed());
    assert_eq!(feed.failure(), None);
    // One that becomes a replica gets other data.
    let other = Server::builder(engine).start().expect("a server");
    run(&mut con, &format!("REPLICAOF 127.0.0.1 {}", other.port()));
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert_eq!(failure, FeedFailure::Demoted, "{engine}");
}

/// Somebody may turn it off while it is followed, or close the connection: then nothing is certain any more.
async fn one_that_is_turned_off_ends(engine: Engine) {
    let server = publishing(engine).start().expect("a server");
    let mut con = server.connection();
    let feed = followed(&server).await;
    // Everything that is needed is there, and more.
    run(&mut con, "CONFIG SET notify-keyspace-events KEg$lszhxet");
    run(&mut con, "SET a 1");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["a=w"]);
    run(&mut con, "CONFIG SET notify-keyspace-events KElg");
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert!(matches!(failure, FeedFailure::Muted { .. }), "{engine}: {failure:?}");
    let words = failure.to_string();
    assert!(words.contains("lacks $szhxet: AEK would do"), "{words}");
    let error = feed.reach(0, REACH_MS).await.expect_err("the feed has ended");
    assert!(error.to_string().contains("no longer reports every change"), "{error}");

    run(&mut con, "CONFIG SET notify-keyspace-events AE");
    let feed = followed(&server).await;
    assert_eq!(run(&mut con, "CLIENT KILL TYPE pubsub"), redis::Value::Int(1));
    let failure = tokio::time::timeout(Duration::from_secs(30), feed.failed()).await.expect("in time");
    assert!(matches!(failure, FeedFailure::Lost { .. }), "{engine}: {failure:?}");
}

async fn refusal(url: &str, options: FeedOptions) -> String {
    let deployment = deployment(url).await;
    let address = deployment.endpoint.address.clone();
    let attached = Feed::attach(&deployment, &address, SlotSet::full(), options).await;
    attached.expect_err("it is refused").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_leaves_something_out_is_refused() {
    let server = Server::builder(Engine::Redis70).start().expect("a server");
    let mut con = server.connection();
    for (setting, lacks) in [
        ("''", "\"\" there and lacks g$lszhxetE: AE would do"),
        ("Ex", "lacks g$lszhet: AE would do"),
        ("AK", "lacks E: AEK would do"),
    ] {
        run(&mut con, &format!("CONFIG SET notify-keyspace-events {setting}"));
        let refused = refusal(&server.url(), of_kind(FeedKind::Notifications)).await;
        assert!(refused.contains(lacks), "{setting}: {refused}");
    }
}

/// What a user may not do is named, and what cannot be checked is not taken for given.
#[tokio::test(flavor = "multi_thread")]
async fn rights_decide_which_feed_is_had() {
    let server = publishing(Engine::Valkey91)
        .user_acl("neither on >pw ~* &* +@all -psync -client|tracking")
        .user_acl("either on >pw ~* &* +@all -psync")
        .user_acl("channelless on >pw ~* resetchannels +@all -psync -client|tracking")
        .user_acl("channel on >pw ~* resetchannels &__keyevent@*__:* +@all -psync -client|tracking")
        .user_acl("deaf on >pw ~* &* +@all -psubscribe -psync -client|tracking")
        .user_acl("unsure on >pw ~* &* +@all -config -psync -client|tracking")
        .start()
        .expect("a server");
    let mut con: Connection = server.connection();
    let url = |user: &str| format!("redis://{user}:pw@{}", server.addr());
    let any = FeedOptions { notifications: true, ..FeedOptions::default() };
    assert_eq!(attach(&url("either"), SlotSet::full(), any).await.kind(), FeedKind::Tracking);
    for user in ["neither", "channel"] {
        let feed = attach(&url(user), SlotSet::full(), any).await;
        assert_eq!(feed.kind(), FeedKind::Notifications, "{user}");
        run(&mut con, "SET a 1");
        assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["a=w"]);
    }
    // Who moves slots does without.
    let refused = refusal(&url("neither"), FeedOptions::default()).await;
    assert!(
        refused.contains("CLIENT TRACKING ON BCAST is refused") && !refused.contains("notify"),
        "{refused}"
    );
    for user in ["channelless", "deaf"] {
        let refused = refusal(&url(user), any).await;
        assert!(refused.contains("PSUBSCRIBE __keyevent@*__:* is refused"), "{user}: {refused}");
        assert!(
            refused.contains("the right on PSUBSCRIBE and on the channels &__keyevent@*__:*"),
            "{refused}"
        );
        assert!(refused.contains("PSYNC") && refused.contains("CLIENT TRACKING"), "{user}: {refused}");
    }
    // It is had by its name alone.
    let refused = refusal(&url("unsure"), any).await;
    assert!(refused.contains("it cannot be checked whether notify-keyspace-events is AE there"), "{refused}");
    let feed = attach(&url("unsure"), SlotSet::full(), of_kind(FeedKind::Notifications)).await;
    assert!(feed.unproven()[0].contains("CONFIG GET is refused"), "{:?}", feed.unproven());
    run(&mut con, "SET a 2");
    assert_eq!(drain(&feed, &mut con).await.iter().map(shown).collect::<Vec<_>>(), ["a=w"]);
    run(&mut con, "FLUSHALL");
    drain(&feed, &mut con).await;
    assert!(feed.touched().take_flushed());

    for (user, notifications) in [("neither", None), ("unsure", Some("cannot be checked"))] {
        let deployment = deployment(&url(user)).await;
        let found = prospect(&deployment, &deployment.endpoint.address).await.expect("an answer");
        assert!(found.replication.is_some() && found.tracking.is_some(), "{user}: {found:?}");
        let why = found.notifications.as_deref();
        assert_eq!(why.is_some(), notifications.is_some(), "{user}: {found:?}");
        assert!(notifications.is_none_or(|words| why.is_some_and(|why| why.contains(words))), "{found:?}");
    }
}

/// Some modules publish what changes their keys, and some do not. Those that do not are named.
async fn types_of_which_nothing_is_reported_are_named() {
    let server = publishing(Engine::Redis74).modules().start().expect("a server");
    let mut con = server.connection();
    let feed = followed(&server).await;
    assert_eq!(
        feed.unseen_types().iter().copied().collect::<BTreeSet<_>>(),
        BTreeSet::from([
            "stream",
            "MBbloom--",
            "MBbloomCF",
            "CMSk-TYPE",
            "TopK-TYPE",
            "TDIS-TYPE",
            "bloomfltr",
            "trietype0",
        ])
    );
    for (command, expected) in [
        ("JSON.SET j $ 1", &["j=w"][..]),
        ("TS.ADD t 1000 1", &["t=w"]),
        ("TS.CREATE t2", &["t2=w"]),
        ("TS.CREATERULE t t2 AGGREGATION avg 10", &["t2=w", "t=w"]),
        ("BF.ADD b x", &[]),
        ("CF.ADD c x", &[]),
        ("CMS.INITBYDIM m 10 5", &[]),
        ("TOPK.RESERVE k 5", &[]),
        ("TDIGEST.CREATE d", &[]),
        ("FT.SUGADD s hello 1", &[]),
        ("DEL b", &["b=w"]),
    ] {
        run(&mut con, command);
        let taken: BTreeSet<String> = drain(&feed, &mut con).await.iter().map(shown).collect();
        assert_eq!(taken, expected.iter().map(|touch| (*touch).to_owned()).collect(), "{command}");
    }
    // All events but those of modules.
    run(&mut con, "CONFIG SET notify-keyspace-events Eg$lszhxet");
    let refused = refusal(&server.url(), of_kind(FeedKind::Notifications)).await;
    assert!(refused.contains("lacks d: AE would do"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_vector_sets_nothing_is_reported() {
    let server = publishing(Engine::Redis86).start().expect("a server");
    let mut con = server.connection();
    let feed = followed(&server).await;
    assert_eq!(feed.unseen_types(), ["stream", "vectorset"]);
    run(&mut con, "VADD v VALUES 2 1 1 e");
    assert_eq!(drain(&feed, &mut con).await, []);
}
