//! What cannot work ends with one clear line and a documented exit code, and has written nothing.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use serde_json::Value as Json;
use tempfile::TempDir;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_judge::compare::assert_equal;
use whimbrel_judge::deployment::Deployment;
use whimbrel_lab::{Cluster, Engine, Server, Tls, free_port, wait_until};

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        permissions
        targets_that_take_no_writes
        a_server_that_is_loading
}

/// Occurs in every password here, so that one search finds any that leaks.
const SECRET: &str = "s3cret";

/// For what must not end before it is looked at.
const PATIENCE: Duration = Duration::from_secs(180);

// Exit codes, as documented.
const INTERNAL: i32 = 1;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;
const REFUSED: i32 = 4;
const PARTIAL: i32 = 5;
const INTERRUPTED: i32 = 7;

fn start(builder: whimbrel_lab::ServerBuilder) -> Server {
    builder.start().expect("the server starts")
}

fn server(engine: Engine) -> Server {
    start(Server::builder(engine))
}

fn state_dir() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// A server with a few keys of several types.
fn filled(engine: Engine) -> Server {
    let server = server(engine);
    fill(&server);
    server
}

fn fill(server: &Server) {
    for command in [
        &["SET", "text", "value"][..],
        &["SET", "mortal", "value", "PX", "3600000"],
        &["RPUSH", "list", "a", "b"],
        &["HSET", "hash", "field", "value"],
        &["SADD", "set", "a", "b"],
        &["ZADD", "zset", "1", "a"],
        &["XADD", "stream", "1-1", "f", "v"],
    ] {
        server.call(command);
    }
}

/// One field of INFO.
fn info(server: &Server, section: &str, field: &str) -> String {
    let text: String =
        redis::cmd("INFO").arg(section).query(&mut server.connection()).expect("the server answers");
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {field} in {text}"))
        .to_owned()
}

/// How many writes a server has seen. It saves nothing by itself, so the count only grows.
fn writes(server: &Server) -> u64 {
    info(server, "persistence", "rdb_changes_since_last_save").parse().expect("a number")
}

/// The only error: what is wrong, and behind a semicolon what to do, which stands on a line of its own.
#[track_caller]
fn only_error(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().collect();
    let places: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].starts_with("error:")).collect();
    let &[place] = places.as_slice() else { panic!("{} errors:\n{stderr}", places.len()) };
    let remedy = lines[place + 1..]
        .iter()
        .map_while(|line| line.strip_prefix("       "))
        .filter(|line| !line.starts_with(' '));
    std::iter::once(lines[place]).chain(remedy).collect::<Vec<_>>().join("; ")
}

/// A call that must be refused.
struct Refusal<'a> {
    args: Vec<String>,
    env: BTreeMap<&'a str, String>,
    untouched: Vec<&'a Server>,
    state: Option<&'a Path>,
}

fn copy<'a>(source: &str, target: &str) -> Refusal<'a> {
    Refusal {
        args: vec!["copy".into(), source.into(), target.into()],
        env: BTreeMap::new(),
        untouched: Vec::new(),
        state: None,
    }
}

