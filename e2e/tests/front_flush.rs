//! `whimbrel front` is killed when it has emptied one of its servers and not the other.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use redis::Value;
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_lab::{Engine, Server};

const PATIENCE: Duration = Duration::from_secs(120);

#[track_caller]
fn run(args: &[String]) -> Running {
    let mut running = Invocation::new(args).spawn();
    assert!(running.wait_for_text("\"serving\"", PATIENCE), "{}{}", running.stdout(), running.stderr());
    running
}

#[test]
fn killed_between_both_servers_it_empties_the_other_one_too() {
    let start = |engine| Server::builder(engine).start().expect("a server");
    let (source, target) = (start(Engine::Redis70), start(Engine::Valkey91));
    // The source needs a while to remove them.
    source.call(&["EVAL", "for i = 1, 1000000 do redis.call('SET', 'k' .. i, 'v') end", "0"]);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a name");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let words = ["front", "--listen", &address, "--source", &source.url(), "--target", &target.url()];
    let args: Vec<String> =
        words.into_iter().chain(["--state-dir", folder, "--json"]).map(str::to_owned).collect();
    let mut front = run(&args);
    for what in ["start", "pause"] {
        Invocation::new(&["front", what, "--state-dir", folder, "--json"]).run().expect_code(0);
    }
    let connect = || {
        let client = redis::Client::open(format!("redis://{address}")).expect("an address");
        client.get_connection().expect("a connection")
    };
    let mut client = connect();
    let _: i64 = redis::cmd("APPEND").arg("k1").arg("!").query(&mut client).expect("moved, then written");
    let marked = || match target.call(&["KEYS", "whimbrel:staging:*"]) {
        Value::Array(keys) => keys.len() == 1,
        other => panic!("{other:?}"),
    };
    let flushing = std::thread::spawn(move || redis::cmd("FLUSHALL").arg("SYNC").query::<()>(&mut client));
    let deadline = Instant::now() + PATIENCE;
    while !marked() {
        assert!(Instant::now() < deadline, "it does not begin");
    }
    // The target comes next, and waits.
    target.call(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    while source.call(&["DBSIZE"]) != Value::Int(0) {
        assert!(Instant::now() < deadline, "the source is not emptied");
    }
    assert!(marked() && target.call(&["EXISTS", "k1"]) == Value::Int(1), "too quick for this test");
    front.kill9();
    flushing.join().expect("it has ended").expect_err("nobody was there to answer");
    target.call(&["CLIENT", "UNPAUSE"]);
    assert!(marked(), "what the dead one had sent was carried out");

    let mut front = run(&args);
    let mut client = connect();
    let found: Option<String> = redis::cmd("GET").arg("k1").query(&mut client).expect("served");
    assert_eq!(found, None, "half of the keys are left");
    let found: Option<String> = redis::cmd("GET").arg("k2").query(&mut client).expect("served");
    assert_eq!(found, None, "half of the keys are left");
    let _: i64 = redis::cmd("APPEND").arg("k1").arg("new").query(&mut client).expect("written");
    // Once.
    front.kill9();
    let _front = run(&args);
    let found: Option<String> = redis::cmd("GET").arg("k1").query(&mut connect()).expect("served");
    assert_eq!(found.as_deref(), Some("new"));
    assert_eq!(source.call(&["DBSIZE"]), Value::Int(0));
    assert!(!marked());
}
