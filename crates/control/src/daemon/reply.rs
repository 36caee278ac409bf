//! Replies as bytes.

use bytes::{BufMut, Bytes, BytesMut};
use whimbrel_wire::encode::Protocol;
use whimbrel_wire::value::Value;

/// Appends a value. What RESP2 has no kind for is sent as servers send it there: maps and sets as arrays,
/// doubles and numbers as strings, booleans as integers.
pub(super) fn encode(value: &Value, protocol: Protocol, out: &mut BytesMut) {
    let is_new = protocol == Protocol::Resp3;
    match value {
        Value::Null if is_new => out.put_slice(b"_\r\n"),
        Value::Null => out.put_slice(b"$-1\r\n"),
        Value::Simple(text) => line(b'+', text, out),
        Value::Error(text) => line(b'-', text, out),
        Value::Int(n) => line(b':', n.to_string().as_bytes(), out),
        Value::Bool(b) if is_new => out.put_slice(if *b { b"#t\r\n" } else { b"#f\r\n" }),
        Value::Bool(b) => line(b':', if *b { b"1" } else { b"0" }, out),
        Value::Double(n) if is_new => line(b',', n.to_string().as_bytes(), out),
        Value::Double(n) => string(b'$', n.to_string().as_bytes(), out),
        Value::BigNumber(text) if is_new => line(b'(', text, out),
        Value::Verbatim(text) if is_new => {
            line(b'=', (text.len() + 4).to_string().as_bytes(), out);
            out.put_slice(b"txt:");
            out.put_slice(text);
            out.put_slice(b"\r\n");
        }
        Value::Bulk(text) | Value::Verbatim(text) | Value::BigNumber(text) => string(b'$', text, out),
        Value::Array(items) => aggregate(b'*', items, protocol, out),
        Value::Set(items) => aggregate(if is_new { b'~' } else { b'*' }, items, protocol, out),
        Value::Push(items) => aggregate(if is_new { b'>' } else { b'*' }, items, protocol, out),
        Value::Map(pairs) => {
            let (kind, len) = if is_new { (b'%', pairs.len()) } else { (b'*', pairs.len() * 2) };
            line(kind, len.to_string().as_bytes(), out);
            for (key, value) in pairs {
                encode(key, protocol, out);
                encode(value, protocol, out);
            }
        }
    }
}

/// A text as one line: line breaks within it would end the reply early.
fn line(kind: u8, text: &[u8], out: &mut BytesMut) {
    out.put_u8(kind);
    out.extend(text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.put_slice(b"\r\n");
}

fn string(kind: u8, text: &[u8], out: &mut BytesMut) {
    line(kind, text.len().to_string().as_bytes(), out);
    out.put_slice(text);
    out.put_slice(b"\r\n");
}

fn aggregate(kind: u8, items: &[Value], protocol: Protocol, out: &mut BytesMut) {
    line(kind, items.len().to_string().as_bytes(), out);
    for item in items {
        encode(item, protocol, out);
    }
}

/// `+OK`.
pub(super) fn ok() -> Value {
    Value::Simple(Bytes::from_static(b"OK"))
}

/// `-ERR text`.
pub(super) fn error(text: impl AsRef<str>) -> Value {
    Value::Error(Bytes::from(format!("ERR {}", text.as_ref())))
}

/// A string.
pub(super) fn text(text: &str) -> Value {
    Value::Bulk(Bytes::copy_from_slice(text.as_bytes()))
}

pub(super) fn wrong_number(command: &str) -> Value {
    error(format!("wrong number of arguments for '{command}' command"))
}

pub(super) fn unknown_subcommand(command: &str, sub: &[u8]) -> Value {
    error(format!("unknown subcommand '{}'. Try {command} HELP.", shown(sub)))
}

/// A word of a client's, for an error: printable, and not long.
pub(super) fn shown(word: &[u8]) -> String {
    const CHARS_MAX: usize = 128;
    String::from_utf8_lossy(word).chars().filter(|c| !c.is_control()).take(CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(value: &Value) -> [String; 2] {
        [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = BytesMut::new();
            encode(value, protocol, &mut out);
            String::from_utf8(out.to_vec()).expect("text")
        })
    }

    #[test]
    fn values_are_sent_as_the_protocol_has_them() {
        let map = Value::Map(vec![(text("a"), Value::Int(1)), (text("b"), Value::Null)]);
        assert_eq!(
            both(&map),
            ["*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n$-1\r\n", "%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n_\r\n"]
        );
        assert_eq!(both(&Value::Verbatim(Bytes::from_static(b"x"))), ["$1\r\nx\r\n", "=5\r\ntxt:x\r\n"]);
        assert_eq!(both(&Value::Bool(true)), [":1\r\n", "#t\r\n"]);
        assert_eq!(both(&Value::Double(1.5)), ["$3\r\n1.5\r\n", ",1.5\r\n"]);
        assert_eq!(both(&Value::Set(vec![Value::Int(7)])), ["*1\r\n:7\r\n", "~1\r\n:7\r\n"]);
    }

    #[test]
    fn nobody_can_smuggle_in_a_reply() {
        assert_eq!(both(&error("no\r\n+OK"))[0], "-ERR no  +OK\r\n");
    }
}
