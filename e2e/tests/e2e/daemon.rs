//! `whimbrel serve` takes Valkey's own commands from Valkey's own client, survives its own end, and is what
//! `whimbrel reshard --server` hands its moves to.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Output, Running};
use whimbrel_e2e::resharding::{MoveReport, PATIENCE, Scene};
use whimbrel_e2e::shards;
use whimbrel_judge::cluster_writers::tags_in;
use whimbrel_judge::deployment::cluster_client;
use whimbrel_lab::{Engine, rest_after};

/// Keys in the slots that move.
const KEYS: usize = 2_000;

pub(crate) const EXTERNAL: [&str; 2] = ["--method", "external"];

/// States of a job that has begun and has copied nothing. Which one is listed depends on when it was last
/// written down.
pub(crate) const BEGUN: [&str; 3] =
    ["sending-establish-command", "reading-establish-response", "snapshotting"];

/// Two shards; slots 0-199 have keys.
fn scene(engine: Engine) -> Scene {
    filled(Scene::of(engine, 0, &[vec![0..=8191], vec![8192..=16383]]).start())
}

pub(crate) fn filled(scene: Scene) -> Scene {
    scene.fill(0..=199, 200, KEYS);
    scene
}

/// A daemon that runs.
pub(crate) struct Served {
    pub(crate) running: Running,
    port: u16,
    cli: PathBuf,
    password: Option<&'static str>,
}

pub(crate) fn invocation(scene: &Scene, listen: &str, more: &[&str]) -> Invocation {
    let (seed, state) = (scene.cluster.seed(), scene.file("").to_string_lossy().into_owned());
    let mut args = vec!["serve", "--cluster", &seed, "--listen", listen, "--state-dir", &state, "--json"];
    args.extend(more);
    // A busy machine must not fail tests that are not about pauses.
    if more.contains(&"external") && !more.contains(&"--max-pause") {
        args.extend(["--max-pause", "5s"]);
    }
    Invocation::new(&args).timeout(PATIENCE)
}

/// An address for a daemon that stays free once it has ended: another one is started there, or nobody
/// answers.
pub(crate) fn port_of_its_own() -> String {
    format!("127.0.0.1:{}", whimbrel_lab::free_port().expect("a port"))
}

/// Starts a daemon and waits until it serves.
#[track_caller]
pub(crate) fn serve(scene: &Scene, more: &[&str]) -> Served {
    Served::by(invocation(scene, &port_of_its_own(), more))
}

impl Served {
    #[track_caller]
    pub(crate) fn by(invocation: Invocation) -> Self {
        let mut running = invocation.spawn();
        let serves = running.wait_for_text("\"resuming\"", PATIENCE);
        assert!(serves, "it does not serve\n{}\n{}", running.stdout(), running.stderr());
        let serving = lines(&running.stdout(), "serving");
        let address = serving[0]["address"].as_str().expect("it shows its address").to_owned();
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("with a port");
        let cli = Engine::Valkey91.binaries().expect("Valkey is installed").cli;
        Served { running, port, cli, password: None }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What `valkey-cli` prints.
    #[track_caller]
    pub(crate) fn cli(&self, options: &[&str], words: &[&str]) -> String {
        let mut command = Command::new(&self.cli);
        command.args(["-p", &self.port.to_string()]).args(options).args(words);
        if let Some(password) = self.password {
            command.env("VALKEYCLI_AUTH", password).env("REDISCLI_AUTH", password);
        }
        let output = command.output().expect("valkey-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// `CLUSTER` and these words.
    #[track_caller]
    pub(crate) fn cluster(&self, words: &str) -> String {
        let words: Vec<&str> = std::iter::once("CLUSTER").chain(words.split(' ')).collect();
        self.cli(&[], &words)
    }

    /// The jobs, newest first.
    #[track_caller]
    fn jobs(&self) -> Vec<Value> {
        let text = self.cli(&["--json"], &["CLUSTER", "GETSLOTMIGRATIONS"]);
        match serde_json::from_str(&text) {
            Ok(Value::Array(jobs)) => jobs,
            _ => panic!("no list of jobs: {text}\n{}", self.running.stderr()),
        }
    }

    /// Waits until the job with these slots is in one of these states.
    #[track_caller]
    pub(crate) fn wait_for(&self, ranges: &str, states: &[&str]) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let began = Instant::now();
            let jobs = self.jobs();
            let job = jobs.iter().find(|job| job["slot_ranges"] == ranges);
            if let Some(job) = job.filter(|job| states.iter().any(|state| job["state"] == *state)) {
                return job.clone();
            }
            assert!(Instant::now() < deadline, "never {states:?}: {jobs:#?}\n{}", self.running.stderr());
            rest_after(began);
        }
    }

    /// Ends it as a service manager does.
    #[track_caller]
    pub(crate) fn end(mut self) -> Output {
        self.running.terminate();
        match self.running.wait(PATIENCE) {
            Some(output) => output.expect_code(0),
            None => panic!("it does not end\n{}", self.running.stderr()),
        }
    }
}

pub(crate) fn lines(stdout: &str, event: &str) -> Vec<Value> {
    let all = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|line| line["event"] == event).collect()
}

