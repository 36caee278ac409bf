//! Whimbrel is killed, nodes are killed, jobs are cancelled, in every phase of a move, while clients read and
//! write. Afterwards every slot has one owner that all agree on, nothing acknowledged is lost, no key is left
//! where it does not belong, and replicas hold what their primaries hold.
//!
//! In `share` each engine meets a part of the cases, such that all engines together meet all; in `matrix` it
//! meets the rest of them. Nodes under an atomic job are an exception: half of those cases are in `matrix`
//! alone.

mod scenes;

use std::thread;
use std::time::{Duration, Instant};

use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene, wait_for_phase};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::tags_in;
use whimbrel_lab::{Engine, Server, wait_until};

use self::scenes::{
    BYSTANDERS, MOVING, MOVING_TEXT, assert_kept_but_for_failovers, elections_won, filled, filled_in,
    own_line, owner, owners_of_moving, rejoin_its_shard, replica_of, scene, scene_with_failovers,
    serves_again, wait_for_failover, wait_until_replica_follows, wait_until_replica_knows_epoch, writers,
};

/// The effects of a move that goes well, and the phase that a job is in during each.
const EFFECTS: [(&str, &str); 13] = [
    ("check", "preparing"),
    ("mark-importing", "preparing"),
    ("attach", "attaching"),
    ("snapshot", "snapshotting"),
    ("catch-up", "streaming"),
    ("pause", "pausing"),
    ("drain", "draining"),
    ("compare", "comparing"),
    ("fence", "fencing"),
    ("take-over", "taking-over"),
    ("release", "releasing"),
    ("confirm", "confirming"),
    ("clean-up", "cleaning-up"),
];

/// Those of them before the fence.
const BEFORE_FENCE: usize = 8;

/// Which cases of a fault matrix a test goes through.
#[derive(Debug, Clone, Copy)]
enum Cases {
    /// The engine's share of them: all engines together go through all.
    Share,
    /// All that are not in the engine's share.
    Rest,
}

impl Cases {
    /// Those of `all` cases that a test of `engine` goes through, where every `parts`-th one is in its share.
    fn of<T>(self, engine: Engine, all: Vec<T>, parts: usize) -> Vec<T> {
        // Others than those of all meet what the first of them meets.
        let own = Engine::ALL.iter().position(|&other| other == engine).unwrap_or(0) % parts;
        let wanted = |place: usize| (place % parts == own) == matches!(self, Self::Share);
        all.into_iter().enumerate().filter(|(place, _)| wanted(*place)).map(|(_, case)| case).collect()
    }
}

/// Tests of these checks for all engines, each with these cases.
macro_rules! fault_matrix {
    ($module:ident, $cases:ident: $($check:ident)+) => {
        fault_matrix! { $module, $cases on Redis70 Redis80 Valkey81 Valkey91: $($check)+ }
    };
    ($module:ident, $cases:ident on $($engine:ident)+ : $($check:ident)+) => {
        fault_matrix! { @module $module, $cases [on $($engine)+ :] $($check)+ }
    };
    (@module $module:ident, $cases:ident [$($engines:tt)+] $($check:ident)+) => {
        mod $module {
            use whimbrel_lab::Engine;

            use super::Cases;

            $(
                fn $check(engine: Engine) {
                    super::$check(engine, Cases::$cases);
                }
            )+

            whimbrel_lab::for_each_engine! { $($engines)+ $($check)+ }
        }
    };
}

/// In several batches, so that some are handed over and some are not.
fn whimbrel_is_killed(engine: Engine, cases: Cases) {
    is_killed(engine, cases, &["--batch-keys", "1250"], 2);
}

/// All slots have moved, or none, whenever it is killed, and also before anybody goes on.
fn an_atomic_job_is_killed(engine: Engine, cases: Cases) {
    is_killed(engine, cases, ATOMIC, 1);
}

/// What makes a job atomic.
const ATOMIC: &[&str] = &["--atomic"];

