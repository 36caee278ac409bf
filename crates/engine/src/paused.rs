//! Servers whose clients somebody has paused.
//!
//! Under `CLIENT PAUSE … WRITE` a server answers what reads, and keeps what writes waiting without a word:
//! also a command that it would refuse, and one that is only queued in a transaction. What is tried before a
//! job begins has such commands in it, and a pause lasts for as long as somebody likes.

use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;

use crate::error::{Error, ErrorKind, Result, ServerError};
use crate::link::Link;

/// How long what writes may wait at a server that answers otherwise. Pauses of syncs are far shorter.
pub(crate) const HELD_MS_MAX: u64 = 5_000;

/// What waits at a server whose clients are paused, whatever its slots: a node of a cluster redirects
/// commands whose keys are not its own before it looks whether it is paused, and this one has no key. To be
/// queued in a transaction that is never carried out. Nobody publishes there.
pub(crate) const HELD_BY_PAUSE: [&[u8]; 3] = [b"PUBLISH", b"whimbrel:probe", b""];

/// Replies to [`Link::push_pause`].
pub const PAUSE_REPLIES: usize = 4;

impl Link {
    /// Queues what pauses the server's writes for `ms` at most. Where somebody else has paused them, that is
    /// waited for first: it would end with ours. [`PAUSE_REPLIES`] come, of which the last says
    /// whether the server does it.
    pub fn push_pause(&mut self, ms: u64) {
        self.push(&[b"MULTI"]);
        self.push(&HELD_BY_PAUSE);
        self.push(&[b"DISCARD"]);
        self.push(&[b"CLIENT", b"PAUSE", ms.to_string().as_bytes(), b"WRITE"]);
    }

    /// Tries a command that changes nothing, and returns what the server has against it.
    ///
    /// # Errors
    /// As [`Link::ask`]; `Paused` where the command could write, and somebody has paused the server's
    /// clients.
    pub async fn try_out(&mut self, args: &[&[u8]]) -> Result<Option<ServerError>> {
        let reply = unless_paused(self, HELD_MS_MAX, async |link| link.ask(args).await).await?;
        Ok(ServerError::of(&reply))
    }

    /// As [`Link::try_out`], where that is that this user may not run it. Other errors, a key that is out of
    /// bounds among them, are none of its business.
    ///
    /// # Errors
    /// As [`Link::try_out`].
    pub async fn may_run(&mut self, args: &[&[u8]]) -> Result<Option<ServerError>> {
        Ok(self.try_out(args).await?.filter(ServerError::forbids_command))
    }
}

/// Does `work` on a link: questions that write, or would if they were not refused. A server that does not
/// answer others either may take as long for it as the link allows.
///
/// # Errors
/// `Paused` where nothing is answered for `held_ms_max` although another connection is; what `work` returns.
pub(crate) async fn unless_paused<T>(
    link: &mut Link,
    held_ms_max: u64,
    work: impl AsyncFnOnce(&mut Link) -> Result<T>,
) -> Result<T> {
    let (endpoint, address, options) = (link.endpoint().clone(), link.address().clone(), link.options());
    let mut working = pin!(work(link));
    let held = async {
        sleep(Duration::from_millis(held_ms_max)).await;
        let mut other = Link::open(&endpoint, &address, options).await?;
        other.ask(&[b"PING"]).await
    };
    tokio::select! {
        biased;
        outcome = &mut working => return outcome,
        answered = held => {
            if answered.is_err() {
                return working.await;
            }
        }
    }
    let kind = ErrorKind::Paused(held_ms_max);
    Err(Error::new(endpoint.side, address.to_string(), "see what this user may write", kind).with_remedy(
        "writes wait there: somebody has run CLIENT PAUSE, or a failover or a shutdown is under way. CLIENT \
            LIST shows the clients that wait with flags=b. Wait until it is over, or end a pause with CLIENT \
            UNPAUSE",
    ))
}