/// Continues whatever waits at a failpoint.
pub(crate) fn release(scene: &Scene) {
    std::fs::write(scene.file("go"), "").expect("the file can be written");
}

/// Who owns which slots by `CLUSTER SLOTS`, as `valkey-cli` shows it, without replicas.
fn ranges(json: &str) -> Vec<(u64, u64, Value)> {
    let reply: Vec<Value> = serde_json::from_str(json).unwrap_or_else(|_| panic!("no list: {json}"));
    let number = |value: &Value| value.as_u64().expect("a number");
    reply.iter().map(|entry| (number(&entry[0]), number(&entry[1]), entry[2].clone())).collect()
}

/// What a server of the cluster says.
#[track_caller]
fn reported_slots(scene: &Scene, node: usize) -> Vec<(u64, u64, Value)> {
    let cli = Engine::Valkey91.binaries().expect("Valkey is installed").cli;
    let port = scene.cluster.nodes()[node].port().to_string();
    let output = Command::new(cli).args(["-p", &port, "--json", "CLUSTER", "SLOTS"]).output();
    ranges(&String::from_utf8_lossy(&output.expect("valkey-cli runs").stdout))
}

fn clients_find_the_cluster_by_it(engine: Engine) {
    let scene = scene(engine);
    let daemon = serve(&scene, &EXTERNAL);
    let shown = || ranges(&daemon.cli(&["--json"], &["CLUSTER", "SLOTS"]));
    let agree = |what: &str| {
        let deadline = Instant::now() + PATIENCE;
        while !(0..2).all(|node| reported_slots(&scene, node) == shown()) {
            assert!(Instant::now() < deadline, "{what}: {:?} and {:?}", shown(), reported_slots(&scene, 0));
            thread::sleep(Duration::from_millis(50));
        }
    };
    assert_eq!(shown().len(), 2);
    agree("at first");

    // A job of its own.
    let target = scene.cluster.node_id(1).to_owned();
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 100 120 NODE {target}")), "OK");
    daemon.wait_for("100-120", &["success"]);
    agree("after a job");
    let moved = shown();
    assert!(
        moved.iter().any(|(from, to, node)| (*from, *to, &node[2]) == (100, 120, &target.as_str().into()))
    );
    // Somebody else's move.
    scene.cluster.move_slot(7, 0, 1).expect("the slot moves");
    agree("after another's move");
    assert!(shown().iter().any(|(from, to, _)| (*from, *to) == (7, 7)), "{:?}", shown());

    // Clients that know nothing but the daemon.
    let mut client = cluster_client(daemon.address()).get_connection().expect("the cluster is found");
    for number in 0..100 {
        let key = format!("found:{number}");
        let () = redis::cmd("SET").arg(&key).arg(number).query(&mut client).expect("it is written");
        let read: u64 = redis::cmd("GET").arg(&key).query(&mut client).expect("it is read");
        assert_eq!(read, number);
        // It follows where it is sent.
        assert_eq!(daemon.cli(&["-c"], &["GET", &key]), number.to_string());
    }
    let tag = &tags_in(100..=100, 1)[0];
    let count = daemon.cluster("COUNTKEYSINSLOT 100");
    let mut owner = scene.cluster.connection_to(1);
    let counted: u64 =
        redis::cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(100).query(&mut owner).expect("a number");
    assert_eq!((count, counted > 0), (counted.to_string(), true));
    assert_eq!(daemon.cluster(&format!("KEYSLOT {tag}")), "100");
    daemon.end();
}

