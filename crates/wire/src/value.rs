//! Complete frames as values.

use std::ops::Range;

use bytes::Bytes;

use crate::scan::{FRAME_BYTES_MIN, Malformed, is_big_number, parse_double, parse_int, parse_length};

/// One RESP2 or RESP3 value. Strings share the memory of the frame they were parsed from.
///
/// `Null` stands for the RESP3 null and for both nulls of RESP2. Attributes are dropped: no command that we
/// use has an attribute that matters.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `_`, `$-1` or `*-1`.
    Null,
    /// `+OK`.
    Simple(Bytes),
    /// `-ERR …` or a RESP3 blob error, without the type byte.
    Error(Bytes),
    /// `:42`.
    Int(i64),
    /// `,1.5`.
    Double(f64),
    /// `#t`.
    Bool(bool),
    /// `(3492890328409238509324850943850943825024385`.
    BigNumber(Bytes),
    /// `$5`: a string of any bytes.
    Bulk(Bytes),
    /// `=15` with its three-letter format removed.
    Verbatim(Bytes),
    /// `*n`.
    Array(Vec<Value>),
    /// `~n`.
    Set(Vec<Value>),
    /// `%n`.
    Map(Vec<(Value, Value)>),
    /// `>n`.
    Push(Vec<Value>),
}

impl Value {
    /// Parses a frame that [`Scanner`](crate::scan::Scanner) has found complete. It is as strict as the
    /// scanner, apart from the limits: it has none except a nesting depth of 64.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one frame.
    pub fn parse(frame: &Bytes) -> Result<Value, Malformed> {
        let mut parser = Parser { frame, header: 0, pos: 0, depth: 0 };
        let value = parser.value()?;
        if parser.pos != frame.len() {
            return Err(Malformed { at: parser.pos, what: "bytes after the frame" });
        }
        Ok(value)
    }

    /// The bytes of any kind of string (simple, bulk, verbatim, big number), else `None`.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match self {
            Value::Simple(b) | Value::Bulk(b) | Value::Verbatim(b) | Value::BigNumber(b) => Some(b),
            _ => None,
        }
    }

    /// [`Value::as_bytes`], by value.
    pub fn into_bytes(self) -> Option<Bytes> {
        match self {
            Value::Simple(b) | Value::Bulk(b) | Value::Verbatim(b) | Value::BigNumber(b) => Some(b),
            _ => None,
        }
    }

    /// The text of any kind of string, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// An integer, also one that came as a string, as RESP2 sends some of them.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i64::from(*b)),
            other => parse_int(other.as_bytes()?),
        }
    }

    /// The elements of an array, set or push.
    pub fn as_items(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) | Value::Set(items) | Value::Push(items) => Some(items),
            _ => None,
        }
    }

    /// [`Value::as_items`], by value; a map becomes the flat list that RESP2 would send.
    pub fn into_items(self) -> Option<Vec<Value>> {
        match self {
            Value::Array(items) | Value::Set(items) | Value::Push(items) => Some(items),
            Value::Map(pairs) => Some(pairs.into_iter().flat_map(|(k, v)| [k, v]).collect()),
            _ => None,
        }
    }

    /// The pairs of a map, or of the flat array that RESP2 sends in its place.
    pub fn into_pairs(self) -> Option<Vec<(Value, Value)>> {
        match self {
            Value::Map(pairs) => Some(pairs),
            Value::Array(items) if items.len().is_multiple_of(2) => {
                let mut pairs = Vec::with_capacity(items.len() / 2);
                let mut items = items.into_iter();
                while let (Some(k), Some(v)) = (items.next(), items.next()) {
                    pairs.push((k, v));
                }
                Some(pairs)
            }
            _ => None,
        }
    }

    /// The value of a field in a map or flat array whose keys are strings.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Map(pairs) => {
                pairs.iter().find(|(k, _)| k.as_bytes().is_some_and(|k| k == name)).map(|(_, v)| v)
            }
            Value::Array(items) => {
                items.chunks_exact(2).find(|c| c[0].as_bytes().is_some_and(|k| k == name)).map(|c| &c[1])
            }
            _ => None,
        }
    }

    /// The text of an error, with its code.
    pub fn as_error(&self) -> Option<&Bytes> {
        match self {
            Value::Error(text) => Some(text),
            _ => None,
        }
    }

    /// True for any null.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// True for the simple string `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Value::Simple(b) if &b[..] == b"OK")
    }
}

