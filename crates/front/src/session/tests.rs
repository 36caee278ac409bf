//! Sessions without sockets: bytes go in, in every division, and the same bytes come out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side as EndpointSide;
use whimbrel_engine::link::LinkOptions;
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::payload::Dialect;
use whimbrel_wire::request::{Request, RequestLimits, RequestScanner};
use whimbrel_wire::value::Value;

use super::link::{Kind, Link};
use super::moving::{Moving, Settled};
use super::state::{ANSWERS, ARRIVAL, ARRIVALS, Action, FAREWELL, Life, Mode, Session, Task};
use crate::command::keys::CommandTable;
use crate::command::plan::Tables;
use crate::migrate::direction::Side;
use crate::migrate::locks::Moved;
use crate::migrate::state::{MigrationState, Moves, Servers};
use crate::pipe::frame::as_array;
use crate::upstream::Upstream;

/// A server, or a cluster, that answers in memory.
struct Server {
    inbox: Vec<u8>,
    scanner: RequestScanner,
    /// All requests, as words.
    asked: Vec<Vec<String>>,
    /// What has not been sent to the session yet, each reply by itself.
    replies: Vec<u8>,
}

impl Server {
    fn new() -> Server {
        let scanner = RequestScanner::new(RequestLimits::default());
        Server { inbox: Vec::new(), scanner, asked: Vec::new(), replies: Vec::new() }
    }

