//! What others see of a running sync, over HTTP, by `whimbrel watch` and in its log, and of a daemon; and
//! what a person sees of every kind of job, on a terminal with keys.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_e2e::fleets::Fleet;
use whimbrel_e2e::fronts::Front;
use whimbrel_e2e::http::Ask;
use whimbrel_e2e::resharding::Scene;
use whimbrel_e2e::slow_jobs::{Slow, jobs, listed};
use whimbrel_e2e::syncing::{KEYS, PATIENCE, Sync, deployment, fill, stop, wait_until_following};
use whimbrel_e2e::terminal::Terminal;
use whimbrel_lab::{Cluster, Engine, Proxy, Server, wait_until};

const PASSWORD: &str = "a-password-of-the-source";

/// The status line and the body of an answer.
fn get(at: &str, path: &str) -> (String, String) {
    get_as(at, path, at)
}

/// As [`get`], by another name of the machine.
fn get_as(at: &str, path: &str, host: &str) -> (String, String) {
    let answer = Ask::new(at, &format!("GET {path}")).with("Host", host).answer();
    (answer.head.lines().next().unwrap_or_default().to_owned(), answer.body)
}

/// Where a sync shows itself: it says so in its first lines.
fn http_of(sync: &Running) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = sync.stdout();
        let events = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(event) = events.into_iter().find(|event| event["event"] == "http") {
            return event["address"].as_str().expect("an address").to_owned();
        }
        assert!(Instant::now() < deadline, "it does not say where: {output}\n{}", sync.stderr());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The value of a metric, by its name and labels as they are written.
fn metric(text: &str, name: &str) -> f64 {
    let line =
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ')
        .next()
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("no number: {line}"))
}

#[test]
fn a_sync_shows_itself() {
    let source = Server::builder(Engine::Redis70).password(PASSWORD).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let from = format!("redis://:{PASSWORD}@{}", source.addr());
    let proxy = Proxy::start(&source.addr()).expect("a proxy");
    let through = format!("redis://:{PASSWORD}@{}", proxy.addr());
    fill(&deployment(&from));
    let job = Sync::new(&through, &target.addr(), &["--http", "127.0.0.1:0"]);
    let log = [("WHIMBREL_LOG", "info"), ("WHIMBREL_LOG_FORMAT", "json")];
    // Slow enough to be asked while the snapshot is taken.
    let mut sync = job.start_with(&["--rate-keys", "800"], &log);
    let at = http_of(&sync);
    // It says where it can be asked before it has looked at the servers.
    let deadline = Instant::now() + PATIENCE;
    let (status, body) = loop {
        let (status, body) = get(&at, "/readyz");
        if !body.contains("has not begun") {
            break (status, body);
        }
        assert!(status.contains("503") && Instant::now() < deadline, "{status}: {body}");
        thread::sleep(Duration::from_millis(20));
    };
    assert!(status.contains("503") && body.contains("does not follow"), "{status}: {body}");
    assert!(get(&at, "/healthz").0.contains("200"));
    wait_until_following(&mut sync);
    wait_until_ready(&at);
    source.call(&["SET", "late", "1"]);
    let offset = "whimbrel_sync_source_offset{";
    let deadline = Instant::now() + PATIENCE;
    while metric(&get(&at, "/metrics").1, offset) == 0.0 {
        assert!(Instant::now() < deadline, "it does not follow");
        thread::sleep(Duration::from_millis(50));
    }
    let (status, metrics) = get(&at, "/metrics");
    assert!(status.contains("200") && metrics.trim_end().ends_with("# EOF"), "{status}: {metrics}");
    assert!(metric(&metrics, "whimbrel_sync_keys_written_total ") >= KEYS as f64, "{metrics}");
    assert_eq!(metric(&metrics, "whimbrel_sync_phase{phase=\"following\"} "), 1.0);
    assert!(get_as(&at, "/status", "evil.example").0.contains(" 421 "), "a name that was made to lead here");
    // Without an estimate where a busy machine has kept a server from answering for a while.
    let mut status = Value::Null;
    wait_until("the pause is estimated", || {
        status = serde_json::from_str(&get(&at, "/status").1).expect("JSON");
        status["status"]["phase"] == "following" && status["status"]["pause_estimate_ms"].is_u64()
    });
    let mut watched = String::new();
    wait_until("the page says so", || {
        let watch = Invocation::new(&["watch", "--at", &at, "--once"]).timeout(PATIENCE);
        watched = watch.run().expect_code(0).stdout;
        watched.contains("phase    following") && watched.contains("would pause writes for")
    });
    // Somebody who has nothing to say keeps nobody else away.
    let idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&at).expect("somebody listens")).collect();
    assert!(get(&at, "/healthz").0.contains("200"));
    drop(idle);
    // A link that breaks is worth a line in the log, and every line of the log is JSON.
    let resumed = "whimbrel_sync_source_links_resumed_total{";
    proxy.cut();
    // While there is none, nothing reports that all is well.
    let mut broken = String::new();
    wait_until("a broken link is seen", || {
        let (status, body) = get(&at, "/readyz");
        broken = body;
        !status.contains("200") && broken.contains("no link to")
    });
    assert!(broken.contains(&proxy.addr()), "{broken}");
    assert_eq!(metric(&get(&at, "/metrics").1, "whimbrel_sync_source_connected{"), 0.0);
    let page = Invocation::new(&["watch", "--at", &at, "--once"]).timeout(PATIENCE).run().expect_code(0);
    assert!(page.stdout.contains("BROKEN"), "{}", page.stdout);
    proxy.heal().expect("the proxy listens again");
    let deadline = Instant::now() + PATIENCE;
    while metric(&get(&at, "/metrics").1, resumed) < 1.0 {
        assert!(Instant::now() < deadline, "the link does not come back");
        thread::sleep(Duration::from_millis(50));
    }
    let output = stop(sync);
    let logged: Vec<Value> = output
        .stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|l| serde_json::from_str(l).expect(l))
        .collect();
    assert!(
        logged.iter().any(|line| line["level"].is_string() && line["message"].is_string()),
        "{}",
        output.stderr
    );
    let nowhere = Invocation::new(&["watch", "--at", &at, "--once"]).timeout(PATIENCE).run().expect_code(1);
    assert!(nowhere.stderr.contains("--http"), "{}", nowhere.stderr);
    for text in [&metrics, &status.to_string(), &output.stdout, &output.stderr, &watched] {
        assert!(!text.contains(PASSWORD), "a password is shown: {text}");
    }
}

