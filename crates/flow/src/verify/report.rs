//! What a verification found: for people and for machines.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// How two keys differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The source has the key, the target has not.
    Missing,
    /// The target has the key, the source has not.
    Extra,
    /// The types differ.
    Type,
    /// The expiry times differ by more than the tolerance, or only one side has one.
    Ttl,
    /// The lengths of two strings or two lists differ, or the cardinalities of two collections.
    Length,
    /// The contents of two strings, of a hash field, or of two values of a module's type differ.
    Value,
    /// An element, member or field is on one side only, or a list has other elements.
    Element,
    /// A member of a sorted set has another score.
    Score,
    /// A list has the same elements in another order.
    Order,
    /// The expiry time of a hash field differs.
    FieldTtl,
    /// An entry of a stream is on one side only, or has other fields.
    StreamEntry,
    /// A stream's last id, number of entries ever added, or highest deleted id differs.
    StreamMeta,
    /// A consumer group is on one side only, or its last delivered id or its number of entries read differs.
    Group,
    /// A consumer is on one side only.
    Consumer,
    /// A pending entry is on one side only, or has another owner or delivery count.
    Pending,
    /// Two databases hold different numbers of keys.
    Count,
}

/// One way in which a key differs. A key that differs in several ways has one of these for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The database on the source.
    pub db: u32,
    /// The key as text for people: what is not printable is escaped, a very long name is cut. `None` if the
    /// difference is one of a whole database.
    pub key: Option<String>,
    /// The key's bytes in hexadecimal, if `key` is not the name itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_hex: Option<String>,
    /// How it differs.
    pub kind: DifferenceKind,
    /// Where and by how much: sizes, positions, names of fields. Never a value.
    pub detail: String,
}

/// Numbers of keys, by what became of them.
///
/// `SCAN` may name a key more than once, so `compared` and `equal` can be higher than the number of keys.
/// Keys that differ are counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Keys of the source that were looked at on both sides.
    pub compared: u64,
    /// Keys found equal, at once or after waiting.
    pub equal: u64,
    /// Keys that both sides have, and that differ.
    pub differing: u64,
    /// Keys that only the source has.
    pub missing: u64,
    /// Keys that only the target has.
    pub extra: u64,
    /// Keys that changed on the source for as long as we looked: neither equal nor different.
    pub unstable: u64,
    /// Keys that were deleted or expired on both sides, or left the source, while we looked.
    pub gone: u64,
    /// Keys of another type than those selected.
    pub skipped: u64,
    /// Keys counted as equal although not all of their content could be compared: values that only a module
    /// understands, and large vector sets.
    pub opaque: u64,
    /// Keys of the target that were looked for on the source.
    pub extra_checked: u64,
    /// Databases with another number of keys on the target.
    pub count_mismatches: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.compared += other.compared;
        self.equal += other.equal;
        self.differing += other.differing;
        self.missing += other.missing;
        self.extra += other.extra;
        self.unstable += other.unstable;
        self.gone += other.gone;
        self.skipped += other.skipped;
        self.opaque += other.opaque;
        self.extra_checked += other.extra_checked;
        self.count_mismatches += other.count_mismatches;
    }
}

/// What was found in one pair of databases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DbReport {
    /// The database on the source.
    pub source_db: u32,
    /// The database on the target.
    pub target_db: u32,
    /// Keys counted on the source, if only counts were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_keys: Option<u64>,
    /// Keys counted on the target, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_keys: Option<u64>,
    /// The numbers of this pair.
    #[serde(flatten)]
    pub tally: Tally,
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The numbers of all databases together.
    #[serde(flatten)]
    pub tally: Tally,
    /// Suspected keys whose case was still open when the run was stopped.
    pub unsettled: u64,
    /// Bytes of names, elements and values that were read from the source and compared.
    pub bytes_compared: u64,
    /// How many differences of each kind there are.
    pub kinds: BTreeMap<DifferenceKind, u64>,
    /// The differences, up to the number that was asked for.
    pub differences: Vec<Difference>,
    /// True if there are more differences than `differences` holds.
    pub differences_cut: bool,
    /// The names of unstable keys, up to the number of differences that was asked for, escaped like
    /// [`Difference::key`].
    pub unstable_keys: Vec<String>,
    /// For each pair of databases.
    pub dbs: Vec<DbReport>,
    /// What makes the result weaker than it looks, for people.
    pub notes: Vec<String>,
    /// Slots that kept moving to other shards: some of their keys may not have been compared.
    pub unproven_slots: u64,
    /// True if the run was stopped before everything was compared.
    pub stopped_early: bool,
    /// How long it took.
    pub duration_ms: u64,
}

