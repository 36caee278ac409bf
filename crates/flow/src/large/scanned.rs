//! Values that are read by cursor: sets, sorted sets and hashes.
//!
//! A scan may give an element twice; writing it twice changes nothing. Small values come in one piece,
//! whatever count was asked for, since servers keep them packed.

use std::collections::BTreeMap;

use bytes::Bytes;
use whimbrel_engine::link::Link;

use super::chunk::{Chunk, ELEMENTS_MAX, Expect, Pace, Reader, ask, bytes_of, number, strings, word};
use super::task::{Halt, Transfer};

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScannedType {
    Set,
    Zset,
    Hash,
}

impl ScannedType {
    fn scan(self) -> &'static str {
        match self {
            ScannedType::Set => "SSCAN",
            ScannedType::Zset => "ZSCAN",
            ScannedType::Hash => "HSCAN",
        }
    }

    fn add(self) -> &'static str {
        match self {
            ScannedType::Set => "SADD",
            ScannedType::Zset => "ZADD",
            ScannedType::Hash => "HSET",
        }
    }

    /// Arguments for each element.
    fn width(self) -> usize {
        if self == ScannedType::Set { 1 } else { 2 }
    }
}

/// Reads a set, sorted set or hash with its scan.
pub(super) struct Scanned {
    kind: ScannedType,
    key: Bytes,
    staging: Bytes,
    pace: Pace,
    /// `None` after the last page.
    cursor: Option<Bytes>,
    /// Ask for the time to live of each field.
    field_ttl: bool,
    /// The target can hold them.
    field_ttl_held: bool,
}

impl Scanned {
    pub(super) fn new(kind: ScannedType, key: Bytes, staging: Bytes, t: &Transfer<'_>) -> Self {
        Scanned {
            kind,
            key,
            staging,
            pace: Pace::new(t.chunk_bytes),
            cursor: Some(word("0")),
            field_ttl: kind == ScannedType::Hash && t.source.hash_field_ttl,
            field_ttl_held: t.target.hash_field_ttl,
        }
    }

    /// The next page of the scan as a flat list of arguments.
    async fn page(&mut self, source: &mut Link, cursor: &Bytes) -> Result<Vec<Bytes>, Halt> {
        let scan = self.kind.scan();
        let count = self.pace.count().to_string();
        let reply = ask(source, &[scan.as_bytes(), &self.key, cursor, b"COUNT", count.as_bytes()]).await?;
        let unexpected = source.unexpected(scan, &reply);
        let mut parts = reply.into_items().unwrap_or_default().into_iter();
        let (Some(cursor), Some(items)) =
            (parts.next().and_then(|c| c.into_bytes()), parts.next().and_then(strings))
        else {
            return Err(unexpected.into());
        };
        if !items.len().is_multiple_of(self.kind.width()) {
            return Err(unexpected.into());
        }
        // A copy: the slice would keep the whole page alive.
        self.cursor = (&cursor[..] != b"0").then(|| Bytes::copy_from_slice(&cursor));
        Ok(items)
    }

    /// Takes fields that have expired since the scan out of `pairs`, and returns when the others expire: by
    /// time, so that fields that expire together are written together.
    async fn field_times(
        &self,
        source: &mut Link,
        pairs: &mut Vec<Bytes>,
    ) -> Result<BTreeMap<i64, Vec<Bytes>>, Halt> {
        let mut times: BTreeMap<i64, Vec<Bytes>> = BTreeMap::new();
        let mut living = Vec::with_capacity(pairs.len());
        for part in pairs.chunks(ELEMENTS_MAX * 2) {
            let count = (part.len() / 2).to_string();
            let mut args: Vec<&[u8]> = vec![b"HPEXPIRETIME", &self.key, b"FIELDS", count.as_bytes()];
            args.extend(part.chunks_exact(2).map(|pair| &pair[0][..]));
            let reply = ask(source, &args).await?;
            let Some(replies) = reply.as_items().filter(|r| r.len() == part.len() / 2) else {
                // The key is gone.
                return Err(Halt::Changed);
            };
            for (pair, reply) in part.chunks_exact(2).zip(replies) {
                match reply.as_int() {
                    Some(-2) => continue,
                    Some(-1) => {}
                    Some(at_ms) => times.entry(at_ms).or_default().push(pair[0].clone()),
                    None => return Err(source.unexpected("HPEXPIRETIME", reply).into()),
                }
                living.extend_from_slice(pair);
            }
        }
        *pairs = living;
        Ok(times)
    }
}

impl Reader for Scanned {
    fn counts_exactly(&self) -> bool {
        !self.field_ttl
    }

    async fn next(&mut self, source: &mut Link) -> Result<Option<Chunk>, Halt> {
        let mut items = Vec::new();
        // A page may be empty although more follow.
        while items.is_empty() {
            let Some(cursor) = self.cursor.take() else { return Ok(None) };
            items = self.page(source, &cursor).await?;
        }
        let width = self.kind.width();
        self.pace.adapt(items.len() / width, bytes_of(&items));
        let times =
            if self.field_ttl { self.field_times(source, &mut items).await? } else { BTreeMap::new() };
        if !times.is_empty() && !self.field_ttl_held {
            return Err(Halt::Unholdable(
                "hash fields with a time to live, which the target does not have".to_owned(),
            ));
        }
        if self.kind == ScannedType::Zset {
            // The scan gives the member first, the command takes the score first.
            items.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
        }
        let mut chunk = Chunk {
            elements: (items.len() / width) as u64,
            bytes: bytes_of(&items) as u64,
            ..Chunk::default()
        };
        for (at_ms, fields) in &times {
            chunk.mortal.add(fields.len() as u64, *at_ms);
        }
        let chunk_bytes = self.pace.chunk_bytes();
        let add = |_| vec![word(self.kind.add()), self.staging.clone()];
        chunk.push_split(add, &items, width, chunk_bytes, |_| Expect::Added);
        for (at_ms, fields) in &times {
            let expire =
                |n| vec![word("HPEXPIREAT"), self.staging.clone(), number(at_ms), word("FIELDS"), number(n)];
            chunk.push_split(expire, fields, 1, chunk_bytes, Expect::Items);
        }
        Ok(Some(chunk))
    }
}
