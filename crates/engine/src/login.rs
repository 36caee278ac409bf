//! Passwords, and those that expire: tokens that a command prints.

use std::fmt;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result, Side};

/// How long it is not run again after a failure.
const REST: Duration = Duration::from_secs(2);

/// How long the command may take.
const RUN_MAX: Duration = Duration::from_secs(10);

/// How much of its output is read at most.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Most of a line of its standard error that is shown.
const SHOWN_CHARS_MAX: usize = 200;

/// A password. It is never printed, not even by `Debug`, and its memory is wiped when it is dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a password.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(Zeroizing::new(text.into()))
    }

    /// The password itself, for the greeting only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A password, and until when it can be logged in with.
#[derive(Debug, Clone)]
pub struct Token {
    /// The password.
    pub secret: Secret,
    /// When a connection that has logged in with it should do so again, with another; `None` if it does not
    /// expire.
    pub renew_at: Option<Instant>,
}

/// A command whose first line of output is the password. It is run by `sh -c` when a connection is made, and
/// what it printed is used again for three quarters of the time that a password is valid.
pub struct PasswordCommand {
    side: Side,
    command: String,
    ttl: Duration,
    last: Mutex<Option<(Token, Instant)>>,
    /// Why it failed last, and when.
    failed: Mutex<Option<(String, Instant)>>,
}

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may hold a secret of its own.
        f.debug_struct("PasswordCommand")
            .field("side", &self.side)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl PasswordCommand {
    /// A command for one side whose passwords are valid for `ttl_ms`. It is not run yet.
    pub fn new(side: Side, command: impl Into<String>, ttl_ms: u64) -> PasswordCommand {
        let ttl = Duration::from_millis(ttl_ms);
        PasswordCommand {
            side,
            command: command.into(),
            ttl,
            last: Mutex::new(None),
            failed: Mutex::new(None),
        }
    }

    /// A password that is valid for a quarter of its time at least.
    ///
    /// # Errors
    /// `Connect` if the command fails, does not end in time, or prints nothing: later it may succeed.
    pub async fn token(&self) -> Result<Token> {
        // A caller that comes meanwhile waits, and gets the same.
        let mut last = self.last.lock().await;
        let now = Instant::now();
        if let Some((token, _)) = &*last
            && token.renew_at.is_none_or(|at| now < at)
        {
            return Ok(token.clone());
        }
        *last = None;
        // Many connections may ask, again and again: a vault is not asked by each of them.
        let mut failed = self.failed.lock().await;
        if let Some((what, at)) = &*failed
            && at.elapsed() < REST
        {
            return Err(self.fail(what));
        }
        let secret = match self.run().await {
            Ok(secret) => secret,
            Err(what) => {
                let error = self.fail(&what);
                *failed = Some((what, Instant::now()));
                return Err(error);
            }
        };
        *failed = None;
        let token = Token { secret, renew_at: Some(now + self.ttl * 3 / 4) };
        *last = Some((token.clone(), Instant::now()));
        Ok(token)
    }

    /// The server has refused a password: it is not used again. True if it was not made just now, so that
    /// another may do.
    pub(crate) async fn refused(&self) -> bool {
        let last = self.last.lock().await.take();
        last.is_none_or(|(_, made)| made.elapsed() > Duration::from_secs(1))
    }

    async fn run(&self) -> Result<Secret, String> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = match timeout(RUN_MAX, command.output()).await {
            Ok(output) => output.map_err(|e| format!("sh cannot be started: {e}"))?,
            Err(_) => return Err(format!("did not end within {} s", RUN_MAX.as_secs())),
        };
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let line = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
            let detail = line.map_or(String::new(), |line| {
                format!(": {}", line.chars().take(SHOWN_CHARS_MAX).collect::<String>())
            });
            return Err(format!("failed ({}){detail}", output.status));
        }
        let stdout = &output.stdout[..output.stdout.len().min(OUTPUT_BYTES_MAX)];
        let stdout =
            std::str::from_utf8(stdout).map_err(|_| "printed something that is not UTF-8".to_owned())?;
        match stdout.lines().next() {
            None | Some("") => Err("printed nothing".to_owned()),
            Some(line) => Ok(Secret::new(line)),
        }
    }

    fn fail(&self, what: &str) -> Error {
        let kind = ErrorKind::Connect(io::Error::other(format!("the password command {what}")));
        Error::new(self.side, "", "log in", kind).with_remedy(
            "run the command by hand, as the same user: its first line of output has to be the password",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn outcome(command: &str) -> Result<String, String> {
        let command = PasswordCommand::new(Side::Source, command, 60_000);
        let token = command.token().await;
        token.map(|token| token.secret.expose().to_owned()).map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn the_first_line_is_the_password_and_failures_say_why() {
        assert_eq!(outcome("printf 'one\\ntwo\\n'").await.as_deref(), Ok("one"));
        for (command, words) in [
            ("echo secret; echo first >&2; echo no login >&2; exit 3", "exit status: 3): no login"),
            ("true", "printed nothing"),
            ("echo; echo late", "printed nothing"),
            ("no-such-command-anywhere", "not found"),
        ] {
            let error = outcome(command).await.expect_err(command);
            assert!(error.contains(words) && !error.contains("secret"), "{command}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[tokio::test]
    async fn a_command_that_failed_rests_and_says_why_meanwhile() {
        let runs = std::env::temp_dir().join(format!("whimbrel-login-{}", std::process::id()));
        let command = format!("echo run >> {}; echo no vault >&2; exit 1", runs.display());
        let command = PasswordCommand::new(Side::Source, command, 60_000);
        for _ in 0..5 {
            let error = command.token().await.map(drop).expect_err("it fails").to_string();
            assert!(error.contains("no vault"), "{error}");
        }
        let count = || std::fs::read_to_string(&runs).expect("it ran").lines().count();
        assert_eq!(count(), 1);
        let long_ago = Instant::now().checked_sub(REST).expect("the machine has run for that long");
        *command.failed.lock().await = Some(("failed".to_owned(), long_ago));
        assert!(command.token().await.is_err());
        assert_eq!(count(), 2);
        std::fs::remove_file(&runs).expect("it is there");
    }

    #[tokio::test]
    async fn a_password_is_used_again_until_it_is_due_or_refused() {
        let command = |ttl_ms| PasswordCommand::new(Side::Target, "cat /proc/sys/kernel/random/uuid", ttl_ms);
        async fn secret(command: &PasswordCommand) -> String {
            command.token().await.expect("it prints").secret.expose().to_owned()
        }
        let lasting = command(3_600_000);
        let first = secret(&lasting).await;
        assert_eq!(secret(&lasting).await, first);
        lasting.refused().await;
        assert_ne!(secret(&lasting).await, first);
        let fleeting = command(0);
        assert_ne!(secret(&fleeting).await, secret(&fleeting).await);
    }
}
