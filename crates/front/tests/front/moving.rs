//! A front between two servers, before, while and after keys move.

use std::time::Duration;

use serde_json::Value as Json;
use whimbrel_front::migrate::phase::Phase;
use whimbrel_lab::{Engine, Server};

use crate::common::{Between, Client, alone, command, wait_until};

whimbrel_lab::for_each_engine! {
    on Redis80 Valkey91:
        streams_are_read_wherever_the_servers_show_their_keys
}

/// The bytes of a status.
fn status(between: &Between) -> Json {
    serde_json::to_value(between.status()).expect("JSON")
}

fn pair() -> (Server, Server) {
    let start = |engine| Server::builder(engine).start().expect("a server");
    (start(Engine::Redis70), start(Engine::Valkey91))
}

#[test]
fn what_cannot_be_exact_is_refused_and_says_why() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["SET", "stays", "v"]);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    let refused = [
        ("EVAL return 0", "a script may use keys that it does not declare"),
        ("FCALL f 0", "a script may use keys that it does not declare"),
        ("SCRIPT FLUSH", "a script may use keys that it does not declare"),
        ("SORT l BY w_*", "BY and GET reach keys that are not declared"),
        ("SORT_RO l GET p_*", "BY and GET reach keys that are not declared"),
        ("SELECT 1", "only database 0 is served"),
        ("MOVE k 1", "only database 0 is served"),
        ("COPY a b DB 1", "only database 0 is served"),
        ("SWAPDB 0 1", "only database 0 is served"),
        ("MIGRATE h 1 k 0 1", "keys are on two servers"),
        ("CONFIG SET maxmemory 1", "keys are on two servers"),
        ("CLIENT PAUSE 1", "keys are on two servers"),
        ("DEBUG SLEEP 0", "keys are on two servers"),
        ("CLUSTER INFO", "its keys are not known"),
        ("NOSUCH k", "the server that keys move to has no such command"),
        ("CLIENT TRACKING ON", "invalidations cannot be kept exact"),
    ];
    for (line, why) in refused {
        let words: Vec<&str> = line.split(' ').collect();
        client.send(&command(&words));
        let reply = client.line();
        assert!(reply.starts_with("-ERR whimbrel front refuses") && reply.contains(why), "{line}: {reply}");
    }
    // In a transaction it makes the whole of it fail.
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["SET", "k", "v"], "+QUEUED\r\n");
    client.send(&command(&["EVAL", "x", "0"]));
    assert!(client.line().contains("refuses EVAL"));
    client.send(&command(&["EXEC"]));
    assert!(client.line().starts_with("-EXECABORT"));
    client.ask(&["EXISTS", "k"], ":0\r\n");
}

/// Some releases of Redis 8.0 and later say of these commands that their table does not list all keys.
fn streams_are_read_wherever_the_servers_show_their_keys(engine: Engine) {
    let _alone = alone();
    let start = |engine| Server::builder(engine).start().expect("a server");
    let (source, target) = (start(engine), start(engine));
    source.call(&["XADD", "x", "1-1", "f", "v"]);
    source.call(&["XADD", "STREAMS", "2-1", "f", "w"]);
    source.call(&["XGROUP", "CREATE", "x", "g", "0"]);
    source.call(&["GEOADD", "g", "13.4", "52.5", "Berlin"]);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    let item =
        |id: &str, value: &str| format!("*1\r\n*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\n{value}\r\n");
    let of_x = format!("*2\r\n$1\r\nx\r\n{}", item("1-1", "v"));
    let of_both = format!("*2\r\n*2\r\n$7\r\nSTREAMS\r\n{}{of_x}", item("2-1", "w"));
    client.ask(&["XREAD", "COUNT", "1", "STREAMS", "STREAMS", "x", "0", "0"], &of_both);
    client.ask(&["XREADGROUP", "GROUP", "g", "c", "STREAMS", "x", ">"], &format!("*1\r\n{of_x}"));
    client.ask(&["GEORADIUS", "g", "13.4", "52.5", "1", "km", "STORE", "near"], ":1\r\n");
    client.ask(&["EXISTS", "near", "x"], ":2\r\n");
}

