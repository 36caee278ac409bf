//! A cluster whose slots `whimbrel` moves while clients are at work, and everything that is looked at
//! afterwards.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_judge::cluster_writers::{ClusterWriters, Load, Record, tags_in};
use whimbrel_judge::compare::{Snapshot, diff};
use whimbrel_judge::deployment::Deployment;
use whimbrel_lab::{Cluster, ClusterBuilder, Engine};

use crate::binary::{Invocation, Output, Running};
use crate::shards::{self, Ranges};

/// Far more than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// What the names of the writers' keys begin with.
const WRITTEN: &str = "w:";

/// A cluster, and the folder of the jobs that move its slots.
pub struct Scene {
    /// The servers.
    pub cluster: Cluster,
    state: tempfile::TempDir,
}

/// How to start a [`Scene`].
pub struct SceneBuilder {
    cluster: ClusterBuilder,
    layout: Vec<Ranges>,
}

impl SceneBuilder {
    /// With the servers described by `change`.
    pub fn cluster(mut self, change: impl FnOnce(ClusterBuilder) -> ClusterBuilder) -> Self {
        self.cluster = change(self.cluster);
        self
    }

    /// Starts the servers.
    ///
    /// Panics when they do not start or do not agree.
    #[track_caller]
    pub fn start(self) -> Scene {
        let cluster = self.cluster.start().expect("the cluster starts");
        shards::lay_out(&cluster, &self.layout).expect("the slots can be laid out");
        let state = tempfile::Builder::new().prefix("whimbrel-e2e-").tempdir().expect("a folder for jobs");
        Scene { cluster, state }
    }
}

/// What a command that moved slots said at its end.
#[derive(Debug, Clone)]
pub struct MoveReport {
    /// The last JSON line, the report.
    pub report: Value,
    /// All that it wrote.
    pub output: Output,
}

impl Scene {
    /// A cluster with these slots for each primary, with append-only files, and this many replicas each.
    pub fn of(engine: Engine, replicas: usize, layout: &[Ranges]) -> SceneBuilder {
        let cluster = Cluster::builder(engine)
            .primaries(layout.len())
            .replicas(replicas)
            .arg("appendonly", "yes")
            .arg("appendfsync", "everysec");
        SceneBuilder { cluster, layout: layout.to_vec() }
    }

    /// The cluster as the comparisons see it.
    pub fn deployment(&self) -> Deployment {
        Deployment::at(self.cluster.seed()).expect("the cluster answers")
    }

    /// A file in the folder of the jobs.
    pub fn file(&self, name: &str) -> PathBuf {
        self.state.path().join(name)
    }

    /// Writes `keys` keys that nobody changes any more to the first node, which owns `slots`: under `tags`
    /// names for all of them.
    pub fn fill(&self, slots: RangeInclusive<u16>, tags: usize, keys: usize) {
        let tags = tags_in(slots, tags);
        let mut connection = self.cluster.connection_to(0);
        for chunk in (0..keys).collect::<Vec<_>>().chunks(500) {
            let mut pipeline = redis::pipe();
            for number in chunk {
                let key = format!("plain:{{{}}}:{number}", tags[number % tags.len()]);
                pipeline.cmd("SET").arg(key).arg(format!("value of {number}")).ignore();
            }
            pipeline.exec(&mut connection).expect("the source takes the data");
        }
    }

    /// Writers with keys in these slots and in a few others.
    pub fn writers(&self, slots: RangeInclusive<u16>) -> ClusterWriters {
        let mut tags = tags_in(slots, 48);
        tags.extend(tags_in(0..16384, 8));
        self.write(&Load::on(tags))
    }

    /// Writers with a load of one's own.
    pub fn write(&self, load: &Load) -> ClusterWriters {
        let load = Load { prefix: format!("{WRITTEN}{}", load.prefix), ..load.clone() };
        ClusterWriters::start(&shards::addresses(&self.cluster), &load)
    }

    /// Everything but the writers' keys, as it is now. Nothing else may write.
    pub fn unwritten(&self) -> Snapshot {
        let mut all = shards::keys(&self.cluster).expect("the cluster can be read");
        all.keys.retain(|key, _| !key.starts_with(WRITTEN.as_bytes()));
        all
    }

    /// Panics unless everything but the writers' keys is as it was.
    #[track_caller]
    pub fn assert_unchanged(&self, before: &Snapshot) {
        self.assert_unchanged_within(before, 1);
    }

    /// Likewise, where keys may expire at another time: by this many milliseconds at most.
    #[track_caller]
    pub fn assert_unchanged_within(&self, before: &Snapshot, expiry_ms_max: u64) {
        let found = diff(before, &self.unwritten(), expiry_ms_max);
        assert!(found.is_empty(), "{} differences, such as {:?}", found.len(), &found[..found.len().min(10)]);
    }

    /// Panics if a server has ended by itself.
    #[track_caller]
    pub fn assert_all_run(&self) {
        if let Some(node) = self.cluster.nodes().iter().find(|node| !node.is_running()) {
            panic!("{} has ended", node.addr());
        }
    }

    /// Panics unless all servers run, what was acknowledged is there, and the cluster is sound.
    #[track_caller]
    pub fn assert_kept(&self, record: &Record) {
        self.assert_all_run();
        shards::assert_sound(&self.cluster);
        record.assert_kept(&self.deployment());
    }

