//! Finds the commands in the bytes that a client sends, as servers read them.
//!
//! A command is an array of bulk strings, or a line of words ("inline", what a person types into a terminal).
//! The scanner remembers where it stopped, so a command that arrives in a thousand reads is walked once. A
//! long one need not be held as a whole: what has been passed on is [forgotten](RequestScanner::forget).
//!
//! The errors are those of the servers, word for word, so that a client sees no difference.
//! Protocol: <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

use std::ops::Range;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memchr;
use thiserror::Error;

use crate::scan::parse_int;

/// The longest line, as in the servers: an inline command, a header.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Arrays in which all scanners of this process have looked for arguments. Kept in builds with debug
/// assertions only, so that tests see whether a request is scanned more than once.
#[cfg(debug_assertions)]
static SCANNED: AtomicU64 = AtomicU64::new(0);

/// How many requests have been scanned in this process, lines of words left out. For tests: builds without
/// debug assertions do not count.
#[cfg(debug_assertions)]
pub fn scanned() -> u64 {
    SCANNED.load(Ordering::Relaxed)
}

/// Bounds on what a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// The longest argument; `proto-max-bulk-len` of the servers, 512 MiB unless raised.
    pub bulk_bytes_max: u64,
    /// The most arguments of one command.
    pub args_max: u64,
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits { bulk_bytes_max: 512 << 20, args_max: 1 << 20 }
    }
}

/// Why bytes are no command. The text is what servers answer after `-ERR `, before they hang up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("Protocol error: {0}")]
pub struct BadRequest(String);

/// What is said about a request that servers hang up on without an answer.
const HTTP: &str = "a request of HTTP";

impl BadRequest {
    /// What servers answer before they hang up; `None` if they answer nothing.
    pub fn answer(&self) -> Option<String> {
        (self.0 != HTTP).then(|| format!("-ERR {self}\r\n"))
    }
}

/// What a call of [`RequestScanner::scan`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A complete array of this many bytes. Its arguments are [`RequestScanner::args`].
    Array(usize),
    /// A complete line of this many bytes, and its words; none if the line is empty.
    Inline(usize, Vec<Vec<u8>>),
    /// Nothing that servers answer to: an empty array, of this many bytes.
    Nothing(usize),
    /// More bytes are needed, at least this many.
    Incomplete(usize),
}

/// Incremental finder of commands. One serves one connection.
#[derive(Debug, Default)]
pub struct RequestScanner {
    limits: RequestLimits,
    /// Where the next header starts; beyond the end of the buffer while the bytes of an argument are to come.
    pos: usize,
    /// How far the line at `pos` was already searched for its end.
    searched: usize,
    /// Arguments still to come, inside of an array.
    left: Option<u64>,
    /// Where the arguments are, from the start of the buffer.
    args: Vec<Range<usize>>,
    /// How many arguments are remembered.
    keep_max: usize,
    /// How many bytes before `pos` have not been looked at, of the two that end an argument.
    unseen: usize,
}

impl RequestScanner {
    /// A scanner at the start of a command.
    pub fn new(limits: RequestLimits) -> RequestScanner {
        RequestScanner { limits, keep_max: usize::MAX, ..RequestScanner::default() }
    }

    /// From the next command on, remembers at most `args_max` arguments of each.
    pub fn keep(&mut self, args_max: usize) {
        self.keep_max = args_max;
    }

    /// The places of the arguments that have been seen of the present command, from the start of the buffer.
    /// The last one may reach beyond its end.
    pub fn args(&self) -> &[Range<usize>] {
        &self.args
    }

    /// True in the middle of a command.
    pub fn is_inside(&self) -> bool {
        self.left.is_some()
    }

    /// How many arguments of the present array are still to come, the one whose bytes are arriving not
    /// counted.
    pub fn args_left(&self) -> u64 {
        self.left.unwrap_or(0)
    }

