//! `whimbrel status` sees what is wrong in a cluster, and `whimbrel repair` repairs it without losing a key.

mod finishing;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Connection, Value, cmd};
use serde_json::Value as Json;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_e2e::permissions::{documented, give};
use whimbrel_e2e::shards::assert_sound;
use whimbrel_judge::cluster_writers::tags_in;
use whimbrel_judge::compare::{Snapshot, diff, snapshot};
use whimbrel_judge::deployment::{Deployment, cluster_client};
use whimbrel_lab::{Cluster, Engine, wait_until};

whimbrel_lab::for_each_engine! {
    a_move_that_has_not_begun_is_undone
    a_half_moved_slot_is_finished
    a_slot_without_owner_goes_to_who_has_its_keys
    a_slot_between_fence_and_takeover_goes_back_to_its_source
    a_node_that_takes_another_one_for_the_owner_is_reported
    a_replica_that_nobody_votes_for_learns_what_its_primary_claimed
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        a_healthy_cluster_is_shown_as_that
        lost_nodes_are_reported_and_left_alone
        a_slot_is_finished_under_writers
        marks_that_lead_nowhere_are_cleared
        nodes_that_take_each_other_for_the_owner_are_reported
        a_running_migration_is_not_disturbed
        a_move_without_its_last_step_is_finished
        copies_of_an_interrupted_move_are_removed_and_bring_nothing_back
        keys_of_another_node_are_moved_to_it_and_never_over_its_own
        looking_needs_the_documented_rights
}

/// On servers that hide keys of slots that a node does not own.
mod hidden {
    use whimbrel_lab::Engine;

    macro_rules! also {
        ($($name:ident)+) => {
            $(
                fn $name(engine: Engine) {
                    crate::cluster_view::$name(engine);
                }
            )+

            whimbrel_lab::for_each_engine! { on Redis86: $($name)+ }
        };
    }

    also! {
        a_move_without_its_last_step_is_finished
        keys_of_another_node_are_moved_to_it_and_never_over_its_own
        a_slot_without_owner_goes_to_who_has_its_keys
        a_slot_between_fence_and_takeover_goes_back_to_its_source
    }

    mod matrix {
        use whimbrel_lab::Engine;

        also! {
            a_move_that_has_not_begun_is_undone
            a_half_moved_slot_is_finished
            marks_that_lead_nowhere_are_cleared
            copies_of_an_interrupted_move_are_removed_and_bring_nothing_back
            nodes_that_take_each_other_for_the_owner_are_reported
            looking_needs_the_documented_rights
        }
    }
}

// Exit codes, as documented.
const SUCCESS: i32 = 0;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;
const REFUSED: i32 = 4;
const PROBLEM: i32 = 8;

/// For what other processes do in their own time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The slot that tests break: node 0 of three owns it.
const SLOT: u16 = 7;

/// Keys that it holds.
const KEYS: usize = 40;

/// How far times of expiry may drift when `MIGRATE` moves a key on a busy machine.
const MIGRATE_DRIFT_MS: u64 = 60_000;

fn start(engine: Engine) -> Cluster {
    // A busy machine must not look like nodes that fail.
    Cluster::builder(engine).replicas(1).node_timeout_ms(20_000).start().expect("the cluster starts")
}

/// A key of `slot`, by a hash tag that is found by trying, once for each slot.
fn key(slot: u16, n: usize) -> String {
    static TAGS: Mutex<BTreeMap<u16, String>> = Mutex::new(BTreeMap::new());
    let mut tags = TAGS.lock();
    let tag = tags.entry(slot).or_insert_with(|| tags_in([slot], 1).remove(0));
    format!("{{{tag}}}:{n}")
}

