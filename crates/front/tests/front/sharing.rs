//! Clients that share connections to the server see no difference either.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use whimbrel_lab::{Engine, Server};

use crate::common::{
    AsUpstream, Between, Client, PATIENCE, Served, alone, command, in_own_process, resident_bytes, wait_until,
};

/// More than may be held, and far less than what is sent in these tests.
const GROWTH_BYTES_MAX: u64 = 32 << 20;

/// The same, with what all clients have together of replies that they do not take.
const POOLED_BYTES_MAX: u64 = 128 << 20;

fn server() -> Server {
    Server::builder(Engine::Redis70).start().expect("a server")
}

/// A client that the server has let in.
#[track_caller]
pub fn let_in(served: &Served) -> Client {
    let mut client = served.client();
    client.ask(&["PING"], "+PONG\r\n");
    client
}

/// From which addresses a server is asked to do what contains `what`, while `act` runs.
pub fn askers(server: &Server, what: &str, act: impl FnOnce()) -> HashSet<String> {
    let mut stream = TcpStream::connect(server.addr()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(&command(&["MONITOR"])).expect("it is taken");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("+OK"));
    act();
    server.call(&["ECHO", "the end"]);
    let lines = lines.take_while(|line| !line.contains("the end")).filter(|line| line.contains(what));
    // +1700000000.000000 [0 127.0.0.1:50000] "GET" "k"
    lines.filter_map(|line| Some(line.split([' ', ']']).nth(2)?.to_owned())).collect()
}

#[test]
fn many_clients_have_few_connections_for_reads_and_writes() {
    let _alone = alone();
    let source = server();
    let served = Served::sharing(&source.url(), 2);
    let mut clients: Vec<Client> = (0..12).map(|_| let_in(&served)).collect();
    let shared = askers(&source, "\"APPEND\"", || {
        for _ in 0..5 {
            clients.iter_mut().for_each(|client| client.send(&command(&["APPEND", "k", "x"])));
            clients.iter_mut().for_each(|client| assert!(client.reply().starts_with(':')));
        }
    });
    assert_eq!(shared.len(), 2, "{shared:?}");
    // What has to do with the connection is each client's own affair.
    let own = askers(&source, "\"ECHO\" \"own", || {
        clients.iter_mut().for_each(|client| client.ask(&["ECHO", "own"], "$3\r\nown\r\n"));
    });
    assert_eq!((own.len(), own.intersection(&shared).count()), (12, 0), "{own:?}");
    clients[0].ask(&["STRLEN", "k"], ":60\r\n");
    // A client that has changed what commands do on its connection stays on it.
    let own = askers(&source, "\"own", || clients[0].ask(&["ECHO", "own"], "$3\r\nown\r\n"));
    for is_alone in [false, true] {
        let read = || clients[0].ask(&["GETRANGE", "k", "0", "0"], "$1\r\nx\r\n");
        let asker = askers(&source, "\"GETRANGE\"", read);
        assert_eq!((asker == own, shared.is_superset(&asker)), (is_alone, !is_alone), "{asker:?}");
        clients[0].ask(&["CLIENT", "NO-EVICT", "on"], "+OK\r\n");
    }
}

#[test]
fn replies_are_those_of_the_server_turn_by_turn() {
    let _alone = alone();
    let lines = "PING|SET k v|GET k|GET missing|INCR k|MSET a 1 b 2|MGET a x b|MULTI|SET k 2|GET k|EXEC|GET \
        k|WATCH k|GET k|SET k 3\
                 |MULTI|GET k|EXEC|GET k|RPUSH l 1 2|BLPOP l 1|LRANGE l 0 -1|SELECT 3|SET k other|GET \
                 k|SELECT 0|GET k\
                 |EVAL return{1} 0|GET k|CLIENT SETNAME me|GET k|CLIENT GETNAME|HELLO 3|HSET h f v|HGETALL \
                 h|CLIENT GETNAME|GET missing\
                 |HELLO 2|HGETALL h|RESET|GET k|GET|NOSUCH|SET k v EX 0|MULTI|SET k 4|DISCARD|GET \
                 k|SUBSCRIBE c|UNSUBSCRIBE c|GET k\
                 |PUBLISH c x|XADD s 1-1 f v|XREAD COUNT 1 STREAMS s 0|OBJECT ENCODING k|SCAN 0 MATCH none \
                 COUNT 100|DBSIZE|WAIT 0 0";
    let (direct, behind) = (server(), server());
    let served = Served::sharing(&behind.url(), 1);
    let direct = Client::to(direct.addr().parse().expect("an address"));
    are_answered_alike(lines, direct, served.client());
}

