//! What others see of a running sync, over HTTP, by `whimbrel watch` and in its log, and of a daemon.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Running};
use whimbrel_e2e::http::Ask;
use whimbrel_e2e::syncing::{PATIENCE, Sync, deployment, fill, stop, wait_until_following};
use whimbrel_lab::{Cluster, Engine, Proxy, Server};

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
    let mut sync = job.start_with(&["--rate-keys", "4000"], &log);
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
    assert!(get(&at, "/readyz").0.contains("200"));
    source.call(&["SET", "late", "1"]);
    let offset = "whimbrel_sync_source_offset{";
    let deadline = Instant::now() + PATIENCE;
    while metric(&get(&at, "/metrics").1, offset) == 0.0 {
        assert!(Instant::now() < deadline, "it does not follow");
        thread::sleep(Duration::from_millis(50));
    }
    let (status, metrics) = get(&at, "/metrics");
    assert!(status.contains("200") && metrics.trim_end().ends_with("# EOF"), "{status}: {metrics}");
    assert!(metric(&metrics, "whimbrel_sync_keys_written_total ") >= 20_000.0, "{metrics}");
    assert_eq!(metric(&metrics, "whimbrel_sync_phase{phase=\"following\"} "), 1.0);
    assert!(get_as(&at, "/status", "evil.example").0.contains(" 421 "), "a name that was made to lead here");
    let status: Value = serde_json::from_str(&get(&at, "/status").1).expect("JSON");
    assert_eq!(status["status"]["phase"], "following", "{status}");
    assert!(status["status"]["pause_estimate_ms"].as_u64().is_some(), "{status}");
    let watched = Invocation::new(&["watch", "--at", &at, "--once"]).timeout(PATIENCE).run().expect_code(0);
    assert!(watched.stdout.contains("phase    following"), "{}", watched.stdout);
    assert!(watched.stdout.contains("would pause writes for"), "{}", watched.stdout);
    // Somebody who has nothing to say keeps nobody else away.
    let idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&at).expect("somebody listens")).collect();
    assert!(get(&at, "/healthz").0.contains("200"));
    drop(idle);
    // A link that breaks is worth a line in the log, and every line of the log is JSON.
    let resumed = "whimbrel_sync_source_links_resumed_total{";
    proxy.cut();
    // While there is none, nobody is told that all is well.
    let deadline = Instant::now() + PATIENCE;
    while get(&at, "/readyz").0.contains("200") {
        assert!(Instant::now() < deadline, "a broken link is not seen");
        thread::sleep(Duration::from_millis(50));
    }
    let broken = get(&at, "/readyz").1;
    assert!(broken.contains("no link to") && broken.contains(&proxy.addr()), "{broken}");
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
    for text in [&metrics, &status.to_string(), &output.stdout, &output.stderr, &watched.stdout] {
        assert!(!text.contains(PASSWORD), "a password is shown: {text}");
    }
}

#[test]
fn a_daemon_shows_its_jobs() {
    let cluster = Cluster::builder(Engine::Valkey81).primaries(2).start().expect("the cluster starts");
    let (seed, state) = (cluster.seed(), tempfile::tempdir().expect("a folder"));
    let state = state.path().to_str().expect("a plain path");
    let args = ["serve", "--cluster", &seed, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"];
    let args: Vec<&str> = args.into_iter().chain(["--state-dir", state]).collect();
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
    daemon.terminate();
    daemon.wait(PATIENCE).expect("it ends").expect_code(0);
}

/// A server that hangs keeps its connections: nothing breaks, and all looks well.
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
        let words = format!("nothing heard of the {side} {}", server.addr());
        let why = loop {
            let (status, body) = get(&at, "/readyz");
            if status.contains("503") {
                break body;
            }
            assert!(Instant::now() < deadline, "it is said to be well");
            thread::sleep(Duration::from_millis(100));
        };
        assert!(why.contains(&words), "{why}");
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