/// Puts keys of several types into [`SLOT`], some with a time to live, and some into slots of every node.
fn fill(cluster: &Cluster) {
    let owner = cluster.owner_of(SLOT).expect("it has an owner");
    let mut connection = cluster.connection_to(owner);
    for n in 0..KEYS {
        let key = key(SLOT, n);
        match n % 5 {
            0 => cmd("SET").arg(&key).arg("x".repeat(n * 100)).exec(&mut connection),
            1 => cmd("SET").arg(&key).arg(n).arg("PX").arg(3_600_000 + n).exec(&mut connection),
            2 => cmd("RPUSH").arg(&key).arg(&["a", "b", "c"]).exec(&mut connection),
            3 => cmd("HSET").arg(&key).arg(&["f", "1", "g", "2"]).exec(&mut connection),
            _ => cmd("XADD").arg(&key).arg("1-1").arg(&["f", "v"]).exec(&mut connection),
        }
        .expect("the owner takes keys");
    }
    for slot in [3, 9_000, 16_000] {
        let owner = cluster.owner_of(slot).expect("it has an owner");
        cmd("SET").arg(key(slot, 0)).arg("v").exec(&mut cluster.connection_to(owner)).expect("it takes keys");
    }
}

fn deployment(cluster: &Cluster) -> Deployment {
    Deployment::at(cluster.seed()).expect("the cluster answers")
}

fn everything(cluster: &Cluster) -> Snapshot {
    snapshot(&deployment(cluster), 0).expect("every primary answers")
}

/// What a node answers; an error reply is a failure.
fn call(cluster: &Cluster, node: usize, command: &str) -> Value {
    cluster.nodes()[node].call(&command.split(' ').collect::<Vec<_>>())
}

/// Marks [`SLOT`], or says whose it is.
fn set_slot(cluster: &Cluster, at: usize, state: &str, other: usize) {
    call(cluster, at, &format!("CLUSTER SETSLOT {SLOT} {state} {}", cluster.node_id(other)));
}

/// Moves keys of [`SLOT`] as legacy tools do.
fn migrate(cluster: &Cluster, from: usize, to: usize, keys: impl Iterator<Item = usize>, copy: bool) {
    let mut command = cmd("MIGRATE");
    command.arg("127.0.0.1").arg(cluster.nodes()[to].port()).arg("").arg(0).arg(10_000);
    if copy {
        command.arg("COPY");
    }
    command.arg("KEYS");
    for n in keys {
        command.arg(key(SLOT, n));
    }
    command.exec(&mut cluster.connection_to(from)).expect("the keys move");
}

/// A command to a node that imports the slot.
fn asking(connection: &mut Connection, command: &Cmd) -> Value {
    cmd("ASKING").exec(connection).expect("it is a cluster");
    command.query(connection).expect("the node imports the slot")
}

fn keys_in_slot(cluster: &Cluster, node: usize) -> u64 {
    cmd("CLUSTER")
        .arg("COUNTKEYSINSLOT")
        .arg(SLOT)
        .query(&mut cluster.connection_to(node))
        .expect("it is a cluster")
}

fn whimbrel(args: &[&str]) -> Output {
    Invocation::new(args).timeout(PATIENCE * 2).run()
}

fn status(cluster: &Cluster, code: i32) -> Json {
    let output = whimbrel(&["status", &cluster.seed(), "--json"]).expect_code(code);
    serde_json::from_str(&output.stdout).expect("one JSON object")
}

/// The kinds of findings, with how often each was found.
fn kinds(status: &Json) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for finding in status["findings"].as_array().expect("findings") {
        *kinds.entry(finding["kind"].as_str().expect("a kind").to_owned()).or_default() += 1;
    }
    kinds
}

