//! Slots move while clients read and write: they see nothing but MOVED, and everything is there afterwards.
//!
//! `WHIMBREL_RUNS=20` moves the slots this many times to and fro in the first test of each engine.

use std::collections::BTreeSet;

use whimbrel_e2e::permissions::documented;
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene, runs, wait_for_phase};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::{Load, tags_in};
use whimbrel_judge::dataset::{Dataset, FUNCTION_LIBRARY, Scale};
use whimbrel_lab::{Engine, wait_until};

/// Slots that move, and how they are written on the command line.
const MOVING: std::ops::RangeInclusive<u16> = 0..=2047;
const MOVING_TEXT: &str = "0-2047";

/// Commands that clients have done before slots move, and after.
const WARM: u64 = 3_000;

/// How often it is tried again where clients were sent back and forth: on a busy machine a target may not be
/// seen to wait for the source in time, or give that up.
const TRIES: usize = 3;

fn slots_move_under_writers(engine: Engine) {
    let tried = (0..TRIES).any(|_| they_move_under_writers(engine));
    assert!(tried, "{engine}: clients were sent back and forth each time");
}

/// False where clients were sent back and forth more often than they follow.
fn they_move_under_writers(engine: Engine) -> bool {
    let scene = Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    let written = Dataset::generate(21, Scale::Tiny).with_functions().write_to(&scene.deployment()).unwrap();
    assert!(written.total() > 400, "{written:?}");
    let before = scene.unwritten();
    let writers = scene.writers(MOVING);
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    for run in 0..runs("WHIMBREL_RUNS", 2) {
        let target = (run + 1) % 2;
        let outcome = MoveReport::by(scene.reshard(MOVING_TEXT, target, &["--method", "external"]).spawn());
        outcome.assert_done();
        assert_eq!(outcome.report["slots"], 2048, "{:#}", outcome.report);
        assert!(outcome.report["pauses"]["count"].as_u64() >= Some(1), "{:#}", outcome.report);
        assert!(writers.wait_for(WARM / 3, PATIENCE), "the writers stopped after {:#}", outcome.report);
        let owned = shards::slots_of(&scene.cluster, target).unwrap();
        assert!(MOVING.clone().all(|slot| owned.contains(&slot)), "run {run}");
    }
    let record = writers.stop();
    eprintln!("{engine}: {}", record.observed);
    record.observed.assert_only_redirected();
    assert!(record.observed.moved > 0, "nobody noticed that slots moved: {}", record.observed);
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
    if engine == Engine::Redis86 {
        scene.assert_nothing_hidden();
    }
    record.observed.is_direct()
}

/// An empty shard gets its share, with the functions, and gives it back.
fn shards_come_and_go(engine: Engine) {
    // A primary without slots must stay one, also where the servers would make it a replica.
    let scene = Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383], vec![]])
        .cluster(|cluster| cluster.arg("cluster-allow-replica-migration", "yes"))
        .start();
    for primary in &scene.cluster.primaries()[..2] {
        primary.call(&["FUNCTION", "LOAD", FUNCTION_LIBRARY]);
    }
    let before = scene.unwritten();
    let writers = scene.write(&Load { clients: 8, ..Load::on(tags_in(0..16384, 60)) });
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");

    // A busy machine does not come to an end within the usual pause.
    let how = ["--yes", "--method", "external", "--max-pause", "5s"];
    MoveReport::by(scene.command("rebalance", &[&["--use-empty"], &how[..]].concat()).spawn()).assert_done();
    for node in 0..3 {
        let count = shards::slots_of(&scene.cluster, node).unwrap().len();
        assert!((5461..=5462).contains(&count), "node {node} owns {count} slots");
    }
    let functions = scene.cluster.primaries()[2].call(&["FUNCTION", "LIST"]);
    assert!(format!("{functions:?}").contains("whimbrel_e2e"), "{functions:?}");
    assert!(writers.wait_for(WARM / 3, PATIENCE));

    let drained = scene.cluster.node_id(2).to_owned();
    MoveReport::by(scene.command("drain", &[&[&*drained], &how[..]].concat()).spawn()).assert_done();
    assert_eq!(shards::slots_of(&scene.cluster, 2).unwrap(), BTreeSet::new());
    assert!(writers.wait_for(WARM / 3, PATIENCE));
    let record = writers.stop();
    eprintln!("{engine}: {}", record.observed);
    // How often a client is sent back and forth at a handover is asserted above.
    record.observed.assert_only_redirected();
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
    if engine == Engine::Redis86 {
        scene.assert_nothing_hidden();
    }
    // It is still a primary, with its replica and with its setting.
    assert_eq!(scene.cluster.current_primaries().unwrap(), [0, 1, 2]);
    for node in scene.cluster.nodes() {
        let setting = node.call(&["CONFIG", "GET", "cluster-allow-replica-migration"]);
        assert!(format!("{setting:?}").contains("yes"), "{}: {setting:?}", node.addr());
    }
    scene.cluster.wait_ok().unwrap();
}

