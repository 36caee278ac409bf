//! Clients see no difference.

use std::net::SocketAddr;

use fastrand::Rng;
use whimbrel_engine::endpoint::{Endpoint, TlsOptions};
use whimbrel_engine::error::Side;
use whimbrel_lab::{Engine, Server, Tls};

use crate::common::{Client, Served, alone, command, wait_until};

whimbrel_lab::for_each_engine! {
    on every:
        replies_are_those_of_the_server
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        messages_pass_to_subscribers
}

fn server(engine: Engine) -> Server {
    Server::builder(engine).start().expect("a server")
}

fn address(server: &Server) -> SocketAddr {
    server.addr().parse().expect("an address")
}

/// One command of each kind there is, in an order that makes sense. Nothing whose reply depends on time or
/// chance.
fn dialogue() -> Vec<u8> {
    let mut bytes = Vec::new();
    let lines = "PING|PING hello|ECHO there|SET k v|GET k|GET missing|SET k v2 GET|APPEND k more|STRLEN \
        k|GETRANGE k 0 1\
                 |INCR n|INCRBYFLOAT n 1.5|INCR k|MSET a 1 b 2 c 3|MGET a missing b|DEL a missing|EXISTS b \
                 b|TYPE b\
                 |RPUSH l 1 2 3|LRANGE l 0 -1|LPOS l 2|LMPOP 2 none l LEFT COUNT 1|BLPOP l 1|SADD s \
                 x|SMISMEMBER s x y\
                 |ZADD z 1.5 m 2 o|ZRANGE z 0 -1 WITHSCORES|ZSCORE z m|ZADD z NX INCR 1 q|HSET h f v g \
                 w|HGETALL h|HMGET h f x\
                 |XADD st 1-1 f v|XADD st 2-1 f w|XRANGE st - +|XREAD COUNT 1 STREAMS st 0|XGROUP CREATE st \
                 g 0\
                 |XREADGROUP GROUP g c COUNT 1 STREAMS st >|XPENDING st g|SETBIT bits 7 1|BITCOUNT \
                 bits|PFADD hll a b\
                 |PFCOUNT hll|GEOADD geo 13.4 52.5 Berlin|GEOPOS geo Berlin|SORT l DESC|COPY k k2|RENAME k2 \
                 k3|OBJECT ENCODING n\
                 |EXPIREAT k3 9999999999|EXPIRETIME k3|PERSIST k3|DBSIZE|SELECT 3|SET other 1|DBSIZE|SELECT \
                 99|SELECT 0\
                 |MULTI|SET t 1|GET t|LPUSH t x|EXEC|MULTI|NOSUCH|EXEC|MULTI|SET t 2|DISCARD|EXEC|WATCH \
                 t|MULTI|GET t|EXEC\
                 |EVAL return{1,{'a',KEYS[1]},redis.call('GET',KEYS[1])} 1 b|EVALSHA ffff 0|SCAN 0 MATCH \
                 nothing COUNT 1000\
                 |CLIENT SETNAME me|CLIENT GETNAME|CLIENT NO-EVICT on|COMMAND COUNT|CONFIG GET \
                 maxmemory|GET|NOSUCH|NOSUCH a b c\
                 |CLIENT NOSUCH|PUBLISH nobody x|HELLO 3|HGETALL h|ZRANGE z 0 -1 WITHSCORES|ZSCORE z \
                 m|SMEMBERS s|GET missing\
                 |XREAD COUNT 1 STREAMS st 0|CONFIG GET maxmemory-samples|CLIENT GETNAME|SET big |HELLO \
                 4|HELLO 2|HGETALL h|RESET";
    for line in lines.split('|') {
        bytes.extend_from_slice(&command(&line.split(' ').collect::<Vec<_>>()));
    }
    let large = "x".repeat(300_000);
    bytes.extend_from_slice(&command(&["SET", "large", &large]));
    bytes.extend_from_slice(&command(&["GET", "large"]));
    let many: Vec<String> = (0..20_000).map(|i| i.to_string()).collect();
    let many: Vec<&str> = ["RPUSH", "many"].into_iter().chain(many.iter().map(String::as_str)).collect();
    bytes.extend_from_slice(&command(&many));
    bytes.extend_from_slice(&command(&["LRANGE", "many", "0", "-1"]));
    bytes.extend_from_slice(b"*0\r\nSET inline 'a b'\r\n\r\nGET inline\r\n  PING \"\\x41\"  \r\n");
    bytes
}

