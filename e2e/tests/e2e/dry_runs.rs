//! Where a command refuses, its dry run refuses: with the same words and the same exit code.

use std::time::Duration;

use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::fleets::Fleet;
use whimbrel_e2e::fronts::Front;
use whimbrel_e2e::resharding::Scene;
use whimbrel_e2e::syncing::{Sync, wait_until_following};
use whimbrel_lab::{Cluster, Engine, Server};

/// Nobody waits for a port at which nobody listens.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder that no job can be written down in.
const NO_FOLDER: &str = "/dev/null/whimbrel";

/// What it says is wrong, and what to do.
fn refusal(output: &Output) -> String {
    let error_in = |text: &str| text.find("error: ").map(|at| text[at..].to_owned());
    error_in(&output.stderr).or_else(|| error_in(&output.stdout)).unwrap_or_default()
}

/// Runs it as a dry run, and then as it is: neither does anything, and both say the same.
#[track_caller]
fn both_refuse(args: &[&str]) {
    let run = |how| Invocation::unasked(&[args, &[how]].concat()).timeout(PATIENCE).run();
    let (dry, real) = (run("--dry-run"), run("--yes"));
    let (found, expected) = (refusal(&dry), refusal(&real));
    assert!(matches!(real.code(), Some(1..=4)), "{args:?} is no refusal: {real:#?}");
    assert_eq!((dry.code(), found), (real.code(), expected), "{args:?}: {dry:#?}");
}

/// A user who may do everything but that.
fn deny(servers: &[Server], rules: &[&str]) {
    for server in servers {
        server
            .call(&[&["ACL", "SETUSER", "mover", "reset", "on", ">x", "~*", "&*", "+@all"], rules].concat());
    }
}

fn as_mover(server: &Server) -> String {
    format!("redis://mover:x@{}", server.addr())
}

/// Two servers, the source with keys, and a folder for jobs.
struct Pair {
    source: Server,
    target: Server,
    folder: tempfile::TempDir,
}

impl Pair {
    fn start(engine: Engine) -> Pair {
        let server = || Server::builder(engine).start().expect("the server starts");
        let pair =
            Pair { source: server(), target: server(), folder: tempfile::tempdir().expect("a folder") };
        pair.source.call(&["SET", "k", "v"]);
        pair.source.call(&["RPUSH", "list", "a", "b"]);
        deny(std::slice::from_ref(&pair.source), &[]);
        deny(std::slice::from_ref(&pair.target), &[]);
        pair
    }

    /// With a state folder that is of use, where no other is named.
    #[track_caller]
    fn both_refuse(&self, command: &str, (source, target): (&str, &str), more: &[&str]) {
        let state = ["--state-dir", self.folder.path().to_str().expect("a name")];
        let state = if more.contains(&"--state-dir") { &[][..] } else { &state[..] };
        // Only who says nothing at all is waited for so long.
        let patience = if source.starts_with("rediss:") { "1s" } else { "10s" };
        let common = ["--connect-timeout", patience, "--retry-for", "2s"];
        both_refuse(&[&[command, source, target], state, &common, more].concat());
        let keys = self.target.call(&["DBSIZE"]);
        assert!(matches!(keys, redis::Value::Int(0..=1)), "{command} {more:?} has written {keys:?}");
    }
}

