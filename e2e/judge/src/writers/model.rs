//! What a key must hold after the writes that were acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Cmd, Value};

use crate::compare::{KeyState, ValueState};
use crate::dataset::random::Random;

/// Elements after which a collection is deleted, so that keys stay small and deletions happen.
const ELEMENTS_MAX: usize = 64;
/// How far away expiries are: none comes to pass during a test.
const EXPIRY_MS: i64 = 6 * 3_600_000;

/// The uses of a key; each has its own commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Counter,
    List,
    Set,
    SortedSet,
    Hash,
    Stream,
}

impl Kind {
    pub(super) const ALL: [Self; 7] =
        [Self::Text, Self::Counter, Self::List, Self::Set, Self::SortedSet, Self::Hash, Self::Stream];
}

/// What one key holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    contents: Option<Contents>,
    expires_at_ms: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    Text(Vec<u8>),
    Counter(i64),
    List(Vec<String>),
    Set(BTreeSet<String>),
    /// By member; small whole numbers, which have one form everywhere.
    SortedSet(BTreeMap<String, i32>),
    Hash(BTreeMap<String, String>),
    /// Number of each entry, which is its id, and its value.
    Stream(Vec<(u64, String)>),
}

/// One write.
#[derive(Clone, Debug)]
pub(super) enum Write {
    Set(String),
    Append(String),
    Increment,
    Push(String),
    AddMember(String),
    AddScored(String, i32),
    SetField(String, String),
    AddEntry(u64, String),
    Delete,
    Expire(i64),
}

impl Write {
    /// A write that fits a key of this kind.
    pub(super) fn choose(kind: Kind, model: &Model, random: &mut Random, now_ms: i64) -> Self {
        if model.len() >= ELEMENTS_MAX {
            return Self::Delete;
        }
        let value = format!("{:x}", random.next());
        let name = format!("n{}", random.below(40));
        match random.below(20) {
            0 => return Self::Delete,
            1 => return Self::Expire(now_ms + EXPIRY_MS + random.below(1_000) as i64),
            _ => {}
        }
        match kind {
            Kind::Text if random.below(3) == 0 => Self::Set(value),
            Kind::Text => Self::Append(value),
            Kind::Counter => Self::Increment,
            Kind::List => Self::Push(value),
            Kind::Set => Self::AddMember(name),
            Kind::SortedSet => Self::AddScored(name, random.below(1_000) as i32 - 500),
            Kind::Hash => Self::SetField(name, value),
            Kind::Stream => Self::AddEntry(model.len() as u64 + 1, value),
        }
    }

    pub(super) fn command(&self, key: &str) -> Cmd {
        let mut command = Cmd::new();
        match self {
            Self::Set(value) => command.arg("SET").arg(key).arg(value),
            Self::Append(value) => command.arg("APPEND").arg(key).arg(value),
            Self::Increment => command.arg("INCR").arg(key),
            Self::Push(value) => command.arg("RPUSH").arg(key).arg(value),
            Self::AddMember(member) => command.arg("SADD").arg(key).arg(member),
            Self::AddScored(member, score) => command.arg("ZADD").arg(key).arg(score).arg(member),
            Self::SetField(field, value) => command.arg("HSET").arg(key).arg(field).arg(value),
            Self::AddEntry(number, value) => {
                command.arg("XADD").arg(key).arg(entry_id(*number)).arg("value").arg(value)
            }
            Self::Delete => command.arg("DEL").arg(key),
            Self::Expire(at_ms) => command.arg("PEXPIREAT").arg(key).arg(at_ms),
        };
        command
    }
}

/// What the server must answer if it held what the model says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Ok,
    Number(i64),
    Text(String),
}

impl Answer {
    pub(super) fn is(&self, reply: &Value) -> bool {
        match (self, reply) {
            (Self::Ok, Value::Okay) => true,
            (Self::Number(expected), Value::Int(number)) => expected == number,
            (Self::Text(expected), Value::BulkString(text)) => expected.as_bytes() == text,
            _ => false,
        }
    }
}

