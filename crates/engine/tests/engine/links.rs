//! What becomes of commands whose connection ends before they are answered.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{ErrorKind, Side};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_lab::{Engine, Proxy, Server, wait_until};
use whimbrel_wire::value::Value;

whimbrel_lab::for_each_engine! {
    async
        a_command_that_was_given_up_is_not_carried_out_late
        a_pause_is_known_from_a_server_that_hangs
}

/// A write that the network held back does not take the place of a later one.
async fn a_command_that_was_given_up_is_not_carried_out_late(engine: Engine) {
    let server = Server::builder(engine).start().expect("the server starts");
    let proxy = Proxy::start(&server.addr()).expect("a proxy");
    let endpoint = Arc::new(Endpoint::parse(Side::Target, &proxy.addr()).expect("an address"));
    let options = LinkOptions { reply_timeout_ms: 6_000, ..LinkOptions::default() };
    let open = async || Link::open(&endpoint, &endpoint.address, options).await.expect("a connection");

    let mut given_up = open().await;
    given_up.call(&[b"SET", b"k", b"first"]).await.expect("written");
    proxy.stall_present();
    let failure = given_up.call(&[b"SET", b"k", b"late"]).await.expect_err("nothing passes");
    assert!(matches!(failure.kind, ErrorKind::Timeout(_)), "{failure}");

    // As everywhere: the next one is opened before the last is dropped.
    let patient = LinkOptions { reply_timeout_ms: 60_000, ..options };
    let mut next = Link::open(&endpoint, &endpoint.address, patient).await.expect("another connection");
    next.call(&[b"SET", b"k", b"new"]).await.expect("written");
    drop(given_up);
    proxy.go_on();
    wait_until("the old connection is gone", || proxy.connections() == 1);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let value = next.call(&[b"GET", b"k"]).await.expect("a value");
    assert_eq!(value, Value::Bulk("new".into()));
}

/// A pause may last for longer than a reply may take. What answers nobody is given up as usual.
async fn a_pause_is_known_from_a_server_that_hangs(engine: Engine) {
    let server = Server::builder(engine).start().expect("the server starts");
    let endpoint = Arc::new(Endpoint::parse(Side::Target, &server.addr()).expect("an address"));
    let options = LinkOptions { reply_timeout_ms: 2_000, ..LinkOptions::default() };
    let open = async || Link::open(&endpoint, &endpoint.address, options).await.expect("a connection");
    let write: [&[u8]; 3] = [b"SET", b"k", b"v"];

    server.call(&["CLIENT", "PAUSE", "3000", "WRITE"]);
    let mut link = open().await;
    assert_eq!(link.try_out(&write).await.expect("the pause ends"), None);
    assert_eq!(link.options().reply_timeout_ms, options.reply_timeout_ms);

    server.call(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    let failure = open().await.try_out(&write).await.expect_err("it does not end");
    assert!(matches!(failure.kind, ErrorKind::Paused(_)), "{failure}");
    server.call(&["CLIENT", "UNPAUSE"]);

    let mut link = open().await;
    server.suspend().expect("suspended");
    let failure = link.try_out(&write).await.expect_err("nobody answers");
    assert!(matches!(failure.kind, ErrorKind::Timeout(2_000)), "{failure}");
    server.resume().expect("resumed");
}
