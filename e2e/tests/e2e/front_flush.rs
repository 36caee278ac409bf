//! `whimbrel front` is killed when it has emptied one of its servers and not the other.

use std::time::Instant;

use redis::Value;
use whimbrel_e2e::fronts::{Front, PATIENCE};
use whimbrel_lab::{Engine, Server};

#[test]
fn killed_between_both_servers_it_empties_the_other_one_too() {
    // On a busy machine both may be empty before the target is paused.
    assert!((0..5).any(|_| is_killed_between_both()), "each time both were emptied too quickly");
}

/// False where both were emptied before anybody could stop it.
fn is_killed_between_both() -> bool {
    let start = |engine| Server::builder(engine).start().expect("a server");
    let (source, target) = (start(Engine::Redis70), start(Engine::Valkey91));
    // The source needs a while to remove them.
    source.call(&["EVAL", "for i = 1, 1000000 do redis.call('SET', 'k' .. i, 'v') end", "0"]);
    let mut front = Front::between(&source.url(), &target.url(), &[]);
    for what in ["start", "pause"] {
        front.command(what).expect_code(0);
    }
    let mut client = front.connect();
    let _: i64 = redis::cmd("APPEND").arg("k1").arg("!").query(&mut client).expect("moved, then written");
    let marked = || match target.call(&["KEYS", "whimbrel:staging:*"]) {
        Value::Array(keys) => keys.len() == 1,
        other => panic!("{other:?}"),
    };
    let flushing = std::thread::spawn(move || redis::cmd("FLUSHALL").arg("SYNC").query::<()>(&mut client));
    let deadline = Instant::now() + PATIENCE;
    while !marked() && !flushing.is_finished() {
        assert!(Instant::now() < deadline, "it does not begin");
    }
    // The target comes next, and waits.
    target.call(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    if !marked() || target.call(&["EXISTS", "k1"]) == Value::Int(0) {
        return false;
    }
    while source.call(&["DBSIZE"]) != Value::Int(0) {
        assert!(Instant::now() < deadline, "the source is not emptied");
    }
    assert!(marked() && target.call(&["EXISTS", "k1"]) == Value::Int(1), "a paused target was emptied");
    front.running.kill9();
    flushing.join().expect("it has ended").expect_err("nobody was there to answer");
    target.call(&["CLIENT", "UNPAUSE"]);
    assert!(marked(), "what the dead one had sent was carried out");

    front.run_again();
    let mut client = front.connect();
    let found: Option<String> = redis::cmd("GET").arg("k1").query(&mut client).expect("served");
    assert_eq!(found, None, "half of the keys are left");
    let found: Option<String> = redis::cmd("GET").arg("k2").query(&mut client).expect("served");
    assert_eq!(found, None, "half of the keys are left");
    let _: i64 = redis::cmd("APPEND").arg("k1").arg("new").query(&mut client).expect("written");
    // Once.
    front.kill_and_run_again();
    let found: Option<String> = redis::cmd("GET").arg("k1").query(&mut front.connect()).expect("served");
    assert_eq!(found.as_deref(), Some("new"));
    assert_eq!(source.call(&["DBSIZE"]), Value::Int(0));
    assert!(!marked());
    true
}
