//! RESP2: the same acceptance, the same boundary and the same value as redis-protocol, but for known
//! differences.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::decode::decode_bytes;
use redis_protocol::resp2::types::BytesFrame;
use whimbrel_wire::scan::{Malformed, Progress, Scanner};
use whimbrel_wire::value::Value;

fn value_of(frame: &BytesFrame) -> Value {
    match frame {
        BytesFrame::SimpleString(text) => Value::Simple(text.clone()),
        BytesFrame::Error(text) => Value::Error(text.inner().clone()),
        BytesFrame::Integer(n) => Value::Int(*n),
        BytesFrame::BulkString(data) => Value::Bulk(data.clone()),
        BytesFrame::Array(items) => Value::Array(items.iter().map(value_of).collect()),
        BytesFrame::Null => Value::Null,
    }
}

/// Whether we refuse on purpose what redis-protocol takes: it takes a bare LF in a line, any two bytes after
/// a bulk string, and every integer that Rust parses (with a plus sign, with any number of zeros in front)
/// also as a length.
fn is_stricter_on_purpose(bytes: &[u8], refused: Malformed) -> bool {
    let line = bytes[refused.at..].split(|byte| *byte == b'\r').next().unwrap_or_default();
    match refused.what {
        "line without CRLF" => bytes[refused.at..].contains(&b'\n'),
        "bulk string without its closing CRLF" => bytes[refused.at..refused.at + 2] != *b"\r\n",
        "bad length" => matches!(line[1], b'+' | b'-') || line.len() > 20,
        "bad scalar" => line[0] == b':' && line.len() > 20,
        _ => false,
    }
}

/// Whether bytes may hold a type that only RESP3 knows.
fn may_be_resp3(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| b"_,#(!=%~>|".contains(byte))
}

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let ours = Scanner::default().scan(&bytes);
    if ours.is_err_and(|refused| refused.what == "nested too deep") {
        // redis-protocol recurses without a bound.
        return;
    }
    match (decode_bytes(&bytes), ours) {
        (Ok(Some((frame, len))), Ok(Progress::Complete(found))) => {
            assert_eq!(found, len);
            assert_eq!(Value::parse(&bytes.slice(..len)), Ok(value_of(&frame)));
        }
        (Ok(Some(_)), Ok(Progress::Incomplete(_))) => panic!("waiting for the rest of a complete frame"),
        (Ok(Some(_)), Err(refused)) => assert!(is_stricter_on_purpose(&bytes, refused), "{refused:?}"),
        (Ok(None), Ok(Progress::Complete(_))) => panic!("a frame that is not complete"),
        // We may know before its end that it cannot become a frame.
        (Ok(None), Ok(Progress::Incomplete(_)) | Err(_)) => {}
        // redis-protocol refuses the types of RESP3, and errors that are not UTF-8.
        (Err(_), Ok(Progress::Complete(len))) => {
            let frame = &bytes[..len];
            assert!(may_be_resp3(frame) || std::str::from_utf8(frame).is_err());
        }
        (Err(_), Ok(Progress::Incomplete(_))) => {
            assert!(may_be_resp3(&bytes), "waiting for the rest of a malformed frame");
        }
        (Err(_), Err(_)) => {}
    }
});