impl<'a> Refusal<'a> {
    fn with(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    fn env(mut self, name: &'a str, value: &str) -> Self {
        self.env.insert(name, value.to_owned());
        self
    }

    /// Nothing may be written there.
    fn on(mut self, target: &'a Server) -> Self {
        self.untouched.push(target);
        self
    }

    fn state(mut self, folder: &'a Path) -> Self {
        self.state = Some(folder);
        self
    }

    fn run(&self, extra: &[&str], state: &Path) -> Output {
        let mut args = self.args.clone();
        args.extend(extra.iter().map(|&arg| arg.to_owned()));
        let mut call = Invocation::new(&args).env("XDG_STATE_HOME", state);
        for (name, value) in &self.env {
            call = call.env(name, value);
        }
        call.run()
    }

    /// Runs it, plain and with `--json`: the exit code is `code`, and there is one error, with all `words`.
    #[track_caller]
    fn ends(self, code: i32, words: &[&str]) {
        let own = state_dir();
        let state = self.state.unwrap_or(own.path());
        let before: Vec<u64> = self.untouched.iter().map(|server| writes(server)).collect();

        let plain = self.run(&[], state).expect_code(code);
        self.no_secret(&plain, state);
        let error = &only_error(&plain.stderr);
        for word in words {
            assert!(error.contains(word), "no {word:?} in: {error}");
        }
        assert!(!plain.stderr.contains("panicked"), "{}", plain.stderr);
        assert_eq!(plain.stdout, "", "nothing was done, so nothing is reported");

        if code == USAGE && error.contains("For more information") | plain.stderr.contains("--help") {
            // Refused while the options are parsed, `--json` among them.
        } else {
            // What is to be done follows what is wrong.
            assert!(error.contains("; "), "it does not say what to do: {error}");
            let json = self.run(&["--json"], state).expect_code(code);
            self.no_secret(&json, state);
            assert_eq!(json.stderr, "", "with --json everything is on standard output");
            let lines: Vec<Json> = json
                .stdout
                .lines()
                .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
                .collect();
            let errors: Vec<&Json> = lines.iter().filter(|line| line["event"] == "error").collect();
            let &[object] = errors.as_slice() else {
                panic!("{} errors:\n{}", errors.len(), json.stdout);
            };
            assert_eq!(object["exit"], code);
            let text = object["text"].as_str().expect("the error has a text");
            for word in words {
                assert!(text.contains(word), "no {word:?} in: {text}");
            }
            let side = object["side"].as_str().expect("the error names a side");
            // Of itself whimbrel speaks without its name.
            let begins = side == "whimbrel" || error.starts_with(&format!("error: {side}"));
            assert!(text.starts_with(side) && begins, "{side}: {text}");
        }

        let after: Vec<u64> = self.untouched.iter().map(|server| writes(server)).collect();
        assert_eq!(before, after, "something was written to the target");
    }

    /// No password in what was said or stored.
    #[track_caller]
    fn no_secret(&self, output: &Output, state: &Path) {
        assert!(!output.stdout.contains(SECRET), "{}", output.stdout);
        assert!(!output.stderr.contains(SECRET), "{}", output.stderr);
        no_secret_below(state);
    }
}

#[track_caller]
fn no_secret_below(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            no_secret_below(&path);
        } else if path.is_file() {
            // Sockets cannot be read.
            let bytes = fs::read(&path).expect("a file can be read");
            let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
            assert!(!found, "a password is in {}", path.display());
        }
    }
}

