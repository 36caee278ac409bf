//! Clients that would keep a slot of a fleet where it is, with what they have under way.

use std::time::Duration;

use whimbrel_lab::{Engine, Server};

use crate::common::{Client, alone, command, wait_until};
use crate::fleets::Fleet;

/// Far longer than a client is waited for, and shorter than a move may take.
const LEAVE_PATIENCE: Duration = Duration::from_secs(45);

fn server() -> Server {
    Server::builder(Engine::Redis70).start().expect("a server")
}

/// Has a client do something with the key `k` that is not done, and its slot go to another member
/// nevertheless.
#[track_caller]
fn moves_nevertheless(something: impl FnOnce(&mut Client)) {
    let backend = server();
    let fleet = Fleet::start(&[&backend]);
    let [owner, other] = fleet.pair(&backend, LEAVE_PATIENCE, "k");
    let mut client = owner.client();
    something(&mut client);
    wait_until("it is under way", || fleet.held_requests() > 0);
    assert!(owner.leaves(), "a slot stays");
    // What others wait for.
    other.client().ask(&["SET", "k", "v"], "+OK\r\n");
}

#[test]
fn a_client_that_takes_nothing_in_keeps_no_slot() {
    let _alone = alone();
    moves_nevertheless(|client| {
        client.ask(&["SETRANGE", "k", "1048575", "x"], ":1048576\r\n");
        // More than the buffers of the system hold.
        client.send(&command(&["GET", "k"]).repeat(64));
    });
}

#[test]
fn a_client_that_sends_half_of_a_long_request_keeps_no_slot() {
    let _alone = alone();
    moves_nevertheless(|client| {
        let request = command(&["SET", "k", &"v".repeat(1 << 20)]);
        client.send(&request[..600 << 10]);
    });
}

#[test]
fn requests_behind_one_that_waits_keep_no_slot() {
    let _alone = alone();
    // It keeps none itself, since there is one backend.
    moves_nevertheless(|client| {
        client.send(&[command(&["BLPOP", "{k}queue", "0"]), command(&["GET", "k"])].concat());
    });
}

/// How a client of the older protocol hears that it listens.
const SUBSCRIBED: &str = "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n";

#[test]
fn a_client_that_has_listened_is_served_as_all_are_and_ended_before_data_may_move() {
    let _alone = alone();
    let (first, second) = (server(), server());
    let mut fleet = Fleet::start(&[&first]);
    let members = fleet.pair(&first, LEAVE_PATIENCE, "k");
    let [mut ours, mut theirs] = [0, 1].map(|number| members[number].client());
    for client in [&mut ours, &mut theirs] {
        client.ask(&["SUBSCRIBE", "news"], SUBSCRIBED);
        client.ask(&["UNSUBSCRIBE", "news"], "*3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n");
    }
    ours.ask(&["SET", "k", "v"], "+OK\r\n");
    // Another member has the slot: it finds that out when it connects again.
    theirs.send(&command(&["SET", "k", "w"]));
    assert!(theirs.rest().is_empty(), "it is sent nothing that it could not follow");
    let mut theirs = members[1].client();
    // One that does nothing but listen.
    let mut listens = members[0].client();
    listens.ask(&["SUBSCRIBE", "news"], SUBSCRIBED);
    fleet.start_again(&[&first, &second]);
    assert!(ours.rest().is_empty(), "nothing was asked");
    // Those that keep no slot stay.
    theirs.ask(&["PING"], "+PONG\r\n");
    members[1].client().ask(&["PUBLISH", "news", "hello"], ":1\r\n");
    listens.expect(b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n");
}
