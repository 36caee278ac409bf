//! Finds frame boundaries in a RESP2 or RESP3 byte stream.
//!
//! The scanner remembers where it stopped, so a frame that arrives in a thousand reads is walked once.
//! Payloads of bulk strings are skipped by their length and never looked at, except for their closing CRLF.
//! What the peer can make us hold is bounded by [`Limits`]: nesting depth, elements in one aggregate, bytes
//! of one string, of one line and of a whole frame.
//!
//! Protocol: <https://redis.io/docs/latest/develop/reference/protocol-spec/>. Streamed strings and aggregates
//! (`$?`, `*?`) are part of the RESP3 draft but no server sends them; they are refused as malformed.

use memchr::memchr;
use thiserror::Error;

/// Bounds on what a peer may send. A frame beyond one of them is malformed, and the connection is of no
/// further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How deep aggregates may nest. A scalar has depth 0, an aggregate without elements as well; an
    /// attribute is one level. [`Value::parse`](crate::value::Value::parse) takes no more than 64, whatever
    /// is set here.
    pub depth_max: usize,
    /// How many direct elements one aggregate may announce (a map of n pairs has 2n).
    pub elements_max: u64,
    /// The longest bulk string. Redis' own `proto-max-bulk-len` is 512 MiB unless raised.
    pub bulk_bytes_max: u64,
    /// The longest line: a simple string, an error, a number or a header. Counted with its type byte and its
    /// CR.
    pub line_bytes_max: usize,
    /// The longest whole frame.
    pub frame_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            depth_max: 32,
            elements_max: 1 << 26,
            bulk_bytes_max: 1 << 30,
            line_bytes_max: 1 << 20,
            frame_bytes_max: 4 << 30,
        }
    }
}

/// The type bytes of RESP2 and RESP3.
const TYPE_BYTES: &[u8] = b"$:*+-_%,#(=!~>|";

/// The shortest frame: a null or an empty simple string.
pub(crate) const FRAME_BYTES_MIN: usize = 3;

/// What a call of [`Scanner::scan`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The frame is complete and this many bytes long.
    Complete(usize),
    /// The frame needs at least this many more bytes. A hint for sizing the next read, never more than are
    /// needed.
    Incomplete(usize),
}

/// Why a byte stream is not RESP, or is beyond the limits. The byte offset is relative to the frame's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("malformed RESP at byte {at} of the frame: {what}")]
pub struct Malformed {
    /// Offset of the offending header or byte, from the start of the frame.
    pub at: usize,
    /// What is wrong, in a few words.
    pub what: &'static str,
}

const FRAME_TOO_LARGE: &str = "frame over the size limit";
const LENGTH_TOO_LARGE: &str = "length over the limit";

impl Malformed {
    /// True if the bytes are RESP as far as they go, but announce more than the [`Limits`] allow.
    pub fn is_too_large(&self) -> bool {
        self.what == FRAME_TOO_LARGE || self.what == LENGTH_TOO_LARGE
    }
}

/// Incremental boundary finder. One scanner serves one connection; after [`Progress::Complete`] it is ready
/// for the next frame.
#[derive(Debug)]
pub struct Scanner {
    limits: Limits,
    /// Where the next header starts, relative to the start of the frame.
    pos: usize,
    /// How far past `pos` was already searched for the end of the line, so that a line that trickles in is
    /// searched once.
    searched: usize,
    /// Elements still to come in each open aggregate, outermost first. Never contains a zero between calls.
    open: Vec<u64>,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner::new(Limits::default())
    }
}

impl Scanner {
    /// A scanner with the given limits, at the start of a frame.
    pub fn new(limits: Limits) -> Self {
        Scanner { limits, pos: 0, searched: 0, open: Vec::new() }
    }

    /// What is taken for malformed.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the longest whole frame from here on. In the middle of a frame it holds for the headers still to
    /// come. A string that goes beyond it is refused at its header, before its bytes have arrived.
    pub fn limit_frames(&mut self, bytes_max: u64) {
        self.limits.frame_bytes_max = bytes_max;
    }