/// Where PSYNC is forbidden the keys that change are found in another way, consumer groups included.
fn moving_without_psync_loses_nothing(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]])
        .cluster(|cluster| cluster.user_acl("user mover on >secret ~* &* +@all -psync -sync -replconf"))
        .start();
    Dataset::generate(22, Scale::Tiny).write_to(&scene.deployment()).unwrap();
    let before = scene.unwritten();
    let writers = scene.writers(MOVING);
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    let args = ["--user", "mover", "--method", "external"];
    let command = scene.reshard(MOVING_TEXT, 1, &args).env("WHIMBREL_PASSWORD", "secret");
    MoveReport::by(command.spawn()).assert_done();
    assert!(writers.wait_for(WARM / 3, PATIENCE));
    let record = writers.stop();
    eprintln!("{engine}: {}", record.observed);
    // Without an offset nobody can wait at the target for the fence: clients may be sent back and forth for a
    // moment.
    record.observed.assert_only_redirected();
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
}

/// The permissions that the documentation names are enough.
fn documented_permissions_are_enough(engine: Engine) {
    let tried = (0..TRIES).any(|_| they_are_enough(engine));
    assert!(tried, "{engine}: clients were sent back and forth each time");
}

/// False where clients were sent back and forth more often than they follow.
fn they_are_enough(engine: Engine) -> bool {
    let commands = documented("whimbrel", &["Moving slots"], "secret");
    assert!(!commands.is_empty(), "the section has the commands");
    // Without ACL SETUSER and the name.
    let rules: Vec<&str> = commands.iter().flat_map(|words| &words[3..]).map(String::as_str).collect();
    let scene = Scene::of(engine, 1, &[vec![0..=8191], vec![8192..=16383]])
        .cluster(|cluster| cluster.user_acl(&format!("user mover {}", rules.join(" "))))
        .start();
    Dataset::generate(27, Scale::Tiny).with_functions().write_to(&scene.deployment()).unwrap();
    let before = scene.unwritten();
    let writers = scene.writers(MOVING);
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    // What is tested is the permissions, on busy machines as well.
    let args = ["--user", "mover", "--method", "external", "--max-pause", "5s"];
    let outcome =
        MoveReport::by(scene.reshard(MOVING_TEXT, 1, &args).env("WHIMBREL_PASSWORD", "secret").spawn());
    outcome.assert_done();
    assert!(writers.wait_for(WARM / 3, PATIENCE));
    let record = writers.stop();
    eprintln!("{engine}: {}", record.observed);
    record.observed.assert_only_redirected();
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
    record.observed.is_direct()
}

