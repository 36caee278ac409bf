//! Damaged frames and random bytes: no panic, no dependence on how they arrive, and the same judgement as the
//! other library where both are strict.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use redis_protocol::resp2;
use whimbrel_wire::scan::{Malformed, Progress};
use whimbrel_wire::value::Value;

use super::frames::{encoded, encoded2, frame2, scan_pieces, scan_whole, value2};

#[derive(Debug, Clone)]
enum Damage {
    Replace(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Truncate(usize),
    /// Copies some bytes from one place to another.
    Repeat(usize, usize, usize),
}

fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![1 => any::<u8>(), 3 => prop::sample::select(b"\r\n$*:+-_%,#(=!~>|0123456789tf".to_vec())]
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = 0..1_000_usize;
    prop_oneof![
        (place.clone(), byte()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (place.clone(), byte()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        place.clone().prop_map(Damage::Remove),
        place.clone().prop_map(Damage::Truncate),
        (place.clone(), place, 0..10_usize).prop_map(|(from, to, len)| Damage::Repeat(from, to, len)),
    ]
}

fn damaged(mut frame: Vec<u8>, damages: Vec<Damage>) -> Vec<u8> {
    for damage in damages {
        let len = frame.len().max(1);
        match damage {
            _ if frame.is_empty() => {}
            Damage::Replace(at, byte) => frame[at % len] = byte,
            Damage::Insert(at, byte) => frame.insert(at % len, byte),
            Damage::Remove(at) => {
                frame.remove(at % len);
            }
            Damage::Truncate(at) => frame.truncate(at % len),
            Damage::Repeat(from, to, count) => {
                let copied: Vec<u8> = frame[from % len..].iter().copied().take(count).collect();
                let at = to % len;
                frame.splice(at..at, copied);
            }
        }
    }
    frame
}

/// Bytes that are nearly frames of RESP2.
fn nearly2() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (frame2(), vec(damage(), 0..4)).prop_map(|(frame, damages)| damaged(encoded2(&frame), damages)),
        1 => vec(byte(), 0..60),
    ]
}

/// Bytes that are nearly frames of either version.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (encoded(), vec(damage(), 0..4)).prop_map(|(frame, damages)| damaged(frame, damages)),
        1 => vec(byte(), 0..60),
    ]
}

