//! Runs one command: for a bounded time, and with what it prints bounded too.
//!
//! ```text
//!  sh -c COMMAND, in a process group of its own
//!    stdin ◀── one JSON document; a command that does not read it is none the worse
//!    stdout, stderr ──▶ one pipe, read to its end: the last 4 KiB are kept
//! ```
//!
//! It has ended when the shell has. What it has left in the background goes on, and holds nothing up although
//! it may keep the pipe open. When its time is over, all of its process group is killed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::store::HookEnd;

/// How much is kept of what a command prints last, in bytes.
const OUTPUT_BYTES_MAX: usize = 4 << 10;

/// What is read at once, in bytes.
const READ_BYTES: usize = 16 << 10;

/// What a pipe can still hold when its writer has ended, in bytes: that much is read then, at most.
const PIPE_BYTES: usize = 64 << 10;

/// How long something may take to come out of the pipe when the shell has ended. Longer only if the pipe is
/// still open.
const LAST_WITHIN: Duration = Duration::from_millis(100);

/// How long a process may take to be gone that was killed.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// Variables of ours, which a command does not inherit: passwords may be in them.
const OWN_VARIABLES: &str = "WHIMBREL_";

/// How a command ended, and the last that it printed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) end: HookEnd,
    pub(super) output: String,
}

/// Runs a command for `limit` at most. It finds `environment` in its environment, and nothing else of ours,
/// and `input` on its standard input. Dropped, it kills the command.
pub(super) async fn run(
    command: &str,
    environment: &[(&str, String)],
    input: &[u8],
    limit: Duration,
) -> Ended {
    let (mut group, mut output) = match begin(command, environment) {
        Ok(begun) => begun,
        Err(e) => return Ended { end: HookEnd::NotRun { why: e.to_string() }, output: String::new() },
    };
    let mut tail = Tail::default();
    let outcome = timeout(limit, attend(&mut group.0, &mut output, input, &mut tail)).await;
    let end = match outcome {
        Ok(Ok(status)) => ended(status),
        Ok(Err(e)) => HookEnd::NotRun { why: e.to_string() },
        Err(_) => {
            group.kill();
            if timeout(KILLED_WITHIN, group.0.wait()).await.is_err() {
                tracing::warn!("a hook was killed, and is not gone");
            }
            let after_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            HookEnd::TimedOut { after_ms }
        }
    };
    read_rest(&mut output, &mut tail).await;
    Ended { end, output: tail.text() }
}

/// A process that leads a group of its own. What is still running of the group when this is dropped before
/// the process was waited for is killed.
struct Group(Child);

