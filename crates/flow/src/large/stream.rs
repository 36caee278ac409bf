//! Streams, with their groups, consumers and pending entries.
//!
//! The stream is read in windows of ids, and for each window the pending entries of all groups. A pending
//! entry may be of a stream entry that was deleted since, and no server lets such an entry be claimed. So a
//! placeholder is added in its place, claimed, and deleted again.
//!
//! Deleting with `XDEL` raises the highest id that was ever deleted. That is right if the source deleted the
//! entry that way, since its own highest is set at the end. But entries older than the first one may have
//! been trimmed away, which does not raise it, and it can never be lowered to nothing again. So placeholders
//! before the first entry are trimmed away as well.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use whimbrel_engine::expiry::time_ms;
use whimbrel_engine::link::Link;
use whimbrel_wire::value::Value;

use super::chunk::{Chunk, Expect, Pace, Reader, bytes_of, number, strings, word};
use super::task::{Halt, Transfer, checked};

/// Pending entries asked for at once, over all groups.
const PENDING_MAX: usize = 4_000;

/// Pending entries asked for at once in one group.
const PENDING_PER_GROUP_MAX: usize = 1_000;

/// And at least this many, however many groups there are.
const PENDING_PER_GROUP_MIN: usize = 10;

/// How far two times that a server reports relative to now may be apart by rounding.
const ROUNDING_MS: i64 = 2;

/// The id of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Id(u64, u64);

impl Id {
    const MAX: Id = Id(u64::MAX, u64::MAX);

    /// The id after this one: servers before Redis 6.2 know no ranges that exclude their start.
    fn next(self) -> Id {
        match self.1.checked_add(1) {
            Some(sequence) => Id(self.0, sequence),
            None => Id(self.0.saturating_add(1), 0),
        }
    }

    fn parse(text: &str) -> Option<Id> {
        let (ms, sequence) = text.split_once('-')?;
        Some(Id(ms.parse().ok()?, sequence.parse().ok()?))
    }

    fn of(value: &Value) -> Option<Id> {
        Id::parse(value.as_str()?)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

struct Entry {
    id: Id,
    /// Field, value, field, value.
    fields: Vec<Bytes>,
}

/// A consumer, as far as changes can be seen from it.
#[derive(Debug, PartialEq, Eq)]
struct Consumer {
    name: Bytes,
    pending: i64,
    /// Milliseconds since it last did something; -1 if it never did.
    inactive_ms: i64,
    /// False if the server reports the time of its last request only, successful or not.
    is_exact: bool,
}

impl Consumer {
    fn parse(value: &Value) -> Option<Consumer> {
        let inactive = value.field("inactive");
        Some(Consumer {
            name: value.field("name")?.as_bytes()?.clone(),
            pending: value.field("pending")?.as_int()?,
            inactive_ms: inactive.or_else(|| value.field("idle"))?.as_int()?,
            is_exact: inactive.is_some(),
        })
    }

    /// Whether it did nothing in the `elapsed_ms` before `now`.
    fn has_rested(&self, now: &Consumer, elapsed_ms: i64) -> bool {
        if self.inactive_ms < 0 || now.inactive_ms < 0 {
            return self.inactive_ms == now.inactive_ms;
        }
        now.inactive_ms + ROUNDING_MS >= self.inactive_ms + elapsed_ms
    }
}

/// A group, as `XINFO GROUPS` reports it.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    name: Bytes,
    last_delivered: Id,
    pending: i64,
    /// `None` if the server does not know it, or has no such thing.
    entries_read: Option<i64>,
}

impl Group {
    fn parse(value: &Value) -> Option<Group> {
        Some(Group {
            name: value.field("name")?.as_bytes()?.clone(),
            last_delivered: Id::of(value.field("last-delivered-id")?)?,
            pending: value.field("pending")?.as_int()?,
            entries_read: value.field("entries-read").and_then(Value::as_int),
        })
    }
}

/// What the source said at the start.
struct Head {
    length: i64,
    last: Id,
    entries_added: Option<i64>,
    max_deleted: Option<Id>,
    groups: Vec<Group>,
    /// For each group.
    consumers: Vec<Vec<Consumer>>,
    /// After the replies that show what consumers did.
    replied_at: Instant,
}

/// An entry delivered and not yet acknowledged.
#[derive(Debug)]
struct Pending {
    id: Id,
    consumer: Bytes,
    delivered_at_ms: i64,
    deliveries: i64,
}

/// How far the read has come.
enum Stage {
    Start,
    Entries,
    End,
    Done,
}

/// Reads a stream with `XRANGE`, `XINFO` and `XPENDING`.
pub(super) struct StreamReader {
    key: Bytes,
    staging: Bytes,
    pace: Pace,
    /// The target knows `ENTRIESADDED`, `MAXDELETEDID` and `ENTRIESREAD`. They came with `PEXPIRETIME`.
    counters: bool,
    /// The target can create a consumer by a command of its own.
    creates_consumers: bool,
    strict: bool,
    stage: Stage,
    head: Option<Head>,
    /// Everything up to here has been handed out.
    after: Option<Id>,
    /// Entries that were read and not handed out.
    window: VecDeque<Entry>,
    exhausted: bool,
    /// An entry has been handed out.
    begun: bool,
    /// Before the request that shows once more what consumers did.
    closing_at: Option<Instant>,
}

impl StreamReader {
    pub(super) fn new(key: Bytes, staging: Bytes, t: &Transfer<'_>, strict: bool) -> Self {
        StreamReader {
            key,
            staging,
            pace: Pace::new(t.chunk_bytes),
            counters: t.target.pexpiretime,
            creates_consumers: t.target.set_pxat,
            strict,
            stage: Stage::Start,
            head: None,
            after: None,
            window: VecDeque::new(),
            exhausted: false,
            begun: false,
            closing_at: None,
        }
    }