fn is_killed(engine: Engine, cases: Cases, how: &[&str], batches: usize) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let all = EFFECTS.iter().flat_map(|(effect, _)| [format!("{effect}:before"), format!("{effect}:after")]);
    for (number, place) in cases.of(engine, all.collect(), 4).iter().enumerate() {
        let writers = writers(&scene, &format!("killed{number}"));
        let (source, target) = owner(&scene, place);
        // A busy machine does not come to an end within the usual pause.
        let usual = ["--method", "external", "--max-pause", "5s"];
        let command = scene.reshard(MOVING_TEXT, target, &[&usual, how].concat());
        let batch = number % batches;
        let output = command.env("WHIMBREL_FAILPOINT", format!("{place}@{batch}")).run();
        assert_eq!(output.code(), None, "{place}: it was not killed: {output:#?}");
        assert_eq!(scene.unfinished().len(), 1, "{place}");
        writers.wait_for(50, Duration::from_secs(1));
        if how == ATOMIC {
            assert_all_or_none(&scene, target, place);
        }
        scene.resume();
        assert!(writers.wait_for(100, PATIENCE), "{place}: the writers have stopped");
        let record = writers.stop();
        eprintln!("{engine}, killed at {place}@{batch}: {}", record.observed);
        scene.assert_kept(&record);
        assert_eq!(owner(&scene, place), (target, source), "{place}: resumed, but not done");
        scene.assert_unchanged(&before);
    }
}

/// Panics unless a node owns all of the moving slots, or none, by its own word.
#[track_caller]
fn assert_all_or_none(scene: &Scene, node: usize, case: &str) {
    let owned = shards::slots_of(&scene.cluster, node).expect("it answers");
    let moved = MOVING.filter(|slot| owned.contains(slot)).count();
    assert!(moved == 0 || moved == MOVING.count(), "{case}: {moved} of {} slots have moved", MOVING.count());
}

/// Whimbrel is killed while it undoes what it began.
fn whimbrel_is_killed_while_it_rolls_back(engine: Engine, cases: Cases) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let all = vec![
        ("snapshot:after", "wipe:before"),
        ("drain:after", "wipe:after"),
        ("compare:after", "lift-pause:after"),
        ("catch-up:after", "clear-marks:before"),
        ("pause:after", "clear-marks:after"),
        ("fence:after", "observe:after"),
        ("fence:after", "give-back:before"),
        ("fence:after", "give-back:after"),
        ("take-over:before", "observe:before"),
        ("take-over:after", "release:before"),
    ];
    for (number, (first, second)) in cases.of(engine, all, 4).into_iter().enumerate() {
        let place = format!("{first}, then {second}");
        let writers = writers(&scene, &format!("twice{number}"));
        let (source, target) = owner(&scene, &place);
        // It has to get as far as that on a busy machine, too.
        let options = ["--method", "external", "--max-pause", "5s"];
        let command = scene.reshard(MOVING_TEXT, target, &options);
        let output = command.env("WHIMBREL_FAILPOINT", first).run();
        assert_eq!(output.code(), None, "{place}: it was not killed: {output:#?}");
        // Where the fence does not outlive the pause nothing has to be given back: then it just ends.
        let seed = scene.cluster.seed();
        let again = scene.jobs(&["resume", "--cluster", &seed]).env("WHIMBREL_FAILPOINT", second).run();
        assert!(matches!(again.code(), None | Some(0)), "{place}: {again:#?}");
        scene.resume();
        assert!(writers.wait_for(100, PATIENCE), "{place}: the writers have stopped");
        let record = writers.stop();
        eprintln!("{engine}, killed at {place}: {}", record.observed);
        scene.assert_kept(&record);
        assert_eq!(owner(&scene, &place), (target, source), "{place}: resumed, but not done");
        scene.assert_unchanged(&before);
    }
}

/// Before the fence a cancelled job leaves nothing behind, and clients have seen nothing of it.
fn jobs_are_cancelled(engine: Engine, cases: Cases) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let all = EFFECTS[..BEFORE_FENCE]
        .iter()
        .flat_map(|&(effect, phase)| [(effect, "before", phase), (effect, "after", phase)]);
    for (number, (effect, side, phase)) in cases.of(engine, all.collect(), 4).into_iter().enumerate() {
        let place = format!("{effect}:{side}");
        let writers = writers(&scene, &format!("cancelled{number}"));
        let owners = owner(&scene, &place);
        let (mut running, go_on) = paused_at(&scene, &place, phase, owners.1);
        let by_signal = number % 2 == 1;
        let mut asked = None;
        if by_signal {
            running.terminate();
            wait_until("the signal is noticed", || running.stderr().contains("stopping"));
        } else {
            let unfinished = scene.unfinished();
            let mut cancel = scene.jobs(&["cancel", &unfinished[0]]).spawn();
            assert!(cancel.wait_for_text("\"asked\"", PATIENCE), "{place}: {}", cancel.stderr());
            asked = Some(cancel);
        }
        std::fs::write(&go_on, "").expect("a file in our folder");
        let output = running.wait(PATIENCE).unwrap_or_else(|| panic!("{place}: it does not end"));
        let outcome = MoveReport::of(output.expect_code(130));
        assert_eq!(outcome.report["jobs"][0]["ending"], "cancelled", "{place}: {:#}", outcome.report);
        if let Some(mut asked) = asked {
            asked
                .wait(PATIENCE)
                .unwrap_or_else(|| panic!("{place}: jobs cancel does not end"))
                .expect_code(0);
        }
        assert!(writers.wait_for(100, PATIENCE), "{place}: the writers have stopped");
        let record = writers.stop();
        eprintln!("{engine}, cancelled at {place}: {}", record.observed);
        record.observed.assert_only_moved();
        assert_eq!(owner(&scene, &place), owners, "{place}: cancelled, but moved");
        assert!(scene.unfinished().is_empty(), "{place}");
        scene.assert_kept(&record);
        scene.assert_unchanged(&before);
    }
}

