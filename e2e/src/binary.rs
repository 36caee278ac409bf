//! Runs the real `whimbrel`.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

/// How long [`run`] waits before it kills the process.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Path of the binary: `WHIMBREL_BIN`, or the one beside the running test, built first if it is missing
/// or older than its sources.
///
/// Panics when it cannot be built.
pub fn whimbrel() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match env::var_os("WHIMBREL_BIN") {
        Some(path) => PathBuf::from(path),
        None => built(),
    })
}

/// What a finished process left.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Everything it wrote to standard output; invalid UTF-8 is replaced.
    pub stdout: String,
    /// The same of standard error.
    pub stderr: String,
}

impl Output {
    /// The exit code; none if a signal ended the process.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Panics with all output unless the exit code is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.code(),
            Some(code),
            "ended with {}\n--- stdout\n{}\n--- stderr\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }
}

/// Runs `whimbrel` with these arguments to its end.
///
/// Panics when it cannot be started or takes longer than [`RUN_TIMEOUT`].
#[track_caller]
pub fn run<A: AsRef<OsStr>>(args: &[A]) -> Output {
    Invocation::new(args).run()
}

/// Starts `whimbrel` with these arguments.
///
/// Panics when it cannot be started.
#[track_caller]
pub fn spawn<A: AsRef<OsStr>>(args: &[A]) -> Running {
    Invocation::new(args).spawn()
}

/// A call of `whimbrel` with more than arguments.
#[derive(Clone, Debug)]
pub struct Invocation {
    binary: Option<PathBuf>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    timeout: Duration,
}

impl Invocation {
    /// With these arguments, the environment of the test, and [`RUN_TIMEOUT`]. What asks before it changes
    /// data is agreed to.
    pub fn new<A: AsRef<OsStr>>(args: &[A]) -> Self {
        let mut invocation = Self::unasked(args);
        if would_ask(&invocation.args) {
            invocation.args.push("--yes".into());
        }
        invocation
    }

    /// As [`Self::new`], with nothing agreed to.
    pub fn unasked<A: AsRef<OsStr>>(args: &[A]) -> Self {
        let args = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
        Self { binary: None, args, env: Vec::new(), dir: None, timeout: RUN_TIMEOUT }
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs this binary in the place of the one under test.
    pub fn binary(mut self, binary: Option<&Path>) -> Self {
        self.binary = binary.map(Path::to_owned);
        self
    }

    /// Runs in this folder.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Sets how long [`Self::run`] waits.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs to the end.
    ///
    /// Panics when the process cannot be started or takes longer than the timeout, after killing it.
    #[track_caller]
    pub fn run(&self) -> Output {
        let mut running = self.spawn();
        match running.wait(self.timeout) {
            Some(output) => output,
            None => {
                let output = running.kill9();
                panic!(
                    "whimbrel {:?} was still running after {:?}\n--- stdout\n{}\n--- stderr\n{}",
                    self.args, self.timeout, output.stdout, output.stderr
                );
            }
        }
    }

    /// Starts the process and captures its output in the background.
    ///
    /// Panics when it cannot be started.
    #[track_caller]
    pub fn spawn(&self) -> Running {
        let mut command = Command::new(self.binary.as_deref().unwrap_or_else(|| whimbrel()));
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        Running::start(command)
    }
}

/// Whether `whimbrel` asks with these arguments, which have no answer: those of the commands that move slots,
/// and of `repair`, are left to their tests.
fn would_ask(args: &[OsString]) -> bool {
    let has = |what: &str| args.iter().any(|arg| arg == what);
    let word = |i: usize| args.get(i).and_then(|arg| arg.to_str()).unwrap_or_default();
    let changes = match (word(0), word(1)) {
        ("cutover", _) | ("front", "start" | "reverse" | "finish") | ("fleet", "drain" | "leave") => true,
        ("sync", _) => has("--mirror"),
        ("copy", _) => has("--replace"),
        _ => false,
    };
    changes && !["--dry-run", "--yes", "-y", "--help"].into_iter().any(has)
}

/// A process that may still run. It is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Capture,
    stderr: Capture,
}

impl Running {
    #[track_caller]
    fn start(mut command: Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => panic!("cannot start {}: {error}", Path::new(command.get_program()).display()),
        };
        let stdout = Capture::of(child.stdout.take().expect("stdout is piped"));
        let stderr = Capture::of(child.stderr.take().expect("stderr is piped"));
        Self { child, stdout, stderr }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill9(&mut self) -> Output {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let status = self.child.wait().expect("a child can be waited for");
        self.output(status)
    }

    /// Sends SIGINT, as Ctrl-C does, and does not wait.
    pub fn interrupt(&mut self) {
        self.signal(Signal::SIGINT);
    }

    /// Sends SIGTERM and does not wait.
    pub fn terminate(&mut self) {
        self.signal(Signal::SIGTERM);
    }

