//! Questions about all keys, of which some are at the source and the others at the target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use whimbrel_engine::error::{Error, ErrorKind, Result};
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

use crate::command::rule::KeyspaceQuery;
use crate::migrate::direction::{REVERSALS_BITS, Side};
use crate::migrate::staging::is_hidden;
use crate::migrate::state::MigrationState;
use crate::pipe::frame::{change_cursor, one_line};
use crate::upstream::Upstream;
use crate::upstream::identity::{Identity, ReplyReader};
use whimbrel_flow::large::staging_key;

/// Set in cursors of the target's phase. No server has enough buckets to use this bit, and every client can
/// count that far.
const TARGET_PHASE: u64 = 1 << 52;

/// Below that is the number of reversals. A cursor with another one says nothing of what is at which server
/// now.
const REVERSALS_SHIFT: u32 = 52 - REVERSALS_BITS;
const REVERSALS: u64 = ((1 << REVERSALS_BITS) - 1) << REVERSALS_SHIFT;

/// The part of an iteration over all keys that one of the servers gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanPhase {
    /// The server.
    pub(crate) side: Side,
    /// How often the direction has been reversed.
    pub(crate) reversals: u32,
}

/// How often keys are counted again if one has arrived meanwhile.
const COUNTS_MAX: usize = 20;

/// How long a question waits until nothing moves.
const GATE_WAIT: Duration = Duration::from_secs(1);

/// Where an iteration goes on: in which phase, with which cursor of that server. `None` if it is no cursor.
pub(crate) fn resume(cursor: &[u8], reversals: u32, is_done: bool) -> Option<(ScanPhase, u64)> {
    let cursor: u64 = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let at = |side| ScanPhase { side, reversals };
    let is_present = (cursor & REVERSALS) >> REVERSALS_SHIFT == u64::from(reversals);
    match cursor & TARGET_PHASE {
        TARGET_PHASE if is_present => Some((at(Side::Target), cursor & !(TARGET_PHASE | REVERSALS))),
        // The source is empty: what it had is at the target, which has not been iterated yet.
        _ if is_done => Some((at(Side::Target), 0)),
        0 if is_present => Some((at(Side::Source), cursor & !REVERSALS)),
        // Keys have moved the other way since, past this cursor or not: it begins anew.
        _ => Some((at(Side::Source), 0)),
    }
}

/// The reply of a server to `SCAN`, with the cursor that the client has to come back with. An error is as it
/// was.
pub(crate) fn with_cursor(phase: ScanPhase, reply: &[u8]) -> Vec<u8> {
    let reversals = u64::from(phase.reversals) << REVERSALS_SHIFT;
    let cursor_for = |cursor| {
        Some(match (phase.side, cursor) {
            (Side::Target, 0) => 0,
            (Side::Target, cursor) => cursor | TARGET_PHASE | reversals,
            (Side::Source, 0) => TARGET_PHASE | reversals,
            (Side::Source, cursor) => cursor | reversals,
        })
    };
    change_cursor(reply, cursor_for).unwrap_or_else(|| reply.to_vec())
}

/// The reply to a question about all keys, asked of both servers on connections of the client's own kind,
/// while nothing moves.
pub(crate) async fn ask_both(
    migration: Arc<MigrationState>,
    identity: Identity,
    query: KeyspaceQuery,
    words: Vec<Bytes>,
) -> Vec<u8> {
    let Ok(_gate) = timeout(GATE_WAIT, migration.gate.write()).await else {
        return b"-TRYAGAIN whimbrel front: keys are moving: try this again later\r\n".to_vec();
    };
    if query == KeyspaceQuery::Count && migration.is_rebuilding() {
        return b"-TRYAGAIN whimbrel front: after a restart, keys are counted when the filter has been \
            rebuilt\r\n"
            .to_vec();
    }
    let asking = async {
        let mut replies = tokio::try_join!(
            ask(&migration.servers.source, &identity, &words),
            ask(&migration.servers.target, &identity, &words)
        )?;
        if let (KeyspaceQuery::Count, Value::Int(keys)) = (query, &mut replies.1)
            && !migration.on_their_way.is_empty()
        {
            // The client may ask; the number is without what is not whole yet.
            *keys = count(&migration).await?;
        }
        Ok::<_, Error>(replies)
    };
    match timeout(Duration::from_millis(migration.servers.link.reply_timeout_ms), asking).await {
        Ok(Ok(replies)) => merged(&migration, query, replies, identity.null()),
        Ok(Err(error)) => format!("-ERR whimbrel front: {}\r\n", one_line(&error.to_string())).into_bytes(),
        Err(_) => b"-ERR whimbrel front: a server does not answer\r\n".to_vec(),
    }
}

