//! Both sides as one worker asks them, and what is said and asked of elements whatever the type of their key.

use bytes::Bytes;
use whimbrel_engine::error::Result;
use whimbrel_wire::value::Value;

use super::case::{Fault, KeyType, items, sound};
use super::options::Depth;
use super::peer::{Peer, Request};
use super::report::quoted;

/// What is compared, and with what bounds.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub depth: Depth,
    pub types: Vec<String>,
    pub ttl_tolerance_ms: u64,
    pub chunk_bytes: u64,
    pub check_extra: bool,
}

/// Both sides, as one worker sees them.
#[derive(Debug)]
pub(super) struct Pair {
    pub source: Peer,
    pub target: Peer,
    pub rules: Rules,
}

impl Pair {
    /// The same requests to both sides at the same time.
    pub async fn both(&mut self, requests: &[Request]) -> Result<(Vec<Value>, Vec<Value>)> {
        if requests.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        tokio::try_join!(self.source.run(requests), self.target.run(requests))
    }

    /// The same request to both sides at the same time.
    pub(super) async fn both_once(&mut self, request: Request) -> Result<(Value, Value), Fault> {
        let command = request.command();
        let requests = [request];
        let (mut source, mut target) = self.both(&requests).await?;
        match (source.pop(), target.pop()) {
            (Some(source), Some(target)) => {
                Ok((sound(&self.source, command, source)?, sound(&self.target, command, target)?))
            }
            _ => Err(Fault::Shifted),
        }
    }
}

/// Where two strings of the same length differ first, when `source` and `target` start at `offset`.
pub(super) fn position_text(source: &[u8], target: &[u8], offset: u64, length: u64) -> String {
    let at = source.iter().zip(target).position(|(s, t)| s != t).unwrap_or(0);
    format!("first different byte at {} of {length}", offset + at as u64)
}

/// Two lengths.
pub(super) fn lengths_text(of: &str, source: u64, target: u64) -> String {
    format!("{source} {of} on the source, {target} on the target")
}

/// The command that counts the elements of a collection.
pub(super) fn cardinality_command(kind: Option<&KeyType>) -> &'static str {
    match kind {
        Some(KeyType::List) => "LLEN",
        Some(KeyType::Set) => "SCARD",
        Some(KeyType::Zset) => "ZCARD",
        _ => "HLEN",
    }
}

/// What `HPEXPIRETIME` says of a field that does not exist.
const NO_FIELD: i64 = -2;

/// The expiry times of fields of several hashes, as `HPEXPIRETIME` reports them: -1 if there is none, -2 if
/// there is no such field. A server without them has none.
pub(super) async fn field_expiries(
    peer: &mut Peer,
    hashes: &[(Bytes, &[Bytes])],
) -> Result<Vec<Result<Vec<i64>, Fault>>> {
    if !peer.capabilities().hash_field_ttl {
        return Ok(hashes.iter().map(|(_, fields)| Ok(vec![-1; fields.len()])).collect());
    }
    let request = |(key, fields): &(Bytes, &[Bytes])| {
        Request::on("HPEXPIRETIME", key).arg("FIELDS").int(fields.len() as u64).args(*fields)
    };
    let requests: Vec<Request> = hashes.iter().map(request).collect();
    let replies = peer.run(&requests).await?;
    let read = |(reply, (_, fields)): (Value, &(Bytes, &[Bytes]))| {
        // Redis answers for a key that is gone with -2 for each field, some versions with an empty list or
        // null.
        let times = match sound(peer, "HPEXPIRETIME", reply)? {
            Value::Null => return Err(Fault::Shifted),
            reply => items(peer, "HPEXPIRETIME", reply)?,
        };
        let times: Option<Vec<i64>> = times.iter().map(Value::as_int).collect();
        times.filter(|t| t.len() == fields.len()).ok_or(Fault::Shifted)
    };
    Ok(replies.into_iter().zip(hashes).map(read).collect())
}

/// Which fields of several hashes have ended, or do so within `tolerance_ms`.
pub(super) async fn due_fields(
    peer: &mut Peer,
    hashes: &[(Bytes, &[Bytes])],
    tolerance_ms: u64,
) -> Result<Vec<Result<Vec<bool>, Fault>>> {
    let with_fields: Vec<(Bytes, &[Bytes])> =
        hashes.iter().filter(|(_, fields)| !fields.is_empty()).cloned().collect();
    let mut ends = field_expiries(peer, &with_fields).await?.into_iter();
    // Asked after the fields were, so that what has ended in between is due as well.
    let times: Vec<Request> = with_fields.iter().map(|(key, _)| Request::near("TIME", key)).collect();
    let mut times = peer.run(&times).await?.into_iter();
    let mut due = Vec::with_capacity(hashes.len());
    for (_, fields) in hashes {
        if fields.is_empty() {
            due.push(Ok(Vec::new()));
            continue;
        }
        let (Some(ends), Some(time)) = (ends.next(), times.next()) else {
            return Err(peer.unexpected("HPEXPIRETIME"));
        };
        let now_ms = time_ms(&time).ok_or_else(|| peer.unexpected("TIME"))?;
        let due_ms = now_ms.saturating_add(tolerance_ms);
        let is_due = |end: i64| end == NO_FIELD || u64::try_from(end).is_ok_and(|end_ms| end_ms <= due_ms);
        due.push(ends.map(|ends| ends.into_iter().map(is_due).collect()));
    }
    Ok(due)
}

/// The reply to `TIME` in milliseconds.
pub(super) fn time_ms(reply: &Value) -> Option<u64> {
    let [seconds, micros] = reply.as_items()? else { return None };
    let part = |v: &Value| u64::try_from(v.as_int()?).ok();
    Some(part(seconds)? * 1000 + part(micros)? / 1000)
}

/// Whether two replies of `HPEXPIRETIME` mean the same.
pub(super) fn same_field_expiry(source: i64, target: i64, tolerance_ms: u64) -> bool {
    if source < 0 || target < 0 { source == target } else { source.abs_diff(target) <= tolerance_ms }
}

/// A finding about one of several elements.
pub(super) fn element_text(what: &str, name: &[u8], how: &str, others: u64) -> String {
    match others {
        0 => format!("{what} {} {how}", quoted(name)),
        n => format!("{what} {} {how}, and {n} more", quoted(name)),
    }
}
