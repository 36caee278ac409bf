//! Servers behind a proxy that divides keys among them, and knows nothing but commands about keys.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::syncing::report;
use whimbrel_lab::{Engine, Nutcracker, Server};

const PATIENCE: Duration = Duration::from_secs(300);

/// Of each kind.
const KEYS: usize = 300;

const KINDS: usize = 8;

const REFUSED: i32 = 4;

fn whimbrel(args: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("a folder for journals");
    Invocation::new(args).env("XDG_STATE_HOME", state.path()).timeout(PATIENCE).run()
}

fn start(engine: Engine, acl: Option<&str>) -> Server {
    let builder = Server::builder(engine);
    acl.map_or(builder.clone(), |acl| builder.user_acl(acl)).start().expect("the server starts")
}

/// Three servers, and a proxy in front of them.
fn behind_a_proxy(engine: Engine, acl: Option<&str>) -> (Nutcracker, Vec<Server>) {
    let servers: Vec<Server> = (0..3).map(|_| start(engine, acl)).collect();
    (Nutcracker::start(&servers).expect("nutcracker starts"), servers)
}

/// Keys of all types; streams, which the proxy does not know, come by scripts.
fn fill(connection: &mut redis::Connection) {
    for from in (0..KEYS).step_by(50) {
        let mut pipe = redis::pipe();
        for n in from..from + 50 {
            pipe.cmd("SET").arg(format!("string:{n}")).arg(n).ignore();
            pipe.cmd("SET").arg(format!("fades:{n}")).arg(n).arg("PX").arg(3_600_000 + n).ignore();
            pipe.cmd("SET").arg(format!("long:{n}")).arg("x".repeat(100 * n)).ignore();
            pipe.cmd("RPUSH").arg(format!("list:{n}")).arg("one").arg(n).ignore();
            pipe.cmd("SADD").arg(format!("set:{n}")).arg(n).ignore();
            pipe.cmd("ZADD").arg(format!("sorted:{n}")).arg(n).arg("one").ignore();
            pipe.cmd("HSET").arg(format!("hash:{n}")).arg("field").arg(n).ignore();
            pipe.cmd("PEXPIRE").arg(format!("hash:{n}")).arg(3_600_000 + n).ignore();
            pipe.cmd("EVAL").arg("return redis.call('XADD', KEYS[1], '1-1', 'field', ARGV[1])").arg(1);
            pipe.arg(format!("stream:{n}")).arg(n).ignore();
        }
        pipe.exec(connection).expect("it takes them");
    }
}

/// Every key of these servers, with its payload and its expiry. Each is at one of them alone.
fn everything(servers: &[&Server]) -> BTreeMap<String, (Vec<u8>, i64)> {
    let mut all = BTreeMap::new();
    for server in servers {
        let mut connection = server.connection();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
        if keys.is_empty() {
            continue;
        }
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("DUMP").arg(key).cmd("PEXPIRETIME").arg(key);
        }
        let answers: Vec<redis::Value> = pipe.query(&mut connection).expect("states");
        for (key, state) in keys.into_iter().zip(answers.chunks(2)) {
            let payload = redis::from_redis_value(state[0].clone()).expect("a payload");
            let expires = redis::from_redis_value(state[1].clone()).expect("a time");
            assert!(all.insert(key, (payload, expires)).is_none(), "it is at two servers");
        }
    }
    all
}

fn refs(servers: &[Server]) -> Vec<&Server> {
    servers.iter().collect()
}

fn keys_are_copied_from_a_proxy_and_to_one(engine: Engine) {
    let (proxy, servers) = behind_a_proxy(engine, None);
    fill(&mut proxy.try_connection().expect("a connection"));
    let before = everything(&refs(&servers));
    assert!(servers.iter().all(|server| !everything(&[server]).is_empty()), "one has no key");

    let between = start(engine, None);
    let dry = whimbrel(&["copy", &proxy.addr(), &between.addr(), "--dry-run"]);
    assert!(dry.expect_code(0).stderr.contains("3 servers behind a proxy"));
    let copied = report(&whimbrel(&["copy", &proxy.addr(), &between.addr(), "--json"]).expect_code(0));
    assert_eq!(copied["report"]["counts"]["written"], KEYS * KINDS, "{copied}");
    assert_eq!(everything(&[&between]), before);
    whimbrel(&["verify", &proxy.addr(), &between.addr(), "--ttl-tolerance", "0ms"]).expect_code(0);

    let (second, others) = behind_a_proxy(engine, None);
    whimbrel(&["copy", &between.addr(), &second.addr()]).expect_code(0);
    assert_eq!(everything(&refs(&others)), before);
    // Where the proxy looks for it.
    let mut connection = second.try_connection().expect("a connection");
    let found: String = redis::cmd("GET").arg("string:7").query(&mut connection).expect("a value");
    assert_eq!(found, "7");
    whimbrel(&["verify", &between.addr(), &second.addr(), "--ttl-tolerance", "0ms"]).expect_code(0);

    // From one to the other: what differs is found, and made good.
    let _: () = redis::cmd("SET").arg("string:7").arg("other").query(&mut connection).expect("a write");
    let differs = whimbrel(&["verify", &proxy.addr(), &second.addr()]);
    assert_ne!(differs.code(), Some(0), "{differs:#?}");
    whimbrel(&["copy", &proxy.addr(), &second.addr(), "--replace", "--yes", "--verify"]).expect_code(0);
    assert_eq!(everything(&refs(&others)), before);
}