/// Repairs, and returns the plan and the report. The plan must have been shown before by a dry run that
/// changed nothing.
fn repair(cluster: &Cluster, args: &[&str], code: i32) -> (Json, Json) {
    let seed = cluster.seed();
    let all = |more: &[&str]| {
        let args: Vec<&str> = ["repair", &seed, "--json"].iter().chain(args).chain(more).copied().collect();
        whimbrel(&args)
    };
    let before = raw_views(cluster);
    let dry = all(&["--dry-run"]).expect_code(PROBLEM);
    let refused = all(&[]).expect_code(REFUSED);
    assert!(refused.stdout.contains("--yes"), "{}", refused.stdout);
    assert_eq!(raw_views(cluster), before, "a dry run changes nothing");
    let output = all(&["--yes"]).expect_code(code);
    let lines = |output: &Output| -> Vec<Json> {
        output.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let (planned, mut done) = (lines(&dry), lines(&output));
    assert_eq!(planned[0]["actions"], done[0]["actions"], "{}", output.stdout);
    let report = done.pop().expect("a report");
    (done.remove(0), report)
}

/// A text without its line breaks.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Slots, marks and epochs of every node, by its own word.
fn raw_views(cluster: &Cluster) -> Vec<String> {
    cluster
        .nodes()
        .iter()
        .filter(|node| node.is_running())
        .map(|node| {
            let text: String = cmd("CLUSTER").arg("NODES").query(&mut node.connection()).expect("it answers");
            let own = text.lines().find(|line| line.contains("myself")).expect("its own line");
            let words: Vec<&str> = own.split(' ').collect();
            format!("{} {}", words[0], words[6..].join(" "))
        })
        .collect()
}

fn actions(plan: &Json) -> Vec<&str> {
    plan["actions"]
        .as_array()
        .expect("actions")
        .iter()
        .map(|action| action["kind"].as_str().expect("a kind"))
        .collect()
}

/// Everything is where it belongs, nothing is lost, and `status` says so.
fn assert_repaired(cluster: &Cluster, owner: usize, before: &Snapshot) {
    assert_repaired_within(cluster, owner, before, 0);
}

/// The same after a `MIGRATE`, which lets times of expiry drift.
fn assert_repaired_within(cluster: &Cluster, owner: usize, before: &Snapshot, drift_ms: u64) {
    assert_sound(cluster);
    assert_eq!(cluster.owner_of(SLOT).expect("it has an owner"), owner);
    let differences = diff(before, &everything(cluster), drift_ms);
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(status(cluster, SUCCESS)["findings"], serde_json::json!([]));
}

fn a_healthy_cluster_is_shown_as_that(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let json = status(&cluster, SUCCESS);
    assert_eq!(json["healthy"], true);
    assert_eq!(json["findings"], serde_json::json!([]));
    let shards = json["shards"].as_array().expect("shards");
    assert_eq!(shards.len(), 3);
    assert_eq!(shards[0]["id"], cluster.node_id(0));
    assert_eq!(shards[0]["slots"], "0-5460");
    assert_eq!(shards[0]["slot_count"], 5_461);
    assert_eq!(shards[0]["keys"], KEYS + 1);
    assert_eq!(shards[2]["keys"], 1);
    let replica = &shards[1]["replicas"][0];
    assert_eq!(replica["address"], cluster.nodes()[4].addr());
    assert_eq!((&replica["answers"], &replica["link_up"]), (&true.into(), &true.into()));

    let text = whimbrel(&["status", &cluster.seed()]).expect_code(SUCCESS).stdout;
    for part in [&cluster.node_id(1)[..8], "5461-10921", "every node agrees", "3 primaries, 3 replicas"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains('\x1b'), "no colours without a terminal: {text}");
    let text = whimbrel(&["repair", &cluster.seed()]).expect_code(SUCCESS).stdout;
    assert!(text.contains("nothing to repair"), "{text}");
}

#[test]
fn a_cluster_is_reached_with_a_password_that_is_not_shown() {
    let cluster = Cluster::builder(Engine::Valkey81).password("s3cret").start().expect("the cluster starts");
    let seed = cluster.seed();
    let with_url = whimbrel(&["status", &format!("redis://:s3cret@{seed}")]).expect_code(SUCCESS);
    assert!(!with_url.stdout.contains("s3cret"));
    Invocation::new(&["status", &seed]).env("WHIMBREL_PASSWORD", "s3cret").run().expect_code(SUCCESS);
    let refused = whimbrel(&["status", &seed]).expect_code(UNREACHABLE);
    assert!(refused.stderr.starts_with("error: cluster "), "{}", refused.stderr);
    let wrong = whimbrel(&["status", &seed, "--password-file", "/nonexistent"]);
    assert!(wrong.stderr.contains("with --password-file"), "{}", wrong.stderr);
    whimbrel(&["status"]).expect_code(USAGE);
}

#[test]
fn a_server_without_a_cluster_is_refused() {
    let server = whimbrel_lab::Server::builder(Engine::Redis70).start().expect("the server starts");
    let output = whimbrel(&["status", &server.addr()]).expect_code(REFUSED);
    assert!(output.stderr.contains("not part of a cluster"), "{}", output.stderr);
}

fn lost_nodes_are_reported_and_left_alone(engine: Engine) {
    let cluster = Cluster::builder(engine).replicas(1).start().expect("the cluster starts");
    cluster.kill9(5).expect("the replica can be killed");
    let json = status(&cluster, PROBLEM);
    assert_eq!(kinds(&json)["unreachable"], 1, "{json}");
    assert_eq!(json["findings"][0]["primary"], false);
    cluster.kill9(2).expect("its primary can be killed");
    wait_until("its slots to be down", || {
        let json = status(&cluster, PROBLEM);
        kinds(&json).contains_key("cluster_down")
    });
    let json = status(&cluster, PROBLEM);
    assert_eq!(kinds(&json)["unreachable"], 2, "{json}");
    let lost = json["findings"].as_array().expect("findings").iter().find(|f| f["primary"] == true);
    assert_eq!(lost.expect("the primary")["slots"], "10922-16383");
    let output = whimbrel(&["repair", &cluster.seed(), "--yes"]).expect_code(PROBLEM);
    assert!(output.stdout.contains("nothing to repair"), "{}", output.stdout);
}

fn a_move_that_has_not_begun_is_undone(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let before = everything(&cluster);
    set_slot(&cluster, 1, "IMPORTING", 0);
    set_slot(&cluster, 0, "MIGRATING", 1);
    let json = status(&cluster, PROBLEM);
    assert_eq!(kinds(&json), BTreeMap::from([("open".to_owned(), 1)]), "{engine}: {json}");
    assert_eq!(json["findings"][0]["slots"], "7");
    let (plan, _) = repair(&cluster, &[], SUCCESS);
    assert_eq!(actions(&plan), ["clear_marks", "clear_marks"], "{engine}: {plan}");
    assert_repaired(&cluster, 0, &before);
}

fn a_half_moved_slot_is_finished(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let before = everything(&cluster);
    set_slot(&cluster, 1, "IMPORTING", 0);
    set_slot(&cluster, 0, "MIGRATING", 1);
    migrate(&cluster, 0, 1, 10..25, false);
    // A MIGRATE that dies between its two halves leaves a copy.
    migrate(&cluster, 0, 1, 30..35, true);
    let expiry = |node| -> i64 {
        cmd("PEXPIRETIME").arg(key(SLOT, 31)).query(&mut cluster.connection_to(node)).expect("it is there")
    };
    let exact = expiry(0);
    let (plan, report) = repair(&cluster, &[], SUCCESS);
    assert_eq!(actions(&plan), ["finish"], "{engine}: {plan}");
    assert_eq!(report["keys_moved"], KEYS - 15, "{engine}: {report}");
    assert_repaired_within(&cluster, 1, &before, MIGRATE_DRIFT_MS);
    assert_eq!(expiry(1), exact, "what we move does not drift, and the older copy does not stand");
}

fn a_move_without_its_last_step_is_finished(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let before = everything(&cluster);
    set_slot(&cluster, 1, "IMPORTING", 0);
    set_slot(&cluster, 0, "MIGRATING", 1);
    migrate(&cluster, 0, 1, 0..KEYS, false);
    // The target has lost its mark, as after a failover.
    call(&cluster, 1, &format!("CLUSTER SETSLOT {SLOT} STABLE"));
    let (plan, _) = repair(&cluster, &[], SUCCESS);
    // Whether it hides keys of other slots as well shows only when it is looked there.
    let expected = if engine == Engine::Redis86 { &["finish", "empty", "empty"][..] } else { &["finish"] };
    assert_eq!(actions(&plan), expected, "{engine}: {plan}");
    assert_repaired_within(&cluster, 1, &before, MIGRATE_DRIFT_MS);
}

fn a_slot_is_finished_under_writers(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    set_slot(&cluster, 1, "IMPORTING", 0);
    set_slot(&cluster, 0, "MIGRATING", 1);
    migrate(&cluster, 0, 1, 10..25, false);
    let counters: Vec<String> = (0..8).map(|n| key(SLOT, 1_000 + n)).collect();
    let seed = cluster.seed();
    let over = std::sync::atomic::AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        let (seed, over) = (&seed, &over);
        let writers: Vec<_> = counters
            .iter()
            .map(|counter| {
                scope.spawn(move || {
                    let mut connection = cluster_client(seed).get_connection().expect("the cluster answers");
                    let mut acknowledged = 0_u64;
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        cmd("INCR").arg(counter).exec(&mut connection).expect("it is counted");
                        acknowledged += 1;
                        thread::sleep(Duration::from_millis(2));
                    }
                    acknowledged
                })
            })
            .collect();
        let output = std::panic::catch_unwind(|| whimbrel(&["repair", seed, "--yes"]));
        // Whatever came of it: nobody waits for writers that go on for ever.
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        output.expect("it ends").expect_code(SUCCESS);
        writers.into_iter().map(|w| w.join().expect("no write fails")).collect::<Vec<u64>>()
    });
    assert_sound(&cluster);
    let mut connection = cluster.connection_to(1);
    for (counter, acknowledged) in counters.iter().zip(counted) {
        let found: u64 = cmd("GET").arg(counter).query(&mut connection).expect("the new owner has it");
        assert_eq!(found, acknowledged, "{engine}: {counter}");
    }
}