/// Both get the same reply to each of these commands, one after the other.
pub fn are_answered_alike(lines: &str, mut one: Client, mut other: Client) {
    for line in lines.split('|') {
        let request = command(&line.split(' ').collect::<Vec<_>>());
        one.send(&request);
        other.send(&request);
        // What HELLO reports has the number of the connection in it.
        let (expected, found) = (one.reply(), other.reply());
        assert!(found == expected || line.starts_with("HELLO"), "{line}: {expected:?}, {found:?}");
    }
}

#[test]
fn what_is_sent_at_once_is_carried_out_in_its_order() {
    let _alone = alone();
    let source = server();
    are_carried_out_in_order(&Served::sharing(&source.url(), 1));
}

/// Clients send many requests at once, and get the replies that they have in this order.
pub fn are_carried_out_in_order(served: &Served) {
    let mut clients: Vec<Client> = (0..4).map(|_| let_in(served)).collect();
    let lines = "SET K 1|INCR K|MULTI|INCR K|INCR K|EXEC|GET K|ECHO x|DEL K|RPUSH K a|BLPOP K 1|EXISTS K";
    let expected = "+OK\r\n:2\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:3\r\n:4\r\n\
         $1\r\n4\r\n$1\r\nx\r\n:1\r\n:1\r\n*2\r\n$2\r\nKN\r\n\
         $1\r\na\r\n:0\r\n";
    for turn in 0..50 {
        for (number, client) in clients.iter_mut().enumerate() {
            let lines = lines.replace('K', &format!("k{number}"));
            let requests = lines.split('|').map(|line| command(&line.split(' ').collect::<Vec<_>>()));
            let requests = requests.collect::<Vec<_>>().concat();
            // In pieces that end anywhere.
            let (first, second) = requests.split_at((turn * 7 + number) % requests.len());
            client.send(first);
            client.send(second);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            client.expect(expected.replace("KN", &format!("k{number}")).as_bytes());
        }
    }
}

#[test]
fn users_have_their_own_rights() {
    let _alone = alone();
    let builder = Server::builder(Engine::Valkey81).user_acl("reader on >pw ~r:* +get +hello").start();
    let source = builder.expect("a server");
    let served = Served::sharing(&source.url(), 1);
    have_their_own_rights(&served, || {
        source.call(&["CONFIG", "SET", "requirepass", "sesame"]);
    });
}

/// `close` has all servers want the password `sesame`, where there is a user `reader` with `pw`.
pub fn have_their_own_rights(served: &Served, close: impl FnOnce()) {
    let (mut anybody, mut reader) = (let_in(served), served.client());
    reader.ask(&["AUTH", "reader", "pw"], "+OK\r\n");
    for _ in 0..3 {
        anybody.ask(&["SET", "k", "v"], "+OK\r\n");
        reader.ask(&["GET", "r:1"], "$-1\r\n");
        reader.send(&command(&["GET", "k"]));
        assert!(reader.reply().starts_with("-NOPERM"));
        anybody.ask(&["GET", "k"], "$1\r\nv\r\n");
    }
    // A shared connection that was let in admits nobody who would not be let in now.
    close();
    anybody.ask(&["GET", "k"], "$1\r\nv\r\n");
    let mut late = served.client();
    for _ in 0..3 {
        late.ask(&["GET", "k"], "-NOAUTH Authentication required.\r\n");
    }
    late.ask(&["RESET"], "+RESET\r\n");
    late.ask(&["GET", "k"], "-NOAUTH Authentication required.\r\n");
    late.ask(&["AUTH", "sesame"], "+OK\r\n");
    late.ask(&["GET", "k"], "$1\r\nv\r\n");
    late.ask(&["RESET"], "+RESET\r\n");
    late.ask(&["GET", "k"], "-NOAUTH Authentication required.\r\n");
}