/// The replies to the dialogue, but for what `HELLO` reports of the connection: its number.
fn replies(to: SocketAddr, random: &mut Rng, step_max: usize) -> String {
    let mut client = Client::to(to);
    let mut reader = Client(client.0.try_clone().expect("a second handle"));
    let bytes = [dialogue(), command(&["ECHO", "the end of it"])].concat();
    let reading = std::thread::spawn(move || {
        let mut found = Vec::new();
        while !found.ends_with(b"\r\nthe end of it\r\n") {
            let mut byte = vec![0; 64 << 10];
            let read = std::io::Read::read(&mut reader.0, &mut byte).expect("a reply");
            assert!(read > 0, "closed after {}", String::from_utf8_lossy(&found));
            found.extend_from_slice(&byte[..read]);
        }
        String::from_utf8(found).expect("text")
    });
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (now, later) = rest.split_at((1 + random.usize(..step_max)).min(rest.len()));
        client.send(now);
        rest = later;
    }
    let text = reading.join().expect("replies");
    let mut shown = String::new();
    let mut after_id = false;
    for line in text.split("\r\n") {
        shown.push_str(if after_id { "a number" } else { line });
        shown.push('\n');
        after_id = line == "id";
    }
    shown
}

fn replies_are_those_of_the_server(engine: Engine) {
    let _alone = alone();
    let (direct, behind) = (server(engine), server(engine));
    let (alone, sharing) = (Served::of(&behind.url()), Served::sharing(&behind.url(), 2));
    let mut random = Rng::with_seed(1);
    for (served, step_max) in
        [(&alone, 1 << 20), (&alone, 5_000), (&alone, 700), (&sharing, 5_000), (&sharing, 700)]
    {
        let expected = replies(address(&direct), &mut random, step_max);
        let found = replies(served.address, &mut random, step_max);
        if found != expected {
            let differs = expected.lines().zip(found.lines()).position(|(a, b)| a != b);
            let show = |text: &str, at: usize| {
                let lines = text.lines().skip(at.saturating_sub(6)).take(10);
                lines.map(|line| format!("  {}\n", &line[..line.len().min(100)])).collect::<String>()
            };
            let at = differs.unwrap_or(0);
            panic!("{engine:?}, line {at}: expected\n{}found\n{}", show(&expected, at), show(&found, at));
        }
        for server in [&direct, &behind] {
            server.call(&["FLUSHALL"]);
        }
    }
}

#[test]
fn own_replies_come_in_their_turn() {
    let _alone = alone();
    let source = server(Engine::Redis70);
    let served = Served::of(&source.url());
    let mut client = served.client();
    let mut reader = Client(client.0.try_clone().expect("a second handle"));
    let mut random = Rng::with_seed(7);
    let refused = "-ERR whimbrel front refuses MONITOR: its output looks like replies: connect to \
        the server itself\r\n";
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    for i in 0..50_000 {
        match random.usize(..10) {
            0 => {
                sent.extend_from_slice(b"*1\r\n$7\r\nmonitor\r\n");
                expected.extend_from_slice(refused.as_bytes());
            }
            1 => {
                sent.extend_from_slice(b"MONITOR\r\n");
                expected.extend_from_slice(refused.as_bytes());
            }
            _ => {
                let text = i.to_string();
                sent.extend_from_slice(&command(&["ECHO", &text]));
                expected.extend_from_slice(format!("${}\r\n{text}\r\n", text.len()).as_bytes());
            }
        }
    }
    let writing = std::thread::spawn(move || client.send(&sent));
    reader.expect(&expected);
    writing.join().expect("all is sent");
}