    /// Looks for the end of the command that starts at `buf[0]`. Between calls the caller may only append to
    /// the buffer, or [forget](RequestScanner::forget). After a complete command the caller removes its
    /// bytes, calls [`RequestScanner::next`], and calls again.
    ///
    /// # Errors
    /// [`BadRequest`] if servers would hang up. The scanner must not be used afterwards.
    pub fn scan(&mut self, buf: &[u8]) -> Result<Request, BadRequest> {
        if self.left.is_none() {
            let Some(&first) = buf.first() else { return Ok(Request::Incomplete(1)) };
            if first != b'*' {
                return self.inline(buf);
            }
            let too_long = "too big mbulk count string";
            let Some(end) = self.line_end(buf, too_long)? else { return Ok(Request::Incomplete(1)) };
            let max = i64::try_from(self.limits.args_max).unwrap_or(i64::MAX);
            let count = header(buf, 1, end).filter(|n| *n <= max);
            let count = count.ok_or_else(|| bad("invalid multibulk length"))?;
            if count <= 0 {
                return Ok(Request::Nothing(end + 1));
            }
            #[cfg(debug_assertions)]
            SCANNED.fetch_add(1, Ordering::Relaxed);
            self.left = Some(count.unsigned_abs());
            self.advance(end + 1);
        }
        while let Some(left) = self.left.filter(|left| *left > 0) {
            self.check_end(buf)?;
            let Some(&first) = buf.get(self.pos) else {
                return Ok(Request::Incomplete(self.pos + 1 - buf.len()));
            };
            if first != b'$' {
                return Err(bad(format!("expected '$', got '{}'", printable(first))));
            }
            let Some(end) = self.line_end(buf, "too big bulk count string")? else {
                return Ok(Request::Incomplete(1));
            };
            let max = i64::try_from(self.limits.bulk_bytes_max).unwrap_or(i64::MAX);
            let len = header(buf, self.pos + 1, end).filter(|n| (0..=max).contains(n));
            let len = len.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| bad("invalid bulk length"))?;
            if self.args.len() < self.keep_max {
                self.args.push(end + 1..end + 1 + len);
            }
            self.left = Some(left - 1);
            self.advance(end + 1 + len + 2);
            self.unseen = 2;
        }
        self.check_end(buf)?;
        let name = self.args.first().and_then(|range| buf.get(range.clone()));
        if name.is_some_and(is_http) {
            return Err(bad(HTTP));
        }
        match self.pos.checked_sub(buf.len()).filter(|missing| *missing > 0) {
            Some(missing) => Ok(Request::Incomplete(missing)),
            None => Ok(Request::Array(self.pos)),
        }
    }

    /// Makes ready for the next command, whose first byte will be at the start of the buffer.
    pub fn next(&mut self) {
        self.pos = 0;
        self.searched = 0;
        self.left = None;
        self.args.clear();
        self.unseen = 0;
    }

    /// Notes that the caller removes `bytes` from the start of the buffer, in the middle of a command: they
    /// have been passed on. What has been said of arguments holds no longer.
    ///
    /// The caller may remove no header that has not been scanned: at most [`RequestScanner::forgettable`]
    /// bytes.
    pub fn forget(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.pos, "bytes that were not scanned are forgotten");
        self.pos -= bytes;
        self.searched = self.searched.saturating_sub(bytes);
        self.args.clear();
    }

    /// How many bytes at the start of `buf` belong to what has been scanned.
    pub fn forgettable(&self, buf: &[u8]) -> usize {
        self.pos.min(buf.len())
    }

    /// Looks at the two bytes that end the argument before `pos`, as far as they are there. Some servers do
    /// not, others hang up: on a connection that clients share, that would end all of them.
    fn check_end(&mut self, buf: &[u8]) -> Result<(), BadRequest> {
        while self.unseen > 0 {
            let byte = self.pos.checked_sub(self.unseen).and_then(|at| buf.get(at));
            let Some(&byte) = byte else { return Ok(()) };
            if byte != if self.unseen == 2 { b'\r' } else { b'\n' } {
                return Err(bad("invalid CRLF in request"));
            }
            self.unseen -= 1;
        }
        Ok(())
    }

    fn advance(&mut self, to: usize) {
        self.pos = to;
        self.searched = to;
    }

    /// The position of the line feed that ends the line at `pos`.
    fn line_end(&mut self, buf: &[u8], too_long: &str) -> Result<Option<usize>, BadRequest> {
        let from = self.searched.max(self.pos);
        match memchr(b'\n', &buf[from..]).map(|i| from + i) {
            Some(end) if end - self.pos <= LINE_BYTES_MAX => Ok(Some(end)),
            None if buf.len() - self.pos <= LINE_BYTES_MAX => {
                self.searched = buf.len();
                Ok(None)
            }
            _ => Err(bad(too_long)),
        }
    }

    fn inline(&mut self, buf: &[u8]) -> Result<Request, BadRequest> {
        let Some(end) = self.line_end(buf, "too big inline request")? else {
            return Ok(Request::Incomplete(1));
        };
        let words = split_words(line(buf, 0, end)).ok_or_else(|| bad("unbalanced quotes in request"))?;
        if words.first().is_some_and(|name| is_http(name)) {
            return Err(bad(HTTP));
        }
        Ok(Request::Inline(end + 1, words))
    }
}

fn bad(what: impl Into<String>) -> BadRequest {
    BadRequest(what.into())
}

/// Whether a browser may have been made to send this, which servers hang up on: what follows may be commands.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}

