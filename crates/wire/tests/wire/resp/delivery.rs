//! Frames that come in many pieces are walked once.
//!
//! The proof needs no clock: what was scanned is overwritten with bytes that no frame can hold, or that would
//! end a line early, before the next piece is shown. A scanner that looked at them again would find another
//! result.

use whimbrel_wire::scan::{Progress, Scanner};

const PIECE_BYTES: usize = 1 << 10;

/// A frame with the places where its headers and scalars start.
struct Built {
    frame: Vec<u8>,
    starts: Vec<usize>,
}

impl Built {
    fn new() -> Self {
        Built { frame: Vec::new(), starts: Vec::new() }
    }

    fn push(&mut self, element: &[u8]) {
        self.starts.push(self.frame.len());
        self.frame.extend_from_slice(element);
    }

    /// The start of the element that is not complete when `end` bytes are there.
    fn unfinished(&self, end: usize) -> usize {
        let next = self.starts.partition_point(|start| *start <= end);
        self.starts[next - 1]
    }

    /// Scans the frame in pieces, with all before the unfinished element overwritten.
    fn check(&self) {
        let mut scanner = Scanner::default();
        let mut buf: Vec<u8> = Vec::with_capacity(self.frame.len());
        let mut overwritten = 0;
        for piece in self.frame.chunks(PIECE_BYTES) {
            buf.extend_from_slice(piece);
            match scanner.scan(&buf).expect("a valid frame") {
                Progress::Incomplete(missing) => assert!(buf.len() + missing <= self.frame.len()),
                complete => assert_eq!(complete, Progress::Complete(self.frame.len())),
            }
            let unfinished = self.unfinished(buf.len());
            buf[overwritten..unfinished].fill(b'\0');
            overwritten = unfinished;
        }
        assert_eq!(buf.len(), self.frame.len());
    }
}

#[test]
fn a_million_elements() {
    let mut built = Built::new();
    built.push(b"*1000000\r\n");
    for n in 0..1_000_000 {
        match n % 3 {
            0 => built.push(b":1234\r\n"),
            1 => built.push(b"$11\r\nhello\r\nyou!\r\n"),
            _ => built.push(b"+OK\r\n"),
        }
    }
    built.check();
}

#[test]
fn many_small_aggregates() {
    let mut built = Built::new();
    built.push(b"*100000\r\n");
    for _ in 0..100_000 {
        for element in [
            &b"|1\r\n"[..],
            b"+ttl\r\n",
            b":1\r\n",
            b"%1\r\n",
            b"$1\r\nk\r\n",
            b"*2\r\n",
            b"_\r\n",
            b"~0\r\n",
        ] {
            built.push(element);
        }
    }
    built.check();
}

/// The payload of a string is skipped, not read.
#[test]
fn a_long_string() {
    let len = 1 << 20;
    let mut frame = format!("${len}\r\n").into_bytes();
    let header = frame.len();
    frame.resize(header + len, b'x');
    frame.extend_from_slice(b"\r\n");
    // Line feeds from behind the header on.
    let mut scanner = Scanner::default();
    let mut buf = frame[..header].to_vec();
    assert_eq!(scanner.scan(&buf), Ok(Progress::Incomplete(len + 2)));
    buf.resize(header + len, b'\n');
    assert_eq!(scanner.scan(&buf), Ok(Progress::Incomplete(2)));
    buf.extend_from_slice(b"\r\n");
    assert_eq!(scanner.scan(&buf), Ok(Progress::Complete(frame.len())));
}

/// A line is searched for its end once. Its type byte is needed at the end: it is not overwritten.
#[test]
fn a_long_line() {
    let mut frame = b"+".to_vec();
    frame.resize(1_000_000, b'x');
    frame.extend_from_slice(b"\r\n");
    let mut scanner = Scanner::default();
    let mut buf = Vec::new();
    for piece in frame.chunks(PIECE_BYTES) {
        buf.extend_from_slice(piece);
        match scanner.scan(&buf).expect("a valid frame") {
            Progress::Incomplete(_) => buf[1..].fill(b'\n'),
            complete => assert_eq!(complete, Progress::Complete(frame.len())),
        }
    }
    assert_eq!(buf.len(), frame.len());
}