impl VerifyReport {
    /// True if everything in scope was compared, and no key differs, is missing, extra or unstable.
    pub fn is_equal(&self) -> bool {
        self.unproven_slots == 0 && self.has_no_difference()
    }

    /// True if no key was found to differ, but slots kept moving: keys in them may have been overlooked.
    pub fn is_unproven(&self) -> bool {
        self.unproven_slots > 0 && self.has_no_difference()
    }

    /// What a list of jobs says of it.
    pub fn verdict(&self) -> &'static str {
        match (self.is_equal(), self.is_unproven()) {
            (true, _) => "equal",
            (false, true) => "unproven",
            (false, false) => "different",
        }
    }

    fn has_no_difference(&self) -> bool {
        let t = &self.tally;
        !self.stopped_early
            && self.unsettled == 0
            && [t.differing, t.missing, t.extra, t.unstable, t.count_mismatches].iter().all(|n| *n == 0)
    }
}

/// One way in which a key was found to differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub kind: DifferenceKind,
    pub detail: String,
}

/// This many differing keys are remembered in order not to count one twice. Above it, a key that `SCAN` names
/// twice counts twice.
const SEEN_MAX: usize = 1 << 20;

/// Collects results while the run goes on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ledger {
    pub dbs: Vec<DbReport>,
    pub notes: Vec<String>,
    #[serde(default)]
    pub unproven_slots: u64,
    pub bytes_compared: u64,
    kinds: BTreeMap<DifferenceKind, u64>,
    differences: Vec<Difference>,
    differences_max: usize,
    differences_cut: bool,
    unstable_keys: Vec<String>,
    /// Not written down: in a verification that was continued, a key that `SCAN` named before as well may
    /// count twice.
    #[serde(skip)]
    seen: HashSet<u128>,
}

impl Ledger {
    pub fn new(dbs: &[(u32, u32)], differences_max: usize) -> Ledger {
        let dbs = dbs.iter().map(|&(source_db, target_db)| DbReport {
            source_db,
            target_db,
            source_keys: None,
            target_keys: None,
            tally: Tally::default(),
        });
        Ledger {
            dbs: dbs.collect(),
            notes: Vec::new(),
            unproven_slots: 0,
            bytes_compared: 0,
            kinds: BTreeMap::new(),
            differences: Vec::new(),
            differences_max,
            differences_cut: false,
            unstable_keys: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Keys that were looked at, looked for, and found to differ so far.
    pub fn done(&self) -> (u64, u64, u64) {
        let all = self.report(0, false, 0).tally;
        (all.compared, all.extra_checked, all.differing + all.missing + all.extra)
    }

    /// The numbers of the pair of databases at `index`.
    pub fn tally(&mut self, index: usize) -> &mut Tally {
        &mut self.dbs[index].tally
    }

    /// Notes a key that differs. False if it was noted before.
    pub fn differs(&mut self, index: usize, key: &Bytes, findings: Vec<Finding>) -> bool {
        if !self.first_time(index, key) {
            return false;
        }
        let tally = self.tally(index);
        match findings.first().map(|f| f.kind) {
            Some(DifferenceKind::Missing) => tally.missing += 1,
            Some(DifferenceKind::Extra) => tally.extra += 1,
            _ => tally.differing += 1,
        }
        let (text, hex) = key_text(key);
        for finding in findings {
            self.push(index, Some(text.clone()), hex.clone(), finding);
        }
        true
    }

    /// Notes that two databases hold different numbers of keys.
    pub fn count_differs(&mut self, index: usize, finding: Finding) {
        self.tally(index).count_mismatches += 1;
        self.push(index, None, None, finding);
    }

    /// Notes a key that never held still.
    pub fn unstable(&mut self, index: usize, key: &Bytes) {
        if !self.first_time(index, key) {
            return;
        }
        self.tally(index).unstable += 1;
        if self.unstable_keys.len() < self.differences_max {
            self.unstable_keys.push(key_text(key).0);
        }
    }

    fn push(&mut self, index: usize, key: Option<String>, key_hex: Option<String>, finding: Finding) {
        *self.kinds.entry(finding.kind).or_default() += 1;
        if self.differences.len() >= self.differences_max {
            self.differences_cut = true;
            return;
        }
        let db = self.dbs[index].source_db;
        self.differences.push(Difference { db, key, key_hex, kind: finding.kind, detail: finding.detail });
    }

    fn first_time(&mut self, index: usize, key: &Bytes) -> bool {
        self.seen.len() >= SEEN_MAX || self.seen.insert(xxh3_128_with_seed(key, index as u64))
    }

    /// The report of everything collected so far.
    pub fn report(&self, unsettled: u64, stopped_early: bool, duration_ms: u64) -> VerifyReport {
        let mut tally = Tally::default();
        for db in &self.dbs {
            tally.add(&db.tally);
        }
        VerifyReport {
            tally,
            unsettled,
            bytes_compared: self.bytes_compared,
            kinds: self.kinds.clone(),
            differences: self.differences.clone(),
            differences_cut: self.differences_cut,
            unstable_keys: self.unstable_keys.clone(),
            dbs: self.dbs.clone(),
            notes: self.notes.clone(),
            unproven_slots: self.unproven_slots,
            stopped_early,
            duration_ms,
        }
    }
}

/// So much of a key's name is shown to people.
const KEY_SHOWN_BYTES: usize = 512;
/// So much of a name of a field, member, group or consumer.
const NAME_SHOWN_BYTES: usize = 64;
/// A longer key is not given in hexadecimal either: names of this length are broken data, and reports have to
/// end.
const KEY_HEX_BYTES_MAX: usize = 64 << 10;

/// The key for people, and in hexadecimal if that is not the same.
fn key_text(key: &[u8]) -> (String, Option<String>) {
    let text = escape(key, KEY_SHOWN_BYTES);
    let same = text.as_bytes() == key;
    let hex = (!same && key.len() <= KEY_HEX_BYTES_MAX)
        .then(|| key.iter().flat_map(|b| [hex_digit(b >> 4), hex_digit(b & 15)]).collect());
    (text, hex)
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).expect("a nibble is below 16")
}

/// The name of a field, member, group or consumer in quotes, escaped and cut.
pub(super) fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", escape(name, NAME_SHOWN_BYTES))
}

