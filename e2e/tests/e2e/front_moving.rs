//! Clients are served by `whimbrel front` while keys move, and every answer that they get is checked.

mod clients;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use redis::Value;
use serde_json::Value as Json;

use clients::*;
use whimbrel_e2e::binary::Invocation;
use whimbrel_e2e::fronts::{self, PATIENCE};
use whimbrel_judge::deployment::{Deployment, slot_of};
use whimbrel_lab::{Cluster, Engine, Proxy, Server, wait_until};

const CLIENTS: usize = 16;
/// Of each kind, of each client.
const KEYS_EACH: usize = 6;
/// They are not written to; they take the time in which the front is killed.
const STABLE_KEYS: usize = 15_000;
/// All clients are at about the same few of them at a time, and go on to others that nobody has touched
/// before.
const COUNTERS: usize = 3_000;
const QUEUES: usize = 4;
const KILLS: usize = 3;
const REVERSALS: usize = 6;

// ---- Source and target ----

enum Deployed {
    Server(Server),
    Cluster(Cluster),
}

impl Deployed {
    fn server(engine: Engine) -> Deployed {
        Deployed::Server(Server::builder(engine).start().expect("a server"))
    }

    fn cluster(engine: Engine) -> Deployed {
        Deployed::Cluster(Cluster::builder(engine).primaries(3).start().expect("a cluster"))
    }

    fn address(&self) -> String {
        match self {
            Deployed::Server(server) => server.addr(),
            Deployed::Cluster(cluster) => cluster.seed(),
        }
    }

    fn servers(&self) -> &[Server] {
        match self {
            Deployed::Server(server) => std::slice::from_ref(server),
            Deployed::Cluster(cluster) => cluster.nodes(),
        }
    }

    fn keys(&self) -> i64 {
        self.servers().iter().map(|server| number(server, &["DBSIZE"])).sum()
    }

    fn names(&self) -> Vec<String> {
        let of_one = |server: &Server| {
            let Value::Array(names) = server.call(&["KEYS", "*"]) else { panic!("no names") };
            names.into_iter().map(|name| Kind::Text.shown(name)).collect::<Vec<_>>()
        };
        self.servers().iter().flat_map(of_one).collect()
    }

    /// What the commands are answered with, each about one key. No slot may move meanwhile.
    fn ask_all(&self, commands: &[Vec<String>]) -> Vec<Value> {
        let deployment = Deployment::at(self.address()).expect("it answers");
        let mut of_each: Vec<Vec<usize>> = vec![Vec::new(); deployment.primaries().len()];
        for (at, command) in commands.iter().enumerate() {
            of_each[deployment.owner_of(command[1].as_bytes()).expect("an owner")].push(at);
        }
        let mut replies = vec![Value::Nil; commands.len()];
        for (primary, at) in deployment.primaries().iter().zip(of_each) {
            if at.is_empty() {
                continue;
            }
            let mut connection = primary.connect(0).expect("it answers");
            for part in at.chunks(5_000) {
                let mut pipe = redis::pipe();
                for at in part {
                    let mut words = commands[*at].iter();
                    let command = pipe.cmd(words.next().expect("a name"));
                    for word in words {
                        command.arg(word);
                    }
                }
                let found: Vec<Value> = pipe.query(&mut connection).expect("replies");
                for (at, found) in part.iter().zip(found) {
                    replies[*at] = found;
                }
            }
        }
        replies
    }
}

// ---- The front ----

struct Front<'a> {
    process: fronts::Front,
    source: &'a Deployed,
    target: &'a Deployed,
}