/// What a server answers, byte for byte.
fn answered(port: u16, words: &[&str]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it is reached");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let text: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    write!(stream, "*{}\r\n{text}*1\r\n$4\r\nPING\r\n", words.len()).expect("it listens");
    let (mut all, mut part) = (Vec::new(), [0; 4_096]);
    while !all.ends_with(b"+PONG\r\n") {
        let read = stream.read(&mut part).expect("it answers in time");
        assert!(read > 0, "it hung up after {:?}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&part[..read]);
    }
    String::from_utf8(all).expect("text")
}

/// Redirections and `CLUSTER SLOTS` are the same, byte for byte, and jobs reach all nodes.
fn hosts_are_named_as_the_cluster_does(engine: Engine) {
    for preferred in ["hostname", "unknown-endpoint"] {
        let layout = [vec![0..=8191], vec![8192..=16383]];
        let named = Scene::of(engine, 0, &layout).cluster(|cluster| {
            cluster
                .arg("cluster-preferred-endpoint-type", preferred)
                .arg("cluster-announce-hostname", "localhost")
        });
        let scene = filled(named.start());
        let daemon = serve(&scene, &EXTERNAL);
        let agree = |words: &[&str]| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let theirs = answered(scene.cluster.nodes()[0].port(), words);
                let ours = answered(daemon.port, words);
                if ours == theirs {
                    return ours;
                }
                assert!(Instant::now() < deadline, "{preferred}: {ours:?} instead of {theirs:?}");
                thread::sleep(Duration::from_millis(50));
            }
        };
        let key = |slot: u16| format!("{{{}}}", tags_in(slot..=slot, 1)[0]);
        let slots = agree(&["CLUSTER", "SLOTS"]);
        assert!(slots.contains("localhost"), "{slots:?}");
        assert_eq!(slots.contains("$-1"), preferred == "unknown-endpoint", "{slots:?}");
        let moved = agree(&["GET", &key(16_000)]);
        let port = scene.cluster.nodes()[1].port();
        let host = if preferred == "hostname" { "localhost" } else { "" };
        assert!(moved.starts_with(&format!("-MOVED 16000 {host}:{port}\r\n")), "{moved:?}");
        let target = scene.cluster.node_id(1);
        assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 100 120 NODE {target}")), "OK");
        daemon.wait_for("100-120", &["success"]);
        agree(&["CLUSTER", "SLOTS"]);
        agree(&["GET", &key(110)]);
        daemon.end();
    }
}

/// A daemon whose jobs wait before they copy anything, until [`release`].
fn serve_paused(scene: &Scene) -> Served {
    Served::by(paused_before_copying(invocation(scene, &port_of_its_own(), &EXTERNAL), scene))
}

pub(crate) fn paused_before_copying(invocation: Invocation, scene: &Scene) -> Invocation {
    // A failure of the test itself must not leave it waiting: it does so for a minute at most.
    invocation
        .env("WHIMBREL_FAILPOINT_PAUSE", "snapshot:before")
        .env("WHIMBREL_FAILPOINT_FILE", scene.file("go"))
}

fn valkeys_client_moves_slots(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let daemon = serve(&scene, &EXTERNAL);
    let [source, target] = [0, 1].map(|node| scene.cluster.node_id(node).to_owned());
    assert_eq!(daemon.cli(&[], &["PING"]), "PONG");
    assert_eq!(daemon.jobs(), Vec::<Value>::new());

    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 99 NODE {target}")), "OK");
    let job = daemon.wait_for("0-99", &["success"]);
    let fields: Vec<&str> = [
        "name",
        "operation",
        "slot_ranges",
        "target_node",
        "source_node",
        "create_time",
        "last_update_time",
        "last_ack_time",
        "state",
        "message",
        "cow_size",
        "remaining_repl_size",
    ]
    .to_vec();
    let object = job.as_object().expect("a map");
    assert_eq!(object.len(), fields.len(), "{job:#}");
    assert!(fields.iter().all(|field| object.contains_key(*field)), "{job:#}");
    assert_eq!(job["operation"], "EXPORT");
    assert_eq!(
        (&job["source_node"], &job["target_node"]),
        (&Value::from(source.as_str()), &target.as_str().into())
    );
    assert!([0, 50, 99].iter().all(|slot| scene.cluster.owner_of(*slot).expect("it has an owner") == 1));

    // Several blocks in one command, and the RESP2 form of the list, which is flat.
    let words =
        format!("MIGRATESLOTS SLOTSRANGE 100 120 130 140 NODE {target} SLOTSRANGE 0 49 NODE {source}");
    assert_eq!(daemon.cluster(&words), "OK");
    daemon.wait_for("100-120 130-140", &["success"]);
    daemon.wait_for("0-49", &["success"]);
    let flat = daemon.cluster("GETSLOTMIGRATIONS");
    let flat: Vec<&str> = flat.lines().collect();
    assert_eq!(flat.iter().filter(|line| **line == "success").count(), 3, "{flat:?}");
    let first: Vec<&str> = flat.iter().step_by(2).take(fields.len()).copied().collect();
    assert_eq!(first, fields, "Valkey's order");
    let owners =
        [0, 49, 50, 99, 100, 125, 130, 141].map(|slot| scene.cluster.owner_of(slot).expect("an owner"));
    assert_eq!(owners, [0, 0, 1, 1, 1, 0, 1, 0]);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);

    let output = daemon.end();
    let ended = lines(&output.stdout, "ended");
    assert_eq!(ended.len(), 3, "{}", output.stdout);
    assert!(ended.iter().all(|job| job["state"] == "success"), "{}", output.stdout);
    assert_eq!(lines(&output.stdout, "stopped").len(), 1, "{}", output.stdout);
}