#[test]
fn of_copies_and_syncs() {
    let pair = Pair::start(Engine::Redis70);
    let (from, to) = (pair.source.addr(), pair.target.addr());
    let (source, target) = (as_mover(&pair.source), as_mover(&pair.target));
    let replica = Server::builder(Engine::Redis70).arg("replicaof", &to.replace(':', " ")).start();
    let replica = replica.expect("the replica starts");
    let lonely = Server::builder(Engine::Redis70).arg("min-replicas-to-write", "1").start();
    let lonely = lonely.expect("the server starts");
    let wrong = from.replace("127.0.0.1", "redis://mover:wrong@127.0.0.1");
    let tls = format!("rediss://{from}");
    let nobody = "127.0.0.1:1";
    for command in ["copy", "sync"] {
        let refuse = |sides: (&str, &str), more: &[&str]| pair.both_refuse(command, sides, more);
        refuse((&wrong, &to), &[]);
        refuse((&from, &to.replace("127.0.0.1", "redis://mover:wrong@127.0.0.1")), &[]);
        refuse((nobody, &to), &[]);
        refuse((&from, nobody), &[]);
        refuse((&from, &from), &[]);
        refuse((&tls, &to), &[]);
        refuse((&from, &replica.addr()), &[]);
        refuse((&from, &lonely.addr()), &[]);
        refuse((&from, &to), &["--db", "99"]);
        refuse((&from, &to), &["--db", "0:99"]);
        refuse((&from, &to), &["--on", "moved=true"]);
        refuse((&from, &to), &["--state-dir", NO_FOLDER]);
        deny(std::slice::from_ref(&pair.source), &["-scan"]);
        refuse((&source, &to), &[]);
        deny(std::slice::from_ref(&pair.source), &["-@all"]);
        refuse((&source, &to), &[]);
        deny(std::slice::from_ref(&pair.source), &[]);
        deny(std::slice::from_ref(&pair.target), &["-@write"]);
        refuse((&from, &target), &[]);
        deny(std::slice::from_ref(&pair.target), &[]);
        pair.target.call(&["SET", "k", "another"]);
        refuse((&from, &to), &[]);
        pair.target.call(&["DEL", "k"]);
    }
    pair.both_refuse("copy", (&from, &to), &["--type", "strng"]);
    deny(std::slice::from_ref(&pair.source), &["-psync"]);
    pair.both_refuse("sync", (&source, &to), &["--feed", "replication"]);
}

#[test]
fn of_cutovers() {
    let pair = Pair::start(Engine::Valkey81);
    let job = Sync::new(&as_mover(&pair.source), &as_mover(&pair.target), &[]);
    let folder = job.state.path().join("whimbrel");
    let state = folder.to_str().expect("a name");
    both_refuse(&["cutover", "--state-dir", state, "--fence", "none"]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let refuse = |more: &[&str]| {
        both_refuse(&[&["cutover", "--state-dir", state, "--max-pause", "10s"], more].concat());
    };
    refuse(&["--fence", "acl", "--back"]);
    refuse(&["--fence", "front"]);
    refuse(&["--fence", "external", "--reverse-sync"]);
    refuse(&["--fence", "none", "another"]);
    for (right, fence) in
        [("-client|pause", "none"), ("-acl|setuser", "acl"), ("-replicaof", "readonly-replica")]
    {
        deny(std::slice::from_ref(&pair.source), &[right]);
        refuse(&["--fence", fence]);
    }
    deny(std::slice::from_ref(&pair.source), &[]);
    pair.target.call(&["SET", "stray", "1"]);
    refuse(&["--fence", "none", "--compare", "full"]);
}

/// By rights, by what moves, and by what the cluster is like.
fn of_moves_of_slots(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=5_460], vec![5_461..=10_922], vec![10_923..=16_383]]).start();
    scene.fill(0..=9, 1, 20);
    let cluster: &Cluster = &scene.cluster;
    let seed = as_mover(&cluster.nodes()[0]);
    let (first, second) = (cluster.node_id(0), cluster.node_id(1));
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a name");
    let refuse = |args: &[&str]| both_refuse(&[args, &["--state-dir", state]].concat());
    deny(cluster.nodes(), &[]);
    let move_ten = ["reshard", &seed, "--slots", "0-9", "--to", second, "--method", "external"];
    // A busy machine must not have it refused for its pauses.
    let move_ten = [&move_ten[..], &["--max-pause", "5s"]].concat();
    let before = scene.unwritten();
    refuse(&["reshard", "127.0.0.1:1", "--slots", "0-9", "--to", second]);
    refuse(&["reshard", &seed, "--slots", "0-9", "--to", "0123456789"]);
    refuse(&["reshard", &seed, "--from", first, "--count", "9999", "--to", second]);
    refuse(&["drain", &seed, "0123456789"]);
    refuse(&["rebalance", &seed, "--weight", "0123456789=2"]);
    both_refuse(&[&move_ten[..], &["--state-dir", NO_FOLDER]].concat());
    refuse(&[&move_ten[..], &["--on", "cutover-ready=true"]].concat());
    for right in [
        "cluster|setslot",
        "cluster|addslots",
        "cluster|delslots",
        "cluster|getkeysinslot",
        "cluster|nodes",
        "client|pause",
        "client|unpause",
        "client|list",
        "dump",
        "restore",
        "unlink",
        "wait",
        "multi",
        "discard",
    ] {
        deny(cluster.nodes(), &[&format!("-{right}")]);
        refuse(&move_ten);
    }
    for right in ["cluster|setslot", "cluster|getkeysinslot", "migrate", "restore-asking"] {
        deny(cluster.nodes(), &[&format!("-{right}")]);
        refuse(&["reshard", &seed, "--slots", "0-9", "--to", second, "--method", "legacy"]);
    }
    deny(cluster.nodes(), &[]);
    cluster.nodes()[1].call(&["CLUSTER", "SETSLOT", "5", "IMPORTING", first]);
    refuse(&move_ten);
    cluster.nodes()[1].call(&["CLUSTER", "SETSLOT", "5", "STABLE"]);
    scene.assert_unchanged(&before);
    let left = Invocation::unasked(&["jobs", "list", "--json", "--state-dir", state]).run().expect_code(0);
    assert_eq!(left.stdout, "", "a job is left of what was refused");
    cluster.nodes()[2].kill9().expect("killed");
    refuse(&["drain", &seed, cluster.node_id(2)]);
    refuse(&["rebalance", &seed]);
}

