//! Every limit, at it and one beyond it, whole and byte by byte.

use bytes::Bytes;
use whimbrel_wire::scan::{Limits, Malformed, Progress, Scanner};
use whimbrel_wire::value::Value;

fn scan(limits: Limits, bytes: &[u8]) -> Result<Progress, Malformed> {
    let whole = Scanner::new(limits).scan(bytes);
    let mut scanner = Scanner::new(limits);
    let by_byte = (0..=bytes.len()).map(|end| scanner.scan(&bytes[..end])).find(|found| {
        // The scanner's use ends with the frame or with an error.
        !matches!(found, Ok(Progress::Incomplete(_)))
    });
    assert_eq!(by_byte.map(|found| found.map_err(|refused| refused.what)), Some(whole.map_err(|e| e.what)));
    whole
}

#[track_caller]
fn taken(limits: Limits, bytes: &[u8]) {
    assert_eq!(scan(limits, bytes), Ok(Progress::Complete(bytes.len())));
}

#[track_caller]
fn refused(limits: Limits, bytes: &[u8], what: &str) {
    assert_eq!(scan(limits, bytes).expect_err("beyond a limit").what, what);
}

#[test]
fn depth() {
    let limits = Limits { depth_max: 2, ..Limits::default() };
    taken(limits, b"*1\r\n*1\r\n:1\r\n");
    taken(limits, b"*1\r\n*1\r\n*0\r\n");
    taken(limits, b"*2\r\n*1\r\n:1\r\n*1\r\n:1\r\n");
    taken(limits, b"|0\r\n|0\r\n:1\r\n");
    refused(limits, b"*1\r\n*1\r\n*1\r\n:1\r\n", "nested too deep");
    refused(limits, b"|0\r\n|0\r\n|0\r\n:1\r\n", "nested too deep");
    taken(Limits { depth_max: 0, ..limits }, b"*0\r\n");
    refused(Limits { depth_max: 0, ..limits }, b"*1\r\n:1\r\n", "nested too deep");
}

/// The parser is bounded without the scanner: no frame makes it run out of stack.
#[test]
fn depth_of_the_parser() {
    let nested = |header: &str, depth: usize| Bytes::from(format!("{}:1\r\n", header.repeat(depth)));
    for header in ["*1\r\n", "|0\r\n", "%1\r\n:1\r\n"] {
        assert!(Value::parse(&nested(header, 64)).is_ok(), "{header}");
        // An aggregate without elements is as deep as a scalar.
        let empty_inside = Bytes::from(format!("{}*0\r\n", header.repeat(64)));
        assert!(Value::parse(&empty_inside).is_ok(), "{header}");
        for depth in [65, 1_000_000] {
            assert_eq!(Value::parse(&nested(header, depth)).expect_err(header).what, "nested too deep");
        }
    }
}

#[test]
fn elements() {
    let limits = Limits { elements_max: 3, ..Limits::default() };
    for kind in ["*", "~", ">"] {
        taken(limits, format!("{kind}3\r\n_\r\n_\r\n_\r\n").as_bytes());
        refused(limits, format!("{kind}4\r\n").as_bytes(), "length over the limit");
    }
    taken(limits, b"%1\r\n_\r\n_\r\n");
    refused(limits, b"%2\r\n", "length over the limit");
    taken(limits, b"|1\r\n_\r\n_\r\n_\r\n");
    refused(limits, b"|2\r\n", "length over the limit");
}

#[test]
fn bulk_bytes() {
    let limits = Limits { bulk_bytes_max: 5, ..Limits::default() };
    for kind in ["$", "!", "="] {
        taken(limits, format!("{kind}5\r\ntxt:a\r\n").as_bytes());
        refused(limits, format!("{kind}6\r\n").as_bytes(), "length over the limit");
    }
}

#[test]
fn line_bytes() {
    let limits = Limits { line_bytes_max: 6, ..Limits::default() };
    for kind in ["+", "-", ":", "(", ","] {
        taken(limits, format!("{kind}1234\r\n").as_bytes());
        refused(limits, format!("{kind}12345\r\n").as_bytes(), "line over the length limit");
        // It is not waited for the end of the line.
        refused(limits, format!("{kind}123456").as_bytes(), "line over the length limit");
    }
    taken(limits, b"*2\r\n+1234\r\n+1234\r\n");
    refused(limits, b"*2\r\n+1234\r\n+12345\r\n", "line over the length limit");
}

#[test]
fn frame_bytes() {
    let limits = Limits { frame_bytes_max: 14, ..Limits::default() };
    taken(limits, b"+12345678901\r\n");
    refused(limits, b"+123456789012\r\n", "frame over the size limit");
    taken(limits, b"$8\r\n12345678\r\n");
    refused(limits, b"$9\r\n", "frame over the size limit");
    taken(limits, b"*2\r\n+123\r\n:1\r\n");
    refused(limits, b"*3\r\n+123\r\n:1\r\n:1\r\n", "frame over the size limit");
    refused(limits, b"*2\r\n+123\r\n$1\r\n", "frame over the size limit");
}

/// Limits without a bound do not overflow.
#[test]
fn no_limits() {
    let limits = Limits {
        depth_max: usize::MAX,
        elements_max: u64::MAX,
        bulk_bytes_max: u64::MAX,
        line_bytes_max: usize::MAX,
        frame_bytes_max: u64::MAX,
    };
    for (kind, scalar) in [("$", true), ("!", true), ("=", true), ("*", false), ("%", false), ("|", false)] {
        let header = format!("{kind}9223372036854775807\r\n");
        let Ok(Progress::Incomplete(hint)) = Scanner::new(limits).scan(header.as_bytes()) else {
            panic!("{header}")
        };
        assert_eq!(hint, if scalar { 9_223_372_036_854_775_809 } else { 3 });
        assert!(Value::parse(&header.clone().into()).is_err());
        let nested = format!("*9999999999999999999\r\n{header}");
        assert!(matches!(Scanner::new(limits).scan(nested.as_bytes()), Ok(Progress::Incomplete(_))));
    }
}
