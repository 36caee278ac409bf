//! What a primary sends to a replica: the reply to `PSYNC`, perhaps a snapshot, then its command stream.
//!
//! A [`Parser`] is fed bytes as they arrive, split anywhere, and notifies a [`Sink`] of each command and its
//! arguments. The sink says of each argument whether it wants to see it; an argument that is not wanted, and
//! the snapshot, pass through without being held, however large they are. Bytes of the command stream are
//! counted exactly, since the sum is the replication offset.
//!
//! The protocol has no specification. What is relied on, from the servers' sources and tested against them:
//!
//! - `PSYNC` is answered with `+FULLRESYNC <replid> <offset>`, `+CONTINUE`, `+CONTINUE <replid>` or an error.
//!   While the primary prepares, it sends bare newlines to keep the link alive;
//! - a snapshot is `$<length>` and that many bytes, or `$EOF:<40 bytes>`, the snapshot, and the same 40 bytes
//!   again; neither is followed by a line break. It does not count towards the offset;
//! - commands are arrays of bulk strings. Between them a bare newline may stand, and counts.

use memchr::{memchr, memmem};

use crate::scan::{Malformed, parse_length};

/// The longest line in front of the command stream: an error's text is the longest there is.
const OPENING_BYTES_MAX: usize = 4 << 10;

/// The longest header of a command or an argument, with its type byte and line break.
const HEADER_BYTES_MAX: usize = 32;

/// The length of the mark around a snapshot whose length is not known in advance.
const MARK_BYTES: usize = 40;

/// How a primary answered `PSYNC`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// A snapshot follows, and then the commands after `offset`.
    Full {
        /// The id of the replication history.
        replid: String,
        /// The offset that the snapshot stands for.
        offset: u64,
    },
    /// The commands follow from the offset that was asked for.
    Continue {
        /// The id of the replication history, if the primary names one: it may differ from the one asked for.
        replid: Option<String>,
    },
    /// The primary refused, with this text. Nothing follows.
    Refused(Vec<u8>),
}

/// Receives the commands. Between [`Sink::command`] and [`Sink::command_done`] each argument is announced by
/// [`Sink::wants`], in order.
pub trait Sink {
    /// A command of this many arguments begins, its name included.
    fn command(&mut self, args: u64);
    /// Argument `index` (0 for the name) is `len_bytes` long. If this returns true it is held until it is
    /// complete and handed to [`Sink::argument`]; else it is skipped.
    fn wants(&mut self, index: u64, len_bytes: u64) -> bool;
    /// A wanted argument.
    fn argument(&mut self, index: u64, bytes: &[u8]);
    /// The command is complete. If the link breaks before, this never comes.
    fn command_done(&mut self);
}

/// Where in the link the parser is.
#[derive(Debug)]
enum State {
    /// In the reply to `PSYNC`.
    Opening,
    /// In front of a snapshot.
    SnapshotHeader,
    /// In a snapshot, `left` bytes before its end.
    Counted { left: u64 },
    /// In a snapshot that ends with the mark. `tail` holds the last bytes seen, fewer than the mark has.
    Marked { mark: [u8; MARK_BYTES], tail: Vec<u8> },
    /// Between two commands, or in a command's header.
    Command,
    /// In an argument's header.
    Header,
    /// In an argument, `left` bytes before its end.
    Argument { left: u64, wanted: bool },
    /// After an argument, in its line break.
    LineBreak { feed: bool },
    /// The primary refused.
    Refused,
}

/// Reads one replication link. Make a new one for each connection.
#[derive(Debug)]
pub struct Parser {
    state: State,
    opening: Option<Opening>,
    /// What has arrived of a line, or of a wanted argument, that is not complete. Empty at the start of each.
    partial: Vec<u8>,
    /// Arguments in the current command.
    args: u64,
    /// The current argument.
    index: u64,
    /// The offset after the last byte of the command stream that was seen.
    position: u64,
    /// The offset after the last complete command.
    offset: u64,
}

impl Parser {
    /// A parser in front of the reply to `PSYNC <replid> <offset + 1>`. For `PSYNC ? -1` the offset does not
    /// matter, since the reply has it.
    pub fn new(offset: u64) -> Parser {
        Parser {
            state: State::Opening,
            opening: None,
            partial: Vec::new(),
            args: 0,
            index: 0,
            position: offset,
            offset,
        }
    }

