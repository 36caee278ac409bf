//! Attempts that come too late, and servers that refuse.

use whimbrel_flow::keys::{Body, KeyState};

use super::*;
use crate::fleet::carrier::{Copying, Reader, sweep, verify};

whimbrel_lab::for_each_engine! {
    async
        what_comes_of_an_earlier_attempt_does_nothing
        a_later_attempt_ends_one_between_two_groups
        an_attempt_may_be_repeated_and_voids_what_it_sent_before
        what_a_failed_attempt_left_is_removed_and_what_somebody_has_is_not
        a_full_server_can_be_left_and_is_not_filled
        a_user_who_may_not_learns_what_is_missing
        a_slot_on_its_way_to_another_node_is_left_alone
}

/// A key as it is written.
async fn item(side: &mut Backend, name: &str) -> KeyState {
    let dump = side.ask(&["DUMP", name]).await.into_bytes().expect("a payload");
    KeyState { key: Bytes::copy_from_slice(name.as_bytes()), body: Body::Payload(dump), expires_at_ms: None }
}

/// What an attempt that stands still still has in its hands does nothing once a later one has begun.
async fn assert_powerless(side: &mut Backend, hold: &SlotClaim, by: Token) {
    let before = side.all().await;
    let name = before[0].0.clone();
    let mut other = item(side, std::str::from_utf8(&name).expect("text")).await;
    other.key = Bytes::from_static(b"{a}late");
    let fence = side.fence().await;
    assert_superseded(hold.unlink(&mut side.link, &[name]).await, by);
    assert_superseded(hold.restore(&mut side.link, &[other]).await, by);
    assert_eq!(side.all().await, before);
    assert_eq!(side.fence().await, fence);
}

async fn what_comes_of_an_earlier_attempt_does_nothing(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.fill(40).await;
    // Taken, and then it stands still.
    let early_a = pair.a.claim(token(1), MoveEnd::Origin).await.expect("taken").hold;
    let early_b = pair.b.claim(token(1), MoveEnd::Destination).await.expect("taken").hold;
    // In the middle of it.
    let some = [item(&mut pair.a, "{a}1").await];
    assert_eq!(early_b.restore(&mut pair.b.link, &some).await.expect("written"), None);
    assert_eq!(pair.b.all().await.len(), 1);
    // Another owner carries the slot, and clients write to it where it is now.
    assert_eq!(pair.carry(token(2)).await.expect("carried").cleared, 1);
    pair.b.ask(&["SET", "{a}1", "acknowledged"]).await;
    assert_powerless(&mut pair.a, &early_a, token(2)).await;
    assert_powerless(&mut pair.b, &early_b, token(2)).await;
    assert_superseded(pair.carry(token(1)).await, token(2));
    assert_superseded(pair.b.clear(token(1)).await, token(2));
    assert_superseded(pair.a.clear(token(1)).await, token(2));
    assert_eq!(pair.b.text(&["GET", "{a}1"]).await.as_deref(), Some("acknowledged"));
    assert_eq!((pair.a.all().await.len(), pair.b.all().await.len()), (40, 40));
    // The fence of the origin alone says it as well, and that of the destination alone.
    pair.a.claim(token(3), MoveEnd::Origin).await.expect("taken");
    assert_superseded(pair.carry(token(2)).await, token(3));
    pair.b.claim(token(4), MoveEnd::Origin).await.expect("taken");
    assert_superseded(pair.carry(token(3)).await, token(4));
    assert_eq!(pair.b.text(&["GET", "{a}1"]).await.as_deref(), Some("acknowledged"));
}

