//! Writes states.

use bytes::Bytes;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::expiry;
use whimbrel_engine::link::Link;
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::value::Value;

use super::state::{Body, KeyState};

/// What to do if there is a key of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Replace it: writing twice changes nothing.
    Replace,
    /// Leave it as it is.
    IfAbsent,
}

/// How states are written.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// What to do if there is a key of that name.
    pub mode: WriteMode,
    /// The server is importing the slots of the keys: each command follows an `ASKING`.
    pub asking: bool,
    /// Expiries are by [the clock of this process](expiry::now_ms), which the server's need not agree with:
    /// it gets the time that is left when the command is queued.
    pub by_own_clock: bool,
}

/// What became of one state.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// The key is there, or was created dead as its time has come; or it was removed.
    Done,
    /// It was to be removed, and was not there.
    Absent,
    /// With [`WriteMode::IfAbsent`]: there is a key of that name. Nothing was changed.
    Exists,
    /// The server does not understand the payload. Nothing was changed.
    NotUnderstood(ServerError),
    /// The server refuses. Nothing was changed.
    Refused(ServerError),
}

impl Write {
    /// Queues the command that writes a state, or removes the key. [`Write::replies`] come.
    pub fn push(self, out: &mut Outbox, state: &KeyState) {
        if self.asking {
            out.push(&[b"ASKING"]);
        }
        let (has_expiry, replaces) = (state.expires_at_ms.is_some(), self.mode == WriteMode::Replace);
        let is_absolute = has_expiry && !self.by_own_clock;
        let expiry = state.expires_at_ms.map(|at| if is_absolute { at } else { at - expiry::now_ms() });
        match &state.body {
            Body::String(value) => {
                out.command(3 + if has_expiry { 2 } else { 0 } + usize::from(!replaces));
                out.arg(Write::command(&state.body));
                out.arg_bytes(&state.key);
                out.arg_bytes(value);
                if let Some(ms) = expiry {
                    out.arg(if is_absolute { b"PXAT" } else { b"PX" });
                    out.arg_int(ms.max(AT_MIN_MS));
                }
                if !replaces {
                    out.arg(b"NX");
                }
            }
            Body::Payload(payload) => {
                out.command(4 + usize::from(is_absolute) + usize::from(replaces));
                out.arg(Write::command(&state.body));
                out.arg_bytes(&state.key);
                out.arg_int(restore_time(expiry));
                out.arg_bytes(payload);
                if is_absolute {
                    out.arg(b"ABSTTL");
                }
                if replaces {
                    out.arg(b"REPLACE");
                }
            }
            Body::Gone => out.push(&unlink(&state.key)),
        }
    }

    /// The name of the command that writes such a body.
    pub fn command(body: &Body) -> &'static [u8] {
        match body {
            Body::String(_) => b"SET",
            Body::Payload(_) => b"RESTORE",
            Body::Gone => b"UNLINK",
        }
    }

    /// How many replies come for each state; the last one is for [`Write::written`].
    pub fn replies(self) -> usize {
        if self.asking { 2 } else { 1 }
    }

    /// What a reply says about a state with this body; `None` for what is no reply to such a command.
    pub fn written(self, reply: &Value, body: &Body) -> Option<Written> {
        if let Some(e) = ServerError::of(reply) {
            return Some(match e.code {
                Code::BusyKey if self.mode == WriteMode::IfAbsent => Written::Exists,
                Code::PayloadVersion | Code::PayloadFormat => Written::NotUnderstood(e),
                _ => Written::Refused(e),
            });
        }
        match (reply, body) {
            (Value::Int(0), Body::Gone) => Some(Written::Absent),
            (Value::Int(_), Body::Gone) | (Value::Simple(_), _) => Some(Written::Done),
            // `SET NX` found the key.
            (Value::Null, Body::String(_)) if self.mode == WriteMode::IfAbsent => Some(Written::Exists),
            _ => None,
        }
    }
}

