//! Finishes slots that one node gives away and another takes in, while clients use both.
//!
//! A key that the source has is served there. For one that it lacks it sends clients to the target, so no key
//! appears at the source. A copy at the target is out of sight until the source loses the key: if a client
//! deletes that before we remove it, the copy shows, and the key is back.
//!
//! So writes at the source are paused from before keys are read until they are removed. A pause ends by
//! itself, and not every server allows one. Hence keys are removed at the source only if no client wrote to
//! them (`WATCH`), and if that fails the copies are taken back, unless a client has written to them at the
//! target: what is written there counts.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_core::slot::Slot;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::expiry;
use whimbrel_engine::link::Link;
use whimbrel_engine::paused::PAUSE_REPLIES;
use whimbrel_flow::keys::{KeyState, Write, WriteMode, Written, unlink};
use whimbrel_wire::value::Value;

use super::keys::{STUCK_MAX, Tally, give_up, next_batch, portions, read, wait_for_replicas};
use crate::failpoint::{self, When};

/// How long writes at the source are paused if nothing ends that, in milliseconds: a repair that is killed
/// ends nothing.
const PAUSE_MS: u64 = 3_000;

/// Values that move under one pause, by the server's estimate of their size. A larger one moves alone.
const PAUSED_BYTES: u64 = 1 << 20;

/// How long the target's replicas may take to have what was written, in milliseconds: writers wait.
const REPLICAS_TIMEOUT_MS: u64 = 200;

/// How often a key is tried again that was written to while it moved.
const ATTEMPTS_MAX: usize = 50;

/// How long it waits if none of the keys was found, at first and at most: they have expired, which the server
/// notices in its own time, and only while writes are not paused.
const IDLE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Moves what is left of a slot that `source` gives away and `target` takes in. What the target has under the
/// name of a key that the source has as well is older, and is replaced.
///
/// # Errors
/// When a node does not answer, or refuses what it should not.
pub async fn finish_slot(source: &mut Link, target: &mut Link, slot: Slot, absolute: bool) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut stuck: HashSet<Bytes> = HashSet::new();
    let mut idle = IDLE.0;
    while let Some(keys) = next_batch(source, slot, &stuck).await? {
        let before = (tally.moved, stuck.len());
        for portion in portions(source, &keys, false, PAUSED_BYTES).await? {
            let mut attempts = 0;
            let mut parts = vec![portion];
            while let Some(part) = parts.pop() {
                match move_keys(source, target, &part, absolute).await? {
                    Moved::All(moved) => {
                        tally.moved += moved;
                        tally.removed += moved;
                    }
                    Moved::Refused(key, e) => {
                        tally.stuck(format!("the target refuses a key: {}", e.text));
                        stuck.insert(key.clone());
                        parts.push(part.into_iter().filter(|k| *k != key).collect());
                    }
                    Moved::Apart(alone) => {
                        parts.push(part.into_iter().filter(|key| !alone.contains(key)).collect());
                        parts.extend(alone.into_iter().map(|key| vec![key]));
                    }
                    // The more keys, the likelier that one of them is written to.
                    Moved::Changed if part.len() > 1 => {
                        let mut part = part;
                        let half = part.split_off(part.len() / 2);
                        parts.extend([part, half]);
                    }
                    Moved::Changed if attempts < ATTEMPTS_MAX => {
                        attempts += 1;
                        parts.push(part);
                    }
                    Moved::Changed => {
                        tally.stuck("a key is written to faster than it can be moved".to_owned());
                        stuck.extend(part);
                        attempts = 0;
                    }
                }
            }
        }
        if stuck.len() > STUCK_MAX {
            return Err(give_up(slot));
        }
        if (tally.moved, stuck.len()) == before {
            tokio::time::sleep(idle).await;
            idle = (idle * 2).min(IDLE.1);
        } else {
            idle = IDLE.0;
        }
    }
    Ok(tally)
}

/// What became of a few keys.
enum Moved {
    /// All that still existed are at the target; this many were removed at the source.
    All(u64),
    /// One was written to meanwhile, or has gone; none was removed.
    Changed,
    /// Nothing was done: each of these has to move alone. Copies are taken back all at once or not at all, so
    /// none of those that move together may be written to at the target, or expire there.
    Apart(Vec<Bytes>),
    /// The target does not take this one; none was removed.
    Refused(Bytes, ServerError),
}

/// Moves keys together. If it fails, writes at the source are paused until that ends by itself.
async fn move_keys(source: &mut Link, target: &mut Link, keys: &[Bytes], absolute: bool) -> Result<Moved> {
    if keys.is_empty() {
        return Ok(Moved::All(0));
    }
    let is_paused = pause_and_watch(source, keys).await?;
    if !is_paused && keys.len() > 1 {
        resume_writes(source, is_paused).await?;
        return Ok(Moved::Apart(keys.to_vec()));
    }
    let states = read(source, keys, false, absolute).await?;
    let end = expiry::now_ms().saturating_add_unsigned(PAUSE_MS);
    let expire_soon = states.iter().filter(|state| state.expires_at_ms.is_some_and(|at| at <= end));
    let alone: Vec<Bytes> = expire_soon.map(|state| state.key.clone()).collect();
    if !alone.is_empty() && keys.len() > 1 {
        resume_writes(source, is_paused).await?;
        return Ok(Moved::Apart(alone));
    }
    if states.is_empty() {
        resume_writes(source, is_paused).await?;
        return Ok(Moved::All(0));
    }
    let (copies, refused) = write(target, &states).await?;
    if let Some((key, e)) = refused {
        take_back(target, &copies).await?;
        resume_writes(source, is_paused).await?;
        return Ok(Moved::Refused(key, e));
    }
    wait_for_replicas(target, REPLICAS_TIMEOUT_MS).await?;
    failpoint::reached("remove-moved", When::Before, 0).await;
    let moved = remove(source, &copies, is_paused).await?;
    if matches!(moved, Moved::Changed) {
        take_back(target, &copies).await?;
    }
    Ok(moved)
}

