//! Generated frames, written by another library, and what both sides read from bytes.

use bytes::Bytes;
use proptest::collection::{hash_map, hash_set, vec};
use proptest::prelude::*;
use redis_protocol::resp2::types::{BytesFrame as Frame2, Resp2Frame};
use redis_protocol::resp3::types::{BytesFrame as Frame3, FrameMap, Resp3Frame, VerbatimStringFormat};
use redis_protocol::{resp2, resp3};
use whimbrel_wire::scan::{Malformed, Progress, Scanner};
use whimbrel_wire::value::Value;

/// Any bytes; control characters of the protocol are frequent.
fn blob() -> impl Strategy<Value = Bytes> {
    let byte = prop_oneof![3 => any::<u8>(), 1 => prop::sample::select(b"\r\n$*:0".to_vec())];
    vec(byte, 0..30).prop_map(Bytes::from)
}

/// What fits on a line. A CR is allowed, even at its end.
fn line() -> impl Strategy<Value = String> {
    "[^\n]{0,20}\r{0,2}"
}

/// An array of RESP2, or something in it.
pub fn frame2() -> impl Strategy<Value = Frame2> {
    let leaf = prop_oneof![
        line().prop_map(|text| Frame2::SimpleString(text.into())),
        line().prop_map(|text| Frame2::Error(text.into())),
        any::<i64>().prop_map(Frame2::Integer),
        blob().prop_map(Frame2::BulkString),
        Just(Frame2::Null),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| vec(inner, 0..6).prop_map(Frame2::Array))
}

/// Any value of RESP3, without attributes.
fn scalar3() -> impl Strategy<Value = Frame3> {
    let attributes = None;
    // No NaN, which is not equal to itself, and no negative zero, which is equal to another key of a set.
    let double = prop_oneof![
        prop::num::f64::NORMAL,
        Just(0.0),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        (-1_000..1_000).prop_map(|n| f64::from(n) / 8.0 + 0.0),
    ];
    prop_oneof![
        blob().prop_map(|data| Frame3::BlobString { data, attributes: None }),
        blob().prop_map(|data| Frame3::BlobError { data, attributes: None }),
        line().prop_map(|text| Frame3::SimpleString { data: text.into(), attributes: None }),
        line().prop_map(|text| Frame3::SimpleError { data: text.into(), attributes: None }),
        any::<bool>().prop_map(|data| Frame3::Boolean { data, attributes: None }),
        Just(Frame3::Null),
        any::<i64>().prop_map(|data| Frame3::Number { data, attributes: None }),
        double.prop_map(|data| Frame3::Double { data, attributes: None }),
        "[+-]?[0-9]{1,40}".prop_map(|digits| Frame3::BigNumber { data: digits.into(), attributes: None }),
        (blob(), any::<bool>()).prop_map(move |(data, text)| Frame3::VerbatimString {
            data,
            format: if text { VerbatimStringFormat::Text } else { VerbatimStringFormat::Markdown },
            attributes: attributes.clone(),
        }),
    ]
}

/// Any value of RESP3, with attributes anywhere but before a null, where the other library has no place for
/// them.
pub fn frame3() -> impl Strategy<Value = Frame3> {
    scalar3().prop_recursive(5, 64, 6, |inner| {
        let plain = prop_oneof![
            vec(inner.clone(), 0..6).prop_map(|data| Frame3::Array { data, attributes: None }),
            vec(inner.clone(), 0..6).prop_map(|data| Frame3::Push { data, attributes: None }),
            hash_set(scalar3(), 0..6).prop_map(|data| Frame3::Set { data, attributes: None }),
            hash_map(scalar3(), inner.clone(), 0..6).prop_map(|data| Frame3::Map { data, attributes: None }),
            scalar3(),
        ];
        let attributes = proptest::option::weighted(0.3, hash_map(scalar3(), inner, 0..3));
        (plain, attributes).prop_map(|(frame, attributes)| with_attributes(frame, attributes))
    })
}

fn with_attributes(mut frame: Frame3, with: Option<FrameMap<Frame3, Frame3>>) -> Frame3 {
    match &mut frame {
        Frame3::Array { attributes, .. }
        | Frame3::Push { attributes, .. }
        | Frame3::Set { attributes, .. }
        | Frame3::Map { attributes, .. }
        | Frame3::BlobString { attributes, .. }
        | Frame3::BlobError { attributes, .. }
        | Frame3::SimpleString { attributes, .. }
        | Frame3::SimpleError { attributes, .. }
        | Frame3::Boolean { attributes, .. }
        | Frame3::Number { attributes, .. }
        | Frame3::Double { attributes, .. }
        | Frame3::BigNumber { attributes, .. }
        | Frame3::VerbatimString { attributes, .. } => *attributes = with,
        Frame3::Null | Frame3::Hello { .. } | Frame3::ChunkedString(_) => {}
    }
    frame
}

