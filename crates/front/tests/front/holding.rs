//! Clients that are held for a cutover, and go on at the one side or the other.

use redis::Value;
use whimbrel_flow::sync::{FrontOrder, FrontSide, FrontStand, HoldOrder};
use whimbrel_front::migrate::direction::REVERSALS_MAX;
use whimbrel_front::migrate::phase::{Phase, Stand};
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, Client, alone, command, wait_until};

/// Longer than any of these tests takes.
const LONG_MS: u64 = 50_000;

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
}

/// The process behind a server.
fn process(server: &Server) -> String {
    let Value::BulkString(text) = server.call(&["INFO", "server"]) else { panic!("no text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("run_id:"));
    line.expect("it reports it").trim().to_owned()
}

fn order(from: &Server, to: &Server, limit_ms: u64) -> HoldOrder {
    HoldOrder { from: vec![process(from)], to: vec![process(to)], limit_ms, rehearse: false }
}

#[track_caller]
fn hold(between: &Between, from: &Server, to: &Server, limit_ms: u64) -> FrontStand {
    between.order(FrontOrder::Hold(order(from, to, limit_ms))).expect("they are held")
}

#[track_caller]
fn refusal(between: &Between, order: FrontOrder) -> String {
    let error = between.order(order).expect_err("it is refused");
    assert!(error.is_refusal(), "{error}");
    error.to_string()
}

fn called(server: &Server) -> i64 {
    match server.call(&["DBSIZE"]) {
        Value::Int(keys) => keys,
        other => panic!("{other:?}"),
    }
}

#[test]
fn those_that_are_held_go_on_at_the_target() {
    let _alone = alone();
    let (source, target) = pair();
    let between = Between::of(&source, &target);
    let [mut client, mut named, mut elsewhere, mut queueing, mut waiting, mut subscribed] =
        std::array::from_fn(|_| between.client());
    client.ask(&["SET", "k", "1"], "+OK\r\n");
    named.ask(&["CLIENT", "SETNAME", "me"], "+OK\r\n");
    elsewhere.ask(&["SELECT", "3"], "+OK\r\n");
    queueing.ask(&["MULTI"], "+OK\r\n");
    subscribed.ask(&["SUBSCRIBE", "c"], "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    waiting.send(&command(&["BLPOP", "queue", "0"]));
    wait_until("it waits", || {
        let Value::BulkString(clients) = source.call(&["CLIENT", "LIST"]) else { panic!("no text") };
        String::from_utf8_lossy(&clients).contains("cmd=blpop")
    });
    target.call(&["SET", "k", "1"]);

    let held = hold(&between, &source, &target, LONG_MS);
    assert_eq!((held.at, held.ended), (FrontSide::Source, 3), "{held:?}");
    assert_ne!(held.hold, 0);
    // Two of those that rest, and one in another database, which only matters if it comes to a switch.
    assert_eq!(held.resting.len(), 3, "{held:?}");
    assert!([&mut queueing, &mut waiting, &mut subscribed].map(Client::rest).iter().all(Vec::is_empty));
    // What is asked now is answered later, also to a client that comes now.
    let mut late = between.client();
    client.send(&command(&["INCR", "k"]));
    late.send(&command(&["INCR", "late"]));
    let refused = refusal(&between, FrontOrder::Hold(order(&source, &target, LONG_MS)));
    assert!(refused.contains("clients are held for a cutover"), "{refused}");
    assert!(between.start().expect_err("not now").to_string().contains("clients are held"));
    assert!(between.status().held_ms.is_some());
    assert_eq!(between.stand(), Phase::Forwarding.into());
    assert_eq!(called(&source), 1);

    let stand = between.order(FrontOrder::Switch(held.hold)).expect("they are sent");
    assert_eq!((stand.at, stand.hold, stand.ended), (FrontSide::Target, 0, 3));
    assert_eq!(between.stand(), Phase::Done.into());
    client.expect(b":2\r\n");
    late.expect(b":1\r\n");
    named.ask(&["CLIENT", "GETNAME"], "$2\r\nme\r\n");
    assert!(elsewhere.rest().is_empty(), "nothing at the target would know of its database");
    assert_eq!((called(&source), called(&target)), (1, 2));
    assert_eq!(source.call(&["GET", "k"]), Value::BulkString(b"1".to_vec()));
    // That was it.
    let refused = refusal(&between, FrontOrder::Switch(held.hold));
    assert!(refused.contains("not held any more"), "{refused}");
    assert_eq!(between.order(FrontOrder::Release).expect("reported").at, FrontSide::Target);
    client.ask(&["INCR", "k"], ":3\r\n");
}

#[test]
fn a_hold_that_lasts_too_long_opens_to_the_source_and_is_never_switched() {
    let _alone = alone();
    let (source, target) = pair();
    let between = Between::of(&source, &target);
    let [mut client, mut elsewhere, mut watching] = std::array::from_fn(|_| between.client());
    elsewhere.ask(&["SELECT", "3"], "+OK\r\n");
    client.ask(&["SET", "k", "1"], "+OK\r\n");
    watching.ask(&["WATCH", "k"], "+OK\r\n");
    watching.ask(&["UNWATCH"], "+OK\r\n");
    let held = hold(&between, &source, &target, 4_000);
    // It is answered when the time is over.
    client.ask(&["INCR", "k"], ":2\r\n");
    assert!(between.status().held_ms.is_none());
    let refused = refusal(&between, FrontOrder::Switch(held.hold));
    assert!(refused.contains("not held any more"), "{refused}");
    assert_eq!(between.stand(), Phase::Forwarding.into());
    // Nobody was disconnected, and all is as it was.
    elsewhere.ask(&["SET", "there", "1"], "+OK\r\n");
    watching.ask(&["GET", "k"], "$1\r\n2\r\n");
    assert_eq!((called(&source), called(&target)), (1, 0));

    // The next one is another one.
    let again = hold(&between, &source, &target, LONG_MS);
    assert_ne!(again.hold, held.hold);
    assert!(refusal(&between, FrontOrder::Switch(held.hold)).contains("not held any more"));
    client.send(&command(&["INCR", "k"]));
    let released = between.order(FrontOrder::Release).expect("they are let go");
    assert_eq!((released.at, released.hold), (FrontSide::Source, 0));
    client.expect(b":3\r\n");
    assert!(refusal(&between, FrontOrder::Switch(again.hold)).contains("not held any more"));
    elsewhere.ask(&["DEL", "there"], ":1\r\n");
    between.start().expect("keys can move all the same");
    let refused = refusal(&between, FrontOrder::Hold(order(&source, &target, LONG_MS)));
    assert!(refused.contains("moves keys itself") || refused.contains("does not come from it"), "{refused}");
}

#[test]
fn what_was_asked_before_is_answered_before() {
    let _alone = alone();
    let (source, target) = pair();
    let between = Between::of(&source, &target);
    let mut client = between.client();
    client.ask(&["PING"], "+PONG\r\n");
    let many: Vec<u8> = (0..2_000).flat_map(|_| command(&["INCR", "n"])).collect();
    client.send(&many);
    client.expect(b":1\r\n");
    let held = hold(&between, &source, &target, LONG_MS);
    // What was carried out has been answered; the rest of it waits here.
    let Value::BulkString(n) = source.call(&["GET", "n"]) else { panic!("no number") };
    let n: usize = String::from_utf8_lossy(&n).parse().expect("a number");
    target.call(&["SET", "n", &n.to_string()]);
    between.order(FrontOrder::Switch(held.hold)).expect("they are sent");
    for i in 2..=2_000 {
        client.expect(format!(":{i}\r\n").as_bytes());
    }
    assert_eq!(source.call(&["GET", "n"]), Value::BulkString(n.to_string().into_bytes()));
}

#[test]
fn the_front_goes_to_and_fro_and_starts_where_it_was() {
    let _alone = alone();
    let (source, target) = pair();
    {
        let between = Between::sharing(&source, &target);
        let mut client = between.client();
        for _ in 0..3 {
            client.ask(&["SET", "k", "source"], "+OK\r\n");
        }
        let held = hold(&between, &source, &target, LONG_MS);
        between.order(FrontOrder::Switch(held.hold)).expect("they are sent");
        client.ask(&["SET", "k", "target"], "+OK\r\n");
        let wrong = refusal(&between, FrontOrder::Hold(order(&source, &target, LONG_MS)));
        assert!(wrong.contains("does not come from it"), "{wrong}");
        let held = hold(&between, &target, &source, LONG_MS);
        client.send(&command(&["GET", "k"]));
        let back = between.order(FrontOrder::Switch(held.hold)).expect("they are sent back");
        assert_eq!(back.at, FrontSide::Source);
        client.expect(b"$6\r\nsource\r\n");
        assert_eq!(between.stand(), Stand { phase: Phase::Done, reversals: 1 });
    }
    for (reversals, value) in [(0, "target"), (1, "source")] {
        let between = Between::reversed(reversals, Phase::Done, &source, &target);
        let mut client = between.client();
        client.ask(&["GET", "k"], "$6\r\n");
        client.expect(format!("{value}\r\n").as_bytes());
    }
    let between = Between::reversed(REVERSALS_MAX, Phase::Done, &source, &target);
    let refused = refusal(&between, FrontOrder::Hold(order(&source, &target, LONG_MS)));
    assert!(refused.contains("to and fro"), "{refused}");
}

#[test]
fn a_rehearsal_finds_what_is_wrong_and_holds_nobody() {
    let _alone = alone();
    let (source, target) = pair();
    let (other, _) = pair();
    let between = Between::of(&source, &target);
    let mut client = between.client();
    client.ask(&["PING"], "+PONG\r\n");
    let rehearsed = |from: &Server, to: &Server| {
        FrontOrder::Hold(HoldOrder { rehearse: true, ..order(from, to, LONG_MS) })
    };
    let stand = between.order(rehearsed(&source, &target)).expect("it could be done");
    assert_eq!((stand.at, stand.hold, stand.clients), (FrontSide::Source, 0, 1));
    client.ask(&["PING"], "+PONG\r\n");
    assert!(refusal(&between, rehearsed(&other, &target)).contains("does not come from it"));
    assert!(refusal(&between, rehearsed(&source, &other)).contains("does not lead to it"));
    target.call(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(refusal(&between, rehearsed(&source, &target)).contains("replica"));
}