fn marks_that_lead_nowhere_are_cleared(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let before = everything(&cluster);
    // One side only, and a mark that points to a node which does not own the slot.
    set_slot(&cluster, 0, "MIGRATING", 2);
    set_slot(&cluster, 1, "IMPORTING", 2);
    let (plan, _) = repair(&cluster, &[], SUCCESS);
    assert_eq!(actions(&plan), ["clear_marks", "clear_marks"], "{engine}: {plan}");
    assert_repaired(&cluster, 0, &before);
}

fn copies_of_an_interrupted_move_are_removed_and_bring_nothing_back(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    set_slot(&cluster, 1, "IMPORTING", 0);
    migrate(&cluster, 0, 1, 0..KEYS, true);
    // Since then one was deleted at the owner and one was changed.
    call(&cluster, 0, &format!("DEL {}", key(SLOT, 3)));
    call(&cluster, 0, &format!("SET {} newer", key(SLOT, 4)));
    let before = everything(&cluster);
    let (plan, report) = repair(&cluster, &[], SUCCESS);
    assert_eq!(actions(&plan), ["empty"], "{engine}: {plan}");
    assert_eq!(plan["actions"][0]["compared"]["only_here"], 1, "{engine}: {plan}");
    assert_eq!((&report["keys_moved"], &report["keys_removed"]), (&0.into(), &KEYS.into()));
    assert!(!before.keys.contains_key(key(SLOT, 3).as_bytes()));
    // The stray copies were part of it.
    assert_repaired(&cluster, 0, &Snapshot { strays: Vec::new(), ..before });
}

