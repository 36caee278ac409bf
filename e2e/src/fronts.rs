//! `whimbrel front` between two deployments, as a process that can be killed and run again.

use std::time::Duration;

use serde_json::Value;
use whimbrel_lab::free_port;

use crate::binary::{Invocation, Output, Running};

/// How long it may take to begin or to end.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A front.
pub struct Front {
    /// What it is run with.
    pub args: Vec<String>,
    /// The process.
    pub running: Running,
    folder: tempfile::TempDir,
    port: u16,
}

impl Front {
    /// Between these, on a free port, with its state in a folder of its own. `more` are arguments besides.
    #[track_caller]
    pub fn between(source: &str, target: &str, more: &[&str]) -> Front {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port().expect("a port");
        let (listen, state) = (format!("127.0.0.1:{port}"), folder.path().to_str().expect("a name"));
        let args =
            ["front", "--listen", &listen, "--source", source, "--target", target, "--state-dir", state];
        let args = args.into_iter().chain(["--json"]).chain(more.iter().copied());
        let args: Vec<String> = args.map(str::to_owned).collect();
        let running = run(&args);
        Front { args, running, folder, port }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its state is.
    #[track_caller]
    pub fn state_dir(&self) -> &str {
        self.folder.path().to_str().expect("a name")
    }

    /// A client.
    #[track_caller]
    pub fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// Runs it again, after it has ended or was killed.
    #[track_caller]
    pub fn run_again(&mut self) {
        self.running = run(&self.args);
    }

    /// Kills it and runs it again.
    #[track_caller]
    pub fn kill_and_run_again(&mut self) {
        self.running.kill9();
        self.run_again();
    }

    /// `whimbrel front` with this subcommand, for this front.
    pub fn command(&self, what: &str) -> Output {
        Invocation::new(&["front", what, "--state-dir", self.state_dir(), "--json"]).run()
    }

    /// How it stands.
    #[track_caller]
    pub fn status(&self) -> Value {
        let output = self.command("status").expect_code(0);
        let line: Value = serde_json::from_str(&output.stdout).expect("JSON");
        line["status"].clone()
    }
}

#[track_caller]
fn run(args: &[String]) -> Running {
    let mut running = Invocation::new(args).spawn();
    assert!(running.wait_for_text("\"serving\"", PATIENCE), "{}{}", running.stdout(), running.stderr());
    running
}