impl<'a> Front<'a> {
    #[track_caller]
    fn between(source: &'a Deployed, target: &'a Deployed) -> Front<'a> {
        Front::at(source, target, &source.address(), &target.address())
    }

    /// Between these servers, which it reaches at these addresses.
    #[track_caller]
    fn at(source: &'a Deployed, target: &'a Deployed, source_url: &str, target_url: &str) -> Front<'a> {
        // Until keys move.
        let sharing = ["--share-connections", "2"];
        Front { process: fronts::Front::between(source_url, target_url, &sharing), source, target }
    }

    #[track_caller]
    fn wait_until_done(&self) {
        wait_until("all keys have moved", || self.process.status()["phase"] == "done");
        assert_eq!(self.ends(&self.process.status()).0.keys(), 0, "keys are left where they were");
    }

    /// Where keys move from by this status, and where they move to.
    fn ends(&self, status: &Json) -> (&'a Deployed, &'a Deployed) {
        match status["direction"].as_str() {
            Some("to-target") => (self.source, self.target),
            Some("to-source") => (self.target, self.source),
            other => panic!("no direction: {other:?}"),
        }
    }

    /// The direction is turned, and the front dies in the middle of it, before or after it is written down.
    fn reverse_and_kill(&mut self, random: &mut Rng) {
        let folder = self.process.state_dir().to_owned();
        let mut asking = Invocation::new(&["front", "reverse", "--state-dir", &folder, "--json"]).spawn();
        std::thread::sleep(Duration::from_millis(random.u64(..300)));
        self.process.kill_and_run_again();
        asking.wait(PATIENCE).expect("nobody is there to wait for");
    }

    fn client(&self) -> Client {
        Client { port: self.process.port(), connection: None }
    }
}

fn number(server: &Server, words: &[&str]) -> i64 {
    match server.call(words) {
        Value::Int(n) => n,
        other => panic!("{other:?}"),
    }
}

// ---- The run ----

fn world(is_clustered: bool, is_at_rest: bool) -> World {
    let keys = |id: usize| {
        let of_kind = |kind: Kind| (0..KEYS_EACH).map(move |i| (kind, i));
        let key = |(kind, i): (Kind, usize)| Key {
            // All of one client are in one slot.
            name: format!("{kind:?}:{{{id}}}:{i}"),
            kind,
            log: Mutex::new(vec![String::new()]),
            floor: AtomicUsize::new(0),
        };
        KINDS.into_iter().flat_map(of_kind).map(key).collect()
    };
    World {
        is_clustered,
        is_at_rest,
        keys: (0..CLIENTS).map(keys).collect(),
        counters: (0..COUNTERS).map(|_| Counter::default()).collect(),
        queues: (0..QUEUES).map(|_| Queue::default()).collect(),
        stop: AtomicBool::new(false),
        operations: AtomicUsize::new(0),
    }
}

fn fill(source: &Deployed) {
    let stable = (0..STABLE_KEYS).map(|i| format!("SET stable:{i} {}", i.to_string().repeat(10)));
    let counters = (0..COUNTERS).map(|i| format!("SET counter:{i} 0"));
    source.ask_all(&stable.chain(counters).map(|line| words(&line)).collect::<Vec<_>>());
}

/// What happens while keys move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// The front is killed and run again.
    Kill,
    /// Its connections to one of the servers break, and for a moment there are no new ones.
    Cut,
    /// Slots move between nodes of the clusters, and it is killed as well.
    Slots,
    /// Keys move back, and to and fro, and the front is killed in the middle of that.
    Reverse,
}

/// Has keys move to and fro; at last all have moved, and turn once more.
fn reverse_to_and_fro(front: &mut Front<'_>, random: &mut Rng) {
    for i in 0..REVERSALS {
        std::thread::sleep(Duration::from_millis(50 + random.u64(..600)));
        let before = front.process.status();
        if i % 3 == 1 {
            front.reverse_and_kill(random);
        } else {
            front.process.command("reverse").expect_code(0);
            if i % 3 == 2 {
                front.process.kill_and_run_again();
            }
            assert_eq!(
                front.process.status()["reversals"].as_u64(),
                before["reversals"].as_u64().map(|reversals| reversals + 1)
            );
        }
        println!("{} {}, then {}", before["reversals"], before["phase"], front.process.status()["reversals"]);
    }
    front.wait_until_done();
    front.process.command("reverse").expect_code(0);
}

/// Standalone servers of a pair of versions that `seed` chooses.
fn servers(seed: u64) -> (Deployed, Deployed) {
    let pairs = [
        (Engine::Redis70, Engine::Valkey91),
        (Engine::Redis70, Engine::Redis80),
        (Engine::Valkey81, Engine::Valkey91),
        (Engine::Redis70, Engine::Redis70),
    ];
    let (from, to) = pairs[seed as usize / 1_000 % pairs.len()];
    println!("seed {seed}, {from:?} to {to:?}");
    (Deployed::server(from), Deployed::server(to))
}

