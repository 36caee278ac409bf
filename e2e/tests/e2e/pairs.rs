//! Every pair of servers in both directions, standalone and cluster, those from engines between the ends of
//! the range in `matrix`: a data set of every type arrives equal, by a comparison that shares no code with
//! whimbrel, and `verify` agrees.

use std::time::Duration;

use serde_json::Value;
use whimbrel_e2e::binary::{Invocation, Output};
use whimbrel_judge::compare::Comparison;
use whimbrel_judge::dataset::{Dataset, Scale};
use whimbrel_judge::deployment::Deployment;
use whimbrel_lab::{Cluster, Engine, Server};

/// Far more than any of these takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn run(args: &[&str], state: &tempfile::TempDir) -> Output {
    Invocation::new(args).env("XDG_STATE_HOME", state.path()).timeout(PATIENCE).run()
}

/// Lists, sets, sorted sets, hashes and streams: one of each.
const LARGE_COLLECTIONS: u64 = 5;

/// From this size on keys move in chunks: less than the smallest of the large collections takes.
const BIG_KEY: &str = "512KiB";

/// Servers that know expiries of hash fields.
fn holds_field_expiries(engine: Engine) -> bool {
    matches!(engine, Engine::Redis80 | Engine::Valkey91)
}

fn report_of(output: &Output, event: &str) -> Value {
    output
        .stdout
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|v| v["event"] == event)
        .unwrap_or_else(|| panic!("no {event} in {output:?}"))
}

/// One direction: copies, compares, verifies, and empties the target. At least `chunked` keys move in chunks.
fn copies(
    from: &(String, Deployment, Engine),
    to: &(String, Deployment, Engine),
    dbs: &[(i64, i64)],
    chunked: u64,
) {
    let state = tempfile::tempdir().expect("a folder for journals");
    let (source, target) = (from.0.as_str(), to.0.as_str());
    let db_flags: Vec<String> =
        dbs.iter().flat_map(|(s, t)| ["--db".to_owned(), format!("{s}:{t}")]).collect();
    let with_dbs = |args: &[&str]| -> Vec<String> {
        args.iter().map(ToString::to_string).chain(db_flags.iter().cloned()).collect()
    };
    let args = with_dbs(&["copy", source, target, "--json", "--functions", "--big-key", BIG_KEY]);
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>(), &state);
    let report = &report_of(&output, "report")["report"];
    assert!(report["counts"]["big"].as_u64() >= Some(chunked), "{report}");
    let lossy = holds_field_expiries(from.2) && !holds_field_expiries(to.2);
    let failures = report["failures"].as_array().expect("a list of failures").clone();
    if lossy {
        output.expect_code(5);
        assert!(!failures.is_empty());
    } else {
        output.expect_code(0);
        assert_eq!(failures, [] as [Value; 0]);
    }
    // What the target cannot hold are hashes with field expiries, and nothing else.
    let mut excepted = Vec::new();
    for failure in &failures {
        let key = failure["key"].as_str().expect("a key").trim_matches('"').to_owned();
        assert!(key.starts_with("hash:ttl:"), "{failure}");
        assert!(failure["reason"].as_str().is_some_and(|r| r.contains("cannot hold")), "{failure}");
        excepted.push(key);
    }
    Comparison::default().databases(dbs).functions().except(&excepted).assert_equal(&from.1, &to.1);

    let args = with_dbs(&["verify", source, target, "--json"]);
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>(), &state);
    let report = report_of(&output, "verify_report")["report"].clone();
    output.expect_code(if lossy { 6 } else { 0 });
    assert_eq!(report["missing"].as_u64(), Some(excepted.len() as u64), "{report}");
    assert_eq!(report["differing"].as_u64(), Some(0), "{report}");
    assert_eq!(report["extra"].as_u64(), Some(0), "{report}");
    empty(&to.1);
}

fn empty(deployment: &Deployment) {
    for primary in deployment.primaries() {
        let mut connection = primary.connect(0).expect("the target answers");
        redis::cmd("FLUSHALL").exec(&mut connection).expect("the target can be emptied");
        redis::cmd("FUNCTION").arg("FLUSH").exec(&mut connection).expect("the target has functions");
    }
}

/// From the oldest engine to all four, and large collections to the newest.
fn copies_to_all(oldest: Engine) {
    copies_from(oldest, Scale::Medium, &[Engine::Valkey91]);
}

/// From one engine to all four, without large collections.
fn small_copies_to_all(engine: Engine) {
    copies_from(engine, Scale::Small, &[]);
}

/// From one engine to all four, and the largest data set to each of them.
fn large_copies_to_all(engine: Engine) {
    copies_from(engine, Scale::Large, &Engine::ALL);
}

/// From one engine to all four. The data set with large collections goes to `large_to` as standalone servers,
/// and to a cluster of its own kind if that is one of them.
fn copies_from(engine: Engine, large_scale: Scale, large_to: &[Engine]) {
    let start = |engine| {
        let server = Server::builder(engine).start().expect("the server starts");
        let deployment = Deployment::at(server.addr()).expect("the server answers");
        (server.addr(), deployment, engine, server)
    };
    let start_cluster = |engine| {
        let cluster = Cluster::builder(engine).primaries(3).start().expect("the cluster starts");
        let deployment = Deployment::at(cluster.seed()).expect("the cluster answers");
        (cluster.seed(), deployment, engine, cluster)
    };
    let (addr, deployment, _, _large) = start(engine);
    let large = (addr, deployment, engine);
    let (addr, deployment, _, _small) = start(engine);
    let small = (addr, deployment, engine);
    let (addr, deployment, _, _cluster) = start_cluster(engine);
    let cluster = (addr, deployment, engine);
    for (source, scale) in [(&large.1, large_scale), (&small.1, Scale::Small), (&cluster.1, Scale::Small)] {
        let data = Dataset::generate(11, scale).with_functions();
        data.write_to(source).expect("the source takes the data");
    }
    for other in Engine::ALL {
        let (addr, deployment, _, _target) = start(other);
        let target = (addr, deployment, other);
        let is_large = large_to.contains(&other);
        let (to_server, chunked) = if is_large { (&large, LARGE_COLLECTIONS) } else { (&small, 0) };
        copies(to_server, &target, &[(0, 0), (1, 1), (9, 3)], chunked);
        copies(&cluster, &target, &[(0, 0)], 0);
        let (addr, deployment, _, _target) = start_cluster(other);
        let target = (addr, deployment, other);
        let (to_cluster, chunked) =
            if is_large && other == engine { (&large, LARGE_COLLECTIONS) } else { (&small, 0) };
        copies(to_cluster, &target, &[(0, 0)], chunked);
        copies(&cluster, &target, &[(0, 0)], 0);
    }
}

mod matrix {
    use whimbrel_lab::Engine;

    use super::large_copies_to_all;

    fn small_copies_to_all(engine: Engine) {
        super::small_copies_to_all(engine);
    }

    whimbrel_lab::for_each_engine! {
        on every:
            large_copies_to_all
    }

    whimbrel_lab::for_each_engine! {
        on Redis80 Valkey81:
            small_copies_to_all
    }
}

whimbrel_lab::for_each_engine! {
    on Redis70:
        copies_to_all
}

whimbrel_lab::for_each_engine! {
    on Valkey91:
        small_copies_to_all
}
