//! What is said of jobs: who began them, when their keys move, how a comparison ended, and what becomes of
//! the others of a command that makes several.

use serde_json::Value;
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::resharding::{PATIENCE, Scene};
use whimbrel_e2e::slow_jobs::{jobs, listed};
use whimbrel_judge::cluster_writers::tags_in;
use whimbrel_lab::{Engine, Server, wait_until};

use crate::console::user;

/// The job of this name.
#[track_caller]
fn job(state: &str, name: &str) -> Value {
    let all = listed(state);
    let found = all.iter().find(|job| job["name"] == name).cloned();
    found.unwrap_or_else(|| panic!("no {name}: {all:#?}"))
}

/// A comparison that finds differences has done what it was asked for: it has ended, all was compared, and
/// there is nothing to go on with. Who began it is said, and the user of its process, which no claim hides.
#[test]
fn a_comparison_that_finds_differences_has_ended() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    for (server, keys) in [(&source, ["a", "b", "c"]), (&target, ["a", "b", "d"])] {
        for key in keys {
            redis::cmd("SET").arg(key).arg("value").exec(&mut server.connection()).expect("written");
        }
    }
    redis::cmd("DEL").arg("d").exec(&mut target.connection()).expect("removed");
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain path");
    let verify = ["verify", &source.addr(), &target.addr(), "--state-dir", state, "--name", "proof"];
    let claim = "token alice (console)";
    Invocation::new(&verify).env("WHIMBREL_BEGUN_BY", claim).timeout(PATIENCE).run().expect_code(6);
    let proof = job(state, "proof");
    let state_of = |job: &Value| (job["state"].clone(), job["phase"].clone(), job["percent"].clone());
    assert_eq!(state_of(&proof), ("ended".into(), "different".into(), 100.into()), "{proof:#}");
    assert_eq!((&proof["again"], &proof["message"]), (&Value::Null, &"".into()), "{proof:#}");
    let by = format!("{claim}, as {}", user());
    assert_eq!(proof["begun_by"], by.as_str());
    let text = jobs(state, &["show", "proof"]).expect_code(0).stdout;
    for expected in ["state    different", "are compared: 100 %", &format!("begun by {by}")] {
        assert!(text.contains(expected), "no {expected}: {text}");
    }
    let list = jobs(state, &["list"]).expect_code(0).stdout;
    assert!(list.contains(&by) && !list.contains("interrupted"), "{list}");
    let report = jobs(state, &["report", "proof"]).expect_code(0).stdout;
    let document: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(document["events"][0]["by"], by.as_str(), "{report}");
    assert_eq!(document["report"]["missing"], 1, "{report}");
    let page = folder.path().join("proof.html");
    jobs(state, &["report", "proof", "--html", page.to_str().expect("a path")]).expect_code(0);
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("whimbrel verify: different") && page.contains(&by), "{page}");
}

/// What moves keys at a time of the day only says so before it begins.
#[test]
fn a_plan_says_when_its_keys_move() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let scene = Scene::of(Engine::Redis70, 0, &[vec![0..=8_191], vec![8_192..=16_383]]).start();
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("a plain path");
    let (from, to) = (source.addr(), target.addr());
    for half in ["00:00-12:00", "12:00-00:00"] {
        let expected = format!("times    keys move only between {half}Z: ");
        let times = ["--between", half, "--dry-run", "--state-dir", state];
        for kind in ["copy", "sync"] {
            let plan = [&[kind, &from, &to][..], &times].concat();
            let plan = Invocation::new(&plan).timeout(PATIENCE).run().expect_code(0);
            assert!(plan.stderr.contains(&expected), "{kind}: {}", plan.stderr);
        }
        let (seed, node) = (scene.cluster.seed(), scene.cluster.node_id(1));
        let plan = [&["reshard", &seed, "--slots", "0-9", "--to", node, "--method", "external"][..], &times];
        let plan = Invocation::new(&plan.concat()).timeout(PATIENCE).run().expect_code(0);
        assert!(plan.stderr.contains(&expected), "{}", plan.stderr);
    }
}

/// Two moves from one node, of which one waits, and one from another node: the slots of each.
const MOVES: [&str; 3] = ["0-9", "10-19", "6000-6009"];