impl Model {
    /// What the key holds after `write`, and how the server answers it.
    pub(super) fn after(&self, write: &Write) -> (Self, Answer) {
        let mut next = self.clone();
        let answer = match write {
            Write::Set(value) => {
                // SET takes an expiry away; all other writes let it be.
                next = Self { contents: Some(Contents::Text(value.clone().into())), expires_at_ms: None };
                Answer::Ok
            }
            Write::Delete => {
                next = Self::default();
                Answer::Number(i64::from(self.contents.is_some()))
            }
            Write::Expire(at_ms) => {
                if self.contents.is_some() {
                    next.expires_at_ms = Some(*at_ms);
                }
                Answer::Number(i64::from(self.contents.is_some()))
            }
            _ => next.contents.get_or_insert_with(|| Contents::empty_for(write)).add(write),
        };
        (next, answer)
    }

    /// What a reader must find; none if the key must not exist.
    pub(super) fn state(&self) -> Option<KeyState> {
        let value = match self.contents.as_ref()? {
            Contents::Text(text) => ValueState::string(text),
            Contents::Counter(number) => ValueState::string(number.to_string().as_bytes()),
            Contents::List(elements) => ValueState::list(elements),
            Contents::Set(members) => ValueState::set(members),
            Contents::SortedSet(members) => {
                let mut ordered: Vec<(&String, i32)> =
                    members.iter().map(|(member, &score)| (member, score)).collect();
                ordered.sort_by_key(|&(member, score)| (score, member));
                ValueState::sorted_set(ordered.into_iter().map(|(member, score)| (member, f64::from(score))))
            }
            Contents::Hash(fields) => ValueState::hash(fields),
            Contents::Stream(entries) => {
                let entries: Vec<(String, Vec<&str>)> =
                    entries.iter().map(|(number, value)| (entry_id(*number), vec!["value", value])).collect();
                ValueState::stream(&entries)
            }
        };
        Some(KeyState { expires_at_ms: self.expires_at_ms, value })
    }

    fn len(&self) -> usize {
        match &self.contents {
            None => 0,
            // A long string counts as many elements.
            Some(Contents::Text(text)) => text.len() / 8,
            Some(Contents::Counter(number)) => *number as usize / 4,
            Some(Contents::List(elements)) => elements.len(),
            Some(Contents::Set(members)) => members.len(),
            Some(Contents::SortedSet(members)) => members.len(),
            Some(Contents::Hash(fields)) => fields.len(),
            Some(Contents::Stream(entries)) => entries.len(),
        }
    }
}

impl Contents {
    fn empty_for(write: &Write) -> Self {
        match write {
            Write::Increment => Self::Counter(0),
            Write::Push(_) => Self::List(Vec::new()),
            Write::AddMember(_) => Self::Set(BTreeSet::new()),
            Write::AddScored(..) => Self::SortedSet(BTreeMap::new()),
            Write::SetField(..) => Self::Hash(BTreeMap::new()),
            Write::AddEntry(..) => Self::Stream(Vec::new()),
            Write::Append(_) | Write::Set(_) | Write::Delete | Write::Expire(_) => Self::Text(Vec::new()),
        }
    }

    fn add(&mut self, write: &Write) -> Answer {
        let number = match (self, write) {
            (Self::Text(text), Write::Append(more)) => {
                text.extend_from_slice(more.as_bytes());
                text.len()
            }
            (Self::Counter(number), Write::Increment) => {
                *number += 1;
                return Answer::Number(*number);
            }
            (Self::List(elements), Write::Push(element)) => {
                elements.push(element.clone());
                elements.len()
            }
            (Self::Set(members), Write::AddMember(member)) => usize::from(members.insert(member.clone())),
            (Self::SortedSet(members), Write::AddScored(member, score)) => {
                usize::from(members.insert(member.clone(), *score).is_none())
            }
            (Self::Hash(fields), Write::SetField(field, value)) => {
                usize::from(fields.insert(field.clone(), value.clone()).is_none())
            }
            (Self::Stream(entries), Write::AddEntry(number, value)) => {
                entries.push((*number, value.clone()));
                return Answer::Text(entry_id(*number));
            }
            (contents, write) => unreachable!("{write:?} on {contents:?}: each key has writes of one kind"),
        };
        Answer::Number(number as i64)
    }
}

fn entry_id(number: u64) -> String {
    format!("{number}-1")
}
