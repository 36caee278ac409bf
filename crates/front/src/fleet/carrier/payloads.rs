//! Reads keys in groups of bounded size, as payloads that the other side takes.

use std::collections::VecDeque;

use bytes::Bytes;
use whimbrel_engine::error::{Error, Result};
use whimbrel_engine::expiry::Clock;
use whimbrel_engine::link::Link;
use whimbrel_flow::keys::read::{UNSTABLE_ROUNDS_MAX, unclear};
use whimbrel_flow::keys::{Fetch, Fit, Found, KeyState, Read, Way, memory_bytes_of};
use whimbrel_wire::payload;

use super::attempt::{Refusal, Route};

/// Keys that are read, or written, at a time.
pub(super) const GROUP_KEYS: usize = 256;

/// Names and payloads that are read, or written, at a time, but at least one key.
pub(super) const GROUP_BYTES: usize = 1 << 20;

/// The largest payload that is held.
const DUMP_BYTES_MAX: u64 = 128 << 20;

/// Keys whose sizes are asked for at a time.
const SIZES_AT_ONCE: usize = 1_024;

/// What a key counts as if the server does not report its size.
const UNKNOWN_BYTES: usize = 128 << 10;

/// Until when a key is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It had expired before it was read.
    Gone,
    /// For ever.
    Endless,
    /// Until this time, in milliseconds since the epoch.
    Until(i64),
    /// Until its last element has expired: each has its own time. When that is, is unknown.
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

/// A key as it was read, and as the other side takes it.
#[derive(Debug)]
pub(super) struct Item {
    pub state: KeyState,
    pub life: Life,
}

/// Goes over the keys of a slot.
#[derive(Debug)]
pub(super) struct Reader {
    names: VecDeque<Bytes>,
    /// Those whose sizes are known.
    sized: VecDeque<(Bytes, usize)>,
}

impl Reader {
    pub(super) fn new(names: Vec<Bytes>) -> Reader {
        Reader { names: names.into(), sized: VecDeque::new() }
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

    async fn read(
        &self,
        from: &mut Link,
        group: Vec<Bytes>,
        route: &Route<'_>,
    ) -> Result<Vec<Item>, Refusal> {
        let clock = Clock::of_server(route.from.pexpiretime);
        let read = Read { fetch: Fetch::Payload, way: Way::Frozen, clock, expiries: true, asking: false };
        let mut items = Vec::with_capacity(group.len());
        let mut open = group;
        for _ in 0..UNSTABLE_ROUNDS_MAX {
            read.push(from.outbox(), &open);
            from.flush().await?;
            let mut again = Vec::new();
            for name in open {
                let replies = from.replies_within(read.replies_of_each(), DUMP_BYTES_MAX).await;
                let mut replies = replies.map_err(|error| too_long(&name, error))?;
                match read.found(&mut replies) {
                    Found::Gone => items.push(Item { state: KeyState::gone(name), life: Life::Gone }),
                    Found::Value(payload, at) => items.push(item(name, payload, at, route)?),
                    Found::Unstable => again.push(name),
                    Found::Redirected(e) | Found::Refused(e) => {
                        return Err(from.server_error(e, Fetch::Payload.command()).into());
                    }
                    Found::NotAString => return Err(from.unexpected("read a key", &replies[0]).into()),
                }
            }
            open = again;
            if open.is_empty() {
                return Ok(items);
            }
        }
        Err(unclear(from).into())
    }
}

fn item(name: Bytes, payload: Bytes, expires_at_ms: Option<i64>, route: &Route<'_>) -> Result<Item, Refusal> {
    let refused = |why: String| Refusal::Unholdable { key: name.clone(), why };
    let found = payload::peek(&payload).map_err(|e| refused(e.to_string()))?.object_type;
    let payload = Fit::of(route.dialects, route.to).payload(payload).ok_or_else(|| {
        refused(format!(
            "the server it would go to does not read values of its kind (type {found} of snapshots)"
        ))
    })?;
    let life = match expires_at_ms {
        _ if payload::has_mortal_elements(found, route.dialects.0) => Life::Elements,
        None => Life::Endless,
        Some(at_ms) => Life::Until(at_ms),
    };
    Ok(Item { state: KeyState { key: name, body: Fetch::Payload.body(payload), expires_at_ms }, life })
}

fn too_long(name: &Bytes, error: Error) -> Refusal {
    match error.is_too_large() {
        true => Refusal::Unholdable { key: name.clone(), why: "it is longer than 128 MiB".to_owned() },
        false => Refusal::Failed(error),
    }
}