#[test]
fn credentials() {
    let password = format!("{SECRET}-of-default");
    let open = filled(Engine::Redis70);
    let empty = server(Engine::Valkey91);
    let locked_source = start(Server::builder(Engine::Valkey81).password(&password));
    let locked_target = start(Server::builder(Engine::Redis80).password(&password));
    let (open, empty) = (&open, &empty);
    let wrong = |server: &Server| format!("redis://:{SECRET}-wrong@{}", server.addr());

    // A wrong one.
    copy(&wrong(&locked_source), &empty.addr())
        .on(empty)
        .ends(UNREACHABLE, &["source", "log in", "WRONGPASS", "check the user and the password"]);
    copy(&open.addr(), &wrong(&locked_target))
        .on(&locked_target)
        .ends(UNREACHABLE, &["target", "log in", "WRONGPASS", "check the user and the password"]);
    copy(&open.addr(), &locked_target.addr())
        .env("WHIMBREL_TARGET_PASSWORD", &format!("{SECRET}-wrong"))
        .on(&locked_target)
        .ends(UNREACHABLE, &["target", "log in", "WRONGPASS"]);
    copy(&open.addr(), &format!("redis://nobody:{SECRET}@{}", locked_target.addr()))
        .on(&locked_target)
        .ends(UNREACHABLE, &["target", "log in", "WRONGPASS"]);

    // None at all.
    copy(&locked_source.addr(), &empty.addr())
        .on(empty)
        .ends(UNREACHABLE, &["source", "log in", "wants a password"]);
    copy(&open.addr(), &locked_target.addr())
        .on(&locked_target)
        .ends(UNREACHABLE, &["target", "log in", "wants a password"]);
    copy(&locked_source.addr(), &empty.addr())
        .with(&["--source-user", "default"])
        .on(empty)
        .ends(USAGE, &["source", "no password", "WHIMBREL_SOURCE_PASSWORD"]);

    // One where none is wanted.
    copy(&format!("redis://:{SECRET}@{}", open.addr()), &empty.addr())
        .on(empty)
        .ends(UNREACHABLE, &["source", "log in", "check the user and the password"]);

    // Password files that cannot be read.
    let folder = state_dir();
    let missing = folder.path().join("missing").display().to_string();
    copy(&locked_source.addr(), &empty.addr())
        .with(&["--source-password-file", &missing])
        .on(empty)
        .ends(INTERNAL, &["source", &missing, "--source-password-file"]);
    let not_a_file = folder.path().display().to_string();
    copy(&open.addr(), &locked_target.addr())
        .with(&["--target-password-file", &not_a_file])
        .on(&locked_target)
        .ends(INTERNAL, &["target", &not_a_file, "--target-password-file"]);
}

/// Users who lack one permission: the error names the command.
fn permissions(engine: Engine) {
    let password = format!("{SECRET}-of-user");
    let user = |server: &Server, lacks: &str| {
        let secret = format!(">{password}");
        server.call(&["ACL", "SETUSER", "u", "reset", "on", &secret, "~*", "&*", "+@all", lacks]);
        format!("redis://u:{password}@{}", server.addr())
    };
    let open = filled(engine);
    let empty = server(engine);
    // Without any other command there is another way: see the module `rights`.
    let url = user(&open, "-scan");
    let words = ["source", "SCAN", "NOPERM", "scan", "give this user +scan, or"];
    copy(&url, &empty.addr()).on(&empty).ends(REFUSED, &words);
    for lacks in ["info", "set"] {
        let url = user(&empty, &format!("-{lacks}"));
        let given = format!("give this user +{lacks}, or");
        let words = ["target", &lacks.to_uppercase(), "NOPERM", lacks, &given];
        copy(&open.addr(), &url).on(&empty).ends(REFUSED, &words);
    }
    // Of several the first is named, and all that have to be given.
    let url = user(&open, "-@read");
    let words = ["source", "NOPERM", "SCAN", "give this user +scan +pttl +dump, or"];
    copy(&url, &empty.addr()).on(&empty).ends(REFUSED, &words);
}