    /// Looks for the end of the frame that starts at `buf[0]`.
    ///
    /// Between calls the caller may only append to the buffer. After `Complete(n)` the caller removes the
    /// first `n` bytes before the next call.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not RESP or a limit is exceeded. The scanner must not be used
    /// afterwards.
    pub fn scan(&mut self, buf: &[u8]) -> Result<Progress, Malformed> {
        debug_assert!(buf.len() >= self.pos, "bytes of an unfinished frame were removed");
        loop {
            let Some(line_end) = self.line_end(buf)? else {
                // A peer that speaks another protocol is refused at once, not when a line feed happens to
                // come: a TLS server answers a plain greeting with an alert of seven bytes, and then waits.
                if buf.get(self.pos).is_some_and(|kind| !TYPE_BYTES.contains(kind)) {
                    return Err(self.malformed("unknown type byte"));
                }
                return Ok(Progress::Incomplete(FRAME_BYTES_MIN.saturating_sub(buf.len() - self.pos).max(1)));
            };
            let line = &buf[self.pos + 1..line_end];
            let kind = buf[self.pos];
            let after_line = self.within_frame(line_end as u64 + 2)?;
            let children = match kind {
                b'+' | b'-' => 0,
                b':' | b',' | b'#' | b'_' | b'(' => {
                    self.check_scalar(kind, line)?;
                    0
                }
                b'$' | b'!' | b'=' => {
                    if kind == b'$' && line == b"-1" {
                        0
                    } else {
                        let len = self.length(line, self.limits.bulk_bytes_max)?;
                        let end = self.within_frame(after_line as u64 + len + 2)?;
                        if buf.len() < end {
                            return Ok(Progress::Incomplete(end - buf.len()));
                        }
                        if &buf[end - 2..end] != b"\r\n" {
                            return Err(Malformed {
                                at: end - 2,
                                what: "bulk string without its closing CRLF",
                            });
                        }
                        if kind == b'=' && (len < 4 || buf[after_line + 3] != b':') {
                            return Err(self.malformed("verbatim string without its format"));
                        }
                        if self.element_done(end) {
                            return Ok(self.complete(end));
                        }
                        continue;
                    }
                }
                b'*' if line == b"-1" => 0,
                b'*' | b'~' | b'>' => self.length(line, self.limits.elements_max)?,
                b'%' => self.length(line, self.limits.elements_max / 2)? * 2,
                // An attribute is a map that precedes the value it describes: the value is one element more.
                b'|' => self.length(line, self.limits.elements_max / 2)? * 2 + 1,
                _ => return Err(self.malformed("unknown type byte")),
            };
            if children > 0 {
                if self.open.len() >= self.limits.depth_max {
                    return Err(self.malformed("nested too deep"));
                }
                self.open.push(children);
                self.advance(after_line);
                continue;
            }
            if self.element_done(after_line) {
                return Ok(self.complete(after_line));
            }
        }
    }

    /// Index of the CR that ends the line at `pos`, or `None` if the line is not complete yet.
    fn line_end(&mut self, buf: &[u8]) -> Result<Option<usize>, Malformed> {
        let from = self.pos.max(self.searched);
        if from >= buf.len() {
            return Ok(None);
        }
        match memchr(b'\n', &buf[from..]) {
            Some(i) => {
                let lf = from + i;
                if lf - self.pos > self.limits.line_bytes_max {
                    return Err(self.malformed("line over the length limit"));
                }
                if lf < self.pos + 2 || buf[lf - 1] != b'\r' {
                    return Err(self.malformed("line without CRLF"));
                }
                Ok(Some(lf - 1))
            }
            None => {
                if buf.len() - self.pos > self.limits.line_bytes_max {
                    return Err(self.malformed("line over the length limit"));
                }
                self.searched = buf.len();
                Ok(None)
            }
        }
    }

    /// Counts one finished element that ends at `end`; true if that finishes the whole frame.
    fn element_done(&mut self, end: usize) -> bool {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                self.advance(end);
                return false;
            }
            self.open.pop();
        }
        true
    }

    fn advance(&mut self, to: usize) {
        self.pos = to;
        self.searched = to;
    }

    fn complete(&mut self, len: usize) -> Progress {
        self.advance(0);
        Progress::Complete(len)
    }

    /// `end` as an index, if a frame may reach that far.
    fn within_frame(&self, end: u64) -> Result<usize, Malformed> {
        usize::try_from(end)
            .ok()
            .filter(|_| end <= self.limits.frame_bytes_max)
            .ok_or_else(|| self.malformed(FRAME_TOO_LARGE))
    }

    fn length(&self, line: &[u8], max: u64) -> Result<u64, Malformed> {
        let n = parse_length(line).ok_or_else(|| self.malformed("bad length"))?;
        if n > max {
            return Err(self.malformed(LENGTH_TOO_LARGE));
        }
        Ok(n)
    }

    fn check_scalar(&self, kind: u8, line: &[u8]) -> Result<(), Malformed> {
        let ok = match kind {
            b':' => parse_int(line).is_some(),
            b',' => parse_double(line).is_some(),
            b'#' => matches!(line, b"t" | b"f"),
            b'_' => line.is_empty(),
            _ => is_big_number(line),
        };
        if ok { Ok(()) } else { Err(self.malformed("bad scalar")) }
    }

    fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.pos, what }
    }
}

/// The length of a string or the number of elements of an aggregate: digits only, without a sign.
pub(crate) fn parse_length(line: &[u8]) -> Option<u64> {
    if line.is_empty() || line.len() > 19 || !line.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // At most 19 digits: no overflow of u64.
    Some(line.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
}

/// An integer as RESP writes it: an optional sign and digits, within `i64`.
pub(crate) fn parse_int(line: &[u8]) -> Option<i64> {
    let (negative, digits) = match line {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude = digits.iter().fold(0i128, |n, d| n * 10 + i128::from(d - b'0'));
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// A double as RESP3 writes it, including `inf`, `-inf` and `nan`.
pub(crate) fn parse_double(line: &[u8]) -> Option<f64> {
    // Rust's parser accepts all forms that servers send ("1.5", "1e10", "inf", "nan") and a few more
    // ("infinity").
    std::str::from_utf8(line).ok()?.parse().ok()
}

/// Whether a line is a big number: an optional sign and digits.
pub(crate) fn is_big_number(line: &[u8]) -> bool {
    let digits = line.strip_prefix(b"-").or_else(|| line.strip_prefix(b"+")).unwrap_or(line);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}
