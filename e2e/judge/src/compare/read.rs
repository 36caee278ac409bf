//! Reads the state of keys with typed commands only.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use redis::{Cmd, Connection, Pipeline, Value};

use super::digest::{Digest, framed};
use super::state::{
    ExpiringField, GroupState, HashState, KeyState, PendingEntry, StreamState, ValueState, scored_element,
};

/// Keys read in one pipeline, if they are small.
const BATCH_KEYS: usize = 200;
/// Strings up to this many bytes and collections up to this many elements count as small.
const SMALL_BYTES: i64 = 64 * 1024;
const SMALL_ELEMENTS: i64 = 500;
/// Elements read by one command from a large list, sorted set or stream.
const PAGE: i64 = 10_000;
/// Fields asked for their expiry by one command.
const FIELDS_PER_COMMAND: usize = 1_000;

/// Reads keys of one database of one server.
pub(super) struct Reader {
    pub(super) connection: Connection,
    /// Whether the server has HPEXPIRETIME.
    pub(super) field_expiries: bool,
}

impl Reader {
    /// The names of all keys, each once.
    pub(super) fn scan(&mut self) -> Result<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::new();
        let mut cursor: u64 = 0;
        loop {
            let (next, page): (u64, Vec<Vec<u8>>) =
                redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(1_000).query(&mut self.connection)?;
            names.extend(page);
            cursor = next;
            if cursor == 0 {
                return Ok(names);
            }
        }
    }

    /// The states of those of `keys` that exist.
    pub(super) fn states(&mut self, keys: &[Vec<u8>]) -> Result<BTreeMap<Vec<u8>, KeyState>> {
        let mut states = BTreeMap::new();
        for batch in keys.chunks(BATCH_KEYS) {
            self.read_batch(batch, &mut states)?;
        }
        Ok(states)
    }

    fn read_batch(&mut self, keys: &[Vec<u8>], states: &mut BTreeMap<Vec<u8>, KeyState>) -> Result<()> {
        let mut heads = Pipeline::with_capacity(keys.len());
        for key in keys {
            heads.cmd("TYPE").arg(key);
        }
        let types: Vec<String> = heads.query(&mut self.connection)?;
        let mut sizes = Pipeline::with_capacity(2 * keys.len());
        for (key, type_name) in keys.iter().zip(&types) {
            sizes.cmd(size_command(type_name)).arg(key);
            sizes.cmd("PEXPIRETIME").arg(key);
        }
        let sizes: Vec<i64> = sizes.query(&mut self.connection)?;

        let mut small = Vec::new();
        let mut whole = Pipeline::new();
        for ((key, type_name), numbers) in keys.iter().zip(&types).zip(sizes.chunks(2)) {
            let (size, expiry_ms) = (numbers[0], numbers[1]);
            // -2: expired or deleted since SCAN named it.
            if type_name == "none" || expiry_ms == -2 {
                continue;
            }
            let expires_at_ms = (expiry_ms >= 0).then_some(expiry_ms);
            if let Some(command) = whole_command(type_name, key, size) {
                whole.add_command(command);
                small.push((key, type_name, expires_at_ms));
            } else if let Some(value) = self
                .read_large(key, type_name)
                .with_context(|| format!("reading {type_name} {}", key.escape_ascii()))?
            {
                states.insert(key.clone(), KeyState { expires_at_ms, value });
            }
        }
        if small.is_empty() {
            return Ok(());
        }
        let replies: Vec<Value> = whole.query(&mut self.connection)?;
        for ((key, type_name, expires_at_ms), reply) in small.into_iter().zip(replies) {
            let value = self
                .value_of(key, type_name, reply)
                .with_context(|| format!("reading {type_name} {}", key.escape_ascii()))?;
            if let Some(value) = value {
                states.insert(key.clone(), KeyState { expires_at_ms, value });
            }
        }
        Ok(())
    }

    /// The value in a reply to [`whole_command`]; none if the key is gone.
    fn value_of(&mut self, key: &[u8], type_name: &str, reply: Value) -> Result<Option<ValueState>> {
        if matches!(reply, Value::Nil) || matches!(&reply, Value::Array(items) if items.is_empty()) {
            return Ok(None);
        }
        if type_name == "string" {
            return Ok(Some(ValueState::string(&bytes(reply)?)));
        }
        let items = items(reply)?.into_iter().map(bytes).collect::<Result<Vec<_>>>()?;
        Ok(Some(match type_name {
            "list" => ValueState::list(items),
            "set" => ValueState::set(items),
            "zset" => {
                let mut digest = Digest::empty();
                push_scored(&mut digest, &items)?;
                ValueState::SortedSet(digest)
            }
            "hash" => return self.hash(key, items),
            other => bail!("{other} is not read whole"),
        }))
    }

    /// Reads what is too large for one reply, or needs several commands.
    fn read_large(&mut self, key: &[u8], type_name: &str) -> Result<Option<ValueState>> {
        match type_name {
            "string" | "set" | "hash" => {
                let verb = match type_name {
                    "string" => "GET",
                    "set" => "SMEMBERS",
                    _ => "HGETALL",
                };
                let reply: Value = redis::cmd(verb).arg(key).query(&mut self.connection)?;
                self.value_of(key, type_name, reply)
            }
            "list" | "zset" => self.paged(key, type_name),
            "stream" => self.stream(key),
            other => self.payload(key, other),
        }
    }

    fn paged(&mut self, key: &[u8], type_name: &str) -> Result<Option<ValueState>> {
        let mut digest = Digest::empty();
        for first in (0_i64..).step_by(PAGE as usize) {
            let mut command = redis::cmd(if type_name == "list" { "LRANGE" } else { "ZRANGE" });
            command.arg(key).arg(first).arg(first + PAGE - 1);
            if type_name == "zset" {
                command.arg("WITHSCORES");
            }
            let page: Vec<Vec<u8>> = command.query(&mut self.connection)?;
            if page.is_empty() {
                break;
            }
            if type_name == "list" {
                page.iter().for_each(|element| digest.push(element));
            } else {
                push_scored(&mut digest, &page)?;
            }
        }
        if digest == Digest::empty() {
            return Ok(None);
        }
        Ok(Some(if type_name == "list" { ValueState::List(digest) } else { ValueState::SortedSet(digest) }))
    }

    fn hash(&mut self, key: &[u8], items: Vec<Vec<u8>>) -> Result<Option<ValueState>> {
        ensure!(items.len().is_multiple_of(2), "HGETALL answers {} items", items.len());
        let expiries = self.field_expiries_of(key, &items)?;
        let mut expiring = BTreeMap::new();
        let mut lasting = Vec::new();
        for (pair, expiry_ms) in items.chunks(2).zip(expiries) {
            match expiry_ms {
                // Expired since HGETALL named it.
                -2 => {}
                -1 => lasting.push(framed(&[&pair[0], &pair[1]])),
                expires_at_ms => {
                    let value = Digest::ordered([&pair[1]]);
                    expiring.insert(pair[0].clone(), ExpiringField { expires_at_ms, value });
                }
            }
        }
        if lasting.is_empty() && expiring.is_empty() {
            return Ok(None);
        }
        Ok(Some(ValueState::Hash(HashState { lasting: Digest::unordered(lasting), expiring })))
    }

    /// For each field of `items` (fields and values in turn) its expiry, or -1, or -2 if it is gone.
    fn field_expiries_of(&mut self, key: &[u8], items: &[Vec<u8>]) -> Result<Vec<i64>> {
        let count = items.len() / 2;
        if !self.field_expiries {
            return Ok(vec![-1; count]);
        }
        let mut expiries = Vec::with_capacity(count);
        for chunk in items.chunks(2 * FIELDS_PER_COMMAND) {
            let mut command = redis::cmd("HPEXPIRETIME");
            command.arg(key).arg("FIELDS").arg(chunk.len() / 2);
            for pair in chunk.chunks(2) {
                command.arg(&pair[0]);
            }
            let page: Option<Vec<i64>> = command.query(&mut self.connection)?;
            // Nothing at all when the key is gone.
            expiries.extend(page.unwrap_or_else(|| vec![-2; chunk.len() / 2]));
        }
        ensure!(expiries.len() == count, "HPEXPIRETIME answers {} of {count} fields", expiries.len());
        Ok(expiries)
    }

    /// The stream, or none if it was gone when XINFO asked for it, which XINFO calls an error. Whether it
    /// is there now does not matter: it may have been made again.
    fn stream(&mut self, key: &[u8]) -> Result<Option<ValueState>> {
        match self.existing_stream(key) {
            Ok(stream) => Ok(Some(ValueState::Stream(stream))),
            Err(error) if error.root_cause().to_string().contains("no such key") => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn existing_stream(&mut self, key: &[u8]) -> Result<StreamState> {
        let mut entries = Digest::empty();
        let mut from = String::from("-");
        loop {
            let page: Vec<(String, Vec<Vec<u8>>)> = redis::cmd("XRANGE")
                .arg(key)
                .arg(&from)
                .arg("+")
                .arg("COUNT")
                .arg(PAGE)
                .query(&mut self.connection)?;
            for (id, fields) in &page {
                let mut parts = vec![id.as_bytes()];
                parts.extend(fields.iter().map(Vec::as_slice));
                entries.push(&framed(&parts));
            }
            match page.last() {
                Some((id, _)) if page.len() as i64 == PAGE => from = format!("({id}"),
                _ => break,
            }
        }
        // The full form shows delivery times; without a count that covers the longest list it cuts them off.
        let groups: Vec<Value> = redis::cmd("XINFO").arg("GROUPS").arg(key).query(&mut self.connection)?;
        let mut longest = 1;
        for group in groups {
            longest = longest.max(Fields::of(group)?.number("pending")?.unwrap_or(0));
        }
        let full: Value = redis::cmd("XINFO")
            .arg("STREAM")
            .arg(key)
            .arg("FULL")
            .arg("COUNT")
            .arg(longest)
            .query(&mut self.connection)?;
        let mut full = Fields::of(full)?;
        let mut groups = BTreeMap::new();
        for group in items(full.take("groups").context("no groups in XINFO STREAM FULL")?)? {
            let mut group = Fields::of(group)?;
            let name = bytes(group.take("name").context("a group without name")?)?;
            groups.insert(name, group_state(group)?);
        }
        Ok(StreamState {
            entries,
            last_id: full.text("last-generated-id")?.context("a stream without last id")?,
            entries_added: full.number("entries-added")?,
            max_deleted_id: full.text("max-deleted-entry-id")?,
            groups,
        })
    }

    fn payload(&mut self, key: &[u8], type_name: &str) -> Result<Option<ValueState>> {
        /// Version and checksum at the end of a payload.
        const FOOTER_BYTES: usize = 10;
        let payload: Option<Vec<u8>> = redis::cmd("DUMP").arg(key).query(&mut self.connection)?;
        let Some(mut payload) = payload else { return Ok(None) };
        payload.truncate(payload.len().saturating_sub(FOOTER_BYTES));
        Ok(Some(ValueState::Other { type_name: type_name.to_owned(), payload: Digest::ordered([payload]) }))
    }
}

fn group_state(mut group: Fields) -> Result<GroupState> {
    let mut consumers = BTreeSet::new();
    for consumer in items(group.take("consumers").context("a group without consumers")?)? {
        consumers.insert(bytes(Fields::of(consumer)?.take("name").context("a consumer without name")?)?);
    }
    let mut pending = BTreeMap::new();
    for entry in
        items(group.take("pending").or_else(|| group.take("pel")).context("a group without pending")?)?
    {
        let (id, consumer, delivered_at_ms, deliveries): (String, Vec<u8>, i64, i64) =
            redis::from_redis_value(entry)?;
        pending.insert(id, PendingEntry { consumer, delivered_at_ms, deliveries });
    }
    let announced = group.number("pel-count")?;
    ensure!(
        announced.is_none_or(|count| count == pending.len() as i64),
        "{} of {announced:?} pending entries were listed",
        pending.len()
    );
    Ok(GroupState {
        last_delivered_id: group.text("last-delivered-id")?.context("a group without last delivered id")?,
        entries_read: group.number("entries-read")?,
        consumers,
        pending,
    })
}

/// The command that answers a size for a type. A type without one answers something else that is a number.
fn size_command(type_name: &str) -> &'static str {
    match type_name {
        "string" => "STRLEN",
        "list" => "LLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "hash" => "HLEN",
        "stream" => "XLEN",
        _ => "EXISTS",
    }
}

