//! The state of one key, and how two of them differ.

use std::collections::{BTreeMap, BTreeSet};

use super::digest::{Digest, framed, quoted};

/// All that a server knows about a key, as far as a client can ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// When the key expires, milliseconds since the epoch; none if never.
    pub expires_at_ms: Option<i64>,
    /// What it holds.
    pub value: ValueState,
}

/// What a key holds, by type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueState {
    /// A string, of which bitmaps and HyperLogLogs are two uses.
    String(Digest),
    /// A list, in order.
    List(Digest),
    /// A set.
    Set(Digest),
    /// A sorted set in order, scores as numbers.
    SortedSet(Digest),
    /// A hash.
    Hash(HashState),
    /// A stream.
    Stream(StreamState),
    /// A type of a module: digest of its DUMP.
    Other {
        /// As TYPE names it.
        type_name: String,
        /// Of the payload without the version and checksum at its end.
        payload: Digest,
    },
}

/// A hash, with the fields apart that expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashState {
    /// Fields that stay.
    pub lasting: Digest,
    /// Fields that expire.
    pub expiring: BTreeMap<Vec<u8>, ExpiringField>,
}

/// A field of a hash that expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiringField {
    /// Milliseconds since the epoch.
    pub expires_at_ms: i64,
    /// Of its value.
    pub value: Digest,
}

/// A stream with its counters and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// Ids, fields and values in order.
    pub entries: Digest,
    /// The highest id ever given.
    pub last_id: String,
    /// How many entries were ever added; none on servers that do not say.
    pub entries_added: Option<i64>,
    /// The highest id ever deleted; none on servers that do not say.
    pub max_deleted_id: Option<String>,
    /// By name.
    pub groups: BTreeMap<Vec<u8>, GroupState>,
}

/// A consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// Id of the last entry that was given out.
    pub last_delivered_id: String,
    /// The group's logical read counter; none if the server does not know it.
    pub entries_read: Option<i64>,
    /// Names of all consumers, those without pending entries included.
    pub consumers: BTreeSet<Vec<u8>>,
    /// Entries given out and not acknowledged, by id.
    pub pending: BTreeMap<String, PendingEntry>,
}

/// An entry that a consumer has not acknowledged yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    /// Who has it.
    pub consumer: Vec<u8>,
    /// Milliseconds since the epoch.
    pub delivered_at_ms: i64,
    /// How often it was given out.
    pub deliveries: i64,
}

impl ValueState {
    /// A string of these bytes.
    pub fn string(bytes: &[u8]) -> Self {
        Self::String(Digest::ordered([bytes]))
    }

    /// A list of these elements.
    pub fn list<E: AsRef<[u8]>>(elements: impl IntoIterator<Item = E>) -> Self {
        Self::List(Digest::ordered(elements))
    }

    /// A set of these members, in any order.
    pub fn set<E: AsRef<[u8]>>(members: impl IntoIterator<Item = E>) -> Self {
        Self::Set(Digest::unordered(members))
    }

    /// A sorted set of these members and scores, in the server's order.
    pub fn sorted_set<E: AsRef<[u8]>>(members: impl IntoIterator<Item = (E, f64)>) -> Self {
        Self::SortedSet(Digest::ordered(
            members.into_iter().map(|(member, score)| scored_element(member.as_ref(), score)),
        ))
    }

    /// A hash of these fields and values, in any order, none of which expires.
    pub fn hash<E: AsRef<[u8]>>(fields: impl IntoIterator<Item = (E, E)>) -> Self {
        let lasting = Digest::unordered(
            fields.into_iter().map(|(field, value)| framed(&[field.as_ref(), value.as_ref()])),
        );
        Self::Hash(HashState { lasting, expiring: BTreeMap::new() })
    }

