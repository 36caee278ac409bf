//! Jobs between two servers that take their time, and what `whimbrel jobs` says of them.

use serde_json::Value;
use whimbrel_judge::dataset::write_strings;
use whimbrel_lab::{Engine, Server};

use crate::binary::{Invocation, Output, Running};
use crate::syncing::{PATIENCE, deployment, fill};

/// Strings at the source. Jobs have to last while tests start many processes on a busy machine.
const KEYS: usize = 20_000;

/// A source with keys, a target, and a folder for jobs.
pub struct Slow {
    /// Where keys are.
    pub source: Server,
    /// Where they go.
    pub target: Server,
    /// Where their jobs are.
    pub folder: tempfile::TempDir,
}

impl Slow {
    /// Starts both.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "it starts servers")]
    pub fn new() -> Slow {
        let source = Server::builder(Engine::Redis70).start().expect("the source starts");
        let target = Server::builder(Engine::Valkey91).start().expect("the target starts");
        fill(&deployment(source.addr()));
        write_strings(&deployment(source.addr()), KEYS).expect("the source takes the data");
        Slow { source, target, folder: tempfile::tempdir().expect("a folder") }
    }

    /// The folder for jobs, as an option has it.
    pub fn state(&self) -> &str {
        self.folder.path().to_str().expect("a plain path")
    }

    /// A copy, a verification or a sync of this many keys a second, once it is at work.
    #[track_caller]
    pub fn start(&self, kind: &str, keys_per_second: u32, more: &[&str]) -> Running {
        let (from, to, rate) = (self.source.addr(), self.target.addr(), keys_per_second.to_string());
        let slowly = ["--state-dir", self.state(), "--rate-keys", &rate, "--report", "1", "--json"];
        let args = [&[kind, &from, &to][..], &slowly, more].concat();
        let mut running = Invocation::new(&args).timeout(PATIENCE).spawn();
        let progress = if kind == "verify" { "\"verify_progress\"" } else { "\"progress\"" };
        assert!(running.wait_for_text(progress, PATIENCE), "{}{}", running.stdout(), running.stderr());
        running
    }
}

/// `whimbrel jobs` with these words, about the jobs of a folder.
pub fn jobs(state: &str, args: &[&str]) -> Output {
    let args = [&["jobs"][..], args, &["--state-dir", state]].concat();
    Invocation::new(&args).timeout(PATIENCE).run()
}

/// All jobs of a folder, as JSON.
#[track_caller]
pub fn listed(state: &str) -> Vec<Value> {
    let text = jobs(state, &["--json"]).expect_code(0).stdout;
    text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}