/// The one command that reads a small value; none when it is not small or needs several.
fn whole_command(type_name: &str, key: &[u8], size: i64) -> Option<Cmd> {
    let limit = if type_name == "string" { SMALL_BYTES } else { SMALL_ELEMENTS };
    if size > limit {
        return None;
    }
    let (verb, rest): (_, &[&str]) = match type_name {
        "string" => ("GET", &[]),
        "list" => ("LRANGE", &["0", "-1"]),
        "set" => ("SMEMBERS", &[]),
        "zset" => ("ZRANGE", &["0", "-1", "WITHSCORES"]),
        "hash" => ("HGETALL", &[]),
        _ => return None,
    };
    let mut command = redis::cmd(verb);
    command.arg(key);
    for word in rest {
        command.arg(word);
    }
    Some(command)
}

/// Adds members and scores in turn, as ZRANGE WITHSCORES answers them.
fn push_scored(digest: &mut Digest, items: &[Vec<u8>]) -> Result<()> {
    ensure!(items.len().is_multiple_of(2), "ZRANGE answers {} items", items.len());
    for pair in items.chunks(2) {
        let score: f64 = std::str::from_utf8(&pair[1])?.parse().context("score")?;
        digest.push(&scored_element(&pair[0], score));
    }
    Ok(())
}

/// The named fields of a reply that is a map in all but its framing.
struct Fields(BTreeMap<String, Value>);

impl Fields {
    fn of(reply: Value) -> Result<Self> {
        let mut fields = BTreeMap::new();
        let mut items = items(reply)?.into_iter();
        while let (Some(name), Some(value)) = (items.next(), items.next()) {
            fields.insert(String::from_utf8(bytes(name)?)?, value);
        }
        Ok(Self(fields))
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    fn number(&mut self, name: &str) -> Result<Option<i64>> {
        Ok(match self.take(name) {
            None => None,
            Some(value) => redis::from_redis_value(value)?,
        })
    }

    fn text(&mut self, name: &str) -> Result<Option<String>> {
        Ok(match self.take(name) {
            None => None,
            Some(value) => redis::from_redis_value(value)?,
        })
    }
}

fn items(reply: Value) -> Result<Vec<Value>> {
    match reply {
        Value::Array(items) => Ok(items),
        other => bail!("not an array: {other:?}"),
    }
}

fn bytes(reply: Value) -> Result<Vec<u8>> {
    match reply {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        other => bail!("not a string: {other:?}"),
    }
}
