//! Fencing and taking over without a moment in which clients are sent back and forth between the two nodes.
//!
//! With [`SlotFenceKind::Redirecting`] the source redirects from the moment of the fence, and the target does
//! so until it has taken over. The time in between is that of our own round trips, and a client may be
//! faster. So, if possible, the target itself waits for the source and serves no client meanwhile:
//!
//! - a script on the target sends the source a key with `MIGRATE`. The source is paused for writes, so it
//!   does not answer; a `MIGRATE` is synchronous, so the target does nothing else;
//! - the fence on the source is followed by `CLIENT UNPAUSE` in the same turn. The source takes the `MIGRATE`
//!   up again, and answers `MOVED`, to the target: it does not own the slot any more. That answer *is* the
//!   proof that the fence is in effect, whatever became of us. No other answer counts as one, not even a
//!   redirection to another node;
//! - the script takes over, and only then the target serves clients again.
//!
//! The key is empty, the script deletes it, and it has a time to live besides. If the fence did not hold, the
//! source is not paused any more and may get that key: it is deleted there, too.
//!
//! Whether all this is possible (the target reaches the source under the address that it knows, with our
//! credentials, and scripts and `MIGRATE` are permitted) is tried out before the pause. If not, the take-over
//! follows the fence at once.

use std::time::Duration;

use tokio::time::Instant;
use whimbrel_core::slot::{Slot, SlotSet, tag_for_slot};

use super::fence::last;
use super::options::SlotFenceKind;
use super::peer::client_field;
use super::state::{Gate, Handover, Paused, Sealed};
use crate::error::Result;
use crate::link::Link;

/// The script on the target.
const GATE_SCRIPT: &str = include_str!("gate.lua");

/// How long the target waits for the source at most. It serves no client for that long, so this is short. On
/// a busy machine the fence may follow tens of milliseconds later, and a target that waits no longer sends
/// clients back and forth.
const WAIT_MS_MAX: u64 = 100;

/// How long a try before the pause may take.
const TRY_MS: u64 = 100;

/// How long the target may take to begin at most, while writers wait. Not more than half of what is left of
/// the pause either.
const BEGUN_WITHIN_MAX: Duration = Duration::from_millis(50);

/// How long the target may take to hear of the source's epoch, when that was changed.
const EPOCH_PATIENCE: Duration = Duration::from_secs(5);

/// Connections of the target that are watched for that, at most.
const MESSENGERS_MAX: usize = 16;

impl Handover {
    /// Prepares what must not take time under the pause: makes sure that the target's claim will have an
    /// epoch above the source's, since one with a lower epoch would not be believed, and the target would
    /// lose the slots again, with their keys; has the connections ready; and tries out whether the target can
    /// wait for the source.
    ///
    /// Call it before every pause. Safe to repeat; waits some milliseconds if epochs had to be changed.
    ///
    /// # Errors
    /// As [`Link::call`](crate::link::Link::call); `Unfit` if the target does not hear of the source's epoch.
    pub async fn raise_epoch(&mut self) -> Result<()> {
        self.settle_epochs(EPOCH_PATIENCE).await?;
        self.prepare_gate().await;
        Ok(())
    }

    /// [`Handover::fence`], and [`Handover::take_over`] at once if it held. With
    /// [`SlotFenceKind::Redirecting`] this is the only way in which clients are not sent back and forth
    /// between the two nodes for as long as the caller takes in between. Not after `not_after_ms`, as there.
    ///
    /// # Errors
    /// `Server` if nothing was changed. After any other it is not known what is true of the source; nor, if
    /// it is [fenced by a script](Handover::fences_by_script), of the target.
    pub async fn fence_and_take_over(
        &mut self,
        slots: &SlotSet,
        paused: &Paused,
        not_after_ms: u64,
    ) -> Result<Sealed> {
        if let Some(gate) = self.gate.take().filter(|_| paused.offset.is_some())
            && let Some(sealed) = self.fence_with_gate(&gate, slots, paused, not_after_ms).await?
        {
            return Ok(sealed);
        }
        let fenced = self.fence(slots, paused).await?;
        let taken = match fenced.held {
            true => self.take_over_after_fence(slots, not_after_ms).await,
            false => Ok(()),
        };
        Ok(Sealed { fenced, taken })
    }

    /// Finds out whether the target can wait for the source, and opens what it needs for it. Before every
    /// pause: servers close connections for `MIGRATE` after 10 s, and with them goes the authentication.
    pub(super) async fn prepare_gate(&mut self) {
        self.gate = None;
        let (source, target) = (self.source.traits, self.target.traits);
        let wanted = self.options.gate
            && self.fence_kind() == SlotFenceKind::Redirecting
            && source.scripts
            && target.scripts
            && !target.takes_by_itself;
        if !wanted {
            return;
        }
        match self.try_gate().await {
            Ok(gate) => self.gate = gate,
            Err(e) => tracing::debug!(error = %e, "the target cannot wait for the source"),
        }
    }