    /// The reply to `PSYNC`, once it has arrived.
    pub fn opening(&self) -> Option<&Opening> {
        self.opening.as_ref()
    }

    /// True once everything in front of the command stream has arrived, a snapshot included.
    pub fn is_streaming(&self) -> bool {
        matches!(
            self.state,
            State::Command | State::Header | State::Argument { .. } | State::LineBreak { .. }
        )
    }

    /// The replication offset after the last complete command: what a primary calls `master_repl_offset` when
    /// that command was its last.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Takes in what has arrived, all of it. Wanted arguments that lie in `bytes` as a whole are not copied.
    ///
    /// # Errors
    /// [`Malformed`] if this is no replication link; `at` then counts from the start of `bytes`. The parser
    /// is of no further use.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<(), Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let used = self.step(rest, sink).map_err(|what| Malformed { at, what })?;
            at += used;
        }
        Ok(())
    }

    /// Consumes at least one byte of `rest`, which is not empty, and at most up to the end of the current
    /// part.
    fn step(&mut self, rest: &[u8], sink: &mut impl Sink) -> Result<usize, &'static str> {
        match &mut self.state {
            State::Command | State::Header | State::Argument { .. } | State::LineBreak { .. } => {
                let used = self.stream_step(rest, sink)?;
                self.position += used as u64;
                if matches!(self.state, State::Command) && self.partial.is_empty() {
                    self.offset = self.position;
                }
                Ok(used)
            }
            State::Opening => self.opening_step(rest),
            State::SnapshotHeader => self.snapshot_header_step(rest),
            State::Counted { left } => {
                let used = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= used as u64;
                if *left == 0 {
                    self.state = State::Command;
                }
                Ok(used)
            }
            State::Marked { mark, tail } => {
                let (used, ended) = marked_step(mark, tail, rest);
                if ended {
                    self.state = State::Command;
                }
                Ok(used)
            }
            State::Refused => Err("bytes after a refusal"),
        }
    }

    fn opening_step(&mut self, rest: &[u8]) -> Result<usize, &'static str> {
        if self.partial.is_empty() && rest[0] == b'\n' {
            return Ok(1);
        }
        let (complete, used) = self.take_line(rest, OPENING_BYTES_MAX)?;
        if complete {
            let opening = parse_opening(&self.partial)?;
            self.partial.clear();
            self.state = match &opening {
                Opening::Full { offset, .. } => {
                    (self.position, self.offset) = (*offset, *offset);
                    State::SnapshotHeader
                }
                Opening::Continue { .. } => State::Command,
                Opening::Refused(_) => State::Refused,
            };
            self.opening = Some(opening);
        }
        Ok(used)
    }

    fn snapshot_header_step(&mut self, rest: &[u8]) -> Result<usize, &'static str> {
        if self.partial.is_empty() && rest[0] == b'\n' {
            return Ok(1);
        }
        let (complete, used) = self.take_line(rest, OPENING_BYTES_MAX)?;
        if complete {
            let length = self.partial.strip_prefix(b"$").ok_or("no header of a snapshot")?;
            self.state = match length.strip_prefix(b"EOF:") {
                Some(mark) => {
                    let mark = mark.try_into().map_err(|_| "bad mark of a snapshot")?;
                    State::Marked { mark, tail: Vec::with_capacity(MARK_BYTES) }
                }
                None => match parse_length(length).ok_or("bad length of a snapshot")? {
                    0 => State::Command,
                    left => State::Counted { left },
                },
            };
            self.partial.clear();
        }
        Ok(used)
    }

    fn stream_step(&mut self, rest: &[u8], sink: &mut impl Sink) -> Result<usize, &'static str> {
        match &mut self.state {
            State::Command => {
                if self.partial.is_empty() && rest[0] == b'\n' {
                    return Ok(1);
                }
                let (number, used) = self.take_header(b'*', rest)?;
                if let Some(args) = number {
                    if args == 0 {
                        return Err("a command without a name");
                    }
                    (self.args, self.index) = (args, 0);
                    self.state = State::Header;
                    sink.command(args);
                }
                Ok(used)
            }
            State::Header => {
                let (number, used) = self.take_header(b'$', rest)?;
                if let Some(len) = number {
                    let wanted = sink.wants(self.index, len);
                    self.state = State::Argument { left: len, wanted };
                    if len == 0 {
                        self.argument_done(&[], wanted, sink);
                    }
                }
                Ok(used)
            }
            State::Argument { left, wanted } => {
                let (used, wanted) = (rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX)), *wanted);
                *left -= used as u64;
                let ended = *left == 0;
                if ended && self.partial.is_empty() {
                    self.argument_done(&rest[..used], wanted, sink);
                } else {
                    if wanted {
                        self.partial.extend_from_slice(&rest[..used]);
                    }
                    if ended {
                        let mut whole = std::mem::take(&mut self.partial);
                        self.argument_done(&whole, wanted, sink);
                        whole.clear();
                        // A very large one is not kept around for the next.
                        if whole.capacity() <= OPENING_BYTES_MAX {
                            self.partial = whole;
                        }
                    }
                }
                Ok(used)
            }
            State::LineBreak { feed } => {
                let used = match (*feed, rest) {
                    (false, [b'\r', b'\n', ..]) => 2,
                    (false, [b'\r']) => {
                        *feed = true;
                        return Ok(1);
                    }
                    (true, [b'\n', ..]) => 1,
                    _ => return Err("argument without its closing CRLF"),
                };
                self.index += 1;
                if self.index < self.args {
                    self.state = State::Header;
                } else {
                    self.state = State::Command;
                    sink.command_done();
                }
                Ok(used)
            }
            _ => Err("not in the command stream"),
        }
    }

    fn argument_done(&mut self, bytes: &[u8], wanted: bool, sink: &mut impl Sink) {
        if wanted {
            sink.argument(self.index, bytes);
        }
        self.state = State::LineBreak { feed: false };
    }

    /// Reads `<kind><digits>\r\n`: the number, if the line is complete, and how many bytes were used.
    fn take_header(&mut self, kind: u8, rest: &[u8]) -> Result<(Option<u64>, usize), &'static str> {
        if self.partial.is_empty() {
            // By far the most frequent case: the line lies in the buffer as a whole.
            if rest[0] != kind {
                return Err("unknown type byte in a command stream");
            }
            let mut number = 0u64;
            for (i, byte) in rest.iter().enumerate().skip(1).take(HEADER_BYTES_MAX) {
                match byte {
                    // At most 19 digits: no overflow.
                    b'0'..=b'9' if i <= 19 => number = number * 10 + u64::from(byte - b'0'),
                    b'\r' if i > 1 => {
                        return match rest.get(i + 1) {
                            Some(b'\n') => Ok((Some(number), i + 2)),
                            Some(_) => Err("line without CRLF"),
                            None => {
                                self.partial.extend_from_slice(rest);
                                Ok((None, rest.len()))
                            }
                        };
                    }
                    _ => return Err("bad length in a command stream"),
                }
            }
            self.partial.extend_from_slice(rest);
            return Ok((None, rest.len()));
        }
        let (complete, used) = self.take_line(rest, HEADER_BYTES_MAX)?;
        if !complete {
            return Ok((None, used));
        }
        let number = self
            .partial
            .strip_prefix(&[kind])
            .and_then(parse_length)
            .ok_or("bad length in a command stream")?;
        self.partial.clear();
        Ok((Some(number), used))
    }

    /// Adds to the line in `partial`; true if it is complete, and then without its line break. Also how many
    /// bytes were used.
    fn take_line(&mut self, rest: &[u8], bytes_max: usize) -> Result<(bool, usize), &'static str> {
        let end = memchr(b'\n', rest);
        let used = end.map_or(rest.len(), |i| i + 1);
        if self.partial.len() + used > bytes_max {
            return Err("line over the length limit");
        }
        self.partial.extend_from_slice(&rest[..used]);
        if end.is_none() {
            return Ok((false, used));
        }
        if !self.partial.ends_with(b"\r\n") {
            return Err("line without CRLF");
        }
        self.partial.truncate(self.partial.len() - 2);
        Ok((true, used))
    }
}