#[test]
fn a_daemon_shows_its_jobs() {
    let cluster = Cluster::builder(Engine::Valkey81).primaries(2).start().expect("the cluster starts");
    let (seed, state) = (cluster.seed(), tempfile::tempdir().expect("a folder"));
    let state = state.path().to_str().expect("a plain path");
    let args = ["serve", "--cluster", &seed, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"];
    let args: Vec<&str> = args.into_iter().chain(["--state-dir", state, "--max-pause", "5s"]).collect();
    let mut daemon = Invocation::new(&args).timeout(PATIENCE).spawn();
    let at = http_of(&daemon);
    assert!(get(&at, "/healthz").0.contains("200"));
    assert_eq!(metric(&get(&at, "/metrics").1, "whimbrel_jobs_open_slots "), 0.0);
    let events: Vec<Value> =
        daemon.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let serving = events.iter().find(|event| event["event"] == "serving").expect("it says that it serves");
    let (address, to) = (serving["address"].as_str().expect("an address"), cluster.node_id(1));
    let args = ["reshard", &seed, "--slots", "0-9", "--to", to, "--yes", "--server", address];
    Invocation::new(&args).timeout(PATIENCE).run().expect_code(0);
    let deadline = Instant::now() + PATIENCE;
    while !get(&at, "/metrics").1.contains("whimbrel_jobs{state=\"success\"} 1.0") {
        assert!(Instant::now() < deadline, "{}", get(&at, "/metrics").1);
        thread::sleep(Duration::from_millis(50));
    }
    let status: Value = serde_json::from_str(&get(&at, "/status").1).expect("JSON");
    assert_eq!(status["jobs"][0]["slots"], "0-9", "{status}");
    // A primary that hangs.
    let hangs = format!("whimbrel_cluster_primary_unreachable{{primary=\"{}\"}}", cluster.nodes()[1].addr());
    let is_lost = || get(&at, "/metrics").1.contains(&hangs);
    wait_until("it is there", || !is_lost());
    cluster.nodes()[1].suspend().expect("stopped");
    wait_until("it is missed", is_lost);
    cluster.nodes()[1].resume().expect("it goes on");
    wait_until("it is found again", || !is_lost());
    daemon.terminate();
    daemon.wait(PATIENCE).expect("it ends").expect_code(0);
}

#[test]
fn a_port_that_is_taken_leaves_no_trace() {
    let slow = Slow::new();
    let (from, to, taken) = (slow.source.addr(), slow.target.addr(), slow.source.addr());
    let more = ["--http", &taken, "--state-dir", slow.state()];
    let listen = ["front", "--listen", "127.0.0.1:0", "--source", &from, "--target", &to];
    for command in [&["copy", &from, &to][..], &["verify", &from, &to], &["sync", &from, &to], &listen] {
        let refused = Invocation::new(&[command, &more].concat()).timeout(PATIENCE).run().expect_code(1);
        assert!(refused.stderr.contains(&*taken), "{}", refused.stderr);
        assert_eq!(listed(slow.state()), Vec::<Value>::new(), "{command:?}");
    }
    let fleet = Fleet::start(&from, 1, &[]);
    let join = ["front", "--join", &fleet.coordinator(), "--listen", "127.0.0.1:0", "--http", &taken];
    Invocation::new(&join).timeout(PATIENCE).run().expect_code(1);
    let status = fleet.status().expect("it stands");
    assert_eq!(status["fleet"]["members"].as_array().map(Vec::len), Some(1), "{status:#}");
}

#[test]
fn a_sync_that_is_paused_says_so() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    let job = Sync::new(&source.addr(), &target.addr(), &["--http", "127.0.0.1:0"]);
    let mut sync = job.start(&[]);
    let at = http_of(&sync);
    wait_until_following(&mut sync);
    let state = job.state.path().join("whimbrel");
    let steer = |what: &str| jobs(state.to_str().expect("a plain path"), &[what, "--all"]).expect_code(0);
    let page = || Invocation::new(&["watch", "--at", &at, "--once"]).timeout(PATIENCE).run().expect_code(0);
    wait_for_metric(&at, "whimbrel_sync_paused ", |is| is == 0.0);
    assert!(!page().stdout.contains("paused"));
    steer("pause");
    wait_for_metric(&at, "whimbrel_sync_paused ", |is| is == 1.0);
    let (ready, why) = get(&at, "/readyz");
    assert!(ready.contains("503") && why.contains("paused"), "{ready}: {why}");
    assert!(page().stdout.contains("paused: nothing arrives"), "{}", page().stdout);
    steer("resume");
    wait_for_metric(&at, "whimbrel_sync_paused ", |is| is == 0.0);
    stop(sync);
}

