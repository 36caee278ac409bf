//! Values that are read by position: strings and lists.

use bytes::Bytes;
use whimbrel_engine::link::Link;

use super::chunk::{Chunk, Expect, Pace, Reader, ask, bytes_of, strings, word};
use super::task::Halt;

/// Reads a string with `GETRANGE`, writes it with `SET` and `APPEND`.
pub(super) struct StringReader {
    key: Bytes,
    staging: Bytes,
    chunk_bytes: usize,
    /// The length of the whole, once it is known.
    len: Option<usize>,
    pos: usize,
}

impl StringReader {
    pub(super) fn new(key: Bytes, staging: Bytes, chunk_bytes: usize) -> Self {
        StringReader { key, staging, chunk_bytes: chunk_bytes.max(1), len: None, pos: 0 }
    }
}

impl Reader for StringReader {
    async fn next(&mut self, source: &mut Link) -> Result<Option<Chunk>, Halt> {
        let first = self.len.is_none();
        let len = match self.len {
            Some(len) => len,
            None => length(source, b"STRLEN", &self.key).await?,
        };
        self.len = Some(len);
        if self.pos >= len && !first {
            return Ok(None);
        }
        // An empty string is empty in every range, and a chunk like any other.
        let end = len.min(self.pos + self.chunk_bytes);
        let (from, to) = (self.pos.to_string(), end.saturating_sub(1).to_string());
        let reply = ask(source, &[b"GETRANGE", &self.key, from.as_bytes(), to.as_bytes()]).await?;
        let part = reply.into_bytes().unwrap_or_default();
        if part.len() != end - self.pos {
            return Err(Halt::Changed);
        }
        self.pos = end;
        let added = part.len() as u64;
        let mut chunk = Chunk { bytes: added, elements: u64::from(first), ..Chunk::default() };
        if first {
            chunk.push(vec![word("SET"), self.staging.clone(), part], Expect::Counts(added));
        } else {
            chunk.push(vec![word("APPEND"), self.staging.clone(), part], Expect::Total(added));
        }
        Ok(Some(chunk))
    }
}

/// How long a value is.
async fn length(source: &mut Link, command: &[u8], key: &[u8]) -> Result<usize, Halt> {
    let reply = ask(source, &[command, key]).await?;
    let len = reply.as_int().and_then(|n| usize::try_from(n).ok());
    len.ok_or_else(|| source.unexpected(&String::from_utf8_lossy(command), &reply).into())
}

/// Reads a list with `LRANGE`, writes it with `RPUSH`.
pub(super) struct ListReader {
    key: Bytes,
    staging: Bytes,
    pace: Pace,
    /// Its length at the beginning. A list that grows may grow faster than it is read.
    len: Option<usize>,
    pos: usize,
}

impl ListReader {
    pub(super) fn new(key: Bytes, staging: Bytes, chunk_bytes: usize) -> Self {
        ListReader { key, staging, pace: Pace::new(chunk_bytes), len: None, pos: 0 }
    }
}

impl Reader for ListReader {
    async fn next(&mut self, source: &mut Link) -> Result<Option<Chunk>, Halt> {
        let len = match self.len {
            Some(len) => len,
            None => length(source, b"LLEN", &self.key).await?,
        };
        self.len = Some(len);
        if len > 0 && self.pos == len {
            return Ok(None);
        }
        let asked = self.pace.count().min(len - self.pos);
        let (from, to) = (self.pos.to_string(), (self.pos + asked).saturating_sub(1).to_string());
        let reply = ask(source, &[b"LRANGE", &self.key, from.as_bytes(), to.as_bytes()]).await?;
        let unexpected = source.unexpected("LRANGE", &reply);
        let items = strings(reply).ok_or(unexpected)?;
        let bytes = bytes_of(&items);
        if items.is_empty() || items.len() != asked {
            // It has become shorter, or is gone: a list is never empty.
            return Err(Halt::Changed);
        }
        self.pace.adapt(items.len(), bytes);
        self.pos += items.len();
        let mut chunk = Chunk { elements: items.len() as u64, bytes: bytes as u64, ..Chunk::default() };
        chunk.push_split(
            |_| vec![word("RPUSH"), self.staging.clone()],
            &items,
            1,
            self.pace.chunk_bytes(),
            |n| Expect::Total(n as u64),
        );
        Ok(Some(chunk))
    }
}
