//! What changes data asks first, and takes no answer that was given before the question.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::fleets::Fleet;
use whimbrel_e2e::fronts::Front;
use whimbrel_e2e::syncing::{PATIENCE, Sync, wait_until_following};
use whimbrel_e2e::terminal::Terminal;
use whimbrel_lab::{Cluster, Engine, Server, wait_until};

// Exit codes, as documented.
const REFUSED: i32 = 4;
const PROBLEM: i32 = 8;
const STOPPED: i32 = 130;

/// Longer than a process takes that has its answer.
const A_WHILE: Duration = Duration::from_secs(2);

/// A busy machine must not have a plan refused for its pauses.
const LONG_PAUSE: [&str; 2] = ["--max-pause", "5s"];

fn cluster() -> Cluster {
    Cluster::builder(Engine::Valkey81).primaries(3).start().expect("the cluster starts")
}

fn owners(cluster: &Cluster) -> Vec<usize> {
    (0..16384).step_by(1024).map(|slot| cluster.owner_of(slot).expect("it has one")).collect()
}

#[test]
fn what_was_typed_before_the_question_is_no_answer() {
    let cluster = cluster();
    let (seed, before) = (cluster.seed(), owners(&cluster));
    let leaving = cluster.node_id(2).to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain name");
    let mut terminal = Terminal::new(200);
    terminal.press("y\n");
    let args = [&["drain", &seed, &leaving, "--state-dir", state], &LONG_PAUSE[..]].concat();
    let mut asked = terminal.start(&args, &[]);
    asked.wait_for(&format!("in the cluster at {seed}? [y/N] "));
    thread::sleep(A_WHILE);
    assert_eq!(asked.ended(), None, "it took an answer from before: {}", terminal.shown());
    asked.press("n\n");
    let shown = asked.expect_code(STOPPED);
    assert!(shown.contains("nothing was done"), "{shown}");
    assert_eq!(owners(&cluster), before);
}

/// A plan says what may be done. When its question was open for a while, that is found out again before a job
/// is written down.
#[test]
fn a_plan_that_was_open_for_a_while_is_looked_at_again() {
    let cluster = cluster();
    let (seed, before) = (cluster.seed(), owners(&cluster));
    let leaving = cluster.node_id(2).to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain name");
    let terminal = Terminal::new(200);
    let external = ["--method", "external"];
    let args = [&["drain", &seed, &leaving, "--state-dir", state], &external[..], &LONG_PAUSE].concat();
    let mut asked = terminal.start(&args, &[]);
    asked.wait_for("[y/N] ");
    for node in cluster.nodes() {
        node.call(&["ACL", "SETUSER", "default", "-cluster|setslot"]);
    }
    thread::sleep(A_WHILE);
    asked.press("y\n");
    let shown = asked.expect_code(REFUSED);
    assert!(shown.contains("setslot"), "{shown}");
    assert_eq!(owners(&cluster), before);
    let jobs = std::fs::read_dir(folder.path().join("jobs")).map_or(0, Iterator::count);
    assert_eq!(jobs, 0, "a job was written down");
}

fn server() -> Server {
    Server::builder(Engine::Valkey81).start().expect("the server starts")
}

/// A source with three keys, and a target with one of them and two others.
fn source_and_target() -> (Server, Server) {
    let (source, target) = (server(), server());
    for key in ["a", "b", "c"] {
        source.call(&["SET", key, "source"]);
    }
    for key in ["a", "d", "e"] {
        target.call(&["SET", key, "target"]);
    }
    (source, target)
}

fn value(server: &Server, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(&mut server.connection()).expect("an answer")
}

/// Runs it without a terminal: it changes nothing, and says what would.
#[track_caller]
fn is_refused(args: &[&str]) -> Output {
    let output = Invocation::unasked(args).run().expect_code(REFUSED);
    for words in ["there is no terminal to ask on", "add --yes to do it without being asked"] {
        assert!(output.stdout.contains(words) || output.stderr.contains(words), "{output:#?}");
    }
    output
}