/// Runs them, slowly, at nodes of which none gives slots away and takes some.
fn three_moves(scene: &Scene) -> Invocation {
    let [one, two] = [2, 3].map(|node| scene.cluster.node_id(node).to_owned());
    let slots = MOVES.iter().zip([&one, &two, &one]).flat_map(|(slots, to)| ["--slots", slots, "--to", to]);
    let slowly = ["--yes", "--name", "night", "--method", "external", "--rate-keys", "1"];
    let slowly = [&slowly[..], &["--max-pause", "5s"]].concat();
    scene.command("reshard", &slots.chain(slowly).collect::<Vec<_>>())
}

/// An order to one job of a command names the others, and can mean all of them.
#[test]
fn jobs_of_one_command_are_steered_one_by_one_or_all() {
    let layout = [vec![0..=5_999], vec![6_000..=11_999], vec![12_000..=13_999], vec![14_000..=16_383]];
    let scene = Scene::of(Engine::Redis70, 0, &layout).start();
    for (node, slots) in [(0, 0..=19), (1, 6_000..=6_009)] {
        let mut connection = scene.cluster.connection_to(node);
        for tag in tags_in(slots, 10) {
            // More than pass at once whenever a rate is set.
            let mut pipe = redis::pipe();
            for key in 0..2_000 {
                pipe.cmd("SET").arg(format!("{{{tag}}}{key}")).arg("value").ignore();
            }
            pipe.exec(&mut connection).expect("written");
        }
    }
    let state = scene.file("");
    let state = state.to_str().expect("a plain path").trim_end_matches('/');
    let of = |slots: &str| listed(state).into_iter().find(|job| job["slots"] == slots);
    let is = |slots: &str, phase: &str| of(slots).is_some_and(|job| job["phase"] == phase);
    let mut running = three_moves(&scene).spawn();
    // Which of the two from one node comes first is the planner's affair.
    let first_of = || MOVES[..2].iter().find(|slots| is(slots, "snapshotting"));
    wait_until("two are at work", || first_of().is_some() && is(MOVES[2], "snapshotting"));
    let first = first_of().copied().expect("one of them");
    let last = MOVES[..2].iter().copied().find(|slots| *slots != first).expect("the other one");
    let [night, waits, other] = [first, last, MOVES[2]].map(|slots| {
        let job = of(slots).unwrap_or_else(|| panic!("no job of {slots}"));
        assert_eq!(job["plan"], of(MOVES[2]).expect("it is there")["plan"], "{job:#}");
        job["name"].as_str().expect("a name").to_owned()
    });
    let paused = jobs(state, &["pause", &night]).expect_code(0);
    let both = [format!("{waits} (running: queued)"), format!("{other} (running: snapshotting)")];
    for expected in ["2 other jobs of the same command", &both[0], &both[1], "--all means them as well"] {
        assert!(paused.stderr.contains(expected), "no {expected}: {}", paused.stderr);
    }
    let all = jobs(state, &["set", &night, "--all", "rate-keys=2"]).expect_code(0);
    for name in [&night, &waits, &other] {
        assert!(all.stdout.contains(&format!("job {name}: 2 keys a second")), "{}", all.stdout);
    }
    assert!(!all.stderr.contains("--all"), "{}", all.stderr);
    // The one that waits behind it is given up by its process; the one of another node goes on.
    let cancelled = jobs(state, &["cancel", &night]).expect_code(0);
    let given_up = format!("job {waits} waited behind it, and was given up");
    for expected in [&format!("job {night}: cancelled"), &given_up] {
        assert!(cancelled.stdout.contains(expected), "no {expected}: {}", cancelled.stdout);
    }
    let others = format!("1 other job of the same command: {other} (running");
    assert!(cancelled.stderr.contains(&others), "{}", cancelled.stderr);
    assert!(is(first, "cancelled") && is(MOVES[2], "snapshotting"), "{:#?}", listed(state));
    let cancelled = jobs(state, &["cancel", &night, "--all"]).expect_code(0).stdout;
    let ended = [format!("job {night} has ended already: cancelled"), format!("job {other}: cancelled")];
    assert!(ended.iter().all(|expected| cancelled.contains(expected)), "{cancelled}");
    running.wait(PATIENCE).expect("it ends");
    assert!(listed(state).iter().all(|job| job["state"] == "ended"));
    assert_eq!([0, 10, 6_000].map(|slot| scene.cluster.owner_of(slot).expect("an owner")), [0, 0, 1]);
    scene.assert_all_run();
}