    /// Stops it as SIGSTOP does: it keeps its files and connections, and does nothing.
    pub fn suspend(&mut self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Has it go on after [`Running::suspend`].
    pub fn resume(&mut self) {
        self.signal(Signal::SIGCONT);
    }

    /// Waits for its end; none if it still runs after `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Option<Output> {
        let status = self.wait_status(timeout)?;
        Some(self.output(status))
    }

    /// Waits until standard output or error holds `text`; says whether it does before the process ends
    /// or `timeout` has passed.
    pub fn wait_for_text(&mut self, text: &str, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            // Before looking: what is written before the end must be seen after it.
            let ended = self.try_wait().is_some();
            if ended {
                self.stdout.finish();
                self.stderr.finish();
            }
            if self.stdout().contains(text) || self.stderr().contains(text) {
                return true;
            }
            if ended || Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn signal(&mut self, signal: Signal) {
        // Once waited for, the id may belong to another process.
        if self.try_wait().is_none() {
            let pid = i32::try_from(self.child.id()).expect("process ids are positive 32-bit integers");
            kill(Pid::from_raw(pid), signal).expect("a running child can be signalled");
        }
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    fn wait_status(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.try_wait() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn output(&mut self, status: ExitStatus) -> Output {
        self.stdout.finish();
        self.stderr.finish();
        Output { status, stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.try_wait();
        let output = match ended {
            Some(status) => self.output(status),
            None => self.kill9(),
        };
        // A test that fails because another process of it did says why.
        if thread::panicking() {
            let how = if ended.is_some() { output.status.to_string() } else { "still running".to_owned() };
            let Output { stdout, stderr, .. } = output;
            eprintln!("a process of this test, {how}\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
        }
    }
}

/// Reads a pipe to its end in the background.
#[derive(Debug)]
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                shared.lock().extend_from_slice(&chunk[..count]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock()).into_owned()
    }

    /// Waits until the pipe is at its end.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader of a pipe does not panic");
        }
    }
}

/// The binary of the profile that the running test was built with.
fn built() -> PathBuf {
    let folder = profile_folder();
    let binary = folder.join("whimbrel");
    if !is_current(&binary) {
        build(&folder);
    }
    assert!(binary.is_file(), "cargo built no {}", binary.display());
    binary
}

/// Where cargo puts the binaries of this profile: tests lie in its subfolder `deps`.
fn profile_folder() -> PathBuf {
    let own = env::current_exe().expect("a process knows its own path");
    match own.parent() {
        Some(deps) if deps.ends_with("deps") => deps.parent().expect("deps has a parent").to_owned(),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug"),
    }
}

/// Whether the binary is newer than all sources that cargo noted it was built from.
fn is_current(binary: &Path) -> bool {
    let modified = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let (Some(built), Ok(noted)) = (modified(binary), fs::read_to_string(binary.with_extension("d"))) else {
        return false;
    };
    let sources = noted.split_once(": ").map_or("", |(_, sources)| sources);
    // A path with an escaped space falls apart here and leads to a build too many, no worse.
    sources.split_whitespace().all(|source| modified(Path::new(source)).is_some_and(|source| source <= built))
}

fn build(folder: &Path) {
    let target = folder.parent().expect("a profile folder has a parent");
    let profile = match folder.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--package", "whimbrel", "--bin", "whimbrel", "--profile", profile]);
    command.arg("--target-dir").arg(target).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    // Set by the cargo that runs this test and about this package: build scripts would notice and run again.
    let inherited = env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    }) {
        command.env_remove(name);
    }
    let status = command.env_remove("LD_LIBRARY_PATH").status().expect("cargo can be started");
    assert!(status.success(), "building whimbrel ended with {status}");
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command)
    }

    #[test]
    fn output_and_code_are_captured() {
        let mut running = shell("echo out; echo err >&2; exit 7");
        let output = running.wait(PATIENCE).expect("it ends");
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
        output.expect_code(7);
    }

    #[test]
    fn output_larger_than_a_pipe_does_not_block() {
        let output = shell("head -c 1000000 /dev/zero").wait(PATIENCE).expect("it ends");
        assert_eq!(output.stdout.len(), 1_000_000);
    }

    #[test]
    fn kill9_ends_what_ignores_signals() {
        let mut running = shell("trap '' INT TERM; echo ready; while :; do sleep 0.1; done");
        assert!(running.wait_for_text("ready", PATIENCE));
        running.interrupt();
        running.terminate();
        assert!(running.wait(Duration::from_millis(50)).is_none());
        assert_eq!(running.kill9().status.signal(), Some(9));
        assert!(!running.is_running());
    }

    #[test]
    fn interrupt_arrives() {
        let mut running =
            shell("trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done");
        assert!(running.wait_for_text("ready", PATIENCE));
        running.interrupt();
        let output = running.wait(PATIENCE).expect("it ends");
        assert_eq!(output.stdout, "ready\ninterrupted\n");
        output.expect_code(3);
    }

    #[test]
    fn waiting_for_text_ends_with_the_process() {
        let mut running = shell("echo this");
        assert!(!running.wait_for_text("that", PATIENCE));
        assert!(running.wait_for_text("this", PATIENCE));
    }
}