fn what_makes_no_sense_is_refused_as_valkey_does(engine: Engine) {
    let scene = scene(engine);
    let daemon = serve(&scene, &EXTERNAL);
    let [source, target] = [0, 1].map(|node| scene.cluster.node_id(node).to_owned());
    let nobody = "0".repeat(40);
    for (words, expected) in [
        (format!("MIGRATESLOTS SLOTSRANGE 0 99 NODE {nobody}"), "Unknown node name"),
        ("MIGRATESLOTS SLOTSRANGE 0 99 NODE abc".to_owned(), "Invalid node name"),
        (format!("MIGRATESLOTS SLOTSRANGE 0 99 NODE {source}"), "Target node can not be this node."),
        (format!("MIGRATESLOTS SLOTSRANGE 0 16384 NODE {target}"), "Invalid or out of range slot"),
        (format!("MIGRATESLOTS SLOTSRANGE 99 0 NODE {target}"), "greater than end slot"),
        (format!("MIGRATESLOTS SLOTSRANGE 8000 9000 NODE {target}"), "span multiple shards"),
        (format!("MIGRATESLOTS SLOTSRANGE 0 9 5 12 NODE {target}"), "overlaps with previous range"),
        (format!("MIGRATESLOTS 0 99 NODE {target}"), "syntax error"),
        ("MIGRATESLOTS".to_owned(), "wrong number of arguments"),
        ("GETSLOTMIGRATIONS all".to_owned(), "wrong number of arguments"),
        ("CANCELSLOTMIGRATIONS".to_owned(), "No migrations ongoing"),
        ("CANCELSLOTMIGRATIONS nobody".to_owned(), "No such slot migration job"),
        ("FAILOVER".to_owned(), "unknown subcommand"),
    ] {
        let reply = daemon.cluster(&words);
        assert!(reply.starts_with("ERR") && reply.contains(expected), "{words}: {reply}");
    }
    // Keys are for their owners, and what has none is for a node.
    assert_eq!(daemon.cli(&[], &["GET", "a"]), format!("MOVED 15495 {}", scene.cluster.nodes()[1].addr()));
    assert!(daemon.cli(&[], &["FLUSHALL"]).contains("unknown command"));
    assert_eq!(daemon.jobs(), Vec::<Value>::new(), "nothing was taken in");
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 0);
}

fn jobs_wait_and_are_cancelled(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let daemon = serve_paused(&scene);
    let target = scene.cluster.node_id(1).to_owned();
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 99 NODE {target}")), "OK");
    daemon.wait_for("0-99", &BEGUN);
    // One source, one job at a time.
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 100 149 NODE {target}")), "OK");
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 150 199 NODE {target}")), "OK");
    let busy = daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 50 60 NODE {target}"));
    assert!(busy.contains("I am already migrating slot 50."), "{busy}");
    let waiting = daemon.wait_for("100-149", &["connecting"]);
    let name = waiting["name"].as_str().expect("a name");
    assert_eq!(daemon.cluster(&format!("CANCELSLOTMIGRATIONS {name}")), "OK");
    daemon.wait_for("100-149", &["cancelled"]);
    daemon.wait_for("150-199", &["connecting"]);
    assert_eq!(daemon.cluster("CANCELSLOTMIGRATIONS"), "OK");
    release(&scene);
    daemon.wait_for("0-99", &["cancelled"]);
    daemon.wait_for("150-199", &["cancelled"]);
    assert!(daemon.cluster("CANCELSLOTMIGRATIONS").contains("No migrations ongoing"));
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    assert!([0, 99, 120, 170].iter().all(|slot| scene.cluster.owner_of(*slot).expect("an owner") == 0));
    // What was cancelled may be asked for again.
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 9 NODE {target}")), "OK");
    daemon.wait_for("0-9", &["success"]);
    assert_eq!(scene.cluster.owner_of(9).expect("an owner"), 1);
}

