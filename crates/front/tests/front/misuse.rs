//! What clients, and others who write to the source, can do to a front at the moments that matter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;
use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, Client, alone, command, wait_until};

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
}

fn phase(between: &Between) -> Phase {
    between.status().phase
}

fn trouble(between: &Between) -> String {
    between.status().moving.and_then(|moving| moving.trouble).unwrap_or_default()
}

fn in_database(server: &Server, database: u32, words: &[&str]) -> redis::RedisResult<Value> {
    let mut connection = server.connection();
    let () = redis::cmd("SELECT").arg(database).query(&mut connection)?;
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command.query(&mut connection)
}

#[test]
fn what_is_written_to_another_database_at_the_last_moment_is_not_lost() {
    let _alone = alone();
    // On a busy machine the writer may be too late.
    assert!((0..5).any(|_| is_seen_at_the_last_moment()), "each time the front had begun before");
}

/// False where keys had begun to move before anything was written.
fn is_seen_at_the_last_moment() -> bool {
    let (source, target) = pair();
    source.call(&["SET", "k", "v"]);
    let between = Between::of(&source, &target);
    // The front waits a second for it, when it has looked at the servers already.
    let mut blocked = between.client();
    blocked.send(&command(&["BLPOP", "none", "0"]));
    let over = AtomicBool::new(false);
    let before = between.state_id();
    let begun = std::thread::scope(|scope| {
        scope.spawn(|| {
            while between.state_id() == before && !over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Nobody hinders it from writing until it is disconnected.
            let mut connection = source.connection();
            let select = redis::cmd("SELECT").arg(1).query::<()>(&mut connection);
            while select.is_ok() && !over.load(Ordering::SeqCst) {
                if redis::cmd("INCR").arg("n").exec(&mut connection).is_err() {
                    break;
                }
            }
        });
        let begun = between.start();
        over.store(true, Ordering::SeqCst);
        begun
    });
    let Err(error) = begun else { return false };
    assert!(error.to_string().contains("database 1 has keys"), "{error}");
    assert_eq!(phase(&between), Phase::Forwarding);
    let mut client = between.client();
    client.ask(&["SET", "k", "new"], "+OK\r\n");
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(0));
    in_database(&source, 1, &["FLUSHDB"]).expect("emptied");
    between.start().expect("now it can");
    wait_until("all keys have moved", || phase(&between) == Phase::Done);
    between.client().ask(&["GET", "k"], "$3\r\nnew\r\n");
    true
}

#[test]
fn it_is_not_done_while_another_database_has_keys() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["SET", "k", "v"]);
    {
        let between = Between::of(&source, &target);
        between.start_paused().expect("it begins");
    }
    in_database(&source, 3, &["SET", "late", "v"]).expect("written");
    // It is run again, and has to serve those that have moved.
    let between = Between::after(Phase::Moving, &source, &target);
    assert!(trouble(&between).contains("database 3 of the source has keys"), "{}", trouble(&between));
    between.client().ask(&["APPEND", "k", "!"], ":2\r\n");
    wait_until("all that can has moved", || source.call(&["DBSIZE"]) == Value::Int(0));
    // One pass more at least.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert_eq!(phase(&between), Phase::Moving);
    assert!(trouble(&between).contains("database 3 of the source has keys"), "{}", trouble(&between));
    in_database(&source, 3, &["DEL", "late"]).expect("removed");
    wait_until("all keys have moved", || phase(&between) == Phase::Done);
    assert_eq!(trouble(&between), "");
}

#[test]
fn what_the_server_refuses_changes_nothing_of_a_client() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["SET", "k", "v"]);
    let between = Between::of(&source, &target);
    let talk = |lines: &[(&str, &str)]| -> Client {
        let mut client = between.client();
        // At once, so that several replies are under way. A line without words stands for more of a reply.
        let sent = lines.iter().filter(|(line, _)| !line.is_empty());
        let sent: Vec<u8> =
            sent.flat_map(|(line, _)| command(&line.split(' ').collect::<Vec<_>>())).collect();
        client.send(&sent);
        for (line, reply) in lines {
            let found = client.line();
            assert!(found.starts_with(reply), "{line}: {found}");
        }
        client
    };
    // What they have would be lost on another connection.
    let leave = [
        talk(&[("WATCH k", "+OK"), ("EXEC", "-ERR EXEC without MULTI")]),
        talk(&[("WATCH k", "+OK"), ("DISCARD", "-ERR DISCARD without MULTI")]),
        talk(&[("WATCH k", "+OK"), ("UNWATCH x", "-ERR wrong number")]),
        talk(&[("WATCH k", "+OK"), ("RESET x", "-ERR wrong number")]),
        talk(&[("SELECT 5", "+OK"), ("RESET x", "-ERR wrong number")]),
        talk(&[("MULTI", "+OK"), ("DISCARD x", "-ERR wrong number")]),
        talk(&[("MULTI", "+OK"), ("UNWATCH", "+QUEUED")]),
        talk(&[("WATCH k", "+OK"), ("UNWATCH", "+OK"), ("WATCH k", "+OK")]),
        talk(&[("MULTI", "+OK"), ("EXEC", "*0"), ("MULTI", "+OK")]),
        talk(&[("MULTI", "+OK"), ("CLIENT SETNAME x", "+QUEUED"), ("EXEC", "*1"), ("", "+OK")]),
    ];
    let stay = [
        talk(&[("WATCH k", "+OK"), ("UNWATCH", "+OK")]),
        talk(&[("WATCH k", "+OK"), ("MULTI", "+OK"), ("EXEC", "*0")]),
        talk(&[("MULTI", "+OK"), ("DISCARD", "+OK")]),
        talk(&[("MULTI x", "-ERR wrong number")]),
        talk(&[("SELECT 99", "-ERR DB index"), ("SELECT x", "-ERR")]),
        talk(&[("SELECT 5", "+OK"), ("SELECT 0", "+OK")]),
        talk(&[("SELECT 5", "+OK"), ("WATCH k", "+OK"), ("MULTI", "+OK"), ("RESET", "+RESET")]),
    ];
    between.start().expect("it begins");
    for (i, mut client) in leave.into_iter().enumerate() {
        assert_eq!(client.rest(), b"", "{i}");
    }
    for mut client in stay {
        client.ask(&["GET", "k"], "$1\r\nv\r\n");
    }
}