/// How many keys the target has that are not on their way. The gate has to be held, so none begins to be and
/// none ends.
///
/// A value that is being assembled has no name, then its staged one, then its own: so if the number of these
/// names is the same before and after the count, they were there during it.
///
/// # Errors
/// Whatever the link or the target reports; `Own` if it goes too fast to be counted.
async fn count(migration: &MigrationState) -> Result<i64> {
    let mut names = Vec::new();
    for key in &*migration.on_their_way.keys() {
        names.push(Bytes::from(staging_key(&migration.job, key)));
        names.push(key.clone());
    }
    let mut target = migration.open_target().await?;
    for _ in 0..COUNTS_MAX {
        for name in &names {
            target.push(&[b"EXISTS", name]);
        }
        target.push(&[b"DBSIZE"]);
        for name in &names {
            target.push(&[b"EXISTS", name]);
        }
        target.flush().await?;
        let mut counts = Vec::new();
        for reply in target.replies(2 * names.len() + 1).await? {
            let reply = target.check(reply, b"DBSIZE")?;
            counts.push(reply.as_int().ok_or_else(|| target.unexpected("DBSIZE", &reply))?);
        }
        let (before, rest) = counts.split_at(names.len());
        let [all, after @ ..] = rest else { break };
        let hidden: i64 = before.iter().sum();
        if hidden == after.iter().sum::<i64>() {
            return Ok(all - hidden);
        }
    }
    Err(Error::own("count keys", "large keys arrive while they are counted: try again"))
}

async fn ask(upstream: &Upstream, identity: &Identity, words: &[Bytes]) -> Result<Value> {
    let endpoint = upstream.endpoint();
    let fail =
        |e| Error::new(endpoint.side, endpoint.address.to_string(), "ask for all keys", ErrorKind::Broken(e));
    let mut io = upstream.introduce(identity).await?.into_io();
    let mut out = Outbox::new();
    out.command(words.len());
    for word in words {
        out.arg_bytes(word);
    }
    io.write_all_buf(&mut out).await.map_err(fail)?;
    io.flush().await.map_err(fail)?;
    ReplyReader::default().next(&mut io).await.map_err(fail)
}

fn merged(migration: &MigrationState, query: KeyspaceQuery, replies: (Value, Value), null: &[u8]) -> Vec<u8> {
    match (query, replies) {
        (_, (Value::Error(text), _) | (_, Value::Error(text))) => [b"-", &text[..], b"\r\n"].concat(),
        (KeyspaceQuery::Count, (Value::Int(source), Value::Int(target))) => {
            format!(":{}\r\n", source + target).into_bytes()
        }
        (KeyspaceQuery::Names, (Value::Array(mut keys), Value::Array(more))) => {
            let at_source: std::collections::HashSet<Bytes> =
                keys.iter().filter_map(Value::as_bytes).cloned().collect();
            // After a crash, a few may be on both sides.
            keys.extend(
                more.into_iter().filter(|key| {
                    key.as_bytes().is_none_or(|key| !at_source.contains(key) && !is_hidden(key))
                }),
            );
            let mut text = format!("*{}\r\n", keys.len()).into_bytes();
            for key in &keys {
                bulk(&mut text, key, null);
            }
            text
        }
        // The key that is being assembled is at the source, unless it has just expired.
        (KeyspaceQuery::Any, (Value::Null, Value::Bulk(name))) if is_hidden(&name) => {
            b"-TRYAGAIN whimbrel front: a large key is moving\r\n".to_vec()
        }
        (KeyspaceQuery::Any, (source, target)) => {
            let target = target.as_bytes().is_none_or(|name| !is_hidden(name)).then_some(target);
            let target = target.unwrap_or(Value::Null);
            let key = match (source.is_null(), target.is_null()) {
                (false, false) if prefers_target(migration) => target,
                (false, _) => source,
                (true, _) => target,
            };
            let mut text = Vec::new();
            bulk(&mut text, &key, null);
            text
        }
        _ => b"-ERR whimbrel front: a server gave an answer of another kind\r\n".to_vec(),
    }
}