#[test]
fn long_refused_requests_are_thrown_away() {
    let _alone = alone();
    let source = server(Engine::Redis70);
    let served = Served::of(&source.url());
    let mut client = served.client();
    let long = "x".repeat(1 << 20);
    client.send(&command(&["CLIENT", "TRACKING", &long]));
    client.expect(b"-ERR whimbrel front refuses CLIENT: invalidations cannot be kept exact");
    client.send(&command(&["ECHO", "after"]));
    let expected = b" once keys move to another server: do without CLIENT TRACKING\r\n$5\r\nafter\r\n";
    client.expect(expected);
}

fn messages_pass_to_subscribers(engine: Engine) {
    let _alone = alone();
    let source = server(engine);
    let served = Served::of(&source.url());
    for hello in ["2", "3"] {
        let kind = if hello == "3" { '>' } else { '*' };
        let mut listener = served.client();
        listener.send(&command(&["HELLO", hello]));
        listener.send(&command(&["ECHO", "greeted"]));
        let mut greeting = Vec::new();
        while !greeting.ends_with(b"$7\r\ngreeted\r\n") {
            let mut byte = [0];
            std::io::Read::read_exact(&mut listener.0, &mut byte).expect("a greeting");
            greeting.push(byte[0]);
        }
        listener.send(&command(&["SUBSCRIBE", "a", "b"]));
        let confirmed = |word: &str, channel: &str, n: u32| {
            format!("{kind}3\r\n${}\r\n{word}\r\n${}\r\n{channel}\r\n:{n}\r\n", word.len(), channel.len())
        };
        listener.expect((confirmed("subscribe", "a", 1) + &confirmed("subscribe", "b", 2)).as_bytes());
        let mut speaker = served.client();
        for i in 0..1_000 {
            speaker.ask(&["PUBLISH", "b", &format!("{i:04}")], ":1\r\n");
            let message = format!("{kind}3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$4\r\n{i:04}\r\n");
            listener.expect(message.as_bytes());
        }
        // What has no reply of its own does not upset those of others.
        listener.send(&command(&["MONITOR"]));
        // The server says it, which alone knows when it is its turn.
        listener.expect(b"-ERR unknown command 'whimbrel-refused', with args beginning with: '");
        listener.expect(b"whimbrel front refuses MONITOR: its output looks like replies");
        listener.expect(b": connect to the server itself'");
        let mut end = [0; 3];
        std::io::Read::read_exact(&mut listener.0, &mut end).expect("the end of the line");
        assert_eq!(&end, b" \r\n");
        listener.send(&command(&["UNSUBSCRIBE", "a", "b"]));
        listener.expect((confirmed("unsubscribe", "a", 1) + &confirmed("unsubscribe", "b", 0)).as_bytes());
        listener.ask(&["ECHO", "back"], "$4\r\nback\r\n");
    }
}

#[test]
fn nothing_is_popped_for_one_who_has_left() {
    let _alone = alone();
    let source = server(Engine::Redis70);
    let served = Served::of(&source.url());
    let blocked = |n: &str| {
        let info = source.call(&["INFO", "clients"]);
        let redis::Value::BulkString(text) = info else { panic!("no text") };
        String::from_utf8_lossy(&text).contains(&format!("blocked_clients:{n}\r"))
    };
    let mut waiting = served.client();
    waiting.send(&command(&["BLPOP", "list", "0"]));
    wait_until("blocked", || blocked("1"));
    drop(waiting);
    wait_until("let go", || blocked("0"));
    source.call(&["RPUSH", "list", "kept"]);
    served.client().ask(&["LRANGE", "list", "0", "-1"], "*1\r\n$4\r\nkept\r\n");
}

