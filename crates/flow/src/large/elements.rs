//! Follows a large hash, set or sorted set by its elements.
//!
//! What is transferred is the state of each changed element, read from the source now, not the command that
//! changed it. So doing it twice, or late, changes nothing, exactly as with whole keys.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use whimbrel_engine::error::{Code, Result, ServerError};
use whimbrel_engine::expiry::{self, Expiry};
use whimbrel_engine::feed::Collection;
use whimbrel_engine::link::Link;
use whimbrel_engine::probe::Capabilities;
use whimbrel_wire::value::Value;

use super::task::KeyType;
use crate::keys::read::UNSTABLE_ROUNDS_MAX;

/// Elements read or written by one command.
const ELEMENTS_MAX: usize = 256;

/// What `HPEXPIRETIME` says of a field that does not exist.
const FIELD_GONE: i64 = -2;

/// So many at first, and about so many bytes at once later.
const ELEMENTS_FIRST: usize = 8;
const PART_BYTES: usize = 256 << 10;

/// What changed of one key.
pub(crate) struct Change<'a> {
    pub(crate) key: &'a Bytes,
    /// `None` where only the expiry changed, and there are no names.
    pub(crate) collection: Option<Collection>,
    pub(crate) names: &'a BTreeSet<Bytes>,
    /// The expiry of the key as a whole changed, too.
    pub(crate) expiry: bool,
}

/// What [`transfer`] did.
pub(crate) struct Followed {
    pub(crate) bytes: u64,
    /// False where the key is not what it was taken for any more, and has to be transferred whole.
    pub(crate) is_exact: bool,
}

/// Which side knows times to live of hash fields: source and target.
pub(crate) struct FieldTtls {
    pub(crate) source: bool,
    pub(crate) target: bool,
    /// `PEXPIRETIME` exists on the source.
    pub(crate) pexpiretime: bool,
}