#[test]
fn of_moves_of_slots_redis_7_0() {
    of_moves_of_slots(Engine::Redis70);
}

#[test]
fn of_moves_of_slots_valkey_9_1() {
    of_moves_of_slots(Engine::Valkey91);
}

#[test]
fn of_fronts() {
    let pair = Pair::start(Engine::Redis70);
    let (source, target) = (&pair.source, &pair.target);
    let front = Front::between(&as_mover(source), &as_mover(target), &[]);
    let refuse = |what: &str| both_refuse(&["front", what, "--state-dir", front.state_dir()]);
    refuse("reverse");
    refuse("finish");
    target.call(&["SET", "k", "there already"]);
    refuse("start");
    target.call(&["DEL", "k"]);
    for right in ["-client|kill", "-unlink"] {
        deny(std::slice::from_ref(source), &[right]);
        refuse("start");
    }
    deny(std::slice::from_ref(source), &[]);
    let library = |n: u8| format!("#!lua name=lib\nredis.register_function('f', function() return {n} end)");
    source.call(&["FUNCTION", "LOAD", &library(1)]);
    target.call(&["FUNCTION", "LOAD", &library(2)]);
    refuse("start");
    target.call(&["FUNCTION", "FLUSH"]);
    let would = |what: &str, plan: &str| {
        let args = ["front", what, "--state-dir", front.state_dir(), "--dry-run"];
        let printed = Invocation::unasked(&args).run().expect_code(0).stdout;
        assert!(printed.contains(plan) && printed.contains("nothing was changed"), "{printed}");
    };
    would("start", &format!("2 keys would move from {} to {}", source.addr(), target.addr()));
    assert_eq!(front.status()["phase"], "forwarding", "that was a dry run");
    front.command("start").expect_code(0);
    // Until then it says that they are moving, and afterwards that they have moved.
    whimbrel_lab::wait_until("all keys have moved", || front.status()["phase"] == "done");
    refuse("start");
    would("reverse", &format!("2 keys would move from {} to {}", target.addr(), source.addr()));
    would("finish", "the front would end and disconnect 0 clients");
    assert_eq!(front.status()["reversals"], 0, "those were dry runs");
    both_refuse(&["front", "finish", "--state-dir", NO_FOLDER]);
}

