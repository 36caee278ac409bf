//! Syncs that run while clients write, and what must be true when they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, Record, tags_in};
use whimbrel_judge::compare::Comparison;
use whimbrel_judge::dataset::{Dataset, Scale, write_strings};
use whimbrel_judge::deployment::Deployment;
use whimbrel_lab::{Cluster, ClusterBuilder, Engine, Proxy};

use crate::binary::{Invocation, Output, Running};

/// Far more than any of these takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Keys that nobody writes to while the sync runs.
pub const KEYS: usize = 8_000;

/// A deployment whose servers answer.
pub fn deployment(addr: impl std::fmt::Display) -> Deployment {
    Deployment::at(addr).expect("the servers answer")
}

/// Three primaries with a replica each, which fail over within seconds, and not because a machine stands
/// still for less.
pub fn cluster(engine: Engine) -> ClusterBuilder {
    Cluster::builder(engine).primaries(3).replicas(1).node_timeout_ms(5_000)
}

/// Writes keys of every type, and [`KEYS`] strings.
pub fn fill(source: &Deployment) {
    Dataset::generate(7, Scale::Tiny)
        .with_databases(&[0])
        .write_to(source)
        .expect("the source takes the data");
    write_strings(source, KEYS).expect("the source takes the data");
}

/// Clients that write keys of every type, of which the first writes have been acknowledged.
pub fn writers(addresses: &[String], name: &str) -> ClusterWriters {
    let load = Load { clients: 8, prefix: format!("w:{name}"), ..Load::on(tags_in(0..16384, 56)) };
    let writers = ClusterWriters::start(addresses, &load);
    assert!(writers.wait_for(400, PATIENCE), "the writers do not come to work");
    writers
}

/// One sync, and the folder of its journal.
#[derive(Debug)]
pub struct Sync {
    args: Vec<String>,
    /// Where its journal is.
    pub state: tempfile::TempDir,
}

impl Sync {
    /// `whimbrel sync`, with more arguments.
    pub fn new(source: &str, target: &str, more: &[&str]) -> Sync {
        let args = ["sync", source, target, "--json", "--report", "1"];
        let patience: &[&str] = if more.contains(&"--retry-for") { &[] } else { &["--retry-for", "60s"] };
        Sync {
            args: args.iter().chain(patience).chain(more).map(ToString::to_string).collect(),
            state: tempfile::tempdir().expect("a folder for journals"),
        }
    }

    /// Starts it, with still more arguments.
    pub fn start(&self, more: &[&str]) -> Running {
        self.start_with(more, &[])
    }

    /// Starts it, with still more arguments and in an environment.
    pub fn start_with(&self, more: &[&str], environment: &[(&str, &str)]) -> Running {
        let args: Vec<&str> = self.args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let invocation = Invocation::new(&args).env("XDG_STATE_HOME", self.state.path()).timeout(PATIENCE);
        environment.iter().fold(invocation, |invocation, (name, value)| invocation.env(name, value)).spawn()
    }

    /// `whimbrel cutover` of it.
    pub fn cutover(&self, more: &[&str]) -> Output {
        self.asked_for_cutover(more).run()
    }

    /// The same under writers. What is compared while clients write may differ for longer on a busy machine
    /// than a cutover looks: then it is tried again.
    #[track_caller]
    pub fn cutover_under_writers(&self, more: &[&str]) -> Output {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.cutover(more);
            let differs = ["should hold", " differs"].iter().any(|words| output.stdout.contains(words));
            if output.code() == Some(0) || !differs || Instant::now() > deadline {
                return output;
            }
            eprintln!("not yet: {}", output.stdout);
        }
    }

    /// The same, without waiting for its end.
    pub fn start_cutover(&self, more: &[&str]) -> Running {
        self.asked_for_cutover(more).spawn()
    }

    fn asked_for_cutover(&self, more: &[&str]) -> Invocation {
        let args: Vec<&str> = ["cutover", "--json"].iter().chain(more).copied().collect();
        Invocation::new(&args).env("XDG_STATE_HOME", self.state.path()).timeout(PATIENCE)
    }

    /// Asks until the target is equal, which it may not be at once: slots may have to be gone through again.
    #[track_caller]
    pub fn cutover_without_fence(&self) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.cutover(&["--fence", "none", "--max-pause", "20s"]);
            if output.code() == Some(0) {
                return report(&output)["report"].clone();
            }
            eprintln!("not yet: {}", output.stdout);
            assert!(Instant::now() < deadline, "no cutover: {output:#?}");
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Has a thread end when it goes out of scope: also where an assertion fails before the thread is
/// waited for.
#[derive(Debug)]
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The last object that was printed.
#[track_caller]
pub fn report(output: &Output) -> Value {
    let last = output.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).next_back();
    last.unwrap_or_else(|| panic!("nothing in {output:#?}"))
}