impl FieldTtls {
    /// By what the servers can do.
    pub(crate) fn of(source: &Capabilities, target: &Capabilities) -> FieldTtls {
        FieldTtls {
            source: source.hash_field_ttl,
            target: target.hash_field_ttl,
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
    (source, target): (&mut Link, &mut Link),
    change: &Change<'_>,
    ttls: &FieldTtls,
    asking: bool,
) -> Result<Followed> {
    let names: Vec<&Bytes> = change.names.iter().collect();
    let mut bytes = 0;
    let (mut names, mut count) = (&names[..], ELEMENTS_FIRST);
    while !names.is_empty() {
        let (part, rest) = names.split_at(count.min(names.len()));
        names = rest;
        let Some(commands) = read(source, change, part, ttls).await? else {
            return Ok(Followed { bytes, is_exact: false });
        };
        let read_bytes = commands.0.iter().flatten().map(Bytes::len).sum::<usize>();
        bytes += read_bytes as u64;
        // Nobody knows how large an element is before it is read.
        let each = (read_bytes / part.len().max(1)).max(1);
        count = (PART_BYTES / each).clamp(1, (count * 4).min(ELEMENTS_MAX));
        if !send(target, change.key, &commands, asking).await? {
            return Ok(Followed { bytes, is_exact: false });
        }
    }
    if change.expiry {
        let mut commands = Commands::default();
        match clear_expiry(source, change.key, ttls.pexpiretime).await? {
            Expiry::At(ms) => {
                commands.add("PEXPIREAT", change.key, [Bytes::from(ms.max(1).to_string())]);
            }
            Expiry::Never => {
                commands.0.push(vec![Bytes::from_static(b"PERSIST"), change.key.clone()]);
            }
            // Where it is unclear, the key is read as a whole.
            Expiry::Gone | Expiry::Unclear => return Ok(Followed { bytes, is_exact: false }),
            Expiry::Unknown => {
                return Err(source.unexpected("PEXPIRETIME or PTTL", &Value::Null));
            }
        }
        if !send(target, change.key, &commands, asking).await? {
            return Ok(Followed { bytes, is_exact: false });
        }
    }
    Ok(Followed { bytes, is_exact: true })
}

/// When the key expires, asked until it is clear, within bounds.
async fn clear_expiry(source: &mut Link, key: &[u8], absolute: bool) -> Result<Expiry> {
    let mut found = Expiry::Unclear;
    for _ in 0..UNSTABLE_ROUNDS_MAX {
        expiry::ask(source.outbox(), absolute, key);
        source.flush().await?;
        let mut replies = source.replies(expiry::commands(absolute)).await?.into_iter();
        found = expiry::read(&mut replies, absolute).unwrap_or(Expiry::Unknown);
        if found != Expiry::Unclear {
            break;
        }
    }
    Ok(found)
}

/// Reads the state of some elements, as the commands that bring it about. `None` where the key is of another
/// type now.
async fn read(
    source: &mut Link,
    change: &Change<'_>,
    names: &[&Bytes],
    ttls: &FieldTtls,
) -> Result<Option<Commands>> {
    let Some(collection) = change.collection else { return Ok(None) };
    let (command, add, remove): (&[u8], _, _) = match collection {
        Collection::Hash => (b"HMGET", "HSET", "HDEL"),
        Collection::Set => (b"SMISMEMBER", "SADD", "SREM"),
        Collection::SortedSet => (b"ZMSCORE", "ZADD", "ZREM"),
    };
    let with_ttls = collection == Collection::Hash && ttls.source;
    let mut args: Vec<&[u8]> = vec![command, change.key];
    args.extend(names.iter().map(|name| &name[..]));
    source.push(&args);
    if with_ttls {
        let count = names.len().to_string();
        let mut args: Vec<&[u8]> = vec![b"HPEXPIRETIME", change.key, b"FIELDS", count.as_bytes()];
        args.extend(names.iter().map(|name| &name[..]));
        source.push(&args);
    }
    source.flush().await?;
    let values = source.reply().await?;
    let times = if with_ttls { source.reply().await? } else { Value::Null };
    for reply in [&values, &times] {
        match ServerError::of(reply) {
            Some(e) if e.code == Code::WrongType => return Ok(None),
            Some(e) => return Err(source.server_error(e, command)),
            None => {}
        }
    }
    let values = match values.as_items() {
        Some(values) if values.len() == names.len() => values,
        _ => return Err(source.unexpected("read elements", &values)),
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
                    // Where the key is gone meanwhile the reply is no array, and the feed says so.
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

/// Sends the commands; false where the target has no such key (any more), and so may have made a fragment of
/// them.
///
/// Where keys of the target can expire it is one transaction: no key expires in the middle of one, so that it
/// exists for the commands if it did when it was asked for.
async fn send(target: &mut Link, key: &Bytes, commands: &Commands, asking: bool) -> Result<bool> {
    let before: &[u8] = if asking { b"ASKING" } else { b"MULTI" };
    target.push(&[before]);
    target.push(&[b"EXISTS", key]);
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
    target.flush().await?;
    let names = || std::iter::once(&b"EXISTS"[..]).chain(commands.0.iter().map(|command| &command[0][..]));
    let mut replies = Vec::new();
    if asking {
        for _ in names() {
            target.reply().await?;
            replies.push(target.reply().await?);
        }
    } else {
        target.reply().await?;
        // Why it was not queued says more than that the transaction was discarded.
        let queued = target.replies(commands.0.len() + 1).await?;
        let done = target.reply().await?;
        for (reply, name) in queued.into_iter().zip(names()) {
            target.check(reply, name)?;
        }
        replies = target.check(done, b"EXEC")?.into_items().unwrap_or_default();
    }
    let exists = replies.first().and_then(Value::as_int) == Some(1);
    for (reply, name) in replies.into_iter().zip(names()) {
        target.check(reply, name)?;
    }
    Ok(exists)
}