#[test]
fn keys_of_both_servers_are_served_as_those_of_one() {
    let _alone = alone();
    let (source, target) = pair();
    let between = Between::of(&source, &target);
    for i in 0..100 {
        source.call(&["SET", &format!("k{i}"), &i.to_string()]);
    }
    source.call(&["RPUSH", "l", "3", "1", "2"]);
    between.start_paused().expect("it begins");
    let mut client = between.client();
    // Reads are sent to the source, and nothing moves for them.
    client.ask(&["MGET", "k1", "k2", "none"], "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n");
    assert_eq!(status(&between)["moving"]["moved"], 0);
    assert_eq!(status(&between)["moving"]["forwarded"], 1);
    // A write moves what it needs, and no more.
    client.ask(&["RENAME", "k1", "r"], "+OK\r\n");
    client.ask(&["APPEND", "k2", "!"], ":2\r\n");
    assert_eq!(status(&between)["moving"]["moved"], 2);
    client.ask(&["MGET", "k2", "k3", "r"], "*3\r\n$2\r\n2!\r\n$1\r\n3\r\n$1\r\n1\r\n");
    client.ask(&["DBSIZE"], ":101\r\n");
    client.ask(&["EXISTS", "k1", "k2", "k3", "k4"], ":3\r\n");
    client.ask(&["SORT", "l", "STORE", "s"], ":3\r\n");
    client.ask(&["LRANGE", "s", "0", "0"], "*1\r\n$1\r\n1\r\n");
    client.ask(&["ZUNIONSTORE", "z", "2", "none", "other"], ":0\r\n");
    client.ask(&["LMPOP", "2", "none", "l", "LEFT"], "*2\r\n$1\r\nl\r\n*1\r\n$1\r\n3\r\n");
    // Pipelined commands keep their order, wherever they go.
    let lines: [&[&str]; 6] = [
        &["GET", "k50"],
        &["SET", "k51", "new"],
        &["GET", "k51"],
        &["GET", "k52"],
        &["INCR", "k52"],
        &["GET", "k52"],
    ];
    client.send(&lines.iter().flat_map(|words| command(words)).collect::<Vec<u8>>());
    client.expect(b"$2\r\n50\r\n+OK\r\n$3\r\nnew\r\n$2\r\n52\r\n:53\r\n$2\r\n53\r\n");
    client.send(&command(&["KEYS", "*"]));
    assert_eq!(client.line(), "*102\r\n");
    for _ in 0..102 {
        client.line();
        client.line();
    }
    // A long value is passed on while it arrives, and so are the others around it.
    let long = "x".repeat(1 << 20);
    client.send(&command(&["SET", "k60", &long]));
    client.send(&command(&["STRLEN", "k60"]));
    client.expect(b"+OK\r\n:1048576\r\n");
    // One whose keys come late is held until it has arrived.
    client.send(&command(&["MSET", "k61", &long, "k62", &long]));
    client.send(&command(&["STRLEN", "k62"]));
    client.expect(b"+OK\r\n:1048576\r\n");
    // Inline, and nonsense.
    client.send(b"get k3\r\nappend k3 !\r\n");
    client.expect(b"$1\r\n3\r\n:2\r\n");
    between.resume();
    wait_until("all keys have moved", || status(&between)["phase"] == "done");
    client.ask(&["DBSIZE"], ":102\r\n");
    client.ask(&["EVAL", "return 7", "0"], ":7\r\n");
    assert_eq!(source.call(&["DBSIZE"]), redis::Value::Int(0));
    between.finish().expect("it is done");
}

