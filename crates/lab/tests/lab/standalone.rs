//! One server at a time: start, users, TLS, crash, restart, and nothing left behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redis::Value;
use whimbrel_lab::{Cluster, Engine, LabError, Server, Tls};

whimbrel_lab::for_each_engine! {
    on Redis60 Redis62 Valkey80:
        the_other_engines_start_alone_and_as_a_cluster
}

whimbrel_lab::for_each_engine! {
    is_the_version_it_claims
    leaves_nothing_behind
    forgets_in_a_crash_unless_configured_to_keep
    knows_its_users
    takes_passwords_with_odd_characters
    speaks_tls
    demands_a_client_certificate
    listens_on_a_unix_socket
    stands_still_while_suspended
    tells_why_it_did_not_start
    runs_its_client
}

fn text(value: Value) -> String {
    redis::from_redis_value(value).expect("a string")
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn is_the_version_it_claims(engine: Engine) {
    let server = Server::builder(engine).start().unwrap();
    let info = text(server.call(&["INFO", "server"]));
    let field = if engine.is_valkey() { "valkey_version" } else { "redis_version" };
    let version =
        info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("a version");
    assert!(version.starts_with(&format!("{}.{}.", engine.major(), engine.minor())), "{version}");
    assert!(server.rss_bytes().unwrap() > 1 << 20);
}

fn leaves_nothing_behind(engine: Engine) {
    let server = Server::builder(engine).start().unwrap();
    let (pid, dir) = (server.pid(), server.dir().to_owned());
    assert!(is_alive(pid) && dir.is_dir() && server.is_running());
    drop(server);
    assert!(!is_alive(pid) && !dir.exists());
}

fn forgets_in_a_crash_unless_configured_to_keep(engine: Engine) {
    let keeping =
        Server::builder(engine).arg("--appendonly", "yes").arg("appendfsync", "always").start().unwrap();
    let forgetting = Server::builder(engine).start().unwrap();
    for server in [&keeping, &forgetting] {
        server.call(&["SET", "key", "value"]);
        let (pid, port) = (server.pid(), server.port());
        server.kill9().unwrap();
        assert!(!server.is_running() && !is_alive(pid));
        assert!(server.try_connection().is_err());
        server.restart().unwrap();
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
    }
    assert_eq!(text(keeping.call(&["GET", "key"])), "value");
    assert_eq!(forgetting.call(&["GET", "key"]), Value::Nil);
    // A running server is stopped in order first.
    keeping.restart().unwrap();
    assert!(keeping.log().contains("User requested shutdown"), "{}", keeping.log());
}

fn knows_its_users(engine: Engine) {
    let server = Server::builder(engine).user_acl("user app on >secret ~app:* +@all").start().unwrap();
    let client = redis::Client::open(format!("redis://app:secret@{}", server.addr())).unwrap();
    let mut connection = client.get_connection().unwrap();
    redis::cmd("SET").arg("app:1").arg("x").exec(&mut connection).unwrap();
    let refused = redis::cmd("SET").arg("other").arg("x").exec(&mut connection).unwrap_err();
    assert_eq!(refused.code(), Some("NOPERM"));

    let closed =
        Server::builder(engine).user_acl("default off").user_acl("app on >secret ~* +@all").start().unwrap();
    let refused = closed.try_call(&["PING"]).unwrap_err();
    assert!(refused.to_string().contains("NOAUTH"), "{refused}");
}

fn takes_passwords_with_odd_characters(engine: Engine) {
    let password = r#"a "b" \c/@:#%"#;
    let server = Server::builder(engine).password(password).name("guarded").start().unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    redis::cmd("PING").exec(&mut connection).unwrap();
    server.call(&["PING"]);

    let open = redis::Client::open(format!("redis://{}", server.addr())).unwrap().get_connection();
    assert!(open.and_then(|mut connection| redis::cmd("PING").exec(&mut connection)).is_err());
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    assert!(!arguments.contains("\\c"), "{arguments}");
}

fn speaks_tls(engine: Engine) {
    let tls = Tls::new().unwrap();
    let server = Server::builder(engine).tls(&tls).password("secret").start().unwrap();
    let mut connection = server.tls_connection().unwrap();
    redis::cmd("SET").arg("key").arg("value").exec(&mut connection).unwrap();
    assert_eq!(text(server.call(&["GET", "key"])), "value");
    assert!(server.tls_url().unwrap().starts_with("rediss://:secret@127.0.0.1:"));

    let other_authority = Tls::new().unwrap();
    let (accepted, _) = cli_ping(&server, &["--cacert", tls.ca().to_str().unwrap()]);
    let (refused, _) = cli_ping(&server, &["--cacert", other_authority.ca().to_str().unwrap()]);
    assert!(accepted && !refused);
    let plain = Server::builder(engine).start().unwrap();
    assert!(plain.tls_connection().is_err() && plain.tls_port().is_none());
}

fn demands_a_client_certificate(engine: Engine) {
    let tls = Tls::new().unwrap().requiring_client_cert();
    let server = Server::builder(engine).tls(&tls).password("secret").start().unwrap();
    server.tls_connection().unwrap();
    let (ca, cert, key) = (tls.ca(), tls.client_cert(), tls.client_key());
    let with_authority = ["--cacert", ca.to_str().unwrap()];
    let with_certificate =
        [with_authority.as_slice(), &["--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()]]
            .concat();
    assert!(cli_ping(&server, &with_certificate).0);
    assert!(!cli_ping(&server, &with_authority).0);
}

/// Whether the engine's own client gets an answer with TLS, and what it says.
fn cli_ping(server: &Server, options: &[&str]) -> (bool, String) {
    let output = Command::new(server.engine().binaries().unwrap().cli)
        .args(["-h", "127.0.0.1", "-p", &server.tls_port().unwrap().to_string(), "--tls"])
        .args(options)
        .arg("PING")
        .env("REDISCLI_AUTH", "secret")
        .env("VALKEYCLI_AUTH", "secret")
        .output()
        .unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    (answer.contains("PONG"), answer)
}

fn listens_on_a_unix_socket(engine: Engine) {
    let server = Server::builder(engine).unix_socket().start().unwrap();
    let url = format!("unix://{}", server.unix_socket().unwrap().display());
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    redis::cmd("PING").exec(&mut connection).unwrap();
}

fn stands_still_while_suspended(engine: Engine) {
    let server = Server::builder(engine).start().unwrap();
    let mut connection = server.connection();
    server.suspend().unwrap();
    connection.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(redis::cmd("PING").exec(&mut connection).unwrap_err().is_timeout());
    assert!(server.is_running());
    server.resume().unwrap();

    let before = server.cpu_seconds().unwrap();
    let loops = "local x = 0 for i = 1, 20000000 do x = x + i end return 1";
    assert_eq!(server.call(&["EVAL", loops, "0"]), Value::Int(1));
    assert!(server.cpu_seconds().unwrap() > before);

    server.suspend().unwrap();
    server.stop().unwrap();
    assert!(server.cpu_seconds().is_err() && server.rss_bytes().is_err());
}

fn tells_why_it_did_not_start(engine: Engine) {
    let error =
        Server::builder(engine).password("secret").arg("maxmemory-policy", "nonsense").start().unwrap_err();
    let LabError::StartFailed { log_tail, .. } = &error else { panic!("{error}") };
    assert!(log_tail.contains("maxmemory-policy"), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

fn runs_its_client(engine: Engine) {
    let output = Command::new(engine.binaries().unwrap().cli).arg("--version").output().unwrap();
    assert!(output.status.success());
    let version = String::from_utf8_lossy(&output.stdout);
    assert!(version.contains(&format!(" {}.{}.", engine.major(), engine.minor())), "{version}");
}

#[test]
fn many_servers_start_side_by_side() {
    let ports: std::collections::BTreeSet<u16> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..12)
            .map(|_| scope.spawn(|| Server::builder(Engine::Redis70).start().map(|server| server.port())))
            .collect();
        starts.into_iter().map(|start| start.join().unwrap().unwrap()).collect()
    });
    assert_eq!(ports.len(), 12);
}

/// The thread that starts a server may end long before the server does.
#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(|| Server::builder(Engine::Redis70).start().unwrap()).join().unwrap();
    server.call(&["PING"]);
    assert!(server.is_running());
}

/// Run by the next test in a process of its own.
#[test]
#[ignore = "waits to be killed"]
fn holds_a_server_until_killed() {
    let server = Server::builder(Engine::Redis70).start().unwrap();
    println!("\npid={}", server.pid());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_server_dies_with_the_process_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "standalone::holds_a_server_until_killed", "--ignored", "--nocapture"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = BufReader::new(holder.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("pid=")?.parse::<u32>().ok());
    holder.kill().unwrap();
    holder.wait().unwrap();
    let pid = pid.expect("the holder reports its server's process id");
    let deadline = Instant::now() + Duration::from_secs(30);
    // An orphan may stay for a moment as a zombie, without a command line.
    while !std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty() {
        assert!(Instant::now() < deadline, "server {pid} outlived its parent");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Those that few tests start.
fn the_other_engines_start_alone_and_as_a_cluster(engine: Engine) {
    let server = Server::builder(engine).start().unwrap();
    let info = format!("{:?}", server.call(&["INFO", "server"]));
    let (major, minor) = engine.version();
    let field = if engine.is_valkey() { "valkey_version" } else { "redis_version" };
    assert!(info.contains(&format!("{field}:{major}.{minor}.")), "{engine}: {info}");
    let cluster = Cluster::builder(engine).primaries(3).replicas(1).start().unwrap();
    assert_eq!(cluster.nodes().len(), 6);
}
