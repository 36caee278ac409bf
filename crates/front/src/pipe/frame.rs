//! Requests and replies that the front makes itself, or changes.

use std::ops::Range;

use bytes::BytesMut;

/// No server has a command of this name.
pub(crate) const REFUSED_COMMAND: &[u8] = b"whimbrel-refused";

/// A request of these words.
pub(crate) fn as_array<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    push_array(&mut bytes, words, |_| ());
    bytes.into()
}

/// Adds a request of these words, and reports where each of them is in `bytes`.
pub(crate) fn push_array<W: AsRef<[u8]>>(
    bytes: &mut BytesMut,
    words: &[W],
    mut at: impl FnMut(Range<usize>),
) {
    let push = |bytes: &mut BytesMut, kind: u8, number: usize| {
        bytes.extend_from_slice(format!("{}{number}\r\n", char::from(kind)).as_bytes());
    };
    push(bytes, b'*', words.len());
    for word in words {
        let word = word.as_ref();
        push(bytes, b'$', word.len());
        at(bytes.len()..bytes.len() + word.len());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

/// What an error reply can hold.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

/// The error that a client gets for a refused command, as a reply.
pub(crate) fn refusal(name: &[u8], why: &str) -> Vec<u8> {
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    format!("-ERR whimbrel front refuses {name}: {why}\r\n").into_bytes()
}

/// A reply to `SCAN` with another cursor. What is none is as it was; `None` if there is no other cursor for
/// it.
pub(crate) fn change_cursor(reply: &[u8], cursor_for: impl FnOnce(u64) -> Option<u64>) -> Option<Vec<u8>> {
    let parsed = || {
        let rest = reply.strip_prefix(b"*2\r\n$")?;
        let at = rest.windows(2).position(|two| two == b"\r\n")?;
        let len: usize = std::str::from_utf8(&rest[..at]).ok()?.parse().ok()?;
        let cursor: u64 = std::str::from_utf8(rest.get(at + 2..at + 2 + len)?).ok()?.parse().ok()?;
        Some((cursor, rest.get(at + 4 + len..)?))
    };
    let Some((cursor, keys)) = parsed() else { return Some(reply.to_vec()) };
    let cursor = cursor_for(cursor)?.to_string();
    let mut text = format!("*2\r\n${}\r\n{cursor}\r\n", cursor.len()).into_bytes();
    text.extend_from_slice(keys);
    Some(text)
}