#[test]
fn a_transaction_that_is_open_when_it_begins_is_ended_first() {
    let _alone = alone();
    // On a busy machine it may be too late once.
    let has_gone_on = (0..5).any(|_| {
        let (source, target) = pair();
        let between = Between::of(&source, &target);
        let mut client = between.client();
        client.ask(&["WATCH", "k"], "+OK\r\n");
        std::thread::scope(|scope| {
            let begun = scope.spawn(|| between.start());
            // By now it waits for clients to come to rest.
            std::thread::sleep(Duration::from_millis(300));
            let lines: [&[&str]; 3] = [&["MULTI"], &["SET", "k", "v"], &["EXEC"]];
            client.send(&lines.iter().flat_map(|words| command(words)).collect::<Vec<u8>>());
            let mut replies = vec![0; b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n".len()];
            let is_done = std::io::Read::read_exact(&mut client.0, &mut replies).is_ok();
            begun.join().expect("it ended").expect("it begins");
            is_done && {
                client.ask(&["GET", "k"], "$1\r\nv\r\n");
                true
            }
        })
    });
    assert!(has_gone_on, "it was never let end");
}

#[test]
fn clients_that_rest_stay_and_others_leave_when_it_begins() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["SET", "k", "v"]);
    // Once a source is empty, all keys have moved, and nobody is served there any more, paused or not.
    source.call(&["SET", "stays", "v"]);
    let between = Between::of(&source, &target);
    let [mut idle, mut named, mut blocked, mut open, mut watching, mut subscribed, mut elsewhere] =
        std::array::from_fn(|_| between.client());
    idle.ask(&["GET", "k"], "$1\r\nv\r\n");
    named.ask(&["CLIENT", "SETNAME", "me"], "+OK\r\n");
    blocked.send(&command(&["BLPOP", "none", "0"]));
    open.ask(&["MULTI"], "+OK\r\n");
    watching.ask(&["WATCH", "k"], "+OK\r\n");
    subscribed.send(&command(&["SUBSCRIBE", "c"]));
    elsewhere.ask(&["SELECT", "1"], "+OK\r\n");
    for _ in 0..6 {
        subscribed.line();
    }
    wait_until("it blocks", || {
        let info = match source.call(&["INFO", "clients"]) {
            redis::Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            other => panic!("{other:?}"),
        };
        info.contains("blocked_clients:1")
    });
    let mut direct = source.connection();
    between.start_paused().expect("it begins");
    // A client that spoke to the source itself has been disconnected, before any key moved.
    assert!(redis::cmd("SET").arg("k").arg("late").query::<()>(&mut direct).is_err());
    for (what, client) in [
        ("blocked", &mut blocked),
        ("open", &mut open),
        ("watching", &mut watching),
        ("subscribed", &mut subscribed),
        ("elsewhere", &mut elsewhere),
    ] {
        assert_eq!(client.rest(), b"", "{what}");
    }
    idle.ask(&["APPEND", "k", "!"], ":2\r\n");
    named.ask(&["CLIENT", "GETNAME"], "$2\r\nme\r\n");
    // The source is sent the same, as soon as it is asked again. Not always by the first read: the connection
    // of before may look as if it were there still, and then the key is moved, and known from then on.
    let mut keys = 0..;
    wait_until("the source knows the name", || {
        named.ask(&["GET", &format!("other{}", keys.next().unwrap_or(0))], "$-1\r\n");
        format!("{:?}", source.call(&["CLIENT", "LIST"])).contains("name=me")
    });
}

