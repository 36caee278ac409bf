//! `whimbrel front` moves keys that are too large to be moved at once, and is killed in the middle of that.

use redis::Value;
use whimbrel_e2e::fronts::Front;
use whimbrel_lab::{Engine, Server, wait_until};

const ELEMENTS: i64 = 400_000;

/// A few elements of all over the key, and their number.
fn sample(server: &Server) -> Vec<Value> {
    let mut sample = vec![server.call(&["HLEN", "large"])];
    for i in (1..=ELEMENTS).step_by(997) {
        sample.push(server.call(&["HGET", "large", &format!("field {i}")]));
    }
    sample
}

#[test]
fn killed_in_the_middle_of_a_large_key_it_goes_on() {
    // On a busy machine it may have moved before the target is paused.
    assert!((0..5).any(|_| is_killed_in_the_middle()), "each time it moved too quickly");
}

/// False where the key had moved before anybody could stop it.
fn is_killed_in_the_middle() -> bool {
    let start = |engine| Server::builder(engine).start().expect("a server");
    let (source, target) = (start(Engine::Redis70), start(Engine::Valkey91));
    let write =
        format!("for i = 1, {ELEMENTS} do redis.call('HSET', KEYS[1], 'field ' .. i, 'value ' .. i) end");
    source.call(&["EVAL", &write, "1", "large"]);
    for i in 0..500 {
        source.call(&["SET", &format!("small {i}"), "v"]);
    }
    let before = sample(&source);
    let mut front = Front::between(&source.url(), &target.url(), &[]);
    front.command("start").expect_code(0);
    let staged = || match target.call(&["KEYS", "whimbrel:staging:*"]) {
        Value::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    for round in 0..3 {
        let has_left = || source.call(&["EXISTS", "large"]) == Value::Int(0);
        wait_until("some of it is there", || staged() == 1 || has_left());
        // It takes no more, so this is the middle.
        target.call(&["CLIENT", "PAUSE", "60000", "WRITE"]);
        if has_left() {
            target.call(&["CLIENT", "UNPAUSE"]);
            if round == 0 {
                return false;
            }
            break;
        }
        front.running.kill9();
        target.call(&["CLIENT", "UNPAUSE"]);
        let arrived = match staged() {
            0 => target.call(&["HLEN", "large"]),
            _ => Value::Int(0),
        };
        if arrived == Value::Int(0) {
            // It is in the middle, or what the front before this one had left there was just being removed.
            assert_eq!(source.call(&["HLEN", "large"]), Value::Int(ELEMENTS), "nothing is left of it");
        } else {
            // Its last step had been sent, and waited for the end of the pause.
            assert_eq!(arrived, Value::Int(ELEMENTS), "a part of it is left");
        }
        front.run_again();
        if arrived != Value::Int(0) {
            break;
        }
    }
    // Written to while it moves, or right after: once. On a busy machine it may take longer to move than the
    // front lets clients wait; then nothing was written.
    let mut client = front.connect();
    wait_until("it is written", || {
        match redis::cmd("HINCRBY").arg("large").arg("new").arg(5).query::<i64>(&mut client) {
            Ok(added) => assert_eq!(added, 5),
            Err(e) => {
                assert_eq!(e.code(), Some("TRYAGAIN"), "{e}");
                return false;
            }
        }
        true
    });
    wait_until("all keys have moved", || front.status()["phase"] == "done");
    let mut after = sample(&target);
    assert_eq!(after[0], Value::Int(ELEMENTS + 1));
    after[0] = before[0].clone();
    assert!(after == before, "it is another");
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(501));
    assert_eq!(source.call(&["DBSIZE"]), Value::Int(0));
    true
}
