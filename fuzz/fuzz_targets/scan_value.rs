//! Any bytes in any pieces: scanner and parser never panic, agree with each other, and the judgement does not
//! depend on the pieces.
//!
//! Input: one byte that picks how the stream is cut, then the stream.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use whimbrel_wire::scan::{Limits, Malformed, Progress, Scanner};
use whimbrel_wire::value::Value;

/// Low enough for the fuzzer to reach each of them.
const LIMITS: Limits = Limits {
    depth_max: 16,
    elements_max: 1 << 12,
    bulk_bytes_max: 1 << 10,
    line_bytes_max: 300,
    frame_bytes_max: 1 << 11,
};

/// Scans one frame of `stream` that comes in pieces; `cut` is a generator's state.
fn scan_pieces(stream: &[u8], mut cut: u8) -> Result<Progress, Malformed> {
    let mut scanner = Scanner::new(LIMITS);
    let mut end = 0;
    loop {
        let progress = scanner.scan(&stream[..end])?;
        match progress {
            Progress::Complete(len) => assert!(len <= end, "found beyond what is there"),
            Progress::Incomplete(0) => panic!("nothing is missing from an incomplete frame"),
            Progress::Incomplete(_) if end < stream.len() => {
                cut = cut.wrapping_mul(5).wrapping_add(1);
                end = stream.len().min(end + 1 + usize::from(cut >> 3));
                continue;
            }
            Progress::Incomplete(_) => {}
        }
        return Ok(progress);
    }
}

/// The hint after each of the first `len` bytes is not more than what is missing.
fn check_hints(frame: &[u8]) {
    let mut scanner = Scanner::new(LIMITS);
    for end in 0..frame.len() {
        match scanner.scan(&frame[..end]) {
            Ok(Progress::Incomplete(hint)) => assert!(end + hint <= frame.len(), "{hint} more after {end}"),
            other => panic!("{other:?} after {end} of {} bytes", frame.len()),
        }
    }
    assert_eq!(scanner.scan(frame), Ok(Progress::Complete(frame.len())));
}

fuzz_target!(|data: &[u8]| {
    let Some((&cut, stream)) = data.split_first() else { return };
    let mut rest = Bytes::copy_from_slice(stream);
    // One scanner for the whole stream, as on a connection.
    let mut scanner = Scanner::new(LIMITS);
    loop {
        let whole = scanner.scan(&rest);
        let pieces = scan_pieces(&rest, cut);
        let parsed = Value::parse(&rest);
        match whole {
            Ok(Progress::Complete(len)) => {
                assert_eq!(pieces, whole);
                let frame = rest.split_to(len);
                check_hints(&frame);
                Value::parse(&frame).expect("the scanner took it");
                assert_eq!(parsed.is_ok(), rest.is_empty());
            }
            Ok(Progress::Incomplete(_)) => {
                assert_eq!(pieces, whole);
                assert!(parsed.is_err());
                return;
            }
            // Of several faults another one may be seen first. The parser has no limits.
            Err(refused) => {
                assert!(pieces.is_err());
                assert!(refused.at <= rest.len());
                assert!(
                    parsed.is_err() || refused.what.contains("limit") || refused.what == "nested too deep"
                );
                return;
            }
        }
    }
});