impl Group {
    fn kill(&self) {
        // Until it is waited for, no other process has its id.
        let id = self.0.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id
            && let Err(error) = killpg(Pid::from_raw(id), Signal::SIGKILL)
        {
            tracing::debug!(%error, "a hook could not be killed");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn begin(command: &str, environment: &[(&str, String)]) -> io::Result<(Group, pipe::Receiver)> {
    let (reader, writer) = io::pipe()?;
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(command).process_group(0);
    shell.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(OWN_VARIABLES.as_bytes()) {
            shell.env_remove(name);
        }
    }
    // A zero would end the text for the system.
    shell.envs(environment.iter().map(|(name, value)| (name, value.replace('\0', ""))));
    let mut shell = Command::from(shell);
    let child = shell.kill_on_drop(true).spawn()?;
    let group = Group(child);
    // With it our own ends of the pipe that are written to are closed: else it would have no end.
    drop(shell);
    Ok((group, pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?))
}

/// Gives it its input and takes its output until it has ended.
async fn attend(
    child: &mut Child,
    output: &mut pipe::Receiver,
    input: &[u8],
    tail: &mut Tail,
) -> io::Result<ExitStatus> {
    let giving = give(child.stdin.take(), input);
    tokio::pin!(giving);
    let mut buffer = vec![0; READ_BYTES];
    let (mut is_given, mut is_open) = (false, true);
    loop {
        tokio::select! {
            status = child.wait() => return status,
            () = &mut giving, if !is_given => is_given = true,
            read = output.read(&mut buffer), if is_open => match read {
                Ok(0) | Err(_) => is_open = false,
                Ok(n) => tail.push(&buffer[..n]),
            },
        }
    }
}

/// A command that does not read its input closes it, or ends before: that is its own business.
async fn give(stdin: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut stdin) = stdin
        && let Err(error) = stdin.write_all(input).await
    {
        tracing::debug!(%error, "a hook does not read what it is given");
    }
}

/// What was printed last. Something in the background may print for ever.
async fn read_rest(output: &mut pipe::Receiver, tail: &mut Tail) {
    let mut buffer = vec![0; READ_BYTES];
    let mut left = PIPE_BYTES;
    while left > 0 {
        match timeout(LAST_WITHIN, output.read(&mut buffer)).await {
            Ok(Ok(n)) if n > 0 => {
                tail.push(&buffer[..n]);
                left = left.saturating_sub(n);
            }
            _ => break,
        }
    }
}

fn ended(status: ExitStatus) -> HookEnd {
    match (status.code(), status.signal()) {
        (Some(0), _) => HookEnd::Succeeded,
        (Some(code), _) => HookEnd::Failed { code },
        (None, signal) => HookEnd::Killed { signal: signal.unwrap_or_default() },
    }
}

/// The end of what was printed.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let over = self.bytes.len().saturating_sub(OUTPUT_BYTES_MAX);
        if over > 0 {
            self.bytes.drain(..over);
            self.is_cut = true;
        }
    }

    /// As text for people, with nothing in it that a terminal would take for an order.
    pub(super) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let shown = text.trim_end().chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control());
        let cut = if self.is_cut { "…" } else { "" };
        cut.chars().chain(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Far more than any of these takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn run_for(command: &str, limit: Duration) -> Ended {
        let environment = [("WHIMBREL_EVENT", "switch".to_owned())];
        run(command, &environment, b"{\"event\":\"switch\"}\n", limit).await
    }

    async fn outcome(command: &str) -> (HookEnd, String) {
        let Ended { end, output } = run_for(command, PATIENCE).await;
        (end, output)
    }

    fn printed(text: &str) -> (HookEnd, String) {
        (HookEnd::Succeeded, text.to_owned())
    }

    #[tokio::test]
    async fn it_is_given_the_event_and_what_it_prints_is_kept_in_order() {
        assert_eq!(outcome("echo $WHIMBREL_EVENT; echo no >&2; cat").await, {
            printed("switch\nno\n{\"event\":\"switch\"}")
        });
        assert_eq!(outcome("exit 3").await, (HookEnd::Failed { code: 3 }, String::new()));
        assert_eq!(outcome("kill -9 $$").await.0, HookEnd::Killed { signal: 9 });
        assert_eq!(outcome("no-such-command-anywhere").await.0, HookEnd::Failed { code: 127 });
        assert_eq!(outcome("printf 'a\\033[2Jb\\000c\\377'").await, printed("a[2Jbc\u{fffd}"));
    }

    #[tokio::test]
    async fn megabytes_are_read_and_the_last_of_them_kept() {
        let (end, output) = outcome("yes 0123456789 | head -c 20000000; echo; echo last").await;
        assert_eq!(end, HookEnd::Succeeded);
        assert!(output.len() <= OUTPUT_BYTES_MAX + '…'.len_utf8(), "{}", output.len());
        assert!(output.starts_with('…') && output.ends_with("last"), "{output}");
    }

    #[tokio::test]
    async fn who_reads_nothing_or_closes_everything_is_none_the_worse() {
        // More than a pipe holds: the writing breaks off.
        let input = vec![b' '; 4 << 20];
        for command in ["exec <&-; sleep 0.2", "true", "exec <&- >&- 2>&-; sleep 0.2"] {
            let ended = run(command, &[], &input, PATIENCE).await;
            assert_eq!(ended, Ended { end: HookEnd::Succeeded, output: String::new() }, "{command}");
        }
        // It writes to a pipe that nothing reads any more.
        assert_eq!(outcome("(sleep 0.1; yes) | true; echo done").await, printed("done"));
    }

    #[tokio::test]
    async fn what_it_leaves_in_the_background_holds_nobody_up_and_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let left = folder.path().join("left");
        let command = format!("(sleep 1; echo > {}) & echo begun", left.display());
        assert_eq!(outcome(&command).await, printed("begun"));
        assert_eq!(outcome("sleep 20 & echo $!").await.0, HookEnd::Succeeded);
        // It prints for ever, to a pipe that is still open.
        let (end, output) = outcome("(while echo again; do :; done) & echo $!").await;
        assert_eq!(end, HookEnd::Succeeded, "{output}");
        let deadline = Instant::now() + PATIENCE;
        while !left.exists() {
            assert!(Instant::now() < deadline, "it did not go on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether a process of this id runs; a process that is only to be waited for does not.
    fn runs(id: &str) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        state.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
    }

    async fn wait_until_gone(ids: &str) {
        let deadline = Instant::now() + PATIENCE;
        while let Some(id) = ids.split_whitespace().find(|id| runs(id)) {
            assert!(Instant::now() < deadline, "{id} still runs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn when_its_time_is_over_all_of_it_is_killed() {
        let command = "trap '' TERM INT; sleep 600 & echo $$ $!; sleep 600";
        let Ended { end, output } = run_for(command, Duration::from_secs(4)).await;
        assert_eq!(end, HookEnd::TimedOut { after_ms: 4_000 });
        assert_eq!(output.split_whitespace().count(), 2, "{output}");
        wait_until_gone(&output).await;
    }

    #[tokio::test]
    async fn dropped_it_is_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let ids = folder.path().join("ids");
        let command = format!("sleep 600 & echo $$ $! > {}; sleep 600", ids.display());
        let has_begun = async {
            loop {
                let text = std::fs::read_to_string(&ids).unwrap_or_default();
                if text.ends_with('\n') {
                    return text;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let text = tokio::select! {
            ended = run_for(&command, PATIENCE) => panic!("{ended:?}"),
            text = has_begun => text,
        };
        wait_until_gone(&text).await;
    }
}