    fn read(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        while let Ok(Request::Array(len)) = self.scanner.scan(&self.inbox) {
            let word = |range: &std::ops::Range<usize>| text(&self.inbox[range.clone()]);
            let words: Vec<String> = self.scanner.args().iter().map(word).collect();
            self.replies.extend_from_slice(&answer(&words));
            self.asked.push(words);
            self.inbox.drain(..len);
            self.scanner.next();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn answer(words: &[String]) -> Vec<u8> {
    match words[0].to_ascii_uppercase().as_str() {
        "GET" => b"$5\r\nhello\r\n".to_vec(),
        "LRANGE" => b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n".to_vec(),
        "SUBSCRIBE" => words[1..]
            .iter()
            .flat_map(|name| {
                format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{name}\r\n:1\r\n", name.len()).into_bytes()
            })
            .collect(),
        "EXEC" => b"*1\r\n+OK\r\n".to_vec(),
        "WHIMBREL-REFUSED" => format!("-ERR unknown command: {}\r\n", words[1..].join(" ")).into_bytes(),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// What came of a session.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    got: String,
    asked: Vec<Vec<String>>,
    life: &'static str,
}

/// Moves everything between a session and its server, `step` bytes of replies at a time.
fn settle(session: &mut Session, server: &mut Server, got: &mut Vec<u8>, step: usize) {
    loop {
        let mut moved = session.take();
        if let Link::Up(wire) = &mut session.link {
            while wire.kind == Kind::Cluster && wire.to.first().is_some() {
                // The words are where they were said to be, and nothing looks for them again.
                let head = wire.to.first().expect("there is one");
                let words: Vec<Vec<u8>> = wire.to.first_words().map(<[u8]>::to_vec).collect();
                let request = wire.to.take_first();
                if head.whole && head.words_left == 0 && words.len() == head.words {
                    assert!(
                        words.is_empty() || !request.starts_with(b"*") || request[..] == as_array(&words)
                    );
                }
                server.read(&request);
                moved = true;
            }
            if wire.kind != Kind::Cluster && !wire.to.is_empty() {
                let bytes = wire.to.bytes_mut().split();
                server.read(&bytes);
                moved = true;
            }
            let bytes = step.min(server.replies.len());
            if wire.kind == Kind::Cluster {
                while let Some(len) = first_reply(&server.replies) {
                    let reply: Vec<u8> = server.replies.drain(..len).collect();
                    // Its first bytes come by themselves.
                    let (part, rest) = reply.split_at(step.min(reply.len() - 1));
                    wire.from.add_part(part);
                    wire.from.add(rest, reply[0]);
                    moved = true;
                }
            } else if bytes > 0 {
                wire.from.bytes_mut().extend_from_slice(&server.replies[..bytes]);
                server.replies.drain(..bytes);
                moved = true;
            }
        }
        moved |= session.take_replies().expect("the server speaks RESP");
        got.extend_from_slice(&session.to_client.split());
        if !moved {
            return;
        }
    }
}

fn first_reply(bytes: &[u8]) -> Option<usize> {
    use whimbrel_wire::boundary::{Boundary, Passed};
    match Boundary::default().pass(bytes) {
        Ok(Passed::Frame { bytes, .. }) => Some(bytes),
        _ => None,
    }
}

/// What comes of `input` in these pieces.
fn run(mut session: Session, kind: Kind, pieces: &[&[u8]], step: usize) -> Seen {
    let (mut server, mut got) = (Server::new(), Vec::new());
    session.connected(kind);
    for piece in pieces {
        session.inbox.extend_from_slice(piece);
        settle(&mut session, &mut server, &mut got, step);
    }
    session.client_closed();
    settle(&mut session, &mut server, &mut got, step);
    let life = match session.life {
        Life::Open => "open",
        Life::Closing => "closing",
        Life::Leaving { .. } if session.is_over() => "over",
        Life::Leaving { .. } => "leaving",
    };
    Seen { got: text(&got), asked: server.asked, life }
}

fn forwarding() -> Mode {
    Mode::Forwarding
}

fn noting() -> Mode {
    Mode::Noting(Box::default())
}

fn requests(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| as_array(&line.split(' ').collect::<Vec<_>>())).collect()
}

const KINDS: [Kind; 2] = [Kind::Own, Kind::Cluster];

#[test]
fn any_division_of_requests_and_replies_gives_the_same() {
    let input = [
        requests(&["GET k", "MONITOR", "LRANGE l 0 -1"]),
        b"SET 'a b' \"\\x41\"\r\n\r\n*0\r\n".to_vec(),
        requests(&["MULTI", "SET k v", "EXEC", "CLIENT REPLY OFF", "GET k"]),
        b"*x\r\n".to_vec(),
    ]
    .concat();
    let expected = Seen {
        got: String::new(),
        asked: ["GET k", "LRANGE l 0 -1", "SET a_b A", "MULTI", "SET k v", "EXEC", "GET k"]
            .iter()
            .map(|line| line.split(' ').map(|word| word.replace('_', " ")).collect())
            .collect(),
        life: "over",
    };
    for mode in [forwarding, noting] {
        for kind in KINDS {
            let session = || Session::new(mode(), None, kind == Kind::Cluster);
            let whole = run(session(), kind, &[&input], usize::MAX);
            assert_eq!((&whole.asked, whole.life), (&expected.asked, expected.life));
            let errors: Vec<&str> = whole.got.lines().filter(|line| line.starts_with('-')).collect();
            assert_eq!(errors.len(), 3, "in their turn: {}", whole.got);
            assert!(whole.got.starts_with("$5\r\nhello\r\n-ERR whimbrel front refuses MONITOR"));
            assert!(whole.got.ends_with("-ERR Protocol error: invalid multibulk length\r\n"));
            for cut in 0..=input.len() {
                let (first, second) = input.split_at(cut);
                let step = 1 + cut % 7;
                assert_eq!(run(session(), kind, &[first, second], step), whole, "cut at {cut}, {kind:?}");
            }
            for step in [1, 2, 3, 5, 11] {
                let pieces: Vec<&[u8]> = input.chunks(step).collect();
                assert_eq!(run(session(), kind, &pieces, step), whole, "in steps of {step}, {kind:?}");
            }
        }
    }
}

#[test]
fn long_requests_are_passed_on_while_they_arrive() {
    let value = "v".repeat(300 << 10);
    let lines = [format!("SET k {value}"), "GET k".to_owned()];
    let input = requests(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    for kind in KINDS {
        for step in [1_000, 33_000, 100_000] {
            let session = Session::new(forwarding(), None, kind == Kind::Cluster);
            let pieces: Vec<&[u8]> = input.chunks(step).collect();
            let seen = run(session, kind, &pieces, usize::MAX);
            assert_eq!(seen.got, "+OK\r\n$5\r\nhello\r\n");
            assert_eq!(
                seen.asked,
                [
                    vec!["SET".to_owned(), "k".to_owned(), value.clone()],
                    vec!["GET".to_owned(), "k".to_owned()]
                ]
            );
        }
    }
}

#[test]
fn after_a_subscription_only_the_server_knows_what_comes_when() {
    for kind in KINDS {
        let session = Session::new(forwarding(), None, kind == Kind::Cluster);
        let input = requests(&["SUBSCRIBE a b", "PING", "MONITOR"]);
        let seen = run(session, kind, &[&input], 3);
        assert_eq!(seen.got.matches("subscribe").count(), 2);
        assert!(seen.got.contains("-ERR unknown command: whimbrel front refuses MONITOR"), "{}", seen.got);
        assert_eq!(seen.asked.len(), 3);
    }
}

#[test]
fn a_client_that_takes_in_nothing_is_not_read_from() {
    let mut session = Session::new(forwarding(), None, false);
    session.connected(Kind::Own);
    session.to_client.extend_from_slice(&vec![0; crate::pipe::io::OUT_BYTES_MAX]);
    session.inbox.extend_from_slice(&requests(&["GET k"]));
    assert!(!session.take() && session.inbox.len() > 5);
    session.to_client.clear();
    assert!(session.take() && session.inbox.is_empty());
}

#[test]
fn a_client_that_leaves_has_a_second_for_what_is_due() {
    let mut session = Session::new(forwarding(), None, false);
    session.connected(Kind::Own);
    session.inbox.extend_from_slice(&requests(&["GET k"]));
    assert!(session.take());
    session.client_closed();
    assert!(session.take() && session.is_shut() && !session.is_over());
    let begin = session.now;
    assert_eq!(session.deadline(), Some(begin + FAREWELL));
    session.tick(begin + FAREWELL / 2);
    session.written();
    session.tick(begin + FAREWELL);
    assert!(!session.is_over(), "it has taken something in meanwhile");
    session.tick(begin + FAREWELL * 2);
    assert!(session.is_over());
}

#[test]
fn a_session_of_a_front_that_ends_answers_what_has_arrived() {
    let mut session = Session::new(forwarding(), None, false);
    let (mut server, mut got) = (Server::new(), Vec::new());
    session.connected(Kind::Own);
    let begin = session.now;
    assert!(!session.retire(), "a request may have arrived that was not read yet");
    assert_eq!(session.deadline(), Some(begin + ARRIVAL));
    let request = requests(&["GET k"]);
    session.inbox.extend_from_slice(&request[..request.len() / 2]);
    session.tick(begin + ARRIVAL);
    assert!(!session.take() && !session.retire(), "half of a request has arrived");
    assert_eq!(session.deadline(), Some(begin + ARRIVAL + ARRIVALS));
    session.inbox.extend_from_slice(&request[request.len() / 2..]);
    assert!(session.take() && session.retire() && !session.retire());
    assert!(!session.wants_bytes() && !session.is_over() && session.is_owed(), "its answer is due");
    session.tick(session.now + ANSWERS / 2);
    settle(&mut session, &mut server, &mut got, 4);
    assert_eq!(server.asked.len(), 1);
    assert!(session.is_over() && !session.is_shut() && session.may_send() && !got.is_empty());
}

#[test]
fn no_client_keeps_a_front_that_ends() {
    // A client that sends half of a request, and a client that waits for something to happen.
    for half in [true, false] {
        let mut session = Session::new(forwarding(), None, false);
        session.connected(Kind::Own);
        let request = requests(&["BLPOP k 0"]);
        session.inbox.extend_from_slice(if half { &request[..9] } else { &request });
        session.take();
        assert!(!session.retire());
        session.tick(session.now + ARRIVAL);
        assert_eq!(session.retire(), !half);
        session.tick(session.now + ARRIVALS);
        assert_eq!(session.retire(), half);
        assert_eq!(session.is_over(), half, "nothing is due to the first");
        session.tick(session.now + ANSWERS);
        assert!(session.is_over());
    }
}

#[test]
fn what_a_client_that_leaves_takes_in_is_not_cut_by_the_end_of_the_front() {
    let mut session = Session::new(forwarding(), None, false);
    session.connected(Kind::Own);
    session.inbox.extend_from_slice(&requests(&["GET k"]));
    session.take();
    session.client_closed();
    assert!(session.take(), "it leaves");
    session.tick(session.now + FAREWELL / 2);
    session.written();
    assert!(!session.retire() && !session.is_over());
    session.tick(session.now + FAREWELL);
    session.written();
    assert!(!session.is_over(), "it takes something in");
    session.tick(session.now + ANSWERS);
    assert!(session.is_over());
}

#[test]
fn answers_to_a_client_that_has_subscribed_are_waited_for() {
    let mut session = Session::new(forwarding(), None, false);
    session.connected(Kind::Own);
    session.is_subscribed = true;
    assert!(!session.retire());
    session.tick(session.now + ARRIVAL);
    assert!(session.retire() && session.is_owed() && !session.is_over());
    session.tick(session.now + ANSWERS);
    assert!(session.is_over());
}

#[test]
fn a_session_comes_to_rest_when_nothing_of_it_is_open() {
    let mut session = Session::new(noting(), None, false);
    let (mut server, mut got) = (Server::new(), Vec::new());
    session.connected(Kind::Own);
    session.inbox.extend_from_slice(&requests(&["WATCH k", "MULTI", "GET k"]));
    settle(&mut session, &mut server, &mut got, 4);
    session.called();
    assert!(!session.is_quiet());
    session.inbox.extend_from_slice(&requests(&["EXEC"]));
    settle(&mut session, &mut server, &mut got, 4);
    session.inbox.extend_from_slice(&requests(&["GET later"]));
    settle(&mut session, &mut server, &mut got, 4);
    assert!(session.is_quiet());
    assert_eq!(server.asked.last().map(|words| words[0].as_str()), Some("EXEC"));
    // What has not been taken is looked at again.
    let (migration, _moves) = migration();
    migration.set_done();
    session.go_over(Moving::new(migration));
    assert!(!session.take() && !session.is_quiet());
    session.connected(Kind::Own);
    settle(&mut session, &mut server, &mut got, 4);
    assert_eq!(server.asked.last().map(|words| words[1].as_str()), Some("later"));
}

/// Of a server with `GET`, `SET` and `MGET`.
fn table() -> CommandTable {
    let entry = |name: &str, arity: i64, flag: &str, last: i64| {
        format!("*6\r\n${}\r\n{name}\r\n:{arity}\r\n*1\r\n+{flag}\r\n:1\r\n:{last}\r\n:1\r\n", name.len())
    };
    let entries =
        [entry("get", 2, "readonly", 1), entry("set", -3, "write", 1), entry("mget", -2, "readonly", -1)];
    let reply = format!("*{}\r\n{}", entries.len(), entries.concat());
    CommandTable::of(&Value::parse(&Bytes::from(reply)).expect("RESP")).expect("a table")
}

fn migration() -> (Arc<MigrationState>, Moves) {
    let link = LinkOptions::default();
    let upstream = |side, text| {
        let endpoint = Arc::new(Endpoint::parse(side, text).expect("an address"));
        Upstream::server(&endpoint, link)
    };
    let can = Capabilities {
        pexpiretime: true,
        hash_field_ttl: false,
        functions: true,
        memory_usage: true,
        dump: true,
        restore: true,
        get: true,
        type_name: true,
        time: true,
        set_pxat: true,
        many_elements: true,
        series: false,
        query_bytes_max: None,
        payload_version_max: None,
    };
    let servers = Servers {
        source: upstream(EndpointSide::Source, "127.0.0.1:1"),
        target: upstream(EndpointSide::Target, "127.0.0.1:2"),
        link,
        source_can: can,
        target_can: can,
        dialects: (Dialect::Redis, Dialect::Redis),
        strings: true,
        tables: Tables { source: table(), target: table(), scripts_declare_keys: false },
        keys: 100_000,
        other_database: None,
        source_run_id: None,
    };
    MigrationState::new(servers, 0, Duration::from_secs(1), false)
}

/// What the session wants done.
fn actions(session: &mut Session) -> Vec<String> {
    let described = |action| match action {
        Action::SwitchSide { side, parks, .. } => format!("turn to {side:?}, parks: {parks}"),
        Action::ForgetParked => "forget".to_owned(),
        Action::Share => "share".to_owned(),
        Action::Unshare => "unshare".to_owned(),
        Action::Wait(Task::Pull(keys)) => {
            format!("pull {:?}", keys.iter().map(|key| text(key)).collect::<Vec<_>>())
        }
        Action::Wait(_) => "wait".to_owned(),
    };
    session.actions.drain(..).map(described).collect()
}

#[test]
fn while_keys_move_a_request_waits_for_its_keys_and_those_after_it_with_it() {
    for kind in KINDS {
        let (migration, _moves) = migration();
        migration.note_moved(b"home");
        let mode = Mode::Moving(Box::new(Moving::new(migration)));
        let mut session = Session::new(mode, None, true);
        let (mut source, mut target, mut got) = (Server::new(), Server::new(), Vec::new());
        session.connected(kind);
        session.inbox.extend_from_slice(&requests(&["SET home 1", "SET away 2", "GET home"]));
        settle(&mut session, &mut target, &mut got, 2);
        assert_eq!(actions(&mut session), [r#"pull ["away"]"#]);
        assert_eq!((target.asked.len(), text(&got).as_str()), (1, "+OK\r\n"));
        session.settled(Settled::Send);
        settle(&mut session, &mut target, &mut got, 2);
        assert_eq!(text(&got), "+OK\r\n+OK\r\n$5\r\nhello\r\n");
        assert_eq!((target.asked[1][1].as_str(), target.asked.len()), ("away", 3));

        // A read goes to the source, where its key certainly is; and back for a key that has moved.
        got.clear();
        session.inbox.extend_from_slice(&requests(&["GET there", "GET home"]));
        settle(&mut session, &mut target, &mut got, 2);
        assert_eq!(actions(&mut session), ["turn to Source, parks: true"]);
        session.connected(kind);
        settle(&mut session, &mut source, &mut got, 2);
        assert_eq!(actions(&mut session), ["turn to Target, parks: true"]);
        session.connected(kind);
        settle(&mut session, &mut target, &mut got, 2);
        assert_eq!(source.asked, [["GET", "there"]]);
        assert_eq!((target.asked.len(), text(&got).as_str()), (4, "$5\r\nhello\r\n$5\r\nhello\r\n"));

        // What cannot be moved in time is answered with an error in its turn.
        got.clear();
        session.inbox.extend_from_slice(&requests(&["GET home", "SET other 1", "GET home"]));
        settle(&mut session, &mut target, &mut got, 2);
        assert_eq!(actions(&mut session), [r#"pull ["other"]"#]);
        session.settled(Settled::Refuse(b"-TRYAGAIN\r\n".to_vec()));
        settle(&mut session, &mut target, &mut got, 2);
        assert_eq!(text(&got), "$5\r\nhello\r\n-TRYAGAIN\r\n$5\r\nhello\r\n");
    }
}

/// A move may end between the moment in which a reader asks whether the keys may have arrived and the one in
/// which it holds them: too few microseconds for a test of the whole to hit.
#[test]
fn keys_that_arrive_before_a_reader_holds_them_are_not_read_at_the_source() {
    let (migration, _moves) = migration();
    let keys = ["one", "two"].map(Bytes::from);
    assert!(migration.may_forward(&keys));
    drop(migration.lock_for_read(&keys).expect("both are at the source"));
    // The reader has asked; now one of its keys is moved, to the end.
    assert!(migration.may_forward(&keys));
    let (sender, _outcomes) = mpsc::unbounded_channel();
    assert!(migration.locks.take(&keys[1], &sender), "nobody holds it");
    migration.note_arrival(&keys[1]);
    assert!(migration.lock_for_read(&keys).is_none(), "it is held while it moves");
    migration.locks.finish(&keys[1], &Moved::Arrived);
    assert!(migration.lock_for_read(&keys).is_none(), "it has arrived");
    assert!(migration.lock_for_read(&keys[..1]).is_some(), "a reader that got nothing held the other key");
    assert!(migration.locks.take(&keys[0], &sender), "a reader that is gone holds it");
}

#[test]
fn the_end_of_the_source_is_no_end_for_a_client_that_waits_for_nothing_there() {
    let (migration, _moves) = migration();
    let mut session = Session::new(Mode::Moving(Box::new(Moving::new(migration))), None, true);
    let (mut source, mut got) = (Server::new(), Vec::new());
    session.connected(Kind::Own);
    session.inbox.extend_from_slice(&requests(&["GET there"]));
    settle(&mut session, &mut source, &mut got, 9);
    assert_eq!(actions(&mut session), ["turn to Source, parks: true"]);
    session.connected(Kind::Own);
    settle(&mut session, &mut source, &mut got, 9);
    session.server_closed().expect("nothing was half-way");
    assert_eq!(actions(&mut session), ["turn to Target, parks: false"]);
    assert_eq!((session.life, text(&got).as_str()), (Life::Open, "$5\r\nhello\r\n"));
    // At the target it is.
    session.connected(Kind::Own);
    session.server_closed().expect("nothing was half-way");
    assert!(
        session.is_over() && matches!(session.mode, Mode::Moving(ref moving) if moving.at == Side::Target)
    );
}