/// Redis 7.0 logs in before it comes to the word that it refuses.
#[test]
fn a_user_who_was_logged_in_by_a_refused_hello_has_no_other_rights() {
    let _alone = alone();
    let source = Server::builder(Engine::Redis70).user_acl("reader on >pw ~r:* +get +hello").start();
    let source = source.expect("a server");
    logs_in_by_a_refused_hello(&Served::sharing(&source.url(), 1), ["r:1", "k"], || {
        source.call(&["CONFIG", "SET", "requirepass", "sesame"]);
    });
}

/// `close` has all servers want a password, where there is a user `reader` with `pw`. The keys, of which that
/// user may read the first, are at one node: over a shared connection to another one nobody asks.
pub fn logs_in_by_a_refused_hello(served: &Served, [its, secret]: [&str; 2], close: impl FnOnce()) {
    let mut anybody = let_in(served);
    anybody.ask(&["SET", secret, "v"], "+OK\r\n");
    anybody.ask(&["GET", secret], "$1\r\nv\r\n");
    close();
    for rest in [&["NONSENSE"][..], &["SETNAME", "a b"]] {
        let mut reader = served.client();
        reader.send(&command(&[&["HELLO", "3", "AUTH", "reader", "pw"], rest].concat()));
        assert!(reader.reply().starts_with("-ERR"), "it is refused");
        reader.send(&command(&["GET", its]));
        reader.reply();
        reader.send(&command(&["GET", secret]));
        assert!(reader.reply().starts_with("-NO"), "others have its rights");
    }
}

#[test]
fn clients_keep_to_their_own_connections_where_no_other_can_be_opened() {
    let _alone = alone();
    let source = server();
    keep_to_their_own(&Served::sharing(&source.url(), 2), "k", &source);
}

/// Clients of a server that takes no more connections than there are lose nothing.
pub fn keep_to_their_own(served: &Served, key: &str, server: &Server) {
    let mut clients: Vec<Client> = (0..6).map(|_| served.client()).collect();
    clients.iter_mut().for_each(|client| client.ask(&["EXISTS", key], ":0\r\n"));
    let connected = server.call(&["INFO", "clients"]);
    let redis::Value::BulkString(info) = connected else { panic!("no text") };
    let info = String::from_utf8(info).expect("text");
    let connected = info.lines().find_map(|line| line.strip_prefix("connected_clients:")).expect("a number");
    let mut config = server.connection();
    let mut set = |clients: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxclients").arg(clients).exec(&mut config).expect("set");
    };
    // With the connection that sets it.
    set(connected);
    for number in 1..=3 {
        for client in &mut clients {
            client.send(&[command(&["APPEND", key, "x"]), command(&["STRLEN", key])].concat());
        }
        for client in &mut clients {
            let appended = client.reply();
            assert!(appended.starts_with(':'), "round {number}: {appended}");
            assert!(client.reply().starts_with(':'));
        }
    }
    clients[0].ask(&["STRLEN", key], ":18\r\n");
    set("10000");
}

#[test]
fn wait_waits_for_what_was_written_on_a_shared_connection() {
    let _alone = alone();
    let (source, replica) = (server(), server());
    replica.call(&["REPLICAOF", "127.0.0.1", &source.port().to_string()]);
    let served = Served::sharing(&source.url(), 1);
    let mut client = let_in(&served);
    wait_until("the replica is there", || {
        client.send(&command(&["WAIT", "1", "100"]));
        client.reply() == ":1\r\n"
    });
    replica.suspend().expect("suspended");
    let shared = askers(&source, "\"SET\"", || client.ask(&["SET", "k", "1"], "+OK\r\n"));
    client.ask(&["WAIT", "1", "300"], ":0\r\n");
    client.ask(&["SET", "k", "2"], "+OK\r\n");
    replica.resume().expect("resumed");
    client.ask(&["WAIT", "1", "20000"], ":1\r\n");
    let own = askers(&source, "\"WAIT\"", || client.ask(&["WAIT", "0", "0"], ":1\r\n"));
    assert!(shared.is_disjoint(&own), "{shared:?} {own:?}");
}