/// Looks for the mark in the bytes, whose last ones `tail` holds: how many of `rest` were used, and whether
/// the mark ends there.
fn marked_step(mark: &[u8; MARK_BYTES], tail: &mut Vec<u8>, rest: &[u8]) -> (usize, bool) {
    // A mark that began in the tail ends within this many bytes.
    let known = tail.len();
    tail.extend_from_slice(&rest[..rest.len().min(MARK_BYTES - 1)]);
    if let Some(at) = memmem::find(tail, mark) {
        return (at + MARK_BYTES - known, true);
    }
    if let Some(at) = memmem::find(rest, mark) {
        return (at + MARK_BYTES, true);
    }
    if rest.len() >= MARK_BYTES {
        tail.clear();
        tail.extend_from_slice(&rest[rest.len() - (MARK_BYTES - 1)..]);
    } else {
        // All of `rest` is in the tail.
        let surplus = tail.len().saturating_sub(MARK_BYTES - 1);
        tail.drain(..surplus);
    }
    (rest.len(), false)
}

fn parse_opening(line: &[u8]) -> Result<Opening, &'static str> {
    if let Some(text) = line.strip_prefix(b"-") {
        return Ok(Opening::Refused(text.to_vec()));
    }
    let line = std::str::from_utf8(line).map_err(|_| "no reply to PSYNC")?;
    let mut words = line.split_ascii_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some("+FULLRESYNC"), Some(replid), Some(offset)) => {
            // A primary without a history says -1 or 0: both are in front of the first byte.
            let offset = offset.parse::<i64>().map_err(|_| "bad offset in the reply to PSYNC")?;
            Ok(Opening::Full { replid: replid.to_owned(), offset: u64::try_from(offset).unwrap_or(0) })
        }
        (Some("+CONTINUE"), replid, None) => Ok(Opening::Continue { replid: replid.map(str::to_owned) }),
        _ => Err("no reply to PSYNC"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Remembers everything, and refuses arguments over a length.
    #[derive(Debug, Default, PartialEq)]
    struct Record {
        len_max: u64,
        commands: Vec<(u64, Vec<Option<Vec<u8>>>)>,
        done: usize,
    }

    impl Sink for Record {
        fn command(&mut self, args: u64) {
            self.commands.push((args, Vec::new()));
        }

        fn wants(&mut self, index: u64, len_bytes: u64) -> bool {
            let (_, args) = self.commands.last_mut().expect("a command has begun");
            assert_eq!(index, args.len() as u64);
            args.push(None);
            len_bytes <= self.len_max
        }

        fn argument(&mut self, index: u64, bytes: &[u8]) {
            let (_, args) = self.commands.last_mut().expect("a command has begun");
            assert_eq!(index + 1, args.len() as u64);
            assert_eq!(args.last_mut().expect("announced").replace(bytes.to_vec()), None, "given twice");
        }

        fn command_done(&mut self) {
            self.done += 1;
        }
    }

    fn encode(command: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for arg in command {
            bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    const MARK: &[u8; 40] = b"0123456789abcdef0123456789abcdef01234567";

    /// What a link may start with, and the offset after it.
    fn openings() -> impl Strategy<Value = (Vec<u8>, u64)> {
        // Bytes that the mark is made of, so that its start appears without being it.
        let near_mark = vec(prop_oneof![Just(MARK[..39].to_vec()), Just(b"012345".to_vec())], 0..4)
            .prop_map(|parts| parts.concat());
        let snapshot = prop_oneof![vec(any::<u8>(), 0..200), near_mark];
        let full = (snapshot, any::<bool>(), 0usize..3).prop_map(|(snapshot, marked, newlines)| {
            let mut bytes = "\n".repeat(newlines).into_bytes();
            bytes.extend_from_slice(b"+FULLRESYNC 8f4c 1000\r\n");
            bytes.extend(std::iter::repeat_n(b'\n', newlines));
            if marked {
                bytes.extend([b"$EOF:".as_slice(), MARK, b"\r\n", &snapshot, MARK].concat());
            } else {
                bytes.extend(format!("${}\r\n", snapshot.len()).into_bytes());
                bytes.extend(snapshot);
            }
            (bytes, 1000)
        });
        prop_oneof![
            full,
            Just((b"+CONTINUE\r\n".to_vec(), 77)),
            Just((
                b"\n+CONTINUE \
            9aab\r\n"
                    .to_vec(),
                77
            )),
        ]
    }

    fn parse_in_pieces(bytes: &[u8], cuts: &[usize], len_max: u64) -> (Record, u64, bool) {
        let mut record = Record { len_max, ..Record::default() };
        let mut parser = Parser::new(77);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        for piece in cuts.windows(2) {
            parser.feed(&bytes[piece[0]..piece[1]], &mut record).expect("well-formed");
        }
        (record, parser.offset(), parser.is_streaming())
    }

    proptest! {
        #[test]
        fn splits_do_not_matter(
            opening in openings(),
            commands in vec((vec(vec(any::<u8>(), 0..50), 1..6), 0usize..2), 0..8),
            cuts in vec(any::<usize>(), 0..40),
            len_max in 0u64..60,
            truncated in any::<usize>(),
        ) {
            let (mut bytes, mut offset) = opening;
            let mut expected = Vec::new();
            for (command, newlines) in &commands {
                let newlines = "\n".repeat(*newlines).into_bytes();
                let encoded = encode(command);
                offset += (newlines.len() + encoded.len()) as u64;
                bytes.extend(newlines);
                bytes.extend(encoded);
                let known = |arg: &Vec<u8>| (arg.len() as u64 <= len_max).then(|| arg.clone());
                let args = command.iter().map(known).collect();
                expected.push((command.len() as u64, args));
            }
            let whole = parse_in_pieces(&bytes, &[], len_max);
            prop_assert_eq!(&whole.0.commands, &expected);
            prop_assert_eq!(whole.0.done, commands.len());
            prop_assert_eq!(whole.1, offset);
            prop_assert!(whole.2);
            let every_byte: Vec<usize> = (0..bytes.len()).collect();
            prop_assert_eq!(&parse_in_pieces(&bytes, &every_byte, len_max), &whole);
            prop_assert_eq!(&parse_in_pieces(&bytes, &cuts, len_max), &whole);
            // The offset never points into a command.
            let cut = truncated % (bytes.len() + 1);
            let (record, reached, _) = parse_in_pieces(&bytes[..cut], &cuts, len_max);
            let again = parse_in_pieces(&bytes[..cut], &[], len_max);
            prop_assert_eq!(&record, &again.0);
            prop_assert_eq!(reached, again.1);
            prop_assert!(reached <= offset);
        }

        #[test]
        fn garbage_is_an_error_and_not_a_panic(
            bytes in vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'\r'), Just(b'*'), Just(b'$'),
            Just(b'1')], 0..80),
        ) {
            let mut parser = Parser::new(0);
            let mut record = Record { len_max: 10, ..Record::default() };
            parser.feed(b"+CONTINUE\r\n", &mut record).expect("well-formed");
            let _ = parser.feed(&bytes, &mut record);
        }
    }

    #[test]
    fn a_huge_argument_is_not_held() {
        let mut parser = Parser::new(0);
        let mut record = Record { len_max: 100, ..Record::default() };
        parser
            .feed(b"+CONTINUE\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000000\r\n", &mut record)
            .expect("valid");
        let piece = vec![b'x'; 1_000_000];
        for _ in 0..1_000 {
            parser.feed(&piece, &mut record).expect("valid");
            assert!(parser.partial.capacity() < 1_000);
        }
        assert_eq!(parser.offset(), 0);
        parser.feed(b"\r\n", &mut record).expect("valid");
        assert_eq!(record.commands, [(3, vec![Some(b"SET".to_vec()), Some(b"k".to_vec()), None])]);
        assert_eq!(parser.offset(), 1_000_000_035);
    }

    #[test]
    fn replies_to_psync() {
        let opening = |bytes: &[u8]| {
            let mut parser = Parser::new(5);
            parser.feed(bytes, &mut Record::default()).map(|()| (parser.opening().cloned(), parser.offset()))
        };
        let full = Opening::Full { replid: "ab".to_owned(), offset: 9 };
        assert_eq!(opening(b"+FULLRESYNC ab 9\r\n"), Ok((Some(full), 9)));
        assert_eq!(opening(b"+CONTINUE\r\n"), Ok((Some(Opening::Continue { replid: None }), 5)));
        let replid = Some("cd".to_owned());
        assert_eq!(opening(b"+CONTINUE cd\r\n"), Ok((Some(Opening::Continue { replid }), 5)));
        let refused = Opening::Refused(b"NOPERM no".to_vec());
        assert_eq!(opening(b"-NOPERM no\r\n"), Ok((Some(refused), 5)));
        assert_eq!(opening(b"\n\n+CONT"), Ok((None, 5)));
        for wrong in
            [b"+OK\r\n".as_slice(), b"+FULLRESYNC ab\r\n", b":5\r\n", b"\r\n", b"-ERR x\r\n+CONTINUE\r\n"]
        {
            assert!(opening(wrong).is_err(), "{:?}", wrong.escape_ascii().to_string());
        }
    }
}
