//! The move of keys from the source to the target: read, written, removed, in this order.
//!
//! The caller holds the keys' locks for as long as this takes, and after an error until it has succeeded on
//! other links. The old link to the target has to be known dead before that, or what it still carries could
//! come late. Several keys go through each of the three steps together, in three round trips; what becomes of
//! one of them does not depend on the others.
//!
//! **The target wins.** A key that both have was left by a crash after it was written and before it was
//! removed. No client can have written to either copy in between, so what the target has is that state, or
//! what clients have made of it since: it is written only if it is absent, and the source's copy is removed.
//! If neither a crash nor a failed attempt can have left it, something else has written to a key that was not
//! home: then both stay. Why that loses nothing is shown in `docs/design/front.md`.

use bytes::Bytes;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::expiry::Clock;
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_flow::keys::{
    Body, Fetch, Fit, Found, KeyState, Read, Way, Write, WriteMode, Written, memory_bytes, read_all,
    read_strings_together, remove_together, unlink, write_all, write_strings_together,
};
use whimbrel_flow::large::{Assembly, Existing, Outcome, TRIES_MAX, Transfer, transfer};
use whimbrel_wire::payload::Dialect;

/// How much of a value that does not travel as a payload is in one command.
const CHUNK_BYTES: usize = 256 << 10;

/// A key that takes more memory is moved in chunks. It is as much as a server can be kept busy with
/// unnoticed, about a millisecond.
pub const LARGE_BYTES: u64 = 1 << 20;

/// What both sides are and can do.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// What the source can do; it has to have `PEXPIRETIME`.
    pub source: &'a Capabilities,
    /// What the target can do, the payloads that it accepts among it.
    pub target: &'a Capabilities,
    /// The families of both.
    pub dialects: (Dialect, Dialect),
    /// A short name, part of the names of staging keys.
    pub job: &'a str,
    /// The target may have the key before it is moved: after a crash, or after an attempt that failed
    /// half-way.
    pub may_be_there: bool,
}

/// How the keys of a group are read and removed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupPlan {
    /// By which command they are read: strings alone, or keys of any type.
    pub(crate) fetch: Fetch,
    /// A key may expire. If not, none of the source does.
    pub(crate) expiries: bool,
    /// Which sides are one server: there one command reads, writes or removes several keys.
    pub(crate) are_one: (bool, bool),
}

impl GroupPlan {
    /// For keys that nothing is known of.
    pub(crate) const ANY: GroupPlan =
        GroupPlan { fetch: Fetch::Payload, expiries: true, are_one: (false, false) };
}

/// Where a key is after an attempt to move it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carried {
    /// The source did not have it.
    Earlier,
    /// It has been moved, or the source's copy of what the target had already has been removed.
    Arrived,
    /// It is at the source as before, since the target cannot hold it; the text says why.
    Stays(String),
    /// It is at the source as before: the target has another key of this name, which was not moved there.
    Taken,
}

/// What came of one of several keys.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// Its move has ended.
    Ended(Carried),
    /// It does not travel as a payload. Nothing has been written.
    InChunks,
    /// A server refuses it. Nothing has been written.
    Refused(Error),
    /// The target has it, and the source refuses to remove it.
    CopiedOnly(Error),
}

/// Moves `key`.
///
/// # Errors
/// Whatever a link or a server reports. Then it is not known which of the three steps were carried out.
pub async fn carry(source: &mut Link, target: &mut Link, key: &[u8], route: &Route<'_>) -> Result<Carried> {
    let key = Bytes::copy_from_slice(key);
    match carry_all(source, target, vec![key.clone()], route, GroupPlan::ANY).await?.pop() {
        Some((_, Attempt::Ended(carried))) => return Ok(carried),
        Some((_, Attempt::Refused(error) | Attempt::CopiedOnly(error))) => return Err(error),
        Some((_, Attempt::InChunks)) | None => {}
    }
    match copy(source, target, &key, route).await? {
        Outcome::Unholdable(why) => return Ok(Carried::Stays(why)),
        Outcome::Skipped if !route.may_be_there => return Ok(Carried::Taken),
        _ => {}
    }
    source.call(&unlink(&key)).await?;
    Ok(Carried::Arrived)
}

