//! Commands as bytes, and which protocol they and their replies are in.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// From this length on an argument is sent in place instead of being copied: below it, the copy costs less
/// than one more entry in the vectored write.
const SPLICE_BYTES_MIN: usize = 8 << 10;

/// Which kinds of value a peer understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// What every client speaks: no maps, no verbatim strings.
    Resp2,
    /// What `HELLO 3` asks for.
    Resp3,
}

impl Protocol {
    /// Both, in the order of [`Protocol::index`].
    pub const BOTH: [Protocol; 2] = [Protocol::Resp2, Protocol::Resp3];

    /// Its place among both.
    pub const fn index(self) -> usize {
        match self {
            Protocol::Resp2 => 0,
            Protocol::Resp3 => 1,
        }
    }
}

/// Encoded commands waiting to be written.
///
/// Small arguments are copied into one growing buffer; large ones are spliced in as they are. It implements
/// [`Buf`], so `write_all_buf` drains it with vectored writes.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Parts that are complete, none of them empty.
    done: VecDeque<Bytes>,
    /// What comes after them, still growing.
    tail: BytesMut,
    /// The length of all parts.
    bytes: usize,
    /// Commands started since it was made.
    commands: u64,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Self {
        Outbox::default()
    }

    /// Starts a command of `args` arguments, its name included. Exactly that many `arg…` calls must follow.
    pub fn command(&mut self, args: usize) {
        self.commands += 1;
        self.header(b'*', args);
    }

    /// Adds an argument, copied.
    pub fn arg(&mut self, arg: &[u8]) {
        let header = Header::new(b'$', arg.len());
        let bytes = header.as_bytes().len() + arg.len() + 2;
        self.tail.reserve(bytes);
        self.tail.put_slice(header.as_bytes());
        self.tail.put_slice(arg);
        self.tail.put_slice(b"\r\n");
        self.bytes += bytes;
    }

    /// Adds an argument; a long one is spliced in without copying.
    pub fn arg_bytes(&mut self, arg: &Bytes) {
        if arg.len() < SPLICE_BYTES_MIN {
            return self.arg(arg);
        }
        self.header(b'$', arg.len());
        // Not empty: the header is in it.
        self.done.push_back(self.tail.split().freeze());
        self.done.push_back(arg.clone());
        self.tail.put_slice(b"\r\n");
        self.bytes += arg.len() + 2;
    }

    /// Adds an integer argument in decimal.
    pub fn arg_int(&mut self, n: i64) {
        self.arg(itoa::Buffer::new().format(n).as_bytes());
    }

    /// Adds a whole command of short arguments.
    pub fn push(&mut self, args: &[&[u8]]) {
        self.command(args.len());
        for arg in args {
            self.arg(arg);
        }
    }

    /// Adds a whole command; long arguments are spliced in without copying.
    pub fn push_bytes(&mut self, args: &[Bytes]) {
        self.command(args.len());
        for arg in args {
            self.arg_bytes(arg);
        }
    }

    /// How many commands were started since it was made, those that were thrown away included.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Throws away what waits, keeping the buffer.
    pub fn clear(&mut self) {
        self.done.clear();
        self.tail.clear();
        self.bytes = 0;
    }

    fn header(&mut self, kind: u8, n: usize) {
        let header = Header::new(kind, n);
        self.tail.put_slice(header.as_bytes());
        self.bytes += header.as_bytes().len();
    }
}

/// A type byte, a length in decimal, and the end of the line. Put together before it is added, since adding
/// to a buffer costs more than these few bytes.
struct Header {
    bytes: [u8; Header::BYTES_MAX],
    len: usize,
}

impl Header {
    /// For the longest length, of 20 digits.
    const BYTES_MAX: usize = 23;

    fn new(kind: u8, n: usize) -> Header {
        let mut bytes = [0; Header::BYTES_MAX];
        bytes[0] = kind;
        let end = match u8::try_from(n) {
            // Most arguments: no digits to be copied from elsewhere.
            Ok(n @ 0..10) => {
                bytes[1] = b'0' + n;
                2
            }
            Ok(n @ 10..100) => {
                bytes[1..3].copy_from_slice(&[b'0' + n / 10, b'0' + n % 10]);
                3
            }
            _ => {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(n).as_bytes();
                bytes[1..=digits.len()].copy_from_slice(digits);
                digits.len() + 1
            }
        };
        bytes[end..end + 2].copy_from_slice(b"\r\n");
        Header { bytes, len: end + 2 }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Buf for Outbox {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.done.front().map_or(&self.tail[..], |first| &first[..])
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let parts = self.done.iter().map(|b| &b[..]).chain([&self.tail[..]]).filter(|p| !p.is_empty());
        let mut n = 0;
        for (slot, part) in dst.iter_mut().zip(parts) {
            *slot = IoSlice::new(part);
            n += 1;
        }
        n
    }

    fn advance(&mut self, mut cnt: usize) {
        assert!(cnt <= self.bytes, "advance past the end of the outbox");
        self.bytes -= cnt;
        while cnt > 0 {
            let Some(first) = self.done.front_mut() else {
                self.tail.advance(cnt);
                return;
            };
            if cnt < first.len() {
                first.advance(cnt);
                return;
            }
            cnt -= first.len();
            self.done.pop_front();
        }
    }
}