/// Asked to stop while a job runs and another one waits, it says which are interrupted; `watch` shows both
/// before, `repair` the one that has marked slots.
fn what_a_stop_interrupts_is_named(engine: Engine) {
    let scene = scene(engine);
    let daemon = Served::by(paused_before_copying(
        invocation(&scene, "127.0.0.1:0", &[&EXTERNAL[..], &["--http", "127.0.0.1:0"]].concat()),
        &scene,
    ));
    let [source, target] = [0, 1].map(|node| scene.cluster.node_id(node).to_owned());
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 99 NODE {target}")), "OK");
    let job = daemon.wait_for("0-99", &["snapshotting"])["name"].as_str().expect("a name").to_owned();
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 100 149 NODE {target}")), "OK");
    let second = daemon.wait_for("100-149", &["connecting"])["name"].as_str().expect("a name").to_owned();
    let http = lines(&daemon.running.stdout(), "http")[0]["address"].as_str().expect("an address").to_owned();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = whimbrel_e2e::binary::run(&["watch", "--at", &http, "--once"]).expect_code(0).stdout;
        let shows =
            |name: &str| page.lines().any(|line| line.starts_with(name) && line.contains(&source[..8]));
        if shows(&job) && shows(&second) {
            break;
        }
        assert!(Instant::now() < deadline, "{page}");
        thread::sleep(Duration::from_millis(100));
    }
    let output = daemon.end();
    let stopped = lines(&output.stdout, "stopped");
    assert_eq!(stopped[0]["jobs"], serde_json::json!([job, second]), "{}", output.stdout);

    let (seed, state) = (scene.cluster.seed(), scene.file("").to_string_lossy().into_owned());
    let plan = whimbrel_e2e::binary::run(&["repair", &seed, "--dry-run", "--state-dir", &state]).stdout;
    assert!(plan.contains(&format!("whimbrel jobs resume {job}")), "{plan}");
    assert!(plan.contains(&format!("whimbrel jobs cancel {job}")), "{plan}");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let elsewhere = elsewhere.path().to_str().expect("a plain path");
    let plan = whimbrel_e2e::binary::run(&["repair", &seed, "--dry-run", "--state-dir", elsewhere]).stdout;
    assert!(plan.contains("whimbrel jobs list"), "{plan}");
    release(&scene);
    scene.resume();
    assert!([0, 99, 149].iter().all(|slot| scene.cluster.owner_of(*slot).expect("an owner") == 1));
    let listed = whimbrel_e2e::binary::run(&["jobs", "list", "--state-dir", &state]).expect_code(0).stdout;
    assert!(listed.contains("STARTED") && listed.matches(":").count() > 8, "{listed}");
}

/// The daemon is killed at a place of a job, while clients write; another one, on the same folder, finishes
/// it.
fn jobs_survive_the_daemon(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    // Each job has to get through on a busy machine, too.
    let patient = [&EXTERNAL[..], &["--max-pause", "5s"]].concat();
    let writers = scene.writers(0..=99);
    for (number, place) in ["snapshot:after", "fence:after", "confirm:before"].into_iter().enumerate() {
        let to = (number + 1) % 2;
        let invocation = invocation(&scene, "127.0.0.1:0", &patient).env("WHIMBREL_FAILPOINT", place);
        let mut daemon = Served::by(invocation);
        let words = format!("MIGRATESLOTS SLOTSRANGE 0 99 NODE {}", scene.cluster.node_id(to));
        assert_eq!(daemon.cluster(&words), "OK", "{place}");
        let output = daemon.running.wait(PATIENCE).expect("it dies");
        assert_eq!(output.code(), None, "{place}: it was not killed: {output:#?}");
        let unfinished = scene.unfinished();
        assert_eq!(unfinished.len(), 1, "{place}");

        let daemon = serve(&scene, &patient);
        let resuming = lines(&daemon.running.stdout(), "resuming");
        assert_eq!(resuming[0]["jobs"], serde_json::json!(unfinished), "{place}");
        let deadline = Instant::now() + PATIENCE;
        while !scene.unfinished().is_empty() {
            assert!(Instant::now() < deadline, "{place}: {:#?}\n{}", daemon.jobs(), daemon.running.stderr());
            thread::sleep(Duration::from_millis(100));
        }
        let jobs = daemon.jobs();
        let job = jobs.iter().find(|job| job["name"] == unfinished[0].as_str()).expect("it is listed");
        assert_eq!(job["state"], "success", "{place}: {job:#}");
        assert_eq!(scene.cluster.owner_of(99).expect("an owner"), to, "{place}");
        daemon.end();
    }
    scene.assert_kept(&writers.stop());
    scene.assert_unchanged(&before);
}