#[test]
fn who_closes_one_half_still_gets_replies() {
    let _alone = alone();
    let source = server(Engine::Redis70);
    let served = Served::of(&source.url());
    for to in [address(&source), served.address] {
        let mut client = Client::to(to);
        client.send(&command(&["ECHO", "hello"]).repeat(200));
        assert_eq!(String::from_utf8_lossy(&client.finish()), "$5\r\nhello\r\n".repeat(200));
    }
}

#[test]
fn what_is_due_before_an_error_of_the_protocol_is_sent() {
    let _alone = alone();
    let source = server(Engine::Redis70);
    let served = Served::of(&source.url());
    let large = "x".repeat(1 << 20);
    source.call(&["SET", "k", &large]);
    let mut client = served.client();
    client.send(&[command(&["GET", "k"]).repeat(20), b"*1\r\n?\r\n".to_vec()].concat());
    for _ in 0..20 {
        client.expect(format!("$1048576\r\n{large}\r\n").as_bytes());
    }
    assert_eq!(client.rest(), b"-ERR Protocol error: expected '$', got '?'\r\n");
}

#[test]
fn users_have_their_own_rights() {
    let _alone = alone();
    let source = Server::builder(Engine::Redis70)
        .password("sesame")
        .user_acl("reader on >pw ~r:* +get +client|getname")
        .start()
        .expect("a server");
    let served = Served::of(&source.url());
    let mut client = served.client();
    client.ask(&["GET", "r:1"], "-NOAUTH Authentication required.\r\n");
    client
        .ask(&["AUTH", "reader", "no"], "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    client.ask(&["AUTH", "reader", "pw"], "+OK\r\n");
    client.ask(&["GET", "r:1"], "$-1\r\n");
    client.send(&command(&["GET", "k"]));
    client.expect(b"-NOPERM");
    let mut other = served.client();
    other.ask(&["AUTH", "sesame"], "+OK\r\n");
    other.ask(&["SET", "k", "v"], "+OK\r\n");
}

#[test]
fn the_source_may_want_tls_or_be_a_socket() {
    let _alone = alone();
    let tls = Tls::new().expect("certificates");
    let source = Server::builder(Engine::Redis70).tls(&tls).unix_socket().start().expect("a server");
    let url = source.tls_url().expect("it has TLS");
    let mut endpoint = Endpoint::parse(Side::Source, &url).expect("a valid address");
    endpoint.tls = Some(TlsOptions { ca_file: Some(tls.ca()), ..TlsOptions::default() });
    let socket = format!("unix://{}", source.unix_socket().expect("it has a socket").display());
    let socket = Endpoint::parse(Side::Source, &socket).expect("a valid address");
    let large = "x".repeat(3 << 20);
    for endpoint in [endpoint, socket] {
        let served = Served::at(&endpoint, 100);
        let mut client = served.client();
        let mut reader = Client(client.0.try_clone().expect("a second handle"));
        let bytes = [command(&["SET", "k", &large]), command(&["GET", "k"]).repeat(5)].concat();
        let writing = std::thread::spawn(move || client.send(&bytes));
        reader.expect(b"+OK\r\n");
        for _ in 0..5 {
            reader.expect(format!("${}\r\n{large}\r\n", large.len()).as_bytes());
        }
        writing.join().expect("all is sent");
    }
}

#[test]
fn a_server_that_goes_and_comes_back() {
    let _alone = alone();
    let source = server(Engine::Valkey81);
    let served = Served::of(&source.url());
    let mut before = served.client();
    before.ask(&["ECHO", "x"], "$1\r\nx\r\n");
    source.kill9().expect("killed");
    assert_eq!(before.rest(), b"", "the connection ends, as it would without a front");
    let mut during = served.client();
    during.send(&command(&["PING"]));
    let reply = String::from_utf8_lossy(&during.rest()).into_owned();
    assert!(reply.starts_with("-ERR whimbrel front: source"), "{reply}");
    assert!(reply.ends_with("\r\n") && reply.matches("\r\n").count() == 1, "one line: {reply}");
    source.restart().expect("started again");
    served.client().ask(&["ECHO", "y"], "$1\r\ny\r\n");
}