#[test]
fn a_client_that_does_not_read_is_let_go_and_others_go_on() {
    if in_own_process("sharing::a_client_that_does_not_read_is_let_go_and_others_go_on") {
        return;
    }
    let source = server();
    let served = Served::sharing(&source.url(), 1);
    let (mut other, mut slow) = (let_in(&served), let_in(&served));
    other.ask(&["SETRANGE", "k", "99999", "x"], ":100000\r\n");
    let before = resident_bytes();
    // It is asked for 400 MB. All of that is under way before anybody looks, and fits into the buffers of the
    // system. It may be let go before all is sent.
    drop(slow.0.write_all(&command(&["GET", "k"]).repeat(4_000)));
    for _ in 0..200 {
        other.ask(&["STRLEN", "k"], ":100000\r\n");
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < POOLED_BYTES_MAX, "{grown} bytes more");
    // Its connection is ended although it still reads nothing: the next byte is refused.
    wait_until("the client is let go", || slow.0.write_all(b"\n").is_err());
    // It ends before all has come.
    let got = slow.rest().len();
    assert!(got < 4_000 * 100_000, "{got} bytes");
    other.ask(&["STRLEN", "k"], ":100000\r\n");
}

#[test]
fn a_server_that_does_not_read_stops_clients() {
    if in_own_process("sharing::a_server_that_does_not_read_stops_clients") {
        return;
    }
    let source = server();
    let served = Served::sharing(&source.url(), 1);
    let mut clients: Vec<Client> = (0..8).map(|_| let_in(&served)).collect();
    let request = command(&["SET", "k", &"v".repeat(10_000)]);
    let before = resident_bytes();
    source.suspend().expect("suspended");
    let total = AtomicU64::new(0);
    let sent: Vec<usize> = thread::scope(|scope| {
        let total = &total;
        let request = &request;
        let filling = clients.iter_mut().map(|client| {
            scope.spawn(move || {
                client.0.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
                let mut sent = 0;
                while total.load(Ordering::Relaxed) < 400 << 20 {
                    let Ok(n) = client.0.write(&request[sent % request.len()..]) else { break };
                    sent += n;
                    total.fetch_add(n as u64, Ordering::Relaxed);
                }
                client.0.set_write_timeout(None).expect("no timeout");
                sent
            })
        });
        let filling: Vec<_> = filling.collect();
        filling.into_iter().map(|one| one.join().expect("it has sent")).collect()
    });
    let grown = resident_bytes().saturating_sub(before);
    source.resume().expect("resumed");
    assert!(total.into_inner() < 400 << 20, "all was taken in");
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more");
    for (client, sent) in clients.iter_mut().zip(sent) {
        let mut writer = Client(client.0.try_clone().expect("a second handle"));
        let rest = request[sent % request.len()..].to_vec();
        let is_cut = !sent.is_multiple_of(request.len());
        let writing = thread::spawn(move || {
            if is_cut {
                writer.send(&rest)
            }
        });
        client.expect(&b"+OK\r\n".repeat(sent.div_ceil(request.len())));
        writing.join().expect("the rest is sent");
    }
}

/// Clients add to counters, each to one of its own, until `stop` is set; those who are cut off come again.
/// Returns for each how often that was acknowledged, and how often nobody knows.
pub fn count(connect: impl Fn() -> Client + Sync, clients: usize, stop: &AtomicBool) -> Vec<(u64, u64)> {
    thread::scope(|scope| {
        let connect = &connect;
        let counting = (0..clients).map(|number| {
            scope.spawn(move || {
                let (mut client, key) = (connect(), format!("n{number}"));
                let (mut sure, mut unsure) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let mut byte = [0];
                    let request = command(&["INCR", &key]);
                    let is_answered = client.0.write_all(&request).is_ok()
                        && std::io::Read::read(&mut client.0, &mut byte).is_ok_and(|read| read == 1);
                    if is_answered {
                        assert_eq!(byte[0], b':', "{}", client.line());
                        client.line();
                        sure += 1;
                    } else {
                        unsure += 1;
                        client = connect();
                    }
                }
                (sure, unsure)
            })
        });
        let counting: Vec<_> = counting.collect();
        counting.into_iter().map(|one| one.join().expect("it counted")).collect()
    })
}