    /// Creates the stream with its groups and consumers.
    async fn start(&mut self, source: &mut Link) -> Result<Chunk, Halt> {
        source.push(&[b"XINFO", b"STREAM", &self.key]);
        source.push(&[b"XINFO", b"GROUPS", &self.key]);
        source.flush().await?;
        let info = source.reply().await?;
        let groups = source.reply().await?;
        let info = self.present(source, info)?;
        let groups = self.present(source, groups)?;
        let parsed = parse_all(&groups, Group::parse);
        let Some(groups) = parsed else { return Err(source.unexpected("XINFO GROUPS", &groups).into()) };
        for group in &groups {
            source.push(&[b"XINFO", b"CONSUMERS", &self.key, &group.name]);
        }
        source.flush().await?;
        let replies = source.replies(groups.len()).await?;
        let replied_at = Instant::now();
        let mut consumers = Vec::with_capacity(groups.len());
        for reply in replies {
            let reply = self.present(source, reply)?;
            let parsed = parse_all(&reply, Consumer::parse);
            consumers.push(parsed.ok_or_else(|| source.unexpected("XINFO CONSUMERS", &reply))?);
        }

        let mut chunk = Chunk::default();
        self.create(&mut chunk, &groups, &consumers);
        let head = (|| {
            Some(Head {
                length: info.field("length")?.as_int()?,
                last: Id::of(info.field("last-generated-id")?)?,
                entries_added: info.field("entries-added").and_then(Value::as_int),
                max_deleted: info.field("max-deleted-entry-id").and_then(Id::of),
                groups,
                consumers,
                replied_at,
            })
        })();
        self.head = Some(head.ok_or_else(|| source.unexpected("XINFO STREAM", &info))?);
        Ok(chunk)
    }

    fn create(&self, chunk: &mut Chunk, groups: &[Group], consumers: &[Vec<Consumer>]) {
        let staging = &self.staging;
        let create = |name: &Bytes, id: Bytes| {
            vec![word("XGROUP"), word("CREATE"), staging.clone(), name.clone(), id, word("MKSTREAM")]
        };
        if groups.is_empty() {
            // The one way to create a stream that has never had an entry.
            let name = word("whimbrel");
            chunk.push(create(&name, word("0-0")), Expect::NoError);
            chunk.push(vec![word("XGROUP"), word("DESTROY"), staging.clone(), name], Expect::NoError);
        }
        for (group, consumers) in groups.iter().zip(consumers) {
            chunk.push(create(&group.name, number(group.last_delivered)), Expect::NoError);
            for consumer in consumers {
                chunk.push(self.create_consumer(&group.name, &consumer.name), Expect::NoError);
            }
        }
    }

