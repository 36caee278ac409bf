//! Questions about all keys, of which some are at the source and the others at the target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, ErrorKind, Result};
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

use crate::hub::Hub;
use crate::route::Whole;
use crate::session::Home;
use crate::session::identity::{Identity, Replies};
use crate::staging::{self, is_hidden};

/// Set in cursors of the target's half. No server has so many buckets that it uses this bit, and all clients can count so far.
pub(crate) const TARGET_HALF: u64 = 1 << 52;

/// How long a question waits until nothing moves.
const GATE_WAIT: Duration = Duration::from_secs(1);

/// Where an iteration goes on: at which server, with which cursor of its own. `None` for what is no cursor.
pub(crate) fn resume(cursor: &[u8], is_done: bool) -> Option<(Home, u64)> {
    let cursor: u64 = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    match cursor & TARGET_HALF {
        // The source is empty: what it had is at the target, which has not been gone through.
        0 if is_done => Some((Home::Target, 0)),
        0 => Some((Home::Source, cursor)),
        _ => Some((Home::Target, cursor & !TARGET_HALF)),
    }
}

/// The reply of a server to `SCAN`, with the cursor that the client has to come back with. An error is as it was.
pub(crate) fn with_cursor(home: Home, reply: &[u8]) -> Vec<u8> {
    let parsed = || {
        let rest = reply.strip_prefix(b"*2\r\n$")?;
        let at = rest.windows(2).position(|two| two == b"\r\n")?;
        let len: usize = std::str::from_utf8(&rest[..at]).ok()?.parse().ok()?;
        let cursor: u64 = std::str::from_utf8(rest.get(at + 2..at + 2 + len)?).ok()?.parse().ok()?;
        Some((cursor, rest.get(at + 4 + len..)?))
    };
    let Some((cursor, keys)) = parsed() else { return reply.to_vec() };
    let cursor = match (home, cursor) {
        (Home::Source, 0) => TARGET_HALF,
        (Home::Target, cursor @ 1..) => cursor | TARGET_HALF,
        (_, cursor) => cursor,
    };
    let cursor = cursor.to_string();
    let mut text = format!("*2\r\n${}\r\n{cursor}\r\n", cursor.len()).into_bytes();
    text.extend_from_slice(keys);
    text
}

/// The reply to a question about all keys, asked of both servers on connections of the client's own kind, while nothing moves.
pub(crate) async fn ask_both(hub: Arc<Hub>, identity: Identity, whole: Whole, words: Vec<Bytes>) -> Vec<u8> {
    let Ok(_gate) = timeout(GATE_WAIT, hub.gate.write()).await else {
        return b"-TRYAGAIN whimbrel front: keys are moving, and cannot be looked at as a whole right now\r\n".to_vec();
    };
    if whole == Whole::Count && hub.is_rebuilding() {
        return b"-TRYAGAIN whimbrel front: after a restart, keys are counted when the filter has been rebuilt\r\n"
            .to_vec();
    }
    let limit = Duration::from_millis(hub.servers.link.connect_timeout_ms);
    let asking = async {
        let mut replies = tokio::try_join!(
            ask(&hub.servers.source, &identity, limit, &words),
            ask(&hub.servers.target, &identity, limit, &words)
        )?;
        if let (Whole::Count, Value::Int(keys)) = (whole, &mut replies.1)
            && !hub.on_their_way.is_empty()
        {
            // The client may ask; the number is without what is not whole yet.
            *keys = staging::count(&hub).await?;
        }
        Ok::<_, Error>(replies)
    };
    match timeout(Duration::from_millis(hub.servers.link.reply_timeout_ms), asking).await {
        Ok(Ok(replies)) => merged(&hub, whole, replies, identity.null()),
        Ok(Err(error)) => format!("-ERR whimbrel front: {}\r\n", one_line(&error.to_string())).into_bytes(),
        Err(_) => b"-ERR whimbrel front: a server does not answer\r\n".to_vec(),
    }
}

async fn ask(endpoint: &Endpoint, identity: &Identity, limit: Duration, words: &[Bytes]) -> Result<Value> {
    let fail =
        |e| Error::new(endpoint.side, endpoint.address.to_string(), "ask for all keys", ErrorKind::Broken(e));
    let mut io = identity.introduce(endpoint, limit).await?;
    let mut out = Outbox::new();
    out.command(words.len());
    for word in words {
        out.arg_bytes(word);
    }
    io.write_all_buf(&mut out).await.map_err(fail)?;
    io.flush().await.map_err(fail)?;
    Replies::default().next(&mut io).await.map_err(fail)
}

fn merged(hub: &Hub, whole: Whole, replies: (Value, Value), null: &[u8]) -> Vec<u8> {
    match (whole, replies) {
        (_, (Value::Error(text), _) | (_, Value::Error(text))) => [b"-", &text[..], b"\r\n"].concat(),
        (Whole::Count, (Value::Int(source), Value::Int(target))) => {
            format!(":{}\r\n", source + target).into_bytes()
        }
        (Whole::Names, (Value::Array(mut keys), Value::Array(more))) => {
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
        (Whole::Any, (Value::Null, Value::Bulk(name))) if is_hidden(&name) => {
            b"-TRYAGAIN whimbrel front: a large key is moving\r\n".to_vec()
        }
        (Whole::Any, (source, target)) => {
            let target = target.as_bytes().is_none_or(|name| !is_hidden(name)).then_some(target);
            let target = target.unwrap_or(Value::Null);
            let key = match (source.is_null(), target.is_null()) {
                (false, false) if prefers_target(hub) => target,
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
fn prefers_target(hub: &Hub) -> bool {
    let moved = hub.filter.keys();
    let chance = hub.hash(format!("{:?}", Instant::now()).as_bytes());
    chance % hub.servers.keys.max(moved + 1) < moved
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

/// What an error reply can hold.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_goes_through_both_halves() {
        let reply = |cursor: &str| format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n$1\r\nk\r\n", cursor.len());
        let cursor_of = |home, cursor: &str| {
            let text = String::from_utf8(with_cursor(home, reply(cursor).as_bytes())).expect("text");
            assert!(text.ends_with("\r\n*1\r\n$1\r\nk\r\n"), "{text}");
            text.split("\r\n").nth(2).expect("a cursor").to_owned()
        };
        assert_eq!(resume(b"0", false), Some((Home::Source, 0)));
        assert_eq!(cursor_of(Home::Source, "17"), "17");
        assert_eq!(resume(b"17", false), Some((Home::Source, 17)));
        let half = cursor_of(Home::Source, "0");
        assert_eq!(resume(half.as_bytes(), false), Some((Home::Target, 0)));
        let more = cursor_of(Home::Target, "17");
        assert_eq!(resume(more.as_bytes(), false), Some((Home::Target, 17)));
        assert_eq!(resume(more.as_bytes(), true), Some((Home::Target, 17)));
        assert_eq!(cursor_of(Home::Target, "0"), "0");
        // What was found at the source so far is not all that had been there.
        assert_eq!(resume(b"17", true), Some((Home::Target, 0)));
        assert_eq!(resume(b"x", false), None);
        assert_eq!(with_cursor(Home::Source, b"-ERR no\r\n"), b"-ERR no\r\n");
    }
}