/// Has a slot of a cluster change its owner, with one of the keys that clients write.
fn move_a_slot(deployed: &Deployed, random: &mut Rng) {
    let Deployed::Cluster(cluster) = deployed else { return };
    let slot = slot_of(random.usize(..CLIENTS).to_string().as_bytes());
    let from = cluster.owner_of(slot).expect("an owner");
    cluster.move_slot(slot, from, (from + 1) % 3).expect("it moves");
}

fn seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_nanos() as u64
}

fn a_move_with(trouble: Trouble, seed: u64, source: &Deployed, target: &Deployed) {
    fill(source);
    let links = [source, target].map(|side| Proxy::start(&side.address()).expect("a proxy"));
    let mut front = match trouble {
        Trouble::Kill | Trouble::Slots | Trouble::Reverse => Front::between(source, target),
        Trouble::Cut => Front::at(source, target, &links[0].addr(), &links[1].addr()),
    };
    let mut random = Rng::with_seed(seed);
    let is_clustered = [source, target].iter().any(|side| matches!(side, Deployed::Cluster(_)));
    let world = world(is_clustered, trouble != Trouble::Slots);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|id| {
                let worker = Worker {
                    world: &world,
                    id,
                    client: front.client(),
                    random: Rng::with_seed(seed ^ (id as u64) << 32),
                    states: vec![State::default(); KINDS.len() * KEYS_EACH],
                    n: 0,
                };
                let stop = &world.stop;
                scope.spawn(move || {
                    // One that fails ends the others too.
                    struct Stop<'a>(&'a AtomicBool);
                    impl Drop for Stop<'_> {
                        fn drop(&mut self) {
                            if std::thread::panicking() {
                                self.0.store(true, Ordering::SeqCst);
                            }
                        }
                    }
                    let _stop = Stop(stop);
                    worker.run();
                })
            })
            .collect();
        // For a while only the source is there, so that some of the keys are.
        std::thread::sleep(Duration::from_millis(500));
        front.process.command("start").expect_code(0);
        let kills = if trouble == Trouble::Reverse { 0 } else { KILLS };
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(50 + random.u64(..600)));
            println!("{trouble:?} while {}", front.process.status()["phase"]);
            if trouble == Trouble::Slots {
                std::thread::scope(|both| {
                    let mut own = random.fork();
                    both.spawn(move || move_a_slot(source, &mut own));
                    move_a_slot(target, &mut random);
                });
            }
            if trouble != Trouble::Cut {
                front.process.kill_and_run_again();
                continue;
            }
            for link in links.iter().rev() {
                link.cut();
                std::thread::sleep(Duration::from_millis(100 + random.u64(..200)));
                link.heal().expect("the port is still free");
            }
        }
        if trouble == Trouble::Reverse {
            reverse_to_and_fro(&mut front, &mut random);
        }
        front.wait_until_done();
        std::thread::sleep(Duration::from_millis(200));
        world.stop.store(true, Ordering::SeqCst);
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let (_, serving) = front.ends(&front.process.status());
    check_what_is_left(&world, serving);
    println!("{} operations, {:?}", world.operations.load(Ordering::Relaxed), front.process.status());
    front.process.command("finish").expect_code(0);
    front.process.running.wait(PATIENCE).expect("it ends").expect_code(0);
}

