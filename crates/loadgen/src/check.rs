//! Whether two servers hold the same, found out by plain reads: nothing here is shared with
//! `whimbrel verify`.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use redis::{Cmd, Connection, Value, cmd};
use serde::Serialize;

/// Keys drawn or read at a time.
const BATCH_KEYS: usize = 100;

/// What a comparison of two servers found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Keys on the source.
    pub source_keys: u64,
    /// Keys on the target.
    pub target_keys: u64,
    /// Random keys of the source that were looked at in full.
    pub sampled: u64,
    /// How many of those were missing on the target or differed in type, in content or in whether they
    /// expire.
    pub different: u64,
    /// One of those.
    pub example: Option<String>,
    /// How far the expiry times of the others were apart at most, in milliseconds.
    pub expiry_off_ms_max: u64,
}

impl Comparison {
    /// Whether nothing differed, apart from the times of expiry.
    pub fn is_equal(&self) -> bool {
        self.source_keys == self.target_keys && self.different == 0
    }
}

/// Compares the number of keys, and a random sample of them in full.
///
/// # Errors
/// When a server does not answer.
pub fn compare(
    source: &mut Connection,
    target: &mut Connection,
    sample: usize,
) -> anyhow::Result<Comparison> {
    let mut comparison = Comparison {
        source_keys: cmd("DBSIZE").query(source)?,
        target_keys: cmd("DBSIZE").query(target)?,
        sampled: 0,
        different: 0,
        example: None,
        expiry_off_ms_max: 0,
    };
    let keys: Vec<Vec<u8>> = random_keys(source, sample)?.into_iter().collect();
    for batch in keys.chunks(BATCH_KEYS) {
        let ours = read(source, batch)?;
        let theirs = read(target, batch)?;
        for ((key, ours), theirs) in batch.iter().zip(ours).zip(theirs) {
            comparison.sampled += 1;
            match (ours.expires_at_ms, theirs.expires_at_ms) {
                _ if ours.kind != theirs.kind || ours.content != theirs.content => comparison.miss(key),
                (None, None) => {}
                (Some(ours), Some(theirs)) => {
                    let off_ms = ours.abs_diff(theirs);
                    comparison.expiry_off_ms_max = comparison.expiry_off_ms_max.max(off_ms);
                }
                _ => comparison.miss(key),
            }
        }
    }
    Ok(comparison)
}

impl Comparison {
    fn miss(&mut self, key: &[u8]) {
        self.different += 1;
        self.example.get_or_insert_with(|| key.escape_ascii().to_string());
    }
}

/// Distinct keys, as many as asked for unless there are fewer.
fn random_keys(connection: &mut Connection, count: usize) -> anyhow::Result<BTreeSet<Vec<u8>>> {
    let mut keys = BTreeSet::new();
    // Where the sample is most of the keys the last of them would take long to be drawn.
    let draws_max = 10 * count.div_ceil(BATCH_KEYS);
    for _ in 0..draws_max {
        let mut pipeline = redis::pipe();
        for _ in 0..BATCH_KEYS {
            pipeline.cmd("RANDOMKEY");
        }
        let drawn: Vec<Option<Vec<u8>>> = pipeline.query(connection)?;
        for key in drawn.into_iter().flatten() {
            if keys.len() < count {
                keys.insert(key);
            }
        }
        if keys.len() >= count {
            break;
        }
    }
    Ok(keys)
}

/// All of a key that can be read.
struct Key {
    kind: String,
    expires_at_ms: Option<u64>,
    content: Vec<Value>,
}

fn read(connection: &mut Connection, keys: &[Vec<u8>]) -> anyhow::Result<Vec<Key>> {
    let mut pipeline = redis::pipe();
    for key in keys {
        pipeline.cmd("TYPE").arg(key).cmd("PEXPIRETIME").arg(key);
    }
    let heads: Vec<(String, i64)> = pairs(pipeline.query(connection)?)?;
    let mut pipeline = redis::pipe();
    for (key, (kind, _)) in keys.iter().zip(&heads) {
        for command in reads(kind, key) {
            pipeline.add_command(command);
        }
    }
    let mut replies =
        if pipeline.is_empty() { Vec::new() } else { pipeline.query::<Vec<Value>>(connection)? }.into_iter();
    keys.iter()
        .zip(heads)
        .map(|(key, (kind, expires_at_ms))| {
            let content = reads(&kind, key)
                .iter()
                .map(|_| replies.next().map(|reply| ordered(&kind, reply)))
                .collect::<Option<Vec<Value>>>()
                .context("a server sent fewer replies than commands")?;
            // Below 0: there is none.
            Ok(Key { kind, expires_at_ms: u64::try_from(expires_at_ms).ok(), content })
        })
        .collect()
}