/// Whether our refusal of what the other library takes is one of the known differences:
///
/// - it takes a bare LF in a line;
/// - it does not look at the two bytes after a bulk string;
/// - it takes any integer that Rust parses, for lengths too: with a plus sign, with any number of zeros
///   before it;
/// - it has no limits.
fn is_stricter_on_purpose(bytes: &[u8], refused: Malformed) -> bool {
    let line =
        bytes[refused.at..].split(|byte| *byte == b'\r').next().expect("split gives one part at least");
    match refused.what {
        "line without CRLF" => bytes[refused.at..].contains(&b'\n'),
        "bulk string without its closing CRLF" => bytes[refused.at..refused.at + 2] != *b"\r\n",
        "bad length" => matches!(line[1], b'+' | b'-') || line.len() > 20,
        "bad scalar" => line[0] == b':' && line.len() > 20,
        "nested too deep" => true,
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_judgement_does_not_depend_on_the_pieces(bytes in nearly(), mut cuts in vec(0..1_000_usize, 0..6)) {
        let whole = scan_whole(&bytes);
        cuts.retain(|cut| *cut <= bytes.len());
        cuts.sort_unstable();
        for pieces in [scan_pieces(&bytes, cuts), scan_pieces(&bytes, 0..bytes.len())] {
            match whole {
                Ok(_) => prop_assert_eq!(pieces, whole),
                // Of several faults another one may be seen first.
                Err(_) => prop_assert!(pieces.is_err(), "{pieces:?}"),
            }
        }
    }

    /// What the scanner takes the parser takes, and nothing else.
    #[test]
    fn scanner_and_parser_agree(bytes in nearly()) {
        let bytes = Bytes::from(bytes);
        let parsed = Value::parse(&bytes);
        match scan_whole(&bytes) {
            Ok(Progress::Complete(len)) => {
                let frame = bytes.slice(..len);
                prop_assert!(Value::parse(&frame).is_ok());
                prop_assert_eq!(parsed.is_ok(), len == bytes.len(), "{:?}", parsed);
            }
            Ok(Progress::Incomplete(_)) | Err(_) => prop_assert!(parsed.is_err(), "{parsed:?}"),
        }
    }

    #[test]
    fn resp2_is_judged_as_by_the_other_library(bytes in nearly2()) {
        let bytes = Bytes::from(bytes);
        let ours = scan_whole(&bytes);
        // Where a damage made a type of RESP3, which the other library refuses here.
        let resp3 = bytes.iter().any(|byte| b"_%,#(=!~>|".contains(byte));
        match resp2::decode::decode_bytes(&bytes) {
            Ok(Some((frame, len))) => match ours {
                Ok(progress) => {
                    prop_assert_eq!(progress, Progress::Complete(len));
                    prop_assert_eq!(Value::parse(&bytes.slice(..len)), Ok(value2(&frame)));
                }
                Err(refused) => prop_assert!(is_stricter_on_purpose(&bytes, refused), "{refused:?}"),
            },
            // We may know before the end that it cannot become a frame.
            Ok(None) => prop_assert!(!matches!(ours, Ok(Progress::Complete(_))), "{ours:?}"),
            // It wants errors to be UTF-8.
            Err(_) => match ours {
                Ok(Progress::Complete(_)) => prop_assert!(resp3 || std::str::from_utf8(&bytes).is_err()),
                Ok(Progress::Incomplete(_)) => prop_assert!(resp3, "waiting for the rest of a malformed \
                    frame"),
                Err(_) => {}
            },
        }
    }
}

#[test]
fn malformed_frames_are_refused() {
    let frames: &[&[u8]] = &[
        b"\r\n",
        b"\n",
        b"+\n",
        b"+a\nb\r\n",
        b"?\r\n",
        b"x",
        // A TLS alert, as a server that wants TLS answers to a plain command.
        b"\x15\x03\x03\x00\x02\x02\x0a",
        b":\r\n",
        b":-\r\n",
        b":1x\r\n",
        b":9223372036854775808\r\n",
        b":-9223372036854775809\r\n",
        b"#x\r\n",
        b"#\r\n",
        b"_x\r\n",
        b",\r\n",
        b",one\r\n",
        b"(\r\n",
        b"(-\r\n",
        b"(1.5\r\n",
        b"$\r\n",
        b"$+1\r\na\r\n",
        b"$-0\r\n\r\n",
        b"$-2\r\n",
        b"$?\r\n",
        b"$99999999999999999999\r\n",
        b"$18446744073709551615\r\n",
        b"$9223372036854775807\r\n",
        b"$1\r\nab\r\n",
        b"$1\r\na\n\r",
        b"!-1\r\n",
        b"=-1\r\n",
        b"=3\r\ntxt\r\n",
        b"=4\r\ntext\r\n",
        b"*-2\r\n",
        b"*?\r\n",
        b"*9223372036854775807\r\n",
        b"%9223372036854775807\r\n",
        b"|9223372036854775807\r\n",
        b"~-1\r\n",
        b">-1\r\n",
        b"%-1\r\n",
        b"|-1\r\n",
        b"*1\r\nx",
    ];
    for frame in frames {
        let shown = frame.escape_ascii();
        assert!(scan_whole(frame).is_err(), "{shown}");
        assert!(scan_pieces(frame, 0..frame.len()).is_err(), "{shown}");
        assert!(Value::parse(&Bytes::from_static(frame)).is_err(), "{shown}");
    }
}

#[test]
fn the_extremes_of_integers_are_taken() {
    for n in [i64::MIN, i64::MAX, 0] {
        let frame = Bytes::from(format!(":{n}\r\n"));
        assert_eq!(scan_whole(&frame), Ok(Progress::Complete(frame.len())));
        assert_eq!(Value::parse(&frame), Ok(Value::Int(n)));
    }
}