async fn a_later_attempt_ends_one_between_two_groups(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.fill(600).await;
    let Pair { a, b } = &mut pair;
    let (from_can, to_can) = (a.can, b.can);
    let route = Route { from: &from_can, to: &to_can, dialects: (a.dialect, b.dialect) };
    let origin = claim(&mut a.link, slot(), token(1), MoveEnd::Origin, &a.can).await.expect("taken");
    let destination =
        claim(&mut b.link, slot(), token(1), MoveEnd::Destination, &b.can).await.expect("taken");
    let mut copy = Copying {
        hold: &destination.hold,
        route: &route,
        lives: Default::default(),
        carried: Carried::default(),
    };
    let mut reader = Reader::new(origin.names);
    let first = reader.next(&mut a.link, &route).await.expect("read").expect("a group");
    let first = copy.note(first);
    copy.write(&mut b.link, &first).await.expect("written");
    assert_eq!(b.all().await.len(), 256);
    claim(&mut b.own, slot(), Token { version: 1, term: 2 }, MoveEnd::Origin, &b.can).await.expect("taken");
    let late = Token { version: 1, term: 2 };
    assert_superseded(copy.all(&mut a.link, &mut b.link, reader).await, late);
    assert_eq!(b.all().await.len(), 256);
    let holds = (&origin.hold, &destination.hold);
    let outcome = verify(&mut a.link, &mut b.link, holds, &copy.lives).await;
    assert_superseded(outcome, late);
    // In the middle of removing.
    let seen = claim(&mut b.link, slot(), Token { version: 1, term: 3 }, MoveEnd::Origin, &b.can)
        .await
        .expect("taken");
    claim(&mut b.own, slot(), token(2), MoveEnd::Origin, &b.can).await.expect("taken");
    assert_superseded(sweep(&mut b.link, &seen).await, token(2));
    assert_eq!(b.all().await.len(), 256);
}

async fn an_attempt_may_be_repeated_and_voids_what_it_sent_before(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.fill(300).await;
    let before = pair.b.claim(token(7), MoveEnd::Destination).await.expect("taken").hold;
    for _ in 0..3 {
        assert_eq!(pair.carry(token(7)).await.expect("carried").keys, 300);
        pair.assert_equal().await;
    }
    // It lay in a connection that was given up.
    assert_powerless(&mut pair.b, &before, token(7)).await;
    assert_eq!(pair.a.clear(token(7)).await.expect("cleared"), 300);
    assert_eq!(pair.a.clear(token(7)).await.expect("cleared"), 0);
}

#[tokio::test]
async fn tokens_of_any_size_are_distinguished() {
    for cluster in start(&Engine::ALL) {
        let mut side = Backend::of(cluster, Side::Source).await;
        let of = |version, term| Token { version, term };
        let rising = [
            of(9, u64::MAX),
            of(10, 0),
            of(10, 1),
            of(10, 2),
            of(1 << 53, 5),
            of((1 << 53) + 1, 4),
            of(u64::MAX - 1, 1),
            of(u64::MAX, 0),
        ];
        for pair in rising.windows(2) {
            side.claim(pair[0], MoveEnd::Origin).await.expect("taken");
            side.claim(pair[1], MoveEnd::Origin).await.expect("taken");
            assert_superseded(side.claim(pair[0], MoveEnd::Origin).await, pair[1]);
        }
        assert_eq!(
            side.ask(&["PTTL", std::str::from_utf8(&fence_key(slot())).expect("text")]).await,
            Value::Int(-1)
        );
    }
}

async fn what_a_failed_attempt_left_is_removed_and_what_somebody_has_is_not(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.fill(10).await;
    pair.b.ask(&["SET", "{a}precious", "v"]).await;
    for _ in 0..2 {
        let outcome = pair.carry(token(1)).await;
        assert!(matches!(outcome, Err(Refusal::Occupied { keys: 1 })), "{outcome:?}");
        assert_eq!(pair.b.text(&["GET", "{a}precious"]).await.as_deref(), Some("v"));
        assert_eq!(pair.b.fence().await, None);
    }
    pair.b.ask(&["DEL", "{a}precious"]).await;
    pair.carry(token(1)).await.expect("carried");
    // Of other types, of the same names, and more than one page.
    pair.b.ask(&["DEL", "{a}1"]).await;
    pair.b.ask(&["RPUSH", "{a}1", "old"]).await;
    for i in 0..2_500 {
        pair.b.own.push(&[b"SADD", format!("{TAG}garbage{i}").as_bytes(), b"x"]);
    }
    pair.b.own.flush().await.expect("sent");
    pair.b.own.replies(2_500).await.expect("they answer");
    pair.b.ask(&["SET", "other", "slot"]).await;
    assert_eq!(pair.carry(token(2)).await.expect("carried").cleared, 2_510);
    pair.assert_equal().await;
    // A slot that has lost all its keys meanwhile.
    pair.a.clear(token(2)).await.expect("cleared");
    assert_eq!(pair.carry(token(3)).await.expect("carried"), Carried { cleared: 10, ..Carried::default() });
    assert_eq!(pair.b.ask(&["DBSIZE"]).await, Value::Int(2));
    assert_eq!(pair.b.text(&["GET", "other"]).await.as_deref(), Some("slot"));
}