/// `bytes` with everything unprintable escaped, cut after `bytes_max`.
fn escape(bytes: &[u8], bytes_max: usize) -> String {
    let shown = &bytes[..bytes.len().min(bytes_max)];
    let mut text = String::with_capacity(shown.len());
    for chunk in shown.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                // Controls, and the marks that turn text around or are not visible.
                c if c.is_control()
                    || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
                    || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}') =>
                {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        push_hex(&mut text, byte);
                    }
                }
                c => text.push(c),
            }
        }
        for &byte in chunk.invalid() {
            push_hex(&mut text, byte);
        }
    }
    if shown.len() < bytes.len() {
        text.push_str(&format!("… ({} bytes)", bytes.len()));
    }
    text
}

fn push_hex(text: &mut String, byte: u8) {
    text.extend(['\\', 'x', hex_digit(byte >> 4), hex_digit(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_shown_as_they_are() {
        assert_eq!(key_text("user:1 äö".as_bytes()), ("user:1 äö".to_owned(), None));
        assert_eq!(key_text(b""), (String::new(), None));
    }

    #[test]
    fn other_names_are_escaped_and_given_in_hexadecimal() {
        assert_eq!(key_text(b"a\xff\0\n"), ("a\\xff\\x00\\n".to_owned(), Some("61ff000a".to_owned())));
        assert_eq!(key_text(b"a\\b"), ("a\\\\b".to_owned(), Some("615c62".to_owned())));
        assert_eq!(key_text("\u{202e}".as_bytes()).0, "\\xe2\\x80\\xae");
    }

    #[test]
    fn long_names_are_cut() {
        let (text, hex) = key_text(&[b'k'; 2000]);
        assert!(text.ends_with("k… (2000 bytes)") && text.len() < 600, "{text}");
        assert_eq!(hex.map(|h| h.len()), Some(4000));
        assert_eq!(key_text(&vec![b'k'; KEY_HEX_BYTES_MAX + 1]).1, None);
        // A cut in the middle of a character shows its bytes.
        assert!(escape("ää".as_bytes(), 3).starts_with("ä\\xc3…"));
    }

    #[test]
    fn a_key_is_counted_once_and_kept_up_to_the_limit() {
        let mut ledger = Ledger::new(&[(0, 0), (1, 1)], 1);
        let finding = |kind| Finding { kind, detail: String::new() };
        let key = Bytes::from_static(b"k");
        assert!(ledger.differs(0, &key, vec![finding(DifferenceKind::Missing)]));
        assert!(!ledger.differs(0, &key, vec![finding(DifferenceKind::Missing)]));
        assert!(ledger.differs(1, &key, vec![finding(DifferenceKind::Ttl), finding(DifferenceKind::Value)]));
        let report = ledger.report(0, false, 0);
        assert_eq!((report.tally.missing, report.tally.differing), (1, 1));
        assert_eq!(report.kinds.values().sum::<u64>(), 3);
        assert_eq!((report.differences.len(), report.differences_cut), (1, true));
        assert!(!report.is_equal());
    }
}
