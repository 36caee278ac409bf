//! The move of one key from the source to the target: read, written, removed, in this order.
//!
//! The caller holds the key's lock for as long as this takes, and after an error until it has succeeded on
//! other links. The old link to the target has to be known dead before that, or what it still carries could
//! come late.
//!
//! **The target wins.** A key that both have was left by a crash after it was written and before it was
//! removed. Nobody can have written to either copy in between, so what the target has is that state, or what
//! clients have made of it since: `RESTORE` goes without `REPLACE`, and the source's copy is removed. Where
//! neither a crash nor a failed attempt can have left it, somebody has written to a key that was not home:
//! then both stay. Why nothing is lost by that is told in `docs/design/front.md`.

use bytes::Bytes;
use whimbrel_engine::error::{Code, Error, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_flow::large::{Existing, Outcome, Place, TRIES_MAX, Transfer, memory_bytes, transfer};
use whimbrel_wire::payload::{self, Dialect, Verdict};
use whimbrel_wire::value::Value;

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

/// Where a key is after an attempt to move it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carried {
    /// The source did not have it.
    WasHome,
    /// It has been moved, or the source's copy of what the target had already has been removed.
    Home,
    /// It is at the source as before, since the target cannot hold it; the text says why.
    Stays(String),
    /// It is at the source as before: the target has another one of this name, which nobody has moved there.
    Taken,
}

/// Moves `key`.
///
/// # Errors
/// Whatever a link or a server reports. Then it is not known which of the three steps were carried out.
pub async fn carry(source: &mut Link, target: &mut Link, key: &[u8], route: &Route<'_>) -> Result<Carried> {
    let Some((expires_at_ms, dump)) = read(source, key).await? else { return Ok(Carried::WasHome) };
    let written = match fit(dump, route.dialects, route.target) {
        Some(dump) => restore(target, key, expires_at_ms, &dump).await?,
        None => Written::Refused,
    };
    let is_taken = match written {
        Written::Now => false,
        Written::Before => true,
        Written::Refused => match copy(source, target, key, route).await? {
            Outcome::Unholdable(why) => return Ok(Carried::Stays(why)),
            outcome => outcome == Outcome::Skipped,
        },
    };
    if is_taken && !route.may_be_there {
        return Ok(Carried::Taken);
    }
    source.call(&[b"UNLINK", key]).await?;
    Ok(Carried::Home)
}

/// Whether a key is so large that it has to be moved in chunks. It never becomes so: nobody writes to the
/// source.
///
/// # Errors
/// As [`Link::call`].
pub async fn is_large(source: &mut Link, key: &[u8], route: &Route<'_>) -> Result<bool> {
    // Without `MEMORY USAGE` nobody knows.
    Ok(route.source.memory_usage
        && memory_bytes(source, key, LARGE_BYTES).await?.is_some_and(|bytes| bytes > LARGE_BYTES))
}

/// Expiry and payload; `None` where there is no such key. Two commands do, as nobody writes to the key in
/// between: it may expire, and then there is no payload. A transaction would be refused by a cluster in which
/// the key's slot is on the move.
async fn read(source: &mut Link, key: &[u8]) -> Result<Option<(Option<i64>, Bytes)>> {
    source.push(&[b"PEXPIRETIME", key]);
    source.push(&[b"DUMP", key]);
    source.flush().await?;
    let (expiry, dump) = (source.reply().await?, source.reply().await?);
    let expiry = source.check(expiry, b"PEXPIRETIME")?;
    match (expiry, source.check(dump, b"DUMP")?) {
        (_, Value::Null) => Ok(None),
        (Value::Int(at_ms), Value::Bulk(dump)) => Ok(Some(((at_ms >= 0).then_some(at_ms), dump))),
        (_, reply) => Err(source.unexpected("DUMP", &reply)),
    }
}

/// The payload as the target takes it; `None` where it takes none of this kind.
pub(crate) fn fit(dump: Bytes, (from, to): (Dialect, Dialect), target: &Capabilities) -> Option<Bytes> {
    let version_max = target.payload_version_max?;
    let found = payload::peek(&dump).ok()?;
    match payload::verdict(found.object_type, found.rdb_version, from, to, version_max) {
        Verdict::AsIs => Some(dump),
        Verdict::RewriteFooter(version) => payload::rewrite_footer(&dump, version).ok().map(Bytes::from),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It is there, or was created dead, as its time has come.
    Now,
    /// It was there.
    Before,
    /// The target does not understand the payload.
    Refused,
}

async fn restore(target: &mut Link, key: &[u8], expires_at_ms: Option<i64>, dump: &Bytes) -> Result<Written> {
    let out = target.outbox();
    out.command(if expires_at_ms.is_some() { 5 } else { 4 });
    out.arg(b"RESTORE");
    out.arg(key);
    // 0 means no expiry; the epoch itself is long past at 1 as well.
    out.arg_int(expires_at_ms.map_or(0, |at| at.max(1)));
    out.arg_bytes(dump);
    if expires_at_ms.is_some() {
        out.arg(b"ABSTTL");
    }
    target.flush().await?;
    let reply = target.reply().await?;
    match ServerError::of(&reply) {
        None => Ok(Written::Now),
        Some(e) if e.code == Code::BusyKey => Ok(Written::Before),
        Some(e) if matches!(e.code, Code::PayloadVersion | Code::PayloadFormat) => Ok(Written::Refused),
        Some(e) => Err(target.server_error(e, b"RESTORE")),
    }
}

/// Copies the key in chunks, with the commands of its type, unless the target has it. Nobody may write to it
/// meanwhile, but anybody may read.
///
/// # Errors
/// Whatever a link or a server reports; `Own` where the key changed. Never returns `Changing` or `Conflict`.
pub async fn copy(source: &mut Link, target: &mut Link, key: &[u8], route: &Route<'_>) -> Result<Outcome> {
    let task = Transfer {
        key,
        existing: Existing::Skip,
        place: Place::Staging,
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
        // Where it is gone it has expired since it was looked at. Nobody else removes it.
        outcome => Ok(outcome),
    }
}