    /// A stream of entries that were added and never deleted, each an id and its fields and values in
    /// turn, without groups.
    pub fn stream<E: AsRef<[u8]>>(entries: &[(String, Vec<E>)]) -> Self {
        let elements = entries.iter().map(|(id, fields)| {
            let mut parts = vec![id.as_bytes()];
            parts.extend(fields.iter().map(AsRef::as_ref));
            framed(&parts)
        });
        Self::Stream(StreamState {
            entries: Digest::ordered(elements),
            last_id: entries.last().map_or("0-0".into(), |(id, _)| id.clone()),
            entries_added: Some(entries.len() as i64),
            max_deleted_id: Some("0-0".into()),
            groups: BTreeMap::new(),
        })
    }

    /// As TYPE names it.
    pub fn type_name(&self) -> &str {
        match self {
            Self::String(_) => "string",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::SortedSet(_) => "zset",
            Self::Hash(_) => "hash",
            Self::Stream(_) => "stream",
            Self::Other { type_name, .. } => type_name,
        }
    }
}

/// A member of a sorted set as an element of a digest. Zero has one form here: servers forget its sign
/// when they pack small sorted sets, and nothing depends on it.
pub(super) fn scored_element(member: &[u8], score: f64) -> Vec<u8> {
    let score = if score == 0.0 { 0.0 } else { score };
    framed(&[score.to_string().as_bytes(), member])
}

/// How far delivery times of pending entries may always be apart: servers report them relative to now, and
/// those that travel by commands of their own are as exact as that. A busy machine lets a server wait between
/// two commands, of which the first says what time it is.
const DELIVERY_MS: u64 = 500;

/// How to compare: what two readings may differ in without being different.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slack {
    /// For expiries and delivery times.
    pub(super) tolerance_ms: u64,
    /// When the reading of each side had ended: what expires by then may be there or not.
    pub(super) left_read_ms: i64,
    pub(super) right_read_ms: i64,
}

impl Slack {
    fn near(self, left: i64, right: i64) -> bool {
        left.abs_diff(right) <= self.tolerance_ms
    }
}

impl KeyState {
    /// Whether nothing of the key need be left at `now_ms`.
    pub(super) fn may_be_gone(&self, now_ms: i64) -> bool {
        let all_fields_expired = match &self.value {
            ValueState::Hash(hash) => {
                hash.lasting == Digest::empty()
                    && hash.expiring.values().all(|field| field.expires_at_ms <= now_ms)
            }
            _ => false,
        };
        all_fields_expired || self.expires_at_ms.is_some_and(|expiry| expiry <= now_ms)
    }

    /// Every difference between two states, in words.
    pub(super) fn differences(&self, other: &Self, slack: Slack) -> Vec<String> {
        let mut found = Vec::new();
        match (self.expires_at_ms, other.expires_at_ms) {
            (None, None) => {}
            (Some(left), Some(right)) if slack.near(left, right) => {}
            (left, right) => found.push(format!("expiry is {} against {}", expiry(left), expiry(right))),
        }
        match (&self.value, &other.value) {
            (ValueState::String(left), ValueState::String(right))
            | (ValueState::List(left), ValueState::List(right))
            | (ValueState::Set(left), ValueState::Set(right))
            | (ValueState::SortedSet(left), ValueState::SortedSet(right)) => {
                found.extend(
                    left.difference(right).map(|words| format!("{}: {words}", self.value.type_name())),
                );
            }
            (ValueState::Hash(left), ValueState::Hash(right)) => left.differences(right, slack, &mut found),
            (ValueState::Stream(left), ValueState::Stream(right)) => {
                left.differences(right, slack, &mut found)
            }
            (left, right) if left.type_name() != right.type_name() => {
                found.push(format!("type is {} against {}", left.type_name(), right.type_name()));
            }
            (ValueState::Other { payload: left, .. }, ValueState::Other { payload: right, .. }) => {
                found.extend(left.difference(right).map(|words| format!("payload: {words}")));
            }
            _ => unreachable!("values of one type name are of one variant"),
        }
        found
    }
}