    async fn try_gate(&mut self) -> Result<Option<Gate>> {
        let (source, target) = (self.source.id.clone(), self.target.id.clone());
        let Some((place, _)) = self.target.run(async |link| announced(link, source.as_str()).await).await?
        else {
            return Ok(None);
        };
        let Some(named) = self.source.run(async |link| announced(link, target.as_str()).await).await? else {
            return Ok(None);
        };
        let Some((host, port)) = place.trim_start().rsplit_once(':').filter(|(host, _)| !host.is_empty())
        else {
            return Ok(None);
        };
        let named = [named.0, named.1];
        let mut gate = Gate { host: host.to_owned(), port: port.to_owned(), named, messengers: Vec::new() };
        // A slot of the target's own: the source redirects to it. If it has none, a slot that it imports:
        // then the source takes the key, and it is deleted there.
        let own = self.target.view().await?.me().slots.clone();
        let (slot, importing) = match (own.iter().next(), self.marked.iter().next()) {
            (Some(slot), _) => (slot, false),
            (None, Some(slot)) => (slot, true),
            (None, None) => return Ok(None),
        };
        let key = key_in(slot);
        let reply = self.target.run(async |link| send_key(link, &gate, &key, importing).await).await?;
        let works = if importing {
            self.source.run(async |link| link.ask(&[b"UNLINK", key.as_bytes()]).await).await?;
            reply == "OK"
        } else {
            reply.contains("MOVED") && gate.named.iter().any(|name| !name.is_empty() && reply.ends_with(name))
        };
        if !works {
            tracing::debug!(reply, "the target cannot wait for the source");
        }
        gate.messengers = self.source.clients(sends_keys).await?;
        // Sorted by age: the one just used may be the newest, or be used again.
        let spare = gate.messengers.len().saturating_sub(MESSENGERS_MAX);
        gate.messengers.drain(..spare);
        // Opened now, so that writers need not wait for that.
        let waiting = self.target.spare().await?;
        self.target.keep_spare(waiting);
        Ok((works && !gate.messengers.is_empty()).then_some(gate))
    }

    /// The fence and the take-over, with the target waiting. `None` if that could not be begun: then nothing
    /// has happened.
    pub(super) async fn fence_with_gate(
        &mut self,
        gate: &Gate,
        slots: &SlotSet,
        paused: &Paused,
        not_after_ms: u64,
    ) -> Result<Option<Sealed>> {
        let Some(messenger) = last(slots) else { return Ok(None) };
        let key = key_in(messenger);
        let Ok(mut waiting) = self.target.spare().await else { return Ok(None) };
        let left = paused.until.saturating_duration_since(Instant::now());
        self.push_gate(&mut waiting, gate, &key, messenger, slots, left);
        if waiting.flush().await.is_err() {
            return Ok(None);
        }
        // If it is not seen to wait, the fence follows all the same: then clients may be sent back and forth
        // a few times.
        let begun = self.wait_until_begun(gate, left / 2).await;
        let fenced = self.fence_by_script(slots, paused, true).await;
        // Bounded by the time that the target waits, and what it takes to answer.
        let answer = waiting.replies(2).await.ok().and_then(|mut replies| {
            let reply = replies.pop()?;
            Some(match reply.as_error() {
                Some(e) => String::from_utf8_lossy(e).into_owned(),
                None => reply.as_str().unwrap_or_default().to_owned(),
            })
        });
        if answer.is_some() {
            self.target.keep_spare(waiting);
        }
        let mut fenced = fenced?;
        if !fenced.held {
            if answer.is_none() {
                // It may still come to it, and find the source fenced by another job.
                return Err(self.target.in_doubt("the fence", "the target does not answer"));
            }
            // The source may have taken the key instead. Another's word would be as good: nobody needs it.
            let removed = self.source.run(async |link| link.ask(&[b"UNLINK", key.as_bytes()]).await).await;
            removed.map_err(|e| self.source.in_doubt("remove a key of ours", e))?;
            return Ok(Some(Sealed { fenced, taken: Ok(()) }));
        }
        let mut taken = Ok(());
        if answer.as_deref() == Some("taken") {
            fenced.seamless = begun;
            self.note_taken(slots);
        } else {
            tracing::info!(answer, "the target did not wait for the source");
            taken = self.take_over_after_fence(slots, not_after_ms).await;
        }
        Ok(Some(Sealed { fenced, taken }))
    }

    /// Whether the source holds up the message by which the target waits for it, as a client that is blocked.
    /// Nothing else shows it: a target that does not answer us may just be busy.
    async fn wait_until_begun(&mut self, gate: &Gate, patience: Duration) -> bool {
        let deadline = Instant::now() + patience.min(BEGUN_WITHIN_MAX);
        while Instant::now() < deadline {
            let listed = self
                .source
                .run(async |link| {
                    let mut command: Vec<&[u8]> = vec![b"CLIENT", b"LIST", b"ID"];
                    command.extend(gate.messengers.iter().map(String::as_bytes));
                    link.call(&command).await
                })
                .await;
            let Ok(listed) = listed else { return false };
            let is_blocked =
                |line: &str| client_field(line, "flags").is_some_and(|flags| flags.contains('b'));
            if listed.as_str().unwrap_or_default().lines().any(is_blocked) {
                return true;
            }
        }
        tracing::info!("the target was not seen to wait for the source");
        false
    }

