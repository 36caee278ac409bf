//! Starting and ending one child process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use parking_lot::{Mutex, MutexGuard};

use crate::error::LabError;

const POLL: Duration = Duration::from_millis(5);

/// A child process that is killed on drop.
pub(crate) struct Process {
    child: Mutex<Child>,
    pid: u32,
}

impl Process {
    /// Starts `command` as the leader of a process group of its own: what it forks can be killed along with
    /// it, and a Ctrl-C on the terminal does not reach it.
    pub(crate) fn spawn(mut command: Command) -> io::Result<Self> {
        command.process_group(0);
        let child = Spawner::spawn(command)?;
        Ok(Self { pid: child.id(), child: Mutex::new(child) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process has not ended yet.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Sends a signal, if the process still runs.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), LabError> {
        let mut child = self.child();
        self.signal_held(&mut child, |pid| kill(pid, signal))
    }

    /// SIGKILL to the process and whatever it forked, then waits for its end.
    pub(crate) fn kill9(&self) -> Result<(), LabError> {
        let mut child = self.child();
        self.signal_held(&mut child, |pid| killpg(pid, Signal::SIGKILL))?;
        child.wait().map_err(|source| LabError::io(format!("wait for process {}", self.pid), source))?;
        Ok(())
    }

    /// Waits until the process has ended by itself; false if it has not in this time.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        while self.is_running() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }

    /// With the child locked and not yet waited for, its id cannot have passed on to another process.
    fn signal_held(&self, child: &mut Child, send: impl Fn(Pid) -> nix::Result<()>) -> Result<(), LabError> {
        if !matches!(child.try_wait(), Ok(None)) {
            return Ok(());
        }
        let pid = Pid::from_raw(self.pid.cast_signed());
        send(pid).map_err(|source| LabError::Signal { pid: self.pid, source })
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        // A panic elsewhere leaves the child as it was.
        self.child.lock()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing is left to be done if the kernel refuses.
        let _ = self.kill9();
    }
}

/// Starts every child from one thread that lives as long as this process.
///
/// `setpriv` asks the kernel to kill the child when its parent dies. For the kernel the parent is the
/// *thread* that started it, and threads of tests and thread pools come and go.
struct Spawner {
    requests: mpsc::Sender<Request>,
    has_setpriv: bool,
}

struct Request {
    command: Command,
    answer: mpsc::Sender<io::Result<Child>>,
}

static SPAWNER: LazyLock<Spawner> = LazyLock::new(|| {
    let (requests, inbox) = mpsc::channel::<Request>();
    thread::spawn(move || {
        for mut request in inbox {
            // The caller is waiting for the answer.
            let _ = request.answer.send(request.command.spawn());
        }
    });
    let has_setpriv = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    Spawner { requests, has_setpriv }
});

impl Spawner {
    fn spawn(command: Command) -> io::Result<Child> {
        let (answer, reply) = mpsc::channel();
        let request = Request { command, answer };
        SPAWNER.requests.send(request).map_err(|_| io::Error::other("the spawning thread is gone"))?;
        reply.recv().map_err(|_| io::Error::other("the spawning thread is gone"))?
    }
}

/// A command that runs `program`, and dies with this process if `setpriv` is there to arrange it.
pub(crate) fn command(program: &std::path::Path) -> Command {
    if SPAWNER.has_setpriv {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}