fn keys_of_another_node_are_moved_to_it_and_never_over_its_own(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let mut expected = everything(&cluster);
    let pristine = everything(&cluster);
    // Node 2 holds one key as the owner has it, one in an older state, and one that nobody else has.
    set_slot(&cluster, 2, "IMPORTING", 0);
    migrate(&cluster, 0, 2, [0, 5].into_iter(), true);
    let mut stray = cluster.connection_to(2);
    asking(&mut stray, cmd("HSET").arg(key(SLOT, 99)).arg(&["f", "only"]));
    asking(&mut stray, cmd("PEXPIRE").arg(key(SLOT, 99)).arg(3_600_000));
    call(&cluster, 2, &format!("CLUSTER SETSLOT {SLOT} STABLE"));
    call(&cluster, 0, &format!("SET {} newer", key(SLOT, 5)));
    let json = status(&cluster, PROBLEM);
    assert_eq!(json["findings"][0]["keys"], 3);
    let (plan, report) = repair(&cluster, &[], SUCCESS);
    if engine == Engine::Redis86 {
        assert_eq!(kinds(&json), BTreeMap::from([("hidden_keys".to_owned(), 1)]), "{json}");
        assert_eq!(
            actions(&plan),
            ["empty", "empty"],
            "which of the others it belongs to shows later: {plan}"
        );
        let keys: u64 = cmd("DBSIZE").query(&mut cluster.connection_to(2)).expect("it answers");
        assert_eq!(keys, 1, "its own");
    } else {
        // Its replica has them as well.
        assert_eq!(kinds(&json), BTreeMap::from([("leftovers".to_owned(), 2)]), "{engine}: {json}");
        assert_eq!(actions(&plan), ["empty"], "{engine}: {plan}");
    }
    assert_eq!(plan["actions"][0]["keys_only_here"], "move");
    assert_eq!((&report["keys_moved"], &report["keys_removed"]), (&1.into(), &3.into()), "{report}");
    assert_sound(&cluster);
    let mut owner = cluster.connection_to(0);
    let found: String = cmd("HGET").arg(key(SLOT, 99)).arg("f").query(&mut owner).expect("it was moved");
    assert_eq!(found, "only");
    let ttl: i64 = cmd("PTTL").arg(key(SLOT, 99)).query(&mut owner).expect("a time to live");
    assert!((3_400_000..=3_600_000).contains(&ttl), "{engine}: {ttl}");
    let found: String = cmd("GET").arg(key(SLOT, 5)).query(&mut owner).expect("it stayed");
    assert_eq!(found, "newer");
    // All others are as they were.
    let mut after = everything(&cluster);
    for n in [5, 99] {
        after.keys.remove(key(SLOT, n).as_bytes());
        expected.keys.remove(key(SLOT, n).as_bytes());
    }
    let differences = diff(&expected, &after, 5);
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(pristine.keys.len(), expected.keys.len() + 1);
}

