//! Finds where replies end while they are passed on.
//!
//! [`Scanner`](crate::scan::Scanner) wants a whole frame in one buffer. A proxy must not hold a value of 500
//! MB to find its end, so this one keeps numbers only: how many elements are still to come, and how many
//! bytes of the present string. Depth needs no bound then, since it is not remembered.

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memchr;

use crate::scan::{Malformed, parse_length};

/// Frames whose ends have been looked for in this process, see [`scanned`].
#[cfg(debug_assertions)]
static SCANNED: AtomicU64 = AtomicU64::new(0);

/// In how many frames this process has looked for the end. For tests, so that they see whether a reply is
/// scanned more than once: builds without debug assertions do not count.
#[cfg(debug_assertions)]
pub fn scanned() -> u64 {
    SCANNED.load(Ordering::Relaxed)
}

/// The longest line that a server may send.
const LINE_BYTES_MAX: usize = 1 << 20;

/// What became of the bytes that were shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// This many bytes belong to the present frame, which goes on. The rest, which is no more than part of a
    /// line, has to be shown again with what follows it.
    Part(usize),
    /// This many bytes complete the present frame.
    Frame {
        /// Bytes of the frame in this buffer.
        bytes: usize,
        /// The type byte it began with. That of a frame with an attribute is `|`.
        kind: u8,
    },
}

/// Incremental finder of the ends of frames. One serves one connection.
#[derive(Debug, Default)]
pub struct Boundary {
    /// Elements of the frame still to come; 0 between two frames.
    pending: u64,
    /// Bytes of a string still to come, its CRLF included.
    skip: u64,
    /// The type byte of the frame.
    kind: u8,
}

impl Boundary {
    /// True between two frames.
    pub fn is_between(&self) -> bool {
        self.pending == 0 && self.skip == 0
    }

    /// Walks over `buf`, which continues what was shown before, up to the end of the present frame.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not RESP.
    pub fn pass(&mut self, buf: &[u8]) -> Result<Passed, Malformed> {
        let mut at = 0;
        loop {
            if self.skip > 0 {
                let step = usize::try_from(self.skip).unwrap_or(usize::MAX).min(buf.len() - at);
                at += step;
                self.skip -= step as u64;
                if self.skip > 0 {
                    return Ok(Passed::Part(at));
                }
                if self.pending == 0 {
                    return Ok(Passed::Frame { bytes: at, kind: self.kind });
                }
            }
            let rest = &buf[at..];
            let Some(&kind) = rest.first() else { return Ok(Passed::Part(at)) };
            let Some(end) = memchr(b'\n', rest) else {
                if rest.len() > LINE_BYTES_MAX {
                    return Err(Malformed { at, what: "line over the length limit" });
                }
                return Ok(Passed::Part(at));
            };
            if self.pending == 0 {
                #[cfg(debug_assertions)]
                SCANNED.fetch_add(1, Ordering::Relaxed);
                self.pending = 1;
                self.kind = kind;
            }
            let line = rest.get(1..end).and_then(|line| line.strip_suffix(b"\r"));
            let line = line.ok_or(Malformed { at, what: "line without CRLF" })?;
            self.header(kind, line).map_err(|what| Malformed { at, what })?;
            at += end + 1;
            if self.pending == 0 && self.skip == 0 {
                return Ok(Passed::Frame { bytes: at, kind: self.kind });
            }
        }
    }

    fn header(&mut self, kind: u8, line: &[u8]) -> Result<(), &'static str> {
        let length = |factor: u64| {
            let n = parse_length(line).and_then(|n| n.checked_mul(factor));
            n.filter(|n| *n < 1 << 48).ok_or("bad length")
        };
        match kind {
            b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => self.pending -= 1,
            b'$' | b'*' if line == b"-1" => self.pending -= 1,
            b'$' | b'!' | b'=' => {
                self.skip = length(1)? + 2;
                self.pending -= 1;
            }
            b'*' | b'~' | b'>' => self.add(length(1)?)?,
            b'%' => self.add(length(2)?)?,
            // An attribute precedes the element that it describes, and counts for none.
            b'|' => self.add(length(2)? + 1)?,
            _ => return Err("unknown type byte"),
        }
        Ok(())
    }

    /// One element turned out to be an aggregate of this many.
    fn add(&mut self, children: u64) -> Result<(), &'static str> {
        self.pending = (self.pending - 1).checked_add(children).ok_or("bad length")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::{Progress, Scanner};

    const FRAMES: [&[u8]; 12] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-1\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$5\r\na\r\nbc\r\n",
        b"*0\r\n",
        b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n*-1\r\n%1\r\n+k\r\n~1\r\n#t\r\n",
        b">2\r\n+a\r\n+b\r\n",
        b"|1\r\n+k\r\n+v\r\n*1\r\n_\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"*2\r\n|1\r\n+k\r\n+v\r\n:1\r\n,1.5\r\n",
    ];

    #[test]
    fn frames_end_where_the_scanner_says() {
        for frame in FRAMES {
            assert_eq!(Scanner::default().scan(frame), Ok(Progress::Complete(frame.len())));
            let passed = Boundary::default().pass(&[frame, b"+NEXT\r\n"].concat());
            assert_eq!(passed, Ok(Passed::Frame { bytes: frame.len(), kind: frame[0] }));
        }
    }

    #[test]
    fn any_division_into_reads_gives_the_same() {
        let all = FRAMES.concat();
        for step in 1..40 {
            let (mut boundary, mut buf, mut frames, mut passed) = (Boundary::default(), Vec::new(), 0, 0);
            for chunk in all.chunks(step) {
                buf.extend_from_slice(chunk);
                loop {
                    let (bytes, ended) = match boundary.pass(&buf).expect("valid") {
                        Passed::Part(bytes) => (bytes, false),
                        Passed::Frame { bytes, .. } => (bytes, true),
                    };
                    buf.drain(..bytes);
                    passed += bytes;
                    frames += usize::from(ended);
                    if !ended {
                        break;
                    }
                }
            }
            assert_eq!((frames, passed), (FRAMES.len(), all.len()), "in steps of {step}");
            assert!(boundary.is_between());
        }
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for text in [&b"HTTP/1.1\r\n"[..], b"*x\r\n", b"$-2\r\n", b"+OK\n", b"\n", b"*999999999999999999\r\n"]
        {
            assert!(Boundary::default().pass(text).is_err(), "{}", String::from_utf8_lossy(text));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken_without_a_panic(
            bytes in proptest::collection::vec(proptest::sample::select(&b"*$%|>+-_:0123456789\r\nx"[..]),
            0..300),
            step in 1_usize..40,
        ) {
            let (mut boundary, mut buf) = (Boundary::default(), Vec::new());
            for chunk in bytes.chunks(step) {
                buf.extend_from_slice(chunk);
                loop {
                    match boundary.pass(&buf) {
                        Ok(Passed::Frame { bytes, .. }) => {
                            proptest::prop_assert!(0 < bytes && bytes <= buf.len());
                            buf.drain(..bytes);
                        }
                        Ok(Passed::Part(bytes)) => {
                            buf.drain(..bytes);
                            break;
                        }
                        Err(_) => return Ok(()),
                    }
                }
            }
        }
    }
}
