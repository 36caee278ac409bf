//! How long and how often to try again.

use std::time::Duration;

use tokio::time::Instant;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::remedy::Remedy;

/// Bounds on retries of one operation that keeps failing for transient reasons.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// How long one operation may go on failing before its last error is final.
    pub give_up_after_ms: u64,
    /// The first pause between two tries. Each further one is twice as long.
    pub pause_first_ms: u64,
    /// The longest pause.
    pub pause_max_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { give_up_after_ms: 60_000, pause_first_ms: 10, pause_max_ms: 1_000 }
    }
}

/// The retries of one operation. Success is reported by dropping it.
#[derive(Debug)]
pub struct Backoff {
    policy: RetryPolicy,
    since: Option<Instant>,
    pause_ms: u64,
    tries: u32,
}

impl Backoff {
    /// No failure yet.
    pub fn new(policy: RetryPolicy) -> Self {
        Backoff { policy, since: None, pause_ms: policy.pause_first_ms, tries: 0 }
    }

    /// After a failure: sleeps and returns, or gives the error back if it is not transient or time is up.
    ///
    /// # Errors
    /// The error it was given, with what was tried added if it was retried.
    pub async fn pause(&mut self, error: Error) -> Result<()> {
        if !error.is_transient() {
            return Err(error);
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.tries += 1;
        if now.duration_since(since) > Duration::from_millis(self.policy.give_up_after_ms) {
            return Err(self.exhausted(error, now.duration_since(since)));
        }
        tracing::debug!(tries = self.tries, %error, "will try again");
        tokio::time::sleep(Duration::from_millis(self.pause_ms)).await;
        self.pause_ms = (self.pause_ms * 2).min(self.policy.pause_max_ms);
        Ok(())
    }

    fn exhausted(&self, mut error: Error, waited: Duration) -> Error {
        error.tried = format!("{}, {} times in {} s", error.tried, self.tries, waited.as_secs()).into();
        if error.remedy.is_none() {
            error.remedy = Some(Box::new(Remedy::Resume("see that the server is up and reachable")));
        }
        error
    }
}