#[test]
fn nothing_is_done_twice_when_shared_connections_break() {
    let _alone = alone();
    let source = server();
    let served = Served::sharing(&source.url(), 2);
    let stop = AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        let counting = scope.spawn(|| count(|| served.client(), 8, &stop));
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(50));
            source.call(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        stop.store(true, Ordering::Relaxed);
        counting.join().expect("counted")
    });
    are_counted_once(&mut served.client(), counted);
}

/// Somebody was cut off, and nothing was lost or done twice.
pub fn are_counted_once(client: &mut Client, counted: Vec<(u64, u64)>) {
    assert!(cuts_of(client, counted) > 0, "nobody was cut off");
}

/// Each counter is what was acknowledged, and perhaps what nobody knows of: how often that was.
fn cuts_of(client: &mut Client, counted: Vec<(u64, u64)>) -> u64 {
    let mut cuts = 0;
    for (number, (sure, unsure)) in counted.into_iter().enumerate() {
        let found: u64 = client.asks(&["GET", &format!("n{number}")]).trim().parse().expect("a number");
        assert!(
            (sure..=sure + unsure).contains(&found),
            "{number}: {sure} and perhaps {unsure}, but {found}"
        );
        cuts += unsure;
    }
    cuts
}

#[test]
fn keys_begin_to_move_when_nothing_is_under_way() {
    let _alone = alone();
    for _ in 0..5 {
        begin_to_move_at_rest(&server(), &server());
    }
}

/// Nobody is cut off, and nothing is lost, when the front begins to move keys. (A client that a busy machine
/// does not answer within a second is cut off. Then it is tried again, to and fro.)
pub fn begin_to_move_at_rest(source: &impl AsUpstream, target: &impl AsUpstream) {
    let is_nobody_cut_off = |number: usize| match number % 2 {
        0 => cut_off_when_keys_begin_to_move(source, target) == 0,
        _ => cut_off_when_keys_begin_to_move(target, source) == 0,
    };
    assert!((0..5).any(is_nobody_cut_off), "clients were cut off each time");
}

/// How many clients are. Nothing is lost.
fn cut_off_when_keys_begin_to_move(source: &impl AsUpstream, target: &impl AsUpstream) -> u64 {
    let between = Between::sharing(source, target);
    let stop = AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        let counting = scope.spawn(|| count(|| between.client(), 8, &stop));
        thread::sleep(Duration::from_millis(100));
        between.start().expect("it begins");
        wait_until("all keys have moved", || {
            between.stand().phase == whimbrel_front::migrate::phase::Phase::Done
        });
        stop.store(true, Ordering::Relaxed);
        counting.join().expect("counted")
    });
    let mut client = between.client();
    let cuts = cuts_of(&mut client, counted);
    if cuts > 0 {
        // Nothing is in the way of another try.
        client.ask(&["FLUSHDB"], "+OK\r\n");
    }
    cuts
}

#[test]
fn frames_that_a_server_refuses_end_nobody_elses_connection() {
    let _alone = alone();
    let source = Server::builder(Engine::Valkey91).start().expect("a server");
    let served = Served::sharing(&source.url(), 1);
    let mut other = let_in(&served);
    other.ask(&["SET", "k", "v"], "+OK\r\n");
    let frames: [&[u8]; 5] = [
        b"*+2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*02\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$01\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\nkxx",
    ];
    for frame in frames {
        let mut bad = let_in(&served);
        bad.send(frame);
        assert!(bad.rest().starts_with(b"-ERR Protocol error: invalid "), "{}", frame.escape_ascii());
        other.ask(&["GET", "k"], "$1\r\nv\r\n");
    }
    let mut browser = let_in(&served);
    browser.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k other\r\n");
    assert_eq!(browser.rest(), b"");
    other.ask(&["GET", "k"], "$1\r\nv\r\n");
}
