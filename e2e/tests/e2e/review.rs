//! Memory stays bounded whatever a key holds, and what is typed or answered in an unusual way does no harm.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Commands, ConnectionLike};
use tempfile::TempDir;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_judge::compare::assert_equal;
use whimbrel_judge::deployment::{Deployment, slot_of};
use whimbrel_lab::{Cluster, Engine, Server, ServerBuilder};

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey81:
        a_server_without_auth_does_not_make_us_print_the_password
}

/// Long enough for the largest values here.
const PATIENCE: Duration = Duration::from_secs(300);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

// Exit codes, as documented.
const SUCCESS: i32 = 0;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;

const MIB: u64 = 1 << 20;

/// What `--memory` is set to below.
const BUDGET_BYTES: u64 = 16 * MIB;

/// What a copy may need besides its budget.
const OVERHEAD_BYTES: u64 = 64 * MIB;

fn start(builder: ServerBuilder) -> Server {
    builder.start().expect("the server starts")
}

fn server(engine: Engine) -> Server {
    start(Server::builder(engine))
}

fn at(addr: impl std::fmt::Display) -> Deployment {
    Deployment::at(addr).expect("the deployment answers")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn copy(args: &[&str]) -> Output {
    let all: Vec<&str> = ["copy"].iter().chain(args).copied().collect();
    Invocation::new(&all).env("XDG_STATE_HOME", folder().path()).run()
}

/// The most memory that process `pid` has had resident; none where it has ended.
fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    kib.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Copies with a small budget and returns the peak of its memory.
#[track_caller]
fn copied_within_budget(source: &str, target: &str) -> u64 {
    let state = folder();
    let budget = BUDGET_BYTES.to_string();
    let args = ["copy", source, target, "--memory", &budget];
    let mut running = Invocation::new(&args).env("XDG_STATE_HOME", state.path()).spawn();
    let deadline = Instant::now() + PATIENCE;
    let mut peak = 0;
    while running.is_running() {
        assert!(Instant::now() < deadline, "it still runs after {PATIENCE:?}:\n{}", running.stderr());
        peak = peak_bytes(running.pid()).map_or(peak, |now| now.max(peak));
        thread::sleep(POLL_INTERVAL);
    }
    running.wait(PATIENCE).expect("it has ended").expect_code(SUCCESS);
    assert!(peak > 0, "the peak was never seen");
    peak
}

/// Enough short strings for the average to say nothing of the one that is large.
fn short_strings(connection: &mut dyn ConnectionLike, count: usize) {
    for from in (0..count).step_by(10_000) {
        let mut pipe = redis::pipe();
        for i in from..count.min(from + 10_000) {
            pipe.set(format!("short:{i}"), format!("{i:0>100}")).ignore();
        }
        let () = pipe.query(connection).expect("it takes keys");
    }
}

const LARGE_BYTES: usize = 120_000_000;

fn large_string(connection: &mut impl Commands) {
    let () =
        connection.setrange("large", LARGE_BYTES as isize - 5, "x-end").expect("it takes a large string");
}

#[test]
fn a_large_string_among_short_ones_is_not_held() {
    let (source, target) = (server(Engine::Redis70), server(Engine::Valkey81));
    let mut connection = source.connection();
    short_strings(&mut connection, 100_000);
    large_string(&mut connection);
    let peak = copied_within_budget(&source.addr(), &target.addr());
    assert!(peak <= BUDGET_BYTES + OVERHEAD_BYTES, "{peak} bytes");
    assert_equal(&at(source.addr()), &at(target.addr()));
}

/// There values are read without transactions, each in a reply of its own.
#[test]
fn a_large_string_of_a_cluster_is_not_held() {
    let source = Cluster::builder(Engine::Valkey81).primaries(1).start().expect("the cluster starts");
    let target = server(Engine::Redis70);
    let mut connection = source.connection_to(0);
    short_strings(&mut connection, 100_000);
    large_string(&mut connection);
    let peak = copied_within_budget(&source.seed(), &target.addr());
    assert!(peak <= BUDGET_BYTES + OVERHEAD_BYTES, "{peak} bytes");
    assert_equal(&at(source.seed()), &at(target.addr()));
}

/// An element is the least that can be moved, so one that is itself larger than the budget is held all the
/// same.
const COPIES_OF_AN_ELEMENT: u64 = 3;

#[test]
fn a_large_field_among_small_ones_is_held_alone() {
    const FIELD_BYTES: usize = 100_000_000;
    // The second has few enough to be looked at one by one, were it not for how few a server looks at by
    // default.
    for small in [2_000, 7] {
        let (source, target) = (server(Engine::Redis70), server(Engine::Redis80));
        let mut pipe = redis::pipe();
        for i in 0..small {
            pipe.hset("hash", format!("field:{i}"), "v").ignore();
        }
        let () = pipe.query(&mut source.connection()).expect("it takes fields");
        let () =
            source.connection().hset("hash", "large", noise(FIELD_BYTES)).expect("it takes a large field");
        let peak = copied_within_budget(&source.addr(), &target.addr());
        let held = COPIES_OF_AN_ELEMENT * FIELD_BYTES as u64;
        assert!(peak <= BUDGET_BYTES + OVERHEAD_BYTES + held, "{small} small fields: {peak} bytes");
        assert!(!was_dumped(&source), "{small} small fields: it was read in one piece");
        assert_equal(&at(source.addr()), &at(target.addr()));
    }
}

/// Bytes that do not compress, so that a payload is as long as what it holds.
fn noise(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

/// Whether a large payload was asked for. A server is also probed with keys that do not exist, which takes it
/// no time worth counting, unless a busy machine interrupts it just then.
fn was_dumped(server: &Server) -> bool {
    let text: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).expect("it answers");
    let stats = text.lines().find_map(|line| line.strip_prefix("cmdstat_dump:"));
    let usec = stats.and_then(|stats| stats.split(',').find_map(|field| field.strip_prefix("usec=")));
    usec.is_some_and(|usec| usec.parse::<u64>().expect("a number") > 100_000)
}

#[test]
fn large_elements_of_a_list_are_moved_one_by_one() {
    const ELEMENT_BYTES: usize = 20_000_000;
    let (source, target) = (server(Engine::Redis70), server(Engine::Redis70));
    for i in 0..8u8 {
        let () = source
            .connection()
            .rpush("list", vec![b'a' + i; ELEMENT_BYTES])
            .expect("it takes a large element");
    }
    let peak = copied_within_budget(&source.addr(), &target.addr());
    let held = COPIES_OF_AN_ELEMENT * ELEMENT_BYTES as u64;
    assert!(peak <= BUDGET_BYTES + OVERHEAD_BYTES + held, "{peak} bytes");
    assert_equal(&at(source.addr()), &at(target.addr()));
}

/// Servers and proxies quote what they do not understand, and a password is what `AUTH` is sent.
fn a_server_without_auth_does_not_make_us_print_the_password(engine: Engine) {
    const SECRET: &str = "hunter2secret";
    let nameless = start(Server::builder(engine).arg("rename-command", "AUTH ZZZ"));
    let other = server(Engine::Redis70);
    for login in [format!("bob:{SECRET}"), format!(":{SECRET}")] {
        let with_login = format!("redis://{login}@{}", nameless.addr());
        for (from, to) in [(&with_login, &other.addr()), (&other.addr(), &with_login)] {
            for extra in [&[][..], &["--json"]] {
                let args: Vec<&str> = [from.as_str(), to].iter().chain(extra).copied().collect();
                let output = copy(&args).expect_code(UNREACHABLE);
                for text in [&output.stdout, &output.stderr] {
                    assert!(!text.contains(SECRET), "{text}");
                }
                let printed = format!("{}{}", output.stdout, output.stderr);
                assert!(printed.contains("knows no AUTH command"), "{printed}");
            }
        }
    }
}

#[test]
fn types_are_named_in_any_case_and_never_empty() {
    let source = server(Engine::Redis70);
    for command in [
        &["SET", "text", "value"][..],
        &["RPUSH", "list", "a", "b"],
        &["HSET", "hash", "field", "value"],
        &["SADD", "set", "a", "b"],
    ] {
        source.call(command);
    }
    for (types, expected) in
        [("String,List", &["list", "text"][..]), ("HASH", &["hash"]), ("set,string", &["set", "text"])]
    {
        let target = server(Engine::Redis70);
        copy(&[&source.addr(), &target.addr(), "--type", types]).expect_code(SUCCESS);
        let mut keys: Vec<String> = target.connection().keys("*").expect("it lists its keys");
        keys.sort_unstable();
        assert_eq!(keys, expected, "{types}");
    }
    let target = server(Engine::Redis70);
    for types in ["", "string,,list"] {
        copy(&[&source.addr(), &target.addr(), "--type", types]).expect_code(USAGE);
    }
}

/// The node that takes a slot over answers `TYPE` of its keys with a redirection, until the slot is its own.
#[test]
fn types_of_keys_on_the_move_are_found_out() {
    let source = Cluster::builder(Engine::Redis80).primaries(2).start().expect("the cluster starts");
    let target = server(Engine::Redis80);
    let slot = slot_of(b"{a}");
    let from = source.owner_of(slot).expect("the slot has an owner");
    let to = 1 - from;
    let (owner, taker) = (&source.nodes()[from], &source.nodes()[to]);
    owner.call(&["SET", "{a}:stays", "value"]);
    owner.call(&["SET", "{a}:moves", "value"]);
    owner.call(&["HSET", "{a}:hash", "field", "value"]);
    let (number, port) = (slot.to_string(), taker.port().to_string());
    taker.call(&["CLUSTER", "SETSLOT", &number, "IMPORTING", source.node_id(from)]);
    owner.call(&["CLUSTER", "SETSLOT", &number, "MIGRATING", source.node_id(to)]);
    let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "30000", "KEYS"];
    owner.call(&[&migrate[..], &["{a}:moves", "{a}:hash"]].concat());

    let state = folder();
    let args = ["copy", &source.seed(), &target.addr(), "--type", "string,list"];
    let mut running = Invocation::new(&args).env("XDG_STATE_HOME", state.path()).spawn();
    let deadline = Instant::now() + PATIENCE;
    // Whatever is copied of the half that moved is there before the copy is whole.
    while running.is_running() && !target.connection().exists("{a}:moves").unwrap_or(false) {
        assert!(Instant::now() < deadline, "the key on the move never came:\n{}", running.stderr());
        thread::sleep(POLL_INTERVAL);
    }
    owner.call(&[&migrate[..], &["{a}:stays"]].concat());
    for node in [taker, owner] {
        node.call(&["CLUSTER", "SETSLOT", &number, "NODE", source.node_id(to)]);
    }
    running.wait(PATIENCE).expect("it ends").expect_code(SUCCESS);
    let mut keys: Vec<String> = target.connection().keys("*").expect("it lists its keys");
    keys.sort_unstable();
    assert_eq!(keys, ["{a}:moves", "{a}:stays"]);
}

#[test]
fn sockets_may_come_with_a_login() {
    let source = start(Server::builder(Engine::Redis70).unix_socket().user_acl("bob on >p@ss ~* +@all"));
    source.call(&["SET", "key", "value"]);
    let target = start(Server::builder(Engine::Redis70).unix_socket().user_acl("bob on >p@ss ~* +@all"));
    let login = |server: &Server, password: &str| {
        let path = server.unix_socket().expect("it has a socket").display().to_string();
        format!("unix://bob:{password}@{path}")
    };
    copy(&[&login(&source, "p%40ss"), &login(&target, "p%40ss")]).expect_code(SUCCESS);
    assert_equal(&at(source.addr()), &at(target.addr()));
    copy(&[&login(&source, "wrong"), &login(&target, "p%40ss")]).expect_code(UNREACHABLE);
}