impl HashState {
    fn differences(&self, other: &Self, slack: Slack, found: &mut Vec<String>) {
        if let Some(words) = self.lasting.difference(&other.lasting) {
            found.push(format!("hash: {words}"));
        }
        let fields: BTreeSet<_> = self.expiring.keys().chain(other.expiring.keys()).collect();
        for field in fields {
            let name = quoted(field);
            match (self.expiring.get(field), other.expiring.get(field)) {
                (Some(left), Some(right)) => {
                    if !slack.near(left.expires_at_ms, right.expires_at_ms) {
                        let (left, right) = (left.expires_at_ms, right.expires_at_ms);
                        found.push(format!("field {name}: expiry is {left} against {right}"));
                    }
                    if let Some(words) = left.value.difference(&right.value) {
                        found.push(format!("field {name}: {words}"));
                    }
                }
                (Some(left), None) if left.expires_at_ms > slack.right_read_ms => {
                    found
                        .push(format!("field {name} with expiry {} is only on the left", left.expires_at_ms));
                }
                (None, Some(right)) if right.expires_at_ms > slack.left_read_ms => {
                    found.push(format!(
                        "field {name} with expiry {} is only on the right",
                        right.expires_at_ms
                    ));
                }
                _ => {}
            }
        }
    }
}

impl StreamState {
    fn differences(&self, other: &Self, slack: Slack, found: &mut Vec<String>) {
        if let Some(words) = self.entries.difference(&other.entries) {
            found.push(format!("stream entries: {words}"));
        }
        note(found, "last id", &self.last_id, &other.last_id);
        // A server that does not keep a counter cannot lose it.
        if let (Some(left), Some(right)) = (self.entries_added, other.entries_added) {
            note(found, "entries added", &left, &right);
        }
        if let (Some(left), Some(right)) = (&self.max_deleted_id, &other.max_deleted_id) {
            note(found, "highest deleted id", left, right);
        }
        let names: BTreeSet<_> = self.groups.keys().chain(other.groups.keys()).collect();
        for group in names {
            let name = quoted(group);
            match (self.groups.get(group), other.groups.get(group)) {
                (Some(left), Some(right)) => left.differences(right, &name, slack, found),
                (Some(_), None) => found.push(format!("group {name} is only on the left")),
                _ => found.push(format!("group {name} is only on the right")),
            }
        }
    }
}

impl GroupState {
    fn differences(&self, other: &Self, name: &str, slack: Slack, found: &mut Vec<String>) {
        let prefix = format!("group {name}");
        note(
            found,
            &format!("{prefix}: last delivered id"),
            &self.last_delivered_id,
            &other.last_delivered_id,
        );
        note(found, &format!("{prefix}: entries read"), &self.entries_read, &other.entries_read);
        for consumer in self.consumers.symmetric_difference(&other.consumers) {
            let side = if self.consumers.contains(consumer) { "left" } else { "right" };
            found.push(format!("{prefix}: consumer {} is only on the {side}", quoted(consumer)));
        }
        let ids: BTreeSet<_> = self.pending.keys().chain(other.pending.keys()).collect();
        for id in ids {
            match (self.pending.get(id), other.pending.get(id)) {
                (Some(left), Some(right)) => {
                    let same = left.consumer == right.consumer
                        && left.deliveries == right.deliveries
                        && left.delivered_at_ms.abs_diff(right.delivered_at_ms)
                            <= slack.tolerance_ms.max(DELIVERY_MS);
                    if !same {
                        found.push(format!("{prefix}: pending {id} is {left:?} against {right:?}"));
                    }
                }
                (Some(_), None) => found.push(format!("{prefix}: pending {id} is only on the left")),
                _ => found.push(format!("{prefix}: pending {id} is only on the right")),
            }
        }
    }
}

fn note<T: PartialEq + std::fmt::Debug>(found: &mut Vec<String>, what: &str, left: &T, right: &T) {
    if left != right {
        found.push(format!("{what} is {left:?} against {right:?}"));
    }
}

fn expiry(at_ms: Option<i64>) -> String {
    at_ms.map_or("never".into(), |at_ms| at_ms.to_string())
}