    fn create_consumer(&self, group: &Bytes, name: &Bytes) -> Vec<Bytes> {
        let (group, name, staging) = (group.clone(), name.clone(), self.staging.clone());
        match self.creates_consumers {
            true => vec![word("XGROUP"), word("CREATECONSUMER"), staging, group, name],
            // A consumer that reads its own pending entries, of which there are none, is created by that.
            false => {
                let read = ["XREADGROUP", "GROUP"].map(word).into_iter();
                read.chain([group, name, word("STREAMS"), staging, word("0")]).collect()
            }
        }
    }

    /// The entries up to some id, and what is pending of them.
    async fn entries(&mut self, source: &mut Link) -> Result<Chunk, Halt> {
        if self.window.is_empty() && !self.exhausted {
            self.fill(source).await?;
        }
        let upper = match self.window.back() {
            Some(entry) if !self.exhausted => entry.id,
            _ => Id::MAX,
        };
        let (cut, pending) = self.pending(source, upper).await?;
        let count = self.window.partition_point(|entry| entry.id <= cut);
        let entries: Vec<Entry> = self.window.drain(..count).collect();

        let mut chunk = Chunk::default();
        let mut pending = pending;
        if !self.begun {
            let first = entries.first().map_or(Id::MAX, |entry| entry.id);
            let trimmed = take_below(&mut pending, first, entries.is_empty());
            self.emit(&mut chunk, Vec::new(), &trimmed, true);
        }
        self.begun |= !entries.is_empty();
        self.emit(&mut chunk, entries, &pending, false);
        self.after = Some(cut);
        if cut == Id::MAX {
            self.stage = Stage::End;
        }
        Ok(chunk)
    }

    /// Reads the next entries into the window.
    async fn fill(&mut self, source: &mut Link) -> Result<(), Halt> {
        let asked = self.pace.count();
        let start = range_start(self.after);
        source.push(&[b"XRANGE", &self.key, start.as_bytes(), b"+", b"COUNT", asked.to_string().as_bytes()]);
        source.flush().await?;
        let reply = source.reply().await?;
        let reply = checked(source, reply, b"XRANGE")?;
        let unexpected = source.unexpected("XRANGE", &reply);
        let mut bytes = 0;
        for item in reply.into_items().unwrap_or_default() {
            let mut parts = item.into_items().unwrap_or_default().into_iter();
            let (Some(id), Some(fields)) =
                (parts.next().and_then(|id| Id::of(&id)), parts.next().and_then(strings))
            else {
                return Err(unexpected.into());
            };
            if self.head.as_ref().is_some_and(|head| id > head.last) {
                // A stream may grow faster than it is read.
                return Err(Halt::Changed);
            }
            bytes += bytes_of(&fields);
            self.window.push_back(Entry { id, fields });
        }
        self.pace.adapt(self.window.len(), bytes);
        self.exhausted = self.window.len() < asked;
        Ok(())
    }

