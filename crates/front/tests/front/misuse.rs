//! What clients, and others who write to the source, can do to a front at the moments that matter.

use redis::Value;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, Client, alone, command};

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
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