/// Everything that was written is there, once, and nothing else.
fn check_what_is_left(world: &World, serving: &Deployed) {
    // What expires on its own does by itself.
    std::thread::sleep(Duration::from_millis(200));
    let mut keys = (STABLE_KEYS + COUNTERS) as i64;
    let mut expected: HashSet<String> = (0..STABLE_KEYS).map(|i| format!("stable:{i}")).collect();
    expected.extend((0..COUNTERS).map(|i| format!("counter:{i}")));
    let of_clients: Vec<&Key> = world.keys.iter().flatten().collect();
    let reads: Vec<_> = of_clients.iter().map(|key| key.kind.read(&key.name)).collect();
    for (key, found) in of_clients.into_iter().zip(serving.ask_all(&reads)) {
        let found = key.kind.shown(found);
        key.saw(key.floor(), &found);
        keys += i64::from(!found.is_empty());
        if !found.is_empty() {
            expected.insert(key.name.clone());
        }
    }
    let counters: Vec<_> = (0..COUNTERS).map(|i| words(&format!("GET counter:{i}"))).collect();
    for (i, (counter, found)) in world.counters.iter().zip(serving.ask_all(&counters)).enumerate() {
        let found: i64 = Kind::Text.shown(found).parse().expect("a number");
        let acknowledged = counter.acknowledged.lock().len() as i64;
        let maybe = counter.maybe.load(Ordering::SeqCst);
        assert!(
            (acknowledged..=acknowledged + maybe).contains(&found),
            "counter {i}: {found}, but {acknowledged} acknowledged and {maybe} maybe"
        );
    }
    let queues: Vec<_> = (0..world.queues.len()).map(|i| words(&format!("LRANGE queue:{i} 0 -1"))).collect();
    for (i, (queue, left)) in world.queues.iter().zip(serving.ask_all(&queues)).enumerate() {
        let name = format!("queue:{i}");
        let left = Kind::List.shown(left);
        let left: Vec<String> = left.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect();
        keys += i64::from(!left.is_empty());
        if !left.is_empty() {
            expected.insert(name.clone());
        }
        let (pushed, maybe) = (queue.pushed.lock(), queue.maybe_pushed.lock());
        let mut seen = queue.popped.lock().clone();
        for element in left {
            assert!(maybe.contains(&element), "{name}: {element} was not pushed");
            assert!(
                seen.insert(element.clone()),
                "{name}: {element} is there although it was popped, or twice"
            );
        }
        let lost = pushed.iter().filter(|element| !seen.contains(*element)).count();
        let maybe_popped = queue.maybe_popped.load(Ordering::SeqCst);
        assert!(lost <= maybe_popped, "{name}: {lost} elements are lost, {maybe_popped} pops are unknown");
    }
    let mut names: Vec<String> =
        serving.names().into_iter().filter(|name| !expected.contains(name)).collect();
    names.sort();
    assert!(names.is_empty(), "keys have come back, or are nobody's: {names:?}");
    assert_eq!(serving.keys(), keys, "keys are missing");
    let stable: Vec<_> = (0..STABLE_KEYS).map(|i| words(&format!("GET stable:{i}"))).collect();
    for (i, found) in serving.ask_all(&stable).into_iter().enumerate() {
        assert_eq!(Kind::Text.shown(found), i.to_string().repeat(10), "stable:{i}");
    }
}