/// The first time that servers take for one, and the shortest. 0 would mean that a key does not expire, or is
/// refused; what expires at the epoch itself is long past at 1 as well.
const AT_MIN_MS: i64 = 1;

/// What `RESTORE` gets as its time, absolute or not: 0 for none.
pub(super) fn restore_time(ms: Option<i64>) -> i64 {
    ms.map_or(0, |ms| ms.max(AT_MIN_MS))
}

/// Queues one command that sets strings without expiries: all of them, or none if one is there and `mode`
/// does not replace it. One reply comes; if they are replaced [`Write::written`] reads it for each of them.
pub fn push_strings<'a>(
    out: &mut Outbox,
    mode: WriteMode,
    strings: impl ExactSizeIterator<Item = &'a KeyState>,
) {
    out.command(1 + 2 * strings.len());
    out.arg(match mode {
        WriteMode::Replace => b"MSET",
        WriteMode::IfAbsent => b"MSETNX",
    });
    for state in strings {
        out.arg_bytes(&state.key);
        match &state.body {
            Body::String(value) => out.arg_bytes(value),
            Body::Payload(_) | Body::Gone => out.arg(b""),
        }
    }
}

/// Writes states over `link`, in their order, and says of each what became of it.
///
/// # Errors
/// Whatever the link reports; `Unexpected` for what is no reply to such a command. What the server refuses is
/// [`Written`].
pub async fn write_all(link: &mut Link, write: Write, states: &[KeyState]) -> Result<Vec<Written>> {
    for state in states {
        write.push(link.outbox(), state);
    }
    link.flush().await?;
    let mut written = Vec::with_capacity(states.len());
    for state in states {
        for _ in 1..write.replies() {
            link.reply().await?;
        }
        let reply = link.reply().await?;
        let one = write.written(&reply, &state.body);
        written.push(one.ok_or_else(|| link.unexpected("write a key", &reply))?);
    }
    Ok(written)
}

/// Writes strings without expiries with one command, over a `link` to one server, if none of the keys is
/// there. False if one is, or the server refuses: then nothing is written.
///
/// # Errors
/// As [`remove_together`].
pub async fn write_strings_together(link: &mut Link, states: &[KeyState]) -> Result<bool> {
    push_strings(link.outbox(), WriteMode::IfAbsent, states.iter());
    link.flush().await?;
    match link.reply().await? {
        Value::Int(written) => Ok(written == 1),
        reply if ServerError::of(&reply).is_some() => Ok(false),
        reply => Err(link.unexpected("MSETNX", &reply)),
    }
}

/// Removes the keys of these states with one command, over a `link` to one server. False if that refuses it:
/// then nothing is removed.
///
/// # Errors
/// Whatever the link reports; `Unexpected` for what is no reply to such a command.
pub async fn remove_together(link: &mut Link, states: &[KeyState]) -> Result<bool> {
    let out = link.outbox();
    out.command(1 + states.len());
    out.arg(Write::command(&Body::Gone));
    for state in states {
        out.arg_bytes(&state.key);
    }
    link.flush().await?;
    match link.reply().await? {
        Value::Int(_) => Ok(true),
        reply if ServerError::of(&reply).is_some() => Ok(false),
        reply => Err(link.unexpected("UNLINK", &reply)),
    }
}

/// The command that removes a key, for callers that send it themselves.
pub fn unlink(key: &[u8]) -> [&[u8]; 2] {
    [Write::command(&Body::Gone), key]
}