    /// Waits until no node has keys that it does not show: DBSIZE counts those too. Nothing may write.
    ///
    /// Panics if it never comes to that.
    #[track_caller]
    pub fn assert_nothing_hidden(&self) {
        let deadline = Instant::now() + PATIENCE;
        for node in self.cluster.nodes() {
            let number = |command: &[&str]| match node.call(command) {
                redis::Value::Int(number) => usize::try_from(number).expect("a number"),
                redis::Value::Array(items) => items.len(),
                other => panic!("{other:?}"),
            };
            loop {
                let (all, shown) = (number(&["DBSIZE"]), number(&["KEYS", "*"]));
                if all == shown {
                    break;
                }
                assert!(Instant::now() < deadline, "{} has {all} keys and shows {shown}", node.addr());
                thread::sleep(Duration::from_millis(100));
            }
        }
    }

    /// A command with the cluster's address as its first argument, this scene's folder for jobs, and JSON.
    pub fn command(&self, name: &str, args: &[&str]) -> Invocation {
        let (seed, state) = (self.cluster.seed(), self.state.path().to_string_lossy().into_owned());
        let mut all = vec![name, seed.as_str()];
        all.extend(args);
        all.extend(["--state-dir", &state, "--json"]);
        Invocation::new(&all).timeout(PATIENCE)
    }

    /// Moves slots to a node, without asking. Whimbrel's own method may pause for longer than usual, unless
    /// `more` says how long: a busy machine must not fail a test that is about something else.
    pub fn reshard(&self, slots: &str, to: usize, more: &[&str]) -> Invocation {
        let mut args = vec!["--slots", slots, "--to", self.cluster.node_id(to), "--yes"];
        args.extend(more);
        if more.contains(&"external") && !more.contains(&"--max-pause") {
            args.extend(["--max-pause", "5s"]);
        }
        self.command("reshard", &args)
    }

    /// A command about jobs.
    pub fn jobs(&self, args: &[&str]) -> Invocation {
        let state = self.state.path().to_string_lossy().into_owned();
        let mut all = vec!["jobs"];
        all.extend(args);
        all.extend(["--state-dir", &state, "--json"]);
        Invocation::new(&all).timeout(PATIENCE)
    }

    /// The jobs that have not ended, by name.
    ///
    /// Panics if they cannot be listed.
    #[track_caller]
    pub fn unfinished(&self) -> Vec<String> {
        let output = self.jobs(&["list"]).run().expect_code(0);
        output
            .stdout
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|job| job["ended"] == false)
            .filter_map(|job| job["id"].as_str().map(str::to_owned))
            .collect()
    }

    /// Resumes what is unfinished until nothing is; on any node of the cluster that runs.
    ///
    /// Panics if it is still unfinished when that has been tried for long: until the nodes agree after a
    /// failover it may be refused.
    #[track_caller]
    pub fn resume(&self) {
        let seed = self.cluster.seed();
        let deadline = Instant::now() + PATIENCE;
        let mut last = None;
        while !self.unfinished().is_empty() {
            assert!(Instant::now() < deadline, "still unfinished after resuming: {last:#?}");
            last = Some(self.jobs(&["resume", "--cluster", &seed]).run());
            thread::sleep(Duration::from_millis(300));
        }
    }
}

impl MoveReport {
    /// Waits for the end of a command that must succeed, and finds its report.
    ///
    /// Panics if it ends otherwise or has none.
    #[track_caller]
    pub fn by(mut running: Running) -> Self {
        match running.wait(PATIENCE) {
            Some(output) => Self::of(output.expect_code(0)),
            None => {
                let output = running.kill9();
                panic!("still running after {PATIENCE:?}\n{}\n{}", output.stdout, output.stderr);
            }
        }
    }

    /// Finds the report in what a command wrote.
    ///
    /// Panics if there is none.
    #[track_caller]
    pub fn of(output: Output) -> Self {
        let mut lines = output.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let report = lines.rfind(|line| line["event"] == "report");
        match report {
            Some(report) => Self { report, output },
            None => panic!("no report in\n{}\n{}", output.stdout, output.stderr),
        }
    }

    /// Panics unless every job is done and was verified.
    #[track_caller]
    pub fn assert_done(&self) {
        let jobs = self.report["jobs"].as_array().expect("a report lists its jobs");
        assert!(!jobs.is_empty() && jobs.iter().all(|job| job["ending"] == "done"), "{:#}", self.report);
        assert_eq!(self.report["verified"], true, "{:#}", self.report);
        assert_eq!(self.report["exit"], 0, "{:#}", self.report);
    }

    /// Why the first job that was not done was not.
    pub fn reason(&self) -> String {
        let jobs = self.report["jobs"].as_array().cloned().unwrap_or_default();
        jobs.iter().find_map(|job| job["reason"].as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// Waits until a command that was started with `--report 1` says that a job is in this phase.
///
/// Panics if it ends before, or never says so.
#[track_caller]
pub fn wait_for_phase(running: &mut Running, phase: &str) {
    let words = format!("\"phase\":\"{phase}\"");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = running.stdout();
        // Only the last line shows where it is now.
        if output.lines().next_back().is_some_and(|line| line.contains(&words)) {
            return;
        }
        assert!(running.is_running(), "it ended before {phase}:\n{output}\n{}", running.stderr());
        assert!(Instant::now() < deadline, "it never came to {phase}:\n{output}\n{}", running.stderr());
        thread::sleep(Duration::from_millis(20));
    }
}

/// A number from the environment, for longer runs than usual.
pub fn runs(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