/// Starts a move that waits at a failpoint. Returns it once it is there, and the file that lets it go on.
fn paused_at(scene: &Scene, place: &str, phase: &str, target: usize) -> (Running, std::path::PathBuf) {
    paused_with(scene, place, phase, target, &[])
}

fn paused_with(
    scene: &Scene,
    place: &str,
    phase: &str,
    target: usize,
    how: &[&str],
) -> (Running, std::path::PathBuf) {
    let go_on = scene.file(&format!("go-on-{}", place.replace(':', "-")));
    let reached = go_on.with_extension("reached");
    // Left over from an earlier case they would let this one pass at once.
    for file in [&go_on, &reached] {
        let _ = std::fs::remove_file(file);
    }
    // A busy machine takes long over everything, and these are no tests of short pauses. A pause in which it
    // waits has to outlast what is done meanwhile: what is written just before a node is killed may be lost.
    let pause: &[&str] = if how.contains(&"--max-pause") { &[] } else { &["--max-pause", "20s"] };
    let options = [&["--method", "external", "--report", "1"], pause, how].concat();
    let command = scene.reshard(MOVING_TEXT, target, &options);
    let mut running =
        command.env("WHIMBREL_FAILPOINT_PAUSE", place).env("WHIMBREL_FAILPOINT_FILE", &go_on).spawn();
    wait_for_phase(&mut running, phase);
    wait_until("it waits at the failpoint", || reached.exists());
    (running, go_on)
}

/// A node that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Source,
    Target,
    ReplicaOfSource,
    ReplicaOfTarget,
}

fn nodes_are_killed(engine: Engine, cases: Cases) {
    are_killed(engine, cases, &[]);
}

fn nodes_are_killed_under_an_atomic_job(engine: Engine, cases: Cases) {
    are_killed(engine, cases, ATOMIC);
}