/// Removes keys over `link`, and says of each whether it was there. With `asking` the server is importing
/// their slots.
///
/// # Errors
/// Whatever the link or the server reports.
pub async fn unlink_all(link: &mut Link, asking: bool, keys: &[Bytes]) -> Result<Vec<bool>> {
    let states: Vec<KeyState> = keys.iter().cloned().map(KeyState::gone).collect();
    let write = Write { mode: WriteMode::Replace, asking, by_own_clock: false };
    let mut removed = Vec::with_capacity(keys.len());
    for written in write_all(link, write, &states).await? {
        match written {
            Written::Refused(e) | Written::NotUnderstood(e) => return Err(link.server_error(e, b"UNLINK")),
            written => removed.push(written == Written::Done),
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    fn words(write: Write, body: Body, expires_at_ms: Option<i64>) -> String {
        let mut out = Outbox::new();
        write.push(&mut out, &KeyState { key: Bytes::from_static(b"k"), body, expires_at_ms });
        let bytes = out.copy_to_bytes(out.remaining());
        let Ok(Value::Array(words)) = Value::parse(&bytes) else { panic!("no command: {bytes:?}") };
        let word = |word: &Value| word.as_str().expect("a word").to_owned();
        words.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn states_are_written_with_their_expiries_whatever_they_are() {
        let replace = Write { mode: WriteMode::Replace, asking: false, by_own_clock: false };
        let if_absent = Write { mode: WriteMode::IfAbsent, ..replace };
        let string = || Body::String(Bytes::from_static(b"v"));
        let payload = || Body::Payload(Bytes::from_static(b"p"));
        assert_eq!(words(replace, string(), None), "SET k v");
        assert_eq!(words(replace, string(), Some(0)), "SET k v PXAT 1");
        assert_eq!(words(if_absent, string(), Some(70)), "SET k v PXAT 70 NX");
        assert_eq!(words(replace, payload(), None), "RESTORE k 0 p REPLACE");
        assert_eq!(words(replace, payload(), Some(-5)), "RESTORE k 1 p ABSTTL REPLACE");
        assert_eq!(words(if_absent, payload(), Some(70)), "RESTORE k 70 p ABSTTL");
        assert_eq!(words(if_absent, Body::Gone, None), "UNLINK k");
        let own = Write { by_own_clock: true, ..replace };
        assert_eq!(words(own, payload(), None), "RESTORE k 0 p REPLACE");
        assert_eq!(words(own, payload(), Some(expiry::now_ms() - 5)), "RESTORE k 1 p REPLACE");
        assert_eq!(words(own, string(), Some(expiry::now_ms() - 5)), "SET k v PX 1");
        let written = words(own, payload(), Some(expiry::now_ms() + 3_600_000));
        let left: i64 = written.split(' ').nth(2).and_then(|ms| ms.parse().ok()).expect("a time");
        assert!((1_800_000..=3_600_000).contains(&left), "{written}");
    }

    #[test]
    fn a_reply_says_what_became_of_a_state() {
        let replace = Write { mode: WriteMode::Replace, asking: false, by_own_clock: false };
        let if_absent = Write { mode: WriteMode::IfAbsent, ..replace };
        let (string, payload) = (Body::String(Bytes::new()), Body::Payload(Bytes::new()));
        let reply = |text: &'static str| Value::parse(&Bytes::from_static(text.as_bytes())).expect("a reply");
        assert_eq!(replace.written(&reply("+OK\r\n"), &string), Some(Written::Done));
        assert_eq!(if_absent.written(&Value::Null, &string), Some(Written::Exists));
        assert_eq!(replace.written(&Value::Null, &string), None);
        assert_eq!(if_absent.written(&reply("-BUSYKEY it is there\r\n"), &payload), Some(Written::Exists));
        assert_eq!(replace.written(&Value::Int(0), &Body::Gone), Some(Written::Absent));
        assert_eq!(replace.written(&Value::Int(1), &Body::Gone), Some(Written::Done));
        let bad = replace.written(&reply("-ERR Bad data format\r\n"), &payload);
        assert!(matches!(bad, Some(Written::NotUnderstood(_))), "{bad:?}");
        assert!(matches!(replace.written(&reply("-OOM full\r\n"), &payload), Some(Written::Refused(_))));
    }
}
