//! Writes and removes keys as long as a fence is what it was.
//!
//! A *fence* is a key whose value says which process may change the keys of its slot. A process that may not
//! any more could have sent commands that are carried out later. So each command that changes keys is part of
//! a script that checks the fence first. Its owner decides how a fence is taken.

use bytes::Bytes;
use whimbrel_engine::error::ServerError;
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

use super::state::{Body, KeyState};
use super::write::restore_time;

const RESTORE: &str = include_str!("restore.lua");
const UNLINK: &str = include_str!("unlink.lua");

/// A fence, and what it has to be.
#[derive(Debug, Clone, Copy)]
pub struct DataFence<'a> {
    /// Its name, in the slot of the keys.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

/// What came of a script.
#[derive(Debug, PartialEq)]
pub enum Fenced {
    /// It was done, to this many keys.
    Done(u64),
    /// The state at this index was refused. Those before it were written, those after it were not tried.
    Refused(usize, ServerError),
    /// The fence is this, and nothing was done; empty if there is none.
    Lost(Bytes),
    /// The server refuses the script.
    Forbidden(ServerError),
    /// This is no reply of such a script.
    Unexpected(Value),
}

/// Queues a script that replaces keys by these states, payloads all of them. Its reply is for [`written`].
pub fn push_write(out: &mut Outbox, fence: DataFence<'_>, states: &[KeyState]) {
    push(out, RESTORE, fence, states.iter().map(|state| &state.key), 2 * states.len());
    for state in states {
        out.arg_int(restore_time(state.expires_at_ms));
        match &state.body {
            Body::Payload(payload) => out.arg_bytes(payload),
            // Never asked for, and refused by the server.
            Body::String(_) | Body::Gone => out.arg(b""),
        }
    }
}

/// Queues a script that removes keys. Its reply is for [`removed`].
pub fn push_unlink(out: &mut Outbox, fence: DataFence<'_>, keys: &[Bytes]) {
    push(out, UNLINK, fence, keys.iter(), 0);
}

/// A script over the fence and keys, with `more` arguments to come after what the fence has to be.
fn push<'a>(
    out: &mut Outbox,
    script: &str,
    fence: DataFence<'_>,
    keys: impl ExactSizeIterator<Item = &'a Bytes>,
    more: usize,
) {
    out.command(5 + keys.len() + more);
    out.arg(b"EVAL");
    out.arg(script.as_bytes());
    out.arg((1 + keys.len()).to_string().as_bytes());
    out.arg(fence.key);
    keys.for_each(|key| out.arg(key));
    out.arg(fence.value);
}

/// What the reply to [`push_write`] of `states` says.
pub fn written(reply: Value, states: &[KeyState]) -> Fenced {
    match answer(&reply) {
        Ok([Value::Int(0)]) => Fenced::Done(states.len() as u64),
        Ok([Value::Int(number), Value::Bulk(text)]) => {
            let index = usize::try_from(*number).ok().and_then(|number| number.checked_sub(1));
            match index.filter(|index| *index < states.len()) {
                Some(index) => Fenced::Refused(index, ServerError::classify(text)),
                None => Fenced::Unexpected(reply),
            }
        }
        Ok(_) => Fenced::Unexpected(reply),
        Err(fenced) => fenced,
    }
}

/// What the reply to [`push_unlink`] says: how many keys there were.
pub fn removed(reply: Value) -> Fenced {
    match answer(&reply) {
        Ok([Value::Int(0), Value::Int(removed)]) => Fenced::Done(removed.unsigned_abs()),
        Ok(_) => Fenced::Unexpected(reply),
        Err(fenced) => fenced,
    }
}

/// The answer of a script, unless it did nothing.
fn answer(reply: &Value) -> Result<&[Value], Fenced> {
    if let Some(e) = ServerError::of(reply) {
        return Err(Fenced::Forbidden(e));
    }
    match reply.as_items() {
        Some([Value::Int(-1), Value::Bulk(held)]) => Err(Fenced::Lost(held.clone())),
        Some(items) => Ok(items),
        None => Err(Fenced::Unexpected(reply.clone())),
    }
}