#[test]
fn keys_that_only_a_stranger_has_can_be_discarded() {
    let cluster = start(Engine::Valkey91);
    fill(&cluster);
    let before = everything(&cluster);
    set_slot(&cluster, 2, "IMPORTING", 0);
    asking(&mut cluster.connection_to(2), cmd("SET").arg(key(SLOT, 99)).arg("only"));
    call(&cluster, 2, &format!("CLUSTER SETSLOT {SLOT} STABLE"));
    let (plan, report) = repair(&cluster, &["--strays", "discard"], SUCCESS);
    assert_eq!(plan["actions"][0]["keys_only_here"], "discard");
    assert_eq!((&report["keys_moved"], &report["keys_removed"]), (&0.into(), &1.into()));
    assert_repaired(&cluster, 0, &before);
}

fn a_slot_without_owner_goes_to_who_has_its_keys(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let before = everything(&cluster);
    // One slot with keys, and some without.
    call(&cluster, 0, &format!("CLUSTER DELSLOTS {SLOT} 100 101"));
    let json = status(&cluster, PROBLEM);
    assert!(kinds(&json).contains_key("unowned"), "{engine}: {json}");
    let (plan, _) = repair(&cluster, &[], SUCCESS);
    // Whether it hides keys of other slots as well shows only when it is looked there.
    let is_expected = |kind: &&str| *kind == "claim" || engine == Engine::Redis86 && *kind == "empty";
    assert!(actions(&plan).iter().all(is_expected), "{engine}: {plan}");
    assert_repaired(&cluster, 0, &before);
}

fn a_slot_between_fence_and_takeover_goes_back_to_its_source(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    // The target holds copies, of which one is older than what the source has; the source has given the slot
    // up.
    set_slot(&cluster, 1, "IMPORTING", 0);
    migrate(&cluster, 0, 1, 0..KEYS, true);
    call(&cluster, 0, &format!("SET {} newer", key(SLOT, 4)));
    let before = everything(&cluster);
    call(&cluster, 0, &format!("CLUSTER DELSLOTS {SLOT}"));
    if !engine.is_valkey() {
        // On Redis the source names the target at once.
        set_slot(&cluster, 0, "NODE", 1);
    }
    whimbrel(&["repair", &cluster.seed(), "--yes"]).expect_code(SUCCESS);
    assert_sound(&cluster);
    let owner = cluster.owner_of(SLOT).expect("it has an owner");
    // Since Valkey 8 the target takes the slot over by itself, with what it has, once the source no longer
    // claims it.
    if owner == 0 || !engine.is_valkey() {
        assert_repaired_within(&cluster, 0, &Snapshot { strays: Vec::new(), ..before }, MIGRATE_DRIFT_MS);
    }
}