fn pairs(replies: Vec<Value>) -> anyhow::Result<Vec<(String, i64)>> {
    replies
        .chunks(2)
        .map(|pair| {
            ensure!(pair.len() == 2, "a server sent fewer replies than commands");
            Ok((redis::from_redis_value_ref(&pair[0])?, redis::from_redis_value_ref(&pair[1])?))
        })
        .collect()
}

/// The commands that read a value of this type. None for a key that is not there.
fn reads(kind: &str, key: &[u8]) -> Vec<Cmd> {
    let command = |words: &[&str], after: &[&str]| {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.arg(key);
        for word in after {
            command.arg(*word);
        }
        command
    };
    match kind {
        "string" => vec![command(&["GET"], &[])],
        "list" => vec![command(&["LRANGE"], &["0", "-1"])],
        "set" => vec![command(&["SMEMBERS"], &[])],
        "zset" => vec![command(&["ZRANGE"], &["0", "-1", "WITHSCORES"])],
        "hash" => vec![command(&["HGETALL"], &[])],
        "stream" => vec![command(&["XRANGE"], &["-", "+"]), command(&["XINFO", "GROUPS"], &[])],
        _ => Vec::new(),
    }
}

/// Sets and hashes have no order: they are sorted, hashes by pairs.
fn ordered(kind: &str, reply: Value) -> Value {
    let bytes = |value: &Value| match value {
        Value::BulkString(bytes) => bytes.clone(),
        _ => Vec::new(),
    };
    match (kind, reply) {
        ("set", Value::Array(mut members)) => {
            members.sort_by_cached_key(bytes);
            Value::Array(members)
        }
        ("hash", Value::Array(words)) => {
            let mut fields: Vec<Value> =
                words.chunks(2).map(|field_and_value| Value::Array(field_and_value.to_vec())).collect();
            fields.sort_by_cached_key(|field| match field {
                Value::Array(field_and_value) => field_and_value.first().map(bytes),
                _ => None,
            });
            Value::Array(fields)
        }
        (_, reply) => reply,
    }
}

#[cfg(test)]
mod tests {
    use redis::Value::{Array, BulkString};
    use whimbrel_lab::{Engine, Server};

    use super::*;
    use crate::data::{self, DataSet};
    use crate::interrupt::Interrupt;

    fn words(words: &[&str]) -> Value {
        Array(words.iter().map(|word| BulkString(word.as_bytes().to_vec())).collect())
    }

    #[test]
    fn only_what_has_no_order_is_sorted() {
        assert_eq!(ordered("set", words(&["b", "a"])), ordered("set", words(&["a", "b"])));
        assert_ne!(ordered("list", words(&["b", "a"])), ordered("list", words(&["a", "b"])));
        assert_eq!(
            ordered("hash", words(&["f", "1", "e", "2"])),
            ordered("hash", words(&["e", "2", "f", "1"]))
        );
        assert_ne!(
            ordered("hash", words(&["f", "1", "e", "2"])),
            ordered("hash", words(&["f", "2", "e", "1"]))
        );
    }

    #[test]
    fn differences_between_real_servers_are_found() {
        let interrupt = Interrupt::never();
        let start = || Server::builder(Engine::Redis70).start().expect("redis-7.0 starts");
        let (source, target) = (start(), start());
        let (mut ours, mut theirs) = (source.connection(), target.connection());
        for connection in [&mut ours, &mut theirs] {
            data::fill(connection, DataSet::Mixed, 40, &interrupt).expect("it can be filled");
        }
        let compared = compare(&mut ours, &mut theirs, 1000).expect("both answer");
        assert!(compared.is_equal() && compared.expiry_off_ms_max == 0, "{compared:?}");
        assert_eq!((compared.source_keys, compared.target_keys), (40, 40));
        assert!(compared.sampled >= 30, "{compared:?}");

        // One key each: of every type, with another expiry time, with none.
        let changes = [
            vec!["APPEND", "mixed:000000000", "x"],
            vec!["HSET", "mixed:000000009", "another", "field"],
            vec!["RPUSH", "mixed:000000012", "x"],
            vec!["SADD", "mixed:000000014", "x"],
            vec!["ZADD", "mixed:000000016", "1", "x"],
            vec!["XADD", "mixed:000000018", "*", "a", "b"],
            vec!["XGROUP", "CREATE", "mixed:000000019", "another", "$"],
            vec!["PEXPIREAT", "mixed:000000020", "4102444800000"],
        ];
        let mut planted = 0;
        for change in &changes {
            target.call(change);
            // PEXPIREAT may have met a key that expires anyway; then only the time differs.
            let compared = compare(&mut ours, &mut theirs, 1000).expect("both answer");
            let found = compared.different + u64::from(compared.expiry_off_ms_max > 0);
            assert!(found > planted, "{change:?} was not found");
            planted = found;
        }
        target.call(&["DEL", "mixed:000000001"]);
        let compared = compare(&mut ours, &mut theirs, 1000).expect("both answer");
        assert!(!compared.is_equal() && compared.target_keys == 39, "{compared:?}");
    }
}