    /// What is pending in each group after the last window and up to some id, and that id: `upper`, or less
    /// if there is much.
    async fn pending(&self, source: &mut Link, upper: Id) -> Result<(Id, Vec<Vec<Pending>>), Halt> {
        let groups = self.head.as_ref().map_or(&[][..], |head| &head.groups);
        let busy = groups.iter().filter(|group| group.pending > 0).count();
        let mut pending: Vec<Vec<Pending>> = groups.iter().map(|_| Vec::new()).collect();
        if busy == 0 {
            return Ok((upper, pending));
        }
        let count = (PENDING_MAX / busy).clamp(PENDING_PER_GROUP_MIN, PENDING_PER_GROUP_MAX);
        let (start, end) = (range_start(self.after), upper.to_string());
        source.push(&[b"TIME"]);
        for group in groups.iter().filter(|group| group.pending > 0) {
            let count = count.to_string();
            source.push(&[
                b"XPENDING",
                &self.key,
                &group.name,
                start.as_bytes(),
                end.as_bytes(),
                count.as_bytes(),
            ]);
        }
        source.flush().await?;
        let now = source.reply().await?;
        let replies = source.replies(busy).await?;
        let now = checked(source, now, b"TIME")?;
        let now_ms = time_ms(&now).ok_or_else(|| source.unexpected("TIME", &now))?;
        let mut cut = upper;
        let mut replies = replies.into_iter();
        for (group, pending) in groups.iter().zip(&mut pending) {
            if group.pending == 0 {
                continue;
            }
            let reply = self.present(source, replies.next().unwrap_or(Value::Null))?;
            *pending = parse_all(&reply, |item| parse_pending(item, now_ms))
                .ok_or_else(|| source.unexpected("XPENDING", &reply))?;
            if pending.len() >= count
                && let Some(last) = pending.last()
            {
                cut = cut.min(last.id);
            }
        }
        let last = self.head.as_ref().map_or(Id::MAX, |head| head.last);
        for pending in &mut pending {
            pending.retain(|p| p.id <= cut);
            if pending.iter().any(|p| p.id > last) {
                // Delivered since, and deleted.
                return Err(Halt::Changed);
            }
        }
        Ok((cut, pending))
    }

    /// Adds entries and what is pending of them, which must not reach beyond them on either side unless it is
    /// of deleted ones. `trimmed` says that nothing but placeholders is in the stream.
    fn emit(&self, chunk: &mut Chunk, entries: Vec<Entry>, pending: &[Vec<Pending>], trimmed: bool) {
        let mut deleted: BTreeSet<Id> = pending.iter().flatten().map(|p| p.id).collect();
        for entry in &entries {
            deleted.remove(&entry.id);
        }
        let add = |id: Id, fields: Vec<Bytes>| {
            let mut args = vec![word("XADD"), self.staging.clone(), number(id)];
            args.extend(fields);
            args
        };
        let mut placeholders = deleted.iter().copied().peekable();
        for entry in entries {
            while let Some(id) = placeholders.next_if(|id| *id < entry.id) {
                chunk.push(add(id, vec![word(""), word("")]), Expect::NoError);
            }
            chunk.elements += 1;
            chunk.bytes += bytes_of(&entry.fields) as u64;
            chunk.push(add(entry.id, entry.fields), Expect::Counts(1));
        }
        for id in placeholders {
            chunk.push(add(id, vec![word(""), word("")]), Expect::NoError);
        }
        let groups = self.head.as_ref().map_or(&[][..], |head| &head.groups);
        for (group, pending) in groups.iter().zip(pending) {
            self.claim(chunk, group, pending);
        }
        if deleted.is_empty() {
            return;
        }
        if trimmed {
            chunk.push(vec![word("XTRIM"), self.staging.clone(), word("MAXLEN"), word("0")], Expect::NoError);
        } else {
            let ids: Vec<Bytes> = deleted.into_iter().map(number).collect();
            let delete = |_| vec![word("XDEL"), self.staging.clone()];
            chunk.push_split(delete, &ids, 1, self.pace.chunk_bytes(), |_| Expect::NoError);
        }
    }

    /// What was delivered together is claimed together.
    fn claim(&self, chunk: &mut Chunk, group: &Group, pending: &[Pending]) {
        let alike = |a: &Pending, b: &Pending| {
            (&a.consumer, a.delivered_at_ms, a.deliveries) == (&b.consumer, b.delivered_at_ms, b.deliveries)
        };
        for batch in pending.chunk_by(alike) {
            let first = &batch[0];
            let mut args = vec![
                word("XCLAIM"),
                self.staging.clone(),
                group.name.clone(),
                first.consumer.clone(),
                word("0"),
            ];
            args.extend(batch.iter().map(|p| number(p.id)));
            args.extend([word("TIME"), number(first.delivered_at_ms.max(0))]);
            args.extend([word("RETRYCOUNT"), number(first.deliveries), word("FORCE"), word("JUSTID")]);
            chunk.push(args, Expect::Items(batch.len()));
        }
    }