#[test]
fn a_proxy_may_want_a_password() {
    let servers: Vec<Server> = (0..2)
        .map(|_| Server::builder(Engine::Redis70).password("sesame").start().expect("it starts"))
        .collect();
    let proxy = Nutcracker::start(&servers).expect("nutcracker starts");
    fill(&mut proxy.try_connection().expect("a connection"));
    let target = start(Engine::Redis70, None);
    let refused = whimbrel(&["copy", &proxy.addr(), &target.addr()]);
    assert!(refused.code() != Some(0) && refused.stderr.contains("password"), "{refused:#?}");
    let wrong = format!("redis://:wrong@{}", proxy.addr());
    let refused = whimbrel(&["copy", &wrong, &target.addr()]);
    assert!(refused.code() != Some(0) && refused.stderr.contains("refused the credentials"), "{refused:#?}");
    assert!(everything(&[&target]).is_empty());
    let right = format!("redis://:sesame@{}", proxy.addr());
    whimbrel(&["copy", &right, &target.addr(), "--verify"]).expect_code(0);
    assert_eq!(everything(&[&target]).len(), KEYS * KINDS);
}

#[test]
fn what_a_proxy_cannot_do_is_refused_in_one_line() {
    let (proxy, servers) = behind_a_proxy(Engine::Redis70, None);
    let other = start(Engine::Redis70, None);
    let refused = |args: &[&str], why: &str| {
        let output = whimbrel(args);
        assert_eq!(output.code(), Some(REFUSED), "{output:#?}");
        assert!(output.stderr.contains(why), "{output:#?}");
    };
    refused(&["sync", &proxy.addr(), &other.addr(), "--dry-run"], "it does not say what changes");
    refused(&["sync", &other.addr(), &proxy.addr(), "--dry-run"], "a sync needs transactions there");
    refused(&["assess", &proxy.addr()], "copies go through it, and nothing else does");
    let from_db_1 = format!("redis://{}/1", proxy.addr());
    refused(&["copy", &from_db_1, &other.addr()], "a proxy has one, 0");

    let (silent, _servers) =
        behind_a_proxy(Engine::Redis70, Some("default on nopass ~* &* +@all -@scripting"));
    refused(&["copy", &silent.addr(), &other.addr()], "copy from the servers behind it");
    assert!(everything(&refs(&servers)).is_empty() && everything(&[&other]).is_empty());
}

whimbrel_lab::for_each_engine! {
    on Redis70:
        keys_are_copied_from_a_proxy_and_to_one
}

/// The other servers, which the tier `all` runs.
mod matrix {
    use whimbrel_lab::Engine;

    fn keys_pass_a_proxy(engine: Engine) {
        super::keys_are_copied_from_a_proxy_and_to_one(engine);
    }

    whimbrel_lab::for_each_engine! {
        on Redis80 Redis86 Valkey81 Valkey91:
            keys_pass_a_proxy
    }
}

/// Drops the first connection, and passes on all others to `server`.
fn dropping_the_first(server: &Server) -> String {
    let relay = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (at, to) = (relay.local_addr().expect("an address").to_string(), server.addr());
    std::thread::spawn(move || {
        for client in relay.incoming().skip(1).flatten() {
            let Ok(server) = TcpStream::connect(&to) else { return };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    at
}

/// A server answers scripts as a proxy does. It is none where only its first connection was dropped, so all
/// of its databases are looked at.
#[test]
fn a_dropped_connection_makes_no_proxy() {
    let (source, target) = (start(Engine::Redis70, None), start(Engine::Redis70, None));
    for server in [&source, &target] {
        server.call(&["SET", "x", "1"]);
    }
    let mut other = source.connection();
    redis::cmd("SELECT").arg(3).query::<()>(&mut other).expect("it has databases");
    redis::cmd("SET").arg("y").arg("2").query::<()>(&mut other).expect("it is set");
    let verified = whimbrel(&["verify", &dropping_the_first(&source), &target.addr()]).expect_code(6);
    assert!(verified.stdout.contains("\"y\""), "{}", verified.stdout);
}