/// Room beyond what the library computes for a frame: it counts digits with floating point.
const SPARE_BYTES: usize = 1 << 10;

/// The frame as the other library writes it.
pub fn encoded2(frame: &Frame2) -> Vec<u8> {
    let mut bytes = vec![0; frame.encode_len(false) + SPARE_BYTES];
    let len = resp2::encode::encode_bytes(&mut bytes, frame, false).expect("there is room");
    bytes.truncate(len);
    bytes
}

/// The frame as the other library writes it.
pub fn encoded3(frame: &Frame3) -> Vec<u8> {
    let mut bytes = vec![0; frame.encode_len(false) + SPARE_BYTES];
    let len = resp3::encode::complete::encode_bytes(&mut bytes, frame, false).expect("there is room");
    bytes.truncate(len);
    bytes
}

/// A frame of either version, encoded.
pub fn encoded() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![frame2().prop_map(|frame| encoded2(&frame)), frame3().prop_map(|frame| encoded3(&frame))]
}

/// What the other library's frame means.
pub fn value2(frame: &Frame2) -> Value {
    match frame {
        Frame2::SimpleString(text) => Value::Simple(text.clone()),
        Frame2::Error(text) => Value::Error(text.inner().clone()),
        Frame2::Integer(n) => Value::Int(*n),
        Frame2::BulkString(data) => Value::Bulk(data.clone()),
        Frame2::Array(items) => Value::Array(items.iter().map(value2).collect()),
        Frame2::Null => Value::Null,
    }
}

/// What the other library's frame means, attributes dropped; sets and maps in the order of [`ordered`].
pub fn value3(frame: &Frame3) -> Value {
    ordered(match frame {
        Frame3::BlobString { data, .. } => Value::Bulk(data.clone()),
        Frame3::BlobError { data, .. } => Value::Error(data.clone()),
        Frame3::SimpleString { data, .. } => Value::Simple(data.clone()),
        Frame3::SimpleError { data, .. } => Value::Error(data.inner().clone()),
        Frame3::Boolean { data, .. } => Value::Bool(*data),
        Frame3::Null => Value::Null,
        Frame3::Number { data, .. } => Value::Int(*data),
        Frame3::Double { data, .. } => Value::Double(*data),
        Frame3::BigNumber { data, .. } => Value::BigNumber(data.clone()),
        Frame3::VerbatimString { data, .. } => Value::Verbatim(data.clone()),
        Frame3::Array { data, .. } => Value::Array(data.iter().map(value3).collect()),
        Frame3::Push { data, .. } => Value::Push(data.iter().map(value3).collect()),
        Frame3::Set { data, .. } => Value::Set(data.iter().map(value3).collect()),
        Frame3::Map { data, .. } => Value::Map(data.iter().map(|(k, v)| (value3(k), value3(v))).collect()),
        Frame3::Hello { .. } | Frame3::ChunkedString(_) => panic!("not a value"),
    })
}

/// The value with its sets and maps in one order: the other library has them in none.
pub fn ordered(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(ordered).collect()),
        Value::Push(items) => Value::Push(items.into_iter().map(ordered).collect()),
        Value::Set(items) => {
            let mut items: Vec<Value> = items.into_iter().map(ordered).collect();
            items.sort_by_cached_key(|item| format!("{item:?}"));
            Value::Set(items)
        }
        Value::Map(pairs) => {
            let mut pairs: Vec<(Value, Value)> =
                pairs.into_iter().map(|(k, v)| (ordered(k), ordered(v))).collect();
            pairs.sort_by_cached_key(|pair| format!("{pair:?}"));
            Value::Map(pairs)
        }
        scalar => scalar,
    }
}

/// What a fresh scanner says of all bytes at once.
pub fn scan_whole(bytes: &[u8]) -> Result<Progress, Malformed> {
    Scanner::default().scan(bytes)
}

/// What a fresh scanner says at last when `bytes` come in pieces that end at `ends` (ascending) and at their
/// end. It is not asked again after it found the end of the frame or an error.
pub fn scan_pieces(bytes: &[u8], ends: impl IntoIterator<Item = usize>) -> Result<Progress, Malformed> {
    let mut scanner = Scanner::default();
    for end in ends {
        let progress = scanner.scan(&bytes[..end])?;
        match progress {
            Progress::Complete(_) => return Ok(progress),
            Progress::Incomplete(missing) => {
                assert!(missing > 0, "nothing is missing from an incomplete frame")
            }
        }
    }
    scanner.scan(bytes)
}