/// Nothing is changed unless asked for.
fn plans_are_only_shown(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    Dataset::generate(23, Scale::Tiny).write_to(&scene.deployment()).unwrap();
    let before = scene.unwritten();
    let to = scene.cluster.node_id(1)[..12].to_owned();
    let shown = scene.command("reshard", &["--slots", "0-9,100", "--to", &to, "--dry-run"]).run();
    let shown = shown.expect_code(0);
    let plan: serde_json::Value = shown
        .stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find(|line: &serde_json::Value| line["event"] == "plan")
        .unwrap_or_else(|| panic!("no plan in {}", shown.stdout));
    assert_eq!(plan["slots"], 11, "{plan:#}");
    // Without a terminal nobody can be asked.
    scene.command("reshard", &["--slots", "0-9", "--to", &to]).run().expect_code(4);
    // Already there, or nowhere to go.
    scene.command("reshard", &["--slots", "9000", "--to", &to, "--yes"]).run().expect_code(0);
    scene.command("reshard", &["--slots", "0-9", "--to", "ffffffffffff", "--yes"]).run().expect_code(2);
    assert!(scene.unfinished().is_empty());
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

/// The built-in migration, driven by us.
#[test]
fn the_native_method_moves_slots_under_writers() {
    let scene = Scene::of(Engine::Valkey91, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    Dataset::generate(24, Scale::Tiny).with_functions().write_to(&scene.deployment()).unwrap();
    let before = scene.unwritten();
    let writers = scene.writers(MOVING);
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    for target in [1, 0] {
        let outcome = MoveReport::by(scene.reshard(MOVING_TEXT, target, &["--method", "native"]).spawn());
        assert_eq!(outcome.report["jobs"][0]["method"], "native", "{:#}", outcome.report);
        assert_eq!(outcome.report["jobs"][0]["ending"], "done", "{:#}", outcome.report);
        assert!(writers.wait_for(WARM / 3, PATIENCE));
    }
    let record = writers.stop();
    eprintln!("native: {}", record.observed);
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
}

/// Redis 8.4 and later hide keys of slots that a node does not own: the servers' own migration comes first.
#[test]
fn servers_that_hide_keys_move_slots_themselves() {
    let scene = Scene::of(Engine::Redis86, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    Dataset::generate(27, Scale::Tiny).write_to(&scene.deployment()).unwrap();
    let before = scene.unwritten();
    let writers = scene.writers(MOVING);
    assert!(writers.wait_for(WARM, PATIENCE), "the writers do not come to work");
    for target in [1, 0] {
        let outcome = MoveReport::by(scene.reshard(MOVING_TEXT, target, &[]).spawn());
        assert_eq!(outcome.report["jobs"][0]["method"], "native", "{:#}", outcome.report);
        assert_eq!(outcome.report["jobs"][0]["ending"], "done", "{:#}", outcome.report);
        assert!(writers.wait_for(WARM / 3, PATIENCE));
    }
    let record = writers.stop();
    eprintln!("native: {}", record.observed);
    scene.assert_kept(&record);
    scene.assert_unchanged(&before);
    assert!(record.observed.moved > 0, "nobody noticed that slots moved: {}", record.observed);
    scene.assert_nothing_hidden();
}

/// The classic way is there to be compared with: it loses nothing that nobody writes.
#[test]
fn the_legacy_method_moves_slots() {
    let scene = Scene::of(Engine::Redis70, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    Dataset::generate(25, Scale::Tiny).write_to(&scene.deployment()).unwrap();
    let before = scene.unwritten();
    let outcome = MoveReport::by(scene.reshard("0-511", 1, &["--method", "legacy"]).spawn());
    assert_eq!(outcome.report["jobs"][0]["ending"], "done", "{:#}", outcome.report);
    assert_eq!(shards::slots_of(&scene.cluster, 0).unwrap().len(), 8192 - 512);
    shards::assert_sound(&scene.cluster);
    // MIGRATE sends what is left until a key expires, so it expires later by as long as it took to arrive.
    scene.assert_unchanged_within(&before, 60_000);
}

/// Slots that moved before it failed stay where they are, and everything that is said afterwards says so.
#[test]
fn a_legacy_move_that_fails_says_what_has_moved() {
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(5..=5, 1, 20);
    let target = &scene.cluster.nodes()[1];
    assert_eq!(target.call(&["CONFIG", "SET", "maxmemory", "1"]), redis::Value::Okay);
    let outcome = MoveReport::of(scene.reshard("0-9", 1, &["--method", "legacy"]).run().expect_code(7));
    let job = &outcome.report["jobs"][0];
    assert_eq!((&job["ending"], &job["slots_handed_over"]), (&"failed".into(), &"0-4".into()), "{job:#}");
    let name = job["id"].as_str().expect("a name");
    let shown = scene.jobs(&["show", name]).run().expect_code(0).stdout;
    assert!(shown.contains("0-4") && !shown.contains("moved none"), "{shown}");
    assert_eq!(shards::slots_of(&scene.cluster, 1).unwrap().len(), 8192 + 5);
    for option in [&["--rate-keys", "1"][..], &["--between", "01:00-02:00"], &["--verify", "full"]] {
        let refused = scene.reshard("0-9", 1, &[&["--method", "legacy"][..], option].concat()).run();
        assert!(refused.expect_code(2).stdout.contains(option[0]), "{option:?} is not kept, and not refused");
    }
}

/// A shard without replicas that gets what others had replicas of is named in the plan.
#[test]
fn a_target_without_replicas_is_named() {
    let scene = Scene::of(Engine::Valkey81, 1, &[vec![0..=8191], vec![8192..=16383]]).start();
    let args = ["--slots", "0-9", "--to", scene.cluster.node_id(1), "--dry-run"];
    let shown = || scene.command("reshard", &args).run().expect_code(0).stdout;
    assert!(shown().contains("\"without_replicas\":[]"), "{}", shown());
    let replica = &scene.cluster.replicas_of(1)[0];
    assert_eq!(replica.call(&["CLUSTER", "REPLICATE", scene.cluster.node_id(0)]), redis::Value::Okay);
    let target = scene.cluster.nodes()[1].addr();
    whimbrel_lab::until("it is named", || {
        let shown = shown();
        shown
            .split_once("\"without_replicas\":[\"")
            .is_some_and(|(_, rest)| rest.contains(&target))
            .then_some(())
    });
}

/// What has no slots is no part of the balance unless it is asked for: that must not pass for *all is well*.
#[test]
fn a_primary_without_slots_is_named() {
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=8191], vec![8192..=16383], vec![]]).start();
    let seed = scene.cluster.seed();
    let rebalance = |more: &[&str]| {
        let args = [&["rebalance", &seed, "--dry-run"][..], more].concat();
        whimbrel_e2e::binary::run(&args).expect_code(0)
    };
    let stderr = rebalance(&[]).stderr;
    assert!(stderr.contains(&scene.cluster.nodes()[2].addr()) && stderr.contains("--use-empty"), "{stderr}");
    assert!(!stderr.contains("everything is where it should be"), "{stderr}");
    assert!(rebalance(&["--json"]).stdout.contains("\"empty_primaries\":[\""));
    assert!(rebalance(&["--json", "--use-empty"]).stdout.contains("\"empty_primaries\":[]"));
}

/// Several targets in one call, and slots by number.
#[test]
fn several_targets_and_counts() {
    let scene = Scene::of(Engine::Redis80, 0, &[vec![0..=16383], vec![], vec![]]).start();
    Dataset::generate(26, Scale::Tiny).write_to(&scene.deployment()).unwrap();
    let before = scene.unwritten();
    let id = |node: usize| scene.cluster.node_id(node).to_owned();
    let address = scene.cluster.nodes()[2].addr();
    // Not a test of short pauses, for which a busy machine is too slow.
    let patient = ["--yes", "--max-pause", "5s"];
    let args = ["--slots", "0-99", "--to", &id(1), "--slots", "100-149,500", "--to", &address];
    MoveReport::by(scene.command("reshard", &[&args[..], &patient].concat()).spawn()).assert_done();
    let counts = |scene: &Scene| [0, 1, 2].map(|node| shards::slots_of(&scene.cluster, node).unwrap().len());
    assert_eq!(counts(&scene), [16384 - 151, 100, 51]);
    let args = ["--from", &id(0), "--count", "233", "--to", &id(1)];
    MoveReport::by(scene.command("reshard", &[&args[..], &patient].concat()).spawn()).assert_done();
    assert_eq!(counts(&scene), [16000, 333, 51]);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

/// While a child of it saves, Valkey 8.1 before 8.1.5 reads what it has freed when it removes the keys of a
/// slot that it lost (<https://github.com/valkey-io/valkey/pull/2753>). It lives, whatever the server, and no
/// write is lost.
fn a_source_that_saves_meanwhile_lives(engine: Engine) {
    let scene = Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]])
        .cluster(whimbrel_lab::ClusterBuilder::overwrites_freed)
        .start();
    // Enough in each slot for its table to have two or four buckets, and to shrink only when it is empty.
    scene.fill(0..=199, 200, 2_800);
    let before = scene.unwritten();
    let writers = scene.writers(0..=199);
    assert!(writers.wait_for(WARM / 3, PATIENCE), "the writers do not come to work");
    let source = &scene.cluster.nodes()[0];
    let persistence = || match source.call(&["INFO", "persistence"]) {
        redis::Value::BulkString(text) => String::from_utf8(text).expect("text"),
        other => panic!("{other:?}"),
    };
    for (slots, target) in [("0-99", 1), ("100-199", 1)] {
        let go_on = scene.file(slots);
        let mut running = scene
            .reshard(slots, target, &["--method", "external", "--report", "1"])
            .env("WHIMBREL_FAILPOINT_PAUSE", "catch-up:after")
            .env("WHIMBREL_FAILPOINT_FILE", &go_on)
            .spawn();
        wait_for_phase(&mut running, "streaming");
        wait_until("it waits at the failpoint", || go_on.with_extension("reached").exists());
        // For seconds: a busy machine may come to look late.
        source.call(&["CONFIG", "SET", "rdb-key-save-delay", "3000"]);
        source.call(&["BGSAVE"]);
        assert!(persistence().contains("rdb_bgsave_in_progress:1"), "it saves too fast");
        std::fs::write(&go_on, "").expect("it goes on");
        MoveReport::by(running).assert_done();
        source.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        scene.assert_all_run();
        wait_until("it has saved", || !persistence().contains("rdb_bgsave_in_progress:1"));
    }
    scene.assert_kept(&writers.stop());
    scene.assert_unchanged(&before);
}