fn nodes_that_take_each_other_for_the_owner_are_reported(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let before = everything(&cluster);
    // Node 0 has the keys and says that the slot is node 1's; node 1 says that it is node 0's.
    call(&cluster, 0, &format!("CLUSTER DELSLOTS {SLOT}"));
    set_slot(&cluster, 0, "NODE", 1);
    let json = status(&cluster, PROBLEM);
    assert!(kinds(&json).contains_key("unowned"), "{engine}: {json}");
    let (plan, _) = repair(&cluster, &[], SUCCESS);
    // Whether it hides keys of other slots as well shows only when it is looked there.
    let expected = if engine == Engine::Redis86 { &["claim", "empty", "empty"][..] } else { &["claim"] };
    assert_eq!(actions(&plan), expected, "{engine}: {plan}");
    assert_repaired(&cluster, 0, &before);
}

fn a_node_that_takes_another_one_for_the_owner_is_reported(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    let before = everything(&cluster);
    // The epoch of node 1 is above that of node 0, but some servers find out by themselves that it makes no
    // claim.
    set_slot(&cluster, 2, "NODE", 1);
    whimbrel(&["repair", &cluster.seed(), "--yes"]).expect_code(SUCCESS);
    assert_repaired(&cluster, 0, &before);
}

/// A server that raises its epoch and dies before its replica has heard of it leaves a replica that nobody
/// votes for.
fn a_replica_that_nobody_votes_for_learns_what_its_primary_claimed(engine: Engine) {
    let cluster = Cluster::builder(engine)
        .replicas(1)
        // Short, since it is elected after several of these; and longer than a busy machine leaves any node
        // waiting.
        .node_timeout_ms(5_000)
        // What it holds when it comes back, and may be elected with, however long it was away.
        .arg("appendonly", "yes")
        .arg("cluster-replica-validity-factor", "0")
        .start()
        .expect("the cluster starts");
    fill(&cluster);
    let before = everything(&cluster);
    let ids: Vec<&str> = (0..6).map(|node| cluster.node_id(node)).collect();
    let epoch = |node: usize, of: usize| -> u64 {
        let text: String = redis::from_redis_value(call(&cluster, node, "CLUSTER NODES")).expect("a text");
        let line = text.lines().find(|line| line.starts_with(ids[of])).expect("it is known");
        line.split(' ').nth(6).expect("an epoch").parse().expect("a number")
    };
    let at_first = epoch(5, 2);
    cluster.kill9(5).expect("the replica can be killed");
    // One that has the highest epoch already is not given another one.
    call(&cluster, 0, "CLUSTER BUMPEPOCH");
    wait_until("another one to have the highest epoch", || epoch(2, 0) > epoch(2, 2));
    call(&cluster, 2, "CLUSTER BUMPEPOCH");
    let raised = epoch(2, 2);
    assert!(raised > at_first, "{engine}: it has no new epoch");
    wait_until("the others to know", || (0..2).all(|node| epoch(node, 2) == raised));
    cluster.kill9(2).expect("the primary can be killed");
    cluster.nodes()[5].restart().expect("the replica restarts");
    // Valkey 9.1 notifies the replica itself as it refuses it.
    if engine != Engine::Valkey91 {
        wait_until("it to be found", || kinds(&status(&cluster, PROBLEM)).contains_key("outdated_replicas"));
        assert_eq!(epoch(5, 2), at_first, "{engine}");
    }
    match engine {
        _ if !engine.is_valkey() => {
            let (plan, report) = repair(&cluster, &[], PROBLEM);
            assert_eq!(actions(&plan), ["remind"], "{engine}: {plan}");
            let left = BTreeMap::from([("unreachable".to_owned(), 1)]);
            assert_eq!(kinds(&report), left, "{engine}: {report}");
            assert!(epoch(0, 5) > raised, "{engine}: it has not been elected");
        }
        Engine::Valkey81 => {
            let output = whimbrel(&["repair", &cluster.seed(), "--yes"]).expect_code(PROBLEM);
            let expected = format!("({}), which has most", cluster.nodes()[5].addr());
            assert!(words(&output.stdout).contains(&expected), "{}", output.stdout);
            call(&cluster, 5, "CLUSTER FAILOVER TAKEOVER");
        }
        _ => {}
    }
    assert_eq!(cluster.wait_failover(2).expect("a failover"), 5, "{engine}");
    cluster.nodes()[2].restart().expect("it restarts");
    cluster.wait_ok().expect("the cluster is well");
    assert_repaired(&cluster, 0, &before);
}

