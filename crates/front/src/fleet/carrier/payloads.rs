//! Reads keys in groups of bounded size, as payloads that the other side takes.

use std::collections::VecDeque;

use bytes::Bytes;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::link::Link;
use whimbrel_flow::large::memory_bytes_of;
use whimbrel_wire::payload;
use whimbrel_wire::value::Value;

use super::attempt::{Refusal, Route};
use crate::migrate::carry::fit;

/// Keys that are read, or written, at a time.
pub(super) const GROUP_KEYS: usize = 256;

/// Names and payloads that are read, or written, at a time, but for one key at least.
pub(super) const GROUP_BYTES: usize = 1 << 20;

/// The largest payload that is held.
const DUMP_BYTES_MAX: u64 = 128 << 20;

/// Keys whose sizes are asked for at a time.
const SIZES_AT_ONCE: usize = 1_024;

/// What a key counts as where the server does not tell its size.
const UNKNOWN_BYTES: usize = 128 << 10;

/// Until when a key is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It had expired before it was read.
    Gone,
    /// For ever.
    Endless,
    /// Until this time of the side that it comes from, in milliseconds, or later.
    Until(i64),
    /// Until its last element has expired, each of which has a time of its own. Nobody knows when that is.
    Elements,
}

impl Life {
    /// Whether it may be gone at this time.
    pub(super) fn may_be_over(self, now_ms: i64) -> bool {
        match self {
            Life::Gone | Life::Elements => true,
            Life::Endless => false,
            Life::Until(at_ms) => at_ms <= now_ms,
        }
    }
}

/// A key as it was read.
#[derive(Debug)]
pub(super) struct Item {
    pub name: Bytes,
    pub life: Life,
    /// What `RESTORE` gets as its time: 0 for none.
    pub time: i64,
    /// As the other side takes it; empty where the key was gone.
    pub dump: Bytes,
}

/// Goes over the keys of a slot.
#[derive(Debug)]
pub(super) struct Reader {
    names: VecDeque<Bytes>,
    /// Those whose sizes are known.
    sized: VecDeque<(Bytes, usize)>,
    /// A time at which none of them had been read. What is left of a key's life was left of it then, or more.
    begun_ms: i64,
}

impl Reader {
    pub(super) fn new(names: Vec<Bytes>, begun_ms: i64) -> Reader {
        Reader { names: names.into(), sized: VecDeque::new(), begun_ms }
    }

    /// The next keys; `None` at the end.
    pub(super) async fn next(
        &mut self,
        from: &mut Link,
        route: &Route<'_>,
    ) -> Result<Option<Vec<Item>>, Refusal> {
        let mut group = Vec::new();
        let mut bytes = 0;
        loop {
            if self.sized.is_empty() {
                self.size(from, route).await?;
            }
            let Some((name, size)) = self.sized.front() else { break };
            if !group.is_empty() && (group.len() >= GROUP_KEYS || bytes + name.len() + size > GROUP_BYTES) {
                break;
            }
            bytes += name.len() + size;
            group.extend(self.sized.pop_front().map(|(name, _)| name));
        }
        if group.is_empty() { Ok(None) } else { Ok(Some(self.read(from, group, route).await?)) }
    }

    async fn size(&mut self, from: &mut Link, route: &Route<'_>) -> Result<()> {
        let some: Vec<Bytes> = self.names.drain(..self.names.len().min(SIZES_AT_ONCE)).collect();
        if !route.from.memory_usage {
            self.sized.extend(some.into_iter().map(|name| (name, UNKNOWN_BYTES)));
            return Ok(());
        }
        let sizes = memory_bytes_of(from, &some, GROUP_BYTES as u64).await?;
        let sizes =
            sizes.into_iter().map(|size| usize::try_from(size.unwrap_or(0)).unwrap_or(usize::MAX / 2));
        self.sized.extend(some.into_iter().zip(sizes));
        Ok(())
    }

    /// Two commands for each do, as nobody writes to it in between: it may expire, and then there is no
    /// payload.
    async fn read(
        &self,
        from: &mut Link,
        group: Vec<Bytes>,
        route: &Route<'_>,
    ) -> Result<Vec<Item>, Refusal> {
        let expiry: &[u8] = if route.from.pexpiretime { b"PEXPIRETIME" } else { b"PTTL" };
        for name in &group {
            from.push(&[expiry, name]);
            from.push(&[b"DUMP", name]);
        }
        from.flush().await?;
        let mut items = Vec::with_capacity(group.len());
        for name in group {
            let replies = from.replies_within(2, DUMP_BYTES_MAX).await;
            let replies = replies.map_err(|error| too_long(&name, error))?;
            let [time, dump] =
                <[Value; 2]>::try_from(replies).map_err(|_| from.unexpected("DUMP", &Value::Null))?;
            let time = from.check(time, expiry)?;
            let time = time.as_int().ok_or_else(|| from.unexpected("PEXPIRETIME", &time))?;
            items.push(match from.check(dump, b"DUMP")? {
                Value::Null => Item { name, life: Life::Gone, time: 0, dump: Bytes::new() },
                Value::Bulk(dump) => self.item(name, time, dump, route)?,
                reply => return Err(from.unexpected("DUMP", &reply).into()),
            });
        }
        Ok(items)
    }

    fn item(&self, name: Bytes, time: i64, dump: Bytes, route: &Route<'_>) -> Result<Item, Refusal> {
        let refused = |why: String| Refusal::Unholdable { key: name.clone(), why };
        let found = payload::peek(&dump).map_err(|e| refused(e.to_string()))?.object_type;
        let dump = fit(dump, route.dialects, route.to).ok_or_else(|| {
            refused(format!(
                "the server it would go to does not read values of its kind (type {found} of snapshots)"
            ))
        })?;
        let life = match time {
            _ if payload::has_mortal_elements(found, route.dialects.0) => Life::Elements,
            ..0 => Life::Endless,
            time if route.from.pexpiretime => Life::Until(time),
            left => Life::Until(self.begun_ms + left),
        };
        // 0 would mean no expiry; a time that has come has come at 1 as well.
        Ok(Item { name, life, time: if time < 0 { 0 } else { time.max(1) }, dump })
    }
}

fn too_long(name: &Bytes, error: Error) -> Refusal {
    match error.is_too_large() {
        true => Refusal::Unholdable { key: name.clone(), why: "it is longer than 128 MiB".to_owned() },
        false => Refusal::Failed(error),
    }
}