whimbrel_lab::for_each_engine! {
    on Redis80 Valkey81 Valkey91:
        a_source_that_saves_meanwhile_lives
}

whimbrel_lab::for_each_engine! {
    slots_move_under_writers
    shards_come_and_go
    moving_without_psync_loses_nothing
    documented_permissions_are_enough
    plans_are_only_shown
}

/// By whimbrel's own method, on servers that hide keys of slots that a node does not own.
mod hidden {
    use whimbrel_lab::Engine;

    fn slots_move_under_writers(engine: Engine) {
        super::slots_move_under_writers(engine);
    }

    /// Streams of Redis 8.6 are dumped in a form of their own.
    fn moving_without_psync_loses_nothing(engine: Engine) {
        super::moving_without_psync_loses_nothing(engine);
    }

    whimbrel_lab::for_each_engine! {
        on Redis86:
            slots_move_under_writers
            moving_without_psync_loses_nothing
    }

    mod matrix {
        use whimbrel_lab::Engine;

        fn shards_come_and_go(engine: Engine) {
            super::super::shards_come_and_go(engine);
        }

        fn documented_permissions_are_enough(engine: Engine) {
            super::super::documented_permissions_are_enough(engine);
        }

        whimbrel_lab::for_each_engine! {
            on Redis86:
                shards_come_and_go
                documented_permissions_are_enough
        }
    }
}
