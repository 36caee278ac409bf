//! `whimbrel front` serves real clients in front of real servers.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::{Connection, Value};
use serde_json::Value as Json;
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_judge::deployment::cluster_client;
use whimbrel_lab::{Engine, Server, Tls};

whimbrel_lab::for_each_engine! {
    a_client_library_sees_no_difference
    clients_come_with_tls_and_so_does_the_front_to_the_source
    clients_of_clusters_find_one_node
    what_is_refused_comes_in_its_turn_also_after_a_subscription
}

const PATIENCE: Duration = Duration::from_secs(180);

/// A front that runs, and where it listens.
struct Front {
    running: Running,
    address: String,
}

impl Front {
    #[track_caller]
    fn before(source: &str, more: &[&str]) -> Front {
        let args = [&["front", "--listen", "127.0.0.1:0", "--source", source, "--json"][..], more].concat();
        let mut running = Invocation::new(&args).spawn();
        assert!(running.wait_for_text("\"serving\"", PATIENCE), "{}", running.stderr());
        let text = running.stdout();
        let serving: Json = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
        let address = serving["address"].as_str().expect("an address").to_owned();
        Front { running, address }
    }

    /// A connection of the `redis` crate, as this user.
    #[track_caller]
    fn client(&self, login: &str, query: &str) -> Connection {
        let url = format!("redis://{login}{}/{query}", self.address);
        let client = redis::Client::open(url).expect("a valid address");
        let connection = client.get_connection_with_timeout(PATIENCE).expect("a connection");
        connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        connection
    }
}

/// `None` where the server says nothing or no.
fn connected_clients(server: &Server) -> Option<u32> {
    let Ok(Value::BulkString(text)) = server.try_call(&["INFO", "clients"]) else { return None };
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find_map(|line| line.strip_prefix("connected_clients:"))?.trim().parse().ok()
}

#[test]
fn a_state_folder_without_a_target_is_explained() {
    let args = ["front", "--listen", "127.0.0.1:0", "--source", "127.0.0.1:1", "--state-dir", "/nowhere"];
    let output = Invocation::new(&args).run().expect_code(2);
    assert!(output.stderr.contains("name a --target, or leave --state-dir out"), "{}", output.stderr);
}

fn a_client_library_sees_no_difference(engine: Engine) {
    let source = Server::builder(engine).start().expect("a server");
    let front = Front::before(&source.url(), &[]);
    for query in ["0", "5", "2?protocol=resp3"] {
        let mut client = front.client("", query);
        let () = redis::cmd("SET").arg("k").arg(query).query(&mut client).expect("written");
        let (old, list): (String, Vec<i32>) = redis::pipe()
            .atomic()
            .cmd("GET")
            .arg("k")
            .cmd("RPUSH")
            .arg("l")
            .arg(&[1, 2, 3])
            .ignore()
            .cmd("LRANGE")
            .arg("l")
            .arg(0)
            .arg(-1)
            .query(&mut client)
            .expect("a transaction");
        assert_eq!((old.as_str(), list), (query, vec![1, 2, 3]));
        let script = "return redis.call('LLEN', KEYS[1])";
        let found: i32 = redis::cmd("EVAL").arg(script).arg(1).arg("l").query(&mut client).expect("a script");
        assert_eq!(found, 3);
    }
    // Each was in a database of its own.
    let counts: Vec<u64> = [0, 2, 5]
        .iter()
        .map(|db| {
            let mut direct = source.connection();
            let () = redis::cmd("SELECT").arg(db).query(&mut direct).expect("selected");
            redis::cmd("DBSIZE").query(&mut direct).expect("a number")
        })
        .collect();
    assert_eq!(counts, [2, 2, 2]);
}

#[test]
fn clients_bring_their_own_passwords_and_the_front_shows_none() {
    let source = Server::builder(Engine::Redis70).password("s3same").user_acl("bob on >b0b ~* +@all").start();
    let source = source.expect("a server");
    let front = Front::before(&source.url(), &[]);
    let cmdline = fs::read(format!("/proc/{}/cmdline", front.running.pid())).expect("it runs");
    assert!(!String::from_utf8_lossy(&cmdline).contains("s3same"), "the password is in the process title");
    let mut bob = front.client("bob:b0b@", "");
    let name: String = redis::cmd("ACL").arg("WHOAMI").query(&mut bob).expect("a name");
    assert_eq!(name, "bob");
    // The front's own login is nobody else's.
    let mut nobody = front.client("", "");
    let refused = redis::cmd("GET").arg("k").query::<Value>(&mut nobody).expect_err("it did not log in");
    assert_eq!(refused.code(), Some("NOAUTH"));
    assert!(!(front.running.stdout() + &front.running.stderr()).contains("s3same"));
}