#[test]
fn every_answer_is_right_while_keys_move_and_the_front_is_killed() {
    let seed = seed();
    let (source, target) = servers(seed);
    a_move_with(Trouble::Kill, seed, &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_move_and_connections_break() {
    let seed = seed();
    let (source, target) = servers(seed);
    a_move_with(Trouble::Cut, seed, &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_move_to_a_cluster() {
    let (source, target) = (Deployed::server(Engine::Redis70), Deployed::cluster(Engine::Valkey91));
    a_move_with(Trouble::Kill, seed(), &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_move_between_clusters() {
    let (source, target) = (Deployed::cluster(Engine::Redis70), Deployed::cluster(Engine::Redis80));
    a_move_with(Trouble::Kill, seed(), &source, &target);
}

#[test]
fn every_answer_is_right_while_slots_of_the_clusters_move_too() {
    let (source, target) = (Deployed::cluster(Engine::Redis70), Deployed::cluster(Engine::Redis70));
    a_move_with(Trouble::Slots, seed(), &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_turn_round_and_the_front_is_killed() {
    let seed = seed();
    let (source, target) = servers(seed);
    a_move_with(Trouble::Reverse, seed, &source, &target);
}

#[test]
fn every_answer_is_right_while_keys_turn_round_between_clusters() {
    let (source, target) = (Deployed::cluster(Engine::Redis70), Deployed::cluster(Engine::Valkey81));
    a_move_with(Trouble::Reverse, seed(), &source, &target);
}

#[test]
fn commands_find_the_front_and_say_what_they_refuse() {
    let [source, target, other] = [Engine::Redis70, Engine::Valkey91, Engine::Redis70].map(Deployed::server);
    source.ask_all(&[words("SET k v")]);
    let nobody = tempfile::tempdir().expect("a folder");
    let folder = nobody.path().to_str().expect("a name");
    let refused = Invocation::new(&["front", "status", "--state-dir", folder]).run().expect_code(2);
    assert!(refused.stderr.contains("no front with a target runs"), "{}", refused.stderr);

    let mut front = Front::between(&source, &target);
    assert_eq!(front.process.status()["phase"], "forwarding");
    let output = front.process.command("finish").expect_code(4);
    assert!(output.stdout.contains("no key has moved"), "{}", output.stdout);
    let output = front.process.command("reverse").expect_code(4);
    assert!(output.stdout.contains("no keys have moved that could move back"), "{}", output.stdout);
    // A second one would know nothing of the locks of the first.
    let second = Invocation::new(&front.process.args).run().expect_code(2);
    assert!(second.stdout.contains("another whimbrel front runs"), "{}", second.stdout);
    front.process.command("start").expect_code(0);
    front.wait_until_done();
    let output = front.process.command("start").expect_code(4);
    assert!(output.stdout.contains("already"), "{}", output.stdout);
    let folder = front.process.state_dir().to_owned();
    let shown = Invocation::new(&["front", "status", "--state-dir", &folder]).run().expect_code(0);
    assert!(shown.stdout.starts_with("phase    done"), "{}", shown.stdout);
    // There and back.
    for (reversals, note) in [("1", "reversed once"), ("2", "reversed 2 times")] {
        let output = front.process.command("reverse").expect_code(0);
        assert!(output.stdout.contains(&format!("\"reversals\":{reversals}")), "{}", output.stdout);
        let shown = Invocation::new(&["front", "status", "--state-dir", &folder]).run().expect_code(0);
        let (from, to) = front.ends(&front.process.status());
        let back = if reversals == "1" { "back " } else { "" };
        let line = format!("{} {back}to {} ({note})\n", from.address(), to.address());
        assert!(shown.stdout.contains(&line), "{line}: {}", shown.stdout);
        front.wait_until_done();
    }

    // What is on disk is believed by the next one, or refused.
    front.process.running.kill9();
    let usual = front.process.args.clone();
    let args = |source: &Deployed| {
        let mut args = usual.clone();
        let at = args.iter().position(|arg| arg == "--source").expect("it is there");
        args[at + 1] = source.address();
        args
    };
    let state = std::fs::read_dir(&folder)
        .expect("a folder")
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "state"))
        .expect("a state");
    let text = std::fs::read_to_string(&state).expect("text");
    // That of one pair of servers is not that of another.
    let plain = |server: &Deployed| server.address().replace(['.', ':'], "-");
    let misplaced = format!("between-{}-and-{}.state", plain(&other), plain(&target));
    std::fs::copy(&state, state.with_file_name(misplaced)).expect("a copy");
    let refused = Invocation::new(&args(&other)).run().expect_code(2);
    assert!(refused.stdout.contains("is about keys that move from"), "{}", refused.stdout);
    std::fs::write(&state, &text[..10]).expect("written");
    let refused = Invocation::new(&args(&source)).run().expect_code(1);
    assert!(refused.stdout.contains("it is damaged"), "{}", refused.stdout);
    std::fs::write(&state, text).expect("written");
    front.process.run_again();
    let output = front.process.command("finish").expect_code(0);
    assert!(output.stdout.contains("\"exit\":0"), "{}", output.stdout);
    front.process.running.wait(PATIENCE).expect("it ends").expect_code(0);

    // One that is run again must not serve from the empty source.
    let refused = Invocation::new(&args(&source)).run().expect_code(4);
    let name = state.to_str().expect("a name");
    assert!(refused.stdout.contains("clients have been sent here"), "{}", refused.stdout);
    assert!(refused.stdout.contains(&format!("remove {name}")), "{}", refused.stdout);
}