    fn push_gate(
        &self,
        link: &mut Link,
        gate: &Gate,
        key: &str,
        messenger: Slot,
        slots: &SlotSet,
        left: Duration,
    ) {
        // `MIGRATE` counts it for each of its steps, and a takeover without it has to fit in as well.
        let wait_ms = (left.as_millis() / 2).clamp(1, u128::from(WAIT_MS_MAX));
        let mut rest = slots.clone();
        rest.remove(messenger);
        let ranges = rest.ranges();
        link.push(&[b"ASKING"]);
        let outbox = link.outbox();
        outbox.command(12 + 2 * ranges.len());
        for word in ["EVAL", GATE_SCRIPT, "1", key, &gate.host, &gate.port] {
            outbox.arg(word.as_bytes());
        }
        outbox.arg(wait_ms.to_string().as_bytes());
        gate.named.iter().for_each(|name| outbox.arg(name.as_bytes()));
        outbox.arg_int(i64::from(messenger.number()));
        outbox.arg(self.source.id.as_str().as_bytes());
        outbox.arg(self.target.id.as_str().as_bytes());
        for range in ranges {
            outbox.arg_int(i64::from(range.start().number()));
            outbox.arg_int(i64::from(range.end().number()));
        }
    }
}

/// Whether a line of `CLIENT LIST` is of a connection whose last command was a key sent by `MIGRATE`.
fn sends_keys(line: &str) -> Option<String> {
    let is_one = matches!(client_field(line, "cmd"), Some("restore-asking" | "restore"));
    client_field(line, "id").filter(|_| is_one).map(str::to_owned)
}

/// The key in a slot that stands for nothing.
fn key_in(slot: Slot) -> String {
    format!("whimbrel:gate:{{{}}}", tag_for_slot(slot))
}

/// Has the server behind `link` send a key to another; what that said.
async fn send_key(link: &mut Link, gate: &Gate, key: &str, importing: bool) -> Result<String> {
    let endpoint = link.endpoint().clone();
    let (user, password) = (endpoint.user.clone(), endpoint.token().await?.map(|token| token.secret));
    let limit = TRY_MS.to_string();
    let asking = |link: &mut Link| {
        if importing {
            link.push(&[b"ASKING"]);
        }
    };
    asking(link);
    link.push(&[b"SET", key.as_bytes(), b"", b"PX", b"60000"]);
    asking(link);
    let mut migrate: Vec<&[u8]> =
        vec![b"MIGRATE", gate.host.as_bytes(), gate.port.as_bytes(), key.as_bytes(), b"0", limit.as_bytes()];
    migrate.extend([b"COPY".as_slice(), b"REPLACE"]);
    match (&user, &password) {
        // Servers keep these arguments out of their slow log, here, but not among the arguments of a script.
        (Some(user), Some(password)) => {
            migrate.extend([b"AUTH2".as_slice(), user.as_bytes(), password.expose().as_bytes()]);
        }
        (None, Some(password)) => migrate.extend([b"AUTH".as_slice(), password.expose().as_bytes()]),
        (_, None) => {}
    }
    link.push(&migrate);
    asking(link);
    link.push(&[b"DEL", key.as_bytes()]);
    link.flush().await?;
    let replies = link.replies(if importing { 6 } else { 3 }).await?;
    let reply = &replies[replies.len() - if importing { 3 } else { 2 }];
    Ok(match reply.as_error() {
        Some(e) => String::from_utf8_lossy(e).into_owned(),
        None => reply.as_str().unwrap_or_default().to_owned(),
    })
}

/// The address of node `id` as the server behind `link` knows it, as `HOST:PORT`; and with its host name, or
/// nothing.
async fn announced(link: &mut Link, id: &str) -> Result<Option<(String, String)>> {
    let reply = link.call(&[b"CLUSTER", b"NODES"]).await?;
    let text = reply.as_str().unwrap_or_default();
    let Some(place) = text.lines().find_map(|line| line.strip_prefix(id)?.split_ascii_whitespace().next())
    else {
        return Ok(None);
    };
    let (address, names) = place.split_once('@').unwrap_or((place, ""));
    let by_name = address.rsplit_once(':').and_then(|(_, port)| {
        let name = names.split(',').nth(1).filter(|name| !name.is_empty() && !name.contains('='))?;
        Some(format!(" {name}:{port}"))
    });
    // Redirections end with a blank and the place; without the blank `10.0.0.1:1` would end `110.0.0.1:1` as
    // well.
    Ok(Some((format!(" {address}"), by_name.unwrap_or_default())))
}
