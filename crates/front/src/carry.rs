//! The move of one key from the source to the target: read, written, removed, in this order.
//!
//! The caller holds the key's lock for as long as this takes, and after an error until it has succeeded on other links. The
//! old link to the target has to be known dead before that, or what it still carries could come late.
//!
//! **The target wins.** A key that both have was left by a crash after it was written and before it was removed. Nobody can have
//! written to either copy in between, so what the target has is that state, or what clients have made of it since:
//! `RESTORE` goes without `REPLACE`, and the source's copy is removed. Why nothing is lost by that is told in
//! `docs/design/front.md`.

use bytes::Bytes;
use whimbrel_engine::error::{Code, Error, Result, ServerError};
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_flow::typed::{Existing, Outcome, Place, TRIES_MAX, Transfer, transfer};
use whimbrel_wire::payload::{self, Dialect, Verdict};
use whimbrel_wire::value::Value;

/// How much of a value that cannot travel as a payload is in one command.
const CHUNK_BYTES: usize = 256 << 10;

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
}

/// Moves `key`.
///
/// # Errors
/// Whatever a link or a server reports. Then it is not known which of the three steps were carried out.
pub async fn carry(source: &mut Link, target: &mut Link, key: &[u8], route: &Route<'_>) -> Result<Carried> {
    let Some((expires_at_ms, dump)) = read(source, key).await? else { return Ok(Carried::WasHome) };
    let written = match fit(dump, route) {
        Some(dump) => restore(target, key, expires_at_ms, &dump).await?,
        None => Written::Refused,
    };
    if written == Written::Refused
        && let Some(why) = write_by_type(source, target, key, route).await?
    {
        return Ok(Carried::Stays(why));
    }
    source.call(&[b"UNLINK", key]).await?;
    Ok(Carried::Home)
}

/// Expiry and payload; `None` where there is no such key. Two commands do, as nobody writes to the key in between: it may expire, and then there is
/// no payload. A transaction would be refused by a cluster in which the key's slot is on the move.
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
fn fit(dump: Bytes, route: &Route<'_>) -> Option<Bytes> {
    let version_max = route.target.payload_version_max?;
    let found = payload::peek(&dump).ok()?;
    let (from, to) = route.dialects;
    match payload::verdict(found.object_type, found.rdb_version, from, to, version_max) {
        Verdict::AsIs => Some(dump),
        Verdict::RewriteFooter(version) => payload::rewrite_footer(&dump, version).ok().map(Bytes::from),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It is there: written now or before, or created dead, as its time has come.
    There,
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
        None => Ok(Written::There),
        Some(e) if e.code == Code::BusyKey => Ok(Written::There),
        Some(e) if matches!(e.code, Code::PayloadVersion | Code::PayloadFormat) => Ok(Written::Refused),
        Some(e) => Err(target.server_error(e, b"RESTORE")),
    }
}

/// Writes the key with the commands of its type, unless the target has it; returns why that cannot be.
async fn write_by_type(
    source: &mut Link,
    target: &mut Link,
    key: &[u8],
    route: &Route<'_>,
) -> Result<Option<String>> {
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
        // Gone: it has expired since it was read. Nobody else removes it, as its lock is held.
        Outcome::Written { .. } | Outcome::Skipped | Outcome::Gone => Ok(None),
        Outcome::Unholdable(why) => Ok(Some(why)),
        Outcome::Changing | Outcome::Conflict => {
            Err(Error::own("move a key", "it changed although nobody may write to it at the source")
                .with_remedy("see that no client connects to the source itself"))
        }
    }
}