#[test]
fn addresses() {
    let source = filled(Engine::Redis70);
    let target = server(Engine::Redis80);
    let (source, target) = (&source, &target);
    // Nobody listens there, and no other test gets it meanwhile.
    let closed = format!("127.0.0.1:{}", free_port().expect("a port is free"));
    copy(&closed, &target.addr()).on(target).ends(UNREACHABLE, &["source", &closed, "connect", "refused"]);
    copy(&source.addr(), &closed).ends(UNREACHABLE, &["target", &closed, "connect", "refused"]);
    copy("no-such-host.invalid:6379", &target.addr())
        .with(&["--connect-timeout", "2s"])
        .on(target)
        .ends(UNREACHABLE, &["source", "no-such-host.invalid", "connect"]);
    copy(&source.addr(), "unix:///nowhere/server.sock")
        .ends(UNREACHABLE, &["target", "/nowhere/server.sock"]);

    copy("http://127.0.0.1:1", &target.addr())
        .on(target)
        .ends(USAGE, &["source", "unknown scheme", "redis://"]);
    copy(&source.addr(), "127.0.0.1:port").ends(USAGE, &["target", "not HOST:PORT"]);
    copy(&source.addr(), "redis://127.0.0.1:1/x").ends(USAGE, &["target", "database"]);
    copy(&format!("redis://:{SECRET}@127.0.0.1:notaport"), &target.addr())
        .on(target)
        .ends(USAGE, &["source"]);
    copy(&source.addr(), &target.addr())
        .with(&["--target-map", "nonsense"])
        .on(target)
        .ends(USAGE, &["target", "nonsense", "HOST:PORT"]);
    // Somebody else than a server listens.
    let stranger = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr = stranger.local_addr().expect("it has an address").to_string();
    let answering = thread::spawn(move || {
        for connection in stranger.incoming().take(2) {
            use std::io::{Read, Write};
            let mut connection = connection.expect("a connection comes");
            let _ = connection.read(&mut [0; 512]);
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    copy(&addr, &target.addr()).on(target).ends(UNREACHABLE, &["source", &addr]);
    answering.join().expect("it answers");
}

#[test]
fn tls() {
    let tls = Tls::new().expect("certificates can be made");
    let other = Tls::new().expect("certificates can be made");
    let plain = filled(Engine::Redis70);
    let empty = server(Engine::Valkey81);
    let source = start(Server::builder(Engine::Redis70).tls(&tls));
    let strict = start(Server::builder(Engine::Valkey91).tls(&tls.requiring_client_cert()));
    let (plain, empty) = (&plain, &empty);
    let ca = tls.ca().display().to_string();
    let other_ca = other.ca().display().to_string();
    let on_tls_port = |server: &Server, scheme: &str| {
        format!("{scheme}://127.0.0.1:{}", server.tls_port().expect("it has TLS"))
    };

    // Longer than a busy machine keeps the other side from answering.
    let patience = ["--connect-timeout", "5s"];
    for scheme in ["rediss", "valkeys"] {
        copy(&format!("{scheme}://{}", plain.addr()), &empty.addr())
            .with(&["--source-ca", &ca])
            .with(&patience)
            .on(empty)
            .ends(UNREACHABLE, &["source", "if this port does not use TLS"]);
    }
    copy(&plain.addr(), &format!("rediss://{}", empty.addr()))
        .with(&["--target-ca", &ca])
        .with(&patience)
        .on(empty)
        .ends(UNREACHABLE, &["target", "if this port does not use TLS"]);

    copy(&on_tls_port(&source, "redis"), &empty.addr())
        .on(empty)
        .ends(UNREACHABLE, &["source", "if this port expects TLS"]);
    copy(&plain.addr(), &on_tls_port(&strict, "valkey"))
        .on(&strict)
        .ends(UNREACHABLE, &["target", "if this port expects TLS"]);

    copy(&on_tls_port(&source, "rediss"), &empty.addr())
        .with(&["--source-ca", &other_ca])
        .on(empty)
        .ends(UNREACHABLE, &["source", "TLS", "certificate", "check the CA"]);
    copy(&on_tls_port(&source, "rediss"), &empty.addr())
        .with(&["--source-ca", &ca, "--source-server-name", "elsewhere.example"])
        .on(empty)
        .ends(UNREACHABLE, &["source", "TLS", "elsewhere.example", "server name"]);
    copy(&plain.addr(), &on_tls_port(&strict, "rediss"))
        .with(&["--target-ca", &ca])
        .on(&strict)
        .ends(UNREACHABLE, &["target", "--target-cert", "--target-key"]);
    copy(&on_tls_port(&source, "rediss"), &empty.addr())
        .with(&["--source-ca", "/nowhere/ca.pem"])
        .on(empty)
        .ends(USAGE, &["source", "TLS", "/nowhere/ca.pem", "--source-ca"]);
    // A certificate without its key is a mistake in the options.
    let cert = tls.client_cert().display().to_string();
    copy(&plain.addr(), &on_tls_port(&strict, "rediss"))
        .with(&["--target-cert", &cert])
        .on(&strict)
        .ends(USAGE, &["required arguments"]);
}

fn targets_that_take_no_writes(engine: Engine) {
    let source = filled(Engine::Redis70);
    let (source, addr) = (&source, source.addr());
    let filled_by = writes(source);

    let full = start(Server::builder(engine).arg("maxmemory", "1").arg("maxmemory-policy", "noeviction"));
    copy(&addr, &full.addr()).on(&full).ends(REFUSED, &["target", "full", "maxmemory"]);

    let primary = server(engine);
    let replica = server(engine);
    replica.call(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    wait_until("it follows", || info(&replica, "replication", "master_link_status") == "up");
    copy(&addr, &replica.addr()).on(&replica).ends(REFUSED, &["target", "replica", "name its primary"]);
    assert_eq!(writes(source), filled_by, "the source was written to");
}

#[test]
fn targets_that_take_no_keys() {
    let source = filled(Engine::Redis70);
    let (source, addr) = (&source, source.addr());
    let filled_by = writes(source);

    // Not empty, and nothing said about keys that exist.
    let target = server(Engine::Redis80);
    target.call(&["SET", "mine", "1"]);
    copy(&addr, &target.addr())
        .on(&target)
        .ends(REFUSED, &["target", "database 0", "1 key already", "--replace", "--skip", "--fail"]);
    // Only the databases that are copied to count.
    target.call(&["FLUSHALL"]);
    target.call(&["SWAPDB", "0", "5"]);
    let mut connection = target.connection();
    redis::cmd("SELECT").arg(5).exec(&mut connection).expect("it has database 5");
    let () = connection.set("mine", 1).expect("it can be written to");
    copy(&addr, &target.addr())
        .with(&["--db", "0:5"])
        .on(&target)
        .ends(REFUSED, &["target", "database 5", "--replace"]);

    // A cluster that is not one yet.
    let lonely = start(Server::builder(Engine::Redis70).cluster());
    copy(&addr, &lonely.addr()).on(&lonely).ends(REFUSED, &["target", "no node of this cluster owns a slot"]);
    // Or only half of one.
    lonely.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "8000"]);
    copy(&addr, &lonely.addr())
        .on(&lonely)
        .ends(REFUSED, &["target", "8383 slots", "have no owner", "repair the cluster"]);
    assert_eq!(writes(source), filled_by, "the source was written to");
}

/// A target that fills up half-way: an error that says so, and once there is room the copy goes on.
#[test]
fn a_target_that_fills_up() {
    let source = server(Engine::Redis70);
    let mut pipe = redis::pipe();
    for i in 0..4000 {
        pipe.set(format!("key:{i}"), "x".repeat(2000)).ignore();
    }
    let () = pipe.query(&mut source.connection()).expect("the source takes keys");
    let target =
        start(Server::builder(Engine::Redis70).arg("maxmemory", "5mb").arg("maxmemory-policy", "noeviction"));
    let state = state_dir();
    let run = |extra: &[&str]| {
        let mut args = vec!["copy", "--quiet"];
        let (from, to) = (source.addr(), target.addr());
        args.extend([&*from, &*to]);
        args.extend(extra);
        Invocation::new(&args).env("XDG_STATE_HOME", state.path()).run()
    };
    let stopped = run(&[]).expect_code(INTERRUPTED);
    let error = only_error(&stopped.stderr);
    for word in ["error: target", "OOM", "raise maxmemory"] {
        assert!(error.contains(word), "no {word:?} in: {error}");
    }
    let copied: u64 = target.connection().exists("key:0").expect("it answers");
    let size: u64 = redis::cmd("DBSIZE").query(&mut target.connection()).expect("it answers");
    assert!(copied <= 1 && (1..4000).contains(&size), "{size} keys are there");

    target.call(&["CONFIG", "SET", "maxmemory", "0"]);
    run(&["--resume"]).expect_code(0);
    assert_equal(&Deployment::at(source.addr()).unwrap(), &Deployment::at(target.addr()).unwrap());
}

#[test]
fn options_that_make_no_sense() {
    let source = filled(Engine::Redis70);
    let target = server(Engine::Redis70);
    let (from, to) = (source.addr(), target.addr());
    let with = |args: &[&str]| copy(&from, &to).with(args).on(&target);
    with(&["--frobnicate"]).ends(USAGE, &["--frobnicate"]);
    with(&["--replace", "--skip"]).ends(USAGE, &["--replace", "--skip"]);
    with(&["--slots", "0-16384"]).ends(USAGE, &["--slots", "0-16384"]);
    with(&["--slots", "9-3"]).ends(USAGE, &["--slots", "9-3"]);
    with(&["--limit", "0"]).ends(USAGE, &["--limit"]);
    with(&["--memory", "much"]).ends(USAGE, &["--memory", "much"]);
    with(&["--rate-keys", "-1"]).ends(USAGE, &["-1"]);
    with(&["--lanes", "65"]).ends(USAGE, &["--lanes", "65"]);
    with(&["--dry-run", "--resume"]).ends(USAGE, &["--dry-run", "--resume"]);

    with(&["--match", "user:[a-z"]).ends(USAGE, &["user:[a-z", "never closed"]);
    with(&["--exclude", ""]).ends(USAGE, &["pattern is empty"]);
    with(&["--db", "x"]).ends(USAGE, &["--db x", "write a number"]);
    with(&["--db", "0:"]).ends(USAGE, &["--db 0:", "write a number"]);
    with(&["--db", "-1"]).ends(USAGE, &["-1"]);
    with(&["--db", "0:3,1:3"]).ends(USAGE, &["database 3", "mixed", "--db SOURCE:TARGET"]);
    // These are found out by asking the servers only.
    let mut connection = source.connection();
    redis::cmd("SELECT").arg(1).exec(&mut connection).expect("it has database 1");
    let () = connection.set("another", 1).expect("it can be written to");
    with(&["--db", "0:1", "--db", "all"])
        .ends(REFUSED, &["target", "database 1", "mixed", "--db SOURCE:TARGET"]);
    copy(&from, &format!("redis://{to}/4"))
        .on(&target)
        .ends(REFUSED, &["target", "database 4", "mixed", "--db SOURCE:TARGET"]);
    with(&["--db", "0:99"]).ends(REFUSED, &["target", "database 99"]);
    with(&["--db", "99:0"]).ends(REFUSED, &["source", "database 99"]);
}

#[test]
fn clusters_have_one_database() {
    let cluster = Cluster::builder(Engine::Redis70).primaries(3).start().expect("the cluster starts");
    let source = filled(Engine::Redis70);
    let mut connection = source.connection();
    redis::cmd("SELECT").arg(3).exec(&mut connection).expect("it has database 3");
    let () = connection.set("third", 1).expect("it can be written to");
    let nodes = cluster.nodes();
    let on_all = |mut refusal: Refusal<'_>| {
        let before: Vec<u64> = nodes.iter().map(writes).collect();
        refusal.untouched.clear();
        refusal.ends(REFUSED, &["target", "a cluster has one database", "--db SOURCE:TARGET"]);
        assert_eq!(before, nodes.iter().map(writes).collect::<Vec<_>>());
    };
    on_all(copy(&source.addr(), &cluster.seed()).with(&["--db", "3"]));
    on_all(copy(&source.addr(), &cluster.seed()).with(&["--db", "0:0,3:3"]));
    // Nor may another database be dropped in silence when none is named.
    on_all(copy(&source.addr(), &cluster.seed()));
    let target = server(Engine::Redis70);
    copy(&cluster.seed(), &target.addr())
        .with(&["--db", "3:0"])
        .on(&target)
        .ends(REFUSED, &["source", "database 3", "a cluster has one database"]);
}

/// While a server loads its data set it says that it holds fewer keys than it does.
fn a_server_that_is_loading(engine: Engine) {
    let open = || Server::builder(engine).arg("loading-process-events-interval-bytes", "1024");
    let slow = start(open());
    let mut pipe = redis::pipe();
    for i in 0..12_000 {
        pipe.set(format!("key:{i}"), "x".repeat(100)).ignore();
    }
    let () = pipe.query(&mut slow.connection()).expect("it takes keys");
    slow.call(&["SAVE"]);
    // Two minutes, by a delay after each key; it is taken away in the end.
    let config = slow.dir().join("server.conf");
    let text = fs::read_to_string(&config).expect("the configuration is there");
    fs::write(&config, format!("{text}key-load-delay 10000\n")).expect("it can be written");
    let other = server(engine);
    thread::scope(|scope| {
        let restarting = scope.spawn(|| slow.restart());
        // Until it answers that it loads.
        let deadline = std::time::Instant::now() + PATIENCE;
        while slow.try_call(&["GET", "key:1"]).err().is_none_or(|e| !format!("{e:?}").contains("oading")) {
            assert!(std::time::Instant::now() < deadline, "it never says that it loads");
            thread::sleep(Duration::from_millis(5));
        }
        let source = copy(&slow.addr(), &other.addr()).with(&["--replace"]).on(&other);
        source.ends(REFUSED, &["source", "loading", "wait"]);
        copy(&other.addr(), &slow.addr()).with(&["--replace"]).ends(REFUSED, &["target", "loading", "wait"]);
        slow.try_connection()
            .and_then(|_| slow.try_call(&["CONFIG", "SET", "key-load-delay", "0"]))
            .map(drop)
            .unwrap_or_default();
        restarting.join().expect("it does not panic").expect("it comes back");
    });
    let size: u64 = redis::cmd("DBSIZE").query(&mut slow.connection()).expect("it answers");
    assert_eq!(size, 12_000);
}

#[test]
fn state_folders() {
    let source = filled(Engine::Redis70);
    let target = server(Engine::Redis70);
    let folder = state_dir();
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file can be written");
    // Even root cannot make a folder there.
    let below = file.join("state").display().to_string();
    copy(&source.addr(), &target.addr())
        .with(&["--state-dir", &below])
        .on(&target)
        .ends(INTERNAL, &["the state folder", "cannot be used", &below, "--state-dir"]);
    copy(&source.addr(), &target.addr())
        .with(&["--resume"])
        .state(folder.path())
        .on(&target)
        .ends(INTERNAL, &["no unfinished job like this one", "--resume"]);
}

#[test]
fn the_same_copy_twice_at_once() {
    let source = server(Engine::Redis70);
    let target = server(Engine::Redis70);
    let mut pipe = redis::pipe();
    for i in 0..2000 {
        pipe.set(format!("key:{i}"), i).ignore();
    }
    let () = pipe.query(&mut source.connection()).expect("the source takes keys");
    let state = state_dir();
    let (from, to) = (source.addr(), target.addr());
    let args = ["copy", &from, &to, "--replace", "--rate-keys", "40", "--report", "1"];
    let mut first = Invocation::new(&args).env("XDG_STATE_HOME", state.path()).spawn();
    assert!(first.wait_for_text("written", PATIENCE), "{}", first.stderr());
    for resume in [&[][..], &["--resume"]] {
        copy(&from, &to)
            .with(&["--replace"])
            .with(resume)
            .state(state.path())
            .ends(INTERNAL, &["whimbrel", "another whimbrel is running this very job", "wait for it to end"]);
    }
    assert!(first.is_running(), "the first ended before the second was tried");
    first.wait(PATIENCE).expect("it ends").expect_code(0);
    assert_equal(&Deployment::at(from).unwrap(), &Deployment::at(to).unwrap());
}

/// The second side is looked at even where the first is wrong, and one error is enough.
#[test]
fn both_sides_wrong() {
    copy("127.0.0.1:1", "127.0.0.1:2").ends(UNREACHABLE, &["cannot connect"]);
}

#[test]
fn a_password_in_an_address_is_not_in_the_process_title() {
    let source = Server::builder(Engine::Redis70).password("sekrit-1").start().expect("the source starts");
    let target = Server::builder(Engine::Redis70).password("sekrit-2").start().expect("the target starts");
    let mut connection = source.connection();
    let mut pipeline = redis::pipe();
    for n in 0..20_000 {
        pipeline.cmd("SET").arg(n).arg(n).ignore();
    }
    pipeline.exec(&mut connection).expect("the source takes the data");
    let state = tempfile::tempdir().expect("a folder for journals");
    let args = [
        "copy".to_owned(),
        format!("redis://:sekrit-1@{}", source.addr()),
        format!("redis://:sekrit-2@{}/0", target.addr()),
        "--rate-keys".to_owned(),
        "1000".to_owned(),
    ];
    let mut copy = Invocation::new(&args).env("XDG_STATE_HOME", state.path()).spawn();
    assert!(copy.wait_for_text("written", PATIENCE), "{}", copy.stderr());
    let title = fs::read(format!("/proc/{}/cmdline", copy.pid())).expect("the process is there");
    let title = String::from_utf8_lossy(&title).into_owned();
    assert!(title.contains(&source.addr()), "{title}");
    assert!(!title.contains("sekrit"), "{title}");
    copy.wait(PATIENCE).expect("it ends").expect_code(0);
}

/// Servers find no keys of it, which looks like success.
#[test]
fn a_type_that_does_not_exist() {
    let (source, target) = (filled(Engine::Valkey81), server(Engine::Valkey81));
    for (kind, code) in [("strng", USAGE), ("string,hsh", USAGE), ("string", 0)] {
        let (from, to) = (source.addr(), target.addr());
        let state = state_dir();
        let copy = ["copy", &from, &to, "--replace", "--yes", "--type", kind];
        let output = Invocation::new(&copy).env("XDG_STATE_HOME", state.path()).run().expect_code(code);
        assert_eq!(output.stderr.contains("there is no such type"), code != 0, "{kind}: {}", output.stderr);
    }
}

/// A source that is emptied looks like one whose keys are deleted, and after SWAPDB another database is read.
#[test]
fn a_source_that_is_emptied_meanwhile() {
    for (engine, command) in [
        (Engine::Valkey81, &["FLUSHDB"][..]),
        (Engine::Redis70, &["SWAPDB", "0", "1"]),
        (Engine::Redis80, &["FLUSHALL"]),
    ] {
        let (source, target) = (server(engine), server(engine));
        let mut pipe = redis::pipe();
        for i in 0..20_000 {
            pipe.set(format!("key:{i}"), i).ignore();
        }
        let () = pipe.query(&mut source.connection()).expect("the source takes keys");
        let (from, to, state) = (source.addr(), target.addr(), state_dir());
        let copy = ["copy", &from, &to, "--rate-keys", "2000"];
        let mut running = Invocation::new(&copy).env("XDG_STATE_HOME", state.path()).spawn();
        let deadline = Instant::now() + Duration::from_secs(60);
        while target.call(&["DBSIZE"]) == redis::Value::Int(0) {
            assert!(Instant::now() < deadline, "nothing arrives");
            thread::sleep(Duration::from_millis(10));
        }
        source.call(command);
        let output = running.wait(PATIENCE).expect("it ends").expect_code(PARTIAL);
        let words = format!("{} ran on the source meanwhile (1 times)", command[0]);
        assert!(output.stderr.contains(&words), "{engine}: {}", output.stderr);
    }
}