#[test]
fn keys_that_only_a_replica_kept_are_removed() {
    // When this version learns by gossip that it lost a slot it deletes the keys, and its replicas do not.
    let cluster = start(Engine::Redis70);
    fill(&cluster);
    set_slot(&cluster, 1, "IMPORTING", 0);
    migrate(&cluster, 0, 1, 0..KEYS, true);
    let before = Snapshot { strays: Vec::new(), ..everything(&cluster) };
    set_slot(&cluster, 1, "NODE", 1);
    wait_until("the old owner to delete its keys", || keys_in_slot(&cluster, 0) == 0);
    assert_eq!(keys_in_slot(&cluster, 3), KEYS as u64, "its replica keeps them");
    let json = status(&cluster, PROBLEM);
    assert_eq!(kinds(&json), BTreeMap::from([("leftovers".to_owned(), 1)]), "{json}");
    assert_eq!(json["findings"][0]["replica"], true);
    let (plan, _) = repair(&cluster, &[], SUCCESS);
    assert_eq!(actions(&plan), ["empty_replica"], "{plan}");
    assert_repaired_within(&cluster, 1, &before, MIGRATE_DRIFT_MS);
}

fn a_running_migration_is_not_disturbed(engine: Engine) {
    let cluster = start(engine);
    fill(&cluster);
    set_slot(&cluster, 1, "IMPORTING", 0);
    let mut job = cluster.connection_to(1);
    cmd("CLIENT").arg("SETNAME").arg("whimbrel:job:17").exec(&mut job).expect("a name");
    let json = status(&cluster, SUCCESS);
    assert_eq!(kinds(&json), BTreeMap::from([("job".to_owned(), 1), ("open".to_owned(), 1)]));
    let before = raw_views(&cluster);
    let output = whimbrel(&["repair", &cluster.seed(), "--yes"]).expect_code(REFUSED);
    assert!(output.stderr.contains("whimbrel:job:17"), "{}", output.stderr);
    assert_eq!(raw_views(&cluster), before);
}

/// The documented rights are enough to look; without them it is said that rights are missing, not that nodes
/// are.
fn looking_needs_the_documented_rights(engine: Engine) {
    let cluster = Cluster::builder(engine).start().expect("the cluster starts");
    let lines = documented("whimbrel-view", &["Looking at a cluster"], "pass");
    let rights: Vec<&String> = lines.iter().flatten().filter(|word| word.starts_with('+')).collect();
    assert!(rights.len() > 5, "{rights:?}");
    cluster.nodes().iter().for_each(|node| give(node, &lines));
    let show_status = || {
        let args = ["status", &cluster.seed(), "--user", "whimbrel-view"];
        Invocation::new(&args).env("WHIMBREL_PASSWORD", "pass").run()
    };
    show_status().expect_code(SUCCESS);
    for right in rights {
        let word = |sign: &str| format!("{sign}{}", &right[1..]);
        cluster.nodes()[1].call(&["ACL", "SETUSER", "whimbrel-view", &word("-")]);
        let output = show_status();
        if output.code() != Some(SUCCESS) {
            let output = output.expect_code(REFUSED);
            assert!(output.stderr.contains("NOPERM"), "{engine}, without {right}: {output:#?}");
        }
        cluster.nodes()[1].call(&["ACL", "SETUSER", "whimbrel-view", &word("+")]);
    }
}