#[test]
fn pushes_come_once_and_blocked_clients_wait_at_the_target() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["RPUSH", "l", "a"]);
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let [mut subscribed, mut other, mut blocked] = std::array::from_fn(|_| between.client());
    subscribed.ask(&["SUBSCRIBE", "c"], "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    other.ask(&["PUBLISH", "c", "m"], ":1\r\n");
    subscribed.expect(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    subscribed.ask(&["PING"], "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    // What has not moved is found as well.
    blocked.ask(&["BLPOP", "l", "0"], "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
    blocked.send(&command(&["BLPOP", "l", "0"]));
    wait_until("it blocks", || other.asks(&["INFO", "clients"]).contains("blocked_clients:1"));
    other.ask(&["RPUSH", "l", "b"], ":1\r\n");
    blocked.expect(b"*2\r\n$1\r\nl\r\n$1\r\nb\r\n");
}

#[test]
fn it_does_not_begin_where_it_could_not_be_exact() {
    let _alone = alone();
    let (source, target) = pair();
    source.call(&["SET", "k", "v"]);
    target.call(&["SET", "other", "v"]);
    let between = Between::of(&source, &target);
    let mut client = between.client();
    client.ask(&["GET", "k"], "$1\r\nv\r\n");
    let error = between.start().expect_err("the target has keys").to_string();
    assert!(error.contains("it has keys"), "{error}");
    target.call(&["DEL", "other"]);
    let mut direct = source.connection();
    let () = redis::cmd("SELECT").arg(3).query(&mut direct).expect("selected");
    let () = redis::cmd("SET").arg("k").arg("v").query(&mut direct).expect("written");
    let error = between.start().expect_err("another database").to_string();
    assert!(error.contains("database 3 has keys"), "{error}");
    let () = redis::cmd("FLUSHDB").query(&mut direct).expect("gone");
    assert!(between.finish().expect_err("not begun").to_string().contains("no key has moved"));
    assert!(between.pause().expect_err("not begun").to_string().contains("no keys are moving"));
    // Nobody was disturbed by all of this.
    client.ask(&["GET", "k"], "$1\r\nv\r\n");
    between.start().expect("now it can");
    assert!(between.start().expect_err("once").to_string().contains("already"));
    client.ask(&["GET", "k"], "$1\r\nv\r\n");
    let same = Between::of(&source, &source);
    assert!(same.start().expect_err("the same").to_string().contains("it is the source as well"));
}

#[test]
fn a_target_that_is_gone_for_a_while_loses_nothing() {
    let _alone = alone();
    let (source, target) = pair();
    for i in 0..50 {
        source.call(&["SET", &format!("k{i}"), "1"]);
    }
    let between = Between::with_wait(&source, &target, Duration::from_millis(300));
    between.start_paused().expect("it begins");
    let mut client = between.client();
    wait_until("a key moves", || {
        client.send(&command(&["INCR", "k0"]));
        client.line() == ":2\r\n"
    });
    // It takes nothing in, so moves hang until it goes on.
    target.suspend().expect("suspended");
    client.ask(&["GET", "k1"], "$1\r\n1\r\n");
    client.send(&command(&["INCR", "k1"]));
    let reply = client.line();
    assert!(
        reply.starts_with("-TRYAGAIN whimbrel front: the keys could not be moved within 300 ms"),
        "{reply}"
    );
    target.resume().expect("resumed");
    wait_until("the move ends", || {
        client.send(&command(&["INCR", "k1"]));
        client.line() == ":2\r\n"
    });
    target.call(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_until("the reason is reported", || {
        client.send(&command(&["INCR", "k2"]));
        let reply = client.line();
        assert!(reply.starts_with("-TRYAGAIN"), "{reply}");
        reply.contains("OOM")
    });
    client.ask(&["GET", "k2"], "$1\r\n1\r\n");
    target.call(&["CONFIG", "SET", "maxmemory", "0"]);
    wait_until("there is room", || {
        client.send(&command(&["INCR", "k2"]));
        client.line() == ":2\r\n"
    });
    between.resume();
    wait_until("all keys have moved", || status(&between)["phase"] == "done");
    assert_eq!(target.call(&["DBSIZE"]), redis::Value::Int(50));
}

#[test]
fn after_a_crash_what_both_have_is_the_targets() {
    let _alone = alone();
    let (source, target) = pair();
    for i in 0..2_000 {
        source.call(&["SET", &format!("k{i}"), "1"]);
    }
    // Left by a front that died after it had written them, and before it had removed them.
    for i in 0..8 {
        target.call(&["SET", &format!("k{i}"), "1"]);
    }
    // Moved before.
    target.call(&["SET", "home", "1"]);
    // What the dead one has sent and is not carried out yet must never be.
    let mut late = Client::to(target.addr().parse().expect("an address"));
    late.ask(&["PING"], "+PONG\r\n");
    let restore = command(&["SET", "k0", "late"]);
    late.send(&restore[..restore.len() - 2]);
    let between = Between::after(Phase::Moving, &source, &target);
    let mut client = between.client();
    client.ask(&["DEL", "k0"], ":1\r\n");
    client.ask(&["INCR", "k1"], ":2\r\n");
    client.ask(&["GET", "k1"], "$1\r\n2\r\n");
    client.ask(&["GET", "k2"], "$1\r\n1\r\n");
    client.ask(&["GET", "home"], "$1\r\n1\r\n");
    assert_eq!(late.rest(), b"");
    wait_until("all keys have moved", || status(&between)["phase"] == "done");
    client.ask(&["GET", "k0"], "$-1\r\n");
    client.ask(&["GET", "k1"], "$1\r\n2\r\n");
    client.ask(&["DBSIZE"], ":2000\r\n");
    assert_eq!(source.call(&["DBSIZE"]), redis::Value::Int(0));
}

#[test]
fn when_all_keys_have_moved_the_source_may_be_gone() {
    let _alone = alone();
    let (source, target) = pair();
    target.call(&["SET", "k", "v"]);
    source.stop().expect("stopped");
    let between = Between::after(Phase::Done, &source, &target);
    between.client().ask(&["GET", "k"], "$1\r\nv\r\n");
    assert_eq!(status(&between)["phase"], "done");
    between.finish().expect("it is done");
}

#[test]
fn clients_do_not_notice_when_servers_hang_up_on_those_who_wait_for_nothing() {
    let _alone = alone();
    let (source, target) = pair();
    for key in ["a", "b"] {
        source.call(&["SET", key, "v"]);
    }
    let between = Between::of(&source, &target);
    between.start_paused().expect("it begins");
    let mut reads = between.client();
    let hang_up = |server: &Server| {
        let mut connection = server.connection();
        let () = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .query(&mut connection)
            .expect("killed");
    };
    reads.ask(&["GET", "a"], "$1\r\nv\r\n");
    // The connection to the target, which it is not using now.
    hang_up(&target);
    reads.ask(&["APPEND", "a", "!"], ":2\r\n");
    reads.ask(&["GET", "b"], "$1\r\nv\r\n");
    // The one to the source, which it is at.
    hang_up(&source);
    reads.ask(&["APPEND", "a", "!"], ":3\r\n");
    reads.ask(&["GET", "b"], "$1\r\nv\r\n");
    // A watch is lost with its connection, and must not be taken for one that held.
    let mut watches = between.client();
    watches.ask(&["WATCH", "a"], "+OK\r\n");
    watches.ask(&["GET", "b"], "$1\r\nv\r\n");
    hang_up(&target);
    watches.send(&command(&["MULTI"]));
    assert_eq!(watches.rest(), b"");
    between.resume();
    wait_until("all keys have moved", || status(&between)["phase"] == "done");
    // Its last read was at the source.
    source.stop().expect("stopped");
    reads.ask(&["GET", "a"], "$3\r\nv!!\r\n");
}

#[test]
fn a_scan_goes_on_in_a_front_that_is_run_again_when_all_is_done() {
    let _alone = alone();
    let (source, target) = pair();
    for i in 0..300 {
        source.call(&["SET", &format!("k{i}"), "v"]);
    }
    let mut found = std::collections::BTreeSet::new();
    let mut cursor = {
        let between = Between::of(&source, &target);
        let mut client = between.client();
        let cursor = client.scan("0", &mut found);
        between.start().expect("it begins");
        wait_until("all keys have moved", || status(&between)["phase"] == "done");
        cursor
    };
    let between = Between::after(Phase::Done, &source, &target);
    let mut client = between.client();
    while cursor != "0" {
        cursor = client.scan(&cursor, &mut found);
    }
    assert_eq!(found.len(), 300);
    assert!(between.start().expect_err("once").to_string().contains("all keys have moved"));
}

#[test]
fn libraries_of_functions_go_along() {
    let _alone = alone();
    let (source, target) = pair();
    let library = |answer: &str| {
        format!("#!lua name=lib\nredis.register_function('hello', function() return '{answer}' end)")
    };
    source.call(&["FUNCTION", "LOAD", &library("hi")]);
    target.call(&["FUNCTION", "LOAD", &library("something else")]);
    let between = Between::of(&source, &target);
    let error = between.start().expect_err("which is right?").to_string();
    assert!(error.contains("other function libraries of the same names as the source: lib"), "{error}");
    assert_eq!(status(&between)["phase"], "forwarding");
    target.call(&["FUNCTION", "DELETE", "lib"]);
    between.start().expect("it begins");
    wait_until("all keys have moved", || status(&between)["phase"] == "done");
    between.client().ask(&["FCALL", "hello", "0"], "$2\r\nhi\r\n");
}