#[test]
fn sigterm_ends_it_and_leaves_no_connection() {
    let source = Server::builder(Engine::Valkey91).start().expect("a server");
    let mut front = Front::before(&source.url(), &[]);
    let mut clients: Vec<Connection> = (0..20).map(|_| front.client("", "")).collect();
    for client in &mut clients {
        let () = redis::cmd("SET").arg("k").arg("v").query(client).expect("written");
    }
    front.running.terminate();
    front.running.wait(PATIENCE).expect("it ends").expect_code(0);
    let deadline = Instant::now() + PATIENCE;
    // The one that asks is there.
    while connected_clients(&source) != Some(1) {
        assert!(Instant::now() < deadline, "connections are left at the source");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_cannot_be_served_is_said_before_listening() {
    let unborn = Server::builder(Engine::Redis70).arg("cluster-enabled", "yes").start().expect("a server");
    let at = unborn.addr();
    let refused =
        Invocation::new(&["front", "--listen", "127.0.0.1:0", "--source", &at]).run().expect_code(4);
    assert!(refused.stderr.contains("no node of this cluster owns a slot"), "{}", refused.stderr);
    let gone = Server::builder(Engine::Redis70).start().expect("a server");
    let at = gone.addr();
    drop(gone);
    let refused =
        Invocation::new(&["front", "--listen", "127.0.0.1:0", "--source", &at]).run().expect_code(3);
    assert!(refused.stderr.starts_with("error: source "), "{}", refused.stderr);
    let other = Server::builder(Engine::Redis70).start().expect("a server");
    let taken = other.addr();
    let refused = Invocation::new(&["front", "--listen", &taken, "--source", &taken]).run().expect_code(1);
    assert!(refused.stderr.contains("listen on"), "{}", refused.stderr);
}

/// A client of the `redis` crate that trusts this authority, and shows the client's certificate where `shows`
/// is set.
fn with_tls(front: &Front, tls: &Tls, shows: bool) -> redis::RedisResult<Connection> {
    let read = |path| fs::read(path).expect("a file");
    let client_tls = shows.then(|| redis::ClientTlsConfig {
        client_cert: read(tls.client_cert()),
        client_key: read(tls.client_key()),
    });
    let certificates = redis::TlsCertificates { client_tls, root_cert: Some(read(tls.ca())) };
    let client = redis::Client::build_with_tls(format!("rediss://{}/", front.address), certificates)?;
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// The path as text, for a command line.
fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("a path of the test")
}

fn clients_come_with_tls_and_so_does_the_front_to_the_source(engine: Engine) {
    let tls = Tls::new().expect("certificates");
    let (ca, cert, key) = (tls.ca(), tls.server_cert(), tls.server_key());
    let source = Server::builder(engine).tls(&tls).start().expect("a server");
    let url = format!("rediss://127.0.0.1:{}", source.tls_port().expect("it has one"));
    let more = ["--source-ca", text(&ca), "--tls-cert", text(&cert), "--tls-key", text(&key)];
    let front = Front::before(&url, &more);
    let mut client = with_tls(&front, &tls, false).expect("a connection");
    // Many records each way.
    let value = "v".repeat(1 << 20);
    let () = redis::cmd("SET").arg("large").arg(&value).query(&mut client).expect("written");
    let found: String = redis::cmd("GET").arg("large").query(&mut client).expect("read");
    assert!(found == value, "{engine}");
    let mut pipe = redis::pipe();
    for i in 0..10_000 {
        pipe.cmd("INCRBY").arg("n").arg(i);
    }
    let sums: Vec<u64> = pipe.query(&mut client).expect("answered in order");
    assert_eq!(sums.last(), Some(&(9_999 * 10_000 / 2)), "{engine}");
    // A client that does not speak TLS does not get in, and disturbs nobody.
    let mut plain = TcpStream::connect(&front.address).expect("a connection");
    plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").expect("sent");
    let mut received = Vec::new();
    let _ = plain.read_to_end(&mut received);
    assert!(!received.windows(4).any(|bytes| bytes == b"PONG"), "{engine}");
    let () = redis::cmd("PING").query(&mut client).expect("the others go on");
}

#[test]
fn clients_have_to_show_a_certificate_where_that_is_set() {
    let tls = Tls::new().expect("certificates");
    let source = Server::builder(Engine::Redis80).start().expect("a server");
    let (ca, cert, key) = (tls.ca(), tls.server_cert(), tls.server_key());
    let more = ["--tls-cert", text(&cert), "--tls-key", text(&key), "--tls-client-ca", text(&ca)];
    let front = Front::before(&source.url(), &more);
    let mut client = with_tls(&front, &tls, true).expect("a connection");
    let () = redis::cmd("PING").query(&mut client).expect("an answer");
    let stranger =
        with_tls(&front, &tls, false).and_then(|mut client| redis::cmd("PING").query::<()>(&mut client));
    stranger.expect_err("it has shown nothing");
    for (args, why) in [
        (vec!["--tls-cert", text(&cert)], "--tls-key"),
        (vec!["--tls-cert", text(&key), "--tls-key", text(&key)], "holds no certificate"),
        (vec!["--tls-cert", text(&cert), "--tls-key", "/nowhere"], "/nowhere"),
    ] {
        let url = source.url();
        let args = [&["front", "--listen", "127.0.0.1:0", "--source", &url][..], &args].concat();
        let output = Invocation::new(&args).run();
        assert_ne!(output.code(), Some(0), "{output:#?}");
        assert!(output.stderr.contains(why), "{output:#?}");
    }
}

/// A client that only knows clusters works through the front before, while and after keys move, and is
/// answered as the servers answer.
fn clients_of_clusters_find_one_node(engine: Engine) {
    let source = Server::builder(engine).start().expect("a server");
    let target = Server::builder(engine).start().expect("a server");
    let state = tempfile::tempdir().expect("a folder");
    let folder = state.path().to_str().expect("a plain path");
    let to = target.url();
    let front = Front::before(
        &source.url(),
        &["--target", &to, "--state-dir", folder, "--cluster-face", "127.0.0.1"],
    );
    let client = cluster_client(&front.address);
    let mut cluster = client.get_connection().expect("a connection");
    for i in 0..2_000 {
        let () = redis::cmd("SET").arg(format!("k{i}")).arg(i).query(&mut cluster).expect("written");
    }
    // Enough for them to be still moving when it is paused.
    source.call(&["EVAL", "for i = 1, 200000 do redis.call('SET', 'more:' .. i, i) end", "0"]);
    let send = |what| Invocation::new(&["front", what, "--json", "--state-dir", folder]).run().expect_code(0);
    send("start");
    send("pause");
    let mut late = client.get_connection().expect("a connection while keys move");
    let () = redis::cmd("SET").arg("late").arg(1).query(&mut late).expect("written");
    send("resume");
    for i in 0..2_000 {
        let found: u32 = redis::cmd("INCR").arg(format!("k{i}")).query(&mut cluster).expect("counted");
        assert_eq!(found, i + 1, "{engine}");
    }
    let deadline = Instant::now() + PATIENCE;
    while !send("status").stdout.contains("\"phase\":\"done\"") {
        assert!(Instant::now() < deadline, "{}", send("status").stdout);
        std::thread::sleep(Duration::from_millis(50));
    }
    let found: u32 = redis::cmd("GET").arg("k77").query(&mut cluster).expect("read");
    assert_eq!(found, 78, "{engine}");
    // What is answered, in both protocols, and in its turn.
    for query in ["0", "0?protocol=resp3"] {
        let mut client = front.client("", query);
        let (before, slots, slot, agreed, after): (u32, Value, u16, String, u32) = redis::pipe()
            .cmd("GET")
            .arg("k0")
            .cmd("CLUSTER")
            .arg("SLOTS")
            .cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg("123456789")
            .cmd("READONLY")
            .cmd("GET")
            .arg("k1")
            .query(&mut client)
            .expect("answered in order");
        assert_eq!((before, slot, agreed.as_str(), after), (1, 12_739, "OK", 2), "{engine}");
        let shown = format!("{slots:?}");
        assert!(shown.contains("16383") && shown.contains("127.0.0.1"), "{engine}: {shown}");
        let shards: Value = redis::cmd("CLUSTER").arg("SHARDS").query(&mut client).expect("an answer");
        let is_map = format!("{shards:?}").starts_with("array([map(");
        assert_eq!(is_map, query.contains("resp3"), "{engine}: {shards:?}");
        let error = redis::cmd("CLUSTER").arg("RESET").exec(&mut client).expect_err("it is no cluster");
        assert!(error.to_string().contains("cluster support disabled"), "{engine}: {error}");
    }
}

/// A user who may not ask gets no answer.
#[test]
fn the_face_of_a_cluster_shows_nothing_that_the_server_hides() {
    let source = Server::builder(Engine::Valkey91).password("word").start().expect("a server");
    source.call(&["ACL", "SETUSER", "poor", "on", ">poor", "~*", "+get"]);
    let url = source.url();
    let front = Front::before(&url, &["--cluster-face", "10.1.2.3:7000"]);
    let ask = |login: &str| {
        let mut client = front.client(login, "");
        redis::cmd("CLUSTER").arg("SLOTS").query::<Value>(&mut client)
    };
    assert!(format!("{:?}", ask(":word@").expect("an answer")).contains("10.1.2.3"));
    assert_eq!(ask("poor:poor@").expect_err("no right").code(), Some("NOPERM"));
    let mut stranger = TcpStream::connect(&front.address).expect("a connection");
    stranger.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stranger.write_all(b"CLUSTER SLOTS\r\n").expect("sent");
    let mut received = [0; 7];
    stranger.read_exact(&mut received).expect("an answer");
    assert_eq!(&received, b"-NOAUTH");
}

/// A connection that has subscribed once is one whose replies nobody can count. What is refused there is
/// refused in its turn all the same.
fn what_is_refused_comes_in_its_turn_also_after_a_subscription(engine: Engine) {
    let source = Server::builder(engine).start().expect("a server");
    let front = Front::before(&source.url(), &[]);
    let mut stream = TcpStream::connect(&front.address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"SET a A\r\nSET n 7\r\nSUBSCRIBE c\r\nUNSUBSCRIBE c\r\nPING\r\n").expect("sent");
    let mut reader = stream.try_clone().expect("the same connection");
    let mut until = |end: &[u8]| {
        let mut received = Vec::new();
        while !received.ends_with(end) {
            let mut byte = [0];
            reader.read_exact(&mut byte).expect("a reply");
            received.push(byte[0]);
        }
        String::from_utf8_lossy(&received).into_owned()
    };
    until(b"+PONG\r\n");
    stream.write_all(b"GET a\r\nINCR n\r\nCLIENT TRACKING ON\r\nGET a\r\nMONITOR\r\nPING\r\n").expect("sent");
    let received = until(b"+PONG\r\n");
    let lines: Vec<&str> = received.split("\r\n").collect();
    assert_eq!((lines[0], lines[1], lines[2]), ("$1", "A", ":8"), "{engine}: {received}");
    assert!(lines[3].starts_with('-') && lines[3].contains("TRACKING"), "{engine}: {received}");
    assert_eq!((lines[4], lines[5]), ("$1", "A"), "{engine}: {received}");
    assert!(lines[6].starts_with('-') && lines[6].contains("MONITOR"), "{engine}: {received}");
}

/// How far the keys have moved is a matter of the two servers, not of where the front listens.
#[test]
fn one_front_serves_two_servers() {
    let source = Server::builder(Engine::Redis70).start().expect("a server");
    let target = Server::builder(Engine::Valkey91).start().expect("a server");
    source.call(&["SET", "k", "1"]);
    let state = tempfile::tempdir().expect("a folder");
    let folder = state.path().to_str().expect("a plain path");
    let (from, to) = (source.url(), target.url());
    let more = ["--target", &to, "--state-dir", folder];
    let mut front = Front::before(&from, &more);
    let second = [&["front", "--listen", "127.0.0.1:0", "--source", &from][..], &more].concat();
    Invocation::new(&second).timeout(PATIENCE).run().expect_code(2);
    Invocation::new(&["front", "start", "--state-dir", folder]).run().expect_code(0);
    front.running.kill9();
    // Run again it knows, wherever it listens.
    let again = Front::before(&from, &more);
    assert_ne!(again.address, front.address);
    let found: i32 = redis::cmd("GET").arg("k").query(&mut again.client("", "")).expect("read");
    assert_eq!(found, 1);
}