/// What was handed over before a job failed stays where it is, and that is said wherever the job is shown.
fn a_job_that_fails_half_way_says_what_has_moved(engine: Engine) {
    let scene = scene(engine);
    let more = [&EXTERNAL[..], &["--batch-keys", "400", "--rate-keys", "200"]].concat();
    let daemon = serve(&scene, &more);
    let (target, node) = (scene.cluster.node_id(1).to_owned(), &scene.cluster.nodes()[1]);
    assert_eq!(daemon.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 199 NODE {target}")), "OK");
    let deadline = Instant::now() + PATIENCE;
    while scene.cluster.owner_of(0).expect("an owner") == 0 {
        assert!(Instant::now() < deadline, "no batch is handed over: {:#?}", daemon.jobs());
        thread::sleep(Duration::from_millis(20));
    }
    node.call(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let failed = daemon.wait_for("0-199", &["failed"]);
    let message = failed["message"].as_str().expect("a text").to_owned();
    assert!(message.to_lowercase().contains("memory"), "{message}");
    assert!(message.contains("have moved, the others have not"), "{message}");
    let moved =
        shards::slots_of(&scene.cluster, 1).expect("slots").into_iter().filter(|slot| *slot < 200).count();
    assert!((1..200).contains(&moved), "{moved}");
    assert!(message.contains(&format!("slots 0-{}", moved - 1)), "{moved} have moved: {message}");
    let output = daemon.end();
    let log = output.stdout + &output.stderr;
    assert!(log.contains("have moved, the others have not") && !log.contains("rolled back"), "{log}");
    shards::assert_sound(&scene.cluster);
}

/// Another daemon, which knows nothing of the first one's jobs, keeps away from their nodes, and the job goes
/// on to its end.
fn a_second_daemon_keeps_away(engine: Engine) {
    let layout = [vec![0..=4999], vec![5000..=9999], vec![10000..=16383]];
    let scene = filled(Scene::of(engine, 0, &layout).start());
    let before = scene.unwritten();
    let slow = [&EXTERNAL[..], &["--batch-keys", "100", "--rate-keys", "200"]].concat();
    let first = serve(&scene, &slow);
    let folder = tempfile::tempdir().expect("a folder");
    let (seed, state) = (scene.cluster.seed(), folder.path().to_str().expect("a plain path"));
    let args = ["serve", "--cluster", &seed, "--listen", "127.0.0.1:0", "--state-dir", state, "--json"];
    let args = [&args[..], &EXTERNAL, &["--max-pause", "5s"]].concat();
    let second = Served::by(Invocation::new(&args).timeout(PATIENCE));
    let [target, third] = [1, 2].map(|node| scene.cluster.node_id(node).to_owned());
    assert_eq!(first.cluster(&format!("MIGRATESLOTS SLOTSRANGE 0 199 NODE {target}")), "OK");
    let deadline = Instant::now() + PATIENCE;
    while scene.cluster.owner_of(0).expect("an owner") == 0 {
        assert!(Instant::now() < deadline, "no batch is handed over: {:#?}", first.jobs());
        thread::sleep(Duration::from_millis(20));
    }
    let job = first.jobs()[0]["name"].as_str().expect("a name").to_owned();
    let mut refused = 0;
    // Asked again and again, so also in the moments between two batches, in which no slot is marked.
    loop {
        let reply = second.cluster(&format!("MIGRATESLOTS SLOTSRANGE 300 300 NODE {third}"));
        if reply == "OK" {
            break;
        }
        assert!(reply.contains(&format!("another whimbrel is moving slots there: job {job}")), "{reply}");
        assert!(reply.contains("whimbrel jobs list") && reply.contains("whimbrel repair"), "{reply}");
        refused += 1;
        if refused == 1 {
            let args =
                ["reshard", &seed, "--slots", "301", "--to", &third, "--dry-run", "--state-dir", state];
            let output = Invocation::new(&args).run().expect_code(4);
            // By its name, or by the marks that were seen first.
            let names = [&job, "slots marked as importing"];
            assert!(names.iter().any(|name| output.stderr.contains(name)), "{}", output.stderr);
        }
        assert!(Instant::now() < deadline, "it does not end: {:#?}", first.jobs());
    }
    assert!(refused > 3, "it was asked {refused} times while the job ran");
    first.wait_for("0-199", &["success"]);
    second.wait_for("300-300", &["success"]);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
}

fn moves_are_handed_to_it(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let usual = serve(&scene, &[]);
    let method = lines(&usual.running.stdout(), "serving")[0]["method"].clone();
    // Also where servers have a migration of their own: that one compares nothing.
    assert_eq!(method, "external");
    usual.end();
    // A busy machine must not have it refused for its pauses.
    let daemon = serve(&scene, &["--max-pause", "5s"]);
    let (seed, address) = (scene.cluster.seed(), daemon.address());
    let reshard = |slots: &str, to: usize| {
        let to = scene.cluster.node_id(to);
        Invocation::new(&[
            "reshard", &seed, "--slots", slots, "--to", to, "--yes", "--json", "--server", &address,
        ])
        .timeout(PATIENCE)
    };
    let outcome = MoveReport::of(reshard("0-99,150-160", 1).run().expect_code(0));
    let jobs = outcome.report["jobs"].as_array().expect("it lists its jobs").clone();
    assert_eq!((jobs.len(), &jobs[0]["ending"]), (1, &Value::from("done")), "{:#}", outcome.report);
    assert_eq!(
        (&outcome.report["slots"], &outcome.report["exit"]),
        (&111.into(), &0.into()),
        "{:#}",
        outcome.report
    );
    let listed = daemon.wait_for("0-99 150-160", &["success"]);
    assert_eq!(listed["name"], jobs[0]["id"]);
    assert!([0, 99, 155].iter().all(|slot| scene.cluster.owner_of(*slot).expect("an owner") == 1));
    // Its own options do not go with the daemon's.
    let to = scene.cluster.node_id(0).to_owned();
    let both = ["reshard", &seed, "--slots", "0-9", "--to", &to, "--server", &address, "--max-pause", "10ms"];
    Invocation::new(&both).run().expect_code(2);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    daemon.end();
    // Nobody listens there any more.
    let output = reshard("0-9", 0).run().expect_code(3);
    assert!(output.stdout.contains("\"side\":\"daemon\""), "{}", output.stdout);
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 1);
}

fn moves_that_were_handed_to_it_are_cancelled(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let daemon = serve_paused(&scene);
    let (seed, address, target) =
        (scene.cluster.seed(), daemon.address(), scene.cluster.node_id(1).to_owned());
    let reshard =
        ["reshard", &seed, "--slots", "0-99", "--to", &target, "--yes", "--json", "--server", &address];
    let mut running = Invocation::new(&reshard).spawn();
    daemon.wait_for("0-99", &BEGUN);
    // Refused, since somebody is at it.
    let output = Invocation::new(&reshard).run().expect_code(4);
    assert!(output.stdout.contains("already migrating"), "{}", output.stdout);
    running.interrupt();
    assert!(running.wait_for_text("stopping", PATIENCE));
    release(&scene);
    let output = running.wait(PATIENCE).expect("it ends").expect_code(130);
    let outcome = MoveReport::of(output);
    assert_eq!(outcome.report["jobs"][0]["ending"], "cancelled", "{:#}", outcome.report);
    assert_eq!(outcome.report["slots"], 0, "{:#}", outcome.report);
    daemon.wait_for("0-99", &["cancelled"]);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 0);
}