/// The labels that a process shows with each of its metrics.
fn labels_of(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once(['{', ' ']).expect("a sample");
        let labels = rest.split_once("} ").map_or("", |(labels, _)| labels).split("\",");
        let labels = labels.filter_map(|label| Some(label.split_once('=')?.0.trim().to_owned()));
        found.entry(name.to_owned()).or_default().extend(labels);
    }
    found
}

/// Every query of the dashboard asks for what a process shows, by labels that it has.
#[test]
fn the_dashboard_asks_for_what_there_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/grafana/whimbrel.json");
    let dashboard = std::fs::read_to_string(path).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let http = ["--http", "127.0.0.1:0"];
    let slow = Slow::new();
    let cluster = Cluster::builder(Engine::Valkey81).primaries(2).start().expect("the cluster starts");
    let (seed, state) = (cluster.seed(), tempfile::tempdir().expect("a folder"));
    let state = state.path().to_str().expect("a plain path");
    // A job, and a daemon that knows of it.
    let args =
        ["reshard", &seed, "--slots", "0-9", "--to", cluster.node_id(1), "--yes", "--state-dir", state];
    let args = [&args[..], &["--max-pause", "5s"]].concat();
    Invocation::new(&args).timeout(PATIENCE).run().expect_code(0);
    let args = ["serve", "--cluster", &seed, "--listen", "127.0.0.1:0", "--json", "--state-dir", state];
    let daemon = Invocation::new(&[&args[..], &http].concat()).timeout(PATIENCE).spawn();
    let [left, entered, followed] = [Engine::Redis70, Engine::Valkey91, Engine::Valkey91]
        .map(|engine| Server::builder(engine).start().expect("a server starts"));
    let front = Front::between(&left.addr(), &entered.addr(), &http);
    front.command("start").expect_code(0);
    let fleet = Fleet::start_on_etcd(&seed, 1, &http);
    let sync = Sync::new(&slow.source.addr(), &followed.addr(), &[]);
    let mut following = sync.start(&http);
    wait_until_following(&mut following);
    let jobs = ["copy", "verify"].map(|kind| slow.start(kind, 100, &http));
    let coordinators = fleet.coordinators.iter().map(|one| &one.running);
    let running = jobs.iter().chain([&following, &daemon, &front.running]).chain(coordinators);
    let ports: Vec<String> = running.map(http_of).collect();
    // Each metric that is asked for, and the legend beside it.
    let mut asked: Vec<(String, String)> = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = |name: &str| target[name].as_str().expect("a text").to_owned();
            let (query, legend) = (text("expr"), text("legendFormat"));
            let is_apart = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
            let names = query.split(is_apart).filter(|word| word.starts_with("whimbrel_"));
            asked.extend(names.map(|name| (name.to_owned(), legend.clone())));
        }
    }
    assert!(asked.len() > 30, "{}", asked.len());
    // Some are there only while servers answer, which a busy machine may keep them from for a while.
    let mut shown: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && !asked.iter().all(|(name, _)| shown.contains_key(name)) {
        for at in &ports {
            for (name, labels) in labels_of(&get(at, "/metrics").1) {
                shown.entry(name).or_default().extend(labels);
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    for (name, legend) in &asked {
        let labels = shown.get(name).unwrap_or_else(|| panic!("nobody shows {name}: {shown:#?}"));
        let wanted = legend.split("{{").skip(1).filter_map(|rest| rest.split_once("}}"));
        let mut wanted = wanted.map(|(label, _)| label).filter(|label| *label != "instance");
        assert_eq!(wanted.find(|label| !labels.contains(*label)), None, "{name}: {labels:?}");
    }
    drop((jobs, following, daemon));
}

/// A server that hangs keeps its connections: nothing breaks, and all looks well.
/// A metric that becomes what it should.
#[track_caller]
fn wait_for_metric(at: &str, name: &str, is_right: impl Fn(f64) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = get(at, "/metrics").1;
        if is_right(metric(&metrics, name)) {
            return;
        }
        assert!(Instant::now() < deadline, "{name}: {metrics}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_copy_and_a_verification_show_themselves() {
    let slow = Slow::new();
    for (kind, done, paused) in [
        ("copy", "whimbrel_copy_keys_written_total ", "whimbrel_copy_paused "),
        ("verify", "whimbrel_verify_keys_compared_total ", "whimbrel_verify_paused "),
    ] {
        let running = slow.start(kind, 500, &["--http", "127.0.0.1:0"]);
        let at = http_of(&running);
        wait_for_metric(&at, done, |keys| keys > 0.0);
        assert!(get(&at, "/healthz").0.contains("200"));
        wait_until_ready(&at);
        let status: Value = serde_json::from_str(&get(&at, "/status").1).expect("JSON");
        let job = &status["job"];
        assert_eq!((&job["kind"], &job["rate_keys"]), (&kind.into(), &500.into()), "{status}");
        assert_eq!(metric(&get(&at, "/metrics").1, paused), 0.0);
        jobs(slow.state(), &["pause", job["id"].as_str().expect("a name")]).expect_code(0);
        wait_for_metric(&at, paused, |is| is == 1.0);
        // `watch` shows the page of the job, as for one that runs here.
        let watch = ["watch", "--at", &at, "--once"];
        let page = Invocation::new(&watch).timeout(PATIENCE).run().expect_code(0).stdout;
        for words in [kind, "paused", &*slow.source.addr(), &*slow.target.addr()] {
            assert!(page.contains(words), "{words}: {page}");
        }
        jobs(slow.state(), &["resume", "--all"]).expect_code(0);
        wait_for_metric(&at, paused, |is| is == 0.0);
        drop(running);
    }
    // One that is over at once is no job, and has nothing to show.
    let (from, to) = (slow.source.addr(), slow.target.addr());
    let counts = ["verify", &from, &to, "--depth", "counts", "--http", "127.0.0.1:0"];
    let refused = Invocation::new(&counts).run().expect_code(2);
    assert!(refused.stderr.contains("--http"), "{}", refused.stderr);
}

#[test]
fn a_front_shows_itself() {
    let source = Server::builder(Engine::Redis70).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    for number in 0..500 {
        source.call(&["SET", &format!("k{number}"), "v"]);
    }
    let front = Front::between(&source.addr(), &target.addr(), &["--http", "127.0.0.1:0"]);
    let at = http_of(&front.running);
    let client = front.connect();
    wait_for_metric(&at, "whimbrel_front_clients ", |clients| clients == 1.0);
    assert!(!get(&at, "/metrics").1.contains("whimbrel_front_keys_moved"));
    drop(client);
    wait_for_metric(&at, "whimbrel_front_clients ", |clients| clients == 0.0);
    front.command("start").expect_code(0);
    wait_for_metric(&at, "whimbrel_front_done ", |is| is == 1.0);
    let metrics = get(&at, "/metrics").1;
    assert_eq!(metric(&metrics, "whimbrel_front_keys_moved_total "), 500.0, "{metrics}");
    assert_eq!(metric(&metrics, "whimbrel_front_clients_accepted_total "), 1.0, "{metrics}");
    // What hangs is not asked: the numbers are there all the same.
    target.suspend().expect("suspended");
    assert!(metric(&get(&at, "/metrics").1, "whimbrel_front_clients_accepted_total ") >= 1.0);
    let watch = ["watch", "--at", &at, "--once"];
    let page = Invocation::new(&watch).timeout(PATIENCE).run().expect_code(0).stdout;
    assert!(page.contains("front") && page.contains(&*target.addr()), "{page}");
    target.resume().expect("resumed");

    let (listen, plain) = ("127.0.0.1:0", source.addr());
    let alone = ["front", "--listen", listen, "--source", &plain, "--http", listen, "--json"];
    let alone = Invocation::new(&alone).timeout(PATIENCE).spawn();
    let at = http_of(&alone);
    assert_eq!(metric(&get(&at, "/metrics").1, "whimbrel_front_clients "), 0.0);
    let page = Invocation::new(&["watch", "--at", &at, "--once"]).timeout(PATIENCE).run().expect_code(0);
    assert!(page.stdout.contains("0 clients connected"), "{}", page.stdout);
}

#[test]
fn a_server_that_hangs_is_said_to_be_silent() {
    let source = Server::builder(Engine::Redis80).start().expect("the source starts");
    let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
    source.call(&["SET", "early", "1"]);
    let job = Sync::new(&source.addr(), &target.addr(), &["--http", "127.0.0.1:0"]);
    let mut sync = job.start(&[]);
    let at = http_of(&sync);
    wait_until_following(&mut sync);
    wait_until_ready(&at);
    for (side, server) in [("source", &source), ("target", &target)] {
        server.suspend().expect("it is suspended");
        let deadline = Instant::now() + PATIENCE;
        let words = format!("nothing heard from the {side} {}", server.addr());
        loop {
            let (status, body) = get(&at, "/readyz");
            if status.contains("503") && body.contains(&words) {
                break;
            }
            assert!(Instant::now() < deadline, "it is said to be well: {status} {body}");
            thread::sleep(Duration::from_millis(100));
        }
        let shown: Value = serde_json::from_str(&get(&at, "/status").1).expect("JSON");
        let shown = &shown["status"];
        let primary = &shown[format!("{side}s")][0];
        assert!(primary["silent"] == true && primary["silent_ms"].as_u64() > Some(1_000), "{shown}");
        assert!(shown["pause_estimate_ms"].is_null(), "{shown}");
        let metrics = get(&at, "/metrics").1;
        assert!(metric(&metrics, &format!("whimbrel_sync_{side}_silent_seconds{{")) > 1.0, "{metrics}");
        if side == "source" {
            assert!(primary["lag_ms"].is_null() && primary["lag_bytes"].is_null(), "{shown}");
            assert_eq!(metric(&metrics, "whimbrel_sync_source_connected{"), 0.0);
            assert!(!metrics.contains("\nwhimbrel_sync_source_lag_seconds{"), "{metrics}");
        }
        // Here, and in the state folder.
        for more in [&["--at", &at][..], &["--state-dir", &state_of(&job)]] {
            let args = [&["watch", "--once"], more].concat();
            let deadline = Instant::now() + PATIENCE;
            while !Invocation::new(&args).timeout(PATIENCE).run().expect_code(0).stdout.contains(&words) {
                assert!(Instant::now() < deadline, "{args:?} does not say it");
                thread::sleep(Duration::from_millis(100));
            }
        }
        server.resume().expect("it goes on");
        wait_until_ready(&at);
    }
    source.call(&["SET", "late", "1"]);
    stop(sync);
}

/// Its folder of syncs.
fn state_of(job: &Sync) -> String {
    job.state.path().join("whimbrel").to_str().expect("a path").to_owned()
}

#[track_caller]
fn wait_until_ready(at: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !get(at, "/readyz").0.contains("200") {
        assert!(Instant::now() < deadline, "it does not become ready: {}", get(at, "/readyz").1);
        thread::sleep(Duration::from_millis(50));
    }
}

// ---- On a terminal ----

const COLUMNS: u16 = 80;
const LINES: u16 = 24;

/// A terminal as small as they come.
fn terminal() -> Terminal {
    Terminal::of_size(COLUMNS, LINES)
}

const PLAIN: [(&str, &str); 1] = [("NO_COLOR", "1")];

#[track_caller]
fn fits(page: &str) {
    let is_wide = |line: &str| line.chars().count() > usize::from(COLUMNS);
    assert!(!page.lines().any(is_wide), "{page}");
    assert!(page.lines().count() <= usize::from(LINES), "{page}");
}

#[test]
fn a_copy_is_watched_paused_and_cancelled_by_keys() {
    let place = Slow::new();
    let mut copy = place.start("copy", 100, &["--name", "nightly"]);
    let (state, terminal) = (place.state(), terminal());
    let before = terminal.settings();
    let mut watch = terminal.start(&["watch", "--state-dir", state], &PLAIN);
    let between = format!("copy     {} -> {}", place.source.addr(), place.target.addr());
    let all =
        [&between, "nightly (copy-", "running: copying", " %  ", "keys/s", "; ETA ", "limits   100 keys"];
    let page = watch.wait_for_page(&all, &[]);
    fits(&page);
    for expected in
        ["heard    ", " s ago", "written  ", "events   ", "begun by", "p pause, c cancel", "q quit"]
    {
        assert!(page.contains(expected), "no {expected:?} in\n{page}");
    }
    assert!(terminal.settings() != before, "keys are taken as they are pressed");
    watch.press("p");
    let page = watch.wait_for_page(&["paused   by order since ", "p resume", "no ETA"], &["p pause"]);
    fits(&page);
    assert!(jobs(state, &["show", "nightly"]).expect_code(0).stdout.contains("paused"));
    watch.press("p");
    watch.wait_for_page(&["running: copying", "p pause", "its keys move again"], &["paused   "]);
    assert!(jobs(state, &["show", "nightly"]).expect_code(0).stdout.contains("running: copying"));
    // By a word, and not by a key that was hit by mistake.
    watch.press("c");
    fits(&watch.wait_for_page(&["ends the copy; what was written stays", "Type yes"], &["p pause"]));
    watch.press("y\r");
    watch.wait_for_page(&["not cancelled", "p pause"], &["Type yes"]);
    assert!(copy.is_running());
    // What was typed before the question stood there is no answer to it.
    watch.press("cyes\r");
    watch.wait_for_page(&["Type yes"], &["p pause"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(copy.is_running(), "it took an answer from before");
    watch.press("yes\r");
    let shown = watch.expect_code(0);
    let (_, last) = shown.rsplit_once("ended    ").expect("it says how it ended");
    assert!(last.contains("nightly does not run any more: cancelled"), "{shown}");
    assert!(
        last.contains("whimbrel jobs ") && last.contains(" copy-"),
        "what can be looked at later: {last}"
    );
    assert_eq!(terminal.settings(), before, "the terminal is as it was");
    copy.wait(PATIENCE).expect("it ends");
    assert!(jobs(state, &["list"]).expect_code(0).stdout.contains("cancelled"));
}

/// What hangs keeps its socket: it is not shown as if it went on.
#[test]
fn a_copy_that_is_stopped_is_said_to_be_silent() {
    let place = Slow::new();
    let mut copy = place.start("copy", 100, &[]);
    let terminal = terminal();
    let before = terminal.settings();
    let mut watch = terminal.start(&["watch", "copy-", "--state-dir", place.state()], &PLAIN);
    watch.wait_for_page(&["running: copying", "; ETA "], &[]);
    copy.suspend();
    let silent = ["nothing heard for ", "does not answer", "speed    unknown"];
    let old = ["running", "keys/s", "p pause", "c cancel"];
    let page = watch.wait_for_page(&silent, &old);
    fits(&page);
    let begins = page.split_once("nothing heard for ").and_then(|(_, rest)| rest.split_once(' '));
    let seconds: u64 = begins.and_then(|(seconds, _)| seconds.parse().ok()).expect("a number");
    assert!(seconds >= 2, "{page}");
    // It counts on.
    watch.wait_for_page(&silent, &[&old[..], &[&format!("nothing heard for {seconds} s")]].concat());
    // In the list as well.
    watch.press("\x1b");
    let row = ["1 job, of which 1 run", ">  copy-", "nothing heard for "];
    fits(&watch.wait_for_page(&row, &[" %"]));
    copy.resume();
    watch.wait_for_page(&["running: copying", " %"], &["nothing heard"]);
    watch.press("\r");
    watch.wait_for_page(&["running: copying", "p pause"], &["SILENT"]);
    // Others use the terminal while it is stopped.
    watch.signal(Signal::SIGTSTP);
    wait_until("it is stopped", || watch.is_stopped());
    assert_eq!(terminal.settings(), before);
    watch.signal(Signal::SIGCONT);
    wait_until("it takes keys again", || terminal.settings() != before);
    watch.press("q");
    watch.expect_code(0);
    assert_eq!(terminal.settings(), before, "the terminal is as it was");
    // Signals end it as the key does.
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut watch = terminal.start(&["watch", "--state-dir", place.state()], &PLAIN);
        wait_until("it takes keys", || terminal.settings() != before);
        watch.signal(signal);
        watch.expect_code(0);
        assert_eq!(terminal.settings(), before, "{signal}");
    }
    // What was killed can go on, and with what is said.
    let mut watch = terminal.start(&["watch", "--state-dir", place.state()], &PLAIN);
    wait_until("it takes keys", || terminal.settings() != before);
    watch.wait_for_page(&["running: copying", "; ETA "], &[]);
    copy.kill9();
    let shown = watch.expect_code(0);
    let (_, last) = shown.rsplit_once("ended    ").expect("it says so");
    assert!(last.contains("it was interrupted") && last.contains("other options: whimbrel copy"), "{shown}");
}

/// Watches the only job that runs, until its page holds all this.
#[track_caller]
fn is_shown(state: &str, with: &[&str]) {
    let terminal = terminal();
    let mut watch = terminal.start(&["watch", "--state-dir", state], &PLAIN);
    let page = watch.wait_for_page(&[with, &[" %  ", "heard    ", "q quit"]].concat(), &[]);
    fits(&page);
    watch.press("q");
    watch.expect_code(0);
    // Programs get the same.
    let args = ["watch", "--once", "--json", "--state-dir", state];
    let mut object = Value::Null;
    wait_until("it is said how far the job is", || {
        let output = Invocation::new(&args).timeout(PATIENCE).run().expect_code(0);
        object = serde_json::from_str(&output.stdout).expect("an object");
        object["job"]["percent"].is_u64()
    });
    assert_eq!(object["job"]["state"], "running", "{object:#}");
}

#[test]
fn a_verification_and_a_sync_are_shown_with_percent() {
    let place = Slow::new();
    for (kind, own) in [
        ("verify", &["running: comparing", "found    ", "compared", "; ETA ", "p pause, c cancel"][..]),
        ("sync", &["running: snapshotting", "written  ", "PRIMARY", "; ETA ", "p pause, c cancel"]),
    ] {
        let mut running = place.start(kind, 100, &[]);
        is_shown(place.state(), &[own, &[&*format!("{kind:<9}{}", place.source.addr())]].concat());
        running.kill9();
        let name = jobs(place.state(), &["--json"]).expect_code(0).stdout;
        let name: Value = serde_json::from_str(name.lines().last().expect("a job")).expect("JSON");
        jobs(place.state(), &["cancel", name["id"].as_str().expect("a name")]).expect_code(0);
    }
}

#[test]
fn a_move_of_slots_is_shown_with_percent() {
    let scene = Scene::of(Engine::Valkey91, 0, &[vec![0..=8191], vec![8192..=16383]]).start();
    scene.fill(0..=99, 100, 10_000);
    let state = scene.file("");
    let state = state.to_str().expect("a plain path").trim_end_matches('/');
    let slowly = ["--method", "external", "--rate-keys", "100"];
    let mut running = scene.reshard("0-99", 1, &slowly).timeout(PATIENCE).spawn();
    wait_until("it is listed", || !jobs(state, &["--json"]).stdout.is_empty());
    is_shown(
        state,
        &["move     ", "slots    0 of 100", "method   external", "keys/s; ETA ", "p pause, c cancel"],
    );
    let terminal = terminal();
    let mut watch = terminal.start(&["watch", "--state-dir", state], &PLAIN);
    watch.wait_for_page(&["p pause"], &[]);
    watch.press("c");
    fits(
        &watch.wait_for_page(&["rolls back the slots that were not handed over yet; 0 of 100"], &["p pause"]),
    );
    watch.press("yes\r");
    let shown = watch.expect_code(0);
    assert!(shown.contains("does not run any more: cancelled"), "{shown}");
    running.wait(PATIENCE).expect("it ends").expect_code(130);
    assert_eq!(scene.cluster.owner_of(0).expect("an owner"), 0, "nothing has moved");
}

#[test]
fn a_front_is_shown_with_percent() {
    let place = Slow::new();
    let front = Front::between(&place.source.addr(), &place.target.addr(), &[]);
    let mut client = front.connect();
    redis::cmd("PING").exec(&mut client).expect("it is served");
    let start = ["front", "start", "--yes", "--state-dir", front.state_dir()];
    Invocation::new(&start).timeout(PATIENCE).run().expect_code(0);
    let listens = format!("listens on 127.0.0.1:{}", front.port());
    is_shown(front.state_dir(), &["front    ", &listens, "clients  1", "moving   ", " moved"]);
}

#[test]
fn several_jobs_are_a_list() {
    let place = Slow::new();
    let other = Slow::new();
    let state = place.state();
    let nobody = Invocation::new(&["watch", "--state-dir", state]).timeout(PATIENCE).run().expect_code(2);
    assert!(nobody.stderr.contains("no job runs"), "{}", nobody.stderr);
    let (from, to) = (place.source.addr(), place.target.addr());
    let _copy = place.start("copy", 100, &["--name", "first"]);
    let slowly = ["--state-dir", state, "--rate-keys", "100", "--report", "1", "--json", "--name", "second"];
    let (one, two) = (other.source.addr(), other.target.addr());
    let args = [&["verify", &one, &two][..], &slowly].concat();
    let mut verify = Invocation::new(&args).timeout(PATIENCE).spawn();
    assert!(verify.wait_for_text("verify_progress", PATIENCE), "{}{}", verify.stdout(), verify.stderr());
    let terminal = terminal();
    let mut watch = terminal.start(&["watch", "--state-dir", state], &PLAIN);
    // The ETA comes before the servers.
    let page = watch.wait_for_page(&["2 jobs, of which 2 run", "first", "second", " %", "s  127.0.0.1"], &[]);
    fits(&page);
    let at = |page: &str, name: &str| page.lines().any(|line| line.starts_with(&format!(">  {name}")));
    assert!(at(&page, "second") != at(&page, "first"), "{page}");
    let (to_first, to_second) = if at(&page, "first") { ("k", "\x1b[B") } else { ("j", "\x1b[A") };
    watch.press(&format!("{to_first}\r"));
    watch.wait_for_page(&[&*format!("copy     {from} -> {to}"), "job      first"], &[]);
    watch.press("\x1b");
    watch.wait_for_page(&[">  first"], &[]);
    watch.press(&format!("{to_second}\r"));
    watch.wait_for_page(&["job      second", "running: comparing"], &[]);
    verify.kill9();
    watch.wait_for_page(&["interrupted", "other options: whimbrel verify"], &["p pause"]);
    watch.press("q");
    watch.expect_code(0);
    let args = ["watch", "--once", "--state-dir", state];
    let text = Invocation::new(&args).timeout(PATIENCE).run().expect_code(0).stdout;
    assert!(text.contains("job      first") && text.contains("heard    "), "the only one that runs: {text}");
}
