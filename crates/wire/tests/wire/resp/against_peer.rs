//! Valid frames: the same boundary, the same value.

use bytes::Bytes;
use proptest::prelude::*;
use redis_protocol::{resp2, resp3};
use whimbrel_wire::scan::{Progress, Scanner};
use whimbrel_wire::value::Value;

use super::frames::{
    encoded, encoded2, encoded3, frame2, frame3, ordered, scan_pieces, scan_whole, value2, value3,
};

proptest! {
    #[test]
    fn resp2_values_are_equal(frame in frame2()) {
        let bytes = Bytes::from(encoded2(&frame));
        let ours = Value::parse(&bytes).expect("a valid frame");
        let (theirs, len) = resp2::decode::decode_bytes(&bytes).expect("a valid frame").expect("a complete \
            frame");
        prop_assert_eq!(len, bytes.len());
        prop_assert_eq!(&ours, &value2(&theirs));
        prop_assert_eq!(&ours, &value2(&frame));
    }

    #[test]
    fn resp3_values_are_equal(frame in frame3()) {
        let bytes = Bytes::from(encoded3(&frame));
        let ours = ordered(Value::parse(&bytes).expect("a valid frame"));
        let (theirs, len) =
            resp3::decode::complete::decode_bytes(&bytes).expect("a valid frame").expect("a complete frame");
        prop_assert_eq!(len, bytes.len());
        prop_assert_eq!(&ours, &value3(&theirs));
        prop_assert_eq!(&ours, &value3(&frame));
    }

    /// Cut once at every place, the frame ends where it ends, and the hint is never more than what is
    /// missing.
    #[test]
    fn the_boundary_is_found_at_every_split(frame in encoded(), after in prop::collection::vec(any::<u8>(),
    0..40)) {
        let stream = [frame.as_slice(), &after].concat();
        for cut in 0..frame.len() {
            let mut scanner = Scanner::default();
            match scanner.scan(&stream[..cut]) {
                Ok(Progress::Incomplete(hint)) => {
                    prop_assert!(hint >= 1 && cut + hint <= frame.len(), "{hint} more after {cut}")
                }
                other => prop_assert!(false, "{other:?} after {cut} of {} bytes", frame.len()),
            }
            prop_assert_eq!(scanner.scan(&stream), Ok(Progress::Complete(frame.len())));
        }
        prop_assert_eq!(scan_pieces(&stream, 0..=stream.len()), Ok(Progress::Complete(frame.len())));
        prop_assert_eq!(scan_whole(&stream), Ok(Progress::Complete(frame.len())));
    }

    /// One scanner finds all frames of a stream that comes in any pieces.
    #[test]
    fn concatenated_frames_are_distinguished(
        frames in prop::collection::vec(encoded(), 1..8),
        pieces in prop::collection::vec(1..200_usize, 1..50),
    ) {
        let stream = frames.concat();
        let mut scanner = Scanner::default();
        let mut found: Vec<Vec<u8>> = Vec::new();
        let (mut start, mut end) = (0, 0);
        for piece in pieces.into_iter().cycle() {
            end = stream.len().min(end + piece);
            while let Progress::Complete(len) = scanner.scan(&stream[start..end]).expect("valid frames") {
                found.push(stream[start..start + len].to_vec());
                start += len;
            }
            if end == stream.len() {
                break;
            }
        }
        prop_assert_eq!(found, frames);
    }
}

#[test]
fn the_forms_of_null_and_of_nothing() {
    let value = |bytes: &'static [u8]| {
        assert_eq!(scan_whole(bytes), Ok(Progress::Complete(bytes.len())));
        Value::parse(&Bytes::from_static(bytes)).expect("a valid frame")
    };
    for null in [&b"_\r\n"[..], b"$-1\r\n", b"*-1\r\n"] {
        assert_eq!(value(null), Value::Null);
    }
    assert_eq!(value(b"*3\r\n$-1\r\n*-1\r\n_\r\n"), Value::Array(vec![Value::Null; 3]));
    assert_eq!(value(b"$0\r\n\r\n"), Value::Bulk(Bytes::new()));
    assert_eq!(value(b"+\r\n"), Value::Simple(Bytes::new()));
    assert_eq!(value(b"=4\r\ntxt:\r\n"), Value::Verbatim(Bytes::new()));
    assert_eq!(value(b"*0\r\n"), Value::Array(Vec::new()));
    assert_eq!(value(b"~0\r\n"), Value::Set(Vec::new()));
    assert_eq!(value(b">0\r\n"), Value::Push(Vec::new()));
    assert_eq!(value(b"%0\r\n"), Value::Map(Vec::new()));
    assert!(matches!(value(b",nan\r\n"), Value::Double(n) if n.is_nan()));
    assert!(matches!(value(b",-nan\r\n"), Value::Double(n) if n.is_nan()));
}

/// An attribute belongs to the value after it, which is part of the same frame, and does not count as an
/// element.
#[test]
fn attributes_are_read_over() {
    let frames: &[&[u8]] = &[
        b"|0\r\n:7\r\n",
        b"|1\r\n+ttl\r\n:100\r\n:7\r\n",
        b"|1\r\n+a\r\n:1\r\n|1\r\n+b\r\n*0\r\n:7\r\n",
        b"|1\r\n|0\r\n+a\r\n|0\r\n:1\r\n|0\r\n:7\r\n",
    ];
    for frame in frames {
        let next_frame = [frame, &b":8\r\n"[..]].concat();
        assert_eq!(scan_whole(&next_frame), Ok(Progress::Complete(frame.len())));
        assert_eq!(Value::parse(&Bytes::from_static(frame)), Ok(Value::Int(7)));
        assert!(matches!(scan_whole(&frame[..frame.len() - 4]), Ok(Progress::Incomplete(1..=4))));

        let inside = [b"*2\r\n", *frame, frame].concat();
        assert_eq!(scan_pieces(&inside, 0..inside.len()), Ok(Progress::Complete(inside.len())));
        assert_eq!(Value::parse(&inside.into()), Ok(Value::Array(vec![Value::Int(7); 2])));

        let in_map = [b"%1\r\n", *frame, frame].concat();
        assert_eq!(scan_pieces(&in_map, 0..in_map.len()), Ok(Progress::Complete(in_map.len())));
        assert_eq!(Value::parse(&in_map.into()), Ok(Value::Map(vec![(Value::Int(7), Value::Int(7))])));
    }
}