/// Pauses writes at the source, and watches the keys. Says whether they are paused.
async fn pause_and_watch(source: &mut Link, keys: &[Bytes]) -> Result<bool> {
    source.push_pause(PAUSE_MS);
    // One by one: if one key of several has gone, a command with them is answered with TRYAGAIN.
    for key in keys {
        source.push(&[b"WATCH", key]);
    }
    source.flush().await?;
    let paused = source.replies(PAUSE_REPLIES).await?.pop();
    for reply in source.replies(keys.len()).await? {
        match ServerError::of(&reply) {
            // A node that gives a slot away answers so for a key that it does not have any more.
            Some(ServerError { code: Code::Ask(..), .. }) => {}
            _ => drop(source.check(reply, b"WATCH")?),
        }
    }
    Ok(paused.is_some_and(|reply| ServerError::of(&reply).is_none()))
}

/// Ends a pause, and the watch.
async fn resume_writes(source: &mut Link, is_paused: bool) -> Result<()> {
    if is_paused {
        source.call(&[b"CLIENT", b"UNPAUSE"]).await?;
    }
    source.call(&[b"UNWATCH"]).await.map(drop)
}

/// Writes states to the target, and watches them there. Returns those that are written, and the first that is
/// refused.
async fn write(target: &mut Link, states: &[KeyState]) -> Result<(Vec<Bytes>, Option<(Bytes, ServerError)>)> {
    let write = Write { mode: WriteMode::Replace, asking: true, by_own_clock: false };
    // Those of the keys before.
    target.push(&[b"UNWATCH"]);
    for state in states {
        write.push(target.outbox(), state);
        // Right behind it: from here on a client's write to the copy does not go unseen.
        target.push(&[b"ASKING"]);
        target.push(&[b"WATCH", &state.key]);
    }
    target.flush().await?;
    target.reply().await?;
    let (mut copies, mut refused) = (Vec::with_capacity(states.len()), None);
    for state in states {
        for _ in 1..write.replies() {
            target.reply().await?;
        }
        let reply = target.reply().await?;
        match write.written(&reply, &state.body) {
            None => return Err(target.unexpected("write a key", &reply)),
            Some(Written::Refused(e) | Written::NotUnderstood(e)) => {
                refused.get_or_insert((state.key.clone(), e));
            }
            Some(Written::Done | Written::Absent | Written::Exists) => copies.push(state.key.clone()),
        }
        target.reply().await?;
        let watched = target.reply().await?;
        target.check(watched, b"WATCH")?;
    }
    Ok((copies, refused))
}

/// Removes keys at the source, if no client wrote to them since they were watched, and ends the pause.
async fn remove(source: &mut Link, keys: &[Bytes], is_paused: bool) -> Result<Moved> {
    if is_paused {
        // A write waits under a pause, ours as well. It goes on before those that have waited longer, since
        // the server reads on here first; if one comes in between all the same, the watch shows it.
        source.push(&[b"CLIENT", b"UNPAUSE"]);
    }
    push_unlink(source, keys);
    source.flush().await?;
    if is_paused {
        let resumed = source.reply().await?;
        source.check(resumed, b"CLIENT UNPAUSE")?;
    }
    let outcome = source.replies(keys.len() + 2).await?.pop().unwrap_or(Value::Null);
    match (outcome.as_items(), ServerError::of(&outcome).map(|e| e.code)) {
        (Some(removed), _) => Ok(Moved::All(removed.iter().filter(|r| r.as_int() == Some(1)).count() as u64)),
        // Written to; or one of them expired or was deleted, and the source redirects its `UNLINK`.
        (None, None | Some(Code::ExecAbort | Code::Ask(..) | Code::TryAgain)) => Ok(Moved::Changed),
        (None, Some(_)) => source.check(outcome, b"EXEC").map(|_| Moved::Changed),
    }
}

/// Removes copies from the target, unless a client has written to one since it was written there: then the
/// source had lost that key. All stay then, and those that the source still has are replaced.
async fn take_back(target: &mut Link, copies: &[Bytes]) -> Result<()> {
    if copies.is_empty() {
        return Ok(());
    }
    // For the whole transaction.
    target.push(&[b"ASKING"]);
    push_unlink(target, copies);
    target.flush().await?;
    let outcome = target.replies(copies.len() + 3).await?.pop().unwrap_or(Value::Null);
    match (outcome.as_items(), ServerError::of(&outcome).map(|e| e.code)) {
        (Some(_), _) => Ok(()),
        // Written to; or deleted or expired, which an importing node answers so if there are others.
        (None, None | Some(Code::ExecAbort | Code::TryAgain)) => {
            tracing::warn!(keys = copies.len(), "keys were written to at both nodes while they were moved");
            Ok(())
        }
        (None, Some(_)) => target.check(outcome, b"EXEC").map(drop),
    }
}

/// Queues a transaction that removes keys.
fn push_unlink(link: &mut Link, keys: &[Bytes]) {
    link.push(&[b"MULTI"]);
    for key in keys {
        link.push(&unlink(key));
    }
    link.push(&[b"EXEC"]);
}