/// Recursive over a frame whose depth the scanner has bounded; the bound is repeated here because the parser
/// is public and may be handed bytes that no scanner has seen.
const DEPTH_MAX: usize = 64;

struct Parser<'a> {
    frame: &'a Bytes,
    /// Where the header read last starts.
    header: usize,
    /// How far the frame has been read.
    pos: usize,
    depth: usize,
}

impl Parser<'_> {
    fn value(&mut self) -> Result<Value, Malformed> {
        let line = self.line()?;
        let text = &self.frame[line.clone()];
        let value = match self.frame[self.header] {
            b'+' => Value::Simple(self.frame.slice(line)),
            b'-' => Value::Error(self.frame.slice(line)),
            b':' => Value::Int(parse_int(text).ok_or_else(|| self.malformed("bad integer"))?),
            b',' => Value::Double(parse_double(text).ok_or_else(|| self.malformed("bad double"))?),
            b'#' => match text {
                b"t" => Value::Bool(true),
                b"f" => Value::Bool(false),
                _ => return Err(self.malformed("bad boolean")),
            },
            b'(' if is_big_number(text) => Value::BigNumber(self.frame.slice(line)),
            b'(' => return Err(self.malformed("bad big number")),
            b'_' if text.is_empty() => Value::Null,
            b'_' => return Err(self.malformed("bad null")),
            b'$' | b'*' if text == b"-1" => Value::Null,
            b'$' => Value::Bulk(self.bulk(line)?),
            b'!' => Value::Error(self.bulk(line)?),
            b'=' => {
                let text = self.bulk(line)?;
                if text.get(3) != Some(&b':') {
                    return Err(self.malformed("verbatim string without its format"));
                }
                Value::Verbatim(text.slice(4..))
            }
            b'*' => Value::Array(self.items(line, 1)?),
            b'~' => Value::Set(self.items(line, 1)?),
            b'>' => Value::Push(self.items(line, 1)?),
            b'%' => {
                let items = self.items(line, 2)?;
                // `items` read an even number.
                Value::Array(items).into_pairs().map_or(Value::Null, Value::Map)
            }
            b'|' => {
                self.items(line, 2)?;
                self.nested(Parser::value)?
            }
            _ => return Err(self.malformed("unknown type byte")),
        };
        Ok(value)
    }

    /// Reads the header or scalar at `pos`: where it is, without type byte and CRLF.
    fn line(&mut self) -> Result<Range<usize>, Malformed> {
        self.header = self.pos;
        let rest = &self.frame[self.pos..];
        let lf = memchr::memchr(b'\n', rest).ok_or_else(|| self.malformed("frame ends early"))?;
        if lf < 2 || rest[lf - 1] != b'\r' {
            return Err(self.malformed("line without CRLF"));
        }
        self.pos += lf + 1;
        Ok(self.header + 1..self.pos - 2)
    }

    fn bulk(&mut self, line: Range<usize>) -> Result<Bytes, Malformed> {
        let len = self.length(line)?;
        let start = self.pos;
        let after =
            len.checked_add(2).and_then(|len| len.checked_add(start)).filter(|&n| n <= self.frame.len());
        let after = after.ok_or_else(|| self.malformed("frame ends early"))?;
        if &self.frame[after - 2..after] != b"\r\n" {
            return Err(Malformed { at: after - 2, what: "bulk string without its closing CRLF" });
        }
        self.pos = after;
        Ok(self.frame.slice(start..after - 2))
    }

    fn items(&mut self, line: Range<usize>, per_entry: usize) -> Result<Vec<Value>, Malformed> {
        let count = self.length(line)?.checked_mul(per_entry).ok_or_else(|| self.malformed("bad length"))?;
        // A length that the frame cannot hold reserves nothing.
        if count > (self.frame.len() - self.pos) / FRAME_BYTES_MIN {
            return Err(self.malformed("frame ends early"));
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        self.nested(|parser| {
            let mut items = Vec::with_capacity(count);
            for _ in 0..count {
                items.push(parser.value()?);
            }
            Ok(items)
        })
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Malformed>) -> Result<T, Malformed> {
        if self.depth >= DEPTH_MAX {
            return Err(self.malformed("nested too deep"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn length(&self, line: Range<usize>) -> Result<usize, Malformed> {
        parse_length(&self.frame[line])
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| self.malformed("bad length"))
    }

    fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.header, what }
    }
}