/// A command that waits for a daemon goes on waiting while it is started again.
fn moves_that_were_handed_to_it_survive_it(engine: Engine) {
    let scene = scene(engine);
    let before = scene.unwritten();
    let mut daemon = serve_paused(&scene);
    let (seed, address, target) =
        (scene.cluster.seed(), daemon.address(), scene.cluster.node_id(1).to_owned());
    let reshard =
        ["reshard", &seed, "--slots", "0-99", "--to", &target, "--yes", "--json", "--server", &address];
    let running = Invocation::new(&reshard).spawn();
    daemon.wait_for("0-99", &BEGUN);
    daemon.running.kill9();
    let daemon = Served::by(invocation(&scene, &address, &EXTERNAL));
    let outcome = MoveReport::by(running);
    assert_eq!(outcome.report["jobs"][0]["ending"], "done", "{:#}", outcome.report);
    daemon.wait_for("0-99", &["success"]);
    shards::assert_sound(&scene.cluster);
    scene.assert_unchanged(&before);
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 1);
}

fn a_password_keeps_others_out(engine: Engine) {
    const PASSWORD: &str = "a password of its own";
    let scene = scene(engine);
    // Off loopback it is required, and an empty one is none.
    let output = invocation(&scene, "0.0.0.0:0", &[]).run().expect_code(2);
    assert!(output.stdout.contains("password"), "{}", output.stdout);
    invocation(&scene, "0.0.0.0:0", &[]).env("WHIMBREL_SERVE_PASSWORD", "").run().expect_code(2);
    // What it shares with others and cannot use, it refuses.
    for option in ["--yes", "--dry-run", "--quiet"] {
        invocation(&scene, "127.0.0.1:0", &[option]).run().expect_code(2);
    }

    let file = scene.file("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).expect("the file can be written");
    let file = file.to_string_lossy().into_owned();
    let mut daemon = serve(&scene, &["--method", "external", "--listen-password-file", &file]);
    assert!(daemon.cluster("GETSLOTMIGRATIONS").contains("NOAUTH"));
    daemon.password = Some("another");
    assert!(!daemon.cli(&[], &["PING"]).contains("PONG"));
    daemon.password = Some(PASSWORD);
    assert!(daemon.cli(&[], &["PING"]).contains("PONG"));

    let (seed, address, target) =
        (scene.cluster.seed(), daemon.address(), scene.cluster.node_id(1).to_owned());
    let args = ["reshard", &seed, "--slots", "0-9", "--to", &target, "--yes", "--json", "--server", &address];
    let reshard = Invocation::new(&args).timeout(PATIENCE);
    reshard.run().expect_code(3);
    reshard.clone().env("WHIMBREL_SERVE_PASSWORD", "another").run().expect_code(3);
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 0);
    let output = reshard.env("WHIMBREL_SERVE_PASSWORD", PASSWORD).run().expect_code(0);
    assert!(!output.stdout.contains(PASSWORD) && !output.stderr.contains(PASSWORD));
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 1);
    let mut args = args.to_vec();
    (args[3], args[5]) = ("10-19", &target);
    args.extend(["--server-password-file", &file]);
    Invocation::new(&args).timeout(PATIENCE).run().expect_code(0);
    assert_eq!(scene.cluster.owner_of(19).expect("an owner"), 1);
    let output = daemon.end();
    assert!(!output.stdout.contains(PASSWORD) && !output.stderr.contains(PASSWORD));
}