#[test]
fn of_fleets() {
    let backend = Server::builder(Engine::Valkey81).start().expect("the server starts");
    let mut fleet = Fleet::start(&backend.addr(), 1, &[]);
    let at = fleet.coordinator();
    let refuse = |words: &[&str]| both_refuse(&[&["fleet"], words, &["--server", &at]].concat());
    for order in ["leave", "drain"] {
        refuse(&[order, "front-0"]);
        refuse(&[order, "another"]);
        both_refuse(&["fleet", order, "front-0", "--server", "127.0.0.1:1"]);
    }
    refuse(&["drain", "--backend", "main"]);
    refuse(&["drain", "--backend", "another"]);
    fleet.join("front-1", &[]);
    fleet.settled(2);
    let args = ["fleet", "leave", "front-1", "--server", &at, "--dry-run"];
    let printed = Invocation::unasked(&args).run().expect_code(0).stdout;
    assert!(
        printed.contains("member 2 (front-1) of a fleet of 2 members give all its partitions"),
        "{printed}"
    );
    assert_eq!(fleet.settled(2)["fleet"]["members"].as_array().map(Vec::len), Some(2), "that was a dry run");
}

/// Somebody has paused the clients of a server: it answers, but not what writes. Both runs end in bounded
/// time, say so and name the server.
#[track_caller]
fn both_name_the_pause_of(server: &Server, args: &[&str]) {
    server.call(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    // They wait for the same pause, so they may do so at once.
    let begun =
        ["--dry-run", "--yes"].map(|how| (how, Invocation::unasked(&[args, &[how]].concat()).spawn()));
    for (how, mut running) in begun {
        let ended = running.wait(PATIENCE).unwrap_or_else(|| panic!("{args:?} {how} does not end"));
        let message = refusal(&ended.expect_code(3));
        for words in [&*server.addr(), "its clients are paused", "CLIENT PAUSE", "CLIENT UNPAUSE"] {
            assert!(message.contains(words), "{args:?} {how}: {words}: {message}");
        }
    }
    server.call(&["CLIENT", "UNPAUSE"]);
}

fn paused_clients_are_named(engine: Engine) {
    let pair = Pair::start(engine);
    let (source, target) = (pair.source.addr(), pair.target.addr());
    let folder = pair.folder.path().to_str().expect("a name");
    for command in ["copy", "sync"] {
        both_name_the_pause_of(&pair.target, &[command, &source, &target, "--state-dir", folder]);
    }
    let front = Front::between(&source, &target, &[]);
    for server in [&pair.source, &pair.target] {
        both_name_the_pause_of(server, &["front", "start", "--state-dir", front.state_dir()]);
    }
    assert_eq!(pair.target.call(&["DBSIZE"]), redis::Value::Int(0), "something was written");
    let scene = Scene::of(engine, 0, &[vec![0..=5_460], vec![5_461..=10_922], vec![10_923..=16_383]]).start();
    scene.fill(0..=9, 1, 20);
    let seed = scene.cluster.seed();
    let move_ten = ["reshard", &seed, "--slots", "0-9", "--to", scene.cluster.node_id(1)];
    let external = ["--method", "external", "--max-pause", "5s", "--state-dir", folder];
    let move_ten = [&move_ten[..], &external].concat();
    for node in [0, 1] {
        both_name_the_pause_of(&scene.cluster.nodes()[node], &move_ten);
    }
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        paused_clients_are_named
}

/// One answer says whether the user may write, and whether the server takes writes at all.
#[test]
fn a_target_that_has_stopped_writes_is_asked_once() {
    let pair = Pair::start(Engine::Redis70);
    pair.target.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    pair.target.call(&["CONFIG", "RESETSTAT"]);
    let (source, target) = (pair.source.addr(), pair.target.addr());
    let refused = Invocation::unasked(&["copy", &source, &target, "--dry-run"]).timeout(PATIENCE).run();
    let message = refusal(&refused.expect_code(4));
    assert!(message.contains("NOREPLICAS") && message.contains("has stopped writes"), "{message}");
    let counted = format!("{:?}", pair.target.call(&["INFO", "commandstats"]));
    let sets = counted.split("cmdstat_set:").nth(1).unwrap_or_else(|| panic!("{counted}"));
    assert!(sets.split("rejected_calls=").nth(1).is_some_and(|n| n.starts_with("1,")), "{sets}");
}