/// Decides by chance, as likely as the keys that have moved are among all.
fn prefers_target(migration: &MigrationState) -> bool {
    let moved = migration.arrived.keys();
    let chance = migration.hash(format!("{:?}", Instant::now()).as_bytes());
    chance % migration.servers.keys.max(moved + 1) < moved
}

fn bulk(text: &mut Vec<u8>, value: &Value, null: &[u8]) {
    match value.as_bytes() {
        Some(bytes) => {
            text.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
            text.extend_from_slice(bytes);
            text.extend_from_slice(b"\r\n");
        }
        None => text.extend_from_slice(null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::direction::REVERSALS_MAX;

    #[test]
    fn an_iteration_goes_through_both_halves() {
        let reply = |cursor: &str| format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n$1\r\nk\r\n", cursor.len());
        let cursor_of = |side, reversals, cursor: &str| {
            let text =
                String::from_utf8(with_cursor(ScanPhase { side, reversals }, reply(cursor).as_bytes()));
            let text = text.expect("text");
            assert!(text.ends_with("\r\n*1\r\n$1\r\nk\r\n"), "{text}");
            text.split("\r\n").nth(2).expect("a cursor").to_owned()
        };
        for reversals in [0, 1, REVERSALS_MAX] {
            let at = |side, cursor| Some((ScanPhase { side, reversals }, cursor));
            let cursor_of = |side, cursor| cursor_of(side, reversals, cursor);
            let resume = |cursor: &str, is_done| resume(cursor.as_bytes(), reversals, is_done);
            assert_eq!(resume("0", false), at(Side::Source, 0));
            let more = cursor_of(Side::Source, "17");
            assert_eq!(resume(&more, false), at(Side::Source, 17));
            // What was found at the source so far is not all that had been there.
            assert_eq!(resume(&more, true), at(Side::Target, 0));
            let phase = cursor_of(Side::Source, "0");
            assert_eq!(resume(&phase, false), at(Side::Target, 0));
            let more = cursor_of(Side::Target, "17");
            assert_eq!(resume(&more, false), at(Side::Target, 17));
            assert_eq!(resume(&more, true), at(Side::Target, 17));
            assert_eq!(cursor_of(Side::Target, "0"), "0");
        }
        // A cursor that the source gave before keys moved.
        assert_eq!(cursor_of(Side::Source, 0, "17"), "17");
        assert_eq!(resume(b"x", 0, false), None);
        let phase = ScanPhase { side: Side::Source, reversals: 0 };
        assert_eq!(with_cursor(phase, b"-ERR no\r\n"), b"-ERR no\r\n");
        // After a turn none of them is worth anything.
        for (side, cursor) in [(Side::Source, "17"), (Side::Source, "0"), (Side::Target, "17")] {
            let old = cursor_of(side, 2, cursor);
            let first = |side| Some((ScanPhase { side, reversals: 3 }, 0));
            assert_eq!(resume(old.as_bytes(), 3, false), first(Side::Source));
            assert_eq!(resume(old.as_bytes(), 3, true), first(Side::Target));
        }
    }
}