fn are_killed(engine: Engine, cases: Cases, how: &[&str]) {
    let places = [
        ("snapshot:before", "snapshotting"),
        ("catch-up:after", "streaming"),
        ("drain:after", "draining"),
        ("fence:after", "fencing"),
        ("take-over:after", "taking-over"),
        ("clean-up:before", "cleaning-up"),
    ];
    let victims = [Victim::Source, Victim::Target, Victim::ReplicaOfSource, Victim::ReplicaOfTarget];
    // In this order each engine meets every phase with some victim, and every victim in some phase.
    let all: Vec<_> = (0..places.len() * victims.len())
        .map(|number| {
            (places[number / victims.len()], victims[(number + number / victims.len()) % victims.len()])
        })
        .collect();
    let scene = scene_with_failovers(engine);
    let before = scene.unwritten();
    for (number, ((place, phase), victim)) in cases.of(engine, all, 4).into_iter().enumerate() {
        let case = format!("{victim:?} killed at {place}");
        let (writers, won) = (writers(&scene, &format!("node{number}")), elections_won(&scene));
        let (source, target) = owner(&scene, &case);
        let (mut running, go_on) = paused_with(&scene, place, phase, target, how);
        let index = match victim {
            Victim::Source => source,
            Victim::Target => target,
            Victim::ReplicaOfSource => replica_of(&scene, source),
            Victim::ReplicaOfTarget => replica_of(&scene, target),
        };
        let node = &scene.cluster.nodes()[index];
        {
            // What a server acknowledges before its replica has it may be lost with it: that is the server's
            // promise. And a replica that has not heard of its primary's epoch is not elected: that is what
            // `repair` is for, with a test of its own.
            let _hold = writers.hold();
            if matches!(victim, Victim::Source | Victim::Target) {
                wait_until_replica_follows(&scene, index);
                wait_until_replica_knows_epoch(&scene, index);
            }
            node.kill9().expect("it can be killed");
        }
        std::fs::write(&go_on, "").expect("a file in our folder");
        let output = match running.wait(PATIENCE) {
            Some(output) => output,
            None => panic!("{case}: it does not end: {:#?}", running.kill9()),
        };
        eprintln!(
            "{engine}, {case}: ended with {:?}, {}",
            output.code(),
            MoveReport::of(output.clone()).reason()
        );
        assert!(matches!(output.code(), Some(0 | 7)), "{case}: {output:#?}");
        if matches!(victim, Victim::Source | Victim::Target) {
            wait_for_failover(&scene, &case);
            if BEFORE_THE_FENCE.contains(&phase) {
                // Before anybody goes on with the job.
                serves_again(&scene, &case);
            }
        }
        scene.resume();
        // The node stays dead: a user may have none to put in its place.
        serves_again(&scene, &case);
        // Without another crash than that.
        let mut others = scene.cluster.nodes().iter().filter(|other| !std::ptr::eq(*other, node));
        if let Some(other) = others.find(|other| !other.is_running()) {
            panic!("{case}: {} has crashed:\n{}", other.addr(), other.log());
        }
        node.restart().expect("it restarts");
        scene.cluster.wait_ok().unwrap_or_else(|error| panic!("{case}: {error}"));
        rejoin_its_shard(&scene, index);
        if output.code() != Some(0) {
            // What the node had marked when it died it has still marked, and nobody could clear that
            // meanwhile.
            whimbrel_e2e::binary::run(&["repair", &scene.cluster.seed(), "--yes"]).expect_code(0);
            // Batches that had been handed over stay where they are. As the reason says, a user starts again.
            let [first, _, last] = owners_of_moving(&scene);
            if how.is_empty() && first != last {
                scene.reshard(MOVING_TEXT, first, &["--method", "external"]).run().expect_code(0);
            }
        }
        assert!(writers.wait_for(200, PATIENCE), "{case}: the writers have stopped");
        let record = writers.stop();
        eprintln!("{engine}, {case}: {}", record.observed);
        let failovers = usize::from(matches!(victim, Victim::Source | Victim::Target));
        assert_kept_but_for_failovers(&scene, &record, won, failovers);
        owner(&scene, &case);
        scene.assert_unchanged(&before);
    }
}

/// Phases in which the source owns all slots: what becomes of the job is nothing to clients.
const BEFORE_THE_FENCE: [&str; 3] = ["snapshotting", "streaming", "draining"];