/// Moves keys that travel in one piece, and returns the result of each. The caller bounds how many they are,
/// and how large.
///
/// # Errors
/// Whatever a link reports. Then it is not known of any key which of the three steps were carried out.
pub(crate) async fn carry_all(
    source: &mut Link,
    target: &mut Link,
    keys: Vec<Bytes>,
    route: &Route<'_>,
    plan: GroupPlan,
) -> Result<Vec<(Bytes, Attempt)>> {
    let mut attempts = Vec::with_capacity(keys.len());
    let mut states = Vec::with_capacity(keys.len());
    let GroupPlan { fetch, expiries, are_one } = plan;
    let clock = Clock::of_server(route.source.pexpiretime);
    let together = |is_one: bool, keys: usize| is_one && keys > 1;
    let is_plain = fetch == Fetch::String && !expiries;
    let read = Read { fetch, way: Way::Frozen, clock, expiries, asking: false };
    let fit = Fit::of(route.dialects, route.target);
    let found = match is_plain && together(are_one.0, keys.len()) {
        true => read_strings_together(source, &read, &keys).await?,
        false => read_all(source, &read, &keys).await?,
    };
    for (key, found) in found {
        match found {
            Found::Gone => attempts.push((key, Attempt::Ended(Carried::Earlier))),
            Found::Redirected(e) | Found::Refused(e) => {
                attempts.push((key, Attempt::Refused(source.server_error(e, fetch.command()))));
            }
            found => match found.into_state(key.clone(), fetch).map(|state| fit.state(state)) {
                Some(Ok(state)) => states.push(state),
                Some(Err(key)) => attempts.push((key, Attempt::InChunks)),
                None => {
                    let error = Error::own("move a key", "it was read, and has no state");
                    attempts.push((key, Attempt::Refused(error)));
                }
            },
        }
    }
    let if_absent = Write { mode: WriteMode::IfAbsent, asking: false, by_own_clock: false };
    let mut there = Vec::with_capacity(states.len());
    let is_written =
        is_plain && together(are_one.1, states.len()) && write_strings_together(target, &states).await?;
    let outcomes = match is_written {
        true => states.iter().map(|_| Written::Done).collect(),
        false => write_all(target, if_absent, &states).await?,
    };
    for (KeyState { key, body, .. }, written) in states.into_iter().zip(outcomes) {
        match written {
            Written::Exists if !route.may_be_there => {
                attempts.push((key, Attempt::Ended(Carried::Taken)));
            }
            // It is there now, or was created dead, as its time has come; or it was there.
            Written::Done | Written::Absent | Written::Exists => there.push(KeyState::gone(key)),
            Written::NotUnderstood(_) => attempts.push((key, Attempt::InChunks)),
            Written::Refused(e) => {
                attempts.push((key, Attempt::Refused(target.server_error(e, Write::command(&body)))));
            }
        }
    }
    if together(are_one.0, there.len()) && remove_together(source, &there).await? {
        let arrived = there.into_iter().map(|state| (state.key, Attempt::Ended(Carried::Arrived)));
        attempts.extend(arrived);
        return Ok(attempts);
    }
    let outcomes = write_all(source, if_absent, &there).await?;
    for (KeyState { key, .. }, removed) in there.into_iter().zip(outcomes) {
        let attempt = match removed {
            Written::Refused(e) | Written::NotUnderstood(e) => {
                Attempt::CopiedOnly(source.server_error(e, Write::command(&Body::Gone)))
            }
            Written::Done | Written::Absent | Written::Exists => Attempt::Ended(Carried::Arrived),
        };
        attempts.push((key, attempt));
    }
    Ok(attempts)
}

/// Whether a key is so large that it has to be moved in chunks. It never becomes so: no client writes to the
/// source.
///
/// # Errors
/// As [`Link::call`].
pub async fn is_large(source: &mut Link, key: &[u8], route: &Route<'_>) -> Result<bool> {
    // Without `MEMORY USAGE` this is unknown.
    Ok(route.source.memory_usage
        && memory_bytes(source, key, LARGE_BYTES).await?.is_some_and(|bytes| bytes > LARGE_BYTES))
}

/// Copies the key in chunks, with the commands of its type, unless the target has it. No client may write to
/// it meanwhile, but any may read.
///
/// # Errors
/// Whatever a link or a server reports; `Own` if the key changed. Never returns `Changing` or `Conflict`.
pub async fn copy(source: &mut Link, target: &mut Link, key: &[u8], route: &Route<'_>) -> Result<Outcome> {
    let task = Transfer {
        key,
        existing: Existing::Skip,
        place: Assembly::Staging,
        chunk_bytes: CHUNK_BYTES,
        tries_max: TRIES_MAX,
        job: route.job,
        source: route.source,
        target: route.target,
        stop: None,
    };
    match transfer(source, target, &task).await? {
        Outcome::Changing | Outcome::Conflict => {
            Err(Error::own("move a key", "it changed although nobody may write to it at the source")
                .with_remedy("see that no client connects to the source itself"))
        }
        // If it is gone, it has expired since it was looked at. Nothing else removes it.
        outcome => Ok(outcome),
    }
}