#[test]
fn a_watch_outlives_an_exec_that_is_refused_while_keys_move() {
    let _alone = alone();
    let (source, target) = pair();
    for key in ["a", "b", "c"] {
        source.call(&["SET", key, "v"]);
    }
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    for (refused, key) in [("EXEC", "a"), ("UNWATCH x", "b"), ("RESET x", "c")] {
        let mut client = between.client();
        client.ask(&["WATCH", key], "+OK\r\n");
        client.send(&command(&refused.split(' ').collect::<Vec<_>>()));
        assert!(client.line().starts_with("-ERR"), "{refused}");
        // To the source, so that the watch is on the connection that is not used.
        client.ask(&["GET", "none"], "$-1\r\n");
        let killed = target.call(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(matches!(killed, Value::Int(1..)), "{killed:?}");
        client.send(&command(&["MULTI"]));
        assert_eq!(client.rest(), b"", "{refused}");
    }
}

#[test]
fn a_key_that_somebody_puts_back_is_reported_and_not_taken_for_the_key() {
    let _alone = alone();
    let (source, target) = pair();
    // One that stays while it is paused, or the source could be found empty between the removal of the other
    // and its return.
    source.call(&["MSET", "k", "old", "stays", "v"]);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    client.ask(&["SET", "k", "new"], "+OK\r\n");
    source.call(&["SET", "k", "other"]);
    between.resume();
    wait_until("it is reported", || {
        trouble(&between).contains("1 keys are at the source again although they had moved")
    });
    assert_eq!(phase(&between), Phase::Moving);
    client.ask(&["GET", "k"], "$3\r\nnew\r\n");
    source.call(&["DEL", "k"]);
    wait_until("all keys have moved", || phase(&between) == Phase::Done);
    assert_eq!(trouble(&between), "");
    client.ask(&["GET", "k"], "$3\r\nnew\r\n");
}

#[test]
fn it_is_not_done_while_a_key_is_on_its_way() {
    let _alone = alone();
    let (source, target) = pair();
    // Nobody asks for it while it is paused, or the source could be found empty before there is a key that
    // never moves.
    source.call(&["SET", "stays", "v"]);
    let between = Between::with_wait(&source, &target, Duration::from_secs(60));
    between.start_paused().expect("it begins");
    let mut client = between.client();
    client.ask(&["GET", "absent"], "$-1\r\n");
    // In a database that does not move, so that the background goes on.
    in_database(&source, 1, &["SET", "k", "v"]).expect("set");
    between.resume();
    wait_until("it is reported", || trouble(&between).contains("database 1"));
    wait_until("the key has moved", || source.call(&["DBSIZE"]) == Value::Int(0));
    target.suspend().expect("suspended");
    // As if the background had missed it until now, and it expired on its way.
    source.call(&["SET", "k", "v"]);
    client.send(&command(&["APPEND", "k", "!"]));
    wait_until("it waits for its key", || between.status().moving.is_some_and(|moving| moving.waiting == 1));
    source.call(&["FLUSHALL"]);
    // Longer than from one pass of the background to the next, which finds the source empty.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(phase(&between), Phase::Moving);
    target.resume().expect("resumed");
    let length = client.line();
    assert!([":1\r\n", ":2\r\n"].contains(&&length[..]), "{length}");
    wait_until("all keys have moved", || phase(&between) == Phase::Done);
}

#[test]
fn a_source_that_forgets_what_was_removed_is_noticed() {
    let _alone = alone();
    let (source, target) = pair();
    for i in 0..10 {
        source.call(&["SET", &format!("k{i}"), "v"]);
    }
    source.call(&["SAVE"]);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    client.ask(&["DEL", "k0"], ":1\r\n");
    client.ask(&["APPEND", "k1", "!"], ":2\r\n");
    assert_eq!(trouble(&between), "");
    source.kill9().expect("killed");
    source.restart().expect("it runs again");
    assert_eq!(source.call(&["EXISTS", "k0", "k1"]), Value::Int(2), "it has forgotten");
    between.resume();
    wait_until("it is reported", || {
        let text = trouble(&between);
        text.contains("the source was started again") && text.contains("2 keys are at the source again")
    });
    let mut client = between.client();
    client.ask(&["GET", "k0"], "$-1\r\n");
    client.ask(&["GET", "k1"], "$2\r\nv!\r\n");
    source.call(&["DEL", "k0", "k1"]);
    wait_until("all keys have moved", || phase(&between) == Phase::Done);
    assert_eq!(target.call(&["DBSIZE"]), Value::Int(9));
    assert!(trouble(&between).contains("the source was started again"));
}
