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
    wait_until("it is under way", || fleet.held() > 0);
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