/// The number in a header, as strict as all servers: no plus sign, no zero before it, and both bytes at the
/// end of its line.
fn header(buf: &[u8], start: usize, end: usize) -> Option<i64> {
    let digits = buf.get(start..end)?.strip_suffix(b"\r")?;
    let is_plain = match digits {
        [b'0'] => true,
        [b'-', first, ..] | [first, ..] => (b'1'..=b'9').contains(first),
        [] => false,
    };
    parse_int(digits).filter(|_| is_plain)
}

/// As servers show a byte in an error.
fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' }
}

/// The line without its line feed and a carriage return before it.
fn line(buf: &[u8], start: usize, end: usize) -> &[u8] {
    let line = buf.get(start..end).unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The words of a line, with quotes and escapes as servers understand them; `None` if quotes are unbalanced.
fn split_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while rest.first().is_some_and(|byte| is_space(*byte)) {
            rest = &rest[1..];
        }
        // A zero byte ends the line for a server, which works on C strings here.
        if rest.first().is_none_or(|byte| *byte == 0) {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some(&byte) = rest.first().filter(|byte| !is_space(**byte) && **byte != 0) {
            rest = &rest[1..];
            if byte == b'"' || byte == b'\'' {
                rest = quoted(rest, byte, &mut word)?;
                // Nothing but white space may follow the closing quote.
                if rest.first().is_some_and(|byte| !is_space(*byte)) {
                    return None;
                }
                break;
            }
            word.push(byte);
        }
        words.push(word);
    }
}

