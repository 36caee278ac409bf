//! Servers whose clients are paused by another program.
//!
//! Under `CLIENT PAUSE … WRITE` a server answers reads, and silently keeps writes waiting: even a command
//! that it would refuse, and one that is only queued in a transaction. What a job tries before it begins has
//! such commands in it, and a pause may last for any time.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::error::{Error, ErrorKind, Result, ServerError};
use crate::link::{Link, LinkOptions};

/// How long what writes may wait at a server that answers otherwise. Pauses of syncs are far shorter.
pub(crate) const HELD_MS_MAX: u64 = 5_000;

/// How long another connection may take for an answer, if all the time that a link allows is over.
const PING_MS: u64 = 5_000;

/// How long it is waited at least before another connection is asked once more.
const ASK_MS_MIN: u64 = 1_000;

/// What waits at a server whose clients are paused, whatever its slots: a node of a cluster redirects
/// commands whose keys are not its own before it checks whether it is paused, and this one has no key. To be
/// queued in a transaction that is never carried out. Nothing else is published there.
pub(crate) const HELD_BY_PAUSE: [&[u8]; 3] = [b"PUBLISH", b"whimbrel:probe", b""];

/// Replies to [`Link::push_pause`].
pub const PAUSE_REPLIES: usize = 4;

impl Link {
    /// Queues what pauses the server's writes for `ms` at most. If another client has paused them, we wait
    /// for the end of that pause first: it would end with ours. [`PAUSE_REPLIES`] come; the last says whether
    /// the server does it.
    pub fn push_pause(&mut self, ms: u64) {
        self.push(&[b"MULTI"]);
        self.push(&HELD_BY_PAUSE);
        self.push(&[b"DISCARD"]);
        self.push(&[b"CLIENT", b"PAUSE", ms.to_string().as_bytes(), b"WRITE"]);
    }

    /// Tries a command that changes nothing, and returns what the server has against it.
    ///
    /// # Errors
    /// As [`Link::ask`]; `Paused` if the command could write, and the server's clients are paused.
    pub async fn try_out(&mut self, args: &[&[u8]]) -> Result<Option<ServerError>> {
        let reply = unless_paused(self, HELD_MS_MAX, async |link| link.ask(args).await).await?;
        Ok(ServerError::of(&reply))
    }

    /// As [`Link::try_out`], but returns an error only if this user may not run it. Other errors, such as a
    /// key that is out of bounds, do not count.
    ///
    /// # Errors
    /// As [`Link::try_out`].
    pub async fn may_run(&mut self, args: &[&[u8]]) -> Result<Option<ServerError>> {
        Ok(self.try_out(args).await?.filter(ServerError::forbids_command))
    }
}

/// Does `work` on a link: questions that write, or would if they were not refused. Its replies may take
/// `held_ms_max` while the server answers other connections, whatever the link allows. A server that does not
/// answer those either may take as long as the link allows.
///
/// # Errors
/// `Paused` if nothing is answered for `held_ms_max` although another connection is; `Timeout` if that is not
/// answered either; what `work` returns.
pub(crate) async fn unless_paused<T>(
    link: &mut Link,
    held_ms_max: u64,
    work: impl AsyncFnOnce(&mut Link) -> Result<T>,
) -> Result<T> {
    let allowed_ms = link.options().reply_timeout_ms;
    // A pause may be longer than a link waits: whether the server hangs is found out here.
    link.set_reply_timeout_ms(allowed_ms.saturating_add(held_ms_max));
    let outcome = answered_or_not(link, held_ms_max, allowed_ms, work).await;
    link.set_reply_timeout_ms(allowed_ms);
    let kind = match outcome {
        Ok(outcome) => return outcome,
        Err(Silence::Hung) => return Err(link.fail("read a reply", ErrorKind::Timeout(allowed_ms))),
        Err(Silence::Paused) => ErrorKind::Paused(held_ms_max),
    };
    let (side, address) = (link.endpoint().side, link.address().to_string());
    Err(Error::new(side, address, "see what this user may write", kind).with_remedy(
        "writes wait there: somebody has run CLIENT PAUSE, or a failover or a shutdown is under way. CLIENT \
            LIST shows the clients that wait with flags=b. Wait until it is over, or end a pause with CLIENT \
            UNPAUSE",
    ))
}

/// Why a server does not answer what writes.
enum Silence {
    /// It answers others.
    Paused,
    /// It answers no connection.
    Hung,
}

/// What `work` returns, or why it does not.
async fn answered_or_not<T>(
    link: &mut Link,
    held_ms_max: u64,
    allowed_ms: u64,
    work: impl AsyncFnOnce(&mut Link) -> Result<T>,
) -> Result<Result<T>, Silence> {
    let (endpoint, address, options) = (link.endpoint().clone(), link.address().clone(), link.options());
    let mut working = pin!(work(link));
    let began = Instant::now();
    let mut waited_ms = 0;
    loop {
        let wait_ms = held_ms_max.saturating_sub(waited_ms).min(allowed_ms.max(ASK_MS_MIN));
        if let Ok(outcome) = timeout(Duration::from_millis(wait_ms), &mut working).await {
            return Ok(outcome);
        }
        waited_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let left_ms = allowed_ms.saturating_sub(waited_ms);
        let options = LinkOptions { reply_timeout_ms: left_ms.max(PING_MS.min(allowed_ms)), ..options };
        let other = async { Link::open(&endpoint, &address, options).await?.ask(&[b"PING"]).await };
        tokio::select! {
            biased;
            outcome = &mut working => return Ok(outcome),
            answered = other => if answered.is_err() {
                return timeout(Duration::from_millis(left_ms), working).await.map_err(|_| Silence::Hung);
            },
        }
        if waited_ms >= held_ms_max {
            return Err(Silence::Paused);
        }
    }
}
