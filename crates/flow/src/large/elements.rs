//! Follows a large hash, set or sorted set by its elements.
//!
//! What is transferred is the state of each changed element, read from the source now, not the command that
//! changed it. So doing it twice, or late, changes nothing, exactly as with whole keys.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::expiry::{self, Clock, Expiry};
use whimbrel_engine::feed::Collection;
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::value::Value;

use super::task::KeyType;
use crate::keys::read::UNSTABLE_ROUNDS_MAX;

/// Keys whose elements are transferred together, and keys whose expiry alone is.
const KEYS_MAX: usize = 32;
const EXPIRIES_MAX: usize = 1_024;

/// Elements read or written by one command.
const ELEMENTS_MAX: usize = 256;

/// What `HPEXPIRETIME` says of a field that does not exist.
const FIELD_GONE: i64 = -2;

/// This many at first, and about this many bytes at once later.
const ELEMENTS_FIRST: usize = 8;
const PART_BYTES: usize = 256 << 10;

/// What changed of one key.
pub(crate) struct Change<'a> {
    pub(crate) key: &'a Bytes,
    /// `None` if only the expiry changed, and there are no names.
    pub(crate) collection: Option<Collection>,
    pub(crate) names: &'a BTreeSet<Bytes>,
    /// The expiry of the key as a whole changed, too.
    pub(crate) expiry: bool,
}

/// What [`transfer`] did.
pub(crate) struct Followed {
    pub(crate) bytes: u64,
    /// False if the key is no longer what it was thought to be, and has to be transferred whole.
    pub(crate) is_exact: bool,
}

/// What both sides can do with elements.
pub(crate) struct ElementCommands {
    /// The source knows times to live of hash fields.
    pub(crate) source: bool,
    /// The target does.
    pub(crate) target: bool,
    /// `SMISMEMBER` and `ZMSCORE` exist on the source.
    pub(crate) many: bool,
    /// `PEXPIRETIME` exists on the source.
    pub(crate) pexpiretime: bool,
}

impl ElementCommands {
    /// By what the servers can do.
    pub(crate) fn of(source: &Capabilities, target: &Capabilities) -> ElementCommands {
        ElementCommands {
            source: source.hash_field_ttl,
            target: target.hash_field_ttl,
            many: source.many_elements,
            pexpiretime: source.pexpiretime,
        }
    }
}

/// Whether the elements that were touched are those of a key of type `kind`.
pub(crate) fn fits(collection: Option<Collection>, kind: &KeyType) -> bool {
    match collection {
        // Only the expiry was touched.
        None => true,
        Some(Collection::Hash) => *kind == KeyType::Hash,
        Some(Collection::Set) => *kind == KeyType::Set,
        Some(Collection::SortedSet) => *kind == KeyType::Zset,
    }
}

/// Commands for the target, each as its arguments.
#[derive(Default)]
struct Commands(Vec<Vec<Bytes>>);

impl Commands {
    fn add(&mut self, name: &'static str, key: &Bytes, args: impl IntoIterator<Item = Bytes>) {
        let mut command = vec![Bytes::from_static(name.as_bytes()), key.clone()];
        command.extend(args);
        if command.len() > 2 {
            self.0.push(command);
        }
    }
}

/// Transfers the state of the changed elements. With `asking` the target is importing the slot.
///
/// # Errors
/// Whatever a link or a server reports.
pub(crate) async fn transfer(
    links: (&mut Link, &mut Link),
    change: &Change<'_>,
    ttls: &ElementCommands,
    asking: bool,
) -> Result<Followed> {
    let followed = transfer_all(links, std::slice::from_ref(change), ttls, asking).await?.pop();
    Ok(followed.unwrap_or(Followed { bytes: 0, is_exact: false }))
}