    /// Sets what the writing has left different: counters and ids.
    fn finish(&self, head: &Head) -> Chunk {
        let mut chunk = Chunk::default();
        let mut args = vec![word("XSETID"), self.staging.clone(), number(head.last)];
        if self.counters {
            // What a server that does not count makes of it when it is upgraded.
            args.extend([word("ENTRIESADDED"), number(head.entries_added.unwrap_or(head.length))]);
            if let Some(id) = head.max_deleted {
                args.extend([word("MAXDELETEDID"), number(id)]);
            }
        }
        chunk.push(args, Expect::NoError);
        for group in &head.groups {
            let mut args = vec![word("XGROUP"), word("SETID"), self.staging.clone(), group.name.clone()];
            args.push(number(group.last_delivered));
            if let Some(n) = group.entries_read.filter(|_| self.counters) {
                args.extend([word("ENTRIESREAD"), number(n)]);
            }
            chunk.push(args, Expect::NoError);
        }
        chunk
    }

    /// A reply of the source. What is missing has been there a moment ago, so the stream changed.
    fn present(&self, source: &Link, reply: Value) -> Result<Value, Halt> {
        match reply.as_error() {
            Some(text) if text.starts_with(b"NOGROUP") || &text[..] == b"ERR no such key" => {
                Err(Halt::Changed)
            }
            _ => checked(source, reply, b"XINFO or XPENDING"),
        }
    }
}

impl Reader for StreamReader {
    async fn next(&mut self, source: &mut Link) -> Result<Option<Chunk>, Halt> {
        match self.stage {
            Stage::Start => {
                let chunk = self.start(source).await?;
                self.stage = Stage::Entries;
                Ok(Some(chunk))
            }
            Stage::Entries => self.entries(source).await.map(Some),
            Stage::End => {
                self.stage = Stage::Done;
                Ok(self.head.as_ref().map(|head| self.finish(head)))
            }
            Stage::Done => Ok(None),
        }
    }

    fn closing(&mut self) -> Vec<Vec<Bytes>> {
        self.closing_at = Some(Instant::now());
        let mut commands = vec![vec![word("XINFO"), word("GROUPS"), self.key.clone()]];
        for group in self.head.iter().flat_map(|head| &head.groups) {
            commands.push(vec![word("XINFO"), word("CONSUMERS"), self.key.clone(), group.name.clone()]);
        }
        commands
    }

    fn is_same(&self, replies: &[Value]) -> bool {
        let (Some(head), Some(closing_at), [groups, consumers @ ..]) = (&self.head, self.closing_at, replies)
        else {
            return false;
        };
        if parse_all(groups, Group::parse).as_ref() != Some(&head.groups) {
            return false;
        }
        // No longer than what passed between the two looks of the server, so that an idle consumer is never
        // suspected.
        let elapsed = closing_at.duration_since(head.replied_at);
        let elapsed_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        head.consumers.iter().zip(consumers).all(|(before, now)| {
            let Some(now) = parse_all(now, Consumer::parse) else { return false };
            before.len() == now.len()
                && before.iter().zip(&now).all(|(before, now)| {
                    (&before.name, before.pending) == (&now.name, now.pending)
                        && (before.has_rested(now, elapsed_ms) || !before.is_exact && !self.strict)
                })
        })
    }
}

/// Where a range after `after` starts.
fn range_start(after: Option<Id>) -> String {
    after.map_or_else(|| "-".to_owned(), |id| id.next().to_string())
}

fn parse_all<T>(reply: &Value, parse: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    reply.as_items()?.iter().map(parse).collect()
}

fn parse_pending(item: &Value, now_ms: i64) -> Option<Pending> {
    let [id, consumer, idle, deliveries] = item.as_items()? else { return None };
    Some(Pending {
        id: Id::of(id)?,
        consumer: consumer.as_bytes()?.clone(),
        delivered_at_ms: now_ms - idle.as_int()?,
        deliveries: deliveries.as_int()?,
    })
}

/// Takes what is below `bound`, or everything, out of each group's pending entries.
fn take_below(pending: &mut [Vec<Pending>], bound: Id, everything: bool) -> Vec<Vec<Pending>> {
    pending
        .iter_mut()
        .map(|pending| {
            let count = if everything { pending.len() } else { pending.partition_point(|p| p.id < bound) };
            pending.drain(..count).collect()
        })
        .collect()
}