/// Valkey sends replicas a mark before the primary sets it. Where whimbrel dies between the two, replicas
/// alone have it, and nobody would ever clear it.
fn marks_that_only_a_replica_has_are_cleared(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let (_, target) = owner(&scene, "at first");
    let nodes = scene.cluster.nodes();
    let replica = &nodes[replica_of(&scene, target)];
    let (mut running, go_on) = paused_at(&scene, "mark-importing:before", "preparing", target);
    let job = scene.unfinished().remove(0);
    replica.suspend().expect("it is stopped");
    std::fs::write(&go_on, "").expect("a file in our folder");
    let waits = || {
        let clients = nodes[target].call(&["INFO", "clients"]);
        let clients = redis::from_redis_value::<String>(clients).expect("text");
        !clients.contains("blocked_clients:0")
    };
    wait_until("the target waits for its replica", waits);
    running.kill9();
    wait_until("the target has noticed that whimbrel is gone", || !waits());
    replica.resume().expect("it goes on");
    wait_until_replica_follows(&scene, target);
    scene.jobs(&["cancel", &job, "--cluster", &scene.cluster.seed()]).run().expect_code(0);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

/// Whimbrel dies behind the fence, and then the source, which comes back. Redis 8.4 and later delete keys at
/// their start of slots that they do not own: then the target has the last copies, which nobody may delete.
fn the_last_copies_are_kept(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let (source, target) = owner(&scene, "at first");
    let nodes = scene.cluster.nodes();
    let how = ["--max-pause", "20s"];
    let (mut running, go_on) = paused_with(&scene, "fence:before", "fencing", target, &how);
    let job = scene.unfinished().remove(0);
    nodes[target].suspend().expect("it is stopped");
    std::fs::write(&go_on, "").expect("a file in our folder");
    let owns = || own_line(&nodes[source]).iter().skip(8).any(|slots| slots.starts_with("0-"));
    wait_until("the fence stands", || !owns());
    running.kill9();
    nodes[source].kill9().expect("it is killed");
    nodes[target].resume().expect("it goes on");
    nodes[source].restart().expect("it restarts");
    let resumed = scene.jobs(&["resume", &job, "--cluster", &scene.cluster.seed()]).run();
    eprintln!("{engine}: {:?} {}", resumed.code(), resumed.stdout);
    assert!(matches!(resumed.code(), Some(0 | 7)), "{resumed:#?}");
    // Others keep the keys, and get the slots back; so shortly after its start the cluster may be down.
    let is_in_doubt = resumed.stdout.contains("nothing was deleted");
    assert!(is_in_doubt || engine != Engine::Redis86, "{resumed:#?}");
    if is_in_doubt {
        whimbrel_e2e::binary::run(&["repair", &scene.cluster.seed(), "--yes"]).expect_code(0);
    }
    scene.cluster.wait_ok().expect("all slots are served");
    scene.assert_unchanged(&before);
}

whimbrel_lab::for_each_engine! {
    on Redis70 Redis86:
        the_last_copies_are_kept
}

/// While a node's last slots move, it and its replicas are kept from following them. That is put back,
/// whichever process does it.
fn settings_are_put_back_by_who_goes_on(engine: Engine) {
    let scene = Scene::of(engine, 1, &[vec![0..=399], vec![400..=16383]])
        .cluster(|cluster| cluster.arg("cluster-allow-replica-migration", "yes"))
        .start();
    // In one batch, whatever the server.
    let scene = filled_in(scene, 0..=399);
    let before = scene.unwritten();
    for (place, goes_on) in [("snapshot:after", false), ("release:after", true)] {
        let command = scene.reshard("0-399", 1, &["--method", "external"]);
        let output = command.env("WHIMBREL_FAILPOINT", place).run();
        assert_eq!(output.code(), None, "{place}: it was not killed: {output:#?}");
        assert!(!migration_is_allowed(&scene.cluster.nodes()[0]), "{place}: nothing has to be put back");
        if goes_on {
            scene.resume();
        } else {
            let (job, seed) = (scene.unfinished().remove(0), scene.cluster.seed());
            scene.jobs(&["cancel", &job, "--cluster", &seed]).run().expect_code(0);
        }
        for node in scene.cluster.nodes() {
            assert!(migration_is_allowed(node), "{place}: it stays off at {}", node.addr());
        }
        assert_eq!(scene.cluster.current_primaries().expect("the nodes answer"), [0, 1], "{place}");
        scene.assert_unchanged(&before);
    }
    scene.assert_all_run();
    shards::assert_sound(&scene.cluster);
    assert_eq!(shards::slots_of(&scene.cluster, 0).expect("it answers").len(), 0);
}

/// A job that was killed late knows little of what came after it. Slots that have been moved on since stay
/// where they are.
fn slots_that_somebody_moved_on_stay_there(engine: Engine, cases: Cases) {
    let all = vec![
        ("clean-up:before", "resume"),
        ("release:before", "cancel"),
        ("take-over:after", "resume"),
        ("clean-up:before", "cancel"),
    ];
    for (place, verb) in cases.of(engine, all, 4) {
        let case = format!("{verb} after {place}");
        let layout = [vec![0..=8191], vec![8192..=16000], vec![16001..=16383]];
        let scene = filled(Scene::of(engine, 1, &layout).start());
        let output =
            scene.reshard(MOVING_TEXT, 1, &["--method", "external"]).env("WHIMBREL_FAILPOINT", place).run();
        assert_eq!(output.code(), None, "{case}: it was not killed: {output:#?}");
        let old = scene.unfinished().remove(0);
        if scene.cluster.owner_of(0).map_or(true, |owner| owner == 0) {
            // Taken over, and announced to nobody yet.
            let seed = scene.cluster.seed();
            whimbrel_e2e::binary::run(&["repair", &seed, "--yes"]).expect_code(0);
        }
        let (seed, state) = (scene.cluster.seed(), scene.file("of-another"));
        let to = scene.cluster.node_id(2);
        let state = state.to_str().expect("a plain path");
        let args = ["reshard", &seed, "--slots", MOVING_TEXT, "--to", to, "--yes", "--state-dir", state];
        let how = ["--method", "external", "--max-pause", "5s"];
        let args: Vec<&str> = args.into_iter().chain(how).collect();
        whimbrel_e2e::binary::run(&args).expect_code(0);
        // What clients write from here on only the third has.
        let mut connection = scene.cluster.connection_to(2);
        for tag in tags_in(MOVING, 50) {
            redis::cmd("SET")
                .arg(format!("late:{{{tag}}}"))
                .arg("1")
                .exec(&mut connection)
                .expect("acknowledged");
        }
        let before = {
            whimbrel_e2e::binary::run(&["repair", &seed, "--yes"]).expect_code(0);
            scene.unwritten()
        };
        let output = scene.jobs(&[verb, &old, "--cluster", &seed]).run().expect_code(7);
        assert!(MoveReport::of(output.clone()).reason().contains("another node"), "{case}: {output:#?}");
        assert_eq!(owners_of_moving(&scene), [2, 2, 2], "{case}");
        shards::assert_sound(&scene.cluster);
        scene.assert_unchanged(&before);
        assert!(scene.unfinished().is_empty(), "{case}");
    }
}

/// Somebody takes a slot away while a node's last slots move: the job fails, and puts its settings back.
fn settings_are_put_back_where_a_job_fails(engine: Engine) {
    let scene = Scene::of(engine, 1, &[vec![0..=399], vec![400..=8191], vec![8192..=16383]])
        .cluster(|cluster| cluster.arg("cluster-allow-replica-migration", "yes"))
        .start();
    let go_on = scene.file("go-on");
    let command = scene.reshard("0-399", 1, &["--method", "external", "--report", "1"]);
    let mut running = command
        .env("WHIMBREL_FAILPOINT_PAUSE", "snapshot:after")
        .env("WHIMBREL_FAILPOINT_FILE", &go_on)
        .spawn();
    wait_for_phase(&mut running, "snapshotting");
    let deadline = Instant::now() + PATIENCE;
    while migration_is_allowed(&scene.cluster.nodes()[0]) {
        assert!(Instant::now() < deadline, "nothing has to be put back");
        thread::sleep(Duration::from_millis(20));
    }
    let third = scene.cluster.node_id(2);
    for node in [2, 0] {
        scene.cluster.nodes()[node].call(&["CLUSTER", "SETSLOT", "5", "NODE", third]);
        if node == 2 {
            // Otherwise an older claim of the source may win, and undo it.
            scene.cluster.nodes()[node].call(&["CLUSTER", "BUMPEPOCH"]);
        }
    }
    std::fs::write(&go_on, "").expect("a file in our folder");
    let output = running.wait(PATIENCE).expect("it ends").expect_code(7);
    eprintln!("{engine}: {}", MoveReport::of(output).reason());
    for node in scene.cluster.nodes() {
        assert!(migration_is_allowed(node), "it stays off at {}", node.addr());
    }
    whimbrel_e2e::binary::run(&["repair", &scene.cluster.seed(), "--yes"]).expect_code(0);
    assert_eq!([5, 6].map(|slot| scene.cluster.owner_of(slot).ok()), [Some(2), Some(0)]);
    shards::assert_sound(&scene.cluster);
}

/// Whether a replica of this node may go to another primary, and the node become a replica when it has no
/// slots left.
fn migration_is_allowed(node: &Server) -> bool {
    let setting = node.call(&["CONFIG", "GET", "cluster-allow-replica-migration"]);
    format!("{setting:?}").contains("yes")
}

/// A job goes on also where the node that it was started with is gone.
fn jobs_go_on_without_their_first_node(engine: Engine) {
    let scene = scene_with_failovers(engine);
    let before = scene.unwritten();
    let first = scene.cluster.nodes()[BYSTANDERS[0]].addr();
    let state = scene.file("elsewhere");
    let state = state.to_str().expect("a plain path");
    let to = scene.cluster.node_id(1);
    let args = ["reshard", &first, "--slots", MOVING_TEXT, "--to", to, "--yes", "--state-dir", state];
    let how = ["--method", "external", "--max-pause", "5s"];
    let args: Vec<&str> = args.into_iter().chain(how).collect();
    let output = Invocation::new(&args).env("WHIMBREL_FAILPOINT", "snapshot:after").run();
    assert_eq!(output.code(), None, "it was not killed: {output:#?}");
    scene.cluster.nodes()[BYSTANDERS[0]].kill9().expect("it can be killed");
    wait_for_failover(&scene, "without the first node");
    whimbrel_e2e::binary::run(&["jobs", "resume", "--state-dir", state]).expect_code(0);
    scene.cluster.nodes()[BYSTANDERS[0]].restart().expect("it restarts");
    scene.cluster.wait_ok().expect("it comes back");
    rejoin_its_shard(&scene, BYSTANDERS[0]);
    assert_eq!(owner(&scene, "at last"), (1, 0));
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

/// Keys vanish from one side while they move: the source's are gone for good, the target's are copied again.
fn keys_are_flushed(engine: Engine, cases: Cases) {
    let all = vec![
        ("catch-up:after", "streaming", false),
        ("catch-up:after", "streaming", true),
        ("drain:after", "draining", true),
        ("snapshot:before", "snapshotting", false),
    ];
    for (place, phase, of_target) in cases.of(engine, all, 4) {
        let scene = scene(engine);
        let before = scene.unwritten();
        let (source, target) = owner(&scene, place);
        let (mut running, go_on) = paused_at(&scene, place, phase, target);
        let node = if of_target { target } else { source };
        scene.cluster.nodes()[node].call(&["FLUSHALL"]);
        std::fs::write(&go_on, "").expect("a file in our folder");
        let output = running.wait(PATIENCE).unwrap_or_else(|| panic!("{place}: it does not end"));
        scene.assert_all_run();
        shards::assert_sound(&scene.cluster);
        if of_target {
            // Copied again, or found missing before the fence and rolled back: nothing is gone.
            assert!(matches!(output.code(), Some(0 | 7)), "{place}: {output:#?}");
            scene.assert_unchanged(&before);
            assert!(scene.unfinished().is_empty(), "{place}");
        } else {
            MoveReport::of(output.expect_code(0)).assert_done();
            assert_eq!(owner(&scene, place), (target, source));
            assert_eq!(scene.cluster.total_keys().expect("the nodes answer"), 0, "{place}");
        }
    }
}

/// A target without memory, marks of somebody else, a second whimbrel: refused or rolled back, with the
/// reason.
fn what_cannot_go_well_is_refused(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let owners = owner(&scene, "at first");
    let (source, target) = owners;
    let untouched = |case: &str| {
        assert_eq!(owner(&scene, case), owners, "{case}");
        shards::assert_sound(&scene.cluster);
        scene.assert_unchanged(&before);
    };

    let full = &scene.cluster.nodes()[target];
    full.call(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let output = scene.reshard(MOVING_TEXT, target, &["--method", "external"]).run().expect_code(7);
    let reason = MoveReport::of(output).reason();
    assert!(reason.to_lowercase().contains("memory"), "{reason}");
    full.call(&["CONFIG", "SET", "maxmemory", "0"]);
    untouched("without memory");

    let id = scene.cluster.node_id(source).to_owned();
    full.call(&["CLUSTER", "SETSLOT", "5", "IMPORTING", &id]);
    let output = scene.reshard(MOVING_TEXT, target, &["--method", "external"]).run().expect_code(4);
    assert!(output.stdout.contains("importing"), "{}", output.stdout);
    full.call(&["CLUSTER", "SETSLOT", "5", "STABLE"]);
    untouched("with a stranger's mark");

    let (running, go_on) = paused_at(&scene, "snapshot:after", "snapshotting", target);
    let other_state = tempfile::tempdir().expect("a folder");
    let args =
        ["reshard", &scene.cluster.seed(), "--slots", "700-710", "--to", scene.cluster.node_id(target)];
    let rest = ["--yes", "--json", "--state-dir", other_state.path().to_str().expect("a plain path")];
    let args: Vec<&str> = args.into_iter().chain(rest).collect();
    whimbrel_e2e::binary::run(&args).expect_code(4);
    std::fs::write(&go_on, "").expect("a file in our folder");
    MoveReport::by(running).assert_done();
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    assert_eq!(owner(&scene, "at last"), (target, source));
}

/// A server takes in no new owner of a slot that it imports, so the marks of a move must not outlive the
/// source's primary: the target's whole shard would answer CLUSTERDOWN. Nobody repairs anything here, and the
/// node stays dead.
fn a_failover_of_the_source_takes_no_shard_down(engine: Engine) {
    let scene = scene_with_failovers(engine);
    let before = scene.unwritten();
    let (writers, won) = (writers(&scene, "failover"), elections_won(&scene));
    let (source, target) = owner(&scene, "at first");
    let (mut running, go_on) = paused_at(&scene, "snapshot:before", "snapshotting", target);
    {
        let _hold = writers.hold();
        wait_until_replica_follows(&scene, source);
        wait_until_replica_knows_epoch(&scene, source);
        scene.cluster.nodes()[source].kill9().expect("it can be killed");
    }
    std::fs::write(&go_on, "").expect("a file in our folder");
    wait_for_failover(&scene, "source killed");
    // Each shard serves again, also that of the target, while the job still goes on.
    serves_again(&scene, "source killed");
    // It begins the batch again, with the primary that the replica has become.
    MoveReport::of(running.wait(PATIENCE).expect("it ends")).assert_done();
    assert!(writers.wait_for(400, PATIENCE), "the writers have stopped");
    // Only to compare replicas as well.
    scene.cluster.nodes()[source].restart().expect("it restarts");
    scene.cluster.wait_ok().expect("the cluster is well");
    rejoin_its_shard(&scene, source);
    assert_kept_but_for_failovers(&scene, &writers.stop(), won, 1);
    scene.assert_unchanged(&before);
}

/// A node that has nothing to do with a move fails over, before slots are handed over and while they are: the
/// move ends, and clients of every shard are served, without the node that died.
fn a_failover_of_a_third_node_takes_no_shard_down(engine: Engine) {
    let scene = scene_with_failovers(engine);
    let before = scene.unwritten();
    for (place, phase) in
        [("snapshot:before", "snapshotting"), ("fence:after", "fencing"), ("take-over:after", "taking-over")]
    {
        let (writers, won) = (writers(&scene, phase), elections_won(&scene));
        let (source, target) = owner(&scene, place);
        let primaries = scene.cluster.current_primaries().expect("the nodes answer");
        let third = primaries.into_iter().find(|node| BYSTANDERS.contains(node)).expect("a third primary");
        let (mut running, go_on) = paused_at(&scene, place, phase, target);
        {
            let _hold = writers.hold();
            wait_until_replica_follows(&scene, third);
            wait_until_replica_knows_epoch(&scene, third);
            scene.cluster.nodes()[third].kill9().expect("it can be killed");
        }
        std::fs::write(&go_on, "").expect("a file in our folder");
        wait_for_failover(&scene, place);
        serves_again(&scene, place);
        let output = match running.wait(PATIENCE) {
            Some(output) => output,
            None => panic!("{place}: it does not end: {:#?}", running.kill9()),
        };
        MoveReport::of(output).assert_done();
        serves_again(&scene, place);
        assert!(writers.wait_for(400, PATIENCE), "{place}: the writers have stopped");
        scene.cluster.nodes()[third].restart().expect("it restarts");
        scene.cluster.wait_ok().unwrap_or_else(|error| panic!("{place}: {error}"));
        rejoin_its_shard(&scene, third);
        assert_kept_but_for_failovers(&scene, &writers.stop(), won, 1);
        assert_eq!(owner(&scene, place), (target, source));
        scene.assert_unchanged(&before);
    }
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey81 Valkey91:
        a_failover_of_the_source_takes_no_shard_down
}

whimbrel_lab::for_each_engine! {
    a_failover_of_a_third_node_takes_no_shard_down
}

whimbrel_lab::for_each_engine! {
    on Valkey81 Valkey91:
    marks_that_only_a_replica_has_are_cleared
}

whimbrel_lab::for_each_engine! {
    settings_are_put_back_by_who_goes_on
    settings_are_put_back_where_a_job_fails
    jobs_go_on_without_their_first_node
    what_cannot_go_well_is_refused
}

fault_matrix! { share, Share:
    whimbrel_is_killed
    an_atomic_job_is_killed
    whimbrel_is_killed_while_it_rolls_back
    jobs_are_cancelled
    nodes_are_killed
    slots_that_somebody_moved_on_stay_there
    keys_are_flushed
}

// For `./dev test all`.
fault_matrix! { matrix, Rest:
    whimbrel_is_killed
    an_atomic_job_is_killed
    whimbrel_is_killed_while_it_rolls_back
    jobs_are_cancelled
    nodes_are_killed
    nodes_are_killed_under_an_atomic_job
    slots_that_somebody_moved_on_stay_there
    keys_are_flushed
}

/// Each phase of an atomic job meets two of the four victims in `./dev test`, at the fence the source and the
/// target, and the other two in `./dev test all`.
mod atomic {
    use super::*;

    fault_matrix! { share, Share on Redis80 Valkey81: nodes_are_killed_under_an_atomic_job }
    fault_matrix! { matrix, Share on Redis70 Valkey91: nodes_are_killed_under_an_atomic_job }
}

/// On servers that hide keys of slots that a node does not own, for `./dev test all` as well.
mod hidden {
    use super::*;

    fault_matrix! { matrix, Share on Redis86:
        whimbrel_is_killed
        whimbrel_is_killed_while_it_rolls_back
        jobs_are_cancelled
        nodes_are_killed
    }
}