/// [`transfer`] of the changes of several keys, which come in any order, some of them together: what each of
/// them did, in their order.
///
/// # Errors
/// As [`transfer`].
pub(crate) async fn transfer_all(
    (source, target): (&mut Link, &mut Link),
    changes: &[Change<'_>],
    ttls: &ElementCommands,
    asking: bool,
) -> Result<Vec<Followed>> {
    let mut all: Vec<UnderWay<'_>> = changes.iter().map(UnderWay::new).collect();
    let (mut expiries, mut elements): (Vec<_>, Vec<_>) = all.iter_mut().partition(|one| one.names.is_empty());
    for some in elements.chunks_mut(KEYS_MAX) {
        while transfer_parts((&mut *source, &mut *target), some, ttls, asking).await? {}
        transfer_expiries((&mut *source, &mut *target), some, ttls, asking).await?;
    }
    for some in expiries.chunks_mut(EXPIRIES_MAX) {
        transfer_expiries((&mut *source, &mut *target), some, ttls, asking).await?;
    }
    Ok(all.into_iter().map(|one| Followed { bytes: one.bytes, is_exact: one.is_exact }).collect())
}

/// A change that is being transferred.
struct UnderWay<'a> {
    change: &'a Change<'a>,
    names: Vec<&'a Bytes>,
    /// How many of the names are dealt with.
    done: usize,
    /// How many are next, at most.
    count: usize,
    bytes: u64,
    is_exact: bool,
}

impl<'a> UnderWay<'a> {
    fn new(change: &'a Change<'a>) -> UnderWay<'a> {
        let names: Vec<&Bytes> = change.names.iter().collect();
        // Without a collection there is nothing to read them from.
        let is_exact = change.collection.is_some() || names.is_empty();
        UnderWay { change, names, done: 0, count: ELEMENTS_FIRST, bytes: 0, is_exact }
    }

    /// The names that are next; none if it is through, or was given up.
    fn part(&self) -> &[&'a Bytes] {
        let rest = if self.is_exact { &self.names[self.done..] } else { &[] };
        &rest[..self.count.min(rest.len())]
    }

    /// This many bytes were read of the part. The size of an element is unknown before it is read.
    fn has_read(&mut self, bytes: usize) {
        let length = self.part().len();
        self.done += length;
        self.bytes += bytes as u64;
        let each = (bytes / length.max(1)).max(1);
        self.count = (PART_BYTES / each).clamp(1, (self.count * 4).min(ELEMENTS_MAX));
    }
}