#[test]
fn replacing_and_removing_keys_asks_and_a_dry_run_counts_them() {
    let (source, target) = source_and_target();
    let (from, to) = (source.addr(), target.addr());
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain name");
    let copy = ["copy", &from, &to, "--state-dir", state, "--replace"];
    let sync = ["sync", &from, &to, "--state-dir", state, "--mirror", "--once"];
    let unchanged = || {
        let held: Vec<Option<String>> = ["a", "b", "d"].map(|key| value(&target, key)).to_vec();
        assert_eq!(held, [Some("target".to_owned()), None, Some("target".to_owned())]);
    };
    is_refused(&copy);
    is_refused(&sync);
    let json = is_refused(&[&sync[..], &["--json"]].concat());
    let last: Value = serde_json::from_str(json.stdout.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["event"], &last["exit"]), (&"error".into(), &REFUSED.into()));
    unchanged();
    // A key that expires some day would be lost all the same.
    target.call(&["PEXPIRE", "d", "86400000"]);
    let sync_rehearsal = ["sync", &from, &to, "--state-dir", state, "--mirror", "--dry-run"];
    let rehearsed = Invocation::unasked(&sync_rehearsal).run().expect_code(0);
    for expected in ["up to 1 key would be replaced", "2 keys that only the target has would be removed"] {
        assert!(rehearsed.stderr.contains(expected), "{}", rehearsed.stderr);
    }
    let rehearsed = Invocation::unasked(&[&copy[..], &["--dry-run", "--json"]].concat()).run().expect_code(0);
    assert!(rehearsed.stdout.contains(r#""removed":0,"replaced":1"#), "{}", rehearsed.stdout);
    unchanged();
    // A yes is too easily said where keys are lost.
    let terminal = Terminal::new(200);
    let mut asked = terminal.start(&sync, &[]);
    let question = format!("The target, {to}, holds 3 keys: they are made equal to the source's, or removed");
    asked.wait_for(&question);
    asked.wait_for(&format!("Type {to} to go on: "));
    asked.press("y\n");
    asked.expect_code(STOPPED);
    unchanged();
    let terminal = Terminal::new(200);
    let mut asked = terminal.start(&sync, &[]);
    asked.wait_for("to go on: ");
    asked.press(&format!("{to}\n"));
    asked.expect_code(0);
    assert_eq!((value(&target, "a"), value(&target, "d")), (Some("source".to_owned()), None));
    // Nothing is lost where nothing is.
    target.call(&["FLUSHALL"]);
    Invocation::unasked(&copy).run().expect_code(0);
}

#[test]
fn a_cutover_asks() {
    let (source, target) = source_and_target();
    target.call(&["FLUSHALL"]);
    let job = Sync::new(&source.addr(), &target.addr(), &[]);
    let mut sync = job.start(&[]);
    wait_until_following(&mut sync);
    let state = job.state.path().join("whimbrel");
    let state = state.to_str().expect("a plain name");
    let cutover = ["cutover", "--state-dir", state, "--fence", "pause", "--max-pause", "20s"];
    is_refused(&cutover);
    source.call(&["SET", "a", "again"]);
    Invocation::unasked(&["cutover", "--state-dir", state, "--dry-run", "--max-pause", "20s"])
        .run()
        .expect_code(0);
    let terminal = Terminal::new(200);
    let mut asked = terminal.start(&cutover, &[]);
    asked.wait_for(&format!("and have the target ({}) take over? [y/N] ", target.addr()));
    asked.press("y\n");
    asked.expect_code(0);
    let output = sync.wait(PATIENCE).expect("it ends").expect_code(0);
    assert!(output.stdout.contains("cut-over") || output.stdout.contains("cutover"), "{output:#?}");
}

#[test]
fn what_changes_where_a_front_has_its_clients_served_from_asks() {
    let (source, target) = source_and_target();
    target.call(&["FLUSHALL"]);
    let front = Front::between(&source.addr(), &target.addr(), &[]);
    let state = front.state_dir();
    is_refused(&["front", "start", "--state-dir", state]);
    is_refused(&["front", "reverse", "--state-dir", state, "--json"]);
    assert_eq!(front.status()["phase"], "forwarding");
    Invocation::unasked(&["front", "start", "--yes", "--state-dir", state]).run().expect_code(0);
    let mut client = front.connect();
    redis::cmd("PING").exec(&mut client).expect("it is served");
    wait_until("all keys have moved", || front.status()["phase"] == "done");
    let terminal = Terminal::new(200);
    let mut asked = terminal.start(&["front", "finish", "--state-dir", state], &[]);
    asked.wait_for("It disconnects 1 client, ");
    asked.interrupt();
    let shown = asked.expect_code(STOPPED);
    assert!(shown.contains("nothing was done") && !shown.contains("in flight"), "{shown}");
    redis::cmd("PING").exec(&mut client).expect("it is served still");
}

#[test]
fn members_of_a_fleet_are_emptied_after_a_question() {
    let backend = server();
    let fleet = Fleet::start(&backend.addr(), 2, &[]);
    let at = fleet.coordinator();
    for what in ["drain", "leave"] {
        is_refused(&["fleet", what, "front-0", "--server", &at]);
    }
    let terminal = Terminal::new(200);
    let mut asked = terminal.start(&["fleet", "drain", "front-0", "--server", &at], &[]);
    asked.wait_for("(front-0) of a fleet of 2 members give all its partitions");
    asked.press("no\n");
    asked.expect_code(STOPPED);
    fleet.settled(2);
}

#[test]
fn text_fits_the_terminal_and_no_word_is_broken() {
    let cluster = cluster();
    let (seed, leaving) = (cluster.seed(), cluster.node_id(2).to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain name");
    let args = [&["drain", &seed, &leaving, "--state-dir", state], &LONG_PAUSE[..]].concat();
    let plain = Invocation::unasked(&[&args[..], &["--dry-run"]].concat()).run().expect_code(0);
    assert!(plain.stderr.lines().any(|line| line.starts_with("move") && line.len() > 80), "{}", plain.stderr);
    for columns in [50, 80, 120, 200] {
        let terminal = Terminal::new(columns);
        let shown = terminal.start(&[&args[..], &["--dry-run"]].concat(), &[]).expect_code(0);
        for line in shown.lines() {
            assert!(line.trim_end().chars().count() <= usize::from(columns), "{columns}: {line}");
        }
        assert_eq!(words(&shown), words(&plain.stderr), "{columns}: {shown}");
    }
    let terminal = Terminal::new(50);
    let mut asked = terminal.start(&args, &[]);
    asked.wait_for("[y/N] ");
    asked.press("y\n");
    let shown = asked.expect_code(0);
    assert!(shown.contains("verified yes: source and target were compared"), "{shown}");
}

/// The words of a plan, without what is measured anew each time.
fn words(plan: &str) -> Vec<&str> {
    let is_measured = |word: &&str| matches!(*word, "ms" | "µs" | "s") || word.contains(char::is_numeric);
    plan.split_whitespace().filter(|word| !is_measured(word)).collect()
}

#[test]
fn a_repair_has_the_cluster_named() {
    let cluster = cluster();
    cluster.nodes()[0].call(&["CLUSTER", "DELSLOTS", "5"]);
    let seed = cluster.seed();
    let mut terminal = Terminal::new(200);
    terminal.press(&format!("y\n{seed}\n"));
    let mut asked = terminal.start(&["repair", &seed], &[]);
    asked.wait_for(&format!("Type {seed} to go on: "));
    thread::sleep(A_WHILE);
    assert_eq!(asked.ended(), None, "it took an answer from before: {}", terminal.shown());
    asked.press("y\n");
    asked.expect_code(STOPPED);
    Invocation::unasked(&["status", &seed]).run().expect_code(PROBLEM);
    let terminal = Terminal::new(200);
    let mut asked = terminal.start(&["repair", &seed], &[]);
    asked.wait_for("to go on: ");
    asked.press(&format!("{seed}\n"));
    asked.expect_code(0);
}
