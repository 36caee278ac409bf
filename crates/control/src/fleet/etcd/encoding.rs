//! What is under which key, and how it is asked for and written.
//!
//! ```text
//! PREFIX/format           1
//! PREFIX/partitions       how many there are
//! PREFIX/head             TERM.NUMBER: the term, and how many transactions of it have been done
//! PREFIX/next-member      the next member's number
//! PREFIX/backends/NAME    its number
//! PREFIX/members/NUMBER   a record
//! PREFIX/parts/NUMBER     the record of the part of the data that a backend has
//! PREFIX/rows/CHUNK       the records of this many partitions, from CHUNK times this many on
//! PREFIX/redo             the number of pieces of a batch that took several transactions
//! PREFIX/redo/PIECE       records of that batch
//! PREFIX/leader           where the coordinator is, for as long as its lease of etcd runs
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use whimbrel_core::fleet::{Partition, Record, Table};

/// How many rows lie under one key. etcd takes 128 operations in a transaction: so the rows of the usual
/// table take three transactions, and one row costs no more than half a KiB.
pub(super) const ROWS_OF_CHUNK: u32 = 64;

/// A key of etcd's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    pub(super) create_revision: i64,
    pub(super) mod_revision: i64,
    pub(super) lease: i64,
}

impl Entry {
    /// The value as text; empty if it is none.
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.value).unwrap_or_default()
    }
}

pub(super) fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The entries of the answer to a range.
pub(super) fn entries(answer: &Value) -> Vec<Entry> {
    let number = |value: &Value| super::client::int(value).unwrap_or(0);
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
    let entry = |kv: &Value| Entry {
        key: String::from_utf8(bytes(&kv["key"])).unwrap_or_default(),
        value: bytes(&kv["value"]),
        create_revision: number(&kv["create_revision"]),
        mod_revision: number(&kv["mod_revision"]),
        lease: number(&kv["lease"]),
    };
    answer["kvs"].as_array().into_iter().flatten().map(entry).collect()
}

/// The entries of one operation of a transaction's answer.
pub(super) fn entries_of(answer: &Value, operation: usize) -> Vec<Entry> {
    entries(&answer["responses"][operation]["response_range"])
}

pub(super) fn range(key: &str) -> Value {
    json!({"request_range": {"key": base64(key)}})
}

pub(super) fn put(key: &str, value: impl AsRef<[u8]>) -> Value {
    json!({"request_put": {"key": base64(key), "value": base64(value)}})
}

pub(super) fn delete(key: &str) -> Value {
    json!({"request_delete_range": {"key": base64(key)}})
}

/// Deletes everything below a key.
pub(super) fn delete_below(key: &str) -> Value {
    json!({"request_delete_range": {"key": base64(format!("{key}/")),
        "range_end": base64(format!("{key}0"))}})
}

/// The key was created in this revision; 0 for a missing key.
pub(super) fn created(key: &str, revision: i64) -> Value {
    json!({"key": base64(key), "target": "CREATE", "result": "EQUAL",
        "create_revision": revision.to_string()})
}

/// The key was last written in this revision; 0 for a missing key.
pub(super) fn modified(key: &str, revision: i64) -> Value {
    json!({"key": base64(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()})
}

/// The key has this value.
pub(super) fn equals(key: &str, value: &str) -> Value {
    json!({"key": base64(key), "target": "VALUE", "result": "EQUAL", "value": base64(value)})
}

/// Records one after the other, each after its length.
pub(super) fn pack<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<u8> {
    let (mut packed, mut one) = (Vec::new(), Vec::new());
    for record in records {
        one.clear();
        record.encode(&mut one);
        // A record has a few dozen bytes.
        packed.push(u8::try_from(one.len()).unwrap_or(u8::MAX));
        packed.extend_from_slice(&one);
    }
    packed
}

/// The records of what [`pack`] made; none if it is anything else.
pub(super) fn unpack(mut packed: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while let [length, rest @ ..] = packed {
        let (one, rest) = rest.split_at_checked(usize::from(*length))?;
        records.push(Record::decode(one).ok()?);
        packed = rest;
    }
    Some(records)
}

/// Which chunk has a partition's row.
pub(super) fn chunk_of(partition: Partition) -> u32 {
    partition / ROWS_OF_CHUNK
}

/// What lies under the key of a chunk.
pub(super) fn chunk(table: &Table, chunk: u32) -> Vec<u8> {
    let first = chunk.saturating_mul(ROWS_OF_CHUNK);
    let rows = (first..first.saturating_add(ROWS_OF_CHUNK)).filter_map(|at| Some((at, *table.row(at)?)));
    let records: Vec<Record> =
        rows.filter(|(_, row)| row.version > 0).map(|(at, row)| Record::Row(at, row)).collect();
    pack(&records)
}

#[cfg(test)]
mod tests {
    use whimbrel_core::fleet::{Enrolled, HOLDERS_MAX, Holders, MemberId, Row, Snapshot};

    use super::*;

    fn row(version: u64, owner: u32) -> Row {
        Row { version, backend: 1, holders: Holders::new(&[MemberId(owner)]).expect("one") }
    }

    #[test]
    fn records_are_read_as_they_were_packed() {
        let holders: Vec<MemberId> = (0..HOLDERS_MAX as u32).map(|n| MemberId(u32::MAX - n)).collect();
        let holders = Holders::new(&holders).expect("as many as may be");
        let largest = Row { version: u64::MAX, backend: u32::MAX, holders };
        let records = vec![
            Record::Row((1 << 20) - 1, largest),
            Record::Member(MemberId(3), Enrolled { token: u64::MAX, weight: 7, is_leaving: true }),
            Record::Gone(MemberId(9)),
        ];
        let packed = pack(&records);
        assert_eq!(unpack(&packed), Some(records));
        assert_eq!(unpack(&[]), Some(Vec::new()));
        assert_eq!(unpack(&packed[..packed.len() - 1]), None, "something is missing");
        assert_eq!(unpack(&[1, 99]), None, "no record");
    }

    #[test]
    fn a_chunk_has_the_rows_that_were_written_of_its_partitions() {
        let mut snapshot = Snapshot::new(100);
        let records = [Record::Row(64, row(1, 2)), Record::Row(99, row(5, 3))];
        records.iter().for_each(|record| snapshot.apply(record));
        assert_eq!((chunk_of(63), chunk_of(64), chunk_of(99)), (0, 1, 1));
        assert_eq!(unpack(&chunk(&snapshot.table, 0)), Some(Vec::new()));
        assert_eq!(unpack(&chunk(&snapshot.table, 1)), Some(records.to_vec()));
    }

    #[test]
    fn answers_of_transactions_are_read() {
        let kv = json!({"key": base64("p/head"), "value": base64("3.4"), "create_revision": "5",
            "mod_revision": "7"});
        let answer = json!({"responses": [{}, {"response_range": {"kvs": [kv]}}]});
        assert_eq!(entries_of(&answer, 0), []);
        let found = entries_of(&answer, 1);
        assert_eq!((found[0].key.as_str(), found[0].text()), ("p/head", "3.4"));
        assert_eq!((found[0].create_revision, found[0].mod_revision, found[0].lease), (5, 7, 0));
        assert_eq!(entries_of(&answer, 2), []);
    }
}
