//! `whimbrel demo console`: a real cluster under load, and the console to look at it and to move its slots.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value as Json;
use whimbrel_core::units::format_count;
use whimbrel_lab::Engine;
use whimbrel_loadgen::child::{self, Ended};
use whimbrel_loadgen::interrupt::Interrupt;
use whimbrel_loadgen::program::{full_version, last_words};
use whimbrel_loadgen::rebalance::clients::{Clients, Met, READERS, WRITERS, Wires};
use whimbrel_loadgen::rebalance::keys::Keys;

use crate::reshard::{Proof, add, begin, map_of};
use crate::stage::{Outcome, duration, own_binary, print};

/// How long the daemon may take until its console listens, and to stop.
const START_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// What jobs may take to be finished that were under way at the end.
const FINISH_WITHIN: Duration = Duration::from_secs(600);

const POLL_PERIOD: Duration = Duration::from_millis(200);

/// Shows it until the user stops it, or for `time`. Everything that was started is gone afterwards.
///
/// # Errors
/// When the servers are not on this machine or go away, or something of our own fails.
pub fn show(engine: Engine, keys: u64, time: Duration, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let keys = Keys::new(keys);
    print(&format!(
        "The console, before a real cluster ({}): three primaries share {} keys, a fourth is\n\
         empty, each has a replica. All of it happens on loopback; servers and files are gone when it \
         ends.\n",
        full_version(engine),
        format_count(keys.total)
    ))?;
    let (cluster, map) = begin(engine, keys, interrupt)?;
    print(&format!("2. {WRITERS} clients write and {READERS} read, 4,000 commands a second."))?;
    let clients = Clients::start(keys, &map);
    let scratch = tempfile::Builder::new().prefix("whimbrel-demo-").tempdir()?;
    let state = scratch.path().join("state");
    let token = token(&state)?;
    let mut daemon = Daemon::start(&cluster.seed(), scratch.path(), &state)?;
    let url = daemon.console(interrupt)?;
    print(&format!(
        "3. Open this in a browser on this machine:\n\n   {url}#token={token}\n\n   Plan a rebalance that \
         uses the empty primary, approve it, and watch. Ctrl-C ends it, and\n   proves that nothing was \
         lost; after {} it ends by itself.",
        duration(time)
    ))?;
    let (began, mut all, mut commands) = (Instant::now(), Met::default(), 0);
    while !interrupt.is_seen() && began.elapsed() < time {
        thread::sleep(POLL_PERIOD);
        daemon.check()?;
        let met = clients.met();
        commands += met.took_us.len() as u64;
        add(&mut all, met);
    }
    daemon.stop()?;
    // What was asked to stop has to be seen once more to end this.
    let unasked = Interrupt::never();
    finish(&state, &unasked)?;
    let (written, rest) = clients.stop()?;
    commands += rest.took_us.len() as u64;
    add(&mut all, rest);
    print("\n4. The proof:")?;
    let mut proof = Proof { is_good: true };
    proof.writes(keys, &written, all.acknowledged, &mut Wires::new(map))?;
    proof.rest(&cluster, &map_of(&cluster)?, keys, &unasked)?;
    proof.clients(&all, commands)?;
    for node in cluster.nodes() {
        node.stop()?;
    }
    print("\nAll servers are stopped.")?;
    Ok(if proof.is_good { Outcome::Proven } else { Outcome::Different })
}

/// A token of an administrator.
fn token(state: &Path) -> anyhow::Result<String> {
    let mut command = own_binary()?;
    command.args(["token", "add", "demo", "--role", "administer", "--state-dir"]).arg(state);
    let output = command.stdin(Stdio::null()).output().context("make a token")?;
    ensure!(output.status.success(), "no token: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Jobs that were under way are finished, as a user would have it done.
fn finish(state: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut command = own_binary()?;
    command.args(["jobs", "resume", "--state-dir"]).arg(state);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match child::run(&mut command, Some(FINISH_WITHIN), interrupt)? {
        Ended::Exited { status, .. } if status.success() => Ok(()),
        Ended::Exited { status, .. } => bail!("what was under way could not be finished: {status}"),
        Ended::TimedOut => bail!("what was under way was not finished within {}", duration(FINISH_WITHIN)),
    }
}

/// `whimbrel serve`, with its console. Killed on drop.
struct Daemon {
    process: Child,
    output: std::path::PathBuf,
}

impl Daemon {
    fn start(seed: &str, scratch: &Path, state: &Path) -> anyhow::Result<Daemon> {
        let output = scratch.join("output");
        let mut command = own_binary()?;
        command.args(["serve", "--cluster", seed, "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]);
        command.args(["--json", "--method", "external", "--batch-keys", "20000", "--state-dir"]).arg(state);
        let file = File::create(&output)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // A Ctrl-C on the terminal is for this process, which stops the daemon when it is its turn.
        command.process_group(0);
        Ok(Daemon { process: command.spawn().context("start whimbrel serve")?, output })
    }

    /// Where its console is, once it says so.
    fn console(&mut self, interrupt: &Interrupt) -> anyhow::Result<String> {
        let until = Instant::now() + START_WITHIN;
        while Instant::now() < until {
            interrupt.check()?;
            let text = fs::read_to_string(&self.output)?;
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
            if let Some(url) = lines.filter_map(|line| line["url"].as_str().map(str::to_owned)).next() {
                return Ok(url);
            }
            self.check()?;
            thread::sleep(POLL_PERIOD);
        }
        bail!("whimbrel serve has no console after {}", duration(START_WITHIN))
    }

    /// Whether it still runs.
    fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("whimbrel serve has ended ({status}): {}", last_words(&fs::read_to_string(&self.output)?));
        }
        Ok(())
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        if self.process.try_wait()?.is_none() {
            // Not waited for yet, so the id is still its own.
            kill(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGTERM)?;
        }
        let until = Instant::now() + STOP_WITHIN;
        while self.process.try_wait()?.is_none() {
            ensure!(Instant::now() < until, "whimbrel serve does not stop");
            thread::sleep(POLL_PERIOD);
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