/// Waits until a sync follows: the latest line says so.
#[track_caller]
pub fn wait_until_following(sync: &mut Running) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = sync.stdout();
        if output.lines().next_back().is_some_and(|line| line.contains("\"phase\":\"following\"")) {
            return;
        }
        assert!(sync.is_running(), "it ended: {output}\n{}", sync.stderr());
        assert!(Instant::now() < deadline, "it does not come to follow: {output}\n{}", sync.stderr());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Stops the writers, lets the sync come to their last write, ends it, and compares.
#[track_caller]
pub fn finish(
    job: &Sync,
    sync: Running,
    writers: ClusterWriters,
    source: &str,
    target: &str,
    comparison: &Comparison,
) {
    let pause = job.cutover_without_fence()["pause_ms"].clone();
    writers.wait_for(200, Duration::from_secs(5));
    let record = writers.stop();
    eprintln!("{}; writes paused for {pause} ms at the cutover", record.observed);
    job.cutover_without_fence();
    let output = stop(sync);
    assert_equal(&record, source, target, comparison);
    let report = report(&output);
    eprintln!("{}", report["report"]["counts"]);
    assert_eq!(report["report"]["snapshot_done"], true, "{report:#}");
}

/// A number of seconds from the environment: tests that are to last longer are given one.
pub fn seconds(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Database 0 of both sides, in full.
pub fn comparison() -> Comparison {
    Comparison::default().databases(&[(0, 0)]).tolerance_ms(1)
}

/// Ends a sync as Ctrl-C does.
#[track_caller]
pub fn stop(mut sync: Running) -> Output {
    sync.terminate();
    sync.wait(PATIENCE).expect("it ends").expect_code(130)
}

/// Both sides hold what was acknowledged to the writers, and nothing else.
#[track_caller]
pub fn assert_equal(record: &Record, source: &str, target: &str, comparison: &Comparison) {
    let (source, target) = (deployment(source), deployment(target));
    record.assert_kept(&source);
    record.assert_kept(&target);
    comparison.assert_equal(&source, &target);
}

/// Cuts a link for a while.
pub fn cut(proxy: &Proxy, time: Duration) {
    proxy.cut();
    thread::sleep(time);
    proxy.heal().expect("the proxy listens again");
}

/// The names of the keys that the status file of a sync lists as failed.
pub fn failures_of(sync: &Running) -> Vec<String> {
    let last = sync.stdout();
    let last = last.lines().next_back().expect("there is a line").to_owned();
    let line: Value = serde_json::from_str(&last).expect("it is JSON");
    let failures = line["status"]["failures"].as_array().cloned().unwrap_or_default();
    let names = failures.iter().filter_map(|failure| failure["key"].as_str());
    names.map(|name| name.trim_matches('"').to_owned()).collect()
}

/// Deletes keys, each at its owner.
pub fn delete(deployment: &Deployment, names: &[String]) {
    for name in names {
        let owner = deployment.owner_of(name.as_bytes()).expect("every slot has an owner");
        let mut connection = deployment.primaries()[owner].connect(0).expect("the server answers");
        redis::cmd("DEL").arg(name).exec(&mut connection).expect("deleted");
    }
}