/// Reads up to the closing `quote` into `word`, and returns what comes after it.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            _ if byte == quote => return Some(rest),
            b'\\' if quote == b'\'' => match rest.first() {
                Some(b'\'') => {
                    word.push(b'\'');
                    rest = &rest[1..];
                }
                _ => word.push(b'\\'),
            },
            b'\\' => {
                if let [b'x', high, low, after @ ..] = rest
                    && let (Some(high), Some(low)) = (hex(*high), hex(*low))
                {
                    word.push(high << 4 | low);
                    rest = after;
                    continue;
                }
                let (&escaped, after) = rest.split_first()?;
                rest = after;
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
            }
            other => word.push(other),
        }
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|n| u8::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy;

    use super::*;

    fn scanner() -> RequestScanner {
        RequestScanner::new(RequestLimits::default())
    }

    fn args_of(text: &[u8]) -> Vec<Vec<u8>> {
        let mut scanner = scanner();
        assert_eq!(scanner.scan(text), Ok(Request::Array(text.len())));
        scanner.args().iter().map(|range| text[range.clone()].to_vec()).collect()
    }

    #[test]
    fn arguments_are_found() {
        assert_eq!(args_of(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), [b"GET".to_vec(), Vec::new()]);
        assert_eq!(args_of(b"*1\r\n$4\r\nA\r\nB\r\n"), [b"A\r\nB".to_vec()]);
    }

    #[test]
    fn any_division_into_reads_gives_the_same() {
        let text = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\nhello\r\nworld\r\n";
        for cut in 0..text.len() {
            let mut scanner = scanner();
            assert!(matches!(scanner.scan(&text[..cut]), Ok(Request::Incomplete(_))), "{cut}");
            assert_eq!(scanner.scan(text), Ok(Request::Array(text.len())), "{cut}");
            assert_eq!(scanner.args().len(), 3);
        }
    }

    #[test]
    fn what_was_passed_on_is_forgotten() {
        let text = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\nhello\r\nworld\r\n";
        for step in 1..text.len() {
            let (mut scanner, mut buf, mut passed) = (scanner(), Vec::new(), 0);
            for chunk in text.chunks(step) {
                buf.extend_from_slice(chunk);
                match scanner.scan(&buf).expect("valid") {
                    Request::Array(len) => passed += len,
                    _ => {
                        let bytes = scanner.forgettable(&buf);
                        scanner.forget(bytes);
                        buf.drain(..bytes);
                        passed += bytes;
                    }
                }
            }
            assert_eq!(passed, text.len(), "in steps of {step}");
        }
    }

    #[test]
    fn errors_are_those_of_servers() {
        let long = [b"*".to_vec(), vec![b'1'; 70_000]].concat();
        let cases: [(&[u8], &str); 8] = [
            (b"*x\r\n", "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*99999999999999999999\r\n", "invalid multibulk length"),
            (b"*1\r\nGET\r\n", "expected '$', got 'G'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"GET \"k\r\n", "unbalanced quotes in request"),
            (&long, "too big mbulk count string"),
        ];
        for (text, what) in cases {
            assert_eq!(scanner().scan(text), Err(bad(what)));
        }
    }

    #[test]
    fn empty_arrays_are_nothing() {
        for text in [&b"*0\r\n"[..], b"*-1\r\n", b"*-9\r\n"] {
            assert_eq!(scanner().scan(text), Ok(Request::Nothing(text.len())));
        }
    }

    #[test]
    fn frames_that_any_server_refuses_are_refused() {
        let cases: [(&[u8], &str); 14] = [
            (b"*+1\r\n$4\r\nPING\r\n", "invalid multibulk length"),
            (b"*01\r\n$4\r\nPING\r\n", "invalid multibulk length"),
            (b"*00\r\n", "invalid multibulk length"),
            (b"*-0\r\n", "invalid multibulk length"),
            (b"*-01\r\n", "invalid multibulk length"),
            (b"*\r\n", "invalid multibulk length"),
            (b"*1\n$4\r\nPING\r\n", "invalid multibulk length"),
            (b"*1\r\r\n$4\r\nPING\r\n", "invalid multibulk length"),
            (b"*1\rX$4\rXPING\r\n", "invalid multibulk length"),
            (b"*1\r\n$+4\r\nPING\r\n", "invalid bulk length"),
            (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
            (b"*1\r\n$4\nPING\r\n", "invalid bulk length"),
            (b"*1\r\n$4\r\nPINGxx", "invalid CRLF in request"),
            (b"*2\r\n$4\r\nECHO\n\n$1\r\na\r\n", "invalid CRLF in request"),
        ];
        for (text, what) in cases {
            assert_eq!(scanner().scan(text), Err(bad(what)), "{}", text.escape_ascii());
            // However it is divided into reads, and passed on in between.
            let (mut scanner, mut buf) = (scanner(), Vec::new());
            let refused = text.iter().any(|byte| {
                buf.push(*byte);
                let found = scanner.scan(&buf);
                if found.is_ok() && scanner.is_inside() {
                    let bytes = scanner.forgettable(&buf);
                    scanner.forget(bytes);
                    buf.drain(..bytes);
                }
                found.is_err()
            });
            assert!(refused, "byte by byte: {}", text.escape_ascii());
        }
    }

    #[test]
    fn what_a_browser_sends_ends_the_connection() {
        let cases: [&[u8]; 7] = [
            b"POST / HTTP/1.1\r\n",
            b"post\n",
            b"Host: x\r\n",
            b"\"Host:\" x\r\n",
            b"*1\r\n$4\r\nPOST\r\n",
            b"*1\r\n$5\r\nhost:\r\n",
            b"*2\r\n$4\r\nPost\r\n$1\r\na\r\n",
        ];
        for text in cases {
            let refused = scanner().scan(text).expect_err("servers hang up");
            assert_eq!(refused.to_string(), "Protocol error: a request of HTTP");
        }
        for text in [&b"POSTS\r\n"[..], b"Host x\r\n", b"GET / HTTP/1.1\r\n"] {
            assert!(scanner().scan(text).is_ok(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn lines_are_split_as_servers_do() {
        let words = |text: &[u8]| split_words(text).map(|words| words.concat_with());
        assert_eq!(words(b"  SET  k 'a b' "), Some("SET|k|a b|".to_owned()));
        assert_eq!(words(br#"SET k "a\x41\n\"" "#), Some("SET|k|aA\n\"|".to_owned()));
        assert_eq!(words(b"ECHO 'it\\'s'"), Some("ECHO|it's|".to_owned()));
        assert_eq!(words(b"ECHO \"a\"b"), None);
        assert_eq!(words(b""), Some(String::new()));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken_without_a_panic(
            pieces in proptest::collection::vec(
                proptest::prop_oneof![
                    proptest::collection::vec(proptest::num::u8::ANY, 0..40),
                    "[*$][0-9-]{0,6}\r?\n?[ -~]{0,8}".prop_map(String::into_bytes),
                ],
                0..12,
            ),
            forgetful in proptest::bool::ANY,
        ) {
            let (mut scanner, mut buf) = (scanner(), Vec::new());
            for piece in pieces {
                buf.extend_from_slice(&piece);
                loop {
                    match scanner.scan(&buf) {
                        Ok(Request::Array(len) | Request::Inline(len, _) | Request::Nothing(len)) => {
                            proptest::prop_assert!(0 < len && len <= buf.len());
                            buf.drain(..len);
                            scanner.next();
                        }
                        Ok(Request::Incomplete(missing)) => {
                            proptest::prop_assert!(missing > 0);
                            if forgetful && scanner.is_inside() {
                                let bytes = scanner.forgettable(&buf);
                                scanner.forget(bytes);
                                buf.drain(..bytes);
                            }
                            break;
                        }
                        Err(_) => return Ok(()),
                    }
                }
            }
        }
    }

    trait Joined {
        fn concat_with(&self) -> String;
    }

    impl Joined for Vec<Vec<u8>> {
        fn concat_with(&self) -> String {
            self.iter().map(|word| String::from_utf8_lossy(word).into_owned() + "|").collect()
        }
    }
}
