//! How many commands of a link are not answered, and what becomes of them if it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::Link;
use crate::endpoint::Address;
use crate::error::{Code, Result, ServerError};
use crate::unanswered::{Ended, Unanswered};

/// What a link has sent and what was answered.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) sent: u64,
    pub(super) answered: u64,
    /// As what it is remembered, and where.
    ended: Option<(Unanswered, Ended)>,
    is_noted: AtomicBool,
}

impl Account {
    /// From now on it is remembered if it ends too early. Its server knows it as `id`.
    pub(super) fn is_kept_by(&mut self, unanswered: Unanswered, address: &Address, id: i64) {
        let ended = Ended { address: address.to_string(), id, opened: Instant::now() };
        self.ended = Some((unanswered, ended));
    }

    /// Nothing more is read from it.
    pub(super) fn note_end(&self) {
        if let Some((unanswered, ended)) = &self.ended
            && self.sent > self.answered
            && !self.is_noted.swap(true, Ordering::Relaxed)
        {
            unanswered.add(ended.clone());
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.note_end();
    }
}

impl Link {
    /// Has the server close connections of before that ended while commands on them had no answer.
    pub(super) async fn end_unanswered(&mut self) -> Result<()> {
        let Some((unanswered, own)) = self.account.ended.clone() else { return Ok(()) };
        for ended in unanswered.at(&own.address) {
            if ended.id < own.id && self.has_run_since(ended.opened).await? {
                let reply = self.ask(&[b"CLIENT", b"KILL", b"ID", ended.id.to_string().as_bytes()]).await?;
                // One that is not there any more is as good.
                if ServerError::of(&reply).is_some_and(|e| e.code == Code::NoPermission) {
                    tracing::warn!(
                        address = own.address,
                        "this user may not close a connection whose commands were not answered (client|kill): \
                         if the server still has one of them, it is carried out late"
                    );
                }
            }
            unanswered.remove(&ended);
        }
        Ok(())
    }

    /// Whether the server has not been started again since then: another process counts connections anew.
    async fn has_run_since(&mut self, then: Instant) -> Result<bool> {
        let reply = self.ask(&[b"INFO", b"server"]).await?;
        let info = String::from_utf8_lossy(reply.as_bytes().map_or(&[], |text| text));
        let up_s = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:")?.parse::<u64>().ok());
        // Servers count whole seconds.
        Ok(up_s.is_some_and(|up_s| up_s + 1 >= then.elapsed().as_secs()))
    }
}