/// Transfers the next part of each; false if nothing is left.
async fn transfer_parts(
    (source, target): (&mut Link, &mut Link),
    some: &mut [&mut UnderWay<'_>],
    ttls: &ElementCommands,
    asking: bool,
) -> Result<bool> {
    let mut open: Vec<&mut UnderWay<'_>> =
        some.iter_mut().map(|one| &mut **one).filter(|one| !one.part().is_empty()).collect();
    if open.is_empty() {
        return Ok(false);
    }
    for one in &open {
        push_read(source, one.change, one.part(), ttls);
    }
    source.flush().await?;
    // All replies are taken before any is judged.
    let mut replies = Vec::with_capacity(open.len());
    for one in &open {
        replies.push(replies_to_read(source, one.change, one.part().len(), ttls).await?);
    }
    let mut writes = Vec::with_capacity(open.len());
    for (one, (values, times)) in open.iter_mut().zip(replies) {
        match commands_of(source, one.change, one.part(), (&values, &times), ttls)? {
            Some(commands) => {
                one.has_read(commands.0.iter().flatten().map(Bytes::len).sum());
                writes.push((&mut **one, commands));
            }
            None => one.is_exact = false,
        }
    }
    send_all(target, writes, asking).await?;
    Ok(true)
}

/// Transfers the expiries of those that have them changed.
async fn transfer_expiries(
    (source, target): (&mut Link, &mut Link),
    some: &mut [&mut UnderWay<'_>],
    ttls: &ElementCommands,
    asking: bool,
) -> Result<()> {
    let changed: Vec<&mut UnderWay<'_>> =
        some.iter_mut().map(|one| &mut **one).filter(|one| one.is_exact && one.change.expiry).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let keys: Vec<&Bytes> = changed.iter().map(|one| one.change.key).collect();
    let expiries = clear_expiries(source, &keys, Clock::of_server(ttls.pexpiretime)).await?;
    let mut writes = Vec::with_capacity(changed.len());
    for (one, expiry) in changed.into_iter().zip(expiries) {
        let mut commands = Commands::default();
        match expiry {
            Expiry::At(ms) => {
                commands.add("PEXPIREAT", one.change.key, [Bytes::from(ms.max(1).to_string())]);
            }
            Expiry::Never => {
                commands.0.push(vec![Bytes::from_static(b"PERSIST"), one.change.key.clone()]);
            }
            // If it is unclear, the key is read as a whole.
            Expiry::Gone | Expiry::Unclear => {
                one.is_exact = false;
                continue;
            }
            Expiry::Unknown => {
                return Err(source.unexpected("PEXPIRETIME or PTTL", &Value::Null));
            }
        }
        writes.push((one, commands));
    }
    send_all(target, writes, asking).await
}

/// When keys expire, asked until it is clear, within bounds.
async fn clear_expiries(source: &mut Link, keys: &[&Bytes], clock: Clock) -> Result<Vec<Expiry>> {
    let mut found = vec![Expiry::Unclear; keys.len()];
    for _ in 0..UNSTABLE_ROUNDS_MAX {
        let open: Vec<usize> = (0..keys.len()).filter(|&at| found[at] == Expiry::Unclear).collect();
        if open.is_empty() {
            break;
        }
        for &at in &open {
            expiry::ask(source.outbox(), clock, keys[at]);
        }
        source.flush().await?;
        let mut replies = source.replies(open.len() * expiry::commands(clock)).await?.into_iter();
        for at in open {
            let mut own = replies.by_ref().take(expiry::commands(clock));
            found[at] = expiry::read(&mut own, clock).unwrap_or(Expiry::Unknown);
            // Whatever was not looked at.
            own.for_each(drop);
        }
    }
    Ok(found)
}

/// Queues the commands that read the state of some elements.
fn push_read(source: &mut Link, change: &Change<'_>, names: &[&Bytes], ttls: &ElementCommands) {
    let command = reading(change, ttls);
    for part in names.chunks(if one_by_one(change, ttls) { 1 } else { names.len().max(1) }) {
        let mut args: Vec<&[u8]> = vec![command, change.key];
        args.extend(part.iter().map(|name| &name[..]));
        source.push(&args);
    }
    if with_ttls(change, ttls) {
        let count = names.len().to_string();
        let mut args: Vec<&[u8]> = vec![b"HPEXPIRETIME", change.key, b"FIELDS", count.as_bytes()];
        args.extend(names.iter().map(|name| &name[..]));
        source.push(&args);
    }
}

/// The command that reads elements.
fn reading(change: &Change<'_>, ttls: &ElementCommands) -> &'static [u8] {
    match (change.collection, ttls.many) {
        (Some(Collection::Set), true) => b"SMISMEMBER",
        (Some(Collection::Set), false) => b"SISMEMBER",
        (Some(Collection::SortedSet), true) => b"ZMSCORE",
        (Some(Collection::SortedSet), false) => b"ZSCORE",
        (Some(Collection::Hash) | None, _) => b"HMGET",
    }
}

/// Whether each element takes a command of its own.
fn one_by_one(change: &Change<'_>, ttls: &ElementCommands) -> bool {
    change.collection != Some(Collection::Hash) && !ttls.many
}

/// Whether elements may have times to live of their own.
fn with_ttls(change: &Change<'_>, ttls: &ElementCommands) -> bool {
    change.collection == Some(Collection::Hash) && ttls.source
}

/// The replies to [`push_read`] of this many names: the values, and their times to live if they may have any.
async fn replies_to_read(
    source: &mut Link,
    change: &Change<'_>,
    names: usize,
    ttls: &ElementCommands,
) -> Result<(Value, Value)> {
    let values = match one_by_one(change, ttls) {
        true => {
            let values = source.replies(names).await?;
            let refused = values.iter().find(|value| ServerError::of(value).is_some()).cloned();
            refused.unwrap_or(Value::Array(values))
        }
        false => source.reply().await?,
    };
    let times = if with_ttls(change, ttls) { source.reply().await? } else { Value::Null };
    Ok((values, times))
}

/// The state of some elements as the commands that bring it about. `None` if the key is of another type now.
fn commands_of(
    source: &Link,
    change: &Change<'_>,
    names: &[&Bytes],
    (values, times): (&Value, &Value),
    ttls: &ElementCommands,
) -> Result<Option<Commands>> {
    let Some(collection) = change.collection else { return Ok(None) };
    let (command, add, remove) = match collection {
        Collection::Hash => (reading(change, ttls), "HSET", "HDEL"),
        Collection::Set => (reading(change, ttls), "SADD", "SREM"),
        Collection::SortedSet => (reading(change, ttls), "ZADD", "ZREM"),
    };
    for reply in [values, times] {
        match ServerError::of(reply) {
            Some(e) if e.code == Code::WrongType => return Ok(None),
            Some(e) => return Err(source.server_error(e, command)),
            None => {}
        }
    }
    let values = match values.as_items() {
        Some(values) if values.len() == names.len() => values,
        _ => return Err(source.unexpected("read elements", values)),
    };
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    let mut expiries: BTreeMap<i64, Vec<Bytes>> = BTreeMap::new();
    for (i, (&name, value)) in names.iter().zip(values).enumerate() {
        match (collection, value) {
            (Collection::Set, value) if value.as_int() == Some(1) => present.push(name.clone()),
            (Collection::Set, _) | (_, Value::Null) => absent.push(name.clone()),
            (Collection::SortedSet, score) => match score.as_bytes() {
                Some(score) => present.extend([score.clone(), name.clone()]),
                None => return Err(source.unexpected("ZMSCORE", score)),
            },
            (_, value) => match value.as_bytes() {
                Some(value) => {
                    // If the key is gone meanwhile, the reply is no array, and the feed says so.
                    let at = times.as_items().and_then(|times| times.get(i)).and_then(Value::as_int);
                    if at == Some(FIELD_GONE) {
                        // It has expired since the value was read.
                        absent.push(name.clone());
                        continue;
                    }
                    present.extend([name.clone(), value.clone()]);
                    if let Some(at) = at.filter(|&at| at > 0) {
                        expiries.entry(at).or_default().push(name.clone());
                    }
                }
                None => return Err(source.unexpected("HMGET", value)),
            },
        }
    }
    if !expiries.is_empty() && !ttls.target {
        return Ok(None);
    }
    let mut commands = Commands::default();
    commands.add(remove, change.key, absent);
    commands.add(add, change.key, present);
    for (at, fields) in expiries {
        let mut args =
            vec![at.to_string().into(), Bytes::from_static(b"FIELDS"), fields.len().to_string().into()];
        args.extend(fields);
        commands.add("HPEXPIREAT", change.key, args);
    }
    Ok(Some(commands))
}

/// Sends the commands of each key. A key that the target does not have (any more) is not exact: it may have
/// made a fragment of them.
///
/// If keys of the target can expire, the commands of a key are one transaction: no key expires in the middle
/// of one, so that it exists for the commands if it did when it was asked for.
async fn send_all(target: &mut Link, writes: Vec<(&mut UnderWay<'_>, Commands)>, asking: bool) -> Result<()> {
    if writes.is_empty() {
        return Ok(());
    }
    for (one, commands) in &writes {
        let before: &[u8] = if asking { b"ASKING" } else { b"MULTI" };
        target.push(&[before]);
        target.push(&[b"EXISTS", one.change.key]);
        for command in &commands.0 {
            let out = target.outbox();
            if asking {
                out.push(&[b"ASKING"]);
            }
            out.command(command.len());
            for arg in command {
                out.arg_bytes(arg);
            }
        }
        if !asking {
            target.push(&[b"EXEC"]);
        }
    }
    target.flush().await?;
    // All replies are taken before any is judged.
    let mut answers = Vec::with_capacity(writes.len());
    for (_, commands) in &writes {
        let count = commands.0.len() + 1;
        answers.push(target.replies(if asking { 2 * count } else { count + 2 }).await?);
    }
    for ((one, commands), mut replies) in writes.into_iter().zip(answers) {
        let names =
            || std::iter::once(&b"EXISTS"[..]).chain(commands.0.iter().map(|command| &command[0][..]));
        if asking {
            replies = replies.into_iter().skip(1).step_by(2).collect();
        } else {
            let done = replies.pop().unwrap_or(Value::Null);
            // Why it was not queued says more than that the transaction was discarded.
            for (reply, name) in replies.drain(..).skip(1).zip(names()) {
                target.check(reply, name)?;
            }
            replies = target.check(done, b"EXEC")?.into_items().unwrap_or_default();
        }
        one.is_exact &= replies.first().and_then(Value::as_int) == Some(1);
        for (reply, name) in replies.into_iter().zip(names()) {
            target.check(reply, name)?;
        }
    }
    Ok(())
}