#[tokio::test]
async fn a_fence_that_is_gone_or_strange_stops_everything() {
    let mut pair = Pair::of(Engine::Valkey91, Engine::Redis80).await;
    pair.a.fill(3).await;
    pair.carry(token(5)).await.expect("carried");
    let hold = pair.b.claim(token(5), MoveEnd::Destination).await.expect("taken").hold;
    let fence = String::from_utf8(fence_key(slot())).expect("text");
    pair.b.ask(&["DEL", &fence]).await;
    let names = [Bytes::from_static(b"{a}1")];
    assert!(failure(hold.unlink(&mut pair.b.link, &names).await).contains("not there any more"));
    pair.b.ask(&["SET", &fence, "someone's"]).await;
    assert!(failure(hold.unlink(&mut pair.b.link, &names).await).contains(&fence));
    pair.again().await;
    assert!(failure(pair.carry(token(6)).await).contains("not what whimbrel has written"));
    assert_eq!(pair.b.all().await.len(), 3);
}

async fn a_full_server_can_be_left_and_is_not_filled(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.fill(30).await;
    pair.b.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let before = pair.a.all().await;
    let text = failure(pair.carry(token(1)).await);
    assert!(text.starts_with("target") && text.contains("OOM") && text.contains("maxmemory"), "{text}");
    assert_eq!(pair.a.all().await, before);
    assert_eq!(pair.b.all().await.len(), 0);
    pair.again().await;
    pair.b.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    pair.a.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(pair.carry(token(2)).await.expect("carried").keys, 30);
    assert_eq!(pair.a.clear(token(2)).await.expect("cleared"), 30);
}

async fn a_user_who_may_not_learns_what_is_missing(engine: Engine) {
    let mut pair = Pair::of(engine, engine).await;
    pair.a.fill(3).await;
    for denied in ["-eval", "-restore", "-set", "-cluster|getkeysinslot"] {
        pair.b.ask(&["ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "+@all", denied]).await;
        assert!(pair.b.link.call(&[b"AUTH", b"u", b"p"]).await.is_ok());
        let text = failure(pair.carry(token(1)).await);
        assert!(text.starts_with("target") && text.contains("allow this user EVAL"), "{denied}: {text}");
        pair.again().await;
    }
    pair.carry(token(1)).await.expect("carried");
}

async fn a_slot_on_its_way_to_another_node_is_left_alone(engine: Engine) {
    let cluster = Cluster::builder(engine).primaries(2).start().expect("a cluster");
    let owner = cluster.owner_of(slot().number()).expect("an owner");
    let number = slot().to_string();
    let nodes = cluster.nodes();
    let mut link = open(&nodes[owner].url(), Side::Source).await;
    let can = Capabilities::probe(&mut link).await.expect("capabilities");
    for key in ["{a}1", "{a}2"] {
        nodes[owner].call(&["SET", key, "v"]);
    }
    clear_slot(&mut link, slot(), token(1), &can).await.expect("cleared");
    nodes[owner].call(&["SET", "{a}1", "v"]);
    nodes[1 - owner].call(&["CLUSTER", "SETSLOT", &number, "IMPORTING", cluster.node_id(owner)]);
    nodes[owner].call(&["CLUSTER", "SETSLOT", &number, "MIGRATING", cluster.node_id(1 - owner)]);
    // As it is asked for keys that it may have given away.
    assert!(names(&mut link, slot(), 10).await.is_err());
    let text = failure(clear_slot(&mut link, slot(), token(2), &can).await);
    assert!(text.contains("TRYAGAIN") || text.contains("ASK"), "{text}");
    assert_eq!(nodes[owner].call(&["EXISTS", "{a}1"]), redis::Value::Int(1));
    // With all of it at the other node, its fence too.
    nodes[owner].call(&["CLUSTER", "SETSLOT", &number, "STABLE"]);
    nodes[1 - owner].call(&["CLUSTER", "SETSLOT", &number, "STABLE"]);
    cluster.move_slot(slot().number(), owner, 1 - owner).expect("moved");
    let text = failure(clear_slot(&mut link, slot(), token(2), &can).await);
    assert!(text.contains("MOVED"), "{text}");
    let mut other = open(&nodes[1 - owner].url(), Side::Source).await;
    assert_superseded(clear_slot(&mut other, slot(), Token { version: 0, term: 9 }, &can).await, token(1));
    assert_eq!(clear_slot(&mut other, slot(), token(2), &can).await.expect("cleared"), 1);
}