/// An address with a password is taken out of the command line, in whichever way its option is written.
#[test]
fn passwords_in_addresses_are_hidden() {
    let scene = scene(Engine::Redis70);
    let (state, seed) = (scene.file("").to_string_lossy().into_owned(), scene.cluster.seed());
    let cluster = format!("--cluster=redis://:wrong-and-secret@{seed}");
    let args = ["serve", &cluster, "--listen", "127.0.0.1:0", "--state-dir", &state, "--json"];
    // The server has no password: it says so, and what it says has no password either.
    let output = Invocation::new(&args).timeout(PATIENCE).run().expect_code(3);
    assert!(!output.stdout.contains("wrong-and-secret") && !output.stderr.contains("wrong-and-secret"));
}

/// A client that says something and stays.
fn client_of(daemon: &Served) -> TcpStream {
    let mut stream = TcpStream::connect(daemon.address()).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.write_all(b"*1\r\n$4\r\nPING\r\n").expect("asked");
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).expect("a client is served");
    assert_eq!(&answer, b"+PONG\r\n");
    stream
}

/// The limit of open files that a process inherits is often 1,024 or less, and may be raised.
#[test]
fn more_clients_are_served_than_files_may_be_open_at_first() {
    let scene = Scene::of(Engine::Valkey91, 0, &[vec![0..=16383]]).start();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is a limit");
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard).expect("it can be lowered");
    let daemon = serve(&scene, &EXTERNAL);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("it can be raised");
    let clients: Vec<TcpStream> = (0..300).map(|_| client_of(&daemon)).collect();
    drop(clients);
    daemon.end();
}

/// Where it may not be raised far enough, others are notified instead of waiting for ever.
#[test]
fn no_more_clients_are_let_in_than_files_may_be_open() {
    let scene = Scene::of(Engine::Valkey91, 0, &[vec![0..=16383]]).start();
    let (seed, state) = (scene.cluster.seed(), scene.file("").to_string_lossy().into_owned());
    let args = [
        "serve",
        "--cluster",
        &seed,
        "--listen",
        "127.0.0.1:0",
        "--state-dir",
        &state,
        "--method",
        "external",
    ];
    let limited = |files: u32| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={files}:{files}")).arg(whimbrel_e2e::binary::whimbrel()).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("prlimit is there")
    };
    let refused = limited(256).wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("no place for clients") && text.contains("ulimit -Hn"), "{text}");
    let mut fewer = limited(600);
    let mut lines = BufReader::new(fewer.stderr.take().expect("it is piped")).lines();
    let note = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("too few open files")));
    // Before anything is asserted: it must not outlive the test.
    fewer.kill().expect("it can be killed");
    fewer.wait().expect("it ends");
    assert!(note.is_some(), "nothing was said");
}

whimbrel_lab::for_each_engine! {
    a_second_daemon_keeps_away
}

whimbrel_lab::for_each_engine! {
    on Redis70 Valkey91:
        valkeys_client_moves_slots
        what_makes_no_sense_is_refused_as_valkey_does
        jobs_wait_and_are_cancelled
        jobs_survive_the_daemon
        moves_are_handed_to_it
        moves_that_were_handed_to_it_are_cancelled
        a_job_that_fails_half_way_says_what_has_moved
        what_a_stop_interrupts_is_named
        moves_that_were_handed_to_it_survive_it
        clients_find_the_cluster_by_it
        hosts_are_named_as_the_cluster_does
        a_password_keeps_others_out
}
